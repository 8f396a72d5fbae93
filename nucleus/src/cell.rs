//! A cell: its memory, its spaces, its cores.
//!
//! All that a cell needs lies in its own memory, page tables included: it can exhaust nobody else. The
//! nucleus reads what a cell points to by walking the cell's page tables, never through the pointer.
#![allow(unsafe_code, reason = "fills frames, and reads a cell's memory by the direct map")]

use core::cell::UnsafeCell;
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

use arrayvec::ArrayVec;
use atoll_abi::control::{
    ABI_VERSION, BOOT_MAX, Control, CoreArea, DEVICES_MAX, Descriptor, EXTENTS_MAX, MAGIC, PEERS_MAX,
    platform_kind, structure,
};
use atoll_abi::core_local::{CoreLocal, pending};
use atoll_abi::counter::{Count, EVENTS};
use atoll_abi::errno::Errno;
use atoll_abi::grid::GridArea;
use atoll_abi::layout::{
    ARCHIVE, BLOCK, CONTROL, DEVICE_STRUCTURE, DEVICES, DIRECT_MAP, HOST_THREAD_SIZE, HOST_THREADS, INBOXES,
    LOOP_STACK, MAX_SPACES, Sizes, TRAP_STACK, is_user_range, table_blocks,
};
use atoll_abi::mailbox::Line;
use atoll_abi::nucleus::{BITS_MAX, CHANGES_MAX, MapChange, NOT_YET, bit, change};
use atoll_abi::platform::Access as Rights;
use atoll_formats::counter::Program;
use atoll_partition::{CORES_MAX, Cell as Owns, Extent, Restart};

use crate::console::{self, Turn, write_stream};
use crate::cores::{self, Lock};
use crate::cpu::{self, Core};
use crate::devices::Device;
use crate::entry::DIRECT;
use crate::iommu::{self, Domain};
use crate::memory::{FRAME, Frames, Pool};
use crate::paging::{Access, AddressSpace};
use crate::space::{After, Bit, Change, Full, Space};
use crate::{clock, counter, load, mailbox, say};
use zerocopy::FromBytes;

/// Wait status of a cell that an exception ended: as of a program that was killed by SIGSEGV.
pub const CRASHED: u64 = 11;
/// Memory for a cell's first page tables, beside those for its view of its own memory: its runtime gives more when
/// these are used up.
const TABLES: u64 = 256 << 10;
/// Longest text of one call, bytes.
const TEXT_MAX: u64 = 1024;

type Result<T> = core::result::Result<T, &'static str>;
/// What a call of ring 3 comes to.
pub type Answer = core::result::Result<u64, Errno>;

/// Cells that run, or are about to.
pub static RUNNING: AtomicUsize = AtomicUsize::new(0);
/// Cells that ended with another status than 0.
static FAILED: AtomicUsize = AtomicUsize::new(0);

/// A cell that another one exchanges lines with.
#[derive(Clone)]
pub struct Peer {
    /// Its number in the boot configuration.
    pub number: usize,
    /// Its name.
    pub name: &'static str,
    /// Lines may be sent to it.
    pub to: bool,
    /// It may send lines.
    pub from: bool,
}

/// What a cell is made of, out of the boot module.
#[derive(Clone)]
pub struct Parts {
    /// Its number in the boot configuration.
    pub number: usize,
    /// Its name.
    pub name: &'static str,
    /// Its memory and its cores.
    pub owns: Owns,
    /// How many of these it uses at first.
    pub online: usize,
    /// Its runtime, an ELF file.
    pub runtime: &'static [u8],
    /// The encoded boot configuration, which the runtime reads.
    pub boot: &'static [u8],
    /// The root file system's archive, in whole pages.
    pub archive: Extent,
    /// May it write to the console?
    pub console: bool,
    /// Its devices.
    pub devices: ArrayVec<Device, DEVICES_MAX>,
    /// Cells that it exchanges lines with.
    pub peers: ArrayVec<Peer, PEERS_MAX>,
    /// What its books count.
    pub counter: Option<&'static str>,
    /// When it starts again.
    pub restart: Restart,
    /// How many times it has done that.
    pub restarts: u32,
}

/// A cell.
pub struct Cell {
    parts: Parts,
    /// Where it begins.
    pub entry: u64,
    /// The machine's cores that are its own, by its numbers for them.
    cores: ArrayVec<usize, CORES_MAX>,
    /// The cores' areas, by the direct map.
    areas: u64,
    /// How its cores count what its books do.
    pub counter: Option<Program>,
    /// What its devices on PCI reach, where there is an IOMMU. Changed under the lock.
    domain: Option<Domain>,
    ended: AtomicBool,
    /// Cores that will not come here again.
    left: AtomicUsize,
    /// Physical addresses of the spaces' topmost tables; 0: no such space. Changed under the lock.
    spaces: &'static [AtomicU64; MAX_SPACES],
    lock: Lock,
    pool: UnsafeCell<Pool>,
    /// Taken by the core that sends a line.
    sends: Lock,
}

// SAFETY: the pool is used under the lock only; areas are atomics.
unsafe impl Sync for Cell {}

const _: () = assert!(EXTENTS_MAX == atoll_partition::EXTENTS_MAX);

/// Zeroed frames as a value of which zeroes are a valid one.
///
/// # Safety
/// Zeroes are one, and nobody has another reference to it that is unique.
unsafe fn fresh<T>(at: u64) -> &'static T {
    // SAFETY: the caller's promise; frames in the direct map.
    unsafe { &*((DIRECT + at) as *const T) }
}

/// Where a cell sees a structure of its device `n`.
fn registers(n: usize, structure: usize) -> u64 {
    DEVICES + (n * structure::COUNT + structure) as u64 * DEVICE_STRUCTURE
}

impl Cell {
    /// A cell that has this memory and these cores.
    pub fn new(parts: Parts, nucleus: &AddressSpace) -> Result<Cell> {
        const SMALL: &str = "it has too little memory";
        let owns = &parts.owns;
        let (first, others) = owns.extents.split_first().ok_or(SMALL)?;
        let mut frames = Frames::of(*first);
        let space = nucleus.for_cell(&mut frames)?;
        let entry = load::load(parts.runtime, &space, &mut frames)?;
        let cores: ArrayVec<usize, CORES_MAX> = (0..CORES_MAX).filter(|n| owns.cores & 1 << n != 0).collect();
        let take = |frames: &mut Frames, bytes: u64| frames.take(bytes.div_ceil(FRAME)).ok_or(SMALL);
        let show = |frames: &mut Frames, at: u64, physical: u64, bytes: u64| {
            space.map_user(frames, at, physical, bytes.next_multiple_of(FRAME), Access::Write)
        };
        // The control area: what is said of the cell, its cores' areas, its boot configuration. The rest is a host's.
        let front = offset_of!(Control, spaces) as u64;
        let descriptor_at = take(&mut frames, front)?;
        show(&mut frames, CONTROL, descriptor_at, front)?;
        let areas_len = (cores.len() * size_of::<CoreArea>()) as u64;
        let areas_at = take(&mut frames, areas_len)?;
        show(&mut frames, CONTROL + offset_of!(Control, cores) as u64, areas_at, areas_len)?;
        if parts.boot.len() > BOOT_MAX {
            return Err("its boot configuration is too long");
        }
        if !parts.boot.is_empty() {
            let boot_at = take(&mut frames, parts.boot.len() as u64)?;
            // SAFETY: fresh frames, which are long enough.
            unsafe {
                ((DIRECT + boot_at) as *mut u8)
                    .copy_from_nonoverlapping(parts.boot.as_ptr(), parts.boot.len());
            }
            let at = CONTROL + offset_of!(Control, boot) as u64;
            const { assert!(offset_of!(Control, boot).is_multiple_of(FRAME as usize)) };
            show(&mut frames, at, boot_at, parts.boot.len() as u64)?;
        }
        for n in 0..cores.len() as u64 {
            let area = HOST_THREADS + n * HOST_THREAD_SIZE;
            for (at, bytes) in [(area, LOOP_STACK), (area + HOST_THREAD_SIZE - TRAP_STACK, TRAP_STACK)] {
                let physical = take(&mut frames, bytes)?;
                show(&mut frames, at, physical, bytes)?;
            }
        }
        if parts.archive.len > 0 {
            let Extent { start, len } = parts.archive;
            space.map_user(&mut frames, ARCHIVE, start, len, Access::Read)?;
        }
        for (n, device) in parts.devices.iter().enumerate() {
            for (s, part) in device.structures.iter().enumerate().filter(|(_, part)| part.len > 0) {
                let (from, to) =
                    (part.start / FRAME * FRAME, (part.start + part.len).next_multiple_of(FRAME));
                space.map_user(&mut frames, registers(n, s), from, to - from, Access::Registers)?;
            }
        }
        for (n, peer) in parts.peers.iter().enumerate().filter(|(_, p)| p.from) {
            let inbox = take(&mut frames, FRAME)?;
            show(&mut frames, INBOXES + n as u64 * FRAME, inbox, FRAME)?;
            mailbox::open(parts.number, peer.number, inbox);
        }
        let spaces_at = take(&mut frames, (size_of::<AtomicU64>() * MAX_SPACES) as u64)?;
        // SAFETY: zeroes are fine; for this cell alone.
        let spaces: &'static [AtomicU64; MAX_SPACES] = unsafe { fresh(spaces_at) };
        spaces[0].store(space.root(), Ordering::Relaxed);
        // What is behind that is the cell's to use, but for page tables.
        let total: u64 = owns.extents.iter().map(|e| e.len).sum();
        let books = take(&mut frames, Pool::size(total))?;
        // A table shows 1 GiB in huge pages.
        let on_pci = parts.devices.iter().any(|d| d.function().is_some());
        let tables = TABLES + (total >> 30) * FRAME + if on_pci { Domain::size(total) } else { 0 };
        let rest = (frames.next() + tables).next_multiple_of(BLOCK);
        let end = first.start + first.len;
        if rest > end {
            return Err(SMALL);
        }
        frames.keep_below(rest);
        let (mut memory, mut extents) = (0, ArrayVec::<Extent, EXTENTS_MAX>::new());
        for extent in core::iter::once(&Extent { start: rest, len: end - rest }).chain(others) {
            space.map_user(&mut frames, DIRECT_MAP + memory, extent.start, extent.len, Access::Write)?;
            memory += extent.len;
            extents.push(*extent);
        }
        let domain = if on_pci { Domain::new(parts.number, &extents, &mut frames)? } else { None };
        // What its runtime counts on; the rest it clears before it uses it, whatever was there before.
        let mut left = table_blocks(memory, cores.len() as u64) * BLOCK;
        for extent in &extents {
            let len = left.min(extent.len);
            // SAFETY: the cell's memory, in the direct map; it does not run yet.
            unsafe { ((DIRECT + extent.start) as *mut u8).write_bytes(0, len as usize) };
            left -= len;
        }
        if left > 0 {
            return Err(SMALL);
        }
        // SAFETY: the front of a control area, of atomics; the cell does not run yet.
        let d: &Descriptor = unsafe { fresh(descriptor_at) };
        let [base, scale, realtime] = clock::parameters();
        d.magic.store(MAGIC, Ordering::Relaxed);
        d.version.store(ABI_VERSION, Ordering::Relaxed);
        d.platform.store(platform_kind::NUCLEUS, Ordering::Relaxed);
        d.cores.store(cores.len() as u32, Ordering::Relaxed);
        d.online.store(parts.online as u32, Ordering::Relaxed);
        // Nobody serves it from another core.
        d.machine_cores.store(1, Ordering::Relaxed);
        d.set_memory_sizes(Sizes::fixed(memory));
        d.huge.store(1, Ordering::Relaxed);
        d.boot_len.store(parts.boot.len() as u32, Ordering::Relaxed);
        d.clock.base.store(base, Ordering::Relaxed);
        d.clock.scale.store(scale, Ordering::Relaxed);
        d.clock.realtime.store(realtime, Ordering::Relaxed);
        for (to, extent) in d.extents.iter().zip(&extents) {
            to[0].store(extent.start, Ordering::Relaxed);
            to[1].store(extent.len, Ordering::Relaxed);
        }
        for (n, (to, device)) in d.devices.iter().zip(&parts.devices).enumerate() {
            to.kind.store(device.kind, Ordering::Relaxed);
            to.transport.store(device.transport, Ordering::Relaxed);
            to.notify_multiplier.store(device.notify_multiplier, Ordering::Relaxed);
            for (s, part) in device.structures.iter().enumerate().filter(|(_, part)| part.len > 0) {
                to.structures[s][0].store(registers(n, s) + part.start % FRAME, Ordering::Relaxed);
                to.structures[s][1].store(part.len, Ordering::Relaxed);
            }
        }
        if parts.archive.len > 0 {
            d.archive[0].store(ARCHIVE, Ordering::Relaxed);
            d.archive[1].store(parts.archive.len, Ordering::Relaxed);
        }
        for (n, (to, peer)) in d.peers.iter().zip(&parts.peers).enumerate() {
            for (to, byte) in to.name.iter().zip(peer.name.bytes()) {
                to.store(byte, Ordering::Relaxed);
            }
            to.inbox.store(if peer.from { INBOXES + n as u64 * FRAME } else { 0 }, Ordering::Relaxed);
            to.may_send.store(u32::from(peer.to), Ordering::Relaxed);
        }
        if let Some(domain) = &domain {
            parts.devices.iter().filter_map(Device::function).try_for_each(|f| domain.add(f))?;
        }
        let counter = parts.counter.and_then(|name| {
            let event = EVENTS.into_iter().find(|e| e.name == name);
            let found = event.and_then(|event| Some((event, counter::find(name)?)));
            if found.is_none() {
                say!("cell {}: this machine has no counter for {name}", parts.name);
            }
            let (event, program) = found?;
            // SAFETY: in the front of the control area, of atomics; the cell does not run yet.
            let grid: &GridArea = unsafe { fresh(descriptor_at + offset_of!(Control, grid) as u64) };
            grid.counts.store(Count { event, user_only: false }.word(), Ordering::Relaxed);
            Some(program)
        });
        let areas = DIRECT + areas_at;
        mailbox::begin(parts.number, owns.cores, areas);
        Ok(Cell {
            parts,
            entry,
            cores,
            areas,
            counter,
            domain,
            ended: AtomicBool::new(false),
            left: AtomicUsize::new(0),
            spaces,
            sends: Lock::new(),
            lock: Lock::new(),
            pool: UnsafeCell::new(Pool::new(frames, extents, books)),
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.parts.name
    }

    /// The machine's cores that are its own.
    pub fn cores(&self) -> impl Iterator<Item = usize> + '_ {
        self.cores.iter().copied()
    }

    /// Has it ended? Then its cores stop wherever they come by.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// The area of its core `n`, and where the cell sees it.
    pub fn area(&self, n: usize) -> (&'static CoreArea, u64) {
        assert!(n < self.cores.len(), "a cell has no such core");
        // SAFETY: so many areas lie there, of atomics, for ever.
        let area = unsafe { &*(self.areas as *const CoreArea).add(n) };
        (area, CONTROL + (offset_of!(Control, cores) + n * size_of::<CoreArea>()) as u64)
    }

    /// Its first space.
    pub fn first_space(&self) -> Space {
        Space(self.spaces[0].load(Ordering::Relaxed))
    }

    /// It has ended; this core is free. `status` is a wait status.
    pub fn end(&'static self, status: u64) -> ! {
        if self.ended.swap(true, Ordering::SeqCst) {
            cpu::leave(self);
        }
        mailbox::end(self.parts.number);
        if self.domain.is_some() {
            iommu::report();
        }
        let me = Core::here().index;
        for n in self.cores().filter(|n| *n != me) {
            cores::interrupt(n);
        }
        let sum = |calls: fn(&CoreLocal) -> &AtomicU64| {
            let each = (0..self.cores.len()).map(|n| calls(&self.area(n).0.local).load(Ordering::Relaxed));
            each.fold(0, u64::wrapping_add)
        };
        let (fast, trapped) = (sum(|l| &l.fast_calls), sum(|l| &l.trapped_calls));
        say!("cell {} made {fast} calls by rewritten sites and {trapped} by traps", self.name());
        match (status & 0x7f, status >> 8 & 0xff) {
            (0, code) => say!("cell {} ended with status {code}", self.name()),
            (signal, _) => say!("cell {} was ended by signal {signal}", self.name()),
        }
        let well = status & 0xffff == 0;
        let Restart { on_failure, always, most } = self.parts.restart;
        if (if well { always } else { on_failure }) && self.parts.restarts < most {
            self.start_again();
        }
        Self::finished(well)
    }

    /// One cell less runs.
    fn finished(well: bool) -> ! {
        if !well {
            FAILED.fetch_add(1, Ordering::Relaxed);
        }
        if RUNNING.fetch_sub(1, Ordering::AcqRel) == 1 {
            crate::end(FAILED.load(Ordering::Relaxed) == 0)
        }
        cpu::stop()
    }

    /// A core will not come here again.
    pub fn has_left(&self) {
        self.left.fetch_add(1, Ordering::AcqRel);
    }

    /// Makes the cell anew out of what it was made of, in the same memory. At once the first time; then it waits, each
    /// time twice as long, so that one that can't go on doesn't take all of the machine's console.
    fn start_again(&'static self) -> ! {
        // Ring 3 can't keep interrupts out, and who waits in the nucleus looks at whether the cell has ended.
        while self.left.load(Ordering::Acquire) < self.cores.len() - 1 {
            core::hint::spin_loop();
        }
        let mut parts = self.parts.clone();
        let me = Core::here();
        me.rest();
        // One that goes on writes to memory that is about to be another's.
        if let Some(device) = parts.devices.iter().find(|d| !d.reset()) {
            say!("cell {}: {} can't be stopped", self.name(), device.name);
            Self::finished(false)
        }
        // Their tables lie in memory that is used anew.
        let mut devices = parts.devices.iter().filter_map(Device::function);
        if let Err(e) = devices.try_for_each(iommu::remove) {
            say!("cell {}: {e}", self.name());
            Self::finished(false)
        }
        me.sleep(clock::now().saturating_add(Restart::wait(parts.restarts)));
        parts.restarts += 1;
        say!("cell {} starts again, for the {}. time", parts.name, parts.restarts);
        let cores = parts.owns.cores;
        match Cell::new(parts, &AddressSpace::of_nucleus()) {
            Ok(cell) => crate::replace(cell, cores),
            Err(e) => {
                say!("cell {}: {e}", self.name());
                Self::finished(false)
            }
        }
    }

    /// Copies text that a cell points to.
    fn text<'a>(
        &self,
        text: u64,
        len: u64,
        into: &'a mut [u8; TEXT_MAX as usize],
    ) -> core::result::Result<&'a [u8], Errno> {
        if len > TEXT_MAX {
            return Err(Errno::EINVAL);
        }
        let mut done = 0;
        while done < len {
            let place = text.checked_add(done).and_then(|at| Core::here().space().look(at));
            let (at, room) = place.ok_or(Errno::EFAULT)?;
            let n = room.min(len - done) as usize;
            // SAFETY: a page that the cell can read, in the direct map; its bytes may change meanwhile, and any will do.
            unsafe { into.as_mut_ptr().add(done as usize).copy_from((DIRECT + at) as *const u8, n) };
            done += n as u64;
        }
        Ok(&into[..len as usize])
    }

    /// `log`.
    pub fn log(&self, text: u64, len: u64) -> Answer {
        let mut bytes = [0u8; TEXT_MAX as usize];
        let bytes = self.text(text, len, &mut bytes)?;
        let shown = |b: &u8| if b.is_ascii_graphic() || *b == b' ' { *b } else { b'?' };
        // In one piece; names have 31 bytes.
        let line: ArrayVec<u8, { TEXT_MAX as usize + 64 }> =
            self.name().bytes().chain(*b": ").chain(bytes.iter().map(shown)).chain(*b"\n").collect();
        let _turn = Turn::take();
        console::log(&line);
        Ok(0)
    }

    /// `console`.
    pub fn write(&self, stream: u64, text: u64, len: u64) -> Answer {
        if !self.parts.console {
            return Err(Errno::ENODEV);
        }
        if !(1..=2).contains(&stream) {
            return Err(Errno::EINVAL);
        }
        let mut bytes = [0u8; TEXT_MAX as usize];
        let bytes = self.text(text, len, &mut bytes)?;
        Ok(write_stream(stream as usize, bytes) as u64)
    }

    /// `notify`.
    pub fn notify(&self, core: u64) -> Answer {
        cpu::notify(self.parts.owns.cores, self.areas, core, pending::NOTIFY)
    }

    /// `send`.
    pub fn send(&'static self, core: &Core, peer: u64, line: u64) -> Answer {
        let peer = usize::try_from(peer).ok().and_then(|n| self.parts.peers.get(n)).ok_or(Errno::EINVAL)?;
        if !peer.to {
            return Err(Errno::EPERM);
        }
        if !line.is_multiple_of(size_of::<Line>() as u64) {
            return Err(Errno::EINVAL);
        }
        let (at, _) = core.space().look(line).ok_or(Errno::EFAULT)?;
        // SAFETY: within a page that the cell can read, in the direct map; its bytes may change meanwhile, and any will do.
        let line = unsafe { ((DIRECT + at) as *const Line).read_volatile() };
        self.sends.with(self, || mailbox::send(self.parts.number, peer.number, &line))?
    }

    fn with_pool<R>(&'static self, f: impl FnOnce(&mut Pool) -> R) -> core::result::Result<R, Errno> {
        self.lock.with(self, || {
            // SAFETY: under the lock there is one reference.
            let pool = unsafe { &mut *self.pool.get() };
            // What was taken out before can be used for what comes.
            pool.collect(|number| cores::have_forgotten(self, number));
            f(pool)
        })
    }

    /// `space_create`.
    pub fn space_create(&'static self) -> Answer {
        self.with_pool(|pool| {
            let free = self.spaces.iter().position(|s| s.load(Ordering::Relaxed) == 0);
            let n = free.ok_or(Errno::EAGAIN)?;
            let space = Space::new(pool, self.first_space()).map_err(|_| Errno::ENOMEM)?;
            self.spaces[n].store(space.0, Ordering::SeqCst);
            Ok(n as u64)
        })?
    }

    fn space(&self, n: u64) -> core::result::Result<Space, Errno> {
        let slot = usize::try_from(n).ok().and_then(|n| self.spaces.get(n)).ok_or(Errno::EINVAL)?;
        Some(slot.load(Ordering::SeqCst)).filter(|root| *root != 0).map(Space).ok_or(Errno::EINVAL)
    }

    /// `space_destroy`. The first one stays: the others take the runtime's part from it.
    pub fn space_destroy(&'static self, n: u64) -> Answer {
        self.with_pool(|pool| {
            let space = self.space(n)?;
            if n == 0 {
                return Err(Errno::EINVAL);
            }
            // Who is about to come in sees that it is gone, or is seen here.
            self.spaces[n as usize].store(0, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            if self.cores().any(|core| cores::is_in(core, space)) {
                self.spaces[n as usize].store(space.0, Ordering::SeqCst);
                return Err(Errno::EBUSY);
            }
            space.destroy(pool);
            Ok(0)
        })?
    }

    /// `space_switch`.
    pub fn space_switch(&'static self, core: &Core, n: u64) -> Answer {
        let space = self.space(n)?;
        if !cores::enter_if(core.index, space, || self.space(n) == Ok(space)) {
            return Err(Errno::EINVAL);
        }
        core.set_space(space);
        Ok(0)
    }

    /// `map`, `unmap`, `protect`: changes a range of the core's space. Inline, as what it calls: a program's page faults
    /// and its calls for memory come here, and mostly for a page or two.
    #[inline(always)]
    pub fn change(&'static self, core: &Core, change: &MapChange) -> Answer {
        let (result, number) = self.with_pool(|pool| {
            let (space, mut after) = (core.space(), After::default());
            let result = one_change(space, pool, change, &mut after);
            let mut number = 0;
            if after.stale {
                let range = (change.address, change.address + change.len);
                number = self.begin_to_settle(pool, space, &after, &[range]);
            }
            (result, number)
        })?;
        self.settle(core, number);
        result.map(|()| 0)
    }

    /// Changes of these ranges have been made in a space, of which cores may remember what was there before: they are asked to
    /// forget it. Value: the changes' number. With the pool's lock.
    fn begin_to_settle(
        &'static self,
        pool: &mut Pool,
        space: Space,
        after: &After,
        ranges: &[(u64, u64)],
    ) -> u64 {
        let number = cores::ask_to_forget(self, Some(space), ranges);
        after.tables.iter().for_each(|at| pool.give_later(*at, number));
        number
    }

    /// Waits a moment for the other cores to forget what the changes of this number took away, and leaves the rest to the cell.
    fn settle(&'static self, core: &Core, number: u64) {
        if number != 0 && !cores::is_soon(self, || cores::have_forgotten(self, number)) {
            core.area(self).to_settle.store(number, Ordering::Relaxed);
        }
    }

    /// `settled`.
    pub fn settled(&'static self, number: u64) -> Answer {
        if cores::have_forgotten(self, number) { Ok(0) } else { Err(NOT_YET) }
    }

    /// `changes`: several of them. Value: how many were made.
    pub fn change_list(&'static self, core: &Core, list: u64, n: u64) -> Answer {
        const ONE: usize = size_of::<MapChange>();
        if n > CHANGES_MAX {
            return Err(Errno::EINVAL);
        }
        let mut bytes = [0u8; TEXT_MAX as usize];
        const { assert!(CHANGES_MAX * ONE as u64 <= TEXT_MAX) };
        let bytes = self.text(list, n * ONE as u64, &mut bytes)?;
        let (result, number, done) = self.with_pool(|pool| {
            let (space, mut after, mut done) = (core.space(), After::default(), 0);
            let mut ranges = ArrayVec::<(u64, u64), { CHANGES_MAX as usize }>::new();
            let mut make = || {
                for one in bytes.chunks_exact(ONE) {
                    let one = MapChange::read_from_bytes(one).map_err(|_| Errno::EFAULT)?;
                    let made = one_change(space, pool, &one, &mut after);
                    if matches!(made, Ok(()) | Err(Errno::ENOMEM)) {
                        ranges.push((one.address, one.address + one.len));
                    }
                    made?;
                    done += 1;
                }
                Ok(())
            };
            let result = make();
            let stale = after.stale;
            (result, if stale { self.begin_to_settle(pool, space, &after, &ranges) } else { 0 }, done)
        })?;
        self.settle(core, number);
        match result {
            Err(e) if done == 0 => Err(e),
            _ => Ok(done),
        }
    }

    /// `page_bits`: which pages of a range of the core's space have this bit set in the tables, and clears it.
    pub fn page_bits(&'static self, core: &Core, address: u64, len: u64, which: u64, to: u64) -> Answer {
        let which = match which {
            bit::ACCESSED => Bit::Accessed,
            bit::DIRTY => Bit::Dirty,
            _ => return Err(Errno::EINVAL),
        };
        let whole = (address | len).is_multiple_of(FRAME) && is_user_range(address, len);
        if !whole || len > BITS_MAX * FRAME {
            return Err(Errno::EINVAL);
        }
        let (result, number) = self.with_pool(|pool| {
            let space = core.space();
            // A bit of a page is in the word of its 64 KiB.
            let base = address & !(GRAIN - 1);
            let places = Places::find(space, to, (address + len).div_ceil(GRAIN) - base / GRAIN)?;
            let mut after = After::default();
            let range = (address, address + len);
            let result = space.take_bits(pool, range, which, &mut after, &mut |at| {
                places.set((at - base) / FRAME);
            });
            // Also if it came to an end too early.
            let number = if after.stale { self.begin_to_settle(pool, space, &after, &[range]) } else { 0 };
            Ok((result, number))
        })??;
        self.settle(core, number);
        result.map(|()| 0).map_err(|Full| Errno::ENOMEM)
    }

    /// `forget`: what cores remember of mappings in a range of the core's space.
    pub fn forget(&'static self, core: &Core, address: u64, len: u64) -> Answer {
        if !(address | len).is_multiple_of(FRAME) || !is_user_range(address, len) {
            return Err(Errno::EINVAL);
        }
        let range = (address, address + len);
        let number = self.with_pool(|_| cores::ask_to_forget(self, Some(core.space()), &[range]))?;
        self.settle(core, number);
        Ok(0)
    }

    /// `tables_give`: the cell gives a block of its memory up for page tables. Whoever makes the call again when it was not yet done
    /// goes on with it.
    pub fn tables_give(&'static self, offset: u64) -> Answer {
        let number = self.with_pool(|pool| {
            if let Some(number) = pool.retyping(offset) {
                return Ok(number);
            }
            let at = pool.retype(offset)?;
            // Nothing maps it but the runtime's view of all memory.
            self.first_space().set_block(DIRECT_MAP + offset, false);
            // If it can't be had to forget, the block is lost to the cell.
            self.domain.as_ref().map_or(Ok(()), |d| d.set_block(at, false)).map_err(|_| Errno::EIO)?;
            let number = cores::ask_to_forget(self, None, &[]);
            pool.set_retyping(offset, number);
            Ok(number)
        })??;
        // When no core remembers that view, nobody in ring 3 reaches it.
        if !cores::is_soon(self, || cores::have_forgotten(self, number)) {
            return Err(NOT_YET);
        }
        self.with_pool(|pool| pool.add(offset, number))?;
        Ok(0)
    }

    /// `tables_back`: a block that was given and in which there is no page table is the cell's again; its offset.
    pub fn tables_back(&'static self) -> Answer {
        // All under the lock: another core could give it once more.
        self.with_pool(|pool| {
            let (offset, at) = pool.take_back().ok_or(Errno::ENOENT)?;
            self.domain.as_ref().map_or(Ok(()), |d| d.set_block(at, true)).map_err(|_| Errno::EIO)?;
            self.first_space().set_block(DIRECT_MAP + offset, true);
            Ok(offset)
        })?
    }
}

/// Bytes of addresses whose pages have their bits in one word of 16.
const GRAIN: u64 = 16 * FRAME;

/// Words of 16 bits in a cell's memory, by the direct map. For as long as the cell's lock is held, in which no block becomes a page
/// table.
struct Places {
    at: u64,
    /// Physical addresses of their pages.
    pages: ArrayVec<u64, { (BITS_MAX / 8).div_ceil(FRAME) as usize + 1 }>,
}

impl Places {
    /// So many words at an address where ring 3 may write.
    fn find(space: Space, at: u64, words: u64) -> core::result::Result<Places, Errno> {
        let mut pages = ArrayVec::new();
        let end = at.checked_add(2 * words).ok_or(Errno::EFAULT)?;
        for page in (at / FRAME..end.div_ceil(FRAME)).map(|n| n * FRAME) {
            let (physical, _) = space.look_to_write(page).ok_or(Errno::EFAULT)?;
            pages.try_push(physical).map_err(|_| Errno::EINVAL)?;
        }
        Ok(Places { at, pages })
    }

    /// Sets bit `n`, the lowest of a byte first.
    fn set(&self, n: u64) {
        let at = self.at + n / 8;
        let page = self.pages[(at / FRAME - self.at / FRAME) as usize];
        let byte = (DIRECT + page + at % FRAME) as *mut u8;
        // SAFETY: a page that the cell can write to, in the direct map; whoever writes there meanwhile gets any of both.
        unsafe { byte.write_volatile(byte.read_volatile() | 1 << (n % 8)) };
    }
}

#[inline(always)]
fn one_change(
    space: Space,
    pool: &mut Pool,
    &MapChange { kind, access, address, len, offset }: &MapChange,
    after: &mut After,
) -> core::result::Result<(), Errno> {
    if !(address | len | offset).is_multiple_of(FRAME) || !is_user_range(address, len) {
        return Err(Errno::EINVAL);
    }
    if kind > change::PROTECT || kind == change::MAP && !pool.is_own(offset, len) {
        return Err(Errno::EINVAL);
    }
    let access = Rights::from_bits_truncate(access);
    let mut done = 0;
    while done < len {
        let mut next = len - done;
        let change = match kind {
            change::MAP => {
                let piece = pool.piece(offset + done, next).ok_or(Errno::EINVAL)?;
                next = piece.len;
                Change::Map { physical: piece.start, offset: offset + done, access }
            }
            change::UNMAP => Change::Unmap,
            _ => Change::Protect(access),
        };
        let from = address + done;
        space.change(pool, from, from + next, change, after).map_err(|Full| Errno::ENOMEM)?;
        done += next;
    }
    Ok(())
}
