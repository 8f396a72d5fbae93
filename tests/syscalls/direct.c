// Calls that the C library makes by other numbers today, made directly.
#include "case.h"
#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <utime.h>
#define S(name, ...) V(syscall(SYS_##name, ##__VA_ARGS__))
int main(void)
{
	char b[1000];
	struct stat s;
	int p[2];
	S(open, "f", O_CREAT | O_RDWR, 0640);
	S(open, "none", O_RDONLY);
	S(creat, "g", 0600);
	S(stat, "f", &s);
	printf("%o\n", s.st_mode);
	S(stat, "none", &s);
	S(stat, "f", 8);
	S(lstat, "f", &s);
	S(fstat, 3, &s);
	S(fstat, 99, &s);
	S(access, "f", R_OK);
	S(faccessat, AT_FDCWD, "f", W_OK);
	S(pipe, p);
	S(write, p[1], "x", 1);
	fd_set r;
	FD_ZERO(&r);
	FD_SET(p[0], &r);
	struct timeval tv = {1, 0};
	S(select, p[0] + 1, &r, 0, 0, &tv);
	P(FD_ISSET(p[0], &r) != 0);
	struct timespec ms = {0, 1000000};
	S(nanosleep, &ms, 0);
	struct rlimit l;
	S(getrlimit, RLIMIT_NOFILE, &l);
	S(setrlimit, RLIMIT_NOFILE, &l);
	S(mkdir, "d", 0755);
	int d = S(open, "d", O_RDONLY | O_DIRECTORY, 0);
	V(syscall(SYS_getdents, d, b, 1000) > 0);
	S(getdents, d, b, 1000);
	S(mknod, "d/n", S_IFREG | 0600, 0);
	S(utime, "f", &(struct utimbuf){5, 6});
	S(utimes, "f", (struct timeval[2]){{7, 8}, {9, 10}});
	S(futimesat, AT_FDCWD, "f", (struct timeval[2]){{11, 8}, {12, 10}});
	S(stat, "f", &s);
	printf("%ld %ld\n", s.st_atim.tv_sec, s.st_mtim.tv_sec);
	S(fchmodat2, AT_FDCWD, "f", 0600, 0);
	S(fchmodat2, AT_FDCWD, "f", 0600, 0x10);
	V(syscall(SYS_eventfd, 3) > 0);
	sigset_t m;
	sigemptyset(&m);
	V(syscall(SYS_signalfd, -1, &m, 8) > 0);
	S(epoll_create, 1);
	S(execve, "none", 0, 0);
	S(execveat, AT_FDCWD, "none", 0, 0, 0);
	S(execve, "d", 0, 0);
	S(execve, "f", 0, 0);
	struct __user_cap_header_struct h = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct c[2];
	S(capget, &h, c);
	S(capset, &h, c);
	S(dup2, 3, 3);
	S(rename, "f", "h");
	S(link, "h", "i");
	S(symlink, "h", "j");
	S(readlink, "j", b, 1000);
	S(chmod, "h", 0644);
	S(unlink, "i");
	S(rmdir, "d");
	S(alarm, 0);
	return 0;
}
