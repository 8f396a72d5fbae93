//! Address spaces: the nucleus's own, and the cells'.
//!
//! The upper half is the same for all cores and in all spaces: the image, with code that can't
//! be written and everything else not executed; all of physical memory at [`DIRECT`], without the
//! image's code and constants being writable there; devices' registers, uncached; stacks between
//! pages that are not there. The lower half belongs to the spaces and is empty.
#![allow(unsafe_code, reason = "writes page tables")]

use core::sync::atomic::{AtomicU64, Ordering};

use atoll_partition::{Extent, disjoint};
use x86_64::PhysAddr;
use x86_64::registers::control::{Cr3, Cr3Flags};
use x86_64::structures::paging::{PageTable, PageTableFlags as Flags, PhysFrame};

use crate::entry::{self, DIRECT, TRAMPOLINE, VIRTUAL};
use crate::memory::{FRAME, Frames};
use crate::pvh::{ACPI, Boot};

/// Where registers of devices are mapped.
const DEVICES: u64 = entry::DIRECT_END;
/// Where stacks are.
const STACKS: u64 = 0xffff_d000_0000_0000;
const HUGE: u64 = 2 << 20;
/// End of what ring 3 may have. The last page below the hole in the addresses stays empty: a `syscall` at its
/// end would have `sysret` fault in ring 0.
pub const USER_END: u64 = 0x7fff_ffff_f000;

/// Code: read, not written.
const CODE: Flags = Flags::PRESENT.union(Flags::GLOBAL);
const CONSTANT: Flags = CODE.union(Flags::NO_EXECUTE);
const DATA: Flags = CONSTANT.union(Flags::WRITABLE);
const DEVICE: Flags = DATA.union(Flags::NO_CACHE).union(Flags::WRITE_THROUGH);

/// Physical address of the nucleus's own topmost table.
static NUCLEUS: AtomicU64 = AtomicU64::new(0);

/// What may go wrong.
type Result<T> = core::result::Result<T, &'static str>;

/// What ring 3 may do with its memory; nothing can be written and executed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read.
    Read,
    /// Read and write.
    Write,
    /// Read and execute.
    Run,
    /// Registers of a device: read and write, not through the cache.
    Registers,
}

/// The tables.
pub struct AddressSpace {
    root: u64,
    devices: u64,
    stacks: u64,
}

fn table(at: u64) -> &'static mut PageTable {
    // SAFETY: only this module has references to tables, one at a time; frames are in the direct map.
    unsafe { &mut *((DIRECT + at) as *mut PageTable) }
}

impl AddressSpace {
    /// The nucleus's mappings, as its first page tables have them but strict.
    pub fn new(boot: &Boot, frames: &mut Frames) -> Result<AddressSpace> {
        let root = frames.take(1).ok_or("no memory for page tables")?;
        NUCLEUS.store(root, Ordering::Relaxed);
        let space = AddressSpace { root, devices: DEVICES, stacks: STACKS };
        let [text, constants, data, end] = entry::image();
        for (from, to, flags) in [(text, constants, CODE), (constants, data, CONSTANT), (data, end, DATA)] {
            space.map(frames, from, from - VIRTUAL, to - from, flags)?;
        }
        let fixed = text - VIRTUAL..data - VIRTUAL;
        // In whole pages, and each page once.
        let pages = |r: Extent| {
            let start = r.start / FRAME * FRAME;
            Extent { start, len: (r.start + r.len).next_multiple_of(FRAME) - start }
        };
        let acpi = boot.memory.iter().filter(|r| r.kind == ACPI);
        let acpi = acpi.map(|r| Extent { start: r.start, len: r.len });
        let seen = disjoint(boot.ram().chain(acpi).map(pages)).map_err(|_| "too many pieces of memory")?;
        for r in seen {
            let (start, end) = (r.start, r.start + r.len);
            let parts = [
                (start, end.min(fixed.start), DATA),
                (start.max(fixed.start), end.min(fixed.end), CONSTANT),
                (start.max(fixed.end), end, DATA),
            ];
            for (from, to, flags) in parts {
                if from < to {
                    space.map(frames, DIRECT + from, from, to - from, flags)?;
                }
            }
        }
        Ok(space)
    }

    fn entry_for(
        &self,
        frames: &mut Frames,
        at: u64,
        depth: u32,
    ) -> Result<&'static mut x86_64::structures::paging::page_table::PageTableEntry> {
        let mut here = self.root;
        for level in (depth + 1..4).rev() {
            let entry = &mut table(here)[(at >> (12 + 9 * level) & 511) as usize];
            if entry.is_unused() {
                let frame = frames.take(1).ok_or("no memory for page tables")?;
                // Who may do what is said at the last level; above, only which half it is.
                let user = if at < USER_END { Flags::USER_ACCESSIBLE } else { Flags::empty() };
                entry.set_addr(PhysAddr::new(frame), Flags::PRESENT | Flags::WRITABLE | user);
            } else if entry.flags().contains(Flags::HUGE_PAGE) {
                return Err("a small page inside a huge one");
            }
            here = entry.addr().as_u64();
        }
        Ok(&mut table(here)[(at >> (12 + 9 * depth) & 511) as usize])
    }

    /// Maps `len` bytes at `at` to physical memory; with huge pages where they fit.
    fn map(&self, frames: &mut Frames, at: u64, physical: u64, len: u64, flags: Flags) -> Result<()> {
        let mut done = 0;
        while done < len {
            let (v, p) = (at + done, physical + done);
            let huge = v.is_multiple_of(HUGE) && p.is_multiple_of(HUGE) && len - done >= HUGE;
            let (depth, step, flags) =
                if huge { (1, HUGE, flags | Flags::HUGE_PAGE) } else { (0, FRAME, flags) };
            let entry = self.entry_for(frames, v, depth)?;
            if !entry.is_unused() && (entry.addr().as_u64(), entry.flags()) != (p, flags) {
                return Err("the memory map has a page twice");
            }
            entry.set_addr(PhysAddr::new(p), flags);
            done += step;
        }
        Ok(())
    }

    /// A space for ring 3: the upper half is the nucleus's, the lower one empty.
    pub fn for_cell(&self, frames: &mut Frames) -> Result<AddressSpace> {
        let root = frames.take(1).ok_or("no memory for page tables")?;
        for n in 256..512 {
            let entry = &table(self.root)[n];
            let (at, flags) = (entry.addr(), entry.flags());
            if !entry.is_unused() {
                table(root)[n].set_addr(at, flags);
            }
        }
        Ok(AddressSpace { root, devices: 0, stacks: 0 })
    }

    /// Maps memory for ring 3.
    pub fn map_user(
        &self,
        frames: &mut Frames,
        at: u64,
        physical: u64,
        len: u64,
        access: Access,
    ) -> Result<()> {
        if at.checked_add(len).is_none_or(|end| end > USER_END) {
            return Err("not an address of ring 3");
        }
        let flags = match access {
            Access::Read => Flags::NO_EXECUTE,
            Access::Write => Flags::NO_EXECUTE | Flags::WRITABLE,
            Access::Run => Flags::empty(),
            Access::Registers => DEVICE,
        };
        self.map(frames, at, physical, len, flags | Flags::PRESENT | Flags::USER_ACCESSIBLE)
    }

    /// Maps a page of registers; its address.
    pub fn map_device(&mut self, frames: &mut Frames, physical: u64) -> Result<u64> {
        self.map_registers(frames, physical, FRAME)
    }

    /// Maps whole pages of registers; their address.
    pub fn map_registers(&mut self, frames: &mut Frames, physical: u64, len: u64) -> Result<u64> {
        let at = self.devices;
        self.map(frames, at, physical, len, DEVICE)?;
        self.devices += len;
        Ok(at)
    }

    /// Makes a stack of `pages` pages with nothing below it; its top.
    pub fn make_stack(&mut self, frames: &mut Frames, pages: u64) -> Result<u64> {
        let physical = frames.take(pages).ok_or("no memory for a stack")?;
        let at = self.stacks + FRAME;
        self.map(frames, at, physical, pages * FRAME, DATA)?;
        self.stacks = at + pages * FRAME;
        Ok(self.stacks)
    }

    /// Maps the page where cores begin, in the lower half at its physical address, or takes it away.
    pub fn trampoline(&self, frames: &mut Frames, there: bool) -> Result<()> {
        let entry = self.entry_for(frames, TRAMPOLINE, 0)?;
        if there {
            entry.set_addr(PhysAddr::new(TRAMPOLINE), Flags::PRESENT);
        } else {
            entry.set_unused();
            // The lower half is empty again; only this core has had it in use and still runs here.
            table(self.root)[0].set_unused();
            self.enter();
        }
        Ok(())
    }

    /// The nucleus's own, once more: to be in, and to make cells.
    pub fn of_nucleus() -> AddressSpace {
        AddressSpace { root: NUCLEUS.load(Ordering::Relaxed), devices: 0, stacks: 0 }
    }

    /// Physical address of the topmost table.
    pub fn root(&self) -> u64 {
        self.root
    }

    /// Has this core use these tables.
    pub fn enter(&self) {
        // SAFETY: they map the code that runs, its stack and all that it refers to, as before.
        unsafe { Cr3::write(PhysFrame::containing_address(PhysAddr::new(self.root)), Cr3Flags::empty()) };
    }
}
