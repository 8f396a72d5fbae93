//! Datagrams.

use alloc::vec::Vec;

use atoll_abi::platform::Received;
use atoll_abi::{Errno, Result};
use linux_raw_sys::net;
use smoltcp::iface::SocketSet;
use smoltcp::socket::udp;
use smoltcp::wire::{IpAddress, IpEndpoint};

use crate::address;
use crate::link::Why;
use crate::sockets::{Datagram, Datagrams, Flow, Kind, Outbox, Role, Sock, What, is_group};
use crate::stack::{Inner, bits};

/// Longest datagram, bytes (65535 less the headers).
const LONGEST: usize = 65507;
/// Bytes on their way out through one interface, for one socket.
const OUTBOX: usize = 65536;
/// Datagrams likewise.
const OUTBOX_COUNT: usize = 64;
/// Headers in front of a datagram on the wire: IPv4 or IPv6, and UDP.
const HEADERS: [usize; 2] = [28, 48];

fn datagrams(s: &mut Sock) -> Result<&mut Datagrams> {
    match &mut s.role {
        Role::Datagram(d) => Ok(d),
        _ => Err(Errno::EBADF),
    }
}

fn same_family(a: IpAddress, b: IpAddress) -> bool {
    matches!(a, IpAddress::Ipv4(_)) == matches!(b, IpAddress::Ipv4(_))
}

impl Inner {
    pub(crate) fn connect_udp(&mut self, n: usize, addr: &[u8]) -> Result<()> {
        let s = self.sockets.get_mut(n).ok_or(Errno::EBADF)?;
        if addr.len() < 2 {
            return Err(Errno::EINVAL);
        }
        if address::family(addr) == net::AF_UNSPEC {
            datagrams(s)?.peer = None;
            s.local.addr = s.asked.addr;
            if s.bound && s.asked.port == 0 {
                s.bound = false;
                let port = core::mem::take(&mut s.local.port);
                self.ports.unbind(Kind::Udp, port, n);
            }
            return Ok(());
        }
        let only = s.v6 && s.options.v6_only;
        self.bind_datagrams(n)?;
        if only && address::family(addr) == net::AF_INET {
            return Err(Errno::EAFNOSUPPORT);
        }
        let to = self.parse_to(n, addr)?;
        let s = self.sockets.get(n).ok_or(Errno::EBADF)?;
        if matches!((s.local.addr, to.addr), (IpAddress::Ipv4(_), IpAddress::Ipv6(_))) {
            return Err(Errno::EAFNOSUPPORT);
        }
        if is_group(to.addr) && to.addr.is_broadcast() && !s.options.broadcast {
            return Err(Errno::EACCES);
        }
        let asked = s.asked.addr;
        let (_, source) = self.route(to.addr, asked)?;
        let s = self.sockets.get_mut(n).ok_or(Errno::EBADF)?;
        s.local.addr = source;
        datagrams(s)?.peer = Some(to);
        Ok(())
    }

    /// Whoever sends has a port, even if nothing comes of it.
    fn bind_datagrams(&mut self, n: usize) -> Result<()> {
        let s = self.sockets.get(n).ok_or(Errno::EBADF)?;
        if s.bound {
            return Ok(());
        }
        let at = IpEndpoint { addr: s.asked.addr, port: 0 };
        self.take_port(n, at).map_err(|_| Errno::EAGAIN)
    }

    fn parse_to(&self, n: usize, addr: &[u8]) -> Result<IpEndpoint> {
        let s = self.sockets.get(n).ok_or(Errno::EBADF)?;
        // udp(7): a socket of IPv6 takes both forms.
        let v4 = s.v6 && address::family(addr) == net::AF_INET;
        let to = address::parse(addr, s.v6 && !v4)?;
        if s.v6 && s.options.v6_only && matches!(to.addr, IpAddress::Ipv4(_)) {
            return Err(Errno::ENETUNREACH);
        }
        Ok(IpEndpoint { addr: address::target(to.addr, s.local.addr), ..to })
    }

    pub(crate) fn send_udp(
        &mut self,
        n: usize,
        len: usize,
        addr: Option<&[u8]>,
        flags: u32,
        f: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<usize> {
        let held = datagrams(self.sockets.get_mut(n).ok_or(Errno::EBADF)?)?.held.as_ref();
        let (held_to, before) = held.map_or((None, 0), |(to, bytes)| (Some(*to), bytes.len()));
        let whole = before + len;
        if whole > LONGEST {
            self.take_held(n);
            return Err(Errno::EMSGSIZE);
        }
        self.bind_datagrams(n)?;
        let to = match addr {
            Some(a) if !a.is_empty() => Some(self.parse_to(n, a)?),
            _ => None,
        };
        let s = self.sockets.get_mut(n).ok_or(Errno::EBADF)?;
        let peer = datagrams(s)?.peer;
        // All of a datagram goes where its beginning was to go.
        let to = held_to.or(to).or(peer).ok_or(Errno::EDESTADDRREQ)?;
        if to.port == 0 {
            return Err(Errno::EINVAL);
        }
        if matches!((s.local.addr, to.addr), (IpAddress::Ipv4(_), IpAddress::Ipv6(_))) {
            return Err(Errno::EAFNOSUPPORT);
        }
        if let Some(e) = s.take_error() {
            return Err(e);
        }
        if s.shut_write {
            return Err(Errno::EPIPE);
        }
        let (local, asked) = (s.local.addr, s.asked.addr);
        let (net, source) = self.route(to.addr, if same_family(local, to.addr) { local } else { asked })?;
        let group = self.nets[net].iface.ip_addrs().iter().any(|c| {
            matches!((c, to.addr), (smoltcp::wire::IpCidr::Ipv4(c), IpAddress::Ipv4(a)) if c.broadcast() == Some(a))
        });
        let s = self.sockets.get(n).ok_or(Errno::EBADF)?;
        if (group || to.addr.is_broadcast()) && !s.options.broadcast {
            return Err(Errno::EACCES);
        }
        let headers = HEADERS[usize::from(matches!(to.addr, IpAddress::Ipv6(_)))];
        if net != 0 && whole + headers > self.nets[net].link.mtu() {
            // Packets are not split.
            self.take_held(n);
            return Err(Errno::EMSGSIZE);
        }
        let port = self.sockets.get(n).ok_or(Errno::EBADF)?.local.port;
        let from = IpEndpoint { addr: source, port };
        let out = if net == 0 { None } else { Some(self.outbox(n, net)?) };
        if let Some(f) = out
            && let Some(flow) = self.flows.get(f)
            && flow.outbox().is_some_and(|o| !o.socket().can_send())
        {
            return self.no_room(n);
        }
        let mut bytes = self.take_held(n);
        bytes.resize(whole, 0);
        if len > 0 && f(&mut bytes[before..]) < len {
            // The caller brings the page in, and sends this piece again.
            self.keep_again(n, held_to, bytes, before)?;
            return Err(Errno::EFAULT);
        }
        if flags & net::MSG_MORE != 0 {
            self.keep(n, to, bytes)?;
            return Ok(len);
        }
        match out {
            None => {
                if !self.deliver(to, from, bytes) && peer == Some(to) {
                    self.fail_udp(n, Errno::ECONNREFUSED);
                }
            }
            Some(f) => {
                let outbox = self.flows.get_mut(f).and_then(Flow::outbox_mut);
                let s = outbox.ok_or(Errno::ENOBUFS)?.socket_mut();
                let meta =
                    udp::UdpMetadata { endpoint: to, local_address: Some(source), meta: Default::default() };
                if s.send_slice(&bytes, meta).is_err() {
                    self.keep_again(n, held_to, bytes, before)?;
                    return self.no_room(n);
                }
                self.list(f);
            }
        }
        Ok(len)
    }

    /// Takes what was sent with MSG_MORE.
    fn take_held(&mut self, n: usize) -> Vec<u8> {
        let held = self.sockets.get_mut(n).and_then(|s| datagrams(s).ok()?.held.take());
        let bytes = held.map_or(Vec::new(), |(_, bytes)| bytes);
        self.give_back(bytes.len());
        bytes
    }

    /// Keeps what is sent with MSG_MORE.
    fn keep(&mut self, n: usize, to: IpEndpoint, bytes: Vec<u8>) -> Result<()> {
        self.reserve(bytes.len())?;
        datagrams(self.sockets.get_mut(n).ok_or(Errno::EBADF)?)?.held = Some((to, bytes));
        Ok(())
    }

    /// Keeps what was held, for `held_to`, before the piece that could not be sent was put behind it.
    fn keep_again(
        &mut self,
        n: usize,
        held_to: Option<IpEndpoint>,
        mut bytes: Vec<u8>,
        before: usize,
    ) -> Result<()> {
        bytes.truncate(before);
        held_to.map_or(Ok(()), |to| self.keep(n, to, bytes))
    }

    fn no_room(&mut self, n: usize) -> Result<usize> {
        if let Some(s) = self.sockets.get_mut(n) {
            s.no_space = true;
        }
        Err(Errno::EAGAIN)
    }

    /// What a socket sends through an interface.
    fn outbox(&mut self, n: usize, net: usize) -> Result<usize> {
        let s = self.sockets.get_mut(n).ok_or(Errno::EBADF)?;
        let (port, hop_limit) = (s.local.port, s.options.marks().hops);
        let out = &datagrams(s)?.out;
        let there = out.iter().copied().find(|&f| self.flows.get(f).is_some_and(|f| f.net == net));
        let f = match there {
            Some(f) => f,
            None => {
                self.reserve(OUTBOX)?;
                let meta = alloc::vec![udp::PacketMetadata::EMPTY; OUTBOX_COUNT];
                let tx = udp::PacketBuffer::new(meta, alloc::vec![0; OUTBOX]);
                let rx = udp::PacketBuffer::new(Vec::new(), Vec::new());
                let mut set = SocketSet::new(Vec::with_capacity(1));
                let handle = set.add(udp::Socket::new(rx, tx));
                let flow = Flow {
                    net,
                    timer: None,
                    listed: false,
                    waits: false,
                    stuck: None,
                    memory: OUTBOX,
                    what: What::Udp(Outbox { owner: Some(n), set, handle }),
                };
                let f = self.flows.insert(flow);
                datagrams(self.sockets.get_mut(n).ok_or(Errno::EBADF)?)?.out.push(f);
                f
            }
        };
        if let Some(outbox) = self.flows.get_mut(f).and_then(Flow::outbox_mut) {
            let s = outbox.socket_mut();
            s.set_hop_limit(hop_limit);
            if s.endpoint().port != port {
                // It was bound to another port meanwhile, or to none yet.
                s.close();
                s.bind(port).map_err(|_| Errno::EINVAL)?;
            }
        }
        Ok(f)
    }

    /// A frame with a datagram for a port that somebody has.
    pub(crate) fn incoming_udp(&mut self, net: usize, frame: &[u8], local: IpEndpoint) {
        let here =
            self.nets[net].has(local.addr) || is_group(local.addr) || self.is_broadcast(net, local.addr);
        if !here {
            return;
        }
        if !is_group(local.addr) && !self.is_broadcast(net, local.addr) && self.fitting(local, None).is_none()
        {
            // Refused; the interface says so.
            self.for_itself(net, frame);
            return;
        }
        if let Some((from, to, bytes)) = self.unpack(net, frame, local.port)
            && from.port != 0
        {
            self.deliver(IpEndpoint { addr: to, port: local.port }, from, bytes);
        }
    }

    fn is_broadcast(&self, net: usize, addr: IpAddress) -> bool {
        let cidrs = self.nets[net].iface.ip_addrs().iter();
        cidrs.copied().any(|c| match (c, addr) {
            (smoltcp::wire::IpCidr::Ipv4(c), IpAddress::Ipv4(a)) => c.broadcast() == Some(a),
            _ => false,
        })
    }

    /// The socket that a datagram is for: the connected one, or that with the most exact address; of equals
    /// the latest. `from`: None if any sender will do.
    fn fitting(&self, to: IpEndpoint, from: Option<IpEndpoint>) -> Option<usize> {
        let all = self.ports.sockets(Kind::Udp, to.port).iter();
        all.filter_map(|&n| {
            let s = self.sockets.get(n)?;
            let fits = s.cover().fits(to.addr)?;
            let Role::Datagram(d) = &s.role else { return None };
            match (d.peer, from) {
                (Some(peer), Some(from)) if peer != from => None,
                (Some(_), _) => Some((fits + 3, n)),
                (None, _) => Some((fits, n)),
            }
        })
        .max_by_key(|(fits, _)| *fits)
        .map(|(_, n)| n)
    }

    /// Gives a datagram to whom it is for; false: to nobody.
    fn deliver(&mut self, to: IpEndpoint, from: IpEndpoint, bytes: Vec<u8>) -> bool {
        let broadcast = (0..self.nets.len()).any(|net| self.is_broadcast(net, to.addr));
        if !is_group(to.addr) && !broadcast {
            let Some(n) = self.fitting(to, Some(from)) else { return false };
            self.queue(n, from, bytes);
            return true;
        }
        for n in self.ports.sockets(Kind::Udp, to.port).to_vec() {
            let Some(s) = self.sockets.get(n) else { continue };
            let peer = match &s.role {
                Role::Datagram(d) => d.peer,
                _ => None,
            };
            let takes = s.local.addr.is_unspecified() || s.local.addr == to.addr;
            if takes && peer.is_none_or(|p| p == from) {
                self.queue(n, from, bytes.clone());
            }
        }
        true
    }

    fn queue(&mut self, n: usize, from: IpEndpoint, bytes: Vec<u8>) {
        let datagram = Datagram { from, bytes };
        let cost = datagram.cost();
        let Some(s) = self.sockets.get_mut(n) else { return };
        let limit = s.options.receive_buffer as usize;
        let Ok(d) = datagrams(s) else { return };
        // The first one always has room.
        let room = d.queue.is_empty() || d.queued + cost <= limit;
        // Also after a shutdown, as on Linux.
        if !room || self.reserve(cost).is_err() {
            return;
        }
        if let Some(s) = self.sockets.get_mut(n)
            && let Ok(d) = datagrams(s)
        {
            d.queued += cost;
            d.queue.push_back(datagram);
        }
        self.changed(n);
    }

    pub(crate) fn receive_udp(
        &mut self,
        n: usize,
        max: usize,
        addr: Option<&mut [u8]>,
        flags: u32,
        f: &mut dyn FnMut(&[u8]) -> usize,
    ) -> Result<Received> {
        let s = self.sockets.get_mut(n).ok_or(Errno::EBADF)?;
        if let Some(e) = s.take_error() {
            return Err(e);
        }
        let v6 = s.v6;
        let d = datagrams(s)?;
        // Also after a shutdown: only who waits hears of that.
        let first = d.queue.front().ok_or(Errno::EAGAIN)?;
        let (whole, from) = (first.bytes.len(), first.from);
        let n_bytes = whole.min(max);
        // One that can't be put where it is wanted stays.
        if n_bytes > 0 && f(&first.bytes[..n_bytes]) < n_bytes {
            return Err(Errno::EFAULT);
        }
        if flags & net::MSG_PEEK == 0
            && let Some(first) = d.queue.pop_front()
        {
            let cost = first.cost();
            d.queued -= cost;
            self.give_back(cost);
        }
        Ok(Received {
            len: if flags & net::MSG_TRUNC != 0 { whole } else { n_bytes },
            addr_len: addr.map_or(0, |a| address::write(from, v6, a)),
            control_len: 0,
            flags: if whole > max { net::MSG_TRUNC } else { 0 },
        })
    }

    pub(crate) fn shutdown_udp(&mut self, n: usize, read: bool, write: bool) -> Result<()> {
        let s = self.sockets.get_mut(n).ok_or(Errno::EBADF)?;
        s.shut_read |= read;
        s.shut_write |= write;
        let connected = datagrams(s)?.peer.is_some();
        self.changed(n);
        // Linux shuts it down all the same.
        if connected { Ok(()) } else { Err(Errno::ENOTCONN) }
    }

    pub(crate) fn ready_udp(&self, s: &Sock) -> u32 {
        let Role::Datagram(d) = &s.role else { return 0 };
        let mut now = 0;
        if !d.queue.is_empty() || s.shut_read {
            now |= bits::IN;
        }
        if s.shut_read {
            now |= bits::RDHUP;
        }
        if s.shut_read && s.shut_write {
            now |= bits::HUP;
        }
        if s.error.is_some() {
            now |= bits::ERR;
        }
        let full = d.out.iter().filter_map(|&f| self.flows.get(f)?.outbox()).any(|o| {
            let s = o.socket();
            !s.can_send() || s.send_queue() > OUTBOX / 2
        });
        if !full {
            now |= bits::OUT_UDP;
        }
        now
    }

    /// Leaves a socket an error.
    fn fail_udp(&mut self, n: usize, e: Errno) {
        if let Some(s) = self.sockets.get_mut(n) {
            s.error = Some(e);
        }
        self.changed(n);
    }

    /// A packet of ours did not arrive, somebody says.
    pub(crate) fn undelivered(&mut self, tcp: bool, local: IpEndpoint, remote: IpEndpoint, why: Why) {
        let e = match why {
            Why::Network => Errno::ENETUNREACH,
            Why::Host => Errno::EHOSTUNREACH,
            Why::Port => Errno::ECONNREFUSED,
        };
        if tcp {
            self.undelivered_tcp(local, remote, e);
            return;
        }
        let connected = |n: &usize| match self.sockets.get(*n) {
            Some(Sock { role: Role::Datagram(d), local: own, .. }) => {
                d.peer == Some(remote) && own.addr == local.addr
            }
            _ => false,
        };
        // Hints about a network or a host are not told (udp(7), IP_RECVERR).
        if why == Why::Port
            && let Some(n) = self.ports.sockets(Kind::Udp, local.port).iter().copied().find(connected)
        {
            self.fail_udp(n, e);
        }
    }

    /// Before a visit of what a socket sends: gives up a neighbour that does not answer.
    pub(crate) fn before_visit_udp(&mut self, f: usize, stuck: bool) -> bool {
        let Some(flow) = self.flows.get_mut(f) else { return false };
        let What::Udp(outbox) = &mut flow.what else { return false };
        let owner = outbox.owner;
        let s = outbox.socket_mut();
        if stuck {
            let port = s.endpoint().port;
            s.close();
            // The port was good before.
            let _ = s.bind(port);
            flow.stuck = None;
            if let Some(n) = owner
                && let Some(Sock { role: Role::Datagram(d), .. }) = self.sockets.get(n)
                && d.peer.is_some()
            {
                self.fail_udp(n, Errno::EHOSTUNREACH);
            }
        }
        true
    }

    /// After a visit: tells of room, ends what is done.
    pub(crate) fn settle_udp(&mut self, f: usize) {
        let Some(outbox) = self.flows.get(f).and_then(Flow::outbox) else { return };
        let empty = outbox.socket().send_queue() == 0;
        match outbox.owner {
            None if empty => self.end(f),
            None => {}
            Some(n) => {
                let room =
                    self.sockets.get(n).is_some_and(|s| s.no_space && self.ready_udp(s) & bits::OUT != 0);
                if room && let Some(s) = self.sockets.get_mut(n) {
                    s.no_space = false;
                    self.changed(n);
                }
            }
        }
    }
}
