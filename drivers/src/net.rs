//! Network devices (Virtual I/O Device specification 1.3, section 5.1) as ports of the network stack.
#![allow(unsafe_code, reason = "gives buffers to a device, and has one user at a time for what is not Sync")]

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering, fence};

use atoll_abi::control::DeviceRegisters;
use atoll_netstack::PacketPort;
use virtio_drivers::Error;
use virtio_drivers::device::net::VirtIONetRaw;

use crate::memory::Memory;
use crate::transport::AnyTransport;

/// Buffers each way. The crate has queues of so many as values, which a thread's stack must hold.
const QUEUE: usize = 32;
/// Bytes of one: a frame, and virtio's header.
const BUFFER: usize = 2048;
/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// Largest packet in a frame.
const MTU: usize = 1500;

type Device = VirtIONetRaw<Memory, AnyTransport, QUEUE>;
type Buffer = Box<[u8; BUFFER]>;

/// What one user at a time has.
struct State {
    device: Box<Device>,
    /// Buffers that the device has for frames that come, by the queue's numbers.
    incoming: Vec<Option<Buffer>>,
    /// Those with frames that go, and how much of each is the frame.
    outgoing: Vec<Option<(Buffer, usize)>>,
    spare: Vec<Buffer>,
}

/// A network device.
pub struct NetPort {
    mac: [u8; 6],
    busy: AtomicBool,
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
        let device = start(unsafe { AnyTransport::new(device) }?)?;
        let mac = device.mac_address();
        let mut state = State {
            device,
            incoming: (0..QUEUE).map(|_| None).collect(),
            outgoing: (0..QUEUE).map(|_| None).collect(),
            spare: (0..QUEUE).map(|_| buffer()).collect(),
        };
        for _ in 0..QUEUE {
            state.offer(buffer())?;
        }
        state.device.enable_interrupts();
        Ok(NetPort { mac, busy: AtomicBool::new(false), state: UnsafeCell::new(state) })
    }

    fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> Option<R> {
        if self.busy.swap(true, Ordering::Acquire) {
            return None;
        }
        // SAFETY: nobody else is in here.
        let result = f(unsafe { &mut *self.state.get() });
        self.busy.store(false, Ordering::Release);
        Some(result)
    }

    /// The device's interrupt has come. The next one comes only after this. Value: false while another core is at the
    /// device: to be called again.
    #[must_use]
    pub fn interrupted(&self) -> bool {
        self.with(|s| s.device.ack_interrupt()).is_some()
    }
}

/// By itself, so that the stack holds the queues' values no longer than that.
#[inline(never)]
fn start(transport: AnyTransport) -> Result<Box<Device>, Error> {
    Device::new(transport).map(Box::new)
}

/// What a queue has for us. What was taken from it before says up to where no interrupt is wanted: the device must see
/// that, or we what it has done since. The crate has no fence there.
fn ask(mut poll: impl FnMut() -> Option<u16>) -> Option<u16> {
    poll().or_else(|| {
        fence(Ordering::SeqCst);
        poll()
    })
}

fn buffer() -> Buffer {
    let bytes: Box<[u8]> = vec![0; BUFFER].into_boxed_slice();
    bytes.try_into().unwrap_or_else(|_| Box::new([0; BUFFER]))
}

impl State {
    /// Lets the device have a buffer for a frame.
    fn offer(&mut self, mut buffer: Buffer) -> Result<(), Error> {
        // SAFETY: kept in `incoming` until the device gives it back.
        let n = unsafe { self.device.receive_begin(&mut buffer[..])? };
        self.incoming[usize::from(n)] = Some(buffer);
        Ok(())
    }

    /// Takes buffers back whose frames are gone.
    fn reclaim(&mut self) {
        while let Some(n) = ask(|| self.device.poll_transmit()) {
            let Some((buffer, len)) = self.outgoing.get_mut(usize::from(n)).and_then(Option::take) else {
                return;
            };
            // SAFETY: the buffer that went with this number.
            if unsafe { self.device.transmit_complete(n, &buffer[..len]) }.is_err() {
                // The device lies; it keeps that one.
                core::mem::forget(buffer);
                return;
            }
            self.spare.push(buffer);
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
        // The frame is handed on outside: an answer may be sent from there.
        let taken = self.with(|s| {
            let n = ask(|| s.device.poll_receive())?;
            let mut buffer = s.incoming.get_mut(usize::from(n))?.take()?;
            // SAFETY: the buffer that went with this number.
            match unsafe { s.device.receive_complete(n, &mut buffer[..]) } {
                Ok((header, len)) => Some((buffer, header, len)),
                Err(_) => {
                    // The device lies: nothing was received, and it keeps that one.
                    core::mem::forget(buffer);
                    None
                }
            }
        });
        let Some((buffer, header, len)) = taken.flatten() else { return false };
        if let Some(frame) = buffer.get(header..).and_then(|b| b.get(..len)) {
            f(frame);
        }
        // One that can't be offered again is one less.
        self.with(|s| s.offer(buffer));
        true
    }

    fn room(&self) -> bool {
        self.with(|s| {
            s.reclaim();
            !s.spare.is_empty() && s.device.can_send()
        })
        .unwrap_or(false)
    }

    fn send(&self, len: usize, f: &mut dyn FnMut(&mut [u8])) -> bool {
        let room = self.with(|s| {
            s.reclaim();
            if !s.device.can_send() || len > ETHERNET + MTU {
                return None;
            }
            let mut buffer = s.spare.pop()?;
            let header = s.device.fill_buffer_header(&mut buffer[..]).ok()?;
            Some((buffer, header))
        });
        let Some((mut buffer, header)) = room.flatten() else { return false };
        f(&mut buffer[header..header + len]);
        self.with(|s| {
            let all = header + len;
            // SAFETY: kept in `outgoing` until the device gives it back.
            match unsafe { s.device.transmit_begin(&buffer[..all]) } {
                Ok(n) => s.outgoing[usize::from(n)] = Some((buffer, all)),
                Err(_) => s.spare.push(buffer),
            }
        })
        .is_some()
    }
}
