//! How devices are spoken to: over MMIO by the crate's own transport, over PCI by one for a device whose configuration
//! space the nucleus keeps (Virtual I/O Device specification 1.3, section 4.1).
#![allow(unsafe_code, reason = "reads and writes registers that the nucleus has mapped")]

use core::ptr::NonNull;
use core::sync::atomic::Ordering;

use atoll_abi::control::{DeviceRegisters, structure, transport};
use virtio_drivers::transport::mmio::{MmioTransport, VirtIOHeader};
use virtio_drivers::transport::{DeviceStatus, DeviceType, InterruptStatus, Transport};
use virtio_drivers::{Error, PhysAddr};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// VIRTIO_F_ACCESS_PLATFORM: the device reaches memory by an IOMMU. One that offers this works only if it is taken;
/// what it is given, addresses of the cell's own memory, is right in any case.
const ACCESS_PLATFORM: u64 = 1 << 33;
/// The most queues that can be notified.
const QUEUES_MAX: usize = 8;
/// What stands for "no interrupt".
const NO_VECTOR: u16 = 0xffff;
/// Looks at a device that is being reset.
const PATIENCE: usize = 1_000_000;

/// Registers of the common configuration (section 4.1.4.3).
mod common {
    pub const DEVICE_FEATURE_SELECT: usize = 0;
    pub const DEVICE_FEATURE: usize = 4;
    pub const DRIVER_FEATURE_SELECT: usize = 8;
    pub const DRIVER_FEATURE: usize = 0xc;
    pub const NUM_QUEUES: usize = 0x12;
    pub const STATUS: usize = 0x14;
    pub const GENERATION: usize = 0x15;
    pub const QUEUE_SELECT: usize = 0x16;
    pub const QUEUE_SIZE: usize = 0x18;
    pub const QUEUE_VECTOR: usize = 0x1a;
    pub const QUEUE_ENABLE: usize = 0x1c;
    pub const QUEUE_NOTIFY_OFFSET: usize = 0x1e;
    pub const QUEUE_DESCRIPTORS: usize = 0x20;
    pub const QUEUE_DRIVER: usize = 0x28;
    pub const QUEUE_DEVICE: usize = 0x30;
    pub const LEN: usize = 0x38;
}

/// A structure of registers.
struct Registers {
    at: NonNull<u8>,
    len: usize,
}

impl Registers {
    fn place<T>(&self, offset: usize) -> *mut T {
        assert!(offset.checked_add(size_of::<T>()).is_some_and(|end| end <= self.len));
        // SAFETY: within the registers, as was just seen.
        unsafe { self.at.as_ptr().add(offset).cast() }
    }

    fn read<T: FromBytes>(&self, offset: usize) -> T {
        // SAFETY: mapped registers, and any bits are a value; placed by the specification, and so aligned.
        unsafe { self.place::<T>(offset).read_volatile() }
    }

    fn write<T>(&self, offset: usize, value: T) {
        // SAFETY: as above.
        unsafe { self.place::<T>(offset).write_volatile(value) }
    }
}

/// A modern device on PCI.
pub struct Pci {
    kind: DeviceType,
    common: Registers,
    notify: Registers,
    /// Where in `notify` each queue is notified.
    notify_offsets: [usize; QUEUES_MAX],
    device: Option<Registers>,
}

/// A transport of either kind.
pub enum AnyTransport {
    /// Over MMIO. The features that the device offers go with it.
    Mmio(MmioTransport<'static>, u64),
    /// Over PCI; the same.
    Pci(Pci, u64),
}

// SAFETY: registers are mapped alike on all cores.
unsafe impl Send for Pci {}

impl Pci {
    /// # Safety
    /// As for [`AnyTransport::new`].
    unsafe fn new(device: &DeviceRegisters) -> Result<Pci, Error> {
        let part = |n: usize| {
            let [at, len] = &device.structures[n];
            let at = NonNull::new(at.load(Ordering::Relaxed) as *mut u8)?;
            Some(Registers { at, len: len.load(Ordering::Relaxed) as usize })
        };
        let common = part(structure::COMMON).filter(|c| c.len >= common::LEN).ok_or(Error::Unsupported)?;
        let notify = part(structure::NOTIFY).ok_or(Error::Unsupported)?;
        let kind =
            DeviceType::try_from(device.kind.load(Ordering::Relaxed)).map_err(|_| Error::Unsupported)?;
        let mut pci =
            Pci { kind, common, notify, notify_offsets: [0; QUEUES_MAX], device: part(structure::DEVICE) };
        let multiplier = device.notify_multiplier.load(Ordering::Relaxed) as usize;
        let queues = usize::from(pci.common.read::<u16>(common::NUM_QUEUES)).min(QUEUES_MAX);
        for queue in 0..queues {
            pci.select(queue as u16);
            let offset = usize::from(pci.common.read::<u16>(common::QUEUE_NOTIFY_OFFSET)) * multiplier;
            if !offset.is_multiple_of(2) || offset + 2 > pci.notify.len {
                return Err(Error::Unsupported);
            }
            pci.notify_offsets[queue] = offset;
        }
        // It may have no interrupt to give: then it would never be heard of.
        pci.select(0);
        pci.common.write(common::QUEUE_VECTOR, 0u16);
        if pci.common.read::<u16>(common::QUEUE_VECTOR) == NO_VECTOR {
            return Err(Error::Unsupported);
        }
        Ok(pci)
    }

    fn select(&self, queue: u16) {
        self.common.write(common::QUEUE_SELECT, queue);
    }

    /// Two halves, which all devices take.
    fn write_address(&self, offset: usize, address: PhysAddr) {
        self.common.write(offset, address as u32);
        self.common.write(offset + 4, (address >> 32) as u32);
    }

    fn status(&self) -> u8 {
        self.common.read(common::STATUS)
    }

    fn set_status(&self, status: DeviceStatus) {
        self.common.write(common::STATUS, status.bits() as u8);
        if status.is_empty() {
            // A reset is over when it says so.
            let _ = (0..PATIENCE).find(|_| self.status() == 0);
        }
    }

    /// The features' halves, by where one is selected and where it is.
    fn features(&self) -> u64 {
        let half = |n: u32| {
            self.common.write(common::DEVICE_FEATURE_SELECT, n);
            u64::from(self.common.read::<u32>(common::DEVICE_FEATURE))
        };
        half(0) | half(1) << 32
    }

    fn set_features(&self, features: u64) {
        for (n, half) in [features as u32, (features >> 32) as u32].into_iter().enumerate() {
            self.common.write(common::DRIVER_FEATURE_SELECT, n as u32);
            self.common.write(common::DRIVER_FEATURE, half);
        }
    }

    fn set_queue(&self, queue: u16, size: u32, areas: [PhysAddr; 3]) {
        self.select(queue);
        self.common.write(common::QUEUE_SIZE, size as u16);
        let places = [common::QUEUE_DESCRIPTORS, common::QUEUE_DRIVER, common::QUEUE_DEVICE];
        for (place, area) in places.into_iter().zip(areas) {
            self.write_address(place, area);
        }
        self.common.write(common::QUEUE_VECTOR, 0u16);
        self.common.write(common::QUEUE_ENABLE, 1u16);
    }

    /// The device's own registers, if they have `len` bytes at `offset`.
    fn own(&self, offset: usize, len: usize) -> Result<&Registers, Error> {
        let own = self.device.as_ref().ok_or(Error::ConfigSpaceMissing)?;
        if offset.checked_add(len).is_none_or(|end| end > own.len) {
            return Err(Error::ConfigSpaceTooSmall);
        }
        Ok(own)
    }
}

impl Drop for Pci {
    fn drop(&mut self) {
        self.set_status(DeviceStatus::empty());
    }
}

impl AnyTransport {
    /// Speaks to a device that the cell was granted.
    ///
    /// # Safety
    /// It is one of the descriptor's, as the nucleus filled it in, and nobody else uses the device.
    pub unsafe fn new(device: &DeviceRegisters) -> Result<AnyTransport, Error> {
        match device.transport.load(Ordering::Relaxed) {
            transport::MMIO => {
                let [at, len] = &device.structures[structure::COMMON];
                let header = NonNull::new(at.load(Ordering::Relaxed) as *mut VirtIOHeader);
                let header = header.ok_or(Error::InvalidParam)?;
                // SAFETY: the caller's promise.
                let mmio = unsafe { MmioTransport::new(header, len.load(Ordering::Relaxed) as usize) };
                Ok(AnyTransport::Mmio(mmio.map_err(|_| Error::Unsupported)?, 0))
            }
            // SAFETY: the caller's promise.
            transport::PCI => Ok(AnyTransport::Pci(unsafe { Pci::new(device)? }, 0)),
            _ => Err(Error::Unsupported),
        }
    }
}

/// Registers of a device on MMIO by which its interrupts are answered (section 4.2.2).
const INTERRUPT_STATUS: usize = 0x60;
const INTERRUPT_ACKNOWLEDGE: usize = 0x64;

/// Answers a device's interrupts, whoever else is at the device.
pub struct Interrupts(Option<Registers>);

// SAFETY: registers are mapped alike on all cores.
unsafe impl Send for Interrupts {}
// SAFETY: a read and a write of registers that are for this alone; any order of several is right.
unsafe impl Sync for Interrupts {}

impl Interrupts {
    /// # Safety
    /// As for [`AnyTransport::new`]; nobody else answers its interrupts.
    pub unsafe fn new(device: &DeviceRegisters) -> Self {
        // A message needs no answer.
        let mmio = device.transport.load(Ordering::Relaxed) == transport::MMIO;
        let [at, len] = &device.structures[structure::COMMON];
        let at = NonNull::new(at.load(Ordering::Relaxed) as *mut u8).filter(|_| mmio);
        Interrupts(at.map(|at| Registers { at, len: len.load(Ordering::Relaxed) as usize }))
    }

    /// An interrupt has come. The next one comes only after this.
    pub fn answer(&self) {
        if let Some(registers) = &self.0 {
            let why: u32 = registers.read(INTERRUPT_STATUS);
            registers.write(INTERRUPT_ACKNOWLEDGE, why);
        }
    }
}

impl Transport for AnyTransport {
    fn device_type(&self) -> DeviceType {
        match self {
            Self::Mmio(t, _) => t.device_type(),
            Self::Pci(t, _) => t.kind,
        }
    }

    fn read_device_features(&mut self) -> u64 {
        match self {
            Self::Mmio(t, offered) => {
                *offered = t.read_device_features();
                *offered
            }
            Self::Pci(t, offered) => {
                *offered = t.features();
                *offered
            }
        }
    }

    fn write_driver_features(&mut self, features: u64) {
        match self {
            Self::Mmio(t, offered) => t.write_driver_features(features | *offered & ACCESS_PLATFORM),
            Self::Pci(t, offered) => t.set_features(features | *offered & ACCESS_PLATFORM),
        }
    }

    fn max_queue_size(&mut self, queue: u16) -> u32 {
        match self {
            Self::Mmio(t, _) => t.max_queue_size(queue),
            // One that can't be notified is none.
            Self::Pci(_, _) if usize::from(queue) >= QUEUES_MAX => 0,
            Self::Pci(t, _) => {
                t.select(queue);
                u32::from(t.common.read::<u16>(common::QUEUE_SIZE))
            }
        }
    }

    fn notify(&mut self, queue: u16) {
        match self {
            Self::Mmio(t, _) => t.notify(queue),
            Self::Pci(t, _) => t.notify.write(t.notify_offsets[usize::from(queue)], queue),
        }
    }

    fn get_status(&self) -> DeviceStatus {
        match self {
            Self::Mmio(t, _) => t.get_status(),
            Self::Pci(t, _) => DeviceStatus::from_bits_truncate(t.status().into()),
        }
    }

    fn set_status(&mut self, status: DeviceStatus) {
        match self {
            Self::Mmio(t, _) => t.set_status(status),
            Self::Pci(t, _) => t.set_status(status),
        }
    }

    fn set_guest_page_size(&mut self, size: u32) {
        match self {
            Self::Mmio(t, _) => t.set_guest_page_size(size),
            // Of the older kind only.
            Self::Pci(_, _) => {}
        }
    }

    fn requires_legacy_layout(&self) -> bool {
        match self {
            Self::Mmio(t, _) => t.requires_legacy_layout(),
            Self::Pci(_, _) => false,
        }
    }

    fn queue_set(
        &mut self,
        queue: u16,
        size: u32,
        descriptors: PhysAddr,
        driver_area: PhysAddr,
        device_area: PhysAddr,
    ) {
        match self {
            Self::Mmio(t, _) => t.queue_set(queue, size, descriptors, driver_area, device_area),
            Self::Pci(t, _) => t.set_queue(queue, size, [descriptors, driver_area, device_area]),
        }
    }

    fn queue_unset(&mut self, queue: u16) {
        match self {
            Self::Mmio(t, _) => t.queue_unset(queue),
            // Only a reset does that (section 4.1.4.3.2).
            Self::Pci(_, _) => {}
        }
    }

    fn queue_used(&mut self, queue: u16) -> bool {
        match self {
            Self::Mmio(t, _) => t.queue_used(queue),
            Self::Pci(t, _) => {
                t.select(queue);
                t.common.read::<u16>(common::QUEUE_ENABLE) == 1
            }
        }
    }

    fn ack_interrupt(&mut self) -> InterruptStatus {
        match self {
            Self::Mmio(t, _) => t.ack_interrupt(),
            // A message needs no answer, and the status register has nothing to say of it (section 4.1.4.5.1).
            Self::Pci(_, _) => InterruptStatus::QUEUE_INTERRUPT,
        }
    }

    fn read_config_generation(&self) -> u32 {
        match self {
            Self::Mmio(t, _) => t.read_config_generation(),
            Self::Pci(t, _) => u32::from(t.common.read::<u8>(common::GENERATION)),
        }
    }

    fn read_config_space<T: FromBytes + IntoBytes>(&self, offset: usize) -> Result<T, Error> {
        match self {
            Self::Mmio(t, _) => t.read_config_space(offset),
            Self::Pci(t, _) => Ok(t.own(offset, size_of::<T>())?.read(offset)),
        }
    }

    fn write_config_space<T: IntoBytes + Immutable>(&mut self, offset: usize, value: T) -> Result<(), Error> {
        match self {
            Self::Mmio(t, _) => t.write_config_space(offset, value),
            Self::Pci(t, _) => {
                t.own(offset, size_of::<T>())?.write(offset, value);
                Ok(())
            }
        }
    }
}
