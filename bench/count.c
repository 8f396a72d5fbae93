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
 * Exact for one processor, but for runs that a fault or an interrupt leaves early, which count whole.
 * QEMU's header is not needed: Debian ships none, so what is used of it is declared here (API version 1). */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum qemu_plugin_op { QEMU_PLUGIN_INLINE_ADD_U64 };
enum qemu_plugin_cb_flags { QEMU_PLUGIN_CB_NO_REGS };
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *, enum qemu_plugin_op, void *, uint64_t);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, void (*)(unsigned, void *),
					    enum qemu_plugin_cb_flags, void *);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

enum { INSTRUCTIONS, REPETITIONS, MARKS, PLACES, RING = 16, RING_LENGTH = 64, FIRST = RING + 2 * RING_LENGTH };

/* nopl NUMBER+0x41544c00(%rax): does nothing on any machine, and no compiler makes it. */
static const unsigned char MARK[] = { 0x0f, 0x1f, 0x80 };
static const unsigned char MARK_END[] = { 0x4c, 0x54, 0x41 };

static uint64_t *words, most;

static void marked(unsigned cpu, void *number)
{
	(void)cpu;
	uint64_t *at = words + RING + words[MARKS] % RING_LENGTH * 2;
	at[0] = (uintptr_t)number;
	at[1] = words[INSTRUCTIONS];
	__atomic_fetch_add(&words[MARKS], 1, __ATOMIC_SEQ_CST);
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
	for (size_t i = 0; i < n; i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
		const unsigned char *code = qemu_plugin_insn_data(insn);
		if (qemu_plugin_insn_size(insn) == 7 && !memcmp(code, MARK, 3) && !memcmp(code + 4, MARK_END, 3))
			qemu_plugin_register_vcpu_insn_exec_cb(insn, marked, QEMU_PLUGIN_CB_NO_REGS,
							       (void *)(uintptr_t)code[3]);
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
		else if (!strncmp(argv[i], "places=", 7))
			most = strtoull(argv[i] + 7, NULL, 10);
		else
			return fprintf(stderr, "count: unknown option %s\n", argv[i]), 1;
	}
	size_t size = (FIRST + 3 * most) * 8;
	int fd = path ? open(path, O_RDWR | O_CREAT, 0600) : -1;
	if (fd < 0 || ftruncate(fd, size))
		return perror("count: the file that to= names"), 1;
	words = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (words == MAP_FAILED)
		return perror("count: mapping the file"), 1;
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	return 0;
}
