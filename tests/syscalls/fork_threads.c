// Threads that write to memory all over while another one forks and writes beside them: nothing that was written is lost, whatever
// is copied meanwhile, and a child sees no count that goes back.
// options: --cores 2 --memory 512M
// timeout: 60
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PIECE (64 << 10)
#define PIECES 512
static char *memory;
static volatile int stop;
static long lost;

static volatile uint64_t *word(int piece, int thread) { return (volatile uint64_t *)(memory + (size_t)piece * PIECE + 4096 * thread + 8); }

static void *writes(void *arg) {
    int me = (int)(intptr_t)arg;
    static uint64_t had[3][PIECES];
    uint64_t r = me;
    while (!stop) {
        r = r * 6364136223846793005ull + 1442695040888963407ull;
        int piece = r >> 40 & (PIECES - 1);
        // What was written last is there still.
        if (*word(piece, me) != had[me][piece]) __atomic_add_fetch(&lost, 1, __ATOMIC_RELAXED);
        *word(piece, me) = ++had[me][piece];
    }
    return NULL;
}

int main(void) {
    size_t size = (size_t)PIECES * PIECE;
    memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 0, size);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, writes, (void *)(intptr_t)(i + 1));
    int bad = 0;
    for (int round = 0; round < 60; round++) {
        int pid = fork();
        if (pid == 0) {
            uint64_t before[PIECES];
            for (int k = 0; k < PIECES; k++) before[k] = *word(k, 1);
            usleep(2000);
            for (int k = 0; k < PIECES; k++) if (*word(k, 1) != before[k]) _exit(1);
            _exit(0);
        }
        for (int k = round % 7; k < PIECES; k += 7) *word(k, 0) = round;
        for (int k = round % 7; k < PIECES; k += 7) bad += *word(k, 0) != (uint64_t)round;
        int status;
        waitpid(pid, &status, 0);
        bad += status != 0;
    }
    stop = 1;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    printf("lost %ld, bad %d\n", lost, bad);
    return 0;
}
