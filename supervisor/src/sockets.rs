//! Host sockets for cells: made, bound and connected here, used there.
#![allow(unsafe_code, reason = "socket calls")]

use std::ffi::CStr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use atoll_abi::errno::Errno;
use atoll_abi::service::{NET_ATTRIBUTE, NET_ATTRIBUTES, NET_LIST, NET_TABLE, NET_TABLES, Op, Request};

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

/// The longest datagram that is sent to a Unix socket, bytes: what Linux's default for SO_SNDBUF has room for.
pub(crate) const DATAGRAM_MAX: usize = 212_992 - 32;

fn unix_socket(kind: i32) -> std::result::Result<OwnedFd, Errno> {
    let flags = kind | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no memory is involved; a new descriptor.
    unsafe { Ok(OwnedFd::from_raw_fd(check(libc::socket(libc::AF_UNIX, flags, 0) as i64)? as RawFd)) }
}

/// The address that is this path. None: it is too long for one.
fn unix_address(path: &CStr) -> Option<libc::sockaddr_un> {
    // SAFETY: a plain structure.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let path = path.to_bytes_with_nul();
    let room = address.sun_path.get_mut(..path.len())?;
    for (to, from) in room.iter_mut().zip(path) {
        *to = *from as libc::c_char;
    }
    Some(address)
}

/// Binds a new Unix socket of this type to a name in a directory, with these permissions. None: the name is too long for that.
/// One for datagrams can receive, and not send: it could send to any name.
pub(crate) fn bind_name(
    (directory, name): (RawFd, &CStr),
    kind: u64,
    permissions: u32,
) -> std::result::Result<Option<OwnedFd>, Errno> {
    let kind = kind as i32;
    if ![libc::SOCK_STREAM, libc::SOCK_SEQPACKET, libc::SOCK_DGRAM].contains(&kind) {
        return Err(Errno::EPROTONOSUPPORT);
    }
    let Some(address) = unix_address(name) else { return Ok(None) };
    let socket = unix_socket(kind)?;
    if kind == libc::SOCK_DGRAM {
        let (on, len) = (1i32, size_of::<i32>() as u32);
        // SAFETY: a valid value.
        let set = unsafe {
            let value = (&raw const on).cast();
            libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PASSCRED, value, len)
        };
        check(set as i64)?;
        // SAFETY: no memory is involved.
        check(unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_WR) } as i64)?;
    }
    // SAFETY: no memory is involved but the address, which is ours. By the name alone, so that this is what others are told it is called.
    // The thread's mask has been applied.
    let bound = unsafe {
        check(libc::fchmod(socket.as_raw_fd(), permissions) as i64)?;
        check(libc::fchdir(directory) as i64)?;
        let len = size_of::<libc::sockaddr_un>() as u32;
        let bound = check(libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) as i64);
        // It was possible before.
        libc::chdir(c"/".as_ptr());
        bound
    };
    match bound {
        Ok(_) => Ok(Some(socket)),
        Err(Errno::EADDRINUSE) => Err(Errno::EEXIST),
        Err(e) => Err(e),
    }
}

/// Connects a new Unix socket of this type to the one of this path.
pub(crate) fn connect_name(path: &CStr, kind: u64) -> std::result::Result<OwnedFd, Errno> {
    let address = unix_address(path).ok_or(Errno::ENAMETOOLONG)?;
    let socket = match kind as i32 {
        kind @ (libc::SOCK_STREAM | libc::SOCK_SEQPACKET | libc::SOCK_DGRAM) => unix_socket(kind)?,
        _ => return Err(Errno::EPROTONOSUPPORT),
    };
    let len = size_of::<libc::sockaddr_un>() as u32;
    // SAFETY: the address is ours.
    check(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len) } as i64)?;
    Ok(socket)
}

/// Sends a datagram of this user's to the Unix socket of this path. Value: bytes.
pub(crate) fn send_name(
    path: &CStr,
    datagram: &[u8],
    (uid, gid): (u32, u32),
) -> std::result::Result<usize, Errno> {
    let mut address = unix_address(path).ok_or(Errno::ENAMETOOLONG)?;
    let socket = unix_socket(libc::SOCK_DGRAM)?;
    let mut iov = libc::iovec { iov_base: datagram.as_ptr().cast_mut().cast(), iov_len: datagram.len() };
    let mut control = [0u64; 4];
    // SAFETY: a plain structure.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = (&raw mut address).cast();
    message.msg_namelen = size_of::<libc::sockaddr_un>() as u32;
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    // Else it would be of this thread's real ids, which stay what they are.
    let who = libc::ucred { pid: std::process::id() as i32, uid, gid };
    // SAFETY: the control buffer has room for one header and credentials; bytes and address are ours.
    let sent = unsafe {
        let c = libc::CMSG_FIRSTHDR(&raw const message);
        (*c).cmsg_level = libc::SOL_SOCKET;
        (*c).cmsg_type = libc::SCM_CREDENTIALS;
        (*c).cmsg_len = libc::CMSG_LEN(size_of::<libc::ucred>() as u32) as usize;
        libc::CMSG_DATA(c).cast::<libc::ucred>().write_unaligned(who);
        libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL)
    };
    check(sent as i64).map(|n| n as usize)
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
            let handle = Arc::new(Handle { fd, write: false, mount: None });
            Ok(Reply { value: server.add_handle(&handle)?, extra: 0, fd: Some(handle) })
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
        Op::Route => {
            let question = server.copy_in(r.a, QUESTION)?;
            let answer = ask(server.network, &question, r.arg[0] == 1, r.b.len as usize)?;
            Reply::value(server.copy_out(r.b, &answer)? as u64)
        }
        Op::Interface => interface(server, r),
        _ => Err(Errno::ENOSYS),
    }
}

/// The longest question about the network, bytes, and how long the host may take to answer.
const QUESTION: usize = 8 << 10;
static PATIENCE: libc::timeval = libc::timeval { tv_sec: 1, tv_usec: 0 };

/// A socket of this process's network for what is asked once.
fn socket_for(network: Policy, domain: i32, kind: i32) -> std::result::Result<OwnedFd, Errno> {
    if network == Policy::None {
        return Err(Errno::EAFNOSUPPORT);
    }
    // SAFETY: no memory is involved; a new descriptor.
    unsafe {
        Ok(OwnedFd::from_raw_fd(check(libc::socket(domain, kind | libc::SOCK_CLOEXEC, 0) as i64)? as RawFd))
    }
}

/// A message of rtnetlink(7) that asks for something, and all that the kernel answers, at most `most` bytes.
fn ask(network: Policy, question: &[u8], strict: bool, most: usize) -> std::result::Result<Vec<u8>, Errno> {
    const HEADER: usize = size_of::<libc::nlmsghdr>();
    // Length, kind, flags, sequence and port of a message.
    let header = |bytes: &[u8]| -> Option<(usize, u16, u16)> {
        let word = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?);
        let half = |at: usize| bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes);
        Some((word as usize, half(4)?, half(6)?))
    };
    let (len, kind, flags) = header(question).filter(|_| question.len() >= HEADER).ok_or(Errno::EINVAL)?;
    let asks = [
        libc::RTM_GETLINK,
        libc::RTM_GETADDR,
        libc::RTM_GETROUTE,
        libc::RTM_GETNEIGH,
        libc::RTM_GETRULE,
        libc::RTM_GETQDISC,
    ];
    if len != question.len() || !asks.contains(&kind) {
        return Err(Errno::EPERM);
    }
    let is_list = flags & libc::NLM_F_DUMP as u16 == libc::NLM_F_DUMP as u16;
    let mut question = question.to_vec();
    // One answer, or all of a list: no acknowledgement besides. Whose it is, only the cell knows.
    let flags = flags & !(libc::NLM_F_ACK as u16);
    question[6..8].copy_from_slice(&flags.to_ne_bytes());
    question[8..HEADER].fill(0);
    let socket = socket_for(network, libc::AF_NETLINK, libc::SOCK_RAW)?;
    let set = |level: i32, name: i32, value: *const libc::c_void, len: usize| {
        // SAFETY: a valid value of this length.
        check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, value, len as u32) } as i64)
    };
    set(libc::SOL_SOCKET, libc::SO_RCVTIMEO, (&raw const PATIENCE).cast(), size_of::<libc::timeval>())?;
    if strict {
        let on = 1i32;
        set(libc::SOL_NETLINK, libc::NETLINK_GET_STRICT_CHK, (&raw const on).cast(), size_of::<i32>())?;
    }
    // SAFETY: the message is ours.
    check(unsafe { libc::send(socket.as_raw_fd(), question.as_ptr().cast(), question.len(), 0) } as i64)?;
    let (mut answer, mut chunk) = (Vec::new(), vec![0u8; 64 << 10]);
    loop {
        // SAFETY: the buffer is ours.
        let n = check(unsafe {
            libc::recv(socket.as_raw_fd(), chunk.as_mut_ptr().cast(), chunk.len(), libc::MSG_TRUNC)
        } as i64)? as usize;
        let chunk = chunk.get(..n).ok_or(Errno::EMSGSIZE)?;
        if answer.len() + n > most {
            return Err(Errno::EMSGSIZE);
        }
        answer.extend_from_slice(chunk);
        let mut rest = chunk;
        let mut is_over = !is_list || n == 0;
        while let Some((len, kind, _)) = header(rest).filter(|(len, ..)| *len >= HEADER) {
            is_over |= [libc::NLMSG_DONE as u16, libc::NLMSG_ERROR as u16].contains(&kind);
            rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        }
        if is_over {
            return Ok(answer);
        }
    }
}

/// Where the host tells of its interfaces.
const INTERFACES: &str = "/sys/class/net";

/// What [`NET_LIST`] is answered with.
fn list_of_interfaces() -> std::io::Result<String> {
    let mut out = String::new();
    for entry in std::fs::read_dir(INTERFACES)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        // One may go meanwhile; and not all that is there is one (`bonding_masters`).
        let Ok(number) = std::fs::read_to_string(entry.path().join("ifindex")) else { continue };
        let is_virtual =
            std::fs::read_link(entry.path()).is_ok_and(|to| to.iter().any(|part| part == "virtual"));
        let kind = if is_virtual { "virtual" } else { "device" };
        out.push_str(&format!("{} {kind} {name}\n", number.trim()));
    }
    Ok(out)
}

fn errno_of(e: std::io::Error) -> Errno {
    Errno(e.raw_os_error().unwrap_or(libc::EIO) as u32)
}

/// What is asked of interfaces: by an `ioctl(2)` of netdevice(7), or in text.
fn interface(server: &Server, r: &Request) -> Outcome {
    let command = r.arg[0];
    if let NET_TABLE | NET_LIST | NET_ATTRIBUTE = command {
        // What the host says in /sys is of its own network.
        if server.network == Policy::None || command != NET_TABLE && server.network != Policy::Host {
            return Err(Errno::ENOENT);
        }
        let text = match command {
            NET_TABLE => {
                let table = NET_TABLES.get(r.arg[1] as usize).ok_or(Errno::ENOENT)?;
                // These are of the machine as a whole.
                if server.network != Policy::Host && (table.starts_with("sock") || *table == "softnet_stat") {
                    return Err(Errno::ENOENT);
                }
                std::fs::read(format!("/proc/self/net/{table}")).map_err(|_| Errno::ENOENT)?
            }
            NET_LIST => list_of_interfaces().map_err(errno_of)?.into_bytes(),
            _ => {
                let attribute = NET_ATTRIBUTES.get(r.arg[1] as usize).ok_or(Errno::ENOENT)?;
                let name = server.copy_in(r.a, libc::IFNAMSIZ)?;
                let name = std::str::from_utf8(&name).map_err(|_| Errno::ENODEV)?;
                if name.is_empty() || name.contains('/') || name == "." || name == ".." {
                    return Err(Errno::ENODEV);
                }
                // Some can't be told of some: what it says of that is the answer.
                std::fs::read(format!("{INTERFACES}/{name}/{attribute}")).map_err(errno_of)?
            }
        };
        server.copy_out(r.b, &text[..text.len().min(r.b.len as usize)])?;
        return Reply::value(text.len() as u64);
    }
    let socket = socket_for(server.network, libc::AF_INET, libc::SOCK_DGRAM)?;
    if command == libc::SIOCGIFCONF {
        let mut room = vec![0u8; (r.b.len as usize).min(64 << 10)];
        let mut list = libc::ifconf {
            ifc_len: room.len() as i32,
            ifc_ifcu: libc::__c_anonymous_ifc_ifcu { ifcu_buf: std::ptr::null_mut() },
        };
        if !room.is_empty() {
            list.ifc_ifcu.ifcu_buf = room.as_mut_ptr().cast();
        }
        // SAFETY: the structure and its buffer are ours.
        check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFCONF, &raw mut list) } as i64)?;
        let len = list.ifc_len.max(0) as usize;
        if !room.is_empty() {
            server.copy_out(r.b, &room[..len.min(room.len())])?;
        }
        return Reply::value(len as u64);
    }
    let asks = [
        libc::SIOCGIFNAME,
        libc::SIOCGIFFLAGS,
        libc::SIOCGIFADDR,
        libc::SIOCGIFDSTADDR,
        libc::SIOCGIFBRDADDR,
        libc::SIOCGIFNETMASK,
        libc::SIOCGIFMETRIC,
        libc::SIOCGIFMTU,
        libc::SIOCGIFHWADDR,
        libc::SIOCGIFINDEX,
        libc::SIOCGIFTXQLEN,
        libc::SIOCGIFMAP,
        libc::SIOCGARP,
    ];
    if !asks.contains(&command) {
        return Err(Errno::EPERM);
    }
    let size = if command == libc::SIOCGARP { size_of::<libc::arpreq>() } else { size_of::<libc::ifreq>() };
    let mut bytes = server.copy_in(r.a, size)?;
    if bytes.len() != size {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the structure of this command, which it fills.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), command as libc::Ioctl, bytes.as_mut_ptr()) } as i64)?;
    server.copy_out(r.a, &bytes)?;
    Reply::value(0)
}
