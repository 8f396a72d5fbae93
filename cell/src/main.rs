//! The runtime of a cell: one static program for ring 3, without a C library.
//!
//! Puts the rooms together: names the platform, starts the heap and the
//! scheduler on each core, and the Linux personality on the first.
#![no_std]
#![no_main]

extern crate alloc;

mod memory_functions;
mod symbols;

use core::sync::atomic::{AtomicU32, Ordering};

use atoll_abi::frame::{Upcall, UserFrame};
use atoll_abi::layout::DIRECT_MAP;
use atoll_abi::platform::{Events, platform};
use atoll_mem::heap::RuntimeAllocator;
// Both are linked in: the control area says which one a core begins on.
use {atoll_platform_host as _, atoll_platform_nucleus as _};

#[global_allocator]
static ALLOCATOR: RuntimeAllocator = RuntimeAllocator::new();

/// Cores that may go on booting: the first has set everything up.
static SET_UP: AtomicU32 = AtomicU32::new(0);

/// How long a core sleeps at a time until the first has set everything up, ns. It is woken.
const LOOK_AGAIN: u64 = 100_000_000;

/// Boots a core. The platform has named itself.
#[unsafe(no_mangle)]
#[allow(unsafe_code, reason = "the platform's way in; starts the heap")]
extern "C" fn atoll_boot(core: usize) -> ! {
    let control = platform().control();
    if core == 0 {
        let d = &control.descriptor;
        let cores = d.cores.load(Ordering::Relaxed) as usize;
        let zeroed = d.zeroed.load(Ordering::Relaxed) != 0;
        // SAFETY: the platform mapped the cell's memory there, zeroed as far as it says, and it is only ours.
        unsafe {
            ALLOCATOR.start(DIRECT_MAP as *mut u8, d.memory_sizes(), cores, zeroed);
        }
        atoll_mem::heap::start_core(0);
        let Some((xcr0, size)) = atoll_task::detect_extended() else {
            platform().log("this processor's extended state is not one that Atoll knows");
            platform().end(125 << 8)
        };
        control.descriptor.xcr0.store(xcr0, Ordering::Relaxed);
        control.descriptor.xsave_size.store(size, Ordering::Relaxed);
        atoll_task::init(cores);
    } else {
        while SET_UP.load(Ordering::Acquire) == 0 {
            platform().park(Some(platform().now() + LOOK_AGAIN), &mut Events::new());
        }
        atoll_mem::heap::start_core(core);
    }
    atoll_task::boot_core();
    if core == 0 {
        SET_UP.store(1, Ordering::Release);
        for other in 1..control.descriptor.cores.load(Ordering::Relaxed) as usize {
            platform().notify(other);
        }
        let first = atoll_task::spawn(0, atoll_linux::boot::boot);
        atoll_task::start(first.expect("no memory for the first thread"));
    }
    atoll_task::run_core()
}

#[unsafe(no_mangle)]
#[allow(unsafe_code, reason = "called by the platform")]
fn atoll_upcall(frame: &mut UserFrame, upcall: Upcall) {
    atoll_linux::syscalls::upcall(frame, upcall);
}

#[unsafe(no_mangle)]
#[allow(unsafe_code, reason = "called by the platform")]
fn atoll_events(frame: &mut UserFrame, bits: u32) {
    atoll_linux::syscalls::events(frame, bits);
}
