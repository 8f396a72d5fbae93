// A system call changes rax, rcx and r11 and nothing else: no other general
// register, no flag, no byte of the stack, the red zone below it included.
// At each kind of site that is rewritten, and at one that traps.
// min-rewritten-percent: 70
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct regs {
	unsigned long rax, rbx, rcx, rdx, rsi, rdi, rbp, r8, r9, r10, r11, r12, r13, r14, r15, flags;
	unsigned long zone[16];
};

struct regs in, out;

// Loads all registers from `in`, fills the red zone, runs `site`, stores all of it in `out`.
#define FUNCTION(name, site)                                                                      \
	asm(".text\n.globl " name "\n.type " name ",@function\n.balign 16\n" name ":\n"           \
	    "push %rbx\npush %rbp\npush %r12\npush %r13\npush %r14\npush %r15\n"                  \
	    "push in+15*8(%rip)\npopf\n"                                                          \
	    "mov in+16*8(%rip), %rax\nmov %rax, -8(%rsp)\n"                                       \
	    "mov in+17*8(%rip), %rax\nmov %rax, -16(%rsp)\n"                                      \
	    "mov in+18*8(%rip), %rax\nmov %rax, -24(%rsp)\n"                                      \
	    "mov in+19*8(%rip), %rax\nmov %rax, -64(%rsp)\n"                                      \
	    "mov in+20*8(%rip), %rax\nmov %rax, -120(%rsp)\n"                                     \
	    "mov in+21*8(%rip), %rax\nmov %rax, -128(%rsp)\n"                                     \
	    "mov in+1*8(%rip), %rbx\nmov in+2*8(%rip), %rcx\nmov in+3*8(%rip), %rdx\n"            \
	    "mov in+4*8(%rip), %rsi\nmov in+5*8(%rip), %rdi\nmov in+6*8(%rip), %rbp\n"            \
	    "mov in+7*8(%rip), %r8\nmov in+8*8(%rip), %r9\nmov in+9*8(%rip), %r10\n"              \
	    "mov in+10*8(%rip), %r11\nmov in+11*8(%rip), %r12\nmov in+12*8(%rip), %r13\n"         \
	    "mov in+13*8(%rip), %r14\nmov in+14*8(%rip), %r15\nmov in+0*8(%rip), %rax\n" site    \
	    "mov %rax, out+0*8(%rip)\nmov %rbx, out+1*8(%rip)\nmov %rdx, out+3*8(%rip)\n"         \
	    "mov %rsi, out+4*8(%rip)\nmov %rdi, out+5*8(%rip)\nmov %rbp, out+6*8(%rip)\n"         \
	    "mov %r8, out+7*8(%rip)\nmov %r9, out+8*8(%rip)\nmov %r10, out+9*8(%rip)\n"           \
	    "mov %r12, out+11*8(%rip)\nmov %r13, out+12*8(%rip)\nmov %r14, out+13*8(%rip)\n"      \
	    "mov %r15, out+14*8(%rip)\nmov %r11, out+10*8(%rip)\n"                                \
	    "mov -8(%rsp), %rax\nmov %rax, out+16*8(%rip)\n"                                      \
	    "mov -16(%rsp), %rax\nmov %rax, out+17*8(%rip)\n"                                     \
	    "mov -24(%rsp), %rax\nmov %rax, out+18*8(%rip)\n"                                     \
	    "mov -64(%rsp), %rax\nmov %rax, out+19*8(%rip)\n"                                     \
	    "mov -120(%rsp), %rax\nmov %rax, out+20*8(%rip)\n"                                    \
	    "mov -128(%rsp), %rax\nmov %rax, out+21*8(%rip)\n"                                    \
	    "pushf\npop out+15*8(%rip)\npush $0x202\npopf\n"                                                  \
	    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbp\npop %rbx\nret\n"                   \
	    ".size " name ", .-" name "\n");                                                      \

// The number is loaded directly before.
FUNCTION("by_mov", "mov $110, %eax\nsyscall\n")
// What follows moves along; its first instruction is relative to RIP.
FUNCTION("forwards", "syscall\n")
// Something jumps to what follows, so what precedes moves along.
FUNCTION("backwards",
	 "lea 0(%rbx), %rbx\nlea 0(%rdx), %rdx\n1:\nsyscall\n2:\n"
	 "jrcxz 3f\njmp 4f\n3:\nmov $0, %ecx\njmp 2b\n4:\n")
// No room: something jumps to the call and to what follows.
FUNCTION("no_window",
	 "jmp 1f\n5: jmp 2f\n1:\nsyscall\n2:\n"
	 "jrcxz 3f\njmp 4f\n3:\nmov $0, %ecx\njmp 1b\njmp 5b\n4:\n")
// Made at run time.
extern char jit_begin[], jit_end[];
asm(".data\n.globl jit_begin\njit_begin:\nmov $110, %eax\nsyscall\nret\n.globl jit_end\njit_end:\n.text\n");
void *jit;

void by_mov(void), forwards(void), backwards(void), no_window(void);

#define FLAGS 0x40cd5ul /* CF PF AF ZF SF DF OF AC */

static void check(const char *name, void (*f)(void), unsigned long flags)
{
	int bad = 0;
	for (int i = 0; i < 22; i++)
		((unsigned long *)&in)[i] = 0x0101010101010101ul * (i + 1);
	in.rax = 110;
	in.flags = flags | 0x202;
	in.rcx = 1;
	memset(&out, 0, sizeof out);
	f();
	for (int i = 0; i < 22; i++) {
		unsigned long want = ((unsigned long *)&in)[i], got = ((unsigned long *)&out)[i];
		if (i == 0)
			want = getppid();
		if (i == 2)
			continue;
		if (i == 10 || i == 15) {
			// r11 holds the flags.
			want = flags;
			got &= FLAGS;
			// A trampoline that answers the call by itself can't see DF and AC; they stay as they are.
			if (i == 10 && f == by_mov) {
				want &= ~0x40400ul;
				got &= ~0x40400ul;
			}
		}
		if (want != got) {
			printf("%s: word %d is %#lx, not %#lx\n", name, i, got, want);
			bad++;
		}
	}
	printf("%s with flags %#lx: %s\n", name, flags, bad ? "bad" : "good");
}

int main(void)
{
	static const unsigned long flags[] = { 0, 0x1, 0x4, 0x10, 0x40, 0x80, 0x800, 0x8d5, 0x400, 0xcd5, 0x40000, 0x40cd5 };
	for (unsigned i = 0; i < sizeof flags / sizeof *flags; i++) {
		check("by_mov", by_mov, flags[i]);
		check("forwards", forwards, flags[i]);
		check("backwards", backwards, flags[i]);
		check("no_window", no_window, flags[i]);
	}
	// So that most calls of this program are of the kinds above.
	for (int i = 0; i < 50; i++)
		by_mov();
	return 0;
}
