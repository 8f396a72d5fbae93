// Code for ring 3 that speaks the nucleus's calls directly. WHAT says what it tries.
typedef unsigned long u64;

static long call(u64 number, u64 a, u64 b)
{
	long r;
	// Nothing but the result comes back.
	__asm__ volatile("syscall" : "=a"(r), "+D"(a), "+S"(b) : "a"(number) : "rcx", "r11", "rdx", "r8", "r9", "r10", "memory",
			 "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
	return r;
}

static void say(const char *s)
{
	u64 n = 0;
	while (s[n])
		n++;
	call(1, (u64)s, n);
}

#define BASE (1ul << 46)
#define MEMORY (BASE | 1ul << 40)
// The control area says how much memory there is (`Descriptor::memory`).
#define CONTROL (BASE + (128ul << 20))
static u64 written;
static const char constant[] = "constant";

static long work(u64 memory)
{
	volatile u64 *m = (u64 *)MEMORY;
	// All of its memory, each page once: zero, and its own.
	for (u64 i = 0; i < memory / 8; i += 512)
		if (m[i])
			return 2;
	for (u64 i = 0; i < memory / 8; i += 512)
		m[i] = i + 1;
	for (u64 i = 0; i < memory / 8; i += 512)
		if (m[i] != i + 1)
			return 3;
	written = 5;
	// Bad pointers and numbers are errors.
	const u64 bad[] = { 0, 8, 0xffff800000200000, 0xffffffff80208000, 0x7ffffffff000, 1ul << 47, ~0ul, MEMORY + memory, MEMORY + memory - 3 };
	for (u64 i = 0; i < sizeof bad / sizeof *bad; i++)
		if (call(1, bad[i], 8) != -14)
			return 10 + i;
	if (call(1, (u64)constant, 1025) != -22 || call(1, (u64)constant, ~0ul) != -22 || call(1, 0, 0) != 0)
		return 30;
	if (call(999, 0, 0) != -38 || call(~0ul, 0, 0) != -38)
		return 31;
	say("works\x1b[2J");
	return written == 5 ? 0 : 4;
}

void begin(u64 core)
{
	u64 memory = *(u64 *)(CONTROL + 24);
	while (core)
		call(4, ~0ul, 0);
	volatile u64 *nucleus = (u64 *)0xffffffff80208000, *direct = (u64 *)0xffff800000200000;
	switch (WHAT) {
	case 0:
		call(0, work(memory) << 8, 0);
	case 1:
		call(0, *nucleus, 0);
	case 2:
		*direct = 1;
	case 3:
		__asm__ volatile("hlt");
	case 4:
		__asm__ volatile("cli");
	case 5:
		*(volatile char *)begin = 0;
	case 6:
		*(volatile char *)constant = 0;
	case 7:
		((void (*)(void))MEMORY)();
	case 8:
		*(volatile char *)(MEMORY + memory) = 0;
	case 9:
		__asm__ volatile("mov %%rax, %%cr3" : : "a"(0));
	case 10:
		__asm__ volatile("mov $0x10, %%ecx\n wrmsr" : : : "ecx");
	case 11:
		__asm__ volatile("out %%al, $0xf4" : : "a"(0));
	case 12:
		__asm__ volatile("mov $0, %%rsp\n push %%rax" : : :);
	case 13:
		__asm__ volatile("int $0x80");
	case 14:
		__asm__ volatile("ud2");
	case 15:
		__asm__ volatile("lgdt (%%rsp)" : :);
	}
	for (;;)
		;
}

__asm__(".globl _start\n_start: movabs $stack_top, %rsp\n xor %ebp, %ebp\n movabs $begin, %rax\n call *%rax\n"
	".bss\n.balign 16\n.skip 16384\nstack_top:\n.text\n");
