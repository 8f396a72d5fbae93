/* What a call costs that a serving thread could make for a cell, ns: by itself, by an io_uring that is entered for each, and
 * by one that is entered for eight; in a cell, which has no io_uring, the first.
 * service SECONDS, in a directory of the file system that is measured. */
#define _GNU_SOURCE
#include "common.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { BATCH = 8, LARGE = 64 << 10, FILE_SIZE = 4 << 20 };

static int ring, file, ends[BATCH][2];
static unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail;
static struct io_uring_sqe *entries;
static struct io_uring_cqe *done;
static unsigned *cq_mask;
static char buffers[BATCH][LARGE];
static struct statx told[BATCH];

static void *map(size_t length, off_t what)
{
	void *at = mmap(0, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, what);
	if (at == MAP_FAILED)
		fail("mapping the ring");
	return at;
}

static void make_ring(void)
{
	struct io_uring_params p = {.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN};
	ring = syscall(SYS_io_uring_setup, BATCH, &p);
	if (ring < 0)
		return;
	char *sq = map(p.sq_off.array + p.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
	char *cq = map(p.cq_off.cqes + p.cq_entries * sizeof *done, IORING_OFF_CQ_RING);
	entries = map(p.sq_entries * sizeof *entries, IORING_OFF_SQES);
	sq_tail = (void *)(sq + p.sq_off.tail);
	sq_mask = (void *)(sq + p.sq_off.ring_mask);
	sq_array = (void *)(sq + p.sq_off.array);
	cq_head = (void *)(cq + p.cq_off.head);
	cq_tail = (void *)(cq + p.cq_off.tail);
	cq_mask = (void *)(cq + p.cq_off.ring_mask);
	done = (void *)(cq + p.cq_off.cqes);
}

/* An operation: by a plain call, and as an entry of the ring. */
struct operation {
	const char *name;
	long (*plain)(int n);
	struct io_uring_sqe entry;
	int buffer; /* Does it take one? */
};

static off_t place(int n) { return (off_t)n * LARGE; }
static long read_small(int n) { return pread(file, buffers[n], 4096, place(n)); }
static long read_large(int n) { return pread(file, buffers[n], LARGE, place(n)); }
static long write_small(int n) { return pwrite(file, buffers[n], 4096, place(n)); }
static long look(int n) { return statx(AT_FDCWD, "file", 0, STATX_BASIC_STATS, &told[n]); }
static long to_disk(int n) { return pwrite(file, buffers[n], 4096, place(n)) < 0 ? -1 : fdatasync(file); }
static long open_it(int n)
{
	int fd = openat(AT_FDCWD, "file", O_RDONLY);
	return fd < 0 || n < 0 ? -1 : close(fd);
}
static long by_socket(int n)
{
	return send(ends[n][0], buffers[n], 64, 0) < 0 ? -1 : recv(ends[n][1], buffers[n], 64, 0);
}

/* Enters `count` of them, and takes their answers. */
static void by_ring(const struct operation *o, int count)
{
	unsigned tail = *sq_tail;
	for (int n = 0; n < count; n++) {
		unsigned at = (tail + n) & *sq_mask;
		entries[at] = o->entry;
		if (o->buffer) {
			entries[at].addr = (unsigned long)buffers[n];
			entries[at].off = o->entry.fd == file ? place(n) : 0;
		}
		if (o->entry.opcode == IORING_OP_SEND || o->entry.opcode == IORING_OP_RECV)
			entries[at].fd = ends[n][o->entry.opcode == IORING_OP_RECV];
		if (o->entry.opcode == IORING_OP_STATX)
			entries[at].off = (unsigned long)&told[n];
		sq_array[at] = at;
	}
	__atomic_store_n(sq_tail, tail + count, __ATOMIC_RELEASE);
	if (syscall(SYS_io_uring_enter, ring, count, count, IORING_ENTER_GETEVENTS, 0, 0) != count)
		fail("io_uring_enter");
	unsigned head = *cq_head;
	for (; head != __atomic_load_n(cq_tail, __ATOMIC_ACQUIRE); head++) {
		int result = done[head & *cq_mask].res;
		if (result < 0) {
			errno = -result;
			fail(o->name);
		}
		if (o->entry.opcode == IORING_OP_OPENAT)
			close(result);
	}
	__atomic_store_n(cq_head, head, __ATOMIC_RELEASE);
}

/* What is behind another, of the same request: the rest of a write to the device, and of a message by a socket. */
static void rest_by_ring(const struct operation *o, int count)
{
	if (o->plain == to_disk)
		by_ring(&(struct operation){.name = "fdatasync", .entry = {.opcode = IORING_OP_FSYNC, .fd = file, .fsync_flags = IORING_FSYNC_DATASYNC}}, count);
	if (o->plain == by_socket)
		by_ring(&(struct operation){.name = "recv", .entry = {.opcode = IORING_OP_RECV, .len = 64}, .buffer = 1}, count);
}

static void measure(const struct operation *o, double seconds)
{
	double times[3] = {0};
	for (int way = 0; way < (ring < 0 ? 1 : 3); way++) {
		int count = way == 2 ? BATCH : 1;
		long made = 0;
		double begun = now(), end = begun + seconds * 1e9, at = begun;
		while (at < end) {
			for (int i = 0; i < 16; i += count, made += count) {
				if (way == 0 && o->plain(i % BATCH) < 0)
					fail(o->name);
				if (way > 0) {
					by_ring(o, count);
					rest_by_ring(o, count);
				}
			}
			at = now();
		}
		times[way] = (at - begun) / made;
	}
	printf("%s\t%.1f\t%.1f\t%.1f\n", o->name, times[0], times[1], times[2]);
}

static void connect_ends(int *pair)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof a;
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	pair[0] = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(listener, (void *)&a, length) || listen(listener, 1) || getsockname(listener, (void *)&a, &length) ||
	    connect(pair[0], (void *)&a, length) || (pair[1] = accept(listener, 0, 0)) < 0)
		fail("a connection");
	close(listener);
}

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : 1;
	file = open("file", O_RDWR | O_CREAT | O_TRUNC, 0600);
	for (int n = 0; n < FILE_SIZE / LARGE; n++)
		if (pwrite(file, buffers[0], LARGE, place(n)) != LARGE)
			fail("file");
	for (int n = 0; n < BATCH; n++)
		connect_ends(ends[n]);
	make_ring();
	unsigned long path = (unsigned long)"file";
	const struct operation all[] = {
		{"pread of 4 KiB, cached", read_small, {.opcode = IORING_OP_READ, .fd = file, .len = 4096}, 1},
		{"pread of 64 KiB, cached", read_large, {.opcode = IORING_OP_READ, .fd = file, .len = LARGE}, 1},
		{"pwrite of 4 KiB", write_small, {.opcode = IORING_OP_WRITE, .fd = file, .len = 4096}, 1},
		{"pwrite of 4 KiB and fdatasync", to_disk, {.opcode = IORING_OP_WRITE, .fd = file, .len = 4096}, 1},
		{"openat and close", open_it, {.opcode = IORING_OP_OPENAT, .fd = AT_FDCWD, .addr = path, .open_flags = O_RDONLY}, 0},
		{"statx", look, {.opcode = IORING_OP_STATX, .fd = AT_FDCWD, .addr = path, .len = STATX_BASIC_STATS}, 0},
		{"send and recv of 64 bytes", by_socket, {.opcode = IORING_OP_SEND, .len = 64}, 1},
	};
	for (size_t n = 0; n < sizeof all / sizeof *all; n++)
		measure(&all[n], seconds);
	return unlink("file");
}
