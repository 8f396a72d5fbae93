// Socket options that are the protocol's to keep: what is set, what is refused, and what is read back.
// nucleus: no (the options of Linux's own protocols)
#include "case.h"
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#define SO_BUF_LOCK_ 72
#define SO_TXREHASH_ 74
#define IP_LOCAL_PORT_RANGE_ 51

static int domain, type;

static void one(const char *what, int level, int name, int value)
{
	int s = socket(domain, type | SOCK_CLOEXEC, 0), before = -1, after = -1;
	socklen_t n = sizeof before, m = sizeof after;
	int had = getsockopt(s, level, name, &before, &n);
	int had_errno = had ? errno : 0;
	int set = setsockopt(s, level, name, &value, sizeof value);
	int set_errno = set ? errno : 0;
	int has = getsockopt(s, level, name, &after, &m);
	printf("%s %s%s %#x: %d (%s, %u bytes), %s, %d (%s)\n", what, domain == AF_INET6 ? "6" : "4", type == SOCK_STREAM ? "tcp" : "udp",
	       value, before, strerrorname_np(had_errno) ?: "0", n, strerrorname_np(set_errno) ?: "0", after,
	       strerrorname_np(has ? errno : 0) ?: "0");
	close(s);
}

#define EACH(level, name, ...) do { const int values[] = { __VA_ARGS__ }; \
	for (unsigned i = 0; i < sizeof values / sizeof *values; i++) one(#name, level, name, values[i]); } while (0)

int main(void)
{
	for (int d = 0; d < 2; d++)
		for (int t = 0; t < 2; t++) {
			domain = d ? AF_INET6 : AF_INET, type = t ? SOCK_DGRAM : SOCK_STREAM;
			SECTION("any");
			EACH(SOL_SOCKET, SO_NO_CHECK, 0, 1, 2);
			EACH(SOL_SOCKET, SO_BUF_LOCK_, 0, 1, 3, 4);
			EACH(SOL_SOCKET, SO_TXREHASH_, 0, 1, 2, -2);
			SECTION("IP");
			EACH(IPPROTO_IP, IP_UNICAST_IF, 0, htonl(1), htonl(99999));
			EACH(IPPROTO_IP, IP_LOCAL_PORT_RANGE_, 0, 31000 << 16 | 30000, 30000 << 16 | 31000);
			SECTION("IPv6");
			EACH(IPPROTO_IPV6, IPV6_MINHOPCOUNT, 0, 1, 255, 256, -1);
			EACH(IPPROTO_IPV6, IPV6_UNICAST_IF, 0, htonl(1), htonl(99999));
			EACH(IPPROTO_IPV6, IPV6_ADDR_PREFERENCES, 1, 2, 4, 0x100, 3);
			EACH(IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, 0, 1);
			SECTION("TCP and UDP");
			EACH(IPPROTO_TCP, TCP_THIN_DUPACK, 0, 1, 2);
			EACH(IPPROTO_TCP, TCP_SAVE_SYN, 0, 1, 2, 3);
			EACH(IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE, 0, 1, 2);
			EACH(IPPROTO_UDP, UDP_NO_CHECK6_TX, 0, 1);
			EACH(IPPROTO_UDP, UDP_NO_CHECK6_RX, 0, 1);
		}
	SECTION("the packet that a connection began with");
	int one_ = 1, l = V(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof at;
	V(setsockopt(l, IPPROTO_TCP, TCP_SAVE_SYN, &one_, sizeof one_));
	V(bind(l, (void *)&at, sizeof at));
	V(listen(l, 4));
	V(getsockname(l, (void *)&at, &len));
	int c = V(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
	V(connect(c, (void *)&at, sizeof at));
	int a = V(accept4(l, NULL, NULL, SOCK_CLOEXEC));
	unsigned char packet[200];
	len = sizeof packet;
	OK(getsockopt(a, IPPROTO_TCP, TCP_SAVED_SYN, packet, &len));
	printf("%d, version %d, protocol %d\n", len >= 40, packet[0] >> 4, packet[9]);
	len = sizeof packet;
	OK(getsockopt(a, IPPROTO_TCP, TCP_SAVED_SYN, packet, &len));
	printf("%u bytes\n", len);
	return 0;
}
