// System calls on a stack with not a byte to spare: the stack pointer stands
// at the very bottom of a mapping, and what is below faults. As goroutines and
// coroutines may have it. At a rewritten site and one that traps; with calls
// that return at once and calls that wait while another thread runs.
// options: --cores 1
// flags: -mno-red-zone
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

long on_stack(void *stack, void *call, long number, long a, long b, long c);
asm(".text\n.globl on_stack\n.type on_stack,@function\non_stack:\n"
    "push %rbx\npush %rbp\nmov %rsp, %rbx\nmov %rsi, %rbp\n"
    "mov %rdi, %rsp\nmov %rdx, %rax\nmov %rcx, %rdi\nmov %r8, %rsi\nmov %r9, %rdx\n"
    "lea 1f(%rip), %r12\njmp *%rbp\n"
    "1: mov %rbx, %rsp\npop %rbp\npop %rbx\nret\n"
    ".size on_stack, .-on_stack\n"
    ".globl site\n.type site,@function\nsite:\nsyscall\nnop\nnop\nnop\njmp *%r12\n.size site, .-site\n");
void site(void);

static int pipes[2];

static void *writer(void *arg)
{
	struct timespec pause = { 0, 1000000 };
	for (int i = 0; i < 20; i++) {
		nanosleep(&pause, NULL);
		if (write(pipes[1], "x", 1) != 1)
			return NULL;
	}
	return NULL;
}

static long call(void *stack, void *how, long number, long a, long b, long c)
{
	long ret;
	register long r8 asm("r8") = b;
	register long r9 asm("r9") = c;
	asm volatile("call on_stack"
		     : "=a"(ret), "+r"(r8), "+r"(r9)
		     : "D"(stack), "S"(how), "d"(number), "c"(a)
		     : "memory", "cc", "r10", "r11", "r12");
	return ret;
}

int main(void)
{
	char *m = mmap(NULL, 3 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *stack = m + 4096;
	mprotect(stack, 4096, PROT_READ | PROT_WRITE);
	unsigned char *jit = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memcpy(jit, "\x0f\x05\x41\xff\xe4", 5);
	void *hows[] = { site, jit };
	if (pipe(pipes))
		return 1;
	for (int n = 0; n < 2; n++) {
		const char *name = n ? "trapped" : "rewritten";
		memset(stack, 0x5a, 4096);
		printf("%s: %d\n", name, call(stack, hows[n], SYS_getppid, 0, 0, 0) == getppid());
		// Not even a stack at all.
		printf("%s, no stack: %d\n", name, call(m, hows[n], SYS_getppid, 0, 0, 0) == getppid());
		printf("%s, null: %d\n", name, call(NULL, hows[n], SYS_getppid, 0, 0, 0) == getppid());
		pthread_t t;
		pthread_create(&t, NULL, writer, NULL);
		char b;
		int good = 0;
		for (int i = 0; i < 20; i++)
			good += call(stack, hows[n], SYS_read, pipes[0], (long)&b, 1) == 1;
		pthread_join(t, NULL);
		for (int i = 0; i < 4096; i++)
			good -= stack[i] != 0x5a;
		printf("%s, waits: %d\n", name, good);
	}
	return 0;
}
