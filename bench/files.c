/* Threads that open, read and close files of one directory in /dev/shm: prints how often all of them did.
 * files PROCESSES THREADS SECONDS same|own [BYTES]
 * THREADS: of each process. same: all read one file; own: each its own. BYTES: what is read each time, 32 KiB. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char dir[64];
static long bytes = 32 << 10;
static int own;
static double end;
static unsigned long *total;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void path_of(char *path, long n)
{
	sprintf(path, "%s/%ld", dir, own ? n : 0L);
}

static void *reads(void *number)
{
	char path[128], *buffer = malloc(bytes);
	unsigned long cycles = 0;
	path_of(path, (long)number);
	while (now() < end)
		for (int i = 0; i < 16; i++, cycles++) {
			int fd = open(path, O_RDONLY);
			if (fd < 0 || read(fd, buffer, bytes) != bytes || close(fd))
				abort();
		}
	__atomic_fetch_add(total, cycles, __ATOMIC_SEQ_CST);
	return 0;
}

/* Runs the threads with these numbers. */
static void run(long from, long to)
{
	pthread_t threads[64];
	for (long n = from; n < to; n++)
		if (pthread_create(&threads[n - from], 0, reads, (void *)n))
			abort();
	for (long n = from; n < to; n++)
		pthread_join(threads[n - from], 0);
}

int main(int argc, char **argv)
{
	if (argc == 9) {
		/* One process of several. */
		strcpy(dir, argv[1]);
		own = atoi(argv[2]);
		bytes = atol(argv[3]);
		end = atof(argv[4]);
		int memory = open(argv[7], O_RDWR);
		total = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
		if (total == MAP_FAILED)
			abort();
		run(atol(argv[5]), atol(argv[6]));
		return 0;
	}
	if (argc < 5)
		return 2;
	int processes = atoi(argv[1]), threads = atoi(argv[2]);
	if (threads < 1 || threads > 64)
		return 2;
	own = !strcmp(argv[4], "own");
	if (argc > 5)
		bytes = atol(argv[5]);
	strcpy(dir, "/dev/shm/files-XXXXXX");
	if (!mkdtemp(dir))
		abort();
	char path[128], sum[128], *buffer = calloc(1, bytes);
	for (long n = 0; n < (own ? processes * threads : 1); n++) {
		path_of(path, n);
		int fd = open(path, O_CREAT | O_WRONLY, 0600);
		if (fd < 0 || write(fd, buffer, bytes) != bytes || close(fd))
			abort();
	}
	sprintf(sum, "%s/sum", dir);
	int memory = open(sum, O_CREAT | O_RDWR, 0600);
	if (memory < 0 || ftruncate(memory, 4096))
		abort();
	total = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	double begun = now();
	end = begun + atof(argv[3]);
	if (processes == 1) {
		run(0, threads);
	} else {
		/* By vfork and exec: a cell has no other way. */
		char words[6][32];
		sprintf(words[0], "%d", own);
		sprintf(words[1], "%ld", bytes);
		sprintf(words[2], "%.6f", end);
		for (int p = 0; p < processes; p++) {
			sprintf(words[3], "%d", p * threads);
			sprintf(words[4], "%d", (p + 1) * threads);
			if (!vfork()) {
				execl(argv[0], argv[0], dir, words[0], words[1], words[2], words[3], words[4], sum, "-", NULL);
				_exit(127);
			}
		}
		int status;
		while (wait(&status) > 0)
			if (status)
				return 1;
	}
	printf("%lu\n", *total);
	for (long n = 0; n < (own ? processes * threads : 1); n++) {
		path_of(path, n);
		unlink(path);
	}
	unlink(sum);
	rmdir(dir);
	return 0;
}
