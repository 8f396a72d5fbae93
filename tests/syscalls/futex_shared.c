// Futexes between processes: operations without FUTEX_PRIVATE_FLAG, on memory that is mapped at different addresses; locks with priority
// inheritance and robust ones whose owner's process ends.
#include "case.h"
#include <linux/futex.h>

static int memory;
static struct shared {
	uint32_t word, lock, other;
	int turn;
	pthread_mutex_t mutex;
} *s;

static long fx(uint32_t *u, int op, uint32_t v, const void *t, uint32_t *u2, uint32_t v3)
{
	return syscall(SYS_futex, u, op, v, t, u2, v3);
}

// The same memory elsewhere: only what it is tells that its futexes are the same ones.
static struct shared *map(void)
{
	return mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
}
static pid_t waiting(void (*f)(void))
{
	pid_t p = begin_child(f);
	asleep(p, p);
	return p;
}
static void end(pid_t p)
{
	X(end_child(p));
}

static void plain(void)
{
	s = map();
	V(fx(&s->word, FUTEX_WAIT, 0, 0, 0, 0));
}
static void second_bit(void)
{
	s = map();
	V(fx(&s->word, FUTEX_WAIT_BITSET, 0, 0, 0, 2));
}
static void private(void)
{
	struct timespec t = {0, 300000000};
	V(fx(&s->word, FUTEX_WAIT_PRIVATE, 0, &t, 0, 0));
}

static void own(void)
{
	P((s->lock & FUTEX_TID_MASK) == (uint32_t)gettid());
	V(fx(&s->lock, FUTEX_UNLOCK_PI, 0, 0, 0, 0));
}
static void lock_pi(void)
{
	struct timespec past = {1, 0}, soon;
	s = map();
	V(fx(&s->lock, FUTEX_TRYLOCK_PI, 0, 0, 0, 0));
	V(fx(&s->lock, FUTEX_UNLOCK_PI, 0, 0, 0, 0));
	V(fx(&s->lock, FUTEX_LOCK_PI, 0, &past, 0, 0));
	V(fx(&s->lock, FUTEX_LOCK_PI | FUTEX_CLOCK_REALTIME, 0, &past, 0, 0));
	V(fx(&s->lock, FUTEX_LOCK_PI2 | FUTEX_CLOCK_REALTIME, 0, &past, 0, 0));
	V(fx(&s->lock, FUTEX_LOCK_PI2, 0, &(struct timespec){0, 1000000000}, 0, 0));
	clock_gettime(CLOCK_MONOTONIC, &soon);
	soon.tv_sec++;
	long long t0 = now_ms(CLOCK_MONOTONIC);
	V(fx(&s->lock, FUTEX_LOCK_PI2, 0, &soon, 0, 0));
	P(now_ms(CLOCK_MONOTONIC) - t0 > 900);
	s->turn = 1;
	V(fx(&s->lock, FUTEX_LOCK_PI2, 0, 0, 0, 0));
	own();
}
static void requeued(void)
{
	s = map();
	V(fx(&s->word, FUTEX_WAIT_REQUEUE_PI, 0, 0, &s->lock, 0));
	own();
}

static void operations(void)
{
	SECTION("bits");
	pid_t p = waiting(second_bit), q;
	V(fx(&s->word, FUTEX_WAKE_BITSET, 1, 0, 0, 4));
	V(fx(&s->word, FUTEX_WAKE_BITSET_PRIVATE, 1, 0, 0, 2));
	V(fx(&s->word, FUTEX_WAKE_BITSET, 1, 0, 0, 6));
	end(p);
	SECTION("a private one");
	p = waiting(private);
	V(fx(&s->word, FUTEX_WAKE, 1, 0, 0, 0));
	end(p);
	SECTION("requeue");
	p = waiting(plain), q = waiting(plain);
	V(fx(&s->word, FUTEX_REQUEUE, 0, (void *)1, &s->other, 0));
	V(fx(&s->word, FUTEX_REQUEUE, 1, (void *)9, &s->other, 0));
	V(fx(&s->other, FUTEX_WAKE, 9, 0, 0, 0));
	end(p), end(q);
	p = waiting(plain), q = waiting(plain);
	V(fx(&s->word, FUTEX_CMP_REQUEUE, 0, (void *)9, &s->other, 1));
	V(fx(&s->word, FUTEX_CMP_REQUEUE, 0, (void *)9, &s->other, 0));
	V(fx(&s->word, FUTEX_WAKE, 9, 0, 0, 0));
	V(fx(&s->word, FUTEX_WAKE_OP, 1, (void *)1, &s->other, FUTEX_OP(FUTEX_OP_ADD, 1, FUTEX_OP_CMP_EQ, 0)));
	V(fx(&s->other, FUTEX_WAKE, 9, 0, 0, 0));
	P(s->other);
	end(p), end(q);
	SECTION("priority inheritance");
	V(fx(&s->lock, FUTEX_TRYLOCK_PI, 0, 0, 0, 0));
	p = begin_child(lock_pi);
	while (!__atomic_load_n(&s->turn, __ATOMIC_SEQ_CST))
		sleep_ms(5);
	asleep(p, p);
	own();
	end(p);
	P(s->lock);
	SECTION("requeue to a lock");
	struct timespec past = {1, 0};
	V(fx(&s->word, FUTEX_WAIT_REQUEUE_PI, 1, 0, &s->lock, 0));
	V(fx(&s->word, FUTEX_WAIT_REQUEUE_PI, 0, 0, &s->word, 0));
	V(fx(&s->word, FUTEX_WAIT_REQUEUE_PI, 0, &past, &s->lock, 0));
	V(fx(&s->word, FUTEX_WAIT_REQUEUE_PI | FUTEX_CLOCK_REALTIME, 0, &past, &s->lock, 0));
	V(fx(&s->word, FUTEX_CMP_REQUEUE_PI, 1, (void *)9, &s->lock, 0));
	V(fx(&s->word, FUTEX_CMP_REQUEUE_PI, 2, (void *)9, &s->lock, 0));
	V(fx(&s->word, FUTEX_CMP_REQUEUE_PI, 1, (void *)9, &s->word, 0));
	for (int taken = 0; taken < 2; taken++) {
		p = waiting(requeued), q = waiting(requeued);
		if (taken)
			V(fx(&s->lock, FUTEX_LOCK_PI, 0, 0, 0, 0));
		V(fx(&s->word, FUTEX_CMP_REQUEUE_PI, 1, (void *)9, &s->lock, 1));
		V(fx(&s->word, FUTEX_CMP_REQUEUE_PI, 1, (void *)9, &s->lock, 0));
		if (taken) {
			asleep(p, p), asleep(q, q);
			V(fx(&s->word, FUTEX_WAKE, 9, 0, 0, 0));
			own();
		}
		end(p), end(q);
		P(s->lock);
	}
}

// How the owner's process ends.
static int way;
static const char *const ways[] = {"exit", "SIGKILL", "another program", "exit by another thread"};

static void *lock_it(void *unused)
{
	pthread_mutex_lock(&s->mutex);
	s->turn = 1;
	if (way == 3)
		pause();
	return 0;
}
static void owner(void)
{
	pthread_t t;
	s = map();
	if (way == 3) {
		pthread_create(&t, 0, lock_it, 0);
		while (s->turn < 2)
			sleep_ms(5);
		_exit(3);
	}
	lock_it(0);
	while (s->turn < 2)
		sleep_ms(5);
	if (way == 1)
		kill(getpid(), SIGKILL);
	if (way == 2)
		execl("/bin/true", "true", (char *)0);
	_exit(3);
}
static void heir(void)
{
	s = map();
	int e = pthread_mutex_lock(&s->mutex);
	puts(strerrorname_np(e) ?: "?");
	if (e == EOWNERDEAD) {
		V(pthread_mutex_trylock(&s->mutex));
		V(pthread_mutex_consistent(&s->mutex));
	}
	V(pthread_mutex_unlock(&s->mutex));
}
static void careless(void)
{
	s = map();
	puts(strerrorname_np(pthread_mutex_lock(&s->mutex)));
	V(pthread_mutex_unlock(&s->mutex));
}

static void robust(int protocol)
{
	pthread_mutexattr_t a;
	pthread_mutexattr_init(&a);
	pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
	pthread_mutexattr_setprotocol(&a, protocol);
	for (way = 0; way < 4; way++) {
		for (int waiters = 2; waiters >= 0; waiters--) {
			printf("%s, %d wait\n", ways[way], waiters);
			pthread_mutex_init(&s->mutex, &a);
			s->turn = 0;
			pid_t p = begin_child(owner), q[2];
			while (!__atomic_load_n(&s->turn, __ATOMIC_SEQ_CST))
				sleep_ms(1);
			V(pthread_mutex_trylock(&s->mutex));
			for (int i = 0; i < waiters; i++)
				q[i] = waiting(heir);
			s->turn = 2;
			end(p);
			// In that order, as they came.
			for (int i = 0; i < waiters; i++)
				end(q[i]);
			if (!waiters)
				careless();
			heir();
		}
	}
}

int main(void)
{
	memory = memfd_create("shared", 0);
	ftruncate(memory, 4096);
	s = map();
	operations();
	SECTION("robust locks");
	robust(PTHREAD_PRIO_NONE);
	SECTION("robust locks with priority inheritance");
	robust(PTHREAD_PRIO_INHERIT);
	return 0;
}
