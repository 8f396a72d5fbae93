// Sockets whose receiver goes from core to core: who watches them follows, and nothing is lost or told twice.
// options: --cores 2
// nucleus: no (its sockets are not watched by cores)
// timeout: 60
#include "case.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>

enum { ROUNDS = 120, EACH = 40 };

static int cpus[2], ends[2], ask[2], bad[6];

static void *sends(void *arg)
{
	char c;
	(void)arg;
	// One byte for each question, and one more each third time.
	for (int n = 0; read(ask[0], &c, 1) == 1; n++)
		if (write(ends[1], "ab", 1 + (n % 3 == 0)) < 1)
			break;
	return 0;
}

static int is_ready(void)
{
	struct pollfd p = {ends[0], POLLIN};
	return poll(&p, 1, 0);
}

static int shared;
static unsigned had;

/* Takes what there is, as does another one on another core; what it finds empty it waits for. */
static void *takes(void *arg)
{
	cpu_set_t here;
	CPU_ZERO(&here);
	CPU_SET(cpus[(long)arg], &here);
	sched_setaffinity(0, sizeof here, &here);
	for (;;) {
		char b[8];
		struct pollfd p = {shared, POLLIN};
		if (recv(shared, b, sizeof b, 0) == 1) {
			if (b[0] == 'e')
				return 0;
			__atomic_add_fetch(&had, 1, __ATOMIC_SEQ_CST);
		} else if (errno != EAGAIN || poll(&p, 1, 10000) != 1) {
			return (void *)1;
		}
	}
}

/* Two receivers of one socket, each of which finds it empty again and again. */
static void two_take(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof a;
	int s = socket(AF_INET, SOCK_DGRAM, 0), lost = 0;
	shared = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
	if (bind(shared, (void *)&a, len) || getsockname(shared, (void *)&a, &len) || connect(s, (void *)&a, len))
		return;
	pthread_t t[2];
	void *bad[2];
	for (long n = 0; n < 2; n++)
		pthread_create(&t[n], 0, takes, (void *)n);
	for (unsigned sent = 0; sent < 20000 && !lost;) {
		for (int n = 0; n < 20; n++, sent++)
			send(s, "x", 1, 0);
		for (int n = 0; __atomic_load_n(&had, __ATOMIC_SEQ_CST) != sent && !lost; n++)
			if (n < 100000)
				sched_yield();
			else
				lost = usleep(1000) || n > 105000;
	}
	// One each: who has taken it takes no more.
	for (int n = 0; n < 2; n++)
		send(s, "e", 1, 0);
	for (int n = 0; n < 2; n++)
		pthread_join(t[n], &bad[n]);
	printf("two took %u, lost %d, hung %d\n", had, lost, (bad[0] != 0) + (bad[1] != 0));
}

int main(void)
{
	cpu_set_t all;
	sched_getaffinity(0, sizeof all, &all);
	for (int n = 0, c = 0; n < 2 && c < CPU_SETSIZE; c++)
		if (CPU_ISSET(c, &all))
			cpus[n++] = c;
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof a;
	int l = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	if (bind(l, (void *)&a, len) || listen(l, 1) || getsockname(l, (void *)&a, &len))
		return 1;
	ends[1] = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(ends[1], (void *)&a, len) || (ends[0] = accept4(l, 0, 0, SOCK_NONBLOCK)) < 0 || pipe(ask))
		return 2;
	setsockopt(ends[1], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	int e = epoll_create1(0), edge = epoll_create1(0);
	struct epoll_event ev = {.events = EPOLLIN}, et = {.events = EPOLLIN | EPOLLET}, got;
	epoll_ctl(e, EPOLL_CTL_ADD, ends[0], &ev);
	epoll_ctl(edge, EPOLL_CTL_ADD, ends[0], &et);
	pthread_t t;
	pthread_create(&t, 0, sends, 0);
	unsigned seed = 7;
	for (int round = 0, n = 0; round < ROUNDS; round++) {
		cpu_set_t here;
		CPU_ZERO(&here);
		CPU_SET(cpus[round % 2], &here);
		sched_setaffinity(0, sizeof here, &here);
		int each = EACH - rand_r(&seed) % 20;
		for (int i = 0; i < each; i++, n++) {
			char b[8];
			int want = 1 + (n % 3 == 0), had = 0;
			bad[0] += is_ready() != 0;
			if (write(ask[1], "?", 1) != 1)
				return 3;
			// Each kind of waiting in turn.
			struct pollfd p = {ends[0], POLLIN};
			int r = n % 2 ? epoll_wait(e, &got, 1, 5000) : poll(&p, 1, 5000);
			bad[1] += r != 1;
			bad[2] += epoll_wait(edge, &got, 1, 5000) != 1;
			while (had < want) {
				ssize_t k = recv(ends[0], b, sizeof b, 0);
				if (k > 0)
					had += k;
				else if (k == 0 || errno != EAGAIN || (poll(&p, 1, 5000) != 1 && ++bad[3]))
					break;
			}
			bad[4] += had != want;
			bad[5] += recv(ends[0], b, sizeof b, 0) != -1 || errno != EAGAIN;
			// Whatever came in two parts.
			while (epoll_wait(edge, &got, 1, 0) == 1)
				;
		}
	}
	close(ask[1]);
	pthread_join(t, 0);
	printf("ready too soon %d, not told %d, no edge %d, hung %d, lost %d, too much %d\n", bad[0], bad[1], bad[2],
	       bad[3], bad[4], bad[5]);
	sched_setaffinity(0, sizeof all, &all);
	two_take();
	return 0;
}
