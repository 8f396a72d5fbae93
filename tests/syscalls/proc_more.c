// /proc: files of a process that fewer programs read: of its memory by pages, its timers, its scheduling, its namespaces and security modules.
// nucleus-differs: fib_trie: (it has no routes to show)
#include "case.h"
#include <ctype.h>
#include <dirent.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>

static char text[1 << 20];

static long slurp(const char *path)
{
	int fd = open(path, O_RDONLY);
	long n = 0, r;
	if (fd == -1)
		return -1;
	while ((r = read(fd, text + n, sizeof text - 1 - n)) > 0)
		n += r;
	int e = errno;
	close(fd);
	text[n] = 0;
	errno = e;
	return n ? n : r;
}

// What a file says, or why it doesn't.
static void show(const char *path)
{
	errno = 0;
	long n = slurp(path);
	printf("%s: %s\n", path, n < 0 ? err_(errno) : text);
}

static void put(const char *path, const char *what)
{
	int fd = open(path, O_WRONLY);
	long n = fd == -1 ? -1 : write(fd, what, strlen(what));
	printf("%s < %s: %s\n", path, what, n < 0 ? err_(errno) : "ok");
	close(fd);
}

static void modes(void)
{
	SECTION("modes");
	static const char *const names[] = {"attr", "cpuset", "gid_map", "map_files", "mountstats", "numa_maps", "oom_adj", "pagemap", "projid_map",
		"sched", "setgroups", "smaps_rollup", "timens_offsets", "timers", "uid_map"};
	char path[64];
	struct stat s;
	for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
		snprintf(path, sizeof path, "/proc/self/%s", names[i]);
		int r = stat(path, &s);
		printf("%s: %d %#o", names[i], r, r ? 0 : s.st_mode);
		snprintf(path, sizeof path, "/proc/thread-self/%s", names[i]);
		printf(", a thread's: %d\n", stat(path, &s));
	}
}

#define PRESENT (1ull << 63)
#define SWAPPED (1ull << 62)
#define OBJECT (1ull << 61)

static int pagemap;

// What is told of the page at an address, but for where it is and what was not asked for.
static void page(const char *what, void *at)
{
	uint64_t word = ~0ull;
	long n = pread(pagemap, &word, 8, (uintptr_t)at / 4096 * 8);
	printf("%s: %ld, present %d, swapped %d, of an object %d\n", what, n, !!(word & PRESENT), !!(word & SWAPPED), !!(word & OBJECT));
}

static void pages(void)
{
	SECTION("pagemap");
	enum { SIZE = 16 << 20, FAR = 8 << 20 };
	pagemap = open("/proc/self/pagemap", O_RDONLY);
	P(pagemap >= 0);
	char *own = mmap(0, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	madvise(own, SIZE, MADV_NOHUGEPAGE);
	own[FAR] = 1;
	page("written to", own + FAR);
	page("not yet", own);
	madvise(own, SIZE, MADV_DONTNEED);
	page("given up", own + FAR);
	char *shared = mmap(0, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	shared[FAR] = 1;
	page("shared", shared + FAR);
	page("shared, not yet", shared);
	int fd = open("mapped", O_CREAT | O_RDWR, 0600);
	ftruncate(fd, 1 << 16);
	char *file = mmap(0, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	file[1 << 15] = 1;
	page("of a file", file + (1 << 15));
	char *copy = mmap(0, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	copy[1 << 15] = 1;
	page("written to, of a file", copy + (1 << 15));
	munmap(shared, SIZE);
	page("unmapped", shared + FAR);
	// Many at once, over a hole and what can't be read.
	static uint64_t words[SIZE / 4096];
	munmap(own + SIZE / 2, 4096);
	mprotect(own, 4096, PROT_NONE);
	own[SIZE - 1] = 1;
	V(pread(pagemap, words, sizeof words, (uintptr_t)own / 4096 * 8));
	printf("%d %d %d\n", !!(words[0] & PRESENT), !!(words[SIZE / 8192] & PRESENT), !!(words[SIZE / 4096 - 1] & PRESENT));
	V(pread(pagemap, words, 8, 4));
	V(pread(pagemap, words, 12, 0));
	V(pread(pagemap, words, 0, 8));
	V(pread(pagemap, words, 16, (0x7ffffffff000 / 4096 - 1) * 8));
	V(pread(pagemap, words, 16, 0x7ffffffff000 / 4096 * 8));
	V(pread(pagemap, (void *)8, 8, 8));
	V(write(pagemap, words, 8));
	pid_t child = fork();
	if (!child)
		pause();
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/pagemap", child);
	int theirs = open(path, O_RDONLY);
	V(pread(theirs, words, 8, 8));
	kill(child, SIGKILL);
	waitid(P_PID, child, &(siginfo_t){0}, WEXITED | WNOWAIT);
	V(pread(theirs, words, 8, 8));
	waitpid(child, 0, 0);
	V(open(path, O_RDONLY));
	close(theirs);
	close(pagemap);
	munmap(own, SIZE);
}

// The entry of /proc/self/map_files for a mapping.
static void entry_of(char *path, void *at, long size)
{
	sprintf(path, "/proc/self/map_files/%lx-%lx", (long)at, (long)at + size);
}

static char entry[PATH_MAX];

static void ordinary(void)
{
	setresuid(1000, 1000, 1000);
	prctl(PR_SET_DUMPABLE, 1);
}

static pid_t others;
// What is told of another user's memory is told at the opening, or not.
static void ordinary_looks(void)
{
	ordinary();
	static const char *names[] = {"maps", "smaps", "smaps_rollup", "numa_maps", "environ", "auxv", "mem", "pagemap", "stat", "limits"};
	for (int self = 0; self < 2; self++) {
		for (unsigned long n = 0; n < sizeof names / sizeof *names; n++) {
			char path[64];
			snprintf(path, sizeof path, "/proc/%d/%s", self ? getpid() : others, names[n]);
			int fd = open(path, O_RDONLY);
			printf("%s %s: %s\n", self ? "own" : "another's", names[n], fd < 0 ? strerror(errno) : "opened");
			close(fd);
		}
	}
}

// Who has opened it reads no other program's.
static int go[2], gone[2];
static int runs_another(void *p)
{
	char c;
	read(go[0], &c, 1);
	execl("/bin/sleep", "sleep", "100", NULL);
	_exit(1);
}
// `shared`: it is in the memory of its maker, which stays.
static void of_one_program(int shared)
{
	static char stack[32 << 10] __attribute__((aligned(64)));
	static const char *names[] = {"maps", "smaps", "smaps_rollup", "environ", "auxv"};
	enum { COUNT = sizeof names / sizeof *names };
	int fds[COUNT];
	pipe(go);
	pipe2(gone, O_CLOEXEC);
	fcntl(go[1], F_SETFD, FD_CLOEXEC);
	pid_t child = clone(runs_another, stack + sizeof stack, SIGCHLD | (shared ? CLONE_VM : 0), NULL);
	close(gone[1]);
	for (int n = 0; n < COUNT; n++) {
		snprintf(text, sizeof text, "/proc/%d/%s", child, names[n]);
		fds[n] = open(text, O_RDONLY);
		P(read(fds[n], text, 10));
	}
	char c = 0;
	write(go[1], &c, 1);
	close(go[1]);
	// Closed by the exec.
	read(gone[0], &c, 1);
	for (int n = 0; n < COUNT; n++) {
		printf("%s: ", names[n]);
		if (shared) {
			// Of what is still there, or of nothing.
			long len = pread(fds[n], text, sizeof text, 0);
			P(len > 0 && memmem(text, len, "/sleep", 6));
		} else {
			V(pread(fds[n], text, 10, 0));
		}
		close(fds[n]);
	}
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	close(go[0]);
	close(gone[0]);
}

static void ordinary_follows(void)
{
	char to[PATH_MAX];
	ordinary();
	P(readlink(entry, to, sizeof to) > 0);
	V(open(entry, O_RDONLY));
}

static void map_files(void)
{
	SECTION("of whom");
	others = getpid();
	end_child(begin_child(ordinary_looks));
	of_one_program(0);
	of_one_program(1);
	SECTION("map_files");
	int fd = open("mapped file", O_CREAT | O_RDWR, 0600);
	ftruncate(fd, 1 << 16);
	write(fd, "what is in it", 13);
	char *file = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), path[PATH_MAX], to[PATH_MAX] = "", own[PATH_MAX];
	entry_of(path, file, 8192);
	struct stat s;
	V(lstat(path, &s));
	X(s.st_mode);
	V(readlink(path, to, sizeof to - 1) > 0);
	P(!strcmp(to, strcat(getcwd(own, sizeof own), "/mapped file")));
	// Not every root may.
	char b[16] = "";
	int again = open(path, O_RDONLY);
	P(again < 0 ? errno == EPERM : read(again, b, 13) == 13 && !strcmp(b, "what is in it"));
	close(again);
	int found = 0, all = 0;
	DIR *d = opendir("/proc/self/map_files");
	for (struct dirent *e; (e = readdir(d));) {
		unsigned long from, end;
		all += sscanf(e->d_name, "%lx-%lx", &from, &end) == 2;
		found += !strcmp(e->d_name, strrchr(path, '/') + 1) && e->d_type == DT_LNK;
	}
	closedir(d);
	printf("%d of many: %d\n", found, all > 3);
	char *none = mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	entry_of(path, none, 4096);
	V(lstat(path, &s));
	entry_of(path, file, 4096);
	V(lstat(path, &s));
	V(open("/proc/self/map_files/none", O_RDONLY));
	V(open("/proc/self/map_files/0-1", O_RDONLY));
	// Not everybody may follow them.
	entry_of(entry, file, 8192);
	end_child(begin_child(ordinary_follows));
	munmap(file, 8192);
	V(lstat(path, &s));
}

// A word of the line of numa_maps for a mapping.
static void numa_of(const char *what, void *at, const char *words)
{
	char key[32], line[4096] = "none\n", *copy = strdup(words);
	snprintf(key, sizeof key, "%08lx ", (long)at);
	slurp("/proc/self/numa_maps");
	for (char *p = text; *p; p = strchr(p, '\n') + 1)
		if (!strncmp(p, key, strlen(key)))
			snprintf(line, sizeof line, "%.*s", (int)strcspn(p, "\n"), p + strlen(key));
	printf("%s:", what);
	for (char *w = strtok(copy, " "); w; w = strtok(0, " "))
		printf(" %s %d", w, !!strstr(line, w));
	puts("");
	free(copy);
}

static void numa(void)
{
	SECTION("numa_maps");
	int fd = open("a b", O_CREAT | O_RDWR, 0600);
	ftruncate(fd, 1 << 20);
	// Linux makes one of neighbours that are alike.
	char *none = mmap(0, 3 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0), *own = none + (1 << 20);
	mmap(own, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	char *file = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	memset(own, 1, 1 << 20);
	memset(file, 1, 1 << 20);
	numa_of("own", own, "default anon=256 dirty=256 kernelpagesize_kB=4 file=");
	numa_of("file", file, "default file= /a\\040b =256 anon= kernelpagesize_kB=4");
	numa_of("none", own + (1 << 20), "default N0= file= kernelpagesize_kB");
	P(strstr(text, " heap ") != 0);
	P(strstr(text, " stack ") != 0);
}

static void timers(void)
{
	SECTION("timers");
	show("/proc/self/timers");
	timer_t t[4];
	struct sigevent told = {.sigev_signo = SIGUSR1, .sigev_value.sival_ptr = (void *)0xabcdef};
	timer_create(CLOCK_MONOTONIC, 0, &t[0]);
	told.sigev_notify = SIGEV_SIGNAL;
	timer_create(CLOCK_REALTIME, &told, &t[1]);
	told.sigev_notify = SIGEV_NONE;
	timer_create(CLOCK_BOOTTIME, &told, &t[2]);
	told.sigev_notify = SIGEV_THREAD_ID;
	told._sigev_un._tid = gettid();
	timer_create(CLOCK_PROCESS_CPUTIME_ID, &told, &t[3]);
	slurp("/proc/self/timers");
	char own[32];
	snprintf(own, sizeof own, ".%d\n", getpid());
	for (char *p = text, *q; *p; p = q) {
		if ((q = strstr(p, own))) {
			printf("%.*s.PID\n", (int)(q - p), p);
			q += strlen(own);
		} else {
			q = p + strlen(p);
			fputs(p, stdout);
		}
	}
	for (int i = 0; i < 4; i++)
		timer_delete(t[i]);
	show("/proc/self/timers");
}

// Digits as one '9'.
static void form(char *s)
{
	char *o = s;
	for (; *s; s++)
		if (!isdigit(*s))
			*o++ = *s;
		else if (o == text || o[-1] != '9')
			*o++ = '9';
	*o = 0;
}

static void sched(void)
{
	SECTION("sched");
	prctl(PR_SET_NAME, "a name");
	setpriority(PRIO_PROCESS, 0, 5);
	slurp("/proc/self/sched");
	char *line = strchr(text, '\n');
	*line = 0;
	char *second = strchr(line + 1, '\n');
	*second = 0;
	printf("%zu\n", strspn(line + 1, "-"));
	static const char *const keys[] = {"\nse.sum_exec_runtime ", "\nnr_switches ", "\nnr_voluntary_switches ", "\nnr_involuntary_switches "};
	long switches[4] = {0};
	*second = '\n';
	for (int i = 0; i < 4; i++) {
		char *at = strstr(second, keys[i]);
		if (at)
			switches[i] = atol(strchr(at, ':') + 1);
		printf("%s: %d, colon in %ld\n", keys[i] + 1, at != 0, at ? (long)(strchr(at, ':') - at - 1) : 0);
	}
	P(switches[1] == switches[2] + switches[3]);
	for (char *p = second + 1; *p; p = strchr(p, '\n') + 1)
		if (!strncmp(p, "policy ", 7) || !strncmp(p, "prio ", 5))
			printf("%.*s\n", (int)strcspn(p, "\n"), p);
	form(text);
	puts(text);
	put("/proc/self/sched", "0");
	setpriority(PRIO_PROCESS, 0, 0);
}

static void modules(void)
{
	SECTION("security modules");
	DIR *d = opendir("/proc/self/attr");
	int n = 0;
	for (struct dirent *e; d && (e = readdir(d));)
		n += e->d_name[0] != '.' && e->d_type == DT_REG;
	closedir(d);
	P(n);
	static const char *const names[] = {"current", "prev", "exec", "fscreate", "keycreate", "sockcreate"};
	char path[64];
	struct stat s;
	for (int i = 0; i < 6; i++) {
		snprintf(path, sizeof path, "/proc/self/attr/%s", names[i]);
		V(stat(path, &s));
		X(s.st_mode);
		show(path);
		snprintf(path, sizeof path, "/proc/thread-self/attr/%s", names[i]);
		put(path, "something");
	}
	V(open("/proc/self/attr/none", O_RDONLY));
}

static void ordinary_changes(void)
{
	ordinary();
	put("/proc/self/timens_offsets", "monotonic 1 0");
	put("/proc/self/projid_map", "0 0 1");
	put("/proc/self/setgroups", "deny");
}

static void namespaces(void)
{
	SECTION("namespaces");
	show("/proc/self/timens_offsets");
	show("/proc/self/projid_map");
	put("/proc/self/projid_map", "0 0 1");
	put("/proc/self/uid_map", "0 0 1");
	put("/proc/self/gid_map", "0 0 1");
	end_child(begin_child(ordinary_changes));
}

static void oom_scores(void)
{
	ordinary();
	static const char *const values[] = {"5", "-3", "15", "-17", "16", "-18", "x", "0"};
	show("/proc/self/oom_adj");
	for (int i = 0; i < 8; i++) {
		put("/proc/self/oom_adj", values[i]);
		show("/proc/self/oom_score_adj");
		show("/proc/self/oom_adj");
	}
	put("/proc/self/oom_score_adj", "300");
	show("/proc/self/oom_adj");
	put("/proc/self/oom_adj", "6");
	put("/proc/self/oom_score_adj", "0");
}

// Each mount is in mountstats as in mounts.
static void mounts(void)
{
	SECTION("mountstats");
	char line[4096], wanted[3 * 4096], source[1024], target[1024], kind[256];
	int all = 0, found = 0;
	slurp("/proc/self/mountstats");
	FILE *f = fopen("/proc/self/mounts", "r");
	while (fgets(line, sizeof line, f) && sscanf(line, "%1023s %1023s %255s", source, target, kind) == 3) {
		snprintf(wanted, sizeof wanted, "device %s mounted on %s with fstype %s\n", source, target, kind);
		all++;
		found += !!strstr(text, wanted);
	}
	fclose(f);
	printf("%d %d\n", all > 3, found == all);
}

static void system_wide(void)
{
	SECTION("of the system");
	static const char *const same[] = {"sys/kernel/arch", "sys/fs/overflowuid", "sys/fs/overflowgid"};
	static const char *const heads[] = {"net/raw", "net/raw6", "net/icmp", "net/icmp6", "net/packet"};
	static const char *const there[] = {"sys/kernel/io_uring_disabled", "sys/kernel/unprivileged_bpf_disabled", "sys/fs/suid_dumpable",
		"sys/vm/hugetlb_shm_group", "sys/vm/legacy_va_layout", "sys/vm/memfd_noexec", "sys/vm/nr_overcommit_hugepages",
		"sys/vm/overcommit_kbytes", "sys/vm/panic_on_oom", "sys/vm/unprivileged_userfaultfd", "sys/vm/zone_reclaim_mode"};
	char path[64];
	for (unsigned i = 0; i < sizeof same / sizeof *same; i++) {
		snprintf(path, sizeof path, "/proc/%s", same[i]);
		show(path);
	}
	for (unsigned i = 0; i < sizeof there / sizeof *there; i++) {
		snprintf(path, sizeof path, "/proc/%s", there[i]);
		slurp(path);
		char *end;
		strtol(text, &end, 10);
		printf("%s: a number: %d\n", path, end != text && !strcmp(end, "\n"));
	}
	for (unsigned i = 0; i < sizeof heads / sizeof *heads; i++) {
		snprintf(path, sizeof path, "/proc/%s", heads[i]);
		slurp(path);
		printf("%s: %.*s.\n", path, (int)strcspn(text, "\n"), text);
	}
	slurp("/proc/net/fib_trie");
	printf("fib_trie: %d\n", strstr(text, "127.0.0.1") != 0);
	P(slurp("/proc/self/cpuset") > 1 && *text == '/' && strchr(text, '\n') == text + strlen(text) - 1);
}

int main(void)
{
	modes();
	pages();
	map_files();
	numa();
	timers();
	sched();
	modules();
	namespaces();
	SECTION("oom_adj");
	end_child(begin_child(oom_scores));
	mounts();
	system_wide();
	return 0;
}
