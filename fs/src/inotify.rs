//! Watches on files and directories (`inotify(7)`).
//!
//! A watch is on an inode, known by its device and number, so that all names
//! of a file are one. Whoever changes or uses a file says so here; while
//! nobody watches anything that costs one load. What others do to files of the
//! host, this or another cell, the server tells where the host can say it
//! ([`outside`]): changes, not who opens or reads; not those of a directory's
//! attributes to watches on the one above it; and what happens again and again
//! to the same names before it is told may be told in another order. Of a file
//! in memory with several names, changed attributes are told under its oldest.
//!
//! Order and merging of events are Linux's (`fs/notify`): the directory
//! hears of a file before the file's own watch does.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use atoll_abi::{Errno, Result};
use atoll_mem::io::Sink;
use atoll_mem::user;
use atoll_sync::{Mutex, WaitQueue};
use atoll_task::{Limit, wait};
use linux_raw_sys::{general as linux, ioctl};

use crate::node::{File, Identity, Inode, add_line};
use crate::types::{FileType, SetAttr, poll};

/// Instances that a cell can have (`max_user_instances`).
pub const INSTANCES_MAX: usize = 128;
/// Watches that a cell can have (`max_user_watches`).
pub const WATCHES_MAX: usize = 65536;
/// Events that wait in one instance (`max_queued_events`).
pub const QUEUE_MAX: usize = 16384;

/// What a watch can ask for.
const EVENTS: u32 = linux::IN_ACCESS
    | linux::IN_MODIFY
    | linux::IN_ATTRIB
    | linux::IN_CLOSE_WRITE
    | linux::IN_CLOSE_NOWRITE
    | linux::IN_OPEN
    | linux::IN_MOVED_FROM
    | linux::IN_MOVED_TO
    | linux::IN_CREATE
    | linux::IN_DELETE
    | linux::IN_DELETE_SELF
    | linux::IN_MOVE_SELF;
/// What else `inotify_add_watch` takes; IN_MASK_CREATE is the bit beside IN_MASK_ADD.
const OPTIONS: u32 = linux::IN_UNMOUNT
    | linux::IN_Q_OVERFLOW
    | linux::IN_IGNORED
    | linux::IN_ONLYDIR
    | linux::IN_DONT_FOLLOW
    | linux::IN_EXCL_UNLINK
    | linux::IN_MASK_CREATE
    | linux::IN_MASK_ADD
    | linux::IN_ISDIR
    | linux::IN_ONESHOT;
/// What a watch remembers besides the events.
const KEPT: u32 = linux::IN_EXCL_UNLINK | linux::IN_ONESHOT;

/// Size of an event without its name, and what names are padded to.
const HEAD: usize = 16;

/// Watches in the cell.
static WATCHES: AtomicUsize = AtomicUsize::new(0);
static INSTANCES: AtomicUsize = AtomicUsize::new(0);
static COOKIE: AtomicU32 = AtomicU32::new(1);
static BOOK: Mutex<Book> = Mutex::new(BTreeMap::new());

type Book = BTreeMap<Identity, Vec<Mark>>;

/// One watch.
struct Mark {
    group: Arc<Group>,
    number: i32,
    mask: u32,
}

/// An instance, as its watches know it.
struct Group {
    state: Mutex<State>,
    queue: WaitQueue,
}

struct State {
    /// The last number that was given to a watch.
    last: i32,
    watches: BTreeMap<i32, Identity>,
    events: VecDeque<Event>,
    /// IN_Q_OVERFLOW is in the queue.
    overflowed: bool,
}

struct Event {
    number: i32,
    mask: u32,
    cookie: u32,
    name: Vec<u8>,
}

impl Event {
    fn len(&self) -> usize {
        HEAD + if self.name.is_empty() { 0 } else { (self.name.len() + 1).next_multiple_of(HEAD) }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len());
        out.extend_from_slice(&self.number.to_ne_bytes());
        out.extend_from_slice(&self.mask.to_ne_bytes());
        out.extend_from_slice(&self.cookie.to_ne_bytes());
        out.extend_from_slice(&((self.len() - HEAD) as u32).to_ne_bytes());
        out.extend_from_slice(&self.name);
        out.resize(self.len(), 0);
        out
    }
}

impl Group {
    fn push(&self, event: Event) {
        let mut s = self.state.lock();
        let same = |last: &Event| {
            last.mask & linux::IN_IGNORED == 0
                && (last.number, last.mask) == (event.number, event.mask)
                && last.name == event.name
        };
        if s.events.len() >= QUEUE_MAX {
            if s.overflowed {
                return;
            }
            s.overflowed = true;
            s.events.push_back(Event { number: -1, mask: linux::IN_Q_OVERFLOW, cookie: 0, name: Vec::new() });
        } else if !s.events.back().is_some_and(same) {
            s.events.push_back(event);
        }
        drop(s);
        self.queue.wake_all(poll::IN | poll::RDNORM);
    }

    /// A watch has gone, which is an event, too.
    fn ignored(&self, number: i32) {
        self.state.lock().watches.remove(&number);
        WATCHES.fetch_sub(1, Ordering::Relaxed);
        self.push(Event { number, mask: linux::IN_IGNORED, cookie: 0, name: Vec::new() });
    }
}

/// An instance.
pub struct Inotify {
    group: Arc<Group>,
}

impl Inotify {
    /// Watches nothing. EMFILE if there are too many.
    pub fn new() -> Result<Self> {
        let state = State { last: 0, watches: BTreeMap::new(), events: VecDeque::new(), overflowed: false };
        let new = Inotify { group: Arc::new(Group { state: Mutex::new(state), queue: WaitQueue::new() }) };
        if INSTANCES.fetch_add(1, Ordering::Relaxed) >= INSTANCES_MAX {
            // Dropped, it is counted no more.
            return Err(Errno::EMFILE);
        }
        Ok(new)
    }

    /// EINVAL if this is no mask for a watch.
    pub fn check(mask: u32) -> Result<()> {
        let both = linux::IN_MASK_ADD | linux::IN_MASK_CREATE;
        if mask == 0 || mask & !(EVENTS | OPTIONS) != 0 || mask & both == both {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }

    /// Watches an inode, or changes what is asked of it; the watch's number.
    pub fn add(&self, inode: &dyn Inode, mask: u32) -> Result<i32> {
        let identity = inode.identity()?;
        let mut book = BOOK.lock();
        let kept = mask & (EVENTS | KEPT);
        let own = |m: &&mut Mark| Arc::ptr_eq(&m.group, &self.group);
        if let Some(m) = book.get_mut(&identity).and_then(|marks| marks.iter_mut().find(own)) {
            if mask & linux::IN_MASK_CREATE != 0 {
                return Err(Errno::EEXIST);
            }
            m.mask = kept | if mask & linux::IN_MASK_ADD != 0 { m.mask } else { 0 };
            let number = m.number;
            drop(book);
            inode.watch(kept & EVENTS);
            return Ok(number);
        }
        if WATCHES.load(Ordering::Relaxed) >= WATCHES_MAX {
            return Err(Errno::ENOSPC);
        }
        WATCHES.fetch_add(1, Ordering::Relaxed);
        let mut s = self.group.state.lock();
        s.last = s.last.checked_add(1).unwrap_or(1);
        let number = s.last;
        s.watches.insert(number, identity);
        drop(s);
        let mark = Mark { group: self.group.clone(), number, mask: kept };
        book.entry(identity).or_default().push(mark);
        drop(book);
        inode.watch(kept & EVENTS);
        Ok(number)
    }

    /// Ends a watch.
    pub fn remove(&self, number: i32) -> Result<()> {
        let mut book = BOOK.lock();
        let identity = self.group.state.lock().watches.get(&number).copied().ok_or(Errno::EINVAL)?;
        take(&mut book, identity, |m| !(Arc::ptr_eq(&m.group, &self.group) && m.number == number));
        self.group.ignored(number);
        Ok(())
    }
}

/// Keeps those watches of an inode that `keep` says.
fn take(book: &mut Book, identity: Identity, keep: impl FnMut(&mut Mark) -> bool) {
    if let Some(marks) = book.get_mut(&identity) {
        marks.retain_mut(keep);
        if marks.is_empty() {
            book.remove(&identity);
        }
    }
}

impl Drop for Inotify {
    fn drop(&mut self) {
        INSTANCES.fetch_sub(1, Ordering::Relaxed);
        let mut book = BOOK.lock();
        let watches = core::mem::take(&mut self.group.state.lock().watches);
        for identity in watches.values() {
            take(&mut book, *identity, |m| !Arc::ptr_eq(&m.group, &self.group));
        }
        WATCHES.fetch_sub(watches.len(), Ordering::Relaxed);
    }
}

impl File for Inotify {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn read(&self, sink: &mut Sink, _at: Option<u64>, nonblock: bool) -> Result<usize> {
        let limit = if nonblock { Limit::Never } else { Limit::Forever };
        wait(&self.group.queue, poll::IN, limit, || {
            let mut s = self.group.state.lock();
            let mut done = 0;
            while let Some(first) = s.events.front() {
                let put = if first.len() > sink.left() {
                    Err(Errno::EINVAL)
                } else {
                    // As a whole, or it stays.
                    sink.ensure(first.len()).and_then(|()| sink.put(&first.bytes()))
                };
                match put {
                    Ok(n) => done += n,
                    Err(e) if done == 0 => return Some(Err(e)),
                    Err(_) => break,
                }
                if s.events.pop_front().is_some_and(|e| e.mask == linux::IN_Q_OVERFLOW) {
                    s.overflowed = false;
                }
            }
            (done > 0).then_some(Ok(done))
        })?
    }

    fn ready(&self) -> u32 {
        if self.group.state.lock().events.is_empty() { 0 } else { poll::IN | poll::RDNORM }
    }

    fn control(&self, command: u32, arg: u64) -> Result<u64> {
        if command != ioctl::FIONREAD {
            return Err(Errno::ENOTTY);
        }
        let bytes: usize = self.group.state.lock().events.iter().map(Event::len).sum();
        user::write(arg, &(bytes as i32).to_ne_bytes()).map(|()| 0)
    }

    fn seek(&self, _offset: i64, _whence: u32) -> Result<u64> {
        Ok(0)
    }

    fn signals(&self) -> bool {
        true
    }

    fn queue(&self) -> Option<&WaitQueue> {
        Some(&self.group.queue)
    }

    fn tell(&self, out: &mut String) -> Result<()> {
        let mut known = Vec::new();
        // No memory is asked for while others wait for the book. Those that come meanwhile are left out.
        let count = self.group.state.lock().watches.len();
        known.try_reserve_exact(count).map_err(|_| Errno::ENOMEM)?;
        let book = BOOK.lock();
        // The newest first.
        for (number, identity) in self.group.state.lock().watches.iter().rev().take(count) {
            let own = |m: &&Mark| Arc::ptr_eq(&m.group, &self.group) && m.number == *number;
            let mask = book.get(identity).and_then(|marks| marks.iter().find(own)).map_or(0, |m| m.mask);
            known.push((*number, *identity, mask));
        }
        drop(book);
        known.into_iter().try_for_each(|(number, (dev, ino), mask)| {
            add_line(
                out,
                format_args!(
                    "inotify wd:{number:x} ino:{ino:x} sdev:{dev:x} mask:{mask:x} ignored_mask:0 \n"
                ),
            )
        })
    }

    fn describe(&self) -> Vec<u8> {
        b"anon_inode:inotify".to_vec()
    }
}

/// Is anything watched at all?
#[inline]
pub fn watched() -> bool {
    WATCHES.load(Ordering::Relaxed) != 0
}

/// Tells the watches of one inode. `unlinked`: by a file that has no name any more.
fn tell(book: &mut Book, identity: Identity, mask: u32, cookie: u32, name: &[u8], unlinked: bool) {
    take(book, identity, |m| {
        let excluded = unlinked && m.mask & linux::IN_EXCL_UNLINK != 0;
        if m.mask & mask & EVENTS == 0 || excluded {
            return true;
        }
        m.group.push(Event { number: m.number, mask, cookie, name: name.to_vec() });
        let once = m.mask & linux::IN_ONESHOT != 0;
        if once {
            m.group.ignored(m.number);
        }
        !once
    });
}

fn directory_bit(inode: &dyn Inode) -> u32 {
    if inode.kind() == FileType::Directory { linux::IN_ISDIR } else { 0 }
}

/// A file was used or changed: tells those who watch its directory and those
/// who watch itself. `opened`: the last part of the path that it was opened by.
fn tell_both(inode: &dyn Inode, opened: &[u8], event: u32, by_descriptor: bool) {
    let mask = event | directory_bit(inode);
    let entry = inode.entry(opened);
    let unlinked = by_descriptor && entry.as_ref().is_some_and(|e| e.gone);
    let dir = entry.as_ref().and_then(|e| e.dir.identity().ok());
    let own = inode.identity();
    let mut book = BOOK.lock();
    if let (Some(dir), Some(e)) = (dir, &entry) {
        tell(&mut book, dir, mask, 0, &e.name, unlinked);
    }
    if let Ok(own) = own {
        tell(&mut book, own, mask, 0, b"", unlinked);
    }
}

/// An open file was used: IN_OPEN, IN_ACCESS, IN_MODIFY or one of IN_CLOSE.
#[cold]
pub fn used(inode: &dyn Inode, opened: &[u8], event: u32) {
    let last = opened.rsplit(|b| *b == b'/').next().unwrap_or(b"");
    tell_both(inode, last, event, true);
}

/// Attributes of a file were changed.
pub fn changed(inode: &dyn Inode, change: &SetAttr) {
    if !watched() {
        return;
    }
    let mut event = 0;
    if change.mode.or(change.uid).or(change.gid).is_some() {
        event |= linux::IN_ATTRIB;
    }
    if change.size.is_some() {
        event |= linux::IN_MODIFY;
    }
    event |= match (change.atime.is_some(), change.mtime.is_some()) {
        (true, true) => linux::IN_ATTRIB,
        (true, false) => linux::IN_ACCESS,
        (false, true) => linux::IN_MODIFY,
        (false, false) => 0,
    };
    if event != 0 {
        tell_both(inode, b"", event, false);
    }
}

/// Extended attributes of a file were changed.
pub fn changed_extended(inode: &dyn Inode) {
    if watched() {
        tell_both(inode, b"", linux::IN_ATTRIB, false);
    }
}

/// A name was made: IN_CREATE.
pub fn created(dir: &dyn Inode, name: &[u8], inode: &dyn Inode) {
    if watched() {
        tell_dir(dir, name, linux::IN_CREATE | directory_bit(inode), 0);
    }
}

/// A file has one name more or less.
pub fn link_count(inode: &dyn Inode) {
    if watched() {
        tell_self(inode, linux::IN_ATTRIB | directory_bit(inode));
    }
}

/// A name was removed. The file's own watches have been told by [`link_count`] or [`gone`].
pub fn deleted(dir: &dyn Inode, name: &[u8], inode: &dyn Inode) {
    if watched() {
        tell_dir(dir, name, linux::IN_DELETE | directory_bit(inode), 0);
    }
}

/// A name was moved. `victim`: whose name was taken for it.
pub fn moved(
    from: (&dyn Inode, &[u8]),
    to: (&dyn Inode, &[u8]),
    inode: &dyn Inode,
    victim: Option<&dyn Inode>,
) {
    if !watched() {
        return;
    }
    let (cookie, directory) = (COOKIE.fetch_add(1, Ordering::Relaxed), directory_bit(inode));
    tell_dir(from.0, from.1, linux::IN_MOVED_FROM | directory, cookie);
    tell_dir(to.0, to.1, linux::IN_MOVED_TO | directory, cookie);
    if let Some(victim) = victim {
        link_count(victim);
    }
    tell_self(inode, linux::IN_MOVE_SELF);
}

/// Does anybody watch this one?
pub(crate) fn is_watched(identity: Identity) -> bool {
    BOOK.lock().contains_key(&identity)
}

/// Others have done this to a file of the host; `name`: to that of the directory.
pub(crate) fn outside(identity: Identity, mask: u32, cookie: u32, name: &[u8]) {
    let mut book = BOOK.lock();
    tell(&mut book, identity, mask, cookie, name, false);
    if mask & linux::IN_DELETE_SELF != 0 {
        for m in book.remove(&identity).unwrap_or_default() {
            m.group.ignored(m.number);
        }
    }
}

/// The host has lost events of what others did: whoever watches anything hears that.
pub(crate) fn overflowed() {
    let book = BOOK.lock();
    let mut told: Vec<*const Group> = Vec::new();
    for mark in book.values().flatten() {
        let group = Arc::as_ptr(&mark.group);
        if !told.contains(&group) {
            told.push(group);
            mark.group.push(Event { number: -1, mask: linux::IN_Q_OVERFLOW, cookie: 0, name: Vec::new() });
        }
    }
}

/// An inode that lost its last name is not in use any more.
pub fn gone(identity: Identity) {
    if !watched() {
        return;
    }
    let mut book = BOOK.lock();
    tell(&mut book, identity, linux::IN_DELETE_SELF, 0, b"", false);
    for m in book.remove(&identity).unwrap_or_default() {
        m.group.ignored(m.number);
    }
}

fn tell_dir(dir: &dyn Inode, name: &[u8], mask: u32, cookie: u32) {
    if let Ok(identity) = dir.identity() {
        tell(&mut BOOK.lock(), identity, mask, cookie, name, false);
    }
}

fn tell_self(inode: &dyn Inode, mask: u32) {
    if let Ok(identity) = inode.identity() {
        tell(&mut BOOK.lock(), identity, mask, 0, b"", false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_padded_and_merged() {
        let group = Inotify::new().unwrap().group.clone();
        let event = |mask, name: &[u8]| Event { number: 1, mask, cookie: 0, name: name.to_vec() };
        assert_eq!(event(1, b"").bytes().len(), 16);
        assert_eq!(event(1, b"fifteen-letters").bytes().len(), 32);
        assert_eq!(event(1, b"sixteen-letters!").bytes().len(), 48);
        for (mask, name) in [(1, "a"), (1, "a"), (2, "a"), (1, "a"), (1, "b"), (1, "b")] {
            group.push(event(mask, name.as_bytes()));
        }
        assert_eq!(group.state.lock().events.len(), 4);
        for n in 0..QUEUE_MAX as u32 * 2 {
            group.push(event(n, b""));
        }
        let s = group.state.lock();
        assert_eq!(s.events.len(), QUEUE_MAX + 1);
        assert_eq!(s.events.back().map(|e| e.mask), Some(linux::IN_Q_OVERFLOW));
    }
}
