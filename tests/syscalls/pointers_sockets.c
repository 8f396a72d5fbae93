// Bad pointers in calls on sockets and System V IPC: what Linux says to each, and that nothing has happened then.
#include "pointers.h"
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/un.h>

static char out[8192];
static socklen_t len;
static int s[2];
static struct sockaddr_in local = {AF_INET};

// Sixteen bytes that wait to be received at s[1], as datagrams of eight if it is of that kind.
static int datagrams;
static void begin_socket(void)
{
	while (recv(s[1], out, sizeof out, MSG_DONTWAIT) > 0)
		;
	while (recv(s[0], out, sizeof out, MSG_DONTWAIT) > 0)
		;
	for (int n = 0; n < 2; n++)
		send(s[0], "01234567" + (datagrams ? 0 : n), 8 - (datagrams ? 0 : n), 0);
	len = 16;
}
static void look_at_socket(void)
{
	int n = 0, there;
	// Whether the address or the length could be stored, the message has been taken, or it has not.
	while ((there = recv(s[1], out, sizeof out, MSG_DONTWAIT)) > 0)
		n += there;
	printf("/%d", n);
	n = recv(s[0], out, sizeof out, MSG_DONTWAIT);
	if (n >= 0)
		printf(" (sent %d)", n);
}

static void messages(void)
{
	struct sockaddr_storage from;
	struct iovec v[2] = {{out, 4}, {out + 4, 4}};
	char control[64];
	struct msghdr m = {&from, sizeof from, v, 2, control, sizeof control}, none = {0, 0, v, 2, 0, 0};
	struct mmsghdr many[2] = {{none}, {none}};
	free_fd = dup(1);
	close(free_fd);
	before = begin_socket;
	after = look_at_socket;
	if (datagrams) {
		CALL(recvfrom, I(s[1]), I(out), I(8), I(MSG_DONTWAIT), W(&from, 2), RW(&len, 4));
		CALL(recvmsg, I(s[1]), RW(&m, sizeof m), I(MSG_DONTWAIT), I(0), I(0), I(0), IN(m.msg_iov, READ, sizeof v));
		struct timespec second = {1, 0};
		CALL(recvmmsg, I(s[1]), RW(many, sizeof many), I(2), I(MSG_DONTWAIT), R(&second, sizeof second), I(0), IN(many[0].msg_hdr.msg_iov, READ, sizeof v));
		CALL(sendmmsg, I(s[1]), RW(many, sizeof many), I(2), I(MSG_DONTWAIT), I(0), I(0), IN(many[0].msg_hdr.msg_iov, READ, sizeof v), IN(many[1].msg_hdr.msg_iov, READ, sizeof v));
	}
	unsigned parts = datagrams ? 0 : BUT(CROSSES);
	CALL_BUT(parts, sendto, "", I(s[1]), R(out, 8), I(8), I(MSG_DONTWAIT), I(0), I(0));
	CALL_BUT(parts, sendmsg, "", I(s[1]), R(&none, sizeof none), I(MSG_DONTWAIT), I(0), I(0), I(0), IN(none.msg_iov, READ, sizeof v), IN(v[0].iov_base, READ, 4));
	if (datagrams)
		CALL(sendmsg, I(s[1]), I(&none), I(MSG_DONTWAIT), I(0), I(0), I(0), IN(v[1].iov_base, READ, 4));
	CALL_BUT(parts, write, "", I(s[1]), R(out, 8), I(8));
	before = after = 0;
	struct msghdr wrong = none;
	wrong.msg_iovlen = 1025;
	V(sendmsg(s[1], &wrong, 0));
	V(recvmsg(s[1], &wrong, MSG_DONTWAIT));
	wrong = none;
	wrong.msg_controllen = 1ul << 40;
	wrong.msg_control = control;
	V(sendmsg(s[1], &wrong, MSG_DONTWAIT));
	wrong.msg_controllen = 64;
	wrong.msg_control = (void *)8;
	V(sendmsg(s[1], &wrong, MSG_DONTWAIT));
	if (datagrams)
		V(send(s[1], out, -1ul, MSG_DONTWAIT));
	V(recv(s[1], out, -1ul, MSG_DONTWAIT));
}

static void unix_streams(void)
{
	socketpair(AF_UNIX, SOCK_STREAM, 0, s);
	messages();
	CALL(socketpair, I(AF_UNIX), I(SOCK_STREAM), I(0), W(out, 8));
	struct ucred who;
	int one = 1;
	struct timeval time = {1, 0};
	struct linger linger = {0, 0};
	len = sizeof who;
	CALL_OF(getsockopt, "SO_PEERCRED", I(s[0]), I(SOL_SOCKET), I(SO_PEERCRED), W(&who, sizeof who), RW(&len, 4));
	len = 4;
	CALL_OF(getsockopt, "SO_TYPE", I(s[0]), I(SOL_SOCKET), I(SO_TYPE), W(&one, 4), RW(&len, 4));
	len = sizeof time;
	CALL_OF(getsockopt, "SO_RCVTIMEO", I(s[0]), I(SOL_SOCKET), I(SO_RCVTIMEO), W(&time, sizeof time), RW(&len, 4));
	CALL_OF(setsockopt, "SO_RCVTIMEO", I(s[0]), I(SOL_SOCKET), I(SO_RCVTIMEO), R(&time, sizeof time), I(sizeof time));
	CALL_OF(setsockopt, "SO_LINGER", I(s[0]), I(SOL_SOCKET), I(SO_LINGER), R(&linger, sizeof linger), I(sizeof linger));
	CALL_OF(setsockopt, "SO_PASSCRED", I(s[0]), I(SOL_SOCKET), I(SO_PASSCRED), R(&one, 4), I(4));
	struct sockaddr_un name = {AF_UNIX};
	len = sizeof name;
	CALL(getsockname, I(s[0]), W(&name, 2), RW(&len, 4));
	CALL(getpeername, I(s[0]), W(&name, 2), RW(&len, 4));
	CALL_OF(ioctl, "FIONREAD", I(s[0]), I(FIONREAD), W(&one, 4));
}

static void unix_datagrams(void)
{
	datagrams = 1;
	socketpair(AF_UNIX, SOCK_DGRAM, 0, s);
	messages();
	// A descriptor that is passed is not lost in the wrong place.
	struct iovec v = {out, 1};
	union { struct cmsghdr c; char bytes[CMSG_SPACE(sizeof(int))]; } control;
	struct msghdr m = {0, 0, &v, 1, &control, sizeof control};
	before = begin_socket;
	after = look_at_socket;
	*CMSG_FIRSTHDR(&m) = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
	*(int *)CMSG_DATA(CMSG_FIRSTHDR(&m)) = 1;
	CALL_OF(sendmsg, "of a descriptor", I(s[1]), R(&m, sizeof m), I(MSG_DONTWAIT), I(0), I(0), I(0), IN(m.msg_control, READ, sizeof control));
	before = after = 0;
	for (enum way way = 0; way < WAYS; way++) {
		sendmsg(s[0], &m, 0);
		struct place p = {(long)&control, WRITE, sizeof control};
		struct msghdr to = {0, 0, &v, 1, (void *)bad_pointer(way, &p), sizeof control};
		V(recvmsg(s[1], &to, MSG_DONTWAIT) >= 0 ? !!(to.msg_flags & MSG_CTRUNC) : -1);
		V(fcntl(free_fd, F_GETFD));
		syscall(SYS_close_range, free_fd, ~0u, 0);
	}
}

static void begin_internet(void)
{
	while (recv(s[1], out, sizeof out, MSG_DONTWAIT) > 0)
		;
	sendto(s[0], "01234567", 8, 0, (void *)&local, sizeof local);
	len = sizeof local;
}

static void internet(void)
{
	s[0] = socket(AF_INET, SOCK_DGRAM, 0);
	s[1] = socket(AF_INET, SOCK_DGRAM, 0);
	free_fd = s[1] + 1;
	int one = 1;
	local.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	int unbound = socket(AF_INET, SOCK_DGRAM, 0);
	free_fd++;
	CALL(bind, I(unbound), R(&local, sizeof local), I(sizeof local));
	bind(s[1], (void *)&local, sizeof local);
	len = sizeof local;
	getsockname(s[1], (void *)&local, &len);
	struct sockaddr_in from;
	struct iovec v[2] = {{out, 4}, {out + 4, 4}};
	struct msghdr m = {&local, sizeof local, v, 2}, to = {&from, sizeof from, v, 2};
	CALL(connect, I(s[0]), R(&local, sizeof local), I(sizeof local));
	CALL(sendto, I(s[0]), R(out, 8), I(8), I(MSG_DONTWAIT), R(&local, sizeof local), I(sizeof local));
	CALL(sendmsg, I(s[0]), R(&m, sizeof m), I(MSG_DONTWAIT), I(0), I(0), I(0), IN(m.msg_name, READ, sizeof local), IN(m.msg_iov, READ, sizeof v), IN(v[0].iov_base, READ, 4), IN(v[1].iov_base, READ, 4));
	CALL(getsockname, I(s[1]), W(&from, sizeof from), RW(&len, 4));
	V(getpeername(s[1], (void *)8, (void *)8));
	connect(s[0], (void *)&local, sizeof local);
	CALL(getpeername, I(s[0]), W(&from, sizeof from), RW(&len, 4));
	len = 4;
	CALL_OF(getsockopt, "SO_REUSEADDR", I(s[0]), I(SOL_SOCKET), I(SO_REUSEADDR), W(&one, 4), RW(&len, 4));
	CALL_OF(getsockopt, "SO_ERROR", I(s[0]), I(SOL_SOCKET), I(SO_ERROR), W(&one, 4), RW(&len, 4));
	CALL_OF(getsockopt, "IP_TTL", I(s[0]), I(IPPROTO_IP), I(IP_TTL), W(&one, 4), RW(&len, 4));
	CALL_OF(setsockopt, "SO_REUSEADDR", I(s[0]), I(SOL_SOCKET), I(SO_REUSEADDR), R(&one, 4), I(4));
	CALL_OF(setsockopt, "IP_RECVTTL", I(s[0]), I(IPPROTO_IP), I(IP_RECVTTL), R(&one, 4), I(4));
	int stream = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in any = {AF_INET, 0, {htonl(INADDR_LOOPBACK)}};
	bind(stream, (void *)&any, sizeof any);
	listen(stream, 20);
	free_fd = stream + 1;
	CALL_OF(setsockopt, "TCP_NODELAY", I(stream), I(IPPROTO_TCP), I(TCP_NODELAY), R(&one, 4), I(4));
	CALL_OF(getsockopt, "TCP_NODELAY", I(stream), I(IPPROTO_TCP), I(TCP_NODELAY), W(&one, 4), RW(&len, 4));
	CALL_OF(getsockopt, "TCP_INFO", I(stream), I(IPPROTO_TCP), I(TCP_INFO), W(out, 4), RW(&len, 4));
	CALL_OF(ioctl, "FIONREAD", I(s[1]), I(FIONREAD), W(&one, 4));
}

static int listener, client;
static struct sockaddr_un there = {AF_UNIX, "socket"};
static void begin_accept(void)
{
	client = socket(AF_UNIX, SOCK_STREAM, 0);
	connect(client, (void *)&there, sizeof there);
	dup2(client, 30);
	close(client);
	len = sizeof there;
}
static void look_at_accept(void)
{
	// A connection that could not be handed over is closed.
	struct pollfd p = {listener, POLLIN, 0};
	printf("/%d", poll(&p, 1, 0));
	if (p.revents)
		close(accept(listener, 0, 0));
}

static void accepting(void)
{
	listener = socket(AF_UNIX, SOCK_STREAM, 0);
	bind(listener, (void *)&there, sizeof there);
	listen(listener, 20);
	free_fd = listener + 1;
	struct sockaddr_un from;
	before = begin_accept;
	after = look_at_accept;
	CALL(accept, I(listener), W(&from, 2), RW(&len, 4));
	CALL(accept4, I(listener), W(&from, 2), RW(&len, 4), I(SOCK_CLOEXEC));
	before = after = 0;
	int unbound = socket(AF_UNIX, SOCK_STREAM, 0);
	struct sockaddr_un missing = {AF_UNIX, "nothing"};
	free_fd = unbound + 1;
	CALL(connect, I(unbound), R(&missing, sizeof missing), I(sizeof missing));
	struct sockaddr_un wrong = {77};
	CALL(bind, I(unbound), R(&wrong, sizeof wrong), I(sizeof wrong));
	V(bind(unbound, (void *)8, 0));
	V(bind(unbound, (void *)8, 1000));
	V(bind(unbound, (void *)8, -1));
	V(connect(unbound, (void *)8, 1000));
	V(accept(unbound, (void *)8, (void *)8));
	V(accept(99, (void *)8, (void *)8));
}

static int queue;
static struct { long type; char text[8]; } message = {1, "0123456"};
static void begin_queue(void)
{
	while (msgrcv(queue, out, 100, 0, IPC_NOWAIT) >= 0)
		;
	msgsnd(queue, &message, 8, 0);
}
static void look_at_queue(void)
{
	struct msqid_ds now;
	msgctl(queue, IPC_STAT, &now);
	printf("/%ld", (long)now.msg_qnum);
}

static void ipc(void)
{
	queue = msgget(IPC_PRIVATE, 0600);
	before = begin_queue;
	after = look_at_queue;
	CALL(msgsnd, I(queue), R(&message, 16), I(8), I(IPC_NOWAIT));
	CALL(msgrcv, I(queue), W(out, 16), I(8), I(0), I(IPC_NOWAIT));
	before = after = 0;
	struct msqid_ds state;
	CALL_OF(msgctl, "IPC_STAT", I(queue), I(IPC_STAT), W(&state, sizeof state));
	msgctl(queue, IPC_STAT, &state);
	CALL_OF(msgctl, "IPC_SET", I(queue), I(IPC_SET), R(&state, sizeof state));
	CALL_OF(msgctl, "IPC_INFO", I(queue), I(IPC_INFO), W(out, sizeof(struct msginfo)));
	V(msgctl(queue, IPC_RMID, (void *)8));
	int set = semget(IPC_PRIVATE, 4, 0600);
	struct sembuf one[2] = {{0, 1, IPC_NOWAIT}, {1, 1, IPC_NOWAIT}};
	struct timespec none = {0, 0};
	CALL(semop, I(set), R(one, sizeof one), I(2));
	CALL(semtimedop, I(set), R(one, sizeof one), I(2), R(&none, sizeof none));
	V(semctl(set, 0, GETVAL));
	struct semid_ds sems;
	CALL_OF(semctl, "IPC_STAT", I(set), I(0), I(IPC_STAT), W(&sems, sizeof sems));
	semctl(set, 0, IPC_STAT, &sems);
	CALL_OF(semctl, "IPC_SET", I(set), I(0), I(IPC_SET), R(&sems, sizeof sems));
	CALL_OF(semctl, "GETALL", I(set), I(0), I(GETALL), W(out, 8));
	CALL_OF(semctl, "SETALL", I(set), I(0), I(SETALL), R(out, 8));
	CALL_OF(semctl, "IPC_INFO", I(set), I(0), I(IPC_INFO), W(out, sizeof(struct seminfo)));
	V(syscall(SYS_semop, set, 8, 1000));
	V(syscall(SYS_semop, set, 8, 0));
	V(semctl(set, 0, IPC_RMID));
	int segment = shmget(IPC_PRIVATE, 8192, 0600);
	struct shmid_ds shm;
	CALL_OF(shmctl, "IPC_STAT", I(segment), I(IPC_STAT), W(&shm, sizeof shm));
	shmctl(segment, IPC_STAT, &shm);
	CALL_OF(shmctl, "IPC_SET", I(segment), I(IPC_SET), R(&shm, sizeof shm));
	CALL_OF(shmctl, "IPC_INFO", I(segment), I(IPC_INFO), W(out, sizeof(struct shminfo)));
	CALL_OF(shmctl, "SHM_INFO", I(segment), I(SHM_INFO), W(out, sizeof(struct shm_info)));
	V(shmctl(segment, IPC_RMID, 0));
}

int main(void)
{
	set_up();
	family("streams between processes", unix_streams);
	family("datagrams between processes", unix_datagrams);
	family("internet", internet);
	family("accept and connect", accepting);
	family("System V", ipc);
	return 0;
}
