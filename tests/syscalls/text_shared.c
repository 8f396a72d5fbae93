// Programs of the same file run the same code: what one writes into its own is its own, signals find the place where they came in
// all of them, and code that is mapped and unmapped again leaves nothing behind.
// timeout: 60
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

extern char **environ;
static char *self;

static void run(char *what) {
    char *args[] = {self, what, NULL};
    int pid, status;
    if (posix_spawn(&pid, self, NULL, NULL, args, environ)) perror("posix_spawn");
    waitpid(pid, &status, 0);
    printf("%s: %#x\n", what, status);
}

// A function of the C library, whose first bytes become "mov $42, %eax; ret".
static void change(void *function) {
    static const unsigned char code[] = {0xb8, 42, 0, 0, 0, 0xc3};
    uintptr_t page = (uintptr_t)function & ~4095ul;
    if (mprotect((void *)page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC)) perror("mprotect");
    memcpy(function, code, sizeof code);
    if (mprotect((void *)page, 8192, PROT_READ | PROT_EXEC)) perror("mprotect");
}

static volatile long strange, signals;

static void stopped(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    Dl_info found;
    // In the program or in a library, never elsewhere.
    if (!dladdr((void *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP], &found)) strange++;
    signals++;
}

static void calls_under_signals(void) {
    struct sigaction action = {.sa_sigaction = stopped, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, NULL);
    int fd = open("/dev/null", O_WRONLY);
    while (signals < 200) {
        if (write(fd, "x", 1) != 1 || getppid() < 0 || lseek(fd, 0, SEEK_CUR) != 0) _exit(1);
    }
    setitimer(ITIMER_REAL, &never, NULL);
    printf("strange places: %ld\n", strange);
}

static int code_of(struct dl_phdr_info *info, size_t size, void *out) {
    (void)size;
    if (!strstr(info->dlpi_name, "libc.so")) return 0;
    for (int n = 0; n < info->dlpi_phnum; n++) {
        if (info->dlpi_phdr[n].p_type == PT_LOAD && info->dlpi_phdr[n].p_flags & PF_X) {
            *(ElfW(Phdr) *)out = info->dlpi_phdr[n];
            return 1;
        }
    }
    return 0;
}

static int mappings(void) {
    FILE *f = fopen("/proc/self/maps", "r");
    int lines = 0, c;
    while ((c = getc(f)) != EOF) lines += c == '\n';
    fclose(f);
    return lines;
}

// The C library's code again, where other things are, whole and in parts.
static void mapped_again(void) {
    ElfW(Phdr) code;
    Dl_info libc;
    if (!dl_iterate_phdr(code_of, &code) || !dladdr((void *)getppid, &libc)) return;
    int fd = open(libc.dli_fname, O_RDONLY);
    size_t offset = code.p_offset & ~4095ul, len = (code.p_filesz + 4095) & ~4095ul;
    size_t at = (uintptr_t)getppid - (uintptr_t)libc.dli_fbase - (code.p_vaddr & ~4095ul);
    int before = 0;
    for (int n = 0; n < 200; n++) {
        if (n == 10) before = mappings();
        char *p = mmap(NULL, len, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, offset);
        if (p == MAP_FAILED) {
            perror("mmap");
            return;
        }
        if (((int (*)(void))(p + at))() != getppid()) printf("wrong answer\n");
        if (n % 3 == 1) munmap(p + len / 2 / 4096 * 4096, 4096);
        // Something else in the middle of it; what is left goes on.
        if (n % 3 == 2) {
            mmap(p + len - 4096, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
            p[len - 1] = 1;
            if (((int (*)(void))(p + at))() != getppid()) printf("wrong answer\n");
        }
        munmap(p, len);
    }
    int more = mappings() - before;
    printf("mappings left: %s\n", more > 3 ? "many" : "none");
    close(fd);
}

int main(int argc, char **argv) {
    self = "/proc/self/exe";
    setvbuf(stdout, NULL, _IONBF, 0);
    if (argc > 1 && !strcmp(argv[1], "plain")) return getppid() == 42;
    if (argc > 1 && !strcmp(argv[1], "changed")) {
        change((void *)getppid);
        run("plain");
        return getppid();
    }
    if (argc > 1 && !strcmp(argv[1], "signals")) {
        calls_under_signals();
        return 0;
    }
    if (argc > 1) {
        mapped_again();
        return 0;
    }
    for (int n = 0; n < 2; n++) {
        run("plain");
        run("changed");
        run("signals");
        run("mapped");
    }
    // A copy of a changed one is changed, and the other way around it is not.
    int go[2], status;
    if (pipe(go)) return 1;
    int pid = fork();
    if (pid == 0) {
        char c;
        read(go[0], &c, 1);
        _exit(getppid() == 42);
    }
    change((void *)getppid);
    write(go[1], "x", 1);
    waitpid(pid, &status, 0);
    printf("child from before: %#x\n", status);
    if ((pid = fork()) == 0) _exit(getppid());
    waitpid(pid, &status, 0);
    printf("child from after: %#x\n", status);
    printf("here: %d\n", getppid());
    run("plain");
    return 0;
}
