// O_TMPFILE: files without a name, in a volume and in memory.
#include "case.h"

static char b[100];

static void link_fd(int fd, const char *to)
{
	char name[40];
	snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
	errno = 0;
	int r = linkat(AT_FDCWD, name, AT_FDCWD, to, AT_SYMLINK_FOLLOW);
	printf("link to %s: %s\n", to, r ? err_(errno) : "ok");
}
static void look(const char *what, int fd)
{
	struct stat s = {0};
	fstat(fd, &s);
	printf("%s: mode %o, %d names, %ld bytes\n", what, s.st_mode, (int)s.st_nlink, (long)s.st_size);
}
static void see(const char *path)
{
	memset(b, 0, sizeof b);
	int fd = open(path, O_RDONLY);
	if (fd == -1) {
		printf("%s: %s\n", path, err_(errno));
		return;
	}
	read(fd, b, sizeof b - 1);
	look(path, fd);
	printf("%s: '%s'\n", path, b);
	close(fd);
}

static void all(void)
{
	mkdir("d", 0755);
	umask(027);
	V(open("none", O_TMPFILE | O_RDWR, 0600));
	V(open("d", O_TMPFILE | O_RDONLY, 0600));
	V(open("d", __O_TMPFILE | O_RDWR, 0600));
	close(open("file", O_CREAT | O_WRONLY, 0600));
	V(open("file", O_TMPFILE | O_RDWR, 0600));
	int fd;
	V((fd = open("d", O_TMPFILE | O_RDWR, 0666)) >= 0);
	X(fcntl(fd, F_GETFL));
	look("new", fd);
	V(write(fd, "hello", 5));
	V(pread(fd, b, 5, 0));
	look("written", fd);
	V(ftruncate(fd, 4));
	V(fchmod(fd, 0604));
	look("changed", fd);
	char *m = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	printf("mapped: %.4s\n", m);
	m[0] = 'j';
	munmap(m, 4096);
	V(rmdir("d/sub"));
	link_fd(fd, "d/named");
	look("linked", fd);
	see("d/named");
	link_fd(fd, "d/named");
	link_fd(fd, "second");
	look("linked twice", fd);
	V(write(fd, "more", 4));
	close(fd);
	see("d/named");
	see("second");
	V(unlink("d/named"));
	see("second");
	V(unlink("second"));

	SECTION("never linked");
	V((fd = open("d", O_TMPFILE | O_RDWR | O_EXCL, 0600)) >= 0);
	write(fd, "x", 1);
	link_fd(fd, "d/excl");
	// By the descriptor itself.
	char name[40];
	snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
	int again = open(name, O_RDONLY);
	V(again >= 0);
	V(read(again, b, 10));
	close(again);
	V(rmdir("d"));
	close(fd);

	SECTION("write only, linked before it is written");
	mkdir("d", 0755);
	V((fd = open("d", O_TMPFILE | O_WRONLY, 0600)) >= 0);
	V(read(fd, b, 1));
	link_fd(fd, "d/w");
	V(write(fd, "late", 4));
	V(fsync(fd));
	see("d/w");
	close(fd);
	V(unlink("d/w"));

	SECTION("an unlinked file has no way back");
	V((fd = open("d/u", O_CREAT | O_RDWR, 0600)) >= 0);
	V(unlink("d/u"));
	link_fd(fd, "d/back");
	close(fd);
	V(unlink("file"));
	V(rmdir("d"));
}

int main(void)
{
	SECTION("volume");
	all();
	SECTION("memory");
	char tmp[] = "/tmp/nameless-XXXXXX";
	if (chdir(mkdtemp(tmp)))
		return 1;
	all();
	rmdir(tmp);
	return 0;
}
