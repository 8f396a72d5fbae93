//! System V IPC (`sysvipc(7)`): [`shm`] is shared memory, [`sem`] semaphores, [`msg`] message queues; and POSIX message
//! queues, [`mqueue`]. What the three of System V have in common is here: how objects are found and named, who may do what with them, and how a task sleeps until another one has
//! done for it what it came for.

use alloc::sync::Arc;
use alloc::vec::Vec;

use atoll_abi::{Errno, Result};
use atoll_fs::Time;
use atoll_sync::{Mutex, WaitQueue};
use atoll_task::{Limit, wait};
use linux_raw_sys::general::{CAP_IPC_OWNER, CAP_SYS_ADMIN};

use crate::process::Task;
use crate::signal;
use crate::types::{IpcPerm, get};

pub mod mqueue;
pub mod msg;
pub mod sem;
pub mod shm;

const IPC_CREAT: u32 = 0o1000;
const IPC_EXCL: u32 = 0o2000;
const IPC_NOWAIT: u32 = 0o4000;
const IPC_PRIVATE: i32 = 0;
const IPC_RMID: u32 = 0;
const IPC_SET: u32 = 1;
const IPC_STAT: u32 = 2;
const IPC_INFO: u32 = 3;

/// Permission to read and to change, for all three classes at once, as [`Perm::check`] takes it.
const READ: u32 = 0o444;
const ALTER: u32 = 0o222;
const MODE: u32 = 0o777;

/// An id is an index and, in the bits above this one, how often the indices were gone through before.
const INDEX_BITS: u32 = 15;
const INDEX_MASK: i32 = (1 << INDEX_BITS) - 1;
const SEQUENCES: u32 = 1 << (31 - INDEX_BITS);

/// Who owns an object, and what others may do with it.
#[derive(Clone)]
struct Perm {
    uid: u32,
    gid: u32,
    /// Who made it.
    cuid: u32,
    cgid: u32,
    mode: u32,
}

impl Perm {
    fn new(task: &Task, flags: u32) -> Perm {
        let ids = task.ids();
        Perm { uid: ids.euid, gid: ids.egid, cuid: ids.euid, cgid: ids.egid, mode: flags & MODE }
    }

    /// May the task do what the bits `want` say, of any of the three classes? (Linux's `ipcperms`)
    fn check(&self, task: &Task, want: u32) -> Result<()> {
        let want = want >> 6 | want >> 3 | want;
        let euid = task.ids().euid;
        let cred = task.cred();
        let granted = if euid == self.cuid || euid == self.uid {
            self.mode >> 6
        } else if cred.in_group(self.cgid) || cred.in_group(self.gid) {
            self.mode >> 3
        } else {
            self.mode
        };
        if want & !granted & 7 != 0 && !task.may(CAP_IPC_OWNER) { Err(Errno::EACCES) } else { Ok(()) }
    }

    /// May the task remove it, or change these?
    fn check_owner(&self, task: &Task) -> Result<()> {
        let euid = task.ids().euid;
        if euid == self.cuid || euid == self.uid || task.may(CAP_SYS_ADMIN) {
            Ok(())
        } else {
            Err(Errno::EPERM)
        }
    }

    /// IPC_SET. EINVAL: ids that nobody has.
    fn set(&mut self, new: &IpcPerm) -> Result<()> {
        if new.uid == u32::MAX || new.gid == u32::MAX {
            return Err(Errno::EINVAL);
        }
        (self.uid, self.gid) = (new.uid, new.gid);
        self.mode = self.mode & !MODE | new.mode & MODE;
        Ok(())
    }

    /// As a program sees it.
    fn told(&self, key: i32, id: i32) -> IpcPerm {
        let Perm { uid, gid, cuid, cgid, mode } = *self;
        IpcPerm { key, uid, gid, cuid, cgid, mode, seq: (id >> INDEX_BITS) as u16, ..IpcPerm::default() }
    }
}

/// An object as it is found.
struct Found<T> {
    id: i32,
    key: i32,
    object: Arc<T>,
}

impl<T> Clone for Found<T> {
    fn clone(&self) -> Self {
        Found { id: self.id, key: self.key, object: self.object.clone() }
    }
}

/// All objects of a kind, by index.
struct Table<T> {
    places: Vec<Option<Found<T>>>,
    sequence: u32,
    /// Index that was given out last.
    last: Option<usize>,
}

impl<T> Table<T> {
    const fn new() -> Table<T> {
        Table { places: Vec::new(), sequence: 0, last: None }
    }

    /// The object with a key, or a new one that `make` makes of its id, as the flags of the `get` calls say. `fits`: may the
    /// task have the one that is there? ENOSPC: there are `most` of them.
    fn find_or_make(
        &mut self,
        key: i32,
        flags: u32,
        most: usize,
        fits: impl FnOnce(&T) -> Result<()>,
        make: impl FnOnce(i32) -> Result<Arc<T>>,
    ) -> Result<i32> {
        if key != IPC_PRIVATE
            && let Some(found) = self.all().find(|found| found.key == key)
        {
            if flags & IPC_CREAT != 0 && flags & IPC_EXCL != 0 {
                return Err(Errno::EEXIST);
            }
            return fits(&found.object).map(|()| found.id);
        }
        if key != IPC_PRIVATE && flags & IPC_CREAT == 0 {
            return Err(Errno::ENOENT);
        }
        let free = self.places.iter().position(Option::is_none).unwrap_or(self.places.len());
        if free >= most {
            return Err(Errno::ENOSPC);
        }
        // An id comes again only after all others of its index.
        let sequence = (self.sequence + u32::from(self.last.is_some_and(|last| free <= last))) % SEQUENCES;
        let id = (sequence << INDEX_BITS) as i32 | free as i32;
        let found = Some(Found { id, key, object: make(id)? });
        (self.sequence, self.last) = (sequence, Some(free));
        match self.places.get_mut(free) {
            Some(place) => *place = found,
            None => self.places.push(found),
        }
        Ok(id)
    }

    fn all(&self) -> impl Iterator<Item = &Found<T>> {
        self.places.iter().flatten()
    }

    /// The object with an id.
    fn find(&self, id: i32) -> Result<Found<T>> {
        self.at(id & INDEX_MASK).filter(|found| found.id == id).ok_or(Errno::EINVAL)
    }

    /// The object at an index, or None.
    fn at(&self, index: i32) -> Option<Found<T>> {
        self.places.get(usize::try_from(index).ok()?)?.clone()
    }

    fn remove(&mut self, id: i32) {
        if let Some(place) = self.place(id) {
            *place = None;
        }
    }

    /// Nobody finds it by its key any more.
    fn forget_key(&mut self, id: i32) {
        if let Some(Some(found)) = self.place(id) {
            found.key = IPC_PRIVATE;
        }
    }

    fn place(&mut self, id: i32) -> Option<&mut Option<Found<T>>> {
        self.places.iter_mut().find(|place| place.as_ref().is_some_and(|found| found.id == id))
    }

    /// Number of objects, and the highest index in use, or 0.
    fn used(&self) -> (usize, u64) {
        let highest = self.places.iter().rposition(Option::is_some).unwrap_or(0);
        (self.all().count(), highest as u64)
    }
}

/// Finds what a `ctl` call is to tell of: by id, or by index if the command says so. Value: what the call returns, too.
fn found_to_tell<T>(table: &Mutex<Table<T>>, id: i32, by_index: bool) -> Result<(Found<T>, u64)> {
    let table = table.lock();
    if by_index {
        // What is above an index is not looked at.
        let found = table.at(id & INDEX_MASK).ok_or(Errno::EINVAL)?;
        let id = found.id as u64;
        return Ok((found, id));
    }
    Ok((table.find(id)?, 0))
}

/// Seconds since 1970.
fn now() -> i64 {
    Time::now().sec
}

/// A task that sleeps until another one has served it.
struct Sleeper<R> {
    outcome: Mutex<Option<Result<R>>>,
    queue: WaitQueue,
}

impl<R> Sleeper<R> {
    fn new() -> Sleeper<R> {
        Sleeper { outcome: Mutex::new(None), queue: WaitQueue::new() }
    }

    /// It is served: it goes on with this.
    fn serve(&self, outcome: Result<R>) {
        *self.outcome.lock() = Some(outcome);
        self.queue.wake_all(1);
    }

    /// Waits to be served. `leave` is called when that comes to an end without: from then on nobody serves it. ETIMEDOUT, and
    /// RESTART for a signal.
    fn wait(&self, task: &Task, limit: Limit, leave: impl FnOnce()) -> Result<R> {
        let why = loop {
            match wait(&self.queue, 1, limit, || self.outcome.lock().take()) {
                Ok(outcome) => return outcome,
                Err(Errno::RESTART) if signal::was_for_nothing(task) => {}
                Err(why) => break why,
            }
        };
        leave();
        self.outcome.lock().take().unwrap_or(Err(why))
    }
}
