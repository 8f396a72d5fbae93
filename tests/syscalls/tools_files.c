// Contents: positions, vectors, limits, holes, appends, locks, large files, sizes that change under an open file.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <spawn.h>
#include <unistd.h>

#define SAY(call) do { errno = 0; long r_ = (long)(call); printf("%s = %ld %s\n", #call, r_ < 0 ? -1 : r_, r_ < 0 ? strerrorname_np(errno) : ""); } while (0)
#define OK(call) do { errno = 0; if ((long)(call) < 0) printf("%s: %s\n", #call, strerrorname_np(errno)); } while (0)

static int xfsz;
static void on_xfsz(int s) { (void)s; xfsz++; }
static long size(int fd) { struct stat s; return fstat(fd, &s) ? -1 : (long)s.st_size; }
static int lock(int fd, int cmd, short type, long start, long len) { struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len}; int r = fcntl(fd, cmd, &l); if (cmd == F_GETLK || cmd == F_OFD_GETLK) printf("  type %d start %ld len %ld pid %s\n", l.l_type, l.l_type == F_UNLCK ? 0 : (long)l.l_start, l.l_type == F_UNLCK ? 0 : (long)l.l_len, l.l_pid == -1 ? "-1" : l.l_type == F_UNLCK ? "-" : "some"); return r; }
static int other;
static void *waiter(void *arg) { (void)arg; return (void *)(long)(flock(other, LOCK_EX) == 0); }

int main(int argc, char **argv) {
    char b[256] = {0};
    if (argc > 1) {
        // The other process: what it may lock while the first one holds its locks.
        int fd = open("locked", O_RDWR); SAY(lock(fd, F_SETLK, F_WRLCK, 0, 10)); SAY(lock(fd, F_SETLK, F_RDLCK, 0, 10)); SAY(lock(fd, F_SETLK, F_RDLCK, 20, 5)); SAY(lock(fd, F_SETLK, F_WRLCK, 20, 5)); SAY(lock(fd, F_SETLK, F_WRLCK, 40, 0)); SAY(lock(fd, F_GETLK, F_WRLCK, 0, 0)); SAY(lock(fd, F_GETLK, F_RDLCK, 22, 1)); SAY(lock(fd, F_OFD_GETLK, F_WRLCK, 0, 1)); SAY(flock(fd, LOCK_EX | LOCK_NB)); SAY(flock(fd, LOCK_SH | LOCK_NB)); fflush(stdout); return 7;
    }
    setvbuf(stdout, NULL, _IOFBF, 1 << 16);
    int fd = open("f", O_CREAT | O_RDWR | O_TRUNC, 0644);
    struct iovec v[3] = {{"abc", 3}, {"", 0}, {"defgh", 5}}; SAY(writev(fd, v, 3)); SAY(pwritev(fd, v, 3, 100)); SAY(size(fd)); SAY(lseek(fd, 0, SEEK_CUR)); SAY(lseek(fd, -3, SEEK_END)); SAY(read(fd, b, 10)); SAY(strncmp(b, "fgh", 3)); SAY(pread(fd, b, 10, 50)); SAY(b[0]); SAY(pread(fd, b, 10, 1000)); SAY(pread(fd, b, 10, -1)); SAY(lseek(fd, -1, SEEK_SET)); SAY(lseek(fd, 5000, SEEK_SET)); SAY(write(fd, "z", 1)); SAY(size(fd)); SAY(read(fd, b, 1)); struct iovec r[2] = {{b, 4}, {b + 4, 100}}; SAY(preadv(fd, r, 2, 0)); SAY(memcmp(b, "abcdefgh\0", 9)); SAY(writev(fd, v, 1025)); SAY(writev(fd, v, -1)); SAY(read(fd, (void *)8, 10)); SAY(write(fd, (void *)8, 10)); SAY(read(fd, b, 0)); SAY(write(fd, (void *)8, 0));
    // O_APPEND: to the end wherever the position is, pwrite too.
    int a = open("f", O_WRONLY | O_APPEND); SAY(lseek(a, 0, SEEK_SET)); SAY(write(a, "end", 3)); SAY(lseek(a, 0, SEEK_CUR)); SAY(pwrite(a, "!", 1, 0)); SAY(size(fd)); SAY(pread(fd, b, 10, 5001)); SAY(memcmp(b, "end!", 4)); SAY(fcntl(a, F_SETFL, 0)); SAY(pwrite(a, "A", 1, 0)); SAY(pread(fd, b, 1, 0)); SAY(b[0]); SAY(fcntl(fd, F_SETFL, O_APPEND)); SAY(write(fd, "more", 4)); SAY(size(a)); SAY(ftruncate(fd, 10)); SAY(write(fd, "x", 1)); SAY(size(a)); SAY(fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND)); OK(fcntl(fd, F_SETFL, 0));
    SAY(ftruncate(fd, 200000)); SAY(pread(fd, b, 5, 199998)); SAY(ftruncate(fd, 3)); SAY(ftruncate(fd, 8)); SAY(pread(fd, b, 20, 0)); SAY(memcmp(b, "Abc\0\0\0\0\0", 8)); int ro = open("f", O_RDONLY); SAY(ftruncate(ro, 0)); SAY(write(ro, "x", 1)); int wo = open("f", O_WRONLY); SAY(read(wo, b, 1)); SAY(ftruncate(fd, -1)); SAY(truncate("f", 6)); SAY(size(ro)); SAY(open("f", O_WRONLY | O_TRUNC) >= 0); SAY(size(ro)); SAY(pread(ro, b, 1, 0));
    // Holes, and ranges taken out of a file.
    SAY(ftruncate(fd, 1 << 20)); OK(pwrite(fd, "data", 4, 1 << 19)); SAY(lseek(fd, 0, SEEK_DATA) == 1 << 19); SAY(lseek(fd, 0, SEEK_HOLE)); SAY(lseek(fd, 1 << 19, SEEK_HOLE) == (1 << 19) + 4096); SAY(lseek(fd, (1 << 19) + 8192, SEEK_DATA)); SAY(lseek(fd, 1 << 21, SEEK_DATA)); SAY(lseek(fd, 1 << 20, SEEK_HOLE)); SAY(fallocate(fd, 0, 0, 8192)); SAY(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 1 << 19, 4096)); SAY(pread(fd, b, 4, 1 << 19)); SAY(b[0]); SAY(fallocate(fd, FALLOC_FL_KEEP_SIZE, 1 << 20, 4096)); SAY(size(fd)); SAY(fallocate(fd, 0, 1 << 20, 10)); SAY(size(fd)); SAY(fallocate(fd, 0, 0, 0)); SAY(fallocate(ro, 0, 0, 1)); SAY(posix_fallocate(fd, 0, 100));
    // A very large file.
    SAY(ftruncate(fd, 10L << 30)); SAY(pwrite(fd, "far", 3, (10L << 30) - 3)); SAY(lseek(fd, -3, SEEK_END)); SAY(read(fd, b, 10)); SAY(memcmp(b, "far", 3)); SAY(ftruncate(fd, 0));
    // Copies inside the kernel.
    OK(pwrite(fd, "0123456789", 10, 0)); int to = open("g", O_CREAT | O_RDWR | O_TRUNC, 0644); OK(lseek(fd, 2, SEEK_SET)); SAY(sendfile(to, fd, NULL, 100)); SAY(lseek(fd, 0, SEEK_CUR)); off_t at = 5; SAY(sendfile(to, fd, &at, 3)); SAY(at); SAY(lseek(fd, 0, SEEK_CUR)); off64_t from = 0, into = 1; SAY(copy_file_range(fd, &from, to, &into, 4, 0)); SAY(from * 10 + into); memset(b, 0, sizeof b); SAY(pread(to, b, 100, 0)); puts(b); SAY(copy_file_range(fd, NULL, ro, NULL, 1, 0)); int p[2]; OK(pipe(p)); at = 3; SAY(splice(fd, &at, p[1], NULL, 4, 0)); memset(b, 0, sizeof b); SAY(read(p[0], b, 100)); puts(b); SAY(sendfile(p[1], fd, NULL, 5));
    // A file mapped and written both ways.
    OK(ftruncate(to, 8192)); char *m = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, to, 0); SAY(m != MAP_FAILED); m[5] = 'M'; SAY(pread(to, b, 6, 0)); SAY(b[5]); OK(pwrite(to, "W", 1, 4096)); SAY(m[4096]); memcpy(m + 100, "through the map", 15); SAY(msync(m, 8192, MS_SYNC)); SAY(pread(ro, b, 1, 0)); SAY(write(fd, m, 8192)); SAY(pread(to, m + 4000, 200, 0)); SAY(munmap(m, 8192)); SAY(pread(to, b, 15, 100)); printf("%.15s\n", b);
    // A write from pages that were never touched, and a read into such pages, are whole.
    char *fresh = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0); SAY(pwrite(fd, fresh, 1 << 20, 0)); fresh = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); SAY(pread(fd, fresh, 1 << 20, 0)); OK(mprotect(fresh + 4096, 4096, PROT_NONE)); SAY(pread(fd, fresh, 10000, 0)); SAY(pwrite(fd, fresh, 10000, 0)); SAY(pwrite(fd, fresh + 4096, 10, 0));
    // RLIMIT_FSIZE.
    signal(SIGXFSZ, on_xfsz); struct rlimit l = {1000, RLIM_INFINITY}; OK(ftruncate(fd, 0)); OK(setrlimit(RLIMIT_FSIZE, &l)); SAY(pwrite(fd, fresh + 8192, 900, 0)); SAY(pwrite(fd, fresh + 8192, 900, 900)); SAY(pwrite(fd, fresh + 8192, 1, 1000)); SAY(ftruncate(fd, 1001)); SAY(ftruncate(fd, 1000)); SAY(fallocate(fd, 0, 0, 2000)); SAY(truncate("f", 5000)); SAY(xfsz); l.rlim_cur = RLIM_INFINITY; OK(setrlimit(RLIMIT_FSIZE, &l));
    // Locks: of the process, of the open file, of the whole file.
    int k = open("locked", O_CREAT | O_RDWR, 0644), k2 = open("locked", O_RDWR); SAY(lock(k, F_SETLK, F_WRLCK, 0, 10)); SAY(lock(k2, F_SETLK, F_WRLCK, 5, 10)); SAY(lock(k, F_SETLK, F_UNLCK, 12, 1)); SAY(lock(k, F_SETLK, F_RDLCK, 20, 5)); SAY(lock(k2, F_OFD_SETLK, F_WRLCK, 0, 1)); SAY(lock(k2, F_OFD_SETLK, F_WRLCK, 100, 1)); SAY(lock(k, F_SETLK, F_WRLCK, 100, 1)); SAY(lock(k, F_GETLK, F_WRLCK, 100, 1)); SAY(flock(k, LOCK_SH)); SAY(flock(k2, LOCK_SH)); SAY(flock(k, LOCK_EX | LOCK_NB)); SAY(lock(ro, F_SETLK, F_WRLCK, 0, 1)); SAY(lock(wo, F_SETLK, F_RDLCK, 0, 1)); SAY(lock(k, F_SETLK, 9, 0, 1)); SAY(lock(k, F_SETLK, F_WRLCK, -5, 1)); SAY(lock(k, F_SETLK, F_RDLCK, 30, -5)); SAY(flock(k, 77)); SAY(flock(999, LOCK_SH));
    fflush(stdout); pid_t pid; char *args[] = {argv[0], "other", NULL}; int status; extern char **environ; OK(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, args, environ)); OK(waitpid(pid, &status, 0)); SAY(WEXITSTATUS(status)); OK(close(dup(k))); OK(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, args, environ)); OK(waitpid(pid, &status, 0)); SAY(WEXITSTATUS(status));
    SAY(flock(k, LOCK_UN)); SAY(flock(k2, LOCK_EX)); other = open("locked", O_RDWR); pthread_t t; void *got; pthread_create(&t, NULL, waiter, NULL); usleep(30000); puts("letting go"); SAY(close(k2)); pthread_join(t, &got); SAY(got != NULL); SAY(flock(k, LOCK_SH | LOCK_NB)); int d = dup(other); SAY(close(other)); SAY(flock(k, LOCK_SH | LOCK_NB)); SAY(close(d)); SAY(flock(k, LOCK_SH | LOCK_NB));
    SAY(fsync(fd)); SAY(fdatasync(fd)); SAY(fsync(p[0])); SAY(syncfs(fd)); SAY(close(fd)); SAY(close(fd)); SAY(fsync(fd)); SAY(posix_fadvise(to, 0, 0, POSIX_FADV_DONTNEED)); SAY(readahead(to, 0, 100)); SAY(sync_file_range(to, 0, 0, SYNC_FILE_RANGE_WRITE));
    return 0;
}
