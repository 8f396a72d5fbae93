//! What the nucleus passes up becomes upcalls.
//!
//! The nucleus leaves the registers in the core's trap and goes to `atoll_trap`, on the core's trap stack and with
//! the mask set. By what was interrupted, one of three things is done: a faulting user copy is repaired and goes
//! on; a program's registers are copied into its thread's frame, and the core leaves for the runtime; or a
//! broken runtime is reported. Events that come while the mask is set don't get here: they only become pending bits.
#![allow(unsafe_code, reason = "saves and loads all registers, and reads the core's trap")]

use core::mem::offset_of;
use core::sync::atomic::Ordering;

use crate::{NUCLEUS, control};
use atoll_abi::core_local::CoreLocal;
use atoll_abi::frame::{FaultKind, SigContext, Upcall};
use atoll_abi::layout::{HOST_THREAD_SIZE, HOST_THREADS, PAGE, RUNTIME_BASE};
use atoll_abi::nucleus::{TRAP_BUSY, USER_CS, vector};
use atoll_platform_entry::entry;
use atoll_platform_entry::line::Line;
use atoll_platform_entry::upcall::{
    backtrace, capture, half_resumed, in_runtime, leave_for_runtime, program_rip, trespass,
};

/// Extended state that is saved: x87, SSE, AVX, AVX-512, protection keys.
const ALL_STATE: u32 = 0x2e7;
/// Wait status of a cell whose runtime is broken: of a program that SIGSEGV killed, and dumped core.
const BROKEN: i32 = 128 + 11;

core::arch::global_asm!(
    ".pushsection .text.atoll_trap,\"ax\",@progbits",
    // rdi: the core's words, rsi: its trap. The stack begins below the page for extended state.
    ".globl atoll_trap",
    "atoll_trap:",
    "rdgsbase rbp",
    "wrgsbase rdi",
    "mov rbx, rsp",
    "mov r12, rsi",
    "mov qword ptr [rbx + 512], 0",
    "mov qword ptr [rbx + 520], 0",
    "mov eax, {ALL_STATE}",
    "xor edx, edx",
    "xsave64 [rbx]",
    "mov rdx, rbp",
    "mov rcx, rbx",
    "call atoll_trapped",
    // Back to what was interrupted: a copy of the runtime's.
    "mov eax, {ALL_STATE}",
    "xor edx, edx",
    "xrstor64 [rbx]",
    "mov rax, [r12 + {RIP}]",
    "mov gs:[{RESUME_RIP}], rax",
    "push qword ptr [r12 + {RFLAGS}]",
    "popfq",
    "mov rax, [r12 + {RAX}]",
    "mov rbx, [r12 + {RBX}]",
    "mov rcx, [r12 + {RCX}]",
    "mov rdx, [r12 + {RDX}]",
    "mov rsi, [r12 + {RSI}]",
    "mov rdi, [r12 + {RDI}]",
    "mov rbp, [r12 + {RBP}]",
    "mov r8, [r12 + {R8}]",
    "mov r9, [r12 + {R9}]",
    "mov r10, [r12 + {R10}]",
    "mov r11, [r12 + {R11}]",
    "mov r13, [r12 + {R13}]",
    "mov r14, [r12 + {R14}]",
    "mov r15, [r12 + {R15}]",
    "mov rsp, [r12 + {RSP}]",
    "mov r12, [r12 + {R12}]",
    "jmp gs:[{RESUME_RIP}]",
    ".popsection",
    ALL_STATE = const ALL_STATE,
    RESUME_RIP = const offset_of!(CoreLocal, resume_rip),
    RIP = const offset_of!(SigContext, rip),
    RFLAGS = const offset_of!(SigContext, rflags),
    RSP = const offset_of!(SigContext, rsp),
    RAX = const offset_of!(SigContext, rax),
    RBX = const offset_of!(SigContext, rbx),
    RCX = const offset_of!(SigContext, rcx),
    RDX = const offset_of!(SigContext, rdx),
    RSI = const offset_of!(SigContext, rsi),
    RDI = const offset_of!(SigContext, rdi),
    RBP = const offset_of!(SigContext, rbp),
    R8 = const offset_of!(SigContext, r8),
    R9 = const offset_of!(SigContext, r9),
    R10 = const offset_of!(SigContext, r10),
    R11 = const offset_of!(SigContext, r11),
    R12 = const offset_of!(SigContext, r12),
    R13 = const offset_of!(SigContext, r13),
    R14 = const offset_of!(SigContext, r14),
    R15 = const offset_of!(SigContext, r15),
);

unsafe extern "C" {
    fn atoll_trap();
}

/// Address that the nucleus goes to.
pub(crate) fn address() -> u64 {
    atoll_trap as *const () as u64
}

/// The page at the end of a core's trap stack, for the extended state of what was interrupted.
pub(crate) fn state_area(core: usize) -> u64 {
    HOST_THREADS + (core as u64 + 1) * HOST_THREAD_SIZE - PAGE
}

/// Processor exceptions (Intel SDM, volume 3, 6.15).
mod exception {
    pub const DIVIDE: u64 = 0;
    pub const DEBUG: u64 = 1;
    pub const BREAKPOINT: u64 = 3;
    pub const INVALID_OPCODE: u64 = 6;
    pub const GENERAL_PROTECTION: u64 = 13;
    pub const PAGE: u64 = 14;
    pub const FLOATING_POINT: u64 = 16;
    pub const SIMD: u64 = 19;
}

/// Error codes of the general-protection fault of `int 0x80`, that entry of the interrupt table: the processor's, and
/// QEMU's.
const INT_80: [u64; 2] = [0x80 << 3 | 2, 0x80 << 4 | 2];
/// Selector of 32-bit code on Linux. Here it is nothing's.
const CODE_32: u64 = 0x23;

/// Linux's `si_code`s.
const SI_KERNEL: i32 = 0x80;
const FPE_INTDIV: i32 = 1;
const ILL_ILLOPN: i32 = 2;
const TRAP_TRACE: i32 = 2;

/// What a floating-point exception was, by the bits of those that are on and not masked.
fn floating_point(bits: u32) -> i32 {
    // Invalid, divide by zero, overflow, underflow or denormal, inexact.
    [(0x01, 7), (0x04, 3), (0x08, 4), (0x12, 5), (0x20, 6)]
        .iter()
        .find_map(|(bit, code)| (bits & bit != 0).then_some(*code))
        .unwrap_or(0)
}

/// Called by the entry code. Returns to go on with the registers in the trap.
#[unsafe(no_mangle)]
extern "C" fn atoll_trapped(core: &CoreLocal, trap: &mut SigContext, gs: u64, state: u64) {
    let gs = (gs != core as *const CoreLocal as u64).then_some(gs);
    let taken = || control().cores[core.id()].trap[TRAP_BUSY].store(0, Ordering::Release);
    let rip = trap.rip;
    trap.fpstate = state;
    if trap.trap == vector::EVENT && half_resumed(rip) {
        taken();
        // SAFETY: on the core's trap stack, with the mask set by the nucleus.
        unsafe { entry::again() }
    }
    // A thread of the runtime has no program: a stray jump of the runtime's own is no program's fault.
    let program = !core.task.load(Ordering::Relaxed).is_null();
    let at = match trap.trap {
        vector::EVENT => program_rip(rip, core, trap),
        _ if in_runtime(rip) || !program => None,
        _ => Some(rip),
    };
    let Some(at) = at else {
        match (trap.trap, atoll_mem::user::fixup(rip)) {
            (exception::PAGE, Some(to)) => {
                trap.rip = to;
                return taken();
            }
            _ => broken(trap),
        }
    };
    let foreign_call = trap.trap == exception::GENERAL_PROTECTION && INT_80.contains(&trap.error);
    if trap.trap == exception::GENERAL_PROTECTION && trap.error == CODE_32 & !3 {
        // It would be there if there were such code.
        trap.segments = CODE_32;
    }
    let upcall = trespass(gs, trap, USER_CS, foreign_call).unwrap_or_else(|| what(trap, state));
    let frame = capture(core, trap, at);
    taken();
    // SAFETY: on the core's trap stack, frame captured.
    unsafe { leave_for_runtime(core, frame, upcall) }
}

/// What the trap says, of a program.
fn what(trap: &SigContext, state: u64) -> Upcall {
    // What the signal frame says: for some the vector, for others the error code.
    let fault = |kind, addr, si_code| {
        let code = if kind == FaultKind::Protection { trap.error } else { trap.trap };
        Upcall::Fault { kind, addr, code, si_code }
    };
    // SAFETY: an XSAVE image, whose first part is FXSAVE's: control and status words, MXCSR.
    let (control, status, mxcsr) = unsafe {
        let p = state as *const u8;
        (p.cast::<u16>().read(), p.add(2).cast::<u16>().read(), p.add(24).cast::<u32>().read())
    };
    match trap.trap {
        vector::EVENT => Upcall::Event,
        vector::CALL => Upcall::Syscall,
        exception::PAGE => {
            Upcall::Fault { kind: FaultKind::Page, addr: trap.cr2, code: trap.error, si_code: 0 }
        }
        exception::DIVIDE => fault(FaultKind::Arithmetic, trap.rip, FPE_INTDIV),
        exception::FLOATING_POINT => {
            fault(FaultKind::Arithmetic, trap.rip, floating_point(u32::from(status & !control)))
        }
        exception::SIMD => fault(FaultKind::Arithmetic, trap.rip, floating_point(!(mxcsr >> 7) & mxcsr)),
        exception::INVALID_OPCODE => fault(FaultKind::InvalidOpcode, trap.rip, ILL_ILLOPN),
        exception::DEBUG => fault(FaultKind::Debug, trap.rip, TRAP_TRACE),
        exception::BREAKPOINT => fault(FaultKind::Debug, 0, SI_KERNEL),
        _ => fault(FaultKind::Protection, 0, SI_KERNEL),
    }
}

/// The runtime itself faulted: say where, and end the cell.
fn broken(trap: &SigContext) -> ! {
    let mut line = Line::new();
    // It can't fail.
    let _ = core::fmt::write(
        &mut line,
        format_args!(
            "the runtime got exception {} (error {:#x}) at {:#x} (image + {:#x}), address {:#x}, sp {:#x}",
            trap.trap,
            trap.error,
            trap.rip,
            trap.rip.wrapping_sub(RUNTIME_BASE),
            trap.cr2,
            trap.rsp
        ),
    );
    NUCLEUS.log(line.as_str());
    NUCLEUS.log(backtrace(trap).as_str());
    NUCLEUS.end(BROKEN)
}
