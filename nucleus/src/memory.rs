//! Frames of physical memory, taken at boot and never given back: for the nucleus itself (page tables,
//! the cores' stacks) from where most is free, for a cell's page tables and image from the cell's own memory.
#![allow(unsafe_code, reason = "clears frames by the direct map")]

use arrayvec::ArrayVec;
use atoll_partition::{Extent, without};

use crate::entry::DIRECT;
use crate::pvh::Boot;

/// Size of a frame, bytes.
pub const FRAME: u64 = 4096;
/// The nucleus's own frames are below this: a core that starts can reach its page tables only there.
const REACHABLE: u64 = 4 << 30;

/// Memory below this is the firmware's and the first instructions' of cores.
pub const LOW: u64 = 1 << 20;

/// Takes frames from the front of a range upward.
pub struct Frames {
    first: u64,
    next: u64,
    end: u64,
}

impl Frames {
    /// From the largest range of memory that holds neither the image nor a module, wherever the loader has put those.
    pub fn new(boot: &Boot, image: Extent) -> Result<Frames, &'static str> {
        let mut kept: ArrayVec<Extent, 16> = boot.modules.iter().copied().collect();
        kept.extend([Extent { start: 0, len: LOW }, image, Extent { start: REACHABLE, len: u64::MAX }]);
        let free = without(boot.ram(), &kept).map_err(|_| "the memory map has too many pieces")?;
        let largest = free.into_iter().max_by_key(|r| r.len).ok_or("there is no memory below 4 GiB")?;
        let end = (largest.start + largest.len) / FRAME * FRAME;
        let first = largest.start.next_multiple_of(FRAME);
        Ok(Frames { first, next: first, end })
    }

    /// From the front of a cell's own memory.
    pub fn of(extent: Extent) -> Frames {
        Frames { first: extent.start, next: extent.start, end: extent.start + extent.len }
    }

    /// What has been taken so far.
    pub fn taken(&self) -> Extent {
        Extent { start: self.first, len: self.next - self.first }
    }

    /// `n` neighbouring frames, all zeroes; their physical address.
    pub fn take(&mut self, n: u64) -> Option<u64> {
        let at = self.next;
        let len = n.checked_mul(FRAME)?;
        if len > self.end.checked_sub(at)? {
            return None;
        }
        self.next = at + len;
        // SAFETY: memory that nobody uses, in the direct map.
        unsafe { ((DIRECT + at) as *mut u8).write_bytes(0, len as usize) };
        Some(at)
    }

    /// Leaves alone what is from `end` (a physical address) on.
    pub fn keep_below(&mut self, end: u64) {
        self.end = self.end.min(end);
    }

    /// Physical address of the first frame that is left.
    pub fn next(&self) -> u64 {
        self.next
    }
}

/// Frames for page tables, out of a cell's memory. Those that were given back come first.
pub struct Pool {
    fresh: Frames,
    /// Physical address of the first that was given back; each begins with the next one's. 0: none.
    free: u64,
}

impl Pool {
    /// What is left of these.
    pub fn new(fresh: Frames) -> Pool {
        Pool { fresh, free: 0 }
    }

    /// A frame of zeroes.
    pub fn take(&mut self) -> Option<u64> {
        if self.free == 0 {
            return self.fresh.take(1);
        }
        let at = self.free;
        // SAFETY: a frame of the pool's that nobody uses, in the direct map.
        unsafe {
            let frame = (DIRECT + at) as *mut u64;
            self.free = frame.read();
            frame.cast::<u8>().write_bytes(0, FRAME as usize);
        }
        Some(at)
    }

    /// Gives one back that no core can reach any more.
    pub fn give(&mut self, at: u64) {
        // SAFETY: as above.
        unsafe { ((DIRECT + at) as *mut u64).write(self.free) };
        self.free = at;
    }
}
