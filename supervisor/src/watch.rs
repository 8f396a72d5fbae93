//! What others do to files that a cell watches: `inotify(7)`'s events of the host, by `fanotify(7)`.
//!
//! The cell tells its own programs of what it does itself. What it has this process do for that, the host tells here, too: fanotify
//! says that it was this process, also to who has no privileges. A group that is read without them gets identifiers of files in place of
//! descriptors (Linux 5.13; with renames 5.17); those of what is watched are kept.
#![allow(unsafe_code, reason = "fanotify calls")]

use std::collections::HashMap;
use std::ffi::CStr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Mutex;

use atoll_abi::errno::Errno;
use atoll_abi::service::{HostAttr, HostEvent};
use zerocopy::IntoBytes;

use crate::serve::check;

/// Files that one cell can watch here. The host, too, has a limit, for all processes of a user (`fs.fanotify.max_user_marks`).
const WATCHES_MAX: usize = 16384;
/// Bytes of events that are read at a time.
const AT_ONCE: usize = 16 << 10;
/// What is told of: the bits are those of inotify. What others only read or open is not.
const CHANGES: u64 = libc::FAN_MODIFY
    | libc::FAN_ATTRIB
    | libc::FAN_CLOSE_WRITE
    | libc::FAN_MOVED_FROM
    | libc::FAN_MOVED_TO
    | libc::FAN_CREATE
    | libc::FAN_DELETE
    | libc::FAN_DELETE_SELF
    | libc::FAN_MOVE_SELF;
const MOVES: u64 = libc::FAN_MOVED_FROM | libc::FAN_MOVED_TO;
/// Of names in a directory, which a file has none of.
const NAMES: u64 = MOVES | libc::FAN_CREATE | libc::FAN_DELETE;
/// The order in which events are told that were merged into one.
const ORDER: [u64; 6] = [
    libc::FAN_CREATE,
    libc::FAN_MODIFY,
    libc::FAN_ATTRIB,
    libc::FAN_CLOSE_WRITE,
    libc::FAN_DELETE,
    libc::FAN_MOVE_SELF,
];
/// uapi/linux/fanotify.h, of Linux 5.17: flags of a group, and kinds of information.
const FAN_REPORT_TARGET_FID: u32 = 0x1000;
const DFID: u8 = 3;
const OLD_DFID_NAME: u8 = 10;
const NEW_DFID_NAME: u8 = 12;

/// Device and number of a file.
type Key = (u64, u64);

/// What a cell watches.
pub(crate) struct Watcher {
    group: OwnedFd,
    /// By what the host calls them: `fsid`, kind and bytes of the file handle.
    known: Mutex<HashMap<Vec<u8>, Key>>,
    /// Events that had no room in an answer, and the last number of a rename.
    reading: Mutex<(Vec<u8>, u32)>,
}

impl Watcher {
    /// A group that watches nothing. ENOSYS: the host has none, or not for this user; EMFILE: its user has too many.
    pub(crate) fn new() -> Result<Watcher, Errno> {
        let flags = libc::FAN_CLASS_NOTIF
            | libc::FAN_CLOEXEC
            | libc::FAN_NONBLOCK
            | libc::FAN_REPORT_DFID_NAME
            | libc::FAN_REPORT_FID
            | FAN_REPORT_TARGET_FID;
        // SAFETY: no memory is involved; a new descriptor.
        let group = unsafe {
            let fd = check(libc::fanotify_init(flags, libc::O_RDONLY as u32).into());
            let unknown = |e| if [Errno::EINVAL, Errno::EPERM].contains(&e) { Errno::ENOSYS } else { e };
            OwnedFd::from_raw_fd(fd.map_err(unknown)? as RawFd)
        };
        Ok(Watcher { group, known: Mutex::default(), reading: Mutex::new((Vec::new(), 1 << 31)) })
    }

    /// Tells no more of this file. `at`: where it was, if it is found there; else the host goes on, and nobody is told.
    pub(crate) fn forget(&self, key: Key, at: Option<(&OwnedFd, &CStr, &HostAttr)>) -> Result<(), Errno> {
        if let Some((fd, name, attr)) = at.filter(|(_, _, attr)| (attr.dev, attr.ino) == key) {
            return self.watch(fd, name, attr, 0);
        }
        self.known.lock().expect("no panic while watches are held").retain(|_, known| *known != key);
        Ok(())
    }

    /// Tells of these changes of the file of a descriptor, too, which may be only a path, and by whose name in /proc it is found; 0: of none
    /// any more.
    pub(crate) fn watch(&self, fd: &OwnedFd, name: &CStr, attr: &HostAttr, mask: u64) -> Result<(), Errno> {
        let is_directory = attr.mode & libc::S_IFMT == libc::S_IFDIR;
        let all = if is_directory { CHANGES } else { CHANGES & !NAMES };
        let mut asked = if mask == 0 { all } else { mask & all };
        if asked == 0 {
            return Ok(());
        }
        if asked & MOVES != 0 {
            // Which belong together is told by this one.
            asked = asked & !MOVES | libc::FAN_RENAME;
        }
        if is_directory {
            asked |= libc::FAN_ONDIR | libc::FAN_EVENT_ON_CHILD;
        }
        let handle = handle_of(fd)?;
        let mut known = self.known.lock().expect("no panic while watches are held");
        let change = match mask {
            0 if known.remove(&handle).is_none() => return Ok(()),
            0 => libc::FAN_MARK_REMOVE,
            _ if known.len() >= WATCHES_MAX && !known.contains_key(&handle) => return Err(Errno::ENOSPC),
            _ => libc::FAN_MARK_ADD,
        };
        let group = self.group.as_raw_fd();
        // SAFETY: a valid name.
        check(unsafe { libc::fanotify_mark(group, change, asked, libc::AT_FDCWD, name.as_ptr()) }.into())?;
        if mask != 0 {
            known.insert(handle, (attr.dev, attr.ino));
        }
        Ok(())
    }

    /// Waits until others have done something, and says what: records of [`HostEvent`] and names, at most so many bytes. EBUSY: somebody
    /// waits already.
    pub(crate) fn next(&self, most: usize) -> Result<Vec<u8>, Errno> {
        let mut reading = self.reading.try_lock().map_err(|_| Errno::EBUSY)?;
        let (waiting, cookie) = &mut *reading;
        let mut bytes = vec![0u64; AT_ONCE / 8];
        while waiting.is_empty() {
            let mut entry = libc::pollfd { fd: self.group.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one entry, and a buffer of that size.
            let n = unsafe {
                libc::poll(&raw mut entry, 1, -1);
                libc::read(self.group.as_raw_fd(), bytes.as_mut_ptr().cast(), AT_ONCE)
            };
            match check(n as i64) {
                Ok(n) => self.take(&bytes.as_bytes()[..n as usize], waiting, cookie),
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Err(e) => return Err(e),
            }
        }
        // Whole ones.
        let mut end = 0;
        while let Some(len) = waiting.get(end..).and_then(HostEvent::whole).filter(|len| end + len <= most) {
            end += len;
        }
        if end == 0 {
            return Err(Errno::EINVAL);
        }
        Ok(waiting.drain(..end).collect())
    }

    /// Writes down what the host says of these events.
    fn take(&self, mut bytes: &[u8], out: &mut Vec<u8>, cookie: &mut u32) {
        const HEAD: usize = size_of::<libc::fanotify_event_metadata>();
        let word =
            |at: &[u8], n: usize| -> u32 { u32::from_ne_bytes([at[n], at[n + 1], at[n + 2], at[n + 3]]) };
        let own = std::process::id();
        let mut known = self.known.lock().expect("no panic while watches are held");
        while bytes.len() >= HEAD {
            let len = word(bytes, 0) as usize;
            if !(HEAD..=bytes.len()).contains(&len) {
                return;
            }
            let (event, rest) = bytes.split_at(len);
            bytes = rest;
            let mask = u64::from_ne_bytes(std::array::from_fn(|n| event[8 + n]));
            if mask & libc::FAN_Q_OVERFLOW != 0 {
                write((0, 0), libc::IN_Q_OVERFLOW, 0, b"", out);
                continue;
            }
            let directory = if mask & libc::FAN_ONDIR != 0 { libc::IN_ISDIR } else { 0 };
            let mut infos = &event[HEAD..];
            // The directory and the name there; the file itself; where it was and is now.
            let (mut named, mut itself, mut old, mut new) = (None, None, None, None);
            while let [kind, _, low, high, ..] = *infos {
                let len = usize::from(u16::from_ne_bytes([low, high]));
                let Some((info, rest)) = infos.split_at_checked(len.max(4)) else { break };
                infos = rest;
                let Some((handle, name)) = parts(info) else { continue };
                let key = known.get(handle).copied();
                match kind {
                    // A directory itself.
                    libc::FAN_EVENT_INFO_TYPE_DFID_NAME if name == b"." => {
                        itself = key.map(|key| (key, handle.to_vec()));
                    }
                    libc::FAN_EVENT_INFO_TYPE_DFID_NAME => named = Some((key, name)),
                    libc::FAN_EVENT_INFO_TYPE_FID | DFID => itself = key.map(|key| (key, handle.to_vec())),
                    OLD_DFID_NAME => old = Some((key, name)),
                    NEW_DFID_NAME => new = Some((key, name)),
                    _ => {}
                }
            }
            // Of what this process does, the cell tells.
            let by_others = if word(event, 20) == own { 0 } else { mask };
            if by_others & libc::FAN_RENAME != 0 {
                *cookie = cookie.checked_add(1).unwrap_or(1 << 31);
                for (place, moved) in [(old, libc::IN_MOVED_FROM), (new, libc::IN_MOVED_TO)] {
                    if let Some((Some(key), name)) = place {
                        write(key, moved | directory, *cookie, name, out);
                    }
                }
            }
            for bit in ORDER.into_iter().filter(|bit| by_others & bit != 0) {
                let told = bit as u32;
                if let Some((Some(key), name)) = named
                    && bit != libc::FAN_MOVE_SELF
                {
                    write(key, told | directory, 0, name, out);
                }
                if let Some((key, _)) = &itself
                    && bit & NAMES == 0
                {
                    let directory = if bit == libc::FAN_MOVE_SELF { 0 } else { directory };
                    write(*key, told | directory, 0, b"", out);
                }
            }
            if mask & libc::FAN_DELETE_SELF != 0
                && let Some((key, handle)) = &itself
            {
                // The host's watch has gone with it. Whoever was the last to let it go: the cell tells only of what it removes itself.
                known.remove(handle);
                write(*key, libc::IN_DELETE_SELF, 0, b"", out);
            }
        }
    }
}

/// Appends an event.
fn write(key: Key, mask: u32, cookie: u32, name: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(HostEvent::head(key, mask, cookie, name).as_bytes());
    out.extend_from_slice(name);
    out.resize(out.len().next_multiple_of(8), 0);
}

/// What identifies a file in information of an event, and the name behind that.
fn parts(info: &[u8]) -> Option<(&[u8], &[u8])> {
    // Header, fsid; of a `struct file_handle` the length, kind and bytes.
    let len = u32::from_ne_bytes(*info.get(12..)?.first_chunk()?) as usize;
    let end = 20usize.checked_add(len)?;
    let name = info.get(end..)?;
    let name = &name[..name.iter().position(|b| *b == 0).unwrap_or(name.len())];
    Some((info.get(4..end)?, name))
}

/// What the host calls the file of a descriptor in events: `fsid` and file handle.
fn handle_of(fd: &OwnedFd) -> Result<Vec<u8>, Errno> {
    /// `AT_HANDLE_FID` (Linux 6.5): it need not serve to open the file.
    const IDENTIFIES: i32 = 0x200;
    const ROOM: usize = 128;
    // SAFETY: a plain structure for the host to fill.
    let mut s: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    check(unsafe { libc::fstatfs(fd.as_raw_fd(), &raw mut s) }.into())?;
    let mut handle = [0u32; 2 + ROOM / 4];
    let mut ask = |flags: i32| {
        handle[0] = ROOM as u32;
        let mut mount = 0;
        // SAFETY: a valid name, and a structure with as much room as it says.
        check(
            unsafe {
                let handle = handle.as_mut_ptr().cast();
                libc::name_to_handle_at(
                    fd.as_raw_fd(),
                    c"".as_ptr(),
                    handle,
                    &raw mut mount,
                    libc::AT_EMPTY_PATH | flags,
                )
            }
            .into(),
        )
    };
    ask(IDENTIFIES).or_else(|_| ask(0))?;
    let len = (handle[0] as usize).min(ROOM);
    // SAFETY: two words.
    let fsid: [u8; 8] = unsafe { std::mem::transmute(s.f_fsid) };
    Ok([&fsid, &handle.as_bytes()[..8 + len]].concat())
}
