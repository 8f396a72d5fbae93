//! Deadlines: sleeping threads and calls to be made later.
//!
//! Each core keeps its own, in order; the platform is asked for the earliest
//! only while something runs that does not come by the scheduler by itself.
//!
//! A thread holds the timers that it has asked for last: when it moves to another core they go with it (OmniRE section 4.1: service
//! points serve for transferring resources as a thread migrates). Those that are not in its list follow it when they run out next.
#![allow(unsafe_code, reason = "keeps references to threads, which are never freed")]

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use crate::core_state::{Mail, core, this_core, with_private};
use crate::messages::{self, Labels};
use crate::scheduler;
use crate::thread::{Thread, ThreadRef, current};
use atoll_abi::core_local::core_local;
use atoll_abi::grid::Resource;
use atoll_abi::layout::MAX_CORES;
use atoll_abi::platform;
use atoll_grid::message::Message;
use atoll_sync::{Mutex, MutexGuard};

/// Deadline and a number that makes it unique: it may go to another core.
pub(crate) type TimerKey = (u64, u64);

/// The most timers that go with a thread when it moves. Others follow the next time that they run out.
const HELD: usize = 64;

pub(crate) enum TimerEntry {
    Thread(ThreadRef),
    Callback(Callback),
}

/// A call to be made.
pub(crate) struct Callback {
    message: Message,
    timer: Arc<Inner>,
    /// The thread that has it in its list.
    holder: Option<ThreadRef>,
}

impl Callback {
    /// It is not among this core's timers any more: its thread does not hold it.
    fn let_go(&self, key: TimerKey) {
        // A thread that has moved has taken with it what it held.
        if let Some(t) = self.holder.filter(|t| t.core() == core_local().id()) {
            t.with_timers(|held| held.retain(|k| *k != key));
        }
    }
}

/// Puts an entry into this core's timers.
pub(crate) fn insert(deadline: u64, entry: TimerEntry) -> TimerKey {
    let on = core_local().id() as u64;
    with_private(|p| {
        p.timer_sequence += 1;
        let key = (deadline, p.timer_sequence * MAX_CORES as u64 + on);
        p.timers.insert(key, entry);
        key
    })
}

/// Takes a thread's entry out of the timers of the core that has it.
pub(crate) fn cancel(on: usize, key: TimerKey) {
    if on == core_local().id() {
        forget(key);
    } else {
        core(on).send(Mail::CancelTimer(key));
    }
}

/// Takes a thread's entry out of this core's timers. If it isn't there, it has run out, or gone to core 0 when this one was not used.
pub(crate) fn forget(key: TimerKey) {
    let (gone, lent) = with_private(|p| (p.timers.remove(&key), p.timers_left));
    if gone.is_none() && lent && core_local().id() != 0 {
        core(0).send(Mail::CancelTimer(key));
    }
}

/// Takes a call out of the timers of the core that has it.
fn cancel_call(timer: &Arc<Inner>, key: TimerKey) {
    let on = timer.core.load(Ordering::Acquire);
    if on == core_local().id() {
        forget_call(timer, key);
    } else {
        core(on).send(Mail::CancelCall(key, timer.clone()));
    }
}

/// Takes a call out of this core's timers. If it isn't there, it has run out, or gone elsewhere.
pub(crate) fn forget_call(timer: &Arc<Inner>, key: TimerKey) {
    match with_private(|p| p.timers.remove(&key)) {
        Some(TimerEntry::Callback(call)) => call.let_go(key),
        Some(TimerEntry::Thread(_)) => unreachable!("a number is of one entry"),
        None if timer.core.load(Ordering::Acquire) != core_local().id() => cancel_call(timer, key),
        None => {}
    }
}

/// Sends timers to another core.
fn send(to: usize, timers: BTreeMap<TimerKey, TimerEntry>) {
    let call = |entry: &TimerEntry| match entry {
        TimerEntry::Callback(call) => Some(call.timer.clone()),
        TimerEntry::Thread(_) => None,
    };
    let calls: Vec<Arc<Inner>> = timers.values().filter_map(call).collect();
    core(to).send(Mail::Timers(timers));
    // Only then: who sees this and wants one forgotten comes after them.
    calls.iter().for_each(|timer| timer.core.store(to, Ordering::Release));
}

/// All timers of this core go to core 0.
pub(crate) fn hand_over() {
    let mut timers = with_private(|p| {
        p.timers_left |= !p.timers.is_empty();
        core::mem::take(&mut p.timers)
    });
    if timers.is_empty() {
        return;
    }
    for (key, entry) in &mut timers {
        if let TimerEntry::Callback(call) = entry {
            // Its thread goes elsewhere.
            call.let_go(*key);
            call.holder = None;
        }
    }
    send(0, timers);
    scheduler::poke(0);
}

/// A thread of this core goes to another one, with the timers that it holds. Value: when the first of these is due; `u64::MAX`: it holds
/// none.
#[inline]
pub(crate) fn go_with(t: ThreadRef, to: usize) -> u64 {
    if t.timers() == 0 { u64::MAX } else { move_held(t, to) }
}

#[cold]
fn move_held(t: ThreadRef, to: usize) -> u64 {
    let keys = t.with_timers(core::mem::take).unwrap_or_default();
    let take = |key: TimerKey| with_private(|p| Some((key, p.timers.remove(&key)?)));
    let timers: BTreeMap<TimerKey, TimerEntry> = keys.into_iter().filter_map(take).collect();
    t.with_timers(|held| held.extend(timers.keys()));
    let due = timers.first_key_value().map_or(u64::MAX, |(key, _)| key.0);
    send(to, timers);
    due
}

/// Takes over another core's.
pub(crate) fn take_over(mut timers: BTreeMap<TimerKey, TimerEntry>) {
    with_private(|p| {
        p.timers.append(&mut timers);
        p.brief = false;
    });
    scheduler::rearm(this_core());
}

/// Wakes who is due, and has the event thread make the calls that are.
#[inline]
pub(crate) fn expire(now: u64) {
    if with_private(|p| !p.timers.is_empty()) {
        expire_due(now);
    }
}

#[inline(never)]
fn expire_due(now: u64) {
    loop {
        let thread = with_private(|p| {
            while let Some(first) = p.timers.first_entry() {
                let key = *first.key();
                if key.0 > now {
                    break;
                }
                match first.remove() {
                    TimerEntry::Thread(t) => return Some(t),
                    TimerEntry::Callback(call) => {
                        call.let_go(key);
                        p.messages.push(call.message, now);
                    }
                }
            }
            None
        });
        match thread {
            Some(t) => scheduler::unpark(t),
            None => return scheduler::wake_event_thread(),
        }
    }
}

/// Sleeps until a time on [`atoll_abi::Platform::now`]'s clock, or until unparked.
pub fn sleep_until(deadline: u64) {
    scheduler::park_until(deadline);
}

/// A call to be made at a time, again and again if wanted.
///
/// The call is made in a core's event thread; it may take locks. Cloning
/// shares the timer.
#[derive(Clone)]
pub struct Timer {
    inner: Arc<Inner>,
}

/// What a call says of the next times of a timer with an interval: none of them is before so many nanoseconds from now, or before
/// [`Timer::resume`]. It may be as long as it takes ([`Hold::UNTIL_RESUMED`]).
pub struct Hold(pub u64);

impl Hold {
    /// The next time comes when the interval says so.
    pub const NOT: Hold = Hold(0);
    /// None comes.
    pub const UNTIL_RESUMED: Hold = Hold(u64::MAX);
}

type Call = dyn Fn(u64) -> Hold + Send + Sync;

pub(crate) struct Inner {
    armed: Mutex<Option<TimerKey>>,
    /// The core that has the entry, if it is armed.
    core: AtomicUsize,
    /// Next deadline, 0 when there is none. It is armed for a later one where the call says so.
    deadline: AtomicU64,
    interval: AtomicU64,
    /// The thread that has asked for it last, and its id: where that is, it runs out next.
    home: AtomicPtr<Thread>,
    home_id: AtomicU64,
    /// Grows with each change, so that an entry or a call that was on its way is told from a new one.
    generation: AtomicU64,
    /// Called with the number of times that the timer ran out since the last call.
    call: alloc::boxed::Box<Call>,
}

impl Timer {
    /// A timer that is not running.
    pub fn new(call: impl Fn(u64) -> Hold + Send + Sync + 'static) -> Self {
        Timer {
            inner: Arc::new(Inner {
                armed: Mutex::new(None),
                deadline: AtomicU64::new(0),
                interval: AtomicU64::new(0),
                core: AtomicUsize::new(0),
                home: AtomicPtr::new(null_mut()),
                home_id: AtomicU64::new(0),
                generation: AtomicU64::new(0),
                call: alloc::boxed::Box::new(call),
            }),
        }
    }

    /// Starts it: first at `deadline`, then every `interval` ns if that is not 0.
    pub fn start(&self, deadline: u64, interval: u64) {
        self.inner.belongs_to(current());
        let mut armed = self.inner.armed.lock();
        self.inner.disarm(&mut armed);
        self.inner.interval.store(interval, Ordering::Relaxed);
        self.inner.deadline.store(deadline.max(1), Ordering::Relaxed);
        *armed = Some(self.inner.clone().arm(deadline));
    }

    /// Stops it.
    pub fn stop(&self) {
        self.stop_with(0);
    }

    /// Stops it, and says what its interval is, which is only told.
    pub fn stop_with(&self, interval: u64) {
        let mut armed = self.inner.armed.lock();
        self.inner.disarm(&mut armed);
        self.inner.interval.store(interval, Ordering::Relaxed);
    }

    /// Makes the call now, in the caller's thread, if the time for it has come and the core that is to make it is late.
    ///
    /// A thread that waits for a timer calls this first: where it is, the timer runs out from the next time on.
    pub fn catch_up(&self) {
        self.inner.belongs_to(current());
        let deadline = self.inner.deadline.load(Ordering::Relaxed);
        if deadline == 0 || platform().now() < deadline {
            return;
        }
        let mut armed = self.inner.armed.lock();
        // Nobody else was faster.
        if self.inner.deadline.load(Ordering::Relaxed) == deadline {
            self.inner.change(&mut armed);
            self.inner.clone().run_out(armed);
        }
    }

    /// Whatever the call held back the next times for is over: they come by the interval again. Value: how many were left out.
    pub fn resume(&self) -> u64 {
        let mut armed = self.inner.armed.lock();
        let (deadline, interval) =
            (self.inner.deadline.load(Ordering::Relaxed), self.inner.interval.load(Ordering::Relaxed));
        if deadline == 0 || interval == 0 || armed.is_some_and(|key| key.0 <= deadline) {
            return 0;
        }
        let now = platform().now();
        let times = if now < deadline { 0 } else { (now - deadline) / interval + 1 };
        let next = deadline.saturating_add(times.saturating_mul(interval));
        self.inner.change(&mut armed);
        self.inner.deadline.store(next, Ordering::Relaxed);
        *armed = Some(self.inner.clone().arm(next));
        times
    }

    /// Nanoseconds until it runs out next (0: not running), and its interval.
    pub fn remaining(&self) -> (u64, u64) {
        let interval = self.inner.interval.load(Ordering::Relaxed);
        let deadline = self.inner.deadline.load(Ordering::Relaxed);
        if deadline == 0 {
            return (0, interval);
        }
        let now = platform().now();
        match now.saturating_sub(deadline).checked_rem(interval) {
            // Some were left out.
            Some(over) if now > deadline => (interval - over, interval),
            _ => (deadline.saturating_sub(now).max(1), interval),
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // The armed entry holds two references, this handle the third.
        if Arc::strong_count(&self.inner) <= 3 {
            self.stop();
        }
    }
}

impl Inner {
    fn belongs_to(&self, t: ThreadRef) {
        self.home.store(core::ptr::from_ref(t).cast_mut(), Ordering::Relaxed);
        self.home_id.store(t.id(), Ordering::Relaxed);
    }

    /// The thread that has asked for it last, if that is still the same.
    fn home(&self) -> Option<ThreadRef> {
        // SAFETY: threads are never freed.
        let t = unsafe { self.home.load(Ordering::Relaxed).as_ref() }?;
        (t.id() == self.home_id.load(Ordering::Relaxed)).then_some(t)
    }

    /// The same, if it can hold one that this core has.
    fn holder(&self) -> Option<ThreadRef> {
        let can =
            |t: &ThreadRef| t.core() == core_local().id() && t.may_hold() && (t.timers() as usize) < HELD;
        self.home().filter(can)
    }

    /// What is armed or on its way does not count any more.
    fn change(self: &Arc<Self>, armed: &mut Option<TimerKey>) {
        self.generation.fetch_add(1, Ordering::Relaxed);
        if let Some(key) = armed.take() {
            cancel_call(self, key);
        }
    }

    fn disarm(self: &Arc<Self>, armed: &mut Option<TimerKey>) {
        self.change(armed);
        self.deadline.store(0, Ordering::Relaxed);
    }

    /// With the lock held, like all that follow.
    fn arm(self: Arc<Self>, deadline: u64) -> TimerKey {
        let generation = self.generation.fetch_add(1, Ordering::Relaxed) + 1;
        let (timer, holder) = (self.clone(), self.holder());
        let message = messages::message(Resource::Timer, move || {
            let mut armed = self.armed.lock();
            if self.generation.load(Ordering::Relaxed) == generation {
                *armed = None;
                self.clone().run_out(armed);
            }
        });
        timer.core.store(core_local().id(), Ordering::Release);
        let key = insert(deadline, TimerEntry::Callback(Callback { message, timer, holder }));
        if let Some(t) = holder {
            t.with_timers(|held| held.push(key));
        }
        with_private(|p| p.brief = false);
        scheduler::rearm(this_core());
        key
    }

    /// The same on the core that it is for. None: it does so itself, soon.
    fn arm_at_home(self: Arc<Self>, deadline: u64) -> Option<TimerKey> {
        let home = self.home().map_or(core_local().id(), |t| t.core());
        // One that is not used any more hands over what it has, and makes no calls.
        if home == core_local().id() || !crate::is_online(home) {
            return Some(self.arm(deadline));
        }
        let generation = self.generation.load(Ordering::Relaxed);
        // It has not run out: no gate is to hold that back.
        messages::send_past(messages::for_whom(), home, Labels::NONE, Resource::Timer, move || {
            let mut armed = self.armed.lock();
            if self.generation.load(Ordering::Relaxed) == generation && armed.is_none() {
                *armed = Some(self.clone().arm(deadline));
            }
        });
        None
    }

    /// It has run out, if the time has come, and nothing is armed: makes the call, and arms what comes next.
    fn run_out(self: Arc<Self>, armed: MutexGuard<'_, Option<TimerKey>>) {
        let (deadline, interval) =
            (self.deadline.load(Ordering::Relaxed), self.interval.load(Ordering::Relaxed));
        let now = platform().now();
        if deadline == 0 {
            return;
        }
        let late = now.saturating_sub(deadline).checked_div(interval);
        let times = late.map_or(1, |late| late + 1);
        let next = late.map_or(0, |_| deadline.saturating_add(times.saturating_mul(interval)));
        self.deadline.store(next, Ordering::Relaxed);
        let generation = self.generation.load(Ordering::Relaxed);
        drop(armed);
        let Hold(hold) = (self.call)(times);
        if next == 0 || hold == u64::MAX {
            return;
        }
        let mut armed = self.armed.lock();
        // Else it was set anew, stopped or resumed meanwhile.
        if self.generation.load(Ordering::Relaxed) == generation {
            let left_out = now.saturating_add(hold).saturating_sub(next).div_ceil(interval);
            let at = next.saturating_add(left_out.saturating_mul(interval));
            *armed = self.clone().arm_at_home(at);
        }
    }
}
