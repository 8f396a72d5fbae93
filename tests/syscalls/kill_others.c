// Processes that send signals to each other, to their group and to all at the same time, all of them to one that is stopped and goes on: each
// comes to its end.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COUNT = 4, TIMES = 3000 };

int main(void)
{
	pid_t pids[COUNT], target;
	int go[2];
	char c;
	if (pipe(go))
		return 1;
	// Who leads a session has a group of its own.
	setpgid(0, 0);
	signal(SIGUSR1, SIG_IGN);
	target = fork();
	if (target == 0) {
		close(go[1]);
		for (;;)
			pause();
	}
	for (int n = 0; n < COUNT; n++) {
		pids[n] = fork();
		if (pids[n] == 0) {
			close(go[1]);
			// All know those before them.
			int failed = read(go[0], &c, 1) != 0;
			for (int i = 0; i < TIMES; i++) {
				failed += kill(getppid(), 0) != 0;
				for (int k = 0; k < n; k++)
					kill(pids[k], i & 1 ? SIGUSR1 : 0);
				failed += kill(0, SIGUSR1) != 0;
				failed += kill(target, i & 1 ? SIGSTOP : SIGCONT) != 0;
				if (i % 16 == 0)
					failed += kill(-1, 0) != 0;
			}
			_exit(failed != 0);
		}
	}
	close(go[1]);
	int failed = 0;
	for (int n = 0; n < COUNT; n++)
		for (int i = 0; i < TIMES; i++)
			failed += kill(pids[n], 0) != 0;
	for (int n = 0; n < COUNT; n++) {
		int status;
		waitpid(pids[n], &status, 0);
		failed += status != 0;
	}
	kill(target, SIGKILL);
	failed += waitpid(target, NULL, 0) != target;
	printf("%d failed\n", failed);
	return 0;
}
