// Copies from file to file that are long: copy_file_range and sendfile between what is cached, written and mapped.
#include "case.h"
#include <sys/resource.h>
#include <sys/sendfile.h>

enum { LONG = 9 << 20 };

static unsigned char *expected, *seen;

static void fill(unsigned char *to, size_t len, unsigned seed) {
	for (size_t i = 0; i < len; i++) {
		seed = seed * 1103515245 + 12345;
		to[i] = seed >> 16;
	}
}

// Are the file's contents what `expected` has, and is it so long?
static void same(const char *what, int fd, size_t len) {
	struct stat st;
	fstat(fd, &st);
	size_t n = 0;
	for (ssize_t got; n < len && (got = pread(fd, seen + n, len - n, n)) > 0;)
		n += got;
	printf("%s: %d bytes, %s\n", what, (int)st.st_size, n == len && memcmp(expected, seen, len) == 0 ? "right" : "wrong");
}

int main(void) {
	expected = calloc(1, 3 * LONG);
	seen = malloc(3 * LONG);
	unsigned char *data = malloc(LONG);
	fill(data, LONG, 1);
	int from = open("copies.from", O_RDWR | O_CREAT | O_TRUNC, 0600);
	int to = open("copies.to", O_RDWR | O_CREAT | O_TRUNC, 0600);
	// What was written last is still on its way to the file's disk, and odd offsets are neither's.
	write(from, data, LONG);
	pwrite(from, "changed", 7, 5000001);
	memcpy(data + 5000001, "changed", 7);
	loff_t a = 12345, b = 777;
	V(copy_file_range(from, &a, to, &b, 6000000, 0));
	printf("from %d to %d, positions %d and %d\n", (int)a, (int)b, (int)lseek(from, 0, SEEK_CUR), (int)lseek(to, 0, SEEK_CUR));
	memcpy(expected + 777, data + 12345, 6000000);
	same("at an odd place", to, 6000777);

	// Over what is there and partly not written out yet, by positions.
	unsigned char some[3000];
	memset(some, 'x', sizeof some);
	pwrite(to, some, sizeof some, 100);
	memcpy(expected + 100, some, sizeof some);
	pwrite(to, some, sizeof some, 500000);
	lseek(from, LONG - 400000, SEEK_SET);
	lseek(to, 200000, SEEK_SET);
	V(copy_file_range(from, NULL, to, NULL, 1 << 20, 0));
	memcpy(expected + 200000, data + LONG - 400000, 400000);
	printf("positions %d and %d\n", (int)lseek(from, 0, SEEK_CUR), (int)lseek(to, 0, SEEK_CUR));
	same("over what was there", to, 6000777);
	V(copy_file_range(from, NULL, to, NULL, 1 << 20, 0));

	// What has it mapped sees it.
	char *map = mmap(NULL, LONG, PROT_READ | PROT_WRITE, MAP_SHARED, to, 0);
	memcpy(map + 1000000, "by the mapping", 14);
	memcpy(expected + 1000000, "by the mapping", 14);
	a = 0, b = 2000000;
	V(copy_file_range(from, &a, to, &b, 300000, 0));
	memcpy(expected + 2000000, data, 300000);
	printf("mapped: %d\n", memcmp(map, expected, 6000777));
	same("with a mapping", to, 6000777);
	// And what was written there is copied.
	int third = open("copies.third", O_RDWR | O_CREAT | O_TRUNC, 0600);
	a = 900000, b = 0;
	V(copy_file_range(to, &a, third, &b, 200000, 0));
	pread(third, seen, 200000, 0);
	printf("from a mapping: %d\n", memcmp(seen, expected + 900000, 200000));
	munmap(map, LONG);

	// Within one file: apart, and not.
	a = 0, b = 6000777;
	V(copy_file_range(to, &a, to, &b, 500000, 0));
	memcpy(expected + 6000777, expected, 500000);
	same("behind itself", to, 6500777);
	a = 0, b = 300000;
	V(copy_file_range(to, &a, to, &b, 400000, 0));

	// sendfile writes at the position of the one and reads from that of the other, or from where it is told.
	off_t o = 100000;
	ftruncate(third, 0);
	lseek(third, 50, SEEK_SET);
	V(sendfile(third, from, &o, 2000000));
	printf("sendfile: %d, positions %d and %d\n", (int)o, (int)lseek(from, 0, SEEK_CUR), (int)lseek(third, 0, SEEK_CUR));
	lseek(from, 300, SEEK_SET);
	V(sendfile(third, from, NULL, 500000));
	printf("positions %d and %d\n", (int)lseek(from, 0, SEEK_CUR), (int)lseek(third, 0, SEEK_CUR));
	memset(expected, 0, 50);
	memcpy(expected + 50, data + 100000, 2000000);
	memcpy(expected + 2000050, data + 300, 500000);
	same("sendfile", third, 2500050);

	// Only to be written, or read; at the end.
	int only = open("copies.only", O_WRONLY | O_CREAT | O_TRUNC, 0600);
	a = b = 0;
	V(copy_file_range(from, &a, only, &b, 1 << 20, 0));
	int reads = open("copies.only", O_RDONLY);
	memcpy(expected, data, 1 << 20);
	same("that can only be written", reads, 1 << 20);
	V(copy_file_range(reads, NULL, only, NULL, 1 << 20, 0));
	int ends = open("copies.only", O_WRONLY | O_APPEND);
	V(copy_file_range(from, NULL, ends, NULL, 1 << 20, 0));
	V(copy_file_range(from, NULL, reads, NULL, 1 << 20, 0));
	V(copy_file_range(only, NULL, to, NULL, 1 << 20, 0));
	V(lseek(ends, 0, SEEK_END));
	lseek(from, 0, SEEK_SET);
	V(sendfile(ends, from, NULL, 100000));

	// No longer than it may get.
	if (fork() == 0) {
		struct rlimit limit = { 300000, 300000 };
		setrlimit(RLIMIT_FSIZE, &limit);
		signal(SIGXFSZ, SIG_IGN);
		int fd = open("copies.short", O_RDWR | O_CREAT | O_TRUNC, 0600);
		a = b = 0;
		V(copy_file_range(from, &a, fd, &b, 1 << 20, 0));
		V(copy_file_range(from, &a, fd, &b, 1 << 20, 0));
		same("short", fd, 300000);
		lseek(from, 0, SEEK_SET);
		V(ftruncate(fd, 0));
		V(lseek(fd, 0, SEEK_SET));
		V(sendfile(fd, from, NULL, 1 << 20));
		// At the end of what is copied there is nothing that is too long, but for copy_file_range.
		fd = open("copies.third", O_RDONLY);
		int whole = open("copies.short", O_RDWR);
		V(ftruncate(whole, 300000));
		V(lseek(whole, 0, SEEK_END));
		V(lseek(fd, 0, SEEK_END));
		V(sendfile(whole, fd, NULL, 1 << 20));
		V(copy_file_range(fd, NULL, whole, NULL, 1 << 20, 0));
		V(sendfile(open("/dev/null", O_WRONLY), fd, &(off_t){ 0 }, 400000));
		fflush(stdout);
		signal(SIGXFSZ, SIG_DFL);
		a = 0, b = 300000;
		copy_file_range(from, &a, whole, &b, 1 << 20, 0);
		_exit(0);
	}
	int status;
	wait(&status);
	printf("signal %d\n", WTERMSIG(status));
	return 0;
}
