// A process ends while threads of it begin: all that it held goes, however far they had come.
// timeout: 120
#include "case.h"
#include <poll.h>

static void *thread(void *unused)
{
	pause();
	return unused;
}

static void *maker(void *unused)
{
	pthread_t t;
	pthread_attr_t attr;
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 65536);
	for (;;)
		if (pthread_create(&t, &attr, thread, NULL))
			sleep_ms(1);
	return unused;
}

int main(void)
{
	int held = 0, status = 0, others = 0;
	for (int n = 0; n < 400; n++) {
		int end[2];
		pipe(end);
		pid_t p = fork();
		if (!p) {
			pthread_t t;
			pthread_create(&t, NULL, maker, NULL);
			usleep(n % 20 * 20);
			if (n % 2)
				_exit(3);
			kill(getpid(), SIGKILL);
		}
		close(end[1]);
		waitpid(p, &status, 0);
		others += n % 2 ? status != 3 << 8 : status != SIGKILL;
		// Whoever has the other end is gone.
		struct pollfd gone = {end[0], POLLIN, 0};
		held += poll(&gone, 1, 2000) != 1 || gone.revents != POLLHUP;
		close(end[0]);
		if (held > 2)
			break;
	}
	P(held);
	P(others);
	return 0;
}
