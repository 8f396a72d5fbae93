//! Host sockets behind the handles.
//!
//! A socket is made, bound and connected by the serving threads, which alone
//! may do that; sending, receiving and accepting are short host calls in
//! place. What a socket is ready for is known from edge-triggered events that
//! the core which first waited for it gets, or another one that takes from it later (architecture section 8), so
//! looking at it, and waiting for it again, cost no call at all ([`crate::readiness`]).

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use atoll_abi::core_local::core_local;
use atoll_abi::grid::Resource::{DeviceRead, DeviceWrite};
use atoll_abi::platform::{Event, HostBuf, HostCalls, ReadBuf};
use atoll_abi::service::{Op, Request};
use atoll_abi::{Errno, Result, platform};
use atoll_fs::poll;
use atoll_mem::io::{Sink, Source, extent};
use atoll_mem::{buffer, user};
use atoll_sync::{Mutex, RcuArc, RcuTable, SetOnce, WaitQueue};
use atoll_task::books::{self, moved, within};
use atoll_task::{Call, Cause, call, descriptor_of};
use linux_raw_sys::net;

use crate::address::{Address, word};
use crate::handle::{Datagram, DatagramHandle, Handle, Shutdown, StreamHandle};
use crate::readiness::{FINAL, Readiness, Seen};
use crate::unix::Credentials;

/// Host sockets that a cell can watch.
const SOCKETS_MAX: usize = 1 << 20;

/// Bytes of the runtime's own that one host call carries.
const BOUNCE: usize = 4096;
/// More than the longest datagram or packet has, bytes: a Unix socket's may be as long as SO_SNDBUF's default.
const DATAGRAM: usize = 256 << 10;
/// Bytes that one host call receives from a stream.
const AT_ONCE: u64 = 64 << 10;
/// After so many receives by the same core, and none by others, that one watches the socket. To change takes some three host calls.
const FOLLOW: u32 = 16;
/// How often one receive is made again because a signal came.
const SIGNALS_MOST: usize = 10;
/// Flags of a receive that does not simply take what is next.
const NO_PLAIN: u32 = net::MSG_PEEK | net::MSG_OOB | net::MSG_TRUNC | net::MSG_ERRQUEUE;

/// What events reach.
struct Shared {
    readiness: Readiness,
    queue: WaitQueue,
    /// Of the watch that is set: events of another one mean nothing.
    generation: AtomicU32,
    /// Who used it last, a [`Cause`]: what comes is theirs.
    cause: AtomicU32,
    /// Of the Unix socket that this one is the outside of: who waits for it waits there.
    queue_of_unix: SetOnce<Arc<WaitQueue>>,
}

impl Shared {
    /// Wakes those who wait for any of these. Value: false if that takes a lock that is held, and `may_wait` is not set.
    fn wake(&self, events: u32, may_wait: bool) -> bool {
        let queue = self.queue_of_unix.get().map_or(&self.queue, |queue| &**queue);
        if may_wait {
            queue.wake_all(events);
            return true;
        }
        queue.try_wake_all(events)
    }
}

struct Registry {
    table: RcuTable<Shared>,
    free: Mutex<(usize, alloc::vec::Vec<usize>)>,
    generation: AtomicU64,
}

static REGISTRY: SetOnce<Registry> = SetOnce::new();

/// Prepares for host sockets, once.
pub fn init() {
    let registry = Registry {
        table: RcuTable::new(SOCKETS_MAX),
        free: Mutex::new((0, alloc::vec::Vec::new())),
        generation: AtomicU64::new(1),
    };
    // At boot, once.
    let _ = REGISTRY.set(registry);
}

/// A host socket's readiness changed. Value: false if telling of it takes a
/// lock that is held, and `may_wait` is not set; it is to be called again.
pub fn on_event(event: &Event, may_wait: bool) -> bool {
    let Event::Ready { cookie, events, look } = event else { return true };
    let (index, generation) = (*cookie as u32 as usize - 1, (cookie >> 32) as u32);
    let Some(shared) = REGISTRY.table.get(index) else { return true };
    if shared.generation.load(Ordering::Acquire) != generation {
        return true;
    }
    books::tell(Cause::from_word(shared.cause.load(Ordering::Relaxed)), || {
        let is_watched = || shared.generation.load(Ordering::Acquire) == generation;
        !shared.readiness.event(events & poll::ALL, *look, is_watched)
            || shared.wake(events & poll::ALL, may_wait)
    })
}

fn host() -> Result<&'static dyn HostCalls> {
    platform().host().ok_or(Errno::EAFNOSUPPORT)
}

/// What one receive brought.
struct Taken {
    len: usize,
    /// `msg_flags`.
    flags: u32,
    control_len: usize,
    /// All that was offered to the host is full, and there is room left.
    filled: bool,
}

/// Puts bytes that were received already: pages that went since they were looked at are brought in.
fn put_all(sink: &mut Sink, mut bytes: &[u8]) -> Result<()> {
    let mut last = None;
    while !bytes.is_empty() {
        let put = sink.put(bytes);
        match (put, sink.take_fault()) {
            // Brought in, and no better.
            (Err(e), Some(page)) if last.replace(page) == Some(page) => return Err(e),
            (_, Some(page)) => user::bring_in(page, true)?,
            (put, None) if put? == 0 => break,
            _ => {}
        }
        bytes = &bytes[put.unwrap_or(0)..];
    }
    Ok(())
}

/// A word for so many uses by a core ([`HostSocket::taken_by`]).
const fn uses(core: usize, times: u32) -> u32 {
    (core as u32) << 8 | times
}

/// A host socket.
pub struct HostSocket {
    fd: i32,
    stream: bool,
    shared: RcuArc<Shared>,
    slot: usize,
    /// The server's handle, while it is needed; 0: none.
    handle: AtomicU64,
    /// The request that let it go: until it is answered, the server has a descriptor of this socket too.
    let_go: SetOnce<Arc<Call>>,
    /// The core that watches it; -1: none yet.
    watcher: AtomicI32,
    /// How often another core has taken something from it since that one or a third one did, and which: [`HostSocket::taken_by`].
    elsewhere: AtomicU32,
    watching: Mutex<()>,
    listening: AtomicBool,
    /// A call was made on it that would have waited.
    waits: AtomicBool,
    /// A connection was begun, and no call of `connect` has told yet what came of it.
    connecting: AtomicBool,
    /// See [`Handle::lingers`]; and it has done so at some time, which connections that it takes may have from then.
    lingers: AtomicU32,
    has_lingered: AtomicBool,
}

impl HostSocket {
    /// This descriptor's: with the server's handle, or 0 for what the server need not be asked about.
    pub(crate) fn adopt(fd: i32, stream: bool, handle: u64) -> Arc<HostSocket> {
        let generation = REGISTRY.generation.fetch_add(1, Ordering::Relaxed) as u32;
        let shared = RcuArc::new(Shared {
            readiness: Readiness::new(),
            queue: WaitQueue::new(),
            generation: AtomicU32::new(generation),
            cause: AtomicU32::new(Cause::current().to_word()),
            queue_of_unix: SetOnce::new(),
        });
        let slot = {
            let mut free = REGISTRY.free.lock();
            free.1.pop().unwrap_or_else(|| {
                free.0 += 1;
                free.0 - 1
            })
        };
        REGISTRY.table.replace(slot, Some(shared.clone()));
        Arc::new(HostSocket {
            fd,
            stream,
            shared,
            slot,
            handle: AtomicU64::new(handle),
            let_go: SetOnce::new(),
            watcher: AtomicI32::new(-1),
            elsewhere: AtomicU32::new(0),
            watching: Mutex::new(()),
            listening: AtomicBool::new(false),
            waits: AtomicBool::new(false),
            connecting: AtomicBool::new(false),
            lingers: AtomicU32::new(0),
            has_lingered: AtomicBool::new(false),
        })
    }

    /// Makes a socket of the host.
    pub fn new(domain: u32, stream: bool, protocol: u32) -> Result<Arc<HostSocket>> {
        let mut r = Request::new(Op::Socket);
        let kind = if stream { net::SOCK_STREAM } else { net::SOCK_DGRAM };
        r.arg = [u64::from(domain), u64::from(kind), u64::from(protocol), 0];
        let (handle, fd) = descriptor_of(r, true)?;
        Ok(Self::adopt(fd, stream, handle))
    }

    /// Whoever waits for this one does so there.
    pub(crate) fn wait_at(&self, queue: &Arc<WaitQueue>) {
        // Once, by who has made it.
        let _ = self.shared.queue_of_unix.set(queue.clone());
    }

    /// Starts taking connections, or changes how many may wait. Those who connect are told of this user (SO_PEERCRED).
    pub(crate) fn listen_as(&self, backlog: u32, uid: u32, gid: u32) -> Result<()> {
        // The server's handle is kept: a further call sets another backlog.
        self.with_handle(Op::Listen, None, u64::from(backlog), (uid, gid))?;
        if self.listening.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        // What an idle socket is "ready" for is over.
        self.shared.readiness.forget();
        self.probe();
        Ok(())
    }

    /// Takes a connection.
    pub(crate) fn take_connection(&self) -> Result<(Arc<HostSocket>, Address)> {
        self.touched();
        let seen = self.shared.readiness.seen();
        let mut from = Address::empty();
        let host = host()?;
        let accepted = within(DeviceRead, || host.accept(self.fd, from.room()));
        match accepted {
            Ok((fd, n)) => {
                from.set_len(n);
                let s = Self::adopt(fd, self.stream, 0);
                let mut value = [0; 8];
                if self.has_lingered.load(Ordering::Relaxed)
                    && s.get_option(net::SOL_SOCKET, net::SO_LINGER, &mut value).is_ok()
                {
                    s.note_linger(&value);
                }
                self.took(host, seen, false);
                Ok((s, from))
            }
            Err(Errno::EAGAIN) => Err(self.nothing(seen, poll::IN | poll::RDNORM)),
            Err(e) => Err(e),
        }
    }

    /// Whom the host says a Unix socket's other end belongs to. Of processes outside the cell there are no numbers here (0).
    pub(crate) fn peer_credentials(&self) -> Credentials {
        let mut value = [0; 12];
        let known = self.get_option(net::SOL_SOCKET, net::SO_PEERCRED, &mut value).is_ok();
        match known {
            true => Credentials { pid: 0, uid: word(&value, 4), gid: word(&value, 8), started: 0 },
            false => Credentials::NOBODY,
        }
    }

    /// SO_LINGER has this value (socket(7)).
    fn note_linger(&self, value: &[u8]) {
        let seconds = if word(value, 0) != 0 { word(value, 4) } else { 0 };
        self.lingers.store(seconds, Ordering::Relaxed);
        if seconds != 0 {
            self.has_lingered.store(true, Ordering::Relaxed);
        }
    }

    /// The program takes or gives data.
    fn touched(&self) {
        self.shared.readiness.touched();
        let cause = Cause::current().to_word();
        // Mostly it is the same as before, and other cores read the line.
        if self.shared.cause.load(Ordering::Relaxed) != cause {
            self.shared.cause.store(cause, Ordering::Relaxed);
        }
    }

    fn watched(&self) -> bool {
        self.watcher.load(Ordering::Acquire) >= 0
    }

    /// Sees to it that events come, and that the state is true from now on.
    #[inline]
    fn watch(&self) {
        if !self.watched() {
            self.begin_to_watch();
        }
    }

    #[cold]
    fn begin_to_watch(&self) {
        let _one = self.watching.lock();
        if self.watched() {
            return;
        }
        let Ok(host) = host() else { return };
        self.shared.readiness.begin(host.looks(core_local().id()));
        self.set_watch(host);
    }

    /// Has this core watch it. None other does, and nobody else sets a watch.
    fn set_watch(&self, host: &dyn HostCalls) {
        let generation = self.shared.generation.load(Ordering::Relaxed);
        let cookie = (self.slot as u64 + 1) | u64::from(generation) << 32;
        if let Ok(core) = host.watch(self.fd, cookie) {
            // The watch is set: what changes from here on comes as an event. What is now, we ask for.
            self.shared.readiness.told(host.probe(self.fd));
            self.watcher.store(core as i32, Ordering::SeqCst);
        }
    }

    /// Core `me` takes something. Value: should another core watch than `watcher`, which does? Not one that isn't used any more; and who
    /// uses it is not told of each event by another core for long, which would have to wake up for that.
    #[inline]
    fn taken_by(&self, me: usize, watcher: usize) -> bool {
        let before = self.elsewhere.load(Ordering::Relaxed);
        if me == watcher {
            if before != 0 {
                self.elsewhere.store(0, Ordering::Relaxed);
            }
            return !atoll_task::is_online(watcher);
        }
        let (core, times) = (before >> 8, before & 0xff);
        let times = if core == me as u32 { (times + 1).min(FOLLOW) } else { 1 };
        self.elsewhere.store(uses(me, times), Ordering::Relaxed);
        times >= FOLLOW || !atoll_task::is_online(watcher)
    }

    /// This core watches it from now on, if the one that does is not used any more, or not for this socket.
    #[cold]
    fn watch_elsewhere(&self) {
        let _one = self.watching.lock();
        let (Ok(host), watcher) = (host(), self.watcher.load(Ordering::Relaxed)) else { return };
        if watcher < 0 {
            return;
        }
        let me = core_local().id();
        let is_used_here = self.elsewhere.load(Ordering::Relaxed) == uses(me, FOLLOW);
        let needs_not = atoll_task::is_online(watcher as usize) && !is_used_here;
        if needs_not || !atoll_task::is_online(me) {
            return;
        }
        self.elsewhere.store(0, Ordering::Relaxed);
        // Whoever takes something meanwhile sees that and notes it again.
        self.watcher.store(-1, Ordering::SeqCst);
        let generation = REGISTRY.generation.fetch_add(1, Ordering::Relaxed) as u32;
        let before = self.shared.generation.swap(generation, Ordering::AcqRel);
        if host.unwatch(self.fd, watcher as usize).is_err() {
            // It can't be, and is closed soon.
            self.shared.generation.store(before, Ordering::Release);
            return self.watcher.store(watcher, Ordering::SeqCst);
        }
        self.shared.readiness.begin_again(host.looks(me));
        // What is true at first comes as an event, also to those who have heard of it: one that came meanwhile would be lost else.
        self.set_watch(host);
        if !self.watched() {
            // The host has no room for it. Who waits asks once more.
            self.shared.wake(poll::ALL & !(poll::HUP | poll::PRI | poll::ERR), true);
        }
    }

    /// Asks the host what is true now, where events only tell of changes.
    fn probe(&self) {
        if self.watched()
            && let Ok(host) = host()
        {
            // Those who wait have not heard of it: the event that comes is news to them.
            self.shared.readiness.touched();
            self.shared.readiness.told(host.probe(self.fd));
        }
    }

    /// Something was taken by a call that began at `seen`. `all`: and nothing was left.
    #[inline]
    fn took(&self, host: &dyn HostCalls, seen: Seen, all: bool) {
        match self.watcher.load(Ordering::Acquire) {
            core if core >= 0 => {
                self.shared.readiness.took(seen, all, host.looks(core as usize));
                if self.watcher.load(Ordering::SeqCst) != core
                    || self.taken_by(core_local().id(), core as usize)
                {
                    self.took_elsewhere(host);
                }
            }
            _ => {
                self.shared.readiness.took_unwatched();
                if self.watched() {
                    // Since a moment ago.
                    self.took_elsewhere(host);
                }
            }
        }
    }

    /// Something was taken, and the core that watches is another one now or is to be.
    #[cold]
    fn took_elsewhere(&self, host: &dyn HostCalls) {
        self.watch_elsewhere();
        let _one = self.watching.lock();
        if let core @ 0.. = self.watcher.load(Ordering::Relaxed) {
            self.shared.readiness.took(self.shared.readiness.seen(), false, host.looks(core as usize));
        }
    }

    /// A call would have had to wait.
    fn nothing(&self, seen: Seen, bits: u32) -> Errno {
        match self.watcher.load(Ordering::Acquire) {
            core if core >= 0 => {
                self.shared.readiness.clear(seen, bits);
                if !atoll_task::is_online(core as usize) {
                    self.watch_elsewhere();
                }
            }
            _ => self.watch(),
        }
        Errno::EAGAIN
    }

    fn let_handle_go(&self) {
        let handle = self.handle.swap(0, Ordering::AcqRel);
        if handle != 0 {
            let mut r = Request::new(Op::Release);
            r.arg[0] = handle;
            // Nobody waits for it but who closes the socket.
            if let Ok(call) = Call::send(r) {
                let _ = self.let_go.set(call);
            }
        }
    }

    /// An attempt to connect may have succeeded: nothing more is asked of the server then.
    fn note_connection(&self) {
        let Ok(host) = host() else { return };
        if host.probe(self.fd) & (poll::OUT | poll::ERR | poll::HUP) == poll::OUT {
            self.let_handle_go();
        }
    }

    fn with_handle(&self, op: Op, addr: Option<&Address>, arg: u64, (uid, gid): (u32, u32)) -> Result<u64> {
        let handle = self.handle.load(Ordering::Acquire);
        if handle == 0 {
            return Err(Errno::EINVAL);
        }
        let mut bytes = alloc::vec::Vec::with_capacity(128);
        if let Some(a) = addr {
            bytes.extend_from_slice(a.bytes());
        }
        let mut r = Request::new(op);
        (r.uid, r.gid) = (uid, gid);
        r.arg[0] = handle;
        r.arg[1] = arg;
        r.a = extent(&bytes);
        call(r)
    }

    fn receive_any(
        &self,
        sink: &mut Sink,
        flags: u32,
        mut from: Option<&mut Address>,
        mut control: Option<&mut [u8]>,
    ) -> Result<Taken> {
        // The host drops a datagram that it can't copy.
        if !self.stream && sink.note_missing() {
            return Err(Errno::EFAULT);
        }
        self.touched();
        let seen = self.shared.readiness.seen();
        if flags & net::MSG_OOB != 0 {
            self.shared.readiness.wants_urgent();
        }
        let pages = user::pages_taken_away();
        let mut bounce = alloc::vec::Vec::new();
        let mut bufs = [HostBuf::NONE; 8];
        // Of a stream only what is in place: the rest is for another call.
        let plain = self.stream && flags & NO_PLAIN == 0;
        let n = if plain { sink.present_bufs(AT_ONCE, &mut bufs) } else { sink.host_bufs(&mut bufs) };
        let mut n = match n {
            // A call that finds nothing needs no buffer.
            Err(Errno::EFAULT) if host()?.probe(self.fd) & (poll::IN | poll::ERR | FINAL) == 0 => {
                return Err(self.nothing(seen, poll::IN | poll::RDNORM));
            }
            n => n?,
        };
        let mut asked: u64 = bufs[..n].iter().map(|b| b.len()).sum();
        // Into the runtime's own memory by way of a copy, and so a datagram for more buffers than a host call takes.
        let many = !self.stream && n == bufs.len() && asked < sink.left() as u64;
        let kernel = many || n == 0 && sink.left() > 0;
        if kernel {
            bounce = buffer(sink.left().min(if many { DATAGRAM } else { BOUNCE }))?;
            asked = bounce.len() as u64;
            bufs[0] = HostBuf::from_mut(&mut bounce);
            n = 1;
        }
        let mut room = from.as_mut().map(|a| a.room());
        let host = host()?;
        let mut receive = || {
            let (room, control) = (room.as_deref_mut(), control.as_deref_mut());
            within(DeviceRead, || host.receive(self.fd, &bufs[..n], room, control, flags))
        };
        let mut taken = receive();
        let mut still = 0;
        if seen.urgent() && flags & (net::MSG_OOB | net::MSG_ERRQUEUE) == 0 {
            // At the mark of urgent data Linux gives EAGAIN although there is more behind it, if a signal for the calling thread is
            // pending (`tcp_recvmsg_locked`). Those of the host threads are no concern of the program's.
            for _ in 0..SIGNALS_MOST {
                if !matches!(taken, Err(Errno::EAGAIN)) {
                    break;
                }
                still = host.probe(self.fd) & (poll::IN | poll::RDNORM | poll::PRI);
                if still == 0 {
                    break;
                }
                taken = receive();
            }
        }
        match taken {
            Ok(r) => {
                moved(DeviceRead, r.len as u64);
                if let Some(a) = from {
                    a.set_len(r.addr_len);
                }
                let put = r.len.min(sink.left());
                let copied = if kernel {
                    put_all(sink, &bounce[..put.min(asked as usize)])
                } else {
                    sink.advance(put);
                    Ok(())
                };
                // A stream that gave less than asked is empty (epoll(7)), if it has not ended and
                // does not stop at urgent data; pages of the buffers were no hindrance.
                let all = plain
                    && r.len > 0
                    && (r.len as u64) < asked
                    && seen.short_is_all()
                    && user::pages_taken_away() == pages;
                self.took(host, seen, all);
                copied?;
                let filled = r.len as u64 == asked && sink.left() > 0;
                Ok(Taken { len: r.len, flags: r.flags, control_len: r.control_len, filled })
            }
            Err(Errno::EAGAIN) if flags & net::MSG_ERRQUEUE != 0 => Err(self.nothing(seen, poll::ERR)),
            // The urgent byte has been announced and isn't there yet; of others this says nothing.
            Err(Errno::EAGAIN) if flags & net::MSG_OOB != 0 => Err(self.nothing(seen, poll::PRI)),
            Err(Errno::EAGAIN) if flags & net::MSG_PEEK != 0 => {
                Err(self.nothing(seen, (poll::IN | poll::RDNORM) & !still))
            }
            // It went past a mark of urgent data, if there was one that it could go past.
            Err(Errno::EAGAIN) => Err(self.nothing(seen, (poll::IN | poll::RDNORM | poll::PRI) & !still)),
            Err(Errno::EFAULT) => {
                // Pages that were never touched: the caller brings them in and comes back.
                sink.note_missing();
                Err(Errno::EFAULT)
            }
            Err(e) => {
                // The socket's pending error, perhaps: it is told once.
                self.took(host, seen, false);
                Err(e)
            }
        }
    }

    fn send_any(
        &self,
        source: &mut Source,
        to: Option<&Address>,
        control: &[u8],
        flags: u32,
    ) -> Result<usize> {
        self.touched();
        let seen = self.shared.readiness.seen();
        let mut bufs = [ReadBuf::NONE; 8];
        let n = source.host_bufs(&mut bufs)?;
        let host = host()?;
        let all: u64 = bufs[..n].iter().map(|b| b.len()).sum();
        let sent = if !self.stream && n == bufs.len() && all < source.left() as u64 {
            // A datagram goes at once, of however many buffers.
            let mut bounce = buffer(source.left().min(DATAGRAM))?;
            let got = source.copy(&mut bounce)?;
            let buf = [HostBuf::from_ref(&bounce[..got])];
            let r = within(DeviceWrite, || host.send(self.fd, &buf, to.map(|a| a.bytes()), control, flags));
            if let Ok(k) = r {
                source.advance(k);
            }
            r
        } else {
            let own = source.own().map(|bytes| [HostBuf::from_ref(bytes)]);
            let bufs = own.as_ref().map_or(&bufs[..n], |own| &own[..]);
            let r = within(DeviceWrite, || host.send(self.fd, bufs, to.map(|a| a.bytes()), control, flags));
            if let Ok(k) = r {
                source.advance(k);
            }
            r
        };
        if let Ok(n) = sent {
            moved(DeviceWrite, n as u64);
        }
        match sent {
            Err(Errno::EAGAIN) => Err(self.nothing(seen, poll::OUT | poll::WRNORM | poll::WRBAND)),
            Err(Errno::EFAULT) => {
                source.note_missing();
                Err(Errno::EFAULT)
            }
            Err(e) => {
                self.took(host, seen, false);
                Err(e)
            }
            Ok(n) => {
                atoll_task::acted();
                if self.waits.load(Ordering::Relaxed) {
                    self.shared.readiness.gave();
                }
                Ok(n)
            }
        }
    }
}

impl Drop for HostSocket {
    fn drop(&mut self) {
        REGISTRY.table.replace(self.slot, None);
        REGISTRY.free.lock().1.push(self.slot);
        if let Ok(host) = host() {
            if self.lingers() != 0 {
                // The core would wait for it.
                let _ = host.set_option(self.fd, net::SOL_SOCKET, net::SO_LINGER, &[0; 8]);
            }
            match self.watcher.load(Ordering::Acquire) {
                core if core >= 0 => host.close_watched(self.fd, core as usize),
                _ => host.close(self.fd),
            }
        }
        // When this returns, a bound port is free again and the peer knows, as after `close`: the last
        // descriptor is closed.
        let handle = self.handle.swap(0, Ordering::AcqRel);
        if handle != 0 {
            let mut r = Request::new(Op::Release);
            r.arg[0] = handle;
            let _ = call(r);
        }
        if let Some(call) = self.let_go.get() {
            let _ = call.wait();
        }
        atoll_task::acted();
    }
}

impl Handle for HostSocket {
    fn bind(&self, addr: &Address) -> Result<()> {
        self.with_handle(Op::Bind, Some(addr), 0, (0, 0)).map(drop)
    }

    fn connect(&self, addr: &Address) -> Result<()> {
        if self.stream && self.handle.load(Ordering::Acquire) == 0 {
            // It is connected, or listens. The first call after the end of an attempt still tells of that.
            let told = !self.connecting.swap(false, Ordering::AcqRel);
            return if told { Err(Errno::EISCONN) } else { Ok(()) };
        }
        // As long as it is not connected, the host knows what a call means: it begins an attempt, or
        // tells how the last one goes or went (connect(2)).
        let r = self.with_handle(Op::Connect, Some(addr), 0, (0, 0));
        atoll_task::acted();
        if self.stream {
            match r {
                Ok(_) | Err(Errno::EINPROGRESS) => {
                    self.connecting.store(r.is_err(), Ordering::Release);
                    if r.is_ok() {
                        self.let_handle_go();
                    }
                    self.shared.readiness.forget();
                    self.probe();
                    self.watch();
                }
                Err(Errno::EALREADY) => {}
                Err(_) => self.connecting.store(false, Ordering::Release),
            }
        }
        r.map(drop)
    }

    fn shutdown(&self, how: Shutdown) -> Result<()> {
        host()?.shutdown(self.fd, how as u32)?;
        atoll_task::acted();
        Ok(())
    }

    fn local(&self) -> Result<Address> {
        let mut a = Address::empty();
        let n = host()?.name(self.fd, false, a.room())?;
        a.set_len(n);
        Ok(a)
    }

    fn peer(&self) -> Result<Address> {
        let mut a = Address::empty();
        let n = host()?.name(self.fd, true, a.room())?;
        a.set_len(n);
        Ok(a)
    }

    fn get_option(&self, level: u32, name: u32, value: &mut [u8]) -> Result<usize> {
        host()?.get_option(self.fd, level, name, value)
    }

    fn set_option(&self, level: u32, name: u32, value: &[u8]) -> Result<()> {
        host()?.set_option(self.fd, level, name, value)?;
        if (level, name) == (net::SOL_SOCKET, net::SO_LINGER) && self.stream {
            self.note_linger(value);
        }
        Ok(())
    }

    fn take_error(&self) -> u32 {
        let mut value = [0; 4];
        match self.get_option(net::SOL_SOCKET, net::SO_ERROR, &mut value) {
            Ok(_) => {
                self.shared.readiness.error_told();
                let error = u32::from_ne_bytes(value);
                if error == 0 && self.connecting.load(Ordering::Acquire) {
                    self.note_connection();
                }
                error
            }
            Err(e) => e.0,
        }
    }

    fn ready(&self) -> u32 {
        self.watch();
        let probe = || host().map_or(0, |h| h.probe(self.fd));
        // Without a watch nothing that is known lasts.
        if self.watched() { self.shared.readiness.bits(probe) } else { probe() }
    }

    fn will_wait(&self) {
        if !self.waits.load(Ordering::Relaxed) {
            self.waits.store(true, Ordering::Relaxed);
            self.shared.readiness.gave();
        }
    }

    fn refresh(&self) {
        if self.watcher.load(Ordering::Acquire) != core_local().id() as i32 {
            self.probe();
        }
    }

    fn idle(&self, send: bool) -> bool {
        self.watched() && self.shared.readiness.lacks(if send { poll::OUT } else { poll::IN | poll::PRI })
    }

    fn queue(&self) -> &WaitQueue {
        self.watch();
        &self.shared.queue
    }

    fn queued(&self, out: bool) -> Result<u32> {
        host()?.queued(self.fd, out)
    }

    fn lingers(&self) -> u32 {
        self.lingers.load(Ordering::Relaxed)
    }
}

impl StreamHandle for HostSocket {
    fn listen(&self, backlog: u32) -> Result<()> {
        self.listen_as(backlog, 0, 0)
    }

    fn accept(&self) -> Result<(Arc<dyn StreamHandle>, Address)> {
        self.take_connection().map(|(s, from)| (s as Arc<dyn StreamHandle>, from))
    }

    fn receive(&self, sink: &mut Sink, flags: u32) -> Result<usize> {
        let (mut done, mut last) = (0, None);
        loop {
            match self.receive_any(sink, flags, None, None) {
                // As much as was in place, and there may be more.
                Ok(r) if r.filled && flags & NO_PLAIN == 0 => done += r.len,
                Ok(r) => return Ok(done + r.len),
                Err(Errno::EFAULT) if done > 0 => match sink.take_fault() {
                    // Brought in, and no better.
                    Some(page) if last.replace((page, done)) == Some((page, done)) => return Ok(done),
                    Some(page) if user::bring_in(page, true).is_ok() => {}
                    _ => return Ok(done),
                },
                Err(_) if done > 0 => return Ok(done),
                Err(e) => return Err(e),
            }
        }
    }

    fn send(&self, source: &mut Source, flags: u32) -> Result<usize> {
        self.send_any(source, None, &[], flags)
    }
}

impl DatagramHandle for HostSocket {
    fn receive(&self, sink: &mut Sink, control: &mut [u8], flags: u32) -> Result<Datagram> {
        let mut from = Address::empty();
        let control = if control.is_empty() { None } else { Some(control) };
        let Taken { len, flags, control_len, .. } =
            self.receive_any(sink, flags, Some(&mut from), control)?;
        Ok(Datagram { len, from, flags, control_len })
    }

    fn send(&self, source: &mut Source, to: Option<&Address>, control: &[u8], flags: u32) -> Result<usize> {
        self.send_any(source, to, control, flags)
    }
}
