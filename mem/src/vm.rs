//! A space's mappings, and the pager that populates them.
//!
//! A mapping is an [`Area`]: a range of addresses, access, and what it shows.
//! Private memory is populated by the slot: 64 KiB of addresses, aligned, that
//! one 64 KiB chunk of the cell's memory stands behind (architecture section
//! 5: on the host every separate mapping costs a VMA, so the grain is coarse).
//! A whole 2 MiB block is taken at once where an area covers it. A slot knows
//! which of its pages are in place; a page that isn't faults, and the fault
//! is served here, on the core and in the thread where it happened.
//!
//! Read-only parts of files are mapped from the host's descriptor directly
//! ([`Area::direct`]); pages of them that were changed (rewritten system-call
//! sites) or may be written stand in slots like anonymous memory, and so does
//! what is mapped privately of a file in the cell's memory.
//!
//! Memory whose program wants [`Colours`] comes page by page, each from a frame of these, and stands in no slot. It is not
//! shared after a fork: the child's is a copy, of the same colours.
#![allow(unsafe_code, reason = "asks the platform to change mappings, and fills pages")]

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

use atoll_abi::control::Paging;
use atoll_abi::layout::{
    BLOCK, PAGE, RUNTIME_BASE, RUNTIME_END, USER_MAX, USER_MIN, is_user_range, page_down, page_up,
};
use atoll_abi::platform::{Access, Backing, Change, PageBit, platform};
use atoll_abi::{Errno, Result};
use atoll_sync::{Mutex, MutexGuard, SetOnce, breathe};

use crate::colours::Colours;
use crate::heap::{
    ask_for_pages, give_pages, is_over_budget, memory, take_fixed_pages_dirty, take_pages, take_pages_dirty,
    trim,
};
use crate::pages::{BLOCK_ORDER, CHUNK_ORDER, pieces};
use crate::ready::Ready;
use crate::slots::{InOrder, Slots};
use crate::texts::{self, Piece, Shape, Text, Texts};

/// Pages that a space has before it takes memory by the block where that isn't touched in order: small programs touch little of
/// many areas, and a fresh block is zeroed whole.
const BLOCKS_AFTER: u64 = (8 << 20) / PAGE;

/// Pages of code between two sites that stay the file's own, at least, bytes: for
/// fewer it is not worth the two mappings more that the host has to keep.
const TEXT_GAP: u64 = 64 << 10;

/// The same for what all processes share, and a cell has once.
const SHARED_TEXT_GAP: u64 = 1 << 20;

/// How far from their text trampolines may lie, bytes.
const REACH: u64 = 0x7000_0000;

/// The heap's name in `/proc/self/maps`.
const HEAP: &str = "[heap]";

/// The name of a program's first stack there.
pub const STACK: &str = "[stack]";

/// The name of areas of trampolines in `/proc/self/maps`.
const TRAMPOLINES: &str = "[atoll]";

const TRAMPOLINE_ACCESS: Access = Access::READ.union(Access::EXEC);

/// Pages that are rather zeroed than unmapped.
const FEW: u32 = 4;

/// Slots on each side of one that may be written again, which are looked at with it.
const AROUND: u64 = 16;

/// Slots of a block with chunks of their own from which on the others get some, too, on the next write: a quarter.
const COPIED: usize = 8;

/// Pages that a fork copies at once, at most: some 20 us, for which neither process has to fault on them.
const COPIED_AT_FORK: u32 = 64;

/// The longest stretch of private memory that is taken from what is mapped already, bytes. For more, a fault is little.
const READY_MAX: u64 = 512 << 10;

/// Memory that a space keeps ready at most when programs unmap some and need not notice at once, bytes.
const LAZY_MAX: u64 = 8 << 20;

/// Memory that a space keeps at most of what programs have unmapped, without access, to make it ready again as a whole, bytes.
const CLOSED_MAX: u64 = 1 << 20;

/// Areas of which a touch brings no more than a slot, unless the one before is there: of what is large often only a little is used, as of
/// a thread's stack.
const SPARSE: u64 = 1 << 20;
/// As many slots of a block that are there tell that most of it will be used, wherever they are.
const DENSE: usize = 4;

/// How long is looked whether who has a space's lock lets go of it, before parking, ns: it is held for calls of the platform, some us each, and
/// to wake a core that has gone to sleep for it costs more.
const LOOK: u64 = 20_000;

/// Places at which a space's threads may go through shared mappings in order at the same time.
const SHOWN: usize = 8;

/// Of a block that is touched in order, so much may be there already when a whole one takes its place, bytes: it is copied.
const JOINED_MAX: u64 = BLOCK / 4;

/// The most that is made ready at once. A whole block would be a huge page, which the first page that goes out of it breaks.
const MADE_READY_MAX: u64 = BLOCK / 2;

/// Mappings that a space may come to before what is copied on writing is joined to whole blocks: three quarters of what Linux lets a
/// process have by default (`vm.max_map_count`, 65,530). The rest is for what the program maps itself.
const PIECES_MAX: u64 = 49_147;

/// The host has not mapped what was to be shown in place of other pages.
#[derive(Clone, Copy)]
enum Unshown {
    /// Those are gone, and these fault in.
    Hidden,
    /// Some of those stay: in the middle of a file's own mapping.
    Stays,
}

/// So many mappings give way at once when the host has no more to give.
const GIVEN_WAY: usize = 1024;
/// So often, for one fault.
const GIVE_WAY_TRIES: usize = 64;

/// Between what grows downwards and what is mapped below it, bytes (Linux's `stack_guard_gap`).
const STACK_GAP: u64 = 256 * PAGE;

/// Bytes of a slot.
pub const SLOT: u64 = PAGE << CHUNK_ORDER;

/// A file as the pager sees it.
pub trait Mappable: Send + Sync {
    /// A host descriptor that may be mapped, if the file is a host file.
    /// `write`: shared and writable. What was written so far is visible in it.
    fn host_file(&self, write: bool) -> Result<Option<i32>>;
    /// The memory object that is the file's contents, if it is one.
    fn object(&self) -> Option<Arc<dyn Object>>;
    /// Reads into a buffer; short at the end of the file.
    fn read(&self, offset: u64, to: &mut [u8]) -> Result<usize>;
    /// The same into pages that the caller owns, `len` bytes at offset `to` of the cell's memory,
    /// past any copy of the contents in the cell. None: `read` is the way.
    fn read_straight(&self, _offset: u64, _to: u64, _len: u64) -> Result<Option<usize>> {
        Ok(None)
    }
    /// Is all in the cell's memory that it has of the 64 KiB around `offset`? Else a fault there reads it from a device.
    fn is_here(&self, _offset: u64) -> bool {
        true
    }
    /// Is what is read from its device divided? Then a private mapping is read by the cell, page by page, even where the
    /// host's pages could be mapped, of whose faults nobody knows.
    fn is_divided(&self) -> bool {
        false
    }
    /// Path, device and inode, for `/proc/self/maps`.
    fn describe(&self) -> (Vec<u8>, u64, u64);
    /// Makes what was written to a shared mapping durable.
    fn flush(&self) -> Result<()> {
        Ok(())
    }
    /// Frees the memory behind a part of it, which reads as zeroes then.
    fn punch_hole(&self, _offset: u64, _len: u64) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }
    /// Rewritten system-call sites, if the file is an executable that has a plan.
    fn rewriting(&self) -> Option<Arc<dyn Rewriting>> {
        None
    }
}

/// How an executable's system-call sites are rewritten.
pub trait Rewriting: Send + Sync {
    /// The sites whose windows lie wholly in `[start, end)` of the file, in order.
    fn sites(&self, start: u64, end: u64) -> Vec<RewriteSite>;
    /// Bytes of trampolines that these sites take.
    fn room(&self, sites: &[RewriteSite]) -> u64;
    /// What was rewritten by it, for other spaces to show.
    fn texts(&self) -> &Texts;
    /// Writes the jump for `site` into `text` (its window's bytes), for a
    /// window at address `at`, and its trampoline into `trampoline`, which is
    /// mapped at `to`. None: it can't be done here.
    fn write(
        &self,
        site: &RewriteSite,
        text: &mut [u8],
        at: u64,
        trampoline: &mut [u8],
        to: u64,
    ) -> Option<Moved>;
}

/// A site as [`Rewriting`] names it.
#[derive(Clone, Copy, Debug)]
pub struct RewriteSite {
    /// Offset of the window's first byte in the file.
    pub offset: u64,
    /// Length of the window, bytes.
    pub len: u32,
    /// Which one it is, for [`Rewriting`].
    pub index: u32,
}

/// Memory that several mappings share: shared anonymous memory, memfds, tmpfs files.
pub trait Object: Send + Sync + Any {
    /// Offset in the cell's memory of the 64 KiB that begin at `offset` (a
    /// multiple of that) of the object. They stay there as long as the object is mapped.
    fn chunk(&self, offset: u64) -> Result<u64>;
    /// The same for a program that touches it; memory around may be taken with it.
    fn chunk_and_more(&self, offset: u64) -> Result<u64> {
        self.chunk(offset)
    }
    /// Is all in the cell's memory that it has of the 64 KiB around `offset`? Else [`Object::chunk`] reads it from a device.
    fn is_here(&self, _offset: u64) -> bool {
        true
    }
    /// Has it memory for the 64 KiB at `offset`, a multiple of that?
    fn has_memory(&self, _offset: u64) -> bool {
        true
    }
    /// Where the 64 KiB at `offset`, a multiple of that, lie in the cell's memory, if it has memory for all of it and says so
    /// beforehand. Nothing changes by that.
    fn place(&self, _offset: u64) -> Option<u64> {
        None
    }
    /// Bytes in the object. Beyond the last page, access is SIGBUS.
    fn size(&self) -> u64;
    /// How many areas show it.
    fn mappings(&self) -> u32 {
        1
    }
    /// Is it a file's cache, not the only place where its contents are?
    fn is_cache(&self) -> bool {
        false
    }
    /// One more area shows it (or, `-1`, one less).
    fn mapped(&self, by: i32);
    /// Pages of it have come into an area that may be written to: to be written to now, or not yet, which nobody hears of then.
    fn shown(&self, _to_write: bool) {}
    /// Has what was [`Object::shown`] count as written to: it is synced, or (`goes`) its area goes.
    fn settle(&self, _goes: bool) {}
    /// Does a program see how many areas show it? Then two of them are never joined again, as Linux joins none that its
    /// object is told of.
    fn counts_areas(&self) -> bool {
        false
    }
    /// Whose memory it shows: its own address, or that of what it stands for.
    fn owner(&self) -> *const () {
        core::ptr::from_ref(self).cast()
    }
}

/// What an area shows.
#[derive(Clone)]
pub enum Kind {
    /// Zeroes until written.
    Anonymous,
    /// A file from an offset on.
    File {
        /// The file.
        file: Arc<dyn Mappable>,
        /// Offset of the area's start, bytes.
        offset: u64,
    },
    /// A shared object from an offset on.
    Object {
        /// The object.
        object: Arc<dyn Object>,
        /// Its file, if it has one.
        file: Option<Arc<dyn Mappable>>,
        /// Offset of the area's start, bytes.
        offset: u64,
    },
}

impl Kind {
    fn advanced(&self, by: u64) -> Kind {
        let mut k = self.clone();
        match &mut k {
            Kind::Anonymous => {}
            Kind::File { offset, .. } | Kind::Object { offset, .. } => *offset += by,
        }
        k
    }

    fn counts_areas(&self) -> bool {
        matches!(self, Kind::Object { object, .. } if object.counts_areas())
    }

    fn continues(&self, next: &Kind, len: u64) -> bool {
        match (self, next) {
            (Kind::Anonymous, Kind::Anonymous) => true,
            (Kind::File { file: a, offset: x }, Kind::File { file: b, offset: y }) => {
                Arc::ptr_eq(a, b) && x + len == *y
            }
            (
                Kind::Object { object: a, file: f, offset: x },
                Kind::Object { object: b, file: g, offset: y },
            ) => {
                // The file knows what may be done to the object here.
                let same = match (f, g) {
                    (Some(f), Some(g)) => Arc::ptr_eq(f, g),
                    (None, None) => true,
                    _ => false,
                };
                same && Arc::ptr_eq(a, b) && x + len == *y
            }
            _ => false,
        }
    }
}

/// A range of mapped addresses.
#[derive(Clone)]
pub struct Area {
    /// One past its last byte.
    pub end: u64,
    /// What the program may do there.
    pub access: Access,
    /// Writes are seen by others.
    pub shared: bool,
    /// What it shows.
    pub kind: Kind,
    /// The host maps the file itself, wherever no slot's page lies over it.
    pub direct: bool,
    /// Private, and never writable: what it shows is the file's own, but for rewritten system-call sites.
    pub plain: bool,
    /// Name in `/proc/self/maps`, for areas that are not files.
    pub name: &'static str,
    /// What a fork makes of it.
    pub at_fork: AtFork,
    /// It is left out of core dumps (MADV_DONTDUMP).
    pub undumped: bool,
    /// Locked (`mlock(2)`): what it had is in place, and can't be given up by advice.
    pub locked: bool,
    /// So is what it is going to have, but only when it is touched (MLOCK_ONFAULT).
    pub on_fault: bool,
    /// An access below it makes it longer, as stacks are (MAP_GROWSDOWN).
    pub grows: bool,
    /// How it is brought in, if not as the space's other memory.
    pub paging: Option<Paging>,
    /// The program's own pager, if it has one here.
    pub pager: Option<OwnPager>,
    /// The colours of frames that its pages are to be in, if that is said.
    pub colours: Option<Colours>,
}

/// Who answers for pages in place of the pager here (`userfaultfd(2)`).
pub trait Pager: Send + Sync {
    /// Does anybody still listen? Else its areas are like all others.
    fn is_open(&self) -> bool;
    /// Asks about an access to one of its areas, for as long as it takes. `kept`: to a page that it keeps writes away from; `by_program`:
    /// in the program itself, not in a system call. Ok: try again. The caller has no locks.
    fn ask(
        &self,
        memory: &AddressSpace,
        addr: u64,
        write: bool,
        kept: bool,
        by_program: bool,
    ) -> core::result::Result<(), Denied>;
}

/// What a program's own pager is asked about in an area, which is private and anonymous.
#[derive(Clone)]
pub struct OwnPager {
    /// Who is asked.
    pub pager: Arc<dyn Pager>,
    /// Pages that are not in place.
    pub missing: bool,
    /// Writes to pages that it has taken the right to write to from.
    pub writes: bool,
}

impl OwnPager {
    fn is(&self, pager: &Arc<dyn Pager>) -> bool {
        Arc::ptr_eq(&self.pager, pager)
    }

    fn covers(&self, other: &OwnPager) -> bool {
        self.is(&other.pager) && self.missing >= other.missing && self.writes >= other.writes
    }
}

impl PartialEq for OwnPager {
    fn eq(&self, other: &Self) -> bool {
        self.covers(other) && other.covers(self)
    }
}

/// An access that a program's own pager is asked about.
pub struct Asked {
    /// Who is asked.
    pub pager: Arc<dyn Pager>,
    /// The page is in place, and the pager keeps writes away from it.
    pub kept: bool,
}

impl Area {
    /// Is a slot's length of what it shows `at` bytes behind its start here without waiting for a device: zeroes, or bytes of a file that is in memory?
    fn has_in_memory(&self, at: u64) -> bool {
        match &self.kind {
            Kind::Anonymous => true,
            Kind::File { file, offset } => file.object().is_some_and(|object| {
                let (from, to) = (at + offset, at + offset + SLOT);
                to <= object.size() && object.is_here(from) && object.is_here(to - 1)
            }),
            Kind::Object { .. } => false,
        }
    }

    /// All that is or isn't, as one number: compared one by one, rustc 1.95's LLVM (22.1) crashes where it puts the comparisons together.
    fn marks(&self) -> u16 {
        let AtFork { omitted, wiped } = self.at_fork;
        let marks = [
            self.shared,
            self.direct,
            self.plain,
            self.locked,
            self.on_fault,
            self.grows,
            omitted,
            wiped,
            self.undumped,
        ];
        marks.into_iter().fold(0, |all, mark| all << 1 | u16::from(mark))
    }

    /// Is it private memory to read and write to, as most is?
    fn is_simple(&self) -> bool {
        matches!(self.kind, Kind::Anonymous)
            && !self.shared
            && !self.grows
            && self.pager.is_none()
            && self.colours.is_none()
            && self.access.difference(Access::POPULATE) == Access::READ | Access::WRITE
    }

    /// Does it count for RLIMIT_DATA?
    fn is_data(&self) -> bool {
        is_data(self.shared, self.grows, self.access)
    }

    fn locking(&self) -> Locking {
        match (self.locked, self.on_fault) {
            (false, _) => Locking::No,
            (true, false) => Locking::Now,
            (true, true) => Locking::OnFault,
        }
    }

    fn lock(&mut self, how: Locking) {
        (self.locked, self.on_fault) = (how != Locking::No, how == Locking::OnFault);
    }

    /// Where others have to end below it, which begins at `start`, if it is not said that they have to be there.
    fn room_below(&self, start: u64) -> u64 {
        if self.grows { start.saturating_sub(STACK_GAP) } else { start }
    }

    /// May the program do this here? Write implies read on this processor, and so does execute.
    fn allows(&self, need: Access) -> bool {
        let readable = !self.access.difference(Access::POPULATE).is_empty();
        self.access.contains(need) || need == Access::READ && readable
    }
}

/// How much a space may have mapped, in bytes.
#[derive(Clone, Copy)]
pub struct Bounds {
    /// In all (RLIMIT_AS).
    pub all: u64,
    /// Of what is private and may be written to (RLIMIT_DATA), but for what grows downwards.
    pub data: u64,
    /// Of the heap (RLIMIT_DATA as it is said).
    pub heap: u64,
}

impl Bounds {
    /// As much as there is room for.
    pub const NONE: Bounds = Bounds { all: u64::MAX, data: u64::MAX, heap: u64::MAX };
}

/// How an area is locked (`mlock2(2)`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Locking {
    /// Not at all.
    No,
    /// All of it is to be in place.
    Now,
    /// What is touched.
    OnFault,
}

/// What the child of a fork has of an area (`madvise(2)`): the same contents, if neither of these is said.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AtFork {
    /// Nothing: MADV_DONTFORK.
    pub omitted: bool,
    /// Zeroes: MADV_WIPEONFORK. Private anonymous memory only.
    pub wiped: bool,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    /// Page number of its chunk in the cell's memory. Other spaces may show the chunk, too ([`crate::sharers`]): then nobody
    /// writes to it.
    frame: u32,
    /// Pages that are filled and mapped.
    mapped: u16,
    /// Pages that are not, and hold something that nobody is to see.
    stale: u16,
    /// No page of it is mapped with write access, even where its area has that, as the chunk was shared when that was done.
    guarded: bool,
    /// Pages that are mapped without write access because the program's own pager wants to be asked first.
    kept: u16,
    /// Pages of which the program wants to know whether they are written to: they are mapped without write access, or, where the
    /// platform has the page tables' bits, like others.
    clean: u16,
    /// Pages of which it wants to know whether they are used at all: they are mapped without any access, or likewise.
    idle: u16,
}

/// What a program wants to know of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    /// Whether they are written to.
    Written,
    /// Whether they are used: read, written to, or run.
    Accessed,
}

impl Told {
    /// The pages of a slot of which it is not so yet.
    fn of(self, slot: &mut Slot) -> &mut u16 {
        match self {
            Told::Written => &mut slot.clean,
            Told::Accessed => &mut slot.idle,
        }
    }

    /// What the processor notes of it.
    fn bit(self) -> PageBit {
        match self {
            Told::Written => PageBit::Dirty,
            Told::Accessed => PageBit::Accessed,
        }
    }
}

/// Of pages of which a program wants to know something, those that have less access for that: none where the processor notes it.
fn by_protection(pages: u16) -> u16 {
    if pages != 0 && platform().has_page_bits() { 0 } else { pages }
}

impl Slot {
    fn new(frame: u32, mapped: u16) -> Slot {
        Slot { frame, mapped, stale: 0, guarded: false, kept: 0, clean: 0, idle: 0 }
    }

    /// Offset of its chunk in the cell's memory.
    fn offset(&self) -> u64 {
        u64::from(self.frame) * PAGE
    }

    /// Do other spaces show its chunk?
    fn is_shared(&self) -> bool {
        memory().sharers().has_others(self.offset())
    }

    /// What `access` comes to here: a chunk that others show can't be written to.
    fn allowed(&self, access: Access) -> Access {
        if self.is_shared() { unwritable(access) } else { access }
    }

    /// Pages of which somebody wants to know of the first write, or use.
    fn held(&self) -> u16 {
        self.kept | self.clean | self.idle
    }

    /// Those of which it shows by a fault that they are written to.
    fn unwritten(&self) -> u16 {
        by_protection(self.clean)
    }

    /// Those of which it shows by a fault that they are used.
    fn unused(&self) -> u16 {
        by_protection(self.idle)
    }

    /// Nothing is known any more of what it was told of its pages: they count as used and written to.
    fn forget_told(&mut self) {
        (self.clean, self.idle) = (0, 0);
    }

    /// These of its pages, apart by what `access` comes to there.
    fn by_access(&self, bits: u16, access: Access) -> [(u16, Access); 3] {
        let none = bits & self.unused();
        let read_only = if self.is_shared() { bits } else { bits & (self.kept | self.unwritten()) } & !none;
        [(bits & !read_only & !none, access), (read_only, unwritable(access)), (none, Access::empty())]
    }

    /// What is in these of its pages, which are no longer mapped, is not seen again.
    fn drop_pages(&mut self, bits: u16) {
        self.stale |= bits;
    }

    /// Gives its chunk back, unless others show it. Nothing is mapped of it any more.
    fn release(self) {
        leave_chunk(self.offset());
    }

    /// Fills a chunk, which the caller has just taken, with what is mapped of this one. The rest of it is as it was.
    fn copy_to(&self, offset: u64) {
        let mut runs = Vec::new();
        add_runs(&mut runs, 0, self.frame, self.mapped);
        for (at, len, from) in runs {
            // SAFETY: nobody writes to these pages now, and the others are the caller's; they differ.
            unsafe {
                memory().address(offset + at).copy_from_nonoverlapping(memory().address(from), len as usize);
            }
        }
    }

    /// Does its chunk lie at this offset of the cell's memory, or behind it?
    fn lies_behind(&self, from: u64) -> bool {
        self.offset() >= from
    }

    /// Does a page hold nothing but zeroes?
    fn is_zero(&self, page: u64) -> bool {
        let words = memory().address(self.offset() + page * PAGE).cast::<u64>();
        // SAFETY: the page is this slot's; the program may be writing to it.
        (0..PAGE as usize / 8).all(|n| unsafe { words.add(n).read_volatile() } == 0)
    }

    /// Zeroes these of its pages.
    fn clear(&self, bits: u16) {
        for page in (0..16).filter(|page| bits & 1 << page != 0) {
            let p = memory().address(self.offset() + page * PAGE);
            // SAFETY: the page is this slot's, and no other's.
            unsafe { p.write_bytes(0, PAGE as usize) };
        }
    }
}

/// Bytes of one kind that are in memory.
#[derive(Clone, Copy, Default, Debug)]
pub struct Share {
    /// Nobody else shows them.
    pub own: u64,
    /// Others show them, too.
    pub others: u64,
}

impl Share {
    /// All of them.
    pub fn sum(&self) -> u64 {
        self.own + self.others
    }

    fn add(&mut self, bytes: u64, by: u32) {
        *(if by > 1 { &mut self.others } else { &mut self.own }) += bytes;
    }
}

/// What of a range is in memory, as Linux divides it up (proc_pid_smaps(5)). Of an object all of a chunk of 64 KiB counts that is
/// there, whoever brought it in.
#[derive(Clone, Copy, Default, Debug)]
pub struct Residence {
    /// What was written to private memory.
    pub anonymous: Share,
    /// Of files.
    pub file: Share,
    /// Of objects that are no files on a disk or the host.
    pub shared_memory: Share,
    /// Bytes, each divided by how many show it.
    pub proportional: u64,
}

impl Residence {
    /// All bytes.
    pub fn sum(&self) -> u64 {
        self.anonymous.sum() + self.file.sum() + self.shared_memory.sum()
    }

    fn add_object(&mut self, object: &dyn Object, offset: u64, len: u64) {
        let (grain, by) = (PAGE << CHUNK_ORDER, object.mappings().max(1));
        let end = offset.saturating_add(len).min(page_up(object.size()));
        let mut at = offset;
        while at < end {
            let next = (at / grain + 1) * grain;
            if object.has_memory(at / grain * grain) {
                let bytes = next.min(end) - at;
                let share = if object.is_cache() { &mut self.file } else { &mut self.shared_memory };
                share.add(bytes, by);
                self.proportional += bytes / u64::from(by);
            }
            at = next;
        }
    }
}

/// What is known of a page.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Page {
    /// It is in memory.
    pub present: bool,
    /// It is a file's, or shared.
    pub of_object: bool,
    /// Nobody else shows it.
    pub own: bool,
}

/// Why an access can't be allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Denied {
    /// Nothing is mapped there: SIGSEGV, SEGV_MAPERR.
    Unmapped,
    /// Not for this kind of access: SIGSEGV, SEGV_ACCERR.
    Access,
    /// The file ends before, or can't be read: SIGBUS.
    Bus,
    /// The program's own pager has to be asked ([`AddressSpace::serve`]).
    Asked,
    /// The cell has no memory left.
    NoMemory,
}

/// A request to [`AddressSpace::map`].
pub struct MapRequest {
    /// Wanted address.
    pub addr: u64,
    /// Length, bytes.
    pub len: u64,
    /// Access.
    pub access: Access,
    /// Visible to others.
    pub shared: bool,
    /// What to show.
    pub kind: Kind,
    /// What to do about the address.
    pub place: Place,
    /// Name for `/proc/self/maps`.
    pub name: &'static str,
    /// How it is brought in, if not as the space's other memory.
    pub paging: Option<Paging>,
    /// The colours of frames that its pages are to be in, for private anonymous memory that doesn't grow.
    pub colours: Option<Colours>,
    /// How much may be mapped then.
    pub most: Bounds,
    /// Populate at once.
    pub populate: bool,
    /// Lock, which populates, too.
    pub locked: bool,
    /// It is private memory that grows downwards when it is touched below (MAP_GROWSDOWN).
    pub grows: bool,
}

impl Default for MapRequest {
    /// Nothing anywhere, brought in as the space's other memory.
    fn default() -> Self {
        MapRequest {
            addr: 0,
            len: 0,
            access: Access::empty(),
            shared: false,
            kind: Kind::Anonymous,
            place: Place::Hint,
            name: "",
            paging: None,
            colours: None,
            most: Bounds::NONE,
            populate: false,
            locked: false,
            grows: false,
        }
    }
}

/// How a mapping is moved or resized (`mremap(2)`).
#[derive(Clone, Copy)]
pub struct Remap {
    /// Old address.
    pub old: u64,
    /// Old length, bytes. Zero: a second view of a shared mapping.
    pub old_len: u64,
    /// New length, bytes.
    pub new_len: u64,
    /// It may be put elsewhere.
    pub may_move: bool,
    /// Where it is to be, in place of what is there.
    pub fixed: Option<u64>,
    /// It moves, and what it was stays mapped, without its pages: where that is to be, if possible.
    pub stays: Option<u64>,
    /// Bytes that may be locked in all.
    pub most_locked: u64,
    /// How much may be mapped then.
    pub most: Bounds,
    /// Bytes of private memory that can be had at once, at most.
    pub most_private: u64,
}

/// What a program says of a range (`madvise(2)`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// Its contents are not needed: private memory reads as zero or as its file again.
    Discard,
    /// The same, even if they are locked.
    DiscardLocked,
    /// The same, whenever it suits. Private anonymous memory only.
    Free,
    /// It is not needed soon, of which nothing comes here. It can't be said of locked memory.
    Cold,
    /// The child of a fork is to have nothing of it, or something.
    Omit(bool),
    /// The child of a fork is to have zeroes, or no longer. Private anonymous memory only.
    Wipe(bool),
    /// It is left out of core dumps, or not.
    Undump(bool),
    /// How it is brought in.
    Paging(Paging),
    /// Anything of which nothing comes here.
    Other,
}

/// One of several changes of mappings that are made together ([`AddressSpace::change`]).
#[derive(Clone, Copy)]
pub struct AreaChange {
    /// Where it begins: a page's address, in the program's part.
    pub addr: u64,
    /// Length, bytes: whole pages.
    pub len: u64,
    /// What becomes of it.
    pub to: ChangeTo,
}

/// What becomes of a mapping.
#[derive(Clone, Copy)]
pub enum ChangeTo {
    /// What it is, with this access.
    Access(Access),
    /// What it was when it was mapped: zeroes, or its file.
    Zeroes,
    /// Nothing.
    Nothing,
}

/// How binding an address is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// A wish.
    Hint,
    /// Exactly there, in place of what is there.
    Fixed,
    /// Exactly there, EEXIST if something is there.
    FixedNoReplace,
    /// A wish, below 2 GiB, and there at least, if it can't be.
    Low,
}

/// Does small private memory that a program unmaps stay in place, for what it maps next?
static LAZY: AtomicBool = AtomicBool::new(false);

/// From now on, small private memory that a program unmaps stays in place, zeroed, until it is mapped again: neither costs a platform
/// call then. But who goes on using it gets no fault, and may find, or leave, other contents there.
pub fn unmap_lazily() {
    LAZY.store(true, Ordering::Relaxed);
}

/// Asks caches for memory; says whether some came free. `over_budget`: it is limits that keep whom this core works for from having
/// more, so it is about theirs.
type Reclaim = fn(bytes: u64, over_budget: bool) -> bool;
static RECLAIM: SetOnce<Reclaim> = SetOnce::new();

/// Says who gives memory back when there is none.
pub fn set_reclaim(reclaim: Reclaim) {
    // Once in a cell's life; a second time changes nothing.
    let _ = RECLAIM.set(reclaim);
}

/// Asks caches for memory, if `over_budget` for that of whom this core works for. False: they have none to give.
pub fn reclaim(bytes: u64, over_budget: bool) -> bool {
    RECLAIM.get().is_some_and(|reclaim| reclaim(bytes, over_budget))
        || !over_budget && (texts::give_up(0) > 0 || trim() > 0)
}

/// Zeroed pages, if need be after asking the platform and caches for some.
pub fn take_pages_hard(order: u32) -> Option<u64> {
    take_hard(order, take_pages)
}

/// The same of pages that stay where they are, and whose contents the caller will overwrite.
pub fn take_fixed_pages_hard(order: u32) -> Option<u64> {
    take_hard(order, take_fixed_pages_dirty)
}

fn take_hard(order: u32, take: impl Fn(u32) -> Option<u64>) -> Option<u64> {
    loop {
        if let Some(offset) = take(order) {
            return Some(offset);
        }
        if is_over_budget(order) {
            if !reclaim(PAGE << order, true) {
                return None;
            }
        } else if let Some(block) = platform().memory_back() {
            give_pages(block, BLOCK_ORDER);
        } else if ask_for_pages(order) {
            // Others had some.
        } else if !reclaim(PAGE << order, false) {
            return None;
        }
    }
}

/// Changes of the current space that go down together.
struct Batch {
    list: [Change; Batch::MAX],
    len: usize,
}

impl Default for Batch {
    fn default() -> Batch {
        Batch { list: [Change::Unmap { addr: 0, len: 0 }; Batch::MAX], len: 0 }
    }
}

impl Batch {
    const MAX: usize = 16;

    /// One more.
    ///
    /// # Safety
    /// As of [`Platform::change`](atoll_abi::platform::Platform::change).
    unsafe fn add(&mut self, change: Change) -> Result<()> {
        if self.len == Batch::MAX {
            self.send()?;
        }
        self.list[self.len] = change;
        self.len += 1;
        Ok(())
    }

    /// Makes those that were added.
    fn send(&mut self) -> Result<()> {
        let list = &self.list[..core::mem::take(&mut self.len)];
        // SAFETY: promised where they were added.
        unsafe { platform().change(list) }
    }
}

/// Where chunks that several spaces show were moved, so that all of them show the same again. It owns both places until it is dropped,
/// so that nobody writes to either before all have come by.
#[derive(Default)]
pub struct NewPlaces(BTreeMap<u64, u64>);

impl NewPlaces {
    /// The new place of a slot's chunk.
    fn place_of(&mut self, slot: &Slot) -> Result<u64> {
        let old = slot.offset();
        if let Some(new) = self.0.get(&old) {
            return Ok(*new);
        }
        let new = take_hard(CHUNK_ORDER, take_pages_dirty).ok_or(Errno::ENOMEM)?;
        // SAFETY: nobody writes to what is shared, and the other is ours; they differ.
        unsafe { memory().address(new).copy_from_nonoverlapping(memory().address(old), SLOT as usize) };
        memory().sharers().add(old);
        self.0.insert(old, new);
        Ok(new)
    }
}

impl Drop for NewPlaces {
    fn drop(&mut self) {
        self.0.iter().flat_map(|(old, new)| [*old, *new]).for_each(leave_chunk);
    }
}

/// Neighbouring pages whose access changes in the same way, wherever their memory lies, for one change.
struct Protecting {
    batch: Batch,
    /// Address, length and access of those that come next.
    next: Option<(u64, u64, Access)>,
    /// Address and length of what the platform refused, and of what was to be changed with it.
    refused: Vec<(u64, u64)>,
}

impl Protecting {
    fn new() -> Self {
        Protecting { batch: Batch::default(), next: None, refused: Vec::new() }
    }

    /// These pages of a slot, which are mapped in the program's part, get this access.
    fn add(&mut self, slot: u64, bits: u16, access: Access) {
        for (first, len) in spans(bits) {
            let (at, len) = (slot + first * PAGE, len * PAGE);
            match &mut self.next {
                Some((a, l, same)) if *a + *l == at && *same == access => *l += len,
                _ => {
                    self.send_next();
                    self.next = Some((at, len, access));
                }
            }
        }
    }

    /// Those of these pages of a slot that are mapped get this access, as far as they may have it. In the order of their addresses,
    /// so that those next to each other go together.
    fn add_slot(&mut self, s: u64, slot: &Slot, bits: u16, access: Access) {
        let parts = slot.by_access(bits & slot.mapped, access);
        if parts[1].0 | parts[2].0 == 0 {
            return self.add(s, parts[0].0, access);
        }
        for page in (0..16).map(|n| 1 << n) {
            for (bits, access) in parts {
                self.add(s, bits & page, access);
            }
        }
    }

    fn send_next(&mut self) {
        let Some((addr, len, access)) = self.next.take() else { return };
        if self.batch.len == Batch::MAX {
            self.send();
        }
        // SAFETY: these pages are mapped in the program's part.
        let added = unsafe { self.batch.add(Change::Protect { addr, len, access }) };
        debug_assert!(added.is_ok(), "there is room");
    }

    fn send(&mut self) {
        let len = self.batch.len;
        if self.batch.send().is_err() {
            let refused = self.batch.list[..len].iter().filter_map(|change| match change {
                Change::Protect { addr, len, .. } => Some((*addr, *len)),
                Change::Map { .. } | Change::Unmap { .. } => None,
            });
            self.refused.extend(refused);
        }
    }

    /// Makes all changes; what the platform may have refused.
    fn end(mut self) -> Vec<(u64, u64)> {
        self.send_next();
        self.send();
        self.refused
    }
}

/// Areas that a space has at most (`vm.max_map_count`; as newer distributions have it, not Linux's own 65,530).
pub const AREAS_MAX: usize = 1 << 20;

/// Areas that there may be more while one is moved, at most.
const REMAPPED: usize = 3;

/// Where mappings go that are to be low (MAP_32BIT), as on Linux.
const LOW_START: u64 = 1 << 30;
const LOW_END: u64 = 2 << 30;

/// A program's address space.
pub struct AddressSpace {
    vm: Mutex<Vm>,
}

struct Vm {
    areas: BTreeMap<u64, Area>,
    slots: Slots<Slot>,
    /// Pages that were brought in by colour, and their offsets in the cell's memory.
    coloured: BTreeMap<u64, u64>,
    brk_start: u64,
    brk: u64,
    /// Mappings grow down from here.
    top: u64,
    /// Pages in slots.
    resident: u64,
    /// Most pages there ever were in slots.
    peak: u64,
    /// Bytes mapped.
    total: u64,
    /// Addresses of pages that are in place, and in no area yet.
    ready: Ready,
    /// Addresses of pages that nobody has access to and no area has any more, and whose contents nobody is to see.
    closed: Ready,
    /// Where there is no room, so that it is not looked for there again.
    /// For each of [`ALIGNS`].
    gaps: [Gaps; ALIGNS.len()],
    /// How many programs it was emptied of.
    image: u64,
    /// How what is mapped is brought in.
    paging: Paging,
    /// The same of the heap, if that is something else.
    heap_paging: Option<Paging>,
    /// How many bytes get ready next: more from time to time, in a space that uses them up.
    next_ready: u64,
    /// Where what was lately shown of objects ends, and how long it was, the last one first: threads go on at as many places at a time.
    shown: [(u64, u64); SHOWN],
    /// How what is mapped is locked.
    locks_all: Locking,
    /// No fewer mappings than the host has of what was copied on writing, as counted last, and of all else then.
    pieces: u64,
    /// From here on mappings give way, when the host has no more to give.
    hand: u64,
    /// Where the next trampolines go, and the end of their area.
    trampolines: (u64, u64),
    /// Rewritten windows: address of the first byte, (length, trampoline's resume part).
    windows: Arc<BTreeMap<u64, Window>>,
    /// Windows by their trampolines.
    trampolines_of: Arc<BTreeMap<u64, u64>>,
    /// Texts that others may show, too, or what is left of them, by the first bytes. Their windows are in none of the lists above.
    texts: Arc<BTreeMap<u64, Shown>>,
    rewritten: u64,
}

/// What mappings for which there is to be found a place are multiples of.
const ALIGNS: [u64; 7] = [PAGE, SLOT, SLOT << 1, SLOT << 2, SLOT << 3, SLOT << 4, BLOCK];
const _: () = assert!(SLOT << 4 == MADE_READY_MAX && MADE_READY_MAX << 1 == BLOCK);

/// No gap between areas from `below` up to the space's top, as far as no memory is ready there, has room for more than `largest` bytes that
/// begin at a multiple of one of [`ALIGNS`]. (Linux
/// did it so before it kept a tree of gaps: `free_area_cache`, `cached_hole_size`.) There may be less room by now, not more.
#[derive(Default)]
struct Gaps {
    /// 0: it is not known.
    below: u64,
    largest: u64,
}

/// A stretch of a text as a space shows it.
#[derive(Clone)]
struct Shown {
    /// One past its last byte.
    end: u64,
    /// Where the whole text begins, or began.
    base: u64,
    text: Arc<Text>,
}

impl Shown {
    /// The last window at `addr` or before, if it begins at `start` or behind it, where this does.
    fn window_before(&self, start: u64, addr: u64) -> Option<(u64, Window)> {
        self.text.window_before(self.base, addr).filter(|(at, _)| *at >= start)
    }
}

/// A text that can be shown at some place.
struct Known {
    text: Arc<Text>,
    /// Its chunks, each of which counts one owner more for this, until they are taken.
    pieces: Option<Arc<[Piece]>>,
    /// Where its trampolines go, and how many bytes they are.
    trampolines: (u64, u64),
}

/// A rewritten window of a space: a stretch of code that a jump lies over, and where its pieces went.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Bytes that were overwritten or moved.
    pub len: u32,
    /// Address of its trampoline.
    pub trampoline: u64,
    /// What stands in the trampoline.
    pub moved: Moved,
}

/// How a window's instructions lie in its trampoline.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moved {
    /// Bytes of the trampoline.
    pub len: u32,
    /// Number of pairs.
    pub pairs: u8,
    /// Boundaries between instructions: offset in the window, offset in the trampoline.
    pub map: [(u8, u8); 12],
}

impl Moved {
    /// Adds a pair; false if there is no room.
    pub fn push(&mut self, window: usize, trampoline: usize) -> bool {
        let (Ok(w), Ok(t)) = (u8::try_from(window), u8::try_from(trampoline)) else { return false };
        let Some(slot) = self.map.get_mut(self.pairs as usize) else { return false };
        *slot = (w, t);
        self.pairs += 1;
        true
    }

    fn pairs(&self) -> &[(u8, u8)] {
        &self.map[..self.pairs as usize]
    }
}

impl Window {
    /// The program's own address for a place in the trampoline. `start`: the window's.
    pub fn original(&self, start: u64, rip: u64) -> u64 {
        let at = rip - self.trampoline;
        let before = self.moved.pairs().iter().take_while(|(_, t)| u64::from(*t) <= at);
        start + before.last().map_or(0, |(w, _)| u64::from(*w))
    }

    /// Where the instruction at `rip` inside the window really stands. Its own
    /// first byte is the jump, and stays.
    pub fn moved_to(&self, start: u64, rip: u64) -> u64 {
        if rip == start {
            return rip;
        }
        let at = rip - start;
        let pair = self.moved.pairs().iter().rev().find(|(w, _)| u64::from(*w) == at);
        pair.map_or(rip, |(_, t)| self.trampoline + u64::from(*t))
    }
}

impl AddressSpace {
    /// An empty space whose mappings grow down from `top`.
    pub fn new(top: u64) -> Self {
        AddressSpace { vm: Mutex::new(Vm::new(top)) }
    }

    fn lock(&self) -> MutexGuard<'_, Vm> {
        self.vm.lock_looking(LOOK)
    }

    /// Maps; the address. The caller runs in this space.
    pub fn map(&self, request: MapRequest) -> Result<u64> {
        self.lock().map(request)
    }

    /// Could something be mapped there, if it has to be there? For the order of errors that Linux has.
    pub fn check_place(&self, addr: u64, len: u64, place: Place) -> Result<()> {
        self.lock().check_place(addr, page_up(len), place)
    }

    /// Unmaps `[addr, addr + len)`.
    pub fn unmap(&self, addr: u64, len: u64) -> Result<()> {
        let end = addr.checked_add(page_up(len)).filter(|end| *end <= USER_MAX);
        let Some(end) = end.filter(|_| addr.is_multiple_of(PAGE) && len != 0) else {
            return Err(Errno::EINVAL);
        };
        let mut vm = self.lock();
        // The runtime lies in the middle, where programs have nothing.
        for (start, end) in [(addr, end.min(RUNTIME_BASE)), (addr.max(RUNTIME_END), end)] {
            if start < end && !vm.close(start, end, "", LAZY.load(Ordering::Relaxed)) {
                vm.remove(start, end)?;
            }
        }
        Ok(())
    }

    /// Unmaps what is left of a mapping of a whole object that began at `addr` (`shmdt(2)`). `size`: of an object that is
    /// mapped in this way, its length. EINVAL: there is none.
    pub fn detach(&self, addr: u64, size: impl Fn(&Arc<dyn Object>) -> Option<u64>) -> Result<()> {
        let mut vm = self.lock();
        let mut left = Vec::new();
        let mut of: Option<(&Arc<dyn Object>, u64)> = None;
        for (&start, area) in vm.areas.range(addr..) {
            if of.is_some_and(|(_, size)| area.end - addr > size) {
                break;
            }
            let Kind::Object { object, offset, .. } = &area.kind else { continue };
            if start - addr != *offset || of.is_some_and(|(first, _)| !Arc::ptr_eq(first, object)) {
                continue;
            }
            let Some(size) = size(object) else { continue };
            of = Some((object, page_up(size)));
            left.push((start, area.end));
        }
        if left.is_empty() {
            return Err(Errno::EINVAL);
        }
        left.into_iter().try_for_each(|(start, end)| vm.remove(start, end))
    }

    /// Changes access to `[addr, addr + len)`. ENOMEM: it is more than `most_data` then of what is private and may be written to.
    pub fn protect(&self, addr: u64, len: u64, access: Access, most_data: u64) -> Result<()> {
        if !addr.is_multiple_of(PAGE) {
            return Err(Errno::EINVAL);
        }
        if len == 0 {
            return Ok(());
        }
        let len = page_up(len);
        if !is_user_range(addr, len) {
            return Err(Errno::ENOMEM);
        }
        self.lock().protect_now(|vm, runs| vm.protect(addr, addr + len, access, most_data, runs))
    }

    /// Changes several mappings, one after the other, and has the platform make together what can be. Value: how many, and why not the
    /// next. ENOMEM: not all of it is mapped; EACCES: it is of a file that is not open for that. The caller runs in this space.
    pub fn change(&self, list: &[AreaChange], most_data: u64) -> (usize, Result<()>) {
        let mut vm = self.lock();
        let mut runs = Protecting::new();
        for (n, change) in list.iter().enumerate() {
            let (start, end) = (change.addr, change.addr + change.len);
            if start == end {
                continue;
            }
            if let ChangeTo::Access(access) = change.to {
                let done = vm.protect(start, end, access, most_data, &mut runs);
                if done.is_err() {
                    return (n, done.and(vm.made(runs)));
                }
                continue;
            }
            // What was there before goes first.
            let before = core::mem::replace(&mut runs, Protecting::new());
            let done = vm.made(before).and_then(|()| match change.to {
                ChangeTo::Zeroes if !vm.covered(start, end) => Err(Errno::ENOMEM),
                ChangeTo::Zeroes => vm.discard(start, end),
                _ => vm.remove(start, end),
            });
            if done.is_err() {
                return (n, done);
            }
            breathe();
        }
        (list.len(), vm.made(runs))
    }

    /// Moves or resizes a mapping (`mremap(2)`); the new address. EAGAIN: so much may not be locked.
    pub fn remap(&self, request: Remap) -> Result<u64> {
        let Remap { old, old_len, new_len, .. } = request;
        if !old.is_multiple_of(PAGE)
            || new_len == 0
            || page_up(new_len) < new_len
            || page_up(old_len) < old_len
        {
            return Err(Errno::EINVAL);
        }
        self.lock().remap(Remap { old_len: page_up(old_len), new_len: page_up(new_len), ..request })
    }

    /// Does what is said of `[addr, addr + len)`, which goes over holes; ENOMEM, if there are any. EINVAL: it can't be said of what is
    /// there, nor of anything behind it.
    pub fn advise(&self, addr: u64, len: u64, advice: Advice) -> Result<()> {
        let len = page_up(len);
        if !addr.is_multiple_of(PAGE) || !is_user_range(addr, len) {
            return Err(Errno::EINVAL);
        }
        let mut vm = self.lock();
        vm.each_part(addr, addr + len, true, |vm, start, end| vm.advise(start, end, advice))
    }

    /// Locks a range, or no longer, up to the first hole (ENOMEM).
    pub fn set_locked(&self, addr: u64, len: u64, how: Locking) -> Result<()> {
        let mut vm = self.lock();
        vm.each_part(addr, addr + page_up(len), false, |vm, start, end| {
            vm.change(start, end, |area| area.locking() != how, |area| area.lock(how))
        })
    }

    /// Locks all that is mapped, or no longer, and all that is mapped from now on, or not.
    pub fn lock_all(&self, now: Option<Locking>, from_now_on: Locking) {
        let mut vm = self.lock();
        vm.locks_all = from_now_on;
        if let Some(how) = now {
            vm.areas.values_mut().for_each(|area| area.lock(how));
        }
    }

    /// Brings in what is locked and is to be there, as far as it can be.
    pub fn bring_in_locked(&self) {
        let mut next = 0;
        while let Some((start, area)) = self.find_from(next) {
            next = area.end;
            if area.locking() == Locking::Now {
                // No more than of others is said of what can't be.
                let _ = self.populate(start, area.end - start, None);
            }
        }
    }

    /// Is what is mapped from now on locked?
    pub fn locks_all(&self) -> bool {
        self.lock().locks_all != Locking::No
    }

    /// Bytes that are locked in a range.
    pub fn locked(&self, start: u64, end: u64) -> u64 {
        self.lock().locked_in(start, end)
    }

    /// Which pages of a range are in memory, one byte each, up to the first hole (ENOMEM): of private memory what was brought in, by
    /// 64 KiB or more; of objects all of 64 KiB that have memory; of the host's files, of which nobody here knows, all.
    pub fn present(&self, addr: u64, pages: &mut [u8]) -> Result<()> {
        let mut vm = self.lock();
        vm.each_part(addr, addr + pages.len() as u64 * PAGE, false, |vm, start, end| {
            let (first, area) = vm.area_at(start).expect("a part of an area");
            let shown = match &area.kind {
                Kind::Anonymous => None,
                Kind::File { file, offset } => file.object().map(|object| (object, *offset)),
                Kind::Object { object, offset, .. } => Some((object.clone(), *offset)),
            };
            let of_host = match &shown {
                Some((object, _)) => object.is_cache(),
                None => !matches!(area.kind, Kind::Anonymous),
            };
            for at in (start..end).step_by(PAGE as usize) {
                let in_object = || {
                    shown.as_ref().is_some_and(|(object, offset)| {
                        let from = at - first + offset;
                        from < object.size() && object.has_memory(from & !(SLOT - 1))
                    })
                };
                pages[((at - addr) / PAGE) as usize] = u8::from(of_host || vm.is_mapped(at) || in_object());
            }
            Ok(())
        })
    }

    /// An object was made shorter: its pages behind `size`, and private copies of them, fault from now on. The caller runs in this space.
    pub fn object_shrunk(&self, object: *const (), size: u64) {
        let mut vm = self.lock();
        // What the host keeps shows what was cut off until it is unmapped.
        let _ = vm.hide_object(object, size);
        vm.drop_copies(object, size);
    }

    /// Moves pages in slots that lie at `from` of the cell's memory or behind it elsewhere; programs notice nothing. From address `at` on, as
    /// far as `most` slots go. The caller runs in this space. Value: how many slots were moved, and the address to go on from, if
    /// there are more. ENOMEM: there is no other place for them.
    pub fn vacate(
        &self,
        from: u64,
        at: u64,
        most: usize,
        moved: &mut NewPlaces,
    ) -> Result<(usize, Option<u64>)> {
        self.lock().vacate(from, at, most, moved)
    }

    /// Are there pages to move?
    pub fn lies_behind(&self, from: u64) -> bool {
        self.lock().slots.iter().any(|(_, slot)| slot.lies_behind(from))
    }

    /// Unmaps what an object shows here, which faults in again from wherever it lies then. The caller runs in this space, and may hold
    /// the object: false if it would have to wait for who may want that, or some of it could not be unmapped.
    pub fn try_hide_object(&self, object: *const ()) -> bool {
        self.vm.try_lock().is_some_and(|mut vm| vm.hide_object(object, 0).is_ok())
    }

    /// Is every page of the range mapped?
    pub fn is_mapped(&self, addr: u64, len: u64) -> bool {
        self.lock().covered(addr, addr + page_up(len))
    }

    /// Mappings grow down from `top` from now on.
    pub fn set_top(&self, top: u64) {
        let mut vm = self.lock();
        vm.top = top;
        vm.gaps = Default::default();
    }

    /// Where the heap begins, set by the loader.
    pub fn set_brk(&self, start: u64) {
        let mut vm = self.lock();
        vm.brk_start = start;
        vm.brk = start;
    }

    /// Moves the end of the heap; the end afterwards.
    pub fn brk(&self, to: u64, most: Bounds) -> u64 {
        self.lock().brk(to, most)
    }

    /// Serves a page fault. Ok: try again.
    pub fn fault(&self, addr: u64, write: bool, exec: bool) -> core::result::Result<(), Denied> {
        self.lock().fault(addr, write, exec)
    }

    /// Makes what grows downwards longer, as far as `addr`, where nothing is mapped. It gets no longer than `most` bytes, by no more
    /// than `more`, or, if it is locked, no more than `lockable` are locked then in all. False: it can't be.
    pub fn grow(&self, addr: u64, most: u64, more: u64, lockable: u64) -> bool {
        self.lock().grow(page_down(addr), most, more, lockable)
    }

    /// Serves a page fault for the current thread, which has no locks: if need be the program's own pager is asked. `by_program`: not in a
    /// system call. Ok: try again.
    pub fn serve(
        &self,
        addr: u64,
        write: bool,
        exec: bool,
        by_program: bool,
    ) -> core::result::Result<(), Denied> {
        loop {
            match self.fault(addr, write, exec) {
                Err(Denied::Asked) => {}
                other => return other,
            }
            if let Some(Asked { pager, kept }) = self.asked(addr, write) {
                pager.ask(self, addr, write, kept, by_program)?;
            }
            // A program may have to look at a signal first. A copy wants the page.
            if by_program {
                return Ok(());
            }
        }
    }

    /// Has the program's own pager to be asked before this access?
    pub fn asked(&self, addr: u64, write: bool) -> Option<Asked> {
        self.lock().asked(addr, write)
    }

    /// Which program's it is: another number after [`AddressSpace::clear`].
    pub fn image(&self) -> u64 {
        self.lock().image
    }

    /// From now on a pager of the program's own is asked about a range. ENOMEM: another program is there by now; EINVAL: nothing is
    /// mapped there, or something else than private anonymous memory; EBUSY: another one is. The caller runs in this space.
    pub fn register(&self, addr: u64, len: u64, own: &OwnPager, image: u64) -> Result<()> {
        let mut vm = self.lock();
        if vm.image != image {
            return Err(Errno::ENOMEM);
        }
        vm.register(addr, addr + len, own)
    }

    /// It is no longer asked. EINVAL as above, or it is another's. The caller runs in this space.
    pub fn unregister(&self, addr: u64, len: u64, pager: &Arc<dyn Pager>) -> Result<()> {
        self.lock().unregister(addr, addr + len, pager)
    }

    /// Is a pager asked about all of a range, which is one area's?
    pub fn is_paged_by(&self, addr: u64, len: u64, pager: &Arc<dyn Pager>) -> bool {
        self.lock().paged_by(addr, addr + len, pager).is_ok()
    }

    /// Puts pages in place, all of one slot (64 KiB), with what lies at offset `from` of the cell's memory, which is the caller's, or
    /// zeroes, up to the first that is in place. `kept`: the pager is asked before they are written to. Value: bytes. ENOENT: this pager
    /// is not asked about all of it; EEXIST: the first is in place. The caller runs in this space.
    pub fn place(
        &self,
        addr: u64,
        len: u64,
        from: Option<u64>,
        kept: bool,
        pager: &Arc<dyn Pager>,
    ) -> Result<u64> {
        self.lock().place(addr, len, from, kept, pager)
    }

    /// From now on, or no longer, the pager is asked before what is in place in a range is written to. ENOENT: it is not asked
    /// about writes to all of it. The caller runs in this space.
    pub fn keep(&self, addr: u64, len: u64, kept: bool, pager: &Arc<dyn Pager>) -> Result<()> {
        self.lock().keep(addr, addr + len, kept, pager)
    }

    /// Which pages of a range were written to (or used) since this was last asked, or brought in; a bit a page, the lowest first, and an
    /// element a slot (64 KiB) that the range has a part of, which the caller has zeroed. Where that is cheaper it says too much, never
    /// too little: see `note`. Value: pages. ENOMEM: not all of it is mapped; EINVAL: some of it is shared, or a file's own pages. The
    /// caller runs in this space.
    pub fn take_told(&self, told: Told, addr: u64, len: u64, pages: &mut [u16]) -> Result<u64> {
        self.lock().take(told, addr, addr + len, pages)
    }

    /// Can [`AddressSpace::take_told`] say something of all pages of a range? Errors as there.
    pub fn can_tell(&self, addr: u64, len: u64) -> Result<()> {
        self.lock().can_tell(addr, addr + len)
    }

    /// From now on pages of a range come only from frames of these colours, or of any again; what is in it is dropped. EINVAL: not all of
    /// it is private anonymous memory without a pager of the program's own; ENOMEM: not all of it is mapped. The caller runs in
    /// this space.
    pub fn set_colours(&self, addr: u64, len: u64, colours: Option<Colours>) -> Result<()> {
        self.lock().set_colours(addr, addr + len, colours)
    }

    /// The numbers of the frames that pages of a range are in; 0: it isn't in place, or no private memory. ENOMEM: not all of it is
    /// mapped; ENOSYS: the platform isn't told.
    pub fn frames(&self, addr: u64, frames: &mut [u64]) -> Result<()> {
        let vm = self.lock();
        if !vm.covered(addr, addr + frames.len() as u64 * PAGE) {
            return Err(Errno::ENOMEM);
        }
        platform().frame_of(0).ok_or(Errno::ENOSYS)?;
        for (n, frame) in frames.iter_mut().enumerate() {
            let at = addr + n as u64 * PAGE;
            let offset = if vm.is_mapped(at) { vm.offset_of(at) } else { None };
            *frame = offset.and_then(|offset| platform().frame_of(offset)).unwrap_or(0);
        }
        Ok(())
    }

    /// Would a fault there have to read from a device?
    pub fn fault_reads(&self, addr: u64) -> bool {
        let vm = self.lock();
        let Some((start, area)) = vm.area_at(addr) else { return false };
        if area.direct || vm.is_mapped(addr) {
            return false;
        }
        match &area.kind {
            Kind::File { file, offset } => !file.is_here(addr - start + offset),
            Kind::Object { object, offset, .. } => !object.is_here(addr - start + offset),
            Kind::Anonymous => false,
        }
    }

    /// A copy for the child of a fork, that shows the same memory until one of both writes to it. The caller runs in this space; in
    /// the new one nothing is mapped until [`AddressSpace::show_all`]. What both are going to write to at once is copied now: what lies
    /// at the addresses of `hot`, and, if there are any, some of what was written to since the last fork.
    pub fn fork(&self, hot: &[u64]) -> Result<AddressSpace> {
        self.lock().fork(hot)
    }

    /// Maps all that a fork has given this space. The caller is the first to run in it.
    pub fn show_all(&self) -> Result<()> {
        self.lock().show_all()
    }

    /// Says how memory is brought in from now on, where the program doesn't say otherwise, and what the heap gets from now on.
    pub fn set_paging(&self, paging: Paging, heap: Option<Paging>) {
        let mut vm = self.lock();
        (vm.paging, vm.heap_paging) = (paging, heap);
    }

    /// Populates a range for reading, for writing, or for what its areas allow, up to where that can't be, and says why.
    pub fn populate(&self, addr: u64, len: u64, write: Option<bool>) -> core::result::Result<(), Denied> {
        let mut vm = self.lock();
        let (mut at, end) = (page_down(addr), page_up(addr + len));
        while at < end {
            let (_, area) = vm.area_at(at).ok_or(Denied::Unmapped)?;
            let next = area.end.min(end);
            vm.populate(at, next, write)?;
            at = next;
        }
        Ok(())
    }

    /// Unmaps everything. The caller runs in this space.
    pub fn clear(&self) {
        let mut vm = self.lock();
        vm.image += 1;
        if vm.areas.is_empty() {
            return;
        }
        // First, and as a whole: one by one they would be taken out of a copy, where a fork has the same.
        vm.windows = Arc::default();
        vm.trampolines_of = Arc::default();
        vm.texts = Arc::default();
        // No mapping goes over their ends, so that the host has none to cut in two.
        let _ = vm.remove(0, RUNTIME_BASE).and(vm.remove(RUNTIME_END, USER_MAX));
        vm.brk = 0;
        vm.brk_start = 0;
        vm.trampolines = (0, 0);
        vm.next_ready = SLOT;
        vm.locks_all = Locking::No;
    }

    /// Bytes of what is private and may be written to, but for what grows downwards.
    pub fn data(&self) -> u64 {
        self.lock().data()
    }

    /// Bytes mapped.
    pub fn total(&self) -> u64 {
        self.lock().total
    }

    /// Most bytes ever resident, of what is no shared object.
    pub fn peak(&self) -> u64 {
        let vm = self.lock();
        let direct: u64 = vm.areas.iter().filter(|(_, a)| a.direct).map(|(s, a)| a.end - s).sum();
        (vm.peak * PAGE).max(vm.in_areas() * PAGE + direct)
    }

    /// What is in memory of the areas in a range.
    pub fn residence(&self, start: u64, end: u64) -> Residence {
        let mut all = Residence::default();
        let mut objects = Vec::new();
        {
            let vm = self.lock();
            for (s, area) in vm.areas.range(..end).rev().take_while(|(_, area)| area.end > start) {
                let (from, to) = ((*s).max(start), area.end.min(end));
                match &area.kind {
                    Kind::Object { object, offset, .. } => {
                        objects.push((object.clone(), offset + from - s, to - from));
                    }
                    _ if area.direct => {
                        all.file.others += to - from;
                        all.proportional += to - from;
                    }
                    kind => {
                        let of_file =
                            matches!(kind, Kind::File { .. }) && !area.access.contains(Access::WRITE);
                        for (at, slot) in vm.slots.range(from & !(SLOT - 1)..to) {
                            let pages = (page_bits(at, from, to) & slot.mapped).count_ones();
                            let (bytes, by) =
                                (u64::from(pages) * PAGE, memory().sharers().count(slot.offset()));
                            (if of_file { &mut all.file } else { &mut all.anonymous }).add(bytes, by);
                            all.proportional += bytes / u64::from(by);
                        }
                        let coloured = vm.coloured.range(from..to).count() as u64 * PAGE;
                        all.anonymous.add(coloured, 1);
                        all.proportional += coloured;
                    }
                }
            }
        }
        // There may be much of them: not under the lock.
        for (object, offset, len) in objects {
            all.add_object(&*object, offset, len);
        }
        all
    }

    /// The pages from an address on, as [`residence`](AddressSpace::residence) counts them. Those of a hole are not in memory.
    pub fn pages_from(&self, addr: u64, pages: &mut [Page]) {
        pages.fill(Page::default());
        let mut vm = self.lock();
        // That there are holes is no error here.
        let _ = vm.each_part(addr, addr + pages.len() as u64 * PAGE, true, |vm, start, end| {
            let (first, area) = vm.area_at(start).expect("a part of an area");
            for at in (start..end).step_by(PAGE as usize) {
                pages[((at - addr) / PAGE) as usize] = match &area.kind {
                    Kind::Object { object, offset, .. } => {
                        let from = at - first + offset;
                        let present = from < page_up(object.size()) && object.has_memory(from & !(SLOT - 1));
                        Page { present, of_object: present, own: present && object.mappings() <= 1 }
                    }
                    _ if area.direct => Page { present: true, of_object: true, own: false },
                    kind => {
                        let present = vm.is_mapped(at);
                        let of_file =
                            matches!(kind, Kind::File { .. }) && !area.access.contains(Access::WRITE);
                        let in_slot = vm.slots.get(at & !(SLOT - 1));
                        let own = in_slot.is_none_or(|slot| memory().sharers().count(slot.offset()) <= 1);
                        Page { present, of_object: present && of_file, own: present && own }
                    }
                };
            }
            Ok(())
        });
    }

    /// The heap's start and end.
    pub fn heap_range(&self) -> (u64, u64) {
        let vm = self.lock();
        (vm.brk_start, vm.brk)
    }

    /// The area that holds an address, if one does, and those behind it, `most` of them at most.
    pub fn areas_from(&self, addr: u64, most: usize) -> Vec<(u64, Area)> {
        let vm = self.lock();
        let first = vm.area_at(addr).map_or(addr, |(start, _)| start);
        vm.areas.range(first..).take(most).map(|(start, area)| (*start, area.clone())).collect()
    }

    /// The area that holds an address, or the first one behind it.
    pub fn find_from(&self, addr: u64) -> Option<(u64, Area)> {
        let vm = self.lock();
        let found = vm.area_at(addr).or_else(|| vm.areas.range(addr..).next().map(|(s, area)| (*s, area)));
        found.map(|(s, area)| (s, area.clone()))
    }

    /// The area that holds an address.
    pub fn find(&self, addr: u64) -> Option<(u64, Area)> {
        self.lock().area_at(addr).map(|(s, a)| (s, a.clone()))
    }

    /// Reads private memory from any space, as far as it is in place. Value: bytes.
    pub fn look_at(&self, addr: u64, to: &mut [u8]) -> usize {
        let vm = self.lock();
        let mut done = 0;
        while done < to.len() {
            let at = addr + done as u64;
            if !vm.is_mapped(at) {
                break;
            }
            let n = (to.len() - done).min((PAGE - at % PAGE) as usize);
            vm.peek(at, &mut to[done..done + n]);
            done += n;
        }
        done
    }

    /// The first page of private memory in a range that is in place.
    pub fn next_in_place(&self, from: u64, end: u64) -> Option<u64> {
        let vm = self.lock();
        let in_slots = vm.slots.range(from & !(SLOT - 1)..end).find_map(|(s, slot)| {
            let bits = slot.mapped & page_bits(s, from, end);
            (bits != 0).then(|| s + u64::from(bits.trailing_zeros()) * PAGE)
        });
        let coloured = vm.coloured.range(page_down(from)..end).next().map(|(at, _)| *at);
        in_slots.into_iter().chain(coloured).min()
    }

    /// The rewritten window that an address is inside of, and its first byte.
    pub fn window_at(&self, addr: u64) -> Option<(u64, Window)> {
        self.lock().window_at(addr)
    }

    /// The window whose trampoline holds an address, and its first byte.
    pub fn window_of_trampoline(&self, addr: u64) -> Option<(u64, Window)> {
        self.lock().window_of_trampoline(addr)
    }

    /// System-call sites rewritten in this space.
    pub fn rewritten(&self) -> u64 {
        self.lock().rewritten
    }
}

impl Drop for AddressSpace {
    fn drop(&mut self) {
        // The space's process is gone or going; only its memory is to be given back.
        let vm = self.vm.get_mut();
        for (_, slot) in vm.slots.iter() {
            slot.release();
            breathe();
        }
        vm.release_coloured(0, USER_MAX);
        for area in vm.areas.values() {
            if let Kind::Object { object, .. } = &area.kind {
                object.mapped(-1);
            }
        }
    }
}

impl Vm {
    fn new(top: u64) -> Vm {
        Vm {
            areas: BTreeMap::new(),
            slots: Slots::new(),
            coloured: BTreeMap::new(),
            brk_start: 0,
            brk: 0,
            top,
            resident: 0,
            shown: [(0, 0); SHOWN],
            peak: 0,
            total: 0,
            ready: Ready::default(),
            closed: Ready::default(),
            gaps: Default::default(),
            image: 0,
            paging: Paging::Usual,
            heap_paging: None,
            next_ready: SLOT,
            locks_all: Locking::No,
            pieces: 0,
            hand: 0,
            trampolines: (0, 0),
            windows: Arc::default(),
            trampolines_of: Arc::default(),
            texts: Arc::default(),
            rewritten: 0,
        }
    }

    fn area_at(&self, addr: u64) -> Option<(u64, &Area)> {
        let (start, area) = self.areas.range(..=addr).next_back()?;
        (addr < area.end).then_some((*start, area))
    }

    /// Is nothing mapped in a range?
    fn is_free(&self, start: u64, end: u64) -> bool {
        self.areas.range(..end).next_back().is_none_or(|(_, area)| area.end <= start)
    }

    /// Starts of the areas that overlap a range.
    fn overlapping(&self, start: u64, end: u64) -> Vec<u64> {
        let first = self.area_at(start).map_or(start, |(s, _)| s);
        self.areas.range(first..end).map(|(s, _)| *s).collect()
    }

    fn covered(&self, start: u64, end: u64) -> bool {
        let mut at = start;
        while at < end {
            match self.area_at(at) {
                Some((_, a)) => at = a.end,
                None => return false,
            }
        }
        true
    }

    /// Can something be mapped there, if it has to be there?
    fn check_place(&self, addr: u64, len: u64, place: Place) -> Result<()> {
        if !matches!(place, Place::Fixed | Place::FixedNoReplace) {
            return Ok(());
        }
        if !addr.is_multiple_of(PAGE) {
            return Err(Errno::EINVAL);
        }
        if addr < USER_MIN {
            return Err(Errno::EPERM);
        }
        if !is_user_range(addr, len) {
            return Err(Errno::ENOMEM);
        }
        if place == Place::FixedNoReplace && !self.is_free(addr, addr + len) {
            return Err(Errno::EEXIST);
        }
        Ok(())
    }

    fn choose(&mut self, request: &MapRequest, len: u64) -> Result<u64> {
        let addr = request.addr;
        self.check_place(addr, len, request.place)?;
        if matches!(request.place, Place::Fixed | Place::FixedNoReplace) {
            return Ok(addr);
        }
        let hint = page_up(addr);
        let above =
            || self.areas.range(hint + len..).next().map_or(USER_MAX, |(s, area)| area.room_below(*s));
        let end = if request.place == Place::Low { LOW_END } else { USER_MAX };
        let fits = hint >= USER_MIN && is_user_range(hint, len) && hint + len <= end;
        if fits && self.is_free(hint, hint + len) && hint + len <= above() {
            return Ok(hint);
        }
        // Large private memory on block boundaries, so that whole blocks can stand behind it.
        // Files by the slot, so that their code lies alike in all processes.
        let align = match request.kind {
            Kind::Anonymous if len >= BLOCK && !request.shared => BLOCK,
            Kind::Object { offset, .. } | Kind::File { offset, .. }
                if request.shared && len >= BLOCK && offset.is_multiple_of(BLOCK) =>
            {
                BLOCK
            }
            Kind::File { .. } if !request.shared => SLOT,
            _ => PAGE,
        };
        let (top, low) = match request.place {
            Place::Low => (LOW_END, LOW_START),
            _ => (self.top, USER_MIN),
        };
        let behind = (request.place != Place::Low).then_some(USER_MAX);
        self.find_unused(len, top, low, align)
            .or_else(|| find_free(&self.areas, len, top, low, PAGE))
            .or_else(|| find_free(&self.areas, len, behind?, self.top, PAGE))
            .ok_or(Errno::ENOMEM)
    }

    /// As [`find_free`], where no memory is ready, either. Some may be closed there.
    fn find_unused(&mut self, len: u64, top: u64, low: u64, align: u64) -> Option<u64> {
        let which = ALIGNS.iter().position(|a| *a == align).filter(|_| top == self.top);
        let known = which.map(|n| &self.gaps[n]).filter(|gaps| gaps.below != 0 && len > gaps.largest);
        let (from, mut largest) = known.map_or((top, 0), |gaps| (gaps.below, gaps.largest));
        let mut end = from;
        let mut found = None;
        for (start, area) in self.areas.range(..from).rev() {
            if end <= low {
                break;
            }
            if area.end < end {
                match self.room_in(area.end.max(low), end, len, align) {
                    Ok(at) => {
                        found = Some(at);
                        break;
                    }
                    Err(room) => largest = largest.max(room),
                }
            }
            end = area.room_below(*start);
        }
        let found = found.or_else(|| self.room_in(low, end, len, align).ok());
        if let (Some(n), Some(_)) = (which, found) {
            self.gaps[n] = Gaps { below: end, largest };
        }
        found
    }

    /// Room for `len` bytes in a gap between areas, where no memory is ready. Err: there is none, only so much in one piece that begins
    /// at a multiple of `align`.
    fn room_in(&self, gap: u64, mut end: u64, len: u64, align: u64) -> core::result::Result<u64, u64> {
        let mut largest = 0;
        while gap < end {
            let ready = self.ready.last_in(gap, end);
            let from = ready.map_or(gap, |(_, ready_end)| ready_end.min(end));
            if let Some(at) = place_in(from.max(gap), end, len, align) {
                return Ok(at);
            }
            largest = largest.max(end.saturating_sub(from.max(gap).next_multiple_of(align)));
            let Some((start, _)) = ready else { break };
            end = start;
        }
        Err(largest)
    }

    /// There may be room up to `end` that there was not before.
    fn note_room(&mut self, end: u64) {
        if self.gaps.iter().all(|gaps| gaps.below == 0 || end <= gaps.below) {
            return;
        }
        let above = self.areas.range(end..).next();
        // What lies above the top, the stack is to have room below.
        let below = above.map_or(self.top, |(start, area)| area.room_below(*start)).min(self.top);
        for gaps in self.gaps.iter_mut().filter(|gaps| gaps.below != 0 && end > gaps.below) {
            gaps.below = below;
        }
    }

    /// The last stretch that is ready or closed in a range.
    fn spare_in(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        self.ready.last_in(start, end).or_else(|| self.closed.last_in(start, end))
    }

    /// Where memory is ready for a mapping: zeroed, and in place. If need be, some is made ready.
    fn take_ready(&mut self, len: u64) -> Option<u64> {
        let found = self.ready.find(len, self.top, self.heap_ready_from()).or_else(|| {
            if !self.open_again(len) {
                self.make_ready(len);
            }
            self.ready.find(len, self.top, self.heap_ready_from())
        })?;
        self.ready.cut(found, found + len);
        Some(found)
    }

    /// Makes a stretch of so many bytes at least ready again that was closed. False: there is none.
    fn open_again(&mut self, len: u64) -> bool {
        let len = len.max(SLOT);
        let found = self.closed.find(len, self.top, page_up(self.brk)).map(|at| at + len);
        let found = found.and_then(|end| self.closed.last_in(end - PAGE, end));
        found.is_some_and(|(start, end)| self.open(start, end))
    }

    /// Makes what was closed ready again. False: it could not be, and is gone.
    fn open(&mut self, start: u64, end: u64) -> bool {
        for (s, slot) in self.slots.range(start & !(SLOT - 1)..end) {
            slot.clear(page_bits(s, start, end));
            breathe();
        }
        // SAFETY: pages of this space's slots, all of which are mapped.
        let opened = unsafe { platform().protect(start, end - start, Access::READ | Access::WRITE) };
        if opened.is_err() {
            self.drop_spare(start, end);
            return false;
        }
        self.closed.cut(start, end);
        self.ready.add(start, end);
        true
    }

    /// Maps memory at addresses where there is nothing, for so many bytes at least.
    fn make_ready(&mut self, len: u64) {
        let size = self.next_ready.max(len.next_power_of_two()).clamp(SLOT, MADE_READY_MAX);
        let Some(at) = self.find_unused(size, self.top, USER_MIN, size) else { return };
        self.drop_spare(at, at + size);
        if self.put_ready(at, at, size) {
            self.ready.add(at, at + size);
            self.next_ready = (size * 4).min(MADE_READY_MAX);
        }
    }

    /// Puts memory behind the slots from `slot` on, `size` bytes, a power of two of slots, and maps what of it lies at
    /// `start` or behind it.
    fn put_ready(&mut self, slot: u64, start: u64, size: u64) -> bool {
        let order = (size / PAGE).trailing_zeros();
        let Some(offset) = take_pages(order) else { return false };
        let backing = Backing::Memory { offset: offset + (start - slot) };
        let len = size - (start - slot);
        let access = Access::READ | Access::WRITE | Access::POPULATE;
        // SAFETY: a user range in which nothing is mapped; the memory was just taken.
        if unsafe { platform().map(start, len, access, backing) }.is_err() {
            give_pages(offset, order);
            return false;
        }
        for at in (0..size).step_by(SLOT as usize) {
            let bits = page_bits(slot + at, start, slot + size);
            self.slots.insert(slot + at, Slot::new(((offset + at) / PAGE) as u32, bits));
        }
        self.resident += len / PAGE;
        true
    }

    /// Has the heap's memory from `start` to `end`, which is an area now, in place, and what is left of its slots ready.
    fn ready_heap(&mut self, start: u64, end: u64) {
        let next = self.areas.range(end..).next().map_or(self.top, |(s, _)| *s);
        let mut at = start & !(SLOT - 1);
        if let Some(slot) = self.slots.get(at).copied() {
            let to = (at + SLOT).min(next);
            let bits = page_bits(at, start, to);
            // Where pages were shared, or are something else's, they fault in.
            if slot.guarded || slot.is_shared() || slot.mapped & bits != 0 {
                return;
            }
            slot.clear(slot.stale & bits);
            if show(at, &slot, bits, Access::READ | Access::WRITE).is_err() {
                return;
            }
            let slot = self.slots.get_mut(at).expect("just looked at");
            slot.mapped |= bits;
            slot.stale &= !bits;
            self.resident += u64::from(bits.count_ones());
            if end < to {
                self.ready.add(end, to);
                return;
            }
            at += SLOT;
        }
        let size = (end.saturating_sub(at)).max(self.next_ready.min(READY_MAX)).next_power_of_two();
        if at >= end
            || at + size > next
            || self.has_slots(at, at + size)
            || self.spare_in(at, at + size).is_some()
        {
            return;
        }
        if self.put_ready(at, at.max(start), size) {
            self.ready.add(end, at + size);
            self.next_ready = (self.next_ready * 4).min(MADE_READY_MAX);
        }
    }

    /// Unmaps what is ready or closed in a range, and gives it back.
    fn drop_spare(&mut self, start: u64, end: u64) {
        while let Some((s, e)) = self.spare_in(start, end) {
            let (s, e) = (s.max(start), e.min(end));
            self.ready.cut(s, e);
            self.closed.cut(s, e);
            self.drop_pages(s, e);
            self.note_room(e);
        }
    }

    /// Where what is ready behind the heap begins, if there is some: behind what is closed there.
    fn heap_ready_from(&self) -> u64 {
        let end = page_up(self.brk);
        self.closed.last_in(end, end + PAGE).map_or(end, |(_, e)| e)
    }

    /// What is ready behind the heap: from where to where. Nothing: twice the same.
    fn heap_ready(&self) -> (u64, u64) {
        let from = self.heap_ready_from();
        (from, self.ready.last_in(from, from + PAGE).map_or(from, |(_, e)| e))
    }

    /// Gives back what is ready behind the heap. Apart from it, it would be taken for others, who would be in the heap's way.
    fn drop_ready_heap(&mut self) {
        let (from, to) = self.heap_ready();
        if from < to {
            self.drop_spare(from, to);
        }
    }

    fn drop_closed(&mut self) {
        if self.heap_ready_from() > page_up(self.brk) {
            self.drop_ready_heap();
        }
        while let Some((s, e)) = self.closed.last_in(0, USER_MAX) {
            self.drop_spare(s, e);
        }
    }

    /// Has no slot that areas have pages of, too, any that are ready: before others come to share them. Nothing stays closed.
    fn drop_spare_parts(&mut self) {
        self.drop_ready_heap();
        self.drop_closed();
        let mut end = USER_MAX;
        while let Some((s, e)) = self.ready.last_in(0, end) {
            let (first, last) = (s.next_multiple_of(SLOT), e & !(SLOT - 1));
            let parts = if first > last { [(s, e), (e, e)] } else { [(s, first), (last, e)] };
            for (from, to) in parts.into_iter().filter(|(from, to)| from < to) {
                self.drop_spare(from, to);
            }
            end = s;
        }
    }

    fn map(&mut self, request: MapRequest) -> Result<u64> {
        let len = page_up(request.len);
        if request.len == 0 {
            return Err(Errno::EINVAL);
        }
        if len < request.len || len > USER_MAX || self.areas.len() >= AREAS_MAX {
            return Err(Errno::ENOMEM);
        }
        // What goes is not counted with what comes.
        let goes = request.place == Place::Fixed && is_user_range(request.addr, len);
        let replaced = if goes { request.addr..request.addr + len } else { 0..0 };
        self.check_room(len, is_data(request.shared, request.grows, request.access), replaced, request.most)?;
        let simple = request.access.difference(Access::POPULATE) == Access::READ | Access::WRITE;
        let anonymous = simple && !request.shared && matches!(request.kind, Kind::Anonymous);
        let how = request.paging.unwrap_or(self.paging);
        let grows = request.grows;
        let colours =
            request.colours.filter(|_| matches!(request.kind, Kind::Anonymous) && !request.shared && !grows);
        // What is ready below it would be no fault.
        let small = anonymous && !grows && colours.is_none() && self.takes_ready(len, how);
        let anywhere = small && request.addr == 0 && request.place == Place::Hint;
        let taken = if anywhere { self.take_ready(len) } else { None };
        let start = match taken {
            Some(start) => start,
            None => self.choose(&request, len)?,
        };
        // Any other place is free.
        if request.place == Place::Fixed {
            self.remove(start, start + len)?;
        }
        let is_ready = taken.is_some() || small && self.ready.take(start, start + len);
        if !is_ready {
            let gap = if grows { STACK_GAP } else { 0 };
            self.drop_spare(start.saturating_sub(gap), start + len);
        }
        let MapRequest { access, shared, mut kind, name, paging, populate, .. } = request;
        // Not a stack, of which hardly anything is ever used, unless that is said of it.
        let populate =
            populate || self.comes_ahead(paging, anonymous && (name.is_empty() || name == HEAP), len);
        let (locked, on_fault) =
            (request.locked || self.locks_all != Locking::No, self.locks_all == Locking::OnFault);
        let mut direct = false;
        let plain = matches!(kind, Kind::File { .. }) && !shared && !access.contains(Access::WRITE);
        let runs = plain && access.contains(Access::EXEC);
        let known = if runs { self.known_text(&kind, start, start + len) } else { None };
        // Nothing of the file itself is seen then.
        let is_known = known.as_ref().is_some_and(|known| known.covers(start, start + len));
        if let Kind::File { file, offset } = &kind {
            if let Some(object) = file.object() {
                if shared {
                    kind = Kind::Object { object, file: Some(file.clone()), offset: *offset };
                }
            } else if shared || !access.contains(Access::WRITE) && !file.is_divided() {
                if let Some(fd) = file.host_file(shared && access.contains(Access::WRITE))? {
                    // A private one that has no access is mapped when it gets some.
                    if (shared || !access.difference(Access::POPULATE).is_empty()) && !is_known {
                        let backing = Backing::File { fd, offset: *offset, shared };
                        // Not executable yet: system-call sites are rewritten first.
                        let now = shared || known.is_some();
                        let first = if now { access } else { access.difference(Access::EXEC) };
                        // SAFETY: a user range, checked by `choose`.
                        unsafe { platform().map(start, len, first, backing)? };
                        direct = true;
                    }
                } else if shared {
                    return Err(Errno::ENODEV);
                }
            }
        }
        if let Kind::Object { object, file, .. } = &kind {
            object.mapped(1);
            // It may have been sealed since it was looked at; from now on it can't be.
            if access.contains(Access::WRITE)
                && let Some(file) = file
                && file.host_file(true) == Err(Errno::EPERM)
            {
                object.mapped(-1);
                return Err(Errno::EPERM);
            }
        }
        let at_fork = AtFork::default();
        let (end, pager) = (start + len, None);
        let area = Area {
            end,
            access,
            shared,
            kind,
            direct,
            plain,
            name,
            undumped: false,
            at_fork,
            paging,
            pager,
            colours,
            locked,
            on_fault,
            grows,
        };
        self.total += len;
        self.insert(start, area);
        if is_ready {
            self.count_resident(0);
            return Ok(start);
        }
        if small && name == HEAP {
            self.ready_heap(start, start + len);
            self.count_resident(0);
        }
        if let Some(known) = known {
            self.show_text(start, start + len, access, known)
                .inspect_err(|_| _ = self.remove(start, start + len))?;
        } else if runs {
            self.rewrite(start, start + len);
            if direct
                && self.is_in_slots(start, start + len)
                && let Some(area) = self.areas.get_mut(&start).filter(|area| area.end == start + len)
            {
                // Nothing of the file itself is seen.
                (direct, area.direct) = (false, false);
            }
            if direct {
                // SAFETY: the range was mapped above.
                unsafe { platform().protect(start, len, access)? };
            } else {
                // What was rewritten; the rest faults in.
                self.protect_now(|vm, runs| {
                    vm.protect_slots(start, start + len, access, runs);
                    Ok(())
                })?;
            }
        }
        if (populate || locked) && !on_fault {
            // As far as it can be.
            let _ = self.populate(start, start + len, None);
        }
        Ok(start)
    }

    /// Adds an area, joining it with neighbours that it continues.
    fn insert(&mut self, start: u64, mut area: Area) {
        let same = |a: &Area, b: &Area| {
            a.marks() == b.marks()
                && a.paging == b.paging
                && a.pager == b.pager
                && a.colours == b.colours
                && a.access == b.access
                && a.name == b.name
        };
        if let Some(after) = self.areas.get(&area.end)
            && same(after, &area)
            && area.kind.continues(&after.kind, area.end - start)
        {
            let after = self.areas.remove(&area.end).expect("just found");
            drop_mapping(&after.kind);
            area.end = after.end;
        }
        if let Some((s, before)) = self.areas.range_mut(..start).next_back()
            && before.end == start
            && same(before, &area)
            && before.kind.continues(&area.kind, start - s)
        {
            drop_mapping(&area.kind);
            before.end = area.end;
            return;
        }
        self.areas.insert(start, area);
    }

    /// Adds an area again that was taken out to be changed.
    fn put_back(&mut self, start: u64, area: Area) {
        if area.kind.counts_areas() {
            self.areas.insert(start, area);
        } else {
            self.insert(start, area);
        }
    }

    /// May the ends of a range become boundaries between areas? ENOMEM: there would be too many of them.
    fn check_split(&self, start: u64, end: u64) -> Result<()> {
        let cuts = |at: u64| usize::from(self.area_at(at).is_some_and(|(s, _)| s < at));
        let fits =
            self.areas.len() + 2 <= AREAS_MAX || self.areas.len() + cuts(start) + cuts(end) <= AREAS_MAX;
        if fits { Ok(()) } else { Err(Errno::ENOMEM) }
    }

    /// Makes the ends of a range boundaries between areas, if anything is mapped there.
    fn split(&mut self, start: u64, end: u64) {
        let Some((&last, area)) = self.areas.range(..end).next_back().filter(|(_, a)| a.end > start) else {
            return;
        };
        if area.end > end {
            self.split_area(last, end);
        }
        if last < start {
            self.split_area(last, start);
        } else if last > start
            && let Some((first, _)) = self.area_at(start)
            && first < start
        {
            self.split_area(first, start);
        }
    }

    /// Makes `at`, which the area that starts at `start` has in it, a boundary.
    fn split_area(&mut self, start: u64, at: u64) {
        let area = self.areas.get_mut(&start).expect("the caller found it");
        let mut tail = area.clone();
        tail.kind = area.kind.advanced(at - start);
        if let Kind::Object { object, .. } = &tail.kind {
            object.mapped(1);
        }
        area.end = at;
        self.areas.insert(at, tail);
    }

    /// As [`AddressSpace::window_at`].
    fn window_at(&self, addr: u64) -> Option<(u64, Window)> {
        let shown = self.texts.range(..=addr).next_back().filter(|(_, shown)| addr < shown.end);
        let (start, w) = match shown {
            Some((start, shown)) => shown.window_before(*start, addr)?,
            None => self.windows.range(..=addr).next_back().map(|(start, w)| (*start, *w))?,
        };
        (addr < start + u64::from(w.len)).then_some((start, w))
    }

    /// As [`AddressSpace::window_of_trampoline`].
    fn window_of_trampoline(&self, addr: u64) -> Option<(u64, Window)> {
        let holds = |w: &Window| (w.trampoline..w.trampoline + u64::from(w.moved.len)).contains(&addr);
        let of_text = |(start, shown): (&u64, &Shown)| {
            let found = shown.text.trampoline_before(shown.base, addr);
            found.filter(|(at, w)| holds(w) && (*start..shown.end).contains(at))
        };
        if let Some(found) = self.texts.iter().find_map(of_text) {
            return Some(found);
        }
        let (_, start) = self.trampolines_of.range(..=addr).next_back()?;
        let w = self.windows.get(start).filter(|w| holds(w))?;
        Some((*start, *w))
    }

    /// Adds a rewritten window.
    fn add_window(&mut self, at: u64, w: Window) {
        Arc::make_mut(&mut self.windows).insert(at, w);
        Arc::make_mut(&mut self.trampolines_of).insert(w.trampoline, at);
    }

    /// Forgets what lies in a range of texts, and the trampolines of those of which nothing is left.
    fn remove_texts(&mut self, start: u64, end: u64) {
        let last = |texts: &BTreeMap<u64, Shown>| {
            texts.range(..end).next_back().filter(|(_, shown)| shown.end > start).map(|(at, _)| *at)
        };
        while let Some(at) = last(&self.texts) {
            let texts = Arc::make_mut(&mut self.texts);
            let Some(shown) = texts.remove(&at) else { return };
            if at < start {
                texts.insert(at, Shown { end: start, ..shown.clone() });
            }
            if shown.end > end {
                texts.insert(end, shown.clone());
            }
            if texts.values().any(|other| other.base == shown.base) {
                continue;
            }
            let area = shown.text.trampolines(shown.base).map(|(to, room)| (to, to + room));
            // Unless the program has something else there by now.
            let is_ours = |(to, end): &(u64, u64)| {
                self.areas.get(to).is_some_and(|area| area.name == TRAMPOLINES && area.end == *end)
            };
            if let Some((to, end)) = area.filter(is_ours) {
                // Else it stays, and is nobody's.
                let _ = self.remove(to, end);
            }
        }
    }

    /// Unmaps a range. ENOMEM: it is the middle of an area, and there would be too many, or of a mapping, and the host has too many;
    /// then all is as it was.
    fn remove(&mut self, start: u64, end: u64) -> Result<()> {
        let is_mapped = !self.is_free(start, end);
        if !is_mapped && self.spare_in(start, end).is_none() {
            return Ok(());
        }
        let is_middle = |(s, area): (u64, &Area)| s < start && area.end > end;
        if self.areas.len() >= AREAS_MAX && self.area_at(start).is_some_and(is_middle) {
            return Err(Errno::ENOMEM);
        }
        let visible = |area: &Area| area.direct || matches!(area.kind, Kind::Object { .. });
        let visible = self
            .areas
            .range(..end)
            .rev()
            .take_while(|(_, area)| area.end > start)
            .any(|(_, area)| visible(area));
        if visible || self.has_slots(start, end) {
            // Out of the page tables first, then back to the pool.
            self.unmap(start, end)?;
        }
        if is_mapped {
            self.split(start, end);
        }
        self.ready.cut(start, end);
        self.closed.cut(start, end);
        self.release_slots(start, end);
        let mut of_files = false;
        for (s, area) in self.areas.extract_if(start..end, |_, _| true) {
            self.total -= area.end - s;
            of_files |= matches!(area.kind, Kind::File { .. });
            if let Kind::Object { object, .. } = &area.kind
                && area.access.contains(Access::WRITE)
            {
                object.settle(true);
            }
            drop_mapping(&area.kind);
        }
        self.note_room(end);
        // Nothing else has windows.
        if of_files {
            self.forget_windows(start, end);
        }
        Ok(())
    }

    /// Unmaps a range from the platform. The host does not cut the middle out of a mapping when it has as many as it may have
    /// (`vm.max_map_count`): then more is unmapped with it, which faults in again. ENOMEM: it is the middle of what doesn't, a
    /// file's own mapping, and all is as it was. Memory behind pages is given back only after this.
    fn unmap(&mut self, start: u64, end: u64) -> Result<()> {
        // SAFETY: a user range; holes in it do no harm.
        let done = unsafe { platform().unmap(start, end - start) };
        if done == Err(Errno::ENOMEM) { self.unmap_more(start, end) } else { done }
    }

    /// Unmaps a range and as much below it, or above it, as takes the end of a mapping with it.
    #[cold]
    fn unmap_more(&mut self, start: u64, end: u64) -> Result<()> {
        let (low, high) =
            if start < RUNTIME_BASE { (USER_MIN, RUNTIME_BASE) } else { (RUNTIME_END, USER_MAX) };
        // How far it goes, each time twice as far, and how far it can go: up to what doesn't fault in again.
        let (mut from, mut to, mut more) = (start, end, SLOT);
        let (mut bottom, mut top) = (low, high);
        loop {
            let (next_from, next_to) = (start.saturating_sub(more).max(bottom), (end + more).min(top));
            let mut below = self.areas.range(..from).rev().take_while(|(_, area)| area.end > next_from);
            if let Some((_, area)) = below.find(|(_, area)| area.direct) {
                bottom = area.end.min(from);
            }
            let above = self.area_at(to).map(|(at, area)| (at.max(to), area));
            let mut above =
                above.into_iter().chain(self.areas.range(to..next_to).map(|(at, area)| (*at, area)));
            if let Some((at, _)) = above.find(|(_, area)| area.direct) {
                top = at;
            }
            let before = (from, to);
            (from, to) = (next_from.max(bottom), next_to.min(top));
            if (from, to) == before {
                return Err(Errno::ENOMEM);
            }
            for (from, to) in [(from, end), (start, to)] {
                self.forget_bits(from, to);
                // SAFETY: a user range, of which only what is asked for doesn't fault in again.
                let done = unsafe { platform().unmap(from, to - from) };
                if done != Err(Errno::ENOMEM) {
                    return done;
                }
            }
            more *= 2;
        }
    }

    /// What the processor has noted of pages goes with their mappings.
    fn forget_bits(&mut self, start: u64, end: u64) {
        if platform().has_page_bits() {
            self.slots.range_mut(start & !(SLOT - 1)..end).for_each(|(_, slot)| slot.forget_told());
        }
    }

    /// Maps memory for who has faulted.
    fn put(&mut self, addr: u64, len: u64, access: Access, offset: u64) -> core::result::Result<(), Denied> {
        let (access, backing) = (access | Access::POPULATE, Backing::Memory { offset });
        // SAFETY: a user range; the memory is this space's, or that of an object which keeps it while it is mapped.
        let put = || unsafe { platform().map(addr, len, access, backing) };
        self.put_or_give_way(addr, addr + len, put)
    }

    /// Maps pages of a slot for who has faulted.
    fn put_pages(
        &mut self,
        s: u64,
        slot: &Slot,
        bits: u16,
        access: Access,
    ) -> core::result::Result<(), Denied> {
        let put = || show(s, slot, bits, access);
        self.put_or_give_way(s, s + SLOT, put)
    }

    /// Maps what belongs in a range, if need be when others have given way.
    fn put_or_give_way(
        &mut self,
        start: u64,
        end: u64,
        put: impl Fn() -> Result<()>,
    ) -> core::result::Result<(), Denied> {
        let mut put_there = put();
        // Not all that gives way was there.
        for _ in 0..GIVE_WAY_TRIES {
            if put_there.is_ok() || !self.give_way(start, end) {
                break;
            }
            put_there = put();
        }
        put_there.map_err(|_| Denied::NoMemory)
    }

    /// The host has no more mappings to give: some go of what faults in again, one after the other each time. Not those of a range.
    /// False: there are none.
    #[cold]
    fn give_way(&mut self, start: u64, end: u64) -> bool {
        let (mut gone, mut rounds) = (0, 0);
        while gone < GIVEN_WAY && rounds < 2 {
            let from = self.hand;
            let found = self.area_at(from).or_else(|| self.areas.range(from..).next().map(|(s, a)| (*s, a)));
            let Some((s, area)) = found else {
                (self.hand, rounds) = (0, rounds + 1);
                continue;
            };
            let (from, area_end) = (from.max(s), area.end);
            let next = match &area.kind {
                _ if area.direct => None,
                Kind::Object { .. } => Some(from),
                _ => self.slots.range(from & !(SLOT - 1)..area_end).next().map(|(at, _)| from.max(at)),
            };
            let Some(at) = next else {
                self.hand = area_end;
                continue;
            };
            let to = area_end.min((at & !(BLOCK - 1)) + BLOCK);
            self.hand = to;
            if to <= start || at >= end {
                self.forget_bits(at, to);
                // SAFETY: a user range, all of which faults in again.
                gone += usize::from(unsafe { platform().unmap(at, to - at) }.is_ok());
            }
            breathe();
        }
        gone > 0
    }

    /// Unmaps pages of slots, and gives back what is behind them; unless the host keeps them.
    fn drop_pages(&mut self, start: u64, end: u64) {
        if self.unmap(start, end).is_ok() {
            self.release_slots(start, end);
        }
    }

    /// Forgets the windows of a range.
    fn forget_windows(&mut self, start: u64, end: u64) {
        self.remove_texts(start, end);
        while let Some((&at, &w)) = self.windows.range(start..end).next() {
            Arc::make_mut(&mut self.trampolines_of).remove(&w.trampoline);
            Arc::make_mut(&mut self.windows).remove(&at);
        }
    }

    /// Takes a range out of its area, which has this name, and keeps its pages: ready, if `lazy`, or closed. False: it is to be unmapped as
    /// others are.
    fn close(&mut self, start: u64, end: u64, name: &str, lazy: bool) -> bool {
        let len = end - start;
        if len > READY_MAX || lazy && self.ready.bytes() + len > LAZY_MAX {
            return false;
        }
        let is_simple = |area: &Area| {
            let private = matches!(area.kind, Kind::Anonymous) && !area.shared && area.name == name;
            private && area.pager.is_none() && area.end >= end && area.access == Access::READ | Access::WRITE
        };
        let in_place = |s: u64| {
            let bits = page_bits(s, start, end);
            let slot = self.slots.get(s).filter(|slot| slot.mapped & bits == bits);
            slot.is_some_and(|slot| !slot.guarded && slot.held() == 0 && !slot.is_shared())
        };
        let mut slots = (start & !(SLOT - 1)..end).step_by(SLOT as usize);
        if !self.area_at(start).is_some_and(|(_, area)| is_simple(area))
            || !slots.all(in_place)
            || self.check_split(start, end).is_err()
        {
            return false;
        }
        if lazy {
            for (s, slot) in self.slots.range(start & !(SLOT - 1)..end) {
                slot.clear(page_bits(s, start, end));
            }
            self.ready.add(start, end);
        } else {
            if self.closed.bytes() + len > CLOSED_MAX {
                self.drop_closed();
            }
            // SAFETY: pages of this space's slots, all of which are mapped.
            if unsafe { platform().protect(start, len, Access::empty()) }.is_err() {
                return false;
            }
            self.closed.add(start, end);
        }
        self.split(start, end);
        self.areas.remove(&start);
        self.note_room(end);
        self.total -= len;
        true
    }

    /// Gives back the memory behind pages that were brought in by colour, which nothing shows any more.
    fn release_coloured(&mut self, start: u64, end: u64) {
        for (_, offset) in self.coloured.extract_if(start..end, |_, _| true) {
            self.resident -= 1;
            give_pages(offset, 0);
            breathe();
        }
    }

    /// Gives back the memory behind the slots' pages in a range, which the caller has unmapped, and that of coloured ones.
    fn release_slots(&mut self, start: u64, end: u64) {
        self.release_coloured(start, end);
        let resident = &mut self.resident;
        let empty = |s, slot: &mut Slot| {
            let bits = page_bits(s, start, end) & slot.mapped;
            slot.mapped &= !bits;
            slot.kept &= !bits;
            slot.clean &= !bits;
            slot.idle &= !bits;
            *resident -= u64::from(bits.count_ones());
            // What is mapped there next must not see this.
            if slot.mapped != 0 {
                slot.drop_pages(bits);
            }
            slot.mapped == 0
        };
        self.slots.take_if(start & !(SLOT - 1)..end, empty, |slot| {
            slot.release();
            breathe();
        });
    }

    /// Has `f` change the access to pages.
    fn protect_now(&mut self, f: impl FnOnce(&mut Vm, &mut Protecting) -> Result<()>) -> Result<()> {
        let mut runs = Protecting::new();
        let done = f(self, &mut runs);
        self.made(runs).and(done)
    }

    /// Ends changes of access. What the host refuses to change is unmapped, and has its access when it faults in again.
    fn made(&mut self, runs: Protecting) -> Result<()> {
        runs.end().into_iter().try_for_each(|(at, len)| self.unmap(at, at + len))
    }

    /// Calls `f` for each area's part of a range, in order, until it fails. ENOMEM: there was a hole. `over`: it goes on behind that.
    fn each_part(
        &mut self,
        start: u64,
        end: u64,
        over: bool,
        mut f: impl FnMut(&mut Vm, u64, u64) -> Result<()>,
    ) -> Result<()> {
        let (mut at, mut whole) = (start, true);
        while at < end {
            let part = self.area_at(at).map(|(_, area)| (at, area.end));
            let part = part.or_else(|| self.areas.range(at..end).next().map(|(s, area)| (*s, area.end)));
            whole &= part.is_some_and(|(s, _)| s == at);
            let Some((s, e)) = part.filter(|_| whole || over) else { break };
            f(self, s, e.min(end))?;
            at = e;
        }
        if whole { Ok(()) } else { Err(Errno::ENOMEM) }
    }

    /// Changes something about a part of an area, if that has to be. ENOMEM: there would be too many.
    fn change(
        &mut self,
        start: u64,
        end: u64,
        differs: impl Fn(&Area) -> bool,
        f: impl Fn(&mut Area),
    ) -> Result<()> {
        if !self.area_at(start).is_some_and(|(_, area)| differs(area)) {
            return Ok(());
        }
        self.check_split(start, end)?;
        self.split(start, end);
        let mut area = self.areas.remove(&start).expect("split there");
        f(&mut area);
        self.put_back(start, area);
        Ok(())
    }

    /// Does what is said of a part of an area. EINVAL: it can't be said of it.
    fn advise(&mut self, start: u64, end: u64, advice: Advice) -> Result<()> {
        let (_, area) = self.area_at(start).expect("a part of an area");
        let is_anonymous = matches!(area.kind, Kind::Anonymous);
        let possible = match advice {
            Advice::Discard | Advice::Cold => !area.locked,
            Advice::Free => !area.locked && is_anonymous,
            Advice::Wipe(true) => is_anonymous,
            Advice::DiscardLocked
            | Advice::Wipe(false)
            | Advice::Omit(_)
            | Advice::Undump(_)
            | Advice::Paging(_)
            | Advice::Other => true,
        };
        if !possible {
            return Err(Errno::EINVAL);
        }
        match advice {
            Advice::Discard | Advice::DiscardLocked | Advice::Free => self.discard(start, end),
            Advice::Omit(omitted) => self.set_at_fork(start, end, |at_fork| AtFork { omitted, ..at_fork }),
            Advice::Wipe(wiped) => self.set_at_fork(start, end, |at_fork| AtFork { wiped, ..at_fork }),
            Advice::Paging(how) => {
                self.change(start, end, |area| area.paging != Some(how), |area| area.paging = Some(how))
            }
            Advice::Undump(undumped) => {
                self.change(start, end, |area| area.undumped != undumped, |area| area.undumped = undumped)
            }
            Advice::Cold | Advice::Other => Ok(()),
        }
    }

    /// Changes what a fork makes of a part of an area.
    fn set_at_fork(&mut self, start: u64, end: u64, f: impl Fn(AtFork) -> AtFork) -> Result<()> {
        let differs = |area: &Area| f(area.at_fork) != area.at_fork;
        self.change(start, end, differs, |area| area.at_fork = f(area.at_fork))
    }

    /// What was said about an area goes for what continues it, too, so that they are one.
    fn treat_as(&mut self, other: &Area, start: u64, end: u64) {
        let said = |area: &Area| {
            (area.at_fork, area.undumped, area.paging, area.colours, area.locked, area.on_fault)
        };
        // It is an area of its own, or the end of one.
        let _ = self.change(
            start,
            end,
            |area| said(area) != said(other),
            |area| {
                (area.at_fork, area.undumped, area.paging, area.colours, area.locked, area.on_fault) =
                    said(other);
            },
        );
    }

    /// Changes access up to the first hole, as Linux does.
    fn protect(
        &mut self,
        start: u64,
        end: u64,
        access: Access,
        most_data: u64,
        runs: &mut Protecting,
    ) -> Result<()> {
        self.each_part(start, end, false, |vm, start, end| {
            let becomes_data =
                |(_, area): (u64, &Area)| !area.is_data() && is_data(area.shared, area.grows, access);
            if most_data != u64::MAX && vm.area_at(start).is_some_and(becomes_data) {
                vm.check_room(end - start, true, 0..0, Bounds { data: most_data, ..Bounds::NONE })?;
            }
            vm.protect_part(start, end, access, runs)
        })
    }

    /// Changes access to a part of an area.
    fn protect_part(&mut self, s: u64, e: u64, access: Access, runs: &mut Protecting) -> Result<()> {
        let (_, area) = self.area_at(s).expect("a part of an area");
        if area.access == access {
            return Ok(());
        }
        // The host's file that is going to be written through its mapping, as only what is open for that may be.
        let mut written = None;
        if area.shared && access.contains(Access::WRITE) {
            // EACCES if the file was not opened for writing.
            match &area.kind {
                Kind::File { file, .. } => written = file.host_file(true)?.filter(|_| area.direct),
                // Seals that came after the mapping don't hold for it.
                Kind::Object { file: Some(file), .. } if file.host_file(true) == Err(Errno::EACCES) => {
                    return Err(Errno::EACCES);
                }
                Kind::Object { .. } | Kind::Anonymous => {}
            }
        }
        self.check_split(s, e)?;
        self.split(s, e);
        let area = self.areas.get_mut(&s).expect("split there");
        let (was, was_plain) = (area.access, area.plain);
        area.access = access;
        area.plain &= !access.contains(Access::WRITE);
        let done = self.show_access(s, e, was, written, runs);
        let mut area = self.areas.remove(&s).expect("split there");
        if done.is_err() {
            // The host has left it as it was.
            (area.access, area.plain) = (was, was_plain);
        }
        self.put_back(s, area);
        done
    }

    /// Has the platform know of another access to an area than it had. `written`: the host's file that it maps, and that is going to be
    /// written.
    fn show_access(
        &mut self,
        s: u64,
        e: u64,
        was: Access,
        written: Option<i32>,
        runs: &mut Protecting,
    ) -> Result<()> {
        let area = &self.areas[&s];
        let (access, direct) = (area.access, area.direct);
        let runs_now = area.plain && access.contains(Access::EXEC) && !was.contains(Access::EXEC);
        if direct && !area.shared && access.contains(Access::WRITE) {
            // A private page of a file that may be written becomes ours when it is next touched.
            self.hide_direct(s, e)?;
            self.areas.get_mut(&s).expect("just looked at").direct = false;
            self.protect_slots(s, e, access, runs);
        } else if direct {
            if runs_now {
                self.rewrite(s, e);
            }
            match (written, &self.areas[&s].kind) {
                (Some(fd), Kind::File { offset, .. }) => {
                    let backing = Backing::File { fd, offset: *offset, shared: true };
                    // SAFETY: a user range, of the same file as before.
                    unsafe { platform().map(s, e - s, access, backing)? };
                }
                // SAFETY: mapped in full: by the file, or by slots over it.
                _ => unsafe { platform().protect(s, e - s, access)? },
            }
        } else if let Kind::Object { .. } = area.kind {
            // Pages that were touched are mapped, others not: drop all, they fault in again.
            self.unmap(s, e)?;
        } else {
            if runs_now {
                self.rewrite(s, e);
            }
            self.protect_slots(s, e, access, runs);
        }
        Ok(())
    }

    fn fork(&mut self, hot: &[u64]) -> Result<AddressSpace> {
        let mut child = Vm {
            brk_start: self.brk_start,
            brk: self.brk,
            paging: self.paging,
            heap_paging: self.heap_paging,
            pieces: self.pieces,
            trampolines: self.trampolines,
            windows: self.windows.clone(),
            trampolines_of: self.trampolines_of.clone(),
            texts: self.texts.clone(),
            rewritten: self.rewritten,
            ..Vm::new(self.top)
        };
        self.drop_spare_parts();
        self.next_ready = SLOT;
        let mut guards = Protecting::new();
        let mut budget = if hot.is_empty() { 0 } else { COPIED_AT_FORK };
        let mut slots = InOrder::new();
        for (&start, area) in &self.areas {
            if area.at_fork.omitted {
                continue;
            }
            if let Kind::Object { object, .. } = &area.kind {
                object.mapped(1);
            }
            child.total += area.end - start;
            // Locks are not inherited, and its pager is not asked for the child.
            child.areas.insert(start, Area { locked: false, on_fault: false, pager: None, ..area.clone() });
            if area.at_fork.wiped {
                continue;
            }
            for (s, slot) in self.slots.range(start & !(SLOT - 1)..area.end) {
                let bits = page_bits(s, start, area.end) & slot.mapped;
                if bits == 0 {
                    continue;
                }
                // Another area may have its beginning.
                if slots.get_mut(s).is_none() {
                    let mut is_hot = hot.iter().any(|at| at & !(SLOT - 1) == s);
                    let pages = slot.mapped.count_ones();
                    if !is_hot && pages <= budget && !slot.guarded && self.is_writable(s) {
                        budget -= pages;
                        is_hot = true;
                    }
                    // What of it the child is to have is found out area by area.
                    let copy = match is_hot.then(|| copy_of(slot)) {
                        Some(Ok(copy)) => {
                            Slot { mapped: 0, stale: u16::MAX, kept: 0, clean: 0, idle: 0, ..copy }
                        }
                        _ => {
                            memory().sharers().add(slot.offset());
                            let stale = slot.mapped | slot.stale;
                            Slot { mapped: 0, stale, guarded: true, kept: 0, clean: 0, idle: 0, ..*slot }
                        }
                    };
                    slots.push(s, copy);
                }
                let copy = slots.get_mut(s).expect("it was looked at, or has just been made");
                copy.mapped |= bits;
                copy.stale &= !bits;
                child.resident += u64::from(bits.count_ones());
                // Not those that have been guarded since another fork.
                let written =
                    copy.frame == slot.frame && !slot.guarded && area.access.contains(Access::WRITE);
                // Pages of which it is to be told whether they are used count as used.
                if written || slot.idle & bits != 0 {
                    guards.add(s, bits, unwritable(area.access));
                }
            }
            breathe();
        }
        child.slots = slots.end();
        child.peak = child.resident;
        for (_, slot) in self.slots.iter_mut() {
            // What was copied and could not be used can be read again, and is looked at like any other when it is written to.
            slot.guarded |= slot.is_shared() || slot.idle != 0;
            slot.idle = 0;
        }
        let mut child = AddressSpace { vm: Mutex::new(child) };
        if let Err(e) = self.made(guards) {
            // Some may still be written to: nothing may be shared, and the next fork has to guard all.
            drop(child);
            self.slots.iter_mut().for_each(|(_, slot)| slot.guarded = false);
            return Err(e);
        }
        self.copy_coloured(child.vm.get_mut())?;
        Ok(child)
    }

    /// Gives the child of a fork copies of what was brought in by colour, of the same colours if there are such pages.
    fn copy_coloured(&self, child: &mut Vm) -> Result<()> {
        for (&at, &from) in &self.coloured {
            let colours = match child.area_at(at) {
                Some((_, area)) if !area.at_fork.wiped => area.colours,
                _ => continue,
            };
            let to = take_coloured(colours, false).ok_or(Errno::ENOMEM)?;
            // SAFETY: the page is this space's, whose program may be writing to it; the other was just taken.
            unsafe {
                memory().address(to).copy_from_nonoverlapping(memory().address(from), PAGE as usize);
            }
            child.coloured.insert(at, to);
            child.count_resident(1);
            breathe();
        }
        Ok(())
    }

    /// May a part of a slot be written to?
    fn is_writable(&self, s: u64) -> bool {
        let first = self.area_at(s).map_or(s, |(start, _)| start);
        self.areas.range(first..s + SLOT).any(|(_, area)| area.access.contains(Access::WRITE))
    }

    fn show_all(&mut self) -> Result<()> {
        let mut batch = Batch::default();
        // What lies side by side, in memory, too, is mapped together, whatever areas it belongs to.
        let mut runs = Vec::new();
        let mut last = Access::empty();
        // Of what it can write to, and is going to.
        let mut populated = COPIED_AT_FORK;
        for (&start, area) in &self.areas {
            let access = area.access.difference(Access::POPULATE);
            if area.direct
                && let Kind::File { file, offset } = &area.kind
                && let Some(fd) = file.host_file(area.shared && access.contains(Access::WRITE))?
            {
                // Below what stands in slots.
                batch.send()?;
                let backing = Backing::File { fd, offset: *offset, shared: area.shared };
                // SAFETY: a user range.
                unsafe { platform().map(start, area.end - start, access, backing)? };
            }
            // Those without access, too: changes of access find them in place.
            for (s, slot) in self.slots.range_mut(start & !(SLOT - 1)..area.end) {
                let mut allowed = slot.allowed(access);
                // The others may have let go of it since.
                slot.guarded &= !allowed.contains(Access::WRITE);
                let bits = slot.mapped & page_bits(s, start, area.end);
                if allowed.contains(Access::WRITE) && bits.count_ones() <= populated {
                    populated -= bits.count_ones();
                    allowed |= Access::POPULATE;
                }
                if allowed != last {
                    show_runs(&mut batch, &mut runs, last)?;
                    last = allowed;
                }
                add_runs(&mut runs, s, slot.frame, bits);
            }
            for (&addr, &offset) in self.coloured.range(start..area.end) {
                // SAFETY: a user range; the page is this space's.
                unsafe { batch.add(Change::Map { addr, len: PAGE, access, offset })? };
            }
            breathe();
        }
        show_runs(&mut batch, &mut runs, last)?;
        batch.send()
    }

    /// Runs of pages in slots inside a range: address, length, offset in memory.
    fn runs(&self, start: u64, end: u64) -> Vec<(u64, u64, u64)> {
        let mut runs: Vec<(u64, u64, u64)> = Vec::new();
        for (s, slot) in self.slots.range(start & !(SLOT - 1)..end) {
            add_runs(&mut runs, s, slot.frame, slot.mapped & page_bits(s, start, end));
        }
        runs
    }

    /// Changes the access to the slots' pages in a range, as far as they may have it.
    fn protect_slots(&mut self, start: u64, end: u64, access: Access, runs: &mut Protecting) {
        for (s, slot) in self.slots.range_mut(start & !(SLOT - 1)..end) {
            slot.guarded = slot.allowed(access) != access;
            runs.add_slot(s, slot, page_bits(s, start, end), access);
        }
        for at in self.coloured.range(start..end).map(|(at, _)| *at) {
            runs.add(at, 1, access);
        }
    }

    /// Unmaps the parts of a range that no slot's page lies over. ENOMEM: there are too many mappings, and all is as it was.
    fn hide_direct(&mut self, start: u64, end: u64) -> Result<()> {
        let runs = self.runs(start, end);
        if runs.is_empty() {
            return self.unmap(start, end);
        }
        let mut batch = Batch::default();
        let mut hidden = Ok(());
        let mut at = start;
        for (addr, len, _) in runs.into_iter().chain([(end, 0, 0)]) {
            if addr > at {
                // SAFETY: a user range.
                hidden = hidden.and(unsafe { batch.add(Change::Unmap { addr: at, len: addr - at }) });
            }
            at = addr + len;
        }
        // The slots' pages are mappings of their own, so that all of it can go; they fault in again.
        hidden.and(batch.send()).or_else(|_| self.unmap(start, end))
    }

    /// Drops the contents of a part of an area, if it is private.
    fn discard(&mut self, start: u64, end: u64) -> Result<()> {
        let (_, area) = self.area_at(start).expect("a part of an area");
        // Of code with rewritten sites there is nothing to drop: it is its file's.
        if area.shared || area.direct || area.plain && self.has_windows(start, end) {
            return Ok(());
        }
        // Out of the page tables first, then back to the pool.
        let is_coloured = self.coloured.range(start..end).next().is_some();
        if !self.clear_few(start, end) && (is_coloured || !self.runs(start, end).is_empty()) {
            self.unmap(start, end)?;
            self.release_slots(start, end);
        }
        Ok(())
    }

    /// Discards a range of anonymous memory by zeroing it where it is, if there are only a few pages of a slot that stays: as at the
    /// end of each thread, whose stack is used again. To unmap them would give nothing back, and cost a fault. False: it is not such a
    /// range.
    fn clear_few(&mut self, start: u64, end: u64) -> bool {
        let is_plain = |area: &Area| matches!(area.kind, Kind::Anonymous) && area.pager.is_none();
        if !self.area_at(start).is_some_and(|(_, area)| is_plain(area) && area.colours.is_none()) {
            return false;
        }
        let mut slots = self.slots.range_mut(start & !(SLOT - 1)..end).filter_map(|(s, slot)| {
            let bits = page_bits(s, start, end) & slot.mapped;
            (bits != 0).then_some((slot, bits))
        });
        let (Some((slot, bits)), None) = (slots.next(), slots.next()) else { return false };
        if slot.mapped == bits || bits.count_ones() > FEW || slot.is_shared() {
            return false;
        }
        slot.clear(bits);
        slot.clean &= !bits;
        true
    }

    /// Does a rewritten window lie in a range, in part or wholly?
    fn has_windows(&self, start: u64, end: u64) -> bool {
        let last = self.windows.range(..end).next_back();
        let texts = self.texts.range(..end).rev().take_while(|(_, shown)| shown.end > start);
        last.is_some_and(|(at, w)| at + u64::from(w.len) > start)
            || texts
                .filter_map(|(at, shown)| shown.window_before(*at, end - 1))
                .any(|(at, w)| at + u64::from(w.len) > start)
    }

    fn brk(&mut self, to: u64, most: Bounds) -> u64 {
        if to < self.brk_start || to.saturating_sub(self.brk_start) > most.heap {
            return self.brk;
        }
        let (old, new) = (page_up(self.brk), page_up(to));
        if new > old && self.check_room(new - old, true, 0..0, most).is_err() {
            return self.brk;
        }
        if new > old {
            // A gap of a page stays between the heap and the next mapping.
            if !is_user_range(old, new - old + PAGE) || !self.is_free(old, new + PAGE) {
                return self.brk;
            }
            let mut at = old;
            while at < new {
                // What is ready, by itself.
                if let Some((_, end)) = self.closed.last_in(at, at + PAGE) {
                    self.open(at, end.min(new));
                }
                let ready = self.ready.last_in(at, at + PAGE);
                let end = ready.map_or(new, |(_, end)| end.min(new));
                let request = MapRequest {
                    addr: at,
                    len: end - at,
                    access: Access::READ | Access::WRITE,
                    shared: false,
                    kind: Kind::Anonymous,
                    place: Place::FixedNoReplace,
                    name: HEAP,
                    paging: self.heap_paging,
                    ..MapRequest::default()
                };
                if self.map(request).is_err() {
                    // What is left of it is the heap's no more, and in nobody's way.
                    let _ = self.remove(old, at);
                    return self.brk;
                }
                at = end;
            }
        } else if new < old {
            let lazy = LAZY.load(Ordering::Relaxed);
            if self.heap_ready().1 - new > MADE_READY_MAX {
                self.drop_ready_heap();
            }
            // Who goes up and down finds it in place again.
            if !self.close(new, old, HEAP, lazy) {
                self.drop_ready_heap();
                if let Some((_, closed)) = self.closed.last_in(old, old + PAGE) {
                    self.drop_spare(old, closed);
                }
                if self.remove(new, old).is_err() {
                    return self.brk;
                }
            }
        }
        self.brk = to;
        to
    }

    fn remap(&mut self, request: Remap) -> Result<u64> {
        let Remap { old, old_len, new_len, may_move, fixed, stays, most_locked, most, most_private } =
            request;
        if let Some(new) = fixed.or(stays)
            && (!new.is_multiple_of(PAGE)
                || !is_user_range(new, new_len)
                || (new < old.saturating_add(old_len) && old < new + new_len))
        {
            return Err(Errno::EINVAL);
        }
        let Some((start, area)) = self.area_at(old) else { return Err(Errno::EFAULT) };
        let area = area.clone();
        if old_len == 0 && !area.shared {
            return Err(Errno::EINVAL);
        }
        let shrinks = fixed.is_none() && stays.is_none() && new_len <= old_len && old_len > 0;
        if !is_user_range(old, old_len) {
            return Err(Errno::EINVAL);
        }
        // What is cut off may be anything.
        if !shrinks && old_len > area.end - old {
            return Err(Errno::EFAULT);
        }
        let grow = new_len.saturating_sub(old_len);
        if !shrinks {
            let ends = match &area.kind {
                Kind::Anonymous => Some(0),
                Kind::File { offset, .. } | Kind::Object { offset, .. } => {
                    (offset + (old - start)).checked_add(new_len)
                }
            };
            if ends.is_none_or(|end| end > i64::MAX as u64) {
                return Err(Errno::EINVAL);
            }
            // To count goes over all areas.
            let is_counted = area.locked && grow > 0 && most_locked != u64::MAX;
            if is_counted && self.locked_in(0, USER_MAX).saturating_add(grow) > most_locked {
                return Err(Errno::EAGAIN);
            }
            let is_reserved = !area.shared && area.access.contains(Access::WRITE);
            let more = if stays.is_some() { new_len } else { grow };
            let replaced = fixed.map_or(0..0, |new| new..new + new_len);
            if more > 0 && self.check_room(more, area.is_data(), replaced, most).is_err()
                || is_reserved && grow > most_private
                || self.areas.len() + REMAPPED > AREAS_MAX
            {
                return Err(Errno::ENOMEM);
            }
        }
        if old_len == 0 {
            // A second view of a shared mapping.
            if !may_move {
                return Err(Errno::ENOMEM);
            }
            let new = self.map(MapRequest {
                addr: fixed.unwrap_or(0),
                len: new_len,
                access: area.access,
                shared: true,
                kind: area.kind.advanced(old - start),
                place: if fixed.is_some() { Place::Fixed } else { Place::Hint },
                name: area.name,
                paging: area.paging,
                locked: area.locking() == Locking::Now,
                ..MapRequest::default()
            })?;
            self.treat_as(&area, new, new + new_len);
            return Ok(new);
        }
        if shrinks {
            if new_len < old_len {
                self.remove(old + new_len, old + old_len)?;
            }
            return Ok(old);
        }
        if fixed.is_none() && stays.is_none() {
            let at_end = old + old_len == area.end;
            if at_end && is_user_range(area.end, grow) && self.is_free(area.end, area.end + grow) {
                self.lengthen(start, &area, grow)?;
                return Ok(old);
            }
            if !may_move {
                return Err(Errno::ENOMEM);
            }
        }
        let new = match fixed {
            Some(new) => {
                self.remove(new, new + new_len)?;
                if new_len < old_len {
                    self.remove(old + new_len, old + old_len)?;
                }
                new
            }
            None => {
                let hint = page_up(stays.unwrap_or(0));
                let fits = hint >= USER_MIN && is_user_range(hint, new_len);
                if fits && self.is_free(hint, hint + new_len) {
                    hint
                } else {
                    // At the same place in its block, so that chunks can move as they are.
                    let slack = old % BLOCK;
                    let found = find_free(&self.areas, new_len + BLOCK + slack, self.top, USER_MIN, BLOCK);
                    found.map(|f| f + slack).ok_or(Errno::ENOMEM)?
                }
            }
        };
        // Nor in parts of slots that chunks are taken for.
        self.drop_spare(new & !(SLOT - 1), (new + new_len).next_multiple_of(SLOT));
        let moved = old_len.min(new_len);
        let kind = area.kind.advanced(old - start);
        let map_direct = |at: u64, len: u64| -> Result<bool> {
            if area.direct
                && let Kind::File { file, offset } = &kind
                && let Some(fd) = file.host_file(area.shared && area.access.contains(Access::WRITE))?
            {
                let backing = Backing::File { fd, offset: *offset, shared: area.shared };
                // SAFETY: a user range in which nothing is mapped, or only what goes.
                unsafe { platform().map(at, len, area.access, backing)? };
                return Ok(true);
            }
            Ok(false)
        };
        // First all that can fail. Who touches pages that move waits for this space's lock from then on.
        let mut direct = Ok(false);
        let ready = self.take_for_move(old, new, moved, area.shared).and_then(|()| {
            direct = map_direct(new, new_len);
            direct.and_then(|_| if area.shared { Ok(()) } else { self.unmap(old, old + moved) })
        });
        if let Err(e) = ready {
            if direct == Ok(true) {
                // Nothing else is there, so that it goes.
                let _ = self.unmap(new, new + new_len);
            }
            self.drop_empty(new, new + moved);
            return Err(e);
        }
        // The new area, empty; then its pages; then away with the old one.
        if let Kind::Object { object, .. } = &kind {
            object.mapped(1);
        }
        self.total += new_len;
        // What moves, its pager is no longer asked about.
        let (end, direct) = (new + new_len, direct == Ok(true));
        self.insert(new, Area { end, kind: kind.clone(), direct, pager: None, ..area.clone() });
        if !area.shared {
            self.move_coloured(old, new, moved, area.access);
            self.move_slots(old, new, moved, area.access);
        }
        if stays.is_some() {
            if !area.shared {
                // Its pages have gone, and with them rewritten sites. Without the file's own it is read.
                self.leave(old, old + old_len);
                let direct = map_direct(old, old_len) == Ok(true);
                let _ = self.change(
                    old,
                    old + old_len,
                    |area| area.direct != direct,
                    |area| area.direct = direct,
                );
            }
            // Linux unlocks it. There is room for the areas.
            let _ = self.change(old, old + old_len, |area| area.locked, |area| area.lock(Locking::No));
        } else if let Err(e) = self.remove(old, old + moved) {
            // The middle of a file's own shared mapping: nothing has moved.
            let _ = self.remove(new, new + new_len);
            return Err(e);
        }
        if area.locking() == Locking::Now {
            // As far as it can be.
            let _ = self.populate(new, new + new_len, None);
        }
        Ok(new)
    }

    /// Makes an area longer, where nothing is mapped.
    fn lengthen(&mut self, start: u64, area: &Area, grow: u64) -> Result<()> {
        let end = area.end;
        if let Kind::File { .. } = area.kind {
            // The platform may have to map more of it, and what runs is rewritten.
            self.map(MapRequest {
                addr: end,
                len: grow,
                access: area.access,
                shared: area.shared,
                kind: area.kind.advanced(end - start),
                place: Place::FixedNoReplace,
                name: area.name,
                paging: area.paging,
                locked: area.locking() == Locking::Now,
                ..MapRequest::default()
            })?;
            self.treat_as(area, end, end + grow);
            return Ok(());
        }
        let is_ready = area.is_simple()
            && self.takes_ready(grow, area.paging.unwrap_or(self.paging))
            && self.ready.take(end, end + grow);
        if !is_ready {
            self.drop_spare(end, end + grow);
        }
        let mut area = self.areas.remove(&start).expect("the caller found it");
        let populate = area.locking() == Locking::Now
            || !area.locked
                && self.comes_ahead(area.paging, area.is_simple() && matches!(area.name, "" | HEAP), grow);
        area.end += grow;
        self.total += grow;
        self.put_back(start, area);
        if is_ready {
            self.count_resident(0);
        } else if populate {
            // As far as it can be.
            let _ = self.populate(end, end + grow, None);
        }
        Ok(())
    }

    /// May so much private memory be taken from what is ready? What is brought in on demand is to fault.
    fn takes_ready(&self, len: u64, how: Paging) -> bool {
        len <= READY_MAX && how != Paging::Demand
    }

    /// Is memory brought in when it is mapped? `usual`: of a kind that is where the space's memory is.
    fn comes_ahead(&self, paging: Option<Paging>, usual: bool, len: u64) -> bool {
        paging.unwrap_or(self.paging) == Paging::Populate
            && (paging.is_some() || usual)
            && len <= memory().total().saturating_sub(memory().used()) / 2
    }

    /// May so much more be mapped, in place of what is in a range? ENOMEM: no. Where nothing is limited nothing is counted.
    fn check_room(&self, len: u64, is_data: bool, replaced: Range<u64>, most: Bounds) -> Result<()> {
        if most.all == u64::MAX && (most.data == u64::MAX || !is_data) {
            return Ok(());
        }
        let goes = self.bytes_in(replaced.start, replaced.end, |_| true);
        // As on Linux, whatever goes makes room for data.
        let fits = |have: u64, most: u64| (have + len).saturating_sub(goes) <= most;
        let fits =
            fits(self.total, most.all) && (!is_data || most.data == u64::MAX || fits(self.data(), most.data));
        if fits { Ok(()) } else { Err(Errno::ENOMEM) }
    }

    /// As [`AddressSpace::data`].
    fn data(&self) -> u64 {
        self.bytes_in(0, USER_MAX, Area::is_data)
    }

    /// As [`AddressSpace::locked`].
    fn locked_in(&self, start: u64, end: u64) -> u64 {
        self.bytes_in(start, end, |area| area.locked)
    }

    /// Bytes of a range that such areas have.
    fn bytes_in(&self, start: u64, end: u64, counts: impl Fn(&Area) -> bool) -> u64 {
        let areas = self.areas.range(..end).rev().take_while(|(_, area)| area.end > start);
        areas.filter(|(_, area)| counts(area)).map(|(s, area)| area.end.min(end) - s.max(&start)).sum()
    }

    /// Takes the pages of a private area away, which go on elsewhere.
    fn leave(&mut self, start: u64, end: u64) {
        if self.has_slots(start, end) {
            self.drop_pages(start, end);
        }
        self.note_room(end);
        self.forget_windows(start, end);
    }

    /// Moves the coloured pages of `[old, old + len)`, which are not mapped any more, to `new`.
    fn move_coloured(&mut self, old: u64, new: u64, len: u64, access: Access) {
        let mut batch = Batch::default();
        let moved: Vec<(u64, u64)> = self.coloured.extract_if(old..old + len, |_, _| true).collect();
        for (at, offset) in moved {
            let addr = at - old + new;
            self.coloured.insert(addr, offset);
            // What the host refuses faults in.
            // SAFETY: a user range; the page is this space's.
            let _ = unsafe { batch.add(Change::Map { addr, len: PAGE, access, offset }) };
        }
        let _ = batch.send();
    }

    /// Does a slot's chunk move with its pages, all of which do, by `by` bytes? Not one in which others arrive, in a part of `[new, end)`.
    fn moves_whole(&self, s: u64, slot: &Slot, bits: u16, by: u64, new: u64, end: u64) -> bool {
        by.is_multiple_of(SLOT)
            && bits == slot.mapped
            && (s + SLOT <= new || s >= end)
            && !self.slots.contains(s.wrapping_add(by))
    }

    /// Takes chunks for those pages of `[old, old + len)` that will be copied when they move to `new`. ENOMEM: there are not so many.
    fn take_for_move(&mut self, old: u64, new: u64, len: u64, shared: bool) -> Result<()> {
        let by = new.wrapping_sub(old);
        let mut next = old & !(SLOT - 1);
        while !shared
            && next < old + len
            && let Some((s, slot)) = self.slots.range(next..old + len).next()
        {
            next = s + SLOT;
            let bits = page_bits(s, old, old + len) & slot.mapped;
            if bits == 0 || self.moves_whole(s, slot, bits, by, new, new + len) {
                continue;
            }
            // Its pages go to two slots at most.
            let (first, last) = (bits.trailing_zeros(), bits.ilog2());
            for page in [first, last].map(u64::from) {
                let to = s.wrapping_add(page * PAGE).wrapping_add(by) & !(SLOT - 1);
                self.own_slot(to)?;
                self.slot_frame(to)?;
            }
        }
        Ok(())
    }

    /// Gives back the chunks of slots in a range that have no pages.
    fn drop_empty(&mut self, start: u64, end: u64) {
        let range = start & !(SLOT - 1)..end;
        self.slots.take_if(range, |_, slot| slot.mapped == 0, Slot::release);
    }

    /// Moves the pages of `[old, old + len)`, which are not mapped any more, to `new`, where chunks have been taken for those that
    /// are copied.
    fn move_slots(&mut self, old: u64, new: u64, len: u64, access: Access) {
        let by = new.wrapping_sub(old);
        let mut batch = Batch::default();
        let slots: Vec<(u64, Slot)> =
            self.slots.range(old & !(SLOT - 1)..old + len).map(|(s, v)| (s, *v)).collect();
        for (s, slot) in slots {
            let bits = page_bits(s, old, old + len) & slot.mapped;
            if bits == 0 {
                continue;
            }
            // What the host refuses faults in.
            if self.moves_whole(s, &slot, bits, by, new, new + len) {
                let target = s.wrapping_add(by);
                self.slots.remove(s);
                let moved = Slot { guarded: false, kept: 0, clean: 0, idle: 0, ..slot };
                self.slots.insert(target, moved);
                let _ = show_in(&mut batch, target, &moved, bits, access);
                continue;
            }
            for page in (0..16u64).filter(|page| bits & 1 << page != 0) {
                let to = s.wrapping_add(page * PAGE).wrapping_add(by);
                let (slot_to, page_to) = (to & !(SLOT - 1), to % SLOT / PAGE);
                let there = self.slots.get_mut(slot_to).expect("a chunk was taken for it");
                let from = memory().address(slot.offset() + page * PAGE);
                let dest = memory().address(there.offset() + page_to * PAGE);
                // SAFETY: both pages are this space's, and mapped nowhere; they differ.
                unsafe { core::ptr::copy_nonoverlapping(from, dest, PAGE as usize) };
                there.mapped |= 1 << page_to;
                there.stale &= !(1 << page_to);
                there.guarded = false;
                let there = *there;
                self.resident += 1;
                let _ = show_in(&mut batch, slot_to, &there, 1 << page_to, access);
            }
        }
        let _ = batch.send();
    }

    /// The chunk of a slot, taken now if there is none.
    fn slot_frame(&mut self, slot: u64) -> Result<u32> {
        match self.slots.get(slot) {
            Some(s) => Ok(s.frame),
            None => self.take_slot(slot).map(|s| s.frame),
        }
    }

    /// A chunk for a slot that has none.
    fn take_slot(&mut self, slot: u64) -> Result<Slot> {
        self.take_slot_of(slot, take_pages, 0)
    }

    /// The same of pages that are taken in this way, of which so many are stale.
    fn take_slot_of(&mut self, slot: u64, take: fn(u32) -> Option<u64>, stale: u16) -> Result<Slot> {
        let offset = take_hard(CHUNK_ORDER, take).or_else(|| {
            // What this space has and does not use.
            self.drop_spare(0, USER_MAX);
            take(CHUNK_ORDER)
        });
        let offset = offset.ok_or(Errno::ENOMEM)?;
        let taken = Slot { stale, ..Slot::new((offset / PAGE) as u32, 0) };
        self.slots.insert(slot, taken);
        Ok(taken)
    }

    /// Gives a slot whose chunk others show, too, a chunk of its own with the same contents, which may be written to.
    fn own_slot(&mut self, s: u64) -> Result<()> {
        let Some(old) = self.slots.get(s).copied().filter(Slot::is_shared) else { return Ok(()) };
        let block = s & !(BLOCK - 1);
        if (self.is_in_too_many_pieces() || self.is_copied_in_part(block)) && self.own_block(block)? {
            return Ok(());
        }
        let mut new = copy_of(&old)?;
        match self.show_instead(s, &new) {
            Ok(()) => {}
            // What the processor has noted of them is gone.
            Err(Unshown::Hidden) => new.forget_told(),
            Err(Unshown::Stays) => {
                new.release();
                return Err(Errno::ENOMEM);
            }
        }
        self.slots.insert(s, new);
        old.release();
        Ok(())
    }

    /// One more copy is going to be made: has the host too many mappings for that to be one of its own?
    fn is_in_too_many_pieces(&mut self) -> bool {
        // Itself, and what it lies in the middle of.
        self.pieces += 2;
        if self.pieces <= PIECES_MAX {
            return false;
        }
        let mut slots = 0;
        let mut expected = None;
        for (s, slot) in self.slots.iter() {
            slots += u64::from(expected != Some((s, u64::from(slot.frame), slot.guarded)));
            slots += if slot.held() != 0 && slot.held() != slot.mapped { 2 } else { 0 };
            expected = Some((s + SLOT, u64::from(slot.frame) + SLOT / PAGE, slot.guarded));
        }
        self.pieces = slots + self.areas.len() as u64;
        self.pieces > PIECES_MAX
    }

    /// Have so many slots of a block chunks of their own, in pieces, that the rest is copied with the next? A chunk that is cut out of a
    /// block's mapping costs the host three times as much as its share of the block, and who writes here and there comes by all of
    /// them.
    fn is_copied_in_part(&self, block: u64) -> bool {
        let slots = self.slots.range(block..block + BLOCK);
        slots.filter(|(_, slot)| !slot.is_shared()).take(COPIED).count() == COPIED
    }

    /// Puts a whole block of memory behind a block of addresses, in place of what is in its slots. False: it is not all in one
    /// area of anonymous memory, or there is no block.
    fn own_block(&mut self, block: u64) -> Result<bool> {
        let Some((_, area)) = self.area_at(block) else { return Ok(false) };
        let access = area.access;
        if area.end < block + BLOCK
            || !matches!(area.kind, Kind::Anonymous)
            || self.keeps(block, block + BLOCK)
        {
            return Ok(false);
        }
        let Some(offset) = take_pages_dirty(BLOCK_ORDER) else { return Ok(false) };
        // What is this space's alone, other threads may be writing to: from here on they wait for its lock.
        let mut guards = Protecting::new();
        for (s, slot) in self.slots.range(block..block + BLOCK).filter(|(_, slot)| !slot.is_shared()) {
            guards.add(s, slot.mapped, unwritable(access));
        }
        if self.made(guards).is_err() {
            give_pages(offset, BLOCK_ORDER);
            return Ok(false);
        }
        for n in 0..BLOCK / SLOT {
            let old = self.slots.get(block + n * SLOT).copied().unwrap_or_default();
            old.copy_to(offset + n * SLOT);
            Slot::new(((offset + n * SLOT) / PAGE) as u32, 0).clear(!old.mapped);
            self.count_resident(u64::from((!old.mapped).count_ones()));
        }
        let backing = Backing::Memory { offset };
        // SAFETY: a user range; the block is this space's from now on.
        if unsafe { platform().map(block, BLOCK, access | Access::POPULATE, backing) }.is_err() {
            // As in `show_instead`: they fault in again.
            self.unmap(block, block + BLOCK).inspect_err(|_| give_pages(offset, BLOCK_ORDER))?;
        }
        for n in 0..BLOCK / SLOT {
            let new = Slot::new((offset / PAGE + n * (SLOT / PAGE)) as u32, u16::MAX);
            if let Some(old) = self.slots.insert(block + n * SLOT, new) {
                old.release();
            }
            breathe();
        }
        Ok(true)
    }

    /// A guarded slot's chunk is no longer shared: it may be written to, and so may others near by of which that is true.
    fn lift_guards(&mut self, s: u64, start: u64, area: &Area) {
        let from = s.saturating_sub(AROUND * SLOT).max(start & !(SLOT - 1));
        let to = (s + AROUND * SLOT).min(area.end);
        let mut runs = Protecting::new();
        for (at, slot) in self.slots.range_mut(from..to) {
            let bits = page_bits(at, start, area.end) & slot.mapped;
            if slot.guarded && bits == slot.mapped && !slot.is_shared() {
                slot.guarded = false;
                runs.add_slot(at, slot, bits, area.access);
            }
        }
        // What the host keeps as it was faults again.
        let _ = self.made(runs);
    }

    /// Is this page in a slot, and mapped?
    fn is_in_slot(&self, addr: u64) -> bool {
        let slot = self.slots.get(addr & !(SLOT - 1));
        slot.is_some_and(|slot| slot.mapped & 1 << (addr % SLOT / PAGE) != 0)
    }

    /// Is this page in place, in a slot or by its colour?
    fn is_mapped(&self, addr: u64) -> bool {
        self.is_in_slot(addr) || self.coloured.contains_key(&page_down(addr))
    }

    /// Where a page that is in place lies in the cell's memory.
    fn offset_of(&self, addr: u64) -> Option<u64> {
        let in_slot =
            || self.slots.get(addr & !(SLOT - 1)).map(|slot| slot.offset() + page_down(addr % SLOT));
        self.coloured.get(&page_down(addr)).copied().or_else(in_slot)
    }

    fn set_colours(&mut self, start: u64, end: u64, colours: Option<Colours>) -> Result<()> {
        if !self.covered(start, end) {
            return Err(Errno::ENOMEM);
        }
        let can_be = |area: &Area| {
            matches!(area.kind, Kind::Anonymous) && !area.shared && !area.grows && area.pager.is_none()
        };
        if !self.overlapping(start, end).iter().all(|s| can_be(&self.areas[s])) {
            return Err(Errno::EINVAL);
        }
        self.unmap(start, end)?;
        self.release_slots(start, end);
        self.change_areas(start, end, |area| area.colours = colours)
    }

    /// Brings in a page by its colour. `surely`: it is of another one rather not there at all.
    fn fault_coloured(
        &mut self,
        addr: u64,
        access: Access,
        colours: Colours,
        only: bool,
    ) -> core::result::Result<(), Denied> {
        let at = page_down(addr);
        let offset = match self.coloured.get(&at) {
            // Another thread was faster.
            Some(offset) => *offset,
            None => {
                let offset = take_coloured(Some(colours), only).ok_or(Denied::NoMemory)?;
                self.coloured.insert(at, offset);
                self.count_resident(1);
                offset
            }
        };
        self.put(at, PAGE, access, offset)
    }

    /// Brings in a part of an area, for reading, writing, or what it allows.
    fn populate(&mut self, start: u64, end: u64, write: Option<bool>) -> core::result::Result<(), Denied> {
        let mut at = start;
        while at < end {
            let (_, area) = self.area_at(at).expect("a part of an area");
            if write == Some(false) && !area.access.contains(Access::READ) {
                // Linux asks for the access itself here, not for what comes with others.
                return Err(Denied::Access);
            }
            let write = write.unwrap_or(area.access.contains(Access::WRITE));
            let need = if write { Access::WRITE } else { Access::READ };
            if let Some(colours) = area.colours
                && area.allows(need)
                && !self.is_mapped(at)
            {
                let access = area.access;
                self.fault_coloured(at, access, colours, true)?;
            }
            let (_, area) = self.area_at(at).expect("as above");
            let guarded = self.slots.get(at & !(SLOT - 1)).is_some_and(|slot| slot.guarded);
            if !area.allows(need) || !self.is_mapped(at) || write && guarded {
                self.fault(at, write, false)?;
            }
            at = self.populated_to(at, end);
            breathe();
        }
        Ok(())
    }

    /// The first page behind one that was brought in that was not brought in with it. `end`: of a range to be brought in.
    fn populated_to(&self, at: u64, end: u64) -> u64 {
        let Some((_, area)) = self.area_at(at) else { return at + PAGE };
        if let Kind::Object { .. } = area.kind {
            // It has just faulted.
            return self.shown[0].0.max(at + PAGE);
        }
        if area.colours.is_some() {
            return at + PAGE;
        }
        match self.slots.get(at & !(SLOT - 1)) {
            Some(slot) if self.is_mapped(at) => {
                at + u64::from((slot.mapped >> (at % SLOT / PAGE)).trailing_ones()) * PAGE
            }
            // The host's own: it tells by its last page whether there is a file behind it.
            _ => (at + SLOT).min((end - PAGE).max(at + PAGE)),
        }
    }

    /// As [`AddressSpace::grow`].
    fn grow(&mut self, to: u64, most: u64, more: u64, lockable: u64) -> bool {
        // Another thread has been here meanwhile.
        if self.area_at(to).is_some() {
            return true;
        }
        let Some((&start, area)) = self.areas.range(to..).next().filter(|(_, area)| area.grows) else {
            return false;
        };
        let below = self.areas.range(..to).next_back();
        let may = |to: u64| {
            let is_near = |below: &Area| {
                let is_used = below.access.intersects(Access::READ | Access::WRITE | Access::EXEC);
                below.end > to || !below.grows && is_used && to - below.end < STACK_GAP
            };
            to >= USER_MIN
                && is_user_range(to, start - to)
                && area.end - to <= most
                && start - to <= more
                && !(area.locked && start - to > lockable.saturating_sub(self.locked_in(0, USER_MAX)))
                && !below.is_some_and(|(_, below)| is_near(below))
        };
        // A program's first stack by the slot, as far as it may: a fault for each page would be sixteen.
        let slot = to & !(SLOT - 1);
        let to = match area.name {
            STACK if may(slot) => slot,
            _ if may(to) => to,
            _ => return false,
        };
        self.drop_spare(to, start);
        let area = self.areas.remove(&start).expect("just found");
        self.total += start - to;
        self.insert(to, area);
        true
    }

    fn fault(&mut self, addr: u64, write: bool, exec: bool) -> core::result::Result<(), Denied> {
        let Some((start, area)) = self.area_at(addr) else { return Err(Denied::Unmapped) };
        let need = if write {
            Access::WRITE
        } else if exec {
            Access::EXEC
        } else {
            Access::READ
        };
        if !area.allows(need) {
            return Err(Denied::Access);
        }
        if area.pager.is_some() && self.asked(addr, write).is_some() {
            return Err(Denied::Asked);
        }
        let area = area.clone();
        if area.direct
            && !self.is_mapped(addr)
            && let Kind::File { file, offset } = &area.kind
        {
            // The host maps it, and still it faulted: behind the end of the file, or not mapped yet.
            let at = page_down(addr) - start + offset;
            let mut byte = [0];
            return match file.read(at, &mut byte) {
                Ok(1) => Ok(()),
                _ => Err(Denied::Bus),
            };
        }
        match &area.kind {
            Kind::Object { object, offset, .. } => {
                self.fault_object(addr, start, &area, &**object, *offset, write)
            }
            _ => self.fault_private(addr, start, &area, write),
        }
    }

    fn fault_object(
        &mut self,
        addr: u64,
        start: u64,
        area: &Area,
        object: &dyn Object,
        offset: u64,
        write: bool,
    ) -> core::result::Result<(), Denied> {
        let at = addr - start + offset;
        let size = page_up(object.size());
        if at >= size {
            return Err(Denied::Bus);
        }
        // As much of the object's 64 KiB as the area shows.
        let base = at & !(SLOT - 1);
        let mut from = base.max(offset);
        let most = (offset + (area.end - start)).min(size);
        let mut to = (base + SLOT).min(most);
        let by_blocks = area.paging.unwrap_or(self.paging) != Paging::Demand;
        let chunk = if by_blocks { object.chunk_and_more(base) } else { object.chunk(base) };
        let memory_offset = chunk.map_err(|e| match e {
            Errno::ENOMEM => Denied::NoMemory,
            // What it began with can't be read.
            _ => Denied::Bus,
        })?;
        if area.access.contains(Access::WRITE) {
            object.shown(write);
        }
        let whole = addr & !(BLOCK - 1);
        if by_blocks
            && whole >= start
            && whole + BLOCK <= area.end
            && is_block(object, whole - start + offset, base, memory_offset)
        {
            (from, to) = (whole - start + offset, whole + BLOCK - start + offset);
        }
        // Who goes on where the last pages ended gets more and more of what the object has, as far as it lies in one piece.
        let goes_on = self.shown.iter().position(|(end, _)| *end == start + (from - offset));
        let ahead = goes_on.map_or(0, |n| (2 * self.shown[n].1).min(BLOCK));
        while to < most
            && to - from < ahead
            && object.has_memory(to)
            && object.is_here(to)
            && object.chunk(to) == Ok(memory_offset + (to - base))
        {
            to = (to + SLOT).min(most);
        }
        self.shown[..=goes_on.unwrap_or(SHOWN - 1)].rotate_right(1);
        self.shown[0] = (start + (to - offset), to - from);
        self.put(start + (from - offset), to - from, area.access, memory_offset + from - base)
    }

    /// Is the last page of the slot before this one in place, in the same area?
    fn is_behind_last(&self, s: u64, start: u64) -> bool {
        let before = s.checked_sub(SLOT).filter(|before| before + SLOT > start);
        before.and_then(|before| self.slots.get(before)).is_some_and(|slot| slot.mapped >> 15 != 0)
    }

    /// Takes memory for some slots, a power of two, with what an area shows `at` bytes behind its start: zeroes, or a file's bytes. None: there is
    /// no such memory, or the file has not so much any more.
    fn take_filled(&self, at: u64, area: &Area, slots: u64) -> Option<u64> {
        let order = CHUNK_ORDER + (slots as u32).ilog2();
        let Kind::File { file, offset } = &area.kind else { return take_pages(order) };
        let memory = take_pages_dirty(order)?;
        let read = read_pages(&**file, at + offset, memory, slots * SLOT);
        if !read.is_ok_and(|n| n as u64 == slots * SLOT) {
            give_pages(memory, order);
            return None;
        }
        Some(memory)
    }

    fn fault_private(
        &mut self,
        addr: u64,
        start: u64,
        area: &Area,
        write: bool,
    ) -> core::result::Result<(), Denied> {
        if let Some(colours) = area.colours.filter(|_| !self.is_in_slot(addr)) {
            return self.fault_coloured(addr, area.access, colours, false);
        }
        let block = addr & !(BLOCK - 1);
        let whole = block >= start && block + BLOCK <= area.end;
        let paging = area.paging.unwrap_or(self.paging);
        let goes_on = paging == Paging::Usual && self.goes_on(addr, start);
        let blocks = match paging {
            Paging::Demand => false,
            Paging::Huge | Paging::Populate => true,
            Paging::Usual => goes_on,
        };
        if whole
            && blocks
            && matches!(area.kind, Kind::Anonymous)
            && self.slots.range(block..block + BLOCK).next().is_none()
            && let Some(offset) = take_pages(BLOCK_ORDER)
        {
            let frame = (offset / PAGE) as u32;
            for n in 0..(BLOCK / SLOT) {
                let slot = Slot::new(frame + (n as u32) * 16, u16::MAX);
                self.slots.insert(block + n * SLOT, slot);
            }
            self.count_resident(BLOCK / PAGE);
            return self.put(block, BLOCK, area.access, offset);
        }
        let s = addr & !(SLOT - 1);
        let joins = || goes_on || paging == Paging::Usual && self.is_dense(block, s);
        if whole && joins() && self.own_block(block) == Ok(true) {
            return Ok(());
        }
        let page = 1u16 << (addr % SLOT / PAGE);
        let mut slot = self.slots.get(s).copied();
        if let Some(there) = slot {
            let is_there = there.mapped & page != 0;
            let whole = page_bits(s, start.max(s), area.end) & there.mapped == there.mapped;
            if is_there && there.unused() & page != 0 {
                self.note(Told::Accessed, s, page, start, area).map_err(|_| Denied::NoMemory)?;
                // System calls take a second fault for the program's error: a write that somebody wants to know of, too, or that takes a
                // copy, comes by with this one.
                let more = (there.kept | there.clean) & page != 0 || there.guarded || there.is_shared();
                return if write && more { self.fault_private(addr, start, area, write) } else { Ok(()) };
            }
            if is_there && write && whole && there.guarded && !there.is_shared() {
                self.lift_guards(s, start, area);
                return Ok(());
            }
            if is_there && write && there.kept & page != 0 && !there.is_shared() {
                // Nobody is asked any more.
                return self
                    .set_kept(s.max(start), area.end.min(s + SLOT), false)
                    .map_err(|_| Denied::NoMemory);
            }
            if is_there && write && there.unwritten() & page != 0 && !there.is_shared() {
                return self.note(Told::Written, s, page, start, area).map_err(|_| Denied::NoMemory);
            }
            // What others show stays as it is: to write to it, or to add to it, takes a copy.
            if (write || !is_there) && there.is_shared() {
                self.own_slot(s).map_err(|_| Denied::NoMemory)?;
                if is_there {
                    return Ok(());
                }
                slot = self.slots.get(s).copied();
            }
        }
        // Memory that grows upwards is taken ahead, up to 256 KiB at once, and not into the next block, which may come as a whole.
        // So is a file's that is copied, to who goes through it in order.
        let grows = match &area.kind {
            Kind::Anonymous => {
                paging != Paging::Usual
                    || area.end - start <= SPARSE
                    || self.slots.contains(s.wrapping_sub(SLOT))
            }
            Kind::File { .. } => self.is_behind_last(s, start),
            Kind::Object { .. } => false,
        };
        let ahead = if grows && paging != Paging::Demand && s >= start && slot.is_none() {
            let mut n = 1;
            let end = area.end.min(block + BLOCK);
            let is_next = |at: u64| !self.slots.contains(at) && area.has_in_memory(at - start);
            while n < 4 && s + (n + 1) * SLOT <= end && is_next(s + n * SLOT) {
                n += 1;
            }
            if n >= 4 {
                4
            } else if n >= 2 {
                2
            } else {
                1
            }
        } else {
            1
        };
        if ahead > 1
            && let Some(offset) = self.take_filled(s - start, area, ahead)
        {
            let frame = (offset / PAGE) as u32;
            for n in 0..ahead {
                let slot = Slot::new(frame + n as u32 * 16, u16::MAX);
                self.slots.insert(s + n * SLOT, slot);
            }
            self.count_resident(ahead * 16);
            return self.put(s, ahead * SLOT, area.access, offset);
        }
        let slot = match slot {
            Some(slot) => slot,
            None => self.take_slot(s).map_err(|_| Denied::NoMemory)?,
        };
        let frame = slot.frame;
        let wanted = page_bits(s, start.max(s), area.end.min(s + SLOT));
        let have = slot.mapped & wanted;
        if have & page != 0 || wanted == have {
            // In place already: another thread was faster, or the host lost it.
            let guarded = slot.allowed(area.access) != area.access;
            self.slots.get_mut(s).expect("just looked at").guarded = guarded;
            return self.put_pages(s, &slot, have, area.access);
        }
        let mut missing = wanted & !have;
        slot.clear(slot.stale & missing);
        let there = self.slots.get_mut(s).expect("just looked at");
        there.stale &= !missing;
        // What comes now may be written to.
        there.guarded = false;
        if let Kind::File { file, offset } = &area.kind {
            let mut runs = Vec::new();
            add_runs(&mut runs, s, frame, core::mem::take(&mut missing));
            for (at, len, memory_offset) in runs {
                let from = at.wrapping_sub(start).wrapping_add(*offset);
                let read = read_pages(&**file, from, memory_offset, len);
                let n = read.unwrap_or(0) as u64;
                if n < len {
                    // What a read that failed left there must not be seen by what comes next.
                    // SAFETY: these pages are this slot's and not mapped yet.
                    unsafe { memory().address(memory_offset + n).write_bytes(0, (len - n) as usize) };
                }
                if (at..at + len).contains(&addr) && addr >= at + page_up(n) {
                    // Beyond the end of the file, or unreadable. What was read is not mapped: it is not for what comes next.
                    self.slots.get_mut(s).expect("made above").drop_pages(wanted & !have);
                    return Err(Denied::Bus);
                }
                // Pages beyond the end stay away.
                missing |= page_bits(s, at, at + page_up(n));
            }
        }
        let there = self.slots.get_mut(s).expect("made above");
        there.mapped |= missing;
        let slot = *there;
        self.count_resident(u64::from(missing.count_ones()));
        self.put_pages(s, &slot, missing, area.access)
    }

    /// Is private memory of an area from `start` on touched in order, slot by slot, and is it at the beginning of a block, of which a
    /// whole one can take the place? Only while much is free: it may bring what is never used.
    fn goes_on(&self, addr: u64, start: u64) -> bool {
        let (s, block) = (addr & !(SLOT - 1), addr & !(BLOCK - 1));
        let in_order = s - block <= JOINED_MAX && s >= start + SLOT && !self.slots.contains(s) && {
            // The one before, or all of the block that lie before.
            let from = if s == block { s - SLOT } else { block };
            let there = self.slots.range(from..block + BLOCK).map(|(at, _)| at);
            from >= start && there.eq((from..s).step_by(SLOT as usize))
        };
        in_order && memory().is_mostly_free()
    }

    /// Is so much of a block there, of a program that isn't small, that a whole one is to take its place, now that this slot is touched
    /// for the first time? Not where it goes downwards, as stacks do.
    fn is_dense(&self, block: u64, s: u64) -> bool {
        let is_there = |at: u64| self.slots.contains(at);
        let downwards = || is_there(s + SLOT) && !is_there(s.wrapping_sub(SLOT));
        self.resident >= BLOCKS_AFTER
            && !is_there(s)
            && !downwards()
            && self.slots.range(block..block + BLOCK).nth(DENSE - 1).is_some()
    }

    /// Has the program's own pager to be asked before an access that is allowed?
    fn asked(&self, addr: u64, write: bool) -> Option<Asked> {
        let (_, area) = self.area_at(addr)?;
        let own = area.pager.as_ref().filter(|own| own.pager.is_open())?;
        let page = 1 << (addr % SLOT / PAGE);
        let slot = self.slots.get(addr & !(SLOT - 1)).filter(|slot| slot.mapped & page != 0);
        let kept = match slot {
            Some(slot) => own.writes && write && slot.kept & page != 0,
            None => false,
        };
        let asks = kept || own.missing && slot.is_none();
        asks.then(|| Asked { pager: own.pager.clone(), kept })
    }

    /// Does somebody want to know of writes to a page in a range?
    fn keeps(&self, start: u64, end: u64) -> bool {
        self.slots.range(start..end).any(|(_, slot)| slot.held() != 0)
    }

    /// What a program wants to be told of a page of a slot is so from now on.
    ///
    /// On the host each page that may be written (or used) among others that may not costs two mappings, and each fault as much as to look
    /// through some ten pages. So the first write is noted for the page, the next one near by for the slot, and once some slots of a block
    /// were written to all over, for the block: who writes to much of it comes by few faults.
    fn note(&mut self, told: Told, s: u64, page: u16, start: u64, area: &Area) -> Result<()> {
        let mut slot = self.slots[s];
        let bits = page_bits(s, start, area.end) & slot.mapped;
        let block = s & !(BLOCK - 1);
        let (from, to, bits) = if *told.of(&mut slot) & bits == bits && !self.is_in_too_many_pieces() {
            (s, s + SLOT, page)
        } else if self.is_so_in_part(told, block) {
            (block, block + BLOCK, u16::MAX)
        } else {
            (s, s + SLOT, u16::MAX)
        };
        let mut runs = Protecting::new();
        for (s, slot) in self.slots.range_mut(from.max(start & !(SLOT - 1))..to.min(area.end)) {
            let held = told.of(slot);
            let now = *held & page_bits(s, start, area.end) & bits;
            *held &= !now;
            runs.add_slot(s, slot, now, area.access);
        }
        self.made(runs)
    }

    /// Is it so of so many slots of a block that it is going to be of the others?
    fn is_so_in_part(&self, told: Told, block: u64) -> bool {
        let slots = self.slots.range(block..block + BLOCK);
        slots.filter(|(_, slot)| *told.of(&mut { **slot }) == 0).take(COPIED).count() == COPIED
    }

    /// Can be said of all pages of a range which were written to, or used?
    fn can_tell(&self, start: u64, end: u64) -> Result<()> {
        if !self.covered(start, end) {
            return Err(Errno::ENOMEM);
        }
        let can = |s: &u64| {
            let area = &self.areas[s];
            let told = !area.shared && !area.direct && area.colours.is_none();
            told && !matches!(area.kind, Kind::Object { .. })
        };
        if self.overlapping(start, end).iter().all(can) { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// Which pages of a range are so since this was last asked, a word for each slot, which are 0. Value: how many.
    fn take(&mut self, told: Told, start: u64, end: u64, pages_told: &mut [u16]) -> Result<u64> {
        let (first, mut pages) = (start & !(SLOT - 1), 0);
        let mut runs = Protecting::new();
        // What was brought in since then is told of, whatever the processor has noted; of the rest that decides.
        let has_bits = platform().has_page_bits();
        if has_bits && let Err(e) = platform().take_page_bits(told.bit(), start, end - start, pages_told) {
            // Some of it is taken, and told to nobody.
            self.slots.range_mut(first..end).for_each(|(_, slot)| *told.of(slot) = 0);
            return Err(e);
        }
        for a in self.overlapping(start, end) {
            let area = &self.areas[&a];
            let (from, to) = (a.max(start), area.end.min(end));
            for (s, slot) in self.slots.range_mut(from & !(SLOT - 1)..to) {
                let (is_guarded, mapped) = (slot.guarded, slot.mapped);
                let held = told.of(slot);
                let word = &mut pages_told[((s - first) / SLOT) as usize];
                let here = page_bits(s, from, to);
                let bits = here & mapped & (!*held | *word);
                *held |= bits;
                *word = *word & !here | bits;
                pages += u64::from(bits.count_ones());
                if has_bits {
                    continue;
                }
                // The chunk is shared, and nobody can write to it, or its program can't.
                if told == Told::Accessed || !is_guarded && area.access.contains(Access::WRITE) {
                    runs.add_slot(s, slot, bits, area.access);
                }
            }
            breathe();
        }
        if let Err(e) = self.made(runs) {
            // Some may still be written to, or used, unseen: all of them were.
            self.slots.range_mut(first..end).for_each(|(_, slot)| *told.of(slot) = 0);
            return Err(e);
        }
        Ok(pages)
    }

    fn register(&mut self, start: u64, end: u64, own: &OwnPager) -> Result<()> {
        let starts = self.overlapping(start, end);
        let can_be =
            |area: &Area| matches!(area.kind, Kind::Anonymous) && !area.shared && area.colours.is_none();
        if starts.is_empty() || !starts.iter().all(|s| can_be(&self.areas[s])) {
            return Err(Errno::EINVAL);
        }
        let other = |s: &u64| {
            let pager = self.areas[s].pager.as_ref();
            pager.is_some_and(|other| !other.is(&own.pager) && other.pager.is_open())
        };
        if starts.iter().any(other) {
            return Err(Errno::EBUSY);
        }
        if own.missing {
            // A slot that others have pages of, too, could not say which were never touched.
            self.drop_spare_parts();
            self.drop_zeroes(start, end);
        }
        self.change_areas(start, end, |area| {
            // It is asked about no less than before, as on Linux.
            if !area.pager.as_ref().is_some_and(|same| same.covers(own)) {
                area.pager = Some(own.clone());
            }
        })
    }

    /// Changes what is noted of all that is mapped in a range. ENOMEM: there would be too many areas.
    fn change_areas(&mut self, start: u64, end: u64, f: impl Fn(&mut Area)) -> Result<()> {
        let mut done = Ok(());
        let change = |vm: &mut Vm, start, end| {
            done = done.and(vm.change(start, end, |_| true, &f));
            Ok(())
        };
        // Holes are no matter.
        let _ = self.each_part(start, end, true, change);
        done
    }

    /// Unmaps the pages of a range that hold nothing but zeroes. Memory comes in larger pieces than pages: those that were
    /// never touched are among them, and whoever looks at the others sees zeroes again.
    fn drop_zeroes(&mut self, start: u64, end: u64) {
        let mut zeroes: Vec<(u64, u64)> = Vec::new();
        for (s, slot) in self.slots.range(start & !(SLOT - 1)..end) {
            for page in (0..16).filter(|page| slot.mapped & page_bits(s, start, end) & 1 << page != 0) {
                if slot.is_zero(page) {
                    let at = s + page * PAGE;
                    match zeroes.last_mut() {
                        Some((first, len)) if *first + *len == at => *len += PAGE,
                        _ => zeroes.push((at, PAGE)),
                    }
                }
            }
            breathe();
        }
        for (at, len) in zeroes {
            self.drop_pages(at, at + len);
        }
    }

    fn unregister(&mut self, start: u64, end: u64, pager: &Arc<dyn Pager>) -> Result<()> {
        let starts = self.overlapping(start, end);
        if starts.is_empty() || !starts.iter().all(|s| matches!(self.areas[s].kind, Kind::Anonymous)) {
            return Err(Errno::EINVAL);
        }
        let is_other = |area: &Area| area.pager.as_ref().is_some_and(|own| !own.is(pager));
        if starts.iter().any(|s| is_other(&self.areas[s])) {
            return Err(Errno::EINVAL);
        }
        self.change_areas(start, end, |area| area.pager = None)?;
        self.set_kept(start, end, false)
    }

    /// The area of a range, all of which a pager answers for.
    fn paged_by(&self, start: u64, end: u64, pager: &Arc<dyn Pager>) -> Result<(&Area, &OwnPager)> {
        let (_, area) = self.area_at(start).filter(|(_, area)| area.end >= end).ok_or(Errno::ENOENT)?;
        let own = area.pager.as_ref().filter(|own| own.is(pager)).ok_or(Errno::ENOENT)?;
        Ok((area, own))
    }

    fn place(
        &mut self,
        at: u64,
        len: u64,
        from: Option<u64>,
        kept: bool,
        pager: &Arc<dyn Pager>,
    ) -> Result<u64> {
        let (area, own) = self.paged_by(at, at + len, pager)?;
        if kept && !own.writes {
            return Err(Errno::EINVAL);
        }
        let access = area.access;
        let s = at & !(SLOT - 1);
        let wanted = page_bits(s, at, at + len);
        let there = self.slots.get(s).map_or(0, |slot| slot.mapped & wanted);
        // Those before the first that is there.
        let bits = wanted & page_mask(u64::from(there.trailing_zeros()).min(SLOT / PAGE));
        let len = u64::from(bits.count_ones()) * PAGE;
        if len == 0 {
            return Err(Errno::EEXIST);
        }
        self.drop_spare(at, at + len);
        self.own_slot(s)?;
        if !self.slots.contains(s) {
            // The next pages come one by one, too, or never.
            self.take_slot_of(s, take_pages_dirty, u16::MAX)?;
        }
        let slot = self.slots.get_mut(s).expect("just made");
        match from {
            // SAFETY: the pages are this slot's and not mapped yet; the others are the caller's.
            Some(from) => unsafe {
                let to = memory().address(slot.offset() + (at - s));
                to.copy_from_nonoverlapping(memory().address(from), len as usize);
            },
            None => slot.clear(slot.stale & bits),
        }
        slot.stale &= !bits;
        slot.mapped |= bits;
        slot.guarded = false;
        if kept {
            slot.kept |= bits;
        }
        let shown = show(s, slot, bits, access);
        self.count_resident(u64::from(bits.count_ones()));
        shown.map(|()| len)
    }

    /// Has a program's own pager asked, or not, before the pages of a range that are in place are written to.
    fn set_kept(&mut self, start: u64, end: u64, kept: bool) -> Result<()> {
        let mut runs = Protecting::new();
        for a in self.overlapping(start, end) {
            let area = &self.areas[&a];
            let (from, to) = (a.max(start), area.end.min(end));
            for (s, slot) in self.slots.range_mut(from & !(SLOT - 1)..to) {
                let bits = page_bits(s, from, to) & slot.mapped;
                let changed = if kept { bits & !slot.kept } else { bits & slot.kept };
                slot.kept ^= changed;
                runs.add_slot(s, slot, changed, area.access);
            }
            breathe();
        }
        self.made(runs)
    }

    fn keep(&mut self, start: u64, end: u64, kept: bool, pager: &Arc<dyn Pager>) -> Result<()> {
        let mut at = start;
        while at < end {
            let (_, area) = self.area_at(at).ok_or(Errno::ENOENT)?;
            let asks = area.pager.as_ref().is_some_and(|own| own.writes && own.is(pager));
            at = area.end;
            if !asks {
                return Err(Errno::ENOENT);
            }
        }
        self.set_kept(start, end, kept)
    }

    /// Private copies of pages of an object that has become shorter are gone, as on Linux.
    fn drop_copies(&mut self, object: *const (), size: u64) {
        let is_copied = |(start, area): (&u64, &Area)| match &area.kind {
            Kind::File { file, offset } if !area.shared => {
                let from = start + page_up(size).saturating_sub(*offset);
                let is = from < area.end && file.object().is_some_and(|o| o.owner() == object);
                is.then_some((from, area.end))
            }
            _ => None,
        };
        let copied: Vec<(u64, u64)> = self.areas.iter().filter_map(is_copied).collect();
        for (start, end) in copied {
            // What the host keeps of a file's own mapping is no copy.
            let _ = self.discard(start, end);
        }
    }

    /// Unmaps what is shown of an object behind `size`.
    fn hide_object(&mut self, object: *const (), size: u64) -> Result<()> {
        let mut hidden = Ok(());
        let mut next = 0;
        while let Some((start, area)) = self.areas.range(next..).next() {
            next = area.end;
            let Kind::Object { object: o, offset, .. } = &area.kind else { continue };
            let from = start + page_up(size).saturating_sub(*offset);
            if o.owner() == object && from < area.end {
                // It faults in again as far as the object goes. The others go, whatever becomes of this one.
                hidden = hidden.and(self.unmap(from, next));
            }
        }
        hidden
    }

    fn vacate(
        &mut self,
        from: u64,
        at: u64,
        most: usize,
        known: &mut NewPlaces,
    ) -> Result<(usize, Option<u64>)> {
        self.drop_spare(0, USER_MAX);
        let found = self.slots.range(at..u64::MAX).filter(|(_, slot)| slot.lies_behind(from)).map(|(s, _)| s);
        let found: Vec<u64> = found.take(most + 1).collect();
        let (mut moved, mut next) = (0, 0);
        for s in found.iter().copied().take(most) {
            // It may have gone with the block before it, or while this thread let others have the core.
            if s < next || !self.slots.get(s).is_some_and(|slot| slot.lies_behind(from)) {
                continue;
            }
            next = s + self.move_chunks(s, known)?;
            moved += ((next - s) / SLOT) as usize;
            breathe();
        }
        Ok((moved, found.get(most).map(|s| (*s).max(next))))
    }

    /// Moves the chunk of a slot elsewhere, with those of its whole block if they make one. Value: bytes of slots.
    fn move_chunks(&mut self, s: u64, known: &mut NewPlaces) -> Result<u64> {
        let slot = self.slots[s];
        if slot.is_shared() {
            self.move_shared(s, known)?;
            return Ok(SLOT);
        }
        let is_block = s.is_multiple_of(BLOCK) && slot.offset().is_multiple_of(BLOCK);
        let follows = |n: u64| {
            let other = self.slots.get(s + n * SLOT);
            other.is_some_and(|o| o.frame == slot.frame + (n as u32) * 16 && !o.is_shared())
        };
        let whole = is_block && (1..BLOCK / SLOT).all(follows);
        let block = if whole { take_pages_dirty(BLOCK_ORDER) } else { None };
        let (offset, order) = match block {
            Some(offset) => (offset, BLOCK_ORDER),
            None => (take_pages_hard(CHUNK_ORDER).ok_or(Errno::ENOMEM)?, CHUNK_ORDER),
        };
        let (old, len) = (slot.offset(), PAGE << order);
        let shown = self.shown(s, s + len);
        let mut batch = Batch::default();
        // Who writes from here on waits for this space's lock; who reads notices nothing.
        for (addr, len, access) in shown.iter().filter(|(.., access)| access.contains(Access::WRITE)) {
            let (addr, len, access) = (*addr, *len, unwritable(*access));
            // SAFETY: these pages are mapped in the program's part.
            unsafe { batch.add(Change::Protect { addr, len, access }) }
                .inspect_err(|_| give_pages(offset, order))?;
        }
        batch.send().inspect_err(|_| give_pages(offset, order))?;
        // All of it: pages that aren't mapped are zeroes for when they are.
        // SAFETY: both are this space's, and nobody writes to either now.
        unsafe {
            core::ptr::copy_nonoverlapping(memory().address(old), memory().address(offset), len as usize)
        };
        for (n, (_, slot)) in self.slots.range_mut(s..s + len).enumerate() {
            slot.frame = (offset / PAGE) as u32 + (n as u32) * 16;
            slot.guarded = false;
        }
        let mut send = || {
            for (addr, len, access) in &shown {
                let (addr, len, access, offset) =
                    (*addr, *len, *access | Access::POPULATE, offset + (addr - s));
                // SAFETY: a user range; the pages are this slot's.
                unsafe { batch.add(Change::Map { addr, len, access, offset })? };
            }
            batch.send()
        };
        if send().is_err() {
            // The host has no more mappings to give. They fault in again.
            self.slots.range_mut(s..s + len).for_each(|(_, slot)| slot.forget_told());
            for (addr, len, _) in &shown {
                self.unmap(*addr, addr + len)?;
            }
        }
        give_pages(old, order);
        Ok(len)
    }

    /// Moves the chunk of a slot that others show, too, to where all of them are going to show it.
    fn move_shared(&mut self, s: u64, known: &mut NewPlaces) -> Result<()> {
        let old = self.slots[s];
        let offset = known.place_of(&old)?;
        memory().sharers().add(offset);
        let mut new = Slot { frame: (offset / PAGE) as u32, guarded: true, ..old };
        let shown = self.show_instead(s, &new);
        match shown {
            Ok(()) => {}
            Err(Unshown::Hidden) => new.forget_told(),
            Err(Unshown::Stays) => {
                new.release();
                return Err(Errno::ENOMEM);
            }
        }
        self.slots.insert(s, new);
        old.release();
        shown.map_err(|_| Errno::ENOMEM)
    }

    /// Maps the pages of a slot, which is to have this in place of what it has, as far as it may be written to. If that fails none of
    /// the old one's pages stays, as they are not this space's any more; those of the new one fault in again. Where the host can't do that
    /// either, what was mapped is as it was or faults in again.
    fn show_instead(&mut self, s: u64, new: &Slot) -> core::result::Result<(), Unshown> {
        let mut shown = Ok(());
        let mut batch = Batch::default();
        for start in self.overlapping(s, s + SLOT) {
            let area = &self.areas[&start];
            let bits = page_bits(s, start.max(s), area.end) & new.mapped;
            shown = shown.and_then(|()| show_in(&mut batch, s, new, bits, area.access));
        }
        shown.and(batch.send()).map_err(|_| {
            let mut runs = Vec::new();
            add_runs(&mut runs, s, new.frame, new.mapped);
            for (addr, len, _) in runs {
                if self.unmap(addr, addr + len).is_err() {
                    return Unshown::Stays;
                }
            }
            Unshown::Hidden
        })
    }

    /// What is shown of slots in a range: address, length and access, as few as can be.
    fn shown(&self, start: u64, end: u64) -> Vec<(u64, u64, Access)> {
        let mut shown: Vec<(u64, u64, Access)> = Vec::new();
        let mut add = |addr: u64, len: u64, access: Access| match shown.last_mut() {
            Some((at, l, same)) if *at + *l == addr && *same == access => *l += len,
            _ => shown.push((addr, len, access)),
        };
        for a in self.overlapping(start, end) {
            let area = &self.areas[&a];
            let (from, to) = (a.max(start), area.end.min(end));
            for (s, slot) in self.slots.range(from & !(SLOT - 1)..to) {
                let bits = slot.mapped & page_bits(s, from, to);
                for (bits, access) in slot.by_access(bits, area.access) {
                    for (first, len) in spans(bits) {
                        add(s + first * PAGE, len * PAGE, access);
                    }
                }
            }
        }
        shown
    }

    /// Pages in slots that areas have.
    fn in_areas(&self) -> u64 {
        self.resident - (self.ready.bytes() + self.closed.bytes()) / PAGE
    }

    fn count_resident(&mut self, pages: u64) {
        self.resident += pages;
        self.peak = self.peak.max(self.in_areas());
    }

    /// A text that others have rewritten, if it can be shown for a file's code from `start` to `end`.
    fn known_text(&self, kind: &Kind, start: u64, end: u64) -> Option<Known> {
        let Kind::File { file, offset } = kind else { return None };
        let plan = file.rewriting()?;
        let text = plan.texts().find(shape(*offset, start, end))?;
        let trampolines = text.trampolines(start)?;
        let (to, room) = trampolines;
        if !is_user_range(to, room) || !self.is_free(to, to + room) || self.has_slots(start, end) {
            return None;
        }
        Some(Known { pieces: Some(text.share()?), text, trampolines })
    }

    /// Do slots have all pages of a range?
    fn is_in_slots(&self, start: u64, end: u64) -> bool {
        self.runs(start, end).iter().map(|(_, len, _)| len).sum::<u64>() == end - start
    }

    /// Does a slot of a range, or one that it has a part of, have a chunk, or a page a colour?
    fn has_slots(&self, start: u64, end: u64) -> bool {
        self.slots.range(start & !(SLOT - 1)..end).next().is_some()
            || self.coloured.range(start..end).next().is_some()
    }

    /// Shows a text, with the access that its area has, over what is mapped there of the file.
    fn show_text(&mut self, start: u64, end: u64, access: Access, mut known: Known) -> Result<()> {
        let (to, room) = known.trampolines;
        self.add_trampolines(to, room);
        let base = start & !(SLOT - 1);
        for piece in known.pieces.take().iter().flat_map(|pieces| &**pieces) {
            let slot = Slot::new((piece.offset / PAGE) as u32, piece.pages);
            let slot = Slot { stale: !piece.pages, guarded: true, ..slot };
            self.slots.insert(base.wrapping_add_signed(piece.at), slot);
            self.count_resident(u64::from(piece.pages.count_ones()));
        }
        self.rewritten += known.text.len() as u64;
        Arc::make_mut(&mut self.texts).insert(start, Shown { end, base: start, text: known.text.clone() });
        let mut batch = Batch::default();
        show_runs(&mut batch, &mut self.runs(start, end), access)?;
        show_runs(&mut batch, &mut self.runs(to, to + room), TRAMPOLINE_ACCESS)?;
        batch.send()
    }

    /// Rewrites the system-call sites of a private file mapping that is about to become executable.
    fn rewrite(&mut self, start: u64, end: u64) {
        let Some((s, area)) = self.area_at(start) else { return };
        let kind = area.kind.advanced(start - s);
        let access = area.access;
        let Kind::File { file, offset } = &kind else { return };
        let Some(plan) = file.rewriting() else { return };
        if let Some(known) = self.known_text(&kind, start, end) {
            // What is not shown faults in.
            let _ = self.show_text(start, end, access, known);
            return;
        }
        let address = |site: &RewriteSite| start + (site.offset - offset);
        let mut sites = plan.sites(*offset, offset + (end - start));
        // It may have been executable before.
        sites.retain(|site| self.window_at(address(site)).is_none_or(|(at, _)| at != address(site)));
        if sites.is_empty() {
            return;
        }
        let room = plan.room(&sites);
        let own = if self.has_slots(start, end) { None } else { self.own_trampolines(start, end, room) };
        let Some(mut trampoline) = own.map(|(to, _)| to).or_else(|| self.trampoline_room(start, end, room))
        else {
            return;
        };
        // To have all of it in slots saves the mappings of the file's own pages.
        let last_page = end - PAGE - start;
        let all = own.is_some() && file.read(offset + last_page, &mut [0]) == Ok(1);
        let gap = if own.is_some() { SHARED_TEXT_GAP } else { TEXT_GAP };
        let mut windows = Vec::with_capacity(sites.len());
        let mut whole = true;
        let mut left = &sites[..];
        while let Some(first) = left.first() {
            // Sites near each other, whose pages become ours together.
            let mut from = page_down(address(first));
            let page_end = |site: &RewriteSite| page_up(address(site) + u64::from(site.len)).min(end);
            let n = 1 + left.windows(2).take_while(|w| address(&w[1]) <= page_end(&w[0]) + gap).count();
            let (group, rest) = left.split_at(n);
            left = rest;
            let mut to = group.last().map_or(from, page_end);
            if all && from - start <= gap {
                from = start;
            }
            if all && end - to <= gap {
                to = end;
            }
            if self.own_text(from, to, offset + (from - start), file).is_err() {
                whole = false;
                break;
            }
            for site in group {
                let at = address(site);
                let mut text = [0u8; 64];
                let Some(text) = text.get_mut(..site.len as usize) else { continue };
                self.peek(at, text);
                let mut code = [0u8; 256];
                let Some(moved) = plan.write(site, text, at, &mut code, trampoline) else { continue };
                self.poke(trampoline, &code[..moved.len as usize]);
                self.poke(at, text);
                windows.push((at, Window { len: site.len, trampoline, moved }));
                self.rewritten += 1;
                trampoline += u64::from(moved.len).next_multiple_of(16);
            }
        }
        match own.filter(|_| whole && !windows.is_empty()) {
            Some(own) => {
                let text = self.text_of(shape(*offset, start, end), start, own, &windows);
                plan.texts().keep(text.clone());
                Arc::make_mut(&mut self.texts).insert(start, Shown { end, base: start, text });
            }
            None => windows.into_iter().for_each(|(at, w)| self.add_window(at, w)),
        }
    }

    /// A text for others of what was rewritten here, with trampolines of its own. Nobody writes to it from now on.
    fn text_of(
        &mut self,
        shape: Shape,
        start: u64,
        (to, room): (u64, u64),
        windows: &[(u64, Window)],
    ) -> Arc<Text> {
        let base = start & !(SLOT - 1);
        let mut pieces = Vec::new();
        for (from, end) in [(base, start + shape.len), (to, to + room)] {
            for (s, slot) in self.slots.range_mut(from..end) {
                memory().sharers().add(slot.offset());
                slot.guarded = true;
                let at = s.wrapping_sub(base) as i64;
                pieces.push(Piece { at, offset: slot.offset(), pages: slot.mapped });
            }
        }
        Text::new(shape, start, (to, room), windows.iter().copied(), pieces.into())
    }

    /// Whole slots for the trampolines of one text, within reach: address and length.
    fn own_trampolines(&mut self, start: u64, end: u64, room: u64) -> Option<(u64, u64)> {
        let room = room.next_multiple_of(SLOT);
        let at = self.find_near(start, end, room, SLOT)?;
        self.add_trampolines(at, room);
        Some((at, room))
    }

    fn add_trampolines(&mut self, at: u64, len: u64) {
        self.drop_spare(at, at + len);
        let area = Area {
            end: at + len,
            access: TRAMPOLINE_ACCESS,
            shared: false,
            kind: Kind::Anonymous,
            direct: false,
            plain: false,
            name: TRAMPOLINES,
            at_fork: AtFork::default(),
            undumped: false,
            paging: None,
            pager: None,
            colours: None,
            locked: false,
            on_fault: false,
            grows: false,
        };
        self.total += len;
        self.areas.insert(at, area);
    }

    /// A free range within reach of a text.
    fn find_near(&self, start: u64, end: u64, len: u64, align: u64) -> Option<u64> {
        // Above it if there is room (an executable grows down to its heap), else below.
        let top = end.saturating_add(REACH).min(USER_MAX);
        let low = start.saturating_sub(REACH).max(USER_MIN);
        find_free(&self.areas, len, start, low, align)
            .or_else(|| find_free(&self.areas, len, top, end, align))
    }

    /// Room for trampolines within reach of `[start, end)`.
    fn trampoline_room(&mut self, start: u64, end: u64, room: u64) -> Option<u64> {
        let (next, limit) = self.trampolines;
        let near = |a: u64| a.abs_diff(start) < REACH && a.abs_diff(end) < REACH;
        if next != 0 && next + room <= limit && near(next) {
            self.trampolines.0 = next + room;
            return Some(next);
        }
        let len = room.next_multiple_of(SLOT);
        let at = self.find_near(start, end, len, PAGE)?;
        self.add_trampolines(at, len);
        self.trampolines = (at + room, at + len);
        Some(at)
    }

    /// Makes pages of a private file mapping pages of slots, with the file's
    /// contents: in one piece of memory where there is one free, as far as a
    /// block goes, so that the host has few mappings to keep.
    fn own_text(&mut self, from: u64, to: u64, offset: u64, file: &Arc<dyn Mappable>) -> Result<()> {
        let mut s = from & !(SLOT - 1);
        while s < to {
            let taken = self.slots.range(s..to).next().map_or(to, |(s, _)| s);
            let n = (taken - s).div_ceil(SLOT).min(BLOCK / SLOT);
            let order = CHUNK_ORDER + n.next_power_of_two().trailing_zeros();
            if n > 1
                && let Some(offset) = take_pages_dirty(order)
            {
                for n in 0..n {
                    let (s, frame) = (s + n * SLOT, ((offset + n * SLOT) / PAGE) as u32);
                    self.slots.insert(s, Slot { stale: !page_bits(s, from, to), ..Slot::new(frame, 0) });
                }
                let rest = (PAGE << order) - n * SLOT;
                pieces(offset + n * SLOT, rest).for_each(|(offset, order)| give_pages(offset, order));
                s += n * SLOT;
            } else {
                self.slot_frame(s)?;
                s += SLOT;
            }
        }
        // What is there already (a part of the file that was made ours before) stays as it is.
        let mut fresh: Vec<(u64, u64, u64)> = Vec::new();
        for (s, slot) in self.slots.range(from & !(SLOT - 1)..to) {
            add_runs(&mut fresh, s, slot.frame, page_bits(s, from, to) & !slot.mapped);
        }
        for (addr, len, at) in fresh {
            let n = read_pages(&**file, addr - from + offset, at, len)? as u64;
            // SAFETY: the pages are this space's slots' and not mapped yet.
            unsafe { memory().address(at + n).write_bytes(0, (len - n) as usize) };
            let backing = Backing::Memory { offset: at };
            // SAFETY: a user range; the pages are this space's slots'.
            unsafe { platform().map(addr, len, Access::READ | Access::POPULATE, backing)? };
            for (s, slot) in self.slots.range_mut(addr & !(SLOT - 1)..addr + len) {
                slot.mapped |= page_bits(s, addr, addr + len);
            }
            self.count_resident(len / PAGE);
        }
        Ok(())
    }

    /// Where a byte of a page that is in place lies in the cell's memory, and how many bytes of its page there are from it on.
    fn slot_byte(&self, addr: u64) -> Option<(*mut u8, usize)> {
        let page = self.offset_of(addr)?;
        Some((memory().address(page + addr % PAGE), (PAGE - addr % PAGE) as usize))
    }

    /// Reads memory of slots.
    fn peek(&self, addr: u64, to: &mut [u8]) {
        let mut done = 0;
        while done < to.len() {
            let Some((p, n)) = self.slot_byte(addr + done as u64) else { return };
            let piece = &mut to[done..];
            let n = n.min(piece.len());
            // SAFETY: so many bytes of a slot's page are there; nobody writes to it while we hold the space.
            unsafe { core::ptr::copy_nonoverlapping(p, piece.as_mut_ptr(), n) };
            done += n;
        }
    }

    /// Writes memory of slots, whatever the program's access to it.
    fn poke(&mut self, addr: u64, from: &[u8]) {
        let mut done = 0;
        while done < from.len() {
            let a = addr + done as u64;
            if !self.is_mapped(a) {
                // Only trampolines get here: anonymous memory that is not populated yet.
                if self.fault(a, false, true).is_err() {
                    return;
                }
            }
            if self.own_slot(a & !(SLOT - 1)).is_err() {
                return;
            }
            let Some((p, n)) = self.slot_byte(a) else { return };
            let piece = &from[done..];
            let n = n.min(piece.len());
            // SAFETY: so many bytes of a slot's page are there.
            unsafe { core::ptr::copy_nonoverlapping(piece.as_ptr(), p, n) };
            done += n;
        }
    }
}

/// Does an object have the 2 MiB from `start` on in one piece that a large page shows at a block's address? `base`: of its chunk in there
/// that lies at `memory` of the cell's. All of them count as touched then.
fn is_block(object: &dyn Object, start: u64, base: u64, memory: u64) -> bool {
    let Some(block) = (memory + start).checked_sub(base) else { return false };
    let chunks = || (start..start + BLOCK).step_by(SLOT as usize);
    start.is_multiple_of(SLOT)
        && block.is_multiple_of(BLOCK)
        && start + BLOCK <= page_up(object.size())
        && chunks().all(|at| object.place(at) == Some(block + at - start) && object.is_here(at))
        && chunks().all(|at| object.chunk(at) == Ok(block + at - start))
}

/// The highest place for `len` bytes between `gap` and `end`, of which the runtime has its part.
fn place_in(gap: u64, end: u64, len: u64, align: u64) -> Option<u64> {
    let mut start = end.checked_sub(len)? & !(align - 1);
    if start < RUNTIME_END && start + len > RUNTIME_BASE {
        start = RUNTIME_BASE.checked_sub(len)? & !(align - 1);
    }
    (start >= gap).then_some(start)
}

/// A free range of `len` bytes; the highest that ends at or below `top` and starts at or above `low`.
fn find_free(areas: &BTreeMap<u64, Area>, len: u64, top: u64, low: u64, align: u64) -> Option<u64> {
    let place = |gap: u64, end: u64| place_in(gap, end, len, align);
    let mut end = top;
    for (start, area) in areas.range(..top).rev() {
        if end <= low {
            return None;
        }
        if area.end < end
            && let Some(at) = place(area.end.max(low), end)
        {
            return Some(at);
        }
        end = area.room_below(*start);
    }
    place(low, end)
}

impl Known {
    /// Does it show all of a range, which its text is?
    fn covers(&self, start: u64, end: u64) -> bool {
        let base = start & !(SLOT - 1);
        // Those of the text come first, in order.
        let mut pieces = self.pieces.iter().flat_map(|pieces| &**pieces);
        (base..end).step_by(SLOT as usize).all(|s| {
            let piece = pieces.next().filter(|piece| base.wrapping_add_signed(piece.at) == s);
            piece.is_some_and(|piece| page_bits(s, start, end) & !piece.pages == 0)
        })
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        let pieces = self.pieces.take();
        pieces.iter().flat_map(|pieces| &**pieces).for_each(|piece| leave_chunk(piece.offset));
    }
}

/// The shape of a text from this offset of a file on that lies from `start` to `end`.
fn shape(offset: u64, start: u64, end: u64) -> Shape {
    Shape { offset, len: end - start, phase: start % SLOT }
}

/// A slot like this one, with a chunk of its own that has the same contents.
fn copy_of(slot: &Slot) -> Result<Slot> {
    let offset = take_hard(CHUNK_ORDER, take_pages_dirty).ok_or(Errno::ENOMEM)?;
    slot.copy_to(offset);
    let new = Slot::new((offset / PAGE) as u32, slot.mapped);
    Ok(Slot { stale: !slot.mapped, kept: slot.kept, clean: slot.clean, idle: slot.idle, ..new })
}

/// Reads from a file into `len` bytes at offset `to` of the cell's memory, which a slot has
/// and no program sees yet. Short at the end of the file.
fn read_pages(file: &dyn Mappable, offset: u64, to: u64, len: u64) -> Result<usize> {
    if let Some(n) = file.read_straight(offset, to, len)? {
        return Ok(n);
    }
    // SAFETY: as said above.
    let bytes = unsafe { core::slice::from_raw_parts_mut(memory().address(to), len as usize) };
    file.read(offset, bytes)
}

/// Maps pages of a slot with this access, as far as they may have it.
fn show(s: u64, slot: &Slot, bits: u16, access: Access) -> Result<()> {
    let mut batch = Batch::default();
    show_in(&mut batch, s, slot, bits, access)?;
    batch.send()
}

fn show_in(batch: &mut Batch, s: u64, slot: &Slot, bits: u16, access: Access) -> Result<()> {
    for (bits, access) in slot.by_access(bits, access) {
        for (first, len) in spans(bits) {
            let (addr, len) = (s + first * PAGE, len * PAGE);
            let (access, offset) = (access | Access::POPULATE, slot.offset() + first * PAGE);
            // SAFETY: a user range; the pages are this slot's.
            unsafe { batch.add(Change::Map { addr, len, access, offset })? };
        }
    }
    Ok(())
}

/// Maps runs, which are the caller's, and takes them from the list.
fn show_runs(batch: &mut Batch, runs: &mut Vec<(u64, u64, u64)>, access: Access) -> Result<()> {
    for (addr, len, offset) in runs.drain(..) {
        // SAFETY: a user range; the pages are slots of this space.
        unsafe { batch.add(Change::Map { addr, len, access, offset })? };
    }
    Ok(())
}

/// Does what is mapped in this way count for RLIMIT_DATA?
fn is_data(shared: bool, grows: bool, access: Access) -> bool {
    !shared && !grows && access.contains(Access::WRITE)
}

fn drop_mapping(kind: &Kind) {
    if let Kind::Object { object, .. } = kind {
        object.mapped(-1);
    }
}

/// Adds a slot's pages (a bit each) to runs of address, length and offset in memory.
fn add_runs(runs: &mut Vec<(u64, u64, u64)>, slot: u64, frame: u32, bits: u16) {
    for (first, len) in spans(bits) {
        let (addr, offset) = (slot + first * PAGE, (u64::from(frame) + first) * PAGE);
        match runs.last_mut() {
            Some((a, l, o)) if *a + *l == addr && *o + *l == offset => *l += len * PAGE,
            _ => runs.push((addr, len * PAGE, offset)),
        }
    }
}

/// The pages of a slot that follow each other, of these (a bit each): the first one's number, and how many.
fn spans(mut bits: u16) -> impl Iterator<Item = (u64, u64)> {
    core::iter::from_fn(move || {
        let first = u64::from(bits.trailing_zeros());
        let len = u64::from(bits.checked_shr(first as u32)?.trailing_ones());
        bits &= !(page_mask(len) << first);
        Some((first, len))
    })
}

/// A page of these colours, zeroed, or if there is none and not `only` these will do, of any.
fn take_coloured(colours: Option<Colours>, only: bool) -> Option<u64> {
    let coloured = colours.and_then(Colours::take);
    coloured.or_else(|| if only { None } else { take_pages_hard(0) })
}

/// One owner less of a chunk, whose memory goes back with the last one.
pub(crate) fn leave_chunk(offset: u64) {
    if memory().sharers().leave(offset) {
        give_pages(offset, CHUNK_ORDER);
    }
}

/// What is left of an access that must not write. To write is to read on this processor, so that remains.
fn unwritable(access: Access) -> Access {
    if access.contains(Access::WRITE) { access.difference(Access::WRITE) | Access::READ } else { access }
}

/// `n` low bits.
fn page_mask(n: u64) -> u16 {
    ((1u32 << n) - 1) as u16
}

/// The pages of a slot that lie in `[start, end)`.
fn page_bits(slot: u64, start: u64, end: u64) -> u16 {
    if start <= slot && end.saturating_sub(slot) >= SLOT {
        return u16::MAX;
    }
    let from = start.saturating_sub(slot).min(SLOT) / PAGE;
    let to = end.saturating_sub(slot).min(SLOT).div_ceil(PAGE);
    if to <= from { 0 } else { page_mask(to) & !page_mask(from) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits() {
        assert_eq!(page_bits(0, 0, SLOT), u16::MAX);
        assert_eq!(page_bits(SLOT, 0, SLOT), 0);
        assert_eq!(page_bits(0, PAGE, 3 * PAGE), 0b110);
        assert_eq!(page_bits(SLOT, 5, SLOT + PAGE), 1);
        assert_eq!(page_mask(16), u16::MAX);
        for (bits, all) in [
            (0, &[][..]),
            (1, &[(0, 1)]),
            (u16::MAX, &[(0, 16)]),
            (0b1000_0110_1110_0000, &[(5, 3), (9, 2), (15, 1)]),
        ] {
            assert_eq!(spans(bits).collect::<Vec<_>>(), all);
        }
    }

    /// Pages on each side of the runtime's part in which areas lie.
    const NEAR: u64 = 24;

    /// Address of page `n` of those on both sides.
    fn near(n: u64) -> u64 {
        if n < NEAR { RUNTIME_BASE - (NEAR - n) * PAGE } else { RUNTIME_END + (n - NEAR) * PAGE }
    }

    proptest::proptest! {
        /// The highest free place is found, as by trying all.
        #[test]
        fn finds_what_is_free(
            taken in proptest::collection::vec((0..2 * NEAR, 1..5u64), 0..16),
            (len, align) in (1..12u64, 0..3u32),
            (low, top) in (0..2 * NEAR, 0..2 * NEAR),
        ) {
            let mut areas = BTreeMap::new();
            let free = |areas: &BTreeMap<u64, Area>, start: u64, end: u64| {
                (end <= RUNTIME_BASE || start >= RUNTIME_END) && areas.iter().all(|(s, a)| a.end <= start || *s >= end)
            };
            for (at, pages) in taken {
                let (start, end) = (near(at), near(at) + pages * PAGE);
                if free(&areas, start, end) {
                    let (kind, access) = (Kind::Anonymous, Access::READ);
                    let at_fork = AtFork::default();
                    let (shared, direct, plain, name, paging, pager) = (false, false, false, "", None, None);
                    let (locked, on_fault, grows, undumped, colours) = (false, false, false, false, None);
                    let area = Area { end, access, shared, kind, direct, plain, name, at_fork, undumped, paging, pager, colours, locked, on_fault, grows };
                    areas.insert(start, area);
                }
            }
            let (len, align, low, top) = (len * PAGE, PAGE << align, near(low), near(top));
            let fits = |start: &u64| {
                let end = start + len;
                *start >= low && end <= top && start.is_multiple_of(align) && free(&areas, *start, end)
            };
            assert_eq!(find_free(&areas, len, top, low, align), (0..2 * NEAR).map(near).filter(fits).max());
        }
    }
}
