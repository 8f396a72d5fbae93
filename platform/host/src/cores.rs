//! Cores on the host: batons, sleep, deadlines, bells.
#![allow(unsafe_code, reason = "makes host calls with pointers to own variables")]

use core::mem::MaybeUninit;
use core::sync::atomic::{Ordering, fence};

use crate::sys::{self, call, futex_wait, futex_wake};
use crate::upcall::{SIGNAL, host_thread};
use crate::{calls, control, result};
use atoll_abi::core_local::{core_local, pending, state};
use atoll_abi::errno::{Errno, Result};
use atoll_abi::platform::{Event, Events};
use atoll_abi::service::{Answer, RING, Request};
use linux_raw_sys::general as linux;

#[repr(C, packed)]
#[derive(Clone, Copy)]
struct EpollEvent {
    events: u32,
    data: u64,
}

/// Cookie of a core's bell in its epoll instance.
pub const BELL: u64 = 0;

/// Takes events; sleeps for up to `timeout` ns if there are none (None: don't sleep).
pub(crate) fn wait(timeout: Option<u64>, events: &mut Events) {
    let core = core_local().id();
    let area = &control().cores[core];
    if events.room() == 0 {
        // An edge that is taken and not kept would be lost.
        core::hint::spin_loop();
        return;
    }
    // Looked at before the answers: those that were there before a signal come before it.
    let mail = core == 0 && control().has_mail();
    let mut taken = false;
    while events.room() > 1 {
        let Some(answer) = area.answers.pop::<Answer>() else { break };
        area.outstanding.fetch_sub(1, Ordering::Relaxed);
        events.push(Event::Answer(answer));
        taken = true;
    }
    if mail {
        events.push(Event::Mailbox);
        taken = true;
    }
    if area.told.load(Ordering::Relaxed) != 0 {
        // It may have been rung for an answer: that is not to be told of again.
        if area.tell.load(Ordering::Relaxed) == 0 {
            area.told.store(0, Ordering::Relaxed);
        }
    } else if timeout.is_none() && area.watched.load(Ordering::Relaxed) == 0 {
        return;
    }
    let ns = if taken { 0 } else { timeout.unwrap_or(0) };
    let ts = [ns / 1_000_000_000, ns % 1_000_000_000];
    let ts = if ns == u64::MAX { core::ptr::null() } else { ts.as_ptr() };
    let mut list = [const { MaybeUninit::<EpollEvent>::uninit() }; Events::MAX];
    let room = events.room();
    let fd = control().descriptor.epoll_fd[core].load(Ordering::Relaxed);
    if area.interrupted.load(Ordering::Relaxed) != 0 {
        // Whoever comes here looks at everything; a signal that is still on its way does no harm.
        area.interrupted.store(0, Ordering::SeqCst);
    }
    let look = area.looks.load(Ordering::Relaxed).wrapping_add(1);
    // The host takes locks before it looks at a socket: this comes before that.
    area.looks.store(look, Ordering::Release);
    // SAFETY: the list has room for what is asked.
    let n = unsafe { call!(sys::EPOLL_PWAIT2, fd, list.as_mut_ptr(), room, ts, 0, 8) };
    for e in &list[..n.max(0) as usize] {
        // SAFETY: the host filled in so many.
        let EpollEvent { data, events: bits } = unsafe { e.assume_init() };
        if data != BELL {
            events.push(Event::Ready { cookie: data, events: bits, look });
        }
    }
    while events.room() > 0 {
        let Some(answer) = area.answers.pop::<Answer>() else { break };
        area.outstanding.fetch_sub(1, Ordering::Relaxed);
        events.push(Event::Answer(answer));
    }
    if core == 0 && !mail && events.room() > 0 && control().has_mail() {
        events.push(Event::Mailbox);
    }
}

pub(crate) fn has_answers() -> bool {
    !control().cores[core_local().id()].answers.is_empty()
}

/// Rings a core's bell.
pub(crate) fn notify(core: usize) {
    let one = 1u64;
    let fd = control().descriptor.bell_fd[core].load(Ordering::Relaxed);
    // SAFETY: writes eight bytes of ours.
    unsafe { call!(sys::WRITE, fd, &raw const one, 8) };
}

/// Signals the host thread that holds a core's baton, unless a signal is on its way: it has not
/// been noted yet, so what the caller did before will be seen. Handlers may nest, and a thread that
/// the host doesn't let run would be given one on top of the other until its signal stack is full.
pub(crate) fn interrupt(core: usize) {
    if control().cores[core].interrupted.swap(1, Ordering::SeqCst) != 0 {
        return;
    }
    loop {
        let space = control().cores[core].local.space.load(Ordering::SeqCst) as usize;
        let Some(slot) = control().spaces.get(space) else { return };
        let (pid, tid) = (slot.pid.load(Ordering::Relaxed), slot.tid[core].load(Ordering::Relaxed));
        // SAFETY: no memory is involved.
        let sent = unsafe { call!(sys::TGKILL, pid, tid, SIGNAL) };
        if sent == 0 {
            return;
        }
        // The thread may have gone with its space, and the core before it.
        if control().cores[core].local.space.load(Ordering::SeqCst) as usize == space {
            // It has not begun yet: it looks at everything when it does.
            control().cores[core].interrupted.store(0, Ordering::SeqCst);
            return;
        }
    }
}

/// A space goes: what was sent to its threads and not noted is for those who have the cores now.
pub(crate) fn resend_interrupts() {
    for (core, area) in
        control().cores[..control().descriptor.cores.load(Ordering::Relaxed) as usize].iter().enumerate()
    {
        if area.interrupted.swap(0, Ordering::SeqCst) != 0 {
            interrupt(core);
        }
    }
}

/// See [`atoll_abi::platform::Platform::memory_used_to`].
pub(crate) fn memory_used_to(block: u32) {
    let ahead = &control().ahead;
    if ahead.used_to.fetch_max(block, Ordering::SeqCst) >= block {
        return;
    }
    let tell_at = ahead.tell_at.load(Ordering::SeqCst);
    if tell_at != 0 && block >= tell_at {
        futex_wake(&ahead.used_to, 1);
    }
}

/// How long to wait for the supervisor to answer, ns.
const ANSWER: u64 = 1_000_000_000;

/// See [`atoll_abi::platform::Platform::more_memory`].
pub(crate) fn more_memory(bytes: u64) -> Option<u64> {
    let growth = &control().growth;
    if growth.may_ask.load(Ordering::Relaxed) == 0 {
        return None;
    }
    growth.bytes.store(bytes, Ordering::Relaxed);
    let number = growth.asked.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
    futex_wake(&growth.asked, 1);
    let now = || calls::clock(calls::CLOCK_MONOTONIC);
    let until = now() + ANSWER;
    loop {
        let answered = growth.answered.load(Ordering::Acquire);
        if answered.wrapping_sub(number) as i32 >= 0 {
            return Some(growth.there.load(Ordering::Relaxed)).filter(|there| *there != 0);
        }
        let left = until.saturating_sub(now());
        if left == 0 {
            return None;
        }
        futex_wait(&growth.answered, answered, Some(left));
    }
}

/// Asks for the signal at `deadline`; None: for none.
pub(crate) fn arm(deadline: Option<u64>) {
    host_thread().armed.store(deadline.unwrap_or(u64::MAX), Ordering::Relaxed);
    // To the host 0 is none.
    let deadline = deadline.map_or(0, |d| d.max(1));
    let spec = [0u64, 0, deadline / 1_000_000_000, deadline % 1_000_000_000];
    // SAFETY: a valid itimerspec.
    unsafe {
        call!(sys::TIMER_SETTIME, host_thread().timer, linux::TIMER_ABSTIME, spec.as_ptr(), 0);
    }
}

/// How much processor time a host thread may use before its core looks around, ns. The host looks at that with its own tick only.
const WORK: u64 = 2_000_000;

/// Asks for the signal when this host thread has used some processor time, if that isn't asked for already.
#[inline]
pub(crate) fn arm_for_work() {
    let me = host_thread();
    if me.working.load(Ordering::Relaxed) == 0 {
        me.working.store(1, Ordering::Relaxed);
        let spec = [0u64, 0, WORK / 1_000_000_000, WORK % 1_000_000_000];
        // SAFETY: a valid itimerspec.
        unsafe { call!(sys::TIMER_SETTIME, me.work_timer, 0, spec.as_ptr(), 0) };
    }
}

/// What a hand-over adds to the word of the thread that the core goes to.
pub(crate) const TURN: u32 = 2;
/// In that word: its thread sleeps, and has to be woken.
const SLEEPS: u32 = 1;
/// So often a thread that its core comes back to soon has the host run others before it sleeps.
const YIELDS: u32 = 2;
/// The most that one lets by after it has done so in vain, as a power of two.
const YIELD_SELDOM: u32 = 8;
/// A processor of which others use so many thousandths is not yielded: who yields waits until all of them had their turns.
const YIELD_ALONE: u32 = 100;

/// Hands the core to another space's host thread and waits for it to come back.
/// Runs on this host thread's loop stack.
pub(crate) fn switch(space: u32, continuation: extern "C" fn(usize) -> !, argument: usize) -> ! {
    let core = core_local().id();
    let area = &control().cores[core];
    area.continuation.store(continuation as usize as u64, Ordering::Relaxed);
    area.argument.store(argument as u64, Ordering::Relaxed);
    let mine = host_thread().space;
    if space == mine {
        continuation(argument)
    }
    let slot = &control().spaces[space as usize];
    let my_turn = &control().spaces[mine as usize].turn[core];
    let before = my_turn.load(Ordering::Relaxed);
    // The other thread says that it is this core when it is: as long as nobody has it, this space is not to go, as this thread would go with
    // it, perhaps before it has passed the baton.
    let turn = &slot.turn[core];
    let next = (turn.load(Ordering::Relaxed) & !SLEEPS).wrapping_add(TURN);
    if turn.swap(next, Ordering::AcqRel) & SLEEPS != 0 {
        futex_wake(turn, 1);
    }
    wait_turn(core, mine, before)
}

/// Waits until the baton of `core` comes to space `mine`, then goes on as told.
pub(crate) fn wait_turn(core: usize, mine: u32, before: u32) -> ! {
    let area = &control().cores[core];
    let turn = &control().spaces[mine as usize].turn[core];
    let has_come = || turn.load(Ordering::Acquire) & !SLEEPS != before;
    if !has_come() && expects_turn(core) {
        let come = (0..YIELDS).any(|_| {
            // SAFETY: no arguments.
            unsafe { call!(sys::SCHED_YIELD) };
            has_come()
        });
        was_expected(come);
    }
    while !has_come() {
        // Unless it comes just then.
        let _ = turn.compare_exchange(before, before | SLEEPS, Ordering::AcqRel, Ordering::Acquire);
        futex_wait(turn, before | SLEEPS, None);
    }
    // From here on this thread is the core.
    area.local.space.store(mine, Ordering::SeqCst);
    // It was for this core, whichever thread gets it.
    if area.interrupted.swap(0, Ordering::SeqCst) != 0 {
        area.local.pending.fetch_or(pending::NOTIFY, Ordering::SeqCst);
    }
    // SAFETY: stored by `switch` or at start, of this signature.
    let f: extern "C" fn(usize) -> ! = unsafe {
        core::mem::transmute::<usize, extern "C" fn(usize) -> !>(
            area.continuation.load(Ordering::Relaxed) as usize
        )
    };
    f(area.argument.load(Ordering::Relaxed) as usize)
}

/// Is the core likely to come back to this thread at once, as where two processes send each other messages? Then it stays ready to run, and has
/// the host run the thread that it gave the core to: that takes 1.4 us each way, to sleep and to be woken 2.3. Each time that this was
/// in vain, twice as many go by until the next try.
fn expects_turn(core: usize) -> bool {
    let skip = host_thread().yields.load(Ordering::Relaxed) & 0xffff;
    if skip != 0 {
        host_thread().yields.fetch_sub(1, Ordering::Relaxed);
    }
    let area = &control().cores[core];
    skip == 0
        && control().descriptor.cpu[core].load(Ordering::Relaxed) >= 0
        && area.others.load(Ordering::Relaxed) < YIELD_ALONE
}

/// It has yielded its processor, and the core has come, or not.
fn was_expected(come: bool) {
    let yields = &host_thread().yields;
    let missed = if come { 0 } else { (yields.load(Ordering::Relaxed) >> 16).min(YIELD_SELDOM - 1) + 1 };
    yields.store(missed << 16 | ((1 << missed) - 1), Ordering::Relaxed);
}

/// Sends a request to the serving threads.
pub(crate) fn submit(request: &Request) -> Result<()> {
    let area = &control().cores[core_local().id()];
    if area.outstanding.load(Ordering::Relaxed) as usize >= RING || !area.requests.push(request) {
        return Err(Errno::EAGAIN);
    }
    area.outstanding.fetch_add(1, Ordering::Relaxed);
    // The fence pairs with the server's between counting itself asleep and its last look at the rings.
    fence(Ordering::SeqCst);
    if control().server_sleepers.load(Ordering::Relaxed) != 0
        && control().server_awake.load(Ordering::Relaxed) == 0
    {
        control().server_bell.fetch_add(1, Ordering::Release);
        futex_wake(&control().server_bell, 1);
    }
    Ok(())
}

/// Reports readiness changes of `fd` to this core.
pub(crate) fn watch(fd: i32, cookie: u64) -> Result<usize> {
    let core = core_local().id();
    let event = EpollEvent {
        events: linux::EPOLLIN
            | linux::EPOLLOUT
            | linux::EPOLLRDNORM
            | linux::EPOLLWRNORM
            | linux::EPOLLWRBAND
            | linux::EPOLLRDHUP
            | linux::EPOLLPRI
            | linux::EPOLLERR
            | linux::EPOLLHUP
            | linux::EPOLLET,
        data: cookie,
    };
    let epoll = control().descriptor.epoll_fd[core].load(Ordering::Relaxed);
    // SAFETY: a valid event.
    result(unsafe { call!(sys::EPOLL_CTL, epoll, linux::EPOLL_CTL_ADD, fd, &raw const event) })?;
    control().cores[core].watched.fetch_add(1, Ordering::Relaxed);
    Ok(core)
}

/// Reports them no longer to `core`.
pub(crate) fn unwatch(fd: i32, core: usize) -> Result<()> {
    let epoll = control().descriptor.epoll_fd[core].load(Ordering::Relaxed);
    // SAFETY: no memory is involved.
    result(unsafe { call!(sys::EPOLL_CTL, epoll, linux::EPOLL_CTL_DEL, fd, 0) })?;
    control().cores[core].watched.fetch_sub(1, Ordering::Relaxed);
    Ok(())
}

/// Has [`tell_core`] interrupt this core at the next event, or answer: the server rings the bell for that.
pub(crate) fn tell_of_events() -> bool {
    let core = core_local().id();
    let area = &control().cores[core];
    area.told.store(1, Ordering::Relaxed);
    // Of requests that are made later, too, by who runs before that.
    area.tell.store(1, Ordering::SeqCst);
    // Pairs with the server's between its answer and its look at the word.
    fence(Ordering::SeqCst);
    if !area.answers.is_empty() {
        return false;
    }
    let d = &control().descriptor;
    let [all, mine] = [&d.events_fd, &d.epoll_fd].map(|fds| fds[core].load(Ordering::Relaxed));
    let event = EpollEvent { events: linux::EPOLLIN | linux::EPOLLONESHOT, data: core as u64 };
    // SAFETY: a valid event.
    unsafe { call!(sys::EPOLL_CTL, all, linux::EPOLL_CTL_MOD, mine, &raw const event) == 0 }
}

/// Has this thread run soon after it is woken beside others that compute: it wants short turns only (`sched_setattr(2)`: from
/// Linux 6.12 on that is what a runtime means for who has no real-time policy). Without that it comes when it comes.
fn take_short_turns() {
    // Size and policy (SCHED_OTHER), flags, nice value and priority, runtime, deadline, period: `struct sched_attr`.
    let attributes = [48u64, 0, 0, SHORT_TURN, 0, 0];
    // SAFETY: a valid structure, as long as it says.
    unsafe { call!(sys::SCHED_SETATTR, 0, &raw const attributes, 0) };
}

/// The shortest turn that Linux gives, ns.
const SHORT_TURN: u64 = 100_000;

/// The life of a thread of the nursery: interrupts a core that runs at events that it has asked to be told of. `events`: the epoll
/// instance that the core's is in.
pub(crate) fn tell_core(core: usize, events: i32) -> ! {
    take_short_turns();
    let mut event = MaybeUninit::<EpollEvent>::uninit();
    loop {
        // SAFETY: there is room for one.
        let n = unsafe { call!(sys::EPOLL_PWAIT2, events, event.as_mut_ptr(), 1, 0, 0, 8) };
        if n < 0 && n != Errno::EINTR.to_ret() {
            // The core goes on without it: it looks now and then, and may have asked to be told already.
            control().descriptor.events_fd[core].store(-1, Ordering::SeqCst);
            interrupt(core);
            // SAFETY: ends this thread.
            unsafe { call!(sys::EXIT, 0) };
        }
        // One that sleeps is woken by the event itself.
        if n > 0 && control().cores[core].local.state.load(Ordering::SeqCst) == state::RUNNING {
            interrupt(core);
        }
    }
}

/// This thread stays on a CPU. Failure (a smaller cpuset) only costs placement.
pub(crate) fn pin(cpu: i32) {
    if cpu >= 0 {
        let mut mask = [0u64; 16];
        mask[cpu as usize / 64 % 16] = 1 << (cpu % 64);
        // SAFETY: a valid mask.
        unsafe { call!(sys::SCHED_SETAFFINITY, 0, size_of_val(&mask), mask.as_ptr()) };
    }
}
