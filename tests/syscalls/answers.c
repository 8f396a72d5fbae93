// Answers of calls that few ask for: where there is no way to the working directory, what can't be read ahead, buffers by force,
// sockets without a peer that are shut down, what may be read may be run.
// timeout: 60
#include "case.h"
#include <sys/personality.h>
#include <sys/un.h>

static char here[4096];

static void directories(void)
{
	char gone[] = "/tmp/answersXXXXXX", root[] = "/tmp/rootXXXXXX", like[64];
	mkdtemp(gone);
	mkdtemp(root);
	snprintf(like, sizeof like, "%slike", root);
	mkdir(like, 0755);
	chdir(gone);
	rmdir(gone);
	V(syscall(SYS_getcwd, here, sizeof here));
	V(syscall(SYS_getcwd, here, 1));
	V(getcwd(here, sizeof here) != NULL);
	fflush(stdout);
	pid_t p = fork();
	if (!p) {
		chdir("/usr");
		if (chroot(root))
			_exit(1);
		V(syscall(SYS_getcwd, here, sizeof here));
		puts(here);
		V(syscall(SYS_getcwd, here, 10));
		V(getcwd(here, sizeof here) != NULL);
		chdir("/");
		V(syscall(SYS_getcwd, here, sizeof here));
		puts(here);
		fflush(stdout);
		_exit(0);
	}
	waitpid(p, NULL, 0);
	p = fork();
	if (!p) {
		chdir(like);
		if (chroot(root))
			_exit(1);
		V(syscall(SYS_getcwd, here, sizeof here) == (long)(strlen("(unreachable)") + strlen(like) + 1));
		fflush(stdout);
		_exit(0);
	}
	waitpid(p, NULL, 0);
	chdir("/");
	rmdir(root);
	rmdir(like);
}

static void ahead(void)
{
	char name[] = "/tmp/answersXXXXXX";
	int f = mkstemp(name), w = open(name, O_WRONLY), r = open(name, O_RDONLY), path = open(name, O_PATH);
	int p[2];
	pipe(p);
	struct {
		const char *what;
		int fd;
	} all[] = {{"nothing", -1}, {"pipe to read", p[0]}, {"pipe to write", p[1]}, {"socket", socket(AF_UNIX, SOCK_DGRAM, 0)},
		{"directory", open("/tmp", O_RDONLY)}, {"file", f}, {"file to write", w}, {"file to read", r}, {"path", path},
		{"null", open("/dev/null", O_RDWR)}, {"zero", open("/dev/zero", O_RDONLY)}, {"memory", memfd_create("a", 0)}};
	for (unsigned n = 0; n < sizeof all / sizeof *all; n++) {
		printf("%s\n", all[n].what);
		V(readahead(all[n].fd, 0, 10));
		V(sync_file_range(all[n].fd, 0, 10, SYNC_FILE_RANGE_WRITE));
		V(posix_fadvise(all[n].fd, 0, 0, POSIX_FADV_NORMAL));
		V(posix_fadvise(all[n].fd, 0, -1, POSIX_FADV_NORMAL));
	}
	V(readahead(f, -1, 10));
	V(readahead(f, 0, -1));
	V(readahead(w, -1, 10));
	V(sync_file_range(f, -1, 10, SYNC_FILE_RANGE_WRITE));
	V(sync_file_range(f, 0, -1, SYNC_FILE_RANGE_WRITE));
	V(sync_file_range(f, 0, 1, 8));
	V(sync_file_range(f, LONG_MAX, 10, SYNC_FILE_RANGE_WAIT_BEFORE));
	V(sync_file_range(f, 0, 0, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER));
	unlink(name);
}

static int value_of(int s, int name)
{
	int value = 0;
	socklen_t len = sizeof value;
	getsockopt(s, SOL_SOCKET, name, &value, &len);
	return value;
}

static void by_force(void)
{
	int s[] = {socket(AF_UNIX, SOCK_STREAM, 0), socket(AF_INET, SOCK_STREAM, 0), socket(AF_INET, SOCK_DGRAM, 0)};
	for (int n = 0; n < 3; n++) {
		int value = 3000;
		V(setsockopt(s[n], SOL_SOCKET, SO_SNDBUFFORCE, &value, sizeof value));
		P(value_of(s[n], SO_SNDBUF));
		V(setsockopt(s[n], SOL_SOCKET, SO_RCVBUFFORCE, &value, sizeof value));
		V(setsockopt(s[n], SOL_SOCKET, SO_SNDBUFFORCE, &value, 3));
		V(setsockopt(s[n], SOL_SOCKET, SO_SNDBUFFORCE, (void *)8, sizeof value));
		socklen_t len = sizeof value;
		V(getsockopt(s[n], SOL_SOCKET, SO_SNDBUFFORCE, &value, &len));
	}
	fflush(stdout);
	pid_t p = fork();
	if (!p) {
		int value = 3000;
		setresuid(1000, 1000, 1000);
		V(setsockopt(s[0], SOL_SOCKET, SO_SNDBUFFORCE, &value, sizeof value));
		V(setsockopt(s[1], SOL_SOCKET, SO_RCVBUFFORCE, &value, sizeof value));
		V(setsockopt(s[1], SOL_SOCKET, SO_RCVBUFFORCE, &value, 3));
		_exit(0);
	}
	waitpid(p, NULL, 0);
}

static void *later(void *s)
{
	sleep_ms(50);
	shutdown(*(int *)s, SHUT_RD);
	return NULL;
}

static void without_peer(void)
{
	struct sockaddr_un a = {AF_UNIX, "/tmp/answers_none"};
	int d = socket(AF_UNIX, SOCK_DGRAM, 0), s = socket(AF_UNIX, SOCK_STREAM, 0);
	char c = 0;
	for (int n = 0; n < 3; n++) {
		a.sun_family = AF_UNIX;
		V(connect(d, (void *)&a, n));
		V(connect(s, (void *)&a, n));
		a.sun_family = AF_UNSPEC;
		V(connect(d, (void *)&a, n));
	}
	V(shutdown(d, 7));
	V(shutdown(d, SHUT_RD));
	V(recv(d, &c, 1, MSG_DONTWAIT));
	V(shutdown(d, SHUT_WR));
	V(send(d, &c, 1, MSG_NOSIGNAL));
	struct pollfd p = {d, POLLIN | POLLOUT | POLLRDHUP, 0};
	V(poll(&p, 1, 0));
	X(p.revents);
	V(shutdown(s, SHUT_RD));
	V(shutdown(s, SHUT_RDWR));
	V(recv(s, &c, 1, MSG_DONTWAIT));
	V(send(s, &c, 1, MSG_NOSIGNAL));
	int u = socket(AF_INET, SOCK_DGRAM, 0);
	V(shutdown(u, SHUT_RDWR));
	// A listener.
	struct sockaddr_un name = {AF_UNIX, "\0answers"};
	socklen_t len = offsetof(struct sockaddr_un, sun_path) + 8;
	int l = socket(AF_UNIX, SOCK_STREAM, 0), before = socket(AF_UNIX, SOCK_STREAM, 0), after = socket(AF_UNIX, SOCK_STREAM, 0);
	V(bind(l, (void *)&name, len));
	V(listen(l, 4));
	V(connect(before, (void *)&name, len));
	pthread_t t;
	V(accept(l, NULL, NULL) >= 0);
	pthread_create(&t, NULL, later, &l);
	V(accept(l, NULL, NULL));
	pthread_join(t, NULL);
	V(connect(after, (void *)&name, len));
	V(accept(l, NULL, NULL));
}

// Access of the mapping at an address, as maps has it.
static void access_of(void *p)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[512];
	while (fgets(line, sizeof line, f))
		if (strtoul(line, NULL, 16) == (unsigned long)p)
			printf("%.4s\n", strchr(line, ' ') + 1);
	fclose(f);
	fflush(stdout);
}

static void implied(char *own)
{
	// Apart from each other, so that none are joined.
	char *all = mmap(NULL, 64 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	static const unsigned char code[] = {0xb8, 42, 0, 0, 0, 0xc3};
	V(personality(READ_IMPLIES_EXEC));
	char *p = mmap(all + 4096, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	access_of(p);
	memcpy(p, code, sizeof code);
	V(((int (*)(void))p)());
	p = mmap(all + 4 * 4096, 4096, PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	access_of(p);
	V(mprotect(p, 4096, PROT_READ));
	access_of(p);
	fflush(stdout);
	pid_t c = fork();
	if (!c) {
		execl(own, own, "persona", NULL);
		_exit(1);
	}
	waitpid(c, NULL, 0);
	V(personality(0) == READ_IMPLIES_EXEC);
	V(mprotect(p, 4096, PROT_READ));
	access_of(p);
}

int main(int argc, char **argv)
{
	if (argc > 1) {
		X(personality(-1));
		return 0;
	}
	SECTION("directories");
	directories();
	SECTION("read ahead");
	ahead();
	SECTION("by force");
	by_force();
	SECTION("without a peer");
	without_peer();
	SECTION("what may be read may be run");
	implied(argv[0]);
	return 0;
}
