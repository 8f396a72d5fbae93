//! One core's pages: a buddy allocator over 2 MiB blocks that the core leased.
//!
//! Free chunks of 2^order pages hang in lists whose links lie in the chunks
//! themselves; one byte a page outside says whether a chunk starts there and
//! whether the page still is as the platform gave it, all zeroes. Another byte
//! says which activity pays for a page that was given out; each core counts
//! what they took and gave back there (`abi/src/grid.rs`). A chunk
//! that belongs to a block of another core goes home by a lock-free stack
//! that its owner empties when it next allocates.
//!
//! A core that finds nothing, in its lists and the pool, asks the others ([`Memory::ask`]): each of them gives it half of what it has, a
//! few chunks at most, which stay those of their blocks' owners. Who asks sees to it that the others look soon (`heap.rs`).
//!
//! The cell may have to give blocks back while it runs. What can't be moved out of their way, the runtime's own objects, is
//! therefore taken from other blocks than what can, the pages of programs and files, and each page says which it is
//! ([`Mobility`]). Who gives blocks back lowers the pool's limit (`blocks.rs`); each core puts the free chunks of blocks behind it
//! into lists that nothing is taken from, and lets each such block go when it is whole.
#![allow(unsafe_code, reason = "keeps free lists inside the free pages")]

use alloc::boxed::Box;
use core::ops::Range;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::blocks::BlockPool;
use crate::sharers::Sharers;
use atoll_abi::assert_accounted;
use atoll_abi::grid::{ACTIVITIES_MAX, Held, ROOT};
use atoll_abi::layout::{BLOCK, MAX_CORES, PAGE};
use atoll_sync::SetOnce;

/// Order of a block: 512 pages.
pub const BLOCK_ORDER: u32 = 9;
/// Pages in a block.
pub(crate) const BLOCK_PAGES: usize = 1 << BLOCK_ORDER;
/// Order of a chunk: 64 KiB, the grain of a program's memory.
pub const CHUNK_ORDER: u32 = 4;

/// A chunk's first page: the chunk is free. The low bits are its order.
const FREE: u16 = 0x80;
/// The page may hold old data; without this it is all zeroes, as it came from the platform.
const DIRTY: u16 = 0x40;
/// The page was given out, and what it holds can be moved.
const MOVABLE: u16 = 0x20;
const ORDER: u16 = 0x0f;
/// The page was given out, and whoever has it has put a mark there ([`Memory::set_mark`]).
const MARK: u16 = 0x10;
/// The page is free, and was zeroed ahead: which of those that are taken then need to be told. No such page is marked.
const AHEAD: u16 = MARK;
/// What is said of a page that stays free.
const CONTENTS: u16 = DIRTY | AHEAD;
/// From this bit on: the activity that pays for the page, if it was given out.
const PAYER: u32 = 8;
const _: () = assert!(ACTIVITIES_MAX <= 1 << (16 - PAYER));

/// A block nobody leased; else a core's number plus one.
const NOBODY: u16 = 0;
/// Bit of a leased block's owner: it is for what can't be moved.
const FOR_FIXED: u16 = 1 << 15;

/// Can what a page holds be moved to another one?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mobility {
    /// No: somebody has its address.
    Fixed,
    /// Yes: all who know where it is can be told ([`AddressSpace::vacate`](crate::vm::AddressSpace::vacate)).
    Movable,
}

/// Lists of a core's free chunks.
mod list {
    /// In blocks for what can't be moved.
    pub const FIXED: usize = 0;
    /// In blocks for what can.
    pub const MOVABLE: usize = 1;
    /// In blocks that are to be given back: nothing is taken from these.
    pub const LEAVING: usize = 2;
    /// How many kinds there are.
    pub const COUNT: usize = 3;
}

static PAYER_NOW: SetOnce<fn() -> (usize, u32)> = SetOnce::new();

/// Says how to find out which core this is, and the activity that it works for. Until then it is core 0, for the cell.
pub fn set_payer(payer: fn() -> (usize, u32)) {
    // Once in a cell's life; a second time changes nothing.
    let _ = PAYER_NOW.set(payer);
}

/// This core, and the activity that it works for.
pub fn payer_now() -> (usize, u32) {
    PAYER_NOW.get().map_or((0, ROOT), |payer| payer())
}

static TAKEN_AHEAD: SetOnce<fn(u32, u32)> = SetOnce::new();

/// Says whom to tell that an activity takes so many pages that were zeroed ahead, whenever one does.
pub fn set_taken_ahead(taken: fn(activity: u32, pages: u32)) {
    // As above.
    let _ = TAKEN_AHEAD.set(taken);
}

static REACHED: SetOnce<fn(u64)> = SetOnce::new();

/// Says whom to tell that memory up to a block, in order of use, is in use, whenever blocks are claimed.
pub fn set_reached(reached: fn(u64)) {
    // Once in a cell's life; a second time changes nothing.
    let _ = REACHED.set(reached);
}

fn reached(pool: &BlockPool, block: usize) {
    if let (Some(reached), Some(number)) = (REACHED.get(), pool.order_of_use(block)) {
        reached(number + 1);
    }
}

/// All the memory of a cell.
pub struct Memory {
    /// Where the cell's memory is mapped (in a test: any allocation).
    base: *mut u8,
    pool: BlockPool,
    /// One word a page.
    state: Box<[AtomicU16]>,
    /// For each block, a bit for each payer of a page in it (their numbers modulo 64), and perhaps for some that aren't any more.
    payers: Box<[AtomicU64]>,
    /// Pages that each activity holds, a part for each core: what was taken there less what was given back.
    held: Box<[Held]>,
    /// The core that leased a block.
    owner: Box<[AtomicU16]>,
    /// What cores leave for each other, by core.
    homes: Box<[Home]>,
    /// Questions that were asked so far.
    questions: AtomicU32,
    /// Who shares chunks.
    sharers: Sharers,
    /// Pages given out (to the heap, to programs, whole blocks).
    used: AtomicUsize,
    /// Pages of granted blocks that are never given out, as tables lie there.
    reserved: usize,
}

/// What others leave for a core.
struct Home {
    /// Chunks of its own blocks, which others had.
    back: AtomicPtr<Link>,
    /// Chunks of others' blocks, for it to take.
    gifts: AtomicPtr<Link>,
    /// It has some of those.
    has_gifts: AtomicBool,
    /// What it asks for: an order, and whether what can't be moved comes there ([`question`]); 0: nothing.
    asks: AtomicU32,
    /// The last question that it has answered.
    answered: AtomicU32,
}

fn question(order: u32, mobility: Mobility) -> u32 {
    (order + 1) << 1 | u32::from(mobility == Mobility::Fixed)
}

/// Chunks of each size that are zeroed ahead, at most.
const ZEROED_NEAR: usize = 4;

/// Chunks of each size that are looked through for a page of some kind, and pages of each, at most.
const LOOKED_THROUGH: (usize, usize) = (32, 64);

/// Chunks that a core gives another one for a question, at most.
const GIFTS: usize = 16;

// SAFETY: `base` is only used for pages that the caller owns.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// What a free chunk holds.
#[repr(C)]
struct Link {
    next: *mut Link,
    prev: *mut Link,
    order: u32,
    /// Zero: who copies a link leaves nothing in a page that is clean without it.
    padding: u32,
}

impl Link {
    fn new(next: *mut Link, order: u32) -> Link {
        Link { next, prev: null_mut(), order, padding: 0 }
    }
}

/// One core's share. Only that core touches it, with upcalls masked.
pub struct CorePages {
    core: u16,
    /// The pool's limit by which the chunks were put into lists.
    limit: usize,
    /// Questions that it has seen.
    seen: u32,
    /// Chunks of others' blocks that it was given, of any order. They don't count as free.
    gifts: *mut Link,
    /// Pages came back since it last found nothing to zero ahead.
    has_dirty: bool,
    lists: [[*mut Link; BLOCK_ORDER as usize + 1]; list::COUNT],
}

// SAFETY: it moves to its core once, at boot.
unsafe impl Send for CorePages {}

/// A table of atomics that are zero: untouched memory, where it is fresh.
fn zeroed<T: Zero>(n: usize) -> Box<[T]> {
    // SAFETY: `Zero` says that zero bytes are a valid T.
    unsafe { Box::<[T]>::new_zeroed_slice(n).assume_init() }
}

/// # Safety
/// All zero bytes are a valid value.
unsafe trait Zero {}
// SAFETY: atomics are as their integers and pointers.
unsafe impl Zero for AtomicU64 {}
// SAFETY: as above.
unsafe impl Zero for Held {}
// SAFETY: as above.
unsafe impl Zero for AtomicU16 {}
// SAFETY: as above.
unsafe impl<T> Zero for AtomicPtr<T> {}
// SAFETY: as above; false is zero.
unsafe impl Zero for Home {}

impl Memory {
    /// Memory of `size` bytes at `base`, for `cores` cores.
    ///
    /// # Safety
    /// `[base, base + size)` must be mapped, zeroed (but see [`Memory::distrust`]), exclusively this object's, for ever.
    pub unsafe fn new(base: *mut u8, size: u64, cores: usize) -> Self {
        let blocks = (size / BLOCK) as usize;
        // Made in this order, the parts that are touched first lie close together.
        let pool = BlockPool::new(blocks);
        let (homes, owner, payers, held) = (zeroed(cores), zeroed(blocks), zeroed(blocks), zeroed(cores));
        let sharers = Sharers::new(zeroed(blocks));
        let state = zeroed(blocks * BLOCK_PAGES);
        let (questions, used) = (AtomicU32::new(0), AtomicUsize::new(0));
        Memory { base, pool, state, payers, held, owner, homes, questions, sharers, used, reserved: 0 }
    }

    /// The same, where so many bytes of the first blocks are never given out.
    pub fn with_reserved(mut self, bytes: u64) -> Self {
        self.reserved = (bytes / PAGE) as usize;
        self
    }

    /// The same, where only the first `granted` bytes are there, what can't be moved is in the first `fixed` bytes, and the first
    /// `mixed` serve all for a start. Before any is taken.
    pub fn with_zones(mut self, granted: u64, fixed: u64, mixed: u64) -> Self {
        let blocks = |bytes: u64| (bytes / BLOCK) as usize;
        self.pool = self.pool.with_zones(blocks(granted), blocks(fixed), blocks(mixed));
        self
    }

    /// Pages that each activity holds, by cores.
    pub fn held_by_core(&self) -> &[Held] {
        &self.held
    }

    /// Pages that an activity holds.
    pub fn held(&self, activity: u32) -> i64 {
        self.held.iter().map(|core| core.0[activity as usize].load(Ordering::Relaxed)).sum()
    }

    fn count(&self, core: usize, activity: u32, pages: i64) {
        // Only this core counts here.
        let held = &self.held[core].0[activity as usize];
        held.store(held.load(Ordering::Relaxed) + pages, Ordering::Relaxed);
    }

    /// Pages that the caller has just taken are this activity's.
    fn charge(&self, core: usize, activity: u32, page: usize, pages: usize, mobility: Mobility) {
        let given = (activity as u16) << PAYER | if mobility == Mobility::Movable { MOVABLE } else { 0 };
        let mut ahead = 0;
        for s in &self.state[page..page + pages] {
            let contents = s.load(Ordering::Relaxed);
            ahead += u32::from(contents & AHEAD != 0);
            s.store(contents & DIRTY | given, Ordering::Relaxed);
        }
        if let (1.., Some(taken)) = (ahead, TAKEN_AHEAD.get()) {
            taken(activity, ahead);
        }
        for payers in &self.payers[page / BLOCK_PAGES..(page + pages).div_ceil(BLOCK_PAGES)] {
            let bit = 1 << (activity % 64);
            if payers.load(Ordering::Relaxed) & bit == 0 {
                payers.fetch_or(bit, Ordering::Relaxed);
            }
        }
        self.count(core, activity, pages as i64);
    }

    /// Pages that the caller gives back count as dirty, and are no longer those activities' who paid for them.
    fn give_up(&self, core: usize, page: usize, pages: usize) {
        let (mut payer, mut run) = (ROOT as u16, 0);
        for s in &self.state[page..page + pages] {
            let before = s.swap(DIRTY, Ordering::Relaxed);
            assert!(before & FREE == 0, "page freed twice");
            if before >> PAYER != payer {
                self.count(core, u32::from(payer), -run);
                (payer, run) = (before >> PAYER, 0);
            }
            run += 1;
        }
        self.count(core, u32::from(payer), -run);
    }

    /// The activity that pays for the page at `offset` of the cell's memory, which somebody has.
    pub fn payer(&self, offset: u64) -> u32 {
        u32::from(self.state[(offset / PAGE) as usize].load(Ordering::Relaxed) >> PAYER)
    }

    /// Marks the page at `offset`, which the caller has and which stays where it is, or takes the mark away. It is gone when the page is
    /// given back.
    pub fn set_mark(&self, offset: u64, on: bool) {
        let state = &self.state[(offset / PAGE) as usize];
        if on {
            state.fetch_or(MARK, Ordering::Relaxed);
        } else {
            state.fetch_and(!MARK, Ordering::Relaxed);
        }
    }

    /// Is the page at `offset`, which somebody has, marked?
    pub fn is_marked(&self, offset: u64) -> bool {
        self.state[(offset / PAGE) as usize].load(Ordering::Relaxed) & MARK != 0
    }

    /// What one activity holds is another's from now on, which may hold some already.
    pub fn pass_on(&self, from: u32, to: u32) {
        let (core, _) = payer_now();
        let mut left = self.held(from);
        for (block, payers) in self.payers.iter().enumerate() {
            if left <= 0 {
                return;
            }
            if payers.load(Ordering::Relaxed) >> (from % 64) & 1 == 0 {
                continue;
            }
            payers.fetch_or(1 << (to % 64), Ordering::Relaxed);
            let mut moved = 0;
            for s in &self.state[block * BLOCK_PAGES..(block + 1) * BLOCK_PAGES] {
                let now = s.load(Ordering::Relaxed);
                let of = now & FREE == 0 && u32::from(now >> PAYER) == from;
                let new = now & (DIRTY | MOVABLE) | (to as u16) << PAYER;
                // Who frees the page meanwhile has counted it as that of `from`.
                if of && s.compare_exchange(now, new, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                    moved += 1;
                }
            }
            self.count(core, from, -moved);
            self.count(core, to, moved);
            left -= moved;
        }
    }

    /// What is behind `offset` may hold anything. Before any of it is taken.
    pub fn distrust(&self, offset: u64) {
        for s in &self.state[(offset / PAGE) as usize..] {
            s.store(DIRTY, Ordering::Relaxed);
        }
        self.pool.soil_from((offset / BLOCK) as usize);
    }

    /// How many cores there are.
    pub fn cores(&self) -> usize {
        self.homes.len()
    }

    /// Bytes that the cell has.
    pub fn total(&self) -> u64 {
        self.pool.len() as u64 * BLOCK
    }

    /// Bytes that it can have.
    pub fn most(&self) -> u64 {
        self.pool.most() as u64 * BLOCK
    }

    /// Bytes given out.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed) as u64 * PAGE
    }

    /// Bytes of what it has that are never given out.
    pub fn reserved(&self) -> u64 {
        self.reserved as u64 * PAGE
    }

    /// Pages that nobody has, in the pool or in some core's hands, but for those that are to be given back.
    pub fn free_pages(&self) -> usize {
        let all = self.pool.staying() * BLOCK_PAGES;
        all.saturating_sub(self.used.load(Ordering::Relaxed) + self.reserved)
    }

    /// Is more than half of all memory free? Then some may be taken that may never be used.
    pub fn is_mostly_free(&self) -> bool {
        self.free_pages() as u64 * PAGE > self.total() / 2
    }

    /// A core asks others for chunks. Value: the question's number. Those who have blocks ([`Memory::owners`]) answer when they next
    /// look ([`CorePages::tidy`]); there may be gifts then.
    pub fn ask(&self, core: usize, order: u32, mobility: Mobility) -> u32 {
        self.homes[core].asks.store(question(order, mobility), Ordering::Release);
        self.questions.fetch_add(1, Ordering::AcqRel).wrapping_add(1)
    }

    /// It asks no more.
    pub fn asked(&self, core: usize) {
        self.homes[core].asks.store(0, Ordering::Release);
    }

    /// Have these cores answered a question?
    pub fn have_answered(&self, number: u32, cores: &[u64; MAX_CORES / 64]) -> bool {
        let asked = |(core, _): &(usize, &Home)| cores[core / 64] >> (core % 64) & 1 != 0;
        let answered = |home: &Home| home.answered.load(Ordering::Acquire).wrapping_sub(number) as i32 >= 0;
        self.homes.iter().enumerate().filter(asked).all(|(_, home)| answered(home))
    }

    /// The blocks.
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// Who shares chunks of programs' memory.
    pub fn sharers(&self) -> &Sharers {
        &self.sharers
    }

    /// Where offset `offset` of the cell's memory can be touched.
    pub fn address(&self, offset: u64) -> *mut u8 {
        debug_assert!(offset < self.most());
        self.base.wrapping_add(offset as usize)
    }

    /// The offset of an address in the cell's memory.
    pub fn offset(&self, address: *const u8) -> Option<u64> {
        let offset = (address as u64).wrapping_sub(self.base as u64);
        (offset < self.most()).then_some(offset)
    }

    /// The cell has `bytes` from now on, more than before; what comes is zeroes. For one at a time, as what follows.
    pub fn grow(&self, bytes: u64) {
        let (from, to) = (self.pool.len(), ((bytes / BLOCK) as usize).min(self.pool.most()));
        for block in from..to {
            for s in &self.state[block * BLOCK_PAGES..(block + 1) * BLOCK_PAGES] {
                s.store(0, Ordering::Relaxed);
            }
        }
        self.pool.set_limit(to);
        self.pool.settle();
    }

    /// From now on nothing is taken from what lies at `bytes` and behind it, so that the cell can give it back. All cores that have a part
    /// in it ([`Memory::leaving`]) have to call [`CorePages::tidy`], and those who hold pages there to move them.
    pub fn begin_to_leave(&self, bytes: u64) {
        self.pool.set_limit((bytes / BLOCK) as usize);
    }

    /// Looks how many blocks are left there that somebody has.
    pub fn left_behind(&self) -> usize {
        self.pool.withhold()
    }

    /// The cores that have a part in blocks which are to be given back, a bit each.
    pub fn leaving(&self) -> [u64; MAX_CORES / 64] {
        let mut cores = self.owners_of(self.pool.limit()..self.pool.len());
        for (core, _) in
            self.homes.iter().enumerate().filter(|(_, home)| home.has_gifts.load(Ordering::Relaxed))
        {
            cores[core / 64] |= 1 << (core % 64);
        }
        cores
    }

    /// The cores that have leased blocks, a bit each.
    pub fn owners(&self) -> [u64; MAX_CORES / 64] {
        self.owners_of(0..self.pool.len())
    }

    fn owners_of(&self, blocks: Range<usize>) -> [u64; MAX_CORES / 64] {
        let mut cores = [0; MAX_CORES / 64];
        for owner in &self.owner[blocks] {
            let owner = owner.load(Ordering::Relaxed) & !FOR_FIXED;
            if let Some(core) = owner.checked_sub(1).map(usize::from) {
                cores[core / 64] |= 1 << (core % 64);
            }
        }
        cores
    }

    /// Where what can't be moved and lies behind the limit ends, bytes; none: there is nothing of that kind. While cores go on,
    /// that is not exact.
    pub fn pinned_to(&self) -> Option<u64> {
        let is_pinned = |block: &usize| {
            let mut page = block * BLOCK_PAGES;
            while page < (block + 1) * BLOCK_PAGES {
                let state = self.state[page].load(Ordering::Relaxed);
                match state & FREE {
                    0 if state & MOVABLE == 0 => return true,
                    0 => page += 1,
                    _ => page += 1 << (state & ORDER),
                }
            }
            false
        };
        let held = |block: &usize| !self.pool.is_withheld(*block);
        let last = (self.pool.limit()..self.pool.len()).rev().filter(held).find(is_pinned);
        last.map(|block| (block as u64 + 1) * BLOCK)
    }

    /// The cell has no more of it than up to the last block that is left; that, bytes.
    pub fn leave(&self) -> u64 {
        self.pool.settle() as u64 * BLOCK
    }

    fn page(&self, link: *mut Link) -> usize {
        (link as usize - self.base as usize) / PAGE as usize
    }

    fn link(&self, page: usize) -> *mut Link {
        self.base.wrapping_add(page * PAGE as usize).cast()
    }

    /// Claims `n` whole neighbouring blocks; their offset. Contents: see [`Memory::clear`].
    pub fn claim_blocks(&self, n: usize) -> Option<u64> {
        let block = self.pool.claim_run(n)?;
        reached(&self.pool, block + n - 1);
        self.used.fetch_add(n * BLOCK_PAGES, Ordering::Relaxed);
        let (core, payer) = payer_now();
        self.charge(core, payer, block * BLOCK_PAGES, n * BLOCK_PAGES, Mobility::Fixed);
        Some(block as u64 * BLOCK)
    }

    /// Gives whole blocks back.
    pub fn release_blocks(&self, offset: u64, n: usize) {
        let first = (offset / BLOCK) as usize;
        self.give_up(payer_now().0, first * BLOCK_PAGES, n * BLOCK_PAGES);
        #[cfg(debug_assertions)]
        self.fill_free(first * BLOCK_PAGES, n * BLOCK_PAGES);
        for payers in &self.payers[first..first + n] {
            payers.store(0, Ordering::Relaxed);
        }
        self.used.fetch_sub(n * BLOCK_PAGES, Ordering::Relaxed);
        self.pool.release(first, n);
    }

    /// The first dirty pages of some, 64 KiB at most.
    fn first_dirty(&self, pages: Range<usize>) -> Option<Range<usize>> {
        let is_dirty = |page: &usize| self.state[*page].load(Ordering::Relaxed) & DIRTY != 0;
        let from = pages.clone().find(is_dirty)?;
        let most = (from + (1 << CHUNK_ORDER)).min(pages.end);
        Some(from..(from..most).find(|page| !is_dirty(page)).unwrap_or(most))
    }

    /// Zeroes these dirty pages, which are the caller's and free, and are clean from now on.
    fn clean(&self, pages: Range<usize>) {
        self.clear(pages.start as u64 * PAGE, pages.len() as u64 * PAGE);
        for s in &self.state[pages] {
            // Nobody else has to do with a page that is free, or with its block.
            s.store(s.load(Ordering::Relaxed) & !DIRTY | AHEAD, Ordering::Relaxed);
        }
    }

    /// Zeroes 64 KiB of a block that nobody has and that comes next, if one is dirty. Value: how many pages.
    fn zero_block_ahead(&self) -> Option<u32> {
        let block = self.pool.claim_soiled()?;
        let (mut from, end) = (block * BLOCK_PAGES, (block + 1) * BLOCK_PAGES);
        let mut zeroed = 0;
        if let Some(pages) = self.first_dirty(from..end) {
            (from, zeroed) = (pages.end, pages.len() as u32);
            self.clean(pages);
        } else {
            from = end;
        }
        self.pool.zeroed(block, self.first_dirty(from..end).is_none());
        Some(zeroed)
    }

    /// These pages were given back.
    #[cfg(debug_assertions)]
    fn fill_free(&self, page: usize, pages: usize) {
        for page in page..page + pages {
            // SAFETY: they are the caller's, who puts them into a list.
            unsafe { crate::poison::fill_page(self.link(page).cast(), PAGE as usize) };
        }
    }

    /// These free pages are taken: is there what was left there?
    #[cfg(debug_assertions)]
    fn check_free(&self, page: usize, pages: usize) {
        for page in page..page + pages {
            let state = self.state[page].load(Ordering::Relaxed);
            if state & CONTENTS != 0 {
                // SAFETY: they are the caller's, who took them out of a list.
                unsafe {
                    crate::poison::check_page(self.link(page).cast(), PAGE as usize, state & DIRTY == 0)
                };
            }
        }
    }

    /// Zeroes the pages of `[offset, offset + len)` that may be dirty. The caller owns them.
    pub fn clear(&self, offset: u64, len: u64) {
        let first = (offset / PAGE) as usize;
        let last = ((offset + len) / PAGE) as usize;
        let mut page = first;
        while page < last {
            if self.state[page].load(Ordering::Relaxed) & DIRTY == 0 {
                page += 1;
                continue;
            }
            let from = page;
            while page < last && self.state[page].load(Ordering::Relaxed) & DIRTY != 0 {
                page += 1;
            }
            assert_accounted("zeroing");
            // SAFETY: the caller owns these pages.
            unsafe { self.link(from).cast::<u8>().write_bytes(0, (page - from) * PAGE as usize) };
        }
    }
}

impl CorePages {
    /// The part of core number `core`, with no pages yet.
    pub fn new(core: usize) -> CorePages {
        CorePages {
            core: core as u16,
            limit: usize::MAX,
            seen: 0,
            gifts: null_mut(),
            has_dirty: false,
            lists: [[null_mut(); BLOCK_ORDER as usize + 1]; list::COUNT],
        }
    }

    /// Takes 2^order pages; their offset. What they hold is undefined.
    pub fn alloc(&mut self, memory: &Memory, order: u32, mobility: Mobility) -> Option<u64> {
        self.alloc_for(memory, order, mobility, payer_now().1, true)
    }

    /// The same for an activity that it is said to be for, and if `may_lease` is not set only from blocks that somebody has.
    pub fn alloc_for(
        &mut self,
        memory: &Memory,
        order: u32,
        mobility: Mobility,
        activity: u32,
        may_lease: bool,
    ) -> Option<u64> {
        self.tidy(memory);
        let taken = match mobility {
            _ if !may_lease => {
                self.take(memory, list::MOVABLE, order).or_else(|| self.take(memory, list::FIXED, order))
            }
            Mobility::Fixed => self
                .take(memory, list::FIXED, order)
                .or_else(|| self.lease(memory, mobility))
                .or_else(|| self.take(memory, list::MOVABLE, order)),
            Mobility::Movable => self
                .take(memory, list::MOVABLE, order)
                .or_else(|| memory.pool.is_mixed().then(|| self.take(memory, list::FIXED, order))?)
                .or_else(|| self.lease(memory, mobility))
                .or_else(|| self.take(memory, list::FIXED, order))
                .or_else(|| memory.pool.may_mix().then(|| self.lease(memory, Mobility::Fixed))?),
        };
        let page = match taken {
            Some((page, kind, from)) => {
                self.split(memory, page, kind, from, order);
                page
            }
            None => self.take_gift(memory, order)?,
        };
        #[cfg(debug_assertions)]
        memory.check_free(page, 1 << order);
        memory.used.fetch_add(1 << order, Ordering::Relaxed);
        memory.charge(self.core.into(), activity, page, 1 << order, mobility);
        Some(page as u64 * PAGE)
    }

    /// Takes one page for whose number `wanted` holds, one that can be moved; its offset. Of the chunks that are free here it looks through
    /// the first ones of each size, from the smallest on, and then takes a block that nobody had: what is wanted is in 64 pages
    /// that follow each other. What it holds is undefined.
    pub fn alloc_where(
        &mut self,
        memory: &Memory,
        activity: u32,
        may_lease: bool,
        wanted: &dyn Fn(u64) -> bool,
    ) -> Option<u64> {
        self.tidy(memory);
        // In the same order as `alloc_for`.
        let (page, kind, mut order, target) = self
            .find(memory, list::MOVABLE, wanted)
            .or_else(|| memory.pool.is_mixed().then(|| self.find(memory, list::FIXED, wanted))?)
            .or_else(|| may_lease.then(|| self.find_in_new(memory, Mobility::Movable, wanted))?)
            .or_else(|| self.find(memory, list::FIXED, wanted))
            .or_else(|| {
                let may = may_lease && memory.pool.may_mix();
                may.then(|| self.find_in_new(memory, Mobility::Fixed, wanted))?
            })?;
        self.unlink(memory, memory.link(page), kind, order);
        let mut at = page;
        while order > 0 {
            order -= 1;
            let upper = at + (1 << order);
            let rest = if target < upper { upper } else { core::mem::replace(&mut at, upper) };
            self.push(memory, rest, kind, order);
        }
        #[cfg(debug_assertions)]
        memory.check_free(target, 1);
        memory.used.fetch_add(1, Ordering::Relaxed);
        memory.charge(self.core.into(), activity, target, 1, Mobility::Movable);
        Some(target as u64 * PAGE)
    }

    /// The same of a block that nobody had, which is put into its list.
    fn find_in_new(
        &mut self,
        memory: &Memory,
        mobility: Mobility,
        wanted: &dyn Fn(u64) -> bool,
    ) -> Option<(usize, usize, u32, usize)> {
        let (page, kind, order) = self.lease(memory, mobility)?;
        self.push(memory, page, kind, order);
        self.find(memory, kind, wanted)
    }

    /// A page in these lists for which that holds: its chunk, kind of list, and order, and the page.
    fn find(
        &self,
        memory: &Memory,
        kind: usize,
        wanted: &dyn Fn(u64) -> bool,
    ) -> Option<(usize, usize, u32, usize)> {
        let (chunks, pages) = LOOKED_THROUGH;
        (0..=BLOCK_ORDER).find_map(|order| {
            links(self.lists[kind][order as usize]).take(chunks).find_map(|link| {
                let page = memory.page(link);
                let target = (page..page + (1 << order)).take(pages).find(|page| wanted(*page as u64))?;
                Some((page, kind, order, target))
            })
        })
    }

    /// Keeps what is more than 2^order pages of a chunk of 2^from that was taken out of a list.
    fn split(&mut self, memory: &Memory, page: usize, kind: usize, mut from: u32, order: u32) {
        while from > order {
            from -= 1;
            self.push(memory, page + (1 << from), kind, from);
        }
    }

    /// A chunk of these lists, at least as large: its page, its kind of list, and its order.
    fn take(&mut self, memory: &Memory, kind: usize, order: u32) -> Option<(usize, usize, u32)> {
        let from = (order..=BLOCK_ORDER).find(|from| !self.lists[kind][*from as usize].is_null())?;
        let link = self.lists[kind][from as usize];
        self.unlink(memory, link, kind, from);
        Some((memory.page(link), kind, from))
    }

    /// Is there a chunk of 2^order pages at least in lists that chunks are taken from?
    pub fn has(&self, order: u32) -> bool {
        let taken_from = &self.lists[..list::LEAVING];
        taken_from.iter().any(|lists| lists[order as usize..].iter().any(|list| !list.is_null()))
    }

    /// A block that nobody had, likewise.
    fn lease(&mut self, memory: &Memory, mobility: Mobility) -> Option<(usize, usize, u32)> {
        let block = memory.pool.claim(mobility)?;
        reached(&memory.pool, block);
        if !self.gifts.is_null() {
            // It can do without.
            self.return_gifts(memory);
        }
        self.own(memory, block, mobility);
        Some((block * BLOCK_PAGES, self.kind(memory, block), BLOCK_ORDER))
    }

    fn own(&self, memory: &Memory, block: usize, mobility: Mobility) {
        // In the zone of what can't be moved, it is for that, whoever is first.
        let fixed = mobility == Mobility::Fixed || block < memory.pool.fixed();
        let mark = if fixed { FOR_FIXED } else { 0 };
        memory.owner[block].store((self.core + 1) | mark, Ordering::Relaxed);
    }

    /// Which lists the chunks of a block are in that this core leased.
    fn kind(&self, memory: &Memory, block: usize) -> usize {
        if block >= self.limit {
            list::LEAVING
        } else if memory.owner[block].load(Ordering::Relaxed) & FOR_FIXED != 0 {
            list::FIXED
        } else {
            list::MOVABLE
        }
    }

    /// Takes in untouched pages of a block that somebody else claimed for this core.
    pub fn adopt(&mut self, memory: &Memory, offset: u64, len: u64) {
        self.tidy(memory);
        for (at, order) in pieces(offset, len) {
            let block = (at / BLOCK) as usize;
            self.own(memory, block, Mobility::Fixed);
            self.push(memory, (at / PAGE) as usize, self.kind(memory, block), order);
        }
    }

    /// Gives 2^order pages back: any aligned part of what was taken. They count as dirty.
    pub fn free(&mut self, memory: &Memory, offset: u64, order: u32) {
        let page = (offset / PAGE) as usize;
        assert!(page.is_multiple_of(1 << order) && order <= BLOCK_ORDER, "a chunk that never was");
        memory.give_up(self.core.into(), page, 1 << order);
        #[cfg(debug_assertions)]
        memory.fill_free(page, 1 << order);
        memory.used.fetch_sub(1 << order, Ordering::Relaxed);
        let owner = memory.owner[page / BLOCK_PAGES].load(Ordering::Relaxed) & !FOR_FIXED;
        if owner == self.core + 1 {
            self.merge(memory, page, order);
        } else {
            send_home(memory, page, order, owner);
        }
    }

    /// Takes in the chunks that other cores sent home, and puts those of blocks that are to be given back where nothing is taken from.
    pub fn tidy(&mut self, memory: &Memory) {
        if !memory.homes[self.core as usize].back.load(Ordering::Relaxed).is_null() {
            self.welcome(memory);
        }
        if memory.pool.limit() != self.limit {
            self.sort(memory);
        }
        if memory.questions.load(Ordering::Relaxed) != self.seen {
            self.answer(memory);
        }
    }

    /// Does the same, and gives back what others gave.
    pub fn tidy_all(&mut self, memory: &Memory) {
        self.return_gifts(memory);
        self.tidy(memory);
    }

    /// Gives cores that ask what it can.
    #[cold]
    fn answer(&mut self, memory: &Memory) {
        self.seen = memory.questions.load(Ordering::Acquire);
        let me = usize::from(self.core);
        for (_, home) in memory.homes.iter().enumerate().filter(|(core, _)| *core != me) {
            let asks = home.asks.load(Ordering::Acquire);
            if let Some(order) = (asks >> 1).checked_sub(1) {
                self.help(memory, home, order, asks & 1 != 0);
            }
        }
        memory.homes[me].answered.store(self.seen, Ordering::Release);
    }

    /// Gives a core half of what there is of chunks of 2^order pages.
    fn help(&mut self, memory: &Memory, home: &Home, order: u32, fixed: bool) {
        let kinds = if fixed { [list::FIXED, list::MOVABLE] } else { [list::MOVABLE, list::FIXED] };
        let there: usize = kinds.iter().map(|kind| self.chunks(*kind, order)).sum();
        for _ in 0..there.div_ceil(2).min(GIFTS) {
            let taken = kinds.iter().find_map(|kind| self.take(memory, *kind, order));
            let Some((page, kind, from)) = taken else { break };
            self.split(memory, page, kind, from, order);
            home.has_gifts.store(true, Ordering::Relaxed);
            put(&home.gifts, memory.link(page), order);
        }
    }

    /// How many chunks of 2^order pages these lists have.
    fn chunks(&self, kind: usize, order: u32) -> usize {
        (order..=BLOCK_ORDER).map(|n| count(self.lists[kind][n as usize]) << (n - order)).sum()
    }

    /// 2^order pages of what others gave; the rest of such a chunk is for another time.
    fn take_gift(&mut self, memory: &Memory, order: u32) -> Option<usize> {
        let home = &memory.homes[self.core as usize];
        let mut new = home.gifts.swap(null_mut(), Ordering::Acquire);
        while !new.is_null() {
            // SAFETY: what is in the stack was left for this core; its link was written by `put`.
            let next = unsafe { core::mem::replace(&mut (*new).next, self.gifts) };
            self.gifts = new;
            new = next;
        }
        let (mut all, mut best) = (core::mem::replace(&mut self.gifts, null_mut()), null_mut::<Link>());
        while !all.is_null() {
            let link = all;
            // SAFETY: links in this list are valid, and nobody else's.
            unsafe {
                all = (*link).next;
                let fits = (*link).order >= order && (best.is_null() || (*link).order < (*best).order);
                let other = if fits { core::mem::replace(&mut best, link) } else { link };
                if !other.is_null() {
                    (*other).next = self.gifts;
                    self.gifts = other;
                }
            }
        }
        let taken = (!best.is_null()).then(|| {
            let page = memory.page(best);
            // SAFETY: as above. A clean page stays clean.
            let mut from = unsafe { best.replace(Link::new(null_mut(), 0)).order };
            while from > order {
                from -= 1;
                let rest = memory.link(page + (1 << from));
                // SAFETY: the upper half of a chunk that is this core's to use.
                unsafe { rest.write(Link::new(self.gifts, from)) };
                self.gifts = rest;
            }
            page
        });
        home.has_gifts.store(!self.gifts.is_null(), Ordering::Relaxed);
        taken
    }

    /// Has it been given 2^order pages, and still has them?
    pub fn has_gift(&self, memory: &Memory, order: u32) -> bool {
        // SAFETY: links in this list are valid.
        if links(self.gifts).any(|link| unsafe { (*link).order } >= order) {
            return true;
        }
        // Those are of the order that was asked for.
        !memory.homes[self.core as usize].gifts.load(Ordering::Acquire).is_null()
    }

    /// Gives back what others gave and was not used.
    fn return_gifts(&mut self, memory: &Memory) {
        let home = &memory.homes[self.core as usize];
        for mut link in
            [core::mem::replace(&mut self.gifts, null_mut()), home.gifts.swap(null_mut(), Ordering::Acquire)]
        {
            while !link.is_null() {
                // SAFETY: as in `take_gift`.
                let Link { next, order, .. } = unsafe { link.read() };
                let page = memory.page(link);
                // The link stays in it.
                memory.state[page].store(DIRTY, Ordering::Relaxed);
                let owner = memory.owner[page / BLOCK_PAGES].load(Ordering::Relaxed) & !FOR_FIXED;
                send_home(memory, page, order, owner);
                link = next;
            }
        }
        home.has_gifts.store(false, Ordering::Relaxed);
    }

    fn welcome(&mut self, memory: &Memory) {
        let mut link = memory.homes[self.core as usize].back.swap(null_mut(), Ordering::Acquire);
        while !link.is_null() {
            // SAFETY: a chunk in the stack belongs to nobody else; its link was written by `send_home`.
            let (next, order) = unsafe { ((*link).next, (*link).order) };
            self.merge(memory, memory.page(link), order);
            link = next;
        }
    }

    /// Puts all chunks into the lists where they belong by the pool's limit now.
    #[cold]
    fn sort(&mut self, memory: &Memory) {
        let before =
            core::mem::replace(&mut self.lists, [[null_mut(); BLOCK_ORDER as usize + 1]; list::COUNT]);
        self.limit = memory.pool.limit();
        for (order, head) in before.iter().flat_map(|lists| lists.iter().enumerate()) {
            let mut link = *head;
            while !link.is_null() {
                // SAFETY: links in our lists are valid, and their chunks ours. A clean page stays clean.
                let next = unsafe { link.replace(Link::new(null_mut(), 0)).next };
                self.keep(memory, memory.page(link), order as u32);
                link = next;
            }
        }
    }

    /// Zeroes some of what is free here and will next be taken, or else of the blocks that come next, and is dirty: up to a chunk of
    /// 64 KiB, so that whoever takes it need not. Value: how many pages; none: there is nothing near the heads of its lists, nor there.
    pub fn zero_ahead(&mut self, memory: &Memory) -> Option<u32> {
        let Some((link, pages)) = self.has_dirty.then(|| self.dirty_near(memory)).flatten() else {
            self.has_dirty = false;
            return memory.zero_block_ahead();
        };
        // SAFETY: the chunk is free and ours, and its link a valid one.
        let Link { next, prev, order, .. } = unsafe { link.read() };
        let zeroed = pages.len() as u32;
        memory.clean(pages);
        // SAFETY: as above.
        unsafe { link.write(Link { prev, ..Link::new(next, order) }) };
        Some(zeroed)
    }

    /// Dirty pages, 64 KiB at most, of a chunk of that size or more near the head of a list, and the chunk.
    fn dirty_near(&self, memory: &Memory) -> Option<(*mut Link, Range<usize>)> {
        let lists = self.lists[..list::LEAVING].iter();
        let heads = lists.flat_map(|lists| lists.iter().enumerate().skip(CHUNK_ORDER as usize));
        let mut chunks =
            heads.flat_map(|(order, head)| links(*head).take(ZEROED_NEAR).map(move |link| (link, order)));
        chunks.find_map(|(link, order)| {
            let first = memory.page(link);
            Some((link, memory.first_dirty(first..first + (1 << order))?))
        })
    }

    fn merge(&mut self, memory: &Memory, mut page: usize, mut order: u32) {
        self.has_dirty = true;
        let kind = self.kind(memory, page / BLOCK_PAGES);
        while order < BLOCK_ORDER {
            let buddy = page ^ (1 << order);
            let state = memory.state[buddy].load(Ordering::Relaxed);
            if state & FREE == 0 || (state & ORDER) as u32 != order {
                break;
            }
            self.unlink(memory, memory.link(buddy), kind, order);
            page = page.min(buddy);
            order += 1;
        }
        self.keep(memory, page, order);
    }

    /// Puts a free chunk into its list, or lets its block go.
    fn keep(&mut self, memory: &Memory, page: usize, order: u32) {
        let block = page / BLOCK_PAGES;
        let kind = self.kind(memory, block);
        // One whole block in hand is enough; others may need this one.
        if order == BLOCK_ORDER && (kind == list::LEAVING || !self.lists[kind][order as usize].is_null()) {
            let contents = memory.state[page].load(Ordering::Relaxed) & CONTENTS;
            memory.state[page].store(contents, Ordering::Relaxed);
            memory.owner[block].store(NOBODY, Ordering::Relaxed);
            memory.payers[block].store(0, Ordering::Relaxed);
            memory.pool.release(block, 1);
        } else {
            self.push(memory, page, kind, order);
        }
    }

    fn push(&mut self, memory: &Memory, page: usize, kind: usize, order: u32) {
        let link = memory.link(page);
        let head = self.lists[kind][order as usize];
        // SAFETY: the chunk is free and ours; `head` is in our list.
        unsafe {
            link.write(Link::new(head, order));
            if !head.is_null() {
                (*head).prev = link;
            }
        }
        self.lists[kind][order as usize] = link;
        let contents = memory.state[page].load(Ordering::Relaxed) & CONTENTS;
        memory.state[page].store(FREE | contents | order as u16, Ordering::Relaxed);
    }

    fn unlink(&mut self, memory: &Memory, link: *mut Link, kind: usize, order: u32) {
        // SAFETY: `link` is in our list, so it and its neighbours are valid links.
        unsafe {
            let Link { next, prev, .. } = link.read();
            if prev.is_null() {
                self.lists[kind][order as usize] = next;
            } else {
                (*prev).next = next;
            }
            if !next.is_null() {
                (*next).prev = prev;
            }
            // A clean page stays clean.
            link.write(Link::new(null_mut(), 0));
        }
        let page = memory.page(link);
        let contents = memory.state[page].load(Ordering::Relaxed) & CONTENTS;
        memory.state[page].store(contents, Ordering::Relaxed);
    }

    /// Pages free in this core's hands, but for those that are to be given back.
    pub fn free_pages(&self) -> usize {
        (0..list::LEAVING).map(|kind| self.chunks(kind, 0)).sum()
    }
}

/// The chunks of a list.
fn links(head: *mut Link) -> impl Iterator<Item = *mut Link> {
    let there = |link: *mut Link| (!link.is_null()).then_some(link);
    // SAFETY: who asks has the list, and links in it are valid.
    core::iter::successors(there(head), move |link| there(unsafe { (**link).next }))
}

/// How many chunks are in a list.
fn count(head: *mut Link) -> usize {
    links(head).count()
}

fn send_home(memory: &Memory, page: usize, order: u32, owner: u16) {
    assert!(owner != NOBODY, "a chunk of a block that nobody leased");
    put(&memory.homes[owner as usize - 1].back, memory.link(page), order);
}

/// Puts a free chunk, which is the caller's, onto a core's stack.
fn put(stack: &AtomicPtr<Link>, link: *mut Link, order: u32) {
    let mut top = stack.load(Ordering::Relaxed);
    loop {
        // SAFETY: the chunk is free and still ours.
        unsafe { link.write(Link::new(top, order)) };
        match stack.compare_exchange_weak(top, link, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => top = now,
        }
    }
}

/// Splits a length into chunks for [`CorePages::free`]: the largest aligned ones.
pub(crate) fn pieces(mut offset: u64, mut len: u64) -> impl Iterator<Item = (u64, u32)> {
    core::iter::from_fn(move || {
        if len == 0 {
            return None;
        }
        let align = (offset / PAGE).trailing_zeros().min(BLOCK_ORDER);
        let order = (len / PAGE).ilog2().min(align);
        let piece = (offset, order);
        offset += PAGE << order;
        len -= PAGE << order;
        Some(piece)
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::alloc::{Layout, alloc_zeroed};
    use std::collections::BTreeMap;
    use std::vec::Vec;

    pub(crate) fn memory(blocks: usize, cores: usize) -> Memory {
        let layout = Layout::from_size_align(blocks * BLOCK as usize, BLOCK as usize).unwrap();
        // SAFETY: a fresh, zeroed, leaked allocation.
        unsafe { Memory::new(alloc_zeroed(layout), (blocks as u64) * BLOCK, cores) }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Chunks never overlap, stay what was written to them, come zeroed when
        /// asked, and everything merges back to whole blocks; also while memory comes and goes.
        #[test]
        fn agrees_with_model(
            zones in (1usize..7, 0usize..7, 0usize..3),
            ops in prop::collection::vec((0u32..10, 0usize..3, 0u8..9), 1..300),
        ) {
            const MOST: usize = 6;
            let bytes = |blocks: usize| blocks as u64 * BLOCK;
            let memory = memory(MOST, 3).with_zones(bytes(zones.0), bytes(zones.1), bytes(zones.2));
            let mut cores = [CorePages::new(0), CorePages::new(1), CorePages::new(2)];
            let mut held: BTreeMap<u64, (u32, u8)> = BTreeMap::new();
            let fill = |offset: u64, order: u32, byte: u8| {
                // SAFETY: this test holds the chunk.
                unsafe { memory.address(offset).write_bytes(byte, (PAGE as usize) << order) };
            };
            let check = |offset: u64, order: u32, byte: u8| {
                // SAFETY: as above.
                let bytes = unsafe { std::slice::from_raw_parts(memory.address(offset), (PAGE as usize) << order) };
                bytes.iter().all(|b| *b == byte)
            };
            for (i, (order, core, op)) in ops.into_iter().enumerate() {
                let byte = i as u8 | 1;
                let mobility = if order.is_multiple_of(2) { Mobility::Fixed } else { Mobility::Movable };
                if op < 2 {
                    let got = cores[core].alloc_for(&memory, order, mobility, ROOT, i % 4 != 0);
                    if let Some(offset) = got && op == 1 { memory.clear(offset, PAGE << order); }
                    if let Some(offset) = got {
                        prop_assert!(offset.is_multiple_of(PAGE << order));
                        let len = PAGE << order;
                        prop_assert!(offset + len <= memory.total());
                        if let Some((o, (k, _))) = held.range(..offset + len).next_back() {
                            prop_assert!(o + (PAGE << k) <= offset, "overlap");
                        }
                        if op == 1 { prop_assert!(check(offset, order, 0), "not zeroed"); }
                        fill(offset, order, byte);
                        held.insert(offset, (order, byte));
                    }
                } else if op < 5 {
                    if let Some((&offset, &(order, byte))) = held.iter().nth(i % held.len().max(1)) {
                        prop_assert!(check(offset, order, byte), "somebody wrote to a held chunk");
                        held.remove(&offset);
                        cores[core].free(&memory, offset, order);
                    }
                } else if op == 8 {
                    let wanted = |page: u64| page % 64 == u64::from(order) * 7;
                    if let Some(offset) = cores[core].alloc_where(&memory, ROOT, i % 4 != 0, &wanted) {
                        memory.clear(offset, PAGE);
                        prop_assert!(wanted(offset / PAGE) && offset < memory.total());
                        if let Some((o, (k, _))) = held.range(..=offset).next_back() {
                            prop_assert!(o + (PAGE << k) <= offset, "overlap");
                        }
                        prop_assert!(check(offset, 0, 0), "not zeroed");
                        fill(offset, 0, byte);
                        held.insert(offset, (0, byte));
                    }
                } else if op == 7 {
                    for _ in 0..i % 64 { cores[core].zero_ahead(&memory); }
                } else if op == 6 {
                    let number = memory.ask(core, order, mobility);
                    let mut others = memory.owners();
                    others[0] &= !(1 << core);
                    let had: usize = cores.iter().map(|c| c.chunks(list::FIXED, order) + c.chunks(list::MOVABLE, order)).sum();
                    for other in (0..3).filter(|n| *n != core) { cores[other].tidy(&memory); }
                    prop_assert!(memory.have_answered(number, &others));
                    memory.asked(core);
                    // Whoever has some gives some.
                    if had > 0 { prop_assert!(cores[core].has(order) || cores[core].has_gift(&memory, order)); }
                } else {
                    let wanted = bytes(order as usize % MOST + 1);
                    let before = memory.total();
                    if wanted >= before {
                        memory.grow(wanted);
                        prop_assert_eq!(memory.total(), wanted);
                    } else {
                        memory.begin_to_leave(wanted);
                        // What was given goes home first.
                        for core in &mut cores { core.tidy_all(&memory); }
                        for core in &mut cores { core.tidy(&memory); }
                        memory.left_behind();
                        // What nobody holds goes, whichever core had it in its lists.
                        let end = held.iter().map(|(o, (k, _))| (o + (PAGE << k)).next_multiple_of(BLOCK)).max();
                        prop_assert_eq!(memory.leave(), wanted.max(end.unwrap_or(0)));
                        // What comes back is zeroes, as from the host.
                        let (from, len) = (memory.total(), before - memory.total());
                        // SAFETY: nobody has this part of the allocation.
                        unsafe { memory.base.add(from as usize).write_bytes(0, len as usize) };
                    }
                }
                let used: u64 = held.values().map(|(k, _)| PAGE << k).sum();
                prop_assert_eq!(memory.used(), used);
                prop_assert_eq!(memory.held(ROOT) as u64 * PAGE, used);
            }
            for (offset, (order, _)) in held { cores[1].free(&memory, offset, order); }
            for c in &mut cores { c.tidy_all(&memory); }
            for c in &mut cores { c.tidy(&memory); }
            let in_hand: usize = cores.iter().map(|c| c.free_pages()).sum();
            prop_assert_eq!(memory.pool().free() * BLOCK_PAGES + in_hand, memory.pool().len() * BLOCK_PAGES);
        }

        #[test]
        fn pieces_cover(page in 0u64..2000, pages in 1u64..3000) {
            let mut at = page * PAGE;
            for (offset, order) in pieces(page * PAGE, pages * PAGE) {
                prop_assert_eq!(offset, at);
                prop_assert!(offset.is_multiple_of(PAGE << order));
                at += PAGE << order;
            }
            prop_assert_eq!(at, (page + pages) * PAGE);
        }
    }

    /// Pages are those who took them's until they are given back, by whatever core; and can be passed on (OK-05).
    #[test]
    fn accounts_balance() {
        let memory = memory(3, 2);
        let mut cores = [CorePages::new(0), CorePages::new(1)];
        let a: Vec<u64> = (0..40)
            .map(|n| cores[n % 2].alloc_for(&memory, n as u32 % 4, Mobility::Fixed, 7, true).unwrap())
            .collect();
        let b: Vec<u64> = (0..30)
            .map(|n| cores[n % 2].alloc_for(&memory, 0, Mobility::Movable, 7 + 64, true).unwrap())
            .collect();
        assert_eq!((memory.held(7), memory.held(71), memory.used() / PAGE), (150, 30, 180));
        // Given back by the other core.
        cores[0].free(&memory, a[1], 1);
        cores[1].free(&memory, b[0], 0);
        assert_eq!((memory.held(7), memory.held(71)), (148, 29));
        memory.pass_on(7, 3);
        assert_eq!((memory.held(7), memory.held(3), memory.held(71)), (0, 148, 29));
        memory.pass_on(71, 3);
        assert_eq!((memory.held(3), memory.used() / PAGE), (177, 177));
        for (n, offset) in a.iter().enumerate().filter(|(n, _)| *n != 1) {
            cores[1].free(&memory, *offset, n as u32 % 4);
        }
        for offset in &b[1..] {
            cores[0].free(&memory, *offset, 0);
        }
        assert!((0..256).all(|n| memory.held(n) == 0) && memory.used() == 0);
    }

    std::thread_local! {
        /// Pages that were zeroed ahead and taken.
        static TAKEN: core::cell::Cell<u32> = const { core::cell::Cell::new(0) };
    }

    /// What was given back and is near the heads of the lists is zeroed ahead, once, and needs no zeroing when it is taken.
    #[test]
    fn zeroed_ahead() {
        let memory = memory(4, 1);
        let mut core = CorePages::new(0);
        let fill = |offset: u64, order: u32| {
            // SAFETY: this test holds the chunk.
            unsafe { memory.address(offset).write_bytes(7, (PAGE as usize) << order) };
        };
        assert_eq!(core.zero_ahead(&memory), None);
        let held: Vec<u64> =
            (0..40).map(|_| core.alloc(&memory, CHUNK_ORDER, Mobility::Movable).unwrap()).collect();
        for offset in held {
            fill(offset, CHUNK_ORDER);
            core.free(&memory, offset, CHUNK_ORDER);
        }
        set_taken_ahead(|_, pages| TAKEN.set(TAKEN.get() + pages));
        let zeroed: Vec<u32> = core::iter::from_fn(|| core.zero_ahead(&memory)).collect();
        // A whole block of 32 chunks stays in hand, and all of the lists is near.
        assert!((32..=40).contains(&zeroed.len()), "{zeroed:?}");
        assert_eq!(core.zero_ahead(&memory), None);
        let offset = core.alloc(&memory, BLOCK_ORDER, Mobility::Movable).unwrap();
        assert_eq!(TAKEN.replace(0) as usize, BLOCK_PAGES);
        // Each page is told of once, in whatever pieces, and then only if it was zeroed anew.
        let pages: Vec<u64> =
            (0..BLOCK_PAGES).map(|_| core.alloc(&memory, 0, Mobility::Movable).unwrap()).collect();
        assert_eq!(TAKEN.replace(0), zeroed.iter().sum::<u32>() - BLOCK_PAGES as u32);
        for page in &pages {
            assert!(!memory.is_marked(*page));
            core.free(&memory, *page, 0);
        }
        let again: Vec<u64> =
            pages.iter().map(|_| core.alloc(&memory, 0, Mobility::Movable).unwrap()).collect();
        assert_eq!(TAKEN.get(), 0);
        again.into_iter().for_each(|page| core.free(&memory, page, 0));
        let first = (offset / PAGE) as usize;
        let dirty = |n: &usize| memory.state[first + n].load(Ordering::Relaxed) & DIRTY != 0;
        assert_eq!((0..BLOCK_PAGES).filter(dirty).count(), 0);
        // SAFETY: this test holds the chunk.
        let bytes = unsafe { std::slice::from_raw_parts(memory.address(offset), BLOCK as usize) };
        assert!(bytes.iter().all(|b| *b == 0));
        core.free(&memory, offset, BLOCK_ORDER);
    }

    /// A core with nothing to do zeroes the blocks that come next, whoever had them, but not many, and none when few are free.
    #[test]
    fn blocks_zeroed_ahead() {
        const BLOCKS: usize = 80;
        let memory = memory(BLOCKS, 2);
        let mut cores = [CorePages::new(0), CorePages::new(1)];
        let take_all = |core: &mut CorePages| -> Vec<u64> {
            core::iter::from_fn(|| core.alloc(&memory, BLOCK_ORDER, Mobility::Movable)).collect()
        };
        let all = take_all(&mut cores[0]);
        assert_eq!(all.len(), BLOCKS);
        for (freed, offset) in all.into_iter().enumerate() {
            // SAFETY: this test holds the block.
            unsafe { memory.address(offset).write_bytes(7, BLOCK as usize) };
            cores[0].free(&memory, offset, BLOCK_ORDER);
            // One is in the core's hands.
            assert_eq!(freed < 8, cores[1].zero_ahead(&memory).is_none(), "{freed}");
        }
        let times = (0..).take_while(|_| cores[1].zero_ahead(&memory).is_some()).count();
        // Of as many blocks as come next, with what was zeroed meanwhile.
        assert_eq!(times + BLOCKS - 8, 32 * 32);
        let clean = |offset: &u64| {
            let first = (offset / PAGE) as usize;
            memory.first_dirty(first..first + BLOCK_PAGES).is_none()
        };
        let next = take_all(&mut cores[1]);
        assert!(next[..32].iter().all(clean) && !next[32..].iter().any(clean));
        for offset in &next[..32] {
            // SAFETY: this test holds the block.
            let bytes = unsafe { std::slice::from_raw_parts(memory.address(*offset), BLOCK as usize) };
            assert!(bytes.iter().all(|b| *b == 0));
        }
        for offset in next {
            cores[1].free(&memory, offset, BLOCK_ORDER);
        }
    }

    /// Part of a block that holds something else serves as well as a whole one, and comes zeroed.
    #[test]
    fn adopted_pages_serve() {
        let memory = memory(2, 1);
        assert!(memory.pool().claim_at(0));
        let mut core = CorePages::new(0);
        core.adopt(&memory, 0, BLOCK - 5 * PAGE);
        assert_eq!(core.free_pages(), BLOCK_PAGES - 5);
        let held: Vec<u64> = (0..BLOCK_PAGES - 5)
            .map(|_| {
                let page = core.alloc(&memory, 0, Mobility::Movable).unwrap();
                memory.clear(page, PAGE);
                page
            })
            .collect();
        for p in &held {
            assert!(*p < BLOCK - 5 * PAGE);
            // SAFETY: this test holds the page.
            let bytes = unsafe { std::slice::from_raw_parts(memory.address(*p), PAGE as usize) };
            assert!(bytes.iter().all(|b| *b == 0));
        }
        // Only then another block.
        assert_eq!(memory.pool().free(), 1);
        assert!(core.alloc(&memory, 0, Mobility::Fixed).unwrap() >= BLOCK);
        for p in held {
            core.free(&memory, p, 0);
        }
    }

    /// A part of a chunk can be given back by itself.
    #[test]
    fn frees_piecewise() {
        let memory = memory(1, 1);
        let mut core = CorePages::new(0);
        let block = core.alloc(&memory, BLOCK_ORDER, Mobility::Fixed).unwrap();
        assert_eq!(core.alloc(&memory, 0, Mobility::Fixed), None);
        core.free(&memory, block + 5 * PAGE, 0);
        assert_eq!(core.alloc(&memory, 0, Mobility::Fixed), Some(block + 5 * PAGE));
        for (offset, order) in pieces(block, BLOCK) {
            core.free(&memory, offset, order);
        }
        assert_eq!(core.free_pages(), BLOCK_PAGES);
    }
}
