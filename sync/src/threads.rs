//! Threads as this crate sees them: tokens that can be parked and unparked.
#![allow(unsafe_code, reason = "keeps a table of functions in a static")]

use core::sync::atomic::{AtomicPtr, Ordering};

/// Names a thread. Stays meaningful for ever: unparking a thread that has
/// long ended, or whose memory serves another thread by now, does no harm.
pub type Token = usize;

/// How threads are parked.
pub struct ThreadOps {
    /// The thread that asks.
    pub current: fn() -> Token,
    /// Sleeps until unparked. Returns at once if unparked since the last
    /// `park`; may return without reason.
    pub park: fn(),
    /// Ends a sleep, or the next one.
    pub unpark: fn(Token),
    /// The time, ns.
    pub now: fn() -> u64,
    /// Is there another core that may do meanwhile what the current thread waits for?
    pub others: fn() -> bool,
    /// See [`breathe`].
    pub breathe: fn(),
    /// See [`relax`].
    pub relax: fn(),
}

static OPS: AtomicPtr<ThreadOps> = AtomicPtr::new(core::ptr::null_mut());

/// Says how threads are parked. To be called before any lock is contended.
pub fn set_thread_ops(ops: &'static ThreadOps) {
    OPS.store((ops as *const ThreadOps).cast_mut(), Ordering::Release);
}

fn ops() -> &'static ThreadOps {
    ops_if_any().expect("set_thread_ops was not called")
}

#[inline]
fn ops_if_any() -> Option<&'static ThreadOps> {
    // SAFETY: only `&'static` references are ever stored.
    unsafe { OPS.load(Ordering::Acquire).as_ref() }
}

/// The current thread.
pub(crate) fn current() -> Token {
    (ops().current)()
}

/// Parks the current thread.
pub fn park() {
    (ops().park)()
}

/// Unparks a thread.
pub fn unpark(token: Token) {
    (ops().unpark)(token)
}

/// For work that takes long, between two parts of it: what has come for the core meanwhile is looked at, and another thread may
/// run first. As in [`park`], the caller may hold locks, and may go on on another core.
#[inline]
pub fn breathe() {
    if let Some(ops) = ops_if_any() {
        (ops.breathe)();
    }
}

/// For who looks again and again whether another core has done something that nobody tells of: lets other threads run meanwhile. As
/// in [`breathe`].
pub fn relax() {
    core::hint::spin_loop();
    if let Some(ops) = ops_if_any() {
        (ops.relax)();
    }
}

/// The time, ns.
pub(crate) fn now() -> u64 {
    (ops().now)()
}

/// A short time for looking at what another core is about to change, before parking.
pub(crate) struct Look {
    long: u64,
    until: u64,
}

impl Look {
    /// `long`: ns, from the second look on.
    pub fn new(long: u64) -> Self {
        Look { long, until: 0 }
    }

    /// Is it worth while to look once more?
    pub fn again(&mut self) -> bool {
        let ops = ops();
        if self.until == 0 {
            if !(ops.others)() {
                return false;
            }
            self.until = (ops.now)() + self.long;
        }
        core::hint::spin_loop();
        (ops.now)() < self.until
    }
}

#[cfg(all(test, not(loom)))]
pub(crate) fn use_std_threads() {
    use std::boxed::Box;
    std::thread_local!(static ME: Token =
        Box::into_raw(Box::new(std::thread::current())) as Token);
    set_thread_ops(&ThreadOps {
        current: || ME.with(|t| *t),
        park: std::thread::park,
        // SAFETY: tokens are made above from leaked boxes.
        unpark: |t| unsafe { (*(t as *const std::thread::Thread)).unpark() },
        now: || std::time::UNIX_EPOCH.elapsed().map_or(0, |t| t.as_nanos() as u64),
        others: || true,
        breathe: || {},
        relax: || {},
    });
}

#[cfg(all(test, loom))]
/// Threads of a model. `patient`: no time passes; else much does between any two looks at the clock.
pub(crate) fn use_loom_threads(patient: bool) {
    use std::boxed::Box;
    use std::cell::Cell;
    // All threads of a model are one of the host's, and tests that run beside it are others.
    std::thread_local!(static CLOCK: Cell<(u64, u64)> = const { Cell::new((0, 0)) });
    CLOCK.set((0, if patient { 0 } else { 1 << 30 }));
    set_thread_ops(&ThreadOps {
        // Leaked within one model execution; loom's own thread handle is not 'static-safe to share.
        current: || Box::into_raw(Box::new(loom::thread::current())) as Token,
        park: loom::thread::park,
        // SAFETY: tokens are made above from leaked boxes.
        unpark: |t| unsafe { (*(t as *const loom::thread::Thread)).unpark() },
        now: || {
            CLOCK.set((CLOCK.get().0 + CLOCK.get().1, CLOCK.get().1));
            CLOCK.get().0
        },
        // Looking is trying more often, which the model does anyway.
        others: || false,
        breathe: || {},
        relax: || {},
    });
}
