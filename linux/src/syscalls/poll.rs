//! Waiting for descriptors: poll, select, epoll.

use alloc::sync::Arc;
use alloc::vec::Vec;

use atoll_abi::grid::Quota;
use atoll_abi::layout::is_user_range;
use atoll_abi::{Errno, Result, platform};
use atoll_fs::poll as bits;
use atoll_mem::{buffer, user};
use atoll_sync::{WaitQueue, Wake, WakeKey};
use atoll_task::{Limit, ThreadRef};
use linux_raw_sys::general as linux;
use zerocopy::IntoBytes;

use super::Call;
use super::events::held;
use crate::epoll::{self, Epoll};
use crate::files::FileRef;
use crate::process::Task;
use crate::signal;
use crate::types::{EpollEvent, PollFd, Timespec, Timeval, get, put};

/// Wakes one thread.
struct Waker(ThreadRef);

impl Wake for Waker {
    fn wake(&self, _key: WakeKey, _events: u32, _may_wait: bool) -> bool {
        atoll_task::unpark(self.0);
        true
    }
}

/// Waits until one of the files is ready for what is wanted of it. Value: what each is ready for.
fn wait_files(task: &Task, files: &[(Option<FileRef>, u32)], limit: Limit) -> Result<Vec<u32>> {
    let look = || -> (Vec<u32>, bool) {
        let ready: Vec<u32> = files
            .iter()
            .map(|(f, wanted)| match f {
                Some(f) => f.file().ready() & wanted,
                None => 0,
            })
            .collect();
        let any = ready.iter().any(|r| *r != 0);
        (ready, any)
    };
    let (ready, any) = look();
    if any {
        // As in `Epoll::wait`.
        return Ok(if atoll_task::look_if_acted() { look().0 } else { ready });
    }
    if limit == Limit::Never {
        // Nobody waits for a late answer.
        atoll_task::look();
        files.iter().flat_map(|(f, _)| f).for_each(|f| f.file().refresh());
        return Ok(look().0);
    }
    let waker: Arc<dyn Wake> = Arc::new(Waker(task.thread()));
    let mut queues: Vec<(&WaitQueue, u32)> = Vec::new();
    queues.try_reserve_exact(files.len()).map_err(|_| Errno::ENOMEM)?;
    for (f, wanted) in files {
        if let Some(q) = f.as_ref().and_then(|f| f.file().queue()) {
            queues.push((q, *wanted));
        }
    }
    // Once in each, however often a file is asked for: to be taken out again is a search.
    queues.sort_unstable_by_key(|(q, _)| core::ptr::from_ref(*q).addr());
    queues.dedup_by(|(q, wanted), (before, all)| {
        let same = core::ptr::eq(*q, *before);
        *all |= if same { *wanted } else { 0 };
        same
    });
    for (q, wanted) in &queues {
        q.add(waker.clone(), 0, *wanted);
    }
    let outcome = loop {
        let (ready, any) = look();
        if any {
            break Ok(ready);
        }
        if task.thread().interrupted() {
            break Err(Errno::RESTART_NOHAND);
        }
        match limit {
            Limit::Until(d) if platform().now() >= d => break Ok(ready),
            Limit::Until(d) => atoll_task::park_until(d),
            _ => atoll_task::park(),
        }
    };
    for (q, _) in queues {
        q.remove(&waker, 0);
    }
    outcome
}

fn do_poll(c: &Call, limit: Limit) -> Result<u64> {
    let n = c.arg(1);
    if n > c.task.process.max_files.load(core::sync::atomic::Ordering::Relaxed).max(1024) {
        return Err(Errno::EINVAL);
    }
    let mut list = buffer::<PollFd>(n as usize)?;
    user::read(c.arg(0), list.as_mut_slice().as_mut_bytes())?;
    let mut bad = 0;
    let mut files = Vec::new();
    files.try_reserve_exact(list.len()).map_err(|_| Errno::ENOMEM)?;
    for p in &mut list {
        p.revents = 0;
        if p.fd < 0 {
            files.push((None, 0));
            continue;
        }
        match c.task.files.get_open(p.fd as u32) {
            // These are told of always.
            Ok(f) => files.push((Some(f), u32::from(p.events as u16) | bits::ERR | bits::HUP)),
            Err(_) => {
                p.revents = bits::NVAL as i16;
                bad += 1;
                files.push((None, 0));
            }
        }
    }
    let limit = if bad > 0 { Limit::Never } else { limit };
    let ready = wait_files(c.task, &files, limit)?;
    let mut count = bad;
    for (p, r) in list.iter_mut().zip(ready) {
        if r != 0 {
            p.revents = r as u16 as i16;
            count += 1;
        }
    }
    // Only the results are written back.
    for (i, p) in list.iter().enumerate() {
        user::write(c.arg(0) + i as u64 * 8 + 6, &p.revents.to_ne_bytes())?;
    }
    Ok(count)
}

fn after(ns: u64) -> Limit {
    if ns == 0 { Limit::Never } else { Limit::Until(platform().now().saturating_add(ns)) }
}

fn millis(ms: i32) -> Limit {
    if ms < 0 { Limit::Forever } else { after(ms as u64 * 1_000_000) }
}

/// Runs `f` under a temporary signal mask, if there is one.
pub fn masked<R>(task: &Task, addr: u64, size: u64, f: impl FnOnce() -> Result<R>) -> Result<R> {
    if addr == 0 {
        return f();
    }
    if size != 8 {
        return Err(Errno::EINVAL);
    }
    let mask: u64 = get(addr)?;
    signal::temporary_mask(task, mask);
    let r = f();
    let interrupted = matches!(r, Err(Errno::RESTART_NOHAND | Errno::RESTART | Errno::EINTR));
    signal::end_temporary_mask(task, interrupted);
    r
}

/// `poll(2)`.
pub fn poll(c: &mut Call) -> Result<u64> {
    let limit = match millis(c.int(2)) {
        Limit::Until(d) => Limit::Until(signal::take_deadline(c.task).unwrap_or(d)),
        other => other,
    };
    do_poll(c, limit).map_err(|e| match (e, limit) {
        (Errno::RESTART_NOHAND, Limit::Until(d)) => signal::begin_again_until(c.task, d),
        (e, _) => e,
    })
}

fn timespec_limit(addr: u64) -> Result<(Limit, Option<u64>)> {
    if addr == 0 {
        return Ok((Limit::Forever, None));
    }
    let ns = get::<Timespec>(addr)?.to_ns()?;
    Ok((after(ns), Some(platform().now().saturating_add(ns))))
}

/// Writes back how much of a timeout is left, as Linux does.
fn write_left(addr: u64, deadline: Option<u64>) {
    if let Some(d) = deadline {
        let left = d.saturating_sub(platform().now());
        // A timeout in read-only memory is the caller's right.
        let _ = put(addr, &Timespec::from_ns(left));
    }
}

/// `ppoll(2)`.
pub fn ppoll(c: &mut Call) -> Result<u64> {
    let (limit, deadline) = timespec_limit(c.arg(2))?;
    let r = masked(c.task, c.arg(3), c.arg(4), || do_poll(c, limit));
    write_left(c.arg(2), deadline);
    r
}

/// What select's three sets mean in terms of poll.
const SETS: [u32; 3] =
    [bits::IN | bits::RDNORM | bits::HUP | bits::ERR, bits::OUT | bits::WRNORM | bits::ERR, bits::PRI];

fn do_select(c: &Call, limit: Limit) -> Result<u64> {
    let n = c.int(0);
    if n < 0 {
        return Err(Errno::EINVAL);
    }
    // The sets are as large as the program's highest descriptor needs: what lies behind that may be something else (`core_sys_select` of
    // Linux).
    let n = (n as usize).min(c.task.files.slots());
    let words = n.div_ceil(64);
    let mut sets: [Vec<u64>; 3] = [const { Vec::new() }; 3];
    for (set, addr) in sets.iter_mut().zip([c.arg(1), c.arg(2), c.arg(3)]) {
        *set = buffer(words)?;
        if addr != 0 {
            user::read(addr, set.as_mut_slice().as_mut_bytes())?;
        }
    }
    let mut files: Vec<(Option<FileRef>, u32)> = Vec::new();
    let mut places: Vec<(usize, usize)> = Vec::new();
    for fd in 0..n {
        for (s, set) in sets.iter().enumerate() {
            if set[fd / 64] & 1 << (fd % 64) != 0 {
                files.push((Some(c.task.files.get_open(fd as u32)?), SETS[s]));
                places.push((s, fd));
            }
        }
    }
    let ready = wait_files(c.task, &files, limit)?;
    let mut count = 0;
    for set in &mut sets {
        set.fill(0);
    }
    for ((s, fd), r) in places.into_iter().zip(ready) {
        if r & SETS[s] != 0 {
            sets[s][fd / 64] |= 1 << (fd % 64);
            count += 1;
        }
    }
    for (set, addr) in sets.iter().zip([c.arg(1), c.arg(2), c.arg(3)]) {
        if addr != 0 {
            user::write(addr, set.as_slice().as_bytes())?;
        }
    }
    Ok(count)
}

/// `select(2)`.
pub fn select(c: &mut Call) -> Result<u64> {
    let (limit, deadline) = if c.arg(4) == 0 {
        (Limit::Forever, None)
    } else {
        let ns = get::<Timeval>(c.arg(4))?.to_ns()?;
        (after(ns), Some(platform().now().saturating_add(ns)))
    };
    let r = do_select(c, limit);
    if let Some(d) = deadline {
        let _ = put(c.arg(4), &Timeval::from_ns(d.saturating_sub(platform().now())));
    }
    r
}

/// `pselect6(2)`.
pub fn pselect6(c: &mut Call) -> Result<u64> {
    let (limit, deadline) = timespec_limit(c.arg(4))?;
    let (mask, size) = if c.arg(5) != 0 { (get(c.arg(5))?, get(c.arg(5) + 8)?) } else { (0u64, 0u64) };
    let r = masked(c.task, mask, size, || do_select(c, limit));
    write_left(c.arg(4), deadline);
    r
}

/// `epoll_create(2)`.
pub fn epoll_create(c: &mut Call) -> Result<u64> {
    if c.int(0) <= 0 {
        return Err(Errno::EINVAL);
    }
    c.install(epoll::open(held(c, Quota::Events)?), false)
}

/// `epoll_create1(2)`.
pub fn epoll_create1(c: &mut Call) -> Result<u64> {
    if c.uint(0) & !linux::EPOLL_CLOEXEC != 0 {
        return Err(Errno::EINVAL);
    }
    c.install(epoll::open(held(c, Quota::Events)?), c.uint(0) != 0)
}

/// `epoll_ctl(2)`.
pub fn epoll_ctl(c: &mut Call) -> Result<u64> {
    let (instance, file) = (c.file(0)?, c.file(2)?);
    let e = instance.as_type::<Epoll>().ok_or(Errno::EINVAL)?;
    let event = if c.uint(1) == linux::EPOLL_CTL_DEL { None } else { Some(get::<EpollEvent>(c.arg(3))?) };
    e.control(c.uint(1), c.uint(2), &file, event).map(|()| 0)
}

fn do_epoll(c: &Call, limit: Limit) -> Result<u64> {
    let instance = c.file(0)?;
    let e = instance.as_type::<Epoll>().ok_or(Errno::EINVAL)?;
    let most = c.int(2);
    if most <= 0 || most as usize > i32::MAX as usize / size_of::<EpollEvent>() {
        return Err(Errno::EINVAL);
    }
    if !is_user_range(c.arg(1), (most as usize * size_of::<EpollEvent>()) as u64) {
        return Err(Errno::EFAULT);
    }
    // It is never restarted, handler or not (signal(7)).
    let events = loop {
        match e.wait(most as usize, limit) {
            Err(Errno::RESTART) if signal::was_for_nothing(c.task) => {}
            Err(Errno::RESTART) => return Err(Errno::EINTR),
            r => break r?,
        }
    };
    for (n, (_, event)) in events.iter().enumerate() {
        if let Err(error) = put(c.arg(1) + (n * size_of::<EpollEvent>()) as u64, event) {
            e.put_back(&events[n..]);
            return if n > 0 { Ok(n as u64) } else { Err(error) };
        }
    }
    Ok(events.len() as u64)
}

/// `epoll_wait(2)`.
pub fn epoll_wait(c: &mut Call) -> Result<u64> {
    do_epoll(c, millis(c.int(3)))
}

/// `epoll_pwait(2)`.
pub fn epoll_pwait(c: &mut Call) -> Result<u64> {
    masked(c.task, c.arg(4), c.arg(5), || do_epoll(c, millis(c.int(3))))
}

/// `epoll_pwait2(2)`.
pub fn epoll_pwait2(c: &mut Call) -> Result<u64> {
    let (limit, _) = timespec_limit(c.arg(3))?;
    masked(c.task, c.arg(4), c.arg(5), || do_epoll(c, limit))
}
