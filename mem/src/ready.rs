//! Addresses at which a space has memory already, for what is mapped next.
//!
//! To map a page, have it fault in and unmap it again are three ways into the
//! host's kernel. So small private memory comes from stretches that are mapped
//! ahead, zeroed and writable, in which no area lies yet (architecture section
//! 5: "premapped arenas"). This is the set of such addresses; their pages count
//! as mapped in their slots.

use alloc::collections::BTreeMap;

/// Ranges of addresses, none of which touches another.
#[derive(Default)]
pub(crate) struct Ready {
    /// Ends by starts.
    ranges: BTreeMap<u64, u64>,
    bytes: u64,
}

impl Ready {
    /// Bytes in all ranges.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The last range that overlaps `[start, end)`.
    pub(crate) fn last_in(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        let (s, e) = self.ranges.range(..end).next_back()?;
        (*e > start).then_some((*s, *e))
    }

    /// Adds a range, of which there is nothing yet. It may be empty.
    pub(crate) fn add(&mut self, mut start: u64, mut end: u64) {
        if start == end {
            return;
        }
        self.bytes += end - start;
        if let Some((s, e)) = self.ranges.range(..start).next_back().map(|(s, e)| (*s, *e))
            && e == start
        {
            self.ranges.remove(&s);
            start = s;
        }
        if let Some(e) = self.ranges.remove(&end) {
            end = e;
        }
        self.ranges.insert(start, end);
    }

    /// Takes out what there is of `[start, end)`.
    pub(crate) fn cut(&mut self, start: u64, end: u64) {
        while let Some((s, e)) = self.last_in(start, end) {
            self.ranges.remove(&s);
            self.bytes -= e.min(end) - s.max(start);
            if s < start {
                self.ranges.insert(s, start);
            }
            if e > end {
                self.ranges.insert(end, e);
            }
        }
    }

    /// Takes out `[start, end)`, if all of it is there.
    pub(crate) fn take(&mut self, start: u64, end: u64) -> bool {
        let whole = self.last_in(start, end).is_some_and(|(s, e)| s <= start && end <= e);
        if whole {
            self.cut(start, end);
        }
        whole
    }

    /// Where so many bytes are: the end of the highest range that has them, but for the range that begins at `not`.
    pub(crate) fn find(&self, len: u64, below: u64, not: u64) -> Option<u64> {
        let mut ranges = self.ranges.range(..below).rev().filter(|(s, _)| **s != not);
        ranges.find(|(s, e)| **e <= below && *e - *s >= len).map(|(_, e)| e - len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    proptest::proptest! {
        /// As a set of numbers.
        #[test]
        fn agrees_with_model(ops in proptest::collection::vec((0..4u8, 0..40u64, 1..8u64), 1..60)) {
            let (mut ready, mut model) = (Ready::default(), BTreeSet::new());
            for (op, start, len) in ops {
                let all = start..start + len;
                match op {
                    0 if start % 7 == 0 => ready.add(start, start),
                    0 if all.clone().all(|n| !model.contains(&n)) => {
                        ready.add(start, start + len);
                        model.extend(all);
                    }
                    1 => {
                        ready.cut(start, start + len);
                        model.retain(|n| !all.contains(n));
                    }
                    2 => {
                        let whole = all.clone().all(|n| model.contains(&n));
                        assert_eq!(ready.take(start, start + len), whole);
                        if whole {
                            model.retain(|n| !all.contains(n));
                        }
                    }
                    _ => {
                        let fits = |at: &u64| (*at..at + len).all(|n| model.contains(&n));
                        let ends = |at: &u64| !model.contains(&(at + len));
                        assert_eq!(ready.find(len, 100, 100), (0..60).rev().find(|at| fits(at) && ends(at)));
                    }
                }
                assert_eq!(ready.bytes(), model.len() as u64);
                assert!(ready.ranges.iter().zip(ready.ranges.iter().skip(1)).all(|(a, b)| a.1 < b.0));
            }
        }
    }
}
