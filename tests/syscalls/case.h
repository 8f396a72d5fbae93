// What the cases share: every result is printed, so that two runs can be compared.
#ifndef CASE_H
#define CASE_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// Descriptors that the runner left open are nobody's business here.
static __attribute__((constructor(101))) void close_inherited_(void)
{
	syscall(SYS_close_range, 3, ~0u, 0);
}

static inline const char *err_(int e)
{
	const char *name = strerrorname_np(e);
	return name ? name : "?";
}

// The call, and its value or the name of its error.
#define V(call) ({ \
	errno = 0; \
	long r_ = (long)(call); \
	int e_ = errno; \
	if (r_ == -1 && e_) printf("%s = %s\n", #call, err_(e_)); \
	else printf("%s = %ld\n", #call, r_); \
	fflush(stdout); \
	errno = e_; \
	r_; })

// The call, and whether it worked; for values that differ from run to run.
#define OK(call) ({ \
	errno = 0; \
	long r_ = (long)(call); \
	int e_ = errno; \
	printf("%s: %s\n", #call, r_ == -1 ? err_(e_) : "ok"); \
	fflush(stdout); \
	errno = e_; \
	r_; })

// A value with its text.
#define P(value) (printf("%s: %lld\n", #value, (long long)(value)), fflush(stdout))
#define X(value) (printf("%s: %#llx\n", #value, (unsigned long long)(value)), fflush(stdout))

#define SECTION(name) (printf("-- %s\n", name), fflush(stdout))

// Digits of a process id that make a column of five wider.
static inline __attribute__((unused)) size_t wider_pid(long pid)
{
	size_t digits = snprintf(NULL, 0, "%ld", pid);
	return digits > 5 ? digits - 5 : 0;
}

static inline __attribute__((unused)) void sleep_ms(int ms)
{
	struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
	while (nanosleep(&t, &t) == -1 && errno == EINTR)
		;
}

static inline __attribute__((unused)) long long now_ms(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

// The letter that /proc has for a thread's state; 0: there is no such thread.
static inline __attribute__((unused)) char state_of(pid_t pid, pid_t tid)
{
	char path[64], line[256];
	snprintf(path, sizeof path, "/proc/%d/task/%d/stat", pid, tid);
	int f = open(path, O_RDONLY | O_CLOEXEC);
	if (f < 0)
		return 0;
	ssize_t n = read(f, line, sizeof line - 1);
	close(f);
	line[n > 0 ? n : 0] = 0;
	// The name before it may have brackets of its own.
	char *state = strrchr(line, ')');
	return state ? state[2] : 0;
}

// Until a thread sleeps, and some time more. Who never does is given up after ten seconds.
static inline __attribute__((unused)) void asleep(pid_t pid, pid_t tid)
{
	long long until = now_ms(CLOCK_MONOTONIC) + 10000;
	for (int seen = 0; seen < 2 && now_ms(CLOCK_MONOTONIC) < until;) {
		char state = state_of(pid, tid);
		if (!state || state == 'Z')
			return;
		seen = state == 'S' ? seen + 1 : 0;
		sleep_ms(seen ? 20 : 2);
	}
}

// A child that runs f. What it prints comes when it is waited for, so that it stands at the same place each time.
static struct {
	pid_t pid;
	int out;
} children_[64];
static inline __attribute__((unused)) pid_t begin_child(void (*f)(void))
{
	fflush(stdout);
	int out = memfd_create("output", MFD_CLOEXEC), slot = 0;
	pid_t p = fork();
	if (!p) {
		dup2(out, 1);
		f();
		fflush(stdout);
		_exit(0);
	}
	while (slot < 63 && children_[slot].pid)
		slot++;
	children_[slot].pid = p;
	children_[slot].out = out;
	return p;
}
// Its wait status.
static inline __attribute__((unused)) int end_child(pid_t p)
{
	int status, slot = 0;
	char piece[4096];
	waitpid(p, &status, 0);
	while (slot < 63 && children_[slot].pid != p)
		slot++;
	int out = children_[slot].out;
	children_[slot].pid = 0;
	ssize_t n;
	for (off_t at = 0; (n = pread(out, piece, sizeof piece, at)) > 0; at += n)
		fwrite(piece, 1, n, stdout);
	fflush(stdout);
	close(out);
	return status;
}

// Sends a signal to the calling thread some milliseconds after it has begun to sleep.
struct later_ {
	pthread_t to;
	pid_t tid;
	int ms, signal;
};
static void *later_run_(void *p)
{
	struct later_ *l = p;
	asleep(getpid(), l->tid);
	sleep_ms(l->ms);
	pthread_kill(l->to, l->signal);
	free(l);
	return 0;
}
static inline __attribute__((unused)) pthread_t signal_later(int signal, int ms)
{
	struct later_ *l = malloc(sizeof *l);
	*l = (struct later_){pthread_self(), gettid(), ms, signal};
	pthread_t t;
	// The helper takes no signals that are meant for the process.
	sigset_t all, old;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pthread_create(&t, 0, later_run_, l);
	pthread_sigmask(SIG_SETMASK, &old, 0);
	return t;
}
#endif
