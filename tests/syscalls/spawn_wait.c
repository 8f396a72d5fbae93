// waitpid, waitid and wait4 with their options, SIGCHLD and what it says,
// SA_NOCLDWAIT, orphans, process groups, PDEATHSIG, many spawns in a row.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;
static char *self;

static void pause_ms(int ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000L };
	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

static pid_t start_in(const char *what, const char *arg, pid_t group)
{
	char *argv[] = { self, (char *)what, (char *)arg, NULL };
	posix_spawnattr_t attr;
	posix_spawnattr_init(&attr);
	if (group >= 0) {
		posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP);
		posix_spawnattr_setpgroup(&attr, group);
	}
	pid_t pid;
	int e = posix_spawn(&pid, self, NULL, &attr, argv, environ);
	if (e) {
		printf("spawn: %s\n", strerror(e));
		exit(1);
	}
	return pid;
}

static pid_t start(const char *what, const char *arg)
{
	return start_in(what, arg, -1);
}

static volatile sig_atomic_t children, last_code, last_status, last_is;
static pid_t expected;

static void on_child(int s, siginfo_t *i, void *c)
{
	(void)s, (void)c;
	children++;
	last_code = i->si_code;
	last_status = i->si_status;
	last_is = i->si_pid == expected && i->si_uid == getuid();
}

static void info(const char *what, int r, const siginfo_t *i, pid_t pid)
{
	printf("%s: %d, ", what, r);
	if (r < 0)
		printf("%s\n", strerror(errno));
	else
		printf("signo %d code %d status %d, the one: %d\n", i->si_signo, i->si_code, i->si_status,
		       i->si_pid == pid);
}

static int child(char **argv)
{
	if (!strcmp(argv[1], "exit"))
		return atoi(argv[2]);
	if (!strcmp(argv[1], "sleep")) {
		pause_ms(atoi(argv[2]));
		return 0;
	}
	if (!strcmp(argv[1], "burn")) {
		clock_t end = clock() + CLOCKS_PER_SEC / 1000 * atoi(argv[2]);
		while (clock() < end)
			;
		return 0;
	}
	if (!strcmp(argv[1], "raise")) {
		raise(atoi(argv[2]));
		return 1;
	}
	if (!strcmp(argv[1], "stop")) {
		sigset_t end;
		sigemptyset(&end);
		sigaddset(&end, SIGUSR1);
		sigprocmask(SIG_BLOCK, &end, NULL);
		raise(SIGSTOP);
		// Its end must not overtake the news that it goes on.
		int signal;
		if (!strcmp(argv[2], "wait"))
			sigwait(&end, &signal);
		return 4;
	}
	if (!strcmp(argv[1], "orphan")) {
		// Its child outlives it.
		char number[16];
		snprintf(number, sizeof number, "%d", getpid());
		setenv("PARENT", number, 1);
		start("whose", argv[2]);
		return 0;
	}
	if (!strcmp(argv[1], "whose")) {
		pid_t first = atoi(getenv("PARENT"));
		for (int i = 0; i < 2000 && getppid() == first; i++)
			pause_ms(1);
		int fd = open(argv[2], O_WRONLY | O_CREAT, 0644);
		dprintf(fd, "parent changed: %d\n", getppid() != first);
		close(fd);
		return 6;
	}
	if (!strcmp(argv[1], "death")) {
		// Its child is told of its end.
		int ready[2];
		if (pipe2(ready, 0))
			return 1;
		char number[16];
		snprintf(number, sizeof number, "%d", ready[1]);
		setenv("READY", number, 1);
		start("told", argv[2]);
		char c;
		if (read(ready[0], &c, 1) != 1)
			return 1;
		return 0;
	}
	if (!strcmp(argv[1], "told")) {
		sigset_t set;
		sigemptyset(&set);
		sigaddset(&set, SIGUSR1);
		sigprocmask(SIG_BLOCK, &set, NULL);
		prctl(PR_SET_PDEATHSIG, SIGUSR1);
		if (write(atoi(getenv("READY")), "x", 1) != 1)
			return 1;
		struct timespec t = { 5, 0 };
		int s = sigtimedwait(&set, NULL, &t);
		int fd = open(argv[2], O_WRONLY | O_CREAT, 0644);
		dprintf(fd, "told by signal %d\n", s);
		close(fd);
		return 0;
	}
	return 1;
}

// Waits for a child that must be the one which is reported.
static void waited(const char *what, pid_t pid, int options)
{
	int status = -1;
	pid_t got = waitpid(pid, &status, options);
	printf("%s: %d, status %#x\n", what, got == pid, status);
}

static void result(const char *what, int r)
{
	printf("%s: %d %s\n", what, r, r < 0 ? strerror(errno) : "");
}

static void wait_for_file(const char *name)
{
	char text[100];
	ssize_t n = 0;
	for (int i = 0; i < 3000; i++) {
		int fd = open(name, O_RDONLY);
		if (fd >= 0) {
			n = read(fd, text, sizeof text);
			close(fd);
			if (n > 0)
				break;
		}
		pause_ms(1);
	}
	printf("%.*s", (int)n, text);
}

int main(int argc, char **argv)
{
	self = argv[0];
	if (argc > 1)
		return child(argv);
	setvbuf(stdout, NULL, _IONBF, 0);
	siginfo_t i;
	int status, r;
	struct rusage usage;

	// Nothing to wait for, and bad arguments.
	result("no child", waitpid(-1, NULL, 0));
	result("not ours", waitpid(1, NULL, 0));
	result("bad option", waitpid(-1, NULL, 0x40));
	result("waitid of nothing", waitid(P_ALL, 0, &i, 0));
	result("waitid bad kind", waitid(99, 0, &i, WEXITED));

	// WNOHANG before and after the end, WNOWAIT.
	pid_t pid = start("sleep", "1000");
	printf("not yet: %d\n", waitpid(pid, &status, WNOHANG));
	memset(&i, 0xff, sizeof i);
	r = waitid(P_PID, pid, &i, WEXITED | WNOHANG);
	printf("not yet: %d, pid %d signo %d\n", r, i.si_pid, i.si_signo);
	r = waitid(P_PID, pid, &i, WEXITED | WNOWAIT);
	info("WNOWAIT", r, &i, pid);
	r = waitid(P_ALL, 0, &i, WEXITED | WNOHANG);
	info("again", r, &i, pid);
	r = waitid(P_PID, pid, &i, WEXITED);
	info("gone", r, &i, pid);

	// Signals that end it.
	pid = start("raise", "15");
	r = waitid(P_PID, pid, &i, WEXITED);
	info("SIGTERM", r, &i, pid);
	pid = start("raise", "9");
	waited("SIGKILL", pid, 0);
	pid = start("sleep", "10000");
	kill(pid, SIGKILL);
	waited("killed asleep", pid, 0);

	// Stop and continue.
	pid = start("stop", "wait");
	waited("stopped", pid, WUNTRACED);
	printf("told once: %d\n", waitpid(pid, &status, WUNTRACED | WNOHANG));
	kill(pid, SIGCONT);
	waited("continued", pid, WCONTINUED);
	kill(pid, SIGUSR1);
	waited("end", pid, 0);
	pid = start("stop", "wait");
	r = waitid(P_PID, pid, &i, WSTOPPED | WNOWAIT);
	info("WSTOPPED|WNOWAIT", r, &i, pid);
	r = waitid(P_PID, pid, &i, WSTOPPED);
	info("WSTOPPED", r, &i, pid);
	kill(pid, SIGCONT);
	r = waitid(P_PID, pid, &i, WCONTINUED);
	info("WCONTINUED", r, &i, pid);
	kill(pid, SIGUSR1);
	r = waitid(P_PID, pid, &i, WEXITED);
	info("WEXITED", r, &i, pid);
	pid = start("stop", "");
	waitpid(pid, &status, WUNTRACED);
	kill(pid, SIGKILL);
	waited("killed while stopped", pid, 0);

	// Processor time of children.
	pid = start("burn", "60");
	memset(&usage, 0, sizeof usage);
	printf("wait4: %d\n", wait4(pid, &status, 0, &usage) == pid);
	long ms = usage.ru_utime.tv_sec * 1000 + usage.ru_utime.tv_usec / 1000 + usage.ru_stime.tv_sec * 1000 +
		  usage.ru_stime.tv_usec / 1000;
	printf("used 50 to 1000 ms: %d\n", ms >= 50 && ms < 1000);
	getrusage(RUSAGE_CHILDREN, &usage);
	printf("the children together: %d\n", usage.ru_utime.tv_sec * 1000 + usage.ru_utime.tv_usec / 1000 +
		usage.ru_stime.tv_sec * 1000 + usage.ru_stime.tv_usec / 1000 >= 50);

	// SIGCHLD says who and how.
	struct sigaction a = { .sa_sigaction = on_child, .sa_flags = SA_SIGINFO | SA_RESTART };
	sigaction(SIGCHLD, &a, NULL);
	sigset_t chld, old;
	sigemptyset(&chld);
	sigaddset(&chld, SIGCHLD);
	sigprocmask(SIG_BLOCK, &chld, &old);
	expected = start("exit", "9");
	while (!children)
		sigsuspend(&old);
	printf("SIGCHLD: code %d status %d is %d\n", last_code, last_status, last_is);
	waitpid(expected, NULL, 0);
	children = 0;
	expected = start("raise", "1");
	while (!children)
		sigsuspend(&old);
	printf("SIGCHLD: code %d status %d is %d\n", last_code, last_status, last_is);
	waitpid(expected, NULL, 0);
	children = 0;
	expected = start("stop", "");
	while (!children)
		sigsuspend(&old);
	printf("SIGCHLD: code %d status %d is %d\n", last_code, last_status, last_is);
	children = 0;
	kill(expected, SIGCONT);
	while (!children)
		sigsuspend(&old);
	printf("SIGCHLD: code %d status %d is %d\n", last_code, last_status, last_is);
	waitpid(expected, NULL, 0);
	a.sa_flags |= SA_NOCLDSTOP;
	sigaction(SIGCHLD, &a, NULL);
	struct timespec none = { 0, 0 };
	while (sigtimedwait(&chld, NULL, &none) > 0)
		;
	children = 0;
	expected = start("stop", "");
	waitpid(expected, NULL, WUNTRACED);
	kill(expected, SIGCONT);
	waitid(P_PID, expected, &i, WEXITED | WNOWAIT);
	while (!children)
		sigsuspend(&old);
	printf("SA_NOCLDSTOP: %d, code %d status %d\n", children, last_code, last_status);
	waitpid(expected, NULL, 0);
	sigprocmask(SIG_SETMASK, &old, NULL);

	// Children that nobody waits for.
	a.sa_flags = SA_SIGINFO | SA_NOCLDWAIT;
	sigaction(SIGCHLD, &a, NULL);
	children = 0;
	start("exit", "1");
	do
		r = waitpid(-1, &status, 0);
	while (r < 0 && errno == EINTR);
	printf("SA_NOCLDWAIT: %d %s, handler ran: %d\n", r, strerror(errno), children);
	signal(SIGCHLD, SIG_IGN);
	start("exit", "1");
	result("ignored", waitpid(-1, &status, 0));
	signal(SIGCHLD, SIG_DFL);

	// Groups.
	pid_t one = start_in("sleep", "10000", 0), two = start_in("sleep", "10000", one);
	printf("one group: %d %d\n", getpgid(one) == one, getpgid(two) == one);
	pid_t other = start("sleep", "10000");
	printf("WNOHANG on a group: %d\n", waitpid(-one, &status, WNOHANG));
	printf("kill the group: %d\n", kill(-one, SIGTERM));
	for (int n = 0; n < 2; n++) {
		r = waitpid(-one, &status, 0);
		printf("of the group: %d, status %#x\n", r == one || r == two, status);
	}
	result("no more", waitpid(-one, &status, 0));
	result("no such group", kill(-one, 0));
	printf("the other lives: %d\n", kill(other, 0));
	r = setpgid(other, other);
	printf("setpgid after exec: %d %s\n", r, strerror(errno));
	kill(other, SIGINT);
	waited("and ends", other, 0);
	result("gone", kill(other, 0));

	// Orphans go to the subreaper.
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	pid = start("orphan", "orphan.out");
	printf("its parent: %d\n", waitpid(pid, &status, 0) == pid);
	r = wait(&status);
	printf("the orphan: %d, status %#x\n", r > 0 && r != pid, status);
	wait_for_file("orphan.out");
	prctl(PR_SET_CHILD_SUBREAPER, 0);
	pid = start("orphan", "orphan2.out");
	printf("its parent: %d\n", waitpid(pid, &status, 0) == pid);
	wait_for_file("orphan2.out");
	result("not ours", wait(&status));

	pid = start("death", "death.out");
	waitpid(pid, &status, 0);
	wait_for_file("death.out");

	// Many in a row and many at once.
	int bad = 0;
	for (int n = 0; n < 50; n++) {
		char number[8];
		snprintf(number, sizeof number, "%d", n);
		pid = start("exit", number);
		if (waitpid(pid, &status, 0) != pid || status != n << 8)
			bad++;
	}
	printf("50 in a row: %d bad\n", bad);
	pid_t all[10];
	for (int n = 0; n < 10; n++) {
		char number[8];
		snprintf(number, sizeof number, "%d", n);
		all[n] = start("exit", number);
	}
	for (int n = 9; n >= 0; n--)
		if (waitpid(all[n], &status, 0) != all[n] || status != n << 8)
			bad++;
	printf("10 at once: %d bad\n", bad);
	result("none left", wait(&status));
	return 0;
}
