//! Switching stacks on x86-64.
#![allow(unsafe_code, reason = "switches stacks, and sets registers")]

use alloc::boxed::Box;
use atoll_abi::frame::UserFrame;
use core::alloc::Layout;

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
