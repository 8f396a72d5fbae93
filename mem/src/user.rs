//! Copies to and from a program's memory that survive bad pointers.
//!
//! A user pointer is data from outside. It is checked for range once, and the
//! copy runs without further checks; if the program's memory is not there,
//! the access faults, the platform finds the faulting instruction in
//! [`fixups`], and the copy comes back short. The caller then asks the pager
//! for the page, and goes on or returns EFAULT.
#![allow(unsafe_code, reason = "touches memory that belongs to a program")]

use alloc::vec::Vec;
use atoll_abi::core_local::core_local;
use atoll_abi::layout::{PAGE, is_user_range, page_down};
use atoll_abi::platform::{HostBuf, ReadBuf};
use atoll_abi::{Errno, Result};
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::heap;

/// Bytes from which on they are copied by one repeated move of eight at a time.
const WORDS_FROM: usize = 256;

core::arch::global_asm!(
    ".pushsection .text.atoll_user,\"ax\",@progbits",
    // rdi to, rsi from, rdx length -> rax bytes not copied. By bytes only where there are less than eight: a repeated
    // move has to be begun, and those that are emulated take as long for a byte as for eight. What is left after a fault
    // goes by bytes, up to the one that is missing.
    ".globl atoll_user_copy",
    "atoll_user_copy:",
    "mov rcx, rdx",
    "cmp rdx, {WORDS_FROM}",
    "jae 4f",
    "sub rdx, 16",
    "jb 3f",
    // Sixteen at a time, and the last sixteen, of which some may have been copied already.
    "xor ecx, ecx",
    "2:",
    "atoll_user_copy_load: movups xmm0, [rsi + rcx]",
    "atoll_user_copy_store: movups [rdi + rcx], xmm0",
    "add rcx, 16",
    "cmp rcx, rdx",
    "jb 2b",
    "atoll_user_copy_load_last: movups xmm0, [rsi + rdx]",
    "atoll_user_copy_store_last: movups [rdi + rdx], xmm0",
    "xor eax, eax",
    "ret",
    // The first eight, and the last.
    "3:",
    "add rdx, 8",
    "jnc atoll_user_copy_start",
    "atoll_user_copy_load_8: mov rax, [rsi]",
    "atoll_user_copy_store_8: mov [rdi], rax",
    "atoll_user_copy_load_last_8: mov rax, [rsi + rdx]",
    "atoll_user_copy_store_last_8: mov [rdi + rdx], rax",
    "xor eax, eax",
    "ret",
    // A fault with rcx bytes copied.
    "atoll_user_copy_behind:",
    "add rdi, rcx",
    "add rsi, rcx",
    "sub rcx, rdx",
    "neg rcx",
    "add rcx, 16",
    "jmp atoll_user_copy_start",
    "4:",
    "shr rcx, 3",
    "and edx, 7",
    "atoll_user_copy_words: rep movsq",
    "atoll_user_copy_rest: lea rcx, [rdx + rcx * 8]",
    "jrcxz atoll_user_copy_fault",
    "atoll_user_copy_start: rep movsb",
    "atoll_user_copy_fault: mov rax, rcx",
    "ret",
    // rdi to, rsi length -> rax bytes not zeroed
    ".globl atoll_user_zero",
    "atoll_user_zero:",
    "mov rcx, rsi",
    "xor eax, eax",
    "cmp rsi, {WORDS_FROM}",
    "jb atoll_user_zero_start",
    "shr rcx, 3",
    "and esi, 7",
    "atoll_user_zero_words: rep stosq",
    "atoll_user_zero_rest: lea rcx, [rsi + rcx * 8]",
    "jrcxz atoll_user_zero_fault",
    "atoll_user_zero_start: rep stosb",
    "atoll_user_zero_fault: mov rax, rcx",
    "ret",
    // rdi address -> rax value, or -1
    ".globl atoll_user_load32",
    "atoll_user_load32:",
    "atoll_user_load32_start: mov eax, [rdi]",
    "ret",
    "atoll_user_load32_fault: mov rax, -1",
    "ret",
    // rdi address, esi expected, edx new -> rax value before, or -1
    ".globl atoll_user_cas32",
    "atoll_user_cas32:",
    "mov eax, esi",
    "atoll_user_cas32_start: lock cmpxchg [rdi], edx",
    "mov eax, eax",
    "ret",
    "atoll_user_cas32_fault: mov rax, -1",
    "ret",
    ".popsection",
    // (first faulting instruction, where to go on)
    ".pushsection .rodata.atoll_user,\"a\",@progbits",
    ".balign 8",
    ".globl atoll_user_fixups",
    "atoll_user_fixups:",
    ".quad atoll_user_copy_start - atoll_user_fixups, atoll_user_copy_fault - atoll_user_fixups",
    ".quad atoll_user_copy_words - atoll_user_fixups, atoll_user_copy_rest - atoll_user_fixups",
    ".quad atoll_user_copy_load - atoll_user_fixups, atoll_user_copy_behind - atoll_user_fixups",
    ".quad atoll_user_copy_store - atoll_user_fixups, atoll_user_copy_behind - atoll_user_fixups",
    ".quad atoll_user_copy_load_last - atoll_user_fixups, atoll_user_copy_behind - atoll_user_fixups",
    ".quad atoll_user_copy_store_last - atoll_user_fixups, atoll_user_copy_behind - atoll_user_fixups",
    ".quad atoll_user_copy_load_8 - atoll_user_fixups, atoll_user_copy_start - atoll_user_fixups",
    ".quad atoll_user_copy_store_8 - atoll_user_fixups, atoll_user_copy_start - atoll_user_fixups",
    ".quad atoll_user_copy_load_last_8 - atoll_user_fixups, atoll_user_copy_start - atoll_user_fixups",
    ".quad atoll_user_copy_store_last_8 - atoll_user_fixups, atoll_user_copy_start - atoll_user_fixups",
    ".quad atoll_user_zero_words - atoll_user_fixups, atoll_user_zero_rest - atoll_user_fixups",
    ".quad atoll_user_zero_start - atoll_user_fixups, atoll_user_zero_fault - atoll_user_fixups",
    ".quad atoll_user_load32_start - atoll_user_fixups, atoll_user_load32_fault - atoll_user_fixups",
    ".quad atoll_user_cas32_start - atoll_user_fixups, atoll_user_cas32_fault - atoll_user_fixups",
    ".popsection",
    WORDS_FROM = const WORDS_FROM,
);

unsafe extern "C" {
    fn atoll_user_copy(to: *mut u8, from: *const u8, len: usize) -> usize;
    fn atoll_user_zero(to: *mut u8, len: usize) -> usize;
    fn atoll_user_load32(addr: *const u32) -> u64;
    fn atoll_user_cas32(addr: *mut u32, expected: u32, new: u32) -> u64;
    static atoll_user_fixups: [[i64; 2]; 14];
}

/// Where execution goes on after a fault at `rip` in one of the copy
/// functions; None if the fault is not theirs.
pub fn fixup(rip: u64) -> Option<u64> {
    // SAFETY: the table is assembled above.
    let table = unsafe { &atoll_user_fixups };
    let base = table.as_ptr() as i64;
    table.iter().find(|[at, _]| (base + at) as u64 == rip).map(|[_, to]| (base + to) as u64)
}

/// Makes the page at an address present if the program may use it. `write`: for writing.
type FaultIn = fn(addr: u64, write: bool) -> Result<()>;

static FAULT_IN: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Says who brings in pages that a copy missed.
pub fn set_fault_in(f: FaultIn) {
    FAULT_IN.store(f as *mut (), Ordering::Release);
}

fn fault_in(addr: u64, write: bool) -> Result<()> {
    let p = FAULT_IN.load(Ordering::Acquire);
    if p.is_null() {
        return Err(Errno::EFAULT);
    }
    // SAFETY: only `set_fault_in` stores here.
    let f = unsafe { core::mem::transmute::<*mut (), FaultIn>(p) };
    f(addr, write)
}

#[inline]
fn check(addr: u64, len: usize) -> Result<()> {
    // Of nothing, as on Linux, nobody asks where it is.
    if len == 0 || is_user_range(addr, len as u64) { Ok(()) } else { Err(Errno::EFAULT) }
}

/// Repeats `step`, which returns the bytes it did not manage, until all is
/// done or a page can't be had. Value: bytes done, which is less than `len` only at a bad page.
fn persist(addr: u64, len: usize, write: bool, mut step: impl FnMut(usize) -> usize) -> usize {
    let mut done = 0;
    loop {
        let left = step(done);
        done = len - left;
        if left == 0 {
            return len;
        }
        if fault_in(addr + done as u64, write).is_err() {
            return done;
        }
    }
}

/// Makes a page of the program present; EFAULT if it can't be had. To be called without locks.
pub fn bring_in(addr: u64, write: bool) -> Result<()> {
    fault_in(addr, write)
}

/// The first address of a range that can't be used as it is: its page is
/// missing, or is not writable if `write`. Changes nothing.
pub(crate) fn first_missing(addr: u64, len: u64, write: bool) -> Option<u64> {
    if len == 0 {
        return None;
    }
    if !is_user_range(addr, len) {
        return Some(addr);
    }
    let mut at = addr;
    while at < addr + len {
        // An aligned word of the page, which other threads of the program may be changing.
        let word = at & !3;
        // SAFETY: the range is the program's; a fault comes back as -1.
        let value = unsafe { atoll_user_load32(word as *const u32) };
        let kept = |value: u64| {
            // SAFETY: as above; what is written is what is there.
            unsafe { atoll_user_cas32(word as *mut u32, value as u32, value as u32) != u64::MAX }
        };
        if value == u64::MAX || write && !kept(value) {
            return Some(at);
        }
        at = page_down(at) + PAGE;
    }
    None
}

/// Grows whenever pages of a program may have become missing or read-only.
static TAKEN_AWAY: AtomicU64 = AtomicU64::new(1);

/// Pages of a program were unmapped or their access changed. To be called after that was done.
pub fn taken_away() {
    TAKEN_AWAY.fetch_add(1, Ordering::AcqRel);
}

/// Differs if pages may have become missing in between.
pub fn pages_taken_away() -> u64 {
    TAKEN_AWAY.load(Ordering::Acquire)
}

/// What one core knows of a page.
#[derive(Clone, Copy, Default)]
struct PageKnown {
    /// Page number and space.
    key: u64,
    /// [`TAKEN_AWAY`] when it was found in place.
    at: u64,
    /// 0: it is in place. Else it was missing, and once this is 1 it is looked at again.
    missing: u32,
    /// If it is in place, so are as many pages from it on, it included.
    run: u32,
}

/// Pages of programs that one core looked at: in place and writable, or missing. Direct-mapped:
/// buffers of some hundred connections fit.
pub(crate) struct Present {
    /// None of them before the first question.
    pages: Vec<PageKnown>,
}

impl Present {
    const SIZE: usize = 512;
    /// To look at a page that is missing costs a fault: that is done once in so many questions.
    const MISSING: u32 = 65;

    pub(crate) const fn new() -> Self {
        Present { pages: Vec::new() }
    }

    /// A page's place. Allocators put buffers of several threads at equal distances, powers of two: those are kept apart.
    #[inline]
    fn slot(page: u64) -> usize {
        // By the golden ratio (Knuth, volume 3, 6.4).
        (page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - Present::SIZE.ilog2())) as usize
    }

    /// Is the page in place? If that is not known, `find` is asked. `surely`: a page that was
    /// missing is looked at again.
    fn holds(&mut self, page: u64, space: u32, now: u64, surely: bool, find: impl FnOnce() -> bool) -> bool {
        let key = page | u64::from(space) << 48;
        let known = &mut self.pages[Present::slot(page)];
        if known.key == key {
            if known.missing == 0 && known.at == now {
                return true;
            }
            if known.missing > 1 && !surely {
                known.missing -= 1;
                return false;
            }
        }
        let found = find();
        *known = PageKnown { key, at: now, missing: if found { 0 } else { Present::MISSING }, run: 1 };
        found
    }

    /// The first of `count` pages from `first` on that is not in place, by [`Present::holds`]; the first one surely.
    fn first_missing(
        &mut self,
        first: u64,
        count: u64,
        space: u32,
        now: u64,
        find: impl Fn(u64) -> bool,
    ) -> Option<u64> {
        let (key, slot) = (first | u64::from(space) << 48, Present::slot(first));
        // Most buffers are used again and again.
        let known = &self.pages[slot];
        if known.key == key && known.at == now && known.missing == 0 && u64::from(known.run) >= count {
            return None;
        }
        let mut pages = first..first + count;
        let missing = pages.find(|&page| !self.holds(page, space, now, page == first, || find(page)));
        if missing.is_none() && count > 0 {
            // Its place may be another page's by now.
            let known = &mut self.pages[slot];
            if known.key == key {
                known.run = count as u32;
            }
        }
        missing
    }
}

/// How much of a range of the program, from its beginning, is known to be in place and writable, so
/// that a host call can fill it. If that is nothing, its first page surely is missing. Changes nothing.
pub(crate) fn present(addr: u64, len: u64) -> u64 {
    if len == 0 || !is_user_range(addr, len) {
        return 0;
    }
    // Read before the pages are looked at: what is taken away from then on counts.
    let now = TAKEN_AWAY.load(Ordering::Acquire);
    let space = core_local().space.load(Ordering::Relaxed);
    let first = addr / PAGE;
    let count = (addr + len).div_ceil(PAGE) - first;
    let find = |page: u64| first_missing(addr.max(page * PAGE), 1, true).is_none();
    let look = |c: &mut heap::CoreHeap| match c.present() {
        p if p.pages.is_empty() => None,
        p => Some(p.first_missing(first, count, space, now, find)),
    };
    let end = heap::with_core(|c, _| look(c)).unwrap_or_else(|| {
        let pages = alloc::vec![PageKnown::default(); Present::SIZE];
        heap::with_core(|c, _| {
            c.present().pages = pages;
            look(c).flatten()
        })
    });
    end.map_or(len, |page| (page * PAGE).saturating_sub(addr))
}

/// Copies into the program, up to the first page that is missing. Value: bytes copied.
///
/// # Safety
/// `from` is readable for `len` bytes.
pub(crate) unsafe fn copy_out_nofault(addr: u64, from: *const u8, len: usize) -> usize {
    if !is_user_range(addr, len as u64) {
        return 0;
    }
    // SAFETY: the caller's promise; the range is the program's.
    len - unsafe { atoll_user_copy(addr as *mut u8, from, len) }
}

/// Copies out of the program, up to the first page that is missing. Value: bytes copied.
///
/// # Safety
/// `to` is writable for `len` bytes.
pub(crate) unsafe fn copy_in_nofault(to: *mut u8, addr: u64, len: usize) -> usize {
    if !is_user_range(addr, len as u64) {
        return 0;
    }
    // SAFETY: the caller's promise; the range is the program's.
    len - unsafe { atoll_user_copy(to, addr as *const u8, len) }
}

/// Copies into memory that a host call may fill, from its byte `at` on and up to the first page that is missing.
/// Value: bytes copied. For platforms without a host, which do what it would.
pub fn fill(buf: &HostBuf, at: u64, from: &[u8]) -> usize {
    let len = from.len().min(buf.len().saturating_sub(at) as usize);
    // SAFETY: such a buffer is the program's, or memory that its maker holds exclusively.
    len - unsafe { atoll_user_copy((buf.base() + at) as *mut u8, from.as_ptr(), len) }
}

/// Copies out of memory that a host call may read, from its byte `at` on and up to the first page that is missing.
/// Value: bytes copied.
pub fn drain(buf: &ReadBuf, at: u64, to: &mut [u8]) -> usize {
    let len = to.len().min(buf.len().saturating_sub(at) as usize);
    // SAFETY: such a buffer is the program's, or memory that its maker lent; `to` is ours.
    len - unsafe { atoll_user_copy(to.as_mut_ptr(), (buf.base() + at) as *const u8, len) }
}

/// Copies out of the program. Value: bytes copied before the first bad page.
pub fn read_some(addr: u64, to: &mut [u8]) -> Result<usize> {
    check(addr, to.len())?;
    let len = to.len();
    if len == 0 {
        return Ok(0);
    }
    // SAFETY: `to` is ours; a fault on the program's side comes back as bytes left.
    let n = persist(addr, len, false, |done| unsafe {
        atoll_user_copy(to.as_mut_ptr().add(done), (addr + done as u64) as *const u8, len - done)
    });
    if n == 0 { Err(Errno::EFAULT) } else { Ok(n) }
}

/// Copies into the program. Value: bytes copied before the first bad page.
pub fn write_some(addr: u64, from: &[u8]) -> Result<usize> {
    check(addr, from.len())?;
    let len = from.len();
    if len == 0 {
        return Ok(0);
    }
    // SAFETY: the range is the program's, never the runtime's.
    let n = persist(addr, len, true, |done| unsafe {
        atoll_user_copy((addr + done as u64) as *mut u8, from.as_ptr().add(done), len - done)
    });
    if n == 0 { Err(Errno::EFAULT) } else { Ok(n) }
}

/// Copies out of the program, all or EFAULT.
#[inline]
pub fn read(addr: u64, to: &mut [u8]) -> Result<()> {
    if read_some(addr, to)? == to.len() { Ok(()) } else { Err(Errno::EFAULT) }
}

/// Copies into the program, all or EFAULT.
#[inline]
pub fn write(addr: u64, from: &[u8]) -> Result<()> {
    if write_some(addr, from)? == from.len() { Ok(()) } else { Err(Errno::EFAULT) }
}

/// Zeroes program memory, all or EFAULT.
pub fn zero(addr: u64, len: usize) -> Result<()> {
    check(addr, len)?;
    // SAFETY: the range is the program's.
    let n = persist(addr, len, true, |done| unsafe {
        atoll_user_zero((addr + done as u64) as *mut u8, len - done)
    });
    if n == len { Ok(()) } else { Err(Errno::EFAULT) }
}

/// Loads a word that other threads of the program may be changing (a futex).
#[inline]
pub fn load_u32(addr: u64) -> Result<u32> {
    check(addr, 4)?;
    // SAFETY: the range is the program's; a fault comes back as -1.
    match unsafe { atoll_user_load32(addr as *const u32) } {
        u64::MAX => load_missing_u32(addr),
        v => Ok(v as u32),
    }
}

/// The same for those who hold locks, which the program's own pager might want: None if the page is missing.
#[inline]
pub fn try_load_u32(addr: u64) -> Result<Option<u32>> {
    check(addr, 4)?;
    // SAFETY: as above.
    let value = unsafe { atoll_user_load32(addr as *const u32) };
    Ok((value != u64::MAX).then_some(value as u32))
}

/// The same where nothing is mapped yet.
#[cold]
fn load_missing_u32(addr: u64) -> Result<u32> {
    fault_in(addr, false)?;
    load_u32(addr)
}

/// Compares and exchanges such a word; the value before.
pub fn compare_exchange_u32(addr: u64, expected: u32, new: u32) -> Result<u32> {
    loop {
        match try_compare_exchange_u32(addr, expected, new)? {
            None => fault_in(addr, true)?,
            Some(v) => return Ok(v),
        }
    }
}

/// The same for those who hold locks: None if the page is missing, or can't be written to yet.
pub fn try_compare_exchange_u32(addr: u64, expected: u32, new: u32) -> Result<Option<u32>> {
    check(addr, 4)?;
    // SAFETY: as above.
    let before = unsafe { atoll_user_cas32(addr as *mut u32, expected, new) };
    Ok((before != u64::MAX).then_some(before as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies() {
        let from = std::vec![7u8; 100];
        let mut to = std::vec![0u8; 100];
        read(from.as_ptr() as u64, &mut to).unwrap();
        assert_eq!(from, to);
        write(to.as_mut_ptr() as u64, &[1, 2, 3]).unwrap();
        assert_eq!(&to[..4], [1, 2, 3, 7]);
        zero(to.as_mut_ptr() as u64, 50).unwrap();
        assert_eq!(to[49..51], [0, 7]);
        let mut word = 5u32;
        assert_eq!(load_u32(&raw const word as u64), Ok(5));
        assert_eq!(try_load_u32(&raw const word as u64), Ok(Some(5)));
        assert_eq!(compare_exchange_u32(&raw mut word as u64, 5, 9), Ok(5));
        assert_eq!(compare_exchange_u32(&raw mut word as u64, 5, 1), Ok(9));
        assert_eq!(word, 9);
    }

    #[test]
    fn missing_pages() {
        let word = [7u32; 3000];
        let addr = word.as_ptr() as u64;
        assert_eq!(first_missing(addr, 12000, true), None);
        assert_eq!(first_missing(0, 0, true), None);
        assert_eq!(
            first_missing(atoll_abi::layout::RUNTIME_BASE, 1, false),
            Some(atoll_abi::layout::RUNTIME_BASE)
        );
        assert!(word.iter().all(|w| *w == 7));
    }

    /// Another page that has a page's place.
    fn rival(page: u64) -> u64 {
        (page + 1..).find(|p| Present::slot(*p) == Present::slot(page)).unwrap()
    }

    #[test]
    fn present_pages_are_known_until_some_are_taken_away() {
        let mut p = Present { pages: alloc::vec![PageKnown::default(); Present::SIZE] };
        let known = || -> bool { unreachable!("it is known") };
        assert!(p.holds(5, 0, 1, false, || true));
        assert!(p.holds(5, 0, 1, true, known));
        // In another space, after pages were taken away, or when another page took the place.
        assert!(!p.holds(5, 1, 1, false, || false));
        assert!(p.holds(5, 0, 2, false, || true));
        assert!(!p.holds(5, 0, 3, false, || false));
        assert!(p.holds(rival(5), 0, 3, false, || true));
        assert!(!p.holds(5, 0, 3, false, || false));
    }

    #[test]
    fn runs_of_present_pages() {
        let mut p = Present { pages: alloc::vec![PageKnown::default(); Present::SIZE] };
        let known = |_: u64| -> bool { unreachable!("it is known") };
        assert_eq!(p.first_missing(5, 4, 0, 1, |page| page < 8), Some(8));
        // Those before it are known one by one.
        assert_eq!(p.first_missing(5, 3, 0, 1, known), None);
        assert_eq!(p.first_missing(5, 2, 0, 1, known), None);
        // A longer run, another space, and after pages were taken away.
        assert_eq!(p.first_missing(5, 5, 0, 1, |page| page != 9), Some(8));
        assert_eq!(p.first_missing(5, 3, 1, 1, |page| page != 6), Some(6));
        assert_eq!(p.first_missing(5, 3, 0, 2, |page| page != 7), Some(7));
        // Another page takes the place of one of the run, which is still there; then of its first one.
        assert_eq!(p.first_missing(20, 4, 0, 2, |_| true), None);
        assert!(p.holds(rival(22), 0, 2, false, || true));
        assert_eq!(p.first_missing(20, 4, 0, 2, known), None);
        assert!(p.holds(rival(20), 0, 2, false, || true));
        assert_eq!(p.first_missing(20, 4, 0, 2, |page| page != 22), Some(22));
        // One that is longer than there are places.
        assert_eq!(p.first_missing(5000, Present::SIZE as u64 * 20, 0, 2, |_| true), None);
        assert_eq!(p.first_missing(5000, 2, 0, 2, |page| page != 5001), Some(5001));
    }

    #[test]
    fn missing_pages_are_looked_at_now_and_then() {
        let mut p = Present { pages: alloc::vec![PageKnown::default(); Present::SIZE] };
        let mut looks = 0;
        for _ in 0..650 {
            assert!(!p.holds(5, 0, 1, false, || {
                looks += 1;
                false
            }));
        }
        assert_eq!(looks, 10);
        // Who needs it is told the truth, and so are others from then on.
        assert!(p.holds(5, 0, 1, true, || true));
        assert!(p.holds(5, 0, 1, false, || unreachable!()));
    }

    #[test]
    fn runtime_memory_is_out_of_bounds() {
        let mut b = [0; 8];
        assert_eq!(read(atoll_abi::layout::DIRECT_MAP, &mut b), Err(Errno::EFAULT));
        assert_eq!(write(atoll_abi::layout::RUNTIME_BASE - 4, &b), Err(Errno::EFAULT));
        assert_eq!(read(u64::MAX - 3, &mut b), Err(Errno::EFAULT));
    }

    /// What a platform does about a fault, by the process's own signals.
    extern "C" fn repair(_signal: i32, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the kernel gives such a context, which nobody else looks at meanwhile.
        let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
        let rip = &mut registers[libc::REG_RIP as usize];
        *rip = fixup(*rip as u64).expect("a fault of no copy") as i64;
    }

    #[test]
    fn copies_stop_at_the_byte_that_is_missing() {
        const ROOM: usize = 2 * PAGE as usize;
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: memory of its own, of which the second page is taken away; the handler only changes where to go on.
        let edge = unsafe {
            let p = libc::mmap(core::ptr::null_mut(), ROOM, access, kind, -1, 0).cast::<u8>();
            assert_eq!(libc::mprotect(p.add(ROOM / 2).cast(), ROOM / 2, libc::PROT_NONE), 0);
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = repair as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGSEGV, &raw const action, core::ptr::null_mut()), 0);
            p.add(ROOM / 2)
        };
        let bytes: Vec<u8> = (0..600).map(|n| n as u8 | 1).collect();
        for len in (0usize..80).chain([127, 128, 129, 255, 256, 257, 263, 264, 600]) {
            for there in (0..len.min(40)).chain([len.saturating_sub(1), len]) {
                // SAFETY: `there` bytes lie before the page that is missing; the buffers are as long as is said.
                unsafe {
                    let at = edge.sub(there);
                    edge.sub(600).write_bytes(0, 600);
                    assert_eq!(atoll_user_copy(at, bytes.as_ptr(), len), len - there, "{there} of {len}");
                    let written = core::slice::from_raw_parts(edge.sub(600), 600);
                    assert!(written[600 - there..] == bytes[..there], "{there} of {len}");
                    assert!(written[..600 - there].iter().all(|b| *b == 0), "{there} of {len}");
                    let mut to = [0u8; 600];
                    assert_eq!(atoll_user_copy(to.as_mut_ptr(), at, len), len - there, "{there} of {len}");
                    assert!(
                        to[..there] == bytes[..there] && to[there..].iter().all(|b| *b == 0),
                        "{there} of {len}"
                    );
                    assert_eq!(atoll_user_zero(at, len), len - there, "{there} of {len}");
                    assert!(
                        core::slice::from_raw_parts(at, there).iter().all(|b| *b == 0),
                        "{there} of {len}"
                    );
                }
            }
        }
        assert_eq!(fixup(0x1234), None);
    }
}
