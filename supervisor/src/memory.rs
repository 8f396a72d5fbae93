//! The files behind a cell's memory.
#![allow(unsafe_code, reason = "makes host calls that have no safe wrapper here")]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Error, Result};

/// Turns -1 into the host's error.
pub(crate) fn check(ret: i64) -> io::Result<i64> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

fn cstring(s: &str) -> CString {
    CString::new(s).expect("names here have no zero byte")
}

/// Makes a file of memory so many bytes long. A soft limit of file sizes is for what programs write (RLIMIT_FSIZE).
fn set_length(file: &File, size: u64) -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Fsize);
    let is_raised = limit.current != limit.maximum
        && setrlimit(Resource::Fsize, Rlimit { current: limit.maximum, ..limit }).is_ok();
    let done = file.set_len(size);
    if is_raised {
        setrlimit(Resource::Fsize, limit)?;
    }
    done.map_err(|e| match e.raw_os_error() {
        Some(libc::EFBIG) => {
            io::Error::other("no file may be as long as it: start it with a larger hard limit (ulimit -Hf)")
        }
        _ => e,
    })
}

/// An anonymous memory file of `size` bytes.
pub fn anonymous(name: &str, size: u64) -> io::Result<File> {
    let name = cstring(name);
    // SAFETY: a valid name.
    let fd = check(
        unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) } as i64,
    )?;
    // SAFETY: just opened.
    let file = unsafe { File::from_raw_fd(fd as i32) };
    set_length(&file, size)?;
    Ok(file)
}

/// A file on a private tmpfs whose pages are huge, and what keeps the file
/// system mounted: taking it down takes a while, and the file does not need it.
fn huge(size: u64, most: u64) -> io::Result<(File, OwnedFd)> {
    let option = |fd: &OwnedFd, key: &str, value: &str| {
        let (key, value) = (cstring(key), cstring(value));
        // FSCONFIG_SET_STRING.
        // SAFETY: valid strings.
        check(unsafe {
            libc::syscall(libc::SYS_fsconfig, fd.as_raw_fd(), 1, key.as_ptr(), value.as_ptr(), 0)
        })
    };
    let kind = cstring("tmpfs");
    // FSOPEN_CLOEXEC.
    // SAFETY: a valid name; the result is a new descriptor.
    let context =
        unsafe { OwnedFd::from_raw_fd(check(libc::syscall(libc::SYS_fsopen, kind.as_ptr(), 1))? as i32) };
    option(&context, "huge", "always")?;
    option(&context, "size", &most.to_string())?;
    option(&context, "mode", "0700")?;
    // FSCONFIG_CMD_CREATE, then FSMOUNT_CLOEXEC.
    // SAFETY: no memory is involved; the result is a new descriptor.
    let mount = unsafe {
        check(libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), 6, 0, 0, 0))?;
        OwnedFd::from_raw_fd(check(libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), 1, 0))? as i32)
    };
    let name = cstring("memory");
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
    // SAFETY: a valid name; the result is a new descriptor.
    let file = unsafe {
        File::from_raw_fd(check(libc::openat(mount.as_raw_fd(), name.as_ptr(), flags, 0o600) as i64)? as i32)
    };
    set_length(&file, size)?;
    Ok((file, mount))
}

/// The file of a cell's extents, of `size` bytes and later of as many as `most`; if its pages are huge, its file system's
/// mount. Who lets go of that last waits for all processors, unless it was mounted somewhere before.
///
/// The cell has its descriptor, to map it. How long the file is only this process changes, which is how memory is granted and taken
/// away: what is cut off is gone from all of the cell's mappings at once, and an access there faults. The cell's filter keeps it from
/// making the file longer ([`confine`](crate::confine): no `write` to it, no `ftruncate`, no `fallocate`).
pub fn extents(size: u64, most: u64) -> Result<(File, Option<OwnedFd>)> {
    if let Ok((file, mount)) = huge(size, most) {
        return Ok((file, Some(mount)));
    }
    let file = anonymous("atoll memory", size).map_err(|e| Error::with("no memory file for the cell", e))?;
    Ok((file, None))
}

/// Bytes of memory that this process may still take: what the host has left, and what the limits of its
/// control groups (cgroups(7)) leave; none if that can't be read.
pub fn headroom() -> u64 {
    headroom_by(|path| std::fs::read_to_string(path)).unwrap_or(0)
}

/// The same, by how files are read. Those that aren't there limit nothing; another error, as when there are no descriptors left, says nothing of that.
fn headroom_by(read: impl Fn(&Path) -> io::Result<String>) -> io::Result<u64> {
    let text = |path: &Path| match read(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        read => read,
    };
    let number = |path: &Path| Ok::<_, io::Error>(text(path)?.trim().parse::<u64>().ok());
    let available = text(Path::new("/proc/meminfo"))?
        .lines()
        .find_map(|l| l.strip_prefix("MemAvailable:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    let mut left = available.map_or(u64::MAX, |kib| kib << 10);
    for line in text(Path::new("/proc/self/cgroup"))?.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (top, limit, now) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max", "memory.current"),
            c if c.split(',').any(|c| c == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
            }
            _ => continue,
        };
        let group = Path::new(top).join(path.trim_start_matches('/'));
        for group in group.ancestors().take_while(|g| g.starts_with(top)) {
            if let (Some(limit), Some(now)) = (number(&group.join(limit))?, number(&group.join(now))?) {
                left = left.min(limit.saturating_sub(now));
            }
        }
    }
    Ok(left)
}

/// Bytes of host memory behind a memory file now.
pub(crate) fn used(file: &File) -> u64 {
    use std::os::unix::fs::MetadataExt;
    file.metadata().map_or(0, |m| m.blocks() * 512)
}

/// What a file holds, mapped to be read. Whoever shortens the file meanwhile ends this process (SIGBUS), as they would end a program
/// that runs from it.
pub(crate) struct Content(Mapping);

impl Content {
    /// Maps a file that is not empty.
    pub fn of(file: &File) -> io::Result<Content> {
        Mapping::map(file, file.metadata()?.len(), libc::PROT_READ, libc::MAP_PRIVATE).map(Content)
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped as long as this lives. Those of a program's file do not change.
        unsafe { std::slice::from_raw_parts(self.0.base, self.0.len) }
    }
}

/// A mapping of a shared file in this process.
pub struct Mapping {
    base: *mut u8,
    len: usize,
    /// The file is so long now, as far as it is mapped.
    there: AtomicU64,
}

// SAFETY: the memory is shared with others anyway; access goes through atomics or copies.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of a file, writable.
    pub fn new(file: &File, len: u64) -> io::Result<Mapping> {
        Mapping::map(file, len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_NORESERVE)
    }

    fn map(file: &File, len: u64, access: i32, flags: i32) -> io::Result<Mapping> {
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping at an address of the host's choice.
        let base = unsafe { libc::mmap(null, len as usize, access, flags, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping { base: base.cast(), len: len as usize, there: AtomicU64::new(len) })
    }

    /// Maps as much as `most` bytes of a file that has `size` now.
    pub fn of_extents(file: &File, size: u64, most: u64) -> io::Result<Mapping> {
        let mapping = Mapping::new(file, most)?;
        mapping.there.store(size, Ordering::Relaxed);
        Ok(mapping)
    }

    /// Bytes that are there: [`Mapping::range`] gives no others.
    pub fn there(&self) -> u64 {
        self.there.load(Ordering::Relaxed)
    }

    /// Puts a mapping over `[from, to)`.
    fn replace(&self, from: u64, to: u64, flags: i32, file: i32) -> io::Result<()> {
        let (at, len) = (self.base.wrapping_add(from as usize), (to - from) as usize);
        let flags = flags | libc::MAP_FIXED | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: inside our own mapping; what others of this process still do there they do with what comes.
        let done = unsafe { libc::mmap(at.cast(), len, access, flags, file, from as i64) };
        if done == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Makes the file, of which this is a mapping, `size` bytes long, and shows what is there then. What it gets is zeroes.
    ///
    /// For one at a time. Threads that are in the middle of an access to what goes would be killed by it (SIGBUS): they get
    /// memory of nobody's in its place before.
    pub fn resize(&self, file: &File, size: u64) -> io::Result<()> {
        let before = self.there();
        if size < before {
            self.there.store(size, Ordering::SeqCst);
            self.replace(size, before, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)?;
            set_length(file, size)
        } else if size > before {
            set_length(file, size)?;
            self.replace(before, size, libc::MAP_SHARED, file.as_raw_fd())?;
            self.there.store(size, Ordering::SeqCst);
            Ok(())
        } else {
            Ok(())
        }
    }

    /// Start of the mapping.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Length of the mapping, bytes.
    #[allow(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// `len` bytes from `offset`, if they are there.
    pub fn range(&self, offset: u64, len: u64) -> Option<*mut u8> {
        let end = offset.checked_add(len)?;
        (end <= self.there()).then(|| self.base.wrapping_add(offset as usize))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping; references into it don't outlive it.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What can't be read is not taken for no limit.
    #[test]
    fn an_error_leaves_nothing() {
        let of = |failing: Option<(&'static str, io::ErrorKind)>| {
            headroom_by(|path| {
                let path = path.to_str().unwrap();
                match (failing, path) {
                    (Some((which, kind)), _) if which == path => Err(kind.into()),
                    (_, "/proc/meminfo") => Ok("MemTotal: 9 kB\nMemAvailable:  4 kB\n".into()),
                    (_, "/proc/self/cgroup") => Ok("0::/a/b\n".into()),
                    (_, "/sys/fs/cgroup/a/b/memory.max") => Ok("2000\n".into()),
                    (_, "/sys/fs/cgroup/a/b/memory.current") => Ok("500\n".into()),
                    (_, "/sys/fs/cgroup/a/memory.max") => Ok("max\n".into()),
                    (_, "/sys/fs/cgroup/a/memory.current") => Ok("700\n".into()),
                    _ => Err(io::ErrorKind::NotFound.into()),
                }
            })
            .ok()
        };
        let [meminfo, group, limit] = ["/proc/meminfo", "/proc/self/cgroup", "/sys/fs/cgroup/a/b/memory.max"];
        assert_eq!(of(None), Some(1500));
        let missing = |file| of(Some((file, io::ErrorKind::NotFound)));
        assert_eq!([meminfo, group, limit].map(missing), [Some(1500), Some(4096), Some(4096)]);
        for failing in [meminfo, group, limit] {
            assert_eq!(of(Some((failing, io::ErrorKind::Other))), None);
        }
        assert!(headroom() > 0);
    }
}
