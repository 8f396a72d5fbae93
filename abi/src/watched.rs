//! The platform in a build with debug assertions, once somebody watches: each call of it first says that it is made.
//!
//! The books of the grid do, and assert that it is part of some record (`atoll_task::books`), so that there is no path around
//! them. Loops that take long and call nothing say so themselves ([`crate::assert_accounted`]). What only reads shared memory, and what a runtime says that is about to end, passes unwatched. A call that is added to
//! [`Platform`] or [`HostCalls`] is to be added here, too, even if it has a default: a test looks.
#![allow(unsafe_code, reason = "passes on the unsafe calls of the contract")]

use core::sync::atomic::{AtomicPtr, Ordering};

use crate::control::Control;
use crate::errno::Result;
use crate::mailbox::{Inbox, Line};
use crate::platform::{
    Access, Backing, Change, Events, HostBuf, HostCalls, PageBit, Platform, ReadBuf, Received, below,
};
use crate::service::{HostAttr, Request};

/// Who is told: a `fn(&str)`.
static WATCHER: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Has `watcher` called, with a call's name, before each call of the platform from now on.
pub fn watch(watcher: fn(&'static str)) {
    WATCHER.store(watcher as *mut (), Ordering::Release);
}

/// Does anybody watch?
pub(crate) fn is_watched() -> bool {
    !WATCHER.load(Ordering::Relaxed).is_null()
}

pub(crate) fn tell(call: &'static str) {
    let watcher = WATCHER.load(Ordering::Acquire);
    // SAFETY: only `watch` stores there, before which nobody gets here.
    let watcher = unsafe { core::mem::transmute::<*mut (), fn(&'static str)>(watcher) };
    watcher(call);
}

pub(crate) struct Watched;
struct WatchedHost;

/// Calls that are told of and passed on to `$below`.
macro_rules! told {
    ($below:expr; $(fn $name:ident($($arg:ident: $of:ty),*) $(-> $out:ty)?;)*) => {
        $(fn $name(&self $(, $arg: $of)*) $(-> $out)? {
            tell(stringify!($name));
            $below.$name($($arg),*)
        })*
    };
}

/// The same, of calls that need a promise.
macro_rules! told_unsafe {
    ($(fn $name:ident($($arg:ident: $of:ty),*) -> $out:ty;)*) => {
        $(unsafe fn $name(&self $(, $arg: $of)*) -> $out {
            tell(stringify!($name));
            // SAFETY: the caller's promise.
            unsafe { below().$name($($arg),*) }
        })*
    };
}

impl Platform for Watched {
    fn control(&self) -> &'static Control {
        below().control()
    }

    fn now(&self) -> u64 {
        below().now()
    }

    fn realtime(&self) -> u64 {
        below().realtime()
    }

    fn clock(&self, clock: u32) -> u64 {
        below().clock(clock)
    }

    fn armed_here(&self) -> Option<u64> {
        below().armed_here()
    }

    fn has_answers(&self) -> bool {
        below().has_answers()
    }

    fn frame_of(&self, offset: u64) -> Option<u64> {
        below().frame_of(offset)
    }

    fn has_page_bits(&self) -> bool {
        below().has_page_bits()
    }

    fn can_step(&self) -> bool {
        below().can_step()
    }

    fn inbox(&self, peer: usize) -> Option<&'static Inbox> {
        below().inbox(peer)
    }

    fn archive(&self) -> Option<&'static [u8]> {
        below().archive()
    }

    fn log(&self, line: &str) {
        below().log(line);
    }

    fn end(&self, status: i32) -> ! {
        below().end(status)
    }

    fn host(&self) -> Option<&dyn HostCalls> {
        below().host().map(|_| &WatchedHost as &dyn HostCalls)
    }

    told! { below();
        fn cpu_time() -> Option<u64>;
        fn counted() -> Option<u64>;
        fn slept() -> Option<u64>;
        fn arm(deadline: u64);
        fn disarm();
        fn tell_of_events() -> bool;
        fn arm_for_work() -> bool;
        fn park(deadline: Option<u64>, events: &mut Events);
        fn poll(events: &mut Events);
        fn device_interrupt();
        fn notify(core: usize);
        fn interrupt(core: usize);
        fn space_create() -> Result<u32>;
        fn space_destroy(space: u32);
        fn space_switch(space: u32, continuation: extern "C" fn(usize) -> !, argument: usize) -> !;
        fn parks_apart() -> bool;
        fn leave_stack(continuation: extern "C" fn(usize) -> !, argument: usize) -> !;
        fn take_page_bits(bit: PageBit, addr: u64, len: u64, pages: &mut [u16]) -> Result<()>;
        fn forget(addr: u64, len: u64) -> Result<()>;
        fn memory_back() -> Option<u64>;
        fn memory_used_to(block: u64);
        fn more_memory(bytes: u64) -> Option<u64>;
        fn send(peer: usize, line: &Line) -> Result<()>;
        fn submit(request: &Request) -> Result<()>;
        fn take_descriptor() -> Result<i32>;
        fn random(out: &mut [u8]);
    }

    told_unsafe! {
        fn map(addr: u64, len: u64, access: Access, backing: Backing) -> Result<()>;
        fn unmap(addr: u64, len: u64) -> Result<()>;
        fn protect(addr: u64, len: u64, access: Access) -> Result<()>;
        fn change(list: &[Change]) -> Result<()>;
    }
}

fn host_below() -> &'static dyn HostCalls {
    below().host().expect("there was one when it was asked for")
}

impl HostCalls for WatchedHost {
    fn looks(&self, core: usize) -> u32 {
        host_below().looks(core)
    }

    told! { host_below();
        fn read_at(fd: i32, bufs: &[HostBuf], offset: u64) -> Result<usize>;
        fn write(fd: i32, bufs: &[ReadBuf], may_wait: bool) -> Result<usize>;
        fn receive(fd: i32, bufs: &[HostBuf], addr: Option<&mut [u8]>, control: Option<&mut [u8]>, flags: u32) -> Result<Received>;
        fn send(fd: i32, bufs: &[ReadBuf], addr: Option<&[u8]>, control: &[u8], flags: u32) -> Result<usize>;
        fn accept(fd: i32, addr: &mut [u8]) -> Result<(i32, usize)>;
        fn shutdown(fd: i32, how: u32) -> Result<()>;
        fn get_option(fd: i32, level: u32, name: u32, value: &mut [u8]) -> Result<usize>;
        fn set_option(fd: i32, level: u32, name: u32, value: &[u8]) -> Result<()>;
        fn name(fd: i32, peer: bool, addr: &mut [u8]) -> Result<usize>;
        fn queued(fd: i32, out: bool) -> Result<u32>;
        fn probe(fd: i32) -> u32;
        fn watch(fd: i32, cookie: u64) -> Result<usize>;
        fn unwatch(fd: i32, core: usize) -> Result<()>;
        fn close_watched(fd: i32, core: usize);
        fn stat(fd: i32) -> Result<HostAttr>;
        fn close(fd: i32);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::vec::Vec;

    const CONTRACT: &str = include_str!("platform.rs");
    const HERE: &str = include_str!("watched.rs");

    /// The lines of a trait or an implementation, up to its end.
    fn lines_of(text: &'static str, head: &str) -> Vec<&'static str> {
        let begun = text.lines().skip_while(|line| !line.starts_with(head)).skip(1);
        begun.take_while(|line| *line != "}").collect()
    }

    /// The name of the method that begins in a line.
    fn method(line: &'static str) -> Option<&'static str> {
        let line = line.trim_start();
        let named = line.strip_prefix("unsafe ").unwrap_or(line).strip_prefix("fn ")?;
        named.split(['(', '<']).next()
    }

    /// OK-02: every call of the contract is passed on here, those with a body of their own, too, which else would be run in its place and
    /// be no call of the platform below. And each says that it is made, but for those that are known to do nothing that takes long.
    #[test]
    fn every_call_is_watched() {
        const UNWATCHED: [&[&str]; 2] = [
            &[
                "archive",
                "armed_here",
                "can_step",
                "clock",
                "control",
                "end",
                "frame_of",
                "has_answers",
                "has_page_bits",
                "host",
                "inbox",
                "log",
                "now",
                "realtime",
            ],
            &["looks"],
        ];
        let both = [
            ("pub trait Platform: Sync {", "impl Platform for Watched {", 40),
            ("pub trait HostCalls", "impl HostCalls for WatchedHost {", 16),
        ];
        for ((contract, here, least), unwatched) in both.into_iter().zip(UNWATCHED) {
            // What lies deeper is inside of a body.
            let declared = lines_of(CONTRACT, contract).into_iter();
            let declared: BTreeSet<&str> =
                declared.filter(|line| !line.starts_with("     ")).filter_map(method).collect();
            let (mut told, mut passed) = (BTreeSet::new(), BTreeSet::new());
            for line in lines_of(HERE, here) {
                let to = if line.ends_with(';') { &mut told } else { &mut passed };
                to.extend(method(line));
            }
            assert!(declared.len() >= least, "{contract} has {} calls: {declared:?}", declared.len());
            let all: BTreeSet<&str> = told.union(&passed).copied().collect();
            assert_eq!(declared, all, "{contract} and {here}");
            assert_eq!(passed, unwatched.iter().copied().collect(), "passed on unwatched by {here}");
        }
    }
}
