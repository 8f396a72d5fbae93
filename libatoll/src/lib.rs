//! What a program can say to the Atoll cell that it runs in, and Linux has no call for; `include/atoll.h` is the same for C.
//!
//! Outside of a cell what says what is worked for does nothing and says that it worked, and what is about memory does the same by
//! Linux's calls or fails with ENOSYS, as it says: a program that uses it runs on Linux as it is.
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
    pub const SHRINK: u64 = HELLO + 32;
    pub const PAGES_WRITTEN: u64 = HELLO + 16;
    pub const PAGES_ACCESSED: u64 = HELLO + 18;
    pub const PAGES_CHANGE: u64 = HELLO + 17;
    pub const PAGES_FORGET: u64 = HELLO + 19;
    pub const PAGES_COLOUR: u64 = HELLO + 20;
    pub const PAGES_FRAMES: u64 = HELLO + 21;
    /// Linux's.
    pub const MPROTECT: u64 = 10;
    pub const MUNMAP: u64 = 11;
    pub const MADVISE: u64 = 28;
}

const ENOSYS: i32 = 38;
const EINVAL: i32 = 22;
const PAGE: usize = 4096;

/// # Safety
/// That of the call.
unsafe fn call4(number: u64, a: u64, b: u64, c: u64, d: u64) -> i64 {
    let result: i64;
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "syscall", inlateout("rax") number => result, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
            lateout("rcx") _, lateout("r11") _, options(nostack)
        );
    }
    result
}

/// # Safety
/// That of the call.
unsafe fn call3(number: u64, a: u64, b: u64, c: u64) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { call4(number, a, b, c, 0) }
}

fn call(number: u64, a: u64, b: u64) -> i64 {
    // SAFETY: these calls read at most the `b` bytes at `a`, which the caller has, and change nothing there; Linux knows none of the
    // numbers.
    unsafe { call3(number, a, b, 0) }
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
            EINVAL => f.write_str("there is no such activity, or no such range"),
            4 => f.write_str("a signal came"),
            ENOSYS => f.write_str("this is no cell, or can't be had in it"),
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

/// Which pages (4 KiB) of a range were written to since this was last asked, or brought in: a bit a page, the lowest of `written[0]` for
/// the first. Value: how many. Both address and length are multiples of 4096.
///
/// Pages that were written to are always among them; others near by may be, too: `include/atoll.h` says how many, and why calls fail.
/// Outside of a cell it is ENOSYS, and the program has to find out otherwise.
pub fn pages_written(start: *const u8, len: usize, written: &mut [u8]) -> Result<usize, Error> {
    pages_told(number::PAGES_WRITTEN, start, len, written)
}

/// The same of pages that were used: read, written to or run.
pub fn pages_accessed(start: *const u8, len: usize, accessed: &mut [u8]) -> Result<usize, Error> {
    pages_told(number::PAGES_ACCESSED, start, len, accessed)
}

fn pages_told(number: u64, start: *const u8, len: usize, bits: &mut [u8]) -> Result<usize, Error> {
    if !in_cell() {
        return Err(Error(ENOSYS));
    }
    if bits.len() < (len / PAGE).div_ceil(8) {
        return Err(Error(EINVAL));
    }
    let (start, to) = (start.addr() as u64, bits.as_mut_ptr().addr() as u64);
    // SAFETY: it writes to `bits` only, which is as long as that takes.
    answer(unsafe { call3(number, start, len as u64, to) }).map(|n| n as usize)
}

/// Has all cores walk the page tables anew for a range: `include/atoll.h` says what that is good for. ENOSYS on Linux, and in a cell on
/// it.
pub fn pages_forget(start: *const u8, len: usize) -> Result<(), Error> {
    if !in_cell() {
        return Err(Error(ENOSYS));
    }
    answer(call(number::PAGES_FORGET, start.addr() as u64, len as u64)).map(drop)
}

/// The most colours that frames can have.
pub const COLOURS_MAX: u32 = 64;

/// Pages of a range of private anonymous memory come only from frames whose number modulo `colours` is one of those whose bits `wanted`
/// has; 0 colours: of any again. `include/atoll.h` says what comes of it, and why it fails: ENOSYS on Linux, and in a cell on it.
///
/// # Safety
/// The range is the caller's, and what is in it is not needed: it is dropped.
pub unsafe fn pages_colour(start: *mut u8, len: usize, colours: u32, wanted: u64) -> Result<(), Error> {
    if !in_cell() {
        return Err(Error(ENOSYS));
    }
    let start = start.addr() as u64;
    // SAFETY: the caller's promise.
    answer(unsafe { call4(number::PAGES_COLOUR, start, len as u64, colours.into(), wanted) }).map(drop)
}

/// The numbers of the frames that the pages of a range are in; 0: one isn't in place, or no private memory. EINVAL: there are not as many
/// places as pages; ENOSYS as above.
pub fn pages_frames(start: *const u8, len: usize, frames: &mut [u64]) -> Result<(), Error> {
    if !in_cell() {
        return Err(Error(ENOSYS));
    }
    if frames.len() < len / PAGE {
        return Err(Error(EINVAL));
    }
    let (start, to) = (start.addr() as u64, frames.as_mut_ptr().addr() as u64);
    // SAFETY: it writes to `frames` only, which is as long as that takes.
    answer(unsafe { call3(number::PAGES_FRAMES, start, len as u64, to) }).map(drop)
}

/// What becomes of a range of mappings.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Becomes {
    /// What it is, with other access (`mprotect(2)`).
    Accessible = 0,
    /// Zeroes, or its file, again (`madvise(2)`, MADV_DONTNEED).
    Discarded = 1,
    /// Nothing (`munmap(2)`).
    Unmapped = 2,
}

/// One of the changes that [`pages_change`] makes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PagesChange {
    /// Where it begins: a multiple of 4096.
    pub start: *mut u8,
    /// Length, bytes.
    pub len: usize,
    /// What becomes of it.
    pub to: Becomes,
    /// PROT_READ and so on, if it is [`Becomes::Accessible`].
    pub access: u32,
}

/// Makes these changes, in order, at the cost of one call. Outside of a cell it makes Linux's calls. Value: how many were made; if that
/// is not all, the next one can't be. An error is the first one's.
///
/// # Safety
/// The ranges are the caller's, and nobody goes on using what is discarded or unmapped, or has less access.
pub unsafe fn pages_change(changes: &[PagesChange]) -> Result<usize, Error> {
    const DONTNEED: u64 = 4;
    if in_cell() {
        let list = changes.as_ptr().addr() as u64;
        // SAFETY: the caller's promise.
        return answer(unsafe { call3(number::PAGES_CHANGE, list, changes.len() as u64, 0) })
            .map(|n| n as usize);
    }
    for (n, c) in changes.iter().enumerate() {
        let (number, how) = match c.to {
            Becomes::Accessible => (number::MPROTECT, u64::from(c.access)),
            Becomes::Discarded => (number::MADVISE, DONTNEED),
            Becomes::Unmapped => (number::MUNMAP, 0),
        };
        // SAFETY: the caller's promise.
        match answer(unsafe { call3(number, c.start.addr() as u64, c.len as u64, how) }) {
            Err(e) if n == 0 => return Err(e),
            Err(_) => return Ok(n),
            Ok(_) => {}
        }
    }
    Ok(changes.len())
}

/// A pager as a function, `libatoll/pager.c`: who uses this links with `libatoll.a`. `include/atoll.h` says what each means, what a handler may
/// do, and why they fail: -1, and the C library's `errno`.
pub mod pager {
    use core::ffi::{c_int, c_void};

    /// Ranges that a process can have.
    pub const RANGES_MAX: usize = 64;

    /// Provides the page at this address, which is read, or written to if the last argument isn't 0. Value: 0, it is there.
    pub type Handler = unsafe extern "C" fn(arg: *mut c_void, page: *mut c_void, write: c_int) -> c_int;

    // SAFETY: as in `include/atoll.h`.
    unsafe extern "C" {
        /// Calls the handler for pages of a range that are not there.
        pub fn atoll_pager_register(
            addr: *mut c_void,
            len: usize,
            handler: Option<Handler>,
            arg: *mut c_void,
        ) -> c_int;
        /// No longer.
        pub fn atoll_pager_unregister(addr: *mut c_void, len: usize) -> c_int;
        /// Puts pages in place: what lies at `from`, or zeroes.
        pub fn atoll_pager_provide(addr: *mut c_void, from: *const c_void, len: usize) -> c_int;
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

/// Memory is short, in the cell or in the activity of the configuration that this process belongs to (`memory_max`): before a process
/// is ended for that, threads are asked that wait here. Value: about how many bytes are wanted; pages count that were unmapped, or
/// given back by madvise(MADV_DONTNEED). Who calls again is done; who does not within half a second is not waited for. EINTR: a
/// signal came; ENOSYS: there is no cell, and nobody will ever ask.
pub fn shrink_wait() -> Result<u64, Error> {
    if !in_cell() {
        return Err(Error(ENOSYS));
    }
    answer(call(number::SHRINK, 0, 0)).map(|bytes| bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_abi::grid::call::{self, PageChange, change};

    /// The numbers are the cell's, here and in C.
    #[test]
    fn numbers() {
        assert_eq!(
            [number::HELLO, number::CREATE, number::ENTER, number::LEAVE, number::END, number::SHRINK],
            [call::HELLO, call::CREATE, call::ENTER, call::LEAVE, call::END, call::SHRINK]
        );
        let c = include_str!("../calls.h");
        let line = std::format!("enum {{ HELLO = {:#010x}, CREATE, ENTER, LEAVE, END, CURRENT,", call::HELLO);
        assert!(c.contains(&line) && call::CURRENT == call::HELLO + 5, "{line}");
        assert!(c.contains("SHRINK = HELLO + 32") && call::SHRINK == call::HELLO + 32);
        let line = "PAGES_WRITTEN = HELLO + 16, PAGES_CHANGE, PAGES_ACCESSED, PAGES_FORGET, PAGES_COLOUR, PAGES_FRAMES };";
        assert!(c.contains(line));
        let numbers =
            [number::PAGES_WRITTEN, number::PAGES_CHANGE, number::PAGES_ACCESSED, number::PAGES_FORGET];
        assert_eq!(
            numbers,
            [call::PAGES_WRITTEN, call::PAGES_CHANGE, call::PAGES_ACCESSED, call::PAGES_FORGET]
        );
        assert_eq!([number::PAGES_COLOUR, number::PAGES_FRAMES], [call::PAGES_COLOUR, call::PAGES_FRAMES]);
        assert_eq!(
            [Becomes::Accessible as u32, Becomes::Discarded as u32, Becomes::Unmapped as u32],
            [change::ACCESS, change::DISCARD, change::UNMAP]
        );
        assert_eq!(size_of::<PagesChange>(), size_of::<PageChange>());
        let header = include_str!("../include/atoll.h");
        assert!(header.contains(&std::format!("#define ATOLL_PAGERS_MAX {}\n", pager::RANGES_MAX)));
        assert!(header.contains(&std::format!("#define ATOLL_COLOURS_MAX {COLOURS_MAX}\n")));
    }

    /// On Linux, where tests run, it all works and means nothing.
    #[test]
    fn outside() {
        assert!(!in_cell());
        let (outer, inner) = (Activity::new("outer").unwrap(), Activity::new("").unwrap());
        let entered = outer.enter().unwrap();
        drop(inner.enter().unwrap());
        drop(entered);
        assert_eq!(shrink_wait(), Err(Error(ENOSYS)));
        assert_eq!(pages_written(core::ptr::null(), 0, &mut []), Err(Error(ENOSYS)));
        assert_eq!(pages_accessed(core::ptr::null(), 0, &mut []), Err(Error(ENOSYS)));
        assert_eq!(pages_forget(core::ptr::null(), 0), Err(Error(ENOSYS)));
        assert_eq!(pages_frames(core::ptr::null(), 0, &mut []), Err(Error(ENOSYS)));
        let bad =
            PagesChange { start: core::ptr::dangling_mut(), len: PAGE, to: Becomes::Accessible, access: 0 };
        // SAFETY: nothing lies there; Linux takes no such address.
        assert_eq!(unsafe { pages_change(&[bad]) }, Err(Error(EINVAL)));
    }
}
