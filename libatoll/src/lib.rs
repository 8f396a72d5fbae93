//! What a program can say to the Atoll cell that it runs in, and Linux has no call for; `include/atoll.h` is the same for C.
//!
//! Outside of a cell all of this does nothing and says that it worked: a program that uses it runs on Linux as it is.
//! The crate depends on nothing, and never allocates.
#![no_std]
#![allow(unsafe_code, reason = "makes system calls of its own")]

#[cfg(test)]
extern crate std;

use core::arch::asm;
use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU8, Ordering};

/// The numbers, those of `abi/src/grid.rs`, where it says what the calls mean.
mod number {
    pub const HELLO: u64 = 0x0a70_11f0;
    pub const CREATE: u64 = HELLO + 1;
    pub const ENTER: u64 = HELLO + 2;
    pub const LEAVE: u64 = HELLO + 3;
    pub const END: u64 = HELLO + 4;
}

fn call(number: u64, a: u64, b: u64) -> i64 {
    let result: i64;
    // SAFETY: these calls read at most the `b` bytes at `a`, which the caller has; Linux knows none of the numbers.
    unsafe {
        asm!(
            "syscall", inlateout("rax") number => result, in("rdi") a, in("rsi") b,
            lateout("rcx") _, lateout("r11") _, options(nostack)
        );
    }
    result
}

/// Is this a cell?
pub fn in_cell() -> bool {
    static KNOWN: AtomicU8 = AtomicU8::new(0);
    const NO: u8 = 1;
    const YES: u8 = 2;
    let mut known = KNOWN.load(Ordering::Relaxed);
    if known == 0 {
        known = if call(number::HELLO, 0, 0) > 0 { YES } else { NO };
        KNOWN.store(known, Ordering::Relaxed);
    }
    known == YES
}

/// Why a call failed: an error number of Linux's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Error(pub i32);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            28 => f.write_str("there is no room for more activities"),
            22 => f.write_str("there is no such activity"),
            n => write!(f, "error {n}"),
        }
    }
}

impl core::error::Error for Error {}

fn answer(result: i64) -> Result<i64, Error> {
    if result < 0 { Err(Error(-result as i32)) } else { Ok(result) }
}

/// An activity of this process: what use is charged to. It ends when this is dropped; threads that are in it go on with it.
#[derive(Debug)]
pub struct Activity(u64);

impl Activity {
    /// Makes one. Its name has 1 to 40 bytes.
    pub fn new(name: &str) -> Result<Activity, Error> {
        if !in_cell() {
            return Ok(Activity(0));
        }
        answer(call(number::CREATE, name.as_ptr().addr() as u64, name.len() as u64))
            .map(|handle| Activity(handle as u64))
    }

    /// The calling thread works for it until what this returns is dropped, and so do threads that it makes meanwhile.
    /// One can be entered within another, 16 deep; they are left in the opposite order.
    pub fn enter(&self) -> Result<Entered<'_>, Error> {
        if self.0 != 0 {
            answer(call(number::ENTER, self.0, 0))?;
        }
        Ok(Entered { activity: self, of_this_thread: PhantomData })
    }
}

impl Drop for Activity {
    fn drop(&mut self) {
        if self.0 != 0 {
            call(number::END, self.0, 0);
        }
    }
}

/// The thread works for an activity.
#[derive(Debug)]
pub struct Entered<'a> {
    activity: &'a Activity,
    of_this_thread: PhantomData<*const ()>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if self.activity.0 != 0 {
            // Out of order it stays in: the one within is left first.
            call(number::LEAVE, self.activity.0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_abi::grid::call;

    /// The numbers are the cell's, here and in C.
    #[test]
    fn numbers() {
        assert_eq!(
            [number::HELLO, number::CREATE, number::ENTER, number::LEAVE, number::END],
            [call::HELLO, call::CREATE, call::ENTER, call::LEAVE, call::END]
        );
        let c = include_str!("../atoll.c");
        let line =
            std::format!("enum {{ HELLO = {:#010x}, CREATE, ENTER, LEAVE, END, CURRENT }};", call::HELLO);
        assert!(c.contains(&line) && call::CURRENT == call::HELLO + 5, "{line}");
    }

    /// On Linux, where tests run, it all works and means nothing.
    #[test]
    fn outside() {
        assert!(!in_cell());
        let (outer, inner) = (Activity::new("outer").unwrap(), Activity::new("").unwrap());
        let entered = outer.enter().unwrap();
        drop(inner.enter().unwrap());
        drop(entered);
    }
}
