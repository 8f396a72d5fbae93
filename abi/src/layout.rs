//! The address map of a space: where the runtime lives, and where a program may.
//!
//! Every space of a cell (one host process or one nucleus address space)
//! maps the runtime at the same addresses, so a pointer into runtime memory
//! means the same thing in all of them. The region was chosen where no
//! allocator, sanitizer or language runtime known to us asks for memory by
//! address: it lies in MemorySanitizer's "invalid" range, above Go's arena
//! hints and ZGC's colour views, below the usual mmap area.

/// Size of a small page, bytes.
pub const PAGE: u64 = 4096;
/// Size of a huge page and of an extent block, bytes.
pub const BLOCK: u64 = 2 << 20;

/// First address of the runtime region.
pub const RUNTIME_BASE: u64 = 0x4000_0000_0000;
/// Room for the runtime's image: text, read-only data, data.
pub const IMAGE_MAX: u64 = 32 << 20;
/// Where the platform's own clock code (the host's vDSO) is moved to.
pub const VDSO_AREA: u64 = RUNTIME_BASE + (32 << 20);
/// Size of [`VDSO_AREA`].
pub const VDSO_AREA_SIZE: u64 = 1 << 20;
/// Code in `[RUNTIME_BASE, EXEMPT_END)` may make platform calls; a `syscall`
/// instruction anywhere else is an upcall (syscall user dispatch on the host).
pub const EXEMPT_END: u64 = VDSO_AREA + VDSO_AREA_SIZE;
/// Memory private to one host process: one [`HOST_THREAD_SIZE`] area a core.
pub const HOST_THREADS: u64 = RUNTIME_BASE + (64 << 20);
/// Size of one host thread's area: its loop stack and its alternate signal stack.
pub const HOST_THREAD_SIZE: u64 = 128 << 10;
/// Size of the loop stack at the bottom of that area; the alternate signal stack, or the trap stack, is at its end.
pub const LOOP_STACK: u64 = 32 << 10;
/// Size of the trap stack on the nucleus. Between the two nothing is mapped.
pub const TRAP_STACK: u64 = 32 << 10;
/// Registers of the devices that a cell was granted, on the nucleus: for each device, room for each structure.
pub const DEVICES: u64 = RUNTIME_BASE + (112 << 20);
/// Room for a structure of a device's registers ([`crate::control::structure`]), whole pages.
pub const DEVICE_STRUCTURE: u64 = 64 << 10;
/// Lines from other cells, on the nucleus: an [inbox](crate::mailbox::Inbox) each.
pub const INBOXES: u64 = RUNTIME_BASE + (120 << 20);
/// The control area ([`crate::control::Control`]), shared with the supervisor.
pub const CONTROL: u64 = RUNTIME_BASE + (128 << 20);
/// The root file system's archive on the nucleus, read-only.
pub const ARCHIVE: u64 = RUNTIME_BASE + (512 << 30);
/// Linear map of all the cell's memory extents: offset 0 of the cell's memory is here.
pub const DIRECT_MAP: u64 = RUNTIME_BASE + (1 << 40);
/// End of the runtime region. The direct map can be 15 TiB.
pub const RUNTIME_END: u64 = RUNTIME_BASE + (16 << 40);

/// Lowest address that a program may map (Linux's default `vm.mmap_min_addr`).
pub const USER_MIN: u64 = 0x1_0000;
/// End of the program's addresses (Linux's TASK_SIZE with four-level tables).
pub const USER_MAX: u64 = 0x7fff_ffff_f000;

/// The part of a trampoline that calls the runtime begins this many bytes
/// before the address that it is to be returned to: `lea rcx, [rip + 8]` and
/// `jmp gs:[entry]`.
pub const TRAMPOLINE_RETURN: u64 = 15;

/// The most cores a cell can have.
pub const MAX_CORES: usize = 256;
/// The most spaces (process images) that can exist in a cell at a time.
pub const MAX_SPACES: usize = 1024;

/// How much memory a cell has, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// The most that it can have: its tables are for so much.
    pub most: u64,
    /// What it has: so much from offset 0 on.
    pub now: u64,
    /// The least: this is never taken back, and what can't be moved is kept there.
    pub least: u64,
}

impl Sizes {
    /// So much, always.
    pub const fn fixed(bytes: u64) -> Sizes {
        Sizes { most: bytes, now: bytes, least: bytes }
    }
}

/// Bytes of the runtime's table of pages that lie in the first block of the cell's
/// memory; the rest of the table, needed only when the cell grows, lies behind that block.
pub const NEAR_TABLE: u64 = 128 << 10;
/// Bytes of the runtime's table of pages: what each is, and who pays for it.
pub const fn page_table(memory: u64) -> u64 {
    memory / PAGE * 2
}
/// Bytes of the runtime's other tables: a bit, an owner, payers and where the sharers are a block, lists and an account a core.
pub const fn small_tables(memory: u64, cores: u64) -> u64 {
    memory / BLOCK * 19 + cores * 3136 + 4096
}

/// The blocks at the start of a cell's memory that hold the runtime's tables.
pub const fn table_blocks(memory: u64, cores: u64) -> u64 {
    let (small, pages) = (small_tables(memory, cores), page_table(memory));
    let near = if pages < NEAR_TABLE { pages } else { NEAR_TABLE };
    let front = (small + near).next_multiple_of(PAGE);
    let first = BLOCK.saturating_sub(front);
    (first + small + pages).div_ceil(BLOCK)
}

/// The blocks at the start of a cell's memory that hold the runtime's tables, and then, until they are used up, whatever is needed:
/// a small program's cell has its own objects and the program's pages in the same few blocks. Further ones are for either.
pub const fn mixed_blocks(memory: u64, cores: u64) -> u64 {
    table_blocks(memory, cores) + 4
}

/// Which one in order of use a block is, where the first `mixed` serve all, and from `fixed` on there is what can be moved: what the
/// most is needed of. None: it is one of those between.
pub const fn order_of_block(block: u64, fixed: u64, mixed: u64) -> Option<u64> {
    if block < mixed {
        Some(block)
    } else if block >= fixed {
        Some(block - fixed + mixed)
    } else {
        None
    }
}

/// The block that is the one of this number in order of use.
pub const fn block_in_order(number: u64, fixed: u64, mixed: u64) -> u64 {
    if number < mixed { number } else { number - mixed + fixed }
}

/// Is `[addr, addr + len)` wholly in the part of a space that belongs to the program?
#[inline(always)]
pub const fn is_user_range(addr: u64, len: u64) -> bool {
    let Some(end) = addr.checked_add(len) else { return false };
    end <= USER_MAX && (end <= RUNTIME_BASE || addr >= RUNTIME_END)
}

/// Rounds down to a page.
pub const fn page_down(x: u64) -> u64 {
    x & !(PAGE - 1)
}

/// Rounds up to a page; saturates at the top.
pub const fn page_up(x: u64) -> u64 {
    match x.checked_add(PAGE - 1) {
        Some(y) => y & !(PAGE - 1),
        None => !(PAGE - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_in_order_of_use() {
        for (fixed, mixed) in [(0, 0), (5, 0), (5, 3), (7, 7)] {
            for number in 0..20 {
                assert_eq!(order_of_block(block_in_order(number, fixed, mixed), fixed, mixed), Some(number));
            }
            assert!((mixed..fixed).all(|block| order_of_block(block, fixed, mixed).is_none()));
        }
    }

    #[test]
    fn user_ranges() {
        assert!(is_user_range(0, 0));
        assert!(is_user_range(0x40_0000, 0x1000));
        assert!(is_user_range(RUNTIME_BASE - 8, 8));
        assert!(!is_user_range(RUNTIME_BASE - 8, 9));
        assert!(!is_user_range(DIRECT_MAP, 1));
        assert!(is_user_range(RUNTIME_END, 1));
        assert!(!is_user_range(USER_MAX - 1, 2));
        assert!(!is_user_range(u64::MAX, 2));
    }
}
