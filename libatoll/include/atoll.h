/* What a program can say to the Atoll cell that it runs in, and Linux has no call for.
 *
 * Outside of a cell what says what is worked for does nothing and says that it worked, and what is about memory does the same by
 * Linux's calls or fails with ENOSYS, as it says: a program that uses it runs on Linux as it is.
 * Compile libatoll/atoll.c with your program (and libatoll/pager.c, if it has a pager), or link with libatoll.a, which
 * `cargo xtask build` makes of them; libatoll/alloc.c is an allocator, apart from them.
 *
 * An *activity* is what use is charged to: processor time, messages and bytes (docs/grid.md). Every process has one; with these
 * calls a program makes others below it, for whatever it works for: a connection, a query, a customer. `atoll stat` shows
 * them, as does /proc/atoll/activities. For the scheduler they are all of their process's class.
 */
#ifndef ATOLL_H
#define ATOLL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An activity of this process. 0: none, which is what there is outside of a cell. */
typedef int64_t atoll_activity;

/* 1 in a cell, 0 elsewhere. */
int atoll_in_cell(void);

/* Makes an activity. The name has 1 to 40 bytes. -1 and errno: EINVAL, a name that can't be; ENOSPC, there are as many
 * activities as a cell can have. Then the program goes on as before: entering, leaving and ending -1 fails with EINVAL, and
 * nothing is lost from the books. */
atoll_activity atoll_activity_create(const char *name);

/* From now on the calling thread works for it, and so do threads that it makes. One can be entered within another, 16
 * deep. 0, or -1 and errno: EINVAL, it has ended, or is another process's; ENOSPC, that is too deep. */
int atoll_activity_enter(atoll_activity activity);

/* The calling thread works for what it worked for before it entered. -1 and EINVAL: it is not this that it entered last. */
int atoll_activity_leave(atoll_activity activity);

/* Nobody can enter it any more, and when the last thread has left, what it has used is added to its process. -1 and
 * EINVAL: it has ended before. The end of the process and exec end all of its activities. */
int atoll_activity_end(atoll_activity activity);

/* The activity that the calling thread entered last and has not left; 0: none. */
atoll_activity atoll_activity_current(void);

/* Memory is short, in the cell or in the activity of the configuration that this process belongs to (`memory_max`), or the cell is to have less
 * (`atoll resize`): before a process is ended for that, or it is refused, threads are asked that wait here. A program's cache has a thread that does nothing else:
 *
 *     for (int64_t wanted; (wanted = atoll_shrink_wait()) >= 0;)
 *         cache_drop(wanted);
 *
 * The value is about how many bytes are wanted; pages count that were unmapped, or given back by madvise(MADV_DONTNEED). Who calls
 * again is done; who does not within half a second, or ends, is not waited for. -1 and errno: EINTR, a signal came; ENOSYS, there is no cell, and
 * nobody will ever ask. */
int64_t atoll_shrink_wait(void);

/* Which pages (4 KiB) of a range were written to since this was last asked, or brought in: bit n % 8 of written[n / 8] is page n,
 * for len / 4096 pages. Value: how many are set. Both address and length are multiples of 4096. The next time is told of what is
 * written after this has returned, by whichever thread, and by system calls.
 *
 * Pages that were written to are always among them; others may be, too. On the nucleus, where the page tables are the cell's own, their dirty
 * bits are read: each page is told by itself, and no write faults for it. Where a page of 2 MiB is mapped it is made small ones when the
 * range is asked about, which it stays. On the host the bits are emulated: the range is write-protected,
 * and the first write to a page faults (docs/memory.md has the costs). The second one in the same 64 KiB is noted for all of these, and
 * where eight such pieces of 2 MiB were noted, the third is for all of it. A child of fork begins with all pages.
 *
 * -1 and errno: ENOSYS, this is no cell, and the program has to find out otherwise; EINVAL, an address or a length that can't be, or some
 * of it is shared memory, or a file's mapping that can't be written to; ENOMEM, some of it is not mapped, or the host lets the
 * process have no more mappings, or there is no memory for page tables: then all pages are as if they had been written to. */
long atoll_pages_written(void *addr, size_t len, unsigned char *written);

/* The same of pages that were used, by being read, written to or run. On the nucleus they are the accessed bits, which a processor may set for
 * a page that it was only about to use. On the host these bits are emulated, too: the range loses all access, and
 * the first use of a page faults, as the first write does above, and is noted for as many pages. Both can be asked for of the same range. What
 * a system call reads or writes is used. */
long atoll_pages_accessed(void *addr, size_t len, unsigned char *accessed);

/* All processors forget what they remember of the page tables for a range (its TLB entries): the next use of each page walks them anew.
 * When it returns, all have that run this process. No contents and no access change by it: every call that changes a
 * mapping sees to this by itself, and so do those above. What can be seen is time, by who measures what TLB misses cost or wants to begin
 * without what was there before. More may be forgotten than was asked for. Nothing of the range has to be mapped. Both address and
 * length are multiples of 4096.
 *
 * 0, or -1 and errno: EINVAL, an address or a length that can't be; ENOSYS, the page tables are Linux's, which has no such call: outside of a
 * cell, and in one on the host. Where this works, the two above read the page tables' own bits. */
int atoll_pages_forget(void *addr, size_t len);

/* The most colours that frames can have. */
#define ATOLL_COLOURS_MAX 64

/* Pages of a range of private anonymous memory come only from frames of these colours from now on. A frame's colour is its number (physical
 * address / 4096) modulo `colours`, 1 to ATOLL_COLOURS_MAX, and bit n of `wanted` is colour n. Frames that fall to the same part of a cache
 * (or to the same bank, where addresses are not mixed up) have the same colour, if there are as many colours as such parts; how many that
 * is, the program has to know. 0 colours: from frames of any colour again.
 *
 * What is in the range is dropped: it reads as zeroes. Each page is brought in by itself, when it is first touched. If there is no free frame of its
 * colours at hand then, it comes from another one, as the program would else have to end; madvise(MADV_POPULATE_WRITE), mlock and their like
 * fail with ENOMEM, or stop, instead. atoll_pages_frames tells. The colours stay with the range when it is moved or made longer (mremap), its access
 * changes, or what is in it is dropped. A child of fork has copies, made at the fork, of the same colours likewise, so that such a fork takes
 * as long as to copy them. Of such memory it can't be said which pages were written to, and there can be no pager of the program's own.
 *
 * 0, or -1 and errno: EINVAL, an address or length that is no multiple of 4096, no such colours, or memory that is no private anonymous
 * memory, that grows downwards, or that has a pager; ENOMEM, some of it is not mapped; ENOSYS, nobody tells which frames there are:
 * outside of a cell, and in one on the host, whose frames are Linux's. */
int atoll_pages_colour(void *addr, size_t len, unsigned colours, uint64_t wanted);

/* The numbers of the frames that the pages of a range of the program's own are in, len / 4096 of them; 0: the page is not in place, or it is no
 * private memory. In a virtual machine they are that machine's. 0, or -1 and errno: EINVAL, an address or length that can't be; ENOMEM, some of it
 * is not mapped; EFAULT, there is no place for them; ENOSYS as above. */
int atoll_pages_frames(void *addr, size_t len, uint64_t *frames);

/* What becomes of a range of mappings: */
enum {
    ATOLL_PAGES_ACCESS = 0,  /* what it is, with this access (mprotect(2)) */
    ATOLL_PAGES_DISCARD = 1, /* zeroes, or its file, again (madvise(2), MADV_DONTNEED) */
    ATOLL_PAGES_UNMAP = 2    /* nothing (munmap(2)) */
};

struct atoll_pages_change {
    void *addr;      /* a multiple of 4096 */
    size_t len;      /* bytes */
    unsigned what;   /* ATOLL_PAGES_... */
    unsigned access; /* PROT_READ and so on, for ATOLL_PAGES_ACCESS */
};

/* Makes so many changes, in order, at the cost of one call. Other threads may see some of them made and others not. Outside of a cell
 * it makes Linux's calls. Value: how many were made; if that is not all, the next one can't be. -1 and errno: the first can't, for the
 * reasons that Linux's calls have. */
long atoll_pages_change(const struct atoll_pages_change *changes, size_t count);

/* A pager as a function: it provides the pages of a range when they are first touched, by computing them, say, or decompressing, or
 * reading as much ahead as is wise. In libatoll/pager.c; it works without privilege on Linux 5.11 or later (userfaultfd(2),
 * UFFD_USER_MODE_ONLY) and in a cell.
 *
 * It is called with the address of the page and whether the access is a write, in the thread that touched it: in a handler of SIGBUS, on the
 * thread's own stack, with SIGBUS not blocked. So it may touch other ranges, and what it may call is what a signal handler may
 * (signal-safety(7)): if pages are touched by code that has a lock, or in malloc, that is what it must not need. It ends by returning,
 * by pthread_exit, or by siglongjmp. 0: the page is there, by atoll_pager_provide; if it isn't, it is called again. Anything else: there is no
 * such page, and what would have come of SIGBUS before comes of it now: the handler that was there is called, or the process ends.
 * Several threads may be in it at the same time, for one page, too: who provides it first has provided it.
 *
 * A page that only a system call touches (read(2) into it, say) is not asked about: the call fails with EFAULT. */
typedef int (*atoll_pager_handler)(void *arg, void *page, int write);

/* Ranges that a process can have. */
#define ATOLL_PAGERS_MAX 64

/* From now on the handler is called for pages of a range of private anonymous memory that are not there. Pages that are there stay as
 * they are; in a cell, what holds nothing but zeroes counts as not there. The first call takes SIGBUS for itself (its handler passes on what
 * isn't its own, so a program that has one of its own installs that before), opens a descriptor, which the program must leave open,
 * and asks pthread_atfork for a word: a child of fork has the same pagers; if it can't, it has no access to these ranges. One that is made
 * past the C library has none, and finds zeroes. A thread that blocks SIGBUS ends the process by it.
 *
 * 0, or -1 and errno: EINVAL, an address or length that is no multiple of 4096, no handler, or memory that isn't mapped, or not
 * private and anonymous; EEXIST, some of it has such a pager; EBUSY, some of it has another one; ENOSPC, there are ATOLL_PAGERS_MAX; and what
 * userfaultfd(2) says: ENOSYS, EPERM (a filter's), EMFILE. */
int atoll_pager_register(void *addr, size_t len, atoll_pager_handler handler, void *arg);

/* The range, as it was registered, is like any other memory: what isn't there reads as zeroes. The caller sees to it that no other thread
 * is about to touch a page that isn't. Before the memory is unmapped, this is called: else its addresses stay taken. 0, or -1 and errno:
 * ENOENT, there is no such range; EINVAL, it is no longer mapped (and forgotten all the same). */
int atoll_pager_unregister(void *addr, size_t len);

/* Puts pages of registered ranges in place, a copy of what lies at `from` or, if that is 0, zeroes; those that are there stay as they
 * are. It can be called at any time, also for more pages than were asked for, and ahead of all faults. 0, or -1 and errno: EINVAL, an
 * address or length that is no multiple of 4096; ENOENT, some of it is in no registered range; EFAULT, `from` can't be read; ENOMEM, there is no
 * memory, or, in a cell, the host lets the process have no more mappings (docs/memory.md). Some pages may be in place then. */
int atoll_pager_provide(void *addr, const void *from, size_t len);

/* An allocator for what is large, in libatoll/alloc.c: malloc(3) and its kin for blocks of 64 KiB and more, in place of the C library's (glibc's),
 * which has what is smaller, also if the program has yet another one. A program needs no change for it: LD_PRELOAD names the object that
 * `cargo xtask build` makes of it, libatoll-alloc.so, or alloc.c is compiled with the program, which is linked dynamically.
 *
 * Blocks that are freed are kept, in a quarter of the memory there is at most (and of RLIMIT_AS and RLIMIT_DATA), and given out again as they are, without a fault. In a cell they
 * are given back when it is short of memory: the first large block starts a thread that waits in atoll_shrink_wait. The C library knows nothing
 * of it, it takes no signals, and it ends with the process; /proc shows it as atoll-alloc. Outside of a cell 128 MiB are kept as they are,
 * and of what is more the kernel takes the pages when it wants them (madvise(2), MADV_FREE). ATOLL_ALLOC_KEEP in the environment says another
 * bound, bytes or with K, M or G behind them; 0: nothing is kept, and no thread starts.
 *
 * It has no locks: what is large can be taken and freed in a signal handler, too, and it needs no word at fork, however that is made: a child keeps
 * nothing of its parent's. A thread that ends in the middle loses one block at most, and one that ends in the middle of its process's first large
 * block leaves the process with nothing kept. A block that is freed twice ends the process, as far
 * as it is noticed. mallinfo(3) and mallopt(3) are about what is small only; malloc_trim(3) gives back what is kept, too. */

/* Bytes that are kept. */
size_t atoll_allocator_kept(void);

/* Gives back so many bytes of what is kept, or all there are. Value: how many, whole blocks. */
size_t atoll_allocator_drop(size_t wanted);

#ifdef __cplusplus
}
#endif

#endif
