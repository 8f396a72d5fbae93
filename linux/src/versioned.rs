//! What all threads of a process read with every path, and hardly ever change: each task has a copy, which it
//! asks for again when the version has changed.

use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU64, Ordering};

use atoll_sync::{Mutex, MutexGuard};

/// The last version of anything: none is used twice.
static LAST: AtomicU64 = AtomicU64::new(0);

fn next() -> u64 {
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// A value whose changes can be seen without its lock.
pub struct Versioned<T> {
    version: AtomicU64,
    value: Mutex<T>,
}

/// The right to look.
pub struct Looking<'a, T>(MutexGuard<'a, T>);

/// The right to change; it is another version afterwards.
pub struct Changing<'a, T> {
    version: &'a AtomicU64,
    value: MutexGuard<'a, T>,
}

impl<T> Versioned<T> {
    /// A first version.
    pub fn new(value: T) -> Self {
        Versioned { version: AtomicU64::new(next()), value: Mutex::new(value) }
    }

    /// Differs from that of any other value, and of this one before it was changed. Who copies the value asks
    /// for this first.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Locks it, for looking at it.
    pub fn lock(&self) -> Looking<'_, T> {
        Looking(self.value.lock())
    }

    /// Locks it, for changing it.
    pub fn change(&self) -> Changing<'_, T> {
        Changing { value: self.value.lock(), version: &self.version }
    }
}

impl<T> Deref for Looking<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Deref for Changing<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Changing<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for Changing<'_, T> {
    fn drop(&mut self) {
        // Before the lock goes: who copied the old value has the old version.
        self.version.store(next(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        let (a, b) = (Versioned::new(1), Versioned::new(1));
        assert_ne!(a.version(), b.version());
        let before = a.version();
        assert_eq!(*a.lock(), 1);
        assert_eq!(a.version(), before);
        *a.change() = 2;
        assert_ne!(a.version(), before);
        assert_eq!(*a.lock(), 2);
    }
}
