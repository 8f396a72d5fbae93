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

static void all(int beside)
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
	// Not on a volume: there a look-up of another thread can bring back what was so before.
	if (beside)
		pthread_create(&t, 0, reads, 0);
	for (int i = 0; i < 300; i++) {
		if (i % 3 == 2 ? rename("t", "v") || rename("v", "t") : renameat2(AT_FDCWD, "t", AT_FDCWD, "u", RENAME_EXCHANGE))
			printf("%d: %s\n", i, err_(errno));
		// What this thread did, it sees.
		char b[8] = "";
		int fd = open("t/f", O_RDONLY);
		read(fd, b, 7);
		close(fd);
		int twos = i / 3 * 2 + i % 3 + 1 - (i % 3 == 2);
		if (strcmp(b, twos % 2 ? "two" : "one"))
			printf("%d: %s\n", i, b);
	}
	stop = 1;
	if (beside)
		pthread_join(t, 0);
	P(wrong);
}

int main(void)
{
	all(0);
	char dir[] = "/tmp/paths-XXXXXX";
	if (!mkdtemp(dir) || chdir(dir))
		return 1;
	all(1);
	return 0;
}
