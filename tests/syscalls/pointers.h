// A bad pointer in each place of a call that takes one, the others being good.
#ifndef POINTERS_H
#define POINTERS_H
#include "case.h"

// A value, or a pointer to `size` bytes: that are read, that are written, or both; or to a string. Of those that are in a structure, `at`
// says where.
enum kind { VALUE, READ, WRITE, BOTH, STRING };
struct place {
	long good;
	enum kind kind;
	size_t size;
	long *at;
};
#define I(value) {(long)(value)}
#define R(p, n) {(long)(p), READ, n}
#define W(p, n) {(long)(p), WRITE, n}
#define RW(p, n) {(long)(p), BOTH, n}
#define S(text) {(long)(text), STRING, strlen(text) + 1}
#define IN(field, KIND, n) {(long)(field), KIND, n, (long *)&(field)}
#define MOST 10

enum way { NONE, UNMAPPED, NO_ACCESS, READ_ONLY, CROSSES, LAST, KERNEL, RESERVED, WAYS };
static const char *const ways[] = {"null", "unmapped", "no access", "read-only", "crosses", "last", "kernel", "reserved"};

// The last two pages are not mapped, the one before them has no access, and before that lies one for structures.
static char *bad;
// What is to be as it was before each call, and what is to be seen after it.
static void (*before)(void), (*after)(void);
// The first descriptor that is not the case's.
static int free_fd;

static long bad_pointer(enum way way, const struct place *p)
{
	char *end = bad + 4096;
	mprotect(bad, 4096, PROT_READ | PROT_WRITE);
	switch (way) {
	case NONE:
		return 0;
	case UNMAPPED:
		return (long)(bad + 8192);
	case NO_ACCESS:
		return (long)end;
	case READ_ONLY:
		memcpy(bad, (void *)p->good, p->size);
		mprotect(bad, 4096, PROT_READ);
		return (long)bad;
	case CROSSES:
		memcpy(end - (p->size - 1), (void *)p->good, p->size - 1);
		return (long)(end - (p->size - 1));
	case LAST:
		return 0x7fffffffefff;
	case KERNEL:
		return (long)0xffff800000000000;
	default:
		// Where a cell has its runtime. Nothing is there on Linux.
		return 0x400008000000;
	}
}

// The call with this pointer bad in each way. `skip`: ways that aren't tried, a bit each.
static void row(const char *name, int number, unsigned skip, struct place *places)
{
	for (int n = 0; n < MOST; n++) {
		struct place *p = &places[n];
		if (p->kind == VALUE)
			continue;
		printf("%s %d:", name, n);
		for (enum way way = 0; way < WAYS; way++) {
			if (skip & 1u << way || (way == READ_ONLY && (p->kind == READ || p->kind == STRING)))
				continue;
			if (before)
				before();
			long a[MOST];
			for (int k = 0; k < MOST; k++)
				a[k] = places[k].good;
			long pointer = bad_pointer(way, p), *at = p->at ? p->at : &a[n];
			*at = pointer;
			long r = syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
			int e = errno;
			*at = p->good;
			printf(" %s ", ways[way]);
			if (r == -1)
				printf("%s", err_(e));
			else if (r >= 0 && r <= 16)
				printf("%ld", r);
			else
				printf("ok");
			if (fcntl(free_fd, F_GETFD) >= 0 && (r == -1 || r != free_fd))
				printf(" (a descriptor)");
			syscall(SYS_close_range, free_fd, ~0u, 0);
			if (after)
				after();
		}
		puts("");
		fflush(stdout);
	}
}
// Left out is what no program can rely on. When there is something to be taken, a byte of a stream, a datagram, the count of an eventfd,
// and the buffer for it is bad, it may be lost or not; of a stream, what comes before the bad byte may be transferred or not. And where a
// cell has its runtime, nothing can be, so that a list of buffers that names it is refused as a whole.
#define CALL(name, ...) row(#name, SYS_##name, 0, (struct place[MOST]){__VA_ARGS__})
// `what`: which of the things that it does.
#define CALL_OF(name, what, ...) row(#name " " what, SYS_##name, 0, (struct place[MOST]){__VA_ARGS__})
// But for these ways.
#define CALL_BUT(skip, name, what, ...) row(#name " " what, SYS_##name, skip, (struct place[MOST]){__VA_ARGS__})
#define BUT(way) (1u << (way))

static void set_up(void)
{
	char *area = mmap(0, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	bad = area;
	mprotect(area + 4096, 4096, PROT_NONE);
	munmap(area + 8192, 8192);
}

// A family of calls in a process of its own, which does not wait for ever.
static void family(const char *name, void (*f)(void))
{
	SECTION(name);
	pid_t p = fork();
	if (!p) {
		alarm(20);
		free_fd = dup(1);
		close(free_fd);
		f();
		fflush(stdout);
		_exit(0);
	}
	int status;
	waitpid(p, &status, 0);
	if (status)
		printf("status %#x\n", status);
}
#endif
