// options: --cores 2
// timeout: 60
// A program's own pager, a thread of it: userfaultfd (XOS-08).
#include "userfault.h"

static void agreeing(void)
{
	SECTION("agreeing");
	struct uffd_msg m;
	V(syscall(SYS_userfaultfd, 0x100000));
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	P(fd >= 0);
	struct pollfd p = {.fd = fd, .events = POLLIN};
	V(poll(&p, 1, 0));
	X(p.revents);
	V(read(fd, &m, sizeof m));
	struct uffdio_range r = {0x10000, PAGE};
	V(ioctl(fd, UFFDIO_WAKE, &r));
	struct uffdio_api api = {.api = 0xab};
	V(ioctl(fd, UFFDIO_API, &api));
	X(api.api);
	api = (struct uffdio_api){.api = UFFD_API, .features = 1ull << 60};
	V(ioctl(fd, UFFDIO_API, &api));
	X(api.api);
	api = (struct uffdio_api){.api = UFFD_API};
	V(ioctl(fd, UFFDIO_API, (void *)8));
	V(ioctl(fd, UFFDIO_API, &api));
	X(api.ioctls);
	X(api.features & (UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_SIGBUS | UFFD_FEATURE_THREAD_ID));
	V(ioctl(fd, UFFDIO_API, &api));
	V(poll(&p, 1, 0));
	V(read(fd, &m, sizeof m - 1));
	V(read(fd, &m, sizeof m));
	V(write(fd, &m, sizeof m));
	V(lseek(fd, 0, SEEK_SET));
	V(ioctl(fd, 0xaa55));
	char name[64] = "", path[64];
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	V(readlink(path, name, sizeof name - 1) > 0);
	puts(name);
	V(close(fd));
}

static void errors(void)
{
	SECTION("errors");
	static char page[2 * PAGE];
	int fd = opened(O_NONBLOCK, 0), other = opened(O_NONBLOCK, 0);
	char *a = memory(48);
	munmap(a + 32 * PAGE, 16 * PAGE);
	V(enroll(fd, a, 32, 0));
	V(enroll(fd, a, 32, 64));
	V(enroll(fd, a + 1, 32, UFFDIO_REGISTER_MODE_MISSING));
	V(enroll(fd, a, 0, UFFDIO_REGISTER_MODE_MISSING));
	V(enroll(fd, a + 36 * PAGE, 4, UFFDIO_REGISTER_MODE_MISSING));
	struct uffdio_register r = {.range = {(long)a, 16 * PAGE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
	V(ioctl(fd, UFFDIO_REGISTER, &r));
	unsigned long long known = 1 << _UFFDIO_WAKE | 1 << _UFFDIO_COPY | 1 << _UFFDIO_ZEROPAGE | 1 << _UFFDIO_WRITEPROTECT;
	X(r.ioctls & known);
	r.mode |= UFFDIO_REGISTER_MODE_WP;
	V(ioctl(fd, UFFDIO_REGISTER, &r));
	X(r.ioctls & known);
	V(enroll(fd, a, 16, UFFDIO_REGISTER_MODE_MISSING));
	V(enroll(other, a + 15 * PAGE, 2, UFFDIO_REGISTER_MODE_MISSING));
	V(enroll(other, a + 16 * PAGE, 2, UFFDIO_REGISTER_MODE_MISSING));
	V(copy(fd, a + 1, page, 1, 0));
	V(copy(fd, a, page, 1, 64));
	V(copy(fd, a, page, 1, UFFDIO_COPY_MODE_WP));
	V(copy(fd, a, (void *)8, 1, 0));
	V(copy(fd, a + 20 * PAGE, page, 1, 0));
	V(copy(fd, a + 40 * PAGE, page, 1, 0));
	V(copy(fd, a + 15 * PAGE, page, 2, 0));
	V(copy(fd, a + 3 * PAGE, page, 1, 0));
	V(copy(fd, a + 3 * PAGE, page, 1, 0));
	V(copy(fd, a + 2 * PAGE, page, 2, 0));
	V(zero(fd, a + 3 * PAGE, 1));
	V(zero(fd, a + 4 * PAGE, 4));
	V(zero(fd, a + 7 * PAGE, 4));
	V(zero(fd, a + 20 * PAGE, 1));
	V(protect(fd, a, 1, UFFDIO_WRITEPROTECT_MODE_WP));
	V(protect(fd, a, 1, 3));
	V(protect(fd, a, 1, 4));
	V(wake(fd, a, 1));
	V(wake(fd, a, 0));
	V(withdraw(fd, a + 36 * PAGE, 1));
	V(withdraw(fd, a, 16));
	V(withdraw(fd, a, 16));
	// Only what is private and anonymous is asked about here.
	int file = open("/proc/self/exe", O_RDONLY);
	char *f = mmap(0, PAGE, PROT_READ, MAP_PRIVATE, file, 0);
	V(enroll(fd, f, 1, UFFDIO_REGISTER_MODE_MISSING));
	munmap(f, PAGE);
	close(file);
	close(fd);
	close(other);
	munmap(a, 32 * PAGE);
}

static void missing(void)
{
	SECTION("missing");
	enum { N = 100 };
	area = memory(N);
	int fd = opened(O_NONBLOCK, 0);
	// What was there before is not asked about.
	memset(area + 50 * PAGE, 77, 10 * PAGE);
	V(enroll(fd, area, N, UFFDIO_REGISTER_MODE_MISSING));
	pthread_t t = begin(fd);
	long right = 0;
	for (long n = 0; n < 50; n++)
		right += is_filled(area + n * PAGE, n);
	for (long n = 50; n < 60; n++)
		right += area[n * PAGE + n] == 77;
	for (long n = 60; n < 70; n++) {
		area[n * PAGE + 1] = 5;
		right += area[n * PAGE + 1] == 5 && area[n * PAGE + 2] == (char)(n * 31 + 3);
	}
	P(right);
	SECTION("dropped");
	V(madvise(area, 5 * PAGE, MADV_DONTNEED));
	right = 0;
	for (long n = 0; n < 6; n++)
		right += is_filled(area + n * PAGE, n);
	P(right);
	SECTION("moved");
	char *moved = mremap(area + 90 * PAGE, 5 * PAGE, 5 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, memory(5));
	P(moved[0] + moved[PAGE]);
	P(area[95 * PAGE] == (char)(95 * 31 + 1));
	munmap(area + 96 * PAGE, PAGE);
	SECTION("forked");
	pid_t child = fork();
	// The child has what its parent has, and zeroes otherwise.
	if (!child)
		_exit(!is_filled(area + 3 * PAGE, 3) || area[98 * PAGE] || area[99 * PAGE + 5]);
	int status;
	waitpid(child, &status, 0);
	P(status);
	P(is_filled(area + 98 * PAGE, 98));
	end(t);
	V(withdraw(fd, area, N));
	P(area[99 * PAGE]);
	close(fd);
	munmap(area, N * PAGE);
}

static void writing(void)
{
	SECTION("kept from writes");
	enum { N = 40 };
	area = memory(N);
	int fd = opened(O_NONBLOCK, UFFD_FEATURE_PAGEFAULT_FLAG_WP);
	V(enroll(fd, area, N, UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP));
	pthread_t t = begin(fd);
	for (long n = 0; n < 10; n++)
		area[n * PAGE] = 1;
	V(protect(fd, area, 10, UFFDIO_WRITEPROTECT_MODE_WP));
	long sum = 0;
	for (long n = 0; n < 10; n++)
		sum += area[n * PAGE];
	P(sum);
	P(kept);
	for (int round = 0; round < 3; round++)
		for (long n = 0; n < 5; n++)
			area[n * PAGE]++;
	P(kept);
	int m = memfd_create("file", 0);
	V(pwrite(m, area + 5 * PAGE, 2 * PAGE, 0));
	P(kept);
	V(pread(m, area + 6 * PAGE, 2 * PAGE, 0));
	P(kept);
	close(m);
	int *word = (int *)(area + 30 * PAGE);
	V(zero(fd, word, 1));
	V(protect(fd, word, 1, UFFDIO_WRITEPROTECT_MODE_WP));
	V(syscall(SYS_futex, word, FUTEX_LOCK_PI, 0, 0, 0, 0));
	P(kept);
	P(*word == syscall(SYS_gettid));
	V(protect(fd, word, 1, UFFDIO_WRITEPROTECT_MODE_WP));
	V(syscall(SYS_futex, word, FUTEX_UNLOCK_PI, 0, 0, 0, 0));
	V(protect(fd, word, 1, UFFDIO_WRITEPROTECT_MODE_WP));
	V(syscall(SYS_futex, word, FUTEX_WAKE_OP, 1, 1, word, FUTEX_OP(FUTEX_OP_SET, 5, FUTEX_OP_CMP_EQ, 0)));
	P(kept);
	P(*word);
	V(protect(fd, area, 10, 0));
	area[8 * PAGE]++;
	area[9 * PAGE]++;
	P(kept);
	mode_of_copies = UFFDIO_COPY_MODE_WP;
	P(is_filled(area + 20 * PAGE, 20));
	area[20 * PAGE] = 7;
	area[21 * PAGE] = 7;
	P(area[20 * PAGE] + area[21 * PAGE] + area[20 * PAGE + 1] - (char)(20 * 31 + 2));
	// Other access in between changes nothing about it.
	V(protect(fd, area, 4, UFFDIO_WRITEPROTECT_MODE_WP));
	V(mprotect(area, 2 * PAGE, PROT_READ));
	V(mprotect(area, 2 * PAGE, PROT_READ | PROT_WRITE));
	area[0]++;
	P(kept);
	// After a fork, in the parent as before, and in the child not at all.
	pid_t child = fork();
	if (!child) {
		area[PAGE] = area[2 * PAGE] = 9;
		_exit(0);
	}
	int status;
	waitpid(child, &status, 0);
	P(status);
	area[PAGE]++;
	P(kept);
	P(area[PAGE] + area[2 * PAGE]);
	// Thousands of times the same page, without a call of this thread's.
	for (int n = 0; n < 300; n++) {
		volatile char *at = area + 3 * PAGE;
		protect(fd, area + 3 * PAGE, 1, UFFDIO_WRITEPROTECT_MODE_WP);
		*at = n;
	}
	P(kept);
	end(t);
	V(protect(fd, area, 10, UFFDIO_WRITEPROTECT_MODE_WP));
	V(withdraw(fd, area, N));
	area[0] = 1;
	V(enroll(fd, area, N, UFFDIO_REGISTER_MODE_WP));
	V(protect(fd, area, 10, UFFDIO_WRITEPROTECT_MODE_WP));
	close(fd);
	area[0] = area[9 * PAGE] = 3;
	P(area[0] + area[9 * PAGE]);
	munmap(area, N * PAGE);
}

static void on_bus(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)context;
	P(info->si_code == BUS_ADRERR);
	P(((char *)info->si_addr - area) / (long)PAGE);
	zero(pager_fd, area + 2 * PAGE, 1);
}

static void by_signal(void)
{
	SECTION("SIGBUS");
	struct sigaction s = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO}, before;
	sigaction(SIGBUS, &s, &before);
	area = memory(8);
	pager_fd = opened(O_NONBLOCK, UFFD_FEATURE_SIGBUS);
	V(enroll(pager_fd, area, 8, UFFDIO_REGISTER_MODE_MISSING));
	P(*(volatile char *)(area + 2 * PAGE));
	int p[2];
	pipe(p);
	V(write(p[1], area + 3 * PAGE, 10));
	close(p[0]);
	close(p[1]);
	close(pager_fd);
	P(area[4 * PAGE]);
	sigaction(SIGBUS, &before, 0);
	munmap(area, 8 * PAGE);
}

int main(void)
{
	agreeing();
	errors();
	missing();
	writing();
	by_signal();
}
