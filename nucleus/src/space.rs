//! Address spaces of a cell: what its programs see of its memory.
//!
//! The tables come out of the cell's own memory ([`Pool`]), where its ring 3 can't see them. All spaces of a cell
//! share the runtime's part; here only the programs' part is changed, under the cell's lock: by cores of this
//! cell, which wait for nobody else. A leaf keeps its address when all access to it is taken away, so that it can
//! be given back, and is counted like any other. Other cores forget what they remember of a mapping before the call
//! that changed it returns; a table is used for something else only then.
//!
//! Processors set accessed and dirty bits in leaves while these are changed. A leaf that stays a leaf at its address keeps what was noted
//! there ([`replace`]), whatever it shows from then on and with what access; one that is made where there was none begins with nothing.
//! [`Space::take_bits`] reads them and begins anew. A core that remembers a bit as set doesn't set it again, so bits that were
//! taken have to be forgotten like mappings. Until then such a core uses the page unseen, but that it did so has been told:
//! what was taken was set, and whoever asked looks at the page only when all have forgotten. Where a bit is not set no core
//! remembers it as set, and the first use sets it, for this time or the next.
#![allow(unsafe_code, reason = "writes page tables by the direct map")]

use core::sync::atomic::{AtomicU64, Ordering, fence};

use arrayvec::ArrayVec;
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
/// The processor has used the page.
const ACCESSED: u64 = 1 << 5;
/// And written to it.
const DIRTY: u64 = 1 << 6;
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

/// The entry for an address in the table at `at`, which is one of this level: 0 has the leaves of 4 KiB.
fn entry(at: u64, level: u32, address: u64) -> &'static AtomicU64 {
    &table(at)[(address >> (12 + 9 * level) & 511) as usize]
}

fn is_table(entry: u64) -> bool {
    entry & PRESENT != 0 && entry & LEAF == 0
}

/// Puts a leaf in the place of `old`, which was just read there. What is noted of that, also since, is noted of the new one.
#[inline(always)]
fn replace(entry: &AtomicU64, old: u64, new: u64) {
    let noted = old & (ACCESSED | DIRTY);
    let possible = if old & WRITABLE != 0 { ACCESSED | DIRTY } else { ACCESSED };
    if old & PRESENT == 0 || noted & possible == possible {
        // Nothing more comes. Mostly it is so, as memory is there to be written to.
        return entry.store(new | noted, Ordering::Relaxed);
    }
    // Nobody reads in between what is noted: that is done under the cell's lock.
    let noted = entry.swap(new, Ordering::Relaxed) & (ACCESSED | DIRTY);
    if noted != 0 {
        entry.fetch_or(noted, Ordering::Relaxed);
    }
}

/// Makes 512 small leaves, which show the same, of a huge one; their table.
fn split(entry: &AtomicU64, pool: &mut Pool, after: &mut After) -> Result<u64, Full> {
    let made = pool.take().ok_or(Full)?;
    let mut old = entry.load(Ordering::Relaxed);
    loop {
        for (k, e) in table(made).iter().enumerate() {
            e.store((old & !HUGE) + k as u64 * FRAME, Ordering::Relaxed);
        }
        let new = made | PRESENT | WRITABLE | USER;
        match entry.compare_exchange(old, new, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => break,
            // A core has used it meanwhile, which happens once for each bit.
            Err(now) => old = now,
        }
    }
    after.stale |= old & PRESENT != 0;
    Ok(made)
}

/// What a processor notes in a leaf.
#[derive(Clone, Copy)]
pub enum Bit {
    /// It was used.
    Accessed,
    /// It was written to.
    Dirty,
}

/// What to do to a range.
#[derive(Clone, Copy)]
pub enum Change {
    /// Show memory.
    Map {
        /// Its physical address, and its offset in the cell's memory.
        physical: u64,
        offset: u64,
        access: Access,
    },
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

    /// Changes `[from, to)`, some of the programs' part. If there is no memory for a page table, the range is changed up
    /// to there.
    pub fn change(
        self,
        pool: &mut Pool,
        from: u64,
        to: u64,
        change: Change,
        after: &mut After,
    ) -> Result<(), Full> {
        let mut walk = Walk { from, to, change, pool, after };
        // Mostly it is less than a table of leaves shows, and that is there.
        if to - from < BLOCK
            && (from ^ (to - 1)) < BLOCK
            && let Some(leaves) = self.leaves(from)
        {
            walk.visit_leaves(leaves, from & !(BLOCK - 1));
            return Ok(());
        }
        walk.visit(self.0, 3, 0)
    }

    /// Reads this bit of all leaves in `[from, to)`, some of the programs' part, and clears it; `tell` is told of each page where it
    /// was set. Huge leaves are made small ones, so that it is known by the page from then on. If there is no memory for a page table, it
    /// is done up to there.
    pub fn take_bits(
        self,
        pool: &mut Pool,
        (from, to): (u64, u64),
        bit: Bit,
        after: &mut After,
        tell: &mut impl FnMut(u64),
    ) -> Result<(), Full> {
        let bit = match bit {
            Bit::Accessed => ACCESSED,
            Bit::Dirty => DIRTY,
        };
        let mut at = from;
        while at < to {
            let next = (at & !(BLOCK - 1)) + BLOCK;
            let Some(leaves) = self.small_leaves(at, pool, after)? else {
                at = next;
                continue;
            };
            let index = |at: u64| (at % BLOCK / FRAME) as usize;
            let entries = &table(leaves)[index(at)..index(next.min(to) - FRAME) + 1];
            for (n, few) in entries.chunks(8).enumerate() {
                // Mostly there is nothing.
                if few.iter().fold(0, |all, entry| all | entry.load(Ordering::Relaxed)) & bit == 0 {
                    continue;
                }
                for (k, entry) in few.iter().enumerate().filter(|(_, e)| e.load(Ordering::Relaxed) & bit != 0)
                {
                    // A leaf without access is one, too. Nobody remembers that.
                    after.stale |= entry.fetch_and(!bit, Ordering::SeqCst) & PRESENT != 0;
                    tell(at + (8 * n + k) as u64 * FRAME);
                }
            }
            at = next;
        }
        Ok(())
    }

    /// The table of leaves for an address, made of a huge one if that is there. None: there is neither.
    fn small_leaves(self, address: u64, pool: &mut Pool, after: &mut After) -> Result<Option<u64>, Full> {
        let mut here = self.0;
        for level in (1..=3).rev() {
            let entry = entry(here, level, address);
            let now = entry.load(Ordering::Relaxed);
            here = if is_table(now) {
                now & ADDRESS
            } else if now & LEAF != 0 && level == 1 {
                split(entry, pool, after)?
            } else {
                return Ok(None);
            };
        }
        Ok(Some(here))
    }

    /// The table of leaves for an address, if there is one.
    fn leaves(self, address: u64) -> Option<u64> {
        (1..=3).rev().try_fold(self.0, |here, level| {
            let entry = entry(here, level, address).load(Ordering::Relaxed);
            is_table(entry).then_some(entry & ADDRESS)
        })
    }

    /// Shows ring 3 the runtime's own view of a block of the cell's memory, or no more. Cores may remember what was there.
    pub fn set_block(self, at: u64, shown: bool) {
        let mut here = self.0;
        for level in [3, 2] {
            here = entry(here, level, at).load(Ordering::Relaxed) & ADDRESS;
        }
        // Such blocks are leaves of their own, and stay it.
        let entry = entry(here, 1, at);
        if shown {
            entry.fetch_or(PRESENT, Ordering::SeqCst);
        } else {
            entry.fetch_and(!PRESENT, Ordering::SeqCst);
        }
    }

    /// Where `at` is in physical memory, if ring 3 can read it there, and how many bytes follow in its page. None
    /// for a device's registers: they are not in the direct map, and reading them can change them.
    pub fn look(self, at: u64) -> Option<(u64, u64)> {
        self.look_for(at, PRESENT | USER)
    }

    /// The same, if ring 3 can write there. It holds as long as the caller has the cell's lock.
    pub fn look_to_write(self, at: u64) -> Option<(u64, u64)> {
        self.look_for(at, PRESENT | USER | WRITABLE)
    }

    fn look_for(self, at: u64, needs: u64) -> Option<(u64, u64)> {
        let mut here = self.0;
        for level in (0..4).rev().filter(|_| at < USER_MAX) {
            let entry = entry(here, level, at).load(Ordering::Relaxed);
            if entry & needs != needs {
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
            release(table(self.0)[n].load(Ordering::Relaxed), 3, pool);
        }
        pool.give(self.0);
    }
}

/// What is to be done when a space has been changed, before anybody goes on as if it were.
#[derive(Default)]
pub struct After {
    /// Cores may remember what was there before.
    pub stale: bool,
    /// Page tables that none refers to any more, to be given back when no core remembers them. If there are any, cores may.
    pub tables: ArrayVec<u64, 32>,
}

/// Frames of a leaf in a table of this level.
fn frames(level: u32) -> u64 {
    1 << (9 * level)
}

/// Gives back what an entry refers to of a table of this level.
fn release(entry: u64, level: u32, pool: &mut Pool) {
    if entry & LEAF != 0 {
        pool.unmapped(entry & ADDRESS, frames(level));
    } else if entry & PRESENT != 0 {
        let mut gone = Gone::default();
        for e in table(entry & ADDRESS).iter().map(|e| e.load(Ordering::Relaxed)).filter(|e| *e != 0) {
            match level {
                1 => gone.add(e, pool),
                _ => release(e, level - 1, pool),
            }
        }
        gone.tell(pool);
        pool.give(entry & ADDRESS);
    }
}

/// Frames that aren't shown any more, of the block of which one was shown last: the pool is told of those of a block together.
#[derive(Default)]
struct Gone {
    block: u64,
    frames: u64,
}

impl Gone {
    /// This leaf of 4 KiB is gone.
    #[inline]
    fn add(&mut self, leaf: u64, pool: &mut Pool) {
        let block = leaf & ADDRESS & !(BLOCK - 1);
        if block != self.block {
            self.tell(pool);
            self.block = block;
        }
        self.frames += 1;
    }

    fn tell(&mut self, pool: &mut Pool) {
        let frames = core::mem::take(&mut self.frames);
        if frames > 0 {
            pool.unmapped(self.block, frames);
        }
    }
}

/// A change on its way through the tables.
struct Walk<'a> {
    from: u64,
    to: u64,
    change: Change,
    pool: &'a mut Pool,
    after: &'a mut After,
}

impl Walk<'_> {
    /// Changes what lies in the table at `at`, whose first entry is for address `base`.
    fn visit(&mut self, at: u64, level: u32, base: u64) -> Result<(), Full> {
        if level == 0 {
            self.visit_leaves(at, base);
            return Ok(());
        }
        self.visit_tables(at, level, base)
    }

    fn visit_tables(&mut self, at: u64, level: u32, base: u64) -> Result<(), Full> {
        let (from, to) = (self.from, self.to);
        let span = FRAME << (9 * level);
        let first = (from.max(base) - base) / span;
        for n in first..512 {
            let here = base + n * span;
            if here >= to {
                break;
            }
            let entry = &table(at)[n as usize];
            let mut old = entry.load(Ordering::Relaxed);
            let whole = from <= here && here + span <= to;
            let change = self.change;
            let mut noted = 0;
            let leaf = match change {
                Change::Map { physical, access, .. } => {
                    let physical = physical.wrapping_add(here.wrapping_sub(from));
                    let huge = level == 1 && whole && physical.is_multiple_of(BLOCK);
                    if huge
                        && is_table(old)
                        && let Some(bits) = self.empty(entry, level, here)
                    {
                        // Of all that is shown there now, as it was of a part of it.
                        (old, noted) = (0, bits);
                    }
                    (huge && !is_table(old)).then(|| physical | flags(access) | HUGE | noted)
                }
                _ if old == 0 => continue,
                Change::Unmap if whole && is_table(old) && self.empty(entry, level, here).is_some() => {
                    continue;
                }
                Change::Unmap => (whole && !is_table(old)).then_some(0),
                Change::Protect(access) => {
                    (whole && !is_table(old)).then_some(old & (ADDRESS | HUGE) | flags(access))
                }
            };
            if let Some(new) = leaf {
                match change {
                    Change::Unmap => entry.store(new, Ordering::Relaxed),
                    _ => replace(entry, old, new),
                }
                self.after.stale |= old & PRESENT != 0;
                if let Change::Map { offset, .. } = change {
                    self.pool.mapped(offset + (here - from), frames(level));
                }
                if old != 0 && !matches!(change, Change::Protect(_)) {
                    self.pool.unmapped(old & ADDRESS, frames(level));
                }
                continue;
            }
            let next = if is_table(old) {
                old & ADDRESS
            } else if old != 0 {
                split(entry, self.pool, self.after)?
            } else {
                let made = self.pool.take().ok_or(Full)?;
                fence(Ordering::Release);
                entry.store(made | PRESENT | WRITABLE | USER, Ordering::Relaxed);
                made
            };
            self.visit(next, level - 1, here)?;
        }
        Ok(())
    }

    /// In a table of the lowest level, which has room for all of it.
    fn visit_leaves(&mut self, at: u64, base: u64) {
        let (from, to) = (self.from.max(base), self.to.min(base + BLOCK));
        let entries = &table(at)[((from - base) / FRAME) as usize..((to - base) / FRAME) as usize];
        let mut new = 0;
        if let Change::Map { physical, offset, access } = self.change {
            new = (physical + (from - self.from)) | flags(access);
            self.pool.mapped(offset + (from - self.from), (to - from) / FRAME);
        }
        let mut gone = Gone::default();
        for entry in entries {
            let old = entry.load(Ordering::Relaxed);
            self.after.stale |= old & PRESENT != 0;
            match self.change {
                Change::Protect(access) => {
                    if old != 0 {
                        replace(entry, old, old & ADDRESS | flags(access));
                    }
                    continue;
                }
                Change::Map { .. } => {
                    replace(entry, old, new);
                    new += FRAME;
                }
                Change::Unmap => entry.store(0, Ordering::Relaxed),
            }
            if old != 0 {
                gone.add(old, self.pool);
            }
        }
        gone.tell(self.pool);
    }

    /// Takes out a table that lies wholly in the range, with all that it shows; None if there is no room to keep it
    /// until no core remembers it. Value: what was noted of any of its leaves, if they are the table's own.
    fn empty(&mut self, entry: &AtomicU64, level: u32, here: u64) -> Option<u64> {
        if level == 1 && self.after.tables.is_full() {
            return None;
        }
        let at = entry.load(Ordering::Relaxed) & ADDRESS;
        let mut noted = 0;
        if level == 1 && matches!(self.change, Change::Map { .. }) {
            // They can't be used any more from here on: then nothing is noted that isn't seen.
            for e in table(at) {
                noted |= e.fetch_and(!PRESENT, Ordering::Relaxed) & (ACCESSED | DIRTY);
            }
        }
        let mut below = Walk {
            from: here,
            to: here + (FRAME << (9 * level)),
            change: Change::Unmap,
            pool: self.pool,
            after: self.after,
        };
        // To take away needs no memory.
        let _ = below.visit(at, level - 1, here);
        // Of leaves nothing is left.
        let gone = level == 1 || table(at).iter().all(|e| e.load(Ordering::Relaxed) == 0);
        if !gone || self.after.tables.try_push(at).is_err() {
            return None;
        }
        entry.store(0, Ordering::Relaxed);
        self.after.stale = true;
        Some(noted)
    }
}
