//! Short host calls on objects that the cell was given.
#![allow(unsafe_code, reason = "makes host calls with pointers to buffers")]

use core::sync::atomic::Ordering;

use crate::sys::{self, call};
use crate::{control, cores, result};
use atoll_abi::core_local::core_local;
use atoll_abi::errno::{Errno, Result};
use atoll_abi::platform::{HostBuf, HostCalls, ReadBuf, Received};
use atoll_abi::service::HostAttr;
use linux_raw_sys::{general as linux, ioctl, net};

/// Clock numbers of `clock_gettime(2)`.
pub const CLOCK_REALTIME: u32 = linux::CLOCK_REALTIME;
/// As above.
pub const CLOCK_THREAD_CPUTIME_ID: u32 = linux::CLOCK_THREAD_CPUTIME_ID;
/// As above.
pub const CLOCK_MONOTONIC: u32 = linux::CLOCK_MONOTONIC;

/// Reads a clock by the host's vDSO, ns.
#[inline]
pub fn clock(clock: u32) -> u64 {
    let f = core_local().clock_gettime.load(Ordering::Relaxed);
    let mut ts = [0i64; 2];
    // SAFETY: the platform stored the address of a function of this signature.
    unsafe {
        let f = core::mem::transmute::<usize, extern "C" fn(u32, *mut i64) -> i32>(f as usize);
        f(clock, ts.as_mut_ptr());
    }
    ts[0] as u64 * 1_000_000_000 + ts[1] as u64
}

/// Random bytes from the host.
pub(crate) fn random(out: &mut [u8]) {
    let mut done = 0;
    while done < out.len() {
        let rest = &mut out[done..];
        // SAFETY: fills our buffer.
        let n = unsafe { call!(sys::GETRANDOM, rest.as_mut_ptr(), rest.len(), 0) };
        if n > 0 {
            done += n as usize;
        }
    }
}

/// Writes a line to the log.
pub fn log(line: &str) {
    let fd = control().descriptor.log_fd.load(Ordering::Relaxed);
    // The pipe takes up to 4 KiB at once; one write keeps lines whole.
    let mut out = [0u8; 1024];
    let n = line.len().min(out.len() - 1);
    out[..n].copy_from_slice(&line.as_bytes()[..n]);
    out[n] = b'\n';
    // SAFETY: our buffer.
    unsafe { call!(sys::WRITE, fd, out.as_ptr(), n + 1) };
}

#[repr(C)]
struct MsgHdr {
    name: *mut u8,
    namelen: u32,
    iov: *const HostBuf<'static>,
    iovlen: usize,
    control: *mut u8,
    controllen: usize,
    flags: u32,
}

/// The descriptor that came with an answer.
pub(crate) fn take_descriptor() -> Result<i32> {
    let fd = control().descriptor.socket_fd[core_local().id()].load(Ordering::Relaxed);
    let mut byte = [0u8; 8];
    let buf = [HostBuf::from_mut(&mut byte)];
    let mut ctl = [0u64; 8];
    let mut msg = MsgHdr {
        name: core::ptr::null_mut(),
        namelen: 0,
        iov: buf.as_ptr().cast(),
        iovlen: 1,
        control: ctl.as_mut_ptr().cast(),
        controllen: size_of_val(&ctl),
        flags: 0,
    };
    // SAFETY: all pointers are to variables above.
    let n = unsafe { call!(sys::RECVMSG, fd, &raw mut msg, net::MSG_DONTWAIT | net::MSG_CMSG_CLOEXEC) };
    result(n)?;
    // cmsghdr: length, level and type, then the descriptor.
    if msg.controllen >= 20 && ctl[1] == (u64::from(net::SCM_RIGHTS) << 32 | u64::from(net::SOL_SOCKET)) {
        Ok(ctl[2] as i32)
    } else {
        Err(Errno::EBADF)
    }
}

/// [`HostCalls`] on this platform.
pub(crate) struct Calls;

impl HostCalls for Calls {
    fn read_at(&self, fd: i32, bufs: &[HostBuf], offset: u64) -> Result<usize> {
        // SAFETY: the buffers are valid for writing or the host says EFAULT.
        let n = unsafe { call!(sys::PREADV2, fd, bufs.as_ptr(), bufs.len(), offset, 0, linux::RWF_NOWAIT) };
        result(n).map(|n| n as usize)
    }

    fn write(&self, fd: i32, bufs: &[ReadBuf], may_wait: bool) -> Result<usize> {
        let flags = if may_wait { 0 } else { linux::RWF_NOWAIT };
        // SAFETY: the host only reads.
        let n = unsafe { call!(sys::PWRITEV2, fd, bufs.as_ptr(), bufs.len(), -1i64, -1i64, flags) };
        result(n).map(|n| n as usize)
    }

    fn receive(
        &self,
        fd: i32,
        bufs: &[HostBuf],
        addr: Option<&mut [u8]>,
        control: Option<&mut [u8]>,
        flags: u32,
    ) -> Result<Received> {
        if let ([one], None, None) = (bufs, &addr, &control)
            && flags & !net::MSG_PEEK == 0
        {
            // Most receives; without a message header the host has less to copy.
            let flags = flags | net::MSG_DONTWAIT;
            // SAFETY: one buffer of the caller's, which nobody else writes to.
            let n = unsafe { call!(sys::RECVFROM, fd, one.base(), one.len(), flags, 0, 0) };
            return Ok(Received { len: result(n)? as usize, addr_len: 0, control_len: 0, flags: 0 });
        }
        let mut msg = MsgHdr {
            name: core::ptr::null_mut(),
            namelen: 0,
            iov: bufs.as_ptr().cast(),
            iovlen: bufs.len(),
            control: core::ptr::null_mut(),
            controllen: 0,
            flags: 0,
        };
        if let Some(a) = addr {
            msg.name = a.as_mut_ptr();
            msg.namelen = a.len() as u32;
        }
        if let Some(c) = control {
            msg.control = c.as_mut_ptr();
            msg.controllen = c.len();
        }
        // SAFETY: as above.
        let n = unsafe {
            call!(sys::RECVMSG, fd, &raw mut msg, flags | net::MSG_DONTWAIT | net::MSG_CMSG_CLOEXEC)
        };
        let len = result(n)? as usize;
        let flags = msg.flags & !net::MSG_CMSG_CLOEXEC;
        Ok(Received { len, addr_len: msg.namelen as usize, control_len: msg.controllen, flags })
    }

    fn send(
        &self,
        fd: i32,
        bufs: &[ReadBuf],
        addr: Option<&[u8]>,
        control: &[u8],
        flags: u32,
    ) -> Result<usize> {
        if let ([one], None, []) = (bufs, addr, control) {
            let flags = flags | net::MSG_DONTWAIT | net::MSG_NOSIGNAL;
            // SAFETY: the host only reads.
            let n = unsafe { call!(sys::SENDTO, fd, one.base(), one.len(), flags, 0, 0) };
            return result(n).map(|n| n as usize);
        }
        let mut msg = MsgHdr {
            name: core::ptr::null_mut(),
            namelen: 0,
            iov: bufs.as_ptr().cast(),
            iovlen: bufs.len(),
            control: core::ptr::null_mut(),
            controllen: 0,
            flags: 0,
        };
        if let Some(a) = addr {
            msg.name = a.as_ptr().cast_mut();
            msg.namelen = a.len() as u32;
        }
        if !control.is_empty() {
            msg.control = control.as_ptr().cast_mut();
            msg.controllen = control.len();
        }
        // SAFETY: the host only reads.
        let n =
            unsafe { call!(sys::SENDMSG, fd, &raw const msg, flags | net::MSG_DONTWAIT | net::MSG_NOSIGNAL) };
        result(n).map(|n| n as usize)
    }

    fn accept(&self, fd: i32, addr: &mut [u8]) -> Result<(i32, usize)> {
        let mut len = addr.len() as u32;
        // SOCK_NONBLOCK and SOCK_CLOEXEC are these.
        let flags = linux::O_NONBLOCK | linux::O_CLOEXEC;
        // SAFETY: our buffer and its length.
        let n = unsafe { call!(sys::ACCEPT4, fd, addr.as_mut_ptr(), &raw mut len, flags) };
        result(n).map(|n| (n as i32, (len as usize).min(addr.len())))
    }

    fn shutdown(&self, fd: i32, how: u32) -> Result<()> {
        // SAFETY: no memory is involved.
        result(unsafe { call!(sys::SHUTDOWN, fd, how) }).map(drop)
    }

    fn get_option(&self, fd: i32, level: u32, name: u32, value: &mut [u8]) -> Result<usize> {
        let mut len = value.len() as u32;
        // SAFETY: our buffer and its length.
        let n = unsafe { call!(sys::GETSOCKOPT, fd, level, name, value.as_mut_ptr(), &raw mut len) };
        result(n).map(|_| len as usize)
    }

    fn set_option(&self, fd: i32, level: u32, name: u32, value: &[u8]) -> Result<()> {
        // SAFETY: our buffer and its length.
        result(unsafe { call!(sys::SETSOCKOPT, fd, level, name, value.as_ptr(), value.len()) }).map(drop)
    }

    fn name(&self, fd: i32, peer: bool, addr: &mut [u8]) -> Result<usize> {
        let mut len = addr.len() as u32;
        let n = if peer { sys::GETPEERNAME } else { sys::GETSOCKNAME };
        // SAFETY: our buffer and its length.
        result(unsafe { call!(n, fd, addr.as_mut_ptr(), &raw mut len) })?;
        Ok((len as usize).min(addr.len()))
    }

    fn queued(&self, fd: i32, out: bool) -> Result<u32> {
        let mut n = 0i32;
        // SIOCOUTQ is TIOCOUTQ's number.
        let request = if out { ioctl::TIOCOUTQ } else { ioctl::FIONREAD };
        // SAFETY: the host writes an int.
        result(unsafe { call!(sys::IOCTL, fd, request, &raw mut n) }).map(|_| n as u32)
    }

    fn probe(&self, fd: i32) -> u32 {
        let normal = linux::POLLRDNORM | linux::POLLWRNORM | linux::POLLWRBAND;
        let wanted = linux::POLLIN | linux::POLLOUT | normal | linux::POLLRDHUP | linux::POLLPRI;
        let mut p = linux::pollfd { fd, events: wanted as i16, revents: 0 };
        // SAFETY: one valid entry, no waiting.
        unsafe { call!(sys::POLL, &raw mut p, 1, 0) };
        u32::from(p.revents as u16)
    }

    fn watch(&self, fd: i32, cookie: u64) -> Result<usize> {
        cores::watch(fd, cookie)
    }

    fn unwatch(&self, fd: i32, core: usize) -> Result<()> {
        cores::unwatch(fd, core)
    }

    fn looks(&self, core: usize) -> u32 {
        control().cores[core].looks.load(Ordering::SeqCst)
    }

    fn close_watched(&self, fd: i32, core: usize) {
        self.close(fd);
        control().cores[core].watched.fetch_sub(1, Ordering::Relaxed);
    }

    fn stat(&self, fd: i32) -> Result<HostAttr> {
        // SAFETY: a plain structure for the host to fill.
        let mut s: linux::stat = unsafe { core::mem::zeroed() };
        // SAFETY: as above.
        result(unsafe { call!(sys::FSTAT, fd, &raw mut s) })?;
        Ok(HostAttr {
            ino: s.st_ino,
            dev: s.st_dev,
            size: s.st_size as u64,
            blocks: s.st_blocks as u64,
            rdev: s.st_rdev,
            mode: s.st_mode,
            nlink: s.st_nlink as u32,
            uid: s.st_uid,
            gid: s.st_gid,
            blksize: s.st_blksize as u32,
            atime_nsec: s.st_atime_nsec as u32,
            mtime_nsec: s.st_mtime_nsec as u32,
            ctime_nsec: s.st_ctime_nsec as u32,
            atime: s.st_atime as i64,
            mtime: s.st_mtime as i64,
            ctime: s.st_ctime as i64,
        })
    }

    fn close(&self, fd: i32) {
        // SAFETY: no memory is involved.
        unsafe { call!(sys::CLOSE, fd) };
    }
}
