//! A process's descriptors.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use atoll_abi::{Errno, Result};
use atoll_fs::OpenFile;
use atoll_sync::{Mutex, RcuArc, RcuTable, SetOnce};

/// An open file as a descriptor refers to it.
pub type FileRef = RcuArc<OpenFile>;

/// Descriptors that a process can have, whatever its limit.
pub const FILES_MAX: usize = 65536;

/// Words of a [`Sheet`].
const WORDS: usize = 64;

/// What is known of 4096 descriptors, a bit each.
struct Sheet {
    used: [AtomicU64; WORDS],
    /// Those that exec closes.
    cloexec: [AtomicU64; WORDS],
}

/// A table of descriptors. Looking one up, adding one and taking one away take no lock.
///
/// A descriptor belongs to who set its bit in `used`, until there is a file in its slot. Who takes the file out
/// clears the bit, after that. So a set bit without a file means that somebody is at it, for a moment or until a
/// connection comes ([`Reserved`]); nobody else touches the descriptor meanwhile.
pub struct FdTable {
    files: RcuTable<OpenFile>,
    sheets: [SetOnce<Box<Sheet>>; FILES_MAX / 64 / WORDS],
    /// Held while a sheet is added.
    growing: Mutex<()>,
    /// Words up to the highest descriptor that was ever used.
    words: AtomicUsize,
}

impl Sheet {
    fn new() -> Box<Sheet> {
        Box::new(Sheet {
            used: [const { AtomicU64::new(0) }; WORDS],
            cloexec: [const { AtomicU64::new(0) }; WORDS],
        })
    }
}

/// Sets or clears bits; no write where they are right already.
fn assign(word: &AtomicU64, bits: u64, set: bool) {
    if (word.load(Ordering::Relaxed) & bits != 0) == set {
        return;
    }
    if set {
        word.fetch_or(bits, Ordering::AcqRel);
    } else {
        word.fetch_and(!bits, Ordering::AcqRel);
    }
}

/// A descriptor that has no file yet: it is free again if it gets none.
pub struct Reserved<'a> {
    table: &'a FdTable,
    fd: u32,
}

impl Reserved<'_> {
    /// Its file has come. Value: the descriptor.
    pub fn fill(self, file: FileRef) -> u32 {
        let before = self.table.files.replace(self.fd as usize, Some(file));
        assert!(before.is_none(), "a free descriptor had a file");
        let fd = self.fd;
        core::mem::forget(self);
        fd
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.table.free(self.fd);
    }
}

impl FdTable {
    /// No descriptors.
    pub fn new() -> Self {
        FdTable {
            files: RcuTable::new(FILES_MAX),
            sheets: [const { SetOnce::new() }; FILES_MAX / 64 / WORDS],
            growing: Mutex::new(()),
            words: AtomicUsize::new(0),
        }
    }

    /// The words of bits with number `word`: those used, those that exec closes. They are made if need be.
    fn word(&self, word: usize) -> (&AtomicU64, &AtomicU64) {
        let place = &self.sheets[word / WORDS];
        if place.get().is_none() {
            let _one = self.growing.lock();
            if place.get().is_none() {
                let made = place.set(Sheet::new());
                assert!(made.is_ok(), "a sheet was made twice");
            }
        }
        (&place.used[word % WORDS], &place.cloexec[word % WORDS])
    }

    fn note_highest(&self, word: usize) {
        if self.words.load(Ordering::Relaxed) <= word {
            self.words.fetch_max(word + 1, Ordering::AcqRel);
        }
    }

    /// Descriptors there is room for, as `/proc/PID/status` tells it (`FDSize`): 64, and
    /// then the next power of two that holds the highest ever used (proc_pid_status(5)).
    pub fn slots(&self) -> usize {
        (self.words.load(Ordering::Acquire) * 64).next_power_of_two().max(64)
    }

    /// The file of a descriptor.
    #[inline]
    pub fn get(&self, fd: u32) -> Result<FileRef> {
        self.files.get(fd as usize).ok_or(Errno::EBADF)
    }

    /// The same, which is not just a place (O_PATH), with which most calls do nothing: EBADF.
    #[inline]
    pub fn get_open(&self, fd: u32) -> Result<FileRef> {
        let file = self.get(fd)?;
        if file.flags() & linux_raw_sys::general::O_PATH != 0 { Err(Errno::EBADF) } else { Ok(file) }
    }

    /// Puts a file at the lowest free descriptor from `from` on, below `limit`.
    pub fn add(&self, file: FileRef, cloexec: bool, from: usize, limit: u64) -> Result<u32> {
        self.reserve(cloexec, from, limit).map(|place| place.fill(file))
    }

    /// Takes that descriptor for a file that is still to come.
    pub fn reserve(&self, cloexec: bool, from: usize, limit: u64) -> Result<Reserved<'_>> {
        let limit = limit.min(FILES_MAX as u64) as usize;
        let mut at = from / 64;
        let mut mask = !0u64 << (from % 64);
        loop {
            if at * 64 >= limit {
                return Err(Errno::EMFILE);
            }
            let (used, closed) = self.word(at);
            let now = used.load(Ordering::Relaxed);
            let free = !now & mask;
            if free == 0 {
                at += 1;
                mask = !0;
                continue;
            }
            let bit = free & free.wrapping_neg();
            let fd = at * 64 + bit.trailing_zeros() as usize;
            if fd >= limit {
                return Err(Errno::EMFILE);
            }
            // Acquire: the slot is empty, as who cleared the bit left it.
            if used.compare_exchange(now, now | bit, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                self.note_highest(at);
                assign(closed, bit, cloexec);
                return Ok(Reserved { table: self, fd: fd as u32 });
            }
        }
    }

    /// Puts a file at a descriptor, in place of what is there. EBUSY while another thread is about to put one
    /// there or has just taken it out, as on Linux (`dup(2)`).
    pub fn put(&self, fd: u32, file: FileRef, cloexec: bool) -> Result<Option<FileRef>> {
        if fd as usize >= FILES_MAX {
            return Err(Errno::EBADF);
        }
        let (at, bit) = (fd as usize / 64, 1 << (fd % 64));
        let (used, closed) = self.word(at);
        if used.fetch_or(bit, Ordering::AcqRel) & bit == 0 {
            self.note_highest(at);
            assign(closed, bit, cloexec);
            return Ok(self.files.replace(fd as usize, Some(file)));
        }
        let before = self.files.replace_present(fd as usize, file).map_err(|_| Errno::EBUSY)?;
        assign(closed, bit, cloexec);
        Ok(Some(before))
    }

    /// Takes a descriptor away; its file, which closes when the last reference is dropped.
    pub fn remove(&self, fd: u32) -> Result<FileRef> {
        let file = self.files.take(fd as usize).ok_or(Errno::EBADF)?;
        self.free(fd);
        Ok(file)
    }

    fn free(&self, fd: u32) {
        let (used, _) = self.word(fd as usize / 64);
        used.fetch_and(!(1 << (fd % 64)), Ordering::AcqRel);
    }

    /// Is it closed by exec?
    pub fn cloexec(&self, fd: u32) -> Result<bool> {
        self.get(fd)?;
        let (_, closed) = self.word(fd as usize / 64);
        Ok(closed.load(Ordering::Acquire) & 1 << (fd % 64) != 0)
    }

    /// Says whether exec closes it.
    pub fn set_cloexec(&self, fd: u32, yes: bool) -> Result<()> {
        self.get(fd)?;
        let (_, closed) = self.word(fd as usize / 64);
        assign(closed, 1 << (fd % 64), yes);
        Ok(())
    }

    /// Descriptors in use, in order.
    pub fn list(&self) -> Vec<u32> {
        let mut out = Vec::new();
        for at in 0..self.words.load(Ordering::Acquire) {
            let mut bits = self.word(at).0.load(Ordering::Acquire);
            while bits != 0 {
                out.push(at as u32 * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
        out
    }

    /// A table with the same files.
    pub fn duplicate(&self) -> FdTable {
        let new = FdTable::new();
        for fd in self.list() {
            if let (Ok(file), Ok(cloexec)) = (self.get(fd), self.cloexec(fd)) {
                // Nobody else has the new one yet.
                let put = new.put(fd, file, cloexec);
                debug_assert!(put.is_ok());
            }
        }
        new
    }

    /// Closes what exec closes; `closing` is told of each file before.
    pub fn close_on_exec(&self, closing: impl Fn(&FileRef)) {
        for fd in self.list() {
            if self.cloexec(fd) == Ok(true)
                && let Ok(file) = self.remove(fd)
            {
                closing(&file);
            }
        }
    }

    /// Closes everything.
    pub fn close_all(&self) {
        for fd in self.list() {
            drop(self.remove(fd));
        }
    }
}

impl Default for FdTable {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for FdTable {
    fn drop(&mut self) {
        self.close_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::sync::Arc;
    use atoll_fs::device::Device;

    fn file() -> FileRef {
        RcuArc::new(OpenFile::new(Arc::new(Device::Null), 0))
    }

    /// Threads add, replace and remove: in the end each descriptor is known of that has a file, and only those.
    #[test]
    fn many_at_it() {
        use core::sync::atomic::AtomicBool;
        let t = FdTable::new();
        let mine: [AtomicBool; 64] = [const { AtomicBool::new(false) }; 64];
        // Nothing but descriptors 0 and 1 is replaced, and they are never removed: never EBUSY.
        assert_eq!((t.add(file(), false, 0, 64), t.add(file(), false, 0, 64)), (Ok(0), Ok(1)));
        std::thread::scope(|s| {
            for n in 0..4u32 {
                let (t, mine) = (&t, &mine);
                s.spawn(move || {
                    for i in 0..20_000 {
                        let fd = t.add(file(), i % 3 == 0, 0, 64).unwrap();
                        assert!(!mine[fd as usize].swap(true, Ordering::SeqCst), "had twice");
                        assert_eq!(t.cloexec(fd), Ok(i % 3 == 0));
                        assert!(matches!(t.put(n % 2, file(), false), Ok(Some(_))));
                        mine[fd as usize].store(false, Ordering::SeqCst);
                        assert!(t.remove(fd).is_ok());
                    }
                });
            }
        });
        assert_eq!(t.list(), [0, 1]);
        assert_eq!(t.slots(), 64);
    }

    #[test]
    fn lowest_free() {
        let t = FdTable::new();
        for want in 0..130 {
            assert_eq!(t.add(file(), want % 2 == 0, 0, 1024), Ok(want));
        }
        drop(t.remove(64).unwrap());
        drop(t.remove(3).unwrap());
        // One that is kept for a file has none, and is nobody else's.
        let kept = t.reserve(false, 0, 1024).unwrap();
        assert_eq!(t.get(3).map(drop), Err(Errno::EBADF));
        assert_eq!(t.put(3, file(), false).map(drop), Err(Errno::EBUSY));
        assert_eq!(t.reserve(false, 0, 64).map(|r| r.fd), Err(Errno::EMFILE));
        drop(kept);
        assert_eq!(t.add(file(), false, 0, 1024), Ok(3));
        assert_eq!(t.add(file(), false, 10, 1024), Ok(64));
        assert_eq!(t.add(file(), false, 0, 130), Err(Errno::EMFILE));
        assert_eq!(t.get(130).map(drop), Err(Errno::EBADF));
        assert_eq!(t.get(u32::MAX).map(drop), Err(Errno::EBADF));
        assert_eq!(t.remove(u32::MAX).map(drop), Err(Errno::EBADF));
        let d = t.duplicate();
        d.close_on_exec(|_| ());
        assert!(d.list().iter().all(|fd| fd % 2 == 1 || *fd == 64));
        assert_eq!(t.list().len(), 130);
    }
}
