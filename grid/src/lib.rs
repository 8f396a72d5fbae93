//! The grid: who may use a resource next, and what stands in line for it.
//!
//! A *resource* of the runtime serves *activities*, whose share of it a [`scheduler`] divides: fairly by weight, in turn, by
//! priority or by deadline, within limits (Omni-kernel, sections 2 and 3). Resources ask each other by [`message`]s, which
//! wait in [`queue`]s of one core, resource and activity. Messages to another core go through its [`inbox`]; [`affinity`]
//! says to which core, so that what has to stay in order does.
//!
//! The crate has no clock, makes no platform call and knows no thread: times come in as arguments, in nanoseconds, so all of
//! it is tested against models. Cores share inboxes and affinity only, and no lock. Nothing is allocated but when an activity
//! is made known, and when a core has more messages under way than its pool has memory for.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod affinity;
mod atomic;
pub mod inbox;
#[cfg(all(test, loom))]
#[path = "../../sync/src/loom_stacks.rs"]
mod loom_stacks;
pub mod matches;
pub mod message;
pub mod queue;
pub mod scheduler;
