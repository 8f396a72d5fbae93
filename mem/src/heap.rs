//! The runtime's own allocator: per-core lists of size classes over [`pages`](crate::pages).
//!
//! Small objects come from one core's lists without an atomic operation. A
//! list that grows too long gives half of itself to the class's exchange, a
//! lock-free stack of batches from which another core's empty list takes. When
//! memory is short, pages of which all objects are free go back ([`trim`]).
//! Anything over 2 KiB is a chunk of pages; anything over 2 MiB is whole blocks.
#![allow(unsafe_code, reason = "implements GlobalAlloc")]

use alloc::boxed::Box;
use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::pages::{BLOCK_ORDER, BLOCK_PAGES, CorePages, Memory, Mobility, payer_now};
use crate::user::Present;
use atoll_abi::core_local::core_local;
use atoll_abi::grid::INFRASTRUCTURE;
use atoll_abi::layout::{
    BLOCK, MAX_CORES, NEAR_TABLE, PAGE, Sizes, mixed_blocks, page_table, small_tables, table_blocks,
};
use atoll_abi::platform;
use atoll_sync::SetOnce;

/// Sizes of the classes, bytes. All are multiples of 16.
const SIZES: [u32; 22] = [
    16, 32, 48, 64, 80, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 1024, 1280, 1536, 1792,
    2048,
];
/// Largest size of the classes.
const SMALL_MAX: usize = 2048;
/// For each 16 bytes, the class that holds them.
const CLASS_OF: [u8; SMALL_MAX / 16 + 1] = {
    let mut table = [0; SMALL_MAX / 16 + 1];
    let mut class = 0;
    let mut i = 0;
    while i < table.len() {
        while (SIZES[class] as usize) < i * 16 {
            class += 1;
        }
        table[i] = class as u8;
        i += 1;
    }
    table
};
/// Objects moved between a core and the exchange at a time.
const BATCH: u32 = 32;
/// Batches that a class's exchange has been given before it is worth looking whether whole chunks are free.
const TRIM_AFTER: u32 = 16;

/// Order of the chunks that objects of a class lie in: 4 to 32 KiB, so that one holds at least eight.
const fn chunk_order(class: usize) -> u32 {
    (SIZES[class] as usize * 8).div_ceil(PAGE as usize).next_power_of_two().ilog2()
}

/// Objects in a chunk of a class.
const fn in_chunk(class: usize) -> usize {
    ((PAGE as usize) << chunk_order(class)) / SIZES[class] as usize
}

struct Object {
    next: *mut Object,
    /// First object of a batch in the exchange: the next batch.
    next_batch: *mut Object,
}

#[derive(Clone, Copy)]
struct List {
    head: *mut Object,
    len: u32,
}

/// One core's memory: its pages and its lists of small objects.
pub struct CoreHeap {
    pages: CorePages,
    lists: [List; SIZES.len()],
    present: Present,
    /// Of chunks of this order, others had none to give when they were last asked; until when that is believed, ns.
    in_vain: (u32, u64),
}

/// A core's part, on cache lines of its own.
#[repr(align(128))]
struct Place(UnsafeCell<CoreHeap>);

/// All cores' memory.
pub struct Heap {
    memory: Memory,
    /// The cores' parts: all made at boot, so that a core that is never used takes no memory of its own.
    cores: Box<[Place]>,
    exchange: [Exchange; SIZES.len()],
    /// Batches that each exchange was given since it was last trimmed.
    given: [AtomicU32; SIZES.len()],
}

/// A stack of batches. The top sixteen bits of the word count changes, so
/// that a batch that went and came back is told from one that stayed (ABA).
struct Exchange(AtomicU64);

const _: () = assert!(size_of::<Place>() <= 1008, "what a core has in `small_tables`, with its stack");

// SAFETY: each core uses only its own place.
unsafe impl Sync for Place {}
// SAFETY: objects in its lists belong to no thread.
unsafe impl Send for Place {}

const ADDRESS: u64 = (1 << 48) - 1;

impl Exchange {
    fn push(&self, batch: *mut Object) {
        let mut top = self.0.load(Ordering::Relaxed);
        loop {
            // SAFETY: the batch is ours until the exchange succeeds.
            unsafe { (*batch).next_batch = (top & ADDRESS) as *mut Object };
            let new = batch as u64 | (top & !ADDRESS).wrapping_add(1 << 48);
            match self.0.compare_exchange_weak(top, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }

    fn pop(&self) -> *mut Object {
        let mut top = self.0.load(Ordering::Acquire);
        loop {
            let batch = (top & ADDRESS) as *mut Object;
            if batch.is_null() {
                return batch;
            }
            // SAFETY: heap memory is never unmapped, so a stale read is harmless: the exchange then fails.
            let next = unsafe { (&raw const (*batch).next_batch).read_volatile() };
            let new = next as u64 | (top & !ADDRESS).wrapping_add(1 << 48);
            match self.0.compare_exchange_weak(top, new, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return batch,
                Err(now) => top = now,
            }
        }
    }
}

impl Heap {
    /// A heap over this memory.
    pub fn new(memory: Memory) -> Self {
        let cores = Self::places(memory.cores());
        Self::with_places(memory, cores)
    }

    fn places(cores: usize) -> Box<[Place]> {
        (0..cores).map(|n| Place(UnsafeCell::new(CoreHeap::new(n)))).collect()
    }

    fn with_places(memory: Memory, cores: Box<[Place]>) -> Self {
        Heap {
            memory,
            cores,
            exchange: [const { Exchange(AtomicU64::new(0)) }; SIZES.len()],
            given: [const { AtomicU32::new(0) }; SIZES.len()],
        }
    }

    /// The memory below.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Is there so much memory that nobody need look more closely?
    fn has_plenty(&self) -> bool {
        self.memory.pool().free() > kept(self) + 1
    }

    /// Is there no more of whole blocks than is kept? Then pieces come first.
    fn is_scarce(&self) -> bool {
        self.memory.pool().free() <= kept(self)
    }

    /// May a program or a file have 2^order pages? Not those that are kept. Pages in the hands of another core, this one can ask for.
    fn may_give(&self, order: u32) -> bool {
        !self.is_scarce() || self.memory.free_pages() >= kept_pages(self) + (1 << order)
    }

    /// Bytes that a request of this layout takes.
    fn rounded(layout: Layout) -> usize {
        layout.size().max(layout.align()).max(1)
    }
}

impl CoreHeap {
    fn new(core: usize) -> Self {
        CoreHeap {
            pages: CorePages::new(core),
            lists: [List { head: null_mut(), len: 0 }; SIZES.len()],
            present: Present::new(),
            in_vain: (0, 0),
        }
    }

    /// This core's pages.
    pub fn pages(&mut self) -> &mut CorePages {
        &mut self.pages
    }

    /// Pages of programs that were found in place.
    pub(crate) fn present(&mut self) -> &mut Present {
        &mut self.present
    }

    /// Takes memory; null if there is none.
    pub fn alloc(&mut self, heap: &Heap, layout: Layout) -> *mut u8 {
        self.alloc_from(heap, layout, true)
    }

    /// The same, if `may_lease` is not set only from blocks that somebody has.
    fn alloc_from(&mut self, heap: &Heap, layout: Layout, may_lease: bool) -> *mut u8 {
        let size = Heap::rounded(layout);
        // Classes above 256 are not all multiples of large alignments: those go by pages.
        if size <= SMALL_MAX && (layout.align() <= 16 || layout.align() >= size) {
            let size = if layout.align() > 16 { size.next_power_of_two() } else { size };
            return self.small(heap, CLASS_OF[size.div_ceil(16)] as usize, may_lease);
        }
        let pages = size.div_ceil(PAGE as usize);
        let order = pages.next_power_of_two().ilog2();
        self.look_at_reserve(heap);
        let offset = if order <= BLOCK_ORDER {
            self.pages.alloc_for(&heap.memory, order, Mobility::Fixed, payer_now().1, may_lease)
        } else if layout.align() as u64 <= BLOCK {
            heap.memory.claim_blocks(size.div_ceil(BLOCK as usize))
        } else {
            None
        };
        offset.map_or(null_mut(), |o| heap.memory.address(o))
    }

    /// Gives memory back.
    ///
    /// # Safety
    /// `p` is from [`CoreHeap::alloc`] of any core of the same heap, with the same layout.
    pub unsafe fn free(&mut self, heap: &Heap, p: *mut u8, layout: Layout) {
        let size = Heap::rounded(layout);
        if size <= SMALL_MAX && (layout.align() <= 16 || layout.align() >= size) {
            let size = if layout.align() > 16 { size.next_power_of_two() } else { size };
            let class = CLASS_OF[size.div_ceil(16)] as usize;
            #[cfg(debug_assertions)]
            // SAFETY: the object is the caller's, and now ours.
            unsafe {
                crate::poison::fill_object(p, SIZES[class] as usize)
            };
            // SAFETY: as above.
            unsafe { self.put(heap, class, p.cast()) };
            return;
        }
        let offset = heap.memory.offset(p).expect("freed memory is not of this heap");
        let order = size.div_ceil(PAGE as usize).next_power_of_two().ilog2();
        if order <= BLOCK_ORDER {
            self.pages.free(&heap.memory, offset, order);
        } else {
            heap.memory.release_blocks(offset, size.div_ceil(BLOCK as usize));
        }
    }

    #[inline]
    fn small(&mut self, heap: &Heap, class: usize, may_lease: bool) -> *mut u8 {
        if self.lists[class].head.is_null() && !self.refill(heap, class, may_lease) {
            return null_mut();
        }
        let list = &mut self.lists[class];
        let object = list.head;
        // SAFETY: objects in the list are free, ours, and hold a link.
        list.head = unsafe { (*object).next };
        list.len -= 1;
        #[cfg(debug_assertions)]
        // SAFETY: whoever put it into the list has filled it.
        unsafe {
            crate::poison::check_object(object.cast(), SIZES[class] as usize)
        };
        object.cast()
    }

    /// Puts a free object into this core's list.
    ///
    /// # Safety
    /// Nobody has the object.
    #[inline(always)]
    unsafe fn put(&mut self, heap: &Heap, class: usize, object: *mut Object) {
        let list = &mut self.lists[class];
        // Volatile: linked into the caller, what is written to memory that it just gave up would be left out.
        // SAFETY: the caller's promise.
        unsafe { object.write_volatile(Object { next: list.head, next_batch: null_mut() }) };
        *list = List { head: object, len: list.len + 1 };
        if list.len >= 2 * BATCH {
            self.give(heap, class);
        }
    }

    #[cold]
    fn refill(&mut self, heap: &Heap, class: usize, may_lease: bool) -> bool {
        let batch = heap.exchange[class].pop();
        if !batch.is_null() {
            self.lists[class] = List { head: batch, len: BATCH };
            return true;
        }
        self.look_at_reserve(heap);
        let size = SIZES[class] as usize;
        let order = chunk_order(class);
        // Small objects are everybody's.
        let taken = self.pages.alloc_for(&heap.memory, order, Mobility::Fixed, INFRASTRUCTURE, may_lease);
        let Some(offset) = taken else { return false };
        let start = heap.memory.address(offset);
        let n = in_chunk(class);
        let mut head = null_mut();
        for i in (0..n).rev() {
            let object = start.wrapping_add(i * size).cast::<Object>();
            #[cfg(debug_assertions)]
            // SAFETY: the chunk is ours.
            unsafe {
                crate::poison::fill_object(object.cast(), size)
            };
            // SAFETY: the chunk is ours and holds `n` objects.
            unsafe { object.write(Object { next: head, next_batch: null_mut() }) };
            head = object;
        }
        self.lists[class] = List { head, len: n as u32 };
        true
    }

    /// Gives the alarm when what the runtime's own objects take comes near to what is kept for them.
    fn look_at_reserve(&self, heap: &Heap) {
        if !heap.has_plenty()
            && heap.memory.free_pages() < nearly_kept(heap)
            && let Some(alarm) = ALARM.get()
        {
            alarm();
        }
    }

    #[cold]
    fn give(&mut self, heap: &Heap, class: usize) {
        let list = &mut self.lists[class];
        let batch = list.head;
        let mut last = batch;
        // SAFETY: the list has at least BATCH objects, all ours.
        unsafe {
            for _ in 1..BATCH {
                last = (*last).next;
            }
            list.head = (*last).next;
            (*last).next = null_mut();
        }
        list.len -= BATCH;
        heap.exchange[class].push(batch);
        heap.given[class].fetch_add(1, Ordering::Relaxed);
    }

    /// Gives pages back of which all objects are free, and are in the exchange or this core's lists. Value: pages.
    fn trim(&mut self, heap: &Heap) -> u64 {
        (0..SIZES.len())
            .filter(|class| heap.given[*class].load(Ordering::Relaxed) >= TRIM_AFTER)
            .map(|class| self.trim_class(heap, class))
            .sum()
    }

    /// There is no memory to count in: objects are counted in the first one of their chunk, if that is free as well, which a mark of
    /// its page tells.
    fn trim_class(&mut self, heap: &Heap, class: usize) -> u64 {
        heap.given[class].store(0, Ordering::Relaxed);
        let mut all = self.take_all(heap, class);
        let memory = &heap.memory;
        let chunk = PAGE << chunk_order(class);
        // The chunk's offset, and whether the object is its first.
        let place = |object: *mut Object| {
            let offset = memory.offset(object.cast()).expect("a free object is the heap's");
            (offset & !(chunk - 1), offset.is_multiple_of(chunk))
        };
        let first_of = |start: u64| memory.address(start).cast::<Object>();
        each(all, |object| {
            let (start, is_first) = place(object);
            if is_first {
                memory.set_mark(start, true);
                // SAFETY: the object is free, and nobody else has it.
                unsafe { (*object).next_batch = null_mut() };
            }
        });
        each(all, |object| {
            let (start, _) = place(object);
            if memory.is_marked(start) {
                let count = first_of(start);
                // SAFETY: the first object is one of these.
                unsafe { (*count).next_batch = (*count).next_batch.wrapping_byte_add(1) };
            }
        });
        let (mut kept, mut whole) = (null_mut(), null_mut::<Object>());
        while !all.is_null() {
            let object = all;
            // SAFETY: the object is free, and nobody else has it.
            all = unsafe { (*object).next };
            let (start, is_first) = place(object);
            // SAFETY: as above.
            let is_whole =
                memory.is_marked(start) && unsafe { (*first_of(start)).next_batch.addr() } == in_chunk(class);
            let to = match (is_whole, is_first) {
                (true, true) => &mut whole,
                // It goes with the first.
                (true, false) => continue,
                (false, _) => &mut kept,
            };
            // SAFETY: as above.
            unsafe { (*object).next = *to };
            *to = object;
        }
        let mut pages = 0;
        while !whole.is_null() {
            let (start, _) = place(whole);
            // SAFETY: as above.
            whole = unsafe { (*whole).next };
            pages += chunk / PAGE;
            self.pages.free(memory, start, chunk_order(class));
        }
        while !kept.is_null() {
            let object = kept;
            let (start, is_first) = place(object);
            if is_first {
                memory.set_mark(start, false);
            }
            // SAFETY: as above.
            unsafe {
                kept = (*object).next;
                self.put(heap, class, object);
            }
        }
        // What was put back is no reason to look again.
        heap.given[class].store(0, Ordering::Relaxed);
        pages
    }

    /// All free objects of a class that are in the exchange and in this core's list.
    fn take_all(&mut self, heap: &Heap, class: usize) -> *mut Object {
        let mut all = null_mut();
        let mut add = |mut head: *mut Object| {
            while !head.is_null() {
                let object = head;
                // SAFETY: free objects that were taken out of their list.
                unsafe {
                    head = (*object).next;
                    (*object).next = all;
                }
                all = object;
            }
        };
        add(core::mem::replace(&mut self.lists[class], List { head: null_mut(), len: 0 }).head);
        loop {
            let batch = heap.exchange[class].pop();
            if batch.is_null() {
                return all;
            }
            add(batch);
        }
    }
}

/// Calls `f` with each object of a list, which does not change the list.
fn each(mut list: *mut Object, mut f: impl FnMut(*mut Object)) {
    while !list.is_null() {
        // SAFETY: the caller has all of the list.
        let next = unsafe { (*list).next };
        f(list);
        list = next;
    }
}

static HEAP: SetOnce<Heap> = SetOnce::new();

/// The cell's heap.
pub fn heap() -> &'static Heap {
    &HEAP
}

/// The cell's memory.
pub fn memory() -> &'static Memory {
    HEAP.memory()
}

/// Memory for the time before there is a heap: the tables of the heap itself.
pub struct EarlyMemory {
    start: UnsafeCell<u64>,
    next: UnsafeCell<u64>,
    end: UnsafeCell<u64>,
}

// SAFETY: used by the boot core only, before others run.
unsafe impl Sync for EarlyMemory {}

/// The runtime's allocator, for `#[global_allocator]`.
pub struct RuntimeAllocator {
    early: EarlyMemory,
}

impl RuntimeAllocator {
    /// An allocator that has nothing yet.
    #[allow(clippy::new_without_default, reason = "there is one, a static")]
    pub const fn new() -> Self {
        RuntimeAllocator {
            early: EarlyMemory {
                start: UnsafeCell::new(0),
                next: UnsafeCell::new(0),
                end: UnsafeCell::new(0),
            },
        }
    }

    /// Starts allocation: the first blocks from `base` on serve the
    /// heap's own tables, the rest is the heap. Called once, on the boot core.
    ///
    /// # Safety
    /// As for [`Memory::new`] with the most that there can be, but that only what is there now can be touched, and that, without `zeroed`, what is behind the first [`table_blocks`] blocks may hold
    /// anything; nothing may have been allocated before.
    pub unsafe fn start(&self, base: *mut u8, sizes: Sizes, cores: usize, zeroed: bool) {
        let size = sizes.most;
        let (small, pages) = (small_tables(size, cores as u64), page_table(size));
        // The part that is used at once lies in the first block, behind memory of the first
        // core: a small program's cell gets by with that block. What it needs only when it
        // grows lies in the next.
        let front = (small + pages.min(NEAR_TABLE)).next_multiple_of(PAGE).min(BLOCK);
        let first = BLOCK - front;
        let tables = table_blocks(size, cores as u64) * BLOCK;
        // SAFETY: nobody else runs yet.
        unsafe {
            *self.early.start.get() = base as u64 + first;
            *self.early.next.get() = base as u64 + first;
            *self.early.end.get() = base as u64 + tables;
        }
        // First: behind the table of pages, they would lie far away.
        let places = Heap::places(cores);
        // SAFETY: the caller's promise.
        let memory = unsafe { Memory::new(base, size, cores) };
        let mixed = mixed_blocks(size, cores as u64) * BLOCK;
        let memory = memory.with_zones(sizes.now, sizes.least, mixed).with_reserved(tables - first);
        if !zeroed {
            memory.distrust(tables);
        }
        for b in 0..tables / BLOCK {
            assert!(memory.pool().claim_at(b as usize));
        }
        let mut heap = Heap::with_places(memory, places);
        let Heap { memory, cores, .. } = &mut heap;
        cores[0].0.get_mut().pages.adopt(memory, 0, first);
        assert!(HEAP.set(heap).is_ok(), "the heap was started twice");
    }
}

/// Gives the core that calls its part of the heap, at its boot.
pub fn start_core(core: usize) {
    core_local().memory.store(heap().cores[core].0.get().cast(), Ordering::Relaxed);
}

/// Runs `f` with this core's memory.
#[inline]
pub fn with_core<R>(f: impl FnOnce(&mut CoreHeap, &'static Heap) -> R) -> R {
    let p = core_local().memory.load(Ordering::Relaxed).cast::<CoreHeap>();
    assert!(!p.is_null(), "this core has no heap yet");
    // SAFETY: each core has its own, upcalls are masked in the runtime, and
    // `f` can't get at it a second time: nothing in this crate calls out.
    f(unsafe { &mut *p }, heap())
}

// SAFETY: objects are disjoint and live until freed; see the parts.
unsafe impl GlobalAlloc for RuntimeAllocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match HEAP.get() {
            Some(_) => {
                let p = with_core(|core, heap| core.alloc_from(heap, layout, !heap.is_scarce()));
                if p.is_null() { alloc_after_asking(layout) } else { p }
            }
            None => {
                // SAFETY: before the heap starts, one core runs.
                unsafe {
                    let at = (*self.early.next.get()).next_multiple_of(layout.align().max(16) as u64);
                    let end = at + layout.size() as u64;
                    if end > *self.early.end.get() {
                        return null_mut();
                    }
                    *self.early.next.get() = end;
                    at as *mut u8
                }
            }
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let p = unsafe { self.alloc(layout) };
        // Early memory is fresh, hence zero: tables that it holds stay untouched until used.
        if !p.is_null() && HEAP.get().is_some() {
            // SAFETY: just allocated.
            unsafe { p.write_bytes(0, layout.size()) };
        }
        p
    }

    #[inline]
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: reading the bounds only.
        let early = unsafe { (*self.early.start.get()..*self.early.end.get()).contains(&(p as u64)) };
        if HEAP.get().is_some() && !early {
            // SAFETY: the caller's promise.
            with_core(|core, heap| unsafe { core.free(heap, p, layout) });
        }
    }
}

/// Memory for an object of the runtime's, from what other cores have. Null: they have none, either.
#[cold]
fn alloc_after_asking(layout: Layout) -> *mut u8 {
    let size = Heap::rounded(layout);
    let order = if size <= SMALL_MAX && layout.align() <= SMALL_MAX {
        chunk_order(CLASS_OF[size.max(layout.align()).div_ceil(16)] as usize)
    } else {
        size.div_ceil(PAGE as usize).next_power_of_two().ilog2()
    };
    let take = |may_lease| with_core(|core, heap| core.alloc_from(heap, layout, may_lease));
    if order > BLOCK_ORDER {
        return take(true);
    }
    // Pieces that others have, as long as they have some, so that whole blocks are left for what needs much in one piece.
    let got = if ask(order, Mobility::Fixed, PAGE_WAIT, false) { take(false) } else { null_mut() };
    let got = if got.is_null() { take(true) } else { got };
    // A cell whose runtime finds no memory ends: that is worth some patience.
    if got.is_null() && ask(order, Mobility::Fixed, OBJECT_WAIT, true) { take(true) } else { got }
}

/// How long is waited for what other cores answer, ns: for a page of a program's, and for an object of the runtime's. They answer
/// within some 20 us, unless the host has none of its processors for them.
const PAGE_WAIT: u64 = 20_000_000;
const OBJECT_WAIT: u64 = 1_000_000_000;
/// After a question that was of no use it isn't asked again for so long, ns.
const IN_VAIN: u64 = 5_000_000;

static ASKER: SetOnce<fn(&[u64; MAX_CORES / 64])> = SetOnce::new();

/// Says who has cores, of which each is a bit, call [`tidy`] soon.
pub fn set_asker(asker: fn(&[u64; MAX_CORES / 64])) {
    // Once in a cell's life; a second time changes nothing.
    let _ = ASKER.set(asker);
}

/// Asks other cores for 2^order pages for a program or a file. False: they have none that it may have, or this core has enough itself.
pub fn ask_for_pages(order: u32) -> bool {
    heap().may_give(order) && ask(order, Mobility::Movable, PAGE_WAIT, false)
}

/// The same, before somebody is ended for want of them: with as much patience as for an object.
pub fn insist_on_pages(order: u32) -> bool {
    heap().may_give(order) && ask(order, Mobility::Movable, OBJECT_WAIT, true)
}

/// Asks other cores for chunks of 2^order pages, and waits until there are some, without letting others run here, as the caller may hold
/// locks. `again`: although they had none a moment ago.
#[cold]
fn ask(order: u32, mobility: Mobility, wait: u64, again: bool) -> bool {
    let memory = memory();
    let (me, begun) = (core_local().id(), platform().now());
    let Some(asker) = ASKER.get() else { return false };
    let asks = with_core(|core, _| {
        let mine = core.pages.free_pages() + memory.pool().free() * BLOCK_PAGES;
        let others = memory.free_pages().saturating_sub(mine);
        let in_vain = !again && order >= core.in_vain.0 && begun < core.in_vain.1;
        others >= 1 << order && !in_vain
    });
    if !asks {
        return false;
    }
    let number = memory.ask(me, order, mobility);
    let mut others = memory.owners();
    others[me / 64] &= !(1 << (me % 64));
    asker(&others);
    let got = loop {
        let answered = memory.have_answered(number, &others);
        // Others may ask this core meanwhile.
        let got = with_core(|core, _| {
            core.pages.tidy(memory);
            core.pages.has(order) || core.pages.has_gift(memory, order)
        });
        if got || answered || platform().now() - begun > wait {
            break got;
        }
        core::hint::spin_loop();
    };
    memory.asked(me);
    with_core(|core, _| {
        if !got {
            core.in_vain = (order, platform().now() + IN_VAIN);
        } else if order >= core.in_vain.0 {
            // There is some by now.
            core.in_vain = (0, 0);
        }
    });
    got
}

/// Calls what takes so many bytes of pages, and says whether there were any.
pub type Server = fn(u64, &mut dyn FnMut() -> bool);
static SERVER: SetOnce<Server> = SetOnce::new();

/// Has whatever takes pages for programs and files call this, which keeps the books of it.
pub fn set_server(server: Server) {
    // Once in a cell's life; a second time changes nothing.
    let _ = SERVER.set(server);
}

/// One in so many blocks is kept for the runtime's own objects, which can't do without, and at least one, at most so many.
const KEPT: usize = 64;
const KEPT_MOST: usize = 32;
/// In a small cell it may be one for each core, if that is no more than one in so many.
const KEPT_SMALL: usize = 16;

fn kept(heap: &Heap) -> usize {
    let blocks = heap.memory.pool().staying();
    // Each core takes a block at a time.
    let least = heap.cores.len().min(blocks / KEPT_SMALL).max(1);
    (blocks / KEPT).max(least).min(KEPT_MOST)
}

fn kept_pages(heap: &Heap) -> usize {
    kept(heap) * BLOCK_PAGES
}

/// Is there so little memory that a program is not to be given more of the runtime's objects (threads)? That is so before
/// programs' own pages come to an end.
pub fn is_short() -> bool {
    memory().free_pages() < 2 * kept_pages(heap())
}

/// So many pages are kept, and a few: with less, calls that make objects fail, so that they do before pages of programs come to
/// an end, for which somebody is ended.
fn nearly_kept(heap: &Heap) -> usize {
    kept_pages(heap) * 5 / 4
}

/// Is there so little memory that a program is not to be given more of the runtime's objects of any kind?
pub fn is_nearly_used_up() -> bool {
    memory().free_pages() < nearly_kept(heap())
}

/// Is three quarters of what is kept for the runtime's own objects gone?
pub fn reserve_is_used_up() -> bool {
    memory().free_pages() < kept_pages(heap()) / 4
}

/// Is there so much memory that no core need ask the two above?
pub fn is_plenty() -> bool {
    heap().has_plenty()
}

/// Gives pages back that held nothing but objects that are free by now, as far as this core can tell. Value: pages.
pub fn trim() -> u64 {
    with_core(|core, heap| core.trim(heap))
}

static ALARM: SetOnce<fn()> = SetOnce::new();

/// Has this called when the runtime's own objects come near to what is kept for them, which may be in the middle of anything: it must do no more
/// than take note.
pub fn set_alarm(alarm: fn()) {
    // Once in a cell's life; a second time changes nothing.
    let _ = ALARM.set(alarm);
}

/// May this activity hold so many pages more?
type Budget = fn(activity: u32, pages: u64) -> bool;
static BUDGET: SetOnce<Budget> = SetOnce::new();
/// Has any a limit?
static HAVE_BUDGETS: AtomicBool = AtomicBool::new(false);

/// Says who looks after limits of activities.
pub fn set_budget(budget: Budget) {
    // Once in a cell's life; a second time changes nothing.
    let _ = BUDGET.set(budget);
}

/// Whether there are such limits, from now on.
pub fn have_budgets(any: bool) {
    HAVE_BUDGETS.store(any, Ordering::Relaxed);
}

/// Do limits keep whom this core works for from taking 2^order pages for a program or a file?
pub fn is_over_budget(order: u32) -> bool {
    HAVE_BUDGETS.load(Ordering::Relaxed) && BUDGET.get().is_some_and(|may| !may(payer_now().1, 1 << order))
}

fn taken(order: u32, mobility: Mobility, zeroed: bool) -> Option<u64> {
    taken_by(order, zeroed, |core, memory, payer, may_lease| {
        core.alloc_for(memory, order, mobility, payer, may_lease)
    })
}

/// Takes 2^order pages by `take`, which is told who pays, and whether it may take blocks that nobody had.
fn taken_by(
    order: u32,
    zeroed: bool,
    take: impl Fn(&mut CorePages, &Memory, u32, bool) -> Option<u64>,
) -> Option<u64> {
    let mut offset = None;
    let mut serve = || {
        offset = with_core(|core, heap| {
            if !heap.may_give(order) {
                return None;
            }
            take(&mut core.pages, &heap.memory, payer_now().1, !heap.is_scarce())
        });
        if let (Some(offset), true) = (offset, zeroed) {
            memory().clear(offset, PAGE << order);
        }
        offset.is_some()
    };
    match SERVER.get() {
        Some(server) => server(PAGE << order, &mut serve),
        None => _ = serve(),
    }
    offset
}

/// Takes 2^order zeroed pages for a program or a file; their offset in the cell's memory. Whoever holds them moves them when their
/// block is to be given back.
pub fn take_pages(order: u32) -> Option<u64> {
    if is_over_budget(order) {
        return None;
    }
    taken(order, Mobility::Movable, true)
}

/// Takes a zeroed page for whose number in the cell's memory `wanted` holds, likewise; it holds for some of any 64 that follow each
/// other. None: there is none among what is looked through.
pub fn take_page_where(wanted: &dyn Fn(u64) -> bool) -> Option<u64> {
    if is_over_budget(0) {
        return None;
    }
    taken_by(0, true, |core, memory, payer, may_lease| core.alloc_where(memory, payer, may_lease, wanted))
}

/// Takes 2^order pages whose contents the caller will overwrite, likewise.
pub fn take_pages_dirty(order: u32) -> Option<u64> {
    if is_over_budget(order) {
        return None;
    }
    taken(order, Mobility::Movable, false)
}

/// Takes 2^order zeroed pages that stay where they are.
pub fn take_fixed_pages(order: u32) -> Option<u64> {
    taken(order, Mobility::Fixed, true)
}

/// Takes 2^order pages that stay where they are, and whose contents the caller will overwrite.
pub fn take_fixed_pages_dirty(order: u32) -> Option<u64> {
    taken(order, Mobility::Fixed, false)
}

/// Does what this core has to for blocks that are to be given back ([`Memory::begin_to_leave`]), and for others that ask.
pub fn tidy() {
    with_core(|core, heap| core.pages.tidy_all(&heap.memory));
}

/// Zeroes some of what this core has free, which takes a few microseconds. Value: how many pages; none: there is nothing to do.
pub fn zero_ahead() -> Option<u32> {
    with_core(|core, heap| core.pages.zero_ahead(&heap.memory))
}

/// Bytes that are not for programs, but kept for the runtime's own objects.
pub fn kept_bytes() -> u64 {
    kept(heap()) as u64 * BLOCK
}

/// Pages that the caller took ([`take_pages`]), for a host call to fill.
pub fn host_buf(offset: u64, len: u64) -> atoll_abi::platform::HostBuf<'static> {
    assert!(offset.checked_add(len).is_some_and(|end| end <= memory().total()));
    // SAFETY: inside the cell's memory; pages belong to who took them, and are no Rust objects.
    unsafe { atoll_abi::platform::HostBuf::owned(memory().address(offset) as u64, len) }
}

/// Gives pages back.
pub fn give_pages(offset: u64, order: u32) {
    with_core(|core, heap| core.pages.free(&heap.memory, offset, order))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::tests::memory;
    use proptest::prelude::*;
    use std::vec::Vec;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Objects are aligned, disjoint, and keep what was written to them,
        /// whichever core frees them.
        #[test]
        fn objects_keep_their_bytes(ops in prop::collection::vec((1usize..70_000, 0u32..8, 0usize..2, any::<bool>()), 1..400)) {
            let heap = Heap::new(memory(16, 2));
            let mut cores = [CoreHeap::new(0), CoreHeap::new(1)];
            let mut held: Vec<(*mut u8, Layout, u8)> = Vec::new();
            for (i, (size, align, core, big)) in ops.into_iter().enumerate() {
                let size = if big { size } else { size % 3000 + 1 };
                let layout = Layout::from_size_align(size, 1 << align).unwrap();
                if i % 3 != 2 {
                    let p = cores[core].alloc(&heap, layout);
                    if p.is_null() { continue; }
                    prop_assert!((p as usize).is_multiple_of(layout.align()));
                    // SAFETY: just allocated.
                    unsafe { p.write_bytes(i as u8, size) };
                    held.push((p, layout, i as u8));
                } else if !held.is_empty() {
                    let (p, layout, byte) = held.swap_remove(i % held.len());
                    // SAFETY: still held.
                    let bytes = unsafe { std::slice::from_raw_parts(p, layout.size()) };
                    prop_assert!(bytes.iter().all(|b| *b == byte));
                    // SAFETY: allocated above with this layout.
                    unsafe { cores[core].free(&heap, p, layout) };
                }
            }
        }
    }

    /// Something is given back, written to, and taken again.
    #[cfg(debug_assertions)]
    fn write_to_what_is_free(size: usize) {
        let heap = Heap::new(memory(16, 1));
        let mut core = CoreHeap::new(0);
        let layout = Layout::from_size_align(size, 8).unwrap();
        let p = core.alloc(&heap, layout);
        // SAFETY: allocated above with this layout; the memory is this test's.
        unsafe {
            core.free(&heap, p, layout);
            *p.add(40) += 1;
        }
        core.alloc(&heap, layout);
    }

    /// A write to an object that was given back is found when it is next taken, where there are debug assertions.
    #[cfg(debug_assertions)]
    #[test]
    #[should_panic(expected = "was written to when it was free")]
    fn write_to_a_free_object() {
        write_to_what_is_free(80);
    }

    /// So is one to a page.
    #[cfg(debug_assertions)]
    #[test]
    #[should_panic(expected = "was written to when it was free")]
    fn write_to_a_free_page() {
        write_to_what_is_free(4096);
    }

    /// Of all that was freed, pages go back; what is still held keeps its bytes, and nothing is given out twice.
    #[test]
    fn pages_go_back_when_all_is_free() {
        let heap = Heap::new(memory(16, 2));
        let (mut a, mut b) = (CoreHeap::new(0), CoreHeap::new(1));
        for size in [16, 48, 100, 504, 640, 2048] {
            let layout = Layout::from_size_align(size, 8).unwrap();
            let before = heap.memory().used();
            let mut held: Vec<_> = (0..4000).map(|_| a.alloc(&heap, layout)).collect();
            for (n, p) in held.iter().enumerate() {
                // SAFETY: just allocated.
                unsafe { p.write_bytes(n as u8, size) };
            }
            let with_all = heap.memory().used() - before;
            // All but one of 200 are freed, here and there.
            let mut left = Vec::new();
            for (n, p) in held.drain(..).enumerate() {
                if n % 200 == 7 {
                    left.push((n, p));
                    continue;
                }
                let core = if n % 3 == 0 { &mut a } else { &mut b };
                // SAFETY: from this heap.
                unsafe { core.free(&heap, p, layout) };
            }
            let pages = b.trim(&heap) + a.trim(&heap);
            let now = heap.memory().used() - before;
            assert!(pages > 0 || in_chunk(CLASS_OF[size.div_ceil(16)] as usize) >= 200 / 2, "{size}");
            assert_eq!(now + pages * PAGE, with_all, "{size}");
            assert_eq!(b.trim(&heap) + a.trim(&heap), 0, "there is nothing more to be had");
            let again: Vec<_> = (0..4000).map(|_| b.alloc(&heap, layout)).collect();
            let all: std::collections::BTreeSet<_> =
                again.iter().copied().chain(left.iter().map(|(_, p)| *p)).collect();
            assert_eq!(all.len(), again.len() + left.len(), "{size}: given out twice");
            for p in &again {
                // SAFETY: just allocated.
                unsafe { p.write_bytes(0xff, size) };
            }
            for (n, p) in &left {
                // SAFETY: still held.
                let bytes = unsafe { std::slice::from_raw_parts(*p, size) };
                assert!(bytes.iter().all(|byte| *byte == *n as u8), "{size}");
            }
            for p in again.into_iter().chain(left.into_iter().map(|(_, p)| p)) {
                // SAFETY: from this heap.
                unsafe { b.free(&heap, p, layout) };
            }
            b.trim(&heap);
            // A core keeps some in its list.
            assert!(heap.memory().used() - before <= with_all / 4, "{size}");
        }
    }

    #[test]
    fn exchange_moves_batches_between_cores() {
        let heap = Heap::new(memory(4, 2));
        let (mut a, mut b) = (CoreHeap::new(0), CoreHeap::new(1));
        let layout = Layout::from_size_align(64, 8).unwrap();
        let objects: Vec<_> = (0..1000).map(|_| a.alloc(&heap, layout)).collect();
        for p in objects {
            // SAFETY: from this heap.
            unsafe { b.free(&heap, p, layout) };
        }
        let used = heap.memory().used();
        let again: Vec<_> = (0..900).map(|_| a.alloc(&heap, layout)).collect();
        assert_eq!(heap.memory().used(), used, "freed objects were not reused");
        assert_eq!(again.iter().collect::<std::collections::BTreeSet<_>>().len(), 900);
    }
}
