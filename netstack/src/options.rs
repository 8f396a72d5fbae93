//! Options of sockets: `getsockopt(2)`, `setsockopt(2)`, socket(7), tcp(7), ipv6(7).

use crate::sockets::{Connection, Kind, Role, Sock};
use crate::stack::Inner;
use crate::tcb::{Settings, State};
use crate::way::Marks;
use atoll_abi::{Errno, Result};
use linux_raw_sys::net;

/// Most bytes that a program may ask for (`net.core.rmem_max`, `wmem_max`).
const BUFFER_MAX: u32 = 212_992;
/// Fewest bytes of a buffer, as told (SOCK_MIN_SNDBUF is 4608).
const BUFFER_MIN: u32 = 4608;
/// `net.core.rmem_default`.
const BUFFER_UDP: u32 = 212_992;
/// As told: half of it is room for data.
const BUFFER_TCP: u32 = 131_072;

/// What can be set before there is a connection, too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) reuse_addr: bool,
    pub(crate) reuse_port: bool,
    pub(crate) broadcast: bool,
    pub(crate) keep_alive: bool,
    pub(crate) no_delay: bool,
    pub(crate) cork: bool,
    pub(crate) v6_only: bool,
    /// SO_LINGER, s.
    pub(crate) linger: Option<u32>,
    /// As told; half of it is room for data.
    pub(crate) receive_buffer: u32,
    pub(crate) send_buffer: u32,
    /// They were set, and stay as they are.
    pub(crate) own_receive_buffer: bool,
    pub(crate) own_send_buffer: bool,
    /// s.
    keep_idle: u32,
    /// s.
    keep_interval: u32,
    keep_count: u32,
    /// TCP_USER_TIMEOUT, ms; 0: none.
    user_timeout: u32,
    marks: Marks,
}

impl Options {
    pub(crate) fn new(kind: Kind) -> Self {
        let buffer = if kind == Kind::Tcp { BUFFER_TCP } else { BUFFER_UDP };
        Options {
            reuse_addr: false,
            reuse_port: false,
            broadcast: false,
            keep_alive: false,
            no_delay: false,
            cork: false,
            v6_only: false,
            linger: None,
            receive_buffer: buffer,
            send_buffer: buffer,
            own_receive_buffer: false,
            own_send_buffer: false,
            keep_idle: 7200,
            keep_interval: 75,
            keep_count: 9,
            user_timeout: 0,
            marks: Marks::default(),
        }
    }

    /// What of it is a connection's.
    pub(crate) fn settings(&self) -> Settings {
        let seconds = |n: u32| i64::from(n) * 1_000_000;
        Settings {
            no_delay: self.no_delay,
            cork: self.cork,
            keep: self
                .keep_alive
                .then(|| (seconds(self.keep_idle), seconds(self.keep_interval), self.keep_count)),
            limit: (self.user_timeout > 0).then_some(i64::from(self.user_timeout) * 1000),
        }
    }
}

fn word(value: &[u8]) -> Result<u32> {
    match value {
        [a, b, c, d, ..] => Ok(u32::from_ne_bytes([*a, *b, *c, *d])),
        _ => Err(Errno::EINVAL),
    }
}

/// A value between 1 and `max`.
fn within(value: u32, max: u32) -> Result<u32> {
    if (1..=max).contains(&value) { Ok(value) } else { Err(Errno::EINVAL) }
}

/// As setting a buffer's size doubles it.
fn buffer(value: u32) -> u32 {
    (value.min(BUFFER_MAX) * 2).max(BUFFER_MIN)
}

fn state_number(s: State) -> u8 {
    match s {
        State::Established => 1,
        State::SynSent => 2,
        State::SynReceived => 3,
        State::FinWait1 => 4,
        State::FinWait2 => 5,
        State::TimeWait => 6,
        State::Closed => 7,
        State::CloseWait => 8,
        State::LastAck => 9,
        State::Closing => 11,
    }
}

/// `struct tcp_info`, as far as it is known: the state, segment sizes, bytes that wait, round trips, windows.
fn tcp_info(s: &Sock, c: Option<&Connection>, mtu: u32) -> [u8; 104] {
    let mut info = [0u8; 104];
    let mut put = |at: usize, value: u32| info[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    let most = mtu - if s.v6 { 60 } else { 40 };
    let segment = c.map_or(most, |c| c.tcb.segment_size());
    // tcpi_snd_mss, tcpi_rcv_mss, tcpi_pmtu, tcpi_advmss.
    put(16, segment);
    put(20, segment);
    put(60, mtu);
    put(84, most);
    if let Some(c) = c {
        let ((rtt, variation), (window, rto)) = (c.tcb.round_trip(), c.tcb.window());
        // tcpi_rto, tcpi_unacked (in segments), tcpi_rtt, tcpi_rttvar, tcpi_snd_cwnd (in segments), tcpi_rcv_space.
        put(8, rto as u32);
        put(24, c.tcb.send_queue().div_ceil(segment as usize) as u32);
        put(68, rtt as u32);
        put(72, variation as u32);
        put(80, window / segment);
        put(96, c.tcb.recv_capacity() as u32);
    }
    info[0] = match (&s.role, c) {
        (Role::Listener(_), _) => 10,
        (_, Some(c)) => state_number(c.tcb.state()),
        _ => 7,
    };
    info
}

impl Inner {
    pub(crate) fn get_option(&mut self, n: i32, level: u32, name: u32, value: &mut [u8]) -> Result<usize> {
        let s = self.sock(n)?;
        let o = s.options;
        let mut put = |bytes: &[u8]| {
            let len = bytes.len().min(value.len());
            value[..len].copy_from_slice(&bytes[..len]);
            Ok(len)
        };
        let tcp = s.kind == Kind::Tcp;
        let number = match (level, name) {
            (net::SOL_SOCKET, net::SO_ERROR) => {
                let index = self.index(n)?;
                let s = self.sockets.get_mut(index).ok_or(Errno::EBADF)?;
                s.take_error().map_or(0, |e| e.0)
            }
            (net::SOL_SOCKET, net::SO_TYPE) => {
                if tcp {
                    net::SOCK_STREAM
                } else {
                    net::SOCK_DGRAM
                }
            }
            (net::SOL_SOCKET, net::SO_DOMAIN) => {
                if s.v6 {
                    net::AF_INET6
                } else {
                    net::AF_INET
                }
            }
            (net::SOL_SOCKET, net::SO_PROTOCOL) => {
                (if tcp { net::IPPROTO_TCP } else { net::IPPROTO_UDP }) as u32
            }
            (net::SOL_SOCKET, net::SO_ACCEPTCONN) => u32::from(s.listens()),
            (net::SOL_SOCKET, net::SO_REUSEADDR) => u32::from(o.reuse_addr),
            (net::SOL_SOCKET, net::SO_REUSEPORT) => u32::from(o.reuse_port),
            (net::SOL_SOCKET, net::SO_BROADCAST) => u32::from(o.broadcast),
            (net::SOL_SOCKET, net::SO_KEEPALIVE) => u32::from(o.keep_alive),
            (net::SOL_SOCKET, net::SO_OOBINLINE) => 0,
            (net::SOL_SOCKET, net::SO_SNDBUF) => o.send_buffer,
            (net::SOL_SOCKET, net::SO_RCVBUF) => o.receive_buffer,
            (net::SOL_SOCKET, net::SO_RCVLOWAT | net::SO_SNDLOWAT) => 1,
            (net::SOL_SOCKET, net::SO_LINGER) => {
                let mut bytes = [0; 8];
                bytes[..4].copy_from_slice(&u32::from(o.linger.is_some()).to_ne_bytes());
                bytes[4..].copy_from_slice(&o.linger.unwrap_or(0).to_ne_bytes());
                return put(&bytes);
            }
            (TCP, net::TCP_NODELAY) if tcp => u32::from(o.no_delay),
            (TCP, net::TCP_CORK) if tcp => u32::from(o.cork),
            (TCP, net::TCP_KEEPIDLE) if tcp => o.keep_idle,
            (TCP, net::TCP_KEEPINTVL) if tcp => o.keep_interval,
            (TCP, net::TCP_KEEPCNT) if tcp => o.keep_count,
            (TCP, net::TCP_USER_TIMEOUT) if tcp => o.user_timeout,
            (TCP, net::TCP_MAXSEG) if tcp => self.mtu_of(s) - if s.v6 { 60 } else { 40 },
            (TCP, net::TCP_INFO) if tcp => {
                let connection = match &s.role {
                    Role::Stream(c) => c.flow.and_then(|f| self.flows.get(f)?.tcp()),
                    _ => None,
                };
                return put(&tcp_info(s, connection, self.mtu_of(s)));
            }
            (IPV6, net::IPV6_V6ONLY) if s.v6 => u32::from(o.v6_only),
            (IPV6, net::IPV6_UNICAST_HOPS) if s.v6 => u32::from(o.marks.hops.unwrap_or(64)),
            (IPV6, net::IPV6_TCLASS) if s.v6 && tcp => u32::from(o.marks.class),
            (IP, IP_TTL) => u32::from(o.marks.hops.unwrap_or(64)),
            (IP, net::IP_TOS) if tcp => u32::from(o.marks.service),
            (net::SOL_SOCKET | IP, _) => return Err(Errno::ENOPROTOOPT),
            (TCP, _) if tcp => return Err(Errno::ENOPROTOOPT),
            // As it happens.
            _ => return Err(if s.v6 { Errno::ENOPROTOOPT } else { Errno::EOPNOTSUPP }),
        };
        put(&number.to_ne_bytes())
    }

    pub(crate) fn set_option(&mut self, n: i32, level: u32, name: u32, value: &[u8]) -> Result<()> {
        let index = self.index(n)?;
        let s = self.sockets.get_mut(index).ok_or(Errno::EBADF)?;
        let tcp = s.kind == Kind::Tcp;
        let o = &mut s.options;
        match (level, name) {
            (net::SOL_SOCKET, net::SO_REUSEADDR) => o.reuse_addr = word(value)? != 0,
            (net::SOL_SOCKET, net::SO_REUSEPORT) => o.reuse_port = word(value)? != 0,
            (net::SOL_SOCKET, net::SO_BROADCAST) => o.broadcast = word(value)? != 0,
            (net::SOL_SOCKET, net::SO_KEEPALIVE) => o.keep_alive = word(value)? != 0,
            (net::SOL_SOCKET, net::SO_SNDBUF) => {
                (o.send_buffer, o.own_send_buffer) = (buffer(word(value)?), true)
            }
            (net::SOL_SOCKET, net::SO_RCVBUF) => {
                (o.receive_buffer, o.own_receive_buffer) = (buffer(word(value)?), true)
            }
            (net::SOL_SOCKET, net::SO_LINGER) => {
                let time = value.get(4..).ok_or(Errno::EINVAL)?;
                let time = word(time)?;
                o.linger = (word(value)? != 0).then_some(time);
            }
            (TCP, net::TCP_NODELAY) if tcp => o.no_delay = word(value)? != 0,
            (TCP, net::TCP_CORK) if tcp => o.cork = word(value)? != 0,
            (TCP, net::TCP_KEEPIDLE) if tcp => o.keep_idle = within(word(value)?, 32767)?,
            (TCP, net::TCP_KEEPINTVL) if tcp => o.keep_interval = within(word(value)?, 32767)?,
            (TCP, net::TCP_KEEPCNT) if tcp => o.keep_count = within(word(value)?, 127)?,
            (TCP, net::TCP_USER_TIMEOUT) if tcp => {
                let ms = word(value)?;
                o.user_timeout = if ms as i32 >= 0 { ms } else { return Err(Errno::EINVAL) };
            }
            (IPV6, net::IPV6_V6ONLY) if s.v6 => {
                if s.bound {
                    return Err(Errno::EINVAL);
                }
                o.v6_only = word(value)? != 0;
            }
            (IPV6, net::IPV6_UNICAST_HOPS) if s.v6 => o.marks.hops = hops(value)?,
            (IPV6, net::IPV6_TCLASS) if s.v6 && tcp => {
                let class = word(value)? as i32;
                if !(-1..=255).contains(&class) {
                    return Err(Errno::EINVAL);
                }
                o.marks.class = service(class.max(0) as u32, o.marks.class);
            }
            (IP, IP_TTL) => o.marks.hops = hops(value)?,
            (IP, net::IP_TOS) if tcp => {
                // A byte will do, as ip(7) has it.
                let value = word(value).or_else(|e| value.first().map(|b| u32::from(*b)).ok_or(e))?;
                o.marks.service = service(value, o.marks.service);
            }
            _ => return Err(Errno::ENOPROTOOPT),
        }
        let flows = match &s.role {
            Role::Stream(c) => alloc::vec::Vec::from_iter(c.flow),
            Role::Datagram(d) => d.out.clone(),
            _ => return Ok(()),
        };
        for f in flows {
            // It takes up what was set on the visit.
            self.list(f);
        }
        Ok(())
    }

    /// The packet size of the way that a socket's packets go.
    fn mtu_of(&self, s: &Sock) -> u32 {
        let net = match &s.role {
            Role::Stream(c) => c.flow.and_then(|f| self.flows.get(f)).map(|f| f.net),
            _ => None,
        };
        self.nets[net.unwrap_or(self.nets.len() - 1)].link.mtu() as u32
    }
}

const TCP: u32 = net::IPPROTO_TCP as u32;
const IP: u32 = net::IPPROTO_IP as u32;
const IPV6: u32 = net::IPPROTO_IPV6 as u32;
const IP_TTL: u32 = net::IP_TTL;

/// Of a stream the two bits that tell of congestion are not the program's.
fn service(value: u32, was: u8) -> u8 {
    value as u8 & !3 | was & 3
}

/// A hop limit; -1: the usual one.
fn hops(value: &[u8]) -> Result<Option<u8>> {
    match word(value)? as i32 {
        -1 => Ok(None),
        n @ 1..=255 => Ok(Some(n as u8)),
        _ => Err(Errno::EINVAL),
    }
}

impl Options {
    pub(crate) fn marks(&self) -> Marks {
        self.marks
    }
}
