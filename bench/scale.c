/* What switches and wake-ups of threads take as processors grow, in instructions: run on a machine that bench/count.c counts on, with
 * processors that run in turns. Prints what the marks mean.
 *
 * Each processor has two threads that wake each other and sleep in turns. Between marks 1 and 2, as many round trips of all of them as it
 * prints. Then one of the first processor wakes threads of the others, which have another one that computes: each between marks 3 and 4.
 */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "mark.h"

enum { CPUS = 64, WARM = 300, TRIPS = 10000, WAKES = 28 };

static struct pair {
	_Alignas(4096) atomic_int turn;
	_Alignas(64) atomic_long trips;
	_Alignas(64) atomic_int sleeping;
} pairs[CPUS];

static int cpus;
static atomic_int over, ready;

static void pin(int cpu)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof set, &set)) {
		perror("sched_setaffinity");
		exit(1);
	}
}

static void sleep_while(atomic_int *at, int value)
{
	syscall(SYS_futex, at, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void wake(atomic_int *at)
{
	syscall(SYS_futex, at, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* Gives the other one its turn, and waits for its own. */
static void trip(struct pair *p, int me)
{
	p->turn = !me;
	wake(&p->turn);
	while (p->turn != me && !over)
		sleep_while(&p->turn, !me);
}

static void *takes_turns(void *number)
{
	struct pair *p = &pairs[(long)number >> 1];
	int me = (long)number & 1;
	pin((long)number >> 1);
	ready++;
	while (ready < 2 * cpus - 1)
		sched_yield();
	while (!over) {
		trip(p, me);
		p->trips += !me;
	}
	p->turn = 2;
	wake(&p->turn);
	return NULL;
}

static long all_trips(void)
{
	long sum = 0;
	for (int n = 0; n < cpus; n++)
		sum += pairs[n].trips;
	return sum;
}

static void turns(void)
{
	pthread_t threads[2 * CPUS];
	for (long n = 1; n < 2 * cpus; n++)
		pthread_create(&threads[n], NULL, takes_turns, (void *)n);
	while (ready < 2 * cpus - 1)
		sched_yield();
	struct pair *p = &pairs[0];
	long before = 0;
	for (int n = 0; n <= WARM + TRIPS; n++) {
		if (n == WARM) {
			before = all_trips();
			MARK(1);
		}
		trip(p, 0);
		p->trips++;
	}
	MARK(2);
	printf("trips %ld\n", all_trips() - before);
	over = 1;
	for (int n = 0; n < cpus; n++) {
		pairs[n].turn = 2;
		wake(&pairs[n].turn);
	}
	for (int n = 1; n < 2 * cpus; n++)
		pthread_join(threads[n], NULL);
}

static void *computes(void *cpu)
{
	static volatile long work[CPUS][64];
	pin((int)(long)cpu);
	while (!over)
		work[(long)cpu][0]++;
	return NULL;
}

static void *sleeps(void *cpu)
{
	struct pair *p = &pairs[(long)cpu];
	pin((int)(long)cpu);
	for (int last = 0; !over; last = p->turn) {
		p->sleeping = 1;
		while (p->turn == last && !over)
			sleep_while(&p->turn, last);
		p->sleeping = 0;
	}
	return NULL;
}

static void wakes(void)
{
	pthread_t threads[2][CPUS];
	over = 0;
	for (long n = 1; n < cpus; n++) {
		pairs[n].turn = 0;
		pthread_create(&threads[0][n], NULL, sleeps, (void *)n);
		pthread_create(&threads[1][n], NULL, computes, (void *)n);
	}
	for (int n = 0; n < WAKES + 3; n++) {
		struct pair *p = &pairs[1 + n % (cpus - 1)];
		while (!p->sleeping)
			usleep(1000);
		/* Until it sleeps indeed. */
		usleep(10000);
		p->turn++;
		if (n >= 3)
			MARK(3);
		wake(&p->turn);
		if (n >= 3)
			MARK(4);
	}
	printf("wakes %d\n", WAKES);
	over = 1;
	for (int n = 1; n < cpus; n++) {
		pairs[n].turn++;
		wake(&pairs[n].turn);
		pthread_join(threads[0][n], NULL);
		pthread_join(threads[1][n], NULL);
	}
}

int main(void)
{
	cpu_set_t all;
	sched_getaffinity(0, sizeof all, &all);
	cpus = CPU_COUNT(&all);
	pin(0);
	turns();
	if (cpus > 1)
		wakes();
	return 0;
}
