/* What it takes to make, change and remove names in a directory: prints each, and the median time in ns.
 * tree DIRECTORY: works in there, and leaves nothing. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { TIMES = 2000 };
static char name[64], other[64], contents[4096];

static void check(int r)
{
	if (r < 0) {
		perror(name);
		exit(1);
	}
}

static void names(int n)
{
	snprintf(name, sizeof name, "name%d", n);
	snprintf(other, sizeof other, "other%d", n);
}

static void make(int n)
{
	int fd = open(name, O_CREAT | O_EXCL | O_WRONLY, 0644);
	check(fd);
	check(write(fd, contents, sizeof contents));
	check(close(fd));
}
static void look(int n)
{
	struct stat s;
	check(stat(name, &s));
}
static void read_it(int n)
{
	char room[sizeof contents];
	int fd = open(name, O_RDONLY);
	check(fd);
	check(read(fd, room, sizeof room));
	check(close(fd));
}
static void change_mode(int n) { check(chmod(name, n & 1 ? 0600 : 0640)); }
static void change_times(int n)
{
	struct timespec t[2] = {{n, 0}, {n, 0}};
	check(utimensat(AT_FDCWD, name, t, 0));
}
static void move(int n) { check(rename(name, other)); }
static void give_name(int n) { check(link(other, name)); }
static void remove_one(int n) { check(unlink(name)); }
static void remove_last(int n) { check(unlink(other)); }
static void make_dir(int n) { check(mkdir(name, 0755)); }
static void remove_dir(int n) { check(rmdir(name)); }

static int by_size(const void *a, const void *b) {
	long x = *(const long *)a, y = *(const long *)b;
	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *what;
		void (*does)(int);
	} steps[] = {
		{"make a file of 4 KiB", make}, {"stat it", look}, {"open, read and close it", read_it},
		{"chmod", change_mode}, {"utimensat", change_times}, {"rename", move}, {"link", give_name},
		{"unlink one of two names", remove_one}, {"unlink the last name", remove_last}, {"mkdir", make_dir},
		{"rmdir", remove_dir},
	};
	static long took[TIMES];
	if (argc < 2 || chdir(argv[1])) return 1;
	for (unsigned s = 0; s < sizeof steps / sizeof *steps; s++) {
		for (int n = 0; n < TIMES; n++) {
			struct timespec a, b;
			names(n);
			clock_gettime(CLOCK_MONOTONIC, &a);
			steps[s].does(n);
			clock_gettime(CLOCK_MONOTONIC, &b);
			took[n] = (b.tv_sec - a.tv_sec) * 1000000000L + b.tv_nsec - a.tv_nsec;
		}
		qsort(took, TIMES, sizeof *took, by_size);
		printf("%s %ld\n", steps[s].what, took[TIMES / 2]);
	}
}
