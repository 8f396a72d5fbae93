// /dev: what the devices give and take, and what they refuse.
#include "case.h"
#include <dirent.h>
#include <sys/ioctl.h>
#include <sys/sysmacros.h>
#include <termios.h>

static unsigned char b[8192];

static int all(int byte, long n)
{
	for (long i = 0; i < n; i++)
		if (b[i] != byte)
			return 0;
	return 1;
}

static void look(const char *path)
{
	struct stat s;
	if (stat(path, &s)) {
		printf("%s: %s\n", path, err_(errno));
		return;
	}
	printf("%s: %o %u:%u size %ld\n", path, s.st_mode, major(s.st_rdev), minor(s.st_rdev), (long)s.st_size);
}

static void device(const char *path)
{
	SECTION(path);
	look(path);
	int fd = open(path, O_RDWR);
	if (fd == -1) {
		printf("%s\n", err_(errno));
		return;
	}
	memset(b, 7, sizeof b);
	long n;
	V(n = read(fd, b, 4096));
	printf("zero %d, untouched %d, beyond %d\n", n > 0 && all(0, n), all(7, 4096), b[4096] == 7);
	V(read(fd, b, 0));
	V(read(fd, (void *)8, 10));
	V(write(fd, b, 4096));
	V(write(fd, b, 0));
	V(write(fd, (void *)8, 10));
	V(pread(fd, b, 10, 1000) == 10 || path[5] == 'n');
	V(lseek(fd, 100, SEEK_SET) >= 0);
	if (strcmp(path, "/dev/tty") && strcmp(path, "/dev/ptmx")) {
		V(lseek(fd, 100, SEEK_SET));
		V(lseek(fd, -100, SEEK_CUR));
		V(lseek(fd, -1ul >> 1, SEEK_END));
		V(lseek(fd, 5, SEEK_HOLE));
		V(lseek(fd, 0, SEEK_HOLE + 1));
	}
	V(ftruncate(fd, 0));
	V(fsync(fd));
	struct pollfd p = {fd, POLLIN | POLLOUT};
	V(poll(&p, 1, 0));
	X(p.revents);
	struct termios t;
	V(tcgetattr(fd, &t));
	V(isatty(fd));
	V(fcntl(fd, F_GETFL) & O_ACCMODE);
	close(fd);
	V((fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600)) >= 0);
	close(fd);
	V(open(path, O_RDONLY | O_DIRECTORY));
	V(open(path, O_RDWR | O_CREAT | O_EXCL, 0600));
}

int main(void)
{
	device("/dev/null");
	device("/dev/zero");
	device("/dev/full");
	device("/dev/random");
	device("/dev/urandom");
	SECTION("random bytes are");
	unsigned char x[16], y[16];
	int fd = open("/dev/urandom", O_RDONLY);
	V(read(fd, x, 16));
	V(read(fd, y, 16));
	P(memcmp(x, y, 16) != 0);
	V(write(fd, x, 16));
	close(fd);
	SECTION("/dev/zero mapped");
	fd = open("/dev/zero", O_RDWR);
	unsigned char *m;
	V((m = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0)) != MAP_FAILED);
	m[5000] = 1;
	P(m[0] + m[5000] + m[8191]);
	munmap(m, 8192);
	V((m = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) != MAP_FAILED);
	m[5000] = 1;
	P(m[0] + m[5000] + m[8191]);
	close(fd);
	munmap(m, 8192);
	fd = open("/dev/null", O_RDWR);
	V(mmap(0, 8192, PROT_READ, MAP_PRIVATE, fd, 0));
	V(mmap(0, 8192, PROT_READ, MAP_SHARED, fd, 0));
	close(fd);
	SECTION("no terminal");
	setsid();
	look("/dev/tty");
	V(open("/dev/tty", O_RDWR));
	SECTION("links and directories");
	char to[100];
	for (int i = 0; i < 4; i++) {
		const char *path = (const char *[]){"/dev/fd", "/dev/stdin", "/dev/stdout", "/dev/stderr"}[i];
		long n = readlink(path, to, sizeof to - 1);
		to[n < 0 ? 0 : n] = 0;
		printf("%s -> %s\n", path, to);
	}
	struct stat s;
	V(stat("/dev/shm", &s));
	X(s.st_mode);
	V(stat("/dev", &s));
	X(s.st_mode);
	DIR *d = opendir("/dev");
	int seen = 0;
	for (struct dirent *e; (e = readdir(d));)
		seen += !strcmp(e->d_name, "null") || !strcmp(e->d_name, "zero") || !strcmp(e->d_name, "shm");
	P(seen);
	closedir(d);
	fd = open("/dev/fd/1", O_WRONLY);
	V(fd >= 0);
	close(fd);
	V(open("/dev/none", O_RDONLY));
	V(mknod("/dev/none/x", S_IFCHR | 0600, makedev(1, 3)));
	SECTION("shared memory");
	V((fd = open("/dev/shm/atoll-case", O_CREAT | O_EXCL | O_RDWR, 0600)) >= 0);
	V(ftruncate(fd, 10000));
	m = mmap(0, 10000, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	memset(m, 'x', 10000);
	V(pread(fd, b, 1, 9999));
	P(b[0]);
	V(unlink("/dev/shm/atoll-case"));
	return 0;
}
