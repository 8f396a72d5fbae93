// seccomp(2): a filter that asks the tracer, who goes on, skips the call, makes another one of it, or one that may not be.
// strace: alone
#include "case.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/user.h>

static void forbid(long number, unsigned said)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, said), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog p = { .len = 4, .filter = code };
	V(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p, 0, 0));
}

int main(void)
{
	pid_t pid = fork();
	if (pid == 0) {
		ptrace(PTRACE_TRACEME, 0, 0, 0);
		raise(SIGSTOP);
		prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
		forbid(SYS_getcwd, SECCOMP_RET_TRACE | 77);
		forbid(SYS_getpriority, SECCOMP_RET_ERRNO | EXDEV);
		// Skipped; goes on; another one; one that may not be.
		V(syscall(SYS_getcwd, 1, 1));
		V(syscall(SYS_getcwd, 2, 0));
		V(syscall(SYS_getcwd, 0, 0));
		V(syscall(SYS_getcwd, 0, 0));
		fflush(stdout);
		_exit(0);
	}
	int status, n = 0;
	waitpid(pid, &status, 0);
	ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESECCOMP);
	while (ptrace(PTRACE_CONT, pid, 0, 0), waitpid(pid, &status, 0), WIFSTOPPED(status)) {
		unsigned long message = 0;
		struct user_regs_struct r;
		ptrace(PTRACE_GETEVENTMSG, pid, 0, &message);
		ptrace(PTRACE_GETREGS, pid, 0, &r);
		printf("stop %x, %lu, call %lld, rax %lld\n", status >> 8, message, (long long)r.orig_rax, (long long)r.rax);
		if (n == 0) {
			r.orig_rax = -1;
			r.rax = 99;
		} else if (n == 2) {
			r.orig_rax = SYS_getpgid;
			r.rdi = 0x7fffffff;
		} else if (n == 3) {
			r.orig_rax = SYS_getpriority;
		}
		ptrace(PTRACE_SETREGS, pid, 0, &r);
		n++;
		fflush(stdout);
	}
	printf("tracee: %x\n", status);
}
