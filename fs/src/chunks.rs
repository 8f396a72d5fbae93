//! A file's bytes in the cell's memory: pages of tmpfs files, cached pages of host files.
//!
//! Memory comes in chunks of 64 KiB, the grain of mappings, except that a
//! file shorter than that takes as little as a page.
//!
//! A file may begin with bytes that lie elsewhere for good, its *origin*: in
//! memory or on a disk. They are read where they lie; a chunk takes over those
//! of its 64 KiB when it is made, which is when they are first written or mapped.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

use atoll_abi::layout::{BLOCK, PAGE, page_down, page_up};
use atoll_abi::{Errno, Result};
use atoll_mem::heap::{give_pages, memory, take_fixed_pages_dirty, take_pages, take_pages_dirty};
use atoll_mem::io::{Sink, Source};
use atoll_mem::pages::{BLOCK_ORDER, CHUNK_ORDER};
use atoll_mem::vm::{take_fixed_pages_hard, take_pages_hard};
use atoll_sync::breathe;
use atoll_task::Debtor;

/// Bytes of a chunk.
pub const CHUNK: u64 = PAGE << CHUNK_ORDER;
const PAGES: u64 = 1 << CHUNK_ORDER;
/// Chunks of a block.
const CHUNKS: u64 = BLOCK / CHUNK;

#[derive(Clone, Copy)]
struct Chunk {
    /// Where it lies in the cell's memory.
    offset: u64,
    /// 2^order pages.
    order: u32,
    /// Pages whose contents are the file's.
    valid: u16,
    /// Pages that the file's home does not have yet.
    dirty: u16,
    /// Who made each dirty: places in [`Chunks::writers`], from 1 on. 0: it isn't known.
    dirtied: [u8; PAGES as usize],
}

impl Chunk {
    fn len(&self) -> u64 {
        PAGE << self.order
    }

    fn set_dirtied(&mut self, pages: u16, writer: u8) {
        let of_pages = self.dirtied.iter_mut().enumerate().filter(|(n, _)| pages >> n & 1 != 0);
        of_pages.for_each(|(_, dirtied)| *dirtied = writer);
    }
}

/// Bytes that a file began with, on a disk.
pub trait Stored: Send + Sync {
    /// Puts up to `len` bytes from `at` on into `sink`, at least one if the sink has room and its pages are there.
    fn read(&self, sink: &mut Sink, at: u64, len: usize) -> Result<usize>;
    /// Pages that are no holes.
    fn pages(&self) -> u64;
}

/// Where an origin's bytes are.
enum Home {
    Memory(&'static [u8]),
    Disk(Arc<dyn Stored>),
}

impl Home {
    /// Puts up to `len` bytes from `at` on into `sink`.
    fn read(&self, sink: &mut Sink, at: u64, len: usize) -> Result<usize> {
        match self {
            Home::Memory(bytes) => sink.put(&bytes[at as usize..at as usize + len]),
            Home::Disk(stored) => stored.read(sink, at, len),
        }
    }
}

/// A part of an origin that no chunk has taken over. Never empty.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Piece {
    /// Offset in the file, and in the origin.
    at: u64,
    end: u64,
}

impl Piece {
    /// What of it lies in `[from, to)`.
    fn cut(&self, from: u64, to: u64) -> Option<Piece> {
        let piece = Piece { at: from.max(self.at), end: to.min(self.end) };
        (piece.at < piece.end).then_some(piece)
    }
}

/// The chunks of one file.
#[derive(Default)]
pub struct Chunks {
    map: BTreeMap<u64, Chunk>,
    pages: u64,
    dirty: u64,
    /// Who has made pages dirty since none was.
    writers: Vec<Debtor>,
    /// What is left of the origin, in order. Where there is a chunk, there is none.
    origin: Vec<Piece>,
    /// Where its bytes are.
    home: Option<Home>,
}

/// A run of dirty bytes: offset in the file, offset in memory, length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyRun {
    /// Offset in the file.
    pub at: u64,
    /// Offset in the cell's memory.
    pub memory: u64,
    /// Bytes.
    pub len: u64,
}

fn bits(from: u64, to: u64) -> u16 {
    let low = |n: u64| ((1u32 << n) - 1) as u16;
    low(to) & !low(from)
}

impl Chunks {
    /// No bytes.
    pub const fn new() -> Self {
        Chunks {
            map: BTreeMap::new(),
            pages: 0,
            dirty: 0,
            writers: Vec::new(),
            origin: Vec::new(),
            home: None,
        }
    }

    /// These bytes, which stay where they are until they are changed.
    pub fn of(bytes: &'static [u8]) -> Self {
        Self::begin(Home::Memory(bytes), bytes.len() as u64)
    }

    /// The first `len` bytes of what is on a disk.
    pub fn stored(stored: Arc<dyn Stored>, len: u64) -> Self {
        Self::begin(Home::Disk(stored), len)
    }

    fn begin(home: Home, len: u64) -> Self {
        let mut chunks = Chunks::new();
        chunks.origin.extend((len > 0).then_some(Piece { at: 0, end: len }));
        chunks.home = Some(home);
        chunks
    }

    /// Are a file's first `len` bytes, and no others, all still the origin's?
    pub fn is_origin(&self, len: u64) -> bool {
        self.map.is_empty() && self.origin == [Piece { at: 0, end: len }]
    }

    /// Pages of memory held.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Pages that are no holes: those held, and those that are still the origin's.
    pub fn data_pages(&self) -> u64 {
        if let (Some(Home::Disk(stored)), [p]) = (&self.home, &self.origin[..])
            && self.map.is_empty()
        {
            return stored.pages().min(p.end.div_ceil(PAGE));
        }
        let (mut pages, mut counted) = (self.pages, 0);
        for p in &self.origin {
            // Two pieces may share a page.
            let end = p.end.div_ceil(PAGE);
            pages += end.saturating_sub(counted.max(p.at / PAGE));
            counted = end;
        }
        pages
    }

    /// Dirty pages.
    pub fn dirty_pages(&self) -> u64 {
        self.dirty
    }

    /// The pieces of the origin that have bytes in `[from, to)`: their places in the list.
    fn pieces(&self, from: u64, to: u64) -> Range<usize> {
        if from >= to {
            return 0..0;
        }
        let first = self.origin.partition_point(|p| p.end <= from);
        first..self.origin.partition_point(|p| p.at < to).max(first)
    }

    /// How far the origin's bytes go from `at` on, or how far it is to the next ones.
    fn origin_at(&self, at: u64) -> core::result::Result<(&Home, u64), u64> {
        let next = self.origin.partition_point(|p| p.end <= at);
        match (self.origin.get(next), &self.home) {
            (Some(p), Some(home)) if p.at <= at => Ok((home, p.end - at)),
            (Some(p), _) => Err(p.at.saturating_sub(at)),
            _ => Err(u64::MAX),
        }
    }

    /// Takes `[from, to)` out of the origin.
    fn forget_origin(&mut self, from: u64, to: u64) {
        let gone = self.pieces(from, to);
        let Some([first, .., last] | [first @ last]) = self.origin.get(gone.clone()) else { return };
        let (before, behind) = (first.cut(0, from), last.cut(to, u64::MAX));
        self.origin.splice(gone, before.into_iter().chain(behind));
    }

    /// Lets a new chunk take over what the origin has of its 64 KiB; the pages that it has now.
    fn take_origin(&mut self, index: u64, offset: u64) -> Result<u16> {
        let (start, end) = (index * CHUNK, (index + 1) * CHUNK);
        let mut valid = 0;
        for p in self.origin[self.pieces(start, end)].iter().filter_map(|p| p.cut(start, end)) {
            let within = p.at - start;
            match &self.home {
                // A buffer of our own: it is taken whole.
                Some(Home::Memory(bytes)) => {
                    let bytes = &bytes[p.at as usize..p.end as usize];
                    let _ = Source::kernel(bytes).take_memory(offset + within, bytes.len());
                }
                Some(Home::Disk(stored)) => copy_stored(&**stored, p, offset + within)?,
                None => {}
            }
            valid |= bits(within / PAGE, (p.end - start).div_ceil(PAGE));
        }
        self.forget_origin(start, end);
        Ok(valid)
    }

    /// The chunk that holds offset `at`, made if need be; large enough for `need` bytes of it.
    fn chunk(&mut self, at: u64, need: u64, hard: bool) -> Result<&mut Chunk> {
        let index = at / CHUNK;
        // And for all that it takes over.
        let (start, end) = (index * CHUNK, (index + 1) * CHUNK);
        let last = self.origin[self.pieces(start, end)].last().and_then(|p| p.cut(start, end));
        let need = need.max(last.map_or(0, |p| p.end - start));
        let full = index != 0 || need > CHUNK / 2 || !self.map.is_empty() && !self.map.contains_key(&0);
        let order = if full { CHUNK_ORDER } else { need.div_ceil(PAGE).max(1).next_power_of_two().ilog2() };
        let take = |order| if hard { take_pages_hard(order) } else { take_pages(order) };
        if let Some(c) = self.map.get(&index) {
            if c.order >= order {
                return Ok(self.map.get_mut(&index).expect("just found"));
            }
            // A small chunk grows: into a larger one.
            let old = *c;
            let offset = take(order).ok_or(Errno::ENOMEM)?;
            copy_memory(old.offset, offset, old.len());
            give_pages(old.offset, old.order);
            self.pages += (1 << order) - (1 << old.order);
            self.map.insert(index, Chunk { offset, order, ..old });
        } else {
            let offset = take(order).ok_or(Errno::ENOMEM)?;
            let valid = self.take_origin(index, offset).inspect_err(|_| give_pages(offset, order))?;
            self.insert_chunk(index, offset, order, valid);
        }
        Ok(self.map.get_mut(&index).expect("just made"))
    }

    /// Takes memory for the 2 MiB around `at` of a file of `size` bytes, in one piece that a large page can show, if there is none of
    /// it yet, most of the 2 MiB before is there, and much memory is free: it may bring what is never used.
    pub fn take_block(&mut self, at: u64, size: u64) {
        let first = at / BLOCK * CHUNKS;
        let (start, end) = (first * CHUNK, first * CHUNK + BLOCK);
        let count = |map: &BTreeMap<u64, Chunk>, from| map.range(from..from + CHUNKS).count() as u64;
        let in_order = first >= CHUNKS && end <= size && count(&self.map, first) == 0;
        if !in_order || count(&self.map, first - CHUNKS) < CHUNKS / 2 || !self.pieces(start, end).is_empty() {
            return;
        }
        let block = if memory().is_mostly_free() { take_pages(BLOCK_ORDER) } else { None };
        let Some(block) = block else { return };
        for n in 0..CHUNKS {
            self.insert_chunk(first + n, block + n * CHUNK, CHUNK_ORDER, 0);
        }
    }

    fn insert_chunk(&mut self, index: u64, offset: u64, order: u32, valid: u16) {
        self.pages += 1 << order;
        self.map.insert(index, Chunk { offset, order, valid, dirty: 0, dirtied: [0; PAGES as usize] });
    }

    /// Copies valid pages from `at` on into `sink`, up to `end`. Stops at the
    /// first page that is not valid; value: bytes.
    pub fn read_valid(&self, sink: &mut Sink, mut at: u64, end: u64) -> Result<usize> {
        let mut done = 0;
        while at < end && sink.left() > 0 {
            let Some(c) = self.map.get(&(at / CHUNK)) else { break };
            let within = at % CHUNK;
            let valid = u64::from((c.valid >> (within / PAGE)).trailing_ones()) * PAGE;
            if valid == 0 {
                break;
            }
            let n = (valid - within % PAGE).min(end - at).min(sink.left() as u64);
            match sink.put_memory(c.offset + within, n as usize) {
                Ok(k) => {
                    done += k;
                    at += k as u64;
                    if (k as u64) < n {
                        break;
                    }
                    breathe();
                }
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Copies bytes from `at` on into `sink`, up to `end`; holes are zeroes.
    pub fn read_sparse(&self, sink: &mut Sink, mut at: u64, end: u64) -> Result<usize> {
        let mut done = 0;
        while at < end && sink.left() > 0 {
            let n = (CHUNK - at % CHUNK).min(end - at).min(sink.left() as u64) as usize;
            let within = at % CHUNK;
            let put = match self.map.get(&(at / CHUNK)) {
                Some(c) if within < c.len() => {
                    sink.put_memory(c.offset + within, n.min((c.len() - within) as usize))
                }
                _ => match self.origin_at(at) {
                    Ok((home, left)) => home.read(sink, at, n.min(left as usize)),
                    Err(hole) => sink.put_zeroes(n.min(hole as usize)),
                },
            };
            match put {
                Ok(0) => break,
                Ok(k) => {
                    done += k;
                    at += k as u64;
                    breathe();
                }
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Does any of `[from, to)` have to come from a disk?
    pub fn is_on_disk(&self, from: u64, to: u64) -> bool {
        matches!(self.home, Some(Home::Disk(_))) && !self.pieces(from, to).is_empty()
    }

    /// Is there memory for the chunk that holds `at`?
    pub fn has_memory(&self, at: u64) -> bool {
        self.map.contains_key(&(at / CHUNK))
    }

    /// Did its first bytes come from somewhere else?
    pub fn has_origin(&self) -> bool {
        self.home.is_some()
    }

    /// Bytes that there is memory for, of the chunk that holds `at`, from its start on.
    pub fn room_at(&self, at: u64) -> u64 {
        self.map.get(&(at / CHUNK)).map_or(0, |c| PAGE << c.order)
    }

    /// Where the 64 KiB from `at` on lie, a multiple of that, if there is memory for all of it.
    pub fn place(&self, at: u64) -> Option<u64> {
        self.map.get(&(at / CHUNK)).filter(|c| c.order == CHUNK_ORDER).map(|c| c.offset)
    }

    /// Is the page that holds `at` valid?
    pub fn is_valid(&self, at: u64) -> bool {
        self.map.get(&(at / CHUNK)).is_some_and(|c| c.valid & 1 << (at % CHUNK / PAGE) != 0)
    }

    /// The place of who makes pages dirty.
    fn writer(&mut self, who: Debtor) -> u8 {
        if self.dirty == 0 {
            self.writers.clear();
        }
        let place = self.writers.iter().position(|w| *w == who).unwrap_or_else(|| {
            if who != Debtor::NOBODY && self.writers.len() < usize::from(u8::MAX) {
                self.writers.push(who);
                self.writers.len() - 1
            } else {
                usize::MAX
            }
        });
        place.wrapping_add(1) as u8
    }

    /// Who made the pages of a run dirty, and how many of its bytes are in those. After [`Chunks::take_dirty`], until more
    /// becomes dirty.
    pub fn debts(&self, run: &DirtyRun) -> Vec<(Debtor, u64)> {
        let mut debts: Vec<(Debtor, u64)> = Vec::new();
        let mut at = run.at;
        while at < run.at + run.len {
            let next = (page_down(at) + PAGE).min(run.at + run.len);
            let place = self.map.get(&(at / CHUNK)).map_or(0, |c| c.dirtied[(at % CHUNK / PAGE) as usize]);
            let who = self.writers.get(usize::from(place).wrapping_sub(1)).copied().unwrap_or(Debtor::NOBODY);
            match debts.iter_mut().find(|(known, _)| *known == who) {
                Some((_, bytes)) => *bytes += next - at,
                None => debts.push((who, next - at)),
            }
            at = next;
        }
        debts
    }

    /// Takes bytes from `source` to `at`, no farther than one chunk. Pages
    /// that are not valid become so, zero where nothing is written. `dirty`: they are to be written
    /// back, for whom. Value: bytes.
    pub fn write(&mut self, source: &mut Source, at: u64, dirty: Option<Debtor>) -> Result<usize> {
        let writer = dirty.map(|who| self.writer(who));
        let within = at % CHUNK;
        let n = (CHUNK - within).min(source.left() as u64);
        let c = self.chunk(at, within + n, true)?;
        let k = source.take_memory(c.offset + within, n as usize)? as u64;
        if k == 0 {
            return Ok(0);
        }
        let touched = bits(within / PAGE, (within + k).div_ceil(PAGE));
        c.valid |= touched;
        if let Some(writer) = writer {
            let fresh = touched & !c.dirty;
            c.dirty |= touched;
            c.set_dirtied(touched, writer);
            self.dirty += u64::from(fresh.count_ones());
        }
        Ok(k as usize)
    }

    /// Makes room for the pages of `[at, at + len)` (in one chunk) so that
    /// somebody can fill them; where they lie in memory. Only if memory is at hand.
    pub fn prepare(&mut self, at: u64, len: u64) -> Option<u64> {
        let within = at % CHUNK;
        debug_assert!(within.is_multiple_of(PAGE) && within + len <= CHUNK);
        let c = self.chunk(at, within + len, false).ok()?;
        Some(c.offset + within)
    }

    /// Says that the pages of `[at, at + len)`, prepared before, hold the
    /// file's bytes. Pages that became valid meanwhile are left alone by the caller's lock.
    pub fn filled(&mut self, at: u64, len: u64) {
        if let Some(c) = self.map.get_mut(&(at / CHUNK)) {
            c.valid |= bits(at % CHUNK / PAGE, (at % CHUNK + len).div_ceil(PAGE));
        }
    }

    /// Where the 64 KiB from `at` on lie, for mapping: a whole chunk, zero where nothing was written.
    pub fn whole(&mut self, at: u64) -> Result<u64> {
        self.chunk(at, CHUNK, true).map(|c| {
            c.valid = u16::MAX;
            c.offset
        })
    }

    /// Where the 64 KiB from `at` on lie, for mapping, whatever is valid of them.
    pub fn room(&mut self, at: u64) -> Result<u64> {
        self.chunk(at, CHUNK, true).map(|c| c.offset)
    }

    /// Moves chunks that lie at `from` of the cell's memory or behind it elsewhere. Nobody but the caller may know where they lie.
    /// `is_cache`: those without dirty pages go where there is no place for them. Value: bytes moved. ENOMEM: there is none for one.
    pub fn vacate(&mut self, from: u64, is_cache: bool) -> Result<u64> {
        let mut moved = 0;
        let there: Vec<u64> = self.map.iter().filter(|(_, c)| c.offset >= from).map(|(i, _)| *i).collect();
        let mut next = 0;
        for i in there {
            if i < next {
                continue;
            }
            if self.move_block(i) {
                (next, moved) = (i + CHUNKS, moved + BLOCK);
                continue;
            }
            let c = self.map[&i];
            let offset = match take_pages_dirty(c.order) {
                Some(offset) => offset,
                None if is_cache && c.dirty == 0 => {
                    self.map.remove(&i);
                    self.forget(c);
                    continue;
                }
                None => take_pages_hard(c.order).ok_or(Errno::ENOMEM)?,
            };
            copy_memory(c.offset, offset, c.len());
            give_pages(c.offset, c.order);
            self.map.insert(i, Chunk { offset, ..c });
            moved += c.len();
            breathe();
        }
        Ok(moved)
    }

    /// Moves the chunks of a block elsewhere in one piece, if they lie in one, this is the first of them, and there is another.
    fn move_block(&mut self, first: u64) -> bool {
        let old = self.map[&first].offset;
        if !first.is_multiple_of(CHUNKS) || !old.is_multiple_of(BLOCK) {
            return false;
        }
        let there = self.map.range(first..first + CHUNKS).map(|(i, c)| (*i, c.offset, c.order));
        if !there.eq((0..CHUNKS).map(|n| (first + n, old + n * CHUNK, CHUNK_ORDER))) {
            return false;
        }
        let Some(new) = take_pages_dirty(BLOCK_ORDER) else { return false };
        copy_memory(old, new, BLOCK);
        give_pages(old, BLOCK_ORDER);
        for (n, (_, c)) in self.map.range_mut(first..first + CHUNKS).enumerate() {
            c.offset = new + n as u64 * CHUNK;
        }
        breathe();
        true
    }

    /// Does a chunk lie there?
    pub fn lies_behind(&self, from: u64) -> bool {
        self.map.values().any(|c| c.offset >= from)
    }

    /// Where chunks are in the file.
    pub fn places(&self) -> Vec<u64> {
        self.map.keys().map(|index| index * CHUNK).collect()
    }

    /// Counts nothing as valid, nor as dirty. The chunks stay where they are.
    pub fn distrust(&mut self) {
        self.map.values_mut().for_each(|c| (c.valid, c.dirty) = (0, 0));
        self.dirty = 0;
    }

    /// Counts all valid pages of a file of `size` bytes as dirty; those that weren't, for `who`.
    pub fn mark_all_dirty(&mut self, size: u64, who: Debtor) {
        let writer = self.writer(who);
        for (index, c) in &mut self.map {
            let pages = size.saturating_sub(index * CHUNK).div_ceil(PAGE).min(PAGES);
            let fresh = c.valid & bits(0, pages) & !c.dirty;
            c.dirty |= fresh;
            c.set_dirtied(fresh, writer);
        }
        self.dirty = self.map.values().map(|c| u64::from(c.dirty.count_ones())).sum();
    }

    /// Makes a hole of `[from, to)`. `keep`: pages that are mapped are zeroed and stay. Else chunks of which nothing is left go.
    pub fn punch(&mut self, from: u64, to: u64, keep: bool) {
        if !keep {
            let goes =
                |(i, c): (&u64, &Chunk)| (i * CHUNK >= from && i * CHUNK + c.len() <= to).then_some(*i);
            let mut next = from / CHUNK;
            while let Some(i) = self.map.range(next..to.div_ceil(CHUNK).max(next)).find_map(goes) {
                next = i + 1;
                if let Some(c) = self.map.remove(&i) {
                    self.forget(c);
                }
            }
        }
        self.zero(from, to);
        self.forget_origin(from, to);
        if keep {
            return;
        }
        let (first, last) = (page_up(from), page_down(to));
        for (start, c) in self.chunks_in(first, last) {
            c.valid &= !bits(first.saturating_sub(start) / PAGE, (last - start).min(CHUNK) / PAGE);
        }
    }

    /// Zeroes `[from, to)` where there are pages.
    fn zero(&mut self, from: u64, to: u64) {
        for (start, c) in self.chunks_in(from, to) {
            let (first, end) = (from.saturating_sub(start), (to - start).min(c.len()));
            if first < end {
                zero_memory(c.offset + first, end - first);
                breathe();
            }
        }
    }

    /// The chunks that have bytes in `[from, to)`, and where each begins in the file. Most of what is sparse has none.
    fn chunks_in(&mut self, from: u64, to: u64) -> impl Iterator<Item = (u64, &mut Chunk)> {
        let (first, end) = (from / CHUNK, to.div_ceil(CHUNK));
        self.map.range_mut(first..end.max(first)).map(|(i, c)| (i * CHUNK, c))
    }

    /// Drops what lies wholly behind `len`, and zeroes the rest of the last page. `keep`: chunks that are
    /// mapped are zeroed, not dropped.
    pub fn truncate(&mut self, len: u64, keep: bool) {
        self.punch(len, len.next_multiple_of(CHUNK), keep);
        self.forget_origin(len, u64::MAX);
        let first = len.div_ceil(CHUNK);
        if keep {
            let last = self.map.last_key_value().map_or(0, |(i, _)| (i + 1) * CHUNK);
            self.zero(first * CHUNK, last.max(first * CHUNK));
        } else {
            for (_, c) in self.map.split_off(&first) {
                self.forget(c);
            }
        }
        // Pages behind the end are clean.
        if let Some(c) = self.map.get_mut(&(len / CHUNK)) {
            let behind = bits((len % CHUNK).div_ceil(PAGE), PAGES) & c.dirty;
            c.dirty &= !behind;
            self.dirty -= u64::from(behind.count_ones());
        }
    }

    fn forget(&mut self, c: Chunk) {
        self.pages -= 1 << c.order;
        self.dirty -= u64::from(c.dirty.count_ones());
        give_pages(c.offset, c.order);
        breathe();
    }

    /// Drops everything, dirty or not.
    pub fn clear(&mut self) {
        self.origin.clear();
        for (_, c) in core::mem::take(&mut self.map) {
            self.forget(c);
        }
    }

    /// Pages in chunks that are wanted, by their offsets in the cell's memory.
    pub fn pages_that(&self, is_wanted: &dyn Fn(u64) -> bool) -> u64 {
        self.map.values().filter(|c| is_wanted(c.offset)).map(|c| 1 << c.order).sum()
    }

    /// Drops chunks without dirty pages that `may_go`, by their offsets in the cell's memory, at least `pages` pages if there are so
    /// many; pages dropped.
    pub fn shrink(&mut self, pages: u64, may_go: &dyn Fn(u64) -> bool) -> u64 {
        let before = self.pages;
        let goes = |c: &Chunk| c.dirty == 0 && may_go(c.offset);
        let mut next = Some(0);
        while let Some(from) = next.take().filter(|_| before - self.pages < pages) {
            // Some at a time: where memory is short there may be none for a list of them.
            let mut some = [None; 32];
            let clean = self.map.range(from..).filter(|(_, c)| goes(c)).map(|(i, _)| Some(*i));
            some.iter_mut().zip(clean).for_each(|(to, i)| *to = i);
            for i in some.into_iter().flatten() {
                next = Some(i + 1);
                if before - self.pages < pages
                    && let Some(c) = self.map.remove(&i)
                {
                    self.forget(c);
                }
            }
        }
        before - self.pages
    }

    /// Drops chunks without dirty pages that lie wholly in `[from, to)` of the file.
    pub fn drop_clean(&mut self, from: u64, to: u64) {
        let mut next = from.div_ceil(CHUNK);
        while let Some((&i, _)) = self.map.range(next..(to / CHUNK).max(next)).find(|(_, c)| c.dirty == 0) {
            next = i + 1;
            if let Some(c) = self.map.remove(&i) {
                self.forget(c);
            }
        }
    }

    /// Takes up to `most` dirty runs of a file of `size` bytes and counts them clean.
    pub fn take_dirty(&mut self, size: u64, most: usize) -> Vec<DirtyRun> {
        let mut runs: Vec<DirtyRun> = Vec::new();
        if self.dirty == 0 {
            return runs;
        }
        for (index, c) in &mut self.map {
            while c.dirty != 0 {
                let first = u64::from(c.dirty.trailing_zeros());
                let n = u64::from((c.dirty >> first).trailing_ones());
                let at = index * CHUNK + first * PAGE;
                let len = (n * PAGE).min(size.saturating_sub(at));
                let memory = c.offset + first * PAGE;
                let full = runs.len() == most;
                match runs.last_mut() {
                    Some(r) if r.at + r.len == at && r.memory + r.len == memory => r.len += len,
                    _ if len == 0 => {}
                    _ if full => return runs,
                    _ => runs.push(DirtyRun { at, memory, len }),
                }
                c.dirty &= !bits(first, first + n);
                self.dirty -= n;
            }
        }
        runs
    }

    /// Counts a run as dirty again, because writing it failed; by whom it was.
    pub fn mark_dirty(&mut self, run: DirtyRun) {
        let mut at = run.at;
        while at < run.at + run.len {
            let next = ((at / CHUNK + 1) * CHUNK).min(run.at + run.len);
            if let Some(c) = self.map.get_mut(&(at / CHUNK)) {
                let pages = bits(at % CHUNK / PAGE, ((next - 1) % CHUNK) / PAGE + 1);
                self.dirty += u64::from((pages & !c.dirty).count_ones());
                c.dirty |= pages;
            }
            at = next;
        }
    }

    /// The first offset at or after `from` that lies in a page with data (or, if `hole`, in none).
    pub fn seek(&self, mut from: u64, hole: bool) -> Option<u64> {
        if !hole {
            let origin = self.origin_pages(from).map(|p| p.start.max(from));
            return self.seek_chunks(from, false).into_iter().chain(origin).min();
        }
        loop {
            let at = self.seek_chunks(from, true)?;
            match self.origin_pages(at) {
                Some(p) if p.contains(&at) => from = p.end,
                _ => return Some(at),
            }
        }
    }

    /// The pages of the first piece of the origin that has any behind `at`, in bytes.
    fn origin_pages(&self, at: u64) -> Option<Range<u64>> {
        let n = self.origin.partition_point(|p| page_up(p.end) <= at);
        self.origin.get(n).map(|p| page_down(p.at)..page_up(p.end))
    }

    /// [`Chunks::seek`] among the chunks alone.
    fn seek_chunks(&self, from: u64, hole: bool) -> Option<u64> {
        let mut next = from / CHUNK;
        for (index, c) in self.map.range(next..) {
            if hole && *index != next {
                break;
            }
            let start = (index * CHUNK).max(from);
            let skipped = start % CHUNK / PAGE;
            let wanted = if hole { !c.valid } else { c.valid } >> skipped << skipped;
            if wanted != 0 {
                return Some((index * CHUNK + u64::from(wanted.trailing_zeros()) * PAGE).max(from));
            }
            next = index + 1;
        }
        hole.then(|| (next * CHUNK).max(from))
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Copies a part of what is on a disk to the cell's memory.
fn copy_stored(stored: &dyn Stored, part: Piece, to: u64) -> Result<()> {
    let mut bytes = alloc::vec![0; (part.end - part.at) as usize];
    let mut done = 0;
    while done < bytes.len() {
        let left = bytes.len() - done;
        match stored.read(&mut Sink::kernel(&mut bytes[done..]), part.at + done as u64, left)? {
            0 => return Err(Errno::EIO),
            n => done += n,
        }
    }
    // A buffer of our own: it is taken whole.
    let _ = Source::kernel(&bytes).take_memory(to, bytes.len());
    Ok(())
}

fn copy_memory(from: u64, to: u64, len: u64) {
    let mut buf = [0u8; 512];
    let mut at = 0;
    while at < len {
        let n = buf.len().min((len - at) as usize);
        // Through a buffer of our own: both ends are plain memory, and this is rare.
        let _ = Sink::kernel(&mut buf[..n]).put_memory(from + at, n);
        let _ = Source::kernel(&buf[..n]).take_memory(to + at, n);
        at += n as u64;
    }
}

fn zero_memory(offset: u64, len: u64) {
    const ZEROES: [u8; 512] = [0; 512];
    let mut at = 0;
    while at < len {
        let n = ZEROES.len().min((len - at) as usize);
        let _ = Source::kernel(&ZEROES[..n]).take_memory(offset + at, n);
        at += n as u64;
    }
}

/// Memory for a short-lived buffer that a service message names: `len` bytes, contents undefined.
pub struct Scratch {
    offset: u64,
    order: u32,
}

impl Scratch {
    /// Takes at least `len` bytes.
    pub fn new(len: u64) -> Result<Scratch> {
        Self::taken(Self::order(len), take_fixed_pages_dirty).ok_or(Errno::ENOMEM)
    }

    /// Takes at least `len` bytes or, where there is no such piece, less, at least a page: caches give some if need be.
    pub fn up_to(len: u64) -> Result<Scratch> {
        let order = Self::order(len);
        // What caches give comes in pieces of their own size.
        let plain = (order.min(CHUNK_ORDER)..=order).rev();
        let hard = (0..=order.min(CHUNK_ORDER)).rev();
        plain
            .map(|order| Self::taken(order, take_fixed_pages_dirty))
            .chain(hard.map(|order| Self::taken(order, take_fixed_pages_hard)))
            .find_map(|taken| taken)
            .ok_or(Errno::ENOMEM)
    }

    fn order(len: u64) -> u32 {
        len.div_ceil(PAGE).max(1).next_power_of_two().ilog2()
    }

    fn taken(order: u32, take: fn(u32) -> Option<u64>) -> Option<Scratch> {
        take(order).map(|offset| Scratch { offset, order })
    }

    /// Where it lies in the cell's memory.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        PAGE << self.order
    }

    /// Never.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Copies the first bytes out.
    pub fn read(&self, to: &mut [u8]) {
        let n = to.len();
        assert!(n as u64 <= self.len());
        let _ = Sink::kernel(to).put_memory(self.offset, n);
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        give_pages(self.offset, self.order);
    }
}

/// Is there any memory to speak of left?
pub fn memory_is_short() -> bool {
    let m = memory();
    m.total() - m.used() < m.total() / 16
}
