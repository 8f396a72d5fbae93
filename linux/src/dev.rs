//! `/dev`.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use atoll_abi::layout::PAGE;
use atoll_abi::{Errno, Result};
use atoll_fs::device::{DEV, Device};
use atoll_fs::stream::{CONSOLE_INODE, CONSOLE_NUMBER, Stream};
use atoll_fs::{Attr, Cred, DirEntry, File, FileSystem, FileType, Inode, InodeRef, SetAttr, StatFs, Time};
use linux_raw_sys::general as linux;

use crate::{jobs, pty};

/// The file system.
struct DevFs {
    made: Time,
    terminal: Option<Arc<Stream>>,
}

impl FileSystem for DevFs {
    fn name(&self) -> &'static str {
        "devtmpfs"
    }

    fn stat(&self) -> Result<StatFs> {
        // TMPFS_MAGIC, as Linux has it for devtmpfs.
        Ok(StatFs { kind: 0x0102_1994, bsize: PAGE, namelen: 255, ..StatFs::default() })
    }
}

#[derive(Clone, Copy)]
enum What {
    Root,
    Device(Device),
    Terminal,
    /// Where pseudo terminals are made.
    Multiplexer,
    Link(&'static [u8]),
    /// An empty directory, for mounts.
    Dir,
}

const ENTRIES: &[(&str, What)] = &[
    ("", What::Root),
    ("null", What::Device(Device::Null)),
    ("zero", What::Device(Device::Zero)),
    ("full", What::Device(Device::Full)),
    ("random", What::Device(Device::Random)),
    ("urandom", What::Device(Device::Urandom)),
    ("tty", What::Terminal),
    ("console", What::Terminal),
    ("ptmx", What::Multiplexer),
    ("stdin", What::Link(b"/proc/self/fd/0")),
    ("stdout", What::Link(b"/proc/self/fd/1")),
    ("stderr", What::Link(b"/proc/self/fd/2")),
    ("fd", What::Link(b"/proc/self/fd")),
    ("shm", What::Dir),
    ("pts", What::Dir),
    ("mqueue", What::Dir),
];

/// A node of it: an index into the entries.
struct DevNode {
    fs: Arc<DevFs>,
    index: usize,
}

/// The root of `/dev`. `terminal`: the one that the cell has, if any.
pub fn dev_fs(terminal: Option<Arc<Stream>>) -> (Arc<dyn FileSystem>, InodeRef) {
    let fs = Arc::new(DevFs { made: Time::now(), terminal });
    (fs.clone(), Arc::new(DevNode { fs, index: 0 }))
}

impl DevNode {
    fn what(&self) -> What {
        ENTRIES[self.index].1
    }
}

impl Inode for DevNode {
    fn id(&self) -> u64 {
        if ENTRIES[self.index].0 == "console" { CONSOLE_INODE } else { self.index as u64 + 1 }
    }

    fn kind(&self) -> FileType {
        match self.what() {
            What::Root | What::Dir => FileType::Directory,
            What::Device(_) | What::Terminal | What::Multiplexer => FileType::Character,
            What::Link(_) => FileType::Symlink,
        }
    }

    fn attr(&self) -> Result<Attr> {
        let kind = self.kind();
        let (mode, rdev) = match self.what() {
            What::Root | What::Dir => (0o755, 0),
            What::Device(d) => (0o666, d.number()),
            What::Terminal if ENTRIES[self.index].0 == "console" => (0o620, CONSOLE_NUMBER),
            What::Terminal => (0o666, 0x500),
            What::Multiplexer => (0o666, 0x502),
            What::Link(_) => (0o777, 0),
        };
        let t = self.fs.made;
        Ok(Attr {
            ino: self.id(),
            dev: DEV,
            mode: kind as u32 | mode,
            nlink: if kind == FileType::Directory { 2 } else { 1 },
            rdev,
            blksize: 4096,
            atime: t,
            mtime: t,
            ctime: t,
            ..Attr::default()
        })
    }

    fn set_attr(&self, change: &SetAttr, _cred: &Cred) -> Result<()> {
        // Truncating a device does nothing.
        if change.size.is_some() { Ok(()) } else { Err(Errno::EPERM) }
    }

    /// Directories stay; of the rest, inodes are made anew each time, so that remembering them is no use.
    fn believed(&self, _attributes: bool) -> Option<u64> {
        matches!(self.what(), What::Root | What::Dir).then_some(u64::MAX)
    }

    fn file_system(&self) -> Arc<dyn FileSystem> {
        self.fs.clone()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn lookup(&self, name: &[u8]) -> Result<InodeRef> {
        if !matches!(self.what(), What::Root) {
            return Err(if self.kind() == FileType::Directory { Errno::ENOENT } else { Errno::ENOTDIR });
        }
        let index =
            ENTRIES.iter().position(|(n, _)| !n.is_empty() && n.as_bytes() == name).ok_or(Errno::ENOENT)?;
        Ok(Arc::new(DevNode { fs: self.fs.clone(), index }))
    }

    fn parent(&self) -> Option<InodeRef> {
        (self.index != 0).then(|| Arc::new(DevNode { fs: self.fs.clone(), index: 0 }) as InodeRef)
    }

    fn name(&self) -> Option<Vec<u8>> {
        Some(ENTRIES[self.index].0.as_bytes().to_vec())
    }

    fn list(&self, from: u64, most: usize) -> Result<Vec<DirEntry>> {
        if !matches!(self.what(), What::Root) {
            return if self.kind() == FileType::Directory { Ok(Vec::new()) } else { Err(Errno::ENOTDIR) };
        }
        let all = ENTRIES.iter().enumerate().skip(1 + from as usize).take(most);
        Ok(all
            .map(|(n, (name, _))| {
                let node = DevNode { fs: self.fs.clone(), index: n };
                DirEntry { name: name.as_bytes().to_vec(), ino: node.id(), kind: node.kind(), next: n as u64 }
            })
            .collect())
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        match self.what() {
            What::Link(t) => Ok(t.to_vec()),
            _ => Err(Errno::EINVAL),
        }
    }

    fn open(self: Arc<Self>, flags: u32, _cred: &Cred) -> Result<Arc<dyn File>> {
        match self.what() {
            What::Device(d) => Ok(Arc::new(d)),
            What::Multiplexer => pty::open_master(),
            What::Terminal => match &self.fs.terminal {
                _ if ENTRIES[self.index].0 == "tty"
                    && let Some(own) = pty::open_controlling(flags) =>
                {
                    own
                }
                // A session that has none.
                Some(_) if ENTRIES[self.index].0 == "tty" && jobs::own_console().is_err() => {
                    Err(Errno::ENXIO)
                }
                Some(t) => Ok(t.clone()),
                None => Err(Errno::ENXIO),
            },
            What::Root | What::Dir if flags & linux::O_ACCMODE == linux::O_RDONLY => Ok(Arc::new(Directory)),
            _ => Err(Errno::EISDIR),
        }
    }
}

/// An open directory here: it is listed by its inode.
pub struct Directory;

impl File for Directory {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn seekable(&self) -> bool {
        true
    }

    fn read(&self, _: &mut atoll_fs::Sink, _: Option<u64>, _: bool) -> Result<usize> {
        Err(Errno::EISDIR)
    }
}
