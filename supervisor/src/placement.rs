//! Which processors a cell's cores are pinned to, and which memory is near them.
//!
//! Cells of a host stay out of each other's way: each one holds a lock on a byte of a file in the registry's directory for every processor
//! that a core of it is pinned to, out of the bytes that this processor has there. So the number of bytes that are taken says how
//! many cells have a processor, and what a supervisor had is free when it is gone, however it ended. Nobody is kept from anything: where
//! there are more cores than processors, those with the fewest cells are shared.
//!
//! Memory comes from the nodes (NUMA) of these processors as long as they have some. The policy is the file's
//! (`mbind(2)`, `shmem`), so that it is followed by whoever touches a page first: a core, or the thread that has memory ready.
#![allow(unsafe_code, reason = "locks of open file descriptions and mbind have no safe wrapper here")]

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::memory::Mapping;
use crate::registry;

/// Name of the file in the registry's directory.
const NAME: &str = "processors";
/// Bytes of a processor, so many cells of it are counted; and processors at most.
const PLACES: i64 = 64;
const CPUS_MAX: usize = 1 << 16;
/// How often is begun anew because another cell was faster.
const TRIES: usize = 8;

/// Processors for a cell's cores, in the order of the cores.
pub struct Placement {
    /// One for each core.
    pub cpus: Vec<usize>,
    /// Their nodes, if there are others.
    near: Option<Vec<usize>>,
    /// Has the locks.
    _held: Option<File>,
}

/// A processor: its number, its node, how many cells have it, and the first of its bytes that none has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Processor {
    cpu: usize,
    node: usize,
    cells: usize,
    free: i64,
}

impl Placement {
    /// Chooses processors among `allowed` (not fewer) for `cores` cores, of which a cell begins with `online`, and says so to cells that
    /// come later.
    pub fn new(allowed: &[usize], cores: usize, online: usize) -> Placement {
        let file = registry::directory().and_then(|dir| {
            registry::prepare(&dir)?;
            open(&dir.join(NAME)).map_err(|e| crate::Error::with("opening it", e))
        });
        let nodes = nodes();
        match file {
            Ok(file) => place(file, allowed, &nodes, cores, online),
            // Others can't be told then, nor do they tell.
            Err(_) => Placement::of(allowed[..cores].to_vec(), &nodes, None),
        }
    }

    fn of(cpus: Vec<usize>, nodes: &BTreeMap<usize, usize>, held: Option<File>) -> Placement {
        let near: Vec<usize> = cpus.iter().filter_map(|cpu| nodes.get(cpu).copied()).collect();
        let are_others = nodes.values().any(|node| !near.contains(node));
        Placement { cpus, near: are_others.then_some(near), _held: held }
    }

    /// Has a cell's memory come from the nodes of its processors, where there are others, as long as they have some.
    pub(crate) fn bring_near(&self, memory: &Mapping, len: u64) {
        if let Some(near) = self.near.as_ref().filter(|near| !near.is_empty()) {
            // If it fails, memory comes from where it is first touched, as without.
            let _ = prefer(memory, len, near);
        }
    }
}

fn open(path: &Path) -> std::io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

fn place(
    file: File,
    allowed: &[usize],
    nodes: &BTreeMap<usize, usize>,
    cores: usize,
    online: usize,
) -> Placement {
    let mut cpus = Vec::new();
    for _ in 0..TRIES {
        let look = |&cpu: &usize| {
            let mut taken = Vec::new();
            find_taken(&file, cpu as i64 * PLACES, PLACES, &mut taken);
            taken.sort_unstable();
            let is_next = |(n, at): (usize, &i64)| *at == cpu as i64 * PLACES + n as i64;
            let free = taken.iter().enumerate().take_while(|(n, at)| is_next((*n, at))).count() as i64;
            let node = nodes.get(&cpu).copied().unwrap_or(0);
            Processor { cpu, node, cells: taken.len(), free: cpu as i64 * PLACES + free.min(PLACES - 1) }
        };
        let all: Vec<Processor> = allowed.iter().map(look).collect();
        let chosen = choose(&all, cores);
        cpus = chosen.iter().map(|p| p.cpu).collect();
        let locked = |p: &&Processor| lock(&file, p.free, libc::F_WRLCK);
        let got: Vec<_> = chosen[..online.min(cores)].iter().take_while(locked).collect();
        if got.len() == online.min(cores) {
            break;
        }
        // Somebody else has one of them by now.
        for p in got {
            lock(&file, p.free, libc::F_UNLCK);
        }
    }
    Placement::of(cpus, nodes, Some(file))
}

/// Those with the fewest cells, of one node if that makes no difference; the first cores get those with the fewest.
fn choose(all: &[Processor], cores: usize) -> Vec<Processor> {
    let mut nodes: BTreeMap<usize, Vec<Processor>> = BTreeMap::new();
    all.iter().for_each(|p| nodes.entry(p.node).or_default().push(*p));
    let several = nodes.len() > 1;
    let everywhere = several.then(|| all.to_vec());
    let best = |mut some: Vec<Processor>| {
        some.sort_by_key(|p| (p.cells, p.cpu));
        some.truncate(cores);
        (some.len() == cores).then_some(some)
    };
    nodes
        .into_values()
        .chain(everywhere)
        .filter_map(best)
        .min_by_key(|some| some.iter().map(|p| p.cells).sum::<usize>())
        .unwrap_or_default()
}

fn record(kind: i32, at: i64, len: i64) -> libc::flock {
    // SAFETY: numbers, of which 0 is a value.
    let mut record: libc::flock = unsafe { std::mem::zeroed() };
    record.l_type = kind as libc::c_short;
    record.l_whence = libc::SEEK_SET as libc::c_short;
    (record.l_start, record.l_len) = (at, len);
    record
}

/// Takes a byte, or lets it go. False: somebody else has it.
fn lock(file: &File, at: i64, kind: i32) -> bool {
    let record = record(kind, at, 1);
    // SAFETY: a valid record.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const record) == 0 }
}

/// Which of `len` bytes from `at` on somebody has. Which one the host names first is its business.
fn find_taken(file: &File, at: i64, len: i64, taken: &mut Vec<i64>) {
    if len <= 0 {
        return;
    }
    let mut record = record(libc::F_WRLCK, at, len);
    // SAFETY: a valid record.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut record) };
    if asked != 0 || record.l_type == libc::F_UNLCK as libc::c_short {
        return;
    }
    let found = record.l_start.clamp(at, at + len - 1);
    taken.push(found);
    find_taken(file, at, found - at, taken);
    find_taken(file, found + 1, at + len - found - 1, taken);
}

/// The node of each processor, as the host says. Where it says nothing, there is one.
fn nodes() -> BTreeMap<usize, usize> {
    let mut nodes = BTreeMap::new();
    for entry in std::fs::read_dir("/sys/devices/system/node").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|n| n.strip_prefix("node")?.parse::<usize>().ok());
        let Some(node) = number else { continue };
        let list = std::fs::read_to_string(entry.path().join("cpulist")).unwrap_or_default();
        nodes.extend(cpus_of(&list).into_iter().map(|cpu| (cpu, node)));
    }
    nodes
}

/// Reads a list such as `0-3,8` (cpuset(7)). What is no number is left out.
fn cpus_of(list: &str) -> Vec<usize> {
    let range = |part: &str| -> Option<std::ops::RangeInclusive<usize>> {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        Some(from.trim().parse().ok()?..=to.trim().parse().ok()?)
    };
    list.split(',').filter_map(range).flatten().take(CPUS_MAX).collect()
}

/// MPOL_PREFERRED_MANY, and where that isn't known (before Linux 5.15) MPOL_PREFERRED of the first. False: it failed.
fn prefer(memory: &Mapping, len: u64, nodes: &[usize]) -> bool {
    const NODES: usize = 1024;
    const MPOL_PREFERRED: i32 = 1;
    const MPOL_PREFERRED_MANY: i32 = 5;
    let policy = |mode: i32, nodes: &[usize]| {
        let mut mask = [0u64; NODES / 64];
        nodes.iter().filter(|n| **n < NODES).for_each(|n| mask[n / 64] |= 1 << (n % 64));
        // SAFETY: a mapping of this process, and a mask of so many bits; no memory changes.
        unsafe { libc::syscall(libc::SYS_mbind, memory.base(), len, mode, mask.as_ptr(), NODES, 0) == 0 }
    };
    policy(MPOL_PREFERRED_MANY, nodes) || policy(MPOL_PREFERRED, &nodes[..nodes.len().min(1)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(cells: &[usize], node: impl Fn(usize) -> usize, cores: usize) -> Vec<usize> {
        let of = |(cpu, cells): (usize, &usize)| Processor { cpu, node: node(cpu), cells: *cells, free: 0 };
        let all: Vec<Processor> = cells.iter().enumerate().map(of).collect();
        choose(&all, cores).iter().map(|p| p.cpu).collect()
    }

    #[test]
    fn the_fewest_cells_of_one_node() {
        let one = |_| 0;
        assert_eq!(chosen(&[0, 0, 0, 0], one, 2), [0, 1]);
        assert_eq!(chosen(&[1, 1, 0, 0], one, 2), [2, 3]);
        assert_eq!(chosen(&[1, 0, 2, 0], one, 3), [1, 3, 0]);
        let two = |cpu| cpu / 4;
        // Two free ones in one node rather than one in each.
        assert_eq!(chosen(&[1, 1, 1, 0, 1, 0, 0, 1], two, 2), [5, 6]);
        assert_eq!(chosen(&[0, 0, 0, 0, 0, 0, 0, 0], two, 4), [0, 1, 2, 3]);
        // Free ones of both rather than to share one.
        assert_eq!(chosen(&[1, 1, 1, 0, 0, 1, 1, 1], two, 2), [3, 4]);
        // More than a node has.
        assert_eq!(chosen(&[0; 8], two, 6), [0, 1, 2, 3, 4, 5]);
        assert_eq!(chosen(&[0; 8], |cpu| cpu % 2, 3), [0, 2, 4]);
        assert!(chosen(&[0; 2], one, 3).is_empty());
    }

    /// Cells keep out of each other's way, and what one had is free when it is gone.
    #[test]
    fn cells_count_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let nodes = (0..4).map(|cpu| (cpu, 0)).collect();
        let allowed = [0, 1, 2, 3];
        let start =
            |cores, online| place(open(&dir.path().join(NAME)).unwrap(), &allowed, &nodes, cores, online);
        let first = start(2, 2);
        let second = start(2, 2);
        let third = start(3, 1);
        assert_eq!((&first.cpus[..], &second.cpus[..]), (&[0, 1][..], &[2, 3][..]));
        // Of those that it may get later nobody is told.
        assert_eq!(third.cpus, [0, 1, 2]);
        let fourth = start(1, 1);
        assert_eq!(fourth.cpus, [1]);
        drop(first);
        assert_eq!(start(2, 2).cpus, [0, 1]);
        drop((second, third, fourth));
        // Who is left of those that came later is counted, too.
        let [first, second, third, fourth, later] = std::array::from_fn(|_| start(1, 1));
        assert_eq!(later.cpus, [0]);
        drop((first, second, third, fourth));
        let more = [start(1, 1), start(2, 2)];
        assert_eq!((&more[0].cpus[..], &more[1].cpus[..]), (&[1][..], &[2, 3][..]));
        assert_eq!(start(1, 1).cpus, [0]);
        drop((more, later));
        assert_eq!(start(4, 4).cpus, [0, 1, 2, 3]);
        // At the same time: none of them has what another one has.
        let together = std::sync::Barrier::new(4);
        let placed: Vec<Placement> = std::thread::scope(|s| {
            let one = || {
                together.wait();
                start(1, 1)
            };
            let threads: Vec<_> = (0..4).map(|_| s.spawn(one)).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let mut all: Vec<usize> = placed.iter().flat_map(|p| p.cpus.clone()).collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3]);
    }

    #[test]
    fn memory_is_near() {
        let nodes: BTreeMap<usize, usize> = (0..8).map(|cpu| (cpu, cpu / 4)).collect();
        let near = |cpus: &[usize]| Placement::of(cpus.to_vec(), &nodes, None).near;
        assert_eq!(near(&[4, 5]), Some(vec![1, 1]));
        assert_eq!(near(&[3, 4]), None);
        assert_eq!(Placement::of(vec![0], &(0..4).map(|cpu| (cpu, 0)).collect(), None).near, None);
    }

    #[test]
    fn lists_are_read() {
        assert_eq!(cpus_of("0-3,8, 10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(cpus_of(""), [0; 0]);
        assert_eq!(cpus_of("a,3-x,5\n"), [5]);
        assert!(cpus_of("0-18446744073709551615").len() <= CPUS_MAX);
    }

    /// The policy is the file's: it is seen in every mapping of it.
    #[test]
    fn memory_has_the_policy() {
        let len = 4 << 20;
        let file = crate::memory::anonymous("placement", len).unwrap();
        let memory = Mapping::new(&file, len).unwrap();
        if !prefer(&memory, len, &[0]) {
            // A kernel without nodes, or a container that may not say so.
            let why = std::io::Error::last_os_error().raw_os_error();
            assert!(matches!(why, Some(libc::ENOSYS | libc::EPERM)), "{why:?}");
            return;
        }
        let other = Mapping::new(&file, len).unwrap();
        let maps = std::fs::read_to_string("/proc/self/numa_maps").unwrap();
        for mapping in [&memory, &other] {
            let start = format!("{:x} ", mapping.base() as usize);
            let line = maps.lines().find(|l| l.starts_with(&start)).unwrap();
            assert!(line.contains("prefer"), "{line}");
        }
    }
}
