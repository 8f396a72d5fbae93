// What a signal does to calls that wait: EINTR or going on; timers that send signals.
// nucleus-differs: i.si_code == SI_TIMER && i.si_overrun > 3:; timer_getoverrun(id) > 3: (the count lags when the host takes the core away)
#include "case.h"
#include <sys/epoll.h>
#include <sys/select.h>

static volatile int hits;
static void nothing(int s) { hits++; }
static void show(int s, siginfo_t *i, void *u)
{
	hits++;
	printf("[%d code %d]", s, i->si_code);
}

static void set(int flags)
{
	struct sigaction sa = {.sa_handler = nothing, .sa_flags = flags};
	sigaction(SIGUSR1, &sa, 0);
}
static int pipefd[2];
// After the handler has run.
static void *write_later(void *p)
{
	while (!hits)
		sleep_ms(1);
	sleep_ms(80);
	return (void *)write(pipefd[1], "x", 1);
}

int main(void)
{
	char b;
	pipe(pipefd);
	for (int restart = 0; restart < 2; restart++) {
		printf("-- SA_RESTART %d\n", restart);
		set(restart ? SA_RESTART : 0);
		pthread_t w, l;
#define INT(call) do { l = signal_later(SIGUSR1, 40); V(call); pthread_join(l, 0); } while (0)
		hits = 0;
		if (restart)
			pthread_create(&w, 0, write_later, 0);
		INT(read(pipefd[0], &b, 1));
		if (!restart)
			pthread_create(&w, 0, write_later, 0);
		pthread_join(w, 0);
		if (!restart) { struct pollfd p = {pipefd[0], POLLIN}; poll(&p, 1, -1); read(pipefd[0], &b, 1); }
		struct pollfd p = {pipefd[0], POLLIN};
		INT(poll(&p, 1, 5000));
		struct timeval tv = {5, 0};
		fd_set set;
		FD_ZERO(&set);
		FD_SET(pipefd[0], &set);
		INT(select(pipefd[0] + 1, &set, 0, 0, &tv));
		struct timespec ts = {5, 0}, rem = {0, 0};
		INT(nanosleep(&ts, &rem));
		P(rem.tv_sec == 4);
		INT(clock_nanosleep(CLOCK_MONOTONIC, 0, &ts, &rem));
		int ep = epoll_create1(0);
		struct epoll_event ev;
		INT(epoll_wait(ep, &ev, 1, 5000));
		close(ep);
		int sv[2];
		socketpair(AF_UNIX, SOCK_STREAM, 0, sv);
		struct timeval to = {2, 0};
		setsockopt(sv[0], SOL_SOCKET, SO_RCVTIMEO, &to, sizeof to);
		INT(recv(sv[0], &b, 1, 0));
		close(sv[0]);
		close(sv[1]);
		INT(usleep(2000000));
		sigset_t none;
		sigemptyset(&none);
		INT(sigsuspend(&none));
	}
	SECTION("timers");
	struct sigaction sa = {.sa_sigaction = show, .sa_flags = SA_SIGINFO};
	sigaction(SIGALRM, &sa, 0);
	sigaction(SIGVTALRM, &sa, 0);
	sigaction(SIGPROF, &sa, 0);
	struct itimerval it = {{0, 0}, {0, 20000}}, old;
	sigset_t m, before;
	sigemptyset(&m);
	sigaddset(&m, SIGALRM);
	sigprocmask(SIG_BLOCK, &m, &before);
	V(setitimer(ITIMER_REAL, &it, 0));
	sigsuspend(&before);
	sigprocmask(SIG_SETMASK, &before, 0);
	puts("");
	for (int which = 1; which < 3; which++) {
		hits = 0;
		V(setitimer(which, &it, 0));
		long long t0 = now_ms(CLOCK_MONOTONIC);
		while (!hits && now_ms(CLOCK_MONOTONIC) - t0 < 5000)
			;
		puts("");
	}
	it.it_value.tv_sec = 100;
	V(setitimer(ITIMER_REAL, &it, &old));
	V(getitimer(ITIMER_REAL, &old));
	P(old.it_value.tv_sec >= 99);
	V(alarm(50) >= 99);
	V(alarm(0));
	V(alarm(30) || 1);
	it.it_value.tv_usec = 1000000;
	V(setitimer(ITIMER_REAL, &it, 0));
	V(setitimer(3, &it, 0));
	V(getitimer(-1, &it));
	V(getitimer(0, (void *)8));
	alarm(0);
	SECTION("POSIX timers");
	timer_t id;
	struct sigevent se = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN, .sigev_value.sival_int = 5};
	sigaction(SIGRTMIN, &sa, 0);
	clockid_t clocks[] = {CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_BOOTTIME, CLOCK_PROCESS_CPUTIME_ID, CLOCK_THREAD_CPUTIME_ID, 99};
	struct itimerspec its = {{0, 0}, {0, 20000000}}, oits;
	for (int k = 0; k < 6; k++) {
		if (V(timer_create(clocks[k], &se, &id)) == -1)
			continue;
		hits = 0;
		V(timer_settime(id, 0, &its, 0));
		long long t0 = now_ms(CLOCK_MONOTONIC);
		while (!hits && now_ms(CLOCK_MONOTONIC) - t0 < 5000)
			;
		V(timer_gettime(id, &oits));
		P(oits.it_value.tv_nsec);
		V(timer_getoverrun(id));
		V(timer_delete(id));
		V(timer_delete(id));
	}
	se.sigev_notify = SIGEV_NONE;
	V(timer_create(CLOCK_MONOTONIC, &se, &id));
	its.it_value.tv_sec = 10;
	its.it_interval.tv_sec = 3;
	V(timer_settime(id, 0, &its, &oits));
	V(timer_gettime(id, &oits));
	P(oits.it_value.tv_sec);
	P(oits.it_interval.tv_sec);
	clock_gettime(CLOCK_MONOTONIC, &its.it_value);
	its.it_value.tv_sec += 20;
	V(timer_settime(id, TIMER_ABSTIME, &its, &oits));
	V(timer_gettime(id, &oits));
	P(oits.it_value.tv_sec);
	its.it_value.tv_nsec = 2000000000;
	V(timer_settime(id, 0, &its, 0));
	V(timer_delete(id));
	se.sigev_notify = 77;
	V(timer_create(CLOCK_MONOTONIC, &se, &id));
	se.sigev_notify = SIGEV_SIGNAL;
	se.sigev_signo = 99;
	V(timer_create(CLOCK_MONOTONIC, &se, &id));
	se.sigev_notify = SIGEV_THREAD_ID;
	se.sigev_signo = SIGRTMIN;
	se._sigev_un._tid = syscall(SYS_gettid);
	V(timer_create(CLOCK_MONOTONIC, &se, &id));
	its = (struct itimerspec){{0, 5000000}, {0, 5000000}};
	hits = 0;
	sigemptyset(&m);
	sigaddset(&m, SIGRTMIN);
	sigprocmask(SIG_BLOCK, &m, 0);
	timer_settime(id, 0, &its, 0);
	sleep_ms(60);
	siginfo_t i;
	V(sigwaitinfo(&m, &i) == SIGRTMIN);
	P(i.si_code == SI_TIMER && i.si_overrun > 3);
	P(timer_getoverrun(id) > 3);
	timer_delete(id);
	V(timer_create(CLOCK_MONOTONIC, 0, &id));
	return 0;
}
