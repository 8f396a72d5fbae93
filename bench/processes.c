// What processes cost. Prints a name and nanoseconds a line; for xtask/src/processes.rs.
// processes [MIB [self]]: a large process has so many; self: executes itself, for want of other programs, does a tenth of the work and prints
// between these two how many calls lie between the marks; for xtask/src/nucleus.rs.
#define _GNU_SOURCE
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common.h"
#include "mark.h"

static int in_guest;

static double begin(void) {
    double t = now();
    MARK(1);
    return t;
}

static void end(const char *name, long times, double begun) {
    MARK(2);
    double took = now() - begun;
    if (in_guest) printf("%s %ld %.0f\n", name, times, took / times);
    else printf("%s %.0f\n", name, took / times);
}

static void ended(int pid) {
    int status;
    if (pid < 0) fail("a child");
    if (waitpid(pid, &status, 0) != pid || status) fail("waitpid");
}

static void forks(const char *name, int times) {
    // The first ones fill caches, and have spaces made.
    double begun = 0;
    for (int i = -3; i < times; i++) {
        if (i == 0) begun = begin();
        int pid = fork();
        if (pid == 0) _exit(0);
        ended(pid);
    }
    end(name, times, begun);
}

static char *program[] = {"/bin/true", NULL, NULL};
extern char **environ;

static void spawns(const char *name, int times, int copy) {
    double begun = 0;
    for (int i = -3; i < times; i++) {
        if (i == 0) begun = begin();
        int pid;
        if (!copy) {
            if (posix_spawn(&pid, program[0], NULL, NULL, program, environ)) fail("posix_spawn");
        } else if ((pid = fork()) == 0) {
            execv(program[0], program);
            _exit(1);
        }
        ended(pid);
    }
    end(name, times, begun);
}

// Writes to a page of each 64 KiB, in no order, while a child has the memory, too.
static void writes(const char *name, char *memory, size_t size) {
    size_t pieces = size >> 16;
    int p[2];
    char c;
    if (pipe(p)) fail("pipe");
    int pid = fork();
    if (pid == 0) {
        close(p[1]);
        _exit(read(p[0], &c, 1) != 0);
    }
    close(p[0]);
    double begun = begin();
    for (size_t i = 0; i < pieces; i++) memory[(i * 7919 % pieces) << 16] = 1;
    end(name, pieces, begun);
    close(p[1]);
    ended(pid);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "end")) return 0;
    in_guest = argc > 2;
    if (in_guest) (program[0] = argv[0], program[1] = "end");
    int times = in_guest ? 30 : 300;
    size_t size = (size_t)(argc > 1 ? atoi(argv[1]) : 1024) << 20;
    setvbuf(stdout, NULL, _IOLBF, 0);
    forks("fork, exit and wait", times);
    spawns(in_guest ? "posix_spawn and wait" : "posix_spawn of /bin/true and wait", times / 3, 0);
    spawns(in_guest ? "fork, exec and wait" : "fork, exec of /bin/true and wait", times / 3, 1);
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail("mmap");
    memset(memory, 1, size);
    char name[100];
    snprintf(name, sizeof name, "fork, exit and wait with %zu MiB", size >> 20);
    forks(name, 10);
    // A quarter: there must be room for the copies.
    writes("first write to a page after that, one in 64 KiB", memory, size / 4);
    writes("the same after another fork", memory, size / 4);
    return 0;
}
