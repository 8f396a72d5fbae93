//! The cell's 2 MiB blocks: claimed and released by any core, without a lock.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A bitmap of blocks; a set bit is a block that somebody holds.
pub struct BlockPool {
    taken: Box<[AtomicU64]>,
    blocks: usize,
    free: AtomicUsize,
    /// Where the next search starts, so that fresh blocks are preferred late.
    hint: AtomicUsize,
}

impl BlockPool {
    /// A pool of `blocks` free blocks.
    pub fn new(blocks: usize) -> Self {
        let words = blocks.div_ceil(64);
        let taken: Box<[AtomicU64]> = (0..words)
            .map(|w| {
                // Bits beyond the end are taken for ever.
                let valid = (blocks - w * 64).min(64);
                AtomicU64::new(if valid == 64 { 0 } else { !0 << valid })
            })
            .collect();
        BlockPool { taken, blocks, free: AtomicUsize::new(blocks), hint: AtomicUsize::new(0) }
    }

    /// Blocks in all.
    pub fn len(&self) -> usize {
        self.blocks
    }

    /// Has the pool no blocks at all?
    pub fn is_empty(&self) -> bool {
        self.blocks == 0
    }

    /// Blocks that nobody holds.
    pub fn free(&self) -> usize {
        self.free.load(Ordering::Relaxed)
    }

    /// Claims one block; lowest numbers first, so that touched memory is reused before fresh memory.
    pub fn claim(&self) -> Option<usize> {
        let start = self.hint.load(Ordering::Relaxed).min(self.taken.len());
        for w in (start..self.taken.len()).chain(0..start) {
            let mut bits = self.taken[w].load(Ordering::Relaxed);
            while bits != !0 {
                let bit = bits.trailing_ones() as usize;
                match self.taken[w].compare_exchange_weak(
                    bits,
                    bits | 1 << bit,
                    Ordering::Acquire,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => {
                        self.free.fetch_sub(1, Ordering::Relaxed);
                        self.hint.store(w, Ordering::Relaxed);
                        return Some(w * 64 + bit);
                    }
                    Err(now) => bits = now,
                }
            }
        }
        None
    }

    /// Claims `n` neighbouring blocks, and returns the first.
    pub fn claim_run(&self, n: usize) -> Option<usize> {
        if n <= 1 {
            return if n == 1 { self.claim() } else { None };
        }
        let mut at = 0;
        'search: while at + n <= self.blocks {
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
            self.give_back(b);
        }
        self.free.fetch_add(n, Ordering::Relaxed);
        // Lower blocks first again.
        self.hint.fetch_min(block / 64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    proptest! {
        /// The pool against a set of free blocks.
        #[test]
        fn agrees_with_model(size in 1usize..200, ops in prop::collection::vec((0usize..3, 1usize..9), 1..200)) {
            let pool = BlockPool::new(size);
            let mut free: BTreeSet<usize> = (0..size).collect();
            let mut held: Vec<(usize, usize)> = Vec::new();
            for (op, n) in ops {
                match op {
                    0 => match pool.claim() {
                        Some(b) => { prop_assert!(free.remove(&b)); held.push((b, 1)); }
                        None => prop_assert!(free.is_empty()),
                    },
                    1 => match pool.claim_run(n) {
                        Some(b) => {
                            for i in b..b + n { prop_assert!(free.remove(&i)); }
                            held.push((b, n));
                        }
                        None => prop_assert!(!(0..size).any(|s| (s..s + n).all(|i| free.contains(&i)))),
                    },
                    _ => if let Some((b, n)) = held.pop() {
                        pool.release(b, n);
                        free.extend(b..b + n);
                    },
                }
                prop_assert_eq!(pool.free(), free.len());
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
