// A real-time thread that never sleeps leaves others a part of each second (sched(7)), and a profiler's signals go to who runs (setitimer(2),
// ITIMER_PROF).
// options: --cores 1
// timeout: 60
#include "case.h"

static volatile long counted[2];
static __thread int who;

static void on(int signal)
{
	(void)signal;
	counted[who]++;
}

static void *spin(void *unused)
{
	struct sched_param p = {.sched_priority = 1};
	who = 1;
	if (sched_setscheduler(0, SCHED_FIFO, &p))
		perror("sched_setscheduler");
	for (;;)
		;
	return unused;
}

int main(void)
{
	cpu_set_t one;
	CPU_ZERO(&one);
	CPU_SET(0, &one);
	sched_setaffinity(0, sizeof one, &one);
	signal(SIGPROF, on);
	struct itimerval t = {{0, 10000}, {0, 10000}};
	setitimer(ITIMER_PROF, &t, NULL);
	pthread_t thread;
	pthread_create(&thread, NULL, spin, NULL);
	// Three turns of what is left for others, each of which comes within some seconds.
	for (int n = 0; n < 3; n++) {
		long long begun = now_ms(CLOCK_MONOTONIC);
		sleep_ms(100);
		printf("%d: %s\n", n, now_ms(CLOCK_MONOTONIC) - begun < 15000 ? "goes on" : "had to wait");
	}
	puts(counted[1] > 20 && counted[1] > counted[0] ? "who runs is told" : "who doesn't run is told");
	return 0;
}
