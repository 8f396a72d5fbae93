/* A plugin of QEMU that models one cache which all processors of a guest share, indexed by physical addresses, as second and last levels are:
 * 64 bytes a line, the line that was used least recently goes. Only reads and writes of data count, and only between the first and the last
 * mark (mark.h).
 *
 * qemu-system-x86_64 -plugin cache.so,to=PATH[,kib=1024][,ways=16]
 *
 * The file is as count.c's. With each mark stands how often the processor that passed it had missed until then. */
#include "plugin.h"

enum { LINE = 64, PROCESSORS = 64, WAYS_MAX = 64, LAST = 255 };

/* A set: addresses of its lines, the one that was used last first; 0: none. One processor at a time looks at it. */
struct set {
	uint64_t lines[WAYS_MAX];
	_Bool taken;
};

static struct set *sets;
static uint64_t count, ways = 16, kib = 1024, missed[PROCESSORS];
static _Bool counting;

static void used(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *unused)
{
	(void)unused;
	if (!__atomic_load_n(&counting, __ATOMIC_RELAXED) || cpu >= PROCESSORS)
		return;
	struct qemu_plugin_hwaddr *where = qemu_plugin_get_hwaddr(info, address);
	if (!where || qemu_plugin_hwaddr_is_io(where))
		return;
	/* None is 0. */
	uint64_t line = qemu_plugin_hwaddr_phys_addr(where) / LINE + 1, kept = line;
	struct set *set = &sets[(line - 1) % count];
	while (__atomic_test_and_set(&set->taken, __ATOMIC_ACQUIRE))
		;
	uint64_t n = 0;
	do {
		uint64_t was = set->lines[n];
		set->lines[n] = kept;
		kept = was;
	} while (kept != line && ++n < ways);
	__atomic_clear(&set->taken, __ATOMIC_RELEASE);
	missed[cpu] += n == ways;
}

static void marked(unsigned cpu, void *number)
{
	__atomic_store_n(&counting, (uintptr_t)number != LAST, __ATOMIC_RELAXED);
	note_mark(number, cpu < PROCESSORS ? missed[cpu] : 0);
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	(void)id;
	for (size_t i = 0, n = qemu_plugin_tb_n_insns(tb); i < n; i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
		qemu_plugin_register_vcpu_mem_cb(insn, used, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_RW, NULL);
		tell_of_mark(insn, marked);
	}
}

__attribute__((visibility("default"))) int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc,
							       char **argv)
{
	(void)info;
	const char *path = NULL;
	for (int i = 0; i < argc; i++) {
		if (!strncmp(argv[i], "to=", 3))
			path = argv[i] + 3;
		else if (!strncmp(argv[i], "kib=", 4))
			kib = strtoull(argv[i] + 4, NULL, 10);
		else if (!strncmp(argv[i], "ways=", 5))
			ways = strtoull(argv[i] + 5, NULL, 10);
		else
			return fprintf(stderr, "cache: unknown option %s\n", argv[i]), 1;
	}
	if (ways < 1 || ways > WAYS_MAX || !(count = kib * 1024 / LINE / ways))
		return fprintf(stderr, "cache: there is no such cache\n"), 1;
	sets = calloc(count, sizeof *sets);
	if (!sets)
		return perror("cache"), 1;
	if (!make_file(path, FIRST))
		return 1;
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	return 0;
}
