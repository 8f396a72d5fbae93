//! A cell: its space, its image, and what it may ask of the nucleus.
//!
//! All that a cell needs lies in its own memory, page tables included: it can exhaust nobody else. The
//! nucleus reads what a cell points to by walking the cell's page tables, never through the pointer.
#![allow(unsafe_code, reason = "fills frames, and reads a cell's memory by the direct map")]

use core::sync::atomic::{AtomicUsize, Ordering};

use atoll_partition::{BLOCK, Cell as Owns, Extent};
use elf::ElfBytes;
use elf::abi::{PF_W, PF_X, PT_LOAD};
use elf::endian::LittleEndian;

use crate::console::{Console, Turn};
use crate::cpu::{self, Core};
use crate::entry::DIRECT;
use crate::memory::{FRAME, Frames};
use crate::paging::{Access, AddressSpace};
use crate::say;

/// Where an image may lie, the same in all cells (`atoll_abi::layout::RUNTIME_BASE`, `IMAGE_MAX`).
const IMAGE: u64 = 0x4000_0000_0000;
const IMAGE_MAX: u64 = 32 << 20;
/// Where a cell's memory is mapped (`atoll_abi::layout::DIRECT_MAP`).
pub const MEMORY: u64 = IMAGE + (1 << 40);
/// Status of a cell that an exception ended: as of a program that was killed by SIGSEGV.
pub const CRASHED: u64 = 139;
/// Room for the page tables of a cell's memory, bytes: one for each GiB, and some.
const TABLES: u64 = 512 << 10;
/// Longest text of one `log` call, bytes.
const LOG_MAX: u64 = 1024;

/// Numbers of the calls.
mod call {
    /// `end(status)`.
    pub const END: u64 = 0;
    /// `log(text, length)`.
    pub const LOG: u64 = 1;
}

/// Errors of calls, as Linux has them.
const EFAULT: i64 = -14;
const EINVAL: i64 = -22;
const ENOSYS: i64 = -38;

/// Cells that run.
static RUNNING: AtomicUsize = AtomicUsize::new(0);
/// Cells that ended with another status than 0.
static FAILED: AtomicUsize = AtomicUsize::new(0);

/// A cell.
pub struct Cell {
    name: [u8; 32],
    name_len: usize,
    /// Its space.
    pub space: AddressSpace,
    /// Where it begins.
    pub entry: u64,
    /// Bytes of memory at [`MEMORY`].
    pub memory: u64,
}

type Result<T> = core::result::Result<T, &'static str>;

impl Cell {
    /// A cell that has this memory and runs this image.
    pub fn new(name: &str, image: &[u8], nucleus: &AddressSpace, owns: &Owns) -> Result<Cell> {
        const SMALL: &str = "it has too little memory";
        let (first, others) = owns.extents.split_first().ok_or(SMALL)?;
        let mut frames = Frames::of(*first);
        let space = nucleus.for_cell(&mut frames)?;
        let entry = load(image, &space, &mut frames)?;
        // What is behind it is the cell's to use, but for the page tables for that.
        let rest = (frames.next() + TABLES).next_multiple_of(BLOCK);
        let end = first.start + first.len;
        if rest > end {
            return Err(SMALL);
        }
        frames.keep_below(rest);
        let mut memory = 0;
        for extent in core::iter::once(&Extent { start: rest, len: end - rest }).chain(others) {
            space.map_user(&mut frames, MEMORY + memory, extent.start, extent.len, Access::Write)?;
            memory += extent.len;
        }
        let mut bytes = [0; 32];
        let name_len = name.len().min(bytes.len());
        bytes[..name_len].copy_from_slice(&name.as_bytes()[..name_len]);
        RUNNING.fetch_add(1, Ordering::Relaxed);
        Ok(Cell { name: bytes, name_len, space, entry, memory })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        core::str::from_utf8(&self.name[..self.name_len]).unwrap_or("?")
    }

    /// It has ended; this core is free.
    pub fn end(&self, status: u64) -> ! {
        say!("cell {} ended with status {status}", self.name());
        if status != 0 {
            FAILED.fetch_add(1, Ordering::Relaxed);
        }
        if RUNNING.fetch_sub(1, Ordering::AcqRel) == 1 {
            crate::end(FAILED.load(Ordering::Relaxed) == 0)
        }
        cpu::stop()
    }

    /// `log`.
    fn log(&self, text: u64, len: u64) -> i64 {
        use core::fmt::Write as _;
        if len > LOG_MAX {
            return EINVAL;
        }
        let (mut line, mut done) = ([0u8; LOG_MAX as usize], 0);
        while done < len {
            let Some((at, room)) = text.checked_add(done).and_then(|at| self.space.look(at)) else {
                return EFAULT;
            };
            let n = room.min(len - done) as usize;
            // SAFETY: a page that the cell can read, in the direct map; its bytes may change meanwhile, and any will do.
            unsafe { line.as_mut_ptr().add(done as usize).copy_from((DIRECT + at) as *const u8, n) };
            done += n as u64;
        }
        let _turn = Turn::take();
        let mut console = Console;
        // It can't fail.
        let _ = write!(console, "{}: ", self.name());
        for byte in &line[..len as usize] {
            let shown = if byte.is_ascii_graphic() || *byte == b' ' { *byte } else { b'?' };
            let _ = console.write_char(shown as char);
        }
        let _ = console.write_char('\n');
        0
    }
}

/// Copies an image into frames of the cell and maps it; where it begins.
fn load(image: &[u8], space: &AddressSpace, frames: &mut Frames) -> Result<u64> {
    const DAMAGED: &str = "the image is damaged";
    let elf = ElfBytes::<LittleEndian>::minimal_parse(image).map_err(|_| "the image is no ELF program")?;
    let segments = elf.segments().ok_or(DAMAGED)?;
    for s in segments.iter().filter(|s| s.p_type == PT_LOAD && s.p_memsz > 0) {
        let (start, len) = (s.p_vaddr, s.p_memsz);
        let content = elf.segment_data(&s).map_err(|_| DAMAGED)?;
        let end = start.checked_add(len).filter(|end| start >= IMAGE && *end <= IMAGE + IMAGE_MAX);
        let end = end.ok_or("the image is not made for a cell's addresses")?;
        if content.len() as u64 > len {
            return Err(DAMAGED);
        }
        let first = start / FRAME * FRAME;
        let pages = (end - first).div_ceil(FRAME);
        let at = frames.take(pages).ok_or("the cell has too little memory for its image")?;
        // SAFETY: fresh frames of the cell, which are long enough.
        unsafe {
            let to = (DIRECT + at + (start - first)) as *mut u8;
            to.copy_from_nonoverlapping(content.as_ptr(), content.len());
        }
        let (write, run) = (s.p_flags & PF_W != 0, s.p_flags & PF_X != 0);
        let access = match (write, run) {
            (true, true) => return Err("the image has a segment that can be written and executed"),
            (true, false) => Access::Write,
            (false, true) => Access::Run,
            (false, false) => Access::Read,
        };
        space.map_user(frames, first, at, pages * FRAME, access)?;
    }
    // A far one would have the way to ring 3 fault in ring 0.
    let entry = elf.ehdr.e_entry;
    if (IMAGE..IMAGE + IMAGE_MAX).contains(&entry) {
        Ok(entry)
    } else {
        Err("the image begins outside of itself")
    }
}

/// A call of ring 3.
#[unsafe(no_mangle)]
extern "C" fn nucleus_call(a: u64, b: u64, _c: u64, _d: u64, number: u64) -> i64 {
    let Some(cell) = Core::here().cell else { return ENOSYS };
    match number {
        call::END => cell.end(a & 0xff),
        call::LOG => cell.log(a, b),
        _ => ENOSYS,
    }
}
