// Switches the last core off and on, again and again, while threads compute, sleep, and talk by pipes, condition variables,
// sockets and timers. For a cell: on Linux it would take a processor from the whole machine.
//
//   resize CHANGES
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/sysinfo.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

static atomic_int stop, bad;
static atomic_long late;
#define WRONG(...) (atomic_fetch_add(&bad, 1), fprintf(stderr, __VA_ARGS__))

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

// Of each thread that computes: how far it is, and where it was then.
static struct { _Alignas(64) atomic_long turns; atomic_int cpu; } computes[3];

static double block(double x)
{
	double a[8];
	for (int i = 0; i < 8; i++)
		a[i] = x + i;
	for (int n = 0; n < 2000; n++)
		for (int i = 0; i < 8; i++)
			a[i] = a[i] * 0.999 + 1.0 / (1 + i);
	x = 0;
	for (int i = 0; i < 8; i++)
		x += a[i];
	return x;
}

static void *compute(void *p)
{
	long n = (long)p;
	double want = block(n);
	while (!stop) {
		if (block(n) != want)
			WRONG("thread %ld computes something else\n", n);
		computes[n].cpu = sched_getcpu();
		computes[n].turns++;
		// Some go to sleep with registers in use.
		if (n && computes[n].turns % 16 == 0) {
			register double kept __asm__("xmm15") = want;
			struct timespec t = {0, 50000};
			__asm__ volatile("" : "+x"(kept));
			nanosleep(&t, 0);
			__asm__ volatile("" : "+x"(kept));
			if (kept != want)
				WRONG("thread %ld lost a register\n", n);
		}
	}
	return 0;
}

static void *sleeper(void *p)
{
	while (!stop) {
		uint64_t at = now() + 100000;
		struct timespec t = {at / 1000000000, at % 1000000000};
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, 0);
		long by = now() - at;
		if (by > late)
			late = by;
	}
	return 0;
}

static void *ticks(void *p)
{
	int fd = timerfd_create(CLOCK_MONOTONIC, 0), e = epoll_create1(0);
	struct itimerspec every = {{0, 1000000}, {0, 1000000}};
	struct epoll_event ev = {EPOLLIN};
	uint64_t begun = now(), sum = 0, n;
	timerfd_settime(fd, 0, &every, 0);
	// By now it has begun: this thread may have had to wait for a core before.
	uint64_t runs = now();
	epoll_ctl(e, EPOLL_CTL_ADD, fd, &ev);
	while (!stop) {
		if (epoll_wait(e, &ev, 1, 10000) != 1) {
			WRONG("a timer is lost\n");
			break;
		}
		if (read(fd, &n, 8) == 8)
			sum += n;
	}
	// What is read now has all that were due before, however long this thread has to wait for a core around that.
	uint64_t least = (now() - runs) / 1000000;
	if (epoll_wait(e, &ev, 1, 10000) != 1 || read(fd, &n, 8) != 8)
		WRONG("the last tick is lost\n");
	else
		sum += n;
	uint64_t most = (now() - begun) / 1000000;
	if (sum > most + 1 || sum + 2 < least)
		WRONG("%lu ticks in %lu to %lu ms\n", sum, least, most);
	return 0;
}

// What one writes the other one has to answer.
struct pair { int fd[2]; };
static void *asks(void *p)
{
	struct pair *q = p;
	for (uint32_t n = 1, back; ; n++) {
		uint32_t say = stop ? 0 : n;
		if (write(q->fd[0], &say, 4) != 4 || read(q->fd[0], &back, 4) != 4 || back != ~say)
			WRONG("an answer is lost or wrong\n");
		if (!say)
			return 0;
	}
}
static void *answers(void *p)
{
	struct pair *q = p;
	int e = epoll_create1(0);
	struct epoll_event ev = {EPOLLIN};
	epoll_ctl(e, EPOLL_CTL_ADD, q->fd[1], &ev);
	for (uint32_t n = 1; n;) {
		if (epoll_wait(e, &ev, 1, 10000) != 1)
			WRONG("a question is lost\n"), exit(1);
		if (read(q->fd[1], &n, 4) != 4)
			WRONG("a question is wrong\n");
		uint32_t back = ~n;
		if (write(q->fd[1], &back, 4) != 4)
			WRONG("an answer can't be sent\n");
	}
	return 0;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static long ball;
static void *plays(void *p)
{
	long me = (long)p;
	pthread_mutex_lock(&lock);
	while (!stop) {
		while (ball % 2 != me && !stop)
			pthread_cond_wait(&changed, &lock);
		ball++;
		pthread_cond_signal(&changed);
	}
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	return 0;
}

static char path[80];
static int switch_core(int on)
{
	int fd = open(path, O_WRONLY);
	int r = fd < 0 ? -1 : write(fd, on ? "1\n" : "0\n", 2) == 2 ? 0 : -1;
	if (r)
		WRONG("%s: %s\n", path, strerror(errno));
	close(fd);
	return r;
}
static void expect_cores(int n)
{
	cpu_set_t set;
	sched_getaffinity(0, sizeof set, &set);
	if (CPU_COUNT(&set) != n || get_nprocs() != n)
		WRONG("%d cores by affinity, %d by /sys, and not %d\n", CPU_COUNT(&set), get_nprocs(), n);
}
static int by_size(const void *a, const void *b)
{
	return *(uint64_t *)a < *(uint64_t *)b ? -1 : *(uint64_t *)a > *(uint64_t *)b;
}

int main(int argc, char **argv)
{
	int changes = atoi(argv[1]), cores = get_nprocs(), last = cores - 1;
	uint64_t *took = calloc(changes + 1, 8);
	pthread_t all[16];
	int n = 0;
	sprintf(path, "/sys/devices/system/cpu/cpu%d/online", last);
	for (long i = 0; i < 3; i++)
		pthread_create(&all[n++], 0, compute, (void *)i);
	// This one would be on the last core only.
	cpu_set_t only;
	CPU_ZERO(&only);
	CPU_SET(last, &only);
	pthread_setaffinity_np(all[2], sizeof only, &only);
	pthread_create(&all[n++], 0, sleeper, 0);
	pthread_create(&all[n++], 0, ticks, 0);
	struct pair local, inet;
	socketpair(AF_UNIX, SOCK_STREAM, 0, local.fd);
	int l = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in a = {AF_INET, 0, {htonl(INADDR_LOOPBACK)}};
	socklen_t len = sizeof a;
	bind(l, (void *)&a, sizeof a);
	listen(l, 1);
	getsockname(l, (void *)&a, &len);
	inet.fd[0] = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(inet.fd[0], (void *)&a, sizeof a))
		perror("connect");
	inet.fd[1] = accept(l, 0, 0);
	pthread_create(&all[n++], 0, asks, &local);
	pthread_create(&all[n++], 0, answers, &local);
	pthread_create(&all[n++], 0, asks, &inet);
	pthread_create(&all[n++], 0, answers, &inet);
	for (long i = 0; i < 2; i++)
		pthread_create(&all[n++], 0, plays, (void *)i);
	unsigned seed = 1;
	for (int i = 0; i < changes && !bad; i++) {
		int on = i % 2;
		struct timespec t = {0, rand_r(&seed) % 100000};
		nanosleep(&t, 0);
		uint64_t begun = now();
		if (switch_core(on))
			break;
		took[i] = now() - begun;
		expect_cores(cores - !on);
		if (i % 20 >= 2)
			continue;
		// Now and then all are looked at: where they are by now.
		for (int k = 0; k < 3; k++) {
			long turns = computes[k].turns;
			while (computes[k].turns < turns + 2)
				usleep(100);
			int cpu = computes[k].cpu;
			if (on ? k == 2 && cpu != last : cpu == last)
				WRONG("thread %d runs on core %d after change %d\n", k, cpu, i);
		}
		if (!on && pthread_setaffinity_np(all[0], sizeof only, &only) != EINVAL)
			WRONG("a thread may choose a core that is gone\n");
	}
	switch_core(1);
	stop = 1;
	for (int i = 0; i < n; i++)
		pthread_join(all[i], 0);
	qsort(took, changes, 8, by_size);
	printf("bad %d of %d changes: %lu us each, %lu of one in 100, %lu at most; %ld us late; %ld turns\n", bad, changes,
	       took[changes / 2] / 1000, took[changes - changes / 100 - 1] / 1000, took[changes - 1] / 1000,
	       late / 1000, ball);
	return bad != 0;
}
