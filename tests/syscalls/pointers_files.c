// Bad pointers in calls on paths and files: what Linux says to each, and that nothing has happened then.
#include "pointers.h"
#include <dirent.h>
#include <linux/openat2.h>
#include <linux/stat.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/statfs.h>
#include <sys/xattr.h>
#include <utime.h>

// A list of three buffers, and each of them.
#define LIST(v, KIND) R(v, sizeof v), I(3), I(0), I(0), I(0), IN(v[0].iov_base, KIND, 4), IN(v[1].iov_base, KIND, 4), IN(v[2].iov_base, KIND, 4)

static char out[8192];
static struct timespec times[2];
static struct timeval values[2];
static int file, dir;

static void begin_directory(void)
{
	lseek(dir, 0, SEEK_SET);
}
static void look_at_directory(void)
{
	if (syscall(SYS_getdents64, dir, out, sizeof out) < 24 * 5)
		printf(" (gone on)");
}

static void names(void)
{
	CALL(open, S("d/new"), I(O_CREAT | O_RDWR), I(0600));
	CALL(openat, I(dir), S("new"), I(O_CREAT | O_RDWR), I(0600));
	struct open_how how = {.flags = O_RDONLY};
	CALL(openat2, I(dir), S("file"), R(&how, sizeof how), I(sizeof how));
	CALL(creat, S("d/new"), I(0600));
	CALL(stat, S("d/file"), W(out, sizeof(struct stat)));
	CALL(lstat, S("d/file"), W(out, sizeof(struct stat)));
	CALL(fstat, I(file), W(out, sizeof(struct stat)));
	CALL(newfstatat, I(dir), S("file"), W(out, sizeof(struct stat)), I(0));
	CALL(statx, I(dir), S("file"), I(0), I(STATX_BASIC_STATS), W(out, sizeof(struct statx)));
	CALL(statfs, S("d"), W(out, sizeof(struct statfs)));
	CALL(fstatfs, I(file), W(out, sizeof(struct statfs)));
	CALL(access, S("d/file"), I(F_OK));
	CALL(faccessat, I(dir), S("file"), I(F_OK));
	CALL(faccessat2, I(dir), S("file"), I(F_OK), I(0));
	CALL(truncate, S("d/file"), I(10));
	CALL(chdir, S("d"));
	CALL(chroot, S("d"));
	CALL(mkdir, S("d/new"), I(0700));
	CALL(mkdirat, I(dir), S("new"), I(0700));
	CALL(rmdir, S("d/nothing"));
	CALL(unlink, S("d/nothing"));
	CALL(unlinkat, I(dir), S("nothing"), I(0));
	CALL(rename, S("d/file"), S("d/other"));
	CALL(renameat, I(dir), S("file"), I(dir), S("other"));
	CALL(renameat2, I(dir), S("file"), I(dir), S("other"), I(0));
	CALL(link, S("d/file"), S("d/other"));
	CALL(linkat, I(dir), S("file"), I(dir), S("other"), I(0));
	CALL(symlink, S("file"), S("d/other"));
	CALL(symlinkat, S("file"), I(dir), S("other"));
	CALL(readlink, S("d/link"), W(out, 4), I(4));
	CALL(readlinkat, I(dir), S("link"), W(out, 4), I(4));
	CALL(chmod, S("d/file"), I(0600));
	CALL(fchmodat, I(dir), S("file"), I(0600));
	CALL(chown, S("d/file"), I(-1), I(-1));
	CALL(lchown, S("d/file"), I(-1), I(-1));
	CALL(fchownat, I(dir), S("file"), I(-1), I(-1), I(0));
	CALL(mknod, S("d/new"), I(S_IFIFO | 0600), I(0));
	CALL(mknodat, I(dir), S("new"), I(S_IFIFO | 0600), I(0));
	struct utimbuf old = {1, 2};
	CALL(utime, S("d/file"), R(&old, sizeof old));
	CALL(utimes, S("d/file"), R(values, sizeof values));
	CALL(futimesat, I(dir), S("file"), R(values, sizeof values));
	CALL(utimensat, I(dir), S("file"), R(times, sizeof times), I(0));
	CALL(memfd_create, S("name"), I(0));
	CALL(getcwd, W(out, 2), I(4096));
	CALL_OF(getcwd, "of no room", W(out, 2), I(1));
	before = begin_directory;
	after = look_at_directory;
	CALL(getdents64, I(dir), W(out, 400), I(4000));
	CALL(getdents, I(dir), W(out, 400), I(4000));
}

static void attributes(void)
{
	V(setxattr("d/file", "user.a", "value", 5, 0));
	CALL(setxattr, S("d/file"), S("user.b"), R("value", 5), I(5), I(0));
	CALL(lsetxattr, S("d/file"), S("user.b"), R("value", 5), I(5), I(0));
	CALL(fsetxattr, I(file), S("user.b"), R("value", 5), I(5), I(0));
	CALL(getxattr, S("d/file"), S("user.a"), W(out, 5), I(5));
	CALL(lgetxattr, S("d/file"), S("user.a"), W(out, 5), I(5));
	CALL(fgetxattr, I(file), S("user.a"), W(out, 5), I(5));
	CALL(listxattr, S("d/file"), W(out, 7), I(7));
	CALL(llistxattr, S("d/file"), W(out, 7), I(7));
	CALL(flistxattr, I(file), W(out, 7), I(7));
	CALL(removexattr, S("d/file"), S("user.none"));
	CALL(lremovexattr, S("d/file"), S("user.none"));
	CALL(fremovexattr, I(file), S("user.none"));
	V(syscall(SYS_getxattr, "d/file", "user.a", 0x10, 0));
	V(syscall(SYS_listxattr, "d/file", 0x10, 0));
	V(syscall(SYS_setxattr, "d/file", "user.c", 0x10, 0, 0));
	V(syscall(SYS_setxattr, "d/file", "user.d", 0x10, 1l << 40, 0));
	V(removexattr("d/file", "user.b"));
}

// What lies in the file, and where reading it goes on.
static void begin_file(void)
{
	pwrite(file, "0123456789abcdef", 16, 0);
	ftruncate(file, 16);
	lseek(file, 0, SEEK_SET);
}
static void look_at_file(void)
{
	char now[17] = "";
	struct stat st;
	pread(file, now, 16, 0);
	fstat(file, &st);
	long at = lseek(file, 0, SEEK_CUR);
	if (at || st.st_size != 16 || strcmp(now, "0123456789abcdef"))
		printf(" (at %ld of %ld: %s)", at, (long)st.st_size, now);
}

static void contents(void)
{
	static char text[] = "ABCDEFGHIJKLMNOP";
	struct iovec v[3] = {{out, 4}, {out + 4, 4}, {out + 8, 4}};
	struct iovec w[3] = {{text, 4}, {text + 4, 4}, {text + 8, 4}};
	before = begin_file;
	after = look_at_file;
	CALL(read, I(file), W(out, 16), I(16));
	CALL(pread64, I(file), W(out, 16), I(16), I(0));
	CALL_BUT(BUT(RESERVED), readv, "", I(file), LIST(v, WRITE));
	CALL_BUT(BUT(RESERVED), preadv, "", I(file), LIST(v, WRITE));
	CALL_BUT(BUT(RESERVED), preadv2, "", I(file), LIST(v, WRITE));
	CALL(write, I(file), R(text, 16), I(16));
	CALL(pwrite64, I(file), R(text, 16), I(16), I(0));
	CALL_BUT(BUT(RESERVED), writev, "", I(file), LIST(w, READ));
	CALL_BUT(BUT(RESERVED), pwritev, "", I(file), LIST(w, READ));
	CALL_BUT(BUT(RESERVED), pwritev2, "", I(file), LIST(w, READ));
	SECTION("lengths that overflow");
	begin_file();
	char *end = bad + 4096;
	V(read(file, out, -1ul));
	V(read(file, end - 8, 1l << 32));
	V(pwrite(file, end - 8, -1ul, 0));
	v[1].iov_len = -1ul;
	V(readv(file, v, 3));
	v[1].iov_len = 1ul << 63;
	V(readv(file, v, 3));
	v[1].iov_len = (1ul << 63) - 1;
	V(writev(file, v, 3));
	v[1].iov_len = 4;
	V(readv(file, v, -1));
	V(readv(file, v, 1025));
	V(readv(file, (void *)8, 1025));
	V(readv(file, (void *)8, 0));
	v[1] = (struct iovec){(void *)8, 0};
	V(preadv(file, v, 3, 0));
	v[1] = (struct iovec){(void *)0xffff800000000000, 0};
	V(preadv(file, v, 3, 0));
	V(read(file, (void *)0xffff800000000000, 0));
	V(write(file, (void *)0xffff800000000000, 0));
	V(read(file, 0, 0));
	V(write(file, 0, 0));
	look_at_file();
	puts("");
	SECTION("pages");
	// The second of two pages is bad.
	memset(out, 'x', 4096);
	char *two = bad;
	mprotect(bad, 4096, PROT_READ | PROT_WRITE);
	memset(two, 'y', 4096);
	V(pwrite(file, two, 8192, 0));
	V(pread(file, two, 8192, 0));
	V(lseek(file, 0, SEEK_END));
	V(lseek(file, 0, SEEK_SET));
	V(write(file, two, 8192));
	V(lseek(file, 0, SEEK_CUR));
	V(lseek(file, 0, SEEK_SET));
	V(read(file, two, 8192));
	V(lseek(file, 0, SEEK_CUR));
}

static int from[2], to[2];
static void begin_pipes(void)
{
	while (read(from[0], out, sizeof out) > 0)
		;
	while (read(to[0], out, sizeof out) > 0)
		;
	write(from[1], "0123456789abcdef", 16);
	begin_file();
}
static void look_at_pipes(void)
{
	int a = -1, b = -1;
	ioctl(from[0], FIONREAD, &a);
	ioctl(to[0], FIONREAD, &b);
	if (a != 16 || b != 0)
		printf(" (%d %d)", a, b);
	look_at_file();
}

static void pipes(void)
{
	pipe2(from, O_NONBLOCK);
	pipe2(to, O_NONBLOCK);
	free_fd = dup(1);
	close(free_fd);
	struct iovec v[3] = {{out, 4}, {out + 4, 4}, {out + 8, 4}};
	loff_t at = 0, zero = 0;
	before = begin_pipes;
	after = look_at_pipes;
	CALL(pipe, W(out, 8));
	CALL(pipe2, W(out, 8), I(O_NONBLOCK));
	CALL_BUT(BUT(CROSSES), read, "", I(from[0]), W(out, 16), I(16));
	CALL(write, I(to[1]), R(out, 16), I(16));
	CALL_BUT(BUT(CROSSES), readv, "", I(from[0]), R(v, sizeof v), I(3), I(0), I(0), I(0), IN(v[0].iov_base, WRITE, 4));
	CALL(writev, I(to[1]), LIST(v, READ));
	CALL_BUT(BUT(CROSSES), vmsplice, "", I(to[1]), R(v, sizeof v), I(3), I(0), I(0), I(0), IN(v[0].iov_base, READ, 4));
	CALL(sendfile, I(to[1]), I(file), RW(&at, 8), I(4));
	CALL_OF(splice, "from a file", I(file), RW(&at, 8), I(to[1]), I(0), I(4), I(0));
	CALL_OF(splice, "to a file", I(from[0]), I(0), I(file), RW(&at, 8), I(4), I(0));
	int copy = open("d/copy", O_CREAT | O_RDWR, 0600);
	free_fd = copy + 1;
	CALL(copy_file_range, I(file), RW(&at, 8), I(copy), RW(&zero, 8), I(4), I(0));
}

static int ep, pp[2];
static struct epoll_event e = {EPOLLIN};
static void begin_event(void)
{
	epoll_ctl(ep, EPOLL_CTL_MOD, pp[0], &e);
}
static void look_at_event(void)
{
	struct epoll_event got;
	if (epoll_wait(ep, &got, 1, 0) != 1)
		printf(" (taken)");
}

static void descriptors(void)
{
	int one = 1;
	ep = epoll_create1(0);
	pipe2(pp, O_NONBLOCK);
	write(pp[1], "0123456789", 10);
	epoll_ctl(ep, EPOLL_CTL_ADD, pp[0], &e);
	free_fd = dup(1);
	close(free_fd);
	struct flock lock = {.l_type = F_WRLCK};
	struct f_owner_ex owner = {F_OWNER_PID, 0};
	CALL_OF(fcntl, "F_GETLK", I(file), I(F_GETLK), RW(&lock, sizeof lock));
	lock = (struct flock){.l_type = F_WRLCK};
	CALL_OF(fcntl, "F_SETLK", I(file), I(F_SETLK), R(&lock, sizeof lock));
	CALL_OF(fcntl, "F_SETLKW", I(file), I(F_SETLKW), R(&lock, sizeof lock));
	CALL_OF(fcntl, "F_OFD_GETLK", I(file), I(F_OFD_GETLK), RW(&lock, sizeof lock));
	lock = (struct flock){.l_type = F_WRLCK};
	CALL_OF(fcntl, "F_OFD_SETLK", I(file), I(F_OFD_SETLK), R(&lock, sizeof lock));
	CALL_OF(fcntl, "F_GETOWN_EX", I(pp[0]), I(F_GETOWN_EX), W(&owner, sizeof owner));
	CALL_OF(fcntl, "F_SETOWN_EX", I(pp[0]), I(F_SETOWN_EX), R(&owner, sizeof owner));
	CALL_OF(ioctl, "FIONREAD", I(pp[0]), I(FIONREAD), W(out, 4));
	CALL_OF(ioctl, "FIONBIO", I(pp[0]), I(FIONBIO), R(&one, 4));
	CALL_OF(ioctl, "FIOASYNC", I(pp[0]), I(FIOASYNC), R(out, 4));
	CALL_OF(ioctl, "FIONREAD of a file", I(file), I(FIONREAD), W(out, 4));
	fd_set set;
	struct timeval zero = {0, 0};
	struct timespec none = {0, 0};
	FD_ZERO(&set);
	FD_SET(pp[0], &set);
	CALL(select, I(pp[0] + 1), RW(&set, 8), RW(out, 8), RW(out + 64, 8), R(&zero, sizeof zero));
	sigset_t mask;
	sigemptyset(&mask);
	struct { const void *p; size_t n; } masked = {&mask, 8};
	CALL(pselect6, I(pp[0] + 1), RW(&set, 8), RW(out, 8), RW(out + 64, 8), RW(&none, sizeof none), R(&masked, sizeof masked), IN(masked.p, READ, 8));
	struct pollfd polled[2] = {{pp[0], POLLIN, 0}, {pp[1], POLLIN, 0}};
	CALL(poll, RW(polled, sizeof polled), I(2), I(0));
	CALL(ppoll, RW(polled, sizeof polled), I(2), RW(&none, sizeof none), R(&mask, 8), I(8));
	CALL_OF(epoll_ctl, "add", I(ep), I(EPOLL_CTL_ADD), I(pp[1]), R(&e, sizeof e));
	CALL_OF(epoll_ctl, "mod", I(ep), I(EPOLL_CTL_MOD), I(pp[0]), R(&e, sizeof e));
	CALL_OF(epoll_ctl, "del", I(ep), I(EPOLL_CTL_DEL), I(pp[1]), R(&e, sizeof e));
	e.events = EPOLLIN | EPOLLONESHOT;
	before = begin_event;
	after = look_at_event;
	struct epoll_event got[2];
	CALL(epoll_wait, I(ep), W(got, sizeof got[0]), I(1), I(0));
	CALL(epoll_pwait, I(ep), W(got, sizeof got[0]), I(1), I(0), R(&mask, 8), I(8));
	CALL(epoll_pwait2, I(ep), W(got, sizeof got[0]), I(1), R(&none, sizeof none), R(&mask, 8), I(8));
	before = after = 0;
	V(syscall(SYS_poll, 8, 0, 0));
	V(syscall(SYS_poll, 8, 1ul << 31, 0));
	V(syscall(SYS_select, -1, 8, 8, 8, &zero));
	V(syscall(SYS_select, 0, 8, 8, 8, &zero));
	V(syscall(SYS_epoll_wait, ep, 0xffff800000000000, 1, 0));
	V(syscall(SYS_epoll_wait, ep, got, 0, 0));
	V(syscall(SYS_epoll_wait, ep, got, 1 << 30, 0));
}

static void terminals(void)
{
	int master = posix_openpt(O_RDWR | O_NOCTTY);
	grantpt(master);
	unlockpt(master);
	int slave = open(ptsname(master), O_RDWR | O_NOCTTY), n = 0;
	free_fd = slave + 1;
	// As the kernel has it: 36 bytes.
	char termios[36];
	struct winsize size;
	ioctl(slave, TCGETS, termios);
	ioctl(slave, TIOCGWINSZ, &size);
	CALL_OF(ioctl, "TCGETS", I(slave), I(TCGETS), W(termios, 36));
	CALL_OF(ioctl, "TCSETS", I(slave), I(TCSETS), R(termios, 36));
	CALL_OF(ioctl, "TIOCGWINSZ", I(slave), I(TIOCGWINSZ), W(&size, sizeof size));
	CALL_OF(ioctl, "TIOCSWINSZ", I(master), I(TIOCSWINSZ), R(&size, sizeof size));
	CALL_OF(ioctl, "TIOCGPTN", I(master), I(TIOCGPTN), W(&n, 4));
	CALL_OF(ioctl, "TIOCSPTLCK", I(master), I(TIOCSPTLCK), R(&n, 4));
	CALL_OF(ioctl, "TIOCOUTQ", I(slave), I(TIOCOUTQ), W(&n, 4));
	CALL_OF(ioctl, "FIONREAD", I(slave), I(FIONREAD), W(&n, 4));
	setsid();
	ioctl(slave, TIOCSCTTY, 0);
	CALL_OF(ioctl, "TIOCGPGRP", I(slave), I(TIOCGPGRP), W(&n, 4));
	CALL_OF(ioctl, "TIOCGSID", I(slave), I(TIOCGSID), W(&n, 4));
	n = getpgrp();
	CALL_OF(ioctl, "TIOCSPGRP", I(slave), I(TIOCSPGRP), R(&n, 4));
	CALL_OF(ioctl, "of a file", I(file), I(TCGETS), W(termios, 36));
}

int main(void)
{
	set_up();
	mkdir("d", 0755);
	V(file = open("d/file", O_CREAT | O_RDWR, 0600));
	V(dir = open("d", O_RDONLY));
	V(symlink("file", "d/link"));
	close(open("d/third", O_CREAT | O_RDWR, 0600));
	family("names", names);
	family("attributes", attributes);
	family("contents", contents);
	family("pipes", pipes);
	family("descriptors", descriptors);
	family("terminals", terminals);
	DIR *left = opendir("d");
	int n = 0;
	for (struct dirent *e; (e = readdir(left));)
		n++;
	P(n);
	return 0;
}
