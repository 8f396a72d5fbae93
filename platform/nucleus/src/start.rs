//! How a core of a cell begins.
#![allow(unsafe_code, reason = "the first instructions of a core, and its GS base")]

use core::arch::x86_64::__cpuid_count;
use core::sync::atomic::Ordering;

use crate::calls::{self, call};
use crate::{NUCLEUS, control, upcall};
use atoll_abi::control::{ABI_VERSION, MAGIC};
use atoll_abi::core_local::CoreLocal;
use atoll_abi::frame::XSAVE_MAX;
use atoll_abi::layout::{HOST_THREAD_SIZE, HOST_THREADS, LOOP_STACK};
use atoll_abi::nucleus::call;
use atoll_abi::platform::set_platform;
use atoll_platform_entry::entry;
use atoll_platform_entry::upcall::{XSTATE_MAGIC, XSTATE_MAGIC_AT, XSTATE_SIZE};

/// Wait status of a cell that could not be started.
const NOT_STARTED: i32 = 125 << 8;

core::arch::global_asm!(
    ".pushsection .text.atoll_start,\"ax\",@progbits",
    // From the ELF entry. rdi: the core's number.
    ".globl atoll_nucleus_start",
    "atoll_nucleus_start:",
    "imul rax, rdi, {SIZE}",
    "movabs rsp, {STACK}",
    "add rsp, rax",
    "xor ebp, ebp",
    "call atoll_nucleus_core",
    "ud2",
    ".popsection",
    SIZE = const HOST_THREAD_SIZE,
    STACK = const HOST_THREADS + LOOP_STACK,
);

unsafe extern "C" {
    /// Defined by the runtime binary: boots a core.
    fn atoll_boot(core: usize) -> !;
}

fn refuse(why: &str) -> ! {
    NUCLEUS.log(why);
    NUCLEUS.end(NOT_STARTED)
}

#[unsafe(no_mangle)]
extern "C" fn atoll_nucleus_core(core: usize) -> ! {
    set_platform(&NUCLEUS);
    let control = control();
    let d = &control.descriptor;
    if d.magic.load(Ordering::Relaxed) != MAGIC || d.version.load(Ordering::Relaxed) != ABI_VERSION {
        refuse("the nucleus and the runtime are not of the same version: build the image again");
    }
    if !calls::has_random() {
        refuse("this processor has no RDRAND, and so no random numbers for programs");
    }
    let local = &control.cores[core].local;
    local.this.store(local as *const CoreLocal as u64, Ordering::Relaxed);
    local.id.store(core as u32, Ordering::Relaxed);
    local.mask.store(1, Ordering::Relaxed);
    local.entry.store(entry::entry_address(), Ordering::Relaxed);
    let [clock_gettime, gettimeofday, time] = entry::clock_functions();
    local.clock_gettime.store(clock_gettime, Ordering::Relaxed);
    local.gettimeofday.store(gettimeofday, Ordering::Relaxed);
    local.time.store(time, Ordering::Relaxed);
    // SAFETY: the core's own words; the nucleus has turned the instruction on.
    unsafe {
        core::arch::asm!("wrgsbase {}", in(reg) local as *const CoreLocal as u64, options(nomem, nostack));
    }
    // As Linux's signal frames have it: how much of it counts.
    let size = __cpuid_count(0xd, 0).ebx.min(XSAVE_MAX as u32);
    let state = upcall::state_area(core);
    // SAFETY: the top of the core's trap stack, which is mapped and not in use yet.
    unsafe {
        (state as *mut u8).add(XSTATE_MAGIC_AT).cast::<u32>().write(XSTATE_MAGIC);
        (state as *mut u8).add(XSTATE_SIZE).cast::<u32>().write(size);
    }
    let marks = entry::landmarks();
    let places = [upcall::address(), entry::trapped_call_address(), marks.resume_critical, marks.resume_end];
    if call(call::UPCALLS, places).is_err() {
        refuse("the nucleus does not take the runtime's upcalls");
    }
    // SAFETY: the runtime's function is linked in.
    unsafe { atoll_boot(core) }
}
