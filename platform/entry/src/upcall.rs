//! An interrupted program's registers, from the platform's record to its thread's frame.
#![allow(unsafe_code, reason = "fills a thread's frame, which the core's words point to")]

use core::sync::atomic::Ordering;

use crate::entry;
use crate::line::Line;
use atoll_abi::core_local::{CoreLocal, core_local};
use atoll_abi::frame::{FaultKind, FrameKind, SigContext, Upcall, UserFrame, XSAVE_MAX};
use atoll_abi::layout::{IMAGE_MAX, MAX_CORES, RUNTIME_BASE, TRAMPOLINE_RETURN};

/// The nested-task flag.
const FLAG_NT: u64 = 1 << 14;
/// The trap flag.
pub const FLAG_TF: u64 = 1 << 8;

/// Offset of the size of the saved state in the "software reserved" bytes of the legacy area.
pub const XSTATE_SIZE: usize = 464 + 16;
/// Offset of [`XSTATE_MAGIC`] in it.
pub const XSTATE_MAGIC_AT: usize = 464;
/// Says that the size is there.
pub const XSTATE_MAGIC: u32 = 0x4650_5853;

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
static WAITING: [Waiting; MAX_CORES] =
    [const { Waiting(core::cell::UnsafeCell::new(Upcall::Event)) }; MAX_CORES];

extern "C" fn deliver(frame: &mut UserFrame) {
    // SAFETY: written by this core just now, mask set.
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

/// Leaves the platform's stack for the thread's, and calls the runtime for what happened to the program.
///
/// # Safety
/// `frame` was captured just now; the mask is set, and nothing on the current stack is needed any more.
pub unsafe fn leave_for_runtime(core: &CoreLocal, frame: *mut UserFrame, upcall: Upcall) -> ! {
    // SAFETY: this core's, mask set.
    unsafe { *WAITING[core.id()].0.get() = upcall };
    // SAFETY: the caller's promise.
    unsafe { entry::to_thread_stack(frame, deliver) }
}

/// Is this address in the runtime's own code (and not in the platform's clock code, which programs run)?
pub fn in_runtime(rip: u64) -> bool {
    (RUNTIME_BASE..RUNTIME_BASE + IMAGE_MAX).contains(&rip) && !entry::in_clock(rip)
}

/// What a program did that no program of a cell may do, if it did: changed the GS base (`gs` is what
/// it was then, if that was another), left 64-bit mode (`user_code` is that code's selector), or made a call by the 32-bit gate.
pub fn trespass(gs: Option<u64>, machine: &SigContext, user_code: u64, foreign_call: bool) -> Option<Upcall> {
    let code = machine.segments & 0xffff;
    let (kind, addr) = if code != user_code {
        (FaultKind::CodeSegment, code)
    } else if let Some(gs) = gs {
        (FaultKind::SegmentBase, gs)
    } else if foreign_call {
        (FaultKind::LegacyCall, machine.rax)
    } else {
        return None;
    };
    Some(Upcall::Fault { kind, addr, code: 0, si_code: 0 })
}

/// Was a resume interrupted whose frame is still whole? Then it is to begin again, by [`entry::again`].
pub fn half_resumed(rip: u64) -> bool {
    let marks = entry::landmarks();
    (marks.resume_critical..marks.resume_end).contains(&rip)
}

/// What a trap means that the trap flag caused.
pub enum Stepped {
    /// On the way to the program: it is to be let go on, flag and all.
    OnTheWay,
    /// The program entered the runtime: the flag is to be cleared.
    Entered,
}

/// What a trap by the trap flag means that came at `rip` in the runtime.
pub fn stepped(rip: u64) -> Stepped {
    let marks = entry::landmarks();
    if (marks.resume_critical..marks.resume_end).contains(&rip) {
        Stepped::OnTheWay
    } else {
        Stepped::Entered
    }
}

/// The address at which the program is to go on, if the interrupted state is the program's.
pub fn program_rip(rip: u64, core: &CoreLocal, machine: &SigContext) -> Option<u64> {
    let marks = entry::landmarks();
    if !in_runtime(rip) {
        Some(rip)
    } else if (marks.entry..=marks.entry_commit).contains(&rip) {
        // Start the trampoline over: it begins a fixed way before the address to come back to.
        Some(machine.rcx.wrapping_sub(TRAMPOLINE_RETURN))
    } else if (marks.exit_check..=marks.exit_late).contains(&rip) {
        Some(core.resume_rip.load(Ordering::Relaxed))
    } else {
        None
    }
}

/// Copies the program's registers from the platform's record to its thread's frame, and sets the mask.
///
/// `machine.fpstate` is 0 or the address of an XSAVE image, with its size as Linux's signal frames have it.
pub fn capture(core: &CoreLocal, machine: &SigContext, rip: u64) -> *mut UserFrame {
    core.mask.store(1, Ordering::SeqCst);
    let p = core.frame.load(Ordering::Relaxed);
    // SAFETY: while a thread runs its program, its frame is the platform's.
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
    // Loaded with these, `resume` would trap itself. The trap flag stays if the program was resumed with it, to go by one instruction: else
    // it is a debugger's.
    let steps = f.kind == FrameKind::Full as u32 && f.rflags & FLAG_TF != 0;
    let kept = if steps { FLAG_NT } else { FLAG_TF | FLAG_NT };
    f.rflags = machine.rflags & !kept;
    f.orig_rax = u64::MAX;
    f.kind = FrameKind::Full as u32;
    f.saved_components = 0;
    // SAFETY: reads a register.
    unsafe { core::arch::asm!("rdfsbase {}", out(reg) f.fs_base, options(nomem, nostack)) };
    if machine.fpstate == 0 {
        f.reset_extended();
        return p;
    }
    // SAFETY: there is an FXSAVE image and, behind the magic number, the size of the XSAVE image.
    unsafe {
        let state = machine.fpstate as *const u8;
        let magic = state.add(XSTATE_MAGIC_AT).cast::<u32>().read_unaligned();
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

/// A few return addresses of a runtime that is broken, for whoever reads the log.
pub fn backtrace(machine: &SigContext) -> Line {
    let mut sp = machine.rsp & !7;
    let mut found = 0;
    let mut line = Line::new();
    while found < 12 && sp < (machine.rsp | 0x7fff) {
        // SAFETY: stacks of the runtime are mapped up to their end, 32 KiB aligned.
        let word = unsafe { *(sp as *const u64) };
        if in_runtime(word) {
            // It can't fail.
            let _ = core::fmt::write(&mut line, format_args!(" +{:#x}", word - RUNTIME_BASE));
            found += 1;
        }
        sp += 8;
    }
    line
}
