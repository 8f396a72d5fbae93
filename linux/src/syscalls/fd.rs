//! Calls on descriptors: reading, writing, duplicating, controlling.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use atoll_abi::grid::Quota;
use atoll_abi::layout::is_user_range;
use atoll_abi::{Errno, Result};
use atoll_fs::chunks::Scratch;
use atoll_fs::node::At;
use atoll_fs::pipe::{Pipe, PipeEnd};
use atoll_fs::tmp::TmpNode;
use atoll_fs::{Attr, Cred, FileType, Location, OpenFile, SetAttr, Sink, Source};
use atoll_mem::io::{Piece, in_part, reading, writing};
use atoll_mem::user;
use atoll_sync::RcuArc;
use linux_raw_sys::{general as linux, ioctl as ctl, net};
use zerocopy::IntoBytes;

use super::events::held;
use super::{Call, unsupported};
use crate::asynchronous;
use crate::files::{FILES_MAX, FileRef};
use crate::ipc::mqueue;
use crate::proc::{self, OfNamespace};
use crate::process::{Task, world};
use crate::pty::Master;
use crate::socket::SocketFile;
use crate::types::{Flock, Iovec, Siginfo, get, put};
use crate::{jobs, signal};

/// Most bytes that one call transfers (Linux's MAX_RW_COUNT).
pub const TRANSFER_MAX: u64 = 0x7fff_f000;
/// Most buffers of one call (UIO_MAXIOV).
pub(super) const IOV_MAX: u64 = 1024;

/// The signals of failed writes: SIGPIPE where nobody reads any more, SIGXFSZ
/// where a file would get longer than RLIMIT_FSIZE.
fn write_signal(task: &Task, e: Errno) -> Errno {
    let info = match e {
        Errno::EPIPE => {
            let (pid, uid) = (task.process.pid, task.ids().ruid);
            Siginfo::from_user(linux::SIGPIPE, 0, pid, uid, 0)
        }
        Errno::EFBIG if task.process.max_file_size.load(Ordering::Relaxed) != u64::MAX => {
            Siginfo::from_kernel(linux::SIGXFSZ, 0)
        }
        _ => return e,
    };
    if let Some(me) = crate::process::find_task(task.tid()) {
        signal::send_task(&me, info);
    }
    e
}

/// Buffers of most calls, at most.
const FEW: usize = 8;

/// Room for a list of the program's buffers. A short one needs no memory.
#[derive(Default)]
pub struct Pieces {
    few: [Piece; FEW],
    many: Vec<Piece>,
}

impl Pieces {
    /// Reads a list, and checks it.
    pub fn read(&mut self, addr: u64, count: u64) -> Result<&[Piece]> {
        if count > IOV_MAX {
            return Err(Errno::EINVAL);
        }
        let count = count as usize;
        let list = if count <= FEW {
            &mut self.few[..count]
        } else {
            self.many.resize(count, Piece::default());
            &mut self.many[..]
        };
        let mut vectors = [Iovec::default(); FEW];
        let mut total = 0u64;
        for (n, list) in list.chunks_mut(FEW).enumerate() {
            let vectors = &mut vectors[..list.len()];
            user::read(addr + (n * FEW * size_of::<Iovec>()) as u64, vectors.as_mut_bytes())?;
            for (piece, v) in list.iter_mut().zip(vectors) {
                if v.len > i64::MAX as u64 {
                    return Err(Errno::EINVAL);
                }
                if !is_user_range(v.base, v.len) {
                    return Err(Errno::EFAULT);
                }
                let len = v.len.min(TRANSFER_MAX - total);
                total += len;
                *piece = Piece { addr: v.base, len };
            }
        }
        Ok(list)
    }
}

/// A buffer of the program's, for a file that is open for this or isn't. Linux looks where all of it would be, even if it is none or
/// too much.
fn one(is_open: bool, addr: u64, len: u64) -> Result<(u64, u64)> {
    if !is_open {
        return Err(Errno::EBADF);
    }
    if is_user_range(addr, len) { Ok((addr, len.min(TRANSFER_MAX))) } else { Err(Errno::EFAULT) }
}

/// Reads from the current position, or from `at`.
fn read_to(file: &FileRef, sink: &mut Sink, at: Option<u64>) -> Result<u64> {
    let whole = || file.file().seekable();
    let n = match at {
        None => reading(sink, whole, |s| file.read(s)),
        Some(at) => reading(sink, whole, |s| file.read_at(s, at + s.done() as u64)),
    };
    n.map(|n| n as u64)
}

/// Writes to the current position, or to `at`, with the signals that go with failure.
fn write_from(task: &Task, file: &FileRef, source: &mut Source, at: Option<u64>) -> Result<u64> {
    let whole = || file.file().seekable() || file.as_type::<PipeEnd>().is_some();
    let most = task.process.max_file_size.load(Ordering::Relaxed);
    let n = match at {
        None => writing(source, whole, |s| file.write(s, most)),
        Some(at) => writing(source, whole, |s| file.write_at(s, at + s.done() as u64, most)),
    };
    written(task, file, n)
}

/// What a write comes to, with the signals that go with failure.
fn written(task: &Task, file: &FileRef, done: Result<usize>) -> Result<u64> {
    match done {
        Ok(n) => {
            if n > 0 {
                changed_by(task, file);
            }
            Ok(n as u64)
        }
        // Sockets for messages give only the error.
        Err(e) if file.as_type::<SocketFile>().is_some_and(|s| s.kind != net::SOCK_STREAM) => Err(e),
        Err(e) => Err(write_signal(task, e)),
    }
}

/// A file was written to or cut: unless who did it may leave them, the bits go by which it lends its owner's rights.
#[inline]
fn changed_by(task: &Task, file: &FileRef) {
    if atoll_fs::open::may_lend()
        && let Some(place) = file.place()
    {
        stop_lending(task, place);
    }
}

/// Takes the set-user-ID bit from a regular file, and the set-group-ID bit if it has a meaning or the group isn't the caller's (Linux's
/// `file_remove_privs`).
pub fn stop_lending(task: &Task, place: &Location) {
    let cred = task.cred();
    // First of all: what is asked below may take a message.
    if cred.may(linux::CAP_FSETID) {
        return;
    }
    let Ok(attr) = place.inode.permissions() else { return };
    let (user, group) = (attr.mode & linux::S_ISUID, attr.mode & linux::S_ISGID);
    if user | group == 0 || place.inode.kind() != FileType::Regular {
        return;
    }
    let stays = attr.mode & linux::S_IXGRP == 0 && cred.in_group(attr.gid);
    let goes = user | if stays { 0 } else { group };
    if goes != 0 {
        // By the system itself: the caller need not own the file. If it fails, the file has gone.
        let mode = Some(attr.mode & 0o7777 & !goes);
        let _ = place.set_attr(&SetAttr { mode, ..SetAttr::default() }, &Cred::root());
    }
}

/// A read is over: it counts for the task.
#[inline]
fn has_read(task: &Task, done: Result<u64>) -> Result<u64> {
    task.has_moved(0, done.unwrap_or(0));
    done
}

/// The same of a write.
#[inline]
fn has_written(task: &Task, done: Result<u64>) -> Result<u64> {
    task.has_moved(1, done.unwrap_or(0));
    done
}

/// The same of what does both.
fn has_transferred(task: &Task, done: Result<u64>) -> Result<u64> {
    has_written(task, has_read(task, done))
}

/// `read(2)`.
pub fn read(c: &mut Call) -> Result<u64> {
    let file = c.file(0)?;
    let (addr, len) = one(file.readable(), c.arg(1), c.arg(2))?;
    has_read(c.task, read_to(&file, &mut Sink::one(addr, len), None))
}

/// `write(2)`.
pub fn write(c: &mut Call) -> Result<u64> {
    let file = c.file(0)?;
    let (addr, len) = one(file.writable(), c.arg(1), c.arg(2))?;
    has_written(c.task, write_from(c.task, &file, &mut Source::one(addr, len), None))
}

fn offset(n: u64) -> Result<u64> {
    if (n as i64) < 0 { Err(Errno::EINVAL) } else { Ok(n) }
}

/// The file of a call that says where in it. ESPIPE: it has no places.
fn with_positions(c: &Call) -> Result<FileRef> {
    let file = c.file(0)?;
    let inner = file.file();
    if inner.seekable() || inner.keeps_position() { Ok(file) } else { Err(Errno::ESPIPE) }
}

/// `pread64(2)`.
pub fn pread(c: &mut Call) -> Result<u64> {
    let file = with_positions(c)?;
    let at = offset(c.arg(3))?;
    let (addr, len) = one(file.readable(), c.arg(1), c.arg(2))?;
    offset(at.wrapping_add(c.arg(2)))?;
    has_read(c.task, read_to(&file, &mut Sink::one(addr, len), Some(at)))
}

/// `pwrite64(2)`.
pub fn pwrite(c: &mut Call) -> Result<u64> {
    let file = with_positions(c)?;
    let at = offset(c.arg(3))?;
    let (addr, len) = one(file.writable(), c.arg(1), c.arg(2))?;
    offset(at.wrapping_add(c.arg(2)))?;
    has_written(c.task, write_from(c.task, &file, &mut Source::one(addr, len), Some(at)))
}

/// `readv(2)`.
pub fn readv(c: &mut Call) -> Result<u64> {
    let file = c.file(0)?;
    let mut room = Pieces::default();
    let list = room.read(c.arg(1), c.arg(2))?;
    has_read(c.task, read_to(&file, &mut Sink::user(list), None))
}

/// `writev(2)`.
pub fn writev(c: &mut Call) -> Result<u64> {
    let file = c.file(0)?;
    let mut room = Pieces::default();
    let list = room.read(c.arg(1), c.arg(2))?;
    has_written(c.task, write_from(c.task, &file, &mut Source::user(list), None))
}

/// `preadv(2)`.
pub fn preadv(c: &mut Call) -> Result<u64> {
    let file = c.file(0)?;
    let at = offset(c.arg(3))?;
    let mut room = Pieces::default();
    let list = room.read(c.arg(1), c.arg(2))?;
    has_read(c.task, read_to(&file, &mut Sink::user(list), Some(at)))
}

/// `pwritev(2)`.
pub fn pwritev(c: &mut Call) -> Result<u64> {
    let file = c.file(0)?;
    let at = offset(c.arg(3))?;
    let mut room = Pieces::default();
    let list = room.read(c.arg(1), c.arg(2))?;
    has_written(c.task, write_from(c.task, &file, &mut Source::user(list), Some(at)))
}

/// The RWF_... flags that a read can have. Of a file with positions they only hint.
pub const READ_FLAGS: u32 = linux::RWF_HIPRI | linux::RWF_NOWAIT;
/// And those that a write can have.
pub const WRITE_FLAGS: u32 = linux::RWF_HIPRI | linux::RWF_DSYNC | linux::RWF_SYNC | linux::RWF_APPEND;

/// Reads with flags. EOPNOTSUPP: other ones than [`READ_FLAGS`].
pub fn read_flagged(file: &FileRef, sink: &mut Sink, at: Option<u64>, flags: u32) -> Result<u64> {
    if flags & !READ_FLAGS != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    if flags & linux::RWF_NOWAIT != 0 && at.is_none() && !file.file().seekable() {
        return reading(sink, in_part, |s| file.read_at_once(s)).map(|n| n as u64);
    }
    read_to(file, sink, at)
}

/// Writes with flags. EOPNOTSUPP: other ones than [`WRITE_FLAGS`].
pub fn write_flagged(
    task: &Task,
    file: &FileRef,
    source: &mut Source,
    at: Option<u64>,
    flags: u32,
) -> Result<u64> {
    if flags & !WRITE_FLAGS != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let n = if flags & linux::RWF_APPEND != 0 && file.file().seekable() {
        let most = task.process.max_file_size.load(Ordering::Relaxed);
        // As a whole, like any write to a file.
        let done = writing(source, || true, |s| file.append(s, most, at.is_none()));
        written(task, file, done)?
    } else {
        write_from(task, file, source, at)?
    };
    if flags & (linux::RWF_DSYNC | linux::RWF_SYNC) != 0 {
        file.sync(flags & linux::RWF_SYNC == 0)?;
    }
    Ok(n)
}

/// Where the calls with flags read and write: -1 is the current position.
fn position(n: u64) -> Result<Option<u64>> {
    if n == u64::MAX { Ok(None) } else { offset(n).map(Some) }
}

/// `preadv2(2)`.
pub fn preadv2(c: &mut Call) -> Result<u64> {
    let (file, at) = (c.file(0)?, position(c.arg(3))?);
    let mut room = Pieces::default();
    let list = room.read(c.arg(1), c.arg(2))?;
    has_read(c.task, read_flagged(&file, &mut Sink::user(list), at, c.uint(5)))
}

/// `pwritev2(2)`.
pub fn pwritev2(c: &mut Call) -> Result<u64> {
    let (file, at) = (c.file(0)?, position(c.arg(3))?);
    let mut room = Pieces::default();
    let list = room.read(c.arg(1), c.arg(2))?;
    has_written(c.task, write_flagged(c.task, &file, &mut Source::user(list), at, c.uint(5)))
}

/// `lseek(2)`.
pub fn lseek(c: &mut Call) -> Result<u64> {
    c.file(0)?.seek(c.arg(1) as i64, c.uint(2))
}

/// `close(2)`.
pub fn close(c: &mut Call) -> Result<u64> {
    let file = c.task.files.remove(c.uint(0))?;
    closing(c.task, &file);
    file.flush().map(|()| 0)
}

/// What a process gives up with any descriptor of a file: its record locks on it, and to be told of its messages.
pub(crate) fn closing(task: &Task, file: &FileRef) {
    // One that is just a place never had any.
    if file.flags() & linux::O_PATH != 0 {
        return;
    }
    locks::release_process(file, task.process.pid);
    mqueue::closing(task, file);
}

const CLOSE_RANGE_UNSHARE: u32 = 2;
const CLOSE_RANGE_CLOEXEC: u32 = 4;

/// `close_range(2)`.
pub fn close_range(c: &mut Call) -> Result<u64> {
    let (first, last, flags) = (c.uint(0), c.uint(1), c.uint(2));
    if first > last || flags & !(CLOSE_RANGE_UNSHARE | CLOSE_RANGE_CLOEXEC) != 0 {
        return Err(Errno::EINVAL);
    }
    if flags & CLOSE_RANGE_UNSHARE != 0 {
        let own = Arc::new(c.task.files.duplicate());
        drop(c.task.files.replace(own));
    }
    for fd in c.task.files.list() {
        if (first..=last).contains(&fd) {
            if flags & CLOSE_RANGE_CLOEXEC != 0 {
                // EBADF: closed since, or there is no file yet.
                let _ = c.task.files.set_cloexec(fd, true);
            } else if let Ok(f) = c.task.files.remove(fd) {
                closing(c.task, &f);
            }
        }
    }
    Ok(0)
}

/// `dup(2)`.
pub fn dup(c: &mut Call) -> Result<u64> {
    let file = c.file_or_place(0)?;
    c.install(file, false)
}

fn dup_to(c: &mut Call, cloexec: bool) -> Result<u64> {
    let file = c.file_or_place(0)?;
    let to = c.uint(1);
    let limit = c.task.process.max_files.load(Ordering::Relaxed);
    if u64::from(to) >= limit.min(FILES_MAX as u64) {
        return Err(Errno::EBADF);
    }
    if let Some(old) = c.task.files.put(to, file, cloexec)? {
        closing(c.task, &old);
    }
    Ok(u64::from(to))
}

/// `dup2(2)`.
pub fn dup2(c: &mut Call) -> Result<u64> {
    if c.uint(0) == c.uint(1) {
        c.file_or_place(0)?;
        return Ok(u64::from(c.uint(1)));
    }
    dup_to(c, false)
}

/// `dup3(2)`.
pub fn dup3(c: &mut Call) -> Result<u64> {
    if c.uint(0) == c.uint(1) || c.uint(2) & !linux::O_CLOEXEC != 0 {
        return Err(Errno::EINVAL);
    }
    let cloexec = c.uint(2) != 0;
    dup_to(c, cloexec)
}

/// `pipe2(2)`.
pub fn pipe2(c: &mut Call) -> Result<u64> {
    let flags = c.uint(1);
    if flags & !(linux::O_CLOEXEC | linux::O_NONBLOCK | linux::O_DIRECT) != 0 {
        return Err(Errno::EINVAL);
    }
    make_pipe(c, flags)
}

/// `pipe(2)`.
pub fn pipe(c: &mut Call) -> Result<u64> {
    make_pipe(c, 0)
}

fn make_pipe(c: &mut Call, flags: u32) -> Result<u64> {
    let held = held(c, Quota::Channels)?;
    let (r, w) = Pipe::ends(flags & linux::O_DIRECT != 0, Box::new(held));
    let mode = flags & (linux::O_NONBLOCK | linux::O_DIRECT);
    let cloexec = flags & linux::O_CLOEXEC != 0;
    let r = c.install(RcuArc::new(OpenFile::new(r, linux::O_RDONLY | mode)), cloexec)?;
    let w = match c.install(RcuArc::new(OpenFile::new(w, linux::O_WRONLY | mode)), cloexec) {
        Ok(w) => w,
        Err(e) => {
            drop(c.task.files.remove(r as u32));
            return Err(e);
        }
    };
    let fds = [r as i32, w as i32];
    if let Err(e) = user::write(c.arg(0), fds.as_bytes()) {
        drop(c.task.files.remove(r as u32));
        drop(c.task.files.remove(w as u32));
        return Err(e);
    }
    Ok(0)
}

/// What F_GETFL says: a file that has positions can be a large one.
pub fn status_flags(file: &OpenFile) -> u32 {
    file.flags() | (0o100000 * u32::from(file.file().seekable()))
}

/// The owner's id, a group's with a minus.
fn owner_id(file: &OpenFile) -> i32 {
    let (kind, id) = asynchronous::owner(file);
    if kind == linux::F_OWNER_PGRP { -(id as i32) } else { id as i32 }
}

/// The seals that there are.
const SEALS: u32 = linux::F_SEAL_SEAL
    | linux::F_SEAL_SHRINK
    | linux::F_SEAL_GROW
    | linux::F_SEAL_WRITE
    | linux::F_SEAL_FUTURE_WRITE
    | linux::F_SEAL_EXEC;

/// `fcntl(2)`.
pub fn fcntl(c: &mut Call) -> Result<u64> {
    let file = c.file_or_place(0)?;
    let (fd, command, arg) = (c.uint(0), c.uint(1), c.arg(2));
    let limit = c.task.process.max_files.load(Ordering::Relaxed);
    let of_place = matches!(
        command,
        linux::F_DUPFD | linux::F_DUPFD_CLOEXEC | linux::F_GETFD | linux::F_SETFD | linux::F_GETFL
    );
    if file.flags() & linux::O_PATH != 0 && !of_place {
        return Err(Errno::EBADF);
    }
    match command {
        linux::F_DUPFD | linux::F_DUPFD_CLOEXEC => {
            if arg >= limit {
                return Err(Errno::EINVAL);
            }
            let cloexec = command == linux::F_DUPFD_CLOEXEC;
            c.task.files.add(file, cloexec, arg as usize, limit).map(u64::from)
        }
        linux::F_GETFD => c.task.files.cloexec(fd).map(u64::from),
        linux::F_SETFD => c.task.files.set_cloexec(fd, arg as u32 & linux::FD_CLOEXEC != 0).map(|()| 0),
        linux::F_GETFL => Ok(u64::from(status_flags(&file))),
        linux::F_SETFL => {
            if arg as u32 & !file.flags() & linux::O_NOATIME != 0 {
                c.task.cred().owns(&file.attr()?)?;
            }
            let on = arg as u32 & linux::FASYNC != 0;
            // Of a file that never tells, the flag is only kept.
            match asynchronous::set(c.task, &file, fd, on) {
                Ok(()) | Err(Errno::ENOTTY) => file.set_flags(arg as u32),
                Err(e) => return Err(e),
            }
            Ok(0)
        }
        linux::F_GETLK | linux::F_SETLK | linux::F_SETLKW => locks::record(c, &file, command, false),
        linux::F_OFD_GETLK | linux::F_OFD_SETLK | linux::F_OFD_SETLKW => {
            let command = command - linux::F_OFD_GETLK + linux::F_GETLK;
            locks::record(c, &file, command, true)
        }
        linux::F_GETPIPE_SZ => file.as_type::<PipeEnd>().map(|p| p.capacity() as u64).ok_or(Errno::EBADF),
        linux::F_SETPIPE_SZ => {
            let p = file.as_type::<PipeEnd>().ok_or(Errno::EBADF)?;
            p.set_capacity(arg as usize).map(|n| n as u64)
        }
        linux::F_GET_SEALS => file.as_type::<TmpNode>().ok_or(Errno::EINVAL)?.seals().map(u64::from),
        linux::F_ADD_SEALS => {
            let node = file.as_type::<TmpNode>().ok_or(Errno::EINVAL)?;
            if !file.writable() {
                return Err(Errno::EPERM);
            }
            if arg as u32 & !SEALS != 0 {
                return Err(Errno::EINVAL);
            }
            node.add_seals(arg as u32).map(|()| 0)
        }
        linux::F_SETOWN => asynchronous::set_owner_by_id(c.task, &file, arg as i32).map(|()| 0),
        linux::F_GETOWN => Ok(owner_id(&file) as u64),
        linux::F_SETOWN_EX => {
            let [kind, id]: [u32; 2] = get(arg)?;
            asynchronous::set_owner(c.task, &file, kind, id).map(|()| 0)
        }
        linux::F_GETOWN_EX => {
            let (kind, id) = asynchronous::owner(&file);
            put(arg, &[kind, id]).map(|()| 0)
        }
        linux::F_SETSIG => asynchronous::set_signal(&file, arg).map(|()| 0),
        linux::F_GETSIG => Ok(u64::from(asynchronous::signal_of(&file))),
        linux::F_GET_RW_HINT | linux::F_SET_RW_HINT if let Some(hint) = file.file().write_hint() => {
            if command == linux::F_GET_RW_HINT {
                return put(arg, &u64::from(hint.load(Ordering::Relaxed))).map(|()| 0);
            }
            c.task.cred().owns(&file.attr()?)?;
            match u32::try_from(get::<u64>(arg)?) {
                Ok(said @ linux::RWH_WRITE_LIFE_NOT_SET..=linux::RWH_WRITE_LIFE_EXTREME) => {
                    hint.store(said, Ordering::Relaxed);
                    Ok(0)
                }
                _ => Err(Errno::EINVAL),
            }
        }
        linux::F_GETLEASE => Ok(u64::from(linux::F_UNLCK)),
        _ => Err(unsupported(c.task, &alloc::format!("fcntl command {command}"), Errno::EINVAL)),
    }
}

/// `SIOCETHTOOL` (`linux/sockios.h`).
const SIOCETHTOOL: u32 = 0x8946;

/// `ioctl(2)`.
pub fn ioctl(c: &mut Call) -> Result<u64> {
    let file = c.file(0)?;
    let (command, arg) = (c.uint(1), c.arg(2));
    match command {
        ctl::FIONBIO => {
            let on: i32 = get(arg)?;
            let flags = file.flags();
            file.set_flags(if on != 0 { flags | linux::O_NONBLOCK } else { flags & !linux::O_NONBLOCK });
            Ok(0)
        }
        ctl::FIOASYNC => {
            let on: i32 = get(arg)?;
            asynchronous::set(c.task, &file, c.uint(0), on != 0).map(|()| 0)
        }
        ctl::FIOSETOWN | ctl::SIOCSPGRP if file.as_type::<SocketFile>().is_some() => {
            asynchronous::set_owner_by_id(c.task, &file, get(arg)?).map(|()| 0)
        }
        ctl::FIOGETOWN | ctl::SIOCGPGRP if file.as_type::<SocketFile>().is_some() => {
            put(arg, &owner_id(&file)).map(|()| 0)
        }
        ctl::SIOCGIFADDR
        | ctl::SIOCGIFDSTADDR
        | ctl::SIOCGIFBRDADDR
        | ctl::SIOCGIFNETMASK
        | ctl::SIOCGARP
            if file.as_type::<SocketFile>().is_some_and(|s| s.domain == net::AF_INET) =>
        {
            super::net::interface(command, arg)
        }
        ctl::SIOCGIFNAME
        | ctl::SIOCGIFCONF
        | ctl::SIOCGIFFLAGS
        | ctl::SIOCGIFMETRIC
        | ctl::SIOCGIFMTU
        | ctl::SIOCGIFHWADDR
        | ctl::SIOCGIFINDEX
        | ctl::SIOCGIFTXQLEN
        | ctl::SIOCGIFMAP
            if file.as_type::<SocketFile>().is_some() =>
        {
            super::net::interface(command, arg)
        }
        SIOCETHTOOL if file.as_type::<SocketFile>().is_some() => super::net::card(arg),
        ctl::FIOCLEX => c.task.files.set_cloexec(c.uint(0), true).map(|()| 0),
        ctl::FIONCLEX => c.task.files.set_cloexec(c.uint(0), false).map(|()| 0),
        ctl::FIONREAD if file.file().seekable() => {
            let size = file.attr()?.size;
            let left = file.with_position(|p| size.saturating_sub(*p));
            put(arg, &(left as i32)).map(|()| 0)
        }
        ctl::TIOCGPGRP if is_terminal(&file) => put(arg, &jobs::own_console()?).map(|()| 0),
        ctl::TIOCSPGRP if is_terminal(&file) => {
            jobs::own_console()?;
            // Linux has another error for this one.
            jobs::check_console(linux::SIGTTOU)
                .map_err(|e| if e == Errno::EIO { Errno::ENOTTY } else { e })?;
            let pgrp: u32 = get(arg)?;
            jobs::check_group(pgrp, c.task.process.sid.load(Ordering::Relaxed))?;
            world().foreground.store(pgrp, Ordering::Relaxed);
            Ok(0)
        }
        ctl::TIOCGSID if is_terminal(&file) => {
            jobs::own_console()?;
            put(arg, &world().session.load(Ordering::Relaxed)).map(|()| 0)
        }
        ctl::TIOCGPTPEER if file.as_type::<Master>().is_some() => {
            let path = file.as_type::<Master>().map_or(Vec::new(), Master::slave_path);
            let flags = arg as u32;
            let how = atoll_fs::namespace::How::default();
            let place = c.reserve(flags & linux::O_CLOEXEC != 0)?;
            let slave = super::path::open_file(c.task, linux::AT_FDCWD, &path, flags, 0, how)?;
            Ok(u64::from(place.fill(slave)))
        }
        ctl::TIOCSCTTY if is_terminal(&file) => jobs::take_console(c.task, arg == 1).map(|()| 0),
        ctl::TIOCNOTTY if is_terminal(&file) => {
            jobs::own_console()?;
            let group = jobs::give_up_console(&c.task.process);
            jobs::signal_group(group, linux::SIGHUP);
            jobs::signal_group(group, linux::SIGCONT);
            Ok(0)
        }
        ctl::TCSETS
        | ctl::TCSETSW
        | ctl::TCSETSF
        | ctl::TCSETS2
        | ctl::TCSETSW2
        | ctl::TCSETSF2
        | ctl::TCFLSH
        | ctl::TCXONC
        | ctl::TCSBRK
            if is_terminal(&file) =>
        {
            jobs::check_console(linux::SIGTTOU)?;
            file.file().control(command, arg)
        }
        _ => match proc::of_namespace(&file, command) {
            None => file.file().control(command, arg),
            Some(found) => match found? {
                OfNamespace::Kind(kind) => Ok(u64::from(kind)),
                OfNamespace::Owner => put(arg, &0u32).map(|()| 0),
                OfNamespace::User => {
                    let how = atoll_fs::namespace::How::default();
                    let place = c.reserve(true)?;
                    let flags = linux::O_RDONLY | linux::O_CLOEXEC;
                    let user = b"/proc/self/ns/user";
                    let user = super::path::open_file(c.task, linux::AT_FDCWD, user, flags, 0, how)?;
                    Ok(u64::from(place.fill(user)))
                }
            },
        },
    }
}

fn is_terminal(file: &FileRef) -> bool {
    file.as_type::<atoll_fs::stream::Stream>().is_some_and(|s| s.is_terminal())
}

/// `fsync(2)`.
pub fn fsync(c: &mut Call) -> Result<u64> {
    c.file(0)?.sync(false).map(|()| 0)
}

/// `fdatasync(2)`.
pub fn fdatasync(c: &mut Call) -> Result<u64> {
    c.file(0)?.sync(true).map(|()| 0)
}

/// `sync(2)`.
pub fn sync(_c: &mut Call) -> Result<u64> {
    crate::process::flush_everything(|fs| fs.sync_device());
    Ok(0)
}

/// `syncfs(2)`.
pub fn syncfs(c: &mut Call) -> Result<u64> {
    match c.file(0)?.place() {
        Some(p) => p.mount.fs.sync_device().map(|()| 0),
        None => Ok(0),
    }
}

/// `ftruncate(2)`.
pub fn ftruncate(c: &mut Call) -> Result<u64> {
    let file = c.file(0)?;
    let len = offset(c.arg(1))?;
    if !file.writable() {
        return Err(Errno::EINVAL);
    }
    file_size_limit(c.task, len, || file.attr())?;
    set_length(c.task, &file, len).map(|()| 0)
}

/// Makes an open file so many bytes long.
pub fn set_length(task: &Task, file: &FileRef, len: u64) -> Result<()> {
    file.file().truncate(len)?;
    changed_by(task, file);
    file.note(linux::IN_MODIFY);
    crate::extents::was_cut(task, file.file().as_any(), len);
    Ok(())
}

/// EFBIG and SIGXFSZ for a file that is to get so long, if that is longer than RLIMIT_FSIZE and than it is now (`attr`).
pub fn file_size_limit(task: &Task, len: u64, attr: impl FnOnce() -> Result<Attr>) -> Result<()> {
    if len > task.process.max_file_size.load(Ordering::Relaxed) && len > attr()?.size {
        return Err(write_signal(task, Errno::EFBIG));
    }
    Ok(())
}

/// `fallocate(2)`.
pub fn fallocate(c: &mut Call) -> Result<u64> {
    let file = c.file(0)?;
    let (at, len) = (c.arg(2) as i64, c.arg(3) as i64);
    if at < 0 || len <= 0 {
        return Err(Errno::EINVAL);
    }
    if !file.writable() {
        return Err(Errno::EBADF);
    }
    if !file.file().seekable() && !file.file().keeps_position() {
        return Err(Errno::ESPIPE);
    }
    if c.uint(1) & linux::FALLOC_FL_KEEP_SIZE == 0 {
        file_size_limit(c.task, (at as u64).saturating_add(len as u64), || file.attr())?;
    }
    file.file().allocate(c.uint(1), at as u64, len as u64)?;
    changed_by(c.task, &file);
    file.note(linux::IN_MODIFY);
    Ok(0)
}

/// `fadvise64(2)`: hints.
pub fn fadvise(c: &mut Call) -> Result<u64> {
    if c.uint(3) > linux::POSIX_FADV_NOREUSE {
        c.file(0)?;
        return Err(Errno::EINVAL);
    }
    let file = c.file(0)?;
    let is_socket = file.as_type::<SocketFile>().is_some();
    if !file.file().seekable() && !file.file().keeps_position() && !is_socket {
        return Err(Errno::ESPIPE);
    }
    if (c.arg(2) as i64) < 0 { Err(Errno::EINVAL) } else { Ok(0) }
}

/// `readahead(2)`: a hint.
pub fn readahead(c: &mut Call) -> Result<u64> {
    let file = c.file(0)?;
    if !file.readable() {
        return Err(Errno::EBADF);
    }
    if !matches!(file.attr()?.kind(), FileType::Regular | FileType::Block) || (c.arg(2) as i64) < 0 {
        return Err(Errno::EINVAL);
    }
    Ok(0)
}

/// `sync_file_range(2)`: all of the file's data, and at once.
pub fn sync_file_range(c: &mut Call) -> Result<u64> {
    const KNOWN: u32 =
        linux::SYNC_FILE_RANGE_WAIT_BEFORE | linux::SYNC_FILE_RANGE_WRITE | linux::SYNC_FILE_RANGE_WAIT_AFTER;
    let file = c.file(0)?;
    let (from, len) = (c.arg(1) as i64, c.arg(2) as i64);
    let is_range = from >= 0 && from.checked_add(len).is_some_and(|end| end >= from);
    if !is_range || c.uint(3) & !KNOWN != 0 {
        return Err(Errno::EINVAL);
    }
    if !matches!(file.attr()?.kind(), FileType::Regular | FileType::Block | FileType::Directory) {
        return Err(Errno::ESPIPE);
    }
    file.sync(true).map(|()| 0)
}

/// `sendfile(2)`.
pub fn sendfile(c: &mut Call) -> Result<u64> {
    let (to, from) = (c.file(0)?, c.file(1)?);
    let explicit = c.arg(2) != 0;
    let start: u64 = if explicit { offset(get(c.arg(2))?)? } else { 0 };
    if !from.readable() || !to.writable() {
        return Err(Errno::EBADF);
    }
    if !from.file().seekable() || to.flags() & linux::O_APPEND != 0 && to.as_type::<PipeEnd>().is_none() {
        return Err(Errno::EINVAL);
    }
    let at = if explicit { start } else { from.with_position(|p| *p) };
    let n =
        has_transferred(c.task, transfer(c.task, &from, Some(at), &to, None, c.arg(3).min(TRANSFER_MAX)))?;
    if explicit {
        put(c.arg(2), &(start + n))?;
    } else {
        from.with_position(|p| *p = at + n);
    }
    Ok(n)
}

/// Moves bytes from one file to another if what holds both can do that: at its position, if no other place is given. None: it can't.
fn copy_below(
    from: &FileRef,
    at: Option<u64>,
    to: &FileRef,
    to_at: Option<u64>,
    len: u64,
    most: u64,
) -> Result<Option<u64>> {
    let Some(at) = at else { return Ok(None) };
    match to_at {
        Some(to_at) => to.copy_from(to_at, from, at, len, most),
        None if to.file().seekable() => to.with_position(|p| {
            let done = to.copy_from(*p, from, at, len, most)?;
            *p += done.unwrap_or(0);
            Ok(done)
        }),
        None => Ok(None),
    }
}

/// What goes through a buffer of the runtime's at a time, bytes, when a file is moved to another.
const TRANSFER_PIECE: u64 = 64 << 10;

/// Moves bytes from one file to another, through a buffer of the runtime's if need be.
fn transfer(
    task: &Task,
    from: &FileRef,
    mut at: Option<u64>,
    to: &FileRef,
    mut to_at: Option<u64>,
    len: u64,
) -> Result<u64> {
    let most = task.process.max_file_size.load(Ordering::Relaxed);
    if let Some(done) = copy_below(from, at, to, to_at, len, most).map_err(|e| write_signal(task, e))? {
        if done > 0 {
            changed_by(task, to);
        }
        return Ok(done);
    }
    let room = Scratch::up_to(len.min(TRANSFER_PIECE))?;
    let mut done = 0;
    while done < len {
        let want = room.len().min(len - done) as usize;
        let mut sink = Sink::memory(room.offset(), want);
        let got = match at {
            Some(a) => from.read_at(&mut sink, a),
            // More than the first is only taken, not waited for.
            None if done > 0 => from.file().read(&mut sink, None, true),
            None => from.read(&mut sink),
        };
        let got = match got {
            Ok(0) => break,
            Ok(n) => n,
            Err(_) if done > 0 => break,
            Err(e) => return Err(e),
        };
        let mut out = 0;
        while out < got {
            let mut source = Source::memory(room.offset() + out as u64, got - out);
            let put = match to_at {
                Some(a) => to.write_at(&mut source, a + out as u64, most),
                None => to.write(&mut source, most),
            };
            match put {
                Ok(n) => out += n,
                Err(_) if done + out as u64 > 0 => break,
                Err(e) => return Err(write_signal(task, e)),
            }
        }
        done += out as u64;
        if let Some(a) = &mut at {
            *a += out as u64;
        } else if out < got {
            // Bytes of a stream that could not be written on are lost, as they are on Linux when
            // splice is interrupted.
            break;
        }
        if let Some(a) = &mut to_at {
            *a += out as u64;
        }
        if out < got || (at.is_none() && got < want) {
            break;
        }
    }
    if done > 0 {
        changed_by(task, to);
    }
    Ok(done)
}

/// `copy_file_range(2)`.
pub fn copy_file_range(c: &mut Call) -> Result<u64> {
    let (from, to) = (c.file(0)?, c.file(2)?);
    if c.uint(5) != 0 {
        return Err(Errno::EINVAL);
    }
    let attrs = [from.attr()?, to.attr()?];
    for attr in &attrs {
        match attr.kind() {
            FileType::Regular => {}
            FileType::Directory => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
    }
    if !from.readable() || !to.writable() || to.flags() & linux::O_APPEND != 0 {
        return Err(Errno::EBADF);
    }
    let position = |arg: u64, f: &FileRef| -> Result<u64> {
        match arg {
            // Others outside of the cell have the same.
            0 if f.file().keeps_position() => f.file().seek(0, linux::SEEK_CUR),
            0 => Ok(f.with_position(|p| *p)),
            _ => offset(get(arg)?),
        }
    };
    let (a, b, len) = (position(c.arg(1), &from)?, position(c.arg(3), &to)?, c.arg(4));
    if a.checked_add(len).is_none() || b.checked_add(len).is_none() {
        return Err(Errno::EOVERFLOW);
    }
    let len = len.min(attrs[0].size.saturating_sub(a));
    if b >= c.task.process.max_file_size.load(Ordering::Relaxed) {
        return Err(write_signal(c.task, Errno::EFBIG));
    }
    let is_one = (attrs[0].dev, attrs[0].ino) == (attrs[1].dev, attrs[1].ino);
    if is_one && b + len > a && b < a + len {
        return Err(Errno::EINVAL);
    }
    let n = has_transferred(c.task, transfer(c.task, &from, Some(a), &to, Some(b), len.min(TRANSFER_MAX)))?;
    for (arg, f, at) in [(c.arg(1), &from, a), (c.arg(3), &to, b)] {
        match arg {
            0 if f.file().keeps_position() => _ = f.file().seek((at + n) as i64, linux::SEEK_SET)?,
            0 => f.with_position(|p| *p = at + n),
            _ => put(arg, &(at + n))?,
        }
    }
    Ok(n)
}

const SPLICE_FLAGS: u32 =
    linux::SPLICE_F_MOVE | linux::SPLICE_F_NONBLOCK | linux::SPLICE_F_MORE | linux::SPLICE_F_GIFT;

/// `tee(2)`.
pub fn tee(c: &mut Call) -> Result<u64> {
    if c.uint(3) & !SPLICE_FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    if c.arg(2) == 0 {
        return Ok(0);
    }
    let (from, to) = (c.file(0)?, c.file(1)?);
    let (Some(a), Some(b)) = (from.as_type::<PipeEnd>(), to.as_type::<PipeEnd>()) else {
        return Err(Errno::EINVAL);
    };
    let nonblock = c.uint(3) & linux::SPLICE_F_NONBLOCK != 0 || from.nonblock() || to.nonblock();
    let n = a.copy_to(b, c.arg(2).min(TRANSFER_MAX) as usize, nonblock);
    n.map(|n| n as u64).map_err(|e| write_signal(c.task, e))
}

/// `vmsplice(2)`: pages are copied, which the call allows.
pub fn vmsplice(c: &mut Call) -> Result<u64> {
    if c.uint(3) & !SPLICE_FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    let file = c.file(0)?;
    if file.as_type::<PipeEnd>().is_none() {
        return Err(Errno::EBADF);
    }
    let nonblock = c.uint(3) & linux::SPLICE_F_NONBLOCK != 0 || file.nonblock();
    let mut room = Pieces::default();
    let list = room.read(c.arg(1), c.arg(2))?;
    match file.as_type::<PipeEnd>() {
        Some(pipe) if file.writable() => {
            let mut source = Source::user(list);
            if source.left() == 0 {
                return Ok(0);
            }
            // The program's memory may come by pieces: it waits for the first one's room only.
            let mut waits = !nonblock;
            let n = writing(
                &mut source,
                || true,
                |s| {
                    let n = pipe.write_some(s, !waits)?;
                    waits &= n == 0;
                    Ok(n)
                },
            );
            n.map(|n| n as u64).map_err(|e| write_signal(c.task, e))
        }
        _ => {
            let mut sink = Sink::user(list);
            reading(&mut sink, in_part, |s| file.file().read(s, None, nonblock)).map(|n| n as u64)
        }
    }
}

/// Is it one of those objects without a place in any file system (an eventfd, an epoll instance) that splice can't use?
fn is_anonymous(file: &FileRef) -> bool {
    file.place().is_none() && file.file().describe().starts_with(b"anon_inode:")
}

/// `splice(2)`: one side is a pipe.
pub fn splice(c: &mut Call) -> Result<u64> {
    if c.arg(4) == 0 {
        return Ok(0);
    }
    if c.uint(5) & !SPLICE_FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    let (from, to) = (c.file(0)?, c.file(2)?);
    let position = |arg: u64, f: &FileRef| -> Result<Option<u64>> {
        match (arg != 0, f.file().seekable()) {
            (true, true) => Ok(Some(offset(get(arg)?)?)),
            (true, false) => Err(Errno::ESPIPE),
            (false, true) => Ok(Some(f.with_position(|p| *p))),
            (false, false) => Ok(None),
        }
    };
    let pipes = (from.as_type::<PipeEnd>(), to.as_type::<PipeEnd>());
    if pipes.0.is_none() && pipes.1.is_none() {
        return Err(Errno::EINVAL);
    }
    let (a, b) = (position(c.arg(1), &from)?, position(c.arg(3), &to)?);
    if !from.readable() || !to.writable() {
        return Err(Errno::EBADF);
    }
    let is_directory = from.place().is_some_and(|p| p.inode.kind() == FileType::Directory);
    let is_one = matches!(pipes, (Some(a), Some(b)) if a.is_same(b));
    if is_one || is_directory || is_anonymous(&from) || is_anonymous(&to) || to.flags() & linux::O_APPEND != 0
    {
        return Err(Errno::EINVAL);
    }
    let hurry = c.uint(5) & linux::SPLICE_F_NONBLOCK != 0;
    let len = c.arg(4).min(64 << 10) as usize;
    let n = match pipes {
        (_, Some(pipe)) => splice_to_pipe(c.task, hurry, &from, a, pipe, &to, len),
        (Some(pipe), None) => splice_from_pipe(c.task, hurry, pipe, &from, &to, b, len),
        (None, None) => Err(Errno::EINVAL),
    }?;
    for (arg, f, at) in [(c.arg(1), &from, a), (c.arg(3), &to, b)] {
        if let Some(at) = at {
            if arg != 0 {
                put(arg, &(at + n))?;
            } else {
                f.with_position(|p| *p = at + n);
            }
        }
    }
    Ok(n)
}

/// No more than there is room for is taken out of `from`, so that nothing has to wait that is in nobody's hands.
fn splice_to_pipe(
    task: &Task,
    hurry: bool,
    from: &FileRef,
    at: Option<u64>,
    pipe: &PipeEnd,
    to: &FileRef,
    len: usize,
) -> Result<u64> {
    let room = pipe.await_room(hurry || to.nonblock()).map_err(|e| write_signal(task, e))?;
    let mut buf = atoll_mem::buffer(len.min(room))?;
    let mut sink = Sink::kernel(&mut buf);
    let got = match at {
        Some(at) => from.read_at(&mut sink, at),
        None if hurry => from.file().read(&mut sink, None, true),
        None => from.read(&mut sink),
    }?;
    let mut source = Source::kernel(&buf[..got]);
    while source.left() > 0 {
        // Others may have filled it meanwhile.
        if let Err(e) = pipe.write_some(&mut source, false) {
            let done = got - source.left();
            if let Some(from) = from.as_type::<PipeEnd>() {
                from.put_back(&buf[done..got]);
            }
            return if done > 0 { Ok(done as u64) } else { Err(write_signal(task, e)) };
        }
    }
    Ok(got as u64)
}

/// What can't be written goes back into the pipe.
fn splice_from_pipe(
    task: &Task,
    hurry: bool,
    pipe: &PipeEnd,
    from: &FileRef,
    to: &FileRef,
    to_at: Option<u64>,
    len: usize,
) -> Result<u64> {
    let most = task.process.max_file_size.load(Ordering::Relaxed);
    let mut buf = atoll_mem::buffer(len)?;
    let mut sink = Sink::kernel(&mut buf);
    let got = if hurry { from.file().read(&mut sink, None, true) } else { from.read(&mut sink) }?;
    let mut done = 0;
    let mut error = None;
    while done < got && error.is_none() {
        let mut source = Source::kernel(&buf[done..got]);
        let put = match to_at {
            Some(at) => to.write_at(&mut source, at + done as u64, most),
            None if hurry => to.file().write(&mut source, At::Stream, true).map(|(n, _)| n),
            None => to.write(&mut source, most),
        };
        match put {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) => error = Some(e),
        }
    }
    if done > 0 {
        changed_by(task, to);
    }
    if done < got {
        pipe.put_back(&buf[done..got]);
    }
    match error {
        Some(e) if done == 0 => Err(write_signal(task, e)),
        _ => Ok(done as u64),
    }
}

/// `flock(2)`.
pub fn flock(c: &mut Call) -> Result<u64> {
    let file = c.file(0)?;
    locks::whole(c, &file, c.uint(1))
}

/// File locks, within the cell.
pub mod locks {
    use super::super::path::device;
    use super::*;
    use alloc::collections::BTreeMap;
    use atoll_fs::host::HostFile;
    use atoll_fs::node::{File, OuterLock};
    use atoll_sync::{Mutex, MutexGuard, WaitQueue};
    use atoll_task::{Limit, wait};
    use core::fmt::Write;
    use core::sync::atomic::AtomicBool;

    /// Who holds a lock.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Owner {
        Process(u32),
        Open(usize),
    }

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct Lock {
        owner: Owner,
        start: u64,
        /// One past the end.
        end: u64,
        write: bool,
        /// The open file by which it was taken.
        by: usize,
    }

    /// A lock on a whole file, of an open file.
    #[derive(Clone, Copy, Debug)]
    struct Whole {
        open: usize,
        write: bool,
        /// The process that took it.
        pid: u32,
    }

    #[derive(Default)]
    struct Locks {
        /// What `stat(2)` says of the file.
        device: u64,
        inode: u64,
        records: Vec<Lock>,
        flocks: Vec<Whole>,
        /// The file, if others outside the cell were told of the locks.
        home: Option<Arc<dyn File>>,
    }

    impl Locks {
        fn is_empty(&self) -> bool {
            self.records.is_empty() && self.flocks.is_empty()
        }

        /// The locks alone.
        fn copied(&self) -> Locks {
            Locks { records: self.records.clone(), flocks: self.flocks.clone(), ..Locks::default() }
        }
    }

    /// How long one waits before the host is asked again for a lock that others hold, ns.
    const RETRY: u64 = 5_000_000;

    /// Held while the host is told of a lock, or of one that goes.
    static OUTER: Mutex<()> = Mutex::new(());

    /// Its holder waits for nobody outside.
    struct Order {
        _one: MutexGuard<'static, ()>,
    }

    impl Order {
        fn new() -> Order {
            let one = OUTER.lock();
            atoll_fs::host::in_order(true);
            Order { _one: one }
        }
    }

    impl Drop for Order {
        fn drop(&mut self) {
            atoll_fs::host::in_order(false);
        }
    }

    static LOCKS: Mutex<BTreeMap<u64, Locks>> = Mutex::new(BTreeMap::new());
    /// Has there ever been a lock? Set before there is one.
    static USED: AtomicBool = AtomicBool::new(false);
    static QUEUE: WaitQueue = WaitQueue::new();
    /// Which threads wait for a record lock: the thread, its process, the file and the lock. One is added, and all are looked
    /// at, under the lock of [`LOCKS`]; one whose lock nobody holds any more harms nobody.
    static WAITING: Mutex<Vec<(u32, u32, u64, Lock)>> = Mutex::new(Vec::new());

    /// The processes that have what is in the way of a lock.
    fn owners(all: &BTreeMap<u64, Locks>, key: u64, wanted: &Lock) -> Vec<u32> {
        let in_the_way = all.get(&key).into_iter().flat_map(|l| conflicts(l, wanted));
        // Of locks of open files nobody can tell who lets go of them.
        in_the_way.filter_map(|o| process_of(&o)).collect()
    }

    /// A thread waits for a lock. EDEADLK: who has it waits for the thread's process, perhaps by way of others.
    fn waits(all: &BTreeMap<u64, Locks>, tid: u32, pid: u32, key: u64, wanted: &Lock) -> Result<()> {
        let mut waiting = WAITING.lock();
        waiting.retain(|(t, ..)| *t != tid);
        let (mut found, mut next) = (owners(all, key, wanted), 0);
        while let Some(at) = found.get(next).copied() {
            if at == pid {
                return Err(Errno::EDEADLK);
            }
            next += 1;
            // As it is now: who waits may have got it, and not know it yet.
            for (_, _, key, wanted) in waiting.iter().filter(|(_, p, ..)| *p == at) {
                let more = owners(all, *key, wanted);
                found.extend(more.into_iter().filter(|owner| !found.contains(owner)).collect::<Vec<_>>());
            }
        }
        waiting.push((tid, pid, key, *wanted));
        Ok(())
    }

    /// Names an open file among the owners of locks.
    fn address(file: &FileRef) -> usize {
        core::ptr::from_ref::<OpenFile>(file).addr()
    }

    /// Names the file that locks are on, by whatever names it was opened.
    fn key(file: &FileRef) -> Result<u64> {
        file.attr().map(|attr| key_of(file, &attr))
    }

    fn key_of(file: &FileRef, attr: &Attr) -> u64 {
        if attr.ino != 0 { attr.ino ^ attr.dev << 40 } else { Arc::as_ptr(file.file()).addr() as u64 }
    }

    /// The locks of a file of these attributes.
    fn of_file<'a>(all: &'a mut BTreeMap<u64, Locks>, key: u64, attr: &Attr) -> &'a mut Locks {
        let l = all.entry(key).or_default();
        (l.device, l.inode) = (attr.dev, attr.ino);
        l
    }

    fn conflict(l: &Locks, new: &Lock) -> Option<Lock> {
        conflicts(l, new).next()
    }

    fn conflicts(l: &Locks, new: &Lock) -> impl Iterator<Item = Lock> {
        let is_one = |o: &&Lock| {
            o.owner != new.owner && o.start < new.end && new.start < o.end && (o.write || new.write)
        };
        l.records.iter().filter(is_one).copied()
    }

    fn put_record(l: &mut Locks, new: Lock, unlock: bool) {
        let mut rest = Vec::new();
        for o in l.records.drain(..) {
            if o.owner != new.owner || o.end <= new.start || new.end <= o.start {
                rest.push(o);
                continue;
            }
            if o.start < new.start {
                rest.push(Lock { end: new.start, ..o });
            }
            if o.end > new.end {
                rest.push(Lock { start: new.end, ..o });
            }
        }
        if !unlock {
            // Neighbours of the same kind are one lock, which is what F_GETLK tells of.
            let mut new = new;
            rest.retain(|o| {
                let joins =
                    o.owner == new.owner && o.write == new.write && o.start <= new.end && new.start <= o.end;
                if joins {
                    new.start = new.start.min(o.start);
                    new.end = new.end.max(o.end);
                }
                !joins
            });
            rest.push(new);
        }
        rest.sort_unstable_by_key(|o| o.start);
        l.records = rest;
    }

    /// Record locks (`fcntl(2)`), of the process or of the open file.
    pub fn record(c: &Call, file: &FileRef, command: u32, open: bool) -> Result<u64> {
        let f: Flock = get(c.arg(2))?;
        let base = match f.whence as u32 {
            linux::SEEK_SET => 0,
            linux::SEEK_CUR => file.with_position(|p| *p) as i64,
            linux::SEEK_END => file.attr()?.size as i64,
            _ => return Err(Errno::EINVAL),
        };
        let mut start = base.checked_add(f.start).ok_or(Errno::EOVERFLOW)?;
        let mut end = if f.len == 0 { i64::MAX } else { start.checked_add(f.len).ok_or(Errno::EOVERFLOW)? };
        if f.len < 0 {
            core::mem::swap(&mut start, &mut end);
        }
        if start < 0 {
            return Err(Errno::EINVAL);
        }
        let write = match f.kind as u32 {
            linux::F_RDLCK => false,
            linux::F_WRLCK => true,
            linux::F_UNLCK => false,
            _ => return Err(Errno::EINVAL),
        };
        let unlock = f.kind as u32 == linux::F_UNLCK;
        let by = address(file);
        let owner = if open { Owner::Open(by) } else { Owner::Process(c.task.process.pid) };
        let new = Lock { owner, start: start as u64, end: end as u64, write, by };
        let attr = file.attr()?;
        let key = key_of(file, &attr);
        if command == linux::F_GETLK {
            let all = LOCKS.lock();
            let mut out = f;
            match all.get(&key).and_then(|l| conflict(l, &new)) {
                None => out.kind = linux::F_UNLCK as i16,
                Some(o) => {
                    out.kind = if o.write { linux::F_WRLCK } else { linux::F_RDLCK } as i16;
                    out.whence = linux::SEEK_SET as i16;
                    out.start = o.start as i64;
                    out.len = if o.end == i64::MAX as u64 { 0 } else { (o.end - o.start) as i64 };
                    out.pid = match o.owner {
                        Owner::Process(pid) => pid as i32,
                        Owner::Open(_) => -1,
                    };
                }
            }
            drop(all);
            put(c.arg(2), &out)?;
            return Ok(0);
        }
        if !unlock && (write && !file.writable() || !write && !file.readable()) {
            return Err(Errno::EBADF);
        }
        if open {
            file.note_lock();
        }
        USED.store(true, Ordering::Release);
        let limit = if command == linux::F_SETLKW { Limit::Forever } else { Limit::Never };
        if unlock {
            change(Some(key), |l| put_record(l, new, true));
            return Ok(0);
        }
        loop {
            let mut waited = false;
            let taken = wait(&QUEUE, 1, limit, || {
                let mut all = LOCKS.lock();
                let l = of_file(&mut all, key, &attr);
                if conflict(l, &new).is_some() {
                    let Owner::Process(me) = owner else { return None };
                    if command == linux::F_SETLKW {
                        waited = true;
                        return waits(&all, c.task.tid(), me, key, &new).err().map(Err);
                    }
                    return None;
                }
                let before: Vec<Lock> = l.records.iter().filter(|o| o.owner == owner).copied().collect();
                put_record(l, new, false);
                Some(Ok(before))
            });
            if waited {
                WAITING.lock().retain(|(tid, ..)| *tid != c.task.tid());
            }
            let before = taken??;
            let outer = OuterLock { whole: false, start: new.start, end: new.end, write: Some(write) };
            match tell(file, key, &outer, |l| l.records.iter().any(|r| r.owner == owner)) {
                Ok(()) => break,
                Err(e) => {
                    // Others outside the cell have it: as it was before.
                    change(Some(key), |l| {
                        l.records.retain(|o| o.owner != owner);
                        l.records.extend(&before);
                        l.records.sort_unstable_by_key(|o| o.start);
                    });
                    pause_after(e, command == linux::F_SETLKW)?;
                }
            }
        }
        QUEUE.wake_all(1);
        Ok(0)
    }

    /// Tells those outside the cell of a lock that it has taken. `is_there`: does a file have it?
    fn tell(file: &FileRef, key: u64, outer: &OuterLock, is_there: impl Fn(&Locks) -> bool) -> Result<()> {
        let _order = Order::new();
        file.file().outer_lock(outer)?;
        let mut all = LOCKS.lock();
        let left = match all.get_mut(&key) {
            Some(l) => {
                l.home = Some(file.file().clone());
                if is_there(l) {
                    return Ok(());
                }
                l.copied()
            }
            None => Locks::default(),
        };
        drop(all);
        // Another thread of the process has closed the file meanwhile, and with that let go of it.
        see(&**file.file(), &left);
        Ok(())
    }

    /// Has those outside the cell see these locks, which are fewer than before.
    fn see(home: &dyn File, left: &Locks) {
        if left.is_empty() {
            home.outer_unlock_all();
        } else {
            give_back(home, left);
        }
    }

    /// Others want to have a file that was this cell's alone: they are to see the locks on it.
    pub fn share(file: &Arc<dyn File>) {
        let _order = Order::new();
        let identity = file.as_any().downcast_ref::<HostFile>().map(HostFile::identity);
        let is_home =
            |l: &&Locks| identity.is_some_and(|(device, inode, ..)| (l.device, l.inode) == (device, inode));
        let held = LOCKS.lock().values().find(is_home).map(Locks::copied).unwrap_or_default();
        let record = |r: &Lock| OuterLock { whole: false, start: r.start, end: r.end, write: Some(r.write) };
        let mut outer: Vec<OuterLock> = held.records.iter().map(record).collect();
        if let Some(write) = held.flocks.iter().map(|w| w.write).max() {
            outer.push(OuterLock { whole: true, start: 0, end: i64::MAX as u64, write: Some(write) });
        }
        file.share(&outer);
    }

    /// A while until others may have let go, if one waits for that, or given their lease of the file back; RESTART if a signal comes first.
    fn pause_after(e: Errno, waits: bool) -> Result<()> {
        if e != Errno::EBUSY && !(e == Errno::EAGAIN && waits) {
            return Err(e);
        }
        let until = atoll_abi::platform().now() + RETRY;
        match wait(&QUEUE, 2, Limit::Until(until), || None::<()>) {
            Err(Errno::EAGAIN | Errno::ETIMEDOUT) => Ok(()),
            other => other,
        }
    }

    /// Changes locks of one file, or of all, in such a way that fewer are held;
    /// those outside the cell are told first.
    fn change(of: Option<u64>, fewer: impl Fn(&mut Locks)) {
        // What is left of a file's when this is done; none: all of it.
        let less = |l: &Locks| {
            let mut left = l.copied();
            fewer(&mut left);
            let same = left.records == l.records && left.flocks.len() == l.flocks.len();
            (!same).then_some(left)
        };
        let keys: Vec<u64> = match of {
            Some(key) => alloc::vec![key],
            None => LOCKS.lock().iter().filter(|(_, l)| less(l).is_some()).map(|(key, _)| *key).collect(),
        };
        for key in &keys {
            let home = LOCKS.lock().get(key).filter(|l| less(l).is_some()).and_then(|l| l.home.clone());
            if let Some(home) = home {
                home.before_unlock();
            }
        }
        let _order = Order::new();
        for key in keys {
            // While nobody in the cell can have it yet.
            let (home, left) = {
                let all = LOCKS.lock();
                let Some(l) = all.get(&key) else { continue };
                let Some(left) = less(l) else { continue };
                (l.home.clone(), left)
            };
            if let Some(home) = home {
                see(&*home, &left);
            }
            let mut all = LOCKS.lock();
            if let Some(l) = all.get_mut(&key) {
                fewer(l);
                if l.is_empty() {
                    let gone = all.remove(&key);
                    drop(all);
                    drop(gone);
                }
            }
        }
        QUEUE.wake_all(1);
    }

    /// Sets what those outside the cell see to what the cell still holds.
    fn give_back(home: &dyn File, left: &Locks) {
        let set = |whole: bool, start: u64, end: u64, write: Option<bool>| {
            // Less than before: nobody can be in the way.
            let _ = home.outer_lock(&OuterLock { whole, start, end, write });
        };
        let mut at = 0;
        let mut records = left.records.clone();
        records.sort_unstable_by_key(|r| r.start);
        for r in &records {
            if r.start > at {
                set(false, at, r.start, None);
            }
            at = at.max(r.end);
        }
        if at < i64::MAX as u64 {
            set(false, at, i64::MAX as u64, None);
        }
        let write = left.flocks.iter().map(|w| w.write).max();
        if write != Some(true) {
            set(true, 0, i64::MAX as u64, write);
        }
    }

    /// Whole-file locks (`flock(2)`).
    pub fn whole(c: &Call, file: &FileRef, operation: u32) -> Result<u64> {
        let me = address(file);
        let attr = file.attr()?;
        let key = key_of(file, &attr);
        let nonblock = operation & linux::LOCK_NB != 0;
        let exclusive = match operation & !linux::LOCK_NB {
            linux::LOCK_SH => false,
            linux::LOCK_EX => true,
            linux::LOCK_UN => {
                change(Some(key), |l| l.flocks.retain(|w| w.open != me));
                return Ok(0);
            }
            _ => return Err(Errno::EINVAL),
        };
        file.note_lock();
        USED.store(true, Ordering::Release);
        let limit = if nonblock { Limit::Never } else { Limit::Forever };
        let of_me = |l: &Locks| l.flocks.iter().find(|w| w.open == me).map(|w| w.write);
        let held = LOCKS.lock().get(&key).and_then(of_me);
        if held == Some(exclusive) {
            return Ok(0);
        }
        if held.is_some() {
            // It goes first, whatever comes of this (flock(2)): two that want more don't wait for each other.
            change(Some(key), |l| l.flocks.retain(|w| w.open != me));
        }
        loop {
            wait(&QUEUE, 1, limit, || {
                let mut all = LOCKS.lock();
                let l = of_file(&mut all, key, &attr);
                if l.flocks.iter().any(|w| w.open != me && (w.write || exclusive)) {
                    return None;
                }
                l.flocks.retain(|w| w.open != me);
                l.flocks.push(Whole { open: me, write: exclusive, pid: c.task.process.pid });
                Some(())
            })?;
            let outer = OuterLock { whole: true, start: 0, end: i64::MAX as u64, write: Some(exclusive) };
            match tell(file, key, &outer, |l| l.flocks.iter().any(|w| w.open == me)) {
                Ok(()) => break,
                Err(e) => {
                    change(Some(key), |l| l.flocks.retain(|w| w.open != me));
                    pause_after(e, !nonblock)?;
                }
            }
        }
        QUEUE.wake_all(1);
        Ok(0)
    }

    /// A process closed a descriptor of a file: its record locks on that file go.
    pub fn release_process(file: &FileRef, pid: u32) {
        if !USED.load(Ordering::Acquire) {
            return;
        }
        if let Ok(key) = key(file) {
            change(Some(key), |l| l.records.retain(|r| r.owner != Owner::Process(pid)));
        }
    }

    /// A process ended.
    pub fn release_all(pid: u32) {
        if USED.load(Ordering::Acquire) {
            change(None, |l| l.records.retain(|r| r.owner != Owner::Process(pid)));
        }
    }

    /// The last descriptor of an open file is gone.
    pub fn release_open(addr: usize) {
        change(None, |l| {
            l.records.retain(|r| r.owner != Owner::Open(addr));
            l.flocks.retain(|w| w.open != addr);
        });
    }

    /// Writes what follows a lock's number in /proc/locks (`proc_locks(5)`).
    fn describe(out: &mut String, of: &Locks, whole: bool, lock: &Lock, pid: Option<u32>) {
        let kind = match lock.owner {
            _ if whole => "FLOCK ",
            Owner::Process(_) => "POSIX ",
            Owner::Open(_) => "OFDLCK",
        };
        let (major, minor) = device(of.device);
        let way = if lock.write { "WRITE" } else { "READ" };
        // A string takes whatever is written to it.
        let _ = match pid {
            Some(pid) => write!(out, "{kind} ADVISORY  {way} {pid} "),
            None => write!(out, "{kind} ADVISORY  {way} -1 "),
        };
        let _ = write!(out, "{major:02x}:{minor:02x}:{} {} ", of.inode, lock.start);
        let _ = match lock.end {
            end if end == i64::MAX as u64 => writeln!(out, "EOF"),
            end => writeln!(out, "{}", end - 1),
        };
    }

    /// All locks of a file: whether it is one on the whole file, and the process.
    fn held(of: &Locks) -> impl Iterator<Item = (bool, Lock, Option<u32>)> {
        let flocks = of.flocks.iter().map(|w| {
            let owner = Owner::Open(w.open);
            let lock = Lock { owner, start: 0, end: i64::MAX as u64, write: w.write, by: w.open };
            (true, lock, Some(w.pid))
        });
        flocks.chain(of.records.iter().map(|r| (false, *r, process_of(r))))
    }

    /// The process whose lock it is.
    fn process_of(lock: &Lock) -> Option<u32> {
        if let Owner::Process(pid) = lock.owner { Some(pid) } else { None }
    }

    /// The text of /proc/locks: what is held in the cell, and who waits for a part of a file.
    pub fn list() -> String {
        let (all, waiting) = (LOCKS.lock(), WAITING.lock());
        let (mut out, mut number) = (String::new(), 0);
        for (key, of) in &*all {
            for (whole, lock, pid) in held(of) {
                number += 1;
                let _ = write!(out, "{number}: ");
                describe(&mut out, of, whole, &lock, pid);
                for (_, pid, at, wanted) in &*waiting {
                    if at != key || conflict(of, wanted).is_none_or(|first| first != lock) {
                        continue;
                    }
                    let _ = write!(out, "{number}: -> ");
                    describe(&mut out, of, false, wanted, Some(*pid));
                }
            }
        }
        out
    }

    /// Adds the lines of /proc/PID/fdinfo on the locks that an open file has, or a process by it.
    pub fn tell_of(file: &FileRef, pid: u32, out: &mut String) {
        if !USED.load(Ordering::Acquire) {
            return;
        }
        let Ok(key) = key(file) else { return };
        let all = LOCKS.lock();
        let Some(of) = all.get(&key) else { return };
        let by = address(file);
        let is_told =
            |lock: &Lock| lock.by == by && [Owner::Open(by), Owner::Process(pid)].contains(&lock.owner);
        for (n, (whole, lock, pid)) in held(of).filter(|(_, lock, _)| is_told(lock)).enumerate() {
            let _ = write!(out, "lock:\t{}: ", n + 1);
            describe(out, of, whole, &lock, pid);
        }
    }
}
