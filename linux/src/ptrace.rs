//! Tasks that are traced by another process (`ptrace(2)`): where they stop, what their tracer is told of that, and how they go on.
//!
//! A traced task stops in its own thread, inside the runtime, and leaves a copy of its registers with what is known of its being traced
//! ([`Trace`]). Its tracer reads and changes that copy, and the task takes it back when it goes on. Nobody who isn't traced pays for
//! this: while a task of the cell is, calls look whether it is the caller's (`gate::TRACED`).

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use atoll_abi::frame::{FrameKind, UserFrame};
use atoll_abi::{Errno, Result};
use atoll_sync::{Mutex, WaitQueue};
use atoll_task::{Limit, gate, wait, wait_uninterrupted};
use linux_raw_sys::general as linux;
use linux_raw_sys::ptrace as p;
use zerocopy::IntoBytes;

use crate::exec::{runnable_rip, visible_rip};
use crate::process::{Life, Process, Task, Usage, work};
use crate::signal::{self, bit};
use crate::types::Siginfo;

/// The trap flag.
pub const FLAG_TF: u64 = 0x100;
/// Options that name an event ask for it by the bit of its number.
const fn asks_for(event: u32) -> u32 {
    1 << event
}
/// Set in the signal's number of stops at calls (PTRACE_O_TRACESYSGOOD).
const SYSTEM_CALL: i32 = 0x80;
/// si_code of a step that ended a system call.
const TRAP_BRKPT: i32 = 1;
/// Calls that begin a program, of which nothing else is left in its registers.
const EXECS: [u64; 2] = [linux::__NR_execve as u64, linux::__NR_execveat as u64];

/// How a traced task goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Go {
    /// To the next signal or event.
    On,
    /// To the next beginning or end of a system call, too.
    ToCall,
    /// The same, and the call that begins is not made.
    PastCall,
    /// By one instruction.
    Step,
}

/// What a traced task is doing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It runs, or waits as all others do.
    Running,
    /// It is stopped, and its tracer may look at it.
    Stopped,
    /// It is stopped as its process is, until that is continued or its tracer interrupts it (PTRACE_LISTEN).
    Listening,
    /// It is stopped, and is to go on.
    Going,
    /// It is stopped, and is to go on untraced.
    Released,
}

/// Where in a system call a task stopped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In none, or in the middle of one.
    Elsewhere,
    /// At the beginning.
    Entry,
    /// At the end.
    Exit,
}

/// A stop.
#[derive(Clone, Copy)]
struct Stop {
    /// The signal, and above its eight bits the event.
    code: i32,
    info: Option<Siginfo>,
    message: u64,
    place: Place,
    /// It is stopped because its process is.
    group: bool,
}

impl Stop {
    /// For a signal, or what looks like one.
    fn new(code: i32, info: Option<Siginfo>) -> Stop {
        Stop { code, info, message: 0, place: Place::Elsewhere, group: false }
    }

    fn event(event: u32, message: u64) -> Stop {
        let code = linux::SIGTRAP as i32 | (event as i32) << 8;
        Stop { message, ..Stop::new(code, Some(Siginfo::from_kernel(linux::SIGTRAP, code))) }
    }
}

/// How a task is traced.
pub struct Trace {
    tracer: Weak<Process>,
    /// The thread of it that traces; 0: the first that asks for something.
    pub thread: u32,
    /// By PTRACE_SEIZE.
    pub seized: bool,
    /// PTRACE_O_ options.
    pub options: u32,
    /// What it is doing.
    pub state: State,
    /// How it goes on.
    pub go: Go,
    /// Its last stop's code, until the tracer has waited for it or has it go on.
    pub unseen: Option<i32>,
    /// The signal that it stopped for; what is said of it may be changed.
    pub info: Option<Siginfo>,
    /// PTRACE_GETEVENTMSG.
    pub message: u64,
    /// Where in a system call it is stopped.
    pub place: Place,
    /// Its registers while it is stopped.
    pub frame: Box<UserFrame>,
    /// The signal that it is to go on with; 0: none.
    pub signal: u32,
    /// It is to stop (PTRACE_INTERRUPT).
    pub interrupt: bool,
    /// It goes on although its process is stopped.
    passes_stop: bool,
}

impl Trace {
    /// The tracer's process, if it is there.
    pub fn tracer(&self) -> Option<Arc<Process>> {
        self.tracer.upgrade()
    }
}

/// What each task has for being traced.
pub struct Tracing {
    on: AtomicBool,
    steps: AtomicBool,
    /// Where its step began: really, and in the program.
    step_from: [AtomicU64; 2],
    /// It was let go in the middle of a step, and its next trap is for nobody.
    stray: AtomicBool,
    slot: Mutex<Slot>,
    /// Woken when it stops, when it is to go on, and when it ends.
    queue: WaitQueue,
}

/// What is known of a task's being traced.
#[derive(Default)]
struct Slot {
    trace: Option<Trace>,
    /// It has ended: nobody can trace it any more.
    gone: bool,
}

impl Tracing {
    /// Not traced.
    pub fn new() -> Tracing {
        Tracing {
            on: AtomicBool::new(false),
            steps: AtomicBool::new(false),
            step_from: [const { AtomicU64::new(0) }; 2],
            stray: AtomicBool::new(false),
            slot: Mutex::new(Slot::default()),
            queue: WaitQueue::new(),
        }
    }

    /// Is the task traced?
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Is it to stop after one instruction?
    #[inline]
    pub fn steps(&self) -> bool {
        self.steps.load(Ordering::Relaxed)
    }

    /// Calls `f` with what is known, if it is traced.
    pub fn with<R>(&self, f: impl FnOnce(&mut Trace) -> R) -> Option<R> {
        self.slot.lock().trace.as_mut().map(f)
    }

    /// Calls `f` with its tracer, if there is one; neither comes nor goes meanwhile.
    pub fn hold(&self, f: impl FnOnce(Option<Arc<Process>>)) {
        let slot = self.slot.lock();
        f(slot.trace.as_ref().and_then(|t| t.tracer.upgrade()));
    }

    /// Waits until it has stopped, as its process was; or until it won't, or the caller has something else to do.
    pub fn wait_for_stop(&self, task: &Task) {
        let _ = wait(&self.queue, 1, Limit::Forever, || {
            let running = self.with(|t| t.state == State::Running).unwrap_or(false);
            let is_stopped = matches!(*task.process.life.lock(), Life::Stopped(_));
            (!running || !is_stopped || is_going(task, false)).then_some(())
        });
    }
}

impl Default for Tracing {
    fn default() -> Self {
        Self::new()
    }
}

/// Those whom a process traces.
#[derive(Default)]
pub struct Tracees {
    /// The list.
    pub list: Vec<Tracee>,
    /// The process has ended, and traces nobody any more.
    closed: bool,
}

/// Ends that nobody has waited for, at most: from then on the oldest are forgotten.
const ENDS_MAX: usize = 16_384;

/// One whom a process traces.
pub struct Tracee {
    /// Its thread id.
    pub tid: u32,
    /// Itself, until it ends.
    pub task: Option<Arc<Task>>,
    /// How it ended, if the tracer wouldn't hear of that otherwise.
    pub ended: Option<Ended>,
}

/// An end that the tracer is to be told of.
#[derive(Clone, Copy)]
pub struct Ended {
    /// Wait status.
    pub status: i32,
    /// The user.
    pub uid: u32,
    /// What it used.
    pub usage: Usage,
}

fn count(task: &Task, on: bool) {
    if task.tracing.on.swap(on, Ordering::SeqCst) != on {
        gate::TRACED.count(on);
    }
}

/// Is the task ending, so that it doesn't stop any more? `at_end`: it stops there, if it wasn't killed.
pub(crate) fn is_going(task: &Task, at_end: bool) -> bool {
    if at_end {
        task.process.killed.load(Ordering::SeqCst)
    } else {
        task.process.is_ending() || task.asked() & (work::END | work::DUMP) != 0
    }
}

/// `tracer` traces `task` from now on, by this thread (0: by whichever asks first), if it may at that moment. EPERM: somebody does already,
/// or one of them has ended.
pub fn attach(
    task: &Arc<Task>,
    tracer: &Arc<Process>,
    thread: u32,
    seized: bool,
    options: u32,
    may: impl FnOnce() -> bool,
) -> Result<()> {
    let frame = Box::new(UserFrame::new());
    // One that was let go just now takes back its registers first.
    let tracing = &task.tracing;
    wait_uninterrupted(&tracing.queue, 1, || {
        (tracing.with(|t| t.state == State::Released) != Some(true)).then_some(())
    });
    let mut tracees = tracer.tracees.lock();
    let has_thread = thread == 0 || tracer.tasks.lock().iter().any(|t| t.tid() == thread);
    let mut slot = tracing.slot.lock();
    let can_be =
        !tracees.closed && has_thread && !slot.gone && slot.trace.is_none() && !is_going(task, false);
    if !can_be || !may() {
        return Err(Errno::EPERM);
    }
    slot.trace = Some(Trace {
        tracer: Arc::downgrade(tracer),
        thread,
        seized,
        options,
        state: State::Running,
        go: Go::On,
        unseen: None,
        info: None,
        message: 0,
        place: Place::Elsewhere,
        frame,
        signal: 0,
        interrupt: false,
        passes_stop: false,
    });
    tracing.stray.store(false, Ordering::Relaxed);
    count(task, true);
    tracees.list.push(Tracee { tid: task.tid(), task: Some(task.clone()), ended: None });
    if task.tid() == task.process.pid {
        *task.process.tracer.lock() = Arc::downgrade(tracer);
    }
    Ok(())
}

/// It is traced no longer. One that is stopped goes on with `signal`, if that is not 0.
pub fn release(task: &Task, signal: u32) {
    let tracer = {
        let mut slot = task.tracing.slot.lock();
        let Some(t) = slot.trace.as_mut() else { return };
        let tracer = t.tracer.upgrade();
        match t.state {
            // It takes back its registers, and forgets this.
            State::Stopped | State::Listening => {
                (t.state, t.signal, t.go) = (State::Released, signal, Go::On);
            }
            State::Going => (t.state, t.go) = (State::Released, Go::On),
            State::Running => {
                slot.trace = None;
                let steps = task.tracing.steps.swap(false, Ordering::Relaxed);
                task.tracing.stray.store(steps, Ordering::Relaxed);
            }
            State::Released => {}
        }
        count(task, false);
        tracer
    };
    task.tracing.queue.wake_all(1);
    let Some(tracer) = tracer else { return };
    tracer.tracees.lock().list.retain(|one| one.tid != task.tid() || one.task.is_none());
    if task.tid() == task.process.pid {
        let mut now = task.process.tracer.lock();
        // By now it may be another's.
        if now.upgrade().is_some_and(|now| Arc::ptr_eq(&now, &tracer)) {
            *now = Weak::new();
        }
    }
}

/// The tracer's process, and its thread's id.
pub fn tracer(task: &Task) -> Option<(Arc<Process>, u32)> {
    task.tracing.with(|t| t.tracer.upgrade().map(|tracer| (tracer, t.thread))).flatten()
}

/// Is it stopped for its tracer?
pub fn is_stopped(task: &Task) -> bool {
    task.tracing.is_on() && task.tracing.with(|t| t.state == State::Stopped).unwrap_or(false)
}

/// Sends the tracer its SIGCHLD, and has it look.
fn tell(tracer: &Arc<Process>, task: &Task, id: u32, code: u32, value: i32) {
    let stopped = code == linux::CLD_TRAPPED;
    let quiet = tracer.actions.get(linux::SIGCHLD).flags & u64::from(linux::SA_NOCLDSTOP) != 0;
    if !(stopped && quiet) {
        let uid = task.ids().ruid;
        let [user, system] = task.divided().ticks();
        signal::send_process(tracer, Siginfo::child(code as i32, id, uid, value, user, system));
    }
    tracer.child_events.wake_all(1);
}

/// All of the program's registers are in the frame, as they are in one that was taken by an upcall.
pub fn complete(frame: &mut UserFrame) {
    if frame.is_syscall() {
        atoll_task::capture_extended(frame);
        frame.kind = FrameKind::Full as u32;
        frame.saved_components = 0;
        frame.fs_base = atoll_task::thread_pointer();
    }
}

/// The current task stops, until its tracer has it go on. Value: the signal that it goes on with, what is said of that, and how it
/// goes on; None: it is not traced, or ends.
fn stop(task: &Task, frame: &mut UserFrame, why: Stop) -> Option<(u32, Option<Siginfo>, Go)> {
    let tracing = &task.tracing;
    let at_end = why.code >> 8 == p::PTRACE_EVENT_EXIT as i32;
    if is_going(task, at_end) {
        return None;
    }
    complete(frame);
    // A program and its tracer know nothing of trampolines.
    let (real, shown) = (frame.rip, visible_rip(task, frame.rip));
    frame.rip = shown;
    tracing.steps.store(false, Ordering::Relaxed);
    let tracer = tracing.with(|t| {
        t.frame.as_mut_bytes().copy_from_slice(frame.as_bytes());
        (t.state, t.unseen) = (State::Stopped, Some(why.code));
        (t.info, t.message, t.place) = (why.info, why.message, why.place);
        (t.signal, t.go) = (0, Go::On);
        t.tracer.upgrade()
    });
    let Some(Some(tracer)) = tracer else {
        frame.rip = real;
        // Nobody is left who could have it go on.
        if tracer.is_some() {
            let mut slot = tracing.slot.lock();
            slot.trace = None;
            count(task, false);
        }
        return None;
    };
    tracing.queue.wake_all(1);
    tell(&tracer, task, task.tid(), linux::CLD_TRAPPED, why.code & 0x7f);
    drop(tracer);
    let stays = || match tracing.with(|t| (t.state, t.interrupt)) {
        Some((State::Stopped, _)) => true,
        Some((State::Listening, interrupt)) => {
            !interrupt && matches!(*task.process.life.lock(), Life::Stopped(_))
        }
        _ => false,
    };
    wait_uninterrupted(&tracing.queue, 1, || (!stays() || is_going(task, at_end)).then_some(()));
    let mut slot = tracing.slot.lock();
    let went = slot.trace.as_mut().map(|t| {
        frame.as_mut_bytes().copy_from_slice(t.frame.as_bytes());
        let how = (t.signal, t.info, t.go);
        let released = t.state == State::Released;
        // What it stops for next is that its process was continued.
        t.interrupt |= t.state == State::Listening;
        t.passes_stop |= why.group && t.state == State::Going;
        (t.state, t.unseen) = (State::Running, None);
        (how, released)
    });
    if let Some((_, true)) = went {
        slot.trace = None;
    }
    drop(slot);
    tracing.queue.wake_all(1);
    frame.rip = if frame.rip == shown { real } else { runnable_rip(task, frame.rip) };
    atoll_task::set_thread_pointer(frame.fs_base);
    let ((signal, info, go), _) = went?;
    frame.rflags &= !FLAG_TF;
    if go == Go::Step {
        frame.rflags |= FLAG_TF;
        tracing.step_from[0].store(frame.rip, Ordering::Relaxed);
        tracing.step_from[1].store(visible_rip(task, frame.rip), Ordering::Relaxed);
        tracing.steps.store(true, Ordering::Relaxed);
    }
    Some((signal, info, go))
}

/// The same at a system call, where a signal that it goes on with is sent to it. At all others one is for nothing, as on Linux.
fn stop_at_call(task: &Task, frame: &mut UserFrame, why: Stop) {
    if let Some((signal, ..)) = stop(task, frame, why)
        && signal != 0
    {
        send_to(task, Siginfo::from_kernel(signal, 0x80));
    }
}

/// Sends a signal to the current task.
fn send_to(task: &Task, info: Siginfo) {
    if let Some(me) = crate::process::find_task(task.tid()) {
        signal::send_task(&me, info);
    }
}

/// Is the task traced, and does its tracer want to know of an event?
pub fn wants(task: &Task, event: u32) -> bool {
    task.tracing.is_on() && task.tracing.with(|t| t.options & asks_for(event) != 0) == Some(true)
}

/// A traced task stops for an event, if its tracer wants to know of it.
pub fn event(task: &Task, frame: &mut UserFrame, event: u32, message: u64) {
    if wants(task, event) {
        stop(task, frame, Stop::event(event, message));
    }
}

/// A traced task begins a system call, which `serve` makes.
pub fn call(task: &Task, frame: &mut UserFrame, serve: impl FnOnce(&Task, &mut UserFrame)) {
    let tracing = &task.tracing;
    complete(frame);
    frame.rflags &= !FLAG_TF;
    let number = frame.orig_rax;
    let follows = || {
        let sysgood = |t: &mut Trace| if t.options & p::PTRACE_O_TRACESYSGOOD != 0 { SYSTEM_CALL } else { 0 };
        let follows = |t: &mut Trace| matches!(t.go, Go::ToCall | Go::PastCall).then(|| sysgood(t));
        tracing.with(follows).flatten()
    };
    let at = |good: i32, place: Place| {
        let code = linux::SIGTRAP as i32 | good;
        let message = if place == Place::Entry {
            p::PTRACE_EVENTMSG_SYSCALL_ENTRY
        } else {
            p::PTRACE_EVENTMSG_SYSCALL_EXIT
        };
        let info = Some(Siginfo::from_kernel(linux::SIGTRAP, code));
        Stop { message: message.into(), place, ..Stop::new(code, info) }
    };
    let mut emulated = false;
    let mut made = true;
    if let Some(good) = follows() {
        emulated = tracing.with(|t| t.go) == Some(Go::PastCall);
        frame.rax = Errno::ENOSYS.to_ret() as u64;
        stop_at_call(task, frame, at(good, Place::Entry));
        // No call has a number below 0.
        made = !emulated && frame.orig_rax as i32 >= 0 && !is_going(task, false);
        if !made || frame.orig_rax != number {
            // It isn't the wait that was to go on.
            task.resumes.store(0, Ordering::Relaxed);
        }
    }
    if made {
        serve(task, frame);
    }
    if frame.orig_rax == u64::MAX && EXECS.contains(&number) {
        frame.orig_rax = number;
    }
    if let Some(good) = follows().filter(|_| !emulated) {
        stop_at_call(task, frame, at(good, Place::Exit));
    } else if tracing.steps() {
        stepped(task, frame);
    }
}

/// A task that goes by one instruction has made it, and stops.
pub fn stepped(task: &Task, frame: &mut UserFrame) {
    let info = Siginfo::fault(linux::SIGTRAP, TRAP_BRKPT, visible_rip(task, frame.rip));
    let code = linux::SIGTRAP as i32;
    stop(task, frame, Stop::new(code, Some(info)));
}

/// A task that goes by one instruction is going to run a signal's handler, and stops.
pub fn stepped_to_handler(task: &Task, frame: &mut UserFrame) {
    let code = linux::SIGTRAP as i32;
    let info = Siginfo::from_kernel(linux::SIGTRAP, code);
    stop(task, frame, Stop::new(code, Some(info)));
}

/// A step ended. Is it of no account: one in a trampoline, of which the program knows nothing, so that another follows; or one of a task
/// that was let go?
pub fn steps_on(task: &Task, frame: &mut UserFrame) -> bool {
    let tracing = &task.tracing;
    if !tracing.steps() {
        return tracing.stray.swap(false, Ordering::Relaxed);
    }
    let [was, was_shown] = tracing.step_from.each_ref().map(|at| at.load(Ordering::Relaxed));
    let shown = visible_rip(task, frame.rip);
    let on = shown == was_shown && (frame.rip != shown || was != was_shown);
    if on {
        tracing.step_from[0].store(frame.rip, Ordering::Relaxed);
        frame.rflags |= FLAG_TF;
    }
    on
}

/// Before a traced task goes back to its program: stops it if its process is stopped, or if its tracer interrupted it. True: it stopped.
pub fn look(task: &Task, frame: &mut UserFrame) -> bool {
    let life = *task.process.life.lock();
    let why = task.tracing.with(|t| {
        let event = if t.seized { (p::PTRACE_EVENT_STOP as i32) << 8 } else { 0 };
        match life {
            Life::Stopped(signal) if !t.passes_stop => {
                t.interrupt = false;
                let code = signal as i32 | event;
                Some((code, t.seized.then(|| Siginfo::from_kernel(signal, code)), true))
            }
            _ if core::mem::take(&mut t.interrupt) => {
                let code = linux::SIGTRAP as i32 | event;
                Some((code, Some(Siginfo::from_kernel(linux::SIGTRAP, code)), false))
            }
            _ => None,
        }
    });
    let Some(Some((code, info, group))) = why else { return false };
    stop(task, frame, Stop { group, ..Stop::new(code, info) }).is_some()
}

/// Does it go on although its process is stopped?
pub fn passes_stop(task: &Task) -> bool {
    task.tracing.is_on() && task.tracing.with(|t| t.passes_stop) == Some(true)
}

/// A signal is about to be delivered to a traced task: what its tracer makes of it. None: nothing.
pub fn signal(task: &Task, frame: &mut UserFrame, info: Siginfo) -> Option<Siginfo> {
    let code = info.signo;
    let stop_for = Stop::new(code, Some(info));
    let (signal, changed, _) = match stop(task, frame, stop_for) {
        Some(went_on) => went_on,
        // Not traced any more.
        None => return Some(info),
    };
    let info = match signal {
        0 => return None,
        // What the tracer says of the signal counts if it is of that one.
        same if changed.is_some_and(|c| c.signo == same as i32) => changed.unwrap_or(info),
        other => {
            let (pid, uid) = tracer(task).map_or((0, 0), |(t, _)| (t.pid, t.ids().ruid));
            Siginfo::from_user(other, 0, pid, uid, 0)
        }
    };
    // Meanwhile it may have been blocked.
    if task.signals.lock().blocked & bit(signal) != 0 {
        send_to(task, info);
        return None;
    }
    Some(info)
}

/// The process was stopped, or continued: its traced tasks stop anew, or go on listening.
pub fn process_changes(process: &Process) {
    for task in process.tasks.lock().iter().filter(|t| t.tracing.is_on()) {
        task.tracing.with(|t| t.passes_stop = false);
        task.tracing.queue.wake_all(1);
    }
}

/// It was killed, or is to end: it stops no longer.
pub fn wake(task: &Task) {
    task.tracing.queue.wake_all(1);
}

/// Does its process's parent trace it, and so hear of its stops?
pub fn is_traced_by_parent(process: &Process) -> bool {
    let tracer = process.tracer.lock().upgrade();
    tracer.is_some_and(|tracer| {
        process.parent.lock().upgrade().is_some_and(|parent| Arc::ptr_eq(&parent, &tracer))
    })
}

/// `child` is a new task of `maker`'s making, by a call of this kind: it is traced as its maker is, if the tracer wants that.
pub fn inherit(maker: &Task, child: &Arc<Task>, event: u32) {
    let how = maker.tracing.with(|t| {
        let wanted = t.options & asks_for(event) != 0;
        wanted.then(|| t.tracer.upgrade().map(|tracer| (tracer, t.thread, t.seized, t.options))).flatten()
    });
    let Some(Some((tracer, thread, seized, options))) = how else { return };
    if attach(child, &tracer, thread, seized, options, || true).is_err() {
        return;
    }
    if seized {
        child.tracing.with(|t| t.interrupt = true);
        child.poke(work::STOP);
    } else {
        signal::send_task(child, Siginfo::from_kernel(linux::SIGSTOP, 0));
    }
}

/// The current task has begun another program; `was`: its id before that.
pub fn began(task: &Task, frame: &mut UserFrame, was: u32) {
    let Some((options, seized)) = task.tracing.with(|t| (t.options, t.seized)) else { return };
    if options & asks_for(p::PTRACE_EVENT_EXEC) != 0 {
        stop(task, frame, Stop::event(p::PTRACE_EVENT_EXEC, was.into()));
    } else if !seized {
        let (pid, uid) = (task.process.pid, task.ids().ruid);
        send_to(task, Siginfo::from_user(linux::SIGTRAP, 0, pid, uid, 0));
    }
}

/// A task has taken its process's id, and was known by `was` before: the one that had it is gone.
pub fn became_leader(task: &Task, was: u32) {
    let now = task.tid();
    if was == now {
        return;
    }
    for one in task.process.tracees.lock().list.iter().filter_map(|one| one.task.as_ref()) {
        one.tracing.with(|t| t.thread = if t.thread == was { now } else { t.thread });
    }
    let mine = tracer(task).map(|(tracer, _)| tracer);
    let before = task.process.tracer.lock().upgrade();
    if let Some(before) = &before {
        before.tracees.lock().list.retain(|one| one.tid != now);
    }
    if let Some(mine) = &mine
        && let Some(me) = mine.tracees.lock().list.iter_mut().find(|one| one.tid == was && one.task.is_some())
    {
        me.tid = now;
    }
    *task.process.tracer.lock() = mine.as_ref().map_or(Weak::new(), Arc::downgrade);
}

/// The current task is about to end, with a wait status.
pub fn about_to_end(task: &Task, frame: &mut UserFrame, status: i32) {
    // One that an exec ends tells nobody.
    if task.process.is_ending() || task.asked() & work::END == 0 {
        event(task, frame, p::PTRACE_EVENT_EXIT, status as u32 as u64);
    }
}

/// A task ends.
pub fn ends(task: &Task, status: i32) {
    let tracer = {
        let mut slot = task.tracing.slot.lock();
        slot.gone = true;
        let tracer = slot.trace.take().and_then(|t| t.tracer.upgrade());
        count(task, false);
        tracer
    };
    task.tracing.queue.wake_all(1);
    let Some(tracer) = tracer else { return };
    // A process ends with the last of its tasks.
    let leads = task.tid() == task.process.pid;
    let ended = Ended { status, uid: task.ids().ruid, usage: task.divided() };
    let forget = !leads && tracer.actions.ignores_children();
    let mut tracees = tracer.tracees.lock();
    if let Some(n) = tracees.list.iter().position(|one| one.tid == task.tid() && one.task.is_some()) {
        let me = &mut tracees.list[n];
        let gone = me.task.take();
        me.ended = (!leads).then_some(ended);
        if forget {
            tracees.list.remove(n);
        }
        if tracees.list.len() > ENDS_MAX
            && let Some(oldest) = tracees.list.iter().position(|one| one.ended.is_some())
        {
            tracees.list.remove(oldest);
        }
        drop(tracees);
        drop(gone);
    }
    if !leads {
        tell_of_end(&tracer, task, task.tid(), status);
    }
}

fn tell_of_end(tracer: &Arc<Process>, task: &Task, id: u32, status: i32) {
    let (code, value) = crate::process::end_code(status);
    tell(tracer, task, id, code, value);
}

/// A process ends, with its last task: its tracer hears of it, unless that is its parent, and nobody is traced by it any more.
pub fn process_ends(process: &Arc<Process>, last: &Task, status: i32) {
    process.tracees.lock().closed = true;
    tracer_ends(process, None);
    let by_parent = is_traced_by_parent(process);
    let tracer = core::mem::replace(&mut *process.tracer.lock(), Weak::new());
    let Some(tracer) = tracer.upgrade() else { return };
    let mut tracees = tracer.tracees.lock();
    let at = tracees.list.iter().position(|one| one.tid == process.pid && one.ended.is_none());
    if by_parent || tracer.actions.ignores_children() {
        at.map(|n| tracees.list.remove(n));
    } else if let Some(n) = at {
        let usage = process.divided();
        tracees.list[n].ended = Some(Ended { status, uid: process.ids().ruid, usage });
    }
    drop(tracees);
    if !by_parent {
        tell_of_end(&tracer, last, process.pid, status);
    }
}

/// Who traces has ended, as a thread or as a whole: those whom it traces are let go, or end, too.
pub fn tracer_ends(process: &Process, thread: Option<u32>) {
    let is_its = |task: &Task| thread.is_none_or(|tid| task.tracing.with(|t| t.thread == tid) == Some(true));
    let all = process.tracees.lock();
    let tasks: Vec<Arc<Task>> =
        all.list.iter().filter_map(|one| one.task.clone()).filter(|t| is_its(t)).collect();
    drop(all);
    for task in tasks {
        if task.tracing.with(|t| t.options & p::PTRACE_O_EXITKILL != 0) == Some(true) {
            task.process.end(linux::SIGKILL as i32);
        }
        release(&task, 0);
    }
}
