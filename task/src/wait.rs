//! Waiting for a condition of an object, with a deadline and interruption.

use core::convert::Infallible;

use crate::scheduler::{Until, look_before_sleep, park, park_until};
use crate::thread::current;
use atoll_abi::errno::{Errno, Result};
use atoll_abi::platform;
use atoll_sync::WaitQueue;

/// How long to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// Not at all: EAGAIN.
    Never,
    /// As long as it takes.
    Forever,
    /// Until this time on [`atoll_abi::Platform::now`]'s clock: ETIMEDOUT.
    Until(u64),
}

/// Waits until `f` has a value. It is asked first, and again whenever `queue`
/// is woken for `interest`. RESTART if the thread's personality interrupts it.
pub fn wait<R>(queue: &WaitQueue, interest: u32, limit: Limit, f: impl FnMut() -> Option<R>) -> Result<R> {
    wait_for(queue, interest, limit, true, f)
}

/// The same, for waits that nothing interrupts.
pub fn wait_uninterrupted<R>(queue: &WaitQueue, interest: u32, mut f: impl FnMut() -> Option<R>) -> R {
    loop {
        if let Ok(r) = wait_for(queue, interest, Limit::Forever, false, &mut f) {
            return r;
        }
    }
}

/// The same, until `limit` at most; None: then.
pub fn wait_uninterrupted_until<R>(
    queue: &WaitQueue,
    interest: u32,
    limit: Limit,
    f: impl FnMut() -> Option<R>,
) -> Option<R> {
    wait_for(queue, interest, limit, false, f).ok()
}

fn wait_for<R>(
    queue: &WaitQueue,
    interest: u32,
    limit: Limit,
    interruptible: bool,
    mut f: impl FnMut() -> Option<R>,
) -> Result<R> {
    if let Some(r) = f() {
        return Ok(r);
    }
    if limit == Limit::Never {
        return Err(Errno::EAGAIN);
    }
    let me = current();
    loop {
        queue.register(interest);
        let outcome = if let Some(r) = f() {
            Some(Ok(r))
        } else if interruptible && me.interrupted() {
            Some(Err(Errno::RESTART))
        } else if let Limit::Until(deadline) = limit
            && platform().now() >= deadline
        {
            Some(Err(Errno::ETIMEDOUT))
        } else {
            None
        };
        if let Some(outcome) = outcome {
            queue.unregister();
            return outcome;
        }
        // Another core may be about to change it: that saves both cores a switch.
        let Ok(_) = look_before_sleep::<Infallible>(Until::Changed, || Ok(me.was_unparked()));
        match limit {
            Limit::Until(deadline) => park_until(deadline),
            _ => park(),
        }
        queue.unregister();
        // Most who are woken need not register again.
        if let Some(r) = f() {
            return Ok(r);
        }
    }
}
