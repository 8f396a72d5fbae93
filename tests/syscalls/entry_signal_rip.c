// A handler that interrupts a program anywhere around its system calls sees an
// instruction pointer in the program's own code, and one that it changes to
// any instruction of that code is gone on with.
// options: --cores 1
// min-rewritten-percent: 99
#define _GNU_SOURCE
#include <link.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

static struct { unsigned long start, end; } text[64];
static int texts, seen, strange, moved[3];

static int note(struct dl_phdr_info *info, size_t size, void *data)
{
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_LOAD && info->dlpi_phdr[i].p_flags & PF_X && texts < 64) {
			text[texts].start = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
			text[texts].end = text[texts].start + info->dlpi_phdr[i].p_memsz;
			texts++;
		}
	return 0;
}

// What moves is what precedes the call in one, what follows it in the others, up to the end in the last.
long loop0(long n, long number), loop1(long n, long number), last2(long n, long number);
asm(".text\n.globl loop0\n.type loop0,@function\nloop0:\n"
    "1: mov $110, %eax\nsyscall\ninc %r9\ndec %rdi\njnz 1b\nret\n"
    ".size loop0, .-loop0\n.balign 64\n"
    ".globl loop1\n.type loop1,@function\nloop1:\n"
    "1: mov %rsi, %rax\nsyscall\nmov %rax, %r9\ndec %rdi\njnz 1b\nret\n"
    ".size loop1, .-loop1\n.balign 64\n"
    ".globl last2\n.type last2,@function\nlast2:\n"
    "mov %rsi, %rax\nsyscall\nret\n"
    ".size last2, .-last2\n.balign 64\n");

static void handler(int signal, siginfo_t *info, void *context)
{
	// Where the instructions begin. Their addresses are not in the program's data: a
	// rewriter would take that for a branch.
	static const unsigned char offsets[3][5] = { { 0, 5, 7, 10, 13 }, { 0, 3, 5, 8, 11 }, { 0, 3, 5, 5, 5 } };
	greg_t *g = ((ucontext_t *)context)->uc_mcontext.gregs;
	unsigned long rip = g[REG_RIP];
	seen++;
	int found = 0;
	for (int i = 0; i < texts; i++)
		found |= rip >= text[i].start && rip < text[i].end;
	if (!found && strange++ < 3)
		fprintf(stderr, "rip %#lx is nobody's\n", rip);
	for (int n = 0; n < 3; n++) {
		unsigned long start = (unsigned long)(n == 2 ? last2 : n ? loop1 : loop0);
		if (rip < start || rip > start + offsets[n][4])
			continue;
		int known = 0;
		for (int i = 0; i < 5; i++)
			known |= rip == start + offsets[n][i];
		if (!known && strange++ < 3)
			fprintf(stderr, "rip %#lx is inside an instruction\n", rip);
		// Whatever was going on, go on at one of the loop's instructions.
		g[REG_RIP] = start + offsets[n][seen % 5];
		g[REG_RAX] = g[REG_RSI] = 110;
		if (g[REG_RDI] < 2)
			g[REG_RDI] = 2;
		moved[n]++;
	}
}

int main(void)
{
	dl_iterate_phdr(note, NULL);
	struct sigaction a = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_RESTART };
	sigaction(SIGALRM, &a, NULL);
	struct itimerval often = { { 0, 500 }, { 0, 500 } }, never = { { 0, 0 }, { 0, 0 } };
	setitimer(ITIMER_REAL, &often, NULL);
	long parent = getppid(), bad = 0;
	for (int round = 0; (moved[0] < 200 || moved[1] < 200 || moved[2] < 200) && round < 1000000; round++) {
		for (int i = 0; i < 100; i++)
			if (getppid() != parent)
				bad++;
		loop0(5000, 110);
		loop1(5000, 110);
		for (int i = 0; i < 5000; i++)
			last2(0, 110);
	}
	setitimer(ITIMER_REAL, &never, NULL);
	printf("%d %ld\n", strange, bad);
	return 0;
}
