//! Reference counts that a reader may raise without holding a lock.
//!
//! A table that every system call reads (open files) must not be behind a
//! lock. [`RcuSlot::get`] loads a pointer and raises the count behind it if
//! it is not zero. Between the two steps the owner may have let go; the value
//! is then gone, but the count's memory must still be there. So the last
//! owner runs the destructor at once (a file is closed when `close` returns)
//! and hands the memory to `defer`, which frees it after every core has
//! passed a point where it reads no slot.
#![allow(unsafe_code, reason = "implements a reference count and a lock-free slot")]

use alloc::boxed::Box;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ops::Deref;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

struct Inner<T> {
    count: AtomicUsize,
    value: ManuallyDrop<T>,
}

/// Frees memory later.
type Defer = fn(*mut (), unsafe fn(*mut ()));

static DEFER: AtomicPtr<()> = AtomicPtr::new(null_mut());

/// Says who frees memory once no reader can hold a pointer to it. Until then nothing is freed.
pub fn set_defer(defer: Defer) {
    DEFER.store(defer as *mut (), Ordering::Release);
}

/// A shared value: like `Arc`, but its memory outlives its value a little.
pub struct RcuArc<T> {
    inner: NonNull<Inner<T>>,
    owns: PhantomData<T>,
}

// SAFETY: as for Arc.
unsafe impl<T: Send + Sync> Send for RcuArc<T> {}
// SAFETY: as for Arc.
unsafe impl<T: Send + Sync> Sync for RcuArc<T> {}

impl<T> RcuArc<T> {
    /// A value with one owner.
    pub fn new(value: T) -> Self {
        let inner = Box::new(Inner { count: AtomicUsize::new(1), value: ManuallyDrop::new(value) });
        RcuArc { inner: NonNull::from(Box::leak(inner)), owns: PhantomData }
    }

    /// Do the two own the same value?
    pub fn ptr_eq(a: &Self, b: &Self) -> bool {
        a.inner == b.inner
    }

    /// A number that differs for values alive at the same time.
    pub fn addr(&self) -> usize {
        self.inner.as_ptr() as usize
    }

    /// Owners at the moment.
    pub fn count(&self) -> usize {
        self.inner().count.load(Ordering::Relaxed)
    }

    fn inner(&self) -> &Inner<T> {
        // SAFETY: this owner keeps it alive.
        unsafe { self.inner.as_ref() }
    }

    fn into_raw(self) -> *mut Inner<T> {
        ManuallyDrop::new(self).inner.as_ptr()
    }

    /// # Safety
    /// `p` is from `into_raw`, once.
    unsafe fn from_raw(p: *mut Inner<T>) -> Option<Self> {
        NonNull::new(p).map(|inner| RcuArc { inner, owns: PhantomData })
    }
}

impl<T> Clone for RcuArc<T> {
    fn clone(&self) -> Self {
        let before = self.inner().count.fetch_add(1, Ordering::Relaxed);
        assert!(before < usize::MAX / 2, "reference count ran over");
        RcuArc { inner: self.inner, owns: PhantomData }
    }
}

impl<T> Deref for RcuArc<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.inner().value
    }
}

impl<T> Drop for RcuArc<T> {
    #[inline]
    fn drop(&mut self) {
        if self.inner().count.fetch_sub(1, Ordering::Release) == 1 {
            self.last();
        }
    }
}

impl<T> RcuArc<T> {
    #[cold]
    fn last(&mut self) {
        core::sync::atomic::fence(Ordering::Acquire);
        /// # Safety
        /// `p` is a leaked `Box<Inner<T>>` whose value has been dropped.
        unsafe fn free<T>(p: *mut ()) {
            // SAFETY: the caller's promise; the value is ManuallyDrop.
            drop(unsafe { Box::from_raw(p.cast::<Inner<T>>()) });
        }
        // SAFETY: the count is zero, so nobody else has the value or can get it again.
        unsafe { ManuallyDrop::drop(&mut (*self.inner.as_ptr()).value) };
        let defer = DEFER.load(Ordering::Acquire);
        if !defer.is_null() {
            // SAFETY: `set_defer` stored a `Defer`.
            let defer = unsafe { core::mem::transmute::<*mut (), Defer>(defer) };
            defer(self.inner.as_ptr().cast(), free::<T>);
        }
    }
}

/// A place for an [`RcuArc`] that is read without a lock.
pub struct RcuSlot<T> {
    pointer: AtomicPtr<Inner<T>>,
    owns: PhantomData<RcuArc<T>>,
}

// SAFETY: it holds an RcuArc.
unsafe impl<T: Send + Sync> Send for RcuSlot<T> {}
// SAFETY: it holds an RcuArc.
unsafe impl<T: Send + Sync> Sync for RcuSlot<T> {}

impl<T> RcuSlot<T> {
    /// Empty.
    pub const fn new() -> Self {
        RcuSlot { pointer: AtomicPtr::new(null_mut()), owns: PhantomData }
    }

    /// Becomes a further owner of what is there. The caller must not block in here, and it doesn't.
    #[inline]
    pub fn get(&self) -> Option<RcuArc<T>> {
        let p = NonNull::new(self.pointer.load(Ordering::Acquire))?;
        // SAFETY: the memory is freed only after this core has left the runtime
        // or passed the scheduler, both later than this function.
        let count = unsafe { &(*p.as_ptr()).count };
        let mut n = count.load(Ordering::Relaxed);
        while n != 0 {
            match count.compare_exchange_weak(n, n + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(RcuArc { inner: p, owns: PhantomData }),
                Err(now) => n = now,
            }
        }
        None
    }

    /// Is there nothing?
    pub fn is_empty(&self) -> bool {
        self.pointer.load(Ordering::Relaxed).is_null()
    }

    /// Puts something else there, and returns what was.
    pub fn replace(&self, value: Option<RcuArc<T>>) -> Option<RcuArc<T>> {
        let new = value.map_or(null_mut(), RcuArc::into_raw);
        // SAFETY: what is in the slot was put there by `into_raw`.
        unsafe { RcuArc::from_raw(self.pointer.swap(new, Ordering::AcqRel)) }
    }

    /// Puts something else there in place of something, which it returns; or, if there is nothing, what it was given.
    pub fn replace_present(&self, value: RcuArc<T>) -> Result<RcuArc<T>, RcuArc<T>> {
        let new = value.inner.as_ptr();
        let mut old = self.pointer.load(Ordering::Relaxed);
        while !old.is_null() {
            match self.pointer.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    let _ = value.into_raw();
                    // SAFETY: as above; it was taken out just now.
                    return unsafe { RcuArc::from_raw(old) }.ok_or_else(|| unreachable!("it is not null"));
                }
                Err(now) => old = now,
            }
        }
        Err(value)
    }
}

impl<T> Default for RcuSlot<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for RcuSlot<T> {
    fn drop(&mut self) {
        self.replace(None);
    }
}

const PIECE: usize = 64;
type Piece<T> = [RcuSlot<T>; PIECE];

/// A table of slots that grows by pieces; reading one takes no lock.
pub struct RcuTable<T> {
    pieces: Box<[AtomicPtr<Piece<T>>]>,
}

impl<T> RcuTable<T> {
    /// A table for up to `slots` slots, none of which takes memory yet.
    pub fn new(slots: usize) -> Self {
        RcuTable { pieces: (0..slots.div_ceil(PIECE)).map(|_| AtomicPtr::new(null_mut())).collect() }
    }

    /// Slots that there can be.
    pub fn capacity(&self) -> usize {
        self.pieces.len() * PIECE
    }

    fn slot(&self, n: usize) -> Option<&RcuSlot<T>> {
        let piece = self.pieces.get(n / PIECE)?.load(Ordering::Acquire);
        // SAFETY: pieces live as long as the table.
        unsafe { piece.as_ref() }.map(|p| &p[n % PIECE])
    }

    /// Becomes a further owner of what is in slot `n`.
    #[inline]
    pub fn get(&self, n: usize) -> Option<RcuArc<T>> {
        self.slot(n)?.get()
    }

    /// Takes out what is in slot `n`.
    pub fn take(&self, n: usize) -> Option<RcuArc<T>> {
        self.slot(n).filter(|slot| !slot.is_empty())?.replace(None)
    }

    /// Puts something into slot `n` in place of something; see [`RcuSlot::replace_present`].
    pub fn replace_present(&self, n: usize, value: RcuArc<T>) -> Result<RcuArc<T>, RcuArc<T>> {
        match self.slot(n) {
            Some(slot) => slot.replace_present(value),
            None => Err(value),
        }
    }

    /// Puts something into slot `n`, and returns what was there. Nothing
    /// happens to a slot beyond the capacity.
    pub fn replace(&self, n: usize, value: Option<RcuArc<T>>) -> Option<RcuArc<T>> {
        let place = self.pieces.get(n / PIECE)?;
        if place.load(Ordering::Acquire).is_null() {
            value.as_ref()?;
            let piece: Box<Piece<T>> = Box::new([const { RcuSlot::new() }; PIECE]);
            let new = Box::into_raw(piece);
            if place.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: somebody else was faster; ours is unused.
                drop(unsafe { Box::from_raw(new) });
            }
        }
        self.slot(n)?.replace(value)
    }
}

impl<T> Drop for RcuTable<T> {
    fn drop(&mut self) {
        for piece in &mut self.pieces {
            let p = *piece.get_mut();
            if !p.is_null() {
                // SAFETY: made by `replace`, and nobody reads this table any more.
                drop(unsafe { Box::from_raw(p) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    struct Noisy(Arc<AtomicUsize>);
    impl Drop for Noisy {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn drops_once_and_at_once() {
        let n = Arc::new(AtomicUsize::new(0));
        let slot = RcuSlot::new();
        assert!(slot.get().is_none());
        slot.replace(Some(RcuArc::new(Noisy(n.clone()))));
        let r = slot.get().unwrap();
        drop(slot.replace(None));
        assert_eq!(n.load(Ordering::SeqCst), 0);
        drop(r);
        assert_eq!(n.load(Ordering::SeqCst), 1);
        // Only what is there can be replaced.
        let other = slot.replace_present(RcuArc::new(Noisy(n.clone()))).err().unwrap();
        assert!(slot.is_empty());
        slot.replace(Some(other));
        drop(slot.replace_present(RcuArc::new(Noisy(n.clone()))).ok().unwrap());
        assert_eq!(n.load(Ordering::SeqCst), 2);
        drop(slot);
        assert_eq!(n.load(Ordering::SeqCst), 3);
    }

    #[test]
    fn readers_and_a_writer() {
        let slot = RcuSlot::<Noisy>::new();
        let stop = AtomicBool::new(false);
        let drops = Arc::new(AtomicUsize::new(0));
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        if let Some(v) = slot.get() {
                            assert!(v.count() >= 1);
                        }
                    }
                });
            }
            for _ in 0..5_000 {
                slot.replace(Some(RcuArc::new(Noisy(drops.clone()))));
            }
            slot.replace(None);
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(drops.load(Ordering::SeqCst), 5_000);
    }
}
