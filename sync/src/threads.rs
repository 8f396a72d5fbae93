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
}

static OPS: AtomicPtr<ThreadOps> = AtomicPtr::new(core::ptr::null_mut());

/// Says how threads are parked. To be called before any lock is contended.
pub fn set_thread_ops(ops: &'static ThreadOps) {
    OPS.store((ops as *const ThreadOps).cast_mut(), Ordering::Release);
}

fn ops() -> &'static ThreadOps {
    let p = OPS.load(Ordering::Acquire);
    assert!(!p.is_null(), "set_thread_ops was not called");
    // SAFETY: only `&'static` references are ever stored.
    unsafe { &*p }
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
    });
}

#[cfg(all(test, loom))]
pub(crate) fn use_loom_threads() {
    use std::boxed::Box;
    set_thread_ops(&ThreadOps {
        // Leaked within one model execution; loom's own thread handle is not 'static-safe to share.
        current: || Box::into_raw(Box::new(loom::thread::current())) as Token,
        park: loom::thread::park,
        // SAFETY: tokens are made above from leaked boxes.
        unpark: |t| unsafe { (*(t as *const loom::thread::Thread)).unpark() },
    });
}
