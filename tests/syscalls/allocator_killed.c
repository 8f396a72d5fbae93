// Processes are killed in the middle of a program's own allocator (XOS-08): nobody else notices, and what they had comes back.
// timeout: 90
#include "case.h"
#include "../../libatoll/alloc.c"

#define MIB (1UL << 20)

static void *goes_on(void *arg)
{
	uint64_t state = (uint64_t)arg;
	char *held[6] = {0};
	for (;;) {
		state = state * 6364136223846793005 + 1442695040888963407;
		unsigned n = (state >> 33) % 6;
		size_t size = 70000UL << (state >> 40) % 6;
		if (state >> 50 & 1 && held[n]) {
			held[n] = realloc(held[n], size);
		} else {
			free(held[n]);
			held[n] = state >> 51 & 1 ? calloc(1, size) : malloc(size);
		}
		for (size_t at = 0; at < size; at += 16384)
			held[n][at] = 1;
	}
}

static void dies(int after)
{
	pid_t child = fork();
	if (!child) {
		pthread_t t;
		pthread_create(&t, 0, goes_on, (void *)(long)(after * 3 + 1));
		goes_on((void *)(long)(after * 3 + 2));
	}
	usleep(after);
	kill(child, SIGKILL);
	waitpid(child, 0, 0);
}

// In a cell, where nobody else has any: KiB.
static long free_memory(void)
{
	char line[200];
	long n = 0;
	FILE *f = fopen("/proc/meminfo", "r");
	while (fgets(line, sizeof line, f) && sscanf(line, "MemFree: %ld", &n) != 1)
		;
	fclose(f);
	return n;
}

int main(void)
{
	long wrong = 0, before, lacks;
	char *own[8] = {0};
	for (int n = 0; n < 8; n++)
		memset(own[n] = malloc(MIB), n, MIB);
	dies(3000);
	before = free_memory();
	for (int n = 0; n < 200; n++) {
		dies(n * 40);
		char *p = own[n % 8];
		for (size_t at = 0; at < MIB; at++)
			wrong += p[at] != n % 8;
		free(p);
		memset(own[n % 8] = malloc(MIB), n % 8, MIB);
	}
	P(wrong);
	for (int tries = 0; tries < 50 && (lacks = before - free_memory()) > 8192; tries++)
		usleep(100000);
	printf("all came back: %d\n", !in_cell() || lacks <= 8192);
	if (in_cell() && lacks > 8192)
		printf("%ld KiB didn't\n", lacks);
	for (int n = 0; n < 8; n++)
		free(own[n]);
	P(atoll_allocator_kept());
	return 0;
}
