/* A runtime that makes calls of the nucleus, each many times between two marks, for `cargo xtask bench nucleus`,
 * which counts their instructions (`bench/count.c`). With RECEIVER: its peer, which does nothing. */
#include "mark.h"

typedef unsigned long u64;

/* Numbers of `abi/src/nucleus.rs`. */
enum { END, PARK = 4, NOTIFY, CREATE, SWITCH = 8, MAP, UNMAP, SEND = 16 };
#define PAGE 4096ul
#define USER (1ul << 40)
/* How often each is made, and how many lines an inbox holds: `xtask/src/nucleus.rs` has the same numbers. */
#define TIMES 1000
#define LINES 32

static long call(u64 number, u64 a, u64 b, u64 c, u64 d)
{
	long r;
	register u64 r10 __asm__("r10") = d;
	/* Nothing but the result comes back. */
	__asm__ volatile("syscall"
			 : "=a"(r), "+D"(a), "+S"(b), "+d"(c), "+r"(r10)
			 : "a"(number)
			 : "rcx", "r11", "r8", "r9", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",
			   "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
	return r;
}

/* Address of one of TIMES pages: all but the first of each 2 MiB. */
static u64 page(u64 i)
{
	return USER + (i / 511 * 512 + 1 + i % 511) * PAGE;
}

static long figures(void)
{
	static u64 line[8] __attribute__((aligned(64)));
	long space = call(CREATE, 0, 0, 0, 0);
	if (space < 0 || call(SWITCH, space, 0, 0, 0))
		return 1;
	/* The first page of each 2 MiB stays: their page table is not what is measured. */
	for (u64 i = 0; i < TIMES; i += 511)
		if (call(MAP, page(i) - PAGE, PAGE, 3, 0))
			return 1;
	MARK(10);
	for (u64 i = 0; i < TIMES; i++)
		if (call(MAP, page(i), PAGE, 3, i * PAGE))
			return 2;
	MARK(11);
	MARK(12);
	for (u64 i = 0; i < TIMES; i++)
		if (call(UNMAP, page(i), PAGE, 0, 0))
			return 3;
	MARK(13);
	/* To itself, with the mask set: a pending bit. */
	MARK(14);
	for (u64 i = 0; i < TIMES; i++)
		if (call(NOTIFY, 0, 0, 0, 0))
			return 4;
	MARK(15);
	/* Into the inbox of one that looks by itself: no bell. */
	MARK(16);
	for (u64 i = 0; i < LINES; i++)
		if (call(SEND, 0, (u64)line, 0, 0))
			return 5;
	MARK(17);
	return 0;
}

void begin(u64 core)
{
#ifdef RECEIVER
	core = 1;
#endif
	while (core)
		call(PARK, ~0ul, 0, 0, 0);
	call(END, figures() << 8, 0, 0, 0);
}

__asm__(".globl _start\n_start: movabs $stack_top, %rsp\n mov %rdi, %rax\n shl $13, %rax\n sub %rax, %rsp\n xor %ebp, %ebp\n movabs $begin, %rax\n call *%rax\n"
	".bss\n.balign 16\n.skip 16384\nstack_top:\n.text\n");
