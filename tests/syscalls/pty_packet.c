// Packet mode of pseudo terminals (TIOCPKT), as screen and rlogin use it, and other controls that programs ask terminals for.
#include "case.h"
#include <pty.h>
#include <sys/ioctl.h>
#include <termios.h>

static int master, slave;

// What a read of the master gets, and what poll says before. What is typed may take a moment.
static void see_within(int ms, const char *what, size_t most)
{
	char b[100];
	struct pollfd p = { master, POLLIN | POLLPRI, 0 };
	poll(&p, 1, ms);
	fcntl(master, F_SETFL, O_NONBLOCK);
	ssize_t n = read(master, b, most);
	int e = errno;
	fcntl(master, F_SETFL, 0);
	printf("%s: poll %x, read ", what, p.revents);
	if (n < 0)
		printf("%s", err_(e));
	for (ssize_t i = 0; i < n; i++)
		printf(b[i] > ' ' ? "%c" : "\\%03o", b[i]);
	puts("");
}
static void see(const char *what, size_t most)
{
	see_within(5000, what, most);
}

int main(void)
{
	signal(SIGINT, SIG_IGN);
	if (openpty(&master, &slave, 0, 0, 0))
		return 1;
	int on = -1;
	SECTION("packets");
	V(ioctl(master, TIOCGPKT, &on));
	printf("%d\n", on);
	V(ioctl(slave, TIOCPKT, &on));
	V(ioctl(slave, TIOCGPKT, &on));
	V(ioctl(master, TIOCPKT, (int *)8));
	write(slave, "before", 6);
	on = 1;
	V(ioctl(master, TIOCPKT, &on));
	V(ioctl(master, TIOCGPKT, &on));
	printf("%d\n", on);
	see("before", 100);
	see_within(100, "nothing", 100);
	write(slave, "data", 4);
	see("one byte", 1);
	see("three bytes", 3);
	see("the rest", 100);
	SECTION("flush");
	tcflush(slave, TCIFLUSH);
	see("input", 100);
	tcflush(slave, TCOFLUSH);
	see("output", 100);
	tcflush(slave, TCIOFLUSH);
	write(slave, "x", 1);
	see("both", 100);
	see("then data", 100);
	SECTION("flow");
	tcflow(slave, TCOOFF);
	see("off", 100);
	tcflow(slave, TCOON);
	see("on", 100);
	tcflow(slave, TCOOFF);
	tcflow(slave, TCOON);
	see("off and on", 100);
	write(master, "\023", 1);
	see("^S", 100);
	write(master, "\021", 1);
	see("^Q", 100);
	SECTION("settings");
	struct termios t;
	tcgetattr(slave, &t);
	t.c_iflag &= ~IXON;
	tcsetattr(slave, TCSANOW, &t);
	see("no flow control", 100);
	t.c_iflag |= IXON;
	tcsetattr(slave, TCSANOW, &t);
	see("flow control", 100);
	t.c_cc[VSTOP] = 1;
	tcsetattr(slave, TCSANOW, &t);
	see("another character", 100);
	tcsetattr(slave, TCSANOW, &t);
	see_within(100, "the same again", 100);
	tcsetattr(slave, TCSAFLUSH, &t);
	see("flushed", 100);
	SECTION("off");
	tcflush(slave, TCIFLUSH);
	on = 0;
	V(ioctl(master, TIOCPKT, &on));
	write(slave, "plain", 5);
	see("off", 100);
	SECTION("others");
	int n = -1;
	V(ioctl(slave, TIOCGETD, &n));
	printf("%d\n", n);
	V(ioctl(slave, TIOCSETD, &n));
	n = 77;
	V(ioctl(slave, TIOCSETD, &n));
	V(ioctl(slave, TIOCGEXCL, &n));
	printf("%d\n", n);
	V(ioctl(slave, TIOCEXCL));
	V(ioctl(slave, TIOCGEXCL, &n));
	printf("%d\n", n);
	int again = open(ttyname(slave), O_RDWR | O_NOCTTY);
	printf("who may do everything opens it: %d\n", again >= 0);
	pid_t child = fork();
	if (!child) {
		setresuid(65534, 65534, 65534);
		again = open("/proc/self/fd/3", O_RDWR | O_NOCTTY);
		_exit(0);
	}
	waitpid(child, 0, 0);
	V(ioctl(slave, TIOCNXCL));
	V(ioctl(slave, TIOCGEXCL, &n));
	printf("%d\n", n);
	struct stat s;
	unsigned dev = 0;
	fstat(slave, &s);
	V(ioctl(slave, TIOCGDEV, &dev));
	printf("as fstat: %d\n", dev == s.st_rdev);
	V(ioctl(master, TIOCGDEV, &dev));
	printf("as the slave: %d\n", dev == s.st_rdev);
	struct termios locked;
	memset(&locked, 1, sizeof locked);
	V(ioctl(slave, TIOCGLCKTRMIOS, &locked));
	printf("%x %x %x %x\n", locked.c_iflag, locked.c_oflag, locked.c_cflag, locked.c_lflag);
	return 0;
}
