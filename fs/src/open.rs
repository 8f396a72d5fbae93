//! Open files ("open file descriptions", `open(2)`).

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use atoll_abi::grid::Resource;
use atoll_abi::{Errno, Result};
use atoll_mem::io::{Sink, Source};
use atoll_sync::{Mutex, SetOnce, WakeKey};
use atoll_task::books;
use linux_raw_sys::general as linux;

use crate::device::Device;
use crate::errors::Errors;
use crate::inotify;
use crate::namespace::Location;
use crate::node::{At, File, InUse};
use crate::types::{Attr, FileType};

/// What a descriptor refers to: a file, with a position and flags.
pub struct OpenFile {
    file: Arc<dyn File>,
    /// What serves its reads and writes.
    resource: Resource,
    flags: AtomicU32,
    position: Mutex<u64>,
    /// Where it was opened, if it has a place in the tree.
    place: Option<Location>,
    /// Name there at that time.
    name: Vec<u8>,
    /// It counts as one who writes to it.
    writer: Option<InUse>,
    /// What the personality keeps with it.
    kept: Mutex<Option<Arc<dyn Any + Send + Sync>>>,
    /// It has or had locks, which go with it.
    locked: AtomicBool,
    /// Which errors of writing behind it has been told of.
    told: AtomicU64,
    /// Who watches it, if anybody has.
    watchers: Mutex<Option<Arc<Watchers>>>,
}

/// Has a file with a set-user-ID or set-group-ID bit been opened to be written to, or got one? Few programs ever do that, and where
/// none has, a write needs no look at the file's mode.
static LENDS: AtomicBool = AtomicBool::new(false);

/// Notes that a file with this mode is opened to be written to, or gets the mode.
pub fn note_mode(mode: u32) {
    if mode & (linux::S_ISUID | linux::S_ISGID) != 0 {
        LENDS.store(true, Ordering::Relaxed);
    }
}

/// Can a file that is written to have bits that lend its owner's rights?
#[inline]
pub fn may_lend() -> bool {
    LENDS.load(Ordering::Relaxed)
}

/// Who watches an open file and is to forget it when that goes, with what each calls it.
#[derive(Default)]
pub struct Watchers(Mutex<Vec<(Weak<dyn Watcher>, WakeKey)>>);

/// Who watches an open file.
pub trait Watcher: Send + Sync {
    /// The open file goes. Called under whatever locks somebody has who lets go of it: it may take those of wait queues, and such as are
    /// not held while others are taken.
    fn closed(self: Arc<Self>, key: WakeKey, file: &Arc<dyn File>);
}

impl Watchers {
    /// One more.
    pub fn add(&self, watcher: Weak<dyn Watcher>, key: WakeKey) {
        self.0.lock().push((watcher, key));
    }

    /// One less.
    pub fn remove(&self, watcher: &Weak<dyn Watcher>, key: WakeKey) {
        let mut list = self.0.lock();
        let at = list.iter().position(|(w, k)| *k == key && w.ptr_eq(watcher));
        let gone = at.map(|at| list.swap_remove(at));
        drop(list);
        drop(gone);
    }
}

/// What is done with an open file that has locks when it goes.
static UNLOCK: SetOnce<fn(usize)> = SetOnce::new();

/// Says what is done with an open file that has locks when it goes: `unlock` gets its address.
pub fn set_unlock(unlock: fn(usize)) {
    // Once, at boot; a second time changes nothing.
    let _ = UNLOCK.set(unlock);
}

/// Flags that `fcntl(F_SETFL)` can change.
pub const SETTABLE: u32 =
    linux::O_APPEND | linux::O_NONBLOCK | linux::O_DIRECT | linux::O_NOATIME | linux::FASYNC;

impl OpenFile {
    /// An open file without a place.
    pub fn new(file: Arc<dyn File>, flags: u32) -> Self {
        OpenFile {
            resource: file.resource(),
            told: AtomicU64::new(file.errors().map_or(0, Errors::sample)),
            file,
            flags: AtomicU32::new(flags),
            position: Mutex::new(0),
            place: None,
            name: Vec::new(),
            writer: None,
            kept: Mutex::new(None),
            locked: AtomicBool::new(false),
            watchers: Mutex::new(None),
        }
    }

    /// An open file of the tree that counts as one who writes to it.
    pub fn written_by(mut self, writer: Option<InUse>) -> Self {
        self.writer = writer;
        self
    }

    /// An open file of the tree.
    pub fn at(file: Arc<dyn File>, flags: u32, place: Location, name: Vec<u8>) -> Self {
        let mut open = OpenFile::new(file, flags);
        open.place = Some(place);
        open.name = name;
        open
    }

    /// The file.
    pub fn file(&self) -> &Arc<dyn File> {
        &self.file
    }

    /// Who watches it.
    pub fn watchers(&self) -> Arc<Watchers> {
        self.watchers.lock().get_or_insert_default().clone()
    }

    /// The file, if it is of this type.
    pub fn as_type<T: 'static>(&self) -> Option<&T> {
        self.file.as_any().downcast_ref()
    }

    /// Where it was opened.
    pub fn place(&self) -> Option<&Location> {
        self.place.as_ref()
    }

    /// Flags, as `fcntl(F_GETFL)` tells them.
    pub fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// Changes the flags that can be changed.
    pub fn set_flags(&self, flags: u32) {
        let keep = self.flags() & !SETTABLE;
        self.flags.store(keep | flags & SETTABLE, Ordering::Relaxed);
    }

    /// Was it opened with O_NONBLOCK?
    pub fn nonblock(&self) -> bool {
        self.flags() & linux::O_NONBLOCK != 0
    }

    /// May it be read?
    pub fn readable(&self) -> bool {
        let f = self.flags();
        f & linux::O_ACCMODE != linux::O_WRONLY && f & linux::O_PATH == 0
    }

    /// May it be written?
    pub fn writable(&self) -> bool {
        let f = self.flags();
        f & linux::O_ACCMODE != linux::O_RDONLY && f & linux::O_PATH == 0
    }

    /// Tells those who watch it, or its directory, that it was used.
    #[inline]
    pub fn note(&self, event: u32) {
        if inotify::watched()
            && let Some(place) = &self.place
            && self.flags() & linux::O_PATH == 0
        {
            inotify::used(&*place.inode, &self.name, event);
        }
    }

    /// Ends a read or a write: books its bytes, and tells who watches.
    #[inline]
    fn noted(&self, done: Result<usize>, event: u32) -> Result<usize> {
        if let Ok(n) = done
            && n > 0
        {
            books::moved(self.resource, n as u64);
            self.note(event);
        }
        done
    }

    /// What the personality keeps with it.
    pub fn kept(&self) -> &Mutex<Option<Arc<dyn Any + Send + Sync>>> {
        &self.kept
    }

    /// Notes that it has locks.
    pub fn note_lock(&self) {
        self.locked.store(true, Ordering::Relaxed);
    }

    /// Attributes.
    pub fn attr(&self) -> Result<Attr> {
        match &self.place {
            Some(place) => place.inode.attr(),
            None => self.file.attr(),
        }
    }

    /// Its path, for people: what it was opened by, or what the file says of itself.
    pub fn describe(&self) -> Vec<u8> {
        match &self.place {
            Some(place) => place.path_of(&self.name),
            None => self.file.describe(),
        }
    }

    /// Reads from the current position, or the stream.
    #[inline]
    pub fn read(&self, sink: &mut Sink) -> Result<usize> {
        self.read_as(sink, self.nonblock())
    }

    /// The same; where it would have to wait for something to come: EAGAIN, however it was opened.
    pub fn read_at_once(&self, sink: &mut Sink) -> Result<usize> {
        self.read_as(sink, true)
    }

    #[inline]
    fn read_as(&self, sink: &mut Sink, nonblock: bool) -> Result<usize> {
        if !self.readable() {
            return Err(Errno::EBADF);
        }
        books::turn_to(self.resource);
        if !self.file.seekable() {
            return self.noted(self.file.read(sink, None, nonblock), linux::IN_ACCESS);
        }
        let mut position = self.position.lock();
        let n = self.file.read(sink, Some(*position), nonblock)?;
        *position += n as u64;
        drop(position);
        self.noted(Ok(n), linux::IN_ACCESS)
    }

    /// Writes to the current position, the end, or the stream. A file gets no longer than `most`.
    pub fn write(&self, source: &mut Source, most: u64) -> Result<usize> {
        if !self.writable() {
            return Err(Errno::EBADF);
        }
        books::turn_to(self.resource);
        if !self.file.seekable() {
            let done = self.file.write(source, At::Stream, self.nonblock()).map(|(n, _)| n);
            return self.noted(done, linux::IN_MODIFY);
        }
        let mut position = self.position.lock();
        let at = if self.flags() & linux::O_APPEND != 0 { At::End } else { At::Offset(*position) };
        self.limit(source, at, most)?;
        let (n, end) = self.file.write(source, at, self.nonblock())?;
        *position = end;
        drop(position);
        self.written(n)
    }

    /// Writes to the end, as if it was opened with O_APPEND. `moves`: the position is there then.
    pub fn append(&self, source: &mut Source, most: u64, moves: bool) -> Result<usize> {
        if !self.file.seekable() {
            return self.write(source, most);
        }
        if !self.writable() {
            return Err(Errno::EBADF);
        }
        books::turn_to(self.resource);
        let mut position = moves.then(|| self.position.lock());
        self.limit(source, At::End, most)?;
        let (n, end) = self.file.write(source, At::End, self.nonblock())?;
        if let Some(position) = &mut position {
            **position = end;
        }
        drop(position);
        self.written(n)
    }

    /// Bytes were written to a file: they are on its disk when the call returns if it was opened so.
    fn written(&self, n: usize) -> Result<usize> {
        let n = self.noted(Ok(n), linux::IN_MODIFY)?;
        if n > 0 {
            self.sync_as_opened()?;
        }
        Ok(n)
    }

    /// Writes out what is cached. Reports what was lost since it was opened, once. `data_only`: not the times.
    pub fn sync(&self, data_only: bool) -> Result<()> {
        let done = self.file.sync(data_only);
        self.file.errors().map_or(Ok(()), |errors| errors.check_and_advance(&self.told)).and(done)
    }

    /// One of its descriptors is closed: what it has not been told of yet is reported, and stays to be told to who syncs it by another.
    pub fn flush(&self) -> Result<()> {
        if !self.writable() {
            return Ok(());
        }
        let done = self.file.flush();
        let told = self.told.load(Ordering::Relaxed);
        self.file.errors().map_or(Ok(()), |errors| errors.check(told)).and(done)
    }

    /// Writes out what is cached, if it was opened with O_DSYNC or O_SYNC (open(2)).
    pub fn sync_as_opened(&self) -> Result<()> {
        let flags = self.flags();
        if flags & linux::O_DSYNC == 0 || !self.file.seekable() {
            return Ok(());
        }
        match self.sync(flags & linux::O_SYNC != linux::O_SYNC) {
            // A device that keeps nothing.
            Err(Errno::EINVAL) => Ok(()),
            r => r,
        }
    }

    /// Cuts a write off at the length `most`; EFBIG if nothing is left of it.
    fn limit(&self, source: &mut Source, at: At, most: u64) -> Result<()> {
        if most == u64::MAX || source.left() == 0 {
            return Ok(());
        }
        let attr = self.attr()?;
        if attr.kind() != FileType::Regular {
            return Ok(());
        }
        let at = if let At::Offset(at) = at { at } else { attr.size };
        if at >= most {
            return Err(Errno::EFBIG);
        }
        source.limit(most - at);
        Ok(())
    }

    /// Reads from an offset.
    pub fn read_at(&self, sink: &mut Sink, offset: u64) -> Result<usize> {
        if !self.readable() {
            return Err(Errno::EBADF);
        }
        if !self.file.seekable() && !self.file.keeps_position() {
            return Err(Errno::ESPIPE);
        }
        books::turn_to(self.resource);
        self.noted(self.file.read(sink, Some(offset), self.nonblock()), linux::IN_ACCESS)
    }

    /// Writes to an offset (or, as Linux does, to the end if it was opened to append).
    pub fn write_at(&self, source: &mut Source, offset: u64, most: u64) -> Result<usize> {
        if !self.writable() {
            return Err(Errno::EBADF);
        }
        if !self.file.seekable() && !self.file.keeps_position() {
            return Err(Errno::ESPIPE);
        }
        books::turn_to(self.resource);
        let at = if self.flags() & linux::O_APPEND != 0 { At::End } else { At::Offset(offset) };
        self.limit(source, at, most)?;
        let (n, _) = self.file.write(source, at, self.nonblock())?;
        self.written(n)
    }

    /// Copies `len` bytes of `from`, from `from_at` on, to `at`, if what holds both files can do that by itself. This one gets no longer than
    /// `most`. Value: how many; none if it can't.
    pub fn copy_from(
        &self,
        at: u64,
        from: &OpenFile,
        from_at: u64,
        len: u64,
        most: u64,
    ) -> Result<Option<u64>> {
        if !self.writable() || !from.readable() {
            return Err(Errno::EBADF);
        }
        if !self.file.seekable() || self.flags() & linux::O_APPEND != 0 {
            return Ok(None);
        }
        if at >= most {
            // Whether it may get no longer is asked when there is something to write.
            return Ok(None);
        }
        books::turn_to(self.resource);
        let Some(n) = self.file.copy_from(at, &**from.file(), from_at, len.min(most - at))? else {
            return Ok(None);
        };
        from.noted(Ok(n as usize), linux::IN_ACCESS)?;
        self.written(n as usize).map(|n| Some(n as u64))
    }

    /// The current position, to be changed under its lock.
    pub fn with_position<R>(&self, f: impl FnOnce(&mut u64) -> R) -> R {
        f(&mut self.position.lock())
    }

    /// `lseek(2)`.
    pub fn seek(&self, offset: i64, whence: u32) -> Result<u64> {
        if !self.file.seekable() {
            return self.file.seek(offset, whence);
        }
        if self.file.as_any().is::<Device>() && whence <= linux::SEEK_HOLE {
            // They have one place, which is the beginning.
            return Ok(0);
        }
        let mut position = self.position.lock();
        let add = |base: u64| {
            (base as i64).checked_add(offset).filter(|n| *n >= 0).map(|n| n as u64).ok_or(Errno::EINVAL)
        };
        let new = match whence {
            linux::SEEK_SET => add(0)?,
            linux::SEEK_CUR => add(*position)?,
            linux::SEEK_END => add(self.attr()?.size)?,
            linux::SEEK_DATA | linux::SEEK_HOLE => {
                if offset < 0 {
                    return Err(Errno::ENXIO);
                }
                self.file.seek_data(offset as u64, whence == linux::SEEK_HOLE, self.attr()?.size)?
            }
            _ => return Err(Errno::EINVAL),
        };
        *position = new;
        Ok(new)
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if *self.locked.get_mut()
            && let Some(unlock) = UNLOCK.get()
        {
            unlock((self as *const OpenFile).addr());
        }
        if let Some(watchers) = self.watchers.get_mut().take() {
            let list = core::mem::take(&mut *watchers.0.lock());
            for (watcher, key) in list {
                if let Some(watcher) = watcher.upgrade() {
                    watcher.closed(key, &self.file);
                }
            }
        }
        self.note(if self.writable() { linux::IN_CLOSE_WRITE } else { linux::IN_CLOSE_NOWRITE });
        // Errors of a last close that nobody waits for are reported by the file's own log line.
        let _ = self.file.release(self.flags());
    }
}
