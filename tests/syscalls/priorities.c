// Real-time priorities at futexes: who is woken first, and who is lent one (FUTEX_LOCK_PI).
#include "case.h"
#include <linux/futex.h>

static long fx(uint32_t *u, int op, uint32_t v, const void *t, uint32_t *u2, uint32_t v3)
{
	return syscall(SYS_futex, u, op, v, t, u2, v3);
}

static void priority(int p)
{
	struct sched_param param = { p };
	if (sched_setscheduler(0, p ? SCHED_FIFO : SCHED_OTHER, &param))
		perror("sched_setscheduler");
}

// What happened, in that order.
static char events[32][32];
static int happened;
static void note(const char *what) { strcpy(events[__atomic_fetch_add(&happened, 1, __ATOMIC_SEQ_CST)], what); }
static void tell(const char *of)
{
	printf("%s:", of);
	for (int i = 0; i < happened; i++)
		printf(" %s", events[i]);
	puts("");
	happened = 0;
}

static uint32_t word, second;
// Who is about to wait.
static pid_t waiting;
static void begin(void)
{
	__atomic_store_n(&waiting, gettid(), __ATOMIC_SEQ_CST);
}
// Until a thread that has been made does.
static void waits_now(void)
{
	while (!__atomic_load_n(&waiting, __ATOMIC_SEQ_CST))
		sleep_ms(1);
	asleep(getpid(), waiting);
	waiting = 0;
}

static void *waits(void *p)
{
	char name[16];
	priority((int)(long)p);
	begin();
	fx(&word, FUTEX_WAIT_PRIVATE, 0, 0, 0, 0);
	snprintf(name, sizeof name, "%ld", (long)p);
	note(name);
	return 0;
}

static void wake_order(void)
{
	pthread_t t[6];
	int p[6] = { 0, 10, 30, 20, 0, 30 };
	for (int i = 0; i < 6; i++) {
		pthread_create(&t[i], 0, waits, (void *)(long)p[i]);
		waits_now();
	}
	for (int i = 0; i < 6; i++) {
		V(fx(&word, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0));
		while (__atomic_load_n(&happened, __ATOMIC_SEQ_CST) < i + 1)
			sleep_ms(1);
	}
	for (int i = 0; i < 6; i++)
		pthread_join(t[i], 0);
	tell("woken");
}

static pthread_mutex_t lock, lock2;

static void mutexes(int protocol, int robust)
{
	pthread_mutexattr_t a;
	pthread_mutexattr_init(&a);
	pthread_mutexattr_setprotocol(&a, protocol);
	if (robust)
		pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&lock, &a);
	pthread_mutex_init(&lock2, &a);
}

static void burn(int ms)
{
	struct timespec a, b;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
	do
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
	while ((b.tv_sec - a.tv_sec) * 1000.0 + (b.tv_nsec - a.tv_nsec) / 1e6 < ms);
}

static int owns;

static void *low(void *sleeps)
{
	priority(0);
	pthread_mutex_lock(&lock);
	owns = 1;
	if (sleeps)
		sleep_ms(40);
	burn(60);
	note("low-unlocks");
	pthread_mutex_unlock(&lock);
	note("low-ends");
	return 0;
}

static void *medium(void *unused)
{
	priority(20);
	sleep_ms(20);
	burn(150);
	note("medium-ends");
	return 0;
}

static void *high(void *unused)
{
	priority(30);
	sleep_ms(10);
	pthread_mutex_lock(&lock);
	note("high-locks");
	pthread_mutex_unlock(&lock);
	return 0;
}

// The high one wants what the low one has, and the medium one has something to do.
static void inversion(const char *name)
{
	pthread_t t[3];
	owns = 0;
	pthread_create(&t[0], 0, low, 0);
	while (!__atomic_load_n(&owns, __ATOMIC_SEQ_CST))
		sleep_ms(1);
	pthread_create(&t[1], 0, high, 0);
	pthread_create(&t[2], 0, medium, 0);
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], 0);
	tell(name);
}

static void *between(void *unused)
{
	priority(0);
	pthread_mutex_lock(&lock2);
	owns = 2;
	pthread_mutex_lock(&lock);
	note("between-locks");
	pthread_mutex_unlock(&lock);
	pthread_mutex_unlock(&lock2);
	return 0;
}

static void *high2(void *unused)
{
	priority(30);
	sleep_ms(10);
	pthread_mutex_lock(&lock2);
	note("high-locks");
	pthread_mutex_unlock(&lock2);
	return 0;
}

// By way of one that waits itself.
static void chain(void)
{
	pthread_t t[4];
	owns = 0;
	pthread_create(&t[0], 0, low, 0);
	while (__atomic_load_n(&owns, __ATOMIC_SEQ_CST) < 1)
		sleep_ms(1);
	pthread_create(&t[1], 0, between, 0);
	while (__atomic_load_n(&owns, __ATOMIC_SEQ_CST) < 2)
		sleep_ms(1);
	pthread_create(&t[2], 0, high2, 0);
	pthread_create(&t[3], 0, medium, 0);
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], 0);
	tell("by a chain");
}

static void *gives_up(void *unused)
{
	struct timespec at;
	priority(30);
	clock_gettime(CLOCK_REALTIME, &at);
	at.tv_nsec += 5000000;
	if (at.tv_nsec >= 1000000000)
		at.tv_sec++, at.tv_nsec -= 1000000000;
	note(pthread_mutex_timedlock(&lock, &at) == ETIMEDOUT ? "timed-out" : "what?");
	return 0;
}

// Who does not wait any more lends nothing.
static void timeout(void)
{
	pthread_t t[3];
	owns = 0;
	pthread_create(&t[0], 0, low, &lock);
	while (!__atomic_load_n(&owns, __ATOMIC_SEQ_CST))
		sleep_ms(1);
	pthread_create(&t[1], 0, gives_up, 0);
	pthread_create(&t[2], 0, medium, 0);
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], 0);
	tell("timed out");
}

static void *raised(void *unused)
{
	priority(0);
	sleep_ms(10);
	pthread_mutex_lock(&lock);
	note("raised-locks");
	pthread_mutex_unlock(&lock);
	return 0;
}

// It is raised while it waits, and lends that.
static void later(void)
{
	pthread_t t[3];
	owns = 0;
	struct sched_param param = { 30 };
	pthread_create(&t[0], 0, low, 0);
	while (!__atomic_load_n(&owns, __ATOMIC_SEQ_CST))
		sleep_ms(1);
	pthread_create(&t[1], 0, raised, 0);
	pthread_create(&t[2], 0, medium, 0);
	sleep_ms(30);
	V(pthread_setschedparam(t[1], SCHED_FIFO, &param));
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], 0);
	tell("raised later");
}

static void *dies(void *unused)
{
	priority(0);
	pthread_mutex_lock(&lock);
	owns = 1;
	sleep_ms(40);
	return 0;
}

static void *inherits(void *unused)
{
	priority(0);
	note(pthread_mutex_lock(&lock) == EOWNERDEAD ? "owner-died" : "what?");
	if (!pthread_mutex_consistent(&lock))
		note("consistent");
	pthread_mutex_unlock(&lock);
	return 0;
}

static void death(void)
{
	pthread_t t[3];
	owns = 0;
	pthread_create(&t[0], 0, dies, 0);
	while (!__atomic_load_n(&owns, __ATOMIC_SEQ_CST))
		sleep_ms(1);
	pthread_create(&t[1], 0, inherits, 0);
	pthread_join(t[0], 0);
	pthread_join(t[1], 0);
	V(pthread_mutex_lock(&lock));
	V(pthread_mutex_unlock(&lock));
	tell("death");
}

static void *dies_bare(void *unused)
{
	priority(0);
	fx(&word, FUTEX_LOCK_PI_PRIVATE, 0, 0, 0, 0);
	owns = 1;
	sleep_ms(40);
	return 0;
}

// One that is not in a robust list.
static void death_bare(void)
{
	pthread_t t;
	owns = 0;
	word = 0;
	pthread_create(&t, 0, dies_bare, 0);
	while (!__atomic_load_n(&owns, __ATOMIC_SEQ_CST))
		sleep_ms(1);
	V(fx(&word, FUTEX_LOCK_PI_PRIVATE, 0, 0, 0, 0));
	printf("owner %d, flags %x\n", (word & FUTEX_TID_MASK) == (uint32_t)syscall(SYS_gettid), word & ~FUTEX_TID_MASK);
	pthread_join(t, 0);
	V(fx(&word, FUTEX_UNLOCK_PI_PRIVATE, 0, 0, 0, 0));
	printf("word %x\n", word);
}

static void *crosses(void *unused)
{
	priority(0);
	fx(&second, FUTEX_LOCK_PI_PRIVATE, 0, 0, 0, 0);
	begin();
	fx(&word, FUTEX_LOCK_PI_PRIVATE, 0, 0, 0, 0);
	fx(&word, FUTEX_UNLOCK_PI_PRIVATE, 0, 0, 0, 0);
	fx(&second, FUTEX_UNLOCK_PI_PRIVATE, 0, 0, 0, 0);
	return 0;
}

static void deadlock(void)
{
	pthread_t t;
	word = second = 0;
	V(fx(&word, FUTEX_LOCK_PI_PRIVATE, 0, 0, 0, 0));
	V(fx(&word, FUTEX_LOCK_PI_PRIVATE, 0, 0, 0, 0));
	pthread_create(&t, 0, crosses, 0);
	waits_now();
	V(fx(&second, FUTEX_LOCK_PI_PRIVATE, 0, 0, 0, 0));
	V(fx(&second, FUTEX_TRYLOCK_PI_PRIVATE, 0, 0, 0, 0));
	V(fx(&second, FUTEX_UNLOCK_PI_PRIVATE, 0, 0, 0, 0));
	V(fx(&word, FUTEX_UNLOCK_PI_PRIVATE, 0, 0, 0, 0));
	pthread_join(t, 0);
	printf("words %x %x\n", word, second);
}

static void *requeued(void *unused)
{
	priority(0);
	begin();
	long r = fx(&word, FUTEX_WAIT_REQUEUE_PI_PRIVATE, 0, 0, &second, 0);
	note(r == 0 && (second & FUTEX_TID_MASK) == (uint32_t)syscall(SYS_gettid) ? "owns" : "what?");
	fx(&second, FUTEX_UNLOCK_PI_PRIVATE, 0, 0, 0, 0);
	return 0;
}

// A condition variable's waiters come to own its lock, one after the other.
static void requeue(void)
{
	pthread_t t[3];
	word = second = 0;
	V(fx(&second, FUTEX_LOCK_PI_PRIVATE, 0, 0, 0, 0));
	for (int i = 0; i < 3; i++) {
		pthread_create(&t[i], 0, requeued, 0);
		waits_now();
	}
	V(fx(&word, FUTEX_CMP_REQUEUE_PI_PRIVATE, 1, (void *)10, &second, 1));
	V(fx(&word, FUTEX_CMP_REQUEUE_PI_PRIVATE, 1, (void *)10, &second, 0));
	note("unlock");
	V(fx(&second, FUTEX_UNLOCK_PI_PRIVATE, 0, 0, 0, 0));
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], 0);
	tell("requeued");
	V(fx(&word, FUTEX_WAIT_REQUEUE_PI_PRIVATE, 0, 0, &word, 0));
	V(fx(&word, FUTEX_CMP_REQUEUE_PI_PRIVATE, 2, (void *)10, &second, 0));
}

int main(void)
{
	setvbuf(stdout, 0, _IOLBF, 0);
	cpu_set_t one;
	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	sched_setaffinity(0, sizeof one, &one);
	// It starts the others and sees what happens.
	struct sched_param param = { 50 };
	if (sched_setscheduler(0, SCHED_FIFO, &param)) {
		puts("real-time priorities are not allowed");
		return 0;
	}
	wake_order();
	mutexes(PTHREAD_PRIO_NONE, 0);
	inversion("without inheritance");
	mutexes(PTHREAD_PRIO_INHERIT, 0);
	inversion("with inheritance");
	chain();
	timeout();
	later();
	mutexes(PTHREAD_PRIO_INHERIT, 1);
	death();
	death_bare();
	deadlock();
	requeue();
	return 0;
}
