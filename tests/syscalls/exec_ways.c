// execve and execveat: by descriptors, of memory files and scripts, and what they refuse.
// timeout: 60
#include "case.h"
#include <elf.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <sys/sendfile.h>

extern char **environ;
static char self[PATH_MAX];

// The program that the others become: it tells how.
static int told(int argc, char **argv)
{
	char exe[PATH_MAX] = "", comm[32] = "";
	if (!strcmp(argv[1], "itself")) {
		argv[1] = "again";
		execv("/proc/self/exe", argv);
	}
	if (!strcmp(argv[1], "quietly")) {
		P(argc);
		return 0;
	}
	readlink("/proc/self/exe", exe, sizeof exe - 1);
	int fd = open("/proc/self/comm", O_RDONLY);
	read(fd, comm, sizeof comm - 1);
	close(fd);
	const char *base = strrchr(exe, '/');
	char *from = (char *)getauxval(AT_EXECFN);
	int number, end = 0;
	sscanf(from, "/dev/fd/%d%n", &number, &end);
	// By a descriptor alone it is called as its file from Linux 6.14 on, and as that number before.
	if (end && !from[end])
		strcpy(comm, "-\n");
	printf("ran: as %s, from %s, exe %s, comm %s", argv[1], from, base ? base + 1 : exe, comm);
	for (int n = 2; n < argc; n++)
		printf("    with %s\n", argv[n]);
	return 0;
}

// In a child: what came of it, if it failed.
#define RUN(call) ({ \
	fflush(stdout); \
	pid_t p_ = fork(); \
	if (!p_) { \
		call; \
		_exit(errno); \
	} \
	int s_ = 0; \
	waitpid(p_, &s_, 0); \
	if (WIFSIGNALED(s_)) \
		printf("%s: signal %d\n", #call, WTERMSIG(s_)); \
	else \
		printf("%s: %s\n", #call, WEXITSTATUS(s_) ? strerrorname_np(WEXITSTATUS(s_)) : "ended"); \
	fflush(stdout); \
})

static void copy_to(int to)
{
	int from = open(self, O_RDONLY);
	struct stat s;
	fstat(from, &s);
	for (off_t left = s.st_size; left > 0;) {
		ssize_t n = sendfile(to, from, NULL, left);
		if (n <= 0)
			break;
		left -= n;
	}
	close(from);
}
static void text(const char *name, const char *what, long len)
{
	unlink(name);
	int fd = open(name, O_CREAT | O_WRONLY, 0755);
	write(fd, what, len < 0 ? (long)strlen(what) : len);
	close(fd);
}

static void by_descriptors(void)
{
	SECTION("by descriptors");
	char *args[] = {"told", "fd", "one", NULL};
	int fd = open("copy", O_CREAT | O_WRONLY, 0755);
	copy_to(fd);
	close(fd);
	int dir = open(".", O_PATH | O_DIRECTORY), file = open("copy", O_RDONLY), only = open("copy", O_PATH | O_CLOEXEC);
	// Their numbers are shown.
	dup2(dir, 50), dup2(file, 51), dup3(only, 52, O_CLOEXEC);
	close(dir), close(file), close(only);
	RUN(execveat(50, "copy", args, environ, 0));
	RUN(execveat(51, "", args, environ, AT_EMPTY_PATH));
	RUN(execveat(52, "", args, environ, AT_EMPTY_PATH));
	RUN(fexecve(51, args, environ));
	RUN(execveat(51, "", args, environ, 0));
	RUN(execveat(51, "copy", args, environ, 0));
	RUN(execveat(99, "copy", args, environ, 0));
	RUN(execveat(50, "", args, environ, AT_EMPTY_PATH));
	RUN(execveat(AT_FDCWD, "", args, environ, AT_EMPTY_PATH));
	RUN(execveat(99, "", args, environ, AT_EMPTY_PATH));
	RUN(execveat(50, "copy", args, environ, 0x4000));
	symlink("copy", "link");
	RUN(execveat(50, "link", args, environ, 0));
	RUN(execveat(50, "link", args, environ, AT_SYMLINK_NOFOLLOW));
	RUN(execve("/proc/self/fd/51", args, environ));
	SECTION("memory files");
	int memory = memfd_create("its name", MFD_CLOEXEC);
	copy_to(memory);
	dup3(memory, 53, O_CLOEXEC);
	// It is still open for writing.
	RUN(fexecve(53, args, environ));
	char path[64];
	sprintf(path, "/proc/self/fd/%d", memory);
	int again = open(path, O_RDONLY | O_CLOEXEC);
	close(memory), close(53);
	dup3(again, 53, O_CLOEXEC);
	RUN(fexecve(53, args, environ));
	RUN(execve("/proc/self/fd/53", args, environ));
	V(fchmod(again, 0600));
	V(fchown(again, 7, 8));
	V(futimens(again, (struct timespec[]){{5, 6}, {7, 8}}));
	struct stat s;
	fstat(again, &s);
	printf("%o %d %d %ld %ld %ld\n", s.st_mode, s.st_uid, s.st_gid, s.st_atim.tv_sec, s.st_mtim.tv_sec, s.st_mtim.tv_nsec);
	RUN(fexecve(53, args, environ));
	// Its mode counts for who opens it again, too, whoever has it open. And who execs itself is still that.
	V(fchmod(again, 0400));
	if (!fork()) {
		setresuid(7, 7, 7);
		OK(open("/proc/self/fd/53", O_RDWR));
		OK(open("/proc/self/fd/53", O_RDONLY));
		_exit(0);
	}
	wait(NULL);
	V(fchmod(again, 04755));
	RUN(execveat(51, "", args, environ, 0x10000 | AT_EMPTY_PATH));
	args[1] = "itself";
	RUN(fexecve(53, args, environ));
	args[1] = "fd";
	close(again), close(53);
	int sealed = memfd_create("sealed", MFD_CLOEXEC | 8);
	if (sealed >= 0) {
		copy_to(sealed);
		fstat(sealed, &s);
		printf("%o %#x\n", s.st_mode, fcntl(sealed, F_GET_SEALS));
		OK(fchmod(sealed, 0700));
		OK(fchmod(sealed, 0600));
		RUN(fexecve(sealed, args, environ));
		close(sealed);
	}
	OK(memfd_create("both", 8 | 16));
	// What may be run and is to stay so is written to no more.
	int runs = memfd_create("runs", MFD_ALLOW_SEALING | MFD_CLOEXEC);
	copy_to(runs);
	OK(fcntl(runs, F_ADD_SEALS, 0x20));
	X(fcntl(runs, F_GET_SEALS));
	OK(write(runs, "x", 1));
	RUN(fexecve(runs, args, environ));
	// Who may only read it doesn't cut it.
	int read_only = memfd_create("cut", MFD_CLOEXEC);
	write(read_only, "some", 4);
	fchmod(read_only, 0444);
	fflush(stdout);
	if (!fork()) {
		setresuid(7, 7, 7);
		sprintf(path, "/proc/self/fd/%d", read_only);
		OK(open(path, O_RDONLY | O_TRUNC));
		OK(open(path, O_PATH));
		fstat(read_only, &s);
		P(s.st_size);
		_exit(0);
	}
	wait(NULL);
	close(runs), close(read_only);
	SECTION("scripts by descriptors");
	char line[PATH_MAX + 32];
	sprintf(line, "#!%s/copy script\n", get_current_dir_name());
	text("script", line, -1);
	file = open("script", O_RDONLY);
	dup2(file, 54), dup3(file, 55, O_CLOEXEC);
	close(file);
	// Their interpreter opens them again: not if they are closed by then.
	RUN(execveat(54, "", args, environ, AT_EMPTY_PATH));
	RUN(execveat(55, "", args, environ, AT_EMPTY_PATH));
	RUN(execveat(50, "script", args, environ, 0));
	dir = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	RUN(execveat(dir, "script", args, environ, 0));
	close(dir);
}

static void scripts(void)
{
	SECTION("scripts");
	char *args[] = {"own name", "first", "second", NULL}, line[PATH_MAX + 300], here[PATH_MAX];
	getcwd(here, sizeof here);
	const char *ways[] = {"#!%s/copy one\n", "#! \t%s/copy  one two \t\n", "#!%s/copy one", "#!%s/copy one\r\n", "#!%s/none\n", "#!%s/copy\r\n",
			      "#!%s\n", "#!\n%s", "#!   \n%s", "#%s", "", "\n", "#!copy relative\n%s"};
	for (unsigned long n = 0; n < sizeof ways / sizeof *ways; n++) {
		printf("%s", ways[n]);
		puts("");
		sprintf(line, ways[n], here);
		text("script", line, -1);
		RUN(execve("./script", args, environ));
	}
	// Those of scripts.
	text("deep", "#!./script deep\n", -1);
	sprintf(line, "#!%s/copy shallow\n", here);
	text("script", line, -1);
	RUN(execve("./deep", args, environ));
	text("deep", "#!./deep\n", -1);
	RUN(execve("./deep", args, environ));
	for (int levels = 3; levels < 7; levels++) {
		for (int n = 0; n < levels; n++) {
			char name[16];
			sprintf(name, "level%d", n);
			sprintf(line, n ? "#!./level%d\n" : "#!./copy %d\n", n ? n - 1 : 0);
			text(name, line, -1);
		}
		char last[16];
		sprintf(last, "./level%d", levels - 1);
		P(levels);
		RUN(execve(last, args, environ));
	}
	// A line that doesn't fit.
	for (int len = 253; len < 258; len++) {
		memset(line, 'x', len);
		memcpy(line, "#!./copy ", 9);
		strcpy(line + len, "\n");
		text("script", line, -1);
		printf("%d\n", len);
		RUN(execve("./script", args, environ));
	}
	memset(line, 'x', 300);
	memcpy(line, "#!/", 3);
	text("script", line, 300);
	RUN(execve("./script", args, environ));
	memset(line, ' ', 300);
	memcpy(line, "#!", 2);
	text("script", line, 300);
	RUN(execve("./script", args, environ));
	// The interpreter's name ends where that does which is read of it.
	for (int at = 253; at < 257; at++) {
		memset(line, '/', 300);
		memcpy(line, "#!./", 4);
		memcpy(line + at - 4, "copy ", 5);
		text("script", line, 300);
		printf("%d\n", at);
		RUN(execve("./script", args, environ));
	}
	args[0] = NULL;
	text("script", "#!./copy none\n", -1);
	RUN(execve("./script", args, environ));
	RUN(execve("./script", NULL, NULL));
}

// A copy of this program with this many bytes changed.
static void changed(long at, const void *what, long len)
{
	unlink("bad");
	int fd = open("bad", O_CREAT | O_RDWR, 0755);
	copy_to(fd);
	pwrite(fd, what, len, at);
	close(fd);
}

static void refused(void)
{
	SECTION("what is refused");
	char *args[] = {"told", "bad", NULL};
	Elf64_Ehdr e;
	int fd = open(self, O_RDONLY);
	pread(fd, &e, sizeof e, 0);
	Elf64_Phdr p[32];
	pread(fd, p, sizeof *p * e.e_phnum, e.e_phoff);
	close(fd);
	changed(offsetof(Elf64_Ehdr, e_machine), "\xb7", 2);
	RUN(execve("./bad", args, environ));
	changed(offsetof(Elf64_Ehdr, e_type), "\1", 2);
	RUN(execve("./bad", args, environ));
	changed(offsetof(Elf64_Ehdr, e_type), "\4", 2);
	RUN(execve("./bad", args, environ));
	changed(offsetof(Elf64_Ehdr, e_phentsize), "\1", 2);
	RUN(execve("./bad", args, environ));
	changed(offsetof(Elf64_Ehdr, e_phnum), "\0\0", 2);
	RUN(execve("./bad", args, environ));
	changed(offsetof(Elf64_Ehdr, e_phoff), "\377\377\377\377\377\377\377", 8);
	RUN(execve("./bad", args, environ));
	changed(offsetof(Elf64_Ehdr, e_phoff), "\0\0\0\177\0\0\0", 8);
	RUN(execve("./bad", args, environ));
	changed(0, "\177ELG", 4);
	RUN(execve("./bad", args, environ));
	changed(0, "", 0);
	truncate("bad", 60);
	RUN(execve("./bad", args, environ));
	truncate("bad", 100);
	RUN(execve("./bad", args, environ));
	for (int n = 0; n < e.e_phnum; n++) {
		if (p[n].p_type != PT_INTERP)
			continue;
		long at = e.e_phoff + n * sizeof *p;
		SECTION("its interpreter");
		changed(p[n].p_offset, "/none", 6);
		RUN(execve("./bad", args, environ));
		// Which doesn't end, and is too long or too short.
		changed(p[n].p_offset + p[n].p_filesz - 1, "x", 1);
		RUN(execve("./bad", args, environ));
		changed(at + offsetof(Elf64_Phdr, p_filesz), "\1\0\0\0\0\0\0", 8);
		RUN(execve("./bad", args, environ));
		changed(at + offsetof(Elf64_Phdr, p_filesz), "\0\0\1\0\0\0\0", 8);
		RUN(execve("./bad", args, environ));
		changed(at + offsetof(Elf64_Phdr, p_offset), "\0\0\0\177\0\0\0", 8);
		RUN(execve("./bad", args, environ));
		// That is none.
		static const char *names[] = {"short", "no program", "machine", "folder", "locked"};
		mkdir("folder", 0755);
		text("short", "\177ELF", 4);
		char *zeros = calloc(1, 4096);
		text("no program", zeros, 4096);
		changed(offsetof(Elf64_Ehdr, e_machine), "\xb7", 2);
		rename("bad", "machine");
		text("locked", "\177ELF", 4);
		chmod("locked", 0644);
		for (int k = 0; k < 5; k++) {
			puts(names[k]);
			changed(p[n].p_offset, names[k], strlen(names[k]) + 1);
			RUN(execve("./bad", args, environ));
		}
	}
	SECTION("files");
	chmod("copy", 0644);
	RUN(execve("./copy", args, environ));
	chmod("copy", 0755);
	RUN(execve(".", args, environ));
	RUN(execve("./copy/", args, environ));
	RUN(execve("./copy/more", args, environ));
	RUN(execve("./none", args, environ));
	RUN(execve("", args, environ));
	RUN(execve("/dev/null", args, environ));
	fd = open("copy", O_WRONLY);
	RUN(execve("./copy", args, environ));
	close(fd);
	mkfifo("fifo", 0755);
	RUN(execve("./fifo", args, environ));
	SECTION("arguments");
	char *many[] = {"told", "much", calloc(1, 128 << 10), NULL};
	memset(many[2], 'a', (128 << 10) - 1);
	fflush(stdout);
	pid_t child = fork();
	if (!child) {
		freopen("said", "w", stdout);
		execve("./copy", many, environ);
		_exit(errno);
	}
	int status;
	waitpid(child, &status, 0);
	X(status);
	struct stat s;
	stat("said", &s);
	P(s.st_size > 128 << 10);
	many[2] = realloc(many[2], (128 << 10) + 1);
	strcpy(many[2] + (128 << 10) - 1, "b");
	RUN(execve("./copy", many, environ));
	// All together: a quarter of the limit of stacks.
	static char *most[4000], word[1001];
	memset(word, 'w', 1000);
	for (int n = 0; n < 3999; n++)
		most[n] = word;
	RUN(execve("./copy", most, environ));
	RUN(execve("./copy", args, most));
	// To the byte: pointers count, too.
	static const long limits[] = {8 << 20, 1 << 20, 200 << 10};
	struct rlimit was;
	getrlimit(RLIMIT_STACK, &was);
	for (int n = 0; n < 3; n++) {
		struct rlimit l = {limits[n], was.rlim_max};
		long left = limits[n] / 4 < 128 << 10 ? 128 << 10 : limits[n] / 4;
		// The path, and the first two.
		left -= 7 + 5 + 8 + 8 + 8;
		int k = 2;
		most[0] = "told", most[1] = "quietly";
		for (; left > 2018; left -= 1009)
			most[k++] = word;
		char last[2048];
		memset(last, 'l', sizeof last);
		last[left - 9] = 0;
		most[k++] = last;
		most[k] = NULL;
		setrlimit(RLIMIT_STACK, &l);
		char *none[] = {NULL};
		RUN(execve("./copy", most, none));
		strcpy(last + left - 9, "l");
		RUN(execve("./copy", most, none));
		setrlimit(RLIMIT_STACK, &was);
	}
}

int main(int argc, char **argv)
{
	if (argc > 1)
		return told(argc, argv);
	readlink("/proc/self/exe", self, sizeof self - 1);
	by_descriptors();
	scripts();
	refused();
	return 0;
}
