// The times of a file that is written to through a mapping.
#include "case.h"

#define PG 4096L
static struct stat last;

// Which times have changed since it was last called.
static void changed(const char *what, int fd)
{
	struct stat s;
	fstat(fd, &s);
	int m = memcmp(&s.st_mtim, &last.st_mtim, sizeof s.st_mtim), c = memcmp(&s.st_ctim, &last.st_ctim, sizeof s.st_ctim);
	printf("%s:%s%s\n", what, m ? " mtime" : "", c ? " ctime" : "");
	fflush(stdout);
	last = s;
	sleep_ms(20);
}

int main(void)
{
	char name[] = "/tmp/mapped_timesXXXXXX";
	int fd = mkstemp(name);
	volatile char sum = 0;
	ftruncate(fd, 64 * PG);
	fstat(fd, &last);
	sleep_ms(20);
	changed("nothing", fd);
	volatile char *p = mmap(NULL, 64 * PG, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	changed("mapped", fd);
	p[0] = 1;
	changed("written to", fd);
	V(msync((void *)p, 64 * PG, MS_SYNC));
	fstat(fd, &last);
	p[1] = 1;
	V(msync((void *)p, 64 * PG, MS_SYNC));
	changed("written to again, and synced", fd);
	munmap((void *)p, 64 * PG);
	fstat(fd, &last);
	p = mmap(NULL, 64 * PG, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	sleep_ms(20);
	sum += p[0];
	p[0] = 2;
	munmap((void *)p, 64 * PG);
	changed("read, written to and unmapped", fd);
	p = mmap(NULL, 64 * PG, PROT_READ, MAP_SHARED, fd, 0);
	sum += p[0];
	V(msync((void *)p, 64 * PG, MS_SYNC));
	changed("read", fd);
	V(mprotect((void *)p, 64 * PG, PROT_READ | PROT_WRITE));
	p[0] = 3;
	munmap((void *)p, 64 * PG);
	changed("written to when that was allowed", fd);
	p = mmap(NULL, 64 * PG, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	p[0] = 3;
	V(msync((void *)p, 64 * PG, MS_SYNC));
	munmap((void *)p, 64 * PG);
	changed("written to a private mapping", fd);
	p = mmap(NULL, 64 * PG, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	munmap((void *)p, 64 * PG);
	changed("mapped and unmapped", fd);
	p = mmap(NULL, 64 * PG, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	fflush(stdout);
	pid_t c = fork();
	if (!c) {
		sum += p[40 * PG];
		p[40 * PG] = 4;
		_exit(0);
	}
	waitpid(c, NULL, 0);
	changed("written to by a child that has ended", fd);
	unlink(name);
	return 0;
}
