// More mappings than the system lets a process have: what a call says it did is done, and nothing else is lost.
// nucleus: no (it has no limit of the host's)
// timeout: 120
#include "case.h"
#include <setjmp.h>

#define PG 4096L
#define M (1L << 20)
static sigjmp_buf back;

static void on(int signal)
{
	siglongjmp(back, 1);
}
static int writes(volatile char *p, char v)
{
	if (sigsetjmp(back, 1))
		return 0;
	*p = v;
	return 1;
}
static int reads(volatile char *p)
{
	if (sigsetjmp(back, 1))
		return -1;
	return *p;
}
static char *filled(long size)
{
	char *p = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (long at = 0; at < size; at += PG)
		p[at] = 1 + at / PG % 100;
	return p;
}
// Pages that don't have what they began with.
static int lost(char *p, long size, long hole, long hole_end)
{
	int n = 0;
	for (long at = 0; at < size; at += PG)
		n += (at < hole || at >= hole_end) && reads(p + at) != 1 + at / PG % 100;
	return n;
}

// Access to every other page is taken away, one by one, until that fails or all are done.
static void protects(void)
{
	SECTION("protects");
	long size = 400 * M, n = 0, written = 0;
	char *p = filled(size);
	while (n < size / PG / 2 && mprotect(p + 2 * n * PG, PG, PROT_READ) == 0)
		n++;
	P(n > 10000);
	for (long i = 0; i < n; i++)
		written += writes(p + 2 * i * PG, 0);
	P(written);
	P(lost(p, size, 0, 0));
	P(writes(p + PG, 2));
	P(writes(p + size - PG, 100));
	p[PG] = 1 + 1;
	pid_t child = fork();
	if (!child)
		_exit(writes(p, 0) + 2 * (reads(p) != 1));
	int status = -1;
	// Linux may refuse it, too.
	if (child > 0)
		waitpid(child, &status, 0);
	P(child < 0 || status == 0);
	P(munmap(p, size));
	P(reads(p));
}

// The middle of memory is unmapped when there are as many mappings as there may be.
static void unmaps(void)
{
	SECTION("unmaps");
	long size = 64 * M, hole = 17 * M, end = 18 * M, many = 0;
	char *p = filled(size);
	int fd = open("/proc/self/exe", O_RDONLY);
	char *room = mmap(0, 200000 * PG, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	while (many < 200000
		&& mmap(room + many * PG, PG, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, many % 2 * PG) != MAP_FAILED)
		many++;
	P(many > 10000);
	int gone = munmap(p + hole, end - hole) == 0;
	P(gone || errno == ENOMEM);
	// It is there as it was, or not at all.
	P(gone ? reads(p + hole) == -1 : reads(p + hole) == 1 + hole / PG % 100);
	P(gone ? reads(p + end - PG) == -1 : reads(p + end - PG) == 1 + (end / PG - 1) % 100);
	P(lost(p, size, hole, end));
	int dropped = madvise(p + 30 * M, M, MADV_DONTNEED) == 0;
	P(dropped ? reads(p + 30 * M) == 0 : reads(p + 30 * M) == 1 + 30 * M / PG % 100);
	P(lost(p, 30 * M, hole, end));
	P(lost(p + 31 * M, 0, 0, 0));
	// The middle of a file's own mapping.
	P(munmap(room + 1000 * PG, PG));
	P(reads(room + 1000 * PG));
	P(munmap(p, size));
	P(reads(p + 40 * M));
}

int main(void)
{
	signal(SIGSEGV, on);
	signal(SIGBUS, on);
	protects();
	pid_t child = begin_child(unmaps);
	P(end_child(child));
	return 0;
}
