//! Books that are not kept: what a build with the feature `without-books` has in place of `books.rs`, to show what they cost
//! (`cargo xtask bench grid overhead`). Nothing is measured and nothing charged; processor time is divided as always.

use crate::activity::{Activity, Cause, Debtor};
use crate::thread::Thread;
use atoll_abi::core_local::CoreLocal;
use atoll_abi::grid::Resource;

/// As in the books.
pub const KINDS: usize = 512;
/// As in the books.
pub const PAGE_FAULT: usize = KINDS - 1;
/// As in the books.
pub const EVENT: usize = KINDS - 2;
/// As in the books.
pub const START: usize = KINDS - 3;
/// As in the books.
pub const BURN: usize = KINDS - 4;

/// What a core's books are at: nothing.
pub(crate) struct Meter;

/// A message that waits.
#[derive(Clone, Copy)]
pub(crate) struct Suspended;

impl Meter {
    pub fn new(_core: usize, _local: &'static CoreLocal) -> Self {
        Meter
    }

    pub fn open(&self) {}

    pub fn work_for(&self, _t: &Thread) {}

    pub fn works(&self, _since: u64) {}

    pub fn settle(&self, _ran: u64) -> u64 {
        0
    }

    pub fn tell_stolen(&self) -> u64 {
        0
    }

    pub fn told_stolen(&self) -> u64 {
        0
    }

    pub fn worked(&self, _ran: u64) {}

    pub fn suspend(&self, _now: u64) -> Suspended {
        Suspended
    }

    pub fn resume(&self, _message: Suspended, _now: u64) {}

    pub fn first_run(&self) {}

    pub fn times_switch(&self) -> bool {
        false
    }

    pub fn switched(&self, _took: u64) {}

    pub fn found_nothing(&self, _took: u64, _now: u64) {}

    pub fn worked_ahead(&self, _took: u64, _pages: u32, _now: u64) {}

    pub fn idle(&self, _slept: u64) {}

    pub fn serving(&self) -> Option<u32> {
        None
    }

    pub fn served_last(&self) -> u64 {
        0
    }

    pub fn woke(&self, _t: &Thread) {}

    pub fn charge_events(&self, _took: u64, _later: bool) {}

    pub fn turn_over(&self, _who: u32, _now: u64) {}

    pub fn arrive(&self) {}

    pub fn looks(&self) -> Option<u64> {
        None
    }

    pub fn looked(&self, _begun: Option<u64>, _later: bool) -> u64 {
        0
    }

    pub fn events_charged(&self, _f: impl FnMut(u32, u64, u64)) {}
}

/// Nobody pays.
pub(crate) fn pay_of(_class: u32, _served: Resource, _messages: u64, _took: u64) {}

/// Does what is done for an activity.
pub(crate) fn serve(_activity: &Activity, _resource: Resource, f: impl FnOnce()) {
    f();
}

/// No message is timed.
pub fn set_sample(_n: u32) {}

/// A message begins.
#[inline(always)]
pub fn begin(_kind: usize, _resource: Resource) {}

/// A message ends.
#[inline(always)]
pub fn end() {}

/// Nothing is asserted.
pub(crate) fn watch() {}

/// It turns out which resource a message is for.
#[inline(always)]
pub fn turn_to(_resource: Resource) {}

/// Does what another resource is asked for.
#[inline(always)]
pub fn within<R>(_resource: Resource, f: impl FnOnce() -> R) -> R {
    f()
}

/// Bytes went through a resource.
#[inline(always)]
pub fn moved(_resource: Resource, _bytes: u64) {}

/// Bytes of somebody's went through a resource.
pub fn moved_for(_whose: Debtor, _resource: Resource, _bytes: u64) {}

/// A request to the platform that is under way, and not timed.
pub(crate) struct Asked;

impl Asked {
    pub fn now(_resource: Option<Resource>) -> Asked {
        Asked
    }

    pub fn is_over(&self, _cause: Cause) -> u64 {
        0
    }

    pub fn was_waited_for(&self, _took: u64) {}
}

/// As in the books.
pub fn worked_ahead_for(_activity: u32, _pages: u32) {}

/// As in the books.
#[derive(Clone, Copy)]
pub struct Begun;

/// Nobody's time is known.
pub fn begin_for_nobody() -> Option<Begun> {
    None
}

/// And nobody's is paid back.
pub fn reimburse(_begun: Option<Begun>, _resource: Resource, _whose: &[(Debtor, u64)]) {}

/// Wakes somebody.
pub fn untold<R>(f: impl FnOnce() -> R) -> R {
    f()
}

/// Does what somebody is told of an event for.
#[inline(always)]
pub fn tell<R>(_cause: Cause, f: impl FnOnce() -> R) -> R {
    f()
}
