//! Streams: connecting, listening, bytes, and how it all ends.

use alloc::boxed::Box;
use alloc::vec::Vec;

use atoll_abi::{Errno, Result};
use core::hash::Hasher as _;
use linux_raw_sys::net;
use siphasher::sip::SipHasher24;
use smoltcp::wire::{IpAddress, IpEndpoint};

use crate::address;
use crate::link::{Segment, flags};
use crate::options::Options;
use crate::ports::Ports;
use crate::sockets::{
    Attempt, Connection, Flow, Kind, Listener, Owner, Pair, Role, Sock, Stream, What, is_group, writable,
};
use crate::stack::{Inner, NEIGHBOUR, SEND_BURST, bits, is_lingering};
use crate::tcb::{Begin, Outgoing, State, Tcb};
use crate::way::{Marks, Way};

/// Most connections that wait to be accepted (`net.core.somaxconn`).
const BACKLOG_MAX: u32 = 4096;
/// How large buffers grow whose size was not set (half of `tcp_rmem` and `tcp_wmem`), bytes.
const RECEIVE_MOST: usize = 3 << 20;
const SEND_MOST: usize = 2 << 20;
/// A handshake that is older may have to make room for another, us.
const HANDSHAKE: i64 = 1_000_000;
/// A connection that nobody has any more ends after this, us: when its peer says nothing (`tcp_fin_timeout`),
const FIN_TIMEOUT: i64 = 60_000_000;
/// when its bytes take too long to go out,
const DRAIN: i64 = 300_000_000;
/// and when a reset can't be sent.
const RESET: i64 = 1_000_000;

/// Has the peer said that it sends no more?
fn is_finished(s: State) -> bool {
    matches!(s, State::CloseWait | State::Closing | State::LastAck | State::TimeWait)
}

/// Is the handshake still under way?
fn is_opening(s: State) -> bool {
    matches!(s, State::SynSent | State::SynReceived)
}

fn is_half_open(f: &Flow) -> bool {
    f.tcp().is_some_and(|c| matches!(c.owner, Owner::Listener(_)))
}

impl Inner {
    /// A connection's first sequence number (RFC 6528), and what its time stamps have added.
    fn first_numbers(&self, local: IpEndpoint, remote: IpEndpoint) -> (u32, u32) {
        let mut hash = SipHasher24::new_with_keys(self.secret.0, self.secret.1);
        for end in [local, remote] {
            match end.addr {
                IpAddress::Ipv4(a) => hash.write(&a.octets()),
                IpAddress::Ipv6(a) => hash.write(&a.octets()),
            }
            hash.write_u16(end.port);
        }
        let hash = hash.finish();
        // Every 4 us one more.
        ((hash as u32).wrapping_add((self.now / 4) as u32), (hash >> 32) as u32)
    }

    /// Makes a flow with a connection that asks for its peer, or answers one that has asked (`syn`).
    fn new_connection(
        &mut self,
        net: usize,
        options: &Options,
        owner: Owner,
        (local, remote): (IpEndpoint, IpEndpoint),
        syn: Option<&Segment>,
    ) -> Result<usize> {
        let (receive, send) = (options.receive_buffer as usize / 2, options.send_buffer as usize / 2);
        let memory = receive + send + size_of::<Flow>() + size_of::<Connection>() + size_of::<Sock>();
        self.reserve(memory)?;
        let link = &self.nets[net].link;
        let headers = if matches!(remote.addr, IpAddress::Ipv4(_)) { 40 } else { 60 };
        let (sequence, stamp) = self.first_numbers(local, remote);
        let begin = Begin {
            sequence,
            stamp,
            segment: (link.mtu() - headers) as u32,
            // Nothing is lost there but what has no room.
            local: !link.is_port(),
            receive,
            send,
            receive_most: if options.own_receive_buffer { receive } else { RECEIVE_MOST },
            send_most: if options.own_send_buffer { send } else { SEND_MOST },
        };
        let mut tcb = match syn {
            Some(syn) => Tcb::accept(&begin, syn, self.now),
            None => Tcb::connect(&begin, self.now),
        };
        tcb.settings = options.settings();
        let connection = Connection {
            owner,
            local,
            remote,
            state: tcb.state(),
            tcb,
            unread: 0,
            finished: false,
            way: None,
            way_until: 0,
            marks: options.marks(),
            heard: self.now,
            until: None,
            known: true,
            holds: None,
        };
        let f = self.flows.insert(Flow {
            net,
            timer: None,
            listed: false,
            waits: false,
            stuck: None,
            memory,
            what: What::Tcp(Box::new(connection)),
        });
        self.connections.insert(Pair(local, remote), f);
        Ok(f)
    }

    /// Makes a connection's buffers larger, as long as there is memory for new ones, too.
    #[inline(never)]
    fn grow(&mut self, f: usize, wants: (usize, usize)) {
        let more = wants.0 + wants.1;
        if more == 0 || !self.may_grow(more) || self.reserve(more).is_err() {
            return;
        }
        if let Some(flow) = self.flows.get_mut(f) {
            flow.memory += more;
            if let What::Tcp(c) = &mut flow.what {
                c.tcb.grow(wants);
            }
        }
    }

    /// Is a pair of addresses free for a connection? One that only waits for its time to be over makes room.
    fn is_free(&mut self, local: IpEndpoint, remote: IpEndpoint) -> bool {
        match self.connections.get(&Pair(local, remote)) {
            None => true,
            Some(&f) if self.flows.get(f).is_some_and(is_lingering) => {
                self.end(f);
                true
            }
            Some(_) => false,
        }
    }

    pub(crate) fn connect_tcp(&mut self, n: usize, addr: &[u8]) -> Result<()> {
        if addr.len() < 2 {
            return Err(Errno::EINVAL);
        }
        if address::family(addr) == net::AF_UNSPEC {
            return self.disconnect(n);
        }
        let s = self.sockets.get_mut(n).ok_or(Errno::EBADF)?;
        let v6 = s.v6;
        match &mut s.role {
            Role::Listener(_) => return Err(Errno::EISCONN),
            Role::Stream(c) if c.attempt == Attempt::Connected => return Err(Errno::EISCONN),
            Role::Stream(c) if c.attempt == Attempt::Broken => return Err(Errno::EINVAL),
            Role::Stream(c) => {
                let state =
                    c.flow.and_then(|f| self.flows.get(f)?.tcp()).map_or(State::Closed, |c| c.tcb.state());
                if is_opening(state) {
                    return Err(Errno::EALREADY);
                }
                if state != State::Closed {
                    c.attempt = Attempt::Connected;
                    return Ok(());
                }
                // It failed, and that is told once more; then another may begin.
                let e = s.take_error().unwrap_or(Errno::ECONNABORTED);
                self.disconnect(n)?;
                return Err(e);
            }
            Role::Idle => {}
            Role::Datagram(_) => return Err(Errno::EBADF),
        }
        let mut remote = address::parse(addr, v6)?;
        remote.addr = address::target(remote.addr, self.sockets.get(n).map_or(remote.addr, |s| s.asked.addr));
        if is_group(remote.addr) {
            return Err(Errno::ENETUNREACH);
        }
        let s = self.sockets.get(n).ok_or(Errno::EBADF)?;
        let (asked, bound, port, options) = (s.asked.addr, s.bound, s.local.port, s.options);
        if options.v6_only && matches!(remote.addr, IpAddress::Ipv4(_)) {
            return Err(Errno::ENETUNREACH);
        }
        if matches!((asked, remote.addr), (IpAddress::Ipv4(_), IpAddress::Ipv6(_))) {
            return Err(Errno::EAFNOSUPPORT);
        }
        let (net, source) = self.route(remote.addr, asked)?;
        let mut local = IpEndpoint { addr: source, port };
        if remote.port == 0 {
            return Err(Errno::ECONNREFUSED);
        }
        if bound {
            if !self.is_free(local, remote) {
                return Err(Errno::EADDRNOTAVAIL);
            }
        } else {
            let random = self.random();
            let unused = |i: &Inner, p| {
                i.ports.sockets(Kind::Tcp, p).is_empty()
                    && !i.connections.contains_key(&Pair(IpEndpoint { addr: source, port: p }, remote))
            };
            // One that nobody uses; else one whose last connection is over.
            let port = Ports::ephemeral(random, |p| unused(self, p)).or_else(|| {
                Ports::ephemeral(random, |p| {
                    self.ports.sockets(Kind::Tcp, p).is_empty()
                        && self.is_free(IpEndpoint { addr: source, port: p }, remote)
                })
            });
            local.port = port.ok_or(Errno::EADDRNOTAVAIL)?;
        }
        let f = self.new_connection(net, &options, Owner::Socket(n), (local, remote), None)?;
        if !bound {
            self.ports.bind(Kind::Tcp, local.port, n);
        }
        let s = self.sockets.get_mut(n).ok_or(Errno::EBADF)?;
        s.bound = true;
        s.local = local;
        s.role = Role::Stream(Stream { flow: Some(f), remote, attempt: Attempt::Connecting });
        self.list(f);
        Err(Errno::EINPROGRESS)
    }

    /// Makes a socket as it was before it was connected or listened (`tcp_disconnect`).
    fn disconnect(&mut self, n: usize) -> Result<()> {
        let s = self.sockets.get_mut(n).ok_or(Errno::EBADF)?;
        let role = core::mem::replace(&mut s.role, Role::Idle);
        s.shut_read = false;
        s.shut_write = false;
        s.local.addr = s.asked.addr;
        match role {
            Role::Stream(c) => {
                if let Some(f) = c.flow {
                    let state = self.flows.get(f).and_then(Flow::tcp).map(|c| c.tcb.state());
                    if state.is_some_and(|s| s != State::Closed) {
                        self.release_port(n);
                    }
                    let cut = !matches!(
                        state,
                        None | Some(State::Closed | State::TimeWait | State::LastAck | State::Closing)
                    );
                    if cut && let Some(s) = self.sockets.get_mut(n) {
                        s.error = Some(Errno::ECONNRESET);
                    }
                    self.leave(f, Some(0), None);
                }
            }
            Role::Listener(l) => {
                self.release_port(n);
                self.leave_all(l);
            }
            _ => {}
        }
        self.changed(n);
        Ok(())
    }

    /// A port that was not asked for is only held as long as there is a connection.
    fn release_port(&mut self, n: usize) {
        if let Some(s) = self.sockets.get_mut(n)
            && s.bound
            && s.asked.port == 0
        {
            // Its name keeps it, as on Linux.
            s.bound = false;
            let port = s.local.port;
            self.ports.unbind(Kind::Tcp, port, n);
        }
    }

    pub(crate) fn listen(&mut self, n: i32, backlog: u32) -> Result<()> {
        let n = self.index(n)?;
        let backlog = backlog.min(BACKLOG_MAX) as usize;
        let s = self.sockets.get_mut(n).ok_or(Errno::EBADF)?;
        match &mut s.role {
            Role::Datagram(_) => return Err(Errno::EOPNOTSUPP),
            Role::Stream(_) => return Err(Errno::EINVAL),
            Role::Listener(l) => {
                l.backlog = backlog;
                return Ok(());
            }
            Role::Idle => {}
        }
        if !s.bound {
            let at = IpEndpoint { addr: s.asked.addr, port: 0 };
            self.take_port(n, at)?;
        } else {
            // Of sockets that share an address, only one may listen.
            let (local, options, cover) = (s.local, s.options, s.cover());
            let taken = self.ports.sockets(Kind::Tcp, local.port).iter().filter(|&&m| m != n).any(|&m| {
                self.sockets.get(m).is_some_and(|o| {
                    let shared = options.reuse_port && o.options.reuse_port;
                    o.listens() && !shared && o.cover().overlaps(cover)
                })
            });
            if taken {
                return Err(Errno::EADDRINUSE);
            }
        }
        let s = self.sockets.get_mut(n).ok_or(Errno::EBADF)?;
        s.role = Role::Listener(Listener { backlog, ..Listener::default() });
        self.changed(n);
        Ok(())
    }

    pub(crate) fn accept(&mut self, n: i32, addr: &mut [u8]) -> Result<(i32, usize)> {
        let n = self.index(n)?;
        let s = self.sockets.get_mut(n).ok_or(Errno::EBADF)?;
        let l = match &mut s.role {
            Role::Listener(l) => l,
            Role::Datagram(_) => return Err(Errno::EOPNOTSUPP),
            _ => return Err(Errno::EINVAL),
        };
        let taken = l.ready.pop_front().ok_or(Errno::EAGAIN)?;
        let s = self.sockets.get(taken).ok_or(Errno::ECONNABORTED)?;
        let len = match &s.role {
            Role::Stream(c) => address::write(c.remote, s.v6, addr),
            _ => 0,
        };
        Ok((taken as i32, len))
    }

    pub(crate) fn receive_tcp(
        &mut self,
        n: usize,
        max: usize,
        flags: u32,
        take: &mut dyn FnMut(&[u8]) -> usize,
    ) -> Result<usize> {
        let s = self.sockets.get_mut(n).ok_or(Errno::EBADF)?;
        let flow = match &s.role {
            Role::Stream(c) => c.flow,
            Role::Listener(_) => return Err(Errno::ENOTCONN),
            _ => None,
        };
        if flags & net::MSG_OOB != 0 {
            return Err(Errno::EINVAL);
        }
        let (peek, discard) = (flags & net::MSG_PEEK != 0, flags & net::MSG_TRUNC != 0);
        if let Some(f) = flow
            && let Some(c) = self.flows.get_mut(f).and_then(Flow::tcp_mut)
            && c.tcb.recv_queue() > 0
            && !is_opening(c.tcb.state())
        {
            if max == 0 {
                return Ok(0);
            }
            let done =
                if discard { c.tcb.read(max, peek, &mut |b| b.len()) } else { c.tcb.read(max, peek, take) };
            c.unread = c.tcb.recv_queue();
            if done == 0 {
                return Err(Errno::EFAULT);
            }
            let (wants, opens) = (c.tcb.wants(self.now), !peek && c.tcb.opens_window());
            if wants != (0, 0) {
                self.grow(f, wants);
            }
            if opens {
                self.list(f);
            }
            return Ok(done);
        }
        let c = flow.and_then(|f| self.flows.get(f)).and_then(Flow::tcp);
        if c.is_some_and(|c| c.finished) {
            return Ok(0);
        }
        if let Some(e) = s.take_error() {
            return Err(e);
        }
        if s.shut_read {
            return Ok(0);
        }
        match c {
            Some(c) if c.state != State::Closed => Err(Errno::EAGAIN),
            _ => Err(Errno::ENOTCONN),
        }
    }

    pub(crate) fn send_tcp(
        &mut self,
        n: usize,
        len: usize,
        flags: u32,
        fill: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<usize> {
        let s = self.sockets.get_mut(n).ok_or(Errno::EBADF)?;
        if let Some(e) = s.take_error() {
            return Err(e);
        }
        let Role::Stream(Stream { flow: Some(f), .. }) = s.role else { return Err(Errno::EPIPE) };
        let c = self.flows.get_mut(f).and_then(Flow::tcp_mut).ok_or(Errno::EPIPE)?;
        if s.shut_write {
            return Err(Errno::EPIPE);
        }
        if is_opening(c.tcb.state()) {
            s.no_space = true;
            return Err(Errno::EAGAIN);
        }
        if !c.tcb.may_send() {
            return Err(Errno::EPIPE);
        }
        if len == 0 {
            return Ok(0);
        }
        let (done, _) = c.tcb.write(len, flags & net::MSG_MORE != 0, fill);
        let mut full = !c.tcb.can_send();
        if full {
            let wants = c.tcb.wants(self.now);
            self.grow(f, wants);
            full = wants.1 == 0;
        }
        if done < len
            && full
            && let Some(s) = self.sockets.get_mut(n)
        {
            s.no_space = true;
        }
        if done > 0 {
            self.send_now(f);
            return Ok(done);
        }
        Err(if full { Errno::EAGAIN } else { Errno::EFAULT })
    }

    pub(crate) fn shutdown_tcp(&mut self, n: usize, read: bool, write: bool) -> Result<()> {
        let s = self.sockets.get_mut(n).ok_or(Errno::EBADF)?;
        let f = match &s.role {
            Role::Listener(_) => {
                // `inet_shutdown`: it stops listening.
                if read {
                    self.disconnect(n)?;
                }
                return Ok(());
            }
            Role::Stream(Stream { flow: Some(f), .. }) => *f,
            _ => {
                // Linux shuts it down all the same.
                s.shut_read |= read;
                s.shut_write |= write;
                self.changed(n);
                return Err(Errno::ENOTCONN);
            }
        };
        let Some(c) = self.flows.get_mut(f).and_then(Flow::tcp_mut) else { return Err(Errno::ENOTCONN) };
        match c.tcb.state() {
            State::Closed => {
                if let Role::Stream(c) = &mut s.role
                    && c.attempt == Attempt::Connecting
                {
                    c.attempt = Attempt::Broken;
                }
                return Err(Errno::ENOTCONN);
            }
            State::SynSent => return self.disconnect(n),
            _ => {
                if let Role::Stream(c) = &mut s.role {
                    c.attempt = Attempt::Connected;
                }
            }
        }
        s.shut_read |= read;
        s.shut_write |= write;
        if write {
            c.tcb.close();
            self.list(f);
        }
        self.changed(n);
        Ok(())
    }

    pub(crate) fn ready_tcp(&self, s: &Sock) -> u32 {
        let mut now = if s.error.is_some() { bits::ERR } else { 0 };
        let flow = match &s.role {
            Role::Listener(l) => return now | if l.ready.is_empty() { 0 } else { bits::IN },
            Role::Stream(c) => c.flow.and_then(|f| self.flows.get(f)?.tcp()),
            _ => None,
        };
        let finished = flow.is_some_and(|c| c.finished);
        let connection = flow.map(|c| &c.tcb);
        let state = connection.map_or(State::Closed, Tcb::state);
        let shut_read = s.shut_read || finished;
        // To Linux a connection in TIME_WAIT is closed.
        if shut_read && s.shut_write || matches!(state, State::Closed | State::TimeWait) {
            now |= bits::HUP;
        }
        if shut_read {
            now |= bits::IN | bits::RDHUP;
        }
        if is_opening(state) {
            return now;
        }
        if connection.is_some_and(|t| t.recv_queue() > 0) {
            now |= bits::IN;
        }
        if s.shut_write || connection.is_none_or(|t| !t.may_send() || writable(t)) {
            now |= bits::OUT;
        }
        now
    }

    // --- packets ---

    pub(crate) fn incoming_tcp(&mut self, net: usize, segment: &Segment) {
        let &Segment { local, remote, .. } = segment;
        let mut f = self.connections.get(&Pair(local, remote)).copied();
        f = f.filter(|&f| self.flows.get(f).is_some_and(|f| f.net == net));
        if f.is_none() || segment.opens() {
            // To us, and from somebody else; a connection's peer is.
            let port = self.nets[net].link.is_port();
            let here = self.nets[net].has(local.addr);
            if port && (!here || self.is_own(remote.addr) || !remote.addr.is_unicast()) {
                return;
            }
        }
        if segment.opens() {
            if let Some(old) = f
                && self.flows.get(old).is_some_and(is_lingering)
                && self.listener(local, remote).is_some()
            {
                self.end(old);
                f = None;
            }
            if f.is_none()
                && let Some(begun) = self.begin(net, segment)
            {
                // If there is no room, the peer will try again.
                if let Ok(f) = begun {
                    self.list(f);
                }
                return;
            }
        }
        match f {
            Some(f) => self.hear(f, segment),
            None => self.refuse(net, segment),
        }
    }

    /// A segment for a connection.
    fn hear(&mut self, f: usize, segment: &Segment) {
        let Some(flow) = self.flows.get_mut(f) else { return };
        let What::Tcp(c) = &mut flow.what else { return };
        c.heard = self.now;
        c.tcb.hear(segment, self.now);
        // Most often it is open both ways, and there is something to be read.
        if let Owner::Socket(n) = c.owner
            && c.state == State::Established
            && c.tcb.state() == State::Established
            // Who waits for room may have some now.
            && self.sockets.get(n).is_some_and(|s| !s.no_space)
        {
            let unread = c.tcb.recv_queue();
            let more = unread > core::mem::replace(&mut c.unread, unread);
            let (busy, soon) = (c.tcb.is_busy(), c.tcb.soon());
            if more {
                self.changed(n);
            }
            if busy {
                self.list(f);
            } else if let Some(t) = soon {
                self.visit_at(f, t);
            }
            return;
        }
        self.settle(f, Some(segment.resets()));
        self.list(f);
    }

    /// A segment for no connection: the peer hears that there is none (RFC 9293 section 3.10.7.1).
    fn refuse(&mut self, net: usize, segment: &Segment) {
        if segment.resets() {
            return;
        }
        let has = |flag| u32::from(segment.flags & flag != 0);
        let (sequence, acknowledged, flags) = if segment.flags & flags::ACK != 0 {
            (segment.acknowledged, 0, flags::RST)
        } else {
            let len = segment.data.len() as u32 + has(flags::SYN) + has(flags::FIN);
            (0, segment.sequence.wrapping_add(len), flags::RST | flags::ACK)
        };
        let now = self.now;
        let net = &mut self.nets[net];
        if let Some((way, _)) = net.way_to(segment.local, segment.remote, Marks::default(), 0, now) {
            let out = Outgoing { sequence, acknowledged, flags, window: 0, options: &[], data: (&[], &[]) };
            way.send(&mut net.link, &out);
        }
    }

    /// Sends what a connection has to send, as far as that can be. Value: how many segments.
    fn output(&mut self, f: usize) -> u32 {
        let now = self.now;
        let Some(flow) = self.flows.get_mut(f) else { return 0 };
        let What::Tcp(c) = &mut flow.what else { return 0 };
        let Connection { tcb, way, way_until, local, remote, marks, .. } = &mut **c;
        let net = &mut self.nets[flow.net];
        let confirmed = tcb.confirmed();
        let mut neighbour = false;
        let (sent, could) = tcb.output(now, SEND_BURST, &mut |out| {
            if *way_until <= now {
                match net.way_to(*local, *remote, *marks, confirmed, now) {
                    Some((found, until)) => (*way, *way_until) = (Some(found), until),
                    None => {
                        neighbour = true;
                        return false;
                    }
                }
            }
            way.as_ref().is_some_and(|w: &Way| w.send(&mut net.link, out))
        });
        if could || sent > 0 {
            flow.stuck = None;
        }
        if !could {
            self.could_not_send(f, neighbour);
        } else if sent == SEND_BURST {
            self.list(f);
        }
        sent
    }

    /// Sends bytes that were just written. What else there may be to do is done on a visit.
    #[inline]
    fn send_now(&mut self, f: usize) {
        let Some(flow) = self.flows.get(f) else { return };
        if flow.waits || flow.listed {
            // Its turn comes.
            return;
        }
        self.output(f);
        if let Some(t) = self.flows.get(f).and_then(Flow::tcp).and_then(|c| c.tcb.soon()) {
            self.visit_at(f, t);
        }
    }

    /// A visit of a connection: it does what is due and sends what it has.
    pub(crate) fn visit_tcp(&mut self, f: usize) {
        if !self.before_visit_tcp(f) {
            return;
        }
        let now = self.now;
        if let Some(c) = self.flows.get_mut(f).and_then(Flow::tcp_mut) {
            c.tcb.at_time(now);
        }
        self.output(f);
        self.settle(f, None);
        let next = self.flows.get(f).and_then(Flow::tcp).and_then(|c| {
            let next = c.tcb.next_at();
            c.until.map_or(next, |t| Some(next.map_or(t, |n| n.min(t))))
        });
        self.schedule(f, next);
    }

    /// The socket that listens for a connection.
    fn listener(&self, local: IpEndpoint, remote: IpEndpoint) -> Option<usize> {
        let all = self.ports.sockets(Kind::Tcp, local.port).iter();
        let fits = all.filter_map(|&n| {
            let s = self.sockets.get(n)?;
            if !s.listens() {
                return None;
            }
            s.cover().fits(local.addr).map(|fits| (fits, n))
        });
        let best: Vec<_> = fits.collect();
        let most = best.iter().map(|b| b.0).max()?;
        // Those that share an address by SO_REUSEPORT share the connections, too.
        let equal: Vec<_> = best.iter().filter(|b| b.0 == most).collect();
        equal.get(usize::from(remote.port) % equal.len()).map(|b| b.1)
    }

    /// Somebody asks for a connection. None: nobody listens; an error: there is no room.
    fn begin(&mut self, net: usize, syn: &Segment) -> Option<Result<usize>> {
        let &Segment { local, remote, .. } = syn;
        let n = self.listener(local, remote)?;
        let s = self.sockets.get(n)?;
        let options = s.options;
        let Role::Listener(l) = &s.role else { return None };
        if l.ready.len() > l.backlog {
            return Some(Err(Errno::EAGAIN));
        }
        if l.ready.len() + l.half_open.len() > l.backlog.max(8) {
            // A handshake that makes no progress makes room.
            let oldest = *l.half_open.front()?;
            let old =
                self.flows.get(oldest).and_then(Flow::tcp).is_none_or(|c| self.now - c.heard > HANDSHAKE);
            if !old {
                return Some(Err(Errno::EAGAIN));
            }
            self.drop_half_open(n, oldest);
            self.end(oldest);
        }
        Some(self.begin_here(net, n, &options, syn))
    }

    fn begin_here(&mut self, net: usize, n: usize, options: &Options, syn: &Segment) -> Result<usize> {
        let &Segment { local, remote, .. } = syn;
        let f = self.new_connection(net, options, Owner::Listener(n), (local, remote), Some(syn))?;
        if let Some(c) = self.flows.get_mut(f).and_then(Flow::tcp_mut) {
            // As Linux's accepted sockets do.
            c.holds = Some(options.reuse_addr);
        }
        self.ports.leave(local, options.reuse_addr);
        if self.opening.len() > 64 + 2 * self.flows.len() {
            let flows = &self.flows;
            self.opening.retain(|&f| flows.get(f).is_some_and(is_half_open));
        }
        self.opening.push_back(f);
        if let Some(Sock { role: Role::Listener(l), .. }) = self.sockets.get_mut(n) {
            l.half_open.push_back(f);
        }
        Ok(f)
    }

    /// Ends a handshake that makes no progress, to make room; false: there is none.
    pub(crate) fn end_half_open(&mut self) -> bool {
        while let Some(&f) = self.opening.front() {
            let flow = self.flows.get(f).filter(|f| is_half_open(f)).and_then(Flow::tcp);
            if flow.is_some_and(|c| self.now - c.heard <= HANDSHAKE) {
                return false;
            }
            self.opening.pop_front();
            if let Some(Connection { owner: Owner::Listener(n), .. }) = flow {
                let n = *n;
                self.drop_half_open(n, f);
                self.end(f);
                return true;
            }
        }
        false
    }

    fn drop_half_open(&mut self, n: usize, f: usize) {
        if let Some(Sock { role: Role::Listener(l), .. }) = self.sockets.get_mut(n) {
            l.half_open.retain(|&h| h != f);
        }
    }

    /// Somebody says that a connection's packets don't arrive: believed while it is being made.
    pub(crate) fn undelivered_tcp(&mut self, local: IpEndpoint, remote: IpEndpoint, e: Errno) {
        let Some(&f) = self.connections.get(&Pair(local, remote)) else { return };
        if self.flows.get(f).and_then(Flow::tcp).is_some_and(|c| c.tcb.state() == State::SynSent) {
            self.fail(f, e);
        }
    }

    /// Ends an attempt to connect.
    fn fail(&mut self, f: usize, e: Errno) {
        if let Some(c) = self.flows.get_mut(f).and_then(Flow::tcp_mut) {
            // In this state no reset is due.
            c.tcb.close();
            c.state = State::Closed;
            if let Owner::Socket(n) = c.owner {
                self.over(n, Some(e));
            }
        }
        self.forget_pair(f);
    }

    /// A connection's addresses are free again, though its socket may still have it.
    fn forget_pair(&mut self, f: usize) {
        if let Some(c) = self.flows.get_mut(f).and_then(Flow::tcp_mut)
            && core::mem::take(&mut c.known)
        {
            let pair = Pair(c.local, c.remote);
            self.connections.remove(&pair);
        }
    }

    /// A socket's connection has ended (`tcp_done`).
    fn over(&mut self, n: usize, e: Option<Errno>) {
        if let Some(s) = self.sockets.get_mut(n) {
            s.error = e.or(s.error);
            s.shut_read = true;
            s.shut_write = true;
        }
        self.release_port(n);
        self.changed(n);
    }

    /// Before a visit; false: there is nothing to be sent.
    fn before_visit_tcp(&mut self, f: usize) -> bool {
        let Some(flow) = self.flows.get_mut(f) else { return false };
        let stuck = flow.stuck.is_some_and(|t| self.now - t >= NEIGHBOUR);
        let What::Tcp(c) = &mut flow.what else { return false };
        if c.until.is_some_and(|t| t <= self.now) {
            let (owner, state) = (c.owner, c.state);
            if owner == Owner::Nobody && matches!(state, State::Closed | State::FinWait2) {
                self.end(f);
                return false;
            }
            c.until = Some(self.now + RESET);
            c.tcb.abort();
        }
        if stuck && c.state == State::SynSent {
            self.fail(f, Errno::EHOSTUNREACH);
            return true;
        }
        match c.owner {
            Owner::Socket(n) | Owner::Listener(n) => {
                if let Some(s) = self.sockets.get(n) {
                    c.tcb.settings = s.options.settings();
                    let marks = s.options.marks();
                    if core::mem::replace(&mut c.marks, marks) != marks {
                        // Its headers are others.
                        c.way_until = 0;
                    }
                }
            }
            Owner::Nobody => c.tcb.settings.limit = Some(FIN_TIMEOUT),
        }
        true
    }

    /// Sees what has become of a flow. `packet`: one came in, and was a reset or not; else it is its own time.
    fn settle(&mut self, f: usize, packet: Option<bool>) {
        let Some(c) = self.flows.get_mut(f).and_then(Flow::tcp_mut) else { return };
        let t = &c.tcb;
        let (state, unread, peer, room) = (t.state(), t.recv_queue(), t.has_reset(), writable(t));
        let before = core::mem::replace(&mut c.state, state);
        let more = unread > core::mem::replace(&mut c.unread, unread);
        let finished = is_finished(state) && !c.finished;
        c.finished |= finished;
        match c.owner {
            Owner::Listener(n) => match state {
                State::Closed => {
                    self.drop_half_open(n, f);
                    self.end(f);
                }
                State::SynReceived => {}
                _ => self.established(n, f),
            },
            Owner::Socket(n) => {
                if state == State::Closed {
                    if before != State::Closed {
                        let e = match (before, packet) {
                            (State::LastAck | State::TimeWait, _) => None,
                            (State::SynSent, Some(true)) => Some(Errno::ECONNREFUSED),
                            (State::CloseWait, Some(true)) => Some(Errno::EPIPE),
                            (_, Some(_)) => Some(Errno::ECONNRESET),
                            (_, None) => Some(Errno::ETIMEDOUT),
                        };
                        self.over(n, e);
                    }
                    if !peer {
                        self.forget_pair(f);
                    }
                    return;
                }
                let Some(s) = self.sockets.get_mut(n) else { return };
                let opened = is_opening(before) && !is_opening(state);
                let space = s.no_space && room && !is_opening(state);
                if space {
                    s.no_space = false;
                }
                let ended = state == State::TimeWait && before != State::TimeWait;
                if more || finished || opened || space || ended {
                    self.changed(n);
                }
            }
            Owner::Nobody => {
                if state == State::Closed {
                    if !peer {
                        self.end(f);
                    } else {
                        c.until.get_or_insert(self.now + RESET);
                    }
                } else if unread > 0 {
                    // What comes for nobody is refused (RFC 2525 section 2.17).
                    c.until = Some(self.now + RESET);
                    c.tcb.abort();
                    self.list(f);
                } else if state == State::FinWait2 {
                    let limit = self.now + FIN_TIMEOUT;
                    c.until = Some(c.until.map_or(limit, |t| t.min(limit)));
                } else if state == State::TimeWait && before != State::TimeWait {
                    c.until = None;
                    self.lingering.push_back(f);
                }
            }
        }
    }

    /// A handshake is done: the connection gets a socket and waits to be accepted.
    fn established(&mut self, n: usize, f: usize) {
        self.drop_half_open(n, f);
        let Some(c) = self.flows.get(f).and_then(Flow::tcp) else { return };
        let (local, remote) = (c.local, c.remote);
        let Some(l) = self.sockets.get(n) else { return };
        let mut s = Sock::new(Kind::Tcp, l.v6);
        s.options = l.options;
        s.local = local;
        s.asked = local;
        s.role = Role::Stream(Stream { flow: Some(f), remote, attempt: Attempt::Connected });
        match self.add_socket(s) {
            Ok(m) => {
                if let Some(c) = self.flows.get_mut(f).and_then(Flow::tcp_mut) {
                    c.owner = Owner::Socket(m);
                }
                if let Some(Sock { role: Role::Listener(l), .. }) = self.sockets.get_mut(n) {
                    l.ready.push_back(m);
                }
                self.changed(n);
            }
            Err(_) => self.leave(f, Some(0), None),
        }
    }

    /// A connection's socket is gone: it closes by itself, at once if SO_LINGER says so or if there is
    /// something that nobody has read. `holds`: it holds its port from now on, with or without SO_REUSEADDR.
    pub(crate) fn leave(&mut self, f: usize, linger: Option<u32>, holds: Option<bool>) {
        let Some(c) = self.flows.get_mut(f).and_then(Flow::tcp_mut) else { return };
        let t = &mut c.tcb;
        if t.state() == State::Closed && !t.has_reset() {
            self.end(f);
            return;
        }
        let abort = linger == Some(0) || t.recv_queue() > 0;
        if abort {
            t.abort()
        } else {
            t.close()
        }
        if t.state() == State::Closed && !t.has_reset() {
            // It had not been connected yet.
            self.end(f);
            return;
        }
        let waits = t.state() == State::TimeWait;
        c.owner = Owner::Nobody;
        c.until = (!waits).then_some(self.now + if abort { RESET } else { DRAIN });
        let local = c.local;
        if c.holds.is_none()
            && let Some(reuse) = holds
        {
            c.holds = Some(reuse);
            self.ports.leave(local, reuse);
        }
        if waits {
            self.lingering.push_back(f);
        }
        self.list(f);
    }

    /// A listening socket is gone, and so are the connections that nobody accepted.
    pub(crate) fn leave_all(&mut self, l: Listener) {
        for f in l.half_open {
            self.leave(f, Some(0), None);
        }
        for n in l.ready {
            if let Some(Sock { options, .. }) = self.sockets.get_mut(n) {
                options.linger = Some(0);
            }
            self.destroy(n);
        }
    }
}
