//! Calls that make descriptors to wait for, and POSIX timers.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use atoll_abi::grid::Quota;
use atoll_abi::{Errno, Result, platform};
use atoll_fs::inotify::Inotify;
use atoll_fs::types::may;
use atoll_fs::{FileType, OpenFile};
use atoll_sync::RcuArc;
use linux_raw_sys::general as linux;

use super::Call;
use super::time::{cpu_clock, deadline_of, read_clock};
use crate::event::{
    EventFd, PosixTimer, SIGEV_NONE, SIGEV_SIGNAL, SIGEV_THREAD, SIGEV_THREAD_ID, SignalFd, TimerFd,
};
use crate::quota::Held;
use crate::signal;
use crate::types::{Itimerspec, Sigevent, get, get_path, put};

/// One more of a kind that is an open file. ENFILE: there are as many as there may be.
pub fn held(c: &Call, quota: Quota) -> Result<Held> {
    Held::one(quota, &c.task.process.environment).ok_or(Errno::ENFILE)
}

fn open(c: &Call, file: Arc<dyn atoll_fs::File>, flags: u32) -> Result<u64> {
    let opened = RcuArc::new(OpenFile::new(file, linux::O_RDWR | flags & linux::O_NONBLOCK));
    c.install(opened, flags & linux::O_CLOEXEC != 0)
}

/// `eventfd2(2)`.
pub fn eventfd2(c: &mut Call) -> Result<u64> {
    let flags = c.uint(1);
    if flags & !(linux::EFD_CLOEXEC | linux::EFD_NONBLOCK | linux::EFD_SEMAPHORE) != 0 {
        return Err(Errno::EINVAL);
    }
    let held = held(c, Quota::Events)?;
    let e = EventFd::new(u64::from(c.uint(0)), flags & linux::EFD_SEMAPHORE != 0, held);
    open(c, Arc::new(e), flags)
}

/// `eventfd(2)`.
pub fn eventfd(c: &mut Call) -> Result<u64> {
    let held = held(c, Quota::Events)?;
    open(c, Arc::new(EventFd::new(u64::from(c.uint(0)), false, held)), 0)
}

/// `timerfd_create(2)`.
pub fn timerfd_create(c: &mut Call) -> Result<u64> {
    let flags = c.uint(1);
    if flags & !(linux::TFD_CLOEXEC | linux::TFD_NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    if c.uint(0) == linux::CLOCK_TAI || deadline_of(c.int(0), 0).is_err() {
        return Err(Errno::EINVAL);
    }
    let held = held(c, Quota::Timers)?;
    open(c, Arc::new(TimerFd::new(c.int(0), held)), flags)
}

fn timer_deadline(clock: i32, spec: &Itimerspec, absolute: bool) -> Result<(Option<u64>, u64)> {
    let (value, interval) = (spec.value.to_ns()?, spec.interval.to_ns()?);
    if value == 0 {
        return Ok((None, interval));
    }
    let deadline = if absolute { deadline_of(clock, value)? } else { platform().now().saturating_add(value) };
    Ok((Some(deadline), interval))
}

/// `timerfd_settime(2)`.
pub fn timerfd_settime(c: &mut Call) -> Result<u64> {
    let file = c.file(0)?;
    let t = file.as_type::<TimerFd>().ok_or(Errno::EINVAL)?;
    if c.uint(1) & !(linux::TFD_TIMER_ABSTIME | linux::TFD_TIMER_CANCEL_ON_SET) != 0 {
        return Err(Errno::EINVAL);
    }
    let spec: Itimerspec = get(c.arg(2))?;
    let (deadline, interval) = timer_deadline(t.clock, &spec, c.uint(1) & linux::TFD_TIMER_ABSTIME != 0)?;
    let old = t.set(deadline, interval, c.uint(1));
    if c.arg(3) != 0 {
        put(c.arg(3), &old)?;
    }
    Ok(0)
}

/// `timerfd_gettime(2)`.
pub fn timerfd_gettime(c: &mut Call) -> Result<u64> {
    let file = c.file(0)?;
    put(c.arg(1), &file.as_type::<TimerFd>().ok_or(Errno::EINVAL)?.get()).map(|()| 0)
}

fn do_signalfd(c: &Call, flags: u32) -> Result<u64> {
    if c.arg(2) != 8 || flags & !(linux::O_CLOEXEC | linux::O_NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    let mask: u64 = get(c.arg(1))?;
    if c.int(0) == -1 {
        let held = held(c, Quota::Events)?;
        return open(c, Arc::new(SignalFd::new(mask, held)), flags);
    }
    let file = c.file(0)?;
    file.as_type::<SignalFd>().ok_or(Errno::EINVAL)?.set_mask(mask);
    Ok(c.arg(0))
}

/// `signalfd4(2)`.
pub fn signalfd4(c: &mut Call) -> Result<u64> {
    do_signalfd(c, c.uint(3))
}

/// `signalfd(2)`.
pub fn signalfd(c: &mut Call) -> Result<u64> {
    do_signalfd(c, 0)
}

/// `inotify_init1(2)`.
pub fn inotify_init1(c: &mut Call) -> Result<u64> {
    make_inotify(c, c.uint(0))
}

fn make_inotify(c: &Call, flags: u32) -> Result<u64> {
    if flags & !(linux::IN_CLOEXEC | linux::IN_NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    let opened = OpenFile::new(Arc::new(Inotify::new()?), linux::O_RDONLY | flags & linux::O_NONBLOCK);
    c.install(RcuArc::new(opened), flags & linux::O_CLOEXEC != 0)
}

/// `inotify_init(2)`.
pub fn inotify_init(c: &mut Call) -> Result<u64> {
    make_inotify(c, 0)
}

/// `inotify_add_watch(2)`.
pub fn inotify_add_watch(c: &mut Call) -> Result<u64> {
    let mask = c.uint(2);
    Inotify::check(mask)?;
    let file = c.file(0)?;
    let i = file.as_type::<Inotify>().ok_or(Errno::EINVAL)?;
    let path = get_path(c.arg(1))?;
    let place = super::path::place(c.task, &path, mask & linux::IN_DONT_FOLLOW == 0)?;
    if mask & linux::IN_ONLYDIR != 0 && place.inode.kind() != FileType::Directory {
        return Err(Errno::ENOTDIR);
    }
    c.task.cred().check(&place.inode.attr()?, may::READ)?;
    i.add(&*place.inode, mask).map(|n| n as u64)
}

/// `inotify_rm_watch(2)`.
pub fn inotify_rm_watch(c: &mut Call) -> Result<u64> {
    let file = c.file(0)?;
    file.as_type::<Inotify>().ok_or(Errno::EINVAL)?.remove(c.int(1)).map(|()| 0)
}

/// `timer_create(2)`.
pub fn timer_create(c: &mut Call) -> Result<u64> {
    let clock = c.int(0);
    read_clock(c.task, clock)?;
    let cpu = cpu_clock(c.task, clock)?;
    if cpu.is_none() && deadline_of(clock, 0).is_err() {
        return Err(Errno::EOPNOTSUPP);
    }
    let process = &c.task.process;
    let mut timers = process.timers.lock();
    if timers.len() as u64 >= process.limit(linux::RLIMIT_SIGPENDING).cur {
        return Err(Errno::EAGAIN);
    }
    // One after the other, as on Linux, so that it is not looked for among all there are.
    let after = |n: i32| n.checked_add(1).unwrap_or(0);
    let mut id = process.next_timer.load(Ordering::Relaxed);
    while timers.contains_key(&id) {
        id = after(id);
    }
    let event: Sigevent = if c.arg(1) == 0 {
        Sigevent {
            value: id as u64,
            signo: linux::SIGALRM as i32,
            notify: SIGEV_SIGNAL,
            ..Sigevent::default()
        }
    } else {
        get(c.arg(1))?
    };
    match event.notify {
        SIGEV_NONE | SIGEV_SIGNAL | SIGEV_THREAD => {}
        SIGEV_THREAD_ID => {
            let t = crate::process::find_task(event.tid as u32).ok_or(Errno::EINVAL)?;
            if t.process.pid != process.pid {
                return Err(Errno::EINVAL);
            }
        }
        _ => return Err(Errno::EINVAL),
    }
    if event.notify != SIGEV_NONE && !(1..=signal::MAX).contains(&(event.signo as u32)) {
        return Err(Errno::EINVAL);
    }
    let held = Held::one(Quota::Timers, &process.environment).ok_or(Errno::EAGAIN)?;
    put(c.arg(2), &id)?;
    process.next_timer.store(after(id), Ordering::Relaxed);
    timers.insert(id, PosixTimer::new(process, id, clock, cpu, event, held));
    Ok(0)
}

/// `timer_settime(2)`.
pub fn timer_settime(c: &mut Call) -> Result<u64> {
    if c.arg(2) == 0 {
        return Err(Errno::EINVAL);
    }
    let spec: Itimerspec = get(c.arg(2))?;
    let timers = c.task.process.timers.lock();
    let t = timers.get(&c.int(0)).ok_or(Errno::EINVAL)?;
    let absolute = c.uint(1) & linux::TIMER_ABSTIME != 0;
    let (deadline, interval) = if cpu_clock(c.task, t.clock).is_ok_and(|cpu| cpu.is_none()) {
        timer_deadline(t.clock, &spec, absolute)?
    } else {
        // On processor time.
        let now = if absolute { 0 } else { t.now() };
        let value = spec.value.to_ns()?;
        ((value != 0).then(|| now.saturating_add(value)), spec.interval.to_ns()?)
    };
    let old = t.get();
    t.set(deadline, interval);
    drop(timers);
    if c.arg(3) != 0 {
        put(c.arg(3), &old)?;
    }
    Ok(0)
}

/// `timer_gettime(2)`.
pub fn timer_gettime(c: &mut Call) -> Result<u64> {
    let value = c.task.process.timers.lock().get(&c.int(0)).ok_or(Errno::EINVAL)?.get();
    put(c.arg(1), &value).map(|()| 0)
}

/// `timer_getoverrun(2)`.
pub fn timer_getoverrun(c: &mut Call) -> Result<u64> {
    Ok(c.task.process.timers.lock().get(&c.int(0)).ok_or(Errno::EINVAL)?.overrun())
}

/// `timer_delete(2)`.
pub fn timer_delete(c: &mut Call) -> Result<u64> {
    let gone = c.task.process.timers.lock().remove(&c.int(0)).ok_or(Errno::EINVAL)?;
    drop(gone);
    Ok(0)
}
