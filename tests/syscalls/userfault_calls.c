// options: --cores 2
// timeout: 60
// traced: no (whoever traces would look at pages that are missing, and wait for a pager that is stopped)
// A program's own pager, asked in the middle of system calls; and threads that are held up by it (XOS-08).
#include "userfault.h"

static void in_calls(void)
{
	SECTION("in system calls");
	enum { N = 100 };
	area = memory(N);
	int fd = opened(O_NONBLOCK, 0);
	V(enroll(fd, area, N, UFFDIO_REGISTER_MODE_MISSING));
	pthread_t t = begin(fd);
	int p[2];
	pipe(p);
	V(write(p[1], area + 70 * PAGE + 100, 5000));
	// Each within a page: a pipe that stops at one that is missing gives what it has by then.
	V(read(p[0], area + 72 * PAGE, 4000));
	V(read(p[0], area + 73 * PAGE, 1000));
	P(is_filled(area + 70 * PAGE, 70) && is_filled(area + 71 * PAGE, 71));
	V(memcmp(area + 70 * PAGE + 100, area + 72 * PAGE, 4000));
	V(memcmp(area + 70 * PAGE + 4100, area + 73 * PAGE, 1000));
	struct timespec *now = (void *)(area + 75 * PAGE);
	V(syscall(SYS_clock_gettime, CLOCK_MONOTONIC, now));
	V(syscall(SYS_futex, area + 76 * PAGE, FUTEX_WAIT_PRIVATE, 1, 0, 0, 0));
	int m = memfd_create("file", 0);
	V(pwrite(m, area + 77 * PAGE, 3 * PAGE, 0));
	V(pread(m, area + 80 * PAGE, 3 * PAGE, 0));
	P(!memcmp(area + 77 * PAGE, area + 80 * PAGE, 3 * PAGE));
	close(m);
	close(p[0]);
	close(p[1]);
	end(t);
	close(fd);
	munmap(area, N * PAGE);
}

static atomic_int tid;
static void *touches(void *at)
{
	tid = syscall(SYS_gettid);
	return (void *)(long)*(volatile char *)at;
}
static void *sends(void *at)
{
	int p[2];
	pipe(p);
	long r = write(p[1], at, 2 * PAGE);
	close(p[0]);
	close(p[1]);
	return (void *)r;
}

static atomic_int handled;
static void on_usr1(int signal)
{
	(void)signal;
	handled++;
}

static unsigned long long next_address(int fd)
{
	struct uffd_msg m;
	struct pollfd p = {.fd = fd, .events = POLLIN};
	if (poll(&p, 1, 10000) != 1 || read(fd, &m, sizeof m) != sizeof m)
		return 0;
	return m.arg.pagefault.address;
}

static void held_up(void)
{
	void *value;
	pthread_t t;
	SECTION("woken, a signal, withdrawn, closed");
	struct sigaction s = {.sa_handler = on_usr1};
	sigaction(SIGUSR1, &s, 0);
	area = memory(40);
	int fd = opened(O_NONBLOCK, UFFD_FEATURE_THREAD_ID | UFFD_FEATURE_EXACT_ADDRESS);
	enroll(fd, area, 40, UFFDIO_REGISTER_MODE_MISSING);
	pthread_create(&t, 0, touches, area + 123);
	struct uffd_msg m;
	struct pollfd p = {.fd = fd, .events = POLLIN};
	V(poll(&p, 1, 10000));
	V(read(fd, &m, sizeof m));
	P((char *)m.arg.pagefault.address - area);
	P(m.arg.pagefault.feat.ptid == (unsigned)tid);
	// It has been read, and is told of again when it is woken in vain.
	V(poll(&p, 1, 0));
	V(wake(fd, area, 1));
	P((char *)next_address(fd) - area);
	// A signal is handled, and then it waits again.
	pthread_kill(t, SIGUSR1);
	P((char *)next_address(fd) - area);
	P(handled);
	// What is put in place without waking leaves it where it is.
	static char page[PAGE] = {[123] = 42};
	V(copy(fd, area, page, 1, UFFDIO_COPY_MODE_DONTWAKE));
	V(pthread_tryjoin_np(t, &value));
	V(wake(fd, area + PAGE, 1));
	V(wake(fd, area, 1));
	pthread_join(t, &value);
	P(value);
	// In a system call.
	pthread_create(&t, 0, sends, area + 5 * PAGE);
	P((char *)next_address(fd) - area);
	V(copy(fd, area + 5 * PAGE, page, 1, 0));
	P((char *)next_address(fd) - area);
	V(withdraw(fd, area + 6 * PAGE, 1));
	pthread_join(t, &value);
	P(value);
	pthread_create(&t, 0, touches, area + 10 * PAGE);
	pthread_t other;
	P((char *)next_address(fd) - area);
	pthread_create(&other, 0, sends, area + 20 * PAGE);
	P((char *)next_address(fd) - area);
	V(close(fd));
	pthread_join(t, &value);
	P(value);
	pthread_join(other, &value);
	P(value);
	munmap(area, 40 * PAGE);
}

static void waits_for_ever(void)
{
	area = memory(4);
	int fd = opened(0, 0);
	enroll(fd, area, 4, UFFDIO_REGISTER_MODE_MISSING);
	*(volatile char *)area;
	puts("not here");
}
static void sends_for_ever(void)
{
	area = memory(4);
	int fd = opened(0, 0);
	enroll(fd, area, 4, UFFDIO_REGISTER_MODE_MISSING);
	sends(area);
	puts("not here");
}

// Several threads, on all cores, want the same pages at once.
static void *all_pages(void *unused)
{
	(void)unused;
	long right = 0;
	for (long n = 0; n < 200; n++)
		right += is_filled(area + n * PAGE, n);
	return (void *)right;
}

int main(void)
{
	in_calls();
	held_up();
	SECTION("killed");
	for (int n = 0; n < 2; n++) {
		pid_t child = begin_child(n ? sends_for_ever : waits_for_ever);
		sleep_ms(50);
		kill(child, SIGKILL);
		P(end_child(child));
	}
	SECTION("together");
	area = memory(200);
	int fd = opened(O_NONBLOCK, 0);
	enroll(fd, area, 200, UFFDIO_REGISTER_MODE_MISSING);
	pthread_t pager = begin(fd), t[4];
	for (int n = 0; n < 4; n++)
		pthread_create(&t[n], 0, all_pages, 0);
	for (int n = 0; n < 4; n++) {
		void *right;
		pthread_join(t[n], &right);
		P(right);
	}
	end(pager);
	close(fd);
}
