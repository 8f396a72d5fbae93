//! The cell's 2 MiB blocks: claimed and released by any core, without a lock.
//!
//! There are as many as the cell can ever have; those that it has are *granted*, from block 0 on. What isn't is held
//! here: its bits are set, and nobody gets it. To give blocks back, the cell lowers its *limit*: blocks from there on are
//! claimed no more, and held as they come free. So that they do, memory that can't be moved is claimed in a zone of its own, the
//! first blocks, as long as there are some, and memory that can be moved behind it (`pages.rs`).
//!
//! Which free blocks may hold old data is noted, so that cores that have nothing to do can zero those that come next.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use atoll_abi::layout::order_of_block;

use crate::pages::Mobility;

/// So many free blocks of each zone, those that are claimed next, are kept zeroed.
const ZEROED: usize = 32;

/// Of a zone with fewer free blocks than this none is held to be zeroed: somebody may find nothing else.
const ZEROED_IF_FREE: usize = 8;

/// How long somebody waits for blocks that are held to be zeroed, turns.
const ZEROED_WAIT: u32 = 100_000;

/// A bitmap of blocks; a set bit is a block that somebody holds.
pub struct BlockPool {
    taken: Box<[AtomicU64]>,
    /// Blocks that are held here: not granted, or to be given back. Only who changes the grant writes to it.
    withheld: Box<[AtomicU64]>,
    /// Of free blocks: they may hold old data.
    soiled: Box<[AtomicU64]>,
    /// Blocks were claimed or released since there were no such ones among those that come next.
    has_changed: AtomicBool,
    /// How many are held to be zeroed.
    zeroing: AtomicUsize,
    /// As many as there can ever be.
    blocks: usize,
    /// The cell has those before.
    granted: AtomicUsize,
    /// Those from here on are not claimed.
    limit: AtomicUsize,
    /// The zone of what can't be moved ends here.
    fixed: usize,
    /// While the one before this is free, those before it serve both.
    mixed: usize,
    free: AtomicUsize,
    /// So many free blocks of the zone of what can't be moved are for nothing else.
    spared: AtomicUsize,
    /// Words where the next searches start, in the two zones, so that fresh blocks are preferred late.
    hints: [AtomicUsize; 2],
}

impl BlockPool {
    /// A pool of `blocks` free blocks, with one zone.
    pub fn new(blocks: usize) -> Self {
        let words = blocks.div_ceil(64);
        let taken: Box<[AtomicU64]> = (0..words)
            .map(|w| {
                // Bits beyond the end are taken for ever.
                let valid = (blocks - w * 64).min(64);
                AtomicU64::new(if valid == 64 { 0 } else { !0 << valid })
            })
            .collect();
        BlockPool {
            taken,
            withheld: (0..words).map(|_| AtomicU64::new(0)).collect(),
            soiled: (0..words).map(|_| AtomicU64::new(0)).collect(),
            has_changed: AtomicBool::new(false),
            zeroing: AtomicUsize::new(0),
            blocks,
            granted: AtomicUsize::new(blocks),
            limit: AtomicUsize::new(blocks),
            fixed: blocks,
            mixed: 0,
            free: AtomicUsize::new(blocks),
            spared: AtomicUsize::new(0),
            hints: [const { AtomicUsize::new(0) }; 2],
        }
    }

    /// The same, where only the first `granted` are there, what can't be moved is in the first `fixed`, and the first `mixed` serve
    /// all for a start. Before any is claimed.
    pub fn with_zones(mut self, granted: usize, fixed: usize, mixed: usize) -> Self {
        (self.fixed, self.mixed) = (fixed.min(self.blocks), mixed.min(fixed).min(granted));
        self.set_limit(granted);
        self.withhold();
        self.settle();
        self
    }

    /// Blocks that the cell has.
    pub fn len(&self) -> usize {
        self.granted.load(Ordering::Relaxed)
    }

    /// Those of them that are not about to be given back.
    pub fn staying(&self) -> usize {
        self.limit().min(self.len())
    }

    /// Has the pool no blocks at all?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Blocks that the cell can have.
    pub fn most(&self) -> usize {
        self.blocks
    }

    /// Blocks that can't be given back.
    pub fn fixed(&self) -> usize {
        self.fixed
    }

    /// Blocks from here on are not claimed.
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Do the first blocks still serve all?
    pub fn is_mixed(&self) -> bool {
        self.mixed.checked_sub(1).is_some_and(|last| !self.is_taken(last))
    }

    /// Which one in order of use a block is.
    pub fn order_of_use(&self, block: usize) -> Option<u64> {
        order_of_block(block as u64, self.fixed as u64, self.mixed as u64)
    }

    /// Blocks that nobody holds.
    pub fn free(&self) -> usize {
        self.free.load(Ordering::Relaxed)
    }

    /// From now on so many free blocks of the zone of what can't be moved are for nothing else. How many it were before.
    pub fn spare(&self, blocks: usize) -> usize {
        self.spared.swap(blocks, Ordering::Relaxed)
    }

    /// When there are no blocks left in the zone for it, may what can be moved have one of the other?
    pub fn may_mix(&self) -> bool {
        self.free() > self.spared.load(Ordering::Relaxed)
    }

    /// Claims one block; lowest numbers first, so that touched memory is reused before fresh memory. For what can be moved only
    /// those behind the zone of what can't, or those that serve both for a start.
    pub fn claim(&self, mobility: Mobility) -> Option<usize> {
        let limit = self.limit();
        let (low, high) = ((0, self.fixed.min(limit)), (self.fixed.min(limit), limit));
        match mobility {
            Mobility::Fixed => self.claim_in(low).or_else(|| self.claim_in(high)),
            Mobility::Movable if self.is_mixed() => self.claim_in((0, self.mixed)),
            Mobility::Movable => self.claim_in(high),
        }
    }

    fn hint(&self, block: usize) -> &AtomicUsize {
        &self.hints[usize::from(block >= self.fixed)]
    }

    fn claim_in(&self, (from, to): (usize, usize)) -> Option<usize> {
        if from >= to {
            return None;
        }
        let (first, end, hint) = (from / 64, to.div_ceil(64), self.hint(from));
        let start = hint.load(Ordering::Relaxed).clamp(first, end);
        for w in (start..end).chain(first..start) {
            // Those of the word that are not in the range are none of this search's.
            let others = low_bits(from.saturating_sub(w * 64)) | !low_bits(to - w * 64);
            let mut bits = self.taken[w].load(Ordering::Relaxed);
            while bits | others != !0 {
                let bit = (bits | others).trailing_ones() as usize;
                match self.taken[w].compare_exchange_weak(
                    bits,
                    bits | 1 << bit,
                    Ordering::Acquire,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => {
                        self.free.fetch_sub(1, Ordering::Relaxed);
                        self.changed();
                        hint.store(w, Ordering::Relaxed);
                        return Some(w * 64 + bit);
                    }
                    Err(now) => bits = now,
                }
            }
        }
        None
    }

    /// Claims `n` neighbouring blocks, and returns the first. They are for what can't be moved.
    pub fn claim_run(&self, n: usize) -> Option<usize> {
        if n <= 1 {
            return if n == 1 { self.claim(Mobility::Fixed) } else { None };
        }
        self.find_run(n).or_else(|| {
            // One that is held to be zeroed may be all that keeps some apart.
            if self.zeroing.load(Ordering::Relaxed) == 0 {
                return None;
            }
            (0..ZEROED_WAIT)
                .take_while(|_| self.zeroing.load(Ordering::Relaxed) != 0)
                .for_each(|_| core::hint::spin_loop());
            self.find_run(n)
        })
    }

    fn find_run(&self, n: usize) -> Option<usize> {
        let (mut at, limit) = (0, self.limit());
        'search: while at + n <= limit {
            for i in 0..n {
                if !self.try_take(at + i) {
                    for j in 0..i {
                        self.give_back(at + j);
                    }
                    at += i + 1;
                    continue 'search;
                }
            }
            self.free.fetch_sub(n, Ordering::Relaxed);
            return Some(at);
        }
        None
    }

    /// Claims a particular block, if it is free.
    pub fn claim_at(&self, block: usize) -> bool {
        let ok = block < self.blocks && self.try_take(block);
        if ok {
            self.free.fetch_sub(1, Ordering::Relaxed);
        }
        ok
    }

    /// Others come next now.
    fn changed(&self) {
        if !self.has_changed.load(Ordering::Relaxed) {
            self.has_changed.store(true, Ordering::Relaxed);
        }
    }

    /// Blocks from this one on may hold old data, while none is claimed.
    pub fn soil_from(&self, block: usize) {
        for (w, soiled) in self.soiled.iter().enumerate().skip(block / 64) {
            soiled.fetch_or(!low_bits(block.saturating_sub(w * 64)), Ordering::Relaxed);
        }
        self.changed();
    }

    /// Claims one of the blocks that come next and may hold old data, to zero some of it. It has to be given back
    /// by [`BlockPool::zeroed`].
    pub fn claim_soiled(&self) -> Option<usize> {
        if !self.has_changed.load(Ordering::Relaxed) {
            return None;
        }
        self.has_changed.store(false, Ordering::Relaxed);
        let limit = self.limit();
        let zones = [(0, self.fixed.min(limit)), (self.fixed.min(limit), limit)];
        let found = zones.iter().find_map(|zone| self.soiled_in(*zone))?;
        self.zeroing.fetch_add(1, Ordering::Relaxed);
        if !self.try_take(found) {
            self.zeroing.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        self.free.fetch_sub(1, Ordering::Relaxed);
        self.changed();
        Some(found)
    }

    fn soiled_in(&self, (from, to): (usize, usize)) -> Option<usize> {
        if from >= to {
            return None;
        }
        let (first, end, mut free_here, mut found) = (from / 64, to.div_ceil(64), 0, None);
        let start = self.hint(from).load(Ordering::Relaxed).clamp(first, end);
        for w in (start..end).chain(first..start) {
            let range = low_bits(to - w * 64) & !low_bits(from.saturating_sub(w * 64));
            let mut free = range & !self.taken[w].load(Ordering::Relaxed);
            let soiled = self.soiled[w].load(Ordering::Relaxed);
            while free != 0 {
                let bit = free.trailing_zeros();
                free_here += 1;
                // While the last of those that serve both is free, they do.
                let block = w * 64 + bit as usize;
                if found.is_none() && soiled & 1 << bit != 0 && block + 1 != self.mixed {
                    found = Some(block);
                }
                if free_here >= if found.is_some() { ZEROED_IF_FREE } else { ZEROED } {
                    return found;
                }
                free &= free - 1;
            }
        }
        None
    }

    /// Gives back a block that was claimed to be zeroed: all of it is, or some isn't yet.
    pub fn zeroed(&self, block: usize, all: bool) {
        if all {
            self.soiled[block / 64].fetch_and(!(1 << (block % 64)), Ordering::Relaxed);
        }
        self.give_back(block);
        self.free.fetch_add(1, Ordering::Relaxed);
        self.zeroing.fetch_sub(1, Ordering::Relaxed);
    }

    fn is_taken(&self, block: usize) -> bool {
        self.taken[block / 64].load(Ordering::Relaxed) & 1 << (block % 64) != 0
    }

    fn try_take(&self, block: usize) -> bool {
        let bit = 1 << (block % 64);
        self.taken[block / 64].fetch_or(bit, Ordering::Acquire) & bit == 0
    }

    fn give_back(&self, block: usize) {
        let bit = 1 << (block % 64);
        let before = self.taken[block / 64].fetch_and(!bit, Ordering::Release);
        assert!(before & bit != 0, "block {block} released twice");
    }

    /// Releases blocks.
    ///
    /// # Panics
    /// If one of them is free already.
    pub fn release(&self, block: usize, n: usize) {
        for b in block..block + n {
            self.soiled[b / 64].fetch_or(1 << (b % 64), Ordering::Relaxed);
            self.give_back(b);
        }
        self.changed();
        self.free.fetch_add(n, Ordering::Relaxed);
        // Lower blocks first again.
        // They may lie in both zones.
        for first in [block, block.max(self.fixed).min(block + n - 1)] {
            self.hint(first).fetch_min(first / 64, Ordering::Relaxed);
        }
    }

    // What follows is for one at a time, who changes the grant.

    /// Blocks from `limit` on are claimed no more, but by who is about to; the others are. Of those that were withheld there,
    /// [`BlockPool::withhold`] and [`BlockPool::settle`] say what becomes.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit.min(self.blocks), Ordering::SeqCst);
    }

    /// Is this block withheld?
    pub fn is_withheld(&self, block: usize) -> bool {
        self.withheld[block / 64].load(Ordering::Relaxed) & 1 << (block % 64) != 0
    }

    /// Holds the free blocks from the limit on. Value: how many others of those that the cell has are left there.
    pub fn withhold(&self) -> usize {
        let mut left = 0;
        for block in self.limit()..self.len() {
            if self.is_withheld(block) {
                continue;
            }
            if self.claim_at(block) {
                self.withheld[block / 64].fetch_or(1 << (block % 64), Ordering::Relaxed);
            } else {
                left += 1;
            }
        }
        left
    }

    /// The cell has all blocks up to the limit from now on, or up to the last one that could not be withheld, and no others.
    /// Value: how many that are.
    pub fn settle(&self) -> usize {
        let (limit, had) = (self.limit(), self.len());
        let kept = (limit..had).rev().find(|block| !self.is_withheld(*block)).map_or(limit, |last| last + 1);
        self.granted.store(kept, Ordering::Relaxed);
        self.limit.store(kept, Ordering::SeqCst);
        for block in (0..kept).filter(|block| self.is_withheld(*block)) {
            self.withheld[block / 64].fetch_and(!(1 << (block % 64)), Ordering::Relaxed);
            self.release(block, 1);
        }
        kept
    }
}

/// The `n` low bits; all from 64 on.
fn low_bits(n: usize) -> u64 {
    if n >= 64 { !0 } else { (1 << n) - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    proptest! {
        /// The pool against a set of free blocks, while its grant grows and shrinks.
        #[test]
        fn agrees_with_model(
            size in 1usize..200,
            zones in (0usize..200, 0usize..200, 0usize..9),
            ops in prop::collection::vec((0usize..6, 1usize..200), 1..200),
        ) {
            let (granted, fixed) = (zones.0.min(size), zones.1.min(size));
            let mixed = zones.2.min(fixed).min(granted);
            let pool = BlockPool::new(size).with_zones(granted, fixed, mixed);
            let mut free: BTreeSet<usize> = (0..granted).collect();
            let mut len = granted;
            let mut held: Vec<(usize, usize)> = Vec::new();
            let mut soiled: BTreeSet<usize> = BTreeSet::new();
            for (op, n) in ops {
                match op {
                    0 | 1 => {
                        let mobility = if op == 0 { Mobility::Fixed } else { Mobility::Movable };
                        let is_mixed = mixed > 0 && free.contains(&(mixed - 1));
                        let high = free.range(fixed..).next().copied();
                        match pool.claim(mobility) {
                            Some(b) => {
                                match mobility {
                                    Mobility::Fixed => prop_assert_eq!(Some(b), free.first().copied()),
                                    Mobility::Movable if is_mixed => prop_assert!(b < mixed),
                                    Mobility::Movable => prop_assert_eq!(Some(b), high),
                                }
                                prop_assert!(free.remove(&b));
                                held.push((b, 1));
                            }
                            None if mobility == Mobility::Movable => prop_assert!(high.is_none() && !is_mixed),
                            None => prop_assert!(free.is_empty()),
                        }
                    }
                    2 => match pool.claim_run(n % 8 + 1) {
                        Some(b) => {
                            let n = n % 8 + 1;
                            for i in b..b + n { prop_assert!(free.remove(&i)); }
                            held.push((b, n));
                        }
                        None => {
                            let n = n % 8 + 1;
                            prop_assert!(!(0..size).any(|s| (s..s + n).all(|i| free.contains(&i))));
                        }
                    },
                    3 => if !held.is_empty() {
                        let (b, n) = held.swap_remove(n % held.len());
                        pool.release(b, n);
                        free.extend(b..b + n);
                        soiled.extend(b..b + n);
                    },
                    4 => if let Some(b) = pool.claim_soiled() {
                        prop_assert!(free.contains(&b) && soiled.contains(&b) && free.len() >= ZEROED_IF_FREE && b + 1 != mixed);
                        prop_assert!(!pool.claim_at(b));
                        pool.zeroed(b, n % 2 == 0);
                        if n % 2 == 0 { soiled.remove(&b); }
                    },
                    _ => {
                        let wanted = n.min(size);
                        let last_held = held.iter().map(|(b, n)| b + n).max().unwrap_or(0);
                        pool.set_limit(wanted);
                        let in_use = held.iter().flat_map(|(b, n)| *b..b + n).filter(|b| *b >= wanted).count();
                        prop_assert_eq!(pool.withhold(), in_use);
                        let new = pool.settle();
                        // What is held stays; all behind goes.
                        prop_assert_eq!(new, wanted.max(last_held));
                        free.extend(len.min(new)..new);
                        soiled.extend(0..new);
                        free.retain(|b| *b < new);
                        len = new;
                    }
                }
                prop_assert_eq!((pool.free(), pool.len()), (free.len(), len));
            }
        }
    }

    #[test]
    fn many_threads_share_without_overlap() {
        let pool = BlockPool::new(300);
        let owner: Vec<AtomicUsize> = (0..300).map(|_| AtomicUsize::new(0)).collect();
        std::thread::scope(|s| {
            for t in 1..=4usize {
                let (pool, owner) = (&pool, &owner);
                s.spawn(move || {
                    let mut mine = Vec::new();
                    for i in 0..20_000usize {
                        if i % 3 != 2 {
                            let n = 1 + i % 4;
                            if let Some(b) = pool.claim_run(n) {
                                for o in &owner[b..b + n] {
                                    assert_eq!(o.swap(t, Ordering::SeqCst), 0);
                                }
                                mine.push((b, n));
                            }
                            if let Some(b) = pool.claim_soiled() {
                                assert_eq!(owner[b].swap(t, Ordering::SeqCst), 0);
                                assert_eq!(owner[b].swap(0, Ordering::SeqCst), t);
                                pool.zeroed(b, i % 2 == 0);
                            }
                        } else if let Some((b, n)) = mine.pop() {
                            for o in &owner[b..b + n] {
                                assert_eq!(o.swap(0, Ordering::SeqCst), t);
                            }
                            pool.release(b, n);
                        }
                    }
                });
            }
        });
    }
}
