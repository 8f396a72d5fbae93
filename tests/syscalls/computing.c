// Beside a thread that computes, on the same core: what comes from outside of the cell is noticed, whatever is awaited by then.
// options: --cores 1
#include "case.h"
#include <arpa/inet.h>
#include <netinet/in.h>

static volatile int stop;
static void *computes(void *p)
{
	while (!stop)
		;
	return 0;
}
static void *accepts(void *p)
{
	for (;;) {
		int s = accept((int)(long)p, 0, 0);
		char c;
		if (read(s, &c, 1) == 1)
			write(s, &c, 1);
		close(s);
	}
	return 0;
}

int main(void)
{
	cpu_set_t one;
	CPU_ZERO(&one);
	CPU_SET(0, &one);
	sched_setaffinity(0, sizeof one, &one);
	pthread_t t, hog;
	int l = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in a = {AF_INET, 0, {htonl(INADDR_LOOPBACK)}};
	socklen_t len = sizeof a;
	bind(l, (void *)&a, sizeof a);
	listen(l, 8);
	getsockname(l, (void *)&a, &len);
	pthread_create(&t, 0, accepts, (void *)(long)l);
	pthread_create(&hog, 0, computes, 0);
	int files = 0, answers = 0;
	for (int i = 0; i < 60; i++) {
		// By now it is known to compute.
		sleep_ms(i % 20 ? 1 : 30);
		char name[20];
		sprintf(name, "file%d", i);
		int fd = open(name, O_CREAT | O_RDWR, 0600);
		files += fd >= 0 && write(fd, name, 5) == 5 && fsync(fd) == 0 && unlink(name) == 0;
		close(fd);
		if (i % 3)
			continue;
		int c = socket(AF_INET, SOCK_STREAM, 0);
		char b = i, back = ~i;
		if (connect(c, (void *)&a, sizeof a) == 0 && write(c, &b, 1) == 1 && read(c, &back, 1) == 1)
			answers += back == b;
		close(c);
	}
	printf("%d files, %d answers\n", files, answers);
	stop = 1;
	pthread_join(hog, 0);
	return 0;
}
