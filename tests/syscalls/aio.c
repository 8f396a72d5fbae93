// Linux's own asynchronous I/O (io_setup(2), io_submit(2)), as libaio uses it.
// timeout: 60
#include "case.h"
#include <linux/aio_abi.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

// What libaio knows of a context.
struct ring {
	unsigned id, nr, head, tail, magic, compat, incompat, header;
	struct io_event events[];
};
static aio_context_t ctx;

static long setup(unsigned n, aio_context_t *c)
{
	return syscall(SYS_io_setup, n, c);
}
static long submit_to(aio_context_t c, long n, struct iocb **list)
{
	return syscall(SYS_io_submit, c, n, list);
}
static long submit(struct iocb *i)
{
	return submit_to(ctx, 1, &i);
}
static long get(long least, long most, struct io_event *to, int ms)
{
	struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
	return syscall(SYS_io_getevents, ctx, least, most, to, ms < 0 ? 0 : &t);
}
static struct iocb request(int op, int fd, const void *buf, size_t n, long offset)
{
	static int number;
	return (struct iocb){.aio_data = ++number, .aio_lio_opcode = op, .aio_fildes = fd, .aio_buf = (long)buf, .aio_nbytes = n, .aio_offset = offset};
}
static void show(struct io_event *e)
{
	printf("event %llu result %lld (%s) %lld\n", e->data, e->res, e->res < 0 ? err_(-e->res) : "ok", e->res2);
	fflush(stdout);
}
// Of a file that was waited for; Linux may tell of more than was asked for.
static void show_ready(struct io_event *e)
{
	e->res &= POLLIN | POLLOUT;
	show(e);
}
// One request that is done at once, and its event.
static void one(const char *what, struct iocb i)
{
	struct io_event e;
	struct iocb *list = &i;
	i.aio_key = 7;
	long r = syscall(SYS_io_submit, ctx, 1, &list);
	if (r != 1) {
		printf("%s: %s\n", what, err_(errno));
		fflush(stdout);
		return;
	}
	printf("%s: key %u ", what, i.aio_key);
	fflush(stdout);
	if (get(1, 1, &e, 2000) == 1) {
		P(e.obj == (long)&i);
		show(&e);
	}
}
static void *writes_later(void *fd)
{
	sleep_ms(50);
	return (void *)write((long)fd, "later", 5);
}
static void *destroys_later(void *c)
{
	sleep_ms(50);
	return (void *)syscall(SYS_io_destroy, c);
}
static void nothing(int s)
{
	(void)s;
}
static void in_child(void)
{
	struct io_event e;
	V(get(0, 1, &e, 0));
	V(syscall(SYS_io_destroy, ctx));
	aio_context_t own = 0;
	V(setup(4, &own));
	P(own != 0);
}
static long number(const char *path)
{
	char text[64] = "";
	int f = open(path, O_RDONLY);
	if (read(f, text, sizeof text - 1) < 1)
		return -1;
	close(f);
	return strtol(text, 0, 10);
}

int main()
{
	char text[4096] = "";
	struct io_event e[16];

	SECTION("contexts");
	ctx = 1;
	V(setup(8, &ctx));
	ctx = 0;
	V(setup(0, &ctx));
	V(setup(8, (void *)8));
	V(setup(0x80000000, &ctx));
	V(setup(number("/proc/sys/fs/aio-max-nr") + 1, &ctx));
	P(number("/proc/sys/fs/aio-max-nr"));
	V(setup(8, &ctx));
	// Others may have some, too.
	P(number("/proc/sys/fs/aio-nr") >= 8);
	struct ring *ring = (struct ring *)ctx;
	X(ring->magic);
	P(ring->compat);
	P(ring->incompat);
	P(ring->header);
	P(ring->head);
	P(ring->tail);
	P(ring->nr >= 16);
	V(syscall(SYS_io_destroy, 0));
	V(syscall(SYS_io_destroy, ctx + 4096));
	V(syscall(SYS_io_getevents, 0, 0, 1, e, 0));
	V(syscall(SYS_io_submit, 0, 0, 0));
	V(get(0, 0, e, -1));
	V(get(0, 16, e, -1));
	V(get(1, 16, e, 0));
	V(get(2, 1, e, 0));
	V(get(-1, 1, e, 0));
	V(syscall(SYS_io_getevents, ctx, 0, 1, e, 8));
	V(submit_to(ctx, -1, 0));
	V(submit_to(ctx, 0, 0));
	V(submit_to(ctx, 1, 0));
	struct iocb *none[] = {(void *)8};
	V(submit_to(ctx, 1, none));

	SECTION("files");
	int f = open("aio.data", O_RDWR | O_CREAT | O_TRUNC, 0600);
	one("write", request(IOCB_CMD_PWRITE, f, "0123456789", 10, 0));
	one("write behind", request(IOCB_CMD_PWRITE, f, "abc", 3, 20));
	one("read", request(IOCB_CMD_PREAD, f, text, 5, 3));
	printf("%.5s\n", text);
	one("read at the end", request(IOCB_CMD_PREAD, f, text, sizeof text, 15));
	one("read behind the end", request(IOCB_CMD_PREAD, f, text, sizeof text, 100));
	struct iovec v[] = {{text, 2}, {text + 10, 3}};
	one("read in parts", request(IOCB_CMD_PREADV, f, v, 2, 1));
	printf("%.2s %.3s\n", text, text + 10);
	one("write in parts", request(IOCB_CMD_PWRITEV, f, v, 2, 30));
	one("flush", request(IOCB_CMD_FSYNC, f, 0, 0, 0));
	one("flush data", request(IOCB_CMD_FDSYNC, f, 0, 0, 0));
	one("flush some", request(IOCB_CMD_FSYNC, f, 0, 1, 0));
	one("nothing", request(IOCB_CMD_NOOP, f, 0, 0, 0));
	one("unknown", request(99, f, 0, 0, 0));
	one("no file", request(IOCB_CMD_PREAD, 99, text, 1, 0));
	one("not there", request(IOCB_CMD_PREAD, f, (void *)8, 4, 0));
	one("no address", request(IOCB_CMD_PREAD, f, (void *)-8L, 4, 0));
	one("less than nothing", request(IOCB_CMD_PREAD, f, text, -1, 0));
	one("before the beginning", request(IOCB_CMD_PREAD, f, text, 1, -1));
	one("no parts", request(IOCB_CMD_PREADV, f, v, 0, 0));
	one("too many parts", request(IOCB_CMD_PREADV, f, v, 1025, 0));
	one("parts nowhere", request(IOCB_CMD_PREADV, f, (void *)8, 1, 0));
	struct iocb i = request(IOCB_CMD_PREAD, f, text, 1, 0);
	i.aio_reserved2 = 1;
	one("reserved", i);
	i.aio_reserved2 = 0;
	i.aio_rw_flags = 1 << 30;
	one("flags", i);
	i = request(IOCB_CMD_PWRITE, f, "end", 3, 0);
	i.aio_rw_flags = RWF_APPEND | RWF_DSYNC;
	one("appended", i);
	P(lseek(f, 0, SEEK_END));
	P(lseek(f, 0, SEEK_SET));
	int ro = open("aio.data", O_RDONLY), wo = open("aio.data", O_WRONLY);
	one("write what is read", request(IOCB_CMD_PWRITE, ro, "x", 1, 0));
	one("read what is written", request(IOCB_CMD_PREAD, wo, text, 1, 0));
	int dir = open(".", O_RDONLY);
	one("directory", request(IOCB_CMD_PREAD, dir, text, 1, 0));
	one("poll a file", request(IOCB_CMD_POLL, f, (void *)POLLIN, 0, 0));
	signal(SIGXFSZ, SIG_IGN);
	struct rlimit small = {1 << 20, RLIM_INFINITY};
	setrlimit(RLIMIT_FSIZE, &small);
	one("too far", request(IOCB_CMD_PWRITE, f, "x", 1, 1 << 20));
	one("just not", request(IOCB_CMD_PWRITE, f, "xy", 2, (1 << 20) - 1));
	small.rlim_cur = RLIM_INFINITY;
	setrlimit(RLIMIT_FSIZE, &small);

	SECTION("many");
	struct iocb many[8], *list[9];
	for (int n = 0; n < 8; n++) {
		many[n] = request(n % 2 ? IOCB_CMD_PREAD : IOCB_CMD_PWRITE, f, text + n * 8, 8, n / 2 * 8);
		list[n] = many + n;
	}
	many[6].aio_fildes = 99;
	V(submit_to(ctx, 8, list));
	V(submit_to(ctx, 2, list + 6));
	V(get(2, 3, e, -1));
	show(e);
	show(e + 2);
	V(get(1, 16, e, 0));
	show(e + 2);
	V(get(1, 16, e, 10));
	// The program may take events itself.
	many[6].aio_fildes = f;
	V(submit_to(ctx, 2, list + 6));
	P((ring->tail + ring->nr - ring->head) % ring->nr);
	show(&ring->events[ring->head]);
	ring->head = (ring->head + 1) % ring->nr;
	V(get(0, 16, e, 0));
	show(e);
	// More than fit: places that wait for their events to be taken are not free.
	long done = 0, r;
	while ((r = submit(many)) == 1)
		done++;
	printf("%s %d\n", err_(errno), done >= 8 && done < ring->nr);
	long taken = 0;
	while ((r = get(0, 16, e, 0)) > 0)
		taken += r;
	P(taken == done);
	for (int n = 0; n < 3000; n++)
		if (submit(many) != 1 || get(1, 1, e, -1) != 1 || e->res != 8)
			printf("at %d: %s\n", n, err_(errno));
	V(syscall(SYS_io_getevents, ctx, 0, 1, 8, 0));
	V(submit(many));
	V(syscall(SYS_io_getevents, ctx, 0, 1, 8, 0));
	V(get(1, 1, e, 0));

	SECTION("counted");
	int c = eventfd(0, EFD_NONBLOCK);
	uint64_t count = 0;
	i = request(IOCB_CMD_PREAD, f, text, 1, 0);
	i.aio_flags = IOCB_FLAG_RESFD;
	i.aio_resfd = c;
	one("with a counter", i);
	V(submit(&i));
	V(read(c, &count, 8));
	P(count);
	V(get(1, 1, e, 0));
	i.aio_resfd = 99;
	one("no counter", i);
	i.aio_resfd = f;
	one("a file for a counter", i);

	SECTION("pipes and sockets");
	int p[2], s[2];
	V(pipe(p));
	one("to a pipe", request(IOCB_CMD_PWRITE, p[1], "through", 7, 3));
	one("from a pipe", request(IOCB_CMD_PREAD, p[0], text, 100, 0));
	printf("%.7s\n", text);
	one("flush a pipe", request(IOCB_CMD_FSYNC, p[1], 0, 0, 0));
	fcntl(p[0], F_SETFL, O_NONBLOCK);
	one("nothing there", request(IOCB_CMD_PREAD, p[0], text, 100, 0));
	V(socketpair(AF_UNIX, SOCK_STREAM, 0, s));
	one("to a socket", request(IOCB_CMD_PWRITE, s[1], "across", 6, 0));
	one("from a socket", request(IOCB_CMD_PREAD, s[0], text, 100, 0));
	printf("%.6s\n", text);
	one("from the middle of a socket", request(IOCB_CMD_PREAD, s[0], text, 100, 1));

	SECTION("poll");
	one("ready", request(IOCB_CMD_POLL, p[1], (void *)(POLLIN | POLLOUT), 0, 0));
	one("events that are none", request(IOCB_CMD_POLL, p[0], (void *)0x10000, 0, 0));
	one("a place", request(IOCB_CMD_POLL, p[0], (void *)POLLIN, 0, 1));
	struct iocb w = request(IOCB_CMD_POLL, p[0], (void *)POLLIN, 0, 0);
	w.aio_flags = IOCB_FLAG_RESFD;
	w.aio_resfd = c;
	V(submit(&w));
	V(get(1, 1, e, 20));
	pthread_t t;
	void *value;
	pthread_create(&t, 0, writes_later, (void *)(long)p[1]);
	V(get(1, 1, e, -1));
	show_ready(e);
	pthread_join(t, &value);
	V(read(c, &count, 8));
	P(count);
	one("ready now", request(IOCB_CMD_POLL, p[0], (void *)POLLIN, 0, 0));
	V(read(p[0], text, 100));
	// The program sees it in the ring.
	w = request(IOCB_CMD_POLL, s[0], (void *)POLLIN, 0, 0);
	V(submit(&w));
	V(write(s[1], "x", 1));
	for (int n = 0; n < 2000 && ring->head == *(volatile unsigned *)&ring->tail; n++)
		sleep_ms(1);
	P(ring->head == ring->tail);
	V(get(1, 1, e, 0));
	show_ready(e);
	V(read(s[0], text, 100));
	w = request(IOCB_CMD_POLL, s[0], (void *)POLLIN, 0, 0);
	V(submit(&w));
	V(syscall(SYS_io_cancel, ctx, &w, e));
	V(get(1, 1, e, 1000));
	show_ready(e);
	V(syscall(SYS_io_cancel, ctx, &w, e));
	w.aio_key = 1;
	V(syscall(SYS_io_cancel, ctx, &w, e));
	V(syscall(SYS_io_cancel, ctx, 8, e));
	V(syscall(SYS_io_cancel, 0, &i, e));
	// Who waits for a file keeps it open.
	w = request(IOCB_CMD_POLL, p[0], (void *)POLLIN, 0, 0);
	V(submit(&w));
	close(p[0]);
	signal(SIGPIPE, SIG_IGN);
	V(write(p[1], "still", 5));
	V(get(1, 1, e, 1000));
	show_ready(e);
	for (int n = 0; n < 1000 && write(p[1], "x", 1) == 1; n++)
		sleep_ms(1);
	V(write(p[1], "gone", 4));
	one("to nobody", request(IOCB_CMD_PWRITE, p[1], "x", 1, 0));

	SECTION("interrupted");
	struct sigaction act = {.sa_handler = nothing, .sa_flags = SA_RESTART};
	sigaction(SIGUSR1, &act, 0);
	t = signal_later(SIGUSR1, 50);
	V(get(1, 1, e, -1));
	pthread_join(t, 0);
	sigset_t blocked;
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR1);
	sigprocmask(SIG_BLOCK, &blocked, 0);
	struct {
		const sigset_t *mask;
		size_t size;
	} set = {&blocked, 8};
	raise(SIGUSR1);
	struct timespec little = {0, 20000000};
	V(syscall(SYS_io_pgetevents, ctx, 1, 1, e, &little, &set));
	sigset_t open_;
	sigemptyset(&open_);
	set.mask = &open_;
	V(syscall(SYS_io_pgetevents, ctx, 1, 1, e, &little, &set));
	V(syscall(SYS_io_pgetevents, ctx, 1, 1, e, &little, 0));
	// What there is comes before the signal.
	V(submit(many));
	V(submit(many));
	t = signal_later(SIGUSR1, 50);
	V(syscall(SYS_io_pgetevents, ctx, 3, 16, e, 0, &set));
	pthread_join(t, 0);
	set.size = 4;
	V(syscall(SYS_io_pgetevents, ctx, 1, 1, e, &little, &set));
	V(syscall(SYS_io_pgetevents, ctx, 1, 1, e, &little, 8));

	SECTION("ends");
	pid_t child = begin_child(in_child);
	P(end_child(child));
	pthread_create(&t, 0, destroys_later, (void *)ctx);
	V(get(1, 1, e, -1));
	pthread_join(t, &value);
	P((long)value);
	V(submit(many));
	V(get(0, 1, e, 0));
	V(syscall(SYS_io_destroy, ctx));
	unsigned char in;
	V(mincore((void *)ctx, 4096, &in));
	ctx = 0;
	V(setup(1, &ctx));
	w = request(IOCB_CMD_POLL, s[0], (void *)POLLIN, 0, 0);
	w.aio_flags = IOCB_FLAG_RESFD;
	w.aio_resfd = c;
	V(submit(&w));
	V(syscall(SYS_io_destroy, ctx));
	V(read(c, &count, 8));
	unlink("aio.data");
}
