//! Timers on processor time: ITIMER_VIRTUAL, ITIMER_PROF, POSIX timers on
//! CPU-time clocks.
//!
//! Nothing counts processor time by itself. So such a timer looks when it
//! could have run out at the earliest: when all cores that the process can be
//! on worked for it without a pause. While nothing is used, it looks less and
//! less often, so that a sleeping process costs nothing to speak of; after
//! such a pause it may come late by [`PAUSE_MAX`].

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::Ordering;

use atoll_abi::platform;
use atoll_sync::{Mutex, SetOnce};
use atoll_task::{Hold, Timer};

use crate::process::{Process, Task};

/// Shortest time between two looks, ns.
const PAUSE_MIN: u64 = 100_000;
/// Longest while the process sleeps, ns.
const PAUSE_MAX: u64 = 50_000_000;

/// Whose time.
pub enum CpuClock {
    /// All tasks' of a process.
    Process(Weak<Process>),
    /// One task's.
    Task(Weak<Task>),
}

impl CpuClock {
    /// Nanoseconds used, and how many cores can add to them at a time. None: it has ended.
    fn read(&self) -> Option<(u64, u64)> {
        match self {
            CpuClock::Process(p) => {
                let p = p.upgrade()?;
                let tasks = p.tasks.lock().len();
                let cores = platform().control().descriptor.cores.load(Ordering::Relaxed);
                p.zombie().is_none().then(|| (p.used().run_ns, (tasks as u64).clamp(1, u64::from(cores))))
            }
            CpuClock::Task(t) => t.upgrade().map(|t| (t.used().run_ns, 1)),
        }
    }
}

#[derive(Default)]
struct Setting {
    /// Processor time at which it runs out next; 0: not running.
    target: u64,
    interval: u64,
    /// Processor time at the last look.
    last: u64,
    /// Time to the next look while nothing is used.
    pause: u64,
}

struct Inner {
    clock: CpuClock,
    setting: Mutex<Setting>,
    timer: SetOnce<Timer>,
    /// Called with the number of times that it ran out since the last call.
    call: Box<dyn Fn(u64) + Send + Sync>,
}

/// A timer on processor time.
pub struct CpuTimer {
    inner: Arc<Inner>,
}

impl CpuTimer {
    /// A timer that is not running.
    pub fn new(clock: CpuClock, call: impl Fn(u64) + Send + Sync + 'static) -> Self {
        let inner = Arc::new(Inner {
            clock,
            setting: Mutex::new(Setting::default()),
            timer: SetOnce::new(),
            call: Box::new(call),
        });
        let weak = Arc::downgrade(&inner);
        let timer = Timer::new(move |_| {
            if let Some(inner) = weak.upgrade() {
                inner.look();
            }
            Hold::NOT
        });
        // It is new: nobody else can have set it.
        let _ = inner.timer.set(timer);
        CpuTimer { inner }
    }

    /// Starts it: first when the clock says `target` ns, then every `interval` ns if that is not 0.
    /// `target` None stops it.
    pub fn set(&self, target: Option<u64>, interval: u64) {
        let mut s = self.inner.setting.lock();
        *s = Setting { target: target.map_or(0, |t| t.max(1)), interval, ..Setting::default() };
        drop(s);
        if let Some(t) = self.inner.timer.get() {
            t.stop();
        }
        self.inner.look();
    }

    /// What its clock says, ns.
    pub fn now(&self) -> u64 {
        self.inner.clock.read().map_or(0, |(used, _)| used)
    }

    /// Like [`CpuTimer::set`], with the first time counted from now; 0 stops it.
    pub fn set_from_now(&self, value: u64, interval: u64) {
        self.set((value != 0).then(|| self.now().saturating_add(value)), interval);
    }

    /// Processor time until it runs out next (0: not running), and its interval, ns.
    pub fn remaining(&self) -> (u64, u64) {
        let s = self.inner.setting.lock();
        if s.target == 0 {
            return (0, s.interval);
        }
        (s.target.saturating_sub(self.now()).max(1), s.interval)
    }
}

impl Drop for CpuTimer {
    fn drop(&mut self) {
        self.set(None, 0);
    }
}

impl Inner {
    /// Looks whether it has run out, and when to look next.
    fn look(&self) {
        let mut s = self.setting.lock();
        let Some((used, cores)) = self.clock.read() else { return };
        if s.target == 0 {
            return;
        }
        let mut times = 0;
        if used >= s.target {
            let late = (used - s.target).checked_div(s.interval);
            times = late.map_or(1, |late| late + 1);
            s.target =
                if late.is_some() { s.target.saturating_add(times.saturating_mul(s.interval)) } else { 0 };
        }
        if s.target != 0 {
            let earliest = ((s.target - used) / cores).max(PAUSE_MIN);
            s.pause = if used == s.last { (s.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX) } else { 0 };
            s.last = used;
            if let Some(t) = self.timer.get() {
                t.start(platform().now().saturating_add(earliest.max(s.pause)), 0);
            }
        }
        drop(s);
        if times != 0 {
            (self.call)(times);
        }
    }
}
