//! Who gets what.
//!
//! Cores are given in their order, and memory in blocks: from the smallest region that has
//! enough, so that large ones stay whole, or, if none has, in pieces from the largest on. A cell gets both
//! from one node, if one has enough left: the one with the fewest cores left. If none has, it gets cores from the nodes
//! that have most, and memory from these nodes or, if they have too little, from anywhere.

use arrayvec::ArrayVec;
use core::fmt;

use crate::config::Config;
use crate::nodes::{Nodes, Regions};
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

/// The same memory in order and once: regions that overlap or touch become one.
pub fn disjoint(
    regions: impl Iterator<Item = Extent>,
) -> Result<ArrayVec<Extent, REGIONS_MAX>, SplitError<'static>> {
    let mut sorted: ArrayVec<Extent, REGIONS_MAX> = ArrayVec::new();
    for region in regions.filter(|r| r.len > 0) {
        sorted.try_push(region).map_err(|_| SplitError::Machine)?;
    }
    sorted.sort_unstable_by_key(|r| r.start);
    let mut whole: ArrayVec<Extent, REGIONS_MAX> = ArrayVec::new();
    for region in sorted {
        match whole.last_mut() {
            Some(last) if region.start <= last.start.saturating_add(last.len) => {
                let end = region.start.saturating_add(region.len);
                last.len = last.len.max(end - last.start);
            }
            _ => whole.push(region),
        }
    }
    Ok(whole)
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

/// The whole blocks of a region.
fn blocks(region: Extent) -> Option<Extent> {
    let end = region.start.saturating_add(region.len) / BLOCK * BLOCK;
    let start = region.start.checked_next_multiple_of(BLOCK)?;
    (start < end).then(|| Extent { start, len: end - start })
}

/// Takes `len` bytes, a multiple of [`BLOCK`], near these cores. Value: they, and what is left of `free`.
fn take_near(
    free: &Regions,
    nodes: &Nodes,
    cores: u64,
    len: u64,
) -> Option<(ArrayVec<Extent, EXTENTS_MAX>, Regions)> {
    let mut near: Regions = nodes.near(cores, free)?.into_iter().filter_map(blocks).collect();
    near.sort_unstable_by_key(|r| r.start);
    let got = take(&mut near, len)?;
    let left = without(free.iter().copied(), &got).ok()?;
    Some((got, left))
}

/// The `n` lowest bits of `mask`.
fn lowest(mask: u64, n: usize) -> u64 {
    let mut left = mask;
    for _ in 0..n {
        left &= left.wrapping_sub(1);
    }
    mask & !left
}

/// Takes cores and memory for a cell out of what is left. There must be enough cores.
fn place(table: &mut Table, nodes: &Nodes, cores: usize, memory: u64) -> Option<Cell> {
    let free = table.cores_left;
    // Each node's cores that are left.
    let of_nodes = |free: u64| {
        let mut rest = free;
        core::iter::from_fn(move || {
            let node = (rest != 0).then(|| nodes.beside(rest.trailing_zeros() as usize) & rest)?;
            rest &= !node;
            Some(node)
        })
    };
    let mut best: Option<(u32, u64, _, _)> = None;
    for node in of_nodes(free).filter(|node| node.count_ones() as usize >= cores) {
        let better = best.as_ref().is_none_or(|(fewest, ..)| node.count_ones() < *fewest);
        if better && let Some((extents, left)) = take_near(&table.memory_left, nodes, node, memory) {
            best = Some((node.count_ones(), lowest(node, cores), extents, left));
        }
    }
    let (cores, extents, left) = match best {
        Some((_, cores, extents, left)) => (cores, extents, left),
        None => {
            let mut mine = 0u64;
            while (mine.count_ones() as usize) < cores {
                let wanted = cores - mine.count_ones() as usize;
                // Of nodes that have as many, the first.
                let largest =
                    of_nodes(free & !mine).reduce(|a, b| if b.count_ones() > a.count_ones() { b } else { a });
                mine |= lowest(largest?, wanted);
            }
            match take_near(&table.memory_left, nodes, mine, memory) {
                Some((extents, left)) => (mine, extents, left),
                None => {
                    let mut left = table.memory_left.clone();
                    (mine, take(&mut left, memory)?, left)
                }
            }
        }
    };
    table.cores_left &= !cores;
    table.memory_left = left;
    Some(Cell { cores, extents })
}

/// Takes `len` bytes, a multiple of [`BLOCK`], out of `free`.
fn take(free: &mut Regions, mut len: u64) -> Option<ArrayVec<Extent, EXTENTS_MAX>> {
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

/// Gives the cells of `config` cores and memory of a machine that has `cores` cores, these nodes and, besides what
/// the nucleus keeps, these regions of memory: none overlaps another. Parts of blocks at a region's ends
/// are nobody's.
pub fn split<'a>(
    config: &Config<'a>,
    cores: usize,
    nodes: &Nodes,
    memory: impl Iterator<Item = Extent>,
) -> Result<Table, SplitError<'a>> {
    if cores > CORES_MAX {
        return Err(SplitError::Machine);
    }
    let mut table = Table { cores_left: if cores == 64 { !0 } else { (1 << cores) - 1 }, ..Table::default() };
    for region in memory {
        if let Some(whole) = blocks(region) {
            table.memory_left.try_push(whole).map_err(|_| SplitError::Machine)?;
        }
    }
    for request in config {
        let left = table.cores_left.count_ones() as usize;
        if request.max_cores > left {
            return Err(SplitError::Cores { cell: request.name, wanted: request.max_cores, left });
        }
        let left = table.memory_left.iter().map(|e| e.len).sum();
        let short = SplitError::Memory { cell: request.name, wanted: request.memory, left };
        let cell = place(&mut table, nodes, request.max_cores, request.memory).ok_or(short)?;
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
            cores: 1,
            max_cores: cores,
            memory,
            runtime: None,
            boot: None,
            image: None,
            grid: None,
            memory_policy: None,
            counter: None,
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
            of_cores in prop::collection::vec(prop::option::of(0u32..4), 64),
            of_memory in prop::collection::vec((0u64..200_000_000, 0u64..200_000_000, 0u32..4), 0..10),
        ) {
            let mut nodes = Nodes::none();
            for (core, node) in of_cores.iter().enumerate() {
                node.iter().for_each(|node| nodes.add_core(core, *node));
            }
            for (start, len, node) in &of_memory {
                let there_is_room = nodes.add_memory(Extent { start: *start, len: *len }, *node);
                prop_assert!(there_is_room);
            }
            let (mut at, mut memory) = (0, Vec::new());
            for (gap, len) in holes {
                memory.push(Extent { start: at + gap, len });
                at += gap + len;
            }
            let config: Config = wishes.iter().map(|(c, b)| request(*c, *b)).collect();
            let whole = |e: &Extent| (e.start.div_ceil(BLOCK)..(e.start + e.len) / BLOCK).collect::<Vec<_>>();
            let all: Vec<u64> = memory.iter().flat_map(whole).collect();
            match split(&config, cores, &nodes, memory.iter().copied()) {
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
                    // Too little, or too scattered: what a node gives up may cut a region.
                    let cuts = 2 * of_memory.len();
                    let pieces = cuts + memory.iter().filter(|e| !whole(e).is_empty()).count();
                    prop_assert!(wanted > left || pieces > EXTENTS_MAX);
                }
                Err(SplitError::Machine) => prop_assert!(false, "there is room for that"),
            }
        }
    }

    /// Two or more nodes, each with its cores one after the other and its memory in one piece.
    fn machine(cores: &[usize], blocks: &[u64]) -> (usize, Nodes, Vec<Extent>) {
        let (mut nodes, mut core, mut at, mut memory) = (Nodes::none(), 0, 0, Vec::new());
        for (node, (cores, blocks)) in cores.iter().zip(blocks).enumerate() {
            for _ in 0..*cores {
                nodes.add_core(core, node as u32);
                core += 1;
            }
            let range = Extent { start: at, len: blocks * BLOCK };
            assert!(nodes.add_memory(range, node as u32));
            memory.push(range);
            at += range.len;
        }
        // Firmware has it in one piece.
        (core, nodes, vec![Extent { start: 0, len: at }])
    }

    proptest! {
        /// The first cell is of one node, if any has what it asks for; and every cell gets what it asks for, if all of
        /// them fit on nodes of their own.
        #[test]
        fn prefers_one_node(
            sizes in prop::collection::vec((1usize..9, 20u64..90), 1..7),
            spare in prop::collection::vec((0usize..8, 0u64..70), 7),
            order in any::<prop::sample::Index>(),
            wish in (1usize..9, 1u64..90),
        ) {
            let (cores, blocks): (Vec<usize>, Vec<u64>) = sizes.iter().copied().unzip();
            let (total, nodes, memory) = machine(&cores, &blocks);
            let fits = sizes.iter().any(|(c, b)| *c >= wish.0 && *b >= wish.1);
            let config: Config = [request(wish.0, wish.1)].into_iter().collect();
            if let Ok(table) = split(&config, total, &nodes, memory.iter().copied()) {
                prop_assert!(!fits || nodes.of(&table.cells[0]).len() == 1, "{:?}", table.cells[0]);
            } else {
                prop_assert!(!fits);
            }
            // A cell for each node, as large as it or a little smaller, in another order.
            let mut wishes: Vec<(usize, u64)> =
                sizes.iter().zip(&spare).map(|((c, b), (sc, sb))| (c - sc % c, b - sb % b)).collect();
            wishes.rotate_left(order.index(sizes.len()));
            let config: Config = wishes.iter().map(|(c, b)| request(*c, *b)).collect();
            prop_assert!(split(&config, total, &nodes, memory.iter().copied()).is_ok());
        }
    }

    /// Two nodes, two cells: one each; and one that is larger than a node.
    #[test]
    fn keeps_to_nodes() {
        let (total, nodes, memory) = machine(&[2, 2], &[100, 100]);
        let config: Config = [request(2, 60), request(2, 60)].into_iter().collect();
        let table = split(&config, total, &nodes, memory.iter().copied()).unwrap();
        assert_eq!((table.cells[0].cores, table.cells[1].cores), (0b11, 0b1100));
        assert_eq!(table.cells[1].extents[..], [Extent { start: 100 * BLOCK, len: 60 * BLOCK }]);
        assert_eq!(
            (nodes.of(&table.cells[0])[..] == [0], nodes.of(&table.cells[1])[..] == [1]),
            (true, true)
        );
        // The smaller rest: a node stays whole for who needs it.
        let config: Config = [request(1, 10), request(1, 10), request(2, 90)].into_iter().collect();
        let table = split(&config, total, &nodes, memory.iter().copied()).unwrap();
        assert_eq!(table.cells.iter().map(|c| c.cores).collect::<Vec<_>>(), [0b1, 0b10, 0b1100]);
        let config: Config = [request(1, 150), request(3, 10)].into_iter().collect();
        let table = split(&config, total, &nodes, memory.iter().copied()).unwrap();
        assert_eq!(nodes.of(&table.cells[0])[..], [0, 1]);
        assert_eq!(table.cells[1].cores, 0b1110);
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

    proptest! {
        /// A byte that is in any region is in one, and they are in order with gaps between them.
        #[test]
        fn makes_regions_disjoint(regions in prop::collection::vec((0u64..90, 0u64..20), 0..12)) {
            let regions: Vec<Extent> = regions.into_iter().map(|(start, len)| Extent { start, len }).collect();
            let has = |list: &[Extent], b: u64| list.iter().filter(|e| (e.start..e.start + e.len).contains(&b)).count();
            let found = disjoint(regions.iter().copied()).unwrap();
            for b in 0..120 {
                prop_assert_eq!(has(&found, b), has(&regions, b).min(1));
            }
            prop_assert!(found.windows(2).all(|w| w[0].start + w[0].len < w[1].start));
        }
    }

    /// Large regions stay whole for those who need them.
    #[test]
    fn takes_the_smallest_that_fits() {
        let memory = [Extent { start: 0, len: 100 * BLOCK }, Extent { start: 200 * BLOCK, len: 10 * BLOCK }];
        let config: Config = [request(1, 10), request(1, 100)].into_iter().collect();
        let table = split(&config, 2, &Nodes::none(), memory.into_iter()).unwrap();
        assert_eq!(table.cells[0].extents[..], [memory[1]]);
        assert_eq!(table.cells[1].extents[..], [memory[0]]);
        assert_eq!((table.cores_left, table.memory_left.len()), (0, 0));
    }
}
