//! A lock that many may read under at once.
//!
//! Reading costs one atomic addition before and one after, as a [`Mutex`] does, and waits for nobody but a writer.
//! `readers` counts those who read, and has [`WRITER`] set while somebody writes or waits for readers to leave.
//! Writers, and readers that find one, meet at a mutex.
#![allow(unsafe_code, reason = "owns the protected value")]

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

use crate::atomic::{AtomicU32, AtomicUsize, Ordering};
use crate::mutex::{Mutex, MutexGuard};
use crate::threads::{self, Look};

const WRITER: u32 = 1 << 31;

/// How long a writer looks whether readers leave before it parks, ns.
const LOOK: u64 = 2_000;

/// A value that many may read, or one may change.
pub struct Shared<T: ?Sized> {
    readers: AtomicU32,
    /// The thread that waits for readers; 0: none.
    writer: AtomicUsize,
    writing: Mutex<()>,
    value: UnsafeCell<T>,
}

// SAFETY: writers are alone with the value.
unsafe impl<T: ?Sized + Send> Send for Shared<T> {}
// SAFETY: as above; readers only share it.
unsafe impl<T: ?Sized + Send + Sync> Sync for Shared<T> {}

/// The right to read.
pub struct ReadGuard<'a, T: ?Sized> {
    lock: &'a Shared<T>,
    not_send: core::marker::PhantomData<*const ()>,
}

/// The right to change.
pub struct WriteGuard<'a, T: ?Sized> {
    lock: &'a Shared<T>,
    /// Let go of after `readers`.
    _alone: MutexGuard<'a, ()>,
}

impl<T> Shared<T> {
    /// Nobody reads or writes.
    pub fn new(value: T) -> Self {
        Shared {
            readers: AtomicU32::new(0),
            writer: AtomicUsize::new(0),
            writing: Mutex::new(()),
            value: UnsafeCell::new(value),
        }
    }
}

impl<T: ?Sized> Shared<T> {
    /// Waits until nobody writes.
    #[inline]
    pub fn read(&self) -> ReadGuard<'_, T> {
        if self.readers.fetch_add(1, Ordering::Acquire) >= WRITER {
            self.read_later();
        }
        ReadGuard { lock: self, not_send: core::marker::PhantomData }
    }

    #[cold]
    fn read_later(&self) {
        self.leave();
        let _none_writes = self.writing.lock();
        // The writer before has cleared its bit before it let go of the mutex.
        self.readers.fetch_add(1, Ordering::Acquire);
    }

    /// One reads less.
    #[inline]
    fn leave(&self) {
        // Acquire: who sees the bit sees the writer.
        if self.readers.fetch_sub(1, Ordering::AcqRel) == WRITER | 1 {
            // If it is none or another one by now, the one that set the bit did not need us.
            let writer = self.writer.load(Ordering::Relaxed);
            if writer != 0 {
                threads::unpark(writer);
            }
        }
    }

    /// Waits until nobody reads or writes.
    pub fn write(&self) -> WriteGuard<'_, T> {
        let alone = self.writing.lock();
        if self.readers.compare_exchange(0, WRITER, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.wait_for_readers();
        }
        WriteGuard { lock: self, _alone: alone }
    }

    #[cold]
    fn wait_for_readers(&self) {
        let me = threads::current();
        self.writer.store(me, Ordering::Relaxed);
        self.readers.fetch_or(WRITER, Ordering::Release);
        let mut look = Look::new(LOOK);
        let mut parked = false;
        while self.readers.load(Ordering::Acquire) != WRITER {
            if !look.again() {
                threads::park();
                parked = true;
            }
        }
        self.writer.store(0, Ordering::Relaxed);
        if parked {
            // As in a mutex: it may have been unparked for something else.
            threads::unpark(me);
        }
    }

    /// The value, which nobody else can reach now.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

impl<T: ?Sized> Deref for ReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard is the right to look, and nobody writes.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> Drop for ReadGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.leave();
    }
}

impl<T: ?Sized> Deref for WriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard is the right to look.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: nobody else reads or writes.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: ?Sized> Drop for WriteGuard<'_, T> {
    fn drop(&mut self) {
        // Readers that came meanwhile count themselves out again; the bit goes, they stay as they are.
        self.lock.readers.fetch_and(!WRITER, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn readers_see_whole_changes() {
        threads::use_std_threads();
        let pair = Shared::new((0u64, 0u64));
        std::thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| {
                    for _ in 0..20_000 {
                        let mut p = pair.write();
                        p.0 += 1;
                        p.1 += 1;
                    }
                });
            }
            for _ in 0..3 {
                s.spawn(|| {
                    for _ in 0..20_000 {
                        let p = pair.read();
                        assert_eq!(p.0, p.1);
                    }
                });
            }
        });
        assert_eq!(*pair.read(), (40_000, 40_000));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;

    fn model(readers: usize, writers: usize) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            crate::threads::use_loom_threads(true);
            let pair = Arc::new(Shared::new((0usize, 0usize)));
            let workers: std::vec::Vec<_> = (0..readers + writers)
                .map(|n| {
                    let pair = pair.clone();
                    loom::thread::spawn(move || {
                        if n < readers {
                            let p = pair.read();
                            assert_eq!(p.0, p.1);
                            return;
                        }
                        let mut p = pair.write();
                        p.0 += 1;
                        loom::thread::yield_now();
                        p.1 += 1;
                    })
                })
                .collect();
            for w in workers {
                w.join().unwrap();
            }
            assert_eq!(*pair.read(), (writers, writers));
        });
    }

    #[test]
    fn readers_and_a_writer() {
        model(2, 1);
    }

    #[test]
    fn a_reader_and_writers() {
        model(1, 2);
    }
}
