//! The program's extended registers: what the runtime leaves in place until another program's thread runs.
#![allow(unsafe_code, reason = "saves registers")]

use atoll_abi::frame::{UserFrame, XSAVE_MAX, XSAVE_OFFSET};
use core::arch::x86_64::{__cpuid, __cpuid_count};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Components of the extended state that the runtime's own code never
/// changes, and so stay in the registers while it runs: x87, AVX's upper
/// halves, AVX-512's masks and upper parts. Not SSE, which entry saves.
const LIVE: u64 = 0b1110_0101;

const X87: u64 = 1;
const AVX: u64 = 1 << 2;
const OPMASK: u64 = 1 << 5;
const ZMM_HI256: u64 = 1 << 6;
const HI16_ZMM: u64 = 1 << 7;
const AVX512: u64 = OPMASK | ZMM_HI256 | HI16_ZMM;

static HAS_XGETBV1: AtomicBool = AtomicBool::new(false);
/// The processor says of components that are initial that they are in use, as it may (SDM 13.6), and as
/// emulated ones do.
static UNTRACKED: AtomicBool = AtomicBool::new(false);
/// Components that plain moves save and restore. A C library that uses AVX-512 for strings (glibc's evex functions)
/// leaves OPMASK and HI16_ZMM in use in every program for good, and XSAVE and XRSTOR of these take five times as long.
static MOVED: AtomicU64 = AtomicU64::new(0);
/// Where OPMASK, ZMM_HI256 and HI16_ZMM are in an area of XSAVE's standard format; AVX's place is the same everywhere.
static AVX512_AT: [AtomicU32; 3] = [const { AtomicU32::new(0) }; 3];
const AVX_AT: usize = 576;

/// Finds out which extended state there is. Once, at boot. Value: the
/// components that are on, and the size of their area; None if it is larger than a frame can hold.
pub fn detect() -> Option<(u64, u32)> {
    let leaf1 = __cpuid(1);
    if leaf1.ecx & (1 << 27) == 0 {
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
    let area = end as usize <= XSAVE_MAX;
    let leaf7 = __cpuid_count(7, 0).ebx;
    // AVX512F, AVX512BW (64 bits of a mask), AVX512VL.
    let avx512 = [16, 30, 31].iter().all(|bit| leaf7 & (1 << bit) != 0);
    if area && avx512 && xcr0 & (AVX | AVX512) == AVX | AVX512 {
        for (component, at) in (5..8).zip(&AVX512_AT) {
            at.store(__cpuid_count(0xd, component).ebx, Ordering::Relaxed);
        }
        MOVED.store(AVX | AVX512, Ordering::Relaxed);
    } else if area && xcr0 & AVX != 0 {
        MOVED.store(AVX, Ordering::Relaxed);
    }
    area.then_some((xcr0, end))
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

/// One instruction for each of the registers whose numbers are given, between the parts of whose text the number stands.
macro_rules! each {
    ($text:tt, $($number:literal)*; $($operands:tt)*) => {
        core::arch::asm!($(each!(@ $number $text),)* $($operands)* options(nostack))
    };
    (@ $n:literal [$a:literal, $b:literal, $c:literal]) => { concat!($a, $n, $b, $n, $c) };
    (@ $n:literal [$a:literal, $b:literal, $c:literal, $d:literal]) => { concat!($a, $n, $b, $n, $c, $n, $d) };
}

fn avx512_at(area: usize, component: u64) -> usize {
    area + AVX512_AT[component.trailing_zeros() as usize - 5].load(Ordering::Relaxed) as usize
}

/// Writes those of [`MOVED`]'s components that `mask` names to an area of XSAVE's standard format.
///
/// # Safety
/// `area` has room for them, and the processor has them.
#[inline]
unsafe fn move_out(area: *mut u8, mask: u64) {
    let area = area as usize;
    // SAFETY: the caller's promise. No register is changed.
    unsafe {
        if mask & AVX != 0 {
            each!(["vextractf128 [{area} + 16*", "], ymm", ", 1"], 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; area = in(reg) area + AVX_AT,);
        }
        if mask & OPMASK != 0 {
            each!(["kmovq [{area} + 8*", "], k", ""], 0 1 2 3 4 5 6 7; area = in(reg) avx512_at(area, OPMASK),);
        }
        if mask & ZMM_HI256 != 0 {
            each!(["vextractf64x4 [{area} + 32*", "], zmm", ", 1"], 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; area = in(reg) avx512_at(area, ZMM_HI256),);
        }
        if mask & HI16_ZMM != 0 {
            each!(["vmovdqu64 [{area} + 64*(", " - 16)], zmm", ""], 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31; area = in(reg) avx512_at(area, HI16_ZMM),);
        }
    }
}

/// Loads what [`move_out`] wrote, the components `saved`; of the others, those of `used` become zero, as they are initially.
///
/// # Safety
/// As of [`move_out`], which has written to the area.
#[inline]
unsafe fn move_in(area: *const u8, saved: u64, used: u64) {
    let area = area as usize;
    let either = saved | used;
    // SAFETY: the caller's promise. xmm0 to xmm15 stay as they are, and the compiler uses no others.
    unsafe {
        if either & (AVX | ZMM_HI256) != 0 {
            // Both components at once. To insert into ymm registers clears the halves above them, too: these come last.
            core::arch::asm!("vzeroupper", options(nostack, nomem));
            if saved & AVX != 0 {
                each!(["vinsertf128 ymm", ", ymm", ", [{area} + 16*", "], 1"], 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; area = in(reg) area + AVX_AT,);
            }
            if saved & ZMM_HI256 != 0 {
                each!(["vinsertf64x4 zmm", ", zmm", ", [{area} + 32*", "], 1"], 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; area = in(reg) avx512_at(area, ZMM_HI256),);
            }
        }
        if saved & OPMASK != 0 {
            each!(["kmovq k", ", [{area} + 8*", "]"], 0 1 2 3 4 5 6 7; area = in(reg) avx512_at(area, OPMASK),);
        } else if either & OPMASK != 0 {
            each!(["kxorq k", ", k", ", k", ""], 0 1 2 3 4 5 6 7;);
        }
        if saved & HI16_ZMM != 0 {
            each!(["vmovdqu64 zmm", ", [{area} + 64*(", " - 16)]"], 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31; area = in(reg) avx512_at(area, HI16_ZMM),);
        } else if either & HI16_ZMM != 0 {
            each!(["vpxord xmm", ", xmm", ", xmm", ""], 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31;);
        }
    }
}

/// Saves what of a program's extended state is in the registers, for a frame
/// taken at a rewritten site (its xmm0-15 are saved already). Value: what it leaves in the registers.
#[inline]
pub(crate) fn save(frame: &mut UserFrame) -> Left {
    let mask = in_use();
    // XSAVE leaves bits of components that are not asked for; the area must say nothing of them.
    frame.xsave[64] = 0;
    frame.xsave[65] = 0;
    if mask & !MOVED.load(Ordering::Relaxed) == 0 {
        frame.xsave[64] = mask;
        // SAFETY: as below; the components are there.
        unsafe { move_out((&raw mut frame.xsave).cast(), mask) };
    } else if mask != 0 {
        // SAFETY: the area is large enough ([`detect`]) and aligned (`UserFrame`).
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

/// Puts back what [`save`] saved; components that were not in use become initial. `left`: what is in the registers
/// now, if that is known.
#[inline]
pub(crate) fn restore(frame: &UserFrame, left: Option<Left>) {
    let components = left.map_or_else(in_use, |left| left.components);
    let saved = u64::from(frame.saved_components);
    let moved = (saved | components) & !MOVED.load(Ordering::Relaxed) == 0;
    if moved {
        // SAFETY: the area was written by `save`.
        unsafe { move_in((&raw const frame.xsave).cast(), saved, components) };
        if left.is_some_and(|left| left.control == frame.reserved[0]) {
            return;
        }
    } else {
        // SAFETY: the area was written by `save`, or its header says that all is initial.
        unsafe {
            core::arch::asm!("xrstor64 [{}]", in(reg) (&raw const *frame).cast::<u8>().add(XSAVE_OFFSET),
                in("eax") LIVE as u32, in("edx") 0, options(nostack, readonly));
        }
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

/// Makes a frame complete: a full xsave area from xmm0-15 as entry saved them
/// and the rest as it is in the registers. For frames taken at a rewritten
/// site of the current thread, whose live state is in the registers.
pub fn capture(frame: &mut UserFrame) {
    save(frame);
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::boxed::Box;
    use std::vec::Vec;

    #[test]
    fn extended_state_survives_a_switch() {
        assert!(detect().is_some());
        if !std::is_x86_feature_detected!("avx") {
            return;
        }
        let mut frame = Box::new(UserFrame::new());
        let value: [u64; 4] = [1, 2, 3, 4];
        let mut out = [0u64; 4];
        // SAFETY: saves and restores through the functions under test, with no call in between that uses AVX.
        unsafe {
            core::arch::asm!("vmovups ymm0, [{}]", in(reg) &raw const value, out("xmm0") _, options(nostack));
            save(&mut frame);
            core::arch::asm!("vzeroall", clobber_abi("C"), options(nostack));
            restore(&frame, None);
            core::arch::asm!("vmovups [{}], ymm0", "vzeroupper", in(reg) &raw mut out, out("xmm0") _, options(nostack));
        }
        assert_eq!(out[2..], value[2..], "upper halves are kept by XSAVE");
        assert!(frame.saved_components & 4 != 0);
    }

    #[repr(align(64))]
    struct Area([u64; XSAVE_MAX / 8]);

    /// An area that says of `components` that all their bytes are `byte`, of x87 that its first register has such.
    fn area_of(components: u64, byte: u8) -> Box<Area> {
        let mut area = Box::new(Area([0; XSAVE_MAX / 8]));
        area.0[0] = 0x37f;
        area.0[3] = 0x1f80;
        area.0[64] = components;
        let word = u64::from_ne_bytes([byte; 8]);
        if components & X87 != 0 {
            area.0[4] = word;
            area.0[5] = u64::from(byte);
        }
        for component in (2..8).filter(|c| components & (1 << c) != 0) {
            let leaf = __cpuid_count(0xd, component);
            area.0[leaf.ebx as usize / 8..][..leaf.eax as usize / 8].fill(word);
        }
        area
    }

    /// Every set of components in use before and after: what was saved is there again, and nothing else.
    #[test]
    fn each_component_is_exchanged() {
        let Some((xcr0, _)) = detect() else { return };
        if xcr0 & AVX == 0 || !HAS_XGETBV1.load(Ordering::Relaxed) {
            return;
        }
        let there = xcr0 & LIVE;
        let mut frame = Box::new(UserFrame::new());
        let mut other = Box::new(UserFrame::new());
        for (saved, used) in (0..256u64).flat_map(|s| (0..256).map(move |u| (s, u))) {
            if (saved | used) & !there != 0 {
                continue;
            }
            for told in [true, false] {
                let (mine, others) = (area_of(saved, 0x5a), area_of(used, 0xc3));
                let mut after = area_of(0, 0);
                let load = |area: &Area| {
                    // SAFETY: an area as XSAVE makes it. What of SSE belongs to other components isn't the compiler's.
                    unsafe {
                        core::arch::asm!("xrstor64 [{}]", in(reg) area, in("eax") there as u32, in("edx") 0,
                            options(nostack, readonly));
                    }
                };
                load(&mine);
                save(&mut frame);
                load(&others);
                let left = save(&mut other);
                restore(&frame, told.then_some(left));
                // SAFETY: writes to an area that is large enough.
                unsafe {
                    core::arch::asm!("xsave64 [{}]", in(reg) &raw mut *after, in("eax") there as u32, in("edx") 0,
                        options(nostack));
                }
                load(&area_of(0, 0));
                for component in (0..8).filter(|c| there & (1 << c) != 0) {
                    let (at, size) = match component {
                        0 => (32, 16),
                        c => {
                            let leaf = __cpuid_count(0xd, c);
                            (leaf.ebx as usize, leaf.eax as usize)
                        }
                    };
                    let part = |area: &Area| area.0[at / 8..][..size / 8].to_vec();
                    assert_eq!(
                        part(&after),
                        part(&mine),
                        "{component} of {saved:#x}, {used:#x} before, {told}"
                    );
                }
            }
        }
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
}
