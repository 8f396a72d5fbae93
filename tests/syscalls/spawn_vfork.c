// vfork: the parent waits until exec or exit; errors of exec reach it through
// shared memory; statuses, signals while it waits, exec from a second thread.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;
static char *self;
static volatile int shared;
static volatile sig_atomic_t caught;

static void on_signal(int s) { caught = s; }

static void show(const char *what, pid_t pid)
{
	int status = -1;
	pid_t got = waitpid(pid, &status, 0);
	printf("%s: %s, ", what, got == pid ? "waited" : strerror(errno));
	if (WIFEXITED(status))
		printf("exit %d\n", WEXITSTATUS(status));
	else if (WIFSIGNALED(status))
		printf("signal %d\n", WTERMSIG(status));
	else
		printf("status %#x\n", status);
}

static pid_t spawn(char *const argv[])
{
	shared = 0;
	pid_t pid = vfork();
	if (pid == 0) {
		execv(argv[0], argv);
		shared = errno;
		_exit(127);
	}
	if (shared)
		printf("exec of %s: %s\n", argv[0], strerror(shared));
	return pid;
}

static void *from_thread(void *arg)
{
	(void)arg;
	char *argv[] = { self, "exit", "5", NULL };
	show("spawned by a thread", spawn(argv));
	return NULL;
}

static void *runs_on(void *arg)
{
	(void)arg;
	for (;;)
		pause();
	return NULL;
}

static void *counts(void *arg)
{
	volatile int *n = arg;
	while (*n >= 0)
		++*n;
	return NULL;
}

static void *execs(void *arg)
{
	(void)arg;
	char *argv[] = { self, "who", NULL };
	execv(self, argv);
	return NULL;
}

int main(int argc, char **argv)
{
	self = argv[0];
	if (argc > 1) {
		if (!strcmp(argv[1], "exit"))
			return atoi(argv[2]);
		if (!strcmp(argv[1], "sleep")) {
			usleep(atoi(argv[2]) * 1000);
			return 0;
		}
		if (!strcmp(argv[1], "who")) {
			printf("one task, pid %s tid\n", getpid() == syscall(SYS_gettid) ? "is" : "is not");
			fflush(stdout);
			return 9;
		}
		if (!strcmp(argv[1], "thread-exec")) {
			pthread_t t;
			pthread_create(&t, NULL, runs_on, NULL);
			pthread_create(&t, NULL, execs, NULL);
			for (;;)
				pause();
		}
		if (!strcmp(argv[1], "show")) {
			for (int i = 2; i < argc; i++)
				printf("[%s]", argv[i]);
			for (char **e = environ; *e; e++)
				printf(" %s", *e);
			printf("\n");
			fflush(stdout);
			return 0;
		}
		return 1;
	}
	setvbuf(stdout, NULL, _IONBF, 0);

	// The child runs on the parent's memory, and the parent waits.
	shared = 0;
	pid_t pid = vfork();
	if (pid == 0) {
		struct timespec t = { 0, 30 * 1000 * 1000 };
		nanosleep(&t, NULL);
		shared = 1;
		_exit(3);
	}
	printf("child wrote %d\n", shared);
	show("_exit in the child", pid);

	char *exits[] = { self, "exit", "42", NULL };
	show("exec", spawn(exits));
	char *none[] = { "/no/such/program", NULL };
	show("nothing there", spawn(none));
	char *directory[] = { "/tmp", NULL };
	show("a directory", spawn(directory));
	char *no_exec[] = { "/etc/passwd", NULL };
	show("not executable", spawn(no_exec));
	int fd = open("junk", O_WRONLY | O_CREAT, 0755);
	if (write(fd, "junk\n", 5) != 5)
		return 1;
	close(fd);
	char *junk[] = { "./junk", NULL };
	show("no program", spawn(junk));
	fd = open("script", O_WRONLY | O_CREAT, 0755);
	dprintf(fd, "#!%s show\n", self);
	close(fd);
	environ = (char *[]){ "A=1", "B=", NULL };
	char *script[] = { "./script", "one", "", "three", NULL };
	show("a script", spawn(script));
	fd = open("lost", O_WRONLY | O_CREAT, 0755);
	dprintf(fd, "#!/no/such/interpreter\n");
	close(fd);
	char *lost[] = { "./lost", NULL };
	show("a script with no interpreter", spawn(lost));

	// Too many arguments: E2BIG, and the child is alive to say so.
	char *big = malloc(200 << 10);
	memset(big, 'x', (200 << 10) - 1);
	big[(200 << 10) - 1] = 0;
	char *long_one[] = { self, "exit", big, NULL };
	show("one argument of 200 KiB", spawn(long_one));
	static char *many[100];
	big[100 << 10] = 0;
	many[0] = self;
	for (int i = 1; i < 99; i++)
		many[i] = big;
	show("10 MB of arguments", spawn(many));

	// Killed while the parent waits for it.
	pid = vfork();
	if (pid == 0) {
		kill(getpid(), SIGKILL);
		_exit(1);
	}
	show("killed before exec", pid);

	// A signal for the waiting parent is handled afterwards.
	struct sigaction a = { .sa_handler = on_signal };
	sigaction(SIGUSR1, &a, NULL);
	pid = vfork();
	if (pid == 0) {
		kill(getppid(), SIGUSR1);
		struct timespec t = { 0, 10 * 1000 * 1000 };
		nanosleep(&t, NULL);
		shared = caught;
		_exit(0);
	}
	printf("in the child %d, then %d\n", shared, caught);
	show("signal", pid);

	// The child's handlers are its own: changing them leaves the parent's alone.
	pid = vfork();
	if (pid == 0) {
		signal(SIGUSR1, SIG_IGN);
		close(1);
		if (chdir("/") != 0)
			_exit(1);
		_exit(0);
	}
	sigaction(SIGUSR1, NULL, &a);
	printf("handler kept: %d\n", a.sa_handler == on_signal);
	show("own descriptors and directory", pid);
	printf("junk here: %d\n", access("junk", F_OK));

	// From a thread, while others run on.
	volatile int n = 0;
	pthread_t t, counter;
	pthread_create(&counter, NULL, counts, (void *)&n);
	pthread_create(&t, NULL, from_thread, NULL);
	pthread_join(t, NULL);
	int before = n;
	pid = vfork();
	if (pid == 0) {
		struct timespec ts = { 0, 100 * 1000 * 1000 };
		nanosleep(&ts, NULL);
		_exit(0);
	}
	printf("other threads ran meanwhile: %d\n", n > before);
	n = -1000000000;
	pthread_join(counter, NULL);
	show("slow child", pid);

	char *by_thread[] = { self, "thread-exec", NULL };
	show("exec by a second thread", spawn(by_thread));

	return 0;
}
