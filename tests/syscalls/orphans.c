// Orphans: who takes them over, and what that one hears of their ends; whose child a thread's is, and who hears of the thread's end.
// timeout: 60
#include "case.h"
#include <sys/prctl.h>

static sigset_t both;
static int gate[2];
static volatile struct {
	pid_t pid;
	int step, said;
} *shared;

// A child that tells of its end by this signal.
static pid_t forks(int signal)
{
	fflush(stdout);
	return syscall(SYS_clone, signal, 0, 0, 0, 0);
}
// The next of the blocked signals.
static void heard(pid_t of)
{
	siginfo_t i;
	struct timespec t = {10, 0};
	int s = sigtimedwait(&both, &i, &t);
	printf("heard %d: code %d status %d of it %d\n", s, i.si_code, i.si_status, i.si_pid == of);
}
static void waited(pid_t pid, int options)
{
	int status = 0;
	pid_t r = waitpid(pid, &status, options);
	printf("waited: %d %#x\n", r == pid, status);
}
static void until_step(int step)
{
	for (int n = 0; shared->step < step && n < 5000; n++)
		sleep_ms(2);
}

// The middle one's child ends before it, or when the gate is opened.
static pid_t middle(int signal, int before)
{
	pipe(gate);
	pid_t m = forks(SIGUSR1);
	if (!m) {
		pid_t p = forks(signal);
		if (!p) {
			char c;
			close(gate[1]);
			if (!before)
				read(gate[0], &c, 1);
			_exit(7);
		}
		shared->pid = p;
		siginfo_t i;
		if (before)
			waitid(P_PID, p, &i, WEXITED | WNOWAIT | __WALL);
		_exit(3);
	}
	close(gate[0]);
	return m;
}

static void gone(pid_t p)
{
	int n = 0;
	while (kill(p, 0) == 0 && n++ < 2000)
		sleep_ms(5);
	OK(kill(p, 0));
	OK(waitpid(p, 0, __WALL));
}

static void orphans(void)
{
	static const int signals[] = {SIGCHLD, SIGUSR2, 0};
	for (int n = 0; n < 6; n++) {
		int signal = signals[n / 2], before = n % 2;
		printf("its signal %d, ends before: %d\n", signal, before);
		pid_t m = middle(signal, before);
		waited(m, __WALL);
		close(gate[1]);
		heard(m);
		heard(shared->pid);
		waited(shared->pid, 0);
	}
	SECTION("nobody waits");
	for (int n = 0; n < 4; n++) {
		struct sigaction a = {.sa_handler = n & 1 ? SIG_IGN : SIG_DFL, .sa_flags = n & 1 ? 0 : SA_NOCLDWAIT};
		sigaction(SIGCHLD, &a, 0);
		pid_t m = middle(SIGCHLD, n / 2);
		waited(m, __WALL);
		close(gate[1]);
		gone(shared->pid);
		struct timespec t = {0, 0};
		while (sigtimedwait(&both, 0, &t) > 0)
			;
	}
	signal(SIGCHLD, SIG_DFL);
}

// Makes a process whose parent is its own.
static void makes_sibling(void)
{
	pid_t above = getppid();
	pid_t p = syscall(SYS_clone, CLONE_PARENT | SIGUSR2, 0, 0, 0, 0);
	if (!p) {
		shared->said = getppid() == above;
		shared->step = 1;
		_exit(5);
	}
	shared->pid = p;
	OK(p > 0);
	until_step(1);
	OK(waitpid(p, NULL, __WALL));
	shared->step = 2;
	until_step(3);
	_exit(3);
}
static void siblings(void)
{
	shared->step = 0;
	pid_t maker = forks(SIGUSR1);
	if (!maker)
		makes_sibling();
	until_step(2);
	P(shared->said);
	// It tells of its end as its maker would.
	heard(shared->pid);
	waited(shared->pid, __WALL);
	shared->step = 3;
	heard(maker);
	waited(maker, __WALL);
	SECTION("an orphan's");
	shared->step = 0;
	pid_t middle = forks(SIGCHLD);
	if (!middle) {
		pid_t own = getpid();
		if (!fork()) {
			while (getppid() == own)
				sleep_ms(1);
			makes_sibling();
		}
		_exit(0);
	}
	heard(middle);
	waited(middle, 0);
	until_step(2);
	P(shared->said);
	shared->step = 3;
}

// Two subreapers and their descendants are killed at once: whoever is left comes to the one that lives.
static void at_once(void)
{
	int bad = 0;
	for (int round = 0; round < 150; round++) {
		shared->step = 0;
		fflush(stdout);
		pid_t p[3];
		pipe(gate);
		p[0] = fork();
		if (!p[0]) {
			prctl(PR_SET_CHILD_SUBREAPER, 1);
			for (int n = 1; n < 3; n++)
				if (fork())
					break;
				else if (n == 1)
					prctl(PR_SET_CHILD_SUBREAPER, 1);
				else
					shared->step = getpid();
			char c;
			close(gate[1]);
			read(gate[0], &c, 1);
			_exit(0);
		}
		close(gate[0]);
		until_step(1);
		// All three read the same pipe.
		close(gate[1]);
		int ended = 0;
		alarm(20);
		while (wait(0) > 0)
			ended++;
		alarm(0);
		bad += ended != 3;
	}
	P(bad);
}

static void *asks(void *p)
{
	sigset_t s;
	sigemptyset(&s);
	sigaddset(&s, SIGUSR1);
	prctl(PR_SET_PDEATHSIG, SIGUSR1);
	shared->step = 1;
	pause();
	return p;
}
static pid_t above;
// A process one of whose threads has asked for its maker's death.
static void listens(void)
{
	pthread_t t;
	above = getppid();
	pthread_create(&t, 0, asks, 0);
	for (int n = 0; n < 2; n++) {
		siginfo_t i;
		struct timespec ten = {10, 0};
		int s = sigtimedwait(&both, &i, &ten);
		printf("told %d: code %d of the parent %d, same parent %d\n", s, i.si_code, i.si_pid == above, getppid() == above);
		shared->said++;
	}
	fflush(stdout);
	_exit(4);
}
static void *makes(void *p)
{
	fflush(stdout);
	pid_t child = fork();
	if (!child)
		listens();
	shared->pid = child;
	until_step(2);
	return p;
}
static void in_thread(void)
{
	pthread_t t;
	pthread_create(&t, 0, makes, 0);
	until_step(1);
	while (!shared->pid)
		sleep_ms(2);
	pid_t p = shared->pid;
	V(waitpid(p, 0, WNOHANG));
	V(waitpid(p, 0, WNOHANG | __WNOTHREAD));
	V(waitid(P_ALL, 0, 0, WEXITED | WNOHANG | __WNOTHREAD));
	V(waitid(P_ALL, 0, 0, WEXITED | WNOHANG));
	shared->step = 2;
	pthread_join(t, 0);
	// That it has ended is known after it has been joined.
	while (!shared->said)
		sleep_ms(2);
	V(waitpid(p, 0, WNOHANG | __WNOTHREAD));
	fflush(stdout);
}

// The thread that forks is the one that execs later, and so becomes the first.
static void *becomes_first(void *self)
{
	pid_t p = fork();
	if (!p)
		_exit(6);
	char number[16];
	snprintf(number, sizeof number, "%d", p);
	execl(self, self, number, NULL);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc > 1) {
		pid_t p = atoi(argv[1]);
		if (argc > 2) {
			// It was to tell another program of its end.
			sigprocmask(SIG_BLOCK, 0, &both);
			kill(p, SIGTERM);
			heard(p);
		}
		waited(p, argc > 2 ? __WALL : __WNOTHREAD);
		return 0;
	}
	shared = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	sigemptyset(&both);
	sigaddset(&both, SIGCHLD);
	sigaddset(&both, SIGUSR1);
	sigaddset(&both, SIGUSR2);
	sigprocmask(SIG_BLOCK, &both, 0);
	SECTION("children of one's parent");
	siblings();
	V(prctl(PR_SET_CHILD_SUBREAPER, 1));
	SECTION("orphans");
	orphans();
	SECTION("all at once");
	at_once();
	SECTION("a thread's child");
	memset((void *)shared, 0, sizeof *shared);
	pid_t p = begin_child(in_thread);
	V(waitid(P_PID, p, 0, WEXITED | WNOWAIT));
	waited(shared->pid, 0);
	P(end_child(p));
	SECTION("a parent that execs");
	fflush(stdout);
	if (!fork()) {
		char number[16];
		p = forks(SIGUSR2);
		if (!p) {
			pause();
			_exit(1);
		}
		snprintf(number, sizeof number, "%d", p);
		execl("/proc/self/exe", argv[0], number, "hears", NULL);
	}
	wait(0);
	SECTION("a thread that execs");
	fflush(stdout);
	if (!fork()) {
		pthread_t t;
		pthread_create(&t, 0, becomes_first, "/proc/self/exe");
		pause();
	}
	wait(0);
	return 0;
}
