# Valgrind, which reads the code of programs and translates it: errors and leaks that it finds, threads, a child, a system call that fails.
# needs: valgrind gcc libc6-dev libc6-dbg
# options: --keep-code
cat > faults.c <<'P'
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static int count;
static void *work(void *p) { for (int i = 0; i < 1000; i++) count++; return p; }
int main(void)
{
	char *p = malloc(10), *lost = malloc(100);
	p[10] = 1;
	strcpy(p, "abc");
	free(p);
	printf("%d\n", p[0] == lost[50]);
	pthread_t t;
	pthread_create(&t, NULL, work, NULL);
	pthread_join(t, NULL);
	if (fork() == 0)
		_exit(3);
	int status;
	wait(&status);
	lost = NULL;
	return write(1, lost, 5) < 0 ? WEXITSTATUS(status) : 1;
}
P
gcc -g -O0 -pthread -o faults faults.c || exit 1
cat > all.sh <<'P'
plain() { sed -E 's/==[0-9]+==//; s/0x[0-9A-Fa-f]+/ADDR/g' | grep -E 'Invalid|Conditional|Syscall|at ADDR: main|by ADDR: main|definitely|ERROR|heap usage|rror'; }
valgrind --leak-check=full ./faults > out 2> log; echo "status $?"; plain < log; cat out
valgrind --tool=none ls / > out 2> log; echo "status $?"; grep -c . out
valgrind -q --error-exitcode=9 sh -c 'echo one | tr o 0; exit 4'; echo "status $?"
P
$RUN sh all.sh 2>&1; echo $?
rm -f faults log out vgcore*
