//! Which cores programs have: those that the supervisor grants, less those that a program with root's rights has switched off in
//! `/sys/devices/system/cpu` (sysfs(5), `chcpu(8)`).

use core::sync::atomic::{AtomicUsize, Ordering};

use atoll_abi::report::Resized;
use atoll_abi::{Errno, Result, platform};
use atoll_sync::Mutex;
use atoll_task::{CORE_WORDS, CoreSet, has_core, set_of_cores};

/// Cores from 0 on that are granted; 0: as many as there were at the start.
static GRANTED: AtomicUsize = AtomicUsize::new(0);
/// Cores that are switched off.
static OFF: Mutex<CoreSet> = Mutex::new([0; CORE_WORDS]);

/// How many cores the cell is granted, from core 0 on.
pub fn granted() -> usize {
    match GRANTED.load(Ordering::Relaxed) {
        0 => at_first(),
        n => n,
    }
}

fn at_first() -> usize {
    match platform().control().descriptor.online.load(Ordering::Relaxed) as usize {
        0 => atoll_task::cores(),
        n => n.min(atoll_task::cores()),
    }
}

/// Uses the cores that are granted and not switched off.
fn apply(granted: usize, off: &CoreSet) -> Result<u64> {
    atoll_task::set_online(set_of_cores((0..granted).filter(|n| !has_core(off, *n))))
}

/// The supervisor grants so many. EINVAL: that is none, or more than the cell can have. EBUSY: one can't be taken now.
pub fn grant(cores: u64) -> Result<Resized> {
    let off = OFF.lock();
    let cores = usize::try_from(cores).map_err(|_| Errno::EINVAL)?;
    if cores == 0 || cores > atoll_task::cores() {
        return Err(Errno::EINVAL);
    }
    let ns = apply(cores, &off)?;
    GRANTED.store(cores, Ordering::Relaxed);
    Ok(Resized { cores: atoll_task::cores_online() as u32, ns })
}

/// A program switches a core on or off. ENODEV: it is not granted.
pub fn switch(n: usize, on: bool) -> Result<()> {
    let mut off = OFF.lock();
    if n >= granted() {
        return Err(Errno::ENODEV);
    }
    let mut now = *off;
    now[n / 64] &= !(1 << (n % 64));
    now[n / 64] |= u64::from(!on) << (n % 64);
    apply(granted(), &now)?;
    *off = now;
    Ok(())
}
