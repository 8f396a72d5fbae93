//! When memory that readers reach without a lock may be freed.
//!
//! Readers of slots ([`atoll_sync::RcuSlot`]) don't block between loading a
//! pointer and raising the count behind it, and are not preempted, as upcalls
//! are masked in the runtime. Each core counts its passages through points
//! where it reads nothing: the start of a system call and the scheduler. A
//! piece of memory is free for all once every core has counted two passages
//! since it was retired, or sleeps. Two, not one: the store that counts the
//! first may become visible to others later than a load behind it.
#![allow(unsafe_code, reason = "frees retired memory")]

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use crate::core_state::{Core, all_cores, count, this_core, with_private};
use atoll_abi::core_local::state;
use atoll_abi::platform;

struct Retired {
    memory: *mut (),
    free: unsafe fn(*mut ()),
}

/// Retired memory of one core.
#[derive(Default)]
pub(crate) struct Limbo {
    fresh: Vec<Retired>,
    waiting: Vec<Retired>,
    /// Each core's count when `waiting` was closed.
    seen: Vec<u64>,
}

/// Retired pieces after which a core looks whether some can be freed.
const BATCH: usize = 64;

/// Counts a passage. Called at the start of every system call and by the scheduler.
#[inline(always)]
pub fn quiesce() {
    quiesce_on(this_core());
}

/// The same for who knows the core.
#[inline(always)]
pub(crate) fn quiesce_on(this: &Core) {
    count(&this.quiescent, 1);
}

/// Takes memory to be freed later; for [`atoll_sync::set_defer`].
pub(crate) fn defer(memory: *mut (), free: unsafe fn(*mut ())) {
    let full = with_private(|p| {
        p.limbo.fresh.push(Retired { memory, free });
        p.limbo.fresh.len() >= BATCH
    });
    if full {
        collect();
    }
}

/// Frees what can be freed.
pub(crate) fn collect() {
    let ready = with_private(|p| {
        let limbo = &mut p.limbo;
        if !limbo.waiting.is_empty() && !passed(&limbo.seen, limbo.fresh.len() > 16 * BATCH) {
            return Vec::new();
        }
        let ready = core::mem::take(&mut limbo.waiting);
        if !limbo.fresh.is_empty() {
            limbo.waiting = core::mem::take(&mut limbo.fresh);
            limbo.seen.clear();
            limbo.seen.extend((0..all_cores().len()).map(passes));
        }
        ready
    });
    for r in ready {
        // SAFETY: no core can hold the pointer any more.
        unsafe { (r.free)(r.memory) };
    }
}

/// How often a core has passed: system calls begin without anything of an earlier one.
fn passes(core: usize) -> u64 {
    let local = &platform().control().cores[core].local;
    all_cores()[core].quiescent.load(Ordering::SeqCst)
        + local.fast_calls.load(Ordering::SeqCst)
        + local.trapped_calls.load(Ordering::SeqCst)
}

/// Has every core passed twice? `urge`: make those come by that haven't.
fn passed(seen: &[u64], urge: bool) -> bool {
    let control = platform().control();
    core::sync::atomic::fence(Ordering::SeqCst);
    let late = seen.iter().enumerate().filter(|(n, seen)| {
        passes(*n) < **seen + 2 && control.cores[*n].local.state.load(Ordering::SeqCst) != state::PARKED
    });
    let mut all = true;
    for (n, _) in late {
        all = false;
        if urge {
            platform().interrupt(n);
        }
    }
    all
}

/// Waits until every other core has passed a full memory barrier since this was
/// called: each that runs is interrupted, each that sleeps passes one when it wakes.
pub fn barrier() {
    let control = platform().control();
    let me = atoll_abi::core_local::core_local().id();
    core::sync::atomic::fence(Ordering::SeqCst);
    let seen: Vec<u64> = all_cores().iter().map(|c| c.stats.interrupts.load(Ordering::SeqCst)).collect();
    for (n, core) in all_cores().iter().enumerate() {
        let passed = || {
            n == me
                || core.stats.interrupts.load(Ordering::SeqCst) != seen[n]
                || control.cores[n].local.state.load(Ordering::SeqCst) == state::PARKED
        };
        if !passed() {
            platform().interrupt(n);
        }
        while !passed() {
            crate::scheduler::park_until(platform().now() + 5_000);
        }
    }
    core::sync::atomic::fence(Ordering::SeqCst);
}
