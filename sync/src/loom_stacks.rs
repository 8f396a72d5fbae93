//! Stacks for loom's threads that are used again.
//!
//! Loom runs a model's threads as coroutines, and maps, protects and unmaps a stack for each of them in each execution, tens of thousands
//! of times a second: on a machine whose page tables are expensive nine tenths of the time. These are found by its crates in place of the C
//! library's, and keep what is given back. The C library's own calls don't come here.
#![allow(unsafe_code, reason = "stands in for functions of the C library")]

use core::ffi::{c_int, c_long, c_void};
use std::sync::{Mutex, PoisonError};

/// Of `asm/unistd_64.h`, `bits/mman-map-flags-generic.h`.
const SYS_MMAP: c_long = 9;
const SYS_MPROTECT: c_long = 10;
const SYS_MUNMAP: c_long = 11;
const MAP_STACK: c_int = 0x20000;

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
}

/// A stack that was mapped here.
#[derive(Clone, Copy)]
struct Stack {
    at: usize,
    len: usize,
    /// Its lowest page is protected already.
    is_guarded: bool,
    is_used: bool,
}

/// As many as a few models that run at once have threads; more are mapped and unmapped.
static STACKS: Mutex<[Option<Stack>; 64]> = Mutex::new([None; 64]);

fn with<R>(f: impl FnOnce(&mut [Option<Stack>; 64]) -> R) -> R {
    f(&mut STACKS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// `mmap(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn mmap(
    at: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: c_long,
) -> *mut c_void {
    let map = || {
        // SAFETY: as the caller's.
        unsafe { syscall(SYS_MMAP, at, len, protection, flags, fd, offset) as *mut c_void }
    };
    if flags & MAP_STACK == 0 || !at.is_null() {
        return map();
    }
    with(|stacks| {
        if let Some(stack) = stacks.iter_mut().flatten().find(|s| !s.is_used && s.len == len) {
            stack.is_used = true;
            return stack.at as *mut c_void;
        }
        let new = map();
        if new as isize != -1
            && let Some(place) = stacks.iter_mut().find(|s| s.is_none())
        {
            *place = Some(Stack { at: new as usize, len, is_guarded: false, is_used: true });
        }
        new
    })
}

/// `mprotect(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn mprotect(at: *mut c_void, len: usize, protection: c_int) -> c_int {
    let is_done = with(|stacks| {
        let stack = stacks.iter_mut().flatten().find(|s| s.at == at as usize);
        stack.is_some_and(|s| core::mem::replace(&mut s.is_guarded, true))
    });
    if is_done {
        return 0;
    }
    // SAFETY: as the caller's.
    unsafe { syscall(SYS_MPROTECT, at, len, protection) as c_int }
}

/// `munmap(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(at: *mut c_void, len: usize) -> c_int {
    let is_kept = with(|stacks| {
        let stack = stacks.iter_mut().flatten().find(|s| s.at == at as usize && s.len == len);
        stack.map(|s| s.is_used = false).is_some()
    });
    if is_kept {
        return 0;
    }
    // SAFETY: as the caller's.
    unsafe { syscall(SYS_MUNMAP, at, len) as c_int }
}
