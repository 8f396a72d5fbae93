//! Scheduling calls.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use atoll_abi::layout::PAGE;
use atoll_abi::{Errno, Result};
use atoll_mem::user;
use atoll_task::{CORE_WORDS, CoreSet};
use linux_raw_sys::general as linux;
use zerocopy::IntoBytes;

use super::process::both_ids;
use super::{Call, unsupported};
use crate::process::{Task, all_processes, find_task};
use crate::types::{SchedAttr, Timespec, get, get_beginning, put};

fn task_of(c: &Call, tid: u32) -> Result<Arc<Task>> {
    find_task(if tid == 0 { c.task.tid() } else { tid }).ok_or(Errno::ESRCH)
}

/// EPERM: it is another user's, whose this one may not change.
fn may_change(c: &Call, t: &Task) -> Result<()> {
    let same = |p: &crate::process::Process| {
        let (me, you) = both_ids(c.task, p);
        me.euid == you.ruid || me.euid == you.euid
    };
    let may = t.process.pid == c.task.process.pid || c.task.may(linux::CAP_SYS_NICE) || same(&t.process);
    if may { Ok(()) } else { Err(Errno::EPERM) }
}

/// `sched_yield(2)`.
pub fn sched_yield(_c: &mut Call) -> Result<u64> {
    atoll_task::yield_now();
    Ok(0)
}

/// What two sets both have.
fn both(a: CoreSet, b: CoreSet) -> CoreSet {
    core::array::from_fn(|n| a[n] & b[n])
}

/// The cores that a thread may use: its class's, as a cpuset's on Linux, which are online.
fn allowed(t: &Task) -> CoreSet {
    both(atoll_task::online(), t.thread().cores_of_class())
}

/// The cores that a thread runs on: those of its class's that it has chosen.
pub(crate) fn affinity(t: &Task) -> CoreSet {
    let chosen = both(allowed(t), t.thread().affinity());
    // What it once chose may not be its class's any more.
    if chosen == [0; CORE_WORDS] { allowed(t) } else { chosen }
}

/// `sched_getaffinity(2)`.
pub fn sched_getaffinity(c: &mut Call) -> Result<u64> {
    let t = task_of(c, c.uint(0))?;
    let size = c.arg(1) as usize;
    let need = atoll_task::cores().div_ceil(64) * 8;
    if !size.is_multiple_of(8) || size < need {
        return Err(Errno::EINVAL);
    }
    let mask = affinity(&t);
    let n = size.min(size_of_val(&mask));
    user::write(c.arg(2), &mask.as_bytes()[..n.min(need.max(8))])?;
    Ok(need.max(8) as u64)
}

/// `sched_setaffinity(2)`.
pub fn sched_setaffinity(c: &mut Call) -> Result<u64> {
    let mut mask = [0; CORE_WORDS];
    let n = (c.arg(1) as usize).min(size_of_val(&mask));
    user::read(c.arg(2), &mut mask.as_mut_bytes()[..n])?;
    let t = task_of(c, c.uint(0))?;
    may_change(c, &t)?;
    if both(mask, allowed(&t)) == [0; CORE_WORDS] {
        return Err(Errno::EINVAL);
    }
    // One that is offline now counts when it is back.
    t.thread().set_affinity(mask);
    if t.tid() == c.task.tid() {
        atoll_task::move_if_need_be();
    } else {
        atoll_task::visit(t.thread());
    }
    Ok(0)
}

fn policy_range(policy: u32) -> Result<(u64, u64)> {
    match policy {
        linux::SCHED_FIFO | linux::SCHED_RR => Ok((1, 99)),
        linux::SCHED_NORMAL | linux::SCHED_BATCH | linux::SCHED_IDLE | linux::SCHED_DEADLINE => Ok((0, 0)),
        _ => Err(Errno::EINVAL),
    }
}

/// `sched_get_priority_max(2)`.
pub fn sched_get_priority_max(c: &mut Call) -> Result<u64> {
    policy_range(c.uint(0)).map(|(_, max)| max)
}

/// `sched_get_priority_min(2)`.
pub fn sched_get_priority_min(c: &mut Call) -> Result<u64> {
    policy_range(c.uint(0)).map(|(min, _)| min)
}

/// Does the limit let it have this nice value?
fn may_be_nice(t: &Task, nice: i32) -> bool {
    (20 - nice) as u64 <= t.process.limit(linux::RLIMIT_NICE).cur
}

/// Does it take a right to set this of a task (`user_check_sched_setscheduler` of Linux)?
fn takes_right(t: &Task, policy: u32, priority: u32, nice: i32, resets: bool) -> bool {
    let (before, nice_before) = (t.policy.load(Ordering::Relaxed), t.nice.load(Ordering::Relaxed));
    let (policy_before, priority_before) = (before >> 16, before & 0xffff);
    let most = t.process.limit(linux::RLIMIT_RTPRIO).cur;
    match policy {
        linux::SCHED_NORMAL | linux::SCHED_BATCH if nice < nice_before && !may_be_nice(t, nice) => true,
        linux::SCHED_FIFO | linux::SCHED_RR
            if policy != policy_before && most == 0
                || priority > priority_before && u64::from(priority) > most =>
        {
            true
        }
        // That is as much as a nice value of 20.
        _ if policy_before == linux::SCHED_IDLE
            && policy != linux::SCHED_IDLE
            && !may_be_nice(t, nice_before) =>
        {
            true
        }
        _ => t.resets_on_fork.load(Ordering::Relaxed) && !resets,
    }
}

fn set_policy(c: &Call, t: &Task, policy: u32, priority: u32, nice: Option<i32>) -> Result<u64> {
    let resets = policy & linux::SCHED_RESET_ON_FORK != 0;
    let policy = policy & !linux::SCHED_RESET_ON_FORK;
    let (min, most) = policy_range(policy)?;
    if policy == linux::SCHED_DEADLINE {
        return Err(unsupported(c.task, "SCHED_DEADLINE", Errno::EINVAL));
    }
    if !(min..=most).contains(&u64::from(priority)) {
        return Err(Errno::EINVAL);
    }
    let wanted = nice.unwrap_or_else(|| t.nice.load(Ordering::Relaxed));
    if takes_right(t, policy, priority, wanted, resets) && !c.task.may(linux::CAP_SYS_NICE) {
        return Err(Errno::EPERM);
    }
    may_change(c, t)?;
    if let Some(nice) = nice {
        t.nice.store(nice, Ordering::Relaxed);
    }
    t.resets_on_fork.store(resets, Ordering::Relaxed);
    t.policy.store(policy << 16 | priority, Ordering::Relaxed);
    t.tell_scheduler();
    crate::pi::priority_changed(t);
    Ok(0)
}

/// EINVAL: no address of parameters, or a process that can't be.
fn check_parameters(c: &Call, addr: u64) -> Result<()> {
    if addr == 0 || c.int(0) < 0 { Err(Errno::EINVAL) } else { Ok(()) }
}

/// `sched_setscheduler(2)`.
pub fn sched_setscheduler(c: &mut Call) -> Result<u64> {
    check_parameters(c, c.arg(2))?;
    let t = task_of(c, c.uint(0))?;
    let priority: u32 = get(c.arg(2))?;
    set_policy(c, &t, c.uint(1), priority, None)
}

/// `sched_getscheduler(2)`.
pub fn sched_getscheduler(c: &mut Call) -> Result<u64> {
    if c.int(0) < 0 {
        return Err(Errno::EINVAL);
    }
    let t = task_of(c, c.uint(0))?;
    Ok(u64::from(t.policy.load(Ordering::Relaxed) >> 16 | resets(&t)))
}

/// The flag that it is not as its maker, if it is set.
fn resets(t: &Task) -> u32 {
    if t.resets_on_fork.load(Ordering::Relaxed) { linux::SCHED_RESET_ON_FORK } else { 0 }
}

/// `sched_setparam(2)`.
pub fn sched_setparam(c: &mut Call) -> Result<u64> {
    check_parameters(c, c.arg(1))?;
    let t = task_of(c, c.uint(0))?;
    let priority: u32 = get(c.arg(1))?;
    let policy = t.policy.load(Ordering::Relaxed) >> 16;
    set_policy(c, &t, policy | resets(&t), priority, None)
}

/// `sched_getparam(2)`.
pub fn sched_getparam(c: &mut Call) -> Result<u64> {
    check_parameters(c, c.arg(1))?;
    let t = task_of(c, c.uint(0))?;
    put(c.arg(1), &(t.policy.load(Ordering::Relaxed) & 0xffff)).map(|()| 0)
}

/// `sched_attr.flags`: not as its maker; policy, or parameters, as they are. Two that Linux knows are for deadlines, and two for frequencies,
/// which can't be asked for here.
const RESET_ON_FORK: u64 = 1;
const KEEP_POLICY: u64 = 8;
const KEEP_PARAMS: u64 = 16;
const FREQUENCIES: u64 = 0x60;
const FLAGS: u64 = 0x7f;
/// Bytes of the first form of `sched_attr`, which has no frequencies.
const FIRST_ATTR: u32 = 48;

/// `sched_setattr(2)`.
pub fn sched_setattr(c: &mut Call) -> Result<u64> {
    if c.uint(2) != 0 {
        return Err(Errno::EINVAL);
    }
    check_parameters(c, c.arg(1))?;
    let (addr, whole) = (c.arg(1), size_of::<SchedAttr>() as u32);
    let len = match get::<u32>(addr)? {
        0 => FIRST_ATTR,
        len => len,
    };
    let read = if len < FIRST_ATTR { Err(Errno::E2BIG) } else { get_beginning(addr, len.into()) };
    let mut a: SchedAttr = read.inspect_err(|e| {
        if *e == Errno::E2BIG {
            let _ = put(addr, &whole);
        }
    })?;
    if a.flags & FREQUENCIES != 0 && len < whole || (a.policy as i32) < 0 {
        return Err(Errno::EINVAL);
    }
    let t = task_of(c, c.uint(0))?;
    let resets = match a.flags {
        f if f & KEEP_POLICY != 0 => resets(&t),
        f if f & RESET_ON_FORK != 0 => linux::SCHED_RESET_ON_FORK,
        _ => 0,
    };
    if a.flags & !FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    if a.flags & FREQUENCIES != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let now = t.policy.load(Ordering::Relaxed);
    if a.flags & KEEP_POLICY != 0 {
        a.policy = now >> 16;
    }
    if a.flags & KEEP_PARAMS != 0 {
        (a.priority, a.nice) = (now & 0xffff, t.nice.load(Ordering::Relaxed));
    }
    let nices = a.policy == linux::SCHED_NORMAL || a.policy == linux::SCHED_BATCH;
    set_policy(c, &t, a.policy | resets, a.priority, nices.then(|| a.nice.clamp(-20, 19)))
}

/// `sched_getattr(2)`.
pub fn sched_getattr(c: &mut Call) -> Result<u64> {
    check_parameters(c, c.arg(1))?;
    let (addr, room) = (c.arg(1), c.uint(2));
    if !(FIRST_ATTR..=PAGE as u32).contains(&room) || c.uint(3) != 0 {
        return Err(Errno::EINVAL);
    }
    let t = task_of(c, c.uint(0))?;
    let p = t.policy.load(Ordering::Relaxed);
    let policy = p >> 16;
    let is_fair = matches!(policy, linux::SCHED_NORMAL | linux::SCHED_BATCH | linux::SCHED_IDLE);
    let size = room.min(size_of::<SchedAttr>() as u32);
    let a = SchedAttr {
        size,
        policy,
        runtime: if is_fair { atoll_task::SLICE } else { 0 },
        flags: if resets(&t) != 0 { RESET_ON_FORK } else { 0 },
        nice: if is_fair { t.nice.load(Ordering::Relaxed) } else { 0 },
        priority: p & 0xffff,
        ..SchedAttr::default()
    };
    // What the program knows more of is none of ours.
    user::zero(addr.wrapping_add(size.into()), (room - size) as usize)?;
    user::write(addr, &a.as_bytes()[..size as usize]).map(|()| 0)
}

/// `sched_rr_get_interval(2)`.
pub fn sched_rr_get_interval(c: &mut Call) -> Result<u64> {
    let t = if c.int(0) < 0 { Err(Errno::EINVAL) } else { task_of(c, c.uint(0)) }?;
    let turn = match t.policy.load(Ordering::Relaxed) >> 16 {
        linux::SCHED_RR => atoll_task::ROUND,
        linux::SCHED_FIFO => 0,
        _ => atoll_task::SLICE,
    };
    put(c.arg(1), &Timespec::from_ns(turn)).map(|()| 0)
}

const PRIO_PROCESS: u32 = 0;
const PRIO_PGRP: u32 = 1;
const PRIO_USER: u32 = 2;

/// All threads that are meant.
fn priority_targets(c: &Call) -> Result<alloc::vec::Vec<Arc<Task>>> {
    let who = c.uint(1);
    let list: alloc::vec::Vec<Arc<Task>> = match c.uint(0) {
        PRIO_PROCESS => task_of(c, who).into_iter().collect(),
        PRIO_PGRP => {
            let g = if who == 0 { c.task.process.pgid.load(Ordering::Relaxed) } else { who };
            all_processes()
                .iter()
                .filter(|p| p.pgid.load(Ordering::Relaxed) == g)
                .flat_map(|p| p.tasks.lock().clone())
                .collect()
        }
        PRIO_USER => {
            let uid = if who == 0 { c.task.ids().ruid } else { who };
            all_processes()
                .iter()
                .filter(|p| p.ids().ruid == uid)
                .flat_map(|p| p.tasks.lock().clone())
                .collect()
        }
        _ => return Err(Errno::EINVAL),
    };
    if list.is_empty() { Err(Errno::ESRCH) } else { Ok(list) }
}

/// `getpriority(2)`, the call: 20 minus the nice value.
pub fn getpriority(c: &mut Call) -> Result<u64> {
    let best = priority_targets(c)?.iter().map(|t| t.nice.load(Ordering::Relaxed)).min().unwrap_or(0);
    Ok((20 - best) as u64)
}

/// `setpriority(2)`: of all whom the caller may change. An error of another is told in the end.
pub fn setpriority(c: &mut Call) -> Result<u64> {
    let nice = c.int(2).clamp(-20, 19);
    let mut outcome = Ok(0);
    for t in priority_targets(c)? {
        if let Err(e) = may_change(c, &t) {
            outcome = Err(e);
            continue;
        }
        let better = nice < t.nice.load(Ordering::Relaxed);
        if better && !may_be_nice(&t, nice) && !c.task.may(linux::CAP_SYS_NICE) {
            outcome = Err(Errno::EACCES);
            continue;
        }
        t.nice.store(nice, Ordering::Relaxed);
        t.tell_scheduler();
    }
    outcome
}

const IOPRIO_WHO_PROCESS: u32 = 1;
const IOPRIO_WHO_USER: u32 = 3;

fn io_process(c: &Call) -> Result<Arc<crate::process::Process>> {
    match c.uint(0) {
        IOPRIO_WHO_PROCESS => task_of(c, c.uint(1)).map(|t| t.process.clone()),
        2..=IOPRIO_WHO_USER => Ok(c.task.process.clone()),
        _ => Err(Errno::EINVAL),
    }
}

/// `ioprio_get(2)`.
pub fn ioprio_get(c: &mut Call) -> Result<u64> {
    Ok(io_process(c)?.io_priority.load(Ordering::Relaxed).into())
}

/// `ioprio_set(2)`: a hint to disks, which are the host's; remembered.
pub fn ioprio_set(c: &mut Call) -> Result<u64> {
    let (class, level) = (c.uint(2) >> 13, c.uint(2) & 7);
    if class > 3 || class == 0 && level != 0 {
        return Err(Errno::EINVAL);
    }
    let p = io_process(c)?;
    let (me, you) = both_ids(c.task, &p);
    if me.ruid != you.ruid && me.euid != you.ruid && !c.task.may(linux::CAP_SYS_NICE) {
        return Err(Errno::EPERM);
    }
    p.io_priority.store(c.uint(2), Ordering::Relaxed);
    Ok(0)
}

/// `getcpu(2)`.
pub fn getcpu(c: &mut Call) -> Result<u64> {
    let cpu = atoll_abi::core_local::core_local().id() as u32;
    if c.arg(0) != 0 {
        put(c.arg(0), &cpu)?;
    }
    if c.arg(1) != 0 {
        put(c.arg(1), &0u32)?;
    }
    Ok(0)
}
