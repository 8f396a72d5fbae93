//! Sockets for cells that have no Linux below them: TCP, UDP and DHCP over frames.
//!
//! On the nucleus there is no host whose sockets a cell could use. This crate
//! takes the host's place below `net/src/host.rs`: a [`Stack`] knows sockets by
//! number, as a host knows descriptors, and gives Linux's answers and errors.
//! TCP is our own (`tcb`). UDP, ICMP, DHCP and the answers to neighbours'
//! questions are smoltcp's, and so are all wire formats but the headers that each
//! segment has. Around both is what makes them Linux's: addresses and ports,
//! listening with a backlog, closing in the background, options, readiness.
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
mod congestion;
mod events;
mod link;
mod neighbours;
mod options;
mod ports;
mod ring;
mod slab;
mod sockets;
mod stack;
mod tcb;
mod tcp;
mod udp;
mod way;

pub use link::PacketPort;
pub use stack::{Calls, Config, PortConfig, Stack};

#[cfg(test)]
mod tests;
