//! Deadlines: sleeping threads and calls to be made later.
//!
//! Each core keeps its own, in order; the platform is asked for the earliest
//! only while something runs that does not come by the scheduler by itself.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::core_state::{Mail, core, this_core, with_private};
use crate::messages::{self, Labels};
use crate::scheduler;
use crate::thread::ThreadRef;
use atoll_abi::core_local::core_local;
use atoll_abi::grid::Resource;
use atoll_abi::layout::MAX_CORES;
use atoll_abi::platform;
use atoll_grid::message::Message;
use atoll_sync::Mutex;

/// Deadline and a number that makes it unique: it may go to another core.
pub(crate) type TimerKey = (u64, u64);

pub(crate) enum TimerEntry {
    Thread(ThreadRef),
    Callback(Message),
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

/// Takes an entry out of the timers of the core that has it.
pub(crate) fn cancel(on: usize, key: TimerKey) {
    if on == core_local().id() {
        forget(key);
    } else {
        core(on).send(Mail::CancelTimer(key));
    }
}

/// Takes an entry out of this core's timers. If it isn't there, it has run out, or gone to core 0 when this one was not used.
pub(crate) fn forget(key: TimerKey) {
    let (gone, lent) = with_private(|p| (p.timers.remove(&key), p.timers_left));
    if gone.is_none() && lent && core_local().id() != 0 {
        core(0).send(Mail::CancelTimer(key));
    }
}

/// All timers of this core go to core 0.
pub(crate) fn hand_over() {
    let timers = with_private(|p| {
        p.timers_left |= !p.timers.is_empty();
        core::mem::take(&mut p.timers)
    });
    if !timers.is_empty() {
        core(0).send(Mail::Timers(timers));
        scheduler::poke(0);
    }
}

/// Takes over another core's.
pub(crate) fn take_over(mut timers: BTreeMap<TimerKey, TimerEntry>) {
    with_private(|p| p.timers.append(&mut timers));
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
                if first.key().0 > now {
                    break;
                }
                match first.remove() {
                    TimerEntry::Thread(t) => return Some(t),
                    TimerEntry::Callback(message) => p.messages.push(message, now),
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

struct Armed {
    core: usize,
    key: TimerKey,
}

/// A call to be made at a time, again and again if wanted.
///
/// The call is made in a core's event thread; it may take locks. Cloning
/// shares the timer.
#[derive(Clone)]
pub struct Timer {
    inner: Arc<Inner>,
}

struct Inner {
    armed: Mutex<Option<Armed>>,
    /// Next deadline, 0 when there is none.
    deadline: AtomicU64,
    interval: AtomicU64,
    /// The core that has asked for it last: where it runs out next.
    home: AtomicUsize,
    /// Grows with each change, so that a call that was on its way is told from a new one.
    generation: AtomicU64,
    /// Called with the number of times that the timer ran out since the last call.
    call: alloc::boxed::Box<dyn Fn(u64) + Send + Sync>,
}

impl Timer {
    /// A timer that is not running.
    pub fn new(call: impl Fn(u64) + Send + Sync + 'static) -> Self {
        Timer {
            inner: Arc::new(Inner {
                armed: Mutex::new(None),
                deadline: AtomicU64::new(0),
                interval: AtomicU64::new(0),
                home: AtomicUsize::new(0),
                generation: AtomicU64::new(0),
                call: alloc::boxed::Box::new(call),
            }),
        }
    }

    /// Starts it: first at `deadline`, then every `interval` ns if that is not 0.
    pub fn start(&self, deadline: u64, interval: u64) {
        self.inner.home.store(core_local().id(), Ordering::Relaxed);
        let mut armed = self.inner.armed.lock();
        self.inner.disarm(&mut armed);
        self.inner.interval.store(interval, Ordering::Relaxed);
        self.inner.deadline.store(deadline.max(1), Ordering::Relaxed);
        *armed = Some(self.inner.clone().arm(deadline));
    }

    /// Stops it.
    pub fn stop(&self) {
        let mut armed = self.inner.armed.lock();
        self.inner.disarm(&mut armed);
    }

    /// Makes the call now, in the caller's thread, if the time for it has come and the core that is to make it is late.
    ///
    /// A thread that waits for a timer calls this first: where it is, the timer runs out from the next time on.
    pub fn catch_up(&self) {
        self.inner.home.store(core_local().id(), Ordering::Relaxed);
        let deadline = self.inner.deadline.load(Ordering::Relaxed);
        if deadline != 0 && platform().now() >= deadline {
            let generation = self.inner.generation.load(Ordering::Relaxed);
            self.inner.clone().ran_out(generation);
        }
    }

    /// Nanoseconds until it runs out next (0: not running), and its interval.
    pub fn remaining(&self) -> (u64, u64) {
        let interval = self.inner.interval.load(Ordering::Relaxed);
        match self.inner.deadline.load(Ordering::Relaxed) {
            0 => (0, interval),
            d => (d.saturating_sub(platform().now()).max(1), interval),
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // The armed entry holds one reference, this handle the other.
        if Arc::strong_count(&self.inner) <= 2 {
            self.stop();
        }
    }
}

impl Inner {
    fn disarm(&self, armed: &mut Option<Armed>) {
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.deadline.store(0, Ordering::Relaxed);
        if let Some(a) = armed.take() {
            cancel(a.core, a.key);
        }
    }

    fn arm(self: Arc<Self>, deadline: u64) -> Armed {
        let generation = self.generation.load(Ordering::Relaxed);
        let on = core_local().id();
        let message = messages::message(Resource::Timer, move || self.ran_out(generation));
        let key = insert(deadline, TimerEntry::Callback(message));
        scheduler::rearm(this_core());
        Armed { core: on, key }
    }

    /// The same on the core that it is for. None: it does so itself, soon.
    fn arm_at_home(self: Arc<Self>, deadline: u64, generation: u64) -> Option<Armed> {
        let home = self.home.load(Ordering::Relaxed);
        // One that is not used any more hands over what it has, and makes no calls.
        if home == core_local().id() || !crate::is_online(home) {
            return Some(self.arm(deadline));
        }
        messages::send(home, Labels::NONE, Resource::Timer, move || {
            let mut armed = self.armed.lock();
            if self.generation.load(Ordering::Relaxed) == generation && armed.is_none() {
                *armed = Some(self.clone().arm(deadline));
            }
        });
        None
    }

    fn ran_out(self: Arc<Self>, generation: u64) {
        let mut armed = self.armed.lock();
        if self.generation.load(Ordering::Relaxed) != generation {
            return;
        }
        let deadline = self.deadline.load(Ordering::Relaxed);
        if deadline == 0 || platform().now() < deadline {
            // Somebody caught up meanwhile.
            return;
        }
        let interval = self.interval.load(Ordering::Relaxed);
        let late = platform().now().saturating_sub(deadline).checked_div(interval);
        let times = late.map_or(1, |late| late + 1);
        if late.is_some() {
            let next = deadline + times * interval;
            self.deadline.store(next, Ordering::Relaxed);
            *armed = self.clone().arm_at_home(next, generation);
        } else {
            *armed = None;
            self.deadline.store(0, Ordering::Relaxed);
        }
        drop(armed);
        (self.call)(times);
    }
}
