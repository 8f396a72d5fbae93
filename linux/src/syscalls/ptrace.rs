//! `ptrace(2)`: what a tracer asks for. What the traced task does is in [`crate::ptrace`].

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem::offset_of;
use core::sync::atomic::Ordering;

use atoll_abi::frame::{UserFrame, XSAVE_MAX};
use atoll_abi::layout::is_user_range;
use atoll_abi::{Errno, Result, platform};
use atoll_mem::user;
use linux_raw_sys::general as linux;
use linux_raw_sys::ptrace as p;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::process_vm::{may_look_at, read_memory, write_memory};
use super::{Call, unsupported};
use crate::process::{Life, Task, find_task, work};
use crate::ptrace::{Go, Place, State, Trace, attach, release};
use crate::signal::{self, MAX, RFLAGS_USER};
use crate::types::{Iovec, Siginfo, get, put};

/// General registers.
pub const NT_PRSTATUS: u64 = 1;
/// What FXSAVE saves.
pub const NT_PRFPREG: u64 = 2;
/// All of the extended state.
pub const NT_X86_XSTATE: u64 = 0x202;
/// Bytes of `struct user_fpregs_struct`: what FXSAVE writes.
const LEGACY: usize = 512;
/// Where the components that there are stand in an image of the extended state for a tracer, bytes.
const COMPONENTS_AT: usize = 464;
/// `AUDIT_ARCH_X86_64`.
const ARCH: u32 = 0xc000_003e;
/// Errors are the highest numbers.
const ERRORS: u64 = -4095i64 as u64;

/// `struct user_regs_struct`.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Registers {
    r15: u64,
    r14: u64,
    r13: u64,
    r12: u64,
    rbp: u64,
    rbx: u64,
    r11: u64,
    r10: u64,
    r9: u64,
    r8: u64,
    rax: u64,
    rcx: u64,
    rdx: u64,
    rsi: u64,
    rdi: u64,
    orig_rax: u64,
    rip: u64,
    cs: u64,
    rflags: u64,
    rsp: u64,
    ss: u64,
    fs_base: u64,
    gs_base: u64,
    ds: u64,
    es: u64,
    fs: u64,
    gs: u64,
}

/// Length of `struct user` and where the debug registers stand in it.
const USER_LEN: u64 = 912;
const DEBUG_AT: u64 = 848;

macro_rules! same_registers {
    ($($name:ident)*) => {
        impl Registers {
            fn of(f: &UserFrame) -> Registers {
                // Segments as they are in 64-bit programs.
                Registers { $($name: f.$name,)* cs: 0x33, ss: 0x2b, ..Registers::default() }
            }

            /// Takes over what a program may have. EIO: the thread pointer is no address.
            fn give(&self, f: &mut UserFrame) -> Result<()> {
                if !is_user_range(self.fs_base, 0) {
                    return Err(Errno::EIO);
                }
                let flags = self.rflags & RFLAGS_USER | 0x202;
                $(f.$name = self.$name;)*
                f.rflags = flags;
                Ok(())
            }
        }
    };
}
same_registers! { r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip rflags rsp fs_base }

/// Bytes of a set of registers, for a tracer.
pub fn register_set(kind: u64, f: &UserFrame) -> Result<Vec<u8>> {
    match kind {
        NT_PRSTATUS => Ok(Registers::of(f).as_bytes().to_vec()),
        NT_PRFPREG => {
            let mut bytes = f.xsave.as_bytes()[..LEGACY].to_vec();
            bytes[COMPONENTS_AT..].fill(0);
            Ok(bytes)
        }
        NT_X86_XSTATE => {
            let (size, components) = signal::xstate();
            let mut bytes = f.xsave.as_bytes()[..size].to_vec();
            bytes[COMPONENTS_AT..LEGACY].fill(0);
            bytes[COMPONENTS_AT..COMPONENTS_AT + 8].copy_from_slice(&components.to_ne_bytes());
            Ok(bytes)
        }
        _ => Err(Errno::EINVAL),
    }
}

/// The same from a tracer, as far as it goes. EINVAL: there is no such set, or nothing that a program may have.
fn set_register_set(kind: u64, f: &mut UserFrame, bytes: &[u8]) -> Result<()> {
    match kind {
        NT_PRSTATUS => {
            let mut all = Registers::of(f);
            let n = bytes.len().min(size_of::<Registers>()) & !7;
            all.as_mut_bytes()[..n].copy_from_slice(&bytes[..n]);
            all.give(f)
        }
        NT_PRFPREG | NT_X86_XSTATE => {
            let (size, components) = signal::xstate();
            let limit = if kind == NT_PRFPREG { LEGACY } else { size };
            if bytes.len() < LEGACY {
                return Err(Errno::EINVAL);
            }
            let n = bytes.len().min(limit);
            // What was there stays where the new is said to be initial only in the first two components.
            let had = f.xsave[64];
            f.xsave.as_mut_bytes()[..n].copy_from_slice(&bytes[..n]);
            f.xsave[64] = if n > LEGACY { f.xsave[64] & components } else { had | 3 };
            // Nothing that XRSTOR would refuse.
            f.xsave[65..72].fill(0);
            f.xsave[3] = f.xsave[3] & 0xffff | 0xffff << 32;
            Ok(())
        }
        _ => Err(Errno::EINVAL),
    }
}

/// A signal that a task is to go on with.
fn signal_of(data: u64) -> Result<u32> {
    if data <= u64::from(MAX) { Ok(data as u32) } else { Err(Errno::EIO) }
}

fn check_options(options: u64) -> Result<u32> {
    // There are no filters of system calls that could be suspended.
    let known = p::PTRACE_O_MASK & !p::PTRACE_O_SUSPEND_SECCOMP;
    if options & !u64::from(known) == 0 { Ok(options as u32) } else { Err(Errno::EINVAL) }
}

/// Begins to trace a task.
fn begin(c: &Call, tid: u32, seizes: bool) -> Result<u64> {
    let options = if seizes {
        if c.arg(2) != 0 {
            return Err(Errno::EIO);
        }
        check_options(c.arg(3)).map_err(|_| Errno::EIO)?
    } else {
        0
    };
    let task = find_task(tid).ok_or(Errno::ESRCH)?;
    let me = &c.task.process;
    if Arc::ptr_eq(&task.process, me) {
        return Err(Errno::EPERM);
    }
    attach(&task, me, c.task.tid(), seizes, options, || may_look_at(c.task, &task.process))?;
    if !seizes {
        signal::send_task(&task, Siginfo::from_kernel(linux::SIGSTOP, 0));
    }
    if matches!(*task.process.life.lock(), Life::Stopped(_)) {
        // It was stopped for its parent, and is for its tracer by the time this returns.
        task.process.life_queue.wake_all(1);
        task.poke(work::STOP);
        task.tracing.wait_for_stop(&task);
    }
    Ok(0)
}

/// Calls `f` with the trace of a task that the caller traces, and that is stopped. ESRCH: there is none such.
fn stopped<R>(c: &Call, task: &Task, f: impl FnOnce(&mut Trace) -> Result<R>) -> Result<R> {
    mine(c, task, |t| if t.state == State::Stopped { f(t) } else { Err(Errno::ESRCH) })
}

/// The same, whatever it is doing.
fn mine<R>(c: &Call, task: &Task, f: impl FnOnce(&mut Trace) -> Result<R>) -> Result<R> {
    let tracer =
        task.tracing.with(|t| t.tracer().is_some_and(|tracer| Arc::ptr_eq(&tracer, &c.task.process)));
    if tracer != Some(true) {
        return Err(Errno::ESRCH);
    }
    let own = |t: &mut Trace| {
        if t.thread == 0 {
            t.thread = c.task.tid();
        }
        if t.thread == c.task.tid() { f(t) } else { Err(Errno::ESRCH) }
    };
    task.tracing.with(own).unwrap_or(Err(Errno::ESRCH))
}

/// A word of `struct user`.
fn user_word(f: &UserFrame, at: u64) -> Result<u64> {
    if !at.is_multiple_of(8) || at >= USER_LEN {
        return Err(Errno::EIO);
    }
    let registers = Registers::of(f);
    let words = registers.as_bytes();
    // Of all else no word is kept, and no debug register is set.
    let word = words.get(at as usize..at as usize + 8).and_then(|b| b.try_into().ok());
    Ok(word.map_or(0, u64::from_ne_bytes))
}

fn set_user_word(f: &mut UserFrame, at: u64, value: u64) -> Result<()> {
    if !at.is_multiple_of(8) || at >= USER_LEN {
        return Err(Errno::EIO);
    }
    let mut all = Registers::of(f);
    match all.as_mut_bytes().get_mut(at as usize..at as usize + 8) {
        Some(word) => {
            word.copy_from_slice(&value.to_ne_bytes());
            all.give(f)
        }
        // As on a processor whose debug registers others use.
        None if at >= DEBUG_AT && value != 0 => Err(Errno::ENOSPC),
        None => Ok(()),
    }
}

/// `struct ptrace_syscall_info`, for a tracer that has room for so much of it.
fn call_info(t: &Trace) -> Vec<u8> {
    let f = &t.frame;
    let (op, rest): (u32, Vec<u64>) = match t.place {
        Place::Elsewhere => (p::PTRACE_SYSCALL_INFO_NONE, Vec::new()),
        Place::Entry => {
            let list = [f.orig_rax, f.rdi, f.rsi, f.rdx, f.r10, f.r8, f.r9];
            (p::PTRACE_SYSCALL_INFO_ENTRY, list.to_vec())
        }
        Place::Exit => (p::PTRACE_SYSCALL_INFO_EXIT, alloc::vec![f.rax]),
    };
    let mut bytes = op.to_ne_bytes().to_vec();
    bytes.extend(ARCH.to_ne_bytes());
    bytes.extend(f.rip.to_ne_bytes());
    bytes.extend(f.rsp.to_ne_bytes());
    bytes.extend(rest.iter().flat_map(|word| word.to_ne_bytes()));
    if t.place == Place::Exit {
        bytes.push(u8::from(f.rax >= ERRORS));
    }
    bytes
}

/// `ptrace(2)`.
pub fn ptrace(c: &mut Call) -> Result<u64> {
    let [request, pid, addr, data, ..] = c.args();
    let (request, tid) = (request as u32, pid as u32);
    match request {
        p::PTRACE_TRACEME => {
            let me = find_task(c.task.tid()).ok_or(Errno::ESRCH)?;
            let process = &c.task.process;
            let thread = || process.parent_thread.load(Ordering::Relaxed);
            let of = process.with_parent(|parent, _| (parent.clone(), thread()));
            let (parent, thread) = of.ok_or(Errno::EPERM)?;
            // One that is just ending has told nobody yet who comes after it: whoever asks first.
            let is_there = parent.tasks.lock().iter().any(|t| t.tid() == thread);
            let thread = if is_there { thread } else { 0 };
            return attach(&me, &parent, thread, false, 0, || true).map(|()| 0);
        }
        p::PTRACE_ATTACH => return begin(c, tid, false),
        p::PTRACE_SEIZE => return begin(c, tid, true),
        _ => {}
    }
    let task = find_task(tid).ok_or(Errno::ESRCH)?;
    let go = |c: &Call, how: Go| {
        let signal = signal_of(data)?;
        if how == Go::Step && !platform().can_step() {
            return Err(unsupported(c.task, "PTRACE_SINGLESTEP on this platform", Errno::EIO));
        }
        stopped(c, &task, |t| {
            (t.state, t.go, t.signal, t.unseen) = (State::Going, how, signal, None);
            Ok(())
        })?;
        crate::ptrace::wake(&task);
        Ok(0)
    };
    match request {
        p::PTRACE_CONT => go(c, Go::On),
        p::PTRACE_SYSCALL => go(c, Go::ToCall),
        p::PTRACE_SYSEMU => go(c, Go::PastCall),
        p::PTRACE_SINGLESTEP => go(c, Go::Step),
        p::PTRACE_KILL => {
            if mine(c, &task, |_| Ok(())).is_ok() {
                task.process.end(linux::SIGKILL as i32);
            }
            Ok(0)
        }
        p::PTRACE_DETACH => {
            let signal = signal_of(data)?;
            stopped(c, &task, |_| Ok(()))?;
            release(&task, signal);
            Ok(0)
        }
        p::PTRACE_LISTEN => {
            stopped(c, &task, |t| {
                // Only of one that is stopped as its process is, or could be.
                if !t.seized || t.info.is_none_or(|i| i.code >> 8 != p::PTRACE_EVENT_STOP as i32) {
                    return Err(Errno::EIO);
                }
                t.state = State::Listening;
                Ok(())
            })?;
            crate::ptrace::wake(&task);
            Ok(0)
        }
        p::PTRACE_INTERRUPT => {
            mine(c, &task, |t| {
                if !t.seized {
                    return Err(Errno::EIO);
                }
                t.interrupt = true;
                Ok(())
            })?;
            crate::ptrace::wake(&task);
            task.poke(work::STOP);
            Ok(0)
        }
        p::PTRACE_SETOPTIONS => {
            let options = check_options(data)?;
            stopped(c, &task, |t| {
                t.options = options;
                Ok(0)
            })
        }
        p::PTRACE_PEEKTEXT | p::PTRACE_PEEKDATA => {
            stopped(c, &task, |_| Ok(()))?;
            let mut word = [0; 8];
            let space = task.space.share();
            if read_memory(c.task, &space, addr, &mut word)? < word.len() {
                return Err(Errno::EIO);
            }
            user::write(data, &word).map(|()| 0)
        }
        p::PTRACE_POKETEXT | p::PTRACE_POKEDATA => {
            stopped(c, &task, |_| Ok(()))?;
            let space = task.space.share();
            let word = data.to_ne_bytes();
            if write_memory(c.task, &space, addr, &word)? < word.len() { Err(Errno::EIO) } else { Ok(0) }
        }
        p::PTRACE_PEEKUSR => put(data, &stopped(c, &task, |t| user_word(&t.frame, addr))?).map(|()| 0),
        p::PTRACE_POKEUSR => stopped(c, &task, |t| set_user_word(&mut t.frame, addr, data)).map(|()| 0),
        p::PTRACE_GETREGS | p::PTRACE_GETFPREGS => {
            let kind = if request == p::PTRACE_GETREGS { NT_PRSTATUS } else { NT_PRFPREG };
            let bytes = stopped(c, &task, |t| register_set(kind, &t.frame))?;
            user::write(data, &bytes).map_err(|_| Errno::EIO).map(|()| 0)
        }
        p::PTRACE_SETREGS | p::PTRACE_SETFPREGS => {
            let (kind, len) = match request {
                p::PTRACE_SETREGS => (NT_PRSTATUS, size_of::<Registers>()),
                _ => (NT_PRFPREG, LEGACY),
            };
            let mut bytes = alloc::vec![0; len];
            user::read(data, &mut bytes).map_err(|_| Errno::EIO)?;
            stopped(c, &task, |t| set_register_set(kind, &mut t.frame, &bytes)).map(|()| 0)
        }
        p::PTRACE_GETREGSET => {
            let mut v: Iovec = get(data)?;
            let bytes = stopped(c, &task, |t| register_set(addr, &t.frame))?;
            v.len = v.len.min(bytes.len() as u64);
            user::write(v.base, &bytes[..v.len as usize])?;
            put(data, &v).map(|()| 0)
        }
        p::PTRACE_SETREGSET => {
            let mut v: Iovec = get(data)?;
            v.len = v.len.min(XSAVE_MAX as u64);
            let mut bytes = alloc::vec![0; v.len as usize];
            user::read(v.base, &mut bytes)?;
            stopped(c, &task, |t| set_register_set(addr, &mut t.frame, &bytes))?;
            put(data, &v).map(|()| 0)
        }
        p::PTRACE_GETEVENTMSG => put(data, &stopped(c, &task, |t| Ok(t.message))?).map(|()| 0),
        p::PTRACE_GETSIGINFO => put(data, &stopped(c, &task, |t| t.info.ok_or(Errno::EINVAL))?).map(|()| 0),
        p::PTRACE_SETSIGINFO => {
            let info: Siginfo = get(data)?;
            stopped(c, &task, |t| t.info.replace(info).ok_or(Errno::EINVAL)).map(|_| 0)
        }
        p::PTRACE_GETSIGMASK | p::PTRACE_SETSIGMASK if addr != 8 => Err(Errno::EINVAL),
        p::PTRACE_GETSIGMASK => {
            stopped(c, &task, |_| Ok(()))?;
            let blocked = task.signals.lock().blocked;
            put(data, &blocked).map(|()| 0)
        }
        p::PTRACE_SETSIGMASK => {
            let blocked: u64 = get(data)?;
            stopped(c, &task, |_| Ok(()))?;
            signal::set_mask_of(&task, blocked);
            Ok(0)
        }
        p::PTRACE_GET_SYSCALL_INFO => {
            let bytes = stopped(c, &task, |t| Ok(call_info(t)))?;
            user::write(data, &bytes[..bytes.len().min(addr as usize)])?;
            Ok(bytes.len() as u64)
        }
        p::PTRACE_ARCH_PRCTL => Err(Errno::EIO),
        _ => {
            stopped(c, &task, |_| Ok(()))?;
            Err(Errno::EIO)
        }
    }
}

const _: () = assert!(size_of::<Registers>() == 216 && offset_of!(Registers, rip) == 128);
