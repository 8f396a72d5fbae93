/* A program's own pager as a function: see include/atoll.h. By userfaultfd(2), whose faults come as SIGBUS to the thread that has them,
 * on Linux and in a cell alike. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "include/atoll.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

#define PAGER_PAGE 4096UL

/* A range, read in signal handlers while others change it: odd, it is being changed. len 0: none. */
static struct pager_range {
    unsigned version;
    uintptr_t start, len;
    atoll_pager_handler handler;
    void *arg;
} ranges[ATOLL_PAGERS_MAX];

/* Held by who changes ranges, and by who forks. */
static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction before;
static int ready;
static int descriptor = -1;

static int open_descriptor(void)
{
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY), failed;
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_SIGBUS};
    if (fd >= 0 && ioctl(fd, UFFDIO_API, &api)) {
        failed = errno;
        close(fd);
        errno = failed;
        return -1;
    }
    return fd;
}

static int enroll(int fd, uintptr_t start, uintptr_t len)
{
    struct uffdio_register r = {.range = {start, len}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    return ioctl(fd, UFFDIO_REGISTER, &r);
}

static void set_range(struct pager_range *r, uintptr_t start, uintptr_t len, atoll_pager_handler handler, void *arg)
{
    unsigned version = r->version;
    __atomic_store_n(&r->version, version + 1, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    __atomic_store_n(&r->start, start, __ATOMIC_RELAXED);
    __atomic_store_n(&r->len, len, __ATOMIC_RELAXED);
    __atomic_store_n(&r->handler, handler, __ATOMIC_RELAXED);
    __atomic_store_n(&r->arg, arg, __ATOMIC_RELAXED);
    __atomic_store_n(&r->version, version + 2, __ATOMIC_RELEASE);
}

/* The range that an address is in. */
static int find_range(uintptr_t addr, struct pager_range *found)
{
    for (int n = 0; n < ATOLL_PAGERS_MAX; n++) {
        struct pager_range *r = &ranges[n];
        do {
            /* Who changes it may be held up: what it changes is not this thread's range, or it is on its own. */
            found->version = __atomic_load_n(&r->version, __ATOMIC_ACQUIRE);
            found->start = __atomic_load_n(&r->start, __ATOMIC_RELAXED);
            found->len = __atomic_load_n(&r->len, __ATOMIC_RELAXED);
            found->handler = __atomic_load_n(&r->handler, __ATOMIC_RELAXED);
            found->arg = __atomic_load_n(&r->arg, __ATOMIC_RELAXED);
            __atomic_thread_fence(__ATOMIC_ACQUIRE);
        } while (found->version % 2 == 0 && found->version != __atomic_load_n(&r->version, __ATOMIC_RELAXED));
        if (found->version % 2 == 0 && addr - found->start < found->len)
            return 1;
    }
    return 0;
}

/* What would have come of the signal without this. */
static void pass_on(int signal, siginfo_t *info, void *context)
{
    struct sigaction own = {.sa_handler = SIG_DFL};
    if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(signal, info, context);
    } else if (before.sa_handler == SIG_IGN && info->si_code <= 0) {
        /* Somebody sent it. */
    } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
        before.sa_handler(signal);
    } else {
        sigaction(signal, &own, 0);
        if (info->si_code <= 0)
            raise(signal);
        /* Else it faults again, and ends by that. */
    }
}

static void on_bus_error(int signal, siginfo_t *info, void *context)
{
    int saved = errno, done = 0;
    struct pager_range r;
    uintptr_t addr = (uintptr_t)info->si_addr;
    if (info->si_code == BUS_ADRERR && find_range(addr, &r)) {
        int write = (((ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] & 2) != 0;
        done = r.handler(r.arg, (void *)(addr & ~(PAGER_PAGE - 1)), write) == 0;
    }
    if (!done)
        pass_on(signal, info, context);
    errno = saved;
}

static void before_fork(void)
{
    pthread_mutex_lock(&changing);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&changing);
}

/* A descriptor is for the address space that it was made in, and the child's ranges have no pager: it gets its own. */
static void in_child(void)
{
    int saved = errno, any = 0;
    for (int n = 0; n < ATOLL_PAGERS_MAX; n++)
        any |= ranges[n].len != 0;
    if (descriptor >= 0)
        close(descriptor);
    descriptor = any ? open_descriptor() : -1;
    for (int n = 0; n < ATOLL_PAGERS_MAX; n++) {
        struct pager_range *r = &ranges[n];
        /* Rather no access than zeroes. */
        if (r->len && (descriptor < 0 || enroll(descriptor, r->start, r->len)))
            mprotect((void *)r->start, r->len, PROT_NONE);
    }
    pthread_mutex_unlock(&changing);
    errno = saved;
}

/* With `changing` held: everything is there that ranges need. */
static int prepare(void)
{
    struct sigaction own = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_NODEFER};
    if (descriptor < 0 && (descriptor = open_descriptor()) < 0)
        return -1;
    if (!ready) {
        if ((errno = pthread_atfork(before_fork, after_fork, in_child)) != 0)
            return -1;
        sigemptyset(&own.sa_mask);
        /* Known before the handler is there: another thread may need it at once. */
        if (sigaction(SIGBUS, 0, &before) || sigaction(SIGBUS, &own, 0))
            return -1;
        ready = 1;
    }
    return 0;
}

int atoll_pager_register(void *addr, size_t len, atoll_pager_handler handler, void *arg)
{
    uintptr_t start = (uintptr_t)addr;
    struct pager_range *free_one = 0;
    int result = -1;
    if (start % PAGER_PAGE || len % PAGER_PAGE || len == 0 || start + len < start || !handler) {
        errno = EINVAL;
        return -1;
    }
    pthread_mutex_lock(&changing);
    for (int n = 0; n < ATOLL_PAGERS_MAX; n++) {
        if (ranges[n].len == 0) {
            free_one = free_one ? free_one : &ranges[n];
        } else if (start < ranges[n].start + ranges[n].len && ranges[n].start < start + len) {
            errno = EEXIST;
            goto out;
        }
    }
    if (!free_one) {
        errno = ENOSPC;
    } else if (prepare() == 0) {
        /* First this: who uses it at once comes by its handler. */
        set_range(free_one, start, len, handler, arg);
        result = enroll(descriptor, start, len);
        if (result) {
            int failed = errno;
            set_range(free_one, 0, 0, 0, 0);
            errno = failed;
        }
    }
out:
    pthread_mutex_unlock(&changing);
    return result;
}

int atoll_pager_unregister(void *addr, size_t len)
{
    int result = -1;
    errno = ENOENT;
    pthread_mutex_lock(&changing);
    for (int n = 0; n < ATOLL_PAGERS_MAX; n++) {
        if (len && ranges[n].start == (uintptr_t)addr && ranges[n].len == len) {
            struct uffdio_range r = {(uintptr_t)addr, len};
            result = ioctl(descriptor, UFFDIO_UNREGISTER, &r);
            /* What was unmapped meanwhile, or mapped anew, is nobody's range either. Else it is still asked for. */
            if (!result || errno == EINVAL)
                set_range(&ranges[n], 0, 0, 0, 0);
            break;
        }
    }
    pthread_mutex_unlock(&changing);
    return result;
}

/* Bytes of a range that are in place now, from `to` on; -1 and errno. */
static long long place(uintptr_t to, uintptr_t from, size_t len)
{
    struct uffdio_copy c = {.dst = to, .src = from, .len = len};
    struct uffdio_zeropage z = {.range = {to, len}};
    int failed = from ? ioctl(descriptor, UFFDIO_COPY, &c) : ioctl(descriptor, UFFDIO_ZEROPAGE, &z);
    long long done = from ? c.copy : z.zeropage;
    if (!failed)
        return (long long)len;
    return done > 0 ? done : -1;
}

int atoll_pager_provide(void *addr, const void *from, size_t len)
{
    uintptr_t to = (uintptr_t)addr;
    size_t at = 0;
    if (to % PAGER_PAGE || len % PAGER_PAGE || len == 0) {
        errno = EINVAL;
        return -1;
    }
    while (at < len) {
        long long done = place(to + at, from ? (uintptr_t)from + at : 0, len - at);
        if (done > 0)
            at += (size_t)done;
        else if (errno == EEXIST)
            at += PAGER_PAGE; /* Another thread was faster: it stays as it is. */
        else if (errno != EAGAIN)
            return -1;
    }
    return 0;
}
