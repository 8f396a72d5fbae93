// futex(2), the operations themselves.
#include "case.h"
#include <linux/futex.h>

static uint32_t a, b;

static long fx(uint32_t *u, int op, uint32_t v, const void *t, uint32_t *u2, uint32_t v3)
{
	return syscall(SYS_futex, u, op, v, t, u2, v3);
}

static int woken, come, begun;
static pid_t tids[8];

// Says that this thread is about to wait.
static void begin(void)
{
	tids[__atomic_fetch_add(&come, 1, __ATOMIC_SEQ_CST)] = gettid();
	__atomic_fetch_add(&begun, 1, __ATOMIC_SEQ_CST);
}

// Until that many threads do.
static void all_wait(int n)
{
	while (__atomic_load_n(&begun, __ATOMIC_SEQ_CST) < n)
		sleep_ms(5);
	for (int i = 0; i < n; i++)
		asleep(getpid(), tids[i]);
	begun = come = 0;
}

static void *waiter(void *p)
{
	uint32_t *u = p;
	begin();
	long r = fx(u, FUTEX_WAIT_PRIVATE, *u, 0, 0, 0);
	if (r == 0)
		__atomic_fetch_add(&woken, 1, __ATOMIC_SEQ_CST);
	return (void *)r;
}
static void *bit_waiter(void *p)
{
	begin();
	long r = fx(&a, FUTEX_WAIT_BITSET_PRIVATE, a, 0, 0, (uint32_t)(long)p);
	__atomic_fetch_add(&woken, 1, __ATOMIC_SEQ_CST);
	return (void *)r;
}
static void handler(int s) {}

static void *pi_waiter(void *p)
{
	// The other thread prints meanwhile: what comes out here waits for it.
	long *r = p;
	begin();
	r[0] = fx(&a, FUTEX_LOCK_PI_PRIVATE, 0, 0, 0, 0);
	r[1] = (a & FUTEX_TID_MASK) == (uint32_t)syscall(SYS_gettid);
	r[2] = fx(&a, FUTEX_UNLOCK_PI_PRIVATE, 0, 0, 0, 0);
	return 0;
}

static void wait_for(pthread_t *t, int n, void *(*f)(void *), void *arg)
{
	woken = 0;
	for (int i = 0; i < n; i++)
		pthread_create(&t[i], 0, f, arg);
	all_wait(n);
}

int main(void)
{
	pthread_t t[4];
	struct timespec ms = {0, 10000000}, bad = {0, 1000000000}, neg = {-1, 0}, past = {1, 0};
	SECTION("wait");
	V(fx(&a, FUTEX_WAIT, 1, 0, 0, 0));
	V(fx(&a, FUTEX_WAIT, 0, &ms, 0, 0));
	V(fx(&a, FUTEX_WAIT_PRIVATE, 0, &ms, 0, 0));
	V(fx(&a, FUTEX_WAIT, 0, &bad, 0, 0));
	V(fx(&a, FUTEX_WAIT, 0, &neg, 0, 0));
	V(fx(&a, FUTEX_WAIT_BITSET, 0, &past, 0, FUTEX_BITSET_MATCH_ANY));
	V(fx(&a, FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME, 0, &past, 0, FUTEX_BITSET_MATCH_ANY));
	V(fx(&a, FUTEX_WAIT_BITSET, 0, &past, 0, 0));
	V(fx(&a, FUTEX_WAKE_BITSET, 1, 0, 0, 0));
	V(fx((void *)1, FUTEX_WAIT, 0, 0, 0, 0));
	V(fx((void *)-4096L, FUTEX_WAIT, 0, 0, 0, 0));
	V(fx((void *)8, FUTEX_WAIT, 0, 0, 0, 0));
	V(fx((void *)8, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0));
	V(fx((void *)8, FUTEX_WAKE, 1, 0, 0, 0));
	V(fx((void *)((char *)&a + 1), FUTEX_WAKE, 1, 0, 0, 0));
	V(fx(&a, FUTEX_WAIT, 0, (void *)8, 0, 0));
	V(fx(&a, 99, 0, 0, 0, 0));
	V(fx(&a, FUTEX_FD, 0, 0, 0, 0));
	V(fx(&a, FUTEX_WAKE | FUTEX_CLOCK_REALTIME, 1, 0, 0, 0));
	SECTION("wake");
	V(fx(&a, FUTEX_WAKE, 1, 0, 0, 0));
	wait_for(t, 3, waiter, &a);
	V(fx(&a, FUTEX_WAKE_PRIVATE, 0, 0, 0, 0) >= 0);
	// Linux wakes one for none; it may take a while to run.
	for (int i = 0; i < 50 && !__atomic_load_n(&woken, __ATOMIC_SEQ_CST); i++)
		sleep_ms(20);
	int first = woken;
	V(fx(&a, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0) + first);
	V(fx(&a, FUTEX_WAKE_PRIVATE, INT_MAX, 0, 0, 0) + first > 0);
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], 0);
	P(woken);
	SECTION("requeue");
	wait_for(t, 3, waiter, &a);
	V(fx(&a, FUTEX_REQUEUE_PRIVATE, 1, (void *)1, &b, 0));
	V(fx(&a, FUTEX_CMP_REQUEUE_PRIVATE, 0, (void *)1, &b, 5));
	V(fx(&a, FUTEX_CMP_REQUEUE_PRIVATE, 0, (void *)10, &b, 0));
	V(fx(&a, FUTEX_WAKE_PRIVATE, 10, 0, 0, 0));
	V(fx(&b, FUTEX_WAKE_PRIVATE, 10, 0, 0, 0));
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], 0);
	P(woken);
	V(fx(&a, FUTEX_CMP_REQUEUE_PRIVATE, -1, (void *)1, &b, 0));
	SECTION("wake_op");
	wait_for(t, 2, waiter, &a);
	b = 5;
	V(fx(&a, FUTEX_WAKE_OP_PRIVATE, 1, (void *)1, &b, FUTEX_OP(FUTEX_OP_ADD, 3, FUTEX_OP_CMP_EQ, 5)));
	P(b);
	V(fx(&a, FUTEX_WAKE_OP_PRIVATE, 1, (void *)1, &b, FUTEX_OP(FUTEX_OP_SET, 1, FUTEX_OP_CMP_LT, 5)));
	P(b);
	V(fx(&a, FUTEX_WAKE_OP_PRIVATE, 1, (void *)1, &b, FUTEX_OP(FUTEX_OP_OR, 6, FUTEX_OP_CMP_GE, 5)));
	P(b);
	V(fx(&a, FUTEX_WAKE_OP_PRIVATE, 1, (void *)1, &b, FUTEX_OP(FUTEX_OP_ANDN, 2, FUTEX_OP_CMP_NE, 5)));
	P(b);
	V(fx(&a, FUTEX_WAKE_OP_PRIVATE, 1, (void *)1, &b, FUTEX_OP(FUTEX_OP_XOR, 15, FUTEX_OP_CMP_GT, 5)));
	P(b);
	V(fx(&a, FUTEX_WAKE_OP_PRIVATE, 1, (void *)1, &b, FUTEX_OP((FUTEX_OP_ADD | 8), 4, FUTEX_OP_CMP_LE, 5)));
	P(b);
	V(fx(&a, FUTEX_WAKE_OP_PRIVATE, 1, (void *)1, &b, FUTEX_OP(7, 15, 0, 5)));
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], 0);
	SECTION("bitset");
	wait_for(t, 1, bit_waiter, (void *)1);
	pthread_create(&t[1], 0, bit_waiter, (void *)6);
	all_wait(1);
	V(fx(&a, FUTEX_WAKE_BITSET_PRIVATE, 10, 0, 0, 8));
	V(fx(&a, FUTEX_WAKE_BITSET_PRIVATE, 10, 0, 0, 4));
	V(fx(&a, FUTEX_WAKE_BITSET_PRIVATE, 10, 0, 0, FUTEX_BITSET_MATCH_ANY));
	pthread_join(t[0], 0);
	pthread_join(t[1], 0);
	SECTION("interrupted");
	struct sigaction sa = {.sa_handler = handler};
	sigaction(SIGUSR1, &sa, 0);
	pthread_t l = signal_later(SIGUSR1, 50);
	V(fx(&a, FUTEX_WAIT_PRIVATE, 0, 0, 0, 0));
	pthread_join(l, 0);
	sa.sa_flags = SA_RESTART;
	sigaction(SIGUSR1, &sa, 0);
	l = signal_later(SIGUSR1, 50);
	struct timespec long_ = {2, 0};
	V(fx(&a, FUTEX_WAIT_PRIVATE, 0, &long_, 0, 0));
	pthread_join(l, 0);
	l = signal_later(SIGUSR1, 50);
	clock_gettime(CLOCK_MONOTONIC, &long_);
	long_.tv_sec += 5;
	long long t0 = now_ms(CLOCK_MONOTONIC);
	V(fx(&a, FUTEX_WAIT_BITSET_PRIVATE, 0, &long_, 0, -1));
	P(now_ms(CLOCK_MONOTONIC) - t0 < 4500);
	pthread_join(l, 0);
	SECTION("priority inheritance");
	a = 0;
	uint32_t tid = syscall(SYS_gettid);
	V(fx(&a, FUTEX_TRYLOCK_PI_PRIVATE, 0, 0, 0, 0));
	P(a == tid);
	V(fx(&a, FUTEX_LOCK_PI_PRIVATE, 0, 0, 0, 0));
	V(fx(&a, FUTEX_TRYLOCK_PI_PRIVATE, 0, 0, 0, 0));
	long pi[3];
	pthread_create(t, 0, pi_waiter, pi);
	all_wait(1);
	P((a & FUTEX_WAITERS) != 0);
	V(fx(&a, FUTEX_UNLOCK_PI_PRIVATE, 0, 0, 0, 0));
	pthread_join(*t, 0);
	printf("pi: %ld %ld %ld\n", pi[0], pi[1], pi[2]);
	V(fx(&a, FUTEX_UNLOCK_PI_PRIVATE, 0, 0, 0, 0));
	a = 0x3fffffff;
	V(fx(&a, FUTEX_LOCK_PI_PRIVATE, 0, 0, 0, 0));
	SECTION("shared between mappings");
	int fd = memfd_create("f", 0);
	ftruncate(fd, 4096);
	uint32_t *m1 = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	uint32_t *m2 = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	P(m1 != m2);
	struct { uint32_t *u; } arg = {m1};
	(void)arg;
	extern void *shared_waiter(void *);
	woken = 0;
	pthread_create(t, 0, shared_waiter, m1);
	all_wait(1);
	V(fx(m2, FUTEX_WAKE, 1, 0, 0, 0));
	pthread_join(*t, 0);
	P(woken);
	SECTION("tid and robust list");
	P(syscall(SYS_set_tid_address, &a) == (long)tid);
	struct robust_list_head *h;
	size_t len;
	V(syscall(SYS_get_robust_list, 0, &h, &len));
	P(len);
	V(syscall(SYS_set_robust_list, h, 7));
	V(syscall(SYS_get_robust_list, 1 << 30, &h, &len));
	return 0;
}
void *shared_waiter(void *p)
{
	begin();
	if (fx(p, FUTEX_WAIT, 0, 0, 0, 0) == 0)
		woken++;
	return 0;
}
