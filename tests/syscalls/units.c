// Units of work that a program names through libatoll: on Linux calls that do nothing, in a cell records of their own (OK-03).
// What is said here is the same on both: where there are no books, nothing is looked up.
// options: --cores 2
// timeout: 60
#define _GNU_SOURCE
#include "../../libatoll/atoll.c"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int failed;

static void check(int holds, const char *what)
{
    if (!holds) {
        printf("not so: %s (errno %d)\n", what, errno);
        failed = 1;
    }
}

static void fails(long result, int error, const char *what)
{
    check(!atoll_in_cell() || (result == -1 && errno == error), what);
}

struct use {
    long long ns, messages, bytes;
    int rows;
};

// What activities of this name (and process, if there is one) have used of a resource; of all: "".
static struct use used(const char *name, int pid, const char *resource)
{
    struct use sum = {0};
    char line[256], who[64], what[64];
    FILE *f = fopen("/proc/atoll/activities", "r");
    while (f && fgets(line, sizeof line, f)) {
        long long id, parent, of, ns, messages, bytes, queued;
        if (sscanf(line, "%lld %lld %lld %63s %63s %lld %lld %lld %lld", &id, &parent, &of, who, what, &ns, &messages,
                   &bytes, &queued) != 9)
            continue;
        if (strcmp(who, name) || (pid && of != pid) || (*resource && strcmp(what, resource)))
            continue;
        sum.ns += ns;
        sum.messages += messages;
        sum.bytes += bytes;
        sum.rows++;
    }
    if (f)
        fclose(f);
    return sum;
}

static void burn(long n)
{
    for (volatile long i = 0; i < n; i++)
        ;
}

#define ROUNDS 2000
#define STEP 60000L

// Burns this much within a unit. Value: the processor time that took by the thread's clock, in nanoseconds: what the machine was
// elsewhere meanwhile is nobody's.
static long long burn_within(atoll_activity unit, long n)
{
    struct timespec from, to;
    atoll_activity_enter(unit);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
    burn(n);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
    atoll_activity_leave(unit);
    return (to.tv_sec - from.tv_sec) * 1000000000LL + to.tv_nsec - from.tv_nsec;
}

// Two units burn one part and three, in turns: so whatever else the machine does falls on both. Value: do the books say so?
// They are compared with the clock, as three times as many rounds don't take a processor exactly three times as long.
static int times(void)
{
    int right = 1;
    double short_ns = 0, long_ns = 0;
    atoll_activity one = atoll_activity_create("one"), three = atoll_activity_create("three");
    for (int n = 0; n < ROUNDS; n++) {
        short_ns += burn_within(one, STEP);
        long_ns += burn_within(three, 3 * STEP);
    }
    if (atoll_in_cell()) {
        // All resources together: what is sampled goes from one to another.
        double a = used("one", getpid(), "").ns, b = used("three", getpid(), "").ns;
        double books = b / a, clock = long_ns / short_ns;
        fprintf(stderr, "%.3f ms and %.3f ms: 1 to %.4f, by the clock 1 to %.4f\n", a / 1e6, b / 1e6, books, clock);
        right = books > 0.98 * clock && books < 1.02 * clock && books > 2 && books < 4;
    }
    check(atoll_activity_end(one) == 0 && atoll_activity_end(three) == 0, "ended");
    check(used("one", 0, "").rows == 0, "what has ended is gone");
    return right;
}

// Messages and bytes are exact; what is nested is the innermost one's alone.
static void counts(void)
{
    static char buf[1 << 20];
    int fd = memfd_create("data", 0);
    atoll_activity outer = atoll_activity_create("outer"), inner = atoll_activity_create("inner");
    check(atoll_activity_current() == 0, "in none yet");
    check(atoll_activity_enter(outer) == 0, "enter");
    check(atoll_activity_current() == outer, "in the outer one");
    check(pwrite(fd, buf, sizeof buf, 0) == sizeof buf, "written");
    check(atoll_activity_enter(inner) == 0, "enter within");
    check(atoll_activity_current() == inner, "in the inner one");
    for (int n = 0; n < 100; n++)
        check(pread(fd, buf, 1000, n) == 1000, "read");
    fails(atoll_activity_leave(outer), EINVAL, "leaving what was not entered last");
    check(atoll_activity_leave(inner) == 0, "leave");
    for (int n = 0; n < 50; n++)
        lseek(fd, n, SEEK_SET);
    check(atoll_activity_leave(outer) == 0, "leave the outer one");
    fails(atoll_activity_leave(outer), EINVAL, "leaving twice");
    check(atoll_activity_current() == 0, "in none any more");
    if (atoll_in_cell()) {
        struct use o = used("outer", getpid(), "file-cache"), i = used("inner", getpid(), "file-cache");
        check(o.bytes == sizeof buf && o.messages == 1, "the outer one's bytes");
        check(i.bytes == 100 * 1000 && i.messages == 100, "the inner one's bytes");
        check(used("outer", getpid(), "files").messages == 50, "the outer one's messages");
    }
    atoll_activity_end(inner);
    atoll_activity_end(outer);
    close(fd);
}

// What has ended is added to the process, also when somebody was in it by then.
static void ends(void)
{
    atoll_activity a = atoll_activity_create("mortal");
    atoll_activity_enter(a);
    for (int n = 0; n < 77; n++)
        getsockname(-1, 0, 0);
    check(atoll_activity_end(a) == 0, "end");
    fails(atoll_activity_end(a), EINVAL, "ending twice");
    fails(atoll_activity_enter(a), EINVAL, "entering what has ended");
    check(atoll_activity_current() == a, "still in it");
    check(!atoll_in_cell() || used("mortal", getpid(), "socket").messages == 77, "its record goes on");
    char name[64] = "";
    int fd = open("/proc/self/comm", O_RDONLY);
    name[read(fd, name, 63) - 1] = 0;
    close(fd);
    long long before = used(name, getpid(), "socket").messages;
    check(atoll_activity_leave(a) == 0, "leave what has ended");
    if (atoll_in_cell()) {
        check(used("mortal", 0, "").rows == 0, "now it is gone");
        check(used(name, getpid(), "socket").messages == before + 77, "what it has used is its process's");
    }
    fails(atoll_activity_enter(123456789), EINVAL, "entering what never was");
    fails(atoll_activity_enter(-1), EINVAL, "entering an error");
    fails(atoll_activity_create(""), EINVAL, "no name");
    fails(atoll_activity_create("a name of more than forty bytes is too long"), EINVAL, "a long name");
}

static void deep(void)
{
    atoll_activity a = atoll_activity_create("deep");
    for (int n = 0; n < 16; n++)
        check(atoll_activity_enter(a) == 0, "enter again");
    fails(atoll_activity_enter(a), ENOSPC, "too deep");
    for (int n = 0; n < 16; n++)
        check(atoll_activity_leave(a) == 0, "leave again");
    fails(atoll_activity_leave(a), EINVAL, "out of it");
    atoll_activity_end(a);
}

// There are as many as there can be; then there is an error, and when they have ended there is room again.
static void many(void)
{
    static atoll_activity all[300];
    int n = 0;
    if (!atoll_in_cell())
        return;
    for (int round = 0; round < 3; round++) {
        for (n = 0; n < 300; n++) {
            char name[20];
            snprintf(name, sizeof name, "unit%d", n);
            all[n] = atoll_activity_create(name);
            if (all[n] < 0)
                break;
            atoll_activity_enter(all[n]);
            lseek(0, 0, SEEK_CUR);
            atoll_activity_leave(all[n]);
        }
        check(n < 300 && errno == ENOSPC, "no room");
        check(n >= 150, "room for many");
        check(used("unit0", getpid(), "files").messages == 1, "the first one has its record");
        // A process has its own record in any case.
        pid_t child = vfork();
        if (child == 0) {
            lseek(0, 0, SEEK_CUR);
            _exit(used("program", getpid(), "files").messages == 0);
        }
        int status;
        waitpid(child, &status, 0);
        check(status == 0, "a process has a record");
        while (n > 0)
            check(atoll_activity_end(all[--n]) == 0, "end");
        check(used("unit0", 0, "").rows == 0, "all are gone");
    }
}

static void *work(void *a)
{
    atoll_activity inside = atoll_activity_current();
    check(inside == *(atoll_activity *)a, "a thread is in what its maker is in");
    burn(STEP * 50);
    for (int n = 0; n < 30; n++)
        lseek(0, 0, SEEK_CUR);
    if (used("threads", 0, "files").messages < 30)
        check(!atoll_in_cell(), "it works for it");
    check(atoll_activity_leave(inside) == 0, "it can leave");
    check(atoll_activity_current() == 0, "and works for its process");
    // It ends inside.
    atoll_activity_enter(inside);
    return 0;
}

static void threads(void)
{
    atoll_activity a = atoll_activity_create("threads");
    atoll_activity_enter(a);
    pthread_t t[4];
    for (int n = 0; n < 4; n++)
        pthread_create(&t[n], 0, work, &a);
    for (int n = 0; n < 4; n++)
        pthread_join(t[n], 0);
    atoll_activity_leave(a);
    // pthread_join comes back a moment before the thread is gone.
    for (int n = 0; n < 200 && used("threads", 0, "").rows; n++) {
        if (n == 0)
            check(atoll_activity_end(a) == 0, "end");
        usleep(10000);
    }
    check(used("threads", 0, "").rows == 0, "nobody is left in it");
}

// A process that ends, or runs another program, ends its units, wherever it is in them.
static void processes(char *me)
{
    atoll_activity mine = atoll_activity_create("mine");
    atoll_activity_enter(mine);
    for (int exec = 0; exec < 2; exec++) {
        pid_t child = vfork();
        if (child == 0) {
            check(atoll_activity_current() == 0, "a process begins in none");
            fails(atoll_activity_enter(mine), EINVAL, "another process's");
            for (int n = 0; n < 10; n++)
                atoll_activity_enter(atoll_activity_create("left"));
            if (exec)
                execl(me, me, "after-exec", (char *)0);
            _exit(failed);
        }
        int status;
        waitpid(child, &status, 0);
        check(status == 0, "the child is content");
        check(used("left", 0, "").rows == 0, "what it left is gone");
    }
    check(atoll_activity_current() == mine, "still in it");
    check(atoll_activity_leave(mine) == 0 && atoll_activity_end(mine) == 0, "and out");
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        check(atoll_activity_current() == 0, "in none behind exec");
        check(used("left", 0, "").rows == 0, "none is left behind exec");
        return failed;
    }
    // A loaded machine takes a core away for longer than a part of this takes.
    int tries = 12;
    while (!times() && --tries > 0)
        ;
    check(tries > 0, "one unit has used three times as much as the other");
    counts();
    ends();
    deep();
    many();
    threads();
    processes(argv[0]);
    puts(failed ? "units: wrong" : "units: as they should be");
    return failed;
}
