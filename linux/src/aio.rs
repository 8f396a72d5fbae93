//! Linux's own asynchronous I/O (`io_setup(2)`, `io_submit(2)`, fs/aio.c), as libaio uses it.
//!
//! A context's ring of completions lies in memory that its program has mapped, at the address that names the context: programs may
//! take events out by themselves. What they write there harms nobody else: where the next event goes is known here, and how many
//! were taken is only believed as far as it is a place in the ring.
//!
//! Reads, writes and flushes are done by `io_submit`, as Linux does for all files that go through its page cache, for pipes and for
//! sockets; only IOCB_CMD_POLL goes on behind it. Whatever they have to wait for, their thread does, and its core runs others.
#![allow(unsafe_code, reason = "a context's ring is shared with its program")]

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use atoll_abi::core_local::core_local;
use atoll_abi::grid::Resource;
use atoll_abi::layout::{is_user_range, page_up};
use atoll_abi::platform::Access;
use atoll_abi::{Errno, Result, platform};
use atoll_fs::{FileType, Sink, Source, poll};
use atoll_mem::heap::{give_pages, memory, take_fixed_pages};
use atoll_mem::io::Piece;
use atoll_mem::pages::CHUNK_ORDER;
use atoll_mem::user;
use atoll_mem::vm::{Kind, MapRequest, Object, Place, SLOT};
use atoll_sync::{Mutex, Shared, WaitQueue, Wake, WakeKey};
use atoll_task::{Activity, Labels, Limit, wait, wait_uninterrupted};
use zerocopy::IntoBytes;

use crate::event::EventFd;
use crate::files::FileRef;
use crate::proc::Number;
use crate::process::Space;
use crate::signal;
use crate::socket::SocketFile;
use crate::syscalls::Call;
use crate::syscalls::fd::{Pieces, READ_FLAGS, TRANSFER_MAX, WRITE_FLAGS, read_flagged, write_flagged};
use crate::syscalls::poll::masked;
use crate::types::{AioSigset, Iocb, Timespec, get, put};

/// Requests for which there may be contexts, in all (`/proc/sys/fs/aio-max-nr`).
pub static REQUESTS_MAX: Number = Number::new(65536, 0, u64::MAX);
/// And for which there are (`/proc/sys/fs/aio-nr`). Changed under the lock.
static REQUESTS: Mutex<u64> = Mutex::new(0);

/// Operations (linux/aio_abi.h).
mod command {
    pub const PREAD: u16 = 0;
    pub const PWRITE: u16 = 1;
    pub const FSYNC: u16 = 2;
    pub const FDSYNC: u16 = 3;
    pub const POLL: u16 = 5;
    pub const PREADV: u16 = 7;
    pub const PWRITEV: u16 = 8;
}
const IOCB_FLAG_RESFD: u32 = 1;
const IOCB_FLAG_IOPRIO: u32 = 2;

/// Words of the ring's header (`struct aio_ring`).
mod word {
    pub const NUMBER: usize = 1;
    pub const HEAD: usize = 2;
    pub const TAIL: usize = 3;
    pub const MAGIC: usize = 4;
    pub const COMPATIBLE: usize = 5;
    pub const HEADER: usize = 7;
}
/// Bytes of the header, and of an event.
const HEADER: u64 = 32;
const EVENT: u64 = 32;
const MAGIC: u32 = 0xa10a_10a1;
/// The longest ring, events (0x10000000 bytes, as on Linux).
const EVENTS_MAX: u32 = 0x1000_0000 / EVENT as u32;
/// How often events are taken anew that somebody else has taken meanwhile.
const TRIES: u32 = 64;
/// Events that are given to a program at once.
const BATCH: usize = 32;

/// An event: what the program said of the request, its address, and two results.
type Event = [u64; 4];

/// The ring: pages that stay where they are, which a program may have mapped.
struct Ring {
    chunks: Vec<u64>,
    /// Bytes.
    len: u64,
    /// Places for events. One of them is always free.
    events: u32,
}

impl Ring {
    /// One for so many events at least.
    fn new(events: u64) -> Result<Ring> {
        let len = page_up(HEADER + EVENT * events);
        let mut ring = Ring { chunks: Vec::new(), len, events: ((len - HEADER) / EVENT) as u32 };
        for _ in 0..len.div_ceil(SLOT) {
            ring.chunks.push(take_fixed_pages(CHUNK_ORDER).ok_or(Errno::ENOMEM)?);
        }
        ring.word(word::NUMBER).store(ring.events, Ordering::Relaxed);
        ring.word(word::MAGIC).store(MAGIC, Ordering::Relaxed);
        ring.word(word::COMPATIBLE).store(1, Ordering::Relaxed);
        ring.word(word::HEADER).store(HEADER as u32, Ordering::Relaxed);
        Ok(ring)
    }

    /// A word of the header.
    fn word(&self, n: usize) -> &AtomicU32 {
        debug_assert!((n as u64) < HEADER / 4);
        let at = memory().address(self.chunks[0]).cast::<u32>();
        // SAFETY: in the ring's own pages, which it has as long as it is there; what a program does to them is atomic, too.
        unsafe { AtomicU32::from_ptr(at.add(n)) }
    }

    /// A place for an event. They don't cross the borders of chunks.
    fn event(&self, n: u32) -> &[AtomicU64; 4] {
        assert!(n < self.events);
        let offset = HEADER + EVENT * u64::from(n);
        let at = memory().address(self.chunks[(offset / SLOT) as usize] + offset % SLOT);
        // SAFETY: as above.
        unsafe { &*at.cast() }
    }

    /// The place of the event that is taken next, as the program says.
    fn head(&self) -> u32 {
        self.word(word::HEAD).load(Ordering::Acquire) % self.events
    }

    /// Places from one to another one.
    fn between(&self, head: u32, tail: u32) -> u32 {
        if tail >= head { tail - head } else { tail + self.events - head }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.chunks.iter().for_each(|chunk| give_pages(*chunk, CHUNK_ORDER));
    }
}

impl Object for Ring {
    fn chunk(&self, offset: u64) -> Result<u64> {
        self.chunks.get((offset / SLOT) as usize).copied().ok_or(Errno::EFAULT)
    }

    fn size(&self) -> u64 {
        self.len
    }

    fn mapped(&self, _by: i32) {}
}

/// A context.
pub struct Context {
    ring: Arc<Ring>,
    /// Where the ring is mapped.
    address: u64,
    /// Requests it was asked for, which count in [`REQUESTS`].
    requests: u64,
    /// Where the next event goes. Changed under the lock.
    tail: AtomicU32,
    /// Requests that have a place in the ring and no event there yet.
    pending: Mutex<u32>,
    is_over: AtomicBool,
    /// Requests that wait for files to become ready.
    polling: Mutex<Vec<Arc<Polling>>>,
    /// What such requests held that are done. A core's event thread must not be the one that has the last reference to a file, which may
    /// have to wait for what comes by that thread: it stays until the program next takes events, submits some, or ends.
    spent: Mutex<Vec<(Request, FileRef)>>,
    /// Those who wait for events, and, by another bit, for all requests to be done.
    queue: WaitQueue,
}

/// What waiters of a context wait for.
const EVENTS: u32 = 1;
const DONE: u32 = 2;

/// The contexts of a space, by their rings' addresses.
pub type Contexts = Shared<BTreeMap<u64, Arc<Context>>>;

/// A request, as far as its event tells of it.
struct Request {
    data: u64,
    iocb: u64,
    /// Counts events (IOCB_FLAG_RESFD).
    counter: Option<FileRef>,
}

impl Context {
    /// EAGAIN: more requests than there may be.
    fn new(requests: u64, ring: Arc<Ring>, address: u64) -> Result<Arc<Context>> {
        let mut all = REQUESTS.lock();
        if *all + requests > REQUESTS_MAX.get() {
            return Err(Errno::EAGAIN);
        }
        *all += requests;
        Ok(Arc::new(Context {
            ring,
            address,
            requests,
            tail: AtomicU32::new(0),
            pending: Mutex::new(0),
            is_over: AtomicBool::new(false),
            polling: Mutex::new(Vec::new()),
            spent: Mutex::new(Vec::new()),
            queue: WaitQueue::new(),
        }))
    }

    /// Events that can be taken.
    fn waiting(&self) -> u32 {
        self.ring.between(self.ring.head(), self.tail.load(Ordering::Acquire))
    }

    /// Keeps a place in the ring for a request. EAGAIN: there is none; EINVAL: the context is over.
    fn reserve(&self) -> Result<()> {
        let mut pending = self.pending.lock();
        if self.is_over.load(Ordering::Relaxed) {
            return Err(Errno::EINVAL);
        }
        if *pending + self.waiting() >= self.ring.events - 1 {
            return Err(Errno::EAGAIN);
        }
        *pending += 1;
        Ok(())
    }

    /// A place that was kept is not needed, or has its event.
    fn release(&self, pending: &mut u32) {
        *pending -= 1;
        if *pending == 0 {
            self.queue.wake_all(DONE);
        }
    }

    /// Puts a request's event into the ring.
    fn complete(&self, request: &Request, result: i64) {
        let mut pending = self.pending.lock();
        let tail = self.tail.load(Ordering::Relaxed);
        let event: Event = [request.data, request.iocb, result as u64, 0];
        for (place, value) in self.ring.event(tail).iter().zip(event) {
            place.store(value, Ordering::Relaxed);
        }
        let next = (tail + 1) % self.ring.events;
        self.tail.store(next, Ordering::Release);
        // Whoever sees it there sees the event, too.
        self.ring.word(word::TAIL).store(next, Ordering::Release);
        self.release(&mut pending);
        drop(pending);
        if let Some(counter) = request.counter.as_ref().and_then(|file| file.as_type::<EventFd>()) {
            counter.signal();
        }
        self.queue.wake_all(EVENTS);
    }

    /// Gives the program up to `most` events. Several threads, and the program itself, may take some at the same time: who moves the
    /// head has taken them.
    fn take(&self, to: u64, most: u64) -> Result<u64> {
        self.spent.lock().clear();
        let (mut taken, mut tries) = (0, 0);
        while taken < most {
            let word = self.ring.word(word::HEAD);
            let said = word.load(Ordering::Acquire);
            let (head, tail) = (said % self.ring.events, self.tail.load(Ordering::Acquire));
            let count = u64::from(self.ring.between(head, tail)).min(most - taken).min(BATCH as u64);
            if count == 0 {
                break;
            }
            let mut events = [Event::default(); BATCH];
            for (n, event) in events[..count as usize].iter_mut().enumerate() {
                let place = self.ring.event((head + n as u32) % self.ring.events);
                *event = place.each_ref().map(|word| word.load(Ordering::Relaxed));
            }
            match user::write(to.wrapping_add(taken * EVENT), events[..count as usize].as_bytes()) {
                Err(_) if taken > 0 => break,
                written => written?,
            }
            let next = (head + count as u32) % self.ring.events;
            if word.compare_exchange(said, next, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                taken += count;
            } else {
                // A program that changes the word each time, with the events themselves perhaps, gets some of them twice.
                tries += 1;
                if tries == TRIES {
                    word.store(next, Ordering::Release);
                    return Ok(taken + count);
                }
            }
        }
        Ok(taken)
    }

    /// Begins no more, gives up what waits for files, and waits for the rest.
    fn end(&self) {
        {
            let _pending = self.pending.lock();
            self.is_over.store(true, Ordering::Relaxed);
        }
        let polling = core::mem::take(&mut *self.polling.lock());
        polling.iter().for_each(|request| request.finish(0));
        self.queue.wake_all(EVENTS);
        wait_uninterrupted(&self.queue, DONE, || (*self.pending.lock() == 0).then_some(()));
        self.spent.lock().clear();
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        core::mem::take(self.polling.get_mut()).iter().for_each(|request| request.finish(0));
        *REQUESTS.lock() -= self.requests;
    }
}

/// A request that waits for a file to become ready (IOCB_CMD_POLL).
struct Polling {
    context: Weak<Context>,
    /// The request and its file; None: it is done.
    open: Mutex<Option<(Request, FileRef)>>,
    events: u32,
    /// A look at it is under way.
    noted: AtomicBool,
    /// Whose request it is.
    activity: Activity,
    me: Weak<Polling>,
}

impl Polling {
    fn begin(context: &Arc<Context>, request: Request, file: FileRef, events: u32) {
        let inner = file.file().clone();
        let Some(queue) = inner.queue() else {
            // It is always ready.
            return context.complete(&request, (inner.ready() & events).into());
        };
        let polling = Arc::new_cyclic(|me: &Weak<Polling>| Polling {
            context: Arc::downgrade(context),
            open: Mutex::new(Some((request, file))),
            events,
            noted: AtomicBool::new(false),
            activity: atoll_task::for_whom(),
            me: me.clone(),
        });
        // Never both locks at once: a core's event thread takes either, and is not to wait long.
        context.polling.lock().push(polling.clone());
        let me: Arc<dyn Wake> = polling.clone();
        queue.add(me.clone(), 0, events);
        let is_done = polling.open.lock().is_none();
        if is_done {
            // It was given up before it was in the queue.
            return queue.remove(&me, 0);
        }
        polling.look();
        if context.is_over.load(Ordering::SeqCst) {
            // It may have come too late to be given up with the others.
            polling.finish(0);
        }
    }

    /// Is its file ready?
    fn look(&self) {
        self.noted.store(false, Ordering::SeqCst);
        let file = self.open.lock().as_ref().map(|(_, file)| file.clone());
        let ready = file.map_or(0, |file| file.file().ready() & self.events);
        if ready != 0 {
            self.finish(ready);
        }
    }

    /// It is done, if it isn't yet.
    fn finish(&self, ready: u32) {
        let Some((request, file)) = self.open.lock().take() else { return };
        let (me, context) = (self.me.upgrade(), self.context.upgrade());
        if let (Some(me), Some(queue)) = (me.clone(), file.file().queue()) {
            let me: Arc<dyn Wake> = me;
            queue.remove(&me, 0);
        }
        let Some(context) = context else { return };
        if let Some(me) = me {
            context.polling.lock().retain(|other| !Arc::ptr_eq(other, &me));
        }
        context.complete(&request, ready.into());
        context.spent.lock().push((request, file));
    }
}

impl Wake for Polling {
    fn wake(&self, _key: WakeKey, _events: u32, may_wait: bool) -> bool {
        if !may_wait {
            return false;
        }
        // The queue is locked: somebody else looks.
        if !self.noted.swap(true, Ordering::SeqCst)
            && let Some(me) = self.me.upgrade()
        {
            // Not for whoever has made the file ready.
            let (activity, here) = (self.activity.clone(), core_local().id());
            atoll_task::send_for(activity, here, Labels::NONE, Resource::Wait, move || me.look());
        }
        true
    }
}

/// A program has left a space: its contexts end with it (`execve(2)`, `_exit(2)`).
pub fn leave(space: &Space) {
    let all = core::mem::take(&mut *space.contexts.write());
    all.values().for_each(|context| context.end());
}

/// `/proc/sys/fs/aio-nr`.
pub fn requests() -> u64 {
    *REQUESTS.lock()
}

/// The context that an argument names.
fn context(c: &Call, id: u64) -> Result<Arc<Context>> {
    c.task.space.contexts.read().get(&id).cloned().ok_or(Errno::EINVAL)
}

/// `io_setup(2)`.
pub fn io_setup(c: &mut Call) -> Result<u64> {
    let (requests, to) = (c.uint(0), c.arg(1));
    let before: u64 = get(to)?;
    if before != 0 || requests == 0 {
        return Err(Errno::EINVAL);
    }
    // Each core may keep some that it does not use: as Linux counts them, which has 32 bits for it.
    let events = requests.max(atoll_task::cores() as u32 * 4).wrapping_mul(2);
    if events > EVENTS_MAX {
        return Err(Errno::EINVAL);
    }
    let requests = u64::from(requests);
    if events == 0 || requests > REQUESTS_MAX.get() {
        return Err(Errno::EAGAIN);
    }
    let ring = Arc::new(Ring::new(u64::from(events) + 2)?);
    let memory = &c.task.space.memory;
    let address = memory.map(MapRequest {
        addr: 0,
        len: ring.len,
        access: Access::READ | Access::WRITE,
        shared: true,
        kind: Kind::Object { object: ring.clone(), file: None, offset: 0 },
        place: Place::Hint,
        name: "/[aio] (deleted)",
        populate: true,
        ..MapRequest::default()
    })?;
    let len = ring.len;
    let made = Context::new(requests, ring, address).and_then(|made| put(to, &address).map(|()| made));
    match made {
        Ok(made) => {
            // One whose ring was unmapped has left its place.
            let old = c.task.space.contexts.write().insert(address, made);
            if let Some(old) = old {
                old.end();
            }
            Ok(0)
        }
        Err(e) => {
            memory.unmap(address, len)?;
            Err(e)
        }
    }
}

/// `io_destroy(2)`.
pub fn io_destroy(c: &mut Call) -> Result<u64> {
    let gone = c.task.space.contexts.write().remove(&c.arg(0)).ok_or(Errno::EINVAL)?;
    gone.end();
    c.task.space.memory.unmap(gone.address, gone.ring.len).map(|()| 0)
}

/// `io_submit(2)`.
pub fn io_submit(c: &mut Call) -> Result<u64> {
    let (count, list) = (c.arg(1) as i64, c.arg(2));
    if count < 0 {
        return Err(Errno::EINVAL);
    }
    let context = context(c, c.arg(0))?;
    context.spent.lock().clear();
    let count = (count as u64).min(context.ring.events.into());
    for n in 0..count {
        match get(list.wrapping_add(n * 8)).and_then(|iocb| submit(c, &context, iocb)) {
            Ok(()) => {}
            Err(e) if n == 0 => return Err(e),
            Err(_) => return Ok(n),
        }
    }
    Ok(count)
}

/// Submits one request.
fn submit(c: &Call, context: &Arc<Context>, at: u64) -> Result<()> {
    let iocb: Iocb = get(at)?;
    if iocb.reserved2 != 0 || (iocb.nbytes as i64) < 0 {
        return Err(Errno::EINVAL);
    }
    context.reserve()?;
    begin(c, context, at, &iocb).inspect_err(|_| context.release(&mut context.pending.lock()))
}

/// Does what a request asks for, or has it done. An error is one of the request, for which there is no event.
fn begin(c: &Call, context: &Arc<Context>, at: u64, iocb: &Iocb) -> Result<()> {
    let file = c.task.files.get_open(iocb.fildes)?;
    let mut counter = None;
    if iocb.flags & IOCB_FLAG_RESFD != 0 {
        let file = c.task.files.get_open(iocb.resfd)?;
        file.as_type::<EventFd>().ok_or(Errno::EINVAL)?;
        counter = Some(file);
    }
    // KIOCB_KEY, by which io_cancel knows that it was submitted.
    put(at + 8, &0u32)?;
    let request = Request { data: iocb.data, iocb: at, counter };
    let result = match iocb.opcode {
        command::PREAD | command::PREADV | command::PWRITE | command::PWRITEV => {
            transfer(c, &file, iocb)?.map(|n| n as i64)
        }
        command::FSYNC | command::FDSYNC => {
            if iocb.buf != 0 || iocb.offset != 0 || iocb.nbytes != 0 || iocb.rw_flags != 0 {
                return Err(Errno::EINVAL);
            }
            match file.sync(iocb.opcode == command::FDSYNC) {
                // There is nothing to flush in such a file.
                Err(Errno::EINVAL) => return Err(Errno::EINVAL),
                done => done.map(|()| 0),
            }
        }
        command::POLL => {
            if iocb.buf > 0xffff || iocb.offset != 0 || iocb.nbytes != 0 || iocb.rw_flags != 0 {
                return Err(Errno::EINVAL);
            }
            let events = iocb.buf as u32 | poll::ERR | poll::HUP;
            Polling::begin(context, request, file, events);
            return Ok(());
        }
        _ => return Err(Errno::EINVAL),
    };
    let result = result.unwrap_or_else(|e| match e {
        // Nobody would begin it again.
        Errno::RESTART | Errno::RESTART_NOHAND => Errno::EINTR.to_ret(),
        e => e.to_ret(),
    });
    context.complete(&request, result);
    Ok(())
}

/// Reads or writes. The outer error is one of the request, the inner one what has come of it.
fn transfer(c: &Call, file: &FileRef, iocb: &Iocb) -> Result<Result<u64>> {
    let reads = matches!(iocb.opcode, command::PREAD | command::PREADV);
    if iocb.flags & IOCB_FLAG_IOPRIO != 0 {
        // As `ioprio_set(2)` checks it, which is a hint to disks.
        let (class, level) = (iocb.reqprio as u16 >> 13, iocb.reqprio & 7);
        if class > 3 || class == 0 && level != 0 {
            return Err(Errno::EINVAL);
        }
    }
    if iocb.rw_flags & !(if reads { READ_FLAGS } else { WRITE_FLAGS }) != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    if !(if reads { file.readable() } else { file.writable() }) {
        return Err(Errno::EBADF);
    }
    if file.attr().is_ok_and(|attr| attr.kind() == FileType::Directory) {
        return Err(Errno::EINVAL);
    }
    let mut room = Pieces::default();
    let one;
    let list = if matches!(iocb.opcode, command::PREADV | command::PWRITEV) {
        room.read(iocb.buf, iocb.nbytes)?
    } else {
        if !is_user_range(iocb.buf, iocb.nbytes) {
            return Err(Errno::EFAULT);
        }
        one = [Piece { addr: iocb.buf, len: iocb.nbytes.min(TRANSFER_MAX) }];
        &one
    };
    if iocb.offset < 0 {
        return Err(Errno::EINVAL);
    }
    let has_positions = file.file().seekable() || file.file().keeps_position();
    if !has_positions && iocb.offset != 0 && file.as_type::<SocketFile>().is_some() {
        return Ok(Err(Errno::ESPIPE));
    }
    let offset = has_positions.then_some(iocb.offset as u64);
    Ok(if reads {
        read_flagged(file, &mut Sink::user(list), offset, iocb.rw_flags)
    } else {
        write_flagged(c.task, file, &mut Source::user(list), offset, iocb.rw_flags)
    })
}

/// `io_cancel(2)`: only what waits for a file can be cancelled, and then its event comes (EINPROGRESS).
pub fn io_cancel(c: &mut Call) -> Result<u64> {
    let (id, iocb) = (c.arg(0), c.arg(1));
    let key: u32 = get(iocb.wrapping_add(8))?;
    if key != 0 {
        return Err(Errno::EINVAL);
    }
    let context = context(c, id)?;
    let is_it = |polling: &Arc<Polling>| {
        polling.open.lock().as_ref().is_some_and(|(request, _)| request.iocb == iocb)
    };
    // Never both locks at once.
    let all: Vec<Arc<Polling>> = context.polling.lock().clone();
    let found = all.into_iter().find(is_it).ok_or(Errno::EINVAL)?;
    found.finish(0);
    Err(Errno::EINPROGRESS)
}

/// Waits for events as `io_getevents(2)` does. RESTART: a signal came first.
fn get_events(c: &Call) -> Result<u64> {
    let (least, most, to) = (c.arg(1) as i64, c.arg(2) as i64, c.arg(3));
    let limit = if c.arg(4) == 0 {
        Limit::Forever
    } else {
        let time: Timespec = get(c.arg(4))?;
        let ns = i128::from(time.sec) * 1_000_000_000 + i128::from(time.nsec);
        let ns = ns.clamp(0, u64::MAX.into()) as u64;
        if ns == 0 { Limit::Never } else { Limit::Until(platform().now().saturating_add(ns)) }
    };
    let context = context(c, c.arg(0))?;
    if least < 0 || least > most {
        return Err(Errno::EINVAL);
    }
    let (least, most) = (least as u64, most as u64);
    let mut taken = context.take(to, most)?;
    while taken < least {
        let wanted = (least - taken).min(u64::from(context.ring.events) - 1) as u32;
        let is_over = || context.is_over.load(Ordering::Relaxed);
        let waited =
            wait(&context.queue, EVENTS, limit, || (context.waiting() >= wanted || is_over()).then_some(()));
        if is_over() {
            return if taken > 0 { Ok(taken) } else { Err(Errno::EINVAL) };
        }
        if waited == Err(Errno::RESTART) && signal::was_for_nothing(c.task) {
            continue;
        }
        taken += match context.take(to.wrapping_add(taken * EVENT), most - taken) {
            Err(_) if taken > 0 => return Ok(taken),
            more => more?,
        };
        match waited {
            Ok(()) => {}
            Err(Errno::RESTART) if taken == 0 => return Err(Errno::RESTART),
            // Time is up, or a signal has come.
            Err(_) => break,
        }
    }
    Ok(taken)
}

/// `io_getevents(2)`.
pub fn io_getevents(c: &mut Call) -> Result<u64> {
    get_events(c).map_err(|e| if e == Errno::RESTART { Errno::EINTR } else { e })
}

/// `io_pgetevents(2)`.
pub fn io_pgetevents(c: &mut Call) -> Result<u64> {
    let set: AioSigset = if c.arg(5) == 0 { AioSigset::default() } else { get(c.arg(5))? };
    masked(c.task, set.mask, set.size, || {
        get_events(c).map_err(|e| if e == Errno::RESTART { Errno::RESTART_NOHAND } else { e })
    })
}
