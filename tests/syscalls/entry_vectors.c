// Vector registers up to zmm31, the mask registers, MXCSR and the x87 control
// word survive system calls: at a rewritten site and at one that traps, when
// the call returns at once and when another thread, which uses the same
// registers, runs meanwhile on the same core.
// options: --cores 1
// flags: -mno-red-zone
#include <cpuid.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

struct state {
	unsigned char zmm[32][64];
	unsigned long k[8];
	unsigned mxcsr;
	unsigned short fcw;
	unsigned char pad[2];
	double st;
} __attribute__((aligned(64)));

static int has512, has256;

// Loads `s`, makes the call through `call`, stores what is there then in `t`.
#define LOAD512(n) "vmovdqu64 " #n "*64(%%rbx), %%zmm" #n "\n"
#define STORE512(n) "vmovdqu64 %%zmm" #n ", " #n "*64(%%r12)\n"
#define LOAD256(n) "vmovdqu " #n "*64(%%rbx), %%ymm" #n "\n"
#define STORE256(n) "vmovdqu %%ymm" #n ", " #n "*64(%%r12)\n"
#define LOAD128(n) "movdqu " #n "*64(%%rbx), %%xmm" #n "\n"
#define STORE128(n) "movdqu %%xmm" #n ", " #n "*64(%%r12)\n"
#define LOADK(n) "kmovq 2048+" #n "*8(%%rbx), %%k" #n "\n"
#define STOREK(n) "kmovq %%k" #n ", 2048+" #n "*8(%%r12)\n"
#define LOW(x) x(0) x(1) x(2) x(3) x(4) x(5) x(6) x(7) x(8) x(9) x(10) x(11) x(12) x(13) x(14) x(15)
#define HIGH(x) x(16) x(17) x(18) x(19) x(20) x(21) x(22) x(23) x(24) x(25) x(26) x(27) x(28) x(29) x(30) x(31)
#define EIGHT(x) x(0) x(1) x(2) x(3) x(4) x(5) x(6) x(7)

#define CONTROL "ldmxcsr 2112(%%rbx)\nfldcw 2116(%%rbx)\nfldl 2120(%%rbx)\n"
#define CONTROL_BACK "stmxcsr 2112(%%r12)\nfnstcw 2116(%%r12)\nfstpl 2120(%%r12)\n"
#define BODY(load, store)                                                                         \
	asm volatile(load CONTROL "call *%%r13\n" store CONTROL_BACK "ldmxcsr %[m]\nfldcw %[c]\n" \
		     : "+a"(ret)                                                                  \
		     : "b"(s), "r"(r12), "r"(r13), "D"(a), "S"(b), "d"(c), [m] "m"(normal_mxcsr), \
		       [c] "m"(normal_fcw)                                                        \
		     : "memory", "rcx", "r11", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4",      \
		       "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",         \
		       "xmm13", "xmm14", "xmm15")

static const unsigned normal_mxcsr = 0x1f80;
static const unsigned short normal_fcw = 0x37f;

static long through(void *call, long n, long a, long b, long c, const struct state *s, struct state *t)
{
	long ret = n;
	register struct state *r12 asm("r12") = t;
	register void *r13 asm("r13") = call;
	if (has512)
		BODY(LOW(LOAD512) HIGH(LOAD512) EIGHT(LOADK), LOW(STORE512) HIGH(STORE512) EIGHT(STOREK));
	else if (has256)
		BODY(LOW(LOAD256), LOW(STORE256));
	else
		BODY(LOW(LOAD128), LOW(STORE128));
	return ret;
}

// The number is in rax already.
void site(void);
asm(".text\n.globl site\n.type site,@function\nsite:\nsyscall\nnop\nnop\nnop\nnop\nret\n.size site, .-site\n");

static void fill(struct state *s, int seed)
{
	memset(s, 0, sizeof *s);
	srand(seed);
	int width = has512 ? 64 : has256 ? 32 : 16;
	for (int i = 0; i < (has512 ? 32 : 16); i++)
		for (int j = 0; j < width; j++)
			s->zmm[i][j] = rand();
	for (int i = 0; has512 && i < 8; i++)
		s->k[i] = ((unsigned long)rand() << 33) ^ rand();
	// Rounds up, flushes to zero; exceptions masked.
	s->mxcsr = 0x1f80 | (seed & 1 ? 0x4000 | 0x8000 : 0x2000);
	s->fcw = 0x37f ^ (seed & 1 ? 0xc00 : 0x100);
	s->st = seed * 1.25;
}

static int same(const struct state *s, const struct state *t)
{
	for (int i = 0; i < 32; i++)
		if (memcmp(s->zmm[i], t->zmm[i], 64))
			printf("register %d differs\n", i);
	for (int i = 0; i < 8; i++)
		if (s->k[i] != t->k[i])
			printf("mask %d differs\n", i);
	if ((s->mxcsr ^ t->mxcsr) & ~0x3f)
		printf("mxcsr %#x, not %#x\n", t->mxcsr, s->mxcsr);
	if (s->fcw != t->fcw)
		printf("x87 control word %#x, not %#x\n", t->fcw, s->fcw);
	return !memcmp(s->zmm, t->zmm, sizeof s->zmm) && !memcmp(s->k, t->k, sizeof s->k) && s->fcw == t->fcw &&
	       s->st == t->st;
}

static int request[2], answer[2];
static void *other_call;

// Answers each byte, with registers of its own full of something else.
static void *other(void *arg)
{
	struct state s, t;
	char b;
	for (int i = 0;; i++) {
		fill(&s, 1000 + i);
		if (through(other_call, SYS_read, request[0], (long)&b, 1, &s, &t) != 1)
			return NULL;
		if (!same(&s, &t))
			puts("the other thread's registers changed");
		if (write(answer[1], &b, 1) != 1)
			return NULL;
	}
}

int main(void)
{
	unsigned a, b, c, d, lo, hi;
	__cpuid(1, a, b, c, d);
	if (c & bit_OSXSAVE) {
		asm volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
		has256 = (c & bit_AVX) && (lo & 6) == 6;
		__cpuid_count(7, 0, a, b, c, d);
		has512 = has256 && (b & bit_AVX512F) && (b & bit_AVX512BW) && (lo & 0xe6) == 0xe6;
	}
	unsigned char *jit = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memcpy(jit, "\x0f\x05\xc3", 3);
	void *calls[] = { site, jit };
	for (int n = 0; n < 2; n++) {
		pthread_t thread;
		struct state s, t;
		int good = 1;
		if (pipe(request) || pipe(answer))
			return 1;
		for (int i = 0; i < 100; i++) {
			fill(&s, i);
			memset(&t, 0, sizeof t);
			if (through(calls[n], SYS_getppid, 0, 0, 0, &s, &t) != getppid())
				good = 0;
			good &= same(&s, &t);
		}
		printf("%s, returns at once: %s\n", n ? "trapped" : "rewritten", good ? "same" : "changed");
		good = 1;
		other_call = calls[n];
		pthread_create(&thread, NULL, other, NULL);
		for (int i = 0; i < 100; i++) {
			char byte = i;
			fill(&s, i + 500);
			memset(&t, 0, sizeof t);
			if (write(request[1], &byte, 1) != 1)
				good = 0;
			byte = 0;
			if (through(calls[n], SYS_read, answer[0], (long)&byte, 1, &s, &t) != 1 || byte != (char)i)
				good = 0;
			good &= same(&s, &t);
		}
		printf("%s, another thread ran: %s\n", n ? "trapped" : "rewritten", good ? "same" : "changed");
		close(request[1]);
		pthread_join(thread, NULL);
	}
	return 0;
}
