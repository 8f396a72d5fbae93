//! Sockets as files: blocking, timeouts and options over the handles of `atoll_net`.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use atoll_abi::grid::Resource;
use atoll_abi::{Errno, Result, platform};
use atoll_fs::node::{At, InodeRef};
use atoll_fs::types::Cred;
use atoll_fs::{Attr, File, OpenFile, Sink, Source, host, poll};
use atoll_net::host::HostSocket;
use atoll_net::unix::{Ancillary, CROWDED, Credentials, InFlight, Kind, Owner, Received, UnixSocket};
use atoll_net::{Address, DatagramHandle, Handle, Shutdown, StreamHandle};
use atoll_sync::{Mutex, RcuArc, WaitQueue};
use atoll_task::{Limit, books, gate, wait};
use linux_raw_sys::{general as linux, ioctl, net};
use zerocopy::FromBytes;

use crate::process::Task;
use crate::quota::Held;
use crate::syscalls::time;
use crate::types::{CmsgHdr, Ucred, put};
use crate::{budget, current};

/// What stands behind a socket.
#[derive(Clone)]
pub enum Inner {
    /// Connections.
    Stream(Arc<dyn StreamHandle>),
    /// Single messages.
    Datagram(Arc<dyn DatagramHandle>),
    /// Within the cell.
    Unix(Arc<UnixSocket>),
}

impl Inner {
    fn queue(&self) -> &WaitQueue {
        match self {
            Inner::Stream(s) => s.queue(),
            Inner::Datagram(d) => d.queue(),
            Inner::Unix(u) => u.queue(),
        }
    }
}

/// Where a socket's bytes go.
enum Way<'a> {
    Stream(&'a dyn StreamHandle),
    Datagram(&'a dyn DatagramHandle),
    /// To another one of the cell.
    Unix(&'a Arc<UnixSocket>),
}

/// Who has the name of a Unix socket.
#[derive(Clone)]
pub enum Found {
    /// A socket of the cell's.
    Here(Arc<UnixSocket>),
    /// Nobody in the cell. Somebody outside may have it.
    Outside(InodeRef),
}

/// A socket.
pub struct SocketFile {
    /// What stands behind it.
    pub inner: Inner,
    /// AF_...
    pub domain: u32,
    /// SOCK_...
    pub kind: u32,
    /// IPPROTO_...
    pub protocol: u32,
    /// Its waiters are to hear when the grid lets more be received, and sent (`gate::when_open`).
    asked: [AtomicU64; 2],
    /// SO_RCVTIMEO and SO_SNDTIMEO, ns; 0: none.
    receive_timeout: AtomicU64,
    send_timeout: AtomicU64,
    /// Options that change nothing here, and are only told again: by their numbers, in the level SOL_SOCKET.
    told: Mutex<Vec<(u32, u32)>>,
    /// Who sent last found no room, and is to be told when there is.
    full: AtomicBool,
    id: u64,
    _held: Held,
}

static NEXT: AtomicU64 = AtomicU64::new(0x8000);

/// The longest datagram to somebody outside the cell, bytes: what Linux's default of a send buffer has room for.
const FAR_MAX: usize = 212_992 - 32;

/// What a receive brought.
#[derive(Default)]
pub struct Message {
    /// Value of the call.
    pub len: usize,
    /// Who sent it.
    pub from: Option<Address>,
    /// What came beside the bytes, on a Unix socket.
    pub ancillary: Ancillary,
    /// Control messages of the host, as they came.
    pub control: Vec<u8>,
    /// `msg_flags`.
    pub flags: u32,
}

/// Who a task is, for SO_PEERCRED.
fn credentials(task: &Task) -> Credentials {
    let ids = task.ids();
    Credentials { pid: task.process.pid, uid: ids.euid, gid: ids.egid, started: task.process.started }
}

/// Who a task is when it sends something (SCM_CREDENTIALS): by its real ids, as Linux has it (`scm_send`).
pub fn sender(task: &Task) -> Credentials {
    let ids = task.ids();
    Credentials { pid: task.process.pid, uid: ids.ruid, gid: ids.rgid, started: task.process.started }
}

/// Who a task is for SO_PEERCRED, and his groups, for SO_PEERGROUPS.
pub fn owner(task: &Task) -> Owner {
    let groups = task.ids().groups.clone();
    Owner { credentials: credentials(task), groups }
}

impl SocketFile {
    /// A socket.
    pub fn new(inner: Inner, domain: u32, kind: u32, protocol: u32, held: Held) -> Self {
        SocketFile {
            inner,
            domain,
            kind,
            protocol,
            asked: [const { AtomicU64::new(0) }; 2],
            receive_timeout: AtomicU64::new(0),
            send_timeout: AtomicU64::new(0),
            told: Mutex::default(),
            full: AtomicBool::new(false),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            _held: held,
        }
    }

    /// Its number, as in `/proc/PID/fd`.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// As an open file.
    pub fn open(self, nonblock: bool) -> RcuArc<OpenFile> {
        let flags = linux::O_RDWR | if nonblock { linux::O_NONBLOCK } else { 0 };
        RcuArc::new(OpenFile::new(Arc::new(self), flags))
    }

    /// Where its bytes go: a Unix socket that is connected to one outside has a socket of the host for that.
    #[inline]
    fn way(&self) -> Way<'_> {
        match &self.inner {
            Inner::Stream(s) => Way::Stream(&**s),
            Inner::Datagram(d) => Way::Datagram(&**d),
            Inner::Unix(u) => match u.outside() {
                None => Way::Unix(u),
                Some(outside) if u.kind == Kind::Stream => Way::Stream(&**outside),
                Some(outside) => Way::Datagram(&**outside),
            },
        }
    }

    /// What all but Unix sockets within the cell have.
    pub fn handle(&self) -> Option<&dyn Handle> {
        match self.way() {
            Way::Stream(s) => Some(s),
            Way::Datagram(d) => Some(d),
            Way::Unix(_) => None,
        }
    }

    /// Sets SO_RCVTIMEO or, if `send`, SO_SNDTIMEO, ns.
    pub fn set_timeout(&self, send: bool, ns: u64) {
        if send { &self.send_timeout } else { &self.receive_timeout }.store(ns, Ordering::Relaxed);
    }

    /// The timeout, ns.
    pub fn timeout(&self, send: bool) -> u64 {
        if send { &self.send_timeout } else { &self.receive_timeout }.load(Ordering::Relaxed)
    }

    /// Keeps the value of an option that changes nothing here.
    pub fn tell(&self, name: u32, value: u32) {
        let mut told = self.told.lock();
        told.retain(|(n, _)| *n != name);
        told.push((name, value));
    }

    /// What was kept of it holds no longer.
    pub fn forget(&self, name: u32) {
        self.told.lock().retain(|(n, _)| *n != name);
    }

    /// The value that was last kept of it.
    pub fn told(&self, name: u32) -> Option<u32> {
        self.told.lock().iter().find(|(n, _)| *n == name).map(|(_, value)| *value)
    }

    /// Room is waited for: whoever set O_ASYNC is to be told of it.
    pub fn lacks_room(&self) {
        self.full.store(true, Ordering::SeqCst);
    }

    /// Did anybody look for room in vain since this was asked last?
    pub fn lacked_room(&self) -> bool {
        self.full.swap(false, Ordering::SeqCst)
    }

    /// Tries, and waits where that is allowed, until `f` gets somewhere.
    pub fn patiently<R>(&self, nonblock: bool, send: bool, mut f: impl FnMut() -> Result<R>) -> Result<R> {
        if !nonblock && let Some(handle) = self.handle() {
            handle.will_wait();
        }
        let idle = || !nonblock && self.handle().is_some_and(|h| h.idle(send));
        if !idle() {
            match f() {
                Err(Errno::EAGAIN) if !nonblock => {}
                Err(Errno::EAGAIN) if send => {
                    self.lacks_room();
                    // It may have come before that was said.
                    return f();
                }
                r => return r,
            }
        }
        let ns = self.timeout(send);
        let limit = if ns == 0 { Limit::Forever } else { Limit::Until(platform().now().saturating_add(ns)) };
        let interest = if send { poll::OUT } else { poll::IN | poll::RDHUP } | poll::HUP | poll::ERR;
        let r = wait(self.inner.queue(), interest, limit, || {
            if idle() {
                return None;
            }
            match f() {
                Err(Errno::EAGAIN) => None,
                r => Some(r),
            }
        });
        match r {
            Ok(r) => r,
            Err(Errno::ETIMEDOUT) => Err(Errno::EAGAIN),
            // With a timeout the call is never restarted (signal(7)).
            Err(Errno::RESTART) if ns != 0 => Err(Errno::EINTR),
            Err(e) => Err(e),
        }
    }

    /// EAGAIN if it isn't the caller's turn to send, or receive, by what the grid's configuration says of the device. Those who wait
    /// for the socket hear of it when it is.
    #[inline]
    fn admitted(&self, send: bool) -> Result<()> {
        let resource = if send { Resource::DeviceWrite } else { Resource::DeviceRead };
        if gate::full(resource) { self.asks(send, resource) } else { Ok(()) }
    }

    #[cold]
    fn asks(&self, send: bool, resource: Resource) -> Result<()> {
        let bits = if send { poll::OUT | poll::WRNORM } else { poll::IN | poll::RDNORM };
        let asked = &self.asked[usize::from(send)];
        let inner = self.inner.clone();
        let waits = gate::when_open(resource, asked, move || inner.queue().wake_all(bits));
        if waits { Err(Errno::EAGAIN) } else { Ok(()) }
    }

    /// As [`SocketFile::patiently`], for what a device sends or receives: when it is the caller's turn.
    fn in_turn<R>(&self, nonblock: bool, send: bool, mut f: impl FnMut() -> Result<R>) -> Result<R> {
        self.patiently(nonblock, send, || {
            self.admitted(send)?;
            f()
        })
    }

    /// What a device of the cell's own sent or received: of the host's, the host's sockets book it.
    fn booked(send: bool, bytes: usize) {
        if platform().host().is_none() {
            books::moved(if send { Resource::DeviceWrite } else { Resource::DeviceRead }, bytes as u64);
        }
    }

    /// Receives.
    pub fn receive(&self, sink: &mut Sink, flags: u32, nonblock: bool, control: usize) -> Result<Message> {
        // Errors that were queued are never waited for, and urgent data neither.
        let nonblock = nonblock || flags & (net::MSG_DONTWAIT | net::MSG_ERRQUEUE | net::MSG_OOB) != 0;
        let pass = flags & (net::MSG_PEEK | net::MSG_OOB | net::MSG_TRUNC | net::MSG_ERRQUEUE);
        let beside = || match &self.inner {
            // Nothing comes with the bytes from outside.
            Inner::Unix(u) => Ancillary { from: u.peer().credentials, ..Ancillary::default() },
            _ => Ancillary::default(),
        };
        match self.way() {
            Way::Stream(s) => {
                let all = flags & net::MSG_WAITALL != 0;
                let mut len = 0;
                if all && flags & net::MSG_PEEK != 0 {
                    len = self.peek_all(s, sink, nonblock, pass)?;
                } else {
                    loop {
                        match self.receive_stream(s, sink, nonblock, pass) {
                            Ok(0) => break,
                            Ok(n) => len += n,
                            Err(_) if len > 0 => break,
                            Err(e) => return Err(e),
                        }
                        if !all || sink.left() == 0 {
                            break;
                        }
                    }
                }
                let from = match &self.inner {
                    Inner::Unix(u) => Some(u.sender_outside()),
                    _ => None,
                };
                Ok(Message { len, from, ancillary: beside(), ..Message::default() })
            }
            Way::Datagram(d) => {
                // Descriptors of the host's are not for programs.
                let is_unix = matches!(self.inner, Inner::Unix(_));
                let mut room = alloc::vec![0u8; if is_unix { 0 } else { control }];
                let m = self.in_turn(nonblock, false, || d.receive(sink, &mut room, pass))?;
                Self::booked(false, m.len);
                room.truncate(m.control_len);
                Ok(Message {
                    len: m.len,
                    from: Some(m.from),
                    ancillary: beside(),
                    control: room,
                    flags: m.flags,
                })
            }
            // Bytes out of band are a stream's; these have none (Linux without CONFIG_AF_UNIX_OOB).
            Way::Unix(u) if flags & net::MSG_OOB != 0 => {
                Err(if u.kind == Kind::Stream { Errno::EINVAL } else { Errno::EOPNOTSUPP })
            }
            Way::Unix(u) => {
                let peek = flags & net::MSG_PEEK != 0;
                let mut all = Message::default();
                let passes =
                    [&u.pass_cred, &u.pass_pidfd].iter().any(|pass| pass.load(Ordering::Relaxed) != 0);
                loop {
                    // One who is told of senders gets what several have sent in several pieces.
                    let of = (passes && all.len > 0).then_some(all.ancillary.from);
                    let r = self.patiently(nonblock, false, || {
                        match (u.receive(sink, peek, of), u.datagrams()) {
                            (Err(Errno::EAGAIN), Some(outside)) => receive_far(outside, sink, pass),
                            (r, _) => r,
                        }
                    });
                    let r = match r {
                        // A socket for datagrams has no end that could be read.
                        Ok(r) if r.end && self.kind == net::SOCK_DGRAM && nonblock => {
                            return Err(Errno::EAGAIN);
                        }
                        // The end, or another's.
                        Ok(r) if r.len == 0 && all.len > 0 => break,
                        Ok(r) => r,
                        Err(_) if all.len > 0 => break,
                        Err(e) => return Err(e),
                    };
                    all.len += if flags & net::MSG_TRUNC != 0 { r.whole } else { r.len };
                    let least = u.low_water.load(Ordering::Relaxed) as usize;
                    let more = self.kind == net::SOCK_STREAM
                        && (flags & net::MSG_WAITALL != 0 || all.len < least && !nonblock);
                    all.flags |= if r.truncated { net::MSG_TRUNC } else { 0 };
                    all.from = Some(r.from);
                    let files = !r.ancillary.files.is_empty();
                    all.ancillary.from = r.ancillary.from;
                    all.ancillary.sent = r.ancillary.sent;
                    all.ancillary.files.extend(r.ancillary.files.take());
                    if r.end || files || !more || peek || sink.left() == 0 {
                        break;
                    }
                }
                Ok(all)
            }
        }
    }

    #[inline]
    fn receive_stream(
        &self,
        s: &dyn StreamHandle,
        sink: &mut Sink,
        nonblock: bool,
        flags: u32,
    ) -> Result<usize> {
        let n = self.in_turn(nonblock, false, || s.receive(sink, flags))?;
        Self::booked(false, n);
        Ok(n)
    }

    /// Looks at what is there until that is all that one look can take, no more comes, or it has waited long enough.
    fn peek_all(&self, s: &dyn StreamHandle, sink: &mut Sink, nonblock: bool, flags: u32) -> Result<usize> {
        sink.rewind();
        let (whole, mut len) = (sink.host_len(), 0);
        let r = self.in_turn(nonblock, false, || {
            // Before it looks: what has come since then may be more. None goes past a mark of urgent data.
            let over = s.ready() & (poll::RDHUP | poll::HUP | poll::ERR | poll::PRI) != 0;
            sink.rewind();
            // What was seen before counts no more if this fails.
            len = 0;
            len = s.receive(sink, flags)?;
            if len >= whole || len == 0 || over {
                return Ok(len);
            }
            // A page that is missing would end each look at the same place: the caller brings it in and comes again.
            if sink.note_missing() {
                len = 0;
                return Err(Errno::EFAULT);
            }
            Err(Errno::EAGAIN)
        });
        if len > 0 { Ok(len) } else { r }
    }

    /// Sends. `to`: where, for sockets that are not connected.
    pub fn send(
        &self,
        source: &mut Source,
        flags: u32,
        nonblock: bool,
        to: Option<&Address>,
        unix_to: Option<Found>,
        ancillary: Ancillary,
    ) -> Result<usize> {
        let nonblock = nonblock || flags & net::MSG_DONTWAIT != 0;
        let pass =
            flags & (net::MSG_OOB | net::MSG_MORE | net::MSG_CONFIRM | net::MSG_DONTROUTE | net::MSG_EOR);
        let mut done = 0;
        let passes = !ancillary.files.is_empty();
        match self.way() {
            // The host knows nothing of a cell's files.
            Way::Stream(_) | Way::Datagram(_) if passes => Err(Errno::EOPNOTSUPP),
            Way::Datagram(d) => {
                let n = self.in_turn(nonblock, true, || d.send(source, to, &ancillary.control, pass))?;
                Self::booked(true, n);
                Ok(n)
            }
            Way::Stream(s) => self.send_stream(s, source, nonblock, pass),
            Way::Unix(_) if flags & net::MSG_OOB != 0 => Err(Errno::EOPNOTSUPP),
            // A message is an object of the runtime's until it is taken.
            Way::Unix(_) if gate::is_alarmed() && budget::objects_are_short() => Err(Errno::ENOMEM),
            Way::Unix(u) => {
                let here = match unix_to {
                    None if u.kind == Kind::Datagram
                        && let Some(name) = u.far() =>
                    {
                        let sent = self.send_far(source, nonblock, &name, &ancillary);
                        match sent {
                            // That is told once.
                            Err(Errno::ECONNREFUSED) => u.disconnect(),
                            Err(Errno::EAGAIN) => u.is_crowded(),
                            _ => {}
                        }
                        return sent;
                    }
                    Some(Found::Outside(name)) => return self.send_far(source, nonblock, &name, &ancillary),
                    Some(Found::Here(to)) => Some(to),
                    None => None,
                };
                let mut beside = Some(ancillary);
                loop {
                    let files = beside.clone().unwrap_or_default();
                    let mut waited = false;
                    let r = self.patiently(nonblock, true, || {
                        // Who waits for room is told of the end in this way, once.
                        if waited {
                            u.pending_error()?;
                        }
                        let r = u.send(source, here.clone(), files.clone(), !nonblock);
                        waited = !nonblock && r == Err(Errno::EAGAIN);
                        r
                    });
                    match r {
                        Ok(n) => done += n,
                        Err(_) if done > 0 => return Ok(done),
                        Err(e) => return Err(e),
                    }
                    beside = beside.map(|b| Ancillary { files: InFlight::default(), ..b });
                    if source.left() == 0 {
                        return Ok(done);
                    }
                }
            }
        }
    }

    /// Sends a datagram to whoever has this name outside the cell.
    fn send_far(
        &self,
        source: &mut Source,
        nonblock: bool,
        name: &InodeRef,
        beside: &Ancillary,
    ) -> Result<usize> {
        if !beside.files.is_empty() {
            return Err(Errno::EOPNOTSUPP);
        }
        if matches!(&self.inner, Inner::Unix(u) if u.is_stopped()) {
            return Err(Errno::EPIPE);
        }
        if source.left() > FAR_MAX {
            return Err(Errno::EMSGSIZE);
        }
        // It goes whole or not at all.
        if source.note_missing() {
            return Err(Errno::EFAULT);
        }
        let mut datagram = atoll_mem::buffer(source.left())?;
        let len = source.copy(&mut datagram)?;
        let cred = crate::current::try_current().map_or(Cred::root(), |task| {
            let ids = task.ids();
            let (uid, gid) = (ids.ruid, ids.rgid);
            drop(ids);
            Cred { uid, gid, ..task.cred() }
        });
        self.tries(!nonblock, || host::send_to_socket(name, &datagram[..len], &cred))?;
        source.advance(len);
        Ok(len)
    }

    /// Tries again and again, if it `waits`, while nothing tells when there is room (EAGAIN), as long as the socket's timeout says.
    pub fn tries<R>(&self, waits: bool, mut f: impl FnMut() -> Result<R>) -> Result<R> {
        let until = match self.timeout(true) {
            0 => u64::MAX,
            ns => platform().now().saturating_add(ns),
        };
        loop {
            match f() {
                Err(Errno::EAGAIN) if waits => {}
                r => return r,
            }
            let next = platform().now().saturating_add(CROWDED).min(until);
            match wait(&WaitQueue::new(), 0, Limit::Until(next), || None::<()>) {
                Err(Errno::ETIMEDOUT) if next < until => {}
                Err(Errno::ETIMEDOUT) => return Err(Errno::EAGAIN),
                // With a timeout the call is never restarted (signal(7)).
                Err(Errno::RESTART) if until != u64::MAX => return Err(Errno::EINTR),
                Err(e) => return Err(e),
                Ok(()) => {}
            }
        }
    }

    #[inline]
    fn send_stream(
        &self,
        s: &dyn StreamHandle,
        source: &mut Source,
        nonblock: bool,
        flags: u32,
    ) -> Result<usize> {
        let mut done = 0;
        loop {
            let sent = self.in_turn(nonblock, true, || s.send(source, flags));
            match sent {
                Ok(n) => {
                    Self::booked(true, n);
                    done += n;
                }
                Err(_) if done > 0 => return Ok(done),
                Err(e) => return Err(e),
            }
            if source.left() == 0 {
                return Ok(done);
            }
        }
    }

    /// Closes a direction.
    pub fn shutdown(&self, how: Shutdown) -> Result<()> {
        match &self.inner {
            Inner::Stream(s) => s.shutdown(how),
            Inner::Datagram(d) => d.shutdown(how),
            Inner::Unix(u) => u.shutdown(how),
        }
    }

    /// Its own address.
    pub fn local(&self) -> Result<Address> {
        match &self.inner {
            Inner::Unix(u) => Ok(u.local()),
            _ => self.handle().ok_or(Errno::ENOTSOCK)?.local(),
        }
    }

    /// Its peer's.
    pub fn peer(&self) -> Result<Address> {
        match &self.inner {
            Inner::Unix(u) => u.peer_address(),
            _ => self.handle().ok_or(Errno::ENOTSOCK)?.peer(),
        }
    }
}

/// Receives a datagram from outside the cell.
fn receive_far(outside: &HostSocket, sink: &mut Sink, flags: u32) -> Result<Received> {
    // Room for a `struct ucred` and no more: of files nothing is taken.
    let mut control = [0; 32];
    let before = sink.left();
    let m = DatagramHandle::receive(outside, sink, &mut control, flags)?;
    let said = CmsgHdr::read_from_prefix(&control[..m.control_len.min(control.len())]).ok();
    let said =
        said.filter(|(h, _)| h.level as u32 == net::SOL_SOCKET && h.kind as u32 == net::SCM_CREDENTIALS);
    let who = said.and_then(|(_, rest)| Ucred::read_from_prefix(rest).ok());
    let from = match who {
        // Of processes outside there are no numbers here.
        Some((who, _)) => Credentials { pid: 0, uid: who.uid, gid: who.gid, started: 0 },
        None => Credentials::NOBODY,
    };
    Ok(Received::datagram(m, before - sink.left(), from))
}

/// The longest pause between two looks whether what was sent has arrived, ns.
const LINGERS_MOST: u64 = 10_000_000;

/// States of a connection that is closed here, of which the other end has not said yet that all has arrived (`tcp_states.h` of Linux).
const CLOSING: [u8; 3] = [4, 9, 11];

/// Waits until what was sent has arrived, and that there is no more, or the connection breaks, for as long as it lingers; not as its
/// process ends, nor where something is left to be received, which breaks it (`sk_stream_wait_close`, `tcp_close` of Linux).
fn linger(task: &Task, handle: &dyn Handle) {
    if task.process.is_ending() || handle.queued(false) != Ok(0) || handle.shutdown(Shutdown::Both).is_err() {
        return;
    }
    let is_closing = || {
        // Of struct tcp_info the first byte is the state.
        let mut state = [0];
        let known = handle.get_option(net::IPPROTO_TCP as u32, net::TCP_INFO, &mut state);
        known.is_ok_and(|len| len > 0) && CLOSING.contains(&state[0])
    };
    let (mut now, mut pause) = (platform().now(), 100_000);
    let ends = now.saturating_add(u64::from(handle.lingers()).saturating_mul(1_000_000_000));
    while now < ends && is_closing() {
        if time::sleep(task, ends.min(now + pause)).is_err() {
            return;
        }
        pause = (pause * 2).min(LINGERS_MOST);
        now = platform().now();
    }
}

impl File for SocketFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn read(&self, sink: &mut Sink, _at: Option<u64>, nonblock: bool) -> Result<usize> {
        if sink.left() == 0 && self.kind == net::SOCK_STREAM {
            return Ok(0);
        }
        match self.way() {
            // Nothing comes beside the bytes.
            Way::Stream(s) => self.receive_stream(s, sink, nonblock, 0),
            _ => self.receive(sink, 0, nonblock, 0).map(|m| m.len),
        }
    }

    fn write(&self, source: &mut Source, _at: At, nonblock: bool) -> Result<(usize, u64)> {
        let from = match self.way() {
            Way::Stream(s) => return self.send_stream(s, source, nonblock, 0).map(|n| (n, 0)),
            Way::Unix(_) => crate::current::try_current().map(sender).unwrap_or_default(),
            _ => Credentials::default(),
        };
        let beside = Ancillary { from, ..Ancillary::default() };
        self.send(source, 0, nonblock, None, None, beside).map(|n| (n, 0))
    }

    fn attr(&self) -> Result<Attr> {
        Ok(Attr {
            ino: self.id,
            dev: 8,
            mode: linux::S_IFSOCK | 0o777,
            nlink: 1,
            blksize: 4096,
            ..Attr::default()
        })
    }

    fn ready(&self) -> u32 {
        let bits = match self.way() {
            Way::Stream(s) => s.ready(),
            Way::Datagram(d) => d.ready(),
            Way::Unix(u) => return u.ready(),
        };
        // What would have to wait its turn isn't ready.
        let now =
            |send, these: u32| if bits & these != 0 && self.admitted(send).is_err() { !these } else { !0 };
        bits & now(true, poll::OUT | poll::WRNORM) & now(false, poll::IN | poll::RDNORM)
    }

    fn refresh(&self) {
        if let Some(handle) = self.handle() {
            handle.refresh();
        }
    }

    fn resource(&self) -> Resource {
        Resource::Socket
    }

    fn signals(&self) -> bool {
        true
    }

    fn queue(&self) -> Option<&WaitQueue> {
        Some(self.inner.queue())
    }

    fn control(&self, command: u32, arg: u64) -> Result<u64> {
        let out = match command {
            ioctl::FIONREAD => false,
            ioctl::TIOCOUTQ => true,
            _ => return Err(Errno::ENOTTY),
        };
        let n = match self.way() {
            Way::Unix(u) => {
                if out {
                    0
                } else {
                    u.queued()
                }
            }
            _ => self.handle().ok_or(Errno::ENOTSOCK)?.queued(out)?,
        };
        put(arg, &n).map(|()| 0)
    }

    fn release(&self, _flags: u32) -> Result<()> {
        // Who sends or connects to it right now has the socket behind it, too.
        if let Inner::Unix(u) = &self.inner {
            u.close();
        } else if let Some(handle) = self.handle().filter(|h| h.lingers() != 0)
            && let Some(task) = current::try_current()
        {
            linger(task, handle);
        }
        Ok(())
    }

    fn describe(&self) -> Vec<u8> {
        alloc::format!("socket:[{}]", self.id).into_bytes()
    }
}
