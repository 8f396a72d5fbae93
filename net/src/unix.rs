//! Unix sockets (`unix(7)`), within the cell. One that has its name in a volume has an outside, too: a socket of the host, by which
//! others reach it, or it reaches others.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use atoll_abi::{Errno, Result, platform};
use atoll_fs::node::InodeRef;
use atoll_fs::{OpenFile, poll};
use atoll_mem::io::{Sink, Source};
use atoll_sync::{Mutex, RcuArc, SetOnce, WaitQueue};
use atoll_task::{Hold, Timer};
use hashbrown::HashMap;
use linux_raw_sys::net;

use crate::address::Address;
use crate::handle::{Handle, Shutdown};
use crate::host::HostSocket;

/// Bytes that may wait of what a socket has sent (Linux's default).
const BUFFER: usize = 212_992;
/// What of it a message can't have.
const MESSAGE_HEAD: usize = 32;
/// Datagrams that a receive queue holds (Linux's max_dgram_qlen).
const DATAGRAMS: usize = 512;

/// There is room.
const WRITABLE: u32 = poll::OUT | poll::WRNORM | poll::WRBAND;

/// Kind of socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// SOCK_STREAM.
    Stream,
    /// SOCK_DGRAM.
    Datagram,
    /// SOCK_SEQPACKET.
    SeqPacket,
}

/// Who sent something, or who is at the other end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are struct ucred's")]
pub struct Credentials {
    pub pid: u32,
    pub uid: u32,
    pub gid: u32,
    /// When the process started, ns of the monotonic clock: what it is told by from a later one of that number.
    pub started: u64,
}

impl Credentials {
    /// Of whom nothing is known.
    pub const NOBODY: Credentials = Credentials { pid: 0, uid: u32::MAX, gid: u32::MAX, started: 0 };
}

/// Whose a socket is.
#[derive(Clone, Debug, Default)]
pub struct Owner {
    /// His process and ids.
    pub credentials: Credentials,
    /// His further groups.
    pub groups: Arc<[u32]>,
}

/// Open files that are on their way.
///
/// One of them may be a socket with messages that bring files, too, and so on, as deep as a program likes. Those that nobody takes
/// are closed one after the other, not one within the other.
#[derive(Clone, Default)]
pub struct InFlight(Vec<RcuArc<OpenFile>>);

/// Files that were on their way to be closed, and whether somebody is at it.
static LOST: Mutex<(Vec<RcuArc<OpenFile>>, bool)> = Mutex::new((Vec::new(), false));

impl InFlight {
    /// They have arrived.
    pub fn take(mut self) -> Vec<RcuArc<OpenFile>> {
        core::mem::take(&mut self.0)
    }
}

impl core::ops::Deref for InFlight {
    type Target = Vec<RcuArc<OpenFile>>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl core::ops::DerefMut for InFlight {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if self.0.is_empty() {
            return;
        }
        let mut lost = LOST.lock();
        lost.0.append(&mut self.0);
        // What is closed below may come here.
        if core::mem::replace(&mut lost.1, true) {
            return;
        }
        while let Some(file) = lost.0.pop() {
            drop(lost);
            drop(file);
            lost = LOST.lock();
        }
        lost.1 = false;
    }
}

/// What travels beside the bytes.
#[derive(Clone, Default)]
pub struct Ancillary {
    /// Open files (SCM_RIGHTS).
    pub files: InFlight,
    /// The sender (SCM_CREDENTIALS).
    pub from: Credentials,
    /// Control messages for the host, as the program wrote them; none on Unix sockets.
    pub control: Vec<u8>,
    /// When it was sent, by CLOCK_REALTIME, if the receiver had asked for that by then (SO_TIMESTAMP); else 0.
    pub sent: u64,
}

struct Message {
    bytes: Vec<u8>,
    /// Bytes of it already taken (streams only).
    taken: usize,
    ancillary: Ancillary,
    from: Option<Arc<Name>>,
    /// Whose SO_SNDBUF it takes up for as long as it waits; None where a queue has one sender only, and its own count will do.
    charged: Option<Weak<UnixSocket>>,
}

impl Drop for Message {
    fn drop(&mut self) {
        if let Some(sender) = self.charged.as_ref().and_then(Weak::upgrade) {
            sender.outstanding.fetch_sub(self.bytes.len(), Ordering::SeqCst);
            sender.queue.wake_all(WRITABLE);
        }
    }
}

/// A bound address.
#[derive(Debug)]
enum Name {
    Path(Vec<u8>),
    Abstract(Vec<u8>),
}

#[derive(Default)]
struct Receive {
    messages: VecDeque<Message>,
    bytes: usize,
    /// The reader wants no more.
    closed: bool,
    /// The peer sends no more.
    ended: bool,
    /// This socket itself sends no more.
    stopped: bool,
    /// Sockets that found no room here, for a datagram or a connection, and are to hear when there may be.
    lacking: Vec<Weak<UnixSocket>>,
}

impl Receive {
    /// Has `who` hear of room.
    fn note_lacking(&mut self, who: &Weak<UnixSocket>) {
        // Those that are gone are not to pile up where nobody reads.
        self.lacking.retain(|w| w.strong_count() > 0);
        if !self.lacking.iter().any(|w| w.ptr_eq(who)) {
            self.lacking.push(who.clone());
        }
    }
}

/// They may find room now, or that there will be none.
fn tell_lacking(lacking: &[Weak<UnixSocket>]) {
    for socket in lacking.iter().filter_map(Weak::upgrade) {
        socket.queue.wake_all(WRITABLE);
    }
}

enum State {
    Idle,
    Listening {
        backlog: usize,
        waiting: VecDeque<Arc<UnixSocket>>,
    },
    Connected(Weak<UnixSocket>),
    /// Was connected, and the peer is gone.
    Orphan,
    /// Is connected to one outside the cell, by `outside`.
    Outside,
    /// Sends datagrams to the one outside that has this name.
    Far(InodeRef),
}

/// Options of any socket (`socket(7)`). But for the times, nothing on Unix sockets depends on them: they are told again.
#[derive(Default)]
pub struct Options {
    /// Those that are set, by number.
    set: AtomicU64,
    /// SO_PRIORITY.
    pub priority: AtomicU32,
    /// The seconds of SO_LINGER, which stay when it is taken back.
    pub linger: AtomicU32,
}

/// Is this an option of every socket that is on or off, and no more?
pub fn is_switch(name: u32) -> bool {
    matches!(
        name,
        net::SO_REUSEADDR
            | net::SO_DONTROUTE
            | net::SO_BROADCAST
            | net::SO_KEEPALIVE
            | net::SO_OOBINLINE
            | net::SO_TIMESTAMP_OLD
            | net::SO_TIMESTAMPNS_OLD
    )
}

impl Options {
    /// Is this one, whose number is below 64, set?
    pub fn has(&self, name: u32) -> bool {
        self.set.load(Ordering::Relaxed) & 1 << name != 0
    }

    /// Sets it or takes it back. Of the two kinds of times one only can be wanted: the last, and none when either is taken back.
    pub fn put(&self, name: u32, on: bool) {
        let bit = 1u64 << name;
        let excluded =
            if matches!(name, net::SO_TIMESTAMP_OLD | net::SO_TIMESTAMPNS_OLD) { TIMES } else { bit };
        let change = |all: u64| Some(all & !excluded | if on { bit } else { 0 });
        let _ = self.set.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
    }

    /// Does it want to be told when what it receives was sent?
    pub fn wants_times(&self) -> bool {
        self.set.load(Ordering::Relaxed) & TIMES != 0
    }
}

/// The options that ask for times.
const TIMES: u64 = 1 << net::SO_TIMESTAMP_OLD | 1 << net::SO_TIMESTAMPNS_OLD;

/// A Unix socket.
pub struct UnixSocket {
    /// Its kind.
    pub kind: Kind,
    state: Mutex<State>,
    receive: Mutex<Receive>,
    name: Mutex<Option<Arc<Name>>>,
    /// The name of the listener that it came from, or is connected to.
    peer_name: Mutex<Option<Arc<Name>>>,
    queue: Arc<WaitQueue>,
    owner: Mutex<Owner>,
    peer: Mutex<Owner>,
    error: AtomicU32,
    /// Its last descriptor is closed; those who are about to send or connect to it may have it still.
    gone: AtomicBool,
    /// SO_PASSCRED.
    pub pass_cred: AtomicU32,
    /// SO_PASSPIDFD.
    pub pass_pidfd: AtomicU32,
    /// SO_RCVLOWAT: a stream's receiver waits for so many bytes.
    pub low_water: AtomicU32,
    /// Options that it has because every socket has them.
    pub options: Options,
    buffer: AtomicU32,
    /// Bytes of datagrams that it has sent and nobody has received.
    outstanding: AtomicUsize,
    /// The host's socket that is bound to its name, for those outside who connect.
    named: SetOnce<Arc<HostSocket>>,
    /// The host's socket that is its connection to one outside.
    outside: SetOnce<Arc<HostSocket>>,
    /// The one outside that it sends datagrams to takes no more, and when it is worth to try again.
    crowded: SetOnce<(Arc<AtomicBool>, Timer)>,
    me: Weak<UnixSocket>,
}

/// How long somebody outside who takes no more datagrams is left alone, ns: nothing tells when that changes.
pub const CROWDED: u64 = 1_000_000;

static ABSTRACT: Mutex<Option<HashMap<Vec<u8>, Weak<UnixSocket>>>> = Mutex::new(None);

fn address_of(name: Option<&Arc<Name>>) -> Address {
    let mut bytes = Vec::from((net::AF_UNIX as u16).to_ne_bytes());
    match name.map(|n| &**n) {
        None => {}
        Some(Name::Path(p)) => {
            bytes.extend_from_slice(p);
            bytes.push(0);
        }
        Some(Name::Abstract(n)) => {
            bytes.push(0);
            bytes.extend_from_slice(n);
        }
    }
    Address::new(&bytes).unwrap_or(Address::empty())
}

/// Who sent something: nothing at all if the sender has no name.
fn from_name(name: Option<&Arc<Name>>) -> Address {
    name.map_or(Address::empty(), |n| address_of(Some(n)))
}

/// Where an address leads.
pub enum Target {
    /// A path, to be looked up.
    Path(Vec<u8>),
    /// An abstract name.
    Abstract(Vec<u8>),
    /// Nothing: autobind.
    Unnamed,
}

/// Reads a `sockaddr_un`.
pub fn parse(addr: &Address) -> Result<Target> {
    let bytes = addr.bytes();
    if addr.family() != net::AF_UNIX {
        return Err(Errno::EINVAL);
    }
    match bytes.get(2..) {
        None | Some([]) => Ok(Target::Unnamed),
        Some([0, name @ ..]) => Ok(Target::Abstract(name.to_vec())),
        Some(path) => {
            let end = path.iter().position(|b| *b == 0).unwrap_or(path.len());
            if end > 108 {
                return Err(Errno::EINVAL);
            }
            Ok(Target::Path(path[..end].to_vec()))
        }
    }
}

/// Finds who is bound to an abstract name.
pub fn find_abstract(name: &[u8]) -> Result<Arc<UnixSocket>> {
    let all = ABSTRACT.lock();
    all.as_ref().and_then(|m| m.get(name)).and_then(Weak::upgrade).ok_or(Errno::ECONNREFUSED)
}

impl UnixSocket {
    /// A new socket of this owner's.
    pub fn new(kind: Kind, owner: Owner) -> Arc<UnixSocket> {
        Arc::new_cyclic(|me| UnixSocket {
            kind,
            state: Mutex::new(State::Idle),
            receive: Mutex::new(Receive::default()),
            name: Mutex::new(None),
            peer_name: Mutex::new(None),
            queue: Arc::new(WaitQueue::new()),
            owner: Mutex::new(owner),
            peer: Mutex::new(Owner { credentials: Credentials::NOBODY, groups: Arc::new([]) }),
            error: AtomicU32::new(0),
            gone: AtomicBool::new(false),
            pass_cred: AtomicU32::new(0),
            pass_pidfd: AtomicU32::new(0),
            low_water: AtomicU32::new(1),
            options: Options::default(),
            buffer: AtomicU32::new(BUFFER as u32),
            outstanding: AtomicUsize::new(0),
            named: SetOnce::new(),
            outside: SetOnce::new(),
            crowded: SetOnce::new(),
            me: me.clone(),
        })
    }

    /// Two connected sockets (`socketpair(2)`).
    pub fn pair(kind: Kind, owner: Owner) -> (Arc<UnixSocket>, Arc<UnixSocket>) {
        let (a, b) = (Self::new(kind, owner.clone()), Self::new(kind, owner));
        a.join(&b);
        (a, b)
    }

    fn join(&self, other: &UnixSocket) {
        *self.state.lock() = State::Connected(other.me.clone());
        *other.state.lock() = State::Connected(self.me.clone());
        let (mine, others) = (self.owner.lock().clone(), other.owner.lock().clone());
        *self.peer.lock() = others;
        *other.peer.lock() = mine;
    }

    /// Is it connected (or was)?
    pub fn is_connected(&self) -> bool {
        matches!(*self.state.lock(), State::Connected(_) | State::Orphan | State::Outside | State::Far(_))
    }

    /// The name outside the cell to which it sends datagrams.
    pub fn far(&self) -> Option<InodeRef> {
        let State::Far(name) = &*self.state.lock() else { return None };
        Some(name.clone())
    }

    /// Sends datagrams to the one outside that has this name, a path by which it is called.
    pub fn send_far(&self, name: InodeRef, path: &[u8]) {
        *self.state.lock() = State::Far(name);
        *self.peer_name.lock() = Some(Arc::new(Name::Path(path.to_vec())));
        self.queue.wake_all(WRITABLE);
    }

    /// The one outside to which it sends takes no more. Those who wait for room hear when it is worth to try again.
    pub fn is_crowded(&self) {
        let new = || {
            let full = Arc::new(AtomicBool::new(false));
            // Nothing that keeps the socket.
            let (told, queue) = (full.clone(), self.queue.clone());
            let timer = Timer::new(move |_| {
                told.store(false, Ordering::SeqCst);
                queue.wake_all(WRITABLE);
                Hold::NOT
            });
            (full, timer)
        };
        if self.crowded.get().is_none() {
            // Another call may have been faster.
            let _ = self.crowded.set(new());
        }
        if let Some((full, timer)) = self.crowded.get() {
            full.store(true, Ordering::SeqCst);
            timer.start(platform().now() + CROWDED, 0);
        }
    }

    /// Who is at the other end of a connection to outside, as a receiver is told: nothing at all, if it has no name.
    pub fn sender_outside(&self) -> Address {
        from_name(self.peer_name.lock().as_ref())
    }

    /// The host's socket for datagrams from outside.
    pub fn datagrams(&self) -> Option<&HostSocket> {
        self.named.get().map(|named| &**named).filter(|_| self.kind == Kind::Datagram)
    }

    /// The host's socket by which it is connected to one outside the cell.
    #[inline]
    pub fn outside(&self) -> Option<&Arc<HostSocket>> {
        self.outside.get()
    }

    /// Gives it the host's socket that is bound to its name, by which others outside find it: its descriptor, and the server's handle.
    pub fn be_found_outside(&self, fd: i32, handle: u64) {
        let socket = HostSocket::adopt(fd, self.kind == Kind::Stream, handle);
        socket.wait_at(&self.queue);
        // It has got a name once.
        let _ = self.named.set(socket);
        self.look_outside();
    }

    /// What comes from outside is heard of from now on, also by those who wait already.
    fn look_outside(&self) {
        if let Some(named) = self.named.get() {
            named.ready();
            self.queue.wake_all(poll::ALL);
        }
    }

    /// May it be connected now?
    pub fn may_connect(&self) -> Result<()> {
        match &*self.state.lock() {
            State::Idle => Ok(()),
            State::Connected(_) | State::Orphan | State::Outside | State::Far(_) => Err(Errno::EISCONN),
            State::Listening { .. } => Err(Errno::EINVAL),
        }
    }

    /// It is connected to one outside, by this descriptor of the host's.
    pub fn connect_outside(&self, fd: i32) -> Result<()> {
        let socket = HostSocket::adopt(fd, self.kind == Kind::Stream, 0);
        let peer = socket.peer().unwrap_or(Address::empty());
        self.may_connect()?;
        self.go_outside(socket, &peer)?;
        self.queue.wake_all(poll::ALL);
        Ok(())
    }

    fn go_outside(&self, socket: Arc<HostSocket>, peer: &Address) -> Result<()> {
        socket.wait_at(&self.queue);
        let credentials = socket.peer_credentials();
        let bytes = self.buffer.load(Ordering::Relaxed);
        if bytes != BUFFER as u32 {
            let _ = socket.set_option(net::SOL_SOCKET, net::SO_SNDBUF, &(bytes / 2).to_ne_bytes());
        }
        // Another call may have connected it meanwhile.
        self.outside.set(socket).map_err(|_| Errno::EISCONN)?;
        *self.state.lock() = State::Outside;
        *self.peer.lock() = Owner { credentials, groups: Arc::new([]) };
        *self.peer_name.lock() = match parse(peer) {
            Ok(Target::Path(path)) => Some(Arc::new(Name::Path(path))),
            Ok(Target::Abstract(name)) => Some(Arc::new(Name::Abstract(name))),
            _ => None,
        };
        Ok(())
    }

    /// Takes a connection from outside.
    fn accept_outside(&self) -> Result<Arc<UnixSocket>> {
        let (socket, from) = self.named.get().ok_or(Errno::EAGAIN)?.take_connection()?;
        let new = Self::new(self.kind, self.owner.lock().clone());
        *new.name.lock() = self.name.lock().clone();
        new.go_outside(socket, &from)?;
        new.inherit(self);
        Ok(new)
    }

    /// What a connection has from the socket that listened.
    fn inherit(&self, listener: &UnixSocket) {
        self.pass_cred.store(listener.pass_cred.load(Ordering::Relaxed), Ordering::Relaxed);
        self.pass_pidfd.store(listener.pass_pidfd.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    /// Does it listen?
    pub fn is_listening(&self) -> bool {
        matches!(*self.state.lock(), State::Listening { .. })
    }

    /// Of one that listens: how many wait to be accepted, and how many may.
    pub fn backlog(&self) -> Option<[u32; 2]> {
        let State::Listening { backlog, waiting } = &*self.state.lock() else { return None };
        Some([waiting.len() as u32, *backlog as u32])
    }

    /// Says who uses it now, for SO_PEERCRED of those who connect.
    pub fn set_owner(&self, owner: Owner) {
        *self.owner.lock() = owner;
    }

    /// Who is at the other end.
    pub fn peer(&self) -> Owner {
        self.peer.lock().clone()
    }

    /// The peer, if it is still there.
    fn connected_peer(&self) -> Result<Arc<UnixSocket>> {
        match &*self.state.lock() {
            State::Connected(p) => p.upgrade().filter(|p| !p.is_gone()).ok_or(Errno::EPIPE),
            State::Orphan => Err(Errno::EPIPE),
            _ => Err(Errno::ENOTCONN),
        }
    }

    /// Takes a path as its name; the caller has made the inode.
    pub fn bind_path(&self, path: &[u8]) -> Result<()> {
        let mut name = self.name.lock();
        if name.is_some() {
            return Err(Errno::EINVAL);
        }
        *name = Some(Arc::new(Name::Path(path.to_vec())));
        Ok(())
    }

    /// Is it bound?
    pub fn is_bound(&self) -> bool {
        self.name.lock().is_some()
    }

    /// Takes an abstract name; None: any free one.
    pub fn bind_abstract(&self, wanted: Option<&[u8]>) -> Result<()> {
        let mut name = self.name.lock();
        if name.is_some() {
            return Err(Errno::EINVAL);
        }
        let mut all = ABSTRACT.lock();
        let all = all.get_or_insert_with(HashMap::new);
        all.retain(|_, s| s.strong_count() > 0);
        let chosen = match wanted {
            Some(n) => {
                if all.contains_key(n) {
                    return Err(Errno::EADDRINUSE);
                }
                n.to_vec()
            }
            None => (0u32..0x10_0000)
                .map(|n| alloc::format!("{n:05x}").into_bytes())
                .find(|n| !all.contains_key(n))
                .ok_or(Errno::ENOSPC)?,
        };
        all.insert(chosen.clone(), self.me.clone());
        *name = Some(Arc::new(Name::Abstract(chosen)));
        Ok(())
    }

    /// Starts taking connections.
    pub fn listen(&self, backlog: u32) -> Result<()> {
        if self.kind == Kind::Datagram {
            return Err(Errno::EOPNOTSUPP);
        }
        if !self.is_bound() {
            return Err(Errno::EINVAL);
        }
        let most = (backlog as usize).min(4096);
        let owner = self.owner.lock().clone();
        let credentials = owner.credentials;
        let mut state = self.state.lock();
        if matches!(*state, State::Idle | State::Listening { .. }) {
            // Who listens is who is asked about, too.
            *self.peer.lock() = owner;
        }
        match &mut *state {
            State::Idle => {
                *state = State::Listening { backlog: most, waiting: VecDeque::new() };
                drop(state);
            }
            State::Listening { backlog, .. } => {
                *backlog = most;
                let lacking = core::mem::take(&mut self.receive.lock().lacking);
                drop(state);
                tell_lacking(&lacking);
            }
            _ => return Err(Errno::EINVAL),
        }
        match self.named.get() {
            Some(named) => {
                named.listen_as(backlog, credentials.uid, credentials.gid)?;
                self.look_outside();
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Connects to a listener, or names a datagram socket's peer. EAGAIN: the backlog is full; if it `waits`, the queue is woken when
    /// it is worth to try again.
    pub fn connect(&self, to: &Arc<UnixSocket>, waits: bool) -> Result<()> {
        if to.kind != self.kind {
            return Err(Errno::EPROTOTYPE);
        }
        if self.kind == Kind::Datagram {
            if to.is_gone() {
                return Err(Errno::ECONNREFUSED);
            }
            *self.state.lock() = State::Connected(Arc::downgrade(to));
            *self.peer_name.lock() = to.name.lock().clone();
            return Ok(());
        }
        self.may_connect()?;
        if core::ptr::eq(self, &**to) || to.receive.lock().closed {
            // It does not listen, or was shut down.
            return Err(Errno::ECONNREFUSED);
        }
        let owner = to.owner.lock().clone();
        let far = Self::new(self.kind, owner);
        {
            let mut state = to.state.lock();
            let State::Listening { backlog, waiting } = &mut *state else { return Err(Errno::ECONNREFUSED) };
            if waiting.len() > *backlog {
                let mut r = to.receive.lock();
                if r.closed {
                    return Err(Errno::ECONNREFUSED);
                }
                if waits {
                    r.note_lacking(&self.me);
                }
                return Err(Errno::EAGAIN);
            }
            *far.name.lock() = to.name.lock().clone();
            *far.peer_name.lock() = self.name.lock().clone();
            *self.peer_name.lock() = to.name.lock().clone();
            far.inherit(to);
            self.join(&far);
            waiting.push_back(far);
        }
        to.queue.wake_all(poll::IN | poll::RDNORM);
        self.queue.wake_all(WRITABLE);
        Ok(())
    }

    /// Forgets a datagram socket's peer.
    pub fn disconnect(&self) {
        *self.state.lock() = State::Idle;
        *self.peer_name.lock() = None;
    }

    /// Takes a connection.
    pub fn accept(&self) -> Result<Arc<UnixSocket>> {
        let mut state = self.state.lock();
        let State::Listening { waiting, .. } = &mut *state else { return Err(Errno::EINVAL) };
        let Some(s) = waiting.pop_front() else {
            drop(state);
            // Nobody comes any more to one that was shut down.
            return if self.receive.lock().closed { Err(Errno::EINVAL) } else { self.accept_outside() };
        };
        // Who waited for room in the backlog may try again.
        let lacking = core::mem::take(&mut self.receive.lock().lacking);
        drop(state);
        tell_lacking(&lacking);
        Ok(s)
    }

    /// Its own address.
    pub fn local(&self) -> Address {
        address_of(self.name.lock().as_ref())
    }

    /// Its peer's address.
    pub fn peer_address(&self) -> Result<Address> {
        if !self.is_connected() {
            return Err(Errno::ENOTCONN);
        }
        Ok(address_of(self.peer_name.lock().as_ref()))
    }

    /// Sends to the peer, or to `to`. Value: bytes, perhaps fewer than there are on a stream. EAGAIN: there is no room. If it `waits`,
    /// or looks at what its peer has room for, the queue is woken when it is worth to try again.
    pub fn send(
        &self,
        source: &mut Source,
        to: Option<Arc<UnixSocket>>,
        mut ancillary: Ancillary,
        waits: bool,
    ) -> Result<usize> {
        let waits = waits || to.is_none();
        if self.kind == Kind::Datagram && self.receive.lock().stopped {
            return Err(Errno::EPIPE);
        }
        let peer = match to {
            Some(to) if self.kind == Kind::Datagram => to,
            Some(_) if self.is_connected() => return Err(Errno::EISCONN),
            Some(_) => return Err(Errno::EOPNOTSUPP),
            None => match self.connected_peer() {
                Err(Errno::EPIPE) if self.kind == Kind::Datagram => {
                    // That is told once.
                    self.disconnect();
                    return Err(Errno::ECONNREFUSED);
                }
                p => p?,
            },
        };
        if peer.kind != self.kind {
            return Err(Errno::EPROTOTYPE);
        }
        if self.receive.lock().stopped {
            return Err(Errno::EPIPE);
        }
        if self.kind == Kind::Stream && source.left() == 0 {
            // Nothing is sent, not even what comes beside the bytes.
            return Ok(0);
        }
        let limit = self.buffer.load(Ordering::Relaxed) as usize;
        let whole = source.left();
        let packet = self.kind != Kind::Stream;
        if packet && whole > limit - MESSAGE_HEAD {
            return Err(Errno::EMSGSIZE);
        }
        // A message goes whole or not at all.
        if packet && source.note_missing() {
            return Err(Errno::EFAULT);
        }
        // The bytes are copied before the queue is held: a page of the program's may be missing.
        let broken = |r: &Receive| match self.kind {
            // Its queue was emptied under the lock, after this was set.
            Kind::Datagram if peer.is_gone() => Some(Errno::ECONNREFUSED),
            _ => (r.closed || peer.is_gone()).then_some(Errno::EPIPE),
        };
        let room = {
            let mut r = peer.receive.lock();
            if let Some(e) = broken(&r) {
                return Err(e);
            }
            let waiting = self.waiting(&r);
            if packet && (r.messages.len() >= DATAGRAMS || waiting + whole > limit && waiting > 0) {
                if waits && self.kind == Kind::Datagram {
                    r.note_lacking(&self.me);
                }
                return Err(Errno::EAGAIN);
            }
            limit.saturating_sub(waiting)
        };
        let n = if packet { whole } else { whole.min(room).min(64 << 10) };
        if n == 0 && whole > 0 {
            return Err(Errno::EAGAIN);
        }
        // There may be no memory for it, nor for its place below.
        let mut bytes = atoll_mem::buffer(n)?;
        let mut done = 0;
        while done < n {
            match source.take(&mut bytes[done..]) {
                Ok(k) if k > 0 => done += k,
                Err(e) if done == 0 || packet => return Err(e),
                _ => break,
            }
        }
        bytes.truncate(done);
        let has_files = !ancillary.files.is_empty();
        if packet && peer.options.wants_times() {
            ancillary.sent = atoll_abi::platform().realtime();
        }
        let mut r = peer.receive.lock();
        if let Some(e) = broken(&r) {
            return Err(e);
        }
        let from = self.name.lock().clone();
        match r.messages.back_mut() {
            // Streams join what comes from the same sender, up to a point.
            Some(m)
                if !packet
                    && !has_files
                    && m.ancillary.from == ancillary.from
                    && m.bytes.len() + done <= 16 << 10 =>
            {
                m.bytes.try_reserve(done).map_err(|_| Errno::ENOMEM)?;
                m.bytes.extend_from_slice(&bytes);
            }
            _ => {
                r.messages.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
                let charged = (self.kind == Kind::Datagram).then(|| self.me.clone());
                if charged.is_some() {
                    self.outstanding.fetch_add(done, Ordering::SeqCst);
                }
                r.messages.push_back(Message { bytes, taken: 0, ancillary, from, charged });
            }
        }
        r.bytes += done;
        drop(r);
        peer.queue.wake_all(poll::IN | poll::RDNORM);
        Ok(done)
    }

    /// Bytes that it has sent and wait yet, where it sends into this queue.
    fn waiting(&self, peer: &Receive) -> usize {
        // Into a queue of datagrams others send, too, and this one sends into others.
        if self.kind == Kind::Datagram { self.outstanding.load(Ordering::SeqCst) } else { peer.bytes }
    }

    /// Receives. Value: bytes (of the whole message, if `truncated` is asked for), what came beside
    /// them, who sent them, and whether bytes were cut off. `of`: nothing, and no end, if what comes next in a stream is another's.
    pub fn receive(&self, sink: &mut Sink, peek: bool, of: Option<Credentials>) -> Result<Received> {
        if self.kind != Kind::Stream {
            // Before the messages that are there.
            self.pending_error()?;
        }
        let mut r = self.receive.lock();
        let Some(first) = r.messages.front_mut() else {
            let ends = r.closed || r.ended;
            drop(r);
            self.pending_error()?;
            if ends {
                let state = self.state.lock();
                let never = matches!(*state, State::Idle | State::Listening { .. });
                return if never && self.kind == Kind::Stream {
                    Err(Errno::EINVAL)
                } else {
                    Ok(Received::end())
                };
            }
            if self.kind != Kind::Datagram && matches!(*self.state.lock(), State::Orphan) {
                // The peer has gone since we looked, perhaps after it sent more. `ended`
                // was set before it left us an orphan, so the next look is the last.
                return self.receive(sink, peek, of);
            }
            return match &*self.state.lock() {
                State::Idle | State::Listening { .. } if self.kind != Kind::Datagram => Err(Errno::EINVAL),
                _ => Err(Errno::EAGAIN),
            };
        };
        if self.kind != Kind::Stream {
            let len = first.bytes.len();
            let n = len.min(sink.left());
            if n > 0 && sink.note_missing() {
                return Err(Errno::EFAULT);
            }
            if n > 0 && sink.put(&first.bytes[..n])? < n {
                return Err(Errno::EFAULT);
            }
            let out = Received {
                len: n,
                whole: len,
                ancillary: first.ancillary.clone(),
                from: from_name(first.from.as_ref()),
                truncated: n < len,
                end: false,
            };
            if !peek {
                let message = r.messages.pop_front();
                r.bytes -= len;
                let lacking = core::mem::take(&mut r.lacking);
                drop(r);
                drop(message);
                if self.kind != Kind::Datagram {
                    self.tell_writers();
                }
                tell_lacking(&lacking);
            }
            return Ok(out);
        }
        let mut done = 0;
        let mut ancillary = Ancillary::default();
        let mut index = 0;
        while sink.left() > 0 {
            let Some(m) = r.messages.get_mut(index) else { break };
            if done == 0 && of.is_some_and(|of| of != m.ancillary.from) {
                return Ok(Received { end: false, ..Received::end() });
            }
            // Bytes with files beside them begin a new read, and so do another sender's.
            if done > 0 && (!m.ancillary.files.is_empty() || m.ancillary.from != ancillary.from) {
                break;
            }
            if done == 0 {
                ancillary.from = m.ancillary.from;
                if m.taken == 0 {
                    ancillary.files = if peek {
                        m.ancillary.files.clone()
                    } else {
                        core::mem::take(&mut m.ancillary.files)
                    };
                }
            }
            let rest = &m.bytes[m.taken..];
            let n = rest.len().min(sink.left());
            let k = match sink.put(&rest[..n]) {
                Ok(k) => k,
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
            };
            done += k;
            if peek {
                index += 1;
            } else {
                m.taken += k;
                let empty = m.taken == m.bytes.len();
                r.bytes -= k;
                if empty {
                    r.messages.pop_front();
                }
            }
            if k < n || !ancillary.files.is_empty() {
                break;
            }
        }
        drop(r);
        if !peek {
            self.tell_writers();
        }
        let from = from_name(self.peer_name.lock().as_ref());
        Ok(Received { len: done, whole: done, ancillary, from, truncated: false, end: false })
    }

    /// There is room again.
    fn tell_writers(&self) {
        if let Ok(p) = self.connected_peer() {
            p.queue.wake_all(WRITABLE);
        }
    }

    /// Closes a direction.
    pub fn shutdown(&self, how: Shutdown) -> Result<()> {
        if let Some(outside) = self.outside() {
            return outside.shutdown(how);
        }
        if let Some(named) = self.named.get()
            && (self.is_listening() || self.kind == Kind::Datagram && how != Shutdown::Write)
        {
            named.shutdown(how)?;
        }
        // Linux asks for no peer.
        let peer = self.connected_peer().ok();
        if how != Shutdown::Write {
            self.receive.lock().closed = true;
        }
        if how != Shutdown::Read {
            self.receive.lock().stopped = true;
        }
        // A connection's other end is told; one of datagrams is not a connection.
        if self.kind != Kind::Datagram
            && let Some(p) = &peer
        {
            let mut r = p.receive.lock();
            r.ended |= how != Shutdown::Read;
            // What it sends from now on nobody would read.
            r.stopped |= how != Shutdown::Write;
        }
        self.queue.wake_all(poll::ALL);
        if let Some(p) = peer {
            p.queue.wake_all(poll::ALL);
        }
        let lacking = core::mem::take(&mut self.receive.lock().lacking);
        tell_lacking(&lacking);
        Ok(())
    }

    /// Bytes that wait to be received.
    pub fn queued(&self) -> u32 {
        if let Some(outside) = self.outside() {
            return outside.queued(false).unwrap_or(0);
        }
        let r = self.receive.lock();
        if self.kind != Kind::Datagram {
            return r.bytes as u32;
        }
        let first = r.messages.front().map(|m| m.bytes.len() as u32);
        drop(r);
        first.or_else(|| self.datagrams()?.queued(false).ok()).unwrap_or(0)
    }

    /// May it send no more ([`UnixSocket::shutdown`])?
    pub fn is_stopped(&self) -> bool {
        self.receive.lock().stopped
    }

    /// What it is ready for.
    pub fn ready(&self) -> u32 {
        if let Some(outside) = self.outside() {
            return outside.ready();
        }
        let mut bits = 0;
        {
            let r = self.receive.lock();
            if !r.messages.is_empty() || r.closed || r.ended {
                bits |= poll::IN | poll::RDNORM;
            }
            if r.ended || r.closed {
                bits |= poll::RDHUP;
            }
            if (r.ended || r.closed) && r.stopped {
                bits |= poll::HUP;
            }
        }
        if self.error.load(Ordering::Relaxed) != 0 {
            bits |= poll::ERR;
        }
        let state = self.state.lock();
        match &*state {
            State::Listening { waiting, .. } => {
                if !waiting.is_empty() {
                    bits |= poll::IN | poll::RDNORM;
                }
                drop(state);
                if let Some(named) = self.named.get() {
                    bits |= named.ready() & (poll::IN | poll::RDNORM);
                }
            }
            // Its outside says it, which is set before this.
            State::Outside => {}
            State::Far(_) => {
                if !self.crowded.get().is_some_and(|(full, _)| full.load(Ordering::SeqCst)) {
                    bits |= WRITABLE;
                }
            }
            State::Connected(p) => match p.upgrade() {
                Some(p) => {
                    drop(state);
                    let mut r = p.receive.lock();
                    let limit = self.buffer.load(Ordering::Relaxed) as usize;
                    // As on Linux, who sends messages is to have three quarters of it for the next.
                    let has_room = match self.kind {
                        Kind::Stream => r.bytes < limit,
                        _ => self.waiting(&r) * 4 <= limit && r.messages.len() < DATAGRAMS,
                    };
                    if has_room {
                        bits |= WRITABLE;
                    } else if self.kind == Kind::Datagram {
                        // The peer need not know this socket.
                        r.note_lacking(&self.me);
                    }
                }
                None if self.kind != Kind::Datagram => {
                    bits |= poll::IN | poll::RDNORM | poll::HUP | poll::RDHUP | WRITABLE;
                }
                None => bits |= WRITABLE,
            },
            State::Orphan => bits |= poll::IN | poll::RDNORM | poll::HUP | poll::RDHUP | WRITABLE,
            State::Idle if self.kind == Kind::Datagram => {
                if self.outstanding.load(Ordering::SeqCst) * 4 <= self.buffer.load(Ordering::Relaxed) as usize
                {
                    bits |= WRITABLE;
                }
            }
            State::Idle => bits |= WRITABLE | poll::HUP,
        }
        if let Some(datagrams) = self.datagrams() {
            bits |= datagrams.ready() & (poll::IN | poll::RDNORM);
        }
        bits
    }

    /// Where to wait for that to change.
    pub fn queue(&self) -> &WaitQueue {
        &self.queue
    }

    /// How much of what it has sent may wait for its peer, bytes (SO_SNDBUF). As on Linux, the receiver has no say in that.
    pub fn buffer_size(&self) -> u32 {
        self.buffer.load(Ordering::Relaxed)
    }

    /// Changes it.
    pub fn set_buffer_size(&self, bytes: u32) {
        let bytes = bytes.clamp(4608, BUFFER as u32 * 2);
        self.buffer.store(bytes, Ordering::Relaxed);
        if let Some(outside) = self.outside() {
            // As far as the host lets anybody, which doubles what it is told.
            let _ = outside.set_option(net::SOL_SOCKET, net::SO_SNDBUF, &(bytes / 2).to_ne_bytes());
        }
        // There may be room now.
        self.queue.wake_all(WRITABLE);
    }

    /// The error that came meanwhile.
    pub fn take_error(&self) -> u32 {
        if let Some(outside) = self.outside() {
            return outside.take_error();
        }
        self.error.swap(0, Ordering::Relaxed)
    }

    /// That error, to a call that tells of it.
    pub fn pending_error(&self) -> Result<()> {
        if self.error.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        match self.take_error() {
            0 => Ok(()),
            e => Err(Errno(e)),
        }
    }

    /// Its last descriptor is closed: the peer hears of it, and so do those who wait for room here.
    pub fn close(&self) {
        self.end(false);
    }

    /// The same. `reset`: the peer's connection was never taken.
    fn end(&self, reset: bool) {
        if self.gone.swap(true, Ordering::SeqCst) {
            return;
        }
        let state = core::mem::replace(&mut *self.state.lock(), State::Idle);
        let (unread, lacking) = {
            let mut r = self.receive.lock();
            r.bytes = 0;
            (core::mem::take(&mut r.messages), core::mem::take(&mut r.lacking))
        };
        match state {
            State::Connected(p) if self.kind != Kind::Datagram => {
                if let Some(p) = p.upgrade() {
                    if reset || !unread.is_empty() {
                        p.error.store(Errno::ECONNRESET.0, Ordering::Relaxed);
                    }
                    {
                        let mut r = p.receive.lock();
                        r.ended = true;
                        r.stopped = true;
                    }
                    let mut state = p.state.lock();
                    if matches!(*state, State::Connected(_)) {
                        *state = State::Orphan;
                    }
                    drop(state);
                    p.queue.wake_all(poll::ALL);
                }
            }
            State::Listening { waiting, .. } => waiting.iter().for_each(|s| s.end(true)),
            _ => {}
        }
        let name = self.name.lock().clone();
        if let Some(Name::Abstract(n)) = name.as_deref()
            && let Some(all) = ABSTRACT.lock().as_mut()
            && all.get(n).is_some_and(|s| s.ptr_eq(&self.me))
        {
            all.remove(n);
        }
        tell_lacking(&lacking);
    }

    /// For `/proc/net/unix` and people.
    pub fn describe(&self) -> String {
        match self.name.lock().as_deref() {
            Some(Name::Path(p)) => String::from_utf8_lossy(p).into_owned(),
            Some(Name::Abstract(n)) => alloc::format!("@{}", String::from_utf8_lossy(n)),
            None => String::new(),
        }
    }
}

/// What a receive brought.
pub struct Received {
    /// Bytes put.
    pub len: usize,
    /// Bytes of the message.
    pub whole: usize,
    /// What came beside them.
    pub ancillary: Ancillary,
    /// Sender's address.
    pub from: Address,
    /// Bytes were cut off.
    pub truncated: bool,
    /// There is no more to come.
    pub end: bool,
}

impl Received {
    /// A datagram from outside.
    pub fn datagram(m: crate::handle::Datagram, put: usize, from: Credentials) -> Self {
        Received {
            len: put,
            whole: m.len.max(put),
            ancillary: Ancillary { from, ..Ancillary::default() },
            from: m.from,
            truncated: m.flags & net::MSG_TRUNC != 0,
            end: false,
        }
    }

    fn end() -> Self {
        Received {
            len: 0,
            whole: 0,
            ancillary: Ancillary::default(),
            from: Address::empty(),
            truncated: false,
            end: true,
        }
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        self.end(false);
    }
}
