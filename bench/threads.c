/* Times what threads do to each other: prints a name and the nanoseconds that it takes, a line each.
 * threads [PART]: does a PARTth of the work, for slow machines.
 * threads share NICE: two threads compute for a second on one processor, one of them of this nice value; prints the seconds that
 * each had.
 * threads serve PORT: sends back each byte that comes by TCP at once, until the end; threads serve PORT busy: with a thread that
 * computes beside it, on the same processor.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common.h"

static long part = 1;

static void pin(int cpu)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof set, &set))
		fail("sched_setaffinity");
}

static void report(const char *name, double ns)
{
	printf("%s %.2f\n", name, ns);
	fflush(stdout);
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double median(double *values, int n)
{
	qsort(values, n, sizeof *values, compare);
	return values[n / 2];
}

/* Two threads that take turns. */
struct turns {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	int turn, cpu;
	long rounds;
	/* When the other one was told, and how long that took to arrive. */
	double told, *took;
};

static void pass(struct turns *t, int me)
{
	pthread_mutex_lock(&t->lock);
	while (t->turn != me)
		pthread_cond_wait(&t->changed, &t->lock);
	if (t->took && me)
		t->took[t->rounds++] = now() - t->told;
	t->turn = !me;
	pthread_cond_signal(&t->changed);
	pthread_mutex_unlock(&t->lock);
}

static void *second(void *at)
{
	struct turns *t = at;
	pin(t->cpu);
	long n = t->took ? -t->rounds : t->rounds;
	if (t->took)
		t->rounds = 0;
	for (long i = 0; i < n; i++)
		pass(t, 1);
	return 0;
}

static void condition(const char *name, int other)
{
	struct turns t = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, other, 0, 0, 0 };
	double best[5];
	for (int round = 0; round < 5; round++) {
		pthread_t thread;
		t.turn = 0;
		t.rounds = 20000 / part;
		pthread_create(&thread, 0, second, &t);
		double begun = now();
		for (long i = 0; i < t.rounds; i++)
			pass(&t, 0);
		pthread_join(thread, 0);
		best[round] = (now() - begun) / t.rounds;
	}
	report(name, median(best, 5));
}

static void spin(double ns)
{
	double until = now() + ns;
	while (now() < until)
		;
}

/* The receiver has nothing to do for 3 ms before: its processor sleeps. */
static void condition_parked(const char *name)
{
	struct turns t = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 1, 0, 0, 0 };
	long n = 100 / part + 5;
	t.rounds = -n;
	t.took = calloc(n, sizeof *t.took);
	pthread_t thread;
	pthread_create(&thread, 0, second, &t);
	for (long i = 0; i < n; i++) {
		spin(3e6);
		t.told = now();
		pass(&t, 0);
	}
	pthread_join(thread, 0);
	report(name, median(t.took, n));
	free(t.took);
}

static void *nothing(void *unused) { return unused; }

static void create(void)
{
	double best[5];
	long n = 5000 / part;
	for (int round = 0; round < 5; round++) {
		double begun = now();
		for (long i = 0; i < n; i++) {
			pthread_t thread;
			if (pthread_create(&thread, 0, nothing, 0))
				fail("pthread_create");
			pthread_join(thread, 0);
		}
		best[round] = (now() - begun) / n;
	}
	report("pthread_create and pthread_join", median(best, 5));
}

/* Sends back what comes, until the end. */
static void echo(int from, int to)
{
	char c;
	while (read(from, &c, 1) == 1)
		if (write(to, &c, 1) != 1)
			fail("write");
}

struct echo { int from, to, cpu; };

static void *echo_thread(void *at)
{
	struct echo *e = at;
	pin(e->cpu);
	echo(e->from, e->to);
	return 0;
}

/* Round trips over a pair of pipes. */
static void trips(const char *name, int to, int from)
{
	double best[5];
	char c = 0;
	long n = 10000 / part;
	for (int round = 0; round < 5; round++) {
		double begun = now();
		for (long i = 0; i < n; i++)
			if (write(to, &c, 1) != 1 || read(from, &c, 1) != 1)
				fail("pipe");
		best[round] = (now() - begun) / n;
	}
	report(name, median(best, 5));
}

/* The same with the other side asleep before each. */
static void trips_parked(const char *name, int to, int from)
{
	long n = 100 / part + 5;
	double *took = calloc(n, sizeof *took);
	char c = 0;
	for (long i = 0; i < n; i++) {
		spin(3e6);
		double begun = now();
		if (write(to, &c, 1) != 1 || read(from, &c, 1) != 1)
			fail("pipe");
		took[i] = now() - begun;
	}
	report(name, median(took, n));
	free(took);
}

static void pipes(const char *name, int other, void (*how)(const char *, int, int))
{
	int there[2], back[2];
	if (pipe2(there, O_CLOEXEC) || pipe2(back, O_CLOEXEC))
		fail("pipe");
	struct echo e = { there[0], back[1], other };
	pthread_t thread;
	pthread_create(&thread, 0, echo_thread, &e);
	how(name, there[1], back[0]);
	close(there[1]);
	pthread_join(thread, 0);
	close(there[0]);
	close(back[0]);
	close(back[1]);
}

static char *self;

/* Between this process and another one. */
static void processes(const char *name, int other, void (*how)(const char *, int, int))
{
	int there[2], back[2];
	if (pipe2(there, O_CLOEXEC) || pipe2(back, O_CLOEXEC))
		fail("pipe");
	posix_spawn_file_actions_t actions;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, there[0], 0);
	posix_spawn_file_actions_adddup2(&actions, back[1], 1);
	char cpu[8], *argv[] = { self, "echo", "on", cpu, 0 }, *environment[] = { 0 };
	snprintf(cpu, sizeof cpu, "%d", other);
	pid_t child;
	if (posix_spawn(&child, self, &actions, 0, argv, environment))
		fail("posix_spawn");
	close(there[0]);
	close(back[1]);
	how(name, there[1], back[0]);
	close(there[1]);
	waitpid(child, 0, 0);
	close(back[0]);
	posix_spawn_file_actions_destroy(&actions);
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static volatile long shared;

static void *locks(void *rounds)
{
	for (long i = 0; i < (long)rounds; i++) {
		pthread_mutex_lock(&mutex);
		/* Some work under the lock, and some without: about 40 ns and 20. */
		for (int k = 0; k < 40; k++)
			shared++;
		pthread_mutex_unlock(&mutex);
		for (volatile int k = 0; k < 20; k++)
			;
	}
	return 0;
}

static void contended(const char *name, int threads)
{
	double best[5];
	long n = 200000 / part / threads;
	for (int round = 0; round < 5; round++) {
		pthread_t thread[8];
		double begun = now();
		for (int i = 0; i < threads; i++)
			pthread_create(&thread[i], 0, locks, (void *)n);
		for (int i = 0; i < threads; i++)
			pthread_join(thread[i], 0);
		best[round] = (now() - begun) / (n * threads);
	}
	report(name, median(best, 5));
}

static void sleeps(const char *name, long ns)
{
	double best[5];
	long n = 1000 / part + 5;
	for (int round = 0; round < 5; round++) {
		double begun = now();
		for (long i = 0; i < n; i++)
			nanosleep(&(struct timespec){ 0, ns }, 0);
		best[round] = (now() - begun) / n;
	}
	report(name, median(best, 5));
}

static void yield_alone(void)
{
	long n = 200000 / part;
	double begun = now();
	for (long i = 0; i < n; i++)
		sched_yield();
	report("sched_yield, nobody else ready", (now() - begun) / n);
}

static volatile int over;

static void *computes(void *cpu)
{
	pin((int)(long)cpu);
	while (!over)
		shared++;
	return 0;
}

static double had[2];

static void *has(void *which)
{
	struct timespec t;
	int n = (long)which >> 8, nice_value = (long)which & 255;
	pin(0);
	if (n && setpriority(PRIO_PROCESS, syscall(SYS_gettid), nice_value))
		fail("setpriority");
	while (!over)
		shared++;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	had[n] = t.tv_sec + t.tv_nsec / 1e9;
	return 0;
}

static int share(int nice_value)
{
	pthread_t threads[2];
	for (long n = 0; n < 2; n++)
		pthread_create(&threads[n], 0, has, (void *)(n << 8 | nice_value));
	sleep(1);
	over = 1;
	for (int n = 0; n < 2; n++)
		pthread_join(threads[n], 0);
	printf("%.6f %.6f\n", had[0], had[1]);
	return 0;
}

static void serve(int port)
{
	int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 1))
		fail("listen");
	int connection = accept(listener, 0, 0);
	if (connection < 0)
		fail("accept");
	setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	echo(connection, connection);
}

int main(int argc, char **argv)
{
	/* By its path: the processes below are started by it. */
	self = argv[0];
	if (argc > 3 && !strcmp(argv[1], "echo")) {
		pin(atoi(argv[3]));
		echo(0, 1);
		_exit(0);
	}
	if (argc > 2 && !strcmp(argv[1], "serve")) {
		pthread_t thread;
		pin(0);
		if (argc > 3)
			pthread_create(&thread, 0, computes, (void *)0L);
		serve(atoi(argv[2]));
		_exit(0);
	}
	if (argc > 2 && !strcmp(argv[1], "share"))
		return share(atoi(argv[2]));
	if (argc > 1 && (part = atol(argv[1])) < 1)
		return 1;
	cpu_set_t all;
	sched_getaffinity(0, sizeof all, &all);
	pin(0);
	condition("condition variable, same core: round trip", 0);
	pipes("pipes, same core: round trip", 0, trips);
	processes("pipes between processes, same core: round trip", 0, trips);
	yield_alone();
	create();
	/* Nobody else wants the lock. */
	contended("mutex, 1 thread: lock, work, unlock", 1);
	sleeps("nanosleep of 1 us", 1000);
	sleeps("nanosleep of 100 us", 100000);
	if (CPU_COUNT(&all) > 1) {
		condition("condition variable, two cores: round trip", 1);
		condition_parked("condition variable to a core that sleeps: one way");
		pipes("pipes, two cores: round trip", 1, trips);
		pipes("pipes to a core that sleeps: round trip", 1, trips_parked);
		processes("pipes between processes, two cores: round trip", 1, trips);
		processes("pipes to a process whose core sleeps: round trip", 1, trips_parked);
	}
	sched_setaffinity(0, sizeof all, &all);
	contended("mutex, 2 threads: lock, work, unlock", 2);
	contended("mutex, 4 threads: lock, work, unlock", 4);
	return 0;
}
