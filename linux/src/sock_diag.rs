//! `sock_diag(7)`: what `ss` asks. The sockets that programs of the cell have open, as in `/proc/net/tcp` and its like. Filters in the
//! kernel's own language (`INET_DIAG_REQ_BYTECODE`) are not followed: more than was asked for is told then, as an older kernel would.

use alloc::vec::Vec;

use atoll_abi::{Errno, Result};
use atoll_net::route::{HEADER, Header};
use linux_raw_sys::net;

use crate::proc_net::{CLOSE, ESTABLISHED, InternetSocket, LISTEN, each, each_internet, parts};
use crate::socket::{Inner, SocketFile};

/// What there is to ask (linux/sock_diag.h).
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
const TCP: u8 = net::IPPROTO_TCP as u8;
const UDP: u8 = net::IPPROTO_UDP as u8;
/// Families there are (linux/socket.h).
const AF_MAX: u32 = 46;
const IP: u32 = net::IPPROTO_IP as u32;
const IPV6: u32 = net::IPPROTO_IPV6 as u32;
const NLMSG_DONE: u16 = 3;
const NLM_F_MULTI: u16 = 2;
/// NLM_F_ROOT and NLM_F_MATCH: either asks for a list here.
const NLM_F_DUMP: u16 = 0x300;
/// The most that an answer may be long, bytes: some 200,000 sockets.
const MOST: usize = 64 << 20;

/// `struct inet_diag_req_v2`: a family, a protocol, what to tell besides, states, and a socket's addresses.
const INTERNET_REQUEST: usize = 8 + SOCKET_ID;
/// `struct inet_diag_sockid`: ports, addresses, an interface and a cookie.
const SOCKET_ID: usize = 48;
/// `struct unix_diag_req`: family, protocol, states, a number, what to show, and a cookie.
const UNIX_REQUEST: usize = 24;

/// Attributes of an Internet socket (linux/inet_diag.h).
mod internet {
    pub const INFO: u16 = 2;
    pub const CONGESTION: u16 = 4;
    pub const TOS: u16 = 5;
    pub const TRAFFIC_CLASS: u16 = 6;
    pub const MEMORY: u16 = 7;
    pub const V6_ONLY: u16 = 11;
}

/// Attributes of a Unix socket (linux/unix_diag.h). Which of the first are wanted, the request says in as many bits.
mod unix {
    pub const NAME: u16 = 0;
    pub const QUEUED: u16 = 4;
    pub const SHOW_NAME: u32 = 1;
    pub const SHOW_QUEUED: u32 = 16;
}

/// `struct tcp_info`: its length here, and where a listener has how many wait and how many may.
const TCP_INFO: usize = 232;
const WAITING_AT: usize = 24;
const BACKLOG_AT: usize = 28;

/// Messages of one answer.
#[derive(Default)]
struct Answer {
    bytes: Vec<u8>,
    /// Where the message begins that is being written.
    begun: usize,
}

impl Answer {
    /// A message begins with this.
    fn begin(&mut self, kind: u16, flags: u16, body: &[u8]) {
        self.begun = self.bytes.len();
        // Who asked, and with which number, only the socket knows.
        self.bytes.extend(Header { kind, flags, ..Header::default() }.bytes());
        self.bytes.extend(body);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// It has this attribute, too.
    fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.bytes.extend((4 + value.len() as u16).to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value);
        self.pad();
    }

    /// It ends.
    fn end(&mut self) {
        let len = (self.bytes.len() - self.begun) as u32;
        self.bytes[self.begun..][..4].copy_from_slice(&len.to_ne_bytes());
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |w| u32::from_ne_bytes([w[0], w[1], w[2], w[3]]))
}

/// Answers one message: whole messages. EOPNOTSUPP: to end a socket; ENOENT: a family or a protocol that nobody knows here, or no such
/// socket; EINVAL: the message is another one, or too short; ENOBUFS: the answer would be too long.
pub fn answer(message: &[u8]) -> Result<Vec<u8>> {
    let Header { kind, flags, .. } = Header::read(message).ok_or(Errno::EINVAL)?;
    match kind {
        SOCK_DIAG_BY_FAMILY => {}
        SOCK_DESTROY => return Err(Errno::EOPNOTSUPP),
        _ => return Err(Errno::EINVAL),
    }
    let asked = message.get(HEADER..).filter(|asked| asked.len() >= 2).ok_or(Errno::EINVAL)?;
    let is_list = flags & NLM_F_DUMP != 0;
    let mut out = Answer::default();
    match u32::from(asked[0]) {
        net::AF_INET | net::AF_INET6 => internet_sockets(&mut out, asked, is_list)?,
        net::AF_UNIX => unix_sockets(&mut out, asked, is_list)?,
        0..AF_MAX => return Err(Errno::ENOENT),
        _ => return Err(Errno::EINVAL),
    }
    if out.bytes.len() >= MOST {
        return Err(Errno::ENOBUFS);
    }
    if is_list {
        out.begin(NLMSG_DONE, NLM_F_MULTI, &[0; 4]);
        out.end();
    } else if out.bytes.is_empty() {
        return Err(Errno::ENOENT);
    }
    Ok(out.bytes)
}

/// A socket's number, as SO_COOKIE has it.
fn cookie(socket: &SocketFile) -> [u8; 8] {
    let mut cookie = socket.id().to_ne_bytes();
    if let Some(h) = socket.handle() {
        let mut of = [0; 8];
        if h.get_option(net::SOL_SOCKET, net::SO_COOKIE, &mut of).is_ok() {
            cookie = of;
        }
    }
    cookie
}

/// `struct inet_diag_sockid`.
fn socket_id(s: &InternetSocket) -> [u8; SOCKET_ID] {
    let mut id = [0; SOCKET_ID];
    for (of, port_at, at) in [(Some(&s.local), 0, 4), (s.peer.as_ref(), 2, 20)] {
        if let Some((address, port)) = of.and_then(|of| parts(of, s.socket.domain)) {
            id[port_at..port_at + 2].copy_from_slice(&port.to_be_bytes());
            id[at..at + address.len()].copy_from_slice(address);
        }
    }
    id[40..].copy_from_slice(&cookie(s.socket));
    id
}

fn internet_sockets(out: &mut Answer, asked: &[u8], is_list: bool) -> Result<()> {
    let asked = asked.get(..INTERNET_REQUEST).ok_or(Errno::EINVAL)?;
    let (domain, protocol, more, states) = (asked[0].into(), asked[1], asked[2], word(asked, 4));
    let streams = match protocol {
        TCP => true,
        UDP => false,
        _ => return Err(Errno::ENOENT),
    };
    let is_wide = domain == net::AF_INET6;
    let wanted = &asked[8..];
    let wants = |kind: u16| more & 1 << (kind - 1) != 0;
    each_internet(domain, streams, |s| {
        if is_list && states & 1 << s.state == 0 {
            return;
        }
        let id = socket_id(s);
        // One is named by ports and addresses, and by its cookie unless that is all ones.
        let same = |at: core::ops::Range<usize>| id[at.clone()] == wanted[at];
        let wide = if is_wide { 16 } else { 4 };
        let is_named = || {
            same(0..4)
                && same(4..4 + wide)
                && same(20..20 + wide)
                && (wanted[40..] == [0xff; 8] || same(40..48))
        };
        // Of a list, those of a port.
        let has_port = |at: usize| wanted[at..at + 2] == [0, 0] || same(at..at + 2);
        let is_wanted = match is_list {
            true => has_port(0) && has_port(2) && out.bytes.len() < MOST,
            false => out.bytes.is_empty() && is_named(),
        };
        if !is_wanted {
            return;
        }
        let mut info = [0; TCP_INFO];
        let mut of_tcp = || s.handle.get_option(TCP.into(), net::TCP_INFO, &mut info).ok();
        let len = if streams { of_tcp() } else { None };
        let info = len.and_then(|len| info.get(..len));
        let queued = match info {
            Some(info) if s.state == LISTEN => [word(info, WAITING_AT), word(info, BACKLOG_AT)],
            _ if s.state == LISTEN => [0, 0],
            _ => [false, true].map(|out| s.handle.queued(out).unwrap_or(0)),
        };
        let mut body = Vec::from([asked[0], s.state, 0, 0]);
        body.extend(id);
        for number in [0, queued[0], queued[1], s.uid, s.socket.id() as u32] {
            body.extend(number.to_ne_bytes());
        }
        out.begin(SOCK_DIAG_BY_FAMILY, if is_list { NLM_F_MULTI } else { 0 }, &body);
        let ask = |level: u32, name: u32| {
            let mut value = [0; 64];
            let len = s.handle.get_option(level, name, &mut value).ok()?;
            value.get(..len).map(Vec::from)
        };
        // Words, of which the first byte is told.
        let bytes = [
            (wants(internet::TOS), internet::TOS, IP, net::IP_TOS),
            (wants(internet::TRAFFIC_CLASS) && is_wide, internet::TRAFFIC_CLASS, IPV6, net::IPV6_TCLASS),
            (is_wide && [CLOSE, LISTEN].contains(&s.state), internet::V6_ONLY, IPV6, net::IPV6_V6ONLY),
        ];
        for (_, attribute, level, name) in bytes.into_iter().filter(|(is_told, ..)| *is_told) {
            if let Some(byte) = ask(level, name).and_then(|word| word.first().copied()) {
                out.attribute(attribute, &[byte]);
            }
        }
        if let Some(info) = info.filter(|_| wants(internet::INFO)) {
            out.attribute(internet::INFO, info);
        }
        if wants(internet::MEMORY)
            && let Some(memory) = ask(net::SOL_SOCKET, net::SO_MEMINFO)
        {
            out.attribute(internet::MEMORY, &memory);
        }
        if wants(internet::CONGESTION)
            && streams
            && let Some(name) = ask(TCP.into(), net::TCP_CONGESTION)
        {
            let len = name.iter().position(|c| *c == 0).unwrap_or(name.len());
            out.attribute(internet::CONGESTION, &[&name[..len], &[0]].concat());
        }
        out.end();
    });
    Ok(())
}

fn unix_sockets(out: &mut Answer, asked: &[u8], is_list: bool) -> Result<()> {
    let asked = asked.get(..UNIX_REQUEST).ok_or(Errno::EINVAL)?;
    let (states, number, show) = (word(asked, 4), word(asked, 8), word(asked, 12));
    if !is_list && number == 0 {
        return Err(Errno::EINVAL);
    }
    let wanted = &asked[16..];
    each(|socket, _| {
        let Inner::Unix(u) = &socket.inner else { return };
        let state = match (u.is_listening(), u.is_connected()) {
            (true, _) => LISTEN,
            (_, true) => ESTABLISHED,
            _ => CLOSE,
        };
        let (id, cookie) = (socket.id() as u32, cookie(socket));
        let is_named = || id == number && (wanted == [0xff; 8] || wanted == cookie);
        let is_wanted = match is_list {
            true => states & 1 << state != 0 && out.bytes.len() < MOST,
            false => out.bytes.is_empty() && is_named(),
        };
        if !is_wanted {
            return;
        }
        let mut body = Vec::from([net::AF_UNIX as u8, socket.kind as u8, state, 0]);
        body.extend(id.to_ne_bytes());
        body.extend(cookie);
        out.begin(SOCK_DIAG_BY_FAMILY, if is_list { NLM_F_MULTI } else { 0 }, &body);
        let local = u.local();
        if show & unix::SHOW_NAME != 0
            && let Some(name) = local.bytes().get(2..).filter(|name| !name.is_empty())
        {
            // A path with the zero that ends it.
            out.attribute(unix::NAME, name);
        }
        if show & unix::SHOW_QUEUED != 0 {
            let queued = u.backlog().unwrap_or([u.queued(), 0]);
            out.attribute(unix::QUEUED, queued.map(u32::to_ne_bytes).as_flattened());
        }
        out.end();
    });
    if !is_list && out.bytes.is_empty() {
        return Err(Errno::ENOENT);
    }
    Ok(())
}
