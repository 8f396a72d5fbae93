// A program can see that `int 0x80` is not there, by handling the signal.
// cell-exit: 5
// cell-says: int 0x80
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

// Linux with 32-bit emulation serves the call and comes to the end of main.
static void handler(int signal, siginfo_t *info, void *context)
{
	greg_t *g = ((ucontext_t *)context)->uc_mcontext.gregs;
	// At the instruction, with its registers.
	int good = signal == SIGSEGV && info->si_code == SI_KERNEL && !memcmp((void *)g[REG_RIP], "\xcd\x80", 2) &&
		   g[REG_RAX] == 20 && g[REG_RBX] == 77;
	_exit(good ? 5 : 6);
}

int main(void)
{
	struct sigaction a = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO };
	sigaction(SIGSEGV, &a, NULL);
	asm volatile("int $0x80" : : "a"(20), "b"(77), "c"(0), "d"(0) : "memory");
	return 0;
}
