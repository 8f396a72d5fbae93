// A far jump to the 32-bit code segment: the program is ended at its first
// system call there, which is not taken for a 64-bit one.
// flags: -no-pie -static
// cell-exit: 139
// cell-says: 32-bit code
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int main(void)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	puts("before");
	// mov $20, %eax; int $0x80; ljmp *%cs:(%esi) back: ds is empty in 64-bit programs.
	unsigned char *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
				   MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	unsigned char text[] = { 0xb8, 20, 0, 0, 0, 0xcd, 0x80, 0x2e, 0xff, 0x2e };
	memcpy(code, text, sizeof text);
	struct { unsigned offset; unsigned short segment; } __attribute__((packed)) *back = (void *)(code + 512),
		*there = (void *)(code + 520);
	there->offset = (unsigned)(unsigned long)code;
	there->segment = 0x23;
	back->segment = 0x33;
	long ret;
	// The stack pointer loses its upper half there.
	asm volatile("mov %%rsp, %%r12\nlea 1f(%%rip), %%rax\nmov %%eax, (%%rsi)\nljmp *(%%rdi)\n1: mov %%r12, %%rsp\n"
		     : "=a"(ret) : "S"(back), "D"(there) : "memory", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12");
	printf("%d\n", (int)ret == getpid());
	return 0;
}
