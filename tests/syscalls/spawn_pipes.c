// Programs joined by pipes, and what they find in the descriptors they get.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static char *self;

static pid_t start(const char *what, int in, int out)
{
	char *argv[] = { self, (char *)what, NULL };
	posix_spawn_file_actions_t a;
	posix_spawn_file_actions_init(&a);
	if (in >= 0)
		posix_spawn_file_actions_adddup2(&a, in, 0);
	if (out >= 0)
		posix_spawn_file_actions_adddup2(&a, out, 1);
	pid_t pid;
	int e = posix_spawn(&pid, self, &a, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&a);
	if (e) {
		printf("spawn: %s\n", strerror(e));
		exit(1);
	}
	return pid;
}

static void finish(const pid_t *pids)
{
	int status[3];
	for (int i = 0; i < 3; i++)
		waitpid(pids[i], &status[i], 0);
	printf("%#x %#x %#x\n", status[0], status[1], status[2]);
}

static int child(const char *what)
{
	static char block[5000];
	unsigned long sum = 0, bytes = 0;
	ssize_t n;
	if (!strcmp(what, "produce")) {
		for (int i = 0; i < 200; i++) {
			memset(block, 'a' + i % 26, sizeof block);
			for (size_t at = 0; at < sizeof block; at += n)
				if ((n = write(1, block + at, sizeof block - at)) <= 0)
					return 1;
		}
		return 0;
	}
	if (!strcmp(what, "upper")) {
		while ((n = read(0, block, sizeof block)) > 0) {
			for (int i = 0; i < n; i++)
				block[i] -= 32;
			if (write(1, block, n) != n)
				return 1;
		}
		return n < 0;
	}
	if (!strcmp(what, "sum")) {
		while ((n = read(0, block, sizeof block)) > 0)
			for (int i = 0; i < n; i++)
				sum = sum * 31 + block[i], bytes++;
		printf("%lu bytes, sum %lx\n", bytes, sum);
		return 0;
	}
	if (!strcmp(what, "forever")) {
		for (;;)
			if (write(1, block, sizeof block) < 0)
				return errno == EPIPE ? 20 : 21;
	}
	if (!strcmp(what, "offset")) {
		n = read(0, block, 4);
		return n == 4 && block[0] == 'e' ? 0 : 1;
	}
	if (!strcmp(what, "fl"))
		return fcntl(0, F_SETFL, O_NONBLOCK);
	return 1;
}

int main(int argc, char **argv)
{
	if (argc > 1)
		return child(argv[1]);
	self = argv[0];
	setvbuf(stdout, NULL, _IONBF, 0);
	int a[2], b[2], status;
	if (pipe2(a, O_CLOEXEC) || pipe2(b, O_CLOEXEC))
		return 1;
	pid_t p[3] = { start("produce", -1, a[1]), start("upper", a[0], b[1]), start("sum", b[0], -1) };
	close(a[0]), close(a[1]), close(b[0]), close(b[1]);
	finish(p);

	// The same through socket pairs.
	socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, a);
	socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, b);
	pid_t q[3] = { start("produce", -1, a[1]), start("upper", a[0], b[1]), start("sum", b[0], -1) };
	close(a[0]), close(a[1]), close(b[0]), close(b[1]);
	finish(q);

	// The reader goes away.
	if (pipe2(a, O_CLOEXEC))
		return 1;
	pid_t pid = start("forever", -1, a[1]);
	close(a[1]);
	char c;
	printf("read: %zd\n", read(a[0], &c, 1));
	close(a[0]);
	waitpid(pid, &status, 0);
	printf("SIGPIPE: %#x\n", status);
	signal(SIGPIPE, SIG_IGN);
	if (pipe2(a, O_CLOEXEC))
		return 1;
	pid = start("forever", -1, a[1]);
	close(a[1]);
	close(a[0]);
	waitpid(pid, &status, 0);
	printf("EPIPE: %#x\n", status);

	// All writers gone is the end, also when the last was another process.
	if (pipe2(a, O_CLOEXEC))
		return 1;
	pid = start("produce", -1, a[1]);
	close(a[1]);
	char block[4096];
	long total = 0;
	ssize_t n;
	while ((n = read(a[0], block, sizeof block)) > 0)
		total += n;
	printf("end after %ld: %zd\n", total, n);
	waitpid(pid, &status, 0);

	// Offset and status flags of an open file are shared; the descriptor is not.
	int fd = open("f", O_RDWR | O_CREAT, 0644);
	if (write(fd, "abcdefghijkl", 12) != 12)
		return 1;
	lseek(fd, 4, SEEK_SET);
	pid = start("offset", fd, -1);
	waitpid(pid, &status, 0);
	printf("read at the offset: %#x, then %ld\n", status, (long)lseek(fd, 0, SEEK_CUR));
	pid = start("fl", fd, -1);
	waitpid(pid, &status, 0);
	printf("flags: %#x, now %d\n", status, !!(fcntl(fd, F_GETFL) & O_NONBLOCK));
	return 0;
}
