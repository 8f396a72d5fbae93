// Capabilities: capget, capset, prctl, what changes of user ids and exec do to them, and what they allow.
#include "case.h"
#include <grp.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <sys/fsuid.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/xattr.h>

#define B(cap) (1ull << (cap))
// Those that every host's root has, in a container, too.
static const unsigned long long some = B(CAP_CHOWN) | B(CAP_DAC_OVERRIDE) | B(CAP_FOWNER) | B(CAP_FSETID) |
	B(CAP_KILL) | B(CAP_SETGID) | B(CAP_SETUID) | B(CAP_SETPCAP) | B(CAP_NET_BIND_SERVICE) | B(CAP_SYS_CHROOT) | B(CAP_MKNOD);

static long set(unsigned long long e, unsigned long long p, unsigned long long i)
{
	struct __user_cap_header_struct h = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct d[2] = {{e, p, i}, {e >> 32, p >> 32, i >> 32}};
	return syscall(SYS_capset, &h, d);
}

static unsigned long long all(int which)
{
	unsigned long long found = 0;
	for (int cap = 0; cap < 64; cap++)
		if ((which ? prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, cap, 0, 0) : prctl(PR_CAPBSET_READ, cap)) == 1)
			found |= B(cap);
	return found;
}

static void show(void)
{
	struct __user_cap_header_struct h = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct d[2];
	syscall(SYS_capget, &h, d);
	printf("uid %d %d e %llx p %llx i %llx b %llx a %llx secure %d new %d dumpable %d\n", getuid(), geteuid(),
	       d[0].effective | (unsigned long long)d[1].effective << 32, d[0].permitted | (unsigned long long)d[1].permitted << 32,
	       d[0].inheritable | (unsigned long long)d[1].inheritable << 32, all(0), all(1), prctl(PR_GET_SECUREBITS),
	       prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), prctl(PR_GET_DUMPABLE));
	char line[200];
	FILE *f = fopen("/proc/self/status", "r");
	while (fgets(line, sizeof line, f))
		if (!strncmp(line, "Cap", 3) || !strncmp(line, "NoNew", 5) || !strncmp(line, "Groups", 6))
			printf("  %s", line);
	fclose(f);
	fflush(stdout);
}

static const char *self;
static void again(void)
{
	fflush(stdout);
	execl("/proc/self/exe", self, "shows", NULL);
	printf("exec: %s\n", err_(errno));
	fflush(stdout);
}

static void becomes_user(void)
{
	V(prctl(PR_SET_PDEATHSIG, SIGTERM));
	V(setresuid(33, 33, 33));
	int sig = -1;
	prctl(PR_GET_PDEATHSIG, &sig);
	X(sig);
	show();
	V(kill(getppid(), 0));
	V(set(1, 1, 0));
	V(set(0, 0, 0));
	V(setuid(0));
	V(prctl(PR_CAPBSET_DROP, CAP_CHOWN));
	V(prctl(PR_SET_SECUREBITS, 1));
	again();
}

static void effective_only(void)
{
	V(seteuid(33));
	show();
	V(seteuid(0));
	show();
	V(setresuid(33, 33, 0));
	show();
	V(setuid(0));
	show();
	again();
}

static void keeps(void)
{
	V(prctl(PR_SET_KEEPCAPS, 1));
	V(prctl(PR_SET_KEEPCAPS, 2));
	V(prctl(PR_GET_KEEPCAPS));
	V(setresuid(33, 33, 33));
	show();
	V(set(B(CAP_KILL), some, B(CAP_KILL) | B(CAP_CHOWN)));
	show();
	V(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_KILL, 0, 0));
	V(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_SETUID, 0, 0));
	V(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_CHOWN, 0, 0));
	V(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_LOWER, CAP_CHOWN, 0, 0));
	V(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_CHOWN, 0, 1));
	V(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, 64, 0, 0));
	V(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 1, 0, 0));
	V(prctl(PR_CAP_AMBIENT, 9, 1, 0, 0));
	V(kill(getppid(), 0));
	show();
	again();
}

static void clears_ambient(void)
{
	V(set(some, some, some));
	V(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_KILL, 0, 0));
	V(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_CHOWN, 0, 0));
	V(set(some, some, some & ~B(CAP_CHOWN)));
	show();
	V(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0));
	show();
}

static void secures(void)
{
	V(prctl(PR_SET_SECUREBITS, 1 << 20));
	V(prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP | SECBIT_KEEP_CAPS_LOCKED));
	V(prctl(PR_SET_KEEPCAPS, 1));
	V(prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP));
	V(setresuid(33, 33, 33));
	show();
	V(prctl(PR_SET_SECUREBITS, SECBIT_NOROOT | SECBIT_KEEP_CAPS_LOCKED | SECBIT_NO_CAP_AMBIENT_RAISE));
	V(set(some, some, some));
	V(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_KILL, 0, 0));
	V(setresuid(0, 0, 0));
	again();
}

static void nothing_new(void)
{
	V(prctl(PR_SET_NO_NEW_PRIVS, 2, 0, 0, 0));
	V(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 1));
	V(set(B(CAP_KILL), B(CAP_KILL) | B(CAP_CHOWN), 0));
	V(set(B(CAP_KILL), some, 0));
	V(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	again();
}

static void regains(void)
{
	V(set(B(CAP_SETPCAP), B(CAP_SETPCAP), 0));
	V(prctl(PR_CAPBSET_DROP, CAP_CHOWN));
	V(prctl(PR_CAPBSET_DROP, 64));
	V(prctl(PR_CAPBSET_READ, CAP_CHOWN));
	V(set(0, B(CAP_SETPCAP), B(CAP_CHOWN)));
	V(prctl(PR_CAPBSET_DROP, CAP_KILL));
	again();
}

static void for_files(void)
{
	V(setfsuid(33));
	show();
	V(open("secret", O_RDONLY));
	V(setfsuid(0));
	show();
	V(open("secret", O_RDONLY) >= 0);
}

// Without one capability after the other: what does not work any more?
static void uses(void)
{
	static const int caps[] = {-1, CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_FSETID, CAP_SETGID, CAP_SETUID,
		CAP_SYS_CHROOT, CAP_MKNOD};
	for (size_t n = 0; n < sizeof caps / sizeof *caps; n++) {
		unsigned long long with = some & (n ? ~B(caps[n]) : ~0ull);
		printf("without %d\n", caps[n]);
		V(set(with, some, 0));
		V(chown("hers", 7, -1));
		V(chown("hers", -1, 9));
		V(chown("hers", 1000, 1000));
		V(close(open("hers", O_RDWR)));
		V(access("hers", R_OK));
		V(faccessat(AT_FDCWD, "hers", R_OK, AT_EACCESS));
		V(close(open("locked/file", O_RDONLY)));
		V(close(open("locked/new", O_CREAT, 0600)));
		V(unlink("locked/new"));
		V(chmod("hers", 02644));
		struct stat st;
		V(stat("hers", &st));
		printf("%o\n", st.st_mode);
		V(chmod("hers", 0600));
		V(utimensat(AT_FDCWD, "hers", (struct timespec[]){{1, 0}, {2, 0}}, 0));
		V(rename("sticky/hers", "sticky/other"));
		V(rename("sticky/other", "sticky/hers"));
		V(setgroups(2, (gid_t[]){9, 8}));
		V(setgroups(0, 0));
		V(setresgid(5, 5, 0));
		V(setresgid(0, 0, 0));
		V(setresuid(-1, 5, -1));
		V(setresuid(-1, 0, -1));
		V(set(with, some, 0));
		V(chroot("."));
		V(mknod("device", S_IFCHR | 0600, 0x103));
		V(unlink("device"));
	}
	V(set(some, some, 0));
	// Those that no container has.
	V(setpriority(PRIO_PROCESS, 0, -1));
	struct rlimit r;
	getrlimit(RLIMIT_CORE, &r);
	r.rlim_cur = r.rlim_max = 0;
	V(setrlimit(RLIMIT_CORE, &r));
	r.rlim_max = 1;
	V(setrlimit(RLIMIT_CORE, &r));
	V(sethostname("a", 1));
	V(sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){1}));
	int q = msgget(IPC_PRIVATE, 0);
	struct msqid_ds ds;
	V(msgctl(q, IPC_STAT, &ds));
	V(msgctl(q, IPC_RMID, 0));
}

int main(int argc, char **argv)
{
	self = argv[0];
	if (argc > 1) {
		show();
		return 0;
	}
	if (geteuid() != 0)
		return 7;
	umask(0);
	V(setgroups(4, (gid_t[]){30, 7, 20, 7}));
	gid_t g[4];
	V(getgroups(4, g));
	printf("%d %d %d %d\n", g[0], g[1], g[2], g[3]);
	for (int cap = 0; cap <= CAP_LAST_CAP; cap++)
		if (!(some & B(cap)) && prctl(PR_CAPBSET_READ, cap) == 1 && prctl(PR_CAPBSET_DROP, cap))
			printf("can't drop %d\n", cap);
	V(set(some, some, 0));
	show();
	SECTION("versions");
	struct __user_cap_header_struct h = {_LINUX_CAPABILITY_VERSION_1, 0};
	struct __user_cap_data_struct d[2] = {{7, 7, 7}, {7, 7, 7}};
	V(syscall(SYS_capget, &h, d));
	printf("%x %x\n", d[0].permitted, d[1].permitted);
	V(syscall(SYS_capset, &h, d));
	h.version = _LINUX_CAPABILITY_VERSION_2;
	V(syscall(SYS_capget, &h, d));
	printf("%x %x\n", d[0].permitted, d[1].permitted);
	h.pid = 1 << 30;
	V(syscall(SYS_capget, &h, d));
	V(syscall(SYS_capset, &h, d));
	h.pid = -1;
	V(syscall(SYS_capget, &h, d));
	h.version = 3;
	V(syscall(SYS_capset, &h, d));
	X(h.version);
	V(syscall(SYS_capget, 8, d));
	h.pid = 0;
	V(syscall(SYS_capset, &h, 8));
	V(set(~0ull, some, 0));
	V(set(0, ~0ull, 0));
	V(set(some, some, ~0ull));
	V(prctl(PR_CAPBSET_READ, 64));
	SECTION("users");
	end_child(begin_child(becomes_user));
	end_child(begin_child(effective_only));
	end_child(begin_child(keeps));
	end_child(begin_child(clears_ambient));
	end_child(begin_child(secures));
	end_child(begin_child(nothing_new));
	end_child(begin_child(regains));
	SECTION("uses");
	char dir[] = "/tmp/capabilities.XXXXXX";
	if (!mkdtemp(dir) || chdir(dir))
		return 1;
	close(open("secret", O_CREAT, 0));
	close(open("hers", O_CREAT, 0600));
	mkdir("locked", 0);
	close(open("locked/file", O_CREAT, 0666));
	mkdir("sticky", 01777);
	close(open("sticky/hers", O_CREAT, 0600));
	V(chown("hers", 1000, 1000));
	V(chown("locked", 1000, 1000));
	V(chown("sticky/hers", 1000, 1000));
	V(chown("sticky", 1000, 1000));
	end_child(begin_child(for_files));
	end_child(begin_child(uses));
	return 0;
}
