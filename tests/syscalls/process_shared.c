// Semaphores, mutexes, condition variables, barriers and read-write locks in memory that processes share; who is killed while it
// waits or holds one; a fork while fifty threads are alive.
// options: --cores 2
// timeout: 60
#include "case.h"
#include <dirent.h>
#include <semaphore.h>

static struct {
	sem_t sem, turn[2];
	pthread_mutex_t lock, robust;
	pthread_cond_t changed;
	pthread_barrier_t barrier;
	pthread_rwlock_t rw;
	long count, copy, step, serial;
} *shared;

static struct timespec in_ms(long ms)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	long long ns = t.tv_nsec + ms * 1000000LL;
	return (struct timespec){t.tv_sec + ns / 1000000000, ns % 1000000000};
}

// All children of a section end by themselves, in any order.
#define FOUR(f) do { \
	pid_t p_[4]; \
	for (int i_ = 0; i_ < 4; i_++) p_[i_] = begin_child(f); \
	for (int i_ = 0; i_ < 4; i_++) V(end_child(p_[i_])); \
} while (0)

static void ping(void)
{
	for (int i = 0; i < 1000; i++) {
		sem_wait(&shared->turn[1]);
		shared->count = shared->count * 3 % 1000003 + 1;
		sem_post(&shared->turn[0]);
	}
}
static void adds_by_semaphore(void)
{
	for (int i = 0; i < 5000; i++) {
		sem_wait(&shared->sem);
		shared->count++;
		sem_post(&shared->sem);
	}
}
static void adds_by_mutex(void)
{
	for (int i = 0; i < 5000; i++) {
		pthread_mutex_lock(&shared->lock);
		shared->count++;
		pthread_mutex_unlock(&shared->lock);
	}
}
static void named(void)
{
	sem_t *s = sem_open("/atoll-case", 0);
	V(s != SEM_FAILED);
	V(sem_wait(s));
	V(sem_post(&shared->sem));
}
static void awaits_step(void)
{
	pthread_mutex_lock(&shared->lock);
	for (long step = 1; step <= 100; step++) {
		while (shared->step < step)
			pthread_cond_wait(&shared->changed, &shared->lock);
		// The last of four lets the parent go on.
		if (++shared->count % 4 == 0)
			pthread_cond_broadcast(&shared->changed);
	}
	pthread_mutex_unlock(&shared->lock);
}
static void meets(void)
{
	for (int i = 0; i < 200; i++) {
		__atomic_add_fetch(&shared->count, 1, __ATOMIC_SEQ_CST);
		if (pthread_barrier_wait(&shared->barrier) == PTHREAD_BARRIER_SERIAL_THREAD)
			shared->serial++;
		if (__atomic_load_n(&shared->count, __ATOMIC_SEQ_CST) != 4 * (i + 1))
			printf("somebody was not there at %d\n", i);
		pthread_barrier_wait(&shared->barrier);
	}
}
static void reads_and_writes(void)
{
	for (int i = 0; i < 2000; i++) {
		if (i % 4 == 0) {
			pthread_rwlock_wrlock(&shared->rw);
			shared->count++;
			shared->copy++;
		} else {
			pthread_rwlock_rdlock(&shared->rw);
			if (shared->count != shared->copy)
				printf("half a write at %d\n", i);
		}
		pthread_rwlock_unlock(&shared->rw);
	}
}
static void waits_for_semaphore(void) { sem_wait(&shared->sem); }
static void waits_for_mutex(void) { pthread_mutex_lock(&shared->lock); }
static void waits_for_condition(void)
{
	pthread_mutex_lock(&shared->lock);
	pthread_cond_wait(&shared->changed, &shared->lock);
}
static void waits_to_write(void) { pthread_rwlock_wrlock(&shared->rw); }
static void holds_robust(void)
{
	pthread_mutex_lock(&shared->robust);
	sem_post(&shared->sem);
	pause();
}
static void killed(void (*f)(void))
{
	pid_t p = begin_child(f);
	asleep(p, p);
	V(kill(p, SIGKILL));
	V(end_child(p));
}

static pthread_mutex_t own = PTHREAD_MUTEX_INITIALIZER;
static sem_t ready;
static volatile int stop;
static int prepared, in_parent, in_child;
static void prepare(void) { pthread_mutex_lock(&own); prepared++; }
static void parent(void) { in_parent++; pthread_mutex_unlock(&own); }
static void child(void) { in_child++; pthread_mutex_unlock(&own); }
static void *busy(void *arg)
{
	sem_post(&ready);
	while (!stop) {
		pthread_mutex_lock(&own);
		free(malloc(100 + (uintptr_t)arg * 50));
		pthread_mutex_unlock(&own);
		sched_yield();
	}
	return 0;
}
static void *adds_one(void *arg) { ++*(int *)arg; return 0; }
static void alone(void)
{
	DIR *d = opendir("/proc/self/task");
	int threads = 0;
	for (struct dirent *e; (e = readdir(d));)
		threads += e->d_name[0] != '.';
	P(threads);
	V(gettid() == getpid());
	V(pthread_mutex_trylock(&own));
	V(pthread_mutex_unlock(&own));
	P(in_child);
	// Its allocator and its threads are as good as new.
	int n = 0;
	for (int i = 0; i < 20; i++) {
		pthread_t t;
		pthread_create(&t, 0, adds_one, &n);
		pthread_join(t, 0);
		free(malloc(1 << i));
	}
	P(n);
}

int main(void)
{
	struct timespec t;
	shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pthread_mutexattr_t ma;
	pthread_mutexattr_init(&ma);
	pthread_mutexattr_setpshared(&ma, PTHREAD_PROCESS_SHARED);
	pthread_mutex_init(&shared->lock, &ma);
	pthread_mutexattr_setrobust(&ma, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&shared->robust, &ma);
	pthread_condattr_t ca;
	pthread_condattr_init(&ca);
	pthread_condattr_setpshared(&ca, PTHREAD_PROCESS_SHARED);
	pthread_cond_init(&shared->changed, &ca);
	pthread_barrierattr_t ba;
	pthread_barrierattr_init(&ba);
	pthread_barrierattr_setpshared(&ba, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&shared->barrier, &ba, 4);
	pthread_rwlockattr_t ra;
	pthread_rwlockattr_init(&ra);
	pthread_rwlockattr_setpshared(&ra, PTHREAD_PROCESS_SHARED);
	pthread_rwlock_init(&shared->rw, &ra);

	SECTION("semaphores");
	sem_init(&shared->turn[0], 1, 0);
	sem_init(&shared->turn[1], 1, 0);
	pid_t p = begin_child(ping);
	for (int i = 0; i < 1000; i++) {
		shared->count += i;
		sem_post(&shared->turn[1]);
		sem_wait(&shared->turn[0]);
	}
	V(end_child(p));
	P(shared->count);
	sem_init(&shared->sem, 1, 1);
	shared->count = 0;
	FOUR(adds_by_semaphore);
	P(shared->count);
	V(sem_trywait(&shared->sem));
	V(sem_trywait(&shared->sem));
	t = in_ms(30);
	V(sem_timedwait(&shared->sem, &t));
	sem_unlink("/atoll-case");
	sem_t *s = sem_open("/atoll-case", O_CREAT | O_EXCL, 0600, 0);
	V(s != SEM_FAILED);
	V(sem_open("/atoll-case", O_CREAT | O_EXCL, 0600, 0) == SEM_FAILED);
	p = begin_child(named);
	V(sem_post(s));
	V(sem_wait(&shared->sem));
	V(end_child(p));
	V(sem_unlink("/atoll-case"));
	V(sem_open("/atoll-case", 0) == SEM_FAILED);
	V(sem_close(s));

	SECTION("mutex and condition variable");
	shared->count = 0;
	FOUR(adds_by_mutex);
	P(shared->count);
	shared->count = 0;
	pid_t four[4];
	for (int i = 0; i < 4; i++)
		four[i] = begin_child(awaits_step);
	pthread_mutex_lock(&shared->lock);
	for (int step = 1; step <= 100; step++) {
		shared->step = step;
		pthread_cond_broadcast(&shared->changed);
		while (shared->count < 4 * step)
			pthread_cond_wait(&shared->changed, &shared->lock);
	}
	pthread_mutex_unlock(&shared->lock);
	for (int i = 0; i < 4; i++)
		V(end_child(four[i]));
	P(shared->count);

	SECTION("barrier and read-write lock");
	shared->count = 0;
	FOUR(meets);
	P(shared->serial);
	shared->count = 0;
	FOUR(reads_and_writes);
	P(shared->count);

	SECTION("killed");
	killed(waits_for_semaphore);
	V(sem_post(&shared->sem));
	V(sem_trywait(&shared->sem));
	V(pthread_mutex_lock(&shared->lock));
	killed(waits_for_mutex);
	V(pthread_mutex_unlock(&shared->lock));
	V(pthread_mutex_trylock(&shared->lock));
	V(pthread_mutex_unlock(&shared->lock));
	killed(waits_for_condition);
	V(pthread_mutex_trylock(&shared->lock));
	V(pthread_cond_signal(&shared->changed));
	t = in_ms(30);
	P(pthread_cond_timedwait(&shared->changed, &shared->lock, &t) == ETIMEDOUT);
	V(pthread_mutex_unlock(&shared->lock));
	V(pthread_rwlock_rdlock(&shared->rw));
	killed(waits_to_write);
	V(pthread_rwlock_unlock(&shared->rw));
	p = begin_child(holds_robust);
	sem_wait(&shared->sem);
	P(pthread_mutex_trylock(&shared->robust) == EBUSY);
	V(kill(p, SIGKILL));
	P(pthread_mutex_lock(&shared->robust) == EOWNERDEAD);
	V(pthread_mutex_consistent(&shared->robust));
	V(pthread_mutex_unlock(&shared->robust));
	V(end_child(p));

	SECTION("a fork beside fifty threads");
	pthread_atfork(prepare, parent, child);
	sem_init(&ready, 0, 0);
	pthread_t threads[50];
	for (uintptr_t i = 0; i < 50; i++)
		pthread_create(&threads[i], 0, busy, (void *)i);
	for (int i = 0; i < 50; i++)
		sem_wait(&ready);
	for (int i = 0; i < 5; i++) {
		p = begin_child(alone);
		V(end_child(p));
	}
	stop = 1;
	for (int i = 0; i < 50; i++)
		pthread_join(threads[i], 0);
	P(prepared);
	P(in_parent);
	P(in_child);
	return 0;
}
