//! Frames of physical memory, taken at boot and never given back: for the nucleus itself (page tables,
//! the cores' stacks) from where most is free, for a cell's image from the cell's own memory. And which frames of a
//! cell hold its page tables ([`Pool`]).
#![allow(unsafe_code, reason = "clears frames by the direct map")]

use arrayvec::ArrayVec;
use atoll_abi::errno::Errno;
use atoll_abi::layout::BLOCK;
use atoll_partition::{EXTENTS_MAX, Extent, without};

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

/// A block of a cell's memory. All frames of a block are of one type, and that changes only while none is in use:
/// the cell's own, which its programs may map, or page tables, which nothing in ring 3 maps. What lies before the
/// first block (the runtime, the control area, the first page tables) is neither, for as long as the cell lives.
#[derive(Default)]
struct Block {
    /// The cell's own: its mappings in the programs' part of all spaces, each frame of a mapping counted. Page tables:
    /// those in use.
    uses: u64,
    /// Does it hold page tables?
    tables: bool,
    /// How many of its frames have been a page table.
    tried: u16,
    /// Physical address of the first of those that are not one now; each begins with the next one's. 0: none.
    free: u64,
    /// One more than the number of the next block that has room for page tables; 0: it is the last.
    next: u32,
    /// It is to hold page tables when no core remembers anything from before the change of one number less; 0: it does not wait.
    waits: u64,
}

impl Block {
    fn has_room(&self) -> bool {
        self.uses < BLOCK / FRAME
    }
}

/// A cell's memory, and which frames of it are page tables.
pub struct Pool {
    /// In front of the blocks.
    front: Frames,
    /// As in a block.
    front_free: u64,
    /// The memory: where each extent of it is, and its offset in the cell's memory. All are multiples of a block.
    extents: ArrayVec<(Extent, u64), EXTENTS_MAX>,
    blocks: &'static mut [Block],
    /// As `next` in a block: the first one with room.
    roomy: u32,
    /// Page tables that cores may remember yet, first and last; 0: there are none. Each begins with the next one's address and, times two,
    /// the number of the change that took it out: to who remembers it, neither is an entry that is present.
    later: (u64, u64),
}

impl Pool {
    /// Bytes that it needs to know all blocks of so much memory.
    pub const fn size(memory: u64) -> u64 {
        memory / BLOCK * size_of::<Block>() as u64
    }

    /// A pool with tables in `front`, over this memory, that keeps its own books at `books`: [`Pool::size`] bytes of
    /// zeroes that nobody else uses.
    pub fn new(front: Frames, extents: ArrayVec<Extent, EXTENTS_MAX>, books: u64) -> Pool {
        let mut memory = 0;
        let offset = |e: Extent| {
            memory += e.len;
            (e, memory - e.len)
        };
        let extents = extents.into_iter().map(offset).collect();
        // SAFETY: such frames, in the direct map; zeroes are a block that nothing uses.
        let blocks = unsafe {
            core::slice::from_raw_parts_mut((DIRECT + books) as *mut Block, (memory / BLOCK) as usize)
        };
        Pool { front, front_free: 0, extents, blocks, roomy: 0, later: (0, 0) }
    }

    /// Number of the block that a physical address lies in.
    fn block_at(&self, physical: u64) -> Option<usize> {
        self.extents.iter().find_map(|(e, offset)| {
            let within = physical.wrapping_sub(e.start);
            (within < e.len).then(|| ((offset + within) / BLOCK) as usize)
        })
    }

    /// Where the first of these bytes of the cell's memory are: as many as are behind each other.
    pub fn piece(&self, offset: u64, len: u64) -> Option<Extent> {
        self.extents.iter().find_map(|(e, first)| {
            let within = offset.wrapping_sub(*first);
            (within < e.len).then(|| Extent { start: e.start + within, len: len.min(e.len - within) })
        })
    }

    /// Physical address of block `n`, if there is one.
    fn address(&self, n: usize) -> Option<u64> {
        Some(self.piece((n as u64).checked_mul(BLOCK)?, BLOCK)?.start)
    }

    /// Is `[offset, offset + len)` of the cell's memory all its own?
    pub fn is_own(&self, offset: u64, len: u64) -> bool {
        let Some(end) = offset.checked_add(len) else { return false };
        let blocks = self.blocks.get((offset / BLOCK) as usize..end.div_ceil(BLOCK) as usize);
        blocks.is_some_and(|blocks| blocks.iter().all(|b| !b.tables))
    }

    /// Programs map so many frames more, those of the cell's own memory from this offset on.
    pub fn mapped(&mut self, mut offset: u64, mut frames: u64) {
        while frames > 0 {
            let n = frames.min((BLOCK - offset % BLOCK) / FRAME);
            self.blocks[(offset / BLOCK) as usize].uses += n;
            frames -= n;
            offset += n * FRAME;
        }
    }

    /// Programs map so many frames fewer from this physical address on, in one block.
    pub fn unmapped(&mut self, physical: u64, frames: u64) {
        if let Some(n) = self.block_at(physical) {
            self.blocks[n].uses -= frames;
        }
    }

    /// A frame of zeroes, for a page table.
    pub fn take(&mut self) -> Option<u64> {
        let at = if self.front_free != 0 {
            pop(&mut self.front_free)
        } else if let Some(at) = self.front.take(1) {
            return Some(at);
        } else {
            let n = self.roomy.checked_sub(1)? as usize;
            let start = self.address(n)?;
            let block = &mut self.blocks[n];
            block.uses += 1;
            if !block.has_room() {
                self.roomy = block.next;
            }
            if block.free != 0 {
                pop(&mut block.free)
            } else {
                block.tried += 1;
                start + u64::from(block.tried - 1) * FRAME
            }
        };
        // SAFETY: a frame of the pool's that nobody uses, in the direct map.
        unsafe { ((DIRECT + at) as *mut u8).write_bytes(0, FRAME as usize) };
        Some(at)
    }

    /// Gives one back that no core can reach any more.
    pub fn give(&mut self, at: u64) {
        let Some(n) = self.block_at(at) else { return push(&mut self.front_free, at) };
        let block = &mut self.blocks[n];
        if !block.has_room() {
            block.next = self.roomy;
            self.roomy = n as u32 + 1;
        }
        block.uses -= 1;
        push(&mut block.free, at);
    }

    /// Gives one back when no core remembers it any more that refers to it: after the change of this number.
    pub fn give_later(&mut self, at: u64, number: u64) {
        if number == 0 {
            return self.give(at);
        }
        // SAFETY: a page table of the pool's without entries that nothing refers to, in the direct map; who remembers it
        // reads words that are not present.
        unsafe { ((DIRECT + at) as *mut [u64; 2]).write_volatile([0, number << 1]) };
        match &mut self.later {
            (0, _) => self.later = (at, at),
            (_, last) => {
                // SAFETY: the last one is such a table, too.
                unsafe { ((DIRECT + *last) as *mut u64).write_volatile(at) };
                *last = at;
            }
        }
    }

    /// Gives back those for which the others have forgotten what was there before the change of that number.
    pub fn collect(&mut self, have_forgotten: impl Fn(u64) -> bool) {
        while self.later.0 != 0 {
            let at = self.later.0;
            // SAFETY: written by `give_later`.
            let [next, number] = unsafe { ((DIRECT + at) as *const [u64; 2]).read_volatile() };
            if !have_forgotten(number >> 1) {
                return;
            }
            self.later.0 = next;
            self.give(at);
        }
    }

    /// The block at this offset of the cell's memory is to hold page tables: from here on nothing of it can be mapped.
    /// Its physical address; EBUSY: something of it is mapped. It can't be used before [`Pool::add`].
    pub fn retype(&mut self, offset: u64) -> Result<u64, Errno> {
        let n = usize::try_from(offset / BLOCK).map_err(|_| Errno::EINVAL)?;
        let at = self.address(n).filter(|_| offset.is_multiple_of(BLOCK)).ok_or(Errno::EINVAL)?;
        let block = &mut self.blocks[n];
        if block.tables || block.uses != 0 {
            return Err(Errno::EBUSY);
        }
        *block = Block { tables: true, ..Block::default() };
        Ok(at)
    }

    /// The change that a block waits for before it can be used, if it is one that does.
    pub fn retyping(&self, offset: u64) -> Option<u64> {
        self.blocks
            .get((offset / BLOCK) as usize)
            .filter(|_| offset.is_multiple_of(BLOCK))?
            .waits
            .checked_sub(1)
    }

    /// It waits for this one.
    pub fn set_retyping(&mut self, offset: u64, number: u64) {
        self.blocks[(offset / BLOCK) as usize].waits = number + 1;
    }

    /// Page tables can be taken from this block, if it waits for the change of this number, which is over: somebody else may have seen
    /// to it, and it may even have been taken back and given again.
    pub fn add(&mut self, offset: u64, number: u64) {
        let n = (offset / BLOCK) as usize;
        let block = &mut self.blocks[n];
        if block.waits == number + 1 {
            block.waits = 0;
            block.next = self.roomy;
            self.roomy = n as u32 + 1;
        }
    }

    /// Makes a block the cell's own again in which there is no page table now; its offset and physical address.
    pub fn take_back(&mut self) -> Option<(u64, u64)> {
        let (mut before, mut link) = (0, self.roomy);
        while link != 0 {
            let n = link as usize - 1;
            let next = self.blocks[n].next;
            if self.blocks[n].uses == 0 {
                match before {
                    0 => self.roomy = next,
                    b => self.blocks[b as usize - 1].next = next,
                }
                self.blocks[n] = Block::default();
                return Some((n as u64 * BLOCK, self.address(n)?));
            }
            (before, link) = (link, next);
        }
        None
    }
}

fn pop(list: &mut u64) -> u64 {
    let at = *list;
    // SAFETY: a frame of a pool's that nobody uses, in the direct map.
    *list = unsafe { ((DIRECT + at) as *const u64).read() };
    at
}

fn push(list: &mut u64, at: u64) {
    // SAFETY: as above.
    unsafe { ((DIRECT + at) as *mut u64).write(*list) };
    *list = at;
}
