// inotify(7): changes that this program makes itself, in a volume and in memory.
#include "case.h"
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/un.h>
#include <dirent.h>

static int in;
static uint32_t cookie;
static char b[65536] __attribute__((aligned(8)));

static void show_of(int fd, const char *what)
{
	long n;
	printf("%s:", what);
	while ((n = read(fd, b, sizeof b)) > 0)
		for (char *p = b; p < b + n;) {
			struct inotify_event *e = (void *)p;
			printf(" [wd %d %x%s%s%s]", e->wd, e->mask, e->len ? " " : "", e->len ? e->name : "",
			       e->cookie ? e->cookie == cookie ? " same" : " cookie" : "");
			if (e->cookie)
				cookie = e->cookie;
			p += sizeof *e + e->len;
		}
	puts("");
	fflush(stdout);
}
static void show(const char *what)
{
	show_of(in, what);
}
static void touch(const char *path)
{
	close(open(path, O_CREAT | O_WRONLY, 0600));
}
static void *late(void *p)
{
	sleep_ms(40);
	touch("d/late");
	return 0;
}
static void start(void)
{
	if (in)
		close(in);
	in = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
}

static void directory(void)
{
	V(inotify_init1(7));
	mkdir("d", 0755);
	int wd;
	V(wd = inotify_add_watch(in, "d", IN_ALL_EVENTS));
	V(inotify_add_watch(in, "none", IN_ALL_EVENTS));
	V(inotify_add_watch(in, "d", 0));
	V(inotify_add_watch(in, "d", 1 << 27));
	V(inotify_add_watch(in, "d", IN_MASK_ADD | IN_MASK_CREATE | IN_OPEN));
	V(inotify_add_watch(0, "d", IN_ALL_EVENTS));
	V(inotify_add_watch(99, "d", IN_ALL_EVENTS));
	V(inotify_add_watch(in, (void *)1, IN_ALL_EVENTS));
	show("nothing");
	int fd = open("d/a", O_CREAT | O_RDWR, 0644);
	show("create");
	write(fd, "hello", 5);
	show("write");
	pread(fd, b, 5, 0);
	show("read");
	pread(fd, b, 5, 5);
	show("read nothing");
	pwrite(fd, "x", 1, 1);
	show("write at");
	ftruncate(fd, 2);
	show("truncate");
	fallocate(fd, 0, 0, 100);
	show("allocate");
	fchmod(fd, 0600);
	show("chmod");
	int second = dup(fd);
	close(fd);
	show("one of two closed");
	close(second);
	show("close");
	fd = open("d/a", O_RDONLY);
	read(fd, b, 5);
	close(fd);
	show("open, read, close");
	close(open("d/a", O_RDONLY | O_CREAT | O_EXCL, 0600));
	show("can't be made");
	rename("d/a", "d/b");
	show("rename within");
	rename("d/b", "out");
	show("rename out");
	rename("out", "d/c");
	show("rename in");
	mkdir("d/sub", 0755);
	show("mkdir");
	rmdir("d/sub");
	show("rmdir");
	symlink("c", "d/link");
	show("symlink");
	link("d/c", "d/hard");
	show("link");
	unlink("d/hard");
	show("unlink");
	utimensat(AT_FDCWD, "d/c", 0, 0);
	struct timespec times[2] = {{1, 0}, {0, UTIME_OMIT}};
	utimensat(AT_FDCWD, "d/c", times, 0);
	times[0].tv_nsec = UTIME_OMIT;
	times[1] = times[0];
	times[1].tv_nsec = 5;
	utimensat(AT_FDCWD, "d/c", times, 0);
	show("times");
	chown("d/c", -1, getgid());
	show("chown");
	truncate("d/c", 1);
	show("truncate by name");
	mkfifo("d/fifo", 0600);
	// Reading and writing one is told of by some versions of Linux only.
	close(open("d/fifo", O_RDWR));
	show("fifo");
	struct sockaddr_un u = {AF_UNIX, "d/socket"};
	fd = socket(AF_UNIX, SOCK_STREAM, 0);
	bind(fd, (void *)&u, sizeof u);
	close(fd);
	show("socket");
	DIR *dir = opendir("d");
	while (readdir(dir))
		;
	closedir(dir);
	show("directory read");
	unlink("d/fifo");
	unlink("d/socket");
	touch("d/one");
	touch("d/two");
	show("several");
	syscall(SYS_renameat2, AT_FDCWD, "d/one", AT_FDCWD, "d/two", RENAME_EXCHANGE);
	show("exchange");
	rename("d/one", "d/two");
	show("rename over");
	unlink("d/two");
	show("the rest");
}

static void own_watch(void)
{
	int wd, wf, fd;
	wd = inotify_add_watch(in, "d", IN_ALL_EVENTS);
	V(wf = inotify_add_watch(in, "d/c", IN_MODIFY | IN_DELETE_SELF | IN_ATTRIB | IN_MOVE_SELF));
	fd = open("d/c", O_WRONLY);
	write(fd, "x", 1);
	write(fd, "y", 1);
	close(fd);
	show("both watches");
	rename("d/c", "d/c2");
	show("move self");
	unlink("d/c2");
	show("delete self");
	V(inotify_rm_watch(in, wf));
	V(wd = inotify_add_watch(in, "d", IN_CREATE | IN_ONLYDIR));
	fd = open("d/e", O_CREAT | O_WRONLY, 0644);
	write(fd, "x", 1);
	close(fd);
	show("only creation");
	V(inotify_add_watch(in, "d", IN_MASK_ADD | IN_DELETE));
	unlink("d/e");
	show("mask added");
	V(inotify_add_watch(in, "d", IN_MASK_CREATE | IN_DELETE));
	V(inotify_add_watch(in, "d/link", IN_DONT_FOLLOW | IN_ALL_EVENTS) > 0);
	touch("f");
	V(inotify_add_watch(in, "f", IN_ONLYDIR | IN_ALL_EVENTS));
	V(inotify_add_watch(in, "f", IN_ONESHOT | IN_OPEN) > 0);
	close(open("f", O_RDONLY));
	close(open("f", O_RDONLY));
	show("once");
	V(inotify_rm_watch(in, wd));
	show("removed");
	V(inotify_rm_watch(in, wd));
	V(inotify_rm_watch(in, 999));

	SECTION("names of one file");
	start();
	V(inotify_add_watch(in, "f", IN_ALL_EVENTS));
	link("f", "g");
	V(inotify_add_watch(in, "g", IN_ALL_EVENTS));
	show("link");
	rename("g", "h");
	show("rename");
	unlink("f");
	show("unlink one");
	touch("h");
	show("touch");
	fd = open("h", O_WRONLY);
	unlink("h");
	show("unlink last");
	write(fd, "1", 1);
	fchmod(fd, 0400);
	show("use");
	int more = dup(fd);
	close(fd);
	show("close");
	close(more);
	show("close last");

	SECTION("without a name");
	start();
	touch("d/u");
	fd = open("d/u", O_RDWR);
	V(inotify_add_watch(in, "d", IN_MODIFY | IN_DELETE | IN_ATTRIB | IN_CLOSE));
	unlink("d/u");
	write(fd, "1", 1);
	show("still told");
	V(inotify_add_watch(in, "d", IN_MODIFY | IN_ATTRIB | IN_CLOSE | IN_EXCL_UNLINK));
	write(fd, "1", 1);
	fchmod(fd, 0400);
	close(fd);
	show("not told");

	SECTION("renamed over, exchanged");
	start();
	touch("f");
	touch("g");
	V(inotify_add_watch(in, "f", IN_ALL_EVENTS));
	V(inotify_add_watch(in, "g", IN_ALL_EVENTS));
	syscall(SYS_renameat2, AT_FDCWD, "f", AT_FDCWD, "g", RENAME_EXCHANGE);
	show("exchange");
	rename("f", "g");
	show("over");
	unlink("g");
	show("end");

	SECTION("a directory's own watch");
	start();
	mkdir("d/sub", 0755);
	V(inotify_add_watch(in, "d", IN_ALL_EVENTS));
	V(inotify_add_watch(in, "d/sub", IN_ALL_EVENTS));
	touch("d/sub/x");
	show("inside");
	fd = open("d/sub", O_RDONLY);
	char de[4096];
	syscall(SYS_getdents64, fd, de, sizeof de);
	close(fd);
	show("listed");
	chmod("d/sub", 0700);
	show("chmod");
	rename("d/sub", "d/sub2");
	show("rename");
	rename("d/sub2/x", "d/x");
	show("out of it");
	rmdir("d/sub2");
	show("rmdir");
	unlink("d/x");
}

static void copies(void)
{
	SECTION("copies");
	start();
	int from = open("d/from", O_CREAT | O_RDWR, 0600), to = open("d/to", O_CREAT | O_RDWR, 0600);
	write(from, "12345", 5);
	V(inotify_add_watch(in, "d", IN_ACCESS | IN_MODIFY) > 0);
	off_t at = 0;
	V(sendfile(to, from, &at, 5));
	show("sendfile");
	loff_t a = 0, c = 0;
	V(copy_file_range(from, &a, to, &c, 5, 0));
	show("copy_file_range");
	struct iovec v = {"12", 2};
	writev(to, &v, 1);
	pwritev2(to, &v, 1, -1, RWF_APPEND);
	show("writev");
	int p[2];
	pipe(p);
	loff_t zero = 0;
	V(splice(from, &zero, p[1], 0, 5, 0));
	V(splice(p[0], 0, to, 0, 5, 0));
	show("splice");
	close(p[0]), close(p[1]), close(from), close(to);
	V(inotify_add_watch(in, "/dev/null", IN_MODIFY | IN_OPEN | IN_CLOSE) > 0);
	to = open("/dev/null", O_WRONLY);
	write(to, "12", 2);
	close(to);
	show("device");
}

static void reading(void)
{
	SECTION("waiting");
	start();
	V(inotify_add_watch(in, "d", IN_CREATE) > 0);
	struct pollfd p = {in, POLLIN};
	int ep = epoll_create1(0);
	struct epoll_event ev = {EPOLLIN | EPOLLET, {.u32 = 5}};
	V(epoll_ctl(ep, EPOLL_CTL_ADD, in, &ev));
	V(poll(&p, 1, 0));
	pthread_t t;
	pthread_create(&t, 0, late, 0);
	V(poll(&p, 1, 2000));
	X(p.revents);
	V(epoll_wait(ep, &ev, 1, 2000));
	V(epoll_wait(ep, &ev, 1, 0));
	int n = 0;
	V(ioctl(in, FIONREAD, &n));
	P(n);
	V(read(in, b, 10));
	V(read(in, b, 31));
	pthread_join(t, 0);
	show("late");
	unlink("d/late");
	// What does not fit stays.
	touch("d/1"), touch("d/a-longer-name-than-that"), touch("d/3");
	V(ioctl(in, FIONREAD, &n));
	P(n);
	V(read(in, b, 32 + 40));
	V(read(in, b, 48));
	show("rest");
	V(write(in, "1", 1));
	X(fcntl(in, F_GETFL));
	V(lseek(in, 0, SEEK_CUR));
	V(pread(in, b, 100, 0));

	SECTION("blocking");
	int block = inotify_init();
	V(inotify_add_watch(block, "d", IN_CREATE));
	pthread_create(&t, 0, late, 0);
	V(read(block, b, sizeof b));
	P(((struct inotify_event *)b)->len);
	pthread_join(t, 0);
	unlink("d/late");

	SECTION("two of them");
	fcntl(block, F_SETFL, O_NONBLOCK);
	touch("d/both");
	show("one");
	show_of(block, "other");
	close(block);
	touch("d/again");
	show("after that");

	SECTION("too much");
	start();
	V(inotify_add_watch(in, "d", IN_OPEN | IN_CLOSE));
	for (int i = 0; i < 16384; i++)
		touch("d/1");
	V(ioctl(in, FIONREAD, &n));
	P(n);
	long all = 0, got, last = 0;
	while ((got = read(in, b, sizeof b)) > 0)
		for (char *q = b; q < b + got; q += 16 + ((struct inotify_event *)q)->len) {
			all++;
			last = ((struct inotify_event *)q)->mask | (long)((struct inotify_event *)q)->wd << 32;
		}
	P(all);
	X(last);
	touch("d/1");
	show("after that");
}

int main(void)
{
	SECTION("volume");
	start();
	directory();
	own_watch();
	copies();
	SECTION("memory");
	char tmp[] = "/tmp/inotify-XXXXXX";
	if (chdir(mkdtemp(tmp)))
		return 1;
	start();
	directory();
	own_watch();
	copies();
	reading();
	DIR *dir = opendir("d");
	for (struct dirent *e; (e = readdir(dir));)
		unlinkat(dirfd(dir), e->d_name, 0);
	rmdir("d");
	rmdir(tmp);
	return 0;
}
