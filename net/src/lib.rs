//! Sockets below the system calls.
//!
//! [`handle`] fixes the two seams of architecture section 8: stream and
//! datagram handles, which the socket calls, epoll and blocking are written
//! against, and [`PacketPort`](handle::PacketPort), which a network stack of
//! our own will stand on. [`host`] implements the handles with the host's
//! sockets; [`unix`] is Unix sockets, which never leave the cell.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod address;
pub mod handle;
pub mod host;
mod readiness;
pub mod unix;

pub use address::Address;
pub use handle::{Datagram, DatagramHandle, Handle, Shutdown, StreamHandle};
