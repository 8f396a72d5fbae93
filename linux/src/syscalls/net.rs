//! Socket calls.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::Ordering;

use atoll_abi::control::platform_kind;
use atoll_abi::grid::Quota;
use atoll_abi::layout::is_user_range;
use atoll_abi::{Errno, Result, platform};
use atoll_fs::host;
use atoll_fs::namespace::{How, Target, Walker};
use atoll_fs::node::{InodeRef, NewNode};
use atoll_fs::tmp::TmpNode;
use atoll_fs::types::{NewMode, may};
use atoll_fs::{FileType, Location, Sink, Source, poll};
use atoll_mem::io::{in_part, reading, writing};
use atoll_mem::user;
use atoll_net::address::ADDRESS_MAX;
use atoll_net::host::HostSocket;
use atoll_net::route::{Answerer, Protocol, RouteSocket, ask_interface, list_interfaces};
use atoll_net::unix::{self, Ancillary, Credentials, Kind, Owner, UnixSocket, is_switch};
use atoll_net::{Address, Shutdown};
use atoll_sync::Mutex;
use hashbrown::HashMap;
use linux_raw_sys::{general as linux, ioctl as ctl, net};
use zerocopy::{FromBytes, IntoBytes};

use super::events::held;
use super::fd::{Pieces, TRANSFER_MAX};
use super::{Call, unsupported};
use crate::files::FileRef;
use crate::process::{Process, Task, find_process, world};
use crate::signal;
use crate::sock_diag;
use crate::socket::{Found, Inner, Message, SocketFile, owner, sender};
use crate::types::{CmsgHdr, MmsgHdr, MsgHdr, Siginfo, Timespec, Timeval, Ucred, get, put};

const CLOEXEC: u32 = linux::O_CLOEXEC;
const NONBLOCK: u32 = linux::O_NONBLOCK;
/// One more than the highest protocol (IPPROTO_MAX).
const PROTOCOLS: u32 = 263;
const MSG_WAITFORONE: u32 = 0x10000;
/// Most bytes of control messages (`net.core.optmem_max`).
const CONTROL_MAX: usize = 128 << 10;
/// Most files that one message passes (SCM_MAX_FD).
const FILES_MAX: usize = 253;
/// Most messages of one sendmmsg or recvmmsg (UIO_MAXIOV).
const MESSAGES_MAX: u32 = 1024;

type Bound = HashMap<(u64, u64), Weak<UnixSocket>>;

/// Sockets bound to names that are not in a tmpfs, by device and inode.
static BOUND: Mutex<Option<Bound>> = Mutex::new(None);

fn with<R>(c: &Call, f: impl FnOnce(&FileRef, &SocketFile) -> Result<R>) -> Result<R> {
    let file = c.file(0)?;
    let socket = file.as_type::<SocketFile>().ok_or(Errno::ENOTSOCK)?;
    f(&file, socket)
}

fn get_address(addr: u64, len: u64) -> Result<Address> {
    if len > ADDRESS_MAX as u64 {
        return Err(Errno::EINVAL);
    }
    let mut bytes = [0u8; ADDRESS_MAX];
    user::read(addr, &mut bytes[..len as usize])?;
    Address::new(&bytes[..len as usize])
}

/// Writes an address as far as there is room, and its full length.
fn put_address(a: &Address, addr: u64, len_addr: u64) -> Result<()> {
    let room: i32 = get(len_addr)?;
    if room < 0 {
        return Err(Errno::EINVAL);
    }
    let n = (room as usize).min(a.bytes().len());
    user::write(addr, &a.bytes()[..n])?;
    put(len_addr, &(a.bytes().len() as u32))
}

fn unix_kind(kind: u32) -> Result<Kind> {
    match kind {
        net::SOCK_STREAM => Ok(Kind::Stream),
        net::SOCK_DGRAM | net::SOCK_RAW => Ok(Kind::Datagram),
        net::SOCK_SEQPACKET => Ok(Kind::SeqPacket),
        _ => Err(Errno::ESOCKTNOSUPPORT),
    }
}

/// The type of socket that is of this kind.
fn type_of(kind: Kind) -> u32 {
    match kind {
        Kind::Stream => net::SOCK_STREAM,
        Kind::Datagram => net::SOCK_DGRAM,
        Kind::SeqPacket => net::SOCK_SEQPACKET,
    }
}

/// `socket(2)`.
pub fn socket(c: &mut Call) -> Result<u64> {
    let (domain, kind, protocol) = (c.uint(0), c.uint(1), c.uint(2));
    let flags = kind & (CLOEXEC | NONBLOCK);
    let kind = kind & !(CLOEXEC | NONBLOCK);
    if kind & !0xf != 0 || (protocol as i32) < 0 || protocol >= PROTOCOLS {
        return Err(Errno::EINVAL);
    }
    let held = || held(c, Quota::Channels);
    let (inner, kind, held) = match domain {
        net::AF_UNIX => {
            if protocol > 1 {
                return Err(Errno::EPROTONOSUPPORT);
            }
            let kind = if kind == net::SOCK_RAW { net::SOCK_DGRAM } else { kind };
            let unix = unix_kind(kind)?;
            let held = held()?;
            (Inner::Unix(UnixSocket::new(unix, owner(c.task))), kind, held)
        }
        net::AF_INET | net::AF_INET6 => {
            if !world().host_network {
                return Err(Errno::EAFNOSUPPORT);
            }
            match kind {
                net::SOCK_STREAM => {
                    if protocol != 0 && protocol != net::IPPROTO_TCP as u32 {
                        return Err(Errno::EPROTONOSUPPORT);
                    }
                    let held = held()?;
                    (Inner::Stream(HostSocket::new(domain, true, protocol)?), kind, held)
                }
                net::SOCK_DGRAM => {
                    let held = held()?;
                    (Inner::Datagram(HostSocket::new(domain, false, protocol)?), kind, held)
                }
                net::SOCK_RAW => return Err(Errno::EPERM),
                _ => return Err(Errno::ESOCKTNOSUPPORT),
            }
        }
        net::AF_NETLINK => {
            if protocol != NETLINK_SOCK_DIAG && !can_ask_network() {
                return Err(Errno::EAFNOSUPPORT);
            }
            if !matches!(kind, net::SOCK_RAW | net::SOCK_DGRAM) {
                return Err(Errno::ESOCKTNOSUPPORT);
            }
            let of = match protocol {
                NETLINK_ROUTE => Protocol::Route,
                NETLINK_KOBJECT_UEVENT => Protocol::Events,
                NETLINK_SOCK_DIAG => Protocol::Sockets,
                _ => return Err(Errno::EPROTONOSUPPORT),
            };
            let answerer = (of == Protocol::Sockets).then_some(sock_diag::answer as Answerer);
            (Inner::Datagram(RouteSocket::new(of, c.task.process.pid, answerer)), kind, held()?)
        }
        _ => {
            let what = alloc::format!("socket of family {domain}");
            return Err(unsupported(c.task, &what, Errno::EAFNOSUPPORT));
        }
    };
    let file = SocketFile::new(inner, domain, kind, protocol, held).open(flags & NONBLOCK != 0);
    c.install(file, flags & CLOEXEC != 0)
}

/// Is there a kernel below that knows the cell's network? The nucleus has none.
pub(crate) fn can_ask_network() -> bool {
    let on_host = platform().control().descriptor.platform.load(Ordering::Relaxed) == platform_kind::HOST;
    world().host_network && on_host
}

/// The protocols of netlink(7) that there are here.
const NETLINK_ROUTE: u32 = 0;
const NETLINK_SOCK_DIAG: u32 = 4;
const NETLINK_KOBJECT_UEVENT: u32 = 15;

/// Bytes of a `struct ifreq`, and of a `struct arpreq` (arp(7)).
const REQUEST: usize = 40;
const NEIGHBOUR: usize = 68;

/// `ioctl(2)` of netdevice(7) and arp(7), as far as it only asks.
pub(super) fn interface(command: u32, arg: u64) -> Result<u64> {
    if !can_ask_network() {
        return Err(Errno::ENOTTY);
    }
    if command != ctl::SIOCGIFCONF {
        let mut request = alloc::vec![0; if command == ctl::SIOCGARP { NEIGHBOUR } else { REQUEST }];
        user::read(arg, &mut request)?;
        ask_interface(command, &mut request)?;
        return user::write(arg, &request).map(|()| 0);
    }
    let [len, _, low, high]: [u32; 4] = get(arg)?;
    let to = u64::from(high) << 32 | u64::from(low);
    let room = if to == 0 { 0 } else { (len as usize).min(64 << 10) / REQUEST * REQUEST };
    let mut list = atoll_mem::buffer(room)?;
    let bytes = if to != 0 && room == 0 { 0 } else { list_interfaces(&mut list)? };
    user::write(to, &list[..room.min(bytes as usize)])?;
    put(arg, &(bytes as u32)).map(|()| 0)
}

/// `SIOCETHTOOL`: whether there is an interface of this name is known, but of its card nothing can be asked.
pub(super) fn card(arg: u64) -> Result<u64> {
    if !can_ask_network() {
        return Err(Errno::ENOTTY);
    }
    let mut request = alloc::vec![0; REQUEST];
    user::read(arg, &mut request)?;
    ask_interface(ctl::SIOCGIFINDEX, &mut request)?;
    Err(Errno::EOPNOTSUPP)
}

/// `socketpair(2)`.
pub fn socketpair(c: &mut Call) -> Result<u64> {
    let (domain, kind) = (c.uint(0), c.uint(1));
    let flags = kind & (CLOEXEC | NONBLOCK);
    let kind = kind & !(CLOEXEC | NONBLOCK);
    if kind & !0xf != 0 {
        return Err(Errno::EINVAL);
    }
    match domain {
        net::AF_UNIX => {}
        net::AF_INET | net::AF_INET6 => {
            // There are such sockets, but no pairs of them.
            let known = match kind {
                net::SOCK_STREAM => [0, net::IPPROTO_TCP as u32].contains(&c.uint(2)),
                net::SOCK_DGRAM => [0, net::IPPROTO_UDP as u32].contains(&c.uint(2)),
                _ => true,
            };
            return Err(if known { Errno::EOPNOTSUPP } else { Errno::EPROTONOSUPPORT });
        }
        net::AF_NETLINK => return Err(Errno::EOPNOTSUPP),
        _ => return Err(Errno::EAFNOSUPPORT),
    }
    if c.uint(2) > 1 {
        return Err(Errno::EPROTONOSUPPORT);
    }
    let unix = unix_kind(kind)?;
    let held = [held(c, Quota::Channels)?, held(c, Quota::Channels)?];
    let (a, b) = UnixSocket::pair(unix, owner(c.task));
    let nonblock = flags & NONBLOCK != 0;
    let open = |u, held| SocketFile::new(Inner::Unix(u), domain, kind, 0, held).open(nonblock);
    let [one, other] = held;
    let first = c.install(open(a, one), flags & CLOEXEC != 0)?;
    let second = match c.install(open(b, other), flags & CLOEXEC != 0) {
        Ok(n) => n,
        Err(e) => {
            drop(c.task.files.remove(first as u32));
            return Err(e);
        }
    };
    if let Err(e) = user::write(c.arg(3), [first as i32, second as i32].as_bytes()) {
        drop(c.task.files.remove(first as u32));
        drop(c.task.files.remove(second as u32));
        return Err(e);
    }
    Ok(0)
}

fn walker_parts(task: &Task) -> (Location, Location, atoll_fs::Cred) {
    (task.fs.root.lock().clone(), task.fs.cwd.lock().clone(), task.cred())
}

/// Makes a socket's name in the tree.
fn bind_path(task: &Task, u: &Arc<UnixSocket>, path: &[u8]) -> Result<()> {
    if u.is_bound() {
        return Err(Errno::EINVAL);
    }
    let (root, cwd, cred) = walker_parts(task);
    let walker = Walker { tree: &world().tree, root: &root, cred: &cred };
    let walk = walker.walk(&cwd, path, How { no_follow: true, ..How::default() })?;
    if !matches!(walk.target, Target::Missing) {
        return Err(Errno::EADDRINUSE);
    }
    // As Linux does it: the mask takes even where a default ACL is in its place.
    let mode = NewMode::exactly(super::path::new_mode(task, 0o777).masked());
    // In a volume others outside find it, too.
    let place = walker
        .create(&walk, NewNode::Special(FileType::Socket, type_of(u.kind).into()), mode)
        .map_err(|e| if e == Errno::EEXIST { Errno::EADDRINUSE } else { e })?;
    if let Some((handle, fd)) = host::take_socket(&place.inode) {
        u.be_found_outside(fd, handle);
    }
    u.bind_path(path)?;
    if let Some(node) = place.inode.as_any().downcast_ref::<TmpNode>() {
        let weak: Weak<dyn Any + Send + Sync> = Arc::downgrade(&(u.clone() as Arc<dyn Any + Send + Sync>));
        *node.attachment().lock() = Some(weak);
    } else {
        let a = place.inode.attr()?;
        let mut all = BOUND.lock();
        let all = all.get_or_insert_with(HashMap::new);
        all.retain(|_, s| s.strong_count() > 0);
        all.insert((a.dev, a.ino), Arc::downgrade(u));
    }
    Ok(())
}

/// Finds the socket behind a name in the tree.
fn find_path(task: &Task, path: &[u8]) -> Result<Found> {
    let (root, cwd, cred) = walker_parts(task);
    let walker = Walker { tree: &world().tree, root: &root, cred: &cred };
    let place = walker.find(&cwd, path, true)?;
    let attr = place.inode.attr()?;
    cred.check(&attr, may::WRITE)?;
    if place.inode.kind() != FileType::Socket {
        return Err(Errno::ECONNREFUSED);
    }
    if let Some(node) = place.inode.as_any().downcast_ref::<TmpNode>() {
        let attached = node.attachment().lock().clone();
        return attached
            .and_then(|w| w.upgrade())
            .and_then(|a| a.downcast::<UnixSocket>().ok())
            .map(Found::Here)
            .ok_or(Errno::ECONNREFUSED);
    }
    let here = BOUND.lock().as_ref().and_then(|m| m.get(&(attr.dev, attr.ino))).and_then(Weak::upgrade);
    Ok(here.map_or_else(|| Found::Outside(place.inode.clone()), Found::Here))
}

fn find_unix(task: &Task, addr: &Address, kind: Kind) -> Result<Found> {
    match unix::parse(addr)? {
        unix::Target::Path(p) => find_path(task, &p),
        unix::Target::Abstract(n) => {
            // Linux looks for name and kind together.
            let u = unix::find_abstract(&n)?;
            if u.kind == kind { Ok(Found::Here(u)) } else { Err(Errno::ECONNREFUSED) }
        }
        unix::Target::Unnamed => Err(Errno::EINVAL),
    }
}

/// Connects a Unix socket to whoever has this name outside the cell, and waits for room in the backlog if it `waits`.
fn connect_outside(task: &Task, s: &SocketFile, u: &UnixSocket, name: &InodeRef, waits: bool) -> Result<()> {
    u.may_connect()?;
    let fd = s.tries(waits, || host::connect_socket(name, type_of(u.kind), &task.cred()))?;
    u.connect_outside(fd)
}

/// Ports that not everybody may have end here (`ip_unprivileged_port_start`, ip(7)).
const UNPRIVILEGED: u16 = 1024;

/// The port of an IP socket's address.
fn port(addr: &[u8]) -> Option<u16> {
    let (family, rest) = addr.split_first_chunk()?;
    let known = matches!(u32::from(u16::from_ne_bytes(*family)), net::AF_INET | net::AF_INET6);
    rest.first_chunk().filter(|_| known).map(|port| u16::from_be_bytes(*port))
}

/// `bind(2)`.
pub fn bind(c: &mut Call) -> Result<u64> {
    with(c, |_, s| {
        let addr = get_address(c.arg(1), c.arg(2))?;
        match &s.inner {
            Inner::Unix(u) => match unix::parse(&addr)? {
                unix::Target::Path(p) => bind_path(c.task, u, &p)?,
                unix::Target::Abstract(n) => u.bind_abstract(Some(&n))?,
                unix::Target::Unnamed => u.bind_abstract(None)?,
            },
            _ => {
                let low = port(addr.bytes()).is_some_and(|port| (1..UNPRIVILEGED).contains(&port));
                if low && !c.task.may(linux::CAP_NET_BIND_SERVICE) {
                    return Err(Errno::EACCES);
                }
                s.handle().ok_or(Errno::ENOTSOCK)?.bind(&addr)?
            }
        }
        Ok(0)
    })
}

/// `listen(2)`.
pub fn listen(c: &mut Call) -> Result<u64> {
    with(c, |_, s| {
        match &s.inner {
            Inner::Stream(h) => h.listen(c.uint(1))?,
            Inner::Datagram(_) => return Err(Errno::EOPNOTSUPP),
            Inner::Unix(u) => {
                u.set_owner(owner(c.task));
                u.listen(c.uint(1))?;
            }
        }
        Ok(0)
    })
}

fn do_accept(c: &Call, flags: u32) -> Result<u64> {
    if flags & !(CLOEXEC | NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    with(c, |file, s| {
        // Before there is a connection, which could not be put back.
        let place = c.reserve(flags & CLOEXEC != 0)?;
        let held = held(c, Quota::Channels)?;
        let (inner, from) = match &s.inner {
            Inner::Stream(h) => {
                let (conn, from) = s.patiently(file.nonblock(), false, || h.accept())?;
                (Inner::Stream(conn), from)
            }
            Inner::Datagram(_) => return Err(Errno::EOPNOTSUPP),
            Inner::Unix(u) => {
                if u.kind == Kind::Datagram {
                    return Err(Errno::EOPNOTSUPP);
                }
                let conn = s.patiently(file.nonblock(), false, || u.accept())?;
                let from = conn.peer_address().unwrap_or(Address::empty());
                (Inner::Unix(conn), from)
            }
        };
        let new = SocketFile::new(inner, s.domain, s.kind, s.protocol, held).open(flags & NONBLOCK != 0);
        if c.arg(1) != 0 {
            put_address(&from, c.arg(1), c.arg(2))?;
        }
        Ok(u64::from(place.fill(new)))
    })
}

/// `accept(2)`.
pub fn accept(c: &mut Call) -> Result<u64> {
    do_accept(c, 0)
}

/// `accept4(2)`.
pub fn accept4(c: &mut Call) -> Result<u64> {
    do_accept(c, c.uint(3))
}

/// `connect(2)`.
pub fn connect(c: &mut Call) -> Result<u64> {
    with(c, |file, s| {
        let addr = get_address(c.arg(1), c.arg(2))?;
        let handle = match &s.inner {
            Inner::Unix(u) => {
                if addr.family() == net::AF_UNSPEC && u.kind == Kind::Datagram {
                    if addr.bytes().len() < 2 {
                        return Err(Errno::EINVAL);
                    }
                    u.disconnect();
                    return Ok(0);
                }
                u.set_owner(owner(c.task));
                let nonblock = file.nonblock();
                let to = match find_unix(c.task, &addr, u.kind)? {
                    Found::Here(to) => to,
                    Found::Outside(name) if u.kind == Kind::Datagram => {
                        host::find_socket(&name, &c.task.cred())?;
                        if let unix::Target::Path(path) = unix::parse(&addr)? {
                            u.send_far(name, &path);
                        }
                        return Ok(0);
                    }
                    Found::Outside(name) => {
                        return connect_outside(c.task, s, u, &name, !nonblock).map(|()| 0);
                    }
                };
                // EAGAIN: the backlog is full.
                return s.patiently(nonblock, true, || u.connect(&to, !nonblock)).map(|()| 0);
            }
            _ => s.handle().ok_or(Errno::ENOTSOCK)?,
        };
        // That it is connected is told in the same way.
        s.lacks_room();
        match handle.connect(&addr) {
            // An attempt of an earlier call, which a signal ended or which didn't wait, is waited for, too.
            Err(e @ (Errno::EINPROGRESS | Errno::EALREADY)) if !file.nonblock() => {
                let done = s.patiently(false, true, || {
                    if handle.ready() & (poll::OUT | poll::ERR | poll::HUP) == 0 {
                        return Err(Errno::EAGAIN);
                    }
                    match handle.connect(&addr) {
                        Err(Errno::EALREADY) => Err(Errno::EAGAIN),
                        r => r.map(|()| 0),
                    }
                });
                match done {
                    Err(Errno::EAGAIN) => Err(e),
                    r => r,
                }
            }
            r => r.map(|()| 0),
        }
    })
}

/// `getsockname(2)`.
pub fn getsockname(c: &mut Call) -> Result<u64> {
    with(c, |_, s| put_address(&s.local()?, c.arg(1), c.arg(2)).map(|()| 0))
}

/// `getpeername(2)`.
pub fn getpeername(c: &mut Call) -> Result<u64> {
    with(c, |_, s| put_address(&s.peer()?, c.arg(1), c.arg(2)).map(|()| 0))
}

/// `shutdown(2)`.
pub fn shutdown(c: &mut Call) -> Result<u64> {
    let how = match c.uint(1) {
        0 => Shutdown::Read,
        1 => Shutdown::Write,
        2 => Shutdown::Both,
        _ => return Err(Errno::EINVAL),
    };
    with(c, |_, s| s.shutdown(how).map(|()| 0))
}

/// A stream that nobody reads any more: SIGPIPE. Sockets for messages give only the error.
fn broken_pipe(task: &Task, s: &SocketFile, flags: u32, e: Errno) -> Errno {
    if e == Errno::EPIPE
        && s.kind == net::SOCK_STREAM
        && flags & net::MSG_NOSIGNAL == 0
        && let Some(me) = crate::process::find_task(task.tid())
    {
        let uid = task.ids().ruid;
        signal::send_task(&me, Siginfo::from_user(linux::SIGPIPE, 0, task.process.pid, uid, 0));
    }
    e
}

fn send(
    c: &Call,
    file: &FileRef,
    s: &SocketFile,
    source: &mut Source,
    flags: u32,
    to: Option<Address>,
    beside: Ancillary,
) -> Result<u64> {
    let unix_to = match (&s.inner, &to) {
        (Inner::Unix(u), Some(a)) if u.kind == Kind::Datagram => Some(find_unix(c.task, a, u.kind)?),
        (Inner::Unix(u), Some(_)) => {
            return Err(if u.is_connected() { Errno::EISCONN } else { Errno::EOPNOTSUPP });
        }
        _ => None,
    };
    let stream = matches!(s.inner, Inner::Stream(_));
    let to = if stream { None } else { to };
    writing(source, in_part, |source| {
        s.send(source, flags, file.nonblock(), to.as_ref(), unix_to.clone(), beside.clone())
    })
    .map(|n| n as u64)
    .map_err(|e| broken_pipe(c.task, s, flags, e))
}

fn own(c: &Call) -> Ancillary {
    Ancillary { from: sender(c.task), ..Ancillary::default() }
}

/// `sendto(2)`.
pub fn sendto(c: &mut Call) -> Result<u64> {
    with(c, |file, s| {
        let to = if c.arg(4) != 0 { Some(get_address(c.arg(4), c.arg(5))?) } else { None };
        let (addr, len) = buffer(c)?;
        let mut source = Source::one(addr, len);
        let beside = if matches!(s.inner, Inner::Unix(_)) { own(c) } else { Ancillary::default() };
        send(c, file, s, &mut source, c.uint(3), to, beside)
    })
}

/// The buffer of a sendto or recvfrom: no more of it than one call transfers is looked at.
fn buffer(c: &Call) -> Result<(u64, u64)> {
    let (addr, len) = (c.arg(1), c.arg(2).min(TRANSFER_MAX));
    if is_user_range(addr, len) { Ok((addr, len)) } else { Err(Errno::EFAULT) }
}

/// `recvfrom(2)`.
pub fn recvfrom(c: &mut Call) -> Result<u64> {
    with(c, |file, s| {
        let (addr, len) = buffer(c)?;
        let mut sink = Sink::one(addr, len);
        let mut message = Message::default();
        reading(&mut sink, in_part, |sink| {
            message = s.receive(sink, c.uint(3), file.nonblock(), 0)?;
            Ok(message.len)
        })?;
        if let (Some(from), true) = (&message.from, c.arg(4) != 0) {
            put_address(from, c.arg(4), c.arg(5))?;
        } else if c.arg(4) != 0 && c.arg(5) != 0 {
            if get::<i32>(c.arg(5))? < 0 {
                return Err(Errno::EINVAL);
            }
            put(c.arg(5), &0u32)?;
        }
        Ok(message.len as u64)
    })
}

/// Reads the control messages of a sendmsg.
fn ancillary(c: &Call, h: &MsgHdr, s: &SocketFile) -> Result<Ancillary> {
    let unix_socket = matches!(s.inner, Inner::Unix(_));
    if h.controllen > CONTROL_MAX as u64 {
        return Err(Errno::ENOBUFS);
    }
    // All at once: another thread of the program may be changing it.
    let mut control = atoll_mem::buffer(h.controllen as usize)?;
    user::read(h.control, &mut control)?;
    if matches!(s.inner, Inner::Datagram(_)) {
        // The host's business; it says EINVAL to what it does not know.
        return Ok(Ancillary { control, ..Ancillary::default() });
    }
    let mut out = if unix_socket { own(c) } else { Ancillary::default() };
    let mut left = &control[..];
    while let Ok((m, rest)) = CmsgHdr::read_from_prefix(left) {
        let data = usize::try_from(m.len).ok().and_then(|len| len.checked_sub(size_of::<CmsgHdr>()));
        let data = data.and_then(|len| rest.get(..len)).ok_or(Errno::EINVAL)?;
        match (unix_socket, m.level as u32, m.kind as u32) {
            (true, net::SOL_SOCKET, net::SCM_RIGHTS) => {
                let (fds, _) = data.as_chunks::<4>();
                for fd in fds {
                    out.files.push(c.task.files.get(u32::from_ne_bytes(*fd))?);
                }
                if out.files.len() > FILES_MAX {
                    return Err(Errno::EINVAL);
                }
            }
            (true, net::SOL_SOCKET, net::SCM_CREDENTIALS) => {
                let u = Ucred::read_from_bytes(data).map_err(|_| Errno::EINVAL)?;
                let (me, ids) = (c.task.process.pid, c.task.ids().clone());
                let honest = (u.pid as u32 == me || ids.may(linux::CAP_SYS_ADMIN))
                    && (ids.users().contains(&u.uid) || ids.may(linux::CAP_SETUID))
                    && ([ids.rgid, ids.egid, ids.sgid].contains(&u.gid) || ids.may(linux::CAP_SETGID));
                if !honest {
                    return Err(Errno::EPERM);
                }
                let pid = u.pid as u32;
                let started = find_process(pid).ok_or(Errno::ESRCH)?.started;
                out.from = Credentials { pid, uid: u.uid, gid: u.gid, started };
            }
            // Streams take nothing of these levels.
            (false, level, _) if level != net::SOL_SOCKET => {}
            (_, level, kind) => {
                let what = alloc::format!("sendmsg control message {level}/{kind}");
                return Err(unsupported(c.task, &what, Errno::EINVAL));
            }
        }
        left = left.get((m.len as usize).next_multiple_of(8)..).unwrap_or_default();
    }
    Ok(out)
}

fn do_sendmsg(c: &Call, file: &FileRef, s: &SocketFile, addr: u64, flags: u32) -> Result<u64> {
    let h: MsgHdr = get(addr)?;
    let mut buffers = Pieces::default();
    let list = buffers.read(h.iov, h.iovlen);
    let list = list.map_err(|e| if e == Errno::EINVAL { Errno::EMSGSIZE } else { e })?;
    let to =
        if h.name != 0 && h.namelen != 0 { Some(get_address(h.name, u64::from(h.namelen))?) } else { None };
    let beside = if h.controllen > 0 || matches!(s.inner, Inner::Unix(_)) {
        ancillary(c, &h, s)?
    } else {
        Ancillary::default()
    };
    let mut source = Source::user(list);
    send(c, file, s, &mut source, flags, to, beside)
}

/// `sendmsg(2)`.
pub fn sendmsg(c: &mut Call) -> Result<u64> {
    with(c, |file, s| do_sendmsg(c, file, s, c.arg(1), c.uint(2)))
}

/// `sendmmsg(2)`.
pub fn sendmmsg(c: &mut Call) -> Result<u64> {
    with(c, |file, s| {
        let mut sent = 0;
        for n in 0..u64::from(c.uint(2).min(MESSAGES_MAX)) {
            let at = c.arg(1) + n * size_of::<MmsgHdr>() as u64;
            match do_sendmsg(c, file, s, at, c.uint(3)) {
                Ok(len) => {
                    put(at + size_of::<MsgHdr>() as u64, &(len as u32))?;
                    sent += 1;
                }
                Err(_) if sent > 0 => break,
                Err(e) => return Err(e),
            }
        }
        Ok(sent)
    })
}

/// Appends a control message; says whether it is whole: of one for which there is no room, what fits is there, unless not even its
/// header does. It begins at a multiple of eight bytes; behind the last one nothing is written.
fn control_message(out: &mut Vec<u8>, room: usize, level: u32, kind: u32, data: &[u8]) -> bool {
    let start = out.len().next_multiple_of(8);
    let Some(room) = room.checked_sub(start + size_of::<CmsgHdr>()) else { return false };
    let fits = &data[..data.len().min(room)];
    let h =
        CmsgHdr { len: (size_of::<CmsgHdr>() + fits.len()) as u64, level: level as i32, kind: kind as i32 };
    out.resize(start, 0);
    out.extend_from_slice(h.as_bytes());
    out.extend_from_slice(fits);
    fits.len() == data.len()
}

fn do_recvmsg(c: &Call, file: &FileRef, s: &SocketFile, addr: u64, flags: u32) -> Result<u64> {
    let mut h: MsgHdr = get(addr)?;
    let mut buffers = Pieces::default();
    let list = buffers.read(h.iov, h.iovlen);
    let list = list.map_err(|e| if e == Errno::EINVAL { Errno::EMSGSIZE } else { e })?;
    let room = if h.control == 0 { 0 } else { (h.controllen as usize).min(64 << 10) };
    let mut sink = Sink::user(list);
    let mut m = Message::default();
    reading(&mut sink, in_part, |sink| {
        m = s.receive(sink, flags, file.nonblock(), room)?;
        Ok(m.len)
    })?;
    let mut out = core::mem::take(&mut m.control);
    let mut fds: Vec<i32> = Vec::new();
    let mut msg_flags = m.flags | flags & net::MSG_CMSG_CLOEXEC;
    if let Inner::Unix(u) = &s.inner {
        // Streams have no times.
        if u.kind != Kind::Stream && u.options.wants_times() {
            let sent = match m.ancillary.sent {
                // It was under way already when it was asked for.
                0 => platform().realtime(),
                sent => sent,
            };
            let fits = if u.options.has(net::SO_TIMESTAMPNS_OLD) {
                let t = Timespec::from_ns(sent);
                control_message(&mut out, room, net::SOL_SOCKET, net::SO_TIMESTAMPNS_OLD, t.as_bytes())
            } else {
                let t = Timeval::from_ns(sent);
                control_message(&mut out, room, net::SOL_SOCKET, net::SO_TIMESTAMP_OLD, t.as_bytes())
            };
            if !fits {
                msg_flags |= net::MSG_CTRUNC;
            }
        }
        if u.pass_cred.load(Ordering::Relaxed) != 0 {
            let f = m.ancillary.from;
            let cred = Ucred { pid: f.pid as i32, uid: f.uid, gid: f.gid };
            if !control_message(&mut out, room, net::SOL_SOCKET, net::SCM_CREDENTIALS, cred.as_bytes()) {
                msg_flags |= net::MSG_CTRUNC;
            }
        }
        if !m.ancillary.files.is_empty() {
            let start = out.len().next_multiple_of(8);
            let fits = room.saturating_sub(start + size_of::<CmsgHdr>()) / 4;
            for f in m.ancillary.files.drain(..) {
                if fds.len() == fits {
                    msg_flags |= net::MSG_CTRUNC;
                    break;
                }
                match c.install(f, flags & net::MSG_CMSG_CLOEXEC != 0) {
                    Ok(fd) => fds.push(fd as i32),
                    Err(_) => {
                        msg_flags |= net::MSG_CTRUNC;
                        break;
                    }
                }
            }
            if !fds.is_empty() {
                control_message(&mut out, room, net::SOL_SOCKET, net::SCM_RIGHTS, fds.as_slice().as_bytes());
            }
        }
        if u.pass_pidfd.load(Ordering::Relaxed) != 0 {
            if room.saturating_sub(out.len().next_multiple_of(8)) < size_of::<CmsgHdr>() + 4 {
                msg_flags |= net::MSG_CTRUNC;
            } else if m.ancillary.from.pid != 0 {
                // An error stands in its place where there is none.
                let pidfd = process_of(m.ancillary.from)
                    .and_then(|sender| c.install(super::process::pidfd(sender, false), true))
                    .map_or_else(|e| -(e.0 as i32), |fd| fd as i32);
                fds.extend(Some(pidfd).filter(|fd| *fd >= 0));
                control_message(&mut out, room, net::SOL_SOCKET, SCM_PIDFD, pidfd.as_bytes());
            }
        }
    }
    // The message is received all the same, without what can't be written; nobody would know of its files then.
    if user::write(h.control, &out).is_err() {
        out.clear();
        msg_flags |= net::MSG_CTRUNC;
        for fd in fds {
            drop(c.task.files.remove(fd as u32));
        }
    }
    h.controllen = out.len().next_multiple_of(8).min(room) as u64;
    h.flags = msg_flags;
    if h.name != 0 {
        let from = m.from.unwrap_or(Address::empty());
        let n = from.bytes().len().min(h.namelen as usize);
        user::write(h.name, &from.bytes()[..n])?;
        h.namelen = from.bytes().len() as u32;
    }
    put(addr, &h)?;
    Ok(m.len as u64)
}

/// `recvmsg(2)`.
pub fn recvmsg(c: &mut Call) -> Result<u64> {
    with(c, |file, s| do_recvmsg(c, file, s, c.arg(1), c.uint(2)))
}

/// `recvmmsg(2)`.
pub fn recvmmsg(c: &mut Call) -> Result<u64> {
    let deadline = if c.arg(4) != 0 {
        Some(atoll_abi::platform().now().saturating_add(get::<Timespec>(c.arg(4))?.to_ns()?))
    } else {
        None
    };
    with(c, |file, s| {
        let mut got = 0;
        let mut flags = c.uint(3) & !MSG_WAITFORONE;
        for n in 0..u64::from(c.uint(2).min(MESSAGES_MAX)) {
            let at = c.arg(1) + n * size_of::<MmsgHdr>() as u64;
            match do_recvmsg(c, file, s, at, flags) {
                Ok(len) => {
                    put(at + size_of::<MsgHdr>() as u64, &(len as u32))?;
                    got += 1;
                }
                Err(_) if got > 0 => break,
                Err(e) => return Err(e),
            }
            if c.uint(3) & MSG_WAITFORONE != 0 {
                flags |= net::MSG_DONTWAIT;
            }
            if deadline.is_some_and(|d| atoll_abi::platform().now() >= d) {
                break;
            }
        }
        Ok(got)
    })
}

/// Most bytes of an option's value: a source of a group (`struct group_source_req`) has 264.
const OPTION_MAX: usize = 264;
/// What SO_RCVBUF of a Unix socket is at first, and at least, bytes.
const RECEIVE_BUFFER: u32 = 212_992;
const RECEIVE_LEAST: u32 = 2304;
/// The highest priority of packets that anybody may set.
const PRIORITY_MAX: u32 = 6;

fn put_option(c: &Call, value: &[u8]) -> Result<u64> {
    let room: i32 = get(c.arg(4))?;
    if room < 0 {
        return Err(Errno::EINVAL);
    }
    let n = value.len().min(room as usize);
    user::write(c.arg(3), &value[..n])?;
    put(c.arg(4), &(n as u32)).map(|()| 0)
}

/// Words of SO_MEMINFO (`SK_MEMINFO_VARS`).
const MEMORY_WORDS: usize = 9;
/// The sender's pidfd, beside what is received.
const SCM_PIDFD: u32 = 4;

/// The process of these credentials, if it has not ended.
fn process_of(who: Credentials) -> Result<Arc<Process>> {
    find_process(who.pid).filter(|process| process.started == who.started).ok_or(Errno::ESRCH)
}

/// SO_PEERGROUPS: all of them, or how much room they take and an error.
fn peer_groups(c: &Call, peer: &Owner) -> Result<u64> {
    if peer.credentials.pid == 0 {
        return Err(Errno::ENODATA);
    }
    let (room, bytes) = (get::<i32>(c.arg(4))?, peer.groups.as_bytes());
    if (0..bytes.len() as i32).contains(&room) {
        put(c.arg(4), &(bytes.len() as u32))?;
        return Err(Errno::ERANGE);
    }
    put_option(c, bytes)
}

/// `getsockopt(2)`.
pub fn getsockopt(c: &mut Call) -> Result<u64> {
    with(c, |_, s| {
        let (level, name) = (c.uint(1), c.uint(2));
        if level == net::SOL_SOCKET {
            let word = |n: u32| put_option(c, &n.to_ne_bytes());
            match name {
                net::SO_TYPE => return word(s.kind),
                net::SO_DOMAIN => return word(s.domain),
                _ if let Some(send) = timeout_of(name) => {
                    return put_option(c, Timeval::from_ns(s.timeout(send)).as_bytes());
                }
                _ if let Some(value) = s.told(name) => return word(value),
                _ => {}
            }
            if let Inner::Unix(u) = &s.inner {
                return match name {
                    net::SO_ERROR => word(u.take_error()),
                    net::SO_ACCEPTCONN => word(u32::from(u.is_listening())),
                    net::SO_PEERCRED => {
                        let p = u.peer().credentials;
                        let cred = Ucred { pid: p.pid as i32, uid: p.uid, gid: p.gid };
                        put_option(c, cred.as_bytes())
                    }
                    net::SO_PEERGROUPS => peer_groups(c, &u.peer()),
                    net::SO_PEERPIDFD => {
                        let peer = u.peer().credentials;
                        let peer = if peer.pid == 0 { Err(Errno::ENODATA) } else { process_of(peer) }?;
                        let fd = c.install(super::process::pidfd(peer, false), true)? as u32;
                        word(fd).inspect_err(|_| drop(c.task.files.remove(fd)))
                    }
                    net::SO_PASSPIDFD => word(u.pass_pidfd.load(Ordering::Relaxed)),
                    net::SO_COOKIE => {
                        let room: i32 = get(c.arg(4))?;
                        if room < 8 {
                            return Err(Errno::EINVAL);
                        }
                        put_option(c, &s.id().to_ne_bytes())
                    }
                    // `SK_MEMINFO_RCVBUF` and `SK_MEMINFO_SNDBUF`; no buffers are the host's, and the rest is of these.
                    net::SO_MEMINFO => {
                        let mut all = [0u32; MEMORY_WORDS];
                        (all[1], all[3]) = (RECEIVE_BUFFER, u.buffer_size());
                        put_option(c, all.as_bytes())
                    }
                    net::SO_PASSCRED => word(u.pass_cred.load(Ordering::Relaxed)),
                    net::SO_SNDBUF => word(u.buffer_size()),
                    net::SO_RCVBUF => word(RECEIVE_BUFFER),
                    net::SO_PROTOCOL | net::SO_BUSY_POLL => word(0),
                    net::SO_INCOMING_CPU => word(u32::MAX),
                    net::SO_RCVLOWAT => word(u.low_water.load(Ordering::Relaxed)),
                    net::SO_SNDLOWAT => word(1),
                    // Which can't be set.
                    net::SO_DEBUG
                    | net::SO_NO_CHECK
                    | net::SO_MARK
                    | net::SO_RXQ_OVFL
                    | net::SO_LOCK_FILTER
                    | net::SO_INCOMING_NAPI_ID
                    | net::SO_SELECT_ERR_QUEUE
                    | net::SO_WIFI_STATUS
                    | net::SO_NOFCS
                    | net::SO_PREFER_BUSY_POLL
                    | net::SO_BUF_LOCK
                    | net::SO_RESERVE_MEM => word(0),
                    net::SO_BINDTODEVICE => put_option(c, &[]),
                    net::SO_PRIORITY => word(u.options.priority.load(Ordering::Relaxed)),
                    net::SO_LINGER => {
                        let on = u32::from(u.options.has(name));
                        put_option(c, [on, u.options.linger.load(Ordering::Relaxed)].as_slice().as_bytes())
                    }
                    name if is_switch(name) => word(u32::from(u.options.has(name))),
                    _ => Err(Errno::ENOPROTOOPT),
                };
            }
        }
        match &s.inner {
            Inner::Unix(_) => Err(Errno::EOPNOTSUPP),
            _ => {
                let handle = s.handle().ok_or(Errno::ENOTSOCK)?;
                if level == net::SOL_SOCKET && name == net::SO_ERROR {
                    return put_option(c, &handle.take_error().to_ne_bytes());
                }
                // Nobody is known at the other end.
                if level == net::SOL_SOCKET && matches!(name, net::SO_PEERGROUPS | net::SO_PEERPIDFD) {
                    return Err(Errno::ENODATA);
                }
                let room: i32 = get(c.arg(4))?;
                if room < 0 {
                    return Err(Errno::EINVAL);
                }
                let mut value = [0u8; OPTION_MAX];
                let want = value.len().min(room as usize);
                let n = handle.get_option(level, name, &mut value[..want])?;
                put_option(c, &value[..n])
            }
        }
    })
}

/// The number at the beginning of an option's value.
fn word_of(value: &[u8]) -> Result<u32> {
    value.first_chunk::<4>().map(|word| u32::from_ne_bytes(*word)).ok_or(Errno::EINVAL)
}

/// Is this option in the level SOL_SOCKET a timeout, and if so, that of sending? With 64 bits, both numbers of each mean the same.
fn timeout_of(name: u32) -> Option<bool> {
    match name {
        net::SO_RCVTIMEO_OLD | net::SO_RCVTIMEO_NEW => Some(false),
        net::SO_SNDTIMEO_OLD | net::SO_SNDTIMEO_NEW => Some(true),
        _ => None,
    }
}

/// May the caller give a socket this priority?
fn may_put_first(c: &Call, priority: u32) -> Result<()> {
    let may = || c.task.may(linux::CAP_NET_ADMIN) || c.task.may(linux::CAP_NET_RAW);
    if priority <= PRIORITY_MAX || may() { Ok(()) } else { Err(Errno::EPERM) }
}

/// SO_PRIORITY: the host is told of it, where it lets anybody set it and the socket is one of its own.
fn priority(c: &Call, s: &SocketFile, value: &[u8]) -> Result<u64> {
    let word = word_of(value)?;
    may_put_first(c, word)?;
    match s.handle().map(|h| h.set_option(net::SOL_SOCKET, net::SO_PRIORITY, value)) {
        Some(Ok(())) => s.forget(net::SO_PRIORITY),
        _ => s.tell(net::SO_PRIORITY, word),
    }
    Ok(0)
}

/// Is this an option that anybody may set, but to some values only with a privilege? The host's refusal is then the answer.
fn may_need_privilege(level: u32, name: u32) -> bool {
    const IPPROTO_TCP: u32 = net::IPPROTO_TCP as u32;
    // An algorithm that is not in tcp_allowed_congestion_control; another device than the one the socket is bound to.
    matches!((level, name), (IPPROTO_TCP, net::TCP_CONGESTION) | (net::SOL_SOCKET, net::SO_BINDTODEVICE))
}

/// `setsockopt(2)`.
pub fn setsockopt(c: &mut Call) -> Result<u64> {
    with(c, |_, s| {
        let (level, name) = (c.uint(1), c.uint(2));
        if c.int(4) < 0 {
            return Err(Errno::EINVAL);
        }
        let len = (c.arg(4) as usize).min(OPTION_MAX);
        let mut value = [0u8; OPTION_MAX];
        user::read(c.arg(3), &mut value[..len])?;
        let mut name = name;
        if level == net::SOL_SOCKET && matches!(name, net::SO_SNDBUFFORCE | net::SO_RCVBUFFORCE) {
            let word = value.first_chunk::<4>().filter(|_| len >= 4).ok_or(Errno::EINVAL)?;
            if !c.task.may(linux::CAP_NET_ADMIN) {
                return Err(Errno::EPERM);
            }
            // As far as the host lets anybody. A negative one is the least.
            let least = i32::from_ne_bytes(*word).max(0);
            value[..4].copy_from_slice(&least.to_ne_bytes());
            name = if name == net::SO_SNDBUFFORCE { net::SO_SNDBUF } else { net::SO_RCVBUF };
        }
        let value = &value[..len];
        if level == net::SOL_SOCKET {
            match name {
                _ if let Some(send) = timeout_of(name) => {
                    if len < 16 {
                        return Err(Errno::EINVAL);
                    }
                    let t: Timeval = get(c.arg(3))?;
                    s.set_timeout(send, t.to_ns().map_err(|_| Errno::EDOM)?);
                    return Ok(0);
                }
                // Which core takes packets, and how eagerly, is not the program's to say.
                net::SO_INCOMING_CPU | net::SO_BUSY_POLL => {
                    s.tell(name, word_of(value)?);
                    return Ok(0);
                }
                net::SO_PRIORITY if !matches!(s.inner, Inner::Unix(_)) => return priority(c, s, value),
                _ => {}
            }
            if let Inner::Unix(u) = &s.inner {
                let word = word_of(value)?;
                return match name {
                    net::SO_PASSCRED => {
                        u.pass_cred.store(u32::from(word != 0), Ordering::Relaxed);
                        Ok(0)
                    }
                    net::SO_PASSPIDFD => {
                        u.pass_pidfd.store(u32::from(word != 0), Ordering::Relaxed);
                        Ok(0)
                    }
                    net::SO_RCVLOWAT => {
                        // A negative one is all that there can be; none is one.
                        let least = if (word as i32) < 0 { i32::MAX as u32 } else { word.max(1) };
                        u.low_water.store(least, Ordering::Relaxed);
                        Ok(0)
                    }
                    net::SO_SNDBUF => {
                        u.set_buffer_size(word.saturating_mul(2));
                        Ok(0)
                    }
                    net::SO_RCVBUF => {
                        s.tell(name, word.saturating_mul(2).clamp(RECEIVE_LEAST, RECEIVE_BUFFER * 2));
                        Ok(0)
                    }
                    net::SO_PRIORITY => {
                        may_put_first(c, word)?;
                        u.options.priority.store(word, Ordering::Relaxed);
                        Ok(0)
                    }
                    net::SO_LINGER => {
                        let seconds = value.get(4..8).ok_or(Errno::EINVAL)?;
                        if word != 0 {
                            let seconds =
                                u32::from_ne_bytes([seconds[0], seconds[1], seconds[2], seconds[3]]);
                            u.options.linger.store(seconds, Ordering::Relaxed);
                        }
                        u.options.put(name, word != 0);
                        Ok(0)
                    }
                    name if is_switch(name) => {
                        u.options.put(name, word != 0);
                        Ok(0)
                    }
                    _ => Err(Errno::ENOPROTOOPT),
                };
            }
        }
        match s.handle() {
            None => Err(Errno::EOPNOTSUPP),
            Some(h) => match h.set_option(level, name, value) {
                // The platform's filter lets only harmless options through.
                Err(Errno::EPERM) if !may_need_privilege(level, name) => {
                    let what = alloc::format!("setsockopt level {level} option {name}");
                    Err(unsupported(c.task, &what, Errno::ENOPROTOOPT))
                }
                r => r.map(|()| 0),
            },
        }
    })
}
