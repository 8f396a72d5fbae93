// /proc: the formats that programs parse, and what must agree with what the calls say.
#include "case.h"
#include <ctype.h>
#include <dirent.h>
#include <linux/nsfs.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/sysinfo.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <termios.h>

static char text[1 << 20], other[1 << 20];

static long slurp_to(const char *path, char *to, long size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	long n = 0, r;
	if (fd == -1)
		return -1;
	while ((r = read(fd, to + n, size - 1 - n)) > 0)
		n += r;
	close(fd);
	to[n] = 0;
	return n;
}
static long slurp(const char *path)
{
	return slurp_to(path, text, sizeof text);
}

// The rest of the line that begins with a key.
static char *value(const char *key)
{
	static char line[4096];
	for (char *p = text; p && *p; p = strchr(p, '\n') ? strchr(p, '\n') + 1 : 0)
		if (!strncmp(p, key, strlen(key))) {
			p += strlen(key);
			snprintf(line, sizeof line, "%.*s", (int)strcspn(p, "\n"), p);
			return line;
		}
	return "(none)";
}

// When a process began, of its stat.
static long start_of(const char *stat)
{
	long start = -1;
	sscanf(strrchr(stat, ')'), ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %ld", &start);
	return start;
}

// Digits as one '9', so that what is left is the form.
static const char *form(const char *s)
{
	static char out[4096];
	char *o = out;
	for (; *s; s++)
		if (isdigit(*s)) {
			if (o == out || o[-1] != '9')
				*o++ = '9';
		} else if (*s == ' ' || *s == '\t') {
			if (o == out || o[-1] != ' ')
				*o++ = ' ';
		} else
			*o++ = *s;
	*o = 0;
	return out;
}

static void link_of(const char *path)
{
	char b[PATH_MAX] = "";
	long n = readlink(path, b, sizeof b - 1);
	printf("%s -> %s\n", path, n < 0 ? err_(errno) : strncmp(b, "pipe:", 5) && strncmp(b, "socket:", 7) ? b : form(b));
}

static int wait_on[2];
static volatile int other_tid;
static void *thread(void *p)
{
	pthread_setname_np(pthread_self(), "a thread");
	other_tid = gettid();
	char b;
	read(wait_on[0], &b, 1);
	return 0;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

// Each link says its kind and a number, which is that of what it leads to, for whoever is in it.
static void namespaces(void)
{
	SECTION("namespaces");
	char path[600], says[64], *names[32];
	struct stat link, itself, child;
	V(stat("/proc/self/ns", &link));
	X(link.st_mode);
	int n = 0;
	DIR *d = opendir("/proc/self/ns");
	for (struct dirent *e; d && (e = readdir(d)) && n < 32;)
		if (e->d_name[0] != '.')
			names[n++] = strdup(e->d_name);
	closedir(d);
	qsort(names, n, sizeof *names, by_name);
	pid_t pid = fork();
	if (!pid)
		pause();
	for (int i = 0; i < n; i++) {
		memset(says, 0, sizeof says);
		snprintf(path, sizeof path, "/proc/self/ns/%s", names[i]);
		readlink(path, says, sizeof says - 1);
		lstat(path, &link);
		int r = stat(path, &itself), fd = open(path, O_RDONLY);
		snprintf(path, sizeof path, "/proc/%d/ns/%s", pid, names[i]);
		int same = !stat(path, &child) && child.st_ino == itself.st_ino && child.st_dev == itself.st_dev;
		printf("%s: %s %#o, %d %#o %d %d", names[i], form(says), link.st_mode, r, itself.st_mode,
			itself.st_ino == strtoul(strchr(says, '[') + 1, 0, 10), same);
		printf(", %s\n", read(fd, says, 1) < 0 ? err_(errno) : "read");
		close(fd);
	}
	kill(pid, SIGKILL);
	V(waitpid(pid, 0, 0) == pid);
	V(open("/proc/self/ns/net", O_RDWR));
	V(open("/proc/self/ns/none", O_RDONLY));
	V(mkdir("/proc/self/ns/none", 0700));
}

static void maps(void)
{
	SECTION("maps");
	int fd = open("mapped", O_CREAT | O_RDWR, 0600);
	ftruncate(fd, 1 << 16);
	char *shared = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 8192);
	char *private = mmap(0, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
	char *anonymous = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	mprotect(anonymous + 4096, 4096, PROT_NONE);
	mprotect(anonymous + 16384, 4096, PROT_READ | PROT_EXEC);
	void *heap = malloc(100);
	int local;
	slurp("/proc/self/maps");
	unsigned long last = 0;
	int sorted = 1, seen_stack = 0, seen_heap = 0, seen_vdso = 0, seen_code = 0;
	char exe[PATH_MAX] = "";
	readlink("/proc/self/exe", exe, sizeof exe - 1);
	for (char *p = text; *p; p = strchr(p, '\n') + 1) {
		unsigned long from, to, offset, inode;
		unsigned major, minor;
		char perms[8], name[PATH_MAX] = "";
		int at = 0, n = sscanf(p, "%lx-%lx %4s %lx %x:%x %lu%n", &from, &to, perms, &offset, &major, &minor, &inode, &at);
		snprintf(name, sizeof name, "%.*s", (int)strcspn(p + at, "\n"), p + at);
		memmove(name, name + strspn(name + 1, " ") + 1, sizeof name - 80);
		if (n < 7) {
			printf("bad line: %.*s\n", (int)strcspn(p, "\n"), p);
			continue;
		}
		sorted &= from >= last && to > from;
		last = to;
#define IN(at) ((unsigned long)(at) >= from && (unsigned long)(at) < to)
		struct stat s;
		fstat(fd, &s);
		if (IN(shared) || IN(private))
			printf("%s at %s offset %lx, inode %s, %lu bytes\n", strrchr(name, '/') + 1, perms, offset,
			       inode == s.st_ino ? "right" : "wrong", to - from);
		if (IN(anonymous + 4096) || IN(anonymous + 16384))
			printf("anonymous %s %lu bytes, inode %lu, name '%s'\n", perms, to - from, inode, name);
		if (IN(&local))
			seen_stack = !strcmp(name, "[stack]") && !strncmp(perms, "rw", 2);
		if (IN(heap))
			seen_heap = !strcmp(name, "[heap]") && !strcmp(perms, "rw-p");
		if (IN(maps))
			seen_code = !strcmp(name, exe) && !strcmp(perms, "r-xp");
		if (!strcmp(name, "[vdso]"))
			seen_vdso = !strcmp(perms, "r-xp");
	}
	printf("sorted %d, stack %d, heap %d, vdso %d, code %d\n", sorted, seen_stack, seen_heap, seen_vdso, seen_code);
	memset(shared, 1, 8192);
	memset(anonymous, 1, 4096);
	slurp("/proc/self/smaps");
	char *at = text;
	char range[40];
	snprintf(range, sizeof range, "%lx-", (unsigned long)anonymous);
	at = strstr(text, range);
	static const char *const keys[] = {"Size:", "KernelPageSize:", "MMUPageSize:", "Rss:", "Pss:", "Shared_Clean:",
		"Shared_Dirty:", "Private_Clean:", "Private_Dirty:", "Referenced:", "Anonymous:", "Swap:", "VmFlags:"};
	printf("smaps:");
	for (int i = 0; i < 13; i++)
		printf(" %s%s", keys[i], at && strstr(at, keys[i]) ? "" : " missing");
	puts("");
	munmap(shared, 8192);
	unlink("mapped");
	close(fd);
}

// What stat says of how a process is scheduled, and of the signal that it ends with.
static void scheduled(void)
{
	SECTION("scheduled");
	int ready[2], go[2];
	char byte;
	V(pipe(ready));
	V(pipe(go));
	pid_t child = syscall(SYS_clone, SIGUSR2, 0, 0, 0, 0);
	if (!child) {
		static const struct sched_param seven = {.sched_priority = 7}, none;
		setpriority(PRIO_PROCESS, 0, 3);
		write(ready[1], "x", 1);
		read(go[0], &byte, 1);
		sched_setscheduler(0, SCHED_RR, &seven);
		write(ready[1], "x", 1);
		read(go[0], &byte, 1);
		sched_setscheduler(0, SCHED_BATCH, &none);
		for (volatile char *page = text; page < text + sizeof text; page += 4096)
			*page = 1;
		write(ready[1], "x", 1);
		pause();
	}
	snprintf(other, sizeof other, "/proc/%d/stat", child);
	for (int i = 0; i < 3; i++) {
		long minflt, cminflt, priority, nice, exit_signal, rt, policy;
		read(ready[0], &byte, 1);
		slurp(other);
		int n = sscanf(strrchr(text, ')'), ") %*c %*d %*d %*d %*d %*d %*u %ld %ld %*d %*d %*d %*d %*d %*d %ld %ld %*d %*d "
			"%*d %*d %*d %*u %*d %*d %*d %*d %*d %*d %*d %*d %*d %*d %*d %*d %ld %*d %ld %ld", &minflt, &cminflt, &priority, &nice,
			&exit_signal, &rt, &policy);
		printf("%d: priority %ld nice %ld signal %ld real-time %ld policy %ld\n", n, priority, nice, exit_signal, rt, policy);
		P(minflt > 0 && cminflt == 0);
		write(go[1], "x", 1);
	}
	kill(child, SIGKILL);
	siginfo_t end;
	V(waitid(P_PID, child, &end, WEXITED | WNOWAIT | __WALL));
	// Of what was in memory nothing is left.
	static const char *const gone[] = {"environ", "auxv", "exe", "mem", "smaps_rollup", "mountinfo"};
	for (int i = 0; i < 6; i++) {
		snprintf(other, sizeof other, "/proc/%d/%s", child, gone[i]);
		// Linux has opened some of them, before 6.15, and there was nothing to read.
		printf("%s: %d\n", gone[i], slurp(other) <= 0);
	}
	int ns = open("/proc/self/ns", O_RDONLY);
	V(read(ns, text, 1));
	close(ns);
	P(slurp("/proc/self/net/dev") > 0);
	P(slurp("/proc/thread-self/net/unix") > 0);
	V(waitpid(child, 0, __WALL) == child);
	// Its faults are a child's now.
	long minflt, cminflt;
	slurp("/proc/self/stat");
	P(sscanf(strrchr(text, ')'), ") %*c %*d %*d %*d %*d %*d %*u %ld %ld", &minflt, &cminflt));
	P(minflt > 0 && cminflt > 0);
	close(ready[0]), close(ready[1]), close(go[0]), close(go[1]);
}

static void ended(void)
{
	SECTION("one that has ended");
	long begun[2];
	pid_t child = fork();
	if (!child) {
		setpgid(0, 0);
		volatile long sum = 0;
		struct timespec used;
		do
			for (int i = 0; i < 100000; i++)
				sum += i;
		while (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used), used.tv_nsec < 60000000);
		_exit(3);
	}
	siginfo_t end;
	snprintf(other, sizeof other, "/proc/%d/stat", child);
	slurp(other);
	begun[0] = start_of(text);
	V(waitid(P_PID, child, &end, WEXITED | WNOWAIT));
	slurp(other);
	begun[1] = start_of(text);
	P(begun[0] == begun[1] && begun[0] > 0);
	long group, user, system, threads, size, status;
	char *rest = strchr(text, ')');
	P(sscanf(rest, ") Z %*d %ld %*d %*d %*d %*d %*d %*d %*d %*d %ld %ld %*d %*d %*d %*d %ld %*d %*d %ld", &group, &user, &system, &threads, &size));
	P(group == child);
	P(user + system >= 5);
	P(threads);
	P(size);
	status = atol(strrchr(text, ' '));
	X(status);
	int fields = 2;
	for (char *q = rest; *q; q++)
		fields += *q == ' ';
	P(fields);
	snprintf(other, sizeof other, "/proc/%d/status", child);
	slurp(other);
	puts(value("State:"));
	P(atoi(value("Uid:")) == (int)getuid());
	P(atoi(value("Gid:")) == (int)getgid());
	puts(value("Threads:"));
	puts(value("VmRSS:"));
	snprintf(other, sizeof other, "/proc/%d/statm", child);
	slurp(other);
	printf("%s", text);
	snprintf(other, sizeof other, "/proc/%d/limits", child);
	P(slurp(other) > 1000);
	snprintf(other, sizeof other, "/proc/%d/oom_score_adj", child);
	P(slurp(other) > 0);
	snprintf(other, sizeof other, "/proc/%d/cmdline", child);
	P(slurp(other));
	snprintf(other, sizeof other, "/proc/%d/exe", child);
	V(readlink(other, text, sizeof text));
	waitpid(child, 0, 0);
}

static void renewed(void)
{
	SECTION("one whose files have closed for a new program");
	int old = 0;
	for (int i = 0; i < 50; i++) {
		int closed[2];
		pipe2(closed, O_CLOEXEC);
		pid_t child = fork();
		if (!child) {
			char *args[] = {"again", "wait", 0}, *own[] = {"ONLY=this", 0};
			execve("/proc/self/exe", args, own);
			_exit(1);
		}
		close(closed[1]);
		char byte;
		while (read(closed[0], &byte, 1) == 1)
			;
		close(closed[0]);
		snprintf(other, sizeof other, "/proc/%d/environ", child);
		long n = slurp(other);
		old += n && strcmp(text, "ONLY=this");
		snprintf(other, sizeof other, "/proc/%d/cmdline", child);
		n = slurp(other);
		old += n && strcmp(text, "again");
		kill(child, SIGKILL);
		waitpid(child, 0, 0);
	}
	P(old);
}

// Whether the text has this, whatever its bytes are.
static int has(const char *path, const void *what, long size)
{
	long n = slurp(path);
	return n > 0 && memmem(text, n, what, size) != 0;
}

static void any_bytes(void)
{
	SECTION("names of any bytes");
	int fd = open("odd\xc0\x80\nname", O_RDWR | O_CREAT | O_TRUNC, 0600);
	V(ftruncate(fd, 4096));
	char *at = mmap(0, 4096, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	P(has("/proc/self/maps", "odd\xc0\x80\\012name\n", 14));
	P(has("/proc/self/smaps", "odd\xc0\x80\\012name\n", 14));
	munmap(at, 4096);
	V(unlink("odd\xc0\x80\nname"));
	int s = socket(AF_UNIX, SOCK_STREAM, 0);
	struct sockaddr_un name = {AF_UNIX, "odd\xc0\x80"};
	V(bind(s, (struct sockaddr *)&name, sizeof name));
	P(has("/proc/net/unix", " odd\xc0\x80\n", 7));
	close(s);
	V(unlink("odd\xc0\x80"));
	// A name that is cut in a character.
	char *name_now = "fourteen bytes\xc3\xa9";
	V(prctl(PR_SET_NAME, name_now));
	P(has("/proc/self/stat", "(fourteen bytes\xc3) ", 18));
	P(has("/proc/self/status", "Name:\tfourteen bytes\xc3\n", 22));
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "wait"))
		pause();
	SECTION("status");
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, 0);
	raise(SIGUSR1);
	signal(SIGUSR2, SIG_IGN);
	signal(SIGHUP, (void (*)(int))thread);
	umask(027);
	pthread_t t;
	pipe(wait_on);
	pthread_create(&t, 0, thread, 0);
	while (!other_tid)
		sleep_ms(1);
	sleep_ms(20);
	slurp("/proc/self/status");
	static const char *const exact[] = {"Name:", "Umask:", "State:", "Uid:", "Gid:", "Threads:", "SigPnd:",
		"SigBlk:", "TracerPid:", "Ngid:"};
	for (int i = 0; i < 10; i++)
		printf("%s%s\n", exact[i], value(exact[i]));
	static const char *const formed[] = {"VmPeak:", "VmSize:", "VmLck:", "VmHWM:", "VmRSS:", "VmData:", "VmStk:", "VmExe:",
		"VmLib:", "VmPTE:", "VmSwap:", "SigQ:", "voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:", "RssAnon:"};
	for (int i = 0; i < 15; i++)
		printf("%s%s\n", formed[i], form(value(formed[i])));
	// The table of descriptors grows by powers of two, from what the parent had open.
	int slots = atoi(value("FDSize:"));
	P(slots >= 64 && !(slots & (slots - 1)));
	dup2(0, 600);
	slurp("/proc/self/status");
	P(atoi(value("FDSize:")) >= 1024);
	close(600);
	P(atoi(value("Pid:")) == getpid());
	P(atoi(value("Tgid:")) == getpid());
	P(atoi(value("PPid:")) == getppid());
	// Of the ignored ones, those that this process was started with differ.
	X(strtoull(value("SigIgn:"), 0, 16) & (1 << (SIGUSR2 - 1) | 1 << (SIGUSR1 - 1)));
	X(strtoull(value("SigCgt:"), 0, 16) & 0xffff);
	X(strtoull(value("ShdPnd:"), 0, 16) & 0xffff);
	P(strlen(value("SigBlk:")));
	P(strlen(value("CapEff:")));
	P(strlen(value("Cpus_allowed_list:")) > 1);

	SECTION("stat");
	slurp("/proc/self/stat");
	char *p = strrchr(text, ')');
	int fields = 2;
	for (char *q = p; *q; q++)
		fields += *q == ' ';
	P(fields);
	printf("%.*s\n", (int)(p - strchr(text, '(') + 1), strchr(text, '('));
	char state;
	int ppid, pgrp, session, tty, tpgid;
	unsigned flags;
	long minflt, cminflt, majflt, cmajflt, utime, stime, cutime, cstime, priority, nice, threads, itreal, rss;
	unsigned long long start, vsize;
	int n = sscanf(p + 2, "%c %d %d %d %d %d %u %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %llu %llu %ld", &state, &ppid, &pgrp,
		       &session, &tty, &tpgid, &flags, &minflt, &cminflt, &majflt, &cmajflt, &utime, &stime, &cutime, &cstime, &priority,
		       &nice, &threads, &itreal, &start, &vsize, &rss);
	P(n);
	printf("%c %d %d %d\n", state, ppid == getppid(), pgrp == getpgrp(), session == getsid(0));
	P(priority);
	P(nice);
	P(threads);
	P(vsize > 1 << 20);
	P(rss > 10);
	P(atoi(text) == getpid());
	// Started after boot, not long ago.
	struct timespec now;
	clock_gettime(CLOCK_BOOTTIME, &now);
	P(now.tv_sec - (long)start / sysconf(_SC_CLK_TCK) < 20);
	P(text[strlen(text) - 1] == '\n');
	slurp("/proc/self/statm");
	puts(form(text));

	SECTION("own texts");
	P(slurp("/proc/self/cmdline") == (long)strlen(argv[0]) + 1 && !strcmp(text, argv[0]));
	long env = slurp("/proc/self/environ");
	P(env > 0 && !strncmp(text, environ[0], strlen(environ[0])));
	slurp("/proc/self/comm");
	printf("%s", text);
	int fd = open("/proc/self/comm", O_WRONLY);
	V(write(fd, "renamed-to-something-long", 25));
	close(fd);
	slurp("/proc/self/comm");
	printf("%s", text);
	slurp("/proc/thread-self/comm");
	printf("%s", text);
	char path[100];
	snprintf(path, sizeof path, "/proc/self/task/%d/comm", other_tid);
	slurp(path);
	printf("%s", text);
	snprintf(path, sizeof path, "/proc/%d/status", other_tid);
	slurp(path);
	P(atoi(value("Pid:")) == other_tid);
	P(atoi(value("Tgid:")) == getpid());
	printf("%s\n", value("State:"));
	DIR *d = opendir("/proc/self/task");
	int tasks = 0;
	for (struct dirent *e; (e = readdir(d));)
		tasks += isdigit(e->d_name[0]) != 0;
	closedir(d);
	P(tasks);
	// By another thread's number there is all that there is by the first one's.
	snprintf(path, sizeof path, "/proc/%d/task", other_tid);
	d = opendir(path);
	tasks = 0;
	for (struct dirent *e; d && (e = readdir(d));)
		tasks += isdigit(e->d_name[0]) != 0;
	closedir(d);
	P(tasks);
	snprintf(path, sizeof path, "/proc/%d/task/%d/comm", other_tid, getpid());
	slurp(path);
	printf("%s", text);
	snprintf(path, sizeof path, "/proc/%d/comm", other_tid);
	slurp(path);
	printf("%s", text);
	snprintf(path, sizeof path, "/proc/%d/..", other_tid);
	struct stat up, top;
	V(stat(path, &up));
	V(stat("/proc", &top));
	P(up.st_ino == top.st_ino);
	snprintf(path, sizeof path, "/proc/self/task/%d/task", other_tid);
	V(access(path, F_OK));
	close(wait_on[1]);
	pthread_join(t, 0);
	slurp("/proc/self/limits");
	printf("%.*s\n", (int)strcspn(text, "\n"), text);
	struct rlimit limit = {100, 200};
	setrlimit(RLIMIT_NOFILE, &limit);
	slurp("/proc/self/limits");
	printf("%s\n", value("Max open files"));
	int lines = 0;
	for (char *q = text; *q; q++)
		lines += *q == '\n';
	P(lines);
	slurp("/proc/self/io");
	printf("%s", form(text));
	slurp("/proc/self/oom_score_adj");
	printf("%s", text);
	// Whose login it is can be said once by anybody; a host's own login may have said it already, but not to root.
	if (geteuid() == 0) {
		int login = open("/proc/self/loginuid", O_WRONLY);
		V(write(login, "someone", 7));
		V(write(login, "", 0));
		slurp("/proc/self/sessionid");
		char before[32];
		strcpy(before, text);
		V(ftruncate(login, 0));
		V(pwrite(login, "33\n", 3, 0));
		close(login);
		slurp("/proc/self/loginuid");
		P(!strcmp(text, "33"));
		slurp("/proc/self/sessionid");
		P(strcmp(text, before) != 0);
		pid_t child = fork();
		if (!child) {
			slurp("/proc/self/loginuid");
			_exit(atoi(text));
		}
		int status;
		waitpid(child, &status, 0);
		P(WEXITSTATUS(status));
		child = fork();
		if (!child)
			pause();
		sprintf(before, "/proc/%d/loginuid", child);
		login = open(before, O_WRONLY);
		V(write(login, "5", 1));
		close(login);
		kill(child, SIGKILL);
		waitpid(child, &status, 0);
	}
	slurp("/proc/self/cgroup");
	P(!strncmp(text, "0::/", 4) || strchr(text, ':'));
	slurp("/proc/self/mounts");
	P(strstr(text, "proc /proc proc ") != 0);
	slurp("/proc/self/mountinfo");
	P(strstr(text, " / / ") != 0 && strstr(text, " - ") != 0);

	SECTION("descriptors");
	for (int i = 3; i < 20; i++)
		close(i);
	open("file", O_CREAT | O_RDWR, 0600);
	write(3, "hello", 5);
	lseek(3, 2, SEEK_SET);
	int pair[2];
	pipe(pair);
	socket(AF_UNIX, SOCK_STREAM, 0);
	epoll_create1(0);
	eventfd(0, 0);
	inotify_init();
	memfd_create("memory", 0);
	timerfd_create(CLOCK_MONOTONIC, 0);
	signalfd(-1, &set, 0);
	open("/", O_RDONLY | O_DIRECTORY);
	open("gone", O_CREAT | O_RDWR, 0600);
	unlink("gone");
	open("/dev/null", O_WRONLY | O_APPEND | O_CLOEXEC);
	open("file", O_PATH);
	char cwd[PATH_MAX];
	getcwd(cwd, sizeof cwd);
	for (int i = 3; i < 18; i++) {
		char b[PATH_MAX] = "";
		snprintf(path, sizeof path, "/proc/self/fd/%d", i);
		long n = readlink(path, b, sizeof b - 1);
		struct stat s;
		lstat(path, &s);
		printf("%d -> %s, %o\n", i, n < 0 ? err_(errno) : !strncmp(b, cwd, strlen(cwd)) ? b + strlen(cwd) :
		       strchr(b, '[') && isdigit(strchr(b, '[')[1]) ? form(b) : b, s.st_mode);
	}
	d = opendir("/proc/self/fd");
	int all = 0;
	for (struct dirent *e; (e = readdir(d));)
		all += isdigit(e->d_name[0]) != 0;
	P(all);
	closedir(d);
	slurp("/proc/self/fdinfo/3");
	printf("%s\n", value("pos:"));
	printf("%s\n", value("flags:"));
	slurp("/proc/self/fdinfo/15");
	printf("%s\n", value("flags:"));
	V(open("/proc/self/fd/3", O_RDONLY));
	V(read(17, path, 10));
	V(open("/proc/self/fd/6", O_RDONLY));
	V(open("/proc/self/fd/99", O_RDONLY));
	link_of("/proc/self/cwd/none");
	link_of("/proc/self/root");
	P(atoi((readlink("/proc/self", path, 99), path)) == getpid());
	V(access("/proc/self/fd/99", F_OK));
	V(stat("/proc/self/none", &(struct stat){0}));
	V(mkdir("/proc/directory", 0700));
	V(unlink("/proc/self/stat"));
	V(open("/proc/new", O_CREAT | O_WRONLY, 0600));
	for (int i = 3; i < 30; i++)
		close(i);
	unlink("file");
	namespaces();
	maps();

	SECTION("the machine");
	slurp("/proc/meminfo");
	static const char *const memory[] = {"MemTotal:", "MemFree:", "MemAvailable:", "Buffers:", "Cached:", "SwapCached:", "Active:",
		"Inactive:", "SwapTotal:", "SwapFree:", "Dirty:", "Writeback:", "AnonPages:", "Mapped:", "Shmem:", "Slab:", "SReclaimable:",
		"PageTables:", "CommitLimit:", "Committed_AS:", "VmallocTotal:", "HugePages_Total:", "Hugepagesize:", "Active(anon):",
		"Inactive(anon):", "Active(file):", "Inactive(file):", "KReclaimable:", "SUnreclaim:", "KernelStack:", "Bounce:",
		"WritebackTmp:", "VmallocUsed:", "VmallocChunk:", "Percpu:", "HugePages_Free:", "HugePages_Rsvd:", "HugePages_Surp:",
		"Hugetlb:"};
	for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
		printf("%s %s\n", memory[i], form(value(memory[i])));
	P(atol(value("MemTotal:")) > atol(value("MemFree:")));
	P(labs(atol(value("MemTotal:")) - sysconf(_SC_PHYS_PAGES) * 4) < 64);
	slurp("/proc/cpuinfo");
	int processors = 0;
	for (char *q = text; (q = strstr(q, "processor\t: ")); q++)
		processors++;
	P(processors == sysconf(_SC_NPROCESSORS_ONLN));
	printf("model %d, sse2 %d\n", strlen(value("model name\t: ")) > 6, strstr(value("flags\t\t: "), " sse2") != 0);
	printf("MHz %s\n", form(value("cpu MHz\t\t: ")));
	P(strstr(text, "\n\n") != 0);
	slurp("/proc/stat");
	printf("cpu%s\n", form(value("cpu")));
	P(strcmp(value("cpu0 "), "(none)") != 0);
	struct timespec real;
	clock_gettime(CLOCK_REALTIME, &real);
	clock_gettime(CLOCK_BOOTTIME, &now);
	P(labs(atol(value("btime ")) - (real.tv_sec - now.tv_sec)) <= 2);
	printf("%s %s %s\n", form(value("ctxt ")), form(value("processes ")), form(value("procs_running ")));
	printf("%d %d\n", strncmp(value("intr "), "(", 1) != 0, strncmp(value("softirq "), "(", 1) != 0);
	slurp("/proc/uptime");
	printf("%s", form(text));
	P(labs(atol(text) - now.tv_sec) <= 2);
	slurp("/proc/loadavg");
	printf("%s", form(text));
	// What runs now counts, though its core does nothing else in between.
	slurp("/proc/stat");
	long user, niced, system;
	P(sscanf(value("cpu "), "%ld %ld %ld", &user, &niced, &system) == 3);
	long had = user + niced + system;
	for (long long t0 = now_ms(CLOCK_THREAD_CPUTIME_ID); now_ms(CLOCK_THREAD_CPUTIME_ID) - t0 < 400;)
		;
	slurp("/proc/stat");
	P(sscanf(value("cpu "), "%ld %ld %ld", &user, &niced, &system) == 3);
	P(user + niced + system - had >= 20);
	P(atol(value("procs_running ")) >= 1);
	// Nor are the averages 0 for long: threads are counted every five seconds.
	double average = 0;
	struct timespec end, begun;
	clock_gettime(CLOCK_MONOTONIC, &begun);
	do {
		getloadavg(&average, 1);
		clock_gettime(CLOCK_MONOTONIC, &end);
	} while (average == 0 && end.tv_sec - begun.tv_sec < 30);
	P(average > 0);
	struct sysinfo info;
	V(sysinfo(&info));
	P(info.loads[0] > 0);
	slurp("/proc/vmstat");
	P(atol(value("nr_free_pages ")) > 0);
	printf("%s %s %s\n", form(value("pgpgin ")), form(value("pgpgout ")), form(value("oom_kill ")));
	slurp("/proc/version");
	P(!strncmp(text, "Linux version ", 14));
	struct utsname u;
	uname(&u);
	slurp("/proc/sys/kernel/osrelease");
	P(!strncmp(text, u.release, strlen(u.release)));
	slurp("/proc/sys/kernel/hostname");
	P(!strncmp(text, u.nodename, strlen(u.nodename)));
	slurp("/proc/sys/kernel/random/uuid");
	slurp_to("/proc/sys/kernel/random/uuid", other, sizeof other);
	P(strlen(text));
	P(strcmp(text, other) != 0);
	slurp("/proc/sys/kernel/random/boot_id");
	slurp_to("/proc/sys/kernel/random/boot_id", other, sizeof other);
	P(strcmp(text, other) == 0);

	SECTION("a title over the arguments");
	size_t len = strlen(argv[0]);
	memset(argv[0], 0, len);
	strcpy(argv[0], "title");
	P(slurp("/proc/self/cmdline") == (long)len + 1);
	puts(text);
	// And on over the environment.
	memset(argv[0], 'y', len);
	P(environ[0] == argv[0] + len + 1);
	strcpy(argv[0] + len, "zz");
	P(slurp("/proc/self/cmdline") == (long)len + 3);
	puts(text + len);
	pid_t child = fork();
	if (!child) {
		strcpy(argv[0] + len, "c");
		pause();
	}
	snprintf(other, sizeof other, "/proc/%d/cmdline", child);
	while (slurp(other) != (long)len + 2)
		sleep_ms(1);
	puts(text + len);
	slurp("/proc/self/cmdline");
	puts(text + len);
	kill(child, SIGKILL);
	// So is the environment what is in its memory now.
	extern char **environ;
	char first[64];
	snprintf(first, sizeof first, "%.60s", environ[0]);
	environ[0][0] = '#';
	slurp("/proc/self/environ");
	P(text[0] == '#' && !strncmp(text + 1, first + 1, strlen(first) - 1));
	environ[0][0] = first[0];
	P(slurp("/proc/self/environ") > 0 && text[0] == first[0]);
	waitpid(child, 0, 0);

	// What is in memory only, and what of that is told where. It is told of the machine, of which others (cells
	// that end beside this) give back more at times than is taken here: what is taken again and again shows once.
	long before[2], after[2];
	for (int tries = 0; tries < 40; tries++) {
		int shared = memfd_create("shared", 0);
		for (int i = 0; i < 2; i++) {
			long *to = i ? after : before;
			slurp("/proc/meminfo");
			to[0] = atol(value("Shmem:"));
			slurp("/proc/vmstat");
			to[1] = atol(value("nr_shmem ")) * 4;
			if (!i)
				for (int n = 0; n < 32; n++)
					write(shared, text, sizeof text);
		}
		close(shared);
		if (after[0] - before[0] >= 24 << 10 && after[1] - before[1] >= 24 << 10)
			break;
		sleep_ms(20);
	}
	P(after[0] - before[0] >= 24 << 10);
	P(after[1] - before[1] >= 24 << 10);
	static const char *const counts[] = {"nr_free_pages ", "nr_file_pages ", "pgfault "};
	for (int i = 0; i < 3; i++)
		P(atol(value(counts[i])) > 0);
	slurp("/proc/vmstat");
	printf("swapped %s %s\n", form(value("pswpin")), value("pswpout")[0] == ' ' ? "and back" : "");
	P(slurp("/proc/diskstats") >= 0);
	V(access("/sys/block", R_OK | X_OK));

	ended();
	scheduled();
	renewed();
	any_bytes();

	SECTION("namespaces");
	static const char *const spaces[] = {"cgroup", "ipc", "mnt", "net", "pid", "pid_for_children", "time", "user", "uts"};
	for (int i = 0; i < 9; i++) {
		char name[64];
		snprintf(name, sizeof name, "/proc/self/ns/%s", spaces[i]);
		int ns = open(name, O_RDONLY), user;
		unsigned owner = 7;
		struct stat a, b;
		printf("%s\n", name);
		X(ioctl(ns, NS_GET_NSTYPE));
		V(ioctl(ns, NS_GET_PARENT));
		V((user = ioctl(ns, NS_GET_USERNS)) >= 0);
		if (user >= 0) {
			fstat(user, &a);
			stat("/proc/self/ns/user", &b);
			P(a.st_ino == b.st_ino);
			X(fcntl(user, F_GETFD));
			close(user);
		}
		V(ioctl(ns, NS_GET_OWNER_UID, &owner));
		P(owner);
		V(ioctl(ns, TCGETS));
		close(ns);
	}

	SECTION("reading in pieces");
	fd = open("/proc/self/limits", O_RDONLY);
	long whole = slurp("/proc/self/limits"), one = 0;
	while (read(fd, other + one, 1) == 1)
		one++;
	P(one == whole && !memcmp(text, other, whole));
	V(lseek(fd, 10, SEEK_SET));
	V(read(fd, other, 5));
	P(!memcmp(other, text + 10, 5));
	V(pread(fd, other, 7, 20));
	P(!memcmp(other, text + 20, 7));
	V(pread(fd, other, 7, 1 << 20));
	V(lseek(fd, -1, SEEK_SET));
	V(write(fd, "x", 1));
	V(close(fd));
	fd = open("/proc/self", O_RDONLY | O_DIRECTORY);
	V(openat(fd, "stat", O_RDONLY) > 0);
	struct stat s;
	V(fstatat(fd, "status", &s, 0));
	X(s.st_mode);
	P(s.st_size);
	P(s.st_uid == geteuid());
	V(stat("/proc", &s));
	X(s.st_mode);
	return 0;
}
