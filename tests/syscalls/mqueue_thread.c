// A POSIX message queue whose messages a thread is told of (SIGEV_THREAD of mq_notify(3)).
// nucleus: no (glibc is told by a netlink socket, of which there are none there)
#include "case.h"
#include <mqueue.h>

static volatile int told, value;
static mqd_t q;

static void function(union sigval v)
{
	value = v.sival_int;
	told++;
}
static void wait_for(int n)
{
	for (int i = 0; i < 2000 && told < n; i++)
		sleep_ms(1);
	P(told);
	P(value);
}

int main()
{
	char name[64], text[100];
	snprintf(name, sizeof name, "/atoll-%d", getpid());
	struct mq_attr a = {.mq_maxmsg = 3, .mq_msgsize = 100};
	q = mq_open(name, O_CREAT | O_RDWR, 0600, &a);
	mq_unlink(name);
	struct sigevent e = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = function, .sigev_value.sival_int = 3};
	V(mq_notify(q, &e));
	V(mq_notify(q, &e));
	V(read(q, text, sizeof text));
	char *pid = strstr(text, "NOTIFY_PID");
	printf("%.*s\n", (int)(pid - text), text);
	V(mq_send(q, "a", 1, 0));
	wait_for(1);
	V(mq_send(q, "b", 1, 0));
	V(mq_receive(q, text, sizeof text, 0));
	V(mq_receive(q, text, sizeof text, 0));
	e.sigev_value.sival_int = 4;
	V(mq_notify(q, &e));
	V(mq_notify(q, 0));
	e.sigev_value.sival_int = 5;
	pthread_attr_t attr;
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 256 << 10);
	e.sigev_notify_attributes = &attr;
	V(mq_notify(q, &e));
	V(mq_send(q, "c", 1, 0));
	wait_for(2);

	SECTION("no such sockets");
	struct sigevent raw = {.sigev_notify = SIGEV_THREAD, .sigev_signo = -1, .sigev_value.sival_ptr = text};
	V(syscall(SYS_mq_notify, q, &raw));
	raw.sigev_signo = q;
	V(syscall(SYS_mq_notify, q, &raw));
	raw.sigev_signo = socket(AF_UNIX, SOCK_DGRAM, 0);
	V(syscall(SYS_mq_notify, q, &raw));
	raw.sigev_value.sival_ptr = (void *)8;
	V(syscall(SYS_mq_notify, q, &raw));
	V(mq_close(q));
}
