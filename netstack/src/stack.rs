//! The stack: its lock, its interfaces, and how packets move.
//!
//! A connection, or what a socket sends of datagrams through one interface, is
//! a *flow*: a frame's headers say which one it is for. Thousands of
//! connections cost what they do, not what there are.
//!
//! A flow is *listed* when it may have something to send, and *visited* before
//! the lock is let go; its next visit is in the list of timers. What a
//! connection usually does, take bytes and send others in answer, needs no
//! visit: those are sent at once, and only the time of the next one is noted.

use alloc::boxed::Box;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use atoll_abi::platform::{Event, Events, Received};
use atoll_abi::{Errno, Result};
use atoll_sync::{Mutex, MutexGuard};
use hashbrown::HashMap;
use linux_raw_sys::{general as linux, net as linux_net};
use smoltcp::iface::{Config as InterfaceConfig, Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::socket::{dhcpv4, udp};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr, IpEndpoint, Ipv4Cidr, Ipv6Cidr};

use crate::events::{Changes, CoreState, core_states, tell};
use crate::link::{Feed, Hint, Link, Loop, PacketPort, sort};
use crate::neighbours::{Mac, Neighbours};
use crate::ports::Ports;
use crate::slab::Slab;
use crate::sockets::{Flow, Kind, Owner, Pair, Role, Sock, What};
use crate::tcb::State;
use crate::way::{Marks, Way};
use crate::{address, neighbours, sockets};

/// `poll(2)` bits that sockets have here, with those that Linux says together with them.
pub(crate) mod bits {
    use super::linux;
    pub const IN: u32 = linux::POLLIN | linux::POLLRDNORM;
    pub const OUT: u32 = linux::POLLOUT | linux::POLLWRNORM;
    /// Of datagrams.
    pub const OUT_UDP: u32 = OUT | linux::POLLWRBAND;
    pub const ERR: u32 = linux::POLLERR;
    pub const HUP: u32 = linux::POLLHUP;
    pub const RDHUP: u32 = linux::POLLRDHUP;
}

/// Frames that one visit of a port takes.
const BURST: usize = 256;
/// Rounds over the loopback and what it makes ready before the lock is let go.
const ROUNDS: usize = 256;
/// Packets that one flow sends in one visit.
pub(crate) const SEND_BURST: u32 = 256;
/// For how long a neighbour is asked for, us.
pub(crate) const NEIGHBOUR: i64 = 3_000_000;
/// How often an interface is asked what it has to send for itself, us, when nothing says that it has.
const OWN: i64 = 10_000;
/// When a flow that could not send is looked at again without a reason, us.
const AGAIN: i64 = 1_000;
/// And one that could not send for want of a neighbour's address.
const ASK_AGAIN: i64 = 50_000;
/// Largest datagram on its way in, bytes.
const INBOX: usize = 65536;

/// What a stack is made with.
#[derive(Clone, Debug)]
pub struct Config {
    /// From which all chance comes: sequence numbers, ports. Not to be guessed by a peer.
    pub seed: u64,
    /// Most bytes of buffers.
    pub memory: usize,
    /// Most sockets.
    pub sockets: usize,
    /// Cores that can watch sockets, 1 to 256.
    pub cores: usize,
}

impl Config {
    /// 256 MiB of buffers, 65536 sockets.
    pub fn new(seed: u64, cores: usize) -> Self {
        Config { seed, memory: 256 << 20, sockets: 1 << 16, cores }
    }
}

/// A port and its addresses.
pub struct PortConfig {
    /// Where its frames go.
    pub port: Arc<dyn PacketPort>,
    /// Ask for an IPv4 address.
    pub dhcp: bool,
    /// Addresses with the length of their networks' prefixes; 6 at most. What is not a machine's is left out.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Default routes; one of each family.
    pub gateways: Vec<IpAddr>,
}

/// An interface.
pub(crate) struct Net {
    pub(crate) iface: Interface,
    pub(crate) link: Link,
    /// Its hardware address, and those of its neighbours.
    mac: Mac,
    neighbours: Neighbours,
    /// Sockets of its own: DHCP.
    own: SocketSet<'static>,
    dhcp: Option<SocketHandle>,
    /// When they have something to do, us, and when that was last asked.
    own_at: Option<i64>,
    own_asked: i64,
    /// Where datagrams come in.
    inbox: SocketSet<'static>,
    inbox_handle: SocketHandle,
    /// Flows that wait for a neighbour's hardware address.
    waiting: Vec<usize>,
    /// Flows that wait for room.
    blocked: Vec<usize>,
    /// Name servers that DHCP told of.
    name_servers: Vec<IpAddr>,
}

pub(crate) struct Inner {
    /// The caller's time, us.
    pub(crate) now: i64,
    /// Interfaces; the first is the loopback.
    pub(crate) nets: Vec<Net>,
    pub(crate) sockets: Slab<Sock>,
    pub(crate) flows: Slab<Flow>,
    pub(crate) connections: HashMap<Pair, usize>,
    pub(crate) ports: Ports,
    timers: BTreeSet<(i64, usize)>,
    listed: VecDeque<usize>,
    /// What [`Inner::deadline`] looks at may have changed since it was asked.
    rescheduled: bool,
    /// A port may have had more frames than the last visit took, or the loopback more than [`ROUNDS`] are enough for.
    unfinished: bool,
    changes: Changes,
    /// Connections in TIME_WAIT that belong to nobody, oldest first; some may be gone.
    pub(crate) lingering: VecDeque<usize>,
    /// Connections whose handshake was under way, oldest first; some may be further, or gone.
    pub(crate) opening: VecDeque<usize>,
    memory: usize,
    config: Config,
    random: u64,
    /// The key of sequence numbers.
    pub(crate) secret: (u64, u64),
}

/// A network stack. Its calls are short and never wait for the network; they may wait for each other.
pub struct Stack {
    inner: Mutex<Inner>,
    cores: Box<[CoreState]>,
    wake: Box<dyn Fn(usize) + Send + Sync>,
    /// When [`Stack::poll`] is wanted, ns.
    deadline: AtomicU64,
    /// A poll found the stack busy.
    poll_wanted: AtomicBool,
    /// Some core's look did.
    missed: AtomicBool,
}

/// The stack, held for calls. They are by Linux's rules; sockets are named by number.
pub struct Calls<'a> {
    /// None: only while it is being let go.
    inner: Option<MutexGuard<'a, Inner>>,
    stack: &'a Stack,
}

impl Stack {
    /// A stack with a loopback and these ports. `wake(core)` is called, without the lock, when there is
    /// something for [`Stack::take_events`] on that core.
    pub fn new(config: Config, ports: Vec<PortConfig>, wake: Box<dyn Fn(usize) + Send + Sync>) -> Stack {
        let cores = core_states(config.cores);
        let inner = Inner::new(config, ports);
        Stack {
            inner: Mutex::new(inner),
            cores,
            wake,
            deadline: AtomicU64::new(0),
            poll_wanted: AtomicBool::new(false),
            missed: AtomicBool::new(false),
        }
    }

    /// Takes the stack for calls at this time (ns, of a clock that never steps back). Waits for its turn,
    /// so only a thread may call it.
    pub fn calls(&self, now_ns: u64) -> Calls<'_> {
        let mut inner = self.inner.lock();
        inner.set_now(now_ns);
        Calls { inner: Some(inner), stack: self }
    }

    /// As [`Stack::calls`], for those who can't wait. None: it is busy.
    pub fn try_calls(&self, now_ns: u64) -> Option<Calls<'_>> {
        let mut inner = self.inner.try_lock()?;
        inner.set_now(now_ns);
        Some(Calls { inner: Some(inner), stack: self })
    }

    /// Moves packets: to be called when a port has frames or has room again, and at the deadline. Never
    /// waits: if the stack is busy, whoever has it does the work. Value: [`Stack::deadline`].
    pub fn poll(&self, now_ns: u64) -> Option<u64> {
        self.poll_wanted.store(true, Ordering::SeqCst);
        if let Some(c) = self.try_calls(now_ns) {
            // Done by letting go.
            drop(c);
        }
        self.deadline()
    }

    /// When [`Stack::poll`] is wanted next, ns; any call may bring it nearer. None: only when frames come.
    pub fn deadline(&self) -> Option<u64> {
        match self.deadline.load(Ordering::SeqCst) {
            u64::MAX => None,
            t => Some(t),
        }
    }

    /// Is there something for [`Stack::take_events`]? Cheap.
    pub fn has_events(&self, core: usize) -> bool {
        self.cores[core].some.load(Ordering::SeqCst)
    }

    /// Looks for events that a core has begun so far
    /// ([`HostCalls::looks`](atoll_abi::platform::HostCalls::looks)).
    pub fn looks(&self, core: usize) -> u32 {
        self.cores[core].looks.load(Ordering::SeqCst)
    }

    /// Begins a look: adds the changes of the sockets that `core` watches, as far as there is room. An event
    /// says how its socket is now. Never waits; if the stack is busy, `core` is woken when it no longer is.
    pub fn take_events(&self, core: usize, events: &mut Events) {
        let state = &self.cores[core];
        if !state.some.load(Ordering::SeqCst) {
            return;
        }
        let mut inner = match self.inner.try_lock() {
            Some(i) => i,
            None => {
                state.missed.store(true, Ordering::SeqCst);
                self.missed.store(true, Ordering::SeqCst);
                // Pairs with the fence of who lets go: that one sees the mark, or we find it free.
                fence(Ordering::SeqCst);
                match self.inner.try_lock() {
                    Some(i) => i,
                    None => return,
                }
            }
        };
        self.look(&mut inner, core, events);
        drop(Calls { inner: Some(inner), stack: self });
    }

    /// [`Stack::poll`] and [`Stack::take_events`] at once.
    pub fn poll_and_take(&self, now_ns: u64, core: usize, events: &mut Events) {
        let Some(mut inner) = self.inner.try_lock() else {
            self.poll(now_ns);
            return self.take_events(core, events);
        };
        inner.set_now(now_ns);
        self.poll_wanted.store(false, Ordering::SeqCst);
        inner.poll();
        inner.pump();
        if inner.changes.any(core) || self.cores[core].some.load(Ordering::SeqCst) {
            self.look(&mut inner, core, events);
        }
        drop(Calls { inner: Some(inner), stack: self });
    }

    /// Begins a look with the lock.
    fn look(&self, inner: &mut Inner, core: usize, events: &mut Events) {
        let state = &self.cores[core];
        // First the number, then the states: whoever takes something and finds an older number knows that
        // this look may not have seen that.
        let look = state.looks.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
        while events.room() > 0 {
            let Some(n) = inner.changes.take(core) else { break };
            let Some((cookie, now)) = inner.look_at(n) else { continue };
            if now != 0 {
                events.push(Event::Ready { cookie, events: now, look });
            }
        }
        let more = inner.changes.any(core);
        state.some.store(more, Ordering::SeqCst);
        if !more {
            inner.changes.looked(core);
        }
    }

    /// Lets go, does what others could not meanwhile, and tells cores.
    fn release<'a>(&'a self, mut inner: MutexGuard<'a, Inner>) {
        loop {
            if self.poll_wanted.swap(false, Ordering::SeqCst) {
                inner.poll();
            }
            inner.pump();
            let wake = inner.changes.take_wake();
            if core::mem::take(&mut inner.rescheduled) {
                self.deadline.store(inner.deadline().unwrap_or(u64::MAX), Ordering::SeqCst);
            }
            drop(inner);
            if let Some(wake) = wake {
                tell(&self.cores, wake, &*self.wake);
            }
            // Pairs with those who mark what they want and then find the lock taken.
            fence(Ordering::SeqCst);
            if self.missed.load(Ordering::SeqCst) && self.missed.swap(false, Ordering::SeqCst) {
                for (n, c) in self.cores.iter().enumerate() {
                    if c.missed.swap(false, Ordering::SeqCst) {
                        (self.wake)(n);
                    }
                }
            }
            if !self.poll_wanted.load(Ordering::SeqCst) {
                return;
            }
            match self.inner.try_lock() {
                Some(i) => inner = i,
                // Whoever has it comes by here, too.
                None => return,
            }
        }
    }
}

impl Drop for Calls<'_> {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            self.stack.release(inner);
        }
    }
}

impl Calls<'_> {
    fn inner(&mut self) -> &mut Inner {
        self.inner.as_mut().expect("it is held until it is dropped")
    }

    /// `socket(2)`: its number, with one who holds it.
    pub fn socket(&mut self, domain: u32, kind: u32, protocol: u32) -> Result<i32> {
        self.inner().socket(domain, kind, protocol)
    }

    /// One more holds it, and will [`Calls::close`] it.
    pub fn hold(&mut self, socket: i32) -> Result<()> {
        self.inner().hold(socket)
    }

    /// One less holds it; after the last it is gone. What was sent still goes out.
    pub fn close(&mut self, socket: i32) -> Result<()> {
        self.inner().close(socket)
    }

    /// `bind(2)`. `addr` is a `sockaddr_in` or `sockaddr_in6`, here and in what follows.
    pub fn bind(&mut self, socket: i32, addr: &[u8]) -> Result<()> {
        self.inner().bind(socket, addr)
    }

    /// `connect(2)` without waiting: for a stream, EINPROGRESS if it begins.
    pub fn connect(&mut self, socket: i32, addr: &[u8]) -> Result<()> {
        self.inner().connect(socket, addr)
    }

    /// `listen(2)`.
    pub fn listen(&mut self, socket: i32, backlog: u32) -> Result<()> {
        self.inner().listen(socket, backlog)
    }

    /// `accept(2)`: the connection's number and the length of its peer's address.
    pub fn accept(&mut self, socket: i32, addr: &mut [u8]) -> Result<(i32, usize)> {
        self.inner().accept(socket, addr)
    }

    /// `recvfrom(2)` of up to `max` bytes. `f` is given them piece by piece and says how many it took; it
    /// may stop short, and what it did not take stays (of a datagram, all of it; the value is EFAULT then,
    /// or when it took nothing).
    pub fn receive(
        &mut self,
        socket: i32,
        max: usize,
        addr: Option<&mut [u8]>,
        flags: u32,
        f: &mut dyn FnMut(&[u8]) -> usize,
    ) -> Result<Received> {
        self.inner().receive(socket, max, addr, flags, f)
    }

    /// `sendto(2)` of up to `len` bytes. `f` is given room piece by piece and says how much it filled; it
    /// may stop short (of a datagram it must not; the value is EFAULT then, or when it filled nothing).
    pub fn send(
        &mut self,
        socket: i32,
        len: usize,
        addr: Option<&[u8]>,
        flags: u32,
        f: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<usize> {
        self.inner().send(socket, len, addr, flags, f)
    }

    /// `shutdown(2)`.
    pub fn shutdown(&mut self, socket: i32, how: u32) -> Result<()> {
        self.inner().shutdown(socket, how)
    }

    /// `getsockopt(2)`: the value's length.
    pub fn get_option(&mut self, socket: i32, level: u32, name: u32, value: &mut [u8]) -> Result<usize> {
        self.inner().get_option(socket, level, name, value)
    }

    /// `setsockopt(2)`.
    pub fn set_option(&mut self, socket: i32, level: u32, name: u32, value: &[u8]) -> Result<()> {
        self.inner().set_option(socket, level, name, value)
    }

    /// `getsockname(2)`, or `getpeername(2)` if `peer`: the address's length.
    pub fn name(&mut self, socket: i32, peer: bool, addr: &mut [u8]) -> Result<usize> {
        self.inner().name(socket, peer, addr)
    }

    /// Bytes to be received (of a datagram socket, of the next one), or to be sent if `out`.
    pub fn queued(&mut self, socket: i32, out: bool) -> Result<u32> {
        self.inner().queued(socket, out)
    }

    /// What it is ready for now, `poll(2)` bits: IN, OUT, RDHUP, HUP and ERR, and what goes with them.
    pub fn probe(&mut self, socket: i32) -> u32 {
        let inner = self.inner();
        inner.index(socket).map_or(linux::POLLNVAL, |n| inner.ready(n))
    }

    /// Has `core` told of changes under `cookie`, from its present state on. EEXIST: it is watched already.
    pub fn watch(&mut self, socket: i32, core: usize, cookie: u64) -> Result<()> {
        self.inner().watch(socket, core, cookie)
    }

    /// Has no core told of them any more.
    pub fn unwatch(&mut self, socket: i32) -> Result<()> {
        self.inner().unwatch(socket)
    }

    /// Addresses of the interfaces, the loopback's first: interface, address and prefix length.
    pub fn addresses(&mut self) -> Vec<(usize, IpAddr, u8)> {
        let nets = self.inner().nets.iter().enumerate();
        nets.flat_map(|(n, net)| {
            net.iface.ip_addrs().iter().map(move |c| (n, IpAddr::from(c.address()), c.prefix_len()))
        })
        .collect()
    }

    /// Name servers that DHCP told of.
    pub fn name_servers(&mut self) -> Vec<IpAddr> {
        self.inner().nets.iter().flat_map(|n| n.name_servers.iter().copied()).collect()
    }

    /// Bytes of buffers in use, sockets and flows: for figures and tests.
    pub fn usage(&mut self) -> (usize, usize, usize) {
        let i = self.inner();
        (i.memory, i.sockets.len(), i.flows.len())
    }
}

/// The link-local address of a port (RFC 4291 appendix A).
fn link_local(mac: [u8; 6]) -> IpCidr {
    let [a, b, c, d, e, f] = mac;
    let address = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f];
    IpCidr::Ipv6(Ipv6Cidr::new(address.into(), 64))
}

impl Net {
    fn new(mut link: Link, seed: u64, dhcp: bool) -> Self {
        let mut mac = [0; 6];
        let hardware = match &link {
            Link::Loop(_) => HardwareAddress::Ip,
            Link::Port(p, _) => {
                mac = p.mac();
                // A group's address is nobody's: smoltcp asserts that.
                mac[0] &= !1;
                HardwareAddress::Ethernet(EthernetAddress(mac))
            }
        };
        let mut config = InterfaceConfig::new(hardware);
        config.random_seed = seed;
        let mut iface = Interface::new(config, &mut Feed::new(&mut link, None), Instant::ZERO);
        if !link.is_port() {
            // What is sent to any address of the machine comes by here.
            iface.set_any_ip(true);
        }
        let mut own = SocketSet::new(Vec::new());
        let dhcp = dhcp.then(|| own.add(dhcpv4::Socket::new()));
        let meta = alloc::vec![udp::PacketMetadata::EMPTY; 2];
        let rx = udp::PacketBuffer::new(meta, alloc::vec![0; INBOX]);
        let tx = udp::PacketBuffer::new(Vec::new(), Vec::new());
        let mut inbox = SocketSet::new(Vec::new());
        let inbox_handle = inbox.add(udp::Socket::new(rx, tx));
        Net {
            iface,
            link,
            mac,
            neighbours: Neighbours::default(),
            own,
            dhcp,
            own_at: Some(0),
            own_asked: 0,
            inbox,
            inbox_handle,
            waiting: Vec::new(),
            blocked: Vec::new(),
            name_servers: Vec::new(),
        }
    }

    /// Is this one of its addresses?
    pub(crate) fn has(&self, addr: IpAddress) -> bool {
        self.iface.ip_addrs().iter().any(|c| c.address() == addr)
    }

    /// Would a packet to `addr` go out here, and from which address? `gateway`: by way of one.
    fn way(&self, addr: IpAddress, gateway: bool) -> Option<IpAddress> {
        if !self.link.is_port() {
            return None;
        }
        if gateway {
            let via = match addr {
                IpAddress::Ipv4(_) => self.iface.routes().get_default_ipv4_route(),
                IpAddress::Ipv6(a) if a.is_unicast_link_local() || a.is_multicast() => None,
                IpAddress::Ipv6(_) => self.iface.routes().get_default_ipv6_route(),
            };
            return via.and_then(|_| self.source(addr));
        }
        let near = self.iface.ip_addrs().iter().any(|c| c.contains_addr(&addr));
        if near || sockets::is_group(addr) { self.source(addr) } else { None }
    }

    /// How segments from `local` go to `remote`, and until when that is so. `confirmed`: when something that was sent there
    /// last arrived. None: a neighbour is being asked.
    pub(crate) fn way_to(
        &mut self,
        local: IpEndpoint,
        remote: IpEndpoint,
        marks: Marks,
        confirmed: i64,
        now: i64,
    ) -> Option<(Way, i64)> {
        if !self.link.is_port() {
            return Some((Way::new(local, remote, None, marks), i64::MAX));
        }
        let near = self.iface.ip_addrs().iter().any(|c| c.contains_addr(&remote.addr));
        let routes = self.iface.routes();
        let gateway = match remote.addr {
            IpAddress::Ipv4(_) => routes.get_default_ipv4_route(),
            IpAddress::Ipv6(_) => routes.get_default_ipv6_route(),
        };
        let next = gateway.filter(|_| !near).map_or(remote.addr, |g| g.via_router);
        let known = self.neighbours.find(next, confirmed, now);
        if known.ask {
            neighbours::ask(&mut self.link, self.mac, local.addr, next);
        }
        let (mac, until) = known.mac?;
        Some((Way::new(local, remote, Some((self.mac, mac)), marks), until))
    }

    /// Takes up what a frame says of neighbours.
    fn hear_of_neighbours(&mut self, frame: &[u8], now: i64) {
        let Net { iface, neighbours, .. } = self;
        let addresses = iface.ip_addrs();
        let own = |a| addresses.iter().any(|c| c.address() == a);
        neighbours.hear(frame, now, own, |a| addresses.iter().any(|c| c.contains_addr(&a)));
    }

    fn source(&self, addr: IpAddress) -> Option<IpAddress> {
        let source = match addr {
            IpAddress::Ipv4(a) => self.iface.get_source_address_ipv4(&a).map(IpAddress::Ipv4),
            IpAddress::Ipv6(a) => Some(IpAddress::Ipv6(self.iface.get_source_address_ipv6(&a))),
        };
        source.filter(|s| self.has(*s))
    }
}

impl Inner {
    fn new(config: Config, ports: Vec<PortConfig>) -> Self {
        let mut random = config.seed | 1;
        let mut nets = Vec::new();
        let mut lo = Net::new(Link::Loop(Loop::default()), next_random(&mut random), false);
        lo.iface.update_ip_addrs(|a| {
            for cidr in [
                IpCidr::Ipv4(Ipv4Cidr::new([127, 0, 0, 1].into(), 8)),
                IpCidr::Ipv6(Ipv6Cidr::new(core::net::Ipv6Addr::LOCALHOST, 128)),
            ] {
                let _ = a.push(cidr);
            }
        });
        nets.push(lo);
        for p in ports {
            let mac = p.port.mac();
            let mut net = Net::new(Link::of(p.port), next_random(&mut random), p.dhcp);
            net.iface.update_ip_addrs(|a| {
                let _ = a.push(link_local(mac));
                for (addr, prefix) in p.addresses {
                    let good = prefix <= if addr.is_ipv4() { 32 } else { 128 };
                    let addr = IpAddress::from(addr);
                    // One place stays free for DHCP.
                    if good && addr.is_unicast() && !sockets::is_loopback(addr) && a.len() + 1 < a.capacity()
                    {
                        let _ = a.push(IpCidr::new(addr, prefix));
                    }
                }
            });
            for g in p.gateways {
                let _ = match g {
                    IpAddr::V4(g) => net.iface.routes_mut().add_default_ipv4_route(g),
                    IpAddr::V6(g) => net.iface.routes_mut().add_default_ipv6_route(g),
                };
            }
            nets.push(net);
        }
        Inner {
            now: 0,
            nets,
            sockets: Slab::new(),
            flows: Slab::new(),
            connections: HashMap::new(),
            ports: Ports::default(),
            timers: BTreeSet::new(),
            listed: VecDeque::new(),
            rescheduled: true,
            unfinished: false,
            changes: Changes::new(config.cores),
            lingering: VecDeque::new(),
            opening: VecDeque::new(),
            memory: 0,
            secret: (config.seed, next_random(&mut random) << 16 ^ next_random(&mut random)),
            config,
            random,
        }
    }

    fn set_now(&mut self, now_ns: u64) {
        // Two callers may come in another order than they looked at the clock.
        self.now = self.now.max((now_ns / 1000) as i64);
    }

    pub(crate) fn instant(&self) -> Instant {
        Instant::from_micros(self.now)
    }

    pub(crate) fn random(&mut self) -> u32 {
        next_random(&mut self.random) as u32
    }

    // --- memory ---

    /// Takes memory for buffers; ENOBUFS: there is too little.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Result<()> {
        while self.memory + bytes > self.config.memory {
            if let Some(f) = self.lingering.pop_front() {
                if self.flows.get(f).is_some_and(is_lingering) {
                    self.end(f);
                }
            } else if !self.end_half_open() {
                return Err(Errno::ENOBUFS);
            }
        }
        self.memory += bytes;
        Ok(())
    }

    /// Is there so much memory that what is there may take more? New connections come first.
    pub(crate) fn may_grow(&self, bytes: usize) -> bool {
        self.memory + bytes <= self.config.memory / 2
    }

    pub(crate) fn give_back(&mut self, bytes: usize) {
        self.memory -= bytes;
    }

    // --- sockets by number ---

    pub(crate) fn index(&self, n: i32) -> Result<usize> {
        let index = usize::try_from(n).map_err(|_| Errno::EBADF)?;
        self.sockets.get(index).map(|_| index).ok_or(Errno::EBADF)
    }

    pub(crate) fn sock(&self, n: i32) -> Result<&Sock> {
        usize::try_from(n).ok().and_then(|n| self.sockets.get(n)).ok_or(Errno::EBADF)
    }

    pub(crate) fn add_socket(&mut self, sock: Sock) -> Result<usize> {
        if self.sockets.len() >= self.config.sockets {
            return Err(Errno::ENFILE);
        }
        Ok(self.sockets.insert(sock))
    }

    fn socket(&mut self, domain: u32, kind: u32, protocol: u32) -> Result<i32> {
        let v6 = match domain {
            linux_net::AF_INET => false,
            linux_net::AF_INET6 => true,
            _ => return Err(Errno::EAFNOSUPPORT),
        };
        let (tcp, udp) = (linux_net::IPPROTO_TCP as u32, linux_net::IPPROTO_UDP as u32);
        let kind = match kind {
            linux_net::SOCK_STREAM if protocol == 0 || protocol == tcp => Kind::Tcp,
            linux_net::SOCK_DGRAM if protocol == 0 || protocol == udp => Kind::Udp,
            linux_net::SOCK_STREAM | linux_net::SOCK_DGRAM => return Err(Errno::EPROTONOSUPPORT),
            _ => return Err(Errno::ESOCKTNOSUPPORT),
        };
        self.add_socket(Sock::new(kind, v6)).map(|n| n as i32)
    }

    fn hold(&mut self, n: i32) -> Result<()> {
        let n = self.index(n)?;
        let s = self.sockets.get_mut(n).ok_or(Errno::EBADF)?;
        s.refs = s.refs.checked_add(1).ok_or(Errno::ENFILE)?;
        Ok(())
    }

    fn close(&mut self, n: i32) -> Result<()> {
        let n = self.index(n)?;
        let s = self.sockets.get_mut(n).ok_or(Errno::EBADF)?;
        s.refs -= 1;
        if s.refs == 0 {
            self.destroy(n);
        }
        Ok(())
    }

    /// Takes a socket away; what is below it goes on by itself as far as it has to.
    pub(crate) fn destroy(&mut self, n: usize) {
        let Some(s) = self.sockets.remove(n) else { return };
        if let Some((core, _)) = s.watch
            && s.noted
        {
            self.changes.forget(core, n);
        }
        if s.bound {
            self.ports.unbind(s.kind, s.local.port, n);
        }
        let (options, local, bound) = (s.options, s.local, s.bound);
        match s.role {
            Role::Idle => {}
            Role::Listener(l) => self.leave_all(l),
            Role::Stream(c) => {
                if let Some(f) = c.flow {
                    self.leave(f, options.linger, (bound && local.port != 0).then_some(options.reuse_addr));
                }
            }
            Role::Datagram(d) => {
                self.give_back(d.memory());
                for f in d.out {
                    if let Some(outbox) = self.flows.get_mut(f).and_then(Flow::outbox_mut) {
                        outbox.owner = None;
                        self.list(f);
                    }
                }
            }
        }
    }

    fn bind(&mut self, n: i32, addr: &[u8]) -> Result<()> {
        let n = self.index(n)?;
        let s = self.sockets.get(n).ok_or(Errno::EBADF)?;
        let v6 = s.v6;
        if !v6 && address::family(addr) == linux_net::AF_UNSPEC && addr.len() >= 16 {
            // Linux takes that for AF_INET if it names no address.
            if addr[4..8] != [0; 4] {
                return Err(Errno::EAFNOSUPPORT);
            }
            let mut same = [0; 16];
            same.copy_from_slice(&addr[..16]);
            same[..2].copy_from_slice(&(linux_net::AF_INET as u16).to_ne_bytes());
            return self.bind(n as i32, &same);
        }
        let at = address::parse(addr, v6)?;
        let over = match &s.role {
            Role::Idle | Role::Datagram(_) => true,
            Role::Listener(_) => false,
            Role::Stream(c) => !c.flow.and_then(|f| self.flows.get(f)).is_some_and(is_open),
        };
        if s.bound || !over {
            return Err(Errno::EINVAL);
        }
        if v6 && s.options.v6_only && matches!(at.addr, IpAddress::Ipv4(_)) {
            return Err(Errno::EINVAL);
        }
        let udp_group = s.kind == Kind::Udp && sockets::is_group(at.addr);
        if !at.addr.is_unspecified() && !udp_group && !self.is_own(at.addr) {
            return Err(Errno::EADDRNOTAVAIL);
        }
        if let Err(e) = self.take_port(n, at) {
            if let Some(s) = self.sockets.get_mut(n) {
                // What it had from a connection before is gone, too.
                s.local.addr = address::any(v6);
            }
            return Err(e);
        }
        if let Some(s) = self.sockets.get_mut(n)
            && matches!(at.addr, IpAddress::Ipv6(a) if !a.is_unspecified())
        {
            s.options.v6_only = true;
        }
        Ok(())
    }

    /// Binds a socket to an address whose port may be 0.
    pub(crate) fn take_port(&mut self, n: usize, at: IpEndpoint) -> Result<()> {
        let random = self.random();
        let mut port = at.port;
        if port == 0 {
            let free = Ports::ephemeral(random, |p| !self.conflicts(n, IpEndpoint { port: p, ..at }, true));
            port = free.ok_or(Errno::EADDRINUSE)?;
        } else if self.conflicts(n, at, false) {
            return Err(Errno::EADDRINUSE);
        }
        let s = self.sockets.get_mut(n).ok_or(Errno::EBADF)?;
        s.local = IpEndpoint { addr: at.addr, port };
        s.bound = true;
        s.asked = at;
        let kind = s.kind;
        self.ports.bind(kind, port, n);
        Ok(())
    }

    /// May a socket not have this address, because of others? `strictly`: whatever they allow.
    pub(crate) fn conflicts(&self, n: usize, at: IpEndpoint, strictly: bool) -> bool {
        let Some(s) = self.sockets.get(n) else { return true };
        let cover = address::Cover::new(at.addr, s.v6, s.options.v6_only);
        let reuse = s.options.reuse_addr && !strictly;
        if s.kind == Kind::Tcp && self.ports.held(at.port, cover, reuse) {
            return true;
        }
        self.ports.sockets(s.kind, at.port).iter().filter(|&&m| m != n).any(|&m| {
            let Some(other) = self.sockets.get(m) else { return false };
            let both = reuse && other.options.reuse_addr && !other.listens();
            let shared = !strictly && s.options.reuse_port && other.options.reuse_port;
            !both && !shared && cover.overlaps(other.cover())
        })
    }

    /// Is it an address of this machine?
    pub(crate) fn is_own(&self, addr: IpAddress) -> bool {
        sockets::is_loopback(addr) || self.nets.iter().any(|n| n.has(addr))
    }

    /// Where packets to `addr` go and which address they come from, for a socket bound to `from` or to none.
    pub(crate) fn route(&self, addr: IpAddress, from: IpAddress) -> Result<(usize, IpAddress)> {
        let bound = (!from.is_unspecified() && !sockets::is_group(from)).then_some(from);
        if bound.is_some_and(|b| matches!(b, IpAddress::Ipv4(_)) != matches!(addr, IpAddress::Ipv4(_))) {
            return Err(Errno::ENETUNREACH);
        }
        if self.is_own(addr) {
            let source = match addr {
                IpAddress::Ipv4(a) if a.is_loopback() => IpAddress::v4(127, 0, 0, 1),
                own => own,
            };
            return Ok((0, bound.unwrap_or(source)));
        }
        if bound.is_some_and(sockets::is_loopback) {
            // What comes from the loopback does not leave the machine.
            return Err(if matches!(addr, IpAddress::Ipv4(_)) { Errno::EINVAL } else { Errno::ENETUNREACH });
        }
        for gateway in [false, true] {
            for (n, net) in self.nets.iter().enumerate() {
                if bound.is_some_and(|b| !net.has(b)) {
                    continue;
                }
                if let Some(source) = net.way(addr, gateway) {
                    return Ok((n, bound.unwrap_or(source)));
                }
            }
        }
        Err(Errno::ENETUNREACH)
    }

    fn connect(&mut self, n: i32, addr: &[u8]) -> Result<()> {
        let n = self.index(n)?;
        match self.sockets.get(n).ok_or(Errno::EBADF)?.kind {
            Kind::Tcp => self.connect_tcp(n, addr),
            Kind::Udp => self.connect_udp(n, addr),
        }
    }

    fn receive(
        &mut self,
        n: i32,
        max: usize,
        addr: Option<&mut [u8]>,
        flags: u32,
        f: &mut dyn FnMut(&[u8]) -> usize,
    ) -> Result<Received> {
        let n = self.index(n)?;
        if flags & linux_net::MSG_ERRQUEUE != 0 {
            return Err(Errno::EAGAIN);
        }
        match self.sockets.get(n).ok_or(Errno::EBADF)?.kind {
            Kind::Tcp => {
                let len = self.receive_tcp(n, max, flags, f)?;
                Ok(Received { len, ..Received::default() })
            }
            Kind::Udp => self.receive_udp(n, max, addr, flags, f),
        }
    }

    fn send(
        &mut self,
        n: i32,
        len: usize,
        addr: Option<&[u8]>,
        flags: u32,
        f: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<usize> {
        let n = self.index(n)?;
        if flags & linux_net::MSG_OOB != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        match self.sockets.get(n).ok_or(Errno::EBADF)?.kind {
            Kind::Tcp => self.send_tcp(n, len, flags, f),
            Kind::Udp => self.send_udp(n, len, addr, flags, f),
        }
    }

    fn shutdown(&mut self, n: i32, how: u32) -> Result<()> {
        let n = self.index(n)?;
        if how > 2 {
            return Err(Errno::EINVAL);
        }
        let (read, write) = (how != 1, how != 0);
        match self.sockets.get(n).ok_or(Errno::EBADF)?.kind {
            Kind::Tcp => self.shutdown_tcp(n, read, write),
            Kind::Udp => self.shutdown_udp(n, read, write),
        }
    }

    fn name(&mut self, n: i32, peer: bool, out: &mut [u8]) -> Result<usize> {
        let s = self.sock(n)?;
        let at = if peer {
            match &s.role {
                Role::Stream(c) if c.flow.and_then(|f| self.flows.get(f)).is_some_and(is_up) => c.remote,
                Role::Datagram(d) => d.peer.ok_or(Errno::ENOTCONN)?,
                _ => return Err(Errno::ENOTCONN),
            }
        } else {
            s.local
        };
        // An IPv6 socket that is bound to all addresses says so.
        let at =
            if s.v6 && at.addr.is_unspecified() { IpEndpoint { addr: address::any(true), ..at } } else { at };
        Ok(address::write(at, s.v6, out))
    }

    fn queued(&mut self, n: i32, out: bool) -> Result<u32> {
        let s = self.sock(n)?;
        let bytes = match &s.role {
            Role::Idle => 0,
            Role::Listener(_) => return Err(Errno::EINVAL),
            Role::Stream(c) => c
                .flow
                .and_then(|f| self.flows.get(f)?.tcp())
                .map_or(0, |c| if out { c.tcb.send_queue() } else { c.tcb.recv_queue() }),
            Role::Datagram(d) if out => {
                let flows = d.out.iter().filter_map(|&f| self.flows.get(f)?.outbox());
                flows.map(|o| o.socket().send_queue()).sum()
            }
            Role::Datagram(d) => d.queue.front().map_or(0, |d| d.bytes.len()),
        };
        Ok(bytes as u32)
    }

    // --- readiness ---

    fn watch(&mut self, n: i32, core: usize, cookie: u64) -> Result<()> {
        let n = self.index(n)?;
        if core >= self.changes.cores() {
            return Err(Errno::EINVAL);
        }
        let s = self.sockets.get_mut(n).ok_or(Errno::EBADF)?;
        if s.watch.is_some() {
            return Err(Errno::EEXIST);
        }
        s.watch = Some((core, cookie));
        // What is so already is told first, as by epoll_ctl(2).
        if self.ready(n) != 0 {
            self.changed(n);
        }
        Ok(())
    }

    fn unwatch(&mut self, n: i32) -> Result<()> {
        let n = self.index(n)?;
        let s = self.sockets.get_mut(n).ok_or(Errno::EBADF)?;
        let (core, _) = s.watch.take().ok_or(Errno::ENOENT)?;
        if core::mem::take(&mut s.noted) {
            self.changes.forget(core, n);
        }
        Ok(())
    }

    /// What a socket is ready for. Whoever hears that there is no room is told when there is.
    pub(crate) fn ready(&mut self, n: usize) -> u32 {
        let Some(s) = self.sockets.get(n) else { return 0 };
        let now = match s.kind {
            Kind::Tcp => self.ready_tcp(s),
            Kind::Udp => self.ready_udp(s),
        };
        if now & bits::OUT == 0
            && let Some(s) = self.sockets.get_mut(n)
        {
            s.no_space = true;
        }
        now
    }

    /// A watched socket whose core looks: its cookie and what it is ready for.
    fn look_at(&mut self, n: usize) -> Option<(u64, u32)> {
        let s = self.sockets.get_mut(n)?;
        s.noted = false;
        let (_, cookie) = s.watch?;
        Some((cookie, self.ready(n)))
    }

    /// A socket's readiness changed: an edge.
    pub(crate) fn changed(&mut self, n: usize) {
        if let Some(s) = self.sockets.get_mut(n)
            && let Some((core, _)) = s.watch
            && !s.noted
        {
            s.noted = true;
            self.changes.note(core, n);
        }
    }

    // --- packets ---

    /// A frame came in.
    fn incoming(&mut self, net: usize, frame: &[u8]) {
        let port = self.nets[net].link.is_port();
        // The loopback's addresses are not for the wire.
        let bad = |a: IpAddress| port && sockets::is_loopback(a);
        match sort(frame, port) {
            Hint::Drop => {}
            Hint::Tcp(s) if bad(s.local.addr) || bad(s.remote.addr) => {}
            Hint::Tcp(segment) => self.incoming_tcp(net, &segment),
            Hint::Udp { local, remote } if bad(local.addr) || bad(remote.addr) => {}
            Hint::Udp { local, remote } => {
                let dhcp = local.port == 68 && remote.port == 67 && self.nets[net].dhcp.is_some();
                if dhcp || self.ports.sockets(Kind::Udp, local.port).is_empty() {
                    self.for_itself(net, frame);
                } else {
                    self.incoming_udp(net, frame, local);
                }
            }
            Hint::Undelivered { tcp, local, remote, why } => self.undelivered(tcp, local, remote, why),
            Hint::Other => {
                let now = self.now;
                if port {
                    self.nets[net].hear_of_neighbours(frame, now);
                }
                self.for_itself(net, frame);
                // It may have brought a neighbour's address.
                for f in core::mem::take(&mut self.nets[net].waiting) {
                    self.awake(f);
                }
            }
        }
    }

    /// A frame for no socket: the interface answers it by itself.
    pub(crate) fn for_itself(&mut self, net: usize, frame: &[u8]) {
        let now = self.instant();
        let Net { iface, link, own, own_at, .. } = &mut self.nets[net];
        iface.poll_ingress_single(now, &mut Feed::new(link, Some(frame)), own);
        *own_at = Some(self.now);
        self.rescheduled = true;
    }

    /// A datagram: who sent it, to which address, and its bytes.
    pub(crate) fn unpack(
        &mut self,
        net: usize,
        frame: &[u8],
        port: u16,
    ) -> Option<(IpEndpoint, IpAddress, Vec<u8>)> {
        let now = self.instant();
        let Net { iface, link, inbox, inbox_handle, .. } = &mut self.nets[net];
        let s = inbox.get_mut::<udp::Socket>(*inbox_handle);
        s.close();
        s.bind(port).ok()?;
        iface.poll_ingress_single(now, &mut Feed::new(link, Some(frame)), inbox);
        let (bytes, meta) = inbox.get_mut::<udp::Socket>(*inbox_handle).recv().ok()?;
        Some((meta.endpoint, meta.local_address?, bytes.to_vec()))
    }

    /// Has a flow visited before the lock is let go.
    pub(crate) fn list(&mut self, f: usize) {
        if let Some(flow) = self.flows.get_mut(f)
            && !flow.listed
        {
            flow.listed = true;
            self.listed.push_back(f);
        }
    }

    fn awake(&mut self, f: usize) {
        if let Some(flow) = self.flows.get_mut(f) {
            flow.waits = false;
            self.list(f);
        }
    }

    /// Lets a flow send what it has, and sees what has become of it.
    fn visit(&mut self, f: usize) {
        let Some(flow) = self.flows.get_mut(f) else { return };
        flow.listed = false;
        if matches!(flow.what, What::Tcp(_)) {
            self.visit_tcp(f);
        } else {
            self.visit_udp(f);
        }
    }

    fn visit_udp(&mut self, f: usize) {
        let Some(flow) = self.flows.get(f) else { return };
        let stuck = flow.stuck.is_some_and(|t| self.now - t >= NEIGHBOUR);
        if !self.before_visit_udp(f, stuck) {
            return;
        }
        let now = self.instant();
        let Some(flow) = self.flows.get_mut(f) else { return };
        let What::Udp(outbox) = &mut flow.what else { return };
        let net = &mut self.nets[flow.net];
        let (sent, next) = outbox.drain(now, net, SEND_BURST as usize);
        if net.link.is_port() && sent == Some(0) {
            // If there was none before, it is visited again soon.
            let neighbour = net.link.room();
            self.could_not_send(f, neighbour);
        } else if sent.is_some_and(|n| n > 0) {
            flow.stuck = None;
        }
        self.settle_udp(f);
        self.schedule(f, next.map(|t| t.total_micros()));
    }

    /// A flow has something to send, and there is no room, or, if `neighbour`, no neighbour's address: it is visited when
    /// there is.
    pub(crate) fn could_not_send(&mut self, f: usize, neighbour: bool) {
        let Some(flow) = self.flows.get_mut(f) else { return };
        flow.stuck.get_or_insert(self.now);
        if !flow.waits {
            flow.waits = true;
            let net = &mut self.nets[flow.net];
            if neighbour { net.waiting.push(f) } else { net.blocked.push(f) }
        }
        self.schedule(f, None);
    }

    /// Says when a flow is to be visited next: it has something to do then, or had and could not.
    pub(crate) fn schedule(&mut self, f: usize, next: Option<i64>) {
        let Some(flow) = self.flows.get(f) else { return };
        let mut at = next.map(|t| if t <= self.now { self.now + AGAIN } else { t });
        if let Some(since) = flow.stuck {
            let wait = if self.nets[flow.net].link.is_port() { ASK_AGAIN } else { AGAIN };
            at = earlier(at, Some((since + NEIGHBOUR).clamp(self.now + AGAIN, self.now + wait)));
        }
        if let Some(t) = at {
            self.visit_at(f, t);
        }
    }

    /// Has a flow visited at a time, unless that is to be sooner anyway. A visit that comes too early only finds the next
    /// time; that is cheaper than to move it each time.
    #[inline]
    pub(crate) fn visit_at(&mut self, f: usize, t: i64) {
        if self.flows.get(f).is_some_and(|flow| flow.timer.is_none_or(|old| t < old)) {
            self.set_timer(f, t);
        }
    }

    fn set_timer(&mut self, f: usize, t: i64) {
        let Some(flow) = self.flows.get_mut(f) else { return };
        if let Some(old) = flow.timer.replace(t) {
            self.timers.remove(&(old, f));
        }
        self.timers.insert((t, f));
        self.rescheduled = true;
    }

    /// Forgets a flow.
    pub(crate) fn end(&mut self, f: usize) {
        let Some(flow) = self.flows.remove(f) else { return };
        if let Some(t) = flow.timer {
            self.timers.remove(&(t, f));
            self.rescheduled = true;
        }
        self.give_back(flow.memory);
        if let What::Tcp(c) = &flow.what {
            if c.known {
                self.connections.remove(&Pair(c.local, c.remote));
            }
            if let Some(reuse) = c.holds {
                self.ports.left(c.local, reuse);
            }
        }
    }

    /// Takes what came through the ports and what is due.
    fn poll(&mut self) {
        self.rescheduled |= core::mem::take(&mut self.unfinished);
        for n in 1..self.nets.len() {
            let Link::Port(port, _) = &self.nets[n].link else { continue };
            let port = port.clone();
            let all = (0..BURST).any(|_| !port.receive(&mut |frame| self.incoming(n, frame)));
            if !all {
                // It says when there is one more only to those who have seen that there was none.
                (self.unfinished, self.rescheduled) = (true, true);
            }
            if !self.nets[n].blocked.is_empty() && port.room() {
                for f in core::mem::take(&mut self.nets[n].blocked) {
                    self.awake(f);
                }
            }
            let now = self.instant();
            let Net { iface, link, own, own_at, own_asked, .. } = &mut self.nets[n];
            if own_at.is_some_and(|t| t <= self.now) || self.now - *own_asked >= OWN {
                while iface.poll_egress(now, &mut Feed::new(link, None), own) != PollResult::None {}
                *own_at = iface.poll_at(now, own).map(|t| t.total_micros());
                *own_asked = self.now;
                self.rescheduled = true;
                self.configure(n);
            }
        }
        while let Some(&(t, f)) = self.timers.first()
            && t <= self.now
        {
            self.timers.remove(&(t, f));
            self.rescheduled = true;
            if let Some(flow) = self.flows.get_mut(f) {
                flow.timer = None;
                self.list(f);
            }
        }
    }

    /// Takes over what DHCP brought.
    fn configure(&mut self, n: usize) {
        let net = &mut self.nets[n];
        let Some(handle) = net.dhcp else { return };
        let Some(event) = net.own.get_mut::<dhcpv4::Socket>(handle).poll() else { return };
        let (address, router, servers) = match event {
            dhcpv4::Event::Configured(c) => (Some(c.address), c.router, c.dns_servers),
            dhcpv4::Event::Deconfigured => (None, None, Default::default()),
        };
        let address = address.filter(|a| IpAddress::Ipv4(a.address()).is_unicast());
        net.iface.update_ip_addrs(|a| {
            a.retain(|c| matches!(c, IpCidr::Ipv6(_)));
            if let Some(address) = address {
                let _ = a.push(IpCidr::Ipv4(address));
            }
        });
        match router.filter(|r| IpAddress::Ipv4(*r).is_unicast()) {
            Some(r) => drop(net.iface.routes_mut().add_default_ipv4_route(r)),
            None => drop(net.iface.routes_mut().remove_default_ipv4_route()),
        }
        net.name_servers = servers.iter().map(|&a| IpAddr::V4(a)).collect();
    }

    /// Visits the listed flows and moves the loopback's packets, until there is nothing more.
    #[inline]
    fn pump(&mut self) {
        // Most calls leave nothing to be done.
        if self.is_busy() {
            self.pump_all();
        }
    }

    #[inline(never)]
    fn pump_all(&mut self) {
        for _ in 0..ROUNDS {
            while let Link::Loop(l) = &mut self.nets[0].link
                && let Some(frame) = l.pop()
            {
                self.incoming(0, &frame);
                if let Link::Loop(l) = &mut self.nets[0].link {
                    l.done(frame);
                }
            }
            if self.listed.is_empty() {
                return;
            }
            for _ in 0..self.listed.len() {
                if let Some(f) = self.listed.pop_front() {
                    self.visit(f);
                }
            }
        }
        // The rest is for the next poll.
        (self.unfinished, self.rescheduled) = (true, true);
    }

    /// Is there something to be done before the lock is let go?
    fn is_busy(&self) -> bool {
        !self.listed.is_empty() || matches!(&self.nets[0].link, Link::Loop(l) if !l.is_empty())
    }

    /// When [`Stack::poll`] is wanted, ns.
    fn deadline(&mut self) -> Option<u64> {
        let mut at =
            if self.is_busy() || self.unfinished { Some(self.now) } else { self.timers.first().map(|t| t.0) };
        for net in &mut self.nets[1..] {
            if net.dhcp.is_some() {
                let own = net.own_at;
                // Without room there is no use in coming back at once.
                let own = own.map(|t| if t <= self.now && !net.link.room() { self.now + AGAIN } else { t });
                at = earlier(at, own);
            }
        }
        at.map(|t| t.max(0) as u64 * 1000)
    }
}

fn earlier(a: Option<i64>, b: Option<i64>) -> Option<i64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Is it a connection that only waits for its time to be over?
pub(crate) fn is_lingering(f: &Flow) -> bool {
    f.tcp().is_some_and(|c| c.owner == Owner::Nobody && c.state == State::TimeWait)
}

/// Is it a connection that has not ended?
fn is_open(f: &Flow) -> bool {
    f.tcp().is_some_and(|c| c.state != State::Closed)
}

/// Is it a connection with a peer?
fn is_up(f: &Flow) -> bool {
    f.tcp().is_some_and(|c| !matches!(c.state, State::Closed | State::SynSent | State::TimeWait))
}

/// xorshift64*: for ports and seeds.
fn next_random(state: &mut u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
}
