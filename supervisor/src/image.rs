//! The runtime's ELF file, as the bytes that will be mapped.

use object::LittleEndian as LE;
use object::elf;
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader, Rela};

use crate::{Error, Result};
use atoll_abi::layout::{IMAGE_MAX, PAGE, RUNTIME_BASE};

/// The runtime, relocated to [`RUNTIME_BASE`].
pub struct Image {
    /// Read-only and executable pages, from the image's start.
    pub fixed: Vec<u8>,
    /// Where the writable pages start, bytes from the image's start.
    pub data_start: u64,
    /// Writable pages.
    pub data: Vec<u8>,
    /// Read-only runs of pages and whether they hold code: start, length, executable.
    pub runs: Vec<(u64, u64, bool)>,
    /// Address to jump to.
    pub entry: u64,
}

fn up(n: u64) -> u64 {
    n.next_multiple_of(PAGE)
}

impl Image {
    /// Reads an ELF file.
    pub fn parse(bytes: &[u8]) -> Result<Image> {
        let bad = |what: &str| Error::new(format!("the runtime's file is damaged: {what}"));
        let header = elf::FileHeader64::<LE>::parse(bytes)
            .map_err(|e| Error::with("the runtime's file is no ELF program", e))?;
        let segments = header
            .program_headers(LE, bytes)
            .map_err(|e| Error::with("the runtime's program headers are damaged", e))?;
        let mut whole = Vec::new();
        let mut runs = Vec::new();
        let mut data = None;
        for s in segments.iter().filter(|s| s.p_type(LE) == elf::PT_LOAD) {
            let (start, len) = (s.p_vaddr(LE), s.p_memsz(LE));
            let end = start.checked_add(len).filter(|e| *e <= IMAGE_MAX).ok_or_else(|| bad("too large"))?;
            if whole.len() < up(end) as usize {
                whole.resize(up(end) as usize, 0);
            }
            let content = s.data(LE, bytes).map_err(|()| bad("a segment lies outside the file"))?;
            if content.len() as u64 > len {
                return Err(bad("a segment is longer in the file than in memory"));
            }
            whole[start as usize..start as usize + content.len()].copy_from_slice(content);
            let (first, last) = (start & !(PAGE - 1), up(end));
            if (s.p_flags(LE) & elf::PF_W).0 != 0 {
                if data.is_some() {
                    return Err(bad("two writable segments"));
                }
                data = Some((first, last));
            } else {
                runs.push((first, last - first, (s.p_flags(LE) & elf::PF_X).0 != 0));
            }
        }
        let (data_start, data_end) = data.ok_or_else(|| bad("no writable segment"))?;
        if data_end != whole.len() as u64 || runs.iter().any(|(s, l, _)| s + l > data_start) {
            return Err(bad("the writable segment is not the last"));
        }
        let file = ElfFile64::<LE>::parse(bytes).map_err(|e| Error::with("the runtime's sections", e))?;
        let endian = file.endian();
        for section in file.elf_section_table().iter() {
            let Some((relocations, _)) = section_relocations(endian, bytes, section) else { continue };
            for r in relocations {
                if r.r_type(endian, false) != elf::R_X86_64_RELATIVE {
                    return Err(bad("a relocation that needs symbols"));
                }
                let at = r.r_offset(endian) as usize;
                let value = RUNTIME_BASE.wrapping_add(r.r_addend(endian) as u64);
                whole
                    .get_mut(at..at + 8)
                    .ok_or_else(|| bad("a relocation outside the image"))?
                    .copy_from_slice(&value.to_le_bytes());
            }
        }
        let data = whole.split_off(data_start as usize);
        Ok(Image { fixed: whole, data_start, data, runs, entry: RUNTIME_BASE + header.e_entry(LE) })
    }
}

type Relocations<'a> = (&'a [elf::Rela64<LE>], object::SectionIndex);

fn section_relocations<'a>(
    endian: LE,
    bytes: &'a [u8],
    section: &elf::SectionHeader64<LE>,
) -> Option<Relocations<'a>> {
    use object::read::elf::SectionHeader;
    section.rela(endian, bytes).ok().flatten()
}
