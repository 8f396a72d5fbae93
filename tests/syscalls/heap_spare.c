// A heap that goes up and down by a little and by much, with mappings and forks in between: what comes is zero, what stays is kept, and no mapping
// comes to lie in its way.
// timeout: 60
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096L
#define KIB 1024L

static int failed;
static unsigned seed = 1;

static long chance(long below)
{
	seed = seed * 1103515245 + 12345;
	return (seed >> 8) % below;
}

static void check(int holds, const char *what, long at)
{
	if (!holds && failed++ < 10)
		printf("not so: %s, %ld\n", what, at);
}

// Each page of the heap holds its number, and nothing else.
static void filled(char *heap, long from, long to)
{
	for (long at = from; at < to; at += PAGE) {
		check(*(long *)(heap + at) == 0 && heap[at + PAGE - 1] == 0, "zero when it comes", at / PAGE);
		*(long *)(heap + at) = at / PAGE + 1;
		heap[at + PAGE - 1] = 1;
	}
}

static void holds(char *heap, long to)
{
	for (long at = 0; at < to; at += PAGE)
		check(*(long *)(heap + at) == at / PAGE + 1 && heap[at + PAGE - 1] == 1, "kept", at / PAGE);
}

static long upto(char *heap, long from, long to)
{
	if (brk(heap + to)) {
		check(0, "there is room for it", to / PAGE);
		return from;
	}
	if (to > from)
		filled(heap, from, to);
	return to;
}

int main(void)
{
	setvbuf(stdout, 0, _IONBF, 0);
	char *heap = (char *)(((long)sbrk(0) + PAGE - 1) & -PAGE);
	long size = 0;
	char *maps[32] = {0};
	long lengths[32] = {0};
	// By a page, with a mapping after each step down: it must not be what lies behind the heap.
	size = upto(heap, size, 100 * PAGE);
	for (int n = 0; n < 40; n++) {
		size = upto(heap, size, size - PAGE);
		char *a = mmap(0, (n % 8 + 1) * 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		check(a < heap || a > heap + (64 << 20), "mappings are elsewhere", n);
		size = upto(heap, size, size + n % 5 * PAGE);
	}
	size = upto(heap, size, 4096 * KIB);
	holds(heap, size);
	for (int n = 0; n < 6000; n++) {
		long by = chance(6) ? chance(8) * PAGE : chance(12) ? chance(700) * KIB & -PAGE : chance(4096) * KIB & -PAGE;
		long to = chance(2) ? size + by : size - by;
		size = upto(heap, size, to < 0 ? 0 : to > 16384 * KIB ? 0 : to);
		int m = chance(32);
		if (chance(3) == 0) {
			if (maps[m]) {
				check(maps[m][0] == 7 && maps[m][lengths[m] - 1] == 7, "a mapping's own", n);
				munmap(maps[m], lengths[m]);
			}
			lengths[m] = (chance(140) + 1) * PAGE;
			maps[m] = mmap(0, lengths[m], PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			check(maps[m][0] == 0 && maps[m][lengths[m] - 1] == 0, "a mapping is zero", n);
			maps[m][0] = maps[m][lengths[m] - 1] = 7;
		}
		if (n % 300 == 299) {
			holds(heap, size);
			pid_t child = fork();
			if (!child) {
				holds(heap, size);
				long down = size > 40 * PAGE ? size - 30 * PAGE : 0;
				upto(heap, upto(heap, size, down), down + 900 * KIB);
				holds(heap, down);
				_exit(failed != 0);
			}
			int status;
			waitpid(child, &status, 0);
			check(status == 0, "a child's heap", n);
		}
	}
	holds(heap, size);
	size = upto(heap, size, 32768 * KIB);
	holds(heap, size);
	puts(failed ? "not as it should be" : "as it should be");
	return failed != 0;
}
