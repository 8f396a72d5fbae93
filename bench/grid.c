/* Loads for `cargo xtask bench grid`, in a cell:
 * grid start [NAME=VALUE ...] PROGRAM ARGUMENT ... [, ...]   starts programs side by side, ends when one does
 * grid rounds PROGRAM ARGUMENT ...                           runs a program for each line that comes, and says "done"
 * grid cached FILE CORES        a thread on each core opens FILE.CORE, reads 32 KiB, closes it and looks at what it read
 * grid unseen FILE CORES        the same, and doesn't look
 * grid disk DIRECTORY THREADS   threads read the directory's files again and again, past caches
 * grid flood RESOURCE THREADS SECONDS DIRECTORY    keeps a resource busy in every second phase of so many seconds
 * grid paced RESOURCE PHASES SECONDS DIRECTORY     uses the resource as a polite program would; says how it went:
 *     operations in a request, then for quiet and flooded phases: requests wanted, requests done, p50 and p99 in us, and the
 *     p99 of the phase in the middle */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void sleep_until(uint64_t at)
{
	struct timespec t = { at / 1000000000, at % 1000000000 };
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, 0) == EINTR) {}
}

static pid_t spawn(char **arguments, char **environment)
{
	pid_t pid;
	int error = posix_spawnp(&pid, arguments[0], 0, 0, arguments, environment);
	if (error) {
		fprintf(stderr, "%s: %s\n", arguments[0], strerror(error));
		exit(1);
	}
	return pid;
}

static int start(char **argv)
{
	int known = 0;
	while (environ[known]) known++;
	while (*argv) {
		int words = 0;
		while (argv[words] && strcmp(argv[words], ",")) words++;
		char *next = argv[words];
		argv[words] = 0;
		char **environment = calloc(known + words + 1, sizeof *environment);
		memcpy(environment, environ, known * sizeof *environment);
		for (int n = known; *argv && strchr(*argv, '='); argv++, words--) environment[n++] = *argv;
		spawn(argv, environment);
		argv += words + (next != 0);
	}
	int status;
	wait(&status);
	fprintf(stderr, "a program ended with %#x\n", status);
	return 1;
}

static int rounds(char **argv)
{
	char line[64];
	while (fgets(line, sizeof line, stdin)) {
		int status;
		pid_t pid = spawn(argv, environ);
		if (waitpid(pid, &status, 0) != pid || status != 0) {
			fprintf(stderr, "%s ended with %#x\n", argv[0], status);
			return 1;
		}
		puts("done");
		fflush(stdout);
	}
	return 0;
}

static void stay_on(int core)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(core, &set);
	if (sched_setaffinity(0, sizeof set, &set)) fail("sched_setaffinity");
}

static int made(const char *name, size_t size)
{
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0 || ftruncate(fd, size)) fail(name);
	char *bytes = malloc(size);
	memset(bytes, 'x', size);
	if (pwrite(fd, bytes, size, 0) != (ssize_t)size) fail(name);
	free(bytes);
	return fd;
}

static const char *cached_name;
static int looks;

static __attribute__((noreturn)) void *read_cached(void *core)
{
	char name[256], bytes[32768];
	stay_on((intptr_t)core);
	snprintf(name, sizeof name, "%s.%d", cached_name, (int)(intptr_t)core);
	close(made(name, sizeof bytes));
	for (;;) {
		int fd = open(name, O_RDONLY);
		if (fd < 0 || read(fd, bytes, sizeof bytes) != sizeof bytes || close(fd)) fail(name);
		unsigned sum = 0;
		for (size_t n = 0; looks && n < sizeof bytes; n++) sum = sum * 31 + (unsigned char)bytes[n];
		__asm__ volatile("" : : "r"(sum));
	}
}

/* Threads that do this, each with its number; it never ends. */
static void run_threads(int count, void *(*what)(void *))
{
	pthread_t thread;
	for (int n = 0; n < count; n++)
		if (pthread_create(&thread, 0, what, (void *)(intptr_t)n)) fail("pthread_create");
	for (;;) pause();
}

enum { PIECE = 128 << 10 };
static int files[1024], files_len;
static off_t file_size;
static uint64_t pieces;

static __attribute__((noreturn)) void *read_disk(void *unused)
{
	void *bytes;
	(void)unused;
	if (posix_memalign(&bytes, 4096, PIECE)) fail("memory");
	for (;;) {
		uint64_t n = __atomic_fetch_add(&pieces, 1, __ATOMIC_RELAXED);
		/* Files in turn, so that neighbours in time are no neighbours on the disk. */
		off_t at = (off_t)(n / files_len) * PIECE % file_size;
		if (pread(files[n % files_len], bytes, PIECE, at) != PIECE) fail("pread");
	}
}

static void disk(const char *directory, int threads)
{
	DIR *dir = opendir(directory);
	struct dirent *e;
	struct stat s;
	if (!dir || chdir(directory)) fail(directory);
	while ((e = readdir(dir)) && files_len < 1024) {
		if (e->d_name[0] == '.') continue;
		int fd = open(e->d_name, O_RDONLY | O_DIRECT);
		if (fd < 0 || fstat(fd, &s)) fail(e->d_name);
		file_size = s.st_size;
		files[files_len++] = fd;
	}
	run_threads(threads, read_disk);
}

/* What uses each resource. Each thread has its own of everything. */
static const char *work_directory;
struct mine {
	int file, direct, pipe[2], udp, timer;
	struct sockaddr_in address;
	char name[256], *bytes;
};

static void use_thread(struct mine *m)
{
	uint64_t x = m->file;
	for (int n = 0; n < 400; n++) x = x * 6364136223846793005ull + 1442695040888963407ull;
	__asm__ volatile("" : : "r"(x));
}
static void use_process(struct mine *m) { (void)m; if (kill(getpid(), 0)) fail("kill"); }
static void use_space(struct mine *m)
{
	(void)m;
	char *p = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED) fail("mmap");
	*p = 1;
	munmap(p, 4096);
}
static void use_memory(struct mine *m)
{
	(void)m;
	char *p = mmap(0, 256 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED) fail("mmap");
	for (int n = 0; n < 256 << 10; n += 4096) p[n] = 1;
	munmap(p, 256 << 10);
}
static void use_files(struct mine *m)
{
	int fd = open(m->name, O_RDONLY);
	if (fd < 0 || close(fd)) fail(m->name);
}
static void use_cache(struct mine *m) { if (pread(m->file, m->bytes, 32768, 0) != 32768) fail("pread"); }
static void use_pipe(struct mine *m)
{
	if (write(m->pipe[1], m->bytes, 4096) != 4096 || read(m->pipe[0], m->bytes, 4096) != 4096) fail("pipe");
}
static void use_socket(struct mine *m)
{
	int value;
	socklen_t len = sizeof value;
	if (getsockopt(m->udp, SOL_SOCKET, SO_TYPE, &value, &len)) fail("getsockopt");
}
/* To a socket whose buffer is full: what it does not take is dropped. */
static void use_write(struct mine *m)
{
	if (sendto(m->udp, m->bytes, 1024, 0, (void *)&m->address, sizeof m->address) != 1024) fail("sendto");
}
static void use_read(struct mine *m) { if (pread(m->direct, m->bytes, 4096, 0) != 4096) fail("pread"); }
static void use_completion(struct mine *m)
{
	struct pollfd p = { m->udp, POLLIN, 0 };
	use_write(m);
	/* It may be lost, where too much is sent. */
	if (poll(&p, 1, 100) > 0) recv(m->udp, m->bytes, 1024, MSG_DONTWAIT);
}
static void use_timer(struct mine *m)
{
	struct itimerspec t = { { 0, 0 }, { 1000, 0 } };
	if (timerfd_settime(m->timer, 0, &t, 0)) fail("timerfd_settime");
}
static void use_wait(struct mine *m)
{
	struct pollfd p = { m->pipe[0], POLLIN, 0 };
	if (poll(&p, 1, 0) != 0) fail("poll");
}

/* `most`: operations in a request at most; of a device there is not so much. */
static const struct {
	const char *name;
	void (*use)(struct mine *);
	int most;
} resources[] = {
	{ "thread", use_thread, 1 << 20 }, { "process", use_process, 1 << 20 }, { "address-space", use_space, 1 << 20 },
	{ "memory", use_memory, 1 << 20 }, { "files", use_files, 1 << 20 }, { "file-cache", use_cache, 1 << 20 },
	{ "pipe", use_pipe, 1 << 20 }, { "socket", use_socket, 1 << 20 }, { "device-read", use_read, 16 },
	{ "device-write", use_write, 64 }, { "completion", use_completion, 1 << 20 }, { "timer", use_timer, 1 << 20 },
	{ "wait", use_wait, 1 << 20 },
};
static void (*use)(struct mine *);
static int most;

static void choose(const char *name)
{
	for (size_t n = 0; n < sizeof resources / sizeof *resources; n++)
		if (!strcmp(resources[n].name, name)) {
			use = resources[n].use;
			most = resources[n].most;
		}
	if (!use) fail(name);
}

static struct mine *prepared(int number)
{
	struct mine *m = calloc(1, sizeof *m);
	socklen_t len = sizeof m->address;
	if (posix_memalign((void **)&m->bytes, 4096, 32768)) fail("memory");
	snprintf(m->name, sizeof m->name, "/tmp/grid-%d-%d", getpid(), number);
	m->file = made(m->name, 32768);
	char name[300];
	snprintf(name, sizeof name, "%s/direct-%d-%d", work_directory, getpid(), number);
	close(made(name, 32768));
	m->direct = open(name, O_RDONLY | O_DIRECT);
	m->udp = socket(AF_INET, SOCK_DGRAM, 0);
	m->address.sin_family = AF_INET;
	m->address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	m->timer = timerfd_create(CLOCK_MONOTONIC, 0);
	if (m->direct < 0 || m->udp < 0 || m->timer < 0 || pipe(m->pipe)
	    || bind(m->udp, (void *)&m->address, len) || getsockname(m->udp, (void *)&m->address, &len))
		fail("preparing");
	return m;
}

/* Phases are of the clock: even ones are quiet, odd ones are flooded. */
static uint64_t phase_ns;

static __attribute__((noreturn)) void *flood(void *number)
{
	struct mine *m = prepared((intptr_t)number);
	for (;;) {
		uint64_t t = now();
		if (t / phase_ns % 2 == 0) {
			sleep_until((t / phase_ns + 1) * phase_ns);
			continue;
		}
		for (int n = 0; n < 16; n++) use(m);
	}
}

enum { A_SECOND = 200, WANTED_NS = 600000 };

static int by_size(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;
	return (*x > *y) - (*x < *y);
}

static void paced(int phases)
{
	struct mine *m = prepared(0);
	/* A request is what takes 0.6 ms when nobody disturbs: 12 % of the time, or less than the reservation on a machine that gets
	 * twice as slow. */
	uint64_t first = (now() / phase_ns / 2 + 1) * 2 * phase_ns;
	sleep_until(first);
	uint64_t took[201];
	for (int tries = 0; tries < 201; tries++) {
		uint64_t t = now();
		for (int n = 0; n < 16; n++) use(m);
		took[tries] = now() - t;
	}
	qsort(took, 201, 8, by_size);
	int operations = WANTED_NS * 16ull / took[100];
	if (operations > most) operations = most;
	if (operations < 1) operations = 1;
	printf("%d\n", operations);
	fflush(stdout);
	uint64_t gap = 1000000000 / A_SECOND, each = phase_ns / gap + 1, wanted[2] = {0}, done[2] = {0};
	uint64_t *times[2] = { calloc(phases * each, 8), calloc(phases * each, 8) };
	uint64_t *slow[2] = { calloc(phases, 8), calloc(phases, 8) };
	for (int phase = 2; phase < phases + 2; phase++) {
		uint64_t end = first + (phase + 1) * phase_ns;
		/* The tenth in which the phase begins does not count. */
		uint64_t before = done[phase % 2];
		for (uint64_t at = end - phase_ns * 9 / 10; at + gap <= end; at += gap) {
			wanted[phase % 2]++;
			/* Who is late at the end of a phase does not catch up in the next. */
			if (now() >= end) continue;
			sleep_until(at);
			for (int n = 0; n < operations; n++) use(m);
			uint64_t t = now();
			if (t < end) times[phase % 2][done[phase % 2]++] = t - at;
		}
		uint64_t *mine = times[phase % 2] + before, count = done[phase % 2] - before;
		qsort(mine, count, 8, by_size);
		slow[phase % 2][phase / 2 - 1] = count ? mine[count * 99 / 100] : 0;
	}
	for (int n = 0; n < 2; n++) {
		qsort(times[n], done[n], 8, by_size);
		qsort(slow[n], phases / 2, 8, by_size);
		printf("%lu %lu %.1f %.1f %.1f\n", wanted[n], done[n], done[n] ? times[n][done[n] / 2] / 1e3 : 0,
		       done[n] ? times[n][done[n] * 99 / 100] / 1e3 : 0, slow[n][phases / 4] / 1e3);
	}
	fflush(stdout);
	for (;;) pause();
}

int main(int argc, char **argv)
{
	const char *mode = argc > 2 ? argv[1] : "";
	if (!strcmp(mode, "start")) return start(argv + 2);
	if (!strcmp(mode, "rounds")) return rounds(argv + 2);
	if (argc == 4 && (!strcmp(mode, "cached") || !strcmp(mode, "unseen"))) {
		looks = !strcmp(mode, "cached");
		cached_name = argv[2];
		run_threads(atoi(argv[3]), read_cached);
	}
	if (argc == 4 && !strcmp(mode, "disk")) disk(argv[2], atoi(argv[3]));
	if (argc == 6) {
		choose(argv[2]);
		phase_ns = atof(argv[4]) * 1e9;
		work_directory = argv[5];
		if (!strcmp(mode, "flood")) run_threads(atoi(argv[3]), flood);
		if (!strcmp(mode, "paced")) paced(atoi(argv[3]));
	}
	fprintf(stderr, "grid: see the head of bench/grid.c\n");
	return 2;
}
