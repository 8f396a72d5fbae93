//! The platform contract: the only way down (architecture section 3).
//!
//! A platform gives the runtime memory, cores, time, spaces and a way to send
//! requests, and calls back for faults and events. Calls mean the same on
//! every platform. None of them is on a fast path: a system call that needs
//! nothing from outside the cell makes none.
#![allow(
    unsafe_code,
    reason = "keeps the reference to the platform in a static; declares the unsafe calls of the contract"
)]

use core::sync::atomic::{AtomicPtr, Ordering};

use crate::control::Control;
use crate::errno::Result;
use crate::mailbox::{Inbox, Line};
use crate::service::{Answer, Request};

bitflags::bitflags! {
    /// Access to a mapping.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Access: u32 {
        /// PROT_READ.
        const READ = 1;
        /// PROT_WRITE.
        const WRITE = 2;
        /// PROT_EXEC.
        const EXEC = 4;
        /// Not an access: fill in the page tables at once, where the memory is there.
        const POPULATE = 8;
    }
}

/// What a mapping shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backing {
    /// The cell's own memory from this offset on.
    Memory {
        /// Offset in the cell's memory, bytes, a multiple of the page size.
        offset: u64,
    },
    /// A granted file object from this offset on (host only, charged as borrowed).
    File {
        /// The host's descriptor.
        fd: i32,
        /// Offset in the file, bytes, a multiple of the page size.
        offset: u64,
        /// Writes go to the file.
        shared: bool,
    },
    /// Nothing: any access faults.
    Nothing,
}

/// A change of the current space ([`Platform::change`]).
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// As [`Platform::map`] of the cell's own memory.
    Map {
        /// First address.
        addr: u64,
        /// Bytes.
        len: u64,
        /// What may be done with it.
        access: Access,
        /// Where it is in the cell's memory, bytes.
        offset: u64,
    },
    /// As [`Platform::unmap`].
    Unmap {
        /// First address.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// As [`Platform::protect`].
    Protect {
        /// First address.
        addr: u64,
        /// Bytes.
        len: u64,
        /// What may be done with it.
        access: Access,
    },
}

/// What a processor notes of a page that a program uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageBit {
    /// It was used.
    Accessed,
    /// It was written to.
    Dirty,
}

/// An event that a core learns of by [`Platform::park`] or [`Platform::poll`].
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// A request has been answered.
    Answer(Answer),
    /// A watched host object changed its readiness (`epoll(7)` bits).
    Ready {
        /// The cookie given to `watch`.
        cookie: u64,
        /// What is ready now.
        events: u32,
        /// Number of the core's look that found it ([`HostCalls::looks`]).
        look: u32,
    },
    /// The supervisor left something in the mailbox.
    Mailbox,
}

/// Events of one visit.
pub struct Events {
    list: [Event; Events::MAX],
    len: usize,
}

impl Events {
    /// The most that one visit reports; the rest waits for the next.
    pub const MAX: usize = 64;

    /// None yet.
    pub const fn new() -> Self {
        Events { list: [Event::Ready { cookie: 0, events: 0, look: 0 }; Events::MAX], len: 0 }
    }

    /// Adds one; says whether there was room.
    pub fn push(&mut self, event: Event) -> bool {
        if self.len == Self::MAX {
            return false;
        }
        self.list[self.len] = event;
        self.len += 1;
        true
    }

    /// Room left.
    pub fn room(&self) -> usize {
        Self::MAX - self.len
    }

    /// Are there none?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Number `n`.
    pub fn get(&self, n: usize) -> Event {
        self.list[..self.len][n]
    }

    /// Puts another in the place of number `n`.
    pub fn set(&mut self, n: usize, event: Event) {
        self.list[..self.len][n] = event;
    }

    /// Keeps the first `n`.
    pub fn truncate(&mut self, n: usize) {
        self.len = self.len.min(n);
    }

    /// Takes them out, oldest first.
    pub fn take(&mut self) -> Events {
        core::mem::take(self)
    }

    /// Looks at them, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Event> {
        self.list[..self.len].iter()
    }
}

impl Default for Events {
    fn default() -> Self {
        Self::new()
    }
}

/// The way down.
pub trait Platform: Sync {
    /// The pages shared with the supervisor: this cell's cores, memory, boot configuration.
    fn control(&self) -> &'static Control;

    // --- time ---

    /// Nanoseconds on a clock that never steps (Linux's CLOCK_MONOTONIC). No call.
    fn now(&self) -> u64;

    /// Nanoseconds since 1970. No call.
    fn realtime(&self) -> u64;

    /// Nanoseconds on one of Linux's clocks 0, 1, 4 to 7 and 11, as a program reads it that jumps to the platform's `clock_gettime`
    /// (`CoreLocal::clock_gettime`). No call.
    fn clock(&self, clock: u32) -> u64 {
        match clock {
            // CLOCK_REALTIME, CLOCK_REALTIME_COARSE, CLOCK_TAI.
            0 | 5 | 11 => self.realtime(),
            _ => self.now(),
        }
    }

    /// Processor time that this core has had in its current space, ns, by a clock that stands still while others have the
    /// processor. None: nobody else has it.
    fn cpu_time(&self) -> Option<u64> {
        None
    }

    /// How often what the cell counts ([`GridArea::counts`](crate::grid::GridArea::counts)) has happened on this core in its current
    /// space since it was last asked there. None: it counts nothing.
    fn counted(&self) -> Option<u64> {
        None
    }

    /// How long this core has slept in [`Platform::park`], ns, if somebody below counts that. None: nobody does.
    fn slept(&self) -> Option<u64> {
        None
    }

    /// Asks for one [`Upcall::Event`](crate::frame::Upcall) on this core at
    /// `deadline` (on [`Platform::now`]'s clock), in place of the one asked for before.
    fn arm(&self, deadline: u64);

    /// Takes back what [`Platform::arm`] asked for. It may come all the same, if its time was near.
    fn disarm(&self);

    /// Has this core interrupted once, as by [`Platform::interrupt`], as soon as something that it watches changes its readiness or
    /// a request of its is answered. False: that can't be, or something is there already; who computes for long has to ask now
    /// and then ([`Platform::poll`]).
    fn tell_of_events(&self) -> bool {
        false
    }

    /// Can a program go by one instruction, with the trap flag set in the frame that it is resumed with? What it enters the runtime by
    /// clears the flag, and has this core look at what is pending when it leaves.
    fn can_step(&self) -> bool {
        false
    }

    /// Has this core interrupted once, as by a deadline, when it has worked for some ms in its current space, asleep or not in
    /// between. Cheap if that has been asked for already. False: that can't be.
    fn arm_for_work(&self) -> bool {
        false
    }

    /// If each space has a deadline of its own on this core (one that passes while the core is in another space is
    /// forgotten): what was asked for in this one and has not come yet, though
    /// its time may be over; u64::MAX: nothing.
    fn armed_here(&self) -> Option<u64> {
        None
    }

    // --- cores ---

    /// Sleeps until an event, a [`Platform::notify`] or the deadline, whichever is first.
    /// May return early. The caller has set its core's state to parked and looked
    /// again for work since.
    fn park(&self, deadline: Option<u64>, events: &mut Events);

    /// Takes the events that are there, without sleeping.
    fn poll(&self, events: &mut Events);

    /// Are there answers to be polled? Cheap: reads shared memory only.
    fn has_answers(&self) -> bool;

    /// The core's pending word said that a device has interrupted ([`crate::core_local::pending::DEVICE`]).
    fn device_interrupt(&self) {}

    /// Ends the sleep of a parked core of this cell.
    fn notify(&self, core: usize);

    /// Makes a running core of this cell visit its runtime: an [`Upcall::Event`](crate::frame::Upcall)
    /// if a program runs there, a pending bit otherwise.
    fn interrupt(&self, core: usize);

    // --- spaces ---

    /// Asks for an empty space; returns its number at once. It is there when
    /// its slot's state says ready, which takes a while (a host process).
    fn space_create(&self) -> Result<u32>;

    /// Ends a space that no core runs in.
    fn space_destroy(&self, space: u32);

    /// Goes on as this core in `space`, by calling `continuation(argument)`
    /// on a stack of the platform's. Never returns: what the caller was doing
    /// must have been saved, as a later continuation finds it.
    fn space_switch(&self, space: u32, continuation: extern "C" fn(usize) -> !, argument: usize) -> !;

    /// Calls `continuation(argument)` on this host thread's own small stack, leaving the current one for good.
    fn leave_stack(&self, continuation: extern "C" fn(usize) -> !, argument: usize) -> !;

    /// Is that another stack than any thread's, on which a core can park?
    fn parks_apart(&self) -> bool {
        false
    }

    /// Maps `[addr, addr + len)` of the current space, in place of what was there.
    ///
    /// # Safety
    /// The range must be the program's (see [`crate::layout::is_user_range`]), and
    /// memory shown through [`Backing::Memory`] must not hold runtime data.
    unsafe fn map(&self, addr: u64, len: u64, access: Access, backing: Backing) -> Result<()>;

    /// Unmaps a range of the current space.
    ///
    /// # Safety
    /// The range must be the program's.
    unsafe fn unmap(&self, addr: u64, len: u64) -> Result<()>;

    /// Changes the access to a mapped range of the current space.
    ///
    /// # Safety
    /// The range must be the program's.
    unsafe fn protect(&self, addr: u64, len: u64, access: Access) -> Result<()>;

    /// Makes several changes of the current space, in the list's order. One that fails doesn't keep the others from
    /// being made; the error is the first one's.
    ///
    /// # Safety
    /// As of [`Platform::map`], [`Platform::unmap`] and [`Platform::protect`].
    unsafe fn change(&self, list: &[Change]) -> Result<()> {
        let mut done = Ok(());
        for one in list {
            // SAFETY: the caller's promise.
            let this = unsafe {
                match *one {
                    Change::Map { addr, len, access, offset } => {
                        self.map(addr, len, access, Backing::Memory { offset })
                    }
                    Change::Unmap { addr, len } => self.unmap(addr, len),
                    Change::Protect { addr, len, access } => self.protect(addr, len, access),
                }
            };
            done = done.and(this);
        }
        done
    }

    /// Can it be read what the processor notes of pages ([`Platform::take_page_bits`])? Then a page whose access is changed, or for which
    /// another one is mapped in its place, keeps what is noted there, and one that is mapped where none was begins with nothing. No call.
    fn has_page_bits(&self) -> bool {
        false
    }

    /// Which pages of a range of the current space have had this noted since it was last asked. A bit a page, the lowest first, is set in
    /// an element for each 64 KiB (aligned) that the range has a part of; the others stay as they are. What is used before this
    /// returns is told of now or the next time, what comes after it the next time. Too much may be told, never too little. EINVAL: the
    /// range is not the programs', or there are too few elements. ENOMEM: it may have been told of some and not of others. ENOSYS: it can't be read here.
    fn take_page_bits(&self, _bit: PageBit, _addr: u64, _len: u64, _pages: &mut [u16]) -> Result<()> {
        Err(crate::Errno::ENOSYS)
    }

    /// Has all cores walk the page tables anew for a range of the current space. EINVAL: it is not the programs'. ENOSYS: that can't be
    /// had here.
    fn forget(&self, _addr: u64, _len: u64) -> Result<()> {
        Err(crate::Errno::ENOSYS)
    }

    /// The number of the machine's frame (its physical address, divided by the size of a page) that the page at this offset of the cell's
    /// memory is in, for as long as the cell lives. Those of a block of 2 MiB follow each other. None: there is no such page, or the
    /// platform isn't told. No call.
    fn frame_of(&self, _offset: u64) -> Option<u64> {
        None
    }

    /// Takes back memory that the platform had from the cell (for page tables) and needs no more: the offset
    /// of a block, whose contents are undefined.
    fn memory_back(&self) -> Option<u64> {
        None
    }

    /// The cell's memory is in use up to this block, in order of use ([`order_of_block`](crate::layout::order_of_block)): the platform
    /// may make ready what follows.
    fn memory_used_to(&self, block: u64);

    /// Asks for so many bytes of memory more, and waits for the answer without letting others run here. How much the cell has then, bytes;
    /// what of it is new is zeroes. None: it may not ask, or gets none. For one at a time, who changes how much the cell uses.
    fn more_memory(&self, _bytes: u64) -> Option<u64> {
        None
    }

    // --- other cells ---

    /// Sends a line to a peer, by its number in the descriptor's list. EINVAL: there is no such peer, EPERM: it is not
    /// to be sent to, EAGAIN: its inbox is full, EPIPE: it has ended.
    fn send(&self, _peer: usize, _line: &Line) -> Result<()> {
        Err(crate::Errno::EINVAL)
    }

    /// The inbox for a peer's lines, where it may send any.
    fn inbox(&self, _peer: usize) -> Option<&'static Inbox> {
        None
    }

    // --- services and the rest ---

    /// Sends a request to the serving threads; its answer comes as an [`Event`] on this core.
    /// EAGAIN: too many are under way, poll first.
    fn submit(&self, request: &Request) -> Result<()>;

    /// The host descriptor that came with an answer, to be called once for each
    /// [`Event::Answer`] that carries [`crate::service::ANSWER_FD`], on the core that got it, in order.
    fn take_descriptor(&self) -> Result<i32>;

    /// Short calls on host objects, where the platform has a host.
    fn host(&self) -> Option<&dyn HostCalls>;

    /// The root file system's archive (cpio, newc), where the platform has one in memory. It stays for
    /// ever and is never written.
    fn archive(&self) -> Option<&'static [u8]> {
        None
    }

    /// Fills a buffer with random bytes.
    fn random(&self, out: &mut [u8]);

    /// Writes one line to the cell's log; never blocks, may drop it.
    fn log(&self, line: &str);

    /// Ends the cell: nothing of it runs on. `status` is a wait status.
    fn end(&self, status: i32) -> !;
}

/// A piece of memory for a host call.
///
/// It can only be made for the program's part of a space, or from memory that
/// the caller holds exclusively, so a host call can't overwrite the runtime.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct HostBuf<'a> {
    base: u64,
    len: u64,
    memory: core::marker::PhantomData<&'a mut [u8]>,
}

impl HostBuf<'static> {
    /// No bytes.
    pub const NONE: Self = HostBuf { base: 0, len: 0, memory: core::marker::PhantomData };
}

impl<'a> HostBuf<'a> {
    /// Program memory; EFAULT if the range is not the program's. It need not be mapped.
    pub fn user(addr: u64, len: u64) -> Result<HostBuf<'static>> {
        if crate::layout::is_user_range(addr, len) {
            Ok(HostBuf { base: addr, len, memory: core::marker::PhantomData })
        } else {
            Err(crate::Errno::EFAULT)
        }
    }

    /// Memory of the runtime that a host call may fill.
    pub fn from_mut(buf: &'a mut [u8]) -> HostBuf<'a> {
        HostBuf { base: buf.as_mut_ptr() as u64, len: buf.len() as u64, memory: core::marker::PhantomData }
    }

    /// Memory of the runtime that a host call may only read.
    pub fn from_ref(buf: &'a [u8]) -> ReadBuf<'a> {
        ReadBuf(HostBuf {
            base: buf.as_ptr() as u64,
            len: buf.len() as u64,
            memory: core::marker::PhantomData,
        })
    }

    /// Memory that the caller holds exclusively.
    ///
    /// # Safety
    /// `[base, base + len)` is mapped, writable, and the caller's for the length of the call.
    pub unsafe fn owned(base: u64, len: u64) -> HostBuf<'static> {
        HostBuf { base, len, memory: core::marker::PhantomData }
    }

    /// Where it begins.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Length, bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Is it empty?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Shortens it to at most `len` bytes.
    pub fn truncate(&mut self, len: u64) {
        self.len = self.len.min(len);
    }

    /// Drops the first `n` bytes.
    pub fn advance(&mut self, n: u64) {
        let n = n.min(self.len);
        self.base += n;
        self.len -= n;
    }
}

/// Memory that a host call reads and never writes.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct ReadBuf<'a>(HostBuf<'a>);

impl ReadBuf<'static> {
    /// No bytes.
    pub const NONE: Self = ReadBuf(HostBuf::NONE);
}

impl ReadBuf<'_> {
    /// What could be filled, too.
    pub fn of(buf: HostBuf<'_>) -> ReadBuf<'_> {
        ReadBuf(buf)
    }

    /// Program memory, as [`HostBuf::user`].
    pub fn user(addr: u64, len: u64) -> Result<ReadBuf<'static>> {
        HostBuf::user(addr, len).map(ReadBuf)
    }

    /// Where it begins.
    pub fn base(&self) -> u64 {
        self.0.base
    }

    /// Length, bytes.
    pub fn len(&self) -> u64 {
        self.0.len
    }

    /// Is it empty?
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Shortens it to at most `len` bytes.
    pub fn truncate(&mut self, len: u64) {
        self.0.truncate(len);
    }

    /// Drops the first `n` bytes.
    pub fn advance(&mut self, n: u64) {
        self.0.advance(n);
    }
}

/// Short, never blocking calls on host objects that the cell was given.
///
/// Each is one host system call, made in place because that measures better
/// than a message (a wake-up costs 6 us, such a call 0.2 to 4).
pub trait HostCalls: Sync {
    /// `preadv2(RWF_NOWAIT)`: EAGAIN if it would have to wait for a device.
    fn read_at(&self, fd: i32, bufs: &[HostBuf], offset: u64) -> Result<usize>;
    /// `pwritev2(2)` at the descriptor's own position, with RWF_NOWAIT unless it `may_wait`: EAGAIN if it would have to, EOPNOTSUPP if the
    /// host can't tell. ENOSYS where there are no such descriptors.
    fn write(&self, fd: i32, bufs: &[ReadBuf], may_wait: bool) -> Result<usize>;
    /// Receives from a socket. `addr`: where the peer's address goes. Value: bytes, address length, `msg_flags`.
    fn receive(
        &self,
        fd: i32,
        bufs: &[HostBuf],
        addr: Option<&mut [u8]>,
        control: Option<&mut [u8]>,
        flags: u32,
    ) -> Result<Received>;
    /// Sends to a socket. `control`: control messages, empty if there are none.
    fn send(
        &self,
        fd: i32,
        bufs: &[ReadBuf],
        addr: Option<&[u8]>,
        control: &[u8],
        flags: u32,
    ) -> Result<usize>;
    /// Takes a connection. Value: descriptor and the length of the peer's address.
    fn accept(&self, fd: i32, addr: &mut [u8]) -> Result<(i32, usize)>;
    /// `shutdown(2)`.
    fn shutdown(&self, fd: i32, how: u32) -> Result<()>;
    /// `getsockopt(2)`; value: length.
    fn get_option(&self, fd: i32, level: u32, name: u32, value: &mut [u8]) -> Result<usize>;
    /// `setsockopt(2)`.
    fn set_option(&self, fd: i32, level: u32, name: u32, value: &[u8]) -> Result<()>;
    /// `getsockname(2)`, or `getpeername(2)` if `peer`; value: length.
    fn name(&self, fd: i32, peer: bool, addr: &mut [u8]) -> Result<usize>;
    /// `ioctl(FIONREAD)`, or `SIOCOUTQ` if `out`.
    fn queued(&self, fd: i32, out: bool) -> Result<u32>;
    /// What a socket is ready for now (`poll(2)` bits).
    fn probe(&self, fd: i32) -> u32;
    /// Reports readiness changes (edge-triggered) to the core that calls, under `cookie`. Value: that core.
    fn watch(&self, fd: i32, cookie: u64) -> Result<usize>;
    /// Reports them no longer to `core`, which did. Events that it has taken already may still come.
    fn unwatch(&self, fd: i32, core: usize) -> Result<()>;
    /// Looks for events that a core has begun so far; wraps around. One whose number is higher than this
    /// was finds things as they are after everything that was done before.
    fn looks(&self, core: usize) -> u32;
    /// Closes a descriptor that `core` watches.
    fn close_watched(&self, fd: i32, core: usize);
    /// Size and times of a file: `fstat(2)`.
    fn stat(&self, fd: i32) -> Result<crate::service::HostAttr>;
    /// Closes a descriptor.
    fn close(&self, fd: i32);
}

/// What a receive returned.
#[derive(Clone, Copy, Debug, Default)]
pub struct Received {
    /// Bytes put into the buffers (with MSG_TRUNC, bytes there were).
    pub len: usize,
    /// Length of the address.
    pub addr_len: usize,
    /// Length of the control data.
    pub control_len: usize,
    /// `msg_flags`.
    pub flags: u32,
}

struct Slot(AtomicPtr<&'static dyn Platform>);

static PLATFORM: Slot = Slot(AtomicPtr::new(core::ptr::null_mut()));

/// Names the platform, once, before anything else of the runtime runs.
pub fn set_platform(platform: &'static &'static dyn Platform) {
    PLATFORM.0.store((platform as *const &'static dyn Platform).cast_mut(), Ordering::Release);
}

/// The platform below.
///
/// # Panics
/// Before [`set_platform`].
#[inline]
pub fn platform() -> &'static dyn Platform {
    #[cfg(debug_assertions)]
    if crate::watched::is_watched() {
        return &crate::watched::Watched;
    }
    below()
}

/// Asserts, in a build with debug assertions, that what happens now is part of a record of the grid's, if those are kept. For
/// loops that take long; each call of the platform asserts it by itself. `what`: what is done.
#[inline(always)]
pub fn assert_accounted(_what: &'static str) {
    #[cfg(debug_assertions)]
    if crate::watched::is_watched() {
        crate::watched::tell(_what);
    }
}

/// The platform itself, whoever watches.
#[inline]
pub(crate) fn below() -> &'static dyn Platform {
    let p = PLATFORM.0.load(Ordering::Acquire);
    assert!(!p.is_null(), "no platform yet");
    // SAFETY: the only pointers stored are `&'static` references, by `set_platform`.
    unsafe { *p }
}
