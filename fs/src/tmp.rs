//! A file system in the cell's memory: /tmp, /dev/shm, memfds, and what an archive or a disk began with.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering, fence};

use atoll_abi::grid::Resource;
use atoll_abi::layout::{BLOCK, PAGE, page_up};
use atoll_abi::{Errno, Result};
use atoll_mem::heap::memory;
use atoll_mem::io::{Sink, Source};
use atoll_mem::vm::{Mappable, Object, Rewriting};
use atoll_sync::{Mutex, SetOnce, Shared, WriteGuard};
use atoll_task::gate;
use hashbrown::HashMap;
use linux_raw_sys::general as linux;

use crate::chunks::{CHUNK, Chunks};
use crate::inotify;
use crate::namespace::NAME_MAX;
use crate::node::{At, Entry, File, FileSystem, Identity, Inode, InodeRef, NewNode, UseCount};
use crate::pipe::{Fifo, Pipe};
use crate::types::{Attr, Cred, DirEntry, FileType, NewMode, SetAttr, StatFs, Time};

/// `f_type` of a tmpfs.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Pages of a file have come into shared mappings that may be written to.
const SHOWN: u32 = 1;
/// Some when they were read: writes to them come without anybody's notice.
const UNNOTICED: u32 = 2;

/// How many files one says that it can have: there is no limit but memory.
const FILES: u64 = 1 << 20;

/// Bytes of extended attributes that one file can have.
const EXTENDED_MAX: usize = 128 << 10;

/// One file system.
pub struct TmpFs {
    dev: u64,
    next: AtomicU64,
    /// Held while names are made, moved or removed.
    tree: Mutex<()>,
    /// Most pages that its files may take together.
    limit: u64,
    /// Pages that they have taken.
    held: AtomicU64,
    /// Those of them that count: of files that came from an archive or a disk, none do.
    own: AtomicU64,
    planner: SetOnce<Planner>,
    /// Files that have memory, by their numbers.
    files: Mutex<BTreeMap<u64, Weak<TmpNode>>>,
    /// How many files and directories there are.
    nodes: AtomicU64,
    me: Weak<TmpFs>,
}

/// All of them.
static ALL: Mutex<Vec<Weak<TmpFs>>> = Mutex::new(Vec::new());

/// Makes the rewriting plan of an executable that came with one: what it came with, the file's bytes.
pub type Planner = fn(&'static [u8], u64) -> Option<Arc<dyn Rewriting>>;

/// A directory entry's place in the order of listing.
type Cookie = u64;

/// A directory on a disk, which is read when it is first looked into.
pub(crate) trait StoredDir: Send + Sync {
    /// Its names and their nodes; each time the same ones.
    fn read(&self, fs: &TmpFs) -> Result<Vec<(Vec<u8>, Arc<TmpNode>)>>;
    /// Bytes that it takes.
    fn size(&self) -> u64;
}

/// What a file was on a disk.
pub(crate) struct Stored {
    /// Its inode number.
    pub id: u64,
    /// Its attributes; size and number of a device, too.
    pub attr: Attr,
    /// What it has.
    pub body: StoredBody,
}

/// By its kind.
pub(crate) enum StoredBody {
    Dir(Box<dyn StoredDir>),
    File(Chunks),
    Symlink(Vec<u8>),
    /// Anything else: what the attributes say.
    Other,
}

/// A directory that has been on a disk.
struct Lazy {
    from: Box<dyn StoredDir>,
    read: AtomicBool,
    /// Held while it is read.
    reading: Mutex<()>,
}

struct Dir {
    entries: HashMap<Vec<u8>, (Cookie, Arc<TmpNode>)>,
    order: BTreeMap<Cookie, Vec<u8>>,
    next: Cookie,
}

struct Content {
    chunks: Chunks,
    size: u64,
    /// Pages of it that its file system has counted.
    counted: u64,
    /// Set by F_ADD_SEALS.
    seals: u32,
    plan: Plan,
}

/// How a file's system-call sites are rewritten, as long as its contents are its first ones.
enum Plan {
    None,
    /// Nobody has asked yet.
    Bytes(&'static [u8]),
    Made(Arc<dyn Rewriting>),
}

impl Content {
    fn new() -> Self {
        Content { chunks: Chunks::new(), size: 0, counted: 0, seals: linux::F_SEAL_SEAL, plan: Plan::None }
    }
}

/// A file's contents, to be changed: what it has taken or given back is counted when that is done.
struct Changing<'a> {
    fs: &'a TmpFs,
    content: WriteGuard<'a, Content>,
}

impl Changing<'_> {
    /// Up to `len` bytes from `at` on that can be written in one chunk, as far as its file system goes.
    fn room(&self, at: u64, len: u64) -> u64 {
        let chunks = &self.content.chunks;
        let (within, wanted) = (at % CHUNK, len.min(CHUNK - at % CHUNK));
        if chunks.has_origin() {
            return wanted;
        }
        let fresh = chunks.pages().saturating_sub(self.content.counted);
        let there = chunks.room_at(at) / PAGE;
        // A chunk grows by doubling.
        let most = there + self.fs.left().saturating_sub(fresh).min(CHUNK / PAGE);
        let can_have = if most == there { there } else { (1 << most.ilog2()).max(there) };
        wanted.min((can_have * PAGE).saturating_sub(within))
    }

    /// ENOSPC if whoever maps it can't have the page at `at`. With it comes its whole chunk.
    fn check_room(&self, at: u64) -> Result<()> {
        if self.room(at, 1) > 0 { Ok(()) } else { Err(Errno::ENOSPC) }
    }
}

impl Deref for Changing<'_> {
    type Target = Content;
    fn deref(&self) -> &Content {
        &self.content
    }
}

impl DerefMut for Changing<'_> {
    fn deref_mut(&mut self) -> &mut Content {
        &mut self.content
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        let now = self.content.chunks.pages();
        let before = core::mem::replace(&mut self.content.counted, now);
        if now != before {
            self.fs.count(&self.content, now.wrapping_sub(before));
        }
    }
}

enum Body {
    Dir(Mutex<Dir>),
    File(Shared<Content>),
    Symlink(Vec<u8>),
    Fifo(Mutex<Weak<Pipe>>),
    /// Sockets and devices; the number of a device.
    Other(u64),
}

struct Meta {
    mode: u32,
    nlink: u32,
    uid: u32,
    gid: u32,
    atime: Time,
    mtime: Time,
    ctime: Time,
    /// Its names, the oldest first; the last one stays when it is removed.
    names: Vec<(Weak<TmpNode>, Vec<u8>)>,
    /// It never had a name, and may be given one.
    linkable: bool,
    /// Extended attributes.
    extended: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Meta {
    /// A file that is written to or gets another owner gives its capabilities to nobody any more (Linux's `cap_inode_killpriv`).
    fn lose_capabilities(&mut self) {
        if !self.extended.is_empty() {
            self.extended.remove(&b"security.capability"[..]);
        }
    }
}

/// Mode and owner once more, to be read without a lock by everybody who opens the file or walks by.
#[derive(Default)]
struct Access {
    /// Odd while they are changed, by who has the [`Meta`].
    sequence: AtomicU32,
    mode: AtomicU32,
    uid: AtomicU32,
    gid: AtomicU32,
}

impl Access {
    fn set(&self, meta: &Meta) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        // Who sees one of the new values sees the odd number when it looks again.
        fence(Ordering::Release);
        self.mode.store(meta.mode, Ordering::Relaxed);
        self.uid.store(meta.uid, Ordering::Relaxed);
        self.gid.store(meta.gid, Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(2), Ordering::Release);
    }

    /// None if they are being changed.
    fn get(&self) -> Option<Attr> {
        let sequence = self.sequence.load(Ordering::Acquire);
        let (mode, uid) = (self.mode.load(Ordering::Relaxed), self.uid.load(Ordering::Relaxed));
        let gid = self.gid.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let same = sequence.is_multiple_of(2) && self.sequence.load(Ordering::Relaxed) == sequence;
        same.then(|| Attr { mode, uid, gid, ..Attr::default() })
    }
}

/// A file or directory.
pub struct TmpNode {
    id: u64,
    kind: FileType,
    fs: Arc<TmpFs>,
    meta: Mutex<Meta>,
    access: Access,
    body: Body,
    lazy: Option<Lazy>,
    mappings: AtomicI32,
    users: UseCount,
    write_hint: AtomicU32,
    /// [`SHOWN`] and [`UNNOTICED`].
    writable: AtomicU32,
    /// It is among its file system's files that have memory.
    is_known: AtomicBool,
    /// What another room of the runtime keeps with it: the socket bound to it.
    attached: Mutex<Option<Weak<dyn Any + Send + Sync>>>,
    me: Weak<TmpNode>,
}

static NEXT_DEV: AtomicU64 = AtomicU64::new(0x20);

impl TmpFs {
    /// A file system of at most `limit` bytes, and its root directory.
    pub fn new(limit: u64, mode: u32) -> (Arc<TmpFs>, Arc<TmpNode>) {
        let fs = Self::bare(limit, 1);
        let root = fs.node(FileType::Directory, mode, &Cred::root(), Body::Dir(Mutex::new(Dir::new())));
        root.meta.lock().nlink = 2;
        (fs, root)
    }

    /// Without a root. New files have inode numbers from `next` on.
    pub(crate) fn bare(limit: u64, next: u64) -> Arc<TmpFs> {
        let dev = NEXT_DEV.fetch_add(1, Ordering::Relaxed);
        let fs = Arc::new_cyclic(|me| TmpFs {
            dev,
            next: AtomicU64::new(next),
            tree: Mutex::new(()),
            limit: limit / PAGE,
            held: AtomicU64::new(0),
            own: AtomicU64::new(0),
            planner: SetOnce::new(),
            files: Mutex::new(BTreeMap::new()),
            nodes: AtomicU64::new(0),
            me: me.clone(),
        });
        ALL.lock().push(fs.me.clone());
        fs
    }

    /// A file has so many pages more; less than 0 by wrapping.
    fn count(&self, content: &Content, more: u64) {
        self.held.fetch_add(more, Ordering::Relaxed);
        if !content.chunks.has_origin() {
            self.own.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// Pages that its files may take yet.
    fn left(&self) -> u64 {
        self.limit.saturating_sub(self.own.load(Ordering::Relaxed))
    }

    /// A file that was on a disk.
    pub(crate) fn stored(&self, of: Stored) -> Arc<TmpNode> {
        let Stored { id, attr, body } = of;
        let kind = attr.kind();
        let (body, lazy) = match body {
            StoredBody::Dir(from) => {
                let lazy = Lazy { from, read: AtomicBool::new(false), reading: Mutex::new(()) };
                (Body::Dir(Mutex::new(Dir::new())), Some(lazy))
            }
            StoredBody::File(chunks) => {
                let content = Content { chunks, size: attr.size, ..Content::new() };
                (Body::File(Shared::new(content)), None)
            }
            StoredBody::Symlink(target) => (Body::Symlink(target), None),
            StoredBody::Other if kind == FileType::Fifo => (Body::Fifo(Mutex::new(Weak::new())), None),
            StoredBody::Other => (Body::Other(attr.rdev), None),
        };
        let meta = Meta {
            mode: attr.mode & 0o7777,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            atime: attr.atime,
            mtime: attr.mtime,
            ctime: attr.ctime,
            names: Vec::new(),
            linkable: false,
            extended: BTreeMap::new(),
        };
        self.node_of(id, kind, meta, body, lazy)
    }

    /// An empty file without a name, as `memfd_create(2)` makes. `name` is for people.
    pub fn anonymous(&self, name: &[u8], cred: &Cred) -> Arc<TmpNode> {
        let node = self.node(FileType::Regular, 0o777, cred, Body::File(Shared::new(Content::new())));
        node.without_name(Weak::new(), name.to_vec());
        node
    }

    /// Says who makes plans of what files came with.
    pub fn set_planner(&self, planner: Planner) {
        // Once, when it is mounted; a second time changes nothing.
        let _ = self.planner.set(planner);
    }

    fn node(&self, kind: FileType, mode: u32, cred: &Cred, body: Body) -> Arc<TmpNode> {
        let now = Time::now();
        let meta = Meta {
            mode: mode & 0o7777,
            nlink: 1,
            uid: cred.uid,
            gid: cred.gid,
            atime: now,
            mtime: now,
            ctime: now,
            names: Vec::new(),
            linkable: false,
            extended: BTreeMap::new(),
        };
        self.node_of(self.next.fetch_add(1, Ordering::Relaxed), kind, meta, body, None)
    }

    fn node_of(&self, id: u64, kind: FileType, meta: Meta, body: Body, lazy: Option<Lazy>) -> Arc<TmpNode> {
        let fs = self.me.upgrade().expect("a file system lives while it is used");
        let access = Access::default();
        access.set(&meta);
        self.nodes.fetch_add(1, Ordering::Relaxed);
        Arc::new_cyclic(|me| TmpNode {
            id,
            kind,
            fs,
            meta: Mutex::new(meta),
            access,
            body,
            lazy,
            mappings: AtomicI32::new(0),
            users: UseCount::default(),
            write_hint: AtomicU32::new(0),
            writable: AtomicU32::new(0),
            is_known: AtomicBool::new(false),
            attached: Mutex::new(None),
            me: me.clone(),
        })
    }
}

impl FileSystem for TmpFs {
    fn name(&self) -> &'static str {
        "tmpfs"
    }

    fn stat(&self) -> Result<StatFs> {
        let free = (memory().total() - memory().used()) / PAGE;
        let free = free.min(self.left());
        Ok(StatFs {
            kind: TMPFS_MAGIC,
            bsize: PAGE,
            blocks: self.limit,
            bfree: free,
            bavail: free,
            files: FILES,
            ffree: FILES.saturating_sub(self.nodes.load(Ordering::Relaxed)),
            namelen: NAME_MAX as u64,
        })
    }
}

impl Dir {
    fn new() -> Self {
        Dir { entries: HashMap::new(), order: BTreeMap::new(), next: 1 }
    }

    fn insert(&mut self, name: &[u8], node: Arc<TmpNode>) {
        let cookie = self.next;
        self.next += 1;
        if let Some((old, _)) = self.entries.insert(name.to_vec(), (cookie, node)) {
            self.order.remove(&old);
        }
        self.order.insert(cookie, name.to_vec());
    }

    /// Makes sure that there is memory for one entry more: the table of a large directory grows by much at a time.
    fn make_room(&mut self) -> Result<()> {
        self.entries.try_reserve(1).map_err(|_| Errno::ENOMEM)
    }

    fn remove(&mut self, name: &[u8]) -> Option<Arc<TmpNode>> {
        let (cookie, node) = self.entries.remove(name)?;
        self.order.remove(&cookie);
        Some(node)
    }
}

/// Seals of what may be run, beside that it may.
const STAYS: u32 =
    linux::F_SEAL_SHRINK | linux::F_SEAL_GROW | linux::F_SEAL_WRITE | linux::F_SEAL_FUTURE_WRITE;

impl TmpNode {
    fn dir(&self) -> Result<&Mutex<Dir>> {
        let Body::Dir(dir) = &self.body else { return Err(Errno::ENOTDIR) };
        if let Some(lazy) = self.lazy.as_ref().filter(|l| !l.read.load(Ordering::Acquire)) {
            let _alone = lazy.reading.lock();
            if !lazy.read.load(Ordering::Acquire) {
                let names = lazy.from.read(&self.fs)?;
                let mut dir = dir.lock();
                for (name, node) in names {
                    node.meta.lock().names.push((self.me.clone(), name.clone()));
                    dir.insert(&name, node);
                }
                lazy.read.store(true, Ordering::Release);
            }
        }
        Ok(dir)
    }

    /// What a regular file has, to be changed.
    fn change(&self) -> Result<Changing<'_>> {
        Ok(Changing { fs: &self.fs, content: self.content()?.write() })
    }

    fn content(&self) -> Result<&Shared<Content>> {
        match &self.body {
            Body::File(c) => Ok(c),
            _ => Err(Errno::EINVAL),
        }
    }

    /// ENOENT for a directory that has been removed: what got a name there would be lost. As long as the tree is locked, it isn't.
    fn check_there(&self) -> Result<()> {
        if self.meta.lock().nlink == 0 { Err(Errno::ENOENT) } else { Ok(()) }
    }

    /// What another room keeps with this inode.
    pub fn attachment(&self) -> &Mutex<Option<Weak<dyn Any + Send + Sync>>> {
        &self.attached
    }

    fn touch(&self) {
        let now = Time::now();
        let mut meta = self.meta.lock();
        meta.mtime = now;
        meta.ctime = now;
        meta.lose_capabilities();
    }

    /// Has no name; `name` is for people.
    fn without_name(&self, dir: Weak<TmpNode>, name: Vec<u8>) {
        let mut meta = self.meta.lock();
        meta.names.push((dir, name));
        meta.nlink = 0;
    }

    /// A name more.
    fn named(&self, dir: &TmpNode, name: &[u8]) {
        let mut meta = self.meta.lock();
        if meta.linkable {
            meta.linkable = false;
            meta.names.clear();
        }
        meta.names.push((dir.me.clone(), name.to_vec()));
        meta.ctime = Time::now();
    }

    /// Another name in place of the one that it has in `dir`.
    fn renamed(&self, dir: &TmpNode, name: &[u8], to: &TmpNode, new: &[u8]) {
        let mut meta = self.meta.lock();
        meta.names.retain(|(d, n)| !(d.ptr_eq(&dir.me) && n == name));
        meta.names.push((to.me.clone(), new.to_vec()));
        meta.ctime = Time::now();
    }

    /// A name less.
    fn unlinked(&self, by: u32, dir: &TmpNode, name: &[u8]) {
        let mut meta = self.meta.lock();
        meta.nlink = meta.nlink.saturating_sub(by);
        meta.ctime = Time::now();
        if meta.nlink > 0 {
            meta.names.retain(|(d, n)| !(d.ptr_eq(&dir.me) && n == name));
        }
    }

    /// Its path from the root of the file system, for people.
    fn path(&self) -> Vec<u8> {
        let mut parts = Vec::new();
        let mut gone = false;
        let mut at = self.me.upgrade();
        while let Some(node) = at {
            let meta = node.meta.lock();
            gone |= meta.nlink == 0;
            let Some((above, name)) = meta.names.first() else { break };
            parts.push(name.clone());
            at = above.upgrade();
        }
        let mut path: Vec<u8> = parts.iter().rev().flat_map(|p| [&b"/"[..], p].concat()).collect();
        if gone {
            path.extend_from_slice(b" (deleted)");
        }
        path
    }

    /// What has a name in this directory.
    pub(crate) fn child(&self, name: &[u8]) -> Result<Option<Arc<TmpNode>>> {
        Ok(self.dir()?.lock().entries.get(name).map(|(_, node)| node.clone()))
    }

    /// The directory that it is in; None for the root.
    pub(crate) fn above(&self) -> Option<Arc<TmpNode>> {
        self.meta.lock().names.first()?.0.upgrade()
    }

    /// Gives a new file its first contents, which stay where they are until they are changed, and what there is
    /// to make its rewriting plan of.
    pub(crate) fn begin_with(&self, bytes: &'static [u8], plan: Option<&'static [u8]>) -> Result<()> {
        let mut c = self.change()?;
        c.chunks = Chunks::of(bytes);
        c.size = bytes.len() as u64;
        c.plan = plan.map_or(Plan::None, Plan::Bytes);
        Ok(())
    }

    fn of(inode: &InodeRef) -> Result<&TmpNode> {
        inode.as_any().downcast_ref().ok_or(Errno::EXDEV)
    }

    /// Seals of a memfd.
    pub fn seals(&self) -> Result<u32> {
        Ok(self.content()?.read().seals)
    }

    /// Adds seals to a memfd. EBUSY: it is to be written to no more, and is mapped so.
    pub fn add_seals(&self, seals: u32) -> Result<()> {
        let mut c = self.change()?;
        if c.seals & linux::F_SEAL_SEAL != 0 {
            return Err(Errno::EPERM);
        }
        // What may be run is to stay as it is (`memfd_add_seals` of Linux).
        let runs = seals & linux::F_SEAL_EXEC != 0 && self.meta.lock().mode & 0o111 != 0;
        let seals = if runs { seals | STAYS } else { seals };
        if seals & linux::F_SEAL_WRITE != 0 && self.mappings.load(Ordering::Relaxed) > 0 {
            return Err(Errno::EBUSY);
        }
        c.seals |= seals;
        Ok(())
    }

    /// Nobody may run a memfd, nor make it run.
    pub fn never_runs(&self) -> Result<()> {
        self.meta.lock().mode &= !0o111;
        self.content()?.write().seals |= linux::F_SEAL_EXEC;
        Ok(())
    }

    /// Lets a memfd be sealed.
    pub fn allow_sealing(&self) {
        if let Ok(c) = self.content() {
            c.write().seals &= !linux::F_SEAL_SEAL;
        }
    }
}

impl Inode for TmpNode {
    fn id(&self) -> u64 {
        self.id
    }

    fn kind(&self) -> FileType {
        self.kind
    }

    fn attr(&self) -> Result<Attr> {
        let (size, pages) = match &self.body {
            Body::File(c) => {
                let c = c.read();
                (c.size, c.chunks.data_pages())
            }
            Body::Symlink(t) => (t.len() as u64, 0),
            Body::Dir(d) => {
                let entries = || d.lock().entries.len() as u64;
                (self.lazy.as_ref().map_or_else(|| entries() * 20 + 40, |l| l.from.size()), 0)
            }
            _ => (0, 0),
        };
        let rdev = if let Body::Other(n) = self.body { n } else { 0 };
        let m = self.meta.lock();
        Ok(Attr {
            ino: self.id,
            dev: self.fs.dev,
            mode: m.mode | self.kind as u32,
            nlink: m.nlink,
            uid: m.uid,
            gid: m.gid,
            rdev,
            size,
            blocks: pages * 8,
            blksize: PAGE as u32,
            atime: m.atime,
            mtime: m.mtime,
            ctime: m.ctime,
        })
    }

    fn permissions(&self) -> Result<Attr> {
        match self.access.get() {
            Some(attr) => Ok(Attr { mode: attr.mode | self.kind as u32, ..attr }),
            None => Inode::attr(self),
        }
    }

    fn set_attr(&self, change: &SetAttr, _cred: &Cred) -> Result<()> {
        if let Some(size) = change.size {
            File::truncate(self, size)?;
        }
        let sealed =
            change.mode.is_some() && self.content().is_ok_and(|c| c.read().seals & linux::F_SEAL_EXEC != 0);
        let mut m = self.meta.lock();
        if let Some(mode) = change.mode {
            if sealed && (mode ^ m.mode) & 0o111 != 0 {
                return Err(Errno::EPERM);
            }
            m.mode = mode & 0o7777;
        }
        m.uid = change.uid.unwrap_or(m.uid);
        m.gid = change.gid.unwrap_or(m.gid);
        if change.uid.is_some() || change.gid.is_some() {
            m.lose_capabilities();
        }
        m.ctime = Time::now();
        let time = |t: Option<Time>, old| t.map_or(old, |t| if change.now { m.ctime } else { t });
        (m.atime, m.mtime) = (time(change.atime, m.atime), time(change.mtime, m.mtime));
        self.access.set(&m);
        Ok(())
    }

    fn believed(&self, _attributes: bool) -> Option<u64> {
        Some(u64::MAX)
    }

    fn file_system(&self) -> Arc<dyn FileSystem> {
        self.fs.clone()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn lookup(&self, name: &[u8]) -> Result<InodeRef> {
        let dir = self.dir()?.lock();
        dir.entries.get(name).map(|(_, n)| n.clone() as InodeRef).ok_or(Errno::ENOENT)
    }

    fn parent(&self) -> Option<InodeRef> {
        self.above().map(|p| p as InodeRef)
    }

    fn name(&self) -> Option<Vec<u8>> {
        let m = self.meta.lock();
        if m.nlink == 0 { None } else { m.names.first().map(|(_, name)| name.clone()) }
    }

    fn identity(&self) -> Result<Identity> {
        Ok((self.fs.dev, self.id))
    }

    fn entry(&self, hint: &[u8]) -> Option<Entry> {
        let m = self.meta.lock();
        let (dir, name) = m.names.iter().find(|(_, n)| n == hint).or_else(|| m.names.first())?;
        Some(Entry { dir: dir.upgrade()?, name: name.clone(), gone: m.nlink == 0 })
    }

    fn create(&self, name: &[u8], node: NewNode, mode: NewMode, cred: &Cred) -> Result<InodeRef> {
        let _tree = self.fs.tree.lock();
        let dir = self.dir()?;
        if dir.lock().entries.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        self.check_there()?;
        let (kind, body) = match node {
            NewNode::File | NewNode::Special(FileType::Regular, _) => {
                (FileType::Regular, Body::File(Shared::new(Content::new())))
            }
            NewNode::Directory => (FileType::Directory, Body::Dir(Mutex::new(Dir::new()))),
            NewNode::Symlink(t) => (FileType::Symlink, Body::Symlink(t.to_vec())),
            NewNode::Special(FileType::Fifo, _) => (FileType::Fifo, Body::Fifo(Mutex::new(Weak::new()))),
            NewNode::Special(FileType::Socket, _) => (FileType::Socket, Body::Other(0)),
            NewNode::Special(kind, number) => (kind, Body::Other(number)),
        };
        let mode = if kind == FileType::Symlink { 0o777 } else { mode.masked() };
        dir.lock().make_room()?;
        let new = self.fs.node(kind, mode, cred, body);
        if kind == FileType::Directory {
            new.meta.lock().nlink = 2;
            self.meta.lock().nlink += 1;
        }
        new.named(self, name);
        dir.lock().insert(name, new.clone());
        self.touch();
        Ok(new)
    }

    fn temporary(&self, mode: NewMode, linkable: bool, cred: &Cred) -> Result<InodeRef> {
        self.dir()?;
        let node =
            self.fs.node(FileType::Regular, mode.masked(), cred, Body::File(Shared::new(Content::new())));
        node.without_name(self.me.clone(), alloc::format!("#{}", node.id).into_bytes());
        node.meta.lock().linkable = linkable;
        Ok(node)
    }

    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        if name.starts_with(b"system.") {
            return Err(Errno::EOPNOTSUPP);
        }
        self.meta.lock().extended.get(name).cloned().ok_or(Errno::ENODATA)
    }

    fn list_xattr(&self) -> Result<Vec<u8>> {
        let meta = self.meta.lock();
        Ok(meta.extended.keys().flat_map(|name| name.iter().chain(b"\0")).copied().collect())
    }

    fn set_xattr(&self, name: &[u8], value: Option<&[u8]>, flags: u32, _cred: &Cred) -> Result<()> {
        if name.starts_with(b"system.") {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut meta = self.meta.lock();
        let there = meta.extended.contains_key(name);
        if there && flags & linux::XATTR_CREATE != 0 {
            return Err(Errno::EEXIST);
        }
        if !there && (flags & linux::XATTR_REPLACE != 0 || value.is_none()) {
            return Err(Errno::ENODATA);
        }
        match value {
            Some(value) => {
                let used: usize = meta.extended.iter().map(|(n, v)| n.len() + v.len()).sum();
                if used + name.len() + value.len() > EXTENDED_MAX {
                    return Err(Errno::ENOSPC);
                }
                meta.extended.insert(name.to_vec(), value.to_vec());
            }
            None => drop(meta.extended.remove(name)),
        }
        meta.ctime = Time::now();
        Ok(())
    }

    fn link(&self, name: &[u8], target: &InodeRef, _cred: &Cred) -> Result<()> {
        let _tree = self.fs.tree.lock();
        let target = Self::of(target)?.me.upgrade().ok_or(Errno::ENOENT)?;
        self.check_there()?;
        let mut dir = self.dir()?.lock();
        if dir.entries.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        dir.make_room()?;
        {
            let mut meta = target.meta.lock();
            if meta.nlink == 0 && !meta.linkable {
                return Err(Errno::ENOENT);
            }
            meta.nlink += 1;
        }
        target.named(self, name);
        dir.insert(name, target);
        drop(dir);
        self.touch();
        Ok(())
    }

    fn unlink(&self, name: &[u8], _dir: bool, _cred: &Cred) -> Result<()> {
        let _tree = self.fs.tree.lock();
        let mut dir = self.dir()?.lock();
        let (_, victim) = dir.entries.get(name).ok_or(Errno::ENOENT)?;
        let victim = victim.clone();
        let mut by = 1;
        if victim.kind == FileType::Directory {
            if !victim.dir()?.lock().entries.is_empty() {
                return Err(Errno::ENOTEMPTY);
            }
            by = 2;
        }
        dir.remove(name);
        drop(dir);
        if by == 2 {
            self.meta.lock().nlink -= 1;
        }
        victim.unlinked(by, self, name);
        self.touch();
        Ok(())
    }

    fn rename(&self, name: &[u8], to: &InodeRef, new: &[u8], flags: u32, _cred: &Cred) -> Result<()> {
        let _tree = self.fs.tree.lock();
        let to = Self::of(to)?;
        let what = {
            let dir = self.dir()?.lock();
            dir.entries.get(name).ok_or(Errno::ENOENT)?.1.clone()
        };
        to.check_there()?;
        to.dir()?.lock().make_room()?;
        let victim = to.dir()?.lock().entries.get(new).map(|(_, n)| n.clone());
        let is_dir = |n: &TmpNode| n.kind == FileType::Directory;
        if flags & linux::RENAME_EXCHANGE != 0 {
            let other = victim.ok_or(Errno::ENOENT)?;
            self.dir()?.lock().insert(name, other.clone());
            to.dir()?.lock().insert(new, what.clone());
            other.renamed(to, new, self, name);
            what.renamed(self, name, to, new);
            if is_dir(&what) != is_dir(&other) && self.id != to.id {
                let (gains, loses) = if is_dir(&what) { (to, self) } else { (self, to) };
                gains.meta.lock().nlink += 1;
                loses.meta.lock().nlink -= 1;
            }
        } else {
            if let Some(v) = &victim {
                if is_dir(v) {
                    if !v.dir()?.lock().entries.is_empty() {
                        return Err(Errno::ENOTEMPTY);
                    }
                    to.meta.lock().nlink -= 1;
                    v.unlinked(2, to, new);
                } else {
                    v.unlinked(1, to, new);
                }
            }
            self.dir()?.lock().remove(name);
            to.dir()?.lock().insert(new, what.clone());
            what.renamed(self, name, to, new);
            if is_dir(&what) && self.id != to.id {
                self.meta.lock().nlink -= 1;
                to.meta.lock().nlink += 1;
            }
        }
        self.touch();
        to.touch();
        Ok(())
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        match &self.body {
            Body::Symlink(t) => Ok(t.clone()),
            _ => Err(Errno::EINVAL),
        }
    }

    fn list(&self, from: u64, most: usize) -> Result<Vec<DirEntry>> {
        let dir = self.dir()?.lock();
        if self.meta.lock().nlink == 0 {
            return Err(Errno::ENOENT);
        }
        let entries = dir.order.range(from + 1..).take(most).filter_map(|(cookie, name)| {
            let (_, node) = dir.entries.get(name)?;
            Some(DirEntry { name: name.clone(), ino: node.id, kind: node.kind, next: *cookie })
        });
        Ok(entries.collect())
    }

    fn enter(&self, by: i32) -> Result<()> {
        self.users.enter(by)
    }

    fn leave(&self, by: i32) {
        self.users.leave(by);
    }

    fn open(self: Arc<Self>, flags: u32, _cred: &Cred) -> Result<Arc<dyn File>> {
        match &self.body {
            Body::Fifo(pipe) => Fifo::open(pipe, flags),
            Body::Other(_) => Err(Errno::ENXIO),
            Body::Dir(_) => Ok(Arc::new(OpenDir { node: self, end: AtomicU64::new(u64::MAX) })),
            _ => Ok(self),
        }
    }
}

/// An opened directory: who reads it from the beginning sees no name that is newer, so that to rename what one reads comes to an end.
struct OpenDir {
    node: Arc<TmpNode>,
    /// Cookie of the first name that is too new.
    end: AtomicU64,
}

impl File for OpenDir {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn seekable(&self) -> bool {
        true
    }

    fn attr(&self) -> Result<Attr> {
        Inode::attr(&*self.node)
    }

    fn read(&self, _sink: &mut Sink, _at: Option<u64>, _nonblock: bool) -> Result<usize> {
        Err(Errno::EISDIR)
    }

    fn write(&self, _source: &mut Source, _at: At, _nonblock: bool) -> Result<(usize, u64)> {
        Err(Errno::EISDIR)
    }

    fn entries(&self, from: u64) -> Option<Result<Vec<DirEntry>>> {
        if from == 0
            && let Ok(dir) = self.node.dir()
        {
            self.end.store(dir.lock().next, Ordering::Relaxed);
        }
        let end = self.end.load(Ordering::Relaxed);
        let mut entries = self.node.list(from, AT_ONCE);
        if let Ok(entries) = &mut entries {
            entries.retain(|e| e.next < end);
        }
        Some(entries)
    }

    fn sync(&self, _data_only: bool) -> Result<()> {
        Ok(())
    }
}

/// Names of a directory that are looked at together.
const AT_ONCE: usize = 256;

impl File for TmpNode {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn inode(self: Arc<Self>) -> Option<InodeRef> {
        Some(self)
    }

    fn seekable(&self) -> bool {
        true
    }

    fn write_hint(&self) -> Option<&AtomicU32> {
        Some(&self.write_hint)
    }

    fn attr(&self) -> Result<Attr> {
        Inode::attr(self)
    }

    fn read(&self, sink: &mut Sink, at: Option<u64>, _nonblock: bool) -> Result<usize> {
        if self.kind == FileType::Directory {
            return Err(Errno::EISDIR);
        }
        let at = at.unwrap_or(0);
        if gate::full(Resource::DeviceRead)
            && self.content()?.read().chunks.is_on_disk(at, at.saturating_add(sink.left() as u64))
        {
            // It has to be its turn. Meanwhile others may have the file.
            gate::pass(Resource::DeviceRead);
        }
        self.read_now(sink, at)
    }

    fn write(&self, source: &mut Source, at: At, _nonblock: bool) -> Result<(usize, u64)> {
        if self.kind == FileType::Directory {
            return Err(Errno::EISDIR);
        }
        let mut c = self.change()?;
        if c.seals & (linux::F_SEAL_WRITE | linux::F_SEAL_FUTURE_WRITE) != 0 {
            return Err(Errno::EPERM);
        }
        let mut at = match at {
            At::Offset(o) => o,
            _ => c.size,
        };
        if at.checked_add(source.left() as u64).is_none_or(|end| end > i64::MAX as u64) {
            return Err(Errno::EFBIG);
        }
        if at + source.left() as u64 > c.size && c.seals & linux::F_SEAL_GROW != 0 {
            return Err(Errno::EPERM);
        }
        self.make_known();
        let mut done = 0;
        while source.left() > 0 {
            let room = c.room(at, source.left() as u64);
            if room == 0 {
                if done == 0 {
                    return Err(Errno::ENOSPC);
                }
                break;
            }
            if room < (source.left() as u64).min(CHUNK - at % CHUNK) {
                source.limit(room);
            }
            match c.chunks.write(source, at, None) {
                Ok(0) => break,
                Ok(n) => {
                    at += n as u64;
                    done += n;
                    c.size = c.size.max(at);
                    atoll_sync::breathe();
                }
                Err(e) if done == 0 => return Err(if e == Errno::ENOMEM { Errno::ENOSPC } else { e }),
                Err(_) => break,
            }
        }
        drop(c);
        self.touch();
        Ok((done, at))
    }

    fn mappable(self: Arc<Self>) -> Result<Arc<dyn Mappable>> {
        match &self.body {
            Body::File(_) => Ok(self),
            _ => Err(Errno::ENODEV),
        }
    }

    fn sync(&self, _data_only: bool) -> Result<()> {
        Ok(())
    }

    fn truncate(&self, len: u64) -> Result<()> {
        if self.kind == FileType::Directory {
            return Err(Errno::EISDIR);
        }
        let mut c = self.change()?;
        let forbidden = if len < c.size { linux::F_SEAL_SHRINK } else { linux::F_SEAL_GROW };
        if len != c.size && c.seals & forbidden != 0 {
            return Err(Errno::EPERM);
        }
        if len < c.size {
            c.chunks.truncate(len, self.mappings.load(Ordering::Relaxed) > 0);
            c.plan = Plan::None;
        }
        c.size = len;
        drop(c);
        self.touch();
        Ok(())
    }

    fn allocate(&self, mode: u32, offset: u64, len: u64) -> Result<()> {
        // A hole never changes the size, and has to say so (`fallocate(2)`).
        const HOLE: u32 = linux::FALLOC_FL_PUNCH_HOLE | linux::FALLOC_FL_KEEP_SIZE;
        if mode != HOLE && mode & !linux::FALLOC_FL_KEEP_SIZE != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut c = self.change()?;
        let end = offset.checked_add(len).filter(|e| *e <= i64::MAX as u64).ok_or(Errno::EFBIG)?;
        if mode == HOLE {
            if c.seals & linux::F_SEAL_WRITE != 0 {
                return Err(Errno::EPERM);
            }
            let size = c.size;
            let mapped = self.mappings.load(Ordering::Relaxed) > 0;
            c.chunks.punch(offset, end.min(size), mapped);
            return Ok(());
        }
        if mode & linux::FALLOC_FL_KEEP_SIZE == 0 && end > c.size {
            if c.seals & linux::F_SEAL_GROW != 0 {
                return Err(Errno::EPERM);
            }
            if (end - offset.max(c.size)) / PAGE > self.fs.left() {
                return Err(Errno::ENOSPC);
            }
            c.size = end;
        }
        Ok(())
    }

    fn seek_data(&self, from: u64, hole: bool, size: u64) -> Result<u64> {
        if from >= size {
            return Err(Errno::ENXIO);
        }
        let c = self.content()?.read();
        match c.chunks.seek(from, hole) {
            Some(at) if at < size => Ok(at),
            _ if hole => Ok(size),
            _ => Err(Errno::ENXIO),
        }
    }

    fn describe(&self) -> Vec<u8> {
        let mut text = b"/".to_vec();
        text.extend_from_slice(self.meta.lock().names.first().map_or(b"", |(_, n)| n));
        text.extend_from_slice(b" (deleted)");
        text
    }
}

impl Drop for TmpNode {
    fn drop(&mut self) {
        self.fs.nodes.fetch_sub(1, Ordering::Relaxed);
        if let Body::File(content) = &mut self.body {
            let content = content.get_mut();
            self.fs.count(content, content.counted.wrapping_neg());
        }
        if *self.is_known.get_mut() {
            self.fs.files.lock().remove(&self.id);
        }
        if self.meta.get_mut().nlink == 0 {
            inotify::gone((self.fs.dev, self.id));
        }
    }
}

/// The file systems that there are.
fn all() -> Vec<Arc<TmpFs>> {
    let mut all = ALL.lock();
    all.retain(|fs| fs.strong_count() > 0);
    all.iter().filter_map(Weak::upgrade).collect()
}

/// Bytes of memory that files have which are nowhere else: those in memory, and memory that programs share.
pub fn held() -> u64 {
    all().iter().map(|fs| fs.held.load(Ordering::Relaxed)).sum::<u64>() * PAGE
}

/// Moves what files of memory have at `from` of the cell's memory or behind it elsewhere. `hide` unmaps a file from all spaces; it is told
/// the file's [`Object`], and says false if that can't be done now. Value: bytes. ENOMEM: there is no place for some.
pub fn vacate(from: u64, hide: impl Fn(*const ()) -> bool) -> Result<u64> {
    let mut moved = 0;
    for fs in all() {
        let files: Vec<Arc<TmpNode>> = fs.files.lock().values().filter_map(Weak::upgrade).collect();
        for file in files {
            if !file.content()?.read().chunks.lies_behind(from) {
                continue;
            }
            // Whoever wants to map more of it waits.
            let mut c = file.change()?;
            if file.mappings.load(Ordering::Relaxed) == 0 || hide(Arc::as_ptr(&file).cast()) {
                moved += c.chunks.vacate(from, false)?;
            }
        }
    }
    Ok(moved)
}

impl TmpNode {
    /// It has memory from now on, or is about to.
    fn make_known(&self) {
        if !self.is_known.load(Ordering::Relaxed) && !self.is_known.swap(true, Ordering::Relaxed) {
            self.fs.files.lock().insert(self.id, self.me.clone());
        }
    }

    /// Reads a file from `at` on.
    fn read_now(&self, sink: &mut Sink, at: u64) -> Result<usize> {
        let c = self.content()?.read();
        if at >= c.size {
            return Ok(0);
        }
        c.chunks.read_sparse(sink, at, c.size)
    }

    /// Is none of the 64 KiB around `offset` on a disk still?
    fn has_chunk(&self, offset: u64) -> bool {
        let start = offset / CHUNK * CHUNK;
        self.content().is_ok_and(|c| !c.read().chunks.is_on_disk(start, start + CHUNK))
    }
}

impl Mappable for TmpNode {
    fn host_file(&self, write: bool) -> Result<Option<i32>> {
        let sealed = self.content()?.read().seals & (linux::F_SEAL_WRITE | linux::F_SEAL_FUTURE_WRITE);
        if write && sealed != 0 {
            return Err(Errno::EPERM);
        }
        Ok(None)
    }

    fn object(&self) -> Option<Arc<dyn Object>> {
        self.me.upgrade().map(|n| n as Arc<dyn Object>)
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<usize> {
        // For a page fault, which has waited before.
        self.read_now(&mut Sink::kernel(to), offset)
    }

    fn is_here(&self, offset: u64) -> bool {
        self.has_chunk(offset)
    }

    fn punch_hole(&self, offset: u64, len: u64) -> Result<()> {
        File::allocate(self, linux::FALLOC_FL_PUNCH_HOLE | linux::FALLOC_FL_KEEP_SIZE, offset, len)
    }

    fn describe(&self) -> (Vec<u8>, u64, u64) {
        (self.path(), self.fs.dev, self.id)
    }

    fn rewriting(&self) -> Option<Arc<dyn Rewriting>> {
        let mut c = self.change().ok()?;
        // Nor is what was mapped shared: who did may change it, and nobody is told.
        if !c.chunks.is_origin(c.size) {
            c.plan = Plan::None;
        }
        if let Plan::Bytes(bytes) = c.plan {
            let made = self.fs.planner.get().and_then(|planner| planner(bytes, c.size));
            c.plan = made.map_or(Plan::None, Plan::Made);
        }
        match &c.plan {
            Plan::Made(plan) => Some(plan.clone()),
            _ => None,
        }
    }
}

impl Object for TmpNode {
    fn chunk(&self, offset: u64) -> Result<u64> {
        self.make_known();
        let mut c = self.change()?;
        c.check_room(offset)?;
        c.chunks.whole(offset / CHUNK * CHUNK)
    }

    fn chunk_and_more(&self, offset: u64) -> Result<u64> {
        self.make_known();
        let mut c = self.change()?;
        c.check_room(offset)?;
        if BLOCK / PAGE <= self.fs.left() {
            let size = page_up(c.size);
            c.chunks.take_block(offset, size);
        }
        c.chunks.whole(offset / CHUNK * CHUNK)
    }

    fn size(&self) -> u64 {
        self.content().map_or(0, |c| c.read().size)
    }

    fn is_here(&self, offset: u64) -> bool {
        self.has_chunk(offset)
    }

    fn has_memory(&self, offset: u64) -> bool {
        self.content().is_ok_and(|c| c.read().chunks.has_memory(offset))
    }

    fn place(&self, offset: u64) -> Option<u64> {
        self.content().ok()?.read().chunks.place(offset)
    }

    fn mappings(&self) -> u32 {
        self.mappings.load(Ordering::Relaxed).max(0) as u32
    }

    fn shown(&self, to_write: bool) {
        if to_write {
            // As Linux does, when a page is first written to.
            self.touch();
        }
        self.writable.fetch_or(if to_write { SHOWN } else { SHOWN | UNNOTICED }, Ordering::Relaxed);
    }

    fn settle(&self, goes: bool) {
        // As long as another mapping shows its pages, what is written there is noticed by nobody.
        let is_last = goes && self.mappings() <= 1;
        let gone = if is_last { SHOWN | UNNOTICED } else { 0 };
        let writable = self.writable.fetch_and(!gone, Ordering::Relaxed);
        if writable & if goes { UNNOTICED } else { SHOWN } != 0 {
            self.touch();
        }
    }

    fn mapped(&self, by: i32) {
        self.mappings.fetch_add(by, Ordering::Relaxed);
    }
}

/// Shared anonymous memory of `len` bytes, as an object without a name.
pub fn shared_memory(fs: &TmpFs, len: u64, cred: &Cred) -> Arc<TmpNode> {
    let node = fs.anonymous(b"dev/zero", cred);
    if let Ok(c) = node.content() {
        c.write().size = len;
    }
    node
}
