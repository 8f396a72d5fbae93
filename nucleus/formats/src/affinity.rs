//! ACPI's table of affinities (SRAT; the specification, version 6.5, section 5.2.16): which cores and which memory
//! belong to which node ("proximity domain").

use crate::{u32_at, u64_at};

/// Bytes of the table before its entries, and of an entry's head.
const HEAD: usize = 48;
const ENTRY: usize = 2;
/// Where in the table its revision is. Before 2, a core's node has one byte.
const REVISION: usize = 8;

/// What an entry says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Affinity {
    /// The core with this APIC.
    Core {
        /// Its APIC's id.
        apic: u32,
        /// Its node.
        node: u32,
    },
    /// A range of physical memory.
    Memory {
        /// Its first byte.
        start: u64,
        /// Bytes.
        len: u64,
        /// Its node.
        node: u32,
    },
}

/// What the whole table says, header and all; entries that are not enabled are left out. It ends where an entry is
/// cut off.
pub fn affinities(table: &[u8]) -> impl Iterator<Item = Affinity> {
    let short = table.get(REVISION).is_none_or(|revision| *revision < 2);
    let mut rest = table.get(HEAD..).unwrap_or_default();
    core::iter::from_fn(move || {
        let len = usize::from(*rest.get(1)?);
        let (entry, after) = rest.split_at_checked(len).filter(|_| len >= ENTRY)?;
        rest = after;
        Some(read(entry, short))
    })
    .flatten()
}

/// One entry.
fn read(entry: &[u8], short: bool) -> Option<Affinity> {
    let enabled = |at| Some(u32_at(entry, at)? & 1 != 0);
    match *entry.first()? {
        0 => {
            let high = if short { 0 } else { u32_at(entry, 8)? & 0xffff_ff00 };
            let node = high | u32::from(*entry.get(2)?);
            enabled(4)?.then_some(Affinity::Core { apic: u32::from(*entry.get(3)?), node })
        }
        1 => {
            let (node, start, len) = (u32_at(entry, 2)?, u64_at(entry, 8)?, u64_at(entry, 16)?);
            let sensible = enabled(28)? && start.checked_add(len).is_some();
            sensible.then_some(Affinity::Memory { start, len, node })
        }
        2 => {
            let (node, apic) = (u32_at(entry, 4)?, u32_at(entry, 8)?);
            enabled(12)?.then_some(Affinity::Core { apic, node })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn core(apic: u8, node: u32, enabled: u8) -> Vec<u8> {
        let [low, high @ ..] = node.to_le_bytes();
        let mut entry = vec![0, 16, low, apic, enabled, 0, 0, 0, 0];
        entry.extend(high);
        entry.resize(16, 0);
        entry
    }

    fn memory(start: u64, len: u64, node: u32, enabled: u32) -> Vec<u8> {
        let mut entry = vec![1, 40];
        entry.extend(node.to_le_bytes());
        entry.extend([0; 2]);
        entry.extend([start, len].map(u64::to_le_bytes).concat());
        entry.extend([0; 4]);
        entry.extend(enabled.to_le_bytes());
        entry.resize(40, 0);
        entry
    }

    fn new_core(apic: u32, node: u32, enabled: u32) -> Vec<u8> {
        let mut entry = vec![2, 24, 0, 0];
        entry.extend([node, apic, enabled].map(u32::to_le_bytes).concat());
        entry.resize(24, 0);
        entry
    }

    fn table(revision: u8, entries: &[Vec<u8>]) -> Vec<u8> {
        let mut table = vec![0; HEAD];
        table[REVISION] = revision;
        table.extend(entries.concat());
        table
    }

    #[test]
    fn reads_what_firmware_says() {
        let entries = [
            core(0, 0, 1),
            core(7, 0x0102_0304, 1),
            core(8, 1, 0),
            vec![9, 4, 0, 0],
            new_core(700, 3, 1),
            memory(0, 0xa_0000, 0, 1),
            memory(1 << 32, 1 << 30, 1, 3),
            memory(1 << 40, 1 << 30, 1, 0),
            memory(u64::MAX, 2, 1, 1),
        ];
        let found: Vec<_> = affinities(&table(3, &entries)).collect();
        let expected = [
            Affinity::Core { apic: 0, node: 0 },
            Affinity::Core { apic: 7, node: 0x0102_0304 },
            Affinity::Core { apic: 700, node: 3 },
            Affinity::Memory { start: 0, len: 0xa_0000, node: 0 },
            Affinity::Memory { start: 1 << 32, len: 1 << 30, node: 1 },
        ];
        assert_eq!(found, expected);
        assert_eq!(affinities(&table(1, &entries)).nth(1), Some(Affinity::Core { apic: 7, node: 4 }));
    }

    #[test]
    fn ends_where_it_is_cut_off() {
        let whole = table(3, &[core(0, 0, 1), memory(0, 1, 0, 1)]);
        for len in 0..whole.len() {
            assert_eq!(affinities(&whole[..len]).count(), usize::from(len >= HEAD + 16), "{len}");
        }
        // Entries that are shorter than they should be; one of no length.
        let short = table(3, &[vec![0, 3, 0], vec![1, 20, 0], vec![2, 2], vec![0, 0], core(0, 0, 1)]);
        assert_eq!(affinities(&short).count(), 0);
    }

    proptest! {
        /// Whatever it is given, it comes to an end.
        #[test]
        fn takes_any_bytes(entries in prop::collection::vec((0u8..4, 0u8..48, any::<[u8; 8]>()), 0..12)) {
            let mut bytes = vec![3; HEAD];
            for (kind, len, content) in entries {
                bytes.extend([kind, len]);
                bytes.extend(content);
            }
            for affinity in affinities(&bytes) {
                if let Affinity::Memory { start, len, .. } = affinity {
                    prop_assert!(start.checked_add(len).is_some());
                }
            }
        }
    }
}
