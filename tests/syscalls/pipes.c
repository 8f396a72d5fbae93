// Pipes and FIFOs.
#include "case.h"
#include <sys/ioctl.h>
static int hits;
static void nothing(int s) { hits++; }
static int ends[2];
static void *slow_reader(void *p)
{
	sleep_ms(50);
	char *b = malloc(1 << 20);
	long n, sum = 0;
	while ((n = read(ends[0], b, 30000)) > 0)
		sum += n;
	return (void *)sum;
}
static void *open_writer(void *p)
{
	sleep_ms(30);
	int fd = open("fifo", O_WRONLY);
	write(fd, "through", 7);
	close(fd);
	return 0;
}
static void *atomic_writer(void *p)
{
	char b[PIPE_BUF];
	memset(b, (int)(long)p, sizeof b);
	for (int i = 0; i < 100; i++)
		write(ends[1], b, sizeof b);
	return 0;
}
static void state(int fd)
{
	struct pollfd p = {fd, POLLIN | POLLOUT | POLLPRI | POLLRDHUP};
	int r = poll(&p, 1, 0);
	printf("poll %d %x\n", r, p.revents);
}

int main(void)
{
	char b[100];
	int p[2], n;
	signal(SIGPIPE, nothing);
	SECTION("basics");
	V(pipe2(p, O_NONBLOCK | O_CLOEXEC));
	state(p[0]);
	state(p[1]);
	V(read(p[0], b, 1));
	V(write(p[1], "hello", 5));
	state(p[0]);
	V(ioctl(p[0], FIONREAD, &n));
	P(n);
	V(read(p[0], b, 3));
	V(read(p[0], b, 3));
	V(read(p[1], b, 3));
	V(write(p[0], b, 3));
	V(lseek(p[0], 0, SEEK_CUR));
	V(pread(p[0], b, 1, 0));
	V(fcntl(p[0], F_GETPIPE_SZ));
	X(fcntl(p[0], F_GETFL));
	X(fcntl(p[1], F_GETFL));
	SECTION("size");
	char *big = calloc(1, 1 << 21);
	V(write(p[1], big, 1 << 20));
	V(write(p[1], big, 1));
	state(p[1]);
	V(fcntl(p[1], F_SETPIPE_SZ, 4096));
	V(fcntl(p[1], F_SETPIPE_SZ, 200000));
	V(write(p[1], big, 1 << 20));
	V(fcntl(p[1], F_SETPIPE_SZ, -1));
	long total = 0, r;
	while ((r = read(p[0], big, 1 << 20)) > 0)
		total += r;
	P(total);
	V(fcntl(p[1], F_SETPIPE_SZ, 1000));
	V(fcntl(p[1], F_GETPIPE_SZ));
	V(write(p[1], big, 4000));
	V(write(p[1], big, 200));
	V(ioctl(p[0], FIONREAD, &n));
	P(n);
	close(p[1]);
	state(p[0]);
	V(read(p[0], big, 1 << 20));
	V(read(p[0], big, 1 << 20));
	state(p[0]);
	close(p[0]);
	SECTION("broken");
	pipe(p);
	close(p[0]);
	V(write(p[1], "x", 1));
	P(hits);
	state(p[1]);
	close(p[1]);
	V(pipe2(p, 0x1));
	V(pipe((int *)8));
	SECTION("blocking");
	pipe(ends);
	pthread_t t;
	pthread_create(&t, 0, slow_reader, 0);
	V(write(ends[1], big, 1 << 20));
	close(ends[1]);
	void *v;
	pthread_join(t, &v);
	P((long)v);
	close(ends[0]);
	SECTION("atomic writes");
	pipe(ends);
	pthread_t w[3];
	for (long i = 0; i < 3; i++)
		pthread_create(&w[i], 0, atomic_writer, (void *)('a' + i));
	int mixed = 0;
	for (int i = 0; i < 300; i++) {
		char c[PIPE_BUF];
		long got = 0;
		while (got < PIPE_BUF)
			got += read(ends[0], c + got, PIPE_BUF - got);
		for (int k = 1; k < PIPE_BUF; k++)
			mixed += c[k] != c[0];
	}
	P(mixed);
	for (int i = 0; i < 3; i++)
		pthread_join(w[i], 0);
	SECTION("packets");
	V(pipe2(p, O_DIRECT | O_NONBLOCK));
	V(write(p[1], "one", 3));
	V(write(p[1], "second", 6));
	V(read(p[0], b, 100));
	V(read(p[0], b, 2));
	V(read(p[0], b, 100));
	SECTION("FIFOs");
	V(mkfifo("fifo", 0600));
	V(open("fifo", O_WRONLY | O_NONBLOCK));
	int f;
	V((f = open("fifo", O_RDONLY | O_NONBLOCK)) >= 0);
	state(f);
	V(read(f, b, 10));
	int g;
	V((g = open("fifo", O_WRONLY | O_NONBLOCK)) >= 0);
	V(read(f, b, 10));
	V(write(g, "fifo", 4));
	V(read(f, b, 10));
	close(g);
	state(f);
	V(read(f, b, 10));
	close(f);
	pthread_create(&t, 0, open_writer, 0);
	V((f = open("fifo", O_RDONLY)) >= 0);
	V(read(f, b, 100));
	V(read(f, b, 100));
	pthread_join(t, 0);
	close(f);
	V((f = open("fifo", O_RDWR)) >= 0);
	V(write(f, "both", 4));
	V(read(f, b, 100));
	return 0;
}
