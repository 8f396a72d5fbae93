// Paths that are used again and again while what they lead through changes.
#include "case.h"

static char here[PATH_MAX];

// What a path leads to: the file's first bytes, or the error. Often enough to be remembered.
static void look(const char *path)
{
	char said[64] = "";
	for (int i = 0; i < 4; i++) {
		char b[32] = "", now[64];
		struct stat st;
		int fd = open(path, O_RDONLY), e = errno;
		if (fd >= 0) {
			int n = read(fd, b, 31);
			snprintf(now, sizeof now, "%s", n < 0 ? err_(errno) : b);
			close(fd);
		} else {
			snprintf(now, sizeof now, "%s", err_(e));
		}
		int s = stat(path, &st) ? errno : 0, l = lstat(path, &st) ? errno : 0;
		int a = access(path, R_OK) ? errno : 0, n = open(path, O_RDONLY | O_NOFOLLOW), f = n < 0 ? errno : 0;
		if (n >= 0)
			close(n);
		if (i && strcmp(said, now))
			printf("%d: now %s\n", i, now);
		strcpy(said, now);
		if (i == 3)
			printf("%s: %s, stat %s, lstat %s, access %s, no follow %s\n", path + (strncmp(path, here, strlen(here)) ? 0 : strlen(here)), said,
			       s ? err_(s) : "ok", l ? err_(l) : "ok", a ? err_(a) : "ok", f ? err_(f) : "ok");
	}
}

static void put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		printf("%s: %s\n", path, err_(errno));
	close(fd);
}

static volatile int stop, wrong;
static void *reads(void *p)
{
	while (!stop) {
		int fd = open("t/f", O_RDONLY);
		char b[8] = "";
		// It is the one or the other, or for a moment neither.
		int n = fd < 0 ? -errno : read(fd, b, 7);
		if (fd < 0 ? n != -ENOENT : n != 3 || (strcmp(b, "one") && strcmp(b, "two"))) {
			wrong++;
			fprintf(stderr, "read %d %s %s\n", n, n < 0 ? err_(fd < 0 ? -n : errno) : "", b);
		}
		if (fd >= 0)
			close(fd);
	}
	return 0;
}

static void *exchanges(void *p)
{
	for (int i = 0; i < 100; i++)
		if (renameat2(AT_FDCWD, "p", AT_FDCWD, "q", RENAME_EXCHANGE))
			printf("%d: %s\n", i, err_(errno));
	return 0;
}

// Makes, renames and removes what others do, too.
static void *changes(void *p)
{
	for (int i = 0; i < 100; i++) {
		int fd = (long)p == 0 ? open("x", O_WRONLY | O_CREAT, 0644) : -1;
		if (fd >= 0)
			close(fd);
		if ((long)p == 1)
			rename("x", "y");
		if ((long)p == 2)
			unlink("y");
	}
	return 0;
}

// Is what is said of a name what making it comes to?
static void agrees(const char *path)
{
	struct stat st;
	int missing = stat(path, &st) != 0;
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0644);
	if (missing != (fd >= 0))
		printf("%s is%s there, and made: %s\n", path, missing ? " not" : "", fd >= 0 ? "yes" : err_(errno));
	if (fd >= 0)
		close(fd);
	unlink(path);
}

static void all(void)
{
	if (!getcwd(here, sizeof here))
		return;
	chmod(".", 0755);
	V(mkdir("a", 0755));
	V(mkdir("a/b", 0755));
	put("a/b/f", "first");
	char whole[PATH_MAX + 16];
	snprintf(whole, sizeof whole, "%s/a/b/f", here);
	look("a/b/f");
	look(whole);
	look("a/./b/../b//f");
	look("a/b/f/");
	look("a/b/none");

	SECTION("made, removed, made again");
	put("a/b/none", "some");
	look("a/b/none");
	V(unlink("a/b/f"));
	look("a/b/f");
	look(whole);
	put("a/b/f", "second");
	look("a/b/f");
	look(whole);

	SECTION("renamed on the way");
	V(rename("a/b", "a/c"));
	look("a/b/f");
	look(whole);
	look("a/c/f");
	V(mkdir("a/b", 0755));
	put("a/b/f", "third");
	look(whole);
	look("a/c/f");
	V(renameat2(AT_FDCWD, "a/b", AT_FDCWD, "a/c", RENAME_EXCHANGE));
	look(whole);
	look("a/c/f");
	V(rename("a/c/f", "a/b/f"));
	look(whole);
	look("a/c/f");

	SECTION("links");
	V(symlink("b", "a/l"));
	look("a/l/f");
	look("a/l");
	V(unlink("a/l"));
	V(symlink("c", "a/l"));
	look("a/l/f");
	put("a/c/f", "fourth");
	look("a/l/f");
	V(unlink("a/l"));
	look("a/l/f");
	V(link("a/c/f", "a/l"));
	look("a/l");
	V(unlink("a/c/f"));
	look("a/l");
	look("a/c/f");
	V(symlink("/proc/self/cwd/a/l", "p"));
	look("p");

	SECTION("from another directory");
	V(chdir("a/b"));
	look("f");
	V(chdir("../c"));
	look("f");
	put("f", "fifth");
	look("f");
	int d = open("../b", O_PATH | O_DIRECTORY);
	for (int i = 0; i < 3; i++) {
		int fd = openat(d, "f", O_RDONLY);
		char b[16] = "";
		read(fd, b, 15);
		puts(b);
		close(fd);
	}
	V(fchdir(d));
	look("f");
	close(d);
	V(chdir(here));

	SECTION("permissions");
	look(whole);
	V(seteuid(65534));
	look(whole);
	V(seteuid(0));
	V(chmod("a", 0700));
	look(whole);
	V(seteuid(65534));
	look(whole);
	V(seteuid(0));
	V(chown("a", 65534, -1));
	V(seteuid(65534));
	look(whole);
	V(seteuid(0));
	V(fchmodat(AT_FDCWD, "a/b/f", 0, 0));
	V(seteuid(65534));
	look(whole);
	V(seteuid(0));
	look(whole);
	V(chmod("a", 0755));

	SECTION("another root");
	V(mkdir("r", 0755));
	V(mkdir("r/a", 0755));
	put("r/a/f", "in the root");
	put("a/f", "outside");
	look("a/f");
	pid_t pid = vfork();
	if (!pid) {
		if (!chroot("r"))
			chdir("/");
		_exit(0);
	}
	waitpid(pid, 0, 0);
	look("a/f");
	look("/a/f");

	SECTION("renamed again and again, and opened by another thread meanwhile");
	V(mkdir("t", 0755));
	V(mkdir("u", 0755));
	put("t/f", "one");
	put("u/f", "two");
	pthread_t t;
	stop = wrong = 0;
	pthread_create(&t, 0, reads, 0);
	for (int i = 0; i < 300; i++) {
		if (i % 3 == 2 ? rename("t", "v") || rename("v", "t") : renameat2(AT_FDCWD, "t", AT_FDCWD, "u", RENAME_EXCHANGE))
			printf("%d: %s\n", i, err_(errno));
		// What this thread did, it sees.
		char b[16] = "";
		int fd = open("t/f", O_RDONLY), e = errno;
		if (fd < 0)
			strcpy(b, err_(e));
		read(fd, b, 7);
		close(fd);
		int twos = i / 3 * 2 + i % 3 + 1 - (i % 3 == 2);
		if (strcmp(b, twos % 2 ? "two" : "one"))
			printf("%d: %s\n", i, b);
	}
	stop = 1;
	pthread_join(t, 0);
	P(wrong);

	SECTION("renamed by two threads at once");
	put("p", "one");
	put("q", "two");
	pthread_t more[3];
	for (int i = 0; i < 3; i++) {
		for (long k = 0; k < 2; k++)
			pthread_create(&more[k], 0, exchanges, 0);
		for (int k = 0; k < 2; k++)
			pthread_join(more[k], 0);
		look("p");
		look("q");
	}

	SECTION("made, renamed and removed at once");
	for (int i = 0; i < 10; i++) {
		for (long k = 0; k < 3; k++)
			pthread_create(&more[k], 0, changes, (void *)k);
		for (int k = 0; k < 3; k++)
			pthread_join(more[k], 0);
		agrees("x");
		agrees("y");
	}
}

int main(void)
{
	all();
	char dir[] = "/tmp/paths-XXXXXX";
	if (!mkdtemp(dir) || chdir(dir))
		return 1;
	all();
	return 0;
}
