/* A plugin of QEMU that counts the instructions a guest executes, into a file that can be read at any time.
 *
 * qemu-system-x86_64 -plugin count.so,to=PATH[,places=N]
 *
 * The file, 64-bit words:
 *   0   instructions; a repeated string instruction counts once, as processors count it
 *   1   repetitions of string instructions beyond that
 *   2   marks that were passed (see MARK), each time one is
 *   3   places that are used, at most N
 *   16  for each of the last 64 marks: its number, and word 0 at that time
 *   144 places, if asked for: address, instructions, times executed. A place is a straight run of code as
 *       QEMU translates it; one address may have several.
 *
 * Exact for one processor, but for runs that a fault or an interrupt leaves early, which count whole. */
#include "plugin.h"

static uint64_t most;

static void marked(unsigned cpu, void *number)
{
	(void)cpu;
	note_mark(number, words[INSTRUCTIONS]);
}

/* A string instruction with a repeat prefix: QEMU translates it so that it comes back to itself. */
static int repeats(const unsigned char *code, size_t length)
{
	int prefix = 0;
	for (size_t i = 0; i < length; i++) {
		if (code[i] == 0xf2 || code[i] == 0xf3)
			prefix = 1;
		else if (code[i] != 0x66 && code[i] != 0x67 && (code[i] & 0xf0) != 0x40)
			return prefix && ((code[i] >= 0xa4 && code[i] <= 0xaf && code[i] != 0xa8 && code[i] != 0xa9) ||
					  (code[i] >= 0x6c && code[i] <= 0x6f));
	}
	return 0;
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	(void)id;
	size_t n = qemu_plugin_tb_n_insns(tb);
	struct qemu_plugin_insn *first = qemu_plugin_tb_get_insn(tb, 0);
	/* The first repetition comes by in the run that leads there; later ones begin a run of their own. */
	int again = repeats(qemu_plugin_insn_data(first), qemu_plugin_insn_size(first));
	if (again)
		qemu_plugin_register_vcpu_tb_exec_inline(tb, QEMU_PLUGIN_INLINE_ADD_U64, &words[REPETITIONS], 1);
	if (n > (size_t)again)
		qemu_plugin_register_vcpu_tb_exec_inline(tb, QEMU_PLUGIN_INLINE_ADD_U64, &words[INSTRUCTIONS], n - again);
	if (words[PLACES] < most) {
		uint64_t *place = words + FIRST + words[PLACES]++ * 3;
		place[0] = qemu_plugin_insn_vaddr(first);
		place[1] = n - again;
		qemu_plugin_register_vcpu_tb_exec_inline(tb, QEMU_PLUGIN_INLINE_ADD_U64, &place[2], 1);
	}
	for (size_t i = 0; i < n; i++)
		tell_of_mark(qemu_plugin_tb_get_insn(tb, i), marked);
}

__attribute__((visibility("default"))) int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc,
							       char **argv)
{
	(void)info;
	const char *path = NULL;
	for (int i = 0; i < argc; i++) {
		if (!strncmp(argv[i], "to=", 3))
			path = argv[i] + 3;
		else if (!strncmp(argv[i], "places=", 7))
			most = strtoull(argv[i] + 7, NULL, 10);
		else
			return fprintf(stderr, "count: unknown option %s\n", argv[i]), 1;
	}
	if (!make_file(path, FIRST + 3 * most))
		return 1;
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	return 0;
}
