// The GS base belongs to the runtime. A program that sets it by instruction
// is ended, with a line that says why.
// flags: -mfsgsbase
// cell-exit: 139
// cell-says: changed the GS base
#include <immintrin.h>
#include <stdio.h>
#include <unistd.h>

static unsigned long area[1024];

int main(void)
{
	area[0] = 42;
	setvbuf(stdout, NULL, _IONBF, 0);
	puts("before");
	_writegsbase_u64((unsigned long)area);
	unsigned long word;
	asm volatile("mov %%gs:0, %0" : "=r"(word));
	for (int i = 0; i < 100000; i++)
		getppid();
	printf("%lu\n", word);
	return 0;
}
