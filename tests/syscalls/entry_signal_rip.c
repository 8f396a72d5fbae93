// A handler that interrupts a program anywhere around its system calls sees an
// instruction pointer in the program's own code, and one that it changes to
// any instruction of that code is gone on with.
// timeout: 60
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
static int texts, seen, strange, skipped;

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

// Counts its calls in rdi, so that skipping to `after` is seen.
long loop(long n);
extern char loop_call[], loop_syscall[], loop_after[], loop_next[];
asm(".text\n.globl loop\n.type loop,@function\nloop:\n"
    "xor %edx, %edx\n"
    "1: .globl loop_call\nloop_call: mov $110, %eax\n"
    ".globl loop_syscall\nloop_syscall: syscall\n"
    ".globl loop_after\nloop_after: inc %rdx\n"
    ".globl loop_next\nloop_next: dec %rdi\njnz 1b\nmov %rdx, %rax\nret\n.size loop, .-loop\n");

static void handler(int signal, siginfo_t *info, void *context)
{
	greg_t *g = ((ucontext_t *)context)->uc_mcontext.gregs;
	unsigned long rip = g[REG_RIP];
	seen++;
	int found = 0;
	for (int i = 0; i < texts; i++)
		found |= rip >= text[i].start && rip < text[i].end;
	if (!found && strange++ < 3)
		fprintf(stderr, "rip %#lx is nobody's\n", rip);
	if (rip >= (unsigned long)loop && rip <= (unsigned long)loop_next + 6) {
		// Whatever was going on, go on at one of the loop's instructions.
		static char *const places[] = { loop_call, loop_syscall, loop_after, loop_next };
		g[REG_RIP] = (long)places[seen % 4];
		g[REG_RAX] = 110;
		if (g[REG_RDI] < 2)
			g[REG_RDI] = 2;
		skipped++;
	}
}

int main(void)
{
	dl_iterate_phdr(note, NULL);
	struct sigaction a = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_RESTART };
	sigaction(SIGALRM, &a, NULL);
	struct itimerval often = { { 0, 300 }, { 0, 300 } }, never = { { 0, 0 }, { 0, 0 } };
	setitimer(ITIMER_REAL, &often, NULL);
	long parent = getppid(), bad = 0;
	for (int round = 0; seen < 2000 && round < 2000000; round++) {
		if (getppid() != parent)
			bad++;
		if (round % 8 == 0)
			loop(1000);
	}
	setitimer(ITIMER_REAL, &never, NULL);
	printf("%d %d %ld %d\n", seen >= 2000, strange, bad, skipped > 100);
	return 0;
}
