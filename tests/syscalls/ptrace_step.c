// PTRACE_SINGLESTEP: how many steps a sequence of instructions takes, with system calls in it of several kinds, faults that are served,
// a signal's handler, a loop; what a step over a call that waits is; a step by which a program is begun.
// nucleus: no (PTRACE_SINGLESTEP isn't supported there)
// strace: alone
#define _GNU_SOURCE
#include <errno.h>
#include <linux/ptrace.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

static long pt(long request, pid_t pid, long addr, long data)
{
	return syscall(SYS_ptrace, request, pid, addr, data);
}

extern char begin[], end[], handler_code[];
static volatile int handled;

static void handler(int s)
{
	(void)s;
	handled++;
}

static char *page;

__attribute__((noinline)) static void sequence(void)
{
	register long me __asm__("r12") = getpid();
	__asm__ volatile(".globl begin\nbegin:\n\t"
			 "nop\n\t"
			 "mov $102, %%eax\n\t" // getuid
			 "syscall\n\t"
			 "mov %%r12, %%rdi\n\t"
			 "nop\n\t"
			 "mov $104, %%eax\n\t" // getgid
			 "syscall\n\t"
			 "nop\n\t"
			 "mov $10, %%esi\n\t" // kill(getpid(), SIGUSR1): a handler
			 "mov $62, %%eax\n\t"
			 "syscall\n\t"
			 "nop\n\t"
			 "mov $24, %%eax\n\t" // sched_yield
			 "syscall\n\t"
			 "movb $1, (%%rbx)\n\t" // memory that isn't there yet
			 "movb $1, 0x3000(%%rbx)\n\t"
			 "mov $5, %%ecx\n"
			 "1:\n\t"
			 "dec %%ecx\n\t"
			 "jnz 1b\n\t"
			 "mov $-1, %%rdi\n\t" // close(-1)
			 "mov $3, %%eax\n\t"
			 "syscall\n\t"
			 "xor %%eax, %%eax\n"
			 ".globl end\nend:\n\t"
			 "nop\n\t"
			 :
			 : "b"(page), "r"(me)
			 : "rax", "rcx", "rdi", "rsi", "r11", "memory", "cc");
}

int main(int argc, char **argv)
{
	if (argc > 1)
		return 4;
	setvbuf(stdout, NULL, _IOFBF, 1 << 16);
	pid_t pid = fork();
	if (pid == 0) {
		pt(PTRACE_TRACEME, 0, 0, 0);
		page = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		signal(SIGUSR1, handler);
		raise(SIGSTOP);
		sequence();
		printf("child: handled %d, memory %d %d\n", handled, page[0], page[0x3000]);
		fflush(stdout);
		execl("/proc/self/exe", argv[0], "ends", NULL);
		_exit(1);
	}
	int status;
	waitpid(pid, &status, 0);
	// To the beginning of the sequence, by a breakpoint.
	long word;
	pt(PTRACE_PEEKTEXT, pid, (long)begin, (long)&word);
	pt(PTRACE_POKETEXT, pid, (long)begin, (word & ~0xffl) | 0xcc);
	pt(PTRACE_CONT, pid, 0, 0);
	waitpid(pid, &status, 0);
	pt(PTRACE_POKETEXT, pid, (long)begin, word);
	struct user_regs_struct r;
	pt(PTRACE_GETREGS, pid, 0, (long)&r);
	printf("at the beginning: %d\n", r.rip == (uintptr_t)begin + 1);
	r.rip = (uintptr_t)begin;
	pt(PTRACE_SETREGS, pid, 0, (long)&r);
	int inside = 0, steps = 0, deliver = 0, others = 0;
	while (steps < 100000) {
		if (pt(PTRACE_SINGLESTEP, pid, 0, deliver)) {
			printf("singlestep: %s\n", strerrorname_np(errno));
			break;
		}
		waitpid(pid, &status, 0);
		if (!WIFSTOPPED(status))
			break;
		steps++;
		deliver = 0;
		pt(PTRACE_GETREGS, pid, 0, (long)&r);
		siginfo_t info;
		pt(PTRACE_GETSIGINFO, pid, 0, (long)&info);
		if (WSTOPSIG(status) != SIGTRAP) {
			printf("at %lld: signal %d\n", r.rip - (uintptr_t)begin, WSTOPSIG(status));
			deliver = WSTOPSIG(status);
			continue;
		}
		if (r.rip >= (uintptr_t)begin && r.rip <= (uintptr_t)end) {
			inside++;
			printf(" %lld", r.rip - (uintptr_t)begin);
		} else if (r.rip == (uintptr_t)handler) {
			printf("\nin the handler: code %d, rdi %lld, trap flag %d\n", info.si_code, r.rdi, (int)(r.eflags >> 8 & 1));
		} else {
			others++;
		}
		if (r.rip == (uintptr_t)end)
			break;
	}
	printf("\ninside %d, in the handler some %d\n", inside, others > 1);
	printf("eax %lld\n", r.rax);
	// On to its exec, and by some steps into the new program.
	pt(PTRACE_CONT, pid, 0, 0);
	waitpid(pid, &status, 0);
	printf("exec: signal %d\n", WIFSTOPPED(status) ? WSTOPSIG(status) : -1);
	for (steps = 0; steps < 1000; steps++) {
		pt(PTRACE_SINGLESTEP, pid, 0, 0);
		waitpid(pid, &status, 0);
		if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGTRAP)
			break;
	}
	printf("%d steps\n", steps);
	pt(PTRACE_CONT, pid, 0, 0);
	waitpid(pid, &status, 0);
	printf("end: %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
	return 0;
}
