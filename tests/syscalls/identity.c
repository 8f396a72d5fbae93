// Who a process is: ids, groups, sessions, capabilities, prctl, personality, and small calls.
// nucleus-differs: open("/etc/shadow" (not everybody may pack that)
#include "case.h"
#include <grp.h>
#include <linux/capability.h>
#include <linux/membarrier.h>
#include <sys/fsuid.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>

static void ids(void)
{
	uid_t r, e, s;
	gid_t gr, ge, gs;
	getresuid(&r, &e, &s);
	getresgid(&gr, &ge, &gs);
	printf("uid %d %d %d gid %d %d %d fs %d %d\n", r, e, s, gr, ge, gs, setfsuid(-1), setfsgid(-1));
}

// By itself, without the C library, which would have all threads do it.
static void *alone(void *unused)
{
	(void)unused;
	V(syscall(SYS_setfsuid, 65534));
	V(open("private", O_RDONLY));
	V(syscall(SYS_setresgid, 21, 22, 23));
	V(syscall(SYS_setgroups, 1, (gid_t[]){7}));
	V(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	V(syscall(SYS_setresuid, 31, 32, 33));
	ids();
	// As /proc has it.
	char line[200], path[64];
	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof path, i ? "/proc/self/status" : "/proc/thread-self/status");
		FILE *f = fopen(path, "r");
		while (f && fgets(line, sizeof line, f))
			if (!strncmp(line, "Uid:", 4) || !strncmp(line, "Gid:", 4) || !strncmp(line, "NoNewPrivs:", 11) || !strncmp(line, "CapEff:", 7))
				fputs(strncmp(line, "CapEff:", 7) ? line : strspn(line + 7, "\t0\n") < strlen(line + 7) ? "some\n" : "none\n", stdout);
		if (f)
			fclose(f);
	}
	fflush(stdout);
	// Its children are like it.
	pid_t p = fork();
	if (!p) {
		ids();
		V(getgroups(0, 0));
		fflush(stdout);
		_exit(0);
	}
	waitpid(p, 0, 0);
	V(kill(getppid(), 0));
	V(syscall(SYS_setresuid, 0, 0, 0));
	return 0;
}

static void *like_its_maker(void *unused)
{
	ids();
	return unused;
}

static void *maker(void *unused)
{
	V(syscall(SYS_setresuid, 41, 42, 43));
	pthread_t t;
	pthread_create(&t, 0, like_its_maker, 0);
	pthread_join(t, 0);
	return unused;
}

static int asked[2], told[2];

static void *asks(void *unused)
{
	char c;
	write(told[1], "x", 1);
	read(asked[0], &c, 1);
	ids();
	return unused;
}

static void *runs(void *unused)
{
	syscall(SYS_setresgid, 5, 5, 5);
	syscall(SYS_setresuid, 4, 4, 4);
	execl("/proc/self/exe", "identity", "as it is", NULL);
	return unused;
}

static void threads(void)
{
	char c;
	pthread_t t;
	close(open("private", O_RDWR | O_CREAT, 0600));
	pthread_create(&t, 0, alone, 0);
	pthread_join(t, 0);
	ids();
	V(open("private", O_RDONLY) >= 0);
	V(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
	pthread_create(&t, 0, maker, 0);
	pthread_join(t, 0);
	ids();
	// The first thread's are those of the process, and nobody else's.
	pipe(asked);
	pipe(told);
	pthread_create(&t, 0, asks, 0);
	read(told[0], &c, 1);
	syscall(SYS_setresuid, -1, 51, -1);
	write(asked[1], "x", 1);
	pthread_join(t, 0);
	ids();
	syscall(SYS_setresuid, -1, 0, -1);
	// The C library's are all threads'.
	pthread_create(&t, 0, asks, 0);
	read(told[0], &c, 1);
	V(setresuid(-1, 61, -1));
	write(asked[1], "x", 1);
	pthread_join(t, 0);
	ids();
	V(setresuid(-1, 0, -1));
	fflush(stdout);
	pthread_create(&t, 0, runs, 0);
	pthread_join(t, 0);
}

/* What threads of a process have in common has the only one to itself already; bits that mean something else are refused. */
static void *shared(void *unused)
{
	(void)unused;
	V(unshare(CLONE_VM));
	V(unshare(CLONE_SIGHAND));
	V(unshare(CLONE_THREAD));
	V(unshare(CLONE_NEWUSER));
	V(unshare(CLONE_FILES));
	return 0;
}

static void apart(void)
{
	V(unshare(0));
	V(unshare(CLONE_VM | CLONE_SIGHAND | CLONE_THREAD));
	V(unshare(42));
	V(unshare(SIGCHLD));
	V(unshare(CLONE_PARENT));
	V(unshare(CLONE_FS | CLONE_SETTLS));
	V(syscall(SYS_unshare, 1ul << 40));
	pthread_t other;
	pthread_create(&other, 0, shared, 0);
	pthread_join(other, 0);
}

int main(int argc, char **argv)
{
	(void)argv;
	if (argc > 1) {
		ids();
		return 0;
	}
	SECTION("ids of threads");
	pid_t p = fork();
	if (!p) {
		threads();
		_exit(9);
	}
	int status;
	waitpid(p, &status, 0);
	P(status);
	SECTION("processes");
	printf("%d %d %u %u %u %u\n", getppid() != getpid(), getpid() > 0, getuid(), geteuid(), getgid(), getegid());
	P(getsid(0) > 0);
	P(getpgrp() == getpgid(0));
	V(getpgid(999999999));
	V(getsid(999999999));
	V(setpgid(0, -1));
	V(setpgid(999999999, 0));
	P(syscall(SYS_gettid) == getpid());
	SECTION("prctl");
	char name[17] = "";
	V(prctl(PR_SET_NAME, "a-new-name-that-is-long"));
	V(prctl(PR_GET_NAME, name));
	puts(name);
	V(prctl(PR_GET_DUMPABLE));
	V(prctl(PR_SET_DUMPABLE, 0));
	V(prctl(PR_GET_DUMPABLE));
	V(prctl(PR_SET_DUMPABLE, 7));
	V(prctl(PR_SET_DUMPABLE, 1));
	int sig = -1;
	V(prctl(PR_SET_PDEATHSIG, SIGTERM));
	V(prctl(PR_GET_PDEATHSIG, &sig));
	P(sig);
	V(prctl(PR_SET_PDEATHSIG, 99));
	V(prctl(PR_SET_PDEATHSIG, 0));
	V(prctl(PR_SET_KEEPCAPS, 1));
	V(prctl(PR_GET_KEEPCAPS));
	V(prctl(PR_SET_KEEPCAPS, 0));
	V(prctl(PR_SET_TIMERSLACK, 1000));
	V(prctl(PR_GET_TIMERSLACK));
	V(prctl(PR_SET_CHILD_SUBREAPER, 1));
	V(prctl(PR_GET_CHILD_SUBREAPER, &sig));
	P(sig);
	V(prctl(PR_GET_TID_ADDRESS, 8));
	V(prctl(PR_GET_SECCOMP) >= -1);
	V(prctl(PR_GET_TIMING));
	V(prctl(PR_MCE_KILL_GET, 0, 0, 0, 0));
	V(prctl(PR_MCE_KILL_GET, 1, 0, 0, 0));
	// Which of these a processor and its kernel do is another matter.
	X(prctl(PR_GET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, 0, 0, 0) >= 0);
	V(prctl(PR_GET_SPECULATION_CTRL, 77, 0, 0, 0));
	V(prctl(PR_GET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, 1, 0, 0));
	V(prctl(PR_SET_SPECULATION_CTRL, 77, PR_SPEC_ENABLE, 0, 0));
	V(prctl(PR_SET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, PR_SPEC_ENABLE, 1, 0));
	V(prctl(PR_SET_TIMING, PR_TIMING_STATISTICAL));
	V(prctl(PR_SET_TIMING, PR_TIMING_TIMESTAMP));
	V(prctl(PR_TASK_PERF_EVENTS_DISABLE));
	V(prctl(PR_TASK_PERF_EVENTS_ENABLE));
	V(prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, 0, 0, 0) >= -1);
	V(prctl(9999));
	V(prctl(PR_GET_NAME, 8));
	V(prctl(PR_CAPBSET_READ, CAP_CHOWN) >= 0);
	V(prctl(PR_CAPBSET_READ, 9999));
	V(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	V(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
	V(prctl(PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0));
	V(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0));
	V(prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0));
	SECTION("small calls");
	struct utsname u;
	V(uname(&u));
	printf("%s %s %d\n", u.sysname, u.machine, u.release[0] >= '5');
	V(uname((void *)8));
	struct sysinfo si;
	V(sysinfo(&si));
	P(si.totalram > 0 && si.freeram <= si.totalram && si.procs > 0 && si.mem_unit > 0 && si.uptime >= 0);
	char r[64] = {0}, z[64] = {0};
	V(getrandom(r, 64, 0));
	P(memcmp(r, z, 64) != 0);
	V(getrandom(r, 10, GRND_NONBLOCK));
	V(getrandom(r, 10, GRND_RANDOM));
	V(getrandom(r, 10, GRND_INSECURE));
	V(getrandom(r, 10, GRND_INSECURE | GRND_RANDOM));
	V(getrandom(r, 10, 0x100));
	V(getrandom((void *)8, 10, 0));
	V(getrandom(0, 0, 0));
	X(personality(0xffffffff));
	V(personality(ADDR_NO_RANDOMIZE));
	X(personality(0xffffffff));
	V(personality(0));
	V(syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0) > 0);
	V(syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0));
	V(syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0));
	V(syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0));
	V(syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 7, 0));
	V(syscall(SYS_membarrier, 1 << 30, 0, 0));
	V(syscall(500));
	V(syscall(-1));
	V(syscall(1L << 40));
	V(syscall(SYS_arch_prctl, 0x1003, 8));
	V(syscall(SYS_arch_prctl, 9999, 8));
	SECTION("what threads share, apart");
	apart();
	SECTION("capabilities");
	struct __user_cap_header_struct h = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct d[2];
	V(syscall(SYS_capget, &h, d));
	P((d[0].effective & 1) == (geteuid() == 0));
	h.version = 7;
	V(syscall(SYS_capget, &h, d));
	X(h.version);
	V(syscall(SYS_capget, &h, 0));
	h.pid = -1;
	V(syscall(SYS_capget, &h, d));
	SECTION("ids");
	gid_t g[70];
	if (geteuid() != 0)
		return 7;
	V(setgroups(3, (gid_t[]){5, 6, 7}));
	V(getgroups(0, 0));
	V(getgroups(2, g));
	V(getgroups(70, g));
	printf("%d %d %d\n", g[0], g[1], g[2]);
	V(getgroups(-1, g));
	V(setgroups(70000, g));
	ids();
	V(syscall(SYS_setresgid, 10, 11, 12));
	ids();
	V(syscall(SYS_setregid, 13, -1));
	ids();
	V(syscall(SYS_setresuid, 100, 0, 102));
	ids();
	V(syscall(SYS_setreuid, -1, 100));
	ids();
	V(syscall(SYS_setuid, 0));
	V(syscall(SYS_setuid, 100));
	V(syscall(SYS_setresuid, 0, 0, 0));
	V(syscall(SYS_setresuid, -1, 0, -1));
	ids();
	V(syscall(SYS_setgid, 99));
	V(setgroups(0, 0));
	V(open("/etc/shadow", O_RDONLY));
	V(chown("/tmp", 0, 0));
	V(setpriority(0, 0, -5));
	V(chroot("/"));
	V(syscall(SYS_mount, "a", "/", "c", 0, 0));
	V(syscall(SYS_reboot, 0, 0, 0, 0));
	return 7;
}
