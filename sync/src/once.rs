//! A cell that is set once, at boot.
#![allow(unsafe_code, reason = "hands out shared references to a value that no longer changes")]

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU8, Ordering};

const EMPTY: u8 = 0;
const WRITING: u8 = 1;
const SET: u8 = 2;

/// Empty until [`SetOnce::set`], the same value ever after. Never waits.
pub struct SetOnce<T> {
    state: AtomicU8,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: the value is written before `state` says SET and never again.
unsafe impl<T: Send + Sync> Sync for SetOnce<T> {}

impl<T> SetOnce<T> {
    /// Empty.
    pub const fn new() -> Self {
        SetOnce { state: AtomicU8::new(EMPTY), value: UnsafeCell::new(None) }
    }

    /// Sets the value; gives it back if there is one already.
    pub fn set(&self, value: T) -> Result<(), T> {
        if self.state.compare_exchange(EMPTY, WRITING, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return Err(value);
        }
        // SAFETY: the exchange made us the only writer, and nobody reads before SET.
        unsafe { *self.value.get() = Some(value) };
        self.state.store(SET, Ordering::Release);
        Ok(())
    }

    /// The value, if it is set.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        if self.state.load(Ordering::Acquire) != SET {
            return None;
        }
        // SAFETY: SET means that it was written, and never is again.
        Some(unsafe { (*self.value.get()).as_ref().unwrap_unchecked() })
    }
}

impl<T> Default for SetOnce<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> core::ops::Deref for SetOnce<T> {
    type Target = T;
    /// # Panics
    /// If it has not been set.
    #[inline]
    fn deref(&self) -> &T {
        self.get().expect("used before it was set")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn once() {
        let c = SetOnce::<i32>::new();
        assert_eq!(c.get(), None);
        assert_eq!(c.set(1), Ok(()));
        assert_eq!(c.set(2), Err(2));
        assert_eq!(*c, 1);
    }
}
