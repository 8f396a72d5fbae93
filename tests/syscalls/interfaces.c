// nucleus: no (the cell has a network stack of its own there, which nobody can ask for its interfaces yet)
// What there is of a network: getifaddrs(3), netlink(7) by hand, the ioctls of netdevice(7), and that nothing of it can be changed.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define V(x) do { errno = 0; long v_ = (x); printf("%s: %ld %s\n", #x, v_, v_ < 0 ? strerrorname_np(errno) : ""); } while (0)

static void addresses(void)
{
	struct ifaddrs *all = NULL;
	V(getifaddrs(&all));
	int inet = 0, lo = 0;
	for (struct ifaddrs *a = all; a; a = a->ifa_next) {
		int family = a->ifa_addr ? a->ifa_addr->sa_family : -1;
		inet += family == AF_INET;
		if (strcmp(a->ifa_name, "lo") || family != AF_INET)
			continue;
		lo++;
		char at[64] = "", mask[64] = "";
		inet_ntop(AF_INET, &((struct sockaddr_in *)a->ifa_addr)->sin_addr, at, sizeof at);
		inet_ntop(AF_INET, &((struct sockaddr_in *)a->ifa_netmask)->sin_addr, mask, sizeof mask);
		printf("%s %s %s up %d loopback %d\n", a->ifa_name, at, mask, !!(a->ifa_flags & IFF_UP), !!(a->ifa_flags & IFF_LOOPBACK));
	}
	printf("%d addresses, %d of lo\n", inet, lo);
	freeifaddrs(all);
	struct if_nameindex *names = if_nameindex();
	int count = 0;
	for (struct if_nameindex *n = names; n && n->if_index; n++)
		count++;
	printf("%d interfaces\n", count);
	V(if_nametoindex("lo"));
	V(if_nametoindex("nonesuch") == 0 ? -1 : 1);
}

static struct {
	struct nlmsghdr h;
	union {
		struct ifinfomsg link;
		struct rtgenmsg any;
	};
} q;

static int question(int type, int flags)
{
	memset(&q, 0, sizeof q);
	q.h = (struct nlmsghdr){ .nlmsg_len = sizeof q, .nlmsg_type = type, .nlmsg_flags = flags, .nlmsg_seq = 77 };
	q.any.rtgen_family = AF_UNSPEC;
	return sizeof q;
}

// Says what came: kinds in order, without repetition, and whether all is ours.
static void answers(int s, unsigned port)
{
	static char buffer[1 << 16];
	int last = -1, over = 0;
	while (!over) {
		struct sockaddr_nl from;
		socklen_t len = sizeof from;
		long n = recvfrom(s, buffer, sizeof buffer, 0, (struct sockaddr *)&from, &len);
		if (n < 0) {
			printf("%s\n", strerrorname_np(errno));
			return;
		}
		if (from.nl_family != AF_NETLINK || from.nl_pid || len != sizeof from)
			printf("from elsewhere\n");
		over = 1;
		for (struct nlmsghdr *h = (void *)buffer; NLMSG_OK(h, n); h = NLMSG_NEXT(h, n)) {
			if (h->nlmsg_seq != 77 || h->nlmsg_pid != port)
				printf("for somebody else: %u %u\n", h->nlmsg_seq, h->nlmsg_pid);
			if (h->nlmsg_type == NLMSG_ERROR) {
				struct nlmsgerr *e = NLMSG_DATA(h);
				printf("error %d of %d\n", e->error, e->msg.nlmsg_type);
			} else if (h->nlmsg_type != last) {
				printf("type %d\n", h->nlmsg_type);
			}
			last = h->nlmsg_type;
			over = !(h->nlmsg_flags & NLM_F_MULTI) || h->nlmsg_type == NLMSG_DONE;
		}
	}
}

static void by_hand(void)
{
	V(socket(AF_NETLINK, SOCK_STREAM, NETLINK_ROUTE));
	int s = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
	struct sockaddr_nl at = { .nl_family = AF_NETLINK }, me;
	// Options of every socket can be set, though nothing follows from them.
	int one = 1, told = -1;
	socklen_t length = sizeof told;
	V(setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one));
	V(getsockopt(s, SOL_SOCKET, SO_REUSEADDR, &told, &length));
	printf("reuse %d\n", told);
	V(setsockopt(s, SOL_SOCKET, SO_KEEPALIVE, &one, 3));
	socklen_t len = sizeof me;
	V(s < 0);
	V(bind(s, (struct sockaddr *)&at, sizeof at));
	V(getsockname(s, (struct sockaddr *)&me, &len));
	printf("%d %d %d\n", me.nl_family, me.nl_pid != 0, (int)len);
	struct pollfd p = { s, POLLIN | POLLOUT };
	V(poll(&p, 1, 0));
	printf("%x\n", p.revents);
	V(recv(s, &q, sizeof q, MSG_DONTWAIT));
	V(send(s, &q, question(RTM_GETLINK, NLM_F_REQUEST | NLM_F_DUMP), 0));
	V(poll(&p, 1, 0));
	printf("%x\n", p.revents);
	V(recv(s, &q, sizeof q, MSG_PEEK) == sizeof q);
	V(recv(s, &q, 16, MSG_PEEK | MSG_TRUNC) > 16);
	answers(s, me.nl_pid);
	V(send(s, &q, question(RTM_GETADDR, NLM_F_REQUEST | NLM_F_DUMP), 0));
	answers(s, me.nl_pid);
	V(sendto(s, &q, question(RTM_GETROUTE, NLM_F_REQUEST | NLM_F_DUMP), 0, (struct sockaddr *)&at, sizeof at));
	answers(s, me.nl_pid);
	int n = question(RTM_GETLINK, NLM_F_REQUEST);
	q.link.ifi_index = 1;
	V(send(s, &q, n, 0));
	answers(s, me.nl_pid);
	n = question(RTM_GETLINK, NLM_F_REQUEST);
	q.link.ifi_index = 123456;
	V(send(s, &q, n, 0));
	answers(s, me.nl_pid);
	V(close(s));
	int t = socket(AF_NETLINK, SOCK_DGRAM, NETLINK_ROUTE);
	at.nl_pid = 0;
	V(connect(t, (struct sockaddr *)&at, sizeof at));
	at.nl_family = AF_INET;
	V(bind(t, (struct sockaddr *)&at, sizeof at));
	V(bind(t, (struct sockaddr *)&at, 4));
	int size = 0;
	len = sizeof size;
	V(getsockopt(t, SOL_SOCKET, SO_TYPE, &size, &len));
	printf("%d\n", size);
	V(getsockopt(t, SOL_SOCKET, SO_DOMAIN, &size, &len));
	printf("%d\n", size);
	V(listen(t, 1));
	V(accept(t, NULL, NULL));
	V(shutdown(t, SHUT_RDWR));
	V(fcntl(t, F_SETFL, O_NONBLOCK));
	V(recv(t, &q, sizeof q, 0));
	V(close(t));
}

// As libudev begins; what devices come and go is not the case's to say.
static void devices(void)
{
	V(socket(AF_NETLINK, SOCK_STREAM, NETLINK_KOBJECT_UEVENT));
	V(socket(AF_NETLINK, SOCK_STREAM, NETLINK_SOCK_DIAG));
	V(close(socket(AF_NETLINK, SOCK_DGRAM, NETLINK_SOCK_DIAG)));
	int route = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
	int s = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_KOBJECT_UEVENT);
	struct sockaddr_nl at = { .nl_family = AF_NETLINK, .nl_groups = 2 }, me, other;
	socklen_t len = sizeof me;
	int on = 1;
	V(s < 0);
	at.nl_groups = 0;
	V(bind(route, (struct sockaddr *)&at, sizeof at));
	at.nl_groups = 2;
	V(setsockopt(s, SOL_SOCKET, SO_PASSCRED, &on, sizeof on));
	V(bind(s, (struct sockaddr *)&at, sizeof at));
	V(getsockname(s, (struct sockaddr *)&me, &len));
	V(getsockname(route, (struct sockaddr *)&other, &len));
	// Each protocol has numbers of its own.
	printf("%d %d %u %d\n", me.nl_family, me.nl_pid == other.nl_pid, me.nl_groups, (int)len);
	struct pollfd p = { s, POLLIN | POLLOUT };
	V(poll(&p, 1, 0));
	printf("%x\n", p.revents);
	V(recv(s, &q, sizeof q, 0));
	V(close(s));
	V(close(route));
}

static void commands(int domain)
{
	printf("domain %d\n", domain);
	int s = socket(domain, SOCK_DGRAM, 0);
	struct ifreq r = { .ifr_name = "lo" };
	V(ioctl(s, SIOCGIFADDR, &r));
	printf("%s\n", inet_ntoa(((struct sockaddr_in *)&r.ifr_addr)->sin_addr));
	V(ioctl(s, SIOCGIFFLAGS, &r));
	printf("%d\n", !!(r.ifr_flags & IFF_LOOPBACK));
	V(ioctl(s, SIOCGIFMTU, &r));
	printf("%d\n", r.ifr_mtu);
	V(ioctl(s, SIOCGIFINDEX, &r));
	printf("%d\n", r.ifr_ifindex);
	V(ioctl(s, SIOCGIFNAME, &r));
	puts(r.ifr_name);
	V(ioctl(s, SIOCGIFHWADDR, &r));
	printf("%d\n", r.ifr_hwaddr.sa_family);
	// A loopback has no speed.
	struct ethtool_cmd speed = { .cmd = ETHTOOL_GSET };
	r.ifr_data = (void *)&speed;
	V(ioctl(s, SIOCETHTOOL, &r));
	printf("%d\n", r.ifr_data == (void *)&speed);
	strcpy(r.ifr_name, "nonesuch");
	V(ioctl(s, SIOCETHTOOL, &r));
	V(ioctl(s, SIOCETHTOOL, 8));
	V(ioctl(s, SIOCGIFMTU, &r));
	V(ioctl(s, SIOCGIFMTU, 8));
	// Nobody is told of who is the loopback's neighbour.
	struct arpreq neighbour = { .arp_dev = "lo" };
	V(ioctl(s, SIOCGARP, &neighbour));
	neighbour.arp_pa.sa_family = AF_INET;
	V(ioctl(s, SIOCGARP, &neighbour));
	neighbour.arp_flags = ATF_NETMASK;
	V(ioctl(s, SIOCGARP, &neighbour));
	neighbour.arp_flags = 0;
	strcpy(neighbour.arp_dev, "nonesuch");
	V(ioctl(s, SIOCGARP, &neighbour));
	neighbour.arp_dev[0] = 0;
	V(ioctl(s, SIOCGARP, &neighbour));
	if (domain == AF_INET)
		V(ioctl(s, SIOCGARP, 8));
	struct ifconf c = { 0 };
	V(ioctl(s, SIOCGIFCONF, &c));
	int whole = c.ifc_len;
	char buffer[4096];
	c.ifc_buf = buffer;
	c.ifc_len = sizeof buffer;
	V(ioctl(s, SIOCGIFCONF, &c));
	printf("%d %s\n", c.ifc_len == whole, c.ifc_req[0].ifr_name);
	c.ifc_len = sizeof(struct ifreq) + 10;
	V(ioctl(s, SIOCGIFCONF, &c));
	printf("%d\n", c.ifc_len);
	c.ifc_len = 10;
	V(ioctl(s, SIOCGIFCONF, &c));
	printf("%d\n", c.ifc_len);
	close(s);
}

int main(void)
{
	setvbuf(stdout, NULL, _IOFBF, 1 << 16);
	addresses();
	by_hand();
	devices();
	commands(AF_INET);
	commands(AF_UNIX);
	int fd = open("/dev/null", O_RDONLY);
	struct ifreq r = { .ifr_name = "lo" };
	V(ioctl(fd, SIOCGIFMTU, &r));
	return 0;
}
