// How memory is brought in, said by a program for itself and for its mappings.
#include "paging.h"

int main(void)
{
	// At first a little comes, of half a block by 256 KiB, and of a block in order all the rest.
	char *a = memory(2 * MIB);
	takes(touch(a, MIB / 16), 1, "as usual, the first");
	takes(touch(a + MIB, MIB), 4, "as usual, the second half alone");
	V(madvise(a, 2 * MIB, MADV_DONTNEED));
	takes(touch(a, 2 * MIB), 2, "as usual, in order");
	for (long n = 0; n < 2 * MIB; n += PAGE)
		if (a[n] != 1) {
			printf("%ld holds %d\n", n, a[n]);
			failed = 1;
			break;
		}
	takes(touch(a, 2 * MIB), 0, "in place");
	V(madvise(a, 2 * MIB, MADV_DONTNEED));
	V(madvise(a, 2 * MIB, MADV_NOHUGEPAGE));
	takes(touch(a, 2 * MIB), 32, "a mapping on demand");
	V(madvise(a, 2 * MIB, MADV_DONTNEED));
	V(madvise(a, 2 * MIB, MADV_HUGEPAGE));
	takes(touch(a, 2 * MIB), 1, "a mapping by blocks");
	V(madvise(a, 2 * MIB, MADV_DONTNEED));
	V(madvise(a + MIB, MIB, MADV_NOHUGEPAGE));
	takes(touch(a, MIB), 4, "a half, of which no block can be made");
	takes(touch(a + MIB, MIB), 16, "the other half");
	V(madvise(a, 2 * MIB, MADV_DONTNEED));
	V(madvise(a, 2 * MIB, MADV_POPULATE_WRITE));
	takes(touch(a, 2 * MIB), 0, "populated");
	munmap(a, 2 * MIB);
	a = mmap(0, 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	takes(touch(a, 2 * MIB), 0, "populated when it was mapped");
	munmap(a, 2 * MIB);
	V(madvise(a, 2 * MIB, MADV_HUGEPAGE));
	V(madvise(a, 2 * MIB, MADV_NOHUGEPAGE));
	V(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0));
	a = memory(MIB);
	takes(touch(a, MIB), 16, "a program on demand");
	fflush(stdout);
	pid_t child = fork();
	if (!child) {
		char *b = memory(MIB);
		takes(touch(b, MIB), 16, "its child");
		fflush(stdout);
		_exit(failed);
	}
	int status;
	waitpid(child, &status, 0);
	failed |= status;
	V(prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0));
	a = memory(MIB);
	takes(touch(a, MIB), 4, "no longer");
	return end();
}
