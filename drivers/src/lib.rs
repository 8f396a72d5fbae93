//! Drivers of devices that a cell was granted, in ring 3.
//!
//! The nucleus maps a device's registers into its cell and passes its interrupts on; everything else is done here.
//! The protocols are the `virtio-drivers` crate's: [`memory`] gives it memory that devices can reach, [`transport`]
//! their registers, [`blk`] reads disks, [`console`] takes and gives bytes. [`net`], which makes a port of the network
//! stack of a network device, has queues of its own ([`ring`]).
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub use virtio_drivers::Error;

pub mod blk;
pub mod console;
pub mod memory;
pub mod net;
mod queue;
mod ring;
pub mod transport;
