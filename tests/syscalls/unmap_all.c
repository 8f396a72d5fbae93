// munmap(2) of all that there is, in one call: whatever lies there, the process has nothing left to go on with. Ranges that
// end behind what a program can have are refused.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define TOP 0x7ffffffff000ul

static void child(const char *what, unsigned long addr, unsigned long len, int blocked)
{
	fflush(stdout);
	pid_t pid = fork();
	if (pid == 0) {
		sigset_t set;
		sigemptyset(&set);
		sigaddset(&set, SIGSEGV);
		if (blocked)
			sigprocmask(SIG_BLOCK, &set, NULL);
		_exit(munmap((void *)addr, len) == 0 ? 0 : errno == EINVAL ? 1 : 2);
	}
	int status;
	waitpid(pid, &status, 0);
	printf("%s: %s %d\n", what, WIFSIGNALED(status) ? "signal" : "exit",
	       WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

int main(void)
{
	child("all", 0, TOP, 0);
	child("all, blocked", 0, TOP, 1);
	child("up to the stack's end", 4096, TOP - 4096, 0);
	child("beyond the top", 0, TOP + 4096, 0);
	child("beyond the top from the middle", 0x400000000000ul, TOP, 0);
	child("around again", 4096, -4096ul, 0);
	child("nothing of it mapped", 0x100000000000ul, 0x200000000000ul, 0);
	child("in the middle", 0x3ff000000000ul, 0x130000000000ul, 0);
	child("no length", 0, 0, 0);
	return 0;
}
