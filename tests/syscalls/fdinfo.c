// What /proc/self/fdinfo says of files of each kind, and the files of a process that hold a number for it.
#include "case.h"
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/sysmacros.h>
#include <sys/timerfd.h>

// The lines that begin with one of these words; up to a second word where what follows differs from run to run.
static void show(int fd, const char *word, const char *until)
{
	char name[64], text[4096];
	snprintf(name, sizeof name, "/proc/self/fdinfo/%d", fd);
	int f = open(name, O_RDONLY);
	int n = read(f, text, sizeof text - 1);
	close(f);
	text[n > 0 ? n : 0] = 0;
	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
		char *end = until ? strstr(line, until) : NULL;
		if (end)
			*end = 0;
		if (strstr(line, word))
			printf("%s\n", line);
	}
	fflush(stdout);
}

static void take(const char *path, const char *value)
{
	char text[64];
	if (value) {
		int fd = open(path, O_WRONLY);
		printf("%s: ", value);
		V(write(fd, value, strlen(value)) == (ssize_t)strlen(value));
		close(fd);
	}
	int fd = open(path, O_RDONLY), n = read(fd, text, sizeof text - 1);
	text[n > 0 ? n : 0] = 0;
	printf("%s: %s", path, text);
	fflush(stdout);
	close(fd);
}

// A line that describes a lock, after its number, with the process and the file as words.
static void lock_line(const char *line)
{
	char kind[16], advisory[16], way[16], from[32], to[32];
	int arrow = strstr(line, "-> ") != NULL, pid;
	unsigned major, minor;
	unsigned long ino;
	struct stat st;
	const char *at = strchr(line, ':') + 2 + 3 * arrow;
	int n = sscanf(at, "%15s %15s %15s %d %x:%x:%lu %31s %31s", kind, advisory, way, &pid, &major, &minor, &ino, from, to);
	if (stat("locked", &st) || n != 9 || st.st_ino != ino)
		return;
	printf("%s%s %s %s %s %s %s %s\n", arrow ? "-> " : "", kind, advisory, way, pid == getpid() ? "mine" : pid == -1 ? "-1" : "another's",
	       makedev(major, minor) == st.st_dev ? "there" : "elsewhere", from, to);
}

static char locks_text[1 << 16];
static void lines_of(const char *name, const char *word, void (*line)(const char *))
{
	int f = open(name, O_RDONLY), n, len = 0;
	while ((n = read(f, locks_text + len, sizeof locks_text - 1 - len)) > 0)
		len += n;
	close(f);
	locks_text[len] = 0;
	for (char *at = strtok(locks_text, "\n"); at; at = strtok(NULL, "\n"))
		if (strstr(at, word))
			line(at + (word[0] == 'l' ? strlen(word) : 0));
	fflush(stdout);
}

static void locks(int fd)
{
	char name[64];
	snprintf(name, sizeof name, "/proc/self/fdinfo/%d", fd);
	printf("of one:\n");
	lines_of(name, "lock:\t", lock_line);
}

// In no order: the host's is not that in which they were taken.
static void all_locks(void)
{
	printf("of all:\n");
	lines_of("/proc/locks", "FLOCK", lock_line);
	lines_of("/proc/locks", "POSIX", lock_line);
	lines_of("/proc/locks", "OFDLCK", lock_line);
}

static int seen;
static void count_line(const char *line)
{
	struct stat st;
	char file[32];
	stat("locked", &st);
	snprintf(file, sizeof file, ":%lu ", (unsigned long)st.st_ino);
	seen += strstr(line, "-> ") && strstr(line, file);
}

static void await_line(const char *word)
{
	seen = 0;
	for (int n = 0; !seen && n < 10000; n++, usleep(1000))
		lines_of("/proc/locks", word, count_line);
}

static void await_lock(void)
{
	int fd = open("locked", O_RDWR);
	fcntl(fd, F_SETLKW, &(struct flock){.l_type = F_RDLCK, .l_start = 12, .l_len = 1});
}

int main(void)
{
	SECTION("eventfd");
	int e = eventfd(300, EFD_SEMAPHORE), d = eventfd(0, 0);
	show(e, "eventfd-count", NULL);
	show(e, "eventfd-semaphore", NULL);
	show(d, "eventfd-count", NULL);
	show(d, "eventfd-semaphore", NULL);

	SECTION("epoll");
	int p = epoll_create1(0), pipes[2];
	pipe(pipes);
	show(p, "tfd", NULL);
	struct epoll_event ev = {EPOLLIN | EPOLLONESHOT, {.u64 = 0x1234}};
	V(epoll_ctl(p, EPOLL_CTL_ADD, e, &ev));
	show(p, "tfd", "pos:");
	V(epoll_wait(p, &ev, 1, 0));
	show(p, "tfd", "pos:");
	ev = (struct epoll_event){EPOLLOUT | EPOLLET, {.u64 = -1}};
	V(epoll_ctl(p, EPOLL_CTL_MOD, e, &ev));
	show(p, "tfd", "pos:");
	V(epoll_ctl(p, EPOLL_CTL_DEL, e, &ev));
	ev = (struct epoll_event){EPOLLIN | EPOLLRDHUP | EPOLLPRI, {.u64 = 0}};
	V(epoll_ctl(p, EPOLL_CTL_ADD, pipes[0], &ev));
	show(p, "tfd", "ino:");

	SECTION("signalfd");
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigaddset(&set, SIGRTMIN);
	int s = signalfd(-1, &set, 0);
	show(s, "sigmask", NULL);
	sigaddset(&set, SIGHUP);
	signalfd(s, &set, 0);
	show(s, "sigmask", NULL);

	SECTION("timerfd");
	int t = timerfd_create(CLOCK_MONOTONIC, 0);
	show(t, "pos", NULL);
	show(t, "clockid", NULL);
	show(t, "it_", NULL);
	struct itimerspec it = {{5, 7}, {1000, 0}};
	V(timerfd_settime(t, 0, &it, NULL));
	show(t, "it_value", "(");
	show(t, "it_interval", NULL);
	it = (struct itimerspec){{0, 0}, {0, 1}};
	V(timerfd_settime(t, TFD_TIMER_ABSTIME, &it, NULL));
	sleep_ms(10);
	show(t, "clockid", NULL);
	show(t, "ticks", NULL);
	show(t, "settime", NULL);
	show(t, "it_", NULL);
	close(t);
	t = timerfd_create(CLOCK_REALTIME, TFD_NONBLOCK);
	show(t, "clockid", NULL);
	show(t, "flags:\t", NULL);

	SECTION("inotify");
	int i = inotify_init();
	show(i, "inotify", NULL);
	// One where nobody else makes anything.
	char quiet[] = "/tmp/fdinfoXXXXXX";
	V(mkdtemp(quiet) == quiet);
	V(inotify_add_watch(i, quiet, IN_CREATE | IN_ONESHOT));
	V(inotify_add_watch(i, "/", IN_ALL_EVENTS | IN_EXCL_UNLINK));
	char name[64], text[4096];
	snprintf(name, sizeof name, "/proc/self/fdinfo/%d", i);
	int f = open(name, O_RDONLY), n = read(f, text, sizeof text - 1);
	text[n] = 0;
	for (char *at = text; (at = strstr(at, "inotify wd:")); at++) {
		unsigned wd, mask;
		unsigned long ino, dev;
		int got = sscanf(at, "inotify wd:%x ino:%lx sdev:%lx mask:%x ignored_mask:0 ", &wd, &ino, &dev, &mask);
		printf("%d: %u %#x\n", got, wd, mask);
	}
	rmdir(quiet);

	SECTION("pidfd");
	pid_t c = fork();
	if (!c)
		_exit(0);
	int pidfd = syscall(SYS_pidfd_open, c, 0);
	snprintf(name, sizeof name, "/proc/self/fdinfo/%d", pidfd);
	f = open(name, O_RDONLY);
	n = read(f, text, sizeof text - 1);
	text[n] = 0;
	P(strtol(strstr(text, "Pid:\t") + 5, NULL, 10) == c);
	P(strtol(strstr(text, "NSpid:\t") + 7, NULL, 10) == c);
	waitpid(c, NULL, 0);
	show(pidfd, "Pid:", NULL);
	show(pidfd, "NSpid:", NULL);

	SECTION("files");
	f = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	struct stat st;
	fstat(f, &st);
	lseek(f, 100, SEEK_SET);
	show(f, "pos", NULL);
	show(f, "flags", NULL);
	snprintf(name, sizeof name, "/proc/self/fdinfo/%d", f);
	int g = open(name, O_RDONLY);
	n = read(g, text, sizeof text - 1);
	text[n] = 0;
	P(strtoul(strstr(text, "ino:\t") + 5, NULL, 10) == st.st_ino);

	SECTION("numbers of a process");
	take("/proc/self/timerslack_ns", NULL);
	take("/proc/self/timerslack_ns", "7000\n");
	P(prctl(PR_GET_TIMERSLACK));
	take("/proc/self/timerslack_ns", "x");
	take("/proc/self/timerslack_ns", "-1");
	take("/proc/self/timerslack_ns", "0x10");
	take("/proc/self/timerslack_ns", "0");
	take("/proc/self/coredump_filter", NULL);
	take("/proc/self/coredump_filter", "0x7f\n");
	take("/proc/self/coredump_filter", "010");
	take("/proc/self/coredump_filter", "4095");
	take("/proc/self/coredump_filter", "hi");
	take("/proc/self/coredump_filter", "5000000000");
	take("/proc/self/coredump_filter", "");
	fflush(stdout);
	c = fork();
	if (!c) {
		take("/proc/self/coredump_filter", NULL);
		_exit(0);
	}
	waitpid(c, NULL, 0);
	V(access("/proc/self/task/self/timerslack_ns", F_OK));
	stat("/proc/self/timerslack_ns", &st);
	X(st.st_mode);
	stat("/proc/self/coredump_filter", &st);
	X(st.st_mode);
	SECTION("locks");
	int l = open("locked", O_RDWR | O_CREAT, 0644), o = open("locked", O_RDWR);
	V(flock(l, LOCK_SH));
	V(fcntl(l, F_SETLK, &(struct flock){.l_type = F_WRLCK, .l_start = 10, .l_len = 5}));
	V(fcntl(o, F_OFD_SETLK, &(struct flock){.l_type = F_RDLCK, .l_start = 100}));
	locks(l);
	locks(o);
	pid_t waits = begin_child(await_lock);
	await_line("-> POSIX");
	all_locks();
	kill(waits, SIGKILL);
	end_child(waits);
	V(flock(l, LOCK_UN));
	close(o);
	locks(l);
	all_locks();
	return 0;
}
