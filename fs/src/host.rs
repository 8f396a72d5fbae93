//! A directory of the host, reached by service messages (architecture section 3, "host services").
//!
//! Names and attributes are asked for once and believed for a while
//! ([`HostFs::trust`]), or until a lock is taken that other processes heed, too;
//! what this cell changes it knows at once. Contents are
//! cached page by page: reading takes them from the host in place where that
//! needs no waiting (`preadv2(RWF_NOWAIT)`, 0.3 us) and by a message where it
//! does; writing goes to the cache and from there to the host behind the
//! program's back, at the latest when the file is closed, synced or mapped.
//! So other processes of the host see the right contents after `close` and
//! `fsync`. What is lost behind the program's back is told to all who have the
//! file open, by the next `fsync` or `close` of each ([`crate::errors`]); while
//! the host's disk is nearly full, nothing is written behind, so that ENOSPC
//! comes where it belongs.
//!
//! Shared mappings are of the host's file itself where its descriptor is here.
//! On the nucleus they are of cached pages ([`Object`]), which go to the host
//! when they are flushed, all of them: nobody says which were written to.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use atoll_abi::control::platform_kind;
use atoll_abi::grid::Resource;
use atoll_abi::layout::{BLOCK, PAGE};
use atoll_abi::nucleus::outside::BUFFERS_MAX;
use atoll_abi::platform::HostBuf;
use atoll_abi::service::{
    DIRENT_PLAIN, Extent, HostAttr, HostChanged, HostDirent, HostEvent, HostSetAttr, HostStatFs, Op,
    RELEASED_MAX, Request, UMASK_SHIFT, WALK_MISSING, WALK_OPENED,
};
use atoll_abi::{Errno, Result, assert_accounted, platform};
use atoll_mem::heap::{host_buf, is_over_budget, memory};
use atoll_mem::io::{Sink, Source, extent, extent_mut};
use atoll_mem::pages::CHUNK_ORDER;
use atoll_mem::vm::{Mappable, Object, Rewriting};
use atoll_sync::{Mutex, MutexGuard, SetOnce, WaitQueue};
use atoll_task::{Call, Debtor, Limit, books, call, descriptor_of, gate};
use hashbrown::{HashMap, HashSet};
use linux_raw_sys::general as linux;
use linux_raw_sys::net::SOCK_DGRAM;
use zerocopy::{FromBytes, IntoBytes};

use crate::chunks::{CHUNK, Chunks, DirtyRun, Scratch, memory_is_short};
use crate::errors::Errors;
use crate::inotify;
use crate::node::{At, Entry, File, FileSystem, Identity, Inode, InodeRef, NewNode, OuterLock, UseCount};
use crate::pipe::{Fifo, Pipe};
use crate::types::{Attr, Cred, DirEntry, FileType, NewMode, SetAttr, StatFs, Time};

/// Dirty pages of a file after which writing it out begins at once.
const DIRTY_SOON: u64 = 1024;
/// Dirty pages of a file after which its writer waits.
const DIRTY_MAX: u64 = 8192;
/// How often who waits for pages looks whether the server has noted that the host has them, ns: at first, and later.
const NOTED_AFTER: u64 = 20_000;
const NOTED_SELDOM: u64 = 1_000_000;
/// No device has this number.
const GONE: u64 = u64::MAX;
/// What `/proc/mounts` calls directories of the host.
pub const NAME: &str = "hostfs";
/// Files that are looked at together where memory is short.
const FILES_AT_ONCE: usize = 128;
/// Appended bytes of a file after which its writer waits: so many arrive in one piece.
const APPENDED_MAX: u64 = CHUNK;
/// How long written bytes stay in the cell at most, ns.
const DIRTY_AGE: u64 = 100_000_000;
/// Free space of the host's file system below which nothing is written behind, bytes.
const SPACE_LOW: u64 = 256 << 20;
/// How long that is believed, ns.
const SPACE_AGE: u64 = 1_000_000_000;
/// Closed files that keep their host descriptor, for the next time.
const IDLE_MAX: usize = 256;
/// How long they do if nobody asks for them, ns: so long a file that is removed outside takes space, and a file system can't be
/// mounted anew.
const IDLE_AGE: u64 = 1_000_000_000;
/// Descriptors that are let go together when there are more: in one message, which disturbs the server as much as one that is waited for.
const IDLE_AT_ONCE: usize = 64;
const _: () = assert!(IDLE_AT_ONCE <= RELEASED_MAX);
/// Reads of at least this many bytes that the cache has nothing of go past it.
const LARGE_READ: usize = 128 << 10;
/// Copies of at least so many bytes are left to the host: a shorter one costs no more here.
const COPY_LEAST: u64 = 64 << 10;
/// In pieces of so many, a message each: others wait for the file no longer than that takes.
const COPY_PIECE: u64 = 4 << 20;
/// Of a file that is read in order again so much stays cached: a part of the cell's memory, and bytes at least. What is longer would only drive out what
/// is used again, and take memory that was never used.
const IN_ORDER_PART: u64 = 16;
const IN_ORDER_LEAST: u64 = 4 << 20;
/// Of one that is read in order for the first time, or written, so much at most: more than can be dirty. It takes longer to take memory
/// into use than to ask the host again.
const KEPT_AT_FIRST: u64 = 64 << 20;
const _: () = assert!(KEPT_AT_FIRST >= 2 * DIRTY_MAX * PAGE);
/// What was written goes in pieces of so much.
const GOES_AT_ONCE: u64 = 4 << 20;
/// When caches had no memory to give they aren't asked again for so long, ns.
const IN_VAIN: u64 = 10_000_000;
/// Names that were not there after which a directory's names are asked for all at once: at least
/// so many, and one for so many bytes of the directory.
const LIST_AFTER: u32 = 2;
/// See [`LIST_AFTER`].
const LIST_PER_MISS: u64 = 4096;
/// Bytes of one listing request.
const LIST_BYTES: u64 = 64 << 10;
/// The same without attributes.
const LIST_NAMES_BYTES: u64 = 256 << 10;

/// Names of a listed directory that were asked for by themselves after which the attributes of
/// all are: at least so many, and one of so many names. `ls -l` asks for all, most others for few.
const ATTRIBUTES_AFTER: usize = 3;
/// See [`ATTRIBUTES_AFTER`].
const ATTRIBUTES_PART: usize = 16;
/// Entries of a directory whose attributes are asked for at once.
const LIST_ATTRIBUTES: usize = 4096;

/// Longest extended attribute, and longest list of them, bytes.
const EXTENDED_MAX: usize = 64 << 10;

/// Files whose contents are known before those that nobody has any more are looked for.
const SWEEP_LEAST: usize = 4096;

/// How many names the cache may have before it is pruned.
const NAMES_MAX: u64 = 100_000;

/// A mounted host directory.
pub struct HostFs {
    mount: u32,
    /// Where it is mounted, for people.
    target: alloc::string::String,
    read_only: bool,
    /// How long names and attributes are believed, ns.
    trust: u64,
    /// When a lock of a file was last taken that others on the host heed, too.
    locked: AtomicU64,
    files: Mutex<Files>,
    /// Files that have lost their last name: they are in there, too, as of a device [`GONE`], by these numbers.
    gone: AtomicU64,
    /// Closed files that still have a host descriptor, oldest first, and since when, ns.
    idle: Mutex<VecDeque<(u64, Arc<HostFile>)>>,
    dirty: Mutex<Vec<Arc<HostFile>>>,
    /// Those of them that are being written out.
    in_hand: Mutex<Vec<Arc<HostFile>>>,
    /// Those that were mapped to be written to, and may be so still.
    mapped: Mutex<Vec<Weak<HostFile>>>,
    flush_soon: AtomicBool,
    flusher: WaitQueue,
    /// Free bytes of the host's file system and when that was asked.
    space: Mutex<(u64, u64)>,
    /// Until when caches aren't asked for memory.
    in_vain: AtomicU64,
    names: AtomicU64,
    /// Counts what this cell changes in the tree: what the host said before is not believed from then on.
    changes: AtomicU64,
    /// Of these, those that are done: the host has made them, and the cell knows.
    done: AtomicU64,
    next_id: AtomicU64,
    planner: SetOnce<Planner>,
    /// What the host says of an extended attribute of a file that has none at all, by device, kind of file and name: whether there
    /// could be one; and until when that is believed.
    absent: Mutex<HashMap<Absent, (Errno, u64)>>,
}

/// The contents that there are, by device and inode.
#[derive(Default)]
struct Files {
    all: HashMap<(u64, u64), Weak<HostFile>>,
    /// How many there may be until those that nobody has any more are looked for: twice as many as there were left the last time, so
    /// that it is not done for each one.
    sweep_at: usize,
}

/// Makes the rewriting plan of an executable: file, its host handle.
pub type Planner = fn(&HostFile) -> Option<Arc<dyn Rewriting>>;

/// Device and kind of a file, and an extended attribute's name.
type Absent = (u64, FileType, Vec<u8>);

/// An entry of a directory.
struct Listed {
    name: Vec<u8>,
    /// `nlink` 0: only the kind is known.
    attr: HostAttr,
    /// It is known to have no extended attributes.
    plain: bool,
}

struct Place {
    parent: Option<Arc<HostNode>>,
    name: Vec<u8>,
    /// The name is gone, or never was one.
    gone: bool,
}

#[derive(Clone)]
struct Name {
    /// None: there is no such name.
    node: Option<Arc<HostNode>>,
    until: u64,
}

#[derive(Default)]
struct Names {
    known: HashMap<Vec<u8>, Name>,
    /// Until then, a name that is neither known nor listed does not exist.
    complete: u64,
    /// Names that a listing found.
    listed: HashSet<Vec<u8>>,
    misses: u32,
    /// Listed names that were asked for by themselves.
    asked: usize,
    /// The entries in the host's order, as long as they are believed, where this cell changes
    /// nothing ([`HostFs::asking`] at that time).
    listing: Option<(Arc<Vec<DirEntry>>, u64)>,
    /// Its listing is too long to be asked for.
    large: bool,
}

/// Attributes as the host had them.
struct Known {
    attr: HostAttr,
    /// How long they are believed.
    until: u64,
    /// [`HostFs::asking`] at that time.
    asked: u64,
    /// At that time it had no extended attributes.
    plain: bool,
}

/// A name of the host's tree.
pub struct HostNode {
    fs: Arc<HostFs>,
    id: u64,
    kind: FileType,
    place: Mutex<Place>,
    attr: Mutex<Known>,
    names: Mutex<Names>,
    /// Held while names of this directory are changed, at the host and here.
    changing: Mutex<()>,
    link: Mutex<Option<Vec<u8>>>,
    file: SetOnce<Arc<HostFile>>,
    fifo: Mutex<Weak<Pipe>>,
    /// The host's answer that its file gives no capabilities to who runs it, and the change time of then, s and ns: every program
    /// that starts asks.
    powerless: Mutex<Option<((i64, u32), Errno)>>,
    me: Weak<HostNode>,
}

/// A host descriptor that the server holds for us, and its copy in the cell, where descriptors can be passed.
#[derive(Clone, Copy)]
struct Handle {
    number: u64,
    fd: Option<i32>,
    write: bool,
    read: bool,
}

/// Whether nobody else has the file open: as long as that is so, its locks are the cell's own.
#[derive(Default)]
struct Lease {
    /// By this handle, if the file is still read and written by it.
    by: Option<u64>,
    /// The handle that holds the locks is another one of an opening that goes on: the locks don't go with it by themselves.
    shares: bool,
    /// When others were last told of a lock, and how often not long after the time before.
    told: u64,
    often: u32,
    /// None is asked for before, ns.
    not_before: u64,
}

struct State {
    handle: Option<Handle>,
    chunks: Chunks,
    size: u64,
    attr: HostAttr,
    /// When the cell wrote last; its times are newer than the host's until written out.
    written: Option<Time>,
    /// Who has mapped it last to write to its cached pages.
    mapped_by: Debtor,
    /// Since when it has dirty pages.
    dirty_since: u64,
    /// All dirty bytes are from there on and were appended: they go to the
    /// file's end, wherever others who append have moved it.
    appended: Option<u64>,
    /// Until when the host's file is taken to be unchanged.
    checked: u64,
    /// Others were said to have changed it since that.
    doubted: bool,
    /// What it is like at the host after what was written out last was not asked ([`BURST`]).
    unseen: bool,
    /// Others may have changed it in between then, which its times don't tell.
    unsure: bool,
    /// Until when that need not be asked, unless it has been read meanwhile: then what is cached of it is worth more.
    spared: u64,
    read: bool,
    /// The handle that holds the cell's locks on the file.
    locks: Option<u64>,
    lease: Lease,
    openings: u32,
    writers: u32,
    /// Written pages that are on their way out.
    out: Option<Out>,
    /// The program maps it shared and writable: the host's page cache is the only one.
    direct: bool,
    /// Write behind would hide that the disk is full.
    through: bool,
    /// Programs have had the host's file mapped to read it, and may have so still: they see there what is written.
    shown: bool,
    /// What has been brought in in order lately, as far as it is still here: from where in the file to where.
    in_order: (u64, u64),
    /// So far it had been read in order when that was not kept.
    read_before: u64,
    /// The same as `in_order` of what programs have written.
    in_order_written: (u64, u64),
}

impl State {
    /// Has the cell a lease of the file? It is over when the handle is let go.
    fn is_leased(&self) -> bool {
        self.lease.by.is_some() && self.handle.map(|h| h.number) == self.lease.by
    }

    /// Are written pages on their way out? Until the host has them, they must stay where they are, and as they are.
    fn is_flushing(&self) -> bool {
        self.out.as_ref().is_some_and(|out| out.there.load(Ordering::Acquire) == 0)
    }
}

/// What came of writing out what was dirty.
struct Flushed<'a> {
    /// Nothing is dirty, nor on its way. None: what there was has gone on to the device, too.
    state: Option<MutexGuard<'a, State>>,
    /// Some of it could not be written and is lost, which is noted for those who have the file open.
    lost: Option<Errno>,
}

/// Written pages that are on their way out.
#[derive(Clone)]
struct Out {
    /// Not 0: the host has them.
    there: Arc<AtomicU8>,
    /// The server notes it in there, and then goes on to write them to the device: nobody is woken when it does.
    noted: bool,
}

/// What tells a file's contents at the host from those of another time: its size, and when it was written.
type Contents = (u64, i64, u32);
/// A plan, if there is one, and what it is for: contents at the host, size and last change in the cell since.
type PlanOf = ((Contents, u64, Option<Time>), Option<Arc<dyn Rewriting>>);

/// The contents of a regular file, however many names it has.
pub struct HostFile {
    fs: Arc<HostFs>,
    key: (u64, u64),
    state: Mutex<State>,
    flushed: WaitQueue,
    /// How its system-call sites are rewritten, and of which contents that is true.
    plan: Mutex<Option<PlanOf>>,
    /// As programs have it mapped, if some have.
    mapping: Mutex<Weak<Mapped>>,
    users: UseCount,
    write_hint: AtomicU32,
    /// Shared mappings of its cached pages, where the host's can't be mapped.
    shared: AtomicI32,
    /// Such mappings have been there that may be written to, since pages were last written out.
    written_mapped: AtomicBool,
    /// What was written behind and lost, and where the device failed.
    errors: Errors,
    /// A path that leads to it, for opening it again.
    node: Mutex<Weak<HostNode>>,
    me: Weak<HostFile>,
}

fn time(sec: i64, nsec: u32) -> Time {
    Time { sec, nsec }
}

/// The newest change that the host has told of, ns of the wall clock.
static NEWEST: AtomicU64 = AtomicU64::new(0);

/// Notes when the host says that a file was changed.
fn note_time(attr: &HostAttr) {
    let ns = u64::try_from(attr.ctime)
        .unwrap_or(0)
        .saturating_mul(1_000_000_000)
        .saturating_add(attr.ctime_nsec.into());
    if ns > NEWEST.load(Ordering::Relaxed) {
        NEWEST.fetch_max(ns, Ordering::Relaxed);
    }
}

/// When something is written that the host isn't told of yet. The order is that of the host's own times: its clock goes in
/// steps, but to what was looked at since its last change, Linux 6.13 gives the exact time.
fn time_of_write() -> Time {
    let (step, newest) = (platform().clock(linux::CLOCK_REALTIME_COARSE), NEWEST.load(Ordering::Relaxed));
    // A file may have a time to come.
    if newest > step {
        return Time::of(newest).min(Time::now());
    }
    // The nucleus has no clock that goes in steps: within one of the host's, nothing is newer than what the host has told.
    Time::of(if !is_host() && step - newest < STEP { newest } else { step })
}

/// A file has been given a time that is not known, but is past by now: an exact one, or one of the clock's steps, but none before what any
/// file of the host was given.
fn note_past() {
    NEWEST.fetch_max(platform().realtime(), Ordering::Relaxed);
}

/// The most between two steps of the clock by which the host gives files their times, ns (a host with 250 ticks a second).
const STEP: u64 = 4_000_000;

/// Does the cell stand on a host's process?
fn is_host() -> bool {
    platform().control().descriptor.platform.load(Ordering::Relaxed) == platform_kind::HOST
}

pub(crate) fn attr_of(h: &HostAttr) -> Attr {
    Attr {
        ino: h.ino,
        dev: h.dev,
        mode: h.mode,
        nlink: h.nlink,
        uid: h.uid,
        gid: h.gid,
        rdev: h.rdev,
        size: h.size,
        blocks: h.blocks,
        blksize: h.blksize,
        atime: time(h.atime, h.atime_nsec),
        mtime: time(h.mtime, h.mtime_nsec),
        ctime: time(h.ctime, h.ctime_nsec),
    }
}

/// What a request says of a mode ([`Op::mode_argument`]).
fn mode_argument(mode: NewMode) -> u64 {
    u64::from(mode.bits | mode.umask << UMASK_SHIFT)
}

/// A buffer for a message, with a value's bytes.
fn buffer(bytes: &[u8]) -> Vec<u8> {
    let mut v = Vec::with_capacity(bytes.len().max(1));
    v.extend_from_slice(bytes);
    v
}

/// See [`HostFs::change`].
struct Change<'a>(&'a HostFs);

/// What the host says of a change that it has made.
struct Changed {
    /// The attributes that it says are so.
    told: HostChanged,
    /// What was made is open, too.
    handle: Option<Handle>,
}

/// Attributes of a [`HostChanged`], if they are known.
fn told(attr: &HostAttr) -> Option<HostAttr> {
    (attr.mode & linux::S_IFMT != 0).then_some(*attr)
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.0.done.fetch_add(1, Ordering::SeqCst);
    }
}

impl HostFs {
    /// Mounts what the supervisor knows as mount `mount`. Value: the file system and its root.
    pub fn new(
        mount: u32,
        target: &str,
        read_only: bool,
        trust: u64,
    ) -> Result<(Arc<HostFs>, Arc<HostNode>)> {
        let fs = Arc::new(HostFs {
            mount,
            target: target.into(),
            read_only,
            trust,
            locked: AtomicU64::new(0),
            files: Mutex::default(),
            gone: AtomicU64::new(0),
            idle: Mutex::new(VecDeque::new()),
            dirty: Mutex::new(Vec::new()),
            in_hand: Mutex::new(Vec::new()),
            mapped: Mutex::new(Vec::new()),
            flush_soon: AtomicBool::new(false),
            flusher: WaitQueue::new(),
            space: Mutex::new((u64::MAX, 0)),
            in_vain: AtomicU64::new(0),
            names: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            done: AtomicU64::new(0),
            next_id: AtomicU64::new(1),
            planner: SetOnce::new(),
            absent: Mutex::default(),
        });
        ALL.lock().push(Arc::downgrade(&fs));
        let attr = fs.stat_path(b"", &Cred::root())?;
        let root = fs.node(None, b"", attr, 0);
        if !read_only {
            let weak = Arc::downgrade(&fs);
            let t = atoll_task::spawn(0, move || flusher(&weak)).ok_or(Errno::ENOMEM)?;
            atoll_task::start(t);
        }
        Ok((fs, root))
    }

    /// Says who plans the rewriting of executables.
    pub fn set_planner(&self, planner: Planner) {
        // Once, at boot; a second time changes nothing.
        let _ = self.planner.set(planner);
    }

    fn request(&self, op: Op, cred: &Cred) -> Request {
        let mut r = Request::new(op);
        r.uid = cred.uid;
        r.gid = cred.gid;
        r.arg[0] = u64::from(self.mount);
        r
    }

    fn stat_path(&self, path: &[u8], cred: &Cred) -> Result<HostAttr> {
        let path = buffer(path);
        let mut out = buffer(HostAttr::default().as_bytes());
        let mut r = self.request(Op::Stat, cred);
        r.a = extent(&path);
        r.b = extent_mut(&mut out);
        call(r)?;
        HostAttr::read_from_bytes(&out).map_err(|_| Errno::EIO)
    }

    /// Something of the tree is about to change, or has changed; it is done when the value is dropped.
    fn change(&self) -> Change<'_> {
        self.changes.fetch_add(1, Ordering::SeqCst);
        Change(self)
    }

    /// The same, before the host is told to do it. The second value is for [`HostFs::until`]: what the host says of the change.
    fn changing(&self) -> (Change<'_>, u64) {
        let done = self.done.load(Ordering::SeqCst);
        let changes = self.changes.fetch_add(1, Ordering::SeqCst) + 1;
        // As above: another change that is under way may be made before or after this one is looked at.
        (Change(self), if changes == done + 1 { changes } else { u64::MAX })
    }

    /// To be called before the host is asked; for [`HostFs::until`].
    fn asking(&self) -> u64 {
        let done = self.done.load(Ordering::SeqCst);
        let changes = self.changes.load(Ordering::SeqCst);
        // While a change is under way, nobody can say whether the answer is from before or after it.
        if changes == done { changes } else { u64::MAX }
    }

    /// Until when an answer is believed. If something was changed since it was asked for, it may be
    /// older than that, and is good for this once (0).
    fn until(&self, asked: u64) -> u64 {
        if self.changes.load(Ordering::SeqCst) == asked { platform().now() + self.trust } else { 0 }
    }

    /// What is believed no longer than until then is not believed: its time is over, or it is from before a lock was taken,
    /// under which one sees what others did under theirs.
    fn horizon(&self) -> u64 {
        platform().now().max(self.locked.load(Ordering::SeqCst).saturating_add(self.trust))
    }

    /// A node for these attributes, which were asked for at `asked`.
    fn node(
        self: &Arc<Self>,
        parent: Option<Arc<HostNode>>,
        name: &[u8],
        attr: HostAttr,
        asked: u64,
    ) -> Arc<HostNode> {
        self.names.fetch_add(1, Ordering::Relaxed);
        note_time(&attr);
        Arc::new_cyclic(|me| HostNode {
            fs: self.clone(),
            // Directories are told apart by their inode, so that a mount on one is found again.
            id: if FileType::from_mode(attr.mode) == FileType::Directory {
                attr.ino ^ attr.dev << 48
            } else {
                1 << 63 | self.next_id.fetch_add(1, Ordering::Relaxed)
            },
            kind: FileType::from_mode(attr.mode),
            place: Mutex::new(Place { parent, name: name.to_vec(), gone: false }),
            attr: Mutex::new(Known { attr, until: self.until(asked), asked, plain: false }),
            names: Mutex::new(Names::default()),
            changing: Mutex::new(()),
            link: Mutex::new(None),
            file: SetOnce::new(),
            fifo: Mutex::new(Weak::new()),
            powerless: Mutex::new(None),
            me: me.clone(),
        })
    }

    /// The contents behind a regular file's attributes.
    fn contents(self: &Arc<Self>, attr: &HostAttr, node: &Arc<HostNode>) -> Arc<HostFile> {
        let key = (attr.dev, attr.ino);
        let mut files = self.files.lock();
        if let Some(f) = files.all.get(&key).and_then(Weak::upgrade) {
            return f;
        }
        if files.all.len() >= files.sweep_at {
            files.all.retain(|_, f| f.strong_count() > 0);
            files.sweep_at = (2 * files.all.len()).max(SWEEP_LEAST);
        }
        let f = Arc::new_cyclic(|me| HostFile {
            fs: self.clone(),
            key,
            state: Mutex::new(State {
                handle: None,
                chunks: Chunks::new(),
                size: attr.size,
                attr: *attr,
                written: None,
                mapped_by: Debtor::NOBODY,
                dirty_since: 0,
                appended: None,
                checked: 0,
                doubted: false,
                unseen: false,
                unsure: false,
                spared: 0,
                read: false,
                locks: None,
                lease: Lease::default(),
                openings: 0,
                writers: 0,
                out: None,
                direct: false,
                through: false,
                shown: false,
                in_order: (0, 0),
                read_before: 0,
                in_order_written: (0, 0),
            }),
            flushed: WaitQueue::new(),
            plan: Mutex::new(None),
            mapping: Mutex::default(),
            users: UseCount::default(),
            write_hint: AtomicU32::new(0),
            shared: AtomicI32::new(0),
            written_mapped: AtomicBool::new(false),
            errors: Errors::default(),
            node: Mutex::new(Arc::downgrade(node)),
            me: me.clone(),
        });
        files.all.insert(key, Arc::downgrade(&f));
        f
    }

    /// The host may give its number to the next file. Who has it open still has its pages, which may have to be given back.
    fn takes_no_number(&self, file: &HostFile) {
        let mut files = self.files.lock();
        if files.all.get(&file.key).is_some_and(|f| f.ptr_eq(&file.me))
            && let Some(f) = files.all.remove(&file.key)
        {
            files.all.insert((GONE, self.gone.fetch_add(1, Ordering::Relaxed)), f);
        }
    }

    /// The contents behind a regular file's attributes, if they are known.
    fn known_contents(&self, attr: &HostAttr) -> Option<Arc<HostFile>> {
        self.files.lock().all.get(&(attr.dev, attr.ino)).and_then(Weak::upgrade)
    }

    /// Is the host's disk nearly full?
    fn space_is_low(&self) -> bool {
        let mut space = self.space.lock();
        let now = platform().now();
        if now > space.1 {
            let free = self.stat().map_or(u64::MAX, |s| s.bavail.saturating_mul(s.bsize));
            *space = (free, now + SPACE_AGE);
        }
        space.0 < SPACE_LOW
    }

    /// Gives memory of clean cached pages back that `may_go`, by their offsets in the cell's memory; pages freed.
    pub fn shrink(&self, pages: u64, may_go: &dyn Fn(u64) -> bool) -> u64 {
        let mut freed = 0;
        self.for_each_file(|f| {
            assert_accounted("reclaiming");
            if let Some(mut s) = f.state.try_lock()
                && !s.is_flushing()
                && f.shared.load(Ordering::SeqCst) == 0
                && !f.is_only_here(&s)
            {
                freed += s.chunks.shrink(pages - freed, may_go);
            }
            freed < pages
        });
        freed
    }

    /// Does something with the files that there are, as long as `f` says so. It needs no memory for that, as there may be none: who comes or
    /// goes meanwhile may be left out.
    fn for_each_file(&self, mut f: impl FnMut(Arc<HostFile>) -> bool) {
        for done in (0..).step_by(FILES_AT_ONCE) {
            let mut some = [const { None }; FILES_AT_ONCE];
            let n = {
                let files = self.files.lock();
                let rest = files.all.values().skip(done);
                some.iter_mut().zip(rest).map(|(to, file)| *to = file.upgrade()).count()
            };
            let goes_on = some.into_iter().flatten().all(&mut f);
            if n < FILES_AT_ONCE || !goes_on {
                return;
            }
        }
    }

    /// Writes dirty pages back, of all files that have some; was there any?
    fn write_back(&self) -> bool {
        let mut any = false;
        self.for_each_file(|f| {
            assert_accounted("writing back");
            if f.state.lock().chunks.dirty_pages() > 0 {
                any = true;
                f.flush_for_later();
            }
            true
        });
        any
    }

    fn note_dirty(&self, file: &HostFile, soon: bool) {
        if let Some(f) = file.me.upgrade() {
            self.dirty.lock().push(f);
        }
        if soon {
            self.flush_soon.store(true, Ordering::SeqCst);
        }
        self.flusher.wake_all(1);
    }

    /// Writes out all that is dirty. What becomes of it is for whoever syncs or closes it.
    fn flush_for_later(&self) {
        let mut others = self.in_hand.lock().clone();
        let files = self.take_dirty();
        // What others had in hand they may have had no time for yet.
        others.retain(|f| f.state.lock().chunks.dirty_pages() > 0);
        files.iter().chain(&others).for_each(|f| f.flush_for_later());
        self.wrote_out(&files);
    }

    /// The dirty files, which are in hand until [`HostFs::wrote_out`].
    fn take_dirty(&self) -> Vec<Arc<HostFile>> {
        let mut in_hand = self.in_hand.lock();
        let all = core::mem::take(&mut *self.dirty.lock());
        let mut files: Vec<Arc<HostFile>> = Vec::with_capacity(all.len());
        let mut known = HashSet::with_capacity(all.len());
        // One that is gone may have the number of one that is there.
        files.extend(all.iter().filter(|f| known.insert(Arc::as_ptr(f).addr())).cloned());
        in_hand.extend(files.iter().cloned());
        drop(in_hand);
        // In the order in which they were found on the disk.
        files.sort_unstable_by_key(|f| f.key);
        files
    }

    /// These are not in hand any more. Their references that are left here are not the last ones.
    fn wrote_out(&self, files: &[Arc<HostFile>]) {
        let mut in_hand = self.in_hand.lock();
        for f in files {
            if let Some(at) = in_hand.iter().position(|other| Arc::ptr_eq(other, f)) {
                in_hand.swap_remove(at);
            }
        }
    }

    /// A file was closed for the last time: keep its descriptor for a while.
    fn retire(&self, file: Arc<HostFile>) {
        let now = platform().now();
        let (begins, out) = {
            let mut idle = self.idle.lock();
            let begins = idle.is_empty();
            idle.retain(|(_, f)| !Arc::ptr_eq(f, &file));
            idle.push_back((now, file));
            (begins, Self::take_idle(&mut idle, now, IDLE_MAX + IDLE_AT_ONCE - 1))
        };
        if begins {
            self.flusher.wake_all(1);
        }
        self.close_idle(out);
    }

    /// Those whose time is over and, if there are more than `most`, some more.
    fn take_idle(idle: &mut VecDeque<(u64, Arc<HostFile>)>, now: u64, most: usize) -> Vec<Arc<HostFile>> {
        // Another core may have looked at the clock later.
        let is_old = |since: u64| now.saturating_sub(since) > IDLE_AGE;
        let old = idle.iter().take(IDLE_AT_ONCE).take_while(|(since, _)| is_old(*since)).count();
        let n = if idle.len() > most { IDLE_AT_ONCE } else { old };
        idle.drain(..n).map(|(_, f)| f).collect()
    }

    /// Lets descriptors go whose time is over.
    fn close_old(&self) {
        loop {
            let out = Self::take_idle(&mut self.idle.lock(), platform().now(), usize::MAX);
            if out.is_empty() {
                return;
            }
            self.close_idle(out);
        }
    }

    /// Lets all descriptors go that are only kept for later; were there any?
    fn close_all(&self) -> bool {
        let all: Vec<_> = self.idle.lock().drain(..).map(|(_, f)| f).collect();
        let any = !all.is_empty();
        self.close_idle(all);
        any
    }

    fn close_idle(&self, out: Vec<Arc<HostFile>>) {
        let mut numbers = Vec::with_capacity(out.len());
        let mut busy = Vec::new();
        for f in out {
            // Who has it locked may wait for a disk.
            let Some(mut s) = f.state.try_lock() else {
                busy.push((platform().now(), f.clone()));
                continue;
            };
            if !f.is_unused(&s) {
                continue;
            }
            if !f.is_written(&s) {
                busy.push((platform().now(), f.clone()));
                continue;
            }
            f.see(&mut s);
            if let Some(h) = s.handle.take() {
                drop(s);
                close_here(h);
                numbers.push(h.number);
            }
        }
        for some in numbers.chunks(IDLE_AT_ONCE) {
            release_numbers(some.to_vec());
        }
        if !busy.is_empty() {
            self.idle.lock().extend(busy);
        }
    }
}

impl FileSystem for HostFs {
    fn name(&self) -> &'static str {
        NAME
    }

    fn stat(&self) -> Result<StatFs> {
        let mut out = buffer(HostStatFs::default().as_bytes());
        let mut r = self.request(Op::StatFs, &Cred::root());
        r.b = extent_mut(&mut out);
        call(r)?;
        let h = HostStatFs::read_from_bytes(&out).map_err(|_| Errno::EIO)?;
        Ok(StatFs {
            kind: h.kind,
            bsize: h.bsize,
            blocks: h.blocks,
            bfree: h.bfree,
            bavail: h.bavail,
            files: h.files,
            ffree: h.ffree,
            namelen: h.namelen,
        })
    }

    fn sync_device(&self) -> Result<()> {
        self.sync()?;
        if self.read_only {
            return Ok(());
        }
        let mut r = self.request(Op::Sync, &Cred::root());
        r.arg[1] = 2;
        call(r).map(drop)
    }

    fn sync(&self) -> Result<()> {
        let dirty = self.take_dirty();
        let mut files = dirty.clone();
        let mut outcome = Ok(());
        {
            let mut mapped = self.mapped.lock();
            mapped.retain(|f| f.upgrade().is_some_and(|f| f.may_be_written()));
            files.extend(mapped.iter().filter_map(Weak::upgrade));
        }
        let mut flush = |f: &HostFile| {
            let lost = f.flush_and(ToDevice::Not).map(|flushed| flushed.lost);
            outcome = outcome.and(lost.and_then(|lost| lost.map_or(Ok(()), Err)));
        };
        files.iter().for_each(|f| flush(f));
        self.wrote_out(&dirty);
        // The flusher may have others in hand.
        self.for_each_file(|f| {
            // Those that programs have mapped were written out in full above: not once more.
            let is_under_way = {
                let s = f.state.lock();
                s.chunks.dirty_pages() > 0 || s.is_flushing()
            };
            if is_under_way {
                flush(&f);
            }
            true
        });
        outcome
    }
}

/// Writes dirty files out, one after another, when they have been dirty long enough.
fn flusher(fs: &Weak<HostFs>) {
    loop {
        let Some(fs) = fs.upgrade() else { return };
        // Descriptors that nobody has asked for any more have their time, too.
        let oldest = fs.idle.lock().front().map(|(since, _)| since + IDLE_AGE + 1);
        let limit = oldest.map_or(Limit::Forever, Limit::Until);
        let is_more = || oldest.is_none() && !fs.idle.lock().is_empty();
        let wanted = || (!fs.dirty.lock().is_empty() || is_more()).then_some(());
        let woken = atoll_task::wait_uninterrupted_until(&fs.flusher, 1, limit, wanted);
        fs.close_old();
        if woken.is_none() || fs.dirty.lock().is_empty() {
            continue;
        }
        if !fs.flush_soon.swap(false, Ordering::SeqCst) {
            atoll_task::sleep_until(platform().now() + DIRTY_AGE / 2);
        }
        let files = fs.take_dirty();
        for f in &files {
            assert_accounted("writing back");
            f.flush_for_later();
            // It may have been opened for that alone.
            f.let_go();
        }
        fs.wrote_out(&files);
    }
}

impl HostNode {
    /// Its path, relative to the mount, without a slash in front.
    fn path(&self) -> Result<Vec<u8>> {
        let mut parts: Vec<Vec<u8>> = Vec::new();
        let mut at = self.me.upgrade().ok_or(Errno::ENOENT)?;
        loop {
            let next = {
                let place = at.place.lock();
                if place.gone {
                    return Err(Errno::ENOENT);
                }
                let Some(parent) = place.parent.clone() else { break };
                parts.push(place.name.clone());
                parent
            };
            at = next;
        }
        let mut path = Vec::with_capacity(parts.iter().map(|p| p.len() + 1).sum::<usize>().max(1));
        for (i, p) in parts.iter().rev().enumerate() {
            if i > 0 {
                path.push(b'/');
            }
            path.extend_from_slice(p);
        }
        Ok(path)
    }

    fn child_path(&self, name: &[u8]) -> Result<Vec<u8>> {
        let mut path = self.path()?;
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        Ok(path)
    }

    /// Are these attributes as good as the host's now?
    fn is_believed(&self, a: &Known) -> bool {
        // What this cell changes by another name of the file, this node doesn't know.
        let several = a.attr.nlink > 1 && self.kind != FileType::Directory;
        let current = !several || a.asked == self.fs.changes.load(Ordering::SeqCst);
        current && a.until > self.fs.horizon()
    }

    /// Attributes as the host has them, asked for again if they are old.
    fn host_attr(&self) -> Result<HostAttr> {
        {
            let a = self.attr.lock();
            if self.is_believed(&a) {
                return Ok(a.attr);
            }
        }
        self.refresh()
    }

    /// The same, by its name, or by the open file, whatever has become of the name.
    fn refresh(&self) -> Result<HostAttr> {
        let asked = self.fs.asking();
        let error = match self.refresh_by_name() {
            Ok(attr) => return Ok(attr),
            Err(e) => e,
        };
        let file = self.file.get().ok_or(error)?;
        match file.host_stat() {
            Ok(attr) => self.learn(attr, asked).map(|()| attr),
            // It was all here when it was opened, and others have removed it.
            Err(_) if is_removed(error) && file.state.lock().openings > 0 => {
                let attr = self.attr.lock().attr;
                Ok(HostAttr { nlink: attr.nlink.saturating_sub(1), ..attr })
            }
            Err(_) => Err(error),
        }
    }

    /// ESTALE: by that name there is another file now.
    fn refresh_by_name(&self) -> Result<HostAttr> {
        let asked = self.fs.asking();
        let attr = self.fs.stat_path(&self.path()?, &Cred::root())?;
        self.learn(attr, asked).inspect_err(|_| self.forget_name())?;
        Ok(attr)
    }

    /// Takes in fresh attributes; ESTALE if the name leads to another file now.
    /// `asked`: [`HostFs::asking`] before that.
    fn learn(&self, attr: HostAttr, asked: u64) -> Result<()> {
        let mut a = self.attr.lock();
        if FileType::from_mode(attr.mode) != self.kind || (attr.ino, attr.dev) != (a.attr.ino, a.attr.dev) {
            a.until = 0;
            return Err(Errno::ESTALE);
        }
        *a = Known { attr, until: self.fs.until(asked), asked, plain: false };
        drop(a);
        note_time(&attr);
        if let Some(f) = self.file.get() {
            f.revalidate(&attr);
        }
        Ok(())
    }

    fn forget_attr(&self) {
        let _change = self.fs.change();
        self.attr.lock().until = 0;
    }

    /// Its name was removed, or given to another file. Value: its contents, if they are known, and whether that was the last name: for
    /// [`HostNode::let_space_go`], once nothing is locked.
    fn lost_name(&self) -> (Option<Arc<HostFile>>, bool) {
        self.place.lock().gone = true;
        self.forget_attr();
        let last = {
            let mut a = self.attr.lock();
            // A directory counts its own "." as well.
            let names = if self.kind == FileType::Directory { 2 } else { 1 };
            a.attr.nlink = a.attr.nlink.saturating_sub(names);
            a.attr.nlink == 0
        };
        let file = self.file.get().cloned();
        if let Some(file) = file.as_ref().filter(|_| last) {
            self.fs.takes_no_number(file);
        }
        (file, last)
    }

    /// It has lost a name, and nobody has it open: kept open for the next time, it would go on filling the disk. If that was the last name,
    /// what had 64 KiB or more is waited for: who removed it may need the space.
    fn let_space_go(&self, (file, last): (Option<Arc<HostFile>>, bool)) {
        let Some(file) = file else { return };
        let is_gone = || self.place.lock().gone && self.attr.lock().attr.nlink == 0;
        let mut s = file.state.lock();
        if last && file.is_unused(&s) && s.is_flushing() {
            drop(s);
            s = file.lock_settled();
        }
        // Meanwhile somebody may have opened it, or given it another name.
        if !file.is_unused(&s) || s.is_flushing() || last && !is_gone() {
            return;
        }
        if last {
            // Nobody reads it any more, nor needs what was not written yet.
            s.chunks.clear();
        } else {
            file.see(&mut s);
        }
        let (goes, is_large) = (last || file.is_written(&s), s.size.max(s.attr.size) >= CHUNK);
        let handle = s.handle.take_if(|_| goes);
        drop(s);
        if last {
            self.fs.idle.lock().retain(|(_, f)| !Arc::ptr_eq(f, &file));
        }
        if let Some(h) = handle {
            close_here(h);
            if last && is_large {
                let _ = call(release_of(h.number));
            } else {
                release_number(h.number);
            }
        }
    }

    /// What a name leads to from now on, by this cell's own doing.
    fn remember(&self, name: &[u8], node: Option<Arc<HostNode>>) {
        self.note(name, node, None);
    }

    /// What a name leads to. `asked`: [`HostFs::asking`] before the host was.
    /// Value: the node that is kept, the one that was there before if it is the same file.
    fn note(
        &self,
        name: &[u8],
        mut node: Option<Arc<HostNode>>,
        asked: Option<u64>,
    ) -> Option<Arc<HostNode>> {
        let mut names = self.names.lock();
        if self.fs.names.load(Ordering::Relaxed) > NAMES_MAX {
            // Far too many names: forget those of this directory that nobody uses.
            let before = names.known.len();
            names.known.retain(|_, n| n.node.as_ref().is_some_and(|n| Arc::strong_count(n) > 1));
            names.complete = 0;
            let gone = (before - names.known.len()) as u64;
            self.fs.names.fetch_sub(gone.min(self.fs.names.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
        // With the lock held: who changes a name counts first, and then remembers it with the lock.
        let until = asked.map_or_else(|| platform().now() + self.fs.trust, |asked| self.fs.until(asked));
        let known = names.known.get_mut(name);
        if let (Some(new), Some(Name { node: Some(old), .. })) = (&node, &known)
            && new.is_file_of(old)
        {
            node = Some(old.clone());
        }
        if until == 0 {
            // Perhaps it is as we know it, perhaps not: the next one asks.
            names.complete = 0;
            if let Some(known) = names.known.get_mut(name)
                && known.node.is_some()
            {
                known.until = 0;
                return node;
            }
        }
        names.known.insert(name.to_vec(), Name { node: node.clone(), until });
        node
    }

    /// Others have done this to it, or to what has this name in it (`inotify(7)`).
    fn changed_outside(&self, mask: u32, name: &[u8]) {
        self.forget_attr();
        if let Some(file) = self.file.get() {
            file.state.lock().doubted = true;
        }
        if mask & (linux::IN_MODIFY | linux::IN_CLOSE_WRITE) == 0 {
            crate::paths::changed();
        }
        if name.is_empty() {
            return;
        }
        let child = self.names.lock().known.get(name).and_then(|known| known.node.clone());
        self.doubt(name);
        if let Some(child) = child {
            child.forget_attr();
            if let Some(file) = child.file.get() {
                file.state.lock().doubted = true;
            }
        }
    }

    /// What is known of a name is asked for again; the node stays the one for its file.
    fn doubt(&self, name: &[u8]) {
        let mut names = self.names.lock();
        names.complete = 0;
        if let Some(known) = names.known.get_mut(name) {
            known.until = 0;
        }
    }

    /// Are both nodes for the same file?
    fn is_file_of(&self, other: &HostNode) -> bool {
        let identity = |n: &HostNode| {
            let known = n.attr.lock();
            (known.attr.dev, known.attr.ino)
        };
        self.kind == other.kind && identity(self) == identity(other)
    }

    /// A child for these attributes: the one known by that name, if it is still the same file.
    /// `asked`: [`HostFs::asking`] before they were asked for.
    fn child(self: &Arc<Self>, name: &[u8], attr: HostAttr, asked: u64) -> Arc<HostNode> {
        let known = self.names.lock().known.get(name).and_then(|n| n.node.clone());
        let node = known
            .filter(|n| n.learn(attr, asked).is_ok())
            .unwrap_or_else(|| self.fs.node(Some(self.clone()), name, attr, asked));
        self.note(name, Some(node.clone()), Some(asked)).unwrap_or(node)
    }

    /// Asks for a name of this directory and, in the same message, for those that a path goes on
    /// with (`rest`, last one first) as far as they are directories, and for a link's target. `opens`: if the last one is a regular
    /// file, it is opened to be read, too.
    fn ask(self: &Arc<Self>, name: &[u8], rest: &[Vec<u8>], opens: bool) -> Result<Arc<HostNode>> {
        /// Bytes of an answer: a good many names, and a target.
        const ROOM: usize = 2048;
        let above = self.path()?;
        let mut path = Vec::with_capacity(above.len() + 64);
        path.extend_from_slice(&above);
        let plain = rest.iter().rev().take_while(|n| !matches!(&n[..], b"." | b".."));
        // A file that is open already is opened by nobody.
        let known = || self.names.lock().known.get(name)?.node.as_ref()?.file.get().cloned();
        let has_handle = |file: Arc<HostFile>| file.state.try_lock().is_none_or(|s| s.handle.is_some());
        let opens = opens && !(rest.is_empty() && known().is_some_and(has_handle));
        let mut asked_for = 0;
        for name in core::iter::once(name).chain(plain.map(|n| &n[..])) {
            // The first goes along however long it is.
            if path.len() > above.len() && path.len() + name.len() > ROOM {
                break;
            }
            path.push(b'/');
            path.extend_from_slice(name);
            asked_for += 1;
        }
        let mut out = alloc::vec![0u8; ROOM];
        let mut r = self.fs.request(Op::Walk, &Cred::root());
        r.arg[1] = above.len() as u64;
        r.arg[2] = u64::from(opens && asked_for == rest.len() + 1);
        r.a = extent(&path);
        r.b = extent_mut(&mut out);
        let asked = self.fs.asking();
        let call = Call::send(r)?;
        let found = call.wait()? as usize;
        let extra = call.extra();
        let mut at = self.clone();
        let mut names = path[above.len()..].split(|b| *b == b'/').skip(1);
        let mut first = None;
        let mut left = &out[..];
        let opened = (extra & WALK_OPENED != 0).then(|| Handle {
            number: extra & !WALK_OPENED,
            fd: call.take_fd(),
            write: false,
            read: true,
        });
        let mut last = None;
        for name in names.by_ref().take(found) {
            let Ok((attr, after)) = HostAttr::read_from_prefix(left) else { break };
            left = after;
            last = Some(attr);
            at = at.child(name, attr, asked);
            first.get_or_insert_with(|| at.clone());
        }
        if let Some(handle) = opened {
            at.adopt(handle, last.as_ref(), asked);
        } else if extra == WALK_MISSING {
            if let Some(name) = names.next() {
                at.note(name, None, Some(asked));
            }
        } else if at.kind == FileType::Symlink
            && extra > 0
            && let Some(target) = left.get(..extra as usize)
        {
            *at.link.lock() = Some(target.to_vec());
        }
        first.ok_or(Errno::EIO)
    }

    /// It has been opened, when it had these attributes: its contents have the handle, unless they have one, or it may be gone since.
    /// `asked`: [`HostFs::asking`] before.
    fn adopt(&self, handle: Handle, attr: Option<&HostAttr>, asked: u64) {
        let file = self.file().ok().filter(|_| self.kind == FileType::Regular);
        let until = self.fs.until(asked);
        if let (Some(file), Some(attr)) = (file, attr)
            && until != 0
            && file.key == (attr.dev, attr.ino)
            // Who has it may be about to open it.
            && let Some(mut s) = file.state.try_lock()
            && s.handle.is_none()
        {
            file.install(&mut s, handle, attr);
            s.checked = until;
            drop(s);
            // It may be that it isn't opened after all.
            return self.fs.retire(file.clone());
        }
        release(handle);
    }

    /// It has been made, and opened to read and write, when it had these attributes.
    fn adopt_made(&self, handle: Handle, attr: &HostAttr) {
        // Who has an earlier file of that number open without a descriptor, which others have removed, keeps what it has.
        let earlier = self.fs.known_contents(attr);
        if let Some(file) = earlier.filter(|file| file.is_only_here(&file.state.lock())) {
            self.fs.takes_no_number(&file);
        }
        match self.file() {
            Ok(file) if file.key == (attr.dev, attr.ino) => {
                let mut s = file.state.lock();
                if s.handle.is_some() {
                    // Another thread has found the name and opened it, and may be about to use that.
                    drop(s);
                    return release(handle);
                }
                file.begin(&mut s, handle, attr);
                drop(s);
                // It may be that it isn't opened after all.
                self.fs.retire(file);
            }
            _ => release(handle),
        }
    }

    /// Entries from the host's position `from` on, in one message, and where to go on; 0 at the end.
    fn fetch(self: &Arc<Self>, from: u64, attributes: bool) -> Result<(Vec<Listed>, u64)> {
        let path = self.path()?;
        let path = buffer(&path);
        let out = Scratch::up_to(if attributes { LIST_BYTES } else { LIST_NAMES_BYTES })?;
        let mut r = self.fs.request(Op::ReadDir, &Cred::root());
        r.arg[1] = from;
        r.arg[2] = u64::from(!attributes);
        r.a = extent(&path);
        r.b = Extent { offset: out.offset(), len: out.len() };
        let call = Call::send(r)?;
        let n = call.wait()? as usize;
        let mut bytes = atoll_mem::buffer(n.min(out.len() as usize))?;
        out.read(&mut bytes);
        let mut entries = Vec::new();
        let mut at = 0;
        while let Ok((head, rest)) = HostDirent::read_from_prefix(&bytes[at..]) {
            let len = head.name_len as usize;
            if len > rest.len() {
                break;
            }
            entries.push(Listed {
                name: rest[..len].to_vec(),
                attr: head.attr,
                plain: head.flags & DIRENT_PLAIN != 0,
            });
            at += size_of::<HostDirent>() + len.next_multiple_of(8);
            if at >= bytes.len() {
                break;
            }
        }
        Ok((entries, call.extra()))
    }

    /// Learns all names of this directory at once, if they are not too many.
    fn learn_all(self: &Arc<Self>) {
        let (now, asked) = (platform().now(), self.fs.asking());
        let Ok((entries, next)) = self.fetch(0, false) else { return };
        let mut names = self.names.lock();
        if next == 0 {
            names.listed = entries.into_iter().map(|e| e.name).collect();
            names.complete = self.fs.until(asked).min(now + self.fs.trust);
            names.asked = 0;
        } else {
            names.large = true;
        }
    }

    /// Learns the attributes of all entries, or of the first of very many.
    fn learn_attributes(self: &Arc<Self>) {
        let (mut from, mut n) = (0, 0);
        while n < LIST_ATTRIBUTES {
            let asked = self.fs.asking();
            // Whoever needs one that is left out asks for it.
            let Ok((entries, next)) = self.fetch(from, true) else { return };
            n += entries.len();
            for entry in entries {
                if entry.attr.nlink != 0 {
                    let child = self.child(&entry.name, entry.attr, asked);
                    let mut known = child.attr.lock();
                    known.plain = entry.plain && known.asked == asked;
                }
            }
            if next == 0 {
                return;
            }
            from = next;
        }
    }

    /// All entries as they are now, or were a moment ago where nothing is believed to change. Their
    /// names are known from then on.
    fn entries(self: &Arc<Self>) -> Result<Arc<Vec<DirEntry>>> {
        let asked = self.fs.asking();
        let now = platform().now();
        if self.fs.read_only {
            let names = self.names.lock();
            if let Some((listing, at)) = &names.listing
                && names.complete > now
                && *at == asked
            {
                return Ok(listing.clone());
            }
        }
        let mut out: Vec<DirEntry> = Vec::new();
        let mut from = 0;
        loop {
            let (entries, next) = self.fetch(from, false)?;
            if entries.is_empty() && next != 0 {
                return Err(Errno::EIO);
            }
            for Listed { name, attr, .. } in entries {
                let next = out.len() as u64 + 1;
                out.push(DirEntry { name, ino: attr.ino, kind: FileType::from_mode(attr.mode), next });
            }
            if next == 0 {
                break;
            }
            from = next;
        }
        let out = Arc::new(out);
        let mut names = self.names.lock();
        for e in out.iter() {
            // What was just seen is there, whatever was believed of it.
            if names.known.get(&e.name).is_some_and(|n| n.node.is_none()) {
                names.known.remove(&e.name);
            }
        }
        names.listed = out.iter().map(|e| e.name.clone()).collect();
        names.complete = self.fs.until(asked).min(now + self.fs.trust);
        names.asked = 0;
        names.listing = self.fs.read_only.then(|| (out.clone(), asked));
        Ok(out)
    }

    /// May it lose its name by this cell's doing before who opens it now has its contents?
    fn may_be_going(&self) -> bool {
        let is_changing = self.fs.changes.load(Ordering::SeqCst) != self.fs.done.load(Ordering::SeqCst);
        is_changing || self.place.lock().gone
    }

    /// Is all that the file has in memory, as its name's attributes say, and does that name stay? Value: until when that is believed.
    fn believed_contents(&self, file: &HostFile, s: &State) -> Option<u64> {
        let (attr, until) = {
            let known = self.attr.lock();
            (known.attr, known.until)
        };
        let same = contents(&attr) == contents(&s.attr) && !s.unsure;
        (same && file.is_all_here(s) && !self.may_be_going()).then_some(until)
    }

    /// This name is about to go. Contents that are open without a descriptor must be had now or never. Who opens them from now on gets one:
    /// that something changes has been said ([`HostFs::changing`]).
    fn keep_contents(&self) -> Result<()> {
        if self.kind != FileType::Regular {
            return Ok(());
        }
        // Another node for the same file may have been opened.
        let attr = self.attr.lock().attr;
        let Some(file) = self.fs.known_contents(&attr) else { return Ok(()) };
        let mut s = file.state.lock();
        if !file.is_unused(&s) && s.handle.is_none() {
            file.is_found_by(&self.me);
            // Others may have removed it already.
            if let Err(e) = file.obtain(&mut s, false)
                && !(is_removed(e) && file.is_all_here(&s))
            {
                return Err(e);
            }
        }
        Ok(())
    }

    /// Why it can't be opened: there may be another file by its name by now.
    fn why_not_there(&self, e: Errno) -> Errno {
        if e == Errno::ENOENT && self.place.lock().gone { Errno::ESTALE } else { e }
    }

    /// Opens it: by its name, or `again`, by who has it open.
    fn opened(self: Arc<Self>, flags: u32, again: bool) -> Result<Arc<dyn File>> {
        match self.kind {
            FileType::Regular => {
                let write = flags & linux::O_ACCMODE != linux::O_RDONLY;
                if write && self.fs.read_only {
                    return Err(Errno::EROFS);
                }
                let file = self.file()?;
                // What others wrote since is noticed when a file is opened.
                if self.attr.lock().until <= platform().now() {
                    if again { self.refresh() } else { self.refresh_by_name() }
                        .map_err(|e| self.why_not_there(e))?;
                }
                file.is_found_by(&self.me);
                let mut s = file.state.lock();
                // Its name may be gone when it is read, so it has a descriptor from now on. What is here needs none for as long as it is
                // believed ([`HostFile::check`]).
                let may_do_without = !write && s.handle.is_none();
                match may_do_without.then(|| self.believed_contents(&file, &s)).flatten() {
                    Some(until) => s.checked = s.checked.max(until),
                    None => _ = file.obtain(&mut s, write).map_err(|e| self.why_not_there(e))?,
                }
                s.writers += u32::from(write);
                s.openings += 1;
                drop(s);
                if write {
                    let low = self.fs.space_is_low();
                    file.state.lock().through = low;
                }
                Ok(file)
            }
            FileType::Directory => Ok(Arc::new(HostDir { node: self, listing: Mutex::new(Arc::default()) })),
            // Between the processes of this cell.
            FileType::Fifo => Fifo::open(&self.fifo, flags),
            FileType::Socket => Err(Errno::ENXIO),
            _ => Err(Errno::EACCES),
        }
    }

    /// Finds or makes the contents of this regular file.
    fn file(&self) -> Result<Arc<HostFile>> {
        if let Some(f) = self.file.get() {
            return Ok(f.clone());
        }
        let attr = self.attr.lock().attr;
        let me = self.me.upgrade().ok_or(Errno::ENOENT)?;
        let f = self.fs.contents(&attr, &me);
        // Another thread may have been faster; both found the same contents.
        let _ = self.file.set(f.clone());
        Ok(f)
    }

    /// Asks the host for an extended attribute, or knows that there is none.
    fn find_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        /// Names that are remembered: programs that look at all files ask for the same few.
        const MOST: usize = 64;
        /// How long, ns: another file system may come to have the same number.
        const FOR: u64 = 1_000_000_000;
        // A list leaves out what only who has privileges on the host may see, and the host may say more of what belongs to users.
        let common = name.starts_with(b"system.") || name.starts_with(b"security.");
        let plain = {
            let a = self.attr.lock();
            (common && a.plain && self.is_believed(&a)).then_some(a.attr.dev)
        };
        let Some(dev) = plain else { return self.extended(Extended::Get, name, b"", &Cred::root()) };
        let (key, now) = ((dev, self.kind, name.to_vec()), platform().now());
        if let Some((absent, until)) = self.fs.absent.lock().get(&key)
            && *until > now
        {
            return Err(*absent);
        }
        let got = self.extended(Extended::Get, name, b"", &Cred::root());
        if let Err(absent @ (Errno::ENODATA | Errno::EOPNOTSUPP)) = got {
            let mut all = self.fs.absent.lock();
            if all.len() >= MOST {
                all.clear();
            }
            all.insert(key, (absent, now + FOR));
        }
        got
    }

    /// Sends a change of the tree. The caller has said so ([`HostFs::changing`]).
    fn change(&self, op: Op, cred: &Cred, a: &[u8], b: &[u8], args: [u64; 3]) -> Result<Changed> {
        if self.fs.read_only {
            return Err(Errno::EROFS);
        }
        let (a, b) = (buffer(a), buffer(b));
        let mut out = buffer(HostChanged::default().as_bytes());
        let mut r = self.fs.request(op, cred);
        r.a = extent(&a);
        r.b = extent(&b);
        r.c = extent_mut(&mut out);
        r.arg[1..].copy_from_slice(&args);
        let call = Call::send(r)?;
        call.wait().inspect_err(|e| {
            // Perhaps it has changed all the same.
            if *e != Errno::EEXIST {
                self.forget_attr();
            }
        })?;
        let number = call.extra();
        let handle = (number & WALK_OPENED != 0).then(|| Handle {
            number: number & !WALK_OPENED,
            fd: call.take_fd(),
            write: true,
            read: true,
        });
        let told = HostChanged::read_from_bytes(&out).map_err(|_| Errno::EIO)?;
        Ok(Changed { told, handle })
    }

    /// Takes in what the host says of it after a change. `asked`: from [`HostFs::changing`]. Value: is that known now?
    fn learn_told(&self, attr: &HostAttr, asked: u64) -> bool {
        let known = told(attr).is_some_and(|attr| self.learn(attr, asked).is_ok());
        if !known {
            self.forget_attr();
        }
        known
    }

    /// Takes in how it is by the open file, if that takes no message.
    fn learn_in_place(&self) -> bool {
        let Some(file) = self.file.get() else { return false };
        let asked = self.fs.asking();
        let handle = file.state.lock().handle.filter(|h| h.fd.is_some() && platform().host().is_some());
        let attr = handle.and_then(|h| stat_handle(h).ok());
        attr.is_some_and(|attr| self.learn(attr, asked).is_ok())
    }

    fn of(inode: &InodeRef) -> Result<&HostNode> {
        inode.as_any().downcast_ref().ok_or(Errno::EXDEV)
    }
}

impl Inode for HostNode {
    fn id(&self) -> u64 {
        self.id
    }

    fn kind(&self) -> FileType {
        self.kind
    }

    fn attr(&self) -> Result<Attr> {
        let host = match self.host_attr() {
            // As it was when it lost its name.
            Err(e) if is_removed(e) && self.place.lock().gone => Ok(self.attr.lock().attr),
            other => other,
        }?;
        let mut attr = attr_of(&host);
        if let Some(f) = self.file.get() {
            f.overlay(&mut attr);
        }
        Ok(attr)
    }

    fn set_attr(&self, change: &SetAttr, cred: &Cred) -> Result<()> {
        if self.fs.read_only {
            return Err(Errno::EROFS);
        }
        if let (FileType::Regular, Ok(f)) = (self.kind, self.file()) {
            f.is_found_by(&self.me);
            // What was written behind comes before. What becomes of it is for who syncs or closes the file.
            f.flush_for_later();
            if let Some(size) = change.size {
                File::truncate(&*f, size)?;
                // Nobody may have it open.
                f.let_go();
            }
        }
        let time_of = |t: Option<Time>| match t {
            // The host's clock goes in steps: by ours, what it makes afterwards could be older. And of somebody else's file,
            // that is all it allows.
            Some(_) if change.now => (0, linux::UTIME_NOW),
            t => t.map_or((0, 0), |t| (t.sec, t.nsec)),
        };
        let h = HostSetAttr {
            mask: u32::from(change.mode.is_some())
                | u32::from(change.uid.is_some()) << 1
                | u32::from(change.gid.is_some()) << 2
                | u32::from(change.atime.is_some()) << 4
                | u32::from(change.mtime.is_some()) << 5,
            mode: change.mode.unwrap_or(0),
            uid: change.uid.unwrap_or(0),
            gid: change.gid.unwrap_or(0),
            size: 0,
            atime: time_of(change.atime).0,
            atime_nsec: time_of(change.atime).1,
            mtime: time_of(change.mtime).0,
            mtime_nsec: time_of(change.mtime).1,
        };
        let known = if h.mask != 0 {
            let (_change, asked) = self.fs.changing();
            let changed = self.at_host(|path, handle| {
                let args = [u64::from(handle != 0), handle, 0];
                self.change(Op::SetAttr, cred, path, h.as_bytes(), args)
            })?;
            if change.mtime.is_some()
                && let Some(f) = self.file.get()
            {
                f.state.lock().written = None;
            }
            let known = self.learn_told(&changed.told.what, asked);
            if change.mode.is_some_and(|mode| mode & 0o111 != 0)
                && let Some(f) = self.file.get()
            {
                f.may_be_run();
            }
            known
        } else {
            change.size.is_some() && self.learn_in_place()
        };
        if !known {
            // It is done, whatever has become of the name since.
            let _ = self.refresh();
        }
        Ok(())
    }

    fn believed(&self, attributes: bool) -> Option<u64> {
        let attributes = if attributes { self.attr.lock().until } else { u64::MAX };
        let (parent, name) = {
            let place = self.place.lock();
            if place.gone {
                return None;
            }
            (place.parent.clone(), place.name.clone())
        };
        // The root of a mount has no name.
        let Some(parent) = parent else { return Some(attributes) };
        let names = parent.names.lock();
        let known = names.known.get(&name)?;
        let is_it = known.node.as_ref().is_some_and(|n| core::ptr::eq(&**n, self));
        is_it.then(|| known.until.min(attributes))
    }

    fn file_system(&self) -> Arc<dyn FileSystem> {
        self.fs.clone()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn lookup(&self, name: &[u8]) -> Result<InodeRef> {
        self.lookup_on_the_way(name, &[], false)
    }

    fn knows_nothing_of(&self, name: &[u8]) -> bool {
        let now = self.fs.horizon();
        let names = self.names.lock();
        names.complete <= now && names.known.get(name).is_none_or(|n| n.until <= now)
    }

    fn lookup_on_the_way(&self, name: &[u8], rest: &[Vec<u8>], opens: bool) -> Result<InodeRef> {
        let me = self.me.upgrade().ok_or(Errno::ENOENT)?;
        let now = self.fs.horizon();
        enum Learn {
            Nothing,
            Names,
            Attributes,
        }
        let learn = {
            let mut names = self.names.lock();
            if let Some(n) = names.known.get(name)
                && n.until > now
            {
                return n.node.clone().map(|n| n as InodeRef).ok_or(Errno::ENOENT);
            }
            if names.complete > now {
                if !names.listed.contains(name) {
                    return Err(Errno::ENOENT);
                }
                names.asked += 1;
                if names.asked > ATTRIBUTES_AFTER.max(names.listed.len() / ATTRIBUTES_PART) {
                    // Once: those that it leaves out are not worth a second time.
                    names.asked = 0;
                    Learn::Attributes
                } else {
                    Learn::Nothing
                }
            } else if names.misses >= LIST_AFTER && !names.large {
                Learn::Names
            } else {
                Learn::Nothing
            }
        };
        match learn {
            Learn::Names
                if u64::from(self.names.lock().misses) * LIST_PER_MISS >= self.attr.lock().attr.size =>
            {
                self.names.lock().misses = 0;
                me.learn_all();
                let names = self.names.lock();
                if names.complete > now && !names.listed.contains(name) {
                    return Err(Errno::ENOENT);
                }
            }
            Learn::Attributes => {
                me.learn_attributes();
                if let Some(n) = self.names.lock().known.get(name)
                    && n.until > now
                    && let Some(node) = &n.node
                {
                    return Ok(node.clone());
                }
            }
            _ => {}
        }
        let asked = self.fs.asking();
        match me.ask(name, rest, opens) {
            Ok(node) => Ok(node),
            Err(Errno::ENOENT) => {
                self.names.lock().misses += 1;
                self.note(name, None, Some(asked));
                Err(Errno::ENOENT)
            }
            Err(e) => Err(e),
        }
    }

    fn parent(&self) -> Option<InodeRef> {
        self.place.lock().parent.clone().map(|p| p as InodeRef)
    }

    fn name(&self) -> Option<Vec<u8>> {
        let place = self.place.lock();
        if place.gone { None } else { Some(place.name.clone()) }
    }

    fn identity(&self) -> Result<Identity> {
        let known = self.attr.lock();
        Ok((known.attr.dev, known.attr.ino))
    }

    fn watch(&self, events: u32) {
        watch(self, events);
    }

    fn entry(&self, _hint: &[u8]) -> Option<Entry> {
        let place = self.place.lock();
        Some(Entry { dir: place.parent.clone()?, name: place.name.clone(), gone: place.gone })
    }

    fn create(&self, name: &[u8], node: NewNode, mode: NewMode, cred: &Cred) -> Result<InodeRef> {
        let me = self.me.upgrade().ok_or(Errno::ENOENT)?;
        let _one = self.changing.lock();
        let path = self.child_path(name)?;
        let mode = mode_argument(mode);
        let (_change, asked) = self.fs.changing();
        let made = match node {
            NewNode::File => self.change(Op::Create, cred, &path, &[], [mode, 0, 1]),
            NewNode::Directory => self.change(Op::MakeDir, cred, &path, &[], [mode, 0, 0]),
            NewNode::Symlink(target) => self.change(Op::SymLink, cred, target, &path, [0; 3]),
            NewNode::Special(FileType::Socket, kind) => {
                self.change(Op::MakeNode, cred, &path, &[], [mode | FileType::Socket as u64, kind, 0])
            }
            NewNode::Special(kind @ (FileType::Fifo | FileType::Regular), _) => {
                self.change(Op::MakeNode, cred, &path, &[], [mode | u64::from(kind as u32), 0, 0])
            }
            NewNode::Special(..) => return Err(Errno::EPERM),
        };
        if matches!(made, Err(Errno::EEXIST)) {
            // Others made it meanwhile: what we know of the name is wrong.
            self.doubt(name);
        }
        let Changed { told: says, handle } = made?;
        self.learn_told(&says.to, asked);
        let attr = told(&says.what).ok_or(Errno::ENOENT).or_else(|_| self.fs.stat_path(&path, &Cred::root()));
        let attr = attr.inspect_err(|_| {
            handle.into_iter().for_each(release);
            self.doubt(name);
        })?;
        let node = me.child(name, attr, asked);
        match handle {
            Some(handle) if node.kind == FileType::Socket => MADE.lock().push(((attr.dev, attr.ino), handle)),
            Some(handle) => node.adopt_made(handle, &attr),
            None => {}
        }
        // Nobody else changes names here meanwhile: this is it, however late the answer is.
        self.remember(name, Some(node.clone()));
        Ok(node)
    }

    fn link(&self, name: &[u8], target: &InodeRef, cred: &Cred) -> Result<()> {
        let from = Self::of(target)?;
        let _one = self.changing.lock();
        let path = self.child_path(name)?;
        let (old, handle) = match from.path() {
            Ok(old) => (old, 0),
            Err(e) => {
                // One that never had a name, by its descriptor. The host knows whether it may have one.
                let file = from.file.get().ok_or(e)?;
                let handle = file.state.lock().handle.ok_or(e)?;
                // What was written to it is to be found under the name.
                file.flush_whole()?;
                (Vec::new(), handle.number)
            }
        };
        let (_change, asked) = self.fs.changing();
        let says = self.change(Op::Link, cred, &old, &path, [handle, 0, 0])?.told;
        let me = self.me.upgrade().ok_or(Errno::ENOENT)?;
        self.doubt(name);
        self.learn_told(&says.to, asked);
        from.learn_told(&says.what, asked);
        let mut place = from.place.lock();
        if place.gone {
            // The new name is its own, so that the file can be opened by it again.
            *place = Place { parent: Some(me), name: name.to_vec(), gone: false };
            drop(place);
            self.remember(name, from.me.upgrade());
        } else if let Some(attr) = told(&says.what) {
            drop(place);
            me.child(name, attr, asked);
        }
        Ok(())
    }

    fn temporary(&self, mode: NewMode, linkable: bool, cred: &Cred) -> Result<InodeRef> {
        if self.fs.read_only {
            return Err(Errno::EROFS);
        }
        let path = buffer(&self.path()?);
        let mut out = buffer(HostAttr::default().as_bytes());
        let mut r = self.fs.request(Op::Open, cred);
        let exclusive = if linkable { 0 } else { linux::O_EXCL };
        r.arg[1] = u64::from(linux::O_TMPFILE | linux::O_RDWR | exclusive);
        r.arg[2] = mode_argument(mode);
        r.arg[3] = 1;
        r.a = extent(&path);
        r.b = extent_mut(&mut out);
        let asked = self.fs.asking();
        let call = Call::send(r)?;
        let number = call.wait()?;
        let handle = Handle { number, fd: call.take_fd(), write: true, read: true };
        let attr = HostAttr::read_from_bytes(&out).map_err(|_| Errno::EIO)?;
        let name = alloc::format!("#{}", attr.ino).into_bytes();
        let node = self.fs.node(self.me.upgrade(), &name, attr, asked);
        node.place.lock().gone = true;
        let file = node.file()?;
        file.is_found_by(&node.me);
        file.begin(&mut file.state.lock(), handle, &attr);
        Ok(node)
    }

    fn unlink(&self, name: &[u8], dir: bool, cred: &Cred) -> Result<()> {
        let one = self.changing.lock();
        let known = self.names.lock().known.get(name).and_then(|n| n.node.clone());
        let path = self.child_path(name)?;
        let (change, asked) = self.fs.changing();
        if let Some(node) = &known {
            node.keep_contents()?;
        }
        let changed = self.change(Op::Unlink, cred, &path, &[], [u64::from(dir), 0, 0])?;
        self.learn_told(&changed.told.from, asked);
        let gone = known.map(|node| (node.lost_name(), node));
        self.remember(name, None);
        drop((change, one));
        if let Some((contents, node)) = gone {
            node.let_space_go(contents);
        }
        Ok(())
    }

    fn rename(&self, name: &[u8], to: &InodeRef, new: &[u8], flags: u32, cred: &Cred) -> Result<()> {
        let to = Self::of(to)?;
        // Both directories, always in the same order.
        let (a, b): (*const Self, *const Self) = (self, to);
        let first = if a <= b { self.changing.lock() } else { to.changing.lock() };
        let second = (a != b).then(|| if a <= b { to.changing.lock() } else { self.changing.lock() });
        let find = |dir: &Self, name: &[u8]| Self::of(&dir.lookup(name)?)?.me.upgrade().ok_or(Errno::ENOENT);
        let (what, victim) = (find(self, name)?, find(to, new).ok());
        if let Some(f) = what.file.get() {
            // Programs rename a finished file into place: what they wrote is to be in it.
            f.flush_whole()?;
        }
        let (from_path, to_path) = (self.child_path(name)?, to.child_path(new)?);
        // Until all is where it belongs, paths through it may lead the host elsewhere than they do here.
        let (change, asked) = self.fs.changing();
        if let Some(node) = &victim {
            node.keep_contents()?;
        }
        let changed = self.change(Op::Rename, cred, &from_path, &to_path, [u64::from(flags), 0, 0])?;
        self.learn_told(&changed.told.from, asked);
        to.learn_told(&changed.told.to, asked);
        what.learn_told(&changed.told.what, asked);
        let to = to.me.upgrade().ok_or(Errno::ENOENT)?;
        let me = self.me.upgrade().ok_or(Errno::ENOENT)?;
        let mut gone = None;
        match victim {
            Some(v) if flags & linux::RENAME_EXCHANGE != 0 => {
                *v.place.lock() = Place { parent: Some(me.clone()), name: name.to_vec(), gone: false };
                v.forget_attr();
                me.remember(name, Some(v));
            }
            _ if flags & linux::RENAME_EXCHANGE != 0 => self.doubt(name),
            Some(v) => {
                gone = Some((v.lost_name(), v));
                self.remember(name, None);
            }
            None => self.remember(name, None),
        }
        *what.place.lock() = Place { parent: Some(to.clone()), name: new.to_vec(), gone: false };
        to.remember(new, Some(what));
        drop((change, second, first));
        if let Some((contents, victim)) = gone {
            victim.let_space_go(contents);
        }
        Ok(())
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        if self.kind != FileType::Symlink {
            return Err(Errno::EINVAL);
        }
        if let Some(t) = self.link.lock().clone() {
            return Ok(t);
        }
        let path = buffer(&self.path()?);
        let out = Scratch::up_to(4096)?;
        let mut r = self.fs.request(Op::ReadLink, &Cred::root());
        r.a = extent(&path);
        r.b = Extent { offset: out.offset(), len: 4096 };
        let n = call(r)?.min(4096) as usize;
        let mut target = alloc::vec![0; n];
        out.read(&mut target);
        *self.link.lock() = Some(target.clone());
        Ok(target)
    }

    fn list(&self, from: u64, _most: usize) -> Result<Vec<DirEntry>> {
        let me = self.me.upgrade().ok_or(Errno::ENOENT)?;
        if self.kind != FileType::Directory {
            return Err(Errno::ENOTDIR);
        }
        Ok(me.entries()?.iter().skip(from as usize).cloned().collect())
    }

    fn enter(&self, by: i32) -> Result<()> {
        if self.kind == FileType::Regular { self.file()?.users.enter(by) } else { Ok(()) }
    }

    fn leave(&self, by: i32) {
        // Who has entered has the contents found.
        if let Some(file) = self.file.get() {
            file.users.leave(by);
        }
    }

    fn open(self: Arc<Self>, flags: u32, _cred: &Cred) -> Result<Arc<dyn File>> {
        self.opened(flags, false)
    }

    fn open_again(self: Arc<Self>, flags: u32, _cred: &Cred) -> Result<Arc<dyn File>> {
        self.opened(flags, true)
    }

    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        if name != b"security.capability" {
            return self.find_xattr(name);
        }
        let attr = self.host_attr()?;
        let changed = (attr.ctime, attr.ctime_nsec);
        let known = *self.powerless.lock();
        if let Some((then, absent)) = known
            && then == changed
        {
            return Err(absent);
        }
        let got = self.find_xattr(name);
        if let Err(absent @ (Errno::ENODATA | Errno::EOPNOTSUPP)) = got {
            *self.powerless.lock() = Some((changed, absent));
        }
        got
    }

    fn list_xattr(&self) -> Result<Vec<u8>> {
        self.extended(Extended::List, b"", b"", &Cred::root())
    }

    fn set_xattr(&self, name: &[u8], value: Option<&[u8]>, flags: u32, cred: &Cred) -> Result<()> {
        if self.fs.read_only {
            return Err(Errno::EROFS);
        }
        let what = if value.is_some() { Extended::Set(flags) } else { Extended::Remove };
        let done = self.extended(what, name, value.unwrap_or(b""), cred);
        *self.powerless.lock() = None;
        // An access list is the mode, too.
        self.forget_attr();
        done.map(drop)
    }

    fn write_back(&self) -> Result<()> {
        self.file.get().map_or(Ok(()), |f| f.flush_whole())
    }

    fn forget_name(&self) {
        let (parent, name) = {
            let place = self.place.lock();
            (place.parent.clone(), place.name.clone())
        };
        self.forget_attr();
        if let Some(parent) = parent {
            parent.doubt(&name);
        }
        crate::paths::changed();
    }
}

impl HostNode {
    fn extended(&self, what: Extended, name: &[u8], value: &[u8], cred: &Cred) -> Result<Vec<u8>> {
        let (number, flags) = match what {
            Extended::List => (0, 0),
            Extended::Get => (1, 0),
            Extended::Set(flags) => (2, flags),
            Extended::Remove => (3, 0),
        };
        let changes = number >= 2;
        // Most values are short; the longest are asked for again.
        let mut room = if changes { name.len() + value.len() } else { 4096 };
        loop {
            let mut bytes = atoll_mem::buffer(room)?;
            bytes[..name.len()].copy_from_slice(name);
            bytes[name.len()..][..value.len()].copy_from_slice(value);
            let done = self.at_host(|path, handle| {
                let path = buffer(path);
                let mut r = self.fs.request(Op::ExtendedAttr, cred);
                r.arg[1] = number | u64::from(flags) << 8;
                r.arg[2] = name.len() as u64;
                r.arg[3] = handle;
                r.a = extent(&path);
                r.b = extent_mut(&mut bytes);
                call(r)
            });
            match done {
                Err(Errno::ERANGE) if !changes && room < EXTENDED_MAX => room = EXTENDED_MAX,
                Err(e) => return Err(e),
                Ok(n) => {
                    bytes.truncate(n as usize);
                    return Ok(bytes);
                }
            }
        }
    }

    /// Asks the host something about this file: by its descriptor (a number that is not 0) while it is open, as its name may lead to
    /// another file by now, and else by its path.
    fn at_host<T>(&self, mut ask: impl FnMut(&[u8], u64) -> Result<T>) -> Result<T> {
        let path = self.path();
        let mut tried = 0;
        while let Some(f) = self.file.get() {
            f.is_found_by(&self.me);
            let handle = {
                let mut s = f.state.lock();
                match s.handle {
                    Some(h) if s.openings > 0 || path.is_err() => h.number,
                    None if s.openings > 0 => match f.obtain(&mut s, false) {
                        Ok(h) => h.number,
                        Err(e) if is_removed(e) => return Err(e),
                        // What can't be opened has a name.
                        Err(_) => break,
                    },
                    _ => break,
                }
            };
            match ask(&[], handle) {
                // It has been exchanged for another one meanwhile.
                Err(Errno::EBADF) if handle != tried => tried = handle,
                done => return done,
            }
        }
        ask(&path?, 0)
    }
}

/// What is asked about extended attributes.
#[derive(Clone, Copy)]
enum Extended {
    List,
    Get,
    /// With `setxattr(2)`'s flags.
    Set(u32),
    Remove,
}

impl Drop for HostNode {
    fn drop(&mut self) {
        let attr = self.attr.get_mut().attr;
        if self.place.get_mut().gone && attr.nlink == 0 {
            inotify::gone((attr.dev, attr.ino));
        }
    }
}

/// An open directory of the host.
struct HostDir {
    node: Arc<HostNode>,
    /// Its entries as they were when reading it began: what is removed
    /// meanwhile (by `rm -r`, one name after another) shifts no others.
    listing: Mutex<Arc<Vec<DirEntry>>>,
}

impl File for HostDir {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn seekable(&self) -> bool {
        true
    }

    fn read(&self, _sink: &mut Sink, _at: Option<u64>, _nonblock: bool) -> Result<usize> {
        Err(Errno::EISDIR)
    }

    fn attr(&self) -> Result<Attr> {
        self.node.attr()
    }

    fn entries(&self, from: u64) -> Option<Result<Vec<DirEntry>>> {
        /// Entries that are handed out at a time.
        const MOST: usize = 1024;
        let mut listing = self.listing.lock();
        let known = listing.last().is_some_and(|e| e.next >= from);
        if from == 0 || !known {
            match self.node.entries() {
                Ok(fresh) => *listing = fresh,
                Err(e) => return Some(Err(e)),
            }
        }
        Some(Ok(listing.iter().skip(from as usize).take(MOST).cloned().collect()))
    }

    fn sync(&self, _data_only: bool) -> Result<()> {
        // A rename is durable once its directory is synced: open it, sync it.
        let path = buffer(&self.node.path()?);
        let mut attr = buffer(HostAttr::default().as_bytes());
        let mut r = self.node.fs.request(Op::Open, &Cred::root());
        r.arg[1] = u64::from(linux::O_RDONLY | linux::O_DIRECTORY);
        r.a = extent(&path);
        r.b = extent_mut(&mut attr);
        let handle = call(r)?;
        let mut r = Request::new(Op::Sync);
        r.arg[0] = handle;
        let done = call(r);
        let mut r = Request::new(Op::Release);
        r.arg[0] = handle;
        call(r)?;
        done.map(drop)
    }
}

impl HostFile {
    /// Number of the server's handle on it, opened now if need be.
    pub fn handle(&self) -> Result<u64> {
        let mut s = self.state.lock();
        self.obtain(&mut s, false).map(|h| h.number)
    }

    /// Device, inode, size and time of last change: what a cached plan of its contents is filed under.
    pub fn identity(&self) -> (u64, u64, u64, Time) {
        let mut s = self.state.lock();
        self.see(&mut s);
        (self.key.0, self.key.1, s.size, time(s.attr.mtime, s.attr.mtime_nsec))
    }

    /// By this name it is there now; the one by which it was found before may be gone.
    fn is_found_by(&self, node: &Weak<HostNode>) {
        *self.node.lock() = node.clone();
    }

    /// Makes sure that there is a host descriptor that can do what is needed.
    fn obtain(&self, s: &mut State, write: bool) -> Result<Handle> {
        if let Some(h) = s.handle
            && (h.write || !write)
        {
            return Ok(h);
        }
        let node = self.node.lock().upgrade().ok_or(Errno::ESTALE)?;
        let path = buffer(&node.path()?);
        let mut out = buffer(HostAttr::default().as_bytes());
        let out_extent = extent_mut(&mut out);
        let open = |flags: u32| {
            let mut r = self.fs.request(Op::Open, &Cred::root());
            r.arg[1] = u64::from(flags);
            r.arg[3] = 1;
            r.a = extent(&path);
            r.b = out_extent;
            patiently(|| {
                let call = Call::send(r)?;
                let number = call.wait()?;
                Ok((number, call.take_fd()))
            })
        };
        let flags = if write { linux::O_RDWR } else { linux::O_RDONLY };
        let (mut read, mut got) = (true, open(flags));
        if got == Err(Errno::ENFILE) && self.fs.close_all() {
            got = open(flags);
        }
        if write && got == Err(Errno::EACCES) {
            read = false;
            got = open(linux::O_WRONLY);
        }
        let (number, fd) = got?;
        let attr = HostAttr::read_from_bytes(&out).map_err(|_| Errno::EIO)?;
        let new = Handle { number, fd, write, read };
        if (attr.dev, attr.ino) != self.key {
            release(new);
            node.forget_attr();
            return Err(Errno::ESTALE);
        }
        self.install(s, new, &attr);
        Ok(new)
    }

    /// From now on it is read and written by this handle, which was opened when it had these attributes.
    fn install(&self, s: &mut State, new: Handle, attr: &HostAttr) {
        if let Some(old) = s.handle.replace(new) {
            release(old);
        }
        self.compare(s, attr);
    }

    /// The same of a file that has just been made. What is here without a handle is of an earlier one, which others have removed: the
    /// host gives its number again.
    fn begin(&self, s: &mut State, handle: Handle, attr: &HostAttr) {
        if s.handle.is_none() {
            s.chunks.clear();
            (s.written, s.appended, s.dirty_since) = (None, None, 0);
            (s.unseen, s.unsure, s.spared) = (false, false, 0);
            (s.size, s.attr) = (attr.size, *attr);
            (s.in_order, s.read_before, s.in_order_written) = ((0, 0), 0, (0, 0));
            (s.direct, s.shown, s.through) = (false, false, false);
            // What that one lost is nothing to those who have this one.
            self.errors.forget();
        }
        self.install(s, handle, attr);
    }

    /// Opens the handle that holds the cell's locks: one that is never exchanged for another.
    fn open_for_locks(&self) -> Result<u64> {
        let node = self.node.lock().upgrade().ok_or(Errno::ENOENT)?;
        let path = buffer(&node.path()?);
        let mut out = buffer(HostAttr::default().as_bytes());
        let out_extent = extent_mut(&mut out);
        let open = |flags: u32| {
            let mut r = self.fs.request(Op::Open, &Cred::root());
            r.arg[1] = u64::from(flags);
            r.a = extent(&path);
            r.b = out_extent;
            patiently(|| call(r))
        };
        let number = match open(linux::O_RDWR) {
            Err(e) if e != Errno::EBUSY => open(linux::O_RDONLY)?,
            opened => opened?,
        };
        let attr = HostAttr::read_from_bytes(&out).map_err(|_| Errno::EIO)?;
        let mut s = self.state.lock();
        if (attr.dev, attr.ino) != self.key || s.locks.is_some() {
            release_number(number);
            return s.locks.ok_or(Errno::ENOENT);
        }
        s.locks = Some(number);
        Ok(number)
    }

    /// The same, and has this `Op::Lock` done with it, in one message. False: there is no name any more by which it could be opened, or
    /// another handle holds them by now. EAGAIN: others have locked it, and there is no handle yet.
    fn lock_opened(&self, mut r: Request) -> Result<bool> {
        let Some(node) = self.node.lock().upgrade() else { return Ok(false) };
        let path = match node.path() {
            Err(Errno::ENOENT) => return Ok(false),
            path => buffer(&path?),
        };
        let mut attr =
            buffer(HostAttr { dev: self.key.0, ino: self.key.1, ..HostAttr::default() }.as_bytes());
        let to = self.fs.request(Op::Lock, &Cred::root());
        (r.uid, r.gid, r.arg[0]) = (to.uid, to.gid, to.arg[0]);
        r.arg[1] |= 8;
        r.a = extent(&path);
        r.b = extent_mut(&mut attr);
        let number = match patiently(|| call(r)) {
            Err(Errno::ENOENT) => return Ok(false),
            number => number?,
        };
        let mut s = self.state.lock();
        if s.locks.is_some() {
            drop(s);
            // Waited for: it is locked by the other one after that.
            let _ = call(release_of(number));
            return Ok(false);
        }
        s.locks = Some(number);
        Ok(true)
    }

    fn drop_handle(&self, s: &mut State) {
        self.see(s);
        if let Some(h) = s.handle.take() {
            release(h);
        }
    }

    /// Nobody else has the file open, as far as that can be had: asked for where locks are taken often. Then this one need be told nobody.
    fn takes_lease(&self) -> bool {
        let mut s = self.state.lock();
        let now = platform().now();
        let soon = now < s.lease.told.saturating_add(LOCKS_OFTEN);
        (s.lease.told, s.lease.often) = (now, if soon { s.lease.often.saturating_add(1) } else { 0 });
        if s.lease.often < LEASE_AFTER
            || now < s.lease.not_before
            || s.locks.is_some() && !s.lease.shares
            || !is_host()
        {
            return false;
        }
        s.lease.not_before = now + LEASE_AGAIN;
        // What can be run can't be while it is open to be written.
        let is_program = s.attr.mode & 0o111 != 0 && s.handle.is_none_or(|h| !h.write);
        if is_program || !hear_openers() {
            return false;
        }
        let Ok(Handle { number, .. }) = self.obtain(&mut s, true) else { return false };
        {
            // Where it is found when somebody wants it before the answer is here.
            let mut leased = LEASED.lock();
            leased.retain(|(_, f)| f.strong_count() > 0 && !f.ptr_eq(&self.me));
            leased.push((number, self.me.clone()));
        }
        if SHARED.load(Ordering::SeqCst) {
            return false;
        }
        let outcome = lease(number, 1);
        s.lease.by = Some(number).filter(|_| outcome.is_ok());
        if outcome.is_err_and(|e| matches!(e, Errno::EINVAL | Errno::ENOSYS | Errno::EACCES | Errno::EBADF)) {
            // There are none for it.
            s.lease.not_before = u64::MAX;
        }
        let is_leased = s.is_leased();
        drop(s);
        if is_leased {
            // What others were told before need not be known any more: it would outlive the lease.
            self.untell();
        }
        is_leased
    }

    /// Takes this lock, the first one, by the handle by which it is read and written, if that is such that it may be leased. EAGAIN: others
    /// have locked it.
    fn locks_handle(&self, lock: &OuterLock) -> Result<bool> {
        let mut s = self.state.lock();
        let Some(Handle { number, .. }) = s.handle.filter(|h| h.write && s.locks.is_none()) else {
            return Ok(false);
        };
        let mut r = lock_request(lock);
        r.arg[0] = number;
        r.arg[1] |= 16;
        s.locks = Some(call(r)?);
        s.lease.shares = true;
        Ok(true)
    }

    /// Who gets a lock of it next, or opens it, sees what was written before, here and, under its locks, elsewhere.
    fn show_others(&self) {
        self.flush_for_later();
        self.fs.flush_for_later();
    }

    /// Those outside the cell see no locks any more.
    fn untell(&self) {
        let (locks, shares) = {
            let mut s = self.state.lock();
            (s.locks.take(), core::mem::take(&mut s.lease.shares))
        };
        if let Some(number) = locks {
            let mut r = release_of(number);
            r.arg[1] = u64::from(shares);
            // Waited for: who takes the lock next, from here or elsewhere, is not to meet this one.
            let _ = call(r);
        }
    }

    /// Has those outside the cell see a lock by this handle.
    fn tell_lock(number: u64, lock: &OuterLock) -> Result<()> {
        let mut r = lock_request(lock);
        r.arg[0] = number;
        call(r).map(drop)
    }

    /// Has just locked it: others may have changed it under their locks before, and whatever else these are about.
    fn was_locked(&self) {
        self.fs.locked.store(platform().now(), Ordering::SeqCst);
        crate::paths::changed();
        // What others wrote under their locks is not told by the times alone: they are coarse.
        let mut s = self.lock_settled();
        // If others have removed it, and it was opened without a descriptor, there is nothing but what is here.
        let is_all = self.is_only_here(&s) && self.obtain(&mut s, false).is_err();
        if s.chunks.dirty_pages() == 0 && !s.direct && !self.may_be_written() && !is_all {
            self.forget_cached(&mut s);
            s.checked = 0;
            self.check(&mut s);
        }
        drop(s);
        let node = self.node.lock().upgrade();
        if let Some(node) = node {
            node.forget_attr();
            node.learn_in_place();
        }
    }

    /// Asks the host what the file is like, if that was not done when it was written out last.
    fn see(&self, s: &mut State) {
        if !s.unseen || s.chunks.dirty_pages() > 0 || s.is_flushing() {
            return;
        }
        if let Some(a) = s.handle.and_then(|h| stat_handle(h).ok()) {
            note_time(&a);
            let resized = a.size != s.size && !self.may_be_written();
            (s.attr, s.written, s.unseen) = (a, None, false);
            if resized {
                s.size = a.size;
                self.forget_cached(s);
            }
        }
    }

    /// Drops cached pages if the host's file changed behind our back.
    fn compare(&self, s: &mut State, attr: &HostAttr) {
        if s.unseen && s.chunks.dirty_pages() == 0 && !s.is_flushing() {
            // Who has changed it last is not known.
            note_time(attr);
            (s.written, s.unseen) = (None, false);
        }
        let same = contents(attr) == contents(&s.attr) && attr.size == s.size && !s.unsure;
        let ours = s.written.is_some() || self.may_be_written();
        if !same && s.chunks.dirty_pages() == 0 && !s.is_flushing() && !ours {
            s.size = attr.size;
            self.forget_cached(s);
        }
        if s.written.is_none() {
            s.attr = *attr;
        }
    }

    /// Have programs written to its pages, perhaps, without a word?
    fn may_be_written(&self) -> bool {
        self.written_mapped.load(Ordering::SeqCst)
    }

    /// What the host has is not what is cached any more. Pages that are mapped get it in place.
    fn forget_cached(&self, s: &mut State) {
        s.unsure = false;
        if self.shared.load(Ordering::SeqCst) == 0 {
            return s.chunks.clear();
        }
        s.chunks.distrust();
        for start in s.chunks.places() {
            // Those that can't be read now are asked for when they are read.
            let _ = self.fill_chunk(s, start);
        }
    }

    /// Makes all pages of a chunk valid; where it lies.
    fn fill_chunk(&self, s: &mut State, start: u64) -> Result<u64> {
        let memory = s.chunks.room(start)?;
        let mut at = start;
        while at < start + CHUNK {
            if s.chunks.is_valid(at) {
                at += PAGE;
            } else if at < s.size {
                self.load(s, at, start + CHUNK - at)?;
            } else {
                zero(memory + (at - start), PAGE)?;
                s.chunks.filled(at, PAGE);
            }
        }
        Ok(memory)
    }

    fn revalidate(&self, attr: &HostAttr) {
        // A file that is being written has the truth here.
        if let Some(mut s) = self.state.try_lock() {
            if self.is_only_here(&s) {
                // It is all that there is if the file was removed. Who reads it asks.
                if contents(attr) != contents(&s.attr) {
                    s.checked = 0;
                }
                return;
            }
            self.see(&mut s);
            // What differs may be from before something that was written out since. The open file says how it is now.
            let now = match s.handle {
                Some(h) if contents(attr) != contents(&s.attr) => stat_handle(h).ok(),
                _ => None,
            };
            self.compare(&mut s, now.as_ref().unwrap_or(attr));
        }
    }

    fn host_stat(&self) -> Result<HostAttr> {
        let handle = self.state.lock().handle.ok_or(Errno::ENOENT)?;
        stat_handle(handle)
    }

    /// Puts what the cell knows better over the host's attributes.
    fn overlay(&self, attr: &mut Attr) {
        let mut s = self.state.lock();
        self.see(&mut s);
        if s.direct {
            if let Some(a) = s.handle.and_then(|h| stat_handle(h).ok()) {
                attr.size = a.size;
            }
            return;
        }
        if s.written.is_none() && (s.attr.ctime, s.attr.ctime_nsec) > (attr.ctime.sec, attr.ctime.nsec) {
            // What was written has gone out since the name was asked for.
            let now = attr_of(&s.attr);
            (attr.mtime, attr.ctime, attr.blocks) = (now.mtime, now.ctime, now.blocks);
        }
        if s.writers > 0 || s.chunks.dirty_pages() > 0 || s.written.is_some() {
            attr.size = s.size;
            if let Some(t) = s.written {
                attr.mtime = t;
                attr.ctime = t;
            }
        }
    }

    /// Reads from the host into memory of the cell. `size`: where the file is taken to end.
    fn fill(&self, h: Handle, at: u64, memory_offset: u64, len: u64, size: u64) -> Result<usize> {
        let n = self.fetch(h, at, memory_offset, len, size)?;
        books::moved(Resource::DeviceRead, n as u64);
        atoll_task::read_from_storage(n as u64);
        Ok(n)
    }

    fn fetch(&self, h: Handle, at: u64, memory_offset: u64, len: u64, size: u64) -> Result<usize> {
        if let (Some(fd), Some(host)) = (h.fd, platform().host()) {
            let bufs = [host_buf(memory_offset, len)];
            match books::within(Resource::DeviceRead, || host.read_at(fd, &bufs, at)) {
                Ok(n) if n as u64 == len || n == 0 || at + n as u64 == size => return Ok(n),
                // Short: where the host's page cache ends, or the file has shrunk.
                Ok(_) | Err(Errno::EAGAIN | Errno::EOPNOTSUPP) => {}
                Err(e) => return Err(e),
            }
        }
        let mut r = Request::new(Op::Read);
        r.arg[0] = h.number;
        r.arg[1] = at;
        r.a = Extent { offset: memory_offset, len };
        call(r).map(|n| n as usize)
    }

    /// Makes the pages around `at` valid: at least the one that holds it.
    fn load(&self, s: &mut State, at: u64, ahead: u64) -> Result<()> {
        let h = self.obtain(s, false)?;
        let start = at / PAGE * PAGE;
        let in_chunk = CHUNK - start % CHUNK;
        let mut len = PAGE;
        while len < in_chunk.min(ahead.next_multiple_of(PAGE))
            && start + len < s.size
            && !s.chunks.is_valid(start + len)
        {
            len += PAGE;
        }
        let Some(offset) = s.chunks.prepare(start, len) else { return Err(Errno::ENOMEM) };
        let n = self.fill(h, start, offset, len, s.size)? as u64;
        // Behind the end of the file there are zeroes.
        zero(offset + n, len.saturating_sub(n))?;
        s.chunks.filled(start, len);
        let from = if s.in_order.1 == start { s.in_order.0 } else { start };
        s.in_order = (from, start + len);
        let most = (memory().total() / IN_ORDER_PART).max(IN_ORDER_LEAST);
        let kept = if start < s.read_before { most } else { most.min(KEPT_AT_FIRST) };
        let passed = (start + len).saturating_sub(kept) / CHUNK * CHUNK;
        if is_cheap(h)
            && from < passed
            && s.writers == 0
            && !s.is_flushing()
            && self.shared.load(Ordering::SeqCst) == 0
        {
            s.chunks.drop_clean(from, passed);
            s.in_order.0 = passed;
            s.read_before = s.read_before.max(passed);
        }
        Ok(())
    }

    /// A program has written from there to there. If it does so with all of a long file, what lies far behind is not kept.
    fn let_written_go(&self, s: &mut State, from: u64, to: u64) {
        let begun = if s.in_order_written.1 == from { s.in_order_written.0 } else { from };
        s.in_order_written = (begun, to);
        let passed = to.saturating_sub(KEPT_AT_FIRST) / CHUNK * CHUNK;
        if passed >= begun + GOES_AT_ONCE
            && s.handle.is_some_and(is_cheap)
            && !s.is_flushing()
            && self.shared.load(Ordering::SeqCst) == 0
        {
            s.chunks.drop_clean(begun, passed);
            s.in_order_written.0 = passed;
        }
    }

    /// Where memory is short, lets some go that holds what is cached and clean: of this file, else of others. False: there is none.
    fn make_room(&self, s: &mut State) -> bool {
        let (now, vain) = (platform().now(), &self.fs.in_vain);
        if now < vain.load(Ordering::Relaxed) {
            return false;
        }
        let may_shrink = self.shared.load(Ordering::SeqCst) == 0 && !s.is_flushing();
        let some = may_shrink && s.chunks.shrink(BLOCK / PAGE, &|_| true) > 0
            || atoll_mem::vm::reclaim(BLOCK, is_over_budget(CHUNK_ORDER));
        if !some {
            vain.store(now + IN_VAIN, Ordering::Relaxed);
        }
        some
    }

    fn lock_settled(&self) -> MutexGuard<'_, State> {
        let (mut rest, mut last) = (NOTED_AFTER, None);
        loop {
            let s = self.state.lock();
            if !s.is_flushing() {
                return s;
            }
            let noted = s.out.as_ref().filter(|out| out.noted).map(|out| out.there.clone());
            drop(s);
            if let Some(noted) = noted {
                if last.replace(noted.clone()).is_none_or(|last| !Arc::ptr_eq(&last, &noted)) {
                    rest = NOTED_AFTER;
                }
                atoll_task::sleep_until(platform().now() + rest);
                rest = (rest * 2).min(NOTED_SELDOM);
            } else {
                atoll_task::wait_uninterrupted(&self.flushed, 1, || {
                    let s = self.state.lock();
                    s.out.as_ref().is_none_or(|out| out.noted).then_some(())
                });
            }
        }
    }

    /// Can it be found by a name?
    fn has_name(&self) -> bool {
        self.fs.files.lock().all.get(&self.key).is_some_and(|f| f.ptr_eq(&self.me))
    }

    /// Writes all dirty pages to the host. What becomes of them is for whoever syncs or closes it.
    fn flush_for_later(&self) {
        // What is lost is noted, and what could not be tried stays dirty.
        let _ = self.flush();
    }

    /// Writes all dirty pages to the host. What it does not take is lost, and noted. An error: pages are still dirty.
    pub fn flush(&self) -> Result<()> {
        self.flush_and(ToDevice::Not).map(drop)
    }

    /// The same, for who gives the file a name that may be another's: an error, too, if it has lost something and nobody has been told.
    /// Those who wrote it are told still: who renames it may be somebody else.
    fn flush_whole(&self) -> Result<()> {
        self.flush()?;
        self.errors.peek()
    }

    /// Its contents, when the host has all that was written to it.
    fn lock_flushed(&self) -> Result<MutexGuard<'_, State>> {
        // It is there: nothing goes on to the device.
        let mut s = self.flush_and(ToDevice::Not)?.state.ok_or(Errno::EIO)?;
        self.see(&mut s);
        Ok(s)
    }

    /// Writes all dirty pages to the host, and has it write what it got to its device, if that takes no message of its own.
    fn flush_and(&self, sync: ToDevice) -> Result<Flushed<'_>> {
        if self.may_be_written() {
            let mut s = self.lock_settled();
            if self.shared.load(Ordering::SeqCst) == 0 {
                self.written_mapped.store(false, Ordering::SeqCst);
            }
            // Nobody says which pages programs have written to.
            let size = s.size;
            let who = s.mapped_by;
            s.chunks.mark_all_dirty(size, who);
            s.appended = None;
        }
        let mut lost = None;
        loop {
            let begun = books::begin_for_nobody();
            let mut s = self.lock_settled();
            if s.chunks.dirty_pages() == 0 {
                if lost.is_some()
                    && let Some(a) = s.handle.and_then(|h| stat_handle(h).ok())
                {
                    // What is cached may be nowhere else: from now on the file is as the host has it.
                    s.size = a.size;
                    s.attr = a;
                    (s.written, s.unseen) = (None, false);
                    self.forget_cached(&mut s);
                }
                return Ok(Flushed { state: Some(s), lost });
            }
            let h = self.obtain(&mut s, true)?;
            let size = s.size;
            let appended = s.appended.take();
            let mut runs = s.chunks.take_dirty(size, if appended.is_some() { usize::MAX } else { 16 });
            // If of what was written before there is nothing else, and all goes in one message to a server on this machine.
            let all = s.chunks.dirty_pages() == 0 && appended.is_none() && runs.len() == 1 && h.fd.is_some();
            let sync = if all && lost.is_none() { sync } else { ToDevice::Not };
            if s.chunks.dirty_pages() == 0 {
                // The next write begins a new wait.
                s.dirty_since = 0;
            }
            let noted = sync != ToDevice::Not;
            let spares = noted && !core::mem::take(&mut s.read) && platform().now() < s.spared;
            // Others have written to it since it was looked at last, and what is written now hides that.
            let is_hidden = |a: &HostAttr| contents(a) != contents(&s.attr);
            let looks = h.fd.is_some() && s.out.is_none() && !spares && !s.unseen;
            let hides = if looks { stat_handle(h).is_ok_and(|a| is_hidden(&a)) } else { spares || s.doubted };
            s.unsure |= hides;
            let mut there = Arc::new(AtomicU8::new(0));
            let note = match Arc::get_mut(&mut there) {
                Some(word) if noted => extent_mut(word.as_mut_bytes()),
                _ => Extent::default(),
            };
            let out = Out { there, noted };
            s.out = Some(out.clone());
            let mut told = Vec::new();
            let tells = match noted && !spares {
                true => {
                    told = buffer(HostAttr::default().as_bytes());
                    extent_mut(&mut told)
                }
                false => Extent::default(),
            };
            let known = s.attr;
            // Others may make more dirty before the answer comes.
            let of_noted = if noted { s.chunks.debts(&runs[0]) } else { Vec::new() };
            drop(s);
            let mut written = Vec::with_capacity(runs.len());
            let outcome = match appended {
                Some(base) => append_out(h, &mut runs, base, |run| written.push(run)).map(|()| None),
                None => write_out(h, &runs, (sync, note, tells), |run| written.push(run)),
            };
            // Of a noted one before it went on to the device, which may take long: others may have changed it since.
            let stat = match outcome {
                Ok(Some(_)) if noted => HostAttr::read_from_bytes(&told).ok().filter(|a| a.mode != 0),
                _ => stat_handle(h).ok(),
            };
            let mut s = self.state.lock();
            // What has been learned meanwhile, by what else this cell did to it, is newer.
            let is_newer = noted && s.attr != known;
            let spares = spares && matches!(outcome, Ok(Some(Ok(()))));
            let mut stat = stat.or_else(|| if spares { None } else { stat_handle(s.handle?).ok() });
            if spares {
                note_past();
            }
            match &s.out {
                Some(now) if Arc::ptr_eq(&now.there, &out.there) => {
                    s.out = None;
                    stat = stat.filter(|_| !is_newer);
                }
                // Others have gone on by now, and are writing out more: they will know how it is then.
                Some(_) => stat = None,
                None => stat = stat.filter(|_| !noted),
            }
            s.unseen |= noted && stat.is_none();
            let debts = match noted {
                true if written.is_empty() => Vec::new(),
                true => of_noted,
                false => written.iter().flat_map(|run| s.chunks.debts(run)).collect(),
            };
            // Part of what was appended may be there; a second time would be once too often.
            let will_not_do = |e| appended.is_some() || is_loss(e);
            // What else the device's answer is tells only who asked: the host has what was written.
            let is_noted = |e| !matches!(outcome, Ok(Some(_))) || is_loss(e);
            let failed = match outcome {
                Ok(Some(Err(e))) => Some(e),
                // It will not get better by trying: what can't be written is dropped, as Linux does, and the rest tried.
                Err(e) if will_not_do(e) => {
                    s.through = true;
                    if e == Errno::ENOSPC {
                        // The next files that are opened go through at once, too.
                        *self.fs.space.lock() = (0, platform().now() + SPACE_AGE);
                    }
                    Some(e)
                }
                Err(_) => {
                    runs.iter().for_each(|run| s.chunks.mark_dirty(*run));
                    None
                }
                Ok(_) => None,
            };
            if let Some(a) = stat {
                note_time(&a);
                if appended.is_some() && a.size != s.size {
                    // Others have appended, too: what is where is known to the host only.
                    s.size = a.size;
                    self.forget_cached(&mut s);
                } else if a.size != s.size
                    && outcome.is_ok()
                    && s.chunks.dirty_pages() == 0
                    && s.out.is_none()
                    && !self.may_be_written()
                {
                    // Others have made it longer or shorter.
                    s.size = a.size;
                    self.forget_cached(&mut s);
                }
                (s.attr, s.unseen) = (a, false);
                if noted {
                    s.spared = platform().now() + BURST;
                }
                if s.chunks.dirty_pages() == 0 {
                    s.written = None;
                }
            }
            if let Some(e) = failed
                && lost.replace(e).is_none()
                && is_noted(e)
            {
                self.errors.note(e);
            }
            drop(s);
            self.flushed.wake_all(1);
            // Whoever writes it back, those have to pay whose it was.
            debts.iter().for_each(|(who, bytes)| books::moved_for(*who, Resource::DeviceWrite, *bytes));
            books::reimburse(begun, Resource::DeviceWrite, &debts);
            match outcome {
                Ok(Some(_)) => return Ok(Flushed { state: None, lost }),
                Err(e) if failed.is_none() => return Err(e),
                _ => {}
            }
        }
    }

    fn write_cached(&self, s: &mut State, source: &mut Source, at: u64) -> Result<usize> {
        let len = (source.left() as u64).min(CHUNK - at % CHUNK);
        // Pages that are only partly written must be known first.
        for edge in [at, at + len - 1] {
            let page = edge / PAGE * PAGE;
            let whole = at <= page && at + len >= (page + PAGE).min(s.size.max(at + len));
            if !whole && page < s.size && !s.chunks.is_valid(page) {
                self.load(s, page, PAGE)?;
            }
        }
        s.chunks.write(source, at, Some(Debtor::current()))
    }

    /// Gets ready to append: finds the file's end as it is now. False: what is dirty goes out first.
    fn begin_append(&self, s: &mut State) -> Result<bool> {
        if s.chunks.dirty_pages() > 0 {
            return Ok(s.appended.is_some());
        }
        let h = self.obtain(s, true)?;
        self.see(s);
        if let Ok(a) = stat_handle(h) {
            self.compare(s, &a);
        }
        s.appended = Some(s.size);
        Ok(true)
    }

    /// Looks whether the host's file changed, if that was not done lately.
    fn check(&self, s: &mut State) {
        s.read = true;
        let now = platform().now();
        if s.chunks.dirty_pages() > 0 || s.direct {
            return;
        }
        // Others were said to have changed it, or may have under their locks; or it is time to look.
        let doubted = core::mem::take(&mut s.doubted);
        // What they changed, if that can't be told from what is written here.
        s.unsure |= doubted && (s.is_flushing() || s.written.is_some());
        if !doubted && (s.checked > self.fs.horizon() || self.fs.read_only) {
            return;
        }
        let last = s.checked.saturating_sub(self.fs.trust);
        let locked = self.fs.locked.load(Ordering::SeqCst);
        // When it was last looked at, if a lock was taken since.
        let looked = platform().realtime().saturating_sub(now.saturating_sub(last));
        let looked = if last > 0 && locked >= last { looked } else { u64::MAX };
        s.checked = now + self.fs.trust;
        // It may have been opened without one. If others have removed it meanwhile, what is here is what there was.
        let handle = if self.is_only_here(s) {
            let obtained = self.obtain(s, false);
            if obtained.is_err_and(|e| !is_removed(e)) {
                s.checked = now;
            }
            obtained.ok()
        } else {
            s.handle
        };
        self.see(s);
        if let Some(a) = handle.and_then(|h| stat_handle(h).ok()) {
            self.compare(s, &a);
            // Changes that follow each other closely may have one time: what was read between them would look right.
            let changed = a.mtime.saturating_mul(1_000_000_000).saturating_add(i64::from(a.mtime_nsec));
            let unsure = (changed.max(0) as u64).saturating_add(CLOCK_STEP) >= looked;
            if unsure
                && s.chunks.dirty_pages() == 0
                && s.written.is_none()
                && !s.is_flushing()
                && !self.may_be_written()
            {
                self.forget_cached(s);
            }
        }
    }

    /// Writes past the cache, waiting for the host. Value: bytes that it took.
    fn write_through(&self, s: &mut State, source: &mut Source, at: u64, append: bool) -> Result<usize> {
        let h = self.obtain(s, true)?;
        self.see(s);
        let scratch = Scratch::up_to(source.left().min(256 << 10) as u64)?;
        let len = source.left().min(scratch.len() as usize);
        let n = source.take_memory(scratch.offset(), len)?;
        let mut run = [DirtyRun { at, memory: scratch.offset(), len: n as u64 }];
        // As far as it goes without a gap.
        let mut put = 0;
        let mut done = |run: DirtyRun| {
            books::moved(Resource::DeviceWrite, run.len);
            if run.at == at + put {
                put += run.len;
            }
        };
        let outcome = match append {
            true => append_out(h, &mut run, at, &mut done),
            false => {
                write_out(h, &run, (ToDevice::Not, Extent::default(), Extent::default()), &mut done).map(drop)
            }
        };
        if let Ok(a) = stat_handle(h) {
            s.attr = a;
            s.size = a.size;
        } else {
            s.size = s.size.max(at + put);
        }
        // Cached pages there are old now.
        self.forget_cached(s);
        if put == 0 {
            outcome?;
        }
        Ok(put as usize)
    }
}

/// What is watched ([`inotify`]), by device and inode, wherever it is mounted: what is believed of it must be as new as what others are
/// said to have done to it. Those that nobody watches any more are left out now and then.
static WATCHED: Mutex<BTreeMap<Identity, Vec<Weak<HostNode>>>> = Mutex::new(BTreeMap::new());
/// One change at a time of what the server watches.
static WATCHING: Mutex<()> = Mutex::new(());
/// How many are watched when those are to be left out.
static SWEEP: AtomicUsize = AtomicUsize::new(64);
/// When the server, which can watch no more, is next told what it need not.
static SWEEP_NEXT: AtomicU64 = AtomicU64::new(0);
/// How long that lasts, ns.
const SWEEP_AGE: u64 = 1_000_000_000;
/// A thread asks for what others do.
static LISTENS: AtomicBool = AtomicBool::new(false);
/// Bytes of events that are asked for at a time.
const EVENTS: u64 = 16 << 10;
/// How long the thread waits when the host has failed, ns.
const AGAIN: u64 = 100_000_000;

/// Has the server tell what others do to this one. Where it can't, what this cell does is told all the same.
fn watch(node: &HostNode, events: u32) {
    let (Ok(identity), true) = (node.identity(), is_host()) else { return };
    let one = WATCHING.lock();
    let count = {
        let mut all = WATCHED.lock();
        let nodes = all.entry(identity).or_default();
        nodes.retain(|n| n.strong_count() > 0 && !n.ptr_eq(&node.me));
        nodes.push(node.me.clone());
        all.len()
    };
    if count > SWEEP.load(Ordering::Relaxed) {
        let left = sweep();
        SWEEP.store((left * 2).max(64), Ordering::Relaxed);
    }
    let mut done = ask_to_watch(node, identity, events);
    let now = platform().now();
    if done == Err(Errno::ENOSPC) && SWEEP_NEXT.load(Ordering::Relaxed) <= now {
        // It is of no use to do that for each of many.
        SWEEP_NEXT.store(now + SWEEP_AGE, Ordering::Relaxed);
        sweep();
        done = ask_to_watch(node, identity, events);
    }
    drop(one);
    if done.is_err() || LISTENS.swap(true, Ordering::SeqCst) {
        return;
    }
    match atoll_task::spawn(0, listen) {
        Some(t) => atoll_task::start(t),
        None => LISTENS.store(false, Ordering::SeqCst),
    }
}

/// Has the server tell these events of a node, or, if there are none, no more of it: whatever its name leads to by now.
fn ask_to_watch(node: &HostNode, (dev, ino): Identity, events: u32) -> Result<()> {
    let path = match node.path() {
        Err(e) if events != 0 => return Err(e),
        path => buffer(&path.unwrap_or_default()),
    };
    let mut r = node.fs.request(Op::Watch, &Cred::root());
    r.arg[1..].copy_from_slice(&[u64::from(events), dev, ino]);
    r.a = extent(&path);
    call(r).map(drop)
}

/// Has the server tell no more of what nobody watches. Value: how many are left. One change at a time: [`WATCHING`].
fn sweep() -> usize {
    let all: Vec<Identity> = WATCHED.lock().keys().copied().collect();
    let (left, gone): (Vec<_>, Vec<_>) = all.into_iter().partition(|identity| inotify::is_watched(*identity));
    gone.into_iter().for_each(unwatch);
    left.len()
}

/// Has the server tell no more of this one, if it can be said there which it is.
fn unwatch(identity: Identity) {
    let nodes = WATCHED.lock().remove(&identity).unwrap_or_default();
    if let Some(node) = nodes.iter().find_map(Weak::upgrade) {
        // If it can't, events come that nobody hears.
        let _ = ask_to_watch(&node, identity, 0);
    }
}

/// Asks for what others do, again and again, and tells those who watch it.
fn listen() {
    let Ok(mut room) = atoll_mem::buffer(EVENTS as usize) else {
        return LISTENS.store(false, Ordering::SeqCst);
    };
    loop {
        let mut r = Request::new(Op::NextEvents);
        r.a = extent_mut(&mut room);
        match call(r) {
            Ok(len) => tell_events(&room[..(len as usize).min(room.len())]),
            Err(Errno::ENOSYS) => return LISTENS.store(false, Ordering::SeqCst),
            Err(_) => {
                // Who knows what was lost.
                events_lost();
                atoll_task::sleep_until(platform().now() + AGAIN);
            }
        }
    }
}

/// Files of which this cell has leases, by the server's handles.
static LEASED: Mutex<Vec<(u64, Weak<HostFile>)>> = Mutex::new(Vec::new());
/// Makes a file's locks known outside the cell ([`File::share`]).
static SHARES: SetOnce<fn(&Arc<dyn File>)> = SetOnce::new();
/// A thread asks for who wants to open one.
static HEARS: AtomicBool = AtomicBool::new(false);
/// A lock that comes no longer than so much after the one before is one of many, ns.
const LOCKS_OFTEN: u64 = 100_000_000;
/// So many of those come before a lease is asked for.
const LEASE_AFTER: u32 = 2;
/// Steps of the host's clock that says when a file was changed are shorter, ns.
const CLOCK_STEP: u64 = 20_000_000;
/// While parts of a file are written to the device one after another, the host is asked so often what the file is like, ns. Where it has
/// been asked for a file's times it gives the next write one of its own (multigrain timestamps, Linux 6.13), which then has to be written
/// to the device, too, in some file systems: ext4 without a journal takes half as long again for fdatasync(2).
const BURST: u64 = 50_000_000;
/// Who gave one back, or did not get one, does not ask for the next one before, ns.
const LEASE_AGAIN: u64 = 1_000_000_000;
/// So long one tries to open a file of which somebody else has a lease, ns: the host takes it away after 45 s, or what is in
/// `/proc/sys/fs/lease-break-time`.
const LEASE_BREAKS: u64 = 50_000_000_000;
/// How often, ns.
const LEASE_LOOKS: u64 = 1_000_000;

/// Says who makes the locks of a file known outside the cell.
pub fn set_sharer(share: fn(&Arc<dyn File>)) {
    // Once, at boot.
    let _ = SHARES.set(share);
}

/// Sees to it that the cell hears who wants to open a file of which it has a lease. False: it can't.
fn hear_openers() -> bool {
    if HEARS.swap(true, Ordering::SeqCst) {
        return true;
    }
    let thread = atoll_task::spawn(0, give_leases_back);
    HEARS.store(thread.is_some(), Ordering::SeqCst);
    thread.map(atoll_task::start).is_some()
}

fn give_leases_back() {
    loop {
        match call(Request::new(Op::NextOpener)) {
            Ok(number) => {
                let file = LEASED.lock().iter().find(|(leased, _)| *leased == number).map(|(_, f)| f.clone());
                if let (Some(file), Some(share)) = (file.and_then(|f| f.upgrade()), SHARES.get()) {
                    // To make the locks known may have to wait for who writes much.
                    let _ = lease(number, 3);
                    share(&(file as Arc<dyn File>));
                }
            }
            Err(Errno::ENOSYS) => return HEARS.store(false, Ordering::SeqCst),
            Err(_) => atoll_task::sleep_until(platform().now() + AGAIN),
        }
    }
}

/// No leases are asked for: the cell is about to stop.
static SHARED: AtomicBool = AtomicBool::new(false);

/// Gives all leases back, as if somebody wanted to open the files, and asks for none while this is done.
pub fn while_shared(f: impl FnOnce()) {
    SHARED.store(true, Ordering::SeqCst);
    let all: Vec<_> = LEASED.lock().iter().filter_map(|(_, f)| f.upgrade()).collect();
    for file in all {
        if let Some(share) = SHARES.get() {
            share(&(file as Arc<dyn File>));
        }
    }
    f();
    SHARED.store(false, Ordering::SeqCst);
}

/// The thread that tells others of locks, one at a time: it waits for nobody's lease, as who gives this cell's back is the next.
static IN_ORDER: AtomicUsize = AtomicUsize::new(0);

/// The current thread begins to tell others of locks, or has done so.
pub fn in_order(begins: bool) {
    let me = if begins { core::ptr::from_ref(atoll_task::current()).addr() } else { 0 };
    IN_ORDER.store(me, Ordering::SeqCst);
}

fn is_in_order() -> bool {
    IN_ORDER.load(Ordering::SeqCst) == core::ptr::from_ref(atoll_task::current()).addr()
}

/// Opens a file, of which somebody may have a lease (EBUSY): he is asked to give it back.
fn patiently<T>(open: impl Fn() -> Result<T>) -> Result<T> {
    let until = platform().now() + LEASE_BREAKS;
    loop {
        match open() {
            Err(Errno::EBUSY) if !is_in_order() && platform().now() < until => {
                atoll_task::sleep_until(platform().now() + LEASE_LOOKS);
            }
            other => return other,
        }
    }
}

/// [`Op::Lease`] of this handle.
fn lease(number: u64, what: u64) -> Result<u64> {
    let mut r = Request::new(Op::Lease);
    (r.arg[0], r.arg[1]) = (number, what);
    call(r)
}

fn lock_request(lock: &OuterLock) -> Request {
    let mut r = Request::new(Op::Lock);
    let kind = lock.write.map_or(0, |write| if write { 2 } else { 1 });
    let len = if lock.end >= i64::MAX as u64 { 0 } else { lock.end - lock.start };
    r.arg = [0, kind | if lock.whole { 4 } else { 0 }, lock.start, len];
    r
}

/// Some of what others did is not known: all may have changed.
fn events_lost() {
    let all: Vec<_> = WATCHED.lock().values().flatten().filter_map(Weak::upgrade).collect();
    for node in all {
        node.changed_outside(linux::IN_ATTRIB, b"");
        node.fs.locked.store(platform().now(), Ordering::SeqCst);
        let files: Vec<_> = node.fs.files.lock().all.values().filter_map(Weak::upgrade).collect();
        files.iter().for_each(|file| file.state.lock().doubted = true);
    }
    inotify::overflowed();
}

/// Tells those who watch what others did, of which what was believed is doubted before.
fn tell_events(mut bytes: &[u8]) {
    let mut made: Option<(Identity, Vec<u8>)> = None;
    while let Some((event, name, rest)) = HostEvent::read(bytes) {
        bytes = rest;
        let (identity, mask) = ((event.dev, event.ino), event.mask);
        if mask & linux::IN_Q_OVERFLOW != 0 {
            events_lost();
            continue;
        }
        if !inotify::is_watched(identity) {
            let _one = WATCHING.lock();
            if !inotify::is_watched(identity) {
                unwatch(identity);
            }
            continue;
        }
        let nodes: Vec<_> =
            WATCHED.lock().get(&identity).into_iter().flatten().filter_map(Weak::upgrade).collect();
        nodes.iter().for_each(|node| node.changed_outside(mask, name));
        inotify::outside(identity, mask, event.cookie, name);
        // What was made, removed and made again before it was told comes as made and removed.
        if mask & linux::IN_DELETE != 0
            && made.as_ref().is_some_and(|(dir, made)| *dir == identity && made == name)
            && let Some(again) = nodes.first().and_then(|dir| dir.lookup(name).ok())
        {
            let directory = if again.kind() == FileType::Directory { linux::IN_ISDIR } else { 0 };
            inotify::outside(identity, linux::IN_CREATE | directory, 0, name);
        }
        if mask & linux::IN_CREATE != 0 {
            made = Some((identity, name.to_vec()));
        }
    }
}

/// Host sockets that were bound to names, by device and inode, until who had them made has taken them.
static MADE: Mutex<Vec<(Identity, Handle)>> = Mutex::new(Vec::new());

/// The host socket that was bound to this name when that was made just now, if there is one: the server's handle of it, and its descriptor.
pub fn take_socket(inode: &InodeRef) -> Option<(u64, i32)> {
    let node = HostNode::of(inode).ok()?;
    let key = node.identity().ok()?;
    let handle = {
        let mut made = MADE.lock();
        let at = made.iter().position(|(made, _)| *made == key)?;
        made.swap_remove(at).1
    };
    if handle.fd.is_none() {
        release(handle);
    }
    Some((handle.number, handle.fd?))
}

/// A host socket of this type that is connected to the one with this name: its descriptor. ECONNREFUSED: it is nobody's outside this
/// cell who listens.
pub fn connect_socket(inode: &InodeRef, kind: u32, cred: &Cred) -> Result<i32> {
    let (mut r, path) = to_socket(Op::ConnectName, inode, cred)?;
    r.arg[1] = u64::from(kind);
    r.a = extent(&path);
    descriptor_of(r, false).map(|(_, fd)| fd)
}

/// Is there somebody outside this cell with a socket of this name, for datagrams? ECONNREFUSED, EPROTOTYPE.
pub fn find_socket(inode: &InodeRef, cred: &Cred) -> Result<()> {
    let (mut r, path) = to_socket(Op::ConnectName, inode, cred)?;
    r.arg[1] = u64::from(SOCK_DGRAM);
    r.a = extent(&path);
    call(r).map(drop)
}

/// Sends a datagram to the socket with this name, of somebody outside this cell.
pub fn send_to_socket(inode: &InodeRef, datagram: &[u8], cred: &Cred) -> Result<usize> {
    let (mut r, path) = to_socket(Op::SendName, inode, cred)?;
    let datagram = buffer(datagram);
    r.a = extent(&path);
    r.b = extent(&datagram);
    call(r).map(|n| n as usize)
}

/// A request about the socket with this name, and its path.
fn to_socket(op: Op, inode: &InodeRef, cred: &Cred) -> Result<(Request, Vec<u8>)> {
    let node = HostNode::of(inode).map_err(|_| Errno::ECONNREFUSED)?;
    Ok((node.fs.request(op, cred), buffer(&node.path()?)))
}

/// Is what the host has cached of it nearly as good as what is cached here? A read of that costs little more.
fn is_cheap(h: Handle) -> bool {
    h.fd.is_some() && platform().host().is_some() && !gate::stands_before(Resource::DeviceRead)
}

/// Does this error of the host mean that something of what was written is lost, for all who wrote it?
fn is_loss(e: Errno) -> bool {
    matches!(e, Errno::ENOSPC | Errno::EDQUOT | Errno::EIO | Errno::EFBIG)
}

/// Of which contents the host says this.
fn contents(a: &HostAttr) -> Contents {
    (a.size, a.mtime, a.mtime_nsec)
}

/// Does this say that what was found by a name is not there any more?
fn is_removed(e: Errno) -> bool {
    matches!(e, Errno::ENOENT | Errno::ESTALE)
}

/// What the host says of an open file: in place, if its descriptor is here.
fn stat_handle(h: Handle) -> Result<HostAttr> {
    if let (Some(fd), Some(host)) = (h.fd, platform().host()) {
        return host.stat(fd);
    }
    let mut out = buffer(HostAttr::default().as_bytes());
    let mut r = Request::new(Op::StatHandle);
    r.arg[0] = h.number;
    r.b = extent_mut(&mut out);
    call(r)?;
    HostAttr::read_from_bytes(&out).map_err(|_| Errno::EIO)
}

/// Zeroes bytes of the cell's memory.
fn zero(mut at: u64, len: u64) -> Result<()> {
    let end = at + len;
    while at < end {
        let zeroes = [0u8; 256];
        let step = zeroes.len().min((end - at) as usize);
        Source::kernel(&zeroes[..step]).take_memory(at, step)?;
        at += step as u64;
    }
    Ok(())
}

/// Are cached pages mapped shared? Where there are descriptors of host files, those are.
fn maps_cached() -> bool {
    !is_host()
}

/// Runs as they can be sent: to another machine, not at any length.
fn in_pieces(h: Handle, runs: &[DirtyRun]) -> Vec<DirtyRun> {
    let most = if h.fd.is_some() { u64::MAX } else { BUFFERS_MAX / 2 };
    let piece = |r: &DirtyRun, from: u64| {
        let len = (r.len - from).min(most);
        DirtyRun { at: r.at + from, memory: r.memory + from, len }
    };
    runs.iter().flat_map(|r| (0..r.len).step_by(most as usize).map(move |from| piece(r, from))).collect()
}

/// Is what is written to go on to the device, and what of it? As a request has it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ToDevice {
    Not = 0,
    All = 1,
    Data = 2,
}

/// Writes runs of the cell's memory to a host file, several at a time. `done` is told of each piece that is there, or of which a part is. One run can also go on to
/// the device, in the same message: where it is noted that the host has it, and told what the file is like then.
fn write_out(
    h: Handle,
    runs: &[DirtyRun],
    (sync, note, tells): (ToDevice, Extent, Extent),
    mut done: impl FnMut(DirtyRun),
) -> Result<Option<Result<()>>> {
    let runs = in_pieces(h, runs);
    let mut calls = Vec::with_capacity(runs.len());
    for run in &runs {
        let mut r = Request::new(Op::Write);
        r.arg[0] = h.number;
        r.arg[1] = run.at;
        r.arg[3] = sync as u64;
        r.a = Extent { offset: run.memory, len: run.len };
        (r.b, r.c) = (note, tells);
        calls.push(Call::send(r)?);
    }
    let mut outcome = Ok(None);
    for (c, run) in calls.iter().zip(&runs) {
        match c.wait() {
            Ok(n) if n == run.len => {
                done(*run);
                if sync != ToDevice::Not {
                    let e = c.extra() as u32;
                    outcome = Ok(Some(if e == 0 { Ok(()) } else { Err(Errno(e)) }));
                }
            }
            Ok(n) => {
                done(DirtyRun { len: n.min(run.len), ..*run });
                outcome = Err(Errno::ENOSPC);
            }
            Err(e) => outcome = Err(e),
        }
    }
    outcome
}

/// Writes runs, one after another, from offset `base` on to the end of the
/// host's file, wherever that is. As few requests as can be: each arrives whole. `done`: as above.
fn append_out(h: Handle, runs: &mut [DirtyRun], base: u64, mut done: impl FnMut(DirtyRun)) -> Result<()> {
    if let Some(first) = runs.first_mut()
        && first.at < base
    {
        // The start of the page is in the file already.
        let skip = (base - first.at).min(first.len);
        *first = DirtyRun { at: first.at + skip, memory: first.memory + skip, len: first.len - skip };
    }
    for pair in in_pieces(h, runs).chunks(2) {
        let extent = |r: &DirtyRun| Extent { offset: r.memory, len: r.len };
        let mut r = Request::new(Op::Write);
        r.arg[0] = h.number;
        r.arg[2] = 1;
        r.a = extent(&pair[0]);
        r.b = pair.get(1).map_or(Extent::default(), extent);
        let len = r.a.len + r.b.len;
        let got = call(r)?.min(len);
        let mut left = got;
        for run in pair {
            let there = run.len.min(left);
            left -= there;
            done(DirtyRun { len: there, ..*run });
        }
        if got != len {
            return Err(Errno::ENOSPC);
        }
    }
    Ok(())
}

fn release(h: Handle) {
    close_here(h);
    release_number(h.number);
}

/// Closes the cell's own copy of a handle's descriptor.
fn close_here(h: Handle) {
    if let (Some(fd), Some(host)) = (h.fd, platform().host()) {
        host.close(fd);
    }
}

/// Lets several go, in one message. Nobody waits for it.
fn release_numbers(mut numbers: Vec<u64>) {
    let Some(last) = numbers.pop() else { return };
    let mut r = release_of(last);
    r.a = extent(numbers.as_bytes());
    // The server reads them until it has answered.
    let until_answered = move |_: &Call| {
        let _kept = &numbers;
    };
    let _ = Call::send_then(r, Some(Box::new(until_answered)));
}

fn release_number(number: u64) {
    // Nobody waits for it.
    let _ = Call::send(release_of(number));
}

fn release_of(number: u64) -> Request {
    let mut r = Request::new(Op::Release);
    r.arg[0] = number;
    r
}

impl File for HostFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn seekable(&self) -> bool {
        true
    }

    fn attr(&self) -> Result<Attr> {
        let mut s = self.state.lock();
        self.see(&mut s);
        let mut attr = attr_of(&s.attr);
        drop(s);
        self.overlay(&mut attr);
        Ok(attr)
    }

    fn read(&self, sink: &mut Sink, at: Option<u64>, _nonblock: bool) -> Result<usize> {
        self.read_in_turn(sink, at.unwrap_or(0), true)
    }

    fn write(&self, source: &mut Source, at: At, _nonblock: bool) -> Result<(usize, u64)> {
        gate::pass(Resource::DeviceWrite);
        let mut s = self.lock_settled();
        let append = !matches!(at, At::Offset(_));
        while append && !self.begin_append(&mut s)? {
            drop(s);
            s = self.lock_flushed()?;
        }
        let mut at = match at {
            At::Offset(o) => o,
            _ => s.size,
        };
        if at.checked_add(source.left() as u64).is_none_or(|end| end > i64::MAX as u64) {
            return Err(Errno::EFBIG);
        }
        let (mut done, mut refused, mut behind) = (0, false, false);
        while source.left() > 0 {
            let left = source.left();
            let short = refused || memory_is_short() && !self.make_room(&mut s);
            let shown = s.shown && self.is_shown(&mut s);
            let through = s.through || s.direct || shown || short || !s.handle.is_some_and(|h| h.read);
            let dirty = s.chunks.dirty_pages();
            let step = if through {
                if s.chunks.dirty_pages() > 0 {
                    drop(s);
                    s = match self.lock_flushed() {
                        Err(_) if done > 0 => {
                            s = self.lock_settled();
                            // What stays dirty has a new wait, and is with the flusher then: it may have been there in vain before.
                            s.dirty_since = 0;
                            break;
                        }
                        settled => settled?,
                    };
                    continue;
                }
                self.write_through(&mut s, source, at, append)
            } else {
                if !append {
                    s.appended = None;
                }
                self.write_cached(&mut s, source, at)
            };
            let lacks = left - source.left() > step.unwrap_or(0);
            if lacks {
                // Bytes were taken that are not in the file. If the program's next page is missing, too, nobody is to go on behind them.
                source.limit(0);
            }
            match step {
                Ok(0) => break,
                Ok(n) => {
                    done += n;
                    at += n as u64;
                    s.size = s.size.max(at);
                    refused = false;
                    behind |= !through;
                    atoll_task::changed_what_is_stored(match through {
                        true => n as u64,
                        false => s.chunks.dirty_pages().saturating_sub(dirty) * PAGE,
                    });
                    if lacks {
                        // The disk is full.
                        break;
                    }
                    atoll_sync::breathe();
                }
                // What is clean can be given back, and what isn't cached needs no memory.
                Err(Errno::ENOMEM) if !through => refused = true,
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
            }
        }
        if behind {
            self.let_written_go(&mut s, at - done as u64, at);
        }
        // What was written behind may have gone out since, to write past it.
        if behind && s.chunks.dirty_pages() > 0 {
            s.written = Some(time_of_write());
            let dirty = s.chunks.dirty_pages();
            let many = s.appended.is_some_and(|base| s.size - base >= APPENDED_MAX) || dirty >= DIRTY_MAX;
            let first = s.dirty_since == 0;
            if first {
                s.dirty_since = platform().now();
            }
            drop(s);
            if first || dirty == DIRTY_SOON {
                self.fs.note_dirty(self, dirty >= DIRTY_SOON);
            }
            if many {
                // It is written: what becomes of it is for who syncs or closes the file.
                self.flush_for_later();
            }
        }
        Ok((done, at))
    }

    fn mappable(self: Arc<Self>) -> Result<Arc<dyn Mappable>> {
        let mut mapping = self.mapping.lock();
        if let Some(there) = mapping.upgrade() {
            return Ok(there);
        }
        let told = AtomicU64::new(self.errors.sample());
        let new = Arc::new(Mapped { file: self.clone(), told });
        *mapping = Arc::downgrade(&new);
        Ok(new)
    }

    fn sync(&self, data_only: bool) -> Result<()> {
        let Flushed { state, lost } =
            self.flush_and(if data_only { ToDevice::Data } else { ToDevice::All })?;
        let outcome = lost.map_or(Ok(()), Err);
        if state.is_none() {
            return outcome;
        }
        drop(state);
        let mut r = Request::new(Op::Sync);
        r.arg[1] = u64::from(data_only);
        // The host tells one of all who have it open here: the others, too, have lost what they wrote. Where it could not be asked, or
        // can't do that, nothing is lost.
        let note = |e: &Errno| {
            if is_loss(*e) {
                self.errors.note(*e);
            }
        };
        let synced = self.by_handle(r).and_then(|said| said.inspect_err(note));
        outcome.and(synced.map(drop))
    }

    fn errors(&self) -> Option<&Errors> {
        Some(&self.errors)
    }

    fn write_hint(&self) -> Option<&AtomicU32> {
        Some(&self.write_hint)
    }

    fn truncate(&self, len: u64) -> Result<()> {
        if self.fs.read_only {
            return Err(Errno::EROFS);
        }
        let mut s = self.lock_flushed()?;
        let h = self.obtain(&mut s, true)?;
        let mut r = Request::new(Op::Truncate);
        r.arg[0] = h.number;
        r.arg[1] = len;
        call(r)?;
        s.chunks.truncate(len, self.shared.load(Ordering::SeqCst) > 0);
        s.size = len;
        if let Ok(a) = stat_handle(h) {
            s.attr = a;
        }
        drop(s);
        if let Some(node) = self.node.lock().upgrade() {
            node.forget_attr();
        }
        Ok(())
    }

    fn outer_lock(&self, lock: &OuterLock) -> Result<()> {
        if self.fs.read_only {
            return Ok(());
        }
        if self.state.lock().is_leased() {
            return Ok(());
        }
        if lock.write.is_none() {
            // Whatever becomes of that, the lock is given back.
            self.show_others();
        } else if self.takes_lease() {
            self.was_locked();
            return Ok(());
        }
        let known = self.state.lock().locks;
        let is_done = match known {
            Some(_) => false,
            None if lock.write.is_none() => return Ok(()),
            None if self.locks_handle(lock)? => true,
            None => match self.lock_opened(lock_request(lock)) {
                // Who waits waits for this file, whatever becomes of its name meanwhile.
                Err(Errno::EAGAIN) => match self.open_for_locks() {
                    Err(Errno::ENOENT) => return Ok(()),
                    opened => opened.map(|_| false)?,
                },
                locked => locked?,
            },
        };
        if !is_done {
            // Without one, nobody else finds the file.
            let Some(number) = self.state.lock().locks else { return Ok(()) };
            Self::tell_lock(number, lock)?;
        }
        if lock.write.is_some() {
            self.was_locked();
        }
        Ok(())
    }

    fn before_unlock(&self) {
        if !self.fs.read_only && !self.state.lock().is_leased() {
            self.show_others();
        }
    }

    fn share(&self, locks: &[OuterLock]) {
        let number = {
            let mut s = self.state.lock();
            let Some(number) = s.lease.by.filter(|_| s.is_leased()) else { return };
            (s.lease.by, s.lease.not_before) = (None, platform().now() + LEASE_AGAIN);
            number
        };
        // First of all: the lease may be taken away.
        if !locks.is_empty() {
            let told = lease(number, 2).and_then(|same| {
                let mut s = self.state.lock();
                (s.locks, s.lease.shares) = (Some(same), true);
                drop(s);
                locks.iter().try_for_each(|lock| Self::tell_lock(same, lock))
            });
            if let Err(e) = told {
                platform().log(&alloc::format!("locks of a file are not known outside the cell: {e}"));
            }
        }
        self.show_others();
        // If it is closed by now, there is no lease either.
        let _ = lease(number, 0);
    }

    fn outer_unlock_all(&self) {
        if self.state.lock().is_leased() {
            return;
        }
        self.show_others();
        self.untell();
    }

    fn seek_data(&self, from: u64, hole: bool, size: u64) -> Result<u64> {
        if from >= size {
            return Err(Errno::ENXIO);
        }
        HostFile::flush(self)?;
        let mut r = Request::new(Op::SeekData);
        r.arg = [0, from, u64::from(hole), 0];
        self.by_handle(r)?
    }

    fn flush(&self) -> Result<()> {
        HostFile::flush(self)
    }

    fn allocate(&self, mode: u32, offset: u64, len: u64) -> Result<()> {
        let mut s = self.lock_flushed()?;
        let h = self.obtain(&mut s, true)?;
        let mut r = Request::new(Op::Allocate);
        r.arg = [h.number, u64::from(mode), offset, len];
        call(r)?;
        // It may have taken much of the disk.
        self.fs.space.lock().1 = 0;
        if let Ok(a) = stat_handle(h) {
            s.attr = a;
            s.size = a.size;
        }
        if mode & !linux::FALLOC_FL_KEEP_SIZE != 0 {
            self.forget_cached(&mut s);
        }
        Ok(())
    }

    fn copy_from(&self, at: u64, from: &dyn File, from_at: u64, len: u64) -> Result<Option<u64>> {
        let Some(from) = from.as_any().downcast_ref::<HostFile>() else { return Ok(None) };
        let long = from.state.lock().size.saturating_sub(from_at).min(len) >= COPY_LEAST;
        if !long {
            return Ok(None);
        }
        let mut done = 0;
        while done < len {
            let left = (len - done).min(COPY_PIECE);
            gate::pass(Resource::DeviceRead);
            gate::pass(Resource::DeviceWrite);
            match self.copy_piece(at + done, from, from_at + done, left) {
                Ok(Some(n)) => {
                    done += n;
                    if n < left {
                        break;
                    }
                }
                Err(e) if done == 0 => return Err(e),
                Ok(None) if done == 0 => return Ok(None),
                Ok(None) | Err(_) => break,
            }
            atoll_sync::breathe();
        }
        Ok(Some(done))
    }

    fn release(&self, flags: u32) -> Result<()> {
        let write = flags & linux::O_ACCMODE != linux::O_RDONLY;
        let mut outcome = Ok(());
        if write {
            outcome = self.flush_and(ToDevice::Not).and_then(|flushed| flushed.lost.map_or(Ok(()), Err));
            if let Err(e) = outcome {
                platform().log(&alloc::format!("a file lost what was written to it when it was closed: {e}"));
            }
        }
        let mut s = self.state.lock();
        s.openings -= 1;
        s.writers -= u32::from(write);
        if s.chunks.dirty_pages() == 0 {
            s.dirty_since = 0;
        }
        let (unused, held) = (s.openings == 0, s.handle.is_some());
        drop(s);
        // Who has the contents locked may ask for the name: not with that locked.
        let node = self.node.lock().upgrade().filter(|_| write);
        if let Some(node) = node {
            node.forget_attr();
            node.learn_in_place();
        }
        if unused && held {
            let runs = self.state.lock().attr.mode & 0o111 != 0;
            if !runs || !self.may_be_run() {
                self.let_go();
            }
        }
        outcome
    }
}

impl HostFile {
    /// Has the host copy so many bytes of another file to this one. Value: how many; none if it can't.
    fn copy_piece(&self, at: u64, from: &HostFile, from_at: u64, len: u64) -> Result<Option<u64>> {
        let source = from.lock_flushed().and_then(|mut s| from.obtain(&mut s, false));
        // What others have removed can be in the cell only.
        let Ok(source) = source else { return Ok(None) };
        let mut s = self.lock_flushed()?;
        if !source.read || self.shared.load(Ordering::SeqCst) != 0 {
            return Ok(None);
        }
        let h = self.obtain(&mut s, true)?;
        let mut r = Request::new(Op::CopyRange);
        r.arg = [source.number, from_at, h.number, at];
        r.len = len;
        let n = match call(r) {
            Ok(n) => n.min(len),
            // Between these two, or with one of these, it can't; EBADF: somebody has exchanged the handle meanwhile.
            Err(Errno::EXDEV | Errno::EOPNOTSUPP | Errno::EINVAL | Errno::ENOSYS | Errno::EBADF) => {
                return Ok(None);
            }
            Err(e) => return Err(e),
        };
        // What is cached of it there, part of a chunk or all of it, is old.
        s.chunks.drop_clean(at / CHUNK * CHUNK, (at + n).next_multiple_of(CHUNK));
        match stat_handle(h) {
            Ok(a) => (s.attr, s.size) = (a, a.size),
            Err(_) => s.size = s.size.max(at + n),
        }
        drop(s);
        // It may have taken much of the disk.
        self.fs.space.lock().1 = 0;
        books::moved(Resource::DeviceRead, n);
        books::moved(Resource::DeviceWrite, n);
        atoll_task::read_from_storage(n);
        atoll_task::changed_what_is_stored(n);
        if let Some(node) = self.node.lock().upgrade() {
            node.forget_attr();
        }
        Ok(Some(n))
    }

    /// Has a request done by its handle, while the contents are not locked: again, if it was exchanged for another meanwhile. Value: what
    /// the host said. An error: it could not be asked.
    fn by_handle(&self, mut r: Request) -> Result<Result<u64>> {
        loop {
            let number = self.obtain(&mut self.lock_settled(), false)?.number;
            r.arg[0] = number;
            let said = call(r);
            // An error of writing behind is told once: asked again, the host would say that all is well.
            let stands = said.is_err_and(|e| e != Errno::EBADF);
            if stands || self.state.lock().handle.is_none_or(|h| h.number == number) {
                return Ok(said);
            }
        }
    }

    /// Do programs see what the host has of it, in a mapping?
    fn is_shown(&self, s: &mut State) -> bool {
        s.shown = self.mapping.lock().strong_count() > 0;
        s.shown
    }

    /// Has nobody opened or mapped it?
    fn is_unused(&self, s: &State) -> bool {
        s.openings == 0 && self.shared.load(Ordering::SeqCst) == 0 && self.mapping.lock().strong_count() == 0
    }

    /// Is it in use without a descriptor, so that its cached pages may be all that there is?
    fn is_only_here(&self, s: &State) -> bool {
        s.handle.is_none() && !self.fs.read_only && !self.is_unused(s)
    }

    /// Is it not large, and all of it in memory?
    fn is_all_here(&self, s: &State) -> bool {
        s.size <= CHUNK && (0..s.size).step_by(PAGE as usize).all(|at| s.chunks.is_valid(at))
    }

    /// Has the host all that was written to it, by programs that had it mapped, too?
    fn is_written(&self, s: &State) -> bool {
        s.chunks.dirty_pages() == 0 && !s.is_flushing() && !self.may_be_written()
    }

    /// It is an executable, and can be run outside of the cell from now on, if nobody has it open to write to it. Value: was there
    /// a descriptor for that, which has gone?
    fn may_be_run(&self) -> bool {
        let mut s = self.state.lock();
        let may_go = self.is_written(&s) && self.is_unused(&s);
        if may_go {
            self.see(&mut s);
        }
        let Some(h) = s.handle.take_if(|h| h.write && may_go) else { return false };
        drop(s);
        close_here(h);
        // Waited for: who runs it may be waiting for this.
        let _ = call(release_of(h.number));
        true
    }

    /// It was closed or unmapped, perhaps for the last time. Without a name it goes then, else its descriptor stays for a while.
    /// Nothing is waited for: who unmaps it has locks.
    fn let_go(&self) {
        let Some(me) = self.me.upgrade() else { return };
        let is_gone = || self.node.lock().upgrade().is_none_or(|n| n.place.lock().gone);
        if let Some(mut s) = self.state.try_lock() {
            if !self.is_unused(&s) || s.handle.is_none() {
                return;
            }
            if is_gone() {
                let is_lost = !s.is_flushing() && !self.has_name();
                if is_lost {
                    s.chunks.clear();
                }
                if is_lost || self.is_written(&s) {
                    return self.drop_handle(&mut s);
                }
            }
        }
        self.fs.retire(me);
    }

    /// Is all in memory that the file has of the 64 KiB around `offset`?
    fn has_chunk(&self, offset: u64) -> bool {
        let s = self.state.lock();
        let start = offset / CHUNK * CHUNK;
        (start..s.size.min(start + CHUNK)).step_by(PAGE as usize).all(|at| s.chunks.is_valid(at))
    }

    /// Reads from `at` on. `waits`: what is not here has its turn first, which waits where the caller holds nothing.
    fn read_in_turn(&self, sink: &mut Sink, mut at: u64, mut waits: bool) -> Result<usize> {
        let mut s = self.state.lock();
        self.check(&mut s);
        let (mut done, mut made_room) = (0, false);
        while sink.left() > 0 {
            // Meanwhile others may have the file.
            if waits
                && gate::full(Resource::DeviceRead)
                && (s.direct || !s.chunks.is_valid(at))
                && at < s.size
            {
                drop(s);
                waits = gate::pass(Resource::DeviceRead);
                s = self.state.lock();
                continue;
            }
            // As long as something is on its way, too, the host does not have all.
            let is_there = s.chunks.dirty_pages() == 0 && !s.is_flushing();
            let may_be_more = at < s.size || s.handle.is_some();
            let is_large = sink.left() >= LARGE_READ && !s.chunks.is_valid(at);
            if s.direct || is_large && is_there && may_be_more {
                let n = self.read_past(&mut s, sink, at, done)?;
                done += n;
                at += n as u64;
                if n == 0 {
                    break;
                }
                atoll_sync::breathe();
                continue;
            }
            if at >= s.size {
                break;
            }
            let size = s.size;
            match s.chunks.read_valid(sink, at, size) {
                Ok(0) => {}
                Ok(n) => {
                    done += n;
                    at += n as u64;
                    continue;
                }
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
            }
            let ahead = (sink.left() as u64 + at % PAGE).clamp(4 * PAGE, CHUNK);
            match self.load(&mut s, at, ahead) {
                Ok(()) => {}
                Err(Errno::ENOMEM) if !made_room && self.make_room(&mut s) => made_room = true,
                Err(Errno::ENOMEM) => {
                    let n = if is_there {
                        self.read_past(&mut s, sink, at, done)?
                    } else {
                        self.read_gap(&mut s, sink, at, done)?
                    };
                    done += n;
                    at += n as u64;
                    if n == 0 {
                        break;
                    }
                }
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Reads past the cache what lies between `at` and the next page that is cached: that may be one that the host does not have yet.
    fn read_gap(&self, s: &mut State, sink: &mut Sink, at: u64, done: usize) -> Result<usize> {
        let most = (s.size - at).min(sink.left() as u64).min(256 << 10);
        let next = (at / PAGE * PAGE..at + most).step_by(PAGE as usize).find(|page| s.chunks.is_valid(*page));
        let len = next.map_or(most, |page| page.saturating_sub(at));
        let h = self.obtain(s, false)?;
        let scratch = Scratch::up_to(len)?;
        let len = len.min(scratch.len());
        let n = self.fill(h, at, scratch.offset(), len, s.size)? as u64;
        // What lies behind the host's end of the file, and before what it does not have yet, is a hole.
        zero(scratch.offset() + n, len - n)?;
        let put = sink.put_memory(scratch.offset(), len as usize);
        if done > 0 { Ok(put.unwrap_or(0)) } else { put }
    }

    /// Reads past the cache, in place or by message.
    fn read_past(&self, s: &mut State, sink: &mut Sink, at: u64, done: usize) -> Result<usize> {
        let h = match self.obtain(s, false) {
            Err(_) if done > 0 => return Ok(0),
            h => h?,
        };
        if let (Some(fd), Some(host)) = (h.fd, platform().host()) {
            let mut bufs = [HostBuf::NONE; 8];
            let n = sink.host_bufs(&mut bufs)?;
            if n > 0 {
                match books::within(Resource::DeviceRead, || host.read_at(fd, &bufs[..n], at)) {
                    Ok(n) => {
                        books::moved(Resource::DeviceRead, n as u64);
                        atoll_task::read_from_storage(n as u64);
                        sink.advance(n);
                        return Ok(n);
                    }
                    Err(Errno::EAGAIN | Errno::EOPNOTSUPP | Errno::EFAULT) => {}
                    Err(e) if done == 0 => return Err(e),
                    Err(_) => return Ok(0),
                }
            }
        }
        let scratch = Scratch::up_to(sink.left().min(256 << 10) as u64)?;
        let len = sink.left().min(scratch.len() as usize);
        let n = self.fill(h, at, scratch.offset(), len as u64, s.size)?;
        let put = sink.put_memory(scratch.offset(), n);
        if done > 0 { Ok(put.unwrap_or(0)) } else { put }
    }
}

impl Drop for HostFile {
    fn drop(&mut self) {
        let s = self.state.get_mut();
        if let Some(h) = s.handle.take() {
            release(h);
        }
        if let Some(number) = s.locks.take() {
            release_number(number);
        }
    }
}

/// Its cached pages, where the host's can't be mapped: the cell's programs share them with each other and with those
/// who read and write, and the host gets what they write when they are flushed.
impl Object for HostFile {
    fn chunk(&self, offset: u64) -> Result<u64> {
        self.fill_chunk(&mut self.lock_settled(), offset / CHUNK * CHUNK)
    }

    fn size(&self) -> u64 {
        self.state.lock().size
    }

    fn is_here(&self, offset: u64) -> bool {
        self.has_chunk(offset)
    }

    fn has_memory(&self, offset: u64) -> bool {
        self.state.lock().chunks.has_memory(offset)
    }

    fn place(&self, offset: u64) -> Option<u64> {
        self.state.lock().chunks.place(offset)
    }

    fn mappings(&self) -> u32 {
        self.shared.load(Ordering::Relaxed).max(0) as u32
    }

    fn is_cache(&self) -> bool {
        true
    }

    fn mapped(&self, by: i32) {
        let before = self.shared.fetch_add(by, Ordering::SeqCst);
        if before + by == 0 && self.may_be_written() {
            self.fs.note_dirty(self, false);
        }
    }
}

/// A host file as all who map it have it: it goes with the last mapping, and with it the descriptor that mappings may be made from again.
struct Mapped {
    file: Arc<HostFile>,
    /// Which errors of writing behind `msync(2)` has told of.
    told: AtomicU64,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.file.let_go();
    }
}

impl Mappable for Mapped {
    fn host_file(&self, write: bool) -> Result<Option<i32>> {
        self.file.map(write)
    }

    fn is_here(&self, offset: u64) -> bool {
        self.file.has_chunk(offset)
    }

    fn is_divided(&self) -> bool {
        gate::stands_before(Resource::DeviceRead)
    }

    fn object(&self) -> Option<Arc<dyn Object>> {
        if maps_cached() { Some(self.file.clone()) } else { None }
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<usize> {
        self.file.read_at(offset, to)
    }

    fn read_straight(&self, offset: u64, to: u64, len: u64) -> Result<Option<usize>> {
        self.file.read_straight(offset, to, len)
    }

    fn punch_hole(&self, offset: u64, len: u64) -> Result<()> {
        File::allocate(&*self.file, linux::FALLOC_FL_PUNCH_HOLE | linux::FALLOC_FL_KEEP_SIZE, offset, len)
    }

    fn describe(&self) -> (Vec<u8>, u64, u64) {
        (Vec::new(), self.file.key.0, self.file.key.1)
    }

    fn flush(&self) -> Result<()> {
        let done = File::sync(&*self.file, false);
        self.file.errors.check_and_advance(&self.told).and(done)
    }

    fn rewriting(&self) -> Option<Arc<dyn Rewriting>> {
        self.file.rewriting()
    }
}

/// For [`Mapped`].
impl HostFile {
    fn map(&self, write: bool) -> Result<Option<i32>> {
        let mut s = self.lock_flushed()?;
        let h = self.obtain(&mut s, write)?;
        s.shown |= !maps_cached();
        if write && maps_cached() {
            s.mapped_by = Debtor::current();
            if !self.written_mapped.swap(true, Ordering::SeqCst) {
                let mut mapped = self.fs.mapped.lock();
                mapped.retain(|f| f.upgrade().is_some_and(|f| f.key != self.key && f.may_be_written()));
                mapped.push(self.me.clone());
            }
        } else if write {
            // From now on the host's page cache is the only one.
            s.direct = true;
            s.chunks.clear();
        }
        Ok(h.fd)
    }

    fn read_at(&self, offset: u64, to: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < to.len() {
            // For a page fault, which has waited before.
            let n = self.read_in_turn(&mut Sink::kernel(&mut to[done..]), offset + done as u64, false)?;
            if n == 0 {
                break;
            }
            done += n;
        }
        Ok(done)
    }

    fn read_straight(&self, offset: u64, to: u64, len: u64) -> Result<Option<usize>> {
        let mut s = self.state.lock();
        self.check(&mut s);
        let mut pages = (offset..offset.saturating_add(len)).step_by(PAGE as usize);
        // While written pages are on their way out, the host may not know the file's end yet.
        if s.chunks.dirty_pages() > 0 || s.is_flushing() || pages.any(|at| s.chunks.is_valid(at)) {
            return Ok(None);
        }
        // A copy in the cache would hardly be asked for again.
        let size = s.size;
        let h = self.obtain(&mut s, false)?;
        let mut done = 0;
        while done < len {
            match self.fill(h, offset + done, to + done, len - done, size)? {
                0 => break,
                n => done += n as u64,
            }
        }
        Ok(Some(done as usize))
    }

    fn rewriting(&self) -> Option<Arc<dyn Rewriting>> {
        let contents = {
            let mut s = self.state.lock();
            self.see(&mut s);
            (contents(&s.attr), s.size, s.written)
        };
        if let Some((of, plan)) = &*self.plan.lock()
            && *of == contents
        {
            return plan.clone();
        }
        let plan = self.fs.planner.get().and_then(|planner| planner(self));
        // Two threads may plan the same file; one plan is kept.
        *self.plan.lock() = Some((contents, plan.clone()));
        plan
    }
}

/// All mounted host file systems, for those who look over them.
static ALL: Mutex<Vec<Weak<HostFs>>> = Mutex::new(Vec::new());

fn all() -> Vec<Arc<HostFs>> {
    ALL.lock().iter().filter_map(Weak::upgrade).collect()
}

/// Paths of these host files, named by device and inode, as far as they are known.
pub fn known_paths(wanted: &[(u64, u64)]) -> Vec<(u64, u64, Vec<u8>)> {
    let mut out = Vec::new();
    for fs in all() {
        let files: Vec<Arc<HostFile>> = fs.files.lock().all.values().filter_map(Weak::upgrade).collect();
        for f in files.iter().filter(|f| wanted.contains(&f.key)) {
            if let Some(path) = f.node.lock().upgrade().and_then(|n| n.path().ok()) {
                let slash: &[u8] = if fs.target.ends_with('/') { b"" } else { b"/" };
                out.push((f.key.0, f.key.1, [fs.target.as_bytes(), slash, &path].concat()));
            }
        }
    }
    out
}

/// Moves cached pages that lie at `from` of the cell's memory or behind it elsewhere, where nobody is about to read or write them. Value:
/// bytes. ENOMEM: there is no place for some.
pub fn vacate(from: u64) -> Result<u64> {
    let mut moved = 0;
    for fs in all() {
        let files: Vec<Arc<HostFile>> = fs.files.lock().all.values().filter_map(Weak::upgrade).collect();
        for f in files {
            if let Some(mut s) = f.state.try_lock()
                && !s.is_flushing()
                && f.shared.load(Ordering::SeqCst) == 0
            {
                let may_go = !f.is_only_here(&s);
                moved += s.chunks.vacate(from, may_go)?;
            }
        }
    }
    Ok(moved)
}

/// Bytes of cached pages that are wanted, by their offsets in the cell's memory.
pub fn cached(is_wanted: &dyn Fn(u64) -> bool) -> u64 {
    let mut pages = 0;
    for fs in all() {
        fs.for_each_file(|f| {
            if let Some(s) = f.state.try_lock() {
                pages += s.chunks.pages_that(is_wanted);
            }
            true
        });
    }
    pages * PAGE
}

/// Writes dirty pages of files back, so that their memory can be given back; was there any?
pub fn write_back() -> bool {
    all().into_iter().fold(false, |any, fs| fs.write_back() | any)
}

/// Gives memory of clean cached pages back that `may_go`, by their offsets in the cell's memory; says whether there was any.
pub fn reclaim(bytes: u64, may_go: &dyn Fn(u64) -> bool) -> bool {
    let mut left = bytes.div_ceil(PAGE).max(512);
    let before = left;
    for fs in all() {
        left -= fs.shrink(left, may_go).min(left);
        if left == 0 {
            break;
        }
    }
    left < before
}
