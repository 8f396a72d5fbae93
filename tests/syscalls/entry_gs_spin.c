// As entry_gs_base.c, for a program that makes no call afterwards: the next
// time the runtime gets the core it sees what happened.
// options: --cores 1
// flags: -mfsgsbase
// cell-exit: 139
// cell-says: changed the GS base
#include <immintrin.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#ifndef BASE
static unsigned long area[1024];
#define BASE ((unsigned long)area)
#endif
static volatile int stop;

static void *other(void *arg)
{
	usleep(50000);
	stop = 1;
	return NULL;
}

int main(void)
{
	pthread_t t;
	setvbuf(stdout, NULL, _IONBF, 0);
	puts("before");
	pthread_create(&t, NULL, other, NULL);
	_writegsbase_u64(BASE);
	while (!stop)
		;
	puts("after");
	return 0;
}
