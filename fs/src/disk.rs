//! A disk's bytes: pieces of it, in the cell's memory as long as there is room.
//!
//! What stands on a disk never changes here, so a piece that was read stays true; the ones that were not used
//! for longest go when there are too many, or when memory is needed.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use atoll_abi::grid::Resource;
use atoll_abi::service::{Extent, Op, Request};
use atoll_abi::{Errno, Result, assert_accounted};
use atoll_mem::heap::memory;
use atoll_mem::io::Sink;
use atoll_sync::Mutex;
use atoll_task::{books, call};
use hashbrown::HashMap;

use crate::chunks::Scratch;

/// Bytes of a piece: of one request to a disk.
const PIECE: u64 = 64 << 10;
/// A disk's pieces may take one part in so many of the cell's memory.
const SHARE: u64 = 8;
/// And at least so many of them.
const LEAST: usize = 16;

/// What can be read like a disk.
pub trait Disk: Send + Sync {
    /// Its size, bytes.
    fn size(&self) -> u64;
    /// Reads `len` bytes (up to 64 KiB) from `at` on into the cell's memory at `to`. `at` is a multiple of 64 KiB;
    /// what is read ends within the disk.
    fn read(&self, at: u64, to: u64, len: u64) -> Result<()>;
}

/// A disk that the cell was granted.
pub struct Granted {
    number: u64,
    size: u64,
}

impl Granted {
    /// The cell's disk of this number. ENODEV: there is none.
    pub fn new(number: u64) -> Result<Granted> {
        let mut request = Request::new(Op::DiskRead);
        request.arg[0] = number;
        Ok(Granted { number, size: call(request)? })
    }
}

impl Disk for Granted {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, at: u64, to: u64, len: u64) -> Result<()> {
        let mut request = Request::new(Op::DiskRead);
        (request.arg[0], request.arg[1]) = (self.number, at);
        request.a = Extent { offset: to, len };
        if call(request)? != len {
            return Err(Errno::EIO);
        }
        books::moved(Resource::DeviceRead, len);
        atoll_task::read_from_storage(len);
        Ok(())
    }
}

/// A piece of a disk, in memory.
struct Piece {
    memory: Scratch,
    /// It has been read. Held while it is.
    there: Mutex<bool>,
}

#[derive(Default)]
struct Kept {
    /// By number; and whether it was used since it was last thought of to let it go.
    pieces: HashMap<u64, (Arc<Piece>, bool)>,
    /// In the order in which they are thought of.
    order: VecDeque<u64>,
}

impl Kept {
    /// Lets a piece go that nobody uses now and that `may_go`, by its offset in the cell's memory; was there one?
    fn drop_one(&mut self, may_go: &dyn Fn(u64) -> bool) -> bool {
        for _ in 0..2 * self.order.len() {
            let Some(number) = self.order.pop_front() else { return false };
            match self.pieces.get_mut(&number) {
                Some((piece, used))
                    if *used || Arc::strong_count(piece) > 1 || !may_go(piece.memory.offset()) =>
                {
                    *used = false;
                    self.order.push_back(number);
                }
                _ => return self.pieces.remove(&number).is_some(),
            }
        }
        false
    }
}

/// A disk, and the pieces of it that are in memory.
pub struct Cache {
    disk: Box<dyn Disk>,
    kept: Mutex<Kept>,
    most: usize,
}

static CACHES: Mutex<Vec<Weak<Cache>>> = Mutex::new(Vec::new());

/// Gives memory of pieces back that `may_go`, by their offsets in the cell's memory; says whether there was any.
pub fn reclaim(bytes: u64, may_go: &dyn Fn(u64) -> bool) -> bool {
    let all: Vec<Arc<Cache>> = CACHES.lock().iter().filter_map(Weak::upgrade).collect();
    let wanted = bytes.div_ceil(PIECE).max(8);
    let mut gone = 0;
    for cache in all {
        let mut kept = cache.kept.lock();
        while gone < wanted && kept.drop_one(may_go) {
            assert_accounted("reclaiming");
            gone += 1;
        }
    }
    gone > 0
}

impl Cache {
    /// Nothing yet.
    pub fn new(disk: Box<dyn Disk>) -> Arc<Cache> {
        let most = (memory().total() / SHARE / PIECE) as usize;
        let cache = Arc::new(Cache { disk, kept: Mutex::default(), most: most.max(LEAST) });
        CACHES.lock().push(Arc::downgrade(&cache));
        cache
    }

    /// The disk's size, bytes.
    pub fn size(&self) -> u64 {
        self.disk.size()
    }

    /// The piece that byte `at` is in, how far it goes from there, and where that is in memory.
    fn piece(&self, at: u64) -> Result<(Arc<Piece>, u64, u64)> {
        let number = at / PIECE;
        let len = PIECE.min(self.size().saturating_sub(number * PIECE));
        let within = at % PIECE;
        if within >= len {
            return Err(Errno::EIO);
        }
        let mut kept = self.kept.lock();
        let known = kept.pieces.get_mut(&number).map(|(piece, used)| {
            *used = true;
            piece.clone()
        });
        let piece = match known {
            Some(piece) => piece,
            None => {
                while kept.pieces.len() >= self.most && kept.drop_one(&|_| true) {}
                let memory = loop {
                    match Scratch::new(PIECE) {
                        Ok(memory) => break memory,
                        Err(e) if !kept.drop_one(&|_| true) => return Err(e),
                        Err(_) => {}
                    }
                };
                let piece = Arc::new(Piece { memory, there: Mutex::new(false) });
                kept.pieces.insert(number, (piece.clone(), false));
                kept.order.push_back(number);
                piece
            }
        };
        drop(kept);
        let mut there = piece.there.lock();
        if !*there {
            self.disk.read(number * PIECE, piece.memory.offset(), len)?;
            *there = true;
        }
        drop(there);
        let place = piece.memory.offset() + within;
        Ok((piece, len - within, place))
    }

    /// Puts up to `len` bytes from byte `at` on into `sink`, at least one if it has room and its pages are there.
    /// EIO: the disk can't be read there, or ends before.
    pub fn put(&self, sink: &mut Sink, at: u64, len: usize) -> Result<usize> {
        let (_piece, left, place) = self.piece(at)?;
        sink.put_memory(place, len.min(left as usize))
    }

    /// Reads all of `to` from byte `at` on.
    pub fn read(&self, at: u64, to: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < to.len() {
            let at = at.checked_add(done as u64).ok_or(Errno::EIO)?;
            let left = to.len() - done;
            done += self.put(&mut Sink::kernel(&mut to[done..]), at, left)?;
        }
        Ok(())
    }
}
