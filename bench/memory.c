// What memory costs: prints a name and nanoseconds a line; for xtask/src/memory.rs. Each page of what is taken is written to.
//   memory sizes KIB... [huge]   malloc, malloc and free, mmap, mmap and munmap, sbrk, by size (XOS, Figure 3)
//   memory calls                 single calls, faults, and the mapping of a file
//   memory loops THREADS         loops like those of will-it-scale, nanoseconds an operation of a thread, and the standard deviation of single
//                                ones (RainForest, Figure 6)
#define _GNU_SOURCE
#include "../libatoll/atoll.c"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common.h"

#define PAGE 4096ul
#define MIB (1ul << 20)

static int huge;

static char *map(size_t size) {
    char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) fail("mmap");
    if (huge && size >= 2 * MIB) madvise(p, size, MADV_HUGEPAGE);
    return p;
}

static void touch(char *p, size_t size) {
    for (size_t at = 0; at < size; at += PAGE) ((volatile char *)p)[at] = 1;
}

// Stays in the compiler's eyes.
static void *volatile kept;

static double by_malloc(size_t size, int times) {
    void **list = calloc(times, sizeof *list);
    double begun = now();
    for (int i = 0; i < times; i++) {
        if (!(list[i] = malloc(size))) fail("malloc");
        touch(list[i], size);
    }
    return now() - begun;
}

static double by_malloc_free(size_t size, int times) {
    double begun = now();
    for (int i = 0; i < times; i++) {
        if (!(kept = malloc(size))) fail("malloc");
        touch(kept, size);
        free(kept);
    }
    return now() - begun;
}

static double by_mmap(size_t size, int times) {
    double begun = now();
    for (int i = 0; i < times; i++) touch(map(size), size);
    return now() - begun;
}

static double by_mmap_munmap(size_t size, int times) {
    double begun = now();
    for (int i = 0; i < times; i++) {
        char *p = map(size);
        touch(p, size);
        munmap(p, size);
    }
    return now() - begun;
}

static double by_sbrk(size_t size, int times) {
    double begun = now();
    for (int i = 0; i < times; i++) {
        char *p = sbrk(size);
        if (p == (char *)-1) fail("sbrk");
        touch(p, size);
    }
    return now() - begun;
}

static const struct {
    const char *name;
    double (*run)(size_t, int);
    int keeps;
} methods[] = {
    {"malloc", by_malloc, 1},
    {"malloc and free", by_malloc_free, 0},
    {"mmap", by_mmap, 1},
    {"mmap and munmap", by_mmap_munmap, 0},
    {"sbrk", by_sbrk, 1},
};
enum { METHODS = sizeof methods / sizeof *methods };

// One method and size, in a process of its own.
static void method(int n, size_t size) {
    size_t total = methods[n].keeps ? 256 * MIB : 512 * MIB;
    size_t times = total / size;
    if (times < 1) times = 1;
    if (times > 20000) times = 20000;
    // What a process pays only once is not meant. A keeper has its memory for the first time each time.
    methods[n].run(methods[n].keeps ? PAGE : size, methods[n].keeps ? 4 : 1 + times / 20);
    printf("%.1f\n", methods[n].run(size, times) / times);
}

extern char **environ;

static void sizes(char *self, int argc, char **argv) {
    for (int n = 0; n < METHODS; n++) {
        for (int i = 0; i < argc; i++) {
            char which[4];
            snprintf(which, sizeof which, "%d", n);
            char *args[] = {self, "method", which, argv[i], huge ? "huge" : NULL, NULL};
            int out[2], pid, status;
            if (pipe2(out, O_CLOEXEC)) fail("pipe2");
            posix_spawn_file_actions_t actions;
            posix_spawn_file_actions_init(&actions);
            posix_spawn_file_actions_adddup2(&actions, out[1], 1);
            if (posix_spawn(&pid, self, &actions, NULL, args, environ)) fail("posix_spawn");
            close(out[1]);
            char said[64] = "";
            ssize_t len = read(out[0], said, sizeof said - 1);
            close(out[0]);
            waitpid(pid, &status, 0);
            if (status || len <= 0) {
                fprintf(stderr, "%s of %s KiB: status %#x\n", methods[n].name, argv[i], status);
                exit(1);
            }
            long kib = atol(argv[i]);
            printf(kib < 1024 ? "%s of %ld KiB %s" : "%s of %ld MiB %s", methods[n].name, kib < 1024 ? kib : kib / 1024, said);
            fflush(stdout);
        }
    }
}

#define TIME(name, times, body)                          \
    do {                                                 \
        double begun = 0;                                \
        for (long i = -(times) / 10; i < (times); i++) { \
            if (i == 0) begun = now();                   \
            body;                                        \
        }                                                \
        printf("%s %.1f\n", name, (now() - begun) / (times)); \
    } while (0)

// Which pages were written to. On Linux by protecting them, as garbage collectors do.
static char *noted;
static unsigned char bits[64 * MIB / PAGE / 8];

static void note(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    size_t page = ((char *)info->si_addr - noted) / PAGE;
    bits[page / 8] |= 1 << page % 8;
    mprotect(noted + page * PAGE, PAGE, PROT_READ | PROT_WRITE);
}

static void ask(void) {
    if (atoll_in_cell()) {
        if (atoll_pages_written(noted, 64 * MIB, bits) < 0) fail("atoll_pages_written");
    } else {
        if (mprotect(noted, 64 * MIB, PROT_READ)) fail("mprotect");
        memset(bits, 0, sizeof bits);
    }
}

static void writes(void) {
    struct sigaction action = {.sa_sigaction = note, .sa_flags = SA_SIGINFO}, before;
    sigaction(SIGSEGV, &action, &before);
    noted = map(64 * MIB);
    touch(noted, 64 * MIB);
    ask();
    TIME("ask which of 16,384 pages were written to, none was", 500, ask());
    TIME("the same, 16 were, each noted", 500, {
        for (long n = 0; n < 16; n++) noted[(n * 1024 + (i & 15) * 64) * PAGE] = 1;
        ask();
    });
    TIME("the same, all were, each noted", 5, {
        touch(noted, 64 * MIB);
        ask();
    });
    munmap(noted, 64 * MIB);
    sigaction(SIGSEGV, &before, NULL);
}

static void calls(void) {
    TIME("mmap and munmap of 4 KiB, untouched", 20000, munmap(map(PAGE), PAGE));
    TIME("mmap, write and munmap of 4 KiB", 20000, {
        char *p = map(PAGE);
        *p = 1;
        munmap(p, PAGE);
    });
    char *p = map(64 * MIB);
    TIME("mprotect of a page, there and back", 20000, {
        mprotect(p + i % 64 * PAGE, PAGE, PROT_READ);
        mprotect(p + i % 64 * PAGE, PAGE, PROT_READ | PROT_WRITE);
    });
    touch(p, 64 * MIB);
    TIME("MADV_DONTNEED of 64 KiB, then writing it", 2000, {
        char *at = p + (i & 511) * 65536;
        madvise(at, 65536, MADV_DONTNEED);
        touch(at, 65536);
    });
    munmap(p, 64 * MIB);
    TIME("write to a page for the first time, in order", 16384, {
        if (i <= 0) p = map(64 * MIB);
        if (i >= 0) p[i * PAGE] = 1;
    });
    munmap(p, 64 * MIB);
    TIME("write to a page for the first time, a page in 64 KiB", 1024, {
        if (i <= 0) p = map(64 * MIB);
        if (i >= 0) p[i * 65536] = 1;
    });
    munmap(p, 64 * MIB);
    TIME("brk up and down by 64 KiB, written", 5000, {
        char *at = sbrk(65536);
        touch(at, 65536);
        sbrk(-65536);
    });
    const char *libc = "/lib/x86_64-linux-gnu/libc.so.6";
    struct stat s;
    int fd = open(libc, O_RDONLY);
    if (fd < 0 || fstat(fd, &s)) fail(libc);
    volatile unsigned long sum = 0;
    TIME("map libc privately, read all pages, unmap", 300, {
        char *file = mmap(NULL, s.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        for (off_t at = 0; at < s.st_size; at += PAGE) sum += file[at];
        munmap(file, s.st_size);
    });
    close(fd);
    writes();
}

enum { LOOP_SIZE = 128 * MIB };
static double span = 0.4e9;

static void loop_map(long *n) {
    munmap(map(LOOP_SIZE), LOOP_SIZE);
    ++*n;
}

static void loop_fault(long *n) {
    char *p = map(LOOP_SIZE);
    touch(p, LOOP_SIZE);
    munmap(p, LOOP_SIZE);
    *n += LOOP_SIZE / PAGE;
}

static void loop_brk(long *n) {
    static __thread int up;
    sbrk((up = !up) ? PAGE : -PAGE);
    ++*n;
}

static void loop_malloc_large(long *n) {
    void *volatile p = malloc(LOOP_SIZE);
    free(p);
    ++*n;
}

static void loop_malloc_small(long *n) {
    void *volatile p = malloc(1000);
    free(p);
    ++*n;
}

static double one_page(void) {
    static __thread char *p;
    static __thread size_t at;
    if (!p) p = map(LOOP_SIZE);
    double begun = now();
    p[at] = 1;
    double took = now() - begun;
    if ((at += PAGE) == LOOP_SIZE) {
        munmap(p, LOOP_SIZE);
        p = NULL;
        at = 0;
    }
    return took;
}

static struct figures {
    void (*body)(long *);
    double (*one)(void);
    double each, deviation;
} figures[64];

static void *looping(void *arg) {
    struct figures *f = arg;
    long n = 0;
    double begun = now(), took;
    do {
        for (int i = 0; i < 8; i++) f->body(&n);
    } while ((took = now() - begun) < span);
    f->each = took / n;
    // Again, with each one timed: by Welford's method.
    double mean = 0, squares = 0, at = begun = now();
    long count = 0;
    do {
        double one = 0;
        if (f->one) {
            one = f->one();
        } else {
            f->body(&n);
            one = now() - at;
        }
        at = now();
        double off = one - mean;
        mean += off / ++count;
        squares += off * (one - mean);
    } while (at - begun < span);
    f->deviation = sqrt(squares / count);
    return NULL;
}

static void loops(int threads) {
    static const struct {
        const char *name;
        void (*body)(long *);
        int alone;
        // How long a single one takes, if that isn't once through the body.
        double (*one)(void);
    } all[] = {
        {"mmap and munmap of 128 MiB", loop_map, 0, NULL},
        {"a page of 128 MiB, mapped, written and unmapped", loop_fault, 0, one_page},
        {"brk by a page", loop_brk, 1, NULL},
        {"malloc and free of 128 MiB", loop_malloc_large, 0, NULL},
        {"malloc and free of 1000 bytes", loop_malloc_small, 0, NULL},
    };
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i].alone && threads > 1) continue;
        pthread_t t[64];
        double each = 0, deviation = 0;
        for (int n = 0; n < threads; n++) {
            figures[n].body = all[i].body;
            figures[n].one = all[i].one;
            pthread_create(&t[n], NULL, looping, &figures[n]);
        }
        for (int n = 0; n < threads; n++) {
            pthread_join(t[n], NULL);
            each += figures[n].each / threads;
            deviation += figures[n].deviation / threads;
        }
        const char *many = threads > 1 ? "s" : "";
        printf("%s, %d thread%s %.1f\n", all[i].name, threads, many, each);
        printf("%s, %d thread%s: standard deviation %.1f\n", all[i].name, threads, many, deviation);
        fflush(stdout);
    }
}

int main(int argc, char **argv) {
    huge = argc > 1 && !strcmp(argv[argc - 1], "huge");
    argc -= huge;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 2 && !strcmp(argv[1], "sizes")) {
        sizes(argv[0], argc - 2, argv + 2);
    } else if (argc == 4 && !strcmp(argv[1], "method")) {
        method(atoi(argv[2]), (size_t)atol(argv[3]) << 10);
    } else if (argc == 2 && !strcmp(argv[1], "calls")) {
        calls();
    } else if (argc == 3 && !strcmp(argv[1], "loops")) {
        loops(atoi(argv[2]));
    } else {
        return 2;
    }
    return 0;
}
