// Extended attributes, in a volume and in memory.
#include "case.h"
#include <sys/inotify.h>
#include <sys/xattr.h>

static char b[70000], big[70000];

static void list(const char *what, long n)
{
	// In no particular order, and without those that a security module adds.
	char *names[20];
	int count = 0;
	for (char *p = b; p < b + n; p += strlen(p) + 1)
		if (strncmp(p, "security.", 9))
			names[count++] = p;
	for (int i = 0; i < count; i++)
		for (int j = i + 1; j < count; j++)
			if (strcmp(names[i], names[j]) > 0) {
				char *t = names[i];
				names[i] = names[j];
				names[j] = t;
			}
	printf("%s:", what);
	for (int i = 0; i < count; i++)
		printf(" %s", names[i]);
	puts("");
}

static void all(void)
{
	int fd = open("f", O_CREAT | O_RDWR, 0644);
	mkdir("d", 0755);
	symlink("f", "l");
	mkfifo("p", 0600);
	V(setxattr("f", "user.a", "value", 5, 0));
	V(getxattr("f", "user.a", b, sizeof b));
	printf("%.5s\n", b);
	V(getxattr("f", "user.a", b, 0));
	V(getxattr("f", "user.a", b, 4));
	V(getxattr("f", "user.none", b, 4));
	V(setxattr("f", "user.a", "new", 3, XATTR_CREATE));
	V(setxattr("f", "user.b", "new", 3, XATTR_REPLACE));
	V(setxattr("f", "user.a", "new", 3, XATTR_REPLACE));
	V(setxattr("f", "user.b", "", 0, XATTR_CREATE));
	V(setxattr("f", "user.b", "", 0, 4));
	V(setxattr("f", "user.b", "", 0, XATTR_CREATE | XATTR_REPLACE));
	V(lgetxattr("f", "user.a", b, sizeof b));
	V(fgetxattr(fd, "user.b", b, sizeof b));
	list("listxattr", listxattr("f", b, sizeof b));
	list("llistxattr", llistxattr("f", b, sizeof b));
	list("flistxattr", flistxattr(fd, b, sizeof b));
	V(listxattr("f", b, 3));
	V(fsetxattr(fd, "user.c", "by descriptor", 13, 0));
	V(lsetxattr("f", "user.d", "no link", 7, 0));
	V(removexattr("f", "user.b"));
	V(removexattr("f", "user.b"));
	V(lremovexattr("f", "user.d"));
	V(fremovexattr(fd, "user.c"));
	list("left", listxattr("f", b, sizeof b));
	V(setxattr("l", "user.l", "through", 7, 0));
	V(lsetxattr("l", "user.l", "link", 4, 0));
	V(lgetxattr("l", "user.l", b, sizeof b));
	V(lremovexattr("l", "user.l"));
	V(setxattr("p", "user.l", "fifo", 4, 0));
	V(getxattr("p", "user.l", b, sizeof b));
	V(setxattr("d", "user.dir", "directory", 9, 0));
	V(getxattr("d", "user.dir", b, sizeof b));
	V(setxattr("f", "nothing", "x", 1, 0));
	V(getxattr("f", "nothing", b, 1));
	V(setxattr("f", "user.", "x", 1, 0));
	V(setxattr("f", "", "x", 1, 0));
	V(setxattr("none", "user.x", "x", 1, 0));
	V(setxattr("f", "user.x", (void *)8, 1, 0));
	V(setxattr("f", (void *)8, "x", 1, 0));
	V(setxattr("f", "user.x", big, sizeof big, 0));
	memset(big, 'n', 300);
	memcpy(big, "user.", 5);
	big[256] = 0;
	V(setxattr("f", big, "x", 1, 0));
	big[255] = 0;
	V(getxattr("f", big, b, 1));
	int path = open("f", O_PATH);
	V(fsetxattr(path, "user.x", "x", 1, 0));
	V(fgetxattr(path, "user.x", b, 1));
	close(path);
	V(fsetxattr(-1, "user.x", "x", 1, 0));
	int ends[2];
	pipe(ends);
	V(fgetxattr(ends[0], "user.x", b, 1));
	// With neither name nor path.
	unlink("f");
	V(fsetxattr(fd, "user.e", "unlinked", 8, 0));
	V(fgetxattr(fd, "user.e", b, sizeof b));
	list("unlinked", flistxattr(fd, b, sizeof b));
	V(fremovexattr(fd, "user.e"));
	close(fd);

	SECTION("watched");
	fd = open("g", O_CREAT | O_RDWR, 0644);
	int in = inotify_init();
	inotify_add_watch(in, ".", IN_ALL_EVENTS);
	setxattr("g", "user.a", "value", 5, 0);
	removexattr("g", "user.a");
	V(read(in, b, sizeof b));
	X(((struct inotify_event *)b)->mask);
	close(in);
	close(fd);
	unlink("g");
	unlink("l");
	unlink("p");
	rmdir("d");
}

int main(void)
{
	SECTION("volume");
	all();
	SECTION("memory");
	char tmp[] = "/tmp/xattr-XXXXXX";
	if (chdir(mkdtemp(tmp)))
		return 1;
	all();
	rmdir(tmp);
	return 0;
}
