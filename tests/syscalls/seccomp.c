// flags: -pthread
// seccomp(2): what a filter may be, and may say; whom it holds for; several of them; threads that are to have the same ones;
// the strict mode.
#include "case.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <ucontext.h>

#define FIELD(name) offsetof(struct seccomp_data, name)
#define LOAD(name) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, FIELD(name))
#define SAY(what) BPF_STMT(BPF_RET | BPF_K, what)
#define IF_IS(value, skip) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, skip)
#define COUNT(a) (sizeof(a) / sizeof *(a))

static void say(const char *what, long got)
{
	if (got < 0)
		printf("%s: %s\n", what, err_(errno));
	else
		printf("%s: %ld\n", what, got);
	fflush(stdout);
}

static long filter_of(struct sock_filter *code, size_t len, unsigned flags)
{
	struct sock_fprog p = { .len = len, .filter = code };
	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &p);
}

// One call, and what is said of it.
static long forbid(long number, unsigned said, unsigned flags)
{
	struct sock_filter code[] = { LOAD(nr), IF_IS(number, 1), SAY(said), SAY(SECCOMP_RET_ALLOW) };
	return filter_of(code, COUNT(code), flags);
}

static void status_of(const char *what, int status)
{
	if (WIFSIGNALED(status))
		printf("%s: signal %d\n", what, WTERMSIG(status));
	else if (WIFEXITED(status))
		printf("%s: exit %d\n", what, WEXITSTATUS(status));
	else
		printf("%s: %x\n", what, status);
	fflush(stdout);
}

// In a process of its own, with no new privileges.
static void (*to_do)(void);

static void begin(void)
{
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	to_do();
}

static void in_child(const char *what, void (*f)(void))
{
	to_do = f;
	status_of(what, end_child(begin_child(begin)));
}

static void show_mode(const char *what)
{
	char line[256];
	FILE *f = fopen("/proc/thread-self/status", "r");
	printf("%s: mode %d", what, prctl(PR_GET_SECCOMP, 0, 0, 0, 0));
	while (fgets(line, sizeof line, f))
		if (!strncmp(line, "Seccomp", 7))
			printf(" %.*s", (int)strcspn(line, "\n"), line);
	printf("\n");
	fclose(f);
}

static void unprivileged(void)
{
	say("setuid", setuid(65534));
	say("no new privileges are needed", forbid(SYS_getcwd, SECCOMP_RET_ERRNO, 0));
}

static void refused(void)
{
	struct sock_filter ok[] = { SAY(SECCOMP_RET_ALLOW) };
	struct sock_filter no_end[] = { LOAD(nr) };
	struct sock_filter odd[] = { BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 2), SAY(0) };
	struct sock_filter far[] = { BPF_STMT(BPF_LD | BPF_W | BPF_ABS, sizeof(struct seccomp_data)), SAY(0) };
	struct sock_filter half[] = { BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 0), SAY(0) };
	struct sock_filter jump[] = { BPF_STMT(BPF_JMP | BPF_JA, 1), SAY(0) };
	struct sock_filter unset[] = { BPF_STMT(BPF_LD | BPF_MEM, 3), SAY(0) };
	struct sock_filter by_zero[] = { BPF_STMT(BPF_ALU | BPF_DIV | BPF_K, 0), SAY(0) };
	struct sock_filter modulo[] = { BPF_STMT(BPF_ALU | BPF_MOD | BPF_K, 3), SAY(0) };
	say("nothing", filter_of(ok, 0, 0));
	static struct sock_filter many[4097];
	for (size_t i = 0; i < COUNT(many); i++)
		many[i] = ok[0];
	say("too many", filter_of(many, 4097, 0));
	say("many", filter_of(many, 4096, 0));
	say("no end", filter_of(no_end, 1, 0));
	say("odd", filter_of(odd, 2, 0));
	say("behind it", filter_of(far, 2, 0));
	say("half a word", filter_of(half, 2, 0));
	say("jump", filter_of(jump, 2, 0));
	say("never stored", filter_of(unset, 2, 0));
	say("by zero", filter_of(by_zero, 2, 0));
	say("modulo", filter_of(modulo, 2, 0));
	say("flag", filter_of(ok, 1, 1 << 20));
	say("killable, and no listener", filter_of(ok, 1, SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV));
	say("log, speculation", filter_of(ok, 1, SECCOMP_FILTER_FLAG_LOG | SECCOMP_FILTER_FLAG_SPEC_ALLOW));
	say("nowhere", syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, NULL));
	struct sock_fprog p = { .len = 1, .filter = (void *)8 };
	say("instructions nowhere", syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &p));
	say("strict with flags", syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 1, NULL));
	say("strict with more", syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, &p));
	say("strict after a filter", syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, NULL));
	say("operation", syscall(SYS_seccomp, 77, 0, NULL));
	say("prctl mode", prctl(PR_SET_SECCOMP, 3, 0, 0, 0));
	say("prctl mode 0", prctl(PR_SET_SECCOMP, 0, 0, 0, 0));
	say("prctl nowhere", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL, 0, 0));
	p = (struct sock_fprog){ .len = 1, .filter = ok };
	say("prctl", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p, 0, 0));
	unsigned actions[] = { SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_KILL_THREAD, SECCOMP_RET_TRAP, SECCOMP_RET_ERRNO,
			       SECCOMP_RET_TRACE, SECCOMP_RET_LOG, SECCOMP_RET_ALLOW, 0x12340000 };
	for (size_t i = 0; i < COUNT(actions); i++)
		say("action", syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &actions[i]));
	say("action with flags", syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 1, &actions[0]));
	say("action nowhere", syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, NULL));
	struct seccomp_notif_sizes sizes;
	say("sizes", syscall(SYS_seccomp, SECCOMP_GET_NOTIF_SIZES, 0, &sizes));
	printf("%d %d %d\n", sizes.seccomp_notif, sizes.seccomp_notif_resp, sizes.seccomp_data);
	show_mode("after that");
}

static void too_long(void)
{
	static struct sock_filter many[4096];
	for (size_t i = 0; i < COUNT(many); i++)
		many[i] = (struct sock_filter)SAY(SECCOMP_RET_ALLOW);
	int n = 0;
	while (filter_of(many, COUNT(many), 0) == 0)
		n++;
	say("no more", -1);
	printf("%d\n", n);
}

static long call_at(uint64_t *place)
{
	long r = SYS_getcwd;
	uint64_t at;
	asm volatile("lea 1f(%%rip), %1\n\tsyscall\n1:" : "+a"(r), "=&r"(at) : "D"(0L), "S"(0L) : "rcx", "r11", "memory");
	*place = at;
	return r;
}

static void errors(void)
{
	char b[64];
	say("of two the last one", forbid(SYS_getcwd, SECCOMP_RET_ERRNO | 1, 0));
	say("is heard", forbid(SYS_getcwd, SECCOMP_RET_ERRNO | 2, 0));
	say("getcwd", syscall(SYS_getcwd, b, sizeof b));
	say("0", forbid(SYS_chdir, SECCOMP_RET_ERRNO, 0));
	say("chdir", syscall(SYS_chdir, "/none"));
	say("largest", forbid(SYS_mkdir, SECCOMP_RET_ERRNO | 0xffff, 0));
	errno = 0;
	printf("mkdir: %ld %d\n", syscall(SYS_mkdir, "/none", 0), errno);
	say("no such call", forbid(1000, SECCOMP_RET_ERRNO | EDOM, 0));
	say("1000", syscall(1000));
	say("log", forbid(SYS_times, SECCOMP_RET_LOG, 0));
	printf("times: %d\n", syscall(SYS_times, NULL) != -1);
	say("trace", forbid(SYS_sync, SECCOMP_RET_TRACE | 7, 0));
	say("sync", syscall(SYS_sync));
	say("notification", forbid(SYS_vhangup, SECCOMP_RET_USER_NOTIF, 0));
	say("vhangup", syscall(SYS_vhangup));
	// By an argument, both halves.
	struct sock_filter by_argument[] = {
		LOAD(nr), IF_IS(SYS_dup, 5), LOAD(args[0]), IF_IS(5, 3), BPF_STMT(BPF_LD | BPF_W | BPF_ABS, FIELD(args[0]) + 4), IF_IS(9, 1),
		SAY(SECCOMP_RET_ERRNO | EXDEV), SAY(SECCOMP_RET_ALLOW),
	};
	say("argument", filter_of(by_argument, COUNT(by_argument), 0));
	say("dup 5", syscall(SYS_dup, 5L));
	say("dup 5 and more", syscall(SYS_dup, 5L | 9L << 32));
	// Calculated: what is left of the length of the data, and a word of its own.
	struct sock_filter calculated[] = {
		LOAD(nr), IF_IS(SYS_dup2, 9), LOAD(arch), IF_IS(AUDIT_ARCH_X86_64, 7), BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0),
		BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 3), BPF_STMT(BPF_ST, 15), BPF_STMT(BPF_LDX | BPF_W | BPF_MEM, 15),
		BPF_STMT(BPF_ALU | BPF_MUL | BPF_X, 0), BPF_STMT(BPF_ALU | BPF_OR | BPF_K, SECCOMP_RET_ERRNO), BPF_STMT(BPF_RET | BPF_A, 0),
		SAY(SECCOMP_RET_ALLOW),
	};
	say("calculated", filter_of(calculated, COUNT(calculated), 0));
	errno = 0;
	printf("dup2: %ld %d\n", syscall(SYS_dup2, 0, 1), errno);
}

static void by_place(void)
{
	struct sock_filter code[] = {
		LOAD(nr), IF_IS(SYS_getcwd, 4), BPF_STMT(BPF_LD | BPF_W | BPF_ABS, FIELD(instruction_pointer)), BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0x7ff),
		BPF_STMT(BPF_ALU | BPF_OR | BPF_K, SECCOMP_RET_ERRNO), BPF_STMT(BPF_RET | BPF_A, 0), SAY(SECCOMP_RET_ALLOW),
	};
	say("place", filter_of(code, COUNT(code), 0));
	uint64_t at;
	long got = call_at(&at);
	printf("as it is: %d\n", -got == (long)(at & 0x7ff));
}

static volatile siginfo_t seen;
static volatile uint64_t seen_at, seen_rax;

static void on_sys(int signal, siginfo_t *info, void *context)
{
	(void)signal;
	ucontext_t *u = context;
	memcpy((void *)&seen, info, sizeof *info);
	seen_at = u->uc_mcontext.gregs[REG_RIP];
	seen_rax = u->uc_mcontext.gregs[REG_RAX];
	u->uc_mcontext.gregs[REG_RAX] = 4711;
}

static void trapped(void)
{
	struct sigaction a = { .sa_sigaction = on_sys, .sa_flags = SA_SIGINFO };
	sigaction(SIGSYS, &a, NULL);
	say("trap", forbid(SYS_getcwd, SECCOMP_RET_TRAP | 321, 0));
	say("an error is less", forbid(SYS_getcwd, SECCOMP_RET_ERRNO | 1, 0));
	uint64_t at;
	say("getcwd", call_at(&at));
	printf("%d code %d errno %d call %d arch %x, there: %d %d, rax %ld\n", seen.si_signo, seen.si_code, seen.si_errno, seen.si_syscall,
	       seen.si_arch, (uint64_t)seen.si_call_addr == at, seen_at == at, (long)seen_rax);
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGSYS);
	sigprocmask(SIG_BLOCK, &set, NULL);
	fflush(stdout);
	call_at(&at);
	printf("not here\n");
}

static void killed(void)
{
	say("kill", forbid(SYS_getcwd, SECCOMP_RET_KILL_THREAD, 0));
	syscall(SYS_getcwd, 0, 0);
	printf("not here\n");
}

static void unknown(void)
{
	say("unknown", forbid(SYS_getcwd, 0x12340000, 0));
	syscall(SYS_getcwd, 0, 0);
	printf("not here\n");
}

static void *makes_call(void *p)
{
	syscall(SYS_getcwd, 0, 0);
	return p;
}

static void thread_killed(void)
{
	pthread_t t;
	forbid(SYS_getcwd, SECCOMP_RET_KILL_THREAD, 0);
	pthread_create(&t, NULL, makes_call, NULL);
	// It says goodbye to nobody, but its id is cleared.
	pthread_join(t, NULL);
	printf("the others go on\n");
}

static void *ends_last(void *p)
{
	usleep(30000);
	syscall(SYS_exit, 7);
	return p;
}

// It ends as its first thread did.
static void first_killed(void)
{
	pthread_t t;
	forbid(SYS_getcwd, SECCOMP_RET_KILL_THREAD, 0);
	pthread_create(&t, NULL, ends_last, NULL);
	syscall(SYS_getcwd, 0, 0);
}

static void first_ended(void)
{
	pthread_t t;
	pthread_create(&t, NULL, ends_last, NULL);
	syscall(SYS_exit, 5);
}

static void process_killed(void)
{
	pthread_t t;
	forbid(SYS_getcwd, SECCOMP_RET_KILL_PROCESS, 0);
	pthread_create(&t, NULL, makes_call, NULL);
	pause();
	printf("not here\n");
}

static void inherits(void)
{
	forbid(SYS_getcwd, SECCOMP_RET_ERRNO | ENOTTY, 0);
	forbid(SYS_chdir, SECCOMP_RET_ERRNO | EDOM, 0);
	fflush(stdout);
	if (fork() == 0) {
		say("child", syscall(SYS_getcwd, 0, 0));
		forbid(SYS_mkdir, SECCOMP_RET_ERRNO | EDOM, 0);
		show_mode("child");
		fflush(stdout);
		execl("/proc/self/exe", "seccomp", "after exec", NULL);
	}
	wait(NULL);
	say("not its child's", syscall(SYS_mkdir, "/proc/none", 0) == -1 && errno == EDOM);
	fflush(stdout);
	pid_t pid;
	char *args[] = { "seccomp", "spawned", NULL };
	extern char **environ;
	int r = posix_spawn(&pid, "/proc/self/exe", NULL, NULL, args, environ);
	wait(NULL);
	say("spawn", r);
	show_mode("itself");
}

static pthread_barrier_t ready, done;
static volatile pid_t other;

static void *other_thread(void *diverges)
{
	other = gettid();
	if (diverges)
		forbid(SYS_chdir, SECCOMP_RET_ERRNO | EDOM, 0);
	pthread_barrier_wait(&ready);
	pthread_barrier_wait(&done);
	say("getcwd of another thread", syscall(SYS_getcwd, 0, 0));
	if (!diverges)
		show_mode("another thread");
	return NULL;
}

static void synchronized(void)
{
	pthread_t t;
	forbid(SYS_mkdir, SECCOMP_RET_ERRNO | EDOM, 0);
	for (long diverges = 0; diverges < 2; diverges++) {
		pthread_barrier_init(&ready, NULL, 2);
		pthread_barrier_init(&done, NULL, 2);
		pthread_create(&t, NULL, other_thread, (void *)diverges);
		pthread_barrier_wait(&ready);
		long r = forbid(SYS_getcwd, SECCOMP_RET_ERRNO | (diverges ? ENOTTY : EXDEV), SECCOMP_FILTER_FLAG_TSYNC);
		say("the same for all", r == other ? 1 : r);
		if (diverges)
			say("or an error", forbid(SYS_getcwd, SECCOMP_RET_ERRNO, SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_TSYNC_ESRCH));
		pthread_barrier_wait(&done);
		pthread_join(t, NULL);
	}
	show_mode("this one");
}

static void strict_ends(void)
{
	say("strict", prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0));
	static const char text[] = "may write\n";
	syscall(SYS_write, 1, text, sizeof text - 1);
	syscall(SYS_exit, 3);
}

static void strict_killed(void)
{
	say("strict", syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, NULL));
	syscall(SYS_getcwd, 0, 0);
	syscall(SYS_write, 1, "not here\n", 9);
}

int main(int argc, char **argv)
{
	struct rlimit none = { 0, 0 };
	setrlimit(RLIMIT_CORE, &none);
	if (argc > 1) {
		say(argv[1], syscall(SYS_getcwd, 0, 0));
		say(argv[1], syscall(SYS_mkdir, "/proc/none", 0) == -1 && errno == EDOM);
		show_mode(argv[1]);
		return 0;
	}
	show_mode("at first");
	end_child(begin_child(unprivileged));
	in_child("refused", refused);
	in_child("too long", too_long);
	in_child("errors", errors);
	in_child("by place", by_place);
	in_child("trapped", trapped);
	in_child("killed", killed);
	in_child("unknown", unknown);
	in_child("thread killed", thread_killed);
	in_child("first thread killed", first_killed);
	in_child("first thread ended", first_ended);
	in_child("process killed", process_killed);
	in_child("inherits", inherits);
	in_child("synchronized", synchronized);
	in_child("strict, ends", strict_ends);
	in_child("strict, killed", strict_killed);
	show_mode("in the end");
}
