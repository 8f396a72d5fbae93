//! Cores that come and go under running programs (RackOut/FlexOS do so between cells; `cpuhp(9)`, sysfs(5) `cpuN/online`).
//!
//! A cell has as many cores as it can ever have from its start on; those that are *offline* do nothing. Each class's set of cores
//! holds only those that are online, so that nobody chooses another. A core that goes offline is interrupted: its scheduler finds
//! that the threads there may not stay, and sends each to a core on which it may. When there is nothing left, its timers go to
//! core 0, which is always online, and it sleeps. Whatever was sent to it meanwhile, or is sent by who has not seen that it is
//! gone, wakes it for a moment, in which it sends that on: nothing can be lost by bad luck in the order of things.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use crate::activity::{self, CORE_WORDS, CoreSet, has_core, set_of_cores};
use crate::core_state::{all_cores, core, cores, usage};
use crate::scheduler::{self, poke};
use atoll_abi::platform;
use atoll_abi::{Errno, Result};
use atoll_sync::Mutex;

/// One change at a time.
static CHANGING: Mutex<()> = Mutex::new(());

/// How often who takes cores looks whether they have gone, ns.
const LOOK: u64 = 20_000;

/// How long a core may take, ns. Where the host has more to do than it can, it may have no processor for it for most of a second.
pub const CORE_PATIENCE: u64 = 5_000_000_000;

/// Is this core in use?
#[inline]
pub fn is_online(n: usize) -> bool {
    core(n).is_online()
}

/// Cores that are in use, a bit each.
pub fn online() -> CoreSet {
    set_of_cores((0..cores()).filter(|n| is_online(*n)))
}

/// How many cores are in use.
pub fn cores_online() -> usize {
    all_cores().iter().filter(|c| c.is_online()).count()
}

/// What is so at the start is known to those who choose cores.
pub(crate) fn begin() {
    activity::reconcile();
    say();
}

/// Says how many there are to who looks from outside.
fn say() {
    platform().control().life.online.store(cores_online() as u32, Ordering::Relaxed);
}

/// Uses these cores from now on, a bit each. Threads and timers of those that go have left them when this returns. Value: how long
/// that took until the last one had, ns. For a thread that may wait. EINVAL: core 0 is not among them, which is always used, or one
/// that the cell doesn't have. EBUSY: a core's own work lasts so long that it can't be taken now; then it is used as before.
pub fn set_online(set: CoreSet) -> Result<u64> {
    let _one = CHANGING.lock();
    let wanted = |n: usize| has_core(&set, n);
    if !wanted(0) || (cores()..CORE_WORDS * 64).any(wanted) {
        return Err(Errno::EINVAL);
    }
    let (mut come, mut go) = (false, Vec::new());
    let begun = platform().now();
    for (n, c) in all_cores().iter().enumerate() {
        if c.is_online() != wanted(n) {
            c.usage.store(if wanted(n) { usage::ONLINE } else { usage::GOING }, Ordering::SeqCst);
            come |= wanted(n);
            if !wanted(n) {
                go.push(n);
            }
        }
    }
    if !come && go.is_empty() {
        return Ok(0);
    }
    activity::reconcile();
    // Those that stay look whether one of their threads belongs on a core that has come; those that have come ask for work; those
    // that go send theirs away.
    scheduler::visit_all();
    if come {
        (0..cores()).filter(|n| wanted(*n)).for_each(poke);
    }
    let mut last = begun;
    for n in go {
        while !core(n).has_left() {
            let late = platform().now() > begun + CORE_PATIENCE;
            let word = &core(n).usage;
            // Unless it has left just now.
            if late
                && word
                    .compare_exchange(usage::GOING, usage::ONLINE, Ordering::SeqCst, Ordering::SeqCst)
                    .is_ok()
            {
                begin();
                return Err(Errno::EBUSY);
            }
            scheduler::park_until(platform().now() + LOOK);
        }
        last = last.max(core(n).left_at.load(Ordering::Relaxed));
    }
    say();
    Ok(last - begun)
}
