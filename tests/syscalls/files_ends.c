// options: --cores 2
// A file that grows ends where it was written to last, however often another thread asks for its attributes by its name meanwhile:
// an answer that was given before a write comes after it. PostgreSQL found data behind the end.
#include "case.h"
#include <stdatomic.h>

static atomic_int over;

static void *asks(void *path)
{
	struct stat s;
	while (!atomic_load(&over))
		if (stat(path, &s))
			puts("stat");
	return 0;
}

int main(void)
{
	static char page[8192];
	int wrong = 0, fd = V(open("grows", O_CREAT | O_RDWR, 0600));
	pthread_t t;
	pthread_create(&t, 0, asks, "grows");
	for (long n = 0; n < 3000; n++) {
		wrong += lseek(fd, 0, SEEK_END) != n * (long)sizeof page;
		if (pwrite(fd, page, sizeof page, n * (long)sizeof page) != sizeof page)
			puts("pwrite");
		/* What is closed is written out. */
		close(open("grows", O_RDWR));
	}
	atomic_store(&over, 1);
	pthread_join(t, 0);
	printf("it ended elsewhere %d times\n", wrong);
	V(unlink("grows"));
}
