//! Lines between cells, and the only table that all cores read for it: which cells there are, where their cores'
//! words and their inboxes lie (RF-10). It is written while a cell is made, by atomics; what it leads to is the
//! receiving cell's own memory, which stays where it is when that cell starts again. Nobody waits for anybody: a full
//! inbox is the sender's to try again.
#![allow(unsafe_code, reason = "writes into inboxes by the direct map")]

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use atoll_abi::core_local::pending;
use atoll_abi::errno::Errno;
use atoll_abi::mailbox::{Inbox, Line};
use atoll_partition::CELLS_MAX;

use crate::cell::Answer;
use crate::cpu::notify;
use crate::entry::DIRECT;

/// What others need to know of a cell.
struct Address {
    /// It runs.
    runs: AtomicBool,
    /// Its cores in the machine, a bit each.
    cores: AtomicU64,
    /// Their areas, by the direct map.
    areas: AtomicU64,
    /// Physical addresses of its inboxes, by the number of the sender; 0: that one may not send.
    inboxes: [AtomicU64; CELLS_MAX],
}

static CELLS: [Address; CELLS_MAX] = [const {
    Address {
        runs: AtomicBool::new(false),
        cores: AtomicU64::new(0),
        areas: AtomicU64::new(0),
        inboxes: [const { AtomicU64::new(0) }; CELLS_MAX],
    }
}; CELLS_MAX];

/// Cell `cell` has an inbox at this physical address for what `sender` sends.
pub fn open(cell: usize, sender: usize, inbox: u64) {
    CELLS[cell].inboxes[sender].store(inbox, Ordering::Release);
}

/// Cell `cell` begins, with these cores and their areas.
pub fn begin(cell: usize, cores: u64, areas: u64) {
    CELLS[cell].cores.store(cores, Ordering::Relaxed);
    CELLS[cell].areas.store(areas, Ordering::Relaxed);
    CELLS[cell].runs.store(true, Ordering::Release);
}

/// It has ended.
pub fn end(cell: usize) {
    CELLS[cell].runs.store(false, Ordering::Release);
}

/// Sends a line: of one sender one at a time.
pub fn send(sender: usize, to: usize, line: &Line) -> Answer {
    let inbox = CELLS[to].inboxes[sender].load(Ordering::Acquire);
    if inbox == 0 {
        return Err(Errno::EPERM);
    }
    if !CELLS[to].runs.load(Ordering::Acquire) {
        return Err(Errno::EPIPE);
    }
    // SAFETY: a page of the receiver's that is nothing else for as long as the machine runs; of atomics.
    let inbox = unsafe { &*((DIRECT + inbox) as *const Inbox) };
    if !inbox.put(line) {
        return Err(Errno::EAGAIN);
    }
    if let Some(core) = inbox.bell.load(Ordering::SeqCst).checked_sub(1) {
        let (cores, areas) =
            (CELLS[to].cores.load(Ordering::Relaxed), CELLS[to].areas.load(Ordering::Relaxed));
        // A core that it has not got is not notified.
        let _ = notify(cores, areas, u64::from(core), pending::MAILBOX);
    }
    Ok(0)
}
