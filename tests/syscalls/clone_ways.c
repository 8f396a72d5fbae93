// What of a process clone and clone3 share by each of their flags, what they refuse, and waiting by groups.
// timeout: 60
#include "case.h"
#include <linux/sched.h>
#include <sys/prctl.h>

static char stacks[2][64 << 10] __attribute__((aligned(64)));
static volatile int word, ready[2];

// A child that does this, on its own stack if memory is shared.
static pid_t starts(unsigned long flags, int (*f)(void *))
{
	fflush(stdout);
	word = 0;
	return clone(f, stacks[0] + sizeof stacks[0], flags, NULL);
}
static int changes(void *p)
{
	word = 1;
	chdir("/");
	umask(0123);
	close(40);
	signal(SIGUSR1, SIG_IGN);
	_exit(0);
}
static void shared(const char *name, unsigned long flags)
{
	char was[PATH_MAX], is[PATH_MAX];
	getcwd(was, sizeof was);
	umask(022);
	dup2(1, 40);
	signal(SIGUSR1, SIG_DFL);
	pid_t p = starts(flags | SIGCHLD, changes);
	int status = -1;
	waitpid(p, &status, 0);
	struct sigaction a;
	sigaction(SIGUSR1, NULL, &a);
	getcwd(is, sizeof is);
	int has = fcntl(40, F_GETFD) >= 0, mask = umask(022);
	printf("%s: status %d, memory %d, place %d, mask %03o, file %d, handler %d\n", name, status, word, strcmp(was, is) != 0, mask, has,
	       a.sa_handler == SIG_IGN);
	chdir(was);
}

static void flags(void)
{
	SECTION("what is shared");
	shared("nothing", 0);
	shared("memory", CLONE_VM);
	shared("memory, vfork", CLONE_VM | CLONE_VFORK);
	shared("vfork", CLONE_VFORK);
	shared("place", CLONE_FS);
	shared("files", CLONE_FILES);
	shared("handlers", CLONE_VM | CLONE_SIGHAND);
	shared("all", CLONE_VM | CLONE_SIGHAND | CLONE_FS | CLONE_FILES | CLONE_SYSVSEM | CLONE_IO);
	shared("what changes nothing", CLONE_IO | CLONE_UNTRACED | CLONE_SYSVSEM | CLONE_DETACHED);
	SECTION("what is refused");
	static const struct {
		const char *name;
		unsigned long flags;
	} bad[] = {
		{"handlers without memory", CLONE_SIGHAND},
		{"a thread without handlers", CLONE_THREAD | CLONE_VM},
		{"a thread without memory", CLONE_THREAD | CLONE_SIGHAND},
		{"a place of its own that is shared", CLONE_NEWNS | CLONE_FS},
		{"a user of its own with a shared place", CLONE_NEWUSER | CLONE_FS},
		{"a descriptor, detached", CLONE_PIDFD | CLONE_DETACHED},
		{"a descriptor at its parent's number", CLONE_PIDFD | CLONE_PARENT_SETTID},
		{"a thread with its own processes", CLONE_NEWPID | CLONE_THREAD | CLONE_SIGHAND | CLONE_VM},
		{"semaphores of its own", CLONE_NEWIPC | CLONE_SYSVSEM},
	};
	for (unsigned long n = 0; n < sizeof bad / sizeof *bad; n++) {
		printf("%s: ", bad[n].name);
		OK(starts(bad[n].flags, changes));
	}
}

// What tells of the end.
static int ends(void *p)
{
	_exit(3);
}
static void signals(void)
{
	SECTION("signals of the end");
	static const int of[] = {0, SIGCHLD, SIGUSR2, 64, 65, 100, 127, 255};
	sigset_t all;
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, NULL);
	for (unsigned long n = 0; n < sizeof of / sizeof *of; n++) {
		P(of[n]);
		pid_t p = starts(of[n], ends);
		P(p > 0);
		if (p <= 0)
			continue;
		siginfo_t i;
		// Not one that tells of its end by something else, or by nothing.
		int ended;
		while ((ended = waitid(P_PID, p, &i, WEXITED | WNOWAIT | __WALL)) == -1 && errno == EINTR)
			;
		V(ended);
		OK(waitpid(p, NULL, WNOHANG) == p ? 0 : -1);
		OK(waitpid(p, NULL, WNOHANG | __WCLONE) == p ? 0 : -1);
		struct timespec t = {0, 0};
		int s;
		while ((s = sigtimedwait(&all, &i, &t)) > 0)
			printf("signal %d of %d: code %d status %d\n", s, i.si_pid == p, i.si_code, i.si_status);
	}
	sigprocmask(SIG_UNBLOCK, &all, NULL);
}

// clone3.
static long clones(struct clone_args a, size_t size)
{
	fflush(stdout);
	long p = syscall(SYS_clone3, &a, size);
	if (!p)
		_exit(0);
	return p;
}
static void three(const char *name, struct clone_args a, size_t size)
{
	long p = clones(a, size);
	printf("%s: %s\n", name, p > 0 ? "made" : strerrorname_np(errno));
	if (p > 0)
		waitpid(p, NULL, __WALL);
}
#define ARGS(...) (struct clone_args){.exit_signal = SIGCHLD, ##__VA_ARGS__}
static void clone3s(void)
{
	SECTION("clone3");
	uint64_t ids[40] = {0};
	struct {
		struct clone_args a;
		uint64_t more[8];
	} large = {.a = ARGS()};
	int all = sizeof(struct clone_args);
	three("plain", ARGS(), all);
	three("the first form", ARGS(), CLONE_ARGS_SIZE_VER0);
	three("the second", ARGS(), CLONE_ARGS_SIZE_VER1);
	three("too short", ARGS(), CLONE_ARGS_SIZE_VER0 - 8);
	three("odd", ARGS(), CLONE_ARGS_SIZE_VER0 + 3);
	for (int n = 0; n < 2; n++) {
		fflush(stdout);
		large.more[3] = n;
		long p = syscall(SYS_clone3, &large, sizeof large);
		if (!p)
			_exit(0);
		printf("longer: %s\n", p > 0 ? "made" : strerrorname_np(errno));
		if (p > 0)
			waitpid(p, NULL, 0);
	}
	three("a signal among the flags", ARGS(.flags = SIGCHLD), all);
	three("an unknown flag", ARGS(.flags = 1ull << 40), all);
	three("detached", ARGS(.flags = CLONE_DETACHED), all);
	three("handlers shared and forgotten", ARGS(.flags = CLONE_VM | CLONE_SIGHAND | CLONE_CLEAR_SIGHAND), all);
	three("a thread that tells of its end", ARGS(.flags = CLONE_VM | CLONE_SIGHAND | CLONE_THREAD), all);
	three("one of its parent that tells so", ARGS(.flags = CLONE_PARENT), all);
	three("a signal that there isn't", ARGS(.exit_signal = 65), all);
	three("a large one", ARGS(.exit_signal = 1 << 9), all);
	three("a stack without an end", ARGS(.stack = (uintptr_t)stacks[0]), all);
	three("without a beginning", ARGS(.stack_size = 4096), all);
	three("of the kernel", ARGS(.stack = 1ull << 63, .stack_size = 4096), all);
	three("numbers without any", ARGS(.set_tid_size = 1), all);
	three("none of some", ARGS(.set_tid = (uintptr_t)ids), all);
	three("too many numbers", ARGS(.set_tid = (uintptr_t)ids, .set_tid_size = 33), all);
	ids[0] = 0;
	three("number 0", ARGS(.set_tid = (uintptr_t)ids, .set_tid_size = 1), all);
	three("numbers elsewhere", ARGS(.set_tid = 8, .set_tid_size = 1), all);
	three("a group that isn't one", ARGS(.flags = CLONE_INTO_CGROUP, .cgroup = 1000), all);
	three("a group without the flag", ARGS(.cgroup = 1), all);
	three("a descriptor that is nowhere", ARGS(.flags = CLONE_PIDFD, .pidfd = 8), all);
	SECTION("handlers that are forgotten");
	signal(SIGUSR1, ends);
	signal(SIGUSR2, SIG_IGN);
	fflush(stdout);
	pid_t p = clones(ARGS(), all);
	int pidfd = -1;
	struct clone_args a = ARGS(.flags = CLONE_CLEAR_SIGHAND | CLONE_PIDFD, .pidfd = (uintptr_t)&pidfd);
	waitpid(p, NULL, 0);
	p = syscall(SYS_clone3, &a, sizeof a);
	if (!p) {
		struct sigaction one, two;
		sigaction(SIGUSR1, NULL, &one);
		sigaction(SIGUSR2, NULL, &two);
		printf("%d %d\n", one.sa_handler == SIG_DFL, two.sa_handler == SIG_IGN);
		fflush(stdout);
		_exit(4);
	}
	siginfo_t i = {0};
	V(waitid(P_PIDFD, pidfd, &i, WEXITED));
	P(i.si_status);
	close(pidfd);
	signal(SIGUSR1, SIG_DFL);
	signal(SIGUSR2, SIG_DFL);
}

// Waiting for any of a group.
static void groups(void)
{
	SECTION("groups");
	int gate[2];
	pid_t p[3];
	pipe(gate);
	for (int n = 0; n < 3; n++) {
		fflush(stdout);
		p[n] = fork();
		if (!p[n]) {
			char c;
			close(gate[1]);
			read(gate[0], &c, 1);
			_exit(n + 1);
		}
		if (n < 2)
			V(setpgid(p[n], p[0]));
	}
	siginfo_t i;
	int status;
	V(waitid(P_PGID, p[0], &i, WEXITED | WNOHANG));
	V(waitid(P_PGID, 0, &i, WEXITED | WNOHANG));
	V(waitid(P_PGID, -1, &i, WEXITED | WNOHANG));
	V(waitid(P_PGID, 0x7ffffff, &i, WEXITED | WNOHANG));
	V(waitpid(-p[1], &status, WNOHANG));
	V(waitpid(-p[0], &status, WNOHANG));
	V(waitpid(INT_MIN, &status, WNOHANG));
	V(waitid(7, p[0], &i, WEXITED | WNOHANG));
	V(waitid(P_PID, -1, &i, WEXITED | WNOHANG));
	V(waitid(P_PID, 0, &i, WEXITED | WNOHANG));
	close(gate[1]);
	V(waitid(P_PGID, 0, &i, WEXITED));
	P(i.si_pid == p[2]);
	for (int n = 0; n < 2; n++) {
		V(waitid(P_PGID, p[0], &i, WEXITED));
		P(i.si_pid == p[0] || i.si_pid == p[1]);
	}
	V(waitid(P_PGID, p[0], &i, WEXITED));
	V(waitpid(0, &status, 0));
	close(gate[0]);
}

int main(void)
{
	flags();
	signals();
	clone3s();
	groups();
	return 0;
}
