//! The platform contract on the nucleus, the side inside the cell.
//!
//! Ring 0 does what ring 3 can't, by few calls (`atoll_abi::nucleus`, made in [`calls`]); everything else
//! is here: [`start`] begins a core, [`upcall`] takes what the nucleus passes up, [`service`] answers the
//! messages that serving threads answer on a host, by `devices` where one has to be waited for, [`net`] has the
//! sockets.
#![no_std]

extern crate alloc;

mod books;
pub mod calls;
mod devices;
mod net;
mod outside;
pub mod service;
mod spaces;
pub mod start;
pub mod upcall;

use core::sync::atomic::Ordering;

use atoll_abi::control::Control;
use atoll_abi::core_local::{core_local, pending};
use atoll_abi::counter::since;
use atoll_abi::errno::{Errno, Result};
use atoll_abi::layout::{CONTROL, PAGE};
use atoll_abi::mailbox::{Inbox, Line};
use atoll_abi::nucleus::call;
use atoll_abi::platform::{Access, Backing, Change, Event, Events, HostCalls, PageBit, Platform};
use atoll_abi::service::{Answer, Request};
use atoll_mem::user::taken_away;
use atoll_platform_entry::entry;

/// The nucleus as a platform.
pub struct Nucleus;

/// What the runtime is told of as its platform.
pub static NUCLEUS: &dyn Platform = &Nucleus;

/// The control area, which every space maps.
#[inline(always)]
#[allow(unsafe_code, reason = "the control area is at a fixed address in every space of a cell")]
pub fn control() -> &'static Control {
    // SAFETY: mapped by the nucleus before any code of the runtime runs; all its fields are atomics.
    // What of it belongs to a host only is not mapped, and not used here.
    unsafe { &*(CONTROL as *const Control) }
}

impl Platform for Nucleus {
    fn control(&self) -> &'static Control {
        control()
    }

    fn now(&self) -> u64 {
        let clock = &control().descriptor.clock;
        let count = calls::counter().wrapping_sub(clock.base.load(Ordering::Relaxed));
        ((u128::from(count) * u128::from(clock.scale.load(Ordering::Relaxed))) >> 32) as u64
    }

    fn realtime(&self) -> u64 {
        self.now() + control().descriptor.clock.realtime.load(Ordering::Relaxed)
    }

    fn counted(&self) -> Option<u64> {
        let area = &control().cores[core_local().id()];
        let mask = area.counter_mask.load(Ordering::Relaxed);
        if mask == 0 {
            return None;
        }
        let now = calls::event_counter();
        // Only this core writes there.
        let before = area.counted.load(Ordering::Relaxed);
        area.counted.store(now, Ordering::Relaxed);
        Some(since(before, now, mask))
    }

    fn slept(&self) -> Option<u64> {
        Some(control().cores[core_local().id()].slept.load(Ordering::Relaxed))
    }

    fn arm(&self, deadline: u64) {
        // The only error is a wrong number.
        let _ = calls::call(call::ARM, [deadline, 0, 0, 0]);
    }

    fn disarm(&self) {
        self.arm(u64::MAX)
    }

    fn park(&self, deadline: Option<u64>, events: &mut Events) {
        // What is known of now, and what is asked for. Else a device that has done something since the last look interrupts,
        // which ends the sleep.
        let asked = control().cores[core_local().id()].outstanding.load(Ordering::Relaxed) != 0;
        if asked || self.has_answers() {
            self.poll(events);
            if !events.is_empty() || net::net().is_some_and(net::Net::is_interrupted) {
                return;
            }
        }
        // On some emulated machines a queue's driver and its device can miss each other, and this core would sleep for good.
        let devices = devices::devices().is_some_and(|d| d.look_again());
        let net = net::net().is_some_and(|n| n.look_again());
        if devices || net {
            return self.poll(events);
        }
        let deadline = deadline.unwrap_or(u64::MAX).min(net::net().map_or(u64::MAX, |n| n.deadline()));
        let _ = calls::call(call::PARK, [deadline, 0, 0, 0]);
        // Whoever comes here looks at everything. A deadline's bit stays: the scheduler counts on it.
        let mine = pending::NOTIFY | pending::DEVICE | pending::MAILBOX;
        let bits = core_local().pending.fetch_and(!mine, Ordering::SeqCst);
        if bits & pending::DEVICE != 0 {
            self.device_interrupt();
        }
        self.poll(events)
    }

    fn poll(&self, events: &mut Events) {
        let area = &control().cores[core_local().id()];
        while events.room() > 0 {
            let Some(answer) = area.answers.pop::<Answer>() else { break };
            area.outstanding.fetch_sub(1, Ordering::Relaxed);
            events.push(Event::Answer(answer));
        }
        if let Some(devices) = devices::devices() {
            devices.poll(events);
        }
        if let Some(net) = net::net() {
            net.poll(events);
        }
    }

    fn has_answers(&self) -> bool {
        !control().cores[core_local().id()].answers.is_empty()
            || devices::devices().is_some_and(|d| d.has_events())
            || net::net().is_some_and(|n| n.has_events())
    }

    fn device_interrupt(&self) {
        if let Some(devices) = devices::devices() {
            devices.interrupted();
        }
        if let Some(net) = net::net() {
            net.interrupted();
        }
    }

    fn notify(&self, core: usize) {
        let _ = calls::call(call::NOTIFY, [core as u64, 0, 0, 0]);
    }

    fn interrupt(&self, core: usize) {
        self.notify(core)
    }

    fn space_create(&self) -> Result<u32> {
        let space = spaces::with_tables(|| calls::call(call::SPACE_CREATE, [0; 4]))? as u32;
        control().space_states[space as usize]
            .store(atoll_abi::control::space_state::READY, Ordering::Release);
        Ok(space)
    }

    fn space_destroy(&self, space: u32) {
        control().space_states[space as usize]
            .store(atoll_abi::control::space_state::FREE, Ordering::Release);
        if let Err(e) = calls::call(call::SPACE_DESTROY, [u64::from(space), 0, 0, 0]) {
            panic!("space {space} can't be destroyed: {e}");
        }
    }

    fn space_switch(&self, space: u32, continuation: extern "C" fn(usize) -> !, argument: usize) -> ! {
        if let Err(e) = calls::call(call::SPACE_SWITCH, [u64::from(space), 0, 0, 0]) {
            panic!("space {space} can't be entered: {e}");
        }
        core_local().space.store(space, Ordering::SeqCst);
        continuation(argument)
    }

    fn leave_stack(&self, continuation: extern "C" fn(usize) -> !, argument: usize) -> ! {
        entry::leave_stack(continuation, argument)
    }

    #[allow(unsafe_code, reason = "an unsafe call of the contract")]
    unsafe fn map(&self, addr: u64, len: u64, access: Access, backing: Backing) -> Result<()> {
        let one = match backing {
            Backing::Memory { offset } => Change::Map { addr, len, access, offset },
            Backing::Nothing => Change::Unmap { addr, len },
            // There is no host.
            Backing::File { .. } => return Err(Errno::ENODEV),
        };
        // SAFETY: the caller's promise.
        unsafe { self.change(&[one]) }
    }

    #[allow(unsafe_code, reason = "an unsafe call of the contract")]
    unsafe fn unmap(&self, addr: u64, len: u64) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.change(&[Change::Unmap { addr, len }]) }
    }

    #[allow(unsafe_code, reason = "an unsafe call of the contract")]
    unsafe fn protect(&self, addr: u64, len: u64, access: Access) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.change(&[Change::Protect { addr, len, access }]) }
    }

    #[allow(unsafe_code, reason = "an unsafe call of the contract")]
    unsafe fn change(&self, list: &[Change]) -> Result<()> {
        let less =
            |one: &Change| !matches!(one, Change::Map { access, .. } if access.contains(Access::WRITE));
        let done = spaces::change(list);
        if list.iter().any(less) {
            taken_away();
        }
        done
    }

    fn has_page_bits(&self) -> bool {
        true
    }

    fn take_page_bits(&self, bit: PageBit, addr: u64, len: u64, pages: &mut [u16]) -> Result<()> {
        spaces::take_page_bits(bit, addr, len, pages)
    }

    fn forget(&self, addr: u64, len: u64) -> Result<()> {
        spaces::forget(addr, len)
    }

    fn frame_of(&self, offset: u64) -> Option<u64> {
        let mut first = 0;
        for [start, len] in &control().descriptor.extents {
            let len = len.load(Ordering::Relaxed);
            if offset - first < len {
                return Some((start.load(Ordering::Relaxed) + (offset - first)) / PAGE);
            }
            first += len;
        }
        None
    }

    fn memory_back(&self) -> Option<u64> {
        calls::call(call::TABLES_BACK, [0; 4]).ok()
    }

    fn send(&self, peer: usize, line: &Line) -> Result<()> {
        #[repr(align(64))]
        struct Aligned(Line);
        let line = Aligned(*line);
        calls::call(call::SEND, [peer as u64, &raw const line.0 as u64, 0, 0]).map(drop)
    }

    #[allow(unsafe_code, reason = "inboxes are at fixed addresses in every space of a cell")]
    fn inbox(&self, peer: usize) -> Option<&'static Inbox> {
        let at = control().descriptor.peers.get(peer)?.inbox.load(Ordering::Relaxed);
        // SAFETY: mapped by the nucleus for as long as the cell lives; all its fields are atomics.
        (at != 0).then(|| unsafe { &*(at as *const Inbox) })
    }

    fn memory_used_to(&self, _block: u64) {}

    fn submit(&self, request: &Request) -> Result<()> {
        service::submit(request)
    }

    fn take_descriptor(&self) -> Result<i32> {
        net::Net::take_descriptor()
    }

    fn host(&self) -> Option<&dyn HostCalls> {
        // Each call on a socket comes by here.
        Some(net::net().unwrap_or_else(net::start))
    }

    #[allow(unsafe_code, reason = "the archive is at a fixed address in every space of a cell")]
    fn archive(&self) -> Option<&'static [u8]> {
        let [at, len] = control().descriptor.archive.each_ref().map(|w| w.load(Ordering::Relaxed));
        // SAFETY: mapped by the nucleus, read-only, for as long as the cell lives.
        (at != 0).then(|| unsafe { core::slice::from_raw_parts(at as *const u8, len as usize) })
    }

    fn random(&self, out: &mut [u8]) {
        calls::random(out)
    }

    fn log(&self, line: &str) {
        let line = &line.as_bytes()[..line.len().min(calls::LINE_MAX)];
        let _ = calls::call(call::LOG, [line.as_ptr() as u64, line.len() as u64, 0, 0]);
    }

    fn end(&self, status: i32) -> ! {
        loop {
            let _ = calls::call(call::END, [status as u32 as u64, 0, 0, 0]);
        }
    }
}
