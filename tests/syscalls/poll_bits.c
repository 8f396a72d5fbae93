// All that poll tells of each kind of file, also to who asks for POLLRDNORM and POLLWRNORM only.
// timeout: 60
#include "case.h"
#include <mqueue.h>
#include <netinet/in.h>
#include <poll.h>
#include <pty.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>

#define ALL (POLLIN | POLLPRI | POLLOUT | POLLRDNORM | POLLRDBAND | POLLWRNORM | POLLWRBAND | POLLMSG | POLLRDHUP)

static int asked(int fd, int events, int ms)
{
	struct pollfd p = {fd, events, 0};
	return poll(&p, 1, ms) < 0 ? -errno : p.revents;
}

static int told(int fd)
{
	int e = epoll_create1(0);
	struct epoll_event v = {ALL, {0}};
	int r = epoll_ctl(e, EPOLL_CTL_ADD, fd, &v);
	if (r)
		r = -errno;
	else
		r = epoll_wait(e, &v, 1, 0) == 1 ? v.events : 0;
	close(e);
	return r;
}

static void show(const char *what, int fd)
{
	int poll = asked(fd, ALL, 0), epoll = told(fd);
	printf("%s: %x", what, poll);
	if (epoll == -EPERM)
		printf(" (epoll: EPERM)\n");
	else
		printf(epoll == poll ? "\n" : " (epoll: %x)\n", epoll);
}

static int waited_fd, waited_for;

static void *waiter(void *unused)
{
	return (void *)(long)asked(waited_fd, waited_for, 5000);
}

// What somebody is told who waits for this while something is done.
static void while_waiting(const char *what, int fd, int events, void (*f)(void))
{
	pthread_t t;
	void *r;
	waited_fd = fd;
	waited_for = events;
	pthread_create(&t, NULL, waiter, NULL);
	sleep_ms(30);
	f();
	pthread_join(t, &r);
	printf("%s, waited for %x: %lx\n", what, events, (long)r);
}

static int to[2], from_host[2], datagrams[2];
static char buffer[1 << 20];

static void give(void)
{
	(void)!write(to[1], "x", 1);
}
static void take(void)
{
	(void)!read(to[0], buffer, sizeof buffer);
}
static void fill(int fd)
{
	fcntl(fd, F_SETFL, O_NONBLOCK);
	while (write(fd, buffer, sizeof buffer) > 0)
		;
	while (write(fd, buffer, 1) > 0)
		;
}

static void pair(const char *what, int reads, int writes, int fills)
{
	to[0] = reads;
	to[1] = writes;
	char name[64];
	printf("-- %s\n", what);
	show("nothing to read", reads);
	show("room", writes);
	while_waiting("given", reads, POLLRDNORM, give);
	show("something to read", reads);
	if (fills) {
		fill(writes);
		show("no room", writes);
		while_waiting("taken", writes, POLLWRNORM, take);
	} else {
		take();
	}
	close(writes);
	show("the other end is closed", reads);
	close(reads);
}

static void tcp(int out[2])
{
	struct sockaddr_in a = {AF_INET, 0, {htonl(INADDR_LOOPBACK)}};
	socklen_t len = sizeof a;
	int l = socket(AF_INET, SOCK_STREAM, 0);
	bind(l, (void *)&a, len);
	listen(l, 5);
	getsockname(l, (void *)&a, &len);
	show("a listener", l);
	out[1] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	show("not connected", out[1]);
	connect(out[1], (void *)&a, len);
	P(asked(out[1], POLLWRNORM, 5000));
	P(asked(l, POLLRDNORM, 5000));
	show("a listener with a connection", l);
	out[0] = accept(l, NULL, NULL);
	close(l);
	fcntl(out[1], F_SETFL, 0);
}

static void reap(void)
{
	waitpid(-1, NULL, 0);
}

int main(void)
{
	int fds[2], master, slave;

	SECTION("files");
	show("/dev/null", open("/dev/null", O_RDWR));
	show("a file", open("/etc/passwd", O_RDONLY));
	show("a directory", open("/etc", O_RDONLY));
	show("of /proc", open("/proc/self/status", O_RDONLY));

	pipe(fds);
	pair("a pipe", fds[0], fds[1], 1);
	socketpair(AF_UNIX, SOCK_STREAM, 0, fds);
	pair("a stream", fds[0], fds[1], 1);
	socketpair(AF_UNIX, SOCK_DGRAM, 0, fds);
	pair("datagrams", fds[0], fds[1], 0);
	socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds);
	pair("packets", fds[0], fds[1], 0);

	SECTION("TCP");
	tcp(fds);
	pair("its connection", fds[0], fds[1], 0);

	SECTION("UDP");
	struct sockaddr_in a = {AF_INET, 0, {htonl(INADDR_LOOPBACK)}};
	socklen_t len = sizeof a;
	fds[0] = socket(AF_INET, SOCK_DGRAM, 0);
	bind(fds[0], (void *)&a, len);
	getsockname(fds[0], (void *)&a, &len);
	fds[1] = socket(AF_INET, SOCK_DGRAM, 0);
	connect(fds[1], (void *)&a, len);
	pair("its datagrams", fds[0], fds[1], 0);

	openpty(&master, &slave, NULL, NULL, NULL);
	pair("a terminal", master, slave, 0);

	SECTION("others");
	int e = eventfd(0, 0);
	show("an eventfd", e);
	eventfd_write(e, 1);
	show("written to", e);
	eventfd_write(e, -3UL);
	show("full", e);
	int t = timerfd_create(CLOCK_MONOTONIC, 0);
	show("a timerfd", t);
	timerfd_settime(t, 0, &(struct itimerspec){.it_value.tv_nsec = 1}, NULL);
	P(asked(t, POLLIN, 1000));
	show("expired", t);
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, NULL);
	int s = signalfd(-1, &set, 0);
	show("a signalfd", s);
	kill(getpid(), SIGUSR1);
	show("a signal is pending", s);
	int i = inotify_init1(0);
	show("an inotify", i);
	inotify_add_watch(i, "/tmp", IN_CREATE);
	close(open("/tmp/poll_bits", O_CREAT | O_RDWR, 0600));
	P(asked(i, POLLRDNORM, 1000));
	show("something was made", i);
	unlink("/tmp/poll_bits");
	int ep = epoll_create1(0);
	show("an epoll", ep);
	epoll_ctl(ep, EPOLL_CTL_ADD, e, &(struct epoll_event){EPOLLIN, {0}});
	show("of something ready", ep);
	pid_t p = fork();
	if (!p)
		pause();
	int pidfd = syscall(SYS_pidfd_open, p, 0);
	show("a pidfd", pidfd);
	kill(p, SIGKILL);
	P(asked(pidfd, POLLRDNORM, -1));
	while_waiting("waited for", pidfd, 0, reap);
	struct mq_attr attr = {.mq_maxmsg = 1, .mq_msgsize = 8};
	mqd_t q = mq_open("/poll_bits", O_CREAT | O_RDWR, 0600, &attr);
	show("a message queue", q);
	mq_send(q, "x", 1, 0);
	show("full", q);
	mq_unlink("/poll_bits");
	return 0;
}
