//! Futexes (`futex(2)`), robust lists, and what happens to both when a task ends.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use atoll_abi::platform::Access;
use atoll_abi::{Errno, Result, platform};
use atoll_mem::user;
use atoll_mem::vm::Kind;
use atoll_sync::{Mutex, SetOnce};
use atoll_task::{Limit, ThreadRef, Until};
use linux_raw_sys::general as linux;

use crate::current::current;
use crate::pi;
use crate::process::{Task, find_task};
use crate::signal;
use crate::types::{FutexWaitv, get};

/// What two tasks must have in common to mean the same futex.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Key {
    /// A space, or a shared object.
    base: u64,
    /// Address in the space, or offset in the object.
    offset: u64,
}

/// A task that waits. Each has one, for one wait after the other: it is in no bucket once a wait is over.
pub struct Waiter {
    thread: ThreadRef,
    bits: AtomicU32,
    /// The bucket that it is in. Changes when it is requeued, with that bucket and the new one held.
    bucket: AtomicUsize,
    /// What it waits for, a [`Key`]'s two halves. For who holds the bucket.
    base: AtomicU64,
    offset: AtomicU64,
    woken: AtomicBool,
    /// Its real-time priority when it began to wait: who has more is woken first, and of equals who came first.
    urgency: AtomicU32,
    /// The lock that it waited for last, if it has not waited for anything else since, and in the two lowest bits how often before
    /// that, 3 at most. Its own.
    lock: AtomicU64,
}

impl Waiter {
    fn new(thread: ThreadRef) -> Waiter {
        Waiter {
            thread,
            bits: AtomicU32::new(0),
            bucket: AtomicUsize::new(0),
            base: AtomicU64::new(0),
            offset: AtomicU64::new(0),
            woken: AtomicBool::new(false),
            urgency: AtomicU32::new(0),
            lock: AtomicU64::new(0),
        }
    }

    /// What it is about to wait for: somebody who only passes by, or one who wants a lock again and again, as this one does?
    #[inline]
    fn until(&self, addr: u64, value: u32) -> Until {
        let lock = if value == LOCKED_AND_WANTED { addr } else { 0 };
        let before = self.lock.load(Ordering::Relaxed);
        if lock != 0 && before == lock | 3 {
            return Until::Released;
        }
        let again = lock != 0 && before & !3 == lock;
        self.lock.store(if again { before + 1 } else { lock }, Ordering::Relaxed);
        Until::Changed
    }

    #[inline]
    fn is_at(&self, key: Key) -> bool {
        self.base.load(Ordering::Relaxed) == key.base && self.offset.load(Ordering::Relaxed) == key.offset
    }

    #[inline]
    fn is_wanted(&self, key: Key, bits: u32) -> bool {
        self.bits.load(Ordering::Relaxed) & bits != 0 && self.is_at(key)
    }

    #[inline]
    fn put_at(&self, key: Key) {
        self.bucket.store(number(key), Ordering::Relaxed);
        self.base.store(key.base, Ordering::Relaxed);
        self.offset.store(key.offset, Ordering::Relaxed);
    }
}

type Bucket = Mutex<VecDeque<Arc<Waiter>>>;
const BUCKETS: usize = 256;
static TABLE: SetOnce<alloc::boxed::Box<[Bucket]>> = SetOnce::new();

/// Makes the table, once.
pub fn init() {
    // At boot, once.
    let _ = TABLE.set((0..BUCKETS).map(|_| Mutex::new(VecDeque::new())).collect());
}

#[inline]
fn number(key: Key) -> usize {
    let h = (key.base ^ key.offset.rotate_left(20)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (h >> 56) as usize
}

#[inline]
fn bucket(key: Key) -> &'static Bucket {
    &TABLE[number(key)]
}

#[inline(always)]
fn key(task: &Task, addr: u64, private: bool) -> Result<Key> {
    if !addr.is_multiple_of(4) {
        return Err(Errno::EINVAL);
    }
    if !atoll_abi::layout::is_user_range(addr, 4) {
        return Err(Errno::EFAULT);
    }
    let own = Key { base: core::ptr::from_ref(&*task.space) as u64, offset: addr };
    if private { Ok(own) } else { shared_key(task, addr, own) }
}

/// Shared memory is the same futex wherever it is mapped; private memory is the space's.
#[inline(never)]
fn shared_key(task: &Task, addr: u64, own: Key) -> Result<Key> {
    let space = &*task.space;
    let Some((start, area)) = space.memory.find(addr) else { return Err(Errno::EFAULT) };
    if area.access.difference(Access::POPULATE).is_empty() {
        return Err(Errno::EFAULT);
    }
    if !area.shared {
        return Ok(own);
    }
    Ok(match &area.kind {
        Kind::Object { object, offset, .. } => {
            Key { base: Arc::as_ptr(object).cast::<()>() as u64, offset: addr - start + offset }
        }
        Kind::File { file, offset } => {
            let (_, dev, ino) = file.describe();
            Key { base: dev << 48 ^ ino | 1 << 63, offset: addr - start + offset }
        }
        Kind::Anonymous => own,
    })
}

/// The value of most locks that are made of futexes (glibc's, Rust's, Go's) when one has it and others want it, as in Drepper's
/// "Futexes are tricky". That it means this is a guess, by which it is only decided how to look before sleeping.
const LOCKED_AND_WANTED: u32 = 2;

fn wait(task: &Task, addr: u64, private: bool, value: u32, bits: u32, limit: Limit) -> Result<u64> {
    if bits == 0 {
        return Err(Errno::EINVAL);
    }
    let key = key(task, addr, private)?;
    if atoll_task::look_before_sleep(waiter(task).until(addr, value), || Ok(user::load_u32(addr)? != value))?
    {
        return Err(Errno::EAGAIN);
    }
    loop {
        // The value is looked at with the bucket held: a waker that changed it comes later.
        let mut list = bucket(key).lock();
        match user::try_load_u32(addr)? {
            Some(now) if now != value => return Err(Errno::EAGAIN),
            Some(_) => {
                line_up(&mut list, begin(task, key, bits));
                break;
            }
            None => {
                drop(list);
                user::bring_in(addr, false)?;
            }
        }
    }
    sleep(waiter(task), limit)
}

/// Puts a waiter into its bucket, behind those who are as urgent.
#[inline]
fn line_up(list: &mut VecDeque<Arc<Waiter>>, waiter: Arc<Waiter>) {
    let urgency = waiter.urgency.load(Ordering::Relaxed);
    if urgency == 0 {
        return list.push_back(waiter);
    }
    let at = list.iter().position(|w| w.urgency.load(Ordering::Relaxed) < urgency);
    list.insert(at.unwrap_or(list.len()), waiter);
}

#[inline]
fn waiter(task: &Task) -> &Arc<Waiter> {
    task.waiter.get().unwrap_or_else(|| make_waiter(task))
}

#[cold]
fn make_waiter(task: &Task) -> &Arc<Waiter> {
    // Only the task itself does that.
    let _ = task.waiter.set(Arc::new(Waiter::new(task.thread())));
    &task.waiter
}

/// What is to be put into this key's bucket, which is held, for a task that begins to wait.
#[inline]
fn begin(task: &Task, key: Key, bits: u32) -> Arc<Waiter> {
    let me = waiter(task);
    me.bits.store(bits, Ordering::Relaxed);
    me.put_at(key);
    me.woken.store(false, Ordering::Relaxed);
    me.urgency.store(task.urgency(), Ordering::Relaxed);
    me.clone()
}

/// Sleeps until woken, interrupted or out of time; takes itself out of its queue in the latter cases.
#[inline(always)]
fn sleep(me: &Arc<Waiter>, limit: Limit) -> Result<u64> {
    loop {
        if me.woken.load(Ordering::Acquire) {
            return Ok(0);
        }
        if (me.thread.interrupted() || limit != Limit::Forever)
            && let Some(e) = is_over(me, limit)
        {
            return if leave(me) { Err(e) } else { Ok(0) };
        }
        match limit {
            Limit::Until(deadline) => atoll_task::park_until(deadline),
            _ => atoll_task::park(),
        }
    }
}

/// Why a wait ends of itself, if it does.
#[inline(never)]
fn is_over(me: &Waiter, limit: Limit) -> Option<Errno> {
    if me.thread.interrupted() {
        // With a timeout, a handler ends the wait: it would begin anew otherwise.
        return Some(match limit {
            Limit::Until(deadline) => signal::begin_again_until(current(), deadline),
            _ => Errno::RESTART,
        });
    }
    match limit {
        Limit::Until(deadline) if platform().now() >= deadline => Some(Errno::ETIMEDOUT),
        _ => None,
    }
}

/// Takes a waiter out of its queue. False: it has been woken.
#[inline(never)]
fn leave(me: &Arc<Waiter>) -> bool {
    loop {
        let number = me.bucket.load(Ordering::Relaxed);
        let mut list = TABLE[number].lock();
        if me.bucket.load(Ordering::Relaxed) != number {
            // Requeued in the meantime.
            continue;
        }
        if me.woken.load(Ordering::Acquire) {
            return false;
        }
        list.retain(|w| !Arc::ptr_eq(w, me));
        return true;
    }
}

/// Wakes one that is taken out of its bucket, which is held. It may wait again at once, elsewhere: then it is unparked
/// without reason, as waiters may be.
#[inline]
fn wake_waiter(w: &Waiter) {
    let thread = w.thread;
    w.woken.store(true, Ordering::Release);
    atoll_task::unpark(thread);
}

/// How many Linux wakes if it is asked for so many.
#[inline]
fn at_least_one(n: u32) -> u32 {
    (n as i32).max(1) as u32
}

fn wake(key: Key, n: u32, bits: u32) -> u64 {
    let mut list = bucket(key).lock();
    // One is woken most of the time, and nobody else waits in its bucket.
    if n == 1 && list.front().is_none_or(|w| w.is_wanted(key, bits)) {
        return match list.pop_front() {
            Some(w) => {
                wake_waiter(&w);
                1
            }
            None => 0,
        };
    }
    wake_some(&mut list, key, n, bits)
}

#[inline(never)]
fn wake_some(list: &mut VecDeque<Arc<Waiter>>, key: Key, n: u32, bits: u32) -> u64 {
    let mut woken = 0;
    list.retain(|w| {
        if woken < u64::from(n) && w.is_wanted(key, bits) {
            wake_waiter(w);
            woken += 1;
            false
        } else {
            true
        }
    });
    woken
}

/// Wakes waiters on an address of the current space, shared or private (when a task ends).
pub fn wake_address(task: &Task, addr: u64, n: u32) {
    if let Ok(k) = key(task, addr, false) {
        wake(k, n, !0);
    }
}

/// Wakes some who wait for one futex, and has others wait for another one. `only_if`: an address, at which this must be (EAGAIN).
fn requeue(from: Key, to: Key, wakes: u32, moves: u32, only_if: Option<(u64, u32)>) -> Result<u64> {
    let (a, b) = (bucket(from), bucket(to));
    loop {
        // Both at once, always in the same order, so that a waiter is never in no queue.
        let (mut list_a, mut list_b);
        if core::ptr::eq(a, b) {
            (list_a, list_b) = (a.lock(), None);
        } else if core::ptr::from_ref(a) < core::ptr::from_ref(b) {
            list_a = a.lock();
            list_b = Some(b.lock());
        } else {
            list_b = Some(b.lock());
            list_a = a.lock();
        }
        // Looked at with the buckets held, as by who begins to wait.
        if let Some((addr, value)) = only_if {
            match user::try_load_u32(addr)? {
                Some(now) if now != value => return Err(Errno::EAGAIN),
                Some(_) => {}
                None => {
                    drop((list_a, list_b));
                    user::bring_in(addr, false)?;
                    continue;
                }
            }
        }
        let woken = if wakes == 0 { 0 } else { wake_some(&mut list_a, from, wakes, !0) };
        if moves == 0 || from == to {
            return Ok(woken);
        }
        let mut moved = VecDeque::new();
        list_a.retain(|w| {
            if moved.len() < moves as usize && w.is_at(from) {
                w.put_at(to);
                moved.push_back(w.clone());
                false
            } else {
                true
            }
        });
        let count = moved.len() as u64;
        let list = list_b.as_mut().unwrap_or(&mut list_a);
        moved.into_iter().for_each(|w| line_up(list, w));
        return Ok(woken + count);
    }
}

fn wake_op(task: &Task, first: Key, second: u64, private: bool, n1: u32, n2: u32, op: u32) -> Result<u64> {
    let second_key = key(task, second, private)?;
    let sign = |x: u32| ((x << 20) as i32) >> 20;
    let (mut operand, compare) = (sign(op >> 12 & 0xfff), sign(op & 0xfff));
    if op & 0x8000_0000 != 0 {
        operand = 1i32.wrapping_shl(operand as u32 & 31);
    }
    let old = loop {
        let old = user::load_u32(second)?;
        let o = old as i32;
        let new = match op >> 28 & 7 {
            0 => operand,
            1 => o.wrapping_add(operand),
            2 => o | operand,
            3 => o & !operand,
            4 => o ^ operand,
            _ => return Err(Errno::ENOSYS),
        };
        if user::compare_exchange_u32(second, old, new as u32)? == old {
            break o;
        }
    };
    let also = match op >> 24 & 0xf {
        0 => old == compare,
        1 => old != compare,
        2 => old < compare,
        3 => old <= compare,
        4 => old > compare,
        5 => old >= compare,
        _ => return Err(Errno::ENOSYS),
    };
    let mut woken = wake(first, at_least_one(n1), !0);
    if also {
        woken += wake(second_key, at_least_one(n2), !0);
    }
    Ok(woken)
}

pub(crate) const TID: u32 = linux::FUTEX_TID_MASK;
pub(crate) const WAITERS: u32 = linux::FUTEX_WAITERS;
pub(crate) const OWNER_DIED: u32 = linux::FUTEX_OWNER_DIED;

/// FUTEX_WAIT_REQUEUE_PI: waits at `addr`, and owns the lock at `lock` when it is woken.
fn wait_requeue_pi(
    task: &Arc<Task>,
    addr: u64,
    lock: u64,
    private: bool,
    value: u32,
    limit: Limit,
) -> Result<u64> {
    let to = key(task, lock, private)?;
    if addr == lock {
        return Err(Errno::EINVAL);
    }
    match wait(task, addr, private, value, !0, limit) {
        // Those who are moved to the lock's line by a waker line up there themselves.
        Ok(_) => pi::lock(task, to, lock, limit),
        // Its program looks at what it waits for again.
        Err(Errno::RESTART | Errno::RESTART_NOHAND) => Err(Errno::EAGAIN),
        Err(e) => Err(e),
    }
}

#[inline]
fn limit(addr: u64, absolute: bool, realtime: bool) -> Result<Limit> {
    if addr == 0 { Ok(Limit::Forever) } else { until(addr, absolute, realtime) }
}

#[inline(never)]
fn until(addr: u64, absolute: bool, realtime: bool) -> Result<Limit> {
    let kept = signal::take_deadline(current());
    let ts: crate::types::Timespec = get(addr)?;
    let ns = ts.to_ns()?;
    let now = platform().now();
    let deadline = if !absolute {
        now.saturating_add(ns)
    } else if realtime {
        now.saturating_add(ns.saturating_sub(platform().realtime()))
    } else {
        ns
    };
    Ok(Limit::Until(kept.unwrap_or(deadline)))
}

/// `futex(2)`.
pub fn futex(c: &mut crate::syscalls::Call) -> Result<u64> {
    let (addr, op, value) = (c.arg(0), c.uint(1), c.uint(2));
    let private = op & linux::FUTEX_PRIVATE_FLAG != 0;
    let realtime = op & linux::FUTEX_CLOCK_REALTIME != 0;
    let task = c.task;
    let command = op & !(linux::FUTEX_PRIVATE_FLAG | linux::FUTEX_CLOCK_REALTIME);
    if realtime
        && !matches!(command, linux::FUTEX_WAIT_BITSET | linux::FUTEX_LOCK_PI2 | linux::FUTEX_WAIT_REQUEUE_PI)
    {
        return Err(Errno::ENOSYS);
    }
    match command {
        linux::FUTEX_WAIT => wait(task, addr, private, value, !0, limit(c.arg(3), false, false)?),
        // Linux wakes one even if asked for none.
        linux::FUTEX_WAKE => {
            let key = key(task, addr, private)?;
            if !private {
                // Memory that others may show, too, is to be there: EFAULT behind the end of a file.
                let _: u32 = get(addr)?;
            }
            Ok(wake(key, at_least_one(value), !0))
        }
        _ => other(c, command),
    }
}

/// The less common ones.
#[inline(never)]
fn other(c: &mut crate::syscalls::Call, command: u32) -> Result<u64> {
    let (addr, op, value) = (c.arg(0), c.uint(1), c.uint(2));
    let private = op & linux::FUTEX_PRIVATE_FLAG != 0;
    let realtime = op & linux::FUTEX_CLOCK_REALTIME != 0;
    let task = c.task;
    let key = || self::key(task, addr, private);
    let me = || find_task(task.tid()).ok_or(Errno::ESRCH);
    match command {
        linux::FUTEX_WAIT_BITSET => {
            wait(task, addr, private, value, c.uint(5), limit(c.arg(3), true, realtime)?)
        }
        linux::FUTEX_WAKE_BITSET => {
            if c.uint(5) == 0 {
                return Err(Errno::EINVAL);
            }
            Ok(wake(key()?, at_least_one(value), c.uint(5)))
        }
        linux::FUTEX_REQUEUE => {
            if (value as i32) < 0 || c.int(3) < 0 {
                return Err(Errno::EINVAL);
            }
            let (from, to) = (key()?, self::key(task, c.arg(4), private)?);
            requeue(from, to, value, c.uint(3), None)
        }
        linux::FUTEX_CMP_REQUEUE => {
            if (value as i32) < 0 || c.int(3) < 0 {
                return Err(Errno::EINVAL);
            }
            let (from, to) = (key()?, self::key(task, c.arg(4), private)?);
            requeue(from, to, value, c.uint(3), Some((addr, c.uint(5))))
        }
        linux::FUTEX_WAKE_OP => wake_op(task, key()?, c.arg(4), private, value, c.uint(3), c.uint(5)),
        linux::FUTEX_LOCK_PI => pi::lock(&me()?, key()?, addr, limit(c.arg(3), true, true)?),
        linux::FUTEX_LOCK_PI2 => pi::lock(&me()?, key()?, addr, limit(c.arg(3), true, realtime)?),
        linux::FUTEX_TRYLOCK_PI => pi::lock(&me()?, key()?, addr, Limit::Never),
        linux::FUTEX_UNLOCK_PI => pi::unlock(&me()?, key()?, addr),
        linux::FUTEX_WAIT_REQUEUE_PI => {
            wait_requeue_pi(&me()?, addr, c.arg(4), private, value, limit(c.arg(3), true, realtime)?)
        }
        linux::FUTEX_CMP_REQUEUE_PI => {
            if value != 1 || c.int(3) < 0 || addr == c.arg(4) {
                return Err(Errno::EINVAL);
            }
            if user::load_u32(addr)? != c.uint(5) {
                return Err(Errno::EAGAIN);
            }
            Ok(wake(key()?, c.uint(3).saturating_add(1), !0))
        }
        other => {
            Err(crate::syscalls::unsupported(task, &alloc::format!("futex operation {other}"), Errno::ENOSYS))
        }
    }
}

/// Most futexes that one call waits for (FUTEX_WAITV_MAX).
const WAITV_MAX: usize = 128;
/// Flags of one of them: 32 bits, which all are, and private.
const FUTEX_32: u32 = 2;

/// `futex_waitv(2)`: waits for any of several futexes. Value: the number of one that was woken.
pub fn futex_waitv(c: &mut crate::syscalls::Call) -> Result<u64> {
    let (list, count, flags, timeout) = (c.arg(0), c.uint(1) as usize, c.uint(2), c.arg(3));
    if flags != 0 || count == 0 || count > WAITV_MAX || list == 0 {
        return Err(Errno::EINVAL);
    }
    let limit = match c.uint(4) {
        _ if timeout == 0 => Limit::Forever,
        clock @ (linux::CLOCK_REALTIME | linux::CLOCK_MONOTONIC) => {
            until(timeout, true, clock == linux::CLOCK_REALTIME)?
        }
        _ => return Err(Errno::EINVAL),
    };
    let mut wanted = Vec::with_capacity(count);
    for n in 0..count {
        let one: FutexWaitv = get(list.wrapping_add((n * size_of::<FutexWaitv>()) as u64))?;
        if one.flags & !linux::FUTEX_PRIVATE_FLAG != FUTEX_32 || one.reserved != 0 {
            return Err(Errno::EINVAL);
        }
        let value = u32::try_from(one.value).map_err(|_| Errno::EINVAL)?;
        wanted.push((one, value));
    }
    let mut waiters = Vec::with_capacity(count);
    for (one, value) in wanted {
        let key = key(c.task, one.addr, one.flags & linux::FUTEX_PRIVATE_FLAG != 0)?;
        let waiter = Waiter::new(c.task.thread());
        waiter.bits.store(!0, Ordering::Relaxed);
        waiter.put_at(key);
        waiter.urgency.store(c.task.urgency(), Ordering::Relaxed);
        waiters.push((Arc::new(waiter), key, one.addr, value));
    }
    // Takes those that are in their buckets out. Value: the last one that was woken.
    let leave_all = |waiters: &[(Arc<Waiter>, Key, u64, u32)]| {
        let mut woken = None;
        for (n, (waiter, ..)) in waiters.iter().enumerate() {
            if !leave(waiter) {
                woken = Some(n as u64);
            }
        }
        woken
    };
    for (n, (waiter, key, addr, value)) in waiters.iter().enumerate() {
        let problem = loop {
            let mut line = bucket(*key).lock();
            match user::try_load_u32(*addr) {
                Ok(Some(now)) if now == *value => {
                    line_up(&mut line, waiter.clone());
                    break None;
                }
                Ok(Some(_)) => break Some(Errno::EAGAIN),
                Err(e) => break Some(e),
                Ok(None) => {
                    drop(line);
                    if let Err(e) = user::bring_in(*addr, false) {
                        break Some(e);
                    }
                }
            }
        };
        if let Some(problem) = problem {
            return leave_all(&waiters[..n]).ok_or(problem);
        }
    }
    loop {
        let is_woken = waiters.iter().any(|(waiter, ..)| waiter.woken.load(Ordering::Acquire));
        let why = if is_woken { Some(Errno::EAGAIN) } else { is_over(&waiters[0].0, limit) };
        if let Some(why) = why {
            // Its time is a moment, so that it can begin anew.
            let why = if why == Errno::RESTART_NOHAND { Errno::RESTART } else { why };
            return leave_all(&waiters).ok_or(why);
        }
        match limit {
            Limit::Until(deadline) => atoll_task::park_until(deadline),
            _ => atoll_task::park(),
        }
    }
}

/// Longest robust list that is followed (Linux's ROBUST_LIST_LIMIT).
const ROBUST_MAX: u32 = 2048;

/// A task ends: its robust locks are marked and their waiters told.
pub fn task_ends(task: &Task) {
    let head = task.robust_list.swap(0, Ordering::Relaxed);
    if head == 0 {
        return;
    }
    let walk = || -> Result<()> {
        let offset: i64 = get(head.wrapping_add(8))?;
        let pending: u64 = get(head.wrapping_add(16))?;
        let mut entry: u64 = get(head)?;
        let mut n = 0;
        while entry & !1 != head && n < ROBUST_MAX {
            let next: u64 = get(entry & !1).unwrap_or(head);
            if entry & !1 != pending & !1 {
                mark_dead(task, (entry & !1).wrapping_add_signed(offset), entry & 1 != 0, false)?;
            }
            entry = next;
            n += 1;
        }
        if pending != 0 {
            mark_dead(task, (pending & !1).wrapping_add_signed(offset), pending & 1 != 0, true)?;
        }
        Ok(())
    };
    // A broken list is the program's own affair.
    let _ = walk();
}

fn mark_dead(task: &Task, addr: u64, pi: bool, pending: bool) -> Result<()> {
    let k = key(task, addr, false)?;
    loop {
        let now = user::load_u32(addr)?;
        if pending && !pi && now == 0 {
            // It died between unlocking and waking.
            wake(k, 1, !0);
            return Ok(());
        }
        if now & TID != task.tid() {
            return Ok(());
        }
        if user::compare_exchange_u32(addr, now, now & WAITERS | OWNER_DIED)? == now {
            // Who waits for one with priority inheritance is told once the task is gone.
            if now & WAITERS != 0 && !pi {
                wake(k, 1, !0);
            }
            return Ok(());
        }
    }
}
