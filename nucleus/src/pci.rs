//! PCI Express: finds virtio devices by their configuration space, and delivers their interrupts.
//!
//! Configuration space stays the nucleus's: a cell could move its device's registers over others', or the table of
//! interrupts (MSI-X) to where it can write. All devices lose the right to reach memory (bus mastering) when they are
//! found; only one that was granted gets it back. Firmware has given bridges their buses and devices their addresses.
//! (Crates that read configuration space panic on values that are reserved, or follow a circular list for ever.)
#![allow(unsafe_code, reason = "reads and writes configuration space and tables of interrupts")]

use core::fmt;

use atoll_abi::control::structure;
use atoll_abi::layout::DEVICE_STRUCTURE;
use atoll_partition::Extent;

use crate::devices::in_memory;
use crate::memory::{FRAME, Frames};
use crate::paging::AddressSpace;
use crate::pvh::Boot;
use crate::say;
use crate::tables::Machine;

/// Bytes of configuration space of a bus: a page for each of 256 functions.
const BUS: u64 = 256 * FRAME;
/// Registers of configuration space.
const COMMAND: u64 = 4;
const HEADER_TYPE: u64 = 0xc;
const ADDRESSES: u64 = 0x10;
const BUSES: u64 = 0x18;
const SUBSYSTEM: u64 = 0x2c;
const CAPABILITIES: u64 = 0x34;
/// Bits of the command register: registers in memory are there, the device reaches memory, no interrupt line.
const MEMORY: u32 = 1 << 1;
const MASTER: u32 = 1 << 2;
const NO_LINE: u32 = 1 << 10;
/// Kinds of capabilities.
const VENDOR: u32 = 9;
const EXPRESS: u32 = 0x10;
const MSI_X: u32 = 0x11;
/// The most capabilities that fit.
const CAPABILITIES_MAX: usize = 48;
/// In a capability's first word: MSI-X is on; all of it is masked.
const ON: u32 = 1 << 31;
const MASKED: u32 = 1 << 30;

/// A function of a device.
#[derive(Clone, Copy)]
pub struct Function {
    /// Bus, device and function in one number, as the function names itself when it reaches memory.
    pub id: u16,
    /// Where its configuration space is mapped.
    config: u64,
}

/// A virtio device.
pub struct Found {
    /// Virtio's number of its kind.
    pub kind: u32,
    /// Where its registers are in physical memory, by [`structure`].
    pub structures: [Extent; structure::COUNT],
    /// As in the descriptor of devices.
    pub notify_multiplier: u32,
    /// How it interrupts.
    pub messages: Messages,
    /// Where the nucleus has the first structure.
    pub mapped: u64,
}

/// Interrupts of a function: MSI-X.
#[derive(Clone)]
pub struct Messages {
    /// Whose.
    pub function: Function,
    /// Where the capability is in configuration space.
    capability: u64,
    /// Where the table is mapped, and how many entries it has.
    table: u64,
    entries: u64,
}

/// The number of a function, to be shown.
pub struct Name(pub u16);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{:02x}:{:02x}.{}", self.0 >> 8, self.0 >> 3 & 31, self.0 & 7)
    }
}

/// The pages that it touches.
fn pages(e: &Extent) -> core::ops::Range<u64> {
    e.start / FRAME..(e.start + e.len).div_ceil(FRAME)
}

/// Do they have a page in common?
pub fn share_a_page(a: &Extent, b: &Extent) -> bool {
    let (a, b) = (pages(a), pages(b));
    a.start < b.end && b.start < a.end
}

impl Function {
    fn read(self, at: u64) -> u32 {
        // SAFETY: a mapped page of configuration space, and an aligned place in it.
        unsafe { ((self.config + (at & 0xffc)) as *const u32).read_volatile() }
    }

    fn write(self, at: u64, value: u32) {
        // SAFETY: as above; what is written moves nothing over memory.
        unsafe { ((self.config + (at & 0xffc)) as *mut u32).write_volatile(value) };
    }

    /// Changes bits of the command register. The status register above it is left alone by zeroes.
    fn command(self, set: u32, clear: u32) {
        self.write(COMMAND, self.read(COMMAND) & 0xffff & !clear | set);
    }

    /// Its capabilities: where each is, and its first word.
    fn capabilities(self) -> impl Iterator<Item = (u64, u32)> {
        // Bit 4 of the status: there is a list.
        let first = if self.read(COMMAND) >> 20 & 1 != 0 { self.read(CAPABILITIES) } else { 0 };
        let mut next = u64::from(first & 0xfc);
        core::iter::from_fn(move || {
            let at = next;
            let word = (at != 0).then(|| self.read(at))?;
            next = u64::from(word >> 8 & 0xfc);
            Some((at, word))
        })
        .take(CAPABILITIES_MAX)
    }

    /// Is it a bridge from PCI Express to PCI Express: a root port (4), or of a switch (5 and 6)?
    fn is_express_bridge(self) -> bool {
        let mut express = self.capabilities().filter(|(_, word)| word & 0xff == EXPRESS);
        express.any(|(_, word)| matches!(word >> 20 & 15, 4..=6))
    }

    /// The memory of address register `n`. None: there is none, or firmware has not placed it.
    fn region(self, n: u32) -> Option<Extent> {
        let at = ADDRESSES + u64::from(n) * 4;
        let low = if n < 6 { self.read(at) } else { 1 };
        // Of memory (bit 0), and of 32 or 64 bits (bits 1 and 2).
        let wide = match low & 7 {
            0 => false,
            4 if n < 5 => true,
            _ => return None,
        };
        // How long it is, it says when all bits are written; it must not answer there meanwhile.
        let command = self.read(COMMAND) & 0xffff;
        self.command(0, MEMORY);
        let ask = |at: u64| {
            let before = self.read(at);
            self.write(at, !0);
            let mask = self.read(at);
            self.write(at, before);
            (u64::from(before), u64::from(mask))
        };
        let (mut start, mut mask) = ask(at);
        if wide {
            let (high, high_mask) = ask(at + 4);
            (start, mask) = (start | high << 32, mask | high_mask << 32);
        } else {
            mask |= !u64::from(u32::MAX);
        }
        self.write(COMMAND, command);
        let (start, len) = (start & !15, (mask & !15).wrapping_neg());
        let fits =
            start != 0 && len.is_power_of_two() && start.is_multiple_of(len) && start + (len - 1) < 1 << 46;
        fits.then_some(Extent { start, len })
    }

    /// Part of the memory of an address register.
    fn part(self, region: u32, offset: u64, len: u64) -> Result<Extent, &'static str> {
        let whole = self.region(region).ok_or("firmware has not placed its registers")?;
        if offset + len > whole.len || len == 0 {
            return Err("its registers are not where it says");
        }
        // Regions are aligned to their length: those of whole pages share none.
        if whole.len < FRAME {
            return Err("its registers are less than a page");
        }
        Ok(Extent { start: whole.start + offset, len })
    }

    /// What it has as a virtio device (specification 1.3, section 4.1). None: it is none, or of the older kind.
    fn virtio(
        self,
        boot: &Boot,
        space: &mut AddressSpace,
        frames: &mut Frames,
    ) -> Result<Option<Found>, &'static str> {
        let kind = match (self.read(0) & 0xffff, self.read(0) >> 16) {
            (0x1af4, id @ 0x1040..=0x107f) => id - 0x1040,
            (0x1af4, 0x1000..=0x103f) => self.read(SUBSYSTEM) >> 16,
            _ => return Ok(None),
        };
        let mut structures = [Extent { start: 0, len: 0 }; structure::COUNT];
        let (mut notify_multiplier, mut interrupts) = (0, None);
        for (at, word) in self.capabilities() {
            let n = (word >> 24) as usize;
            match word & 0xff {
                // The first of each is the one to use.
                VENDOR if (1..=structure::COUNT).contains(&n) && structures[n - 1].len == 0 => {
                    let [region, offset, len] = [4, 8, 12].map(|k| self.read(at + k));
                    structures[n - 1] = self.part(region & 0xff, u64::from(offset), u64::from(len))?;
                    if n - 1 == structure::NOTIFY {
                        notify_multiplier = self.read(at + 16);
                    }
                }
                MSI_X => interrupts = Some((at, u64::from(word >> 16 & 0x7ff) + 1)),
                _ => {}
            }
        }
        if [structure::COMMON, structure::NOTIFY, structure::INTERRUPT]
            .iter()
            .any(|n| structures[*n].len == 0)
        {
            return Err("it has no registers of modern devices (QEMU: disable-modern=off)");
        }
        let (capability, entries) = interrupts.ok_or("it has no MSI-X")?;
        let [table, pending] = [(4, entries * 16), (8, entries.div_ceil(64) * 8)].map(|(k, len)| {
            let place = self.read(capability + k);
            self.part(place & 7, u64::from(place & !7), len)
        });
        let (table, pending) = (table?, pending?);
        for part in structures.iter().filter(|s| s.len > 0) {
            let room = part.start % FRAME + part.len;
            if room > DEVICE_STRUCTURE {
                return Err("it has more registers than a cell has room for");
            }
            if share_a_page(part, &table) || share_a_page(part, &pending) {
                return Err("its registers share a page with its table of interrupts");
            }
        }
        if structures.iter().chain([&table, &pending]).any(|e| in_memory(boot, e)) {
            return Err("its registers lie in memory");
        }
        let mut map = |e: &Extent| {
            let from = e.start / FRAME * FRAME;
            let at = space.map_registers(frames, from, pages(e).count() as u64 * FRAME);
            at.map(|at| at + e.start % FRAME)
        };
        let mapped = map(&structures[structure::COMMON])?;
        let messages = Messages { function: self, capability, table: map(&table)?, entries };
        Ok(Some(Found { kind, structures, notify_multiplier, messages, mapped }))
    }
}

impl Messages {
    /// Lets the device reach memory, and has its first message be this one; the others are never sent.
    pub fn deliver(&self, address: u64, data: u32) {
        let f = self.function;
        f.command(MEMORY | MASTER | NO_LINE, 0);
        let word = f.read(self.capability) & !(ON | MASKED);
        f.write(self.capability, word | ON | MASKED);
        for n in 0..self.entries {
            let entry = [address as u32, (address >> 32) as u32, data, u32::from(n != 0)];
            for (k, value) in entry.into_iter().enumerate() {
                // SAFETY: the table, mapped, and an entry of it.
                unsafe { ((self.table + n * 16 + k as u64 * 4) as *mut u32).write_volatile(value) };
            }
        }
        f.write(self.capability, word | ON);
    }
}

/// How a bus is reached.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reached {
    Not,
    /// By PCI Express only: each function has a name of its own when it reaches memory.
    Express,
    /// By a bridge that gives all functions behind it one name: an IOMMU can't tell cells' apart.
    Shared,
}

/// Looks at all functions that can be reached, and calls `each` for virtio devices, in the order of their numbers.
pub fn find(
    boot: &Boot,
    machine: &Machine,
    space: &mut AddressSpace,
    frames: &mut Frames,
    mut each: impl FnMut(Found),
) -> Result<(), &'static str> {
    for configuration in &machine.configurations {
        let mut reached = [Reached::Not; 256];
        reached[usize::from(configuration.first_bus)] = Reached::Express;
        for bus in configuration.first_bus..=configuration.last_bus {
            let how = reached[usize::from(bus)];
            if how == Reached::Not {
                continue;
            }
            let start = configuration.address + u64::from(bus) * BUS;
            if in_memory(boot, &Extent { start, len: BUS }) {
                return Err("PCI's configuration space lies in memory");
            }
            let at = space.map_registers(frames, start, BUS)?;
            let mut several = false;
            for n in 0..256u16 {
                let function = Function { id: u16::from(bus) << 8 | n, config: at + u64::from(n) * FRAME };
                // A device says in its first function whether it has others.
                if n % 8 != 0 && !several || function.read(0) as u16 == 0xffff {
                    several &= n % 8 != 0;
                    continue;
                }
                let header = function.read(HEADER_TYPE) >> 16;
                if n % 8 == 0 {
                    several = header & 0x80 != 0;
                }
                if header & 0x7f == 1 {
                    let behind = (function.read(BUSES) >> 8) as u8;
                    // Only onward: a circle would have no end.
                    if behind > bus {
                        let express = how == Reached::Express && function.is_express_bridge();
                        reached[usize::from(behind)] =
                            if express { Reached::Express } else { Reached::Shared };
                        function.command(MEMORY | MASTER, 0);
                    }
                    continue;
                }
                function.command(0, MASTER);
                if header & 0x7f == 0 {
                    match function.virtio(boot, space, frames) {
                        Ok(Some(_)) if how == Reached::Shared => say!(
                            "PCI device {}: it is behind a bridge to PCI of the older kind: left out",
                            Name(function.id)
                        ),
                        Ok(Some(found)) => each(found),
                        Ok(None) => {}
                        Err(e) => say!("PCI device {}: {e}: left out", Name(function.id)),
                    }
                }
            }
        }
    }
    Ok(())
}
