// On one core: while a thread waits for something outside, the others go on.
// options: --cores 1
// nucleus-differs: moved (its files are in memory, where nothing is to be waited for)
#include "case.h"
#include <netinet/in.h>
#include <sys/un.h>

static _Atomic long counter;
static _Atomic int over;
static void *count(void *unused)
{
	while (!over)
		counter++;
	return 0;
}

static int input[2], fifo, listener;
static struct sockaddr_in at = {.sin_family = AF_INET};

// What it waits for comes when the other thread has counted on by so much, and not before.
static _Atomic long wanted;
static void (*comes)(void);
static void *later(void *unused)
{
	asleep(getpid(), getpid());
	wanted = counter + 100000;
	while (counter < wanted)
		sleep_ms(1);
	comes();
	return 0;
}
#define DURING(what, call) do { \
	comes = what; \
	wanted = LONG_MAX; \
	pthread_t t_; \
	pthread_create(&t_, 0, later, 0); \
	long r_ = call; \
	printf("%s: %ld, the other one counted: %d\n", #what, r_, counter >= wanted); \
	pthread_join(t_, 0); \
} while (0)

static void write_input(void) { write(input[1], "x", 1); }
static void write_fifo(void) { write(fifo, "x", 1); }
static void open_fifo(void) { fifo = open("fifo", O_WRONLY); }
static void take(void) { close(accept(listener, 0, 0)); }

int main(void)
{
	pthread_t counting;
	char b;
	socklen_t len = sizeof at;
	pthread_create(&counting, 0, count, 0);
	SECTION("standard input that is empty, a FIFO that nobody opens and that nobody writes to");
	pipe(input);
	dup2(input[0], 0);
	DURING(write_input, read(0, &b, 1));
	mkfifo("fifo", 0600);
	int r;
	DURING(open_fifo, (r = open("fifo", O_RDONLY)) > 0);
	DURING(write_fifo, read(r, &b, 1));
	SECTION("a listener that is full");
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	listener = socket(AF_INET, SOCK_STREAM, 0);
	bind(listener, (void *)&at, sizeof at);
	listen(listener, 0);
	getsockname(listener, (void *)&at, &len);
	int fill = socket(AF_INET, SOCK_STREAM, 0), late = socket(AF_INET, SOCK_STREAM, 0);
	V(connect(fill, (void *)&at, sizeof at));
	DURING(take, connect(late, (void *)&at, sizeof at));
	SECTION("what is written is to be on the disk");
	static char block[1 << 20];
	int f = open("file", O_RDWR | O_CREAT, 0600);
	long moved = 0;
	for (int i = 0; i < 50 && moved < 100000; i++) {
		for (int n = 0; n < 16; n++)
			pwrite(f, block, sizeof block, (long)n * sizeof block);
		long before = counter;
		if (fsync(f))
			perror("fsync");
		moved += counter - before;
	}
	P(moved > 0);
	over = 1;
	pthread_join(counting, 0);
	return 0;
}
