//! Sockets for cells that have no Linux below them: TCP, UDP and DHCP over frames.
//!
//! On the nucleus there is no host whose sockets a cell could use. This crate
//! takes the host's place below `net/src/host.rs`: a [`Stack`] knows sockets by
//! number, as a host knows descriptors, and gives Linux's answers and errors.
//! The protocols themselves are smoltcp's; what is here is everything that
//! makes them Linux's: addresses and ports, listening with a backlog, closing in
//! the background, options, readiness.
//!
//! It stands on [`PacketPort`]s, which move frames. It never waits, never looks
//! at a clock and never touches a program's memory: time and chance come from
//! the caller, so that runs can be repeated, and bytes go through closures that
//! may stop short. It believes nothing that a frame says.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod address;
mod checksum;
mod events;
mod link;
mod options;
mod ports;
mod slab;
mod sockets;
mod stack;
mod tcp;
mod udp;

pub use link::PacketPort;
pub use stack::{Calls, Config, PortConfig, Stack};

#[cfg(test)]
mod tests;
