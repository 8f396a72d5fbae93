// options: --paging populate --memory 512M
// All memory of all programs is brought in when it is mapped.
#include "paging.h"

int main(void)
{
	takes(touch(memory(16 * MIB), 16 * MIB), 0, "a mapping");
	takes(touch(memory(64 << 10), 64 << 10), 0, "a small one");
	char *heap = sbrk(4 * MIB);
	takes(touch(heap, 4 * MIB), 0, "the heap");
	// More than half of what is free comes when it is touched.
	char *large = memory(400 * MIB);
	takes(touch(large, 4 * MIB), 2, "a large one");
	return end();
}
