// Colours of pages (XOS-04): memory that is only in frames of some colours, and which frames pages are in. On Linux, and in a cell on it,
// nobody tells; what is said here is the same everywhere.
// options: --cores 2 --memory 128M
// timeout: 60
// nucleus-says: by frames
#define _GNU_SOURCE
#include "../../libatoll/atoll.c"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096L
#define MOST 6144L

static int failed;
static uint64_t frames[MOST];

static void check(int holds, const char *what)
{
	if (!holds) {
		printf("not so: %s (errno %d)\n", what, errno);
		failed = 1;
	}
}

static void fails(long result, int error, const char *what)
{
	check(result == -1 && errno == error, what);
}

static char *memory(long pages)
{
	return mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void fill(char *at, long pages, long with)
{
	for (long n = 0; n < pages; n++)
		*(long *)(at + n * PAGE + 8) = with + n;
}

static int holds(char *at, long pages, long with)
{
	for (long n = 0; n < pages; n++)
		if (*(long *)(at + n * PAGE + 8) != with + n || *(long *)(at + n * PAGE))
			return 0;
	return 1;
}

// Of how many pages the frame is known, and of another colour; all frames differ.
struct seen {
	long there, others;
};

static int larger(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

static struct seen look(char *at, long pages, unsigned colours, uint64_t wanted)
{
	struct seen seen = {0, 0};
	check(atoll_pages_frames(at, pages * PAGE, frames) == 0, "frames");
	qsort(frames, pages, sizeof *frames, larger);
	for (long n = 0; n < pages; n++) {
		uint64_t frame = frames[n];
		if (!frame)
			continue;
		seen.there++;
		seen.others += !(wanted >> frame % colours & 1);
		check(n == 0 || frames[n - 1] != frame, "each has its own");
	}
	return seen;
}

static int all(char *at, long pages, unsigned colours, uint64_t wanted)
{
	struct seen seen = look(at, pages, colours, wanted);
	return seen.there == pages && seen.others == 0;
}

static void ranges(void)
{
	enum { N = 3000 };
	char *a = memory(N);
	fill(a, N, 5);
	check(look(a, N, 1, 1).there == N, "memory that nothing is said of has frames, too");
	check(atoll_pages_colour(a, N * PAGE, 4, 1 << 2) == 0, "one colour of four");
	check(look(a, N, 4, 4).there == 0, "what was there is dropped");
	check(holds(a, 0, 0) && *(long *)(a + 8) == 0, "zeroes");
	check(look(a, N, 4, 4).there == 1, "a page at a time");
	fill(a, N, 7);
	check(all(a, N, 4, 4) && holds(a, N, 7), "all of that colour");
	check(madvise(a + 100 * PAGE, 1000 * PAGE, MADV_DONTNEED) == 0, "drop");
	check(look(a, N, 4, 4).there == N - 1000, "dropped");
	check(*(long *)(a + 500 * PAGE + 8) == 0, "zeroes again");
	fill(a, N, 8);
	check(all(a, N, 4, 4) && holds(a, N, 8), "after that");
	check(mprotect(a, N / 2 * PAGE, PROT_NONE) == 0 && mprotect(a, N / 2 * PAGE, PROT_READ | PROT_WRITE) == 0, "access");
	check(all(a, N, 4, 4) && holds(a, N, 8), "after other access");
	// Moved, with another one's pages behind it; made longer.
	char *to = memory(2 * N);
	memset(to, 1, 2 * N * PAGE);
	check(mremap(a, N * PAGE, N * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to, "moved");
	check(all(to, N, 4, 4) && holds(to, N, 8), "after that");
	check(munmap(to + N * PAGE, N * PAGE) == 0, "room");
	char *longer = mremap(to, N * PAGE, (N + 64) * PAGE, MREMAP_MAYMOVE);
	fill(longer, N + 64, 9);
	check(all(longer, N + 64, 4, 4) && holds(longer, N + 64, 9), "longer");
	// Small memory, beside which some is in place already.
	char *small[20];
	for (int n = 0; n < 20; n++) {
		char *s = memory(16);
		check(atoll_pages_colour(s, 16 * PAGE, 16, 2) == 0, "small");
		small[n] = mremap(s, 16 * PAGE, 24 * PAGE, MREMAP_MAYMOVE);
	}
	for (int n = 0; n < 20; n++) {
		fill(small[n], 24, n);
		check(all(small[n], 24, 16, 2) && holds(small[n], 24, n), "small, longer");
		munmap(small[n], 24 * PAGE);
	}
	// A part of it of other colours, of a count that is no power of two.
	check(atoll_pages_colour(longer + 10 * PAGE, 1000 * PAGE, 7, 1 << 1 | 1 << 6) == 0, "others");
	fill(longer, N + 64, 10);
	check(all(longer + 10 * PAGE, 1000, 7, 1 << 1 | 1 << 6) && all(longer + 1010 * PAGE, N + 64 - 1010, 4, 4), "each its own");
	check(holds(longer, N + 64, 10), "contents");
	// No longer.
	check(atoll_pages_colour(longer, (N + 64) * PAGE, 0, 0) == 0, "any");
	fill(longer, N + 64, 11);
	check(look(longer, N + 64, 4, 4).others > 0 && holds(longer, N + 64, 11), "of any");
	munmap(longer, (N + 64) * PAGE);
}

static void forks(void)
{
	enum { N = 1200 };
	char *a = memory(N);
	check(atoll_pages_colour(a, N * PAGE, 8, 0x21) == 0, "two of eight");
	fill(a, N, 3);
	check(all(a, N, 8, 0x21), "before");
	int status;
	pid_t child = fork();
	if (!child) {
		check(all(a, N, 8, 0x21) && holds(a, N, 3), "in a child");
		fill(a, N, 4);
		check(madvise(a, N / 2 * PAGE, MADV_DONTNEED) == 0, "drop");
		fill(a, N / 2, 4);
		check(all(a, N, 8, 0x21) && holds(a, N, 4), "after its writes");
		pid_t grandchild = fork();
		if (!grandchild) {
			check(all(a, N, 8, 0x21) && holds(a, N, 4), "in its child");
			_exit(failed);
		}
		waitpid(grandchild, &status, 0);
		_exit(failed || status);
	}
	fill(a, N, 5);
	check(all(a, N, 8, 0x21) && holds(a, N, 5), "in the parent of a child that lives");
	waitpid(child, &status, 0);
	check(status == 0, "the child is content");
	check(all(a, N, 8, 0x21) && holds(a, N, 5), "after the child");
	munmap(a, N * PAGE);
}

static char *both;
static void *fills(void *half)
{
	for (int round = 0; round < 20; round++) {
		char *at = both + (long)half * 500 * PAGE;
		fill(at, 500, round);
		check(holds(at, 500, round), "of one of two threads");
		madvise(at, 500 * PAGE, MADV_DONTNEED);
	}
	return 0;
}

static void threads(void)
{
	pthread_t t[2];
	both = memory(1000);
	check(atoll_pages_colour(both, 1000 * PAGE, 16, 1 << 9) == 0, "one of sixteen");
	for (long n = 0; n < 2; n++)
		pthread_create(&t[n], 0, fills, (void *)n);
	for (long n = 0; n < 2; n++)
		pthread_join(t[n], 0);
	check(look(both, 1000, 16, 1 << 9).there == 0, "all dropped");
	fill(both, 1000, 1);
	check(all(both, 1000, 16, 1 << 9), "again");
	munmap(both, 1000 * PAGE);
}

// More than there is of a colour: what is touched comes of another, what is brought in ahead does not come.
static void too_much(void)
{
	enum { N = 4096 };
	char *a = memory(N);
	check(atoll_pages_colour(a, N * PAGE, 32, 1) == 0, "one of 32");
	fails(madvise(a, N * PAGE, MADV_POPULATE_WRITE), ENOMEM, "there are not so many");
	struct seen ahead = look(a, N, 32, 1);
	check(ahead.there > 300 && ahead.there < 1100 && ahead.others == 0, "as many as there are");
	fill(a, N, 2);
	struct seen seen = look(a, N, 32, 1);
	check(seen.there == N && seen.others >= N - 1100 && seen.others < N - 300 && holds(a, N, 2), "the rest of others");
	munmap(a, N * PAGE);
	// They are there again.
	a = memory(200);
	check(atoll_pages_colour(a, 200 * PAGE, 32, 1) == 0 && madvise(a, 200 * PAGE, MADV_POPULATE_WRITE) == 0, "given back");
	check(all(a, 200, 32, 1), "of that colour");
	munmap(a, 200 * PAGE);
}

static void errors(int known)
{
	char *a = memory(16);
	if (!known) {
		fails(atoll_pages_frames(a, PAGE, frames), ENOSYS, "no frames");
		fails(atoll_pages_colour(a, PAGE, 4, 1), ENOSYS, "no colours");
		munmap(a, 16 * PAGE);
		return;
	}
	fails(atoll_pages_colour(a + 1, PAGE, 4, 1), EINVAL, "an address");
	fails(atoll_pages_colour(a, 100, 4, 1), EINVAL, "a length");
	fails(atoll_pages_colour((void *)-4096L, PAGE, 4, 1), EINVAL, "not the program's");
	fails(atoll_pages_colour(a, PAGE, 4, 0), EINVAL, "no colour");
	fails(atoll_pages_colour(a, PAGE, 4, 0x10), EINVAL, "no such colour");
	fails(atoll_pages_colour(a, PAGE, 65, 1), EINVAL, "too many");
	fails(atoll_pages_frames(a + 1, PAGE, frames), EINVAL, "an address");
	a[0] = 1;
	fails(atoll_pages_frames(a, PAGE, (void *)8), EFAULT, "no place");
	munmap(a + 4 * PAGE, PAGE);
	fails(atoll_pages_colour(a, 8 * PAGE, 4, 1), ENOMEM, "a hole");
	fails(atoll_pages_frames(a, 8 * PAGE, frames), ENOMEM, "a hole");
	char *s = mmap(0, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	s[0] = 1;
	fails(atoll_pages_colour(s, PAGE, 4, 1), EINVAL, "shared memory");
	check(look(s, 4, 1, 1).there == 0, "which has no frames that are told of");
	unsigned char bits[1];
	check(atoll_pages_colour(a, PAGE, 64, ~0ull) == 0, "all of them");
	fails(atoll_pages_written(a, PAGE, bits), EINVAL, "of these it isn't known");
	munmap(s, 4 * PAGE);
	munmap(a, 16 * PAGE);
}

int main(void)
{
	int known = atoll_pages_frames(0, 0, frames) == 0;
	check(known || errno == ENOSYS, "known or not");
	errors(known);
	if (known) {
		ranges();
		forks();
		threads();
		too_much();
	}
	fprintf(stderr, "%s\n", known ? "by frames" : "nobody tells");
	puts(failed ? "colours: wrong" : "colours: as they should be");
	return failed;
}
