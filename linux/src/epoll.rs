//! `epoll(7)`.
//!
//! An instance keeps what it watches (under `watched`) and which of it may be
//! ready (under `ready`). A watched file's wait queue calls back with only the
//! item's number; that puts the item on the ready list and wakes a waiter. So
//! waiting costs by what is ready, not by what is watched.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;

use atoll_abi::{Errno, Result};
use atoll_fs::{File, OpenFile, poll};
use atoll_sync::{Mutex, RcuArc, WaitQueue, Wake, WakeKey};
use atoll_task::{Limit, wait};
use linux_raw_sys::general as linux;

use crate::files::FileRef;
use crate::types::EpollEvent;

/// Events that are always reported.
/// What may be asked for together with EPOLLEXCLUSIVE.
const EXCLUSIVE_WITH: u32 = poll::IN
    | poll::OUT
    | poll::ERR
    | poll::HUP
    | linux::EPOLLWAKEUP
    | linux::EPOLLET
    | linux::EPOLLEXCLUSIVE;
const ALWAYS: u32 = poll::ERR | poll::HUP;
/// Longest chain of instances that watch each other (EP_MAX_NESTS).
const NESTS_MAX: u32 = 5;

struct Item {
    fd: u32,
    file: Weak<dyn File>,
    /// Which opening it is: a descriptor can be closed and used again.
    opening: usize,
    events: u32,
    data: u64,
    /// Disarmed after it was reported (EPOLLONESHOT).
    disarmed: bool,
}

#[derive(Default)]
struct Watched {
    items: BTreeMap<WakeKey, Item>,
    by_fd: BTreeMap<(u32, usize), WakeKey>,
    next: WakeKey,
}

struct Ready {
    list: VecDeque<WakeKey>,
    /// On the list already.
    queued: hashbrown::HashSet<WakeKey>,
}

/// What the callbacks reach.
struct Shared {
    ready: Mutex<Ready>,
    queue: WaitQueue,
}

impl Wake for Shared {
    fn wake(&self, key: WakeKey, _events: u32) {
        let mut r = self.ready.lock();
        if r.queued.insert(key) {
            r.list.push_back(key);
        }
        drop(r);
        self.queue.wake_one(poll::IN);
    }
}

/// An instance.
pub struct Epoll {
    watched: Mutex<Watched>,
    shared: Arc<Shared>,
}

fn callback(shared: &Arc<Shared>) -> Arc<dyn Wake> {
    shared.clone()
}

impl Epoll {
    /// Watches nothing.
    pub fn new() -> Self {
        Epoll {
            watched: Mutex::new(Watched::default()),
            shared: Arc::new(Shared {
                ready: Mutex::new(Ready { list: VecDeque::new(), queued: hashbrown::HashSet::new() }),
                queue: WaitQueue::new(),
            }),
        }
    }

    /// `epoll_ctl(2)`.
    pub fn control(&self, operation: u32, fd: u32, file: &FileRef, event: Option<EpollEvent>) -> Result<()> {
        let opening = file.addr();
        let mut w = self.watched.lock();
        let mut key = w.by_fd.get(&(fd, opening)).copied();
        if let Some(k) = key
            && w.items.get(&k).is_none_or(|i| i.file.strong_count() == 0)
        {
            // What was watched is gone, and its address serves another file now.
            w.items.remove(&k);
            w.by_fd.remove(&(fd, opening));
            key = None;
        }
        match operation {
            linux::EPOLL_CTL_ADD => {
                let event = event.ok_or(Errno::EFAULT)?;
                if key.is_some() {
                    return Err(Errno::EEXIST);
                }
                let inner = file.file();
                let Some(queue) = inner.queue() else { return Err(Errno::EPERM) };
                if event.events & linux::EPOLLEXCLUSIVE != 0
                    && (event.events & !EXCLUSIVE_WITH != 0 || file.as_type::<Epoll>().is_some())
                {
                    return Err(Errno::EINVAL);
                }
                if let Some(e) = file.as_type::<Epoll>() {
                    if core::ptr::eq(e, self) {
                        return Err(Errno::EINVAL);
                    }
                    if e.reaches(self, 0)? {
                        return Err(Errno::ELOOP);
                    }
                }
                w.next += 1;
                let key = w.next;
                let events = event.events;
                w.items.insert(
                    key,
                    Item {
                        fd,
                        file: Arc::downgrade(inner),
                        opening,
                        events,
                        data: event.data,
                        disarmed: false,
                    },
                );
                w.by_fd.insert((fd, opening), key);
                queue.add(callback(&self.shared), key, events & 0xffff | ALWAYS);
                drop(w);
                if inner.ready() & (events & 0xffff | ALWAYS) != 0 {
                    self.shared.wake(key, 0);
                }
                Ok(())
            }
            linux::EPOLL_CTL_MOD => {
                let event = event.ok_or(Errno::EFAULT)?;
                let key = key.ok_or(Errno::ENOENT)?;
                let Some(item) = w.items.get_mut(&key) else { return Err(Errno::ENOENT) };
                let events = event.events;
                if (events | item.events) & linux::EPOLLEXCLUSIVE != 0 {
                    return Err(Errno::EINVAL);
                }
                item.events = events;
                item.data = event.data;
                item.disarmed = false;
                drop(w);
                let inner = file.file();
                if let Some(queue) = inner.queue() {
                    queue.remove(&callback(&self.shared), key);
                    queue.add(callback(&self.shared), key, events & 0xffff | ALWAYS);
                }
                if inner.ready() & (events & 0xffff | ALWAYS) != 0 {
                    self.shared.wake(key, 0);
                }
                Ok(())
            }
            linux::EPOLL_CTL_DEL => {
                let key = key.ok_or(Errno::ENOENT)?;
                w.items.remove(&key);
                w.by_fd.remove(&(fd, opening));
                drop(w);
                if let Some(queue) = file.file().queue() {
                    queue.remove(&callback(&self.shared), key);
                }
                Ok(())
            }
            _ => Err(Errno::EINVAL),
        }
    }

    /// Does it watch `target`, itself or through others?
    fn reaches(&self, target: &Epoll, depth: u32) -> Result<bool> {
        if depth >= NESTS_MAX {
            return Err(Errno::ELOOP);
        }
        let files: Vec<Arc<dyn File>> =
            self.watched.lock().items.values().filter_map(|i| i.file.upgrade()).collect();
        for f in files {
            if let Some(e) = f.as_any().downcast_ref::<Epoll>()
                && (core::ptr::eq(e, target) || e.reaches(target, depth + 1)?)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Collects up to `most` events.
    fn collect(&self, most: usize, out: &mut Vec<EpollEvent>) {
        // Each item is looked at once: what stays ready goes to the end of the list.
        let mut rounds = self.shared.ready.lock().list.len();
        let mut again: Vec<WakeKey> = Vec::new();
        while rounds > 0 && out.len() < most {
            rounds -= 1;
            let key = {
                let mut r = self.shared.ready.lock();
                let Some(key) = r.list.pop_front() else { break };
                r.queued.remove(&key);
                key
            };
            let mut w = self.watched.lock();
            let Some(item) = w.items.get_mut(&key) else { continue };
            let Some(file) = item.file.upgrade() else {
                let gone = (item.fd, item.opening);
                w.items.remove(&key);
                w.by_fd.remove(&gone);
                continue;
            };
            if item.disarmed {
                continue;
            }
            let (wanted, data) = (item.events & 0xffff | ALWAYS, item.data);
            let (edge, once) = (item.events & linux::EPOLLET != 0, item.events & linux::EPOLLONESHOT != 0);
            if once {
                item.disarmed = true;
            }
            drop(w);
            let ready = file.ready() & wanted;
            if ready == 0 {
                if once {
                    if let Some(item) = self.watched.lock().items.get_mut(&key) {
                        item.disarmed = false;
                    }
                    // What came while it was disarmed was dropped.
                    if file.ready() & wanted != 0 {
                        again.push(key);
                    }
                }
                continue;
            }
            out.push(EpollEvent { events: ready, data });
            if !edge && !once {
                again.push(key);
            }
        }
        if !again.is_empty() {
            let mut r = self.shared.ready.lock();
            for key in again {
                if r.queued.insert(key) {
                    r.list.push_back(key);
                }
            }
        }
    }

    /// `epoll_wait(2)`.
    pub fn wait(&self, most: usize, limit: Limit) -> Result<Vec<EpollEvent>> {
        let mut out = Vec::new();
        let r = wait(&self.shared.queue, poll::IN, limit, || {
            if self.shared.ready.lock().list.is_empty() {
                return None;
            }
            self.collect(most, &mut out);
            (!out.is_empty()).then_some(())
        });
        match r {
            Ok(()) => {
                if !self.shared.ready.lock().list.is_empty() {
                    // There is more: another waiter may have it.
                    self.shared.queue.wake_one(poll::IN);
                }
                Ok(out)
            }
            Err(Errno::EAGAIN | Errno::ETIMEDOUT) => Ok(out),
            Err(e) => Err(e),
        }
    }
}

impl Default for Epoll {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        let items = core::mem::take(&mut self.watched.get_mut().items);
        for (key, item) in items {
            if let Some(file) = item.file.upgrade()
                && let Some(queue) = file.queue()
            {
                queue.remove(&callback(&self.shared), key);
            }
        }
    }
}

impl File for Epoll {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn ready(&self) -> u32 {
        let keys: Vec<WakeKey> = self.shared.ready.lock().list.iter().copied().collect();
        let w = self.watched.lock();
        let any = keys.iter().filter_map(|k| w.items.get(k)).any(|i| {
            !i.disarmed && i.file.upgrade().is_some_and(|f| f.ready() & (i.events & 0xffff | ALWAYS) != 0)
        });
        if any { poll::IN | poll::RDNORM } else { 0 }
    }

    fn seek(&self, _offset: i64, _whence: u32) -> Result<u64> {
        Ok(0)
    }

    fn queue(&self) -> Option<&WaitQueue> {
        Some(&self.shared.queue)
    }

    fn describe(&self) -> Vec<u8> {
        b"anon_inode:[eventpoll]".to_vec()
    }
}

/// A new instance as an open file.
pub fn open() -> FileRef {
    RcuArc::new(OpenFile::new(Arc::new(Epoll::new()), linux::O_RDWR))
}
