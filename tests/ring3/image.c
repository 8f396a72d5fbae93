// Code for ring 3 that speaks the nucleus's calls directly. WHAT says what it tries, SEED where chance begins.
typedef unsigned long u64;

static long call4(u64 number, u64 a, u64 b, u64 c, u64 d)
{
	long r;
	register u64 r10 __asm__("r10") = d;
	// Nothing but the result comes back.
	__asm__ volatile("syscall" : "=a"(r), "+D"(a), "+S"(b), "+d"(c), "+r"(r10) : "a"(number) : "rcx", "r11", "r8", "r9", "memory",
			 "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
	return r;
}

static long call(u64 number, u64 a, u64 b)
{
	return call4(number, a, b, 0, 0);
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

enum { UPCALLS = 2, ARM, PARK, NOTIFY, CREATE, DESTROY, SWITCH, MAP, UNMAP, PROTECT, CONSOLE };
enum { EAGAIN = -11, ENOMEM = -12, EFAULT = -14, EBUSY = -16, ENODEV = -19, EINVAL = -22 };
#define PAGE 4096ul
#define USER (1ul << 40)
#define USER_MAX ((1ul << 47) - PAGE)
#define RUNTIME_END (BASE + (16ul << 40))
#define CHECK(is, wanted) do { if ((is) != (wanted)) return __LINE__; } while (0)

// Takes all spaces that there are and gives them back: how many.
static long spaces(void)
{
	long n = 0, got;
	while ((got = call(CREATE, 0, 0)) >= 0)
		n++;
	if (got != EAGAIN && got != ENOMEM)
		return got;
	for (u64 s = 1; s < 1024; s++)
		call(DESTROY, s, 0);
	return n;
}

// Shows one page in each 2 MiB of a new space, for which each takes a table, until there are no more: how many.
static long tables(void)
{
	long n = 0, got, space = call(CREATE, 0, 0);
	if (space < 0 || call(SWITCH, space, 0))
		return -1;
	while ((got = call4(MAP, USER + n * (2ul << 20), PAGE, 3, 0)) == 0)
		n++;
	if (got != ENOMEM || call(DESTROY, space, 0) != EBUSY || call(SWITCH, 0, 0) || call(DESTROY, space, 0))
		return -2;
	return n;
}

// What the contract forbids is an error, and what it allows works; the line that is wrong, or 0.
static long contract(u64 memory)
{
	static const struct { u64 at, len; } bad[] = {
		{ USER + 1, PAGE }, { USER, PAGE + 1 }, { USER, 1ul << 63 }, { USER, -PAGE }, { -PAGE, 2 * PAGE }, { -PAGE, PAGE },
		{ BASE - PAGE, 2 * PAGE }, { BASE, PAGE }, { CONTROL, PAGE }, { MEMORY, PAGE }, { RUNTIME_END - PAGE, PAGE },
		{ RUNTIME_END - PAGE, 2 * PAGE }, { 0, USER_MAX }, { USER_MAX, PAGE }, { USER_MAX - PAGE, 2 * PAGE },
		{ 1ul << 47, PAGE }, { 0xffff800000000000, PAGE }, { 0xffffffff80200000, PAGE },
	};
	for (u64 i = 0; i < sizeof bad / sizeof *bad; i++) {
		CHECK(call4(MAP, bad[i].at, bad[i].len, 3, 0), EINVAL);
		CHECK(call(UNMAP, bad[i].at, bad[i].len), EINVAL);
		CHECK(call4(PROTECT, bad[i].at, bad[i].len, 3, 0), EINVAL);
	}
	const u64 offsets[] = { memory, memory - PAGE, 1, -PAGE, -2 * PAGE, 1ul << 63 };
	for (u64 i = 0; i < sizeof offsets / sizeof *offsets; i++)
		CHECK(call4(MAP, USER, 2 * PAGE, 3, offsets[i]), EINVAL);
	volatile u64 *seen = (u64 *)USER, *own = (u64 *)(MEMORY + memory - PAGE);
	CHECK(call4(MAP, USER, PAGE, 3, memory - PAGE), 0);
	*own = 77;
	CHECK(*seen, 77);
	CHECK(call4(MAP, USER_MAX - PAGE, PAGE, 3, 0), 0);
	CHECK(call(UNMAP, 0, BASE) | call(UNMAP, RUNTIME_END, USER_MAX - RUNTIME_END), 0);
	const u64 none[] = { 1, 1023, 1024, ~0ul, 1ul << 63 };
	for (u64 i = 0; i < sizeof none / sizeof *none; i++) {
		CHECK(call(SWITCH, none[i], 0), EINVAL);
		CHECK(call(DESTROY, none[i], 0), EINVAL);
		CHECK(call(NOTIFY, none[i], 0), EINVAL);
	}
	CHECK(call(DESTROY, 0, 0), EINVAL);
	const u64 places[] = { 0, BASE - 1, BASE + (32ul << 20), MEMORY, 1ul << 47, 0xffffffff80208000, ~0ul };
	for (u64 i = 0; i < sizeof places / sizeof *places; i++) {
		CHECK(call4(UPCALLS, places[i], BASE, BASE, BASE), EINVAL);
		CHECK(call4(UPCALLS, BASE, places[i], BASE, BASE), EINVAL);
		CHECK(call4(UPCALLS, BASE, BASE, places[i], BASE), EINVAL);
		CHECK(call4(UPCALLS, BASE, BASE, BASE, places[i]), EINVAL);
	}
	CHECK(call4(CONSOLE, 1, (u64)constant, 1, 0), ENODEV);
	CHECK(call(ARM, 0, 0) | call(ARM, ~0ul - 1, 0) | call(ARM, ~0ul, 0) | call(NOTIFY, 0, 0) | call(PARK, ~0ul, 0), 0);
	// The registers of a device are not memory, for whoever has one.
	CHECK(call(1, BASE + (112ul << 20), 8), EFAULT);
	long most = spaces(), deep = tables();
	if (most < 64 || deep < 64)
		return __LINE__;
	for (int i = 0; i < 3; i++) {
		CHECK(spaces(), most);
		CHECK(tables(), deep);
	}
	CHECK(*own, 77);
	return 0;
}

#ifndef SEED
#define SEED 0
#endif

// Calls at random, with numbers that are at an edge of something, from all cores at once.
static long random_calls(u64 memory, u64 core)
{
	const u64 edges[] = {
		0, 1, 2, 3, 7, 1023, 1024, PAGE, 2 * PAGE, PAGE - 1, 2ul << 20, (2ul << 20) - PAGE, 1ul << 30, 1ul << 39, USER, USER + PAGE,
		USER + (2ul << 20), BASE - PAGE, BASE, CONTROL, MEMORY, MEMORY + memory, RUNTIME_END, RUNTIME_END - PAGE, USER_MAX,
		USER_MAX - PAGE, 1ul << 47, 1ul << 63, ~0ul, -PAGE, 0xffff800000000000, 0xffffffff80200000, memory, memory - PAGE, memory / 2,
	};
	u64 state = SEED + core, next[5];
	for (long i = 0; i < 200000; i++) {
		for (int k = 0; k < 5; k++) {
			state = state * 6364136223846793005 + 1442695040888963407;
			next[k] = edges[(state >> 33) % (sizeof edges / sizeof *edges)];
			// Small multiples of a page, too.
			if (state >> 62 == 0)
				next[k] = (state >> 40 & 1023) * PAGE;
		}
		u64 number = (state >> 20) % 13;
		// It goes on until its end, and neither fills the console nor sleeps.
		if (number <= 1 || number == UPCALLS)
			next[0] = 0, number = number ? number : CONSOLE;
		if (number == PARK)
			next[0] = 1000;
		call4(number, next[0], next[1], next[2] & 15, next[3]);
	}
	return 0;
}

// Memory that is nobody else's keeps what is written to it, for a while.
static long keeps(u64 memory)
{
	volatile u64 *m = (u64 *)MEMORY;
	for (u64 round = 1; round < 300; round++) {
		for (u64 i = 0; i < memory / 8; i += 512)
			m[i] = i * round;
		for (u64 i = 0; i < memory / 8; i += 512)
			if (m[i] != i * round)
				return 1;
	}
	return 0;
}

void begin(u64 core)
{
	u64 memory = *(u64 *)(CONTROL + 24);
	while (core && WHAT == 17)
		random_calls(memory, core);
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
	case 16: {
		long line = contract(memory);
		char text[] = "line 0000";
		for (int i = 8; i > 4; i--, line /= 10)
			text[i] += line % 10;
		say(text);
		call(0, 0, 0);
	}
	case 17:
		random_calls(memory, 0);
		call(0, 0, 0);
	case 18:
		call(0, keeps(memory) << 8, 0);
	}
	for (;;)
		;
}

__asm__(".globl _start\n_start: movabs $stack_top, %rsp\n mov %rdi, %rax\n shl $13, %rax\n sub %rax, %rsp\n xor %ebp, %ebp\n movabs $begin, %rax\n call *%rax\n"
	".bss\n.balign 16\n.skip 16384\nstack_top:\n.text\n");
