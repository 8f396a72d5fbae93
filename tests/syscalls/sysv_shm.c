// System V shared memory (shmget(2), shmop(2), shmctl(2)).
#include "case.h"
#include <sys/ipc.h>
#include <sys/shm.h>

#define PAGES(n) ((n) * 4096ul)

// Nobody else has it on this machine.
static key_t key;
static int id;

static void stat_(const char *when)
{
	struct shmid_ds d;
	if (shmctl(id, IPC_STAT, &d) == -1) {
		printf("%s: %s\n", when, err_(errno));
		return;
	}
	printf("%s: nattch %ld size %zu mode %o owner %d:%d creator %d:%d key %d cpid %s lpid %s times %d%d%d\n", when,
	       (long)d.shm_nattch, d.shm_segsz, d.shm_perm.mode, d.shm_perm.uid, d.shm_perm.gid, d.shm_perm.cuid,
	       d.shm_perm.cgid, d.shm_perm.__key == key, d.shm_cpid == getpid() ? "own" : "other",
	       d.shm_lpid == getpid() ? "own" : d.shm_lpid ? "other" : "none", d.shm_atime != 0, d.shm_dtime != 0,
	       d.shm_ctime != 0);
}

// The line of a segment in /proc/sysvipc/shm, without what differs from run to run.
static void proc_line(void)
{
	FILE *f = fopen("/proc/sysvipc/shm", "r");
	char line[512];
	if (fgets(line, sizeof line, f))
		printf("%s", line);
	while (fgets(line, sizeof line, f)) {
		long k, n, perms, size, cpid, lpid, nattch, uid, gid, cuid, cgid, a, d, c, rss, swap;
		sscanf(line, "%ld %ld %lo %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld", &k, &n, &perms, &size, &cpid,
		       &lpid, &nattch, &uid, &gid, &cuid, &cgid, &a, &d, &c, &rss, &swap);
		if (n == id)
			printf("key %d perms %lo size %ld nattch %ld of %ld:%ld by %ld:%ld length %zu\n", k == key, perms, size, nattch,
			       uid, gid, cuid, cgid, strlen(line) - wider_pid(cpid) - wider_pid(lpid));
	}
	fclose(f);
}

static void map_line(void *at)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[512], want[32];
	snprintf(want, sizeof want, "%lx-", (long)at);
	while (fgets(line, sizeof line, f))
		if (!strncmp(line, want, strlen(want))) {
			char perms[8], dev[16], name[256] = "", own[64];
			long offset, ino;
			snprintf(own, sizeof own, "/SYSV%08x (deleted)", key);
			sscanf(line, "%*s %7s %lx %15s %ld %255[^\n]", perms, &offset, dev, &ino, name);
			printf("%s %lx %s %s\n", perms, offset, ino == id ? "id" : "other", strcmp(name, own) ? name : "its name");
		}
	fclose(f);
}

static char *shared;
static void writes(void)
{
	stat_("in the child");
	strcpy(shared, "from the child");
}
static void detaches(void)
{
	V(shmdt(shared));
	stat_("detached in the child");
}
static void execs(void)
{
	execl("/proc/self/exe", "exec", "stat", NULL);
}
static void as_other(void)
{
	if (setresgid(1234, 1234, 1234) || setresuid(1234, 1234, 1234))
		return;
	struct shmid_ds d;
	OK(shmat(id, 0, 0));
	OK(shmat(id, 0, SHM_RDONLY));
	OK(shmat(id, 0, SHM_RDONLY | SHM_EXEC));
	V(shmctl(id, IPC_STAT, &d));
	V(shmctl(id, IPC_SET, &d));
	V(shmctl(id, IPC_RMID, 0));
	V(shmctl(id, SHM_LOCK, 0));
	V(shmget(key, 0, 0) == id);
	V(shmget(key, 0, 0666));
	V(shmget(key, 0, 0444) == id);
}
static void segv(void)
{
	signal(SIGSEGV, SIG_DFL);
	*(volatile char *)shared = 1;
}

int main(int argc, char **argv)
{
	if (argc > 1)
		return 0;

	key = 0x47000000 | getpid();
	SECTION("get");
	V(shmget(IPC_PRIVATE, 0, 0600));
	V(shmget(IPC_PRIVATE, -1ul, 0600));
	V(shmget(key, 100, 0600));
	id = shmget(key, 10000, IPC_CREAT | IPC_EXCL | 0640);
	printf("made: %d\n", id >= 0);
	V(shmget(key, 10000, IPC_CREAT | IPC_EXCL | 0640));
	V(shmget(key, 10000, IPC_CREAT | 0640) == id);
	V(shmget(key, 10000, 0) == id);
	V(shmget(key, 1, 0) == id);
	V(shmget(key, 10001, 0));
	stat_("new");
	proc_line();

	SECTION("attach");
	V(shmat(-1, 0, 0));
	V(shmat(0x7fffffff, 0, 0));
	V(shmat(id, (void *)0x10000001, 0));
	V(shmat(id, 0, SHM_REMAP));
	char *a = shmat(id, 0, 0);
	printf("%d %d\n", a != (void *)-1, a[0]);
	stat_("attached");
	map_line(a);
	strcpy(a, "hello");
	char *b = shmat(id, 0, SHM_RDONLY);
	printf("%s %d\n", b, a != b);
	map_line(b);
	stat_("twice");
	V(mprotect(b, 4096, PROT_READ | PROT_WRITE));
	shared = b;
	P(WTERMSIG(end_child(begin_child(segv))));
	// Its last page is whole.
	a[12287] = 1;
	P(b[12287]);
	char *at = mmap(0, PAGES(16), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	V(shmat(id, at, 0));
	V(munmap(at, PAGES(16)));
	V((char *)shmat(id, at + 100, SHM_RND) == at);
	V(shmat(id, at, 0));
	V((char *)shmat(id, at, SHM_REMAP) == at);
	stat_("placed");
	V(shmdt(at));
	V(shmdt(at));
	V(shmdt(at + 1));
	char *x = shmat(id, 0, SHM_EXEC);
	map_line(x);
	V(shmdt(x));
	stat_("detached");

	SECTION("fork, exec and exit");
	shared = a;
	end_child(begin_child(writes));
	puts(a);
	stat_("after a child");
	end_child(begin_child(detaches));
	stat_("after another");
	end_child(begin_child(execs));
	stat_("after one that called exec");
	V(shmdt(b));
	stat_("detached");

	SECTION("parts");
	V(mprotect(a + PAGES(1), PAGES(1), PROT_READ));
	stat_("three areas");
	V(mprotect(a + PAGES(1), PAGES(1), PROT_READ | PROT_WRITE));
	stat_("all the same");
	V(shmdt(a));
	stat_("detached");
	a = shmat(id, 0, 0);
	V(munmap(a + PAGES(1), PAGES(1)));
	stat_("a hole");
	a[PAGES(2)] = 7;
	V(shmdt(a));
	stat_("detached");
	a = shmat(id, 0, 0);
	V(munmap(a, PAGES(1)));
	stat_("without its first page");
	V(shmdt(a + PAGES(1)));
	V(shmdt(a));
	stat_("detached by where it would begin");
	a = shmat(id, 0, 0);
	P(a[PAGES(2)]);
	char *m = mremap(a, PAGES(3), PAGES(3), MREMAP_MAYMOVE | MREMAP_FIXED, at);
	P(m == at);
	P(m[PAGES(2)]);
	stat_("moved");
	V(shmdt(a));
	V(shmdt(m));
	stat_("detached");

	SECTION("change");
	struct shmid_ds d;
	V(shmctl(id, IPC_STAT, &d));
	d.shm_perm.mode = 0604;
	d.shm_perm.uid = 77;
	d.shm_perm.gid = 78;
	V(shmctl(id, IPC_SET, &d));
	stat_("changed");
	end_child(begin_child(as_other));
	d.shm_perm.uid = 1234;
	d.shm_perm.mode = 0420;
	V(shmctl(id, IPC_SET, &d));
	end_child(begin_child(as_other));
	stat_("after that");
	d.shm_perm.uid = -1;
	V(shmctl(id, IPC_SET, &d));
	V(shmctl(id, IPC_SET, (void *)1));
	V(shmctl(id, 99, &d));
	V(shmctl(-1, IPC_STAT, &d));
	id = shmget(key, 10000, IPC_CREAT | 0640);
	V(shmctl(id, SHM_LOCK, 0));
	stat_("locked");
	V(shmctl(id, SHM_UNLOCK, 0));
	stat_("unlocked");

	SECTION("what there is");
	struct shminfo info;
	struct shm_info used;
	OK(shmctl(0, IPC_INFO, (void *)&info));
	printf("%lu %lu %lu %lu %lu\n", info.shmmax, info.shmmin, info.shmmni, info.shmseg, info.shmall);
	a = shmat(id, 0, 0);
	memset(a, 1, 10000);
	int highest = shmctl(0, SHM_INFO, (void *)&used);
	printf("%d %d %d %d\n", highest >= 0, used.used_ids >= 1, used.shm_tot >= 3, used.shm_rss >= 3);
	int found = 0;
	for (int n = 0; n <= highest; n++) {
		if (shmctl(n, SHM_STAT, &d) == id)
			found += d.shm_nattch == 1 && d.shm_segsz == 10000;
		if (shmctl(n, SHM_STAT_ANY, &d) == id)
			found += d.shm_nattch == 1 && d.shm_segsz == 10000;
	}
	P(found);
	V(shmctl(4000, SHM_STAT, &d));

	SECTION("removal");
	V(shmctl(id, IPC_RMID, 0));
	stat_("removed");
	proc_line();
	V(shmget(key, 0, 0));
	b = shmat(id, 0, 0);
	P(b != (void *)-1);
	V(shmdt(a));
	stat_("one left");
	P(b[9999]);
	int old = id;
	id = shmget(key, 100, IPC_CREAT | 0600);
	P(id != old);
	V(shmctl(id, IPC_RMID, 0));
	id = old;
	V(shmdt(b));
	stat_("gone");
	OK(shmctl(id, IPC_RMID, 0));
	for (int n = 0; n < 100; n++) {
		int one = shmget(IPC_PRIVATE, 1 << 20, 0600);
		char *p = shmat(one, 0, 0);
		if (one == -1 || p == (void *)-1 || shmctl(one, IPC_RMID, 0))
			return puts("failed"), 1;
		memset(p, n, 1 << 20);
		if (shmdt(p))
			return puts("failed"), 1;
	}
	puts("a hundred");
	return 0;
}
