//! Files that nobody but a cell has open, by leases (`F_SETLEASE` of `fcntl(2)`): its locks on them need be told nobody.
//!
//! Who wants to open such a file waits until the lease has been given back. The host says so by a signal to one thread here, which hands
//! it on to the cell. A cell that doesn't give it back in time loses it.
#![allow(unsafe_code, reason = "calls about leases and signals")]

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use atoll_abi::errno::Errno;

use crate::serve::{Handle, check};

/// Leases of one cell: each time that somebody opens one of the files, all are looked at.
const LEASES_MAX: usize = 256;
/// A cell that has not given one back so long after somebody wanted to open the file doesn't have it any more.
const PATIENCE: Duration = Duration::from_secs(1);
/// The same of one that has said that it is at it.
pub(crate) const PATIENCE_AT_IT: Duration = Duration::from_secs(5);
/// uapi/asm-generic/fcntl.h.
const F_OWNER_TID: i32 = 0;
const F_SETOWN_EX: i32 = 15;

/// `struct f_owner_ex`.
#[repr(C)]
struct Owner {
    kind: i32,
    pid: i32,
}

struct Held {
    handle: Arc<Handle>,
    /// Device and number of the file.
    key: (u64, u64),
    /// Since when somebody waits to open it.
    wanted: Option<Instant>,
    patience: Duration,
}

#[derive(Default)]
struct State {
    /// The thread that is told.
    thread: Option<i32>,
    /// By the handles' numbers.
    held: HashMap<u64, Held>,
    /// What the cell has not been told of yet.
    wanted: VecDeque<u64>,
    /// The cell waits for that.
    asked: bool,
}

/// The leases of a cell.
#[derive(Default)]
pub(crate) struct Leases {
    state: Mutex<State>,
    changed: Condvar,
}

impl Leases {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while leases are held")
    }

    /// Takes one of a handle that is open to be written. EAGAIN: others have the file open; EINVAL: its file system has none.
    pub(crate) fn take(
        self: &Arc<Self>,
        number: u64,
        handle: &Arc<Handle>,
        key: (u64, u64),
    ) -> Result<(), Errno> {
        let mut s = self.state();
        if s.held.contains_key(&number) {
            return Err(Errno::EAGAIN);
        }
        if s.held.len() >= LEASES_MAX {
            return Err(Errno::ENOLCK);
        }
        let thread = match s.thread {
            Some(thread) => thread,
            None => {
                let all = self.clone();
                let name = std::thread::Builder::new().name("atoll-leases".into());
                name.spawn(move || all.watch()).map_err(|_| Errno::EAGAIN)?;
                s = self.changed.wait_while(s, |s| s.thread.is_none()).expect("as above");
                s.thread.unwrap_or_default()
            }
        };
        let owner = Owner { kind: F_OWNER_TID, pid: thread };
        let fd = handle.fd.as_raw_fd();
        // SAFETY: a valid structure.
        check(unsafe { libc::fcntl(fd, F_SETOWN_EX, &raw const owner) }.into())?;
        set(fd, libc::F_WRLCK)?;
        s.held.insert(number, Held { handle: handle.clone(), key, wanted: None, patience: PATIENCE });
        Ok(())
    }

    /// Gives one back, if there is one: also before its handle is let go, of whose opening there may be others.
    pub(crate) fn end(&self, number: u64) {
        let mut s = self.state();
        s.wanted.retain(|wanted| *wanted != number);
        if let Some(held) = s.held.remove(&number) {
            // Those who wait for that go on, if it was not taken away before.
            let _ = set(held.handle.fd.as_raw_fd(), libc::F_UNLCK);
        }
    }

    /// The cell knows that somebody waits, and is about to give it back.
    pub(crate) fn is_at_it(&self, number: u64) {
        if let Some(held) = self.state().held.get_mut(&number) {
            held.patience = PATIENCE_AT_IT;
        }
    }

    /// Is it this cell's own lease that another opening of the file would break?
    pub(crate) fn has(&self, key: (u64, u64)) -> bool {
        self.state().held.values().any(|held| held.key == key)
    }

    /// Waits until somebody wants to open one of the files. Value: the handle's number. EBUSY: somebody waits already.
    pub(crate) fn next(&self) -> Result<u64, Errno> {
        if std::mem::replace(&mut self.state().asked, true) {
            return Err(Errno::EBUSY);
        }
        let none = |s: &mut State| s.wanted.is_empty();
        let mut s = self.changed.wait_while(self.state(), none).expect("as above");
        s.asked = false;
        Ok(s.wanted.pop_front().unwrap_or_default())
    }

    fn watch(&self) {
        // SAFETY: a set of signals of this thread's own, which are sent to it alone.
        let signals = unsafe {
            let mut signals: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut signals);
            libc::sigaddset(&raw mut signals, libc::SIGIO);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, std::ptr::null_mut());
            self.state().thread = Some(libc::gettid());
            signals
        };
        self.changed.notify_all();
        let patience = libc::timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        let mut waited_for = false;
        loop {
            let limit = if waited_for { &raw const patience } else { std::ptr::null() };
            // SAFETY: a valid set; what the signal says is not asked for: all are looked at.
            unsafe { libc::sigtimedwait(&raw const signals, std::ptr::null_mut(), limit) };
            waited_for = self.look();
        }
    }

    /// Looks at all of them, and takes away what has not been given back. Value: does somebody wait for one?
    fn look(&self) -> bool {
        let mut guard = self.state();
        let State { held, wanted, .. } = &mut *guard;
        held.retain(|number, held| {
            let fd = held.handle.fd.as_raw_fd();
            // SAFETY: no memory is involved.
            let has = unsafe { libc::fcntl(fd, libc::F_GETLEASE) };
            if has != libc::F_WRLCK && held.wanted.is_none() {
                held.wanted = Some(Instant::now());
                wanted.push_back(*number);
            }
            let over = held.wanted.is_some_and(|since| since.elapsed() >= held.patience);
            // As root with CAP_LEASE, whoever owns the file. The host may have taken it away itself.
            !over || set(fd, libc::F_UNLCK) == Err(Errno::EACCES)
        });
        let waited_for = held.values().any(|held| held.wanted.is_some());
        drop(guard);
        self.changed.notify_all();
        waited_for
    }
}

fn set(fd: RawFd, kind: i32) -> Result<(), Errno> {
    // SAFETY: no memory is involved.
    check(unsafe { libc::fcntl(fd, libc::F_SETLEASE, kind) }.into()).map(drop)
}
