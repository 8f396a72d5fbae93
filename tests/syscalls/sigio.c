// Signals when a file gets ready: O_ASYNC (open(2)), F_SETOWN and F_SETSIG (fcntl(2)).
#include "case.h"
#include <netinet/in.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/un.h>
#ifndef F_SETSIG
#define F_SETSIG 10
#define F_GETSIG 11
#endif

static sigset_t set;
static int rt;

// What came, of those that are waited for. The same several times in a row counts once: how often is told of one thing
// is nothing to rely on.
static void came(const char *what)
{
	siginfo_t i;
	struct timespec t = {2, 0}, now = {0, 0};
	char last[80] = "", text[80];
	printf("%s:", what);
	while (sigtimedwait(&set, &i, last[0] ? &now : &t) > 0) {
		if (i.si_signo == SIGIO && i.si_code == SI_KERNEL)
			strcpy(text, " SIGIO");
		else
			snprintf(text, sizeof text, " %s code %d band %lx fd %d",
			         i.si_signo == rt ? "RT" : i.si_signo == SIGIO ? "SIGIO" : "other", i.si_code, i.si_band, i.si_fd);
		if (strcmp(text, last))
			printf("%s", text);
		strcpy(last, text);
	}
	puts(last[0] ? "" : " nothing");
	fflush(stdout);
}
static void nothing(const char *what)
{
	siginfo_t i;
	struct timespec t = {0, 50000000};
	printf("%s: %s\n", what, sigtimedwait(&set, &i, &t) > 0 ? "something" : "nothing");
}
static void async(int fd)
{
	V(fcntl(fd, F_SETOWN, getpid()));
	V(fcntl(fd, F_SETSIG, rt));
	V(fcntl(fd, F_SETFL, O_ASYNC | O_NONBLOCK));
}
static int to_write;
static void writes(void)
{
	V(write(to_write, "x", 1));
}
static void takes_it(void)
{
	setpgid(0, 0);
	struct f_owner_ex o = {F_OWNER_PGRP, getpid()};
	V(fcntl(to_write - 1, F_SETOWN_EX, &o));
	V(write(to_write, "x", 1));
	came("group");
}
static void other_user(void)
{
	if (setresuid(1234, 1234, 1234))
		return;
	V(fcntl(to_write - 1, F_SETOWN, getppid()));
}
static int tid;
static void *thread(void *p)
{
	(void)p;
	tid = syscall(SYS_gettid);
	struct f_owner_ex o = {F_OWNER_TID, tid};
	V(fcntl(to_write - 1, F_SETOWN_EX, &o));
	V(write(to_write, "x", 1));
	came("thread");
	return 0;
}

int main(void)
{
	rt = SIGRTMIN + 3;
	sigemptyset(&set);
	sigaddset(&set, SIGIO);
	sigaddset(&set, rt);
	sigprocmask(SIG_BLOCK, &set, 0);
	int p[2], q[2], on = 1, off = 0, n;
	char buf[4096];
	struct f_owner_ex o;

	SECTION("owner");
	pipe2(p, O_NONBLOCK);
	V(fcntl(p[0], F_GETOWN));
	V(fcntl(p[0], F_GETSIG));
	V(fcntl(p[0], F_SETOWN, getpid()));
	V(fcntl(p[0], F_GETOWN) == getpid());
	V(fcntl(p[0], F_GETOWN_EX, &o));
	printf("%d %d\n", o.type == F_OWNER_PID, o.pid == getpid());
	V(fcntl(p[0], F_SETOWN, -getpgrp()));
	V(fcntl(p[0], F_GETOWN) == -getpgrp());
	V(syscall(SYS_fcntl, p[0], F_SETOWN, 0));
	V(syscall(SYS_fcntl, p[0], F_GETOWN, 0));
	V(fcntl(p[0], F_SETOWN, INT_MIN));
	V(fcntl(p[0], F_SETOWN, 4194303));
	o = (struct f_owner_ex){F_OWNER_TID, gettid()};
	V(fcntl(p[0], F_SETOWN_EX, &o));
	o = (struct f_owner_ex){0};
	V(fcntl(p[0], F_GETOWN_EX, &o));
	printf("%d %d\n", o.type == F_OWNER_TID, o.pid == gettid());
	o.type = 7;
	V(fcntl(p[0], F_SETOWN_EX, &o));
	V(fcntl(p[0], F_SETOWN_EX, (void *)1));
	V(fcntl(p[0], F_SETSIG, 65));
	V(fcntl(p[0], F_SETSIG, -1));
	V(fcntl(p[0], F_SETSIG, SIGIO));
	V(fcntl(p[0], F_GETSIG) == SIGIO);
	V(fcntl(p[0], F_SETSIG, 0));

	SECTION("a pipe");
	V(write(p[1], "a", 1));
	nothing("not asked for");
	V(fcntl(p[0], F_SETFL, O_ASYNC | O_NONBLOCK));
	X(fcntl(p[0], F_GETFL));
	nothing("ready before");
	V(write(p[1], "b", 1));
	came("SIGIO");
	V(fcntl(p[0], F_SETSIG, rt));
	V(write(p[1], "c", 1));
	came("F_SETSIG");
	V(read(p[0], buf, 100));
	nothing("read");
	// An end of the same pipe that is not asked for.
	V(fcntl(p[1], F_GETOWN));
	async(p[1]);
	memset(buf, 1, sizeof buf);
	while (write(p[1], buf, sizeof buf) > 0)
		;
	for (n = 0; sigtimedwait(&set, 0, &(struct timespec){0, 0}) > 0; n++)
		;
	P(n >= 16);
	V(fcntl(p[0], F_SETFL, O_NONBLOCK));
	V(read(p[0], buf, sizeof buf));
	came("room");
	V(close(p[0]));
	came("no reader");
	V(ioctl(p[1], FIOASYNC, &off));
	X(fcntl(p[1], F_GETFL));
	V(close(p[1]));

	SECTION("who");
	pipe2(p, O_NONBLOCK);
	to_write = p[1];
	async(p[0]);
	end_child(begin_child(writes));
	came("by a child");
	end_child(begin_child(takes_it));
	V(fcntl(p[0], F_GETOWN));
	V(write(p[1], "x", 1));
	nothing("the child's group is gone");
	pthread_t t;
	pthread_create(&t, 0, thread, 0);
	pthread_join(t, 0);
	nothing("it was the thread's");
	V(write(p[1], "x", 1));
	nothing("the thread is gone");
	end_child(begin_child(other_user));
	V(write(p[1], "x", 1));
	nothing("for somebody who may not");
	V(fcntl(p[0], F_SETOWN, getpid()));
	int d = dup(p[0]);
	close(p[0]);
	V(write(p[1], "x", 1));
	came("of a duplicate");
	V(ioctl(d, FIOASYNC, &off));
	V(write(p[1], "x", 1));
	nothing("off");
	V(ioctl(d, FIOASYNC, &on));
	V(write(p[1], "x", 1));
	came("on");
	V(close(d));
	V(close(p[1]));
	nothing("closed");

	SECTION("sockets");
	socketpair(AF_UNIX, SOCK_STREAM, 0, q);
	V(ioctl(q[0], FIOASYNC, &on));
	V(fcntl(q[0], F_SETOWN, getpid()));
	V(write(q[1], "a", 1));
	came("a pair");
	V(read(q[0], buf, 1));
	nothing("read");
	int who = 0;
	V(ioctl(q[0], FIOGETOWN, &who));
	P(who == getpid());
	who = -getpgrp();
	V(ioctl(q[0], FIOSETOWN, &who));
	V(fcntl(q[0], F_GETOWN) == who);
	V(fcntl(q[0], F_SETOWN, getpid()));
	V(fcntl(q[0], F_SETSIG, rt));
	V(close(q[1]));
	came("closed");
	close(q[0]);

	int l = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof a;
	bind(l, (void *)&a, len);
	listen(l, 5);
	getsockname(l, (void *)&a, &len);
	async(l);
	int c = socket(AF_INET, SOCK_STREAM, 0);
	V(connect(c, (void *)&a, len));
	came("a connection");
	int s = accept(l, 0, 0);
	V(fcntl(s, F_GETFL) & O_ASYNC);
	close(l);
	for (; sigtimedwait(&set, 0, &(struct timespec){0, 20000000}) > 0;)
		;
	async(s);
	V(write(c, "data", 4));
	came("data");
	V(read(s, buf, 100));
	nothing("read");
	V(shutdown(c, SHUT_WR));
	came("an end");
	close(s);
	close(c);

	int u = socket(AF_INET, SOCK_DGRAM, 0);
	a.sin_port = 0;
	bind(u, (void *)&a, sizeof a);
	getsockname(u, (void *)&a, &len);
	async(u);
	V(sendto(u, "x", 1, 0, (void *)&a, len));
	came("a datagram");
	close(u);

	SECTION("a terminal");
	int m = posix_openpt(O_RDWR | O_NOCTTY);
	grantpt(m);
	unlockpt(m);
	int tty = open(ptsname(m), O_RDWR | O_NOCTTY | O_NONBLOCK);
	async(tty);
	V(write(m, "a line\n", 7));
	siginfo_t i;
	struct timespec two = {2, 0};
	int got = sigtimedwait(&set, &i, &two);
	printf("%d %d %d\n", got == rt, i.si_code == POLL_IN, i.si_fd == tty);
	close(tty);
	close(m);
	while (sigtimedwait(&set, 0, &(struct timespec){0, 0}) > 0)
		;

	SECTION("others");
	int f = inotify_init1(IN_NONBLOCK);
	async(f);
	char dir[] = "sigioXXXXXX", path[64];
	mkdtemp(dir);
	inotify_add_watch(f, dir, IN_CREATE);
	snprintf(path, sizeof path, "%s/new", dir);
	close(open(path, O_CREAT | O_WRONLY, 0600));
	came("inotify");
	close(f);
	f = open(path, O_RDWR);
	V(ioctl(f, FIOASYNC, &on));
	V(fcntl(f, F_SETFL, O_ASYNC));
	V(fcntl(f, F_SETOWN, getpid()));
	V(write(f, "x", 1));
	nothing("a file");
	unlink(path);
	rmdir(dir);
	return 0;
}
