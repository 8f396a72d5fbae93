// System calls in code that is made at run time: in a page that is writable
// and executable, in one that is made executable afterwards, in one that is
// written again, and in a copy of a file's page.
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef long (*function)(void);

static unsigned char *make(unsigned char *at, int number)
{
	unsigned char code[] = { 0xb8, number, 0, 0, 0, 0x0f, 0x05, 0xc3 };
	memcpy(at, code, sizeof code);
	return at;
}

int main(void)
{
	int rw = PROT_READ | PROT_WRITE, rx = PROT_READ | PROT_EXEC, priv = MAP_PRIVATE | MAP_ANONYMOUS;
	unsigned char *p = mmap(NULL, 8192, rw | PROT_EXEC, priv, -1, 0);
	long parent = getppid(), self = getpid();
	for (int i = 0; i < 5; i++) {
		printf("writable and executable: %d", ((function)make(p, 110))() == parent);
		printf(" %d\n", ((function)make(p, 39))() == self);
	}
	// Across a page boundary.
	printf("across pages: %d\n", ((function)make(p + 4096 - 6, 110))() == parent);

	unsigned char *q = mmap(NULL, 4096, rw, priv, -1, 0);
	make(q, 110);
	mprotect(q, 4096, rx);
	for (int i = 0; i < 5; i++)
		printf("executable later: %d\n", ((function)q)() == parent);
	mprotect(q, 4096, rw);
	make(q, 39);
	mprotect(q, 4096, rx);
	printf("written again: %d\n", ((function)q)() == self);

	int fd = open("code", O_RDWR | O_CREAT | O_TRUNC, 0755);
	unsigned char page[4096] = { 0 };
	make(page, 110);
	if (fd < 0 || write(fd, page, sizeof page) != sizeof page)
		return 1;
	unsigned char *f = mmap(NULL, 4096, rx, MAP_PRIVATE, fd, 0);
	for (int i = 0; i < 5; i++)
		printf("of a file: %d\n", ((function)f)() == parent);
	unsigned char *s = mmap(NULL, 4096, rx, MAP_SHARED, fd, 0);
	printf("of a shared file: %d\n", ((function)s)() == parent);
	munmap(f, 4096);
	f = mmap(NULL, 4096, rw | PROT_EXEC, MAP_PRIVATE, fd, 0);
	printf("of a file's private copy: %d", ((function)f)() == parent);
	printf(" %d\n", ((function)make(f, 39))() == self);
	return unlink("code");
}
