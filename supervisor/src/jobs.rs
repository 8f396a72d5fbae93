//! Job control: this process as a job of the shell that started it.
#![allow(unsafe_code, reason = "sends a signal to this process, and has it mean what it usually does")]

use std::os::fd::{AsRawFd, BorrowedFd};

/// Is there somebody who could continue this process: a process of its session, but of another group, that is a parent of one of its group?
pub fn is_in_job() -> bool {
    // SAFETY: asks for ids.
    let ids = |pid: i32| unsafe { (libc::getpgid(pid), libc::getsid(pid)) };
    // SAFETY: as above.
    let mut parent = unsafe { libc::getppid() };
    let (group, session) = ids(0);
    // Ancestors of its group first; there are no more than these in a line.
    for _ in 0..100 {
        match ids(parent) {
            (its_group, its_session) if parent == 0 || its_group < 0 || its_session != session => {
                return false;
            }
            (its_group, _) if its_group != group => return true,
            _ => {}
        }
        // Behind the name: the state and the parent (proc(5)).
        let stat = std::fs::read_to_string(format!("/proc/{parent}/stat")).unwrap_or_default();
        let above = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        let Some(above) = above else { return false };
        parent = above;
    }
    false
}

/// Stops this process by a signal that stops, as if it had no handler for it, until somebody continues it. Does nothing where nobody could.
pub(crate) fn stop(signal: u64) {
    let stops = [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
    let Some(signal) = stops.into_iter().find(|s| *s as u64 == signal) else { return };
    if !is_in_job() {
        return;
    }
    // SAFETY: plain structures; to this thread, so that the process has stopped, and gone on, when that returns.
    unsafe {
        let usual: libc::sigaction = std::mem::zeroed();
        let mut before: libc::sigaction = std::mem::zeroed();
        let mut set: libc::sigset_t = std::mem::zeroed();
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&raw mut set, signal);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut mask);
        // It is sent before it means what it usually does: if another one stops the process from then on, what continues that takes this
        // one back, too, and it doesn't stop twice.
        libc::raise(signal);
        // What can't be handled need not.
        let changed = libc::sigaction(signal, &raw const usual, &raw mut before) == 0;
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        if changed {
            libc::sigaction(signal, &raw const before, std::ptr::null_mut());
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, std::ptr::null_mut());
    }
}

/// The calling thread reads on behalf of the cell: a terminal that is somebody else's is an error to it (EIO) and no signal to all of this
/// process's group: what is to become of that the cell decides, where the program may ignore the signal.
pub(crate) fn reads_for_others() {
    // SAFETY: a plain structure.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&raw mut set, libc::SIGTTIN);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
}

/// Sends a signal to all of this process's group, as the host does if one of it may not use the terminal. This process itself, which knows of
/// it, takes no notice of what it sends.
pub(crate) fn tell_job(signal: i32) {
    // SAFETY: no memory is involved.
    unsafe { libc::kill(0, signal) };
}

/// Is this process's group the one in the foreground of its terminal?
pub(crate) fn is_in_foreground(terminal: BorrowedFd) -> bool {
    // SAFETY: asks for ids.
    unsafe { libc::tcgetpgrp(terminal.as_raw_fd()) == libc::getpgrp() }
}

/// Is `terminal` this session's, its foreground another group than this process's, and somebody there who could change that? (Who is not
/// to be continued by anybody is not stopped: `__tty_check_change` of Linux.)
pub(crate) fn is_in_background(terminal: BorrowedFd) -> bool {
    // SAFETY: asks for ids.
    let (foreground, own) = unsafe { (libc::tcgetpgrp(terminal.as_raw_fd()), libc::getpgrp()) };
    foreground > 0 && foreground != own && is_in_job()
}
