//! The grid: who may use a resource next, and what stands in line for it.
//!
//! A *resource* of the runtime serves *activities*, whose share of it a [`scheduler`] divides: fairly by weight, in turn, by
//! priority or by deadline, within limits (Omni-kernel, sections 2 and 3). The crate has no clock, makes no platform call
//! and knows no thread: times come in as arguments, in nanoseconds, so all of it is tested against models. What it keeps
//! belongs to one core, and nothing is allocated but when an activity is made known.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod scheduler;
