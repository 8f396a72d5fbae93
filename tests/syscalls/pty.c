// Pseudo terminals: /dev/ptmx, the line discipline, and the terminal's ioctls, from both ends.
// flags: -lutil
#include "case.h"
#include <pty.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <termios.h>

static int m, s;

// What can't be seen in octal.
static void bytes(const char *b, long n)
{
	for (long i = 0; i < n; i++)
		if (b[i] >= 32 && b[i] < 127)
			putchar(b[i]);
		else
			printf("\\%o", (unsigned char)b[i]);
}

// What the master reads, which is to be so many bytes: Linux passes on what is written behind the writer's back.
static void drain(const char *what, long most)
{
	char b[4096];
	long n, all = 0;
	printf("%s shows: \"", what);
	struct pollfd p = {m, POLLIN};
	while (poll(&p, 1, all < most ? 2000 : 20) == 1 && p.revents & POLLIN && (n = read(m, b, sizeof b)) > 0) {
		bytes(b, n);
		all += n;
	}
	puts("\"");
	fflush(stdout);
}
static void type(const char *text, long n)
{
	if (write(m, text, n) != n)
		printf("written less\n");
}
#define TYPE(text) type(text, sizeof text - 1)
// Until so much can be read at an end.
static void readable(int fd, int most)
{
	int n = 0;
	for (int i = 0; i < 5000 && n < most; i++) {
		ioctl(fd, FIONREAD, &n);
		sleep_ms(1);
	}
	if (n != most)
		printf("%d have arrived\n", n);
}
// Until what was typed can be read: Linux passes it on behind the writer's back, and what
// changes the mode or flushes would come before it.
static void arrived(int most)
{
	readable(s, most);
}
// Until it is echoed.
static void echoed(int most)
{
	readable(m, most);
}
static void got(long most)
{
	char b[4096];
	long n = read(s, b, most);
	printf("read: ");
	if (n < 0)
		printf("%s\n", err_(errno));
	else {
		printf("%ld \"", n);
		bytes(b, n);
		puts("\"");
	}
	fflush(stdout);
}
static void show(const struct termios *t)
{
	printf("%o %o %o %o %d:", t->c_iflag, t->c_oflag, t->c_cflag, t->c_lflag, t->c_line);
	for (int i = 0; i < 19; i++)
		printf(" %d", t->c_cc[i]);
	puts("");
}
static void *later(void *text)
{
	sleep_ms(50);
	type(text, strlen(text));
	return 0;
}
static void *slowly(void *text)
{
	for (const char *p = text; *p; p++) {
		sleep_ms(20);
		write(m, p, 1);
	}
	return 0;
}
static volatile int caught;
static void handler(int signal)
{
	caught = signal;
}

int main(int argc, char **argv)
{
	if (argc == 1) {
		// As a child that leads no process group, so that it can lead a session.
		pid_t child;
		int status;
		char *args[] = {argv[0], "child", 0};
		if (posix_spawn(&child, "/proc/self/exe", 0, 0, args, environ))
			return 1;
		waitpid(child, &status, 0);
		return WEXITSTATUS(status);
	}
	SECTION("opening");
	struct stat st;
	V((m = posix_openpt(O_RDWR | O_NOCTTY)) >= 0);
	int locked = 0, number = -1;
	V(ioctl(m, TIOCGPTLCK, &locked));
	P(locked);
	char name[100], made[100];
	V(ptsname_r(m, name, sizeof name));
	V(ioctl(m, TIOCGPTN, &number));
	snprintf(made, sizeof made, "/dev/pts/%d", number);
	P(strcmp(name, made));
	V(open(name, O_RDWR | O_NOCTTY));
	V(grantpt(m));
	V(unlockpt(m));
	V((s = open(name, O_RDWR | O_NOCTTY)) >= 0);
	V(isatty(s));
	V(isatty(m));
	char of[100];
	V(ttyname_r(s, of, sizeof of));
	P(strcmp(of, name));
	fstat(s, &st);
	// Whether the group may write depends on how /dev/pts was mounted.
	printf("%o %d %d %d\n", st.st_mode & ~020, st.st_rdev >> 8 == 136, (int)st.st_nlink, st.st_uid == geteuid());
	V(tcgetsid(s));
	V(tcgetpgrp(s));
	struct termios t, old;
	V(tcgetattr(s, &t));
	show(&t);
	V(tcgetattr(m, &old));
	P(memcmp(&t, &old, 36));

	SECTION("speeds");
	// struct termios2: of the C library's header and the kernel's, one program can have only one.
	struct { unsigned flags[4]; unsigned char line, cc[19]; unsigned in, out; } t2;
	V(ioctl(s, _IOR('T', 0x2A, t2), &t2));
	printf("%o %u %u %d\n", t2.flags[2], t2.in, t2.out, memcmp(&t, &t2, 36));
	// BOTHER is 010000, and 16 bits further up for input.
	const unsigned codes[] = {B50, B110 | B75 << 16, B115200, B4000000, B134 | 010000 << 16, 010000, 010000 | 010000 << 16, B9600 | B0 << 16, B0};
	for (unsigned i = 0; i < sizeof codes / sizeof *codes; i++) {
		t2.flags[2] = (t2.flags[2] & ~(010017u | 010017u << 16)) | codes[i];
		t2.in = 31250, t2.out = 74880;
		// TCSETS2, TCSETSW2 and TCSETSF2, from each end.
		int r = ioctl(i % 2 ? s : m, _IOC(_IOC_WRITE, 'T', 0x2B + i % 3, sizeof t2), &t2);
		ioctl(s, _IOR('T', 0x2A, t2), &t2);
		unsigned flags[9] = {0};
		ioctl(s, TCGETS, flags);
		printf("%o: %d %o %u %u, %o\n", codes[i], r, t2.flags[2], t2.in, t2.out, flags[2]);
	}
	// Who knows nothing of other speeds leaves them as they are.
	t2.flags[2] |= 010000 | 010000 << 16;
	t2.in = 51, t2.out = 115199;
	V(ioctl(s, _IOW('T', 0x2B, t2), &t2));
	unsigned flags[9];
	V(ioctl(s, TCGETS, flags));
	V(ioctl(s, TCSETS, flags));
	V(ioctl(s, _IOR('T', 0x2A, t2), &t2));
	printf("%o %u %u\n", t2.flags[2], t2.in, t2.out);
	V(ioctl(s, _IOR('T', 0x2A, t2), (void *)8));
	V(ioctl(s, _IOW('T', 0x2B, t2), (void *)8));
	V(ioctl(s, TCSETS, &t));
	V(ioctl(s, _IOR('T', 0x2A, t2), &t2));
	printf("%o %u %u\n", t2.flags[2], t2.in, t2.out);

	SECTION("lines");
	TYPE("hello\r");
	drain("a line", 7);
	int n;
	V(ioctl(s, FIONREAD, &n));
	P(n);
	got(100);
	TYPE("one\ntwo\n");
	got(2);
	got(100);
	got(100);
	drain("two lines", 10);
	TYPE("abc\177\177d\n");
	drain("erased", 12);
	got(100);
	TYPE("some words here\027\027x\n");
	drain("words erased", 48);
	got(100);
	TYPE("kill this\025that\n");
	drain("killed", 42);
	got(100);
	TYPE("c\001\002\177\tx\177\177y\n");
	drain("control characters", 24);
	got(100);
	TYPE("a\026\003b\026\026\n");
	drain("literal", 12);
	got(100);
	TYPE("redo\022\n");
	drain("reprint", 14);
	got(100);
	TYPE("no newline\004");
	got(100);
	TYPE("\004");
	got(100);
	TYPE("x\004y\n");
	got(100);
	got(100);
	drain("ends of file", 14);
	struct pollfd p = {s, POLLIN | POLLOUT};
	V(poll(&p, 1, 0));
	X(p.revents);
	TYPE("half");
	echoed(4);
	V(poll(&p, 1, 0));
	X(p.revents);
	TYPE("\n");
	arrived(5);
	V(poll(&p, 1, 0));
	X(p.revents);
	got(100);
	drain("half", 6);
	fcntl(s, F_SETFL, O_NONBLOCK);
	got(100);
	fcntl(s, F_SETFL, 0);
	pthread_t th;
	pthread_create(&th, 0, later, "awaited\n");
	got(100);
	pthread_join(th, 0);
	drain("awaited", 9);

	SECTION("output");
	V(write(s, "line\n\ttab\r\n", 11));
	drain("processed", 13);
	t.c_oflag |= XTABS;
	V(tcsetattr(s, TCSANOW, &t));
	V(write(s, "12\t3\n", 5));
	drain("expanded", 11);
	t.c_oflag = 0;
	V(tcsetattr(s, TCSADRAIN, &t));
	V(write(s, "raw\n\t", 5));
	drain("raw", 5);
	t.c_oflag = OPOST | ONLCR;

	SECTION("echo");
	t.c_lflag &= ~ECHO;
	tcsetattr(s, TCSANOW, &t);
	TYPE("secret\177\n");
	drain("without echo", 0);
	got(100);
	t.c_lflag |= ECHONL;
	tcsetattr(s, TCSANOW, &t);
	TYPE("secret\n");
	drain("newline only", 2);
	got(100);
	t.c_lflag |= ECHO;
	t.c_lflag &= ~(ECHONL | ECHOCTL | ECHOE | ECHOKE);
	tcsetattr(s, TCSANOW, &t);
	TYPE("ab\177c\025d\n");
	drain("the old way", 10);
	got(100);
	t = old;
	t.c_iflag |= IUTF8;
	tcsetattr(s, TCSANOW, &t);
	TYPE("\303\244\303\266\177u\n");
	drain("several bytes", 10);
	got(100);
	t.c_iflag = IGNCR | ISTRIP;
	tcsetattr(s, TCSANOW, &t);
	TYPE("\341\r\n");
	drain("stripped", 3);
	got(100);
	t.c_iflag = INLCR;
	t.c_cc[VEOL] = '.';
	tcsetattr(s, TCSANOW, &t);
	TYPE("sentence. rest\n\004");
	got(100);
	got(100);
	drain("another end", 16);

	SECTION("flushed");
	t = old;
	tcsetattr(s, TCSANOW, &t);
	TYPE("forgotten\nand");
	arrived(10);
	echoed(14);
	V(tcflush(s, TCIFLUSH));
	TYPE("x\n");
	got(100);
	TYPE("forgotten\n");
	arrived(10);
	t.c_lflag &= ~ECHO;
	V(tcsetattr(s, TCSAFLUSH, &t));
	TYPE("kept\n");
	got(100);
	V(tcflush(s, 9));
	V(tcdrain(s));
	V(tcsendbreak(s, 0));
	drain("after that", 28);

	SECTION("raw");
	cfmakeraw(&t);
	tcsetattr(s, TCSANOW, &t);
	show(&t);
	TYPE("a\003\004\r\n");
	arrived(5);
	got(100);
	TYPE("12345");
	arrived(5);
	got(2);
	V(ioctl(s, FIONREAD, &n));
	P(n);
	got(100);
	t.c_cc[VMIN] = 0;
	t.c_cc[VTIME] = 0;
	tcsetattr(s, TCSANOW, &t);
	got(100);
	t.c_cc[VTIME] = 1;
	tcsetattr(s, TCSANOW, &t);
	long long begun = now_ms(CLOCK_MONOTONIC);
	got(100);
	P(now_ms(CLOCK_MONOTONIC) - begun >= 90);
	t.c_cc[VMIN] = 3;
	t.c_cc[VTIME] = 0;
	tcsetattr(s, TCSANOW, &t);
	pthread_create(&th, 0, slowly, "abc");
	got(100);
	pthread_join(th, 0);
	t.c_cc[VMIN] = 5;
	t.c_cc[VTIME] = 10;
	tcsetattr(s, TCSANOW, &t);
	pthread_create(&th, 0, slowly, "xy");
	got(100);
	pthread_join(th, 0);
	TYPE("left");
	arrived(4);
	t = old;
	tcsetattr(s, TCSANOW, &t);
	got(100);
	drain("back", 0);

	SECTION("window");
	struct winsize w = {24, 80, 1, 2}, v;
	V(ioctl(m, TIOCGWINSZ, &v));
	printf("%d %d\n", v.ws_row, v.ws_col);
	V(ioctl(m, TIOCSWINSZ, &w));
	V(ioctl(s, TIOCGWINSZ, &v));
	printf("%d %d %d %d\n", v.ws_row, v.ws_col, v.ws_xpixel, v.ws_ypixel);
	V(ioctl(s, TIOCGWINSZ, (void *)8));
	V(ioctl(s, TCGETS, (void *)8));
	V(ioctl(s, 0x5499, &v));
	V(lseek(s, 0, SEEK_SET));
	V(pread(s, &v, 1, 0));

	SECTION("the other end");
	int second;
	V((second = ioctl(m, TIOCGPTPEER, O_RDWR | O_NOCTTY)) >= 0);
	V(write(second, "peer\n", 5));
	close(second);
	drain("peer", 6);
	close(s);
	p.fd = m;
	p.events = POLLIN;
	V(poll(&p, 1, 0));
	X(p.revents);
	char b[10];
	V(read(m, b, 10));
	V((s = open(name, O_RDWR | O_NOCTTY)) >= 0);
	V(poll(&p, 1, 0));
	t = old;
	t.c_lflag &= ~ECHO;
	tcsetattr(s, TCSANOW, &t);
	V(write(s, "again", 5));
	drain("again", 5);
	TYPE("left\n");
	arrived(5);
	close(m);
	p.fd = s;
	V(poll(&p, 1, 0));
	X(p.revents);
	V(read(s, b, 10));
	V(read(s, b, 10));
	V(write(s, "x", 1));
	V(tcgetattr(s, &t));
	close(s);
	V(access(name, F_OK));
	V(openpty(&m, &s, 0, 0, &w));
	V(ioctl(s, TIOCGWINSZ, &v));
	P(v.ws_col);

	SECTION("controlling terminal");
	V(setsid() == getpid());
	P(getsid(0) == getpid());
	V(open("/dev/tty", O_RDWR));
	V(ioctl(s, TIOCSCTTY, 0));
	V(tcgetpgrp(s) == getpgrp());
	V(tcgetsid(s) == getpid());
	int tty;
	V((tty = open("/dev/tty", O_RDWR)) >= 0);
	V(write(tty, "tty\n", 4));
	drain("by /dev/tty", 5);
	signal(SIGINT, handler);
	signal(SIGQUIT, handler);
	signal(SIGWINCH, handler);
	signal(SIGHUP, handler);
	signal(SIGTTOU, SIG_IGN);
	TYPE("gone\003");
	for (int i = 0; i < 5000 && !caught; i++)
		sleep_ms(1);
	P(caught);
	drain("interrupted", 2);
	TYPE("\034kept\n");
	for (int i = 0; i < 5000 && caught != SIGQUIT; i++)
		sleep_ms(1);
	P(caught);
	got(100);
	drain("quit", 8);
	w.ws_col = 100;
	V(ioctl(m, TIOCSWINSZ, &w));
	for (int i = 0; i < 5000 && caught != SIGWINCH; i++)
		sleep_ms(1);
	P(caught);
	V(tcsetpgrp(s, getpgrp()));
	V(tcsetpgrp(s, 99999));
	close(tty);
	close(m);
	for (int i = 0; i < 5000 && caught != SIGHUP; i++)
		sleep_ms(1);
	P(caught);
	return 0;
}
