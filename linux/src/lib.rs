//! The Linux personality: programs, processes, signals and system calls.
//!
//! [`syscalls`] is the table and what stands behind it, one file a family;
//! [`process`] and [`signal`] say what a process is and how it is told
//! things; [`exec`] loads programs; [`files`] is a process's descriptors and
//! [`futex`], [`epoll`] and [`event`] what they can wait by; [`grid`] and
//! [`units`] say whose they are; [`proc`] and
//! [`dev`] are the file systems that show all this. What Linux does, with the
//! numbers it does it with, is the specification: the manual pages, and where
//! they are silent, the system itself, which the tests compare with.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod boot;
pub mod burns;
mod cores;
pub mod cpu_timer;
pub mod current;
pub mod dev;
pub mod epoll;
pub mod event;
pub mod exec;
pub mod files;
pub mod futex;
pub mod grid;
pub mod line;
pub mod log;
mod pi;
pub mod proc;
pub mod process;
pub mod pty;
mod quota;
mod report;
pub mod rewrite;
pub mod signal;
pub mod socket;
pub mod syscalls;
pub mod types;
pub mod units;
pub mod vdso;
pub mod versioned;

pub use current::current;
pub use process::{Process, Task};
