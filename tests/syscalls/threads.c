// pthreads: mutexes of all kinds, conditions, rwlocks, barriers, robust and PI locks, keys, cancellation.
#include "case.h"
#include <semaphore.h>
#include <threads.h>

static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
static long counter;
static int turn;

static void *count(void *p)
{
	for (int i = 0; i < 20000; i++) {
		pthread_mutex_lock(&m);
		counter++;
		pthread_mutex_unlock(&m);
	}
	return p;
}

static void *pingpong(void *p)
{
	long me = (long)p;
	for (int i = 0; i < 500; i++) {
		pthread_mutex_lock(&m);
		while (turn != me)
			pthread_cond_wait(&c, &m);
		turn = !me;
		pthread_cond_broadcast(&c);
		pthread_mutex_unlock(&m);
	}
	return (void *)(me + 100);
}

static void *die_holding(void *p)
{
	pthread_mutex_lock(p);
	return 0;
}

static void timed(struct timespec *t, int ms)
{
	clock_gettime(CLOCK_REALTIME, t);
	t->tv_nsec += ms * 1000000L;
	t->tv_sec += t->tv_nsec / 1000000000;
	t->tv_nsec %= 1000000000;
}

static void *try_lock(void *p)
{
	return (void *)(long)pthread_mutex_trylock(p);
}
static void *timed_lock(void *p)
{
	struct timespec t;
	timed(&t, 20);
	return (void *)(long)pthread_mutex_timedlock(p, &t);
}

static pthread_barrier_t barrier;
static int serials;
static void *at_barrier(void *p)
{
	for (int i = 0; i < 50; i++)
		if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD)
			__atomic_fetch_add(&serials, 1, __ATOMIC_SEQ_CST);
	return 0;
}

static pthread_rwlock_t rw = PTHREAD_RWLOCK_INITIALIZER;
static void *reader(void *p)
{
	long bad = 0;
	for (int i = 0; i < 2000; i++) {
		pthread_rwlock_rdlock(&rw);
		bad += ((long *)p)[0] != ((long *)p)[1];
		pthread_rwlock_unlock(&rw);
	}
	return (void *)bad;
}
static void *writer(void *p)
{
	for (int i = 0; i < 2000; i++) {
		pthread_rwlock_wrlock(&rw);
		((long *)p)[0]++;
		((long *)p)[1]++;
		pthread_rwlock_unlock(&rw);
	}
	return 0;
}

static pthread_key_t key;
static _Atomic int destroyed;
static void destroy(void *p) { destroyed += (int)(long)p; }
static void *with_key(void *p)
{
	pthread_setspecific(key, p);
	return 0;
}

static void cleanup(void *p) { *(int *)p = 1; }
static void *cancelled(void *p)
{
	pthread_cleanup_push(cleanup, p);
	pause();
	pthread_cleanup_pop(0);
	return 0;
}
static void *sleeper(void *p)
{
	sem_wait(p);
	return (void *)7;
}

static int same_type(int type, int proto)
{
	pthread_mutexattr_t a;
	pthread_mutex_t x;
	pthread_mutexattr_init(&a);
	pthread_mutexattr_settype(&a, type);
	int r = pthread_mutexattr_setprotocol(&a, proto);
	r = r ? r : pthread_mutex_init(&x, &a);
	printf("init type %d protocol %d: %d\n", type, proto, r);
	if (r)
		return r;
	printf("lock %d\n", pthread_mutex_lock(&x));
	printf("try %d\n", pthread_mutex_trylock(&x));
	pthread_t t;
	void *v;
	pthread_create(&t, 0, try_lock, &x);
	pthread_join(t, &v);
	printf("try elsewhere %s\n", err_((long)v));
	pthread_create(&t, 0, timed_lock, &x);
	pthread_join(t, &v);
	printf("timed elsewhere %s\n", err_((long)v));
	printf("unlock %d\n", pthread_mutex_unlock(&x));
	printf("unlock %d\n", pthread_mutex_unlock(&x));
	return 0;
}

int main(void)
{
	pthread_t t[8];
	void *v;
	SECTION("contended mutex");
	for (long i = 0; i < 4; i++)
		pthread_create(&t[i], 0, count, (void *)i);
	for (int i = 0; i < 4; i++) {
		pthread_join(t[i], &v);
		printf("%ld ", (long)v);
	}
	P(counter);
	SECTION("condition");
	for (long i = 0; i < 2; i++)
		pthread_create(&t[i], 0, pingpong, (void *)i);
	for (int i = 0; i < 2; i++) {
		pthread_join(t[i], &v);
		printf("%ld\n", (long)v);
	}
	struct timespec ts;
	timed(&ts, 20);
	pthread_mutex_lock(&m);
	printf("timedwait %s\n", err_(pthread_cond_timedwait(&c, &m, &ts)));
	clock_gettime(CLOCK_MONOTONIC, &ts);
	printf("clockwait %s\n", err_(pthread_cond_clockwait(&c, &m, CLOCK_MONOTONIC, &ts)));
	pthread_mutex_unlock(&m);

	SECTION("kinds of mutexes");
	same_type(PTHREAD_MUTEX_RECURSIVE, PTHREAD_PRIO_NONE);
	same_type(PTHREAD_MUTEX_ERRORCHECK, PTHREAD_PRIO_NONE);
	same_type(PTHREAD_MUTEX_ERRORCHECK, PTHREAD_PRIO_INHERIT);
	same_type(PTHREAD_MUTEX_RECURSIVE, PTHREAD_PRIO_INHERIT);

	SECTION("robust");
	for (int proto = 0; proto < 2; proto++) {
		pthread_mutexattr_t a;
		pthread_mutex_t x;
		pthread_mutexattr_init(&a);
		pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
		pthread_mutexattr_setprotocol(&a, proto ? PTHREAD_PRIO_INHERIT : PTHREAD_PRIO_NONE);
		printf("init %d\n", pthread_mutex_init(&x, &a));
		pthread_create(t, 0, die_holding, &x);
		pthread_join(*t, 0);
		printf("lock %s\n", err_(pthread_mutex_lock(&x)));
		printf("consistent %d\n", pthread_mutex_consistent(&x));
		printf("unlock %d\n", pthread_mutex_unlock(&x));
		pthread_create(t, 0, die_holding, &x);
		pthread_join(*t, 0);
		printf("lock %s\n", err_(pthread_mutex_lock(&x)));
		printf("unlock %d\n", pthread_mutex_unlock(&x));
		printf("lock %s\n", err_(pthread_mutex_lock(&x)));
	}

	SECTION("barrier");
	pthread_barrier_init(&barrier, 0, 3);
	for (int i = 0; i < 3; i++)
		pthread_create(&t[i], 0, at_barrier, 0);
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], 0);
	P(serials);

	SECTION("rwlock");
	long pair[2] = {0};
	pthread_create(&t[0], 0, writer, pair);
	pthread_create(&t[1], 0, writer, pair);
	pthread_create(&t[2], 0, reader, pair);
	pthread_create(&t[3], 0, reader, pair);
	for (int i = 0; i < 4; i++) {
		pthread_join(t[i], &v);
		printf("%ld ", (long)v);
	}
	printf("%ld %ld\n", pair[0], pair[1]);
	pthread_rwlock_wrlock(&rw);
	timed(&ts, 10);
	printf("timedrdlock %s\n", err_(pthread_rwlock_timedrdlock(&rw, &ts)));
	pthread_rwlock_unlock(&rw);

	SECTION("keys, cancellation, semaphores");
	pthread_key_create(&key, destroy);
	for (long i = 0; i < 3; i++)
		pthread_create(&t[i], 0, with_key, (void *)(i + 1));
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], 0);
	P(destroyed);
	int cleaned = 0;
	pthread_create(t, 0, cancelled, &cleaned);
	sleep_ms(20);
	pthread_cancel(*t);
	pthread_join(*t, &v);
	printf("cancelled %d cleaned %d\n", v == PTHREAD_CANCELED, cleaned);
	sem_t s;
	sem_init(&s, 0, 0);
	pthread_create(t, 0, sleeper, &s);
	sleep_ms(10);
	sem_post(&s);
	pthread_join(*t, &v);
	P((long)v);
	timed(&ts, 10);
	V(sem_timedwait(&s, &ts));
	pthread_attr_t at;
	pthread_attr_init(&at);
	pthread_attr_setdetachstate(&at, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&at, 16384);
	printf("detached %d\n", pthread_create(t, &at, count, 0));
	pthread_getattr_np(pthread_self(), &at);
	size_t size;
	void *low;
	pthread_attr_getstack(&at, &low, &size);
	printf("stack holds a local: %d, %d\n", (char *)&size > (char *)low && (char *)&size < (char *)low + size, size > 8000000);
	// Many, one after the other and at once.
	long before = counter;
	sleep_ms(100);
	for (int i = 0; i < 300; i++) {
		pthread_create(t, 0, with_key, 0);
		pthread_join(*t, 0);
	}
	pthread_t many[100];
	for (int i = 0; i < 100; i++)
		if (pthread_create(&many[i], 0, sleeper, &s))
			printf("create %d failed\n", i);
	for (int i = 0; i < 100; i++)
		sem_post(&s);
	for (int i = 0; i < 100; i++)
		pthread_join(many[i], 0);
	P(before > 0);
	char name[16] = "";
	P(pthread_setname_np(pthread_self(), "a-name"));
	pthread_getname_np(pthread_self(), name, sizeof name);
	puts(name);
	P(pthread_kill(pthread_self(), 0));
	P(syscall(SYS_gettid) == getpid());
	return 0;
}
