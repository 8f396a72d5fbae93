//! Descriptors to wait for: eventfd, timerfd, signalfd; and POSIX timers.

use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::fmt::Write;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use atoll_abi::{Errno, Result};
use atoll_fs::node::At;
use atoll_fs::{File, Sink, Source, poll};
use atoll_sync::{Mutex, WaitQueue};
use atoll_task::{Hold, Limit, Timer, wait};
use zerocopy::IntoBytes;

use crate::cpu_timer::{CpuClock, CpuTimer};
use crate::process::{Process, find_process};
use crate::quota::Held;
use crate::types::{Itimerspec, Sigevent, Siginfo, SignalfdSiginfo, Timespec};
use crate::{current, signal};

fn limit(nonblock: bool) -> Limit {
    if nonblock { Limit::Never } else { Limit::Forever }
}

/// Takes a whole 64-bit word.
fn take_word(source: &mut Source) -> Result<u64> {
    let mut b = [0; 8];
    if source.left() < 8 {
        return Err(Errno::EINVAL);
    }
    source.ensure(8)?;
    source.take(&mut b)?;
    Ok(u64::from_ne_bytes(b))
}

/// `eventfd(2)`.
pub struct EventFd {
    count: Mutex<u64>,
    semaphore: bool,
    /// Which one it is, for `/proc`.
    id: u32,
    queue: WaitQueue,
    _held: Held,
}

impl EventFd {
    /// A counter.
    pub fn new(count: u64, semaphore: bool, held: Held) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        EventFd { count: Mutex::new(count), semaphore, id, queue: WaitQueue::new(), _held: held }
    }

    /// Counts one, if there is room for it (`eventfd_signal` of Linux).
    pub fn signal(&self) {
        {
            let mut count = self.count.lock();
            *count = count.saturating_add(1);
        }
        self.queue.wake_all(poll::IN);
    }
}

impl File for EventFd {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn read(&self, sink: &mut Sink, _at: Option<u64>, nonblock: bool) -> Result<usize> {
        if sink.left() < 8 {
            return Err(Errno::EINVAL);
        }
        let r = wait(&self.queue, poll::IN, limit(nonblock), || {
            let mut count = self.count.lock();
            if *count == 0 {
                return None;
            }
            let value = if self.semaphore { 1 } else { *count };
            let put = sink.ensure(8).and_then(|()| sink.put(&value.to_ne_bytes()));
            if put.is_ok() {
                *count -= value;
            }
            Some(put)
        })??;
        self.queue.wake_all(poll::OUT);
        Ok(r)
    }

    fn write(&self, source: &mut Source, _at: At, nonblock: bool) -> Result<(usize, u64)> {
        let value = take_word(source)?;
        if value == u64::MAX {
            return Err(Errno::EINVAL);
        }
        wait(&self.queue, poll::OUT, limit(nonblock), || {
            let mut count = self.count.lock();
            let sum = count.checked_add(value).filter(|s| *s < u64::MAX)?;
            *count = sum;
            Some(())
        })?;
        self.queue.wake_all(poll::IN);
        Ok((8, 0))
    }

    fn ready(&self) -> u32 {
        let count = *self.count.lock();
        let mut r = 0;
        if count > 0 {
            r |= poll::IN;
        }
        if count < u64::MAX - 1 {
            r |= poll::OUT;
        }
        r
    }

    fn seek(&self, _offset: i64, _whence: u32) -> Result<u64> {
        Ok(0)
    }

    fn queue(&self) -> Option<&WaitQueue> {
        Some(&self.queue)
    }

    fn tell(&self, out: &mut String) -> Result<()> {
        let (count, semaphore) = (*self.count.lock(), u32::from(self.semaphore));
        // A string takes all, here and below.
        let _ = writeln!(
            out,
            "eventfd-count: {count:16x}\neventfd-id: {}\neventfd-semaphore: {semaphore}",
            self.id
        );
        Ok(())
    }

    fn describe(&self) -> Vec<u8> {
        b"anon_inode:[eventfd]".to_vec()
    }
}

/// `pidfd_open(2)`: readable once its process has ended.
pub struct PidFd {
    /// The process, also when it is gone.
    pub process: Arc<Process>,
}

impl File for PidFd {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn read(&self, _: &mut Sink, _: Option<u64>, _: bool) -> Result<usize> {
        Err(Errno::EINVAL)
    }

    fn ready(&self) -> u32 {
        if self.process.zombie().is_none() {
            return 0;
        }
        let is_known = find_process(self.process.pid).is_some_and(|p| Arc::ptr_eq(&p, &self.process));
        // One that isn't was waited for.
        poll::IN | poll::RDNORM | if is_known { 0 } else { poll::HUP }
    }

    fn queue(&self) -> Option<&WaitQueue> {
        Some(&self.process.life_queue)
    }

    fn tell(&self, out: &mut String) -> Result<()> {
        let found = crate::process::find_process(self.process.pid);
        let there = found.is_some_and(|p| Arc::ptr_eq(&p, &self.process));
        let pid = if there { self.process.pid as i32 } else { -1 };
        let _ = writeln!(out, "Pid:\t{pid}\nNSpid:\t{pid}");
        Ok(())
    }

    fn describe(&self) -> Vec<u8> {
        b"anon_inode:[pidfd]".to_vec()
    }
}

struct Expiry {
    count: AtomicU64,
    queue: WaitQueue,
}

/// `timerfd_create(2)`.
pub struct TimerFd {
    /// The clock it was made for.
    pub clock: i32,
    expiry: Arc<Expiry>,
    timer: Timer,
    /// Flags of the last `timerfd_settime(2)`.
    flags: AtomicU32,
    _held: Held,
}

impl TimerFd {
    /// A timer that is not running.
    pub fn new(clock: i32, held: Held) -> Self {
        let expiry = Arc::new(Expiry { count: AtomicU64::new(0), queue: WaitQueue::new() });
        let e = expiry.clone();
        let timer = Timer::new(move |times| {
            e.count.fetch_add(times, Ordering::SeqCst);
            e.queue.wake_all(poll::IN);
            // Nobody is told again before it is read, and then so many are counted as there were (`timerfd_read_iter` of Linux).
            Hold::UNTIL_RESUMED
        });
        TimerFd { clock, expiry, timer, flags: AtomicU32::new(0), _held: held }
    }

    /// Starts or stops it; what was set before.
    pub fn set(&self, deadline: Option<u64>, interval: u64, flags: u32) -> Itimerspec {
        let old = self.get();
        self.flags.store(flags, Ordering::Relaxed);
        self.timer.stop_with(interval);
        self.expiry.count.store(0, Ordering::SeqCst);
        if let Some(d) = deadline {
            self.timer.start(d, interval);
        }
        old
    }

    /// Time left and interval.
    pub fn get(&self) -> Itimerspec {
        if self.expiry.count.load(Ordering::SeqCst) > 0 {
            self.expiry.count.fetch_add(self.timer.resume(), Ordering::SeqCst);
        }
        let (left, interval) = self.timer.remaining();
        Itimerspec { interval: Timespec::from_ns(interval), value: Timespec::from_ns(left) }
    }
}

impl File for TimerFd {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn read(&self, sink: &mut Sink, _at: Option<u64>, nonblock: bool) -> Result<usize> {
        if sink.left() < 8 {
            return Err(Errno::EINVAL);
        }
        self.timer.catch_up();
        let e = &self.expiry;
        wait(&e.queue, poll::IN, limit(nonblock), || {
            let n = e.count.swap(0, Ordering::SeqCst);
            if n == 0 {
                return None;
            }
            let n = n + self.timer.resume();
            let put = sink.ensure(8).and_then(|()| sink.put(&n.to_ne_bytes()));
            if put.is_err() {
                e.count.fetch_add(n, Ordering::SeqCst);
            }
            Some(put)
        })?
    }

    fn ready(&self) -> u32 {
        if self.expiry.count.load(Ordering::SeqCst) > 0 { poll::IN } else { 0 }
    }

    fn seek(&self, _offset: i64, _whence: u32) -> Result<u64> {
        Ok(0)
    }

    fn queue(&self) -> Option<&WaitQueue> {
        Some(&self.expiry.queue)
    }

    fn tell(&self, out: &mut String) -> Result<()> {
        let (left, interval) = self.timer.remaining();
        let two = |ns: u64| (ns / 1_000_000_000, ns % 1_000_000_000);
        let ticks = self.expiry.count.load(Ordering::SeqCst);
        let flags = self.flags.load(Ordering::Relaxed);
        let _ = writeln!(out, "clockid: {}\nticks: {ticks}\nsettime flags: 0{flags:o}", self.clock);
        let _ = writeln!(out, "it_value: {:?}\nit_interval: {:?}", two(left), two(interval));
        Ok(())
    }

    fn describe(&self) -> Vec<u8> {
        b"anon_inode:[timerfd]".to_vec()
    }
}

impl Drop for TimerFd {
    fn drop(&mut self) {
        self.timer.stop();
    }
}

/// `signalfd(2)`: tells whoever reads or polls of that one's signals, not of those of who made it.
pub struct SignalFd {
    polled: Arc<Polled>,
    _held: Held,
}

/// What a process knows of a signalfd that it has polled.
pub struct Polled {
    mask: AtomicU64,
    /// Where those wait who poll it, of whatever process they are.
    queue: WaitQueue,
}

/// The signalfds that a process has polled.
#[derive(Default)]
pub struct SignalFds {
    any: AtomicBool,
    list: Mutex<Vec<Weak<Polled>>>,
}

impl SignalFds {
    /// It polls one.
    fn note(&self, polled: &Arc<Polled>) {
        let mut list = self.list.lock();
        if !list.iter().any(|one| core::ptr::eq(one.as_ptr(), Arc::as_ptr(polled))) {
            list.retain(|one| one.strong_count() > 0);
            list.push(Arc::downgrade(polled));
            // Before it looks at what waits.
            self.any.store(true, Ordering::SeqCst);
        }
    }

    /// A signal waits for it.
    pub fn came(&self, signal: u32) {
        // What waits was written under a lock, which who polls takes after `note`.
        if !self.any.load(Ordering::SeqCst) {
            return;
        }
        let all: Vec<Arc<Polled>> = self.list.lock().iter().filter_map(Weak::upgrade).collect();
        for one in all.iter().filter(|one| one.mask.load(Ordering::Relaxed) & signal::bit(signal) != 0) {
            one.queue.wake_all(1);
        }
    }
}

impl SignalFd {
    /// Reads these signals.
    pub fn new(mask: u64, held: Held) -> Self {
        SignalFd {
            polled: Arc::new(Polled { mask: AtomicU64::new(mask), queue: WaitQueue::new() }),
            _held: held,
        }
    }

    /// Changes which.
    pub fn set_mask(&self, mask: u64) {
        self.polled.mask.store(mask, Ordering::Relaxed);
        self.polled.queue.wake_all(1);
    }
}

impl File for SignalFd {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn read(&self, sink: &mut Sink, _at: Option<u64>, nonblock: bool) -> Result<usize> {
        let size = size_of::<SignalfdSiginfo>();
        if sink.left() < size {
            return Err(Errno::EINVAL);
        }
        let task = current();
        let mut done = 0;
        while sink.left() >= size {
            let l = if done > 0 { Limit::Never } else { limit(nonblock) };
            let info = match signal::wait_for(task, self.polled.mask.load(Ordering::Relaxed), l) {
                Ok(info) => info,
                Err(_) if done > 0 => break,
                Err(e) => return Err(e),
            };
            let out = SignalfdSiginfo {
                signo: info.signo as u32,
                errno: info.errno,
                code: info.code,
                pid: info.words[0] as u32,
                uid: (info.words[0] >> 32) as u32,
                tid: info.timer_id().unwrap_or(0) as u32,
                overrun: info.overrun(),
                status: info.words[1] as i32,
                int: info.words[1] as i32,
                ptr: info.words[1],
                ..SignalfdSiginfo::default()
            };
            done += sink.put(out.as_bytes())?;
        }
        Ok(done)
    }

    fn ready(&self) -> u32 {
        let mask = self.polled.mask.load(Ordering::Relaxed);
        let Some(task) = crate::current::try_current() else { return 0 };
        task.process.signal_fds.note(&self.polled);
        let own = task.signals.lock().pending.set();
        let shared = task.process.pending.lock().set();
        if (own | shared) & mask != 0 { poll::IN } else { 0 }
    }

    fn seek(&self, _offset: i64, _whence: u32) -> Result<u64> {
        Ok(0)
    }

    fn queue(&self) -> Option<&WaitQueue> {
        Some(&self.polled.queue)
    }

    fn tell(&self, out: &mut String) -> Result<()> {
        let _ = writeln!(out, "sigmask:\t{:016x}", self.polled.mask.load(Ordering::Relaxed));
        Ok(())
    }

    fn describe(&self) -> Vec<u8> {
        b"anon_inode:[signalfd]".to_vec()
    }
}

/// How a timer tells (`sigevent(3type)`).
pub const SIGEV_SIGNAL: i32 = 0;
/// Not at all.
pub const SIGEV_NONE: i32 = 1;
/// As `SIGEV_SIGNAL`, here: threads are the C library's.
pub const SIGEV_THREAD: i32 = 2;
/// Added to another one: a thread.
pub const SIGEV_THREAD_ID: i32 = 4;

/// A POSIX timer (`timer_create(2)`).
pub struct PosixTimer {
    /// Clock.
    pub clock: i32,
    /// What it was to do.
    pub event: Sigevent,
    timer: AnyTimer,
    overrun: AtomicU64,
    /// Itself, as one of the timers that there may be.
    pub held: Held,
}

enum AnyTimer {
    Wall(Timer),
    Cpu(CpuTimer),
}

impl PosixTimer {
    /// A timer that does what `event` says, to the process or to one of its tasks.
    /// `cpu`: the processor time that it counts, if the clock is one of those.
    pub fn new(
        process: &Arc<Process>,
        id: i32,
        clock: i32,
        cpu: Option<CpuClock>,
        event: Sigevent,
        held: Held,
    ) -> Self {
        let (signal, value) = (if event.notify == SIGEV_NONE { 0 } else { event.signo as u32 }, event.value);
        let tid = (event.notify & SIGEV_THREAD_ID != 0).then_some(event.tid as u32);
        let weak = Arc::downgrade(process);
        let call = move |times: u64| {
            let Some(p) = weak.upgrade().filter(|_| signal != 0) else { return Hold::UNTIL_RESUMED };
            let to = tid.and_then(crate::process::find_task);
            // One signal of a timer is queued at a time; what runs out meanwhile is counted in it.
            let pending = match &to {
                Some(t) => t.signals.lock().pending.overrun(signal, id, times),
                None => p.pending.lock().overrun(signal, id, times),
            };
            if pending {
                return signal::HOLD;
            }
            let info = Siginfo::timer(signal, id, (times - 1).min(i32::MAX as u64) as i32, value);
            match to {
                Some(t) => signal::send_task(&t, info),
                None => signal::send_process(&p, info),
            }
            signal::HOLD
        };
        let timer = match cpu {
            Some(cpu) => AnyTimer::Cpu(CpuTimer::new(cpu, move |times| {
                call(times);
            })),
            None => AnyTimer::Wall(Timer::new(call)),
        };
        PosixTimer { clock, event, timer, overrun: AtomicU64::new(0), held }
    }

    /// How it tells, whom (`pid` or `tid`), and which task, if it is one.
    pub fn notice(&self) -> (&'static str, &'static str, Option<u32>) {
        let how = match self.event.notify & !SIGEV_THREAD_ID {
            SIGEV_NONE => "none",
            SIGEV_THREAD => "thread",
            _ => "signal",
        };
        match self.event.notify & SIGEV_THREAD_ID {
            0 => (how, "pid", None),
            _ => (how, "tid", Some(self.event.tid as u32)),
        }
    }

    /// Starts it, at a time of its clock (the monotonic one for those that follow real time), or stops it.
    pub fn set(&self, deadline: Option<u64>, interval: u64) {
        self.overrun.store(0, Ordering::Relaxed);
        match &self.timer {
            AnyTimer::Cpu(t) => t.set(deadline, interval),
            AnyTimer::Wall(t) => {
                t.stop();
                if let Some(d) = deadline {
                    t.start(d, interval);
                }
            }
        }
    }

    /// Now, on a clock of processor time; 0 on others.
    pub fn now(&self) -> u64 {
        match &self.timer {
            AnyTimer::Cpu(t) => t.now(),
            AnyTimer::Wall(_) => 0,
        }
    }

    /// Time left and interval.
    pub fn get(&self) -> Itimerspec {
        let (left, interval) = match &self.timer {
            AnyTimer::Wall(t) => t.remaining(),
            AnyTimer::Cpu(t) => t.remaining(),
        };
        Itimerspec { interval: Timespec::from_ns(interval), value: Timespec::from_ns(left) }
    }

    /// A signal of it was taken: adds the times that it ran out since it was last counted.
    pub fn taken(&self, info: &mut Siginfo) {
        if let AnyTimer::Wall(t) = &self.timer {
            info.add_overrun(t.resume());
        }
        self.overrun.store(info.overrun().into(), Ordering::Relaxed);
    }

    /// Times it ran out beyond the last signal that was taken.
    pub fn overrun(&self) -> u64 {
        self.overrun.load(Ordering::Relaxed).min(i32::MAX as u64)
    }
}

impl Drop for PosixTimer {
    fn drop(&mut self) {
        self.set(None, 0);
    }
}
