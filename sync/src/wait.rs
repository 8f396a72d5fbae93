//! Waiting for a condition.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::mutex::{Mutex, MutexGuard};
use crate::threads::{self, Token};

/// Which events a waiter cares for: bits of `poll(2)`, or anything that waker and waiter agree on.
pub type Interest = u32;

/// Names a registered callback.
pub type WakeKey = u64;

/// Something that wants to hear of events without a thread that waits: an
/// epoll instance, a poll call.
pub trait Wake: Send + Sync {
    /// Some of the events that this was registered for may have come. Called
    /// with the queue's lock held: it must not touch the same queue. Value:
    /// false if that takes a lock that is held, and `may_wait` is not set; it
    /// is then called again by somebody who may wait.
    fn wake(&self, key: WakeKey, events: Interest, may_wait: bool) -> bool;

    /// Does anybody wait for what it tells of?
    fn has_waiters(&self) -> bool {
        true
    }

    /// The queue of those whom it tells in turn, if they are many.
    fn passes_to(&self) -> Option<&WaitQueue> {
        None
    }
}

enum Waiter {
    Thread(Token, Interest),
    Callback(Arc<dyn Wake>, WakeKey, Interest),
    /// The same of which no more are called for an event once one was for whom somebody waits.
    Exclusive(Arc<dyn Wake>, WakeKey, Interest),
}

/// Those who wait for an object's state to change.
///
/// A waiter registers, looks at the state, and parks if it is not to its
/// liking; a waker changes the state, then wakes. Whichever comes first, the
/// change is seen.
pub struct WaitQueue {
    /// Number of waiters, so that waking nobody costs one load.
    count: AtomicU32,
    waiters: Mutex<Vec<Waiter>>,
}

impl WaitQueue {
    /// Nobody waits.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        WaitQueue { count: AtomicU32::new(0), waiters: Mutex::new(Vec::new()) }
    }

    /// Nobody waits.
    #[cfg(loom)]
    pub fn new() -> Self {
        WaitQueue { count: AtomicU32::new(0), waiters: Mutex::new(Vec::new()) }
    }

    /// Adds the current thread, to be unparked by a wake with a common bit.
    pub fn register(&self, interest: Interest) {
        let me = threads::current();
        let mut waiters = self.waiters.lock();
        waiters.push(Waiter::Thread(me, interest));
        self.note(waiters.len());
    }

    /// Takes the current thread out again; says whether it was still in.
    #[inline]
    pub fn unregister(&self) -> bool {
        // The thread has counted itself: if there are none now, somebody has taken it out.
        self.count.load(Ordering::Relaxed) != 0 && self.take_out()
    }

    fn take_out(&self) -> bool {
        let me = threads::current();
        let mut waiters = self.waiters.lock();
        let at = waiters.iter().position(|w| matches!(w, Waiter::Thread(t, _) if *t == me));
        if let Some(at) = at {
            waiters.remove(at);
        }
        self.note_fewer(waiters.len());
        at.is_some()
    }

    /// Adds a callback. It stays until [`WaitQueue::remove`].
    pub fn add(&self, wake: Arc<dyn Wake>, key: WakeKey, interest: Interest) {
        self.push(Waiter::Callback(wake, key, interest));
    }

    /// The same, but an event of which one such callback is told for which somebody waits ([`Wake::has_waiters`]) is not told to those
    /// that were added later.
    pub fn add_exclusive(&self, wake: Arc<dyn Wake>, key: WakeKey, interest: Interest) {
        self.push(Waiter::Exclusive(wake, key, interest));
    }

    fn push(&self, waiter: Waiter) {
        let mut waiters = self.waiters.lock();
        waiters.push(waiter);
        self.note(waiters.len());
    }

    /// Takes a callback out.
    pub fn remove(&self, wake: &Arc<dyn Wake>, key: WakeKey) {
        let mut waiters = self.waiters.lock();
        let found = waiters
            .iter()
            .position(|w| matches!(w, Waiter::Callback(c, k, _) | Waiter::Exclusive(c, k, _) if Arc::ptr_eq(c, wake) && *k == key));
        let gone = found.map(|at| waiters.swap_remove(at));
        self.note_fewer(waiters.len());
        drop(waiters);
        drop(gone);
    }

    /// Goes through the queues that events of this one are passed on to, with this one's lock held, as long as `f` wants. Value: does
    /// it want all of them?
    pub fn all_above(&self, f: &mut dyn FnMut(&WaitQueue) -> bool) -> bool {
        self.waiters.lock().iter().all(|w| match w {
            Waiter::Callback(wake, ..) | Waiter::Exclusive(wake, ..) => wake.passes_to().is_none_or(&mut *f),
            Waiter::Thread(..) => true,
        })
    }

    fn note(&self, len: usize) {
        // SeqCst: a waiter counts itself before it looks at the state; a
        // waker changes the state before it looks at the count.
        self.count.store(len as u32, Ordering::SeqCst);
    }

    /// The same after some went: who sees too many looks in vain.
    fn note_fewer(&self, len: usize) {
        self.count.store(len as u32, Ordering::Relaxed);
    }

    /// Wakes every waiter that cares for one of `events`.
    #[inline]
    pub fn wake_all(&self, events: Interest) {
        core::sync::atomic::fence(Ordering::SeqCst);
        if self.count.load(Ordering::Relaxed) != 0 {
            self.wake(self.waiters.lock(), events, usize::MAX, true);
        }
    }

    /// Like [`WaitQueue::wake_all`], for those who must not wait for a lock. Value: false if that would have
    /// taken one; all of it is then to be done again, as some may have been woken.
    #[inline]
    pub fn try_wake_all(&self, events: Interest) -> bool {
        core::sync::atomic::fence(Ordering::SeqCst);
        self.count.load(Ordering::Relaxed) == 0
            || self.waiters.try_lock().is_some_and(|w| self.wake(w, events, usize::MAX, false))
    }

    /// Wakes every callback, and one thread, that care for one of `events`.
    #[inline]
    pub fn wake_one(&self, events: Interest) {
        core::sync::atomic::fence(Ordering::SeqCst);
        if self.count.load(Ordering::Relaxed) != 0 {
            self.wake(self.waiters.lock(), events, 1, true);
        }
    }

    /// Like [`WaitQueue::wake_one`], as [`WaitQueue::try_wake_all`] is like [`WaitQueue::wake_all`].
    #[inline]
    pub fn try_wake_one(&self, events: Interest) -> bool {
        core::sync::atomic::fence(Ordering::SeqCst);
        self.count.load(Ordering::Relaxed) == 0
            || self.waiters.try_lock().is_some_and(|w| self.wake(w, events, 1, false))
    }

    fn wake(
        &self,
        mut waiters: MutexGuard<'_, Vec<Waiter>>,
        events: Interest,
        most: usize,
        may_wait: bool,
    ) -> bool {
        // One thread that waits for this: nothing has to be looked through.
        if let [Waiter::Thread(token, interest)] = waiters[..]
            && interest & events != 0
        {
            waiters.clear();
            self.note_fewer(0);
            threads::unpark(token);
            return true;
        }
        let (mut woken, mut all, mut found) = (0, true, false);
        // A thread that is woken is taken out: it registers again if it goes on waiting.
        waiters.retain(|w| match w {
            Waiter::Thread(token, interest) if interest & events != 0 && woken < most => {
                woken += 1;
                threads::unpark(*token);
                false
            }
            Waiter::Thread(..) => true,
            Waiter::Callback(wake, key, interest) => {
                if interest & events != 0 {
                    all &= wake.wake(*key, interest & events, may_wait);
                }
                true
            }
            Waiter::Exclusive(wake, key, interest) => {
                if interest & events != 0 && !found {
                    found = wake.has_waiters();
                    all &= wake.wake(*key, interest & events, may_wait);
                }
                true
            }
        });
        if woken > 0 {
            self.note_fewer(waiters.len());
        }
        all
    }

    /// Does anybody wait?
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }
}

impl Default for WaitQueue {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicU64, AtomicUsize};

    struct Counter(AtomicUsize);
    impl Wake for Counter {
        fn wake(&self, key: WakeKey, events: Interest, may_wait: bool) -> bool {
            assert_eq!((key, events), (7, 2));
            self.0.fetch_add(1, Ordering::SeqCst);
            may_wait
        }
    }

    #[test]
    fn callbacks_by_interest() {
        threads::use_std_threads();
        let q = WaitQueue::new();
        let c = Arc::new(Counter(AtomicUsize::new(0)));
        let w: Arc<dyn Wake> = c.clone();
        q.add(w.clone(), 7, 2);
        q.wake_all(1);
        assert_eq!(c.0.load(Ordering::SeqCst), 0);
        q.wake_all(3);
        q.wake_one(2);
        assert_eq!(c.0.load(Ordering::SeqCst), 2);
        // Who can't go on without waiting says so, and so does a queue whose lock is held.
        assert!(!q.try_wake_all(2));
        assert!(!q.try_wake_one(2));
        assert_eq!(c.0.load(Ordering::SeqCst), 4);
        let held = q.waiters.lock();
        assert!(!q.try_wake_all(2));
        drop(held);
        assert!(q.try_wake_all(1));
        q.remove(&w, 7);
        q.wake_all(2);
        assert!(q.try_wake_all(2));
        assert_eq!(c.0.load(Ordering::SeqCst), 4);
        assert!(q.is_empty());
    }

    #[test]
    fn no_wake_is_lost() {
        threads::use_std_threads();
        let q = WaitQueue::new();
        let state = AtomicU64::new(0);
        std::thread::scope(|s| {
            s.spawn(|| {
                for want in 1..=2_000 {
                    loop {
                        q.register(1);
                        if state.load(Ordering::SeqCst) >= want {
                            q.unregister();
                            break;
                        }
                        threads::park();
                        q.unregister();
                    }
                }
            });
            for n in 1..=2_000 {
                state.store(n, Ordering::SeqCst);
                q.wake_all(1);
            }
        });
    }

    /// A waiter may sleep for the lock of the state that it looks at: a wake-up that comes then counts, too.
    #[test]
    fn no_wake_is_lost_to_a_lock() {
        threads::use_std_threads();
        const FULL: u32 = 4;
        const EACH: u32 = 20_000;
        let q = WaitQueue::new();
        let state = Mutex::new(0u32);
        let until = |interest, f: &dyn Fn(&mut u32) -> bool| loop {
            q.register(interest);
            if f(&mut state.lock()) {
                q.unregister();
                break;
            }
            threads::park();
            q.unregister();
        };
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    for _ in 0..EACH {
                        until(2, &|n| {
                            let room = *n < FULL;
                            *n += u32::from(room);
                            room
                        });
                        q.wake_all(1);
                    }
                });
            }
            s.spawn(|| {
                for _ in 0..3 * EACH {
                    let was_full = core::cell::Cell::new(false);
                    until(1, &|n| {
                        was_full.set(*n == FULL);
                        let some = *n > 0;
                        *n -= u32::from(some);
                        some
                    });
                    if was_full.get() {
                        q.wake_all(2);
                    }
                }
            });
        });
    }
}
