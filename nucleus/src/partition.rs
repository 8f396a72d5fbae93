//! The machine's partitions: what the boot module asks for.
//!
//! The first module is a tar archive; its `boot.conf` says which cells there are to be (the crate
//! `atoll_partition` reads it and splits the machine). Those with an image are made here.
#![allow(unsafe_code, reason = "reads the boot module by the direct map")]

use arrayvec::ArrayVec;
use atoll_partition::{CELLS_MAX, Extent, Table, parse, split, without};
use tar_no_std::TarArchiveRef;

use crate::cell::Cell;
use crate::entry::{self, DIRECT};
use crate::memory::{FRAME, Frames};
use crate::paging::AddressSpace;
use crate::pvh::Boot;
use crate::say;

/// Memory below this is the firmware's and the first instructions' of cores.
const LOW: u64 = 1 << 20;
const CONFIGURATION: &str = "boot.conf";

/// A file of the boot module.
fn file<'a>(module: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let archive = TarArchiveRef::new(module).ok()?;
    archive.entries().find(|e| e.filename().as_str() == Ok(name)).map(|e| e.data())
}

/// Splits the machine as the boot module says, and makes the cells that have an image.
pub fn of_boot(
    boot: &Boot,
    nucleus: &AddressSpace,
    frames: &mut Frames,
    cores: usize,
) -> Result<Jobs, &'static str> {
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
    let own_end = frames.next();
    let kept = [
        Extent { start: 0, len: LOW },
        Extent { start: entry::start(), len: own_end - entry::start() },
        *module,
    ];
    let table =
        without(boot.ram(), &kept).and_then(|left| split(&config, cores, left.into_iter())).map_err(|e| {
            say!("{e}");
            "the machine can't be split as boot.conf asks"
        })?;
    show(&config, &table);
    let mut jobs = Jobs::new_const();
    for (n, (request, owns)) in config.iter().zip(&table.cells).enumerate() {
        let Some(image) = request.image else { continue };
        let Some(image) = file(bytes, image) else {
            say!("cell {}: the boot module has no image {image}", request.name);
            return Err("an image is missing");
        };
        let made = Cell::new(request.name, image, nucleus, owns).map_err(|e| {
            say!("cell {}: {e}", request.name);
            "a cell can't be made"
        })?;
        // SAFETY: fresh frames with room for all cells, which stay for ever.
        let cell: &'static Cell = unsafe {
            cells.add(n).write(made);
            &*cells.add(n)
        };
        jobs.push((owns.cores.trailing_zeros() as usize, cell));
    }
    Ok(jobs)
}

/// Cells, and the cores that they begin on.
pub type Jobs = ArrayVec<(usize, &'static Cell), CELLS_MAX>;

fn show(config: &atoll_partition::Config, table: &Table) {
    for (request, cell) in config.iter().zip(&table.cells) {
        let memory: u64 = cell.extents.iter().map(|e| e.len).sum();
        say!(
            "cell {}: cores {:#x}, {} MiB in {} extents",
            request.name,
            cell.cores,
            memory >> 20,
            cell.extents.len()
        );
        for extent in &cell.extents {
            say!("  {:#x} to {:#x}", extent.start, extent.start + extent.len);
        }
    }
    let left: u64 = table.memory_left.iter().map(|e| e.len).sum();
    say!("left: cores {:#x}, {} MiB", table.cores_left, left >> 20);
}
