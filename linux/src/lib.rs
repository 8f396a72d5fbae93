//! The Linux personality: programs, processes, signals and system calls.
//!
//! [`syscalls`] is the table and what stands behind it, one file a family;
//! [`process`] and [`signal`] say what a process is and how it is told
//! things, [`capabilities`] what it may do; [`exec`] loads programs; [`files`] is a process's descriptors and
//! [`futex`], [`epoll`] and [`event`] what they can wait by; [`ipc`] is what
//! processes share by keys; [`grid`] and [`units`] say whose they are; [`proc`] and
//! [`dev`] are the file systems that show all this. What Linux does, with the
//! numbers it does it with, is the specification: the manual pages, and where
//! they are silent, the system itself, which the tests compare with.
#![no_std]

extern crate alloc;
// For its half of the platform contract, which the tests are linked with.
#[cfg(test)]
use atoll_platform_sim as _;
#[cfg(test)]
extern crate std;

pub mod aio;
mod asynchronous;
pub mod boot;
mod budget;
pub mod burns;
pub mod capabilities;
mod cgroup;
mod core_dump;
mod cores;
pub mod cpu_timer;
pub mod current;
pub mod dev;
pub mod epoll;
pub mod event;
pub mod exec;
mod extents;
pub mod files;
pub mod futex;
pub mod grid;
pub mod interfaces;
pub mod ipc;
mod jobs;
mod labelled;
pub mod line;
pub mod log;
mod memory_policy;
mod pi;
pub mod proc;
mod proc_memory;
mod proc_net;
pub mod process;
pub mod ptrace;
pub mod pty;
mod quota;
mod report;
pub mod rewrite;
pub mod seccomp;
mod shrinkers;
pub mod signal;
mod sock_diag;
pub mod socket;
pub mod syscalls;
pub mod types;
pub mod units;
mod userfault;
pub mod vdso;
pub mod versioned;
mod visit;

pub use current::current;
pub use process::{Process, Task};
