//! `kcmp(2)`: do two tasks have the same thing?

use alloc::sync::Arc;
use core::cmp::Ordering;

use atoll_abi::{Errno, Result};

use super::Call;
use super::process_vm::may_look_at;
use crate::epoll::Epoll;
use crate::process::{Task, find_task};
use crate::types::get;

/// What is compared (linux/kcmp.h).
mod kind {
    pub const FILE: u32 = 0;
    pub const VM: u32 = 1;
    pub const FILES: u32 = 2;
    pub const FS: u32 = 3;
    pub const SIGHAND: u32 = 4;
    pub const IO: u32 = 5;
    pub const SYSVSEM: u32 = 6;
    pub const EPOLL_TFD: u32 = 7;
}

/// How two things lie to each other, in an order that says nothing of where they are.
fn order(a: usize, b: usize) -> u64 {
    let hidden = |address: usize| (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    match hidden(a).cmp(&hidden(b)) {
        Ordering::Equal => 0,
        Ordering::Less => 1,
        Ordering::Greater => 2,
    }
}

fn address<T>(of: &Arc<T>) -> usize {
    Arc::as_ptr(of).addr()
}

/// An open file of a task's, by its descriptor.
fn opening(task: &Task, fd: u64) -> Result<usize> {
    Ok(task.files.share().get(u32::try_from(fd).map_err(|_| Errno::EBADF)?)?.addr())
}

/// What a task undoes when it ends (SEM_UNDO): its process's; 0 if there is nothing.
fn undoes(task: &Task) -> usize {
    let some = task.process.undoes.load(core::sync::atomic::Ordering::Relaxed);
    if some { address(&task.process) } else { 0 }
}

/// `kcmp(2)`. Nobody has an I/O context of its own.
pub fn kcmp(c: &mut Call) -> Result<u64> {
    let task = |n: usize| find_task(c.uint(n)).ok_or(Errno::ESRCH);
    let (a, b) = (task(0)?, task(1)?);
    if !may_look_at(c.task, &a.process) || !may_look_at(c.task, &b.process) {
        return Err(Errno::EPERM);
    }
    let (first, second) = (c.arg(3), c.arg(4));
    Ok(match c.uint(2) {
        kind::FILE => order(opening(&a, first)?, opening(&b, second)?),
        kind::VM => order(address(&a.space.share()), address(&b.space.share())),
        kind::FILES => order(address(&a.files.share()), address(&b.files.share())),
        kind::FS => order(address(&a.fs.share()), address(&b.fs.share())),
        kind::SIGHAND => order(address(&a.process.actions.share()), address(&b.process.actions.share())),
        kind::IO => 0,
        kind::SYSVSEM => order(undoes(&a), undoes(&b)),
        kind::EPOLL_TFD => {
            let [instance, fd, which]: [u32; 3] = get(second)?;
            let file = opening(&a, first)?;
            let instance = b.files.share().get(instance)?;
            let instance = instance.as_type::<Epoll>().ok_or(Errno::EINVAL)?;
            order(file, instance.opening_of(fd, which as usize).ok_or(Errno::ENOENT)?)
        }
        _ => return Err(Errno::EINVAL),
    })
}
