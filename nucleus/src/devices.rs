//! Devices: which there are, and how their interrupts get to the cell that owns them.
//!
//! A virtio device over MMIO is a few hundred bytes of registers and an interrupt line, which the command line names
//! as it does for Linux (`virtio_mmio.device=512@0xfeb00000:5`; QEMU's microvm and Firecracker write it). The page with
//! the registers is mapped into the cell that owns the device, and into no other; the line is routed to the
//! cell's first core. What a device reads and writes of memory, nothing here confines: a cell with a device
//! can reach all of it (no IOMMU is used yet).
#![allow(unsafe_code, reason = "reads and writes registers of devices and of interrupt controllers")]

use core::fmt::Write as _;

use arrayvec::{ArrayString, ArrayVec};

use crate::apic::vector;
use crate::memory::{FRAME, Frames};
use crate::paging::AddressSpace;
use crate::pvh::Boot;
use crate::say;
use crate::tables::Machine;

/// The most devices that are looked at.
pub const DEVICES_MAX: usize = 32;
/// "virt", the first register of each.
const MAGIC: u32 = 0x7472_6976;
/// The register to reset it by.
const STATUS: u64 = 0x70;
/// Bytes of registers before a device's own.
const REGISTERS: u64 = 0x100;

/// A device.
#[derive(Clone)]
pub struct Device {
    /// Its name in boot configurations: what it is, and its number among those.
    pub name: ArrayString<16>,
    /// The virtio number of its kind (Virtual I/O Device specification, section 5).
    pub kind: u32,
    /// Where its registers are in physical memory.
    pub registers: u64,
    /// The number of its interrupt line.
    pub line: u32,
    /// Where the nucleus has its registers.
    mapped: u64,
}

impl Device {
    /// Stops it: it neither reads nor writes memory, until its driver starts it.
    pub fn reset(&self) {
        // SAFETY: its registers, mapped; to reset is always allowed (section 4.2.3.1).
        unsafe { ((self.mapped + STATUS) as *mut u32).write_volatile(0) };
    }
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

/// Devices that the command line names and that answer.
pub fn find(
    boot: &Boot,
    space: &mut AddressSpace,
    frames: &mut Frames,
) -> Result<ArrayVec<Device, DEVICES_MAX>, &'static str> {
    let mut found = ArrayVec::new();
    for place in boot.options("virtio_mmio.device") {
        let Some((registers, line)) = parse(place) else {
            say!("virtio_mmio.device={place} is not SIZE@ADDRESS:LINE: left out");
            continue;
        };
        if boot.memory.iter().any(|r| r.start < registers + REGISTERS && registers < r.start + r.len) {
            say!("virtio_mmio.device={place} lies in memory: left out");
            continue;
        }
        let at = space.map_device(frames, registers / FRAME * FRAME)? + registers % FRAME;
        let (magic, kind) = (register(at), register(at + 8));
        if magic != MAGIC || kind == 0 {
            continue;
        }
        let number = found.iter().filter(|d: &&Device| kind_name(d.kind) == kind_name(kind)).count();
        let mut name = ArrayString::new();
        // There is room.
        let _ = write!(name, "{}{number}", kind_name(kind));
        if found.try_push(Device { name, kind, registers, line, mapped: at }).is_err() {
            say!("there are more than {DEVICES_MAX} devices: the others are left out");
            break;
        }
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

/// Has a line interrupt the core with this APIC, once each time it rises.
pub fn route(io_apics: &IoApics, line: u32, apic: u32) -> Result<(), &'static str> {
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
