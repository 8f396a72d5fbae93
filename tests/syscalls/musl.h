// What musl does in other ways than glibc: its threads, their cancellation, its signals, and libraries.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static pthread_barrier_t barrier;
static pthread_key_t key;
static __thread int own = 5;
static int turn, sum, ended, cleaned;
static sem_t begun, caught;
static volatile sig_atomic_t code, value;
static sigjmp_buf back;

static void at_end(void *p) { __atomic_fetch_add(&ended, *(int *)p, __ATOMIC_SEQ_CST); }
static void clean(void *p) { cleaned++; }

// Each adds in its turn.
static void *in_turn(void *p)
{
	int n = (int)(long)p;
	own += n;
	pthread_setspecific(key, &own);
	for (int round = 0; round < 100; round++) {
		pthread_mutex_lock(&mutex);
		while (turn % 4 != n)
			pthread_cond_wait(&cond, &mutex);
		sum = sum * 3 + n;
		turn++;
		pthread_cond_broadcast(&cond);
		pthread_mutex_unlock(&mutex);
	}
	pthread_barrier_wait(&barrier);
	return (void *)(long)own;
}
static void *sleeps(void *p)
{
	pthread_cleanup_push(clean, 0);
	sem_post(&begun);
	sleep(100);
	pthread_cleanup_pop(0);
	return 0;
}
static void *computes(void *p)
{
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, 0);
	sem_post(&begun);
	for (;;)
		__atomic_signal_fence(__ATOMIC_SEQ_CST);
}
static void handler(int s, siginfo_t *i, void *u)
{
	code = i->si_code;
	value = i->si_value.sival_int;
	sem_post(&caught);
}
static void *waits(void *p)
{
	sigset_t set;
	siginfo_t i;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	sem_post(&begun);
	int n = sigwaitinfo(&set, &i);
	return (void *)(long)(n * 1000 + i.si_value.sival_int);
}
static void faulted(int s) { siglongjmp(back, s); }
static void told(union sigval v)
{
	value = v.sival_int;
	sem_post(&caught);
}

static void *end_of(pthread_t t)
{
	void *r;
	pthread_join(t, &r);
	return r;
}

int main(void)
{
	pthread_t t[4];
	setvbuf(stdout, 0, _IOLBF, 0);
	pthread_key_create(&key, at_end);
	pthread_barrier_init(&barrier, 0, 4);
	for (long i = 0; i < 4; i++)
		pthread_create(&t[i], 0, in_turn, (void *)i);
	for (int i = 0; i < 4; i++)
		printf("thread %d: %ld\n", i, (long)end_of(t[i]));
	printf("sum %u, ended %d, own %d\n", (unsigned)sum, ended, own);

	sem_init(&begun, 0, 0);
	sem_init(&caught, 0, 0);
	pthread_create(&t[0], 0, sleeps, 0);
	pthread_create(&t[1], 0, computes, 0);
	sem_wait(&begun);
	sem_wait(&begun);
	for (int i = 0; i < 2; i++) {
		pthread_cancel(t[i]);
		printf("cancelled %d\n", end_of(t[i]) == PTHREAD_CANCELED);
	}
	printf("cleaned %d\n", cleaned);

	struct sigaction a = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
	sigaction(SIGUSR1, &a, 0);
	sigaction(SIGRTMIN + 3, &a, 0);
	sigqueue(getpid(), SIGRTMIN + 3, (union sigval){.sival_int = 42});
	sem_wait(&caught);
	printf("queued: %d %d\n", code == SI_QUEUE, value);
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	pthread_sigmask(SIG_BLOCK, &set, 0);
	pthread_create(&t[0], 0, waits, 0);
	sem_wait(&begun);
	sigqueue(getpid(), SIGUSR2, (union sigval){.sival_int = 9});
	printf("waited for: %ld\n", (long)end_of(t[0]) - SIGUSR2 * 1000);
	pthread_create(&t[0], 0, waits, 0);
	sem_wait(&begun);
	pthread_kill(t[0], SIGUSR1);
	sem_wait(&caught);
	printf("to a thread: %d\n", code == SI_TKILL);
	pthread_kill(t[0], SIGUSR2);
	end_of(t[0]);
	signal(SIGSEGV, faulted);
	printf("fault: %d\n", sigsetjmp(back, 1) ?: (*(volatile int *)8 = 1));
	timer_t id;
	struct sigevent e = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = told, .sigev_value.sival_int = 77};
	timer_create(CLOCK_MONOTONIC, &e, &id);
	timer_settime(id, 0, &(struct itimerspec){{0}, {0, 1000000}}, 0);
	sem_wait(&caught);
	printf("a timer's thread: %d\n", value);
	timer_delete(id);

	// Ids of all threads change together.
	pid_t child = fork();
	if (!child) {
		pthread_create(&t[0], 0, waits, 0);
		sem_wait(&begun);
		printf("setuid %d, %d\n", setuid(geteuid()), getuid() == geteuid());
		pthread_kill(t[0], SIGUSR2);
		end_of(t[0]);
		exit(3);
	}
	int status;
	waitpid(child, &status, 0);
	printf("child %#x\n", status);
	FILE *f = popen("echo from a shell", "r");
	char line[64] = "";
	fgets(line, sizeof line, f);
	printf("%s%d\n", line, pclose(f));

	// As it is for a cell: beside the directory of the program's work.
	void *l = dlopen("../../library.so", RTLD_NOW);
	int (*add)(int) = l ? (int (*)(int))dlsym(l, "add") : 0;
	int (*next)(void) = l ? (int (*)(void))dlsym(l, "next") : 0;
	printf("library %d\n", add && next);
	for (int i = 0; add && i < 2; i++)
		printf("%d %d\n", add(5), next());
	printf("nothing %d\n", l ? dlsym(l, "nothing") == 0 : -1);
	return 0;
}
