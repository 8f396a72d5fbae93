//! Address spaces of a cell: what its programs see of its memory.
//!
//! The tables come out of the cell's own memory ([`Pool`]), which its ring 3 never sees. All spaces of a cell
//! share the runtime's part; here only the programs' part is changed, under the cell's lock: by cores of this
//! cell, which wait for nobody else. A leaf keeps its address when all access to it is taken away, so that it can
//! be given back. Other cores forget what they remember of a mapping before the call that changed it returns.
#![allow(unsafe_code, reason = "writes page tables by the direct map")]

use core::sync::atomic::{AtomicU64, Ordering, fence};

use atoll_abi::layout::{BLOCK, RUNTIME_BASE, RUNTIME_END, USER_MAX};
use atoll_abi::platform::Access;

use crate::entry::DIRECT;
use crate::memory::{FRAME, Pool};

const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
/// Not through the cache: a device's registers.
const UNCACHED: u64 = 1 << 4;
const HUGE: u64 = 1 << 7;
/// One of the bits that are the software's: the entry is a leaf, be it present or not.
const LEAF: u64 = 1 << 9;
const NO_EXECUTE: u64 = 1 << 63;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// Entries of the topmost table that all spaces share: the runtime's and the nucleus's.
const RUNTIME_ENTRIES: core::ops::Range<usize> = (RUNTIME_BASE >> 39) as usize..(RUNTIME_END >> 39) as usize;

/// There is no memory for page tables.
#[derive(Debug)]
pub struct Full;

fn table(at: u64) -> &'static [AtomicU64; 512] {
    // SAFETY: page tables lie in frames of the cell's pool, in the direct map, and are read and written as atomics.
    unsafe { &*((DIRECT + at) as *const [AtomicU64; 512]) }
}

/// What to do to a range.
#[derive(Clone, Copy)]
pub enum Change {
    /// Show memory from this physical address on.
    Map(u64, Access),
    /// Show nothing.
    Unmap,
    /// Leave the memory, and change what may be done with it.
    Protect(Access),
}

fn flags(access: Access) -> u64 {
    let mut flags = LEAF | NO_EXECUTE;
    if access.intersects(Access::READ | Access::WRITE | Access::EXEC) {
        flags |= PRESENT | USER;
    }
    if access.contains(Access::WRITE) {
        flags |= WRITABLE;
    }
    if access.contains(Access::EXEC) {
        flags &= !NO_EXECUTE;
    }
    flags
}

/// The topmost table of a space.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Space(pub u64);

impl Space {
    /// An empty one, like `first` in what all spaces share.
    pub fn new(pool: &mut Pool, first: Space) -> Result<Space, Full> {
        let root = pool.take().ok_or(Full)?;
        for n in RUNTIME_ENTRIES.chain(256..512) {
            let entry = table(first.0)[n].load(Ordering::Relaxed);
            table(root)[n].store(entry, Ordering::Relaxed);
        }
        Ok(Space(root))
    }

    /// Changes `[from, to)`, of the programs' part. Value: others may remember what was there before. If there is no
    /// memory for a page table, the range is changed up to there.
    pub fn change(self, pool: &mut Pool, from: u64, to: u64, change: Change) -> (bool, Result<(), Full>) {
        let mut stale = false;
        let done = visit(self.0, 3, 0, from, to, from, change, pool, &mut stale);
        (stale, done)
    }

    /// Where `at` is in physical memory, if ring 3 can read it there, and how many bytes follow in its page. None
    /// for a device's registers: they are not in the direct map, and reading them can change them.
    pub fn look(self, at: u64) -> Option<(u64, u64)> {
        let mut here = self.0;
        for level in (0..4).rev().filter(|_| at < USER_MAX) {
            let entry = table(here)[(at >> (12 + 9 * level) & 511) as usize].load(Ordering::Relaxed);
            if entry & (PRESENT | USER) != PRESENT | USER {
                return None;
            }
            here = entry & ADDRESS;
            if level == 0 || entry & HUGE != 0 {
                if entry & UNCACHED != 0 {
                    return None;
                }
                let size = FRAME << (9 * level);
                return Some((here + at % size, size - at % size));
            }
        }
        None
    }

    /// Gives the tables of a space back in which no core is.
    pub fn destroy(self, pool: &mut Pool) {
        for n in (0..256).filter(|n| !RUNTIME_ENTRIES.contains(n)) {
            release(table(self.0)[n].load(Ordering::Relaxed), 2, pool);
        }
        pool.give(self.0);
    }
}

fn release(entry: u64, level: u32, pool: &mut Pool) {
    if entry & PRESENT == 0 || entry & LEAF != 0 {
        return;
    }
    let at = entry & ADDRESS;
    if level > 0 {
        for e in table(at) {
            release(e.load(Ordering::Relaxed), level - 1, pool);
        }
    }
    pool.give(at);
}

/// Changes what of `[from, to)` lies in the table at `at`, whose first entry is for address `base`.
#[allow(clippy::too_many_arguments, reason = "a walk that carries its state")]
fn visit(
    at: u64,
    level: u32,
    base: u64,
    from: u64,
    to: u64,
    start: u64,
    change: Change,
    pool: &mut Pool,
    stale: &mut bool,
) -> Result<(), Full> {
    let span = FRAME << (9 * level);
    let first = (from.max(base) - base) / span;
    for n in first..512 {
        let here = base + n * span;
        if here >= to {
            break;
        }
        let entry = &table(at)[n as usize];
        let old = entry.load(Ordering::Relaxed);
        let is_table = old & PRESENT != 0 && old & LEAF == 0;
        let whole = from <= here && here + span <= to;
        let new = match change {
            Change::Map(physical, access) => {
                let physical = physical + here.wrapping_sub(start);
                let fits = level == 0 || level == 1 && whole && !is_table && physical.is_multiple_of(BLOCK);
                fits.then(|| physical | flags(access) | if level == 1 { HUGE } else { 0 })
            }
            _ if old == 0 => continue,
            Change::Unmap => (whole && !is_table).then_some(0),
            Change::Protect(access) => (whole && !is_table).then_some(old & (ADDRESS | HUGE) | flags(access)),
        };
        if let Some(new) = new {
            entry.store(new, Ordering::Relaxed);
            *stale |= old & PRESENT != 0;
            continue;
        }
        let next = if is_table {
            old & ADDRESS
        } else {
            let made = pool.take().ok_or(Full)?;
            if old != 0 {
                // A huge leaf becomes 512 small ones that show the same.
                for (k, e) in table(made).iter().enumerate() {
                    e.store((old & !HUGE) + k as u64 * FRAME, Ordering::Relaxed);
                }
                *stale |= old & PRESENT != 0;
            }
            fence(Ordering::Release);
            entry.store(made | PRESENT | WRITABLE | USER, Ordering::Relaxed);
            made
        };
        visit(next, level - 1, here, from, to, start, change, pool, stale)?;
    }
    Ok(())
}
