//! A cell's runtime: from an ELF file to mapped frames of the cell.
#![allow(unsafe_code, reason = "fills frames by the direct map")]

use atoll_abi::layout::{IMAGE_MAX, RUNTIME_BASE};
use elf::ElfBytes;
use elf::abi::{DT_RELA, DT_RELASZ, ET_DYN, PF_W, PF_X, PT_GNU_RELRO, PT_LOAD, R_X86_64_RELATIVE};
use elf::endian::LittleEndian;
use elf::parse::ParsingTable;
use elf::relocation::Rela;
use elf::segment::ProgramHeader;

use crate::entry::DIRECT;
use crate::memory::{FRAME, Frames};
use crate::paging::{Access, AddressSpace};

type Result<T> = core::result::Result<T, &'static str>;

const DAMAGED: &str = "the runtime's file is damaged";
const NO_MEMORY: &str = "the cell has too little memory for its runtime";

fn down(n: u64) -> u64 {
    n / FRAME * FRAME
}

/// An image in frames: where it is in physical memory, and at which address it will be seen.
struct Placed {
    physical: u64,
    start: u64,
    end: u64,
}

impl Placed {
    /// The bytes at an address, for writing.
    fn at(&mut self, address: u64, len: u64) -> Result<&mut [u8]> {
        let inside = address >= self.start && address.checked_add(len).is_some_and(|end| end <= self.end);
        if !inside {
            return Err(DAMAGED);
        }
        let at = (DIRECT + self.physical + (address - self.start)) as *mut u8;
        // SAFETY: frames that were taken for the image, which nobody else has yet.
        Ok(unsafe { core::slice::from_raw_parts_mut(at, len as usize) })
    }
}

/// Copies a runtime into frames of a cell, relocates it and maps it; where it begins.
pub fn load(image: &[u8], space: &AddressSpace, frames: &mut Frames) -> Result<u64> {
    let elf =
        ElfBytes::<LittleEndian>::minimal_parse(image).map_err(|_| "the runtime's file is no ELF program")?;
    let segments = elf.segments().ok_or(DAMAGED)?;
    let base = if elf.ehdr.e_type == ET_DYN { RUNTIME_BASE } else { 0 };
    let loaded = || segments.iter().filter(|s| s.p_type == PT_LOAD && s.p_memsz > 0);
    let (mut start, mut end) = (u64::MAX, 0);
    for s in loaded() {
        let from = base.wrapping_add(s.p_vaddr);
        let to = from.checked_add(s.p_memsz).ok_or(DAMAGED)?;
        if from < RUNTIME_BASE || to > RUNTIME_BASE + IMAGE_MAX {
            return Err("the runtime is not made for a cell's addresses");
        }
        (start, end) = (start.min(down(from)), end.max(to.next_multiple_of(FRAME)));
    }
    if start >= end {
        return Err(DAMAGED);
    }
    let physical = frames.take((end - start) / FRAME).ok_or(NO_MEMORY)?;
    let mut placed = Placed { physical, start, end };
    for s in loaded() {
        let content = elf.segment_data(&s).map_err(|_| DAMAGED)?;
        if content.len() as u64 > s.p_memsz {
            return Err(DAMAGED);
        }
        placed.at(base + s.p_vaddr, content.len() as u64)?.copy_from_slice(content);
    }
    relocate(image, &elf, base, &mut placed)?;
    let constant = segments.iter().find(|s| s.p_type == PT_GNU_RELRO);
    let constant =
        constant.map(|s| base.wrapping_add(s.p_vaddr)..down(base.wrapping_add(s.p_vaddr + s.p_memsz)));
    let mut mapped_to = start;
    for s in loaded() {
        let (from, to) = (down(base + s.p_vaddr), (base + s.p_vaddr + s.p_memsz).next_multiple_of(FRAME));
        if from < mapped_to {
            return Err("the runtime's segments share pages");
        }
        mapped_to = to;
        // What only relocation writes to is not written any more.
        let split = constant.as_ref().filter(|c| c.start >= from && c.end <= to).map_or(from, |c| c.end);
        for (from, to, access) in [(from, split, Access::Read), (split, to, access(&s)?)] {
            if from < to {
                space.map_user(frames, from, physical + (from - start), to - from, access)?;
            }
        }
    }
    // A far one would have the way to ring 3 fault in ring 0.
    let entry = base.wrapping_add(elf.ehdr.e_entry);
    if (start..end).contains(&entry) { Ok(entry) } else { Err("the runtime begins outside of itself") }
}

fn access(s: &ProgramHeader) -> Result<Access> {
    match (s.p_flags & PF_W != 0, s.p_flags & PF_X != 0) {
        (true, true) => Err("the runtime has a segment that can be written and executed"),
        (true, false) => Ok(Access::Write),
        (false, true) => Ok(Access::Run),
        (false, false) => Ok(Access::Read),
    }
}

/// Adds the base to what the file says is an address of its own.
fn relocate(image: &[u8], elf: &ElfBytes<LittleEndian>, base: u64, placed: &mut Placed) -> Result<()> {
    let Some(dynamic) = elf.dynamic().map_err(|_| DAMAGED)? else { return Ok(()) };
    let value = |tag| dynamic.iter().find(|d| d.d_tag == tag).map(|d| d.d_val());
    let (Some(at), Some(len)) = (value(DT_RELA), value(DT_RELASZ)) else { return Ok(()) };
    let segments = elf.segments().ok_or(DAMAGED)?;
    let holds = |s: &ProgramHeader| s.p_vaddr <= at && at - s.p_vaddr < s.p_filesz;
    let segment = segments.iter().find(|s| s.p_type == PT_LOAD && holds(s)).ok_or(DAMAGED)?;
    let from = usize::try_from(segment.p_offset + (at - segment.p_vaddr)).map_err(|_| DAMAGED)?;
    let bytes = image.get(from..).and_then(|b| b.get(..len as usize)).ok_or(DAMAGED)?;
    let table = ParsingTable::<LittleEndian, Rela>::new(LittleEndian, elf.ehdr.class, bytes);
    for r in table.iter() {
        if r.r_type != R_X86_64_RELATIVE {
            return Err("the runtime has a relocation that needs symbols");
        }
        let value = base.wrapping_add(r.r_addend as u64);
        placed.at(base.wrapping_add(r.r_offset), 8)?.copy_from_slice(&value.to_le_bytes());
    }
    Ok(())
}
