// Mappings that grow downwards when what is below them is used (MAP_GROWSDOWN).
// timeout: 60
#include "case.h"
#include <setjmp.h>
#include <sys/resource.h>

#define PG 4096L
static sigjmp_buf back;
static volatile int code;

// Uses so much of the stack.
static int uses(long bytes)
{
	volatile char page[PG];
	page[0] = page[PG - 1] = 1;
	return (bytes > PG ? uses(bytes - PG) : 0) + page[0] > 0;
}

static void on(int signal, siginfo_t *info, void *unused)
{
	code = signal * 1000 + info->si_code;
	siglongjmp(back, 1);
}

// Writes a byte; 0, or the signal and its code.
static int touch(volatile char *p)
{
	if (sigsetjmp(back, 1))
		return code;
	*p = 1;
	return 0;
}

static int look(volatile char *p)
{
	if (sigsetjmp(back, 1))
		return code;
	return *p;
}

// Room of so many pages in which nothing is mapped, and above it what grows, of two pages.
static char *room(long pages)
{
	char *p = mmap(NULL, (pages + 2) * PG, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	munmap(p, (pages + 2) * PG);
	p = mmap(p + pages * PG, 2 * PG, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_FIXED, -1, 0);
	return p;
}

static int mapped(char *p)
{
	return msync(p, PG, MS_ASYNC) == 0;
}

// Four pages that grow, in a place that is chosen for them, with more than the gap free below. The
// first places may be holes just above another mapping, on Linux, too: these are filled.
static char *anywhere(void)
{
	for (int tries = 0; tries < 10000; tries++) {
		char *p = mmap(NULL, 4 * PG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN, -1, 0);
		int free = 0;
		while (free < 400 && !mapped(p - (free + 1) * PG))
			free++;
		if (free == 400)
			return p;
	}
	abort();
}

static int deep(int n)
{
	volatile char here[1024];
	here[0] = n;
	return n ? deep(n - 1) + here[0] : 0;
}

static void *on_it(void *unused)
{
	return (void *)(long)(deep(3000) != 0);
}

int main(void)
{
	static char own[1 << 16];
	sigaltstack(&(stack_t){.ss_sp = own, .ss_size = sizeof own}, NULL);
	struct sigaction a = {.sa_sigaction = on, .sa_flags = SA_SIGINFO | SA_ONSTACK};
	sigaction(SIGSEGV, &a, NULL);
	sigaction(SIGBUS, &a, NULL);

	SECTION("anywhere");
	// What is small and unmapped is where it is taken from again.
	char *p = mmap(NULL, 16 * PG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	munmap(p, 16 * PG);
	p = anywhere();
	V(mapped(p - PG));
	V(touch(p - 1));
	V(mapped(p - PG));
	char *others = mmap(NULL, 4 * PG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	V(others + 4 * PG <= p - 100 * PG || others >= p + 4 * PG);
	// It is right at the gap, or in another hole.
	int at_gap = others < p && others + 4 * PG > p - 258 * PG;
	V(touch(p - PG - 1) == (at_gap ? SIGSEGV * 1000 + SEGV_MAPERR : 0));
	V(others[0] + others[4 * PG - 1]);
	munmap(others, 4 * PG);
	munmap(p - 2 * PG, 6 * PG);

	SECTION("grows");
	p = room(4000);
	V(mapped(p - PG));
	V(touch(p - 1));
	V(mapped(p - PG));
	V(mapped(p - 2 * PG));
	V(touch(p - 100 * PG + 5));
	V(mapped(p - 100 * PG));
	V(mapped(p - 50 * PG));
	V(mapped(p - 101 * PG));
	V(look(p - 50 * PG));
	V(look(p - 100 * PG + 5));
	V(look(p - 1));
	V(look(p - 200 * PG));
	int fd = open("/dev/zero", O_RDONLY);
	V(read(fd, p - 300 * PG, 10) == 10);
	V(mapped(p - 300 * PG));
	V(munmap(p - 300 * PG, 302 * PG));
	V(touch(p - 1) / 1000);

	SECTION("gap");
	p = room(4000);
	char *below = p - 1000 * PG;
	V(mmap(below, PG, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == below);
	V(touch(below + PG + 256 * PG));
	V(touch(below + PG + 256 * PG - 1));
	V(touch(below + PG + 255 * PG));
	V(touch(below + PG));
	V(mapped(below + PG + 256 * PG));
	V(mapped(below + PG + 255 * PG));
	V(mprotect(below, PG, PROT_NONE));
	V(touch(below + PG));
	V(touch(below));
	V(munmap(below, PG));
	V(touch(below));
	V(touch(below - 500 * PG));
	V(munmap(p - 2000 * PG, 2002 * PG));

	SECTION("neighbours that grow");
	p = room(4000);
	below = p - 1000 * PG;
	V(mmap(below, PG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_GROWSDOWN, -1, 0) == below);
	V(touch(below + 2 * PG));
	V(touch(below - 1));
	V(munmap(p - 2000 * PG, 2002 * PG));

	SECTION("others are placed with a gap");
	p = room(300);
	below = mmap(p - 10 * PG, PG, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	V(below <= p - 257 * PG || below >= p);
	munmap(below, PG);
	V(munmap(p, 2 * PG));

	SECTION("limit");
	p = room(8000);
	struct rlimit old, limit;
	getrlimit(RLIMIT_STACK, &old);
	limit = old;
	limit.rlim_cur = 100 * PG;
	V(setrlimit(RLIMIT_STACK, &limit));
	V(touch(p - 98 * PG));
	V(touch(p - 98 * PG - 1));
	V(setrlimit(RLIMIT_STACK, &old));
	V(touch(p - 98 * PG - 1));
	V(munmap(p - 200 * PG, 202 * PG));

	SECTION("access");
	p = room(1000);
	V(mprotect(p, 2 * PG, PROT_READ));
	V(touch(p - 1));
	V(look(p - 1));
	V(mprotect(p - PG, 3 * PG, PROT_READ | PROT_WRITE));
	V(touch(p - 1));
	V(touch(p - 3 * PG));
	V(munmap(p - 100 * PG, 102 * PG));

	SECTION("children");
	p = room(1000);
	fflush(stdout);
	pid_t c = fork();
	int status;
	if (!c)
		_exit(touch(p - 10 * PG) != 0);
	waitpid(c, &status, 0);
	P(status);
	V(mapped(p - PG));
	V(munmap(p - 100 * PG, 102 * PG));

	SECTION("a thread's stack");
	p = room(4000);
	pthread_attr_t attr;
	pthread_t t;
	void *result;
	pthread_attr_init(&attr);
	V(pthread_attr_setstack(&attr, p - 1200 * PG, 1202 * PG));
	V(pthread_create(&t, &attr, on_it, NULL));
	pthread_join(t, &result);
	P((long)result);
	V(mapped(p - 700 * PG));

	SECTION("protected to where it begins");
	p = room(1000);
	touch(p - 3 * PG);
	V(mprotect(p, PG, PROT_READ | PROT_GROWSDOWN));
	V(touch(p - 3 * PG));
	V(touch(p));
	V(touch(p + PG));

	SECTION("refused");
	V(mmap(NULL, PG, PROT_READ, MAP_SHARED | MAP_ANONYMOUS | MAP_GROWSDOWN, -1, 0));
	V(mmap(NULL, PG, PROT_READ, MAP_PRIVATE | MAP_GROWSDOWN, fd, 0));
	int self = open("/proc/self/exe", O_RDONLY);
	V(mmap(NULL, PG, PROT_READ, MAP_PRIVATE | MAP_GROWSDOWN, self, 0));
	V(mmap(NULL, PG, PROT_READ, MAP_SHARED | MAP_GROWSDOWN, self, 0));

	// What is mapped and unmapped above all others leaves the stack its room.
	SECTION("below the stack");
	char here, *hint = (char *)((long)&here & -PG) - (16 << 20);
	P(mmap(hint, 4 * PG, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == hint);
	V(munmap(hint, 4 * PG));
	for (int n = 0; n < 4; n++) {
		char *others = mmap(NULL, 300 * PG, PROT_READ, n & 1 ? MAP_SHARED : MAP_PRIVATE, self, 0);
		P(others < &here - (8 << 20));
	}
	P(uses(6 << 20));
	return 0;
}
