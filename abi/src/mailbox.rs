//! Mailboxes: lines of one cache line that cells send each other (architecture section 3; the papers' FICM).
//!
//! Each pair of cells that may has an inbox, a page in the receiver's own memory. The nucleus writes lines into it
//! for the sender, which never sees the page; the receiver takes them without a call. What a receiver writes where it
//! should not harms nobody but itself.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What is sent at a time: 64 bytes.
pub type Line = [u64; 8];

/// Lines that an inbox holds.
pub const INBOX_LINES: u64 = 32;

/// Lines from one other cell. What the two sides write lies in cache lines of their own.
#[repr(C, align(4096))]
pub struct Inbox {
    /// Lines that were ever put in: the nucleus's.
    pub sent: AtomicU64,
    _sender: [u64; 7],
    /// Lines that were ever taken out: the receiver's.
    pub taken: AtomicU64,
    /// One more than the number of the receiver's core that is to be notified of a line
    /// ([`MAILBOX`](crate::core_local::pending::MAILBOX)); 0: none, it looks by itself.
    pub bell: AtomicU32,
    _receiver: [u32; 13],
    /// A ring.
    pub lines: [[AtomicU64; 8]; INBOX_LINES as usize],
}

impl Inbox {
    /// Puts a line in: one sender at a time. False: it is full. How many there are is believed to whoever can write
    /// that, and harms no other.
    pub fn put(&self, line: &Line) -> bool {
        let sent = self.sent.load(Ordering::Relaxed);
        if sent.wrapping_sub(self.taken.load(Ordering::Acquire)) >= INBOX_LINES {
            return false;
        }
        for (to, word) in self.lines[(sent % INBOX_LINES) as usize].iter().zip(line) {
            to.store(*word, Ordering::Relaxed);
        }
        self.sent.store(sent.wrapping_add(1), Ordering::SeqCst);
        true
    }

    /// Takes a line out: one receiver at a time.
    pub fn take(&self) -> Option<Line> {
        let taken = self.taken.load(Ordering::Relaxed);
        if self.sent.load(Ordering::Acquire) == taken {
            return None;
        }
        let line = &self.lines[(taken % INBOX_LINES) as usize];
        let line = core::array::from_fn(|n| line[n].load(Ordering::Relaxed));
        self.taken.store(taken.wrapping_add(1), Ordering::Release);
        Some(line)
    }
}
