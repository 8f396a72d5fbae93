//! Futexes with priority inheritance (`futex(2)`, FUTEX_LOCK_PI and its kin; `pthread_mutexattr_setprotocol(3)`).
//!
//! The word says who owns the lock, and the program takes and leaves it by itself as long as nobody waits. Whoever waits is
//! noted in a table, and lends the owner its real-time priority until the owner has let go; if the owner waits for another such
//! lock, the priority goes on to who owns that, and so on. As on Linux only real-time priorities are lent: a thread without
//! one waits in turn.
//!
//! The table has one lock for all: only those come here who find such a futex taken.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use atoll_abi::{Errno, Result, platform};
use atoll_mem::user;
use atoll_sync::{Mutex, MutexGuard};
use atoll_task::Limit;

use crate::futex::{Key, OWNER_DIED, TID, WAITERS};
use crate::process::{Task, find_task};

/// Longest chain of owners that wait for owners (Linux's `max_lock_depth`).
const DEPTH_MAX: usize = 1024;

/// One that is waited for, or whose owner was told to hand it over.
struct Lock {
    owner: Arc<Task>,
    /// That runs another program by now, which knows nothing of it.
    left: bool,
    waiters: Vec<Waiting>,
}

struct Waiting {
    task: Arc<Task>,
    /// Who came first.
    number: u64,
}

/// Everybody who waits, and for what.
struct Table {
    locks: BTreeMap<Key, Lock>,
    /// What a task waits for, by its thread id.
    waits: BTreeMap<u32, Key>,
    /// What a task owns that others wait for.
    owned: BTreeMap<u32, Vec<Key>>,
    next: u64,
}

static TABLE: Mutex<Table> =
    Mutex::new(Table { locks: BTreeMap::new(), waits: BTreeMap::new(), owned: BTreeMap::new(), next: 0 });

impl Table {
    /// The waiter that is next, the most urgent or else the first.
    fn next_of(&self, key: Key) -> Option<&Waiting> {
        let of = |w: &&Waiting| (w.task.urgency(), core::cmp::Reverse(w.number));
        self.locks.get(&key)?.waiters.iter().max_by_key(of)
    }

    /// Finds out what this task is lent, and tells whom it waits for, and so on. Who is changed is moved in its core's line.
    fn settle(&self, task: &Arc<Task>) {
        let mut task = task.clone();
        for _ in 0..DEPTH_MAX {
            let owned = self.owned.get(&task.tid()).map_or(&[][..], |keys| keys);
            let lent = owned
                .iter()
                .filter_map(|key| self.locks.get(key))
                .flat_map(|lock| &lock.waiters)
                .map(|w| w.task.urgency())
                .max()
                .unwrap_or(0);
            if !task.lend(lent) {
                return;
            }
            let Some(lock) = self.waits.get(&task.tid()).and_then(|key| self.locks.get(key)) else { return };
            task = lock.owner.clone();
        }
    }

    /// Does the owner of a lock wait for this task, perhaps by way of others?
    fn would_wait_for_itself(&self, mut owner: u32, me: u32) -> bool {
        for _ in 0..DEPTH_MAX {
            if owner == me {
                return true;
            }
            match self.waits.get(&owner).and_then(|key| self.locks.get(key)) {
                Some(lock) => owner = lock.owner.tid(),
                None => return false,
            }
        }
        true
    }

    fn add(&mut self, key: Key, owner: &Arc<Task>, me: &Arc<Task>) {
        self.next += 1;
        let waiting = Waiting { task: me.clone(), number: self.next };
        let lock = self.locks.entry(key).or_insert_with(|| Lock {
            owner: owner.clone(),
            left: false,
            waiters: Vec::new(),
        });
        let before = core::mem::replace(&mut lock.owner, owner.clone());
        lock.left &= Arc::ptr_eq(&before, owner);
        lock.waiters.push(waiting);
        self.waits.insert(me.tid(), key);
        if !Arc::ptr_eq(&before, owner) {
            self.forget_owner(key, &before);
        }
        let owned = self.owned.entry(owner.tid()).or_default();
        if !owned.contains(&key) {
            owned.push(key);
        }
        self.settle(owner);
        self.tell_if_left(key);
    }

    /// If nobody gives a lock away any more, who is next takes it, as is found out by who looks: it may be another one by now.
    fn tell_if_left(&self, key: Key) {
        if self.was_left(key)
            && let Some(next) = self.next_of(key)
        {
            atoll_task::unpark(next.task.thread());
        }
    }

    /// `me` does not wait any more. The lock is forgotten with its last waiter.
    fn remove(&mut self, key: Key, me: u32) {
        self.waits.remove(&me);
        let Some(lock) = self.locks.get_mut(&key) else { return };
        lock.waiters.retain(|w| w.task.tid() != me);
        let owner = lock.owner.clone();
        if lock.waiters.is_empty() {
            self.locks.remove(&key);
            self.forget_owner(key, &owner);
        } else {
            self.settle(&owner);
            self.tell_if_left(key);
        }
    }

    fn forget_owner(&mut self, key: Key, owner: &Arc<Task>) {
        if let Some(owned) = self.owned.get_mut(&owner.tid()) {
            owned.retain(|k| *k != key);
            if owned.is_empty() {
                self.owned.remove(&owner.tid());
            }
        }
        self.settle(owner);
    }

    /// The lock is this task's from now on, which waited for it or found it free.
    fn change_owner(&mut self, key: Key, to: &Arc<Task>) {
        self.waits.remove(&to.tid());
        let Some(lock) = self.locks.get_mut(&key) else { return };
        lock.waiters.retain(|w| w.task.tid() != to.tid());
        let empty = lock.waiters.is_empty();
        let before = core::mem::replace(&mut lock.owner, to.clone());
        lock.left = false;
        if empty {
            self.locks.remove(&key);
        } else {
            self.owned.entry(to.tid()).or_default().push(key);
        }
        self.forget_owner(key, &before);
        self.settle(to);
    }

    fn has_waiters(&self, key: Key) -> bool {
        self.locks.contains_key(&key)
    }

    fn was_left(&self, key: Key) -> bool {
        self.locks.get(&key).is_some_and(|lock| lock.left)
    }

    fn waits_for(&self, task: &Task, key: Key) -> bool {
        self.waits.get(&task.tid()) == Some(&key)
    }
}

/// What a lock's word is. Where its page is missing it is brought in without the table: whoever does that may need a lock, too.
fn load<'a>(mut table: MutexGuard<'a, Table>, addr: u64) -> (MutexGuard<'a, Table>, Result<u32>) {
    loop {
        match user::try_load_u32(addr) {
            Ok(Some(now)) => return (table, Ok(now)),
            Ok(None) => drop(table),
            Err(e) => return (table, Err(e)),
        }
        let brought = user::bring_in(addr, false);
        table = TABLE.lock();
        if let Err(e) = brought {
            return (table, Err(e));
        }
    }
}

/// Changes a lock's word if it is still this. False: all is to be looked at again, as it isn't, or as others may have had the table
/// meanwhile.
fn exchange<'a>(
    table: MutexGuard<'a, Table>,
    addr: u64,
    now: u32,
    new: u32,
) -> (MutexGuard<'a, Table>, Result<bool>) {
    match user::try_compare_exchange_u32(addr, now, new) {
        Ok(Some(before)) => (table, Ok(before == now)),
        Ok(None) => {
            drop(table);
            let brought = user::bring_in(addr, true);
            (TABLE.lock(), brought.map(|()| false))
        }
        Err(e) => (table, Err(e)),
    }
}

/// FUTEX_LOCK_PI and, with [`Limit::Never`], FUTEX_TRYLOCK_PI. RESTART_ALWAYS: a signal has to be looked at first.
pub(crate) fn lock(task: &Arc<Task>, key: Key, addr: u64, limit: Limit) -> Result<u64> {
    let tid = task.tid();
    let mut table = TABLE.lock();
    let (mut now, mut changed);
    loop {
        (table, now) = load(table, addr);
        let now = now?;
        if now & TID == tid {
            return Err(Errno::EDEADLK);
        }
        if now & TID == 0 {
            // Free, or its owner died: with those who still wait, it is contended.
            let keep = now & OWNER_DIED | if table.has_waiters(key) { WAITERS } else { 0 };
            (table, changed) = exchange(table, addr, now, tid | keep);
            if changed? {
                table.change_owner(key, task);
                return Ok(0);
            }
            continue;
        }
        if limit == Limit::Never {
            return Err(Errno::EAGAIN);
        }
        let owner = find_task(now & TID).ok_or(Errno::ESRCH)?;
        if table.would_wait_for_itself(owner.tid(), tid) {
            return Err(Errno::EDEADLK);
        }
        if now & WAITERS == 0 {
            (table, changed) = exchange(table, addr, now, now | WAITERS);
            if !changed? {
                continue;
            }
        }
        table.add(key, &owner, task);
        break;
    }
    drop(table);
    loop {
        match limit {
            Limit::Until(deadline) => atoll_task::park_until(deadline),
            _ => atoll_task::park(),
        }
        let mut table = TABLE.lock();
        loop {
            if !table.waits_for(task, key) {
                // The owner made us the owner.
                return Ok(0);
            }
            (table, now) = load(table, addr);
            // The owner died, and we are next?
            let dead = |now: u32| now & TID == 0 || find_task(now & TID).is_none();
            let Some(now) = now.ok().filter(|now| {
                (dead(*now) || table.was_left(key))
                    && table.waits_for(task, key)
                    && table.next_of(key).is_some_and(|next| Arc::ptr_eq(&next.task, task))
            }) else {
                break;
            };
            (table, changed) = exchange(table, addr, now, tid | OWNER_DIED | WAITERS);
            match changed {
                Ok(true) => {
                    table.change_owner(key, task);
                    return Ok(0);
                }
                Ok(false) => {}
                Err(e) => {
                    table.remove(key, tid);
                    return Err(e);
                }
            }
        }
        let over = match limit {
            _ if now.is_err() => Some(Errno::EFAULT),
            _ if task.thread().interrupted() => Some(Errno::RESTART_ALWAYS),
            Limit::Until(deadline) if platform().now() >= deadline => Some(Errno::ETIMEDOUT),
            _ => None,
        };
        if let Some(e) = over {
            if !table.waits_for(task, key) {
                return Ok(0);
            }
            table.remove(key, tid);
            return Err(e);
        }
    }
}

/// FUTEX_UNLOCK_PI: the most urgent of those who wait owns it next.
pub(crate) fn unlock(task: &Arc<Task>, key: Key, addr: u64) -> Result<u64> {
    let mut table = TABLE.lock();
    let (mut now, mut changed);
    loop {
        (table, now) = load(table, addr);
        let now = now?;
        if now & TID != task.tid() {
            return Err(Errno::EPERM);
        }
        let next = table.next_of(key).map(|w| w.task.clone());
        // Linux leaves the bit set for the last one, too.
        let new = next.as_ref().map_or(0, |next| next.tid() | WAITERS);
        (table, changed) = exchange(table, addr, now, new);
        if !changed? {
            continue;
        }
        if let Some(next) = next {
            table.change_owner(key, &next);
            // After its priority, which may have been what was lent to us: it goes first.
            atoll_task::unpark(next.thread());
        }
        return Ok(0);
    }
}

/// A task ends: who is next for each lock that it owns and others wait for finds that out.
pub(crate) fn owner_ends(task: &Task) {
    let table = TABLE.lock();
    for key in table.owned.get(&task.tid()).into_iter().flatten() {
        if let Some(next) = table.next_of(*key) {
            atoll_task::unpark(next.task.thread());
        }
    }
}

/// A task is about to run another program: the same, whatever the words of its locks say.
pub(crate) fn owner_leaves(task: &Task) {
    let mut table = TABLE.lock();
    // It may have another id soon.
    let keys = table.owned.remove(&task.tid()).unwrap_or_default();
    for key in keys {
        if let Some(lock) = table.locks.get_mut(&key) {
            lock.left = true;
        }
        table.tell_if_left(key);
    }
}

/// A task's own priority has changed.
pub(crate) fn priority_changed(task: &Task) {
    let table = TABLE.lock();
    if let Some(lock) = table.waits.get(&task.tid()).and_then(|key| table.locks.get(key)) {
        table.settle(&lock.owner);
    }
}
