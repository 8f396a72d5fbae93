//! Pipes and FIFOs (`pipe(7)`).

use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicU64, Ordering};

use atoll_abi::{Errno, Result};
use atoll_mem::io::{Sink, Source};
use atoll_sync::{Mutex, WaitQueue};
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

struct State {
    bytes: VecDeque<u8>,
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
}

static NEXT: AtomicU64 = AtomicU64::new(0x1000);

impl Pipe {
    /// An empty pipe without ends.
    pub fn new() -> Arc<Pipe> {
        Arc::new(Pipe {
            state: Mutex::new(State {
                bytes: VecDeque::new(),
                capacity: CAPACITY,
                readers: 0,
                writers: 0,
                reader_openings: 0,
                writer_openings: 0,
            }),
            queue: WaitQueue::new(),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            made: Time::now(),
        })
    }

    /// A new pipe's two ends: for reading, for writing.
    pub fn ends() -> (Arc<PipeEnd>, Arc<PipeEnd>) {
        let pipe = Pipe::new();
        (PipeEnd::new(&pipe, true, false), PipeEnd::new(&pipe, false, true))
    }

    fn read(&self, sink: &mut Sink, limit: Limit) -> Result<usize> {
        if sink.left() == 0 {
            return Ok(0);
        }
        wait(&self.queue, poll::IN | poll::HUP, limit, || {
            let mut s = self.state.lock();
            if s.bytes.is_empty() {
                return if s.writers == 0 { Some(Ok(0)) } else { None };
            }
            let was_full = s.capacity.saturating_sub(s.bytes.len()) < ATOMIC;
            let mut done = 0;
            let (first, second) = s.bytes.as_slices();
            for part in [first, second] {
                match sink.put(part) {
                    Ok(n) => {
                        done += n;
                        if n < part.len() {
                            break;
                        }
                    }
                    Err(e) if done == 0 => return Some(Err(e)),
                    Err(_) => break,
                }
            }
            s.bytes.drain(..done);
            if s.bytes.is_empty() && s.bytes.capacity() > CAPACITY {
                s.bytes.shrink_to(CAPACITY);
            }
            drop(s);
            if was_full {
                self.queue.wake_all(poll::OUT | poll::WRNORM);
            }
            Some(Ok(done))
        })?
    }

    fn write(&self, source: &mut Source, nonblock: bool) -> Result<usize> {
        let whole = source.left();
        let mut done = 0;
        while source.left() > 0 {
            let limit = if nonblock { Limit::Never } else { Limit::Forever };
            let step = wait(&self.queue, poll::OUT | poll::ERR, limit, || {
                let mut s = self.state.lock();
                if s.readers == 0 {
                    return Some(Err(Errno::EPIPE));
                }
                let room = s.capacity.saturating_sub(s.bytes.len());
                // Short writes go in one piece or not at all.
                if room == 0 || (whole <= ATOMIC && room < source.left()) {
                    return None;
                }
                let n = take_into(&mut s.bytes, source, room);
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

    fn ready(&self, read: bool, write: bool) -> u32 {
        let s = self.state.lock();
        let mut r = 0;
        if read {
            if !s.bytes.is_empty() {
                r |= poll::IN | poll::RDNORM;
            }
            if s.writers == 0 && (s.writer_openings > 0 || !write) {
                r |= poll::HUP;
            }
        }
        if write {
            if s.capacity.saturating_sub(s.bytes.len()) >= ATOMIC {
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

/// Appends up to `room` bytes of `source`.
fn take_into(bytes: &mut VecDeque<u8>, source: &mut Source, room: usize) -> Result<usize> {
    let mut buf = [0u8; 1024];
    let mut done = 0;
    while done < room && source.left() > 0 {
        let n = buf.len().min(room - done).min(source.left());
        match source.take(&mut buf[..n]) {
            Ok(k) => {
                bytes.extend(&buf[..k]);
                done += k;
                if k < n {
                    break;
                }
            }
            Err(e) if done == 0 => return Err(e),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// One end of a pipe, or both of a FIFO opened for reading and writing.
pub struct PipeEnd {
    pipe: Arc<Pipe>,
    read: bool,
    write: bool,
}

impl PipeEnd {
    fn new(pipe: &Arc<Pipe>, read: bool, write: bool) -> Arc<PipeEnd> {
        pipe.attach(read, write);
        Arc::new(PipeEnd { pipe: pipe.clone(), read, write })
    }

    /// Bytes that it can hold.
    pub fn capacity(&self) -> usize {
        self.pipe.state.lock().capacity
    }

    /// Changes what it can hold; the new capacity.
    pub fn set_capacity(&self, bytes: usize) -> Result<usize> {
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
        self.pipe.write(source, nonblock).map(|n| (n, 0))
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
        self.pipe.ready(self.read, self.write)
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
        let end = PipeEnd::new(&pipe, read, write);
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
