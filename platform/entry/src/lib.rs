//! The way from a program into the runtime and back, the same on the host and the nucleus.
//!
//! [`entry`] is the code that rewritten system-call sites jump to and that programs are resumed by;
//! [`upcall`] what a platform does with a program that it has interrupted: where the program is to
//! go on, its registers into its thread's frame, and the runtime's functions for it; [`line`] a line
//! for the log.
#![no_std]

pub mod entry;
pub mod line;
pub mod upcall;
