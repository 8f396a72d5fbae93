//! Counters of the processor and of the host, as far as whoever starts a cell may have them.
#![allow(unsafe_code, reason = "asks the host for a counter")]

use std::fs::File;
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};

use atoll_abi::counter::{CLOSE_ON_EXEC, Count, EVENTS, Event};

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use crate::{Error, Result};

/// What counts an event, of this name, as `perf_event_open(2)` lets a cell have it, which has no capabilities: with what the kernel does
/// for it, or else without.
pub fn find(name: &str) -> Result<Count> {
    let event = event(name)?;
    // As a cell asks: its processes have no capabilities.
    let asks =
        |user_only| as_a_cell(|| tried(Count { event, user_only }).map(|()| Count { event, user_only }));
    asks(false).or_else(|_| asks(true)).map_err(|e| Error::new(format!("--counter {name}: {}", why(&e))))
}

/// Runs `f` without the capabilities that this thread has.
fn as_a_cell<T>(f: impl FnOnce() -> std::io::Result<T>) -> std::io::Result<T> {
    let has = capabilities(None)?;
    set_capabilities(None, CapabilitySets { effective: CapabilitySet::empty(), ..has })?;
    let r = f();
    set_capabilities(None, has)?;
    r
}

/// The event of this name.
pub fn event(name: &str) -> Result<Event> {
    let event = EVENTS.into_iter().find(|e| e.name == name);
    event.ok_or_else(|| {
        let names = EVENTS.map(|e| e.name).join(", ");
        Error::new(format!("--counter {name}: there is no such event; there are {names}"))
    })
}

/// Opens a counter of this thread's, looks at it, and closes it.
fn tried(count: Count) -> std::io::Result<()> {
    let attributes = count.attributes();
    // SAFETY: valid attributes, of the size that they say; a new descriptor.
    unsafe {
        let fd = libc::syscall(libc::SYS_perf_event_open, attributes.as_ptr(), 0, -1, -1, CLOSE_ON_EXEC);
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        let mut counted = [0; 8];
        // Nothing comes from one that did not get what it needs of the processor.
        let n = File::from(OwnedFd::from_raw_fd(fd as i32)).read(&mut counted)?;
        if n < counted.len() { Err(std::io::Error::from_raw_os_error(libc::EBUSY)) } else { Ok(()) }
    }
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
            "a cell may not count it: the host's kernel.perf_event_paranoid must be 2 or less (perf_event_open(2)), and a container must allow \
             perf_event_open"
                .into()
        }
        Some(libc::EBUSY) => "others have all of the processor's counters (perf, or the kernel's watchdog: nmi_watchdog=0)".into(),
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
