// A program's own pager as a function (XOS-05, XOS-08): what it is called for, what it provides, and how threads and processes end in it.
// timeout: 60
#include "case.h"
#include "../../libatoll/pager.c"
#include <setjmp.h>
#include <stdatomic.h>

#define PAGE 4096L

static char *memory(long pages)
{
	return mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

// What a pager was called for.
struct calls {
	volatile char *base;
	volatile long ahead;	 // pages that it provides at once
	atomic_int count;
	volatile long last;	 // page
	volatile int last_write;
	pthread_t in;	 // the thread that it ran in
};

static __thread char filled[64 * PAGE];

static int numbers(void *arg, void *page, int write)
{
	struct calls *c = arg;
	long n = ((char *)page - c->base) / PAGE, ahead = c->ahead ? c->ahead : 1;
	c->count++;
	c->last = n;
	c->last_write = write;
	c->in = pthread_self();
	for (long k = 0; k < ahead; k++)
		memset(filled + k * PAGE, 'a' + (n + k) % 26, PAGE);
	return atoll_pager_provide(page, filled, ahead * PAGE);
}

static void simple(void)
{
	volatile char *a = memory(64);
	struct calls c = {.base = (char *)a};
	a[3 * PAGE] = 'x';
	V(atoll_pager_register((void *)a, 64 * PAGE, numbers, &c));
	printf("there before: %c, %d calls\n", a[3 * PAGE], c.count);
	char first = a[5 * PAGE + 77];
	printf("read: %c, call %d for page %ld, %s, in this thread: %d\n", first, c.count, c.last, c.last_write ? "write" : "read", !!pthread_equal(c.in, pthread_self()));
	a[6 * PAGE + 1] = '!';
	printf("write: %c%c%c, call %d for page %ld, %s\n", a[6 * PAGE], a[6 * PAGE + 1], a[6 * PAGE + 2], c.count, c.last, c.last_write ? "write" : "read");
	errno = 77;
	first = a[7 * PAGE];
	printf("errno is kept: %d\n", errno);
	c.ahead = 20;
	first = a[30 * PAGE];
	int calls = c.count;
	for (int n = 30; n < 50; n++)
		first += a[n * PAGE];
	printf("more than asked: %d calls for the rest\n", c.count - calls);
	// Some of what it provides is there.
	c.ahead = 1;
	a[60 * PAGE] = '?';
	c.ahead = 8;
	first = a[56 * PAGE];
	printf("around what is there: %c %c %c, %d\n", a[59 * PAGE], a[60 * PAGE], a[61 * PAGE], c.count);
	V(atoll_pager_provide((void *)a + 20 * PAGE, 0, PAGE));
	calls = c.count;
	printf("zeroes ahead: %d, %d calls\n", a[20 * PAGE], c.count - calls);
	V(madvise((void *)a + 5 * PAGE, PAGE, MADV_DONTNEED));
	c.ahead = 1;
	printf("dropped, and again: %c, %d calls\n", a[5 * PAGE], c.count - calls);
	// A system call doesn't ask.
	int p[2];
	V(pipe(p));
	V(write(p[1], "12345", 5));
	V(read(p[0], (void *)a + 10 * PAGE, 5));
	first = a[10 * PAGE];
	V(read(p[0], (void *)a + 10 * PAGE, 5));
	printf("%.5s\n", (char *)a + 10 * PAGE);
	close(p[0]), close(p[1]);
	V(atoll_pager_unregister((void *)a, 32 * PAGE));
	V(atoll_pager_unregister((void *)a, 64 * PAGE));
	V(atoll_pager_unregister((void *)a, 64 * PAGE));
	printf("no longer: %d\n", a[11 * PAGE]);
	V(atoll_pager_provide((void *)a + 12 * PAGE, 0, PAGE));
	munmap((void *)a, 64 * PAGE);
}

static void errors(void)
{
	struct calls c = {0};
	char *a = memory(16), *s = mmap(0, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	V(atoll_pager_register(a + 1, PAGE, numbers, &c));
	V(atoll_pager_register(a, 0, numbers, &c));
	V(atoll_pager_register(a, 100, numbers, &c));
	V(atoll_pager_register(a, PAGE, 0, &c));
	munmap(a + 12 * PAGE, 4 * PAGE);
	V(atoll_pager_register(a + 13 * PAGE, PAGE, numbers, &c));
	V(atoll_pager_register(a, 4 * PAGE, numbers, &c));
	V(atoll_pager_register(a + 3 * PAGE, 4 * PAGE, numbers, &c));
	V(atoll_pager_provide(a, a + 1, 100));
	V(atoll_pager_provide(a + 1, a, PAGE));
	V(atoll_pager_provide(a, (void *)PAGE, PAGE));
	V(atoll_pager_provide(s, 0, PAGE));
	V(atoll_pager_unregister(a, 4 * PAGE));
	V(atoll_pager_unregister(0, 0));
	munmap(s, 4 * PAGE);
	char *many = memory(2 * (ATOLL_PAGERS_MAX + 1));
	int n = 0;
	while (n <= ATOLL_PAGERS_MAX && !atoll_pager_register(many + 2 * n * PAGE, PAGE, numbers, &c))
		n++;
	printf("%d ranges, then %s\n", n, err_(errno));
	while (n-- > 0)
		atoll_pager_unregister(many + 2 * n * PAGE, PAGE);
}

static sigjmp_buf out;
static atomic_int gone_by;

static int leaves(void *arg, void *page, int write)
{
	(void)page, (void)write;
	switch (*(int *)arg) {
	case 0:
		siglongjmp(out, 1);
	case 1:
		pthread_exit("in the handler");
	case 2:
		gone_by = syscall(SYS_gettid);
		syscall(SYS_exit, 0);
	case 3:
		kill(getpid(), SIGKILL);
	case 4:
		_exit(7);
	case 5:
		return 1;
	}
	return atoll_pager_provide(page, 0, PAGE);
}

static void *touches(void *at)
{
	return (void *)(long)*(volatile char *)at;
}

static void own(int signal)
{
	printf("the program's own handler: %d\n", signal);
	siglongjmp(out, 2);
}

static void ends(void)
{
	char *a = memory(16);
	volatile int how = 0;
	int status;
	V(atoll_pager_register(a, 16 * PAGE, leaves, (void *)&how));
	if (!sigsetjmp(out, 1))
		touches(a);
	puts("jumped out");
	pthread_t t;
	void *result = 0;
	how = 1;
	pthread_create(&t, 0, touches, a);
	pthread_join(t, &result);
	printf("a thread ended %s\n", (char *)result);
	for (how = 2; how <= 4; how++) {
		fflush(stdout);
		pid_t child = fork();
		if (!child) {
			if (how == 2) {
				pthread_create(&t, 0, touches, a);
				// It has no end that can be waited for.
				while (!gone_by || !syscall(SYS_tgkill, getpid(), gone_by, 0))
					usleep(1000);
				how = 9;
				printf("a child whose other thread is gone: %d\n", a[0]);
				fflush(stdout);
				_exit(0);
			}
			touches(a);
			_exit(1);
		}
		waitpid(child, &status, 0);
		printf("%d: exit %d, signal %d\n", how, WIFEXITED(status) ? WEXITSTATUS(status) : -1, WIFSIGNALED(status) ? WTERMSIG(status) : 0);
	}
	how = 9;
	printf("it goes on: %d\n", a[0]);
	V(atoll_pager_unregister(a, 16 * PAGE));
}

// Both threads are in the handler at the same time.
struct both {
	char *base;
	pthread_barrier_t barrier;
	atomic_int calls;
};

static int together(void *arg, void *page, int write)
{
	struct both *b = arg;
	(void)write;
	int mine = b->calls++;
	pthread_barrier_wait(&b->barrier);
	memset(filled, 'A' + mine, PAGE);
	return atoll_pager_provide(page, filled, PAGE);
}

static void threads(void)
{
	struct both b = {.base = memory(100)};
	long sum = 0;
	pthread_barrier_init(&b.barrier, 0, 2);
	V(atoll_pager_register(b.base, 100 * PAGE, together, &b));
	for (int n = 0; n < 100; n++) {
		pthread_t t[2];
		void *seen[2];
		b.calls = 0;
		for (int k = 0; k < 2; k++)
			pthread_create(&t[k], 0, touches, b.base + n * PAGE);
		for (int k = 0; k < 2; k++)
			pthread_join(t[k], &seen[k]);
		sum += seen[0] == seen[1] && (seen[0] == (void *)'A' || seen[0] == (void *)'B') && b.calls == 2;
	}
	printf("%ld of 100 pages the same for both\n", sum);
	V(atoll_pager_unregister(b.base, 100 * PAGE));
}

static struct calls inner;

static int from_other(void *arg, void *page, int write)
{
	(void)write;
	char c = inner.base[((char *)page - (char *)arg)];
	memset(filled, c - 'a' + 'A', PAGE);
	return atoll_pager_provide(page, filled, PAGE);
}

int main(void)
{
	// The program's own comes first, as the pager passes on what isn't its own.
	signal(SIGBUS, own);
	SECTION("simple");
	simple();
	SECTION("errors");
	errors();
	SECTION("threads and processes that end in it");
	ends();
	SECTION("two threads");
	threads();
	SECTION("one that needs another");
	volatile char *outer = memory(8);
	inner.base = memory(8);
	V(atoll_pager_register((void *)inner.base, 8 * PAGE, numbers, &inner));
	V(atoll_pager_register((void *)outer, 8 * PAGE, from_other, (void *)outer));
	for (int n = 0; n < 4; n++)
		printf("%c%c ", outer[n * PAGE], inner.base[n * PAGE]);
	puts("");
	SECTION("children");
	fflush(stdout);
	pid_t child = fork();
	if (!child) {
		outer[4 * PAGE + 1] = '+';
		for (int n = 0; n < 8; n++)
			printf("%c%c ", outer[n * PAGE], outer[n * PAGE + 1]);
		puts("of the child");
		fflush(stdout);
		_exit(0);
	}
	waitpid(child, 0, 0);
	for (int n = 0; n < 8; n++)
		printf("%c%c ", outer[n * PAGE], outer[n * PAGE + 1]);
	puts("of the parent");
	SECTION("what isn't its own");
	if (!sigsetjmp(out, 1))
		raise(SIGBUS);
	FILE *f = tmpfile();
	char *m = mmap(0, PAGE, PROT_READ, MAP_PRIVATE, fileno(f), 0);
	if (!sigsetjmp(out, 1))
		touches(m);
	int fail = 5;
	char *none = memory(1);
	V(atoll_pager_register(none, PAGE, leaves, &fail));
	if (!sigsetjmp(out, 1))
		touches(none);
	return 0;
}
