//! `epoll(7)`.
//!
//! An instance keeps what it watches and which of it may be ready (under
//! `watched`), and which of it was woken since that list was last looked at
//! (under `woken`). A watched file's wait queue calls back with only the item's
//! number; that puts the item among the woken and wakes a waiter. So waiting
//! costs by what is ready, not by what is watched.
//!
//! What is watched is an open file, not the file behind it, which others may
//! have open, too. When it goes, its items come to `gone`, from which their
//! numbers are freed at the next occasion: who lets go of the last descriptor
//! may hold locks that a file is asked under, and takes no `watched`.
//!
//! An instance may watch another. Whose events an instance passes on is in
//! their wait queues: each has the callbacks of those above. How high that
//! may get is limited, as each level is one of the stack of whoever wakes.
//!
//! Locks are taken in this order: `NESTING`, `watched`, those of the files, of
//! their queues, from below to above, `woken`, this instance's own queue;
//! `gone` under any.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use atoll_abi::grid::Resource;
use atoll_abi::{Errno, Result};
use atoll_fs::node::add_line;
use atoll_fs::open::{Watcher, Watchers};
use atoll_fs::{File, OpenFile, poll};
use atoll_sync::{Mutex, RcuArc, WaitQueue, Wake, WakeKey};
use atoll_task::{Limit, wait};
use linux_raw_sys::general as linux;

use crate::files::FileRef;
use crate::quota::Held;
use crate::types::EpollEvent;

/// What may be asked for together with EPOLLEXCLUSIVE.
const EXCLUSIVE_WITH: u32 = poll::IN
    | poll::OUT
    | poll::ERR
    | poll::HUP
    | linux::EPOLLWAKEUP
    | linux::EPOLLET
    | linux::EPOLLEXCLUSIVE;
/// Events that are always reported.
const ALWAYS: u32 = poll::ERR | poll::HUP;
/// Longest chain of instances that watch each other (EP_MAX_NESTS).
const NESTS_MAX: usize = 4;
/// How many ways of so many instances, from 1, there may be up from a file (`path_limits` of Linux, which begin with any number of ways of
/// one).
const PATHS_MAX: [u32; NESTS_MAX + 1] = [u32::MAX, 500, 100, 50, 10];

struct Item {
    fd: u32,
    file: Weak<dyn File>,
    /// Which opening it is: a descriptor can be closed and used again.
    opening: usize,
    /// Where that has its watchers.
    watchers: Arc<Watchers>,
    events: u32,
    data: u64,
    /// Disarmed after it was reported (EPOLLONESHOT).
    disarmed: bool,
}

#[derive(Default)]
struct Watched {
    /// By number; None: free, or about to be.
    items: Vec<Option<Item>>,
    free: Vec<WakeKey>,
    by_fd: BTreeMap<(u32, usize), WakeKey>,
    /// Items that are to be looked at, by number.
    list: VecDeque<WakeKey>,
    /// Is it on the list? By number.
    listed: Vec<bool>,
}

impl Watched {
    fn item(&mut self, key: WakeKey) -> Option<&mut Item> {
        self.items.get_mut(key as usize)?.as_mut()
    }

    fn add(&mut self, item: Item) -> WakeKey {
        let name = (item.fd, item.opening);
        let key = self.free.pop().unwrap_or_else(|| {
            self.items.push(None);
            self.listed.push(false);
            self.items.len() as WakeKey - 1
        });
        self.items[key as usize] = Some(item);
        self.by_fd.insert(name, key);
        key
    }

    /// Takes an item out. Its number is still to be freed.
    fn remove(&mut self, key: WakeKey) {
        if let Some(item) = self.items[key as usize].take() {
            self.by_fd.remove(&(item.fd, item.opening));
        }
    }
}

/// Items that were woken and have not come to the list of [`Watched`] yet.
#[derive(Default)]
struct Woken {
    /// With room for all items: to add to it needs no memory.
    list: Vec<WakeKey>,
    /// Is it among them? By number.
    has: Vec<bool>,
}

/// What the callbacks reach.
struct Shared {
    /// Items whose opening has gone, and how many.
    gone: Mutex<Vec<WakeKey>>,
    gone_count: AtomicUsize,
    /// Another instance has watched it.
    nested: AtomicBool,
    woken: Mutex<Woken>,
    /// Items in `woken`, and on the list of [`Watched`]: changed under their locks.
    woken_count: AtomicUsize,
    listed_count: AtomicUsize,
    queue: WaitQueue,
}

impl Shared {
    /// May something be ready?
    fn any(&self) -> bool {
        self.woken_count.load(Ordering::Acquire) != 0 || self.listed_count.load(Ordering::Relaxed) != 0
    }

    fn push(&self, woken: &mut Woken, key: WakeKey) {
        if !core::mem::replace(&mut woken.has[key as usize], true) {
            woken.list.push(key);
            self.woken_count.store(woken.list.len(), Ordering::Release);
        }
    }

    /// An item may be ready.
    fn note(&self, key: WakeKey) {
        self.push(&mut self.woken.lock(), key);
        self.queue.wake_one(poll::IN);
    }
}

impl Wake for Shared {
    fn wake(&self, key: WakeKey, _events: u32, may_wait: bool) -> bool {
        if may_wait {
            self.note(key);
            return true;
        }
        let Some(mut woken) = self.woken.try_lock() else { return false };
        self.push(&mut woken, key);
        drop(woken);
        self.queue.try_wake_one(poll::IN)
    }

    fn has_waiters(&self) -> bool {
        !self.queue.is_empty()
    }

    fn passes_to(&self) -> Option<&WaitQueue> {
        Some(&self.queue)
    }
}

impl Watcher for Shared {
    fn closed(self: Arc<Self>, key: WakeKey, file: &Arc<dyn File>) {
        if let Some(queue) = file.queue() {
            queue.remove(&callback(&self), key);
        }
        let mut gone = self.gone.lock();
        gone.push(key);
        self.gone_count.store(gone.len(), Ordering::Release);
    }
}

/// An instance.
pub struct Epoll {
    watched: Mutex<Watched>,
    shared: Arc<Shared>,
    _held: Held,
}

fn callback(shared: &Arc<Shared>) -> Arc<dyn Wake> {
    shared.clone()
}

fn watcher(shared: &Arc<Shared>) -> Weak<dyn Watcher> {
    Arc::downgrade(shared) as Weak<dyn Watcher>
}

/// Heights or depths by what they are of, so that each is looked for once.
type Known = BTreeMap<usize, usize>;

fn at<T>(it: &T) -> usize {
    core::ptr::from_ref(it).addr()
}

/// How many instances stand above the queue's, one above the other.
fn height(queue: &WaitQueue, known: &mut Known) -> usize {
    if let Some(height) = known.get(&at(queue)) {
        return *height;
    }
    let mut highest = 0;
    queue.all_above(&mut |above| {
        highest = highest.max(height(above, known) + 1);
        true
    });
    known.insert(at(queue), highest);
    highest
}

/// Counts the ways up from a file's queue, by their lengths. False: there are too many of one.
fn count_paths(queue: &WaitQueue, depth: usize, counts: &mut [u32; NESTS_MAX + 1]) -> bool {
    queue.all_above(&mut |above| {
        if !above.all_above(&mut |_| false) {
            return depth < NESTS_MAX && count_paths(above, depth + 1, counts);
        }
        let count = &mut counts[depth];
        *count = count.saturating_add(1);
        *count <= PATHS_MAX[depth]
    })
}

/// What is below an instance.
#[derive(Default)]
struct Below {
    depths: Known,
    /// Files that are no instances, by their queues.
    files: BTreeMap<usize, Arc<dyn File>>,
}

impl Epoll {
    /// Watches nothing.
    fn new(held: Held) -> Self {
        Epoll {
            watched: Mutex::new(Watched::default()),
            shared: Arc::new(Shared {
                gone: Mutex::new(Vec::new()),
                gone_count: AtomicUsize::new(0),
                nested: AtomicBool::new(false),
                woken: Mutex::new(Woken::default()),
                woken_count: AtomicUsize::new(0),
                listed_count: AtomicUsize::new(0),
                queue: WaitQueue::new(),
            }),
            _held: held,
        }
    }

    /// `epoll_ctl(2)`.
    pub fn control(&self, operation: u32, fd: u32, file: &FileRef, event: Option<EpollEvent>) -> Result<()> {
        let opening = file.addr();
        // Instances that watch each other: one at a time, so that no ring of them comes about.
        static NESTING: Mutex<()> = Mutex::new(());
        let instance = file.as_type::<Epoll>();
        if instance.is_some_and(|e| core::ptr::eq(e, self)) {
            return Err(Errno::EINVAL);
        }
        let mut below = Below::default();
        let mut nesting = None;
        if let Some(e) = instance
            && operation == linux::EPOLL_CTL_ADD
        {
            nesting = Some(NESTING.lock());
            // From here on who adds a file there comes to the lock, too, and what was added before is found below.
            e.shared.nested.store(true, Ordering::SeqCst);
            let up = height(&self.shared.queue, &mut Known::new());
            if e.depth(self, &mut below, 0).is_none_or(|down| down + 1 + up > NESTS_MAX) {
                return Err(Errno::ELOOP);
            }
        }
        let mut w = self.watched.lock();
        if operation == linux::EPOLL_CTL_ADD && nesting.is_none() && self.shared.nested.load(Ordering::SeqCst)
        {
            drop(w);
            nesting = Some(NESTING.lock());
            w = self.watched.lock();
        }
        self.sweep(&mut w);
        let key = w.by_fd.get(&(fd, opening)).copied();
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
                let (events, watchers) = (event.events, file.watchers());
                let watched = Arc::downgrade(inner);
                let item = Item {
                    fd,
                    file: watched,
                    opening,
                    watchers: watchers.clone(),
                    events,
                    data: event.data,
                    disarmed: false,
                };
                let key = w.add(item);
                {
                    let (mut woken, all) = (self.shared.woken.lock(), w.items.len());
                    woken.has.resize(all, false);
                    let room = all - woken.list.len();
                    woken.list.reserve(room);
                }
                let wanted = events & 0xffff | ALWAYS;
                if events & linux::EPOLLEXCLUSIVE != 0 {
                    queue.add_exclusive(callback(&self.shared), key, wanted);
                } else {
                    queue.add(callback(&self.shared), key, wanted);
                }
                let fits = |queue| count_paths(queue, 0, &mut [0; NESTS_MAX + 1]);
                let all_fit = match instance {
                    _ if nesting.is_none() => true,
                    Some(_) => below.files.values().filter_map(|f| f.queue()).all(fits),
                    None => fits(queue),
                };
                if !all_fit {
                    queue.remove(&callback(&self.shared), key);
                    self.forget(&mut w, key);
                    return Err(Errno::EINVAL);
                }
                watchers.add(watcher(&self.shared), key);
                drop(w);
                if inner.ready() & (events & 0xffff | ALWAYS) != 0 {
                    self.shared.note(key);
                }
                Ok(())
            }
            linux::EPOLL_CTL_MOD => {
                let event = event.ok_or(Errno::EFAULT)?;
                let key = key.ok_or(Errno::ENOENT)?;
                let Some(item) = w.item(key) else { return Err(Errno::ENOENT) };
                let events = event.events;
                if (events | item.events) & linux::EPOLLEXCLUSIVE != 0 {
                    return Err(Errno::EINVAL);
                }
                item.events = events;
                item.data = event.data;
                item.disarmed = false;
                let inner = file.file();
                // Under the lock: what the queue goes by is what the item says.
                if let Some(queue) = inner.queue() {
                    queue.remove(&callback(&self.shared), key);
                    queue.add(callback(&self.shared), key, events & 0xffff | ALWAYS);
                }
                drop(w);
                if inner.ready() & (events & 0xffff | ALWAYS) != 0 {
                    self.shared.note(key);
                }
                Ok(())
            }
            linux::EPOLL_CTL_DEL => {
                let key = key.ok_or(Errno::ENOENT)?;
                if let Some(queue) = file.file().queue() {
                    queue.remove(&callback(&self.shared), key);
                }
                file.watchers().remove(&watcher(&self.shared), key);
                // Nothing calls with this number any more.
                self.forget(&mut w, key);
                Ok(())
            }
            _ => Err(Errno::EINVAL),
        }
    }

    /// Which opening it watches by a descriptor; of several, one by number.
    pub fn opening_of(&self, fd: u32, which: usize) -> Option<usize> {
        let mut w = self.watched.lock();
        self.sweep(&mut w);
        w.by_fd.range((fd, 0)..=(fd, usize::MAX)).nth(which).map(|((_, opening), _)| *opening)
    }

    /// How many instances stand below, one below the other; with what is there. None: `target` is, or too many are.
    fn depth(&self, target: &Epoll, below: &mut Below, level: usize) -> Option<usize> {
        if let Some(depth) = below.depths.get(&at(self)) {
            return Some(*depth);
        }
        if level > NESTS_MAX {
            return None;
        }
        let files: Vec<Arc<dyn File>> =
            self.watched.lock().items.iter().flatten().filter_map(|i| i.file.upgrade()).collect();
        let mut deepest = 0;
        for f in files {
            if let Some(e) = f.as_any().downcast_ref::<Epoll>() {
                if core::ptr::eq(e, target) {
                    return None;
                }
                deepest = deepest.max(e.depth(target, below, level + 1)? + 1);
            } else if let Some(queue) = f.queue().map(at) {
                below.files.insert(queue, f);
            }
        }
        below.depths.insert(at(self), deepest);
        Some(deepest)
    }

    /// Takes out the items whose openings have gone.
    fn sweep(&self, w: &mut Watched) {
        if self.shared.gone_count.load(Ordering::Acquire) == 0 {
            return;
        }
        let gone = {
            let mut gone = self.shared.gone.lock();
            self.shared.gone_count.store(0, Ordering::Relaxed);
            core::mem::take(&mut *gone)
        };
        let mut was_listed = false;
        for key in &gone {
            w.remove(*key);
            was_listed |= core::mem::take(&mut w.listed[*key as usize]);
        }
        let Watched { items, list, free, .. } = w;
        if was_listed {
            list.retain(|k| items[*k as usize].is_some());
            self.shared.listed_count.store(list.len(), Ordering::Relaxed);
        }
        let mut woken = self.shared.woken.lock();
        let Woken { list, has } = &mut *woken;
        if gone.iter().any(|k| core::mem::take(&mut has[*k as usize])) {
            list.retain(|k| items[*k as usize].is_some());
            gone.iter().for_each(|k| has[*k as usize] = false);
            self.shared.woken_count.store(list.len(), Ordering::Relaxed);
        }
        // Nothing calls with these numbers any more.
        free.extend(gone);
    }

    /// Frees an item's number, and takes the item out if that has not been done.
    fn forget(&self, w: &mut Watched, key: WakeKey) {
        w.remove(key);
        if core::mem::take(&mut w.listed[key as usize]) {
            w.list.retain(|k| *k != key);
            self.shared.listed_count.store(w.list.len(), Ordering::Relaxed);
        }
        let mut woken = self.shared.woken.lock();
        if core::mem::take(&mut woken.has[key as usize]) {
            woken.list.retain(|k| *k != key);
            self.shared.woken_count.store(woken.list.len(), Ordering::Relaxed);
        }
        w.free.push(key);
    }

    /// Collects up to `most` events, with the items that they are of.
    fn collect(&self, most: usize, out: &mut Vec<(WakeKey, EpollEvent)>) {
        let mut w = self.watched.lock();
        self.sweep(&mut w);
        if self.shared.woken_count.load(Ordering::Relaxed) != 0 {
            let mut woken = self.shared.woken.lock();
            let Woken { list, has } = &mut *woken;
            for key in list.drain(..) {
                has[key as usize] = false;
                if !core::mem::replace(&mut w.listed[key as usize], true) {
                    w.list.push_back(key);
                }
            }
            self.shared.woken_count.store(0, Ordering::Relaxed);
        }
        out.reserve(w.list.len().min(most));
        // Each item is looked at once: what stays ready goes to the end of the list.
        for _ in 0..w.list.len() {
            if out.len() == most {
                break;
            }
            let Some(key) = w.list.pop_front() else { break };
            w.listed[key as usize] = false;
            let Some(item) = w.item(key) else { continue };
            if item.disarmed {
                continue;
            }
            // Going just now: it will be among the gone.
            let Some(file) = item.file.upgrade() else { continue };
            let ready = file.ready() & (item.events & 0xffff | ALWAYS);
            if ready == 0 {
                continue;
            }
            out.push((key, EpollEvent { events: ready, data: item.data }));
            item.disarmed = item.events & linux::EPOLLONESHOT != 0;
            if item.events & linux::EPOLLET == 0 && !item.disarmed {
                w.listed[key as usize] = true;
                w.list.push_back(key);
            }
        }
        self.shared.listed_count.store(w.list.len(), Ordering::Relaxed);
    }

    /// `epoll_wait(2)`.
    pub fn wait(&self, most: usize, limit: Limit) -> Result<Vec<(WakeKey, EpollEvent)>> {
        let mut out = Vec::new();
        if self.shared.any() {
            // Programs rely on it that what they have sent over a loopback has arrived, all of it.
            atoll_task::look_if_acted();
        }
        let mut any = || {
            if !self.shared.any() {
                return None;
            }
            self.collect(most, &mut out);
            (!out.is_empty()).then_some(())
        };
        let mut r = any().ok_or(Errno::EAGAIN);
        if r.is_err() {
            // Nothing is known yet. Of what has happened since, one look tells: that costs less than to
            // go to sleep and be woken, and who does not wait needs it.
            atoll_task::look();
            r = match any() {
                None => wait(&self.shared.queue, poll::IN, limit, any),
                Some(()) => Ok(()),
            };
        }
        match r {
            Ok(()) => {
                if self.shared.any() {
                    // There is more: another waiter may have it.
                    self.shared.queue.wake_one(poll::IN);
                }
                atoll_task::give_way();
                Ok(out)
            }
            Err(Errno::EAGAIN | Errno::ETIMEDOUT) => Ok(out),
            Err(e) => Err(e),
        }
    }

    /// The program could not be told of these events: it is the next time.
    pub fn put_back(&self, events: &[(WakeKey, EpollEvent)]) {
        let mut w = self.watched.lock();
        for (key, _) in events {
            if let Some(item) = w.item(*key) {
                item.disarmed = false;
                self.shared.note(*key);
            }
        }
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        let items = core::mem::take(&mut self.watched.get_mut().items);
        for (key, item) in items.into_iter().enumerate() {
            let Some(item) = item else { continue };
            item.watchers.remove(&watcher(&self.shared), key as WakeKey);
            if let Some(file) = item.file.upgrade()
                && let Some(queue) = file.queue()
            {
                queue.remove(&callback(&self.shared), key as WakeKey);
            }
        }
    }
}

impl File for Epoll {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn ready(&self) -> u32 {
        let mut w = self.watched.lock();
        self.sweep(&mut w);
        let woken = self.shared.woken.lock().list.clone();
        let any = w.list.iter().chain(&woken).filter_map(|k| w.items.get(*k as usize)?.as_ref()).any(|i| {
            !i.disarmed && i.file.upgrade().is_some_and(|f| f.ready() & (i.events & 0xffff | ALWAYS) != 0)
        });
        if any { poll::IN | poll::RDNORM } else { 0 }
    }

    fn seek(&self, _offset: i64, _whence: u32) -> Result<u64> {
        Ok(0)
    }

    fn resource(&self) -> Resource {
        Resource::Wait
    }

    fn queue(&self) -> Option<&WaitQueue> {
        Some(&self.shared.queue)
    }

    fn tell(&self, out: &mut String) -> Result<()> {
        let mut known = Vec::new();
        // Files are looked at without the lock. What is added meanwhile is left out.
        let count = {
            let mut w = self.watched.lock();
            self.sweep(&mut w);
            w.by_fd.len()
        };
        known.try_reserve_exact(count).map_err(|_| Errno::ENOMEM)?;
        let w = self.watched.lock();
        let items = w.by_fd.values().filter_map(|key| w.items.get(*key as usize)?.as_ref());
        for item in items.take(count) {
            let kept = linux::EPOLLONESHOT | linux::EPOLLET | linux::EPOLLEXCLUSIVE | linux::EPOLLWAKEUP;
            let events = if item.disarmed { item.events & kept } else { item.events | ALWAYS };
            known.push((item.fd, events, item.data, item.file.clone()));
        }
        drop(w);
        known.into_iter().try_for_each(|(fd, events, data, file)| {
            let Some(file) = file.upgrade() else { return Ok(()) };
            let attr = file.attr().unwrap_or_default();
            let (ino, dev) = (attr.ino, attr.dev);
            add_line(
                out,
                format_args!(
                    "tfd: {fd:8} events: {events:8x} data: {data:16x}  pos:0 ino:{ino:x} sdev:{dev:x}\n"
                ),
            )
        })
    }

    fn describe(&self) -> Vec<u8> {
        b"anon_inode:[eventpoll]".to_vec()
    }
}

/// A new instance as an open file.
pub fn open(held: Held) -> FileRef {
    RcuArc::new(OpenFile::new(Arc::new(Epoll::new(held)), linux::O_RDWR))
}
