// Job control: who isn't in a terminal's foreground, orphaned process groups, the end of who leads a session; signals that are
// ignored while they wait, locks that change hands, and whose signals a signalfd tells of.
// flags: -lutil
// options: --cores 1
#include "case.h"
#include <dirent.h>
#include <pty.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>

static int m, s;

static void nothing(int signal)
{
}
// What becomes of a child.
static void became(const char *what, pid_t child, int options)
{
	int status = 0;
	pid_t got = waitpid(child, &status, options);
	if (got < 0)
		printf("%s: %s\n", what, err_(errno));
	else if (got == 0)
		printf("%s: nothing\n", what);
	else if (WIFSTOPPED(status))
		printf("%s: stopped by %d\n", what, WSTOPSIG(status));
	else if (WIFCONTINUED(status))
		printf("%s: goes on\n", what);
	else if (WIFSIGNALED(status))
		printf("%s: ended by %d\n", what, WTERMSIG(status));
	else
		printf("%s: ended with %d\n", what, WEXITSTATUS(status));
	fflush(stdout);
}
// A child in a group of its own, which isn't the foreground.
static pid_t beside(int (*what)(void))
{
	fflush(stdout);
	pid_t child = fork();
	if (!child) {
		setpgid(0, 0);
		_exit(what());
	}
	setpgid(child, child);
	return child;
}
static int reads(void)
{
	char b[20];
	long n = read(s, b, sizeof b);
	return n < 0 ? errno : n;
}
static int reads_ignoring(void)
{
	signal(SIGTTIN, SIG_IGN);
	return reads();
}
static int reads_blocking(void)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGTTIN);
	sigprocmask(SIG_BLOCK, &set, 0);
	return reads();
}
static int reads_caught(void)
{
	struct sigaction a = {.sa_handler = nothing};
	sigaction(SIGTTIN, &a, 0);
	return reads();
}
static int sets(void)
{
	struct termios t;
	if (tcgetattr(s, &t))
		return 100;
	return tcsetattr(s, TCSANOW, &t) ? errno : 0;
}
static int sets_ignoring(void)
{
	signal(SIGTTOU, SIG_IGN);
	return sets();
}
static int flushes(void)
{
	return tcflush(s, TCIFLUSH) ? errno : 0;
}
static int takes(void)
{
	return tcsetpgrp(s, getpgrp()) ? errno : 0;
}
static int writes(void)
{
	return write(s, "w", 1) == 1 ? 0 : errno;
}
static void drain(void)
{
	char b[100];
	struct pollfd p = {m, POLLIN};
	while (poll(&p, 1, 20) == 1 && p.revents & POLLIN && read(m, b, sizeof b) > 0)
		;
}
static int told[2];
static int orphan_reads(void)
{
	pid_t parent = getpid();
	if (fork() == 0) {
		// Until nobody of its session is left who could continue it.
		while (getppid() == parent)
			sleep_ms(1);
		int got = reads();
		dprintf(told[1], "reads: %s", err_(got));
		_exit(0);
	}
	return 0;
}

static void terminal(void)
{
	struct termios t;
	SECTION("not in the foreground");
	setsid();
	V(openpty(&m, &s, 0, 0, 0));
	V(ioctl(s, TIOCSCTTY, 0));
	P(tcgetpgrp(s) == getpgrp());
	pid_t c = beside(reads);
	became("reads", c, WUNTRACED);
	V(tcsetpgrp(s, c));
	write(m, "typed\n", 6);
	V(kill(c, SIGCONT));
	became("reads in the foreground", c, 0);
	signal(SIGTTOU, SIG_IGN);
	V(tcsetpgrp(s, getpgrp()));
	signal(SIGTTOU, SIG_DFL);
	became("reads, ignoring", beside(reads_ignoring), 0);
	became("reads, blocking", beside(reads_blocking), 0);
	became("reads, caught", beside(reads_caught), 0);
	int (*all[])(void) = {sets, flushes, takes};
	for (int i = 0; i < 3; i++) {
		c = beside(all[i]);
		became("changes", c, WUNTRACED);
		kill(c, SIGKILL);
		became("is killed", c, 0);
	}
	became("changes, ignoring", beside(sets_ignoring), 0);
	became("writes", beside(writes), 0);
	tcgetattr(s, &t);
	t.c_lflag |= TOSTOP;
	tcsetattr(s, TCSANOW, &t);
	c = beside(writes);
	became("writes, with TOSTOP", c, WUNTRACED);
	t.c_lflag &= ~TOSTOP;
	tcsetattr(s, TCSANOW, &t);
	V(kill(c, SIGCONT));
	became("writes without it", c, 0);
	drain();

	SECTION("from the keyboard");
	c = beside(reads);
	became("reads", c, WUNTRACED);
	signal(SIGTTOU, SIG_IGN);
	V(tcsetpgrp(s, c));
	V(kill(c, SIGCONT));
	sleep_ms(20);
	write(m, "\032", 1);
	became("^Z", c, WUNTRACED);
	kill(c, SIGCONT);
	sleep_ms(20);
	write(m, "\003", 1);
	became("^C", c, 0);
	V(tcsetpgrp(s, getpgrp()));
	signal(SIGTTOU, SIG_DFL);
	drain();
	close(m);
	close(s);
}

int main(int argc, char **argv)
{
	alarm(60);
	if (argc > 1) {
		// Holds nothing any more, but is there.
		char b;
		write(1, "r", 1);
		read(0, &b, 1);
		return 0;
	}
	int status, to[2], from[2];
	char b[100];

	// As a child that leads no process group, so that it can lead a session.
	fflush(stdout);
	pid_t c = fork();
	if (!c) {
		signal(SIGHUP, SIG_IGN);
		terminal();
		fflush(stdout);
		_exit(0);
	}
	became("the session", c, 0);

	SECTION("the end of who leads a session");
	V(openpty(&m, &s, 0, 0, 0));
	for (int i = 0; i < 2; i++) {
		pipe(from);
		fflush(stdout);
		c = fork();
		if (!c) {
			setsid();
			int got = ioctl(s, TIOCSCTTY, 0) ? errno : 0;
			pipe(to);
			pid_t job = fork();
			if (!job) {
				setpgid(0, 0);
				signal(SIGTTOU, SIG_IGN);
				tcsetpgrp(s, getpgrp());
				sigset_t set;
				sigemptyset(&set);
				sigaddset(&set, SIGHUP);
				sigprocmask(SIG_BLOCK, &set, 0);
				write(to[1], "r", 1);
				int n = 0;
				sigwait(&set, &n);
				int tty = open("/dev/tty", O_RDWR) < 0 ? errno : 0;
				n = sprintf(b, "told by %d, /dev/tty: %s", n, err_(tty));
				write(from[1], b, n);
				_exit(0);
			}
			read(to[0], b, 1);
			_exit(got);
		}
		close(from[1]);
		became("leads", c, 0);
		long n = read(from[0], b, sizeof b);
		printf("its job: %.*s\n", (int)n, b);
		close(from[0]);
	}
	close(m);
	close(s);

	SECTION("orphaned groups");
	pipe(from);
	fflush(stdout);
	c = fork();
	if (!c) {
		setsid();
		pid_t shell = fork();
		if (!shell) {
			pid_t job = fork();
			if (!job) {
				setpgid(0, 0);
				struct sigaction a = {.sa_handler = nothing};
				sigaction(SIGHUP, &a, 0);
				raise(SIGSTOP);
				write(from[1], "told and continued", 18);
				_exit(0);
			}
			waitpid(job, &status, WUNTRACED);
			_exit(WIFSTOPPED(status) ? WSTOPSIG(status) : 0);
		}
		waitpid(shell, &status, 0);
		_exit(WEXITSTATUS(status));
	}
	close(from[1]);
	became("a shell whose job is stopped", c, 0);
	long n = read(from[0], b, sizeof b);
	printf("the job: %.*s\n", (int)(n < 0 ? 0 : n), b);
	close(from[0]);
	pipe(to);
	fflush(stdout);
	c = fork();
	if (!c) {
		setsid();
		P(raise(SIGTSTP));
		P(raise(SIGTTIN));
		P(raise(SIGTTOU));
		V(openpty(&m, &s, 0, 0, 0));
		V(ioctl(s, TIOCSCTTY, 0));
		pipe(told);
		became("another", beside(orphan_reads), 0);
		close(told[1]);
		long n = read(told[0], b, sizeof b);
		printf("its child %.*s\n", (int)n, b);
		fflush(stdout);
		signal(SIGHUP, SIG_IGN);
		raise(SIGSTOP);
		read(to[0], b, 1);
		_exit(0);
	}
	became("without anybody", c, WUNTRACED);
	V(kill(c, SIGCONT));
	became("continued", c, WCONTINUED);
	write(to[1], "e", 1);
	became("without anybody", c, 0);

	SECTION("stopped again");
	fflush(stdout);
	c = fork();
	if (!c)
		for (;;)
			pause();
	kill(c, SIGSTOP);
	became("first", c, WUNTRACED);
	kill(c, SIGCONT);
	while (state_of(c, c) != 'S')
		sleep_ms(1);
	kill(c, SIGSTOP);
	// 't' beside a debugger.
	while (state_of(c, c) != 'T' && state_of(c, c) != 't')
		sleep_ms(1);
	became("then", c, WUNTRACED | WCONTINUED | WNOHANG);
	became("and", c, WUNTRACED | WCONTINUED | WNOHANG);
	kill(c, SIGKILL);
	became("at last", c, 0);

	SECTION("ignored while they wait");
	sigset_t set, now;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_BLOCK, &set, 0);
	kill(getpid(), SIGUSR1);
	pthread_kill(pthread_self(), SIGUSR1);
	kill(getpid(), SIGCHLD);
	sigpending(&now);
	P(sigismember(&now, SIGUSR1) + sigismember(&now, SIGCHLD));
	signal(SIGUSR1, SIG_IGN);
	signal(SIGCHLD, SIG_DFL);
	sigpending(&now);
	P(sigismember(&now, SIGUSR1) + sigismember(&now, SIGCHLD));
	sigprocmask(SIG_UNBLOCK, &set, 0);

	SECTION("a signalfd that was inherited");
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigprocmask(SIG_BLOCK, &set, 0);
	struct pollfd p = {signalfd(-1, &set, 0), POLLIN};
	fflush(stdout);
	c = fork();
	if (!c) {
		P(poll(&p, 1, 0));
		kill(getpid(), SIGTERM);
		P(poll(&p, 1, 1000));
		struct signalfd_siginfo info;
		P(read(p.fd, &info, sizeof info) == sizeof info);
		P(info.ssi_signo);
		kill(getppid(), SIGTERM);
		P(poll(&p, 1, 20));
		fflush(stdout);
		_exit(0);
	}
	became("the child", c, 0);
	P(poll(&p, 1, 1000));
	close(p.fd);

	SECTION("locks");
	int one = open("lock", O_RDWR | O_CREAT, 0600), other = open("lock", O_RDWR);
	V(flock(one, LOCK_SH));
	V(flock(other, LOCK_SH));
	V(flock(one, LOCK_EX | LOCK_NB));
	V(flock(other, LOCK_EX | LOCK_NB));
	V(flock(one, LOCK_SH | LOCK_NB));
	V(flock(other, LOCK_SH | LOCK_NB));
	V(flock(one, LOCK_SH | LOCK_NB));
	flock(one, LOCK_UN);
	flock(other, LOCK_UN);
	struct flock whole = {.l_type = F_WRLCK};
	V(fcntl(one, F_SETLK, &whole));
	close(open("lock", O_PATH));
	pipe(to);
	pipe(from);
	fflush(stdout);
	c = fork();
	if (!c) {
		V(fcntl(other, F_SETLK, &whole));
		fflush(stdout);
		int mine = open("record", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
		fcntl(mine, F_SETLK, &whole);
		dup2(from[1], 1);
		dup2(to[0], 0);
		execl("/proc/self/exe", argv[0], "there", (char *)0);
		_exit(1);
	}
	read(from[0], b, 1);
	int mine = open("record", O_RDWR);
	V(fcntl(mine, F_SETLK, &whole));
	write(to[1], "e", 1);
	became("who ran another program", c, 0);

	SECTION("whose a terminal is");
	V(openpty(&m, &s, b, 0, 0));
	struct stat st;
	if (geteuid() == 0)
		chown(b, 1000, 7);
	V(chmod(b, 0600));
	V(stat(b, &st));
	P((st.st_mode & 07777) == 0600 && (geteuid() || (st.st_uid == 1000 && st.st_gid == 7)));

	SECTION("names that are changed while they are read");
	int d, count = 0;
	mkdir("/dev/shm/jobs", 0700);
	d = open("/dev/shm/jobs", O_RDONLY | O_DIRECTORY);
	for (int i = 0; i < 3000; i++) {
		sprintf(b, "%d", i);
		close(openat(d, b, O_CREAT | O_WRONLY, 0600));
	}
	DIR *dir = opendir("/dev/shm/jobs");
	for (struct dirent *e; (e = readdir(dir)) && count < 10000;) {
		if (e->d_name[0] == '.')
			continue;
		snprintf(b, sizeof b, "%.50s.b", e->d_name);
		renameat(d, e->d_name, d, b);
		count++;
	}
	P(count);
	rewinddir(dir);
	for (struct dirent *e; (e = readdir(dir));)
		unlinkat(d, e->d_name, 0);
	closedir(dir);
	V(rmdir("/dev/shm/jobs"));
	return 0;
}
