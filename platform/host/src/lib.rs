//! The platform contract on a Linux host, the side inside the cell.
//!
//! A space is a host process with one thread a core. All processes of a cell
//! share one table of descriptors and map the runtime at the same addresses;
//! what they have of their own is the program. [`upcall`] turns host signals into
//! upcalls (how a program gets into the runtime and back is the room `platform/entry`); [`start`] makes the processes; [`cores`] passes the batons, parks
//! and wakes; [`maps`] and [`calls`] are the few host calls the cell makes,
//! all of which [`sys`] contains. The supervisor's side, which starts and
//! confines all this, is the `supervisor` room.
#![no_std]

pub mod calls;
pub mod cores;
pub mod maps;
pub mod start;
pub mod sys;
pub mod upcall;

use atoll_abi::control::Control;
use atoll_abi::errno::{Errno, Result};
use atoll_abi::layout::CONTROL;
use atoll_abi::platform::{Access, Backing, Events, HostCalls, Platform};
use atoll_abi::service::Request;
use atoll_platform_entry::entry;

/// The host platform.
pub struct Host;

/// What the runtime is told of as its platform.
pub static HOST: &dyn Platform = &Host;

/// The control area, which every space maps.
#[inline(always)]
#[allow(unsafe_code, reason = "the control area is at a fixed address in every process of a cell")]
pub fn control() -> &'static Control {
    // SAFETY: mapped before any code of the runtime runs; all its fields are atomics.
    unsafe { &*(CONTROL as *const Control) }
}

impl Platform for Host {
    fn control(&self) -> &'static Control {
        control()
    }

    fn now(&self) -> u64 {
        calls::clock(calls::CLOCK_MONOTONIC)
    }

    fn realtime(&self) -> u64 {
        calls::clock(calls::CLOCK_REALTIME)
    }

    fn clock(&self, clock: u32) -> u64 {
        calls::clock(clock)
    }

    fn cpu_time(&self) -> Option<u64> {
        // The thread of this space is the core; the vDSO makes a call of it.
        Some(calls::clock(calls::CLOCK_THREAD_CPUTIME_ID))
    }

    fn counted(&self) -> Option<u64> {
        start::counted(upcall::host_thread())
    }

    fn arm(&self, deadline: u64) {
        cores::arm(Some(deadline))
    }

    fn can_step(&self) -> bool {
        true
    }

    fn tell_of_events(&self) -> bool {
        cores::tell_of_events()
    }

    fn disarm(&self) {
        cores::arm(None)
    }

    fn arm_for_work(&self) -> bool {
        cores::arm_for_work();
        true
    }

    fn armed_here(&self) -> Option<u64> {
        Some(upcall::host_thread().armed.load(core::sync::atomic::Ordering::Relaxed))
    }

    fn park(&self, deadline: Option<u64>, events: &mut Events) {
        cores::wait(deadline.map(|d| d.saturating_sub(self.now())).or(Some(u64::MAX)), events)
    }

    fn poll(&self, events: &mut Events) {
        cores::wait(None, events)
    }

    fn has_answers(&self) -> bool {
        cores::has_answers()
    }

    fn notify(&self, core: usize) {
        cores::notify(core)
    }

    fn interrupt(&self, core: usize) {
        cores::interrupt(core)
    }

    fn space_create(&self) -> Result<u32> {
        start::space_create()
    }

    fn space_destroy(&self, space: u32) {
        start::space_destroy(space)
    }

    fn space_switch(&self, space: u32, continuation: extern "C" fn(usize) -> !, argument: usize) -> ! {
        cores::switch(space, continuation, argument)
    }

    fn parks_apart(&self) -> bool {
        true
    }

    fn leave_stack(&self, continuation: extern "C" fn(usize) -> !, argument: usize) -> ! {
        entry::leave_stack(continuation, argument)
    }

    #[allow(unsafe_code, reason = "an unsafe call of the contract")]
    unsafe fn map(&self, addr: u64, len: u64, access: Access, backing: Backing) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { maps::map(addr, len, access, backing) }
    }

    #[allow(unsafe_code, reason = "an unsafe call of the contract")]
    unsafe fn unmap(&self, addr: u64, len: u64) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { maps::unmap(addr, len) }
    }

    #[allow(unsafe_code, reason = "an unsafe call of the contract")]
    unsafe fn protect(&self, addr: u64, len: u64, access: Access) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { maps::protect(addr, len, access) }
    }

    fn more_memory(&self, bytes: u64) -> Option<u64> {
        cores::more_memory(bytes)
    }

    fn memory_used_to(&self, block: u64) {
        cores::memory_used_to(block as u32)
    }

    fn submit(&self, request: &Request) -> Result<()> {
        cores::submit(request)
    }

    fn take_descriptor(&self) -> Result<i32> {
        calls::take_descriptor()
    }

    fn host(&self) -> Option<&dyn HostCalls> {
        Some(&calls::Calls)
    }

    fn random(&self, out: &mut [u8]) {
        calls::random(out)
    }

    fn log(&self, line: &str) {
        calls::log(line)
    }

    fn end(&self, status: i32) -> ! {
        start::end(status)
    }
}

/// A host call's result as an error number or a value.
fn result(ret: i64) -> Result<u64> {
    Errno::from_ret(ret)
}
