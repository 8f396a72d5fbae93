// process_vm_readv(2) and process_vm_writev(2): of the process itself, of a child with private, shared and untouched memory, across
// pages that aren't there, in many pieces, without a right to; and remap_file_pages(2).
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static void say(const char *what, long got)
{
	if (got < 0)
		printf("%s: %s\n", what, strerrorname_np(errno));
	else
		printf("%s: %ld\n", what, got);
}

static long get(pid_t pid, void *to, size_t n, void *from, size_t m)
{
	struct iovec local = { to, n }, remote = { from, m };
	return process_vm_readv(pid, &local, 1, &remote, 1, 0);
}

static long put(pid_t pid, void *from, size_t n, void *to, size_t m)
{
	struct iovec local = { from, n }, remote = { to, m };
	return process_vm_writev(pid, &local, 1, &remote, 1, 0);
}

static unsigned sum(const void *p, size_t n)
{
	unsigned s = 0;
	for (size_t i = 0; i < n; i++)
		s = s * 31 + ((const unsigned char *)p)[i];
	return s;
}

enum { BIG = 1 << 20 };

static char *private, *shared, *untouched, *constant, *hole;

static void child(int from_parent, int to_parent)
{
	char c;
	for (int i = 0; i < BIG; i++)
		private[i] = i * 7 >> 3;
	if (write(to_parent, "r", 1) != 1 || read(from_parent, &c, 1) != 1)
		_exit(1);
	printf("child: %x %x %.8s %.4s\n", sum(private, BIG), sum(shared, BIG), untouched + 5000, hole);
	fflush(stdout);
	_exit(0);
}

static void others(void)
{
	int down[2], up[2];
	char c, *buffer = malloc(BIG + 100);
	if (pipe(down) || pipe(up))
		exit(1);
	fflush(stdout);
	pid_t pid = fork();
	if (pid == 0)
		child(down[0], up[1]);
	if (read(up[0], &c, 1) != 1)
		exit(1);
	say("big", get(pid, buffer, BIG, private, BIG));
	printf("%x\n", sum(buffer, BIG));
	say("odd", get(pid, buffer + 3, 70001, private + 4093, 70001));
	printf("%x\n", sum(buffer + 3, 70001));
	say("untouched", get(pid, buffer, 10000, untouched, 10000));
	printf("%x\n", sum(buffer, 10000));
	say("code", get(pid, buffer, 4096, (void *)child, 4096));
	printf("%d\n", memcmp(buffer, (void *)child, 4096));
	say("into a hole", get(pid, buffer, 12288, hole, 12288));
	say("from a hole", get(pid, buffer, 4096, hole + 4096, 4096));
	say("null", get(pid, buffer, 16, NULL, 16));
	say("beyond the top", get(pid, buffer, 16, (void *)0x7ffffffff000, 16));
	say("kernel", get(pid, buffer, 16, (void *)0xffff800000000000, 16));
	say("bad buffer", get(pid, NULL, 16, private, 16));
	memset(buffer, 'w', BIG);
	say("write", put(pid, buffer, 100000, private + 50001, 100000));
	say("write shared", put(pid, buffer, 5000, shared + 3, 5000));
	printf("%x\n", sum(shared, BIG));
	say("write untouched", put(pid, "written!", 8, untouched + 5000, 8));
	say("write constant", put(pid, "x", 1, constant, 1));
	say("write code", put(pid, "x", 1, (void *)child, 1));
	say("write into a hole", put(pid, buffer, 12288, hole, 12288));
	struct iovec local[] = { { buffer, 10 }, { buffer + 20, 0 }, { buffer + 30, 5000 } };
	struct iovec remote[] = { { private, 3 }, { shared, 7 }, { private + 9, 0 }, { untouched, 2000 }, { private + 100, 1000 } };
	memset(buffer, 0, 6000);
	say("pieces", process_vm_readv(pid, local, 3, remote, 5, 0));
	printf("%x\n", sum(buffer, 6000));
	remote[1].iov_base = hole + 4096;
	say("pieces, bad second", process_vm_readv(pid, local, 3, remote, 5, 0));
	remote[0].iov_base = hole + 4096;
	say("pieces, bad first", process_vm_readv(pid, local, 3, remote, 5, 0));
	say("flags", process_vm_readv(pid, local, 3, remote, 5, 1));
	say("too many", process_vm_readv(pid, local, 1025, remote, 1, 0));
	say("too many there", process_vm_readv(pid, local, 1, remote, 1025, 0));
	say("none", process_vm_readv(pid, local, 0, remote, 1, 0));
	say("none there", process_vm_readv(pid, local, 1, remote, 0, 0));
	say("bad list", process_vm_readv(pid, (void *)8, 1, remote, 1, 0));
	say("bad list there", process_vm_readv(pid, local, 1, (void *)8, 1, 0));
	remote[0] = (struct iovec){ private, -1ul };
	say("length there", process_vm_readv(pid, local, 1, remote, 1, 0));
	say("no process", get(0x3ffffff, buffer, 16, private, 16));
	if (write(down[1], "g", 1) != 1)
		exit(1);
	waitid(P_PID, pid, NULL, WEXITED | WNOWAIT);
	say("zombie", get(pid, buffer, 16, private, 16));
	waitpid(pid, NULL, 0);
	say("gone", get(pid, buffer, 16, private, 16));
	free(buffer);
}

static void not_allowed(void)
{
	char buffer[16];
	fflush(stdout);
	pid_t parent = getpid(), pid = fork();
	if (pid == 0) {
		struct rlimit limit = { 100, 100 };
		if (setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534))
			_exit(1);
		say("of root's", get(parent, buffer, 16, private, 16));
		say("its limits", syscall(SYS_prlimit64, parent, RLIMIT_NPROC, NULL, &limit));
		say("its own", get(getpid(), buffer, 16, private, 16));
		fflush(stdout);
		_exit(0);
	}
	waitpid(pid, NULL, 0);
}

static void remap(void)
{
	const size_t page = 4096;
	char *p = mmap(NULL, 8 * page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < 8; i++)
		p[i * page] = 'a' + i;
	say("remap", remap_file_pages(p, page, 0, 5, 0));
	say("remap two", remap_file_pages(p + 2 * page, 2 * page, 0, 0, 0));
	say("within", remap_file_pages(p + 7 * page + 100, page + 100, 0, 1, 0));
	for (int i = 0; i < 8; i++)
		putchar(p[i * page]);
	putchar('\n');
	p[0] = 'X';
	printf("%c\n", p[5 * page]);
	say("all", remap_file_pages(p, 8 * page, 0, 0, 0));
	for (int i = 0; i < 8; i++)
		putchar(p[i * page]);
	putchar('\n');
	say("access", remap_file_pages(p, page, PROT_READ, 1, 0));
	say("nothing", remap_file_pages(p, 0, 0, 1, 0));
	say("around", remap_file_pages(p, -page, 0, 1, 0));
	say("far", remap_file_pages(p, page, 0, -1ul >> 1, 0));
	munmap(p + 4 * page, page);
	say("across a hole", remap_file_pages(p + 3 * page, 3 * page, 0, 1, 0));
	say("in it", remap_file_pages(p + 4 * page, page, 0, 1, 0));
	char *q = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	say("private", remap_file_pages(q, page, 0, 0, 0));
}

int main(void)
{
	setvbuf(stdout, NULL, _IOFBF, 1 << 16);
	private = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	shared = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	untouched = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	constant = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	hole = mmap(NULL, 12288, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(hole, 'h', 12288);
	munmap(hole + 4096, 4096);
	memset(shared, 's', BIG);
	char buffer[64] = "";
	say("itself", get(getpid(), buffer, 5, "hello", 5));
	puts(buffer);
	say("itself, by thread", put(gettid(), "bye", 3, buffer, 3));
	puts(buffer);
	others();
	not_allowed();
	remap();
	return 0;
}
