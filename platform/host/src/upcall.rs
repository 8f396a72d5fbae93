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
use crate::{calls, control, cores};
use atoll_abi::core_local::{CoreLocal, core_local, pending};
use atoll_abi::frame::{FaultKind, SigContext, Upcall};
use atoll_abi::layout::{HOST_THREAD_SIZE, LOOP_STACK, RUNTIME_BASE};
use atoll_platform_entry::entry;
use atoll_platform_entry::line::Line;
use atoll_platform_entry::upcall::{
    FLAG_TF, Stepped, backtrace, capture, half_resumed, in_runtime, leave_for_runtime, program_rip, stepped,
    trespass,
};
use linux_raw_sys::general as linux;

core::arch::global_asm!(
    ".pushsection .text.atoll_sigreturn,\"ax\",@progbits",
    // What the host returns to from a signal handler.
    ".globl atoll_sigreturn",
    "atoll_sigreturn:",
    "mov eax, 15",
    "syscall",
    "ud2",
    ".popsection",
);

unsafe extern "C" {
    fn atoll_sigreturn();
}

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
    /// What it is set to; u64::MAX: nothing.
    pub armed: core::sync::atomic::AtomicU64,
    /// The one for processor time that it has used, and whether that is set (1).
    pub work_timer: i32,
    /// See there.
    pub working: core::sync::atomic::AtomicU32,
    /// How often it is to sleep without having yielded first (the lower half), and how often it did so in vain, one after the other (the
    /// upper one).
    pub yields: core::sync::atomic::AtomicU32,
    /// Descriptor of its counter, or below 0.
    pub counter: i32,
    /// What that said last.
    pub counted: core::sync::atomic::AtomicU64,
    /// Not 0: it goes to its program by single steps, the last of them in the runtime.
    pub stepping: core::sync::atomic::AtomicU32,
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
/// The alignment-check flag.
const FLAG_AC: u64 = 1 << 18;

#[repr(C)]
struct UContext {
    flags: u64,
    link: u64,
    stack: [u64; 3],
    machine: SigContext,
}

const SI_TIMER: i32 = -2;

fn set_gs(base: u64) {
    // SAFETY: the handler's: what it does by this base is behind it, or has not begun; FSGSBASE is required of the host.
    unsafe { core::arch::asm!("wrgsbase {}", in(reg) base, options(nomem, nostack)) };
}

extern "C" fn handler(signal: i32, info: *const SigInfo, context: *mut UContext) {
    // SAFETY: the host calls this on the alternate stack with valid pointers.
    let (me, info, machine) = unsafe { (by_stack(), &*info, &mut (*context).machine) };
    let core = me.core;
    let own = core as *const CoreLocal as u64;
    let gs: u64;
    // SAFETY: reads the GS base; FSGSBASE is required of the host.
    unsafe { core::arch::asm!("rdgsbase {}", out(reg) gs, options(nomem, nostack)) };
    let gs = (gs != own).then_some(gs);
    if gs.is_some() {
        set_gs(own);
    }
    let rip = machine.rip;
    if signal as u32 == SIGNAL {
        let mut bit = pending::NOTIFY;
        if info.code == SI_TIMER {
            // Of either timer, and perhaps for both: both are asked for again.
            me.working.store(0, Ordering::Relaxed);
            me.armed.store(u64::MAX, Ordering::Relaxed);
            bit = pending::DEADLINE;
        }
        // The host keeps one signal of a kind: the deadline's may stand for another core's.
        if control().cores[core.id()].interrupted.swap(0, Ordering::SeqCst) != 0 {
            bit |= pending::NOTIFY;
        } else if bit == pending::DEADLINE && core.space.load(Ordering::SeqCst) != me.space {
            // The core is in another space now, and has asked for its deadline there.
            return;
        }
        core.pending.fetch_or(bit, Ordering::SeqCst);
        if core.space.load(Ordering::SeqCst) != me.space {
            // The baton is with another space's thread now.
            cores::interrupt(core.id());
            return;
        }
        if half_resumed(rip) {
            core.mask.store(1, Ordering::SeqCst);
            machine.rip = entry::landmarks().resume_again;
            machine.rflags = 0x202;
            return;
        }
        if core.mask.load(Ordering::SeqCst) != 0 {
            control().cores[core.id()].puts_off(calls::clock(calls::CLOCK_MONOTONIC));
            return;
        }
        match program_rip(rip, core, machine) {
            Some(at) => {
                let upcall = trespass(gs, machine, USER_CS, false).unwrap_or(Upcall::Event);
                let frame = capture(core, machine, at);
                // SAFETY: on the signal stack, frame captured, mask set by that.
                unsafe { leave_for_runtime(core, frame, upcall) }
            }
            // Inside a handler on this same stack, which will look at the pending word. The host queues a signal of each timer, and may put
            // this one before the other's first instruction: that one, too, is to see what base the program had.
            None => {
                gs.into_iter().for_each(set_gs);
                return;
            }
        }
    }
    if signal as u32 == linux::SIGTRAP && machine.rflags & FLAG_TF != 0 {
        // What trapped is the last instruction: at the program's first one it is the runtime's jump there.
        let on_the_way = me.stepping.swap(0, Ordering::Relaxed) != 0;
        if in_runtime(rip) {
            match stepped(rip) {
                Stepped::OnTheWay => me.stepping.store(1, Ordering::Relaxed),
                Stepped::Entered => {
                    machine.rflags &= !FLAG_TF;
                    core.pending.fetch_or(pending::NOTIFY, Ordering::SeqCst);
                }
            }
            return;
        }
        if on_the_way {
            return;
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
    if signal as u32 == linux::SIGTRAP {
        // The step is made.
        // SAFETY: it was captured just now, and is this thread's.
        unsafe { (*frame).rflags &= !FLAG_TF };
    }
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
    if let Some(other) = trespass(gs, machine, USER_CS, foreign_call) {
        upcall = other;
    }
    // SAFETY: on the signal stack, frame captured, mask set by that.
    unsafe { leave_for_runtime(core, frame, upcall) }
}

/// The runtime itself faulted: say where, and end the cell.
fn broken(signal: i32, info: &SigInfo, machine: &SigContext) -> ! {
    let mut line = Line::new();
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
    calls::log(backtrace(machine).as_str());
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
        restorer: atoll_sigreturn as *const () as u64,
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
        linux::SIGXFSZ,
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
    let stack = Stack { sp: area + LOOP_STACK, flags: 0, size: HOST_THREAD_SIZE - LOOP_STACK };
    // SAFETY: the area is this thread's.
    unsafe { call!(sys::SIGALTSTACK, &raw const stack, 0) };
}

const _: () = assert!(offset_of!(UContext, machine) == 40);
