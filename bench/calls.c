/* Times system calls: prints a name and the nanoseconds that one takes, a line each.
 * calls [PART]: does a PARTth of the work, for slow machines. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "mark.h"

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static int file, event, poller, pair[2], pipes[2];
static char buffer[4096];

static void null_call(void) { getppid(); }
/* Only the instruction, in no function of the C library's. */
static void bare_call(void)
{
	long r;
	__asm__ volatile("syscall" : "=a"(r) : "a"(SYS_getppid) : "rcx", "r11", "memory");
}
static void other_call(void) { getuid(); }
static void clock_call(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); }
static void read_file(void) { if (pread(file, buffer, 4096, 0) != 4096) exit(1); }
static void stat_file(void) { struct stat s; if (fstat(file, &s)) exit(1); }
static void open_file(void) { int fd = open("/etc/passwd", O_RDONLY); if (fd < 0) exit(1); close(fd); }
static void event_round(void) { uint64_t v = 1; if (write(event, &v, 8) != 8 || read(event, &v, 8) != 8) exit(1); }
static void epoll_none(void) { struct epoll_event e; if (epoll_wait(poller, &e, 1, 0) != 0) exit(1); }
static void pipe_round(void) { if (write(pipes[1], buffer, 64) != 64 || read(pipes[0], buffer, 64) != 64) exit(1); }
static void unix_round(void) { if (send(pair[0], buffer, 64, 0) != 64 || recv(pair[1], buffer, 64, 0) != 64) exit(1); }
static void map_page(void)
{
	char *p = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED) exit(1);
	*p = 1;
	munmap(p, 4096);
}

/* Pages that nobody has touched yet, in one mapping: the next of them. */
static char *fresh;
static void touch_page(void) { *fresh = 1; fresh += 4096; }

static long part = 1;

static void measure(const char *name, void (*f)(void), long n)
{
	double best = 1e18;
	n /= part;
	for (int round = 0; round < 7; round++) {
		char *pages = MAP_FAILED;
		if (f == touch_page) {
			fresh = pages = mmap(0, n * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			/* What is asked is what a page costs, not a huge one. */
			if (pages == MAP_FAILED || madvise(pages, n * 4096, MADV_NOHUGEPAGE))
				exit(1);
		}
		double begun = now();
		if (round == 6)
			MARK(1);
		for (long i = 0; i < n; i++)
			f();
		if (round == 6)
			MARK(2);
		double t = (now() - begun) / n;
		if (t < best)
			best = t;
		if (pages != MAP_FAILED)
			munmap(pages, n * 4096);
	}
	/* The number behind the name is how many calls lie between the marks. */
	printf("%s %ld %.2f\n", name, n, best);
	fflush(stdout);
}

static int to[2], from[2];

static void *echo(void *unused)
{
	char c;
	(void)unused;
	while (read(to[0], &c, 1) == 1)
		if (write(from[1], &c, 1) != 1)
			exit(1);
	return 0;
}

static void switch_round(void)
{
	char c = 0;
	if (write(to[1], &c, 1) != 1 || read(from[0], &c, 1) != 1)
		exit(1);
}

static int turn, over;

static void *futex_echo(void *unused)
{
	(void)unused;
	while (!over) {
		syscall(SYS_futex, &turn, FUTEX_WAIT_PRIVATE, 0, NULL);
		if (__atomic_exchange_n(&turn, 0, __ATOMIC_SEQ_CST))
			syscall(SYS_futex, &turn, FUTEX_WAKE_PRIVATE, 1);
	}
	return 0;
}

static void futex_round(void)
{
	__atomic_store_n(&turn, 1, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, &turn, FUTEX_WAKE_PRIVATE, 1);
	while (__atomic_load_n(&turn, __ATOMIC_SEQ_CST))
		syscall(SYS_futex, &turn, FUTEX_WAIT_PRIVATE, 1, NULL);
}

static void *yields(void *unused)
{
	(void)unused;
	while (!__atomic_load_n(&over, __ATOMIC_SEQ_CST))
		sched_yield();
	return 0;
}

static void yield_round(void) { sched_yield(); }

/* With another thread, on this thread's processor. */
static void measure_with(const char *name, void *(*other)(void *), void (*f)(void), long n)
{
	cpu_set_t before, one;
	pthread_t t;
	sched_getaffinity(0, sizeof before, &before);
	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	if (sched_setaffinity(0, sizeof one, &one))
		exit(1);
	over = turn = 0;
	pthread_create(&t, 0, other, 0);
	measure(name, f, n);
	__atomic_store_n(&over, 1, __ATOMIC_SEQ_CST);
	__atomic_store_n(&turn, 1, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, &turn, FUTEX_WAKE_PRIVATE, 1);
	pthread_join(t, 0);
	sched_setaffinity(0, sizeof before, &before);
}

int main(int argc, char **argv)
{
	if (argc > 1 && (part = atol(argv[1])) < 1)
		return 1;
	char path[] = "calls-XXXXXX";
	file = mkstemp(path);
	unlink(path);
	if (write(file, buffer, 4096) != 4096)
		return 1;
	event = eventfd(0, 0);
	poller = epoll_create1(0);
	struct epoll_event e = { .events = EPOLLIN };
	epoll_ctl(poller, EPOLL_CTL_ADD, event, &e);
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) || pipe(pipes) || pipe(to) || pipe(from))
		return 1;
	measure("null system call (getppid)", null_call, 300000);
	measure("null system call, without the C library", bare_call, 300000);
	measure("system call with all its saving (getuid)", other_call, 300000);
	measure("clock_gettime", clock_call, 300000);
	measure("fstat", stat_file, 100000);
	measure("pread of 4 KiB from the cache", read_file, 50000);
	measure("open and close", open_file, 20000);
	measure("eventfd write and read", event_round, 50000);
	measure("epoll_wait of nothing", epoll_none, 100000);
	measure("pipe, 64 bytes there and back", pipe_round, 50000);
	measure("Unix socket, 64 bytes there and back", unix_round, 50000);
	measure("mmap, touch, munmap", map_page, 5000);
	measure("touch of a fresh page", touch_page, 5000);
	pthread_t t;
	pthread_create(&t, 0, echo, 0);
	measure("two threads over pipes, round trip", switch_round, 5000);
	close(to[1]);
	pthread_join(t, 0);
	measure_with("sched_yield to another thread, and on", yields, yield_round, 50000);
	measure_with("two threads of one core over futexes, round trip", futex_echo, futex_round, 20000);
	return 0;
}
