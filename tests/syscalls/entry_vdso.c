// The vDSO, found as programs find it that read ELF themselves: by the
// auxiliary vector and by dl_iterate_phdr.
#define _GNU_SOURCE
#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/time.h>
#include <time.h>

static const Elf64_Ehdr *vdso;
static int listed;

static void *find(const char *wanted, const char *version)
{
	const Elf64_Phdr *p = (void *)((char *)vdso + vdso->e_phoff);
	const Elf64_Dyn *dynamic = NULL;
	unsigned long bias = 0;
	for (int i = 0; i < vdso->e_phnum; i++) {
		if (p[i].p_type == PT_LOAD)
			bias = (unsigned long)vdso + p[i].p_offset - p[i].p_vaddr;
		else if (p[i].p_type == PT_DYNAMIC)
			dynamic = (void *)((char *)vdso + p[i].p_offset);
	}
	const char *strings = NULL;
	const Elf64_Sym *symbols = NULL;
	const unsigned *hash = NULL;
	const unsigned short *versions = NULL;
	const Elf64_Verdef *definitions = NULL;
	for (; dynamic && dynamic->d_tag; dynamic++) {
		void *at = (void *)(bias + dynamic->d_un.d_ptr);
		switch (dynamic->d_tag) {
		case DT_STRTAB: strings = at; break;
		case DT_SYMTAB: symbols = at; break;
		case DT_HASH: hash = at; break;
		case DT_VERSYM: versions = at; break;
		case DT_VERDEF: definitions = at; break;
		}
	}
	if (!strings || !symbols)
		return NULL;
	unsigned count = hash ? hash[1] : 64;
	for (unsigned i = 1; i < count; i++) {
		if (strcmp(strings + symbols[i].st_name, wanted) || !symbols[i].st_shndx)
			continue;
		if (versions && definitions) {
			const Elf64_Verdef *d = definitions;
			while ((d->vd_ndx & 0x7fff) != (versions[i] & 0x7fff)) {
				if (!d->vd_next)
					return NULL;
				d = (void *)((char *)d + d->vd_next);
			}
			const Elf64_Verdaux *a = (void *)((char *)d + d->vd_aux);
			if (strcmp(strings + a->vda_name, version))
				return NULL;
		}
		return (void *)(bias + symbols[i].st_value);
	}
	return NULL;
}

static int look(struct dl_phdr_info *info, size_t size, void *data)
{
	if (strstr(info->dlpi_name, "vdso") && info->dlpi_phnum)
		listed = info->dlpi_addr != 0;
	return 0;
}

int main(void)
{
	vdso = (void *)getauxval(AT_SYSINFO_EHDR);
	printf("there: %d\n", vdso && !memcmp(vdso->e_ident, ELFMAG, SELFMAG));
	printf("page: %lu\n", (unsigned long)vdso % 4096);
	printf("dynamic: %d\n", vdso->e_type == ET_DYN && vdso->e_machine == EM_X86_64);
	dl_iterate_phdr(look, NULL);
	printf("listed: %d\n", listed);
	int (*clock)(clockid_t, struct timespec *) = find("__vdso_clock_gettime", "LINUX_2.6");
	int (*resolution)(clockid_t, struct timespec *) = find("__vdso_clock_getres", "LINUX_2.6");
	int (*day)(struct timeval *, void *) = find("__vdso_gettimeofday", "LINUX_2.6");
	time_t (*seconds)(time_t *) = find("__vdso_time", "LINUX_2.6");
	int (*cpu)(unsigned *, unsigned *, void *) = find("__vdso_getcpu", "LINUX_2.6");
	printf("found: %d %d %d %d %d\n", !!clock, !!resolution, !!day, !!seconds, !!cpu);
	printf("not: %d %d\n", !!find("__vdso_nothing", "LINUX_2.6"), !!find("__vdso_time", "LINUX_9"));
	struct timespec a, b;
	struct timeval v;
	clock(CLOCK_MONOTONIC, &a);
	clock_gettime(CLOCK_MONOTONIC, &b);
	printf("monotonic: %d\n", b.tv_sec - a.tv_sec >= 0 && b.tv_sec - a.tv_sec <= 1);
	clock(CLOCK_REALTIME, &a);
	day(&v, NULL);
	time_t t = seconds(NULL);
	printf("real: %d %d\n", v.tv_sec - a.tv_sec <= 1, t - a.tv_sec <= 1 && t - a.tv_sec >= -1);
	for (int id = 0; id < 12; id++) {
		// The alarm clocks depend on the machine's RTC.
		if (id == 8 || id == 9)
			continue;
		int r = clock(id, &a);
		printf("clock %d: %d", id, r ? r : 0);
		r = resolution(id, &a);
		printf(" %d %ld\n", r, r ? 0 : a.tv_nsec);
	}
	printf("bad clock: %d\n", clock(1234, &a));
	unsigned where = 12345, node = 12345;
	printf("cpu: %d %d\n", cpu(&where, &node, NULL), where < 4096 && node < 64);
	return 0;
}
