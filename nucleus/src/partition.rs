//! The machine's partitions: what the boot module asks for.
//!
//! The first module is a tar archive; its `boot.conf` says which cells there are to be (the crate
//! `atoll_partition` reads it and splits the machine). Those with a runtime are made here.
#![allow(unsafe_code, reason = "reads the boot module by the direct map")]

use core::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use atoll_partition::{CELLS_MAX, Extent, Nodes, Table, parse, peers, split, without};
use tar_no_std::TarArchiveRef;

use crate::cell::{Cell, Parts, Peer, RUNNING};
use crate::cores;
use crate::devices::{self, Device};
use crate::entry::{self, DIRECT};
use crate::iommu;
use crate::memory::{FRAME, Frames, LOW};
use crate::paging::AddressSpace;
use crate::pci::Name;
use crate::pvh::Boot;
use crate::say;
use crate::tables::Machine;

const CONFIGURATION: &str = "boot.conf";
/// The device that is the machine's console.
const CONSOLE: &str = "console";

/// A file of the boot module.
fn file<'a>(module: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let archive = TarArchiveRef::new(module).ok()?;
    archive.entries().find(|e| e.filename().as_str() == Ok(name)).map(|e| e.data())
}

/// Splits the machine as the boot module says, and makes the cells that have an image.
pub fn of_boot(
    boot: &Boot,
    machine: &Machine,
    nucleus: &mut AddressSpace,
    frames: &mut Frames,
    cores: usize,
) -> Result<Jobs, &'static str> {
    let devices = devices::find(boot, machine, nucleus, frames)?;
    iommu::start(machine, &devices, nucleus, frames)?;
    let io_apics = devices::io_apics(machine, nucleus, frames)?;
    let Some(module) = boot.modules.first() else {
        say!("no boot module, and so no cells");
        return Ok(Jobs::new_const());
    };
    if !boot.ram().any(|r| r.start <= module.start && module.start + module.len <= r.start + r.len) {
        return Err("the boot module is not in memory");
    }
    // SAFETY: memory, in the direct map, that nobody changes.
    let bytes: &'static [u8] =
        unsafe { core::slice::from_raw_parts((DIRECT + module.start) as *const u8, module.len as usize) };
    let text = file(bytes, CONFIGURATION).ok_or("the boot module is no tar archive with a boot.conf")?;
    let text = core::str::from_utf8(text).map_err(|_| "boot.conf is not UTF-8")?;
    let config = parse(text).map_err(|e| {
        say!("{CONFIGURATION}, {e}");
        "the boot configuration is wrong"
    })?;
    // The nucleus's own part of the cells: from here on it takes nothing more.
    let size = (size_of::<Cell>() * CELLS_MAX) as u64;
    let cells = (DIRECT + frames.take(size.div_ceil(FRAME)).ok_or("no memory for the cells")?) as *mut Cell;
    let kept = [Extent { start: 0, len: LOW }, entry::image_in_memory(), frames.taken(), *module];
    let mut nodes = machine.nodes.clone();
    for core in 0..cores {
        if let Some((_, node)) = machine.core_nodes.iter().find(|(apic, _)| *apic == cores::apic(core)) {
            nodes.add_core(core, *node);
        }
    }
    let left = without(boot.ram(), &kept);
    let table = left.and_then(|left| split(&config, cores, &nodes, left.into_iter())).map_err(|e| {
        say!("{e}");
        "the machine can't be split as boot.conf asks"
    })?;
    grant(&config, &devices)?;
    let mut told = false;
    for (request, owns) in config.iter().zip(&table.cells) {
        let apic = cores::apic(owns.cores.trailing_zeros() as usize);
        let granted = |d: &&(usize, &Device)| request.devices.contains(&d.1.name.as_str());
        for (n, device) in devices.iter().enumerate().filter(|d| granted(&d)) {
            devices::deliver(n, device, &io_apics, apic)?;
            if let Some(function) = device.function().map(|f| Name(f.id)) {
                say!("cell {}: {} is PCI device {function}", request.name, device.name);
            }
            if !device.uses_iommu() || !iommu::is_there() {
                say!("cell {}: no IOMMU keeps {} from other cells' memory", request.name, device.name);
            } else if !told {
                iommu::tell(apic);
                told = true;
            }
        }
    }
    show(&config, &table, &nodes);
    let mut jobs = Jobs::new_const();
    for (n, (request, owns)) in config.iter().zip(&table.cells).enumerate() {
        let part = |name: &str| {
            file(bytes, name).ok_or_else(|| {
                say!("cell {}: the boot module has no file {name}", request.name);
                "a file is missing"
            })
        };
        let Some(runtime) = request.runtime else { continue };
        let archive = match request.image {
            Some(name) => pages_of(part(name)?, module)?,
            None => Extent { start: 0, len: 0 },
        };
        let peers = peers(&config, request.name).map(|(number, to, from)| Peer {
            number,
            name: config[number].name,
            to,
            from,
        });
        let parts = Parts {
            number: n,
            name: request.name,
            owns: owns.clone(),
            online: request.cores,
            runtime: part(runtime)?,
            boot: request.boot.map_or(Ok(&[][..]), part)?,
            archive,
            console: request.devices.contains(&CONSOLE),
            devices: devices.iter().filter(|d| request.devices.contains(&d.name.as_str())).cloned().collect(),
            peers: peers.collect(),
            counter: request.counter,
            restart: request.restart,
            restarts: 0,
        };
        let made = Cell::new(parts, nucleus).map_err(|e| {
            say!("cell {}: {e}", request.name);
            "a cell can't be made"
        })?;
        RUNNING.fetch_add(1, Ordering::Relaxed);
        // SAFETY: fresh frames with room for all cells, which stay for ever.
        let cell = unsafe {
            cells.add(n).write(made);
            cells.add(n)
        };
        jobs.push((cell, owns.cores));
    }
    Ok(jobs)
}

/// Is every device there that a cell asks for, and does none ask for another's, or for registers that share a page
/// with another's?
fn grant(config: &atoll_partition::Config, devices: &[Device]) -> Result<(), &'static str> {
    let known = |name: &str| devices.iter().find(|d| d.name.as_str() == name);
    for (n, cell) in config.iter().enumerate() {
        for name in &cell.devices {
            if *name != CONSOLE && known(name).is_none() {
                say!("cell {}: this machine has no device {name}", cell.name);
                for device in devices {
                    say!("  it has {}", device.name);
                }
                return Err("a device is missing");
            }
            let clash = |other: &&str| {
                **other == **name || known(name).zip(known(other)).is_some_and(|(a, b)| a.shares_with(b))
            };
            if let Some(other) = config[..n].iter().find(|c| c.devices.iter().any(clash)) {
                say!(
                    "{name} can't be cell {}'s: it is, or shares a page of registers with one that is, {}'s",
                    cell.name,
                    other.name
                );
                return Err("a device can be one cell's only");
            }
        }
    }
    Ok(())
}

/// The cells that are to begin, and their cores, a bit each.
pub type Jobs = ArrayVec<(*mut Cell, u64), CELLS_MAX>;

/// Where a file of the module is in physical memory, in whole pages: nothing else must be in them.
fn pages_of(file: &[u8], module: &Extent) -> Result<Extent, &'static str> {
    let start = file.as_ptr() as u64 - DIRECT;
    let len = file.len() as u64;
    if start < module.start || !start.is_multiple_of(FRAME) || !len.is_multiple_of(FRAME) {
        return Err("an image is not in whole pages of the boot module: `atoll image build` puts it so");
    }
    Ok(Extent { start, len })
}

/// Nodes, for a line about who is of them; nothing, where the machine does not say.
struct Of(ArrayVec<u32, 16>);

impl core::fmt::Display for Of {
    fn fmt(&self, f: &mut core::fmt::Formatter) -> core::fmt::Result {
        match self.0.len() {
            0 => return Ok(()),
            1 => write!(f, ", node")?,
            _ => write!(f, ", nodes")?,
        }
        self.0.iter().try_for_each(|node| write!(f, " {node}"))
    }
}

fn show(config: &atoll_partition::Config, table: &Table, nodes: &Nodes) {
    for (request, cell) in config.iter().zip(&table.cells) {
        let memory: u64 = cell.extents.iter().map(|e| e.len).sum();
        say!(
            "cell {}: cores {:#x}, {} MiB in {} extents{}",
            request.name,
            cell.cores,
            memory >> 20,
            cell.extents.len(),
            Of(nodes.of(cell))
        );
        for extent in &cell.extents {
            say!("  {:#x} to {:#x}", extent.start, extent.start + extent.len);
        }
    }
    let left: u64 = table.memory_left.iter().map(|e| e.len).sum();
    say!("left: cores {:#x}, {} MiB", table.cores_left, left >> 20);
}
