//! Which core a label's messages go to.
//!
//! Messages of one dependency label stay in order because they wait in one queue: that of the core that the label is at. So
//! a label must not move while messages of it are under way. Messages of one affinity label are best run by the core that
//! has what they need in its cache; when that was long ago, any core is as good, and load can move (Omni-kernel, section
//! 2.3).
//!
//! Labels are not stored. A label is at one of a fixed number of *places*, by its hash, and those that meet there go to the
//! same core, which is more order than was asked for, and harms nothing. A place is one word, and changing it one exchange:
//! there is no lock, and nothing is allocated.

use alloc::boxed::Box;

use crate::atomic::{AtomicU64, Ordering};

/// A place's word: from bit 52 the core, from bit 32 the messages under way, below when it was last used.
#[derive(Clone, Copy)]
struct Word(u64);

const ONE: u64 = 1 << 32;
/// The most messages under way at a place.
const UNDER_WAY_MAX: u64 = (1 << 20) - 1;
/// The most cores.
const CORES_MAX: usize = 1 << 12;
/// Times at places are in units of about a millisecond. They come round after 50 days; a place that looks used because of
/// that only stays where it is.
const STAMP_SHIFT: u32 = 20;

impl Word {
    fn new(core: usize, under_way: u64, now: u64) -> Self {
        Word((core as u64) << 52 | under_way << 32 | u64::from(stamp(now)))
    }

    fn core(self) -> usize {
        (self.0 >> 52) as usize
    }

    fn under_way(self) -> u64 {
        (self.0 >> 32) & UNDER_WAY_MAX
    }

    /// Was it used so recently that it stays where it is? Never used is long ago.
    fn is_fresh(self, now: u64, expiry: u32) -> bool {
        self.0 != 0 && stamp(now).wrapping_sub(self.0 as u32) <= expiry
    }
}

fn stamp(now: u64) -> u32 {
    (now >> STAMP_SHIFT) as u32
}

/// Where labels are, for all cores.
pub struct Affinity {
    /// As many as a power of two.
    places: Box<[AtomicU64]>,
    /// For how long a label stays where it was used last.
    expiry: u32,
}

impl Affinity {
    /// So many places, rounded up to a power of two; labels stay for `expiry` ns, to about a millisecond.
    pub fn new(places: usize, expiry: u64) -> Self {
        let places = (0..places.next_power_of_two()).map(|_| AtomicU64::new(0)).collect();
        Affinity { places, expiry: stamp(expiry).max(1) }
    }

    fn place(&self, label: u64) -> &AtomicU64 {
        // Labels are often addresses or small numbers; the high bits of this depend on all of theirs.
        let hash = label.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.places[(hash.rotate_left(24) as usize) & (self.places.len() - 1)]
    }

    /// The core for a message with this affinity label, that the sender would send to `core` otherwise.
    pub fn near(&self, label: u64, core: usize, now: u64) -> usize {
        assert!(core < CORES_MAX);
        if label == 0 {
            return core;
        }
        let place = self.place(label);
        let mut word = Word(place.load(Ordering::Relaxed));
        loop {
            let stays = word.under_way() != 0 || word.is_fresh(now, self.expiry);
            let at = if stays { word.core() } else { core };
            let new = Word::new(at, word.under_way(), now);
            if new.0 == word.0 {
                return at;
            }
            match place.compare_exchange_weak(word.0, new.0, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return at,
                Err(now) => word = Word(now),
            }
        }
    }

    /// The core for a message with this dependency label, that the sender would send to `core` otherwise. The message is
    /// under way until [`Affinity::done`], and the label stays there as long. Without a label there is no matter, and
    /// nothing is noted.
    pub fn send(&self, label: u64, core: usize, now: u64) -> usize {
        assert!(core < CORES_MAX);
        if label == 0 {
            return core;
        }
        let place = self.place(label);
        let mut word = Word(place.load(Ordering::Relaxed));
        loop {
            assert!(word.under_way() < UNDER_WAY_MAX, "a million messages under way with one label");
            let stays = word.under_way() != 0 || word.is_fresh(now, self.expiry);
            let at = if stays { word.core() } else { core };
            let new = Word::new(at, word.under_way() + 1, now);
            // Acquire: a core that the label moves to sees what the messages before have done.
            match place.compare_exchange_weak(word.0, new.0, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return at,
                Err(now) => word = Word(now),
            }
        }
    }

    /// A message with this dependency label has run to its end, or will never run.
    pub fn done(&self, label: u64) {
        if label != 0 {
            let before = Word(self.place(label).fetch_sub(ONE, Ordering::Release));
            assert!(before.under_way() != 0, "a message is done that was not under way");
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::scheduler::tests::Random;
    use std::collections::HashMap;

    const MS: u64 = 1 << STAMP_SHIFT;

    /// A label stays while messages are under way, and a while longer; then it goes where it is sent from.
    #[test]
    fn stays_while_under_way() {
        let a = Affinity::new(64, 10 * MS);
        assert_eq!(a.send(7, 3, 0), 3);
        assert_eq!(a.send(7, 5, 1000 * MS), 3);
        assert_eq!(a.near(7, 5, 2000 * MS), 3);
        a.done(7);
        a.done(7);
        assert_eq!(a.near(7, 5, 2010 * MS), 3);
        assert_eq!(a.near(7, 5, 2021 * MS), 5);
        assert_eq!(a.send(7, 1, 2022 * MS), 5);
        a.done(7);
        // No label, no matter.
        for core in 0..4 {
            assert_eq!(a.send(0, core, 0), core);
            assert_eq!(a.near(0, core, 0), core);
            a.done(0);
        }
    }

    /// Any number of labels in few places: none moves while a message of it is under way.
    #[test]
    fn agrees_with_model() {
        for places in [1, 16, 1024] {
            let a = Affinity::new(places, 5 * MS);
            let mut under_way: HashMap<u64, (usize, u64)> = HashMap::new();
            let (mut random, mut now, mut moved) = (Random(places as u64), 0, 0);
            let mut last = HashMap::new();
            for _ in 0..200_000 {
                now += random.below(MS);
                let label = 1 + random.below(40) * 64;
                let core = random.below(8) as usize;
                match random.below(3) {
                    0 => {
                        let at = a.send(label, core, now);
                        let entry = under_way.entry(label).or_insert((at, 0));
                        assert_eq!(entry.0, at, "{label} has moved");
                        entry.1 += 1;
                        moved += usize::from(last.insert(label, at).is_some_and(|l| l != at));
                    }
                    1 => {
                        let at = a.near(label, core, now);
                        assert!(under_way.get(&label).is_none_or(|(c, _)| *c == at), "{label} has moved");
                    }
                    _ => {
                        // Now and then all of them are done.
                        let all = random.below(100) == 0;
                        under_way.retain(|l, (_, n)| {
                            let done = if all { *n } else { u64::from(*l == label) };
                            (0..done).for_each(|_| a.done(*l));
                            *n -= done;
                            *n != 0
                        });
                        now += if all { 8 * MS } else { 0 };
                    }
                }
            }
            assert!(moved > 100, "labels hardly ever moved: {moved}");
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;

    /// Two cores send messages of one label, and run them if they may, long after each other: what one core's messages do
    /// is never at the same time as what the other's do, and always seen by them.
    #[test]
    fn moves_in_order() {
        loom::model(|| {
            let affinity = Arc::new(Affinity::new(1, 1));
            let state = Arc::new(AtomicU64::new(0));
            let threads: std::vec::Vec<_> = [1usize, 2]
                .into_iter()
                .map(|core| {
                    let (affinity, state) = (affinity.clone(), state.clone());
                    loom::thread::spawn(move || {
                        let mut ran = 0;
                        for round in 1..=2u64 {
                            let now = (core as u64 + 10 * round) << (STAMP_SHIFT + 4);
                            if affinity.send(9, core, now) == core {
                                // Relaxed, and in two steps: nothing orders them but the label.
                                let before = state.load(Ordering::Relaxed);
                                state.store(before + 1, Ordering::Relaxed);
                                ran += 1;
                            }
                            affinity.done(9);
                        }
                        ran
                    })
                })
                .collect();
            let ran: u64 = threads.into_iter().map(|t| t.join().unwrap()).sum();
            assert_eq!(state.load(Ordering::Relaxed), ran);
        });
    }
}
