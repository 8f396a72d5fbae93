// Processor time is divided into the program's and the system's: getrusage, times, wait4, waitid, /proc/PID/stat.
// timeout: 60
// traced: no (it measures, and others make its calls)
#include "case.h"
#include <sys/resource.h>
#include <sys/times.h>

static long us(struct timeval t)
{
	return t.tv_sec * 1000000L + t.tv_usec;
}

static long used_us(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return t.tv_sec * 1000000L + t.tv_nsec / 1000;
}

static volatile unsigned long sum;

static void compute(long long_us, clockid_t clock)
{
	for (long until = used_us(clock) + long_us; used_us(clock) < until;)
		for (int n = 0; n < 100000; n++)
			sum += n;
}

static void call(long long_us, clockid_t clock)
{
	static char page[1 << 16];
	int zero = open("/dev/zero", O_RDONLY);
	for (long until = used_us(clock) + long_us; used_us(clock) < until;)
		for (int n = 0; n < 100; n++)
			(void)!read(zero, page, sizeof page);
	close(zero);
}

// Which part is the larger one by far.
static const char *mostly(long user, long system)
{
	return user > system ? "mostly its own" : user < system ? "mostly the system's" : "some of both";
}

static void since(const char *what, int who, struct rusage *before)
{
	struct rusage now;
	getrusage(who, &now);
	printf("%s: %s\n", what, mostly(us(now.ru_utime) - us(before->ru_utime), us(now.ru_stime) - us(before->ru_stime)));
	*before = now;
}

static void stat_of(const char *what, const char *path)
{
	static unsigned long before[4];
	unsigned long t[4] = {0};
	char line[1024] = "";
	FILE *f = fopen(path, "r");
	if (f && fgets(line, sizeof line, f))
		sscanf(strrchr(line, ')') + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %lu %lu", t, t + 1, t + 2, t + 3);
	fclose(f);
	if (what)
		printf("%s: %s, children's %s\n", what, mostly(t[0] - before[0], t[1] - before[1]), mostly(t[2] - before[2], t[3] - before[3]));
	memcpy(before, t, sizeof before);
}

static void *thread(void *unused)
{
	struct rusage before;
	getrusage(RUSAGE_THREAD, &before);
	call(300000, CLOCK_THREAD_CPUTIME_ID);
	since("a thread that calls", RUSAGE_THREAD, &before);
	return unused;
}

static volatile int over;

static void *thread_that_computes(void *unused)
{
	while (!over)
		sum++;
	return unused;
}

static pid_t child(void (*f)(long, clockid_t))
{
	fflush(stdout);
	pid_t p = fork();
	if (!p) {
		f(300000, CLOCK_PROCESS_CPUTIME_ID);
		_exit(0);
	}
	return p;
}

int main(void)
{
	SECTION("a process");
	struct rusage before;
	struct tms t[3];
	getrusage(RUSAGE_SELF, &before);
	times(t);
	compute(400000, CLOCK_PROCESS_CPUTIME_ID);
	since("computes", RUSAGE_SELF, &before);
	times(t + 1);
	call(400000, CLOCK_PROCESS_CPUTIME_ID);
	since("calls", RUSAGE_SELF, &before);
	times(t + 2);
	for (int n = 1; n < 3; n++)
		printf("times: %s\n", mostly(t[n].tms_utime - t[n - 1].tms_utime, t[n].tms_stime - t[n - 1].tms_stime));
	stat_of(NULL, "/proc/self/stat");
	call(400000, CLOCK_PROCESS_CPUTIME_ID);
	stat_of("calls", "/proc/self/stat");

	SECTION("children");
	struct rusage of;
	getrusage(RUSAGE_CHILDREN, &before);
	wait4(child(compute), NULL, 0, &of);
	printf("wait4: %s\n", mostly(us(of.ru_utime), us(of.ru_stime)));
	since("computes", RUSAGE_CHILDREN, &before);
	wait4(child(call), NULL, 0, &of);
	printf("wait4: %s\n", mostly(us(of.ru_utime), us(of.ru_stime)));
	since("calls", RUSAGE_CHILDREN, &before);
	times(t);
	siginfo_t info;
	pid_t p = child(call);
	waitid(P_PID, p, &info, WEXITED);
	times(t + 1);
	printf("times: %s\n", mostly(t[1].tms_cutime - t[0].tms_cutime, t[1].tms_cstime - t[0].tms_cstime));

	SECTION("threads");
	pthread_t other;
	getrusage(RUSAGE_THREAD, &before);
	pthread_create(&other, NULL, thread, NULL);
	pthread_join(other, NULL);
	call(400000, CLOCK_THREAD_CPUTIME_ID);
	since("calls", RUSAGE_THREAD, &before);

	SECTION("it never goes back");
	long back = 0, user = 0, system = 0;
	for (int n = 0; n < 20000; n++) {
		struct rusage now;
		getrusage(RUSAGE_SELF, &now);
		back += us(now.ru_utime) < user || us(now.ru_stime) < system;
		user = us(now.ru_utime);
		system = us(now.ru_stime);
		if (n % 100 == 0)
			compute(500, CLOCK_PROCESS_CPUTIME_ID);
	}
	P(back);
	// Nor do clocks, whoever reads them: of a thread on another core, of this one, of both; nor are they much faster than time.
	pthread_create(&other, NULL, thread_that_computes, NULL);
	clockid_t clocks[3] = {0, CLOCK_THREAD_CPUTIME_ID, CLOCK_PROCESS_CPUTIME_ID};
	pthread_getcpuclockid(other, clocks);
	long at[3] = {0}, fast = 0, began[3], start = used_us(CLOCK_MONOTONIC);
	for (int c = 0; c < 3; c++)
		began[c] = used_us(clocks[c]);
	for (int n = 0; n < 20000; n++)
		for (int c = 0; c < 3; c++) {
			long now = used_us(clocks[c]);
			back += now < at[c];
			at[c] = now;
			fast += c != 2 && now - began[c] > used_us(CLOCK_MONOTONIC) - start + 5000;
		}
	P(back);
	P(fast);
	over = 1;
	pthread_join(other, NULL);
	// What it is divided into is what the clock says.
	struct rusage now;
	long first = used_us(CLOCK_PROCESS_CPUTIME_ID);
	getrusage(RUSAGE_SELF, &now);
	long both = us(now.ru_utime) + us(now.ru_stime), last = used_us(CLOCK_PROCESS_CPUTIME_ID);
	V(both >= first - 2 && both <= last + 2);
	return 0;
}
