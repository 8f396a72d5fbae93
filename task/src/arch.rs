//! Switching stacks and the program's extended registers on x86-64.
#![allow(unsafe_code, reason = "switches stacks and saves registers")]

use alloc::boxed::Box;
use atoll_abi::frame::{UserFrame, XSAVE_MAX, XSAVE_OFFSET};
use core::alloc::Layout;
use core::arch::x86_64::{__cpuid, __cpuid_count};
use core::sync::atomic::{AtomicBool, Ordering};

core::arch::global_asm!(
    ".pushsection .text.atoll_switch,\"ax\",@progbits",
    // rdi: where to keep this stack pointer; rsi: the stack to go on with.
    ".globl atoll_switch",
    "atoll_switch:",
    "push rbp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "mov [rdi], rsp",
    ".globl atoll_load",
    "atoll_load_rsi:",
    "mov rsp, rsi",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
    "ret",
    // rdi: the stack to go on with; nothing is kept.
    "atoll_load:",
    "mov rsi, rdi",
    "jmp atoll_load_rsi",
    // rdi: where to keep this stack pointer; rsi(rdx): function to call here, which does not return.
    ".globl atoll_save_and_call",
    "atoll_save_and_call:",
    "push rbp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "mov [rdi], rsp",
    "mov rdi, rdx",
    "sub rsp, 8",
    "call rsi",
    "ud2",
    // First instruction of a thread: r12 is the function, r13 its argument.
    ".globl atoll_thread_start",
    "atoll_thread_start:",
    "mov rdi, r13",
    "xor ebp, ebp",
    "call r12",
    "ud2",
    ".popsection",
);

unsafe extern "C" {
    /// Goes on with the thread whose stack pointer is `load`; returns when somebody loads `*save`.
    pub(crate) fn atoll_switch(save: *mut usize, load: usize);
    pub(crate) fn atoll_load(load: usize) -> !;
    pub(crate) fn atoll_save_and_call(save: *mut usize, f: extern "C" fn(usize) -> !, argument: usize);
    fn atoll_thread_start();
}

/// Prepares a stack so that loading it calls `f(argument)`.
///
/// # Safety
/// `top` is the 16-byte aligned end of a writable stack.
pub(crate) unsafe fn prepare(top: *mut u8, f: extern "C" fn(usize) -> !, argument: usize) -> usize {
    let frame: [usize; 9] =
        [0, 0, argument, f as *const () as usize, 0, 0, atoll_thread_start as *const () as usize, 0, 0];
    // r15, r14, r13 = argument, r12 = f, rbx, rbp, return address, and two words that keep the alignment.
    let rsp = top as usize - size_of_val(&frame);
    // SAFETY: the caller's promise.
    unsafe { (rsp as *mut [usize; 9]).write(frame) };
    rsp
}

/// Components of the extended state that the runtime's own code never
/// changes, and so stay in the registers while it runs: x87, AVX's upper
/// halves, AVX-512's masks and upper parts. Not SSE, which entry saves.
const LIVE: u64 = 0b1110_0101;

/// Those that a look at the registers themselves tells of: x87, AVX.
const X87: u64 = 0b001;
const AVX: u64 = 0b100;

static HAS_XGETBV1: AtomicBool = AtomicBool::new(false);
static HAS_XSAVE: AtomicBool = AtomicBool::new(false);
/// The processor says of components that are initial that they are in use, as it may (SDM 13.6), and as
/// emulated ones do.
static UNTRACKED: AtomicBool = AtomicBool::new(false);

/// Finds out which extended state there is. Once, at boot. Value: the
/// components that are on, and the size of their area; None if it is larger than a frame can hold.
pub fn detect_extended() -> Option<(u64, u32)> {
    let leaf1 = __cpuid(1);
    let xsave = leaf1.ecx & (1 << 27) != 0;
    HAS_XSAVE.store(xsave, Ordering::Relaxed);
    if !xsave {
        return None;
    }
    HAS_XGETBV1.store(__cpuid_count(0xd, 1).eax & (1 << 2) != 0, Ordering::Relaxed);
    // The farthest component that we keep (PKRU, 9, comes after AVX-512).
    let xcr0 = xgetbv(0);
    let mut end = 576;
    for component in 2..10 {
        if xcr0 & (1 << component) != 0 {
            let leaf = __cpuid_count(0xd, component);
            end = end.max(leaf.ebx + leaf.eax);
        }
    }
    if HAS_XGETBV1.load(Ordering::Relaxed) && xcr0 & LIVE == X87 | AVX {
        let mut initial = UserFrame::new();
        initial.xsave[64] = 0;
        // SAFETY: the area's header says that all is initial, and no program's state is in the registers yet.
        unsafe {
            core::arch::asm!("xrstor64 [{}]", in(reg) (&raw const initial).cast::<u8>().add(XSAVE_OFFSET),
                in("eax") LIVE as u32, in("edx") 0, options(nostack, readonly));
        }
        UNTRACKED.store(xgetbv(1) & LIVE != 0, Ordering::Relaxed);
    }
    (end as usize <= XSAVE_MAX).then_some((xcr0, end))
}

fn xgetbv(register: u32) -> u64 {
    let (lo, hi): (u32, u32);
    // SAFETY: only reads; called when XSAVE is there.
    unsafe {
        core::arch::asm!("xgetbv", in("ecx") register, out("eax") lo, out("edx") hi, options(nomem, nostack));
    }
    u64::from(hi) << 32 | u64::from(lo)
}

/// Components that are in use in the registers now.
fn in_use() -> u64 {
    if UNTRACKED.load(Ordering::Relaxed) {
        looked_at()
    } else if HAS_XGETBV1.load(Ordering::Relaxed) {
        xgetbv(1) & LIVE
    } else {
        xgetbv(0) & LIVE
    }
}

/// Which of x87 and AVX are not initial, but for the control word: XSAVE and XRSTOR of both take longer than this.
fn looked_at() -> u64 {
    let mut environment = [0u64; 4];
    let mut upper = [0u64; 2];
    let used: u64;
    // SAFETY: FNSTENV stores 28 bytes and masks all exceptions, which loading the control word again undoes. Of the 16
    // registers, only ymm15 is changed, and only if its upper half is zero, which it is again at the end; its lower half
    // is xmm15.
    unsafe {
        core::arch::asm!(
            "fnstenv [{environment}]",
            "fldcw [{environment}]",
            "vextractf128 [{upper}], ymm15, 1",
            "mov {used}, [{upper}]",
            "or {used}, [{upper} + 8]",
            "jnz 2f",
            "vorps ymm15, ymm0, ymm1",
            "vorps ymm15, ymm15, ymm2",
            "vorps ymm15, ymm15, ymm3",
            "vorps ymm15, ymm15, ymm4",
            "vorps ymm15, ymm15, ymm5",
            "vorps ymm15, ymm15, ymm6",
            "vorps ymm15, ymm15, ymm7",
            "vorps ymm15, ymm15, ymm8",
            "vorps ymm15, ymm15, ymm9",
            "vorps ymm15, ymm15, ymm10",
            "vorps ymm15, ymm15, ymm11",
            "vorps ymm15, ymm15, ymm12",
            "vorps ymm15, ymm15, ymm13",
            "vorps ymm15, ymm15, ymm14",
            "vextractf128 [{upper}], ymm15, 1",
            "vxorps xmm15, xmm15, xmm15",
            "mov {used}, [{upper}]",
            "or {used}, [{upper} + 8]",
            "2:",
            environment = in(reg) environment.as_mut_ptr(),
            upper = in(reg) upper.as_mut_ptr(),
            used = out(reg) used,
            out("xmm15") _,
            options(nostack)
        );
    }
    // Empty, no register on top but the first, no exception noted: half words of double words.
    let (status, tags) = ((environment[0] >> 32) as u16, environment[1] as u16);
    let x87 = status | !tags != 0;
    (u64::from(x87) * X87) | (u64::from(used != 0) * AVX)
}

/// What of the extended state a program has left in the registers.
#[derive(Clone, Copy)]
pub(crate) struct Left {
    /// Components that are in use.
    components: u64,
    /// Both control words, as frames have them.
    control: u64,
}

/// Saves what of a program's extended state is in the registers, for a frame
/// taken at a rewritten site (its xmm0-15 are saved already). Value: what it leaves in the registers.
#[inline]
pub(crate) fn save_live(frame: &mut UserFrame) -> Left {
    let mask = in_use();
    // XSAVE leaves bits of components that are not asked for; the area must say nothing of them.
    frame.xsave[64] = 0;
    frame.xsave[65] = 0;
    if mask != 0 {
        // SAFETY: the area is large enough (`detect_extended`) and aligned (`UserFrame`).
        unsafe {
            core::arch::asm!("xsave64 [{}]", in(reg) (&raw mut *frame).cast::<u8>().add(XSAVE_OFFSET),
                in("eax") mask as u32, in("edx") (mask >> 32) as u32, options(nostack));
        }
    }
    frame.saved_components = mask as u32;
    let (mut mxcsr, mut fcw) = (0u32, 0u16);
    // SAFETY: stores the two control words.
    unsafe {
        core::arch::asm!("stmxcsr [{}]", "fnstcw [{}]", in(reg) &raw mut mxcsr, in(reg) &raw mut fcw, options(nostack));
    }
    frame.reserved[0] = u64::from(mxcsr) | u64::from(fcw) << 32;
    Left { components: mask, control: frame.reserved[0] }
}

/// Puts back what [`save_live`] saved; components that were not in use become initial. `left`: what is in the registers
/// now, if that is known.
#[inline]
pub(crate) fn restore_live(frame: &UserFrame, left: Option<Left>) {
    let components = left.map_or_else(in_use, |left| left.components);
    if frame.saved_components != 0 || components != 0 {
        // SAFETY: the area was written by `save_live`, or its header says that all is initial.
        unsafe {
            core::arch::asm!("xrstor64 [{}]", in(reg) (&raw const *frame).cast::<u8>().add(XSAVE_OFFSET),
                in("eax") LIVE as u32, in("edx") 0, options(nostack, readonly));
        }
    } else if left.is_some_and(|left| left.control == frame.reserved[0]) {
        return;
    }
    let mxcsr = frame.reserved[0] as u32;
    if frame.saved_components & 1 == 0 {
        let fcw = (frame.reserved[0] >> 32) as u16;
        // SAFETY: a control word that was in use before.
        unsafe { core::arch::asm!("fldcw [{}]", in(reg) &raw const fcw, options(nostack, readonly)) };
    }
    // SAFETY: as above.
    unsafe { core::arch::asm!("ldmxcsr [{}]", in(reg) &raw const mxcsr, options(nostack, readonly)) };
}

/// A copy of a frame, made where it is to lie: it is large for a stack. None: no memory.
pub fn copy_of(frame: &UserFrame) -> Option<Box<UserFrame>> {
    // SAFETY: fresh memory of that layout, which is written as a whole before it is a box's.
    unsafe {
        let copy = alloc::alloc::alloc(Layout::new::<UserFrame>()).cast::<UserFrame>();
        if copy.is_null() {
            return None;
        }
        copy.copy_from_nonoverlapping(frame, 1);
        Some(Box::from_raw(copy))
    }
}

/// Makes a frame complete: a full xsave area from xmm0-15 as entry saved them
/// and the rest as it is in the registers. For frames taken at a rewritten
/// site of the current thread, whose live state is in the registers.
pub fn capture_extended(frame: &mut UserFrame) {
    save_live(frame);
    let mxcsr = frame.reserved[0] as u32;
    if frame.saved_components & 1 == 0 {
        // x87 is initial but for its control word; write the legacy area so that it can be loaded whole.
        frame.xsave[..20].fill(0);
        frame.xsave[0] = frame.reserved[0] >> 32;
    }
    frame.xsave[3] = u64::from(mxcsr) | 0xffff << 32;
    for (i, xmm) in frame.xmm.iter().enumerate() {
        frame.xsave[20 + i * 2] = xmm[0];
        frame.xsave[21 + i * 2] = xmm[1];
    }
    frame.xsave[64] = u64::from(frame.saved_components) | 3;
    // Entry saves the trap flag of a debugger that steps through it. It is not the program's.
    frame.rflags &= !0x100;
}

/// The program's thread pointer.
pub fn fs_base() -> u64 {
    let fs: u64;
    // SAFETY: reads a register; the platform requires FSGSBASE.
    unsafe { core::arch::asm!("rdfsbase {}", out(reg) fs, options(nomem, nostack)) };
    fs
}

/// Sets the program's thread pointer.
pub fn set_fs_base(fs: u64) {
    // SAFETY: the runtime itself does not use FS.
    unsafe { core::arch::asm!("wrfsbase {}", in(reg) fs, options(nomem, nostack)) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::boxed::Box;
    use std::vec::Vec;

    #[test]
    fn extended_state_survives_a_switch() {
        assert!(detect_extended().is_some());
        if !std::is_x86_feature_detected!("avx") {
            return;
        }
        let mut frame = Box::new(UserFrame::new());
        let value: [u64; 4] = [1, 2, 3, 4];
        let mut out = [0u64; 4];
        // SAFETY: saves and restores through the functions under test, with no call in between that uses AVX.
        unsafe {
            core::arch::asm!("vmovups ymm0, [{}]", in(reg) &raw const value, out("xmm0") _, options(nostack));
            save_live(&mut frame);
            core::arch::asm!("vzeroall", clobber_abi("C"), options(nostack));
            restore_live(&frame, None);
            core::arch::asm!("vmovups [{}], ymm0", "vzeroupper", in(reg) &raw mut out, out("xmm0") _, options(nostack));
        }
        assert_eq!(out[2..], value[2..], "upper halves are kept by XSAVE");
        assert!(frame.saved_components & 4 != 0);
    }

    /// What the look at the registers says of state that a processor would not tell of.
    #[test]
    fn registers_are_looked_at() {
        if !std::is_x86_feature_detected!("avx") {
            return;
        }
        let mut seen = Vec::new();
        let mut words = [0u16; 2];
        // SAFETY: changes registers that may be changed, and puts x87 back to its initial state.
        unsafe {
            core::arch::asm!("fninit", "vzeroall", clobber_abi("C"), options(nostack));
            seen.push(looked_at());
            core::arch::asm!("fld1", out("st(0)") _, options(nostack));
            seen.push(looked_at());
            core::arch::asm!("fstp st(0)", "pcmpeqd xmm15, xmm15", out("xmm15") _, options(nostack));
            seen.push(looked_at());
            core::arch::asm!(
                "pcmpeqd xmm15, xmm15",
                "vinsertf128 ymm15, ymm15, xmm15, 1",
                out("xmm15") _,
                options(nostack)
            );
            seen.push(looked_at());
            // Division by zero is noted, but not raised: a control word of the program's own.
            core::arch::asm!(
                "vzeroall",
                "fld1",
                "fldz",
                "fdivp st(1), st",
                "fstp st(0)",
                clobber_abi("C"),
                options(nostack)
            );
            seen.push(looked_at());
            let single = 0x07fu16;
            core::arch::asm!("fninit", "fldcw [{}]", in(reg) &raw const single, options(nostack));
            seen.push(looked_at());
            core::arch::asm!("fnstcw [{}]", "fninit", in(reg) words.as_mut_ptr(), options(nostack));
        }
        // What pcmpeqd left in ymm15 has a zero upper half, unless somebody used it before: vzeroall was.
        assert_eq!(seen, [0, X87, 0, AVX, X87, 0]);
        assert_eq!(words[0], 0x07f);
    }

    #[test]
    fn switches_back_and_forth() {
        static LOG: std::sync::Mutex<Vec<usize>> = std::sync::Mutex::new(Vec::new());
        static mut MAIN: usize = 0;
        static mut OTHER: usize = 0;
        extern "C" fn other(argument: usize) -> ! {
            for i in 0.. {
                LOG.lock().unwrap().push(argument + i);
                // SAFETY: MAIN is the test's own saved stack.
                unsafe { atoll_switch(&raw mut OTHER, MAIN) };
            }
            unreachable!()
        }
        let stack = Box::leak(std::vec![0u128; 8192].into_boxed_slice());
        // SAFETY: a fresh stack; the two alternate.
        unsafe {
            OTHER = prepare(stack.as_mut_ptr_range().end.cast(), other, 10);
            for _ in 0..3 {
                atoll_switch(&raw mut MAIN, OTHER);
            }
        }
        assert_eq!(*LOG.lock().unwrap(), [10, 11, 12]);
    }
}
