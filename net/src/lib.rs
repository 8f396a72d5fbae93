//! Sockets below the system calls.
//!
//! [`handle`] fixes the upper seam of architecture section 8: stream and
//! datagram handles, which the socket calls, epoll and blocking are written
//! against. [`host`] implements them with the host's sockets; [`unix`] is
//! Unix sockets, which never leave the cell, and [`route`] answers those who ask for the network's interfaces.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod address;
pub mod handle;
pub mod host;
mod readiness;
pub mod route;
pub mod unix;

pub use address::Address;
pub use handle::{Datagram, DatagramHandle, Handle, Shutdown, StreamHandle};
