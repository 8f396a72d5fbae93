//! Who shares chunks of a program's memory: a count for each 64 KiB of the cell's.
//!
//! After a fork both processes show the same chunks, read-only, until one of them
//! writes. A chunk's count is how many show it beside the first; at 0 it has one
//! owner, who may write to it. Only an owner adds another, so nobody else can come
//! while an owner looks at a count of 0. It never counts what shared mappings show.
//! A block has counts from the first time on that a chunk of it is shared.
#![allow(unsafe_code, reason = "keeps tables that are made once, by whoever needs them first")]

use alloc::boxed::Box;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use atoll_abi::layout::{BLOCK, PAGE};

use crate::pages::CHUNK_ORDER;

const CHUNK: u64 = PAGE << CHUNK_ORDER;

/// A count for each chunk of a block.
type Counts = [AtomicU32; (BLOCK / CHUNK) as usize];

/// Counts for each block, or none yet.
pub struct Sharers(Box<[AtomicPtr<Counts>]>);

impl Sharers {
    /// Nobody shares anything yet: all are null.
    pub(crate) fn new(blocks: Box<[AtomicPtr<Counts>]>) -> Self {
        Sharers(blocks)
    }

    /// The count of the chunk at `offset`, if its block has any.
    fn of(&self, offset: u64) -> Option<&AtomicU32> {
        let counts = self.0[(offset / BLOCK) as usize].load(Ordering::Acquire);
        // SAFETY: null or a table that stays for ever.
        let counts = unsafe { counts.as_ref() }?;
        Some(&counts[(offset % BLOCK / CHUNK) as usize])
    }

    /// One owner more for the chunk at `offset`. The caller is one.
    pub fn add(&self, offset: u64) {
        let count = self.of(offset).unwrap_or_else(|| self.made(offset));
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// The count of the chunk at `offset`, whose block had none yet.
    #[cold]
    fn made(&self, offset: u64) -> &AtomicU32 {
        let new = Box::into_raw(Box::new([const { AtomicU32::new(0) }; (BLOCK / CHUNK) as usize]));
        let block = &self.0[(offset / BLOCK) as usize];
        if block.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: nobody else has seen it.
            drop(unsafe { Box::from_raw(new) });
        }
        self.of(offset).expect("made above")
    }

    /// Has it other owners than the caller? "No" is so until the caller adds one, and what the others did has happened before.
    pub fn has_others(&self, offset: u64) -> bool {
        self.of(offset).is_some_and(|count| count.load(Ordering::Acquire) != 0)
    }

    /// How many owners it has just now.
    pub fn count(&self, offset: u64) -> u32 {
        1 + self.of(offset).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// One owner less, who does not look at it any more. True: that was the last one, and its memory is to be given back.
    pub fn leave(&self, offset: u64) -> bool {
        let Some(count) = self.of(offset) else { return true };
        // Release: what this owner read is read before another one, alone now, writes.
        count.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| n.checked_sub(1)).is_err()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn none(blocks: usize) -> Sharers {
        Sharers::new((0..blocks).map(|_| AtomicPtr::new(null_mut())).collect())
    }

    proptest! {
        /// As a list of owners says.
        #[test]
        fn agrees_with_model(ops in prop::collection::vec((0usize..4, any::<bool>()), 1..200)) {
            let sharers = none(2);
            let mut owners = [1u32; 4];
            let place = |n: usize| n as u64 % 2 * CHUNK + n as u64 / 2 * BLOCK;
            for (n, add) in ops {
                // Any byte of a chunk stands for it.
                let at = place(n) + PAGE;
                if owners[n] == 0 {
                    // Taken anew, by one.
                    owners[n] = 1;
                }
                if add {
                    sharers.add(at);
                    owners[n] += 1;
                } else {
                    owners[n] -= 1;
                    prop_assert_eq!(sharers.leave(at), owners[n] == 0);
                }
                for (n, owners) in owners.iter().enumerate() {
                    prop_assert_eq!(sharers.has_others(place(n)), *owners > 1);
                }
            }
        }
    }

    /// Of many owners who leave at once, one is the last.
    #[test]
    fn one_is_the_last() {
        for _ in 0..200 {
            let sharers = none(1);
            std::thread::scope(|s| (0..7).for_each(|_| _ = s.spawn(|| sharers.add(0))));
            let last = std::thread::scope(|s| {
                let all: Vec<_> = (0..8).map(|_| s.spawn(|| sharers.leave(0))).collect();
                all.into_iter().map(|t| t.join().unwrap()).filter(|last| *last).count()
            });
            assert_eq!(last, 1);
        }
    }
}
