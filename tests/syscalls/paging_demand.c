// options: --paging demand
// All memory of all programs is brought in when it is touched, by 64 KiB.
#include "paging.h"

int main(void)
{
	takes(touch(memory(16 * MIB), 16 * MIB), 256, "a mapping");
	takes(touch(memory(64 << 10), 64 << 10), 1, "a small one");
	char *a = memory(2 * MIB);
	V(madvise(a, 2 * MIB, MADV_HUGEPAGE));
	takes(touch(a, 2 * MIB), 1, "one that wants blocks");
	return end();
}
