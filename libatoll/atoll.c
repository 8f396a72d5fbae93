/* See include/atoll.h. */
#include "include/atoll.h"

#include "calls.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

static long call(long number, long a, long b)
{
    return call3(number, a, b, 0);
}

/* Linux has no call that answers with a small number above 0 here: it says ENOSYS, a filter may say something else. */
int atoll_in_cell(void)
{
    static int known; /* 1: no, 2: yes */
    int is = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (is == 0) {
        is = call(HELLO, 0, 0) > 0 ? 2 : 1;
        __atomic_store_n(&known, is, __ATOMIC_RELAXED);
    }
    return is == 2;
}

static int64_t answer(long result)
{
    if (result < 0) {
        errno = (int)-result;
        return -1;
    }
    return result;
}

atoll_activity atoll_activity_create(const char *name)
{
    return atoll_in_cell() ? answer(call(CREATE, (long)name, (long)strlen(name))) : 0;
}

/* A handle that isn't 0 comes from a cell: nothing else gives one. */
int atoll_activity_enter(atoll_activity activity)
{
    return activity == 0 ? 0 : (int)answer(call(ENTER, activity, 0));
}

int atoll_activity_leave(atoll_activity activity)
{
    return activity == 0 ? 0 : (int)answer(call(LEAVE, activity, 0));
}

int atoll_activity_end(atoll_activity activity)
{
    return activity == 0 ? 0 : (int)answer(call(END, activity, 0));
}

atoll_activity atoll_activity_current(void)
{
    return atoll_in_cell() ? answer(call(CURRENT, 0, 0)) : 0;
}

int64_t atoll_shrink_wait(void)
{
    return answer(atoll_in_cell() ? call(SHRINK, 0, 0) : -ENOSYS);
}

long atoll_pages_written(void *addr, size_t len, unsigned char *written)
{
    return answer(atoll_in_cell() ? call3(PAGES_WRITTEN, (long)addr, (long)len, (long)written) : -ENOSYS);
}

long atoll_pages_accessed(void *addr, size_t len, unsigned char *accessed)
{
    return answer(atoll_in_cell() ? call3(PAGES_ACCESSED, (long)addr, (long)len, (long)accessed) : -ENOSYS);
}

int atoll_pages_forget(void *addr, size_t len)
{
    return (int)answer(atoll_in_cell() ? call(PAGES_FORGET, (long)addr, (long)len) : -ENOSYS);
}

int atoll_pages_colour(void *addr, size_t len, unsigned colours, uint64_t wanted)
{
    return (int)answer(atoll_in_cell() ? call4(PAGES_COLOUR, (long)addr, (long)len, (long)colours, (long)wanted) : -ENOSYS);
}

int atoll_pages_frames(void *addr, size_t len, uint64_t *frames)
{
    return (int)answer(atoll_in_cell() ? call3(PAGES_FRAMES, (long)addr, (long)len, (long)frames) : -ENOSYS);
}

long atoll_pages_change(const struct atoll_pages_change *changes, size_t count)
{
    size_t done;
    if (atoll_in_cell())
        return answer(call(PAGES_CHANGE, (long)changes, (long)count));
    for (done = 0; done < count; done++) {
        const struct atoll_pages_change *c = &changes[done];
        int failed;
        if (c->what == ATOLL_PAGES_ACCESS) {
            failed = mprotect(c->addr, c->len, (int)c->access);
        } else if (c->what == ATOLL_PAGES_DISCARD) {
            failed = madvise(c->addr, c->len, MADV_DONTNEED);
        } else if (c->what == ATOLL_PAGES_UNMAP) {
            failed = munmap(c->addr, c->len);
        } else {
            errno = EINVAL;
            failed = -1;
        }
        if (failed)
            return done > 0 ? (long)done : -1;
    }
    return (long)done;
}
