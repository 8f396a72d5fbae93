//! System calls: the table, and one file a family.
//!
//! A handler gets the call's six arguments and the task that made it, and
//! returns a value or an error number. What needs no more than that is
//! written down in one line of [`table`]. A call that is not in the table is
//! answered with ENOSYS and named once in the log.
#![allow(unsafe_code, reason = "the way in from the platform's entry code")]

pub mod events;
pub mod fd;
pub mod kcmp;
pub mod memory;
pub mod misc;
pub mod net;
pub mod path;
pub mod poll;
pub mod process;
pub mod process_vm;
pub mod ptrace;
pub mod sched;
pub mod signals;
mod table;
pub mod time;

use core::sync::atomic::Ordering;

use atoll_abi::core_local::core_local;
use atoll_abi::core_local::pending as pending_bits;
use atoll_abi::frame::{FaultKind, Upcall, UserFrame};
use atoll_abi::grid::Resource;
use atoll_abi::{Errno, Result};
use atoll_mem::vm::Denied;
use linux_raw_sys::general as linux;

use crate::files::{FileRef, Reserved};
use crate::process::Task;
use crate::types::Siginfo;
use crate::{budget, current, log, signal, units};

use atoll_task::{books, gate};
pub use table::{NAMES, RESOURCES, TABLE, UNSERVED};

/// A system call under way.
pub struct Call<'a> {
    /// Who calls.
    pub task: &'a Task,
    /// The caller's registers.
    pub frame: &'a mut UserFrame,
}

/// What serves a call.
pub type Handler = fn(&mut Call) -> Result<u64>;

impl Call<'_> {
    /// Argument `n`.
    #[inline(always)]
    pub fn arg(&self, n: usize) -> u64 {
        let f = &*self.frame;
        match n {
            0 => f.rdi,
            1 => f.rsi,
            2 => f.rdx,
            3 => f.r10,
            4 => f.r8,
            _ => f.r9,
        }
    }

    /// All arguments.
    #[inline]
    pub fn args(&self) -> [u64; 6] {
        core::array::from_fn(|n| self.arg(n))
    }

    /// Argument `n` as an int.
    #[inline]
    pub fn int(&self, n: usize) -> i32 {
        self.arg(n) as i32
    }

    /// Argument `n` as an unsigned int.
    #[inline]
    pub fn uint(&self, n: usize) -> u32 {
        self.arg(n) as u32
    }

    /// The open file that argument `n` names, which is not just a place (O_PATH).
    #[inline]
    pub fn file(&self, n: usize) -> Result<FileRef> {
        self.task.files.get_open(self.arg(n) as u32)
    }

    /// The same, which may be a place only.
    #[inline]
    pub fn file_or_place(&self, n: usize) -> Result<FileRef> {
        self.task.files.get(self.arg(n) as u32)
    }

    /// Keeps the lowest free descriptor for a file that is still to come.
    pub fn reserve(&self, cloexec: bool) -> Result<Reserved<'_>> {
        let limit = self.task.process.max_files.load(Ordering::Relaxed);
        self.task.files.reserve(cloexec, 0, limit)
    }

    /// Installs a file at the lowest free descriptor.
    pub fn install(&self, file: FileRef, cloexec: bool) -> Result<u64> {
        let limit = self.task.process.max_files.load(Ordering::Relaxed);
        self.task.files.add(file, cloexec, 0, limit).map(u64::from)
    }
}

/// The way in: a program made a system call.
#[unsafe(no_mangle)]
pub extern "C" fn atoll_syscall(frame: &mut UserFrame) {
    let local = core_local();
    local.fast_calls.store(local.fast_calls.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    dispatch(frame);
}

fn dispatch(frame: &mut UserFrame) {
    // The counters of calls are what tells that this core holds nothing of an earlier one (`atoll_task::rcu`).
    let task = current();
    let gated = gate::any();
    if gated && task.tracing.is_on() {
        return traced(task, frame);
    }
    make(task, frame, gated);
    if task.asked() != 0 {
        signal::handle_work(task, frame);
    }
    books::end();
}

/// The same, of a task whose tracer may want to see it.
#[cold]
fn traced(task: &Task, frame: &mut UserFrame) {
    let begin = || books::begin(linux::__NR_ptrace as usize, Resource::Process);
    begin();
    crate::ptrace::call(task, frame, |task, frame| {
        books::end();
        make(task, frame, gate::any());
        books::end();
        begin();
    });
    if task.asked() != 0 {
        signal::handle_work(task, frame);
    }
    books::end();
}

/// Makes a system call. Its books stay open.
#[inline(always)]
fn make(task: &Task, frame: &mut UserFrame, gated: bool) {
    if gated
        && task.filters.is_on()
        && !task.filters.surely_allow(frame.orig_rax as u32)
        && !is_admitted(task, frame)
    {
        return;
    }
    // Linux, too, looks at the lower half only.
    let number = u64::from(frame.orig_rax as u32);
    let handler = match TABLE.get(number as usize) {
        Some(handler) => *handler,
        None => units::handler(number),
    };
    let resource = RESOURCES.get(number as usize).copied().unwrap_or(Resource::Process);
    books::begin(number as usize % books::KINDS, resource);
    let may_begin = if gated { wait_for_turn(number, resource) } else { Ok(()) };
    let result = match handler {
        _ if may_begin.is_err() => Err(Errno::ENOMEM),
        Some(handler) => handler(&mut Call { task, frame }),
        None => missing(task, number),
    };
    frame.rax = match result {
        Ok(v) => v,
        Err(Errno::ESTALE) => again(task, handler, frame),
        Err(e) => e.to_ret() as u64,
    };
}

/// Do its filters allow a task's call? If not the books are open for that, and the registers hold the result.
#[cold]
fn is_admitted(task: &Task, frame: &mut UserFrame) -> bool {
    books::begin(linux::__NR_seccomp as usize, Resource::Process);
    let made = crate::seccomp::admits(task, frame);
    if made {
        books::end();
    }
    made
}

/// A call waits until it is its turn at the resource that serves it; and at the memory that it may take. ENOMEM: there is none.
#[cold]
fn wait_for_turn(number: u64, resource: Resource) -> Result<()> {
    if gate::is_alarmed() && table::makes_objects(number) && budget::objects_are_short() {
        return Err(Errno::ENOMEM);
    }
    if !table::turns(number) {
        gate::pass(resource);
    }
    // Who has too many events waits before it asks for more.
    if !matches!(resource, Resource::Process | Resource::Thread | Resource::AddressSpace | Resource::Memory) {
        gate::pass(Resource::Completion);
        // They may ask the platform for something, when they hold what others wait for.
        if gate::counts_requests() {
            gate::pass(Resource::DeviceWrite);
        }
    }
    if !matches!(resource, Resource::Process | Resource::Thread | Resource::Timer | Resource::Wait) {
        gate::pass(Resource::Memory);
    }
    Ok(())
}

/// Times that a call is made again whose path others changed while it was on its way.
const STALE_MAX: u32 = 8;

/// Calls that walk a path, and do nothing before they know that it led to what is there.
const BY_PATH: &[u32] = &[
    linux::__NR_open,
    linux::__NR_openat,
    linux::__NR_openat2,
    linux::__NR_creat,
    linux::__NR_stat,
    linux::__NR_lstat,
    linux::__NR_newfstatat,
    linux::__NR_statx,
    linux::__NR_access,
    linux::__NR_faccessat,
    linux::__NR_faccessat2,
    linux::__NR_chdir,
    linux::__NR_execve,
    linux::__NR_execveat,
    linux::__NR_rename,
    linux::__NR_renameat,
    linux::__NR_renameat2,
    linux::__NR_mkdir,
    linux::__NR_mkdirat,
    linux::__NR_rmdir,
    linux::__NR_link,
    linux::__NR_linkat,
    linux::__NR_unlink,
    linux::__NR_unlinkat,
    linux::__NR_symlink,
    linux::__NR_symlinkat,
    linux::__NR_readlink,
    linux::__NR_readlinkat,
    linux::__NR_chmod,
    linux::__NR_fchmodat,
    linux::__NR_chown,
    linux::__NR_lchown,
    linux::__NR_fchownat,
    linux::__NR_truncate,
    linux::__NR_utime,
    linux::__NR_utimes,
    linux::__NR_futimesat,
    linux::__NR_utimensat,
    linux::__NR_mknod,
    linux::__NR_mknodat,
    linux::__NR_getxattr,
    linux::__NR_lgetxattr,
    linux::__NR_listxattr,
    linux::__NR_llistxattr,
    linux::__NR_setxattr,
    linux::__NR_lsetxattr,
    linux::__NR_removexattr,
    linux::__NR_lremovexattr,
    linux::__NR_statfs,
    linux::__NR_chroot,
];

/// What a path led to is under another name by the time the call gets to it. It has done nothing
/// yet, and begins anew, as Linux has it (`retry_estale`).
#[cold]
fn again(task: &Task, handler: Option<Handler>, frame: &mut UserFrame) -> u64 {
    let mut result = Err(Errno::ESTALE);
    let by_path = BY_PATH.contains(&(frame.orig_rax as u32));
    for _ in 0..if by_path { STALE_MAX } else { 0 } {
        if let (Some(handler), Err(Errno::ESTALE)) = (handler, result) {
            result = handler(&mut Call { task, frame });
        }
    }
    result.unwrap_or_else(|e| e.to_ret() as u64)
}

/// What serves a quiet call.
type Quiet = unsafe extern "C" fn(&Task) -> u64;

/// Calls that only read a word or two of the caller's: they neither block nor fail, and the
/// entry code saves less for them. What they do touches no vector register (a test looks).
/// A signal that waits is taken at the next other call or upcall: whoever sends one sees to that.
#[unsafe(no_mangle)]
static atoll_quiet: [Option<Quiet>; atoll_abi::QUIET_CALLS] = {
    let mut t: [Option<Quiet>; atoll_abi::QUIET_CALLS] = [None; atoll_abi::QUIET_CALLS];
    t[linux::__NR_getpid as usize] = Some(quiet::atoll_quiet_getpid);
    t[linux::__NR_getppid as usize] = Some(quiet::atoll_quiet_getppid);
    t[linux::__NR_getpgrp as usize] = Some(quiet::atoll_quiet_getpgrp);
    t[linux::__NR_gettid as usize] = Some(quiet::atoll_quiet_gettid);
    t
};

/// Named, so that a test finds them.
mod quiet {
    use super::{Ordering, Task};

    #[unsafe(no_mangle)]
    pub extern "C" fn atoll_quiet_getpid(task: &Task) -> u64 {
        u64::from(task.process.pid)
    }

    #[unsafe(no_mangle)]
    pub extern "C" fn atoll_quiet_getppid(task: &Task) -> u64 {
        u64::from(task.process.parent_pid())
    }

    #[unsafe(no_mangle)]
    pub extern "C" fn atoll_quiet_getpgrp(task: &Task) -> u64 {
        u64::from(task.process.pgid.load(Ordering::Relaxed))
    }

    #[unsafe(no_mangle)]
    pub extern "C" fn atoll_quiet_gettid(task: &Task) -> u64 {
        u64::from(task.tid())
    }
}

#[cold]
fn missing(task: &Task, number: u64) -> Result<u64> {
    let name = UNSERVED.iter().find(|(n, _)| u64::from(*n) == number).map_or("?", |(_, n)| n);
    log::once(
        &alloc::format!("syscall {number}"),
        format_args!(
            "{}: system call {name} ({number}) is not supported: ENOSYS",
            alloc::string::String::from_utf8_lossy(&task.name())
        ),
    );
    Err(Errno::ENOSYS)
}

/// Says once that some use of a call is not supported, and returns the error for it.
#[cold]
pub fn unsupported(task: &Task, what: &str, error: Errno) -> Errno {
    log::once(
        what,
        format_args!(
            "{}: {what} is not supported: {error}",
            alloc::string::String::from_utf8_lossy(&task.name())
        ),
    );
    error
}

/// The way in: a fault, or a system call that trapped.
pub fn upcall(frame: &mut UserFrame, upcall: Upcall) {
    let task = current();
    match upcall {
        Upcall::Syscall => {
            let local = core_local();
            local.trapped_calls.store(local.trapped_calls.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            frame.orig_rax = frame.rax;
            dispatch(frame);
            return;
        }
        Upcall::Fault { kind, addr, code, si_code } => {
            books::begin(books::PAGE_FAULT, Resource::AddressSpace);
            gate::pass(Resource::AddressSpace);
            gate::pass(Resource::Memory);
            fault(task, frame, kind, addr, code, si_code);
        }
        Upcall::Event => books::begin(books::EVENT, Resource::Timer),
    }
    if task.asked() != 0 {
        signal::handle_work(task, frame);
    }
    books::end();
}

/// The way in: pending bits were taken while a program ran.
pub fn events(frame: &mut UserFrame, bits: u32) {
    books::begin(books::EVENT, Resource::Timer);
    if bits & pending_bits::DEADLINE != 0 {
        atoll_task::on_deadline();
    }
    if bits & pending_bits::DEVICE != 0 {
        atoll_abi::platform().device_interrupt();
        atoll_task::look();
        atoll_task::on_notify();
    }
    if bits & pending_bits::NOTIFY != 0 {
        crate::boot::look_at_mailbox();
        atoll_task::on_notify();
    }
    let task = current();
    if task.tracing.steps() && frame.rflags & crate::ptrace::FLAG_TF == 0 {
        // A step into the runtime that was served without more.
        crate::ptrace::stepped(task, frame);
    }
    if task.asked() != 0 {
        signal::handle_work(task, frame);
    }
    books::end();
}

/// Page-fault error code: the access was a write; it was an instruction fetch.
const PF_WRITE: u64 = 2;
const PF_FETCH: u64 = 16;
/// Number of the exception that the trap flag causes (#DB).
const TRACE_TRAP: u64 = 1;
/// Faults in a row at one address after which it can't be helped.
const SAME_FAULT_MAX: u64 = 100;

fn fault(task: &Task, frame: &mut UserFrame, kind: FaultKind, addr: u64, code: u64, si_code: i32) {
    let info = match kind {
        FaultKind::Page | FaultKind::Bus => {
            task.faults.fetch_add(1, Ordering::Relaxed);
            // The same place again and again without a system call in between,
            // and the pager says all is well: it isn't.
            let (local, same) = (core_local(), task.same_fault.load(Ordering::Relaxed));
            let calls =
                local.fast_calls.load(Ordering::Relaxed) + local.trapped_calls.load(Ordering::Relaxed);
            let idle = task.fault_calls.swap(calls, Ordering::Relaxed) == calls;
            let tries = if idle && same >> 12 == addr >> 12 { same & 0xfff } else { 0 };
            task.same_fault.store((addr & !0xfff) | (tries + 1).min(0xfff), Ordering::Relaxed);
            let (write, fetch) = (code & PF_WRITE != 0, code & PF_FETCH != 0);
            // What isn't in memory has to be its turn. Here, where no lock of the space's is held.
            if gate::full(Resource::DeviceRead) && task.space.memory.fault_reads(addr) {
                gate::pass(Resource::DeviceRead);
            }
            // To bring in a page takes some of the runtime's own memory.
            let is_short = gate::is_alarmed() && budget::reserve_is_gone();
            let served = if is_short { Err(Denied::NoMemory) } else { serve(task, addr, write, fetch, true) };
            match served {
                Ok(()) if tries < SAME_FAULT_MAX && kind == FaultKind::Page => return,
                Ok(()) if kind == FaultKind::Page => {
                    Siginfo::fault(linux::SIGSEGV, linux::SEGV_ACCERR as i32, addr)
                }
                Ok(()) | Err(Denied::Bus | Denied::Asked) => {
                    Siginfo::fault(linux::SIGBUS, linux::BUS_ADRERR as i32, addr)
                }
                Err(Denied::Unmapped) => Siginfo::fault(linux::SIGSEGV, linux::SEGV_MAPERR as i32, addr),
                Err(Denied::Access) => Siginfo::fault(linux::SIGSEGV, linux::SEGV_ACCERR as i32, addr),
                Err(Denied::NoMemory) => {
                    let why = match budget::relieve(task, tries) {
                        Ok(done) => {
                            // The same place may fault again for as long as others end.
                            if done {
                                task.same_fault.store(0, Ordering::Relaxed);
                            }
                            return;
                        }
                        Err(why) if !task.process.is_ending() => why,
                        _ => return,
                    };
                    log::line(format_args!(
                        "{}[{}] is ended: {why}",
                        alloc::string::String::from_utf8_lossy(&task.name()),
                        task.tid()
                    ));
                    task.process.end(linux::SIGKILL as i32);
                    task.thread().ask(crate::process::work::END);
                    return;
                }
            }
        }
        FaultKind::Protection => Siginfo::fault(linux::SIGSEGV, 0x80, 0),
        FaultKind::Arithmetic => Siginfo::fault(linux::SIGFPE, si_code, frame.rip),
        FaultKind::InvalidOpcode => Siginfo::fault(linux::SIGILL, si_code, frame.rip),
        FaultKind::Debug if code == TRACE_TRAP && crate::ptrace::steps_on(task, frame) => return,
        FaultKind::Debug => Siginfo::fault(linux::SIGTRAP, si_code, addr),
        FaultKind::SegmentBase => {
            log::line(format_args!(
                "{}[{}] is ended: it changed the GS base, which belongs to the runtime in a cell",
                alloc::string::String::from_utf8_lossy(&task.name()),
                task.tid()
            ));
            Siginfo::fault(linux::SIGSEGV, 0x80, 0)
        }
        FaultKind::CodeSegment => {
            log::line(format_args!(
                "{}[{}] is ended: 32-bit code (segment {addr:#x}) does not run in a cell",
                alloc::string::String::from_utf8_lossy(&task.name()),
                task.tid()
            ));
            // No handler could run or return: there is no way back to that segment.
            task.process.end(linux::SIGSEGV as i32);
            task.thread().ask(crate::process::work::END);
            return;
        }
        FaultKind::LegacyCall => {
            // As on a Linux without IA32 emulation, where the gate's entry is missing.
            unsupported(task, "a 32-bit system call (int 0x80, sysenter)", Errno::EFAULT);
            Siginfo::fault(linux::SIGSEGV, 0x80, 0)
        }
    };
    let mut info = info;
    // For the signal frame, where no program looks: error code and exception number.
    let (error, trap) = match kind {
        FaultKind::Page | FaultKind::Bus => (code, 14),
        FaultKind::Protection => (code, 13),
        FaultKind::Arithmetic | FaultKind::Debug => (0, code),
        FaultKind::InvalidOpcode => (0, 6),
        _ => (code, 13),
    };
    info.words[13] = error | trap << 32;
    signal::force(task, info);
}

/// As `AddressSpace::serve`; what grows downwards is made longer.
fn serve(
    task: &Task,
    addr: u64,
    write: bool,
    fetch: bool,
    by_program: bool,
) -> core::result::Result<(), Denied> {
    let memory = &task.space.memory;
    match memory.serve(addr, write, fetch, by_program) {
        Err(Denied::Unmapped) if memory::grow(task, addr) => memory.serve(addr, write, fetch, by_program),
        served => served,
    }
}

/// Brings a page in for a copy of the runtime's (`atoll_mem::user`).
pub fn fault_in(addr: u64, write: bool) -> Result<()> {
    let task = crate::current::try_current().ok_or(Errno::EFAULT)?;
    // Each fault of a copy is a new one: it goes on from where it stopped.
    let mut tries = 0;
    loop {
        match serve(task, addr, write, false, false) {
            Err(Denied::NoMemory) if budget::relieve(task, tries).is_ok() => tries += 1,
            result => return result.map_err(|_| Errno::EFAULT),
        }
    }
}
