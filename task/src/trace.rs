//! A trace of what threads do: who runs, who wakes whom, when cores have nothing to do (`atoll trace`).
//!
//! While a trace is on, each core keeps the last events in a ring of its own. Without one, an event costs the look whether there
//! is a ring.
#![allow(unsafe_code, reason = "each core writes to its ring without a lock")]

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU64, Ordering};

use atoll_abi::platform;
use atoll_abi::report::CoreTrace;
pub use atoll_abi::report::event;

use crate::core_state::{Core, all_cores};
use crate::rcu::barrier;
use crate::thread::Thread;

/// A core's last events.
pub(crate) struct Ring {
    /// Events that there were.
    count: AtomicU64,
    /// When, and what.
    events: Box<[[AtomicU64; 2]]>,
}

impl Ring {
    fn new(len: usize) -> Option<Ring> {
        let mut events = Vec::new();
        events.try_reserve_exact(len).ok()?;
        events.resize_with(len, || [const { AtomicU64::new(0) }; 2]);
        Some(Ring { count: AtomicU64::new(0), events: events.into_boxed_slice() })
    }

    fn add(&self, time: u64, word: u64) {
        let n = self.count.load(Ordering::Relaxed);
        let [at, what] = &self.events[(n % self.events.len() as u64) as usize];
        at.store(time, Ordering::Relaxed);
        what.store(word, Ordering::Relaxed);
        self.count.store(n + 1, Ordering::Release);
    }

    fn read(&self) -> CoreTrace {
        let (count, len) = (self.count.load(Ordering::Acquire), self.events.len() as u64);
        let lost = count.saturating_sub(len);
        let event = |n: u64| {
            let [at, what] = &self.events[(n % len) as usize];
            (at.load(Ordering::Relaxed), what.load(Ordering::Relaxed))
        };
        CoreTrace { lost, events: (lost..count).map(event).collect() }
    }
}

/// Notes what a thread does, or what happens to it, if there is a trace. `time`: when, if that is known.
#[inline]
pub(crate) fn note(this: &Core, kind: u64, t: Option<&Thread>, time: Option<u64>) {
    let ring = this.trace.load(Ordering::Acquire);
    if !ring.is_null() {
        note_in(ring, kind, t, time);
    }
}

#[cold]
fn note_in(ring: *mut Ring, kind: u64, t: Option<&Thread>, time: Option<u64>) {
    let tid = t.map_or(0, Thread::tag);
    // SAFETY: a ring is freed only after every core has passed a barrier since it was taken away, and this one has not since it
    // looked.
    unsafe { &*ring }.add(time.unwrap_or_else(|| platform().now()), event::word(kind, tid));
}

/// Begins a trace in which each core keeps so many events. False: no memory. One at a time calls this and [`end`].
pub fn begin(len: usize) -> bool {
    drop(end());
    let rings: Option<Vec<Ring>> = all_cores().iter().map(|_| Ring::new(len.max(1))).collect();
    let Some(rings) = rings else { return false };
    for (core, ring) in all_cores().iter().zip(rings) {
        core.trace.store(Box::into_raw(Box::new(ring)), Ordering::Release);
    }
    true
}

/// Ends it. Value: what each core has kept; nothing if there was none. Waits for the other cores.
pub fn end() -> Vec<CoreTrace> {
    let rings: Vec<*mut Ring> =
        all_cores().iter().map(|core| core.trace.swap(null_mut(), Ordering::AcqRel)).collect();
    if rings.iter().all(|ring| ring.is_null()) {
        return Vec::new();
    }
    barrier();
    let of = |ring: *mut Ring| {
        if ring.is_null() {
            return CoreTrace::default();
        }
        // SAFETY: `begin` made it, nobody else takes it, and no core uses it any more.
        unsafe { Box::from_raw(ring) }.read()
    };
    rings.into_iter().map(of).collect()
}
