// A program that attacks its host from inside a cell. It takes the runtime's
// place: it makes host calls from the addresses that may make them, and talks
// to the supervisor by the rings itself. Every line that it prints is an
// attack and how it went; one that got through begins with "THROUGH".
//
// Arguments: what to do; then numbers of the contract, from the test.
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <linux/futex.h>
#include <unistd.h>

static unsigned long runtime, control, direct_map, memory_fd_at, log_fd_at, socket_fd_at, memory_at, requests_at, answers_at, sleepers_at,
	bell_at, victim, port;
static char allowed[1024];
static int through;

// The runtime's own `clone` ends like this: the result is tested, and if it
// is not zero there is a return. Good for one call whose result is not zero.
static long by_gadget(void *gadget, long n, long a, long b, long c, long d, long e, long f)
{
	long ret;
	register long r10 asm("r10") = d;
	register long r8 asm("r8") = e;
	register long r9 asm("r9") = f;
	asm volatile("call *%%rbx"
		     : "=a"(ret)
		     : "b"(gadget), "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
		     : "rcx", "r11", "memory");
	return ret;
}

static void *own_code;

static long raw(long n, long a, long b, long c, long d, long e, long f)
{
	return by_gadget(own_code, n, a, b, c, d, e, f);
}

static char text[1 << 16];
static unsigned length;

// Into memory: printing would go through the runtime.
static void say(const char *format, ...)
{
	va_list list;
	va_start(list, format);
	length += vsnprintf(text + length, sizeof text - length, format, list);
	va_end(list);
	if (length >= sizeof text)
		length = sizeof text - 1;
}

static void attack(const char *name, long result)
{
	int got = result >= 0 || result == -EFAULT || result == -EINVAL || result == -EBADF;
	through += got;
	say("%s %s: %ld\n", got ? "THROUGH" : "refused", name, result);
}

// Makes [runtime + 24 MiB] a page of our own code: a system call and a return.
static int take_over(void)
{
	const unsigned char *p = (void *)runtime;
	static const unsigned char pattern[] = { 0x0f, 0x05, 0x48, 0x85, 0xc0, 0x74 };
	// Its text, by its headers: there may be nothing at all between what can only be read and that.
	const Elf64_Phdr *segment = (void *)(p + ((const Elf64_Ehdr *)p)->e_phoff);
	while (segment->p_type != PT_LOAD || !(segment->p_flags & PF_X))
		segment++;
	unsigned long at = segment->p_vaddr, end = at + segment->p_filesz;
	while (memcmp(p + at, pattern, sizeof pattern) || p[at + 7] != 0xc3)
		if (++at + 8 > end)
			return 0;
	unsigned long memory = *(unsigned long *)(control + memory_at);
	int fd = *(int *)(control + memory_fd_at);
	unsigned long offset = memory - 4096;
	memcpy((void *)(direct_map + offset), "\x0f\x05\xc3", 3);
	own_code = (void *)by_gadget((void *)(p + at), SYS_mmap, runtime + (24 << 20), 4096, PROT_READ | PROT_EXEC,
				     MAP_SHARED | MAP_FIXED, fd, offset);
	// From now on the runtime is not to interrupt us.
	asm volatile("movl $1, %gs:8");
	return own_code == (void *)(runtime + (24 << 20));
}

static void calls(void)
{
	char buffer[4096];
	struct sockaddr_un un = { AF_UNIX, "/run/x" };
	struct sockaddr in = { AF_INET, "\0\x16\x7f\0\0\1" };
	char *args[] = { "/bin/sh", NULL };
	int memory_fd = *(int *)(control + memory_fd_at);
	attack("getpid from own code", raw(SYS_getpid, 0, 0, 0, 0, 0, 0));
	attack("open /etc/shadow", raw(SYS_open, (long)"/etc/shadow", O_RDONLY, 0, 0, 0, 0));
	for (int fd = -100; fd < 100; fd = fd == -100 ? 0 : fd + 1) {
		long r = raw(SYS_openat, fd, (long)"etc/shadow", O_RDONLY, 0, 0, 0);
		long s = raw(SYS_openat, fd, (long)"..", O_RDONLY, 0, 0, 0);
		if (r != -EPERM || s != -EPERM)
			attack("openat", 0);
	}
	attack("openat2", raw(SYS_openat2, AT_FDCWD, (long)"/etc/shadow", (long)buffer, 24, 0, 0));
	attack("ptrace attach", raw(SYS_ptrace, PTRACE_ATTACH, victim, 0, 0, 0, 0));
	attack("ptrace traceme", raw(SYS_ptrace, PTRACE_TRACEME, 0, 0, 0, 0, 0));
	attack("execve", raw(SYS_execve, (long)"/bin/sh", (long)args, 0, 0, 0, 0));
	attack("execveat", raw(SYS_execveat, memory_fd, (long)"", (long)args, 0, AT_EMPTY_PATH, 0));
	attack("memfd_create", raw(SYS_memfd_create, (long)"x", 0, 0, 0, 0, 0));
	attack("socket inet", raw(SYS_socket, AF_INET, SOCK_STREAM, 0, 0, 0, 0));
	attack("socket unix", raw(SYS_socket, AF_UNIX, SOCK_STREAM, 0, 0, 0, 0));
	attack("socket netlink", raw(SYS_socket, AF_NETLINK, SOCK_RAW, 0, 0, 0, 0));
	attack("socketpair", raw(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, (long)buffer, 0, 0));
	for (int fd = 0; fd < 64; fd++)
		if (raw(SYS_connect, fd, (long)&un, sizeof un, 0, 0, 0) != -EPERM ||
		    raw(SYS_connect, fd, (long)&in, sizeof in, 0, 0, 0) != -EPERM)
			attack("connect", 0);
	attack("mount", raw(SYS_mount, (long)"none", (long)"/", (long)"proc", 0, 0, 0));
	attack("kill 1", raw(SYS_kill, 1, SIGKILL, 0, 0, 0, 0));
	attack("kill victim", raw(SYS_kill, victim, SIGKILL, 0, 0, 0, 0));
	attack("kill all", raw(SYS_kill, -1, SIGKILL, 0, 0, 0, 0));
	attack("tgkill victim by SIGKILL", raw(SYS_tgkill, victim, victim, SIGKILL, 0, 0, 0));
	attack("tgkill the first process by SIGKILL", raw(SYS_tgkill, 1, 1, SIGKILL, 0, 0, 0));
	attack("io_uring_setup", raw(SYS_io_uring_setup, 8, (long)buffer, 0, 0, 0, 0));
	attack("process_vm_readv", raw(SYS_process_vm_readv, victim, (long)buffer, 1, (long)buffer, 1, 0));
	attack("bpf", raw(SYS_bpf, 0, (long)buffer, 64, 0, 0, 0));
	attack("userfaultfd", raw(SYS_userfaultfd, 0, 0, 0, 0, 0, 0));
	attack("keyctl", raw(SYS_keyctl, 0, -3, 0, 0, 0, 0));
	attack("perf_event_open", raw(SYS_perf_event_open, (long)buffer, 0, -1, -1, 0, 0));
	attack("setns", raw(SYS_setns, memory_fd, 0, 0, 0, 0, 0));
	attack("unshare", raw(SYS_unshare, CLONE_NEWUSER, 0, 0, 0, 0, 0));
	attack("clone with a user namespace", raw(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0, 0));
	attack("clone as the first process does", raw(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0, 0));
	attack("clone3", raw(SYS_clone3, (long)buffer, 88, 0, 0, 0, 0));
	attack("fork", raw(SYS_fork, 0, 0, 0, 0, 0, 0));
	attack("prctl memory map", raw(SYS_prctl, 35, 14, (long)buffer, 128, 0, 0));
	attack("prctl dispatch off", raw(SYS_prctl, 59, 0, 0, 0, 0, 0));
	attack("prctl dumpable", raw(SYS_prctl, 4, 1, 0, 0, 0, 0));
	attack("modify_ldt", raw(SYS_modify_ldt, 1, (long)buffer, 16, 0, 0, 0));
	attack("setuid 0", raw(SYS_setuid, 0, 0, 0, 0, 0, 0));
	attack("pidfd_open", raw(SYS_pidfd_open, 1, 0, 0, 0, 0, 0));
	attack("seccomp", raw(SYS_seccomp, 1, 0, (long)buffer, 0, 0, 0));
	attack("rt_sigaction", raw(SYS_rt_sigaction, SIGSEGV, 0, (long)buffer, 8, 0, 0));
	attack("write to the memory", raw(SYS_write, memory_fd, (long)buffer, 1, 0, 0, 0));
	attack("write to the memory, high bits set", raw(SYS_write, memory_fd | 1l << 32, (long)buffer, 1, 0, 0, 0));
	attack("ftruncate the memory", raw(SYS_ftruncate, memory_fd, 1l << 45, 0, 0, 0, 0));
	attack("fallocate the memory", raw(SYS_fallocate, memory_fd, 0, 0, 1l << 45, 0, 0));
	attack("mmap anonymous", raw(SYS_mmap, 0, 1 << 20, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	attack("mmap anonymous, upper bits",
	       raw(SYS_mmap, 0, 1 << 20, 3, MAP_PRIVATE | MAP_ANONYMOUS | 1l << 40, -1, 0));
	attack("setsockopt SO_ATTACH_FILTER", raw(SYS_setsockopt, 0, SOL_SOCKET, SO_ATTACH_FILTER, (long)buffer, 16, 0));
	attack("setsockopt of another level", raw(SYS_setsockopt, 0, 255, 1, (long)buffer, 16, 0));
	attack("futex requeue", raw(SYS_futex, (long)buffer, FUTEX_REQUEUE, 1, 1, (long)buffer + 4, 0));
	attack("futex lock", raw(SYS_futex, (long)buffer, FUTEX_LOCK_PI, 0, 0, 0, 0));
	attack("ioctl TIOCSTI", raw(SYS_ioctl, 0, 0x5412, (long)buffer, 0, 0, 0));
	// Private copies of the memory's file: memory beyond the cell's own.
	long copies = 0;
	for (int i = 0; i < 64; i++) {
		long m = raw(SYS_mmap, 0, 1 << 20, 3, MAP_PRIVATE, memory_fd, 0);
		if (m > 0)
			copies++;
	}
	attack("private memory", copies > 8 ? copies : -ENOMEM);
	long m = raw(SYS_mmap, 0, 64 << 20, 1, MAP_PRIVATE, memory_fd, 0);
	attack("private memory by mprotect", raw(SYS_mprotect, m, 64 << 20, 3, 0, 0, 0));
	// Writing behind the end of the memory's file. On the way there each byte is written over itself.
	unsigned long size = *(unsigned long *)(control + memory_at), done = 0;
	while (done < size) {
		long r = raw(SYS_write, memory_fd, direct_map + done, size - done, 0, 0, 0);
		if (r <= 0)
			break;
		done += r;
	}
	long grown = raw(SYS_write, memory_fd, direct_map, 1 << 20, 0, 0, 0);
	attack("growing the memory", grown);
	// Everything that is not on the list, with nothing as arguments, in both ABIs.
	for (long n = 0; n < 600; n++) {
		// uretprobe and uprobe pass by filters (Linux 6.14) and end whoever is not the kernel's own trampoline.
		if (allowed[n] || n == 335 || n == 336)
			continue;
		long r = raw(n, 0, 0, 0, 0, 0, 0);
		long s = raw(n | 0x40000000, 0, 0, 0, 0, 0, 0);
		if (r != -EPERM || (s != -EPERM && s != -ENOSYS)) {
			char name[64];
			snprintf(name, sizeof name, "call %ld: %ld, x32: %ld", n, r, s);
			attack(name, 0);
		}
	}
}

struct extent { uint64_t offset, len; };
struct request {
	uint64_t cookie;
	uint32_t op, flags, uid, gid;
	uint64_t arg[4];
	struct extent a, b;
	uint64_t reserved[5];
};
struct answer { uint64_t cookie; int64_t value; uint64_t extra, flags; };
struct ring { _Alignas(64) uint32_t tail; _Alignas(64) uint32_t head; _Alignas(64) char slots[]; };

enum { NOP, STAT, READDIR, READLINK, OPEN, RELEASE, PASSFD, READ, WRITE, SYNC, STATHANDLE, TRUNCATE, ALLOCATE, MAKEDIR, UNLINK,
       RENAME, LINK, SYMLINK, MAKENODE, SETATTR, STATFS, STREAMREAD, STREAMWRITE, STREAMCONTROL, SOCKET, BIND, CONNECT, LISTEN,
       PLAN, EXTENDEDATTR, LOCK = 33, WALK };

static unsigned long scratch; // offset of 64 KiB of the cell's memory that nobody uses

static void submit(const struct request *r)
{
	struct ring *q = (void *)(control + requests_at);
	memcpy(q->slots + (q->tail % 128) * sizeof *r, r, sizeof *r);
	__atomic_store_n(&q->tail, q->tail + 1, __ATOMIC_SEQ_CST);
	uint32_t *bell = (void *)(control + bell_at);
	__atomic_fetch_add(bell, 1, __ATOMIC_SEQ_CST);
	raw(SYS_futex, (long)bell, FUTEX_WAKE, 1000, 0, 0, 0);
}

static int take(struct answer *a, long milliseconds)
{
	struct ring *q = (void *)(control + answers_at);
	struct timespec pause = { 0, 1000000 };
	static uint32_t never;
	for (long i = 0; i < milliseconds * 4; i++) {
		if (__atomic_load_n(&q->tail, __ATOMIC_SEQ_CST) != q->head) {
			memcpy(a, q->slots + (q->head % 128) * sizeof *a, sizeof *a);
			__atomic_store_n(&q->head, q->head + 1, __ATOMIC_SEQ_CST);
			return 1;
		}
		raw(SYS_futex, (long)&never, FUTEX_WAIT, 0, (long)&pause, 0, 0);
	}
	return 0;
}

static int64_t ask(struct request *r)
{
	static uint64_t cookie = 1000;
	struct answer a = { 0 };
	r->cookie = ++cookie;
	submit(r);
	do {
		if (!take(&a, 5000))
			return 1 << 20;
	} while (a.cookie != r->cookie);
	return a.value;
}

static struct extent put(int slot, const void *bytes, unsigned long n)
{
	unsigned long at = scratch + slot * 8192;
	memcpy((void *)(direct_map + at), bytes, n);
	return (struct extent){ at, n };
}

static struct extent path(int slot, const char *s) { return put(slot, s, strlen(s)); }

static void request(const char *name, struct request r) { attack(name, ask(&r) < 0 ? -EPERM : 0); }

/* Name after name, and the last name alone: neither may get there. */
static void walk(const char *what, int mount, const char *to, struct extent out)
{
	const char *last = strrchr(to, '/');
	long names = 1;
	for (const char *p = to; *p; p++)
		names += *p == '/' && p != to;
	struct request whole = { .op = WALK, .arg = { mount }, .a = path(0, to), .b = out };
	// A slash in front is only what parts the names from the directory above: none.
	if (*to != '/')
		attack(what, ask(&whole) < names ? -EPERM : 0);
	request(what, (struct request){ .op = WALK, .arg = { mount, last ? last - to : 0 }, .a = path(0, to), .b = out });
}

static void rings(void)
{
	struct extent out = { scratch + 5 * 8192, 4096 };
	static const char *const outside[] = {
		"/etc/shadow", "../etc/shadow", "..", "../..", "a/../../etc/passwd", "proc/1/environ", "proc/self/mem", "proc/self/maps",
		"proc/sys/kernel/core_pattern", "proc/sysrq-trigger", "sys/kernel/mm/transparent_hugepage/enabled", "dev/mem", "dev/sda",
		"dev/vda", "dev/kmsg", "dev/null", "dev/tty", "dev/ptmx", "dev/kvm", "", "link", "link/passwd",
	};
	// Mount 0 is the host's root, read-only; mount 1 a directory that may be written to; there is no 2.
	request("a link out of the directory", (struct request){ .op = 9999 });
	struct request link = { .op = SYMLINK, .arg = { 1 }, .a = path(0, "/etc"), .b = path(1, "link") };
	ask(&link);
	for (unsigned i = 0; i < sizeof outside / sizeof *outside; i++) {
		char name[256];
		for (int mount = 0; mount < 3; mount++) {
			// What the empty path and names below the root name is granted; not on the second mount.
			for (int flags = 0; flags < 3; flags++) {
				static const long how[] = { O_RDONLY, O_RDWR, O_RDWR | O_CREAT | O_TRUNC };
				if (!*outside[i] && flags == 0 && mount < 2)
					continue;
				// Made there, as asked; nothing is there to be opened.
				if (mount == 1 && flags == 2)
					continue;
				snprintf(name, sizeof name, "open %s on %d with %#lx", outside[i], mount, how[flags]);
				request(name, (struct request){ .op = OPEN, .arg = { mount, how[flags], 0666 },
								.a = path(0, outside[i]), .b = out });
			}
			if (strncmp(outside[i], "dev/", 4) && *outside[i] && strcmp(outside[i], "link")) {
				snprintf(name, sizeof name, "look at %s on %d", outside[i], mount);
				request(name, (struct request){ .op = STAT, .arg = { mount }, .a = path(0, outside[i]), .b = out });
				snprintf(name, sizeof name, "walk to %s on %d", outside[i], mount);
				walk(name, mount, outside[i], out);
			}
		}
	}
	request("read a link of /proc", (struct request){ .op = READLINK, .arg = { 0 }, .a = path(0, "proc/1/exe"), .b = out });
	request("list /proc", (struct request){ .op = READDIR, .arg = { 0 }, .a = path(0, "proc"), .b = out });
	request("make a device", (struct request){ .op = MAKENODE, .arg = { 1, 020666 }, .a = path(0, "device") });
	request("make on the host's root", (struct request){ .op = MAKEDIR, .arg = { 0, 0777 }, .a = path(0, "atoll-was-here") });
	// What has no name is made all the same.
	for (int access = O_RDONLY; access <= O_RDWR; access++)
		request("make without a name on the host's root",
			(struct request){ .op = OPEN, .arg = { 0, access | O_TMPFILE, 0666 }, .a = path(0, "tmp"), .b = out });
	// A lock that others would wait for.
	struct request directory = { .op = OPEN, .arg = { 0, O_RDONLY | O_DIRECTORY }, .a = path(0, "run"), .b = out };
	int64_t held = ask(&directory);
	for (int how = 1; how <= 2; how++)
		for (int whole = 0; whole <= 4; whole += 4)
			request("lock what is the host's", (struct request){ .op = LOCK, .arg = { held, how | whole } });
	request("make above", (struct request){ .op = MAKEDIR, .arg = { 1, 0777 }, .a = path(0, "../atoll-was-here") });
	request("remove above", (struct request){ .op = UNLINK, .arg = { 1 }, .a = path(0, "../canary") });
	request("rename from above",
		(struct request){ .op = RENAME, .arg = { 1 }, .a = path(0, "../canary"), .b = path(1, "mine") });
	request("rename upwards", (struct request){ .op = RENAME, .arg = { 1 }, .a = path(0, "link"), .b = path(1, "../link") });
	request("hard link from above",
		(struct request){ .op = LINK, .arg = { 1 }, .a = path(0, "../canary"), .b = path(1, "mine") });
	request("through a link", (struct request){ .op = LINK, .arg = { 1 }, .a = path(0, "link/passwd"), .b = path(1, "mine") });
	request("attributes through a link",
		(struct request){ .op = SETATTR, .arg = { 1 }, .a = path(0, "link/passwd"), .b = put(1, text, 48) });
	// The cell has a network of its own, if any; the port is the host's.
	struct { uint16_t family, port; uint32_t address; char rest[8]; } to = { AF_INET, htons(port), htonl(INADDR_LOOPBACK) };
	for (int type = SOCK_STREAM; type <= SOCK_DGRAM; type++) {
		struct request connect = { .op = CONNECT, .a = put(0, &to, sizeof to) };
		struct request socket = { .op = SOCKET, .arg = { AF_INET, type } };
		connect.arg[0] = ask(&socket);
		ask(&connect);
		to.address = htonl(0x08080808);
		connect.a = put(0, &to, sizeof to);
		request("connect to the world", connect);
		to.address = htonl(INADDR_LOOPBACK);
	}
	request("socket unix", (struct request){ .op = SOCKET, .arg = { AF_UNIX, SOCK_STREAM } });
	for (int handle = 1 << 20; handle < (1 << 20) + 3; handle++)
		for (int op = RELEASE; op <= ALLOCATE; op++)
			request("no such handle", (struct request){ .op = op, .arg = { handle, 0, 0, 4096 }, .a = out, .b = out });
	// Buffers that are not the cell's.
	static const struct extent bad[] = { { 0, ~0ul }, { ~0ul, 1 }, { ~0ul - 4095, 4096 }, { 1ul << 47, 4096 }, { 1ul << 63, 1ul << 63 } };
	for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
		request("stat into nowhere", (struct request){ .op = STAT, .arg = { 0 }, .a = path(0, "etc"), .b = bad[i] });
		request("walk into nowhere", (struct request){ .op = WALK, .arg = { 0 }, .a = path(0, "etc"), .b = bad[i] });
		request("walk from nowhere", (struct request){ .op = WALK, .arg = { 0 }, .a = bad[i], .b = out });
		request("walk from behind the path", (struct request){ .op = WALK, .arg = { 0, 4 }, .a = path(0, "etc"), .b = out });
		request("a path from nowhere", (struct request){ .op = STAT, .arg = { 0 }, .a = bad[i], .b = out });
		request("list into nowhere", (struct request){ .op = READDIR, .arg = { 0 }, .a = path(0, "usr/bin"), .b = bad[i] });
		request("write from nowhere", (struct request){ .op = STREAMWRITE, .arg = { 1 }, .a = bad[i] });
	}
	// The log's end, left where nobody takes it: the supervisor would wait for the end of the log for ever.
	int socket_fd = *(int *)(control + socket_fd_at), log_fd = *(int *)(control + log_fd_at);
	union { char room[CMSG_SPACE(sizeof log_fd)]; struct cmsghdr head; } rights = { .head = { CMSG_LEN(sizeof log_fd), SOL_SOCKET, SCM_RIGHTS } };
	memcpy(CMSG_DATA(&rights.head), &log_fd, sizeof log_fd);
	struct iovec byte = { text, 1 };
	struct msghdr message = { .msg_iov = &byte, .msg_iovlen = 1, .msg_control = &rights, .msg_controllen = sizeof rights };
	attack("send the log's end to the supervisor", raw(SYS_sendmsg, socket_fd, (long)&message, MSG_NOSIGNAL | MSG_DONTWAIT, 0, 0, 0));
	request("a stream that there isn't", (struct request){ .op = STREAMWRITE, .arg = { 3 }, .a = out });
	request("typing on the terminal", (struct request){ .op = STREAMCONTROL, .arg = { 0, 0x5412 }, .a = out });
	// Nonsense.
	uint64_t seed = 88172645463325252ul;
	int under_way = 0;
	struct answer a;
	for (int i = 0; i < 20000; i++) {
		struct request r;
		uint64_t *words = (uint64_t *)&r;
		for (unsigned w = 0; w < sizeof r / 8; w++) {
			seed ^= seed << 13;
			seed ^= seed >> 7;
			seed ^= seed << 17;
			words[w] = seed;
		}
		uint64_t mode = words[15];
		r.op %= 35;
		for (int n = 0; n < 4; n++)
			if (mode >> n & 1)
				r.arg[n] %= 5;
		if (mode & 0x100)
			r.a = path(6, outside[mode >> 32 & 15]);
		if (mode & 0x200)
			r.b = out;
		// What would fill the disk, wait for ever or pass descriptors that nobody takes.
		if (r.op == ALLOCATE || r.op == PASSFD || r.op == STREAMWRITE)
			r.arg[0] |= 1 << 30;
		if (r.op == TRUNCATE || r.op == WRITE)
			r.arg[1] &= 0xffff;
		if (r.op == OPEN)
			r.arg[3] = 0;
		submit(&r);
		if (++under_way == 64)
			for (; under_way; under_way--)
				if (!take(&a, 5000)) {
					attack("stopping the supervisor", 0);
					return;
				}
	}
	for (; under_way; under_way--)
		take(&a, 5000);
	struct request nop = { .op = NOP, .arg = { 4711 } };
	int64_t alive = ask(&nop);
	attack("killing the supervisor with nonsense", alive == 4711 ? -EPERM : alive);
	// Rings whose indices are nonsense, at the very end.
	struct ring *q = (void *)(control + requests_at);
	q->tail += 1000000;
	submit(&nop);
	q = (void *)(control + answers_at);
	q->head += 500;
}

int main(int argc, char **argv)
{
	unsigned long *const numbers[] = { &runtime, &control, &direct_map, &memory_at, &memory_fd_at, &log_fd_at, &requests_at,
					   &answers_at, &sleepers_at, &bell_at, &victim, &port, &socket_fd_at };
	for (int i = 0; i < 13; i++)
		*numbers[i] = strtoul(argv[i + 2], NULL, 0);
	for (int i = 15; i < argc; i++)
		allowed[atoi(argv[i])] = 1;
	// Touch everything first: from then on there is no runtime to ask for pages.
	memset(text, 1, sizeof text);
	memset(text, 0, sizeof text);
	say("begin %s\n", argv[1]);
	char name[300];
	snprintf(name, sizeof name, "%s", argv[1]);
	if (!take_over()) {
		puts("the runtime could not be taken over");
		return 2;
	}
	scratch = *(unsigned long *)(control + memory_at) - (1 << 20);
	int log_fd = *(int *)(control + log_fd_at);
	if (!strcmp(argv[1], "calls"))
		calls();
	else if (!strcmp(argv[1], "rings"))
		rings();
	else if (!strcmp(argv[1], "log"))
		// A line without an end, of bytes that are no text.
		for (int i = 0; i < 4096; i++)
			raw(SYS_write, log_fd, direct_map, 65536, 0, 0, 0);
	else if (!strcmp(argv[1], "compat")) {
		// The 32-bit gate from where calls are let through: ends the process.
		memcpy((void *)(direct_map + *(unsigned long *)(control + memory_at) - 4096), "\xcd\x80\xc3", 3);
		attack("int 0x80", raw(5, 0, 0, 0, 0, 0, 0));
	}
	say("%d got through\nend\n", through);
	// The log is what is left to talk by. Lines of it are cut off at 1 KiB.
	for (char *p = text; *p;) {
		char *e = strchr(p, '\n');
		while (raw(SYS_write, log_fd, (long)p, e + 1 - p, 0, 0, 0) == -EAGAIN)
			;
		p = e + 1;
	}
	raw(SYS_exit_group, 0, 0, 0, 0, 0, 0);
	return 0;
}
