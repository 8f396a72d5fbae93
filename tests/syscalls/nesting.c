// Epoll instances that watch each other, and openings that go while they are watched; sets of select that are smaller than it is told;
// what a zombie is called; numbers that are as large as they get.
// timeout: 60
// traced: no (it traces its own children)
#include "case.h"
#include <mqueue.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/select.h>
#include <sys/user.h>
#include <linux/futex.h>

static int watch(int instance, int fd)
{
	struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
	return epoll_ctl(instance, EPOLL_CTL_ADD, fd, &e) ? -errno : 0;
}
static int unwatch(int instance, int fd)
{
	return epoll_ctl(instance, EPOLL_CTL_DEL, fd, 0) ? -errno : 0;
}
static int events(int instance)
{
	struct epoll_event e[8];
	return epoll_wait(instance, e, 8, 0);
}
static const char *answer(int r)
{
	return r < 0 ? err_(-r) : "yes";
}
static void close_all(int *fds, int count)
{
	for (int i = 0; i < count; i++)
		close(fds[i]);
}

// A chain, built from either end: where is it too long?
static void chains(void)
{
	int e[10], fd = eventfd(0, 0);
	for (int top = 0; top < 2; top++) {
		for (int i = 0; i < 10; i++)
			e[i] = epoll_create1(0);
		for (int i = 0; i < 9; i++) {
			int at = top ? i : 8 - i;
			printf("%s %d: %s\n", top ? "down" : "up", at, answer(watch(e[at], e[at + 1])));
		}
		// From the end that a file is to be seen from.
		printf("a file at the end: %s\n", answer(watch(e[9], fd)));
		printf("a file at four: %s\n", answer(watch(e[4], fd)));
		eventfd_write(fd, 1);
		for (int i = 0; i < 10; i++)
			printf("%d", events(e[i]));
		printf("\n");
		uint64_t n;
		V(read(fd, &n, sizeof n));
		// Rings.
		printf("a ring: %s\n", answer(watch(e[3], e[1])));
		printf("itself: %s\n", answer(watch(e[3], e[3])));
		// One link less, and there is room.
		printf("without a link: %s", answer(unwatch(e[1], e[2])));
		printf(", %s\n", answer(watch(e[4], e[8])));
		close_all(e, 10);
	}
	// In the middle, between two that are long.
	for (int i = 0; i < 10; i++)
		e[i] = epoll_create1(0);
	for (int i = 0; i < 6; i++)
		if (i != 2)
			printf("part %d: %s\n", i, answer(watch(e[i], e[i + 1])));
	printf("joined: %s\n", answer(watch(e[2], e[3])));
	close_all(e, 10);
	close(fd);
}
// Each of two watches both of the next two: ways up double with each level.
static void diamond(void)
{
	enum { LEVELS = 8 };
	int a[LEVELS], b[LEVELS], fd = eventfd(0, 0);
	for (int i = 0; i < LEVELS; i++)
		a[i] = epoll_create1(0), b[i] = epoll_create1(0);
	for (int i = 0; i + 1 < LEVELS; i++) {
		printf("level %d: %s", i, answer(watch(a[i], a[i + 1])));
		printf(" %s", answer(watch(a[i], b[i + 1])));
		printf(" %s", answer(watch(b[i], a[i + 1])));
		printf(" %s\n", answer(watch(b[i], b[i + 1])));
	}
	for (int i = 0; i < LEVELS; i++) {
		printf("file at %d: %s", i, answer(watch(a[i], fd)));
		printf(" %s\n", answer(watch(b[i], fd)));
	}
	eventfd_write(fd, 1);
	printf("%d %d\n", events(a[0]), events(b[LEVELS - 1]));
	close_all(a, LEVELS);
	close_all(b, LEVELS);
	close(fd);
}
// How many ways of each length there may be up from a file.
static void ways(void)
{
	int fd = eventfd(0, 0), below = epoll_create1(0), above[601], n = 0, r = 0;
	V(watch(below, fd));
	for (; n < 600; n++) {
		above[n] = epoll_create1(0);
		if ((r = watch(above[n], below)))
			break;
	}
	printf("%d instances above one that has a file, then %s\n", n, answer(r));
	close(above[n]);
	// The same when the file comes last.
	V(unwatch(below, fd));
	above[n] = epoll_create1(0);
	printf("one more: %s\n", answer(watch(above[n], below)));
	printf("the file: %s\n", answer(watch(below, fd)));
	close(above[n--]);
	printf("the file: %s\n", answer(watch(below, fd)));
	eventfd_write(fd, 1);
	P(events(above[n]));
	close_all(above, n + 1);
	close(below);
	close(fd);
}
// An opening goes whose file others have open.
static void openings(void)
{
	char path[] = "/tmp/nestingXXXXXX", b[8192];
	V(close(mkstemp(path)));
	unlink(path);
	V(mkfifo(path, 0600));
	int writer = open(path, O_RDWR), e = epoll_create1(0), up = epoll_create1(0);
	V(watch(up, e));
	for (int i = 0; i < 3; i++) {
		int reader = open(path, O_RDONLY | O_NONBLOCK);
		printf("watched: %s", answer(watch(e, reader)));
		V(write(writer, "a", 1));
		printf("events: %d %d\n", events(e), events(up));
		int other = dup(reader);
		close(reader);
		printf("one descriptor less: %d\n", events(e));
		close(other);
		printf("none: %d %d\n", events(e), events(up));
		V(read(writer, b, 10));
		V(write(writer, "a", 1));
		printf("none: %d %d\n", events(e), events(up));
		V(read(writer, b, 10));
	}
	// Many that go unseen: their places are others' then.
	for (int i = 0; i < 2000; i++) {
		int reader = open(path, O_RDONLY | O_NONBLOCK);
		if (watch(e, reader))
			printf("%d: %s\n", i, err_(errno));
		if (i % 2)
			write(writer, "a", 1), read(reader, b, 1);
		close(reader);
	}
	int reader = open(path, O_RDONLY | O_NONBLOCK);
	V(write(writer, "a", 1));
	printf("the last: %s", answer(watch(e, reader)));
	printf(" %d\n", events(e));
	// Instances that go while they watch.
	for (int i = 0; i < 100; i++) {
		int passing = epoll_create1(0);
		watch(passing, reader);
		close(passing);
	}
	P(events(e));
	close(e);
	close(up);
	close(reader);
	close(writer);
	unlink(path);
	struct mq_attr attr = {.mq_maxmsg = 5, .mq_msgsize = 10};
	char name[40];
	snprintf(name, sizeof name, "/nesting%d", getpid());
	mqd_t q = mq_open(name, O_CREAT | O_RDWR | O_NONBLOCK, 0600, &attr), second = mq_open(name, O_RDWR);
	OK(q);
	e = epoll_create1(0);
	V(watch(e, q));
	V(mq_send(second, "x", 1, 0));
	P(events(e));
	V(mq_close(q));
	P(events(e));
	V(mq_send(second, "x", 1, 0));
	P(events(e));
	mq_close(second);
	mq_unlink(name);
	close(e);
	// A pidfd's, whose process goes on.
	pid_t child = fork();
	if (!child)
		pause();
	int pidfd = syscall(SYS_pidfd_open, child, 0), twin = syscall(SYS_pidfd_open, child, 0);
	e = epoll_create1(0);
	V(watch(e, pidfd));
	V(watch(e, twin));
	V(close(pidfd));
	V(kill(child, SIGKILL));
	V(waitpid(child, 0, 0) == child);
	P(events(e));
	close(twin);
	P(events(e));
	close(e);
}
static void sets(void)
{
	int p[2];
	pipe(p);
	struct {
		fd_set r;
		unsigned char behind[16384];
	} s;
	memset(&s, 0xff, sizeof s);
	FD_ZERO(&s.r);
	FD_SET(p[0], &s.r);
	write(p[1], "x", 1);
	struct timeval t = {0, 0};
	V(syscall(SYS_select, 1 << 20, &s.r, 0, 0, &t));
	P(FD_ISSET(p[0], &s.r));
	memset(&s.r, 0, sizeof s.r);
	FD_SET(p[1], &s.r);
	struct timespec ts = {0, 0};
	V(syscall(SYS_pselect6, INT_MAX, 0, &s.r, 0, &ts, 0));
	P(FD_ISSET(p[1], &s.r));
	int same = 1;
	for (size_t i = 0; i < sizeof s.behind; i++)
		same &= s.behind[i] == 0xff;
	P(same);
	close(p[0]);
	close(p[1]);
}
static void tell(pid_t child, const char *file)
{
	char path[64], b[400] = {0};
	snprintf(path, sizeof path, "/proc/%d/%s", child, file);
	int fd = open(path, O_RDONLY);
	long n = read(fd, b, sizeof b - 1);
	close(fd);
	char *from = strchr(b, '('), *end = strrchr(b, ')');
	if (strcmp(file, "stat"))
		printf("%s: %.*s\n", file, n > 0 ? (int)strcspn(b, "\n") : 0, b);
	else if (from && end)
		printf("%s: %.*s\n", file, (int)(end + 3 - from), from);
}
static void zombies(void)
{
	static const char *const names[] = {"aaaaaaaaaaaaaa\xc3\xa9", "\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9",
					    "short", "a) b (c"};
	for (int i = 0; i < 4; i++) {
		pid_t child = fork();
		if (!child) {
			prctl(PR_SET_NAME, names[i]);
			_exit(0);
		}
		siginfo_t info;
		waitid(P_PID, child, &info, WEXITED | WNOWAIT);
		tell(child, "stat");
		tell(child, "comm");
		P(state_of(child, child) == 'Z');
		waitpid(child, 0, 0);
	}
	char dir[] = "/tmp/zombiesXXXXXX", path[64];
	mkdtemp(dir);
	snprintf(path, sizeof path, "%s/aaaaaaaaaaaaaa\xc3\xa9", dir);
	V(symlink("/proc/self/exe", path));
	pid_t child = fork();
	if (!child) {
		execl(path, path, "ends", NULL);
		_exit(1);
	}
	siginfo_t info;
	waitid(P_PID, child, &info, WEXITED | WNOWAIT);
	tell(child, "stat");
	tell(child, "comm");
	waitpid(child, 0, 0);
	unlink(path);
	rmdir(dir);
}
static void handler(int signal)
{
}
static void robust(void)
{
	V(syscall(SYS_set_robust_list, -4L, 24));
}
static void alternate(void)
{
	stack_t stack = {.ss_sp = (void *)-4096L, .ss_size = 8192};
	V(sigaltstack(&stack, 0));
	struct sigaction a = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
	sigaction(SIGUSR1, &a, 0);
	raise(SIGUSR1);
	printf("still there\n");
}
static void profile(void)
{
	signal(SIGPROF, handler);
	struct itimerval t = {{LONG_MAX, 0}, {0, 1}};
	V(setitimer(ITIMER_PROF, &t, 0));
	long long end = now_ms(CLOCK_MONOTONIC) + 100;
	while (now_ms(CLOCK_MONOTONIC) < end)
		;
	t.it_value = t.it_interval = (struct timeval){0, 0};
	V(setitimer(ITIMER_PROF, &t, 0));
}
static void nowhere(void)
{
	pid_t child = fork();
	if (!child) {
		ptrace(PTRACE_TRACEME, 0, 0, 0);
		raise(SIGSTOP);
		pause();
		_exit(0);
	}
	int status;
	waitpid(child, &status, 0);
	struct user_regs_struct r;
	V(ptrace(PTRACE_SYSCALL, child, 0, 0));
	waitpid(child, &status, 0);
	V(ptrace(PTRACE_GETREGS, child, 0, &r));
	r.rip = 0;
	V(ptrace(PTRACE_SETREGS, child, 0, &r));
	V(ptrace(PTRACE_CONT, child, 0, 0));
	asleep(child, child);
	V(kill(child, SIGWINCH));
	for (int i = 0; i < 2; i++) {
		waitpid(child, &status, 0);
		X(status);
		V(ptrace(PTRACE_CONT, child, 0, WSTOPSIG(status)));
	}
	kill(child, SIGKILL);
	waitpid(child, &status, 0);
}

int main(int argc, char **argv)
{
	if (argc > 1)
		return 0;
	SECTION("chains");
	chains();
	SECTION("diamond");
	diamond();
	SECTION("ways");
	ways();
	SECTION("openings");
	openings();
	SECTION("sets");
	sets();
	SECTION("zombies");
	zombies();
	SECTION("large numbers");
	void (*const large[])(void) = {robust, alternate, profile, nowhere};
	for (int i = 0; i < 4; i++) {
		int status = end_child(begin_child(large[i]));
		printf("%d: %#x\n", i, status & 0x7f);
	}
	return 0;
}
