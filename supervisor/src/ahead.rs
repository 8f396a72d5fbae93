//! Memory ahead of need.
//!
//! A huge page is cleared when it is first touched: 0.2 ms, and in a virtual
//! machine that gave its free memory back to the host 5 to 8 ms (measured),
//! in the middle of somebody's request. So a cell that has lived for a while
//! has a few blocks ready behind those that it uses: a thread of its own at a
//! low priority touches them, woken by the cell when half of them are used
//! up (architecture section 5: "zero ahead"). They are few for a cell that uses
//! little more, since they are the host's memory, and twice as many each time
//! that they were soon used up.
#![allow(unsafe_code, reason = "makes host calls on the cell's memory, and waits on its futex")]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use atoll_abi::layout::{BLOCK, block_in_order};

use crate::extents::Extents;
use crate::memory::headroom;

/// Nice value of the thread: it goes on beside busy cores, and holds none of them up.
const NICE: i32 = 10;

/// Blocks to have ready at first.
const READY: u64 = 2;

/// The most blocks to have ready, for a cell of so many: 1/64, between 16 and 128 MiB.
fn ready_for(total: u64) -> u64 {
    (total / 64).clamp(8, 64)
}

/// If half of what was ready is used up within that time, twice as much is ready from then on.
const SOON: Duration = Duration::from_secs(1);

/// The part of what the host has left that a cell's ready memory may be: one of so many.
const SHARE: u64 = 8;

/// Has memory ready for the cell, from now on, until all of it is.
pub(crate) fn start(extents: Arc<Extents>) {
    let named = std::thread::Builder::new().name("atoll-ahead".into());
    // Without it the cell waits for its memory itself.
    let _ = named.spawn(move || work(&extents, READY, SOON));
}

/// `most`: blocks to have ready at first.
fn work(extents: &Extents, mut most: u64, soon: Duration) {
    let control = extents.control();
    // SAFETY: of this thread alone.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
    let (mixed, fixed) = extents.zones();
    // Blocks are counted in order of use.
    let total = || mixed + (extents.memory.there() / BLOCK).saturating_sub(fixed);
    let (mut done, mut begun) = (0, Instant::now());
    let used = || u64::from(control.ahead.used_to.load(Ordering::SeqCst));
    loop {
        // A limit of this process's control group counts what is made here, and a cell is not to be killed for
        // memory that it may never need.
        let ready = most.min(headroom() / SHARE / BLOCK);
        let mut seen = used();
        let mut made = ready > 0;
        while made && done.max(seen) < seen.saturating_add(ready).min(total()) {
            let number = done.max(seen);
            // In the mapping; makes pages and changes nothing in them. If it fails, the cell will
            // notice when it needs them.
            let populate = |p: *mut u8| {
                // SAFETY: as said.
                unsafe { libc::madvise(p.cast(), BLOCK as usize, libc::MADV_POPULATE_WRITE) == 0 }
            };
            made = extents
                .memory
                .range(block_in_order(number, fixed, mixed) * BLOCK, BLOCK)
                .is_some_and(populate);
            done = number + 1;
            seen = used();
        }
        let mut is_ahead = extents.is_ahead();
        if !made || done.max(seen) >= total() {
            // If there is more one day, another one begins.
            *is_ahead = false;
            return;
        }
        drop(is_ahead);
        // The cell rings when it gets there. It may have, before it could know: then it is seen here.
        let tell_at = done.saturating_sub(ready / 2).max(seen + 1);
        control.ahead.tell_at.store(tell_at as u32, Ordering::SeqCst);
        let seen = control.ahead.used_to.load(Ordering::SeqCst);
        if u64::from(seen) < tell_at {
            let word = control.ahead.used_to.as_ptr();
            // SAFETY: the word is in the mapping.
            unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, seen, 0) };
        }
        if begun.elapsed() < soon && used() >= tell_at {
            most = (most * 2).min(ready_for(total()));
        }
        begun = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;
    use std::sync::Mutex;

    use atoll_abi::control::Control;
    use atoll_abi::layout::Sizes;

    use super::*;
    use crate::memory::{Mapping, anonymous};

    const TOTAL: u64 = 16;

    fn mapped(size: u64) -> (File, Arc<Mapping>) {
        let file = anonymous("test", size).unwrap();
        let map = Arc::new(Mapping::new(&file, size).unwrap());
        (file, map)
    }

    fn extents(control: Arc<Mapping>, least: u64) -> Arc<Extents> {
        let (file, memory) = mapped(TOTAL * BLOCK);
        let sizes = Sizes { most: TOTAL * BLOCK, now: TOTAL * BLOCK, least };
        let ahead = Mutex::new(true);
        Arc::new(Extents { control, memory, file, sizes, cores: 1, is_huge: true, ahead })
    }

    /// Is there memory behind a block of a file?
    fn has(file: &File, number: u64) -> bool {
        let at = (number * BLOCK) as i64;
        // SAFETY: a descriptor that stays open meanwhile.
        unsafe { libc::lseek(file.as_raw_fd(), at, libc::SEEK_DATA) == at }
    }

    /// As much is ready as is asked for, more when the cell gets on, no more than there is; and what
    /// the cell has written stays.
    #[test]
    fn stays_ahead() {
        let (_file, control) = mapped((size_of::<Control>() as u64).next_multiple_of(4096));
        let extents = extents(control.clone(), 0);
        let (file, memory) = (&extents.file, &extents.memory);
        // SAFETY: zeroes are a valid control area; the mapping outlives this.
        let c = unsafe { &*control.base().cast::<Control>() };
        c.ahead.used_to.store(1, Ordering::Relaxed);
        // SAFETY: in the mapping, which nobody else uses yet.
        unsafe { memory.base().write(7) };
        let thread = {
            let extents = extents.clone();
            std::thread::spawn(move || work(&extents, 8, SOON))
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
            work(&extents, 8, SOON);
        }
        // SAFETY: in the mapping, which nobody else uses any more.
        assert_eq!(unsafe { memory.base().read() }, 7);
    }

    /// Little is ready of what is slowly used up; of what is soon, twice as much each time.
    #[test]
    fn grows_with_use() {
        // What the cell uses; when it is to ring then; the last block that is there.
        for (soon, sequence) in [
            (Duration::ZERO, &[(1, 2, 2), (2, 3, 3), (3, 4, 4), (9, 10, 10), (13, 14, 14), (14, 14, 15)][..]),
            (Duration::MAX, &[(1, 2, 2), (2, 4, 5), (4, 8, 11), (8, 8, 15)]),
        ] {
            let (_file, control) = mapped((size_of::<Control>() as u64).next_multiple_of(4096));
            let extents = extents(control.clone(), 0);
            // SAFETY: zeroes are a valid control area; the mapping outlives this.
            let c = unsafe { &*control.base().cast::<Control>() };
            c.ahead.used_to.store(1, Ordering::Relaxed);
            let thread = {
                let extents = extents.clone();
                std::thread::spawn(move || work(&extents, READY, soon))
            };
            for (used_to, tell_at, last) in sequence {
                c.ahead.used_to.store(*used_to, Ordering::SeqCst);
                // SAFETY: the word is in the mapping.
                unsafe { libc::syscall(libc::SYS_futex, c.ahead.used_to.as_ptr(), libc::FUTEX_WAKE, 1) };
                let begun = Instant::now();
                let is_so = || {
                    let none_behind = *last + 1 == TOTAL || !has(&extents.file, *last + 1);
                    c.ahead.tell_at.load(Ordering::SeqCst) == *tell_at
                        && has(&extents.file, *last)
                        && none_behind
                };
                while !is_so() {
                    assert!(begun.elapsed() < Duration::from_secs(60), "used {used_to}");
                    std::thread::yield_now();
                }
            }
            thread.join().unwrap();
        }
    }

    /// What serves the runtime alone is not made ready, nor what has been cut off; what comes is zeroes.
    #[test]
    fn follows_what_is_there() {
        let (_file, control) = mapped((size_of::<Control>() as u64).next_multiple_of(4096));
        let extents = extents(control, 12 * BLOCK);
        let pages = || extents.file.metadata().unwrap().blocks() * 512;
        extents.set(14 * BLOCK).unwrap();
        // 5 blocks for a start (a table and 4), then those behind the 12th.
        assert_eq!(extents.zones(), (5, 12));
        extents.control().ahead.used_to.store(1, Ordering::SeqCst);
        work(&extents, 8, SOON);
        assert_eq!(pages(), 6 * BLOCK);
        assert!(!*extents.is_ahead());
        let last = extents.memory.range(13 * BLOCK, BLOCK).unwrap();
        // SAFETY: in the mapping, of which this is the only user.
        unsafe { last.write(7) };
        extents.set(12 * BLOCK).unwrap();
        assert_eq!((pages(), extents.sizes().now), (4 * BLOCK, 12 * BLOCK));
        assert!(extents.memory.range(13 * BLOCK, BLOCK).is_none());
        // Who is in the middle of an access gets by, and nothing of it stays.
        // SAFETY: mapped.
        unsafe { last.write(8) };
        *extents.is_ahead() = true;
        extents.set(16 * BLOCK).unwrap();
        // SAFETY: mapped.
        assert_eq!(unsafe { last.read() }, 0);
    }
}
