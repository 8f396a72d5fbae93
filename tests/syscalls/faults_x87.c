// Exceptions of the x87 unit that are not masked: SIGFPE at the instruction that waits for them, and what its frame says of them.
#include "case.h"
#include <ucontext.h>

static void *volatile waits;
static volatile int faults;

static void fault(int signal, siginfo_t *info, void *context)
{
	ucontext_t *c = context;
	struct _libc_fpstate *state = c->uc_mcontext.fpregs;
	faults++;
	P(signal);
	P(info->si_code);
	P(info->si_addr == waits);
	P((void *)c->uc_mcontext.gregs[REG_RIP] == waits);
	P(c->uc_mcontext.gregs[REG_TRAPNO]);
	X(state->cwd);
	// Invalid, zero, overflow, a summary; the last instruction that counts.
	X(state->swd & 0x8d);
	// It goes on as if nothing had been: no exception is pending.
	state->swd &= ~0x80ff;
}

// Does that with this exception unmasked.
#define TRY(name, unmasked, does) do { \
	SECTION(name); \
	unsigned short control = 0x37f & ~(unmasked), after = 0; \
	void *at; \
	__asm__ volatile("fninit\n fldcw %2\n" does "\n lea 1f(%%rip), %0\n mov %0, %1\n1: fwait\n fnstsw %3\n fninit" \
			 : "=&r"(at), "=m"(waits) : "m"(control), "m"(after) : "memory", "st", "st(1)"); \
	P(at == waits); \
	X(after & 0x8d); \
} while (0)

int main(void)
{
	struct sigaction action = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO};
	V(sigaction(SIGFPE, &action, 0));
	TRY("zero", 4, "fld1\n fldz\n fdivrp");
	TRY("invalid", 1, "fld1\n fchs\n fsqrt");
	// The last of them is too much.
	TRY("overflow", 8, "fldpi\n .rept 14\n fmul %%st(0), %%st(0)\n .endr");
	TRY("masked", 0, "fld1\n fldz\n fdivrp");
	P(faults);
	// Nobody takes it.
	pid_t p = fork();
	if (!p) {
		signal(SIGFPE, SIG_DFL);
		unsigned short control = 0x37f & ~4;
		__asm__ volatile("fninit\n fldcw %0\n fld1\n fldz\n fdivrp\n fwait" : : "m"(control) : "st", "st(1)");
		_exit(0);
	}
	int status;
	waitpid(p, &status, 0);
	P(WIFSIGNALED(status) ? WTERMSIG(status) : -1);
	return 0;
}
