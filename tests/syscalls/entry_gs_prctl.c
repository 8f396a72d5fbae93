// The GS base belongs to the runtime: asked for by call, it is refused.
// cell-exit: 3
// cell-says: ARCH_SET_GS
#include <asm/prctl.h>
#include <errno.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

static unsigned long area[16];

int main(void)
{
	if (syscall(SYS_arch_prctl, ARCH_SET_GS, area)) {
		return errno == EPERM ? 3 : 4;
	}
	return 0;
}
