//! A tree of files from a cpio archive in memory, in the format "newc" of Linux's initramfs.
//!
//! The files' bytes stay in the archive until they are changed ([`crate::chunks`]): mounting costs a node
//! an entry. As in Linux (`init/initramfs.c`, `Documentation/driver-api/early-userspace/buffer-format.rst`)
//! several archives may follow each other, later entries replace earlier ones of the same name, and
//! contents come with any of a file's names. Unlike Linux, anything that is not as it should be is an
//! error: half a root file system is none.
//!
//! A file's rewriting plan comes as an entry of its own, [`PLANS`] and the file's inode number, somewhere before
//! its contents. It is no file.
//!
//! Why no crate: those that there are (`cpio_reader`, `cpio`) want names in UTF-8, and end quietly where
//! the archive is damaged.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use atoll_abi::control::PLANS;
use atoll_abi::{Errno, platform};
use hashbrown::HashMap;
use linux_raw_sys::general as linux;

use crate::namespace::NAME_MAX;
use crate::node::{Inode, InodeRef, NewNode};
use crate::tmp::{TmpFs, TmpNode};
use crate::types::{Cred, FileType, NewMode, SetAttr, Time};

const MAGIC: &[u8] = b"070701";
/// The magic and thirteen numbers of eight hexadecimal digits.
const HEADER: usize = 110;
/// Longest name, and longest target of a link, its zero byte included.
const PATH_MAX: usize = 4096;
/// Name of the entry behind an archive's last one.
const TRAILER: &[u8] = b"TRAILER!!!";
/// Links that the way to one entry may lead through.
const LINKS_MAX: u32 = 40;

/// What is wrong with an archive.
#[derive(Debug, PartialEq, Eq)]
pub struct Damaged {
    /// Offset in the archive, bytes.
    at: usize,
    /// The entry's name, if it is known.
    name: Vec<u8>,
    what: &'static str,
}

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.name.is_empty() {
            write!(f, "{}, ", self.name.escape_ascii())?;
        }
        write!(f, "at byte {}: {}", self.at, self.what)
    }
}

impl core::error::Error for Damaged {}

/// An entry; the last one of each archive is its trailer.
struct Entry<'a> {
    /// Offset in the archive.
    at: usize,
    name: &'a [u8],
    data: &'a [u8],
    ino: u32,
    mode: u32,
    uid: u32,
    gid: u32,
    nlink: u32,
    mtime: u32,
    dev: (u32, u32),
}

/// The entries of an archive. The first error is the last item.
struct Entries<'a> {
    bytes: &'a [u8],
    /// None: no more.
    next: Option<usize>,
    /// The last entry was a trailer, or there was none yet.
    complete: bool,
}

impl<'a> Entries<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Entries { bytes, next: Some(0), complete: false }
    }

    /// The entry at `at`, and where the next one is.
    fn entry(&self, at: usize) -> Result<(Entry<'a>, usize), Damaged> {
        let wrong = |what| Damaged { at, name: Vec::new(), what };
        let header = self.bytes.get(at..at + HEADER).ok_or(wrong("it ends within a header"))?;
        let (magic, numbers) = header.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(wrong("no header of the format newc"));
        }
        let mut n = [0; 13];
        for (n, digits) in n.iter_mut().zip(numbers.chunks_exact(8)) {
            *n = number(digits).ok_or(wrong("a header's number is none"))?;
        }
        let [ino, mode, uid, gid, nlink, mtime, size, major, minor, _, _, name_size, _] = n;
        if !(1..=PATH_MAX).contains(&(name_size as usize)) {
            return Err(wrong("a name of an impossible length"));
        }
        let end = at + HEADER + name_size as usize;
        let name = self.bytes.get(at + HEADER..end).ok_or(wrong("it ends within a name"))?;
        // It may be filled up with zeroes, so that what follows is aligned.
        let len = name.iter().position(|b| *b == 0).ok_or(wrong("a name without an end"))?;
        let name = &name[..len];
        let start = end.next_multiple_of(4);
        let end = start + size as usize;
        let data = if size == 0 { Some(&[][..]) } else { self.bytes.get(start..end) };
        let data = data.ok_or(Damaged { at, name: name.to_vec(), what: "it ends within the contents" })?;
        let entry = Entry { at, name, data, ino, mode, uid, gid, nlink, mtime, dev: (major, minor) };
        Ok((entry, end.next_multiple_of(4)))
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>, Damaged>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut at = self.next.take()?;
        if self.complete {
            // Filled up, or another archive.
            let rest = self.bytes.get(at..).unwrap_or_default();
            at += rest.iter().position(|b| *b != 0)? & !3;
        } else if at >= self.bytes.len() {
            return Some(Err(Damaged { at, name: Vec::new(), what: "it ends without a trailer" }));
        }
        Some(self.entry(at).map(|(entry, next)| {
            self.complete = entry.name == TRAILER;
            self.next = Some(next);
            entry
        }))
    }
}

fn number(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |n, d| Some(n << 4 | char::from(*d).to_digit(16)?))
}

/// A file with several names: its node, and its contents so far.
type Linked = (Arc<TmpNode>, &'static [u8]);

struct Builder {
    root: Arc<TmpNode>,
    /// By device and inode number.
    linked: HashMap<(u32, u32, u32), Linked>,
    /// Rewriting plans by inode number.
    plans: HashMap<u32, &'static [u8]>,
    /// Times of directories: making a name in one changes them.
    times: Vec<(Arc<TmpNode>, Time)>,
    /// Devices and sockets: how many, and the first.
    skipped: (usize, Vec<u8>),
}

/// A file system of at most `limit` bytes beside the archive's, with all that `archive` has, and its root.
pub fn mount(archive: &'static [u8], limit: u64) -> Result<(Arc<TmpFs>, Arc<TmpNode>), Damaged> {
    let (fs, root) = TmpFs::new(limit, 0o755);
    let (linked, plans) = (HashMap::new(), HashMap::new());
    let mut b = Builder { root: root.clone(), linked, plans, times: Vec::new(), skipped: (0, Vec::new()) };
    for entry in Entries::new(archive) {
        let entry = entry?;
        b.add(&entry).map_err(|what| Damaged { at: entry.at, name: entry.name.to_vec(), what })?;
    }
    for (node, time) in b.times {
        let change = SetAttr { atime: Some(time), mtime: Some(time), ..SetAttr::default() };
        // A node in memory takes any time.
        let _ = node.set_attr(&change, &Cred::root());
    }
    if let (n @ 1.., first) = b.skipped {
        let first = String::from_utf8_lossy(&first);
        platform().log(&format!("{n} devices and sockets of the archive are left out, {first} first"));
    }
    Ok((fs, root))
}

impl Builder {
    fn add(&mut self, entry: &Entry<'static>) -> Result<(), &'static str> {
        if entry.name == TRAILER {
            // Inode numbers are an archive's own.
            self.linked.clear();
            self.plans.clear();
            return Ok(());
        }
        if let Some(of) = entry.name.strip_prefix(PLANS.as_bytes()) {
            let ino = str::from_utf8(of).ok().and_then(|of| of.parse().ok()).ok_or("a plan of no file")?;
            self.plans.insert(ino, entry.data);
            return Ok(());
        }
        if entry.name.split(|b| *b == b'/').any(|name| name == b"..") {
            return Err("\"..\" in its name");
        }
        let kind = match entry.mode & linux::S_IFMT {
            linux::S_IFREG => FileType::Regular,
            linux::S_IFDIR => FileType::Directory,
            linux::S_IFLNK => FileType::Symlink,
            linux::S_IFIFO => FileType::Fifo,
            linux::S_IFCHR | linux::S_IFBLK | linux::S_IFSOCK => {
                if self.skipped.0 == 0 {
                    self.skipped.1 = entry.name.to_vec();
                }
                self.skipped.0 += 1;
                return Ok(());
            }
            _ => return Err("a file of no kind"),
        };
        let time = Time { sec: i64::from(entry.mtime), nsec: 0 };
        let Some((way, name)) = split(entry.name) else {
            if kind != FileType::Directory {
                return Err("the root is no directory");
            }
            return self.finish(self.root.clone(), entry, time);
        };
        let mut links = LINKS_MAX;
        let dir = enter(&self.root, &self.root, way, &mut links)?;
        let there = dir.child(name).map_err(|_| "in something that is no directory")?;
        if let Some(there) = &there
            && kind == FileType::Directory
            && there.kind() == kind
        {
            return self.finish(there.clone(), entry, time);
        }
        let key = (entry.dev.0, entry.dev.1, entry.ino);
        let may_be_linked = entry.nlink > 1 && matches!(kind, FileType::Regular | FileType::Fifo);
        let first = if may_be_linked { self.linked.get(&key).cloned() } else { None };
        let first = first.filter(|(node, _)| node.kind() == kind);
        // The contents come with one of the names, most often the last.
        let data =
            first.as_ref().map_or(entry.data, |(_, d)| if entry.data.is_empty() { d } else { entry.data });
        // Another entry may have taken its last name since.
        let first = first.map(|(node, _)| node).filter(|node| node.entry(b"").is_some_and(|e| !e.gone));
        let same = there.as_ref().zip(first.as_ref()).is_some_and(|(a, b)| Arc::ptr_eq(a, b));
        if there.is_some() && !same {
            dir.unlink(name, false, &Cred::root())
                .map_err(|_| "its name is a directory's that has entries")?;
        }
        let node = match first {
            Some(node) if same => node,
            Some(node) => {
                let inode: InodeRef = node.clone();
                dir.link(name, &inode, &Cred::root()).map_err(|_| "it could not be linked")?;
                node
            }
            None => make(&dir, name, kind, entry.data)?,
        };
        if kind == FileType::Regular {
            node.begin_with(data, self.plans.get(&entry.ino).copied())
                .map_err(|_| "a file without contents")?;
        }
        if may_be_linked {
            self.linked.insert(key, (node.clone(), data));
        }
        self.finish(node, entry, time)
    }

    /// Gives a node the entry's attributes.
    fn finish(&mut self, node: Arc<TmpNode>, entry: &Entry, time: Time) -> Result<(), &'static str> {
        let change = SetAttr {
            mode: Some(entry.mode & 0o7777),
            uid: Some(entry.uid),
            gid: Some(entry.gid),
            size: None,
            atime: Some(time),
            mtime: Some(time),
            now: false,
        };
        node.set_attr(&change, &Cred::root()).map_err(|_| "its attributes could not be set")?;
        if node.kind() == FileType::Directory {
            self.times.push((node, time));
        }
        Ok(())
    }
}

/// The names of a path: without empty ones and ".".
fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|b| *b == b'/').filter(|name| !matches!(*name, b"" | b"."))
}

/// A path's last name, and what stands before it. None: the path is the root.
fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let name = names(path).last()?;
    // What is behind it names nothing.
    let start = name.as_ptr().addr() - path.as_ptr().addr();
    Some((&path[..start], name))
}

/// The directory that a path leads to from `at`: those that are not there are made, links are followed.
fn enter(
    root: &Arc<TmpNode>,
    at: &Arc<TmpNode>,
    path: &[u8],
    links: &mut u32,
) -> Result<Arc<TmpNode>, &'static str> {
    let mut at = at.clone();
    for name in names(path) {
        if name == b".." {
            // Of a link: entries have none.
            at = at.above().unwrap_or_else(|| root.clone());
            continue;
        }
        let next = at.child(name).map_err(|_| "in something that is no directory")?;
        at = match next {
            None => make(&at, name, FileType::Directory, b"")?,
            Some(next) if next.kind() == FileType::Symlink => {
                *links = links.checked_sub(1).ok_or("behind too many links")?;
                let target = next.read_link().map_err(|_| "behind a link without a target")?;
                let start = if target.starts_with(b"/") { root } else { &at };
                enter(root, start, &target, links)?
            }
            Some(next) => next,
        };
    }
    Ok(at)
}

/// Makes a file, a directory, a link to `target` or a FIFO.
fn make(
    dir: &Arc<TmpNode>,
    name: &[u8],
    kind: FileType,
    target: &[u8],
) -> Result<Arc<TmpNode>, &'static str> {
    if name.len() > NAME_MAX {
        return Err("a name that is too long");
    }
    let new = match kind {
        FileType::Directory => NewNode::Directory,
        FileType::Symlink if target.is_empty() || target.len() >= PATH_MAX || target.contains(&0) => {
            return Err("a link with an impossible target");
        }
        FileType::Symlink => NewNode::Symlink(target),
        FileType::Fifo => NewNode::Special(kind, 0),
        _ => NewNode::File,
    };
    dir.create(name, new, NewMode::exactly(0o755), &Cred::root()).map_err(|e| match e {
        Errno::ENOTDIR => "in something that is no directory",
        _ => "it could not be made",
    })?;
    dir.child(name).ok().flatten().ok_or("it could not be made")
}
