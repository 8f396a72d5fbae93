// What must not be done: opening beyond RLIMIT_NOFILE, renaming into oneself, names in directories that are gone, ways out of where one
// is confined to, flags that there aren't; and what a file system says of its room.
// nucleus-on: tmpfs
#include "case.h"
#include <linux/openat2.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <sys/vfs.h>

static void full_table(void)
{
	close(open("there", O_CREAT | O_WRONLY, 0600));
	int f = open("there", O_WRONLY);
	write(f, "kept", 4), close(f);
	struct rlimit old, limit;
	getrlimit(RLIMIT_NOFILE, &old);
	limit = (struct rlimit){3, old.rlim_max};
	setrlimit(RLIMIT_NOFILE, &limit);
	V(open("there", O_WRONLY | O_TRUNC));
	V(open("new", O_CREAT | O_WRONLY, 0600));
	struct open_how how = {.flags = O_CREAT | O_WRONLY, .mode = 0600};
	V(syscall(SYS_openat2, AT_FDCWD, "new", &how, sizeof how));
	V(creat("new", 0600));
	V(open("missing/new", O_RDONLY));
	setrlimit(RLIMIT_NOFILE, &old);
	struct stat s;
	V(stat("there", &s));
	P(s.st_size);
	V(access("new", F_OK));
}
static void into_itself(void)
{
	char cwd[PATH_MAX], path[PATH_MAX + 10];
	getcwd(cwd, sizeof cwd);
	mkdir("d", 0755), mkdir("d/sub", 0755), mkdir("e", 0755);
	close(creat("d/sub/x", 0600));
	chdir("d/sub");
	snprintf(path, sizeof path, "%s/d", cwd);
	V(renameat2(AT_FDCWD, "x", AT_FDCWD, path, RENAME_EXCHANGE));
	V(renameat2(AT_FDCWD, path, AT_FDCWD, "x", RENAME_EXCHANGE));
	V(rename("x", path));
	V(rename(path, "x"));
	V(rename(path, "y"));
	V(renameat2(AT_FDCWD, "x", AT_FDCWD, path, RENAME_NOREPLACE));
	P(getcwd(path, sizeof path) && !strcmp(path + strlen(cwd), "/d/sub"));
	chdir(cwd);
	V(rename("d/sub", "d"));
	V(rename("d/sub/x", "d"));
	V(rename("d/sub/x", "e"));
	V(renameat2(AT_FDCWD, "d/sub/x", AT_FDCWD, "e", RENAME_EXCHANGE));
	V(rename("d/sub/x", "e"));
	V(access("d/sub/x/.", F_OK));
	V(renameat2(AT_FDCWD, "d", AT_FDCWD, "d/sub", RENAME_EXCHANGE));
	unlink("e"), rmdir("d/sub/x"), rmdir("d/sub"), rmdir("d");
	// A directory that gets another one above it is written to.
	mkdir("a", 0777), mkdir("a/in", 0755), mkdir("b", 0777), mkdir("b/other", 0755);
	chmod("a", 0777), chmod("b", 0777);
	fflush(stdout);
	pid_t child = fork();
	if (!child) {
		setgid(1000), setuid(1000);
		V(rename("a/in", "a/in2"));
		V(rename("a/in2", "b/in2"));
		V(renameat2(AT_FDCWD, "a/in2", AT_FDCWD, "b/other", RENAME_EXCHANGE));
		_exit(0);
	}
	waitpid(child, 0, 0);
	rmdir("a/in2"), rmdir("a/in"), rmdir("b/in2"), rmdir("b/other"), rmdir("a"), rmdir("b");
}
static void gone(void)
{
	close(creat("file", 0600));
	mkdir("gone", 0755);
	int dir = open("gone", O_RDONLY | O_DIRECTORY);
	rmdir("gone");
	V(linkat(AT_FDCWD, "file", dir, "linked", 0));
	V(renameat(AT_FDCWD, "file", dir, "moved"));
	V(renameat2(AT_FDCWD, "file", dir, "moved", RENAME_EXCHANGE));
	V(mkdirat(dir, "made", 0755));
	V(symlinkat("x", dir, "made"));
	V(openat(dir, "made", O_CREAT | O_WRONLY, 0600));
	V(access("file", F_OK));
	struct stat s;
	stat("file", &s);
	P(s.st_nlink);
	unlink("file"), close(dir);
}
static long confined(int dir, const char *path, uint64_t resolve)
{
	struct open_how how = {.flags = O_RDONLY, .resolve = resolve};
	long f = syscall(SYS_openat2, dir, path, &how, sizeof how);
	if (f >= 0)
		close(f), f = 0;
	return f;
}
static void ways_out(void)
{
	int proc = open("/proc", O_RDONLY | O_DIRECTORY), here = open(".", O_RDONLY | O_DIRECTORY);
	V(confined(proc, "self/root/proc/version", RESOLVE_BENEATH));
	V(confined(proc, "self/root/proc/version", RESOLVE_IN_ROOT));
	V(confined(proc, "self/root/proc/version", RESOLVE_NO_XDEV));
	V(confined(proc, "self/root/proc/version", RESOLVE_NO_MAGICLINKS));
	V(confined(proc, "self/root/proc/version", 0));
	V(confined(proc, "self/cwd", RESOLVE_BENEATH));
	V(confined(proc, "self/cwd", RESOLVE_NO_XDEV));
	V(confined(proc, "self/status", RESOLVE_BENEATH));
	V(confined(proc, "self/status", RESOLVE_NO_XDEV));
	int p[2];
	pipe(p);
	dup2(p[0], 100);
	V(confined(proc, "self/fd/100", RESOLVE_NO_XDEV));
	V(confined(proc, "self/fd/100", RESOLVE_IN_ROOT));
	close(100), close(p[0]), close(p[1]);
	symlink("/proc/version", "out");
	V(confined(here, "out", RESOLVE_NO_XDEV));
	V(confined(here, "out", RESOLVE_BENEATH));
	unlink("out");
	close(proc), close(here);
}
static void anew(void)
{
	mkdir("dir", 0755), close(creat("plain", 0600));
	int d = open("dir", O_RDONLY | O_DIRECTORY), f = open("plain", O_RDWR);
	dup2(d, 100), dup2(f, 101);
	V(open("/proc/self/fd/100", O_RDWR));
	V(open("/proc/self/fd/100", O_WRONLY));
	V(open("/proc/self/fd/101", O_RDONLY | O_DIRECTORY));
	V(open("/proc/self/fd/101", O_PATH | O_DIRECTORY));
	OK(open("/proc/self/fd/101", O_RDWR));
	int t = open("/proc/self/fd/100", O_TMPFILE | O_RDWR, 0640);
	struct stat s = {0};
	fstat(t, &s);
	printf("%o %ld\n", s.st_mode, (long)s.st_nlink);
	V(write(t, "x", 1));
	V(open("/proc/self/fd/101", O_TMPFILE | O_RDWR, 0600));
	for (int i = 3; i < 110; i++)
		close(i);
	rmdir("dir"), unlink("plain");
}
static void flags(void)
{
	close(creat("flags", 0600));
	V(fchownat(AT_FDCWD, "flags", -1, -1, 0x10000000));
	V(fchownat(AT_FDCWD, "flags", -1, -1, AT_SYMLINK_FOLLOW));
	V(fchownat(AT_FDCWD, "flags", -1, -1, AT_SYMLINK_NOFOLLOW));
	V(syscall(SYS_utimensat, AT_FDCWD, "flags", 0, 0x10000000));
	V(syscall(SYS_utimensat, AT_FDCWD, "flags", 0, AT_SYMLINK_NOFOLLOW));
	int f = open("flags", O_RDWR);
	V(syscall(SYS_utimensat, f, 0, 0, AT_SYMLINK_NOFOLLOW));
	V(syscall(SYS_utimensat, f, 0, 0, 0));
	close(f), unlink("flags");
	f = memfd_create("sealed", MFD_ALLOW_SEALING);
	V(fcntl(f, F_ADD_SEALS, 0x100));
	V(fcntl(f, F_ADD_SEALS, F_SEAL_SHRINK | 0x40));
	V(fcntl(f, F_ADD_SEALS, F_SEAL_SHRINK));
	V(fcntl(f, F_GET_SEALS));
	close(f);
}
static void room(void)
{
	static char b[1 << 20];
	struct statfs before, with, after;
	statfs(".", &before);
	int f = open("room", O_CREAT | O_RDWR, 0600);
	for (int i = 0; i < 20; i++)
		write(f, b, sizeof b);
	statfs(".", &with);
	long long pages = before.f_bfree - with.f_bfree;
	P(pages >= 5120 && pages < 5400);
	P(before.f_bavail - with.f_bavail >= 5120);
	P(before.f_ffree - with.f_ffree);
	close(f), unlink("room");
	statfs(".", &after);
	P(after.f_ffree == before.f_ffree);
	P(after.f_bfree >= with.f_bfree + 5000);
}
static void everything(void)
{
	SECTION("RLIMIT_NOFILE");
	full_table();
	SECTION("rename");
	into_itself();
	SECTION("a directory that is gone");
	gone();
	SECTION("openat2");
	ways_out();
	SECTION("opened anew");
	anew();
	SECTION("flags");
	flags();
	unlink("there");
}
int main(void)
{
	umask(0);
	chmod(".", 0777);
	everything();
	// In memory, in a cell; on Linux on a file system of its own, too, or on that of the root.
	char name[30];
	snprintf(name, sizeof name, "/tmp/bounds-%d", getpid());
	mkdir(name, 0777), chdir(name);
	SECTION("/tmp");
	everything();
	chdir("/"), rmdir(name);
	SECTION("room");
	chdir("/dev/shm");
	room();
	return 0;
}
