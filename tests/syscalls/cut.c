// A file that is mapped is cut: what lies behind its end is SIGBUS, shared and private, here and in other processes; what grows again
// is zeroes, and private copies are gone.
#define _GNU_SOURCE
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096 };
static sigjmp_buf back;
static void caught(int signal) { siglongjmp(back, signal); }

static const char *at(volatile char *p) {
    static char said[32];
    int signal = sigsetjmp(back, 1);
    if (signal) return signal == SIGBUS ? "SIGBUS" : "SIGSEGV";
    snprintf(said, sizeof said, "%d", *p);
    return said;
}

static void show(const char *what, char *shared, char *private) {
    for (int n = 0; n < 3; n++) printf("%s, page %d: shared %s", what, n, at(shared + n * PAGE)), printf(", private %s\n", at(private + n * PAGE));
    fflush(stdout);
}

static void wait_for(int fd) {
    char c;
    if (read(fd, &c, 1) != 1) exit(3);
}

static void fill(char *shared, char *private) {
    memset(shared, 1, 3 * PAGE);
    private[1] = private[PAGE + 1] = private[2 * PAGE + 1] = 2;
}

int main(void) {
    signal(SIGBUS, caught);
    signal(SIGSEGV, caught);
    char name[] = "/tmp/cut-XXXXXX";
    for (int kind = 0; kind < 2; kind++) {
        int fd = kind ? mkstemp(name) : (int)syscall(SYS_memfd_create, "cut", 0);
        if (fd < 0 || ftruncate(fd, 3 * PAGE)) return 1;
        char *shared = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        char *private = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
        fill(shared, private);
        show("whole", shared, private);
        int to[2], from[2];
        if (pipe(to) || pipe(from)) return 1;
        int child = fork();
        if (!child) {
            memset(private, 3, 3 * PAGE);
            show("child, whole", shared, private);
            if (write(from[1], "", 1) != 1) return 1;
            wait_for(to[0]);
            show("child, cut", shared, private);
            if (write(from[1], "", 1) != 1) return 1;
            wait_for(to[0]);
            show("child, longer", shared, private);
            if (write(from[1], "", 1) != 1) return 1;
            wait_for(to[0]);
            show("child, begun anew", shared, private);
            exit(0);
        }
        wait_for(from[0]);
        if (kind ? truncate(name, PAGE + 10) : ftruncate(fd, PAGE + 10)) return 1;
        show("cut", shared, private);
        printf("behind the end: %s", at(shared + PAGE + 9)), printf(" %s\n", at(shared + PAGE + 10));
        fflush(stdout);
        if (write(to[1], "", 1) != 1) return 1;
        wait_for(from[0]);
        if (ftruncate(fd, 3 * PAGE)) return 1;
        show("longer", shared, private);
        if (write(to[1], "", 1) != 1) return 1;
        wait_for(from[0]);
        if (kind) {
            close(open(name, O_RDWR | O_TRUNC));
        } else if (ftruncate(fd, 0)) {
            return 1;
        }
        show("begun anew", shared, private);
        if (write(to[1], "", 1) != 1) return 1;
        int status;
        waitpid(child, &status, 0);
        printf("status %d\n", status);
        close(fd);
    }
    unlink(name);
    return 0;
}
