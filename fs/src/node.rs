//! What a file system is made of.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use atoll_abi::grid::Resource;
use atoll_abi::{Errno, Result};
use atoll_mem::io::{Sink, Source};
use atoll_mem::vm::Mappable;
use atoll_sync::WaitQueue;

use crate::errors::Errors;
use crate::namespace::Location;
use crate::open::OpenFile;
use crate::types::{Attr, Cred, DirEntry, FileType, NewMode, SetAttr, StatFs, poll};
use atoll_sync::RcuArc;

/// A shared inode.
pub type InodeRef = Arc<dyn Inode>;

/// What tells files apart, whatever names they have: device and inode number.
pub type Identity = (u64, u64);

/// Who has a regular file open to write to it, or runs it: nobody does one while others do the other (`open(2)`, ETXTBSY).
#[derive(Default)]
pub struct UseCount(AtomicI32);

impl UseCount {
    /// One more of a kind: `by` is 1 for who writes, -1 for who runs it. ETXTBSY: there are some of the other.
    pub fn enter(&self, by: i32) -> Result<()> {
        let fits = |n: i32| if n.signum() == -by { None } else { n.checked_add(by) };
        self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, fits).map(drop).map_err(|_| Errno::ETXTBSY)
    }

    /// One less.
    pub fn leave(&self, by: i32) {
        self.0.fetch_sub(by, Ordering::AcqRel);
    }
}

/// One who writes to a file or runs it, as long as this is kept.
pub struct InUse {
    inode: InodeRef,
    by: i32,
}

impl InUse {
    /// To write to it.
    pub fn to_write(inode: &InodeRef) -> Result<Self> {
        Self::new(inode, 1)
    }

    /// To run it.
    pub fn to_run(inode: &InodeRef) -> Result<Self> {
        Self::new(inode, -1)
    }

    fn new(inode: &InodeRef, by: i32) -> Result<Self> {
        inode.enter(by)?;
        Ok(InUse { inode: inode.clone(), by })
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.inode.leave(self.by);
    }
}

/// Where a file has its name.
pub struct Entry {
    /// The directory.
    pub dir: InodeRef,
    /// The name there.
    pub name: Vec<u8>,
    /// It was the last name, and is gone.
    pub gone: bool,
}

/// What to create under a name.
#[derive(Clone, Copy, Debug)]
pub enum NewNode<'a> {
    /// An empty regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link with this target.
    Symlink(&'a [u8]),
    /// A FIFO, a device with this number, or the name of a socket of this type (0: of none).
    Special(FileType, u64),
}

/// Where a link goes that is more than a text (`/proc/self/fd/3`).
pub enum Magic {
    /// A place in the tree.
    Place(Location),
    /// An open file that may have no name.
    Open(RcuArc<OpenFile>),
}

/// Adds a line of at most 200 bytes to a text that may be long.
pub fn add_line(out: &mut String, line: core::fmt::Arguments) -> Result<()> {
    out.try_reserve(200).map_err(|_| Errno::ENOMEM)?;
    // A string takes all.
    let _ = core::fmt::Write::write_fmt(out, line);
    Ok(())
}

/// A mounted file system.
pub trait FileSystem: Send + Sync {
    /// Its kind, for `/proc/mounts`.
    fn name(&self) -> &'static str;
    /// `statfs(2)`.
    fn stat(&self) -> Result<StatFs>;
    /// Writes everything out, to where others find it.
    fn sync(&self) -> Result<()> {
        Ok(())
    }
    /// The same, and on to the device (`syncfs(2)`).
    fn sync_device(&self) -> Result<()> {
        self.sync()
    }
}

/// Something that a name leads to.
pub trait Inode: Send + Sync {
    /// Unique in its file system while it is referred to.
    fn id(&self) -> u64;
    /// Its kind, which never changes.
    fn kind(&self) -> FileType;
    /// Its attributes.
    fn attr(&self) -> Result<Attr>;
    /// Who owns it, its mode and kind, which is all that [`Cred::check`] looks at; for the rest of the attributes
    /// stands anything.
    fn permissions(&self) -> Result<Attr> {
        self.attr()
    }
    /// Changes attributes. Permission has been checked.
    fn set_attr(&self, change: &SetAttr, cred: &Cred) -> Result<()>;
    /// What it is known by.
    fn identity(&self) -> Result<Identity> {
        self.attr().map(|a| (a.dev, a.ino))
    }
    /// Has `inotify` told what others do to it, these events of it, as far as that can be known; 0: nothing any more.
    fn watch(&self, _events: u32) {}
    /// Until when it is believed to have its name and, if asked for, its attributes, unless this cell
    /// changes something (on [`atoll_abi::Platform::now`]'s clock); None: it may change by itself.
    fn believed(&self, _attributes: bool) -> Option<u64> {
        None
    }
    /// Its file system.
    fn file_system(&self) -> Arc<dyn FileSystem>;
    /// The runtime's own view of it.
    fn as_any(&self) -> &dyn Any;

    /// Finds a name in this directory.
    fn lookup(&self, _name: &[u8]) -> Result<InodeRef> {
        Err(Errno::ENOTDIR)
    }
    /// Finds a name in this directory that a path leads through. `rest`: the names that follow, last
    /// one first, for file systems that can ask for several at once; `opens`: the last is going to be opened to be read.
    fn lookup_on_the_way(&self, name: &[u8], _rest: &[Vec<u8>], _opens: bool) -> Result<InodeRef> {
        self.lookup(name)
    }
    /// Would it have to ask others whether there is this name in this directory?
    fn knows_nothing_of(&self, _name: &[u8]) -> bool {
        false
    }
    /// The directory that this is in; None for a file system's root, and for what has no single place.
    fn parent(&self) -> Option<InodeRef> {
        None
    }
    /// Its name there; None if it has none any more.
    fn name(&self) -> Option<Vec<u8>> {
        None
    }
    /// Where it has its name, or had its last one; of several, the one that is called `hint`.
    fn entry(&self, _hint: &[u8]) -> Option<Entry> {
        Some(Entry { dir: self.parent()?, name: self.name()?, gone: false })
    }
    /// Makes a new name. `mode` has permission bits only.
    fn create(&self, _name: &[u8], _node: NewNode, _mode: NewMode, _cred: &Cred) -> Result<InodeRef> {
        Err(Errno::EPERM)
    }
    /// Makes a regular file without a name in this directory's file system
    /// (`open(O_TMPFILE)`). `linkable`: it may be given one.
    fn temporary(&self, _mode: NewMode, _linkable: bool, _cred: &Cred) -> Result<InodeRef> {
        Err(Errno::EOPNOTSUPP)
    }
    /// Gives `target`, of the same file system, a further name here.
    fn link(&self, _name: &[u8], _target: &InodeRef, _cred: &Cred) -> Result<()> {
        Err(Errno::EPERM)
    }
    /// Removes a name. `dir`: it must be an empty directory.
    fn unlink(&self, _name: &[u8], _dir: bool, _cred: &Cred) -> Result<()> {
        Err(Errno::EPERM)
    }
    /// Moves a name to `to` of the same file system. `flags`: `renameat2(2)`'s.
    fn rename(&self, _name: &[u8], _to: &InodeRef, _new: &[u8], _flags: u32, _cred: &Cred) -> Result<()> {
        Err(Errno::EPERM)
    }
    /// Target of a symbolic link.
    fn read_link(&self) -> Result<Vec<u8>> {
        Err(Errno::EINVAL)
    }
    /// Where a link really goes, if not by its text.
    fn follow(&self) -> Option<Result<Magic>> {
        None
    }
    /// Entries of this directory after position `from`, without "." and "..", up to about `most`.
    fn list(&self, _from: u64, _most: usize) -> Result<Vec<DirEntry>> {
        Err(Errno::ENOTDIR)
    }
    /// Opens it. `flags`: `open(2)`'s. Permission has been checked, O_TRUNC been done.
    fn open(self: Arc<Self>, flags: u32, cred: &Cred) -> Result<Arc<dyn File>>;
    /// The same by a file that is open, perhaps without a name by now.
    fn open_again(self: Arc<Self>, flags: u32, cred: &Cred) -> Result<Arc<dyn File>> {
        self.open(flags, cred)
    }
    /// Value of an extended attribute.
    fn get_xattr(&self, _name: &[u8]) -> Result<Vec<u8>> {
        Err(Errno::EOPNOTSUPP)
    }
    /// Names of extended attributes, each ended by a zero byte.
    fn list_xattr(&self) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }
    /// Sets or removes (None) an extended attribute. `flags`: `setxattr(2)`'s. Permission has been checked.
    fn set_xattr(&self, _name: &[u8], _value: Option<&[u8]>, _flags: u32, _cred: &Cred) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }
    /// Writes out what is held back of the contents. An error: some is lost, and nobody has been told.
    fn write_back(&self) -> Result<()> {
        Ok(())
    }
    /// As [`UseCount::enter`], for the file behind this name.
    fn enter(&self, _by: i32) -> Result<()> {
        Ok(())
    }
    /// As [`UseCount::leave`].
    fn leave(&self, _by: i32) {}
    /// What was believed of this name turned out to be wrong: others changed
    /// the tree. The next lookup asks again.
    fn forget_name(&self) {}
}

/// A lock as the whole cell has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OuterLock {
    /// Of `flock(2)`; if not, a record lock.
    pub whole: bool,
    /// First byte.
    pub start: u64,
    /// One past the last; `i64::MAX`: to the end.
    pub end: u64,
    /// None: unlocked; Some(true): to write.
    pub write: Option<bool>,
}

/// Where a write goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// To the stream; or, of a seekable file, not meaningful.
    Stream,
    /// To this offset.
    Offset(u64),
    /// To the end, whatever that is by then.
    End,
}

/// An open file, as far as it is the same for all who opened it: an inode's
/// contents, a pipe's end, a socket.
///
/// Calls that have to wait return EAGAIN if `nonblock`, and RESTART if the
/// waiting thread is interrupted.
pub trait File: Send + Sync + Any {
    /// The runtime's own view of it.
    fn as_any(&self) -> &dyn Any;

    /// The inode that it is itself, if it has no place in the tree, and is a regular file all the same.
    fn inode(self: Arc<Self>) -> Option<InodeRef> {
        None
    }
    /// Reads. `at`: None for streams.
    fn read(&self, _sink: &mut Sink, _at: Option<u64>, _nonblock: bool) -> Result<usize> {
        Err(Errno::EINVAL)
    }
    /// Writes. Value: bytes, and the position after them.
    fn write(&self, _source: &mut Source, _at: At, _nonblock: bool) -> Result<(usize, u64)> {
        Err(Errno::EINVAL)
    }
    /// Has it positions?
    fn seekable(&self) -> bool {
        false
    }
    /// Does it keep its position itself, for all who have it open? Then it is
    /// a stream that can be read and written at an offset, too.
    fn keeps_position(&self) -> bool {
        false
    }
    /// `lseek(2)` of a file that keeps its position itself.
    fn seek(&self, _offset: i64, _whence: u32) -> Result<u64> {
        Err(Errno::ESPIPE)
    }
    /// Attributes, for files without an inode.
    fn attr(&self) -> Result<Attr> {
        Ok(Attr { mode: 0o600, nlink: 1, blksize: 4096, ..Attr::default() })
    }
    /// The resource that serves its reads and writes.
    fn resource(&self) -> Resource {
        if self.seekable() { Resource::FileCache } else { Resource::Pipe }
    }
    /// What is ready now.
    fn ready(&self) -> u32 {
        poll::IN | poll::OUT | poll::RDNORM | poll::WRNORM
    }
    /// Brings what [`File::ready`] says up to date where somebody must be asked for that. May wait a moment.
    fn refresh(&self) {}
    /// Where to wait for that to change; None: it never does.
    fn queue(&self) -> Option<&WaitQueue> {
        None
    }
    /// Can it have somebody told by a signal when it gets ready (O_ASYNC)?
    fn signals(&self) -> bool {
        false
    }
    /// Device control. `arg` is the program's, usually an address.
    fn control(&self, _command: u32, _arg: u64) -> Result<u64> {
        Err(Errno::ENOTTY)
    }
    /// For mapping it.
    fn mappable(self: Arc<Self>) -> Result<Arc<dyn Mappable>> {
        Err(Errno::ENODEV)
    }
    /// Writes out what is cached. `data_only`: not the times.
    fn sync(&self, _data_only: bool) -> Result<()> {
        Err(Errno::EINVAL)
    }
    /// What was lost behind the program's back, if it can be: [`crate::OpenFile`] tells it to who syncs or closes the file.
    fn errors(&self) -> Option<&Errors> {
        None
    }
    /// How long what is written to it is going to be of use, as programs say (`fcntl(2)`, F_SET_RW_HINT): it is kept for
    /// them as long as the file is known, and nothing follows from it. None: not kept.
    fn write_hint(&self) -> Option<&AtomicU32> {
        None
    }
    /// Sets the length.
    fn truncate(&self, _len: u64) -> Result<()> {
        Err(Errno::EINVAL)
    }
    /// `fallocate(2)`.
    fn allocate(&self, _mode: u32, _offset: u64, _len: u64) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }
    /// Copies bytes of `from`, from `from_at` on, to `at`, if what holds both can do that by itself. Value: how many, fewer at the end
    /// of that file too; none if it can't.
    fn copy_from(&self, _at: u64, _from: &dyn File, _from_at: u64, _len: u64) -> Result<Option<u64>> {
        Ok(None)
    }
    /// Finds data or a hole from `from` on (SEEK_DATA, SEEK_HOLE).
    fn seek_data(&self, from: u64, hole: bool, size: u64) -> Result<u64> {
        if from >= size {
            return Err(Errno::ENXIO);
        }
        Ok(if hole { size } else { from })
    }
    /// Entries of an open directory after position `from`, if this opening keeps a list of its own.
    fn entries(&self, _from: u64) -> Option<Result<Vec<DirEntry>>> {
        None
    }
    /// Makes a lock of this cell known to others who use the file, or takes it
    /// back. Never waits for them: EAGAIN.
    fn outer_lock(&self, _lock: &OuterLock) -> Result<()> {
        Ok(())
    }
    /// Some of the cell's locks are about to go: those outside it are to see then what was written under them, for which they don't
    /// wait yet.
    fn before_unlock(&self) {}
    /// Others want to have the file, which was this cell's alone: its locks are made known to them first.
    fn share(&self, _locks: &[OuterLock]) {}
    /// The cell has no more locks on the file.
    fn outer_unlock_all(&self) {}
    /// A descriptor of one opening is closed: what is held back goes out. An error: it could not.
    fn flush(&self) -> Result<()> {
        Ok(())
    }
    /// The last handle of one opening is closed. `flags`: as it was opened.
    fn release(&self, _flags: u32) -> Result<()> {
        Ok(())
    }
    /// Adds the lines that `/proc/self/fdinfo/n` has of files of its kind (`proc_pid_fdinfo(5)`).
    fn tell(&self, _out: &mut String) -> Result<()> {
        Ok(())
    }
    /// What `/proc/self/fd/n` says if it has no path, such as `pipe:[12]`.
    fn describe(&self) -> Vec<u8> {
        b"anon_inode:[file]".to_vec()
    }
}
