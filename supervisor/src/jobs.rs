//! Job control: this process as a job of the shell that started it.
#![allow(unsafe_code, reason = "sends a signal to this process, and has it mean what it usually does")]

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
        // What can't be handled need not.
        let changed = libc::sigaction(signal, &raw const usual, &raw mut before) == 0;
        libc::raise(signal);
        if changed {
            libc::sigaction(signal, &raw const before, std::ptr::null_mut());
        }
    }
}
