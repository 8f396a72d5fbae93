//! The files behind a cell's memory.
#![allow(unsafe_code, reason = "makes host calls that have no safe wrapper here")]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use crate::{Error, Result};

/// Turns -1 into the host's error.
pub(crate) fn check(ret: i64) -> io::Result<i64> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

fn cstring(s: &str) -> CString {
    CString::new(s).expect("names here have no zero byte")
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
    file.set_len(size)?;
    Ok(file)
}

/// Keeps a memory file from growing, whoever has a descriptor of it.
fn seal_size(file: File) -> io::Result<File> {
    // SAFETY: no memory is involved.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_GROW) } as i64)?;
    Ok(file)
}

/// A file on a private tmpfs whose pages are huge, and what keeps the file
/// system mounted: taking it down takes a while, and the file does not need it.
fn huge(size: u64) -> io::Result<(File, OwnedFd)> {
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
    option(&context, "size", &size.to_string())?;
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
    file.set_len(size)?;
    Ok((file, mount))
}

/// The file of a cell's extents; if its pages are huge, its file system's
/// mount, to be let go when there is time.
pub fn extents(size: u64) -> Result<(File, Option<OwnedFd>)> {
    if let Ok((file, mount)) = huge(size) {
        return Ok((file, Some(mount)));
    }
    // The cell has this descriptor, and could write behind the end of an unsealed file to get more.
    let file = anonymous("atoll memory", size)
        .and_then(seal_size)
        .map_err(|e| Error::with("no memory file for the cell", e))?;
    Ok((file, None))
}

/// Bytes of memory that this process may still take: what the host has left, and what the limits of its
/// control groups (cgroups(7)) leave.
pub fn headroom() -> u64 {
    let text = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    let number = |path: &Path| text(path).trim().parse::<u64>().ok();
    let available = text(Path::new("/proc/meminfo"))
        .lines()
        .find_map(|l| l.strip_prefix("MemAvailable:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    let mut left = available.map_or(u64::MAX, |kib| kib << 10);
    for line in text(Path::new("/proc/self/cgroup")).lines() {
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
            if let (Some(limit), Some(now)) = (number(&group.join(limit)), number(&group.join(now))) {
                left = left.min(limit.saturating_sub(now));
            }
        }
    }
    left
}

/// Bytes of host memory behind a memory file now.
pub(crate) fn used(file: &File) -> u64 {
    use std::os::unix::fs::MetadataExt;
    file.metadata().map_or(0, |m| m.blocks() * 512)
}

/// A mapping of a shared file in this process.
pub struct Mapping {
    base: *mut u8,
    len: usize,
}

// SAFETY: the memory is shared with others anyway; access goes through atomics or copies.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of a file, writable.
    pub fn new(file: &File, len: u64) -> io::Result<Mapping> {
        // SAFETY: a new mapping at an address of the host's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping { base: base.cast(), len: len as usize })
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

    /// `len` bytes from `offset`, if that is inside.
    pub fn range(&self, offset: u64, len: u64) -> Option<*mut u8> {
        let end = offset.checked_add(len)?;
        (end <= self.len as u64).then(|| self.base.wrapping_add(offset as usize))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping; references into it don't outlive it.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}
