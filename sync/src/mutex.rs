//! A mutex that parks its waiters, built without a lock of its own.
//!
//! The algorithm is that of OSv (section 2.2 of the paper), after Gidenstam
//! and Papatriantafilou, "LFthreads". `count` counts the owner and the
//! waiters; whoever raises it from zero owns the mutex. The others queue a
//! node and park. The owner who leaves passes ownership to the oldest node.
//! One case needs care: a thread has raised `count` but has not yet queued
//! its node, so the leaving owner finds nobody to pass to. It then offers the
//! right to pick a successor in `handoff`, and whichever of the two sees the
//! other first takes the offer back.
#![allow(unsafe_code, reason = "owns the protected value and queues nodes that lie on waiters' stacks")]

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::ptr::null_mut;

use crate::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering, fence};
use crate::threads::{self, Token};

/// A waiter. Lies on the waiter's stack until `granted` is set, not an instant longer.
struct Node {
    next: AtomicPtr<Node>,
    thread: Token,
    granted: AtomicBool,
}

/// Mutual exclusion. Waiters sleep, in order of arrival; nobody spins.
pub struct Mutex<T: ?Sized> {
    /// The owner and the waiters.
    count: AtomicU32,
    /// Not 0: an offer to pick the next owner.
    handoff: AtomicU32,
    /// Makes every offer different from the one before. Owner only.
    sequence: AtomicU32,
    /// Newest waiter first; pushed by anybody.
    arrivals: AtomicPtr<Node>,
    /// Oldest waiter first; touched only by the owner or by who took the offer.
    line: AtomicPtr<Node>,
    value: UnsafeCell<T>,
}

// SAFETY: the lock lets one thread at a time at the value.
unsafe impl<T: ?Sized + Send> Send for Mutex<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}

/// Ownership of a [`Mutex`].
pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    not_send: core::marker::PhantomData<*const ()>,
}

impl<T> Mutex<T> {
    /// A free mutex.
    #[cfg(not(loom))]
    pub const fn new(value: T) -> Self {
        Mutex {
            count: AtomicU32::new(0),
            handoff: AtomicU32::new(0),
            sequence: AtomicU32::new(0),
            arrivals: AtomicPtr::new(null_mut()),
            line: AtomicPtr::new(null_mut()),
            value: UnsafeCell::new(value),
        }
    }

    /// A free mutex.
    #[cfg(loom)]
    pub fn new(value: T) -> Self {
        Mutex {
            count: AtomicU32::new(0),
            handoff: AtomicU32::new(0),
            sequence: AtomicU32::new(0),
            arrivals: AtomicPtr::new(null_mut()),
            line: AtomicPtr::new(null_mut()),
            value: UnsafeCell::new(value),
        }
    }

    /// The value, out of its mutex.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the mutex and takes it.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        if self.count.fetch_add(1, Ordering::Acquire) != 0 {
            self.wait();
        }
        self.guard()
    }

    /// Takes the mutex if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.count.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).ok().map(|_| self.guard())
    }

    /// The value, which nobody else can reach now.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    fn guard(&self) -> MutexGuard<'_, T> {
        MutexGuard { mutex: self, not_send: core::marker::PhantomData }
    }

    #[cold]
    fn wait(&self) {
        let node = Node {
            next: AtomicPtr::new(null_mut()),
            thread: threads::current(),
            granted: AtomicBool::new(false),
        };
        let me = (&raw const node).cast_mut();
        let mut newest = self.arrivals.load(Ordering::Relaxed);
        loop {
            node.next.store(newest, Ordering::Relaxed);
            match self.arrivals.compare_exchange(newest, me, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => newest = now,
            }
        }
        // Of an owner that offers and then looks for waiters, and a waiter that
        // queues and then looks for an offer, at least one must see the other:
        // hence a full fence between the two steps on both sides.
        fence(Ordering::SeqCst);
        let offer = self.handoff.load(Ordering::Relaxed);
        // Acquire: takes over `line` from the owner who offers.
        if offer != 0 && self.handoff.compare_exchange(offer, 0, Ordering::Acquire, Ordering::Relaxed).is_ok()
        {
            // We may pick: our own node is in the queue, so there is somebody.
            let next = self.pop().expect("a queued waiter is lost");
            if next == me {
                return;
            }
            Self::grant(next);
        }
        let mut parked = false;
        while !node.granted.load(Ordering::Acquire) {
            threads::park();
            parked = true;
        }
        if parked {
            // What we were unparked for need not have been this lock: who
            // registers with a queue, takes a lock to look at the state and
            // then parks must not miss a wake-up that came in between.
            threads::unpark(node.thread);
        }
    }

    /// Takes the oldest waiter out. Only for the owner or the taker of the offer.
    fn pop(&self) -> Option<*mut Node> {
        let first = self.line.load(Ordering::Relaxed);
        if !first.is_null() {
            // SAFETY: a queued node stays alive until it is granted.
            self.line.store(unsafe { (*first).next.load(Ordering::Relaxed) }, Ordering::Relaxed);
            return Some(first);
        }
        let mut newest = self.arrivals.swap(null_mut(), Ordering::Acquire);
        let mut oldest = null_mut();
        while !newest.is_null() {
            // SAFETY: as above; the swap made the chain ours.
            let next = unsafe { (*newest).next.swap(oldest, Ordering::Relaxed) };
            oldest = newest;
            newest = next;
        }
        if oldest.is_null() {
            return None;
        }
        // SAFETY: as above.
        self.line.store(unsafe { (*oldest).next.load(Ordering::Relaxed) }, Ordering::Relaxed);
        Some(oldest)
    }

    /// Makes a waiter the owner.
    fn grant(node: *mut Node) {
        // SAFETY: the node lives until `granted` is seen, so the token is read before.
        let thread = unsafe {
            let thread = (*node).thread;
            (*node).granted.store(true, Ordering::Release);
            thread
        };
        threads::unpark(thread);
    }

    #[inline]
    fn unlock(&self) {
        if self.count.fetch_sub(1, Ordering::Release) != 1 {
            self.pass_on();
        }
    }

    #[cold]
    fn pass_on(&self) {
        // Acquire pairs with the waiters' increments of `count` and their pushes.
        fence(Ordering::Acquire);
        loop {
            if let Some(next) = self.pop() {
                return Self::grant(next);
            }
            // Somebody counted itself and has not queued yet.
            let offer = self.sequence.load(Ordering::Relaxed).wrapping_add(1).max(1);
            self.sequence.store(offer, Ordering::Relaxed);
            self.handoff.store(offer, Ordering::Release);
            fence(Ordering::SeqCst);
            if self.arrivals.load(Ordering::Relaxed).is_null() {
                return;
            }
            if self.handoff.compare_exchange(offer, 0, Ordering::Acquire, Ordering::Relaxed).is_err() {
                return;
            }
        }
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard is the right to look.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard is the right to change.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.mutex.unlock();
    }
}

#[cfg(not(loom))]
impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Mutex::new(T::default())
    }
}

impl<T: ?Sized> core::fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Mutex")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::vec::Vec;

    #[test]
    fn counts_right_under_contention() {
        threads::use_std_threads();
        let m = Arc::new(Mutex::new(0u64));
        let workers: Vec<_> = (0..8)
            .map(|_| {
                let m = m.clone();
                std::thread::spawn(move || {
                    for i in 0..20_000u64 {
                        let mut g = m.lock();
                        *g += 1;
                        if i % 64 == 0 {
                            // Hold it across a reschedule, so that queues form.
                            std::thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        for w in workers {
            w.join().unwrap();
        }
        assert_eq!(*m.lock(), 160_000);
    }

    #[test]
    fn try_lock() {
        let m = Mutex::new(1);
        let g = m.lock();
        assert!(m.try_lock().is_none());
        drop(g);
        assert_eq!(m.try_lock().map(|g| *g), Some(1));
    }
}

/// `RUSTFLAGS="--cfg loom" cargo test -p atoll-sync --release`
#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;

    fn model(threads: usize, rounds: usize) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            crate::threads::use_loom_threads();
            let m = Arc::new(Mutex::new(0usize));
            let workers: std::vec::Vec<_> = (0..threads)
                .map(|_| {
                    let m = m.clone();
                    loom::thread::spawn(move || {
                        for _ in 0..rounds {
                            *m.lock() += 1;
                        }
                    })
                })
                .collect();
            for w in workers {
                w.join().unwrap();
            }
            assert_eq!(*m.lock(), threads * rounds);
        });
    }

    #[test]
    fn two_threads() {
        model(2, 2);
    }

    #[test]
    fn three_threads() {
        model(3, 1);
    }
}
