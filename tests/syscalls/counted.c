// What is done at each resource comes back in its record, all of it and no more: messages and bytes (OK-05). On Linux nothing is looked up.
// options: --cores 1
// timeout: 60
#define _GNU_SOURCE
#include "../../libatoll/atoll.c"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define TIMES 300

static int failed;

static void check(int holds, const char *what)
{
    if (!holds) {
        printf("not so: %s (errno %d)\n", what, errno);
        failed = 1;
    }
}

struct use {
    long long ns, messages, bytes;
};

// What the activity of this name has used of a resource.
static struct use used(const char *name, const char *resource)
{
    struct use sum = {0};
    char line[256], who[64], what[64];
    FILE *f = fopen("/proc/atoll/activities", "r");
    while (f && fgets(line, sizeof line, f)) {
        long long id, parent, of, ns, messages, bytes;
        if (sscanf(line, "%lld %lld %lld %63s %63s %lld %lld %lld", &id, &parent, &of, who, what, &ns, &messages, &bytes) == 8 &&
            !strcmp(who, name) && !strcmp(what, resource))
            sum = (struct use){sum.ns + ns, sum.messages + messages, sum.bytes + bytes};
    }
    if (f)
        fclose(f);
    return sum;
}

static int file, ends[2], near, far, timer;
static char bytes[4096] __attribute__((aligned(4096)));

static void process(void) { check(getpgid(0) >= 0, "getpgid"); }
static void address_space(void) { check(mprotect(bytes, sizeof bytes, PROT_READ | PROT_WRITE) == 0, "mprotect"); }
static void files(void) { check(lseek(file, 0, SEEK_SET) == 0, "lseek"); }
static void cache_read(void) { check(pread(file, bytes, 700, 3) == 700, "pread"); }
static void cache_written(void) { check(pwrite(file, bytes, 900, 5) == 900, "pwrite"); }
static void pipe_both(void)
{
    check(write(ends[1], bytes, 11) == 11 && read(ends[0], bytes, 100) == 11, "pipe");
}
static void socket_asked(void)
{
    int value;
    socklen_t len = sizeof value;
    check(getsockopt(near, SOL_SOCKET, SO_TYPE, &value, &len) == 0, "getsockopt");
}
static void sent(void) { check(send(near, bytes, 33, 0) == 33, "send"); }
static void sent_and_received(void) { check(send(near, bytes, 44, 0) == 44 && recv(far, bytes, 100, 0) == 44, "recv"); }
static void timer_set(void)
{
    struct itimerspec t = {{0, 0}, {1000, 0}};
    check(timerfd_settime(timer, 0, &t, 0) == 0, "timerfd_settime");
}
static void waited(void)
{
    struct pollfd p = {ends[0], POLLIN, 0};
    check(poll(&p, 1, 0) == 0, "poll");
}

// `messages` and `bytes`: of each time.
static const struct {
    const char *resource;
    void (*use)(void);
    int messages, bytes;
} all[] = {
    {"process", process, 1, 0},
    {"address-space", address_space, 1, 0},
    {"files", files, 1, 0},
    {"file-cache", cache_read, 1, 700},
    {"file-cache", cache_written, 1, 900},
    {"pipe", pipe_both, 2, 22},
    {"socket", socket_asked, 1, 0},
    {"device-write", sent, 1, 33},
    {"device-read", sent_and_received, 1, 44},
    {"device-write", sent_and_received, 1, 44},
    {"timer", timer_set, 1, 0},
    {"wait", waited, 1, 0},
};

int main(void)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof to;
    file = open("/tmp/counted", O_RDWR | O_CREAT, 0600);
    near = socket(AF_INET, SOCK_DGRAM, 0);
    far = socket(AF_INET, SOCK_DGRAM, 0);
    timer = timerfd_create(CLOCK_MONOTONIC, 0);
    check(pwrite(file, bytes, sizeof bytes, 0) == sizeof bytes && pipe(ends) == 0 && timer >= 0, "made");
    check(bind(far, (void *)&to, sizeof to) == 0 && getsockname(far, (void *)&to, &len) == 0, "bound");
    check(connect(near, (void *)&to, sizeof to) == 0, "connected");
    for (size_t n = 0; n < sizeof all / sizeof *all; n++) {
        char name[32];
        snprintf(name, sizeof name, "unit%zu", n);
        atoll_activity unit = atoll_activity_create(name);
        atoll_activity_enter(unit);
        for (int i = 0; i < TIMES; i++)
            all[n].use();
        atoll_activity_leave(unit);
        struct use u = used(name, all[n].resource);
        // To leave it is its own, too.
        long long messages = TIMES * all[n].messages + !strcmp(all[n].resource, "process"), moved = TIMES * all[n].bytes;
        // What interrupts the program is a message to the timer, too, and not of its doing.
        long long more = strcmp(all[n].resource, "timer") ? 0 : 100;
        int right = u.messages >= messages && u.messages <= messages + more && u.bytes == moved && u.ns > 0;
        if (atoll_in_cell() && !right) {
            printf("%s: %lld messages and not %lld, %lld bytes and not %lld, %lld ns\n", all[n].resource, u.messages,
                   messages, u.bytes, moved, u.ns);
            failed = 1;
        }
        // What was sent and not received yet.
        while (recv(far, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
            ;
        atoll_activity_end(unit);
    }
    printf("%s\n", failed ? "something is not so" : "all that was done is there");
    return failed;
}
