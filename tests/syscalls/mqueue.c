// POSIX message queues (mq_overview(7)).
// timeout: 60
#include "case.h"
#include <linux/capability.h>
#include <mqueue.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/stat.h>

static char name[64], other[64];
static mqd_t q;

static mqd_t open_(const char *n, int flags, int mode, long most, long size)
{
	struct mq_attr a = {.mq_maxmsg = most, .mq_msgsize = size};
	return mq_open(n, flags, mode, most ? &a : 0);
}
static void receive(mqd_t from, int ms)
{
	char text[9000];
	unsigned priority = 77;
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	t.tv_nsec += ms * 1000000L;
	t.tv_sec += t.tv_nsec / 1000000000;
	t.tv_nsec %= 1000000000;
	ssize_t n = ms >= 0 ? mq_timedreceive(from, text, sizeof text, &priority, &t) : mq_receive(from, text, sizeof text, &priority);
	if (n == -1)
		printf("received: %s\n", err_(errno));
	else
		printf("received: %.*s (%zd) priority %u\n", (int)(n > 20 ? 20 : n), text, n, priority);
	fflush(stdout);
}
static void state(mqd_t of)
{
	char text[128] = "";
	printf("QSIZE line %zd: ", pread(of, text, sizeof text, 0));
	char *pid = strstr(text, "NOTIFY_PID:");
	if (pid) {
		int n = atoi(pid + 11);
		*pid = 0;
		printf("%spid %s\n", text, n == getpid() ? "mine" : n ? "other" : "none");
	}
	struct mq_attr a;
	mq_getattr(of, &a);
	printf("flags %ld maxmsg %ld msgsize %ld curmsgs %ld\n", a.mq_flags, a.mq_maxmsg, a.mq_msgsize, a.mq_curmsgs);
	struct stat s;
	fstat(of, &s);
	printf("mode %o size %ld links %ld owner %d:%d\n", s.st_mode, (long)s.st_size, (long)s.st_nlink, s.st_uid, s.st_gid);
	fflush(stdout);
}
static int ready(mqd_t of)
{
	struct pollfd p = {of, POLLIN | POLLOUT | POLLRDNORM | POLLWRNORM, 0};
	poll(&p, 1, 0);
	return p.revents;
}
static int got, got_code, got_value, got_pid;
static void handler(int s, siginfo_t *i, void *c)
{
	(void)c;
	got = s;
	got_code = i->si_code;
	got_value = i->si_value.sival_int;
	got_pid = i->si_pid;
}
static void nothing(int s)
{
	(void)s;
}
static void wants_one(void)
{
	receive(q, -1);
}
static void sends_one(void)
{
	V(mq_send(q, "late", 4, 5));
}
static void told(void)
{
	struct sigevent e = {.sigev_notify = SIGEV_NONE};
	V(mq_notify(q, &e));
	V(mq_notify(q, 0));
}
static void sends_and_ends(void)
{
	mq_send(q, "x", 1, 0);
}
static void as_nobody(void)
{
	setgid(65534);
	setuid(65534);
	V(mq_open(name, O_RDONLY));
	V(mq_open(name, O_WRONLY));
	V(mq_open(name, O_RDWR));
	V(mq_unlink(name));
	V(open_(other, O_CREAT | O_RDWR, 0600, 11, 100));
	V(open_(other, O_CREAT | O_RDWR, 0600, 10, 8193));
	struct rlimit few = {2000, 2000};
	setrlimit(RLIMIT_MSGQUEUE, &few);
	V(open_(other, O_CREAT | O_RDWR, 0600, 10, 105));
	mqd_t a = V(open_(other, O_CREAT | O_RDWR, 0600, 10, 104) >= 0);
	(void)a;
	char third[80];
	snprintf(third, sizeof third, "%s3", other);
	V(open_(third, O_CREAT | O_RDWR, 0600, 1, 1000));
	V(mq_unlink(other));
	// It is still open.
	V(open_(third, O_CREAT | O_RDWR, 0600, 1, 1000));
	syscall(SYS_close_range, 3, ~0u, 0);
	V(open_(third, O_CREAT | O_RDWR, 0600, 1, 1000) >= 0);
	V(mq_unlink(third));
}
static void limit_file(const char *n)
{
	char path[64], text[32] = "";
	snprintf(path, sizeof path, "/proc/sys/fs/mqueue/%s", n);
	int f = open(path, O_RDONLY);
	ssize_t len = read(f, text, sizeof text - 1);
	close(f);
	printf("%s %zd: %s", n, len, text);
}
static void *receives_in_thread(void *arg)
{
	char text[8192];
	return (void *)(long)mq_receive((mqd_t)(long)arg, text, sizeof text, 0);
}

// Whoever runs the case may or may not be able to go beyond limits: nobody is, from here on.
static void keep_limits(void)
{
	struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct sets[2];
	syscall(SYS_capget, &header, sets);
	sets[0].effective &= ~(1u << CAP_SYS_RESOURCE);
	V(syscall(SYS_capset, &header, sets));
}

int main()
{
	keep_limits();
	snprintf(name, sizeof name, "/atoll-%d", getpid());
	snprintf(other, sizeof other, "/atoll-%d-other", getpid());
	umask(022);

	SECTION("names");
	V(mq_open(name, O_RDWR));
	V(mq_open("", O_RDWR));
	V(mq_open("none", O_RDWR));
	V(mq_open("/", O_RDWR));
	V(mq_open("/a/b", O_RDWR | O_CREAT, 0600, 0));
	V(mq_open("/.", O_RDWR | O_CREAT, 0600, 0));
	V(mq_open("/..", O_RDWR | O_CREAT, 0600, 0));
	char longest[300] = "/";
	memset(longest + 1, 'n', 256);
	V(mq_open(longest, O_RDWR | O_CREAT, 0600, 0));
	V(mq_unlink("/"));
	V(mq_unlink(name));
	V(mq_unlink("/a/b"));
	V(syscall(SYS_mq_open, 0, O_RDWR, 0, 0));
	V(syscall(SYS_mq_open, "x", O_RDWR | O_CREAT, 0600, 8));
	V(syscall(SYS_mq_unlink, ""));

	SECTION("attributes");
	V(open_(name, O_CREAT | O_RDWR, 0666, 0, 0) >= 0);
	q = mq_open(name, O_RDWR);
	state(q);
	V(open_(name, O_CREAT | O_EXCL | O_RDWR, 0666, 0, 0));
	V(fcntl(q, F_GETFD));
	V(fcntl(q, F_GETFL) & (O_ACCMODE | O_NONBLOCK));
	struct mq_attr a = {.mq_flags = O_NONBLOCK, .mq_maxmsg = 5}, old = {0};
	V(mq_setattr(q, &a, &old));
	P(old.mq_flags);
	P(old.mq_maxmsg);
	V(fcntl(q, F_GETFL) & (O_ACCMODE | O_NONBLOCK));
	a.mq_flags = O_APPEND;
	V(mq_setattr(q, &a, 0));
	V(mq_getattr(0, &a));
	V(mq_getattr(-1, &a));
	V(syscall(SYS_mq_getsetattr, q, 8, 0));
	V(syscall(SYS_mq_getsetattr, q, 0, 8));
	V(syscall(SYS_mq_getsetattr, q, 0, 0));
	V(fchmod(q, 0640));
	state(q);
	V(fchmod(q, 0644));
	V(write(q, "x", 1));
	V(lseek(q, 6, SEEK_SET));
	char text[9000] = "";
	V(read(q, text, 3));
	printf("%s.\n", text);
	V(lseek(q, 0, SEEK_CUR));
	V(pread(q, text, 10, 80));
	V(open_(other, O_CREAT | O_RDWR, 0600, -1, 10));
	V(open_(other, O_CREAT | O_RDWR, 0600, 10, 0));
	V(open_(other, O_CREAT | O_RDWR, 0600, 11, 1));
	V(open_(other, O_CREAT | O_RDWR, 0600, 1, 8193));
	V(open_(other, O_CREAT | O_RDWR, 0600, 65537, 1));
	V(open_(other, O_CREAT | O_RDWR, 0600, 1, (16 << 20) + 1));

	SECTION("order");
	V(mq_send(q, "low", 3, 0));
	V(mq_send(q, "high", 4, 32767));
	V(mq_send(q, "middle 1", 8, 5));
	V(mq_send(q, "middle 2", 8, 5));
	V(mq_send(q, "middle 3", 8, 5));
	V(mq_send(q, "", 0, 0));
	V(mq_send(q, "x", 1, 32768));
	V(mq_send(q, text, 8193, 0));
	V(mq_send(q, (char *)8, 1, 0));
	state(q);
	V(mq_receive(q, text, 8191, 0));
	for (int i = 0; i < 7; i++)
		receive(q, 0);

	SECTION("whose");
	mqd_t in = mq_open(name, O_RDONLY), out = mq_open(name, O_WRONLY);
	V(mq_send(in, "x", 1, 0));
	V(mq_receive(out, text, sizeof text, 0));
	V(mq_send(out, "one", 3, 0));
	V(mq_receive(in, text, 8192, 0));
	V(mq_send(1, "x", 1, 0));
	V(mq_send(99, "x", 1, 0));
	V(mq_receive(1, text, sizeof text, 0));
	V(mq_notify(1, 0));
	V(pread(out, text, 10, 0));
	mq_close(in);
	mq_close(out);

	SECTION("times");
	struct timespec past = {1, 0}, bad = {1, 1000000000}, negative = {-1, 0};
	V(mq_timedreceive(q, text, sizeof text, 0, &past));
	a.mq_flags = 0;
	mq_setattr(q, &a, 0);
	V(mq_timedreceive(q, text, sizeof text, 0, &past));
	V(mq_timedreceive(q, text, sizeof text, 0, &bad));
	V(mq_timedreceive(q, text, sizeof text, 0, &negative));
	V(mq_timedreceive(q, text, sizeof text, 0, (void *)8));
	V(mq_timedsend(q, "ok", 2, 0, &past));
	V(mq_timedsend(q, "ok", 2, 0, &bad));
	V(mq_timedreceive(q, text, sizeof text, 0, &past));
	long long before = now_ms(CLOCK_MONOTONIC);
	receive(q, 50);
	P(now_ms(CLOCK_MONOTONIC) - before >= 49);

	SECTION("ready");
	X(ready(q));
	int e = epoll_create1(0);
	struct epoll_event want = {EPOLLIN | EPOLLET, {.u32 = 9}}, is;
	V(epoll_ctl(e, EPOLL_CTL_ADD, q, &want));
	V(epoll_wait(e, &is, 1, 0));
	for (int i = 0; i < 10; i++)
		mq_send(q, "many", 4, i);
	X(ready(q));
	V(epoll_wait(e, &is, 1, 1000));
	X(is.events);
	V(epoll_wait(e, &is, 1, 0));
	close(e);
	state(q);

	SECTION("full");
	before = now_ms(CLOCK_MONOTONIC);
	struct timespec soon;
	clock_gettime(CLOCK_REALTIME, &soon);
	soon.tv_sec++;
	V(mq_timedsend(q, "x", 1, 0, &past));
	V(mq_timedsend(q, "x", 1, 0, &soon));
	P(now_ms(CLOCK_MONOTONIC) - before >= 900);
	pid_t p = begin_child(sends_one);
	asleep(p, p);
	receive(q, -1);
	P(end_child(p));
	for (int i = 0; i < 10; i++)
		receive(q, 0);
	X(ready(q));

	SECTION("empty");
	p = begin_child(wants_one);
	asleep(p, p);
	pid_t p2 = begin_child(wants_one);
	asleep(p2, p2);
	V(mq_send(q, "first", 5, 1));
	P(end_child(p));
	V(mq_send(q, "second", 6, 2));
	P(end_child(p2));
	state(q);

	SECTION("interrupted");
	struct sigaction act = {.sa_handler = nothing};
	sigaction(SIGUSR1, &act, 0);
	pthread_t t = signal_later(SIGUSR1, 50);
	V(mq_receive(q, text, sizeof text, 0));
	pthread_join(t, 0);
	act.sa_flags = SA_RESTART;
	sigaction(SIGUSR1, &act, 0);
	t = signal_later(SIGUSR1, 50);
	receive(q, 500);
	pthread_join(t, 0);

	SECTION("told by a signal");
	act.sa_flags = SA_SIGINFO | SA_RESTART;
	act.sa_sigaction = handler;
	sigaction(SIGUSR2, &act, 0);
	struct sigevent ev = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR2, .sigev_value.sival_int = 42};
	V(mq_notify(q, &ev));
	V(mq_notify(q, &ev));
	state(q);
	mqd_t again = mq_open(name, O_RDWR);
	V(mq_notify(again, &ev));
	p = begin_child(told);
	P(end_child(p));
	p = begin_child(sends_and_ends);
	P(end_child(p));
	printf("signal %d code %d value %d from %s\n", got, got_code, got_value, got_pid == p ? "child" : "?");
	state(q);
	got = 0;
	V(mq_notify(q, &ev));
	mq_send(q, "y", 1, 0);
	P(got);
	receive(q, 0);
	receive(q, 0);
	mq_send(q, "z", 1, 0);
	P(got);
	receive(q, 0);
	got = 0;
	V(mq_notify(q, &ev));
	V(mq_notify(q, 0));
	state(q);
	mq_send(q, "z", 1, 0);
	P(got);
	receive(q, 0);
	// Who waits gets the message, and nobody is told.
	V(mq_notify(q, &ev));
	pthread_create(&t, 0, receives_in_thread, (void *)(long)q);
	sleep_ms(50);
	mq_send(q, "w", 1, 0);
	void *r;
	pthread_join(t, &r);
	P((long)r);
	P(got);
	// Closing any descriptor of it ends that.
	V(mq_close(again));
	state(q);
	ev.sigev_signo = 65;
	V(mq_notify(q, &ev));
	ev.sigev_notify = 9;
	V(mq_notify(q, &ev));
	V(syscall(SYS_mq_notify, q, 8));
	ev = (struct sigevent){.sigev_notify = SIGEV_NONE};
	V(mq_notify(q, &ev));
	state(q);
	mq_send(q, "n", 1, 0);
	state(q);
	receive(q, 0);
	ev = (struct sigevent){.sigev_notify = SIGEV_SIGNAL};
	V(mq_notify(q, &ev));
	mq_send(q, "n", 1, 0);
	receive(q, 0);
	// A process that ends takes its wish along.
	p = begin_child(told);
	P(end_child(p));
	V(mq_notify(q, &ev));

	SECTION("others");
	limit_file("msg_default");
	limit_file("msg_max");
	limit_file("msgsize_default");
	limit_file("msgsize_max");
	limit_file("queues_max");
	fflush(stdout);
	p = begin_child(as_nobody);
	P(end_child(p));

	SECTION("without a name");
	V(mq_send(q, "stays", 5, 3));
	V(mq_unlink(name));
	V(mq_unlink(name));
	V(mq_open(name, O_RDWR));
	state(q);
	mqd_t fresh = open_(name, O_CREAT | O_RDWR, 0600, 1, 1);
	state(fresh);
	receive(q, 0);
	V(mq_unlink(name));
	V(mq_close(fresh));
	V(mq_close(q));
	V(mq_close(q));
}
