// System V message queues (msgget(2), msgop(2), msgctl(2)).
#include "case.h"
#include <sys/ipc.h>
#include <sys/msg.h>

// Nobody else has it on this machine.
static key_t key;
static int id;
struct message {
	long type;
	char text[9000];
};

static int put(long type, const char *text, int flags)
{
	struct message m = {type};
	strcpy(m.text, text);
	return msgsnd(id, &m, strlen(text), flags);
}
static void receive(long type, size_t most, int flags)
{
	struct message m = {0};
	ssize_t n = msgrcv(id, &m, most, type, flags);
	if (n == -1)
		printf("type %ld: %s\n", type, err_(errno));
	else
		printf("type %ld: %zd of %ld: %.*s\n", type, n, m.type, (int)n, m.text);
	fflush(stdout);
}
static void stat_(const char *when)
{
	struct msqid_ds d;
	if (msgctl(id, IPC_STAT, &d) == -1) {
		printf("%s: %s\n", when, err_(errno));
		return;
	}
	printf("%s: %lu of %lu bytes %lu of %lu mode %o owner %d:%d creator %d:%d key %d pids %d%d times %d%d%d\n", when,
	       d.msg_qnum, d.msg_qbytes, d.__msg_cbytes, d.msg_qbytes, d.msg_perm.mode, d.msg_perm.uid, d.msg_perm.gid,
	       d.msg_perm.cuid, d.msg_perm.cgid, d.msg_perm.__key == key, d.msg_lspid == getpid(), d.msg_lrpid == getpid(),
	       d.msg_stime != 0, d.msg_rtime != 0, d.msg_ctime != 0);
}
static void proc_line(void)
{
	FILE *f = fopen("/proc/sysvipc/msg", "r");
	char line[512];
	if (fgets(line, sizeof line, f))
		printf("%s", line);
	while (fgets(line, sizeof line, f)) {
		long k, n, perms, bytes, num, ls, lr, uid, gid, cuid, cgid;
		sscanf(line, "%ld %ld %lo %ld %ld %ld %ld %ld %ld %ld %ld", &k, &n, &perms, &bytes, &num, &ls, &lr, &uid, &gid,
		       &cuid, &cgid);
		if (n == id)
			printf("key %d perms %lo bytes %ld num %ld of %ld:%ld by %ld:%ld length %zu\n", k == key, perms, bytes, num, uid,
			       gid, cuid, cgid, strlen(line) - wider_pid(ls) - wider_pid(lr));
	}
	fclose(f);
}
static void wants_any(void)
{
	receive(0, 100, 0);
}
static void wants_seven(void)
{
	receive(7, 100, 0);
}
static void wants_short(void)
{
	receive(0, 2, 0);
}
static void sends(void)
{
	V(put(1, "late", 0));
}
static void as_other(void)
{
	if (setresgid(1234, 1234, 1234) || setresuid(1234, 1234, 1234))
		return;
	// As its owner has it at the end: what is set would else be whatever lies on the stack.
	struct msqid_ds d = {.msg_perm = {.uid = 1234, .gid = 5, .mode = 0200}, .msg_qbytes = 20};
	V(put(1, "x", IPC_NOWAIT));
	receive(0, 10, IPC_NOWAIT);
	V(msgctl(id, IPC_STAT, &d));
	V(msgctl(id, IPC_SET, &d));
	V(msgctl(id, IPC_RMID, 0));
	V(msgget(key, 0666));
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
	V(msgget(key, 0600));
	id = msgget(key, IPC_CREAT | IPC_EXCL | 0600);
	V(msgget(key, IPC_CREAT | IPC_EXCL | 0600));
	V(msgget(key, IPC_CREAT | 0600) == id);
	V(msgget(key, 0) == id);
	stat_("new");

	SECTION("send and receive");
	V(put(1, "one", 0));
	V(put(2, "two", 0));
	V(put(3, "three", 0));
	V(put(2, "again", 0));
	V(put(0, "bad", 0));
	V(put(-1, "bad", 0));
	struct message big = {1};
	V(msgsnd(id, &big, 8193, 0));
	V(msgsnd(id, &big, -1, 0));
	V(msgsnd(id, (void *)1, 1, 0));
	V(msgsnd(-1, &big, 1, 0));
	stat_("sent");
	proc_line();
	receive(2, 100, 0);
	receive(-2, 100, 0);
	receive(2, 100, MSG_EXCEPT);
	receive(4, 100, IPC_NOWAIT);
	receive(0, 2, 0);
	receive(0, 2, MSG_NOERROR);
	receive(0, 100, IPC_NOWAIT);
	receive(0, -1, IPC_NOWAIT);
	V(put(5, "", 0));
	receive(LONG_MIN, 0, 0);
	stat_("received");

	SECTION("waiting");
	pid_t p = begin_child(wants_any);
	asleep(p, p);
	V(put(1, "to who waits", 0));
	stat_("never there");
	end_child(p);
	p = begin_child(wants_seven);
	asleep(p, p);
	pid_t q = begin_child(wants_short);
	asleep(q, q);
	V(put(7, "seven", 0));
	end_child(p);
	V(put(8, "longer", 0));
	end_child(q);
	stat_("it stays");
	receive(0, 100, 0);
	// A full queue.
	int n = 0;
	while (msgsnd(id, &big, 1024, IPC_NOWAIT) == 0)
		n++;
	printf("%d: %s\n", n, err_(errno));
	p = begin_child(sends);
	asleep(p, p);
	V(msgrcv(id, &big, 9000, 0, 0));
	end_child(p);
	stat_("full");
	while (msgrcv(id, &big, 9000, 1, IPC_NOWAIT) != -1)
		;
	printf("%s\n", err_(errno));

	SECTION("signals");
	struct sigaction sa = {.sa_handler = handler, .sa_flags = SA_RESTART};
	sigaction(SIGUSR1, &sa, 0);
	pthread_t s = signal_later(SIGUSR1, 20);
	receive(0, 100, 0);
	P(handled == SIGUSR1);
	pthread_join(s, 0);

	SECTION("change");
	struct msqid_ds d;
	msgctl(id, IPC_STAT, &d);
	d.msg_perm.mode = 0604;
	d.msg_perm.gid = 5;
	d.msg_qbytes = 10;
	V(msgctl(id, IPC_SET, &d));
	stat_("small");
	V(put(1, "0123456789", IPC_NOWAIT));
	V(put(1, "0", IPC_NOWAIT));
	end_child(begin_child(as_other));
	p = begin_child(sends);
	asleep(p, p);
	d.msg_qbytes = 20;
	V(msgctl(id, IPC_SET, &d));
	end_child(p);
	stat_("larger");
	d.msg_perm.uid = 1234;
	d.msg_perm.mode = 0200;
	V(msgctl(id, IPC_SET, &d));
	end_child(begin_child(as_other));
	V(msgctl(id, IPC_STAT, &d));
	V(msgctl(id, 99, &d));

	SECTION("what there is");
	id = msgget(key, IPC_CREAT | 0600);
	put(1, "text", 0);
	struct msginfo info;
	OK(msgctl(0, IPC_INFO, (void *)&info));
	printf("%d %d %d\n", info.msgmni, info.msgmax, info.msgmnb);
	int highest = msgctl(0, MSG_INFO, (void *)&info), found = 0;
	printf("%d %d %d %d\n", highest >= 0, info.msgpool >= 1, info.msgmap >= 1, info.msgtql >= 4);
	for (int n = 0; n <= highest; n++) {
		if (msgctl(n, MSG_STAT, &d) == id)
			found += d.msg_qnum == 1;
		if (msgctl(n, MSG_STAT_ANY, &d) == id)
			found += d.msg_qnum == 1;
	}
	P(found);

	SECTION("removal");
	receive(0, 100, 0);
	p = begin_child(wants_any);
	asleep(p, p);
	V(msgctl(id, IPC_RMID, 0));
	end_child(p);
	V(put(1, "x", 0));
	receive(0, 100, 0);
	V(msgctl(id, IPC_RMID, 0));
	return 0;
}
