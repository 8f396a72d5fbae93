/* What plugins of QEMU here have in common. QEMU's header is not needed: Debian ships none, so what is used of it is declared here (API
 * version 1). */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef uint64_t qemu_plugin_id_t;
typedef uint32_t qemu_plugin_meminfo_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_plugin_hwaddr;
enum qemu_plugin_op { QEMU_PLUGIN_INLINE_ADD_U64 };
enum qemu_plugin_cb_flags { QEMU_PLUGIN_CB_NO_REGS };
enum qemu_plugin_mem_rw { QEMU_PLUGIN_MEM_RW = 3 };
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *, enum qemu_plugin_op, void *, uint64_t);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, void (*)(unsigned, void *),
					    enum qemu_plugin_cb_flags, void *);
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *,
				      void (*)(unsigned, qemu_plugin_meminfo_t, uint64_t, void *),
				      enum qemu_plugin_cb_flags, enum qemu_plugin_mem_rw, void *);
struct qemu_plugin_hwaddr *qemu_plugin_get_hwaddr(qemu_plugin_meminfo_t, uint64_t);
_Bool qemu_plugin_hwaddr_is_io(const struct qemu_plugin_hwaddr *);
uint64_t qemu_plugin_hwaddr_phys_addr(const struct qemu_plugin_hwaddr *);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

/* Words of the file that a plugin writes, 64 bits each; some are one plugin's only. */
enum { INSTRUCTIONS, REPETITIONS, MARKS, PLACES, RING = 16, RING_LENGTH = 64, FIRST = RING + 2 * RING_LENGTH };

static uint64_t *words;

/* nopl NUMBER+0x41544c00(%rax): does nothing on any machine, and no compiler makes it. */
static const unsigned char MARK[] = { 0x0f, 0x1f, 0x80 };
static const unsigned char MARK_END[] = { 0x4c, 0x54, 0x41 };

/* If an instruction is a mark, it is told of with its number from now on. */
static void tell_of_mark(struct qemu_plugin_insn *insn, void (*marked)(unsigned cpu, void *number))
{
	const unsigned char *code = qemu_plugin_insn_data(insn);
	if (qemu_plugin_insn_size(insn) == 7 && !memcmp(code, MARK, 3) && !memcmp(code + 4, MARK_END, 3))
		qemu_plugin_register_vcpu_insn_exec_cb(insn, marked, QEMU_PLUGIN_CB_NO_REGS, (void *)(uintptr_t)code[3]);
}

/* Notes a mark that was passed, with what was counted until then. */
static void note_mark(void *number, uint64_t counted)
{
	uint64_t *at = words + RING + words[MARKS] % RING_LENGTH * 2;
	at[0] = (uintptr_t)number;
	at[1] = counted;
	__atomic_fetch_add(&words[MARKS], 1, __ATOMIC_SEQ_CST);
}

/* Makes the file, of so many words. False: that failed, and it was said why. */
static int make_file(const char *path, size_t count)
{
	int fd = path ? open(path, O_RDWR | O_CREAT, 0600) : -1;
	if (fd < 0 || ftruncate(fd, count * 8))
		return perror("the file that to= names"), 0;
	words = mmap(NULL, count * 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (words == MAP_FAILED)
		return perror("mapping the file"), 0;
	return 1;
}
