# Debuggers in a cell, on programs in it: strace of processes and threads, gdb with breakpoints, steps, a crash and a program that runs
# already, gcore; and LeakSanitizer, which traces the program that it is in.
# needs: gcc libc6-dev strace gdb procps
cat > threads.c <<'P'
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int sum;
__attribute__((noinline)) int add(int n) { return __atomic_add_fetch(&sum, n, __ATOMIC_SEQ_CST); }
void *work(void *p) { for (int i = 0; i < 10; i++) { add((int)(long)p); usleep(100); } return NULL; }
struct node { int value; struct node *next; };
int fall(struct node *n) { int s = 0; for (;; n = n->next) s += n->value; return s; }
int main(int argc, char **argv)
{
	if (argc > 2) { puts("waits"); fflush(stdout); volatile int go = 1; while (go) usleep(1000); }
	pthread_t t[3];
	for (long i = 0; i < 3; i++) pthread_create(&t[i], NULL, work, (void *)(i + 1));
	for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
	printf("sum %d\n", sum);
	fflush(stdout);
	if (argc > 1) { struct node two = { 2, NULL }, one = { 1, &two }; return fall(&one); }
	return add(7) & 0xff;
}
P
cat > leak.c <<'P'
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
void *wait(void *p) { pause(); return p; }
void *volatile kept;
int main(int argc, char **argv) { pthread_t t; pthread_create(&t, NULL, wait, NULL); kept = malloc(100); if (argc > 1) kept = NULL; return 0; }
P
gcc -g -O0 -pthread -o threads threads.c && gcc -g -O0 -pthread -fsanitize=address -o leak leak.c || exit 1
cat > breaks.gdb <<'P'
set pagination off
set confirm off
set debuginfod enabled off
break add if n == 3
commands
silent
printf "n %d\n", n
continue
end
run > out
printf "status %d\n", $_exitcode
P
cat > steps.gdb <<'P'
set pagination off
set confirm off
set debuginfod enabled off
set can-use-hw-watchpoints 0
break main
run > out
next
stepi 300
delete
tbreak add
continue
set scheduler-locking on
backtrace 1
finish
print sum >= 1
print add(1000) > 1000
set scheduler-locking off
continue
P
# Linux refuses what this gdb gives back of a thread's registers after a call where the processor has tiles (EFAULT).
if grep -q amx_tile /proc/cpuinfo; then sed -i '/print add/d' steps.gdb; fi
cat > crash.gdb <<'P'
set pagination off
set debuginfod enabled off
run x > out
backtrace 2
print n
print $_siginfo._sifields._sigfault.si_addr == (void *)0
info registers cs ss
P
cat > all.sh <<'P'
# Without addresses, ids and what depends on who comes first.
plain() { sed -E 's/0x[0-9a-f]+/ADDR/g; s/\((LWP|process) [0-9]+\)/(\1)/g; s/process [0-9]+/process N/g; /^\[(New|Thread|Switching)/d; s/ exited\]//; /^warning: (Error disabl|opening)/d'; }
echo "-- strace"
strace -ff -o trace sh -c 'echo one > file; cat file | tr o 0; (exit 3); exec ./threads'; echo "status $?"
# A file for each, so that none is interrupted by another.
ls trace.* | wc -l
cat trace.* | sed -E 's/0x[0-9a-f]+/ADDR/g' > calls
grep -c '^execve(.*= 0$' calls
grep -E '^execve' calls | sed 's/\], ADDR.*/]/' | sort
grep -c '^clone3' calls; grep -c '^exit(0' calls; grep -E '^exit_group' calls | sort
grep -E '^\+\+\+' calls | sort | uniq -c
grep -E '^(openat|open)\(.*"file"' calls | sed 's/ = .*//' | sort
grep -E '^--- SIGCHLD' calls | sed -E 's/si_[pu]id=[0-9]+, //g; s#si_[us]time=[0-9]+( /[*][^*]*[*]/)?##g' | sort -u
echo "-- strace of one that runs"
# It waits for a child, which goes on when its parent is traced.
mkfifo go
sh -c 'cat go; for i in 1 2 3; do sleep 0.01; done; exit 7' & p=$!
until pgrep -x -P $p cat > found; do sleep 0.01; done
strace -qq -f -o trace2 -p $p -e trace=execve,exit_group & s=$!
until grep -q 'TracerPid:.*[1-9]' /proc/$p/status; do sleep 0.01; done
: > go
wait $s; echo "status $?"; rm go found
grep -c 'execve.*= 0$' trace2; grep -E 'exit_group\(7\)' trace2 | sed -E 's/^[0-9]+ +//'
wait $p; echo "status $?"
strace -c -o counts true; awk '$NF == "execve" { print $4 }' counts
echo "-- gdb"
gdb -q -batch -x breaks.gdb ./threads 2>&1 | grep -E '^(n|status|\[Inferior)' | plain; cat out
gdb -q -batch -x steps.gdb ./threads 2>&1 | grep -E '^(\$|Value|#0|\[Inf)|hit Temp' | plain | sed -E 's/Thread [0-9]+/Thread N/; s/[(]n=[0-9][)]/(n)/; s/Value returned is .* = [0-9]+/value/'; cat out
gdb -q -batch -x crash.gdb ./threads 2>&1 | grep -E '^(#|Thread|Program|\$|cs|ss)' | plain
./threads a b > said & p=$!
until grep -qs waits said; do sleep 0.01; done
gdb -q -batch -ex 'set debuginfod enabled off' -p $p -ex 'bt -1' -ex 'up-silently 100' -ex 'print argc' -ex 'print go = 0' -ex detach 2>&1 | grep -E '^(#[0-9]+ .*main|\$)' | sed -E 's/#[0-9]+/#N/; s/0x[0-9a-f]+/ADDR/g'
wait $p 2> /dev/null; echo "status $?"; rm said
sleep 60 & p=$!
asleep() { until grep -q 'State:.*sleeping' /proc/$p/status; do sleep 0.01; done; }
until grep -qx sleep /proc/$p/comm; do sleep 0.01; done; asleep
gcore -o core $p > /dev/null 2>&1; head -c 4 core.$p | od -c | head -1; asleep; grep -h -E 'State|TracerPid' /proc/$p/status
kill $p; wait $p 2> /dev/null; echo "status $?"
echo "-- sanitizer"
./leak; echo "status $?"
./leak x 2>&1 | grep -E 'ERROR|Direct|SUMMARY' | sed -E 's/==[0-9]+==//'
P
$RUN sh all.sh 2>&1; echo $?
rm -f trace* calls counts core.* leak threads
