//! What the machine's loader says (Xen's `public/arch-x86/hvm/start_info.h`): memory, modules,
//! command line. It is copied at once, with every count and length bounded; the memory that it lies
//! in is then free. What comes by Multiboot2 (`multiboot.rs`) is put into the same [`Boot`].
#![allow(unsafe_code, reason = "reads physical memory that the loader names")]

use arrayvec::ArrayVec;
use atoll_partition::{Extent, REGIONS_MAX, disjoint, without};

use crate::entry::{DIRECT, DIRECT_END, MAPPED};

const MAGIC: u32 = 0x336e_c578;
/// Most entries of the memory map: what is not memory counts, too, and firmware has many pieces of that.
const ENTRIES_MAX: usize = 2 * REGIONS_MAX;

#[repr(C)]
#[derive(Clone, Copy)]
struct StartInfo {
    magic: u32,
    version: u32,
    _flags: u32,
    modules: u32,
    module_list: u64,
    command_line: u64,
    rsdp: u64,
    memory_map: u64,
    memory_map_entries: u32,
    _reserved: u32,
}

/// A range of physical memory: its first byte, its length, its kind as E820 has it (1: memory).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Region {
    /// Physical address.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// E820 type.
    pub kind: u32,
    _reserved: u32,
}

/// Memory.
pub const RAM: u32 = 1;
/// What is no memory, or not to be touched.
pub const RESERVED: u32 = 2;
/// Memory that holds ACPI tables.
pub const ACPI: u32 = 3;

#[repr(C)]
#[derive(Clone, Copy)]
struct ModuleEntry {
    start: u64,
    len: u64,
    _command_line: u64,
    _reserved: u64,
}

type Result<T> = core::result::Result<T, &'static str>;

/// What the loader said.
pub struct Boot {
    /// The physical memory, as the loader has it: ranges may be in any order, and overlap.
    pub memory: ArrayVec<Region, ENTRIES_MAX>,
    ram: ArrayVec<Extent, REGIONS_MAX>,
    /// Files that were loaded with the nucleus.
    pub modules: ArrayVec<Extent, 8>,
    command_line: [u8; 2048],
    command_line_len: usize,
    /// Physical address of ACPI's root pointer; 0: to be searched.
    pub rsdp: u64,
}

/// A copy of what is at a physical address.
fn read<T: Copy>(at: u64) -> Option<T> {
    let end = at.checked_add(size_of::<T>() as u64)?;
    // SAFETY: mapped by the first page tables, which nobody has changed yet; `T` are plain numbers.
    (at != 0 && end <= MAPPED).then(|| unsafe { ((DIRECT + at) as *const T).read_unaligned() })
}

impl Boot {
    /// Nothing yet.
    pub fn new() -> Boot {
        Boot {
            memory: ArrayVec::new(),
            ram: ArrayVec::new(),
            modules: ArrayVec::new(),
            command_line: [0; 2048],
            command_line_len: 0,
            rsdp: 0,
        }
    }

    /// Adds a range of memory, of this E820 type.
    pub fn add_memory(&mut self, start: u64, len: u64, kind: u32) -> Result<()> {
        let region = Region { start, len, kind, _reserved: 0 };
        if start.checked_add(len).is_none() || self.memory.try_push(region).is_err() {
            return Err("the memory map is too long, or wraps around");
        }
        Ok(())
    }

    /// Adds a file.
    pub fn add_module(&mut self, start: u64, len: u64) -> Result<()> {
        if start.checked_add(len).is_none() || self.modules.try_push(Extent { start, len }).is_err() {
            return Err("there are too many modules, or one wraps around");
        }
        Ok(())
    }

    /// Copies the command line.
    pub fn set_command_line(&mut self, line: impl Iterator<Item = u8>) -> Result<()> {
        self.command_line_len = 0;
        for byte in line {
            let to = self.command_line.get_mut(self.command_line_len);
            *to.ok_or("the command line is longer than 2048 bytes")? = byte;
            self.command_line_len += 1;
        }
        Ok(())
    }

    /// All is there: what of it is memory is put in order. What is also called something else is not.
    pub fn finish(mut self) -> Result<Boot> {
        const MANY: &str = "the memory map has too many pieces";
        let extent = |r: &Region| Extent { start: r.start, len: r.len };
        let ram = disjoint(self.memory.iter().filter(|r| r.kind == RAM).map(extent)).map_err(|_| MANY)?;
        let beyond = Extent { start: DIRECT_END - DIRECT, len: u64::MAX };
        let mut others: ArrayVec<Extent, { ENTRIES_MAX + 1 }> =
            self.memory.iter().filter(|r| r.kind != RAM).map(extent).collect();
        others.push(beyond);
        self.ram = without(ram.into_iter(), &others).map_err(|_| MANY)?;
        Ok(self)
    }

    /// Copies what is at `start_info`.
    pub fn read(start_info: u64) -> Result<Boot> {
        let info: StartInfo = read(start_info).ok_or("the start info is out of reach")?;
        if info.magic != MAGIC {
            return Err("not started by PVH: the start info's magic number is wrong");
        }
        if info.version < 1 {
            return Err("the start info has no memory map (version 1 of PVH)");
        }
        let mut boot = Boot { rsdp: info.rsdp, ..Boot::new() };
        for n in 0..u64::from(info.memory_map_entries) {
            let at = info.memory_map.checked_add(n * size_of::<Region>() as u64);
            let region = at.and_then(read::<Region>).ok_or("the memory map is out of reach")?;
            boot.add_memory(region.start, region.len, region.kind)?;
        }
        for n in 0..u64::from(info.modules) {
            let at = info.module_list.checked_add(n * size_of::<ModuleEntry>() as u64);
            let module = at.and_then(read::<ModuleEntry>).ok_or("the list of modules is out of reach")?;
            boot.add_module(module.start, module.len)?;
        }
        let byte = |n| info.command_line.checked_add(n).and_then(read::<u8>).filter(|b| *b != 0);
        boot.set_command_line((0..).map_while(byte))?;
        boot.finish()
    }

    /// The value of `key=value` in the command line; that of a word alone is empty.
    pub fn option(&self, key: &str) -> Option<&str> {
        let line = core::str::from_utf8(&self.command_line[..self.command_line_len]).ok()?;
        line.split_ascii_whitespace().find_map(|word| match word.split_once('=') {
            Some((k, v)) => (k == key).then_some(v),
            None => (word == key).then_some(""),
        })
    }

    /// The values of all `key=value` of this key in the command line.
    pub fn options<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        let line = core::str::from_utf8(&self.command_line[..self.command_line_len]).unwrap_or_default();
        line.split_ascii_whitespace().filter_map(move |w| w.strip_prefix(key)?.strip_prefix('='))
    }

    /// The memory: no range overlaps another.
    pub fn ram(&self) -> impl Iterator<Item = Extent> + '_ {
        self.ram.iter().copied()
    }
}
