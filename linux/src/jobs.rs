//! Job control (`setpgid(2)`, `tty_ioctl(4)`; POSIX, General Terminal Interface): what who isn't in a terminal's foreground may do with
//! it, and what becomes of stopped jobs that nobody is left to continue.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use atoll_abi::service::{Op, Request};
use atoll_abi::{Errno, Result};
use linux_raw_sys::general as linux;

use crate::current;
use crate::process::{Life, Process, Task, all_processes, first_pid, world};
use crate::types::Siginfo;
use crate::{pty, signal};

/// A process has been stopped since the cell began: in most nobody ever is, and no end is to pay for jobs then.
static STOPS: AtomicBool = AtomicBool::new(false);

/// A process stops.
pub fn stops() {
    STOPS.store(true, Ordering::Relaxed);
}

fn group_of(process: &Process) -> u32 {
    process.pgid.load(Ordering::Relaxed)
}

fn session_of(process: &Process) -> u32 {
    process.sid.load(Ordering::Relaxed)
}

/// A process has stopped by a signal: if it is the first, who started the cell sees that as of any other program. Returns when that is
/// continued, and with it, as a rule, the process.
pub fn tell_outside(process: &Process, number: u32) {
    if world().in_job && process.pid == first_pid() && matches!(*process.life.lock(), Life::Stopped(_)) {
        let mut request = Request::new(Op::Stop);
        request.arg[0] = number.into();
        // Who opens a file meanwhile is not to wait for the cell. Where nobody can do it, only the cell's own processes see it.
        atoll_fs::host::while_shared(|| _ = atoll_task::call(request));
    }
}

/// Sends a signal of the kernel's to all of a process group.
pub fn signal_group(group: u32, number: u32) {
    if group == 0 {
        return;
    }
    for p in all_processes() {
        if group_of(&p) == group {
            signal::send_process(&p, Siginfo::from_kernel(number, 0x80));
        }
    }
}

/// Is there nobody of its session beside the group, a parent of one of it, who could continue it? Without the process `without`.
fn is_orphaned(group: u32, without: Option<&Process>) -> bool {
    let is_held = |p: &Arc<Process>| {
        match p.parent.lock().upgrade() {
            Some(parent) => group_of(&parent) != group && session_of(&parent) == session_of(p),
            // A shell outside.
            None => world().in_job && p.pid == first_pid(),
        }
    };
    let counts = |p: &&Arc<Process>| {
        group_of(p) == group
            && p.zombie().is_none()
            && without.is_none_or(|w| !core::ptr::eq(w, &raw const ***p))
    };
    !all_processes().iter().filter(counts).any(is_held)
}

/// The same of the caller's group. What stops it from the keyboard then doesn't.
pub fn is_own_orphaned(process: &Process) -> bool {
    is_orphaned(group_of(process), None)
}

/// May the caller, of the session whose terminal it is, read from it (`signal`: SIGTTIN), or write to it or change it (SIGTTOU)? If its
/// group isn't the terminal's `foreground`, all of that get the signal, and the call begins again once they go on (`__tty_check_change`
/// of Linux).
pub fn check_foreground(foreground: u32, signal: u32) -> Result<()> {
    let Some(task) = current::try_current() else { return Ok(()) };
    let group = group_of(&task.process);
    if foreground == 0 || group == foreground { Ok(()) } else { refuse(task, signal, &|| ()) }
}

/// The cell itself is in the background of the terminal that it was started on, and the caller reads there: as [`check_foreground`]. `tell`
/// has others outside get the signal that are of the cell's job.
pub fn in_background(signal: u32, tell: &dyn Fn()) -> Errno {
    current::try_current().and_then(|task| refuse(task, signal, tell).err()).unwrap_or(Errno::EIO)
}

/// The caller is in the background of a terminal.
fn refuse(task: &Task, signal: u32, tell: &dyn Fn()) -> Result<()> {
    let group = group_of(&task.process);
    let is_blocked = task.signals.lock().blocked & signal::bit(signal) != 0;
    if is_blocked || task.process.actions.is_ignored(signal) {
        return if signal == linux::SIGTTIN { Err(Errno::EIO) } else { Ok(()) };
    }
    if is_own_orphaned(&task.process) {
        return Err(Errno::EIO);
    }
    tell();
    signal_group(group, signal);
    Err(Errno::RESTART)
}

/// Foreground group of the terminal that the cell was started on, if it is that of session `sid`, which has no pseudo terminal.
pub fn console_of(sid: u32) -> Option<u32> {
    let is_its = world().session.load(Ordering::Relaxed) == sid && pty::controlling(sid).is_none();
    is_its.then(|| world().foreground.load(Ordering::Relaxed))
}

/// The same for the caller; ENOTTY: it has another terminal, or none.
pub fn own_console() -> Result<u32> {
    let sid = current::try_current().map(|task| session_of(&task.process));
    sid.and_then(console_of).ok_or(Errno::ENOTTY)
}

/// As [`check_foreground`], of that terminal. Others than those of its session may do it.
pub fn check_console(signal: u32) -> Result<()> {
    let sid = current::try_current().map(|task| session_of(&task.process));
    sid.and_then(console_of).map_or(Ok(()), |foreground| check_foreground(foreground, signal))
}

/// The caller's session takes that terminal (TIOCSCTTY), with `force` from another one, if it may.
pub fn take_console(task: &Task, force: bool) -> Result<()> {
    let (process, own) = (&task.process, session_of(&task.process));
    let session = &world().session;
    if process.pid == own && session.load(Ordering::Relaxed) == own {
        return Ok(());
    }
    let is_free = session.load(Ordering::Relaxed) == 0 || force && task.may(linux::CAP_SYS_ADMIN);
    if process.pid != own || pty::controlling(own).is_some() || !is_free {
        return Err(Errno::EPERM);
    }
    world().foreground.store(group_of(process), Ordering::Relaxed);
    session.store(own, Ordering::Relaxed);
    Ok(())
}

/// Who leads that terminal's session gives it up. Value: its foreground group; 0: there is none, or another process leads it.
pub fn give_up_console(process: &Process) -> u32 {
    let (own, session) = (session_of(process), &world().session);
    if process.pid != own || session.compare_exchange(own, 0, Ordering::SeqCst, Ordering::Relaxed).is_err() {
        return 0;
    }
    world().foreground.swap(0, Ordering::Relaxed)
}

/// The group that is to be a terminal's foreground: one of the caller's session.
pub fn check_group(group: u32, session: u32) -> Result<()> {
    if group as i32 <= 0 {
        return Err(Errno::EINVAL);
    }
    let all = all_processes();
    let one = all.iter().find(|p| group_of(p) == group).ok_or(Errno::ESRCH)?;
    if session_of(one) == session { Ok(()) } else { Err(Errno::EPERM) }
}

/// A process ends, whose children have their new parents: groups that it was the last to hold, its own among them, and that have stopped
/// members, are told that nobody is left to continue them (`kill_orphaned_pgrp` of Linux).
pub fn process_ends(process: &Process, children: &[Arc<Process>]) {
    if !STOPS.load(Ordering::Relaxed) {
        return;
    }
    let (own, session) = (group_of(process), session_of(process));
    let theirs = children.iter().filter(|c| session_of(c) == session && group_of(c) != own);
    let mut groups: Vec<(u32, Option<&Process>)> = theirs.map(|c| (group_of(c), None)).collect();
    groups.sort_unstable_by_key(|(group, _)| *group);
    groups.dedup_by_key(|(group, _)| *group);
    let parent = process.parent.lock().upgrade();
    if parent.is_some_and(|p| session_of(&p) == session && group_of(&p) != own) {
        groups.push((own, Some(process)));
    }
    for (group, without) in groups {
        let is_stopped =
            |p: &Arc<Process>| group_of(p) == group && matches!(*p.life.lock(), Life::Stopped(_));
        if is_orphaned(group, without) && all_processes().iter().any(is_stopped) {
            signal_group(group, linux::SIGHUP);
            signal_group(group, linux::SIGCONT);
        }
    }
}
