//! What other cores send to one: a line for each of them, and a bit for each line that may have something in it.
//!
//! To send is one exchange on a word that only the sender and the receiver touch, and only for the first of a line a bit is set
//! in the word that all senders share: senders don't hinder each other, and nobody waits for anybody (OSv section 2.2, the
//! incoming wake-ups of a CPU). The receiver looks at the bits only, and takes each line whole.
#![allow(unsafe_code, reason = "lists of what cores hand each other")]

use alloc::boxed::Box;
use core::ptr::null_mut;

use crate::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Something that can stand in a line.
///
/// # Safety
/// The link is always the same one, and while the value stands in a line nobody but the line changes it.
pub unsafe trait Linked: Sync + Sized {
    /// Its link.
    fn link(&self) -> &AtomicPtr<Self>;
}

/// The last one that a sender has sent.
#[repr(align(64))]
struct Line<T>(AtomicPtr<T>);

/// What cores have sent to this one.
pub struct Lines<T: Linked + 'static> {
    lines: Box<[Line<T>]>,
    /// Lines that may have something in them, a bit each.
    filled: Box<[AtomicU64]>,
}

impl<T: Linked + 'static> Lines<T> {
    /// With lines for so many senders.
    pub fn new(senders: usize) -> Self {
        Lines {
            lines: (0..senders).map(|_| Line(AtomicPtr::new(null_mut()))).collect(),
            filled: (0..senders.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Sends `item`, which stands in no line. `sender`: who does; it does one thing at a time. One that asks afterwards
    /// whether the receiver sleeps puts a fence in between, and so does a receiver that goes to sleep.
    #[inline]
    pub fn push(&self, sender: usize, item: &'static T) {
        let line = &self.lines[sender].0;
        let mut top = line.load(Ordering::Relaxed);
        loop {
            item.link().store(top, Ordering::Relaxed);
            // Release, for the item. It fails once at most: when the receiver has taken the line meanwhile.
            match line.compare_exchange(
                top,
                core::ptr::from_ref(item).cast_mut(),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(now) => top = now,
            }
        }
        if top.is_null() {
            // Else the receiver has yet to come here for the one before.
            self.filled[sender / 64].fetch_or(1 << (sender % 64), Ordering::Release);
        }
    }

    /// Is there nothing?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.filled.iter().all(|word| word.load(Ordering::Relaxed) == 0)
    }

    /// Takes all there is, and gives it to `each`: what one sender has sent comes in its order. For the receiver.
    pub fn take(&self, mut each: impl FnMut(&'static T)) {
        for (n, word) in self.filled.iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            // Before the lines: who fills one that has been taken sets its bit again.
            let mut bits = word.swap(0, Ordering::Acquire);
            while bits != 0 {
                let sender = n * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let mut newest = self.lines[sender].0.swap(null_mut(), Ordering::Acquire);
                let mut oldest: *mut T = null_mut();
                while !newest.is_null() {
                    // SAFETY: it was sent as a reference that lives for ever, and is ours now.
                    let link = unsafe { &*newest }.link();
                    let next = link.load(Ordering::Relaxed);
                    link.store(oldest, Ordering::Relaxed);
                    oldest = core::mem::replace(&mut newest, next);
                }
                while !oldest.is_null() {
                    // SAFETY: as above.
                    let item = unsafe { &*oldest };
                    // It may be sent again by then.
                    oldest = item.link().load(Ordering::Relaxed);
                    each(item);
                }
            }
        }
    }
}

#[cfg(test)]
struct Item {
    link: AtomicPtr<Item>,
    sender: usize,
    n: u64,
}

#[cfg(test)]
// SAFETY: one link, which only lines change.
unsafe impl Linked for Item {
    fn link(&self) -> &AtomicPtr<Item> {
        &self.link
    }
}

#[cfg(test)]
fn item(sender: usize, n: u64) -> &'static Item {
    Box::leak(Box::new(Item { link: AtomicPtr::new(null_mut()), sender, n }))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Nothing is lost, and each sender's come in order; more senders than a word has bits.
    #[test]
    fn many_senders() {
        const EACH: u64 = 20_000;
        const SENDERS: [usize; 4] = [0, 63, 64, 129];
        let lines = Lines::<Item>::new(130);
        std::thread::scope(|s| {
            for sender in SENDERS {
                let lines = &lines;
                s.spawn(move || (1..=EACH).for_each(|n| lines.push(sender, item(sender, n))));
            }
            let mut last = [0; 130];
            while SENDERS.iter().any(|sender| last[*sender] != EACH) {
                lines.take(|item| {
                    assert_eq!(item.n, last[item.sender] + 1);
                    last[item.sender] = item.n;
                });
                std::thread::yield_now();
            }
        });
        assert!(lines.is_empty());
        lines.push(129, item(129, 1));
        assert!(!lines.is_empty());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;

    /// Two senders, one of two items; the receiver looks while they send, and once more when a bit is there. What was sent
    /// before a look at the bits that found none comes by the next.
    #[test]
    fn nothing_is_lost() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let lines = Arc::new(Lines::<Item>::new(2));
            let threads: std::vec::Vec<_> = (0..2)
                .map(|sender| {
                    let lines = lines.clone();
                    loom::thread::spawn(move || {
                        (1..=2 - sender as u64).for_each(|n| lines.push(sender, item(sender, n)));
                    })
                })
                .collect();
            let mut last = [0; 2];
            let mut look = || {
                lines.take(|item| {
                    assert_eq!(item.n, last[item.sender] + 1);
                    last[item.sender] = item.n;
                });
            };
            for _ in 0..2 {
                loom::thread::yield_now();
                look();
            }
            threads.into_iter().for_each(|t| t.join().unwrap());
            look();
            assert_eq!(last, [2, 1]);
            assert!(lines.is_empty());
        });
    }
}
