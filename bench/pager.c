// A pager as a function (libatoll/pager.c) for what it is made for, beside what a program does without one:
//
//   pager times DIR   names and nanoseconds, for xtask/src/memory.rs:
//     a table of 256 MiB whose pages are computed, of which a part is used in random order: all of it computed at first, by the pager when
//     a page is touched (and 16 pages at a time), or by hand: each use asks whether the page is there;
//     a file of 256 MiB that is read once from beginning to end: mapped, or by a pager that reads 1 MiB at a time
//   pager check DIR   all of them come to the same
#define _GNU_SOURCE
#include "common.h"
#include "../libatoll/pager.c"
#include <stdint.h>
#include <string.h>

#ifndef TABLE_MIB
#define TABLE_MIB 256
#endif
enum { PAGE = 4096, WORDS = PAGE / 8, MIB = 1 << 20, SIZE = TABLE_MIB * MIB, PAGES = SIZE / PAGE, PIECE = MIB, USES = 8 };

// What a page holds: some microseconds' work, as to decompress it would be.
static void compute(uint64_t *to, uint64_t page)
{
	uint64_t x = page * 0x9e3779b97f4a7c15 + 1;
	for (int n = 0; n < WORDS; n++) {
		for (int k = 0; k < 4; k++) {
			x ^= x >> 33;
			x *= 0xff51afd7ed558ccd;
			x ^= x >> 29;
		}
		to[n] = x;
	}
}

static void *map(int fd, int access)
{
	int kind = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_PRIVATE;
	void *at = mmap(0, SIZE, access, kind, fd, 0);
	if (at == MAP_FAILED)
		fail("mmap");
	return at;
}

static uint64_t *table;
static long around;

static int computes(void *arg, void *page, int write)
{
	static __thread uint64_t made[16 * WORDS];
	long n = (uint64_t *)page - table;
	(void)arg, (void)write;
	n = n / WORDS / around * around;
	for (long k = 0; k < around; k++)
		compute(made + k * WORDS, n + k);
	return atoll_pager_provide(table + n * WORDS, made, around * PAGE);
}

enum how { UP_FRONT, BY_PAGER, BY_PAGER_AROUND, BY_HAND };

// Uses so many pages, a few times each, in random order. Value: a sum over what they hold.
static uint64_t use(long pages, enum how how)
{
	static unsigned char is_there[PAGES];
	uint64_t sum = 0, random = 12345;
	if (how == BY_HAND)
		memset(is_there, 0, sizeof is_there);
	for (long n = 0; n < pages * USES; n++) {
		random = random * 6364136223846793005 + 1442695040888963407;
		// As many different ones as that, all over the table.
		long page = (long)((random >> 33) % pages) * (PAGES / pages);
		uint64_t *at = table + page * WORDS;
		if (how == BY_HAND && !is_there[page]) {
			compute(at, page);
			is_there[page] = 1;
		}
		sum += at[random % WORDS];
	}
	return sum;
}

static uint64_t table_used(long pages, enum how how, double *ns)
{
	double start = now();
	int paged = how == BY_PAGER || how == BY_PAGER_AROUND;
	table = map(-1, PROT_READ | PROT_WRITE);
	around = how == BY_PAGER_AROUND ? 16 : 1;
	if (paged && atoll_pager_register(table, SIZE, computes, 0))
		fail("atoll_pager_register");
	for (long n = 0; how == UP_FRONT && n < PAGES; n++)
		compute(table + n * WORDS, n);
	uint64_t sum = use(pages, how);
	if (paged && atoll_pager_unregister(table, SIZE))
		fail("atoll_pager_unregister");
	munmap(table, SIZE);
	*ns = now() - start;
	return sum;
}

static int file;
static char *scanned;
static char *piece;

static int reads(void *arg, void *page, int write)
{
	long at = ((char *)page - scanned) / PIECE * PIECE;
	(void)arg, (void)write;
	return pread(file, piece, PIECE, at) != PIECE || atoll_pager_provide(scanned + at, piece, PIECE);
}

static uint64_t scan(enum how how, double *ns)
{
	double start = now();
	scanned = map(how == BY_PAGER ? -1 : file, PROT_READ | PROT_WRITE);
	if (how == BY_PAGER && atoll_pager_register(scanned, SIZE, reads, 0))
		fail("atoll_pager_register");
	uint64_t sum = 0;
	for (long n = 0; n < SIZE; n += 64)
		sum = sum * 31 + *(volatile unsigned char *)(scanned + n);
	if (how == BY_PAGER && atoll_pager_unregister(scanned, SIZE))
		fail("atoll_pager_unregister");
	munmap(scanned, SIZE);
	*ns = now() - start;
	return sum;
}

static void make_file(const char *dir)
{
	char path[4096];
	snprintf(path, sizeof path, "%s/pager.data", dir);
	file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (file < 0)
		fail(path);
	unlink(path);
	piece = malloc(PIECE);
	for (long n = 0; n < SIZE; n += PIECE) {
		for (long k = 0; k < PIECE; k += PAGE)
			compute((uint64_t *)(piece + k), (n + k) / PAGE);
		if (pwrite(file, piece, PIECE, n) != PIECE)
			fail("writing the file");
	}
}

int main(int argc, char **argv)
{
	static const char *names[] = {"all at first", "by a pager", "by a pager, 16 at a time", "by hand"};
	int check = argc == 3 && !strcmp(argv[1], "check");
	double ns;
	if (argc != 3 || (!check && strcmp(argv[1], "times"))) {
		fprintf(stderr, "usage: pager times|check DIR\n");
		return 2;
	}
	make_file(argv[2]);
	for (long part = check ? 64 : 256; part >= 1; part /= 4) {
		for (int how = UP_FRONT; how <= BY_HAND; how++) {
			uint64_t sum = table_used(PAGES / part, how, &ns);
			if (check)
				printf("1/%ld %s: %llx\n", part, names[how], (unsigned long long)sum);
			else
				printf("1/%ld of a table, %s %.0f\n", part, names[how], ns);
		}
		if (check)
			break;
	}
	for (int how = UP_FRONT; how <= BY_PAGER; how++) {
		uint64_t sum = scan(how, &ns);
		if (check)
			printf("a file, %s: %llx\n", how == BY_PAGER ? names[how] : "mapped", (unsigned long long)sum);
		else
			printf("a file in order, %s %.0f\n", how == BY_PAGER ? names[how] : "mapped", ns);
	}
	return 0;
}
