//! Netlink sockets that ask for the network's interfaces, addresses and routes (`netlink(7)`, `rtnetlink(7)`): getifaddrs(3) and all
//! that stands on it.
//!
//! What is asked goes to the supervisor, who asks the host's kernel in the cell's network, and what it says comes back as it is, but for
//! whom and what it answers. Nothing can be changed, and nobody is told of changes. For the same reason sockets that hear of devices
//! (NETLINK_KOBJECT_UEVENT), without which libudev doesn't begin, never hear of any.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::Cell;

use atoll_abi::service::{NET_ATTRIBUTE, NET_LIST, NET_TABLE, Op, Request};
use atoll_abi::{Errno, Result};
use atoll_fs::poll;
use atoll_mem::buffer;
use atoll_mem::io::{Sink, Source, extent, extent_mut};
use atoll_sync::{Mutex, WaitQueue};
use atoll_task::call;
use linux_raw_sys::net;

use crate::address::{Address, word};
use crate::handle::{Datagram, DatagramHandle, Handle, Shutdown};
use crate::unix::{Options, is_switch};

/// Message types (linux/netlink.h, linux/rtnetlink.h).
mod kind {
    pub const ERROR: u16 = 2;
    pub const FIRST: u16 = 16;
    /// RTM_GETLINK, GETADDR, GETROUTE, GETNEIGH, GETRULE, GETQDISC.
    pub const ASKED: [u16; 6] = [18, 22, 26, 30, 34, 38];
    pub const LAST: u16 = 123;
}

const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
/// Bytes of a [`Header`].
pub const HEADER: usize = 16;

/// The most that one question may be long, and how long an answer, bytes.
const QUESTION: usize = 8 << 10;
const ANSWER_FIRST: usize = 32 << 10;
/// No attribute in sysfs is longer.
const ATTRIBUTE: usize = 4096;
const ANSWER_MOST: usize = 1 << 20;
/// Messages are put together to datagrams of up to so many bytes: who asks has at least a page for them.
const DATAGRAM: usize = 4096;
/// Bytes of answers that may wait.
const WAITING: usize = 4 << 20;

/// `struct nlmsghdr` (`netlink(7)`).
#[derive(Clone, Copy, Default)]
pub struct Header {
    /// Bytes of the message with this.
    pub len: u32,
    /// `nlmsg_type`.
    pub kind: u16,
    /// `NLM_F_*`.
    pub flags: u16,
    /// The number that an answer repeats.
    pub sequence: u32,
    /// Whose it is.
    pub port: u32,
}

impl Header {
    /// The one that a message begins with.
    pub fn read(bytes: &[u8]) -> Option<Header> {
        let word = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
        let half = |at: usize| bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes);
        Some(Header { len: word(0)?, kind: half(4)?, flags: half(6)?, sequence: word(8)?, port: word(12)? })
    }

    /// As it is sent.
    pub fn bytes(self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[0..4].copy_from_slice(&self.len.to_ne_bytes());
        out[4..6].copy_from_slice(&self.kind.to_ne_bytes());
        out[6..8].copy_from_slice(&self.flags.to_ne_bytes());
        out[8..12].copy_from_slice(&self.sequence.to_ne_bytes());
        out[12..16].copy_from_slice(&self.port.to_ne_bytes());
        out
    }
}

/// The messages of a datagram: each with its header, as far as they are whole.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (Header, &[u8])> {
    core::iter::from_fn(move || {
        let header = Header::read(bytes)?;
        let message = bytes.get(..header.len as usize).filter(|m| m.len() >= HEADER)?;
        bytes = bytes.get(message.len().next_multiple_of(4)..).unwrap_or_default();
        Some((header, message))
    })
}

/// NLMSG_ERROR: what has become of a message.
fn outcome(of: Header, message: &[u8], error: Option<Errno>, port: u32) -> Vec<u8> {
    let number = error.map_or(0, |e| -(e.0 as i32));
    // The message is repeated if it failed.
    let repeated = if error.is_some() { message } else { &message[..HEADER] };
    let len = (HEADER + 4 + repeated.len()) as u32;
    let header = Header { len, kind: kind::ERROR, flags: 0, sequence: of.sequence, port };
    let mut out = Vec::from(header.bytes());
    out.extend_from_slice(&number.to_ne_bytes());
    out.extend_from_slice(repeated);
    out
}

struct State {
    /// Its own number, once it has one.
    port: Option<u32>,
    groups: u32,
    strict: bool,
    answers: VecDeque<Vec<u8>>,
}

/// What sockets are for (`netlink(7)`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// NETLINK_ROUTE: the network is asked.
    Route,
    /// NETLINK_KOBJECT_UEVENT: devices are heard of.
    Events,
    /// NETLINK_SOCK_DIAG: whoever has the sockets is asked.
    Sockets,
}

/// Who answers a question: with whole messages, whose numbers are filled in.
pub type Answerer = fn(&[u8]) -> Result<Vec<u8>>;

/// Such a socket.
pub struct RouteSocket {
    protocol: Protocol,
    /// Who answers in the network's place.
    answerer: Option<Answerer>,
    /// The process's id, which is the number of its first one.
    pid: u32,
    state: Mutex<State>,
    queue: WaitQueue,
    /// As every socket has them; nothing follows from them.
    options: Options,
}

/// Numbers that are in use.
static PORTS: Mutex<BTreeSet<(Protocol, u32)>> = Mutex::new(BTreeSet::new());

/// `struct sockaddr_nl`.
fn address(port: u32, groups: u32) -> Address {
    let mut bytes = [0; 12];
    bytes[..2].copy_from_slice(&(net::AF_NETLINK as u16).to_ne_bytes());
    bytes[4..8].copy_from_slice(&port.to_ne_bytes());
    bytes[8..].copy_from_slice(&groups.to_ne_bytes());
    Address::new(&bytes).unwrap_or(Address::empty())
}

/// Number and groups of one. EINVAL: it is another family's, or too short.
fn parse(addr: &Address) -> Result<(u32, u32)> {
    let bytes = addr.bytes();
    if addr.family() != net::AF_NETLINK || bytes.len() < 12 {
        return Err(Errno::EINVAL);
    }
    Ok((word(bytes, 4), word(bytes, 8)))
}

impl RouteSocket {
    /// One of a process. Somebody may answer in the network's place.
    pub fn new(protocol: Protocol, pid: u32, answerer: Option<Answerer>) -> Arc<RouteSocket> {
        let state = State { port: None, groups: 0, strict: false, answers: VecDeque::new() };
        Arc::new(RouteSocket {
            protocol,
            answerer,
            pid,
            state: Mutex::new(state),
            queue: WaitQueue::new(),
            options: Options::default(),
        })
    }

    /// Has a number from now on: this one, or with 0 any. EADDRINUSE.
    fn name(&self, wanted: u32) -> Result<u32> {
        let mut state = self.state.lock();
        if let Some(port) = state.port {
            return if wanted == 0 || wanted == port { Ok(port) } else { Err(Errno::EINVAL) };
        }
        let mut ports = PORTS.lock();
        let port = if wanted != 0 {
            wanted
        } else {
            // As Linux has it: the process's id for the first, then numbers that no process has.
            let others = (0x8000_0000..=u32::MAX).rev();
            let mut all = core::iter::once(self.pid).chain(others);
            all.find(|n| !ports.contains(&(self.protocol, *n))).ok_or(Errno::EADDRINUSE)?
        };
        if !ports.insert((self.protocol, port)) {
            return Err(Errno::EADDRINUSE);
        }
        state.port = Some(port);
        Ok(port)
    }

    /// What the host says to one question: whole messages.
    fn ask(&self, message: &[u8], strict: bool) -> Result<Vec<u8>> {
        let mut room = ANSWER_FIRST;
        loop {
            let mut answer = buffer(room)?;
            let mut r = Request::new(Op::Route);
            r.arg[0] = strict.into();
            r.a = extent(message);
            r.b = extent_mut(&mut answer);
            match call(r) {
                Err(Errno::EMSGSIZE) if room < ANSWER_MOST => room = ANSWER_MOST,
                Err(e) => return Err(e),
                Ok(n) => {
                    answer.truncate(n as usize);
                    return Ok(answer);
                }
            }
        }
    }

    /// Datagrams come in. ENOBUFS: too many wait already.
    fn add(&self, answers: impl IntoIterator<Item = Vec<u8>>) -> Result<()> {
        let mut state = self.state.lock();
        let waiting: usize = state.answers.iter().map(Vec::len).sum();
        if waiting > WAITING {
            return Err(Errno::ENOBUFS);
        }
        state.answers.extend(answers);
        drop(state);
        self.queue.wake_all(poll::IN | poll::RDNORM);
        Ok(())
    }

    /// Answers what is in a datagram.
    fn answer(&self, bytes: &[u8], port: u32) -> Vec<Vec<u8>> {
        let (mut out, mut next, said) = (Vec::new(), Vec::new(), Cell::new(0));
        let mut add = |message: &[u8]| {
            said.set(said.get() + message.len());
            if !next.is_empty() && next.len() + message.len() > DATAGRAM {
                out.push(core::mem::take(&mut next));
            }
            next.extend_from_slice(message);
            next.resize(next.len().next_multiple_of(4), 0);
        };
        for (header, message) in messages(bytes) {
            if header.flags & NLM_F_REQUEST == 0 || header.kind < kind::FIRST {
                continue;
            }
            // As where an earlier answer is still being read.
            let answer = if said.get() > WAITING {
                Err(Errno::EBUSY)
            } else if let Some(answer) = self.answerer {
                answer(message)
            } else if kind::ASKED.contains(&header.kind) {
                let strict = self.state.lock().strict;
                self.ask(message, strict)
                    .and_then(|said| if said.is_empty() { Err(Errno::EIO) } else { Ok(said) })
            } else if header.kind <= kind::LAST && header.kind & 3 != 2 {
                // What would change something.
                Err(Errno::EPERM)
            } else {
                Err(Errno::EOPNOTSUPP)
            };
            let failed = match answer {
                Ok(said) => {
                    let mut is_error = false;
                    for (h, said) in messages(&said) {
                        let header = Header { sequence: header.sequence, port, ..h };
                        let mut said = Vec::from(said);
                        said[..HEADER].copy_from_slice(&header.bytes());
                        is_error |= h.kind == kind::ERROR;
                        add(&said);
                    }
                    // An error is an acknowledgement itself.
                    (!is_error && header.flags & NLM_F_ACK != 0).then_some(None)
                }
                Err(e) => Some(Some(e)),
            };
            if let Some(error) = failed {
                add(&outcome(header, message, error, port));
            }
        }
        if !next.is_empty() {
            out.push(next);
        }
        out
    }
}

impl Drop for RouteSocket {
    fn drop(&mut self) {
        if let Some(port) = self.state.get_mut().port {
            PORTS.lock().remove(&(self.protocol, port));
        }
    }
}

impl Handle for RouteSocket {
    fn bind(&self, addr: &Address) -> Result<()> {
        let (port, groups) = parse(addr)?;
        self.name(port)?;
        self.state.lock().groups = groups;
        Ok(())
    }

    fn connect(&self, addr: &Address) -> Result<()> {
        let (port, _) = parse(addr)?;
        if port != 0 {
            // Another process's.
            return Err(Errno::ECONNREFUSED);
        }
        self.name(0).map(drop)
    }

    fn shutdown(&self, _how: Shutdown) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    fn local(&self) -> Result<Address> {
        let state = self.state.lock();
        Ok(address(state.port.unwrap_or(0), state.groups))
    }

    fn peer(&self) -> Result<Address> {
        Ok(address(0, 0))
    }

    fn get_option(&self, level: u32, name: u32, value: &mut [u8]) -> Result<usize> {
        let number: u32 = match (level, name) {
            (net::SOL_SOCKET, net::SO_RCVBUF | net::SO_SNDBUF) => 212_992,
            (net::SOL_SOCKET, name) if is_switch(name) => self.options.has(name).into(),
            (net::SOL_NETLINK, NETLINK_GET_STRICT_CHK) => self.state.lock().strict.into(),
            _ => return Err(Errno::ENOPROTOOPT),
        };
        let len = value.len().min(4);
        value[..len].copy_from_slice(&number.to_ne_bytes()[..len]);
        Ok(len)
    }

    fn set_option(&self, level: u32, name: u32, value: &[u8]) -> Result<()> {
        let number = || value.get(..4)?.try_into().ok().map(u32::from_ne_bytes);
        match (level, name) {
            (net::SOL_SOCKET, net::SO_RCVBUF | net::SO_SNDBUF) => Ok(()),
            (net::SOL_SOCKET, name) if is_switch(name) => {
                self.options.put(name, number().ok_or(Errno::EINVAL)? != 0);
                Ok(())
            }
            (net::SOL_NETLINK, NETLINK_GET_STRICT_CHK) => {
                self.state.lock().strict = number().ok_or(Errno::EINVAL)? != 0;
                Ok(())
            }
            // Who told of a device would be known, if anybody did.
            (net::SOL_SOCKET, net::SO_PASSCRED) if self.protocol == Protocol::Events => Ok(()),
            // Nothing comes of these: there are no groups that anybody tells of anything, and errors say no more than their number.
            (net::SOL_NETLINK, 1..=11) => number().map(drop).ok_or(Errno::EINVAL),
            _ => Err(Errno::ENOPROTOOPT),
        }
    }

    fn take_error(&self) -> u32 {
        0
    }

    fn ready(&self) -> u32 {
        let has = !self.state.lock().answers.is_empty();
        poll::OUT | poll::WRNORM | if has { poll::IN | poll::RDNORM } else { 0 }
    }

    fn queue(&self) -> &WaitQueue {
        &self.queue
    }

    fn queued(&self, out: bool) -> Result<u32> {
        if out {
            return Ok(0);
        }
        Ok(self.state.lock().answers.front().map_or(0, |answer| answer.len() as u32))
    }
}

/// A socket option (linux/netlink.h).
const NETLINK_GET_STRICT_CHK: u32 = 12;

impl DatagramHandle for RouteSocket {
    fn receive(&self, sink: &mut Sink, _control: &mut [u8], flags: u32) -> Result<Datagram> {
        let mut state = self.state.lock();
        let answer = state.answers.front().ok_or(Errno::EAGAIN)?;
        let fits = answer.len().min(sink.left());
        sink.ensure(fits)?;
        let put = if fits > 0 { sink.put(&answer[..fits])? } else { 0 };
        let (whole, cut) = (answer.len(), put < answer.len());
        let len = if flags & net::MSG_TRUNC != 0 { whole } else { put };
        if flags & net::MSG_PEEK == 0 {
            state.answers.pop_front();
        }
        let flags = if cut { net::MSG_TRUNC } else { 0 };
        Ok(Datagram { len, from: address(0, 0), flags, control_len: 0 })
    }

    fn send(&self, source: &mut Source, to: Option<&Address>, _control: &[u8], _flags: u32) -> Result<usize> {
        if let Some(to) = to.filter(|to| !to.is_empty()) {
            let (port, groups) = parse(to)?;
            if port != 0 {
                return Err(Errno::ECONNREFUSED);
            }
            if groups != 0 {
                return Err(Errno::EPERM);
            }
        }
        if self.protocol == Protocol::Events {
            return Err(Errno::ECONNREFUSED);
        }
        if source.left() > QUESTION {
            return Err(Errno::EMSGSIZE);
        }
        let port = self.name(0)?;
        let mut bytes = buffer(source.left())?;
        source.ensure(bytes.len())?;
        let len = if bytes.is_empty() { 0 } else { source.take(&mut bytes)? };
        let answers = self.answer(&bytes[..len], port);
        self.add(answers).map(|()| len)
    }

    fn deliver(&self, message: &[u8]) -> Result<()> {
        self.add([Vec::from(message)])
    }
}

/// What the host says of an interface to an `ioctl(2)` of netdevice(7) that only asks: `ifreq`, in and out.
pub fn ask_interface(command: u32, request: &mut [u8]) -> Result<()> {
    let mut r = Request::new(Op::Interface);
    r.arg[0] = command.into();
    r.a = extent_mut(request);
    call(r).map(drop)
}

/// SIOCGIFCONF: `ifreq`s of all IPv4 addresses, as many as there is room for. Value: bytes; with no room, how many they would be.
pub fn list_interfaces(out: &mut [u8]) -> Result<u64> {
    let mut r = Request::new(Op::Interface);
    r.arg[0] = linux_raw_sys::ioctl::SIOCGIFCONF.into();
    r.b = extent_mut(out);
    call(r)
}

/// The text of a table of /proc/net, by its number among [`NET_TABLES`](atoll_abi::service::NET_TABLES).
pub fn table(number: usize) -> Result<Vec<u8>> {
    text(NET_TABLE, number, &[])
}

/// The interfaces, as [`NET_LIST`] has them.
pub fn interfaces() -> Result<Vec<u8>> {
    text(NET_LIST, 0, &[])
}

/// What there is to read of an interface: the number is that among [`NET_ATTRIBUTES`](atoll_abi::service::NET_ATTRIBUTES).
pub fn attribute(of: &[u8], number: usize) -> Result<Vec<u8>> {
    text(NET_ATTRIBUTE, number, of)
}

fn text(command: u64, number: usize, of: &[u8]) -> Result<Vec<u8>> {
    let of = Vec::from(of);
    let mut room = if command == NET_ATTRIBUTE { ATTRIBUTE } else { ANSWER_FIRST };
    loop {
        let mut text = buffer(room)?;
        let mut r = Request::new(Op::Interface);
        r.arg[0] = command;
        r.arg[1] = number as u64;
        r.a = extent(&of);
        r.b = extent_mut(&mut text);
        let len = call(r)? as usize;
        if len <= room || room >= ANSWER_MOST {
            text.truncate(len);
            return Ok(text);
        }
        room = len.min(ANSWER_MOST);
    }
}
