//! Block devices (Virtual I/O Device specification 1.3, section 5.2): reading, without waiting.
#![allow(unsafe_code, reason = "gives buffers to a device")]

use alloc::boxed::Box;
use core::ptr::NonNull;

use atoll_abi::control::DeviceRegisters;
use virtio_drivers::Error;
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::{DeviceStatus, Transport};

use crate::memory::Memory;
use crate::queue::{Features, tell};
use crate::transport::AnyTransport;

/// Bytes of a sector, in which devices count whatever their blocks are.
pub const SECTOR: u64 = 512;
/// Bytes of one request at most.
pub const REQUEST_MAX: u64 = 64 << 10;

/// Descriptors of the queue; a request takes three.
const QUEUE: usize = 32;
const QUEUE_NUMBER: u16 = 0;
/// Looks at a device that is being reset.
const PATIENCE: usize = 1_000_000;
/// Kind of a request: to read.
const READ: u32 = 0;
/// A device's word for "done".
const DONE: u8 = 0;

/// Offsets of what a device says of itself.
mod config {
    pub const SECTORS: usize = 0;
    pub const SIZE_MAX: usize = 8;
    pub const SEG_MAX: usize = 12;
    pub const BLOCK_SIZE: usize = 20;
}

/// Why a device is not used.
#[derive(Clone, Copy, Debug)]
pub enum Refused {
    /// It does not start.
    Start(Error),
    /// What it says of itself can't be.
    Geometry(&'static str),
}

impl core::fmt::Display for Refused {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Refused::Start(e) => write!(f, "{e}"),
            Refused::Geometry(what) => f.write_str(what),
        }
    }
}

impl From<Error> for Refused {
    fn from(e: Error) -> Self {
        Refused::Start(e)
    }
}

/// What the device reads and writes of a request beside the data.
#[repr(C)]
struct Head {
    /// Kind, 0 and sector, as the specification has them.
    request: [u8; 16],
    status: [u8; 1],
}

struct UnderWay {
    tag: u64,
    head: Box<Head>,
    to: NonNull<[u8]>,
}

/// A block device.
pub struct Disk<T: Transport> {
    transport: T,
    queue: VirtQueue<Memory, QUEUE>,
    sectors: u64,
    /// It was not told of the last request.
    untold: bool,
    /// By the queue's numbers.
    under_way: [Option<UnderWay>; QUEUE],
}

// SAFETY: registers, queue and buffers are mapped alike on all cores.
unsafe impl<T: Transport> Send for Disk<T> {}

impl Disk<AnyTransport> {
    /// Starts a device that the cell was granted.
    ///
    /// # Safety
    /// It is one of the descriptor's, as the nucleus filled it in, and nobody else uses the device.
    pub unsafe fn of(device: &DeviceRegisters) -> Result<Box<Self>, Refused> {
        // SAFETY: the caller's promise.
        Disk::new(unsafe { AnyTransport::new(device)? })
    }
}

impl<T: Transport> Disk<T> {
    /// Starts a device.
    #[inline(never)]
    pub fn new(mut transport: T) -> Result<Box<Self>, Refused> {
        let features = transport.begin_init(Features::all());
        let sectors = transport.read_consistent(|| {
            let low: u32 = transport.read_config_space(config::SECTORS)?;
            let high: u32 = transport.read_config_space(config::SECTORS + 4)?;
            Ok(u64::from(low) | u64::from(high) << 32)
        })?;
        if sectors == 0 || sectors.checked_mul(SECTOR).is_none_or(|bytes| bytes > i64::MAX as u64) {
            return Err(Refused::Geometry("its size can't be"));
        }
        if features.contains(Features::BLOCK_SIZE) {
            let block: u32 = transport.read_config_space(config::BLOCK_SIZE)?;
            if !block.is_power_of_two() || !(512..=4096).contains(&block) {
                return Err(Refused::Geometry("its blocks are not of 512 to 4096 bytes"));
            }
        }
        if features.contains(Features::BLOCK_SIZE_MAX) {
            let most: u32 = transport.read_config_space(config::SIZE_MAX)?;
            if u64::from(most) < REQUEST_MAX {
                return Err(Refused::Geometry("it takes no segments of 64 KiB"));
            }
        }
        if features.contains(Features::BLOCK_SEG_MAX) {
            let most: u32 = transport.read_config_space(config::SEG_MAX)?;
            if most == 0 {
                return Err(Refused::Geometry("it takes no segments"));
            }
        }
        let queue = VirtQueue::new(&mut transport, QUEUE_NUMBER, false, false)?;
        transport.finish_init();
        Ok(Box::new(Disk { transport, queue, sectors, untold: false, under_way: [const { None }; QUEUE] }))
    }

    /// Its size, bytes.
    pub fn size(&self) -> u64 {
        self.sectors * SECTOR
    }

    /// Does it work on something?
    pub fn is_busy(&self) -> bool {
        self.under_way.iter().any(Option::is_some)
    }

    /// Its interrupt has come. The next one comes only after this.
    pub fn interrupted(&mut self) {
        self.transport.ack_interrupt();
    }

    /// Begins to read from byte `at` on, whole sectors, at most [`REQUEST_MAX`] bytes; `tag` says which request it was
    /// when it is done. False: it has enough to do, and must be asked again later.
    ///
    /// # Safety
    /// The buffer is memory of the cell, in one block, and nobody uses it until the request is done.
    pub unsafe fn read(&mut self, tag: u64, at: u64, mut to: NonNull<[u8]>) -> Result<bool, Error> {
        let len = to.len() as u64;
        let end = at.checked_add(len).ok_or(Error::InvalidParam)?;
        let whole = at.is_multiple_of(SECTOR) && len.is_multiple_of(SECTOR);
        if !whole || len == 0 || len > REQUEST_MAX || end > self.size() {
            return Err(Error::InvalidParam);
        }
        let mut head = Box::new(Head { request: [0; 16], status: [u8::MAX] });
        head.request[..4].copy_from_slice(&READ.to_le_bytes());
        head.request[8..].copy_from_slice(&(at / SECTOR).to_le_bytes());
        let Head { request, status } = &mut *head;
        // SAFETY: they are kept in `under_way` until the device is done; the data, by the caller's promise.
        let added = unsafe { self.queue.add(&[&request[..]], &mut [to.as_mut(), &mut status[..]]) };
        match added {
            Ok(n) => self.under_way[usize::from(n)] = Some(UnderWay { tag, head, to }),
            Err(Error::QueueFull) => return Ok(false),
            Err(e) => return Err(e),
        }
        self.untold = tell(&self.queue, &mut self.transport, QUEUE_NUMBER);
        Ok(true)
    }

    /// A second look, of a core that is about to sleep: does the device want to know of the last request by now?
    pub fn look_again(&mut self) {
        if self.untold {
            self.untold = tell(&self.queue, &mut self.transport, QUEUE_NUMBER);
        }
    }

    /// A request that is done: its tag, and whether it was done well. An error: the device can't be believed any more.
    pub fn done(&mut self) -> Result<Option<(u64, bool)>, Error> {
        let Some(n) = self.queue.peek_used() else { return Ok(None) };
        let slot = self.under_way.get_mut(usize::from(n)).ok_or(Error::WrongToken)?;
        // What it answers wrongly it may still have.
        let request = slot.as_mut().ok_or(Error::WrongToken)?;
        let Head { request: head, status } = &mut *request.head;
        // SAFETY: what was given for this number.
        unsafe { self.queue.pop_used(n, &[&head[..]], &mut [request.to.as_mut(), &mut status[..]])? };
        let done = (request.tag, *status == [DONE]);
        *slot = None;
        Ok(Some(done))
    }

    /// Resets the device, so that it lets go of all that it was given, and looks a while whether it does. It serves no more.
    pub fn stop(&mut self) {
        self.transport.set_status(DeviceStatus::empty());
        let _ = (0..PATIENCE).find(|_| self.has_stopped());
    }

    /// Has it done so? The reset is over when its status is 0 (section 2.4.2); until then the buffers are the device's.
    pub fn has_stopped(&self) -> bool {
        self.transport.get_status().is_empty()
    }
}
