//! A runtime that runs the conformance suite in place of programs: on a Linux host and on the nucleus.
#![no_std]
#![no_main]
#![allow(unsafe_code, reason = "a runtime: starts the heap, resumes programs, comes back from them")]

extern crate alloc;

#[path = "../../../cell/src/memory_functions.rs"]
mod memory_functions;
#[path = "../../../cell/src/symbols.rs"]
mod symbols;

use core::arch::global_asm;
use core::cell::UnsafeCell;
use core::fmt::Arguments;
use core::sync::atomic::{AtomicU32, Ordering};

use atoll_abi::core_local::core_local;
use atoll_abi::frame::{Upcall, UserFrame};
use atoll_abi::layout::DIRECT_MAP;
use atoll_abi::platform::platform;
use atoll_conformance::Machine;
use atoll_mem::heap::{RuntimeAllocator, take_fixed_pages};
use atoll_mem::pages::BLOCK_ORDER;
use atoll_platform_entry::entry;
use atoll_platform_entry::line::Line;
use {atoll_platform_host as _, atoll_platform_nucleus as _};

#[global_allocator]
static ALLOCATOR: RuntimeAllocator = RuntimeAllocator::new();

global_asm!(
    // rdi: where to keep the stack, rsi: function, rdx: its argument. Calls it and comes back by `suite_return`.
    ".globl suite_leave",
    "suite_leave:",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "mov [rdi], rsp",
    "mov rdi, rdx",
    "call rsi",
    "ud2",
    // rdi: the stack that was kept.
    ".globl suite_return",
    "suite_return:",
    "mov rsp, rdi",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "cld",
    "ret",
    // rdi: function, rsi: stack.
    ".globl suite_begin",
    "suite_begin:",
    "mov rsp, rsi",
    "xor ebp, ebp",
    "call rdi",
    "ud2",
);

unsafe extern "C" {
    fn suite_leave(kept: *mut usize, f: extern "C" fn(usize) -> !, argument: usize);
    fn suite_return(kept: usize) -> !;
    fn suite_begin(f: extern "C" fn() -> !, stack: usize) -> !;
}

/// What the suite has on its one core. It lies in the runtime's image, which all spaces share.
struct Suite {
    stack: UnsafeCell<[u128; 8192]>,
    /// The stack of the suite while something else runs.
    kept: UnsafeCell<usize>,
    upcall: UnsafeCell<Option<Upcall>>,
    /// A program's frame, with the stack below it that its upcalls run on.
    thread: UnsafeCell<Thread>,
}

#[repr(C, align(64))]
struct Thread {
    stack: [u128; 2048],
    frame: UserFrame,
}

// SAFETY: only the first core uses it.
unsafe impl Sync for Suite {}

static SUITE: Suite = Suite {
    stack: UnsafeCell::new([0; 8192]),
    kept: UnsafeCell::new(0),
    upcall: UnsafeCell::new(None),
    // SAFETY: zeroes are a frame.
    thread: UnsafeCell::new(unsafe { core::mem::zeroed() }),
};

struct Cell;

impl Machine for Cell {
    fn say(&self, line: Arguments) {
        let mut text = Line::new();
        // It can't fail.
        let _ = core::fmt::write(&mut text, format_args!("| {line}"));
        platform().log(text.as_str());
    }

    fn block(&self) -> u64 {
        take_fixed_pages(BLOCK_ORDER).expect("the cell's memory has a block")
    }

    fn switch(&self, space: u32) {
        extern "C" fn go(space: usize) -> ! {
            platform().leave_stack(switch, space)
        }
        extern "C" fn switch(space: usize) -> ! {
            platform().space_switch(space as u32, arrived, 0)
        }
        extern "C" fn arrived(_: usize) -> ! {
            // SAFETY: kept by the call below.
            unsafe { suite_return(*SUITE.kept.get()) }
        }
        // SAFETY: comes back by `arrived`.
        unsafe { suite_leave(SUITE.kept.get(), go, space as usize) }
    }

    fn program(&self, frame: &mut UserFrame) -> Option<Upcall> {
        extern "C" fn go(frame: usize) -> ! {
            // SAFETY: the suite's one frame, below which nothing is needed any more.
            unsafe { entry::resume(frame as *mut UserFrame) }
        }
        let core = core_local();
        // SAFETY: nothing else uses the thread now; upcalls come back by `told`.
        unsafe {
            let own = &raw mut (*SUITE.thread.get()).frame;
            own.write(frame.clone());
            core.frame.store(own, Ordering::SeqCst);
            // Not null: a program runs.
            core.task.store(own.cast(), Ordering::SeqCst);
            suite_leave(SUITE.kept.get(), go, own as usize);
            core.task.store(core::ptr::null_mut(), Ordering::SeqCst);
            *frame = (*own).clone();
            (*SUITE.upcall.get()).take()
        }
    }
}

/// An upcall of the program: back to the suite.
fn told(upcall: Upcall) -> ! {
    // SAFETY: the first core's, which runs the suite.
    unsafe {
        *SUITE.upcall.get() = Some(upcall);
        suite_return(*SUITE.kept.get())
    }
}

#[unsafe(no_mangle)]
fn atoll_upcall(_frame: &mut UserFrame, upcall: Upcall) {
    told(upcall)
}

#[unsafe(no_mangle)]
fn atoll_events(_frame: &mut UserFrame, _bits: u32) {
    told(Upcall::Event)
}

/// On the nucleus, a call that traps comes as one by a rewritten site does.
#[unsafe(no_mangle)]
extern "C" fn atoll_syscall(_frame: &mut UserFrame) {
    told(Upcall::Syscall)
}

#[unsafe(no_mangle)]
static atoll_quiet: [usize; atoll_abi::QUIET_CALLS] = [0; atoll_abi::QUIET_CALLS];

static SET_UP: AtomicU32 = AtomicU32::new(0);

#[unsafe(no_mangle)]
extern "C" fn atoll_boot(core: usize) -> ! {
    if core != 0 {
        while SET_UP.load(Ordering::Acquire) == 0 {
            core::hint::spin_loop();
        }
        atoll_mem::heap::start_core(core);
        atoll_conformance::other_core()
    }
    let d = &platform().control().descriptor;
    let cores = d.cores.load(Ordering::Relaxed) as usize;
    // SAFETY: the platform mapped the cell's memory there, zeroed as far as it says, and it is only ours.
    unsafe {
        ALLOCATOR.start(DIRECT_MAP as *mut u8, d.memory_sizes(), cores, d.zeroed.load(Ordering::Relaxed) != 0)
    };
    atoll_mem::heap::start_core(0);
    SET_UP.store(1, Ordering::Release);
    // SAFETY: the suite's own stack.
    unsafe { suite_begin(suite, SUITE.stack.get().add(1) as usize) }
}

extern "C" fn suite() -> ! {
    atoll_conformance::run(&Cell);
    platform().end(42 << 8)
}
