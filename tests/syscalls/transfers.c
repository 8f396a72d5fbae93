// What a process, and each of its threads, has read and written (/proc/PID/io), with children that were waited for.
#define _GNU_SOURCE
#include "case.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

struct io {
	long rchar, wchar, syscr, syscw, read_bytes, write_bytes, cancelled;
	// How long the text was: it counts the next time.
	long len;
};

static struct io look(const char *path)
{
	struct io io = { 0 };
	char text[512] = "";
	int fd = open(path, O_RDONLY);
	io.len = read(fd, text, sizeof text - 1);
	close(fd);
	int n = sscanf(text,
		       "rchar: %ld\nwchar: %ld\nsyscr: %ld\nsyscw: %ld\nread_bytes: %ld\nwrite_bytes: %ld\ncancelled_write_bytes: %ld\n",
		       &io.rchar, &io.wchar, &io.syscr, &io.syscw, &io.read_bytes, &io.write_bytes, &io.cancelled);
	if (n != 7)
		printf("%s: %d numbers in %s\n", path, n, text);
	return io;
}

static void say(const char *what, const char *path, struct io *before)
{
	struct io now = look(path);
	// The last look was one read; what is printed isn't counted.
	printf("%s: %ld bytes in %ld reads, %ld in %ld writes\n", what, now.rchar - before->rchar - before->len,
	       now.syscr - before->syscr - 1, now.wchar - before->wchar, now.syscw - before->syscw);
	fflush(stdout);
	*before = look(path);
}

static int fds[2], file;
static char buf[8192];

static void *thread(void *unused)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/self/task/%ld/io", syscall(SYS_gettid));
	struct io io = look(path);
	write(fds[1], buf, 77);
	read(fds[0], buf, 7);
	read(fds[0], buf, 700);
	say("a thread", path, &io);
	return unused;
}

int main(void)
{
	const char *own = "/proc/self/io";
	pipe(fds);
	file = open("file", O_RDWR | O_CREAT | O_TRUNC, 0600);
	struct io io = look(own);
	say("nothing", own, &io);

	write(fds[1], buf, 1000);
	read(fds[0], buf, 400);
	read(fds[0], buf, sizeof buf);
	say("a pipe", own, &io);

	write(file, buf, 5000);
	pwrite(file, buf, 100, 10);
	struct iovec v[2] = { { buf, 30 }, { buf + 50, 12 } };
	writev(file, v, 2);
	pwritev(file, v, 2, 0);
	pwritev2(file, v, 2, -1, 0);
	pread(file, buf, 3000, 4000);
	preadv(file, v, 2, 1);
	lseek(file, 10, SEEK_SET);
	readv(file, v, 2);
	preadv2(file, v, 1, -1, 0);
	say("a file", own, &io);

	// In vain.
	lseek(file, 0, SEEK_END);
	read(file, buf, 10);
	read(file, (void *)8, 10);
	pread(file, buf, 10, 0);
	int flags = fcntl(fds[0], F_GETFL);
	fcntl(fds[0], F_SETFL, flags | O_NONBLOCK);
	read(fds[0], buf, 10);
	fcntl(fds[0], F_SETFL, flags);
	read(1000, buf, 10);
	write(fds[0], buf, 10);
	say("in vain", own, &io);

	off_t at = 0;
	sendfile(fds[1], file, &at, 1234);
	read(fds[0], buf, sizeof buf);
	say("sendfile", own, &io);
	loff_t from = 0, to = 6000;
	copy_file_range(file, &from, file, &to, 500, 0);
	say("copy_file_range", own, &io);
	from = 0;
	splice(file, &from, fds[1], NULL, 333, 0);
	read(fds[0], buf, sizeof buf);
	say("splice", own, &io);

	// Only by read(2) and write(2).
	int pair[2];
	socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
	write(pair[0], buf, 50);
	send(pair[0], buf, 60, 0);
	recv(pair[1], buf, 40, 0);
	read(pair[1], buf, 30);
	say("a socket", own, &io);

	pthread_t t;
	struct io before = io;
	pthread_create(&t, NULL, thread, NULL);
	pthread_join(t, NULL);
	io = look(own);
	printf("with the thread: %d\n", io.wchar - before.wchar >= 77 && io.rchar - before.rchar - before.len >= 77);
	fflush(stdout);

	io = look(own);
	if (fork() == 0) {
		write(fds[1], buf, 600);
		_exit(0);
	}
	int status;
	// Its own are not the parent's until it is waited for.
	siginfo_t info;
	waitid(P_ALL, 0, &info, WEXITED | WNOWAIT);
	say("a child", own, &io);
	wait(&status);
	struct io now = look(own);
	printf("after it was waited for: %ld\n", now.wchar - io.wchar);
	struct stat s;
	stat(own, &s);
	printf("mode %o\n", s.st_mode & 0777);
	return 0;
}
