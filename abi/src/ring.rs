//! A bounded queue in shared memory, one producer and one consumer, whose
//! peer is not trusted.
//!
//! A slot is a row of 64-bit atomics, so that a peer that writes where it
//! should not can make us read nonsense, but never race: what is popped is a
//! value, to be checked like all data from outside. The indices run freely
//! and are masked on use; an index that the peer moved too far is read as an
//! empty or a full ring.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A value that travels through a [`Ring`]: `W` words, any bit pattern valid.
pub trait Words<const W: usize>: Sized {
    /// The value as words.
    fn to_words(&self) -> [u64; W];
    /// The value of these words.
    fn from_words(words: &[u64; W]) -> Self;
}

#[repr(C, align(64))]
struct Index(AtomicU32);

/// A ring of `N` slots (a power of two) of `W` words each.
#[repr(C, align(64))]
pub struct Ring<const W: usize, const N: usize> {
    /// Next slot to write; written by the producer only.
    tail: Index,
    /// Next slot to read; written by the consumer only.
    head: Index,
    slots: [[AtomicU64; W]; N],
}

impl<const W: usize, const N: usize> Ring<W, N> {
    /// An empty ring. All zeroes is an empty ring too.
    #[allow(clippy::declare_interior_mutable_const, reason = "array initialisers")]
    pub const fn new() -> Self {
        assert!(N.is_power_of_two());
        const ZERO: AtomicU64 = AtomicU64::new(0);
        Ring {
            tail: Index(AtomicU32::new(0)),
            head: Index(AtomicU32::new(0)),
            slots: [const { [ZERO; W] }; N],
        }
    }

    /// Appends a value, or says that the ring is full. Only one thread at a time may produce.
    pub fn push<T: Words<W>>(&self, value: &T) -> bool {
        let tail = self.tail.0.load(Ordering::Relaxed);
        // Acquire: the consumer's reads of the slot come before its move of `head`.
        let head = self.head.0.load(Ordering::Acquire);
        if tail.wrapping_sub(head) >= N as u32 {
            return false;
        }
        let slot = &self.slots[tail as usize & (N - 1)];
        for (cell, word) in slot.iter().zip(value.to_words()) {
            cell.store(word, Ordering::Relaxed);
        }
        // Release: the slot's words are seen before the new tail.
        self.tail.0.store(tail.wrapping_add(1), Ordering::Release);
        true
    }

    /// Takes the oldest value. Only one thread at a time may consume.
    pub fn pop<T: Words<W>>(&self) -> Option<T> {
        let head = self.head.0.load(Ordering::Relaxed);
        let tail = self.tail.0.load(Ordering::Acquire);
        let used = tail.wrapping_sub(head);
        if used == 0 || used > N as u32 {
            return None;
        }
        let slot = &self.slots[head as usize & (N - 1)];
        let mut words = [0; W];
        for (word, cell) in words.iter_mut().zip(slot) {
            *word = cell.load(Ordering::Relaxed);
        }
        self.head.0.store(head.wrapping_add(1), Ordering::Release);
        Some(T::from_words(&words))
    }

    /// Is there nothing to take?
    pub fn is_empty(&self) -> bool {
        self.head.0.load(Ordering::Relaxed) == self.tail.0.load(Ordering::Acquire)
    }
}

impl<const W: usize, const N: usize> Default for Ring<W, N> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[derive(Debug, PartialEq, Clone, Copy)]
    struct V(u64, u64);
    impl Words<2> for V {
        fn to_words(&self) -> [u64; 2] {
            [self.0, self.1]
        }
        fn from_words(w: &[u64; 2]) -> Self {
            V(w[0], w[1])
        }
    }

    /// XOS-07: the ring against its model, a VecDeque with a bound.
    #[test]
    fn agrees_with_model() {
        let ring = Ring::<2, 8>::new();
        let mut model = VecDeque::new();
        let mut x = 88172645463325252u64;
        for i in 0..100_000u64 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            if x & 1 == 0 {
                let ok = ring.push(&V(i, !i));
                assert_eq!(ok, model.len() < 8);
                if ok {
                    model.push_back(V(i, !i));
                }
            } else {
                assert_eq!(ring.pop::<V>(), model.pop_front());
            }
            assert_eq!(ring.is_empty(), model.is_empty());
        }
    }

    #[test]
    fn two_threads() {
        let ring = Ring::<2, 16>::new();
        std::thread::scope(|s| {
            s.spawn(|| {
                let mut i = 0;
                while i < 50_000 {
                    if ring.push(&V(i, i * 3)) {
                        i += 1;
                    } else {
                        std::thread::yield_now();
                    }
                }
            });
            let mut i = 0;
            while i < 50_000 {
                match ring.pop::<V>() {
                    Some(v) => {
                        assert_eq!(v, V(i, i * 3));
                        i += 1;
                    }
                    None => std::thread::yield_now(),
                }
            }
        });
    }

    /// A peer that scribbles over the indices gets nothing but nonsense of its own.
    #[test]
    fn hostile_indices() {
        let ring = Ring::<2, 8>::new();
        ring.tail.0.store(1000, Ordering::Relaxed);
        assert_eq!(ring.pop::<V>(), None);
        ring.tail.0.store(u32::MAX, Ordering::Relaxed);
        assert_eq!(ring.pop::<V>(), None);
        assert!(!ring.push(&V(1, 1)));
    }
}
