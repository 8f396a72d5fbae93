// Many threads whose stacks are as long as they are by default, of which they use hardly anything, in a program that has some memory.
// options: --memory 512M
// timeout: 60
#include "case.h"

static pthread_barrier_t all;
static char heap[16 << 20];

static void *waits(void *n)
{
	pthread_barrier_wait(&all);
	pthread_barrier_wait(&all);
	return n;
}

// Bytes of private memory that are in place, by /proc/self/status.
static long resident(void)
{
	char line[200];
	long kib = 0;
	FILE *f = fopen("/proc/self/status", "r");
	while (f && fgets(line, sizeof line, f))
		sscanf(line, "RssAnon: %ld", &kib);
	if (f)
		fclose(f);
	return kib << 10;
}

int main(void)
{
	enum { THREADS = 600 };
	static pthread_t threads[THREADS];
	memset(heap, 1, sizeof heap);
	long before = resident();
	pthread_barrier_init(&all, 0, THREADS + 1);
	int n = 0, e = 0;
	for (; n < THREADS; n++)
		if ((e = pthread_create(&threads[n], 0, waits, (void *)(long)n)))
			break;
	printf("%d threads, %s\n", n, e ? err_(e) : "no error");
	if (n < THREADS)
		return 1;
	pthread_barrier_wait(&all);
	printf("a stack takes less than 256 KiB: %d\n", (resident() - before) / THREADS < 256 << 10);
	pthread_barrier_wait(&all);
	for (n = 0; n < THREADS; n++)
		pthread_join(threads[n], 0);
	// One touch here and there.
	before = resident();
	char *large = mmap(0, 1 << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	for (long at = 0; at < 1 << 30; at += 4 << 20)
		large[at] = 1;
	printf("256 touches take less than 64 MiB: %d\n", resident() - before < 64 << 20);
	munmap(large, 1 << 30);
	return 0;
}
