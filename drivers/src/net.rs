//! Network devices (Virtual I/O Device specification 1.3, section 5.1) as ports of the network stack.
#![allow(unsafe_code, reason = "reaches a device's buffers, and has one user at a time for what is not Sync")]

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use atoll_abi::control::DeviceRegisters;
use atoll_netstack::PacketPort;
use virtio_drivers::Error;
use virtio_drivers::transport::Transport;

use crate::memory::Memory;
use crate::ring::{BUFFER, Ring, SIZE};
use crate::transport::{AnyTransport, Interrupts};

const INCOMING: u16 = 0;
const OUTGOING: u16 = 1;
/// Bytes of virtio's header before a frame, and of older devices'. All of it is zero: no offloads.
const HEADER: usize = 12;
const OLD_HEADER: usize = 10;
/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// Largest packet in a frame.
const MTU: usize = 1500;
const _: () = assert!(HEADER + ETHERNET + MTU <= BUFFER);
/// No buffer.
const NONE: usize = SIZE;

bitflags::bitflags! {
    /// Feature bits.
    #[derive(Clone, Copy, Debug)]
    struct Features: u64 {
        /// The hardware address is said.
        const MAC = 1 << 5;
        /// Interrupts and notifications are suppressed by index.
        const EVENT_INDEX = 1 << 29;
        /// It follows the standard.
        const VERSION_1 = 1 << 32;
    }
}

/// What one user at a time has. The transport is dropped first.
struct State {
    transport: AnyTransport,
    incoming: Ring<Memory>,
    outgoing: Ring<Memory>,
}

/// A network device.
pub struct NetPort {
    mac: [u8; 6],
    /// Bytes before a frame.
    header: usize,
    interrupts: Interrupts,
    busy: AtomicBool,
    /// The incoming buffer whose frame was handed on last, for the device to have again.
    seen: AtomicUsize,
    state: UnsafeCell<State>,
}

// SAFETY: the state is reached by `with` only, which lets one in at a time.
unsafe impl Sync for NetPort {}
// SAFETY: registers and queues are mapped alike on all cores.
unsafe impl Send for NetPort {}

impl NetPort {
    /// Starts a device that the cell was granted.
    ///
    /// # Safety
    /// It is one of the descriptor's, as the nucleus filled it in, and nobody else uses the device.
    pub unsafe fn new(device: &DeviceRegisters) -> Result<NetPort, Error> {
        // SAFETY: the caller's promise.
        let mut transport = unsafe { AnyTransport::new(device) }?;
        let features = transport.begin_init(Features::all());
        let mac = transport.read_consistent(|| transport.read_config_space::<[u8; 6]>(0))?;
        let by_index = features.contains(Features::EVENT_INDEX);
        let outgoing = Ring::new(&mut transport, OUTGOING, by_index, false)?;
        let mut incoming = Ring::new(&mut transport, INCOMING, by_index, true)?;
        transport.finish_init();
        while let Some(n) = incoming.take_free() {
            incoming.give(n, BUFFER);
        }
        incoming.show(&mut transport);
        let header = if features.contains(Features::VERSION_1) { HEADER } else { OLD_HEADER };
        let state = UnsafeCell::new(State { transport, incoming, outgoing });
        // SAFETY: the caller's promise; the transport is not asked for that.
        let interrupts = unsafe { Interrupts::new(device) };
        let (busy, seen) = (AtomicBool::new(false), AtomicUsize::new(NONE));
        Ok(NetPort { mac, header, interrupts, busy, seen, state })
    }

    /// All who come here have the network stack to themselves.
    #[inline]
    fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        assert!(!self.busy.swap(true, Ordering::Acquire), "two cores at one network device");
        // SAFETY: nobody else is in here.
        let result = f(unsafe { &mut *self.state.get() });
        self.busy.store(false, Ordering::Release);
        result
    }

    /// The device's interrupt has come. The next one comes only after this.
    pub fn interrupted(&self) {
        self.interrupts.answer();
    }

    /// A second look, of a core that is about to sleep ([`Ring::show_again`]) and has the network stack to itself. Value: something
    /// is to be done first.
    pub fn look_again(&self) -> bool {
        self.with(State::look_again)
    }
}

impl State {
    /// The next frame that came: its buffer, and the length of all that is in it.
    fn next_frame(&mut self, seen: usize) -> Option<(usize, usize, *mut u8)> {
        if seen < SIZE {
            self.incoming.give(seen, BUFFER);
        }
        let mut next = self.incoming.take_back();
        if next.is_none() {
            // With all that has been handed on at once.
            self.incoming.show(&mut self.transport);
            next = self.incoming.ask().then(|| self.incoming.take_back()).flatten();
        }
        next.map(|(n, len)| (n, len, self.incoming.buffer(n)))
    }

    /// Is there a buffer to send from? If not, an interrupt comes when there is.
    fn room(&mut self) -> bool {
        if self.outgoing.has_free() {
            return true;
        }
        self.reclaim();
        if !self.outgoing.has_free() && self.outgoing.ask() {
            self.reclaim();
        }
        self.outgoing.has_free()
    }

    fn look_again(&mut self) -> bool {
        self.incoming.show_again(&mut self.transport);
        self.outgoing.show_again(&mut self.transport);
        let had_room = self.outgoing.has_free();
        if !had_room {
            self.reclaim();
        }
        self.incoming.has_back() || had_room != self.outgoing.has_free()
    }

    /// Takes buffers back whose frames are gone.
    fn reclaim(&mut self) {
        while let Some((n, _)) = self.outgoing.take_back() {
            self.outgoing.put_back(n);
        }
    }
}

impl PacketPort for NetPort {
    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn mtu(&self) -> usize {
        MTU
    }

    fn receive(&self, f: &mut dyn FnMut(&[u8])) -> bool {
        let seen = self.seen.swap(NONE, Ordering::Acquire);
        // The frame is handed on outside: an answer may be sent from there.
        let Some((n, len, buffer)) = self.with(|s| s.next_frame(seen)) else { return false };
        if len >= self.header {
            // SAFETY: so much of a buffer, and at most all of it; it is ours until the device has it again.
            f(unsafe { core::slice::from_raw_parts(buffer.add(self.header), len - self.header) });
        }
        self.seen.store(n, Ordering::Release);
        true
    }

    fn room(&self) -> bool {
        self.with(State::room)
    }

    fn send(&self, len: usize, f: &mut dyn FnMut(&mut [u8])) -> bool {
        if len > ETHERNET + MTU {
            return false;
        }
        let taken = self.with(|s| {
            let n = s.room().then(|| s.outgoing.take_free()).flatten()?;
            Some((n, s.outgoing.buffer(n)))
        });
        let Some((n, buffer)) = taken else { return false };
        // SAFETY: part of a buffer, which is ours until the device has it. The header before it was never written to.
        f(unsafe { core::slice::from_raw_parts_mut(buffer.add(self.header), len) });
        self.with(|s| {
            s.outgoing.give(n, self.header + len);
            s.outgoing.show(&mut s.transport);
        });
        true
    }
}
