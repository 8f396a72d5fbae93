// Which numbers POSIX timers get, and how many there can be (timer_create(2), RLIMIT_SIGPENDING in getrlimit(2)).
#include "case.h"
#include <sys/resource.h>

static int create(void)
{
	int id = -1;
	struct sigevent none = {.sigev_notify = SIGEV_NONE};
	return syscall(SYS_timer_create, CLOCK_MONOTONIC, &none, &id) == 0 ? id : -errno;
}

int main(void)
{
	SECTION("numbers");
	int first = create();
	for (int n = 0; n < 3; n++)
		P(create() - first);
	V(syscall(SYS_timer_delete, first + 1));
	V(syscall(SYS_timer_delete, first + 3));
	P(create() - first);
	P(create() - first);
	V(syscall(SYS_timer_create, CLOCK_MONOTONIC, 0, 0));
	P(create() - first >= 6);
	for (int n = 0; n < 20; n++)
		syscall(SYS_timer_delete, first + n);
	SECTION("a limit");
	// Others of this user's may have some on Linux, so for one who has none.
	if (setresgid(54321, 54321, 54321) || setresuid(54321, 54321, 54321))
		return 1;
	V(setrlimit(RLIMIT_SIGPENDING, &(struct rlimit){5, 5}));
	int made = 0, result;
	while ((result = create()) >= 0 && made < 100)
		made++;
	printf("%d, then %s\n", made, err_(-result));
	return 0;
}
