// Timers that run out much faster than anybody looks: they are counted, not told one by one, and nothing else has to wait for that.
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void pause_ms(int ms)
{
	struct timespec t = { 0, ms * 1000000L };
	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

static volatile int handled, overruns;
static timer_t timer;

static void on_signal(int s)
{
	(void)s;
	handled++;
	overruns += timer_getoverrun(timer);
}

static void on_alarm(int s)
{
	(void)s;
	handled++;
}

// For a while, and until signals are handled.
static void spin(uint64_t since)
{
	for (;;) {
		uint64_t ns = now() - since;
		if (ns >= 50000000 && (handled > 5 || ns >= 5000000000))
			return;
	}
}

static const struct itimerspec fast = { { 0, 1000 }, { 0, 1000 } }, none;

// When the timer was started: between these two.
static uint64_t start, started;

// Whether so many times of 1 us are counted: none is lost and none too many, give or take what passes while asking.
static const char *right(uint64_t count, uint64_t before, uint64_t after)
{
	uint64_t least = (before - started) / 1000, most = (after - start) / 1000;
	return count + 2 >= least && count <= most + 2 ? "all" : count < least ? "too few" : "too many";
}

static void fds(void)
{
	int fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), ep = epoll_create1(0);
	struct epoll_event e = { EPOLLIN | EPOLLET, { 0 } };
	struct itimerspec is;
	uint64_t count = 0;
	start = now();
	timerfd_settime(fd, 0, &fast, NULL);
	started = now();
	pause_ms(30);
	uint64_t before = now();
	int r = read(fd, &count, 8);
	printf("timerfd: %d, counted %s\n", r, right(count, before, now()));
	// An edge is told once until it is read.
	pause_ms(1);
	epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
	for (int i = 0; i < 3; i++) {
		printf("edge %d: %d\n", i, epoll_wait(ep, &e, 1, 0));
		pause_ms(1);
	}
	r = read(fd, &count, 8);
	pause_ms(1);
	printf("edge after it was read: %d, %d\n", r, epoll_wait(ep, &e, 1, 100));
	timerfd_gettime(fd, &is);
	printf("left %s, interval %ld\n", is.it_value.tv_nsec <= 1000 ? "within it" : "beyond", is.it_interval.tv_nsec);
	// Stopped: what it had counted is gone.
	timerfd_settime(fd, 0, &none, &is);
	r = read(fd, &count, 8);
	printf("stopped: %ld; %d %s\n", is.it_interval.tv_nsec, r, strerror(errno));
	close(fd);
	// One that blocks, again and again.
	fd = timerfd_create(CLOCK_MONOTONIC, 0);
	start = now();
	timerfd_settime(fd, 0, &fast, NULL);
	started = now();
	uint64_t sum = 0;
	for (int i = 0; i < 2000; i++) {
		before = now();
		if (read(fd, &count, 8) != 8)
			perror("read");
		sum += count;
	}
	printf("read 2000 times: counted %s\n", right(sum, before, now()));
	close(fd);
	close(ep);
}

// Nanoseconds between signals that are ignored: a tracer is told of each of them all the same, and nothing else would come to run.
static long ignored_interval(void)
{
	char line[128];
	int tracer = 0;
	FILE *f = fopen("/proc/self/status", "r");
	while (f && fgets(line, sizeof line, f))
		sscanf(line, "TracerPid: %d", &tracer);
	if (f)
		fclose(f);
	return tracer ? 5000000 : 1000;
}

static void posix(void)
{
	struct sigevent ev = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
	struct sigaction sa = { .sa_handler = on_signal };
	struct itimerspec is;
	sigset_t set, old;
	sigaction(SIGUSR1, &sa, NULL);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, &old);
	timer_create(CLOCK_MONOTONIC, &ev, &timer);
	start = now();
	timer_settime(timer, 0, &fast, NULL);
	started = now();
	pause_ms(30);
	timer_gettime(timer, &is);
	printf("blocked: left %s\n", is.it_value.tv_nsec <= 1000 ? "within it" : "not");
	siginfo_t info;
	uint64_t before = now();
	int r = sigwaitinfo(&set, &info);
	uint64_t after = now();
	printf("waited for: %d, code %d, counted %s\n", r == SIGUSR1, info.si_code, right(info.si_overrun + 1, before, after));
	printf("timer_getoverrun: %s\n", timer_getoverrun(timer) == info.si_overrun ? "the same" : "differs");
	timer_settime(timer, 0, &none, NULL);
	sigtimedwait(&set, &info, &(struct timespec){ 0, 0 });
	// By a signalfd, too.
	int fd = signalfd(-1, &set, 0);
	struct signalfd_siginfo si;
	start = now();
	timer_settime(timer, 0, &fast, NULL);
	started = now();
	pause_ms(20);
	before = now();
	r = read(fd, &si, sizeof si);
	after = now();
	printf("signalfd: %d, counted %s, code %d\n", r == sizeof si, right(si.ssi_overrun + 1, before, after), si.ssi_code);
	timer_settime(timer, 0, &none, NULL);
	sigtimedwait(&set, &info, &(struct timespec){ 0, 0 });
	close(fd);
	// Handled while work is done.
	sigprocmask(SIG_SETMASK, &old, NULL);
	handled = overruns = 0;
	start = now();
	timer_settime(timer, 0, &(struct itimerspec){ { 0, 2000000 }, { 0, 2000000 } }, NULL);
	started = now();
	spin(start);
	before = now();
	timer_settime(timer, 0, &none, NULL);
	after = now();
	uint64_t least = (before - started) / 2000000, most = (after - start) / 2000000;
	uint64_t seen = handled + overruns;
	printf("handled %s, %s\n", handled > 5 ? "often" : "seldom", seen + 2 >= least && seen <= most + 2 ? "all counted" : "not all counted");
	// Ignored.
	signal(SIGUSR1, SIG_IGN);
	long ns = ignored_interval();
	timer_settime(timer, 0, &(struct itimerspec){ { 0, ns }, { 0, ns } }, NULL);
	pause_ms(20);
	timer_gettime(timer, &is);
	printf("ignored: left %s\n", is.it_value.tv_nsec <= ns ? "within it" : "not");
	timer_delete(timer);
	// Nobody is told.
	ev.sigev_notify = SIGEV_NONE;
	timer_create(CLOCK_MONOTONIC, &ev, &timer);
	timer_settime(timer, 0, &fast, NULL);
	pause_ms(20);
	timer_gettime(timer, &is);
	printf("told nobody: left %s\n", is.it_value.tv_nsec <= 1000 ? "within it" : "not");
	timer_delete(timer);
}

static void alarms(void)
{
	struct itimerval it = { { 0, 1 }, { 0, 1 } }, old;
	sigset_t set, pending;
	sigemptyset(&set);
	sigaddset(&set, SIGALRM);
	sigprocmask(SIG_BLOCK, &set, NULL);
	signal(SIGALRM, on_alarm);
	handled = 0;
	setitimer(ITIMER_REAL, &it, NULL);
	pause_ms(20);
	sigpending(&pending);
	getitimer(ITIMER_REAL, &old);
	printf("alarm blocked: pending %d, handled %d, interval %ld\n", sigismember(&pending, SIGALRM), handled, old.it_interval.tv_usec);
	// One that runs out again before its handler returns would leave no time for anything else.
	memset(&it, 0, sizeof it);
	setitimer(ITIMER_REAL, &it, NULL);
	sigprocmask(SIG_UNBLOCK, &set, NULL);
	printf("unblocked: handled %d\n", handled > 0);
	start = now();
	it.it_interval.tv_usec = it.it_value.tv_usec = 2000;
	handled = 0;
	setitimer(ITIMER_REAL, &it, NULL);
	spin(start);
	memset(&it, 0, sizeof it);
	setitimer(ITIMER_REAL, &it, NULL);
	printf("handled %s\n", handled > 5 ? "often" : "seldom");
	signal(SIGALRM, SIG_IGN);
	it.it_interval.tv_usec = it.it_value.tv_usec = ignored_interval() / 1000;
	setitimer(ITIMER_REAL, &it, NULL);
	pause_ms(20);
	printf("ignored\n");
	memset(&it, 0, sizeof it);
	setitimer(ITIMER_REAL, &it, NULL);
}

// All of these at a time, nobody asks, and others go on.
static void *adds(void *stop)
{
	volatile uint64_t n = 0;
	while (!*(volatile int *)stop)
		n++;
	return NULL;
}

static void many(void)
{
	int fds[64], stop = 0;
	for (int i = 0; i < 64; i++) {
		fds[i] = timerfd_create(i % 2 ? CLOCK_MONOTONIC : CLOCK_REALTIME, 0);
		timerfd_settime(fds[i], 0, &(struct itimerspec){ { 0, 1 + i }, { 0, 1 } }, NULL);
	}
	pthread_t t[2];
	for (int i = 0; i < 2; i++)
		pthread_create(&t[i], NULL, adds, &stop);
	pause_ms(50);
	stop = 1;
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	struct pollfd p = { fds[63], POLLIN, 0 };
	printf("many: %d\n", poll(&p, 1, 0));
	for (int i = 0; i < 64; i++)
		close(fds[i]);
}

int main(void)
{
	fds();
	posix();
	alarms();
	many();
	return 0;
}
