//! What the cores know of each other: cores of one cell wake and interrupt each other, and see to it that none
//! remembers a mapping that is gone. No core waits here for one of another cell, nor for long for one of its own: whose processor
//! stands still holds up only who needs it.
#![allow(unsafe_code, reason = "loads the page-table register")]

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use atoll_abi::errno::Errno;
use atoll_abi::nucleus::NOT_YET;
use atoll_partition::CORES_MAX;
use x86_64::PhysAddr;
use x86_64::registers::control::{Cr3, Cr3Flags};
use x86_64::structures::paging::PhysFrame;

use crate::apic::{Apic, vector};
use crate::cell::Cell;
use crate::clock;
use crate::cpu::{self, Core};
use crate::memory::FRAME;
use crate::space::Space;

/// One core, as others see it.
struct Shared {
    apic: AtomicU32,
    /// The page tables that it uses.
    root: AtomicU64,
    /// Those that it is about to use; 0: none.
    entering: AtomicU64,
    /// The last change of mappings for which it is to forget what it remembers of them. Changed under its cell's lock.
    wanted: AtomicU64,
    /// How far it has.
    done: AtomicU64,
}

static CORES: [Shared; CORES_MAX] = [const {
    Shared {
        apic: AtomicU32::new(0),
        root: AtomicU64::new(0),
        entering: AtomicU64::new(0),
        wanted: AtomicU64::new(0),
        done: AtomicU64::new(0),
    }
}; CORES_MAX];

/// A core has this APIC.
pub fn introduce(core: usize, apic: u32) {
    CORES[core].apic.store(apic, Ordering::Relaxed);
}

/// A core's APIC.
pub fn apic(core: usize) -> u32 {
    CORES[core].apic.load(Ordering::Relaxed)
}

/// This core uses the tables of this space from here on.
pub fn enter(core: usize, space: Space) {
    enter_if(core, space, || true);
}

/// The same, if the space is there still. Value: was it? Until it has left the one before, it is in both.
pub fn enter_if(core: usize, space: Space, is_there: impl FnOnce() -> bool) -> bool {
    let me = &CORES[core];
    me.entering.store(space.0, Ordering::SeqCst);
    // Who changes the space meanwhile, or destroys it, sees that, or this core sees the change.
    fence(Ordering::SeqCst);
    let there = is_there();
    if there {
        load(space);
        me.root.store(space.0, Ordering::SeqCst);
    }
    me.entering.store(0, Ordering::SeqCst);
    there
}

fn load(space: Space) {
    // SAFETY: a cell's space has the nucleus's part like all others.
    unsafe { Cr3::write(PhysFrame::containing_address(PhysAddr::new(space.0)), Cr3Flags::empty()) };
}

/// Does a core use this space, or is it about to?
pub fn is_in(core: usize, space: Space) -> bool {
    // In this order: who is not entering it any more has come in, or has not.
    let core = &CORES[core];
    core.entering.load(Ordering::SeqCst) == space.0 || core.root.load(Ordering::SeqCst) == space.0
}

/// Forgets what it remembers of mappings, if another core wants it to.
pub fn forget_if_wanted(core: usize) {
    let me = &CORES[core];
    let wanted = me.wanted.load(Ordering::SeqCst);
    if me.done.load(Ordering::Relaxed) != wanted {
        load(Space(me.root.load(Ordering::Relaxed)));
        me.done.store(wanted, Ordering::SeqCst);
    }
}

/// Mappings have changed, of these ranges (begin and end), or anywhere if there are none; `space`: where; None: in all of them.
/// This core forgets what was there, and all others of the cell are asked to. Value: the change's number; 0: there is nobody to
/// wait for. Under the cell's lock.
pub fn ask_to_forget(cell: &'static Cell, space: Option<Space>, ranges: &[(u64, u64)]) -> u64 {
    /// From so many pages on it is cheaper to forget everything.
    const FEW: u64 = 16;
    let me = Core::here();
    fence(Ordering::SeqCst);
    let count = |left: u64, (from, to): &(u64, u64)| left.checked_sub((to - from) / FRAME);
    if !ranges.is_empty() && ranges.iter().try_fold(FEW, count).is_some() {
        for &(mut at, to) in ranges {
            while at < to {
                x86_64::instructions::tlb::flush(x86_64::VirtAddr::new_truncate(at));
                at += FRAME;
            }
        }
    } else {
        load(me.space());
    }
    let me = me.index;
    let others = || cell.cores().filter(|n| *n != me && space.is_none_or(|s| is_in(*n, s)));
    if others().next().is_none() {
        return 0;
    }
    // More than any core of the cell was asked for, whatever cells they have been of before.
    let last = cell.cores().map(|n| CORES[n].wanted.load(Ordering::Relaxed)).max();
    let number = last.map_or(1, |last| last + 1);
    // Who comes into the space later has nothing to forget; who is in it now has, even if it leaves.
    for n in others() {
        CORES[n].wanted.store(number, Ordering::SeqCst);
        Apic::here().interrupt(CORES[n].apic.load(Ordering::Relaxed), vector::FLUSH);
    }
    number
}

/// Has every core of the cell forgotten what this change, or one before, took away?
pub fn have_forgotten(cell: &'static Cell, number: u64) -> bool {
    forget_if_wanted(Core::here().index);
    // Who was not asked for this one has been for earlier ones at most.
    let has =
        |core: &Shared| core.done.load(Ordering::SeqCst) >= core.wanted.load(Ordering::SeqCst).min(number);
    cell.cores().all(|n| has(&CORES[n]))
}

/// How long a core looks for another one that is running to do what takes that one a moment, ns.
const MOMENT: u64 = 20_000;

/// Looks for a moment whether something holds that another core of the cell is about to see to.
pub fn is_soon(cell: &'static Cell, mut holds: impl FnMut() -> bool) -> bool {
    let begun = clock::now();
    loop {
        if holds() {
            return true;
        }
        // Who is waited for may wait for this.
        forget_if_wanted(Core::here().index);
        if cell.has_ended() {
            cpu::leave(cell);
        }
        if clock::now().saturating_sub(begun) > MOMENT {
            return false;
        }
        core::hint::spin_loop();
    }
}

/// Makes a core look at its pending bits, and at whether its cell has ended.
pub fn interrupt(core: usize) {
    Apic::here().interrupt(CORES[core].apic.load(Ordering::Relaxed), vector::NOTIFY);
}

/// A lock among the cores of one cell. It is held for bounded times, with interrupts off.
pub struct Lock(AtomicBool);

impl Lock {
    /// Nobody has it.
    pub const fn new() -> Lock {
        Lock(AtomicBool::new(false))
    }

    /// Runs `f` if no other core of the cell has it, or not for long.
    pub fn with<R>(&self, cell: &'static Cell, f: impl FnOnce() -> R) -> Result<R, Errno> {
        let taken = || !self.0.swap(true, Ordering::Acquire);
        if !taken() && !is_soon(cell, taken) {
            return Err(NOT_YET);
        }
        let result = f();
        self.0.store(false, Ordering::Release);
        Ok(result)
    }
}
