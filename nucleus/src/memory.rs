//! Frames of physical memory, taken at boot and never given back: for the nucleus itself (page tables,
//! the cores' stacks) from behind its image, for a cell's page tables and image from the cell's own memory.
#![allow(unsafe_code, reason = "clears frames by the direct map")]

use atoll_partition::Extent;

use crate::entry::DIRECT;
use crate::pvh::Boot;

/// Size of a frame, bytes.
pub const FRAME: u64 = 4096;
/// The nucleus's own frames are below this: a core that starts can reach its page tables only there.
const REACHABLE: u64 = 4 << 30;

/// Takes frames from behind the image upward.
pub struct Frames {
    next: u64,
    end: u64,
}

impl Frames {
    /// From the memory behind `image_end` (a physical address) up to the next module, or what is not memory.
    pub fn new(boot: &Boot, image_end: u64) -> Result<Frames, &'static str> {
        let region = boot
            .ram()
            .find(|r| (r.start..r.start + r.len).contains(&image_end))
            .ok_or("there is no memory where the nucleus was loaded")?;
        let mut end = (region.start + region.len).min(REACHABLE);
        for module in boot.modules.iter().filter(|m| m.start + m.len > image_end) {
            end = end.min(module.start.max(image_end));
        }
        Ok(Frames { next: image_end.next_multiple_of(FRAME), end: end / FRAME * FRAME })
    }

    /// From the front of a cell's own memory.
    pub fn of(extent: Extent) -> Frames {
        Frames { next: extent.start, end: extent.start + extent.len }
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
