// Memory after fork: a child has what its parent had, and what either writes then is its own, down the generations,
// wherever the pages lie: heap that grows and shrinks, mappings side by side with other access, data of the program.
// timeout: 60
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGES 300
#define PAGE 4096
static uint64_t seed;
static uint64_t rnd(void) { seed = seed * 6364136223846793005ull + 1442695040888963407ull; return seed >> 33; }
static char data[40 * PAGE] __attribute__((aligned(4096)));
static char *map, *brk_start;
static long brk_pages;
// What each page should hold; on the stack of main, so that it is copied, too.
struct model { uint64_t map[PAGES], data[40], heap[200]; unsigned char access[PAGES]; };
static uint64_t get(const char *p) { return *(volatile uint64_t *)(p + 512); }
static void set(char *p, uint64_t v) { *(volatile uint64_t *)(p + 512) = v; *(volatile uint64_t *)(p + 4088) = ~v; }

static int check(struct model *m, const char *who) {
    int bad = 0;
    for (int i = 0; i < PAGES; i++) if (m->access[i] != PROT_NONE && get(map + i * PAGE) != m->map[i]) bad++, printf("%s map %d: %lx not %lx\n", who, i, get(map + i * PAGE), m->map[i]);
    for (int i = 0; i < 40; i++) if (get(data + i * PAGE) != m->data[i]) bad++, printf("%s data %d: %lx not %lx\n", who, i, get(data+i*PAGE), m->data[i]);
    for (int i = 0; i < brk_pages; i++) if (get(brk_start + i * PAGE) != m->heap[i]) bad++, printf("%s heap %d\n", who, i);
    return bad;
}
static void change(struct model *m, int n) {
    while (n--) {
        uint64_t v = rnd() | 1;
        int i = rnd() % PAGES;
        switch (rnd() % 8) {
        case 0: case 1: case 2:
            if (m->access[i] == (PROT_READ | PROT_WRITE)) set(map + i * PAGE, m->map[i] = v);
            break;
        case 3: set(data + i % 40 * PAGE, v); m->data[i % 40] = v; break;
        case 4: if (brk_pages) { i %= brk_pages; set(brk_start + i * PAGE, m->heap[i] = v); } break;
        case 5: { // access of a few pages
            int len = rnd() % 20 + 1; if (i + len > PAGES) len = PAGES - i;
            int access[] = {PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE}; int a = access[rnd() % 3];
            if (mprotect(map + i * PAGE, len * PAGE, a)) perror("mprotect");
            for (int k = 0; k < len; k++) m->access[i + k] = a;
            break; }
        case 6: { // dropped, or mapped anew
            int len = rnd() % 20 + 1; if (i + len > PAGES) len = PAGES - i;
            if (rnd() % 2) { if (madvise(map + i * PAGE, len * PAGE, MADV_DONTNEED)) perror("madvise"); }
            else { if (mmap(map + i * PAGE, len * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) perror("mmap");
                   for (int k = 0; k < len; k++) m->access[i + k] = PROT_READ | PROT_WRITE; }
            for (int k = 0; k < len; k++) m->map[i + k] = 0;
            break; }
        case 7: { // the heap grows or shrinks
            long want = rnd() % 200;
            if (brk(brk_start + want * PAGE)) perror("brk");
            for (long k = brk_pages; k < want; k++) m->heap[k] = 0;
            brk_pages = want;
            break; }
        }
    }
}
static int generation(struct model *m, int depth) {
    int bad = check(m, "before");
    for (int round = 0; round < 4; round++) {
        change(m, 60);
        int pid = fork();
        if (pid == 0) {
            seed = seed * 31 + depth + round;
            bad = check(m, "child");
            change(m, 40);
            bad += check(m, "child that wrote");
            if (depth) bad += generation(m, depth - 1);
            fflush(stdout);
            _exit(bad ? 1 : 0);
        }
        change(m, 30);
        bad += check(m, "parent");
        int status;
        if (waitpid(pid, &status, 0) != pid) perror("waitpid");
        if (status) bad++, printf("depth %d round %d: status %x\n", depth, round, status);
        change(m, 30);
        bad += check(m, "parent, alone again");
        if (bad) break;
    }
    return bad;
}
static int run(void) {
    static struct model m;
    map = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(m.access, PROT_READ | PROT_WRITE, sizeof m.access);
    brk_start = (char *)(((uintptr_t)sbrk(0) + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
    brk(brk_start);
    return generation(&m, 2);
}
int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    int from = argc > 1 ? atoi(argv[1]) : 1, to = argc > 1 ? from : 4;
    for (int n = from; n <= to; n++) {
        int status, pid = fork();
        if (pid == 0) {
            seed = n;
            exit(run() != 0);
        }
        waitpid(pid, &status, 0);
        printf("%d: %s\n", n, status ? "wrong" : "as it should be");
    }
    return 0;
}
