// Resource limits and scheduling.
#include "case.h"
struct sched_attr_ {
	uint32_t size, sched_policy;
	uint64_t sched_flags;
	int32_t sched_nice;
	uint32_t sched_priority;
	uint64_t runtime, deadline, period;
	uint32_t util_min, util_max;
};
#include <sys/resource.h>
#include <sys/prctl.h>

static int hits;
static void note(int s) { hits = s; }

int main(void)
{
	struct rlimit l, old;
	char b[10000];
	SECTION("limits");
	for (int i = 0; i < 18; i++)
		printf("%d: %s\n", i, getrlimit(i, &l) ? err_(errno) : l.rlim_cur <= l.rlim_max ? "ok" : "?");
	V(getrlimit(RLIMIT_NOFILE, (void *)8));
	V(getrlimit(RLIMIT_NOFILE, &old));
	l = (struct rlimit){10, old.rlim_max};
	V(setrlimit(RLIMIT_NOFILE, &l));
	int n = 0;
	while (open("/dev/null", O_RDONLY) >= 0)
		n++;
	printf("%d more: %s\n", n, err_(errno));
	V(dup(0));
	V(dup2(0, 10));
	V(fcntl(0, F_DUPFD, 10));
	V(socket(AF_UNIX, SOCK_STREAM, 0));
	V(pipe((int[2]){0}));
	for (int i = 3; i < 10; i++)
		close(i);
	V(prlimit(0, RLIMIT_NOFILE, &old, &l));
	P(l.rlim_cur);
	l = (struct rlimit){20, 10};
	V(setrlimit(RLIMIT_NOFILE, &l));
	V(prlimit(999999999, RLIMIT_NOFILE, 0, &l));
	signal(SIGXFSZ, note);
	getrlimit(RLIMIT_FSIZE, &old);
	l = (struct rlimit){5000, old.rlim_max};
	V(setrlimit(RLIMIT_FSIZE, &l));
	int fd = open("f", O_CREAT | O_RDWR, 0600);
	V(write(fd, b, 10000));
	P(hits);
	V(write(fd, b, 10));
	P(hits);
	hits = 0;
	V(ftruncate(fd, 6000));
	P(hits);
	V(pwrite(fd, b, 10, 4995));
	V(truncate("f", 6000));
	setrlimit(RLIMIT_FSIZE, &old);
	getrlimit(RLIMIT_AS, &old);
	l = (struct rlimit){1UL << 30, old.rlim_max};
	V(setrlimit(RLIMIT_AS, &l));
	void *m = mmap(0, 2UL << 30, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	printf("%s\n", m == MAP_FAILED ? err_(errno) : "ok");
	setrlimit(RLIMIT_AS, &old);
	getrlimit(RLIMIT_STACK, &old);
	P(old.rlim_cur);
	getrlimit(RLIMIT_CORE, &old);
	l = (struct rlimit){0, 0};
	V(setrlimit(RLIMIT_CORE, &l));
	V(getrlimit(RLIMIT_CORE, &l));
	P(l.rlim_max);
	SECTION("scheduling");
	cpu_set_t set;
	CPU_ZERO(&set);
	OK(sched_getaffinity(0, sizeof set, &set));
	P(CPU_COUNT(&set) > 0);
	int cpu = sched_getcpu();
	P(CPU_ISSET(cpu, &set) != 0);
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	V(sched_setaffinity(0, sizeof set, &set));
	CPU_ZERO(&set);
	V(sched_setaffinity(0, sizeof set, &set));
	CPU_SET(1000, &set);
	V(sched_setaffinity(0, sizeof set, &set));
	V(sched_getaffinity(0, 1, &set));
	V(sched_getaffinity(999999999, sizeof set, &set));
	OK(sched_getaffinity(0, sizeof set, &set));
	P(CPU_COUNT(&set));
	unsigned c, node;
	V(syscall(SYS_getcpu, &c, &node, 0));
	V(sched_yield());
	V(sched_getscheduler(0));
	V(sched_getscheduler(-1));
	V(sched_getscheduler(999999999));
	struct sched_param sp;
	V(sched_getparam(0, &sp));
	P(sp.sched_priority);
	V(sched_setparam(0, &sp));
	sp.sched_priority = 5;
	V(sched_setparam(0, &sp));
	V(sched_setscheduler(0, SCHED_OTHER, &sp));
	sp.sched_priority = 0;
	V(sched_setscheduler(0, SCHED_BATCH, &sp));
	V(sched_getscheduler(0));
	V(sched_setscheduler(0, SCHED_IDLE, &sp));
	V(sched_setscheduler(0, SCHED_OTHER, &sp));
	V(sched_setscheduler(0, 77, &sp));
	V(sched_setscheduler(0, SCHED_FIFO, &sp));
	for (int p = 0; p < 7; p++)
		printf("%d: %d %d\n", p, sched_get_priority_min(p), sched_get_priority_max(p));
	struct timespec ts;
	V(sched_rr_get_interval(0, &ts));
	V(getpriority(PRIO_PROCESS, 0));
	V(setpriority(PRIO_PROCESS, 0, 5));
	V(getpriority(PRIO_PROCESS, 0));
	V(setpriority(PRIO_PROCESS, 0, 100));
	V(getpriority(PRIO_PROCESS, 0));
	V(getpriority(77, 0));
	V(getpriority(PRIO_PROCESS, 999999999));
	struct sched_attr_ sa = {.size = sizeof sa};
	V(syscall(SYS_sched_getattr, 0, &sa, sizeof sa, 0));
	printf("%u %d\n", sa.sched_policy, sa.sched_nice);
	V(syscall(SYS_sched_getattr, 0, &sa, 4, 0));
	V(syscall(SYS_sched_setattr, 0, &sa, 1));
	sa.size = sizeof sa;
	sa.sched_policy = SCHED_BATCH;
	sa.sched_nice = 15;
	V(syscall(SYS_sched_setattr, 0, &sa, 0));
	V(sched_getscheduler(0));
	V(getpriority(PRIO_PROCESS, 0));
	V(syscall(SYS_ioprio_get, 1, 0));
	V(syscall(SYS_ioprio_set, 1, 0, 4 | 2 << 13));
	V(syscall(SYS_ioprio_get, 1, 0));
	V(syscall(SYS_ioprio_get, 9, 0));
	return 0;
}
