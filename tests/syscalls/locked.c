// Locked memory: what mlock and its kind say, the limit, what /proc says; what can't be done to it. Moved mappings that stay. What mincore
// says of memory that was never there.
#include "case.h"
#include <sys/resource.h>
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#define PG 4096
#define RW (PROT_READ | PROT_WRITE)
#define PA (MAP_PRIVATE | MAP_ANONYMOUS)
#define M(call) ({ errno = 0; char *p_ = (char *)(call); printf("%s: %s\n", #call, p_ == MAP_FAILED ? err_(errno) : "ok"); fflush(stdout); p_; })

static char text[1 << 20];
// What a file of /proc says of a name, in all its lines, KiB.
static long sum(const char *file, const char *name)
{
	int fd = open(file, O_RDONLY);
	long n, len = 0, all = 0;
	while ((n = read(fd, text + len, sizeof text - 1 - len)) > 0)
		len += n;
	text[len] = 0;
	close(fd);
	for (char *p = text; (p = strstr(p, name)); p++)
		if (p == text || p[-1] == '\n')
			all += strtol(p + strlen(name), 0, 10);
	return all;
}
#define LOCKED() printf("locked %ld and %ld\n", sum("/proc/self/status", "VmLck:"), sum("/proc/self/smaps", "Locked:"))

static void limited(void)
{
	char *p = mmap(0, 64 * PG, RW, PA, -1, 0);
	setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){16 * PG, 32 * PG});
	V(setuid(65534));
	V(mlock(p, 16 * PG));
	V(mlock(p, 16 * PG));
	V(mlock(p + 8 * PG, 8 * PG));
	V(mlock(p + 8 * PG, 9 * PG));
	V(mlock2(p + 16 * PG, 1, MLOCK_ONFAULT));
	LOCKED();
	M(mmap(0, PG, RW, PA | MAP_LOCKED, -1, 0));
	V(mlockall(MCL_CURRENT));
	V(munlock(p, 4 * PG));
	char *q = M(mmap(0, 4 * PG, RW, PA | MAP_LOCKED, -1, 0));
	M(mremap(q, 4 * PG, 8 * PG, MREMAP_MAYMOVE));
	V(munlock(p, 16 * PG));
	char *r = M(mremap(q, 4 * PG, 8 * PG, MREMAP_MAYMOVE));
	LOCKED();
	V(mlockall(MCL_FUTURE));
	M(mmap(0, 8 * PG, RW, PA, -1, 0));
	M(mmap(0, 9 * PG, RW, PA, -1, 0));
	char *now = (char *)syscall(SYS_brk, 0);
	P((char *)syscall(SYS_brk, now + 2 * PG) == now);
	LOCKED();
	V(munlockall());
	P((char *)syscall(SYS_brk, now + 2 * PG) == now + 2 * PG);
	LOCKED();
	setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){0, 0});
	V(mlock(p, PG));
	V(mlock(p, 0));
	V(mlockall(MCL_FUTURE));
	V(munlock(p, PG));
	M(mmap(0, PG, RW, PA | MAP_LOCKED, -1, 0));
}

int main(void)
{
	SECTION("locks");
	char *p = mmap(0, 20 * PG, RW, PA, -1, 0);
	munmap(p + 16 * PG, 4 * PG);
	memset(p, 1, 16 * PG);
	V(mlock(p + PG + 1, 1));
	V(mlock(p + 4 * PG, 4 * PG));
	LOCKED();
	V(mlock(p, 0));
	V(mlock(p, -1ul));
	V(mlock((void *)-4096, 8192));
	V(munlock((void *)-4096, 8192));
	V(mlock(p, 1l << 62));
	V(munmap(p + 2 * PG, PG));
	// Up to the hole.
	V(mlock(p, 16 * PG));
	LOCKED();
	V(munlock(p, 16 * PG));
	LOCKED();
	V(madvise(p + 4 * PG, PG, MADV_DONTNEED));
	V(madvise(p + 4 * PG, PG, MADV_FREE));
	V(madvise(p + 4 * PG, PG, MADV_PAGEOUT));
	V(msync(p + 4 * PG, PG, MS_INVALIDATE));
	V(mprotect(p + 4 * PG, PG, PROT_NONE));
	LOCKED();
	V(munlock(p + 4 * PG, PG));
	V(mlock(p + 4 * PG, PG));
	V(munmap(p + 4 * PG, 2 * PG));
	LOCKED();
	if (!fork()) {
		LOCKED();
		_exit(0);
	}
	wait(0);
	V(mlockall(MCL_FUTURE));
	char *q = mmap(0, 4 * PG, RW, PA, -1, 0);
	LOCKED();
	V(munlockall());
	LOCKED();
	SECTION("the limit");
	end_child(begin_child(limited));
	SECTION("what stays of what moved");
	q = mmap(0, 4 * PG, RW, PA, -1, 0);
	memset(q, 5, 4 * PG);
	char *r = M(mremap(q, 4 * PG, 4 * PG, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0));
	printf("%d %d %d %d\n", r[0], r[4 * PG - 1], q[0], q[4 * PG - 1]);
	q[PG] = 6;
	printf("%d %d\n", r[PG], q[PG]);
	P(M(mremap(r + PG, PG, PG, MREMAP_MAYMOVE | MREMAP_DONTUNMAP | MREMAP_FIXED, q + 2 * PG)) == q + 2 * PG);
	printf("%d %d\n", r[PG], q[2 * PG]);
	M(mremap(q, 4 * PG, 8 * PG, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0));
	M(mremap(q, 4 * PG, 4 * PG, MREMAP_DONTUNMAP, 0));
	M(mremap(q, 4 * PG, 4 * PG, MREMAP_MAYMOVE | MREMAP_DONTUNMAP | MREMAP_FIXED, q + PG));
	M(mremap(q, 4 * PG, 4 * PG, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 1));
	M(mremap(q, 4 * PG, 4 * PG, MREMAP_MAYMOVE | 8, 0));
	int fd = memfd_create("file", 0);
	write(fd, p, 2 * PG);
	char *s = mmap(0, 2 * PG, RW, MAP_SHARED, fd, 0);
	s[0] = 7;
	char *t = M(mremap(s, 2 * PG, 2 * PG, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0));
	s[1] = 8;
	printf("%d %d %d %d\n", s[0], t[0], s[1], t[1]);
	s = mmap(0, 2 * PG, RW, MAP_PRIVATE, fd, 0);
	s[0] = 9;
	t = M(mremap(s, 2 * PG, 2 * PG, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0));
	printf("%d %d\n", s[0], t[0]);
	SECTION("mincore");
	unsigned char there[64];
	q = mmap(0, 64 * PG, PROT_NONE, PA, -1, 0);
	V(mincore(q, 64 * PG, there));
	int n = 0;
	for (int i = 0; i < 64; i++)
		n += there[i] & 1;
	P(n);
	mprotect(q, 64 * PG, RW);
	q[20 * PG] = 1;
	V(mincore(q + 20 * PG, PG, there));
	P(there[0] & 1);
	V(madvise(q, 64 * PG, MADV_DONTNEED));
	V(mincore(q, 64 * PG, there));
	for (int i = n = 0; i < 64; i++)
		n += there[i] & 1;
	P(n);
	V(munmap(q + 32 * PG, PG));
	V(mincore(q, 64 * PG, there));
	V(mincore(q, -1ul, there));
	V(mincore(q, 0, there));
	SECTION("mincore of shared memory");
	q = mmap(0, 64 * PG, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	V(mincore(q, 64 * PG, there));
	for (int i = n = 0; i < 64; i++)
		n += there[i] & 1;
	P(n);
	q[20 * PG] = 1;
	V(mincore(q, 64 * PG, there));
	printf("%d %d %d\n", there[0] & 1, there[20] & 1, there[63] & 1);
	int memory = memfd_create("mincore", 0);
	V(ftruncate(memory, 64 * PG));
	V(pwrite(memory, "x", 1, 40 * PG));
	q = mmap(0, 64 * PG, RW, MAP_SHARED, memory, 0);
	V(mincore(q, 64 * PG, there));
	printf("%d %d %d\n", there[0] & 1, there[40] & 1, there[63] & 1);
	q = mmap(0, 64 * PG, RW, MAP_PRIVATE, memory, 0);
	V(mincore(q, 64 * PG, there));
	printf("%d %d %d\n", there[0] & 1, there[40] & 1, there[63] & 1);
	return 0;
}
