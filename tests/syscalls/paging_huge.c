// options: --paging huge
// All memory of all programs is brought in when it is touched, by 2 MiB.
#include "paging.h"

int main(void)
{
	takes(touch(memory(16 * MIB), 16 * MIB), 8, "a mapping");
	char *a = memory(2 * MIB);
	V(madvise(a, 2 * MIB, MADV_NOHUGEPAGE));
	takes(touch(a, 2 * MIB), 32, "one that wants none");
	return end();
}
