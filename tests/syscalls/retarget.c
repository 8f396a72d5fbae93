// Whom a process's signals go to when who was to take them blocks them; what stops and what goes on; what a program's end, and its exec,
// leave behind in memory that others have, too; waits that are over; what takes a right.
// flags: -pthread
// options: --cores 1
// timeout: 60
#include "case.h"
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/timerfd.h>

static char *self;

static long futex(void *at, int op, uint32_t value, const struct timespec *limit, void *other, uint32_t third)
{
	return syscall(SYS_futex, at, op, value, limit, other, third);
}
static const struct timespec soon = {3, 0};

// Two handlers that wait for each other: two threads must run them.
static _Atomic int inside, met;
static void meets(int signal)
{
	inside++;
	for (int i = 0; i < 200 && inside < 2; i++)
		sleep_ms(10);
	met += inside >= 2;
}
static void *open_to_all(void *unused)
{
	sigset_t none;
	sigemptyset(&none);
	pthread_sigmask(SIG_SETMASK, &none, 0);
	for (int i = 0; i < 300 && met < 2; i++)
		sleep_ms(10);
	return 0;
}
static void *sends_both(void *unused)
{
	sleep_ms(50);
	kill(getpid(), SIGUSR1);
	kill(getpid(), SIGUSR2);
	return 0;
}
static void two_handlers(void)
{
	struct sigaction a = {.sa_handler = meets};
	sigaddset(&a.sa_mask, SIGUSR1);
	sigaddset(&a.sa_mask, SIGUSR2);
	sigaction(SIGUSR1, &a, 0);
	sigaction(SIGUSR2, &a, 0);
	sigset_t both, old;
	sigemptyset(&both);
	sigaddset(&both, SIGUSR1);
	sigaddset(&both, SIGUSR2);
	pthread_t other, sender;
	pthread_sigmask(SIG_BLOCK, &both, &old);
	pthread_create(&sender, 0, sends_both, 0);
	pthread_create(&other, 0, open_to_all, 0);
	pthread_sigmask(SIG_SETMASK, &old, 0);
	pthread_join(sender, 0);
	pthread_join(other, 0);
	P(met);
	// One is taken by who waits for it, the other comes to who has it open.
	inside = 0;
	met = 0;
	pthread_sigmask(SIG_BLOCK, &both, 0);
	pthread_create(&sender, 0, sends_both, 0);
	pthread_create(&other, 0, open_to_all, 0);
	int taken = sigtimedwait(&both, 0, &soon);
	printf("taken: %d\n", taken == SIGUSR1 || taken == SIGUSR2);
	inside++;
	for (int i = 0; i < 200 && !met; i++)
		sleep_ms(10);
	P(met);
	met = 2;
	pthread_join(sender, 0);
	pthread_join(other, 0);
	pthread_sigmask(SIG_SETMASK, &old, 0);
}
static void waiting_signals(const char *when)
{
	sigset_t set;
	sigpending(&set);
	printf("%s: CONT %d TSTP %d\n", when, sigismember(&set, SIGCONT), sigismember(&set, SIGTSTP));
}
static void nothing(int signal)
{
}
static void stops_and_goes_on(void)
{
	signal(SIGCONT, nothing);
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGCONT);
	sigaddset(&set, SIGTSTP);
	sigprocmask(SIG_BLOCK, &set, 0);
	syscall(SYS_tgkill, getpid(), gettid(), SIGCONT);
	waiting_signals("to the thread");
	kill(getpid(), SIGTSTP);
	waiting_signals("then a stop");
	kill(getpid(), SIGCONT);
	waiting_signals("then the opposite");
	syscall(SYS_tgkill, getpid(), gettid(), SIGTSTP);
	waiting_signals("and again");
	syscall(SYS_tgkill, getpid(), gettid(), SIGCONT);
	waiting_signals("and back");
}
// A stop and what ends it, both at once, many times: nobody stays stopped.
static void stopped_for_ever(void)
{
	pid_t child = fork();
	if (!child)
		for (;;)
			getppid();
	for (int i = 0; i < 300; i++) {
		kill(child, SIGSTOP);
		if (i % 3 == 0)
			sched_yield();
		kill(child, SIGCONT);
	}
	sleep_ms(10);
	char path[40], b[200] = {0};
	snprintf(path, sizeof path, "/proc/%d/stat", child);
	int fd = open(path, O_RDONLY);
	read(fd, b, sizeof b - 1);
	close(fd);
	printf("state: %c\n", strrchr(b, ')')[2]);
	kill(child, SIGKILL);
	waitpid(child, 0, 0);
}
static void waits_for_events(void)
{
	for (int stops = 0; stops < 2; stops++) {
		pid_t child = fork();
		if (!child) {
			struct epoll_event e;
			int n = epoll_wait(epoll_create1(0), &e, 1, stops ? 5000 : 1000);
			_exit(n < 0 ? errno : 100 + n);
		}
		asleep(child, child);
		if (stops) {
			kill(child, SIGSTOP);
			waitpid(child, 0, WUNTRACED);
			kill(child, SIGCONT);
		} else {
			// Nobody hears of it.
			kill(child, SIGWINCH);
		}
		int status;
		waitpid(child, &status, 0);
		printf("epoll_wait: %d\n", WEXITSTATUS(status));
	}
}
static char stack[65536] __attribute__((aligned(16)));
static uint32_t child_tid;
static int ends(void *how)
{
	struct timespec t = {0, 500000000};
	nanosleep(&t, 0);
	if (how)
		execl(self, self, "ends", NULL);
	return 0;
}
static void ends_in_shared_memory(void)
{
	for (long how = 0; how < 2; how++) {
		child_tid = 1;
		pid_t child = clone(ends, stack + sizeof stack, CLONE_VM | CLONE_CHILD_CLEARTID | SIGCHLD, (void *)how, 0, 0, &child_tid);
		errno = 0;
		long r = futex(&child_tid, FUTEX_WAIT, 1, &soon, 0, 0);
		printf("%ld %s %u\n", r, err_(errno), child_tid);
		V(waitpid(child, 0, 0) == child);
	}
	child_tid = 1;
	pid_t child = clone(ends, stack + sizeof stack, CLONE_CHILD_CLEARTID | SIGCHLD, 0, 0, 0, &child_tid);
	V(waitpid(child, 0, 0) == child);
	P(child_tid);
}
struct shared {
	pthread_mutex_t mutex;
	_Atomic int has;
	_Atomic uint32_t word;
};
static void locks_of_who_execs(void)
{
	struct shared *s = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < 4; i++) {
		pthread_mutexattr_t a;
		pthread_mutexattr_init(&a);
		pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
		pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
		pthread_mutexattr_setprotocol(&a, i & 1 ? PTHREAD_PRIO_INHERIT : PTHREAD_PRIO_NONE);
		pthread_mutex_init(&s->mutex, &a);
		s->has = 0;
		int p[2];
		pipe(p);
		pid_t child = fork();
		if (!child) {
			pthread_mutex_lock(&s->mutex);
			s->has = 1;
			if (i & 2)
				sleep_ms(100);
			dup2(p[0], 0);
			close(p[1]);
			execl(self, self, "waits", NULL);
		}
		while (!s->has)
			sleep_ms(1);
		if (!(i & 2))
			sleep_ms(100);
		struct timespec until;
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec += 3;
		int r = pthread_mutex_timedlock(&s->mutex, &until);
		printf("lock %d: %s\n", i, r ? err_(r) : "has it");
		if (r == EOWNERDEAD)
			pthread_mutex_consistent(&s->mutex), pthread_mutex_unlock(&s->mutex);
		close(p[0]);
		close(p[1]);
		V(waitpid(child, 0, 0) == child);
	}
	// A lock that isn't robust, and goes to who waits for it all the same.
	int p[2];
	pipe(p);
	s->word = 0;
	pid_t child = fork();
	if (!child) {
		V(futex(&s->word, FUTEX_LOCK_PI, 0, 0, 0, 0));
		sleep_ms(200);
		dup2(p[0], 0);
		close(p[1]);
		execl(self, self, "waits", NULL);
	}
	while (!s->word)
		sleep_ms(1);
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 3;
	V(futex(&s->word, FUTEX_LOCK_PI, 0, &until, 0, 0));
	printf("mine: %d, died: %d\n", (int)(s->word & FUTEX_TID_MASK) == gettid(), !!(s->word & FUTEX_OWNER_DIED));
	V(futex(&s->word, FUTEX_UNLOCK_PI, 0, 0, 0, 0));
	close(p[0]);
	close(p[1]);
	V(waitpid(child, 0, 0) == child);
	munmap(s, 4096);
}

static long value(void)
{
	int n = 0;
	FILE *f = fopen("/proc/self/oom_score_adj", "r");
	fscanf(f, "%d", &n);
	fclose(f);
	return n;
}
static long sets(const char *text)
{
	int fd = open("/proc/self/oom_score_adj", O_WRONLY);
	long r = write(fd, text, strlen(text));
	int e = errno;
	close(fd);
	errno = e;
	return r;
}
static void *renices(void *unused)
{
	pause();
	return 0;
}
// What takes a right.
static void rights(void)
{
	struct rlimit none = {0, 0};
	setrlimit(RLIMIT_RTPRIO, &none);
	setrlimit(RLIMIT_NICE, &none);
	struct sched_param p = {5};
	pid_t other = fork();
	if (!other) {
		pause();
		_exit(0);
	}
	setpgid(0, 0);
	setpgid(other, getpid());
	V(sched_setscheduler(0, SCHED_RR, &p));
	pid_t child = fork();
	if (!child) {
		if (setresuid(1000, 1000, 1000))
			_exit(1);
		prctl(PR_SET_DUMPABLE, 1);
		V(sets("200"));
		V(sets("-1"));
		V(sets("100"));
		P(value());
		p.sched_priority = 3;
		V(sched_setparam(0, &p));
		p.sched_priority = 4;
		V(sched_setparam(0, &p));
		V(sched_setscheduler(0, SCHED_FIFO, &p));
		p.sched_priority = 0;
		V(sched_setscheduler(0, SCHED_OTHER, &p));
		V(sched_setscheduler(0, SCHED_IDLE, &p));
		V(sched_setscheduler(0, SCHED_OTHER, &p));
		V(setpriority(PRIO_PROCESS, 0, -5));
		V(setpriority(PRIO_PROCESS, 0, 5));
		V(setpriority(PRIO_PROCESS, 0, 4));
		pthread_t t;
		pthread_create(&t, 0, renices, 0);
		V(setpriority(PRIO_PGRP, 0, 6));
		V(getpriority(PRIO_PROCESS, 0));
		for (pid_t tid = gettid() + 1; tid < gettid() + 50; tid++)
			if (!syscall(SYS_tgkill, getpid(), tid, 0)) {
				V(getpriority(PRIO_PROCESS, tid) == 6);
				break;
			}
		exit(0);
	}
	V(waitpid(child, 0, 0) == child);
	P(getpriority(PRIO_PROCESS, other));
	kill(other, SIGKILL);
	waitpid(other, 0, 0);
}
static uint32_t words[2];
static void *waits_for_word(void *tid)
{
	__atomic_store_n((pid_t *)tid, gettid(), __ATOMIC_SEQ_CST);
	futex(words, FUTEX_WAIT_PRIVATE, 0, &soon, 0, 0);
	return 0;
}
static void futexes(void)
{
	struct timespec now = {0, 0};
	V(futex(words, FUTEX_WAIT | FUTEX_CLOCK_REALTIME, 0, &now, 0, 0));
	V(futex(words, FUTEX_CMP_REQUEUE_PI, 1, 0, words, 0));
	V(futex(words, FUTEX_CMP_REQUEUE, 1, 0, words + 1, 5));
	pthread_t t[4];
	pid_t tids[4] = {0};
	for (int i = 0; i < 4; i++)
		pthread_create(&t[i], 0, waits_for_word, &tids[i]);
	for (int i = 0; i < 4; i++) {
		while (!__atomic_load_n(&tids[i], __ATOMIC_SEQ_CST))
			sleep_ms(1);
		asleep(getpid(), tids[i]);
	}
	// None, and so one.
	V(futex(words, FUTEX_WAKE_OP_PRIVATE, 0, 0, words + 1, FUTEX_OP(FUTEX_OP_ADD, 0, FUTEX_OP_CMP_EQ, 9)));
	V(futex(words, FUTEX_WAKE_PRIVATE, -1, 0, 0, 0));
	V(futex(words, FUTEX_CMP_REQUEUE_PRIVATE, 1, (void *)1, words + 1, 0));
	V(futex(words + 1, FUTEX_WAKE_PRIVATE, 5, 0, 0, 0));
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], 0);
}
static int set;
static _Atomic int has;
static void *takes(void *count)
{
	struct sembuf o = {0, -(long)count, 0};
	semop(set, &o, 1);
	has++;
	return 0;
}
static void *wants_zero(void *unused)
{
	struct sembuf o = {0, 0, 0};
	semop(set, &o, 1);
	has += 100;
	return 0;
}
// Until a semaphore has that value, or so many wait for it.
static void until(int command, int count)
{
	for (int i = 0; i < 5000 && semctl(set, 0, command) != count; i++)
		sleep_ms(1);
}
static void queues(void)
{
	int q = msgget(IPC_PRIVATE, 0600);
	struct {
		long kind;
		char text[16];
	} m = {1, "0123456789"};
	V(msgsnd(q, &m, 10, 0));
	V(msgrcv(q, &m, 5, 0, MSG_COPY | IPC_NOWAIT));
	V(msgrcv(q, &m, 5, 0, MSG_COPY | IPC_NOWAIT | MSG_NOERROR));
	V(msgrcv(q, &m, 10, 0, MSG_COPY | IPC_NOWAIT | MSG_NOERROR));
	msgctl(q, IPC_RMID, 0);
	// Many sleep for one change.
	set = semget(IPC_PRIVATE, 1, 0600);
	pthread_t t[24];
	has = 0;
	for (long i = 0; i < 20; i++)
		pthread_create(&t[i], 0, takes, (void *)(1 + i % 3));
	semctl(set, 0, SETVAL, 0);
	until(GETNCNT, 20);
	P(semctl(set, 0, GETNCNT));
	semctl(set, 0, SETVAL, 5);
	until(GETVAL, 0);
	P(semctl(set, 0, GETVAL));
	semctl(set, 0, SETVAL, 100);
	for (int i = 0; i < 20; i++)
		pthread_join(t[i], 0);
	P(has);
	P(semctl(set, 0, GETNCNT));
	semctl(set, 0, SETVAL, 1);
	for (int i = 0; i < 2; i++)
		pthread_create(&t[i], 0, wants_zero, 0);
	until(GETZCNT, 2);
	pthread_create(&t[2], 0, takes, (void *)2);
	until(GETNCNT, 1);
	struct sembuf o = {0, 1, 0};
	V(semop(set, &o, 1));
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], 0);
	P(has);
	semctl(set, 0, IPC_RMID);
}
static void polls(void)
{
	int fd = eventfd(0, 0);
	struct pollfd p[500];
	for (int i = 0; i < 500; i++)
		p[i] = (struct pollfd){fd, i % 2 ? POLLIN : POLLPRI, 0};
	V(poll(p, 500, 10));
	pid_t child = fork();
	if (!child) {
		sleep_ms(50);
		eventfd_write(fd, 1);
		_exit(0);
	}
	V(poll(p, 500, 3000));
	printf("%d %d\n", p[0].revents, p[1].revents);
	waitpid(child, 0, 0);
	close(fd);
	V(timerfd_create(CLOCK_TAI, 0));
	for (int i = 0; i < 3; i++) {
		const clockid_t clock = (clockid_t[]){CLOCK_BOOTTIME, CLOCK_TAI, CLOCK_REALTIME}[i];
		struct timespec t, after;
		clock_gettime(clock, &t);
		t.tv_nsec += 50000000;
		if (t.tv_nsec >= 1000000000)
			t.tv_sec++, t.tv_nsec -= 1000000000;
		V(clock_nanosleep(clock, TIMER_ABSTIME, &t, 0));
		clock_gettime(clock, &after);
		long long late = (after.tv_sec - t.tv_sec) * 1000000000LL + after.tv_nsec - t.tv_nsec;
		printf("%d\n", late >= 0 && late < 2000000000LL);
	}
}

int main(int argc, char **argv)
{
	self = argv[0];
	if (argc > 1) {
		char b;
		if (!strcmp(argv[1], "waits"))
			read(0, &b, 1);
		return 0;
	}
	SECTION("signals of a process");
	two_handlers();
	SECTION("stops");
	end_child(begin_child(stops_and_goes_on));
	stopped_for_ever();
	waits_for_events();
	SECTION("memory");
	ends_in_shared_memory();
	locks_of_who_execs();
	SECTION("rights");
	end_child(begin_child(rights));
	SECTION("futexes and queues");
	futexes();
	queues();
	polls();
	return 0;
}
