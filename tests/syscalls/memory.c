// Memory: mmap and its flags, munmap, mprotect, mremap, madvise, mincore, msync, brk, memfd and seals, mlock.
// nucleus-on: tmpfs
#include "case.h"
#include <setjmp.h>
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x10
#endif
#define PG 4096
static sigjmp_buf back;
static void fault(int s, siginfo_t *i, void *u) { siglongjmp(back, s); }
// 1: can be read, 2: can be written, 4: SIGBUS.
static int can(volatile char *p)
{
	volatile int r = 0;
	int s;
	if (!(s = sigsetjmp(back, 1))) {
		(void)*p;
		r |= 1;
	}
	if (s == SIGBUS)
		return 4;
	if (!sigsetjmp(back, 1)) {
		*p = *p;
		r |= 2;
	}
	return r;
}
#define RW (PROT_READ | PROT_WRITE)
#define PA (MAP_PRIVATE | MAP_ANONYMOUS)
#define M(call) ({ errno = 0; char *p_ = (char *)(call); printf("%s: %s\n", #call, p_ == MAP_FAILED ? err_(errno) : "ok"); fflush(stdout); p_; })

int main(void)
{
	struct sigaction sa = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
	sigaction(SIGSEGV, &sa, 0);
	sigaction(SIGBUS, &sa, 0);
	SECTION("mmap");
	char *p = M(mmap(0, 10 * PG, RW, PA, -1, 0));
	memset(p, 7, 10 * PG);
	M(mmap(0, 0, RW, PA, -1, 0));
	M(mmap(0, PG, RW, MAP_ANONYMOUS, -1, 0));
	M(mmap(0, PG, RW, MAP_PRIVATE, -1, 0));
	M(mmap(0, PG, RW, MAP_PRIVATE, 999, 0));
	M(mmap(0, 1UL << 60, RW, PA, -1, 0));
	M(mmap(0, -1UL, RW, PA, -1, 0));
	M(mmap(p + 1, PG, RW, PA | MAP_FIXED, -1, 0));
	M(mmap(0, PG, RW, PA, -1, 0));
	P(M(mmap(p, PG, RW, PA | MAP_FIXED_NOREPLACE, -1, 0)) == p);
	P(M(mmap(p + 2 * PG, 2 * PG, PROT_READ, PA | MAP_FIXED, -1, 0)) == p + 2 * PG);
	printf("%d %d %d %d\n", p[PG], p[2 * PG], p[3 * PG], p[4 * PG]);
	printf("%d %d %d\n", can(p + PG), can(p + 2 * PG), can(p + 4 * PG));
	V(munmap(p + 6 * PG, PG));
	printf("%d %d %d\n", can(p + 5 * PG), can(p + 6 * PG), can(p + 7 * PG));
	P(M(mmap(p + 6 * PG, PG, RW, PA | MAP_FIXED_NOREPLACE, -1, 0)) == p + 6 * PG);
	P(p[6 * PG]);
	V(munmap(p + 1, PG));
	V(munmap(p, 0));
	V(munmap((void *)(1UL << 47), PG));
	V(munmap(p + 6 * PG, PG));
	V(munmap(p + 6 * PG, PG));
	// Which gap is filled next, nobody says.
	P(M(mmap(p + 6 * PG, PG, RW, PA | MAP_FIXED_NOREPLACE, -1, 0)) == p + 6 * PG);
	char *q = M(mmap(0, PG, PROT_NONE, PA | MAP_NORESERVE, -1, 0));
	P(can(q));
	q = M(mmap(0, 1UL << 36, RW, PA | MAP_NORESERVE, -1, 0));
	q[1UL << 35] = 1;
	V(munmap(q, 1UL << 36));
	q = M(mmap(0, 64 * PG, RW, PA | MAP_POPULATE, -1, 0));
	unsigned char vec[64];
	V(mincore(q, 64 * PG, vec));
	int in = 0;
	for (int i = 0; i < 64; i++)
		in += vec[i] & 1;
	P(in);
	V(munmap(q, 64 * PG));
	q = M(mmap(0, PG, RW, PA | MAP_32BIT, -1, 0));
	P((unsigned long)q < 1UL << 31);
	q = M(mmap(0, PG, RW, PA | MAP_STACK, -1, 0));
	q = M(mmap(0, 4 * PG, RW, PA | MAP_GROWSDOWN, -1, 0));
	q = M(mmap(0, PG, RW, PA | MAP_LOCKED, -1, 0));
	q = M(mmap(0, PG, PROT_EXEC | RW, PA, -1, 0));
	q[0] = (char)0xb8, q[1] = 42, q[2] = q[3] = q[4] = 0, q[5] = (char)0xc3;
	P(((int (*)(void))q)());
	q = M(mmap(0, PG, PROT_WRITE, PA, -1, 0));
	P(can(q));
	M(mmap(0, PG, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
	M(mmap(0, PG, RW, MAP_SHARED_VALIDATE | MAP_ANONYMOUS, -1, 0));
	SECTION("mprotect");
	V(mprotect(p, PG, PROT_READ));
	P(can(p));
	V(mprotect(p, PG, PROT_NONE));
	P(can(p));
	V(mprotect(p, PG, RW));
	P(can(p));
	V(mprotect(p, 10 * PG, PROT_READ));
	printf("%d %d\n", can(p + 5 * PG), can(p + 7 * PG));
	V(mprotect(p + 1, PG, RW));
	V(mprotect(p, 0, RW));
	V(mprotect(p, PG, 0x100));
	V(mprotect(p + 7 * PG, PG, RW));
	p[7 * PG] = 9;
	SECTION("mremap");
	q = M(mmap(0, 4 * PG, RW, PA, -1, 0));
	strcpy(q + PG, "hello");
	char *r = M(mremap(q, 4 * PG, 64 * PG, MREMAP_MAYMOVE));
	puts(r + PG);
	P(r[63 * PG]);
	P(M(mremap(r, 64 * PG, 2 * PG, 0)) == r);
	printf("%d %d\n", can(r + PG), can(r + 2 * PG));
	char *t = M(mmap(0, 16 * PG, PROT_NONE, PA, -1, 0));
	P(M(mremap(r, 2 * PG, 3 * PG, MREMAP_MAYMOVE | MREMAP_FIXED, t + 4 * PG)) == t + 4 * PG);
	puts(t + 5 * PG);
	printf("%d %d %d\n", can(r), can(t + 6 * PG), can(t + 7 * PG));
	M(mremap(t + 4 * PG, 3 * PG, 4 * PG, 0));
	M(mremap(t + 4 * PG, 3 * PG, 4 * PG, MREMAP_FIXED, t));
	M(mremap(t + 1, PG, PG, 0));
	M(mremap(t, PG, 0, 0));
	M(mremap((void *)(1UL << 40), PG, 2 * PG, MREMAP_MAYMOVE));
	M(mremap(t + 4 * PG, 2 * PG, 2 * PG, MREMAP_MAYMOVE | MREMAP_FIXED, t + 5 * PG));
	r = M(mremap(t + 4 * PG, 3 * PG, 3 * PG, MREMAP_MAYMOVE | 4));
	puts(r + PG);
	printf("%d %d\n", can(t + 4 * PG), t[5 * PG]);
	/* What is advised about goes for what it grows by, too, so that it is one mapping. */
	q = mmap(0, 16 * PG, RW, PA, -1, 0);
	V(munmap(q + 4 * PG, 12 * PG));
	V(madvise(q, 4 * PG, MADV_NOHUGEPAGE));
	P(M(mremap(q, 4 * PG, 8 * PG, 0)) == q);
	strcpy(q + 6 * PG, "grown");
	r = M(mremap(q, 8 * PG, 24 * PG, MREMAP_MAYMOVE));
	puts(r + 6 * PG);
	SECTION("madvise");
	q = mmap(0, 8 * PG, RW, PA, -1, 0);
	memset(q, 5, 8 * PG);
	V(madvise(q, 2 * PG, MADV_DONTNEED));
	printf("%d %d %d\n", q[0], q[PG], q[2 * PG]);
	V(madvise(q + 4 * PG, PG, MADV_FREE));
	int advice[] = {MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED, MADV_DONTFORK, MADV_DOFORK, MADV_HUGEPAGE,
			MADV_NOHUGEPAGE, MADV_DONTDUMP, MADV_DODUMP, MADV_COLD, MADV_PAGEOUT, MADV_POPULATE_READ, MADV_POPULATE_WRITE, MADV_REMOVE, MADV_WIPEONFORK, 99};
	for (unsigned i = 0; i < sizeof advice / sizeof *advice; i++)
		V(madvise(q, 2 * PG, advice[i]));
	V(madvise(q + 1, PG, MADV_NORMAL));
	V(madvise(q, 0, MADV_NORMAL));
	V(munmap(q + PG, PG));
	V(madvise(q, 4 * PG, MADV_DONTNEED));
	V(madvise(q, 4 * PG, MADV_NORMAL));
	SECTION("mincore, mlock, msync");
	V(mincore(q + 1, PG, vec));
	V(mincore(q + PG, PG, vec));
	V(mincore(q, PG, (void *)8));
	V(mlock(q, PG));
	V(mlock(q, 4 * PG));
	V(munlock(q, PG));
	V(munlock(q, 4 * PG));
	V(mlockall(MCL_CURRENT | MCL_FUTURE));
	V(munlockall());
	V(mlockall(0x100));
	V(mlock2(q, PG, MLOCK_ONFAULT));
	V(mlock2(q, PG, 8));
	V(msync(q, PG, MS_SYNC));
	V(msync(q, PG, MS_ASYNC | MS_SYNC));
	V(msync(q, 4 * PG, MS_ASYNC));
	V(msync(q + 1, PG, MS_ASYNC));
	V(msync(q, PG, 0x10));
	V(munlock(q, PG));
	V(msync(q, PG, MS_INVALIDATE));
	SECTION("files");
	int fd = V(open("file", O_RDWR | O_CREAT | O_TRUNC, 0644));
	for (int i = 0; i < 3 * PG; i++)
		write(fd, &(char){'a' + i / PG}, 1);
	ftruncate(fd, 2 * PG + 100);
	char *s = M(mmap(0, 3 * PG, RW, MAP_SHARED, fd, 0));
	char *v = M(mmap(0, 3 * PG, RW, MAP_PRIVATE, fd, 0));
	printf("%c %c %c %d\n", s[0], s[PG], v[2 * PG], s[2 * PG + 100]);
	s[0] = 'X';
	v[PG] = 'Y';
	char b[8] = "";
	V(pread(fd, b, 1, 0));
	// What a private mapping shows of later changes is left open (mmap(2)): not compared.
	printf("%c ", b[0]);
	V(pread(fd, b, 1, PG));
	printf("%c %c\n", b[0], s[PG]);
	V(pwrite(fd, "Q", 1, 5));
	printf("%c\n", s[5]);
	V(msync(s, 3 * PG, MS_SYNC));
	V(ftruncate(fd, PG));
	printf("%d %d\n", can(s), can(s + PG));
	V(ftruncate(fd, 3 * PG));
	printf("%d %d\n", can(s + PG), s[PG]);
	V(madvise(v, PG, MADV_DONTNEED));
	P(v[0]);
	V(madvise(s, PG, MADV_REMOVE));
	P(s[0]);
	M(mmap(0, PG, RW, MAP_SHARED, fd, 100));
	char *far = M(mmap(0, PG, RW, MAP_SHARED, fd, 100 * PG));
	P(can(far));
	int ro = V(open("file", O_RDONLY));
	M(mmap(0, PG, RW, MAP_SHARED, ro, 0));
	char *rop = M(mmap(0, PG, PROT_READ, MAP_SHARED, ro, 0));
	V(mprotect(rop, PG, RW));
	M(mmap(0, PG, RW, MAP_PRIVATE, ro, 0));
	int wo = V(open("file", O_WRONLY));
	M(mmap(0, PG, PROT_READ, MAP_PRIVATE, wo, 0));
	V(close(fd));
	s[1] = 'Z';
	V(fd = open("file", O_RDWR));
	pread(fd, b, 1, 1);
	printf("%c\n", b[0]);
	int dir = V(open(".", O_RDONLY));
	M(mmap(0, PG, PROT_READ, MAP_PRIVATE, dir, 0));
	int pp[2];
	pipe(pp);
	M(mmap(0, PG, PROT_READ, MAP_PRIVATE, pp[0], 0));
	int z = V(open("/dev/zero", O_RDWR));
	char *zp = M(mmap(0, PG, RW, MAP_PRIVATE, z, 0));
	P(zp[5]);
	zp = M(mmap(0, PG, RW, MAP_SHARED, z, 0));
	zp[5] = 1;
	SECTION("memfd and seals");
	int m = V(memfd_create("name", MFD_CLOEXEC | MFD_ALLOW_SEALING));
	V(ftruncate(m, 2 * PG));
	X(fcntl(m, F_GET_SEALS));
	char *mp = mmap(0, PG, RW, MAP_SHARED, m, 0);
	V(fcntl(m, F_ADD_SEALS, F_SEAL_WRITE));
	V(fcntl(m, F_ADD_SEALS, F_SEAL_SHRINK));
	V(ftruncate(m, PG));
	V(ftruncate(m, 3 * PG));
	V(fcntl(m, F_ADD_SEALS, F_SEAL_GROW));
	V(ftruncate(m, 4 * PG));
	V(pwrite(m, "x", 1, 5 * PG));
	munmap(mp, PG);
	V(fcntl(m, F_ADD_SEALS, F_SEAL_WRITE));
	V(pwrite(m, "x", 1, 0));
	M(mmap(0, PG, RW, MAP_SHARED, m, 0));
	mp = M(mmap(0, PG, PROT_READ, MAP_SHARED, m, 0));
	V(mprotect(mp, PG, RW));
	M(mmap(0, PG, RW, MAP_PRIVATE, m, 0));
	V(fcntl(m, F_ADD_SEALS, F_SEAL_SEAL));
	V(fcntl(m, F_ADD_SEALS, F_SEAL_WRITE));
	X(fcntl(m, F_GET_SEALS));
	m = V(memfd_create("name", MFD_ALLOW_SEALING));
	V(ftruncate(m, 2 * PG));
	mp = M(mmap(0, PG, PROT_READ, MAP_SHARED, m, 0));
	V(fcntl(m, F_ADD_SEALS, F_SEAL_FUTURE_WRITE));
	V(mprotect(mp, PG, RW));
	V(mprotect(mp, PG, PROT_READ));
	char *sealed = M(mmap(mp + PG, PG, PROT_READ, MAP_SHARED | MAP_FIXED, m, PG));
	V(mprotect(mp, 2 * PG, RW));
	V(mprotect(sealed, PG, RW));
	munmap(mp, 2 * PG);
	SECTION("shared memory of a file opened for reading");
	char path[60];
	sprintf(path, "/dev/shm/atoll-test-%d", getpid());
	int file = V(open(path, O_RDWR | O_CREAT | O_TRUNC, 0600));
	V(ftruncate(file, 2 * PG));
	int reader = V(open(path, O_RDONLY));
	mp = M(mmap(0, 2 * PG, PROT_READ, MAP_SHARED, file, 0));
	char *second = M(mmap(mp + PG, PG, PROT_READ, MAP_SHARED | MAP_FIXED, reader, PG));
	V(mprotect(mp, PG, RW));
	V(mprotect(mp, PG, PROT_READ));
	V(mprotect(second, PG, RW));
	V(fallocate(file, FALLOC_FL_PUNCH_HOLE, 0, PG));
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[300];
	while (fgets(line, sizeof line, maps))
		if (strstr(line, path))
			puts("the file");
	fclose(maps);
	V(unlink(path));
	int shm = V(open("/dev/shm", O_RDONLY | O_DIRECTORY));
	M(mmap(0, PG, PROT_READ, MAP_SHARED, shm, 0));
	m = V(memfd_create("name", 0));
	X(fcntl(m, F_GET_SEALS));
	V(fcntl(m, F_ADD_SEALS, F_SEAL_WRITE));
	V(fcntl(fd, F_GET_SEALS));
	V(memfd_create("name", 0x100));
	V(memfd_create((void *)8, 0));
	char name[300];
	memset(name, 'n', 299);
	name[299] = 0;
	V(memfd_create(name, 0));
	ssize_t ln = readlink("/proc/self/fd/20", name, 299);
	(void)ln;
	SECTION("brk");
	char *now = sbrk(0);
	P(sbrk(5 * PG) == now);
	now[4 * PG] = 3;
	P(sbrk(-5 * PG) == now + 5 * PG);
	P(sbrk(5 * PG) == now);
	P(now[4 * PG]);
	P(syscall(SYS_brk, 0) == (long)sbrk(0));
	P(syscall(SYS_brk, 1) == (long)sbrk(0));
	P(syscall(SYS_brk, 1UL << 60) == (long)sbrk(0));
	SECTION("many holes");
	q = mmap(0, 512 * PG, RW, PA, -1, 0);
	memset(q, 1, 512 * PG);
	for (int i = 0; i < 512; i += 2)
		munmap(q + i * PG, PG);
	int sum = 0;
	for (int i = 1; i < 512; i += 2)
		sum += q[i * PG];
	P(sum);
	P(can(q + 100 * PG));
	for (int i = 0; i < 512; i += 2)
		if (mmap(q + i * PG, PG, RW, PA | MAP_FIXED, -1, 0) == MAP_FAILED)
			puts("failed");
	for (int i = 0; i < 512; i++)
		sum += q[i * PG];
	P(sum);
	return 0;
}
