// What a process may do to another user's, ids of threads in place of processes', and answers of calls that few ask for.
// timeout: 60
#include "case.h"
#include <arpa/inet.h>
#include <linux/sched.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <grp.h>
#include <sys/utsname.h>

static pid_t tid_of_other;
static int go[2];

static void *thread(void *unused)
{
	char c;
	__atomic_store_n(&tid_of_other, syscall(SYS_gettid), __ATOMIC_SEQ_CST);
	while (read(go[0], &c, 1) != 1)
		;
	return unused;
}

static volatile sig_atomic_t got;
static void on(int signal) { got = signal; }

static void ids_of_threads(void)
{
	pthread_t t;
	pipe(go);
	signal(SIGUSR1, on);
	pthread_create(&t, NULL, thread, NULL);
	while (!__atomic_load_n(&tid_of_other, __ATOMIC_SEQ_CST))
		usleep(1000);
	V(kill(tid_of_other, 0));
	V(kill(tid_of_other, SIGUSR1));
	while (!got)
		usleep(1000);
	V(got == SIGUSR1);
	V(getpgid(tid_of_other) == getpgid(0));
	V(getsid(tid_of_other) == getsid(0));
	V(setpgid(tid_of_other, 0));
	struct rlimit limit;
	V(prlimit(tid_of_other, RLIMIT_NOFILE, NULL, &limit));
	siginfo_t info = {.si_code = SI_QUEUE};
	V(syscall(SYS_rt_sigqueueinfo, tid_of_other, SIGUSR1, &info));
	write(go[1], "e", 1);
	pthread_join(t, NULL);
}

// Two processes each of which has what the other one waits for.
static void deadlock(void)
{
	char name[] = "/tmp/othersXXXXXX";
	int fd = mkstemp(name), at[2], back[2], status;
	char c;
	unlink(name);
	pipe(at);
	pipe(back);
	struct flock first = {.l_type = F_WRLCK, .l_start = 0, .l_len = 1};
	struct flock second = {.l_type = F_WRLCK, .l_start = 10, .l_len = 1};
	V(fcntl(fd, F_SETLK, &first));
	pid_t child = fork();
	if (!child) {
		fcntl(fd, F_SETLK, &second);
		write(at[1], "x", 1);
		// Until the parent lets go.
		_exit(fcntl(fd, F_SETLKW, &first) == 0 ? 7 : 1);
	}
	read(at[0], &c, 1);
	asleep(child, child);
	V(fcntl(fd, F_SETLKW, &second));
	first.l_type = F_UNLCK;
	V(fcntl(fd, F_SETLK, &first));
	waitpid(child, &status, 0);
	V(WEXITSTATUS(status));
	close(fd);
}

// Of those who wait for an event exclusively one is told.
static void exclusive(void)
{
	enum { MANY = 4 };
	int fds[2], said[2], status;
	char c;
	pipe(fds);
	pipe(said);
	pid_t children[MANY];
	for (int n = 0; n < MANY; n++)
		if (!(children[n] = fork())) {
			int e = epoll_create1(0);
			struct epoll_event event = {.events = EPOLLIN | EPOLLET | EPOLLEXCLUSIVE};
			epoll_ctl(e, EPOLL_CTL_ADD, fds[0], &event);
			write(said[1], "r", 1);
			int n = epoll_wait(e, &event, 1, 30000);
			write(said[1], n == 1 ? "w" : "n", 1);
			_exit(0);
		}
	for (int n = 0; n < MANY; n++)
		read(said[0], &c, 1);
	for (int n = 0; n < MANY; n++)
		asleep(children[n], children[n]);
	fcntl(said[0], F_SETFL, O_NONBLOCK);
	for (int n = 0; n < MANY; n++) {
		int told = 0;
		write(fds[1], "x", 1);
		// One, and then no other.
		poll(&(struct pollfd){said[0], POLLIN, 0}, 1, 5000);
		usleep(100000);
		while (read(said[0], &c, 1) == 1)
			told += c == 'w';
		printf("event %d: %d told\n", n, told);
		read(fds[0], &c, 1);
	}
	for (int n = 0; n < MANY; n++)
		waitpid(children[n], &status, 0);
}

static void clocks(void)
{
	static const int all[] = {CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_MONOTONIC_RAW, CLOCK_REALTIME_COARSE, CLOCK_MONOTONIC_COARSE,
				  CLOCK_BOOTTIME, CLOCK_TAI};
	for (size_t n = 0; n < sizeof all / sizeof *all; n++) {
		struct timespec a = {0}, b;
		int back = 0;
		for (int i = 0; i < 2000; i++) {
			if (i & 1)
				clock_gettime(all[n], &b);
			else
				syscall(SYS_clock_gettime, all[n], &b);
			back += b.tv_sec < a.tv_sec || (b.tv_sec == a.tv_sec && b.tv_nsec < a.tv_nsec);
			a = b;
		}
		printf("clock %d went back %d times\n", all[n], back);
	}
	struct timespec t = {0, 1};
	static const int slept[] = {CLOCK_MONOTONIC_RAW, CLOCK_REALTIME_COARSE, CLOCK_THREAD_CPUTIME_ID, 77};
	for (size_t n = 0; n < sizeof slept / sizeof *slept; n++)
		V(syscall(SYS_clock_nanosleep, slept[n], 0, &t, NULL));
}

static void scheduling(void)
{
	struct sched_param p = {.sched_priority = 3};
	struct { uint32_t size, policy; uint64_t flags; int32_t nice; uint32_t priority; uint64_t rest[3]; } a;
	int status;
	V(sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &p));
	V(sched_getscheduler(0));
	V(syscall(SYS_sched_getattr, 0, &a, sizeof a, 0));
	V(a.flags);
	V(a.policy);
	V(syscall(SYS_sched_getattr, 0, &a, sizeof a, 1));
	pid_t child = fork();
	if (!child)
		_exit(sched_getscheduler(0));
	waitpid(child, &status, 0);
	V(WEXITSTATUS(status));
	p.sched_priority = 0;
	V(sched_setscheduler(0, SCHED_OTHER, &p));
	V(sched_getscheduler(0));
	V(prctl(PR_SET_TIMERSLACK, 70000, 0, 0, 0));
	child = fork();
	if (!child) {
		prctl(PR_SET_TIMERSLACK, 5, 0, 0, 0);
		prctl(PR_SET_TIMERSLACK, 0, 0, 0, 0);
		_exit(prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0) == 70000 ? 9 : 1);
	}
	waitpid(child, &status, 0);
	V(WEXITSTATUS(status));
	V(prctl(PR_SET_TIMERSLACK, 0, 0, 0, 0));
	V(prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0));
	V(prctl(PR_SET_THP_DISABLE, 1, 1, 0, 0));
	V(prctl(PR_GET_THP_DISABLE, 1, 0, 0, 0));
}

// Another user's process, root's, asked by nobody.
static void nobody(void)
{
	int status;
	pid_t root = getpid(), child = fork();
	if (child) {
		waitpid(child, &status, 0);
		return;
	}
	setgroups(0, NULL);
	setgid(65534);
	setuid(65534);
	struct sched_param p = {0};
	cpu_set_t set;
	sched_getaffinity(0, sizeof set, &set);
	V(sched_setscheduler(root, SCHED_OTHER, &p));
	V(sched_setparam(root, &p));
	V(sched_setaffinity(root, sizeof set, &set));
	V(setpriority(PRIO_PROCESS, root, 10));
	V(syscall(SYS_ioprio_set, 1, root, 2 << 13 | 4));
	void *head;
	size_t len;
	V(syscall(SYS_get_robust_list, root, &head, &len));
	V(sched_setaffinity(0, sizeof set, &set));
	V(setpriority(PRIO_PROCESS, 0, 10));
	V(setpriority(PRIO_PROCESS, 0, 5));
	int s = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(463), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	V(bind(s, (struct sockaddr *)&at, sizeof at));
	at.sin_port = 0;
	V(bind(s, (struct sockaddr *)&at, sizeof at));
	fflush(stdout);
	_exit(0);
}

static void names(void)
{
	struct utsname u;
	V(personality(PER_LINUX32));
	uname(&u);
	puts(u.machine);
	V(personality(ADDR_LIMIT_3GB | ADDR_COMPAT_LAYOUT));
	V(personality(0xffffffff));
	V(personality(PER_LINUX));
	uname(&u);
	puts(u.machine);
	char name[] = "/tmp/othersXXXXXX";
	int fd = mkstemp(name), link;
	char *args[] = {"true", NULL};
	V(execveat(AT_FDCWD, "/bin/true", args, args + 1, 0x4000));
	char to[64];
	snprintf(to, sizeof to, "%s.link", name);
	V(link = symlink("/bin/true", to));
	V(execveat(AT_FDCWD, to, args, args + 1, AT_SYMLINK_NOFOLLOW));
	unlink(to);
	close(fd);
	unlink(name);
}

static void maps(void)
{
	int zero = open("/dev/zero", O_RDONLY);
	V(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, zero, 0) == MAP_FAILED);
	char *p = mmap(NULL, 4096, PROT_READ, MAP_SHARED, zero, 0);
	V(p != MAP_FAILED && *p == 0);
	V(mprotect(p, 4096, PROT_READ | PROT_WRITE));
	close(zero);
	char name[] = "/tmp/othersXXXXXX";
	close(mkstemp(name));
	int fd = open(name, O_WRONLY);
	V(mmap(NULL, 0, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED);
	V(mmap(NULL, 1, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED);
	unlink(name);
	struct rusage u;
	int status;
	pid_t child = fork();
	if (!child) {
		p = mmap(NULL, 40 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		memset(p, 1, 40 << 20);
		_exit(0);
	}
	V(wait4(child, &status, 0, &u) == child);
	V(u.ru_maxrss >= 40 << 10 && u.ru_maxrss < 80 << 10);
	getrusage(RUSAGE_CHILDREN, &u);
	V(u.ru_maxrss >= 40 << 10 && u.ru_maxrss < 80 << 10);
}

int main(void)
{
	ids_of_threads();
	deadlock();
	exclusive();
	clocks();
	scheduling();
	nobody();
	names();
	maps();
	return 0;
}
