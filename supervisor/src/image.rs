//! The runtime's ELF file, as the bytes that will be mapped.

use object::LittleEndian as LE;
use object::elf;
use object::read::ReadCache;
use object::read::elf::{FileHeader, ProgramHeader, Rela};
use std::fs::File;

use crate::{Error, Result};
use atoll_abi::layout::{IMAGE_MAX, PAGE, RUNTIME_BASE};

/// The runtime, to be mapped at [`RUNTIME_BASE`]. Code and read-only data are
/// mapped from the file as they are; only the writable part has relocations.
pub struct Image {
    /// The file.
    pub file: File,
    /// Read-only pages.
    pub runs: Vec<Run>,
    /// Where the writable pages start, bytes from the image's start.
    pub data_start: u64,
    /// Writable pages, and before them those that only relocation writes to.
    pub data: Vec<u8>,
    /// How many bytes of `data` only relocation, which is done, writes to.
    pub constant: u64,
    /// Address to jump to.
    pub entry: u64,
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

impl Image {
    /// Reads what is needed of an ELF file.
    pub fn read(file: &File) -> Result<Image> {
        let failed = |e| Error::with("reading the runtime's file", e);
        let cache = ReadCache::new(file.try_clone().map_err(failed)?);
        let bytes = &cache;
        let bad = |what: &str| Error::new(format!("the runtime's file is damaged: {what}"));
        let header = elf::FileHeader64::<LE>::parse(bytes)
            .map_err(|e| Error::with("the runtime's file is no ELF program", e))?;
        let segments = header
            .program_headers(LE, bytes)
            .map_err(|e| Error::with("the runtime's program headers are damaged", e))?;
        let mut runs: Vec<Run> = Vec::new();
        let mut writable: Option<(u64, Vec<u8>)> = None;
        let relro = segments.iter().find(|s| s.p_type(LE) == elf::PT_GNU_RELRO);
        let relro_end = relro.map_or(0, |s| s.p_vaddr(LE).saturating_add(s.p_memsz(LE)) & !(PAGE - 1));
        for s in segments.iter().filter(|s| s.p_type(LE) == elf::PT_LOAD) {
            let (vaddr, offset, len) = (s.p_vaddr(LE), s.p_offset(LE), s.p_memsz(LE));
            let end = vaddr.checked_add(len).filter(|e| *e <= IMAGE_MAX).ok_or_else(|| bad("too large"))?;
            let start = vaddr & !(PAGE - 1);
            let before = writable.as_ref().map(|(at, d)| at + d.len() as u64);
            if before.or(runs.last().map(|r| r.start + r.len)).is_some_and(|end| end > start) {
                return Err(bad("segments that share pages"));
            }
            if (s.p_flags(LE) & elf::PF_W).0 != 0 {
                let content = s.data(LE, bytes).map_err(|()| bad("a segment lies outside the file"))?;
                let (first, data) = writable.get_or_insert_with(|| (start, Vec::new()));
                data.resize((up(end) - *first) as usize, 0);
                data.get_mut((vaddr - *first) as usize..)
                    .and_then(|d| d.get_mut(..content.len()))
                    .ok_or_else(|| bad("a segment is longer in the file than in memory"))?
                    .copy_from_slice(content);
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
        let (data_start, mut data) = writable.ok_or_else(|| bad("no writable segment"))?;
        let sections = header.sections(LE, bytes).map_err(|e| Error::with("the runtime's sections", e))?;
        for section in sections.iter() {
            let Some((relocations, _)) = section_relocations(LE, bytes, section) else { continue };
            for r in relocations {
                if r.r_type(LE, false) != elf::R_X86_64_RELATIVE {
                    return Err(bad("a relocation that needs symbols"));
                }
                let value = RUNTIME_BASE.wrapping_add(r.r_addend(LE) as u64);
                r.r_offset(LE)
                    .checked_sub(data_start)
                    .and_then(|at| data.get_mut(at as usize..)?.get_mut(..8))
                    .ok_or_else(|| bad("a relocation outside the writable segment"))?
                    .copy_from_slice(&value.to_le_bytes());
            }
        }
        let constant = relro_end.saturating_sub(data_start).min(data.len() as u64);
        Ok(Image {
            constant,
            file: file.try_clone().map_err(failed)?,
            runs,
            data_start,
            data,
            entry: RUNTIME_BASE + header.e_entry(LE),
        })
    }
}

type Relocations<'a> = (&'a [elf::Rela64<LE>], object::SectionIndex);

fn section_relocations<'a>(
    endian: LE,
    bytes: &'a ReadCache<File>,
    section: &elf::SectionHeader64<LE>,
) -> Option<Relocations<'a>> {
    use object::read::elf::SectionHeader;
    section.rela(endian, bytes).ok().flatten()
}
