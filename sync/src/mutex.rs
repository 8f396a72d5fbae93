//! A mutex that looks for a moment and then parks its waiters, built without a lock of its own.
//!
//! `word` says who has it: [`LOCKED`], and what the owner who leaves has to see to. A thread that finds it locked
//! looks again for [`LOOK`] ns if another core may be about to let go, then queues a node (lock-free, newest first)
//! and parks. Who comes by when it is free takes it, whether others wait or not: handing it to a thread that sleeps
//! would make everybody wait for that one's core to wake up. The owner who leaves wakes the oldest waiter, but no
//! second one before that has tried ([`WOKEN`]). A waiter that has tried in vain and has waited for [`PATIENCE`] ns
//! asks to be given the mutex ([`HAND_OVER`]), and then nobody else gets it before.
//!
//! The bits of `word` are changed by atomic exchanges of the one word, so that no fence is needed: who has queued
//! says so in the same word ([`QUEUED`]) in which the owner says that it has left, and whoever of the two comes
//! second sees the other. The queue's old end, `line`, is touched by who set `WOKEN`, until it clears it, or, while
//! `HAND_OVER` is set, by the owner.
#![allow(unsafe_code, reason = "owns the protected value and queues nodes that lie on waiters' stacks")]

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::ptr::null_mut;

use crate::atomic::{AtomicPtr, AtomicU32, Ordering};
use crate::threads::{self, Token};

/// Somebody has it.
const LOCKED: u32 = 1;
/// Nodes may be queued.
const QUEUED: u32 = 2;
/// A waiter was woken and has neither got it nor gone to sleep again.
const WOKEN: u32 = 4;
/// The waiter at the front of `line` gets it from the owner. Never together with `WOKEN`, never without `LOCKED`.
const HAND_OVER: u32 = 8;

/// How long a thread looks before it parks, ns: about what parking and waking it would cost.
const LOOK: u64 = 2_000;
/// How long a waiter lets others go before it, ns.
const PATIENCE: u64 = 1_000_000;

/// What a waiter was woken for.
const TRY: u32 = 1;
const OWN: u32 = 2;

/// A waiter. Lies on the waiter's stack; taken out of the queue before `granted` is set, and
/// touched by nobody else after that.
struct Node {
    next: AtomicPtr<Node>,
    thread: Token,
    /// 0, [`TRY`] or [`OWN`].
    granted: AtomicU32,
}

/// Mutual exclusion. Waiters sleep; none waits for much longer than [`PATIENCE`] while others get it.
pub struct Mutex<T: ?Sized> {
    word: AtomicU32,
    /// Newest waiter first; pushed by anybody.
    arrivals: AtomicPtr<Node>,
    /// Oldest waiter first.
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
            word: AtomicU32::new(0),
            arrivals: AtomicPtr::new(null_mut()),
            line: AtomicPtr::new(null_mut()),
            value: UnsafeCell::new(value),
        }
    }

    /// A free mutex.
    #[cfg(loom)]
    pub fn new(value: T) -> Self {
        Mutex {
            word: AtomicU32::new(0),
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
        self.lock_looking(LOOK)
    }

    /// The same, of one that is often held for longer than for a few steps: looks for `long` ns whether it becomes free, before it parks.
    #[inline]
    pub fn lock_looking(&self, long: u64) -> MutexGuard<'_, T> {
        if self.word.compare_exchange(0, LOCKED, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.wait(long);
        }
        self.guard()
    }

    /// Takes the mutex if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let word = self.word.load(Ordering::Relaxed);
        (word & LOCKED == 0 && self.change(word, word | LOCKED)).then(|| self.guard())
    }

    /// The value, which nobody else can reach now.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    fn guard(&self) -> MutexGuard<'_, T> {
        MutexGuard { mutex: self, not_send: core::marker::PhantomData }
    }

    /// Acquires and releases: `line` goes from one to the next by the bits of `word`, the value by `LOCKED`.
    fn change(&self, from: u32, to: u32) -> bool {
        self.word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Looks for a moment whether the mutex becomes free, and takes it. `also`: bits to clear then.
    fn look(&self, also: u32, long: u64) -> bool {
        let mut look = threads::Look::new(long);
        loop {
            let word = self.word.load(Ordering::Relaxed);
            if word & LOCKED == 0 {
                if self.change(word, (word | LOCKED) & !also) {
                    return true;
                }
            } else if word & HAND_OVER != 0 || !look.again() {
                return false;
            }
        }
    }

    #[cold]
    fn wait(&self, long: u64) {
        if self.look(0, long) {
            return;
        }
        let node =
            Node { next: AtomicPtr::new(null_mut()), thread: threads::current(), granted: AtomicU32::new(0) };
        let me = (&raw const node).cast_mut();
        let began = threads::now();
        let mut newest = self.arrivals.load(Ordering::Relaxed);
        loop {
            node.next.store(newest, Ordering::Relaxed);
            match self.arrivals.compare_exchange(newest, me, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => newest = now,
            }
        }
        // Either who has the mutex, or is about to take it as the one that was woken, sees that there are nodes, or
        // there is nobody, and we pick a waiter as the last owner would have done.
        loop {
            let word = self.word.load(Ordering::Relaxed);
            let nobody = word & (LOCKED | WOKEN) == 0;
            if self.change(word, word | QUEUED | if nobody { WOKEN } else { 0 }) {
                if nobody {
                    // Our own node is in the queue: who took it out would have set a bit of the two.
                    Self::grant(self.pop().expect("a queued waiter is lost"), TRY);
                }
                break;
            }
        }
        let mut parked = false;
        loop {
            match node.granted.load(Ordering::Acquire) {
                0 => {
                    threads::park();
                    parked = true;
                }
                TRY => {
                    if self.try_as_woken(&node, began) {
                        break;
                    }
                }
                _ => break,
            }
        }
        if parked {
            // What we were unparked for need not have been this lock: who
            // registers with a queue, takes a lock to look at the state and
            // then parks must not miss a wake-up that came in between.
            threads::unpark(node.thread);
        }
    }

    /// The woken waiter takes the mutex, or goes back to the front of the line, to which it has the right.
    fn try_as_woken(&self, node: &Node, began: u64) -> bool {
        if self.look(WOKEN, LOOK) {
            return true;
        }
        let me = (node as *const Node).cast_mut();
        let impatient = threads::now().saturating_sub(began) >= PATIENCE;
        node.granted.store(0, Ordering::Relaxed);
        let first = self.line.load(Ordering::Relaxed);
        node.next.store(first, Ordering::Relaxed);
        self.line.store(me, Ordering::Relaxed);
        loop {
            let word = self.word.load(Ordering::Relaxed);
            if word & LOCKED == 0 {
                // Free at last. The line is still ours alone, and is put right while it is.
                self.line.store(first, Ordering::Relaxed);
                if self.change(word, (word | LOCKED) & !WOKEN) {
                    return true;
                }
                self.line.store(me, Ordering::Relaxed);
            } else if self.change(word, (word & !WOKEN) | QUEUED | if impatient { HAND_OVER } else { 0 }) {
                return false;
            }
        }
    }

    /// Takes the oldest waiter out. Only for who may touch `line`.
    fn pop(&self) -> Option<*mut Node> {
        let mut first = self.line.load(Ordering::Relaxed);
        if first.is_null() {
            let mut newest = self.arrivals.swap(null_mut(), Ordering::Acquire);
            while !newest.is_null() {
                // SAFETY: a queued node stays alive until it is granted; the swap made the chain ours.
                let next = unsafe { (*newest).next.swap(first, Ordering::Relaxed) };
                first = newest;
                newest = next;
            }
        }
        if first.is_null() {
            return None;
        }
        // SAFETY: as above.
        self.line.store(unsafe { (*first).next.load(Ordering::Relaxed) }, Ordering::Relaxed);
        Some(first)
    }

    /// Wakes a waiter that has been taken out.
    fn grant(node: *mut Node, what: u32) {
        // SAFETY: the node lives until `granted` is seen, so the token is read before.
        let thread = unsafe {
            let thread = (*node).thread;
            (*node).granted.store(what, Ordering::Release);
            thread
        };
        threads::unpark(thread);
    }

    #[inline]
    fn unlock(&self) {
        if self.word.compare_exchange(LOCKED, 0, Ordering::Release, Ordering::Relaxed).is_err() {
            self.pass_on();
        }
    }

    #[cold]
    fn pass_on(&self) {
        loop {
            let word = self.word.load(Ordering::Acquire);
            if word & HAND_OVER != 0 {
                // Nobody sets WOKEN while it is locked but we.
                let next = self.pop().expect("who asked for the mutex is gone");
                self.word.fetch_and(!HAND_OVER, Ordering::AcqRel);
                return Self::grant(next, OWN);
            }
            if word & (QUEUED | WOKEN) != QUEUED {
                // Nobody waits, or one is awake: it will look.
                if self
                    .word
                    .compare_exchange(word, word & !LOCKED, Ordering::Release, Ordering::Relaxed)
                    .is_ok()
                {
                    return;
                }
                continue;
            }
            // Cleared before we look for nodes: who queues later sets it again.
            if !self.change(word, (word | WOKEN) & !QUEUED) {
                continue;
            }
            let next = self.pop();
            if !self.line.load(Ordering::Relaxed).is_null()
                || !self.arrivals.load(Ordering::Relaxed).is_null()
            {
                self.word.fetch_or(QUEUED, Ordering::Relaxed);
            }
            match next {
                Some(next) => {
                    // Free first: the one that wakes up is to find it so.
                    self.word.fetch_and(!LOCKED, Ordering::Release);
                    return Self::grant(next, TRY);
                }
                None => drop(self.word.fetch_and(!WOKEN, Ordering::AcqRel)),
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

    /// A waiter gets it though another thread takes it again and again, at once.
    #[test]
    fn nobody_starves() {
        threads::use_std_threads();
        let m = Mutex::new(());
        let got = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|s| {
            let held = m.lock();
            s.spawn(|| {
                for _ in 0..20 {
                    drop(m.lock());
                }
                got.store(true, std::sync::atomic::Ordering::Relaxed);
            });
            drop(held);
            let begun = std::time::Instant::now();
            while !got.load(std::sync::atomic::Ordering::Relaxed) {
                let _held = m.lock();
                std::thread::sleep(std::time::Duration::from_micros(100));
                assert!(begun.elapsed().as_secs() < 20);
            }
        });
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

    fn model(threads: usize, rounds: usize, patient: bool) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            crate::threads::use_loom_threads(patient);
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
        model(2, 2, true);
    }

    #[test]
    fn three_threads() {
        model(3, 1, true);
    }

    /// Whoever is woken in vain asks for the mutex.
    #[test]
    fn two_impatient_threads() {
        model(2, 3, false);
    }

    #[test]
    fn three_impatient_threads() {
        model(3, 1, false);
    }
}
