/* Instructions that do nothing, but that bench/count.c knows: it notes how many were executed before each. */
#define MARK(n) __asm__ volatile("nopl 0x41544c00+" #n "(%%rax)" : : : "memory")
