//! Units of work that programs name: connections, queries, requests (`libatoll/include/atoll.h`).
//!
//! A unit is an activity below its process's (`atoll_task::Activity`). A thread enters it, works for it until it leaves, and
//! enters others within. Whoever enters holds the unit, so one that was ended goes on for those who are in it. A *handle*
//! names a unit in its process: the number of its activity and, above that, a serial number, so that a handle of one that
//! has ended never means another.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use atoll_abi::grid::call::{
    CREATE, CURRENT, DEPTH_MAX, END, ENTER, HELLO, LEAVE, PAGES_ACCESSED, PAGES_CHANGE, PAGES_COLOUR,
    PAGES_FORGET, PAGES_FRAMES, PAGES_WRITTEN, SHRINK, VERSION,
};
use atoll_abi::grid::{ACTIVITIES_MAX, NAME_MAX, kind};
use atoll_abi::{Errno, Result};
use atoll_mem::user;
use atoll_task::Activity;

use crate::process::{Process, Task};
use crate::shrinkers;
use crate::syscalls::{Call, Handler, memory};

/// For each activity that is a unit and was not ended: its serial number, in the upper half, and its process. That process
/// holds it. 0: none.
static OPEN: [AtomicU64; ACTIVITIES_MAX] = [const { AtomicU64::new(0) }; ACTIVITIES_MAX];
/// Serial numbers are below 2^31, so that a handle is above 0 as a signed number, too.
static SERIAL: AtomicU32 = AtomicU32::new(1);
const SERIAL_MAX: u32 = i32::MAX as u32;
/// Bits of a handle that are the activity's number.
const NUMBER_BITS: u32 = ACTIVITIES_MAX.ilog2();

/// The units that a task is in. Only the task itself touches it, or who makes it.
#[derive(Default)]
pub struct Entered {
    depth: AtomicU32,
    levels: [Level; DEPTH_MAX],
}

#[derive(Default)]
struct Level {
    handle: AtomicU64,
    /// What the thread worked for before, held.
    before: AtomicU32,
}

/// What serves one of our own calls.
pub fn handler(number: u64) -> Option<Handler> {
    Some(match number {
        HELLO => |_| Ok(VERSION),
        CREATE => create,
        ENTER => |c| enter(c.task, c.arg(0)),
        LEAVE => |c| leave(c.task, c.arg(0)),
        END => |c| end(c.task, c.arg(0)),
        CURRENT => |c| Ok(c.task.entered.innermost()),
        SHRINK => |c| shrinkers::wait_to_be_asked(c.task),
        PAGES_WRITTEN => memory::pages_written,
        PAGES_ACCESSED => memory::pages_accessed,
        PAGES_CHANGE => memory::pages_change,
        PAGES_FORGET => memory::pages_forget,
        PAGES_COLOUR => memory::pages_colour,
        PAGES_FRAMES => memory::pages_frames,
        _ => return None,
    })
}

fn split(handle: u64) -> (usize, u64) {
    ((handle % ACTIVITIES_MAX as u64) as usize, handle >> NUMBER_BITS)
}

/// What [`OPEN`] says of a unit of this process's.
fn opened(serial: u64, pid: u32) -> u64 {
    serial << 32 | u64::from(pid)
}

fn create(c: &mut Call) -> Result<u64> {
    let len = c.arg(1) as usize;
    if len == 0 || len > NAME_MAX {
        return Err(Errno::EINVAL);
    }
    let mut name = [0; NAME_MAX];
    user::read(c.arg(0), &mut name[..len])?;
    let process = &c.task.process;
    let unit =
        Activity::new(kind::UNIT, &process.activity, process.pid, &name[..len]).ok_or(Errno::ENOSPC)?;
    let number = unit.into_raw();
    let serial = u64::from(SERIAL.fetch_add(1, Ordering::Relaxed) % SERIAL_MAX + 1);
    // Release: who finds the unit here finds it held.
    OPEN[number as usize].store(opened(serial, process.pid), Ordering::Release);
    Ok(serial << NUMBER_BITS | u64::from(number))
}

/// The unit that a handle of this process's means, held.
fn find(handle: u64, pid: u32) -> Option<Activity> {
    let (number, serial) = split(handle);
    let is_open = || OPEN[number].load(Ordering::Acquire) == opened(serial, pid);
    if !is_open() {
        return None;
    }
    let unit = Activity::try_hold(number as u32)?;
    // It may have ended in between, and the number may be another's.
    is_open().then_some(unit)
}

fn enter(task: &Task, handle: u64) -> Result<u64> {
    let depth = task.entered.depth.load(Ordering::Relaxed);
    let Some(level) = task.entered.levels.get(depth as usize) else { return Err(Errno::ENOSPC) };
    let unit = find(handle, task.process.pid).ok_or(Errno::EINVAL)?;
    level.handle.store(handle, Ordering::Relaxed);
    level.before.store(atoll_task::work_for(unit).into_raw(), Ordering::Relaxed);
    task.entered.depth.store(depth + 1, Ordering::Relaxed);
    Ok(0)
}

fn leave(task: &Task, handle: u64) -> Result<u64> {
    if handle == 0 || task.entered.innermost() != handle {
        return Err(Errno::EINVAL);
    }
    leave_innermost(task);
    Ok(0)
}

fn leave_innermost(task: &Task) {
    let depth = task.entered.depth.load(Ordering::Relaxed) - 1;
    let before = Activity::from_raw(task.entered.levels[depth as usize].before.load(Ordering::Relaxed));
    task.entered.depth.store(depth, Ordering::Relaxed);
    drop(atoll_task::work_for(before));
}

fn end(task: &Task, handle: u64) -> Result<u64> {
    let (number, serial) = split(handle);
    let open = opened(serial, task.process.pid);
    OPEN[number].compare_exchange(open, 0, Ordering::AcqRel, Ordering::Relaxed).map_err(|_| Errno::EINVAL)?;
    drop(Activity::from_raw(number as u32));
    Ok(0)
}

impl Entered {
    /// Handle of the unit that the task works for; 0: none.
    fn innermost(&self) -> u64 {
        let depth = self.depth.load(Ordering::Relaxed) as usize;
        self.levels[..depth].last().map_or(0, |level| level.handle.load(Ordering::Relaxed))
    }

    /// A new task of the same process begins in the unit that its maker is in, as if it had entered it. Value: what it
    /// works for, if that isn't `own`, what it works for outside of units.
    pub fn inherit(&self, maker: &Task, own: &Activity) -> Option<Activity> {
        let handle = maker.entered.innermost();
        if handle == 0 {
            return None;
        }
        self.levels[0].handle.store(handle, Ordering::Relaxed);
        self.levels[0].before.store(own.clone().into_raw(), Ordering::Relaxed);
        self.depth.store(1, Ordering::Relaxed);
        // Its maker holds it.
        Activity::try_hold(split(handle).0 as u32)
    }
}

/// The current task leaves all units that it is in.
pub fn leave_all(task: &Task) {
    while task.entered.innermost() != 0 {
        leave_innermost(task);
    }
}

/// Ends all units of a process that has ended, or runs another program.
pub fn end_all(process: &Process) {
    let open: Vec<usize> =
        (0..ACTIVITIES_MAX).filter(|n| OPEN[*n].load(Ordering::Acquire) as u32 == process.pid).collect();
    for number in open {
        // Its process alone closes it, and has no other thread any more.
        OPEN[number].store(0, Ordering::Release);
        drop(Activity::from_raw(number as u32));
    }
}
