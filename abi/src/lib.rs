//! The contract of a cell: what the runtime, the platform under it and the
//! supervisor beside it have agreed on.
//!
//! This room holds types and constants only: the address map ([`layout`]),
//! the description of a cell and its start ([`control`], [`start`]), what a core shares
//! with its platform ([`core_local`]), the register frames of an upcall
//! ([`frame`]), the grid's books and configuration ([`grid`]), the fixed-size service messages and the rings that carry them
//! ([`service`], [`ring`]) and the [`Platform`](platform::Platform) trait,
//! the only way down. It does no work, allocates nothing, and everybody may
//! depend on it; it depends on nobody.
#![no_std]

#[cfg(feature = "boot")]
extern crate alloc;

#[cfg(test)]
extern crate std;

pub mod control;
pub mod core_local;
pub mod counter;
pub mod errno;
pub mod frame;
pub mod grid;
pub mod layout;
pub mod mailbox;
pub mod nucleus;
pub mod platform;
pub mod report;
pub mod ring;
pub mod service;
pub mod start;
#[cfg(debug_assertions)]
pub mod watched;

/// Entries of `atoll_quiet`, the runtime's table by number of the functions (of the current
/// task; to the call's value) that serve quiet calls, for the platform's entry code.
pub const QUIET_CALLS: usize = 192;

pub use errno::{Errno, Result};
pub use platform::{Platform, assert_accounted, platform};
