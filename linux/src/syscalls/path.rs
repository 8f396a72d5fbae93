//! Calls on names: opening, looking, making, removing.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use atoll_abi::{Errno, Result};
use atoll_fs::namespace::{How, Target, Walk, Walker};
use atoll_fs::node::{InUse, NewNode};
use atoll_fs::open::{may_lend, note_mode};
use atoll_fs::types::may;
use atoll_fs::{Attr, Cred, File, FileType, Location, NewMode, OpenFile, SetAttr, StatFs, Time};
use atoll_mem::user;
use atoll_sync::RcuArc;
use linux_raw_sys::general as linux;

use super::{Call, unsupported};
use crate::capabilities::FileCapabilities;
use crate::exec;
use crate::files::FileRef;
use crate::process::{Task, world};
use crate::types::{
    OpenHow, Stat, StatfsC, Statx, StatxTime, Timespec, Timeval, get, get_beginning, get_path, get_string,
    put,
};

const AT_FDCWD: i32 = linux::AT_FDCWD;

/// The directory of a descriptor, where a walk begins.
fn start(task: &Task, dir: i32) -> Result<Location> {
    let file = task.files.get(dir as u32)?;
    let place = file.place().cloned().ok_or(Errno::ENOTDIR)?;
    if place.inode.kind() != FileType::Directory {
        return Err(Errno::ENOTDIR);
    }
    Ok(place)
}

/// Runs `f` with a walker for the task and the place where `path` begins.
fn with_walker<R>(
    task: &Task,
    dir: i32,
    path: &[u8],
    how: How,
    f: impl FnOnce(&Walker, &Location) -> Result<R>,
) -> Result<R> {
    with_walker_of(task, None, dir, path, how, f)
}

/// The same for one that goes by other ids than the task's.
fn with_walker_of<R>(
    task: &Task,
    cred: Option<&Cred>,
    dir: i32,
    path: &[u8],
    how: How,
    f: impl FnOnce(&Walker, &Location) -> Result<R>,
) -> Result<R> {
    if path.is_empty() {
        return Err(Errno::ENOENT);
    }
    let view = task.view();
    let directory;
    let from = if path.starts_with(b"/") && !how.in_root {
        &view.root
    } else if dir == AT_FDCWD {
        &view.cwd
    } else {
        directory = start(task, dir)?;
        &directory
    };
    f(&Walker { tree: &world().tree, root: &view.root, cred: cred.unwrap_or(&view.cred) }, from)
}

fn walk(task: &Task, dir: i32, path: &[u8], how: How) -> Result<Walk> {
    with_walker(task, dir, path, how, |w, from| w.walk(from, path, how))
}

/// What a path leads to: a place, or an open file without one.
enum Object {
    Place(Location),
    Open(FileRef),
}

impl Object {
    fn attr(&self) -> Result<Attr> {
        match self {
            Object::Place(p) => p.inode.attr(),
            Object::Open(f) => f.attr(),
        }
    }

    fn place(self) -> Result<Location> {
        match self {
            Object::Place(p) => Ok(p),
            Object::Open(f) => f.place().cloned().ok_or(Errno::EBADF),
        }
    }

    /// Where its inode is, if it has one: in the tree, or a file in memory that has no name.
    fn inode_at(self) -> Option<Location> {
        match self {
            Object::Place(p) => Some(p),
            Object::Open(f) => exec::place_of(&f),
        }
    }
}

/// Finds what exists. With AT_EMPTY_PATH, an empty path is the descriptor itself.
fn find(task: &Task, dir: i32, path: &[u8], flags: u32) -> Result<Object> {
    find_as(task, None, dir, path, flags)
}

/// The same, by other ids than the task's if there are any.
fn find_as(task: &Task, cred: Option<&Cred>, dir: i32, path: &[u8], flags: u32) -> Result<Object> {
    if path.is_empty() && flags & linux::AT_EMPTY_PATH != 0 {
        if dir == AT_FDCWD {
            return Ok(Object::Place(task.fs.cwd.lock().clone()));
        }
        let file = task.files.get(dir as u32)?;
        return Ok(match file.place() {
            Some(p) => Object::Place(p.clone()),
            None => Object::Open(file),
        });
    }
    let no_follow = flags & linux::AT_SYMLINK_NOFOLLOW != 0;
    let how = How { no_follow, ..How::default() };
    match with_walker_of(task, cred, dir, path, how, |w, from| w.target(from, path, how))? {
        Target::Found(l) => Ok(Object::Place(l)),
        Target::Open(f) => Ok(Object::Open(f)),
        Target::Missing => Err(Errno::ENOENT),
    }
}

/// The place that a path leads to.
pub fn place(task: &Task, path: &[u8], follow: bool) -> Result<Location> {
    find(task, AT_FDCWD, path, if follow { 0 } else { linux::AT_SYMLINK_NOFOLLOW })?.place()
}

/// How often an opening begins again because others change the tree under it.
const TRIES_MAX: u32 = 32;

/// The mode of what a task makes.
pub(super) fn new_mode(task: &Task, mode: u32) -> NewMode {
    NewMode { bits: mode & 0o7777, umask: task.fs.umask.load(Ordering::Relaxed) }
}

/// Opens a file.
pub fn open_file(task: &Task, dir: i32, path: &[u8], flags: u32, mode: u32, how: How) -> Result<FileRef> {
    let mut flags = flags;
    let temporary = flags & linux::__O_TMPFILE != 0;
    if temporary && flags & linux::O_ACCMODE == linux::O_RDONLY {
        return Err(Errno::EINVAL);
    }
    if flags & linux::O_PATH != 0 {
        flags &= linux::O_PATH | linux::O_DIRECTORY | linux::O_NOFOLLOW | linux::O_CLOEXEC;
    }
    let create = flags & linux::O_CREAT != 0;
    let exclusive = create && flags & linux::O_EXCL != 0;
    let other = linux::O_ACCMODE | linux::O_CREAT | linux::O_TRUNC | linux::O_PATH | linux::O_DIRECTORY;
    let how = How {
        no_follow: how.no_follow || exclusive || flags & linux::O_NOFOLLOW != 0,
        opens: flags & other == linux::O_RDONLY,
        makes: exclusive,
        ..how
    };
    let new = new_mode(task, mode);
    with_walker(task, dir, path, how, |walker, from| {
        let (mut tries, mut how) = (0, how);
        loop {
            let (target, walk) = if create {
                let walk = walker.walk(from, path, how)?;
                match walk.target {
                    Target::Missing => (Target::Missing, Some(walk)),
                    target => (target, None),
                }
            } else {
                (walker.target(from, path, how)?, None)
            };
            let (place, made) = match (target, walk) {
                (Target::Open(file), _) => return reopen(task, &file, flags, mode),
                (Target::Found(_), _) if exclusive => return Err(Errno::EEXIST),
                (Target::Found(l), _) => (l, false),
                (Target::Missing, None) => return Err(Errno::ENOENT),
                (Target::Missing, Some(walk)) if walk.slash => return Err(Errno::EISDIR),
                (Target::Missing, Some(walk)) => {
                    match walker.create(&walk, NewNode::File, new) {
                        Ok(l) => (l, true),
                        // Somebody was faster.
                        Err(Errno::EEXIST) if !exclusive && tries < TRIES_MAX => {
                            tries += 1;
                            continue;
                        }
                        // What is there is a better reason.
                        Err(_) if walk.guessed => {
                            how.makes = false;
                            continue;
                        }
                        Err(e) => return Err(e),
                    }
                }
            };
            match open_place(walker, path, flags, new, &place, made) {
                Ok(Opening::Here(file, kept, writer)) => {
                    return Ok(opened(OpenFile::at(file, kept, place, path.to_vec()).written_by(writer)));
                }
                Ok(Opening::Elsewhere(file)) => return Ok(file),
                // It was there a moment ago, as far as we knew: others changed the tree.
                Err(Errno::ENOENT | Errno::ESTALE) if tries < TRIES_MAX => {
                    tries += 1;
                    walker.forget(&place);
                }
                Err(Errno::ESTALE) => return Err(Errno::ENOENT),
                Err(e) => return Err(e),
            }
        }
    })
}

/// What opening gave.
enum Opening {
    /// A file for the place that the path led to, flags that stay, and that it is one who writes.
    Here(Arc<dyn File>, u32, Option<InUse>),
    /// One for a place of its own.
    Elsewhere(FileRef),
}

/// Opens what a path led to, or what was made there.
fn open_place(
    walker: &Walker,
    path: &[u8],
    flags: u32,
    mode: NewMode,
    place: &Location,
    made: bool,
) -> Result<Opening> {
    let create = flags & linux::O_CREAT != 0;
    let kept =
        flags & !(linux::O_CREAT | linux::O_EXCL | linux::O_NOCTTY | linux::O_TRUNC | linux::O_CLOEXEC);
    let kind = place.inode.kind();
    if flags & linux::O_PATH != 0 {
        if flags & linux::O_DIRECTORY != 0 && kind != FileType::Directory {
            return Err(Errno::ENOTDIR);
        }
        return Ok(Opening::Here(Arc::new(PathOnly), kept, None));
    }
    if kind == FileType::Symlink {
        return Err(Errno::ELOOP);
    }
    let write = flags & linux::O_ACCMODE != linux::O_RDONLY;
    if flags & linux::__O_TMPFILE == linux::__O_TMPFILE {
        return temporary_file(walker, path, place, flags, mode).map(Opening::Elsewhere);
    }
    if kind == FileType::Directory && (write || create) {
        return Err(Errno::EISDIR);
    }
    if flags & linux::O_DIRECTORY != 0 && kind != FileType::Directory {
        return Err(Errno::ENOTDIR);
    }
    if !made {
        let attr = place.inode.permissions()?;
        walker.cred.check(&attr, wanted(flags))?;
        if write || flags & linux::O_TRUNC != 0 {
            note_mode(attr.mode);
        }
    } else {
        note_mode(mode.bits);
    }
    if write && matches!(kind, FileType::Regular) {
        place.check_writable()?;
    }
    if flags & linux::O_NOATIME != 0 {
        walker.cred.owns(&place.inode.attr()?)?;
    }
    let writer = to_write(place, flags)?;
    if flags & linux::O_TRUNC != 0 && kind == FileType::Regular && !made {
        place.check_writable()?;
        let change = SetAttr { size: Some(0), ..SetAttr::default() };
        place.set_attr(&change, walker.cred)?;
        if let Some(task) = crate::current::try_current() {
            // Few have any bits that lend: the mode, which is not known any more, isn't asked for without need.
            if may_lend() {
                super::fd::stop_lending(task, place);
            }
            crate::extents::was_cut(task, place.inode.as_any(), 0);
        }
    }
    let file = place.inode.clone().open(flags, walker.cred)?;
    Ok(Opening::Here(file, kept, writer.filter(|_| write)))
}

/// What makes an opening with these flags one who writes; ETXTBSY: the file runs.
fn to_write(place: &Location, flags: u32) -> Result<Option<InUse>> {
    let write = flags & linux::O_PATH == 0 && flags & (linux::O_ACCMODE | linux::O_TRUNC) != 0;
    if !write || place.inode.kind() != FileType::Regular {
        return Ok(None);
    }
    InUse::to_write(&place.inode).map(Some)
}

/// Shares a file that has just been opened, and says so.
fn opened(file: OpenFile) -> FileRef {
    file.note(linux::IN_OPEN);
    RcuArc::new(file)
}

/// What who opens with these flags must be allowed.
fn wanted(flags: u32) -> u32 {
    let cuts = if flags & linux::O_TRUNC != 0 { may::WRITE } else { 0 };
    cuts | match flags & linux::O_ACCMODE {
        linux::O_RDONLY => may::READ,
        linux::O_WRONLY => may::WRITE,
        _ => may::READ | may::WRITE,
    }
}

/// Opens what a magic link in /proc/self/fd leads to, anew.
fn reopen(task: &Task, file: &FileRef, flags: u32, mode: u32) -> Result<FileRef> {
    match file.place() {
        Some(place) if place.inode.kind() != FileType::Symlink => {
            let cred = task.cred();
            let is_dir = place.inode.kind() == FileType::Directory;
            if flags & linux::O_DIRECTORY != 0 && !is_dir {
                return Err(Errno::ENOTDIR);
            }
            if flags & linux::O_PATH == 0 {
                if flags & linux::__O_TMPFILE != 0 {
                    let mode = new_mode(task, mode);
                    return with_walker(task, AT_FDCWD, b"/", How::default(), |walker, _| {
                        temporary_file(walker, &file.describe(), place, flags, mode)
                    });
                }
                if is_dir && (flags & linux::O_ACCMODE != linux::O_RDONLY || flags & linux::O_CREAT != 0) {
                    return Err(Errno::EISDIR);
                }
                let want = wanted(flags);
                let attr = place.inode.attr()?;
                cred.check(&attr, want)?;
                if !is_dir && (want & may::WRITE != 0 || flags & linux::O_TRUNC != 0) {
                    note_mode(attr.mode);
                }
            }
            let writer = to_write(place, flags)?.filter(|_| flags & linux::O_ACCMODE != linux::O_RDONLY);
            if flags & linux::O_TRUNC != 0 && place.inode.kind() == FileType::Regular {
                place.set_attr(&SetAttr { size: Some(0), ..SetAttr::default() }, &cred)?;
                if may_lend() {
                    super::fd::stop_lending(task, place);
                }
                crate::extents::was_cut(task, place.inode.as_any(), 0);
            }
            let again = place.inode.clone().open_again(flags, &cred)?;
            let kept = flags & !(linux::O_CREAT | linux::O_EXCL | linux::O_TRUNC | linux::O_CLOEXEC);
            Ok(opened(OpenFile::at(again, kept, place.clone(), file.describe()).written_by(writer)))
        }
        // A pipe, a socket, a stream: the same object with flags of its own.
        _ => {
            if file.as_type::<crate::socket::SocketFile>().is_some() {
                return Err(Errno::ENXIO);
            }
            let mut writer = None;
            if let Some(place) = exec::place_of(file).filter(|_| flags & linux::O_PATH == 0) {
                // In memory, without a name: it has a mode all the same, and may be what runs.
                task.cred().check(&place.inode.attr()?, wanted(flags))?;
                writer = to_write(&place, flags)?.filter(|_| flags & linux::O_ACCMODE != linux::O_RDONLY);
            }
            if flags & linux::O_TRUNC != 0 && file.attr()?.mode & linux::S_IFMT == linux::S_IFREG {
                super::fd::set_length(task, file, 0)?;
            }
            let kept = flags & (linux::O_ACCMODE | linux::O_NONBLOCK | linux::O_APPEND);
            Ok(RcuArc::new(OpenFile::new(file.file().clone(), kept).written_by(writer)))
        }
    }
}

/// O_TMPFILE: a file without a name.
fn temporary_file(
    walker: &Walker,
    path: &[u8],
    place: &Location,
    flags: u32,
    mode: NewMode,
) -> Result<FileRef> {
    if place.inode.kind() != FileType::Directory {
        return Err(Errno::ENOTDIR);
    }
    place.check_writable()?;
    let dir = place.inode.attr()?;
    walker.cred.check(&dir, may::WRITE | may::EXEC)?;
    let linkable = flags & linux::O_EXCL == 0;
    note_mode(mode.bits);
    let (cred, mode) = walker.cred.making(&dir, mode);
    let inode = place.inode.temporary(mode, linkable, &cred)?;
    let mut name = path.to_vec();
    name.extend_from_slice(b"/");
    name.extend_from_slice(&inode.entry(b"").map_or(Vec::new(), |e| e.name));
    let place = Location { mount: place.mount, inode };
    let file = place.inode.clone().open(flags & !linux::__O_TMPFILE, walker.cred)?;
    let kept = flags & !(linux::O_CREAT | linux::O_EXCL | linux::O_TRUNC | linux::O_CLOEXEC);
    let writer = to_write(&place, flags)?;
    Ok(opened(OpenFile::at(file, kept, place, name).written_by(writer)))
}

/// What an O_PATH descriptor refers to: a place, nothing to read or write.
struct PathOnly;

impl atoll_fs::File for PathOnly {
    fn as_any(&self) -> &dyn core::any::Any {
        self
    }
    fn read(&self, _: &mut atoll_fs::Sink, _: Option<u64>, _: bool) -> Result<usize> {
        Err(Errno::EBADF)
    }
    fn control(&self, _: u32, _: u64) -> Result<u64> {
        Err(Errno::EBADF)
    }
}

fn do_open(c: &Call, dir: i32, path: u64, flags: u32, mode: u32, how: How) -> Result<u64> {
    let path = get_path(path)?;
    // Before anything is made or cut for it.
    let place = c.reserve(flags & linux::O_CLOEXEC != 0)?;
    let file = open_file(c.task, dir, &path, flags, mode, how)?;
    Ok(u64::from(place.fill(file)))
}

/// `open(2)`.
pub fn open(c: &mut Call) -> Result<u64> {
    do_open(c, AT_FDCWD, c.arg(0), c.uint(1), c.uint(2), How::default())
}

/// `openat(2)`.
pub fn openat(c: &mut Call) -> Result<u64> {
    do_open(c, c.int(0), c.arg(1), c.uint(2), c.uint(3), How::default())
}

/// `creat(2)`.
pub fn creat(c: &mut Call) -> Result<u64> {
    let flags = linux::O_CREAT | linux::O_WRONLY | linux::O_TRUNC;
    do_open(c, AT_FDCWD, c.arg(0), flags, c.uint(1), How::default())
}

/// `openat2(2)`.
pub fn openat2(c: &mut Call) -> Result<u64> {
    if c.arg(3) < size_of::<OpenHow>() as u64 {
        return Err(Errno::EINVAL);
    }
    let how: OpenHow = get_beginning(c.arg(2), c.arg(3))?;
    let known = linux::RESOLVE_BENEATH
        | linux::RESOLVE_IN_ROOT
        | linux::RESOLVE_NO_MAGICLINKS
        | linux::RESOLVE_NO_SYMLINKS
        | linux::RESOLVE_NO_XDEV
        | linux::RESOLVE_CACHED;
    if how.resolve & !u64::from(known) != 0 || how.flags >> 32 != 0 {
        return Err(Errno::EINVAL);
    }
    let creating = how.flags as u32 & (linux::O_CREAT | linux::__O_TMPFILE) != 0;
    if how.mode & !0o7777 != 0 || (how.mode != 0 && !creating) {
        return Err(Errno::EINVAL);
    }
    let r = how.resolve as u32;
    let walk_how = How {
        no_follow: false,
        no_links: r & linux::RESOLVE_NO_SYMLINKS != 0,
        beneath: r & linux::RESOLVE_BENEATH != 0,
        in_root: r & linux::RESOLVE_IN_ROOT != 0,
        no_magic: r & linux::RESOLVE_NO_MAGICLINKS != 0,
        one_mount: r & linux::RESOLVE_NO_XDEV != 0,
        opens: false,
        makes: false,
    };
    if walk_how.beneath && walk_how.in_root {
        return Err(Errno::EINVAL);
    }
    if r & linux::RESOLVE_CACHED != 0 {
        // Nobody can tell what would be found without asking the host.
        return Err(Errno::EAGAIN);
    }
    let mut path = get_path(c.arg(1))?;
    if walk_how.in_root && path.first() == Some(&b'/') {
        // From the given directory, whatever the process's root is.
        path.insert(0, b'.');
    }
    let flags = how.flags as u32;
    let place = c.reserve(flags & linux::O_CLOEXEC != 0)?;
    let file = open_file(c.task, c.int(0), &path, flags, how.mode as u32, walk_how)?;
    Ok(u64::from(place.fill(file)))
}

fn put_stat(addr: u64, attr: &Attr) -> Result<u64> {
    put(addr, &Stat::from_attr(attr)).map(|()| 0)
}

/// `stat(2)`.
pub fn stat(c: &mut Call) -> Result<u64> {
    let path = get_path(c.arg(0))?;
    put_stat(c.arg(1), &find(c.task, AT_FDCWD, &path, 0)?.attr()?)
}

/// `lstat(2)`.
pub fn lstat(c: &mut Call) -> Result<u64> {
    let path = get_path(c.arg(0))?;
    put_stat(c.arg(1), &find(c.task, AT_FDCWD, &path, linux::AT_SYMLINK_NOFOLLOW)?.attr()?)
}

/// `fstat(2)`.
pub fn fstat(c: &mut Call) -> Result<u64> {
    let attr = c.file_or_place(0)?.attr()?;
    put_stat(c.arg(1), &attr)
}

/// `newfstatat(2)`.
pub fn newfstatat(c: &mut Call) -> Result<u64> {
    let flags = c.uint(3);
    if flags & !(linux::AT_SYMLINK_NOFOLLOW | linux::AT_EMPTY_PATH | linux::AT_NO_AUTOMOUNT) != 0 {
        return Err(Errno::EINVAL);
    }
    let path = get_path(c.arg(1))?;
    put_stat(c.arg(2), &find(c.task, c.int(0), &path, flags)?.attr()?)
}

/// Major and minor number of a device (`makedev(3)`).
pub(super) fn device(n: u64) -> (u32, u32) {
    (((n >> 8) & 0xfff | (n >> 32) & !0xfff) as u32, ((n & 0xff) | (n >> 12) & !0xff) as u32)
}

/// `statx(2)`.
pub fn statx(c: &mut Call) -> Result<u64> {
    let flags = c.uint(2);
    let known = linux::AT_SYMLINK_NOFOLLOW
        | linux::AT_EMPTY_PATH
        | linux::AT_NO_AUTOMOUNT
        | linux::AT_STATX_FORCE_SYNC
        | linux::AT_STATX_DONT_SYNC;
    let both = linux::AT_STATX_FORCE_SYNC | linux::AT_STATX_DONT_SYNC;
    if c.uint(3) & linux::STATX__RESERVED != 0 || flags & !known != 0 || flags & both == both {
        return Err(Errno::EINVAL);
    }
    let path =
        if c.arg(1) == 0 && flags & linux::AT_EMPTY_PATH != 0 { Vec::new() } else { get_path(c.arg(1))? };
    let object = find(c.task, c.int(0), &path, flags)?;
    let a = object.attr()?;
    let mount = match &object {
        Object::Place(p) => u64::from(p.mount.id),
        Object::Open(_) => 0,
    };
    let time = |t: Time| StatxTime { sec: t.sec, nsec: t.nsec, pad: 0 };
    let (major, minor) = device(a.dev);
    let (rmajor, rminor) = device(a.rdev);
    let out = Statx {
        mask: linux::STATX_BASIC_STATS | linux::STATX_MNT_ID,
        blksize: a.blksize,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        mode: a.mode as u16,
        ino: a.ino,
        size: a.size,
        blocks: a.blocks,
        atime: time(a.atime),
        ctime: time(a.ctime),
        mtime: time(a.mtime),
        rdev_major: rmajor,
        rdev_minor: rminor,
        dev_major: major,
        dev_minor: minor,
        mnt_id: mount,
        ..Statx::default()
    };
    put(c.arg(4), &out).map(|()| 0)
}

fn do_access(c: &Call, dir: i32, path: u64, mode: u32, flags: u32) -> Result<u64> {
    if mode & !7 != 0 {
        return Err(Errno::EINVAL);
    }
    let path = get_path(path)?;
    let cred = {
        let ids = c.task.ids();
        let real = || Cred {
            uid: ids.ruid,
            gid: ids.rgid,
            capabilities: ids.capabilities.for_real_user(ids.ruid),
            ..ids.cred()
        };
        if flags & linux::AT_EACCESS != 0 { ids.cred() } else { real() }
    };
    let object = find_as(c.task, Some(&cred), dir, &path, flags)?;
    let attr = object.attr()?;
    if mode & may::WRITE != 0
        && let Object::Place(p) = &object
        && matches!(attr.kind(), FileType::Regular | FileType::Directory | FileType::Symlink)
    {
        p.check_writable()?;
    }
    cred.check(&attr, mode).map(|()| 0)
}

/// `access(2)`.
pub fn access(c: &mut Call) -> Result<u64> {
    do_access(c, AT_FDCWD, c.arg(0), c.uint(1), 0)
}

/// `faccessat(2)`, the call, which has no flags.
pub fn faccessat(c: &mut Call) -> Result<u64> {
    do_access(c, c.int(0), c.arg(1), c.uint(2), 0)
}

/// `faccessat2(2)`.
pub fn faccessat2(c: &mut Call) -> Result<u64> {
    let flags = c.uint(3);
    if flags & !(linux::AT_EACCESS | linux::AT_SYMLINK_NOFOLLOW | linux::AT_EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL);
    }
    do_access(c, c.int(0), c.arg(1), c.uint(2), flags)
}

/// One entry for `getdents64(2)`, padded.
fn dirent64(name: &[u8], ino: u64, next: u64, kind: u8, out: &mut Vec<u8>) {
    let len = (19 + name.len() + 1).next_multiple_of(8);
    let start = out.len();
    out.extend_from_slice(&ino.to_ne_bytes());
    out.extend_from_slice(&next.to_ne_bytes());
    out.extend_from_slice(&(len as u16).to_ne_bytes());
    out.push(kind);
    out.extend_from_slice(name);
    out.resize(start + len, 0);
}

/// One entry for `getdents(2)`: the type is its last byte.
fn dirent(name: &[u8], ino: u64, next: u64, kind: u8, out: &mut Vec<u8>) {
    let len = (18 + name.len() + 2).next_multiple_of(8);
    let start = out.len();
    out.extend_from_slice(&ino.to_ne_bytes());
    out.extend_from_slice(&next.to_ne_bytes());
    out.extend_from_slice(&(len as u16).to_ne_bytes());
    out.extend_from_slice(name);
    out.resize(start + len, 0);
    out[start + len - 1] = kind;
}

type Record = fn(&[u8], u64, u64, u8, &mut Vec<u8>);

/// Positions 0 and 1 are "." and ".."; mounts without an entry of their own come last.
const MOUNTS_AT: u64 = 1 << 62;

fn list(c: &Call, record: Record) -> Result<u64> {
    let file = c.file(0)?;
    let place = file.place().cloned().ok_or(Errno::ENOTDIR)?;
    if place.inode.kind() != FileType::Directory {
        return Err(Errno::ENOTDIR);
    }
    if place.inode.entry(b"").is_some_and(|e| e.gone) {
        return Err(Errno::ENOENT);
    }
    let room = c.uint(2) as usize;
    let mut position = file.with_position(|p| *p);
    let mut out: Vec<u8> = Vec::new();
    let mut full = false;
    let add = |name: &[u8], ino: u64, next: u64, kind: FileType, out: &mut Vec<u8>| {
        let before = out.len();
        record(name, ino, next, kind.dirent(), out);
        if out.len() > room {
            out.truncate(before);
            return false;
        }
        true
    };
    while position < 2 && !full {
        let (name, at): (&[u8], Location) =
            if position == 0 { (b".", place.clone()) } else { (b"..", place.above()) };
        let ino = at.inode.attr()?.ino;
        if add(name, ino, position + 1, FileType::Directory, &mut out) {
            position += 1;
        } else {
            full = true;
        }
    }
    while !full && position < MOUNTS_AT {
        let entries = match file.file().entries(position - 2) {
            Some(own) => own?,
            None => place.inode.list(position - 2, 256)?,
        };
        if entries.is_empty() {
            position = MOUNTS_AT;
            break;
        }
        for e in entries {
            if add(&e.name, e.ino, e.next + 2, e.kind, &mut out) {
                position = e.next + 2;
            } else {
                full = true;
                break;
            }
        }
    }
    if !full {
        let mounts = world().tree.mounts_in(&place);
        for (n, (name, root)) in mounts.iter().enumerate() {
            let at = MOUNTS_AT + n as u64;
            if at < position || place.inode.lookup(name).is_ok() {
                continue;
            }
            if !add(name, root.attr()?.ino, at + 1, FileType::Directory, &mut out) {
                full = true;
                break;
            }
            position = at + 1;
        }
    }
    if out.is_empty() && full {
        return Err(Errno::EINVAL);
    }
    user::write(c.arg(1), &out)?;
    file.with_position(|p| *p = position);
    file.note(linux::IN_ACCESS);
    Ok(out.len() as u64)
}

/// `getdents64(2)`.
pub fn getdents64(c: &mut Call) -> Result<u64> {
    list(c, dirent64)
}

/// `getdents(2)`.
pub fn getdents(c: &mut Call) -> Result<u64> {
    list(c, dirent)
}

/// `getcwd(2)`.
pub fn getcwd(c: &mut Call) -> Result<u64> {
    let cwd = c.task.fs.cwd.lock().clone();
    let mut path = cwd.path();
    if path.ends_with(b" (deleted)") {
        return Err(Errno::ENOENT);
    }
    let root = c.task.fs.root.lock().path();
    if root != b"/" {
        // Below a changed root, paths begin there.
        path = match path.strip_prefix(&root[..]) {
            Some([]) => b"/".to_vec(),
            Some(rest @ [b'/', ..]) => rest.to_vec(),
            // The C library makes ENOENT of it.
            _ => [b"(unreachable)", &path[..]].concat(),
        };
    }
    path.push(0);
    if path.len() > linux::PATH_MAX as usize {
        return Err(Errno::ENAMETOOLONG);
    }
    if path.len() as u64 > c.arg(1) {
        return Err(Errno::ERANGE);
    }
    user::write(c.arg(0), &path)?;
    Ok(path.len() as u64)
}

fn enter(task: &Task, place: Location) -> Result<u64> {
    if place.inode.kind() != FileType::Directory {
        return Err(Errno::ENOTDIR);
    }
    task.cred().check(&place.inode.attr()?, may::EXEC)?;
    *task.fs.cwd.change() = place;
    task.forget_view();
    Ok(0)
}

/// `chdir(2)`.
pub fn chdir(c: &mut Call) -> Result<u64> {
    let path = get_path(c.arg(0))?;
    enter(c.task, find(c.task, AT_FDCWD, &path, 0)?.place()?)
}

/// `fchdir(2)`.
pub fn fchdir(c: &mut Call) -> Result<u64> {
    let place = c.file_or_place(0)?.place().cloned().ok_or(Errno::ENOTDIR)?;
    enter(c.task, place)
}

/// `chroot(2)`.
pub fn chroot(c: &mut Call) -> Result<u64> {
    let path = get_path(c.arg(0))?;
    let place = find(c.task, AT_FDCWD, &path, 0)?.place()?;
    if place.inode.kind() != FileType::Directory {
        return Err(Errno::ENOTDIR);
    }
    c.task.cred().check(&place.inode.attr()?, may::EXEC)?;
    if !c.task.may(linux::CAP_SYS_CHROOT) {
        return Err(Errno::EPERM);
    }
    *c.task.fs.root.change() = place;
    c.task.forget_view();
    Ok(0)
}

fn make(c: &Call, dir: i32, path: u64, node: NewNode, mode: u32) -> Result<u64> {
    let path = get_path(path)?;
    let mode = new_mode(c.task, mode);
    with_walker(c.task, dir, &path, How::default(), |w, from| {
        let mut how = How { no_follow: true, makes: true, ..How::default() };
        loop {
            let walk = w.walk(from, &path, how)?;
            match w.create(&walk, node, mode) {
                // What is there is a better reason.
                Err(_) if walk.guessed => how.makes = false,
                made => return made.map(|_| 0),
            }
        }
    })
}

/// `mkdir(2)`.
pub fn mkdir(c: &mut Call) -> Result<u64> {
    make(c, AT_FDCWD, c.arg(0), NewNode::Directory, c.uint(1) & 0o1777)
}

/// `mkdirat(2)`.
pub fn mkdirat(c: &mut Call) -> Result<u64> {
    make(c, c.int(0), c.arg(1), NewNode::Directory, c.uint(2) & 0o1777)
}

fn make_node(c: &Call, dir: i32, path: u64, mode: u32, dev: u64) -> Result<u64> {
    let node = match mode & linux::S_IFMT {
        0 | linux::S_IFREG => NewNode::File,
        linux::S_IFIFO => NewNode::Special(FileType::Fifo, 0),
        linux::S_IFSOCK => NewNode::Special(FileType::Socket, 0),
        linux::S_IFCHR | linux::S_IFBLK => {
            if !c.task.may(linux::CAP_MKNOD) {
                return Err(Errno::EPERM);
            }
            NewNode::Special(FileType::from_mode(mode), dev)
        }
        _ => return Err(Errno::EINVAL),
    };
    make(c, dir, path, node, mode)
}

/// `mknod(2)`.
pub fn mknod(c: &mut Call) -> Result<u64> {
    make_node(c, AT_FDCWD, c.arg(0), c.uint(1), c.arg(2))
}

/// `mknodat(2)`.
pub fn mknodat(c: &mut Call) -> Result<u64> {
    make_node(c, c.int(0), c.arg(1), c.uint(2), c.arg(3))
}

fn make_symlink(c: &Call, target: u64, dir: i32, path: u64) -> Result<u64> {
    let target = get_path(target)?;
    if target.is_empty() {
        return Err(Errno::ENOENT);
    }
    make(c, dir, path, NewNode::Symlink(&target), 0o777)
}

/// `symlink(2)`.
pub fn symlink(c: &mut Call) -> Result<u64> {
    make_symlink(c, c.arg(0), AT_FDCWD, c.arg(1))
}

/// `symlinkat(2)`.
pub fn symlinkat(c: &mut Call) -> Result<u64> {
    make_symlink(c, c.arg(0), c.int(1), c.arg(2))
}

fn remove(c: &Call, dir: i32, path: u64, is_dir: bool) -> Result<u64> {
    remove_path(c.task, dir, &get_path(path)?, is_dir).map(|()| 0)
}

/// Removes a name.
pub fn remove_path(task: &Task, dir: i32, path: &[u8], is_dir: bool) -> Result<()> {
    match path.split(|b| *b == b'/').rfind(|part| !part.is_empty()) {
        Some(b".") if is_dir => return Err(Errno::EINVAL),
        Some(b"..") if is_dir => return Err(Errno::ENOTEMPTY),
        _ => {}
    }
    with_walker(task, dir, path, How::default(), |w, from| {
        let walk = w.walk(from, path, How { no_follow: true, ..How::default() })?;
        if !is_dir && walk.slash && matches!(walk.target, Target::Found(_)) {
            return Err(Errno::ENOTDIR);
        }
        w.remove(&walk, is_dir)
    })
}

/// `rmdir(2)`.
pub fn rmdir(c: &mut Call) -> Result<u64> {
    remove(c, AT_FDCWD, c.arg(0), true)
}

/// `unlink(2)`.
pub fn unlink(c: &mut Call) -> Result<u64> {
    remove(c, AT_FDCWD, c.arg(0), false)
}

/// `unlinkat(2)`.
pub fn unlinkat(c: &mut Call) -> Result<u64> {
    if c.uint(2) & !linux::AT_REMOVEDIR != 0 {
        return Err(Errno::EINVAL);
    }
    remove(c, c.int(0), c.arg(1), c.uint(2) & linux::AT_REMOVEDIR != 0)
}

fn do_rename(c: &Call, from: (i32, u64), to: (i32, u64), flags: u32) -> Result<u64> {
    if flags & !(linux::RENAME_NOREPLACE | linux::RENAME_EXCHANGE) != 0
        || flags == linux::RENAME_NOREPLACE | linux::RENAME_EXCHANGE
    {
        return Err(Errno::EINVAL);
    }
    let (a, b) = (get_path(from.1)?, get_path(to.1)?);
    let how = How { no_follow: true, ..How::default() };
    let first = walk(c.task, from.0, &a, how)?;
    if let Target::Found(what) = &first.target {
        // What it holds back may take long to write, and others need not wait for that. A file that has lost some of it does not
        // take the place of a good one.
        what.inode.write_back()?;
    }
    first.dir.mount.rename_alone(|| {
        let a = walk(c.task, from.0, &a, how)?;
        with_walker(c.task, to.0, &b, how, |w, start| {
            let b = w.walk(start, &b, how)?;
            w.rename(&a, &b, flags).map(|()| 0)
        })
    })
}

/// `rename(2)`.
pub fn rename(c: &mut Call) -> Result<u64> {
    do_rename(c, (AT_FDCWD, c.arg(0)), (AT_FDCWD, c.arg(1)), 0)
}

/// `renameat(2)`.
pub fn renameat(c: &mut Call) -> Result<u64> {
    do_rename(c, (c.int(0), c.arg(1)), (c.int(2), c.arg(3)), 0)
}

/// `renameat2(2)`.
pub fn renameat2(c: &mut Call) -> Result<u64> {
    do_rename(c, (c.int(0), c.arg(1)), (c.int(2), c.arg(3)), c.uint(4))
}

fn do_link(c: &Call, from: (i32, u64), to: (i32, u64), flags: u32) -> Result<u64> {
    if flags & !(linux::AT_SYMLINK_FOLLOW | linux::AT_EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL);
    }
    let path = get_path(from.1)?;
    let follow = flags & linux::AT_SYMLINK_FOLLOW != 0;
    let look = flags & linux::AT_EMPTY_PATH | if follow { 0 } else { linux::AT_SYMLINK_NOFOLLOW };
    let what = find(c.task, from.0, &path, look)?.place().map_err(|_| Errno::EXDEV)?;
    let path = get_path(to.1)?;
    with_walker(c.task, to.0, &path, How::default(), |w, start| {
        let walk = w.walk(start, &path, How { no_follow: true, ..How::default() })?;
        if walk.slash && matches!(walk.target, Target::Missing) {
            return Err(Errno::ENOENT);
        }
        w.link(&what, &walk).map(|()| 0)
    })
}

/// `link(2)`.
pub fn link(c: &mut Call) -> Result<u64> {
    do_link(c, (AT_FDCWD, c.arg(0)), (AT_FDCWD, c.arg(1)), 0)
}

/// `linkat(2)`.
pub fn linkat(c: &mut Call) -> Result<u64> {
    do_link(c, (c.int(0), c.arg(1)), (c.int(2), c.arg(3)), c.uint(4))
}

fn do_readlink(c: &Call, dir: i32, path: u64, buf: u64, len: u64) -> Result<u64> {
    if (len as i32) <= 0 {
        return Err(Errno::EINVAL);
    }
    let path = get_path(path)?;
    if path.is_empty() && dir == AT_FDCWD {
        return Err(Errno::ENOENT);
    }
    let place = find(c.task, dir, &path, linux::AT_SYMLINK_NOFOLLOW | linux::AT_EMPTY_PATH)?.place()?;
    let target = place.inode.read_link()?;
    let n = target.len().min(len as usize);
    user::write(buf, &target[..n])?;
    Ok(n as u64)
}

/// `readlink(2)`.
pub fn readlink(c: &mut Call) -> Result<u64> {
    do_readlink(c, AT_FDCWD, c.arg(0), c.arg(1), c.arg(2))
}

/// `readlinkat(2)`.
pub fn readlinkat(c: &mut Call) -> Result<u64> {
    do_readlink(c, c.int(0), c.arg(1), c.arg(2), c.arg(3))
}

fn change(task: &Task, object: Object, change: SetAttr) -> Result<u64> {
    // Of a pipe nobody sees its mode but its holders.
    let Some(place) = object.inode_at() else { return Ok(0) };
    place.check_writable()?;
    let attr = place.inode.attr()?;
    let cred = task.cred();
    let mut change = change;
    if let Some(mode) = change.mode {
        cred.owns(&attr)?;
        if !cred.in_group(attr.gid) && !cred.may(linux::CAP_FSETID) {
            change.mode = Some(mode & !linux::S_ISGID);
        }
        if attr.kind() == FileType::Regular {
            // Of a directory, those bits lend nothing, and common ones have them.
            note_mode(mode);
        }
    }
    let own = cred.uid == attr.uid;
    let owner = change.uid.is_none_or(|uid| own && uid == attr.uid);
    let group = change.gid.is_none_or(|gid| own && cred.in_group(gid));
    if !(owner && group || cred.may(linux::CAP_CHOWN)) {
        return Err(Errno::EPERM);
    }
    if (change.uid.is_some() || change.gid.is_some())
        && attr.kind() == FileType::Regular
        && attr.mode & 0o6000 != 0
    {
        // A new owner is not lent the old one's rights.
        let group = if attr.mode & linux::S_IXGRP != 0 { linux::S_ISGID } else { 0 };
        change.mode = Some(attr.mode & 0o7777 & !(linux::S_ISUID | group));
    }
    place.set_attr(&change, &cred).map(|()| 0)
}

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode & 0o7777), ..SetAttr::default() }
}

/// `chmod(2)`.
pub fn chmod(c: &mut Call) -> Result<u64> {
    let path = get_path(c.arg(0))?;
    change(c.task, find(c.task, AT_FDCWD, &path, 0)?, mode(c.uint(1)))
}

/// `fchmod(2)`.
pub fn fchmod(c: &mut Call) -> Result<u64> {
    let file = c.file(0)?;
    change(c.task, Object::Open(file), mode(c.uint(1)))
}

/// `fchmodat(2)`.
pub fn fchmodat(c: &mut Call) -> Result<u64> {
    let path = get_path(c.arg(1))?;
    change(c.task, find(c.task, c.int(0), &path, 0)?, mode(c.uint(2)))
}

/// `fchmodat2(2)`.
pub fn fchmodat2(c: &mut Call) -> Result<u64> {
    if c.uint(3) & !(linux::AT_SYMLINK_NOFOLLOW | linux::AT_EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL);
    }
    let path = get_path(c.arg(1))?;
    let object = find(c.task, c.int(0), &path, c.uint(3))?;
    if object.attr()?.kind() == FileType::Symlink {
        return Err(Errno::EOPNOTSUPP);
    }
    change(c.task, object, mode(c.uint(2)))
}

fn owner(uid: u32, gid: u32) -> SetAttr {
    let some = |id: u32| (id != u32::MAX).then_some(id);
    SetAttr { uid: some(uid), gid: some(gid), ..SetAttr::default() }
}

/// `chown(2)`.
pub fn chown(c: &mut Call) -> Result<u64> {
    let path = get_path(c.arg(0))?;
    change(c.task, find(c.task, AT_FDCWD, &path, 0)?, owner(c.uint(1), c.uint(2)))
}

/// `lchown(2)`.
pub fn lchown(c: &mut Call) -> Result<u64> {
    let path = get_path(c.arg(0))?;
    let object = find(c.task, AT_FDCWD, &path, linux::AT_SYMLINK_NOFOLLOW)?;
    change(c.task, object, owner(c.uint(1), c.uint(2)))
}

/// `fchown(2)`.
pub fn fchown(c: &mut Call) -> Result<u64> {
    let file = c.file(0)?;
    change(c.task, Object::Open(file), owner(c.uint(1), c.uint(2)))
}

/// `fchownat(2)`.
pub fn fchownat(c: &mut Call) -> Result<u64> {
    if c.uint(4) & !(linux::AT_SYMLINK_NOFOLLOW | linux::AT_EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL);
    }
    let path = get_path(c.arg(1))?;
    let object = find(c.task, c.int(0), &path, c.uint(4))?;
    change(c.task, object, owner(c.uint(2), c.uint(3)))
}

/// `umask(2)`.
pub fn umask(c: &mut Call) -> Result<u64> {
    Ok(u64::from(c.task.fs.umask.swap(c.uint(0) & 0o777, Ordering::Relaxed)))
}

fn set_times(task: &Task, object: Object, times: Option<[Timespec; 2]>) -> Result<u64> {
    const UTIME_NOW: i64 = linux::UTIME_NOW as i64;
    const UTIME_OMIT: i64 = linux::UTIME_OMIT as i64;
    let now = Time::now();
    let one = |t: Timespec| match t.nsec {
        UTIME_NOW => Ok(Some(now)),
        UTIME_OMIT => Ok(None),
        n if (0..1_000_000_000).contains(&n) => Ok(Some(Time { sec: t.sec, nsec: n as u32 })),
        _ => Err(Errno::EINVAL),
    };
    let present = |t: Timespec| t.nsec == UTIME_NOW;
    let (atime, mtime, both_now) = match times {
        None => (Some(now), Some(now), true),
        Some([a, m]) => (one(a)?, one(m)?, present(a) && present(m)),
    };
    // What is set, is it all the present time?
    let now = times.is_none_or(|t| t.iter().all(|&t| present(t) || t.nsec == UTIME_OMIT));
    let Some(place) = object.inode_at() else { return Ok(0) };
    if atime.is_none() && mtime.is_none() {
        return Ok(0);
    }
    place.check_writable()?;
    let (attr, cred) = (place.inode.attr()?, task.cred());
    let own = cred.owns(&attr);
    if both_now {
        own.or_else(|_| cred.check(&attr, may::WRITE))?;
    } else {
        own?;
    }
    place.set_attr(&SetAttr { atime, mtime, now, ..SetAttr::default() }, &cred).map(|()| 0)
}

/// `utimensat(2)`.
pub fn utimensat(c: &mut Call) -> Result<u64> {
    let times = if c.arg(2) == 0 { None } else { Some([get(c.arg(2))?, get(c.arg(2) + 16)?]) };
    let known = if c.arg(1) == 0 { 0 } else { linux::AT_SYMLINK_NOFOLLOW | linux::AT_EMPTY_PATH };
    if c.uint(3) & !known != 0 {
        return Err(Errno::EINVAL);
    }
    set_times(c.task, find_or_open(c, c.uint(3))?, times)
}

/// What has its times set by a descriptor and a path: without a path, what the descriptor is of.
fn find_or_open(c: &Call, flags: u32) -> Result<Object> {
    if c.arg(1) != 0 {
        let path = get_path(c.arg(1))?;
        return find(c.task, c.int(0), &path, flags);
    }
    let file = c.file(0)?;
    Ok(match file.place() {
        Some(p) => Object::Place(p.clone()),
        None => Object::Open(file),
    })
}

fn timevals(addr: u64) -> Result<Option<[Timespec; 2]>> {
    if addr == 0 {
        return Ok(None);
    }
    let one = |at: u64| -> Result<Timespec> {
        let t: Timeval = get(at)?;
        if !(0..1_000_000).contains(&t.usec) {
            return Err(Errno::EINVAL);
        }
        Ok(Timespec { sec: t.sec, nsec: t.usec * 1000 })
    };
    Ok(Some([one(addr)?, one(addr + 16)?]))
}

/// `utimes(2)`.
pub fn utimes(c: &mut Call) -> Result<u64> {
    let path = get_path(c.arg(0))?;
    set_times(c.task, find(c.task, AT_FDCWD, &path, 0)?, timevals(c.arg(1))?)
}

/// `futimesat(2)`.
pub fn futimesat(c: &mut Call) -> Result<u64> {
    let times = timevals(c.arg(2))?;
    set_times(c.task, find_or_open(c, 0)?, times)
}

/// `utime(2)`.
pub fn utime(c: &mut Call) -> Result<u64> {
    let path = get_path(c.arg(0))?;
    let times = if c.arg(1) == 0 {
        None
    } else {
        let t: [i64; 2] = [get(c.arg(1))?, get(c.arg(1) + 8)?];
        Some(t.map(|sec| Timespec { sec, nsec: 0 }))
    };
    set_times(c.task, find(c.task, AT_FDCWD, &path, 0)?, times)
}

/// `truncate(2)`.
pub fn truncate(c: &mut Call) -> Result<u64> {
    if (c.arg(1) as i64) < 0 {
        return Err(Errno::EINVAL);
    }
    let path = get_path(c.arg(0))?;
    let place = find(c.task, AT_FDCWD, &path, 0)?.place()?;
    match place.inode.kind() {
        FileType::Regular => {}
        FileType::Directory => return Err(Errno::EISDIR),
        _ => return Err(Errno::EINVAL),
    }
    let cred = c.task.cred();
    let attr = place.inode.attr()?;
    cred.check(&attr, may::WRITE)?;
    note_mode(attr.mode);
    place.check_writable()?;
    let _writer = InUse::to_write(&place.inode)?;
    super::fd::file_size_limit(c.task, c.arg(1), || place.inode.attr())?;
    place.set_attr(&SetAttr { size: Some(c.arg(1)), ..SetAttr::default() }, &cred)?;
    if may_lend() {
        super::fd::stop_lending(c.task, &place);
    }
    crate::extents::was_cut(c.task, place.inode.as_any(), c.arg(1));
    Ok(0)
}

fn put_statfs(addr: u64, s: &StatFs, read_only: bool) -> Result<u64> {
    const ST_RDONLY: i64 = 1;
    const ST_VALID: i64 = 0x20;
    const ST_RELATIME: i64 = 0x1000;
    let out = StatfsC {
        kind: s.kind as i64,
        bsize: s.bsize as i64,
        blocks: s.blocks,
        bfree: s.bfree,
        bavail: s.bavail,
        files: s.files,
        ffree: s.ffree,
        namelen: s.namelen as i64,
        frsize: s.bsize as i64,
        flags: ST_VALID | ST_RELATIME | if read_only { ST_RDONLY } else { 0 },
        ..StatfsC::default()
    };
    put(addr, &out).map(|()| 0)
}

/// `statfs(2)`.
pub fn statfs(c: &mut Call) -> Result<u64> {
    let path = get_path(c.arg(0))?;
    let place = find(c.task, AT_FDCWD, &path, 0)?.place()?;
    put_statfs(c.arg(1), &place.mount.fs.stat()?, place.mount.read_only)
}

/// `fstatfs(2)`.
pub fn fstatfs(c: &mut Call) -> Result<u64> {
    let file = c.file_or_place(0)?;
    match file.place() {
        Some(p) => put_statfs(c.arg(1), &p.mount.fs.stat()?, p.mount.read_only),
        None => {
            // PIPEFS_MAGIC stands for all that has no file system.
            let s = StatFs { kind: 0x5049_5045, bsize: 4096, namelen: 255, ..StatFs::default() };
            put_statfs(c.arg(1), &s, false)
        }
    }
}

/// `memfd_create(2)`.
pub fn memfd_create(c: &mut Call) -> Result<u64> {
    let flags = c.uint(1);
    let known = linux::MFD_CLOEXEC | linux::MFD_ALLOW_SEALING | linux::MFD_NOEXEC_SEAL | linux::MFD_EXEC;
    if flags & linux::MFD_HUGETLB != 0 {
        return Err(unsupported(c.task, "memfd_create(MFD_HUGETLB)", Errno::EINVAL));
    }
    let both = linux::MFD_EXEC | linux::MFD_NOEXEC_SEAL;
    if flags & !known != 0 || flags & both == both {
        return Err(Errno::EINVAL);
    }
    let name = get_string(c.arg(0), 249, Errno::EINVAL)?;
    let node = world().shm.anonymous(&[b"memfd:", &name[..]].concat(), &c.task.cred());
    if flags & (linux::MFD_ALLOW_SEALING | linux::MFD_NOEXEC_SEAL) != 0 {
        node.allow_sealing();
    }
    if flags & linux::MFD_NOEXEC_SEAL != 0 {
        node.never_runs()?;
    }
    let file = RcuArc::new(OpenFile::new(node, linux::O_RDWR));
    c.install(file, flags & linux::MFD_CLOEXEC != 0)
}

fn xattr_name(addr: u64) -> Result<Vec<u8>> {
    let name = get_string(addr, 255, Errno::ERANGE)?;
    if name.is_empty() { Err(Errno::ERANGE) } else { Ok(name) }
}

fn put_xattr(value: &[u8], addr: u64, size: u64) -> Result<u64> {
    if size == 0 {
        return Ok(value.len() as u64);
    }
    if value.len() as u64 > size {
        return Err(Errno::ERANGE);
    }
    user::write(addr, value)?;
    Ok(value.len() as u64)
}

fn xattr_object(c: &Call, follow: bool) -> Result<Location> {
    place(c.task, &get_path(c.arg(0))?, follow)
}

/// `none`: the error if it has no place, as a pipe.
fn xattr_file(c: &Call, none: Errno) -> Result<Location> {
    let file = c.file(0)?;
    file.place().cloned().ok_or(none)
}

/// EOPNOTSUPP, EPERM and the like for who may not use an extended attribute (`xattr(7)`).
fn check_xattr(task: &Task, place: &Location, name: &[u8], write: bool) -> Result<()> {
    if write {
        place.check_writable()?;
    }
    let denied = if write { Errno::EPERM } else { Errno::ENODATA };
    if name.starts_with(b"trusted.") {
        return if task.may(linux::CAP_SYS_ADMIN) { Ok(()) } else { Err(denied) };
    }
    if write && name.starts_with(b"security.") {
        let needed = if name == FileCapabilities::NAME { linux::CAP_SETFCAP } else { linux::CAP_SYS_ADMIN };
        return if task.may(needed) { Ok(()) } else { Err(denied) };
    }
    if name.starts_with(b"system.") || name.starts_with(b"security.") {
        return if write { task.cred().owns(&place.inode.attr()?) } else { Ok(()) };
    }
    let Some(rest) = name.strip_prefix(b"user.") else { return Err(Errno::EOPNOTSUPP) };
    let (attr, cred) = (place.inode.attr()?, task.cred());
    match attr.kind() {
        FileType::Regular => {}
        FileType::Directory => {
            if write && attr.mode & linux::S_ISVTX != 0 {
                cred.owns(&attr)?;
            }
        }
        _ => return Err(denied),
    }
    cred.check(&attr, if write { may::WRITE } else { may::READ })?;
    if rest.is_empty() { Err(Errno::EINVAL) } else { Ok(()) }
}

fn do_getxattr(c: &Call, place: &Location) -> Result<u64> {
    let name = xattr_name(c.arg(1))?;
    check_xattr(c.task, place, &name, false)?;
    put_xattr(&place.inode.get_xattr(&name)?, c.arg(2), c.arg(3))
}

fn do_listxattr(c: &Call, place: &Location) -> Result<u64> {
    let mut names = place.inode.list_xattr()?;
    if !c.task.may(linux::CAP_SYS_ADMIN) {
        let shown = names.split_inclusive(|b| *b == 0).filter(|n| !n.starts_with(b"trusted."));
        names = shown.flatten().copied().collect();
    }
    put_xattr(&names, c.arg(1), c.arg(2))
}

fn do_setxattr(c: &Call, place: impl FnOnce() -> Result<Location>) -> Result<u64> {
    const VALUE_MAX: u64 = 64 << 10;
    let (addr, size, flags) = (c.arg(2), c.arg(3), c.uint(4));
    if flags & !(linux::XATTR_CREATE | linux::XATTR_REPLACE) != 0 {
        return Err(Errno::EINVAL);
    }
    let name = xattr_name(c.arg(1))?;
    if size > VALUE_MAX {
        return Err(Errno::E2BIG);
    }
    let mut value = atoll_mem::buffer(size as usize)?;
    user::read(addr, &mut value)?;
    let place = place()?;
    if name == FileCapabilities::NAME && !value.is_empty() && !FileCapabilities::is_valid(&value) {
        return Err(Errno::EINVAL);
    }
    check_xattr(c.task, &place, &name, true)?;
    place.set_xattr(&name, Some(&value), flags, &c.task.cred()).map(|()| 0)
}

fn do_removexattr(c: &Call, place: &Location) -> Result<u64> {
    let name = xattr_name(c.arg(1))?;
    check_xattr(c.task, place, &name, true)?;
    place.set_xattr(&name, None, 0, &c.task.cred()).map(|()| 0)
}

/// `setxattr(2)`.
pub fn setxattr(c: &mut Call) -> Result<u64> {
    do_setxattr(c, || xattr_object(c, true))
}

/// `lsetxattr(2)`.
pub fn lsetxattr(c: &mut Call) -> Result<u64> {
    do_setxattr(c, || xattr_object(c, false))
}

/// `fsetxattr(2)`.
pub fn fsetxattr(c: &mut Call) -> Result<u64> {
    do_setxattr(c, || xattr_file(c, Errno::EPERM))
}

/// `getxattr(2)`.
pub fn getxattr(c: &mut Call) -> Result<u64> {
    do_getxattr(c, &xattr_object(c, true)?)
}

/// `lgetxattr(2)`.
pub fn lgetxattr(c: &mut Call) -> Result<u64> {
    do_getxattr(c, &xattr_object(c, false)?)
}

/// `fgetxattr(2)`.
pub fn fgetxattr(c: &mut Call) -> Result<u64> {
    do_getxattr(c, &xattr_file(c, Errno::ENODATA)?)
}

/// `listxattr(2)`.
pub fn listxattr(c: &mut Call) -> Result<u64> {
    do_listxattr(c, &xattr_object(c, true)?)
}

/// `llistxattr(2)`.
pub fn llistxattr(c: &mut Call) -> Result<u64> {
    do_listxattr(c, &xattr_object(c, false)?)
}

/// `flistxattr(2)`.
pub fn flistxattr(c: &mut Call) -> Result<u64> {
    do_listxattr(c, &xattr_file(c, Errno::EOPNOTSUPP)?)
}

/// `removexattr(2)`.
pub fn removexattr(c: &mut Call) -> Result<u64> {
    do_removexattr(c, &xattr_object(c, true)?)
}

/// `lremovexattr(2)`.
pub fn lremovexattr(c: &mut Call) -> Result<u64> {
    do_removexattr(c, &xattr_object(c, false)?)
}

/// `fremovexattr(2)`.
pub fn fremovexattr(c: &mut Call) -> Result<u64> {
    do_removexattr(c, &xattr_file(c, Errno::EPERM)?)
}
