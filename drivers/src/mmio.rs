//! Virtio devices by registers in memory, and what their queues have in common.
#![allow(unsafe_code, reason = "registers are at an address")]

use core::ptr::NonNull;
use core::sync::atomic::{Ordering, fence};

use virtio_drivers::Error;
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::Transport;
use virtio_drivers::transport::mmio::{MmioTransport, VirtIOHeader};

use crate::memory::Memory;

/// Bytes of registers that a device has, with its own.
const REGISTERS: usize = 0x200;

/// The device whose registers are at this address.
///
/// # Safety
/// They are a granted virtio device's, with the registers of its own behind them, and nobody else uses them.
pub(crate) unsafe fn transport(registers: u64) -> Result<MmioTransport<'static>, Error> {
    let header = NonNull::new(registers as *mut VirtIOHeader).ok_or(Error::InvalidParam)?;
    // The page may end behind them.
    let len = REGISTERS.min(4096 - registers as usize % 4096);
    // SAFETY: the caller's promise.
    unsafe { MmioTransport::new(header, len) }.map_err(|_| Error::Unsupported)
}

/// Tells the device of what was added to a queue, if it wants to know.
pub(crate) fn tell<const N: usize>(
    queue: &VirtQueue<Memory, N>,
    transport: &mut impl Transport,
    number: u16,
) {
    // What was added is there before we look whether the device sleeps; it looks in the other order.
    fence(Ordering::SeqCst);
    if queue.should_notify() {
        transport.notify(number);
    }
}

bitflags::bitflags! {
    /// Feature bits that any device has. No suppression of interrupts by index: what the crate does about that
    /// leaves out a fence.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Features: u64 {
        /// Block devices: the largest segment is said.
        const BLOCK_SIZE_MAX = 1 << 1;
        /// Block devices: the most segments are said.
        const BLOCK_SEG_MAX = 1 << 2;
        /// Block devices: the size of a block is said.
        const BLOCK_SIZE = 1 << 6;
        /// It follows the standard.
        const VERSION_1 = 1 << 32;
    }
}
