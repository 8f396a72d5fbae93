// What bounds a program's memory: limits of addresses, of its stack and of what it may lock, the size of files in memory, seals; and
// mappings that move while others use them.
// timeout: 120
#include "case.h"
#include <setjmp.h>
#include <sys/resource.h>
#include <sys/shm.h>

#define PG 4096L
#define M (1L << 20)
#define RW (PROT_READ | PROT_WRITE)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)
static sigjmp_buf back;

static void on(int signal)
{
	siglongjmp(back, signal);
}
static int touch(volatile char *p)
{
	int signal = sigsetjmp(back, 1);
	if (!signal)
		*p = 1;
	return signal;
}
static long limit(int what, unsigned long bytes)
{
	struct rlimit l;
	getrlimit(what, &l);
	l.rlim_cur = bytes;
	return setrlimit(what, &l);
}
static long mapped(void)
{
	long pages = 0;
	FILE *f = fopen("/proc/self/statm", "r");
	if (fscanf(f, "%ld", &pages) != 1)
		abort();
	fclose(f);
	return pages * PG;
}

// Files in memory that are nearly all holes.
static void sparse(void)
{
	SECTION("sparse");
	char v = 'x';
	struct stat st;
	int fd = memfd_create("sparse", 0);
	V(ftruncate(fd, 1L << 62));
	V(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 1L << 62));
	V(pwrite(fd, "y", 1, (1L << 62) - 1));
	V(pwrite(fd, "z", 1, 1L << 40));
	char *p = mmap(0, PG, RW, MAP_SHARED, fd, 0);
	p[0] = 1;
	V(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 1L << 30, 1L << 41));
	V(pread(fd, &v, 1, 1L << 40));
	P(v);
	V(ftruncate(fd, 1));
	V(ftruncate(fd, 1L << 62));
	V(pread(fd, &v, 1, (1L << 62) - 1));
	P(v);
	P(p[0]);
	munmap(p, PG);
	close(fd);
	// A hole gives back what was there.
	fd = memfd_create("hole", 0);
	char *b = malloc(M);
	memset(b, 7, M);
	for (int i = 0; i < 4; i++)
		pwrite(fd, b, M, i * M);
	fstat(fd, &st);
	P(st.st_blocks * 512L >= 4 * M);
	V(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 3 * M));
	fstat(fd, &st);
	P(st.st_blocks * 512L <= 2 * M);
	V(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 3 * M + 100, 8000));
	pread(fd, b, M, 3 * M);
	printf("%d %d %d %d\n", b[99], b[100], b[8099], b[8100]);
	pread(fd, b, M, 2 * M);
	P(b[0] | b[M - 1]);
	close(fd);
	free(b);
	int id = shmget(IPC_PRIVATE, M, 0600);
	p = shmat(id, 0, 0);
	memset(p, 5, M);
	V(madvise(p + PG, 8 * PG, MADV_REMOVE));
	printf("%d %d %d %d\n", p[0], p[PG], p[9 * PG - 1], p[9 * PG]);
	shmdt(p);
	shmctl(id, IPC_RMID, 0);
}

// What is replaced doesn't count twice, and what comes by mremap counts.
static void addresses(void)
{
	SECTION("addresses");
	char *p = mmap(0, 64 * M, RW, ANON, -1, 0);
	char *s = mmap(0, 32 * M, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int id = shmget(IPC_PRIVATE, 32 * M, 0600);
	P(limit(RLIMIT_AS, mapped() + 8 * M));
	OK(mmap(0, 16 * M, RW, ANON, -1, 0));
	OK(mmap(p, 64 * M, RW, ANON | MAP_FIXED, -1, 0));
	OK(mmap(p + 60 * M, 16 * M, RW, ANON | MAP_FIXED, -1, 0));
	OK(shmat(id, p, SHM_REMAP));
	OK(shmat(id, 0, 0));
	OK(mremap(s, 0, 32 * M, MREMAP_MAYMOVE));
	OK(mremap(p + 32 * M, 16 * M, 16 * M, MREMAP_MAYMOVE | MREMAP_DONTUNMAP));
	OK(mremap(p + 32 * M, 16 * M, 32 * M, MREMAP_MAYMOVE));
	OK(mremap(p + 32 * M, 16 * M, 16 * M, MREMAP_MAYMOVE | MREMAP_FIXED, p + 12 * M));
	P(limit(RLIMIT_AS, RLIM_INFINITY));
	shmctl(id, IPC_RMID, 0);
	// Nor is there more than there could ever be.
	p = mmap(0, M, RW, ANON, -1, 0);
	OK(mmap(0, 1L << 45, RW, ANON, -1, 0));
	OK(mremap(p, M, 1L << 45, MREMAP_MAYMOVE));
	OK(mremap(p, M, 2 * M, MREMAP_MAYMOVE));
	// Bits of protection that mmap takes no notice of.
	OK(mmap(0, PG, RW | PROT_GROWSDOWN, ANON, -1, 0));
	OK(mmap(0, PG, RW | 0x40, ANON, -1, 0));
	V(mprotect(p, PG, RW | 0x40));
}

static long data_size(void)
{
	char line[200];
	long kib = -1;
	FILE *f = fopen("/proc/self/status", "r");
	while (fgets(line, sizeof line, f))
		sscanf(line, "VmData: %ld", &kib);
	fclose(f);
	return kib << 10;
}
// What is private and may be written to.
static void data(void)
{
	SECTION("data");
	char *none = mmap(0, 64 * M, PROT_NONE, ANON, -1, 0);
	long before = data_size();
	char *p = mmap(0, 8 * M, RW, ANON, -1, 0);
	P(data_size() - before);
	P(limit(RLIMIT_DATA, data_size() + 4 * M));
	OK(mmap(0, 16 * M, RW, ANON, -1, 0));
	OK(mmap(0, 16 * M, PROT_READ, ANON, -1, 0));
	OK(mmap(0, 16 * M, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
	OK(mmap(0, 16 * M, RW, ANON | MAP_GROWSDOWN, -1, 0));
	V(mprotect(none, 16 * M, PROT_READ));
	V(mprotect(none, 16 * M, RW));
	V(mprotect(none, M, RW));
	V(mprotect(none, M, PROT_NONE));
	OK(mremap(p, 8 * M, 32 * M, MREMAP_MAYMOVE));
	OK(mremap(p, 8 * M, 9 * M, MREMAP_MAYMOVE));
	OK(sbrk(16 * M));
	OK(mmap(none, 32 * M, RW, ANON | MAP_FIXED, -1, 0));
	P(limit(RLIMIT_DATA, 0));
	OK(mmap(0, 16 * M, RW, ANON, -1, 0));
}

static void low(void)
{
	SECTION("low");
	int outside = 0, n = 0;
	char *p, *far = mmap(0, PG, RW, ANON, -1, 0);
	munmap(far, PG);
	p = mmap(far, PG, RW, ANON | MAP_32BIT, -1, 0);
	P((unsigned long)p < 1UL << 31);
	while (n < 100 && (p = mmap(0, 64 * M, PROT_NONE, ANON | MAP_32BIT | MAP_NORESERVE, -1, 0)) != MAP_FAILED) {
		n++;
		outside += (unsigned long)p < 1UL << 30 || (unsigned long)p + 64 * M > 1UL << 31;
	}
	P(errno == ENOMEM);
	P(n >= 10 && n <= 16);
	P(outside);
}

static long depth;
static __attribute__((noinline)) int deep(long left)
{
	volatile char room[16 * 1024];
	room[0] = left;
	depth += sizeof room;
	return left <= (long)sizeof room ? room[0] : deep(left - sizeof room) + room[0];
}
static void stack_limited(void)
{
	static char other[65536];
	stack_t st = {.ss_sp = other, .ss_size = sizeof other};
	sigaltstack(&st, 0);
	struct sigaction a = {.sa_handler = on, .sa_flags = SA_ONSTACK};
	sigaction(SIGSEGV, &a, 0);
	P(limit(RLIMIT_STACK, 64 * M));
	depth = 0;
	deep(20 * M);
	P(depth >= 20 * M);
	P(limit(RLIMIT_STACK, 2 * M));
	depth = 0;
	int signal = sigsetjmp(back, 1);
	// What it has grown to stays.
	if (!signal)
		deep(18 * M);
	P(signal);
	P(limit(RLIMIT_STACK, 24 * M));
	signal = sigsetjmp(back, 1);
	if (!signal)
		deep(40 * M);
	P(signal);
}
static void stack(void)
{
	SECTION("stack");
	P(mapped() < 7 * M);
	pid_t child = begin_child(stack_limited);
	P(end_child(child));
	// However much it may become, it isn't so much yet.
	fflush(stdout);
	if (!(child = fork())) {
		limit(RLIMIT_STACK, 512 * M);
		limit(RLIMIT_AS, 100 * M);
		execl("/proc/self/exe", "x", "small", NULL);
		_exit(9);
	}
	int status;
	waitpid(child, &status, 0);
	P(status);
}

static int present(char *p, long pages)
{
	unsigned char v[pages];
	int n = 0;
	if (mincore(p, pages * PG, v))
		return -1;
	for (long i = 0; i < pages; i++)
		n += v[i] & 1;
	return n;
}
static void locks(void)
{
	SECTION("locks");
	// Who may not lock so much is told so, the same on both.
	if (geteuid())
		return;
	char *p = mmap(0, 4 * M, RW, ANON, -1, 0);
	V(mlockall(MCL_CURRENT));
	P(present(p, 4 * M / PG));
	V(munlockall());
	munmap(p, 4 * M);
	V(mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT));
	p = mmap(0, 64 * M, RW, ANON | MAP_NORESERVE, -1, 0);
	P(present(p, 64 * M / PG));
	P(p == mremap(p, 64 * M, 32 * M, 0));
	p = mremap(p, 32 * M, 64 * M, MREMAP_MAYMOVE);
	P(present(p, 64 * M / PG));
	V(munlockall());
	P(mlock2(p, M, MLOCK_ONFAULT));
	P(present(p, M / PG));
	char *q = mremap(p, M, M, MREMAP_MAYMOVE | MREMAP_FIXED, p + 32 * M);
	P(present(q, M / PG));
	V(mlock(q, M));
	P(present(q, M / PG));
	q[0] = 1;
	V(madvise(q, M, MADV_DONTNEED));
	P(q[0]);
	V(madvise(q, M, 24 /* MADV_DONTNEED_LOCKED */));
	P(q[0]);
	V(msync(q, -1UL, MS_ASYNC));
	V(munlockall());
	munmap(p, 64 * M);
}

// One thread seals a file while another maps it to write: one of both is refused.
static int sealed_fd;
static pthread_barrier_t both;
static int sealed;
static void *seal(void *unused)
{
	pthread_barrier_wait(&both);
	sealed = fcntl(sealed_fd, F_ADD_SEALS, F_SEAL_WRITE) == 0;
	return 0;
}
static void seals(void)
{
	SECTION("seals");
	int of_both = 0;
	for (int i = 0; i < 300; i++) {
		pthread_t t;
		sealed_fd = memfd_create("sealed", MFD_ALLOW_SEALING);
		ftruncate(sealed_fd, PG);
		pthread_barrier_init(&both, 0, 2);
		pthread_create(&t, 0, seal, 0);
		pthread_barrier_wait(&both);
		char *p = mmap(0, PG, RW, MAP_SHARED, sealed_fd, 0);
		pthread_join(t, 0);
		of_both += sealed && p != MAP_FAILED;
		if (p != MAP_FAILED)
			munmap(p, PG);
		close(sealed_fd);
	}
	P(of_both);
}

// A thread counts in a page that moves: what it has counted is where the page is.
static volatile long *counter, counted;
static sigjmp_buf counting;
static int stopped;
static void off(int signal)
{
	siglongjmp(counting, 1);
}
static void *count(void *unused)
{
	volatile long *at = counter;
	if (!sigsetjmp(counting, 1)) {
		pthread_barrier_wait(&both);
		for (long n = 1;; n++) {
			*at = n;
			counted = n;
		}
	}
	stopped = 1;
	return 0;
}
static void moves(void)
{
	SECTION("moves");
	long size = 16 * PG, missing = 0, stops = 0;
	struct sigaction a = {.sa_handler = off};
	sigaction(SIGSEGV, &a, 0);
	for (int i = 0; i < 300; i++) {
		pthread_t t;
		char *room = mmap(0, 4 * M, PROT_NONE, ANON, -1, 0);
		char *p = mmap(0, size, RW, ANON, -1, 0);
		memset(p, 0, size);
		counter = (long *)(p + 3 * PG);
		stopped = counted = 0;
		pthread_barrier_init(&both, 0, 2);
		pthread_create(&t, 0, count, 0);
		pthread_barrier_wait(&both);
		for (volatile int n = 0; n < 1000 * (i % 7); n++)
			;
		// Not as far in its 64 KiB as it was.
		char *q = mremap(p, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, room + M + 5 * PG + ((long)p & 0xffff));
		pthread_join(t, 0);
		missing += *(long *)(q + 3 * PG) < counted;
		stops += stopped;
		munmap(q, size);
		munmap(room, 4 * M);
	}
	P(missing);
	P(stops);
	signal(SIGSEGV, on);
	// What grows downwards grows upwards, too, and stays one.
	char *p = mmap(0, 64 * PG, PROT_NONE, ANON, -1, 0);
	munmap(p, 64 * PG);
	p = mmap(p + 16 * PG, 4 * PG, RW, ANON | MAP_GROWSDOWN | MAP_FIXED, -1, 0);
	p[0] = 9;
	P(mremap(p, 4 * PG, 8 * PG, 0) == p);
	char *q = mremap(p, 8 * PG, 16 * PG, 0);
	P(q == p);
	P(touch(p + 15 * PG));
	P(touch(p + 16 * PG));
	q = mremap(p, 16 * PG, 32 * PG, MREMAP_MAYMOVE);
	P(q != MAP_FAILED);
	P(q[0]);
	P(touch(q + 31 * PG));
}

int main(int argc, char **argv)
{
	if (argc > 1)
		return 0;
	signal(SIGSEGV, on);
	signal(SIGBUS, on);
	stack();
	sparse();
	P(end_child(begin_child(addresses)));
	P(end_child(begin_child(data)));
	P(end_child(begin_child(low)));
	P(end_child(begin_child(locks)));
	seals();
	moves();
	return 0;
}
