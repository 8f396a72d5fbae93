//! What a loader says that enters the nucleus by Multiboot2, such as GRUB: copied like what comes by PVH. The list
//! lies in memory that is free once the tables have been read: a copy of ACPI's root pointer is in it.
#![allow(unsafe_code, reason = "reads physical memory that the loader names")]

use atoll_formats::multiboot::{Tag, length, tags};

use crate::entry::{DIRECT, MAPPED};
use crate::pvh::Boot;

/// Longest list, bytes.
const LIST_MAX: usize = 1 << 20;

/// `len` bytes at a physical address.
fn bytes(at: u64, len: usize) -> Option<&'static [u8]> {
    let end = at.checked_add(len as u64)?;
    // SAFETY: mapped by the first page tables, and nobody writes there before the list has been read.
    (at != 0 && end <= MAPPED)
        .then(|| unsafe { core::slice::from_raw_parts((DIRECT + at) as *const u8, len) })
}

/// Copies what the list at `info` says.
pub fn read(info: u64) -> Result<Boot, &'static str> {
    const REACH: &str = "the loader's list of tags is out of reach, or longer than 1 MiB";
    let len = bytes(info, 8).and_then(length).filter(|len| *len <= LIST_MAX).ok_or(REACH)?;
    let list = bytes(info, len).ok_or(REACH)?;
    let mut boot = Boot::new();
    let mut root_is_new = false;
    for tag in tags(list) {
        match tag? {
            Tag::CommandLine(line) => boot.set_command_line(line.iter().copied())?,
            Tag::Module { start, end } => {
                let len = end.checked_sub(start).ok_or("a module ends before it begins")?;
                boot.add_module(u64::from(start), u64::from(len))?;
            }
            Tag::Memory(memory) => {
                for (start, len, kind) in memory.ranges() {
                    boot.add_memory(start, len, kind)?;
                }
            }
            Tag::RootPointer { at, new } if new || !root_is_new => {
                (boot.rsdp, root_is_new) = (info + at as u64, new);
            }
            Tag::RootPointer { .. } | Tag::Other(_) => {}
        }
    }
    boot.finish()
}
