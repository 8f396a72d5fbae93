//! `/proc/net/tcp` and its like: the sockets that programs of the cell have open (`proc_net_tcp.rst` of Linux's documentation,
//! `proc_pid_net(5)`). Of what only the kernel of a socket knows, as its timers, nothing is told: those columns are 0.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use core::fmt::Write;
use hashbrown::HashSet;
use linux_raw_sys::net;

use atoll_abi::Result;

use crate::process::all_processes;
use crate::socket::{Inner, SocketFile};
use atoll_net::Address;
use atoll_net::handle::Handle;

/// TCP's states there, which a datagram's socket has, too (`tcp_states.h`).
pub(crate) const ESTABLISHED: u8 = 1;
pub(crate) const CLOSE: u8 = 7;
pub(crate) const LISTEN: u8 = 10;

/// Calls `f` for each socket that a program has open, with the user whom it belongs to.
pub(crate) fn each(mut f: impl FnMut(&SocketFile, u32)) {
    let mut seen = HashSet::new();
    for process in all_processes() {
        let Some(task) = process.leader() else { continue };
        let uid = process.ids().euid;
        let files = task.files.share();
        for fd in files.list() {
            let Ok(file) = files.get(fd) else { continue };
            if let Some(socket) = file.as_type::<SocketFile>()
                && seen.insert(socket.id())
            {
                f(socket, uid);
            }
        }
    }
}

/// An address's bytes in the network's order, and the port.
pub(crate) fn parts(a: &Address, domain: u32) -> Option<(&[u8], u16)> {
    let bytes = a.bytes();
    let port = u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?);
    Some((bytes.get(if domain == net::AF_INET { 4..8 } else { 8..24 })?, port))
}

/// An address as words of the machine's order, and the port.
fn address(a: &Address, domain: u32) -> Option<(Vec<u32>, u16)> {
    let (bytes, port) = parts(a, domain)?;
    let words = bytes.chunks_exact(4).map(|w| u32::from_ne_bytes([w[0], w[1], w[2], w[3]]));
    Some((words.collect(), port))
}

fn shown((words, port): &(Vec<u32>, u16)) -> String {
    let mut out = String::new();
    for word in words {
        let _ = write!(out, "{word:08X}");
    }
    let _ = write!(out, ":{port:04X}");
    out
}

/// The state of a connection, or of what may become one.
fn state_of(h: &dyn Handle, has_peer: bool) -> u8 {
    let mut info = [0; 8];
    if h.get_option(net::IPPROTO_TCP as u32, net::TCP_INFO, &mut info).is_ok() && info[0] != 0 {
        return info[0];
    }
    let mut listens = [0; 4];
    let known = h.get_option(net::SOL_SOCKET, net::SO_ACCEPTCONN, &mut listens).is_ok();
    match (known && listens[0] != 0, has_peer) {
        (true, _) => LISTEN,
        (_, true) => ESTABLISHED,
        _ => CLOSE,
    }
}

/// A socket with a port.
pub(crate) struct InternetSocket<'a> {
    pub socket: &'a SocketFile,
    pub handle: &'a dyn Handle,
    pub local: Address,
    pub peer: Option<Address>,
    /// One of TCP's.
    pub state: u8,
    pub uid: u32,
}

/// Calls `f` for each socket of a domain, AF_INET or AF_INET6, that is a stream or one for datagrams and has a port.
pub(crate) fn each_internet(domain: u32, streams: bool, mut f: impl FnMut(&InternetSocket)) {
    let kind = if streams { net::SOCK_STREAM } else { net::SOCK_DGRAM };
    each(|socket, uid| {
        let Some(handle) = socket.handle().filter(|_| socket.domain == domain && socket.kind == kind) else {
            return;
        };
        let known = |a: Result<Address>| a.ok().filter(|a| parts(a, domain).is_some());
        let Some(local) = known(handle.local()) else { return };
        let peer = known(handle.peer());
        let state = match (streams, &peer) {
            (true, peer) => state_of(handle, peer.is_some()),
            (false, Some(_)) => ESTABLISHED,
            (false, None) => CLOSE,
        };
        // Who has no port yet is in no table.
        let has_port = parts(&local, domain).is_some_and(|(_, port)| port != 0);
        if has_port && !(streams && state == CLOSE) {
            f(&InternetSocket { socket, handle, local, peer, state, uid });
        }
    });
}

/// Columns that only tables of datagrams have.
const DATAGRAMS: &str = " ref pointer drops";

/// The head of such a table: of long addresses if `wide`, filled up to so many columns.
fn head(wide: bool, number: &str, more: &str, filled: usize) -> String {
    let addresses = if wide {
        "local_address                         remote_address                        "
    } else {
        "local_address rem_address   "
    };
    let head =
        format!("{number}  {addresses}st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode{more}");
    format!("{head:filled$}\n")
}

/// The table of sockets of a kind that there can't be here.
pub fn no_sockets(wide: bool, number: &str, filled: usize) -> String {
    head(wide, number, DATAGRAMS, filled)
}

/// The table of the sockets of a domain, AF_INET or AF_INET6, that are streams or datagrams.
fn internet(domain: u32, streams: bool) -> String {
    let wide = domain == net::AF_INET6;
    // How far lines are filled: not those with long addresses.
    let filled = match (wide, streams) {
        (true, _) => 0,
        (_, true) => 149,
        (_, false) => 127,
    };
    let number = if wide || streams { "  sl" } else { "   sl" };
    let mut out = head(wide, number, if streams { "" } else { DATAGRAMS }, filled);
    let mut n = 0;
    each_internet(domain, streams, |s| {
        let Some(local) = address(&s.local, domain) else { return };
        let peer = s.peer.as_ref().and_then(|a| address(a, domain));
        let peer = peer.unwrap_or_else(|| (alloc::vec![0; local.0.len()], 0));
        let queued = |out: bool| s.handle.queued(out).unwrap_or(0);
        let (sent, received) = if s.state == LISTEN { (0, 0) } else { (queued(true), queued(false)) };
        let (state, uid) = (s.state, s.uid);
        let number = if streams { format!("{n:4}") } else { format!("{n:5}") };
        let end = if streams { "1 0000000000000000 100 0 0 10 0" } else { "2 0000000000000000 0" };
        let text = format!(
            "{number}: {} {} {state:02X} {sent:08X}:{received:08X} 00:00000000 00000000 {uid:5}        0 {} {end}",
            shown(&local),
            shown(&peer),
            s.socket.id(),
        );
        let _ = writeln!(out, "{text:filled$}");
        n += 1;
    });
    out
}

/// `/proc/net/tcp`.
pub fn tcp() -> String {
    internet(net::AF_INET, true)
}

/// `/proc/net/tcp6`.
pub fn tcp6() -> String {
    internet(net::AF_INET6, true)
}

/// `/proc/net/udp`.
pub fn udp() -> String {
    internet(net::AF_INET, false)
}

/// `/proc/net/udp6`.
pub fn udp6() -> String {
    internet(net::AF_INET6, false)
}

/// `/proc/net/unix`.
pub fn unix() -> Vec<u8> {
    use net::socket_state::{SS_CONNECTED, SS_UNCONNECTED};
    let mut out = b"Num       RefCount Protocol Flags    Type St Inode Path\n".to_vec();
    each(|socket, _| {
        let Inner::Unix(u) = &socket.inner else { return };
        let listens = u.is_listening();
        let state = if u.is_connected() { SS_CONNECTED } else { SS_UNCONNECTED } as u32;
        let (kind, flags, id) = (socket.kind, if listens { net::__SO_ACCEPTCON } else { 0 }, socket.id());
        let text = format!("0000000000000000: 00000002 00000000 {flags:08X} {kind:04X} {state:02X} {id:5}");
        out.extend_from_slice(text.as_bytes());
        if let Some(name) = u.local().bytes().get(2..).filter(|name| !name.is_empty()) {
            // An abstract name begins with a zero, and each of those is shown as an @; a path ends with one.
            let path = name[0] != 0;
            let name = if path { name.strip_suffix(b"\0").unwrap_or(name) } else { name };
            out.push(b' ');
            out.extend(name.iter().map(|c| if *c == 0 { b'@' } else { *c }));
        }
        out.push(b'\n');
    });
    out
}
