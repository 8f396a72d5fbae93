//! Signal calls.

use atoll_abi::{Errno, Result, platform};
use atoll_mem::user;
use atoll_task::{Limit, wait};
use linux_raw_sys::general as linux;

use super::Call;
use crate::signal::{self, MAX, bit};
use crate::types::{SigactionC, StackT, Timespec, get, put};

fn check_size(n: u64) -> Result<()> {
    if n == 8 { Ok(()) } else { Err(Errno::EINVAL) }
}

/// `rt_sigaction(2)`.
pub fn rt_sigaction(c: &mut Call) -> Result<u64> {
    check_size(c.arg(3))?;
    let signal = c.uint(0);
    let new = if c.arg(1) != 0 { Some(get::<SigactionC>(c.arg(1))?) } else { None };
    if !(1..=MAX).contains(&signal) {
        return Err(Errno::EINVAL);
    }
    let actions = &c.task.process.actions;
    let old = actions.get(signal);
    if let Some(mut new) = new {
        if signal == linux::SIGKILL || signal == linux::SIGSTOP {
            return Err(Errno::EINVAL);
        }
        new.mask &= !(bit(linux::SIGKILL) | bit(linux::SIGSTOP));
        actions.set(signal, new);
        if actions.is_ignored(signal) {
            signal::discard(&c.task.process, signal);
        }
    }
    if c.arg(2) != 0 {
        put(c.arg(2), &old)?;
    }
    Ok(0)
}

/// `rt_sigprocmask(2)`.
pub fn rt_sigprocmask(c: &mut Call) -> Result<u64> {
    check_size(c.arg(3))?;
    let old = c.task.signals.lock().blocked;
    if c.arg(1) != 0 {
        let set: u64 = get(c.arg(1))?;
        let new = match c.uint(0) {
            linux::SIG_BLOCK => old | set,
            linux::SIG_UNBLOCK => old & !set,
            linux::SIG_SETMASK => set,
            _ => return Err(Errno::EINVAL),
        };
        signal::set_mask(c.task, new);
    }
    if c.arg(2) != 0 {
        put(c.arg(2), &old)?;
    }
    Ok(0)
}

/// `rt_sigreturn(2)`.
pub fn rt_sigreturn(c: &mut Call) -> Result<u64> {
    match signal::sigreturn(c.task, c.frame) {
        Ok(rax) => Ok(rax),
        Err(_) => {
            // A frame that can't be read: as Linux does.
            signal::force(c.task, crate::types::Siginfo::from_kernel(linux::SIGSEGV, 0x80));
            Ok(0)
        }
    }
}

/// `rt_sigpending(2)`.
pub fn rt_sigpending(c: &mut Call) -> Result<u64> {
    if c.arg(1) > 8 {
        return Err(Errno::EINVAL);
    }
    let s = c.task.signals.lock();
    let set = (s.pending.set() | c.task.process.pending.lock().set()) & s.blocked;
    drop(s);
    user::write(c.arg(0), &set.to_ne_bytes()[..c.arg(1) as usize]).map(|()| 0)
}

/// `rt_sigsuspend(2)`.
pub fn rt_sigsuspend(c: &mut Call) -> Result<u64> {
    check_size(c.arg(1))?;
    let mask: u64 = get(c.arg(0))?;
    signal::temporary_mask(c.task, mask);
    pause(c)
}

/// `pause(2)`.
pub fn pause(c: &mut Call) -> Result<u64> {
    let task = c.task;
    loop {
        // Nothing wakes this queue for us; the interruption does.
        let r = wait(&task.process.life_queue, 0, Limit::Forever, || None::<()>);
        if r.is_err() && !signal::was_for_nothing(task) {
            return Err(Errno::RESTART_NOHAND);
        }
    }
}

/// `rt_sigtimedwait(2)`.
pub fn rt_sigtimedwait(c: &mut Call) -> Result<u64> {
    check_size(c.arg(3))?;
    let set: u64 = get(c.arg(0))?;
    let limit = if c.arg(2) == 0 {
        Limit::Forever
    } else {
        let ns = get::<Timespec>(c.arg(2))?.to_ns()?;
        Limit::Until(platform().now().saturating_add(ns))
    };
    let info = signal::wait_for(c.task, set, limit).map_err(|e| match e {
        Errno::ETIMEDOUT => Errno::EAGAIN,
        Errno::RESTART => Errno::EINTR,
        e => e,
    })?;
    if c.arg(1) != 0 {
        put(c.arg(1), &info)?;
    }
    Ok(info.signo as u64)
}

/// `sigaltstack(2)`.
pub fn sigaltstack(c: &mut Call) -> Result<u64> {
    let sp = c.frame.rsp;
    let mut s = c.task.signals.lock();
    let old = s.altstack;
    let on = old.flags & linux::SS_DISABLE as i32 == 0 && sp > old.sp && sp - old.sp <= old.size;
    let mut told = old;
    if on {
        told.flags |= linux::SS_ONSTACK as i32;
    }
    if c.arg(0) != 0 {
        drop(s);
        let new: StackT = get(c.arg(0))?;
        s = c.task.signals.lock();
        if on && old.flags & linux::SS_AUTODISARM as i32 == 0 {
            return Err(Errno::EPERM);
        }
        let mode = new.flags & !(linux::SS_AUTODISARM as i32);
        if mode != 0 && mode != linux::SS_DISABLE as i32 && mode != linux::SS_ONSTACK as i32 {
            return Err(Errno::EINVAL);
        }
        s.altstack = if mode == linux::SS_DISABLE as i32 {
            signal::no_altstack()
        } else {
            if new.size < u64::from(linux::MINSIGSTKSZ) {
                return Err(Errno::ENOMEM);
            }
            StackT { flags: new.flags & linux::SS_AUTODISARM as i32, ..new }
        };
    }
    drop(s);
    if c.arg(1) != 0 {
        put(c.arg(1), &told)?;
    }
    Ok(0)
}
