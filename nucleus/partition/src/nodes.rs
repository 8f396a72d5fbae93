//! Which cores and which memory are near each other: the machine's nodes (NUMA).

use arrayvec::ArrayVec;

use crate::split::{Cell, Extent, disjoint, without};
use crate::{CORES_MAX, REGIONS_MAX};

/// The most ranges of memory that have a node.
pub const RANGES_MAX: usize = 64;

/// The nodes, by their numbers.
#[derive(Clone, Debug)]
pub struct Nodes {
    cores: [Option<u32>; CORES_MAX],
    memory: ArrayVec<(Extent, u32), RANGES_MAX>,
}

/// Pieces of memory.
pub(crate) type Regions = ArrayVec<Extent, REGIONS_MAX>;

impl Nodes {
    /// Of a machine that says nothing of them.
    pub const fn none() -> Nodes {
        Nodes { cores: [None; CORES_MAX], memory: ArrayVec::new_const() }
    }

    /// Core `core` is of this node.
    pub fn add_core(&mut self, core: usize, node: u32) {
        if let Some(place) = self.cores.get_mut(core) {
            *place = Some(node);
        }
    }

    /// This memory is of this node. Value: false if there is no room for it.
    pub fn add_memory(&mut self, range: Extent, node: u32) -> bool {
        self.memory.try_push((range, node)).is_ok()
    }

    /// The cores of the same node as this one, a bit each. Those without a node are of one, too.
    pub(crate) fn beside(&self, core: usize) -> u64 {
        let same = (0..CORES_MAX).filter(|n| self.cores[*n] == self.cores[core]);
        same.fold(0, |mask, n| mask | 1 << n)
    }

    /// What of `free` is near these cores; all of it, if nothing is said of them or of memory. None: it is in more
    /// pieces than there is room for.
    pub(crate) fn near(&self, cores: u64, free: &Regions) -> Option<Regions> {
        let is_near = |node: u32| (0..CORES_MAX).any(|n| cores & 1 << n != 0 && self.cores[n] == Some(node));
        if self.memory.is_empty() || (0..CORES_MAX).all(|n| cores & 1 << n == 0 || self.cores[n].is_none()) {
            return Some(free.clone());
        }
        let near = self.memory.iter().filter(|(_, node)| is_near(*node)).map(|(range, _)| *range);
        // All but those ranges: the gaps between them, and what is behind the last.
        let (mut far, mut at) = (Regions::new(), 0);
        for range in disjoint(near).ok()? {
            far.try_push(Extent { start: at, len: range.start - at }).ok()?;
            at = range.start.saturating_add(range.len);
        }
        far.try_push(Extent { start: at, len: u64::MAX - at }).ok()?;
        without(free.iter().copied(), &far).ok()
    }

    /// The nodes that a cell's cores and memory are of, in order; as many as there is room for.
    pub fn of(&self, cell: &Cell) -> ArrayVec<u32, 16> {
        let cores = (0..CORES_MAX).filter(|n| cell.cores & 1 << n != 0).filter_map(|n| self.cores[n]);
        let end = |e: &Extent| e.start.saturating_add(e.len);
        let holds =
            |range: &Extent| cell.extents.iter().any(|e| e.start < end(range) && range.start < end(e));
        let memory = self.memory.iter().filter(|(range, _)| holds(range)).map(|(_, node)| *node);
        let mut found: ArrayVec<u32, 16> = ArrayVec::new();
        for node in cores.chain(memory) {
            if !found.contains(&node) && found.try_push(node).is_err() {
                break;
            }
        }
        found.sort_unstable();
        found
    }
}
