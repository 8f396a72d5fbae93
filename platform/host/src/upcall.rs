//! Host signals become upcalls.
//!
//! One handler for all. It runs on the host thread's alternate stack, decides
//! by the interrupted address what was interrupted, and does one of four
//! things: mark an asynchronous event pending and return; repair a faulting
//! user copy and return; copy the program's registers into its thread's frame
//! and leave for the runtime; or report a broken runtime. It blocks no
//! signals, so leaving without `sigreturn` leaves nothing behind.
#![allow(unsafe_code, reason = "reads the host's signal frames and changes stacks")]

use core::mem::offset_of;
use core::sync::atomic::Ordering;

use crate::sys::{self, call};
use crate::{calls, control, cores, entry};
use atoll_abi::core_local::{CoreLocal, core_local, pending};
use atoll_abi::frame::{FaultKind, FrameKind, SigContext, Upcall, UserFrame, XSAVE_MAX};
use atoll_abi::layout::{HOST_THREAD_SIZE, IMAGE_MAX, RUNTIME_BASE};
use linux_raw_sys::general as linux;

/// The signal by which cores interrupt each other and deadlines come. Ignored
/// by default, so that a stray one does no harm anywhere.
pub const SIGNAL: u32 = linux::SIGURG;

/// What stands at the bottom of a host thread's area.
#[repr(C)]
pub struct HostThread {
    /// The core that this thread can be.
    pub core: &'static CoreLocal,
    /// Its space.
    pub space: u32,
    /// The host's timer for the core's deadline.
    pub timer: i32,
    /// Set once the thread is ready for batons.
    pub ready: core::sync::atomic::AtomicU32,
}

/// The host thread that runs this, found by its stack: loop stack and signal stack lie in its area.
///
/// # Safety
/// Only on one of those stacks.
unsafe fn by_stack() -> &'static HostThread {
    let here = 0u8;
    let base = (&raw const here as u64) & !(HOST_THREAD_SIZE - 1);
    // SAFETY: the caller's promise; the area begins with it.
    unsafe { &*(base as *const HostThread) }
}

/// The host thread of the core that runs this.
pub(crate) fn host_thread() -> &'static HostThread {
    let base = atoll_abi::layout::HOST_THREADS + core_local().id() as u64 * HOST_THREAD_SIZE;
    // SAFETY: areas are at fixed addresses, the same in each process.
    unsafe { &*(base as *const HostThread) }
}

#[repr(C)]
struct SigInfo {
    signo: i32,
    errno: i32,
    code: i32,
    pad: i32,
    addr: u64,
    /// Of SIGSYS: the call's number and the architecture that it belongs to.
    syscall: i32,
    arch: u32,
}

/// `AUDIT_ARCH_X86_64`: the call was made by the `syscall` instruction of 64-bit code.
const ARCH_X86_64: u32 = 0xc000_003e;
/// Selector of 64-bit user code.
const USER_CS: u64 = 0x33;
/// The alignment-check, nested-task and trap flags.
const FLAG_AC: u64 = 1 << 18;
const FLAG_NT: u64 = 1 << 14;
const FLAG_TF: u64 = 1 << 8;

#[repr(C)]
struct UContext {
    flags: u64,
    link: u64,
    stack: [u64; 3],
    machine: SigContext,
}

/// Offset of the size of the saved state in the "software reserved" bytes of the legacy area.
const XSTATE_SIZE: usize = 464 + 16;
const XSTATE_MAGIC: u32 = 0x4650_5853;

const SI_TIMER: i32 = -2;

unsafe extern "Rust" {
    /// Defined by the runtime binary: what to do for a program, by upcall.
    fn atoll_upcall(frame: &mut UserFrame, upcall: Upcall);
    /// Defined by the runtime binary: pending bits were taken.
    fn atoll_events(frame: &mut UserFrame, bits: u32);
}

/// The interrupted program's state is in the frame; this says what happened.
/// One a core, because it is consumed before anything can happen again.
struct Waiting(core::cell::UnsafeCell<Upcall>);
// SAFETY: indexed by core.
unsafe impl Sync for Waiting {}
static WAITING: [Waiting; atoll_abi::layout::MAX_CORES] =
    [const { Waiting(core::cell::UnsafeCell::new(Upcall::Event)) }; atoll_abi::layout::MAX_CORES];

extern "C" fn deliver(frame: &mut UserFrame) {
    // SAFETY: written by this core's handler just now, mask set.
    let upcall = unsafe { *WAITING[core_local().id()].0.get() };
    match upcall {
        Upcall::Event => take_pending(frame),
        // SAFETY: the runtime's functions are linked in.
        other => unsafe { atoll_upcall(frame, other) },
    }
}

fn take_pending(frame: &mut UserFrame) {
    let bits = core_local().pending.swap(0, Ordering::SeqCst);
    // SAFETY: as above.
    unsafe { atoll_events(frame, bits) }
}

/// Called by the entry code when pending bits are found on the way out.
#[unsafe(no_mangle)]
extern "C" fn atoll_pending(frame: &mut UserFrame) {
    take_pending(frame)
}

extern "C" fn handler(signal: i32, info: *const SigInfo, context: *mut UContext) {
    // SAFETY: the host calls this on the alternate stack with valid pointers.
    let (me, info, machine) = unsafe { (by_stack(), &*info, &mut (*context).machine) };
    let core = me.core;
    let mut gs: u64;
    // SAFETY: reads and writes the GS base; FSGSBASE is required of the host.
    unsafe {
        core::arch::asm!("rdgsbase {}", out(reg) gs, options(nomem, nostack));
        if gs != core as *const CoreLocal as u64 {
            core::arch::asm!("wrgsbase {}", in(reg) core as *const CoreLocal as u64, options(nomem, nostack));
        } else {
            gs = 0;
        }
    }
    let marks = entry::landmarks();
    let rip = machine.rip;
    if signal as u32 == SIGNAL {
        let mut bit = if info.code == SI_TIMER { pending::DEADLINE } else { pending::NOTIFY };
        // The host keeps one signal of a kind: the deadline's may stand for another core's.
        if control().cores[core.id()].interrupted.swap(0, Ordering::SeqCst) != 0 {
            bit |= pending::NOTIFY;
        }
        core.pending.fetch_or(bit, Ordering::SeqCst);
        if core.space.load(Ordering::SeqCst) != me.space {
            // The baton is with another space's thread now.
            cores::interrupt(core.id());
            return;
        }
        let half_resumed = (marks.resume_critical..marks.resume_end).contains(&rip);
        if half_resumed {
            core.mask.store(1, Ordering::SeqCst);
            machine.rip = marks.resume_again;
            machine.rflags = 0x202;
            return;
        }
        if core.mask.load(Ordering::SeqCst) != 0 {
            return;
        }
        match program_rip(rip, core, machine, &marks) {
            Some(at) => {
                let upcall = trespass(gs, machine, false).unwrap_or(Upcall::Event);
                let frame = capture(core, machine, at);
                // SAFETY: this core's, mask set by `capture`.
                unsafe { *WAITING[core.id()].0.get() = upcall };
                // SAFETY: on the signal stack, frame captured.
                unsafe { entry::to_thread_stack(frame, deliver) }
            }
            // Inside a handler on this same stack: it will look at the pending word.
            None => return,
        }
    }
    if in_runtime(rip) {
        if matches!(signal as u32, linux::SIGSEGV | linux::SIGBUS)
            && let Some(to) = atoll_mem::user::fixup(rip)
        {
            machine.rip = to;
            return;
        }
        if signal as u32 == linux::SIGBUS
            && info.code == linux::BUS_ADRALN as i32
            && machine.rflags & FLAG_AC != 0
        {
            // The program's own flag, which it gets back on the way out. Linux clears it on entry.
            machine.rflags &= !FLAG_AC;
            return;
        }
        broken(signal, info, machine);
    }
    let foreign_call = signal as u32 == linux::SIGSYS && info.arch != ARCH_X86_64;
    // As without `int 0x80`, which would fault and not be passed.
    let back = if foreign_call && machine.segments & 0xffff == USER_CS { 2 } else { 0 };
    let frame = capture(core, machine, rip - back);
    let mut upcall = match signal as u32 {
        linux::SIGSYS => Upcall::Syscall,
        linux::SIGSEGV if machine.trap == 14 => Upcall::Fault {
            kind: FaultKind::Page,
            addr: machine.cr2,
            code: machine.error,
            si_code: info.code,
        },
        linux::SIGSEGV => Upcall::Fault {
            kind: FaultKind::Protection,
            addr: info.addr,
            code: machine.error,
            si_code: info.code,
        },
        linux::SIGBUS => {
            Upcall::Fault { kind: FaultKind::Bus, addr: info.addr, code: machine.error, si_code: info.code }
        }
        linux::SIGFPE => Upcall::Fault {
            kind: FaultKind::Arithmetic,
            addr: info.addr,
            code: machine.trap,
            si_code: info.code,
        },
        linux::SIGTRAP => {
            Upcall::Fault { kind: FaultKind::Debug, addr: info.addr, code: machine.trap, si_code: info.code }
        }
        _ => Upcall::Fault { kind: FaultKind::InvalidOpcode, addr: info.addr, code: 0, si_code: info.code },
    };
    if let Some(other) = trespass(gs, machine, foreign_call) {
        upcall = other;
    }
    // SAFETY: this core's, mask set by `capture`.
    unsafe { *WAITING[core.id()].0.get() = upcall };
    // SAFETY: on the signal stack, frame captured.
    unsafe { entry::to_thread_stack(frame, deliver) }
}

/// Is this address in the runtime's own code (and not in the host's clock code beside it)?
fn in_runtime(rip: u64) -> bool {
    (RUNTIME_BASE..RUNTIME_BASE + IMAGE_MAX).contains(&rip)
}

/// What a program did that no program of a cell may do, if it did: changed the GS base,
/// left 64-bit mode, or made a call by the 32-bit gate.
fn trespass(gs: u64, machine: &SigContext, foreign_call: bool) -> Option<Upcall> {
    let code = machine.segments & 0xffff;
    let (kind, addr) = if code != USER_CS {
        (FaultKind::CodeSegment, code)
    } else if gs != 0 {
        (FaultKind::SegmentBase, gs)
    } else if foreign_call {
        (FaultKind::LegacyCall, machine.rax)
    } else {
        return None;
    };
    Some(Upcall::Fault { kind, addr, code: 0, si_code: 0 })
}

/// The address at which the program is to go on, if the interrupted state is the program's.
fn program_rip(rip: u64, core: &CoreLocal, machine: &SigContext, marks: &entry::Landmarks) -> Option<u64> {
    if !in_runtime(rip) {
        Some(rip)
    } else if (marks.entry..=marks.entry_commit).contains(&rip) {
        // Start the trampoline over: it begins a fixed way before the address to come back to.
        Some(machine.rcx.wrapping_sub(atoll_abi::layout::TRAMPOLINE_RETURN))
    } else if (marks.exit_check..=marks.exit_late).contains(&rip) {
        Some(core.resume_rip.load(Ordering::Relaxed))
    } else {
        None
    }
}

/// Copies the program's registers from the host's signal frame to its thread's frame, and sets the mask.
fn capture(core: &CoreLocal, machine: &SigContext, rip: u64) -> *mut UserFrame {
    core.mask.store(1, Ordering::SeqCst);
    let p = core.frame.load(Ordering::Relaxed);
    // SAFETY: while a thread runs its program, its frame is the handler's.
    let f = unsafe { &mut *p };
    f.r8 = machine.r8;
    f.r9 = machine.r9;
    f.r10 = machine.r10;
    f.r11 = machine.r11;
    f.r12 = machine.r12;
    f.r13 = machine.r13;
    f.r14 = machine.r14;
    f.r15 = machine.r15;
    f.rdi = machine.rdi;
    f.rsi = machine.rsi;
    f.rbp = machine.rbp;
    f.rbx = machine.rbx;
    f.rdx = machine.rdx;
    f.rax = machine.rax;
    f.rcx = machine.rcx;
    f.rsp = machine.rsp;
    f.rip = rip;
    // Loaded with these, `resume` would trap itself.
    f.rflags = machine.rflags & !(FLAG_TF | FLAG_NT);
    f.orig_rax = u64::MAX;
    f.kind = FrameKind::Full as u32;
    f.saved_components = 0;
    // SAFETY: reads a register.
    unsafe { core::arch::asm!("rdfsbase {}", out(reg) f.fs_base, options(nomem, nostack)) };
    if machine.fpstate == 0 {
        f.reset_extended();
        return p;
    }
    // SAFETY: the host wrote an FXSAVE image and, behind the magic number, the size of the XSAVE image.
    unsafe {
        let state = machine.fpstate as *const u8;
        let magic = state.add(464).cast::<u32>().read_unaligned();
        let size = if magic == XSTATE_MAGIC {
            state.add(XSTATE_SIZE).cast::<u32>().read_unaligned() as usize
        } else {
            f.xsave[64..72].fill(0);
            f.xsave[64] = 3;
            512
        };
        core::ptr::copy_nonoverlapping(state, f.xsave.as_mut_ptr().cast(), size.min(XSAVE_MAX));
    }
    p
}

/// The runtime itself faulted: say where, and end the cell.
fn broken(signal: i32, info: &SigInfo, machine: &SigContext) -> ! {
    let mut line = calls::Line::new();
    let _ = core::fmt::write(
        &mut line,
        format_args!(
            "the runtime got host signal {signal} (code {}) at {:#x} (image + {:#x}), address {:#x}, sp {:#x}",
            info.code,
            machine.rip,
            machine.rip.wrapping_sub(RUNTIME_BASE),
            machine.cr2,
            machine.rsp
        ),
    );
    calls::log(line.as_str());
    // A few return addresses, for whoever reads the log.
    let mut sp = machine.rsp & !7;
    let mut found = 0;
    line = calls::Line::new();
    while found < 12 && sp < (machine.rsp | 0x7fff) {
        // SAFETY: stacks of the runtime are mapped up to their end, 32 KiB aligned.
        let word = unsafe { *(sp as *const u64) };
        if in_runtime(word) {
            let _ = core::fmt::write(&mut line, format_args!(" +{:#x}", word - RUNTIME_BASE));
            found += 1;
        }
        sp += 8;
    }
    calls::log(line.as_str());
    crate::start::end(128 + 11)
}

#[repr(C)]
struct SigAction {
    handler: u64,
    flags: u64,
    restorer: u64,
    mask: u64,
}

/// Installs the handler for all signals that matter, in this process.
pub(crate) fn install() {
    let action = SigAction {
        handler: handler as *const () as u64,
        flags: u64::from(linux::SA_SIGINFO | linux::SA_ONSTACK | linux::SA_NODEFER | linux::SA_RESTORER),
        restorer: entry::sigreturn_address(),
        mask: 0,
    };
    for signal in
        [linux::SIGSEGV, linux::SIGBUS, linux::SIGFPE, linux::SIGILL, linux::SIGTRAP, linux::SIGSYS, SIGNAL]
    {
        // SAFETY: a valid action.
        unsafe { call!(sys::RT_SIGACTION, signal, &raw const action, 0, 8) };
    }
    let ignore = SigAction { handler: 1, flags: 0, restorer: 0, mask: 0 };
    for signal in [
        linux::SIGPIPE,
        linux::SIGHUP,
        linux::SIGINT,
        linux::SIGTERM,
        linux::SIGTSTP,
        linux::SIGTTIN,
        linux::SIGTTOU,
    ] {
        // SAFETY: as above.
        unsafe { call!(sys::RT_SIGACTION, signal, &raw const ignore, 0, 8) };
    }
    let nothing = 0u64;
    // SAFETY: unblocks all signals.
    unsafe { call!(sys::RT_SIGPROCMASK, linux::SIG_SETMASK, &raw const nothing, 0, 8) };
}

/// Sets this host thread's alternate stack.
pub(crate) fn alternate_stack(area: u64) {
    #[repr(C)]
    struct Stack {
        sp: u64,
        flags: u64,
        size: u64,
    }
    let stack =
        Stack { sp: area + entry::LOOP_STACK_TOP, flags: 0, size: HOST_THREAD_SIZE - entry::LOOP_STACK_TOP };
    // SAFETY: the area is this thread's.
    unsafe { call!(sys::SIGALTSTACK, &raw const stack, 0) };
}

const _: () = assert!(offset_of!(UContext, machine) == 40);
