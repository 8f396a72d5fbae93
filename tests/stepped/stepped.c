// Makes system calls with known contents of all registers and of the red
// zone, and checks all of them after each, in two threads of one core, until
// it is told to stop. `tests/tests/entry.rs` interrupts it at every
// instruction on the way into the runtime and back.
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

struct state {
	unsigned long r[16]; // rax rbx rcx rdx rsi rdi rbp r8 to r15, flags
	unsigned long zone[16];
	unsigned long xmm[32];
};

volatile int stop;
unsigned long passes, bad;

#define EACH(x) x(0) x(1) x(2) x(3) x(4) x(5) x(6) x(7) x(8) x(9) x(10) x(11) x(12) x(13) x(14) x(15)
#define LOADX(n) "movdqu 256+" #n "*16(%rcx), %xmm" #n "\n"
#define STOREX(n) "movdqu %xmm" #n ", 256+" #n "*16(%rcx)\n"
#define LOADZ(n) "mov 128+" #n "*8(%rcx), %rax\nmov %rax, -128+" #n "*8(%rsp)\n"
#define STOREZ(n) "mov -128+" #n "*8(%rsp), %rax\nmov %rax, 128+" #n "*8(%rcx)\n"
#define FUNCTION(name, site)                                                                      \
	".globl " name "\n.type " name ",@function\n.balign 16\n" name ":\n"                      \
	"push %rbx\npush %rbp\npush %r12\npush %r13\npush %r14\npush %r15\n"                      \
	"push %rsi\npush %rdi\nmov %rdi, %rcx\npush 120(%rcx)\npopf\n" EACH(LOADZ) EACH(LOADX)    \
	"mov (%rcx), %rax\nmov 8(%rcx), %rbx\nmov 24(%rcx), %rdx\nmov 32(%rcx), %rsi\n"           \
	"mov 40(%rcx), %rdi\nmov 48(%rcx), %rbp\nmov 56(%rcx), %r8\nmov 64(%rcx), %r9\n"          \
	"mov 72(%rcx), %r10\nmov 80(%rcx), %r11\nmov 88(%rcx), %r12\nmov 96(%rcx), %r13\n"        \
	"mov 104(%rcx), %r14\nmov 112(%rcx), %r15\n" site                                         \
	"mov 8(%rsp), %rcx\n"                                                                     \
	"mov %rax, (%rcx)\nmov %rbx, 8(%rcx)\nmov %rdx, 24(%rcx)\nmov %rsi, 32(%rcx)\n"           \
	"mov %rdi, 40(%rcx)\nmov %rbp, 48(%rcx)\nmov %r8, 56(%rcx)\nmov %r9, 64(%rcx)\n"          \
	"mov %r10, 72(%rcx)\nmov %r11, 80(%rcx)\nmov %r12, 88(%rcx)\nmov %r13, 96(%rcx)\n"        \
	"mov %r14, 104(%rcx)\nmov %r15, 112(%rcx)\n" EACH(STOREX) EACH(STOREZ)                    \
	"pushf\npop 120(%rcx)\npush $0x202\npopf\n"                                               \
	"pop %rdi\npop %rsi\npop %r15\npop %r14\npop %r13\npop %r12\npop %rbp\npop %rbx\nret\n"   \
	".size " name ", .-" name "\n"

// At a site that is rewritten by its number, at one that is by what follows, and at one that traps:
// something jumps to the call and to what is behind it.
asm(".text\n.globl steps_begin\nsteps_begin:\n"
    FUNCTION("by_mov", "mov $110, %eax\nsyscall\n")
    FUNCTION("by_following", "syscall\n")
    FUNCTION("trapped", "jmp 1f\n5: jmp 2f\n1: syscall\n2: jrcxz 3f\njmp 4f\n3: jmp 5b\n4:\n")
    ".globl steps_end\nsteps_end:\n");

void by_mov(const struct state *, struct state *), by_following(const struct state *, struct state *),
	trapped(const struct state *, struct state *);

static void *work(void *arg)
{
	static void (*const calls[])(const struct state *, struct state *) = { by_mov, by_following, trapped, by_following,
									     by_following };
	static const long numbers[] = { SYS_getppid, SYS_geteuid, SYS_getppid, SYS_sched_yield, SYS_getppid };
	static const unsigned long flags[] = { 0x202, 0x2d7 | 0x800, 0x203, 0xa46 };
	const long values[] = { getppid(), geteuid(), getppid(), 0, getppid() };
	unsigned long seed = (unsigned long)arg * 0x9e3779b97f4a7c15ul;
	struct state in, out;
	for (unsigned n = 0; !stop; n++) {
		if (n == 1000 && arg == (void *)1) {
			puts("ready");
			fflush(stdout);
		}
		unsigned long *words = (unsigned long *)&in;
		for (unsigned i = 0; i < sizeof in / 8; i++)
			words[i] = seed = seed * 6364136223846793005ul + 1442695040888963407ul;
		in.r[0] = numbers[n % 5];
		in.r[15] = flags[n / 5 % 4];
		memset(&out, 0, sizeof out);
		calls[n % 5](&in, &out);
		in.r[0] = values[n % 5];
		// rcx and r11 are the call's; the trap flag is the tracer's.
		in.r[2] = out.r[2];
		in.r[10] = out.r[10];
		out.r[15] &= ~0x100ul;
		if (memcmp(&in, &out, sizeof in)) {
			for (unsigned i = 0; i < sizeof in / 8; i++)
				if (words[i] != ((unsigned long *)&out)[i] && bad < 10)
					fprintf(stderr, "call %u: word %u is %#lx, not %#lx\n", n % 5, i,
						((unsigned long *)&out)[i], words[i]);
			__atomic_fetch_add(&bad, 1, __ATOMIC_SEQ_CST);
		}
		__atomic_fetch_add(&passes, 1, __ATOMIC_SEQ_CST);
	}
	return NULL;
}

int main(void)
{
	pthread_t other;
	pthread_create(&other, NULL, work, (void *)2);
	work((void *)1);
	pthread_join(other, NULL);
	printf("bad %lu of %lu\n", bad, passes);
	return bad != 0;
}
