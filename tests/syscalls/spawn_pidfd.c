// Descriptors of processes: made by clone and by pidfd_open, polled, waited
// for, signalled, gone with their process.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef P_PIDFD
#define P_PIDFD 3
#endif

extern char **environ;

static int pidfd_open(pid_t pid, unsigned flags)
{
	return syscall(SYS_pidfd_open, pid, flags);
}

static int pidfd_send(int fd, int signal, siginfo_t *info, unsigned flags)
{
	return syscall(SYS_pidfd_send_signal, fd, signal, info, flags);
}

static void result(const char *what, long r)
{
	printf("%s: %s\n", what, r < 0 ? strerror(errno) : "done");
}

static pid_t start(const char *seconds)
{
	char *argv[] = { "sleep", (char *)seconds, NULL };
	pid_t pid;
	return posix_spawnp(&pid, "sleep", NULL, NULL, argv, environ) ? -1 : pid;
}

static int ready(int fd, int ms)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	int n = poll(&p, 1, ms);
	return n > 0 ? p.revents : n;
}

static int stack[16384];
static int in_child(void *arg)
{
	(void)arg;
	execlp("sleep", "sleep", "0.05", (char *)NULL);
	_exit(9);
}

static volatile sig_atomic_t value, code;
static void on_signal(int s, siginfo_t *i, void *c)
{
	(void)s, (void)c;
	value = i->si_value.sival_int;
	code = i->si_code;
}

int main(void)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	siginfo_t i;
	result("nobody", pidfd_open(999999, 0));
	result("zero", pidfd_open(0, 0));
	result("flags", pidfd_open(getpid(), 1));

	pid_t pid = start("1");
	int fd = pidfd_open(pid, 0);
	printf("close on exec: %d\n", fcntl(fd, F_GETFD));
	printf("not yet: %d\n", ready(fd, 0));
	int e = epoll_create1(0);
	struct epoll_event ev = { .events = EPOLLIN, .data.u32 = 7 };
	result("epoll", epoll_ctl(e, EPOLL_CTL_ADD, fd, &ev));
	memset(&ev, 0, sizeof ev);
	printf("epoll: %d", epoll_wait(e, &ev, 1, 5000));
	printf(" %u %u\n", ev.events, ev.data.u32);
	printf("ended: %d\n", ready(fd, 5000));
	memset(&i, 0, sizeof i);
	long r = waitid(P_PIDFD, fd, &i, WEXITED | WNOWAIT);
	printf("waitid: %ld, the one: %d, code %d status %d\n", r, i.si_pid == pid, i.si_code, i.si_status);
	result("signal to a zombie", pidfd_send(fd, SIGTERM, NULL, 0));
	r = waitid(P_PIDFD, fd, &i, WEXITED);
	printf("waitid: %ld\n", r);
	result("again", waitid(P_PIDFD, fd, &i, WEXITED));
	result("signal when gone", pidfd_send(fd, SIGTERM, NULL, 0));
	// Newer ones add POLLHUP.
	printf("still readable: %d\n", ready(fd, 0) & POLLIN);
	result("read", read(fd, &i, 8));
	close(fd);

	pid = start("100");
	fd = pidfd_open(pid, O_NONBLOCK);
	result("would wait", waitid(P_PIDFD, fd, &i, WEXITED));
	memset(&i, 0xff, sizeof i);
	r = waitid(P_PIDFD, fd, &i, WEXITED | WNOHANG);
	printf("WNOHANG: %ld pid %d\n", r, i.si_pid);
	result("no signal", pidfd_send(fd, 0, NULL, 0));
	result("bad signal", pidfd_send(fd, 100, NULL, 0));
	result("bad flags", pidfd_send(fd, SIGTERM, NULL, 1 << 20));
	result("not a process", pidfd_send(e, SIGTERM, NULL, 0));
	result("SIGTERM", pidfd_send(fd, SIGTERM, NULL, 0));
	printf("ended: %d\n", ready(fd, 5000));
	r = waitid(P_PIDFD, fd, &i, WEXITED);
	printf("waitid: %ld, code %d status %d\n", r, i.si_code, i.si_status);
	close(fd);

	// With a value, to itself.
	struct sigaction a = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO };
	sigaction(SIGUSR1, &a, NULL);
	fd = pidfd_open(getpid(), 0);
	memset(&i, 0, sizeof i);
	i.si_signo = SIGUSR1;
	i.si_code = SI_QUEUE;
	i.si_value.sival_int = 42;
	result("queue", pidfd_send(fd, SIGUSR1, &i, 0));
	while (!code)
		usleep(1000);
	printf("value %d code %d\n", value, code);
	result("other number", pidfd_send(fd, SIGUSR2, &i, 0));
	result("not a child", waitid(P_PIDFD, fd, &i, WEXITED));
	close(fd);

	// clone gives one with the child.
	int made = -1;
	pid = clone(in_child, stack + 16384, CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD, NULL, &made);
	printf("clone: %d %d\n", pid > 0, made >= 0);
	printf("ended: %d\n", ready(made, 5000));
	r = waitid(P_PIDFD, made, &i, WEXITED);
	printf("waitid: %ld, the one: %d, status %d\n", r, i.si_pid == pid, i.si_status);
	close(made);
	r = clone(in_child, stack + 16384, CLONE_VM | CLONE_VFORK | CLONE_PIDFD | CLONE_PARENT_SETTID | SIGCHLD, NULL,
		  &made);
	result("two meanings of one pointer", r);
	printf("no child left: %d\n", waitpid(-1, NULL, 0));
	return 0;
}
