// The clocks of alarms aren't compared: Linux has them only on machines with a clock that wakes them.
// Clocks, sleeping until a time, CPU time.
// nucleus-differs: now_ms(CLOCK_THREAD_CPUTIME_ID) - th < 25: (the host may take the core away for that long)
#include "case.h"
#include <sys/resource.h>
#include <sys/times.h>
#include <sys/timex.h>

static void burn(int ms)
{
	long long t0 = now_ms(CLOCK_THREAD_CPUTIME_ID);
	while (now_ms(CLOCK_THREAD_CPUTIME_ID) - t0 < ms)
		;
}
static void *burner(void *p)
{
	burn(30);
	return 0;
}

int main(void)
{
	struct timespec a, b;
	int ids[] = {CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_PROCESS_CPUTIME_ID, CLOCK_THREAD_CPUTIME_ID, CLOCK_MONOTONIC_RAW,
		     CLOCK_REALTIME_COARSE, CLOCK_MONOTONIC_COARSE, CLOCK_BOOTTIME, CLOCK_TAI, 10, 12, -1, 99};
	for (int i = 0; i < 13; i++) {
		printf("clock %d\n", ids[i]);
		if (OK(syscall(SYS_clock_gettime, ids[i], &a)) == -1) {
			V(clock_getres(ids[i], &a));
			continue;
		}
		clock_gettime(ids[i], &a);
		clock_gettime(ids[i], &b);
		P(b.tv_sec > a.tv_sec || (b.tv_sec == a.tv_sec && b.tv_nsec >= a.tv_nsec));
		P(a.tv_nsec >= 0 && a.tv_nsec < 1000000000);
		V(clock_getres(ids[i], &a));
		P(a.tv_nsec == 1 || ids[i] == CLOCK_REALTIME_COARSE || ids[i] == CLOCK_MONOTONIC_COARSE);
	}
	SECTION("sleeping");
	for (int i = 0; i < 13; i++) {
		struct timespec ms = {0, 5000000};
		printf("clock %d\n", ids[i]);
		if (ids[i] == CLOCK_PROCESS_CPUTIME_ID)
			continue;
		long long t0 = now_ms(CLOCK_MONOTONIC);
		P(clock_nanosleep(ids[i], 0, &ms, 0));
		if (clock_gettime(ids[i], &a))
			continue;
		a.tv_nsec += 5000000;
		if (a.tv_nsec >= 1000000000) a.tv_sec++, a.tv_nsec -= 1000000000;
		P(clock_nanosleep(ids[i], TIMER_ABSTIME, &a, 0));
		(void)t0;
	}
	long long t0 = now_ms(CLOCK_MONOTONIC);
	struct timespec ms = {0, 50000000}, bad = {0, 1000000000}, neg = {-1, 0}, past = {1, 0};
	V(nanosleep(&ms, 0));
	long long d = now_ms(CLOCK_MONOTONIC) - t0;
	P(d >= 49 && d < 2000);
	V(nanosleep(&bad, 0));
	V(nanosleep(&neg, 0));
	V(nanosleep((void *)8, 0));
	P(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &past, 0));
	V(syscall(SYS_clock_gettime, CLOCK_REALTIME, 8));
	V(clock_settime(CLOCK_MONOTONIC, &past));
	SECTION("how the clock is adjusted");
	// Anyone may ask.
	struct timex adjusted = {0};
	OK(adjtimex(&adjusted));
	P(adjusted.tick >= 9000 && adjusted.tick <= 11000 && labs(adjusted.time.tv_sec - time(0)) <= 1);
	struct timeval left;
	V(adjtime(0, &left));
	adjusted.modes = 0x8000;
	V(adjtimex(&adjusted));
	adjusted.modes = 0;
	OK(syscall(SYS_clock_adjtime, CLOCK_REALTIME, &adjusted));
	V(syscall(SYS_clock_adjtime, CLOCK_MONOTONIC, &adjusted));
	V(syscall(SYS_clock_adjtime, 99, &adjusted));
	V(syscall(SYS_adjtimex, 1));
	adjusted.modes = 0;
	OK(syscall(SYS_adjtimex, &adjusted));
	SECTION("CPU time");
	t0 = now_ms(CLOCK_PROCESS_CPUTIME_ID);
	sleep_ms(50);
	P(now_ms(CLOCK_PROCESS_CPUTIME_ID) - t0 < 30);
	t0 = now_ms(CLOCK_PROCESS_CPUTIME_ID);
	burn(40);
	P(now_ms(CLOCK_PROCESS_CPUTIME_ID) - t0 >= 39);
	t0 = now_ms(CLOCK_PROCESS_CPUTIME_ID);
	long long th = now_ms(CLOCK_THREAD_CPUTIME_ID);
	pthread_t t;
	pthread_create(&t, 0, burner, 0);
	pthread_join(t, 0);
	P(now_ms(CLOCK_PROCESS_CPUTIME_ID) - t0 >= 29);
	P(now_ms(CLOCK_THREAD_CPUTIME_ID) - th < 25);
	struct rusage u;
	V(getrusage(RUSAGE_SELF, &u));
	P(u.ru_utime.tv_sec * 1000 + u.ru_utime.tv_usec / 1000 + u.ru_stime.tv_sec * 1000 + u.ru_stime.tv_usec / 1000 >= 60);
	P(u.ru_maxrss > 500);
	V(getrusage(RUSAGE_THREAD, &u));
	V(getrusage(RUSAGE_CHILDREN, &u));
	P(u.ru_utime.tv_sec);
	V(getrusage(77, &u));
	V(getrusage(RUSAGE_SELF, (void *)8));
	struct tms tm;
	P(times(&tm) > 0);
	P(tm.tms_utime + tm.tms_stime >= 5);
	P(tm.tms_cutime);
	P(clock() > 0);
	clockid_t c;
	P(clock_getcpuclockid(0, &c));
	P(clock_gettime(c, &a));
	P(a.tv_nsec > 0);
	P(pthread_getcpuclockid(pthread_self(), &c));
	P(clock_gettime(c, &a));
	P(clock_getcpuclockid(999999999, &c));
	struct timeval tv;
	struct timezone tz;
	V(gettimeofday(&tv, &tz));
	P(tv.tv_sec - time(0) < 2);
	V(syscall(SYS_gettimeofday, 8, 0));
	P(tz.tz_minuteswest);
	V(syscall(SYS_time, 8));
	P(labs(syscall(SYS_time, 0) - time(0)) < 2);
	return 0;
}
