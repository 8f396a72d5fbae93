// A file that runs can't be written to, and one that is written to can't be run (ETXTBSY).
// timeout: 60
#include "case.h"

extern char **environ;
static char dir[] = "/tmp/busyXXXXXX";
static char program[64], script[64], other[64];

static void copy(const char *from, const char *to)
{
	char piece[65536];
	int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT, 0755);
	ssize_t n;
	while ((n = read(in, piece, sizeof piece)) > 0)
		write(out, piece, n);
	close(in);
	close(out);
}

static int run(const char *what)
{
	char *args[] = {(char *)what, "run", NULL};
	int status;
	fflush(stdout);
	pid_t p = fork();
	if (!p) {
		execve(what, args, environ);
		_exit(errno == ETXTBSY ? 77 : errno);
	}
	waitpid(p, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void attempts(void)
{
	int fd;
	V((fd = open(program, O_WRONLY)) >= 0 ? close(fd) : -1);
	V((fd = open(program, O_RDWR)) >= 0 ? close(fd) : -1);
	V((fd = open(program, O_RDONLY | O_TRUNC)) >= 0 ? close(fd) : -1);
	V((fd = open(program, O_WRONLY | O_CREAT, 0755)) >= 0 ? close(fd) : -1);
	V((fd = open(program, O_RDONLY)) >= 0 ? close(fd) : -1);
	V((fd = open(program, O_PATH | O_RDWR)) >= 0 ? close(fd) : -1);
	V(truncate(program, 1 << 20));
	V(access(program, W_OK));
	V(chmod(program, 0755));
}

int main(int argc, char **argv)
{
	int fd, status, at[2];
	char c;
	if (argc > 1 && !strcmp(argv[1], "run"))
		return 42;
	if (argc > 1) {
		// Runs until its standard input ends.
		write(1, "r", 1);
		read(0, &c, 1);
		return 43;
	}
	mkdtemp(dir);
	snprintf(program, sizeof program, "%s/program", dir);
	snprintf(script, sizeof script, "%s/script", dir);
	snprintf(other, sizeof other, "%s/other", dir);
	copy("/proc/self/exe", program);

	SECTION("written to");
	fd = open(program, O_WRONLY);
	V(run(program));
	int again = dup(fd);
	close(fd);
	V(run(program));
	close(again);
	V(run(program));
	fd = open(program, O_RDWR);
	link(program, other);
	V(run(other));
	close(fd);
	V(run(other));
	fd = open(program, O_RDONLY);
	V(run(program));
	close(fd);
	fd = open(script, O_WRONLY | O_CREAT, 0755);
	dprintf(fd, "#!%s\n", program);
	V(run(script));
	close(fd);
	// The interpreter gets the script's name for an argument, and ends at once without input.
	int null = open("/dev/null", O_RDWR), in = dup(0), out = dup(1);
	fflush(stdout);
	dup2(null, 0);
	dup2(null, 1);
	int first = run(script);
	fd = open(program, O_WRONLY);
	int second = run(script);
	close(fd);
	dup2(in, 0);
	dup2(out, 1);
	P(first);
	P(second);

	SECTION("running");
	int back[2];
	pipe2(at, O_CLOEXEC);
	pipe2(back, O_CLOEXEC);
	fflush(stdout);
	pid_t p = fork();
	if (!p) {
		dup2(at[0], 0);
		dup2(back[1], 1);
		execl(program, program, "wait", NULL);
		_exit(1);
	}
	read(back[0], &c, 1);
	attempts();
	V(run(program));
	V(rename(program, other));
	V(rename(other, program));
	close(at[1]);
	waitpid(p, &status, 0);
	P(WEXITSTATUS(status));
	attempts();

	V(unlink(program));
	V(unlink(script));
	V(unlink(other));
	V(rmdir(dir));
	return 0;
}
