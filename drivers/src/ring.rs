//! Queues whose buffers stay where they are (Virtual I/O Device specification 1.3, section 2.7: split virtqueues).
//!
//! A descriptor stands for one buffer, for good, and has its number. While frames go by, only that number passes to
//! the device and back: nothing is allocated, shared or linked. The crate's queues, for any buffers, cost some
//! hundred instructions more a frame.
#![allow(unsafe_code, reason = "shares memory with a device")]

use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use virtio_drivers::transport::Transport;
use virtio_drivers::{BufferDirection, Error, Hal, PhysAddr};

/// Buffers of a queue.
pub(crate) const SIZE: usize = 32;
/// Bytes of one.
pub(crate) const BUFFER: usize = 2048;
const PAGE: usize = 4096;
const BUFFER_PAGES: usize = SIZE * BUFFER / PAGE;
const RING_PAGES: usize = size_of::<Shared>() / PAGE;

/// VIRTQ_DESC_F_WRITE: the device writes to it.
const WRITE: u16 = 2;
/// VIRTQ_AVAIL_F_NO_INTERRUPT, VIRTQ_USED_F_NO_NOTIFY.
const QUIET: u16 = 1;

#[repr(C)]
struct Descriptor {
    at: AtomicU64,
    len: AtomicU32,
    flags: AtomicU16,
    next: AtomicU16,
}

#[repr(C)]
struct Available {
    flags: AtomicU16,
    index: AtomicU16,
    ring: [AtomicU16; SIZE],
    /// An interrupt is wanted once the used index goes past this.
    used_event: AtomicU16,
}

#[repr(C)]
struct Element {
    number: AtomicU32,
    len: AtomicU32,
}

/// On a page of its own, as older devices have it.
#[repr(C, align(4096))]
struct Used {
    flags: AtomicU16,
    index: AtomicU16,
    ring: [Element; SIZE],
    /// To be notified once the available index goes past this.
    available_event: AtomicU16,
}

/// What driver and device share, besides the buffers.
#[repr(C)]
struct Shared {
    descriptors: [Descriptor; SIZE],
    available: Available,
    used: Used,
}

/// Pages that a device reaches.
struct Pages<H: Hal> {
    physical: PhysAddr,
    at: NonNull<u8>,
    count: usize,
    hal: PhantomData<H>,
}

impl<H: Hal> Pages<H> {
    fn new(count: usize) -> Result<Self, Error> {
        match H::dma_alloc(count, BufferDirection::Both) {
            (0, _) => Err(Error::DmaError),
            (physical, at) => Ok(Pages { physical, at, count, hal: PhantomData }),
        }
    }
}

impl<H: Hal> Drop for Pages<H> {
    fn drop(&mut self) {
        // SAFETY: they came from there, and the device has been reset: the transport is dropped first.
        unsafe { H::dma_dealloc(self.physical, self.at, self.count) };
    }
}

/// A queue. Its transport is to be dropped before it.
pub(crate) struct Ring<H: Hal> {
    number: u16,
    /// Interrupts and notifications are suppressed by index (VIRTIO_F_EVENT_IDX).
    by_index: bool,
    shared: Pages<H>,
    buffers: Pages<H>,
    /// The available index; what of it the device was last shown, by a look whether it wants to know.
    given: u16,
    shown: u16,
    /// Buffers that it was given since it was last notified, at most [`SIZE`].
    untold: u16,
    /// The used index up to which buffers have come back.
    taken: u16,
    /// What the device has as the index for interrupts.
    event: u16,
    /// The buffers that are not the device's, and not in somebody's hands: a bit each.
    free: u32,
    /// Those that are the device's.
    lent: u32,
}

// SAFETY: queues and buffers are mapped alike on all cores, and are this value's own.
unsafe impl<H: Hal> Send for Ring<H> {}

impl<H: Hal> Ring<H> {
    /// Makes a queue and tells the device of it. `incoming`: the device writes to its buffers.
    pub fn new(
        transport: &mut impl Transport,
        number: u16,
        by_index: bool,
        incoming: bool,
    ) -> Result<Self, Error> {
        if transport.queue_used(number) {
            return Err(Error::AlreadyUsed);
        }
        if transport.max_queue_size(number) < SIZE as u32 {
            return Err(Error::InvalidParam);
        }
        let (shared, buffers) = (Pages::<H>::new(RING_PAGES)?, Pages::<H>::new(BUFFER_PAGES)?);
        let part = |offset: usize| shared.physical + offset as u64;
        let areas = [
            part(0),
            part(core::mem::offset_of!(Shared, available)),
            part(core::mem::offset_of!(Shared, used)),
        ];
        let event = if incoming { 0 } else { u16::MAX };
        let (given, shown, untold, taken, lent) = (0, 0, 0, 0, 0);
        let free = u32::MAX;
        let queue =
            Ring { number, by_index, shared, buffers, given, shown, untold, taken, event, free, lent };
        let available = &queue.shared().available;
        // What was sent needs no interrupt, until somebody waits for room.
        available.used_event.store(event, Ordering::Relaxed);
        available.flags.store(if incoming || by_index { 0 } else { QUIET }, Ordering::Relaxed);
        for (n, descriptor) in queue.shared().descriptors.iter().enumerate() {
            descriptor.at.store(queue.buffers.physical + (n * BUFFER) as u64, Ordering::Relaxed);
            descriptor.len.store(BUFFER as u32, Ordering::Relaxed);
            descriptor.flags.store(if incoming { WRITE } else { 0 }, Ordering::Relaxed);
        }
        transport.queue_set(number, SIZE as u32, areas[0], areas[1], areas[2]);
        Ok(queue)
    }

    #[inline]
    fn shared(&self) -> &Shared {
        // SAFETY: zeroed pages of that size, whose fields are atomics, as long as this lives.
        unsafe { self.shared.at.cast().as_ref() }
    }

    /// Where a buffer begins: [`BUFFER`] bytes, whose holder alone uses them.
    pub fn buffer(&self, n: usize) -> *mut u8 {
        assert!(n < SIZE);
        // SAFETY: within the pages.
        unsafe { self.buffers.at.as_ptr().add(n * BUFFER) }
    }

    /// Takes a buffer that nobody has; it is the caller's until it gives it to the device or puts it back.
    #[inline]
    pub fn take_free(&mut self) -> Option<usize> {
        let n = self.free.trailing_zeros();
        self.free &= self.free.wrapping_sub(1);
        (n < SIZE as u32).then_some(n as usize)
    }

    /// Is there one?
    #[inline]
    pub fn has_free(&self) -> bool {
        self.free != 0
    }

    /// Puts back one that was taken.
    pub fn put_back(&mut self, n: usize) {
        self.free |= 1 << n;
    }

    /// Gives the device a buffer that the caller has, as one of `len` bytes. [`Ring::show`] tells it.
    #[inline]
    pub fn give(&mut self, n: usize, len: usize) {
        assert!(n < SIZE && len <= BUFFER && self.lent & 1 << n == 0);
        self.lent |= 1 << n;
        let shared = self.shared();
        shared.descriptors[n].len.store(len as u32, Ordering::Relaxed);
        shared.available.ring[usize::from(self.given) % SIZE].store(n as u16, Ordering::Relaxed);
        self.given = self.given.wrapping_add(1);
        // The device sees the buffer before it sees the index.
        self.shared().available.index.store(self.given, Ordering::Release);
    }

    /// Tells the device of what it was given, if it wants to know.
    #[inline]
    pub fn show(&mut self, transport: &mut impl Transport) {
        let before = core::mem::replace(&mut self.shown, self.given);
        let new = self.given.wrapping_sub(before);
        if new == 0 {
            return;
        }
        self.untold = (self.untold + new).min(SIZE as u16);
        // What was given is there before we look whether the device sleeps; it looks in the other order.
        fence(Ordering::SeqCst);
        self.tell(transport);
    }

    /// Tells the device of what it was given and not told of, if it wants to know by now. For a core that is about to sleep:
    /// where fences do nothing (an emulated machine that can have one processor only, see ARCHITECTURE.md), what it wants
    /// may have been said just when [`Ring::show`] looked, and each has missed the other.
    pub fn show_again(&mut self, transport: &mut impl Transport) {
        if self.untold != 0 {
            self.tell(transport);
        }
    }

    #[inline]
    fn tell(&mut self, transport: &mut impl Transport) {
        let used = &self.shared().used;
        let wanted = if self.by_index {
            let event = used.available_event.load(Ordering::Relaxed);
            self.given.wrapping_sub(event).wrapping_sub(1) < self.untold
        } else {
            used.flags.load(Ordering::Relaxed) & QUIET == 0
        };
        if wanted {
            self.untold = 0;
            transport.notify(self.number);
        }
    }

    /// Has something come back that was not taken? Where fences do nothing, there may be no interrupt for it.
    pub fn has_back(&self) -> bool {
        self.shared().used.index.load(Ordering::Acquire) != self.taken
    }

    /// What comes back next: a buffer, now the caller's, and how many bytes the device wrote to it, at most
    /// [`BUFFER`]. Of what the device says that can't be, nothing is believed: it is passed over.
    #[inline]
    pub fn take_back(&mut self) -> Option<(usize, usize)> {
        while self.shared().used.index.load(Ordering::Acquire) != self.taken {
            let element = &self.shared().used.ring[usize::from(self.taken) % SIZE];
            let (n, len) = (element.number.load(Ordering::Relaxed), element.len.load(Ordering::Relaxed));
            self.taken = self.taken.wrapping_add(1);
            if n < SIZE as u32 && self.lent & 1 << n != 0 {
                self.lent &= !(1 << n);
                return Some((n as usize, (len as usize).min(BUFFER)));
            }
        }
        None
    }

    /// Asks for an interrupt when the next one comes back. Value: one has meanwhile; the interrupt may or may not come.
    #[inline]
    pub fn ask(&mut self) -> bool {
        if self.by_index {
            if self.event == self.taken {
                return false;
            }
            self.event = self.taken;
            self.shared().available.used_event.store(self.event, Ordering::Relaxed);
        } else {
            if self.shared().available.flags.load(Ordering::Relaxed) == 0 {
                return false;
            }
            self.shared().available.flags.store(0, Ordering::Relaxed);
        }
        // The device must see that, or we what it has done since.
        fence(Ordering::SeqCst);
        self.shared().used.index.load(Ordering::Relaxed) != self.taken
    }
}

#[cfg(test)]
mod tests {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::collections::VecDeque;
    use std::vec::Vec;

    use super::*;
    use virtio_drivers::transport::{DeviceStatus, DeviceType, InterruptStatus};
    use zerocopy::{FromBytes, Immutable, IntoBytes};

    struct Host;

    fn layout(pages: usize) -> Layout {
        Layout::from_size_align(pages * PAGE, PAGE).unwrap()
    }

    // SAFETY: whole, zeroed pages of the allocator's.
    unsafe impl Hal for Host {
        fn dma_alloc(pages: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
            // SAFETY: not of size zero.
            let at = NonNull::new(unsafe { alloc_zeroed(layout(pages)) }).unwrap();
            (at.as_ptr() as u64, at)
        }

        unsafe fn dma_dealloc(_: PhysAddr, at: NonNull<u8>, pages: usize) -> i32 {
            // SAFETY: it came from there.
            unsafe { dealloc(at.as_ptr(), layout(pages)) };
            0
        }

        unsafe fn mmio_phys_to_virt(_: PhysAddr, _: usize) -> NonNull<u8> {
            unreachable!()
        }

        unsafe fn share(_: NonNull<[u8]>, _: BufferDirection) -> PhysAddr {
            unreachable!()
        }

        unsafe fn unshare(_: PhysAddr, _: NonNull<[u8]>, _: BufferDirection) {
            unreachable!()
        }
    }

    /// The device's side: where the queue is, and what of it it has seen.
    #[derive(Default)]
    struct Device {
        areas: [u64; 3],
        notified: usize,
        seen: u16,
        done: u16,
        has: VecDeque<u16>,
    }

    impl Device {
        fn shared(&self) -> &Shared {
            // SAFETY: as the queue said, which the tests keep.
            unsafe { &*(self.areas[0] as *const Shared) }
        }

        /// Takes what it was given; `by_index`: and asks to be notified of the next.
        fn look(&mut self) {
            while self.shared().available.index.load(Ordering::SeqCst) != self.seen {
                let n = self.shared().available.ring[usize::from(self.seen) % SIZE].load(Ordering::SeqCst);
                self.has.push_back(n);
                self.seen = self.seen.wrapping_add(1);
            }
            self.shared().used.available_event.store(self.seen, Ordering::SeqCst);
        }

        /// Gives one back; would it interrupt?
        fn give_back(&mut self, n: u32, len: u32) -> bool {
            let used = &self.shared().used;
            let element = &used.ring[usize::from(self.done) % SIZE];
            element.number.store(n, Ordering::SeqCst);
            element.len.store(len, Ordering::SeqCst);
            let event = self.shared().available.used_event.load(Ordering::SeqCst);
            let interrupts = event == self.done;
            self.done = self.done.wrapping_add(1);
            self.shared().used.index.store(self.done, Ordering::SeqCst);
            interrupts
        }
    }

    impl Transport for Device {
        fn device_type(&self) -> DeviceType {
            DeviceType::Network
        }
        fn read_device_features(&mut self) -> u64 {
            0
        }
        fn write_driver_features(&mut self, _: u64) {}
        fn max_queue_size(&mut self, _: u16) -> u32 {
            256
        }
        fn notify(&mut self, _: u16) {
            self.notified += 1;
        }
        fn get_status(&self) -> DeviceStatus {
            DeviceStatus::empty()
        }
        fn set_status(&mut self, _: DeviceStatus) {}
        fn set_guest_page_size(&mut self, _: u32) {}
        fn requires_legacy_layout(&self) -> bool {
            true
        }
        fn queue_set(&mut self, _: u16, size: u32, a: PhysAddr, b: PhysAddr, c: PhysAddr) {
            // The older layout (section 2.7.2).
            let size = u64::from(size);
            assert_eq!(b - a, 16 * size);
            assert_eq!(c - a, (16 * size + 2 * (3 + size)).next_multiple_of(PAGE as u64));
            self.areas = [a, b, c];
        }
        fn queue_unset(&mut self, _: u16) {}
        fn queue_used(&mut self, _: u16) -> bool {
            false
        }
        fn ack_interrupt(&mut self) -> InterruptStatus {
            InterruptStatus::empty()
        }
        fn read_config_generation(&self) -> u32 {
            0
        }
        fn read_config_space<T: FromBytes + IntoBytes>(&self, _: usize) -> Result<T, Error> {
            Err(Error::ConfigSpaceMissing)
        }
        fn write_config_space<T: IntoBytes + Immutable>(&mut self, _: usize, _: T) -> Result<(), Error> {
            Err(Error::ConfigSpaceMissing)
        }
    }

    #[test]
    fn buffers_go_round_whatever_the_device_says() {
        let mut device = Device::default();
        let mut ring = Ring::<Host>::new(&mut device, 0, true, true).unwrap();
        let mut held: Vec<usize> = Vec::new();
        let mut state = 7u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        let (mut back, mut wanted) = (0, VecDeque::new());
        for _ in 0..800_000 {
            match random(6) {
                0 => held.extend(ring.take_free()),
                1 if !held.is_empty() => {
                    let n = held.swap_remove(random(held.len() as u64) as usize);
                    ring.give(n, 100 + n);
                    ring.show(&mut device);
                    // It asked for that: nothing is left unseen.
                    if device.notified > 0 {
                        device.notified = 0;
                        device.look();
                    }
                    assert_eq!(device.seen, ring.given);
                }
                2 if device.done.wrapping_sub(ring.taken) < SIZE as u16 => {
                    if let Some(n) = device.has.pop_front() {
                        let len = &device.shared().descriptors[usize::from(n)].len;
                        assert_eq!(len.load(Ordering::SeqCst), 100 + u32::from(n));
                        device.give_back(n.into(), u32::from(n) * 100);
                        wanted.push_back(usize::from(n));
                    }
                }
                3 if device.done.wrapping_sub(ring.taken) < SIZE as u16 / 2 => {
                    // What there is not.
                    device.give_back(SIZE as u32 + random(64) as u32, 1 << 20);
                }
                4 => match ring.take_back() {
                    Some((n, len)) => {
                        assert_eq!(Some(n), wanted.pop_front());
                        assert_eq!(len, (n * 100).min(BUFFER));
                        held.push(n);
                        back += 1;
                    }
                    None => assert!(wanted.is_empty()),
                },
                _ => {
                    if !ring.ask() && wanted.is_empty() && device.done == ring.taken {
                        assert_eq!(
                            device.shared().available.used_event.load(Ordering::SeqCst),
                            device.done,
                            "the next one interrupts"
                        );
                    }
                }
            }
            assert_eq!(
                held.len() + ring.free.count_ones() as usize + ring.lent.count_ones() as usize,
                SIZE,
                "none is lost"
            );
        }
        // Indices have come round.
        assert!(back > 66_000);
    }

    #[test]
    fn a_notification_that_was_missed_is_made_up_for() {
        let sleeps = |device: &Device, seen: u16| {
            device.shared().used.flags.store(0, Ordering::SeqCst);
            device.shared().used.available_event.store(seen, Ordering::SeqCst);
        };
        // Value: notifications.
        let give = |ring: &mut Ring<Host>, device: &mut Device| {
            let n = ring.take_free().unwrap();
            ring.give(n, 60);
            ring.show(device);
            core::mem::take(&mut device.notified)
        };
        for by_index in [true, false] {
            let mut device = Device::default();
            let mut ring = Ring::<Host>::new(&mut device, 0, by_index, false).unwrap();
            for round in 0..70_000u32 {
                sleeps(&device, ring.given);
                assert_eq!(give(&mut ring, &mut device), 1, "round {round}");
                // It is at work, and looks for more before it sleeps.
                device.shared().used.flags.store(QUIET, Ordering::SeqCst);
                assert_eq!(give(&mut ring, &mut device), 0, "round {round}");
                // It may not have seen that one, nor we that it sleeps.
                let missed = round % 3 != 0;
                if missed {
                    sleeps(&device, ring.given.wrapping_sub(1));
                }
                ring.show_again(&mut device);
                ring.show_again(&mut device);
                assert_eq!(core::mem::take(&mut device.notified), usize::from(missed), "round {round}");
                device.look();
                for sent in core::mem::take(&mut device.has) {
                    assert!(!ring.has_back());
                    device.give_back(sent.into(), 0);
                    assert!(ring.has_back());
                    let (n, _) = ring.take_back().unwrap();
                    ring.put_back(n);
                }
            }
        }
    }

    #[test]
    fn what_was_sent_interrupts_only_if_asked_for() {
        let mut device = Device::default();
        let mut ring = Ring::<Host>::new(&mut device, 1, true, false).unwrap();
        for n in 0..SIZE * 3 {
            let Some(buffer) = ring.take_free() else {
                while let Some((n, _)) = ring.take_back() {
                    ring.put_back(n);
                }
                continue;
            };
            ring.give(buffer, 60);
            ring.show(&mut device);
            device.look();
            let sent = device.has.pop_front().unwrap();
            assert!(!device.give_back(sent.into(), 0), "number {n}");
        }
        while ring.take_back().is_some() {}
        assert!(!ring.ask());
        let n = ring.lent.trailing_ones();
        ring.lent |= 1 << n;
        assert!(device.give_back(n, 0));
        assert_eq!(ring.take_back(), Some((n as usize, 0)));
        assert!(!device.give_back(0, 0));
    }
}
