//! Devices: which there are, and how their interrupts get to the cell that owns them.
//!
//! A virtio device over MMIO is a few hundred bytes of registers and an interrupt line, which the command line names
//! as it does for Linux (`virtio_mmio.device=512@0xfeb00000:5`; QEMU's microvm and Firecracker write it). Those on PCI
//! are found by [`pci`]. The pages with the registers are mapped into the cell that owns the device, and into no
//! other; its interrupt goes to the cell's first core.
#![allow(unsafe_code, reason = "reads and writes registers of devices and of interrupt controllers")]

use core::fmt::Write as _;

use arrayvec::{ArrayString, ArrayVec};
use atoll_abi::control::{structure, transport};
use atoll_partition::Extent;

use crate::apic::vector;
use crate::clock;
use crate::iommu;
use crate::memory::{FRAME, Frames};
use crate::paging::AddressSpace;
use crate::pci::{self, Messages};
use crate::pvh::{Boot, RESERVED};
use crate::say;
use crate::tables::Machine;

/// The most devices that are looked at.
pub const DEVICES_MAX: usize = 32;
/// "virt", the first register of each.
const MAGIC: u32 = 0x7472_6976;
/// The registers to reset it by, over MMIO and in the common configuration on PCI.
const STATUS: u64 = 0x70;
const STATUS_PCI: u64 = 0x14;
/// Bytes of registers before a device's own, and with those.
const REGISTERS: u64 = 0x100;
const REGISTERS_MAX: u64 = 0x200;

/// A device.
#[derive(Clone)]
pub struct Device {
    /// Its name in boot configurations: what it is, and its number among those.
    pub name: ArrayString<16>,
    /// The virtio number of its kind (Virtual I/O Device specification, section 5).
    pub kind: u32,
    /// How it is spoken to: one of [`transport`].
    pub transport: u32,
    /// Where its registers are in physical memory, by [`structure`]; length 0: it has none.
    pub structures: [Extent; structure::COUNT],
    /// As in the descriptor of devices.
    pub notify_multiplier: u32,
    /// How it interrupts.
    pub interrupt: Interrupt,
    /// Where the nucleus has its first structure of registers.
    mapped: u64,
}

/// How a device interrupts.
#[derive(Clone)]
pub enum Interrupt {
    /// By a line of this number.
    Line(u32),
    /// By messages.
    Messages(Messages),
}

impl Device {
    /// Stops it: it neither reads nor writes memory, until its driver starts it. Value: false if it does not say that it
    /// has stopped.
    #[must_use]
    pub fn reset(&self) -> bool {
        /// It may have much under way, ns.
        const PATIENCE: u64 = 1_000_000_000;
        // SAFETY: its registers, mapped; to reset is always allowed. It is over when the status reads 0 (Virtual I/O
        // Device specification 1.3, sections 2.4, 4.1.4.3.1 and 4.2.3.1).
        let status = || unsafe {
            match self.interrupt {
                Interrupt::Line(_) => ((self.mapped + STATUS) as *const u32).read_volatile(),
                Interrupt::Messages(_) => ((self.mapped + STATUS_PCI) as *const u8).read_volatile().into(),
            }
        };
        // SAFETY: as above.
        unsafe {
            match self.interrupt {
                Interrupt::Line(_) => ((self.mapped + STATUS) as *mut u32).write_volatile(0),
                Interrupt::Messages(_) => ((self.mapped + STATUS_PCI) as *mut u8).write_volatile(0),
            }
        }
        let begun = clock::now();
        while status() != 0 {
            if clock::now().saturating_sub(begun) > PATIENCE {
                return false;
            }
            core::hint::spin_loop();
        }
        true
    }

    /// Have registers of the two a page in common?
    pub fn shares_with(&self, other: &Device) -> bool {
        let there = |d: &&Extent| d.len > 0;
        let others = || other.structures.iter().filter(there);
        self.structures.iter().filter(there).any(|a| others().any(|b| pci::share_a_page(a, b)))
    }

    /// Does it reach memory by an IOMMU, where there is one (VIRTIO_F_ACCESS_PLATFORM, bit 33)? QEMU: iommu_platform=on.
    pub fn uses_iommu(&self) -> bool {
        // SAFETY: its registers, mapped: which half of its features is to be shown, and that one (section 4.1.4.3).
        self.function().is_some()
            && unsafe {
                (self.mapped as *mut u32).write_volatile(1);
                ((self.mapped + 4) as *const u32).read_volatile() & 2 != 0
            }
    }

    /// What it is on PCI.
    pub fn function(&self) -> Option<pci::Function> {
        match &self.interrupt {
            Interrupt::Messages(m) => Some(m.function),
            Interrupt::Line(_) => None,
        }
    }
}

/// Devices that were found.
pub type Devices = ArrayVec<Device, DEVICES_MAX>;

/// Is any of this memory?
pub fn in_memory(boot: &Boot, e: &Extent) -> bool {
    boot.memory.iter().any(|r| r.kind != RESERVED && r.start < e.start + e.len && e.start < r.start + r.len)
}

/// What the specification calls a kind.
fn kind_name(kind: u32) -> &'static str {
    match kind {
        1 => "net",
        2 => "disk",
        3 => "port",
        4 => "random",
        _ => "virtio",
    }
}

fn register(at: u64) -> u32 {
    // SAFETY: a mapped page of registers, and an aligned place in it.
    unsafe { (at as *const u32).read_volatile() }
}

/// Devices that the command line names and that answer, and those on PCI.
pub fn find(
    boot: &Boot,
    machine: &Machine,
    space: &mut AddressSpace,
    frames: &mut Frames,
) -> Result<Devices, &'static str> {
    let mut found = Devices::new_const();
    let mut left_out = 0;
    let mut add = |mut device: Device| {
        let number = found.iter().filter(|d| kind_name(d.kind) == kind_name(device.kind)).count();
        // There is room.
        let _ = write!(device.name, "{}{number}", kind_name(device.kind));
        left_out += usize::from(found.try_push(device).is_err());
    };
    for place in boot.options("virtio_mmio.device") {
        let Some((registers, line)) = parse(place) else {
            say!("virtio_mmio.device={place} is not SIZE@ADDRESS:LINE: left out");
            continue;
        };
        // The page may end behind those that all have.
        let len = REGISTERS_MAX.min(FRAME - registers % FRAME);
        if in_memory(boot, &Extent { start: registers, len }) {
            say!("virtio_mmio.device={place} lies in memory: left out");
            continue;
        }
        let at = space.map_device(frames, registers / FRAME * FRAME)? + registers % FRAME;
        let (magic, kind) = (register(at), register(at + 8));
        if magic != MAGIC || kind == 0 {
            continue;
        }
        let mut structures = [Extent { start: 0, len: 0 }; structure::COUNT];
        structures[structure::COMMON] = Extent { start: registers, len };
        add(Device {
            name: ArrayString::new(),
            kind,
            transport: transport::MMIO,
            structures,
            notify_multiplier: 0,
            interrupt: Interrupt::Line(line),
            mapped: at,
        });
    }
    pci::find(boot, machine, space, frames, |f| {
        add(Device {
            name: ArrayString::new(),
            kind: f.kind,
            transport: transport::PCI,
            structures: f.structures,
            notify_multiplier: f.notify_multiplier,
            interrupt: Interrupt::Messages(f.messages),
            mapped: f.mapped,
        })
    })?;
    if left_out > 0 {
        say!("there are more than {DEVICES_MAX} devices: {left_out} are left out");
    }
    Ok(found)
}

/// `SIZE@ADDRESS:LINE`; address and line.
fn parse(place: &str) -> Option<(u64, u32)> {
    let (_, rest) = place.split_once('@')?;
    let mut parts = rest.split(':');
    let address = parts.next()?;
    let address = match address.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok()?,
        None => address.parse().ok()?,
    };
    let line = parts.next()?.parse().ok()?;
    let inside = address.is_multiple_of(4) && address % FRAME + REGISTERS <= FRAME && address < 1 << 46;
    inside.then_some((address, line))
}

/// Where messages that interrupt are written to; the receiving APIC is in bits 12 to 19.
pub const MESSAGES: u64 = 0xfee0_0000;

/// Registers of an I/O APIC: which one is meant, and its value.
const SELECT: u64 = 0;
const WINDOW: u64 = 0x10;
/// The register that says how many lines it has.
const VERSION: u32 = 1;
/// The first of the lines' registers, two for each.
const LINES: u32 = 0x10;

/// I/O APICs whose registers are mapped: where, and the number of their first line.
pub type IoApics = ArrayVec<(u64, u32), 8>;

/// Maps their registers.
pub fn io_apics(
    machine: &Machine,
    space: &mut AddressSpace,
    frames: &mut Frames,
) -> Result<IoApics, &'static str> {
    machine.io_apics.iter().map(|(at, first)| Ok((space.map_device(frames, *at)?, *first))).collect()
}

/// Has a device, the machine's `n`-th, interrupt the core with this APIC.
pub fn deliver(n: usize, device: &Device, io_apics: &IoApics, apic: u32) -> Result<(), &'static str> {
    let messages = match &device.interrupt {
        Interrupt::Line(line) => return route(io_apics, *line, apic),
        Interrupt::Messages(messages) => messages,
    };
    let (address, data) = match iommu::message(n, messages.function, apic)? {
        Some(message) => message,
        None if apic > 0xff => {
            return Err("a device's interrupt can't reach a core with an APIC id above 255");
        }
        None => (MESSAGES | u64::from(apic) << 12, u32::from(vector::DEVICE)),
    };
    messages.deliver(address, data);
    Ok(())
}

/// Has a line interrupt the core with this APIC, once each time it rises.
fn route(io_apics: &IoApics, line: u32, apic: u32) -> Result<(), &'static str> {
    for (at, first) in io_apics.iter().copied() {
        // SAFETY: an I/O APIC's registers, mapped; nobody else uses them now.
        let write = |n: u32, value: u32| unsafe {
            ((at + SELECT) as *mut u32).write_volatile(n);
            ((at + WINDOW) as *mut u32).write_volatile(value);
        };
        // SAFETY: as above.
        unsafe { ((at + SELECT) as *mut u32).write_volatile(VERSION) };
        let lines = (register(at + WINDOW) >> 16 & 0xff) + 1;
        if let Some(n) = line.checked_sub(first).filter(|n| *n < lines) {
            write(LINES + n * 2 + 1, apic << 24);
            write(LINES + n * 2, u32::from(vector::DEVICE));
            return Ok(());
        }
    }
    Err("no interrupt controller has this device's line")
}
