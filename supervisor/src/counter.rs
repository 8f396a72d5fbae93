//! Counters of the processor and of the host, as far as whoever starts a cell may have them.
#![allow(unsafe_code, reason = "asks the host for a counter")]

use std::os::fd::{FromRawFd, OwnedFd};

use atoll_abi::counter::{CLOSE_ON_EXEC, Count, EVENTS, Event};

use crate::{Error, Result};

/// What counts an event, of this name, as `perf_event_open(2)` lets a cell have it, which has no capabilities: with what the kernel does
/// for it, or else without.
pub fn find(name: &str) -> Result<Count> {
    let event = event(name)?;
    let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
    // Where it can't be read, it is what it is unless somebody changes it.
    let paranoid = paranoid.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(USER_ONLY_FROM);
    let count = Count { event, user_only: paranoid >= USER_ONLY_FROM };
    let refused = |e: std::io::Error| Error::new(format!("--counter {name}: {}", why(&e)));
    if paranoid > USER_ONLY_FROM {
        return Err(refused(std::io::Error::from_raw_os_error(libc::EACCES)));
    }
    tried(count).map(|()| count).map_err(refused)
}

/// The event of this name.
pub fn event(name: &str) -> Result<Event> {
    let event = EVENTS.into_iter().find(|e| e.name == name);
    event.ok_or_else(|| {
        let names = EVENTS.map(|e| e.name).join(", ");
        Error::new(format!("--counter {name}: there is no such event; there are {names}"))
    })
}

/// `kernel.perf_event_paranoid` from which on only those with CAP_PERFMON may count what the kernel does.
const USER_ONLY_FROM: i32 = 2;

/// Opens a counter of this thread's, and closes it.
fn tried(count: Count) -> std::io::Result<()> {
    let attributes = count.attributes();
    // SAFETY: valid attributes, of the size that they say; a new descriptor.
    unsafe {
        let fd = libc::syscall(libc::SYS_perf_event_open, attributes.as_ptr(), 0, -1, -1, CLOSE_ON_EXEC);
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        drop(OwnedFd::from_raw_fd(fd as i32));
    }
    Ok(())
}

/// What an error of `perf_event_open(2)` means here.
fn why(e: &std::io::Error) -> String {
    match e.raw_os_error() {
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV) => {
            "this machine has no counter for it (a virtual machine often has none but those of software, as page-faults); `perf list` \
             shows which there are"
                .into()
        }
        Some(libc::EACCES | libc::EPERM) => {
            "a cell may not count it: the host's kernel.perf_event_paranoid must be 2 or less, and a container must allow \
             perf_event_open"
                .into()
        }
        Some(libc::ENOSYS) => "the host's kernel counts no events".into(),
        _ => format!("the host does not count it: {e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events() {
        let error = find("cache-mises").unwrap_err().to_string();
        assert!(error.contains("there is no such event; there are cache-misses, "), "{error}");
        // Some hosts let nobody count.
        match find("task-clock") {
            Ok(count) => assert_eq!(count.event.name, "task-clock"),
            Err(e) => assert!(e.to_string().starts_with("--counter task-clock: "), "{e}"),
        }
    }
}
