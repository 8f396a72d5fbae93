// System V semaphores (semget(2), semop(2), semctl(2)).
#include "case.h"
#include <sys/ipc.h>
#include <sys/sem.h>

// Nobody else has it on this machine.
static key_t key;
static int id;

static int op(int num, int by, int flags)
{
	struct sembuf o = {num, by, flags};
	return semop(id, &o, 1);
}
static int val(int num)
{
	return semctl(id, num, GETVAL);
}
static void stat_(const char *when)
{
	struct semid_ds d;
	if (semctl(id, 0, IPC_STAT, &d) == -1) {
		printf("%s: %s\n", when, err_(errno));
		return;
	}
	printf("%s: %lu mode %o owner %d:%d creator %d:%d key %d times %d%d\n", when, d.sem_nsems, d.sem_perm.mode,
	       d.sem_perm.uid, d.sem_perm.gid, d.sem_perm.cuid, d.sem_perm.cgid, d.sem_perm.__key == key, d.sem_otime != 0,
	       d.sem_ctime != 0);
}
static void proc_line(void)
{
	FILE *f = fopen("/proc/sysvipc/sem", "r");
	char line[512];
	if (fgets(line, sizeof line, f))
		printf("%s", line);
	while (fgets(line, sizeof line, f)) {
		long k, n, perms, nsems, uid, gid, cuid, cgid, o, c;
		sscanf(line, "%ld %ld %lo %ld %ld %ld %ld %ld %ld %ld", &k, &n, &perms, &nsems, &uid, &gid, &cuid, &cgid, &o, &c);
		if (n == id)
			printf("key %d perms %lo nsems %ld of %ld:%ld by %ld:%ld length %zu\n", k == key, perms, nsems, uid, gid, cuid,
			       cgid, strlen(line));
	}
	fclose(f);
}
// Until so many wait for a semaphore.
static void waiters(int num, int command, int count)
{
	while (semctl(id, num, command) != count)
		sleep_ms(1);
}

static void takes(void)
{
	V(op(0, -1, 0));
}
static void takes_two(void)
{
	V(op(0, -2, 0));
}
static void waits_for_zero(void)
{
	V(op(0, 0, 0));
}
static void both(void)
{
	struct sembuf o[] = {{0, -1, 0}, {1, -1, 0}};
	V(semop(id, o, 2));
}
static void undone(void)
{
	V(op(0, 3, SEM_UNDO));
	V(op(1, -2, SEM_UNDO));
	V(val(0));
	V(val(1));
}
static void forked_undo(void)
{
	op(0, 5, SEM_UNDO);
	// A child of its own undoes nothing.
	pid_t p = fork();
	if (!p)
		_exit(0);
	end_child(p);
	V(val(0));
}
static void undone_by_unshare(void)
{
	op(0, 5, SEM_UNDO);
	V(unshare(CLONE_SYSVSEM));
	V(val(0));
}
static void killed(void)
{
	op(0, 1, SEM_UNDO);
	op(1, 1, 0);
	pause();
}
static void as_other(void)
{
	if (setresgid(1234, 1234, 1234) || setresuid(1234, 1234, 1234))
		return;
	struct semid_ds d;
	V(op(0, 1, 0));
	V(op(0, 0, IPC_NOWAIT));
	V(semctl(id, 0, GETVAL));
	V(semctl(id, 0, SETVAL, 1));
	V(semctl(id, 0, IPC_STAT, &d));
	V(semctl(id, 0, IPC_SET, &d));
	V(semctl(id, 0, IPC_RMID));
	V(semget(key, 0, 0) == id);
	V(semget(key, 0, 0666));
}
static int handled;
static void handler(int s)
{
	handled = s;
}

int main(void)
{
	key = 0x47000000 | getpid();
	SECTION("get");
	V(semget(key, 3, 0600));
	V(semget(IPC_PRIVATE, 0, 0600));
	V(semget(IPC_PRIVATE, -1, 0600));
	V(semget(IPC_PRIVATE, 32001, 0600));
	id = semget(key, 3, IPC_CREAT | IPC_EXCL | 0600);
	V(semget(key, 3, IPC_CREAT | IPC_EXCL | 0600));
	V(semget(key, 3, IPC_CREAT | 0600) == id);
	V(semget(key, 0, 0) == id);
	V(semget(key, 4, 0));
	stat_("new");
	proc_line();

	SECTION("values");
	V(val(0));
	V(semctl(id, 0, SETVAL, 5));
	V(val(0));
	V(semctl(id, 0, SETVAL, -1));
	V(semctl(id, 0, SETVAL, 32768));
	V(semctl(id, 3, SETVAL, 1));
	V(semctl(id, 3, GETVAL));
	V(semctl(id, -1, GETVAL));
	unsigned short set[3] = {1, 2, 32767}, got[3];
	V(semctl(id, 0, SETALL, set));
	V(semctl(id, 0, GETALL, got));
	printf("%d %d %d\n", got[0], got[1], got[2]);
	set[1] = 32768;
	V(semctl(id, 0, SETALL, set));
	V(semctl(id, 0, SETALL, 1));
	V(semctl(id, 0, GETPID) == getpid());

	SECTION("operations");
	V(op(0, -1, 0));
	V(val(0));
	V(op(0, 0, 0));
	V(op(0, -1, IPC_NOWAIT));
	V(op(1, 0, IPC_NOWAIT));
	V(op(2, 1, 0));
	V(op(3, 1, 0));
	struct sembuf many[501] = {{0, 1, 0}, {1, -3, IPC_NOWAIT}};
	V(syscall(SYS_semop, id, many, 2));
	V(val(0));
	many[1].sem_op = -2;
	V(semop(id, many, 2));
	printf("%d %d\n", val(0), val(1));
	struct sembuf again[] = {{0, -1, 0}, {0, 0, 0}, {0, 2, 0}};
	V(semop(id, again, 3));
	P(val(0));
	V(semop(id, many, 0));
	V(semop(id, many, 501));
	V(semop(-1, many, 1));
	V(semop(id, (void *)1, 1));
	stat_("used");

	SECTION("timeouts");
	struct sembuf zero = {0, 0, 0};
	struct timespec t = {0, 20000000}, bad = {0, -1};
	V(semtimedop(id, &zero, 1, &t));
	V(semtimedop(id, &zero, 1, &bad));
	V(semctl(id, 0, SETVAL, 0));
	V(semtimedop(id, &zero, 1, &t));
	V(semtimedop(id, &zero, 1, 0));

	SECTION("waiting");
	pid_t p = begin_child(takes);
	waiters(0, GETNCNT, 1);
	V(semctl(id, 0, GETZCNT));
	V(op(0, 1, 0));
	// What was added is the other's at once.
	V(val(0));
	end_child(p);
	V(semctl(id, 0, GETPID) == p);
	V(semctl(id, 0, SETVAL, 1));
	p = begin_child(waits_for_zero);
	waiters(0, GETZCNT, 1);
	V(semctl(id, 0, GETNCNT));
	V(op(0, -1, 0));
	end_child(p);
	// Who came first gets it, unless it wants too much.
	p = begin_child(takes_two);
	waiters(0, GETNCNT, 1);
	pid_t q = begin_child(takes);
	waiters(0, GETNCNT, 2);
	V(op(0, 1, 0));
	end_child(q);
	V(semctl(id, 0, GETNCNT));
	V(semctl(id, 0, SETVAL, 2));
	end_child(p);
	V(val(0));
	// All or nothing.
	p = begin_child(both);
	waiters(0, GETNCNT, 1);
	V(op(0, 1, 0));
	V(val(0));
	V(semctl(id, 0, GETNCNT));
	V(semctl(id, 1, GETNCNT));
	set[0] = set[1] = 1;
	V(semctl(id, 0, SETALL, set));
	end_child(p);
	printf("%d %d\n", val(0), val(1));

	SECTION("signals");
	struct sigaction sa = {.sa_handler = handler, .sa_flags = SA_RESTART};
	sigaction(SIGUSR1, &sa, 0);
	pthread_t s = signal_later(SIGUSR1, 20);
	V(op(0, -1, 0));
	P(handled == SIGUSR1);
	pthread_join(s, 0);
	V(semctl(id, 0, GETNCNT));

	SECTION("undo");
	unsigned short two[3] = {2, 2, 0};
	semctl(id, 0, SETALL, two);
	end_child(begin_child(undone));
	printf("%d %d\n", val(0), val(1));
	end_child(begin_child(forked_undo));
	P(val(0));
	end_child(begin_child(undone_by_unshare));
	P(val(0));
	semctl(id, 1, SETVAL, 0);
	p = begin_child(killed);
	op(1, -1, 0);
	P(val(0));
	// Nobody below zero.
	op(0, -3, 0);
	kill(p, SIGKILL);
	P(WTERMSIG(end_child(p)));
	P(val(0));
	semctl(id, 0, SETVAL, 0);
	p = begin_child(takes);
	waiters(0, GETNCNT, 1);
	op(1, 1, SEM_UNDO);
	V(semctl(id, 1, SETVAL, 4));
	V(op(1, -5, SEM_UNDO | IPC_NOWAIT));
	V(op(2, 32767, SEM_UNDO));
	V(op(2, -32767, 0));
	V(op(2, 2, SEM_UNDO));

	SECTION("removal");
	pid_t r = begin_child(waits_for_zero);
	end_child(r);
	V(semctl(id, 0, IPC_RMID));
	end_child(p);
	V(semctl(id, 0, GETVAL));
	V(op(0, 1, 0));
	int old = id;
	id = semget(IPC_PRIVATE, 1, 0600);
	P(id != old);
	V(semctl(old, 0, GETVAL));

	SECTION("permissions");
	semctl(id, 0, IPC_RMID);
	id = semget(key, 2, IPC_CREAT | 0604);
	end_child(begin_child(as_other));
	struct semid_ds d;
	semctl(id, 0, IPC_STAT, &d);
	d.sem_perm.mode = 0602;
	V(semctl(id, 0, IPC_SET, &d));
	end_child(begin_child(as_other));
	d.sem_perm.uid = 1234;
	V(semctl(id, 0, IPC_SET, &d));
	stat_("another's");
	end_child(begin_child(as_other));
	V(semctl(id, 0, IPC_STAT, &d));
	V(semctl(id, 0, 99));

	SECTION("what there is");
	id = semget(key, 2, IPC_CREAT | 0604);
	struct seminfo info;
	OK(semctl(0, 0, IPC_INFO, &info));
	printf("%d %d %d %d %d\n", info.semmni, info.semmns, info.semmsl, info.semopm, info.semvmx);
	int highest = semctl(0, 0, SEM_INFO, &info), found = 0;
	printf("%d %d %d\n", highest >= 0, info.semusz >= 1, info.semaem >= 2);
	for (int n = 0; n <= highest; n++) {
		if (semctl(n, 0, SEM_STAT, &d) == id)
			found += d.sem_nsems == 2;
		if (semctl(n, 0, SEM_STAT_ANY, &d) == id)
			found += d.sem_nsems == 2;
	}
	P(found);
	V(semctl(id, 0, IPC_RMID));
	return 0;
}
