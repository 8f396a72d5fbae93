// What a pseudo terminal forgets when a signal's character is typed and by tcflush, and what has arrived at the other side by then.
// flags: -lutil
#include "case.h"
#include <pty.h>
#include <sys/ioctl.h>
#include <termios.h>

static int m, s;

// What the master reads: how many bytes, and the last few, what can't be seen in octal.
static void drain(const char *what)
{
	static char b[65536];
	long n, all = 0;
	struct pollfd p = {m, POLLIN};
	// Linux passes on what is written behind the writer's back.
	while (poll(&p, 1, 50) == 1 && p.revents & POLLIN && (n = read(m, b + all, sizeof b - all)) > 0)
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
	int there;
	sleep_ms(30);
	ioctl(m, FIONREAD, &there);
	printf("of %d there are %d; ", n, there);
}

int main(void)
{
	signal(SIGINT, SIG_IGN);
	if (openpty(&m, &s, 0, 0, 0))
		return 1;
	write(s, "hello ", 6);
	sleep_ms(30);
	write(m, "\003", 1);
	drain("^C");
	write(m, "typed\003", 6);
	drain("typed and ^C");
	for (int n = 3000; n <= 9000; n += 3000) {
		fill(n);
		write(m, "\003", 1);
		// Likewise what the character does; before it, reading would make room for more.
		sleep_ms(50);
		drain("^C");
	}
	fill(3000), tcflush(s, TCOFLUSH), drain("the slave flushes output");
	fill(9000), tcflush(s, TCOFLUSH), drain("the slave flushes output");
	fill(9000), tcflush(s, TCIFLUSH), drain("the slave flushes input");
	fill(3000), tcflush(m, TCOFLUSH), drain("the master flushes output");
	fill(3000), tcflush(m, TCIFLUSH), drain("the master flushes input");
	fill(9000), tcflush(m, TCIOFLUSH), drain("the master flushes both");
	V(tcflush(m, 9));
	char line[100];
	struct { int fd, queue; const char *what; } flushes[] = {
		{m, TCOFLUSH, "the master flushes output"}, {m, TCIOFLUSH, "the master flushes both"},
		{s, TCIFLUSH, "the slave flushes input"}, {s, TCOFLUSH, "the slave flushes output"}};
	for (int i = 0; i < 4; i++) {
		write(m, "some", 4);
		sleep_ms(30);
		tcflush(flushes[i].fd, flushes[i].queue);
		write(m, "\n", 1);
		printf("%s: the slave reads %zd; ", flushes[i].what, read(s, line, sizeof line));
		drain("the master");
	}
	return 0;
}
