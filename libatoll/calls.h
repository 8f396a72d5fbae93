/* How programs call the cell, for the sources beside this. The numbers are those of abi/src/grid.rs (`call`). */
#ifndef ATOLL_CALLS_H
#define ATOLL_CALLS_H

enum { HELLO = 0x0a7011f0, CREATE, ENTER, LEAVE, END, CURRENT, PAGES_WRITTEN = HELLO + 16, PAGES_CHANGE, PAGES_ACCESSED, PAGES_FORGET, PAGES_COLOUR, PAGES_FRAMES };
enum { SHRINK = HELLO + 32 };

/* Any system call: its value, or an error's number below 0. It needs nothing of the C library's, errno neither. */
static inline long call6(long number, long a, long b, long c, long d, long e, long f)
{
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "0"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

static inline long call4(long number, long a, long b, long c, long d)
{
    long result;
    register long r10 __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(result) : "0"(number), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return result;
}

static inline long call3(long number, long a, long b, long c)
{
    return call4(number, a, b, c, 0);
}

#endif
