// Options that servers of HTTP/3 and of long transfers set: segments of datagrams, congestion control, pacing; and those of proxies and of
// who hears groups.
// nucleus: no (its own network stack sends each datagram by itself)
#include "case.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#define UDP_GRO 104
#endif

static char b[4000];

// What a datagram brings along.
static void take(int s)
{
	char control[200];
	struct iovec v = { b, sizeof b };
	struct msghdr m = { 0, 0, &v, 1, control, sizeof control, 0 };
	struct pollfd p = { s, POLLIN, 0 };
	poll(&p, 1, 1000);
	ssize_t n = recvmsg(s, &m, MSG_DONTWAIT);
	printf("recvmsg: %zd, flags %x", n, m.msg_flags);
	if (n < 0)
		printf(" %s", err_(errno));
	for (struct cmsghdr *c = n < 0 ? 0 : CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c))
		printf(", level %d type %d: %d", c->cmsg_level, c->cmsg_type, *(int *)CMSG_DATA(c));
	puts("");
}

static int udp(struct sockaddr_in *at)
{
	int s = socket(AF_INET, SOCK_DGRAM, 0);
	socklen_t len = sizeof *at;
	*at = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	bind(s, (struct sockaddr *)at, len);
	getsockname(s, (struct sockaddr *)at, &len);
	return s;
}

// Sets a number and asks for it.
static void option(int s, int level, int name, const char *text, int value)
{
	socklen_t len = sizeof value;
	int set = setsockopt(s, level, name, &value, sizeof value) ? errno : 0, now = -2;
	int got = getsockopt(s, level, name, &now, &len) ? errno : 0;
	printf("%s: %s, %s %d\n", text, set ? err_(set) : "ok", got ? err_(got) : "ok", now);
}
#define OPTION(s, level, name, value) option(s, level, name, #name, value)

static void proxies(void)
{
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) }, at;
	int s = socket(AF_INET, SOCK_STREAM, 0), six = socket(AF_INET6, SOCK_DGRAM, 0), listener = socket(AF_INET, SOCK_STREAM, 0);
	socklen_t len = sizeof at;
	bind(listener, (struct sockaddr *)&any, sizeof any);
	listen(listener, 1);
	getsockname(listener, (struct sockaddr *)&at, &len);
	OPTION(s, SOL_IP, IP_BIND_ADDRESS_NO_PORT, 1);
	V(bind(s, (struct sockaddr *)&any, sizeof any));
	getsockname(s, (struct sockaddr *)&any, &len);
	P(any.sin_port);
	V(connect(s, (struct sockaddr *)&at, sizeof at));
	getsockname(s, (struct sockaddr *)&any, &len);
	P(any.sin_port != 0);
	OPTION(s, SOL_SOCKET, SO_DONTROUTE, 1);
	OPTION(s, SOL_SOCKET, SO_PRIORITY, 3);
	OPTION(s, SOL_IP, IP_TOS, 0x10);
	OPTION(s, SOL_SOCKET, SO_PRIORITY, 0);
	OPTION(s, SOL_IP, IP_TOS, 0x08);
	int now = 0;
	V(getsockopt(s, SOL_SOCKET, SO_PRIORITY, &now, &len));
	P(now);
	OPTION(s, SOL_IP, IP_MINTTL, 5);
	OPTION(s, SOL_TCP, TCP_WINDOW_CLAMP, 40000);
	OPTION(s, SOL_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1);
	OPTION(six, SOL_IPV6, IPV6_FREEBIND, 1);
	OPTION(six, SOL_IPV6, IPV6_DONTFRAG, 1);
	OPTION(six, SOL_IPV6, IPV6_RECVORIGDSTADDR, 1);
	char name[16] = "";
	int bound = socket(AF_INET, SOCK_DGRAM, 0);
	V(setsockopt(bound, SOL_SOCKET, SO_BINDTODEVICE, "lo", 3));
	len = sizeof name;
	V(getsockopt(bound, SOL_SOCKET, SO_BINDTODEVICE, name, &len));
	printf("%s %u\n", name, len);
	V(setsockopt(bound, SOL_SOCKET, SO_BINDTODEVICE, "none", 5));
}

static void groups(void)
{
	int s = socket(AF_INET, SOCK_DGRAM, 0), six = socket(AF_INET6, SOCK_DGRAM, 0);
	struct in_addr group = { inet_addr("239.1.2.3") }, lo = { htonl(INADDR_LOOPBACK) };
	OPTION(s, SOL_IP, IP_MULTICAST_ALL, 0);
	struct ip_mreq_source source = { group, lo, lo };
	V(setsockopt(s, SOL_IP, IP_ADD_SOURCE_MEMBERSHIP, &source, sizeof source));
	V(setsockopt(s, SOL_IP, IP_DROP_SOURCE_MEMBERSHIP, &source, sizeof source));
	struct ip_mreqn one = { group, lo, 0 };
	V(setsockopt(s, SOL_IP, IP_ADD_MEMBERSHIP, &one, sizeof one));
	V(setsockopt(s, SOL_IP, IP_BLOCK_SOURCE, &source, sizeof source));
	V(setsockopt(s, SOL_IP, IP_UNBLOCK_SOURCE, &source, sizeof source));
	V(setsockopt(s, SOL_IP, IP_DROP_MEMBERSHIP, &one, sizeof one));
	struct group_req any = { .gr_interface = 1 };
	struct group_source_req from = { .gsr_interface = 1 };
	*(struct sockaddr_in *)&any.gr_group = *(struct sockaddr_in *)&from.gsr_group = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr = group };
	*(struct sockaddr_in *)&from.gsr_source = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr = lo };
	V(setsockopt(s, SOL_IP, MCAST_JOIN_GROUP, &any, sizeof any));
	V(setsockopt(s, SOL_IP, MCAST_LEAVE_GROUP, &any, sizeof any));
	V(setsockopt(s, SOL_IP, MCAST_JOIN_SOURCE_GROUP, &from, sizeof from));
	V(setsockopt(s, SOL_IP, MCAST_LEAVE_SOURCE_GROUP, &from, sizeof from));
	V(setsockopt(s, SOL_IP, MCAST_LEAVE_SOURCE_GROUP, &from, sizeof from));
	struct sockaddr_in6 six_group = { .sin6_family = AF_INET6 };
	inet_pton(AF_INET6, "ff01::123", &six_group.sin6_addr);
	*(struct sockaddr_in6 *)&any.gr_group = six_group;
	V(setsockopt(six, SOL_IPV6, MCAST_JOIN_GROUP, &any, sizeof any));
	V(setsockopt(six, SOL_IPV6, MCAST_LEAVE_GROUP, &any, sizeof any));
}

// The address that a datagram was sent to comes with it.
static void original(void)
{
	struct sockaddr_in at, from;
	int receiver = udp(&at), sender = udp(&from), on = 1;
	OPTION(receiver, SOL_IP, IP_RECVORIGDSTADDR, on);
	sendto(sender, "x", 1, 0, (struct sockaddr *)&at, sizeof at);
	char control[200];
	struct iovec v = { b, sizeof b };
	struct msghdr m = { 0, 0, &v, 1, control, sizeof control, 0 };
	struct pollfd p = { receiver, POLLIN, 0 };
	poll(&p, 1, 1000);
	V(recvmsg(receiver, &m, MSG_DONTWAIT));
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	if (c)
		printf("%d %d %d\n", c->cmsg_level, c->cmsg_type, !memcmp(CMSG_DATA(c), &at, 8));
}

int main(void)
{
	struct sockaddr_in at, from;
	int receiver = udp(&at), sender = udp(&from), n = 1000, on = 1;
	socklen_t len = sizeof n;
	connect(sender, (struct sockaddr *)&at, sizeof at);
	SECTION("segments by option");
	V(setsockopt(sender, SOL_UDP, UDP_SEGMENT, &n, sizeof n));
	n = 0;
	V(getsockopt(sender, SOL_UDP, UDP_SEGMENT, &n, &len));
	printf("%d\n", n);
	V(send(sender, b, 2500, 0));
	for (int i = 0; i < 3; i++)
		take(receiver);
	n = 0;
	V(setsockopt(sender, SOL_UDP, UDP_SEGMENT, &n, sizeof n));
	SECTION("segments by message");
	char control[CMSG_SPACE(sizeof(uint16_t))] = { 0 };
	struct iovec v = { b, 1300 };
	struct msghdr m = { 0, 0, &v, 1, control, sizeof control, 0 };
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	c->cmsg_level = SOL_UDP;
	c->cmsg_type = UDP_SEGMENT;
	c->cmsg_len = CMSG_LEN(sizeof(uint16_t));
	*(uint16_t *)CMSG_DATA(c) = 500;
	V(sendmsg(sender, &m, 0));
	for (int i = 0; i < 3; i++)
		take(receiver);
	SECTION("joined when received");
	V(setsockopt(receiver, SOL_UDP, UDP_GRO, &on, sizeof on));
	V(sendmsg(sender, &m, 0));
	take(receiver);
	SECTION("cork");
	V(setsockopt(sender, SOL_UDP, UDP_CORK, &on, sizeof on));
	V(send(sender, b, 10, 0));
	V(send(sender, b, 20, 0));
	on = 0;
	V(setsockopt(sender, SOL_UDP, UDP_CORK, &on, sizeof on));
	take(receiver);
	SECTION("others");
	int tcp = socket(AF_INET, SOCK_STREAM, 0);
	char name[16] = "";
	V(setsockopt(tcp, IPPROTO_TCP, TCP_CONGESTION, "reno", 4));
	len = sizeof name;
	V(getsockopt(tcp, IPPROTO_TCP, TCP_CONGESTION, name, &len));
	puts(name);
	V(setsockopt(tcp, IPPROTO_TCP, TCP_CONGESTION, "nothing", 7));
	/* What needs a privilege: an algorithm that not everybody may have (if there is one), another device. */
	V(setsockopt(tcp, SOL_SOCKET, SO_BINDTODEVICE, "lo", 3));
	if (!fork()) {
		setuid(65534);
		V(setsockopt(tcp, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5));
		V(setsockopt(tcp, SOL_SOCKET, SO_BINDTODEVICE, "", 0));
		_exit(0);
	}
	wait(0);
	n = 1 << 20;
	V(setsockopt(tcp, SOL_SOCKET, SO_MAX_PACING_RATE, &n, sizeof n));
	on = 1;
	V(setsockopt(receiver, SOL_SOCKET, SO_RXQ_OVFL, &on, sizeof on));
	V(setsockopt(tcp, IPPROTO_IP, IP_FREEBIND, &on, sizeof on));
	SECTION("proxies");
	proxies();
	SECTION("groups");
	groups();
	SECTION("where it was sent to");
	original();
	return 0;
}
