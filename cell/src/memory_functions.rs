//! memcpy and its family: the compiler calls them, and there is no C library.
//!
//! Baseline instructions only: a program's vector registers are saved on
//! entry as far as SSE2 goes, no farther.
#![allow(unsafe_code, reason = "defines the C memory functions")]

use core::arch::asm;

/// Copies `n` bytes; the areas don't overlap.
///
/// # Safety
/// As C's memcpy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, n: usize) -> *mut u8 {
    // SAFETY: the caller's promise; every branch copies exactly `n` bytes.
    unsafe {
        if n <= 16 {
            small(to, from, n);
        } else if n <= 256 {
            // Overlapping sixteens; the last one ends with the area.
            let mut i = 0;
            while i + 16 <= n {
                to.add(i).cast::<u128>().write_unaligned(from.add(i).cast::<u128>().read_unaligned());
                i += 16;
            }
            let i = n - 16;
            to.add(i).cast::<u128>().write_unaligned(from.add(i).cast::<u128>().read_unaligned());
        } else {
            words(to, from, n);
        }
    }
    to
}

/// Copies forwards, eight bytes at a time: processors don't mind, and those that are emulated take as long for a byte.
#[inline(always)]
unsafe fn words(to: *mut u8, from: *const u8, n: usize) {
    // SAFETY: the caller's promise: `n` bytes, and `to` is not inside `from`.
    unsafe {
        asm!("rep movsq", "mov ecx, edx", "rep movsb", inout("rcx") n / 8 => _, in("rdx") n % 8,
            inout("rdi") to => _, inout("rsi") from => _, options(nostack, preserves_flags));
    }
}

#[inline(always)]
unsafe fn small(to: *mut u8, from: *const u8, n: usize) {
    // SAFETY: the caller's promise: `n` bytes, at most 16. All is read before anything is
    // written, so the areas may overlap.
    unsafe {
        if n >= 8 {
            let a = from.cast::<u64>().read_unaligned();
            let b = from.add(n - 8).cast::<u64>().read_unaligned();
            to.cast::<u64>().write_unaligned(a);
            to.add(n - 8).cast::<u64>().write_unaligned(b);
        } else if n >= 4 {
            let a = from.cast::<u32>().read_unaligned();
            let b = from.add(n - 4).cast::<u32>().read_unaligned();
            to.cast::<u32>().write_unaligned(a);
            to.add(n - 4).cast::<u32>().write_unaligned(b);
        } else if n >= 2 {
            let a = from.cast::<u16>().read_unaligned();
            let b = from.add(n - 2).cast::<u16>().read_unaligned();
            to.cast::<u16>().write_unaligned(a);
            to.add(n - 2).cast::<u16>().write_unaligned(b);
        } else if n == 1 {
            *to = *from;
        }
    }
}

/// Copies `n` bytes; the areas may overlap.
///
/// # Safety
/// As C's memmove.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, n: usize) -> *mut u8 {
    // SAFETY: the caller's promise; the direction is chosen so that no byte is overwritten before it is read.
    unsafe {
        if n <= 16 {
            small(to, from, n);
        } else if (to as usize).wrapping_sub(from as usize) >= n {
            // `to` is not inside `from`: forwards is right.
            words(to, from, n);
        } else {
            asm!("std", "rep movsb", "cld", inout("rcx") n => _, inout("rdi") to.add(n - 1) => _,
                inout("rsi") from.add(n - 1) => _, options(nostack));
        }
    }
    to
}

/// Sets `n` bytes.
///
/// # Safety
/// As C's memset.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memset(to: *mut u8, byte: i32, n: usize) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe {
        if n < 32 {
            let mut i = 0;
            while i < n {
                // Volatile, or the compiler makes a call to memset of it.
                to.add(i).write_volatile(byte as u8);
                i += 1;
            }
        } else {
            // The last eight bytes may have been set before.
            let eight = u64::from(byte as u8) * 0x0101_0101_0101_0101;
            asm!("rep stosq", inout("rcx") n / 8 => _, inout("rdi") to => _, in("rax") eight,
                options(nostack, preserves_flags));
            to.add(n - 8).cast::<u64>().write_unaligned(eight);
        }
    }
    to
}

/// Compares `n` bytes.
///
/// # Safety
/// As C's memcmp.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
    let mut i = 0;
    // SAFETY: the caller's promise: both areas have `n` bytes.
    unsafe {
        while i + 8 <= n {
            let (x, y) = (a.add(i).cast::<u64>().read_unaligned(), b.add(i).cast::<u64>().read_unaligned());
            if x != y {
                return if x.swap_bytes() < y.swap_bytes() { -1 } else { 1 };
            }
            i += 8;
        }
        while i < n {
            let (x, y) = (a.add(i).read_volatile(), b.add(i).read_volatile());
            if x != y {
                return i32::from(x) - i32::from(y);
            }
            i += 1;
        }
    }
    0
}

/// Are `n` bytes different?
///
/// # Safety
/// As C's bcmp.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { memcmp(a, b, n) }
}

/// Length of a C string.
///
/// # Safety
/// As C's strlen.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strlen(s: *const u8) -> usize {
    let mut n = 0;
    // SAFETY: the caller's promise: a zero byte ends it.
    while unsafe { s.add(n).read_volatile() } != 0 {
        n += 1;
    }
    n
}
