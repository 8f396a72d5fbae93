// Threads that are woken while others spin for them: who spins makes no system
// call, and there is a timer far away.
#include "case.h"
#include <linux/futex.h>

static uint32_t word;
static int woken, begun, done;

static int get(int *p)
{
	return __atomic_load_n(p, __ATOMIC_SEQ_CST);
}

static void *sleeper(void *p)
{
	struct timespec minute = {60, 0};
	__atomic_fetch_add(&begun, 1, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &minute, 0, 0);
	__atomic_fetch_add(&woken, 1, __ATOMIC_SEQ_CST);
	return 0;
}

static void *spinner(void *p)
{
	while (!get(&done))
		;
	return 0;
}

int main(void)
{
	int slow = 0;
	for (int round = 0; round < 10; round++) {
		pthread_t t[4], s[2];
		begun = woken = done = 0;
		for (int i = 0; i < 4; i++)
			pthread_create(&t[i], 0, sleeper, 0);
		while (get(&begun) < 4)
			sleep_ms(1);
		sleep_ms(20);
		for (int i = 0; i < 2; i++)
			pthread_create(&s[i], 0, spinner, 0);
		sleep_ms(20);
		long long from = now_ms(CLOCK_MONOTONIC);
		syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 4, 0, 0, 0);
		while (get(&woken) < 4)
			;
		slow += now_ms(CLOCK_MONOTONIC) - from > 5000;
		__atomic_store_n(&done, 1, __ATOMIC_SEQ_CST);
		for (int i = 0; i < 4; i++)
			pthread_join(t[i], 0);
		for (int i = 0; i < 2; i++)
			pthread_join(s[i], 0);
	}
	printf("slow rounds: %d\n", slow);
	return 0;
}
