// Memory is charged to whom it was taken for, and no longer when it is given back (OK-05). On Linux nothing is looked up.
// options: --cores 2 --memory 512M
// timeout: 60
#define _GNU_SOURCE
#include "../../libatoll/atoll.c"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define MIB (1 << 20)

static int failed;

// What activities of this name hold, MiB; of all: "".
static double held(const char *name)
{
    double sum = 0;
    char line[256], who[64], what[64];
    FILE *f = fopen("/proc/atoll/activities", "r");
    while (f && fgets(line, sizeof line, f)) {
        long long id, parent, pid, ns, messages, bytes, queued;
        if (sscanf(line, "%lld %lld %lld %63s %63s %lld %lld %lld %lld", &id, &parent, &pid, who, what, &ns, &messages,
                   &bytes, &queued) == 9 &&
            !strcmp(what, "held") && (!*name || !strcmp(who, name)))
            sum += bytes;
    }
    if (f)
        fclose(f);
    return sum / MIB;
}

static double in_use(void)
{
    char line[128];
    long total = 0, n;
    FILE *f = fopen("/proc/meminfo", "r");
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "MemTotal: %ld kB", &n) == 1)
            total += n;
        if (sscanf(line, "MemFree: %ld kB", &n) == 1)
            total -= n;
    }
    fclose(f);
    return total / 1024.0;
}

static void near(double got, double want, const char *what)
{
    double off = got - want;
    // 1 %, and what the runtime takes to know of it.
    if (atoll_in_cell() && (off < 0 ? -off : off) > want * 0.01 + 0.1) {
        printf("%s: %.2f MiB and not %.2f\n", what, got, want);
        failed = 1;
    }
}

static void *touched(size_t size)
{
    char *p = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t at = 0; at < size; at += 4096)
        p[at] = 1;
    return p;
}

// Two activities take memory and give it back. The runtime keeps the pages that its own objects lay in, for the next ones: only who
// has been here before finds as much held afterwards as there was.
static void round_of(int again)
{
    static char buf[MIB];
    memset(buf, 1, sizeof buf);
    atoll_activity a = atoll_activity_create("holder"), b = atoll_activity_create("other");
    near(held("holder"), 0, "nothing yet");
    double all = held("");

    atoll_activity_enter(a);
    void *first = touched(64 * MIB);
    near(held("holder"), 64, "64 MiB");
    atoll_activity_leave(a);
    atoll_activity_enter(b);
    void *second = touched(20 * MIB);
    near(held("other"), 20, "20 MiB");
    near(held("holder"), 64, "still 64 MiB");
    near(held("") - all, 84, "all of it");

    // Data of a file, which stays when who wrote it is gone.
    int fd = memfd_create("data", 0);
    for (int n = 0; n < 30; n++)
        if (write(fd, buf, sizeof buf) != sizeof buf)
            failed = 1;
    near(held("other"), 50, "and a file of 30 MiB");
    munmap(second, 20 * MIB);
    near(held("other"), 30, "only the file");
    atoll_activity_leave(b);

    // Given back by somebody else.
    munmap(first, 32 * MIB);
    near(held("holder"), 32, "half of it given back");
    atoll_activity_end(a);
    atoll_activity_end(b);
    near(held("holder") + held("other"), 0, "both are gone");
    near(held("") - all, 62, "what they held is not");
    close(fd);
    munmap((char *)first + 32 * MIB, 32 * MIB);
    if (again)
        near(held(""), all, "as before");
}

int main(void)
{
    round_of(0);
    round_of(1);
    // The allocator says the same.
    near(held(""), in_use(), "all that is in use");
    puts(failed ? "held: wrong" : "held: as it should be");
    return failed;
}
