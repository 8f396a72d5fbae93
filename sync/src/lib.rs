//! How threads of the runtime wait for each other.
//!
//! A [`Mutex`] that parks its waiters, [`Shared`] for what many read at once,
//! [`WaitQueue`]s for conditions, [`Lines`] for what cores send each other, [`lease`]s of quotas, [`RcuArc`] and [`RcuSlot`] for tables that are read on every
//! system call, and [`SetOnce`] for what is made at boot. The crate knows
//! threads only as tokens that can be parked and unparked; whoever has
//! threads (the scheduler, or a test) says how with [`set_thread_ops`]. It
//! does not spin for longer than parking would take: a preempted holder must
//! not make another core burn (architecture section 6, OSv section 2.2,
//! requirement OV-04).
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod atomic;
pub mod lease;
mod lines;
#[cfg(all(test, loom))]
mod loom_stacks;
mod mutex;
mod once;
mod rcu;
mod shared;
mod threads;
mod wait;

pub use lines::{Lines, Linked};
pub use mutex::{Mutex, MutexGuard};
pub use once::SetOnce;
pub use rcu::{RcuArc, RcuSlot, RcuTable, set_defer};
pub use shared::{ReadGuard, Shared, WriteGuard};
pub use threads::{ThreadOps, Token, breathe, park, relax, set_thread_ops, unpark};
pub use wait::{Interest, WaitQueue, Wake, WakeKey};
