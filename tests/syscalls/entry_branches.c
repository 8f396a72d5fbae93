// Code that jumps to a `syscall` instruction, or to an instruction behind it
// that a rewriter would like to move: directly, from another function, through
// an address loaded relative to RIP, and through an address in data.
#include <stdio.h>
#include <unistd.h>

asm(".text\n"
    // Two ways to the call: with the number loaded, and with the number given.
    ".globl to_call\n.type to_call,@function\nto_call:\n"
    "test %rsi, %rsi\nmov %rdi, %rax\njnz 1f\nmov $110, %eax\n1: syscall\nret\n"
    ".size to_call, .-to_call\n"
    // A loop whose head lies directly behind the call.
    ".globl to_behind\n.type to_behind,@function\nto_behind:\n"
    "mov $110, %rax\nxor %edx, %edx\nsyscall\n2: inc %edx\ndec %rdi\njnz 2b\nmov %rdx, %rax\nret\n"
    ".size to_behind, .-to_behind\n"
    // Entered by others, without a symbol.
    ".globl entered\n.type entered,@function\nentered:\n"
    "mov %rdi, %rax\nnop\nsyscall\n.Lbehind: inc %rax\ninc %rax\nret\n"
    ".size entered, .-entered\n"
    ".globl from_another\n.type from_another,@function\nfrom_another:\n"
    "mov $40, %eax\njmp .Lbehind\n"
    ".size from_another, .-from_another\n"
    ".globl entered2\n.type entered2,@function\nentered2:\n"
    "mov %rdi, %rax\nnop\nsyscall\n.Lbehind2: inc %rax\ninc %rax\nret\n"
    ".size entered2, .-entered2\n"
    ".globl by_address\n.type by_address,@function\nby_address:\n"
    "mov $50, %eax\nlea .Lbehind2(%rip), %rcx\njmp *%rcx\n"
    ".size by_address, .-by_address\n"
    ".globl entered3\n.type entered3,@function\nentered3:\n"
    "mov %rdi, %rax\nnop\nsyscall\n.Lbehind3: inc %rax\ninc %rax\nret\n"
    ".size entered3, .-entered3\n"
    ".globl by_data\n.type by_data,@function\nby_data:\n"
    "mov $60, %eax\njmp *pointer(%rip)\n"
    ".size by_data, .-by_data\n"
    ".data\n.balign 8\npointer: .quad .Lbehind3\n.text\n"
    // A computed jump inside a function, by a table of distances.
    ".globl by_table\n.type by_table,@function\nby_table:\n"
    "lea table(%rip), %rcx\nmovslq (%rcx,%rdi,4), %rdx\nadd %rcx, %rdx\nmov %rsi, %rax\njmp *%rdx\n"
    "3: mov $110, %eax\n4: syscall\n5: nop\n6: inc %rax\nret\n"
    ".size by_table, .-by_table\n"
    ".section .rodata\n.balign 4\ntable: .long 3b-table, 4b-table, 5b-table, 6b-table\n.text\n");

long to_call(long, long), to_behind(long), entered(long), from_another(void), entered2(long), by_address(void),
	entered3(long), by_data(void), by_table(long, long);

int main(void)
{
	long parent = getppid();
	for (int i = 0; i < 3; i++) {
		printf("%d %d\n", to_call(0, 0) == parent, to_call(39, 1) == getpid());
		printf("%ld %ld\n", to_behind(1), to_behind(7));
		printf("%d %ld\n", entered(110) == parent + 2, from_another());
		printf("%d %ld\n", entered2(110) == parent + 2, by_address());
		printf("%d %ld\n", entered3(110) == parent + 2, by_data());
		printf("%d %d %ld %ld\n", by_table(0, 0) == parent + 1, by_table(1, 39) == getpid() + 1, by_table(2, 7),
		       by_table(3, 9));
	}
	return 0;
}
