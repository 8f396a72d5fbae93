// Capabilities of files: who may give them, what a program has by them, and what takes them away, in a volume and in memory.
#include "case.h"
#include <grp.h>
#include <linux/capability.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#define B(cap) (1u << (cap))
#define NAME "security.capability"

static char path[400];

static void copy(void)
{
	static char b[1 << 20];
	int from = open("/proc/self/exe", O_RDONLY), to = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0755);
	for (ssize_t n; (n = read(from, b, sizeof b)) > 0;)
		if (write(to, b, n) != n)
			abort();
	close(from);
	close(to);
}

static long give(unsigned magic, unsigned permitted, unsigned inheritable, size_t size)
{
	struct vfs_ns_cap_data d = {.magic_etc = magic};
	d.data[0].permitted = permitted;
	d.data[0].inheritable = inheritable;
	return setxattr(path, NAME, &d, size, 0) ? -errno : 0;
}

static void has(void)
{
	struct vfs_ns_cap_data d = {0};
	long n = getxattr(path, NAME, &d, sizeof d);
	printf("has %ld %x %x\n", n < 0 ? -errno : n, d.data[0].permitted, d.data[0].inheritable);
}

static void show(void)
{
	struct __user_cap_header_struct h = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct d[2];
	syscall(SYS_capget, &h, d);
	printf("  uid %d %d e %x p %x i %x ambient %d secure %lu dumpable %d\n", getuid(), geteuid(), d[0].effective,
	       d[0].permitted, d[0].inheritable, prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, CAP_KILL, 0, 0),
	       getauxval(AT_SECURE), prctl(PR_GET_DUMPABLE));
	fflush(stdout);
}

static void user(void)
{
	if (setgroups(0, 0) || setgid(1234) || setuid(1234))
		abort();
}

static void plain(void) { user(); }
static void no_new(void)
{
	user();
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}
static void unbound(void)
{
	prctl(PR_CAPBSET_DROP, CAP_NET_RAW);
	user();
}
static void unbound_root(void) { prctl(PR_CAPBSET_DROP, CAP_NET_RAW); }
static void inherits(void)
{
	prctl(PR_SET_KEEPCAPS, 1);
	user();
	struct __user_cap_header_struct h = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct d[2] = {{B(CAP_KILL), B(CAP_KILL), B(CAP_KILL)}, {0}};
	if (syscall(SYS_capset, &h, d) || prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_KILL, 0, 0))
		abort();
}

static void run(const char *what, void (*f)(void))
{
	printf("%s\n", what);
	fflush(stdout);
	pid_t p = fork();
	if (!p) {
		f();
		execl(path, path, "show", NULL);
		printf("  exec %d\n", -errno);
		fflush(stdout);
		_exit(0);
	}
	int status;
	waitpid(p, &status, 0);
}

static void as_user(void)
{
	printf("a user's own file %ld\n", give(VFS_CAP_REVISION_2, 1, 0, 20));
	printf("removes %d\n", removexattr(path, NAME) ? -errno : 0);
	printf("another %d\n", setxattr(path, "security.other", "x", 1, 0) ? -errno : 0);
	fflush(stdout);
}

static void all(void)
{
	const unsigned low = B(CAP_NET_RAW) | B(CAP_NET_BIND_SERVICE);
	copy();
	has();
	run("nothing", plain);
	printf("give %ld\n", give(VFS_CAP_REVISION_2 | VFS_CAP_FLAGS_EFFECTIVE, low, B(CAP_KILL), 20));
	has();
	run("effective", plain);
	run("no new privileges", no_new);
	run("not in the bounding set", unbound);
	run("not in the bounding set, root", unbound_root);
	run("inherits", inherits);
	chmod(path, 04755);
	run("set-user-ID, too", plain);
	chmod(path, 0755);
	printf("give %ld\n", give(VFS_CAP_REVISION_2, low, 0, 20));
	run("not effective", plain);
	run("not in the bounding set", unbound);
	printf("sizes %ld %ld %ld %ld\n", give(VFS_CAP_REVISION_2, low, 0, 24), give(VFS_CAP_REVISION_3, low, 0, 20),
	       give(VFS_CAP_REVISION_1, low, 0, 12), give(0, low, 0, 20));
	int fd = open(path, O_WRONLY | O_APPEND);
	if (write(fd, "more", 4) != 4)
		abort();
	close(fd);
	has();
	run("written to", plain);
	printf("give %ld\n", give(VFS_CAP_REVISION_2, low, 0, 20));
	if (chown(path, 1234, 1234))
		abort();
	has();
	printf("give %ld\n", give(VFS_CAP_REVISION_2, low, 0, 20));
	fflush(stdout);
	pid_t p = fork();
	if (!p) {
		user();
		as_user();
		_exit(0);
	}
	waitpid(p, 0, 0);
	has();
	printf("removed %d\n", removexattr(path, NAME) ? -errno : 0);
	has();
	unlink(path);
}

int main(int argc, char **argv)
{
	if (argc > 1) {
		show();
		return 0;
	}
	chmod(".", 0755);
	if (!realpath(".", path))
		abort();
	strcat(path, "/program");
	all();
	snprintf(path, sizeof path, "/tmp/program.%d", getpid());
	all();
	return 0;
}
