/* What it costs to know which pages were written to, in instructions: run on a machine that bench/count.c counts on. Prints how often each was
 * done between its marks.
 *
 * 64 MiB are there. Time and again some of its 16,384 pages are written to, and it is asked which; then the answer is gone through. Linux has
 * no such call: there the range is protected and a handler of SIGSEGV notes the first write to each page, as garbage collectors do. In a cell it is asked.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "../libatoll/atoll.c"
#include "common.h"
#include "mark.h"

enum { PAGE = 4096, PAGES = 16384, WARM = 2 };

static char *at;
static uint64_t bits[PAGES / 64];

static void note(int signal, siginfo_t *info, void *context)
{
	size_t page = ((char *)info->si_addr - at) / PAGE;
	(void)signal, (void)context;
	bits[page / 64] |= 1ull << page % 64;
	mprotect(at + page * PAGE, PAGE, PROT_READ | PROT_WRITE);
}

/* Writes to so many pages, as far from each other as can be. Value: how many are said to have been written to. */
static long round_of(long pages)
{
	long told = 0;
	for (long n = 0; n < pages; n++)
		at[n * (PAGES / pages) * PAGE]++;
	if (atoll_in_cell() && atoll_pages_written(at, (size_t)PAGES * PAGE, (unsigned char *)bits) < 0)
		fail("atoll_pages_written");
	for (int n = 0; n < PAGES / 64; n++)
		told += __builtin_popcountll(bits[n]);
	if (!atoll_in_cell()) {
		memset(bits, 0, sizeof bits);
		if (mprotect(at, (size_t)PAGES * PAGE, PROT_READ))
			fail("mprotect");
	}
	return told;
}

#define MEASURE(name, pages, rounds, from, to)     \
	do {                                       \
		for (int n = 0; n < WARM; n++)     \
			round_of(pages);           \
		long told = 0;                     \
		MARK(from);                        \
		for (int n = 0; n < (rounds); n++) \
			told += round_of(pages);   \
		MARK(to);                          \
		printf("%s %d\n", name, rounds);   \
		if (told < (long)(rounds) * (pages)) \
			fail("too little is told"); \
	} while (0)

int main(void)
{
	struct sigaction action = {.sa_sigaction = note, .sa_flags = SA_SIGINFO};
	if (!atoll_in_cell())
		sigaction(SIGSEGV, &action, NULL);
	at = mmap(NULL, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		fail("mmap");
	memset(at, 1, (size_t)PAGES * PAGE);
	round_of(PAGES);
	MEASURE("none", 0, 20, 1, 2);
	MEASURE("sixteen", 16, 20, 3, 4);
	MEASURE("thousand", 1024, 10, 5, 6);
	MEASURE("all", PAGES, 4, 7, 8);
	return 0;
}
