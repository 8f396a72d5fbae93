// Timers on processor time: setitimer's other two, timer_create on CPU clocks.
// nucleus: no (a core goes on using processor time there when the host takes it away)
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t count[65];
static volatile pid_t who;

static void on_signal(int s, siginfo_t *i, void *c)
{
	(void)i, (void)c;
	count[s]++;
	who = syscall(SYS_gettid);
}

static long used_ms(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

// Uses time of its own between two looks at the clock: that of system calls is not a virtual timer's.
static void use(void)
{
	for (volatile int n = 0; n < 20000; n++)
		;
}

// Uses processor time until a signal has come often enough.
static void burn(int signal, int times, long limit_ms)
{
	long end = used_ms(CLOCK_THREAD_CPUTIME_ID) + limit_ms;
	while (count[signal] < times && used_ms(CLOCK_THREAD_CPUTIME_ID) < end)
		use();
}

static void *burns(void *arg)
{
	long end = used_ms(CLOCK_THREAD_CPUTIME_ID) + 200;
	while (used_ms(CLOCK_THREAD_CPUTIME_ID) < end)
		use();
	return arg;
}

int main(void)
{
	struct sigaction a = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART };
	sigaction(SIGPROF, &a, NULL);
	sigaction(SIGVTALRM, &a, NULL);
	sigaction(SIGUSR1, &a, NULL);
	sigaction(SIGRTMIN, &a, NULL);
	struct itimerval v, old;
	int kinds[] = { ITIMER_VIRTUAL, ITIMER_PROF }, signals[] = { SIGVTALRM, SIGPROF };
	for (int k = 0; k < 2; k++) {
		int s = signals[k];
		v = (struct itimerval){ { 0, 20000 }, { 0, 50000 } };
		printf("set: %d\n", setitimer(kinds[k], &v, &old));
		printf("before: %ld %ld\n", (long)old.it_value.tv_usec, (long)old.it_interval.tv_usec);
		// Sleeping does not count.
		usleep(150000);
		printf("after a sleep: %d\n", count[s]);
		getitimer(kinds[k], &v);
		printf("left: %d, interval %ld\n", v.it_value.tv_usec > 30000 && v.it_value.tv_usec <= 60000,
		       (long)v.it_interval.tv_usec);
		long before = used_ms(CLOCK_PROCESS_CPUTIME_ID);
		burn(s, 5, 3000);
		long took = used_ms(CLOCK_PROCESS_CPUTIME_ID) - before;
		printf("five times: %d, not too early: %d, not too late: %d\n", count[s] >= 5, took >= 100, took < 1500);
		memset(&v, 0, sizeof v);
		setitimer(kinds[k], &v, &old);
		int now = count[s];
		printf("stopped, interval was %ld\n", (long)old.it_interval.tv_usec);
		burn(s, now + 1, 100);
		printf("no more: %d\n", count[s] == now);
	}
	int r = setitimer(3, &v, NULL);
	printf("bad kind: %d %s\n", r, strerror(errno));

	timer_t t;
	struct sigevent e = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
	printf("process clock: %d\n", timer_create(CLOCK_PROCESS_CPUTIME_ID, &e, &t));
	struct itimerspec i = { .it_value = { 0, 40000000 } };
	printf("set: %d\n", timer_settime(t, 0, &i, NULL));
	// All threads' time counts.
	pthread_t two[2];
	for (int n = 0; n < 2; n++)
		pthread_create(&two[n], NULL, burns, NULL);
	for (int n = 0; n < 2; n++)
		pthread_join(two[n], NULL);
	printf("once: %d\n", count[SIGUSR1]);
	timer_gettime(t, &i);
	printf("over: %ld %ld\n", (long)i.it_value.tv_sec, i.it_value.tv_nsec);
	// At an absolute time that has passed.
	i.it_value = (struct timespec){ 0, 1 };
	timer_settime(t, TIMER_ABSTIME, &i, NULL);
	burn(SIGUSR1, 2, 1000);
	printf("passed: %d\n", count[SIGUSR1]);
	printf("delete: %d\n", timer_delete(t));

	e = (struct sigevent){ .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN };
	e._sigev_un._tid = syscall(SYS_gettid);
	printf("thread clock: %d\n", timer_create(CLOCK_THREAD_CPUTIME_ID, &e, &t));
	i = (struct itimerspec){ .it_value = { 0, 10000000 }, .it_interval = { 0, 10000000 } };
	timer_settime(t, 0, &i, NULL);
	// Another thread's time does not count.
	pthread_create(&two[0], NULL, burns, NULL);
	pthread_join(two[0], NULL);
	printf("other thread: %d\n", count[SIGRTMIN] < 3);
	burn(SIGRTMIN, 8, 3000);
	printf("own: %d, to this thread: %d\n", count[SIGRTMIN] >= 8, who == syscall(SYS_gettid));
	timer_delete(t);
	return 0;
}
