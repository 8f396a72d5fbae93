// options: --cores 2
// timeout: 60
// traced: no (as userfault_calls.c)
// A pager that is another process, as QEMU's and CRIU's are: it gets the descriptor by a socket, and is killed in the middle of faults (XOS-08).
#include "userfault.h"

enum { N = 64 };

static void send_fd(int to, int fd)
{
	char c = 0, control[CMSG_SPACE(sizeof fd)] = {0};
	struct iovec v = {&c, 1};
	struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	struct cmsghdr *m = CMSG_FIRSTHDR(&h);
	*m = (struct cmsghdr){CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS};
	memcpy(CMSG_DATA(m), &fd, sizeof fd);
	sendmsg(to, &h, 0);
}

static int receive_fd(int from)
{
	char c, control[CMSG_SPACE(sizeof(int))];
	struct iovec v = {&c, 1};
	struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	int fd = -1;
	if (recvmsg(from, &h, 0) == 1 && CMSG_FIRSTHDR(&h))
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&h)), sizeof fd);
	return fd;
}

// Serves `most` faults, and then stops with the next one read. For addresses of another process, which it is told.
static void serve(int socket, long most)
{
	static char page[PAGE];
	int fd = receive_fd(socket);
	char *base;
	read(socket, &base, sizeof base);
	for (long served = 0;; served++) {
		struct uffd_msg m;
		if (read(fd, &m, sizeof m) != sizeof m)
			_exit(1);
		char *at = (char *)m.arg.pagefault.address;
		if (served == most) {
			char done = 1;
			write(socket, &done, 1);
			pause();
		}
		if (m.arg.pagefault.flags & UFFD_PAGEFAULT_FLAG_WP) {
			protect(fd, at, 1, 0);
			continue;
		}
		fill(page, (at - base) / (long)PAGE);
		if (copy(fd, at, page, 1, 0) != 1)
			wake(fd, at, 1);
	}
}

static void *all_pages(void *unused)
{
	(void)unused;
	long right = 0;
	for (long n = 0; n < N; n++)
		right += is_filled(area + n * PAGE, n);
	return (void *)right;
}

static void *waits(void *at)
{
	return (void *)(long)*(volatile char *)at;
}
static void *sends(void *at)
{
	int p[2];
	pipe(p);
	long r = write(p[1], at, 100);
	close(p[0]);
	close(p[1]);
	return (void *)r;
}

static int socket_of_pager;
static pid_t begin_pager(long most)
{
	int s[2];
	fflush(stdout);
	socketpair(AF_UNIX, SOCK_STREAM, 0, s);
	pid_t p = fork();
	if (!p) {
		close(s[0]);
		serve(s[1], most);
	}
	close(s[1]);
	socket_of_pager = s[0];
	return p;
}

static int enrolled(int mode)
{
	area = memory(N);
	int fd = opened(0, 0);
	V(enroll(fd, area, N, mode));
	send_fd(socket_of_pager, fd);
	write(socket_of_pager, &area, sizeof area);
	return fd;
}

int main(void)
{
	void *value;
	pthread_t t[3];
	int status;
	SECTION("another process");
	pid_t pager = begin_pager(-1);
	int fd = enrolled(UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP);
	for (int n = 0; n < 3; n++)
		pthread_create(&t[n], 0, all_pages, 0);
	for (int n = 0; n < 3; n++) {
		pthread_join(t[n], &value);
		P(value);
	}
	V(madvise(area, 8 * PAGE, MADV_DONTNEED));
	P(is_filled(area + 7 * PAGE, 7));
	V(protect(fd, area + 6 * PAGE, 4, UFFDIO_WRITEPROTECT_MODE_WP));
	for (long n = 6; n < 10; n++)
		area[n * PAGE] = 9;
	P(area[7 * PAGE] + area[8 * PAGE]);
	kill(pager, SIGKILL);
	waitpid(pager, &status, 0);
	P(status);
	close(fd);
	close(socket_of_pager);
	munmap(area, N * PAGE);
	SECTION("killed in the middle");
	for (int round = 0; round < 5; round++) {
		pager = begin_pager(5);
		fd = enrolled(UFFDIO_REGISTER_MODE_MISSING);
		close(fd);
		for (long n = 0; n < 5; n++)
			if (!is_filled(area + n * PAGE, n))
				puts("wrong");
		pthread_create(&t[0], 0, waits, area + 40 * PAGE);
		pthread_create(&t[1], 0, sends, area + 50 * PAGE);
		pthread_create(&t[2], 0, waits, area + 40 * PAGE + 1);
		char c;
		P(read(socket_of_pager, &c, 1));
		if (round % 2)
			sleep_ms(20);
		kill(pager, SIGKILL);
		waitpid(pager, &status, 0);
		P(status);
		// What was waited for is as if nobody had ever been asked.
		for (int n = 0; n < 3; n++) {
			pthread_join(t[n], &value);
			P(value);
		}
		P(is_filled(area + 4 * PAGE, 4) && !area[60 * PAGE]);
		close(socket_of_pager);
		munmap(area, N * PAGE);
	}
	SECTION("another program");
	{
		int s[2];
		socketpair(AF_UNIX, SOCK_STREAM, 0, s);
		pid_t child = fork();
		if (!child) {
			area = memory(N);
			fd = opened(0, 0);
			enroll(fd, area, N, UFFDIO_REGISTER_MODE_MISSING);
			send_fd(s[1], fd);
			write(s[1], &area, sizeof area);
			execl("/bin/sleep", "sleep", "10", (char *)0);
			_exit(1);
		}
		fd = receive_fd(s[0]);
		read(s[0], &area, sizeof area);
		static char page[PAGE];
		// Until it runs.
		for (int n = 0; n < N && zero(fd, area, 1) != -1; n++, area += PAGE)
			sleep_ms(100);
		V(copy(fd, area, page, 1, 0));
		V(enroll(fd, area, 1, UFFDIO_REGISTER_MODE_MISSING));
		kill(child, SIGKILL);
		waitpid(child, &status, 0);
		P(status);
		close(fd);
		close(s[0]);
		close(s[1]);
	}
	SECTION("whoever faults is killed");
	for (int round = 0; round < 3; round++) {
		int s[2];
		socketpair(AF_UNIX, SOCK_STREAM, 0, s);
		pid_t child = fork();
		if (!child) {
			socket_of_pager = s[1];
			area = memory(N);
			fd = opened(0, 0);
			enroll(fd, area, N, UFFDIO_REGISTER_MODE_MISSING);
			send_fd(s[1], fd);
			round == 1 ? sends(area) : waits(area);
			_exit(1);
		}
		fd = receive_fd(s[0]);
		struct uffd_msg m;
		P(read(fd, &m, sizeof m));
		kill(child, SIGKILL);
		waitpid(child, &status, 0);
		P(status);
		static char page[PAGE];
		V(copy(fd, (char *)m.arg.pagefault.address, page, 1, 0));
		V(zero(fd, (char *)m.arg.pagefault.address, 1));
		V(enroll(fd, (char *)m.arg.pagefault.address, 1, UFFDIO_REGISTER_MODE_MISSING));
		V(protect(fd, (char *)m.arg.pagefault.address, 1, 1));
		close(fd);
		close(s[0]);
		close(s[1]);
	}
}
