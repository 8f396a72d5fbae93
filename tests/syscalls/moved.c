// splice, vmsplice and tee: nothing is waited for that can't come, and nothing gets lost. Places that are no open files (O_PATH).
// Limits of processor time, timers that begin in the past, membarrier, and answers that few ask for.
// timeout: 60
#include "case.h"
#include <grp.h>
#include <linux/membarrier.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <sys/vfs.h>
#include <termio.h>

static char big[1 << 20] __attribute__((aligned(4096)));

static void pipes(void)
{
	int p[2], q[2], s[2];
	pipe(p);
	pipe(q);
	struct iovec all = {big, sizeof big};
	V(vmsplice(p[1], &all, 1, 0));
	V(vmsplice(p[1], &all, 1, SPLICE_F_NONBLOCK));
	struct iovec some = {big, 4096};
	V(vmsplice(p[0], &some, 1, 0));
	// There is room for a page.
	int file = memfd_create("file", 0);
	V(write(file, big, 8192) == 8192);
	lseek(file, 0, SEEK_SET);
	V(splice(file, NULL, p[1], NULL, 8192, SPLICE_F_NONBLOCK));
	V(lseek(file, 0, SEEK_CUR));
	close(p[0]);
	close(p[1]);
	pipe(p);
	V(splice(p[0], NULL, eventfd(0, 0), NULL, 8, 0));
	V(splice(p[0], NULL, epoll_create1(0), NULL, 8, 0));
	V(splice(p[0], NULL, inotify_init(), NULL, 8, 0));
	V(splice(p[0], NULL, p[1], NULL, 8, 0));
	V(splice(open("/tmp", O_RDONLY), NULL, p[1], NULL, 8, 0));
	V(splice(p[0], NULL, q[1], NULL, 8, SPLICE_F_NONBLOCK));
	// A socket that takes little at a time gets all, in order.
	socketpair(AF_UNIX, SOCK_STREAM, 0, s);
	fcntl(s[0], F_SETFL, O_NONBLOCK);
	unsigned next = 0, seen = 0, wrong = 0, written = 0;
	while (seen < 200000) {
		unsigned buf[4096];
		if (written < 200000) {
			unsigned n = 0;
			for (; n < 4096 && written + n < 200000; n++)
				buf[n] = next++;
			if (write(p[1], buf, n * 4) != (ssize_t)n * 4)
				puts("short");
			written += n;
		}
		while (splice(p[0], NULL, s[0], NULL, 1 << 20, SPLICE_F_NONBLOCK) > 0)
			;
		ssize_t n = recv(s[1], buf, sizeof buf - sizeof buf % 12, MSG_DONTWAIT);
		for (ssize_t i = 0; i < n / 4; i++)
			wrong += buf[i] != seen++;
		if (n > 0 && n % 4)
			puts("not whole");
		int left;
		ioctl(p[0], FIONREAD, &left);
		if (left > 40000)
			// No room for more yet.
			while ((n = recv(s[1], buf, sizeof buf, MSG_DONTWAIT)) > 0)
				for (ssize_t i = 0; i < n / 4; i++)
					wrong += buf[i] != seen++;
	}
	P(wrong);
	P(seen);
	V(pread(p[1], big, 1, 0));
	V(pwrite(p[0], big, 1, 0));
}

static void places(void)
{
	struct stat st;
	struct statfs fs;
	int dir = open("/tmp", O_PATH), fd = open("/tmp/moved.x", O_CREAT | O_RDWR, 0644);
	close(fd);
	fd = open("/tmp/moved.x", O_PATH);
	struct epoll_event e = {EPOLLIN};
	struct pollfd poll1 = {fd, POLLIN};
	V(fstat(fd, &st));
	V(fstatfs(fd, &fs));
	V(read(fd, big, 1));
	V(write(fd, big, 1));
	V(fchown(fd, 0, 0));
	V(fchmod(fd, 0600));
	V(flock(fd, LOCK_SH));
	V(syncfs(fd));
	V(fsync(fd));
	V(fdatasync(fd));
	V(lseek(fd, 0, SEEK_SET));
	V(posix_fadvise(fd, 0, 0, 0));
	V(ftruncate(fd, 0));
	V(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED);
	V(listen(fd, 1));
	V(epoll_ctl(epoll_create1(0), EPOLL_CTL_ADD, fd, &e));
	V(poll(&poll1, 1, 0));
	V(poll1.revents);
	V(fcntl(fd, F_SETFL, O_NONBLOCK));
	V(fcntl(fd, F_GETFL) & O_PATH);
	V(fcntl(fd, F_GETFD));
	V(ioctl(fd, FIONREAD, &st));
	V(syscall(SYS_getdents64, dir, big, 4096));
	V(fchdir(dir));
	V(dup2(fd, 100));
	V(fcntl(fd, F_DUPFD, 101));
	V(openat(dir, "moved.x", O_RDONLY) >= 0);
	V(readlink("", big, 10));
	unlink("/tmp/moved.x");
	int m = memfd_create("x", 0);
	char name[64];
	write(m, big, 5000);
	snprintf(name, sizeof name, "/proc/self/fd/%d", m);
	V(open(name, O_RDWR) >= 0);
	fstat(m, &st);
	P(st.st_size);
	V(open(name, O_RDWR | O_TRUNC) >= 0);
	fstat(m, &st);
	P(st.st_size);
}

static volatile sig_atomic_t exceeded;
static void on_xcpu(int signal) { exceeded += signal == SIGXCPU; }

static void limits(void)
{
	int status;
	struct rlimit l = {1, 3};
	pid_t child = fork();
	if (!child) {
		signal(SIGXCPU, on_xcpu);
		setrlimit(RLIMIT_CPU, &l);
		if (fork() == 0)
			// It has a time of its own.
			_exit(0);
		while (exceeded < 2)
			;
		for (;;)
			;
	}
	waitpid(child, &status, 0);
	V(WIFSIGNALED(status) ? WTERMSIG(status) : 0);
	l = (struct rlimit){1 << 20, 1 << 20};
	child = fork();
	if (!child) {
		setrlimit(RLIMIT_AS, &l);
		_exit(sbrk(64 << 20) == (void *)-1 && errno == ENOMEM ? 5 : 1);
	}
	waitpid(child, &status, 0);
	V(WEXITSTATUS(status));
	V(sbrk(1l << 46) == (void *)-1);
}

static void begun_before(void)
{
	static const int clocks[] = {CLOCK_REALTIME, CLOCK_MONOTONIC};
	for (int n = 0; n < 2; n++) {
		struct timespec now;
		clock_gettime(clocks[n], &now);
		struct itimerspec t = {{0, 10000000}, {now.tv_sec - 3, now.tv_nsec}};
		int fd = timerfd_create(clocks[n], 0);
		uint64_t times;
		timerfd_settime(fd, TFD_TIMER_ABSTIME, &t, NULL);
		read(fd, &times, 8);
		V(times >= 300 && times < 400);
	}
}

static void stopped(void)
{
	struct itimerval i = {{5, 0}, {7, 0}}, none = {{3, 0}, {0, 0}};
	setitimer(ITIMER_REAL, &i, NULL);
	V(setitimer(ITIMER_REAL, &none, NULL));
	getitimer(ITIMER_REAL, &i);
	P(i.it_interval.tv_sec);
	timer_t id;
	struct itimerspec t = {{5, 0}, {7, 0}}, off = {{3, 0}, {0, 0}};
	timer_create(CLOCK_MONOTONIC, NULL, &id);
	timer_settime(id, 0, &t, NULL);
	timer_settime(id, 0, &off, NULL);
	timer_gettime(id, &t);
	P(t.it_interval.tv_sec);
	int fd = timerfd_create(CLOCK_MONOTONIC, 0);
	timerfd_settime(fd, 0, &t, NULL);
	timerfd_settime(fd, 0, &off, NULL);
	timerfd_gettime(fd, &t);
	P(t.it_interval.tv_sec);
	P(t.it_value.tv_sec);
	// What is written is on the disk, which can't be seen; it works.
	int file = open("/tmp/moved.s", O_CREAT | O_RDWR | O_SYNC | O_TRUNC, 0600);
	V(write(file, "x", 1));
	V(pwrite(file, "y", 1, 1));
	X(fcntl(file, F_GETFL) & (O_SYNC | O_DSYNC));
	V(write(open("/dev/null", O_WRONLY | O_SYNC), "x", 1));
	unlink("/tmp/moved.s");
	struct rlimit l = {4 << 20, 4 << 20};
	fflush(stdout);
	if (!fork()) {
		char *p = mmap(NULL, 1 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		setrlimit(RLIMIT_AS, &l);
		V(mremap(p, 1 << 20, 8 << 20, MREMAP_MAYMOVE) == MAP_FAILED);
		V(mprotect(p, 4096, PROT_READ | PROT_GROWSDOWN));
		V(mprotect(p, 4096, PROT_READ | PROT_GROWSUP));
		fflush(stdout);
		_exit(0);
	}
	wait(NULL);
}

static void rest(void)
{
	V(syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0));
	V(syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0));
	V(syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0));
	V(syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE, 0, 0));
	V(syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE, 0, 0));
	V(syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE, 0, 0));
	V(syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0));
	V(syscall(SYS_membarrier, 1 << 9, 0, 0));
	V(syscall(SYS_membarrier, 7, 0, 0));
	int q = msgget(IPC_PRIVATE, 0600);
	struct { long kind; char text[8]; } m = {5, "first"};
	msgsnd(q, &m, 8, 0);
	m.kind = 3;
	strcpy(m.text, "second");
	msgsnd(q, &m, 8, 0);
	V(msgrcv(q, &m, 8, 1, MSG_COPY | IPC_NOWAIT));
	printf("%ld %s\n", m.kind, m.text);
	V(msgrcv(q, &m, 8, 2, MSG_COPY | IPC_NOWAIT));
	V(msgrcv(q, &m, 8, 0, MSG_COPY));
	V(msgrcv(q, &m, 4, 0, MSG_COPY | IPC_NOWAIT));
	struct msqid_ds d;
	V(msgctl(q, IPC_STAT, &d));
	P(d.msg_qnum);
	V(msgctl(q, MSG_STAT, &d) == q);
	msgctl(q, IPC_RMID, NULL);
	int fds[2];
	V(socketpair(0, SOCK_STREAM, 0, fds));
	V(socketpair(AF_INET, SOCK_DGRAM, 6, fds));
	V(socketpair(AF_INET, SOCK_STREAM, 0, fds));
	int master = posix_openpt(O_RDWR | O_NOCTTY);
	grantpt(master);
	unlockpt(master);
	int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
	struct termio io;
	V(ioctl(slave, TCGETA, &io));
	X(io.c_lflag);
	io.c_lflag &= ~ECHO;
	V(ioctl(slave, TCSETAW, &io));
	struct termios now;
	tcgetattr(slave, &now);
	X(now.c_lflag);
	int zero = open("/dev/zero", O_RDONLY), shared = memfd_create("f", 0);
	ftruncate(shared, 4096);
	char *p = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, shared, 0);
	V(syscall(SYS_futex, p, 1, 1, 0, 0, 0));
	V(syscall(SYS_futex, p + 4096, 1, 1, 0, 0, 0));
	V(mmap(NULL, ~0ul - 4096, PROT_READ, MAP_PRIVATE, zero, 0) == MAP_FAILED);
	fflush(stdout);
	if (!fork()) {
		int fd = open("/bin/true", O_RDONLY);
		setgroups(0, NULL);
		setuid(65534);
		V(open("/bin/true", O_RDONLY | O_NOATIME));
		V(fcntl(fd, F_SETFL, O_NOATIME));
		V(chroot("/root"));
		V(chroot("/tmp"));
		fflush(stdout);
		_exit(0);
	}
	wait(NULL);
}

int main(void)
{
	pipes();
	places();
	limits();
	begun_before();
	stopped();
	rest();
	return 0;
}
