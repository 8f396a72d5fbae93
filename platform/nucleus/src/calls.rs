//! The nucleus's calls, bare, and what the processor answers without one.
#![allow(unsafe_code, reason = "makes nucleus calls")]

use core::arch::asm;
use core::arch::x86_64::{__cpuid, _rdtsc};

use atoll_abi::errno::{Errno, Result};
use atoll_abi::nucleus::NOT_YET;

/// Longest text of a call, bytes.
pub const LINE_MAX: usize = 1024;

/// Makes a call, again if another core is in the middle of one: other threads run meanwhile.
pub fn call(number: u64, arguments: [u64; 4]) -> Result<u64> {
    insist(|| try_call(number, arguments))
}

/// The same of somebody's own way to make it.
pub fn insist(mut call: impl FnMut() -> Result<u64>) -> Result<u64> {
    loop {
        match call() {
            Err(NOT_YET) => atoll_sync::relax(),
            done => return done,
        }
    }
}

/// Makes it once. It reads memory that arguments point to, writes only where one says so ([`atoll_abi::nucleus::call::PAGE_BITS`]), and
/// changes only mappings of programs.
pub fn try_call(number: u64, [a, b, c, d]: [u64; 4]) -> Result<u64> {
    let ret: i64;
    // SAFETY: the nucleus checks everything, and overwrites no memory of the runtime but what the caller has for that; the registers
    // that it may change are named.
    unsafe {
        asm!("syscall", inlateout("rax") number => ret, inlateout("rdi") a => _, inlateout("rsi") b => _,
            inlateout("rdx") c => _, inlateout("r10") d => _, lateout("rcx") _, lateout("r11") _,
            lateout("r8") _, lateout("r9") _, lateout("xmm0") _, lateout("xmm1") _, lateout("xmm2") _,
            lateout("xmm3") _, lateout("xmm4") _, lateout("xmm5") _, lateout("xmm6") _, lateout("xmm7") _,
            lateout("xmm8") _, lateout("xmm9") _, lateout("xmm10") _, lateout("xmm11") _, lateout("xmm12") _,
            lateout("xmm13") _, lateout("xmm14") _, lateout("xmm15") _, options(nostack));
    }
    Errno::from_ret(ret)
}

/// The time-stamp counter.
pub fn counter() -> u64 {
    // SAFETY: only reads; the fence keeps it from being read ahead.
    unsafe {
        core::arch::x86_64::_mm_lfence();
        _rdtsc()
    }
}

/// What the core's first counter says. Only where the nucleus has had it count: else ring 3 may not read it.
pub fn event_counter() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: only reads, where that is no exception.
    unsafe {
        asm!("rdpmc", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags))
    };
    u64::from(high) << 32 | u64::from(low)
}

/// Random bytes from the processor. The nucleus starts no runtime where it has none.
pub fn random(out: &mut [u8]) {
    for chunk in out.chunks_mut(8) {
        let mut value: u64 = 0;
        let mut good: u8 = 0;
        while good == 0 {
            // SAFETY: writes two registers.
            unsafe {
                asm!("rdrand {}", "setc {}", out(reg) value, out(reg_byte) good, options(nomem, nostack));
            }
        }
        let _ = value;
        chunk.copy_from_slice(&value.to_le_bytes()[..chunk.len()]);
    }
}

/// Does the processor have what [`random`] needs?
pub fn has_random() -> bool {
    __cpuid(1).ecx & 1 << 30 != 0
}
