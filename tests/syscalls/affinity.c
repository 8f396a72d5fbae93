// flags: -pthread
// options: --cores 2
// Threads run on the cores that were chosen for them: at once for oneself, soon for a thread that never sleeps.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static atomic_int on = -1, tid, end;

static void *spin(void *unused) {
    (void)unused;
    tid = (int)syscall(SYS_gettid);
    while (!end) {
        on = sched_getcpu();
    }
    return NULL;
}

static cpu_set_t only(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    return set;
}

static void status(const char *when, const char *first, const char *second) {
    char line[256];
    FILE *f = fopen("/proc/thread-self/status", "r");
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, "Cpus_allowed_list:", 18) == 0) {
            line[strcspn(line, "\n")] = 0;
            const char *list = line + 19;
            printf("%s: %s\n", when, !strcmp(list, first) ? "the first" : !strcmp(list, second) ? "the second" : "others");
        }
    }
    fclose(f);
}

int main(void) {
    cpu_set_t all, set;
    sched_getaffinity(0, sizeof all, &all);
    int cpu[2], n = 0;
    for (int i = 0; i < CPU_SETSIZE && n < 2; i++) {
        if (CPU_ISSET(i, &all)) {
            cpu[n++] = i;
        }
    }
    if (n < 2) {
        cpu[1] = cpu[0];
    }
    char first[16], second[16];
    snprintf(first, sizeof first, "%d", cpu[0]);
    snprintf(second, sizeof second, "%d", cpu[1]);
    int wrong = 0;
    for (int i = 0; i < 2000; i++) {
        set = only(cpu[i % 2]);
        if (sched_setaffinity(0, sizeof set, &set) != 0 || sched_getcpu() != cpu[i % 2]) {
            wrong++;
        }
    }
    printf("oneself: %d wrong\n", wrong);
    status("then", first, second);

    pthread_t thread;
    pthread_create(&thread, NULL, spin, NULL);
    while (!tid) {
        sched_yield();
    }
    sched_getaffinity(tid, sizeof set, &set);
    printf("a thread has its maker's: %d of %d\n", CPU_COUNT(&set), CPU_ISSET(cpu[1], &set));
    for (int i = 0; i < 20; i++) {
        set = only(cpu[i % 2]);
        sched_setaffinity(tid, sizeof set, &set);
        struct timespec start, now;
        clock_gettime(CLOCK_MONOTONIC, &start);
        do {
            clock_gettime(CLOCK_MONOTONIC, &now);
        } while (on != cpu[i % 2] && now.tv_sec - start.tv_sec < 5);
        if (on != cpu[i % 2]) {
            printf("another thread stays\n");
        }
    }
    end = 1;
    pthread_join(thread, NULL);
    puts("another thread moves");

    CPU_ZERO(&set);
    int r = sched_setaffinity(0, sizeof set, &set);
    printf("none: %d %s\n", r, strerror(errno));
    r = sched_setaffinity(tid + 1000000, sizeof set, &set);
    printf("nobody's: %d %s\n", r, strerror(errno));
    set = only(cpu[0]);
    CPU_SET(1000, &set);
    r = sched_setaffinity(0, sizeof set, &set);
    printf("one that isn't there: %d, on the other: %d\n", r, sched_getcpu() == cpu[0]);
    status("then", first, second);
    sched_setaffinity(0, sizeof all, &all);
    sched_getaffinity(0, sizeof set, &set);
    printf("all again: %d\n", CPU_EQUAL(&set, &all));
    return 0;
}
