/* The clock of a measurement, and the end of one that can't go on. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Nanoseconds. */
static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static void fail(const char *what)
{
	perror(what);
	exit(1);
}
