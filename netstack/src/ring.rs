//! Bytes of a stream, one behind the other.

use alloc::vec::Vec;

/// The smallest buffer, bytes.
const SMALLEST: usize = 4096;

/// Bytes in order, in a buffer that grows as it has to and is as large as a power of two.
pub(crate) struct Ring {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Ring {
    pub(crate) const fn new() -> Ring {
        Ring { bytes: Vec::new(), start: 0, len: 0 }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Makes room for so many bytes in all.
    #[inline]
    fn fit(&mut self, size: usize) {
        if size > self.bytes.len() {
            self.grow(size);
        }
    }

    #[cold]
    fn grow(&mut self, size: usize) {
        let mut larger = alloc::vec![0; size.next_power_of_two().max(SMALLEST)];
        // All of it: there may be bytes behind the end, by `put`.
        let (first, second) = self.bytes.split_at(self.start);
        larger[..second.len()].copy_from_slice(second);
        larger[second.len()..self.bytes.len()].copy_from_slice(first);
        (self.bytes, self.start) = (larger, 0);
    }

    /// Where a byte lies, `at` bytes behind the first one, and how many lie there in one piece.
    #[inline]
    fn place(&self, at: usize) -> (usize, usize) {
        let place = (self.start + at) & (self.bytes.len().wrapping_sub(1));
        (place, self.bytes.len() - place)
    }

    /// Copies bytes to `at` bytes behind the first one, which may be behind the end: there they are not yet part of it.
    #[inline]
    pub(crate) fn put(&mut self, at: usize, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        self.fit(at + data.len());
        let (place, piece) = self.place(at);
        let (first, second) = data.split_at(data.len().min(piece));
        self.bytes[place..place + first.len()].copy_from_slice(first);
        self.bytes[..second.len()].copy_from_slice(second);
    }

    /// Makes bytes that were put behind the end part of it.
    #[inline]
    pub(crate) fn extend(&mut self, n: usize) {
        self.len += n;
    }

    /// The bytes from `at` on, at most `len`, in two pieces.
    #[inline]
    pub(crate) fn get(&self, at: usize, len: usize) -> (&[u8], &[u8]) {
        let len = len.min(self.len.saturating_sub(at));
        if len == 0 {
            return (&[], &[]);
        }
        let (place, piece) = self.place(at);
        let first = len.min(piece);
        (&self.bytes[place..place + first], &self.bytes[..len - first])
    }

    /// Forgets the first bytes.
    #[inline]
    pub(crate) fn skip(&mut self, n: usize) {
        self.len -= n;
        if n > 0 {
            self.start = self.place(n).0;
        }
    }

    /// Begins at the buffer's beginning again, if nothing is in it. What was put behind the end is lost.
    #[inline]
    pub(crate) fn rewind(&mut self) {
        if self.len == 0 {
            self.start = 0;
        }
    }

    /// Gives the buffer back, if nothing is in it.
    pub(crate) fn release(&mut self) {
        if self.len == 0 {
            *self = Ring::new();
        }
    }

    /// Has `f` fill in up to `max` bytes, piece by piece; it says how many, and may stop short. Value: how many, and
    /// whether it did not.
    #[inline]
    pub(crate) fn fill(&mut self, max: usize, f: &mut dyn FnMut(&mut [u8]) -> usize) -> (usize, bool) {
        self.fit(self.len + max);
        let mut done = 0;
        while done < max {
            let (place, piece) = self.place(self.len);
            let want = piece.min(max - done);
            let put = f(&mut self.bytes[place..place + want]).min(want);
            self.len += put;
            done += put;
            if put < want {
                return (done, false);
            }
        }
        (done, true)
    }

    /// Hands up to `max` bytes to `f`, piece by piece, which says how many it took, and may stop short; they stay.
    #[inline]
    pub(crate) fn show(&self, max: usize, f: &mut dyn FnMut(&[u8]) -> usize) -> usize {
        let (first, second) = self.get(0, max);
        let mut done = f(first).min(first.len());
        if done == first.len() && !second.is_empty() {
            done += f(second).min(second.len());
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::Ring;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::vec::Vec;

    #[derive(Clone, Debug)]
    enum Step {
        Fill(usize, usize),
        Put(usize, usize),
        Extend,
        Take(usize),
        Rewind,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..6000usize, 0..6000usize).prop_map(|(a, b)| Step::Fill(a, b)),
            (0..3000usize, 0..3000usize).prop_map(|(a, b)| Step::Put(a, b)),
            Just(Step::Extend),
            (0..9000usize).prop_map(Step::Take),
            Just(Step::Rewind),
        ]
    }

    proptest! {
        #[test]
        fn as_a_queue(steps in prop::collection::vec(step(), 1..60)) {
            let (mut ring, mut queue) = (Ring::new(), VecDeque::<u8>::new());
            // Bytes that lie behind the end without a gap.
            let mut behind = Vec::new();
            let mut next = 0u8;
            let mut bytes = |n: usize| (0..n).map(|_| { next = next.wrapping_add(7); next }).collect::<Vec<u8>>();
            for s in steps {
                match s {
                    Step::Fill(max, stop) => {
                        let new = bytes(max.min(stop));
                        let mut rest = &new[..];
                        let (done, all) = ring.fill(max, &mut |room| {
                            let n = room.len().min(rest.len());
                            room[..n].copy_from_slice(&rest[..n]);
                            rest = &rest[n..];
                            n
                        });
                        prop_assert_eq!((done, all), (max.min(stop), stop >= max));
                        queue.extend(new);
                        behind.clear();
                    }
                    Step::Put(gap, n) => {
                        let new = bytes(n);
                        if gap == 0 && behind.is_empty() {
                            behind = new.clone();
                            ring.put(queue.len(), &new);
                        } else {
                            ring.put(queue.len() + behind.len() + gap, &new);
                        }
                    }
                    Step::Extend => {
                        ring.extend(behind.len());
                        queue.extend(behind.drain(..));
                    }
                    Step::Take(max) => {
                        let mut got = Vec::new();
                        let n = ring.show(max, &mut |b| { got.extend_from_slice(b); b.len() });
                        prop_assert_eq!(n, got.len());
                        ring.skip(n);
                        prop_assert_eq!(got, queue.drain(..n).collect::<Vec<_>>());
                    }
                    Step::Rewind if behind.is_empty() => ring.rewind(),
                    Step::Rewind => {}
                }
                prop_assert_eq!(ring.len(), queue.len());
                let (a, b) = ring.get(0, usize::MAX);
                prop_assert!(a.iter().chain(b).eq(queue.iter()));
            }
        }
    }
}
