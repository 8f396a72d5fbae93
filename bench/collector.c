// A small garbage collector with two generations, whose remembered set is a card table or the pages that were written to, which a cell
// tells it (libatoll): then there is no write barrier. It marks and sweeps, moves nothing, and what has survived a collection is old.
//   collector times cards|pages   a name and nanoseconds a write of a pointer, collections included; for xtask/src/memory.rs
//   collector check               what a program that collects all the time ends up with: pages where there are any, else cards
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "../libatoll/atoll.c"
#include "common.h"

#define PAGE 4096ul
#define FIELDS 6
#define CARD 512ul

struct object {
	uint64_t id;
	struct object *field[FIELDS];
	uint64_t sum;
};
#define OBJECTS_OF(bytes) ((bytes) / sizeof(struct object))

// The heap, a byte an object that says whether it is marked, and the remembered set.
static struct object *heap;
static size_t objects;
static uint8_t *marked;
static uint8_t *cards;
static unsigned char *pages;
static int by_pages;

// Where the next free object is looked for: one that is not marked, and was not given out since the last collection.
static size_t next;

static struct object *roots[4];
static struct object **stack;
static size_t depth;
static long collections;
static double collecting;

static void *map(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		fail("mmap");
	return p;
}

static void push(struct object *o)
{
	if (o && !marked[o - heap]) {
		marked[o - heap] = 1;
		stack[depth++] = o;
	}
}

static void trace(void)
{
	while (depth > 0) {
		struct object *o = stack[--depth];
		for (int n = 0; n < FIELDS; n++)
			push(o->field[n]);
	}
}

// What is old in a part of the heap that was written to may have pointers to what is young.
static void look_through(size_t offset, size_t len)
{
	size_t first = OBJECTS_OF(offset);
	for (size_t n = first; n < first + OBJECTS_OF(len); n++)
		if (marked[n])
			for (int f = 0; f < FIELDS; f++)
				push(heap[n].field[f]);
}

static uint64_t word(const void *at)
{
	uint64_t value;
	memcpy(&value, at, sizeof value);
	return value;
}

static void take_pages(void)
{
	if (atoll_pages_written(heap, objects * sizeof *heap, pages) < 0)
		fail("atoll_pages_written");
}

static void collect(int all)
{
	double begun = now();
	size_t bytes = objects * sizeof *heap;
	if (by_pages)
		take_pages();
	if (all) {
		memset(marked, 0, objects);
		memset(cards, 0, bytes / CARD);
	} else if (by_pages) {
		for (size_t n = 0; n < bytes / PAGE; n += 64)
			for (uint64_t left = word(pages + n / 8); left; left &= left - 1)
				look_through((n + __builtin_ctzll(left)) * PAGE, PAGE);
	} else {
		for (size_t n = 0; n < bytes / CARD; n += 8)
			for (uint64_t left = word(cards + n); left;) {
				int card = __builtin_ctzll(left) / 8;
				left &= ~(0xffull << card * 8);
				look_through((n + card) * CARD, CARD);
			}
		memset(cards, 0, bytes / CARD);
	}
	for (size_t n = 0; n < sizeof roots / sizeof *roots; n++)
		push(roots[n]);
	trace();
	collections++;
	collecting += now() - begun;
}

static struct object *new_object(uint64_t id)
{
	for (int tries = 0; tries < 3; tries++) {
		while (next < objects && marked[next])
			next++;
		if (next < objects) {
			// What is young has no place in the remembered set.
			struct object *o = &heap[next++];
			*o = (struct object){.id = id};
			return o;
		}
		collect(tries > 0);
		next = 0;
	}
	fail("the heap is full");
	return NULL;
}

// A write of a pointer. `table`: the card table as if it began with address 0; NULL: there is no barrier.
static inline __attribute__((always_inline)) void set(struct object *o, int field, struct object *to, uintptr_t table)
{
	o->field[field] = to;
	if (table)
		*(uint8_t *)(table + (uintptr_t)&o->field[field] / CARD) = 1;
}

static void begin(size_t heap_bytes, size_t old_bytes, struct object **list)
{
	objects = OBJECTS_OF(heap_bytes);
	heap = map(heap_bytes);
	marked = map(objects);
	cards = map(heap_bytes / CARD);
	pages = map(heap_bytes / PAGE / 8);
	stack = map(objects * sizeof *stack);
	next = 0;
	// One long list keeps all that is old.
	struct object *last = NULL;
	for (size_t n = 0; n < OBJECTS_OF(old_bytes); n++) {
		list[n] = new_object(n);
		if (last)
			last->field[0] = list[n];
		else
			roots[0] = list[n];
		last = list[n];
	}
	collect(1);
	collections = 0;
	collecting = 0;
}

static void end(void)
{
	size_t bytes = objects * sizeof *heap;
	munmap(heap, bytes);
	munmap(marked, objects);
	munmap(cards, bytes / CARD);
	munmap(pages, bytes / PAGE / 8);
	munmap(stack, objects * sizeof *stack);
	memset(roots, 0, sizeof roots);
}

static uint64_t seed = 88172645463325252ull;

// So many writes of pointers between old objects, of which there are `mask` + 1; each 256th is to a new one. Two of a random number.
// What the loop needs is its own, and stays in registers.
static inline __attribute__((always_inline)) void mutate(struct object **list, size_t mask, long writes, uintptr_t table)
{
	uint64_t r = seed;
	for (long n = 0; n < writes; n += 2) {
		r ^= r << 13;
		r ^= r >> 7;
		r ^= r << 17;
		struct object *a = list[r & mask], *b = list[r >> 24 & mask];
		set(a, 1 + (r >> 60) % 4, b, table);
		if (n % 256 == 0) {
			struct object *young = new_object(r);
			young->field[1] = b;
			set(b, 5, young, table);
		} else {
			set(b, 1 + (r >> 58 & 3), a, table);
		}
	}
	seed = r;
}

static void mutate_with_cards(struct object **list, size_t mask, long writes)
{
	mutate(list, mask, writes, (uintptr_t)cards - (uintptr_t)heap / CARD);
}

static void mutate_plainly(struct object **list, size_t mask, long writes)
{
	mutate(list, mask, writes, 0);
}

static void run(struct object **list, size_t mask, long writes, int rounds)
{
	for (int n = 0; n < rounds; n++) {
		by_pages ? mutate_plainly(list, mask, writes) : mutate_with_cards(list, mask, writes);
		collect(0);
	}
}

#define MIB (1ul << 20)
#define OLD (64 * MIB)

static void times(void)
{
	static const struct {
		size_t hot;
		long writes;
		int rounds;
	} list_of[] = {
		{MIB / 4, 10000, 200}, {MIB / 4, 1000000, 50}, {MIB / 4, 20000000, 5},
		{4 * MIB, 10000, 200}, {4 * MIB, 1000000, 50}, {4 * MIB, 20000000, 5},
		{OLD, 10000, 50}, {OLD, 1000000, 20}, {OLD, 20000000, 3},
	};
	struct object **list = map(OBJECTS_OF(OLD) * sizeof *list);
	for (size_t n = 0; n < sizeof list_of / sizeof *list_of; n++) {
		size_t mask = OBJECTS_OF(list_of[n].hot) - 1;
		begin(2 * OLD, OLD, list);
		// The first round touches all that there is to touch.
		run(list, mask, list_of[n].writes, 1);
		collecting = 0;
		double begun = now();
		run(list, mask, list_of[n].writes, list_of[n].rounds);
		double each = (now() - begun) / list_of[n].rounds / list_of[n].writes;
		printf("%zu KiB, %ld writes a collection %.3f\n", list_of[n].hot / 1024, list_of[n].writes, each);
		fprintf(stderr, "%zu KiB, %ld writes: %.3f ns, of which collecting %.3f\n", list_of[n].hot / 1024, list_of[n].writes, each,
			collecting / list_of[n].rounds / list_of[n].writes);
		end();
	}
}

// All that can be reached has what it was made with. Value: a sum over it.
static uint64_t sum_of_all(void)
{
	uint64_t sum = 0, reached = 0;
	collect(1);
	for (size_t n = 0; n < objects; n++)
		if (marked[n]) {
			struct object *o = &heap[n];
			uint64_t own = o->id;
			for (int f = 0; f < FIELDS; f++)
				own = own * 31 + (o->field[f] ? o->field[f]->id : 7);
			sum += own;
			reached++;
		}
	return sum * 31 + reached;
}

static void check(void)
{
	struct object **list = map(OBJECTS_OF(8 * MIB) * sizeof *list);
	by_pages = atoll_in_cell();
	begin(18 * MIB, 8 * MIB, list);
	for (int n = 0; n < 400; n++)
		run(list, OBJECTS_OF(n % 2 ? 8 * MIB : MIB / 4) - 1, 20 + n * 50, 3);
	printf("%ld collections: %llx\n", collections, (unsigned long long)sum_of_all());
	fprintf(stderr, "by %s\n", by_pages ? "pages" : "cards");
	end();
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "check")) {
		check();
	} else if (argc == 3 && !strcmp(argv[1], "times")) {
		by_pages = !strcmp(argv[2], "pages");
		times();
	} else {
		fprintf(stderr, "usage: collector times cards|pages | check\n");
		return 2;
	}
}
