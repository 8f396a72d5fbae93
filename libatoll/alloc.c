/* A program's own allocator for what is large: see include/atoll.h.
 *
 * Blocks of 64 KiB and more are mappings of their own. Those that were freed are kept in a table, whose words say all there is to know of
 * one, where it is and how long; they are put there and taken out by one atomic operation. So there is no lock: who ends in the middle, is
 * interrupted in a signal handler, or forks, has at most one block with him that nobody finds again, and the thread that the cell asks for
 * memory never waits for one that waits for memory. What is small is the C library's, glibc's. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "include/atoll.h"

#include "calls.h"

#include <dlfcn.h>
#include <errno.h>
#include <linux/sched.h>
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

#define ALLOC_PAGE 4096UL
#define ALLOC_LARGE (64UL << 10)
/* More than any program has: what is added to it does not overflow. */
#define ALLOC_MOST (1UL << 46)
/* Kept outside of a cell as it is, bytes in all. Of more, the kernel may take the pages when it wants them. */
#define ALLOC_PLAIN (128UL << 20)
/* What calloc zeroes itself, at most, bytes: of more, perhaps not all is used. */
#define ALLOC_ZEROED (32UL << 20)
#define ALLOC_STACK (16UL << 10)

/* The C library's own, under the names that it has for those who take their place. */
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

/* In front of what the program has of a block. Nothing else of its 64 bytes is used: so it lies in the same 64 bytes as the C library's own
 * words in front of what it gives, and can be looked at whoever's the memory is. */
struct block {
    uint64_t magic; /* sealed by its address */
    uintptr_t base;
    size_t pages;
    size_t size; /* that was asked for last */
    uint64_t unused[4];
};
#define ALLOC_HEADER sizeof(struct block)

/* What is kept: 0, or a page's number and how many there are. 64 blocks for each doubling of the length, from 64 KiB to below 4 GiB. */
enum { CLASSES = 16, PLACES = 64, PAGES_BITS = 28 };
static uint64_t places[CLASSES * PLACES];
static size_t kept; /* bytes; a block that is on its way counts, too */
static size_t bound;
static unsigned next_dropped;

/* A page of its own, that the child of a fork finds zeroed: what is kept is the parent's then, and so is the thread that is asked. */
enum { FRESH, PREPARING, READY };
static struct {
    unsigned state;
    char rest[ALLOC_PAGE - sizeof(unsigned)];
} here __attribute__((aligned(4096)));

static size_t (*usable_of_libc)(void *);
static int (*trim_of_libc)(size_t);

static uint64_t seal(uintptr_t at)
{
    static uint64_t secret;
    uint64_t known = __atomic_load_n(&secret, __ATOMIC_RELAXED);
    if (known == 0) {
        /* Whoever comes first or second, it is the same. */
        memcpy(&known, (void *)getauxval(AT_RANDOM), sizeof known);
        known |= 1;
        __atomic_store_n(&secret, known, __ATOMIC_RELAXED);
    }
    return known ^ (at * 0x9e3779b97f4a7c15);
}

/* The block that an address of the program's is of; 0: it is the C library's. */
static struct block *block_of(void *p)
{
    struct block *b = (struct block *)p - 1;
    if (!p || (uintptr_t)p % ALLOC_HEADER)
        return 0;
    uint64_t magic = __atomic_load_n(&b->magic, __ATOMIC_RELAXED);
    if (magic == seal((uintptr_t)p))
        return b;
    if (magic == ~seal((uintptr_t)p)) {
        static const char text[] = "free(): a large block that is free already\n";
        call3(SYS_write, 2, (long)text, sizeof text - 1);
        abort();
    }
    return 0;
}

static int failed(long result)
{
    return (unsigned long)result > -4096UL;
}

static long map(size_t len)
{
    return call6(SYS_mmap, 0, (long)len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void unmap(uintptr_t base, size_t pages)
{
    /* The kernel may have no room for the two mappings that are left of one. */
    if (call3(SYS_munmap, (long)base, (long)(pages * ALLOC_PAGE), 0))
        call3(SYS_madvise, (long)base, (long)(pages * ALLOC_PAGE), MADV_DONTNEED);
}

static int log2_of(size_t pages)
{
    return 63 - __builtin_clzl(pages);
}

/* Which doubling. */
static int class_of(size_t pages)
{
    return pages < 32 ? 0 : log2_of(pages) - 4;
}

/* Whole pages, and such lengths that the next one is an eighth longer at most: blocks are found again by programs that ask for a little
 * less or more. */
static size_t pages_for(size_t bytes, int rounded)
{
    size_t pages = (bytes + ALLOC_PAGE - 1) / ALLOC_PAGE;
    size_t step = rounded && pages >= 16 ? 1UL << (log2_of(pages) - 3) : 1;
    return (pages + step - 1) & ~(step - 1);
}

static uint64_t word_of(uintptr_t base, size_t pages)
{
    return base / ALLOC_PAGE << PAGES_BITS | pages;
}

static uintptr_t base_in(uint64_t word)
{
    return (word >> PAGES_BITS) * ALLOC_PAGE;
}

static size_t pages_in(uint64_t word)
{
    return word & ((1UL << PAGES_BITS) - 1);
}

/* Takes a block out, if it is still there. */
static int take_out(uint64_t *place, uint64_t word)
{
    if (!__atomic_compare_exchange_n(place, &word, 0, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        return 0;
    __atomic_fetch_sub(&kept, pages_in(word) * ALLOC_PAGE, __ATOMIC_RELAXED);
    return 1;
}

/* Gives back so many bytes of what is kept, if there are as many; how many. In turn: what has been there for long goes. */
static size_t drop(size_t wanted)
{
    unsigned from = __atomic_load_n(&next_dropped, __ATOMIC_RELAXED);
    size_t dropped = 0;
    for (unsigned n = 0; n < CLASSES * PLACES && dropped < wanted; n++) {
        unsigned at = (from + n) % (CLASSES * PLACES);
        uint64_t word = __atomic_load_n(&places[at], __ATOMIC_RELAXED);
        if (word && take_out(&places[at], word)) {
            unmap(base_in(word), pages_in(word));
            dropped += pages_in(word) * ALLOC_PAGE;
            __atomic_store_n(&next_dropped, at + 1, __ATOMIC_RELAXED);
        }
    }
    return dropped;
}

static int in_cell(void)
{
    static int known; /* 1: no, 2: yes */
    int is = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (is == 0) {
        is = call3(HELLO, 0, 0, 0) > 0 ? 2 : 1;
        __atomic_store_n(&known, is, __ATOMIC_RELAXED);
    }
    return is == 2;
}

/* What the thread does that the cell asks. It asks when it needs some, so it is to be some more than that. */
static void serve(void)
{
    call3(SYS_prctl, PR_SET_NAME, (long)"atoll-alloc", 0);
    for (;;) {
        long wanted = call3(SHRINK, 0, 0, 0);
        if (wanted >= 0) {
            size_t part = __atomic_load_n(&kept, __ATOMIC_RELAXED) / 8;
            drop(part > (size_t)wanted ? part : (size_t)wanted);
        } else if (wanted != -EINTR) {
            call3(SYS_exit, 0, 0, 0);
        }
    }
}

/* A thread that the C library does not know: nothing waits for it, and a program whose last other thread ends does so, too. It takes no
 * signals, and uses nothing of the library's; its stack no child has. 0: there is none. */
static int start_thread(void)
{
    enum { FLAGS = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_SETTLS };
    uint64_t all = ~0UL, before;
    long stack = map(ALLOC_STACK), result;
    if (failed(stack))
        return 0;
    call3(SYS_madvise, stack, ALLOC_STACK, MADV_DONTFORK);
    /* What a thread's FS points at: itself, twice, and where compilers look for the stack's guard. */
    void **self = (void **)(stack + ALLOC_STACK - 64);
    self[0] = self[2] = self;
    call6(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all, (long)&before, 8, 0, 0);
    register long r10 __asm__("r10") = 0;
    register void *r8 __asm__("r8") = self;
    register void (*r9)(void) __asm__("r9") = serve;
    __asm__ volatile("syscall\n\t"
                     "test %%rax, %%rax\n\t"
                     "jnz 1f\n\t"
                     "xor %%ebp, %%ebp\n\t"
                     "call *%%r9\n"
                     "1:"
                     : "=a"(result)
                     : "0"((long)SYS_clone), "D"((long)FLAGS), "S"(self), "d"(0L), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    call6(SYS_rt_sigprocmask, SIG_SETMASK, (long)&before, 0, 8, 0, 0);
    if (failed(result))
        call3(SYS_munmap, stack, ALLOC_STACK, 0);
    return !failed(result);
}

/* A number of bytes, perhaps with K, M or G behind it. */
static size_t size_from(const char *text)
{
    size_t size = 0;
    for (; *text >= '0' && *text <= '9' && size < ALLOC_MOST; text++)
        size = size * 10 + (size_t)(*text - '0');
    int shift = *text == 'K' ? 10 : *text == 'M' ? 20 : *text == 'G' ? 30 : 0;
    return size < ALLOC_MOST >> shift ? size << shift : ALLOC_MOST;
}

/* Can blocks be kept? The first who comes here, in each process, sees to it; the others do without until then. */
static int prepare(unsigned state)
{
    struct sysinfo all = {0};
    const char *said = getenv("ATOLL_ALLOC_KEEP");
    if (state == PREPARING)
        return 0;
    /* Before it says anything: a child must not find it. */
    call3(SYS_madvise, (long)&here, sizeof here, MADV_WIPEONFORK);
    if (!__atomic_compare_exchange_n(&here.state, &state, PREPARING, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        return 0;
    /* Of a parent's: to use it would cost a copy, here and there. */
    drop(SIZE_MAX);
    __atomic_store_n(&kept, 0, __ATOMIC_RELAXED);
    call3(SYS_sysinfo, (long)&all, 0, 0);
    size_t most = said ? size_from(said) : all.totalram / 4 * all.mem_unit;
    /* What is kept must not be what the program lacks for something else. */
    static const int limits[] = {RLIMIT_AS, RLIMIT_DATA};
    for (unsigned n = 0; n < sizeof limits / sizeof *limits; n++) {
        struct rlimit limit;
        if (!call6(SYS_prlimit64, 0, limits[n], 0, (long)&limit, 0, 0) && most > limit.rlim_cur / 4)
            most = limit.rlim_cur / 4;
    }
    if (in_cell() && most > 0 && !start_thread() && most > ALLOC_PLAIN)
        most = ALLOC_PLAIN;
    __atomic_store_n(&bound, most, __ATOMIC_RELAXED);
    __atomic_store_n(&here.state, READY, __ATOMIC_RELEASE);
    return 1;
}

static int is_ready(void)
{
    unsigned state = __atomic_load_n(&here.state, __ATOMIC_ACQUIRE);
    return state == READY || prepare(state);
}

/* Where a thread begins to look: threads that have stacks of their own are seldom in each other's way. */
static unsigned first_place(void)
{
    return (unsigned)(((uintptr_t)__builtin_frame_address(0) >> 21) * 0x9e3779b97f4a7c15 >> 58) % PLACES;
}

/* The shortest kept block of `need` to `most` pages, or the first one of `enough` at most; 0: there is none. */
static uint64_t take(size_t need, size_t enough, size_t most)
{
    unsigned first = first_place();
    /* Another thread may be faster, but not for ever. */
    for (int tries = 0; tries < 4; tries++) {
        uint64_t best = 0, *place = 0;
        for (int class = class_of(need); class <= class_of(most) && class < CLASSES && !best; class++) {
            for (unsigned n = 0; n < PLACES && (!best || pages_in(best) > enough); n++) {
                uint64_t *at = &places[class * PLACES + (first + n) % PLACES];
                uint64_t word = __atomic_load_n(at, __ATOMIC_RELAXED);
                size_t pages = pages_in(word);
                if (pages >= need && pages <= most && (!best || pages < pages_in(best)))
                    best = word, place = at;
            }
        }
        if (!best)
            return 0;
        if (take_out(place, best))
            return best;
    }
    return 0;
}

static void keep(uintptr_t base, size_t pages)
{
    size_t bytes = pages * ALLOC_PAGE;
    int class = class_of(pages);
    if (!is_ready() || class >= CLASSES || bytes > __atomic_load_n(&bound, __ATOMIC_RELAXED)) {
        unmap(base, pages);
        return;
    }
    size_t all = __atomic_add_fetch(&kept, bytes, __ATOMIC_RELAXED);
    if (all > bound)
        drop(all - bound);
    if (all > ALLOC_PLAIN && !in_cell())
        call3(SYS_madvise, (long)base, (long)bytes, MADV_FREE);
    uint64_t word = word_of(base, pages), old = 0;
    unsigned first = first_place();
    for (unsigned n = 0; n < PLACES; n++) {
        uint64_t *at = &places[class * PLACES + (first + n) % PLACES];
        uint64_t none = 0;
        if (!__atomic_load_n(at, __ATOMIC_RELAXED) &&
            __atomic_compare_exchange_n(at, &none, word, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
            return;
    }
    /* In place of another one, not always the same. */
    unsigned at = __atomic_fetch_add(&next_dropped, 1, __ATOMIC_RELAXED) % PLACES;
    old = __atomic_exchange_n(&places[class * PLACES + at], word, __ATOMIC_ACQ_REL);
    if (old) {
        __atomic_fetch_sub(&kept, pages_in(old) * ALLOC_PAGE, __ATOMIC_RELAXED);
        unmap(base_in(old), pages_in(old));
    }
}

static void *set_block(uintptr_t base, size_t pages, uintptr_t at, size_t size)
{
    struct block *b = (struct block *)at - 1;
    b->base = base;
    b->pages = pages;
    b->size = size;
    __atomic_store_n(&b->magic, seal(at), __ATOMIC_RELEASE);
    return (void *)at;
}

/* A block for so many bytes at a multiple of `align`, a power of two. `used`: there may be anything in it. 0: there is no memory. */
static void *take_large(size_t size, size_t align, int *used)
{
    size_t bytes = size + ALLOC_HEADER + (align > ALLOC_HEADER ? align : 0);
    size_t need = pages_for(bytes, 0), pages = pages_for(bytes, 1);
    uint64_t word = is_ready() ? take(need, pages, need + need / 4) : 0;
    uintptr_t base = base_in(word);
    *used = word != 0;
    if (word) {
        pages = pages_in(word);
    } else {
        long mapped = map(pages * ALLOC_PAGE);
        if (failed(mapped) && drop(SIZE_MAX))
            mapped = map(pages * ALLOC_PAGE);
        if (failed(mapped))
            return 0;
        base = (uintptr_t)mapped;
    }
    uintptr_t at = align > ALLOC_HEADER ? (base + ALLOC_HEADER + align - 1) & -align : base + ALLOC_HEADER;
    return set_block(base, pages, at, size);
}

static int is_large(size_t size)
{
    return size >= ALLOC_LARGE && size <= ALLOC_MOST;
}

static void free_large(struct block *b, void *p)
{
    uint64_t magic = seal((uintptr_t)p);
    uintptr_t base = b->base;
    size_t pages = b->pages;
    /* Of two who free it at the same time, the second is told. */
    if (__atomic_compare_exchange_n(&b->magic, &magic, ~magic, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        keep(base, pages);
    else
        block_of(p);
}

/* Makes a block longer, with half as much beside if there is room, as who asks once asks again; 0: there is no memory. What was kept of such
 * a one is taken first, even if it is three times as long: its pages are there, and to copy some costs less than to have others brought in. */
static void *grow(struct block *b, void *p, size_t size)
{
    size_t offset = (uintptr_t)p - b->base, pages = b->pages;
    size_t more = pages_for(offset + size + size / 2, 1), least = pages_for(offset + size, 1);
    uint64_t word = is_ready() ? take(more, more, 3 * least) : 0;
    if (word) {
        void *larger = set_block(base_in(word), pages_in(word), base_in(word) + ALLOC_HEADER, size);
        memcpy(larger, p, pages * ALLOC_PAGE - offset);
        free_large(b, p);
        return larger;
    }
    long base = call6(SYS_mremap, (long)b->base, (long)(pages * ALLOC_PAGE), (long)(more * ALLOC_PAGE), MREMAP_MAYMOVE, 0, 0);
    if (failed(base)) {
        drop(SIZE_MAX);
        more = least;
        base = call6(SYS_mremap, (long)b->base, (long)(pages * ALLOC_PAGE), (long)(more * ALLOC_PAGE), MREMAP_MAYMOVE, 0, 0);
    }
    return failed(base) ? 0 : set_block((uintptr_t)base, more, (uintptr_t)base + offset, size);
}

static void *resize(struct block *b, void *p, size_t size)
{
    size_t offset = (uintptr_t)p - b->base, has = b->pages * ALLOC_PAGE - offset;
    if (size > has) {
        void *larger = size <= ALLOC_MOST ? grow(b, p, size) : 0;
        if (!larger && (larger = malloc(size)) != 0) {
            memcpy(larger, p, has);
            free_large(b, p);
        }
        return larger;
    }
    if (size < ALLOC_LARGE / 2) {
        void *small = __libc_malloc(size);
        if (!small)
            return p;
        memcpy(small, p, size);
        free_large(b, p);
        return small;
    }
    size_t pages = pages_for(offset + size, 1);
    /* What was taken ahead stays. */
    if (size < b->size / 2 && pages < b->pages) {
        unmap(b->base + pages * ALLOC_PAGE, b->pages - pages);
        b->pages = pages;
    }
    b->size = size;
    return p;
}

/* What has no such name is looked for in the library itself: a program may have yet another allocator before it. */
__attribute__((constructor)) static void find_libc(void)
{
    /* Before the program may forbid itself (seccomp(2)) what Linux doesn't know. */
    in_cell();
    void *libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    if (libc) {
        usable_of_libc = (size_t(*)(void *))dlsym(libc, "malloc_usable_size");
        trim_of_libc = (int (*)(size_t))dlsym(libc, "malloc_trim");
    }
}

/* Something was kept that the C library had no memory for: it may try again. */
static int may_try_again(size_t size)
{
    return size <= ALLOC_MOST && is_ready() && drop(SIZE_MAX) > 0;
}

/* What the program calls. Where there is no memory for a block, the C library may still have some, and says what is to be said if not. */

void *malloc(size_t size)
{
    int used;
    void *p = is_large(size) ? take_large(size, 1, &used) : 0;
    if (!p)
        p = __libc_malloc(size);
    return p || !may_try_again(size) ? p : __libc_malloc(size);
}

void free(void *p)
{
    struct block *b = block_of(p);
    if (b)
        free_large(b, p);
    else
        __libc_free(p);
}

void *calloc(size_t count, size_t each)
{
    size_t size;
    int used;
    void *p = !__builtin_mul_overflow(count, each, &size) && is_large(size) ? take_large(size, 1, &used) : 0;
    if (!p) {
        p = __libc_calloc(count, each);
        return p || each > ALLOC_MOST || !may_try_again(count) ? p : __libc_calloc(count, each);
    }
    if (used && size > ALLOC_ZEROED) {
        /* All but the page with the header. */
        uintptr_t from = ((uintptr_t)p + ALLOC_PAGE - 1) & -ALLOC_PAGE, to = (uintptr_t)p + size;
        if (!call3(SYS_madvise, (long)from, (long)(to - from), MADV_DONTNEED))
            size = from - (uintptr_t)p;
    }
    return used ? memset(p, 0, size) : p;
}

void *realloc(void *p, size_t size)
{
    struct block *b = block_of(p);
    if (!p)
        return malloc(size);
    if (b && size == 0) {
        free_large(b, p);
        return 0;
    }
    if (b)
        return resize(b, p, size);
    if (!is_large(size) || !usable_of_libc) {
        void *other = __libc_realloc(p, size);
        return other || size == 0 || !may_try_again(size) ? other : __libc_realloc(p, size);
    }
    /* It becomes large, as far as it isn't. */
    size_t has = usable_of_libc(p);
    int used;
    void *large = take_large(size, 1, &used);
    if (!large)
        return __libc_realloc(p, size);
    memcpy(large, p, has < size ? has : size);
    __libc_free(p);
    return large;
}

void *reallocarray(void *p, size_t count, size_t each)
{
    size_t size;
    if (__builtin_mul_overflow(count, each, &size)) {
        errno = ENOMEM;
        return 0;
    }
    return realloc(p, size);
}

void *memalign(size_t align, size_t size)
{
    int used, power = align && !(align & (align - 1));
    void *p = is_large(size) && power && align <= ALLOC_MOST ? take_large(size, align, &used) : 0;
    if (!p)
        p = __libc_memalign(align, size);
    return p || !may_try_again(size) ? p : __libc_memalign(align, size);
}

void *aligned_alloc(size_t align, size_t size)
{
    return memalign(align, size);
}

int posix_memalign(void **to, size_t align, size_t size)
{
    if (align % sizeof(void *) || !align || (align & (align - 1)))
        return EINVAL;
    int before = errno;
    void *p = memalign(align, size);
    errno = before;
    if (!p)
        return ENOMEM;
    *to = p;
    return 0;
}

void *valloc(size_t size)
{
    return memalign(ALLOC_PAGE, size);
}

void *pvalloc(size_t size)
{
    if (size > SIZE_MAX - ALLOC_PAGE) {
        errno = ENOMEM;
        return 0;
    }
    return memalign(ALLOC_PAGE, (size + ALLOC_PAGE - 1) & -ALLOC_PAGE);
}

size_t malloc_usable_size(void *p)
{
    struct block *b = block_of(p);
    if (b)
        return b->base + b->pages * ALLOC_PAGE - (uintptr_t)p;
    if (!usable_of_libc)
        find_libc();
    return p && usable_of_libc ? usable_of_libc(p) : 0;
}

int malloc_trim(size_t pad)
{
    int given = is_ready() && drop(SIZE_MAX) > 0;
    return (trim_of_libc && trim_of_libc(pad)) | given;
}

size_t atoll_allocator_kept(void)
{
    return is_ready() ? __atomic_load_n(&kept, __ATOMIC_RELAXED) : 0;
}

size_t atoll_allocator_drop(size_t wanted)
{
    return is_ready() ? drop(wanted) : 0;
}
