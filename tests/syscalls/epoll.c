// epoll(7).
#include "case.h"
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

static struct epoll_event ev[10];
static void show(int ep, int timeout)
{
	int n = epoll_wait(ep, ev, 10, timeout);
	printf("wait: %d", n);
	if (n < 0)
		printf(" %s", err_(errno));
	unsigned sum = 0;
	uint64_t data = 0;
	for (int i = 0; i < n; i++)
		sum |= ev[i].events, data += ev[i].data.u64;
	printf(" events %x data %llu\n", sum, (unsigned long long)data);
}
static int add(int ep, int op, int fd, unsigned events)
{
	struct epoll_event e = {events, {.u64 = 100 + fd}};
	return epoll_ctl(ep, op, fd, &e);
}
static int late_fd;
static void *late(void *p)
{
	sleep_ms(40);
	write(late_fd, &(uint64_t){1}, 8);
	return 0;
}
static int woken;
static void *waiter(void *p)
{
	struct epoll_event e;
	if (epoll_wait((int)(long)p, &e, 1, 2000) == 1)
		__atomic_fetch_add(&woken, 1, __ATOMIC_SEQ_CST);
	return 0;
}

int main(void)
{
	int p[2], ep, n;
	char b[10000];
	SECTION("level");
	V((ep = epoll_create1(EPOLL_CLOEXEC)));
	V(epoll_create1(1));
	V(epoll_create(0));
	pipe2(p, O_NONBLOCK);
	V(add(ep, EPOLL_CTL_ADD, p[0], EPOLLIN));
	V(add(ep, EPOLL_CTL_ADD, p[0], EPOLLIN));
	V(add(ep, EPOLL_CTL_ADD, p[1], EPOLLOUT));
	show(ep, 0);
	write(p[1], "x", 1);
	show(ep, 0);
	show(ep, 0);
	V(add(ep, EPOLL_CTL_MOD, p[1], 0));
	show(ep, 0);
	V(add(ep, EPOLL_CTL_DEL, p[1], 0));
	V(add(ep, EPOLL_CTL_DEL, p[1], 0));
	V(add(ep, EPOLL_CTL_MOD, p[1], 0));
	V(add(ep, EPOLL_CTL_ADD, ep, EPOLLIN));
	V(add(ep, EPOLL_CTL_ADD, 999, EPOLLIN));
	V(add(999, EPOLL_CTL_ADD, p[0], EPOLLIN));
	V(add(p[0], EPOLL_CTL_ADD, p[1], EPOLLIN));
	V(add(ep, 99, p[0], EPOLLIN));
	int file = open("f", O_CREAT | O_RDWR, 0600);
	V(add(ep, EPOLL_CTL_ADD, file, EPOLLIN));
	V(epoll_ctl(ep, EPOLL_CTL_ADD, p[1], (void *)8));
	V(epoll_wait(ep, ev, 0, 0));
	V(epoll_wait(ep, ev, -1, 0));
	V(epoll_wait(ep, (void *)8, 1, 0));
	V(epoll_wait(p[0], ev, 1, 0));
	SECTION("edge");
	V(add(ep, EPOLL_CTL_MOD, p[0], EPOLLIN | EPOLLET));
	show(ep, 0);
	show(ep, 0);
	write(p[1], "y", 1);
	show(ep, 0);
	read(p[0], b, 1);
	show(ep, 0);
	V(add(ep, EPOLL_CTL_MOD, p[0], EPOLLIN | EPOLLET));
	show(ep, 0);
	SECTION("once");
	V(add(ep, EPOLL_CTL_MOD, p[0], EPOLLIN | EPOLLONESHOT));
	show(ep, 0);
	show(ep, 0);
	write(p[1], "z", 1);
	show(ep, 0);
	V(add(ep, EPOLL_CTL_MOD, p[0], EPOLLIN | EPOLLONESHOT));
	show(ep, 0);
	V(add(ep, EPOLL_CTL_MOD, p[0], EPOLLIN));
	while (read(p[0], b, 10) > 0)
		;
	show(ep, 0);
	close(p[1]);
	show(ep, 0);
	close(p[0]);
	show(ep, 0);
	SECTION("waiting");
	int e1 = eventfd(0, EFD_NONBLOCK);
	V(add(ep, EPOLL_CTL_ADD, e1, EPOLLIN | EPOLLOUT));
	show(ep, 0);
	V(add(ep, EPOLL_CTL_MOD, e1, EPOLLIN));
	long long t0 = now_ms(CLOCK_MONOTONIC);
	show(ep, 50);
	P(now_ms(CLOCK_MONOTONIC) - t0 >= 49);
	late_fd = e1;
	pthread_t t;
	pthread_create(&t, 0, late, 0);
	show(ep, 2000);
	pthread_join(t, 0);
	uint64_t v;
	read(e1, &v, 8);
	sigset_t m;
	sigemptyset(&m);
	struct timespec ts = {0, 30000000}, zero = {0, 0}, bad = {0, 1000000000};
	V(epoll_pwait(ep, ev, 10, 10, &m));
	V(epoll_pwait2(ep, ev, 10, &ts, &m));
	V(epoll_pwait2(ep, ev, 10, &zero, 0));
	V(epoll_pwait2(ep, ev, 10, &bad, 0));
	SECTION("nested");
	int outer = epoll_create1(0);
	V(add(outer, EPOLL_CTL_ADD, ep, EPOLLIN));
	show(outer, 0);
	write(e1, &(uint64_t){1}, 8);
	show(outer, 0);
	V(add(ep, EPOLL_CTL_ADD, outer, EPOLLIN));
	struct pollfd pf = {outer, POLLIN};
	V(poll(&pf, 1, 0));
	read(e1, &v, 8);
	show(outer, 0);
	pthread_create(&t, 0, late, 0);
	show(outer, 2000);
	pthread_join(t, 0);
	int chain[8];
	for (int k = 0; k < 8; k++) {
		chain[k] = epoll_create1(0);
		if (k > 0)
			V(add(chain[k], EPOLL_CTL_ADD, chain[k - 1], EPOLLIN));
	}
	for (int k = 0; k < 8; k++)
		close(chain[k]);
	SECTION("duplicates and closing");
	int d = dup(e1);
	V(add(ep, EPOLL_CTL_ADD, d, EPOLLIN));
	n = epoll_wait(ep, ev, 10, 0);
	P(n);
	close(e1);
	n = epoll_wait(ep, ev, 10, 0);
	P(n);
	close(d);
	n = epoll_wait(ep, ev, 10, 0);
	P(n);
	SECTION("sockets");
	int s[2];
	socketpair(AF_UNIX, SOCK_STREAM, 0, s);
	V(add(ep, EPOLL_CTL_ADD, s[0], EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET));
	show(ep, 0);
	show(ep, 0);
	write(s[1], "x", 1);
	show(ep, 0);
	shutdown(s[1], SHUT_WR);
	show(ep, 0);
	close(s[1]);
	show(ep, 0);
	SECTION("exclusive");
	int e2 = eventfd(0, 0), ex[3];
	pthread_t w[3];
	for (int i = 0; i < 3; i++) {
		ex[i] = epoll_create1(0);
		V(add(ex[i], EPOLL_CTL_ADD, e2, EPOLLIN | EPOLLEXCLUSIVE));
	}
	V(add(ex[0], EPOLL_CTL_MOD, e2, EPOLLIN));
	V(add(ex[0], EPOLL_CTL_MOD, e2, EPOLLIN | EPOLLEXCLUSIVE));
	V(add(outer, EPOLL_CTL_ADD, e2, EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT));
	for (int i = 0; i < 3; i++)
		pthread_create(&w[i], 0, waiter, (void *)(long)ex[i]);
	sleep_ms(50);
	write(e2, &(uint64_t){1}, 8);
	for (int i = 0; i < 3; i++)
		pthread_join(w[i], 0);
	P(woken >= 1);
	SECTION("many, in turn");
	int many = epoll_create1(0), seen[20] = {0};
	for (int i = 0; i < 20; i++) {
		int f = eventfd(1, 0);
		struct epoll_event e = {EPOLLIN, {.u32 = i}};
		epoll_ctl(many, EPOLL_CTL_ADD, f, &e);
	}
	for (int i = 0; i < 10; i++) {
		n = epoll_wait(many, ev, 4, 0);
		for (int k = 0; k < n; k++)
			seen[ev[k].data.u32]++;
	}
	for (int i = 0; i < 20; i++)
		printf("%d ", seen[i]);
	puts("");
	return 0;
}
