// flags: -lm
// nucleus-differs: int 0x81:; int1:; float: (QEMU's emulation: a wrong error code, no such instruction, no such exceptions)
// Signals of real faults: code, address, trap number, error code; recovery by siglongjmp and by changing rip.
#include "case.h"
#include <fenv.h>
#include <setjmp.h>
#include <ucontext.h>

static sigjmp_buf back;
static char *expected;
static volatile int go_on;

static void handler(int s, siginfo_t *i, void *u)
{
	ucontext_t *uc = u;
	greg_t *g = uc->uc_mcontext.gregs;
	printf("signal %d code %d", s, i->si_code);
	if (s == SIGSEGV || s == SIGBUS)
		printf(" address %s%ld cr2 %d", i->si_addr ? "expected " : "0, ", i->si_addr ? (long)((char *)i->si_addr - expected) : 0,
		       i->si_code == 0x80 || g[REG_CR2] == (long)i->si_addr);
	else
		printf(" address is rip %d", (long)i->si_addr == g[REG_RIP]);
	printf(" trapno %lld err %lld\n", g[REG_TRAPNO], g[REG_ERR] & 0x16);
	fflush(stdout);
	if (go_on) {
		if (s == SIGILL)
			g[REG_RIP] += 2;
		return;
	}
	siglongjmp(back, 1);
}

#define TRY(name, ...) do { printf("%s: ", name); fflush(stdout); if (!sigsetjmp(back, 1)) { __VA_ARGS__; puts("no fault"); } } while (0)

static volatile int zero, sink_i;
static char stack[65536];
static int recurse(volatile int *p)
{
	volatile int big[1024];
	big[0] = p ? *p : 0;
	return recurse(big) + big[0];
}
static void overflow(int s, siginfo_t *i, void *u)
{
	printf("signal %d code %d near the stack pointer %d\n", s, i->si_code,
	       labs((long)i->si_addr - (long)((ucontext_t *)u)->uc_mcontext.gregs[REG_RSP]) < 65536);
	siglongjmp(back, 1);
}

int main(void)
{
	struct sigaction sa = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_NODEFER};
	int all[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};
	for (int k = 0; k < 5; k++)
		sigaction(all[k], &sa, 0);
	char *p = mmap(0, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	mprotect(p + 4096, 4096, PROT_NONE);
	munmap(p + 8192, 4096);
	expected = p;
	TRY("read of nothing", sink_i = *(volatile char *)(p + 8192 + 5));
	TRY("write to nothing", *(volatile char *)(p + 8192 + 6) = 1);
	TRY("read of PROT_NONE", sink_i = *(volatile char *)(p + 4096 + 7));
	mprotect(p + 4096, 4096, PROT_READ);
	TRY("write to read-only", *(volatile char *)(p + 4096 + 8) = 1);
	TRY("run data", ((void (*)(void))p)());
	TRY("null", *(volatile char *)expected = 0; expected = (char *)8; *(volatile long *)8 = 1);
	expected = p;
	TRY("run null", ((void (*)(void))(long)zero)());
	TRY("not canonical", sink_i = *(volatile char *)0x1234567812345678);
	expected = (char *)0xffffffff81000000;
	TRY("kernel's half", sink_i = *(volatile char *)expected);
	expected = (char *)main;
	TRY("write to text", *(volatile char *)(long)main = 1);
	TRY("privileged", __asm__ volatile("hlt"));
	TRY("in", __asm__ volatile("in $0x80, %%al" ::: "rax"));
	TRY("int 0x81", __asm__ volatile("int $0x81"));
	TRY("division", sink_i = 1 / zero);
	volatile int min = INT_MIN, minus = -1;
	TRY("division overflow", sink_i = min / minus);
	TRY("invalid", __asm__ volatile("ud2"));
	TRY("trap", __asm__ volatile("int3"));
	TRY("int1", __asm__ volatile(".byte 0xf1"));
	TRY("float", feenableexcept(FE_DIVBYZERO); volatile double d = 0; d = 1 / d; );
	fedisableexcept(FE_ALL_EXCEPT);
	feclearexcept(FE_ALL_EXCEPT);
	int fd = memfd_create("x", 0);
	ftruncate(fd, 4096);
	char *f = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	expected = f;
	f[4095] = 1;
	TRY("past the end of a file", sink_i = *(volatile char *)(f + 4096 + 9));
	TRY("write past the end of a file", *(volatile char *)(f + 4096 + 9) = 1);
	ftruncate(fd, 0);
	TRY("truncated", sink_i = *(volatile char *)f);
	ftruncate(fd, 4096);
	TRY("grown again", printf("%d ", *(volatile char *)(f + 4095)));
	SECTION("going on behind the instruction");
	go_on = 1;
	__asm__ volatile("ud2");
	puts("behind ud2");
	SECTION("registers survive");
	__asm__ volatile("" ::: "memory");
	long r[3];
	__asm__ volatile("mov $11, %%r12\n mov $22, %%r13\n mov $33, %%r14\n int3\n mov %%r12, %0\n mov %%r13, 8%0\n mov %%r14, 16%0"
		: "=m"(r) :: "r12", "r13", "r14", "memory");
	printf("%ld %ld %ld\n", r[0], r[1], r[2]);
	return 0;
}
__attribute__((constructor)) static void first(void)
{
	// Before the others: a stack that overflows, handled on another stack.
	stack_t st = {.ss_sp = stack, .ss_size = sizeof stack};
	sigaltstack(&st, 0);
	struct sigaction sa = {.sa_sigaction = overflow, .sa_flags = SA_SIGINFO | SA_ONSTACK};
	sigaction(SIGSEGV, &sa, 0);
	if (!sigsetjmp(back, 1))
		printf("%d\n", recurse(0));
	st.ss_flags = SS_DISABLE;
	sigaltstack(&st, 0);
}
