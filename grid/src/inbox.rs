//! Messages from other cores.
//!
//! Any core sends; the one whose inbox it is takes all there is at once. It is a stack, turned around when it is taken: what
//! one core sent comes in the order it was sent in, and sending is one exchange, whoever else does so. Nothing is popped one
//! by one, so memory that comes back at the same address confuses nobody.
#![allow(unsafe_code, reason = "a list of messages that cores share")]

use core::ptr::null_mut;

use crate::atomic::{AtomicPtr, Ordering};
use crate::message::{Message, Messages, Node};

/// What other cores have sent to this one.
#[repr(align(64))]
pub struct Inbox {
    /// The last one sent.
    top: AtomicPtr<Node>,
}

// SAFETY: messages can be sent, and the nodes of the list are whose who took the list.
unsafe impl Send for Inbox {}
// SAFETY: as above; `push` and `take` are atomic.
unsafe impl Sync for Inbox {}

impl Default for Inbox {
    fn default() -> Self {
        Inbox { top: AtomicPtr::new(null_mut()) }
    }
}

impl Inbox {
    /// Sends a message. Value: whether there was none, so that the core must be told, unless it looks by itself. A sender
    /// that asks afterwards whether the core sleeps puts a fence in between, and so does a core that goes to sleep.
    pub fn push(&self, message: Message) -> bool {
        let node = message.into_raw();
        let mut top = self.top.load(Ordering::Relaxed);
        loop {
            // SAFETY: the node is ours until the exchange succeeds.
            unsafe { (*node).next.store(top, Ordering::Relaxed) };
            // Release, for the message in the node. Who takes a later one has this one, too: exchanges between are of the
            // same release sequence.
            match self.top.compare_exchange_weak(top, node, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return top.is_null(),
                Err(now) => top = now,
            }
        }
    }

    /// Is there nothing?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.top.load(Ordering::Relaxed).is_null()
    }

    /// Takes all there is.
    #[inline]
    pub fn take(&self) -> Messages {
        if self.is_empty() {
            return Messages::default();
        }
        let top = self.top.swap(null_mut(), Ordering::Acquire);
        // SAFETY: whoever swaps it out has the list.
        unsafe { Messages::from_reversed(top) }
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        drop(self.take());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::message::tests::header;
    use crate::message::{Header, Pool};

    /// Nothing is lost, and each sender's come in order.
    #[test]
    fn many_senders() {
        const SENDERS: u32 = 4;
        const EACH: u64 = 20_000;
        let inbox = Inbox::default();
        std::thread::scope(|s| {
            for sender in 0..SENDERS {
                let inbox = &inbox;
                s.spawn(move || {
                    let mut pool = Pool::new(0);
                    for n in 1..=EACH {
                        let header = Header { dependency: n, ..header(sender) };
                        inbox.push(Message::new(&mut pool, header, || ()));
                    }
                });
            }
            let mut last = [0; SENDERS as usize];
            let mut pool = Pool::new(16);
            while last.iter().any(|n| *n != EACH) {
                for m in inbox.take() {
                    let h = *m.header();
                    assert_eq!(h.dependency, last[h.activity as usize] + 1);
                    last[h.activity as usize] = h.dependency;
                    pool.put(m.run());
                }
                std::thread::yield_now();
            }
        });
        assert!(inbox.is_empty());
        assert!(inbox.push(Message::new(&mut Pool::new(0), header(0), || ())));
        assert!(!inbox.push(Message::new(&mut Pool::new(0), header(0), || ())));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::message::{Header, Pool};
    use atoll_abi::grid::Resource;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    /// One that reads what its sender wrote before it sent: loom fails if the two are not in order.
    fn message(sender: u32, n: u64) -> Message {
        let value = UnsafeCell::new(0);
        // SAFETY: nobody else has it.
        value.with_mut(|v| unsafe { *v = n });
        let header =
            Header { dependency: n, affinity: 0, cost: 0, activity: sender, resource: Resource::Pipe };
        Message::new(&mut Pool::new(0), header, move || {
            // SAFETY: the sender is done with it, or loom says so.
            assert_eq!(value.with(|v| unsafe { *v }), n);
        })
    }

    fn model(senders: u32, each: u64) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(move || {
            let inbox = Arc::new(Inbox::default());
            let threads: std::vec::Vec<_> = (0..senders)
                .map(|sender| {
                    let inbox = inbox.clone();
                    loom::thread::spawn(move || {
                        (1..=each).filter(|n| inbox.push(message(sender, *n))).count()
                    })
                })
                .collect();
            let (mut last, mut rounds) = ([0; 3], 0);
            // Memory that the heap gives out again would make executions differ.
            let mut spent = std::vec::Vec::new();
            let mut look = || {
                let messages = inbox.take();
                rounds += usize::from(!messages.is_empty());
                for m in messages {
                    let h = *m.header();
                    assert_eq!(h.dependency, last[h.activity as usize] + 1);
                    last[h.activity as usize] = h.dependency;
                    spent.push(m.run());
                }
            };
            // Twice while they send, once when they are done. Without the yield loom would not look in between, as it
            // doesn't try all orders of loads.
            for _ in 0..2 {
                loom::thread::yield_now();
                look();
            }
            let told: usize = threads.into_iter().map(|t| t.join().unwrap()).sum();
            look();
            assert!(last[..senders as usize].iter().all(|n| *n == each));
            // Somebody is told of each list that was taken, and once.
            assert_eq!(told, rounds);
        });
    }

    #[test]
    fn two_senders() {
        model(2, 2);
    }

    #[test]
    fn three_senders() {
        model(3, 1);
    }

    /// What is never taken is dropped.
    #[test]
    fn dropped_with_messages() {
        loom::model(|| {
            let inbox = Arc::new(Inbox::default());
            let sender = inbox.clone();
            let t = loom::thread::spawn(move || {
                sender.push(message(0, 1));
            });
            inbox.push(message(1, 1));
            t.join().unwrap();
        });
    }
}
