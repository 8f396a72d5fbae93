// Options that servers of HTTP/3 and of long transfers set: segments of datagrams, congestion control, pacing.
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
	n = 1 << 20;
	V(setsockopt(tcp, SOL_SOCKET, SO_MAX_PACING_RATE, &n, sizeof n));
	on = 1;
	V(setsockopt(receiver, SOL_SOCKET, SO_RXQ_OVFL, &on, sizeof on));
	V(setsockopt(tcp, IPPROTO_IP, IP_FREEBIND, &on, sizeof on));
	return 0;
}
