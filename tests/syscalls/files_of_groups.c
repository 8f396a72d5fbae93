// Who may do something to a file because of its further groups alone, in a volume and in memory.
#include "case.h"
#include <grp.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <utime.h>

#define GROUP 1999

static void show(const char *name)
{
	struct stat s;
	if (lstat(name, &s))
		printf("%s: %d\n", name, -errno);
	else
		printf("%s: %o %d %d %d\n", name, s.st_mode, s.st_uid, s.st_gid, S_ISDIR(s.st_mode) ? 0 : (int)s.st_size);
}

static int make(const char *name, mode_t mode)
{
	int fd = open(name, O_CREAT | O_EXCL | O_RDWR, mode);
	if (fd >= 0)
		close(fd);
	return fd < 0 ? -1 : 0;
}

static int nameless(const char *dir, mode_t mode)
{
	struct stat s;
	int fd = open(dir, O_TMPFILE | O_RDWR, mode);
	if (fd < 0 || fstat(fd, &s))
		return -1;
	printf("%o %d\n", s.st_mode, s.st_gid);
	return close(fd);
}

static void member(void)
{
	gid_t group = GROUP;
	if (setgroups(1, &group) || setgid(1234) || setuid(1234))
		abort();
	// A directory.
	V(make("d/f", 0644));
	V(mkdir("d/s", 0755));
	V(symlink("nowhere", "d/l"));
	V(mkfifo("d/p", 0600));
	V(chown("d/f", -1, GROUP));
	V(chown("d/f", -1, 1235));
	V(chmod("d/f", 02755));
	show("d/f");
	V(link("d/f", "d/g"));
	V(rename("d/g", "d/h"));
	V(rename("f", "d/of_root"));
	V(link("d/of_root", "d/linked"));
	V(unlink("d/h"));
	V(unlink("d/linked"));
	V(rmdir("d/s"));
	// A file of root's.
	struct timespec now[2] = {{0, UTIME_NOW}, {0, UTIME_NOW}}, one[2] = {{0, UTIME_OMIT}, {0, UTIME_NOW}}, then[2] = {{1, 0}, {1, 0}};
	V(utime("d/of_root", 0));
	V(utimensat(AT_FDCWD, "d/of_root", now, 0));
	V(utimensat(AT_FDCWD, "d/of_root", one, 0));
	V(utimensat(AT_FDCWD, "d/of_root", then, 0));
	V(truncate("d/of_root", 3));
	V(setxattr("d/of_root", "user.a", "b", 1, 0));
	V(chmod("d/of_root", 0666));
	V(chown("d/of_root", -1, GROUP));
	show("d/f");
	show("d/l");
	show("d/p");
	show("d/of_root");
	struct stat s;
	stat("d/of_root", &s);
	printf("new %d\n", s.st_mtime > 1000 && s.st_atime > 1000);
	// A directory that passes its group on.
	V(make("e/f", 02755));
	show("e/f");
	V(nameless("e", 02755));
}

static void stranger(void)
{
	if (setgroups(0, 0) || setgid(1234) || setuid(1234))
		abort();
	V(make("d/no", 0644));
	V(unlink("d/f"));
	V(rename("d/f", "d/no"));
	V(utime("d/of_root", 0));
	V(setxattr("d/of_root", "user.a", "c", 1, 0));
	V(make("e/g", 02755));
	show("e/g");
	V(make("e/h", 02745));
	show("e/h");
	V(mknod("e/i", S_IFREG | 02755, 0));
	show("e/i");
	V(mkdir("e/j", 02755));
	show("e/j");
	V(nameless("e", 02755));
}

static void all(void)
{
	mkdir("d", 0);
	mkdir("e", 0);
	V(make("f", 0));
	if (chown("d", 0, GROUP) || chown("e", 0, GROUP) || chown("f", 0, GROUP))
		abort();
	chmod("d", 0775);
	chmod("e", 02777);
	chmod("f", 0664);
	struct timespec then[2] = {{100, 0}, {100, 0}};
	utimensat(AT_FDCWD, "f", then, 0);
	chmod(".", 0777);
	end_child(begin_child(member));
	end_child(begin_child(stranger));
}

int main(void)
{
	umask(0);
	all();
	char dir[100];
	snprintf(dir, sizeof dir, "/tmp/groups.%d", getpid());
	mkdir(dir, 0777);
	if (chdir(dir))
		abort();
	all();
	return 0;
}
