//! Intel's MultiProcessor tables (specification 1.4, chapter 4): which cores there are, on machines
//! without ACPI such as QEMU's microvm with `acpi=off`. Read while the first page tables map all of it.
#![allow(unsafe_code, reason = "reads the firmware's memory")]

use core::ops::Range;

use crate::entry::{DIRECT, MAPPED};
use crate::tables::Machine;

/// Where the floating pointer may be: the first KiB of the extended BIOS data area, the last of base
/// memory, the BIOS.
const PLACES: [Range<u64>; 3] = [0x9_fc00..0xa_0000, 0x7_fc00..0x8_0000, 0xf_0000..0x10_0000];
/// Length of the floating pointer and of the configuration table's head, bytes.
const POINTER: usize = 16;
const HEAD: usize = 44;
/// Entries of the table, and the length of one for a processor; others have 8 bytes.
const PROCESSOR: u8 = 0;
/// An entry that names an I/O APIC.
const IO_APIC: u8 = 2;
const PROCESSOR_LEN: usize = 20;
const OTHER_LEN: usize = 8;

/// Physical memory, if it is within reach.
fn bytes(at: u64, len: usize) -> Option<&'static [u8]> {
    let end = at.checked_add(len as u64)?;
    // SAFETY: mapped, and nobody changes what firmware has left there.
    (at != 0 && end <= MAPPED)
        .then(|| unsafe { core::slice::from_raw_parts((DIRECT + at) as *const u8, len) })
}

fn sum_is_zero(bytes: &[u8]) -> bool {
    bytes.iter().fold(0u8, |sum, b| sum.wrapping_add(*b)) == 0
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Address of the configuration table.
fn find() -> Option<u64> {
    PLACES.into_iter().flat_map(|place| place.step_by(16)).find_map(|at| {
        let pointer = bytes(at, POINTER)?;
        let table = u32_at(pointer, 4)?;
        (pointer.starts_with(b"_MP_") && sum_is_zero(pointer) && table != 0).then_some(u64::from(table))
    })
}

/// Adds the cores that the tables name. Value: false if there are no tables.
pub fn read(machine: &mut Machine) -> bool {
    let Some((at, head)) = find().and_then(|at| Some((at, bytes(at, HEAD)?))) else { return false };
    let len = usize::from(u16::from_le_bytes([head[4], head[5]]));
    let Some(table) = bytes(at, len.max(HEAD)).filter(|t| t.starts_with(b"PCMP") && sum_is_zero(t)) else {
        return false;
    };
    machine.apic_address = u64::from(u32_at(table, 36).unwrap_or_default());
    let mut rest = &table[HEAD..];
    while let Some(kind) = rest.first() {
        let len = if *kind == PROCESSOR { PROCESSOR_LEN } else { OTHER_LEN };
        let Some((entry, after)) = rest.split_at_checked(len) else { break };
        // Bit 0 of the flags: enabled.
        if *kind == PROCESSOR && entry[3] & 1 != 0 {
            machine.add(u32::from(entry[1]));
        }
        // Of the older machines each has 24 lines.
        if *kind == IO_APIC && entry[3] & 1 != 0 {
            let first = machine.io_apics.len() as u32 * 24;
            machine.add_io_apic(u64::from(u32_at(entry, 4).unwrap_or_default()), first);
        }
        rest = after;
    }
    !machine.apics.is_empty()
}
