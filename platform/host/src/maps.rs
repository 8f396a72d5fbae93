//! Mappings of the current space on the host.
#![allow(unsafe_code, reason = "changes the address space")]

use core::sync::atomic::Ordering;

use crate::sys::{self, call};
use crate::{control, result};
use atoll_abi::errno::{Errno, Result};
use atoll_abi::platform::{Access, Backing};
use atoll_mem::user::taken_away;
use linux_raw_sys::general as linux;

fn protection(access: Access) -> u32 {
    let mut p = 0;
    if access.contains(Access::READ) {
        p |= linux::PROT_READ;
    }
    if access.contains(Access::WRITE) {
        p |= linux::PROT_WRITE;
    }
    if access.contains(Access::EXEC) {
        p |= linux::PROT_EXEC;
    }
    p
}

/// See [`atoll_abi::Platform::map`].
///
/// # Safety
/// As there.
pub(crate) unsafe fn map(addr: u64, len: u64, access: Access, backing: Backing) -> Result<()> {
    let (fd, offset, kind) = match backing {
        Backing::Memory { offset } => {
            let memory = control().descriptor.memory.load(Ordering::Relaxed);
            // The host would take it, and an access would be SIGBUS.
            if offset.checked_add(len).is_none_or(|end| end > memory) {
                return Err(Errno::EINVAL);
            }
            (control().descriptor.memory_fd.load(Ordering::Relaxed), offset, linux::MAP_SHARED)
        }
        Backing::File { fd, offset, shared } => {
            (fd, offset, if shared { linux::MAP_SHARED } else { linux::MAP_PRIVATE })
        }
        // SAFETY: the caller's promise.
        Backing::Nothing => return unsafe { unmap(addr, len) },
    };
    let mut flags = kind | linux::MAP_FIXED;
    if access.contains(Access::POPULATE) {
        flags |= linux::MAP_POPULATE;
    }
    // SAFETY: the range is the program's.
    let done = unsafe { call!(sys::MMAP, addr, len, protection(access), flags, fd, offset) };
    if !access.contains(Access::WRITE) {
        taken_away();
    }
    result(done).map(drop)
}

/// See [`atoll_abi::Platform::unmap`].
///
/// # Safety
/// As there.
pub(crate) unsafe fn unmap(addr: u64, len: u64) -> Result<()> {
    // SAFETY: the range is the program's.
    let done = unsafe { call!(sys::MUNMAP, addr, len) };
    taken_away();
    result(done).map(drop)
}

/// See [`atoll_abi::Platform::protect`].
///
/// # Safety
/// As there.
pub(crate) unsafe fn protect(addr: u64, len: u64, access: Access) -> Result<()> {
    // SAFETY: the range is the program's.
    let done = unsafe { call!(sys::MPROTECT, addr, len, protection(access)) };
    taken_away();
    result(done).map(drop)
}
