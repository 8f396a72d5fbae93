// Times that are set to the present one are those of the change, and what is made or written afterwards is not older.
#include "case.h"

#include <utime.h>

static long long ns(struct timespec t) { return t.tv_sec * 1000000000LL + t.tv_nsec; }

static void show(const char *what, int fd)
{
	struct stat s;
	if (fstat(fd, &s) < 0) perror("fstat");
	printf("%s: atime %s, mtime %s\n", what, ns(s.st_atim) == ns(s.st_ctim) ? "is ctime" : "another",
		ns(s.st_mtim) == ns(s.st_ctim) ? "is ctime" : "another");
}

static long long mtime(const char *path)
{
	struct stat s;
	if (stat(path, &s) < 0) perror(path);
	return ns(s.st_mtim);
}

static void of_one(const char *path)
{
	int fd = open(path, O_CREAT | O_RDWR | O_TRUNC, 0644);
	sleep_ms(20);
	futimens(fd, NULL), show("futimens", fd), sleep_ms(20);
	futimens(fd, (struct timespec[2]){{0, UTIME_NOW}, {0, UTIME_NOW}}), show("both now", fd), sleep_ms(20);
	futimens(fd, (struct timespec[2]){{0, UTIME_NOW}, {0, UTIME_OMIT}}), show("atime now", fd), sleep_ms(20);
	futimens(fd, (struct timespec[2]){{0, UTIME_OMIT}, {0, UTIME_NOW}}), show("mtime now", fd), sleep_ms(20);
	futimens(fd, (struct timespec[2]){{0, UTIME_OMIT}, {0, UTIME_OMIT}}), show("neither", fd), sleep_ms(20);
	futimens(fd, (struct timespec[2]){{5, 6}, {0, UTIME_OMIT}}), show("atime 5", fd);
	utimensat(AT_FDCWD, path, NULL, 0), show("utimensat", fd), sleep_ms(20);
	utimes(path, NULL), show("utimes", fd), sleep_ms(20);
	utime(path, NULL), show("utime", fd);
	close(fd);
	unlink(path);
}

// A stamp, and then something else: what comes later is not older.
static void in_order(const char *stamp, const char *other)
{
	int bad[4] = {0};
	char byte[5000] = {0};
	close(open(stamp, O_CREAT | O_WRONLY, 0644));
	for (int i = 0; i < 300; i++) {
		utimensat(AT_FDCWD, stamp, NULL, 0);
		int fd = open(other, O_CREAT | O_WRONLY, 0644);
		bad[0] += mtime(other) < mtime(stamp);
		utimensat(AT_FDCWD, stamp, NULL, 0);
		if (write(fd, byte, sizeof byte) != sizeof byte) perror("write");
		bad[1] += mtime(other) < mtime(stamp);
		utimensat(AT_FDCWD, stamp, NULL, 0);
		bad[2] += mtime(stamp) < mtime(other);
		if (write(fd, byte, sizeof byte) != sizeof byte) perror("write");
		close(fd);
		bad[3] += mtime(other) < mtime(stamp);
		unlink(other);
	}
	unlink(stamp);
	printf("older: made %d, written %d, stamp %d, closed %d\n", bad[0], bad[1], bad[2], bad[3]);
}

int main(void)
{
	char dir[] = "/tmp/present-XXXXXX";
	if (!mkdtemp(dir)) perror("mkdtemp");
	of_one("here");
	in_order("stamp", "other");
	if (chdir(dir) < 0) perror("chdir");
	of_one("there");
	in_order("stamp", "other");
	rmdir(dir);
}
