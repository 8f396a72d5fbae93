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

enum { UPCALLS = 2, ARM, PARK, NOTIFY, CREATE, DESTROY, SWITCH, MAP, UNMAP, PROTECT, CONSOLE, CHANGES, GIVE, BACK, SEND, SETTLED, BITS, FORGET };
enum { EPERM = -1, ENOENT = -2, EAGAIN = -11, ENOMEM = -12, EFAULT = -14, EBUSY = -16, ENODEV = -19, EINVAL = -22, EPIPE = -32 };
#define PAGE 4096ul
#define BLOCK (2ul << 20)
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

struct change { unsigned kind, access; u64 address, len, offset; };

// Lists of changes.
static long lists(u64 memory)
{
	static struct change list[33];
	for (u64 i = 0; i < 33; i++)
		list[i] = (struct change){ 0, 3, USER + i * PAGE, PAGE, memory - (i + 1) * PAGE };
	CHECK(call(CHANGES, (u64)list, 33), EINVAL);
	CHECK(call(CHANGES, (u64)list, ~0ul), EINVAL);
	CHECK(call(CHANGES, (u64)list, 0), 0);
	CHECK(call(CHANGES, MEMORY + memory - 8, 1), EFAULT);
	CHECK(call(CHANGES, 0xffffffff80208000, 1), EFAULT);
	CHECK(call(CHANGES, (u64)list, 32), 32);
	for (u64 i = 0; i < 32; i++) {
		*(volatile u64 *)(MEMORY + list[i].offset) = i + 5;
		CHECK(*(volatile u64 *)list[i].address, i + 5);
	}
	// Up to the one that is wrong.
	list[0] = (struct change){ 1, 0, USER, PAGE, 0 };
	list[1] = (struct change){ 2, 1, USER + PAGE, PAGE, 0 };
	list[2].kind = 3;
	CHECK(call(CHANGES, (u64)list, 4), 2);
	CHECK(call(CHANGES, (u64)(list + 2), 1), EINVAL);
	list[2] = (struct change){ 0, 3, USER, PAGE, memory };
	CHECK(call(CHANGES, (u64)(list + 2), 1), EINVAL);
	CHECK(call(UNMAP, USER, 33 * PAGE), 0);
	return 0;
}

// The tables' bits: a page of 2 MiB as a whole at first, then by the page, to where the cell may write and nowhere else.
static long bits(u64 memory)
{
	static unsigned short words[2 * BLOCK / PAGE / 16];
	CHECK(call4(MAP, USER, 2 * BLOCK, 3, memory - 2 * BLOCK), 0);
	volatile u64 *seen = (u64 *)USER;
	seen[5 * 512] = 1;
	const u64 bad[] = {
		0, 8, (u64)constant, BASE, 0xffff800000200000, 0xffffffff80208000, USER_MAX, 1ul << 47, ~0ul, -64ul, MEMORY + memory,
		MEMORY + memory - 8, MEMORY + memory - 1,
	};
	for (u64 i = 0; i < sizeof bad / sizeof *bad; i++)
		CHECK(call4(BITS, USER, 2 * BLOCK, 1, bad[i]), EFAULT);
	CHECK(call4(BITS, USER, BLOCK, 2, (u64)words), EINVAL);
	CHECK(call4(BITS, USER, BLOCK, ~0ul, (u64)words), EINVAL);
	CHECK(call4(BITS, USER, 8193 * PAGE, 1, (u64)words), EINVAL);
	volatile unsigned short *told = (unsigned short *)MEMORY;
	for (int i = 0; i < 64; i++)
		told[i] = 0;
	CHECK(call4(BITS, USER, 8192 * PAGE, 1, MEMORY), 0);
	for (int i = 0; i < 64; i++)
		CHECK(told[i], i < 32 ? 0xffff : 0);
	seen[5 * 512] = seen[300 * 512] = 1;
	CHECK(call4(BITS, USER, 5 * PAGE, 1, (u64)words), 0);
	CHECK(call4(BITS, USER + 6 * PAGE, BLOCK, 1, (u64)words), 0);
	CHECK(words[0], 0);
	CHECK(words[18], 1 << 12);
	CHECK(call4(BITS, USER + 5 * PAGE, PAGE, 1, (u64)words + 3), 0);
	CHECK(((unsigned char *)words)[3], 1 << 5);
	CHECK(call4(BITS, USER, BLOCK, 0, MEMORY + memory - 64), 0);
	CHECK(((volatile unsigned short *)(MEMORY + memory - 64))[18] >> 12 & 1, 1);
	CHECK(call(FORGET, USER, 2 * BLOCK) | call(FORGET, USER, 0) | call(FORGET, 0, BASE), 0);
	CHECK(call(UNMAP, USER, 2 * BLOCK), 0);
	return 0;
}

// Blocks that are given for page tables.
static long given(u64 memory)
{
	u64 last = memory - BLOCK;
	const u64 bad[] = { 1, PAGE, memory, memory + BLOCK, -BLOCK, 1ul << 63, ~0ul };
	for (u64 i = 0; i < sizeof bad / sizeof *bad; i++)
		CHECK(call(GIVE, bad[i], 0), EINVAL);
	CHECK(call(BACK, 0, 0), ENOENT);
	// Not while anything maps it, be it in another space or without any access.
	CHECK(call4(MAP, USER, PAGE, 3, last + 5 * PAGE), 0);
	CHECK(call(GIVE, last, 0), EBUSY);
	CHECK(call4(PROTECT, USER, PAGE, 0, 0), 0);
	CHECK(call(GIVE, last, 0), EBUSY);
	CHECK(call(UNMAP, USER, PAGE), 0);
	long space = call(CREATE, 0, 0);
	CHECK(call(SWITCH, space, 0), 0);
	CHECK(call4(MAP, USER, 2 * BLOCK, 3, last - BLOCK), 0);
	CHECK(call4(MAP, USER + 4 * BLOCK, BLOCK, 3, last), 0);
	CHECK(call(UNMAP, USER + BLOCK + PAGE, PAGE), 0);
	CHECK(call(SWITCH, 0, 0), 0);
	CHECK(call(GIVE, last, 0), EBUSY);
	CHECK(call(DESTROY, space, 0), 0);
	*(volatile u64 *)(MEMORY + last) = 1;
	CHECK(call(GIVE, last, 0), 0);
	CHECK(call(GIVE, last, 0), EBUSY);
	// What was given is nothing that can be shown.
	CHECK(call4(MAP, USER, PAGE, 1, last), EINVAL);
	CHECK(call4(MAP, USER, PAGE, 3, memory - PAGE), EINVAL);
	CHECK(call4(MAP, USER, 2 * BLOCK, 3, last - BLOCK), EINVAL);
	CHECK(call(1, MEMORY + last, 8), EFAULT);
	CHECK(call4(BITS, USER, PAGE, 1, MEMORY + last), EFAULT);
	CHECK(call4(BITS, USER, BLOCK, 1, MEMORY + last - 2), EFAULT);
	// It serves for page tables, and comes back when they are gone.
	long n = 0, more = 0, got;
	CHECK(space = call(CREATE, 0, 0), space);
	CHECK(call(SWITCH, space, 0), 0);
	while ((got = call4(MAP, USER + n * BLOCK, PAGE, 3, 0)) == 0)
		n++;
	CHECK(got, ENOMEM);
	CHECK(n > 500, 1);
	CHECK(call(BACK, 0, 0), ENOENT);
	CHECK(call(GIVE, last - BLOCK, 0), 0);
	while ((got = call4(MAP, USER + n * BLOCK, PAGE, 3, 0)) == 0)
		n++, more++;
	CHECK(got, ENOMEM);
	// One of its 512 may be for a higher level.
	CHECK(more == 512 || more == 511 || more == 510, 1);
	// A range that is emptied gives its tables back, a few at a time.
	for (int i = 0; i < 64; i++)
		CHECK(call(UNMAP, USER, 2048 * BLOCK), 0);
	CHECK(call4(MAP, USER, PAGE, 3, 0), 0);
	CHECK(call(SWITCH, 0, 0), 0);
	CHECK(call(DESTROY, space, 0), 0);
	long first = call(BACK, 0, 0), second = call(BACK, 0, 0);
	CHECK(first + second, 2 * last - BLOCK);
	CHECK(call(BACK, 0, 0), ENOENT);
	*(volatile u64 *)(MEMORY + last) = 9;
	CHECK(call4(MAP, USER, PAGE, 3, last), 0);
	CHECK(*(volatile u64 *)USER, 9);
	CHECK(call(UNMAP, USER, PAGE), 0);
	return 0;
}

// Pages with lines from peers.
struct inbox { volatile u64 sent, a[7], taken; volatile unsigned bell, b[13]; volatile u64 lines[32][8]; };
#define INBOX(n) ((struct inbox *)(BASE + (120ul << 20) + (n) * PAGE))

static void take(struct inbox *from, u64 line[8])
{
	while (from->sent == from->taken)
		call(PARK, ~0ul, 0), ((volatile unsigned *)CONTROL_CORES)[3] = 0;
	for (int i = 0; i < 8; i++)
		line[i] = from->lines[from->taken % 32][i];
	from->taken++;
}

// Lines to `pong` and back, and to one that only listens.
static long ping(void)
{
	static u64 line[16] __attribute__((aligned(64)));
	INBOX(0)->bell = 1;
	for (u64 n = 0; n < 2000; n++) {
		for (u64 i = 0; i < 8; i++)
			line[i] = n * 8 + i;
		CHECK(call(SEND, 0, (u64)line), 0);
		u64 back[8];
		take(INBOX(0), back);
		for (u64 i = 0; i < 8; i++)
			CHECK(back[i], n * 8 + i + 1);
	}
	CHECK(call(SEND, 0, (u64)line + 8), EINVAL);
	CHECK(call(SEND, 0, 0), EFAULT);
	CHECK(call(SEND, 0, 0xffffffff80208000), EFAULT);
	CHECK(call(SEND, 2, (u64)line), EINVAL);
	CHECK(call(SEND, ~0ul, (u64)line), EINVAL);
	// It doesn't take any until it is told.
	for (u64 n = 0; n < 32; n++)
		CHECK(call(SEND, 1, (u64)line), 0);
	CHECK(call(SEND, 1, (u64)line), EAGAIN);
	line[0] = ~0ul;
	CHECK(call(SEND, 0, (u64)line), 0);
	while (call(SEND, 0, (u64)line) != EPIPE)
		;
	return 0;
}

static long pong(void)
{
	static u64 line[8] __attribute__((aligned(64)));
	INBOX(0)->bell = 1;
	for (;;) {
		take(INBOX(0), line);
		if (line[0] == ~0ul)
			return 0;
		for (int i = 0; i < 8; i++)
			line[i]++;
		CHECK(call(SEND, 0, (u64)line), 0);
	}
}

// May not send; what it writes into its own inbox harms nobody.
static long listener(void)
{
	static u64 line[8] __attribute__((aligned(64)));
	CHECK(call(SEND, 0, (u64)line), EPERM);
	while (INBOX(0)->sent < 32)
		;
	INBOX(0)->bell = 77;
	INBOX(0)->taken = 1ul << 60;
	INBOX(0)->sent = ~0ul;
	return 0;
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
		CHECK(call4(BITS, bad[i].at, bad[i].len, 1, MEMORY), EINVAL);
		CHECK(call(FORGET, bad[i].at, bad[i].len), EINVAL);
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
	CHECK(call(SEND, 0, (u64)constant & -64ul), EINVAL);
	long line = lists(memory);
	line = line ? line : bits(memory);
	return line ? line : given(memory);
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
		u64 number = (state >> 20) % 20;
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

// A device on PCI that writes random bytes to memory (virtio's entropy source): `struct DeviceRegisters` of the descriptor.
#define DEVICE ((volatile u64 *)CONTROL_DEVICES)
#define COMMON(type, at) (*(volatile type *)(DEVICE[1] + (at)))

// Starts the device over, with its queue in the cell's memory from `at` on, which is at this physical address.
static void start_device(volatile char *at, u64 physical)
{
	COMMON(unsigned char, 0x14) = 0;
	while (COMMON(unsigned char, 0x14))
		;
	COMMON(unsigned char, 0x14) = 3;
	// Of the features only that it is a modern one, and that it uses an IOMMU.
	for (unsigned half = 0; half < 2; half++) {
		COMMON(unsigned, 0) = COMMON(unsigned, 8) = half;
		COMMON(unsigned, 12) = half ? COMMON(unsigned, 4) & 3 : 0;
	}
	COMMON(unsigned char, 0x14) = 11;
	COMMON(unsigned short, 0x16) = 0;
	COMMON(unsigned short, 0x18) = 8;
	for (int part = 0; part < 3; part++) {
		for (u64 i = 0; i < PAGE; i++)
			at[part * PAGE + i] = 0;
		COMMON(unsigned, 0x20 + 8 * part) = physical + part * PAGE;
		COMMON(unsigned, 0x24 + 8 * part) = (physical + part * PAGE) >> 32;
	}
	COMMON(unsigned short, 0x1c) = 1;
	COMMON(unsigned char, 0x14) = 15;
}

// Has it write 64 bytes to a physical address, and gives it time. Value: it says that it did.
static int device_writes(volatile char *at, u64 to)
{
	volatile unsigned short *available = (void *)(at + PAGE), *used = (void *)(at + 2 * PAGE);
	*(volatile u64 *)at = to;
	*(volatile u64 *)(at + 8) = 64 | 2ul << 32;
	unsigned short next = available[1] + 1;
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	available[1] = next;
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	*(volatile unsigned short *)(DEVICE[3] + COMMON(unsigned short, 0x1e) * (u64)*(volatile unsigned *)(DEVICE + 9)) = 0;
	for (int i = 0; i < 30000000; i++)
		if (used[1] == next)
			return 1;
	return 0;
}

// Behind the cell's own memory there is another's.
static long device_attacks(u64 memory, int confined)
{
	volatile char *queue = (char *)(MEMORY + 2 * BLOCK), *own = queue + BLOCK, *last = (char *)(MEMORY + memory - BLOCK);
	u64 start = *(volatile u64 *)CONTROL_EXTENTS, physical = start + 2 * BLOCK;
	CHECK(*(volatile u64 *)(CONTROL_EXTENTS + 8), memory);
	if (!confined) {
		start_device(queue, physical);
		for (u64 i = 0; i < 3000; i++)
			CHECK(device_writes(queue, start + memory + 8 * BLOCK + i % 1000 * PAGE), 1);
		return 0;
	}
	const u64 others[] = { start + memory + 8 * BLOCK, start + memory, start - PAGE, 2ul << 20, 0x100000, 1ul << 40, start + memory - BLOCK };
	for (int i = 0; i < 64; i++)
		last[i] = own[i] = 0;
	for (u64 n = 0; n < sizeof others / sizeof *others; n++) {
		start_device(queue, physical);
		CHECK(device_writes(queue, physical + BLOCK), 1);
		int all = 0;
		for (int i = 0; i < 64; i++)
			all |= own[i], own[i] = 0;
		CHECK(all != 0, 1);
		// The last block is page tables meanwhile.
		if (n == 6)
			CHECK(call(GIVE, memory - BLOCK, 0), 0);
		device_writes(queue, others[n]);
	}
	CHECK(call(BACK, 0, 0), (long)(memory - BLOCK));
	for (int i = 0; i < 64; i++)
		CHECK(last[i], 0);
	// And it can be reached again.
	start_device(queue, physical);
	CHECK(device_writes(queue, start + memory - BLOCK), 1);
	int all = 0;
	for (int i = 0; i < 64; i++)
		all |= last[i];
	CHECK(all != 0, 1);
	return 0;
}

// Says at which line something was not as it should be; 0: all was.
static void end_with(long line)
{
	char text[] = "line 0000";
	for (int i = 8; i > 4; i--, line /= 10)
		text[i] += line % 10;
	say(text);
	call(0, 0, 0);
}

void begin(u64 core)
{
	u64 memory = *(u64 *)(CONTROL + 24);
	// It ends while its other cores begin.
	if (WHAT == 26 && core == 0)
		call(0, 1 << 8, 0);
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
	case 16:
		end_with(contract(memory));
	case 17:
		random_calls(memory, 0);
		call(0, 0, 0);
	case 18:
		call(0, keeps(memory) << 8, 0);
	case 19:
		end_with(ping());
	case 20:
		end_with(pong());
	case 21:
		end_with(listener());
	case 22:
		// A block that was given for page tables is out of reach.
		call(GIVE, memory - BLOCK, 0);
		*(volatile char *)(MEMORY + memory - 1) = 0;
	case 25:
		// There is no local descriptor table, not even one at address 0, with a data segment for ring 3 in it.
		call4(MAP, 0, PAGE, 3, 0);
		((volatile u64 *)MEMORY)[0] = 0x00cff3000000ffff;
		__asm__ volatile("mov %0, %%ds" : : "r"(7));
		call(0, 0, 0);
	case 28:
		// More than a pipe takes.
		for (int i = 0; i < 300; i++)
			call(1, (u64)begin, 1024);
		call(0, 0, 0);
	case 27:
		say("spins");
		for (;;)
			;
	case 23:
		end_with(device_attacks(memory, 1));
	case 24:
		end_with(device_attacks(memory, 0));
	}
	for (;;)
		;
}

__asm__(".globl _start\n_start: movabs $stack_top, %rsp\n mov %rdi, %rax\n shl $13, %rax\n sub %rax, %rsp\n xor %ebp, %ebp\n movabs $begin, %rax\n call *%rax\n"
	".bss\n.balign 16\n.skip 32768\nstack_top:\n.text\n");
