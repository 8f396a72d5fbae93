// Sending and taking signals: siginfo, masks, alternate stack, action flags, waiting for signals.
#include "case.h"
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <ucontext.h>

static volatile int depth, deepest, rounds, hits;
static char *alt;
static char order[64];
static int at;

static void show(int s, siginfo_t *i, void *u)
{
	ucontext_t *uc = u;
	printf("signal %d code %d", s, i->si_code);
	if (i->si_code == SI_USER || i->si_code == SI_QUEUE || i->si_code == SI_TKILL)
		printf(" from me %d uid %d", i->si_pid == getpid(), i->si_uid);
	if (i->si_code == SI_QUEUE)
		printf(" value %d", i->si_int);
	if (i->si_code == SI_TIMER)
		printf(" value %d overrun %d", i->si_int, i->si_overrun);
	sigset_t now;
	sigprocmask(SIG_BLOCK, 0, &now);
	printf(" blocked now %d before %d\n", sigismember(&now, s), sigismember(&uc->uc_sigmask, s));
	hits++;
}
static void nest(int s)
{
	depth++;
	if (depth > deepest)
		deepest = depth;
	if (rounds++ < 2)
		raise(s);
	depth--;
}
static void on_alt(int s, siginfo_t *i, void *u)
{
	ucontext_t *uc = u;
	char here;
	stack_t st;
	sigaltstack(0, &st);
	printf("on alternate stack: %d, ss_flags %d, uc_stack flags %d size %zu\n",
	       &here > alt && &here < alt + 65536, st.ss_flags, uc->uc_stack.ss_flags, uc->uc_stack.ss_size);
	stack_t other = {.ss_sp = alt, .ss_size = 65536};
	V(sigaltstack(&other, 0));
}
static void note(int s)
{
	order[at++] = 'A' + s % 26;
}
static void change(int s, siginfo_t *i, void *u)
{
	ucontext_t *uc = u;
	uc->uc_mcontext.gregs[REG_RBX] = 0x1234567;
	sigaddset(&uc->uc_sigmask, SIGUSR2);
}
static void nothing(int s) { hits++; }

static void set(int s, void *h, int flags, int extra)
{
	struct sigaction sa = {.sa_flags = flags};
	sa.sa_handler = h;
	if (extra)
		sigaddset(&sa.sa_mask, extra);
	if (sigaction(s, &sa, 0))
		printf("sigaction %s\n", err_(errno));
}

int main(void)
{
	sigset_t s, old;
	siginfo_t i;
	struct timespec no = {0, 0}, ms = {0, 20000000};
	union sigval v = {.sival_int = 77};
	SECTION("siginfo");
	set(SIGUSR1, show, SA_SIGINFO, 0);
	set(SIGRTMIN + 1, show, SA_SIGINFO | SA_NODEFER, 0);
	V(kill(getpid(), SIGUSR1));
	V(raise(SIGUSR1));
	V(sigqueue(getpid(), SIGUSR1, v));
	V(sigqueue(getpid(), SIGRTMIN + 1, v));
	V(syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), SIGUSR1));
	V(syscall(SYS_tkill, syscall(SYS_gettid), SIGUSR1));
	V(pthread_sigqueue(pthread_self(), SIGUSR1, v));
	V(kill(getpid(), 0));
	V(kill(getpid(), 65));
	V(kill(getpid(), -1));
	V(kill(999999999, 0));
	V(syscall(SYS_tgkill, getpid(), 999999999, 0));
	V(syscall(SYS_tgkill, -1, 1, 0));
	V(syscall(SYS_tkill, 0, 0));
	memset(&i, 0, sizeof i);
	i.si_code = SI_USER;
	i.si_signo = SIGUSR1;
	V(syscall(SYS_rt_sigqueueinfo, getpid(), SIGUSR1, &i));
	V(syscall(SYS_rt_sigqueueinfo, 999999999, SIGUSR1, &i));
	V(syscall(SYS_rt_sigqueueinfo, getpid(), SIGUSR1, 0));
	SECTION("sigaction");
	struct sigaction sa;
	V(sigaction(SIGKILL, &(struct sigaction){.sa_handler = nothing}, 0));
	V(sigaction(SIGSTOP, 0, &sa));
	V(syscall(SYS_rt_sigaction, 0, 0, 0, 8));
	V(syscall(SYS_rt_sigaction, 65, 0, 0, 8));
	V(syscall(SYS_rt_sigaction, SIGUSR1, 0, 0, 4));
	V(syscall(SYS_rt_sigaction, SIGUSR1, 8, 0, 8));
	V(syscall(SYS_rt_sigaction, SIGUSR1, 0, 8, 8));
	V(sigaction(SIGUSR1, 0, &sa));
	X(sa.sa_flags);
	set(SIGUSR2, nothing, SA_RESETHAND, 0);
	hits = 0;
	raise(SIGUSR2);
	sigaction(SIGUSR2, 0, &sa);
	printf("%d reset %d\n", hits, sa.sa_handler == SIG_DFL);
	set(SIGUSR2, nest, SA_NODEFER, 0);
	raise(SIGUSR2);
	P(deepest);
	deepest = depth = rounds = 0;
	set(SIGUSR2, nest, 0, 0);
	raise(SIGUSR2);
	P(deepest);
	SECTION("masks and order");
	sigfillset(&s);
	V(sigprocmask(SIG_BLOCK, &s, &old));
	for (int n = 1; n <= 64; n++)
		if (n != 32 && n != 33 && n != SIGKILL && n != SIGSTOP)
			set(n, note, 0, 0);
	raise(SIGTERM);
	raise(SIGRTMIN + 3);
	raise(SIGRTMIN + 3);
	raise(SIGHUP);
	raise(SIGHUP);
	raise(SIGUSR1);
	raise(SIGSEGV);
	kill(getpid(), SIGRTMIN + 2);
	sigpending(&s);
	for (int n = 1; n <= 64; n++)
		if (sigismember(&s, n) == 1)
			printf("%d ", n);
	puts("pending");
	sigprocmask(SIG_SETMASK, &old, 0);
	puts(order);
	V(sigprocmask(99, &s, 0));
	V(syscall(SYS_rt_sigprocmask, SIG_BLOCK, &s, 0, 4));
	V(syscall(SYS_rt_sigprocmask, SIG_BLOCK, 8, 0, 8));
	V(syscall(SYS_rt_sigpending, 8, 8));
	sigemptyset(&s);
	sigaddset(&s, SIGKILL);
	sigaddset(&s, SIGSTOP);
	sigprocmask(SIG_BLOCK, &s, 0);
	sigprocmask(SIG_BLOCK, 0, &s);
	P(sigismember(&s, SIGKILL));
	SECTION("alternate stack");
	alt = malloc(65536);
	stack_t st = {.ss_sp = alt, .ss_size = 65536}, ost;
	V(sigaltstack(&st, &ost));
	P(ost.ss_flags);
	st.ss_size = 100;
	V(sigaltstack(&st, 0));
	st.ss_flags = 77;
	V(sigaltstack(&st, 0));
	set(SIGUSR1, on_alt, SA_SIGINFO | SA_ONSTACK, 0);
	raise(SIGUSR1);
	set(SIGUSR1, on_alt, SA_SIGINFO, 0);
	raise(SIGUSR1);
	st.ss_flags = SS_DISABLE;
	V(sigaltstack(&st, &ost));
	P(ost.ss_size);
	set(SIGUSR1, on_alt, SA_SIGINFO | SA_ONSTACK, 0);
	raise(SIGUSR1);
	st = (stack_t){.ss_sp = alt, .ss_size = 65536, .ss_flags = 1u << 31};
	V(sigaltstack(&st, 0));
	raise(SIGUSR1);
	sigaltstack(0, &ost);
	X(ost.ss_flags);
	st.ss_flags = SS_DISABLE;
	sigaltstack(&st, 0);
	SECTION("a handler changes registers and the mask");
	set(SIGUSR1, change, SA_SIGINFO, 0);
	long rbx;
	__asm__ volatile("mov $0, %%rbx\n mov %%rax, %%rdi\n mov %2, %%esi\n mov $200, %%eax\n syscall\n mov %%rbx, %0"
			 : "=r"(rbx) : "a"(syscall(SYS_gettid)), "i"(SIGUSR1) : "rbx", "rdi", "rsi", "rcx", "r11", "memory");
	X(rbx);
	sigprocmask(SIG_BLOCK, 0, &s);
	P(sigismember(&s, SIGUSR2));
	SECTION("waiting for signals");
	sigemptyset(&s);
	sigaddset(&s, SIGUSR1);
	sigaddset(&s, SIGRTMIN);
	sigprocmask(SIG_SETMASK, &s, 0);
	V(sigtimedwait(&s, &i, &no));
	V(sigtimedwait(&s, &i, &ms));
	struct timespec bad = {0, 1000000000};
	V(sigtimedwait(&s, &i, &bad));
	sigqueue(getpid(), SIGRTMIN, v);
	v.sival_int = 78;
	sigqueue(getpid(), SIGRTMIN, v);
	raise(SIGUSR1);
	V(sigtimedwait(&s, &i, &ms));
	P(i.si_code);
	V(sigwaitinfo(&s, &i));
	P(i.si_int);
	V(sigwaitinfo(&s, &i));
	P(i.si_int);
	int got;
	pthread_t l = signal_later(SIGUSR1, 20);
	V(sigwait(&s, &got));
	P(got);
	pthread_join(l, 0);
	set(SIGUSR2, nothing, 0, 0);
	sigemptyset(&old);
	l = signal_later(SIGUSR2, 20);
	V(sigtimedwait(&s, &i, 0));
	pthread_join(l, 0);
	hits = 0;
	set(SIGUSR1, nothing, 0, 0);
	raise(SIGUSR1);
	V(sigsuspend(&old));
	P(hits);
	sigprocmask(SIG_BLOCK, 0, &old);
	P(sigismember(&old, SIGUSR1));
	l = signal_later(SIGUSR2, 20);
	V(pause());
	pthread_join(l, 0);
	SECTION("signalfd");
	int fd = V(signalfd(-1, &s, SFD_NONBLOCK | SFD_CLOEXEC));
	struct signalfd_siginfo fs[3];
	V(read(fd, fs, sizeof fs));
	V(read(fd, fs, 4));
	sigqueue(getpid(), SIGRTMIN, v);
	raise(SIGUSR1);
	struct pollfd p = {fd, POLLIN | POLLOUT};
	V(poll(&p, 1, 0));
	X(p.revents);
	long n = V(read(fd, fs, sizeof fs));
	for (int k = 0; k < n / (long)sizeof *fs; k++)
		printf("%u %d mine %d uid %u int %d ptr %llx\n", fs[k].ssi_signo, fs[k].ssi_code, fs[k].ssi_pid == getpid(), fs[k].ssi_uid, fs[k].ssi_int, (long long)fs[k].ssi_ptr);
	sigdelset(&s, SIGUSR1);
	V(signalfd(fd, &s, 0));
	raise(SIGUSR1);
	V(read(fd, fs, sizeof fs));
	V(signalfd(1, &s, 0));
	V(signalfd(-1, &s, 7));
	V(write(fd, fs, 8));
	SECTION("full queue");
	while (sigtimedwait(&s, &i, &no) > 0)
		;
	struct rlimit few = {50, 50};
	V(setrlimit(RLIMIT_SIGPENDING, &few));
	sigfillset(&s);
	sigprocmask(SIG_SETMASK, &s, 0);
	// Others of the same user may have some, too.
	int queued = 0;
	while (sigqueue(getpid(), SIGRTMIN, v) == 0)
		queued++;
	printf("queued %s, %s\n", queued > 0 && queued <= 50 ? "some" : "none or too many", strerror(errno));
	V(sigqueue(getpid(), SIGRTMIN + 1, v));
	// These come all the same.
	V(kill(getpid(), SIGUSR1));
	V(kill(getpid(), SIGRTMIN + 2));
	V(kill(getpid(), SIGRTMIN + 2));
	V(alarm(1));
	sigemptyset(&s);
	sigaddset(&s, SIGALRM);
	V(sigwaitinfo(&s, &i));
	V(kill(getpid(), SIGALRM));
	sigfillset(&s);
	int seen[65] = {0};
	while ((got = sigtimedwait(&s, &i, &no)) > 0)
		seen[got]++;
	printf("taken %d %d %d %d\n", seen[SIGUSR1], seen[SIGALRM], seen[SIGRTMIN + 2], seen[SIGRTMIN] == queued);
	return 0;
}
