/* Two processors that each have a thread which asks the system for all kinds of things, and one that computes. How far each is
 * stands in a file, where the test sees it, in a machine's memory by the words behind it; the test says there when to stop.
 * frozen FILE */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct words {
	atomic_ulong stop, works[2], computes[2], mark[3];
} *words;

static _Atomic unsigned bad;

static void pin(int cpu)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof set, &set))
		bad++;
}

static void *nothing(void *p) { return p; }

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned long locked, told[2];
static int shared_pipe[2];

static void one_round(int me, unsigned n)
{
	char path[32], byte = me;
	int pipes[2];
	/* Of its own: pipes, memory, files, events, threads. */
	if (pipe(pipes) || write(pipes[1], &byte, 1) != 1 || read(pipes[0], &byte, 1) != 1 || byte != me)
		bad++;
	close(pipes[0]);
	close(pipes[1]);
	char *p = mmap(0, 1 << 18, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	p[n % (1 << 18)] = 1;
	mprotect(p, 4096, PROT_READ);
	munmap(p, 1 << 18);
	snprintf(path, sizeof path, "/tmp/frozen-%d-%d", me, n % 5);
	int fd = open(path, O_RDWR | O_CREAT, 0600);
	struct stat s;
	if (fd < 0 || write(fd, path, 10) != 10 || fstat(fd, &s) || s.st_size < 10)
		bad++;
	close(fd);
	if (n % 5 == 4)
		unlink(path);
	int e = eventfd(0, 0), poll = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN };
	unsigned long one = 1;
	epoll_ctl(poll, EPOLL_CTL_ADD, e, &event);
	if (write(e, &one, 8) != 8 || epoll_wait(poll, &event, 1, -1) != 1)
		bad++;
	close(e);
	close(poll);
	pthread_t t;
	if (pthread_create(&t, 0, nothing, 0))
		bad++;
	else
		pthread_join(t, 0);
	if (n % 16 == 0) {
		DIR *d = opendir("/proc/self/task");
		while (d && readdir(d))
			;
		closedir(d);
		nanosleep(&(struct timespec){ 0, 20000 }, 0);
	}
	/* And of both: a lock, and a pipe that never runs dry for long. */
	pthread_mutex_lock(&lock);
	locked++;
	told[me]++;
	pthread_mutex_unlock(&lock);
	if (write(shared_pipe[1], &byte, 1) != 1 || read(shared_pipe[0], &byte, 1) != 1)
		bad++;
}

static void *works(void *which)
{
	int me = (int)(long)which;
	pin(me);
	for (unsigned n = 0; !words->stop; n++) {
		one_round(me, n);
		words->works[me]++;
	}
	return 0;
}

static void *computes(void *which)
{
	int me = (int)(long)which;
	pin(me);
	while (!words->stop)
		words->computes[me]++;
	return 0;
}

int main(int argc, char **argv)
{
	pthread_t t[4];
	int fd = open(argv[1], O_RDWR | O_CREAT, 0600);
	if (fd < 0 || ftruncate(fd, 4096))
		return 1;
	words = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (words == MAP_FAILED || pipe(shared_pipe))
		return 1;
	for (unsigned long n = 0; n < 3; n++)
		words->mark[n] = 0x66726f7a656e0000 + n;
	for (long n = 0; n < 2; n++) {
		pthread_create(&t[n], 0, works, (void *)n);
		pthread_create(&t[n + 2], 0, computes, (void *)n);
	}
	for (int n = 0; n < 4; n++)
		pthread_join(t[n], 0);
	printf("bad %u of %lu, %lu\n", bad, locked, locked - told[0] - told[1]);
	return 0;
}
