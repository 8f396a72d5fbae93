/* The first process of the Linux guest that figures are compared with: loads the modules that its network
 * device needs, gives it QEMU's address, runs the program, and ends the machine with it.
 *
 * /bench/modules: files to load, in order, a line each. /bench/run: the program and its arguments, a line each.
 * With `groups=1` on the kernel's command line, which hands that to us, there are control groups (cgroups(7)). */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <net/route.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void must(int bad, const char *what)
{
	if (!bad)
		return;
	printf("bench: %s: %m\n", what);
	fflush(stdout);
	reboot(RB_AUTOBOOT);
}

/* The lines of a file; the last is followed by NULL. */
static char **lines(const char *path)
{
	static char *found[2][64];
	static int files;
	char **list = found[files++], *line = NULL;
	size_t room = 0;
	FILE *f = fopen(path, "r");
	must(!f, path);
	for (int n = 0; n < 63 && getline(&line, &room, f) >= 0; n++, line = NULL) {
		line[strcspn(line, "\n")] = 0;
		list[n] = line;
	}
	fclose(f);
	return list;
}

static struct sockaddr internet(const char *address)
{
	struct sockaddr_in in = { .sin_family = AF_INET };
	struct sockaddr any;
	inet_aton(address, &in.sin_addr);
	memcpy(&any, &in, sizeof any);
	return any;
}

static void interface(int s, const char *name, const char *address, const char *mask)
{
	struct ifreq r = { 0 };
	strcpy(r.ifr_name, name);
	r.ifr_addr = internet(address);
	must(ioctl(s, SIOCSIFADDR, &r), name);
	r.ifr_netmask = internet(mask);
	must(ioctl(s, SIOCSIFNETMASK, &r), name);
	r.ifr_flags = IFF_UP | IFF_RUNNING;
	must(ioctl(s, SIOCSIFFLAGS, &r), name);
}

int main(void)
{
	puts("bench: init");
	fflush(stdout);
	must(mount("proc", "/proc", "proc", 0, "") || mount("sys", "/sys", "sysfs", 0, "") ||
		     mount("dev", "/dev", "devtmpfs", 0, ""), "mount");
	if (getenv("groups"))
		must(mount("groups", "/sys/fs/cgroup", "cgroup2", 0, ""), "mounting control groups");
	for (char **m = lines("/bench/modules"); *m; m++) {
		int f = open(*m, O_RDONLY | O_CLOEXEC);
		must(f < 0 || syscall(SYS_finit_module, f, "", 0), *m);
		close(f);
	}
	/* Addresses of QEMU's user network. */
	int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	interface(s, "lo", "127.0.0.1", "255.0.0.0");
	interface(s, "eth0", "10.0.2.15", "255.255.255.0");
	struct rtentry route = { .rt_dst = internet("0.0.0.0"), .rt_gateway = internet("10.0.2.2"),
				 .rt_genmask = internet("0.0.0.0"), .rt_flags = RTF_UP | RTF_GATEWAY };
	must(ioctl(s, SIOCADDRT, &route), "route");
	char **words = lines("/bench/run");
	setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", 1);
	pid_t child = vfork();
	if (!child) {
		execv(words[0], words);
		_exit(127);
	}
	int status = 0;
	must(child < 0 || waitpid(child, &status, 0) < 0, "starting the program");
	printf("bench: ended with status %#x\n", status);
	fflush(stdout);
	return reboot(RB_AUTOBOOT);
}
