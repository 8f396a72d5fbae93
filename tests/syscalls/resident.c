// What /proc says is in memory: of private memory, of memory that is shared with a child, of shared memory (proc_pid_smaps(5)).
#include "case.h"
#include <sys/shm.h>
#define SIZE (1 << 20)

static char text[1 << 20];
static const char *slurp(const char *file)
{
	int fd = open(file, O_RDONLY);
	long n, len = 0;
	while ((n = read(fd, text + len, sizeof text - 1 - len)) > 0)
		len += n;
	text[len] = 0;
	close(fd);
	return text;
}
static long value(const char *at, const char *name)
{
	at = at ? strstr(at, name) : 0;
	return at ? strtol(at + strlen(name), 0, 10) : -1;
}
// What smaps says of a mapping; a page more or less at its ends may be another's.
static void show(const char *what, void *p)
{
	char start[32];
	snprintf(start, sizeof start, "%lx-", (long)p);
	const char *at = strstr(slurp("/proc/self/smaps"), start);
	static const char *const names[] = {"\nRss:", "\nPss:", "\nShared_Clean:", "\nShared_Dirty:", "\nPrivate_Clean:",
		"\nPrivate_Dirty:", "\nAnonymous:"};
	printf("%s:", what);
	for (int n = 0; n < 7; n++)
		printf(" %s %ld", names[n] + 1, value(at, names[n]));
	puts("");
	fflush(stdout);
}
// Of KiB, whatever few pages come and go beside.
static long mib(long kib)
{
	return (kib + (kib < 0 ? -512 : 512)) / 1024;
}
// What status says has come in since the last time, in MiB.
static void grown(const char *what)
{
	static long anon, shmem, rss, before[2];
	slurp("/proc/self/status");
	long now[] = {value(text, "RssAnon:"), value(text, "RssShmem:"), value(text, "VmRSS:")};
	P(now[2] == now[0] + now[1] + value(text, "RssFile:") && value(text, "VmHWM:") >= now[2]);
	if (rss)
		printf("%s: anonymous %ld shared %ld all %ld", what, mib(now[0] - anon), mib(now[1] - shmem), mib(now[2] - rss));
	anon = now[0], shmem = now[1], rss = now[2];
	long r[3];
	if (sscanf(slurp("/proc/self/statm"), "%ld %ld %ld", r, r + 1, r + 2) == 3 && before[0])
		printf(" statm: %ld of which shared %ld\n", mib((r[1] - before[0]) * 4), mib((r[2] - before[1]) * 4));
	before[0] = r[1], before[1] = r[2];
	fflush(stdout);
}

int main(void)
{
	// Apart from each other, and from what else there is; not in huge pages, of which all would be there at once.
	char *all = mmap(0, 64 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	all = (char *)(((long)all + (4 << 20) - 1) & -(4L << 20));
	char *own = mmap(all, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	char *shared = mmap(all + (8 << 20), SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	int id = shmget(IPC_PRIVATE, SIZE, IPC_CREAT | 0600);
	char *segment = shmat(id, all + (16 << 20), SHM_REMAP);
	shmctl(id, IPC_RMID, 0);
	memset(text, 1, sizeof text);
	grown("begin");

	SECTION("nothing is there yet");
	show("own", own);
	show("shared", shared);
	show("segment", segment);
	grown("nothing");
	SECTION("all is");
	memset(own, 1, SIZE);
	show("own", own);
	grown("own");
	memset(shared, 1, SIZE);
	show("shared", shared);
	grown("shared");
	memset(segment, 1, SIZE / 2);
	show("half a segment", segment);
	SECTION("a child has it, too");
	int to[2], from[2];
	if (pipe(to) || pipe(from))
		return 1;
	pid_t child = fork();
	if (child == 0) {
		char c;
		for (int n = 0; n < SIZE; n += 4096)
			c = ((volatile char *)shared)[n] + ((volatile char *)own)[n];
		write(from[1], &c, 1);
		read(to[0], &c, 1);
		memset(own, 2, SIZE / 2);
		show("half is the child's own", own);
		_exit(0);
	}
	char c = 0;
	read(from[0], &c, 1);
	show("own", own);
	show("shared", shared);
	write(to[1], &c, 1);
	waitpid(child, 0, 0);
	SECTION("the child is gone");
	show("own", own);
	show("shared", shared);
	madvise(own, SIZE / 2, MADV_DONTNEED);
	show("half is given up", own);
	V(munmap(own, SIZE));
	V(munmap(shared, SIZE));
	V(shmdt(segment));
	grown("unmapped");
	return 0;
}
