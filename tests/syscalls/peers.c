// Sockets and who is at their other end: room that is waited for, ends with bytes unread, connections that nobody takes, messages of
// many buffers, and what select hears of.
#include "case.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/un.h>

static int hits;
static void nothing(int s) { hits++; }

static socklen_t name(struct sockaddr_un *a, const char *n)
{
	memset(a, 0, sizeof *a);
	a->sun_family = AF_UNIX;
	// Abstract, and this run's own.
	int l = snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "%s-%d", n, getpid());
	return offsetof(struct sockaddr_un, sun_path) + 1 + l;
}
static int bound(int type, const char *n)
{
	struct sockaddr_un a;
	int s = socket(AF_UNIX, type, 0);
	bind(s, (void *)&a, name(&a, n));
	return s;
}
static int to(int s, const char *n)
{
	struct sockaddr_un a;
	return connect(s, (void *)&a, name(&a, n));
}
static int ready(int fd, int events, int ms)
{
	struct pollfd p = {fd, events, 0};
	return poll(&p, 1, ms) < 0 ? -1 : p.revents;
}
static int error_of(int s)
{
	int e = -1;
	socklen_t l = sizeof e;
	getsockopt(s, SOL_SOCKET, SO_ERROR, &e, &l);
	return e;
}
static void timeout(int s, int which, int ms)
{
	struct timeval t = {ms / 1000, ms % 1000 * 1000};
	setsockopt(s, SOL_SOCKET, which, &t, sizeof t);
}
// Sends until there is no room. How many that takes depends on the system's settings.
static int full(int s)
{
	int n = 0;
	while (send(s, "x", 1, MSG_DONTWAIT) == 1)
		n++;
	return errno == EAGAIN && n > 0;
}

// What happens to a socket a little later.
struct later {
	int fd;
	enum { DRAIN, CLOSE, ACCEPT, MORE } what;
	pthread_t thread;
};
static void *act(void *p)
{
	struct later *l = p;
	char b[10];
	sleep_ms(40);
	switch (l->what) {
	case DRAIN:
		while (recv(l->fd, b, sizeof b, MSG_DONTWAIT) > 0)
			;
		break;
	case CLOSE:
		close(l->fd);
		break;
	case ACCEPT:
		close(accept(l->fd, 0, 0));
		break;
	case MORE:
		send(l->fd, "q", 1, 0);
		sleep_ms(40);
		send(l->fd, "rstu", 4, 0);
	}
	return 0;
}
static struct later *later(int fd, int what)
{
	struct later *l = malloc(sizeof *l);
	*l = (struct later){.fd = fd, .what = what};
	pthread_create(&l->thread, 0, act, l);
	return l;
}
static void done(struct later *l)
{
	pthread_join(l->thread, 0);
	free(l);
}

static void room(void)
{
	struct sockaddr_un a;
	struct later *l;
	struct epoll_event e = {EPOLLOUT | EPOLLET, {0}};
	int r = bound(SOCK_DGRAM, "room"), s = socket(AF_UNIX, SOCK_DGRAM, 0), ep = epoll_create1(0);
	SECTION("room at a receiver that is not connected to its sender");
	V(to(s, "room"));
	X(ready(s, POLLOUT, 0));
	V(full(s));
	X(ready(s, POLLOUT, 0));
	l = later(r, DRAIN);
	X(ready(s, POLLOUT, 5000));
	done(l);
	V(full(s));
	V(epoll_ctl(ep, EPOLL_CTL_ADD, s, &e));
	V(epoll_wait(ep, &e, 1, 0));
	l = later(r, DRAIN);
	V(epoll_wait(ep, &e, 1, 5000));
	X(e.events);
	done(l);
	// Once told, it is told again after it has found no room.
	V(full(s));
	while (epoll_wait(ep, &e, 1, 0) > 0)
		;
	V(full(s) || errno == EAGAIN);
	l = later(r, DRAIN);
	V(epoll_wait(ep, &e, 1, 5000));
	done(l);
	V(full(s));
	l = later(r, DRAIN);
	V(send(s, "y", 1, 0));
	done(l);
	full(s);
	timeout(s, SO_SNDTIMEO, 30);
	V(send(s, "y", 1, 0));
	int other = socket(AF_UNIX, SOCK_DGRAM, 0);
	timeout(other, SO_SNDTIMEO, 30);
	V(sendto(other, "z", 1, 0, (void *)&a, name(&a, "room")));
	timeout(other, SO_SNDTIMEO, 0);
	l = later(r, DRAIN);
	V(sendto(other, "z", 1, 0, (void *)&a, name(&a, "room")));
	done(l);
	SECTION("the receiver is closed");
	timeout(s, SO_SNDTIMEO, 0);
	full(s);
	int copy = dup(r);
	close(r);
	l = later(copy, CLOSE);
	V(send(s, "y", 1, 0));
	done(l);
	V(send(s, "y", 1, 0));
	X(ready(s, POLLOUT, 0));
	r = bound(SOCK_DGRAM, "room");
	V(to(s, "room"));
	V(full(s));
	l = later(r, CLOSE);
	V(sendto(other, "z", 1, 0, (void *)&a, name(&a, "room")));
	done(l);
	close(s);
	close(other);
	close(ep);
}

static void limit(void)
{
	struct rlimit old, now;
	struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof in;
	char b[10] = {0};
	getrlimit(RLIMIT_NOFILE, &old);
	for (int inet = 0; inet < 2; inet++) {
		SECTION(inet ? "accept at the limit, TCP" : "accept at the limit, Unix");
		int l = inet ? socket(AF_INET, SOCK_STREAM, 0) : bound(SOCK_STREAM, "limit");
		if (inet) {
			bind(l, (void *)&in, sizeof in);
			getsockname(l, (void *)&in, &len);
		}
		listen(l, 5);
		int c = socket(inet ? AF_INET : AF_UNIX, SOCK_STREAM, 0), next = dup(0);
		close(next);
		now = (struct rlimit){next, old.rlim_max};
		setrlimit(RLIMIT_NOFILE, &now);
		V(accept(l, 0, 0));
		V(inet ? connect(c, (void *)&in, sizeof in) : to(c, "limit"));
		V(accept(l, 0, 0));
		V(accept4(l, 0, 0, SOCK_NONBLOCK));
		V(send(c, "still", 5, 0));
		setrlimit(RLIMIT_NOFILE, &old);
		int s = accept4(l, 0, 0, SOCK_CLOEXEC);
		V(s == next);
		V(fcntl(s, F_GETFD));
		V(recv(s, b, sizeof b, 0));
		puts(b);
		// The descriptor is free again if nobody comes.
		fcntl(l, F_SETFL, O_NONBLOCK);
		close(s);
		V(accept(l, 0, 0));
		V(dup(0) == next);
		close(next);
		close(c);
		close(l);
	}
}

static void many(void)
{
	char text[] = "abcdefghijklmnopqrstuvwxyz0123";
	struct iovec iv[12], into[12];
	size_t page = sysconf(_SC_PAGESIZE);
	for (int type = 0; type < 3; type++) {
		int s[2];
		printf("-- messages of many buffers, %s\n", type == 0 ? "UDP" : type == 1 ? "Unix datagrams" : "Unix packets");
		if (type) {
			socketpair(AF_UNIX, type == 1 ? SOCK_DGRAM : SOCK_SEQPACKET, 0, s);
		} else {
			struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
			socklen_t len = sizeof in;
			s[0] = socket(AF_INET, SOCK_DGRAM, 0);
			s[1] = socket(AF_INET, SOCK_DGRAM, 0);
			bind(s[0], (void *)&in, sizeof in);
			getsockname(s[0], (void *)&in, &len);
			connect(s[1], (void *)&in, sizeof in);
		}
		// Pages that nobody has touched.
		char *fresh = mmap(0, 12 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		char b[100] = {0};
		for (int i = 0; i < 12; i++) {
			iv[i] = (struct iovec){text + 2 * i, 2};
			into[i] = (struct iovec){fresh + page * i, 2};
		}
		struct msghdr out = {.msg_iov = iv, .msg_iovlen = 12}, in = {.msg_iov = into, .msg_iovlen = 12};
		V(sendmsg(s[1], &out, 0));
		V(recv(s[0], b, sizeof b, 0));
		puts(b);
		V(sendmsg(s[1], &out, 0));
		V(recvmsg(s[0], &in, MSG_PEEK));
		V(recvmsg(s[0], &in, 0));
		X(in.msg_flags);
		for (int i = 0; i < 12; i++)
			printf("%.2s", fresh + page * i);
		puts("");
		V(writev(s[1], iv, 12));
		memset(fresh, '-', 2);
		V(readv(s[0], into, 12));
		printf("%.2s\n", fresh);
		V(send(s[1], text, 30, 0));
		V(recvmsg(s[0], &in, MSG_TRUNC));
		X(in.msg_flags);
		iv[10].iov_base = (void *)8;
		V(sendmsg(s[1], &out, 0));
		V(recv(s[0], b, sizeof b, MSG_DONTWAIT));
		// Longer than any.
		for (int i = 0; i < 12; i++)
			iv[i] = (struct iovec){fresh, page};
		V(sendmsg(s[1], &out, 0));
		V(recv(s[0], b, sizeof b, MSG_TRUNC));
		close(s[0]);
		close(s[1]);
		munmap(fresh, 12 * page);
	}
}

// A listener whose backlog is full, and a socket whose connection to it has begun.
static int slow_connect(int *l, struct sockaddr_in *in, int *fill)
{
	socklen_t len = sizeof *in;
	*in = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	*l = socket(AF_INET, SOCK_STREAM, 0);
	bind(*l, (void *)in, sizeof *in);
	getsockname(*l, (void *)in, &len);
	listen(*l, 0);
	*fill = socket(AF_INET, SOCK_STREAM, 0);
	connect(*fill, (void *)in, sizeof *in);
	return socket(AF_INET, SOCK_STREAM, 0);
}
static void *interrupted_connect(void *p)
{
	int l, fill;
	struct sockaddr_in in;
	int s = slow_connect(&l, &in, &fill);
	pthread_t t = signal_later(SIGUSR1, 60);
	struct later *a = later(l, ACCEPT);
	int r = connect(s, (void *)&in, sizeof in);
	long e = r ? errno : 0;
	done(a);
	pthread_join(t, 0);
	return (void *)e;
}
static void connecting(void)
{
	int l, fill;
	struct sockaddr_in in;
	pthread_t t;
	void *e;
	SECTION("a connection that has begun is waited for");
	struct sigaction again = {.sa_handler = nothing, .sa_flags = SA_RESTART};
	sigaction(SIGUSR1, &again, 0);
	pthread_create(&t, 0, interrupted_connect, 0);
	int s = slow_connect(&l, &in, &fill);
	fcntl(s, F_SETFL, O_NONBLOCK);
	V(connect(s, (void *)&in, sizeof in));
	V(connect(s, (void *)&in, sizeof in));
	fcntl(s, F_SETFL, 0);
	timeout(s, SO_SNDTIMEO, 20);
	V(connect(s, (void *)&in, sizeof in));
	timeout(s, SO_SNDTIMEO, 0);
	struct later *a = later(l, ACCEPT);
	V(connect(s, (void *)&in, sizeof in));
	V(connect(s, (void *)&in, sizeof in));
	done(a);
	pthread_join(t, &e);
	printf("and one that a signal interrupts: %s, signals %d\n", e ? err_((long)e) : "connected", hits);
	close(s);
	close(l);
	close(fill);
}

static void listening(void)
{
	int l, fill, more[3];
	struct sockaddr_in in;
	SECTION("a second listen sets another backlog");
	close(slow_connect(&l, &in, &fill));
	V(listen(l, 5));
	for (int i = 0; i < 3; i++) {
		more[i] = socket(AF_INET, SOCK_STREAM, 0);
		timeout(more[i], SO_SNDTIMEO, 900);
		V(connect(more[i], (void *)&in, sizeof in));
	}
	V(connect(l, (void *)&in, sizeof in));
	for (int i = 0; i < 3; i++)
		close(more[i]);
	close(l);
	close(fill);
}

static void unread(void)
{
	int types[] = {SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM}, s[2];
	char b[10];
	for (int i = 0; i < 3; i++) {
		printf("-- closed with bytes unread, type %d\n", types[i]);
		for (int how = 0; how < 3; how++) {
			P(how);
			socketpair(AF_UNIX, types[i], 0, s);
			send(s[1], "data", 4, 0);
			if (how)
				send(s[0], "unread", 6, 0);
			close(s[1]);
			X(ready(s[0], POLLIN | POLLOUT | POLLRDHUP, 0));
			if (how == 2)
				V(error_of(s[0]));
			for (int n = 0; n < 3; n++)
				V(recv(s[0], b, 4, MSG_DONTWAIT));
			V(send(s[0], "x", 1, MSG_NOSIGNAL));
			V(send(s[0], "x", 1, MSG_NOSIGNAL));
			X(ready(s[0], POLLIN | POLLOUT | POLLRDHUP, 0));
			close(s[0]);
		}
		if (types[i] == SOCK_DGRAM)
			continue;
		printf("-- a listener is closed with connections, type %d\n", types[i]);
		int l = bound(types[i], "closed"), c = socket(AF_UNIX, types[i], 0), other = socket(AF_UNIX, types[i], 0);
		listen(l, 5);
		V(to(c, "closed"));
		V(to(other, "closed"));
		send(other, "sent", 4, 0);
		close(l);
		X(ready(c, POLLIN | POLLOUT | POLLRDHUP, 0));
		V(recv(c, b, 4, 0));
		V(recv(c, b, 4, 0));
		X(ready(c, POLLIN | POLLOUT | POLLRDHUP, 0));
		V(error_of(other));
		V(recv(other, b, 4, 0));
		V(to(c, "closed"));
		close(c);
		close(other);
		l = bound(types[i], "closed");
		listen(l, 1);
		c = socket(AF_UNIX, types[i], 0);
		to(c, "closed");
		// Somebody waits for the other end that never is.
		struct later *w = later(l, CLOSE);
		V(recv(c, b, 4, 0));
		V(recv(c, b, 4, 0));
		done(w);
		close(c);
	}
}

static int selected(int fd, int set, int ms)
{
	fd_set sets[3];
	struct timeval t = {0, ms * 1000};
	for (int i = 0; i < 3; i++)
		FD_ZERO(&sets[i]);
	FD_SET(fd, &sets[set]);
	int r = select(fd + 1, &sets[0], &sets[1], &sets[2], &t);
	// Did it wait until the end?
	return r > 0 ? FD_ISSET(fd, &sets[set]) : r == 0 && t.tv_usec ? -1 : r;
}
static void selecting(void)
{
	int p[2], q[2], s[2];
	SECTION("select and what was not asked for");
	pipe(p);
	pipe(q);
	close(p[1]);
	close(q[0]);
	for (int set = 0; set < 3; set++) {
		P(set);
		X(ready(p[0], POLLIN, 0));
		V(selected(p[0], set, 20));
		X(ready(q[1], 0, 0));
		V(selected(q[1], set, 20));
		socketpair(AF_UNIX, SOCK_STREAM, 0, s);
		send(s[0], "x", 1, 0);
		close(s[1]);
		V(selected(s[0], set, 20));
		close(s[0]);
	}
	close(p[0]);
	close(q[1]);
}

static void backlog(void)
{
	int types[] = {SOCK_STREAM, SOCK_SEQPACKET};
	for (int i = 0; i < 2; i++) {
		printf("-- a full backlog, type %d\n", types[i]);
		int l = bound(types[i], "backlog"), c[8], n = 0;
		listen(l, 0);
		for (;;) {
			c[n] = socket(AF_UNIX, types[i] | SOCK_NONBLOCK, 0);
			if (to(c[n], "backlog"))
				break;
			n++;
		}
		P(n);
		fcntl(c[n], F_SETFL, 0);
		timeout(c[n], SO_SNDTIMEO, 30);
		V(to(c[n], "backlog"));
		timeout(c[n], SO_SNDTIMEO, 0);
		struct later *w = later(l, ACCEPT);
		V(to(c[n], "backlog"));
		done(w);
		n++;
		c[n] = socket(AF_UNIX, types[i], 0);
		w = later(l, CLOSE);
		V(to(c[n], "backlog"));
		done(w);
		V(to(c[n], "backlog"));
		// The name is free at once.
		l = bound(types[i], "backlog");
		V(listen(l, 3));
		V(to(c[n], "backlog"));
		close(l);
		for (int k = 0; k <= n; k++)
			close(c[k]);
	}
}

static void pair_of(int domain, int type, int s[2])
{
	struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}, own = in;
	socklen_t len = sizeof in;
	if (domain == AF_UNIX) {
		socketpair(AF_UNIX, type, 0, s);
		return;
	}
	for (int i = 0; i < 2; i++)
		bind(s[i] = socket(AF_INET, type, 0), (void *)&own, sizeof own);
	if (type == SOCK_STREAM)
		listen(s[1], 1);
	getsockname(s[1], (void *)&in, &len);
	connect(s[0], (void *)&in, sizeof in);
	if (type == SOCK_DGRAM) {
		getsockname(s[0], (void *)&in, &len);
		connect(s[1], (void *)&in, sizeof in);
		return;
	}
	int l = s[1];
	s[1] = accept(l, 0, 0);
	close(l);
}
// In two pieces.
static long put(int s, const char *what, int flags)
{
	size_t len = strlen(what);
	struct iovec v[2] = {{(void *)what, len / 2}, {(void *)what + len / 2, len - len / 2}};
	struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
	return sendmsg(s, &m, flags);
}
static void get(int s, size_t most, int flags)
{
	char b[16] = {0};
	struct iovec v[2] = {{b, most / 2}, {b + most / 2, most - most / 2}};
	struct msghdr m = {.msg_iov = v, .msg_iovlen = 2, .msg_flags = -1};
	errno = 0;
	long n = recvmsg(s, &m, flags);
	printf("%zu with %#x: %ld %s '%s'", most, flags, n, err_(errno), b);
	// Without a message they stay as they were.
	printf(n < 0 ? "\n" : ", %#x\n", m.msg_flags);
}
static void flags(void)
{
	static const struct { int domain, type; } kinds[] = {
		{AF_UNIX, SOCK_STREAM}, {AF_UNIX, SOCK_SEQPACKET}, {AF_UNIX, SOCK_DGRAM}, {AF_INET, SOCK_STREAM}, {AF_INET, SOCK_DGRAM}};
	signal(SIGPIPE, nothing);
	for (int i = 0; i < 5; i++) {
		int s[2], is_stream = kinds[i].type == SOCK_STREAM;
		printf("-- flags, domain %d type %d\n", kinds[i].domain, kinds[i].type);
		pair_of(kinds[i].domain, kinds[i].type, s);
		get(s[1], 4, MSG_DONTWAIT);
		get(s[1], 4, MSG_DONTWAIT | MSG_PEEK | MSG_WAITALL);
		V(put(s[0], "ab", MSG_EOR | MSG_NOSIGNAL | MSG_DONTWAIT));
		V(put(s[0], "cdef", MSG_DONTROUTE | MSG_CONFIRM));
		// A network of a cell's own has its time.
		sleep_ms(20);
		get(s[1], 1, MSG_PEEK);
		get(s[1], 1, MSG_PEEK | MSG_TRUNC);
		get(s[1], 4, MSG_PEEK);
		get(s[1], 9, MSG_PEEK | MSG_DONTWAIT);
		get(s[1], 4, MSG_WAITALL);
		get(s[1], 4, MSG_WAITALL | MSG_DONTWAIT);
		get(s[1], 4, MSG_WAITALL | MSG_DONTWAIT);
		SECTION("more comes");
		V(put(s[0], "gh", MSG_MORE));
		V(put(s[0], "ij", MSG_MORE));
		V(put(s[0], "kl", 0));
		get(s[1], 6, MSG_WAITALL);
		get(s[1], 6, MSG_DONTWAIT);
		get(s[1], 6, MSG_DONTWAIT);
		SECTION("all is waited for, until there is no more time, and until the end");
		timeout(s[1], SO_RCVTIMEO, 200);
		V(put(s[0], "mn", 0));
		get(s[1], 5, MSG_WAITALL | MSG_PEEK);
		get(s[1], 5, MSG_WAITALL);
		get(s[1], 5, MSG_WAITALL);
		timeout(s[1], SO_RCVTIMEO, 0);
		if (is_stream) {
			V(put(s[0], "op", 0));
			struct later *l = later(s[0], MORE);
			get(s[1], 5, MSG_WAITALL | MSG_PEEK);
			done(l);
			get(s[1], 7, MSG_WAITALL);
			l = later(s[0], CLOSE);
			get(s[1], 5, MSG_WAITALL);
			done(l);
		} else {
			close(s[0]);
		}
		if (is_stream) {
			// Into memory that a child has, too, on both sides of where what is copied at a time ends.
			SECTION("all of much is looked at");
			enum { MUCH = 32 << 10, AT_A_TIME = 64 << 10 };
			int m[2];
			pair_of(kinds[i].domain, kinds[i].type, m);
			char *much = calloc(1, MUCH);
			char *map = mmap(0, 3 * AT_A_TIME, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			char *fresh = (char *)(((unsigned long)map | (AT_A_TIME - 1)) + 1 + AT_A_TIME - MUCH / 2);
			memset(much, 'm', MUCH);
			memset(fresh, 'f', MUCH);
			fflush(stdout);
			pid_t child = fork();
			if (!child)
				pause();
			// In pieces: the host stops at the one that it can't put.
			for (int k = 0; k < 2; k++) {
				V(send(m[0], much, MUCH / 2, 0));
				sleep_ms(20);
			}
			long seen = recv(m[1], fresh, MUCH, MSG_PEEK | MSG_WAITALL);
			// Linux stops at the end of a piece where it does not wait: at a Unix socket.
			P(seen > 0 && (kinds[i].domain == AF_UNIX || seen == MUCH) && !memcmp(much, fresh, seen));
			kill(child, SIGKILL);
			waitpid(child, NULL, 0);
			munmap(map, 3 * AT_A_TIME);
			free(much);
			close(m[0]);
			close(m[1]);
		}
		SECTION("nobody is there");
		for (int n = 0; n < 3; n++) {
			hits = 0;
			long r = put(s[1], "x", n ? 0 : MSG_NOSIGNAL);
			// A connection hears of it by what comes of the first ones.
			if (!is_stream || kinds[i].domain == AF_UNIX)
				printf("%ld %s, signals %d\n", r, r < 0 ? err_(errno) : "", hits);
			sleep_ms(20);
		}
		hits = 0;
		if (is_stream) {
			V(put(s[1], "x", MSG_NOSIGNAL));
			P(hits);
			V(put(s[1], "x", 0));
			P(hits);
		}
		close(s[1]);
		pair_of(kinds[i].domain, kinds[i].type, s);
		SECTION("no room");
		if (kinds[i].domain == AF_UNIX) {
			P(full(s[0]));
			V(put(s[0], "xy", MSG_DONTWAIT));
			V(put(s[0], "xy", MSG_DONTWAIT | MSG_MORE));
			struct later *l = later(s[1], DRAIN);
			V(put(s[0], "xy", MSG_NOSIGNAL));
			done(l);
		}
		close(s[0]);
		close(s[1]);
	}
}

int main(void)
{
	alarm(20);
	signal(SIGPIPE, SIG_IGN);
	room();
	limit();
	many();
	connecting();
	listening();
	unread();
	selecting();
	backlog();
	flags();
	return 0;
}
