//! The runtime's ELF file, as the bytes that will be mapped.

use object::LittleEndian as LE;
use object::elf;
use object::read::elf::{Dyn, FileHeader, ProgramHeader, Rela};
use std::fs::File;
use std::ops::Range;

use crate::memory::Content;
use crate::{Error, Result};
use atoll_abi::layout::{IMAGE_MAX, PAGE, RUNTIME_BASE};

/// The runtime, to be mapped at [`RUNTIME_BASE`]. Code and read-only data are
/// mapped from the file as they are; only the writable part has relocations.
pub struct Image {
    /// The file.
    pub file: File,
    content: Content,
    /// Read-only pages.
    pub runs: Vec<Run>,
    /// Where the writable pages start, bytes from the image's start.
    pub data_start: u64,
    /// How many bytes of writable pages there are, and before them of those that only relocation writes to.
    pub data_len: u64,
    /// How many bytes of these only relocation, which is done by [`Image::place`], writes to.
    pub constant: u64,
    /// Address to jump to.
    pub entry: u64,
    /// What the file has of the writable pages: where that goes, bytes from `data_start`, and where it lies in the file.
    pieces: Vec<(usize, Range<usize>)>,
    /// Where the relocations lie in the file.
    relocations: Range<usize>,
}

/// Pages that are mapped from the file.
pub struct Run {
    /// Where, bytes from the image's start.
    pub start: u64,
    /// How many bytes.
    pub len: u64,
    /// From where in the file.
    pub offset: u64,
    /// It holds code.
    pub code: bool,
}

fn up(n: u64) -> u64 {
    n.next_multiple_of(PAGE)
}

fn bad(what: &str) -> Error {
    Error::new(format!("the runtime's file is damaged: {what}"))
}

impl Image {
    /// Reads what is needed of an ELF file.
    pub fn read(file: &File) -> Result<Image> {
        let failed = |e| Error::with("reading the runtime's file", e);
        let content = Content::of(file).map_err(failed)?;
        let bytes = content.bytes();
        let header = elf::FileHeader64::<LE>::parse(bytes)
            .map_err(|e| Error::with("the runtime's file is no ELF program", e))?;
        let segments = header
            .program_headers(LE, bytes)
            .map_err(|e| Error::with("the runtime's program headers are damaged", e))?;
        let mut runs: Vec<Run> = Vec::new();
        let (mut writable, mut pieces): (Option<Range<u64>>, _) = (None, Vec::new());
        let relro = segments.iter().find(|s| s.p_type(LE) == elf::PT_GNU_RELRO);
        let relro_end = relro.map_or(0, |s| s.p_vaddr(LE).saturating_add(s.p_memsz(LE)) & !(PAGE - 1));
        for s in segments.iter().filter(|s| s.p_type(LE) == elf::PT_LOAD) {
            let (vaddr, offset, len) = (s.p_vaddr(LE), s.p_offset(LE), s.p_memsz(LE));
            let end = vaddr.checked_add(len).filter(|e| *e <= IMAGE_MAX).ok_or_else(|| bad("too large"))?;
            let start = vaddr & !(PAGE - 1);
            let before = writable.as_ref().map(|w| w.end);
            if before.or(runs.last().map(|r| r.start + r.len)).is_some_and(|end| end > start) {
                return Err(bad("segments that share pages"));
            }
            let in_file = offset as usize..offset.saturating_add(s.p_filesz(LE)) as usize;
            if bytes.get(in_file.clone()).is_none() {
                return Err(bad("a segment lies outside the file"));
            }
            if (s.p_flags(LE) & elf::PF_W).0 != 0 {
                if s.p_filesz(LE) > len {
                    return Err(bad("a segment is longer in the file than in memory"));
                }
                let first = writable.get_or_insert(start..start);
                first.end = up(end);
                pieces.push(((vaddr - first.start) as usize, in_file));
            } else {
                if writable.is_some() {
                    return Err(bad("the writable segments are not the last"));
                }
                if s.p_filesz(LE) != len || vaddr % PAGE != offset % PAGE {
                    return Err(bad("a read-only segment can't be mapped"));
                }
                let code = (s.p_flags(LE) & elf::PF_X).0 != 0;
                runs.push(Run { start, len: up(end) - start, offset: offset & !(PAGE - 1), code });
            }
        }
        let writable = writable.ok_or_else(|| bad("no writable segment"))?;
        let data_len = writable.end - writable.start;
        let (entry, relocations) = (RUNTIME_BASE + header.e_entry(LE), relocations(segments, bytes)?);
        Ok(Image {
            file: file.try_clone().map_err(failed)?,
            runs,
            data_start: writable.start,
            data_len,
            constant: relro_end.saturating_sub(writable.start).min(data_len),
            entry,
            pieces,
            relocations,
            content,
        })
    }

    /// Puts the writable pages where they are to be copied or mapped from: `data_len` bytes, all zero.
    pub fn place(&self, data: &mut [u8]) -> Result<()> {
        let bytes = self.content.bytes();
        for (at, piece) in &self.pieces {
            data[*at..*at + piece.len()].copy_from_slice(&bytes[piece.clone()]);
        }
        let relocations = object::slice_from_all_bytes::<elf::Rela64<LE>>(&bytes[self.relocations.clone()])
            .map_err(|()| bad("the relocations"))?;
        for r in relocations {
            if r.r_type(LE, false) != elf::R_X86_64_RELATIVE {
                return Err(bad("a relocation that needs symbols"));
            }
            let value = RUNTIME_BASE.wrapping_add(r.r_addend(LE) as u64);
            r.r_offset(LE)
                .checked_sub(self.data_start)
                .and_then(|at| data.get_mut(at as usize..)?.get_mut(..8))
                .ok_or_else(|| bad("a relocation outside the writable segment"))?
                .copy_from_slice(&value.to_le_bytes());
        }
        Ok(())
    }
}

/// Where the relocations lie in the file, as the dynamic section says.
fn relocations(segments: &[elf::ProgramHeader64<LE>], bytes: &[u8]) -> Result<Range<usize>> {
    let (mut at, mut len) = (0, 0);
    let dynamic = segments.iter().find_map(|s| s.dynamic(LE, bytes).transpose());
    for entry in dynamic.transpose().map_err(|_| bad("the dynamic section"))?.unwrap_or_default() {
        match entry.d_tag(LE) {
            elf::DT_RELA => at = entry.d_val(LE),
            elf::DT_RELASZ => len = entry.d_val(LE),
            elf::DT_REL | elf::DT_RELR | elf::DT_JMPREL => return Err(bad("other relocations")),
            _ => {}
        }
    }
    if len == 0 {
        return Ok(0..0);
    }
    // A read-only segment has it, which lies in the file as in memory.
    let from = segments.iter().filter(|s| s.p_type(LE) == elf::PT_LOAD).find_map(|s| {
        let into = at.checked_sub(s.p_vaddr(LE)).filter(|into| into.saturating_add(len) <= s.p_filesz(LE))?;
        Some((s.p_offset(LE) + into) as usize)
    });
    from.map(|from| from..from + len as usize).ok_or_else(|| bad("relocations outside the file"))
}
