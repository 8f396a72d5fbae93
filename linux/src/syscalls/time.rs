//! Clocks, sleeping and interval timers.

use alloc::sync::Arc;

use atoll_abi::{Errno, Result, platform};
use atoll_task::{Limit, wait};
use linux_raw_sys::general as linux;

use super::{Call, unsupported};
use crate::cpu_timer::{CpuClock, CpuTimer};
use crate::process::{Process, Task, find_process, find_task};
use crate::signal;
use crate::types::{Itimerval, Siginfo, Timespec, Timeval, Timex, Timezone, get, put};

/// Of `adjtimex(2)` (uapi/linux/timex.h): `modes` as `adjtime(3)` has them,
const ADJ_ADJTIME: u32 = 0x8000;
const ADJ_OFFSET_SINGLESHOT: u32 = 0x0001;
const ADJ_OFFSET_READONLY: u32 = 0x2000;
/// `status`: nobody keeps the clock right, and its answer then,
const STA_UNSYNC: i32 = 0x40;
const TIME_ERROR: u64 = 5;
/// and what Linux says of errors, in us, and of frequencies, in ppm with 16 binary places, at first.
const NTP_PHASE_LIMIT: i64 = 16_000_000;
const MAXFREQ_SCALED: i64 = 500 << 16;

/// Reads a clock, ns.
pub fn read_clock(task: &Task, clock: i32) -> Result<u64> {
    Ok(match clock as u32 {
        // As the vDSO, which is the platform's: a program compares what both say.
        linux::CLOCK_REALTIME
        | linux::CLOCK_MONOTONIC
        | linux::CLOCK_MONOTONIC_RAW
        | linux::CLOCK_REALTIME_COARSE
        | linux::CLOCK_MONOTONIC_COARSE
        | linux::CLOCK_BOOTTIME
        | linux::CLOCK_TAI => platform().clock(clock as u32),
        linux::CLOCK_REALTIME_ALARM => platform().realtime(),
        linux::CLOCK_BOOTTIME_ALARM => platform().clock(linux::CLOCK_BOOTTIME),
        linux::CLOCK_PROCESS_CPUTIME_ID => task.process.used().run_ns,
        linux::CLOCK_THREAD_CPUTIME_ID => task.used().run_ns,
        // A clock device's, of which there are none.
        _ if clock < 0 && clock & 3 == 3 => return Err(Errno::EINVAL),
        _ if clock < 0 => match clock_owner(task, clock)? {
            Owner::Process(p) => p.used().run_ns,
            Owner::Task(t) => t.used().run_ns,
        },
        _ => return Err(Errno::EINVAL),
    })
}

/// Whose processor time a clock tells.
enum Owner {
    Process(Arc<Process>),
    Task(Arc<Task>),
}

/// The owner of a process's or a task's own clock: the id, inverted, above three bits.
fn clock_owner(task: &Task, clock: i32) -> Result<Owner> {
    let id = !(clock >> 3) as u32;
    if clock & 4 != 0 {
        let tid = if id == 0 { task.tid() } else { id };
        find_task(tid).map(Owner::Task)
    } else {
        let pid = if id == 0 { task.process.pid } else { id };
        find_process(pid).map(Owner::Process)
    }
    .ok_or(Errno::EINVAL)
}

/// The processor time that a clock tells, for a timer; None if it follows real time.
pub fn cpu_clock(task: &Task, clock: i32) -> Result<Option<CpuClock>> {
    let own = |bits| !(0i32) << 3 | bits;
    let owner = match clock as u32 {
        linux::CLOCK_PROCESS_CPUTIME_ID => clock_owner(task, own(2))?,
        linux::CLOCK_THREAD_CPUTIME_ID => clock_owner(task, own(6))?,
        _ if clock < 0 => clock_owner(task, clock)?,
        _ => return Ok(None),
    };
    Ok(Some(match owner {
        Owner::Process(p) => CpuClock::Process(Arc::downgrade(&p)),
        Owner::Task(t) => CpuClock::Task(Arc::downgrade(&t)),
    }))
}

/// `clock_gettime(2)`.
pub fn clock_gettime(c: &mut Call) -> Result<u64> {
    let ns = read_clock(c.task, c.int(0))?;
    put(c.arg(1), &Timespec::from_ns(ns)).map(|()| 0)
}

/// `clock_getres(2)`.
pub fn clock_getres(c: &mut Call) -> Result<u64> {
    read_clock(c.task, c.int(0))?;
    let coarse = matches!(c.uint(0), linux::CLOCK_REALTIME_COARSE | linux::CLOCK_MONOTONIC_COARSE);
    if c.arg(1) != 0 {
        put(c.arg(1), &Timespec::from_ns(if coarse { 4_000_000 } else { 1 }))?;
    }
    Ok(0)
}

/// `clock_settime(2)`: the one clock that could be set is the host's.
pub fn clock_settime(c: &mut Call) -> Result<u64> {
    if c.uint(0) != linux::CLOCK_REALTIME {
        return Err(Errno::EINVAL);
    }
    get::<Timespec>(c.arg(1))?.to_ns()?;
    set_clock(c)
}

/// `adjtimex(2)`.
pub fn adjtimex(c: &mut Call) -> Result<u64> {
    adjust(c, c.arg(0))
}

/// `clock_adjtime(2)`: only the one clock can be adjusted at all.
pub fn clock_adjtime(c: &mut Call) -> Result<u64> {
    match c.uint(0) {
        linux::CLOCK_REALTIME => adjust(c, c.arg(1)),
        clock => {
            get::<Timex>(c.arg(1))?;
            read_clock(c.task, clock as i32)?;
            Err(Errno::EOPNOTSUPP)
        }
    }
}

/// Anyone may ask how the clock is adjusted. What the host does to it isn't known here: it is told as on a machine where nobody has
/// adjusted it yet, to which `TIME_ERROR` belongs.
fn adjust(c: &mut Call, at: u64) -> Result<u64> {
    let mut t: Timex = get(at)?;
    if t.modes & ADJ_ADJTIME != 0 {
        if t.modes & ADJ_OFFSET_SINGLESHOT == 0 {
            return Err(Errno::EINVAL);
        }
        if t.modes & ADJ_OFFSET_READONLY == 0 {
            return set_clock(c);
        }
    } else if t.modes != 0 {
        return set_clock(c);
    }
    t = Timex {
        modes: t.modes,
        maxerror: NTP_PHASE_LIMIT,
        esterror: NTP_PHASE_LIMIT,
        status: STA_UNSYNC,
        constant: 2,
        precision: 1,
        tolerance: MAXFREQ_SCALED,
        time: Timeval::from_ns(platform().realtime()),
        tick: 10_000,
        ..Timex::default()
    };
    put(at, &t)?;
    Ok(TIME_ERROR)
}

/// `settimeofday(2)` and who adjusts the clock: it is the host's.
pub fn set_clock(c: &mut Call) -> Result<u64> {
    Err(unsupported(c.task, "setting the clock", Errno::EPERM))
}

/// `gettimeofday(2)`.
pub fn gettimeofday(c: &mut Call) -> Result<u64> {
    if c.arg(0) != 0 {
        put(c.arg(0), &Timeval::from_ns(platform().realtime()))?;
    }
    if c.arg(1) != 0 {
        put(c.arg(1), &Timezone::default())?;
    }
    Ok(0)
}

/// `time(2)`.
pub fn time(c: &mut Call) -> Result<u64> {
    let now = platform().realtime() / 1_000_000_000;
    if c.arg(0) != 0 {
        put(c.arg(0), &now)?;
    }
    Ok(now)
}

/// Sleeps until `deadline` on the monotonic clock. Interrupted: ns that were left.
pub(crate) fn sleep(task: &Task, deadline: u64) -> core::result::Result<(), u64> {
    loop {
        let r = wait(&task.process.life_queue, 0, Limit::Until(deadline), || None::<()>);
        match r {
            Err(Errno::ETIMEDOUT) => return Ok(()),
            _ => {
                if signal::was_for_nothing(task) {
                    continue;
                }
                return Err(deadline.saturating_sub(platform().now()));
            }
        }
    }
}

/// `nanosleep(2)`.
pub fn nanosleep(c: &mut Call) -> Result<u64> {
    let kept = signal::take_deadline(c.task);
    let ns = get::<Timespec>(c.arg(0))?.to_ns()?;
    sleep_for(c.task, kept, ns, c.arg(1))
}

/// Sleeps for so long, or until what was kept; what is left when a handler is to run is written to `rest`, if that is not 0.
fn sleep_for(task: &Task, kept: Option<u64>, ns: u64, rest: u64) -> Result<u64> {
    let deadline = kept.unwrap_or_else(|| platform().now().saturating_add(ns));
    match sleep(task, deadline) {
        Ok(()) => Ok(0),
        Err(left) => {
            if rest != 0 {
                put(rest, &Timespec::from_ns(left))?;
            }
            Err(signal::begin_again_until(task, deadline))
        }
    }
}

/// A clock's time as a deadline on the monotonic clock.
pub fn deadline_of(clock: i32, ns: u64) -> Result<u64> {
    // Read before the monotonic one: nothing is over too soon.
    let says = match clock as u32 {
        linux::CLOCK_REALTIME | linux::CLOCK_REALTIME_ALARM => platform().realtime(),
        linux::CLOCK_TAI => platform().clock(linux::CLOCK_TAI),
        linux::CLOCK_BOOTTIME | linux::CLOCK_BOOTTIME_ALARM => platform().clock(linux::CLOCK_BOOTTIME),
        linux::CLOCK_MONOTONIC => return Ok(ns),
        _ => return Err(Errno::EOPNOTSUPP),
    };
    // What is over is over for so long: a timer counts how often it would have run out since.
    Ok(platform().now().saturating_add(ns).saturating_sub(says).max(1))
}

/// `clock_nanosleep(2)`.
pub fn clock_nanosleep(c: &mut Call) -> Result<u64> {
    let kept = signal::take_deadline(c.task);
    let (clock, absolute) = (c.int(0), c.uint(1) & linux::TIMER_ABSTIME != 0);
    if clock as u32 == linux::CLOCK_THREAD_CPUTIME_ID {
        // The C library's function says EINVAL.
        return Err(Errno::EOPNOTSUPP);
    }
    let now = read_clock(c.task, clock)?;
    let ns = get::<Timespec>(c.arg(2))?.to_ns()?;
    if cpu_clock(c.task, clock)?.is_some() {
        return cpu_nanosleep(c, clock, if absolute { ns } else { now.saturating_add(ns) }, absolute);
    }
    deadline_of(clock, 0)?;
    if !absolute {
        return sleep_for(c.task, kept, ns, c.arg(3));
    }
    sleep(c.task, deadline_of(clock, ns)?).map(|()| 0).map_err(|_| Errno::RESTART_NOHAND)
}

/// Sleeps until a clock of processor time says `target`.
fn cpu_nanosleep(c: &Call, clock: i32, target: u64, absolute: bool) -> Result<u64> {
    loop {
        let now = read_clock(c.task, clock)?;
        if now >= target {
            return Ok(0);
        }
        // It can't pass faster than time on all cores; and not less than a tick.
        let step = ((target - now) / atoll_task::cores().max(1) as u64).max(1_000_000);
        if sleep(c.task, platform().now().saturating_add(step)).is_err() {
            if absolute {
                return Err(Errno::RESTART_NOHAND);
            }
            if c.arg(3) != 0 {
                let left = target.saturating_sub(read_clock(c.task, clock)?);
                put(c.arg(3), &Timespec::from_ns(left))?;
            }
            return Err(Errno::EINTR);
        }
    }
}

const ITIMER_REAL: u32 = 0;
const ITIMER_PROF: u32 = 2;

/// Time left and interval of one of the process's three timers.
fn itimer_value(c: &Call, which: u32) -> Itimerval {
    let p = &c.task.process;
    let (left, interval) = match which {
        ITIMER_REAL => p.alarm.get().map_or((0, 0), |t| t.remaining()),
        n => p.cpu_alarms.lock()[n as usize - 1].as_ref().map_or((0, 0), |t| t.remaining()),
    };
    Itimerval { interval: Timeval::from_ns(interval), value: Timeval::from_ns(left) }
}

/// `getitimer(2)`.
pub fn getitimer(c: &mut Call) -> Result<u64> {
    if c.uint(0) > ITIMER_PROF {
        return Err(Errno::EINVAL);
    }
    let value = itimer_value(c, c.uint(0));
    put(c.arg(1), &value).map(|()| 0)
}

/// `setitimer(2)`. All of a program's processor time is user time here, so
/// ITIMER_VIRTUAL and ITIMER_PROF count the same.
pub fn setitimer(c: &mut Call) -> Result<u64> {
    let new: Itimerval = if c.arg(1) == 0 { Itimerval::default() } else { get(c.arg(1))? };
    let (value, interval) = (new.value.to_ns()?, new.interval.to_ns()?);
    let which = c.uint(0);
    if which > ITIMER_PROF {
        return Err(Errno::EINVAL);
    }
    let old = itimer_value(c, which);
    if which == ITIMER_REAL {
        if let Some(alarm) = c.task.process.alarm.get() {
            if value == 0 {
                alarm.stop();
            } else {
                alarm.start(platform().now().saturating_add(value), interval);
            }
        }
    } else {
        let weak = Arc::downgrade(&c.task.process);
        let signal = if which == ITIMER_PROF { linux::SIGPROF } else { linux::SIGVTALRM };
        let mut alarms = c.task.process.cpu_alarms.lock();
        let alarm = alarms[which as usize - 1].get_or_insert_with(|| {
            CpuTimer::new(CpuClock::Process(weak.clone()), move |_| {
                if let Some(p) = weak.upgrade() {
                    signal::send_process(&p, Siginfo::from_kernel(signal, 0x80));
                }
            })
        });
        alarm.set_from_now(value, interval);
    }
    if c.arg(2) != 0 {
        put(c.arg(2), &old)?;
    }
    Ok(0)
}

/// `alarm(2)`.
pub fn alarm(c: &mut Call) -> Result<u64> {
    let seconds = u64::from(c.uint(0));
    let Some(alarm) = c.task.process.alarm.get() else { return Ok(0) };
    let (left, _) = alarm.remaining();
    if seconds == 0 {
        alarm.stop();
    } else {
        alarm.start(platform().now() + seconds * 1_000_000_000, 0);
    }
    // Rounded, but never to none while something is left (`alarm_setitimer` of Linux).
    Ok(if left > 0 { ((left + 500_000_000) / 1_000_000_000).max(1) } else { 0 })
}

/// Seconds since the machine started, with hundredths: what CLOCK_BOOTTIME says.
pub fn uptime() -> (u64, u64) {
    let ns = platform().now();
    (ns / 1_000_000_000, ns % 1_000_000_000 / 10_000_000)
}
