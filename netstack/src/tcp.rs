//! Streams: connecting, listening, bytes, and how it all ends.

use alloc::vec::Vec;

use atoll_abi::{Errno, Result};
use linux_raw_sys::net;
use smoltcp::iface::SocketSet;
use smoltcp::socket::tcp::{self, State};
use smoltcp::time::Duration;
use smoltcp::wire::{IpAddress, IpEndpoint, IpListenEndpoint};

use crate::address;
use crate::link::{Segment, flags};
use crate::options::Options;
use crate::ports::Ports;
use crate::sockets::{
    Attempt, Connection, Flow, Held, Kind, Listener, Owner, Pair, Role, Sock, Stream, What, is_group,
    writable,
};
use crate::stack::{Inner, NEIGHBOUR, SEND_BURST, bits, is_lingering};

/// Most connections that wait to be accepted (`net.core.somaxconn`).
const BACKLOG_MAX: u32 = 4096;
/// A handshake that is older may have to make room for another, us.
const HANDSHAKE: i64 = 1_000_000;
/// A connection that nobody has any more ends after this, us: when its peer says nothing (`tcp_fin_timeout`),
const FIN_TIMEOUT: i64 = 60_000_000;
/// when its bytes take too long to go out,
const DRAIN: i64 = 300_000_000;
/// and when a reset can't be sent.
const RESET: i64 = 1_000_000;

/// Bytes that may come without being acknowledged at once: the least that a segment may be as large as (RFC 9293
/// section 3.7.1). smoltcp acknowledges when there are more than the peer's segments hold.
const UNACKNOWLEDGED: usize = 536;

impl Connection {
    /// Is it open both ways and somebody's?
    fn is_usual(&self) -> bool {
        self.state == State::Established && matches!(self.owner, Owner::Socket(_)) && self.until.is_none()
    }
}

impl Flow {
    /// Is a segment what is expected of a peer that gets what it was sent: bytes, few enough to be acknowledged together
    /// with the answer, or an acknowledgement that says something new? After such a one there is nothing that a visit
    /// could do before [`Inner::visit_soon`]'s.
    fn expects(&self, segment: &Segment) -> bool {
        let What::Tcp(c) = &self.what else { return false };
        c.is_usual()
            && c.all_sent
            && !self.listed
            && !self.waits
            && segment.flags & !flags::PSH == flags::ACK
            && segment.window != 0
            // Of what was never sent, nobody who is the peer says that it came.
            && c.next.is_some_and(|n| !is_newer(segment.acknowledged, n))
            && if segment.len > 0 {
                c.unacknowledged + segment.len <= UNACKNOWLEDGED
            } else {
                c.acknowledged.is_some_and(|a| is_newer(segment.acknowledged, a))
            }
    }
}

/// Is a sequence number behind another one?
fn is_newer(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

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
    /// Makes a flow with a connection that has not begun.
    fn new_connection(
        &mut self,
        net: usize,
        options: &Options,
        owner: Owner,
        local: IpEndpoint,
        remote: IpEndpoint,
    ) -> Result<usize> {
        let (rx, tx) = (options.receive_buffer as usize / 2, options.send_buffer as usize / 2);
        let memory = rx + tx + size_of::<Flow>() + size_of::<Sock>();
        self.reserve(memory)?;
        let mut s = tcp::Socket::new(
            tcp::SocketBuffer::new(alloc::vec![0; rx]),
            tcp::SocketBuffer::new(alloc::vec![0; tx]),
        );
        if !self.nets[net].link.is_port() {
            // Nothing is lost there but what has no room.
            s.set_congestion_control(tcp::CongestionControl::None);
        }
        let mut set = SocketSet::new(Vec::with_capacity(1));
        let handle = set.add(s);
        let connection = Connection {
            owner,
            local,
            remote,
            state: State::Closed,
            unread: 0,
            finished: false,
            next: None,
            all_sent: true,
            unacknowledged: 0,
            acknowledged: None,
            held: None,
            heard: self.now,
            until: None,
            known: true,
            holds: None,
        };
        let f = self.flows.insert(Flow {
            set,
            handle,
            net,
            timer: None,
            listed: false,
            waits: false,
            stuck: None,
            memory,
            what: What::Tcp(connection),
        });
        self.connections.insert(Pair(local, remote), f);
        Ok(f)
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
                    c.flow.and_then(|f| self.flows.get(f)).map_or(State::Closed, |f| f.tcp_socket().state());
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
        let f = self.new_connection(net, &options, Owner::Socket(n), local, remote)?;
        let Some(flow) = self.flows.get_mut(f) else { return Err(Errno::ENOBUFS) };
        let context = self.nets[net].iface.context();
        let end = IpListenEndpoint { addr: Some(local.addr), port: local.port };
        if flow.tcp_socket_mut().connect(context, remote, end).is_err() {
            self.end(f);
            return Err(Errno::EADDRNOTAVAIL);
        }
        if let Some(c) = flow.tcp_mut() {
            c.state = State::SynSent;
        }
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
                    let state = self.flows.get(f).map(|f| f.tcp_socket().state());
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
            && let Some(flow) = self.flows.get_mut(f)
            && flow.tcp_socket().can_recv()
            && !is_opening(flow.tcp_socket().state())
        {
            if max == 0 {
                return Ok(0);
            }
            let t = flow.tcp_socket_mut();
            // The peer can send as good as all that there is room for, and there is nothing to tell it.
            let open = t.state() == State::Established && t.recv_queue() * 8 < t.recv_capacity();
            let mut done = 0;
            if peek {
                let mut copy = alloc::vec![0; max.min(t.recv_queue())];
                let n = t.peek_slice(&mut copy).map_err(|_| Errno::EAGAIN)?;
                done = if discard { n } else { take(&copy[..n]).min(n) };
            } else {
                while done < max && t.can_recv() {
                    let (got, all) = t
                        .recv(|bytes| {
                            let want = bytes.len().min(max - done);
                            let got = if discard { want } else { take(&bytes[..want]).min(want) };
                            (got, (got, got == want))
                        })
                        .map_err(|_| Errno::EAGAIN)?;
                    done += got;
                    if !all {
                        break;
                    }
                }
            }
            let left = t.recv_queue();
            if let Some(c) = flow.tcp_mut() {
                c.unread = left;
            }
            if done == 0 {
                return Err(Errno::EFAULT);
            }
            if !peek && !open {
                // There may be a window to open.
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
        fill: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<usize> {
        let s = self.sockets.get_mut(n).ok_or(Errno::EBADF)?;
        if let Some(e) = s.take_error() {
            return Err(e);
        }
        let Role::Stream(Stream { flow: Some(f), .. }) = s.role else { return Err(Errno::EPIPE) };
        // What has arrived makes room.
        self.take_held(f);
        let s = self.sockets.get_mut(n).ok_or(Errno::EBADF)?;
        let flow = self.flows.get_mut(f).ok_or(Errno::EPIPE)?;
        let t = flow.tcp_socket_mut();
        if s.shut_write {
            return Err(Errno::EPIPE);
        }
        if is_opening(t.state()) {
            s.no_space = true;
            return Err(Errno::EAGAIN);
        }
        if !t.may_send() {
            return Err(Errno::EPIPE);
        }
        if len == 0 {
            return Ok(0);
        }
        let mut done = 0;
        while done < len && t.can_send() {
            let (put, all) = t
                .send(|room| {
                    let want = room.len().min(len - done);
                    let put = fill(&mut room[..want]).min(want);
                    (put, (put, put == want))
                })
                .map_err(|_| Errno::EPIPE)?;
            done += put;
            if !all {
                break;
            }
        }
        let full = !t.can_send();
        if done < len && full {
            s.no_space = true;
        }
        if done > 0 {
            if let Some(c) = flow.tcp_mut() {
                c.all_sent = false;
            }
            if !self.send_usual(f) {
                self.list(f);
            }
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
        let Some(flow) = self.flows.get_mut(f) else { return Err(Errno::ENOTCONN) };
        match flow.tcp_socket().state() {
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
            flow.tcp_socket_mut().close();
            self.list(f);
        }
        self.changed(n);
        Ok(())
    }

    pub(crate) fn ready_tcp(&self, s: &Sock) -> u32 {
        let mut now = if s.error.is_some() { bits::ERR } else { 0 };
        let flow = match &s.role {
            Role::Listener(l) => return now | if l.ready.is_empty() { 0 } else { bits::IN },
            Role::Stream(c) => c.flow.and_then(|f| self.flows.get(f)),
            _ => None,
        };
        let finished = flow.and_then(Flow::tcp).is_some_and(|c| c.finished);
        let connection = flow.map(Flow::tcp_socket);
        let state = connection.map_or(State::Closed, tcp::Socket::state);
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
        if connection.is_some_and(tcp::Socket::can_recv) {
            now |= bits::IN;
        }
        if s.shut_write || connection.is_none_or(|t| !t.may_send() || writable(t)) {
            now |= bits::OUT;
        }
        now
    }

    // --- packets ---

    pub(crate) fn incoming_tcp(&mut self, net: usize, frame: &[u8], segment: &Segment) {
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
            if f.is_none() {
                f = match self.begin(net, local, remote) {
                    Some(Ok(f)) => Some(f),
                    // No room: the peer will try again.
                    Some(Err(_)) => return,
                    None => None,
                };
            }
        }
        let Some(f) = f else {
            // Refused; the interface says so.
            self.for_itself(net, frame);
            return;
        };
        let Some(flow) = self.flows.get_mut(f) else { return };
        let usual = flow.expects(segment);
        let What::Tcp(c) = &mut flow.what else { return };
        c.heard = self.now;
        c.unacknowledged += segment.len;
        let sent = c.next.is_some_and(|n| !is_newer(segment.acknowledged, n));
        if segment.flags & flags::ACK != 0
            && sent
            && c.acknowledged.is_none_or(|a| is_newer(segment.acknowledged, a))
        {
            c.acknowledged = Some(segment.acknowledged);
        }
        let acknowledged = c.acknowledged;
        if usual && segment.len == 0 && self.hold_back(f, frame) {
            return;
        }
        // If it says what the one before said, that is dropped if this one is taken.
        if !usual || acknowledged != Some(segment.acknowledged) {
            self.take_held(f);
        }
        self.hear(f, frame, usual.then_some(segment.len > 0), segment.resets());
    }

    /// Gives smoltcp a frame for a flow. `usual`: it was expected, and has bytes or not. `reset`: it is one.
    fn hear(&mut self, f: usize, frame: &[u8], usual: Option<bool>, reset: bool) {
        let now = self.instant();
        let Some(flow) = self.flows.get_mut(f) else { return };
        let answered = flow.feed(now, &mut self.nets[flow.net], frame) > 0;
        if answered || !usual.is_some_and(|data| self.settle_usual(f, data)) {
            self.settle(f, Some(reset));
            self.list(f);
        }
    }

    /// Keeps an acknowledgement that its flow expected: with a question, the next segment most often says the same. A
    /// while later, or when there are bytes to send, smoltcp is given it. False: somebody may wait for what it says.
    fn hold_back(&mut self, f: usize, frame: &[u8]) -> bool {
        let Some(flow) = self.flows.get_mut(f) else { return false };
        let room = writable(flow.tcp_socket());
        let What::Tcp(c) = &mut flow.what else { return false };
        let Owner::Socket(n) = c.owner else { return false };
        if !room || self.sockets.get(n).is_none_or(|s| s.no_space) {
            return false;
        }
        let Some(held) = Held::new(frame) else { return false };
        c.held = Some(held);
        self.visit_soon(f);
        true
    }

    /// Gives smoltcp the acknowledgement that was kept, if there is one.
    #[inline]
    pub(crate) fn take_held(&mut self, f: usize) {
        if self.flows.get(f).and_then(Flow::tcp).is_some_and(|c| c.held.is_some()) {
            self.hear_held(f);
        }
    }

    #[inline(never)]
    fn hear_held(&mut self, f: usize) {
        let held = self.flows.get_mut(f).and_then(Flow::tcp_mut).and_then(|c| c.held.take());
        if let Some(held) = held {
            self.hear(f, held.frame(), Some(false), false);
        }
    }

    /// As [`Inner::settle`], after a segment that its flow expected: it needs no visit. False: something is unusual. Bytes
    /// that were taken came with an acknowledgement that is as good as the one that was kept.
    fn settle_usual(&mut self, f: usize, data: bool) -> bool {
        let Some(flow) = self.flows.get_mut(f) else { return false };
        let (state, unread) = (flow.tcp_socket().state(), flow.tcp_socket().recv_queue());
        let What::Tcp(c) = &mut flow.what else { return false };
        let Owner::Socket(n) = c.owner else { return false };
        // Who waits for room may have some now.
        if state != State::Established || self.sockets.get(n).is_none_or(|s| s.no_space) {
            return false;
        }
        if unread > core::mem::replace(&mut c.unread, unread) {
            c.held = None;
            self.changed(n);
        }
        if data {
            self.visit_soon(f);
        }
        true
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
    fn begin(&mut self, net: usize, local: IpEndpoint, remote: IpEndpoint) -> Option<Result<usize>> {
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
        Some(self.begin_here(net, n, &options, local, remote))
    }

    fn begin_here(
        &mut self,
        net: usize,
        n: usize,
        options: &Options,
        local: IpEndpoint,
        remote: IpEndpoint,
    ) -> Result<usize> {
        let f = self.new_connection(net, options, Owner::Listener(n), local, remote)?;
        let flow = self.flows.get_mut(f).ok_or(Errno::ENOBUFS)?;
        let end = IpListenEndpoint { addr: Some(local.addr), port: local.port };
        flow.tcp_socket_mut().listen(end).map_err(|_| Errno::EINVAL)?;
        options.apply(flow.tcp_socket_mut(), Duration::ZERO);
        if let Some(c) = flow.tcp_mut() {
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
        if self.flows.get(f).is_some_and(|f| f.tcp_socket().state() == State::SynSent) {
            self.fail(f, e);
        }
    }

    /// Ends an attempt to connect.
    fn fail(&mut self, f: usize, e: Errno) {
        let Some(flow) = self.flows.get_mut(f) else { return };
        // In this state no reset is due.
        flow.tcp_socket_mut().close();
        if let Some(c) = flow.tcp_mut() {
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

    /// Sends the bytes of a flow that has some, and is as usual else: it needs no visit for that. False: it does.
    #[inline]
    fn send_usual(&mut self, f: usize) -> bool {
        let now = self.instant();
        let Some(flow) = self.flows.get_mut(f) else { return false };
        let What::Tcp(c) = &flow.what else { return false };
        let usual = c.is_usual() && flow.stuck.is_none() && !flow.waits && !flow.listed;
        if !usual || flow.tcp_socket().state() != State::Established {
            return false;
        }
        let (all, stuck) = flow.push(now, &mut self.nets[flow.net], SEND_BURST as u32);
        if stuck {
            self.could_not_send(f);
        }
        let Some(flow) = self.flows.get_mut(f) else { return false };
        if !all || flow.tcp_socket().state() != State::Established {
            return false;
        }
        self.visit_soon(f);
        true
    }

    /// Before a visit; false: there is nothing to be sent.
    pub(crate) fn before_visit(&mut self, f: usize) -> bool {
        let Some(flow) = self.flows.get_mut(f) else { return false };
        let stuck = flow.stuck.is_some_and(|t| self.now - t >= NEIGHBOUR);
        let What::Tcp(c) = &mut flow.what else { return self.before_visit_udp(f, stuck) };
        if c.until.is_some_and(|t| t <= self.now) {
            let (owner, state) = (c.owner, c.state);
            if owner == Owner::Nobody && matches!(state, State::Closed | State::FinWait2) {
                self.end(f);
                return false;
            }
            c.until = Some(self.now + RESET);
            flow.tcp_socket_mut().abort();
        }
        let Some(c) = flow.tcp_mut() else { return false };
        if c.keeps() {
            return false;
        }
        if stuck && c.state == State::SynSent {
            self.fail(f, Errno::EHOSTUNREACH);
            return true;
        }
        let owner = match c.owner {
            Owner::Socket(n) | Owner::Listener(n) => self.sockets.get(n),
            Owner::Nobody => None,
        };
        let silent = Duration::from_micros((self.now - c.heard).max(0) as u64);
        let t = flow.set.get_mut::<tcp::Socket>(flow.handle);
        match owner {
            Some(s) => s.options.apply(t, silent),
            None => t.set_timeout(match t.state() {
                State::TimeWait | State::FinWait2 | State::Closed => None,
                _ => Some(Duration::from_micros(FIN_TIMEOUT as u64)),
            }),
        }
        true
    }

    /// Sees what has become of a flow. `packet`: one came in, and was a reset or not; else it is its own time.
    pub(crate) fn settle(&mut self, f: usize, packet: Option<bool>) {
        let Some(flow) = self.flows.get_mut(f) else { return };
        if !matches!(flow.what, What::Tcp(_)) {
            return self.settle_udp(f);
        }
        let t = flow.tcp_socket();
        let (state, unread, peer, room) =
            (t.state(), t.recv_queue(), t.remote_endpoint().is_some(), writable(t));
        let Some(c) = flow.tcp_mut() else { return };
        let before = core::mem::replace(&mut c.state, state);
        let more = unread > core::mem::replace(&mut c.unread, unread);
        let finished = is_finished(state) && !c.finished;
        c.finished |= finished;
        match c.owner {
            Owner::Listener(n) => match state {
                State::Listen | State::Closed => {
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
                    flow.tcp_socket_mut().abort();
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
        let Some(flow) = self.flows.get_mut(f) else { return };
        let t = flow.tcp_socket_mut();
        if t.state() == State::Closed && t.remote_endpoint().is_none() {
            self.end(f);
            return;
        }
        let abort = linger == Some(0) || t.recv_queue() > 0;
        if abort {
            t.abort()
        } else {
            t.close()
        }
        let gone = t.state() == State::Closed && !abort;
        let waits = t.state() == State::TimeWait;
        if gone {
            // It had not been connected yet.
            self.end(f);
            return;
        }
        let Some(c) = flow.tcp_mut() else { return };
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
