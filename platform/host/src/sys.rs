//! The host's system calls, bare.
#![allow(unsafe_code, reason = "makes system calls")]

use core::arch::asm;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use atoll_abi::errno::Errno;

/// Makes a system call.
///
/// # Safety
/// As the call demands: pointers must be good for what the host does with them.
#[inline(always)]
pub unsafe fn call6(n: u32, a: u64, b: u64, c: u64, d: u64, e: u64, f: u64) -> i64 {
    let ret: i64;
    // SAFETY: the caller's promise.
    unsafe {
        asm!("syscall", inlateout("rax") i64::from(n) => ret, in("rdi") a, in("rsi") b, in("rdx") c,
            in("r10") d, in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    ret
}

macro_rules! call {
    ($n:expr $(, $a:expr)*) => { call!(@pad $n, [] $($a),*) };
    (@pad $n:expr, [$($done:expr),*] $a:expr $(, $rest:expr)*) => { call!(@pad $n, [$($done,)* $a as u64] $($rest),*) };
    (@pad $n:expr, [$($done:expr),*]) => { call!(@go $n, $($done),*) };
    (@go $n:expr,) => { $crate::sys::call6($n, 0, 0, 0, 0, 0, 0) };
    (@go $n:expr, $a:expr) => { $crate::sys::call6($n, $a, 0, 0, 0, 0, 0) };
    (@go $n:expr, $a:expr, $b:expr) => { $crate::sys::call6($n, $a, $b, 0, 0, 0, 0) };
    (@go $n:expr, $a:expr, $b:expr, $c:expr) => { $crate::sys::call6($n, $a, $b, $c, 0, 0, 0) };
    (@go $n:expr, $a:expr, $b:expr, $c:expr, $d:expr) => { $crate::sys::call6($n, $a, $b, $c, $d, 0, 0) };
    (@go $n:expr, $a:expr, $b:expr, $c:expr, $d:expr, $e:expr) => { $crate::sys::call6($n, $a, $b, $c, $d, $e, 0) };
    (@go $n:expr, $a:expr, $b:expr, $c:expr, $d:expr, $e:expr, $f:expr) => { $crate::sys::call6($n, $a, $b, $c, $d, $e, $f) };
}
pub(crate) use call;

/// The host's numbers for the calls that a cell makes.
pub use linux_raw_sys::general::{
    __NR_accept4 as ACCEPT4, __NR_clone as CLONE, __NR_close as CLOSE, __NR_epoll_ctl as EPOLL_CTL,
    __NR_epoll_pwait2 as EPOLL_PWAIT2, __NR_exit as EXIT, __NR_exit_group as EXIT_GROUP, __NR_fstat as FSTAT,
    __NR_futex as FUTEX, __NR_futex_wait as FUTEX_WAIT, __NR_futex_wake as FUTEX_WAKE,
    __NR_getpeername as GETPEERNAME, __NR_getpid as GETPID, __NR_getrandom as GETRANDOM,
    __NR_getsockname as GETSOCKNAME, __NR_getsockopt as GETSOCKOPT, __NR_gettid as GETTID,
    __NR_ioctl as IOCTL, __NR_kill as KILL, __NR_mmap as MMAP, __NR_mprotect as MPROTECT,
    __NR_mremap as MREMAP, __NR_munmap as MUNMAP, __NR_perf_event_open as PERF_EVENT_OPEN, __NR_poll as POLL,
    __NR_prctl as PRCTL, __NR_preadv2 as PREADV2, __NR_pwritev2 as PWRITEV2, __NR_recvfrom as RECVFROM,
    __NR_recvmsg as RECVMSG, __NR_rt_sigaction as RT_SIGACTION, __NR_rt_sigprocmask as RT_SIGPROCMASK,
    __NR_rt_sigreturn as RT_SIGRETURN, __NR_rt_sigtimedwait as RT_SIGTIMEDWAIT,
    __NR_sched_setaffinity as SCHED_SETAFFINITY, __NR_sched_setattr as SCHED_SETATTR,
    __NR_sched_yield as SCHED_YIELD, __NR_seccomp as SECCOMP, __NR_sendmsg as SENDMSG, __NR_sendto as SENDTO,
    __NR_setsockopt as SETSOCKOPT, __NR_shutdown as SHUTDOWN, __NR_sigaltstack as SIGALTSTACK,
    __NR_tgkill as TGKILL, __NR_timer_create as TIMER_CREATE, __NR_timer_settime as TIMER_SETTIME,
    __NR_wait4 as WAIT4, __NR_write as WRITE,
};

/// Does the host have the calls of Linux 6.7 that do one thing each? The filter of a cell lets those through without a look
/// at arguments, in 10 ns instead of 150.
static HAS_SINGLE: AtomicBool = AtomicBool::new(true);
/// Words of 32 bits, in memory that processes may share (`FUTEX2_SIZE_U32`).
const WORD: u64 = 2;

/// Sleeps while `*word == value`, at most `timeout` ns if given.
pub fn futex_wait(word: &AtomicU32, value: u32, timeout: Option<u64>) {
    if timeout.is_none() && HAS_SINGLE.load(Ordering::Relaxed) {
        // SAFETY: the word is valid for the call.
        let r = unsafe { call!(FUTEX_WAIT, word.as_ptr(), value, u32::MAX, WORD) };
        if !is_missing(r) {
            return;
        }
    }
    let ts = timeout.map(|ns| [ns / 1_000_000_000, ns % 1_000_000_000]);
    let ts = ts.as_ref().map_or(core::ptr::null(), |t| t.as_ptr());
    // SAFETY: the word and the timeout are valid for the call.
    unsafe { call!(FUTEX, word.as_ptr(), 0u64, value, ts) };
}

/// Wakes up to `n` sleepers on the word.
pub fn futex_wake(word: &AtomicU32, n: u32) {
    if HAS_SINGLE.load(Ordering::Relaxed) {
        // SAFETY: only the word's address is used.
        let r = unsafe { call!(FUTEX_WAKE, word.as_ptr(), u32::MAX, n, WORD) };
        if !is_missing(r) {
            return;
        }
    }
    // SAFETY: as above.
    unsafe { call!(FUTEX, word.as_ptr(), 1u64, n) };
}

/// Is that the answer of a host, or of a filter around this one, that does not know such a call?
fn is_missing(r: i64) -> bool {
    let missing = matches!(Errno::from_ret(r), Err(Errno::ENOSYS | Errno::EPERM));
    if missing {
        HAS_SINGLE.store(false, Ordering::Relaxed);
    }
    missing
}
