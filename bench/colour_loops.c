/* Two loops that share a cache, a thread on each of two cores: one goes through 512 KiB in random order, again and again; the other one through
 * 8 MiB from front to end. Run on a machine whose cache bench/cache.c models, of 1 MiB and 16 ways: frames have 16 colours there.
 *
 * colour_loops any        memory as it comes
 * colour_loops coloured   12 colours for the first one, 4 for the second
 *
 * Prints how many lines the first one has read between its marks, 1 and 2, and the second one between its own, 3 and 4. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../libatoll/atoll.c"
#include "mark.h"

enum { LINE = 64, SMALL = 512 << 10, LARGE = 8 << 20, COLOURS = 16, ROUNDS = 40, AT_ONCE = 64 };

/* A line holds the number of the next one. */
static char *small, *large;
static int coloured;
static volatile int running, done;
static long read_there;

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static char *memory(size_t size, uint64_t wanted)
{
	char *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED || (coloured && atoll_pages_colour(at, size, COLOURS, wanted)))
		fail("memory");
	memset(at, 0, size);
	return at;
}

static void on(int core)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(core, &set);
	if (sched_setaffinity(0, sizeof set, &set))
		fail("sched_setaffinity");
}

static uint32_t walk(uint32_t at)
{
	for (int n = 0; n < SMALL / LINE; n++)
		at = *(volatile uint32_t *)(small + at * LINE);
	return at;
}

static void *stream(void *unused)
{
	(void)unused;
	on(1);
	MARK(3);
	running = 1;
	while (!done)
		for (size_t at = 0; at < LARGE && !done; at += AT_ONCE * LINE, read_there += AT_ONCE)
			for (int n = 0; n < AT_ONCE; n++)
				*(volatile char *)(large + at + n * LINE);
	MARK(4);
	return NULL;
}

int main(int argc, char **argv)
{
	enum { LINES = SMALL / LINE };
	static uint32_t order[LINES];
	uint32_t seed = 1, at = 0;
	pthread_t other;
	coloured = argc > 1 && !strcmp(argv[1], "coloured");
	small = memory(SMALL, 0x0fff);
	large = memory(LARGE, 0xf000);
	for (uint32_t n = 0; n < LINES; n++)
		order[n] = n;
	/* One cycle through all of them. */
	for (uint32_t n = LINES - 1; n > 0; n--) {
		seed = seed * 1664525 + 1013904223;
		uint32_t to = (uint64_t)seed * n >> 32, was = order[n];
		order[n] = order[to];
		order[to] = was;
	}
	for (uint32_t n = 0; n < LINES; n++)
		*(uint32_t *)(small + order[n] * LINE) = order[(n + 1) % LINES];
	on(0);
	if (pthread_create(&other, NULL, stream, NULL))
		fail("pthread_create");
	while (!running)
		;
	for (int n = 0; n < ROUNDS / 4; n++)
		at = walk(at);
	MARK(1);
	for (int n = 0; n < ROUNDS; n++)
		at = walk(at);
	MARK(2);
	done = 1;
	pthread_join(other, NULL);
	MARK(255);
	printf("walked %d\nstreamed %ld\n", ROUNDS * LINES, read_there);
	return at == UINT32_MAX;
}
