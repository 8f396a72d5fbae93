//! IOMMUs (Intel Virtualization Technology for Directed I/O, revision 4): a device reaches the memory of the cell that
//! owns it, and sends the one interrupt that it was given. One that no cell owns reaches nothing.
//!
//! A device names memory by its physical addresses. All units have the same tables: the root and contexts say which
//! domain a device is in, a domain's own tables what of the memory is there: what the cell's programs can have, not its
//! page tables, nor the nucleus's part of it. They lie in that part, which ring 3 never sees. Units are told
//! of changes by their queues, under the one lock that cores of different cells take: for as long as a unit takes.
#![allow(unsafe_code, reason = "writes registers and tables of IOMMUs")]

use core::arch::x86_64::{_mm_clflush, _mm_mfence};
use core::fmt::Write as _;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use arrayvec::ArrayVec;
use atoll_abi::layout::BLOCK;
use atoll_partition::{EXTENTS_MAX, Extent};

use crate::apic::{Apic, vector};
use crate::console::{Console, Turn};
use crate::devices::{Device, MESSAGES};
use crate::entry::DIRECT;
use crate::memory::{FRAME, Frames};
use crate::paging::AddressSpace;
use crate::pci::{Function, Name};
use crate::say;
use crate::tables::Machine;

/// Registers (section 11.4).
const CAPABILITY: u64 = 8;
const MORE_CAPABILITY: u64 = 0x10;
const COMMAND: u64 = 0x18;
const STATUS: u64 = 0x1c;
const ROOT: u64 = 0x20;
const FAULTS: u64 = 0x34;
/// Control, data, address of the interrupt that says of faults.
const FAULT_EVENT: [u64; 4] = [0x38, 0x3c, 0x40, 0x44];
const QUEUE_TAIL: u64 = 0x88;
const QUEUE: u64 = 0x90;
const INTERRUPTS: u64 = 0xb8;
/// Bits of the command and of the status.
const TRANSLATE: u32 = 1 << 31;
const SET_ROOT: u32 = 1 << 30;
const QUEUE_ON: u32 = 1 << 26;
const REMAP: u32 = 1 << 25;
const SET_INTERRUPTS: u32 = 1 << 24;
/// Those that stay as they were written.
const KEPT: u32 = TRANSLATE | 1 << 28 | QUEUE_ON | REMAP | 1 << 23;
/// What goes into a queue (section 6.5.2): forget contexts, translations (of one domain, when what is under way has
/// reached memory), interrupts; say when that is done, by a word in memory.
const FORGET_CONTEXTS: u64 = 1 | 1 << 4;
const FORGET_TRANSLATIONS: u64 = 2 | 1 << 4 | 3 << 6;
const FORGET_DOMAIN: u64 = 2 | 2 << 4 | 3 << 6;
const FORGET_INTERRUPTS: u64 = 4;
const WAIT: u64 = 5 | 1 << 5 | 1 << 32;
/// Entries of tables: readable and writable; a block, not a table.
const ACCESS: u64 = 3;
const WHOLE: u64 = 1 << 7;
/// Address of a table in an entry.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// Looks at a unit that is to do something.
const PATIENCE: u32 = 100_000_000;
/// Faults that are shown; the others are dropped.
const SHOWN: u32 = 32;
/// Looks at all records of faults.
const ROUNDS: usize = 4;

type Result<T> = core::result::Result<T, &'static str>;

/// A unit.
struct Unit {
    registers: u64,
    /// Physical address of its queue, one frame; another one behind it is for its answers.
    queue: u64,
    /// Where it goes on. Changed under the lock.
    tail: AtomicU64,
    /// Its records of faults: where, and how many.
    faults: u64,
    records: u64,
}

/// All of them.
struct Iommus {
    units: ArrayVec<Unit, 16>,
    /// Physical address of the root table.
    root: u64,
    /// That of the table of interrupts; 0: devices send what they like.
    interrupts: u64,
    /// Levels of domains' tables.
    levels: u32,
    /// May an entry be a whole block?
    blocks: bool,
    /// The turn that is next to be taken, and the one that is on: the units have one queue for all cells, and so each
    /// core waits for at most one question of each other core's.
    turns: AtomicU32,
    turn: AtomicU32,
    /// Faults that were shown, and whether a core is at that.
    shown: AtomicU32,
    showing: AtomicBool,
}

static IOMMUS: AtomicPtr<Iommus> = AtomicPtr::new(core::ptr::null_mut());

fn iommus() -> Option<&'static Iommus> {
    // SAFETY: null, or made by `start`, for ever.
    unsafe { IOMMUS.load(Ordering::Acquire).as_ref() }
}

fn word(at: u64) -> &'static AtomicU64 {
    // SAFETY: tables lie in frames that nothing else uses, in the direct map, and are read and written as atomics.
    unsafe { &*((DIRECT + at) as *const AtomicU64) }
}

/// Stores into a table: units need not look into the processor's cache.
fn store(at: u64, value: u64) {
    word(at).store(value, Ordering::SeqCst);
    // SAFETY: an address in the direct map; what all processors of this kind have.
    unsafe {
        _mm_clflush((DIRECT + at) as *const u8);
        _mm_mfence();
    }
}

/// Zeroed frames that units see as such.
fn take(frames: &mut Frames, n: u64) -> Result<u64> {
    let at = frames.take(n).ok_or("no memory for an IOMMU's tables")?;
    for line in (0..n * FRAME).step_by(64) {
        store(at + line, 0);
    }
    Ok(at)
}

impl Unit {
    fn read(&self, at: u64) -> u32 {
        // SAFETY: mapped registers, and an aligned place in them.
        unsafe { ((self.registers + at) as *const u32).read_volatile() }
    }

    fn write(&self, at: u64, value: u32) {
        // SAFETY: as above.
        unsafe { ((self.registers + at) as *mut u32).write_volatile(value) }
    }

    /// Registers of 64 bits.
    fn read_long(&self, at: u64) -> u64 {
        u64::from(self.read(at)) | u64::from(self.read(at + 4)) << 32
    }

    fn write_long(&self, at: u64, value: u64) {
        // SAFETY: as above.
        unsafe { ((self.registers + at) as *mut u64).write_volatile(value) }
    }

    /// Changes a bit of the command, and waits until it is so.
    fn command(&self, bit: u32, on: bool) -> Result<()> {
        let kept = self.read(STATUS) & KEPT & !bit;
        self.write(COMMAND, if on { kept | bit } else { kept });
        for _ in 0..PATIENCE {
            if (self.read(STATUS) & bit != 0) == on {
                return Ok(());
            }
        }
        Err("an IOMMU does not answer")
    }

    /// Has it do this, and waits for it. Under the lock, or alone.
    fn ask(&self, what: &[u64]) -> Result<()> {
        let answer = self.queue + FRAME;
        word(answer).store(0, Ordering::SeqCst);
        let mut tail = self.tail.load(Ordering::Relaxed);
        let wait = (WAIT, answer);
        for (low, high) in what.iter().map(|w| (*w, 0)).chain([wait]) {
            store(self.queue + tail, low);
            store(self.queue + tail + 8, high);
            tail = (tail + 16) % FRAME;
        }
        self.tail.store(tail, Ordering::Relaxed);
        self.write_long(QUEUE_TAIL, tail);
        for _ in 0..PATIENCE {
            if word(answer).load(Ordering::SeqCst) != 0 {
                return Ok(());
            }
        }
        Err("an IOMMU does not forget what it was told to")
    }

    /// Has it use these tables.
    fn start(&self, root: u64, interrupts: u64, long_ids: bool) -> Result<()> {
        for bit in [TRANSLATE, REMAP, QUEUE_ON] {
            if self.read(STATUS) & bit != 0 {
                self.command(bit, false)?;
            }
        }
        self.write_long(ROOT, root);
        self.command(SET_ROOT, true)?;
        self.write_long(QUEUE_TAIL, 0);
        self.write_long(QUEUE, self.queue);
        self.command(QUEUE_ON, true)?;
        self.ask(&[FORGET_CONTEXTS, FORGET_TRANSLATIONS])?;
        if interrupts != 0 {
            // 256 entries. Interrupts that name none are not let through.
            self.write_long(INTERRUPTS, interrupts | u64::from(long_ids) << 11 | 7);
            self.command(SET_INTERRUPTS, true)?;
            self.ask(&[FORGET_INTERRUPTS])?;
            self.command(REMAP, true)?;
        }
        self.command(TRANSLATE, true)
    }

    /// Takes its records of faults: their two words.
    fn look_at_faults(&self, mut each: impl FnMut(u64, u64)) {
        // It interrupts for the first record only, until all have been taken.
        for _ in 0..ROUNDS {
            let status = self.read(FAULTS);
            if status & 3 == 0 {
                return;
            }
            for n in 0..self.records {
                let at = self.faults + n * 16;
                let high = self.read_long(at + 8);
                if high >> 63 != 0 {
                    let low = self.read_long(at);
                    self.write(at + 12, 1 << 31);
                    each(low, high);
                }
            }
            // There was no room for more.
            self.write(FAULTS, status & 1);
        }
    }
}

/// Begins to hold devices off, where there is an IOMMU.
pub fn start(
    machine: &Machine,
    devices: &[Device],
    space: &mut AddressSpace,
    frames: &mut Frames,
) -> Result<()> {
    if machine.iommus.is_empty() {
        return Ok(());
    }
    let x2 = matches!(Apic::here(), Apic::X2);
    let (root, none) = (take(frames, 1)?, take(frames, 1)?);
    let (mut widths, mut blocks, mut remap) = (u64::MAX, true, true);
    let mut units = ArrayVec::<_, 16>::new();
    for (address, _) in &machine.iommus {
        let registers = space.map_registers(frames, *address, FRAME)?;
        let mut unit =
            Unit { registers, queue: take(frames, 2)?, tail: AtomicU64::new(0), faults: 0, records: 0 };
        let (has, more) = (unit.read_long(CAPABILITY), unit.read_long(MORE_CAPABILITY));
        // Domains for all cells; a queue; no buffers that are to be flushed by hand.
        if has & 7 == 0 || more & 2 == 0 || has & 1 << 4 != 0 {
            return Err("an IOMMU is of a kind that is not known: iommu=off goes on without");
        }
        widths &= has >> 8 & 0x1f;
        blocks &= has >> 34 & 1 != 0;
        remap &= more >> 3 & 1 != 0 && (!x2 || more >> 4 & 1 != 0);
        let faults = (has >> 24 & 0x3ff) * 16;
        unit.records = ((has >> 40 & 0xff) + 1).min((FRAME - faults % FRAME) / 16);
        let page = space.map_registers(frames, address + faults / FRAME * FRAME, FRAME)?;
        unit.faults = page + faults % FRAME - registers;
        units.push(unit);
    }
    // Four levels (48 bits) or three (39).
    let levels = match widths {
        w if w & 4 != 0 => 4,
        w if w & 2 != 0 => 3,
        _ => return Err("IOMMUs have no tables in common: iommu=off goes on without"),
    };
    let interrupts = if remap { take(frames, 1)? } else { 0 };
    for function in devices.iter().filter_map(Device::function) {
        let entry = root + u64::from(function.id >> 8) * 16;
        if word(entry).load(Ordering::Relaxed) == 0 {
            store(entry, take(frames, 1)? | 1);
        }
    }
    for (unit, (_, segment)) in units.iter().zip(&machine.iommus) {
        // Devices of other segments are nobody's.
        unit.start(if *segment == 0 { root } else { none }, interrupts, x2)?;
    }
    let interrupts_too =
        if remap { "memory and interrupts" } else { "memory; not yet from others' interrupts" };
    say!("IOMMU ({} of them): devices are kept from others' {interrupts_too}", units.len());
    let size = (size_of::<Iommus>() as u64).div_ceil(FRAME);
    let place = (DIRECT + frames.take(size).ok_or("no memory for the IOMMUs")?) as *mut Iommus;
    let (turns, turn, shown) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
    let showing = AtomicBool::new(false);
    // SAFETY: fresh frames with room for it, which nothing else uses, for ever.
    unsafe { place.write(Iommus { units, root, interrupts, levels, blocks, turns, turn, shown, showing }) };
    IOMMUS.store(place, Ordering::Release);
    Ok(())
}

/// Is there one?
pub fn is_there() -> bool {
    iommus().is_some()
}

/// Has the units interrupt the core with this APIC when they keep a device from something.
pub fn tell(apic: u32) {
    let address = MESSAGES as u32 | (apic & 0xff) << 12;
    for unit in iommus().iter().flat_map(|all| &all.units) {
        unit.look_at_faults(|_, _| {});
        for (at, value) in
            FAULT_EVENT.into_iter().zip([0, u32::from(vector::FAULT), address, apic & !0xff]).rev()
        {
            unit.write(at, value);
        }
    }
}

impl Iommus {
    /// Has all units do this.
    fn ask(&self, what: &[u64]) -> Result<()> {
        let mine = self.turns.fetch_add(1, Ordering::Relaxed);
        // Whose turn it is waits for nothing but a unit.
        while self.turn.load(Ordering::Acquire) != mine {
            core::hint::spin_loop();
        }
        let done = self.units.iter().try_for_each(|u| u.ask(what));
        self.turn.store(mine.wrapping_add(1), Ordering::Release);
        done
    }

    /// Where the context of a device is.
    fn context(&self, function: Function) -> Option<u64> {
        let table = word(self.root + u64::from(function.id >> 8) * 16).load(Ordering::Relaxed) & ADDRESS;
        (table != 0).then_some(table + u64::from(function.id & 0xff) * 16)
    }
}

/// What the devices of a cell reach.
pub struct Domain {
    id: u64,
    /// Physical address of its topmost table.
    root: u64,
}

impl Domain {
    /// Bytes of tables that one with so much memory needs at most.
    pub fn size(memory: u64) -> u64 {
        let tables = (memory >> 30) + 3 * EXTENTS_MAX as u64;
        iommus().map_or(0, |all| tables + if all.blocks { 0 } else { memory / BLOCK }) * FRAME
    }

    /// The domain of the cell of this number: these extents, whole blocks. None: there is no IOMMU.
    pub fn new(cell: usize, extents: &[Extent], frames: &mut Frames) -> Result<Option<Domain>> {
        let Some(all) = iommus() else { return Ok(None) };
        // 0 is not to be used.
        let domain = Domain { id: cell as u64 + 1, root: take(frames, 1)? };
        for extent in extents {
            if extent.start + extent.len > 1 << (12 + 9 * all.levels) {
                return Err("its memory is where the IOMMU can't reach");
            }
            for block in (extent.start..extent.start + extent.len).step_by(BLOCK as usize) {
                let entry = domain.entry(all, block, |at| {
                    let made = take(frames, 1)?;
                    store(at, made | ACCESS);
                    Ok(made)
                })?;
                if all.blocks {
                    store(entry, block | ACCESS | WHOLE);
                    continue;
                }
                let pages = take(frames, 1)?;
                (0..512).for_each(|n| store(pages + n * 8, (block + n * FRAME) | ACCESS));
                store(entry, pages | ACCESS);
            }
        }
        Ok(Some(domain))
    }

    /// Where the entry of a block is. `missing` is asked for tables that are not there.
    fn entry(&self, all: &Iommus, block: u64, mut missing: impl FnMut(u64) -> Result<u64>) -> Result<u64> {
        let mut table = self.root;
        for level in (2..all.levels).rev() {
            let at = table + (block >> (12 + 9 * level) & 511) * 8;
            table = match word(at).load(Ordering::Relaxed) & ADDRESS {
                0 => missing(at)?,
                there => there,
            };
        }
        Ok(table + (block >> 21 & 511) * 8)
    }

    /// Lets devices reach a block of the cell's memory, or keeps them from it; when this returns, none reaches it any
    /// more. One change of a domain at a time.
    pub fn set_block(&self, block: u64, allowed: bool) -> Result<()> {
        let Some(all) = iommus() else { return Ok(()) };
        let at = self.entry(all, block, |_| Err("the block is not the cell's"))?;
        let entry = word(at).load(Ordering::Relaxed);
        if entry == 0 {
            return Err("the block is not the cell's");
        }
        store(at, if allowed { entry | ACCESS } else { entry & !ACCESS });
        all.ask(&[FORGET_DOMAIN | self.id << 16])
    }

    /// Puts a device into the domain.
    pub fn add(&self, function: Function) -> Result<()> {
        let Some(all) = iommus() else { return Ok(()) };
        let at = all.context(function).ok_or("a device is on a bus that the IOMMU has no table for")?;
        // The width of addresses by the levels: 1 for three, 2 for four.
        store(at + 8, u64::from(all.levels - 2) | self.id << 8);
        store(at, self.root | 1);
        all.ask(&[FORGET_CONTEXTS, FORGET_DOMAIN | self.id << 16])
    }
}

/// Takes a device out of its domain: it reaches nothing.
pub fn remove(function: Function) -> Result<()> {
    let Some(all) = iommus() else { return Ok(()) };
    let Some(at) = all.context(function) else { return Ok(()) };
    store(at, 0);
    all.ask(&[FORGET_CONTEXTS, FORGET_TRANSLATIONS])
}

/// What device number `n` of the machine is to write, and where, to interrupt the core with this APIC, where it can't
/// interrupt others. None: no IOMMU looks at that.
pub fn message(n: usize, function: Function, apic: u32) -> Result<Option<(u64, u32)>> {
    let Some(all) = iommus().filter(|all| all.interrupts != 0) else { return Ok(None) };
    let at = all.interrupts + n as u64 * 16;
    let to = if matches!(Apic::here(), Apic::X2) { apic } else { apic << 8 };
    // From this device only (section 9.10).
    store(at + 8, 1 << 18 | u64::from(function.id));
    store(at, u64::from(to) << 32 | u64::from(vector::DEVICE) << 16 | 1);
    all.ask(&[FORGET_INTERRUPTS])?;
    Ok(Some((MESSAGES | (n as u64) << 5 | 1 << 4, 0)))
}

/// Says what devices were kept from.
pub fn report() {
    let Some(all) = iommus() else { return };
    // A core at a time.
    if all.showing.swap(true, Ordering::Acquire) {
        return;
    }
    for unit in &all.units {
        unit.look_at_faults(|low, high| {
            if all.shown.fetch_add(1, Ordering::Relaxed) >= SHOWN {
                return;
            }
            let (id, reason) = (high as u16, high >> 32 & 0xff);
            let what = match reason {
                0x20.. => "interrupting by",
                _ if high >> 62 & 1 != 0 => "reading",
                _ => "writing",
            };
            let _turn = Turn::take();
            // It can't fail.
            let _ = writeln!(
                Console,
                "nucleus: IOMMU: PCI device {} was kept from {what} {:#x} (reason {reason:#x})",
                Name(id),
                if reason < 0x20 { low } else { low >> 48 }
            );
        });
        if all.shown.load(Ordering::Relaxed) >= SHOWN {
            unit.write(FAULT_EVENT[0], 1 << 31);
        }
    }
    all.showing.store(false, Ordering::Release);
}
