// TCP over the loopback, IPv4 and IPv6.
// nucleus: no (its stack has no urgent data, and no SO_DONTROUTE)
#include "case.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

static int hits;
static void nothing(int s) { hits++; }
static void state(int fd)
{
	struct pollfd p = {fd, POLLIN | POLLOUT | POLLPRI | POLLRDHUP};
	int r = poll(&p, 1, 0);
	printf("poll %d %x\n", r, p.revents);
}
static void wait_for(int fd, int what)
{
	struct pollfd p = {fd, what};
	int r = poll(&p, 1, 2000);
	printf("wait %d %x\n", r, p.revents);
}
static atomic_int ready;
static void *busy(void *x)
{
	while (!ready)
		;
	return x;
}
static struct sockaddr_in local4(int port)
{
	return (struct sockaddr_in){AF_INET, htons(port), {htonl(INADDR_LOOPBACK)}};
}
static int opt(int fd, int level, int o, int set)
{
	int v = set;
	socklen_t l = sizeof v;
	if (set >= 0 && setsockopt(fd, level, o, &v, sizeof v)) {
		printf("set %d %d: %s\n", level, o, err_(errno));
		return -1;
	}
	v = 0;
	int r = getsockopt(fd, level, o, &v, &l);
	printf("option %d %d: %s %d length %u\n", level, o, r ? err_(errno) : "ok", v, l);
	return v;
}
static void *late_write(void *p)
{
	sleep_ms(30);
	write((int)(long)p, "abc", 3);
	sleep_ms(30);
	write((int)(long)p, "def", 3);
	return 0;
}

int main(void)
{
	char b[100000];
	socklen_t len;
	signal(SIGPIPE, nothing);
	for (int v6 = 0; v6 < 2; v6++) {
		int fam = v6 ? AF_INET6 : AF_INET;
		printf("-- connection, IPv%d\n", v6 ? 6 : 4);
		struct sockaddr_storage a = {0}, peer;
		struct sockaddr_in *a4 = (void *)&a;
		struct sockaddr_in6 *a6 = (void *)&a;
		int l = socket(fam, SOCK_STREAM | SOCK_CLOEXEC, 0);
		state(l);
		if (v6) { a6->sin6_family = AF_INET6; a6->sin6_addr = in6addr_loopback; }
		else *a4 = local4(0);
		socklen_t size = v6 ? sizeof *a6 : sizeof *a4;
		V(bind(l, (void *)&a, size));
		V(listen(l, 16));
		len = sizeof a;
		V(getsockname(l, (void *)&a, &len));
		P(len);
		P(a4->sin_port != 0);
		state(l);
		int c = socket(fam, SOCK_STREAM, 0);
		V(connect(c, (void *)&a, size));
		wait_for(l, POLLIN);
		len = sizeof peer;
		int s;
		V((s = accept4(l, (void *)&peer, &len, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0);
		printf("%u %d\n", len, peer.ss_family);
		struct sockaddr_storage mine;
		len = sizeof mine;
		V(getsockname(c, (void *)&mine, &len));
		P(memcmp(&mine, &peer, size) == 0);
		len = sizeof mine;
		V(getpeername(c, (void *)&mine, &len));
		P(memcmp(&mine, &a, size) == 0);
		V(getpeername(l, (void *)&mine, &len));
		X(fcntl(s, F_GETFL));
		state(c);
		V(recv(s, b, 1, 0));
		V(send(c, "hello", 5, 0));
		wait_for(s, POLLIN);
		V(recv(s, b, 2, MSG_PEEK));
		int n;
		V(ioctl(s, FIONREAD, &n));
		P(n);
		V(recv(s, b, 100, MSG_TRUNC));
		V(recv(s, b, 100, MSG_DONTWAIT));
		V(fcntl(s, F_SETFL, 0));
		pthread_t t;
		pthread_create(&t, 0, late_write, (void *)(long)c);
		V(recv(s, b, 6, MSG_WAITALL));
		pthread_join(t, 0);
		V(send(c, "!", 1, MSG_OOB));
		wait_for(s, POLLPRI);
		V(recv(s, b, 1, MSG_OOB));
		printf("%c\n", b[0]);
		V(connect(c, (void *)&a, size));
		V(sendto(c, "x", 1, 0, (void *)&a, size));
		V(recv(s, b, 10, 0));
		struct iovec iv[2] = {{"io", 2}, {"vec", 3}};
		V(writev(c, iv, 2));
		sleep_ms(20);
		V(read(s, b, 10));
		struct timeval tv = {0, 30000};
		V(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv));
		long long t0 = now_ms(CLOCK_MONOTONIC);
		V(recv(s, b, 1, 0));
		P(now_ms(CLOCK_MONOTONIC) - t0 >= 29);
		SECTION("half closed");
		V(shutdown(c, SHUT_WR));
		wait_for(s, POLLIN);
		state(s);
		V(recv(s, b, 10, 0));
		V(send(s, "answer", 6, 0));
		wait_for(c, POLLIN);
		V(recv(c, b, 10, 0));
		V(send(c, "x", 1, 0));
		P(hits);
		V(send(c, "x", 1, MSG_NOSIGNAL));
		V(close(s));
		sleep_ms(20);
		state(c);
		V(recv(c, b, 10, 0));
		V(shutdown(c, SHUT_RDWR));
		close(c);
		SECTION("reset");
		c = socket(fam, SOCK_STREAM, 0);
		connect(c, (void *)&a, size);
		s = accept(l, 0, 0);
		struct linger lg = {1, 0};
		V(setsockopt(s, SOL_SOCKET, SO_LINGER, &lg, sizeof lg));
		close(s);
		wait_for(c, POLLIN);
		state(c);
		V(recv(c, b, 10, 0));
		V(recv(c, b, 10, 0));
		opt(c, SOL_SOCKET, SO_ERROR, -1);
		close(c);
		close(l);
		SECTION("refused");
		c = socket(fam, SOCK_STREAM, 0);
		V(connect(c, (void *)&a, size));
		V(send(c, "x", 1, MSG_NOSIGNAL));
		close(c);
		c = socket(fam, SOCK_STREAM | SOCK_NONBLOCK, 0);
		int r = connect(c, (void *)&a, size);
		printf("%d\n", r == -1 && (errno == EINPROGRESS || errno == ECONNREFUSED));
		if (errno == EINPROGRESS) {
			struct pollfd p = {c, POLLOUT};
			poll(&p, 1, 1000);
			int e;
			len = sizeof e;
			getsockopt(c, SOL_SOCKET, SO_ERROR, &e, &len);
			P(e);
		} else
			printf("e: %d\n", ECONNREFUSED);
		close(c);
	}
	SECTION("a connection that does not wait");
	struct sockaddr_in a = local4(0);
	int l = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	bind(l, (void *)&a, sizeof a);
	listen(l, 5);
	len = sizeof a;
	getsockname(l, (void *)&a, &len);
	V(accept(l, 0, 0));
	int c = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	int r = connect(c, (void *)&a, sizeof a);
	printf("%d\n", r == 0 || errno == EINPROGRESS);
	wait_for(c, POLLOUT);
	opt(c, SOL_SOCKET, SO_ERROR, -1);
	wait_for(l, POLLIN);
	int s = accept(l, 0, 0);
	SECTION("much data");
	long sum = 0, got = 0;
	while ((r = send(c, b, sizeof b, 0)) > 0)
		sum += r;
	P(errno == EAGAIN);
	fcntl(s, F_SETFL, O_NONBLOCK);
	state(c);
	while (got < sum) {
		struct pollfd p = {s, POLLIN};
		if (poll(&p, 1, 1000) <= 0)
			break;
		while ((r = recv(s, b, sizeof b, 0)) > 0)
			got += r;
	}
	P(got == sum);
	wait_for(c, POLLOUT);
	SECTION("options");
	int names[] = {SO_TYPE, SO_DOMAIN, SO_PROTOCOL, SO_ACCEPTCONN, SO_ERROR, SO_BROADCAST, SO_DONTROUTE, SO_OOBINLINE, SO_RCVLOWAT, SO_MARK, SO_PRIORITY};
	for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
		opt(c, SOL_SOCKET, names[i], -1);
	opt(l, SOL_SOCKET, SO_ACCEPTCONN, -1);
	opt(c, SOL_SOCKET, SO_KEEPALIVE, 1);
	opt(c, SOL_SOCKET, SO_REUSEADDR, 1);
	opt(c, SOL_SOCKET, SO_REUSEPORT, 1);
	opt(c, SOL_SOCKET, SO_SNDBUF, 20000);
	opt(c, SOL_SOCKET, SO_RCVBUF, 20000);
	opt(c, SOL_SOCKET, SO_TYPE, 1);
	opt(c, SOL_SOCKET, 9999, -1);
	opt(c, IPPROTO_TCP, TCP_NODELAY, 1);
	opt(c, IPPROTO_TCP, TCP_CORK, 0);
	opt(c, IPPROTO_TCP, TCP_KEEPIDLE, 33);
	opt(c, IPPROTO_TCP, TCP_KEEPINTVL, 44);
	opt(c, IPPROTO_TCP, TCP_KEEPCNT, 5);
	opt(c, IPPROTO_TCP, TCP_QUICKACK, 0);
	opt(c, IPPROTO_TCP, TCP_USER_TIMEOUT, 5000);
	opt(c, IPPROTO_TCP, TCP_DEFER_ACCEPT, -1);
	opt(c, IPPROTO_TCP, TCP_SYNCNT, 3);
	opt(c, IPPROTO_TCP, TCP_WINDOW_CLAMP, 65536);
	opt(c, IPPROTO_TCP, TCP_LINGER2, -1);
	opt(c, IPPROTO_TCP, 9999, -1);
	opt(c, IPPROTO_IP, IP_TOS, 8);
	opt(c, IPPROTO_IP, IP_TTL, 44);
	opt(c, 12345, 1, -1);
	struct tcp_info ti;
	len = sizeof ti;
	V(getsockopt(c, IPPROTO_TCP, TCP_INFO, &ti, &len));
	P(ti.tcpi_state);
	char cc[16] = "";
	len = sizeof cc;
	V(getsockopt(c, IPPROTO_TCP, TCP_CONGESTION, cc, &len));
	P(len);
	V(setsockopt(c, SOL_SOCKET, SO_KEEPALIVE, &r, 2));
	V(setsockopt(c, SOL_SOCKET, SO_KEEPALIVE, (void *)8, 4));
	len = sizeof r;
	V(getsockopt(c, SOL_SOCKET, SO_KEEPALIVE, (void *)8, &len));
	V(getsockopt(c, SOL_SOCKET, SO_KEEPALIVE, &r, (void *)8));
	int s6 = socket(AF_INET6, SOCK_STREAM, 0);
	opt(s6, IPPROTO_IPV6, IPV6_V6ONLY, 1);
	opt(s6, IPPROTO_IPV6, IPV6_UNICAST_HOPS, 7);
	SECTION("ports");
	int p1 = socket(AF_INET, SOCK_STREAM, 0), p2 = socket(AF_INET, SOCK_STREAM, 0);
	V(bind(p1, (void *)&a, sizeof a));
	V(bind(p1, (void *)&a, 3));
	struct sockaddr_in r1 = local4(0);
	opt(p1, SOL_SOCKET, SO_REUSEPORT, 1);
	opt(p2, SOL_SOCKET, SO_REUSEPORT, 1);
	V(bind(p1, (void *)&r1, sizeof r1));
	V(bind(p1, (void *)&r1, sizeof r1));
	len = sizeof r1;
	getsockname(p1, (void *)&r1, &len);
	V(bind(p2, (void *)&r1, sizeof r1));
	V(listen(p1, 3));
	V(listen(p2, 3));
	struct sockaddr_in far = {AF_INET, 0, {htonl(0x01020304)}};
	V(bind(socket(AF_INET, SOCK_STREAM, 0), (void *)&far, sizeof far));
	V(connect(p1, (void *)&a, sizeof a));
	int un = socket(AF_INET, SOCK_STREAM, 0);
	V(getpeername(un, (void *)&far, &len));
	V(recv(un, b, 1, 0));
	V(send(un, b, 1, MSG_NOSIGNAL));
	V(accept(un, 0, 0));
	V(shutdown(un, SHUT_RDWR));
	V(shutdown(c, 7));
	V(listen(un, 1));
	V(accept4(l, 0, 0, 0x1));
	V(accept(0, 0, 0));
	V(accept(999, 0, 0));
	V(connect(0, (void *)&a, sizeof a));
	V(socket(AF_INET, SOCK_STREAM, IPPROTO_UDP));
	V(socket(AF_INET, SOCK_DGRAM, IPPROTO_TCP));
	V(socket(AF_INET, SOCK_SEQPACKET, 0));
	V(socket(AF_INET, SOCK_STREAM, 9999));
	V(connect(un, (void *)8, 16));
	V(connect(un, (void *)&a, 4));
	V(lseek(c, 0, SEEK_SET));
	V(pread(c, b, 1, 0));
	SECTION("what was sent is there at once, and what was taken is not");
	int known[6] = {0}, ep = epoll_create1(0), flags = fcntl(s, F_GETFL);
	fcntl(s, F_SETFL, flags | O_NONBLOCK);
	struct epoll_event ev = {EPOLLIN, {.u32 = 7}};
	epoll_ctl(ep, EPOLL_CTL_ADD, s, &ev);
	for (int i = 0; i < 100; i++) {
		struct pollfd p = {s, POLLIN};
		known[0] += recv(s, b, 8, 0) == -1 && errno == EAGAIN;
		known[1] += poll(&p, 1, 0) == 0 && epoll_wait(ep, &ev, 1, 0) == 0;
		send(c, "12345678", 8, 0);
		// By each way first in turn.
		if (i % 3 == 1)
			known[2] += poll(&p, 1, 0) == 1;
		if (i % 3 == 2)
			known[3] += epoll_wait(ep, &ev, 1, 0) == 1;
		known[4] += recv(s, b, 4, 0) == 4;
		known[5] += poll(&p, 1, 0) == 1 && epoll_wait(ep, &ev, 1, 0) == 1 && recv(s, b, 100, 0) == 4;
	}
	// A host that is busy may deliver a few of them later.
	printf("%d %d %d %d %d %d\n", known[0] > 90, known[1] > 90, known[2] > 28, known[3] > 28, known[4] > 90, known[5] > 90);
	fcntl(s, F_SETFL, flags);
	SECTION("data behind urgent data");
	send(c, "before", 6, 0);
	send(c, "U", 1, MSG_OOB);
	send(c, "behind", 6, 0);
	wait_for(s, POLLPRI);
	V(recv(s, b, 1, MSG_OOB));
	V(recv(s, b, 100, 0));
	wait_for(s, POLLIN);
	V(recv(s, b, 100, 0));
	V(recv(s, b, 1, MSG_OOB));
	send(c, "at", 2, 0);
	send(c, "U", 1, MSG_OOB);
	wait_for(s, POLLPRI);
	V(recv(s, b, 100, 0));
	state(s);
	V(recv(s, b, 100, MSG_PEEK));
	state(s);
	V(recv(s, b, 100, 0));
	state(s);
	V(recv(s, b, 1, MSG_OOB));
	// While signals come that are none of the program's.
	pthread_t t;
	pthread_create(&t, 0, busy, 0);
	int wrong = 0;
	for (int i = 0; i < 10000 && wrong < 3; i++) {
		send(c, "before", 6, 0);
		send(c, "U", 1, MSG_OOB);
		send(c, "behind", 6, 0);
		struct pollfd p = {s, POLLPRI};
		poll(&p, 1, 2000);
		recv(s, b, 1, MSG_OOB);
		// The first may be there before the second.
		p.events = POLLIN;
		wrong += recv(s, b, 100, 0) != 6 || poll(&p, 1, 2000) != 1 || recv(s, b, 100, 0) != 6;
	}
	ready = 1;
	pthread_join(t, 0);
	P(wrong);
	SECTION("large buffers of which little was ever used");
	char *fresh = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int i = 0, n = 40; i < 4; i++, n *= 9) {
		for (int left = n; left > 0;)
			left -= send(c, b, left < (int)sizeof b ? left : (int)sizeof b, MSG_DONTWAIT) > 0 ? (left < (int)sizeof b ? left : (int)sizeof b) : 0;
		int there = 0;
		for (int k = 0; k < 2000 && there < n; k++, sleep_ms(1))
			ioctl(s, FIONREAD, &there);
		printf("%d: %zd", n, read(s, fresh, 1 << 20));
		struct pollfd p = {s, POLLIN};
		printf(" %d\n", poll(&p, 1, 0));
	}
	munmap(fresh, 1 << 20);
	SECTION("fd passing of a connection");
	int sp[2];
	socketpair(AF_UNIX, SOCK_STREAM, 0, sp);
	char cb[CMSG_SPACE(4)] = {0};
	struct iovec iv = {"x", 1};
	struct msghdr m = {.msg_iov = &iv, .msg_iovlen = 1, .msg_control = cb, .msg_controllen = sizeof cb};
	struct cmsghdr *h = CMSG_FIRSTHDR(&m);
	h->cmsg_level = SOL_SOCKET, h->cmsg_type = SCM_RIGHTS, h->cmsg_len = CMSG_LEN(4);
	memcpy(CMSG_DATA(h), &c, 4);
	V(sendmsg(sp[0], &m, 0));
	iv.iov_base = b;
	V(recvmsg(sp[1], &m, 0));
	int c2;
	memcpy(&c2, CMSG_DATA(h), 4);
	close(c);
	V(send(c2, "passed", 6, 0));
	wait_for(s, POLLIN);
	V(recv(s, b, 10, 0));
	int file = open("f", O_RDWR | O_CREAT, 0600);
	write(file, "from a file", 11);
	off_t off = 0;
	extern ssize_t sendfile(int, int, off_t *, size_t);
	V(sendfile(c2, file, &off, 11));
	wait_for(s, POLLIN);
	V(recv(s, b, 100, 0));
	printf("-- who closes is heard of at once\n");
	int quiet = 0, listener = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in at = local4(0);
	len = sizeof at;
	bind(listener, (void *)&at, sizeof at);
	listen(listener, 8);
	getsockname(listener, (void *)&at, &len);
	for (int i = 0; i < 300; i++) {
		// A third connect without waiting; a third close with a reset.
		int c = socket(AF_INET, SOCK_STREAM | (i % 3 == 1 ? SOCK_NONBLOCK : 0), 0);
		struct linger reset = {1, 0};
		if (i % 3 == 2)
			setsockopt(c, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
		if (connect(c, (void *)&at, sizeof at) && errno != EINPROGRESS)
			perror("connect");
		int s = accept(listener, 0, 0);
		close(c);
		int r = recv(s, b, 1, MSG_DONTWAIT);
		quiet += i % 3 == 2 ? !(r < 0 && errno == ECONNRESET) : r != 0;
		close(s);
	}
	// Likewise.
	printf("heard of: %d\n", quiet < 10);
	return 0;
}
