// Small private memory comes and goes: what is new reads as zeroes, what is gone faults at once, in a child as well, and
// what stays keeps its contents.
// timeout: 60
#define _GNU_SOURCE
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define SLOTS 64
#ifndef LAZY
#define LAZY 0
#endif

static uint64_t seed = 7;
static uint64_t rnd(void) { return (seed = seed * 6364136223846793005ull + 1442695040888963407ull) >> 33; }

static sigjmp_buf back;
static void on_fault(int s) { siglongjmp(back, s); }

static int faults(volatile char *p) {
    if (sigsetjmp(back, 1)) return 1;
    *p = 1;
    return 0;
}

static struct piece { char *at; int pages; uint64_t value; } pieces[SLOTS];
static int bad;

static void wrong(const char *what, int n) {
    if (bad++ < 10) printf("%s: piece %d\n", what, n);
}

static void fill(struct piece *p) {
    p->value = rnd() | 1;
    for (int i = 0; i < p->pages; i++) ((uint64_t *)(p->at + (size_t)i * PAGE))[i % 512] = p->value + i;
}

static void check(void) {
    for (int n = 0; n < SLOTS; n++) {
        for (int i = 0; pieces[n].at && i < pieces[n].pages; i++) {
            if (((uint64_t *)(pieces[n].at + (size_t)i * PAGE))[i % 512] != pieces[n].value + i) wrong("contents", n);
        }
    }
}

static int is_zero(const char *p, size_t len) {
    for (size_t i = 0; i < len; i += 8) if (*(const uint64_t *)(p + i)) return 0;
    return 1;
}

static int taken(const char *p) {
    for (int n = 0; n < SLOTS; n++) {
        if (pieces[n].at && p >= pieces[n].at && p < pieces[n].at + (size_t)pieces[n].pages * PAGE) return 1;
    }
    return 0;
}

static void round_of(int times) {
    static char *heap;
    static long heap_pages;
    if (!heap) heap = sbrk(0);
    while (times--) {
        int n = rnd() % SLOTS;
        struct piece *p = &pieces[n];
        if (!p->at) {
            p->pages = rnd() % 8 ? rnd() % 12 + 1 : rnd() % 140 + 1;
            p->at = mmap(NULL, (size_t)p->pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (p->at == MAP_FAILED) perror("mmap"), exit(1);
            if (!is_zero(p->at, (size_t)p->pages * PAGE)) wrong("not zero", n);
            fill(p);
            continue;
        }
        switch (rnd() % 6) {
        case 0: fill(p); break;
        case 1: { // a part of it goes, at the end
            int less = rnd() % p->pages;
            if (!less) break;
            p->pages -= less;
            char *gone = p->at + (size_t)p->pages * PAGE;
            munmap(gone, (size_t)less * PAGE);
            if (!LAZY && !faults(gone + (rnd() % less) * PAGE)) wrong("no fault", n);
            if (!LAZY && (write(1, gone, 1) != -1 || errno != EFAULT)) wrong("no error", n);
            break; }
        case 2: { // read only, and back
            mprotect(p->at, PAGE, PROT_READ);
            if (!faults(p->at)) wrong("writable", n);
            mprotect(p->at, PAGE, PROT_READ | PROT_WRITE);
            break; }
        case 3: { // the heap
            long want = rnd() % 100;
            if (brk(heap + want * PAGE)) perror("brk");
            if (want > heap_pages && !is_zero(heap + heap_pages * PAGE, (want - heap_pages) * PAGE)) wrong("heap", n);
            memset(heap, 1, want * PAGE);
            if (!LAZY && want < heap_pages && !faults(heap + want * PAGE)) wrong("heap goes on", n);
            heap_pages = want;
            break; }
        default:
            munmap(p->at, (size_t)p->pages * PAGE);
            char *gone = p->at + (rnd() % p->pages) * PAGE;
            p->at = NULL;
            if (!LAZY && !taken(gone) && !faults(gone)) wrong("no fault", n);
        }
    }
    check();
}

int main(void) {
    signal(SIGSEGV, on_fault);
    setvbuf(stdout, NULL, _IONBF, 0);
    free(malloc(100000));
    for (int round = 0; round < 40; round++) {
        round_of(200);
        if (round % 4 == 3) {
            int pid = fork(), status;
            if (pid == 0) {
                round_of(150);
                _exit(bad != 0);
            }
            round_of(50);
            waitpid(pid, &status, 0);
            if (status) wrong("child", round);
        }
    }
    printf("bad: %d\n", bad);
    return 0;
}
