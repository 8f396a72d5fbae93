// What signals do to a process by default, seen by its parent; stopping and going on.
#include "case.h"
#include <spawn.h>
extern char **environ;

static void report(int status)
{
	if (WIFEXITED(status)) printf("exited %d\n", WEXITSTATUS(status));
	if (WIFSIGNALED(status)) printf("signalled %d\n", WTERMSIG(status));
	if (WIFSTOPPED(status)) printf("stopped %d\n", WSTOPSIG(status));
	if (WIFCONTINUED(status)) printf("continued\n");
}

int main(int argc, char **argv)
{
	if (argc > 1) {
		int s = atoi(argv[1]);
		struct rlimit_ { unsigned long a, b; } none = {0, 0};
		syscall(SYS_prlimit64, 0, 4, &none, 0);
		if (s < 0) {
			signal(-s, SIG_IGN);
			s = -s;
		}
		if (argc > 2) {
			switch (argv[2][0]) {
			case 's': *(volatile int *)8 = 1; break;
			case 'i': __asm__ volatile("ud2"); break;
			case 't': __asm__ volatile("int3"); break;
			case 'f': { volatile int z = 0; z = 1 / z; } break;
			case 'a': abort();
			case 'b': { sigset_t m; sigfillset(&m); sigprocmask(SIG_SETMASK, &m, 0); *(volatile int *)8 = 1; } break;
			case 'g': signal(SIGSEGV, SIG_IGN); *(volatile int *)8 = 1; break;
			case 'w': pause(); break;
			}
		}
		raise(s);
		return 3;
	}
	int dying[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 23, 24, 25, 26, 27, 28, 29, 30, 31, 34, 64, -1, -15};
	for (unsigned k = 0; k < sizeof dying / sizeof *dying; k++) {
		char n[8];
		sprintf(n, "%d", dying[k]);
		char *args[] = {argv[0], n, 0};
		pid_t pid;
		int status, r = posix_spawn(&pid, "/proc/self/exe", 0, 0, args, environ);
		if (r) {
			printf("spawn %s\n", err_(r));
			continue;
		}
		waitpid(pid, &status, 0);
		printf("%d: ", dying[k]);
		report(status);
	}
	for (char *w = "sitfabg"; *w; w++) {
		char n[2] = {*w, 0};
		char *args[] = {argv[0], "9", n, 0};
		pid_t pid;
		int status;
		posix_spawn(&pid, "/proc/self/exe", 0, 0, args, environ);
		waitpid(pid, &status, 0);
		printf("%c: ", *w);
		report(status);
	}
	SECTION("stopped and continued");
	char *args[] = {argv[0], "9", "w", 0};
	pid_t pid;
	int status;
	siginfo_t i;
	posix_spawn(&pid, "/proc/self/exe", 0, 0, args, environ);
	kill(pid, SIGSTOP);
	V(waitpid(pid, &status, WUNTRACED) == pid);
	report(status);
	V(waitpid(pid, &status, WUNTRACED | WNOHANG));
	kill(pid, SIGCONT);
	V(waitpid(pid, &status, WCONTINUED) == pid);
	report(status);
	V(waitid(P_PID, pid, &i, WEXITED | WNOHANG));
	kill(pid, SIGTERM);
	V(waitid(P_PID, pid, &i, WEXITED | WNOWAIT));
	printf("%d %d %d %d\n", i.si_signo, i.si_code, i.si_status, i.si_pid == pid);
	V(waitid(P_ALL, 0, &i, WEXITED));
	printf("%d %d %d %d\n", i.si_signo, i.si_code, i.si_status, i.si_pid == pid);
	V(waitid(P_PID, pid, &i, WEXITED));
	V(waitpid(-1, &status, 0));
	V(waitpid(pid, &status, 0xff00));
	V(waitid(P_ALL, 0, &i, 0));
	return 0;
}
