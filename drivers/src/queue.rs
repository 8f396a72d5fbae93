//! What virtio devices' queues have in common.

use core::sync::atomic::{Ordering, fence};

use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::Transport;

use crate::memory::Memory;

/// Tells the device of what was added to a queue, if it wants to know. Value: it does not. Before a core sleeps it is asked
/// once more then: see [`crate::ring::Ring::show_again`].
pub(crate) fn tell<const N: usize>(
    queue: &VirtQueue<Memory, N>,
    transport: &mut impl Transport,
    number: u16,
) -> bool {
    // What was added is there before we look whether the device sleeps; it looks in the other order.
    fence(Ordering::SeqCst);
    let wanted = queue.should_notify();
    if wanted {
        transport.notify(number);
    }
    !wanted
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
