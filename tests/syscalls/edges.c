// EFAULT: buffers that end where nothing is mapped, that cross into it, or that lie in it.
#include "case.h"
#include <dirent.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sysinfo.h>
#include <sys/times.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <linux/futex.h>
#include <linux/stat.h>

static char *end;    // the last mapped byte is before it
static char *none;   // a page that may not be touched

// `size` bytes that just fit, and the same one byte too far, in unmapped pages and nowhere.
#define FITS(size) (end - (size))
#define CROSSES(size) (end - (size) + 1)
#define OUT(name, size, call) ({ \
	printf("%s:", name); \
	for (int way_ = 0; way_ < 3; way_++) { \
		char *p = way_ == 0 ? FITS(size) : way_ == 1 ? CROSSES(size) : none; \
		errno = 0; \
		long r_ = (long)(call); \
		printf(" %s", r_ < 0 ? err_(errno) : "ok"); \
	} \
	puts(""); \
	fflush(stdout); })

int main(void)
{
	char *area = mmap(0, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	end = area + 8192;
	none = end + 4096;
	mprotect(end, 8192, PROT_NONE);
	mkdir("d", 0755);
	int fd = open("d/file", O_CREAT | O_RDWR, 0600), dir = open("d", O_RDONLY), p2[2], s2[2];
	pipe2(p2, O_NONBLOCK);
	socketpair(AF_UNIX, SOCK_STREAM, 0, s2);
	int ev = eventfd(5, EFD_NONBLOCK), ep = epoll_create1(0);
	struct epoll_event e = {EPOLLIN};
	epoll_ctl(ep, EPOLL_CTL_ADD, ev, &e);
	char big[8192];
	memset(big, 'b', sizeof big);
	pwrite(fd, big, sizeof big, 0);

	SECTION("structures that are filled");
	OUT("stat", sizeof(struct stat), syscall(SYS_stat, "d", p));
	OUT("fstat", sizeof(struct stat), syscall(SYS_fstat, fd, p));
	OUT("newfstatat", sizeof(struct stat), syscall(SYS_newfstatat, dir, "file", p, 0));
	OUT("statx", sizeof(struct statx), syscall(SYS_statx, dir, "file", 0, STATX_BASIC_STATS, p));
	OUT("statfs", sizeof(struct statfs), statfs("/", (void *)p));
	OUT("uname", sizeof(struct utsname), uname((void *)p));
	OUT("sysinfo", sizeof(struct sysinfo), sysinfo((void *)p));
	OUT("times", sizeof(struct tms), syscall(SYS_times, p));
	OUT("getrusage", sizeof(struct rusage), syscall(SYS_getrusage, RUSAGE_SELF, p));
	OUT("getrlimit", sizeof(struct rlimit), syscall(SYS_getrlimit, RLIMIT_NOFILE, p));
	OUT("prlimit64", sizeof(struct rlimit), syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, p));
	OUT("clock_getres", sizeof(struct timespec), syscall(SYS_clock_getres, CLOCK_REALTIME, p));
	OUT("getitimer", sizeof(struct itimerval), syscall(SYS_getitimer, ITIMER_REAL, p));
	OUT("sigaltstack", sizeof(stack_t), syscall(SYS_sigaltstack, 0, p));
	OUT("rt_sigaction", 32, syscall(SYS_rt_sigaction, SIGUSR1, 0, p, 8));
	OUT("rt_sigprocmask", 8, syscall(SYS_rt_sigprocmask, SIG_BLOCK, 0, p, 8));
	OUT("rt_sigpending", 8, syscall(SYS_rt_sigpending, p, 8));
	OUT("sched_getparam", 4, syscall(SYS_sched_getparam, 0, p));
	OUT("getresuid", 4, syscall(SYS_getresuid, p, &e, &e));
	OUT("getgroups", 4, getgroups(0, 0) == 0 ? 0 : syscall(SYS_getgroups, 1 << 16, p - 0) >= 0 ? 0 : -1);
	OUT("getcwd", 1, syscall(SYS_getcwd, p, 1) == -1 && errno == ERANGE ? 0 : -1);
	OUT("pipe2", 8, syscall(SYS_pipe2, p, 0));
	OUT("socketpair", 8, syscall(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, p));
	OUT("readlink", 4, syscall(SYS_readlink, "/proc/self/cwd", p, 4));
	OUT("getrandom", 16, syscall(SYS_getrandom, p, 16, 0));
	OUT("ioctl FIONREAD", 4, ioctl(p2[0], FIONREAD, p));
	OUT("fcntl F_GETLK", sizeof(struct flock), ({ struct flock f = {F_WRLCK}; if (p == FITS(sizeof f)) memcpy(p, &f, sizeof f); fcntl(fd, F_GETLK, p); }));
	OUT("getdents64", 100, syscall(SYS_getdents64, dir, p, 100));
	lseek(dir, 0, SEEK_SET);
	OUT("epoll_wait", sizeof e, syscall(SYS_epoll_wait, ep, p, 1, 0));
	OUT("getsockname", 2, ({ socklen_t n = 2; syscall(SYS_getsockname, s2[0], p, &n); }));
	OUT("getsockname's length", 4, ({ struct sockaddr s; if (p == FITS(4)) memset(p, 0, 4); syscall(SYS_getsockname, s2[0], &s, p); }));
	OUT("getsockopt", 4, ({ socklen_t n = 4; syscall(SYS_getsockopt, s2[0], SOL_SOCKET, SO_TYPE, p, &n); }));
	OUT("wait4 with no child", 4, syscall(SYS_wait4, -1, p, WNOHANG, 0) == -1 && errno == ECHILD ? 0 : -1);
	OUT("timer_create", 4, syscall(SYS_timer_create, CLOCK_MONOTONIC, 0, p));

	SECTION("structures that are read");
	memset(area, 0, 8192);
	OUT("nanosleep", 16, syscall(SYS_nanosleep, p, 0));
	OUT("clock_nanosleep", 16, syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, p, 0));
	OUT("utimensat", 32, syscall(SYS_utimensat, dir, "file", p, 0));
	OUT("setitimer", 32, syscall(SYS_setitimer, ITIMER_REAL, p, 0));
	OUT("rt_sigprocmask", 8, syscall(SYS_rt_sigprocmask, SIG_BLOCK, p, 0, 8));
	OUT("rt_sigaction", 32, syscall(SYS_rt_sigaction, SIGUSR2, p, 0, 8));
	OUT("rt_sigtimedwait", 16, syscall(SYS_rt_sigtimedwait, area, 0, p, 8) == -1 && errno == EAGAIN ? 0 : -1);
	OUT("epoll_ctl", sizeof e, syscall(SYS_epoll_ctl, ep, EPOLL_CTL_MOD, ev, p));
	OUT("poll", sizeof(struct pollfd), syscall(SYS_poll, p, 1, 0));
	OUT("select", 8, syscall(SYS_select, 64, p, 0, 0, ((struct timeval *)area)));
	OUT("futex", 4, syscall(SYS_futex, (long)p & ~3l, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0));
	OUT("futex wait", 4, syscall(SYS_futex, (long)p & ~3l, FUTEX_WAIT, 1, 0, 0, 0) == -1 && errno == EAGAIN ? 0 : -1);
	OUT("setsockopt", 4, syscall(SYS_setsockopt, s2[0], SOL_SOCKET, SO_KEEPALIVE, p, 4));
	OUT("bind", 2, ({ int s = socket(AF_UNIX, SOCK_STREAM, 0); if (p == FITS(2)) *(short *)p = AF_UNIX; long r = syscall(SYS_bind, s, p, 2); int er = errno; close(s); errno = er; r; }));
	OUT("sched_setaffinity", 8, ({ memset(area, 255, 8192); syscall(SYS_sched_setaffinity, 0, 8, p); }));

	SECTION("names");
	memset(area, '/', 8192);
	area[8191] = 0;
	OUT("a path that ends in time", 5, access(p, F_OK));
	area[8191] = '/';
	OUT("a path that does not", 5, access(p, F_OK));
	OUT("open", 5, open(p, O_RDONLY));
	OUT("mkdir", 5, mkdir(p, 0700));
	OUT("rename", 5, rename("d/file", p));
	OUT("symlink", 5, symlink(p, "d/link"));
	OUT("execve's arguments", 8, ({ *(char **)FITS(8) = "x"; execve("/nowhere/none", (void *)p, environ); }));

	// Of a stream Linux takes nothing then, page by page; that much is not promised.
	SECTION("bytes: what fits is done in files");
	memset(area, 'x', 8192);
	V(write(p2[1], end - 10, 20));
	V(write(p2[1], end, 20));
	V(read(p2[0], big, 100));
	V(write(p2[1], "0123456789", 10));
	V(read(p2[0], end, 10));
	V(read(p2[0], big, 10));
	V(pwrite(fd, end - 10, 20, 0));
	V(pwrite(fd, end, 20, 0));
	V(pread(fd, end - 10, 20, 0));
	V(pread(fd, end, 20, 0));
	V(pread(fd, none, 0, 0));
	V(pread(fd, end - 5000, 6000, 0));
	struct iovec v[3] = {{end - 10, 10}, {end, 10}, {big, 10}};
	V(writev(p2[1], v, 3));
	V(read(p2[0], big, 100));
	V(preadv(fd, v, 3, 0));
	V(preadv(fd, v + 1, 2, 0));
	V(pwritev(fd, v, 3, 0));
	OUT("writev's list", 16, ({ if (p == FITS(16)) memcpy(p, v, 16); syscall(SYS_writev, p2[1], p, 1); }));
	V(read(p2[0], big, 100));
	V(send(s2[0], end, 20, 0));
	V(send(s2[0], "0123456789", 10, 0));
	V(recv(s2[1], end, 10, MSG_DONTWAIT));
	V(recv(s2[1], big, 100, MSG_DONTWAIT));
	V(write(ev, end - 4, 8));
	V(read(ev, end - 4, 8));
	V(getrandom(end - 4, 8, 0));
	V(syscall(SYS_getcwd, end - 3, 4096) == -1);
	V(read(fd, (void *)-4096, 10));
	V(write(fd, (void *)0xffff800000000000, 10));
	V(read(fd, (void *)0x7fffffffe000, 1l << 47));
	V(stat((void *)-1, (void *)area));
	return 0;
}
