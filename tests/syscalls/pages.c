// What a program can ask of its memory by libatoll: which pages were written to, and changes of mappings in batches (XOS-05). On Linux
// there are no such bits, and the changes are made by Linux's calls. What is said here is the same on both.
// options: --cores 2 --memory 512M
// nucleus-says: by page tables
// timeout: 60
#define _GNU_SOURCE
#include "../../libatoll/atoll.c"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096L
#define MOST 16384L

static int failed;
static unsigned char bits[MOST / 8];

static void check(int holds, const char *what)
{
	if (!holds) {
		printf("not so: %s (errno %d)\n", what, errno);
		failed = 1;
	}
}

static void fails(long result, int error, const char *what)
{
	check(result == -1 && errno == (atoll_in_cell() ? error : ENOSYS), what);
}

static char *memory(long pages)
{
	return mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

// How many of these pages are said to be so; the bits agree with that. On Linux: always what is expected.
static long told(long (*ask)(void *, size_t, unsigned char *), char *at, long pages, long expected)
{
	long sum = 0, r = ask(at, pages * PAGE, bits);
	if (!atoll_in_cell()) {
		check(r == -1 && errno == ENOSYS, "no bits on Linux");
		return expected;
	}
	for (long n = 0; n < pages; n++)
		sum += bits[n / 8] >> n % 8 & 1;
	check(r == sum, "as many bits as it says");
	return r;
}

// How many were written to.
static long written(char *at, long pages, long expected)
{
	return told(atoll_pages_written, at, pages, expected);
}

// How many were used.
static long used(char *at, long pages, long expected)
{
	return told(atoll_pages_accessed, at, pages, expected);
}

static int said(long page)
{
	return !atoll_in_cell() || bits[page / 8] >> page % 8 & 1;
}

static void one_by_one(void)
{
	enum { N = 4096 };
	char *a = memory(N);
	check(written(a, N, 0) == 0, "nothing was touched");
	memset(a, 1, N * PAGE);
	check(written(a, N, N) == N, "all");
	check(written(a, N, 0) == 0, "none");
	long sum = 0;
	for (long n = 0; n < N; n++)
		sum += a[n * PAGE];
	check(sum == N, "contents");
	check(written(a, N, 0) == 0, "reading is not writing");
	// One in 64 KiB, exactly; and at the ends of what is asked about.
	for (long n = 3; n < 100; n += 32)
		a[n * PAGE + n] = 2;
	check(written(a, N, 4) == 4, "four pages");
	for (long n = 3; n < 100; n += 32)
		check(said(n), "the right ones");
	a[100 * PAGE] = a[150 * PAGE] = a[200 * PAGE] = 3;
	check(written(a + 101 * PAGE, 99, 1) == 1 && said(49), "a part");
	check(written(a, N, 2) == 2 && said(100) && said(200), "the rest");
	// System calls.
	int fd = memfd_create("data", 0), p[2];
	check(ftruncate(fd, 1 << 20) == 0, "file");
	check(pread(fd, a + 300 * PAGE + 4000, 100, 0) == 100, "read");
	check(written(a, N, 2) >= 2 && said(300) && said(301), "by a system call");
	check(pwrite(fd, a + 300 * PAGE, 8192, 0) == 8192, "write");
	check(written(a, N, 0) == 0, "what a system call reads");
	check(pipe(p) == 0 && write(p[1], "x", 1) == 1 && read(p[0], a + 400 * PAGE, 1) == 1, "pipe");
	check(written(a, N, 1) == 1 && said(400), "from a pipe");
	close(fd);
	close(p[0]);
	close(p[1]);
	// Other access in between.
	mprotect(a, 100 * PAGE, PROT_READ);
	mprotect(a, 100 * PAGE, PROT_READ | PROT_WRITE);
	check(written(a, N, 0) == 0, "access is not writing");
	a[50 * PAGE] = 4;
	check(written(a, N, 1) == 1 && said(50), "after other access");
	// What was dropped is said to be written to when it is touched again.
	madvise(a + 64 * PAGE, 64 * PAGE, MADV_DONTNEED);
	check(written(a, N, 0) == 0, "dropped");
	check(a[70 * PAGE] == 0, "zeroes");
	check(written(a, N, 1) >= 1 && said(70), "touched again");
	// What is moved is as if it had been written to.
	char *to = memory(N);
	check(mremap(a, 1024 * PAGE, 1024 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to, "moved");
	check(written(to, 1024, 1) >= 1 && said(3), "what was moved");
	check(to[3 * PAGE + 3] == 2, "its contents");
	munmap(to, N * PAGE);
	munmap(a + 1024 * PAGE, (N - 1024) * PAGE);
}

// A child has all pages as written to, and its parent is told of its own writes.
static void forks(void)
{
	enum { N = 2048 };
	char *a = memory(N);
	memset(a, 1, N * PAGE);
	written(a, N, N);
	pid_t child = fork();
	if (!child) {
		check(written(a, N, N) == N, "all, in a child");
		a[100 * PAGE] = 5;
		check(written(a, N, 1) == 1 && said(100), "one, in a child");
		_exit(failed);
	}
	int status;
	a[5 * PAGE] = 5;
	check(written(a, N, 1) == 1 && said(5), "in the parent of a child that lives");
	waitpid(child, &status, 0);
	check(status == 0, "the child is content");
	check(a[100 * PAGE] == 1, "its writes are its own");
	a[900 * PAGE] = 5;
	check(written(a, N, 1) == 1 && said(900), "after the child");
	check(written(a, N, 0) == 0, "none");
	munmap(a, N * PAGE);
}

static atomic_int over;
static char *shared_pages;
static long many;
static void *writes(void *seed)
{
	unsigned s = (unsigned)(long)seed;
	while (!over)
		for (int n = 0; n < 100; n++) {
			s = s * 1103515245 + 12345;
			// Now here and there, now all in one place.
			long page = s >> 30 ? (s >> 8) % many : (s >> 8) % 700;
			atomic_fetch_add((atomic_long *)(shared_pages + page * PAGE + (long)seed * 8), 1);
		}
	return 0;
}

// Who copies what is said to have been written to, time and again, ends up with what is there.
static void copies(void)
{
	if (!atoll_in_cell())
		return;
	many = 8192;
	long exact = 0, rounds = 0;
	shared_pages = memory(many);
	char *mirror = memory(many);
	pthread_t t[3];
	for (long n = 0; n < 3; n++)
		pthread_create(&t[n], 0, writes, (void *)(n + 1));
	for (int last = 0; !last; rounds++) {
		usleep(2000);
		if (rounds == 60) {
			over = 1;
			for (int n = 0; n < 3; n++)
				pthread_join(t[n], 0);
			last = 1;
		}
		exact += written(shared_pages, many, 0);
		for (long n = 0; n < many; n++)
			if (said(n))
				memcpy(mirror + n * PAGE, shared_pages + n * PAGE, PAGE);
	}
	check(!memcmp(mirror, shared_pages, many * PAGE), "the mirror is what it mirrors");
	fprintf(stderr, "%ld pages of %ld in %ld rounds\n", exact, many * rounds, rounds);
	munmap(mirror, many * PAGE);
	munmap(shared_pages, many * PAGE);
}

// May a page be written to? 0: no.
static int writable(char *at)
{
	int zero = open("/dev/zero", O_RDONLY), r = read(zero, at, 1) == 1;
	close(zero);
	return r;
}

static char look(char *at)
{
	return *(volatile char *)at;
}

static void accessed(void)
{
	enum { N = 4096 };
	char *a = memory(N);
	check(used(a, N, 0) == 0, "nothing is there");
	memset(a, 1, N * PAGE);
	check(used(a, N, N) == N, "all are used");
	check(used(a, N, 0) == 0, "none is");
	// One in 64 KiB, exactly; by reading, writing, and both kinds of bits at a time.
	long sum = 0;
	for (long n = 3; n < 100; n += 32)
		sum += n % 64 == 3 ? look(a + n * PAGE) : (a[n * PAGE] = 1);
	check(used(a, N, 4) == 4 && sum == 4, "four");
	for (long n = 3; n < 100; n += 32)
		check(said(n), "the right ones");
	check(written(a, N, N) == N, "written to");
	check(used(a, N, 0) == 0, "that is no use of them");
	look(a + 200 * PAGE);
	check(used(a, N, 1) == 1 && said(200), "read");
	check(written(a, N, 0) == 0, "and not written to");
	a[201 * PAGE] = 9;
	check(written(a, N, 1) == 1 && said(201), "written to");
	check(used(a, N, 1) == 1 && said(201), "and used");
	// System calls.
	int fd = memfd_create("data", 0);
	check(pwrite(fd, a + 300 * PAGE + 4000, 200, 0) == 200, "write");
	check(used(a, N, 2) >= 2 && said(300) && said(301), "what a system call reads");
	check(pread(fd, a + 500 * PAGE, 100, 0) == 100, "read");
	check(used(a, N, 1) >= 1 && said(500), "what a system call writes to");
	close(fd);
	mprotect(a, 100 * PAGE, PROT_NONE);
	mprotect(a, 100 * PAGE, PROT_READ);
	check(used(a, N, 0) == 0, "access is no use");
	look(a + 50 * PAGE);
	check(used(a, N, 1) == 1 && said(50) && !writable(a + 50 * PAGE), "after other access");
	mprotect(a, 100 * PAGE, PROT_READ | PROT_WRITE);
	used(a, N, 0);
	// A child, and what its parent uses while it lives.
	pid_t child = fork();
	if (!child) {
		check(a[7 * PAGE] == 1 && used(a, N, N) == N, "all, in a child");
		a[7 * PAGE] = 5;
		check(used(a, N, 1) == 1 && said(7), "one, in a child");
		_exit(failed);
	}
	int status;
	check(used(a, N, N) >= N - 1, "all, after a fork");
	a[9 * PAGE] = 6;
	check(used(a, N, 1) == 1 && said(9), "in the parent of a child that lives");
	waitpid(child, &status, 0);
	check(status == 0, "the child is content");
	check(a[7 * PAGE] == 1 && a[9 * PAGE] == 6, "contents");
	// At random: never too little.
	unsigned s = 7;
	static unsigned char mine[N];
	for (int round = 0; round < 50; round++) {
		memset(mine, 0, N);
		used(a, N, 0);
		int many = 1 << round % 10;
		for (int n = 0; n < many; n++) {
			s = s * 1103515245 + 12345;
			long page = (s >> 8) % N;
			mine[page] = 1;
			if (s >> 31)
				a[page * PAGE + 8]++;
			else
				look(a + page * PAGE);
			if (s >> 24 == 77)
				madvise(a + page * PAGE, PAGE, MADV_DONTNEED), mine[page] = 0;
		}
		long told = used(a, N, 0), missed = 0;
		for (long n = 0; n < N; n++)
			missed += mine[n] && !said(n);
		check(missed == 0 && (told >= 0), "none is missed");
	}
	check(!munmap(a, N * PAGE), "gone");
}

static long faults(void)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return u.ru_minflt;
}

// Where the page tables' own bits are read each page is told by itself, and nothing faults for it; elsewhere there may be more.
static void exactly(void)
{
	enum { N = 8192 };
	static unsigned char mine[N];
	char *a = memory(N);
	memset(a, 1, N * PAGE);
	int by_tables = atoll_pages_forget(a, N * PAGE) == 0;
	check(by_tables || errno == ENOSYS, "TLB entries");
	check(a[5 * PAGE] == 1, "nothing comes of that but time");
	fails(atoll_pages_forget(a + 1, PAGE), EINVAL, "an address");
	fails(atoll_pages_forget(a, 1), EINVAL, "a length");
	fails(atoll_pages_forget((void *)-4096L, PAGE), EINVAL, "not the program's");
	written(a, N, N);
	long before = faults();
	memset(a, 2, N * PAGE);
	check(!by_tables || faults() == before, "no faults");
	unsigned s = 3;
	for (int round = 0; round < 40; round++) {
		// Other access and a fork in between take nothing away, nor is anything told that was not.
		written(a, N, N);
		memset(mine, 0, N);
		long many = 0;
		for (long n = 0; n < 1 << round % 12; n++) {
			s = s * 1103515245 + 12345;
			long page = s >> 31 ? (s >> 8) % N : (s >> 8) % 40 + 500;
			many += !mine[page];
			mine[page] = 1;
			a[page * PAGE + n % PAGE]++;
		}
		if (round % 4 == 1) {
			mprotect(a, N / 2 * PAGE, PROT_NONE);
			mprotect(a, N / 2 * PAGE, PROT_READ);
			mprotect(a, N / 2 * PAGE, PROT_READ | PROT_WRITE);
		} else if (round % 8 == 3) {
			pid_t child = fork();
			if (!child)
				_exit(0);
			for (long n = 600; n < 632; n += 2) {
				many += !mine[n];
				mine[n] = 1;
				a[n * PAGE] = 2;
			}
			waitpid(child, 0, 0);
		}
		long told = written(a, N, many), missed = 0;
		for (long n = 0; n < N; n++)
			missed += mine[n] && !said(n);
		check(!missed, "none is missed");
		check(!by_tables || told == many, "no more than were written to");
	}
	fprintf(stderr, "by %s\n", by_tables ? "page tables" : "protection");
	munmap(a, N * PAGE);
}

static void errors(void)
{
	char *a = memory(64);
	fails(atoll_pages_written(a + 1, PAGE, bits), EINVAL, "an address");
	fails(atoll_pages_written(a, PAGE + 1, bits), EINVAL, "a length");
	fails(atoll_pages_written((void *)-4096L, PAGE, bits), EINVAL, "not the program's");
	fails(atoll_pages_written(a, PAGE, (void *)8), EFAULT, "no place for it");
	munmap(a + 32 * PAGE, PAGE);
	fails(atoll_pages_written(a, 64 * PAGE, bits), ENOMEM, "a hole");
	char *s = mmap(a, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	fails(atoll_pages_written(s, 4 * PAGE, bits), EINVAL, "shared memory");
	munmap(a, 64 * PAGE);
}

static void batches(void)
{
	enum { N = 600 };
	static struct atoll_pages_change c[N + 1];
	char *a = memory(N);
	memset(a, 1, N * PAGE);
	for (long n = 0; n < N; n++)
		c[n] = (struct atoll_pages_change){a + n * PAGE, PAGE, ATOLL_PAGES_ACCESS, n % 3 ? PROT_READ : PROT_READ | PROT_WRITE};
	check(atoll_pages_change(c, N) == N, "accesses");
	long right = 0;
	for (long n = 0; n < N; n++)
		right += writable(a + n * PAGE) == !(n % 3);
	check(right == N, "as was asked for");
	for (long n = 0; n < N; n++)
		c[n].access = PROT_READ | PROT_WRITE;
	check(atoll_pages_change(c, N) == N, "and back");
	for (long n = 0; n < N; n++)
		a[n * PAGE + 1] = 2;
	// Several kinds, also one after the other at one place.
	c[0] = (struct atoll_pages_change){a, 4 * PAGE, ATOLL_PAGES_ACCESS, PROT_READ};
	c[1] = (struct atoll_pages_change){a + PAGE, PAGE, ATOLL_PAGES_DISCARD, 0};
	c[2] = (struct atoll_pages_change){a + 2 * PAGE, PAGE, ATOLL_PAGES_UNMAP, 0};
	c[3] = (struct atoll_pages_change){a + 3 * PAGE, PAGE, ATOLL_PAGES_ACCESS, PROT_READ | PROT_WRITE};
	check(atoll_pages_change(c, 4) == 4, "of several kinds");
	check(!writable(a) && !writable(a + PAGE) && !writable(a + 2 * PAGE) && writable(a + 3 * PAGE), "each");
	check(a[1] == 2 && a[PAGE + 1] == 0 && a[3 * PAGE + 1] == 2, "their contents");
	check(mmap(a + 2 * PAGE, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == a + 2 * PAGE, "free");
	// The first that can't be ends it.
	c[0] = (struct atoll_pages_change){a + 10 * PAGE, PAGE, ATOLL_PAGES_DISCARD, 0};
	c[1] = (struct atoll_pages_change){a + 11 * PAGE, PAGE, 77, 0};
	c[2] = (struct atoll_pages_change){a + 12 * PAGE, PAGE, ATOLL_PAGES_DISCARD, 0};
	check(atoll_pages_change(c, 3) == 1, "one of three");
	check(a[10 * PAGE + 1] == 0 && a[12 * PAGE + 1] == 2, "what comes before it is made");
	check(atoll_pages_change(c + 1, 2) == -1 && errno == EINVAL, "of no kind");
	c[1] = (struct atoll_pages_change){a + 1, PAGE, ATOLL_PAGES_DISCARD, 0};
	check(atoll_pages_change(c + 1, 1) == -1 && errno == EINVAL, "an address");
	munmap(a + 20 * PAGE, PAGE);
	c[1] = (struct atoll_pages_change){a + 19 * PAGE, 4 * PAGE, ATOLL_PAGES_ACCESS, PROT_READ};
	check(atoll_pages_change(c + 1, 1) == -1 && errno == ENOMEM, "a hole");
	check(atoll_pages_change(c, 0) == 0, "none");
	munmap(a, N * PAGE);
}

int main(void)
{
	one_by_one();
	forks();
	accessed();
	exactly();
	copies();
	errors();
	batches();
	puts(failed ? "pages: wrong" : "pages: as they should be");
	return failed;
}
