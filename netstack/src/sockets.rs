//! What a socket is, and what it shares with the connections below it.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use atoll_abi::Errno;
use smoltcp::iface::{PollResult, SocketHandle, SocketSet};
use smoltcp::socket::udp;
use smoltcp::time::Instant;
use smoltcp::wire::{IpAddress, IpEndpoint};

use crate::address::Cover;
use crate::link::Feed;
use crate::options::Options;
use crate::stack::Net;
use crate::tcb::{State, Tcb};
use crate::way::{Marks, Way};

/// Streams or datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Kind {
    Tcp,
    Udp,
}

/// A socket that is known by a number.
pub(crate) struct Sock {
    /// Who holds it: a handle, a descriptor.
    pub(crate) refs: u32,
    pub(crate) kind: Kind,
    /// Of AF_INET6.
    pub(crate) v6: bool,
    pub(crate) options: Options,
    /// Own address; port 0: none yet.
    pub(crate) local: IpEndpoint,
    /// What it was bound to; where that leaves something open, a connection fills it in.
    pub(crate) asked: IpEndpoint,
    /// It holds its port in the table of ports.
    pub(crate) bound: bool,
    /// Who is told of changes: a core, and what it calls the socket.
    pub(crate) watch: Option<(usize, u64)>,
    /// A change is noted that nobody has looked at.
    pub(crate) noted: bool,
    /// The error to be told, once.
    pub(crate) error: Option<Errno>,
    /// Nothing more will be received (RCV_SHUTDOWN).
    pub(crate) shut_read: bool,
    /// Nothing more will be sent (SEND_SHUTDOWN).
    pub(crate) shut_write: bool,
    /// Somebody found no room to send (SOCK_NOSPACE): to be told when there is.
    pub(crate) no_space: bool,
    pub(crate) role: Role,
}

pub(crate) enum Role {
    /// A stream that neither listens nor was connected.
    Idle,
    Listener(Listener),
    Stream(Stream),
    Datagram(Datagrams),
}

/// A listening socket.
#[derive(Default)]
pub(crate) struct Listener {
    /// Connections that may wait, both kinds together.
    pub(crate) backlog: usize,
    /// Sockets of connections that nobody has accepted, oldest first.
    pub(crate) ready: VecDeque<usize>,
    /// Flows whose handshake is under way, oldest first.
    pub(crate) half_open: VecDeque<usize>,
}

/// How far a call of `connect` is (Linux's `socket_state`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Attempt {
    /// Begun, and no call has told yet what came of it.
    Connecting,
    Connected,
    /// It was shut down after it had failed; that can't be mended but by AF_UNSPEC (SS_DISCONNECTING).
    Broken,
}

/// A connection's upper end.
pub(crate) struct Stream {
    /// None: it has ended and nothing is left to be read.
    pub(crate) flow: Option<usize>,
    pub(crate) remote: IpEndpoint,
    pub(crate) attempt: Attempt,
}

/// What a UDP socket has.
#[derive(Default)]
pub(crate) struct Datagrams {
    pub(crate) peer: Option<IpEndpoint>,
    pub(crate) queue: VecDeque<Datagram>,
    /// Bytes in the queue, with what keeping them costs.
    pub(crate) queued: usize,
    /// A flow for each interface that was sent through.
    pub(crate) out: Vec<usize>,
    /// What was sent with MSG_MORE, and where to: the beginning of the next datagram.
    pub(crate) held: Option<(IpEndpoint, Vec<u8>)>,
}

impl Datagrams {
    /// Bytes of memory that it has.
    pub(crate) fn memory(&self) -> usize {
        self.queued + self.held.as_ref().map_or(0, |(_, bytes)| bytes.len())
    }
}

pub(crate) struct Datagram {
    pub(crate) from: IpEndpoint,
    pub(crate) bytes: Vec<u8>,
}

impl Datagram {
    /// Bytes that keeping it costs.
    pub(crate) fn cost(&self) -> usize {
        self.bytes.len() + size_of::<Datagram>() + 64
    }
}

/// What goes out for a socket: a connection, or the datagrams that it sends through one interface.
pub(crate) struct Flow {
    /// Its interface.
    pub(crate) net: usize,
    /// When it is to be visited, as the list of timers says.
    pub(crate) timer: Option<i64>,
    /// It is to be visited as soon as may be, and is in a list for that.
    pub(crate) listed: bool,
    /// It waits for a neighbour's hardware address or for room, and is in a list for that.
    pub(crate) waits: bool,
    /// Since when it has not been able to send.
    pub(crate) stuck: Option<i64>,
    /// Memory that it holds, bytes.
    pub(crate) memory: usize,
    pub(crate) what: What,
}

pub(crate) enum What {
    Tcp(Box<Connection>),
    Udp(Outbox),
}

/// Datagrams on their way out: a socket of smoltcp's in a set of its own, so that an interface is given that one only.
pub(crate) struct Outbox {
    /// Whose it is; None: that one is closed.
    pub(crate) owner: Option<usize>,
    pub(crate) set: SocketSet<'static>,
    pub(crate) handle: SocketHandle,
}

/// A connection's two ends, the local one first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pair(pub(crate) IpEndpoint, pub(crate) IpEndpoint);

impl Hash for Pair {
    /// Of the local address nothing: most connections have the same.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let ports = u64::from(self.0.port) << 16 | u64::from(self.1.port);
        match self.1.addr {
            IpAddress::Ipv4(a) => state.write_u64(ports << 32 | u64::from(a.to_bits())),
            IpAddress::Ipv6(a) => {
                state.write_u64(ports);
                state.write_u128(a.to_bits());
            }
        }
    }
}

/// A connection's lower end.
pub(crate) struct Connection {
    pub(crate) owner: Owner,
    pub(crate) local: IpEndpoint,
    pub(crate) remote: IpEndpoint,
    pub(crate) tcb: Tcb,
    /// As it was when it was last looked at.
    pub(crate) state: State,
    /// Bytes to be read, likewise.
    pub(crate) unread: usize,
    /// The peer sends no more.
    pub(crate) finished: bool,
    /// How its segments go, and until when that is so, us.
    pub(crate) way: Option<Way>,
    pub(crate) way_until: i64,
    /// What its packets' headers say.
    pub(crate) marks: Marks,
    /// When it was last heard of.
    pub(crate) heard: i64,
    /// When it has to be gone, if its socket is.
    pub(crate) until: Option<i64>,
    /// It is in the table of connections.
    pub(crate) known: bool,
    /// It holds its port by itself; whether with SO_REUSEADDR.
    pub(crate) holds: Option<bool>,
}

/// Whom a connection belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    Socket(usize),
    /// A listening socket, as long as the handshake lasts.
    Listener(usize),
    /// Nobody: it closes by itself.
    Nobody,
}

impl Sock {
    pub(crate) fn new(kind: Kind, v6: bool) -> Self {
        let role = match kind {
            Kind::Tcp => Role::Idle,
            Kind::Udp => Role::Datagram(Datagrams::default()),
        };
        let nowhere = IpEndpoint { addr: crate::address::any(v6), port: 0 };
        Sock {
            refs: 1,
            kind,
            v6,
            options: Options::new(kind),
            local: nowhere,
            asked: nowhere,
            bound: false,
            watch: None,
            noted: false,
            error: None,
            shut_read: false,
            shut_write: false,
            no_space: false,
            role,
        }
    }

    /// The addresses that it answers to at its port.
    pub(crate) fn cover(&self) -> Cover {
        Cover::new(self.local.addr, self.v6, self.options.v6_only)
    }

    pub(crate) fn listens(&self) -> bool {
        matches!(self.role, Role::Listener(_))
    }

    /// The pending error, which is none from now on.
    pub(crate) fn take_error(&mut self) -> Option<Errno> {
        self.error.take()
    }
}

impl Flow {
    pub(crate) fn tcp(&self) -> Option<&Connection> {
        match &self.what {
            What::Tcp(c) => Some(c),
            What::Udp(_) => None,
        }
    }

    pub(crate) fn tcp_mut(&mut self) -> Option<&mut Connection> {
        match &mut self.what {
            What::Tcp(c) => Some(c),
            What::Udp(_) => None,
        }
    }

    /// Of a socket for datagrams.
    pub(crate) fn outbox(&self) -> Option<&Outbox> {
        match &self.what {
            What::Udp(o) => Some(o),
            What::Tcp(_) => None,
        }
    }

    pub(crate) fn outbox_mut(&mut self) -> Option<&mut Outbox> {
        match &mut self.what {
            What::Udp(o) => Some(o),
            What::Tcp(_) => None,
        }
    }
}

impl Outbox {
    pub(crate) fn socket(&self) -> &udp::Socket<'static> {
        self.set.get(self.handle)
    }

    pub(crate) fn socket_mut(&mut self) -> &mut udp::Socket<'static> {
        self.set.get_mut(self.handle)
    }

    /// Sends what is due, up to `most` packets. Value: how many there were, None if nothing was due; and when something
    /// is next, which is not later than `now` if it could not be sent. (To ask a socket when takes less long than what.)
    pub(crate) fn drain(
        &mut self,
        now: Instant,
        net: &mut Net,
        most: usize,
    ) -> (Option<u32>, Option<Instant>) {
        let mut at = net.iface.poll_at(now, &self.set);
        let is_due = |at: Option<Instant>| at.is_some_and(|t| t <= now);
        if !is_due(at) {
            return (None, at);
        }
        let mut feed = Feed::new(&mut net.link, None);
        for _ in 0..most {
            if !is_due(at) || net.iface.poll_egress(now, &mut feed, &mut self.set) == PollResult::None {
                break;
            }
            at = net.iface.poll_at(now, &self.set);
        }
        (Some(feed.sent), at)
    }
}

/// Can more be sent? Linux says so when a third is free (`sk_stream_is_writable`).
pub(crate) fn writable(s: &Tcb) -> bool {
    let used = s.send_queue();
    (s.send_capacity() - used) * 2 >= used.max(1)
}

/// Is it an address that no single machine has?
pub(crate) fn is_group(a: IpAddress) -> bool {
    a.is_multicast() || a.is_broadcast()
}

/// Is it an address of the loopback?
pub(crate) fn is_loopback(a: IpAddress) -> bool {
    match a {
        IpAddress::Ipv4(a) => a.is_loopback(),
        IpAddress::Ipv6(a) => a.is_loopback(),
    }
}
