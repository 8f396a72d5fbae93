//! Pipes and FIFOs (`pipe(7)`).

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicU64, Ordering};

use atoll_abi::{Errno, Result};
use atoll_mem::io::{Sink, Source};
use atoll_mem::{buffer, enlarge};
use atoll_sync::{Mutex, MutexGuard, WaitQueue};
use atoll_task::{Limit, wait};
use linux_raw_sys::{general as linux, ioctl};

use crate::node::{At, File};
use crate::types::{Attr, Time, poll};

/// Bytes that a write up to this size puts in one piece (PIPE_BUF).
const ATOMIC: usize = 4096;
/// Capacity of a new pipe, bytes.
const CAPACITY: usize = 65536;
/// Largest capacity that F_SETPIPE_SZ gives (Linux's default limit for users).
const CAPACITY_MAX: usize = 1 << 20;

/// Bytes in one run, so that they are taken and put without a look at where they turn round.
#[derive(Default)]
struct Bytes {
    store: Vec<u8>,
    /// So many of the store are gone.
    gone: usize,
}

impl Bytes {
    fn len(&self) -> usize {
        self.store.len() - self.gone
    }

    fn is_empty(&self) -> bool {
        self.store.len() == self.gone
    }

    fn get(&self) -> &[u8] {
        &self.store[self.gone..]
    }

    /// Room for `n` more, which are to be cut off again as far as they were not filled. ENOMEM: there is no memory for them.
    fn extend(&mut self, n: usize) -> Result<&mut [u8]> {
        // Those that move are no more than those that have gone since they moved last.
        if self.gone >= self.len() && self.store.len() + n > self.store.capacity() {
            self.store.drain(..self.gone);
            self.gone = 0;
        }
        let before = self.store.len();
        enlarge(&mut self.store, n)?;
        Ok(&mut self.store[before..])
    }

    /// Takes away the last `n`.
    fn cut(&mut self, n: usize) {
        self.store.truncate(self.store.len() - n);
    }

    /// Takes away the first `n`.
    fn consume(&mut self, n: usize) {
        self.gone += n;
        if self.is_empty() {
            self.store.clear();
            self.gone = 0;
            if self.store.capacity() > CAPACITY {
                self.store.shrink_to(CAPACITY);
            }
        }
    }
}

struct State {
    bytes: Bytes,
    /// Bytes ever read and written.
    taken: u64,
    put: u64,
    /// Writes that keep their limits (O_DIRECT): from, to, in bytes ever written.
    packets: VecDeque<(u64, u64)>,
    capacity: usize,
    readers: u32,
    writers: u32,
    /// Counts openings, so that a FIFO's opener sees a peer that came and went.
    reader_openings: u64,
    writer_openings: u64,
}

/// A pipe: what is written to one end is read from the other.
pub struct Pipe {
    state: Mutex<State>,
    queue: WaitQueue,
    id: u64,
    made: Time,
    /// What goes with it.
    _keeps: Option<Box<dyn Send + Sync>>,
}

static NEXT: AtomicU64 = AtomicU64::new(0x1000);

impl Pipe {
    /// An empty pipe without ends.
    pub fn new() -> Arc<Pipe> {
        Self::with(None)
    }

    fn with(keeps: Option<Box<dyn Send + Sync>>) -> Arc<Pipe> {
        Arc::new(Pipe {
            state: Mutex::new(State {
                bytes: Bytes::default(),
                taken: 0,
                put: 0,
                packets: VecDeque::new(),
                capacity: CAPACITY,
                readers: 0,
                writers: 0,
                reader_openings: 0,
                writer_openings: 0,
            }),
            queue: WaitQueue::new(),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            made: Time::now(),
            _keeps: keeps,
        })
    }

    /// A new pipe's two ends: for reading, for writing.
    /// `packets`: each write is read by itself. `keeps`: is dropped when both are.
    pub fn ends(packets: bool, keeps: Box<dyn Send + Sync>) -> (Arc<PipeEnd>, Arc<PipeEnd>) {
        let pipe = Pipe::with(Some(keeps));
        (PipeEnd::new(&pipe, true, false, false), PipeEnd::new(&pipe, false, true, packets))
    }

    fn read(&self, sink: &mut Sink, limit: Limit) -> Result<usize> {
        if sink.left() == 0 {
            return Ok(0);
        }
        wait(&self.queue, poll::IN | poll::HUP, limit, || {
            let s = self.state.lock();
            if s.bytes.is_empty() {
                return if s.writers == 0 { Some(Ok(0)) } else { None };
            }
            Some(self.take(s, sink))
        })?
    }

    /// Reads some of what is there.
    #[inline(never)]
    fn take(&self, mut s: MutexGuard<State>, sink: &mut Sink) -> Result<usize> {
        let was_full = s.room() < ATOMIC;
        let most = s.next_read();
        let done = sink.put(&s.bytes.get()[..most])?;
        s.consume(done);
        drop(s);
        if was_full {
            self.queue.wake_all(poll::OUT | poll::WRNORM);
        }
        Ok(done)
    }

    /// Copies what is there to another pipe, and leaves it here too (`tee(2)`).
    fn copy_to(&self, to: &Pipe, most: usize, nonblock: bool) -> Result<usize> {
        let limit = || if nonblock { Limit::Never } else { Limit::Forever };
        let bytes = wait(&self.queue, poll::IN | poll::HUP, limit(), || {
            let s = self.state.lock();
            if s.bytes.is_empty() && s.writers > 0 {
                return None;
            }
            let some = &s.bytes.get()[..most.min(s.bytes.len())];
            let mut copy = buffer(some.len());
            if let Ok(copy) = &mut copy {
                copy.copy_from_slice(some);
            }
            Some(copy)
        })??;
        // As much as fits at once: the rest stays for the next call.
        to.append(&mut Source::kernel(&bytes), nonblock)
    }

    /// Writes what fits, once there is room for some.
    fn append(&self, source: &mut Source, nonblock: bool) -> Result<usize> {
        let limit = if nonblock { Limit::Never } else { Limit::Forever };
        let done = wait(&self.queue, poll::OUT | poll::ERR, limit, || {
            let mut s = self.state.lock();
            if s.readers == 0 {
                return Some(Err(Errno::EPIPE));
            }
            let room = s.room();
            if room == 0 && source.left() > 0 {
                return None;
            }
            Some(s.append(source, room))
        })??;
        self.queue.wake_all(poll::IN | poll::RDNORM);
        Ok(done)
    }

    /// Waits until there is room. Value: for how many bytes.
    fn await_room(&self, nonblock: bool) -> Result<usize> {
        let limit = if nonblock { Limit::Never } else { Limit::Forever };
        wait(&self.queue, poll::OUT | poll::ERR, limit, || {
            let s = self.state.lock();
            match s.room() {
                _ if s.readers == 0 => Some(Err(Errno::EPIPE)),
                0 => None,
                room => Some(Ok(room)),
            }
        })?
    }

    fn write(&self, source: &mut Source, packets: bool, nonblock: bool) -> Result<usize> {
        let whole = source.left();
        let mut done = 0;
        while source.left() > 0 {
            let limit = if nonblock { Limit::Never } else { Limit::Forever };
            let step = wait(&self.queue, poll::OUT | poll::ERR, limit, || {
                let mut s = self.state.lock();
                if s.readers == 0 {
                    return Some(Err(Errno::EPIPE));
                }
                let room = s.room();
                // Short writes go in one piece or not at all, and so do packets.
                let piece = if packets { source.left().min(ATOMIC) } else { source.left() };
                let at_once = whole <= ATOMIC || packets;
                if room == 0 || at_once && room < piece {
                    return None;
                }
                if at_once && let Err(e) = source.ensure(piece) {
                    return Some(Err(e));
                }
                let from = s.put;
                let n = s.append(source, if packets { piece } else { room });
                if packets && s.put > from {
                    let to = s.put;
                    s.packets.push_back((from, to));
                }
                drop(s);
                self.queue.wake_all(poll::IN | poll::RDNORM);
                Some(n)
            });
            match step.and_then(|r| r) {
                Ok(n) => done += n,
                Err(_) if done > 0 => break,
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    /// `seen`: writers that had come when the end was opened; before another one comes nobody hung up.
    fn ready(&self, read: bool, write: bool, seen: u64) -> u32 {
        let s = self.state.lock();
        let mut r = 0;
        if read {
            if !s.bytes.is_empty() {
                r |= poll::IN | poll::RDNORM;
            }
            if s.writers == 0 && s.writer_openings > seen {
                r |= poll::HUP;
            }
        }
        if write {
            if s.room() >= ATOMIC {
                r |= poll::OUT | poll::WRNORM;
            }
            if s.readers == 0 {
                r |= poll::ERR;
            }
        }
        r
    }

    fn attach(&self, read: bool, write: bool) {
        let mut s = self.state.lock();
        s.readers += u32::from(read);
        s.writers += u32::from(write);
        s.reader_openings += u64::from(read);
        s.writer_openings += u64::from(write);
        drop(s);
        self.queue.wake_all(poll::ALL);
    }

    fn detach(&self, read: bool, write: bool) {
        let mut s = self.state.lock();
        s.readers -= u32::from(read);
        s.writers -= u32::from(write);
        drop(s);
        self.queue.wake_all(poll::ALL);
    }
}

impl State {
    /// Bytes that can be put.
    fn room(&self) -> usize {
        self.capacity.saturating_sub(self.bytes.len())
    }

    /// Bytes that one read takes at most: up to the end of a packet, or to the start of the next.
    fn next_read(&self) -> usize {
        match self.packets.front() {
            Some((from, to)) if *from <= self.taken => (to - self.taken) as usize,
            Some((from, _)) => (from - self.taken) as usize,
            None => self.bytes.len(),
        }
    }

    /// Drops `n` bytes that were read, and what is left of their packet.
    fn consume(&mut self, n: usize) {
        let mut gone = n as u64;
        if let Some((from, to)) = self.packets.front().copied()
            && from <= self.taken
        {
            gone = to - self.taken;
            self.packets.pop_front();
        }
        self.bytes.consume(gone as usize);
        self.taken += gone;
    }

    /// Appends up to `room` bytes of `source`, which are taken to where they stay.
    fn append(&mut self, source: &mut Source, room: usize) -> Result<usize> {
        let n = room.min(source.left());
        let done = source.take(self.bytes.extend(n)?);
        let put = done.unwrap_or(0);
        self.bytes.cut(n - put);
        self.put += put as u64;
        done
    }
}

/// One end of a pipe, or both of a FIFO opened for reading and writing.
pub struct PipeEnd {
    pipe: Arc<Pipe>,
    read: bool,
    write: bool,
    /// What it writes keeps its limits (O_DIRECT).
    packets: bool,
    /// Writers that had come before.
    seen: u64,
}

impl PipeEnd {
    fn new(pipe: &Arc<Pipe>, read: bool, write: bool, packets: bool) -> Arc<PipeEnd> {
        let seen = pipe.state.lock().writer_openings;
        pipe.attach(read, write);
        Arc::new(PipeEnd { pipe: pipe.clone(), read, write, packets, seen })
    }

    /// Copies up to `most` bytes to another pipe (`tee(2)`).
    pub fn copy_to(&self, to: &PipeEnd, most: usize, nonblock: bool) -> Result<usize> {
        if !self.read || !to.write {
            return Err(Errno::EBADF);
        }
        if self.is_same(to) {
            return Err(Errno::EINVAL);
        }
        self.pipe.copy_to(&to.pipe, most, nonblock)
    }

    /// Writes what fits, once there is room for some.
    pub fn write_some(&self, source: &mut Source, nonblock: bool) -> Result<usize> {
        self.pipe.append(source, nonblock)
    }

    /// Waits until there is room. Value: for how many bytes.
    pub fn await_room(&self, nonblock: bool) -> Result<usize> {
        self.pipe.await_room(nonblock)
    }

    /// Puts bytes back that were just read, but not written elsewhere, as those that come next.
    pub fn put_back(&self, bytes: &[u8]) {
        let mut s = self.pipe.state.lock();
        let at = s.bytes.gone;
        s.bytes.store.splice(at..at, bytes.iter().copied());
        s.taken -= bytes.len() as u64;
        drop(s);
        self.pipe.queue.wake_all(poll::IN | poll::RDNORM);
    }

    /// Are both of one pipe?
    pub fn is_same(&self, other: &PipeEnd) -> bool {
        Arc::ptr_eq(&self.pipe, &other.pipe)
    }

    /// Bytes that it can hold.
    pub fn capacity(&self) -> usize {
        self.pipe.state.lock().capacity
    }

    /// Changes what it can hold; the new capacity.
    pub fn set_capacity(&self, bytes: usize) -> Result<usize> {
        if bytes > i32::MAX as usize {
            return Err(Errno::EINVAL);
        }
        if bytes > CAPACITY_MAX {
            return Err(Errno::EPERM);
        }
        let bytes = bytes.max(ATOMIC).next_power_of_two();
        let mut s = self.pipe.state.lock();
        if bytes < s.bytes.len() {
            return Err(Errno::EBUSY);
        }
        s.capacity = bytes;
        drop(s);
        self.pipe.queue.wake_all(poll::OUT);
        Ok(bytes)
    }
}

impl File for PipeEnd {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn read(&self, sink: &mut Sink, _at: Option<u64>, nonblock: bool) -> Result<usize> {
        self.pipe.read(sink, if nonblock { Limit::Never } else { Limit::Forever })
    }

    fn write(&self, source: &mut Source, _at: At, nonblock: bool) -> Result<(usize, u64)> {
        self.pipe.write(source, self.packets, nonblock).map(|n| (n, 0))
    }

    fn attr(&self) -> Result<Attr> {
        Ok(Attr {
            ino: self.pipe.id,
            dev: 0xd,
            mode: linux::S_IFIFO | 0o600,
            nlink: 1,
            blksize: 4096,
            atime: self.pipe.made,
            mtime: self.pipe.made,
            ctime: self.pipe.made,
            ..Attr::default()
        })
    }

    fn ready(&self) -> u32 {
        self.pipe.ready(self.read, self.write, self.seen)
    }

    fn signals(&self) -> bool {
        true
    }

    fn queue(&self) -> Option<&WaitQueue> {
        Some(&self.pipe.queue)
    }

    fn control(&self, command: u32, arg: u64) -> Result<u64> {
        if command != ioctl::FIONREAD {
            return Err(Errno::ENOTTY);
        }
        let n = self.pipe.state.lock().bytes.len() as u32;
        atoll_mem::user::write(arg, &n.to_ne_bytes()).map(|()| 0)
    }

    fn describe(&self) -> Vec<u8> {
        alloc::format!("pipe:[{}]", self.pipe.id).into_bytes()
    }
}

impl Drop for PipeEnd {
    fn drop(&mut self) {
        self.pipe.detach(self.read, self.write);
    }
}

/// Pipes with names.
pub struct Fifo;

impl Fifo {
    /// Opens a FIFO's pipe, which `slot` remembers while anybody has it open (`fifo(7)`).
    pub fn open(slot: &Mutex<Weak<Pipe>>, flags: u32) -> Result<Arc<dyn File>> {
        let pipe = {
            let mut slot = slot.lock();
            slot.upgrade().unwrap_or_else(|| {
                let pipe = Pipe::new();
                *slot = Arc::downgrade(&pipe);
                pipe
            })
        };
        let mode = flags & linux::O_ACCMODE;
        let (read, write) = (mode != linux::O_WRONLY, mode != linux::O_RDONLY);
        let nonblock = flags & linux::O_NONBLOCK != 0;
        if write && !read && nonblock && pipe.state.lock().readers == 0 {
            return Err(Errno::ENXIO);
        }
        let (readers, writers) = {
            let s = pipe.state.lock();
            (s.reader_openings, s.writer_openings)
        };
        let end = PipeEnd::new(&pipe, read, write, false);
        if !nonblock && read != write {
            // Wait for the other side to open, or to have opened meanwhile.
            wait(&pipe.queue, poll::ALL, Limit::Forever, || {
                let s = pipe.state.lock();
                let there = if read {
                    s.writers > 0 || s.writer_openings > writers
                } else {
                    s.readers > 0 || s.reader_openings > readers
                };
                there.then_some(())
            })?;
        }
        Ok(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes in one run do what a queue does, and take no more room than a few times what is in them.
    #[test]
    fn bytes_are_a_queue() {
        let (mut bytes, mut model) = (Bytes::default(), VecDeque::new());
        let (mut next, mut random) = (0u8, 0x1234_5678u32);
        for round in 0..100_000 {
            random ^= random << 13;
            random ^= random >> 17;
            random ^= random << 5;
            let n = (random >> 8) as usize % [4, 300, 5000][round / 1000 % 3];
            if random & 1 == 0 && model.len() + n <= CAPACITY {
                let filled = if random & 2 == 0 { n } else { n / 2 };
                for place in &mut bytes.extend(n).unwrap()[..filled] {
                    next = next.wrapping_add(1);
                    *place = next;
                    model.push_back(next);
                }
                bytes.cut(n - filled);
            } else {
                let n = n.min(model.len());
                bytes.consume(n);
                model.drain(..n);
            }
            assert_eq!((bytes.len(), bytes.is_empty()), (model.len(), model.is_empty()));
            assert!(model.iter().eq(bytes.get()));
            assert!(bytes.store.capacity() <= 4 * CAPACITY);
        }
    }
}
