// Who a process is.
#include <stdio.h>
#include <unistd.h>

int main(void)
{
	printf("%d %d\n", getppid() > 0, getpid() > 0);
	printf("%u %u %u %u\n", getuid(), geteuid(), getgid(), getegid());
	printf("%d\n", getsid(0) > 0);
	return 7;
}
