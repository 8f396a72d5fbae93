// Which calls go on after a signal: without SA_RESTART, with it, and after SIGSTOP and SIGCONT, for which there is no handler (signal(7)).
#include "case.h"
#include <linux/futex.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <pty.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <sys/un.h>

// What a call needs: two descriptors, and a word that the processes share, perhaps an id.
struct one {
	int a, b;
	uint32_t word;
	int begun, hits, error;
	long value;
	pid_t pid;
};
static struct one *all, *o;
static char byte, many[100000];
static enum { WITHOUT, WITH, STOPPED } mode;

static void on_signal(int s) { o->hits++; }

static void two(int fds[2])
{
	o->a = fds[0];
	o->b = fds[1];
}
static void pipes(void)
{
	int p[2];
	pipe(p);
	two(p);
}
static void pair(void)
{
	int p[2];
	socketpair(AF_UNIX, SOCK_STREAM, 0, p);
	two(p);
}
// Until no more fits into it, or nothing more comes out of it.
static void fill(int fd)
{
	fcntl(fd, F_SETFL, O_NONBLOCK);
	while (write(fd, many, sizeof many) > 0 || write(fd, many, 1) > 0)
		;
	fcntl(fd, F_SETFL, 0);
}
static void drain(int fd)
{
	fcntl(fd, F_SETFL, O_NONBLOCK);
	while (read(fd, many, sizeof many) > 0)
		;
}
static int with_timeout(int fd, int which)
{
	setsockopt(fd, SOL_SOCKET, which, &(struct timeval){30}, sizeof(struct timeval));
	return fd;
}
static int to(int l, int s)
{
	struct sockaddr_storage at;
	socklen_t len = sizeof at;
	getsockname(l, (void *)&at, &len);
	return connect(s, (void *)&at, len);
}
static int client(int domain, int type)
{
	return o->b = socket(domain, type, 0);
}
static void listener(int domain)
{
	union {
		struct sockaddr_un un;
		struct sockaddr_in in;
	} at = {.un = {.sun_family = AF_UNIX}};
	socklen_t len = sizeof(sa_family_t);
	if (domain == AF_INET) {
		at.in = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
		len = sizeof at.in;
	}
	o->a = socket(domain, SOCK_STREAM, 0);
	bind(o->a, (void *)&at, len);
	listen(o->a, 0);
}
static void crowded(void)
{
	listener(AF_UNIX);
	to(o->a, client(AF_UNIX, SOCK_STREAM));
}
static void tcp(void)
{
	listener(AF_INET);
	to(o->a, client(AF_INET, SOCK_STREAM));
	o->a = accept(o->a, 0, 0);
}
static int udp(void)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	o->a = socket(AF_INET, SOCK_DGRAM, 0);
	bind(o->a, (void *)&at, sizeof at);
	return to(o->a, client(AF_INET, SOCK_DGRAM));
}
static long message(int flags, int send)
{
	struct iovec v = {&byte, 1};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
	return send ? sendmsg(o->a, &m, flags) : recvmsg(o->a, &m, flags);
}
static const char *name(const char *what)
{
	static char path[32];
	snprintf(path, sizeof path, "%s%d", what, mode);
	return path;
}
static int file(void)
{
	return open("file", O_RDWR | O_CREAT, 0600);
}
static int region(int fd, int command, int type)
{
	static int next;
	struct flock l = {type, SEEK_SET, o - all, 1, 0};
	return fcntl(fd, command, &l);
}
static pid_t child(void)
{
	pid_t p = fork();
	if (!p) {
		read(o->a, &byte, 1);
		_exit(3);
	}
	return p;
}
// For values that differ from run to run.
static long some(long value)
{
	return value > 0 ? 1 : value;
}
static struct msgbuf letter = {1};
static struct sembuf take = {0, -1, 0};
static struct timespec brief(void)
{
	// It ends by itself, if a signal doesn't end it.
	return (struct timespec){mode == STOPPED ? 2 : 30, 0};
}
static struct timespec moment(void)
{
	struct timespec t, d = brief();
	clock_gettime(CLOCK_MONOTONIC, &t);
	t.tv_sec += d.tv_sec;
	return t;
}
static sigset_t *usr2(void)
{
	static sigset_t s;
	sigaddset(&s, SIGUSR2);
	sigprocmask(SIG_BLOCK, &s, 0);
	return &s;
}
static void queue(void)
{
	o->a = mq_open(name("/restarts"), O_RDWR | O_CREAT, 0600, &(struct mq_attr){.mq_maxmsg = 1, .mq_msgsize = 1});
	mq_unlink(name("/restarts"));
}
static int epoll(void)
{
	int e = epoll_create1(0);
	epoll_ctl(e, EPOLL_CTL_ADD, o->a, &(struct epoll_event){EPOLLIN});
	return e;
}
static long events(void)
{
	unsigned long context = 0;
	char event[32];
	syscall(SYS_io_setup, 1, &context);
	return syscall(SYS_io_getevents, context, 1l, 1l, event, 0l);
}

// The call, what it needs, what is called, what makes it end.
#define CALLS(C) \
	C(read, pipes(), read(o->a, &byte, 1), write(o->b, "x", 1)) \
	C(write, pipes(); fill(o->b), write(o->b, "x", 1), drain(o->a)) \
	C(write_of_more, pipes(), write(o->b, many, sizeof many), drain(o->a)) \
	C(splice, pipes(), splice(o->a, 0, open("to", O_WRONLY | O_CREAT, 0600), 0, 1, 0), write(o->b, "x", 1)) \
	C(open_to_read, mkfifo(name("in"), 0600), some(open(name("in"), O_RDONLY)), open(name("in"), O_WRONLY | O_NONBLOCK)) \
	C(open_to_write, mkfifo(name("out"), 0600), some(open(name("out"), O_WRONLY)), open(name("out"), O_RDONLY | O_NONBLOCK)) \
	C(flock, flock(o->a = open("flock", O_RDWR | O_CREAT, 0600), LOCK_EX), flock(open("flock", O_RDWR), LOCK_EX), flock(o->a, LOCK_UN)) \
	C(setlkw, region(o->a = file(), F_SETLK, F_WRLCK), region(file(), F_SETLKW, F_RDLCK), region(o->a, F_SETLK, F_UNLCK)) \
	C(ofd_setlkw, region(o->a = file(), F_OFD_SETLK, F_WRLCK), region(file(), F_OFD_SETLKW, F_RDLCK), region(o->a, F_OFD_SETLK, F_UNLCK)) \
	C(wait4, pipes(), some(waitpid(child(), 0, 0)), write(o->b, "x", 1)) \
	C(waitid, pipes(), waitid(P_PID, child(), 0, WEXITED), write(o->b, "x", 1)) \
	C(accept, listener(AF_UNIX), some(accept(o->a, 0, 0)), to(o->a, client(AF_UNIX, SOCK_STREAM))) \
	C(accept_tcp, listener(AF_INET), some(accept(o->a, 0, 0)), to(o->a, client(AF_INET, SOCK_STREAM))) \
	C(accept_timeout, listener(AF_INET), some(accept(with_timeout(o->a, SO_RCVTIMEO), 0, 0)), ) \
	C(connect, crowded(), to(o->a, socket(AF_UNIX, SOCK_STREAM, 0)), accept(o->a, 0, 0)) \
	C(connect_timeout, crowded(), to(o->a, with_timeout(socket(AF_UNIX, SOCK_STREAM, 0), SO_SNDTIMEO)), ) \
	C(recvmsg, pair(), message(0, 0), write(o->b, "x", 1)) \
	C(recvmsg_tcp, tcp(), message(0, 0), write(o->b, "x", 1)) \
	C(recvmsg_udp, udp(), message(0, 0), write(o->b, "x", 1)) \
	C(recvmsg_timeout, pair(), message(with_timeout(o->a, SO_RCVTIMEO) & 0, 0), ) \
	C(recvmsg_tcp_timeout, tcp(), message(with_timeout(o->a, SO_RCVTIMEO) & 0, 0), ) \
	C(recvmsg_udp_timeout, udp(), message(with_timeout(o->a, SO_RCVTIMEO) & 0, 0), ) \
	C(recv_of_more, pair(); write(o->b, "x", 1), recv(o->a, many, 2, MSG_WAITALL), write(o->b, "x", 1)) \
	C(recv_tcp_of_more, tcp(); write(o->b, "x", 1), recv(o->a, many, 2, MSG_WAITALL), write(o->b, "x", 1)) \
	C(sendmsg, pair(); fill(o->a), message(0, 1), drain(o->b)) \
	C(sendmsg_timeout, pair(); fill(o->a), message(with_timeout(o->a, SO_SNDTIMEO) & 0, 1), ) \
	C(sendmsg_tcp, tcp(); fill(o->a), message(0, 1), drain(o->b)) \
	C(sendmsg_tcp_timeout, tcp(); fill(o->a), message(with_timeout(o->a, SO_SNDTIMEO) & 0, 1), ) \
	C(poll, pipes(), poll(&(struct pollfd){o->a, POLLIN}, 1, -1), write(o->b, "x", 1)) \
	C(poll_timeout, pipes(), poll(&(struct pollfd){o->a, POLLIN}, 1, 30000), write(o->b, "x", 1)) \
	C(ppoll, pipes(), ppoll(&(struct pollfd){o->a, POLLIN}, 1, &(struct timespec){30}, 0), write(o->b, "x", 1)) \
	C(select, , select(0, 0, 0, 0, &(struct timeval){brief().tv_sec}), ) \
	C(pselect, , pselect(0, 0, 0, 0, &(struct timespec){brief().tv_sec}, 0), ) \
	C(epoll_wait, pipes(), epoll_wait(epoll(), &(struct epoll_event){0}, 1, 30000), ) \
	C(nanosleep, , nanosleep(&(struct timespec){brief().tv_sec}, 0), ) \
	C(clock_nanosleep, , (errno = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &(struct timespec){moment().tv_sec}, 0)) ? -1 : 0, ) \
	C(pause, , (pause(), o->hits), kill(o->pid, SIGUSR1)) \
	C(sigwaitinfo, , sigwaitinfo(usr2(), 0), ) \
	C(sigtimedwait, , sigtimedwait(usr2(), 0, &(struct timespec){30}), ) \
	C(msgrcv, o->word = msgget(IPC_PRIVATE, 0600), msgrcv(o->word, &letter, 1, 0, 0), msgsnd(o->word, &letter, 1, IPC_NOWAIT); sleep_ms(20); msgctl(o->word, IPC_RMID, 0)) \
	C(semop, o->word = semget(IPC_PRIVATE, 1, 0600), semop(o->word, &take, 1), semctl(o->word, 0, IPC_RMID)) \
	C(semtimedop, o->word = semget(IPC_PRIVATE, 1, 0600), semtimedop(o->word, &take, 1, &(struct timespec){30}), semctl(o->word, 0, IPC_RMID)) \
	C(mq_receive, queue(), mq_receive(o->a, &byte, 1, 0), mq_send(o->a, "x", 1, 0)) \
	C(mq_send, queue(); mq_send(o->a, "x", 1, 0), mq_send(o->a, "x", 1, 0), mq_receive(o->a, &byte, 1, 0)) \
	C(futex, , syscall(SYS_futex, &o->word, FUTEX_WAIT, 0, 0, 0, 0), syscall(SYS_futex, &o->word, FUTEX_WAKE, 1, 0, 0, 0)) \
	C(futex_timeout, , syscall(SYS_futex, &o->word, FUTEX_WAIT, 0, &(struct timespec){30}, 0, 0), syscall(SYS_futex, &o->word, FUTEX_WAKE, 1, 0, 0, 0)) \
	C(futex_bitset, , syscall(SYS_futex, &o->word, FUTEX_WAIT_BITSET, 0, &(struct timespec){moment().tv_sec + 30}, 0, 1), syscall(SYS_futex, &o->word, FUTEX_WAKE, 1, 0, 0, 0)) \
	C(eventfd, o->a = eventfd(0, 0), read(o->a, many, 8), eventfd_write(o->a, 1)) \
	C(timerfd, o->a = timerfd_create(CLOCK_MONOTONIC, 0), read(o->a, many, 8), timerfd_settime(o->a, 0, &(struct itimerspec){{0}, {0, 1}}, 0)) \
	C(signalfd, , some(read(signalfd(-1, usr2(), 0), many, sizeof many)), kill(o->pid, SIGUSR2)) \
	C(inotify, mkdir(name("dir"), 0700); inotify_add_watch(o->a = inotify_init(), name("dir"), IN_DELETE_SELF), some(read(o->a, many, sizeof many)), rmdir(name("dir"))) \
	C(terminal, openpty(&o->b, &o->a, 0, 0, 0), read(o->a, many, 9), write(o->b, "x\n", 2)) \
	C(io_getevents, , events(), )

#define NUMBER(name, ...) name##_,
enum { CALLS(NUMBER) COUNT };
#define NAME(name, ...) #name,
static const char *const names[] = {CALLS(NAME)};

static void prepare(int n)
{
	o = &all[n];
#define PREPARE(name, first, ...) case name##_: first; break;
	switch (n) { CALLS(PREPARE) }
}
static void release(int n)
{
	o = &all[n];
#define RELEASE(name, first, call, last) case name##_: last; break;
	switch (n) { CALLS(RELEASE) }
}
static void run(int n)
{
	o = &all[n];
	o->begun = 1;
	errno = 0;
#define RUN(name, first, call, last) case name##_: o->value = call; break;
	switch (n) { CALLS(RUN) }
	o->error = o->value == -1 ? errno : 0;
	_exit(0);
}

static int over(int n)
{
	siginfo_t i = {0};
	waitid(P_PID, all[n].pid, &i, WEXITED | WNOHANG | WNOWAIT);
	return i.si_pid;
}
// Until all have ended, or sleep in their calls.
static void all_sleep(void)
{
	for (int round = 0; round < 2; round++) {
		for (int n = 0; n < COUNT; n++) {
			while (!all[n].begun || !over(n) && state_of(all[n].pid, all[n].pid) != 'S')
				sleep_ms(1);
		}
		sleep_ms(50);
	}
}

int main(void)
{
	static char told[COUNT][3][32];
	signal(SIGPIPE, SIG_IGN);
	for (mode = 0; mode < 3; mode++) {
		all = mmap(0, COUNT * sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		sigaction(SIGUSR1, &(struct sigaction){.sa_handler = on_signal, .sa_flags = mode == WITH ? SA_RESTART : 0}, 0);
		for (int n = 0; n < COUNT; n++) {
			all[n].a = all[n].b = -1;
			prepare(n);
			pid_t p = fork();
			if (!p)
				run(n);
			o->pid = p;
		}
		all_sleep();
		for (int n = 0; n < COUNT; n++) {
			if (mode != STOPPED) {
				kill(all[n].pid, SIGUSR1);
				while (!__atomic_load_n(&all[n].hits, __ATOMIC_SEQ_CST) && !over(n))
					sleep_ms(1);
				continue;
			}
			kill(all[n].pid, SIGSTOP);
			waitid(P_PID, all[n].pid, 0, WSTOPPED | WEXITED | WNOWAIT);
			kill(all[n].pid, SIGCONT);
			waitid(P_PID, all[n].pid, 0, WCONTINUED | WEXITED | WNOWAIT);
		}
		all_sleep();
		for (int n = 0; n < COUNT; n++) {
			release(n);
			waitpid(all[n].pid, 0, 0);
			strcpy(told[n][mode], err_(all[n].error));
			if (!all[n].error)
				snprintf(told[n][mode], 32, "%ld", all[n].value);
			close(all[n].a);
			close(all[n].b);
		}
	}
	for (int n = 0; n < COUNT; n++)
		printf("%s: %s, with SA_RESTART %s, stopped %s\n", names[n], told[n][WITHOUT], told[n][WITH], told[n][STOPPED]);
	return 0;
}
