//! Memory ahead of need.
//!
//! A huge page is cleared when it is first touched: 0.2 ms, and in a virtual
//! machine that gave its free memory back to the host 5 to 8 ms (measured),
//! in the middle of somebody's request. So a cell that has lived for a while
//! has a few blocks ready behind those that it uses: a thread of its own at a
//! low priority touches them, woken by the cell when half of them are used
//! up (architecture section 5: "zero ahead").
#![allow(unsafe_code, reason = "makes host calls on the cell's memory, and waits on its futex")]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use atoll_abi::control::Control;
use atoll_abi::layout::BLOCK;

use crate::memory::{Mapping, headroom};

/// Nice value of the thread: it goes on beside busy cores, and holds none of them up.
const NICE: i32 = 10;

/// Blocks to have ready, for a cell of so many: 1/64, between 16 and 128 MiB.
fn ready_for(total: u64) -> u64 {
    (total / 64).clamp(8, 64)
}

/// The part of what the host has left that a cell's ready memory may be: one of so many.
const SHARE: u64 = 8;

/// Has memory ready for the cell, from now on.
pub(crate) fn start(control: Arc<Mapping>, memory: Arc<Mapping>) {
    let named = std::thread::Builder::new().name("atoll-ahead".into());
    // Without it the cell waits for its memory itself.
    let _ = named.spawn(move || work(&control, &memory));
}

fn work(control: &Mapping, memory: &Mapping) {
    // SAFETY: the mapping holds one, of atomics only.
    let control = unsafe { &*control.base().cast::<Control>() };
    // SAFETY: of this thread alone.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
    let total = control.descriptor.memory.load(Ordering::Relaxed) / BLOCK;
    let mut done = 0;
    let used = || u64::from(control.ahead.used_to.load(Ordering::SeqCst));
    loop {
        // A limit of this process's control group counts what is made here, and a cell is not to be killed for
        // memory that it may never need.
        let ready = ready_for(total).min(headroom() / SHARE / BLOCK);
        if ready == 0 {
            return;
        }
        let mut seen = used();
        while done.max(seen) < seen.saturating_add(ready).min(total) {
            let block = done.max(seen);
            let Some(p) = memory.range(block * BLOCK, BLOCK) else { return };
            // SAFETY: in the mapping; makes pages and changes nothing in them. If it fails, the cell will
            // notice when it needs them.
            if unsafe { libc::madvise(p.cast(), BLOCK as usize, libc::MADV_POPULATE_WRITE) } != 0 {
                return;
            }
            done = block + 1;
            seen = used();
        }
        if done.max(seen) >= total {
            return;
        }
        // The cell rings when it gets there. It may have, before it could know: then it is seen here.
        let tell_at = done.saturating_sub(ready / 2).max(seen + 1);
        control.ahead.tell_at.store(tell_at as u32, Ordering::SeqCst);
        let seen = control.ahead.used_to.load(Ordering::SeqCst);
        if u64::from(seen) < tell_at {
            let word = control.ahead.used_to.as_ptr();
            // SAFETY: the word is in the mapping.
            unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, seen, 0) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::memory::anonymous;

    const TOTAL: u64 = 16;

    fn mapped(size: u64) -> (File, Arc<Mapping>) {
        let file = anonymous("test", size).unwrap();
        let map = Arc::new(Mapping::new(&file, size).unwrap());
        (file, map)
    }

    /// As much is ready as is asked for, more when the cell gets on, no more than there is; and what
    /// the cell has written stays.
    #[test]
    fn stays_ahead() {
        let (_file, control) = mapped((size_of::<Control>() as u64).next_multiple_of(4096));
        let (file, memory) = mapped(TOTAL * BLOCK);
        // SAFETY: zeroes are a valid control area; the mapping outlives this.
        let c = unsafe { &*control.base().cast::<Control>() };
        c.descriptor.memory.store(TOTAL * BLOCK, Ordering::Relaxed);
        c.ahead.used_to.store(1, Ordering::Relaxed);
        // SAFETY: in the mapping, which nobody else uses yet.
        unsafe { memory.base().write(7) };
        let thread = {
            let (control, memory) = (control.clone(), memory.clone());
            std::thread::spawn(move || work(&control, &memory))
        };
        // The first block is the cell's, and has one page.
        for (used_to, tell_at, ready) in [(1, 5, 8), (5, 9, 12), (8, 9, 12), (9, 9, 15)] {
            c.ahead.used_to.store(used_to, Ordering::SeqCst);
            if used_to >= c.ahead.tell_at.load(Ordering::SeqCst) {
                // SAFETY: the word is in the mapping.
                unsafe { libc::syscall(libc::SYS_futex, c.ahead.used_to.as_ptr(), libc::FUTEX_WAKE, 1) };
            }
            let begun = Instant::now();
            let state = || {
                let pages = file.metadata().unwrap().blocks() * 512;
                (c.ahead.tell_at.load(Ordering::SeqCst), pages)
            };
            while state() != (tell_at, ready * BLOCK + 4096) {
                assert!(begun.elapsed() < Duration::from_secs(60), "used {used_to}: {:?}", state());
                std::thread::yield_now();
            }
        }
        // All there is: it has nothing more to do.
        thread.join().unwrap();
        // Nor has it if the cell was faster, or lies.
        for used_to in [TOTAL as u32, u32::MAX] {
            c.ahead.used_to.store(used_to, Ordering::SeqCst);
            work(&control, &memory);
        }
        // SAFETY: in the mapping, which nobody else uses any more.
        assert_eq!(unsafe { memory.base().read() }, 7);
    }
}
