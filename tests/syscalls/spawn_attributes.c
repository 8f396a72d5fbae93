// posix_spawn with file actions and attributes; vfork, exec and exit statuses.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static char *self;

static int finish(pid_t pid)
{
	int status;
	if (waitpid(pid, &status, 0) != pid)
		return -errno;
	return status;
}

static int run(char *what, posix_spawn_file_actions_t *actions, posix_spawnattr_t *attr)
{
	char *argv[] = { self, "child", what, NULL };
	pid_t pid;
	fflush(stdout);
	int e = posix_spawn(&pid, self, actions, attr, argv, environ);
	if (e) {
		printf("%s: posix_spawn: %s\n", what, strerror(e));
		return -1;
	}
	int status = finish(pid);
	printf("%s: status %#x\n", what, status);
	return status;
}

// What the spawned program sees.
static int child(const char *what)
{
	if (!strcmp(what, "mask")) {
		sigset_t set;
		sigprocmask(SIG_BLOCK, NULL, &set);
		printf("  blocked:");
		for (int s = 1; s < 65; s++)
			if (sigismember(&set, s) == 1)
				printf(" %d", s);
		printf("\n");
	} else if (!strcmp(what, "default")) {
		for (int s = 1; s < 32; s++) {
			struct sigaction a;
			if (sigaction(s, NULL, &a) == 0 && a.sa_handler != SIG_DFL)
				printf("  %d %s\n", s, a.sa_handler == SIG_IGN ? "ignored" : "caught");
		}
	} else if (!strcmp(what, "group")) {
		printf("  leads its group: %d, its session: %d, same session: %d\n", getpgrp() == getpid(),
		       getsid(0) == getpid(), getsid(0) == getsid(getppid()));
	} else if (!strcmp(what, "files")) {
		for (int fd = 0; fd < 40; fd++) {
			int flags = fcntl(fd, F_GETFD);
			if (flags >= 0 && fd > 2)
				printf("  %d open, flags %d, mode %d\n", fd, flags, fcntl(fd, F_GETFL) & O_ACCMODE);
		}
		char text[100];
		ssize_t n = read(7, text, sizeof text);
		if (n > 0)
			printf("  read %.*s\n", (int)n, text);
		if (write(8, "from the child\n", 15) != 15)
			printf("  no 8: %s\n", strerror(errno));
	} else if (!strcmp(what, "where")) {
		char path[4096];
		printf("  in %s\n", strrchr(getcwd(path, sizeof path), '/'));
	} else if (!strcmp(what, "ids")) {
		printf("  %d %d %d %d\n", getuid(), geteuid(), getgid(), getegid());
	} else if (!strcmp(what, "status")) {
		return 77;
	} else if (!strcmp(what, "kill")) {
		raise(SIGTERM);
	}
	fflush(stdout);
	return 0;
}

static void on_signal(int s) { (void)s; }

int main(int argc, char **argv)
{
	if (argc > 2)
		return child(argv[2]);
	self = argv[0];
	// What the starter of the test left open is no difference.
	close_range(3, ~0U, 0);
	setvbuf(stdout, NULL, _IOFBF, 1 << 16);

	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	run("status", NULL, NULL);
	run("kill", NULL, NULL);

	// Handlers go back to default, what is ignored stays so, the mask is kept.
	signal(SIGUSR1, on_signal);
	signal(SIGUSR2, SIG_IGN);
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGALRM);
	sigprocmask(SIG_SETMASK, &set, NULL);
	run("default", NULL, NULL);
	run("mask", NULL, NULL);

	posix_spawnattr_init(&attr);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	sigset_t mask;
	sigemptyset(&mask);
	sigaddset(&mask, SIGHUP);
	sigaddset(&mask, SIGRTMIN);
	posix_spawnattr_setsigmask(&attr, &mask);
	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR2);
	posix_spawnattr_setsigdefault(&attr, &mask);
	run("mask", NULL, &attr);
	run("default", NULL, &attr);
	// The caller keeps what it had.
	sigprocmask(SIG_BLOCK, NULL, &set);
	printf("still blocked here: %d\n", sigismember(&set, SIGALRM));

	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP);
	posix_spawnattr_setpgroup(&attr, 0);
	run("group", NULL, &attr);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSID);
	run("group", NULL, &attr);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP);
	posix_spawnattr_setpgroup(&attr, 999999);
	run("group", NULL, &attr);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_RESETIDS | POSIX_SPAWN_USEVFORK);
	run("ids", NULL, &attr);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSCHEDPARAM);
	struct sched_param param = { 0 };
	posix_spawnattr_setschedparam(&attr, &param);
	run("status", NULL, &attr);

	// File actions, in their order.
	FILE *f = fopen("in", "w");
	fputs("some input", f);
	fclose(f);
	int kept = open("in", O_RDONLY), closed = open("in", O_RDONLY | O_CLOEXEC);
	dup2(kept, 30);
	dup2(kept, 31);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, 7, "in", O_RDONLY, 0);
	posix_spawn_file_actions_addopen(&actions, 8, "out", O_WRONLY | O_CREAT | O_TRUNC, 0640);
	posix_spawn_file_actions_adddup2(&actions, closed, closed);
	posix_spawn_file_actions_addclose(&actions, 30);
	posix_spawn_file_actions_addclose(&actions, 29);
	run("files", &actions, NULL);
	posix_spawn_file_actions_addclosefrom_np(&actions, 9);
	run("files", &actions, NULL);
	struct stat st;
	stat("out", &st);
	printf("out: %ld bytes\n", (long)st.st_size);
	posix_spawn_file_actions_destroy(&actions);

	mkdir("sub", 0755);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addchdir_np(&actions, "sub");
	run("where", &actions, NULL);
	int dir = open("sub", O_RDONLY | O_DIRECTORY);
	posix_spawn_file_actions_destroy(&actions);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addfchdir_np(&actions, dir);
	run("where", &actions, NULL);
	run("where", NULL, NULL);

	// What fails comes back as an error number.
	posix_spawn_file_actions_destroy(&actions);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, 7, "nothing", O_RDONLY, 0);
	run("open", &actions, NULL);
	posix_spawn_file_actions_destroy(&actions);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, 200, 7);
	run("dup2", &actions, NULL);
	char *args[] = { "x", NULL };
	pid_t pid;
	printf("none: %s\n", strerror(posix_spawn(&pid, "./none", NULL, NULL, args, environ)));
	printf("a file: %s\n", strerror(posix_spawn(&pid, "in", NULL, NULL, args, environ)));
	chmod("in", 0755);
	printf("no program: %s\n", strerror(posix_spawn(&pid, "in", NULL, NULL, args, environ)));
	printf("a directory: %s\n", strerror(posix_spawn(&pid, "sub", NULL, NULL, args, environ)));
	printf("by path: %s\n", strerror(posix_spawnp(&pid, "no-such-program", NULL, NULL, args, environ)));
	char *list[] = { "true", NULL };
	int e = posix_spawnp(&pid, "true", NULL, NULL, list, environ);
	printf("true: %s, status %#x\n", strerror(e), finish(pid));
	int r = waitpid(-1, NULL, WNOHANG);
	printf("nothing left: %d %s\n", r, strerror(errno));
	return 0;
}
