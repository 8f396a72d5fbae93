// Processes that come and go, more at a time than spaces are kept ready for: none is lost, and nobody who waits for one.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
enum { PARENTS = 2, CHILDREN = 32, ROUNDS = 60 };
static void parent(void)
{
	for (int round = 0; round < ROUNDS; round++) {
		pid_t pids[CHILDREN];
		for (int i = 0; i < CHILDREN; i++) {
			pids[i] = fork();
			if (pids[i] == 0) {
				char *p = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
				memset(p, i, 1 << 20);
				munmap(p, 1 << 20);
				_exit(i);
			}
		}
		for (int i = 0; i < CHILDREN; i++) {
			int status;
			if (waitpid(pids[i], &status, 0) != pids[i] || status != i << 8)
				_exit(1);
		}
	}
	_exit(0);
}
int main(void)
{
	int failed = 0;
	for (int i = 0; i < PARENTS; i++)
		if (fork() == 0)
			parent();
	for (int i = 0; i < PARENTS; i++) {
		int status;
		wait(&status);
		failed += status != 0;
	}
	printf("%d failed\n", failed);
	return 0;
}
