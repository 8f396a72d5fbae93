// Bad pointers in calls on processes, signals, time and futexes: what Linux says to each, and that nothing has happened then.
#include "pointers.h"
#include <linux/capability.h>
#include <linux/futex.h>
#include <linux/sched.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/sysinfo.h>
#include <sys/timerfd.h>
#include <sys/times.h>
#include <sys/timex.h>
#include <sys/utsname.h>

static char out[8192];
static struct timespec none;
static unsigned long mask;

static void about(void)
{
	unsigned ids[3] = {0, 0, 0};
	struct rlimit limit;
	CALL(uname, W(out, sizeof(struct utsname)));
	CALL(sysinfo, W(out, sizeof(struct sysinfo)));
	// What it says is a number of ticks since the machine began, which small ones are shown of: a virtual machine is that fast.
	while (times(&(struct tms){0}) <= 16)
		sleep_ms(10);
	CALL(times, W(out, sizeof(struct tms)));
	CALL(getrusage, I(RUSAGE_SELF), W(out, sizeof(struct rusage)));
	getrlimit(RLIMIT_CORE, &limit);
	CALL(getrlimit, I(RLIMIT_CORE), W(out, sizeof limit));
	CALL(setrlimit, I(RLIMIT_CORE), R(&limit, sizeof limit));
	CALL(prlimit64, I(0), I(RLIMIT_CORE), R(&limit, sizeof limit), W(out, sizeof limit));
	CALL(getresuid, W(&ids[0], 4), W(&ids[1], 4), W(&ids[2], 4));
	CALL(getresgid, W(&ids[0], 4), W(&ids[1], 4), W(&ids[2], 4));
	setgroups(2, ids);
	CALL(getgroups, I(2), W(out, 8));
	CALL(setgroups, I(2), R(ids, 8));
	V(syscall(SYS_setgroups, 1 << 20, 8));
	V(syscall(SYS_getgroups, 1, 8));
	V(syscall(SYS_getgroups, 0, 8));
	struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct data[2];
	CALL(capget, RW(&head, sizeof head), W(data, sizeof data));
	head.version = _LINUX_CAPABILITY_VERSION_3;
	syscall(SYS_capget, &head, data);
	CALL(capset, RW(&head, sizeof head), R(data, sizeof data));
	CALL_OF(prctl, "PR_SET_NAME", I(PR_SET_NAME), S("name of sixteen and more"));
	CALL_OF(prctl, "PR_GET_NAME", I(PR_GET_NAME), W(out, 16));
	CALL_OF(prctl, "PR_GET_PDEATHSIG", I(PR_GET_PDEATHSIG), W(out, 4));
	CALL_OF(prctl, "PR_GET_CHILD_SUBREAPER", I(PR_GET_CHILD_SUBREAPER), W(out, 4));
	CALL_OF(arch_prctl, "ARCH_GET_FS", I(0x1003), W(out, 8));
	CALL_OF(arch_prctl, "ARCH_GET_GS", I(0x1004), W(out, 8));
	CALL(getcpu, W(out, 4), W(out + 4, 4), I(0));
	CALL(getrandom, W(out, 16), I(16), I(0));
	void *head_of_list;
	size_t size;
	CALL(get_robust_list, I(0), W(&head_of_list, 8), W(&size, 8));
	CALL(sethostname, R("name", 4), I(4));
	CALL(setdomainname, R("name", 4), I(4));
	V(sethostname((void *)8, 65));
}

static void scheduling(void)
{
	struct sched_param param = {0};
	CALL(sched_getparam, I(0), W(&param, sizeof param));
	CALL(sched_setparam, I(0), R(&param, sizeof param));
	CALL(sched_setscheduler, I(0), I(SCHED_OTHER), R(&param, sizeof param));
	CALL(sched_rr_get_interval, I(0), W(out, 16));
	sched_getaffinity(0, 8, (void *)&mask);
	CALL(sched_setaffinity, I(0), I(8), R(&mask, 8));
	CALL(sched_getaffinity, I(0), I(128), W(out, 8));
	// struct sched_attr, as it was first.
	unsigned attr[12] = {48};
	CALL(sched_getattr, I(0), W(attr, 48), I(48), I(0));
	memset(attr, 0, sizeof attr);
	attr[0] = 48;
	CALL(sched_setattr, I(0), R(attr, 48), I(0));
}

static void begin_children(void)
{
	if (!fork())
		_exit(3);
	siginfo_t info;
	waitid(P_ALL, 0, &info, WEXITED | WNOWAIT);
}
static void look_at_children(void)
{
	// Is there still one to wait for?
	printf("/%d", waitpid(-1, 0, WNOHANG) > 0);
}

static void children(void)
{
	char *argv[] = {"program", "second", 0}, *environment[] = {"a=b", 0};
	CALL(execve, S("/nothing"), R(argv, sizeof argv), R(environment, sizeof environment));
	// NULL is an empty list, and the end of one.
	CALL_BUT(BUT(NONE), execve, "of a program", S("/bin/true"), R(argv, sizeof argv), R(environment, sizeof environment), I(0), I(0), I(0), IN(argv[0], STRING, 8), IN(argv[1], STRING, 7), IN(environment[0], STRING, 4));
	CALL_BUT(BUT(NONE), execveat, "of a program", I(AT_FDCWD), S("/bin/true"), R(argv, sizeof argv), R(environment, sizeof environment), I(0));
	int status;
	struct rusage usage;
	siginfo_t info;
	before = begin_children;
	after = look_at_children;
	CALL_BUT(BUT(NONE), wait4, "", I(-1), W(&status, 4), I(0), W(&usage, sizeof usage));
	CALL(waitid, I(P_ALL), I(0), W(&info, 28), I(WEXITED), W(&usage, sizeof usage));
	before = after = 0;
	V(syscall(SYS_wait4, -1, 8, WNOHANG, 8));
	struct clone_args args = {.exit_signal = SIGCHLD};
	CALL_BUT(BUT(NONE), clone3, "", R(&args, 64), I(64));
	V(syscall(SYS_clone3, 8, 8));
	V(syscall(SYS_clone3, 8, 10000));
	// The identifiers go where they can: a child is made all the same.
	long r;
	for (int n = 0; n < 3; n++) {
		unsigned long flag[] = {CLONE_PARENT_SETTID, CLONE_CHILD_SETTID, CLONE_CHILD_CLEARTID};
		r = syscall(SYS_clone, SIGCHLD | flag[n], 0, 8, 8, 0);
		if (!r)
			_exit(5);
		V(waitpid(-1, &status, 0) == r);
		P(WEXITSTATUS(status));
	}
	errno = 0;
	r = syscall(SYS_clone, SIGCHLD | CLONE_PIDFD, 0, 8, 0, 0);
	if (!r)
		_exit(5);
	printf("%ld %s %d\n", r, err_(errno), fcntl(free_fd, F_GETFD));
	V(waitpid(-1, 0, 0));
	V(syscall(SYS_set_tid_address, 8) == getpid());
	V(syscall(SYS_set_robust_list, 8, 24));
}

static void look_at_mask(void)
{
	unsigned long now;
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, 0, &now, 8);
	if (now != 0)
		printf(" (blocked)");
	now = 0;
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &now, 0, 8);
}
static void begin_pending(void)
{
	unsigned long one = 1 << (SIGUSR1 - 1);
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &one, 0, 8);
	raise(SIGUSR1);
}
static void look_at_pending(void)
{
	unsigned long now;
	syscall(SYS_rt_sigpending, &now, 8);
	printf("/%d", now != 0);
	signal(SIGUSR1, SIG_IGN);
	signal(SIGUSR1, SIG_DFL);
}

static int descriptor;
static void signals(void)
{
	struct { void *handler; unsigned long flags; void *restorer; unsigned long mask; } action = {SIG_IGN, 0x04000000};
	CALL(rt_sigaction, I(SIGUSR2), R(&action, sizeof action), W(out, sizeof action), I(8));
	CALL_OF(rt_sigaction, "of what can't be caught", I(SIGKILL), R(&action, sizeof action), W(out, sizeof action), I(8));
	mask = 1;
	after = look_at_mask;
	CALL(rt_sigprocmask, I(SIG_BLOCK), R(&mask, 8), W(out, 8), I(8));
	CALL_OF(rt_sigprocmask, "that isn't known", I(77), R(&mask, 8), W(out, 8), I(8));
	CALL_OF(rt_sigprocmask, "of another size", I(SIG_BLOCK), R(&mask, 8), W(out, 8), I(4));
	after = 0;
	CALL(rt_sigpending, W(out, 8), I(8));
	CALL_BUT(0, rt_sigsuspend, "of another size", R(&mask, 8), I(4));
	CALL_BUT(BUT(NONE), rt_sigsuspend, "", R(&mask, 8), I(8)) ;
	stack_t stack = {.ss_flags = SS_DISABLE};
	CALL(sigaltstack, R(&stack, sizeof stack), W(out, sizeof stack));
	siginfo_t info = {.si_code = SI_QUEUE};
	CALL(rt_sigqueueinfo, I(getpid()), I(0), R(&info, 48));
	CALL(rt_tgsigqueueinfo, I(getpid()), I(gettid()), I(0), R(&info, 48));
	int self = syscall(SYS_pidfd_open, getpid(), 0);
	free_fd = self + 1;
	CALL(pidfd_send_signal, I(self), I(0), R(&info, 48), I(0));
	mask = 1 << (SIGUSR1 - 1);
	CALL_BUT(BUT(NONE), rt_sigtimedwait, "of nothing", R(&mask, 8), W(&info, 128), R(&none, 16), I(8));
	before = begin_pending;
	after = look_at_pending;
	CALL_BUT(BUT(NONE), rt_sigtimedwait, "", R(&mask, 8), W(&info, 128), R(&none, 16), I(8));
	before = after = 0;
	begin_pending();
	CALL(signalfd4, I(-1), R(&mask, 8), I(8), I(SFD_NONBLOCK));
	descriptor = signalfd(-1, (void *)&mask, SFD_NONBLOCK);
	free_fd = descriptor + 1;
	CALL(signalfd, I(descriptor), R(&mask, 8), I(8));
}

static void begin_counter(void)
{
	unsigned long n;
	read(descriptor, &n, 8);
	n = 5;
	write(descriptor, &n, 8);
}
static void look_at_counter(void)
{
	unsigned long n = 0;
	read(descriptor, &n, 8);
	printf("/%ld", n);
}
static void events(void)
{
	struct itimerspec far = {.it_value = {1000, 0}}, old;
	unsigned long one = 1;
	descriptor = eventfd(0, EFD_NONBLOCK);
	free_fd = descriptor + 1;
	before = begin_counter;
	after = look_at_counter;
	CALL_OF(write, "to an eventfd", I(descriptor), R(&one, 8), I(8));
	before = after = 0;
	int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
	free_fd = timer + 1;
	CALL(timerfd_settime, I(timer), I(0), R(&far, sizeof far), W(&old, sizeof old));
	CALL(timerfd_gettime, I(timer), W(&old, sizeof old));
	CALL_BUT(BUT(RESERVED), read, "of a timer that has not run out", I(timer), W(out, 8), I(8));
	descriptor = inotify_init1(IN_NONBLOCK);
	free_fd = descriptor + 1;
	CALL(inotify_add_watch, I(descriptor), S("."), I(IN_OPEN));
}

static void clocks(void)
{
	struct itimerval far = {{0, 0}, {1000, 0}}, old;
	CALL(nanosleep, R(&none, 16), W(out, 16));
	CALL(clock_nanosleep, I(CLOCK_MONOTONIC), I(0), R(&none, 16), W(out, 16));
	CALL_OF(clock_nanosleep, "of no clock", I(77), I(0), R(&none, 16), W(out, 16));
	CALL(getitimer, I(ITIMER_VIRTUAL), W(&old, sizeof old));
	CALL(setitimer, I(ITIMER_VIRTUAL), R(&far, sizeof far), W(&old, sizeof old));
	getitimer(ITIMER_VIRTUAL, &old);
	P(old.it_value.tv_sec > 0);
	CALL(gettimeofday, W(out, sizeof(struct timeval)), W(out + 16, 8));
	CALL(time, W(out, 8));
	CALL(clock_gettime, I(CLOCK_REALTIME), W(out, 16));
	CALL_OF(clock_gettime, "of no clock", I(77), W(out, 16));
	CALL(clock_getres, I(CLOCK_REALTIME), W(out, 16));
	struct sigevent event = {.sigev_notify = SIGEV_NONE};
	CALL(timer_create, I(CLOCK_MONOTONIC), R(&event, sizeof event), W(out, 4));
	int timer;
	V(syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &timer));
	struct itimerspec later = {.it_value = {1000, 0}};
	CALL(timer_settime, I(timer), I(0), R(&later, sizeof later), W(out, sizeof later));
	CALL(timer_gettime, I(timer), W(out, sizeof later));
	V(syscall(SYS_timer_settime, 77, 0, 8, 8));
	V(syscall(SYS_timer_gettime, 77, 8));
	syscall(SYS_timer_gettime, timer, &later);
	P(later.it_value.tv_sec > 0);
}

static void futexes(void)
{
	static unsigned word[4];
	word[0] = 5;
	CALL_OF(futex, "wait", R(&word, 4), I(FUTEX_WAIT), I(1), I(0));
	CALL_BUT(BUT(NONE), futex, "wait, for no time", R(&word, 4), I(FUTEX_WAIT_PRIVATE), I(5), R(&none, 16));
	CALL_BUT(BUT(NONE), futex, "wait with bits", R(&word, 4), I(FUTEX_WAIT_BITSET_PRIVATE), I(5), R(&none, 16), I(0), I(-1));
	CALL_BUT(BUT(RESERVED), futex, "wake", R(&word, 4), I(FUTEX_WAKE), I(1));
	CALL_BUT(BUT(RESERVED), futex, "requeue", R(&word, 4), I(FUTEX_REQUEUE_PRIVATE), I(1), I(1), R(&word[1], 4));
	CALL_BUT(BUT(RESERVED), futex, "compare and requeue", R(&word, 4), I(FUTEX_CMP_REQUEUE_PRIVATE), I(1), I(1), R(&word[1], 4), I(5));
	CALL_BUT(BUT(RESERVED), futex, "wake and change", RW(&word, 4), I(FUTEX_WAKE_OP_PRIVATE), I(1), I(1), RW(&word[1], 4), I(FUTEX_OP(FUTEX_OP_ADD, 1, FUTEX_OP_CMP_EQ, 0)));
	word[0] = 0;
	CALL_OF(futex, "try to lock", RW(&word, 4), I(FUTEX_TRYLOCK_PI_PRIVATE));
	word[0] = 0;
	CALL_OF(futex, "lock", RW(&word, 4), I(FUTEX_LOCK_PI_PRIVATE), I(0), R(&none, 16));
	word[0] = 0;
	CALL_BUT(BUT(CROSSES) | BUT(LAST), futex, "unlock", RW(&word, 4), I(FUTEX_UNLOCK_PI_PRIVATE));
}

static void places_of_memory(void)
{
	int mode;
	CALL(get_mempolicy, W(&mode, 4), W(out, 128), I(1024), I(0), I(0));
	CALL(set_mempolicy, I(0), R(out, 8), I(64));
	CALL(mbind, I(bad), I(4096), I(0), R(out, 8), I(64), I(0));
	CALL(mincore, I(bad), I(4096), W(out, 1));
}

int main(void)
{
	set_up();
	family("about processes", about);
	family("scheduling", scheduling);
	family("children", children);
	family("signals", signals);
	family("events", events);
	family("clocks", clocks);
	family("futexes", futexes);
	family("places of memory", places_of_memory);
	return 0;
}
