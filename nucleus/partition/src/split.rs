//! Who gets what.
//!
//! Cores are given in their order. Memory is given in blocks: from the smallest region that has
//! enough, so that large ones stay whole, or, if none has, in pieces from the largest on.

use arrayvec::ArrayVec;
use core::fmt;

use crate::config::Config;
use crate::{BLOCK, CELLS_MAX, CORES_MAX, EXTENTS_MAX, REGIONS_MAX};

/// A range of physical memory in whole blocks: its first byte, its length in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Physical address.
    pub start: u64,
    /// Bytes.
    pub len: u64,
}

/// What a cell owns.
#[derive(Clone, Default, Debug)]
pub struct Cell {
    /// Its cores, a bit each.
    pub cores: u64,
    /// Its memory.
    pub extents: ArrayVec<Extent, EXTENTS_MAX>,
}

/// Who owns what.
#[derive(Clone, Default, Debug)]
pub struct Table {
    /// The cells, in the configuration's order.
    pub cells: ArrayVec<Cell, CELLS_MAX>,
    /// Cores of nobody: the supervisor's share.
    pub cores_left: u64,
    /// Memory of nobody: the same.
    pub memory_left: ArrayVec<Extent, REGIONS_MAX>,
}

/// Why a machine can't be split as it was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SplitError<'a> {
    /// This cell asks for more cores than are left.
    Cores {
        /// Its name.
        cell: &'a str,
        /// What it asks for.
        wanted: usize,
        /// What is left.
        left: usize,
    },
    /// This cell asks for more memory than is left, or than is left in eight pieces.
    Memory {
        /// Its name.
        cell: &'a str,
        /// What it asks for, bytes.
        wanted: u64,
        /// What is left, bytes.
        left: u64,
    },
    /// The machine has more cores or more regions of memory than there is room for.
    Machine,
}

impl fmt::Display for SplitError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SplitError::Cores { cell, wanted, left } => {
                write!(f, "cell {cell} asks for {wanted} cores, and {left} are left")
            }
            SplitError::Memory { cell, wanted, left } => {
                let (wanted, left) = (wanted >> 20, left >> 20);
                write!(f, "cell {cell} asks for {wanted} MiB, and {left} are left (in at most 8 pieces)")
            }
            SplitError::Machine => {
                write!(f, "this machine has more than {CORES_MAX} cores or {REGIONS_MAX} regions of memory")
            }
        }
    }
}

/// What is left of regions of memory without these ranges.
pub fn without(
    regions: impl Iterator<Item = Extent>,
    taken: &[Extent],
) -> Result<ArrayVec<Extent, REGIONS_MAX>, SplitError<'static>> {
    let mut left: ArrayVec<Extent, REGIONS_MAX> = ArrayVec::new();
    for region in regions.filter(|r| r.len > 0) {
        left.try_push(region).map_err(|_| SplitError::Machine)?;
    }
    for t in taken.iter().filter(|t| t.len > 0) {
        let taken_end = t.start.saturating_add(t.len);
        for n in (0..left.len()).rev() {
            let Extent { start, len } = left[n];
            let end = start.saturating_add(len);
            if t.start >= end || taken_end <= start {
                continue;
            }
            left.swap_remove(n);
            for (from, to) in [(start, t.start), (taken_end, end)] {
                if from < to {
                    left.try_push(Extent { start: from, len: to - from }).map_err(|_| SplitError::Machine)?;
                }
            }
        }
    }
    Ok(left)
}

/// Takes `len` bytes, a multiple of [`BLOCK`], out of `free`.
fn take(free: &mut ArrayVec<Extent, REGIONS_MAX>, mut len: u64) -> Option<ArrayVec<Extent, EXTENTS_MAX>> {
    let before = free.clone();
    let mut got = ArrayVec::new();
    while len > 0 {
        let fits = (0..free.len()).filter(|n| free[*n].len >= len).min_by_key(|n| free[*n].len);
        let largest = (0..free.len()).max_by_key(|n| free[*n].len);
        let part = fits.or(largest).and_then(|n| {
            let region = &mut free[n];
            let piece = Extent { start: region.start, len: region.len.min(len) };
            region.start += piece.len;
            region.len -= piece.len;
            if region.len == 0 {
                free.remove(n);
            }
            got.try_push(piece).ok().map(|()| piece.len)
        });
        match part {
            Some(part) => len -= part,
            None => {
                *free = before;
                return None;
            }
        }
    }
    Some(got)
}

/// Gives the cells of `config` cores and memory of a machine that has `cores` cores and, besides what
/// the nucleus keeps, these regions of memory: none overlaps another. Parts of blocks at a region's ends
/// are nobody's.
pub fn split<'a>(
    config: &Config<'a>,
    cores: usize,
    memory: impl Iterator<Item = Extent>,
) -> Result<Table, SplitError<'a>> {
    if cores > CORES_MAX {
        return Err(SplitError::Machine);
    }
    let mut table = Table { cores_left: if cores == 64 { !0 } else { (1 << cores) - 1 }, ..Table::default() };
    for region in memory {
        let end = region.start.saturating_add(region.len) / BLOCK * BLOCK;
        let Some(start) = region.start.checked_next_multiple_of(BLOCK).filter(|start| *start < end) else {
            continue;
        };
        table.memory_left.try_push(Extent { start, len: end - start }).map_err(|_| SplitError::Machine)?;
    }
    for request in config {
        let mut cell = Cell::default();
        let left = table.cores_left.count_ones() as usize;
        if request.cores > left {
            return Err(SplitError::Cores { cell: request.name, wanted: request.cores, left });
        }
        for _ in 0..request.cores {
            let lowest = table.cores_left & table.cores_left.wrapping_neg();
            cell.cores |= lowest;
            table.cores_left &= !lowest;
        }
        let left = table.memory_left.iter().map(|e| e.len).sum();
        let short = SplitError::Memory { cell: request.name, wanted: request.memory, left };
        cell.extents = take(&mut table.memory_left, request.memory).ok_or(short)?;
        table.cells.try_push(cell).map_err(|_| SplitError::Machine)?;
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Request;
    use proptest::prelude::*;

    fn request(cores: usize, blocks: u64) -> Request<'static> {
        let memory = blocks * BLOCK;
        Request {
            name: "c",
            cores,
            memory,
            runtime: None,
            boot: None,
            image: None,
            devices: ArrayVec::new(),
            peers: ArrayVec::new(),
            restart: Default::default(),
            run: "x",
        }
    }

    proptest! {
        /// Every core and every block belongs to one cell or to what is left, all that was there is still
        /// there, and each cell has what it asked for.
        #[test]
        fn gives_everything_once(
            cores in 1usize..=64,
            holes in prop::collection::vec((0u64..5_000_000, 1u64..60_000_000), 1..20),
            wishes in prop::collection::vec((1usize..6, 1u64..40), 0..12),
        ) {
            let (mut at, mut memory) = (0, Vec::new());
            for (gap, len) in holes {
                memory.push(Extent { start: at + gap, len });
                at += gap + len;
            }
            let config: Config = wishes.iter().map(|(c, b)| request(*c, *b)).collect();
            let whole = |e: &Extent| (e.start.div_ceil(BLOCK)..(e.start + e.len) / BLOCK).collect::<Vec<_>>();
            let all: Vec<u64> = memory.iter().flat_map(whole).collect();
            match split(&config, cores, memory.iter().copied()) {
                Ok(table) => {
                    let mut seen = table.cores_left;
                    let mut blocks: Vec<u64> = table.memory_left.iter().flat_map(whole).collect();
                    for (cell, (cores, wanted)) in table.cells.iter().zip(&wishes) {
                        prop_assert_eq!(cell.cores.count_ones() as usize, *cores);
                        prop_assert_eq!(cell.cores & seen, 0);
                        seen |= cell.cores;
                        let own: Vec<u64> = cell.extents.iter().flat_map(whole).collect();
                        prop_assert_eq!(own.len() as u64, *wanted);
                        blocks.extend(own);
                    }
                    prop_assert_eq!(table.cells.len(), wishes.len());
                    prop_assert_eq!(seen.count_ones() as usize, cores);
                    blocks.sort_unstable();
                    prop_assert_eq!(blocks, all);
                }
                Err(SplitError::Cores { wanted, left, .. }) => prop_assert!(wanted > left),
                Err(SplitError::Memory { wanted, left, .. }) => {
                    // Too little, or too scattered.
                    let pieces = memory.iter().filter(|e| !whole(e).is_empty()).count();
                    prop_assert!(wanted > left || pieces > EXTENTS_MAX);
                }
                Err(SplitError::Machine) => prop_assert!(false, "there is room for that"),
            }
        }
    }

    proptest! {
        /// What is left is what was there and is not taken, byte for byte.
        #[test]
        fn leaves_out_what_is_taken(
            gaps in prop::collection::vec((0u64..9, 1u64..9), 0..8),
            taken in prop::collection::vec((0u64..80, 0u64..20), 0..6),
        ) {
            let (mut at, mut regions) = (0, Vec::new());
            for (gap, len) in gaps {
                regions.push(Extent { start: at + gap, len });
                at += gap + len;
            }
            let taken: Vec<Extent> = taken.into_iter().map(|(start, len)| Extent { start, len }).collect();
            let has = |list: &[Extent], b: u64| list.iter().filter(|e| (e.start..e.start + e.len).contains(&b)).count();
            let left = without(regions.iter().copied(), &taken).unwrap();
            for b in 0..100 {
                prop_assert_eq!(has(&left, b), usize::from(has(&regions, b) == 1 && has(&taken, b) == 0));
            }
        }
    }

    /// Large regions stay whole for those who need them.
    #[test]
    fn takes_the_smallest_that_fits() {
        let memory = [Extent { start: 0, len: 100 * BLOCK }, Extent { start: 200 * BLOCK, len: 10 * BLOCK }];
        let config: Config = [request(1, 10), request(1, 100)].into_iter().collect();
        let table = split(&config, 2, memory.into_iter()).unwrap();
        assert_eq!(table.cells[0].extents[..], [memory[1]]);
        assert_eq!(table.cells[1].extents[..], [memory[0]]);
        assert_eq!((table.cores_left, table.memory_left.len()), (0, 0));
    }
}
