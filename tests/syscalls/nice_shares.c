// Two threads on one processor share it by their nice values, and by SCHED_IDLE.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static atomic_int ready, over;
static pthread_barrier_t begin;

static double used(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

struct one {
	int nice, idle;
	double used;
};

static void *work(void *of)
{
	struct one *one = of;
	if (setpriority(PRIO_PROCESS, syscall(SYS_gettid), one->nice))
		perror("setpriority");
	if (getpriority(PRIO_PROCESS, syscall(SYS_gettid)) != one->nice)
		puts("another nice value");
	struct sched_param none = {0};
	if (one->idle && (sched_setscheduler(0, SCHED_IDLE, &none) || sched_getscheduler(0) != SCHED_IDLE))
		puts("not SCHED_IDLE");
	pthread_barrier_wait(&begin);
	double before = used();
	while (!over)
		;
	one->used = used() - before;
	return 0;
}

/* How many times as much the first has had. */
static double ratio(struct one a, struct one b)
{
	pthread_t threads[2];
	over = 0;
	pthread_barrier_init(&begin, 0, 3);
	pthread_create(&threads[0], 0, work, &a);
	pthread_create(&threads[1], 0, work, &b);
	pthread_barrier_wait(&begin);
	usleep(800000);
	over = 1;
	pthread_join(threads[0], 0);
	pthread_join(threads[1], 0);
	return a.used / b.used;
}

/* Others may have had the processor meanwhile, and not from both alike: once of three times it is as it should be. */
static void show(const char *what, struct one a, struct one b, double least, double most)
{
	double found = 0;
	for (int n = 0; n < 3; n++) {
		found = ratio(a, b);
		if (found >= least && found <= most) {
			printf("%s: as it should be\n", what);
			return;
		}
	}
	printf("%s: %.2f, not %.2f to %.2f\n", what, found, least, most);
}

int main(void)
{
	cpu_set_t one;
	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	if (sched_setaffinity(0, sizeof one, &one))
		return 1;
	show("equals", (struct one){0}, (struct one){0}, 0.9, 1.1);
	show("nice 0 and 5", (struct one){0}, (struct one){.nice = 5}, 2.7, 3.5);
	show("nice 2 and 5", (struct one){.nice = 2}, (struct one){.nice = 5}, 1.7, 2.3);
	show("nice 0 and SCHED_IDLE", (struct one){0}, (struct one){.idle = 1}, 60, 3000);
	return 0;
}
