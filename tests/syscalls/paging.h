// How many faults it takes to touch memory, for the cases about how it is brought in (XOS-03). What is checked holds in cells only; on
// Linux the calls are the same.
#ifndef PAGING_H
#define PAGING_H
#include "case.h"
#include "../../libatoll/atoll.c"
#include <sys/prctl.h>
#include <sys/resource.h>

#define PAGE 4096L
#define MIB (1L << 20)

static int failed;

static inline char *memory(long size)
{
	return mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static inline long faults(void)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return u.ru_minflt;
}

// Writes to each page. Value: faults.
static inline long touch(char *at, long size)
{
	long before = faults();
	for (long n = 0; n < size; n += PAGE)
		((volatile char *)at)[n]++;
	return faults() - before;
}

// So many faults, or a few more: the host may forget what it has mapped.
static inline void takes(long found, long expected, const char *what)
{
	if (atoll_in_cell() && (found < expected || found > expected + 4)) {
		printf("%s: %ld faults, not %ld\n", what, found, expected);
		failed = 1;
	}
}

static inline int end(void)
{
	puts(failed ? "paging: wrong" : "paging: as it should be");
	return failed;
}
#endif
