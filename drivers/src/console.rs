//! Console devices (Virtual I/O Device specification 1.3, section 5.3), their first port: bytes in and out.
#![allow(unsafe_code, reason = "gives buffers to a device")]

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use atoll_abi::control::DeviceRegisters;
use virtio_drivers::Error;
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::Transport;

use crate::memory::Memory;
use crate::queue::{Features, tell};
use crate::transport::AnyTransport;

/// Buffers each way.
const QUEUE: usize = 16;
/// Bytes of one: what QEMU passes on at once.
const BUFFER: usize = 4096;
const INCOMING: u16 = 0;
const OUTGOING: u16 = 1;

/// A console device.
pub struct Console<T: Transport> {
    transport: T,
    incoming: VirtQueue<Memory, QUEUE>,
    outgoing: VirtQueue<Memory, QUEUE>,
    /// It was not told of the last buffer for what comes, and of the last bytes.
    untold: [bool; 2],
    /// Buffers that the device has, by the queues' numbers.
    empty: [Option<Vec<u8>>; QUEUE],
    full: [Option<Vec<u8>>; QUEUE],
}

// SAFETY: registers, queues and buffers are mapped alike on all cores.
unsafe impl<T: Transport> Send for Console<T> {}

impl Console<AnyTransport> {
    /// Starts a device that the cell was granted.
    ///
    /// # Safety
    /// It is one of the descriptor's, as the nucleus filled it in, and nobody else uses the device.
    pub unsafe fn of(device: &DeviceRegisters) -> Result<Box<Self>, Error> {
        // SAFETY: the caller's promise.
        Console::new(unsafe { AnyTransport::new(device)? })
    }
}

impl<T: Transport> Console<T> {
    /// Starts a device.
    #[inline(never)]
    pub fn new(mut transport: T) -> Result<Box<Self>, Error> {
        transport.begin_init(Features::VERSION_1);
        let incoming = VirtQueue::new(&mut transport, INCOMING, false, false)?;
        let outgoing = VirtQueue::new(&mut transport, OUTGOING, false, false)?;
        transport.finish_init();
        let (empty, full) = ([const { None }; QUEUE], [const { None }; QUEUE]);
        let mut console =
            Box::new(Console { transport, incoming, outgoing, untold: [false; 2], empty, full });
        for _ in 0..QUEUE {
            console.offer(vec![0; BUFFER])?;
        }
        Ok(console)
    }

    /// Its interrupt has come. The next one comes only after this.
    pub fn interrupted(&mut self) {
        self.transport.ack_interrupt();
    }

    /// Lets the device have a buffer for what comes.
    fn offer(&mut self, mut buffer: Vec<u8>) -> Result<(), Error> {
        // SAFETY: kept in `empty` until the device gives it back.
        let n = unsafe { self.incoming.add(&[], &mut [&mut buffer[..]])? };
        self.empty[usize::from(n)] = Some(buffer);
        self.untold[0] = tell(&self.incoming, &mut self.transport, INCOMING);
        Ok(())
    }

    /// Passes on bytes that have come; were there any? An error: the device can't be believed any more.
    pub fn receive(&mut self, f: impl FnOnce(&[u8])) -> Result<bool, Error> {
        let Some(n) = self.incoming.peek_used() else { return Ok(false) };
        let buffer = self.empty.get_mut(usize::from(n)).and_then(Option::take);
        let mut buffer = buffer.ok_or(Error::WrongToken)?;
        // SAFETY: the buffer that went with this number.
        let len = unsafe { self.incoming.pop_used(n, &[], &mut [&mut buffer[..]])? };
        f(buffer.get(..len as usize).ok_or(Error::IoError)?);
        self.offer(buffer).map(|()| true)
    }

    /// Sends bytes. [`Error::QueueFull`]: the device has too many that it has not taken yet.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), Error> {
        while let Some(n) = self.outgoing.peek_used() {
            let buffer = self.full.get_mut(usize::from(n)).and_then(Option::take);
            let buffer = buffer.ok_or(Error::WrongToken)?;
            // SAFETY: the buffer that went with this number.
            unsafe { self.outgoing.pop_used(n, &[&buffer[..]], &mut [])? };
        }
        let buffer = bytes.to_vec();
        // SAFETY: kept in `full` until the device gives it back.
        let n = unsafe { self.outgoing.add(&[&buffer[..]], &mut [])? };
        self.full[usize::from(n)] = Some(buffer);
        self.untold[1] = tell(&self.outgoing, &mut self.transport, OUTGOING);
        Ok(())
    }

    /// A second look, of a core that is about to sleep: does the device want to know by now what it has?
    pub fn look_again(&mut self) {
        if self.untold[0] {
            self.untold[0] = tell(&self.incoming, &mut self.transport, INCOMING);
        }
        if self.untold[1] {
            self.untold[1] = tell(&self.outgoing, &mut self.transport, OUTGOING);
        }
    }
}
