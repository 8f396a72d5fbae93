// options: --cores 2
// A buffer that another thread unmaps, maps and protects while calls copy from it and to it: they succeed, in part perhaps, or fail by
// EFAULT, and nothing else comes of it.
#include "case.h"
#include <dirent.h>
#include <stdatomic.h>

enum { SIZE = 64 << 10 };
static char *buffer;
static atomic_int over;

static void *changes(void *unused)
{
	(void)unused;
	for (unsigned n = 0; !atomic_load(&over); n++) {
		char *part = buffer + n * 7 % 16 * 4096;
		long len = (1 + n % 5) * 4096;
		if (part + len > buffer + SIZE)
			len = 4096;
		switch (n % 4) {
		case 0:
			munmap(part, len);
			break;
		case 1:
			mprotect(part, len, PROT_READ);
			break;
		case 2:
			mprotect(part, len, PROT_NONE);
			break;
		}
		mmap(part, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	}
	return 0;
}

static long strange;

static void look(const char *what, long n, long most)
{
	if (n < -1 || n > most || (n == -1 && errno != EFAULT && errno != EAGAIN)) {
		if (strange++ < 5)
			printf("%s: %ld %s\n", what, n, n < 0 ? err_(errno) : "");
	}
}

#define L(call, most) look(#call, (long)(call), most)

int main(void)
{
	pthread_t t;
	int p[2], s[2];
	struct iovec v[2];
	buffer = mmap(0, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int fd = open("file", O_CREAT | O_RDWR, 0600), zero = open("/dev/zero", O_RDONLY), dir = open("/proc", O_RDONLY);
	ftruncate(fd, SIZE);
	pipe2(p, O_NONBLOCK);
	socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, s);
	v[0].iov_base = buffer + 4096;
	v[1].iov_base = buffer + 7 * 4096;
	v[0].iov_len = v[1].iov_len = 5000;
	pthread_create(&t, 0, changes, 0);
	for (int n = 0; n < 1000; n++) {
		char *at = buffer + n * 5 % 15 * 4096 + 100;
		L(pwrite(fd, buffer, SIZE, 0), SIZE);
		L(pread(fd, buffer, SIZE, 0), SIZE);
		L(read(zero, buffer, SIZE), SIZE);
		L(preadv(fd, v, 2, 10), 10000);
		L(pwritev(fd, v, 2, 10), 10000);
		L(write(p[1], at, 4000), 4000);
		L(read(p[0], at, 4000), 4000);
		L(writev(p[1], v, 2), 10000);
		L(readv(p[0], v, 2), 10000);
		L(send(s[0], at, 4000, 0), 4000);
		L(recv(s[1], at, 4000, 0), 4000);
		L(syscall(SYS_getdents64, dir, buffer, SIZE), SIZE);
		lseek(dir, 0, SEEK_SET);
		L(syscall(SYS_newfstatat, AT_FDCWD, "file", at, 0), 0);
		L(syscall(SYS_poll, at, 4, 0), 4);
		L(syscall(SYS_clock_gettime, CLOCK_MONOTONIC, at), 0);
		L(syscall(SYS_getrandom, at, 256, 0), 256);
		L(syscall(SYS_rt_sigprocmask, SIG_BLOCK, 0, at, 8), 0);
	}
	atomic_store(&over, 1);
	pthread_join(t, 0);
	printf("strange: %ld\n", strange);
	L(pwrite(fd, buffer, SIZE, 0), SIZE);
	V(unlink("file"));
}
