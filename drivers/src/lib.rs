//! Drivers of devices that a cell was granted, in ring 3.
//!
//! The nucleus maps a device's registers into its cell and passes its interrupts on; everything else is done here.
//! The protocols are the `virtio-drivers` crate's: [`memory`] gives it memory that devices can reach, [`transport`]
//! their registers, [`net`] makes a port of the network stack of a network device.
#![no_std]

extern crate alloc;

pub mod memory;
pub mod net;
pub mod transport;
