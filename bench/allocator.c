// What large blocks cost that come and go, with whatever malloc there is: names and nanoseconds, for xtask/src/memory.rs, which runs it with
// libatoll/alloc.c and without. Each page of a block is written to.
#define _GNU_SOURCE
#include "common.h"
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, THREADS = 2 };
#define MIB (1l << 20)

static void touch(char *p, size_t size)
{
	for (size_t at = 0; at < size; at += PAGE)
		((volatile char *)p)[at] = 1;
}

static void at_once(size_t size, int count)
{
	char *all[8];
	for (int n = 0; n < count; n++) {
		if (!(all[n] = malloc(size)))
			fail("malloc");
		touch(all[n], size);
	}
	for (int n = 0; n < count; n++)
		free(all[n]);
}

static void one(size_t size)
{
	at_once(size, 1);
}

static void four(size_t size)
{
	at_once(size, 4);
}

static void zeroed(size_t size)
{
	char *volatile p = calloc(1, size);
	touch(p, size);
	free(p);
}

static void grown(size_t size)
{
	char *p = 0;
	for (size_t at = 0; at < size; at += size / 64) {
		if (!(p = realloc(p, at + size / 64)))
			fail("realloc");
		touch(p + at, size / 64);
	}
	free(p);
}

static size_t size_now;
static long times;

static void *fours(void *arg)
{
	(void)arg;
	for (long n = 0; n < times; n++)
		four(size_now);
	return 0;
}

static void by_threads(size_t size)
{
	pthread_t t[THREADS];
	(void)size;
	for (int n = 0; n < THREADS; n++)
		pthread_create(&t[n], 0, fours, 0);
	for (int n = 0; n < THREADS; n++)
		pthread_join(t[n], 0);
}

static const struct {
	const char *name;
	void (*run)(size_t);
	long most;
} ways[] = {
	{"malloc, write, free", one, 128 * MIB},
	{"four blocks at a time", four, 128 * MIB},
	{"four at a time in each of two threads", by_threads, 16 * MIB},
	{"calloc, write, free", zeroed, 128 * MIB},
	{"realloc in 64 steps, free", grown, 128 * MIB},
};

int main(void)
{
	setvbuf(stdout, 0, _IOLBF, 0);
	for (unsigned n = 0; n < sizeof ways / sizeof *ways; n++) {
		for (long size = 65536; size <= ways[n].most; size = size < 16 * MIB ? size * 4 : size < 64 * MIB ? 64 * MIB : size * 2) {
			fflush(stdout);
			// By itself: what malloc has come to think of sizes is nobody else's business.
			pid_t child = fork();
			if (child) {
				int status;
				waitpid(child, &status, 0);
				if (status)
					return 1;
				continue;
			}
			long all = 512 * MIB / size;
			times = all < 6 ? 6 : all > 2000 ? 2000 : all;
			size_now = size;
			int threads = ways[n].run == by_threads;
			for (int k = 0; k < 3 && !threads; k++)
				ways[n].run(size);
			double begun = now();
			for (long k = 0; k < (threads ? 1 : times); k++)
				ways[n].run(size);
			double each = (now() - begun) / times;
			printf(size < MIB ? "%ld KiB: %s %.0f\n" : "%ld MiB: %s %.0f\n", size < MIB ? size >> 10 : size >> 20, ways[n].name, each);
			fflush(stdout);
			_exit(0);
		}
	}
	return 0;
}
