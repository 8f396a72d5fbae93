// A program's own allocator for what is large (XOS-08): what malloc and its kin promise, with threads, forks, and threads that end in the middle.
// timeout: 90
#include "case.h"
#include "../../libatoll/alloc.c"
#include <stdatomic.h>

#define KIB 1024UL
#define MIB (1024 * KIB)

// The compiler is not to see that nothing comes of it.
static __attribute__((noinline)) void *kept_from(size_t size)
{
	char *volatile p = malloc(size);
	*p = 1;
	return p;
}

// Of each page a word, and the last byte, say whose it is.
static void fill(void *p, size_t size, uint64_t whose)
{
	for (size_t at = 0; at + 8 <= size; at += 4096)
		*(uint64_t *)((char *)p + at) = whose + at;
	((char *)p)[size - 1] = (char)whose;
}

// `last`: the last byte, too.
static int is(void *p, size_t size, uint64_t whose, int last)
{
	for (size_t at = 0; at + 8 <= size - 1; at += 4096)
		if (*(uint64_t *)((char *)p + at) != whose + at)
			return 0;
	return !last || ((char *)p)[size - 1] == (char)whose;
}

static int is_zero(void *p, size_t size)
{
	for (size_t at = 0; at < size; at++)
		if (((char *)p)[at])
			return 0;
	return 1;
}

static void sizes(void)
{
	static const size_t all[] = {0, 1, 1000, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, 100000, 128 * KIB, MIB, MIB + 1, 5 * MIB, 40 * MIB};
	enum { COUNT = sizeof all / sizeof *all };
	void *p[COUNT];
	for (int n = 0; n < COUNT; n++) {
		p[n] = malloc(all[n]);
		if (all[n])
			fill(p[n], malloc_usable_size(p[n]), n);
		printf("%zu: %d, at 16 %d, room %d\n", all[n], !!p[n], (int)((uintptr_t)p[n] % 16), malloc_usable_size(p[n]) >= all[n]);
	}
	for (int n = 0; n < COUNT; n++) {
		if (all[n] && !is(p[n], malloc_usable_size(p[n]), n, 1))
			printf("%zu: another one's\n", all[n]);
		errno = 77;
		free(p[n]);
		if (errno != 77)
			puts("errno is lost");
	}
	free(0);
}

static void again(void)
{
	P(atoll_allocator_drop(SIZE_MAX) > 40 * MIB);
	P(atoll_allocator_kept());
	char *p = malloc(3 * MIB);
	fill(p, 3 * MIB, 9);
	uintptr_t was = (uintptr_t)p;
	free(p);
	P(atoll_allocator_kept());
	p = malloc(3 * MIB);
	printf("the same again: %d, as it was: %d\n", (uintptr_t)p == was, is(p, 3 * MIB, 9, 1));
	P(atoll_allocator_kept());
	free(p);
	p = malloc(2800 * KIB);
	printf("for a little less: %d\n", (uintptr_t)p == was);
	free(p);
	p = malloc(2 * MIB);
	printf("for much less: %d\n", (uintptr_t)p == was);
	free(p);
	p = calloc(3, MIB);
	printf("zeroed: %d, the same: %d\n", is_zero(p, 3 * MIB), (uintptr_t)p == was);
	free(p);
	p = malloc(20 * MIB);
	was = (uintptr_t)p;
	memset(p, 1, 20 * MIB);
	free(p);
	p = calloc(1, 20 * MIB - 100);
	printf("zeroed: %d, the same: %d\n", is_zero(p, 20 * MIB - 100), (uintptr_t)p == was);
	free(p);
	// More than a class has places for.
	void *many[100];
	for (int n = 0; n < 100; n++)
		fill(many[n] = malloc(100000), 100000, n);
	for (int n = 0; n < 100; n++) {
		if (!is(many[n], 100000, n, 1))
			puts("another one's");
		free(many[n]);
	}
	P(atoll_allocator_kept() >= 25 * MIB);
	P(atoll_allocator_drop(1) > 0);
	P(malloc_trim(0));
	P(atoll_allocator_kept());
}

static void resizes(void)
{
	static const size_t all[] = {10, 60000, 70000, 200000, 5 * MIB, 40 * MIB, 41 * MIB, 6 * MIB, 100000, 64 * KIB, 40000, 20, 300000, 8};
	size_t before = 0;
	char *p = 0;
	for (unsigned n = 0; n < sizeof all / sizeof *all; n++) {
		p = realloc(p, all[n]);
		size_t both = before < all[n] ? before : all[n];
		printf("%zu: %d, room %d\n", all[n], !before || is(p, both, n - 1, 0), malloc_usable_size(p) >= all[n]);
		fill(p, all[n], n);
		before = all[n];
	}
	free(p);
	p = realloc(0, MIB);
	P(!!p);
	P(!!realloc(p, 0));
	// In small steps, with others between.
	void *others[64];
	p = 0;
	for (int n = 0; n < 64; n++) {
		p = reallocarray(p, (n + 1), 50000);
		memset(p + n * 50000, n, 50000);
		others[n] = malloc(70000);
	}
	int wrong = 0;
	for (int n = 0; n < 64 * 50000; n++)
		wrong += p[n] != n / 50000;
	P(wrong);
	for (int n = 0; n < 64; n++)
		free(others[n]);
	free(p);
}

static void aligned(void)
{
	void *p = 0;
	for (size_t align = 8; align <= 4 * MIB; align *= 8) {
		for (size_t size = 10; size <= 3 * MIB; size *= 30) {
			int e = posix_memalign(&p, align, size);
			memset(p, 1, size);
			void *q = aligned_alloc(align, size);
			fill(q, size, size);
			printf("%zu at %zu: %d, %d, %d, room %d\n", size, align, e, (int)((uintptr_t)p % align), (int)((uintptr_t)q % align), malloc_usable_size(q) >= size);
			free(p);
			q = realloc(q, 2 * size);
			if (!is(q, size, size, 0))
				puts("lost");
			free(q);
		}
	}
	printf("%d %d %d\n", posix_memalign(&p, 0, MIB), posix_memalign(&p, 4, MIB), posix_memalign(&p, 24, MIB));
	p = valloc(100000);
	P((uintptr_t)p % 4096);
	free(p);
	p = pvalloc(100001);
	printf("%d %d\n", (int)((uintptr_t)p % 4096), malloc_usable_size(p) >= 102400);
	free(p);
}

static void errors(void)
{
	volatile size_t most = SIZE_MAX, half = PTRDIFF_MAX;
	void *p;
	V(malloc(most) ? 0 : -1);
	V(malloc(most - 63) ? 0 : -1);
	V(malloc(most - 4095) ? 0 : -1);
	V(malloc(half) ? 0 : -1);
	V(malloc(half - 4096) ? 0 : -1);
	V(malloc(1UL << 47) ? 0 : -1);
	V(calloc(most / 2, 3) ? 0 : -1);
	V(calloc(1, most) ? 0 : -1);
	V(reallocarray(0, most / 2, 3) ? 0 : -1);
	V(aligned_alloc(4096, most - 4096) ? 0 : -1);
	V(pvalloc(most - 1) ? 0 : -1);
	P(posix_memalign(&p, 64, most - 100));
	p = malloc(MIB);
	fill(p, MIB, 5);
	V(realloc(p, most - 4096) ? 0 : -1);
	V(realloc(p, half - 4096) ? 0 : -1);
	V(reallocarray(p, most / 2, 3) ? 0 : -1);
	P(is(p, MIB, 5, 1));
	free(p);
}

// Children print what they have to say when they are waited for.
static void until_none(void)
{
	static void *all[1000];
	int counts[3] = {0};
	uint64_t limit[2] = {600 * MIB, 600 * MIB};
	syscall(SYS_setrlimit, 9 /* RLIMIT_AS */, limit);
	for (int round = 0; round < 3; round++) {
		int n = 0;
		while (n < 1000 && (all[n] = malloc(8 * MIB)))
			*(char *)all[n++] = 1;
		printf("%d: %s, some: %d\n", round, err_(errno), n > 10);
		void *p = n ? realloc(all[0], 500 * MIB) : 0;
		printf("longer: %d, as it was: %d\n", !!p, *(char *)all[0]);
		counts[round] = n;
		while (n-- > 0)
			free(all[n]);
		p = malloc(150 * MIB);
		printf("one large one: %d\n", !!p);
		free(p);
	}
	printf("as many again: %d\n", counts[1] >= counts[0] - 1 && counts[2] >= counts[0] - 1);
}

static uint64_t random_of(uint64_t *state)
{
	*state = *state * 6364136223846793005 + 1442695040888963407;
	return *state >> 33;
}

static size_t random_size(uint64_t *state)
{
	uint64_t r = random_of(state);
	// Mostly near the least, and now and then below.
	return r % 8 == 0 ? 100 + r % 60000 : (64 * KIB << r / 8 % 5) + r / 64 % 50000;
}

struct held {
	size_t size;
	uint64_t whose;
};

// A block that says how long it is, and whose.
static struct held *hold(uint64_t *state, size_t least)
{
	size_t size;
	while ((size = random_size(state)) < least)
		;
	uint64_t whose = random_of(state);
	struct held *h = random_of(state) % 4 ? malloc(size) : calloc(1, size);
	if (!h)
		return 0;
	fill(h, size, whose);
	*h = (struct held){size, whose};
	return h;
}

static int let_go(struct held *h)
{
	size_t size = h->size;
	uint64_t whose = h->whose;
	*(uint64_t *)h = whose;
	int right = is(h, size, whose, 1);
	if (right && size % 3 == 0) {
		h = realloc(h, size * 2);
		right = is(h, size, whose, 0);
	}
	free(h);
	return right;
}

static struct held *_Atomic handed[16];
static atomic_long mistakes;
static atomic_int stop;

static void *allocates(void *arg)
{
	uint64_t state = (uint64_t)arg * 77 + 1;
	for (int n = 0; n < 400 && !stop; n++) {
		struct held *other = atomic_exchange(&handed[random_of(&state) % 16], hold(&state, 0));
		if (other && !let_go(other))
			mistakes++;
	}
	return 0;
}

static void threads(void)
{
	pthread_t t[6];
	for (long n = 0; n < 6; n++)
		pthread_create(&t[n], 0, allocates, (void *)n);
	for (long n = 0; n < 6; n++)
		pthread_join(t[n], 0);
	P(mistakes);
}

static void *goes_on(void *arg)
{
	int old;
	if (arg)
		pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &old);
	for (;;) {
		char *volatile p = malloc(200000);
		*p = 1;
		p = realloc(p, 400000);
		free(p);
		if (!arg)
			pthread_testcancel();
	}
}

static void canceled(void)
{
	long ended = 0;
	for (long n = 0; n < 60; n++) {
		pthread_t t;
		void *result;
		pthread_create(&t, 0, goes_on, (void *)(n % 2));
		usleep(n * 20);
		pthread_cancel(t);
		pthread_join(t, &result);
		ended += result == PTHREAD_CANCELED;
		free(kept_from(200000));
	}
	P(ended);
}

static void ends_itself(int signal)
{
	syscall(SYS_exit, 0);
}

static atomic_int tid;

static void *ends_anywhere(void *arg)
{
	tid = syscall(SYS_gettid);
	return goes_on(arg);
}

static void in_handlers(void)
{
	signal(SIGUSR1, ends_itself);
	for (int n = 0; n < 30; n++) {
		pthread_t t;
		tid = 0;
		pthread_create(&t, 0, ends_anywhere, (void *)2);
		while (!tid)
			usleep(100);
		usleep(n * 30);
		syscall(SYS_tgkill, getpid(), tid, SIGUSR1);
		while (!syscall(SYS_tgkill, getpid(), tid, 0))
			usleep(100);
		free(kept_from(200000));
	}
	puts("gone on");
}

// What a child does, whose parent has threads in the middle of it. `own`: with the C library, too.
static int in_child(int seed, int own)
{
	uint64_t state = seed;
	int wrong = 0;
	free(kept_from(100000));
	wrong += atoll_allocator_kept() >= 200000;
	for (int n = 0; n < 20; n++) {
		struct held *h = 0;
		while (!h)
			h = hold(&state, own ? 0 : ALLOC_LARGE);
		wrong += !let_go(h);
	}
	return wrong;
}

static void forks(void)
{
	pthread_t t[2];
	int status, wrong = 0;
	void *old = malloc(2 * MIB);
	fill(old, 2 * MIB, 3);
	free(kept_from(3 * MIB));
	mistakes = 0;
	for (int n = 0; n < 24; n++) {
		stop = 0;
		for (long k = 0; k < 2; k++)
			pthread_create(&t[k], 0, allocates, (void *)(k + 2 * n));
		for (int k = 0; k < 3; k++) {
			fflush(stdout);
			pid_t child = k == 2 ? syscall(SYS_fork) : fork();
			if (!child) {
				if (k == 1 && (child = fork()) != 0) {
					waitpid(child, &status, 0);
					_exit(status != 0);
				}
				status = in_child(n, k < 2) + !is(old, 2 * MIB, 3, 1);
				_exit(status);
			}
			waitpid(child, &status, 0);
			wrong += status != 0;
		}
		stop = 1;
		for (long k = 0; k < 2; k++)
			pthread_join(t[k], 0);
	}
	printf("%d children and %ld threads were wrong; the parent's is as it was: %d\n", wrong, (long)mistakes, is(old, 2 * MIB, 3, 1));
	free(old);
}

static void *is_last(void *arg)
{
	usleep(10000);
	free(kept_from(MIB));
	return 0;
}

static void main_ends(void)
{
	pthread_t t;
	free(kept_from(MIB));
	pthread_create(&t, 0, is_last, 0);
	alarm(20);
	pthread_exit(0);
}

static void executes(void)
{
	free(kept_from(MIB));
	execl("/proc/self/exe", "program", "again", (char *)0);
}

int main(int argc, char **argv)
{
	if (argc > 1) {
		free(kept_from(MIB));
		printf("another program: %zu\n", atoll_allocator_kept());
		return 0;
	}
	SECTION("sizes");
	sizes();
	SECTION("again");
	again();
	SECTION("realloc");
	resizes();
	SECTION("alignment");
	aligned();
	SECTION("errors");
	errors();
	SECTION("until there is none");
	P(end_child(begin_child(until_none)));
	SECTION("threads");
	threads();
	SECTION("threads that are canceled");
	canceled();
	SECTION("threads that end in a handler");
	in_handlers();
	SECTION("children");
	forks();
	SECTION("the first thread ends");
	P(end_child(begin_child(main_ends)));
	SECTION("exec");
	P(end_child(begin_child(executes)));
	fflush(stdout);
	pid_t child = fork();
	if (!child) {
		signal(SIGABRT, SIG_DFL);
		dup2(open("/dev/null", O_WRONLY), 2);
		char *volatile p = malloc(MIB);
		free(p);
		free(p);
		_exit(0);
	}
	int status;
	waitpid(child, &status, 0);
	printf("freed twice: signal %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
	return 0;
}
