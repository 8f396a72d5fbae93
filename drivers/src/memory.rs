//! Memory that devices read and write: the cell's own, by its physical addresses.
#![allow(unsafe_code, reason = "implements an unsafe trait: devices write to this memory")]

use core::ptr::NonNull;
use core::sync::atomic::Ordering;

use atoll_abi::layout::{DIRECT_MAP, PAGE};
use atoll_abi::platform;
use atoll_mem::heap::{give_pages, memory, take_fixed_pages};
use virtio_drivers::{BufferDirection, Hal, PhysAddr};

/// What a device has to use for the byte at an address of the runtime's direct map.
///
/// # Panics
/// If the address is not in the cell's memory.
fn physical(at: u64) -> PhysAddr {
    let mut offset = at.wrapping_sub(DIRECT_MAP);
    for [start, len] in &platform().control().descriptor.extents {
        let len = len.load(Ordering::Relaxed);
        if offset < len {
            return start.load(Ordering::Relaxed) + offset;
        }
        offset -= len;
    }
    panic!("{at:#x} is no memory that a device could reach")
}

/// The cell's memory, for devices.
pub struct Memory;

// SAFETY: pages come from the heap, whole, zeroed and for this alone; neighbouring ones are neighbours for a device,
// too, because blocks are.
unsafe impl Hal for Memory {
    fn dma_alloc(pages: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        let order = pages.next_power_of_two().ilog2();
        match take_fixed_pages(order) {
            Some(offset) => {
                let at = DIRECT_MAP + offset;
                (physical(at), NonNull::new(at as *mut u8).unwrap_or(NonNull::dangling()))
            }
            // It takes that for "none".
            None => (0, NonNull::dangling()),
        }
    }

    unsafe fn dma_dealloc(_: PhysAddr, at: NonNull<u8>, pages: usize) -> i32 {
        give_pages(at.as_ptr() as u64 - DIRECT_MAP, pages.next_power_of_two().ilog2());
        0
    }

    unsafe fn mmio_phys_to_virt(at: PhysAddr, _: usize) -> NonNull<u8> {
        panic!("registers at {at:#x} were not granted")
    }

    unsafe fn share(buffer: NonNull<[u8]>, _: BufferDirection) -> PhysAddr {
        let (at, len) = (buffer.cast::<u8>().as_ptr() as u64, buffer.len() as u64);
        // A device sees one run of bytes; pages of the heap are one within a block.
        assert!(at >= DIRECT_MAP && at - DIRECT_MAP + len <= memory().total());
        assert!(at / PAGE / 512 == (at + len - 1) / PAGE / 512);
        physical(at)
    }

    unsafe fn unshare(_: PhysAddr, _: NonNull<[u8]>, _: BufferDirection) {}
}
