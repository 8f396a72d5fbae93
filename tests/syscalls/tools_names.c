// Names: very long ones, odd bytes, many in a directory that is emptied while it is read; a removed file in use; renames and links.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define SAY(call) do { errno = 0; long r_ = (long)(call); printf("%s = %ld %s\n", #call, r_ < 0 ? -1 : r_, r_ < 0 ? strerrorname_np(errno) : ""); } while (0)
#define OK(call) do { errno = 0; if ((long)(call) < 0) printf("%s: %s\n", #call, strerrorname_np(errno)); } while (0)

static int touch(const char *name) { int fd = open(name, O_CREAT | O_WRONLY | O_EXCL, 0644); if (fd >= 0) close(fd); return fd < 0 ? -1 : 0; }
static int exists(const char *name) { struct stat s; return lstat(name, &s) == 0; }
static long links(const char *name) { struct stat s; return stat(name, &s) ? -1 : (long)s.st_nlink; }

static int count(const char *dir) {
    DIR *d = opendir(dir); int n = 0; if (!d) return -1;
    for (struct dirent *e; (e = readdir(d));) n++;
    closedir(d); return n;
}

int main(void) {
    char name[5000];
    memset(name, 'n', sizeof name); name[255] = 0;
    SAY(touch(name)); SAY(exists(name)); name[255] = 'n'; name[256] = 0; SAY(touch(name)); SAY(open(name, O_RDONLY));
    memset(name, '/', 4096); memcpy(name, "x", 1); name[4095] = 0; SAY(open(name, O_RDONLY)); name[4095] = '/'; name[4096] = 0; SAY(open(name, O_RDONLY));
    // A path deeper than PATH_MAX, one step at a time.
    OK(mkdir("deep", 0755)); int top = open(".", O_RDONLY | O_DIRECTORY); OK(chdir("deep")); memset(name, 'd', 200); name[200] = 0;
    for (int n = 0; n < 25; n++) { OK(mkdir(name, 0755)); OK(chdir(name)); }
    SAY(touch("bottom")); errno = 0; char *cwd = getcwd(NULL, 0); printf("getcwd %s\n", cwd ? "long" : strerrorname_np(errno)); SAY(exists("bottom")); SAY(unlink("bottom"));
    for (int n = 0; n < 25; n++) { OK(chdir("..")); OK(rmdir(name)); }
    SAY(fchdir(top)); SAY(rmdir("deep"));
    // Odd bytes.
    const char *odd[] = {"\xff\xfe", "new\nline", "-rf", " ", "a\tb", "\\", "*", "\x01", "\xc3\xa9", "'\"", "..."};
    OK(mkdir("odd", 0755)); OK(chdir("odd")); for (unsigned n = 0; n < sizeof odd / sizeof *odd; n++) SAY(touch(odd[n]) + 10 * exists(odd[n])); printf("%d\n", count(".")); for (unsigned n = 0; n < sizeof odd / sizeof *odd; n++) OK(unlink(odd[n])); OK(chdir("..")); SAY(rmdir("odd"));
    SAY(touch("")); SAY(mkdir("/", 0755)); SAY(rmdir(".")); SAY(unlink(".")); SAY(rmdir("..")); SAY(rename(".", "x")); SAY(rename("x", "..")); SAY(open("a/../b", O_RDONLY)); SAY(mkdir("m/", 0755)); SAY(rmdir("m/")); SAY(open("f/", O_CREAT | O_WRONLY, 0644));
    // Many files in a directory; removing them while it is read misses none.
    OK(mkdir("many", 0755)); OK(chdir("many")); for (int n = 0; n < 5000; n++) { sprintf(name, "file-%d-with-a-name-of-some-length", n); OK(touch(name)); } printf("%d\n", count("."));
    DIR *d = opendir("."); int removed = 0; for (struct dirent *e; (e = readdir(d));) if (e->d_name[0] == 'f') { OK(unlink(e->d_name)); removed++; } printf("removed %d\n", removed); rewinddir(d); int left = 0; while (readdir(d)) left++; printf("left %d\n", left);
    OK(touch("late")); rewinddir(d); left = 0; while (readdir(d)) left++; printf("left %d\n", left); long at[4]; rewinddir(d); for (int n = 0; n < 3; n++) { at[n] = telldir(d); readdir(d); } struct dirent *last = readdir(d); printf("end %d\n", last == NULL); seekdir(d, at[0]); left = 0; while (readdir(d)) left++; printf("again %d\n", left); closedir(d); OK(unlink("late")); OK(chdir("..")); SAY(rmdir("many"));
    // A removed file stays usable, without a name.
    int fd = open("gone", O_CREAT | O_RDWR, 0640); SAY(write(fd, "hello", 5)); SAY(unlink("gone")); struct stat s; SAY(fstat(fd, &s)); printf("%ld %ld %o\n", (long)s.st_nlink, (long)s.st_size, s.st_mode); SAY(write(fd, " there", 6)); char b[64] = {0}; SAY(pread(fd, b, 60, 0)); puts(b); SAY(ftruncate(fd, 3)); SAY(fsync(fd)); SAY(fchmod(fd, 0600)); SAY(fstat(fd, &s)); printf("%ld %o\n", (long)s.st_size, s.st_mode); sprintf(name, "/proc/self/fd/%d", fd); int again = open(name, O_RDONLY); SAY(again >= 0); memset(b, 0, sizeof b); SAY(read(again, b, 60)); puts(b); SAY(linkat(fd, "", AT_FDCWD, "back", AT_EMPTY_PATH)); OK(close(again)); SAY(close(fd)); SAY(exists("gone"));
    // A file replaced by rename while it is open; the old one stays as it was.
    fd = open("one", O_CREAT | O_RDWR, 0644); OK(write(fd, "old contents", 12)); int two = open("two", O_CREAT | O_RDWR, 0644); OK(write(two, "new", 3)); SAY(rename("two", "one")); memset(b, 0, sizeof b); SAY(pread(fd, b, 60, 0)); puts(b); SAY(write(fd, "!", 1)); SAY(fstat(fd, &s)); printf("%ld %ld\n", (long)s.st_nlink, (long)s.st_size); SAY(stat("one", &s)); printf("%ld\n", (long)s.st_size); SAY(exists("two")); OK(write(two, "er", 2)); SAY(stat("one", &s)); printf("%ld\n", (long)s.st_size); OK(close(fd)); OK(close(two));
    // Links: one file, seen under all its names.
    SAY(link("one", "other")); SAY(links("one")); SAY(links("other")); SAY(chmod("other", 0600)); SAY(stat("one", &s)); printf("%o\n", s.st_mode); fd = open("other", O_WRONLY | O_APPEND); OK(write(fd, "12345", 5)); SAY(stat("one", &s)); printf("%ld\n", (long)s.st_size); OK(close(fd)); SAY(truncate("one", 4)); SAY(stat("other", &s)); printf("%ld\n", (long)s.st_size); SAY(rename("one", "other")); SAY(exists("one")); SAY(links("other")); SAY(unlink("one")); SAY(links("other")); SAY(link("none", "x")); SAY(link("other", "other")); OK(mkdir("dir", 0755)); SAY(link("dir", "x")); SAY(rename("other", "dir")); SAY(rename("dir", "other")); SAY(rename("dir", "dir/sub")); OK(mkdir("full", 0755)); OK(touch("full/f")); SAY(rename("dir", "full")); SAY(rename("full", "dir")); SAY(exists("dir/f")); SAY(renameat2(AT_FDCWD, "other", AT_FDCWD, "dir", RENAME_EXCHANGE)); SAY(exists("other/f")); SAY(renameat2(AT_FDCWD, "other", AT_FDCWD, "dir", RENAME_NOREPLACE)); SAY(unlink("other/f")); SAY(rmdir("other")); SAY(stat("dir", &s)); printf("%o\n", s.st_mode); SAY(unlink("dir"));
    // The working directory removed.
    OK(mkdir("here", 0755)); OK(chdir("here")); OK(rmdir("../here")); errno = 0; printf("%s\n", getcwd(name, sizeof name) ? name : strerrorname_np(errno)); SAY(touch("in")); SAY(open(".", O_RDONLY)); SAY(stat(".", &s)); printf("%ld\n", (long)s.st_nlink); SAY(count(".")); SAY(chdir("..")); SAY(fchdir(top));
    // Symbolic links: loops, long ones, dangling ones.
    SAY(symlink("loop", "loop")); SAY(open("loop", O_RDONLY)); SAY(open("loop", O_RDONLY | O_NOFOLLOW)); memset(name, 'l', 4096); name[4095] = 0; SAY(symlink(name, "long")); name[4095] = 'l'; name[4096] = 0; SAY(symlink(name, "longer")); SAY(readlink("long", b, 10)); SAY(symlink("target", "dangling")); SAY(open("dangling", O_RDONLY)); SAY(open("dangling", O_CREAT | O_EXCL | O_WRONLY, 0644)); fd = open("dangling", O_CREAT | O_WRONLY, 0644); SAY(fd >= 0); SAY(exists("target")); SAY(symlink("", "empty")); SAY(mkdir("dangling", 0755)); SAY(lchown("loop", 0, 0)); SAY(unlink("loop")); SAY(unlink("long")); SAY(unlink("dangling")); SAY(unlink("target"));
    memset(name, 'n', 256); name[255] = 0; SAY(unlink(name));
    return 0;
}
