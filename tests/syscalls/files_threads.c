// options: --cores 2
// What threads share of files: directories and ids that one changes and all see, contents that are read while
// another thread changes them, and descriptors that come and go.
#include "case.h"
#include <stdatomic.h>

static char top[] = "/tmp/shared-XXXXXX";
static pthread_barrier_t turn;
static atomic_int over;

static int number_in(const char *path)
{
	char c = '?';
	int fd = open(path, O_RDONLY);
	if (fd < 0)
		return -errno;
	if (read(fd, &c, 1) != 1)
		c = '-';
	close(fd);
	return c;
}

/* Looks after each change. */
static void *other(void *unused)
{
	(void)unused;
	for (int n = 0; n < 6; n++) {
		/* From here on its directory is its own. */
		if (n == 4 && unshare(CLONE_FS))
			printf("unshare: %s\n", strerror(errno));
		pthread_barrier_wait(&turn);
		pthread_barrier_wait(&turn);
		int got = number_in("name");
		printf("%d: other thread reads %c (%d)\n", n, got > 0 ? got : ' ', got > 0 ? 0 : got);
		pthread_barrier_wait(&turn);
	}
	return 0;
}

/* The file is a page long, or for a moment empty. */
static void *reads(void *path)
{
	char page[4096];
	long strange = 0;
	while (!atomic_load(&over)) {
		int fd = open(path, O_RDONLY);
		long n = fd < 0 ? -1 : read(fd, page, sizeof page);
		if (n != sizeof page && n != 0)
			strange++;
		if (fd >= 0 && close(fd))
			strange++;
	}
	return (void *)strange;
}

static void *writes(void *path)
{
	char page[4096];
	for (int n = 0; n < 3000; n++) {
		memset(page, 'a' + n % 26, sizeof page);
		int fd = open(path, O_WRONLY);
		if (fd < 0 || pwrite(fd, page, sizeof page, 0) != sizeof page)
			abort();
		if (n % 7 == 0 && (ftruncate(fd, 0) || fchmod(fd, n % 2 ? 0600 : 0644) ||
				   pwrite(fd, page, sizeof page, 0) != sizeof page))
			abort();
		close(fd);
	}
	return 0;
}

/* Opens and closes many; no descriptor may be had twice. */
static atomic_char taken[256];
static void *opens(void *unused)
{
	long strange = 0;
	(void)unused;
	for (int n = 0; n < 4000; n++) {
		int fd[4];
		for (int i = 0; i < 4; i++) {
			fd[i] = open("/dev/null", O_RDONLY);
			strange += fd[i] < 0 || fd[i] > 255 || atomic_exchange(&taken[fd[i] & 255], 1);
		}
		for (int i = 0; i < 4; i++) {
			atomic_store(&taken[fd[i] & 255], 0);
			strange += close(fd[i]) != 0;
		}
	}
	return (void *)strange;
}

int main(void)
{
	pthread_t t[6];
	char path[64], letter[2] = "A";
	if (!mkdtemp(top) || chdir(top))
		return 1;
	chmod(top, 0755);
	for (int n = 0; n < 3; n++) {
		sprintf(path, "%s/%d", top, n);
		mkdir(path, 0755);
		strcat(path, "/name");
		letter[0] = 'A' + n;
		int fd = open(path, O_CREAT | O_WRONLY, 0600);
		if (write(fd, letter, 1) != 1)
			return 1;
		close(fd);
	}
	pthread_barrier_init(&turn, 0, 2);
	pthread_create(&t[0], 0, other, 0);
	for (int n = 0; n < 6; n++) {
		pthread_barrier_wait(&turn);
		/* Another directory each time; in turn 3 the ids of an ordinary user, who may not read it. */
		sprintf(path, "%s/%d", top, n % 3);
		if (chdir(path))
			puts("chdir");
		if (n == 3 && setresuid(65534, 65534, 0))
			puts("setresuid");
		if (n == 4 && setresuid(0, 0, 0))
			puts("setresuid back");
		pthread_barrier_wait(&turn);
		pthread_barrier_wait(&turn);
	}
	pthread_join(t[0], 0);

	sprintf(path, "%s/page", top);
	close(open(path, O_CREAT | O_WRONLY, 0644));
	for (int i = 0; i < 4; i++)
		pthread_create(&t[i], 0, reads, path);
	pthread_create(&t[4], 0, writes, path);
	pthread_create(&t[5], 0, writes, path);
	pthread_join(t[4], 0);
	pthread_join(t[5], 0);
	atomic_store(&over, 1);
	for (int i = 0; i < 4; i++) {
		void *strange;
		pthread_join(t[i], &strange);
		printf("reader: %ld strange\n", (long)strange);
	}
	for (int i = 0; i < 6; i++)
		pthread_create(&t[i], 0, opens, 0);
	for (int i = 0; i < 6; i++) {
		void *strange;
		pthread_join(t[i], &strange);
		printf("opener: %ld strange\n", (long)strange);
	}
	return 0;
}
