//! The task that runs this.
#![allow(unsafe_code, reason = "the current task is found through a pointer that its thread keeps alive")]

use core::sync::atomic::Ordering;

use crate::process::Task;
use atoll_abi::core_local::core_local;

/// The task whose thread runs this, inside the runtime.
///
/// # Panics
/// In a thread of the runtime, which is nobody's task.
#[inline]
pub fn current() -> &'static Task {
    try_current().expect("no program's thread runs here")
}

/// The same, or None in a thread of the runtime.
#[inline]
pub fn try_current() -> Option<&'static Task> {
    let p = core_local().task.load(Ordering::Relaxed).cast::<Task>();
    // SAFETY: a task's thread holds a reference to it to the end of its life,
    // and nobody keeps what this returns longer than its thread runs.
    unsafe { p.cast_const().as_ref() }
}
