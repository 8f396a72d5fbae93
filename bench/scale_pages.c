/* What a page costs as processors grow, in instructions (OmniRE, sections 6.2 and 6.3, Figures 10 and 11): run on a machine that
 * bench/count.c counts on, with processors that run in turns. Prints what the marks mean.
 *
 * Each processor has a process that maps 600 pages one by one, writes to the first byte of each, and unmaps them all, again and again. Between
 * marks 1 and 2 a page comes when it is touched; between 3 and 4 when it is mapped (MAP_POPULATE). Between 5 and 6 a process of each makes
 * a child, which ends. In between, all of them together did as many as it prints.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "mark.h"

enum { CPUS = 64, PAGES = 600, WARM = 3, ROUNDS = 20, CHILDREN = 40, PAGE = 4096 };

static struct all {
	/* Which one is measured, and whether it has been. */
	atomic_int ready, phase, over;
	struct {
		_Alignas(64) atomic_long done;
	} of[CPUS];
} *all;

static int cpus;

static void pages(int populate)
{
	char *at[PAGES];
	for (int n = 0; n < PAGES; n++) {
		at[n] = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | populate, -1, 0);
		if (at[n] == MAP_FAILED) {
			perror("mmap");
			exit(1);
		}
	}
	for (int n = 0; n < PAGES; n++)
		at[n][0] = 1;
	for (int n = 0; n < PAGES; n++)
		munmap(at[n], PAGE);
}

static void child(void)
{
	pid_t pid = fork();
	if (pid == 0)
		_exit(0);
	if (pid < 0 || waitpid(pid, NULL, 0) != pid) {
		perror("fork");
		exit(1);
	}
}

static void work(int phase, int me)
{
	switch (phase) {
	case 1:
		pages(0);
		all->of[me].done += PAGES;
		break;
	case 2:
		pages(MAP_POPULATE);
		all->of[me].done += PAGES;
		break;
	default:
		child();
		all->of[me].done++;
	}
}

static long done(void)
{
	long sum = 0;
	for (int n = 0; n < cpus; n++)
		sum += all->of[n].done;
	return sum;
}

static void other(int me)
{
	for (int phase = 1; phase <= 3; phase++) {
		all->ready++;
		while (all->phase < phase)
			sched_yield();
		while (all->phase == phase && !all->over)
			work(phase, me);
	}
	_exit(0);
}

int main(void)
{
	cpu_set_t set;
	sched_getaffinity(0, sizeof set, &set);
	cpus = CPU_COUNT(&set);
	all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (int n = cpus; n-- > 0;) {
		CPU_ZERO(&set);
		CPU_SET(n, &set);
		if (n > 0 && fork() > 0)
			continue;
		if (sched_setaffinity(0, sizeof set, &set)) {
			perror("sched_setaffinity");
			exit(1);
		}
		if (n > 0)
			other(n);
	}
	static const char *const names[] = { "touched", "populated", "children" };
	for (int phase = 1; phase <= 3; phase++) {
		/* Until all wait. */
		while (all->ready < phase * (cpus - 1))
			sched_yield();
		all->over = 0;
		all->phase = phase;
		int rounds = phase == 3 ? CHILDREN : ROUNDS;
		for (int n = 0; n < WARM; n++)
			work(phase, 0);
		long before = done();
		if (phase == 1)
			MARK(1);
		else if (phase == 2)
			MARK(3);
		else
			MARK(5);
		for (int n = 0; n < rounds; n++)
			work(phase, 0);
		if (phase == 1)
			MARK(2);
		else if (phase == 2)
			MARK(4);
		else
			MARK(6);
		printf("%s %ld\n", names[phase - 1], done() - before);
		all->over = 1;
	}
	while (wait(NULL) > 0)
		;
	return 0;
}
