// What a program finds when it starts: arguments, environment, auxiliary
// vector, and where they lie. The programs that include this are built in
// different ways.
#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

extern char **environ;

int main(int argc, char **argv, char **envp)
{
	printf("arguments: %d %d\n", argc, argv[argc] == NULL);
	// argc, argv, NULL, envp, NULL, auxv: one after the other.
	printf("argc before argv: %d\n", (int)((long *)argv)[-1] == argc);
	printf("environment behind arguments: %d %d\n", envp == argv + argc + 1, environ == envp);
	int n = 0;
	while (envp[n])
		n++;
	char *tz = NULL;
	for (int i = 0; i < n; i++)
		if (!strncmp(envp[i], "TZ=", 3))
			tz = envp[i];
	printf("environment: %s\n", tz ? tz : "none");
	Elf64_auxv_t *aux = (void *)(envp + n + 1);
	uintptr_t top = 0, random = 0, name = 0, platform = 0;
	int keys[64] = { 0 };
	for (; aux->a_type != AT_NULL; aux++) {
		if (aux->a_type < 64)
			keys[aux->a_type]++;
		if (aux->a_type == AT_RANDOM)
			random = aux->a_un.a_val;
		if (aux->a_type == AT_EXECFN)
			name = aux->a_un.a_val;
		if (aux->a_type == AT_PLATFORM)
			platform = aux->a_un.a_val;
	}
	// Those that every Linux since 5.11 gives on this processor.
	static const int wanted[] = { AT_PHDR, AT_PHENT, AT_PHNUM, AT_PAGESZ, AT_BASE, AT_FLAGS, AT_ENTRY, AT_UID, AT_EUID,
				      AT_GID, AT_EGID, AT_PLATFORM, AT_HWCAP, AT_CLKTCK, AT_SECURE, AT_RANDOM, AT_HWCAP2,
				      AT_EXECFN, AT_SYSINFO_EHDR, 51 /* AT_MINSIGSTKSZ */ };
	for (unsigned i = 0; i < sizeof wanted / sizeof *wanted; i++)
		printf("key %d: %d\n", wanted[i], keys[wanted[i]]);
	printf("page %lu, ticks %lu, headers %lu, flags %lu, secure %lu\n", getauxval(AT_PAGESZ), getauxval(AT_CLKTCK),
	       getauxval(AT_PHENT), getauxval(AT_FLAGS), getauxval(AT_SECURE));
	// Not AT_HWCAP2: there Linux offers the GS base, which a cell keeps for itself.
	printf("hwcap %lx\n", getauxval(AT_HWCAP));
	printf("signal stack %d\n", getauxval(51) > 1024 && getauxval(51) < 16384);
	printf("ids %d\n", getauxval(AT_UID) == getuid() && getauxval(AT_EUID) == geteuid() && getauxval(AT_GID) == getgid() &&
				   getauxval(AT_EGID) == getegid());
	printf("platform %s\n", (char *)platform);
	printf("name ends with %s\n", strrchr((char *)name, '/'));
	int zeroes = 0;
	for (int i = 0; i < 16; i++)
		zeroes += !((char *)random)[i];
	printf("random %d\n", zeroes < 8);
	// From low to high: vectors, random bytes and platform, argument strings, environment strings, the file's name.
	printf("order %d %d %d\n", (char *)(aux + 1) <= (char *)random && (char *)(aux + 1) <= (char *)platform,
	       random < (uintptr_t)argv[0] && platform < (uintptr_t)argv[0],
	       (uintptr_t)argv[0] < (uintptr_t)envp[0] && (uintptr_t)envp[n - 1] < name);
	int follow = 1;
	for (int i = 0; i + 1 < argc; i++)
		follow &= argv[i] + strlen(argv[i]) + 1 == argv[i + 1];
	for (int i = 0; i + 1 < n; i++)
		follow &= envp[i] + strlen(envp[i]) + 1 == envp[i + 1];
	follow &= argv[argc - 1] + strlen(argv[argc - 1]) + 1 == envp[0];
	follow &= envp[n - 1] + strlen(envp[n - 1]) + 1 == (char *)name;
	printf("strings follow each other %d\n", follow);
	// The file's name is the last thing on the stack but for one word of zeroes.
	top = name + strlen((char *)name) + 1;
	printf("top of the stack %lu, %d\n", (top + 8) % 4096, *(long *)top == 0);
	// The headers are this program's own.
	Elf64_Phdr *p = (void *)getauxval(AT_PHDR);
	int own = 0, interpreter = 0;
	unsigned long here = (unsigned long)main, bias = 0;
	for (unsigned i = 0; i < getauxval(AT_PHNUM); i++)
		if (p[i].p_type == PT_PHDR)
			bias = (unsigned long)p - p[i].p_vaddr;
	for (unsigned i = 0; i < getauxval(AT_PHNUM); i++) {
		if (p[i].p_type == PT_LOAD && here - bias - p[i].p_vaddr < p[i].p_memsz)
			own = 1;
		if (p[i].p_type == PT_INTERP)
			interpreter = 1;
	}
	printf("headers %d, interpreter %d, base %d\n", own || !bias, interpreter, getauxval(AT_BASE) != 0);
	return 0;
}
