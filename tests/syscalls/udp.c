// UDP over the loopback, IPv4 and IPv6; control messages; several messages at once.
// nucleus: no (its stack has no control messages and no error queue)
#include "case.h"
#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <linux/errqueue.h>

static void wait_for(int fd, int what)
{
	struct pollfd p = {fd, what};
	int r = poll(&p, 1, 2000);
	printf("wait %d %x\n", r, p.revents);
}
// Until an answer to what was sent says that nobody takes it.
static void refused(int fd)
{
	struct pollfd p = {fd, 0};
	poll(&p, 1, 2000);
}
static int sock(int fam, struct sockaddr_storage *a, socklen_t *len, int flags)
{
	int s = socket(fam, SOCK_DGRAM | flags, 0);
	memset(a, 0, sizeof *a);
	a->ss_family = fam;
	if (fam == AF_INET) {
		((struct sockaddr_in *)a)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		*len = sizeof(struct sockaddr_in);
	} else {
		((struct sockaddr_in6 *)a)->sin6_addr = in6addr_loopback;
		*len = sizeof(struct sockaddr_in6);
	}
	if (bind(s, (void *)a, *len))
		printf("bind %s\n", err_(errno));
	getsockname(s, (void *)a, len);
	return s;
}
static void set(int s, int level, int o, int v)
{
	int r = setsockopt(s, level, o, &v, sizeof v);
	printf("set %d %d: %s\n", level, o, r ? err_(errno) : "ok");
}
static void receive(int s, size_t len, size_t room, int flags)
{
	char b[200] = "", c[512];
	struct iovec iv = {b, len};
	struct sockaddr_storage a;
	struct msghdr m = {.msg_iov = &iv, .msg_iovlen = 1, .msg_control = c, .msg_controllen = room, .msg_name = &a, .msg_namelen = sizeof a};
	long r = recvmsg(s, &m, flags);
	if (r < 0) { printf("receive: %s\n", err_(errno)); return; }
	printf("receive: %ld [%s] flags %x control %zu namelen %u\n", r, b, m.msg_flags, m.msg_controllen, m.msg_namelen);
	for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h)) {
		printf("  level %d type %d length %zu:", h->cmsg_level, h->cmsg_type, (size_t)h->cmsg_len);
		if (h->cmsg_level == IPPROTO_IP && h->cmsg_type == IP_PKTINFO) {
			struct in_pktinfo *i = (void *)CMSG_DATA(h);
			char n[20];
			printf(" %s", inet_ntop(AF_INET, &i->ipi_addr, n, 20));
			printf(" %s interface %d", inet_ntop(AF_INET, &i->ipi_spec_dst, n, 20), i->ipi_ifindex == 1);
		} else if (h->cmsg_level == IPPROTO_IPV6 && h->cmsg_type == IPV6_PKTINFO) {
			struct in6_pktinfo *i = (void *)CMSG_DATA(h);
			char n[64];
			printf(" %s", inet_ntop(AF_INET6, &i->ipi6_addr, n, 64));
		} else if (h->cmsg_level == IPPROTO_IP && h->cmsg_type == IP_RECVERR) {
			struct sock_extended_err *e = (void *)CMSG_DATA(h);
			printf(" errno %u origin %d type %d code %d", e->ee_errno, e->ee_origin, e->ee_type, e->ee_code);
		} else if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_TIMESTAMP)
			printf(" now %d", labs(((struct timeval *)CMSG_DATA(h))->tv_sec - time(0)) < 5);
		else if (h->cmsg_len == CMSG_LEN(4))
			printf(" %d", *(int *)CMSG_DATA(h));
		else if (h->cmsg_len == CMSG_LEN(1))
			printf(" %d", *(char *)CMSG_DATA(h));
		puts("");
	}
}

int main(void)
{
	char b[70000];
	int fams[] = {AF_INET, AF_INET6};
	for (int f = 0; f < 2; f++) {
		printf("-- IPv%d\n", f ? 6 : 4);
		struct sockaddr_storage a1, a2, from;
		socklen_t l1, l2, len;
		int s1 = sock(fams[f], &a1, &l1, 0), s2 = sock(fams[f], &a2, &l2, SOCK_NONBLOCK);
		V(recv(s2, b, 10, 0));
		V(sendto(s1, "hello", 5, 0, (void *)&a2, l2));
		wait_for(s2, POLLIN);
		int n;
		V(ioctl(s2, FIONREAD, &n));
		P(n);
		V(recv(s2, b, 2, MSG_PEEK));
		len = sizeof from;
		V(recvfrom(s2, b, 2, MSG_TRUNC, (void *)&from, &len));
		P(len == l1 && !memcmp(&from, &a1, l1));
		V(recv(s2, b, 2, MSG_DONTWAIT));
		V(sendto(s1, "cut off", 7, 0, (void *)&a2, l2));
		wait_for(s2, POLLIN);
		receive(s2, 3, 0, 0);
		V(sendto(s1, "", 0, 0, (void *)&a2, l2));
		wait_for(s2, POLLIN);
		receive(s2, 3, 0, 0);
		V(send(s1, "x", 1, 0));
		V(sendto(s1, b, 70000, 0, (void *)&a2, l2));
		V(sendto(s1, b, 60000, 0, (void *)&a2, l2));
		V(recv(s2, b, 70000, 0));
		V(connect(s1, (void *)&a2, l2));
		V(send(s1, "connected", 9, 0));
		wait_for(s2, POLLIN);
		receive(s2, 100, 0, 0);
		V(sendto(s2, "y", 1, 0, (void *)&a1, l1));
		V(recv(s1, b, 10, 0));
		int s3 = sock(fams[f], &from, &len, 0);
		V(sendto(s3, "from a stranger", 15, 0, (void *)&a1, l1));
		V(recv(s1, b, 100, MSG_DONTWAIT));
		len = sizeof from;
		V(getpeername(s1, (void *)&from, &len));
		P(!memcmp(&from, &a2, l2));
		V(shutdown(s1, SHUT_WR));
		V(connect(s1, (void *)&(struct sockaddr){AF_UNSPEC}, sizeof(struct sockaddr)));
		V(getpeername(s1, (void *)&from, &len));
		V(listen(s1, 1));
		V(accept(s1, 0, 0));
		SECTION("refused by ICMP");
		close(s2);
		s1 = sock(fams[f], &from, &len, 0);
		V(connect(s1, (void *)&a2, l2));
		V(send(s1, "x", 1, 0));
		refused(s1);
		V(recv(s1, b, 1, MSG_DONTWAIT));
		V(recv(s1, b, 1, MSG_DONTWAIT));
		V(send(s1, "x", 1, 0));
		refused(s1);
		int e;
		len = sizeof e;
		V(getsockopt(s1, SOL_SOCKET, SO_ERROR, &e, &len));
		P(e);
		V(send(s1, "x", 1, 0));
		refused(s1);
		V(send(s1, "x", 1, 0));
		if (!f) {
			set(s1, IPPROTO_IP, IP_RECVERR, 1);
			V(recv(s1, b, 1, MSG_DONTWAIT) > -2);
			V(send(s1, "lost", 4, 0));
			wait_for(s1, POLLIN);
			receive(s1, 100, 512, MSG_ERRQUEUE);
			receive(s1, 100, 512, MSG_ERRQUEUE);
		}
	}
	SECTION("control messages");
	struct sockaddr_storage a1, a2;
	socklen_t l1, l2;
	int s1 = sock(AF_INET, &a1, &l1, 0), s2 = sock(AF_INET, &a2, &l2, 0);
	set(s2, IPPROTO_IP, IP_PKTINFO, 1);
	V(sendto(s1, "pktinfo", 7, 0, (void *)&a2, l2));
	receive(s2, 100, 512, 0);
	set(s2, IPPROTO_IP, IP_RECVTTL, 1);
	set(s2, IPPROTO_IP, IP_RECVTOS, 1);
	set(s2, SOL_SOCKET, SO_TIMESTAMP, 1);
	V(sendto(s1, "all", 3, 0, (void *)&a2, l2));
	receive(s2, 100, 512, 0);
	V(sendto(s1, "cut", 3, 0, (void *)&a2, l2));
	receive(s2, 100, 20, 0);
	char cb[CMSG_SPACE(sizeof(struct in_pktinfo)) + CMSG_SPACE(4)] = {0};
	struct iovec iv = {"sent with", 9};
	struct msghdr m = {.msg_iov = &iv, .msg_iovlen = 1, .msg_control = cb, .msg_controllen = CMSG_SPACE(sizeof(struct in_pktinfo)), .msg_name = &a2, .msg_namelen = l2};
	struct cmsghdr *h = CMSG_FIRSTHDR(&m);
	h->cmsg_level = IPPROTO_IP;
	h->cmsg_type = IP_PKTINFO;
	h->cmsg_len = CMSG_LEN(sizeof(struct in_pktinfo));
	((struct in_pktinfo *)CMSG_DATA(h))->ipi_spec_dst.s_addr = htonl(0x7f000002);
	V(sendmsg(s1, &m, 0));
	receive(s2, 100, 512, 0);
	m.msg_controllen = CMSG_SPACE(4);
	h->cmsg_type = IP_TTL;
	h->cmsg_len = CMSG_LEN(4);
	*(int *)CMSG_DATA(h) = 33;
	V(sendmsg(s1, &m, 0));
	receive(s2, 100, 512, 0);
	h->cmsg_type = 77;
	V(sendmsg(s1, &m, 0));
	h->cmsg_len = 2;
	V(sendmsg(s1, &m, 0));
	int t1 = sock(AF_INET6, &a1, &l1, 0), t2 = sock(AF_INET6, &a2, &l2, 0);
	set(t2, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1);
	set(t2, IPPROTO_IPV6, IPV6_RECVHOPLIMIT, 1);
	V(sendto(t1, "six", 3, 0, (void *)&a2, l2));
	receive(t2, 100, 512, 0);
	SECTION("several at once");
	s1 = sock(AF_INET, &a1, &l1, 0), s2 = sock(AF_INET, &a2, &l2, 0);
	connect(s1, (void *)&a2, l2);
	struct iovec vs[3] = {{"first", 5}, {"second!", 7}, {"3", 1}};
	struct mmsghdr mm[3] = {{{.msg_iov = &vs[0], .msg_iovlen = 1}}, {{.msg_iov = &vs[1], .msg_iovlen = 1}}, {{.msg_iov = &vs[2], .msg_iovlen = 1}}};
	V(sendmmsg(s1, mm, 3, 0));
	printf("%u %u %u\n", mm[0].msg_len, mm[1].msg_len, mm[2].msg_len);
	char rb[4][10];
	struct iovec rv[4];
	struct mmsghdr rm[4] = {0};
	for (int i = 0; i < 4; i++) {
		rv[i] = (struct iovec){rb[i], 6};
		rm[i].msg_hdr.msg_iov = &rv[i];
		rm[i].msg_hdr.msg_iovlen = 1;
	}
	sleep_ms(20);
	V(recvmmsg(s2, rm, 4, MSG_WAITFORONE, 0));
	for (int i = 0; i < 3; i++)
		printf("%u %x %.*s\n", rm[i].msg_len, rm[i].msg_hdr.msg_flags, rm[i].msg_len, rb[i]);
	V(recvmmsg(s2, rm, 4, MSG_DONTWAIT, 0));
	V(sendmmsg(s1, mm, 0, 0));
	struct timespec ts = {0, 1000};
	V(sendmmsg(s1, mm, 1, 0));
	V(recvmmsg(s2, rm, 1, 0, &ts));
	SECTION("multicast, broadcast, options");
	struct sockaddr_in g = {AF_INET, 0, {htonl(INADDR_ANY)}};
	int r1 = socket(AF_INET, SOCK_DGRAM, 0);
	set(r1, SOL_SOCKET, SO_REUSEADDR, 1);
	V(bind(r1, (void *)&g, sizeof g));
	socklen_t len = sizeof g;
	getsockname(r1, (void *)&g, &len);
	struct ip_mreq mr = {{htonl(0xe0010203)}, {htonl(INADDR_LOOPBACK)}};
	V(setsockopt(r1, IPPROTO_IP, IP_ADD_MEMBERSHIP, &mr, sizeof mr));
	struct in_addr lo = {htonl(INADDR_LOOPBACK)};
	V(setsockopt(s1, IPPROTO_IP, IP_MULTICAST_IF, &lo, sizeof lo));
	int s4 = socket(AF_INET, SOCK_DGRAM, 0);
	V(setsockopt(s4, IPPROTO_IP, IP_MULTICAST_IF, &lo, sizeof lo));
	set(s4, IPPROTO_IP, IP_MULTICAST_LOOP, 1);
	set(s4, IPPROTO_IP, IP_MULTICAST_TTL, 0);
	g.sin_addr.s_addr = htonl(0xe0010203);
	V(sendto(s4, "group", 5, 0, (void *)&g, sizeof g));
	struct pollfd p = {r1, POLLIN};
	V(poll(&p, 1, 1000));
	V(recv(r1, b, 10, MSG_DONTWAIT));
	V(setsockopt(r1, IPPROTO_IP, IP_DROP_MEMBERSHIP, &mr, sizeof mr));
	// From one sender only, by both interfaces.
	struct ip_mreq_source ms = {{htonl(0xe0010203)}, {htonl(INADDR_LOOPBACK)}, {htonl(INADDR_LOOPBACK)}};
	V(setsockopt(r1, IPPROTO_IP, IP_ADD_SOURCE_MEMBERSHIP, &ms, sizeof ms));
	V(sendto(s4, "source", 6, 0, (void *)&g, sizeof g));
	V(poll(&p, 1, 1000));
	V(recv(r1, b, 10, MSG_DONTWAIT));
	V(setsockopt(r1, IPPROTO_IP, IP_DROP_SOURCE_MEMBERSHIP, &ms, sizeof ms));
	struct group_source_req gs = {1};
	memcpy(&gs.gsr_group, &g, sizeof g);
	((struct sockaddr_in *)&gs.gsr_source)->sin_family = AF_INET;
	((struct sockaddr_in *)&gs.gsr_source)->sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
	V(setsockopt(r1, IPPROTO_IP, MCAST_JOIN_SOURCE_GROUP, &gs, sizeof gs - 1));
	V(setsockopt(r1, IPPROTO_IP, MCAST_JOIN_SOURCE_GROUP, &gs, sizeof gs));
	V(sendto(s4, "another", 7, 0, (void *)&g, sizeof g));
	V(poll(&p, 1, 50));
	V(setsockopt(r1, IPPROTO_IP, MCAST_LEAVE_SOURCE_GROUP, &gs, sizeof gs));
	struct group_req gr = {1};
	memcpy(&gr.gr_group, &g, sizeof g);
	V(setsockopt(r1, IPPROTO_IP, MCAST_JOIN_GROUP, &gr, sizeof gr));
	V(setsockopt(r1, IPPROTO_IP, MCAST_BLOCK_SOURCE, &gs, sizeof gs));
	V(setsockopt(r1, IPPROTO_IP, MCAST_UNBLOCK_SOURCE, &gs, sizeof gs));
	V(setsockopt(r1, IPPROTO_IP, IP_BLOCK_SOURCE, &ms, sizeof ms));
	V(setsockopt(r1, IPPROTO_IP, IP_UNBLOCK_SOURCE, &ms, sizeof ms));
	V(setsockopt(r1, IPPROTO_IP, MCAST_LEAVE_GROUP, &gr, sizeof gr));
	int six = socket(AF_INET6, SOCK_DGRAM, 0);
	struct sockaddr_in6 g6 = {AF_INET6, 0, 0, {{{0xff, 0x02, [15] = 0x42}}}}, from6 = {AF_INET6, 0, 0, IN6ADDR_LOOPBACK_INIT};
	memcpy(&gr.gr_group, &g6, sizeof g6);
	memcpy(&gs.gsr_group, &g6, sizeof g6);
	memcpy(&gs.gsr_source, &from6, sizeof from6);
	V(setsockopt(six, IPPROTO_IPV6, MCAST_JOIN_SOURCE_GROUP, &gs, sizeof gs));
	V(setsockopt(six, IPPROTO_IPV6, MCAST_LEAVE_SOURCE_GROUP, &gs, sizeof gs));
	V(setsockopt(six, IPPROTO_IPV6, MCAST_JOIN_GROUP, &gr, sizeof gr));
	V(setsockopt(six, IPPROTO_IPV6, MCAST_BLOCK_SOURCE, &gs, sizeof gs));
	V(setsockopt(six, IPPROTO_IPV6, MCAST_UNBLOCK_SOURCE, &gs, sizeof gs));
	V(setsockopt(six, IPPROTO_IPV6, MCAST_LEAVE_GROUP, &gr, sizeof gr));
	set(six, IPPROTO_IPV6, IPV6_MULTICAST_ALL, 0);
	set(six, IPPROTO_IPV6, IPV6_DONTFRAG, 1);
	set(six, IPPROTO_IPV6, IPV6_MTU, 1280);
	set(six, IPPROTO_IPV6, IPV6_MTU, 1000);
	set(six, IPPROTO_IPV6, IPV6_RECVPATHMTU, 1);
	set(six, IPPROTO_IPV6, IPV6_FREEBIND, 1);
	set(r1, IPPROTO_IP, IP_MULTICAST_ALL, 0);
	set(r1, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
	set(r1, IPPROTO_IP, IP_RECVORIGDSTADDR, 1);
	set(r1, IPPROTO_IP, IP_MINTTL, 1);
	struct sockaddr_in bc = {AF_INET, htons(9), {htonl(INADDR_BROADCAST)}};
	V(sendto(s4, "x", 1, 0, (void *)&bc, sizeof bc));
	set(s4, SOL_SOCKET, SO_BROADCAST, 1);
	set(s4, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
	set(s4, IPPROTO_IP, 9999, 1);
	return 0;
}
