// ptrace(2) where both sides are in a hurry, or wrong: what a tracer may say of a signal, a killed one's call that isn't made, tracers that
// end at any moment, threads that end while somebody attaches, a stopped process's threads, execs by other threads, memory and rights
// across an exec, an address that is none.
// timeout: 60
// nucleus-differs: rights: (there is no id)
// strace: alone
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/ptrace.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>
#include "case.h"

static void say(const char *what, long got)
{
	if (got < 0)
		printf("%s: %s\n", what, strerrorname_np(errno));
	else
		printf("%s: %ld\n", what, got);
}

static long pt(long request, pid_t pid, long addr, long data)
{
	return syscall(SYS_ptrace, request, pid, addr, data);
}

static void status_is(const char *what, int status)
{
	if (WIFSTOPPED(status))
		printf("%s: stopped %d event %d\n", what, WSTOPSIG(status), status >> 16);
	else if (WIFSIGNALED(status))
		printf("%s: killed %d\n", what, WTERMSIG(status));
	else
		printf("%s: exit %d\n", what, WEXITSTATUS(status));
}

static void handler(int s, siginfo_t *info, void *context)
{
	(void)context;
	printf("child: signal %d code %d value %d\n", s, info->si_code, info->si_value.sival_int);
	fflush(stdout);
}

static void said(void)
{
	pid_t pid = fork();
	if (pid == 0) {
		struct sigaction a = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO };
		sigaction(SIGUSR1, &a, NULL);
		sigaction(SIGUSR2, &a, NULL);
		pt(PTRACE_TRACEME, 0, 0, 0);
		for (int n = 0; n < 3; n++)
			sigqueue(getpid(), SIGUSR1, (union sigval){ .sival_int = 5 });
		_exit(0);
	}
	int status, signals[] = { 0, 500, SIGUSR2 };
	for (int n = 0; n < 3; n++) {
		waitpid(pid, &status, 0);
		siginfo_t info;
		pt(PTRACE_GETSIGINFO, pid, 0, (long)&info);
		info.si_signo = signals[n];
		info.si_value.sival_int = 6;
		say("setsiginfo", pt(PTRACE_SETSIGINFO, pid, 0, (long)&info));
		pt(PTRACE_CONT, pid, 0, n == 2 ? SIGUSR2 : SIGUSR1);
	}
	waitpid(pid, &status, 0);
	status_is("said", status);
}

static void killed(const char *dir)
{
	char path[600];
	snprintf(path, sizeof path, "%s/unmade", dir);
	pid_t pid = fork();
	if (pid == 0) {
		pt(PTRACE_TRACEME, 0, 0, 0);
		raise(SIGSTOP);
		mkdir(path, 0700);
		_exit(0);
	}
	int status;
	waitpid(pid, &status, 0);
	for (;;) {
		pt(PTRACE_SYSCALL, pid, 0, 0);
		waitpid(pid, &status, 0);
		struct user_regs_struct r;
		if (!WIFSTOPPED(status) || pt(PTRACE_GETREGS, pid, 0, (long)&r))
			break;
		if (r.orig_rax == SYS_mkdir || r.orig_rax == SYS_mkdirat)
			break;
	}
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	status_is("killed", status);
	say("made", access(path, F_OK));
	rmdir(path);
}

static void *sleeper(void *p)
{
	pause();
	return p;
}

static void *brief(void *p)
{
	return p;
}

// Threads come and go while somebody attaches to all that are listed; afterwards none is left, and nobody is traced.
static void comes_and_goes(void)
{
	pid_t pid = fork();
	if (pid == 0) {
		for (;;) {
			pthread_t t[4];
			for (int n = 0; n < 4; n++)
				pthread_create(&t[n], NULL, brief, NULL);
			for (int n = 0; n < 4; n++)
				pthread_join(t[n], NULL);
		}
	}
	int seized = 0;
	for (int round = 0; round < 300; round++)
		for (pid_t tid = pid + 1; tid < pid + 40; tid++) {
			// Whatever number is one of its threads', for a moment.
			char path[64];
			snprintf(path, sizeof path, "/proc/%d/task/%d", pid, tid);
			if (access(path, F_OK) == 0)
				seized += pt(PTRACE_SEIZE, tid, 0, 0) == 0;
		}
	kill(pid, SIGKILL);
	int status;
	while (waitpid(-1, &status, __WALL) != pid)
		;
	status_is("comes and goes", status);
	while (waitpid(-1, &status, __WALL) > 0)
		;
	say("none", waitpid(-1, &status, __WALL));
}

// A tracer that ends at any moment: who was traced runs on.
static void tracers_end(void)
{
	pid_t pid = fork();
	if (pid == 0) {
		for (;;) {
			pid_t child = fork();
			if (child == 0)
				_exit(0);
			waitpid(child, NULL, 0);
		}
	}
	for (int n = 0; n < 60; n++) {
		pid_t tracer = fork();
		if (tracer == 0) {
			int status;
			if (pt(PTRACE_SEIZE, pid, 0, PTRACE_O_TRACEFORK))
				_exit(1);
			pt(PTRACE_INTERRUPT, pid, 0, 0);
			waitpid(pid, &status, __WALL);
			pt(PTRACE_CONT, pid, 0, 0);
			for (int stops = 0; stops < n % 7; stops++) {
				pid_t got = waitpid(-1, &status, __WALL);
				if (got > 0 && WIFSTOPPED(status))
					pt(PTRACE_CONT, got, 0, 0);
			}
			_exit(0);
		}
		waitpid(tracer, NULL, 0);
	}
	int status;
	printf("runs: %d\n", waitpid(pid, &status, WNOHANG));
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	status_is("tracers end", status);
}

// A process of three threads, one of them in a stop of its own when the process is stopped: all are, and go on.
static void group(void)
{
	pid_t pid = fork();
	if (pid == 0) {
		pthread_t t;
		pthread_create(&t, NULL, sleeper, NULL);
		pthread_create(&t, NULL, sleeper, NULL);
		pause();
		_exit(0);
	}
	pid_t tids[3] = { pid };
	int count, status;
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/task", pid);
	do {
		usleep(1000);
		count = 0;
		DIR *dir = opendir(path);
		for (struct dirent *e; (e = readdir(dir)) && count < 3;)
			if (e->d_name[0] != '.')
				tids[count++] = atoi(e->d_name);
		closedir(dir);
	} while (count < 3);
	for (int n = 0; n < 3; n++)
		asleep(pid, tids[n]);
	for (int n = 0; n < 3; n++)
		say("seize", pt(PTRACE_SEIZE, tids[n], 0, 0));
	pt(PTRACE_INTERRUPT, tids[2], 0, 0);
	waitpid(tids[2], &status, __WALL);
	status_is("interrupted", status);
	kill(pid, SIGSTOP);
	waitpid(tids[0], &status, __WALL);
	status_is("signal", status);
	pt(PTRACE_CONT, tids[0], 0, SIGSTOP);
	pt(PTRACE_CONT, tids[2], 0, 0);
	for (int n = 0; n < 3; n++) {
		waitpid(tids[n], &status, __WALL);
		status_is("group", status);
	}
	for (int n = 0; n < 3; n++)
		say("listen", pt(PTRACE_LISTEN, tids[n], 0, 0));
	pt(PTRACE_INTERRUPT, tids[1], 0, 0);
	waitpid(tids[1], &status, __WALL);
	status_is("again", status);
	usleep(20000);
	say("once", waitpid(tids[1], &status, __WALL | WNOHANG));
	kill(pid, SIGKILL);
	while (waitpid(-1, &status, __WALL) > 0)
		;
}

static const char *self;

static void *execs(void *p)
{
	execl(self, self, "pause", NULL);
	return p;
}

// Until that has happened, and it pauses.
static void has_execed(pid_t pid)
{
	char path[64], line[4096];
	snprintf(path, sizeof path, "/proc/%d/cmdline", pid);
	for (;;) {
		int fd = open(path, O_RDONLY);
		ssize_t n = read(fd, line, sizeof line);
		close(fd);
		if (n >= 6 && !memcmp(line + n - 6, "pause", 6))
			break;
		usleep(1000);
	}
	asleep(pid, pid);
}

// Only the first thread is traced, and another one execs.
static void other_execs(void)
{
	pid_t pid = fork();
	if (pid == 0) {
		pt(PTRACE_TRACEME, 0, 0, 0);
		pthread_t t;
		pthread_create(&t, NULL, execs, NULL);
		pause();
		_exit(0);
	}
	has_execed(pid);
	int status;
	say("not traced", pt(PTRACE_INTERRUPT, pid, 0, 0));
	kill(pid, SIGSTOP);
	waitpid(pid, &status, WUNTRACED);
	status_is("stopped", status);
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	status_is("other execs", status);
}

// /proc/PID/mem shows the program that was there when it was opened, and no other.
static void memory_of(void)
{
	int to[2];
	if (pipe(to))
		return;
	pid_t pid = fork();
	if (pid == 0) {
		char c;
		if (read(to[0], &c, 1) == 1)
			execs(NULL);
		_exit(1);
	}
	char path[64], c;
	snprintf(path, sizeof path, "/proc/%d/mem", pid);
	int fd = open(path, O_RDWR);
	say("pread", pread(fd, &c, 1, (off_t)(intptr_t)memory_of));
	if (write(to[1], "x", 1) != 1)
		return;
	has_execed(pid);
	say("pread", pread(fd, &c, 1, (off_t)(intptr_t)memory_of));
	say("pwrite", pwrite(fd, &c, 1, (off_t)(intptr_t)memory_of));
	close(fd);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	close(to[0]);
	close(to[1]);
}

// Who is traced gets no rights that its tracer hasn't.
static void rights(const char *dir)
{
	char path[600], line[1400];
	snprintf(path, sizeof path, "%s/id", dir);
	snprintf(line, sizeof line, "cp /usr/bin/id %s && chmod 4755 %s", path, path);
	if (system(line) == 0)
		fflush(stdout);
	for (int traced = 0; traced < 2; traced++) {
		int to[2];
		if (pipe(to))
			return;
		pid_t tracer = fork();
		if (tracer == 0) {
			dup2(to[1], 1);
			if (setgid(65534) || setuid(65534))
				_exit(1);
			pid_t pid = fork();
			if (pid == 0) {
				if (traced)
					pt(PTRACE_TRACEME, 0, 0, 0);
				execl(path, path, "-u", NULL);
				_exit(1);
			}
			int status;
			while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status))
				pt(PTRACE_CONT, pid, 0, 0);
			_exit(0);
		}
		waitpid(tracer, NULL, 0);
		close(to[1]);
		ssize_t n = read(to[0], line, sizeof line - 1);
		line[n > 0 ? n : 0] = 0;
		line[strcspn(line, "\n")] = 0;
		printf("rights: %d %s\n", traced, line);
		close(to[0]);
	}
	unlink(path);
}

static void nowhere(void)
{
	pid_t pid = fork();
	if (pid == 0) {
		pt(PTRACE_TRACEME, 0, 0, 0);
		raise(SIGSTOP);
		_exit(0);
	}
	int status;
	waitpid(pid, &status, 0);
	struct user_regs_struct r;
	pt(PTRACE_GETREGS, pid, 0, (long)&r);
	r.rip = 0x8000000000001000;
	say("setregs", pt(PTRACE_SETREGS, pid, 0, (long)&r));
	pt(PTRACE_CONT, pid, 0, 0);
	waitpid(pid, &status, 0);
	status_is("nowhere", status);
	pt(PTRACE_CONT, pid, 0, SIGSEGV);
	waitpid(pid, &status, 0);
	status_is("nowhere", status);
}

int main(int argc, char **argv)
{
	self = "/proc/self/exe";
	if (argc > 1) {
		pause();
		return 0;
	}
	char dir[] = "races-XXXXXX";
	if (!mkdtemp(dir) || chmod(dir, 0755))
		return 1;
	char path[512];
	if (!realpath(dir, path))
		return 1;
	setvbuf(stdout, NULL, _IOFBF, 1 << 16);
	said();
	fflush(stdout);
	killed(path);
	fflush(stdout);
	comes_and_goes();
	fflush(stdout);
	tracers_end();
	fflush(stdout);
	group();
	fflush(stdout);
	other_execs();
	fflush(stdout);
	memory_of();
	fflush(stdout);
	rights(path);
	nowhere();
	rmdir(path);
	return 0;
}
