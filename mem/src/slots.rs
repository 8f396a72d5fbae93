//! What a space has in its slots ([`crate::vm`]), by address: the slots of a 2 MiB block lie side by side, so that what goes through many of
//! them, as a fork does, looks for the next one in a word of bits, and what looks for one of them has few blocks to choose from.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::collections::btree_map;
use core::ops::{Index, Range};
use core::slice;

use atoll_abi::layout::BLOCK;

use crate::vm::SLOT;

/// Slots of a block.
const SLOTS: usize = (BLOCK / SLOT) as usize;

/// A block's: those that there are, a bit each, and what is in them.
struct Block<T> {
    there: u32,
    slots: [T; SLOTS],
}

/// Something for each slot that there is, by its address, a multiple of [`SLOT`].
pub struct Slots<T> {
    blocks: BTreeMap<u64, Box<Block<T>>>,
}

/// A block's address, and which of its slots an address lies in.
fn place(at: u64) -> (u64, usize) {
    (at & !(BLOCK - 1), (at % BLOCK / SLOT) as usize)
}

/// The slots of the block at `block` that begin in a range, a bit each.
fn part(block: u64, range: &Range<u64>) -> u32 {
    let from = range.start.saturating_sub(block).div_ceil(SLOT);
    let to = range.end.saturating_sub(block).div_ceil(SLOT);
    let below = |n: u64| if n < SLOTS as u64 { (1 << n) - 1 } else { u32::MAX };
    below(to) & !below(from)
}

/// The blocks that a range touches; none if it ends before it begins.
fn blocks(range: &Range<u64>) -> Range<u64> {
    let (first, _) = place(range.start);
    first..range.end.max(first)
}

/// The numbers of the bits that are set.
struct Bits(u32);

impl Iterator for Bits {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let n = (self.0 != 0).then(|| self.0.trailing_zeros() as usize)?;
        self.0 &= self.0 - 1;
        Some(n)
    }
}

impl<T: Copy + Default> Slots<T> {
    /// None.
    pub const fn new() -> Self {
        Slots { blocks: BTreeMap::new() }
    }

    /// The one at an address.
    pub fn get(&self, at: u64) -> Option<&T> {
        let (block, n) = place(at);
        let block = self.blocks.get(&block)?;
        (block.there & 1 << n != 0).then(|| &block.slots[n])
    }

    /// The one at an address, to be changed.
    pub fn get_mut(&mut self, at: u64) -> Option<&mut T> {
        let (block, n) = place(at);
        let block = self.blocks.get_mut(&block)?;
        (block.there & 1 << n != 0).then(|| &mut block.slots[n])
    }

    /// Is there one at an address?
    pub fn contains(&self, at: u64) -> bool {
        self.get(at).is_some()
    }

    /// Puts one there; what was there before.
    pub fn insert(&mut self, at: u64, new: T) -> Option<T> {
        let (block, n) = place(at);
        let block = self.blocks.entry(block).or_insert_with(Block::empty);
        block.insert(n, new)
    }

    /// Takes one out.
    pub fn remove(&mut self, at: u64) -> Option<T> {
        let old = *self.get(at)?;
        let (block, n) = place(at);
        let there = self.blocks.get_mut(&block).map_or(0, |block| {
            block.there &= !(1 << n);
            block.there
        });
        if there == 0 {
            self.blocks.remove(&block);
        }
        Some(old)
    }

    /// Those that begin in a range, in order.
    pub fn range(&self, range: Range<u64>) -> Iter<'_, T> {
        Iter { blocks: self.blocks.range(blocks(&range)), range, at: 0, left: Bits(0), slots: &[] }
    }

    /// The same, to be changed.
    pub fn range_mut(&mut self, range: Range<u64>) -> IterMut<'_, T> {
        let blocks = self.blocks.range_mut(blocks(&range));
        IterMut { blocks, range, at: 0, left: Bits(0), next: 0, slots: [].iter_mut() }
    }

    /// All.
    pub fn iter(&self) -> Iter<'_, T> {
        self.range(0..u64::MAX)
    }

    /// All, to be changed.
    pub fn iter_mut(&mut self) -> IterMut<'_, T> {
        self.range_mut(0..u64::MAX)
    }

    /// Takes those out that begin in a range and of which `goes` says so; it may change the others. Each goes to `gone`.
    pub fn take_if(
        &mut self,
        range: Range<u64>,
        mut goes: impl FnMut(u64, &mut T) -> bool,
        mut gone: impl FnMut(T),
    ) {
        let empty = self.blocks.extract_if(blocks(&range), |at, block| {
            for n in Bits(block.there & part(*at, &range)) {
                if goes(at + n as u64 * SLOT, &mut block.slots[n]) {
                    block.there &= !(1 << n);
                    gone(block.slots[n]);
                }
            }
            block.there == 0
        });
        empty.for_each(drop);
    }
}

impl<T: Copy + Default> Block<T> {
    fn empty() -> Box<Self> {
        Box::new(Block { there: 0, slots: [T::default(); SLOTS] })
    }

    fn insert(&mut self, n: usize, new: T) -> Option<T> {
        let old = core::mem::replace(&mut self.slots[n], new);
        let was = self.there & 1 << n != 0;
        self.there |= 1 << n;
        was.then_some(old)
    }
}

/// Slots that come in the order of their addresses, so that no place has to be looked for.
pub struct InOrder<T> {
    before: Slots<T>,
    /// The last one's block, and its address.
    last: Box<Block<T>>,
    at: u64,
}

impl<T: Copy + Default> InOrder<T> {
    /// None.
    pub fn new() -> Self {
        InOrder { before: Slots::new(), last: Block::empty(), at: 0 }
    }

    /// The one at an address, if it has come: no other one is asked for than the last.
    pub fn get_mut(&mut self, at: u64) -> Option<&mut T> {
        let (block, n) = place(at);
        (block == self.at && self.last.there & 1 << n != 0).then(|| &mut self.last.slots[n])
    }

    /// The next one.
    pub fn push(&mut self, at: u64, new: T) {
        let (block, n) = place(at);
        if block != self.at {
            self.close();
            self.at = block;
        }
        self.last.insert(n, new);
    }

    fn close(&mut self) {
        if self.last.there != 0 {
            let full = core::mem::replace(&mut self.last, Block::empty());
            self.before.blocks.insert(self.at, full);
        }
    }

    /// All.
    pub fn end(mut self) -> Slots<T> {
        self.close();
        self.before
    }
}

impl<T: Copy + Default> Index<u64> for Slots<T> {
    type Output = T;

    fn index(&self, at: u64) -> &T {
        self.get(at).expect("there is such a slot")
    }
}

/// Slots in order.
pub struct Iter<'a, T> {
    blocks: btree_map::Range<'a, u64, Box<Block<T>>>,
    range: Range<u64>,
    at: u64,
    left: Bits,
    slots: &'a [T],
}

impl<'a, T> Iterator for Iter<'a, T> {
    type Item = (u64, &'a T);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let n = self.left.next().or_else(|| self.go_on())?;
        Some((self.at + n as u64 * SLOT, &self.slots[n]))
    }
}

impl<T> Iter<'_, T> {
    /// To the next block that has any, and its first one.
    #[inline(never)]
    fn go_on(&mut self) -> Option<usize> {
        loop {
            let (at, block) = self.blocks.next()?;
            (self.at, self.slots) = (*at, &block.slots);
            self.left = Bits(block.there & part(*at, &self.range));
            if let Some(n) = self.left.next() {
                return Some(n);
            }
        }
    }
}

/// Slots in order, to be changed.
pub struct IterMut<'a, T> {
    blocks: btree_map::RangeMut<'a, u64, Box<Block<T>>>,
    range: Range<u64>,
    at: u64,
    left: Bits,
    /// The number of the first one in `slots`.
    next: usize,
    slots: slice::IterMut<'a, T>,
}

impl<'a, T> Iterator for IterMut<'a, T> {
    type Item = (u64, &'a mut T);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let n = self.left.next().or_else(|| self.go_on())?;
        let slot = self.slots.nth(n - self.next)?;
        self.next = n + 1;
        Some((self.at + n as u64 * SLOT, slot))
    }
}

impl<T> IterMut<'_, T> {
    /// As [`Iter::go_on`].
    #[inline(never)]
    fn go_on(&mut self) -> Option<usize> {
        loop {
            let (at, block) = self.blocks.next()?;
            (self.at, self.left, self.next) = (*at, Bits(block.there & part(*at, &self.range)), 0);
            self.slots = block.slots.iter_mut();
            if let Some(n) = self.left.next() {
                return Some(n);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const MOST: u64 = 200;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64, u32),
        Remove(u64),
        Change(Range<u64>),
        TakeOdd(Range<u64>),
        Rebuild,
    }

    fn range() -> impl Strategy<Value = Range<u64>> {
        // Not only whole slots, nor what isn't empty.
        (0..MOST * SLOT, 0..MOST * SLOT).prop_map(|(from, to)| from..to)
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..MOST, any::<u32>()).prop_map(|(n, value)| Step::Insert(n * SLOT, value)),
            2 => (0..MOST).prop_map(|n| Step::Remove(n * SLOT)),
            1 => range().prop_map(Step::Change),
            1 => range().prop_map(Step::TakeOdd),
            1 => Just(Step::Rebuild),
        ]
    }

    proptest! {
        /// As a map of single slots does.
        #[test]
        fn agrees_with_a_map(steps in proptest::collection::vec(step(), 1..100), look in range()) {
            let (mut slots, mut model) = (Slots::new(), BTreeMap::new());
            for step in steps {
                match step {
                    Step::Insert(at, value) => prop_assert_eq!(slots.insert(at, value), model.insert(at, value)),
                    Step::Remove(at) => prop_assert_eq!(slots.remove(at), model.remove(&at)),
                    Step::Change(range) => {
                        slots.range_mut(range.clone()).for_each(|(at, slot)| *slot ^= at as u32);
                        let of_model = model.iter_mut().filter(|(at, _)| range.contains(at));
                        of_model.for_each(|(at, value)| *value ^= *at as u32);
                    }
                    Step::TakeOdd(range) => {
                        let mut taken = Vec::new();
                        slots.take_if(range.clone(), |_, slot| *slot % 2 == 1, |slot| taken.push(slot));
                        let goes = |at: &u64, value: &mut u32| range.contains(at) && *value % 2 == 1;
                        let gone: Vec<u32> = model.extract_if(.., goes).map(|(_, value)| value).collect();
                        prop_assert_eq!(taken, gone);
                    }
                    Step::Rebuild => {
                        let mut all = InOrder::new();
                        for (at, value) in &model {
                            prop_assert_eq!(all.get_mut(*at), None);
                            all.push(*at, *value);
                            prop_assert_eq!(all.get_mut(*at).copied(), Some(*value));
                        }
                        slots = all.end();
                    }
                }
                let found: Vec<(u64, u32)> = slots.range(look.clone()).map(|(at, slot)| (at, *slot)).collect();
                let wanted = model.iter().filter(|(at, _)| look.contains(at));
                prop_assert_eq!(found, wanted.map(|(at, value)| (*at, *value)).collect::<Vec<_>>());
                prop_assert!(slots.blocks.values().all(|block| block.there != 0));
            }
            for n in 0..MOST {
                prop_assert_eq!(slots.get(n * SLOT), model.get(&(n * SLOT)));
            }
            prop_assert_eq!(slots.iter().count(), model.len());
        }
    }
}
