// futex_waitv(2): waiting for any of several futexes.
#include "case.h"
#include <linux/futex.h>

static struct futex_waitv list[129];
static uint32_t word[129];

static long waitv(void *l, unsigned n, unsigned flags, struct timespec *t, int clock)
{
	return syscall(SYS_futex_waitv, l, n, flags, t, clock);
}
static long wake(uint32_t *w, int n, int private)
{
	return syscall(SYS_futex, w, FUTEX_WAKE | private, n, 0, 0, 0);
}
static pid_t waiter;
// What is to happen once the waiter waits.
struct later {
	uint32_t *word;
	int private, change;
};
static void *wakes_later(void *arg)
{
	struct later *l = arg;
	asleep(waiter, waiter);
	if (l->change)
		__atomic_store_n(l->word, 1, __ATOMIC_SEQ_CST);
	return (void *)wake(l->word, 1, l->private);
}
static struct timespec in_ms(int clock, int ms)
{
	struct timespec t;
	clock_gettime(clock, &t);
	t.tv_nsec += ms * 1000000L;
	t.tv_sec += t.tv_nsec / 1000000000;
	t.tv_nsec %= 1000000000;
	return t;
}
static void nothing(int s)
{
	(void)s;
}

int main()
{
	waiter = getpid();
	for (int n = 0; n < 129; n++)
		list[n] = (struct futex_waitv){.val = 0, .uaddr = (long)&word[n], .flags = FUTEX_32 | FUTEX_PRIVATE_FLAG};
	struct timespec t = in_ms(CLOCK_MONOTONIC, 20), past = {1, 0}, bad = {1, 1000000000};

	SECTION("arguments");
	V(waitv(list, 0, 0, &past, CLOCK_MONOTONIC));
	V(waitv(list, 129, 0, &past, CLOCK_MONOTONIC));
	V(waitv(0, 1, 0, &past, CLOCK_MONOTONIC));
	V(waitv(list, 1, 1, &past, CLOCK_MONOTONIC));
	V(waitv(list, 1, 0, &past, CLOCK_BOOTTIME));
	V(waitv(list, 1, 0, &bad, CLOCK_MONOTONIC));
	V(waitv(list, 1, 0, (void *)8, CLOCK_MONOTONIC));
	V(waitv((void *)8, 1, 0, &past, CLOCK_MONOTONIC));
	list[1].flags = FUTEX_PRIVATE_FLAG;
	V(waitv(list, 2, 0, &past, CLOCK_MONOTONIC));
	list[1].flags = FUTEX_32 | 1 << 20;
	V(waitv(list, 2, 0, &past, CLOCK_MONOTONIC));
	list[1].flags = FUTEX_32 | FUTEX_PRIVATE_FLAG;
	list[1].__reserved = 1;
	V(waitv(list, 2, 0, &past, CLOCK_MONOTONIC));
	list[1].__reserved = 0;
	list[1].val = 1L << 32;
	V(waitv(list, 2, 0, &past, CLOCK_MONOTONIC));
	list[1].val = 1;
	V(waitv(list, 2, 0, &past, CLOCK_MONOTONIC));
	list[1].val = 0;
	list[1].uaddr++;
	V(waitv(list, 2, 0, &past, CLOCK_MONOTONIC));
	list[1].uaddr = 8;
	V(waitv(list, 2, 0, &past, CLOCK_MONOTONIC));
	list[1].uaddr = (long)&word[1];

	SECTION("time");
	V(waitv(list, 128, 0, &past, CLOCK_MONOTONIC));
	V(waitv(list, 3, 0, &t, CLOCK_MONOTONIC));
	t = in_ms(CLOCK_REALTIME, 20);
	V(waitv(list, 3, 0, &t, CLOCK_REALTIME));
	// Nobody is left behind.
	V(wake(&word[0], 9, FUTEX_PRIVATE_FLAG));
	V(wake(&word[127], 9, FUTEX_PRIVATE_FLAG));

	SECTION("woken");
	pthread_t h;
	void *woken;
	struct later l = {&word[2], FUTEX_PRIVATE_FLAG, 0};
	pthread_create(&h, 0, wakes_later, &l);
	V(waitv(list, 3, 0, 0, 0));
	pthread_join(h, &woken);
	P((long)woken);
	l = (struct later){&word[99], FUTEX_PRIVATE_FLAG, 1};
	pthread_create(&h, 0, wakes_later, &l);
	t = in_ms(CLOCK_MONOTONIC, 5000);
	V(waitv(list, 128, 0, &t, CLOCK_MONOTONIC));
	pthread_join(h, &woken);
	P((long)woken);
	V(waitv(list, 128, 0, &t, CLOCK_MONOTONIC));
	word[99] = 0;
	// The same one twice.
	list[1].uaddr = list[0].uaddr;
	l = (struct later){&word[0], FUTEX_PRIVATE_FLAG, 0};
	pthread_create(&h, 0, wakes_later, &l);
	P(waitv(list, 2, 0, 0, 0) < 2);
	pthread_join(h, &woken);
	P((long)woken);
	list[1].uaddr = (long)&word[1];

	SECTION("another process");
	uint32_t *shared = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	list[1].uaddr = (long)shared;
	list[1].flags = FUTEX_32;
	pid_t p = fork();
	if (!p) {
		l = (struct later){shared, 0, 1};
		_exit((long)wakes_later(&l));
	}
	V(waitv(list, 3, 0, 0, 0));
	int status;
	waitpid(p, &status, 0);
	P(WEXITSTATUS(status));
	P(*shared);
	*shared = 0;

	SECTION("interrupted");
	struct sigaction act = {.sa_handler = nothing};
	sigaction(SIGUSR1, &act, 0);
	h = signal_later(SIGUSR1, 50);
	V(waitv(list, 3, 0, 0, 0));
	pthread_join(h, 0);
	act.sa_flags = SA_RESTART;
	sigaction(SIGUSR1, &act, 0);
	h = signal_later(SIGUSR1, 50);
	t = in_ms(CLOCK_MONOTONIC, 500);
	V(waitv(list, 3, 0, &t, CLOCK_MONOTONIC));
	pthread_join(h, 0);
}
