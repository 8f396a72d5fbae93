// What was written is there for whoever looks: in a mapping, for a large read, beside a hole that is made and a mapping that is made;
// how far a file may grow, whose rights it goes on lending, and what is written within one file.
// flags: -pthread
// options: --cores 2
// timeout: 60
// nucleus-on: tmpfs
#include "case.h"
#include <linux/falloc.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/statfs.h>

static char big[2 << 20], got[2 << 20];
static int fd;
static volatile int stop, which;

static void *meanwhile(void *unused)
{
	while (!stop) {
		if (which == 0) {
			fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096);
		} else if (which == 1) {
			fdatasync(fd);
		} else {
			char *p = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
			munmap(p, 4096);
		}
	}
	return unused;
}
// One thread writes and reads what it wrote, another one does something else with the file.
static void beside(int what)
{
	char name[20];
	snprintf(name, sizeof name, "beside%d", what);
	fd = open(name, O_CREAT | O_RDWR | O_TRUNC, 0600);
	ftruncate(fd, 4 << 20);
	which = what, stop = 0;
	pthread_t t;
	pthread_create(&t, 0, meanwhile, 0);
	int lost = 0;
	long long end = now_ms(CLOCK_MONOTONIC) + 700;
	for (unsigned i = 1; now_ms(CLOCK_MONOTONIC) < end; i++) {
		unsigned j = 0;
		pwrite(fd, &i, sizeof i, 1 << 20);
		pread(fd, &j, sizeof j, 1 << 20);
		lost += i != j;
		if (what == 1) {
			memset(big, i, sizeof big);
			ftruncate(fd, 0);
			pwrite(fd, big, 64, 1 << 20);
			pwrite(fd, big, 8192, sizeof big - 8192);
			long n = pread(fd, got, sizeof got, 0);
			lost += n != sizeof got || got[1 << 20] != big[0] || got[sizeof got - 1] != big[0];
		}
	}
	stop = 1;
	pthread_join(t, 0);
	P(lost);
	close(fd);
}
static void shown(void)
{
	fd = open("shown", O_CREAT | O_RDWR | O_TRUNC, 0600);
	pwrite(fd, "-", 1, 8191);
	char *p = mmap(0, 8192, PROT_READ, MAP_SHARED, fd, 0);
	pwrite(fd, "A", 1, 0);
	P(p[0]);
	pwrite(fd, "B", 1, 5000);
	P(p[5000]);
	int end = open("shown", O_WRONLY | O_APPEND);
	V(write(end, "C", 1));
	struct stat s;
	V(fstat(fd, &s));
	P(s.st_size);
	V(msync(p, 8192, MS_SYNC));
	munmap(p, 8192);
	pwrite(fd, "D", 1, 0);
	char c = 0;
	V(pread(fd, &c, 1, 0));
	P(c);
	close(end), close(fd);
}
static int signals;
static void count(int signal)
{
	signals += signal == SIGXFSZ;
}
static void limited(void)
{
	signal(SIGXFSZ, count);
	fd = open("limited", O_CREAT | O_RDWR | O_TRUNC, 0600);
	ftruncate(fd, 1 << 20);
	struct rlimit limit = {4096, RLIM_INFINITY};
	setrlimit(RLIMIT_FSIZE, &limit);
	// Where the file doesn't grow, nothing is asked.
	V(ftruncate(fd, 8192));
	V(truncate("limited", 8192));
	V(fallocate(fd, 0, 0, 8000));
	V(truncate("limited", 6000));
	P(signals);
	V(ftruncate(fd, 7000));
	V(fallocate(fd, 0, 0, 7000));
	P(signals);
	struct iovec piece = {big, 10};
	V(pwritev2(fd, &piece, 1, -1, RWF_APPEND));
	P(signals);
	V(ftruncate(fd, 4090));
	V(pwritev2(fd, &piece, 1, 0, RWF_APPEND));
	V(lseek(fd, 0, SEEK_CUR));
	V(ftruncate(fd, 4090));
	V(pwritev2(fd, &piece, 1, -1, RWF_APPEND));
	V(lseek(fd, 0, SEEK_CUR));
	limit.rlim_cur = RLIM_INFINITY;
	setrlimit(RLIMIT_FSIZE, &limit);
	V(pread(fd, got, 10, INT64_MAX - 5));
	V(pwrite(fd, got, 10, INT64_MAX - 5));
	close(fd);
}
static void at_once(void)
{
	int p[2];
	struct iovec piece = {got, 10};
	pipe(p);
	V(preadv2(p[0], &piece, 1, -1, RWF_NOWAIT));
	write(p[1], "abc", 3);
	V(preadv2(p[0], &piece, 1, -1, RWF_NOWAIT));
	V(preadv2(p[1], &piece, 1, -1, RWF_NOWAIT));
	V(preadv2(p[0], &piece, 1, 0, RWF_NOWAIT));
	int s[2];
	socketpair(AF_UNIX, SOCK_STREAM, 0, s);
	V(preadv2(s[0], &piece, 1, -1, RWF_NOWAIT));
	close(s[0]), close(s[1]), close(p[0]), close(p[1]);
}
static void within(const char *what, int f)
{
	puts(what);
	ftruncate(f, 0);
	pwrite(f, "abcdefghij", 10, 0);
	off_t from = 0, to = 4;
	V(copy_file_range(f, &from, f, &to, 6, 0));
	V(copy_file_range(f, &from, f, &to, 4, 0));
	P(from), P(to);
	from = 8, to = 9;
	V(copy_file_range(f, &from, f, &to, 100, 0));
	from = 8, to = 10;
	V(copy_file_range(f, &from, f, &to, 100, 0));
	from = 4, to = 0;
	V(copy_file_range(f, &from, f, &to, 5, 0));
	from = 1, to = 20;
	V(copy_file_range(f, &from, f, &to, -1, 0));
	V(copy_file_range(f, &from, f, &to, (size_t)-1 >> 1, 0));
	memset(got, 0, 40);
	V(pread(f, got, 40, 0));
	printf("%s\n", got);
}
// The mode of a file after somebody without CAP_FSETID did something to it.
static void lent(const char *what, int mode, int how)
{
	fflush(stdout);
	unlink("lent");
	int f = open("lent", O_CREAT | O_RDWR, 0666);
	int from = memfd_create("from", 0);
	write(from, "abc", 3), lseek(from, 0, SEEK_SET);
	write(f, "abcdef", 6);
	fchmod(f, mode);
	pid_t child = fork();
	if (!child) {
		if (how & 1)
			setgid(1000), setuid(1000);
		switch (how >> 1) {
		case 0: pwrite(f, "x", 1, 0); break;
		case 1: pwrite(f, "x", 0, 0); break;
		case 2: ftruncate(f, 3); break;
		case 3: truncate("lent", 3); break;
		case 4: fallocate(f, 0, 0, 100); break;
		case 5: close(open("lent", O_WRONLY | O_TRUNC)); break;
		case 6: sendfile(f, from, 0, 3); break;
		case 7: writev(f, &(struct iovec){"yy", 2}, 1); break;
		}
		_exit(0);
	}
	waitpid(child, 0, 0);
	struct stat s;
	fstat(f, &s);
	printf("%s: %o %ld\n", what, s.st_mode & 07777, (long)s.st_size);
	close(f), close(from);
}
static void lends(void)
{
	lent("root", 06777, 0);
	lent("write", 06777, 1);
	lent("nothing", 06777, 3);
	lent("group without execute", 02666, 1);
	lent("user without execute", 04666, 1);
	lent("ftruncate", 06777, 5);
	lent("truncate", 06777, 7);
	lent("fallocate", 06777, 9);
	lent("O_TRUNC", 06777, 11);
	lent("sendfile", 06777, 13);
	lent("writev", 04755, 15);
	lent("writev by root", 04755, 14);
}
int main(void)
{
	SECTION("beside a hole, fdatasync, a mapping");
	beside(0), beside(1), beside(2);
	SECTION("in a mapping");
	shown();
	SECTION("RLIMIT_FSIZE");
	limited();
	SECTION("RWF_NOWAIT");
	at_once();
	SECTION("within one file");
	within("file", open("within", O_CREAT | O_RDWR, 0600));
	within("memfd", memfd_create("within", 0));
	SECTION("set-user-ID");
	chmod(".", 0777);
	umask(0);
	lends();
	chdir("/tmp");
	SECTION("in /tmp");
	char name[30];
	snprintf(name, sizeof name, "written-%d", getpid());
	mkdir(name, 0777), chdir(name);
	lends();
	unlink("lent"), chdir(".."), rmdir(name);
	return 0;
}
