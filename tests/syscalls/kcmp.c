// kcmp(2): which things two tasks have in common.
#include "case.h"
#include <linux/kcmp.h>
#include <sys/epoll.h>
#include <sys/sem.h>

static pid_t me;
static int pipes[2];

// 0: the same; 1: not.
static long compare(pid_t a, pid_t b, int type, unsigned long i, unsigned long j)
{
	long r = syscall(SYS_kcmp, a, b, type, i, j);
	return r > 0 ? 1 : r;
}
static void all(pid_t with)
{
	V(compare(me, with, KCMP_VM, 0, 0));
	V(compare(me, with, KCMP_FILES, 0, 0));
	V(compare(me, with, KCMP_FS, 0, 0));
	V(compare(me, with, KCMP_SIGHAND, 0, 0));
	V(compare(me, with, KCMP_FILE, 1, 1));
}
static void *in_thread(void *arg)
{
	*(pid_t *)arg = gettid();
	char c;
	return (void *)read(pipes[0], &c, 1);
}
static void in_child(void)
{
	char c;
	V(read(pipes[0], &c, 1));
}
static void as_nobody(void)
{
	pid_t parent = getppid();
	setgid(65534);
	setuid(65534);
	V(compare(parent, parent, KCMP_VM, 0, 0));
	V(compare(getpid(), getpid(), KCMP_VM, 0, 0));
}

int main()
{
	me = getpid();
	V(pipe(pipes));
	SECTION("itself");
	all(me);
	V(compare(me, me, KCMP_IO, 0, 0));
	V(compare(me, me, KCMP_SYSVSEM, 0, 0));
	V(compare(me, me, 99, 0, 0));
	V(compare(0, me, KCMP_VM, 0, 0));
	V(compare(me, 99999999, KCMP_VM, 0, 0));

	SECTION("files");
	int d = dup(pipes[0]), again = open("/dev/null", O_RDONLY), other = open("/dev/null", O_RDONLY);
	V(compare(me, me, KCMP_FILE, pipes[0], d));
	V(compare(me, me, KCMP_FILE, pipes[0], pipes[1]));
	V(compare(me, me, KCMP_FILE, again, other));
	P(syscall(SYS_kcmp, me, me, KCMP_FILE, again, other) + syscall(SYS_kcmp, me, me, KCMP_FILE, other, again));
	V(compare(me, me, KCMP_FILE, 99, d));
	V(compare(me, me, KCMP_FILE, d, 99));
	int e = epoll_create1(0), dup_ = dup(pipes[1]);
	struct epoll_event want = {EPOLLIN, {0}};
	V(epoll_ctl(e, EPOLL_CTL_ADD, pipes[0], &want));
	V(epoll_ctl(e, EPOLL_CTL_ADD, dup_, &want));
	struct kcmp_epoll_slot slot = {e, pipes[0], 0};
	V(compare(me, me, KCMP_EPOLL_TFD, d, (long)&slot));
	V(compare(me, me, KCMP_EPOLL_TFD, pipes[1], (long)&slot));
	slot.tfd = dup_;
	V(compare(me, me, KCMP_EPOLL_TFD, pipes[1], (long)&slot));
	slot.toff = 1;
	V(compare(me, me, KCMP_EPOLL_TFD, pipes[1], (long)&slot));
	slot = (struct kcmp_epoll_slot){e, 99, 0};
	V(compare(me, me, KCMP_EPOLL_TFD, pipes[1], (long)&slot));
	slot = (struct kcmp_epoll_slot){d, 99, 0};
	V(compare(me, me, KCMP_EPOLL_TFD, pipes[1], (long)&slot));
	slot = (struct kcmp_epoll_slot){99, 99, 0};
	V(compare(me, me, KCMP_EPOLL_TFD, pipes[1], (long)&slot));
	V(compare(me, me, KCMP_EPOLL_TFD, 99, (long)&slot));
	V(compare(me, me, KCMP_EPOLL_TFD, pipes[1], 8));

	SECTION("a thread");
	volatile pid_t tid = 0;
	pthread_t t;
	pthread_create(&t, 0, in_thread, (void *)&tid);
	while (!tid)
		sleep_ms(1);
	all(tid);
	V(compare(me, tid, KCMP_FILE, pipes[0], d));
	V(write(pipes[1], "x", 1));
	pthread_join(t, 0);

	SECTION("a child");
	pid_t child = begin_child(in_child);
	asleep(child, child);
	V(compare(me, child, KCMP_VM, 0, 0));
	V(compare(me, child, KCMP_FILES, 0, 0));
	V(compare(me, child, KCMP_FS, 0, 0));
	V(compare(me, child, KCMP_SIGHAND, 0, 0));
	V(compare(me, child, KCMP_FILE, d, pipes[0]));
	V(compare(me, child, KCMP_FILE, 1, 1));
	int sem = semget(IPC_PRIVATE, 1, 0600);
	struct sembuf up = {0, 1, SEM_UNDO};
	V(semop(sem, &up, 1));
	V(compare(me, child, KCMP_SYSVSEM, 0, 0));
	V(compare(me, me, KCMP_SYSVSEM, 0, 0));
	V(semctl(sem, 0, IPC_RMID));
	V(write(pipes[1], "x", 1));
	P(end_child(child));

	SECTION("permission");
	child = begin_child(as_nobody);
	P(end_child(child));
}
