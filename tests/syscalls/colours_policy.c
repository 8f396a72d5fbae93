// Colours of pages, said by a file for a program's mappings (XOS-03, XOS-04). Where nobody tells of frames, the file is read and that part of
// it left out.
// options: --cores 1 --memory 256M --memory-policy syscalls/colours_policy.toml
// nucleus-says: by frames
#define _GNU_SOURCE
#include "../../libatoll/atoll.c"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096L
#define MOST 4096L

static int failed, known;

static void check(int holds, const char *what)
{
	if (!holds) {
		printf("not so: %s (errno %d)\n", what, errno);
		failed = 1;
	}
}

static char *map(long pages, int flags)
{
	return mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
}

// How many of the pages that are there are of these colours, and how many of others.
static void count(char *at, long pages, unsigned of, uint64_t wanted, long *are, long *others)
{
	static uint64_t frames[MOST];
	*are = *others = 0;
	if (!known)
		return;
	check(atoll_pages_frames(at, pages * PAGE, frames) == 0, "frames");
	for (long n = 0; n < pages; n++)
		if (frames[n])
			++*(wanted >> frames[n] % of & 1 ? are : others);
}

static void all_of(char *at, long pages, unsigned of, uint64_t wanted, const char *what)
{
	long are, others;
	count(at, pages, of, wanted, &are, &others);
	check(!known || (are == pages && !others), what);
}

static void fill(char *at, long pages)
{
	for (long n = 0; n < pages; n++) {
		check(at[n * PAGE] == 0, "zero when it is first seen");
		at[n * PAGE] = n % 100 + 1;
	}
}

static void holds(char *at, long pages)
{
	for (long n = 0; n < pages; n++)
		check(at[n * PAGE] == n % 100 + 1, "contents");
}

int main(void)
{
	long are, others;
	uint64_t frame;
	char *a = map(300, MAP_PRIVATE);
	known = atoll_pages_frames(a, PAGE, &frame) == 0;
	fill(a, 300);
	all_of(a, 300, 8, 1 << 2 | 1 << 5, "of 1 to 2 MiB");
	// Small memory is usually in place before it is mapped.
	for (int n = 0; n < 20; n++) {
		char *small = map(16 + n % 16, MAP_PRIVATE);
		fill(small, 16 + n % 16);
		all_of(small, 16 + n % 16, 3, 2, "of 64 to 128 KiB");
		if (n % 2)
			munmap(small, (16 + n % 16) * PAGE);
	}
	char *placed = mmap(a + 100 * PAGE, 20 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	check(placed == a + 100 * PAGE, "in the middle of it");
	fill(placed, 20);
	all_of(placed, 20, 3, 2, "in the middle");
	all_of(a, 100, 8, 1 << 2 | 1 << 5, "before it");
	all_of(a + 120 * PAGE, 180, 8, 1 << 2 | 1 << 5, "behind it");
	// Ahead of its use.
	char *large = map(2048, MAP_PRIVATE);
	all_of(large, 2048, 2, 2, "populated");
	fill(large, 2048);
	all_of(large, 2048, 2, 2, "and written to");
	// Nothing is said of these.
	char *other = map(600, MAP_PRIVATE), *shared = map(300, MAP_SHARED);
	fill(other, 600);
	fill(shared, 300);
	count(other, 600, 8, 1 << 2 | 1 << 5, &are, &others);
	check(!known || others > 300, "of another size");
	// The program says otherwise; children go on with it.
	check(!known || atoll_pages_colour(a, 100 * PAGE, 4, 1) == 0, "by a call");
	if (known)
		fill(a, 100);
	all_of(a, 100, 4, 1, "what the program says goes before it");
	holds(large, 2048);
	fflush(stdout);
	int status;
	pid_t child = fork();
	if (!child) {
		char *own = map(256, MAP_PRIVATE);
		fill(own, 256);
		all_of(own, 256, 8, 1 << 2 | 1 << 5, "in a child");
		all_of(a + 120 * PAGE, 180, 8, 1 << 2 | 1 << 5, "what it was given");
		_exit(failed);
	}
	waitpid(child, &status, 0);
	check(status == 0, "the child");
	if (known)
		fprintf(stderr, "by frames\n");
	puts(failed ? "not as it should be" : "as it should be");
	return failed;
}
