//! ext4 on a disk, read-only below a tmpfs: a tree that begins with what the disk has, and whose changes stay in
//! memory.
//!
//! Nothing is read before it is needed: a directory, with the inodes it names, when it is first looked into; where a
//! file's bytes are, when they are first read; the bytes, each time, by way of [`crate::disk`]. A disk comes from
//! outside: all that is read is checked, by the file system's own checksums where it has them, and what can't be is
//! EUCLEAN, as on Linux, with a line in the log that says what and where.
//!
//! The format is that of Linux's `Documentation/filesystems/ext4/`. Not read: files by block maps (ext2, ext3), inline
//! data, encrypted and case-folded directories, extended attributes, and a journal that has not been played back.
//!
//! Why no crate: `ext4-view` (1.0) knows no inode numbers, and so no hard links, finds a place in a file by walking
//! there from its start, and can't be shared by cores.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Display;
use core::sync::atomic::{AtomicU32, Ordering};

use atoll_abi::layout::PAGE;
use atoll_abi::{Errno, Result, platform};
use atoll_mem::io::Sink;
use atoll_sync::{Mutex, SetOnce};
use hashbrown::{HashMap, HashSet};
use linux_raw_sys::general as linux;

use crate::chunks::{self, Chunks};
use crate::disk::{Cache, Disk};
use crate::tmp::{Stored, StoredBody, StoredDir, TmpFs, TmpNode};
use crate::types::{Attr, FileType, Time};

/// Where the superblock is, and how long.
const SUPERBLOCK: u64 = 1024;
const MAGIC: u16 = 0xef53;
/// Inode number of the root directory.
const ROOT: u32 = 2;
/// Longest target of a link.
const TARGET_MAX: u64 = 4095;
/// A target that is shorter than this is in the inode.
const TARGET_IN_INODE: u64 = 60;
/// Lines about damage, of one disk.
const LINES_MAX: u32 = 20;

/// Features without which a file system can't be read, and their names in `mke2fs`.
mod feature {
    pub const RECOVER: u32 = 0x4;
    pub const SIXTY_FOUR: u32 = 0x80;
    pub const CHECKSUM_SEED: u32 = 0x2000;
    /// File types in directories, extents, 64 bits, protection against mounting twice, flexible groups, attributes in
    /// inodes of their own, the checksums' seed, large directories.
    pub const KNOWN: u32 = 0x2 | 0x40 | SIXTY_FOUR | 0x100 | 0x200 | 0x400 | CHECKSUM_SEED | 0x4000;
    pub const NAMES: [(u32, &str); 6] = [
        (0x8, "journal_dev"),
        (0x10, "meta_bg"),
        (0x1000, "dirdata"),
        (0x8000, "inline_data"),
        (0x10000, "encrypt"),
        (0x20000, "casefold"),
    ];
    /// One that only matters to who writes, and here: checksums of all metadata.
    pub const CHECKSUMS: u32 = 0x400;
}

/// Flags of inodes.
mod flag {
    pub const ENCRYPTED: u32 = 0x800;
    pub const EXTENTS: u32 = 0x8_0000;
    pub const INLINE: u32 = 0x1000_0000;
}

const fn crc_table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut n = 0;
    while n < 256 {
        let (mut crc, mut bit) = (n as u32, 0);
        while bit < 8 {
            crc = if crc & 1 != 0 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
            bit += 1;
        }
        table[n] = crc;
        n += 1;
    }
    table
}

/// CRC-32C as Linux has it: without the inversions at both ends.
fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    static TABLE: [u32; 256] = crc_table();
    bytes.iter().fold(crc, |crc, b| TABLE[(crc as u8 ^ b) as usize] ^ crc >> 8)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

/// A number whose halves are at two places.
fn u64_of(bytes: &[u8], low: usize, high: usize) -> u64 {
    u64::from(u32_at(bytes, low)) | u64::from(u32_at(bytes, high)) << 32
}

/// What is wrong with a directory's block, if anything is.
type Checked<T> = core::result::Result<T, &'static str>;

/// Passes the names in a block on, but for "." and "..".
fn each_name(mut records: &[u8], mut f: impl FnMut(&[u8], u32) -> Checked<()>) -> Checked<()> {
    while !records.is_empty() {
        let (number, len) = (u32_at(records, 0), usize::from(u16_at(records, 4)));
        // Blocks of 64 KiB say so in another way.
        let len = if len == 0 || len == 0xffff { 0x1_0000 } else { len };
        let record = records.get(..len).ok_or("a record that does not end in its block")?;
        let name_len = usize::from(*record.get(6).ok_or("a record that is too short")?);
        if len < 8 || !len.is_multiple_of(4) {
            return Err("a record's length");
        }
        if number != 0 {
            let name = record.get(8..8 + name_len).ok_or("a name that does not end in its record")?;
            if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
                return Err("an impossible name");
            }
            if !matches!(name, b"." | b"..") {
                f(name, number)?;
            }
        }
        records = &records[len..];
    }
    Ok(())
}

/// A file system on a disk.
struct Volume {
    cache: Arc<Cache>,
    /// Bytes of a block.
    block: u64,
    blocks: u64,
    inodes: u32,
    inodes_per_group: u32,
    inode_size: usize,
    /// Where the descriptors of the groups begin, bytes, and how long each is.
    groups_at: u64,
    group_size: usize,
    /// What checksums begin with, if there are any.
    seed: Option<u32>,
    /// Lines about damage so far.
    said: AtomicU32,
}

/// An inode.
struct Inode {
    number: u32,
    attr: Attr,
    flags: u32,
    /// The root of its extents, a link's target, or a device's number.
    root: [u8; 60],
    /// What its checksums begin with.
    seed: Option<u32>,
}

/// Blocks of a file that lie one after the other.
struct Run {
    /// The first, in the file.
    at: u64,
    len: u64,
    /// The same on the disk; 0: zeroes.
    start: u64,
}

impl Volume {
    fn new(disk: Box<dyn Disk>) -> core::result::Result<Volume, String> {
        let cache = Cache::new(disk);
        let mut s = [0; 1024];
        cache.read(SUPERBLOCK, &mut s).map_err(|e| format!("its superblock can't be read ({e})"))?;
        if u16_at(&s, 0x38) != MAGIC {
            return Err("there is no ext4 on it: mkfs.ext4 -d makes such an image of a directory".into());
        }
        let needs = u32_at(&s, 0x60);
        if needs & feature::RECOVER != 0 {
            return Err(
                "it was not unmounted, and its journal has changes: e2fsck -p puts them in place".into()
            );
        }
        if let unknown @ 1.. = needs & !feature::KNOWN {
            let names = feature::NAMES.iter().filter(|(bit, _)| unknown & bit != 0).map(|(_, name)| *name);
            let names: Vec<&str> = names.collect();
            return Err(format!(
                "its features {unknown:#x} ({}) are not supported: mkfs.ext4 -O ^NAME leaves one out",
                names.join(", ")
            ));
        }
        let wrong = |what: &str| Err(format!("its superblock is damaged: {what}; e2fsck may repair it"));
        let checked = u32_at(&s, 0x64) & feature::CHECKSUMS != 0;
        if checked && (s[0x175] != 1 || crc32c(!0, &s[..0x3fc]) != u32_at(&s, 0x3fc)) {
            return wrong("its checksum");
        }
        let shift = u32_at(&s, 0x18);
        if shift > 6 {
            return wrong("the size of blocks");
        }
        let block = 1024u64 << shift;
        let wide = needs & feature::SIXTY_FOUR != 0;
        let blocks = u64_of(&s, 0x4, 0x150) & if wide { u64::MAX } else { u64::from(u32::MAX) };
        if blocks.checked_mul(block).is_none_or(|bytes| bytes > cache.size()) {
            return Err(format!(
                "its file system has {blocks} blocks of {block} bytes, and it has {} bytes: it was cut off",
                cache.size()
            ));
        }
        let first = u64::from(u32_at(&s, 0x14));
        let (per_group, inodes_per_group) = (u64::from(u32_at(&s, 0x20)), u32_at(&s, 0x28));
        if per_group == 0
            || per_group > block * 8
            || u64::from(inodes_per_group) > block * 8
            || first >= blocks
        {
            return wrong("the size of groups");
        }
        let groups = (blocks - first).div_ceil(per_group);
        let inodes = u32_at(&s, 0);
        if inodes < ROOT || inodes_per_group == 0 || u64::from(inodes.div_ceil(inodes_per_group)) > groups {
            return wrong("the number of inodes");
        }
        let old = u32_at(&s, 0x4c) == 0;
        let inode_size = if old { 128 } else { usize::from(u16_at(&s, 0x58)) };
        if !inode_size.is_power_of_two() || inode_size < 128 || inode_size as u64 > block {
            return wrong("the size of inodes");
        }
        let group_size = if wide { usize::from(u16_at(&s, 0xfe)) } else { 32 };
        if !group_size.is_power_of_two() || !(32..=1024).contains(&group_size) || wide && group_size < 64 {
            return wrong("the size of groups' descriptors");
        }
        let seed = match needs & feature::CHECKSUM_SEED {
            0 => crc32c(!0, &s[0x68..0x78]),
            _ => u32_at(&s, 0x270),
        };
        let (groups_at, said) = ((first + 1) * block, AtomicU32::new(0));
        if u16_at(&s, 0x3a) & 2 != 0 {
            platform().log("a disk's file system has errors noted: e2fsck may repair it");
        }
        let seed = checked.then_some(seed);
        Ok(Volume {
            cache,
            block,
            blocks,
            inodes,
            inodes_per_group,
            inode_size,
            groups_at,
            group_size,
            seed,
            said,
        })
    }

    /// Something is not as it should be.
    fn damaged(&self, what: impl Display) -> Errno {
        match self.said.fetch_add(1, Ordering::Relaxed) {
            n if n < LINES_MAX => platform().log(&format!("a disk's file system is damaged: {what}")),
            LINES_MAX => platform().log("a disk's file system is damaged in more places"),
            _ => {}
        }
        Errno::EUCLEAN
    }

    /// Reads a block that has metadata of an inode.
    fn read_block(&self, number: u64, of: u32) -> Result<Vec<u8>> {
        if number == 0 || number >= self.blocks {
            return Err(self.damaged(format!("inode {of} has a block {number}")));
        }
        let mut bytes = alloc::vec![0; self.block as usize];
        self.cache.read(number * self.block, &mut bytes)?;
        Ok(bytes)
    }

    /// The block where a group's inodes begin.
    fn inode_table(&self, group: u32) -> Result<u64> {
        let mut bytes = alloc::vec![0; self.group_size];
        self.cache.read(self.groups_at + u64::from(group) * self.group_size as u64, &mut bytes)?;
        if let Some(seed) = self.seed {
            let crc = crc32c(seed, &group.to_le_bytes());
            let crc = crc32c(crc32c(crc32c(crc, &bytes[..0x1e]), &[0; 2]), &bytes[0x20..]);
            if crc as u16 != u16_at(&bytes, 0x1e) {
                return Err(self.damaged(format!("the checksum of group {group}")));
            }
        }
        let high = if self.group_size >= 64 { u64::from(u32_at(&bytes, 0x28)) << 32 } else { 0 };
        let table = u64::from(u32_at(&bytes, 0x8)) | high;
        let len = (u64::from(self.inodes_per_group) * self.inode_size as u64).div_ceil(self.block);
        if table == 0 || table.checked_add(len).is_none_or(|end| end > self.blocks) {
            return Err(self.damaged(format!("group {group} has its inodes at block {table}")));
        }
        Ok(table)
    }

    fn inode(&self, number: u32) -> Result<Inode> {
        if number == 0 || number > self.inodes {
            return Err(self.damaged(format!("there is no inode {number}")));
        }
        let (group, index) = ((number - 1) / self.inodes_per_group, (number - 1) % self.inodes_per_group);
        let at = self.inode_table(group)? * self.block + u64::from(index) * self.inode_size as u64;
        let mut i = alloc::vec![0; self.inode_size];
        self.cache.read(at, &mut i)?;
        // How much there is beyond the 128 bytes that there always are.
        let extra = if self.inode_size > 128 { usize::from(u16_at(&i, 0x80)) } else { 0 };
        if 128 + extra > self.inode_size {
            return Err(self.damaged(format!("inode {number} is too long")));
        }
        let generation = &i[0x64..0x68];
        let seed = self.seed.map(|seed| crc32c(crc32c(seed, &number.to_le_bytes()), generation));
        if let Some(seed) = seed {
            let crc = crc32c(crc32c(crc32c(seed, &i[..0x7c]), &[0; 2]), &i[0x7e..0x80]);
            let (found, crc) = if extra >= 4 {
                let crc = crc32c(crc32c(crc32c(crc, &i[0x80..0x82]), &[0; 2]), &i[0x84..]);
                (u32::from(u16_at(&i, 0x7c)) | u32::from(u16_at(&i, 0x82)) << 16, crc)
            } else {
                (u32::from(u16_at(&i, 0x7c)), crc32c(crc, &i[0x80..]) & 0xffff)
            };
            if found != crc {
                return Err(self.damaged(format!("the checksum of inode {number}")));
            }
        }
        let (mode, flags) = (u32::from(u16_at(&i, 0)), u32_at(&i, 0x20));
        let nlink = u32::from(u16_at(&i, 0x1a));
        let size = u64_of(&i, 0x4, 0x6c);
        let kind = FileType::from_mode(mode);
        let known = kind as u32 == mode & linux::S_IFMT;
        let fits = match kind {
            FileType::Regular => size <= i64::MAX as u64,
            // No block is there twice.
            FileType::Directory => size <= self.blocks * self.block,
            FileType::Symlink => (1..=TARGET_MAX).contains(&size),
            _ => true,
        };
        if nlink == 0 || !known || !fits {
            return Err(self.damaged(format!("inode {number}: mode {mode:o}, {nlink} links, {size} bytes")));
        }
        // Seconds are signed; behind them two bits more and the nanoseconds, if there is room.
        let time = |low: usize, more: usize| {
            let more = if extra + 128 >= more + 4 { u32_at(&i, more) } else { 0 };
            let sec = i64::from(u32_at(&i, low) as i32) + (i64::from(more & 3) << 32);
            Time { sec, nsec: (more >> 2).min(999_999_999) }
        };
        let mut root = [0; 60];
        root.copy_from_slice(&i[0x28..0x64]);
        // A device's number, old (16 bits) or new, as `huge_encode_dev` has it.
        let (old, new) = (u64::from(u32_at(&root, 0)), u64::from(u32_at(&root, 4)));
        let attr = Attr {
            ino: u64::from(number),
            mode,
            nlink,
            uid: u32::from(u16_at(&i, 0x2)) | u32::from(u16_at(&i, 0x78)) << 16,
            gid: u32::from(u16_at(&i, 0x18)) | u32::from(u16_at(&i, 0x7a)) << 16,
            rdev: if old != 0 { old } else { new },
            size,
            blocks: u64::from(u32_at(&i, 0x1c)) | u64::from(u16_at(&i, 0x74)) << 32,
            atime: time(0x8, 0x8c),
            mtime: time(0x10, 0x88),
            ctime: time(0xc, 0x84),
            ..Attr::default()
        };
        Ok(Inode { number, attr, flags, root, seed })
    }

    /// Where an inode's bytes are.
    fn runs(&self, inode: &Inode) -> Result<Box<[Run]>> {
        if inode.flags & flag::EXTENTS == 0 || inode.flags & (flag::INLINE | flag::ENCRYPTED) != 0 {
            if inode.attr.size > 0 {
                self.damaged(format!(
                    "inode {} is stored in a way that is not read here (flags {:#x})",
                    inode.number, inode.flags
                ));
                return Err(Errno::EOPNOTSUPP);
            }
            return Ok(Box::default());
        }
        let (mut runs, mut next) = (Vec::new(), 0);
        self.extents(inode, &inode.root, None, &mut next, &mut runs)?;
        Ok(runs.into())
    }

    /// Adds what a node of an inode's tree of extents has. `depth`: what it must be; `next`: the first block of the
    /// file that may be next, which grows with every leaf: so there is an end.
    fn extents(
        &self,
        inode: &Inode,
        node: &[u8],
        depth: Option<u16>,
        next: &mut u64,
        runs: &mut Vec<Run>,
    ) -> Result<()> {
        const HEADER: usize = 12;
        const ENTRY: usize = 12;
        const DEEPEST: u16 = 5;
        let wrong = |what: &str| Err(self.damaged(format!("inode {}, its extents: {what}", inode.number)));
        let (entries, room, its_depth) = (u16_at(node, 2), u16_at(node, 4), u16_at(node, 6));
        if u16_at(node, 0) != 0xf30a || usize::from(room) > (node.len() - HEADER) / ENTRY || entries > room {
            return wrong("a node's header");
        }
        if depth.map_or(its_depth > DEEPEST, |depth| its_depth != depth || entries == 0) {
            return wrong("a node's depth");
        }
        if let (Some(seed), Some(_)) = (inode.seed, depth) {
            let tail = HEADER + ENTRY * usize::from(room);
            if node.len() < tail + 4 || crc32c(seed, &node[..tail]) != u32_at(node, tail) {
                return wrong("a node's checksum");
            }
        }
        for entry in node[HEADER..].chunks_exact(ENTRY).take(entries.into()) {
            let at = u64::from(u32_at(entry, 0));
            if at < *next {
                return wrong("they overlap");
            }
            if its_depth > 0 {
                let child = u64::from(u32_at(entry, 4)) | u64::from(u16_at(entry, 8)) << 32;
                let child = self.read_block(child, inode.number)?;
                self.extents(inode, &child, Some(its_depth - 1), next, runs)?;
                continue;
            }
            const LONGEST: u64 = 0x8000;
            let len = u64::from(u16_at(entry, 4));
            // Longer ones are reserved and not written.
            let (len, written) = if len > LONGEST { (len - LONGEST, false) } else { (len, true) };
            let start = u64::from(u32_at(entry, 8)) | u64::from(u16_at(entry, 6)) << 32;
            if len == 0 || start == 0 || start.checked_add(len).is_none_or(|end| end > self.blocks) {
                return wrong("one is not on the disk");
            }
            runs.push(Run { at, len, start: if written { start } else { 0 } });
            *next = at + len;
        }
        Ok(())
    }

    /// Names and inode numbers of a directory.
    fn names(&self, inode: &Inode) -> Result<Vec<(Vec<u8>, u32)>> {
        let wrong = |what: &str| self.damaged(format!("directory inode {}: {what}", inode.number));
        if inode.attr.size == 0 || !inode.attr.size.is_multiple_of(self.block) {
            return Err(wrong("its size"));
        }
        let runs = self.runs(inode)?;
        let (mut names, mut seen) = (Vec::new(), HashSet::new());
        let mut here = 0;
        let end = inode.attr.size / self.block;
        for run in &runs {
            if run.at != here || run.start == 0 {
                return Err(wrong("it has a hole"));
            }
            for n in 0..run.len.min(end - here) {
                let block = self.read_block(run.start + n, inode.number)?;
                let records = self.records(inode, &block).map_err(wrong)?;
                each_name(&block[..records], |name, number| {
                    if !seen.insert(name.to_vec()) {
                        return Err("it has a name twice");
                    }
                    names.push((name.to_vec(), number));
                    Ok(())
                })
                .map_err(wrong)?;
            }
            here = (here + run.len).min(end);
        }
        if here != end {
            return Err(wrong("it has a hole"));
        }
        Ok(names)
    }

    /// How much of a directory's block is records, after a look at its checksum.
    fn records(&self, inode: &Inode, block: &[u8]) -> Checked<usize> {
        /// A record without a name at the end, for the checksum.
        const TAIL: usize = 12;
        let Some(seed) = inode.seed else { return Ok(block.len()) };
        let end = block.len() - TAIL;
        let tail = &block[end..];
        if u32_at(tail, 0) == 0 && u16_at(tail, 4) == TAIL as u16 && tail[6] == 0 && tail[7] == 0xde {
            return if crc32c(seed, &block[..end]) == u32_at(tail, 8) { Ok(end) } else { Err("a checksum") };
        }
        // A block of the index that large directories have: its checksum is elsewhere, and of the names
        // in the order of the blocks it has none but "." and "..".
        let root = block[..12] == [&inode.number.to_le_bytes()[..], &[12, 0, 1, 2, b'.', 0, 0, 0]].concat();
        let inner = u32_at(block, 0) == 0 && u16_at(block, 4) as usize == block.len() & 0xffff;
        if root || inner { Ok(block.len()) } else { Err("a block without a checksum") }
    }

    /// Target of a symbolic link.
    fn target(&self, inode: &Inode) -> Result<Vec<u8>> {
        let len = inode.attr.size;
        let target = if len < TARGET_IN_INODE {
            inode.root[..len as usize].to_vec()
        } else {
            let runs = self.runs(inode)?;
            let run = runs.first().filter(|r| r.at == 0 && r.start != 0 && len <= self.block);
            let start = run.map_or(0, |r| r.start);
            let mut block = self.read_block(start, inode.number)?;
            block.truncate(len as usize);
            block
        };
        if target.contains(&0) {
            return Err(self.damaged(format!("inode {}, a link: its target", inode.number)));
        }
        Ok(target)
    }
}

/// A file's bytes on the disk.
struct Contents {
    volume: Arc<Volume>,
    inode: Inode,
    runs: SetOnce<Box<[Run]>>,
}

impl chunks::Stored for Contents {
    fn read(&self, sink: &mut Sink, at: u64, len: usize) -> Result<usize> {
        if self.runs.get().is_none() {
            // Another thread may be faster: what it finds is the same.
            let _ = self.runs.set(self.volume.runs(&self.inode)?);
        }
        let runs = self.runs.get().ok_or(Errno::EIO)?;
        let size = self.volume.block;
        let block = at / size;
        let next = runs.partition_point(|r| r.at + r.len <= block);
        let run = runs.get(next);
        let room = |blocks_end: u64| len.min((blocks_end.saturating_mul(size) - at) as usize);
        match run {
            Some(r) if r.at <= block && r.start != 0 => {
                let on_disk = (r.start + (block - r.at)) * size + at % size;
                self.volume.cache.put(sink, on_disk, room(r.at + r.len))
            }
            Some(r) if r.at <= block => sink.put_zeroes(room(r.at + r.len)),
            Some(r) => sink.put_zeroes(room(r.at)),
            None => sink.put_zeroes(len),
        }
    }

    fn pages(&self) -> u64 {
        (self.inode.attr.blocks * 512).div_ceil(PAGE)
    }
}

/// What is known of the tree beyond the nodes that are there.
#[derive(Default)]
struct Known {
    /// Directories that have a name.
    dirs: HashSet<u32>,
    /// Files with several names.
    linked: HashMap<u32, Arc<TmpNode>>,
}

struct Tree {
    volume: Arc<Volume>,
    known: Mutex<Known>,
}

/// A directory of the tree.
struct Names {
    tree: Arc<Tree>,
    inode: Inode,
}

impl StoredDir for Names {
    fn read(&self, fs: &TmpFs) -> Result<Vec<(Vec<u8>, Arc<TmpNode>)>> {
        let volume = &self.tree.volume;
        let names = volume.names(&self.inode)?;
        let inodes = names.iter().map(|(_, number)| volume.inode(*number)).collect::<Result<Vec<_>>>()?;
        let mut known = self.tree.known.lock();
        // First those for which all this may be in vain.
        let mut dirs = HashSet::new();
        for inode in inodes.iter().filter(|i| i.attr.kind() == FileType::Directory) {
            if known.dirs.contains(&inode.number) || !dirs.insert(inode.number) {
                return Err(volume.damaged(format!("directory inode {} has two names", inode.number)));
            }
        }
        let mut nodes = Vec::with_capacity(names.len());
        for ((name, number), inode) in names.into_iter().zip(inodes) {
            if let Some(node) = known.linked.get(&number) {
                nodes.push((name, node.clone()));
                continue;
            }
            let linked = inode.attr.nlink > 1 && inode.attr.kind() != FileType::Directory;
            let node = Tree::node(&self.tree, fs, inode)?;
            if linked {
                known.linked.insert(number, node.clone());
            }
            nodes.push((name, node));
        }
        known.dirs.extend(dirs);
        Ok(nodes)
    }

    fn size(&self) -> u64 {
        self.inode.attr.size
    }
}

impl Tree {
    fn node(tree: &Arc<Tree>, fs: &TmpFs, inode: Inode) -> Result<Arc<TmpNode>> {
        let (id, attr) = (u64::from(inode.number), inode.attr);
        let body = match attr.kind() {
            FileType::Directory => StoredBody::Dir(Box::new(Names { tree: tree.clone(), inode })),
            FileType::Regular => {
                let contents = Contents { volume: tree.volume.clone(), inode, runs: SetOnce::new() };
                StoredBody::File(Chunks::stored(Arc::new(contents), attr.size))
            }
            FileType::Symlink => StoredBody::Symlink(tree.volume.target(&inode)?),
            _ => StoredBody::Other,
        };
        Ok(fs.stored(Stored { id, attr, body }))
    }
}

/// A file system whose changes take at most `limit` bytes, with all that a disk has, and its root. An error says what
/// is wrong with the disk.
pub fn mount(disk: Box<dyn Disk>, limit: u64) -> core::result::Result<(Arc<TmpFs>, Arc<TmpNode>), String> {
    let volume = Arc::new(Volume::new(disk)?);
    let fs = TmpFs::bare(limit, u64::from(volume.inodes) + 1);
    let root = volume.inode(ROOT).map_err(|e| format!("its root can't be read: {e}"))?;
    if root.attr.kind() != FileType::Directory {
        return Err("its root is no directory".into());
    }
    let tree = Arc::new(Tree { volume, known: Mutex::default() });
    tree.known.lock().dirs.insert(ROOT);
    let root = Tree::node(&tree, &fs, root).map_err(|e| format!("its root can't be read: {e}"))?;
    Ok((fs, root))
}

#[cfg(test)]
mod tests {
    /// The check value of CRC-32C, which has the inversions.
    #[test]
    fn checksum_is_crc32c() {
        assert_eq!(!super::crc32c(!0, b"123456789"), 0xe306_9283);
    }
}
