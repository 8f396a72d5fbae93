//! Memory that nobody has is to stay as it is: builds with debug assertions fill it, and look at it when it is next taken.
//!
//! What was written to it meanwhile was written by somebody who had given it up. Where lists of what is free have their links, at the
//! start of each piece, nothing is looked at; nor in pages that were never given back.
#![allow(unsafe_code, reason = "fills and reads memory that is free")]

/// What is there, word by word.
const POISON: u64 = 0xa5a5_5a5a_dead_f4ee;
/// Words at the start of a page or an object that lists use.
const LINK: usize = 4;
/// The same of an object.
const OBJECT_LINK: usize = 2;

/// # Safety
/// `[start, start + bytes)` is free, and the caller's.
unsafe fn words(start: *mut u8, bytes: usize, link: usize) -> &'static mut [u64] {
    let words = (bytes / 8).saturating_sub(link);
    // SAFETY: the caller's promise.
    unsafe { core::slice::from_raw_parts_mut(start.cast::<u64>().add(link), words) }
}

/// An object is free from now on.
///
/// # Safety
/// It is the caller's, and has so many bytes.
pub(crate) unsafe fn fill_object(start: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { words(start, bytes, OBJECT_LINK) }.fill(POISON);
}

/// A free object is taken.
///
/// # Safety
/// It is the caller's, has so many bytes, and was filled.
pub(crate) unsafe fn check_object(start: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise.
    let words = unsafe { words(start, bytes, OBJECT_LINK) };
    if let Some(at) = words.iter().position(|word| *word != POISON) {
        let (word, offset) = (words[at], (at + OBJECT_LINK) * 8);
        panic!(
            "an object of {bytes} bytes at {start:p} was written to when it was free: {word:#x} at {offset}"
        );
    }
}

/// A page is free from now on.
///
/// # Safety
/// It is the caller's.
pub(crate) unsafe fn fill_page(start: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { words(start, bytes, LINK) }.fill(POISON);
}

/// A free page is taken. `zero`: it was zeroed meanwhile. Without that it may never have been filled.
///
/// # Safety
/// It is the caller's.
pub(crate) unsafe fn check_page(start: *mut u8, bytes: usize, zero: bool) {
    // SAFETY: the caller's promise.
    let words = unsafe { words(start, bytes, LINK) };
    let want = if zero { 0 } else { POISON };
    let Some(at) = words.iter().position(|word| *word != want) else { return };
    let as_it_was = words.iter().filter(|word| **word == want).count();
    if zero || as_it_was > words.len() / 2 {
        let (word, offset) = (words[at], (at + LINK) * 8);
        panic!("the page at {start:p} was written to when it was free: {word:#x} at {offset}");
    }
}
