// Unix sockets: pairs, names, descriptors and credentials passed along, shutdown, flags.
#include "case.h"
#include <sys/ioctl.h>
#include <sys/un.h>

static int hits;
static void nothing(int s) { hits++; }
static void state(int fd)
{
	struct pollfd p = {fd, POLLIN | POLLOUT | POLLPRI | POLLRDHUP};
	int r = poll(&p, 1, 0);
	printf("poll %d %x\n", r, p.revents);
}
static socklen_t name(struct sockaddr_un *a, const char *n, int abstract)
{
	memset(a, 0, sizeof *a);
	a->sun_family = AF_UNIX;
	strcpy(a->sun_path + abstract, n);
	return offsetof(struct sockaddr_un, sun_path) + abstract + strlen(n) + !abstract;
}
static void show(int (*f)(int, struct sockaddr *, socklen_t *), int fd)
{
	struct sockaddr_un a = {0};
	socklen_t l = sizeof a;
	int r = f(fd, (void *)&a, &l);
	if (r) { printf("name: %s\n", err_(errno)); return; }
	printf("name: family %d length %u path [%s|%s]\n", a.sun_family, l, l > 2 ? a.sun_path : "", l > 3 && !a.sun_path[0] ? a.sun_path + 1 : "");
}
static void opt(int fd, int o)
{
	int v[4] = {0};
	socklen_t l = sizeof v;
	int r = getsockopt(fd, SOL_SOCKET, o, v, &l);
	printf("option %d: %s %d length %u\n", o, r ? err_(errno) : "", v[0], l);
}
static void options(void)
{
	SECTION("options of any socket");
	static const int names[] = {SO_REUSEADDR, SO_DONTROUTE, SO_BROADCAST, SO_KEEPALIVE, SO_OOBINLINE, SO_TIMESTAMP, SO_TIMESTAMPNS, SO_PASSCRED, SO_PRIORITY};
	int s[2];
	V(socketpair(AF_UNIX, SOCK_DGRAM, 0, s));
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		for (int v = 3; v >= 0; v -= 3) {
			V(setsockopt(s[0], SOL_SOCKET, names[i], &v, 3));
			V(setsockopt(s[0], SOL_SOCKET, names[i], &v, sizeof v));
			opt(s[0], names[i]);
			opt(s[0], SO_TIMESTAMP);
		}
	opt(s[0], SO_RCVLOWAT);
	struct linger l = {1, 7};
	socklen_t len = sizeof l;
	V(setsockopt(s[0], SOL_SOCKET, SO_LINGER, &l, 4));
	V(setsockopt(s[0], SOL_SOCKET, SO_LINGER, &l, len));
	opt(s[0], SO_LINGER);
	l = (struct linger){0, 9};
	V(setsockopt(s[0], SOL_SOCKET, SO_LINGER, &l, len));
	V(getsockopt(s[0], SOL_SOCKET, SO_LINGER, &l, &len));
	printf("linger %d %d\n", l.l_onoff, l.l_linger);
	// When what is received was sent; SO_TIMESTAMP and SO_TIMESTAMPNS exclude each other.
	for (int n = 0; n < 4; n++) {
		int v = 1, name = n == 1 ? SO_TIMESTAMPNS : SO_TIMESTAMP;
		struct timespec now;
		if (n == 3)
			v = 0;
		else
			V(send(s[1], "before", 6, 0));
		V(setsockopt(s[0], SOL_SOCKET, name, &v, sizeof v));
		opt(s[0], SO_TIMESTAMP);
		opt(s[0], SO_TIMESTAMPNS);
		V(send(s[1], "after", 5, 0));
		clock_gettime(CLOCK_REALTIME, &now);
		sleep_ms(30);
		for (int i = n == 3; i < 2; i++) {
			char b[10], c[100];
			struct iovec iv = {b, sizeof b};
			struct msghdr m = {.msg_iov = &iv, .msg_iovlen = 1, .msg_control = c, .msg_controllen = n == 2 ? 20 : sizeof c};
			V(recvmsg(s[0], &m, 0));
			X(m.msg_flags);
			struct cmsghdr *h = CMSG_FIRSTHDR(&m);
			P((int)m.msg_controllen);
			if (!h)
				continue;
			printf("%d %d %zu\n", h->cmsg_level, h->cmsg_type, (size_t)h->cmsg_len);
			if (n == 2)
				continue;
			struct timespec at;
			memcpy(&at, CMSG_DATA(h), sizeof at);
			if (h->cmsg_type == SCM_TIMESTAMP)
				at.tv_nsec *= 1000;
			// What was sent before it was asked for has the time at which it is received.
			double late = at.tv_sec - now.tv_sec + (at.tv_nsec - now.tv_nsec) / 1e9;
			puts(late < -5 || late > 5 ? "another time" : late > 0.02 ? "received" : "sent");
		}
	}
	close(s[0]);
	close(s[1]);
	V(socketpair(AF_UNIX, SOCK_STREAM, 0, s));
	int one = 1;
	V(setsockopt(s[0], SOL_SOCKET, SO_TIMESTAMP, &one, sizeof one));
	V(send(s[1], "stream", 6, 0));
	char b[10], c[100];
	struct iovec iv = {b, sizeof b};
	struct msghdr m = {.msg_iov = &iv, .msg_iovlen = 1, .msg_control = c, .msg_controllen = sizeof c};
	V(recvmsg(s[0], &m, 0));
	P((int)m.msg_controllen);
	close(s[0]);
	close(s[1]);
}
static long send_fd(int s, const int *fds, int n, const char *text, int flags)
{
	char c[CMSG_SPACE(sizeof(int) * 300)] = {0};
	struct iovec iv = {(void *)text, strlen(text)};
	struct msghdr m = {.msg_iov = &iv, .msg_iovlen = 1, .msg_control = c, .msg_controllen = CMSG_SPACE(sizeof(int) * n)};
	struct cmsghdr *h = CMSG_FIRSTHDR(&m);
	h->cmsg_level = SOL_SOCKET;
	h->cmsg_type = SCM_RIGHTS;
	h->cmsg_len = CMSG_LEN(sizeof(int) * n);
	memcpy(CMSG_DATA(h), fds, sizeof(int) * n);
	return sendmsg(s, &m, flags);
}
static int got[10];
static void receive(int s, size_t room, size_t len, int flags)
{
	char c[512] = {0}, b[100] = {0};
	struct iovec iv = {b, len};
	struct sockaddr_un a = {0};
	struct msghdr m = {.msg_iov = &iv, .msg_iovlen = 1, .msg_control = c, .msg_controllen = room, .msg_name = &a, .msg_namelen = sizeof a};
	long r = recvmsg(s, &m, flags);
	if (r < 0) { printf("receive: %s\n", err_(errno)); return; }
	printf("receive: %ld [%s] flags %x control %zu namelen %u [%s]\n", r, b, m.msg_flags, m.msg_controllen, m.msg_namelen, a.sun_path[0] ? a.sun_path : a.sun_path + 1);
	for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h)) {
		printf("  %d %d %zu:", h->cmsg_level, h->cmsg_type, (size_t)h->cmsg_len);
		if (h->cmsg_type == SCM_RIGHTS) {
			memcpy(got, CMSG_DATA(h), h->cmsg_len - CMSG_LEN(0));
			for (unsigned i = 0; i < (h->cmsg_len - CMSG_LEN(0)) / 4; i++)
				printf(" valid %d cloexec %d", fcntl(got[i], F_GETFD) >= 0, fcntl(got[i], F_GETFD));
		}
		if (h->cmsg_type == SCM_CREDENTIALS) {
			struct ucred *u = (void *)CMSG_DATA(h);
			printf(" me %d %d %d", u->pid == getpid(), u->uid, u->gid);
		}
		puts("");
	}
}
static void *late_connect(void *p)
{
	struct sockaddr_un a;
	sleep_ms(30);
	int s = socket(AF_UNIX, SOCK_STREAM, 0);
	connect(s, (void *)&a, name(&a, "listener", 0));
	write(s, "late", 4);
	sleep_ms(30);
	close(s);
	return 0;
}

static int of_several, second;
static void *late_reader(void *p)
{
	char buf[2000];
	sleep_ms(30);
	while (recv(of_several, buf, sizeof buf, MSG_DONTWAIT) > 0 || recv(second, buf, sizeof buf, MSG_DONTWAIT) > 0)
		;
	return 0;
}

// What a socket of datagrams has sent counts against its own buffer, wherever it waits, and nobody else's.
static void several(void)
{
	SECTION("buffers of several senders");
	static char large[1000];
	struct sockaddr_un to, other;
	int small = 9000, larger = 60000, one = socket(AF_UNIX, SOCK_DGRAM, 0), two = socket(AF_UNIX, SOCK_DGRAM, 0);
	second = socket(AF_UNIX, SOCK_DGRAM, 0);
	of_several = socket(AF_UNIX, SOCK_DGRAM, 0);
	socklen_t len = name(&to, "several", 1);
	V(bind(of_several, (void *)&to, len));
	len = name(&other, "sevenxx", 1);
	V(bind(second, (void *)&other, len));
	V(setsockopt(one, SOL_SOCKET, SO_SNDBUF, &small, sizeof small));
	V(setsockopt(two, SOL_SOCKET, SO_SNDBUF, &small, sizeof small));
	V(connect(two, (void *)&to, len));
	struct pollfd p[2] = {{one, POLLOUT}, {two, POLLOUT}};
	X(poll(p, 2, 0));
	int sent = 0;
	while (sendto(one, large, sizeof large, MSG_DONTWAIT, (void *)&to, len) > 0)
		sent++;
	P(errno == EAGAIN && sent > 1);
	printf("poll %d: %x %x\n", poll(p, 2, 0), p[0].revents, p[1].revents);
	V(send(two, large, sizeof large, MSG_DONTWAIT));
	V(sendto(one, large, sizeof large, MSG_DONTWAIT, (void *)&other, len));
	V(setsockopt(one, SOL_SOCKET, SO_SNDBUF, &larger, sizeof larger));
	printf("poll %d: %x %x\n", poll(p, 2, 0), p[0].revents, p[1].revents);
	V(sendto(one, large, sizeof large, MSG_DONTWAIT, (void *)&other, len));
	while (sendto(one, large, sizeof large, MSG_DONTWAIT, (void *)&other, len) > 0)
		;
	X(poll(p, 1, 0));
	pthread_t reader;
	pthread_create(&reader, 0, late_reader, 0);
	V(sendto(one, large, sizeof large, 0, (void *)&other, len));
	pthread_join(reader, 0);
	// Those that nobody has read are gone with their reader.
	while (sendto(one, large, sizeof large, MSG_DONTWAIT, (void *)&other, len) > 0)
		;
	close(second);
	X(poll(p, 1, 0));
	close(of_several), close(one), close(two);
}

// What came beside a message, but for numbers that differ from run to run; the sender's pidfd.
static int beside(int fd, size_t room)
{
	char buf[20], control[200];
	struct iovec iv = {buf, sizeof buf};
	struct msghdr m = {.msg_iov = &iv, .msg_iovlen = 1, .msg_control = control, .msg_controllen = room};
	int found = -1;
	V(recvmsg(fd, &m, 0));
	printf("flags %x, control %zu\n", m.msg_flags, (size_t)m.msg_controllen);
	for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h)) {
		printf("message %d, %zu bytes\n", h->cmsg_type, (size_t)h->cmsg_len);
		if (h->cmsg_type == 4)
			memcpy(&found, CMSG_DATA(h), 4);
	}
	return found;
}
static struct sockaddr_un listener;
static socklen_t listener_len;
static int messages[2], go[2];
static void connects(void)
{
	gid_t groups[] = {7, 3, 5};
	char byte;
	setgroups(3, groups);
	int c = socket(AF_UNIX, SOCK_STREAM, 0);
	// Whoever it is later, he was this one when he connected.
	connect(c, (void *)&listener, listener_len);
	setgroups(0, 0);
	for (int n = 0; n < 3; n++)
		send(messages[0], "x", 1, 0);
	read(go[0], &byte, 1);
	_exit(7);
}
static void sends_late(const char *what, size_t len)
{
	send(messages[0], "b", 1, 0);
	usleep(50000);
	send(messages[0], what, len, 0);
}
static void sends_xy(void) { send(messages[0], "xy", 2, 0); }
static void sends_two(void) { sends_late("cd", 2); }
static void sends_one(void) { sends_late("c", 1); }
static void peers(void)
{
	SECTION("the process at the other end");
	enum { PEERGROUPS = 59, PASSPIDFD = 76, PEERPIDFD = 77 };
	socklen_t len;
	int s = socket(AF_UNIX, SOCK_STREAM, 0), one = 1, pidfd, *pair = messages;
	listener_len = name(&listener, "peers", 1);
	V(bind(s, (void *)&listener, listener_len));
	V(listen(s, 1));
	V(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair));
	V(setsockopt(pair[1], SOL_SOCKET, PASSPIDFD, &one, sizeof one));
	opt(pair[0], PASSPIDFD);
	opt(pair[1], PASSPIDFD);
	pipe(go);
	int pid = begin_child(connects);
	int far = accept(s, 0, 0);
	gid_t groups[4] = {0};
	for (len = 0; len <= 16; len += 8) {
		socklen_t l = len;
		printf("room %u: %s", len, getsockopt(far, SOL_SOCKET, PEERGROUPS, groups, &l) ? err_(errno) : "ok");
		printf(", length %u: %d %d %d\n", l, groups[0], groups[1], groups[2]);
	}
	opt(s, PEERGROUPS);
	struct ucred own = {0};
	V(getsockopt(s, SOL_SOCKET, SO_PEERCRED, &own, (len = sizeof own, &len)));
	printf("%d %d %d\n", own.pid == getpid(), own.uid, own.gid);
	opt(socket(AF_UNIX, SOCK_STREAM, 0), PEERPIDFD);
	opt(socket(AF_INET, SOCK_STREAM, 0), PEERGROUPS);
	V(getsockopt(far, SOL_SOCKET, PEERPIDFD, &pidfd, (len = 4, &len)));
	V(fcntl(pidfd, F_GETFD));
	int sender = beside(pair[1], 200);
	V(beside(pair[1], 18));
	V(setsockopt(pair[1], SOL_SOCKET, SO_PASSCRED, &one, sizeof one));
	int again = beside(pair[1], 200);
	siginfo_t info = {0};
	struct pollfd p[3] = {{pidfd, POLLIN}, {sender, POLLIN}, {again, POLLIN}};
	V(poll(p, 3, 0));
	V(write(go[1], "x", 1));
	while (poll(p, 3, 1000) == 1 || poll(p, 3, 1000) == 2)
		;
	V(poll(p, 3, 1000));
	V(waitid(P_PIDFD, sender, &info, WEXITED | WNOWAIT));
	printf("by its pidfd: %d %d\n", info.si_pid == pid, info.si_status);
	end_child(pid);
	SECTION("how much a receiver waits for");
	V(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	static const int least[] = {3, 0, -5, 2};
	for (int n = 0; n < 4; n++) {
		V(setsockopt(pair[1], SOL_SOCKET, SO_RCVLOWAT, &least[n], 4));
		opt(pair[1], SO_RCVLOWAT);
	}
	char buf[20];
	V(send(pair[0], "a", 1, 0));
	state(pair[1]);
	V(recv(pair[1], buf, 20, MSG_DONTWAIT));
	pid = begin_child(sends_two);
	V(recv(pair[1], buf, 1, 0));
	V(recv(pair[1], buf, 20, 0));
	end_child(pid);
	pid = begin_child(sends_one);
	V(recv(pair[1], buf, 20, 0));
	end_child(pid);
	V(send(pair[0], "e", 1, 0));
	V(shutdown(pair[0], SHUT_WR));
	V(recv(pair[1], buf, 20, 0));
	SECTION("several writers, of whom one is told");
	for (int n = 0; n < 2; n++) {
		close(pair[0]), close(pair[1]);
		V(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
		V(setsockopt(pair[1], SOL_SOCKET, SO_RCVLOWAT, &least[0], 4));
		if (n) {
			V(setsockopt(pair[1], SOL_SOCKET, SO_PASSCRED, &one, sizeof one));
			V(setsockopt(pair[1], SOL_SOCKET, PASSPIDFD, &one, sizeof one));
		}
		pid = begin_child(sends_xy);
		end_child(pid);
		V(send(pair[0], "z", 1, 0));
		V(shutdown(pair[0], SHUT_WR));
		for (int k = 0; k < 3; k++)
			close(beside(pair[1], n == 1 && k == 0 ? 40 : 200));
	}
	SECTION("who connects has what the listener has");
	V(setsockopt(s, SOL_SOCKET, PASSPIDFD, &one, sizeof one));
	int near = socket(AF_UNIX, SOCK_STREAM, 0);
	V(connect(near, (void *)&listener, listener_len));
	int next = accept(s, 0, 0);
	opt(next, PASSPIDFD);
	V(send(near, "n", 1, 0));
	close(beside(next, 200));
	V(getsockopt(next, SOL_SOCKET, PEERPIDFD, 0, (len = 4, &len)));
	V(getsockopt(next, SOL_SOCKET, PEERPIDFD, &pidfd, (len = -1, &len)));
	V(getsockopt(next, SOL_SOCKET, PEERGROUPS, groups, (len = -1, &len)));
	int free_one = dup(0);
	printf("none is left open: %d\n", free_one == next + 1);
	close(free_one), close(near), close(next);
	SECTION("numbers and memory of a socket");
	unsigned long cookies[3] = {0};
	for (int n = 0; n < 3; n++)
		V(getsockopt(pair[n % 2], SOL_SOCKET, SO_COOKIE, &cookies[n], (len = 8, &len)));
	printf("%d %d %d\n", cookies[0] == cookies[2], cookies[0] != cookies[1], cookies[0] != 0);
	V(getsockopt(pair[0], SOL_SOCKET, SO_COOKIE, &cookies[0], (len = 7, &len)));
	unsigned memory[9];
	for (socklen_t room = 0; room <= 40; room += 20) {
		memset(memory, 0xff, sizeof memory);
		len = room;
		V(getsockopt(pair[0], SOL_SOCKET, SO_MEMINFO, memory, &len));
		printf("%u bytes:", len);
		for (int n = 0; n < 9; n++)
			printf(" %d", memory[n]);
		puts("");
	}
	opt(pair[0], SO_DEBUG), opt(pair[0], SO_MARK), opt(pair[0], SO_SELECT_ERR_QUEUE), opt(pair[0], SO_BINDTODEVICE), opt(pair[0], SO_NO_CHECK);
	close(s), close(far), close(pidfd), close(sender), close(again), close(pair[0]), close(pair[1]);
}

int main(void)
{
	struct sockaddr_un a, b;
	char buf[200];
	int s[2], n, one = 1;
	signal(SIGPIPE, nothing);
	int types[] = {SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET};
	for (int t = 0; t < 3; t++) {
		printf("-- pair of type %d\n", types[t]);
		V(socketpair(AF_UNIX, types[t] | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, s));
		X(fcntl(s[0], F_GETFL));
		V(fcntl(s[0], F_GETFD));
		state(s[0]);
		V(recv(s[0], buf, 10, 0));
		V(send(s[1], "one", 3, 0));
		V(send(s[1], "second", 6, 0));
		state(s[0]);
		V(ioctl(s[0], FIONREAD, &n));
		P(n);
		V(recv(s[0], buf, 2, MSG_PEEK));
		V(recv(s[0], buf, 2, MSG_PEEK | MSG_TRUNC));
		V(recv(s[0], buf, 2, 0));
		V(recv(s[0], buf, 100, 0));
		V(recv(s[0], buf, 100, MSG_DONTWAIT));
		V(send(s[1], "", 0, 0));
		V(recv(s[0], buf, 100, 0));
		V(send(s[1], "third", 5, 0));
		receive(s[0], 0, 3, MSG_TRUNC);
		show(getsockname, s[0]);
		show(getpeername, s[0]);
		V(write(s[0], "w", 1));
		V(read(s[1], buf, 5));
		V(shutdown(s[0], SHUT_WR));
		state(s[0]);
		state(s[1]);
		V(send(s[0], "x", 1, MSG_NOSIGNAL));
		V(recv(s[1], buf, 1, 0));
		V(send(s[1], "back", 4, 0));
		V(recv(s[0], buf, 10, 0));
		V(shutdown(s[0], SHUT_RD));
		V(recv(s[0], buf, 10, 0));
		V(send(s[1], "x", 1, 0));
		P(hits);
		close(s[0]);
		state(s[1]);
		V(recv(s[1], buf, 10, 0));
		V(send(s[1], "x", 1, 0));
		P(hits);
		hits = 0;
		opt(s[1], SO_ERROR);
		opt(s[1], SO_TYPE);
		opt(s[1], SO_DOMAIN);
		opt(s[1], SO_PROTOCOL);
		opt(s[1], SO_ACCEPTCONN);
		opt(s[1], SO_PASSCRED);
		opt(s[1], SO_REUSEADDR);
		opt(s[1], SO_KEEPALIVE);
		opt(s[1], SO_LINGER);
		opt(s[1], SO_SNDBUF);
		opt(s[1], 9999);
		close(s[1]);
	}
	options();
	V(socketpair(AF_UNIX, 77, 0, s));
	V(socketpair(AF_UNIX, SOCK_STREAM, 77, s));
	V(socketpair(AF_INET, SOCK_STREAM, 0, s));
	V(socketpair(AF_UNIX, SOCK_STREAM, 0, (int *)8));
	V(socket(AF_UNIX, SOCK_STREAM, 99));
	V(socket(AF_UNIX, 99, 0));
	V(socket(9999, SOCK_STREAM, 0));
	SECTION("names");
	int l = socket(AF_UNIX, SOCK_STREAM, 0);
	V(listen(l, 1));
	V(bind(l, (void *)&a, name(&a, "listener", 0)));
	V(bind(l, (void *)&a, name(&a, "other", 0)));
	show(getsockname, l);
	V(listen(l, 2));
	opt(l, SO_ACCEPTCONN);
	struct stat st;
	V(stat("listener", &st));
	X(st.st_mode & S_IFMT);
	V(open("listener", O_RDONLY));
	int c = socket(AF_UNIX, SOCK_STREAM, 0);
	V(bind(c, (void *)&a, name(&a, "listener", 0)));
	V(connect(c, (void *)&a, name(&a, "nobody", 0)));
	V(connect(c, (void *)&a, 1));
	a.sun_family = AF_INET;
	V(connect(c, (void *)&a, sizeof a));
	int dg = socket(AF_UNIX, SOCK_DGRAM, 0);
	V(connect(dg, (void *)&a, name(&a, "listener", 0)));
	close(open("plain", O_CREAT | O_RDWR, 0644));
	V(connect(c, (void *)&a, name(&a, "plain", 0)));
	V(send(c, "x", 1, 0));
	V(recv(c, buf, 1, 0));
	state(c);
	V(connect(c, (void *)&a, name(&a, "listener", 0)));
	V(connect(c, (void *)&a, name(&a, "listener", 0)));
	state(l);
	socklen_t len = sizeof b;
	int acc;
	V((acc = accept4(l, (void *)&b, &len, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0);
	P(len);
	X(fcntl(acc, F_GETFL));
	show(getpeername, c);
	show(getpeername, acc);
	show(getsockname, acc);
	struct ucred u;
	len = sizeof u;
	V(getsockopt(acc, SOL_SOCKET, SO_PEERCRED, &u, &len));
	printf("%d %d %d %u\n", u.pid == getpid(), u.uid, u.gid, len);
	V(accept(c, 0, 0));
	V(accept(dg, 0, 0));
	V(fcntl(l, F_SETFL, O_NONBLOCK));
	V(accept(l, 0, 0));
	V(accept4(l, 0, 0, 0x1));
	int more[5];
	for (int i = 0; i < 5; i++) {
		more[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
		V(connect(more[i], (void *)&a, name(&a, "listener", 0)));
	}
	for (int i = 0; i < 3; i++)
		V(accept(l, 0, 0) >= 0);
	V(fcntl(l, F_SETFL, 0));
	pthread_t t;
	pthread_create(&t, 0, late_connect, 0);
	int la = accept(l, 0, 0);
	V(read(la, buf, 10));
	V(read(la, buf, 10));
	pthread_join(t, 0);
	V(unlink("listener"));
	V(connect(more[4], (void *)&a, name(&a, "listener", 0)));
	close(l);
	V(send(more[0], "to the closed", 5, MSG_NOSIGNAL) >= -1);
	SECTION("abstract names");
	l = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	V(bind(l, (void *)&a, name(&a, "abstract-of-atoll-case", 1)));
	show(getsockname, l);
	V(listen(l, 5));
	c = socket(AF_UNIX, SOCK_STREAM, 0);
	V(connect(c, (void *)&a, name(&a, "abstract-of-atoll-case", 1)));
	c = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	V(connect(c, (void *)&a, name(&a, "abstract-of-atoll-case", 1)));
	V((acc = accept(l, 0, 0)) >= 0);
	V(send(c, "abc", 3, 0));
	V(send(c, "defgh", 5, 0));
	receive(acc, 0, 2, 0);
	receive(acc, 0, 99, 0);
	close(l);
	V(connect(socket(AF_UNIX, SOCK_SEQPACKET, 0), (void *)&a, name(&a, "abstract-of-atoll-case", 1)));
	l = socket(AF_UNIX, SOCK_STREAM, 0);
	V(bind(l, (void *)&a, 2));
	len = sizeof a;
	V(getsockname(l, (void *)&a, &len));
	P(len);
	SECTION("datagrams");
	int d1 = socket(AF_UNIX, SOCK_DGRAM, 0), d2 = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
	V(bind(d2, (void *)&a, name(&a, "d2", 0)));
	V(sendto(d1, "unnamed", 7, 0, (void *)&a, name(&a, "d2", 0)));
	receive(d2, 0, 99, 0);
	V(bind(d1, (void *)&b, name(&b, "d1", 0)));
	V(sendto(d1, "named", 5, 0, (void *)&a, name(&a, "d2", 0)));
	len = sizeof b;
	memset(&b, 0, sizeof b);
	V(recvfrom(d2, buf, 3, MSG_TRUNC, (void *)&b, &len));
	printf("%s %u\n", b.sun_path, len);
	V(sendto(d1, "x", 1, 0, (void *)&a, name(&a, "nobody", 0)));
	V(send(d1, "x", 1, 0));
	V(connect(d1, (void *)&a, name(&a, "d2", 0)));
	V(send(d1, "connected", 9, 0));
	receive(d2, 0, 99, 0);
	V(sendto(d2, "unasked", 7, 0, (void *)&a, name(&a, "d1", 0)));
	receive(d1, 0, 99, MSG_DONTWAIT);
	V(connect(d1, (void *)&(struct sockaddr){AF_UNSPEC}, sizeof(struct sockaddr)));
	V(send(d1, "x", 1, 0));
	V(sendto(d1, buf, 1 << 20, MSG_DONTWAIT, (void *)&a, name(&a, "d2", 0)));
	SECTION("descriptors in messages");
	socketpair(AF_UNIX, SOCK_STREAM, 0, s);
	int p[2], fds[300];
	pipe(p);
	fds[0] = p[0], fds[1] = p[1];
	V(send_fd(s[0], fds, 2, "two", 0));
	receive(s[1], 512, 50, 0);
	write(p[1], "through", 7);
	V(read(got[0], buf, 100));
	V(send_fd(s[0], fds, 2, "two", 0));
	receive(s[1], 512, 50, MSG_CMSG_CLOEXEC);
	V(send_fd(s[0], fds, 2, "cut", 0));
	receive(s[1], CMSG_LEN(4), 50, 0);
	V(send_fd(s[0], fds, 2, "none", 0));
	receive(s[1], 0, 50, 0);
	V(send_fd(s[0], fds, 1, "a", 0));
	V(send_fd(s[0], fds, 1, "b", 0));
	receive(s[1], 512, 50, 0);
	receive(s[1], 512, 50, 0);
	V(send_fd(s[0], fds, 1, "peeked", 0));
	receive(s[1], 512, 50, MSG_PEEK);
	receive(s[1], 512, 50, 0);
	fds[0] = 999;
	V(send_fd(s[0], fds, 1, "bad", 0));
	for (int i = 0; i < 300; i++)
		fds[i] = 0;
	V(send_fd(s[0], fds, 254, "many", 0));
	V(send_fd(s[0], fds, 253, "many", 0));
	receive(s[1], 512, 50, 0);
	// A descriptor that is passed lives on when its sender has closed it.
	pipe(p);
	V(send_fd(s[0], p, 1, "alive", 0));
	close(p[0]);
	V(write(p[1], "still", 5));
	receive(s[1], 512, 50, 0);
	V(read(got[0], buf, 10));
	SECTION("credentials");
	V(setsockopt(s[1], SOL_SOCKET, SO_PASSCRED, &one, sizeof one));
	V(send(s[0], "cred", 4, 0));
	receive(s[1], 512, 50, 0);
	char cb[CMSG_SPACE(sizeof(struct ucred))] = {0};
	struct iovec iv = {"own", 3};
	struct msghdr m = {.msg_iov = &iv, .msg_iovlen = 1, .msg_control = cb, .msg_controllen = sizeof cb};
	struct cmsghdr *h = CMSG_FIRSTHDR(&m);
	h->cmsg_level = SOL_SOCKET;
	h->cmsg_type = SCM_CREDENTIALS;
	h->cmsg_len = CMSG_LEN(sizeof(struct ucred));
	*(struct ucred *)CMSG_DATA(h) = (struct ucred){getpid(), getuid(), getgid()};
	V(sendmsg(s[0], &m, 0));
	receive(s[1], 512, 50, 0);
	h->cmsg_type = 77;
	V(sendmsg(s[0], &m, 0));
	h->cmsg_len = 3;
	V(sendmsg(s[0], &m, 0));
	SECTION("options that only are told");
	for (size_t i = 0; i < 6; i++) {
		static const int names[] = {SO_KEEPALIVE, SO_BROADCAST, SO_REUSEADDR, SO_PRIORITY, SO_INCOMING_CPU, SO_LINGER};
		int v[2] = {5, 7};
		opt(s[0], names[i]);
		printf("%d: %s\n", names[i], setsockopt(s[0], SOL_SOCKET, names[i], v, 2) ? err_(errno) : "ok");
		printf("%d: %s\n", names[i], setsockopt(s[0], SOL_SOCKET, names[i], v, sizeof v) ? err_(errno) : "ok");
		opt(s[0], names[i]);
		opt(s[1], names[i]);
		v[0] = 0;
		printf("%d: %s\n", names[i], setsockopt(s[0], SOL_SOCKET, names[i], v, sizeof v) ? err_(errno) : "ok");
		opt(s[0], names[i]);
	}
	SECTION("buffers");
	for (int i = 0; i < 12; i++) {
		// The sender's decides, whatever the receiver's is.
		static const int kinds[] = {SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM};
		int b[2], small = 4000, which = i / 3 % 2 ? SO_RCVBUF : SO_SNDBUF, of = i / 6;
		socketpair(AF_UNIX, kinds[i % 3], 0, b);
		setsockopt(b[of], SOL_SOCKET, which, &small, sizeof small);
		opt(b[of], SO_SNDBUF);
		opt(b[of], SO_RCVBUF);
		static char large[9000];
		long sent = 0, r;
		while ((r = send(b[0], large, 1000, MSG_DONTWAIT)) > 0)
			sent += r;
		struct pollfd p = {b[0], POLLOUT};
		printf("%d %d %d: %s, at most 8000: %d, %d", i % 3, which, of, err_(errno), sent <= 8000, poll(&p, 1, 0));
		printf(", a large one: %s\n", i % 3 && send(b[0], large, sizeof large, MSG_DONTWAIT) < 0 ? err_(errno) : "");
		while (recv(b[1], large, sizeof large, MSG_DONTWAIT) > 0)
			;
		printf("read: %d\n", poll(&p, 1, 0));
		close(b[0]);
		close(b[1]);
	}
	several();
	peers();
	SECTION("flags and timeouts");
	V(send(s[0], "abcdef", 6, 0));
	V(recv(s[1], buf, 3, MSG_WAITALL));
	V(recv(s[1], buf, 10, MSG_DONTWAIT));
	V(recv(s[1], buf, 10, MSG_OOB));
	struct timeval tv = {0, 20000};
	V(setsockopt(s[1], SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv));
	V(recv(s[1], buf, 1, 0));
	len = sizeof tv;
	V(getsockopt(s[1], SOL_SOCKET, SO_RCVTIMEO, &tv, &len));
	printf("%ld %ld %u\n", tv.tv_sec, tv.tv_usec, len);
	// By their newer numbers, too, which are 66 and 67.
	tv = (struct timeval){0, 0};
	V(getsockopt(s[1], SOL_SOCKET, 66, &tv, &len));
	printf("%ld %ld %u\n", tv.tv_sec, tv.tv_usec, len);
	tv = (struct timeval){1, 20000};
	V(setsockopt(s[1], SOL_SOCKET, 67, &tv, sizeof tv));
	tv = (struct timeval){0, 40000};
	V(setsockopt(s[1], SOL_SOCKET, 66, &tv, 15));
	V(setsockopt(s[1], SOL_SOCKET, 66, &tv, sizeof tv));
	V(recv(s[1], buf, 1, 0));
	V(getsockopt(s[1], SOL_SOCKET, SO_RCVTIMEO, &tv, &len));
	printf("%ld %ld %u\n", tv.tv_sec, tv.tv_usec, len);
	V(getsockopt(s[1], SOL_SOCKET, SO_SNDTIMEO, &tv, &len));
	printf("%ld %ld %u\n", tv.tv_sec, tv.tv_usec, len);
	tv = (struct timeval){0, 20000};
	V(setsockopt(s[0], SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv));
	memset(buf, 0, sizeof buf);
	long sum = 0, r;
	errno = 0;
	while ((r = send(s[0], buf, sizeof buf, 0)) > 0)
		sum += r;
	P(errno == EAGAIN);
	P(sum > 10000);
	state(s[0]);
	struct iovec big[3] = {{buf, 100}, {buf, 100}, {buf, 100}};
	V(readv(s[1], big, 3));
	/* A socket in a socket in a socket: closed with the outermost. */
	int inner = -1;
	for (n = 0; n < 3000; n++) {
		int p[2];
		if (socketpair(AF_UNIX, SOCK_STREAM, 0, p) || (inner >= 0 && send_fd(p[0], &inner, 1, "x", 0) != 1))
			break;
		close(inner);
		close(p[0]);
		inner = p[1];
	}
	printf("nested %d\n", n);
	V(close(inner));
	return 0;
}
