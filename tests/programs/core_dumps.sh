# Core dumps: of a crash in one of several threads, and of abort, read by gdb; where core_pattern puts them; none without a limit, of a program
# that may not be dumped, or onto what is no plain file; what the parent and the shell are told; memory that was never touched is a hole.
# needs: gcc libc6-dev gdb python3
cat > crash.c <<'P'
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>
struct node { int value; struct node *next; };
static struct node last = { 7, (struct node *)8 };
static char secret[] = "only in memory";
static char *reserved, *shared;
static void *wait_here(void *p) { pause(); return p; }
static int fall(struct node *n) { int sum = 0; for (;; n = n->next) sum += n->value; return sum; }
static int asleep(void)
{
	int n = 0;
	DIR *tasks = opendir("/proc/self/task");
	for (struct dirent *e; (e = readdir(tasks));) {
		char path[300], state = 0;
		snprintf(path, sizeof path, "/proc/self/task/%s/stat", e->d_name);
		FILE *f = fopen(path, "r");
		if (!f) continue;
		if (fscanf(f, "%*d (%*[^)]) %c", &state) == 1 && state == 'S') n++;
		fclose(f);
	}
	closedir(tasks);
	return n;
}
int main(int argc, char **argv)
{
	pthread_t t;
	pthread_create(&t, NULL, wait_here, NULL);
	pthread_create(&t, NULL, wait_here, NULL);
	reserved = mmap(NULL, 1L << 29, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	reserved[3L << 27] = 42;
	shared = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	strcpy(shared, "seen by both");
	char *left_out = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < 20; i++) left_out[i] = "is left out of all this"[i] + 1;
	madvise(left_out, 8192, MADV_DONTDUMP);
	char *sparse = mmap(NULL, 1L << 26, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	strcpy(sparse + (1L << 25), "far away");
	char *heap = strdup("on the heap");
	while (asleep() < 2) usleep(1000);
	if (argc > 1 && !strcmp(argv[1], "abort")) abort();
	if (argc > 1 && !strcmp(argv[1], "hidden")) prctl(PR_SET_DUMPABLE, 0);
	return fall(&last) + heap[0];
}
P
gcc -g -O0 -pthread -o crash crash.c || exit 1
cat > read.gdb <<'P'
set pagination off
set debuginfod enabled off
bt
frame 1
print argc
print heap
print secret
print shared
print last.value
print (int)reserved[3L << 27]
print $_siginfo.si_signo
print $_siginfo._sifields._sigfault.si_addr
info auxv
thread apply all backtrace 1
info proc mappings
P
cat > all.sh <<'P'
plain() { sed -E 's/0x[0-9a-f]{5,}/ADDR/g; s/\((LWP|process) [0-9]+\)/(\1)/g'; }
ulimit -S -c 0; ./crash; echo "status $?"; ls core* 2> /dev/null
ulimit -S -c unlimited
python3 - <<'S'
import os, signal
for how in [[], ["abort"], ["hidden"]]:
    pid = os.spawnv(os.P_NOWAIT, "./crash", ["./crash"] + how)
    info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    _, status = os.waitpid(pid, 0)
    print(how, info.si_code == os.CLD_DUMPED, info.si_status, os.WCOREDUMP(status), os.path.exists("core"))
    if os.path.exists("core"):
        s = os.stat("core")
        print(oct(s.st_mode), s.st_size > 1 << 29, s.st_blocks < 1 << 18)
        os.rename("core", "dump." + (how[0] if how else "fault"))
S
gdb -q -batch -x read.gdb ./crash dump.fault 2>&1 | plain | grep -E '^(#|\$|Core|Program|Thread)|AT_(ENTRY|PAGESZ|RANDOM)' | grep -v 'Core was' | sort
gdb -q -batch -x read.gdb ./crash dump.fault 2>&1 | grep -c -E ' (/.*libc.so.6|.*/crash)$' | awk '{ print ($1 > 3) }'
grep -c 'far away' dump.fault; grep -c 'jt!mfgu!pvu!pg!bmm' dump.fault
gdb -q -batch -ex 'set debuginfod enabled off' -ex 'bt -1' -ex 'print $_siginfo.si_signo' ./crash dump.abort 2>&1 | plain | grep -E '^(#|\$)' | sed 's/^#[0-9]*/#N/'
# What a link there leads to is not touched, nor what is no file.
echo mine > target; ln -s target core; ./crash; echo "status $?"; cat target; rm core
mkdir core; ./crash; echo "status $?"; ls core; rmdir core
( ulimit -S -c 64; ./crash; echo "status $?"; du -k core | awk '{ print ($1 <= 68) }' ); rm -f core
sh -c "./crash; exit 5" 2> said; echo "status $?"; cat said; rm said
rm -f core dump.* target
P
$RUN bash all.sh 2>&1 | sed -E '/^atoll: /d; s/line [0-9]+: +[0-9]+ /line N: /'
cat > patterns.sh <<'P'
ulimit -S -c unlimited
old=$(cat /proc/sys/kernel/core_pattern)
echo 'dumps/%e.%s.%u.%%.%d' > /proc/sys/kernel/core_pattern; mkdir dumps
./crash abort; echo "status $?"; ls dumps
echo "$old" > /proc/sys/kernel/core_pattern; rm -r dumps
P
# Linux's pattern is the whole machine's.
[ -z "$RUN" ] || $RUN bash patterns.sh > patterns 2>&1
[ -z "$RUN" ] && printf 'patterns.sh: line 4: N Aborted                 (core dumped) ./crash abort\nstatus 134\ncrash.6.0.%%.1\n' > patterns
sed -E 's/line [0-9]+: +[0-9]+ /line 4: N /' patterns
rm -f crash patterns core
