// What a pseudo terminal forgets when a signal's character is typed and by tcflush, and what has arrived at the other side by then.
// flags: -lutil
#include "case.h"
#include <pty.h>
#include <sys/ioctl.h>
#include <termios.h>

static int m, s;

// Until so much can be read at an end: Linux passes on what is written behind the writer's back.
static void until(int fd, int count)
{
	int there = -1;
	for (int i = 0; i < 5000 && there != count; i++) {
		ioctl(fd, FIONREAD, &there);
		if (there != count)
			sleep_ms(1);
	}
	if (there != count)
		printf("[%d instead of %d] ", there, count);
}

// What the master reads, which is to be so much: how many bytes, and the last few, what can't be seen in octal.
static void drain(const char *what, long most)
{
	static char b[65536];
	long n, all = 0;
	struct pollfd p = {m, POLLIN};
	while (poll(&p, 1, all < most ? 2000 : 50) == 1 && p.revents & POLLIN && (n = read(m, b + all, sizeof b - all)) > 0)
		all += n;
	printf("%s: %ld, \"", what, all);
	for (long i = all > 8 ? all - 8 : 0; i < all; i++)
		if (b[i] >= 32)
			putchar(b[i]);
		else
			printf("\\%o", (unsigned char)b[i]);
	puts("\"");
	fflush(stdout);
}

// Writes so much at the slave's end, and says how much of it is at the other.
static void fill(int n)
{
	char b[1000];
	memset(b, 'x', sizeof b);
	for (int i = 0; i < n; i += sizeof b)
		write(s, b, sizeof b);
	int there = n < 4095 ? n : 4095;
	until(m, there);
	ioctl(m, FIONREAD, &there);
	printf("of %d there are %d; ", n, there);
}

// A line at the slave's end that isn't echoed. It goes when a signal's character is typed, after the output.
static void unseen_line(void)
{
	struct termios t, quiet;
	tcgetattr(s, &t);
	quiet = t;
	quiet.c_lflag &= ~ECHO;
	tcsetattr(s, TCSANOW, &quiet);
	write(m, "\n", 1);
	until(s, 1);
	tcsetattr(s, TCSANOW, &t);
}

int main(void)
{
	signal(SIGINT, SIG_IGN);
	if (openpty(&m, &s, 0, 0, 0))
		return 1;
	write(s, "hello ", 6);
	until(m, 6);
	write(m, "\003", 1);
	drain("^C", 8);
	write(m, "typed\003", 6);
	drain("typed and ^C", 2);
	for (int n = 3000; n <= 9000; n += 3000) {
		unseen_line();
		fill(n);
		write(m, "\003", 1);
		// Before the character has done its work, reading would make room for more.
		until(s, 0);
		drain("^C", n < 4095 ? n + 2 : 4097);
	}
	fill(3000), tcflush(s, TCOFLUSH), drain("the slave flushes output", 3000);
	fill(9000), tcflush(s, TCOFLUSH), drain("the slave flushes output", 4095);
	fill(9000), tcflush(s, TCIFLUSH), drain("the slave flushes input", 9000);
	fill(3000), tcflush(m, TCOFLUSH), drain("the master flushes output", 3000);
	fill(3000), tcflush(m, TCIFLUSH), drain("the master flushes input", 0);
	fill(9000), tcflush(m, TCIOFLUSH), drain("the master flushes both", 0);
	V(tcflush(m, 9));
	char line[100];
	struct { int fd, queue; const char *what; int shown; } flushes[] = {
		{m, TCOFLUSH, "the master flushes output", 6}, {m, TCIOFLUSH, "the master flushes both", 2},
		{s, TCIFLUSH, "the slave flushes input", 6}, {s, TCOFLUSH, "the slave flushes output", 6}};
	for (int i = 0; i < 4; i++) {
		write(m, "some", 4);
		until(m, 4);
		tcflush(flushes[i].fd, flushes[i].queue);
		write(m, "\n", 1);
		printf("%s: the slave reads %zd; ", flushes[i].what, read(s, line, sizeof line));
		drain("the master", flushes[i].shown);
	}
	return 0;
}
