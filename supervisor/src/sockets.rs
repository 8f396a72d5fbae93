//! Host sockets for cells: made, bound and connected here, used there.
#![allow(unsafe_code, reason = "socket calls")]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use atoll_abi::errno::Errno;
use atoll_abi::service::{Op, Request};

use crate::memory;
use crate::serve::{Handle, Outcome, Reply, Server, check};

/// What a cell may do on the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// Whatever its user may.
    Host,
    /// Talk to itself: its sockets are in a network namespace of its own.
    Loopback,
    /// Nothing.
    None,
}

/// Moves this process, which has one thread, to a network that has nothing but a loopback.
pub(crate) fn own_network() -> std::io::Result<()> {
    // SAFETY: no memory is involved; all namespaces but the network's stay.
    memory::check(unsafe { libc::unshare(libc::CLONE_NEWNET) } as i64)?;
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    // SAFETY: no memory is involved.
    let socket = memory::check(unsafe { libc::socket(libc::AF_INET, kind, 0) } as i64)?;
    // SAFETY: just opened.
    let socket = unsafe { OwnedFd::from_raw_fd(socket as RawFd) };
    // SAFETY: a plain structure, whose name is shorter than its room.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    // SAFETY: the structure that this command reads.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    memory::check(done as i64).map(drop)
}

/// Serves a socket request.
pub(crate) fn serve(server: &Server, op: Op, r: &Request) -> Outcome {
    match op {
        Op::Socket => {
            if server.network == Policy::None {
                return Err(Errno::EAFNOSUPPORT);
            }
            let (domain, kind, protocol) = (r.arg[0] as i32, r.arg[1] as i32, r.arg[2] as i32);
            let known = matches!(
                (domain, kind, protocol),
                (libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP)
                    | (
                        libc::AF_INET | libc::AF_INET6,
                        libc::SOCK_DGRAM,
                        0 | libc::IPPROTO_UDP | libc::IPPROTO_ICMP | libc::IPPROTO_ICMPV6
                    )
            );
            if !known {
                return Err(Errno::EPROTONOSUPPORT);
            }
            let flags = kind | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
            // SAFETY: no memory is involved; a new descriptor.
            let fd = unsafe {
                OwnedFd::from_raw_fd(check(libc::socket(domain, flags, protocol) as i64)? as RawFd)
            };
            let pass = fd.try_clone().map_err(|_| Errno::EMFILE)?;
            let n = server.add_handle(Handle { fd, write: false, mount: None })?;
            Ok(Reply { value: n, extra: 0, fd: Some(pass) })
        }
        Op::Bind | Op::Connect => {
            let h = server.handle(r.arg[0])?;
            let addr = server.copy_in(r.a, 128)?;
            if addr.len() >= 2 {
                // Names on the host are not for cells.
                let family = u16::from_ne_bytes([addr[0], addr[1]]);
                let allowed = [libc::AF_INET, libc::AF_INET6, libc::AF_UNSPEC];
                if !allowed.contains(&i32::from(family)) {
                    return Err(Errno::EAFNOSUPPORT);
                }
            }
            let (p, len) = (addr.as_ptr().cast(), addr.len() as u32);
            // SAFETY: the address is ours.
            check(unsafe {
                if op == Op::Bind {
                    libc::bind(h.fd.as_raw_fd(), p, len)
                } else {
                    libc::connect(h.fd.as_raw_fd(), p, len)
                }
            } as i64)?;
            Reply::value(0)
        }
        Op::Listen => {
            let h = server.handle(r.arg[0])?;
            // SAFETY: no memory is involved.
            check(unsafe { libc::listen(h.fd.as_raw_fd(), r.arg[1] as i32) } as i64)?;
            Reply::value(0)
        }
        _ => Err(Errno::ENOSYS),
    }
}
