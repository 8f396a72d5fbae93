// What the cases about userfaultfd share.
#ifndef USERFAULT_H
#define USERFAULT_H
#include "case.h"
#include <linux/futex.h>
#include <linux/userfaultfd.h>
#include <stdatomic.h>
#include <sys/ioctl.h>

#define PAGE 4096UL

static inline char *memory(long pages)
{
	return mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

// A descriptor whose features are agreed on.
static inline int opened(int flags, unsigned long long features)
{
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC | flags);
	struct uffdio_api api = {.api = UFFD_API, .features = features};
	if (fd < 0 || ioctl(fd, UFFDIO_API, &api))
		printf("no userfaultfd: %s\n", err_(errno));
	return fd;
}

static inline int enroll(int fd, void *at, long pages, int mode)
{
	struct uffdio_register r = {.range = {(long)at, pages * PAGE}, .mode = mode};
	return ioctl(fd, UFFDIO_REGISTER, &r);
}

static inline int withdraw(int fd, void *at, long pages)
{
	struct uffdio_range r = {(long)at, pages * PAGE};
	return ioctl(fd, UFFDIO_UNREGISTER, &r);
}

static inline int wake(int fd, void *at, long pages)
{
	struct uffdio_range r = {(long)at, pages * PAGE};
	return ioctl(fd, UFFDIO_WAKE, &r);
}

// Value: pages, or an error below 0, as the program is told.
static inline long copy(int fd, void *to, const void *from, long pages, int mode)
{
	struct uffdio_copy c = {.dst = (long)to, .src = (long)from, .len = pages * PAGE, .mode = mode, .copy = 12345};
	int r = ioctl(fd, UFFDIO_COPY, &c), e = errno;
	if ((r == 0) != (c.copy == (long)c.len))
		printf("strange: %d and %lld\n", r, (long long)c.copy);
	errno = e;
	return r && c.copy <= 0 ? -1 : r && c.copy == 12345 ? -1 : c.copy / (long)PAGE;
}

static inline long zero(int fd, void *at, long pages)
{
	struct uffdio_zeropage z = {.range = {(long)at, pages * PAGE}, .zeropage = 12345};
	int r = ioctl(fd, UFFDIO_ZEROPAGE, &z);
	return r && (z.zeropage <= 0 || z.zeropage == 12345) ? -1 : z.zeropage / (long)PAGE;
}

static inline int protect(int fd, void *at, long pages, int mode)
{
	struct uffdio_writeprotect p = {.range = {(long)at, pages * PAGE}, .mode = mode};
	return ioctl(fd, UFFDIO_WRITEPROTECT, &p);
}

// What page n of a mapping is filled with.
static inline void fill(char *page, long n)
{
	for (long i = 0; i < (long)PAGE; i++)
		page[i] = (char)(n * 31 + i % 127 + 1);
}

static inline int is_filled(const char *page, long n)
{
	for (long i = 0; i < (long)PAGE; i++)
		if (page[i] != (char)(n * 31 + i % 127 + 1))
			return 0;
	return 1;
}

// A thread that is the pager.
static char *area;
static int pager_fd;
static atomic_long reads, writes, kept, strange, wakes;
static atomic_int mode_of_copies;

// Puts pages in place, or lets writes through, until it is told to stop by the pipe.
static int stop[2];
static inline void *pager(void *unused)
{
	(void)unused;
	static char page[PAGE];
	for (;;) {
		struct pollfd p[2] = {{.fd = pager_fd, .events = POLLIN}, {.fd = stop[0], .events = POLLIN}};
		poll(p, 2, -1);
		if (p[1].revents)
			return 0;
		struct uffd_msg m[4];
		long n = read(pager_fd, m, sizeof m);
		for (long i = 0; i < n / (long)sizeof *m; i++) {
			char *at = (char *)m[i].arg.pagefault.address;
			unsigned long flags = m[i].arg.pagefault.flags;
			if (m[i].event != UFFD_EVENT_PAGEFAULT || (long)at % (long)PAGE)
				strange++;
			if (flags & UFFD_PAGEFAULT_FLAG_WP) {
				kept++;
				// Whoever is held up has nothing that this needs.
				static int lock;
				syscall(SYS_futex, &lock, FUTEX_LOCK_PI, 0, 0, 0, 0);
				syscall(SYS_futex, &lock, FUTEX_UNLOCK_PI, 0, 0, 0, 0);
				if (protect(pager_fd, at, 1, 0))
					strange++;
				continue;
			}
			*(flags & UFFD_PAGEFAULT_FLAG_WRITE ? &writes : &reads) += 1;
			fill(page, (at - area) / (long)PAGE);
			if (copy(pager_fd, at, page, 1, mode_of_copies) != 1) {
				// Another thread's fault was there first.
				wakes++;
				wake(pager_fd, at, 1);
			}
		}
	}
}

static inline pthread_t begin(int fd)
{
	pthread_t t;
	pager_fd = fd;
	reads = writes = kept = strange = wakes = 0;
	mode_of_copies = 0;
	if (pipe(stop))
		abort();
	pthread_create(&t, 0, pager, 0);
	return t;
}

static inline void end(pthread_t t)
{
	close(stop[1]);
	pthread_join(t, 0);
	close(stop[0]);
	// How often two threads come to a page at the same time is not said.
	reads -= wakes;
	printf("asked: %ld for reads, %ld for writes, %ld for writes to what was kept; strange: %ld\n", (long)reads,
	       (long)writes, (long)kept, (long)strange);
}
#endif
