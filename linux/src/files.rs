//! A process's descriptors.

use alloc::vec::Vec;

use atoll_abi::{Errno, Result};
use atoll_fs::OpenFile;
use atoll_sync::{Mutex, RcuArc, RcuTable};

/// An open file as a descriptor refers to it.
pub type FileRef = RcuArc<OpenFile>;

/// Descriptors that a process can have, whatever its limit.
pub const FILES_MAX: usize = 65536;

#[derive(Default)]
struct Book {
    /// Descriptors in use, a bit each.
    used: Vec<u64>,
    /// Those that exec closes.
    cloexec: Vec<u64>,
}

/// A table of descriptors. Looking one up takes no lock.
pub struct FdTable {
    files: RcuTable<OpenFile>,
    book: Mutex<Book>,
}

impl Book {
    fn first_free(&self, from: usize) -> usize {
        let mut word = from / 64;
        let mut mask = !0u64 << (from % 64);
        loop {
            let used = self.used.get(word).copied().unwrap_or(0);
            let free = !used & mask;
            if free != 0 {
                return word * 64 + free.trailing_zeros() as usize;
            }
            word += 1;
            mask = !0;
        }
    }

    fn set(&mut self, fd: usize, cloexec: bool) {
        let word = fd / 64;
        if self.used.len() <= word {
            self.used.resize(word + 1, 0);
            self.cloexec.resize(word + 1, 0);
        }
        let bit = 1 << (fd % 64);
        self.used[word] |= bit;
        if cloexec {
            self.cloexec[word] |= bit;
        } else {
            self.cloexec[word] &= !bit;
        }
    }

    fn clear(&mut self, fd: usize) -> bool {
        let bit = 1 << (fd % 64);
        match self.used.get_mut(fd / 64) {
            Some(w) if *w & bit != 0 => {
                *w &= !bit;
                true
            }
            _ => false,
        }
    }
}

impl FdTable {
    /// No descriptors.
    pub fn new() -> Self {
        FdTable { files: RcuTable::new(FILES_MAX), book: Mutex::new(Book::default()) }
    }

    /// Descriptors there is room for, as `/proc/PID/status` tells it (`FDSize`): 64, and
    /// then the next power of two that holds the highest ever used (proc_pid_status(5)).
    pub fn slots(&self) -> usize {
        (self.book.lock().used.len() * 64).next_power_of_two().max(64)
    }

    /// The file of a descriptor.
    #[inline]
    pub fn get(&self, fd: u32) -> Result<FileRef> {
        self.files.get(fd as usize).ok_or(Errno::EBADF)
    }

    /// Puts a file at the lowest free descriptor from `from` on, below `limit`.
    pub fn add(&self, file: FileRef, cloexec: bool, from: usize, limit: u64) -> Result<u32> {
        let limit = limit.min(FILES_MAX as u64) as usize;
        let mut book = self.book.lock();
        let fd = book.first_free(from);
        if fd >= limit {
            return Err(Errno::EMFILE);
        }
        book.set(fd, cloexec);
        self.files.replace(fd, Some(file));
        Ok(fd as u32)
    }

    /// Puts a file at a descriptor, in place of what is there.
    pub fn put(&self, fd: u32, file: FileRef, cloexec: bool) -> Option<FileRef> {
        let mut book = self.book.lock();
        book.set(fd as usize, cloexec);
        self.files.replace(fd as usize, Some(file))
    }

    /// Takes a descriptor away; its file, which closes when the last reference is dropped.
    pub fn remove(&self, fd: u32) -> Result<FileRef> {
        let mut book = self.book.lock();
        if (fd as usize) >= FILES_MAX || !book.clear(fd as usize) {
            return Err(Errno::EBADF);
        }
        self.files.replace(fd as usize, None).ok_or(Errno::EBADF)
    }

    /// Is it closed by exec?
    pub fn cloexec(&self, fd: u32) -> Result<bool> {
        self.get(fd)?;
        let book = self.book.lock();
        let word = book.cloexec.get(fd as usize / 64).copied().unwrap_or(0);
        Ok(word & 1 << (fd % 64) != 0)
    }

    /// Says whether exec closes it.
    pub fn set_cloexec(&self, fd: u32, yes: bool) -> Result<()> {
        self.get(fd)?;
        self.book.lock().set(fd as usize, yes);
        Ok(())
    }

    /// Descriptors in use, in order.
    pub fn list(&self) -> Vec<u32> {
        let book = self.book.lock();
        let mut out = Vec::new();
        for (w, word) in book.used.iter().enumerate() {
            let mut bits = *word;
            while bits != 0 {
                out.push(w as u32 * 64 + bits.trailing_zeros());
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
                new.put(fd, file, cloexec);
            }
        }
        new
    }

    /// Closes what exec closes.
    pub fn close_on_exec(&self) {
        for fd in self.list() {
            if self.cloexec(fd) == Ok(true) {
                drop(self.remove(fd));
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

    #[test]
    fn lowest_free() {
        let t = FdTable::new();
        for want in 0..130 {
            assert_eq!(t.add(file(), want % 2 == 0, 0, 1024), Ok(want));
        }
        drop(t.remove(64).unwrap());
        drop(t.remove(3).unwrap());
        assert_eq!(t.add(file(), false, 0, 1024), Ok(3));
        assert_eq!(t.add(file(), false, 10, 1024), Ok(64));
        assert_eq!(t.add(file(), false, 0, 130), Err(Errno::EMFILE));
        assert_eq!(t.get(130).map(drop), Err(Errno::EBADF));
        assert_eq!(t.get(u32::MAX).map(drop), Err(Errno::EBADF));
        assert_eq!(t.remove(u32::MAX).map(drop), Err(Errno::EBADF));
        let d = t.duplicate();
        d.close_on_exec();
        assert!(d.list().iter().all(|fd| fd % 2 == 1 || *fd == 64));
        assert_eq!(t.list().len(), 130);
    }
}
