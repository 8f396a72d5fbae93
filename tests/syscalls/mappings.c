// timeout: 120
// nucleus: no (mappings_few is: emulated, this takes more than a minute)
// traced: no (mappings_few is: it makes the same calls)
// A hundred thousand random calls on mappings, under ten seeds: what each says, what /proc/self/maps shows, what the pages hold, also in
// children. `program SEED FROM TO` prints the calls from one to another of a seed.
#include "case.h"
#include <setjmp.h>
#ifndef SEEDS
#define SEEDS 10
#endif
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

enum { PG = 4096, PAGES = 1024, CALLS = 10000, HEAP = 64, EVERY = 100 };
// Where nothing else is, neither on Linux nor in a cell.
#define ARENA ((char *)0x1000000000)

static uint64_t state, hash;
static long from = -1, to = -1, calls;
// What private mappings show of others' changes is left open (mmap(2)): these are for private mappings, or for shared ones.
static int files[2], memories[2], reader;
static char *heap;
// Which pages were mapped by the same call and have not been told apart since: what Linux makes of neighbours that are alike is its own
// matter, and one mremap for several is new.
static unsigned one[PAGES + 1], ones;

static unsigned draw(unsigned below)
{
	state ^= state << 13, state ^= state >> 7, state ^= state << 17;
	return (state >> 11) % below;
}
static void add(uint64_t value)
{
	hash = (hash ^ value) * 0x100000001b3, hash ^= hash >> 29;
}
static int shown(void)
{
	return calls >= from && calls < to;
}
static void say(const char *format, ...)
{
	va_list list;
	if (!shown())
		return;
	va_start(list, format);
	vprintf(format, list);
	va_end(list);
	fflush(stdout);
}

static sigjmp_buf back;
static void fault(int signal)
{
	siglongjmp(back, signal);
}
// The words of a page that are looked at and written to.
static const int places[] = {0, 1000, 4088};

static void look_at_pages(void)
{
	for (int n = 0; n < PAGES; n++) {
		volatile uint64_t sum = 0;
		int signal = sigsetjmp(back, 0);
		if (!signal)
			for (int k = 0; k < 3; k++)
				sum = sum * 31 + *(volatile uint64_t *)(ARENA + n * PG + places[k]);
		if (signal || sum) {
			add(n), add(signal ? signal : sum);
			say("  page %d: %s%lx\n", n, signal ? "signal " : "", signal ? signal : sum);
		}
	}
	for (char *p = heap; p < (char *)sbrk(0); p += PG)
		add(*(uint64_t *)p);
}

struct row {
	uintptr_t start, end, offset;
	char access[5], name[32];
	unsigned long inode;
};
static char maps[1 << 20];
static void look_at_maps(void)
{
	int fd = open("/proc/self/maps", O_RDONLY);
	long len = 0, n;
	while ((n = read(fd, maps + len, sizeof maps - 1 - len)) > 0)
		len += n;
	maps[len] = 0;
	close(fd);
	struct row last = {0}, now;
	for (char *line = maps, *next; ; line = next) {
		int has = line && *line;
		if (has) {
			next = strchr(line, '\n');
			*next++ = 0;
			int name = 0;
			sscanf(line, "%lx-%lx %4s %lx %*s %lu %n", &now.start, &now.end, now.access, &now.offset, &now.inode, &name);
			char *base = strrchr(line + name, '/');
			snprintf(now.name, sizeof now.name, "%s", base ? base + 1 : line + name);
			if (now.start < (uintptr_t)ARENA || now.start >= (uintptr_t)ARENA + PAGES * PG)
				continue;
		}
		// Rows that differ in nothing are one, as Linux may have them, or not.
		if (has && last.end == now.start && !strcmp(last.access, now.access) && last.inode == now.inode &&
		    !strcmp(last.name, now.name) && (!now.inode || last.offset + (last.end - last.start) == now.offset)) {
			last.end = now.end;
			continue;
		}
		if (last.end) {
			add(last.start), add(last.end), add(last.inode ? last.offset : 0);
			for (char *c = last.access; *c; c++)
				add(*c);
			for (char *c = last.name; *c; c++)
				add(*c);
			say("  %ld-%ld %s %lx %s\n", (last.start - (uintptr_t)ARENA) / PG, (last.end - (uintptr_t)ARENA) / PG, last.access,
			    last.inode ? last.offset : 0, last.name);
		}
		if (!has)
			break;
		last = now;
	}
}

// Locked memory in KiB, as /proc/self/status has it.
static void look_at_status(void)
{
	static char text[8192];
	int fd = open("/proc/self/status", O_RDONLY);
	text[read(fd, text, sizeof text - 1)] = 0;
	close(fd);
	long locked = strtol(strstr(text, "VmLck:") + 6, 0, 10);
	add(locked);
	say("  locked %ld\n", locked);
}

static void is_one(int page, int n)
{
	ones++;
	for (int k = page; k < page + n; k++)
		one[k] = ones;
}
// Something was said of these pages that was not said of their neighbours.
static void told_apart(int page, int n)
{
	unsigned last = 0;
	for (int k = page; k < page + n && k < PAGES; k++) {
		if (one[k] && one[k] != last)
			ones++;
		last = one[k];
		if (last)
			one[k] = ones;
	}
}

// How many pages a call is for: a few, mostly.
static int some(void)
{
	switch (draw(16)) {
	case 0:
		return 1 + draw(600);
	case 1: case 2: case 3:
		return 1 + draw(64);
	default:
		return 1 + draw(8);
	}
}

// PROT_EXEC alone can be read on some processors and not on others.
static int some_access(void)
{
	int prot = draw(4) ? PROT_READ | PROT_WRITE : draw(8);
	return prot == PROT_EXEC ? PROT_EXEC | PROT_READ : prot;
}

static long result(const char *what, long r)
{
	add(r < 0 ? -(long)errno : r);
	say(" = %s\n", r < 0 ? err_(errno) : "ok");
	return r;
}

static void do_mmap(int page, int n)
{
	static const int kinds[] = {MAP_PRIVATE, MAP_SHARED};
	int prot = some_access(), flags = kinds[draw(3) == 0];
	int which = draw(5), shared = flags == MAP_SHARED;
	int fd = which == 2 ? files[shared] : which == 3 ? memories[shared] : which == 4 && !draw(4) ? reader : -1;
	if (fd < 0)
		flags |= MAP_ANONYMOUS;
	flags |= draw(10) ? MAP_FIXED : MAP_FIXED_NOREPLACE;
	if (!draw(8))
		flags |= MAP_POPULATE;
	if (!draw(16))
		flags |= MAP_LOCKED;
	if (!draw(16))
		flags |= MAP_NORESERVE;
	long offset = fd < 0 ? 0 : (long)draw(64) * PG;
	say("%ld: mmap %d+%d prot %d flags %#x of %s at %ld", calls, page, n, prot, flags,
	    fd < 0 ? "memory" : which == 2 ? "a file" : which == 3 ? "a memfd" : "a file for reading", offset / PG);
	char *p = mmap(ARENA + page * PG, n * PG, prot, flags, fd, offset);
	if (result("mmap", p == MAP_FAILED ? -1 : p - ARENA) >= 0)
		is_one(page, n);
}

static void do_mremap(int page, int n)
{
	if (!one[page])
		return;
	for (int k = 1; k < n; k++)
		if (one[page + k] != one[page])
			n = k;
	int flags = draw(4) ? MREMAP_MAYMOVE : 0, m = draw(2) ? n : some(), into = draw(PAGES);
	// Neither where it is nor there does it leave the arena.
	if (page + m > PAGES)
		m = PAGES - page;
	if (into + m > PAGES)
		into = PAGES - m;
	if (draw(3))
		flags |= MREMAP_FIXED;
	if (!draw(3))
		flags |= MREMAP_DONTUNMAP;
	// Nothing of what lies where it is to be: that has gone by then.
	int none = !draw(16) && (page < into || page >= into + m);
	say("%ld: mremap %d+%d to %d+%d flags %d%s", calls, page, n, into, m, flags, none ? ", of nothing" : "");
	// How much is locked, Linux loses sight of when what was locked stays mapped.
	if (flags & MREMAP_DONTUNMAP)
		munlock(ARENA + page * PG, n * PG), told_apart(page, n);
	char *p = mremap(ARENA + page * PG, none ? 0 : n * PG, m * PG, flags, ARENA + into * PG);
	if (p == MAP_FAILED) {
		result("mremap", -1);
		// It may have unmapped what lay there, and the end of what it was for.
		if (flags & MREMAP_FIXED)
			told_apart(into, m);
		told_apart(page, n > m ? n : m);
		munmap(ARENA + into * PG, m * PG);
		for (int k = into; k < into + m; k++)
			one[k] = 0;
		return;
	}
	if (p < ARENA || p >= ARENA + PAGES * PG) {
		// Where it went is Linux's choice.
		add(7);
		say(" = elsewhere\n");
		uint64_t sum = 0;
		for (int k = 0; k < m; k++) {
			int signal = sigsetjmp(back, 0);
			sum = sum * 31 + (signal ? signal : *(volatile uint64_t *)(p + k * PG));
		}
		add(sum);
		munmap(p, m * PG);
	} else {
		result("mremap", p - ARENA);
		is_one((p - ARENA) / PG, m);
	}
	if (flags & MREMAP_DONTUNMAP || none) {
		if (p != ARENA + page * PG)
			told_apart(page, n);
	} else if (p != ARENA + page * PG)
		for (int k = page; k < page + n; k++)
			if (k < (p - ARENA) / PG || k >= (p - ARENA) / PG + m)
				one[k] = 0;
}

static void do_madvise(int page, int n)
{
	static const int advice[] = {MADV_DONTNEED, MADV_DONTNEED, MADV_DONTNEED, MADV_FREE, MADV_WILLNEED, MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_POPULATE_READ,
				     MADV_POPULATE_WRITE, MADV_DONTFORK, MADV_DOFORK, MADV_WIPEONFORK, MADV_KEEPONFORK, MADV_COLD, MADV_PAGEOUT, MADV_REMOVE,
				     MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_DONTDUMP, MADV_DODUMP};
	int how = advice[draw(sizeof advice / sizeof *advice)];
	say("%ld: madvise %d+%d %d", calls, page, n, how);
	if (how == MADV_FREE)
		munlock(ARENA + page * PG, n * PG);
	result("madvise", madvise(ARENA + page * PG, n * PG, how));
	// When what is free is gone, nobody knows.
	if (how == MADV_FREE)
		madvise(ARENA + page * PG, n * PG, MADV_DONTNEED);
	if (how != MADV_DONTNEED && how != MADV_WILLNEED)
		told_apart(page, n);
}

static void do_fork(void)
{
	int ends[2];
	uint64_t seen;
	say("%ld: fork\n", calls);
	pipe(ends);
	if (!fork()) {
		look_at_maps();
		look_at_pages();
		// What it writes is its own, where that is not shared.
		for (int k = 0; k < 40; k++) {
			int n = draw(PAGES), signal = sigsetjmp(back, 0);
			if (!signal)
				*(volatile uint64_t *)(ARENA + n * PG + places[k % 3]) = draw(1 << 30);
			add(signal);
		}
		look_at_pages();
		write(ends[1], &hash, sizeof hash);
		_exit(0);
	}
	for (int k = 0; k < 40; k++)
		draw(1 + draw(3));
	read(ends[0], &seen, sizeof seen);
	add(seen);
	close(ends[0]);
	close(ends[1]);
	wait(0);
}

static void call(void)
{
	int page = draw(PAGES), n = some();
	if (page + n > PAGES)
		n = PAGES - page;
	char *at = ARENA + page * PG;
	unsigned char vec[PAGES];
	switch (draw(32)) {
	case 0 ... 7:
		do_mmap(page, n);
		break;
	case 8: case 9:
		say("%ld: munmap %d+%d", calls, page, n);
		result("munmap", munmap(at, n * PG));
		for (int k = page; k < page + n; k++)
			one[k] = 0;
		break;
	case 10 ... 12: {
		int prot = some_access();
		say("%ld: mprotect %d+%d %d", calls, page, n, prot);
		result("mprotect", mprotect(at, n * PG, prot));
		told_apart(page, n);
		break;
	}
	case 13 ... 16:
		do_mremap(page, n);
		break;
	case 17 ... 20:
		do_madvise(page, n);
		break;
	case 21: {
		int how = draw(4);
		say("%ld: %s %d+%d", calls, how == 0 ? "mlock" : how == 1 ? "mlock2" : "munlock", page, n);
		result("lock", how == 0 ? mlock(at, n * PG) : how == 1 ? mlock2(at, n * PG, draw(2)) : munlock(at, n * PG));
		told_apart(page, n);
		break;
	}
	case 22: {
		static const int flags[] = {MS_SYNC, MS_ASYNC, MS_INVALIDATE, MS_ASYNC | MS_INVALIDATE};
		int flag = flags[draw(4)];
		say("%ld: msync %d+%d %d", calls, page, n, flag);
		result("msync", msync(at, n * PG, flag));
		break;
	}
	case 23:
		say("%ld: mincore %d+%d", calls, page, n);
		result("mincore", mincore(at, n * PG, vec));
		break;
	case 24: {
		int pages = draw(HEAP);
		say("%ld: brk %d", calls, pages);
		add(brk(heap + pages * PG) ? errno : 0);
		if (pages)
			((uint64_t *)(heap + (pages - 1) * PG))[draw(500)] = draw(1 << 30);
		say("\n");
		break;
	}
	case 25:
		if (!draw(8))
			do_fork();
		break;
	default: {
		int signal, place = places[draw(3)], value = draw(1 << 30), pages = draw(3) ? 1 : n;
		say("%ld: write %x to %d+%d at %d", calls, value, page, pages, place);
		for (int k = 0; k < pages; k++) {
			if (!(signal = sigsetjmp(back, 0)))
				*(volatile uint64_t *)(ARENA + (page + k) * PG + place) = value;
			add(signal);
		}
		say(" = %d\n", signal);
		// What is written to is there.
		if (!signal && pages == 1 && mincore(at, PG, vec) == 0)
			add(vec[0] & 1);
	}
	}
}

static void run(uint64_t seed)
{
	state = seed * 0x9e3779b97f4a7c15 + 1;
	hash = 0;
	memset(one, 0, sizeof one);
	munmap(ARENA, PAGES * PG);
	brk(heap);
	for (int of = 0; of < 2; of++) {
		files[of] = open(of ? "shared" : "private", O_RDWR | O_CREAT | O_TRUNC, 0600);
		memories[of] = memfd_create("memory", 0);
		for (int n = 0; n < 100; n++) {
			uint64_t words[PG / 8];
			for (int k = 0; k < PG / 8; k++)
				words[k] = n * 1000 + k;
			write(files[of], words, sizeof words);
			write(memories[of], words, sizeof words);
		}
	}
	reader = open("private", O_RDONLY);
	for (calls = 0; calls < CALLS; calls++) {
		call();
		if (calls % EVERY == EVERY - 1) {
			look_at_maps();
			look_at_status();
			look_at_pages();
		}
		say("  %016lx\n", hash);
		if (calls % 1000 == 999 && to < 0)
			printf("%ld: %016lx\n", calls + 1, hash);
	}
	for (int of = 0; of < 2; of++)
		close(files[of]), close(memories[of]);
	close(reader);
}

int main(int argc, char **argv)
{
	static char stack[65536];
	struct sigaction sa = {.sa_handler = fault, .sa_flags = SA_NODEFER};
	sigaction(SIGSEGV, &sa, 0);
	sigaction(SIGBUS, &sa, 0);
	// Nothing of the library's is to lie in the way of the heap.
	setvbuf(stdout, stack, _IOFBF, sizeof stack);
	heap = (char *)(((uintptr_t)sbrk(0) + PG - 1) & -PG);
	if (argc > 3) {
		from = atol(argv[2]), to = atol(argv[3]);
		run(atol(argv[1]));
		return 0;
	}
	// Seeds from one on, or as many as are asked for from another.
	long first = argc > 1 ? atol(argv[1]) : 1, seeds = argc > 2 ? atol(argv[2]) : SEEDS;
	for (long seed = first; seed < first + seeds; seed++) {
		printf("seed %ld\n", seed);
		run(seed);
		fflush(stdout);
	}
	return 0;
}
