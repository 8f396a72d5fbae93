// The 32-bit way into Linux, `int 0x80`, is not served: it ends the program
// as on a Linux built without it (CONFIG_IA32_EMULATION), and is never taken
// for a 64-bit call. Number 20 is getpid there and writev here.
// cell-exit: 139
// cell-says: int 0x80
#include <stdio.h>
#include <unistd.h>

int main(void)
{
	long ret;
	setvbuf(stdout, NULL, _IONBF, 0);
	puts("before");
	asm volatile("int $0x80" : "=a"(ret) : "a"(20), "b"(0), "c"(0), "d"(0) : "memory");
	printf("%d\n", ret == getpid());
	return 0;
}
