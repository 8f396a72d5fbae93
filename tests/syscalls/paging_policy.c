// options: --paging populate --memory-policy syscalls/paging_policy.toml
// How memory is brought in, said by a file for programs and for their mappings (XOS-03).
#include "paging.h"

// A file that is mapped privately, to be written to.
static char *mapped(const char *name)
{
	int fd = open(name, O_RDWR | O_CREAT, 0600);
	V(ftruncate(fd, MIB));
	char *a = mmap(0, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	close(fd);
	return a;
}

static __attribute__((noinline)) long on_stack(void)
{
	char a[2 * MIB];
	return touch(a, sizeof a);
}

// Runs this program by another name.
static void by_name(char *name, char *as)
{
	fflush(stdout);
	pid_t child = fork();
	if (!child) {
		execl(name, name, as, NULL);
		_exit(99);
	}
	int status;
	waitpid(child, &status, 0);
	V(status);
	failed |= status;
}

static void copy_to(const char *name)
{
	static char buffer[1 << 16];
	int from = open("/proc/self/exe", O_RDONLY), to = open(name, O_WRONLY | O_CREAT, 0700);
	long n;
	while ((n = read(from, buffer, sizeof buffer)) > 0)
		if (write(to, buffer, n) != n)
			perror(name);
	close(from), close(to);
}

int main(int count, char **arguments)
{
	if (count == 2 && !strcmp(arguments[1], "huge")) {
		takes(touch(memory(16 * MIB), 16 * MIB), 8, "job-1, by blocks");
		V(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0));
		takes(touch(memory(MIB), MIB), 16, "job-1, which wants none");
		return end();
	}
	if (count == 2) {
		takes(touch(memory(16 * MIB), 16 * MIB), 256, arguments[1]);
		return end();
	}
	takes(touch(memory(64 << 10), 64 << 10), 1, "small");
	takes(touch(memory(MIB / 2), MIB / 2), 8, "half a MiB, as the program");
	takes(touch(memory(4 * MIB), 4 * MIB), 64, "4 MiB, as the program");
	takes(touch(memory(2 * MIB), 2 * MIB), 1, "2 MiB, by blocks");
	takes(touch(memory(16 * MIB), 16 * MIB), 0, "16 MiB, in place");
	char *heap = sbrk(4 * MIB);
	takes(touch(heap, 4 * MIB), 0, "the heap");
	takes(on_stack(), 0, "the stack");
	takes(touch(mapped("a.bin"), MIB), 0, "a file that is named");
	takes(touch(mapped("a.dat"), MIB), 16, "one that isn't");
	// What the program says itself.
	char *a = memory(2 * MIB);
	V(madvise(a, 2 * MIB, MADV_NOHUGEPAGE));
	takes(touch(a, 2 * MIB), 32, "a mapping that wants no blocks");
	V(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0));
	takes(touch(memory(16 * MIB), 16 * MIB), 0, "the file of a mapping, before the program of all");
	V(prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0));
	takes(touch(memory(4 * MIB), 4 * MIB), 64, "again as the file says");
	fflush(stdout);
	pid_t child = fork();
	if (!child) {
		takes(touch(memory(4 * MIB), 4 * MIB), 64, "a child, as the program");
		takes(touch(memory(2 * MIB), 2 * MIB), 1, "a child, by blocks");
		fflush(stdout);
		_exit(failed);
	}
	int status;
	waitpid(child, &status, 0);
	failed |= status;
	copy_to("job-1");
	copy_to("job-12");
	by_name("./job-1", "huge");
	by_name("./job-12", "any other");
	return end();
}
