//! Signals (`signal(7)`): sending, choosing a task, delivering, returning.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use atoll_abi::frame::{FrameKind, SigContext, UserFrame, XSAVE_MAX, XSAVE_OFFSET};
use atoll_abi::{Errno, Result, platform};
use atoll_mem::user;
use atoll_sync::Mutex;
use atoll_task::{Hold, Limit, wait};
use linux_raw_sys::general as linux;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::process::{Life, Process, Task, exit_task, work};
use crate::types::{SigactionC, Siginfo, StackT, get, put};
use crate::{core_dump, jobs, ptrace};

/// Highest signal number.
pub const MAX: u32 = 64;
/// A signal's bit in a set.
pub const fn bit(signal: u32) -> u64 {
    1 << (signal - 1)
}

const UNBLOCKABLE: u64 = bit(linux::SIGKILL) | bit(linux::SIGSTOP);
/// Signals that a fault in the program causes; taken before all others.
const SYNCHRONOUS: u64 = bit(linux::SIGSEGV)
    | bit(linux::SIGBUS)
    | bit(linux::SIGILL)
    | bit(linux::SIGTRAP)
    | bit(linux::SIGFPE)
    | bit(linux::SIGSYS);
/// Those that stop a process.
pub const STOPPING: u64 =
    bit(linux::SIGSTOP) | bit(linux::SIGTSTP) | bit(linux::SIGTTIN) | bit(linux::SIGTTOU);
const IGNORED_BY_DEFAULT: u64 =
    bit(linux::SIGCHLD) | bit(linux::SIGURG) | bit(linux::SIGWINCH) | bit(linux::SIGCONT);
/// Signals that wait in one place at most, where RLIMIT_SIGPENDING allows more.
const QUEUE_MAX: u64 = 4096;

/// So long a timer waits with its next signal, at an interval that is shorter: the one before may still wait, or be ignored. Once it
/// is taken the timer goes on at once.
pub const HOLD: Hold = Hold(10_000_000);

const SIG_DFL: u64 = 0;
const SIG_IGN: u64 = 1;
const RED_ZONE: u64 = 128;

/// Signals that were sent and not taken.
#[derive(Default)]
pub struct Pending {
    set: u64,
    queue: VecDeque<Siginfo>,
}

impl Pending {
    /// The set.
    pub fn set(&self) -> u64 {
        self.set
    }

    /// One more, of at most `limit`. EAGAIN: only for those that are queued. All others come whatever waits here: what `kill` sends
    /// need not be counted (`__send_signal_locked` of Linux).
    fn add(&mut self, info: Siginfo, limit: u64) -> Result<()> {
        let signal = info.signo as u32;
        let waits = self.set & bit(signal) != 0;
        if signal < linux::SIGRTMIN && waits {
            // Ordinary signals are not counted.
            return Ok(());
        }
        if signal >= linux::SIGRTMIN && self.queue.len() as u64 >= limit {
            match info.code {
                0 if waits => return Ok(()),
                0 => {}
                _ => return Err(Errno::EAGAIN),
            }
        }
        self.set |= bit(signal);
        self.queue.push_back(info);
        Ok(())
    }

    /// Takes the next one among `wanted`: faults first, then by number.
    fn take(&mut self, wanted: u64) -> Option<Siginfo> {
        let mut set = self.set & wanted;
        if set == 0 {
            return None;
        }
        if set & SYNCHRONOUS != 0 {
            set &= SYNCHRONOUS;
        }
        let signal = set.trailing_zeros() + 1;
        let at = self.queue.iter().position(|i| i.signo as u32 == signal)?;
        let info = self.queue.remove(at)?;
        if !self.queue.iter().any(|i| i.signo as u32 == signal) {
            self.set &= !bit(signal);
        }
        Some(info)
    }

    fn drop_all(&mut self, set: u64) {
        self.queue.retain(|i| set & bit(i.signo as u32) == 0);
        self.set &= !set;
    }

    /// Counts further runs of a timer in its signal; false if that does not wait here.
    pub fn overrun(&mut self, signal: u32, id: i32, times: u64) -> bool {
        let mut all = self.queue.iter_mut();
        let info = all.find(|i| i.signo as u32 == signal && i.timer_id() == Some(id));
        info.map(|i| i.add_overrun(times)).is_some()
    }

    /// Takes one of `wanted`, for those who wait for signals.
    pub fn take_for_waiter(&mut self, wanted: u64) -> Option<Siginfo> {
        self.take(wanted)
    }
}

/// One task's signals.
pub struct TaskSignals {
    /// Blocked.
    pub blocked: u64,
    /// The mask to go back to once the signal that is waited for was handled (sigsuspend, ppoll).
    pub saved: Option<u64>,
    /// Sent to this task.
    pub pending: Pending,
    /// Alternate stack.
    pub altstack: StackT,
    /// What it waits for (sigtimedwait).
    pub waiting: u64,
    /// It has taken a signal that stops, and no SIGCONT has come since (JOBCTL_STOP_DEQUEUED of Linux).
    stops: bool,
}

impl TaskSignals {
    /// No signals.
    pub fn new(blocked: u64, altstack: StackT) -> Self {
        TaskSignals { blocked, saved: None, pending: Pending::default(), altstack, waiting: 0, stops: false }
    }
}

/// No alternate stack.
pub fn no_altstack() -> StackT {
    StackT { sp: 0, flags: linux::SS_DISABLE as i32, pad: 0, size: 0 }
}

/// What a process does with each signal.
pub struct Actions {
    list: Mutex<[SigactionC; MAX as usize]>,
}

impl Actions {
    /// All by default.
    pub fn new() -> Self {
        Actions { list: Mutex::new([SigactionC::default(); MAX as usize]) }
    }

    /// All by default, but for a set of ignored ones.
    pub fn ignoring(set: u64) -> Self {
        let actions = Actions::new();
        for signal in (1..=MAX).filter(|s| set & 1 << (s - 1) != 0) {
            actions.set(signal, SigactionC { handler: SIG_IGN, ..SigactionC::default() });
        }
        actions
    }

    /// One signal's.
    pub fn get(&self, signal: u32) -> SigactionC {
        self.list.lock()[signal as usize - 1]
    }

    /// Changes one; what it was.
    pub fn set(&self, signal: u32, action: SigactionC) -> SigactionC {
        core::mem::replace(&mut self.list.lock()[signal as usize - 1], action)
    }

    /// A copy.
    pub fn duplicate(&self) -> Actions {
        Actions { list: Mutex::new(*self.list.lock()) }
    }

    /// Back to default, except what is ignored (`execve(2)`).
    #[inline(never)]
    pub fn after_exec(&self) -> Arc<Actions> {
        let after = Arc::new(self.duplicate());
        for a in &mut *after.list.lock() {
            let handler = if a.handler == SIG_IGN { SIG_IGN } else { SIG_DFL };
            *a = SigactionC { handler, ..SigactionC::default() };
        }
        after
    }

    /// Are this process's children reaped by nobody?
    pub fn ignores_children(&self) -> bool {
        let a = self.get(linux::SIGCHLD);
        a.handler == SIG_IGN || a.flags & u64::from(linux::SA_NOCLDWAIT) != 0
    }

    /// Ignored signals and caught ones, for `/proc/self/status`.
    pub fn sets(&self) -> (u64, u64) {
        let list = self.list.lock();
        let (mut ignored, mut caught) = (0, 0);
        for (n, a) in list.iter().enumerate() {
            match a.handler {
                SIG_DFL => {}
                SIG_IGN => ignored |= 1 << n,
                _ => caught |= 1 << n,
            }
        }
        (ignored, caught)
    }

    /// Is a signal ignored, by the program or by default?
    pub fn is_ignored(&self, signal: u32) -> bool {
        match self.get(signal).handler {
            SIG_IGN => true,
            SIG_DFL => IGNORED_BY_DEFAULT & bit(signal) != 0,
            _ => false,
        }
    }
}

impl Default for Actions {
    fn default() -> Self {
        Self::new()
    }
}

/// Sends a signal to a process: whichever task does not block it takes it.
pub fn send_process(process: &Arc<Process>, info: Siginfo) {
    // A timer has one at a time, for which there is always room.
    let limit = if info.timer_id().is_some() { u64::MAX } else { process.queue_limit(info.signo as u32) };
    let _ = send_to_process(process, info, limit);
}

/// The same; EAGAIN if the queue is full.
pub fn try_send_process(process: &Arc<Process>, info: Siginfo) -> Result<()> {
    send_to_process(process, info, process.queue_limit(info.signo as u32))
}

fn send_to_process(process: &Arc<Process>, info: Siginfo, limit: u64) -> Result<()> {
    let signal = info.signo as u32;
    if process.zombie().is_some() || !(1..=MAX).contains(&signal) {
        return Ok(());
    }
    if stop_or_continue(process, signal) {
        return Ok(());
    }
    let wanted = |t: &Arc<Task>| {
        let s = t.signals.lock();
        (s.blocked & bit(signal) == 0, s.waiting & bit(signal) != 0)
    };
    if process.actions.is_ignored(signal) {
        let tasks = process.tasks.lock();
        let states = || tasks.iter().map(wanted);
        let blocked_by_all = states().all(|(open, _)| !open);
        let waited_for = states().any(|(_, w)| w);
        if !blocked_by_all && !waited_for && !tasks.iter().any(|t| t.tracing.is_on()) {
            return Ok(());
        }
    }
    process.pending.lock().add(info, limit)?;
    // Who takes it is chosen now that it is there: a task that blocks it, or ends, from here on finds it and tells another (`retarget`).
    let tasks: Vec<Arc<Task>> = process.tasks.lock().clone();
    let states: Vec<(bool, bool)> = tasks.iter().map(wanted).collect();
    process.signal_queue.wake_all(1);
    process.signal_fds.came(signal);
    // A profiler wants to know who runs: who has run most since it was last told of that, so that each is in proportion to its time.
    let profiled = matches!(signal, linux::SIGPROF | linux::SIGVTALRM).then(|| {
        let unsampled = |n: &usize| {
            let task = &tasks[*n];
            task.used().run_ns.saturating_sub(task.sampled.load(Ordering::Relaxed))
        };
        let n = (0..tasks.len()).filter(|n| states[*n].0).max_by_key(unsampled)?;
        tasks[n].sampled.store(tasks[n].used().run_ns, Ordering::Relaxed);
        Some(n)
    });
    let chosen = states.iter().position(|(_, w)| *w).or(profiled.flatten());
    // Rather one that has no other to take (`wants_signal` of Linux).
    let open = || (0..tasks.len()).filter(|n| states[*n].0);
    let idle = || open().find(|n| tasks[*n].asked() & work::SIGNAL == 0);
    let chosen = chosen.or_else(|| idle().or_else(|| open().next()));
    if let Some(n) = chosen {
        tasks[n].poke(work::SIGNAL);
    }
    Ok(())
}

/// A task that may have been chosen for signals of its process's doesn't take these any more: others are told (`retarget_shared_pending`
/// of Linux).
#[inline(never)]
fn retarget(task: &Task, mut set: u64) {
    for t in task.process.tasks.lock().iter().filter(|t| t.tid() != task.tid()) {
        let open = {
            let s = t.signals.lock();
            set & (!s.blocked | s.waiting)
        };
        if open != 0 {
            t.poke(work::SIGNAL);
            set &= !open;
        }
        if set == 0 {
            return;
        }
    }
}

/// A task that is no longer among its process's has ended.
pub fn task_ends(task: &Task) {
    let open = !task.signals.lock().blocked;
    let left = task.process.pending.lock().set & open;
    if left != 0 {
        retarget(task, left);
    }
}

/// Sends a signal to one task.
pub fn send_task(task: &Arc<Task>, info: Siginfo) {
    let limit =
        if info.timer_id().is_some() { u64::MAX } else { task.process.queue_limit(info.signo as u32) };
    let _ = send_to_task(task, info, limit);
}

/// The same; EAGAIN if the queue is full.
pub fn try_send_task(task: &Arc<Task>, info: Siginfo) -> Result<()> {
    send_to_task(task, info, task.process.queue_limit(info.signo as u32))
}

fn send_to_task(task: &Arc<Task>, info: Siginfo, limit: u64) -> Result<()> {
    let signal = info.signo as u32;
    if stop_or_continue(&task.process, signal) {
        return Ok(());
    }
    let mut s = task.signals.lock();
    let open = s.blocked & bit(signal) == 0 || s.waiting & bit(signal) != 0;
    let waits = s.waiting & bit(signal) != 0;
    if open && !waits && task.process.actions.is_ignored(signal) && !task.tracing.is_on() {
        return Ok(());
    }
    s.pending.add(info, limit)?;
    drop(s);
    task.process.signal_queue.wake_all(1);
    task.process.signal_fds.came(signal);
    if open {
        task.poke(work::SIGNAL);
    }
    Ok(())
}

/// What SIGKILL, SIGCONT and stopping signals do when they are sent. True: that was all.
fn stop_or_continue(process: &Arc<Process>, signal: u32) -> bool {
    if signal == linux::SIGKILL {
        process.end(signal as i32);
        return true;
    }
    if signal == linux::SIGCONT {
        // In this order: who takes one of these from its process does so with its own locked.
        process.pending.lock().drop_all(STOPPING);
        for t in process.tasks.lock().iter() {
            let mut s = t.signals.lock();
            s.pending.drop_all(STOPPING);
            s.stops = false;
        }
        let mut life = process.life.lock();
        if matches!(*life, Life::Stopped(_)) {
            *life = Life::Running;
            drop(life);
            let mut c = process.changes.lock();
            c.stopped = None;
            c.continued = true;
            drop(c);
            process.life_queue.wake_all(1);
            ptrace::process_changes(process);
            tell_parent(process, linux::CLD_CONTINUED as i32, linux::SIGCONT as i32);
        }
    } else if STOPPING & bit(signal) != 0 {
        discard(process, linux::SIGCONT);
    }
    false
}

/// Those of a signal that wait are gone, blocked ones, too: it is ignored from now on (`do_sigaction` of Linux, POSIX), or its opposite comes.
pub fn discard(process: &Process, signal: u32) {
    process.pending.lock().drop_all(bit(signal));
    for t in process.tasks.lock().iter() {
        t.signals.lock().pending.drop_all(bit(signal));
    }
}

fn tell_parent(process: &Process, code: i32, status: i32) {
    if let Some(parent) = process.parent.lock().upgrade() {
        let quiet = parent.actions.get(linux::SIGCHLD).flags & u64::from(linux::SA_NOCLDSTOP) != 0;
        if !quiet {
            let uid = process.ids().ruid;
            send_process(&parent, Siginfo::child(code, process.pid, uid, status, 0, 0));
        }
        parent.child_events.wake_all(1);
    }
}

/// A fault in the current task becomes a signal that can't be put off:
/// if it is blocked or ignored, it ends the process.
pub fn force(task: &Task, info: Siginfo) {
    let signal = info.signo as u32;
    let mut s = task.signals.lock();
    let action = task.process.actions.get(signal);
    if s.blocked & bit(signal) != 0 || action.handler == SIG_IGN {
        task.process.actions.set(signal, SigactionC::default());
        s.blocked &= !bit(signal);
    }
    // No limit holds for such a one.
    let _ = s.pending.add(info, 0);
    drop(s);
    task.thread().ask(work::SIGNAL);
}

/// Signals that can be taken by this task now.
pub fn deliverable(task: &Task) -> u64 {
    let s = task.signals.lock();
    let shared = task.process.pending.lock().set;
    (s.pending.set | shared) & !s.blocked
}

/// The current task's wait was interrupted: has somebody else taken the signal? Then it may wait again.
pub fn was_for_nothing(task: &Task) -> bool {
    // One that comes from here on asks again.
    task.thread().take_asked(work::SIGNAL);
    let nothing = deliverable(task) == 0 && task.asked() == 0 && !task.process.is_ending();
    if !nothing {
        task.thread().ask(work::SIGNAL);
    }
    nothing
}

/// When the wait that goes on after an interruption is to end, if this is one. To be asked before the call can fail.
#[inline]
pub fn take_deadline(task: &Task) -> Option<u64> {
    let kept = task.resumes.load(Ordering::Relaxed);
    if kept == 0 {
        return None;
    }
    task.resumes.store(0, Ordering::Relaxed);
    Some(kept)
}

/// The current task's wait is interrupted. If no handler runs it begins again, and ends when it was to (RESTART_NOHAND, as `restart_syscall(2)`).
pub fn begin_again_until(task: &Task, deadline: u64) -> Errno {
    task.resumes.store(deadline, Ordering::Relaxed);
    Errno::RESTART_NOHAND
}

/// Changes the current task's mask; what it was.
pub fn set_mask(task: &Task, blocked: u64) -> u64 {
    let mut s = task.signals.lock();
    let old = core::mem::replace(&mut s.blocked, blocked & !UNBLOCKABLE);
    let open = s.pending.set & !s.blocked;
    drop(s);
    let shared = task.process.pending.lock().set;
    if open != 0 || shared & !blocked != 0 {
        task.thread().ask(work::SIGNAL);
    }
    if shared & blocked & !old != 0 {
        retarget(task, shared & blocked & !old);
    }
    old
}

/// The same of a task that its tracer has stopped.
pub fn set_mask_of(task: &Task, blocked: u64) {
    let old = core::mem::replace(&mut task.signals.lock().blocked, blocked & !UNBLOCKABLE);
    let shared = task.process.pending.lock().set;
    if shared & blocked & !old != 0 {
        retarget(task, shared & blocked & !old);
    }
    task.poke(work::SIGNAL);
}

/// Sets a mask for the length of one waiting call (sigsuspend, ppoll, epoll_pwait).
/// The old one comes back with [`end_temporary_mask`], or when a handler returns.
pub fn temporary_mask(task: &Task, blocked: u64) {
    let old = set_mask(task, blocked);
    task.signals.lock().saved = Some(old);
}

/// Ends [`temporary_mask`], unless a signal is to be handled under it first.
pub fn end_temporary_mask(task: &Task, interrupted: bool) {
    if interrupted && deliverable(task) != 0 {
        return;
    }
    let saved = task.signals.lock().saved.take();
    if let Some(mask) = saved {
        set_mask(task, mask);
    }
}

/// What a task does before it goes back to its program: end, stop, handle signals.
pub fn handle_work(task: &Task, frame: &mut UserFrame) {
    let mut handled = false;
    loop {
        let why = task.thread().take_asked(!0);
        if why & work::END != 0 || task.process.is_ending() {
            exit_task(task.process.ending.load(Ordering::SeqCst).max(0));
        }
        if why & work::DUMP != 0 && core_dump::is_begun(&task.process) {
            core_dump::wait_for_end(task, frame);
            continue;
        }
        let traced = task.tracing.is_on();
        if traced && ptrace::look(task, frame) {
            continue;
        }
        if matches!(*task.process.life.lock(), Life::Stopped(_)) && !ptrace::passes_stop(task) {
            wait_while_stopped(task);
            continue;
        }
        let Some(mut info) = next(task) else { break };
        if traced {
            match ptrace::signal(task, frame, info) {
                Some(changed) => info = changed,
                None => continue,
            }
        }
        let action = task.process.actions.get(info.signo as u32);
        if deliver(task, frame, info, action) {
            handled = true;
            if task.tracing.steps() {
                ptrace::stepped_to_handler(task, frame);
            }
        }
    }
    if !handled {
        restart_without_handler(task, frame);
    }
    let saved = task.signals.lock().saved.take();
    if let Some(mask) = saved {
        set_mask(task, mask);
        if task.asked() != 0 {
            handle_work(task, frame);
        }
    }
}

fn wait_while_stopped(task: &Task) {
    let p = &task.process;
    let _ = wait(&p.life_queue, 1, Limit::Forever, || {
        // Who is traced stops for its tracer.
        let goes_on = p.is_ending() || task.tracing.is_on() && !ptrace::passes_stop(task);
        (goes_on || !matches!(*p.life.lock(), Life::Stopped(_))).then_some(())
    });
    if !p.is_ending() && !task.tracing.is_on() && matches!(*p.life.lock(), Life::Stopped(_)) {
        // Woken for a signal: it waits, too. A pause, so that this does not spin.
        atoll_task::yield_now();
    }
}

fn next(task: &Task) -> Option<Siginfo> {
    let mut s = task.signals.lock();
    let open = !s.blocked;
    // A task's own first, as Linux does; but faults before all.
    let mut info = s.pending.take(open).or_else(|| task.process.pending.lock().take(open))?;
    // With those signals that a tracer may make one that stops of.
    s.stops = STOPPING & bit(info.signo as u32) != 0 || task.tracing.is_on();
    drop(s);
    taken(task, &mut info);
    Some(info)
}

/// A timer's signal is taken: the timer goes on, and what it was held back for is counted (`dequeue_signal` of Linux).
fn taken(task: &Task, info: &mut Siginfo) {
    if let Some(id) = info.timer_id()
        && let Some(t) = task.process.timers.lock().get(&id)
    {
        t.taken(info);
    }
    if info.signo as u32 == linux::SIGALRM
        && let Some(alarm) = task.process.alarm.get()
    {
        alarm.resume();
    }
}

/// The call's result says "restart", and no handler ran: run it again.
fn restart_without_handler(task: &Task, frame: &mut UserFrame) {
    let restarts = [Errno::RESTART, Errno::RESTART_ALWAYS, Errno::RESTART_NOHAND].map(Errno::to_ret);
    if frame.orig_rax != u64::MAX && restarts.contains(&(frame.rax as i64)) {
        rewind(task, frame);
    } else {
        task.resumes.store(0, Ordering::Relaxed);
    }
}

/// Sets a frame back to the system call that it is returning from.
fn rewind(task: &Task, frame: &mut UserFrame) {
    if frame.is_syscall() {
        frame.rax = frame.orig_rax;
        // The part of the trampoline that calls: rax is set already.
        frame.rip -= atoll_abi::layout::TRAMPOLINE_RETURN;
    } else {
        rewind_for_handler(task, frame);
        frame.rip = crate::exec::runnable_rip(task, frame.rip);
    }
}

/// Does what a signal asks for. True: a handler is going to run.
fn deliver(task: &Task, frame: &mut UserFrame, info: Siginfo, action: SigactionC) -> bool {
    let signal = info.signo as u32;
    match action.handler {
        SIG_IGN => false,
        SIG_DFL => {
            if IGNORED_BY_DEFAULT & bit(signal) != 0 {
                return false;
            }
            if STOPPING & bit(signal) != 0 {
                // Nobody is there who could continue it.
                if signal == linux::SIGSTOP || !jobs::is_own_orphaned(&task.process) {
                    stop(task, signal);
                    jobs::tell_outside(&task.process, signal);
                }
                return false;
            }
            if crate::process::world().verbose {
                crate::log::line(format_args!(
                    "{}[{}] ends by signal {signal} (code {}, address {:#x}) at {:#x}",
                    alloc::string::String::from_utf8_lossy(&task.name()),
                    task.tid(),
                    info.code,
                    info.words[0],
                    frame.rip
                ));
            }
            exit_task(core_dump::end(task, frame, &info))
        }
        _ => {
            if push_frame(task, frame, &info, &action).is_err() {
                // No room for the frame: as Linux does, SIGSEGV, and if that is it already, the end.
                if signal == linux::SIGSEGV {
                    task.process.actions.set(linux::SIGSEGV, SigactionC::default());
                }
                force(task, Siginfo::from_kernel(linux::SIGSEGV, 0x80));
                return false;
            }
            true
        }
    }
}

fn stop(task: &Task, signal: u32) {
    let p = &task.process;
    jobs::stops();
    let mut life = p.life.lock();
    // A SIGCONT that comes from here on finds it stopped.
    if !task.signals.lock().stops {
        return;
    }
    *life = Life::Stopped(signal);
    drop(life);
    let mut changes = p.changes.lock();
    changes.stopped = Some(signal);
    // Nobody has asked whether it went on, and now it doesn't.
    changes.continued = false;
    drop(changes);
    ptrace::process_changes(p);
    for t in p.tasks.lock().iter() {
        t.poke(work::STOP);
    }
    if !ptrace::is_traced_by_parent(p) {
        tell_parent(p, linux::CLD_STOPPED as i32, signal as i32);
    }
}

/// `struct ucontext` as the kernel lays it out.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct UContext {
    flags: u64,
    link: u64,
    stack: StackT,
    machine: SigContext,
    mask: u64,
}

/// `struct rt_sigframe`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct SignalFrame {
    restorer: u64,
    context: UContext,
    info: Siginfo,
}

const XSTATE_MAGIC1: u32 = 0x4650_5853;
const XSTATE_MAGIC2: u32 = 0x4650_5845;
/// Extended state that programs have here: x87, SSE, AVX, AVX-512, protection keys.
const XSTATE_MASK: u64 = 0x2e7;
/// cs and ss of user code.
const SEGMENTS: u64 = 0x33 | 0x2b << 48;
/// UC_FP_XSTATE, UC_SIGCONTEXT_SS, UC_STRICT_RESTORE_SS.
const UC_FLAGS: u64 = 7;
/// Flags that `sigreturn` sets: CF, PF, AF, ZF, SF, DF, OF. Not TF and AC, which would trap in the runtime.
pub const RFLAGS_USER: u64 = 0xcd5;

/// Size of the extended state of this machine's programs, and which components.
pub fn xstate() -> (usize, u64) {
    let d = &platform().control().descriptor;
    let size = d.xsave_size.load(Ordering::Relaxed) as usize;
    (size.clamp(576, XSAVE_MAX), d.xcr0.load(Ordering::Relaxed) & XSTATE_MASK)
}

/// Error code, trap number and fault address of the last fault, for the next signal frame.
pub struct FaultInfo {
    /// Page-fault error code.
    pub error: u64,
    /// Exception number.
    pub trap: u64,
    /// Address.
    pub cr2: u64,
}

fn on_altstack(stack: &StackT, sp: u64) -> bool {
    stack.flags & linux::SS_AUTODISARM as i32 == 0 && sp > stack.sp && sp - stack.sp <= stack.size
}

fn push_frame(task: &Task, frame: &mut UserFrame, info: &Siginfo, action: &SigactionC) -> Result<()> {
    let signal = info.signo as u32;
    task.resumes.store(0, Ordering::Relaxed);
    if frame.orig_rax != u64::MAX {
        let value = frame.rax as i64;
        let restart = action.flags & u64::from(linux::SA_RESTART) != 0;
        if value == Errno::RESTART.to_ret() && restart || value == Errno::RESTART_ALWAYS.to_ret() {
            rewind_for_handler(task, frame);
        } else if value == Errno::RESTART.to_ret() || value == Errno::RESTART_NOHAND.to_ret() {
            frame.rax = Errno::EINTR.to_ret() as u64;
        }
    }
    let (size, components) = xstate();
    let mut s = task.signals.lock();
    let use_alt = action.flags & u64::from(linux::SA_ONSTACK) != 0
        && s.altstack.flags & linux::SS_DISABLE as i32 == 0
        && !on_altstack(&s.altstack, frame.rsp);
    let top =
        if use_alt { s.altstack.sp.wrapping_add(s.altstack.size) } else { frame.rsp.wrapping_sub(RED_ZONE) };
    let fp = top.wrapping_sub(size as u64 + 4) & !63;
    let at = (fp.wrapping_sub(size_of::<SignalFrame>() as u64) & !15).wrapping_sub(8);
    if (use_alt || on_altstack(&s.altstack, frame.rsp)) && s.altstack.size > 0 && at < s.altstack.sp {
        return Err(Errno::EFAULT);
    }
    if frame.is_syscall() {
        atoll_task::capture_extended(frame);
    }
    let mask = s.saved.take().unwrap_or(s.blocked);
    let altstack = s.altstack;
    if use_alt && altstack.flags & linux::SS_AUTODISARM as i32 != 0 {
        s.altstack = no_altstack();
    }
    let mut blocked = s.blocked | action.mask & !UNBLOCKABLE;
    if action.flags & u64::from(linux::SA_NODEFER) == 0 {
        blocked |= bit(signal);
    }
    drop(s);
    // A program sees its own code's addresses, not those of trampolines.
    let rip = crate::exec::visible_rip(task, frame.rip);
    let flags = if on_altstack(&altstack, frame.rsp) { linux::SS_ONSTACK as i32 } else { altstack.flags };
    let fault = task.process.fault_info(info);
    let context = UContext {
        flags: UC_FLAGS,
        link: 0,
        stack: StackT { flags, ..altstack },
        machine: SigContext {
            r8: frame.r8,
            r9: frame.r9,
            r10: frame.r10,
            r11: frame.r11,
            r12: frame.r12,
            r13: frame.r13,
            r14: frame.r14,
            r15: frame.r15,
            rdi: frame.rdi,
            rsi: frame.rsi,
            rbp: frame.rbp,
            rbx: frame.rbx,
            rdx: frame.rdx,
            rax: frame.rax,
            rcx: frame.rcx,
            rsp: frame.rsp,
            rip,
            rflags: frame.rflags,
            segments: SEGMENTS,
            error: fault.error,
            trap: fault.trap,
            oldmask: mask,
            cr2: fault.cr2,
            fpstate: fp,
            reserved: [0; 8],
        },
        mask,
    };
    let mut area = [0u64; XSAVE_MAX / 8 + 1];
    area[..XSAVE_MAX / 8].copy_from_slice(&frame.xsave);
    area[64] &= components | 3;
    // The "software reserved" bytes say how long the area is and what is in it.
    area[58] = u64::from(XSTATE_MAGIC1) | (size as u64 + 4) << 32;
    area[59] = components;
    area[60] = size as u64;
    area[61] = 0;
    area[62] = 0;
    area[63] = 0;
    user::write(fp, &area.as_bytes()[..size])?;
    user::write(fp + size as u64, &XSTATE_MAGIC2.to_ne_bytes())?;
    let mut info = *info;
    if SYNCHRONOUS & bit(signal) != 0 {
        // There the error code travelled.
        info.words[13] = 0;
    }
    put(at, &SignalFrame { restorer: action.restorer, context, info })?;
    if action.flags & u64::from(linux::SA_RESETHAND) != 0 {
        task.process.actions.set(signal, SigactionC { handler: SIG_DFL, ..*action });
    }
    set_mask(task, blocked);
    frame.kind = FrameKind::Full as u32;
    frame.rip = crate::exec::address(action.handler);
    frame.rsp = at;
    frame.rdi = u64::from(signal);
    frame.rsi = at + 8 + size_of::<UContext>() as u64;
    frame.rdx = at + 8;
    frame.rax = 0;
    frame.orig_rax = u64::MAX;
    // Direction, trap and resume flags are clear in a handler.
    frame.rflags &= !(0x400 | 0x100 | 0x1_0000);
    frame.reset_extended();
    Ok(())
}

/// Like [`rewind`], but to the program's own `syscall` instruction, whose address the handler sees.
fn rewind_for_handler(task: &Task, frame: &mut UserFrame) {
    frame.rax = frame.orig_rax;
    // One that a tracer has seen may stand in a trampoline and be whole.
    frame.rip = crate::exec::visible_rip(task, frame.rip).wrapping_sub(2);
}

/// `rt_sigreturn(2)`: goes back to where a handler interrupted the program.
pub fn sigreturn(task: &Task, frame: &mut UserFrame) -> Result<u64> {
    let context: UContext = get(frame.rsp)?;
    let m = &context.machine;
    let (size, components) = xstate();
    let mut area = [0u64; XSAVE_MAX / 8];
    if m.fpstate != 0 {
        let legacy = &mut area.as_mut_bytes()[..512];
        user::read(m.fpstate, legacy)?;
        let extended = area[58] as u32 == XSTATE_MAGIC1 && area[60] as usize <= size;
        let len = if extended { area[60] as usize } else { 512 };
        let magic2 = if extended {
            let mut word = [0; 4];
            user::read(m.fpstate + len as u64, &mut word)?;
            u32::from_ne_bytes(word) == XSTATE_MAGIC2
        } else {
            false
        };
        if extended && magic2 && len > 512 {
            user::read(m.fpstate + 512, &mut area.as_mut_bytes()[512..len])?;
            area[64] &= components;
        } else {
            area[64] = 3;
        }
        // Nothing that XRSTOR or LDMXCSR would refuse.
        area[65..72].fill(0);
        area[3] = area[3] & 0xffff | 0xffff << 32;
    } else {
        area[0] = 0x37f;
        area[3] = 0x1f80;
        area[64] = 3;
    }
    frame.xsave = area;
    frame.kind = FrameKind::Full as u32;
    frame.r8 = m.r8;
    frame.r9 = m.r9;
    frame.r10 = m.r10;
    frame.r11 = m.r11;
    frame.r12 = m.r12;
    frame.r13 = m.r13;
    frame.r14 = m.r14;
    frame.r15 = m.r15;
    frame.rdi = m.rdi;
    frame.rsi = m.rsi;
    frame.rbp = m.rbp;
    frame.rbx = m.rbx;
    frame.rdx = m.rdx;
    frame.rax = m.rax;
    frame.rcx = m.rcx;
    frame.rsp = m.rsp;
    frame.rip = crate::exec::runnable_rip(task, m.rip);
    frame.rflags = m.rflags & RFLAGS_USER | 0x202;
    frame.orig_rax = u64::MAX;
    if context.stack.flags & linux::SS_ONSTACK as i32 == 0 || context.stack.size != 0 {
        let mut stack = context.stack;
        stack.flags &= !(linux::SS_ONSTACK as i32);
        let mut s = task.signals.lock();
        if s.altstack.flags & linux::SS_DISABLE as i32 != 0 || stack.sp != s.altstack.sp {
            s.altstack = stack;
        }
    }
    set_mask(task, context.mask);
    Ok(frame.rax)
}

/// Waits for one of `wanted` to be sent, and takes it (`sigtimedwait(2)`).
pub fn wait_for(task: &Task, wanted: u64, limit: Limit) -> Result<Siginfo> {
    let wanted = wanted & !UNBLOCKABLE;
    // Who doesn't wait is chosen for none of them.
    let waits = limit != Limit::Never;
    task.signals.lock().waiting = if waits { wanted } else { 0 };
    let found = wait(&task.process.signal_queue, 1, limit, || {
        let mut s = task.signals.lock();
        s.pending.take(wanted).or_else(|| task.process.pending.lock().take(wanted))
    });
    let mut s = task.signals.lock();
    s.waiting = 0;
    // One may have come in the instant between.
    let mut found = match found {
        Err(e) => s.pending.take(wanted).or_else(|| task.process.pending.lock().take(wanted)).ok_or(e),
        ok => ok,
    };
    let blocked = s.blocked;
    drop(s);
    // It may have been chosen for another of these.
    let left = task.process.pending.lock().set & wanted & blocked;
    if waits && left != 0 {
        retarget(task, left);
    }
    if let Ok(info) = &mut found {
        taken(task, info);
    }
    found
}

impl Process {
    /// How many signals may wait at most where this one comes to, if it is one that is counted.
    fn queue_limit(&self, signal: u32) -> u64 {
        let counted = signal >= linux::SIGRTMIN;
        if counted { self.limit(linux::RLIMIT_SIGPENDING).cur.min(QUEUE_MAX) } else { QUEUE_MAX }
    }

    /// What a signal frame says of the fault that caused it.
    fn fault_info(&self, info: &Siginfo) -> FaultInfo {
        if info.code <= 0 || SYNCHRONOUS & bit(info.signo as u32) == 0 {
            return FaultInfo { error: 0, trap: 0, cr2: 0 };
        }
        let (error, trap) = (info.words[13] & 0xffff_ffff, info.words[13] >> 32);
        FaultInfo { error, trap, cr2: if trap == 14 { info.words[0] } else { 0 } }
    }
}

const _: () = assert!(size_of::<UContext>() == 304);
const _: () = assert!(size_of::<SignalFrame>() == 440);
const _: () = assert!(XSAVE_OFFSET.is_multiple_of(64));
