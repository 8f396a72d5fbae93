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
#![allow(unsafe_code, reason = "asks the platform to change mappings, and fills pages")]

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use atoll_abi::layout::{
    BLOCK, PAGE, RUNTIME_BASE, RUNTIME_END, USER_MAX, USER_MIN, is_user_range, page_down, page_up,
};
use atoll_abi::platform::{Access, Backing, Change, platform};
use atoll_abi::{Errno, Result};
use atoll_sync::{Mutex, MutexGuard, SetOnce, breathe};

use crate::heap::{give_pages, memory, take_pages};
use crate::pages::{BLOCK_ORDER, CHUNK_ORDER};

/// Pages that a space has before it takes memory by the block: small programs touch little of
/// many areas, and a fresh block is zeroed whole.
const BLOCKS_AFTER: u64 = (8 << 20) / PAGE;

/// Pages of code between two sites that stay the file's own, at least, bytes: for
/// fewer it is not worth the two mappings more that the host has to keep.
const TEXT_GAP: u64 = 64 << 10;

/// Pages that are rather zeroed than unmapped.
const FEW: u32 = 4;

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
pub trait Object: Send + Sync {
    /// Offset in the cell's memory of the 64 KiB that begin at `offset` (a
    /// multiple of that) of the object. They stay there as long as the object is mapped.
    fn chunk(&self, offset: u64) -> Result<u64>;
    /// Is all in the cell's memory that it has of the 64 KiB around `offset`? Else [`Object::chunk`] reads it from a device.
    fn is_here(&self, _offset: u64) -> bool {
        true
    }
    /// Bytes in the object. Beyond the last page, access is SIGBUS.
    fn size(&self) -> u64;
    /// One more mapping (or, `-1`, one less).
    fn mapped(&self, by: i32);
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
}

#[derive(Clone, Copy, Default)]
struct Slot {
    /// Page number of its chunk in the cell's memory.
    frame: u32,
    /// Pages that are filled and mapped.
    mapped: u16,
}

impl Slot {
    /// Zeroes these of its pages.
    fn clear(&self, bits: u16) {
        for page in (0..16).filter(|page| bits & 1 << page != 0) {
            let p = memory().address(u64::from(self.frame) * PAGE + page * PAGE);
            // SAFETY: the page is this slot's.
            unsafe { p.write_bytes(0, PAGE as usize) };
        }
    }
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
    /// Populate at once.
    pub populate: bool,
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
    /// A wish, below 2 GiB.
    Low,
}

/// Asks caches for memory; says whether some came free.
type Reclaim = fn(bytes: u64) -> bool;
static RECLAIM: SetOnce<Reclaim> = SetOnce::new();

/// Says who gives memory back when there is none.
pub fn set_reclaim(reclaim: Reclaim) {
    // Once in a cell's life; a second time changes nothing.
    let _ = RECLAIM.set(reclaim);
}

/// Zeroed pages, if need be after asking the platform and caches for some.
pub fn take_pages_hard(order: u32) -> Option<u64> {
    loop {
        if let Some(offset) = take_pages(order) {
            return Some(offset);
        }
        let reclaim = RECLAIM.get()?;
        if let Some(block) = platform().memory_back() {
            give_pages(block, BLOCK_ORDER);
        } else if !reclaim(PAGE << order) {
            return None;
        }
    }
}

/// Changes of the current space that go down together.
struct Batch {
    list: [Change; Batch::MAX],
    len: usize,
}

impl Batch {
    const MAX: usize = 16;

    fn new() -> Batch {
        Batch { list: [Change::Unmap { addr: 0, len: 0 }; Batch::MAX], len: 0 }
    }

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

/// A program's address space.
pub struct AddressSpace {
    vm: Mutex<Vm>,
}

struct Vm {
    areas: BTreeMap<u64, Area>,
    slots: BTreeMap<u64, Slot>,
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
    /// Where the next trampolines go, and the end of their area.
    trampolines: (u64, u64),
    /// Rewritten windows: address of the first byte, (length, trampoline's resume part).
    windows: BTreeMap<u64, Window>,
    /// Windows by their trampolines.
    trampolines_of: BTreeMap<u64, u64>,
    rewritten: u64,
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
        AddressSpace {
            vm: Mutex::new(Vm {
                areas: BTreeMap::new(),
                slots: BTreeMap::new(),
                brk_start: 0,
                brk: 0,
                top,
                resident: 0,
                peak: 0,
                total: 0,
                trampolines: (0, 0),
                windows: BTreeMap::new(),
                trampolines_of: BTreeMap::new(),
                rewritten: 0,
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vm> {
        self.vm.lock()
    }

    /// Maps; the address. The caller runs in this space.
    pub fn map(&self, request: MapRequest) -> Result<u64> {
        self.lock().map(request)
    }

    /// Unmaps `[addr, addr + len)`.
    pub fn unmap(&self, addr: u64, len: u64) -> Result<()> {
        if !addr.is_multiple_of(PAGE) || len == 0 || !is_user_range(addr, page_up(len)) {
            return Err(Errno::EINVAL);
        }
        self.lock().remove(addr, addr + page_up(len));
        Ok(())
    }

    /// Changes access to `[addr, addr + len)`.
    pub fn protect(&self, addr: u64, len: u64, access: Access) -> Result<()> {
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
        self.lock().protect(addr, addr + len, access)
    }

    /// Moves or resizes a mapping (`mremap(2)`); the new address.
    pub fn remap(
        &self,
        old: u64,
        old_len: u64,
        new_len: u64,
        may_move: bool,
        fixed: Option<u64>,
    ) -> Result<u64> {
        if !old.is_multiple_of(PAGE) || new_len == 0 {
            return Err(Errno::EINVAL);
        }
        self.lock().remap(old, page_up(old_len), page_up(new_len), may_move, fixed)
    }

    /// Drops the contents of `[addr, addr + len)`: private memory reads as zero or as its file again.
    pub fn discard(&self, addr: u64, len: u64) -> Result<()> {
        let len = page_up(len);
        if !addr.is_multiple_of(PAGE) || !is_user_range(addr, len) {
            return Err(Errno::EINVAL);
        }
        let mut vm = self.lock();
        let whole = vm.covered(addr, addr + len);
        vm.discard(addr, addr + len);
        if whole { Ok(()) } else { Err(Errno::ENOMEM) }
    }

    /// An object was made shorter: its pages behind `size` fault from now on. The caller runs in this space.
    pub fn object_shrunk(&self, object: *const (), size: u64) {
        let vm = self.lock();
        for (start, area) in &vm.areas {
            let Kind::Object { object: o, offset, .. } = &area.kind else { continue };
            let from = start + page_up(size).saturating_sub(*offset);
            if core::ptr::addr_eq(Arc::as_ptr(o), object) && from < area.end {
                // SAFETY: a part of this user mapping; it faults in again as far as the object goes.
                let _ = unsafe { platform().unmap(from, area.end - from) };
            }
        }
    }

    /// Is every page of the range mapped?
    pub fn is_mapped(&self, addr: u64, len: u64) -> bool {
        self.lock().covered(addr, addr + page_up(len))
    }

    /// Mappings grow down from `top` from now on.
    pub fn set_top(&self, top: u64) {
        self.lock().top = top;
    }

    /// Where the heap begins, set by the loader.
    pub fn set_brk(&self, start: u64) {
        let mut vm = self.lock();
        vm.brk_start = start;
        vm.brk = start;
    }

    /// Moves the end of the heap; the end afterwards.
    pub fn brk(&self, to: u64, limit: u64) -> u64 {
        self.lock().brk(to, limit)
    }

    /// Serves a page fault. Ok: try again.
    pub fn fault(&self, addr: u64, write: bool, exec: bool) -> core::result::Result<(), Denied> {
        self.lock().fault(addr, write, exec)
    }

    /// Would a fault there have to read from a device?
    pub fn fault_reads(&self, addr: u64) -> bool {
        let vm = self.lock();
        let Some((start, area)) = vm.area_at(addr) else { return false };
        let slot = vm.slots.get(&(addr & !(SLOT - 1)));
        if area.direct || slot.is_some_and(|s| s.mapped & 1 << (addr % SLOT / PAGE) != 0) {
            return false;
        }
        match &area.kind {
            Kind::File { file, offset } => !file.is_here(addr - start + offset),
            Kind::Object { object, offset, .. } => !object.is_here(addr - start + offset),
            Kind::Anonymous => false,
        }
    }

    /// Populates a range as far as it can.
    pub fn populate(&self, addr: u64, len: u64) {
        let mut vm = self.lock();
        let mut at = page_down(addr);
        while at < addr + len {
            let Some((_, area)) = vm.area_at(at) else { return };
            let (write, exec) = (area.access.contains(Access::WRITE), false);
            if vm.fault(at, write, exec).is_err() {
                return;
            }
            at = (at & !(SLOT - 1)) + SLOT;
            breathe();
        }
    }

    /// Unmaps everything. The caller runs in this space.
    pub fn clear(&self) {
        let mut vm = self.lock();
        if vm.areas.is_empty() {
            return;
        }
        vm.remove(0, RUNTIME_BASE);
        vm.remove(RUNTIME_END, USER_MAX);
        vm.brk = 0;
        vm.brk_start = 0;
        vm.windows.clear();
        vm.trampolines_of.clear();
        vm.trampolines = (0, 0);
    }

    /// Bytes mapped.
    pub fn total(&self) -> u64 {
        self.lock().total
    }

    /// Bytes mapped, bytes resident, most bytes ever resident.
    pub fn size(&self) -> (u64, u64, u64) {
        let vm = self.lock();
        let direct: u64 = vm.areas.iter().filter(|(_, a)| a.direct).map(|(s, a)| a.end - s).sum();
        let resident = vm.resident * PAGE + direct;
        (vm.total, resident, (vm.peak * PAGE).max(resident))
    }

    /// The heap's start and end.
    pub fn heap_range(&self) -> (u64, u64) {
        let vm = self.lock();
        (vm.brk_start, vm.brk)
    }

    /// Calls `f` for each area, in order: start, area.
    pub fn for_each(&self, mut f: impl FnMut(u64, &Area)) {
        for (start, area) in &self.lock().areas {
            f(*start, area);
        }
    }

    /// The area that holds an address.
    pub fn find(&self, addr: u64) -> Option<(u64, Area)> {
        self.lock().area_at(addr).map(|(s, a)| (s, a.clone()))
    }

    /// The rewritten window that an address is inside of, and its first byte.
    pub fn window_at(&self, addr: u64) -> Option<(u64, Window)> {
        let vm = self.lock();
        let (start, w) = vm.windows.range(..=addr).next_back()?;
        (addr < start + u64::from(w.len)).then_some((*start, *w))
    }

    /// The window whose trampoline holds an address, and its first byte.
    pub fn window_of_trampoline(&self, addr: u64) -> Option<(u64, Window)> {
        let vm = self.lock();
        let (to, start) = vm.trampolines_of.range(..=addr).next_back()?;
        let w = vm.windows.get(start)?;
        (addr < to + u64::from(w.moved.len)).then_some((*start, *w))
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
        for slot in vm.slots.values() {
            give_pages(u64::from(slot.frame) * PAGE, CHUNK_ORDER);
            breathe();
        }
        for area in vm.areas.values() {
            if let Kind::Object { object, .. } = &area.kind {
                object.mapped(-1);
            }
        }
    }
}

impl Vm {
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

    fn choose(&self, request: &MapRequest, len: u64) -> Result<u64> {
        let addr = request.addr;
        if matches!(request.place, Place::Fixed | Place::FixedNoReplace) {
            if !addr.is_multiple_of(PAGE) {
                return Err(Errno::EINVAL);
            }
            if addr < USER_MIN {
                return Err(Errno::EPERM);
            }
            if !is_user_range(addr, len) {
                return Err(Errno::ENOMEM);
            }
            if request.place == Place::FixedNoReplace && !self.is_free(addr, addr + len) {
                return Err(Errno::EEXIST);
            }
            return Ok(addr);
        }
        let hint = page_up(addr);
        if hint >= USER_MIN && is_user_range(hint, len) && self.is_free(hint, hint + len) {
            return Ok(hint);
        }
        // Large private memory on block boundaries, so that whole blocks can stand behind it.
        let align = if len >= BLOCK && matches!(request.kind, Kind::Anonymous) && !request.shared {
            BLOCK
        } else {
            PAGE
        };
        let (top, low) = match request.place {
            Place::Low => (0x8000_0000, USER_MIN),
            _ => (self.top, USER_MIN),
        };
        find_free(&self.areas, len, top, low, align)
            .or_else(|| find_free(&self.areas, len, top, low, PAGE))
            .or_else(|| find_free(&self.areas, len, USER_MAX, self.top, PAGE))
            .ok_or(Errno::ENOMEM)
    }

    fn map(&mut self, request: MapRequest) -> Result<u64> {
        let len = page_up(request.len);
        if request.len == 0 {
            return Err(Errno::EINVAL);
        }
        if len < request.len || len > USER_MAX {
            return Err(Errno::ENOMEM);
        }
        let start = self.choose(&request, len)?;
        // Any other place is free.
        if request.place == Place::Fixed {
            self.remove(start, start + len);
        }
        let MapRequest { access, shared, mut kind, name, populate, .. } = request;
        let mut direct = false;
        if let Kind::File { file, offset } = &kind {
            if let Some(object) = file.object() {
                if shared {
                    kind = Kind::Object { object, file: Some(file.clone()), offset: *offset };
                }
            } else if shared || !access.contains(Access::WRITE) && !file.is_divided() {
                if let Some(fd) = file.host_file(shared && access.contains(Access::WRITE))? {
                    // An access of nothing is mapped when it becomes something.
                    if !access.difference(Access::POPULATE).is_empty() {
                        let backing = Backing::File { fd, offset: *offset, shared };
                        // Not executable yet: system-call sites are rewritten first.
                        let first = if shared { access } else { access.difference(Access::EXEC) };
                        // SAFETY: a user range, checked by `choose`.
                        unsafe { platform().map(start, len, first, backing)? };
                        direct = true;
                    }
                } else if shared {
                    return Err(Errno::ENODEV);
                }
            }
        }
        if let Kind::Object { object, .. } = &kind {
            object.mapped(1);
        }
        let plain = matches!(kind, Kind::File { .. }) && !shared && !access.contains(Access::WRITE);
        let area = Area { end: start + len, access, shared, kind, direct, plain, name };
        self.total += len;
        self.insert(start, area);
        if plain && access.contains(Access::EXEC) {
            self.rewrite(start, start + len);
            if direct {
                // SAFETY: the range was mapped above.
                unsafe { platform().protect(start, len, access)? };
            } else {
                // What was rewritten; the rest faults in.
                self.protect_slots(start, start + len, access);
            }
        }
        if populate {
            let mut at = start;
            while at < start + len && self.fault(at, access.contains(Access::WRITE), false).is_ok() {
                at = (at & !(SLOT - 1)) + SLOT;
                breathe();
            }
        }
        Ok(start)
    }

    /// Adds an area, joining it with neighbours that it continues.
    fn insert(&mut self, start: u64, mut area: Area) {
        let same = |a: &Area, b: &Area| {
            let kept = a.shared == b.shared && a.direct == b.direct && a.plain == b.plain;
            kept && a.access == b.access && a.name == b.name
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

    /// Makes the ends of a range boundaries between areas; false: nothing is mapped there.
    fn split(&mut self, start: u64, end: u64) -> bool {
        let Some((&last, area)) = self.areas.range(..end).next_back().filter(|(_, a)| a.end > start) else {
            return false;
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
        true
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

    /// Unmaps a range.
    fn remove(&mut self, start: u64, end: u64) {
        if !self.split(start, end) {
            return;
        }
        let visible = |area: &Area| area.direct || matches!(area.kind, Kind::Object { .. });
        let visible = self.areas.range(start..end).any(|(_, area)| visible(area));
        if visible || self.slots.range(start & !(SLOT - 1)..end).next().is_some() {
            // Out of the page tables first, then back to the pool.
            // SAFETY: a user range; holes in it do no harm.
            let _ = unsafe { platform().unmap(start, end - start) };
        }
        self.release_slots(start, end);
        let mut of_files = false;
        for (s, area) in self.areas.extract_if(start..end, |_, _| true) {
            self.total -= area.end - s;
            of_files |= matches!(area.kind, Kind::File { .. });
            drop_mapping(&area.kind);
        }
        // Nothing else has windows.
        while of_files && let Some((at, w)) = self.windows.range(start..end).next() {
            let at = *at;
            self.trampolines_of.remove(&w.trampoline);
            self.windows.remove(&at);
        }
    }

    /// Gives back the memory behind the slots' pages in a range, which the caller has unmapped.
    fn release_slots(&mut self, start: u64, end: u64) {
        let resident = &mut self.resident;
        let empty = self.slots.extract_if(start & !(SLOT - 1)..end, |s, slot| {
            let bits = page_bits(*s, start, end) & slot.mapped;
            slot.mapped &= !bits;
            *resident -= u64::from(bits.count_ones());
            // What is mapped there next must not see this.
            if slot.mapped != 0 {
                slot.clear(bits);
            }
            bits != 0 && slot.mapped == 0
        });
        for (_, slot) in empty {
            give_pages(u64::from(slot.frame) * PAGE, CHUNK_ORDER);
            breathe();
        }
    }

    fn protect(&mut self, start: u64, end: u64, access: Access) -> Result<()> {
        if !self.covered(start, end) {
            return Err(Errno::ENOMEM);
        }
        for s in self.overlapping(start, end) {
            let area = &self.areas[&s];
            if !area.shared || !access.contains(Access::WRITE) {
                continue;
            }
            // EACCES if the file was not opened for writing.
            match &area.kind {
                Kind::File { file, .. } => {
                    file.host_file(true)?;
                }
                // Seals that came after the mapping don't hold for it.
                Kind::Object { file: Some(file), .. } if file.host_file(true) == Err(Errno::EACCES) => {
                    return Err(Errno::EACCES);
                }
                Kind::Object { .. } | Kind::Anonymous => {}
            }
        }
        self.split(start, end);
        let list: Vec<u64> = self.areas.range(start..end).map(|(s, _)| *s).collect();
        for s in list {
            // One that had this access already may have been joined to the one before it.
            let Some(area) = self.areas.get_mut(&s) else { continue };
            if area.access == access {
                continue;
            }
            let was = area.access;
            area.access = access;
            area.plain &= !access.contains(Access::WRITE);
            let (e, direct) = (area.end, area.direct);
            let runs_now = area.plain && access.contains(Access::EXEC) && !was.contains(Access::EXEC);
            if direct && !area.shared && access.contains(Access::WRITE) {
                // A private page of a file that may be written becomes ours when it is next touched.
                area.direct = false;
                self.hide_direct(s, e);
                self.protect_slots(s, e, access);
            } else if direct {
                if runs_now {
                    self.rewrite(s, e);
                }
                // SAFETY: mapped in full: by the file, or by slots over it.
                unsafe { platform().protect(s, e - s, access)? };
            } else if let Kind::Object { .. } = area.kind {
                // Pages that were touched are mapped, others not: drop all, they fault in again.
                // SAFETY: a user range.
                let _ = unsafe { platform().unmap(s, e - s) };
            } else {
                if runs_now {
                    self.rewrite(s, e);
                }
                self.protect_slots(s, e, access);
            }
            let area = self.areas.remove(&s).expect("just changed");
            self.insert(s, area);
        }
        Ok(())
    }

    /// Runs of pages in slots inside a range: address, length, offset in memory.
    fn runs(&self, start: u64, end: u64) -> Vec<(u64, u64, u64)> {
        let mut runs: Vec<(u64, u64, u64)> = Vec::new();
        for (s, slot) in self.slots.range(start & !(SLOT - 1)..end) {
            add_runs(&mut runs, *s, slot.frame, slot.mapped & page_bits(*s, start, end));
        }
        runs
    }

    fn protect_slots(&self, start: u64, end: u64, access: Access) {
        let mut batch = Batch::new();
        let mut runs = self.runs(start, end).into_iter().peekable();
        while let Some((addr, mut len, _)) = runs.next() {
            // Neighbouring addresses in one, wherever their memory lies.
            while let Some((a, l, _)) = runs.peek() {
                if *a != addr + len {
                    break;
                }
                len += l;
                runs.next();
            }
            // SAFETY: these pages are mapped in the program's part.
            let _ = unsafe { batch.add(Change::Protect { addr, len, access }) };
        }
        let _ = batch.send();
    }

    /// Unmaps the parts of a range that no slot's page lies over.
    fn hide_direct(&mut self, start: u64, end: u64) {
        let mut batch = Batch::new();
        let mut at = start;
        for (addr, len, _) in self.runs(start, end).into_iter().chain([(end, 0, 0)]) {
            if addr > at {
                // SAFETY: a user range.
                let _ = unsafe { batch.add(Change::Unmap { addr: at, len: addr - at }) };
            }
            at = addr + len;
        }
        let _ = batch.send();
    }

    fn discard(&mut self, start: u64, end: u64) {
        let list: Vec<(u64, u64)> = self
            .overlapping(start, end)
            .into_iter()
            .filter(|s| !self.areas[s].shared && !self.areas[s].direct)
            .map(|s| (s.max(start), self.areas[&s].end.min(end)))
            // Of code with rewritten sites there is nothing to drop: it is its file's.
            .filter(|(a, b)| {
                !(self.area_at(*a).is_some_and(|(_, area)| area.plain) && self.has_windows(*a, *b))
            })
            .collect();
        for (a, b) in list {
            if self.clear_few(a, b) {
                continue;
            }
            // Out of the page tables first, then back to the pool.
            if !self.runs(a, b).is_empty() {
                // SAFETY: a user range.
                let _ = unsafe { platform().unmap(a, b - a) };
                self.release_slots(a, b);
            }
        }
    }

    /// Discards a range of anonymous memory by zeroing it where it is, if there are only a few pages of a slot that stays: as at the
    /// end of each thread, whose stack is used again. To unmap them would give nothing back, and cost a fault. False: it is not such a
    /// range.
    fn clear_few(&self, start: u64, end: u64) -> bool {
        if !self.area_at(start).is_some_and(|(_, area)| matches!(area.kind, Kind::Anonymous)) {
            return false;
        }
        let mut slots = self.slots.range(start & !(SLOT - 1)..end).filter_map(|(s, slot)| {
            let bits = page_bits(*s, start, end) & slot.mapped;
            (bits != 0).then_some((slot, bits))
        });
        let (Some((slot, bits)), None) = (slots.next(), slots.next()) else { return false };
        if slot.mapped == bits || bits.count_ones() > FEW {
            return false;
        }
        slot.clear(bits);
        true
    }

    /// Does a rewritten window lie in a range, in part or wholly?
    fn has_windows(&self, start: u64, end: u64) -> bool {
        let last = self.windows.range(..end).next_back();
        last.is_some_and(|(at, w)| at + u64::from(w.len) > start)
    }

    fn brk(&mut self, to: u64, limit: u64) -> u64 {
        if to < self.brk_start || to.saturating_sub(self.brk_start) > limit {
            return self.brk;
        }
        let (old, new) = (page_up(self.brk), page_up(to));
        if new > old {
            // A gap of a page stays between the heap and the next mapping.
            if !is_user_range(old, new - old + PAGE) || !self.is_free(old, new + PAGE) {
                return self.brk;
            }
            let request = MapRequest {
                addr: old,
                len: new - old,
                access: Access::READ | Access::WRITE,
                shared: false,
                kind: Kind::Anonymous,
                place: Place::FixedNoReplace,
                name: "[heap]",
                populate: false,
            };
            if self.map(request).is_err() {
                return self.brk;
            }
        } else if new < old {
            self.remove(new, old);
        }
        self.brk = to;
        to
    }

    fn remap(
        &mut self,
        old: u64,
        old_len: u64,
        new_len: u64,
        may_move: bool,
        fixed: Option<u64>,
    ) -> Result<u64> {
        let Some((start, area)) = self.area_at(old) else { return Err(Errno::EFAULT) };
        let area = area.clone();
        if old_len == 0 {
            // A second view of a shared mapping.
            if !area.shared {
                return Err(Errno::EINVAL);
            }
            return self.map(MapRequest {
                addr: fixed.unwrap_or(0),
                len: new_len,
                access: area.access,
                shared: true,
                kind: area.kind.advanced(old - start),
                place: if fixed.is_some() { Place::Fixed } else { Place::Hint },
                name: area.name,
                populate: false,
            });
        }
        if old + old_len > area.end {
            return Err(Errno::EFAULT);
        }
        if fixed.is_none() {
            if new_len <= old_len {
                if new_len < old_len {
                    self.remove(old + new_len, old + old_len);
                }
                return Ok(old);
            }
            let grow = new_len - old_len;
            let at_end = old + old_len == area.end;
            if at_end && is_user_range(area.end, grow) && self.is_free(area.end, area.end + grow) {
                self.map(MapRequest {
                    addr: area.end,
                    len: grow,
                    access: area.access,
                    shared: area.shared,
                    kind: area.kind.advanced(area.end - start),
                    place: Place::FixedNoReplace,
                    name: area.name,
                    populate: false,
                })?;
                return Ok(old);
            }
            if !may_move {
                return Err(Errno::ENOMEM);
            }
        }
        let new = match fixed {
            Some(new) => {
                if !new.is_multiple_of(PAGE)
                    || !is_user_range(new, new_len)
                    || (new < old + old_len && old < new + new_len)
                {
                    return Err(Errno::EINVAL);
                }
                self.remove(new, new + new_len);
                if new_len < old_len {
                    self.remove(old + new_len, old + old_len);
                }
                new
            }
            None => {
                // At the same place in its block, so that chunks can move as they are.
                let slack = old % BLOCK;
                let found = find_free(&self.areas, new_len + BLOCK + slack, self.top, USER_MIN, BLOCK);
                found.map(|f| f + slack).ok_or(Errno::ENOMEM)?
            }
        };
        let moved = old_len.min(new_len);
        let kind = area.kind.advanced(old - start);
        // The new area first, empty; then its pages; then away with the old one.
        if let Kind::Object { object, .. } = &kind {
            object.mapped(1);
        }
        let (mut direct, plain) = (false, area.plain);
        if area.direct
            && let Kind::File { file, offset } = &kind
            && let Some(fd) = file.host_file(area.shared && area.access.contains(Access::WRITE))?
        {
            let backing = Backing::File { fd, offset: *offset, shared: area.shared };
            // SAFETY: a free user range.
            unsafe { platform().map(new, new_len, area.access, backing)? };
            direct = true;
        }
        self.total += new_len;
        let name = area.name;
        self.insert(
            new,
            Area { end: new + new_len, access: area.access, shared: area.shared, kind, direct, plain, name },
        );
        if !area.shared {
            self.move_slots(old, new, moved, area.access)?;
        }
        self.remove(old, old + moved.max(old_len.min(new_len)));
        if old_len > moved {
            self.remove(old + moved, old + old_len);
        }
        Ok(new)
    }

    /// Moves the pages of `[old, old + len)` to `new`.
    fn move_slots(&mut self, old: u64, new: u64, len: u64, access: Access) -> Result<()> {
        let congruent = old % SLOT == new % SLOT;
        let mut batch = Batch::new();
        let slots: Vec<(u64, Slot)> =
            self.slots.range(old & !(SLOT - 1)..old + len).map(|(s, v)| (*s, *v)).collect();
        for (s, slot) in slots {
            let bits = page_bits(s, old, old + len) & slot.mapped;
            if bits == 0 {
                continue;
            }
            let target = s.wrapping_add(new.wrapping_sub(old));
            if congruent && bits == slot.mapped && !self.slots.contains_key(&target) {
                let (a, b) = (s.max(old), (s + SLOT).min(old + len));
                self.slots.remove(&s);
                self.slots.insert(target, slot);
                // SAFETY: a user range.
                unsafe { batch.add(Change::Unmap { addr: a, len: b - a })? };
                show_in(&mut batch, target, slot.frame, bits, access)?;
                continue;
            }
            for page in 0..16u64 {
                if bits & 1 << page == 0 {
                    continue;
                }
                let to = s.wrapping_add(page * PAGE).wrapping_add(new.wrapping_sub(old));
                let (slot_to, page_to) = (to & !(SLOT - 1), to % SLOT / PAGE);
                let frame = self.slot_frame(slot_to)?;
                let from = memory().address((u64::from(slot.frame) + page) * PAGE);
                let dest = memory().address((u64::from(frame) + page_to) * PAGE);
                // SAFETY: both pages are this space's; they differ.
                unsafe { core::ptr::copy_nonoverlapping(from, dest, PAGE as usize) };
                self.slots.get_mut(&slot_to).expect("just made").mapped |= 1 << page_to;
                self.resident += 1;
                show_in(&mut batch, slot_to, frame, 1 << page_to, access)?;
            }
        }
        batch.send()
    }

    /// The chunk of a slot, taken now if there is none.
    fn slot_frame(&mut self, slot: u64) -> Result<u32> {
        match self.slots.get(&slot) {
            Some(s) => Ok(s.frame),
            None => self.take_slot(slot).map(|s| s.frame),
        }
    }

    /// A chunk for a slot that has none.
    fn take_slot(&mut self, slot: u64) -> Result<Slot> {
        let offset = take_pages_hard(CHUNK_ORDER).ok_or(Errno::ENOMEM)?;
        let taken = Slot { frame: (offset / PAGE) as u32, mapped: 0 };
        self.slots.insert(slot, taken);
        Ok(taken)
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
        // Write implies read on this processor, and so does execute.
        let readable = !area.access.difference(Access::POPULATE).is_empty();
        if !(area.access.contains(need) || need == Access::READ && readable) {
            return Err(Denied::Access);
        }
        let area = area.clone();
        if area.direct {
            let slot = self.slots.get(&(addr & !(SLOT - 1)));
            let over = slot.is_some_and(|s| s.mapped & 1 << (addr % SLOT / PAGE) != 0);
            if !over && let Kind::File { file, offset } = &area.kind {
                // The host maps it, and still it faulted: behind the end of the file, or not mapped yet.
                let at = page_down(addr) - start + offset;
                let mut byte = [0];
                return match file.read(at, &mut byte) {
                    Ok(1) => Ok(()),
                    _ => Err(Denied::Bus),
                };
            }
        }
        match &area.kind {
            Kind::Object { object, offset, .. } => self.fault_object(addr, start, &area, &**object, *offset),
            _ => self.fault_private(addr, start, &area),
        }
    }

    fn fault_object(
        &mut self,
        addr: u64,
        start: u64,
        area: &Area,
        object: &dyn Object,
        offset: u64,
    ) -> core::result::Result<(), Denied> {
        let at = addr - start + offset;
        let size = page_up(object.size());
        if at >= size {
            return Err(Denied::Bus);
        }
        // As much of the object's 64 KiB as the area shows.
        let base = at & !(SLOT - 1);
        let from = base.max(offset);
        let to = (base + SLOT).min(offset + (area.end - start)).min(size);
        let memory_offset = object.chunk(base).map_err(|e| match e {
            Errno::ENOMEM => Denied::NoMemory,
            // What it began with can't be read.
            _ => Denied::Bus,
        })?;
        let backing = Backing::Memory { offset: memory_offset + (from - base) };
        // SAFETY: a user range; the object keeps its memory while it is mapped.
        unsafe {
            platform()
                .map(start + (from - offset), to - from, area.access | Access::POPULATE, backing)
                .map_err(|_| Denied::NoMemory)
        }
    }

    fn fault_private(&mut self, addr: u64, start: u64, area: &Area) -> core::result::Result<(), Denied> {
        let block = addr & !(BLOCK - 1);
        let whole = block >= start && block + BLOCK <= area.end;
        if whole
            && self.resident >= BLOCKS_AFTER
            && matches!(area.kind, Kind::Anonymous)
            && self.slots.range(block..block + BLOCK).next().is_none()
            && let Some(offset) = take_pages(BLOCK_ORDER)
        {
            let frame = (offset / PAGE) as u32;
            for n in 0..(BLOCK / SLOT) {
                let slot = Slot { frame: frame + (n as u32) * 16, mapped: u16::MAX };
                self.slots.insert(block + n * SLOT, slot);
            }
            self.count_resident(BLOCK / PAGE);
            let backing = Backing::Memory { offset };
            // SAFETY: a user range; the block was just taken.
            return unsafe {
                platform()
                    .map(block, BLOCK, area.access | Access::POPULATE, backing)
                    .map_err(|_| Denied::NoMemory)
            };
        }
        let s = addr & !(SLOT - 1);
        // Memory that grows upwards is taken ahead, up to 256 KiB at once.
        let slot = self.slots.get(&s).copied();
        let ahead = if matches!(area.kind, Kind::Anonymous) && s >= start && slot.is_none() {
            let mut n = 1;
            while n < 4 && s + (n + 1) * SLOT <= area.end && !self.slots.contains_key(&(s + n * SLOT)) {
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
            && let Some(offset) = take_pages(CHUNK_ORDER + (ahead as u32).ilog2())
        {
            let frame = (offset / PAGE) as u32;
            for n in 0..ahead {
                let slot = Slot { frame: frame + n as u32 * 16, mapped: u16::MAX };
                self.slots.insert(s + n * SLOT, slot);
            }
            self.count_resident(ahead * 16);
            let backing = Backing::Memory { offset };
            // SAFETY: a user range; the memory was just taken.
            return unsafe {
                platform()
                    .map(s, ahead * SLOT, area.access | Access::POPULATE, backing)
                    .map_err(|_| Denied::NoMemory)
            };
        }
        let Slot { frame, mapped } = match slot {
            Some(slot) => slot,
            None => self.take_slot(s).map_err(|_| Denied::NoMemory)?,
        };
        let wanted = page_bits(s, start.max(s), area.end.min(s + SLOT));
        let have = mapped & wanted;
        let mut missing = wanted & !have;
        if missing == 0 {
            // In place already: another thread was faster, or the host lost it.
            return show(s, frame, have, area.access).map_err(|_| Denied::NoMemory);
        }
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
                    // Beyond the end of the file, or unreadable.
                    return Err(Denied::Bus);
                }
                // Pages beyond the end stay away.
                missing |= page_bits(s, at, at + page_up(n));
            }
        }
        self.slots.get_mut(&s).expect("made above").mapped |= missing;
        self.count_resident(u64::from(missing.count_ones()));
        show(s, frame, missing, area.access).map_err(|_| Denied::NoMemory)
    }

    fn count_resident(&mut self, pages: u64) {
        self.resident += pages;
        self.peak = self.peak.max(self.resident);
    }

    /// Rewrites the system-call sites of a private file mapping that is about to become executable.
    fn rewrite(&mut self, start: u64, end: u64) {
        let Some((s, area)) = self.area_at(start) else { return };
        let Kind::File { file, offset } = &area.kind else { return };
        let (file, file_start) = (file.clone(), offset + (start - s));
        let Some(plan) = file.rewriting() else { return };
        let address = |site: &RewriteSite| start + (site.offset - file_start);
        let mut sites = plan.sites(file_start, file_start + (end - start));
        // It may have been executable before.
        sites.retain(|site| !self.windows.contains_key(&address(site)));
        if sites.is_empty() {
            return;
        }
        let room = plan.room(&sites);
        let Some(mut trampoline) = self.trampoline_room(start, end, room) else { return };
        let mut left = &sites[..];
        while let Some(first) = left.first() {
            // Sites near each other, whose pages become ours together.
            let from = page_down(address(first));
            let page_end = |site: &RewriteSite| page_up(address(site) + u64::from(site.len)).min(end);
            let n = 1 + left.windows(2).take_while(|w| address(&w[1]) <= page_end(&w[0]) + TEXT_GAP).count();
            let (group, rest) = left.split_at(n);
            left = rest;
            let to = group.last().map_or(from, page_end);
            if self.own_text(from, to, file_start + (from - start), &file).is_err() {
                return;
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
                self.windows.insert(at, Window { len: site.len, trampoline, moved });
                self.trampolines_of.insert(trampoline, at);
                self.rewritten += 1;
                trampoline += u64::from(moved.len).next_multiple_of(16);
            }
        }
    }

    /// Room for trampolines within reach of `[start, end)`.
    fn trampoline_room(&mut self, start: u64, end: u64, room: u64) -> Option<u64> {
        const REACH: u64 = 0x7000_0000;
        let (next, limit) = self.trampolines;
        let near = |a: u64| a.abs_diff(start) < REACH && a.abs_diff(end) < REACH;
        if next != 0 && next + room <= limit && near(next) {
            self.trampolines.0 = next + room;
            return Some(next);
        }
        let len = room.next_multiple_of(SLOT);
        // Above the mapping if there is room (an executable grows down to its heap), else below.
        let top = end.saturating_add(REACH).min(USER_MAX);
        let low = start.saturating_sub(REACH).max(USER_MIN);
        let at = find_free(&self.areas, len, start, low, PAGE)
            .or_else(|| find_free(&self.areas, len, top, end, PAGE))?;
        let area = Area {
            end: at + len,
            access: Access::READ | Access::EXEC,
            shared: false,
            kind: Kind::Anonymous,
            direct: false,
            plain: false,
            name: "[atoll]",
        };
        self.total += len;
        self.areas.insert(at, area);
        self.trampolines = (at + room, at + len);
        Some(at)
    }

    /// Makes pages of a private file mapping pages of slots, with the file's
    /// contents: in one piece of memory per 64 KiB or, where there is one free,
    /// per power of two of that, so that the host has few mappings to keep.
    fn own_text(&mut self, from: u64, to: u64, offset: u64, file: &Arc<dyn Mappable>) -> Result<()> {
        let mut s = from & !(SLOT - 1);
        while s < to {
            let mut order = 0;
            while order < BLOCK_ORDER - CHUNK_ORDER
                && s + (SLOT << (order + 1)) < to + SLOT
                && self.slots.range(s..s + (SLOT << (order + 1))).next().is_none()
            {
                order += 1;
            }
            if order > 0
                && let Some(offset) = take_pages(CHUNK_ORDER + order)
            {
                let frame = (offset / PAGE) as u32;
                for n in 0..1u32 << order {
                    self.slots.insert(s + u64::from(n) * SLOT, Slot { frame: frame + n * 16, mapped: 0 });
                }
            } else {
                order = 0;
                self.slot_frame(s)?;
            }
            s += SLOT << order;
        }
        // What is there already (a part of the file that was made ours before) stays as it is.
        let mut fresh: Vec<(u64, u64, u64)> = Vec::new();
        for (s, slot) in self.slots.range(from & !(SLOT - 1)..to) {
            add_runs(&mut fresh, *s, slot.frame, page_bits(*s, from, to) & !slot.mapped);
        }
        for (addr, len, at) in fresh {
            let n = read_pages(&**file, addr - from + offset, at, len)? as u64;
            // SAFETY: the pages are this space's slots' and not mapped yet.
            unsafe { memory().address(at + n).write_bytes(0, (len - n) as usize) };
            let backing = Backing::Memory { offset: at };
            // SAFETY: a user range; the pages are this space's slots'.
            unsafe { platform().map(addr, len, Access::READ | Access::POPULATE, backing)? };
            for (s, slot) in self.slots.range_mut(addr & !(SLOT - 1)..addr + len) {
                slot.mapped |= page_bits(*s, addr, addr + len);
            }
            self.count_resident(len / PAGE);
        }
        Ok(())
    }

    /// Where a byte of a slot lies in the cell's memory, and how many bytes of its page there are from it on.
    fn slot_byte(&self, addr: u64) -> Option<(*mut u8, usize)> {
        let slot = self.slots.get(&(addr & !(SLOT - 1)))?;
        let p = memory().address(u64::from(slot.frame) * PAGE + addr % SLOT);
        Some((p, (PAGE - addr % PAGE) as usize))
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
            let page = a % SLOT / PAGE;
            if self.slots.get(&(a & !(SLOT - 1))).is_none_or(|slot| slot.mapped & 1 << page == 0) {
                // Only trampolines get here: anonymous memory that is not populated yet.
                if self.fault(a, false, true).is_err() {
                    return;
                }
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

/// A free range of `len` bytes; the highest that ends at or below `top` and starts at or above `low`.
fn find_free(areas: &BTreeMap<u64, Area>, len: u64, top: u64, low: u64, align: u64) -> Option<u64> {
    let place = |gap: u64, end: u64| {
        let mut start = end.checked_sub(len)? & !(align - 1);
        if start < RUNTIME_END && start + len > RUNTIME_BASE {
            start = RUNTIME_BASE.checked_sub(len)? & !(align - 1);
        }
        (start >= gap).then_some(start)
    };
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
        end = *start;
    }
    place(low, end)
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

/// Maps pages of a slot.
fn show(slot: u64, frame: u32, bits: u16, access: Access) -> Result<()> {
    let mut batch = Batch::new();
    show_in(&mut batch, slot, frame, bits, access)?;
    batch.send()
}

fn show_in(batch: &mut Batch, slot: u64, frame: u32, mut bits: u16, access: Access) -> Result<()> {
    let frame = u64::from(frame);
    while bits != 0 {
        let first = bits.trailing_zeros() as u64;
        let len = (bits >> first).trailing_ones() as u64;
        bits &= !(page_mask(len) << first);
        let (addr, len) = (slot + first * PAGE, len * PAGE);
        let (access, offset) = (access | Access::POPULATE, (frame + first) * PAGE);
        // SAFETY: a user range; the pages are this slot's.
        unsafe { batch.add(Change::Map { addr, len, access, offset })? };
    }
    Ok(())
}

fn drop_mapping(kind: &Kind) {
    if let Kind::Object { object, .. } = kind {
        object.mapped(-1);
    }
}

/// Adds a slot's pages (a bit each) to runs of address, length and offset in memory.
fn add_runs(runs: &mut Vec<(u64, u64, u64)>, slot: u64, frame: u32, mut bits: u16) {
    while bits != 0 {
        let first = bits.trailing_zeros() as u64;
        let len = (bits >> first).trailing_ones() as u64;
        bits &= !(page_mask(len) << first);
        let (addr, offset) = (slot + first * PAGE, (u64::from(frame) + first) * PAGE);
        match runs.last_mut() {
            Some((a, l, o)) if *a + *l == addr && *o + *l == offset => *l += len * PAGE,
            _ => runs.push((addr, len * PAGE, offset)),
        }
    }
}

/// `n` low bits.
fn page_mask(n: u64) -> u16 {
    ((1u32 << n) - 1) as u16
}

/// The pages of a slot that lie in `[start, end)`.
fn page_bits(slot: u64, start: u64, end: u64) -> u16 {
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
                    areas.insert(start, Area { end, access, shared: false, kind, direct: false, plain: false, name: "" });
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
