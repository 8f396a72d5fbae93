// What a child of fork has of its parent, and what not: descriptors and their offsets, mappings, signals, timers, locks, ids,
// registers; by fork, vfork, clone and clone3. Each child says by its exit status at which of its checks it failed.
// timeout: 60
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static int line;
// In a child: ends it with the number of the check.
#define CHECK(x) do { line++; if (!(x)) _exit(line); } while (0)
#define CHILD(what, ...) do { fflush(stdout); line = 0; int pid_ = fork(); if (pid_ == 0) { __VA_ARGS__; _exit(0); } report(what, pid_); } while (0)

static void report(const char *what, int pid) {
    int status = -1;
    if (pid < 0 || waitpid(pid, &status, __WALL) != pid) { printf("%s: %s\n", what, strerror(errno)); return; }
    if (WIFEXITED(status)) printf("%s: exit %d\n", what, WEXITSTATUS(status));
    else printf("%s: signal %d\n", what, WTERMSIG(status));
}

static volatile sig_atomic_t got;
static void handler(int n) { got = n; }

static void files(void) {
    char name[] = "/tmp/fork_inherits.XXXXXX";
    int fd = mkstemp(name), own = open(name, O_RDWR | O_CLOEXEC), dup_ = dup(fd);
    write(fd, "0123456789", 10);
    lseek(fd, 2, SEEK_SET);
    CHILD("offset is shared", {
        char c;
        CHECK(read(fd, &c, 1) == 1 && c == '2');
        CHECK(lseek(dup_, 0, SEEK_CUR) == 3);
        CHECK(lseek(own, 5, SEEK_SET) == 5);
        CHECK(fcntl(own, F_GETFD) == FD_CLOEXEC);
        close(fd);
        fcntl(dup_, F_SETFL, O_APPEND);
    });
    printf("afterwards: %ld %ld %d\n", (long)lseek(fd, 0, SEEK_CUR), (long)lseek(own, 0, SEEK_CUR), !!(fcntl(fd, F_GETFL) & O_APPEND));
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 5};
    fcntl(fd, F_SETLK, &l);
    flock(dup_, LOCK_EX);
    CHILD("record locks are the parent's, flock is shared", {
        struct flock q = l;
        CHECK(fcntl(fd, F_GETLK, &q) == 0 && q.l_type == F_WRLCK && q.l_pid == getppid());
        q = l;
        CHECK(fcntl(fd, F_SETLK, &q) == -1 && (errno == EAGAIN || errno == EACCES));
        CHECK(flock(fd, LOCK_EX | LOCK_NB) == 0);
        CHECK(flock(own, LOCK_EX | LOCK_NB) == -1 && errno == EWOULDBLOCK);
    });
    char cwd[200];
    getcwd(cwd, 200);
    CHILD("working directory and mask", {
        umask(077);
        CHECK(chdir("/") == 0);
    });
    char now[200];
    printf("not the parent's: %d %o\n", strcmp(getcwd(now, 200), cwd), umask(022));
    unlink(name);
    int p[2];
    pipe(p);
    int pid = fork();
    if (pid == 0) { close(p[0]); write(p[1], "from the child", 14); _exit(0); }
    close(p[1]);
    char buf[64];
    int n = 0, k;
    while ((k = read(p[0], buf + n, sizeof buf - n)) > 0) n += k;
    printf("pipe: %.*s, then %d\n", n, buf, k);
    report("writer", pid);
    close(p[0]);
}

static void memory(void) {
    long page = 4096;
    char *shared = mmap(NULL, page * 2, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char *private = mmap(NULL, page * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int fd = memfd_create("m", 0);
    ftruncate(fd, page);
    char *file = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), *copy = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    strcpy(shared, "first"); strcpy(private, "first"); strcpy(file, "first");
    memset(private + 4 * page, 7, 4 * page);
    printf("advice: %d %d %d\n", madvise(private + 4 * page, page, MADV_DONTFORK), madvise(private + 5 * page, page, MADV_WIPEONFORK), madvise(shared, page, MADV_WIPEONFORK));
    CHILD("mappings", {
        CHECK(!strcmp(shared, "first") && !strcmp(private, "first") && !strcmp(file, "first") && !strcmp(copy, "first"));
        strcpy(shared, "second"); strcpy(private, "second"); strcpy(file, "second");
        CHECK(private[5 * page] == 0 && private[6 * page] == 7);
        unsigned char v;
        CHECK(mincore(private + 4 * page, page, &v) == -1 && errno == ENOMEM);
        CHECK(munmap(private, page) == 0);
    });
    printf("afterwards: %s %s %s %d\n", shared, private, file, private[4 * page] + private[5 * page]);
    madvise(private + 4 * page, page, MADV_DOFORK); madvise(private + 5 * page, page, MADV_KEEPONFORK);
    CHILD("advice taken back", CHECK(private[4 * page] == 7 && private[5 * page] == 7));
    mprotect(private + 2 * page, page, PROT_NONE);
    CHILD("no access", {
        struct sigaction a = {.sa_handler = handler}; (void)a;
        private[2 * page] = 1;
    });
    CHILD("access changed in the child", {
        CHECK(mprotect(private + 2 * page, page, PROT_READ | PROT_WRITE) == 0);
        private[2 * page] = 1;
        CHECK(private[2 * page] == 1 && private[3 * page] == 0);
        CHECK(mprotect(private + 6 * page, page, PROT_READ) == 0);
        private[6 * page] = 1;
    });
    // A buffer of the parent that a read of another process's bytes fills after the fork.
    int p[2];
    pipe(p);
    char *buf = private + 7 * page;
    int pid = fork();
    if (pid == 0) { sleep(0); for (int i = 0; i < 100; i++) write(p[1], private + 6 * page, 40); _exit(0); }
    int n = 0;
    while (n < 4000) n += read(p[0], buf + n % 4000, 4000 - n);
    printf("read %d, %d\n", n, memcmp(buf, private + 6 * page, 40));
    report("writer", pid);
}

static void signals(void) {
    struct sigaction a = {.sa_handler = handler};
    sigaction(SIGUSR1, &a, NULL);
    signal(SIGUSR2, SIG_IGN);
    static char stack[1 << 16];
    stack_t ss = {.ss_sp = stack, .ss_size = sizeof stack}, now;
    sigaltstack(&ss, NULL);
    sigset_t set, old;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    raise(SIGUSR1);
    struct itimerval t = {.it_value.tv_sec = 100}, left;
    setitimer(ITIMER_REAL, &t, NULL);
    timer_t timer;
    timer_create(CLOCK_MONOTONIC, NULL, &timer);
    CHILD("signals and timers", {
        CHECK(sigpending(&old) == 0 && !sigismember(&old, SIGUSR1));
        CHECK(sigprocmask(SIG_BLOCK, NULL, &old) == 0 && sigismember(&old, SIGUSR1));
        CHECK(getitimer(ITIMER_REAL, &left) == 0 && left.it_value.tv_sec == 0);
        CHECK(sigaltstack(NULL, &now) == 0 && now.ss_sp == stack);
        struct itimerspec its;
        CHECK(timer_gettime(timer, &its) == -1 && errno == EINVAL);
        got = 0;
        sigprocmask(SIG_UNBLOCK, &set, NULL);
        CHECK(got == 0);
        raise(SIGUSR1);
        CHECK(got == SIGUSR1);
        raise(SIGUSR2);
    });
    sigpending(&old);
    printf("still pending here: %d\n", sigismember(&old, SIGUSR1));
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    timer_delete(timer);
    CHILD("handler set in the child", signal(SIGUSR1, SIG_DFL));
    got = 0;
    raise(SIGUSR1);
    printf("not here: %d\n", got == SIGUSR1);
}

static void ids(void) {
    prctl(PR_SET_NAME, "parent");
    prctl(PR_SET_TIMERSLACK, 70000);
    setpriority(PRIO_PROCESS, 0, 3);
    struct rlimit r = {100, 200};
    setrlimit(RLIMIT_NOFILE, &r);
    int me = getpid(), group = getpgrp(), session = getsid(0);
    CHILD("ids", {
        char name[16];
        CHECK(getppid() == me && getpid() != me && getpgrp() == group && getsid(0) == session);
        CHECK((int)syscall(SYS_gettid) == getpid());
        prctl(PR_GET_NAME, name);
        CHECK(!strcmp(name, "parent"));
        CHECK(prctl(PR_GET_TIMERSLACK) == 70000);
        CHECK(getpriority(PRIO_PROCESS, 0) == 3);
        struct rlimit q;
        CHECK(getrlimit(RLIMIT_NOFILE, &q) == 0 && q.rlim_cur == 100);
        struct rusage u;
        CHECK(getrusage(RUSAGE_CHILDREN, &u) == 0 && u.ru_utime.tv_sec == 0);
        CHECK(setsid() == getpid() && getpgrp() == getpid());
    });
    // An orphan goes to a subreaper above it.
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    int p[2];
    pipe(p);
    CHILD("parent of an orphan", {
        int middle = getpid();
        if (fork() == 0) {
            while (getppid() == middle) usleep(1000);
            int parent = getppid();
            write(p[1], &parent, 4);
            _exit(5);
        }
    });
    int parent = 0;
    read(p[0], &parent, 4);
    printf("the orphan's: %d\n", parent == me);
    int status;
    printf("reaped: %d, %d\n", wait(&status) > 0, WEXITSTATUS(status));
    CHILD("signal at the parent's death", {
        int child = fork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            write(p[1], "x", 1);
            for (;;) pause();
        }
        char c;
        CHECK(read(p[0], &c, 1) == 1);
        write(p[1], &child, 4);
    });
    int child;
    read(p[0], &child, 4);
    printf("it is reaped: %d", waitpid(child, &status, 0) == child);
    printf(", signal %d\n", WTERMSIG(status));
    prctl(PR_SET_CHILD_SUBREAPER, 0);
    CHILD("no more of them", {
        struct rlimit one = {1, 1};
        setrlimit(RLIMIT_NPROC, &one);
        if (getuid() == 0) CHECK(setuid(65533) == 0);
        setrlimit(RLIMIT_NPROC, &one);
        CHECK(fork() == -1 && errno == EAGAIN);
    });
}

static void registers(void) {
    __attribute__((aligned(64))) unsigned char before[16 * 16], after[16 * 16];
    for (unsigned i = 0; i < sizeof before; i++) before[i] = i * 7 + 1;
    fflush(stdout);
    long pid, callee = 0x1234567890abcdef, back;
    asm volatile(
        "movups 0(%[b]), %%xmm0\n movups 16(%[b]), %%xmm1\n movups 112(%[b]), %%xmm7\n movups 240(%[b]), %%xmm15\n"
        "mov %[callee], %%r12\n mov $57, %%eax\n syscall\n"
        "movups %%xmm0, 0(%[a])\n movups %%xmm1, 16(%[a])\n movups %%xmm7, 112(%[a])\n movups %%xmm15, 240(%[a])\n mov %%r12, %[back]\n"
        : "=&a"(pid), [back] "=&r"(back) : [b] "r"(before), [a] "r"(after), [callee] "r"(callee)
        : "rcx", "r11", "r12", "memory", "xmm0", "xmm1", "xmm7", "xmm15");
    int same = !memcmp(before, after, 32) && !memcmp(before + 112, after + 112, 16) && !memcmp(before + 240, after + 240, 16) && back == callee;
    if (pid == 0) _exit(same ? 0 : 9);
    report("registers of the child", pid);
    printf("of the parent: %d\n", same);
}

static void *forks(void *arg) {
    (void)arg;
    static __thread int mine = 4;
    mine = 5;
    CHILD("by a thread", {
        CHECK(mine == 5);
        CHECK((int)syscall(SYS_gettid) == getpid());
        pthread_t t;
        CHECK(pthread_create(&t, NULL, (void *(*)(void *))(uintptr_t)getpid, NULL) == 0);
        CHECK(pthread_join(t, NULL) == 0);
        CHECK(fork() >= 0);
    });
    return NULL;
}
static volatile int stop;
static volatile long counter[2];
static void *counts(void *arg) { volatile long *c = arg; while (!stop) (*c)++; return NULL; }

static void threads(void) {
    pthread_t t, others[2];
    pthread_create(&t, NULL, forks, NULL);
    pthread_join(t, NULL);
    for (int i = 0; i < 2; i++) pthread_create(&others[i], NULL, counts, (void *)&counter[i]);
    while (!counter[0] || !counter[1]) usleep(1000);
    for (int i = 0; i < 20; i++) {
        int pid = fork();
        if (pid == 0) {
            // Nobody counts here.
            long a = counter[0];
            for (volatile int k = 0; k < 100000; k++) ;
            _exit(counter[0] != a);
        }
        int status;
        waitpid(pid, &status, 0);
        if (status) printf("somebody counts in the child\n");
    }
    long seen[2] = {counter[0], counter[1]};
    for (int i = 0; i < 5000 && (counter[0] == seen[0] || counter[1] == seen[1]); i++) usleep(1000);
    printf("threads went on: %d\n", counter[0] > seen[0] && counter[1] > seen[1]);
    stop = 1;
    for (int i = 0; i < 2; i++) pthread_join(others[i], NULL);
}

static void calls(void) {
    int pid, parent_tid = 0;
    static int child_tid;
    fflush(stdout);
    pid = syscall(SYS_clone, CLONE_CHILD_SETTID | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID | SIGCHLD, 0, &parent_tid, &child_tid, 0);
    if (pid == 0) _exit(child_tid == getpid() ? 0 : 1);
    printf("parent's word %d, child's %d here\n", parent_tid == pid, child_tid);
    report("clone", pid);
    pid = syscall(SYS_clone, 0, 0, 0, 0, 0);
    if (pid == 0) _exit(0);
    int status;
    printf("without a signal: %d", waitpid(pid, &status, WNOHANG));
    printf(" %s", strerror(errno));
    printf(", %d\n", waitpid(pid, &status, __WCLONE) == pid);
    pid = syscall(SYS_clone, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) { parent_tid = -5; _exit(0); }
    printf("vfork with a copy: %d\n", parent_tid != -5);
    report("it", pid);
    int dir = open("/proc/self/cwd", O_PATH | O_DIRECTORY);
    pid = syscall(SYS_clone, CLONE_FS | CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) { umask(0123); close(dir); _exit(0); }
    report("files and directories together", pid);
    printf("mask %o, descriptor %d\n", umask(022), fcntl(dir, F_GETFD));
    struct sigaction a = {.sa_handler = handler};
    sigaction(SIGUSR1, &a, NULL);
    signal(SIGUSR2, SIG_IGN);
    int pidfd = -1;
    struct clone_args args = {.flags = CLONE_CLEAR_SIGHAND | CLONE_PIDFD, .exit_signal = SIGCHLD, .pidfd = (uintptr_t)&pidfd};
    pid = syscall(SYS_clone3, &args, sizeof args);
    if (pid == 0) {
        sigaction(SIGUSR1, NULL, &a);
        if (a.sa_handler != SIG_DFL) _exit(1);
        sigaction(SIGUSR2, NULL, &a);
        _exit(a.sa_handler != SIG_IGN);
    }
    siginfo_t info = {0};
    printf("clone3: %d", waitid(P_PIDFD, pidfd, &info, WEXITED));
    printf(" %d %d\n", info.si_pid == pid, info.si_status);
    args = (struct clone_args){.flags = CLONE_CLEAR_SIGHAND | CLONE_SIGHAND | CLONE_VM};
    printf("both: %ld %s\n", syscall(SYS_clone3, &args, sizeof args), strerror(errno));
    CHILD("exec", {
        fcntl(0, F_SETFD, FD_CLOEXEC);
        execl("/bin/sh", "sh", "-c", "exit 7", NULL);
    });
    pid = vfork();
    if (pid == 0) _exit(3);
    report("vfork", pid);
}

int main(void) {
    files();
    memory();
    signals();
    registers();
    threads();
    calls();
    ids();
    return 0;
}
