//! Where a read puts its bytes and where a write takes them from.
//!
//! Both know the program's buffers (or one of the runtime's) and how far the
//! transfer has come. Transfers here never bring in a missing page: they may
//! run under a lock that the pager needs. They stop short, and remember where;
//! the caller lets go of its locks, brings the page in, and goes on.
#![allow(unsafe_code, reason = "copies between the cell's memory and programs'")]

use crate::heap::memory;
use crate::user;
use crate::vm::SLOT;
use atoll_abi::layout::PAGE;
use atoll_abi::platform::{HostBuf, ReadBuf};
use atoll_abi::service::Extent;
use atoll_abi::{Errno, Result};
use atoll_sync::breathe;

/// Most bytes that are handed to one host call.
const HOST_MAX: u64 = 1 << 20;
/// And most buffers.
const HOST_BUFS: usize = 8;

/// A piece of a program's memory: address and length.
#[derive(Clone, Copy, Debug, Default)]
pub struct Piece {
    /// Address.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
}

enum Buffers<'a, K> {
    User(&'a [Piece]),
    One(Piece),
    Kernel(K),
}

struct Cursor {
    piece: usize,
    within: u64,
    left: u64,
    done: u64,
    fault: Option<u64>,
}

impl Cursor {
    fn new(len: u64) -> Self {
        Cursor { piece: 0, within: 0, left: len, done: 0, fault: None }
    }

    /// The next run of program memory.
    fn run(&mut self, pieces: &[Piece]) -> Option<Piece> {
        while let Some(p) = pieces.get(self.piece) {
            if self.within < p.len {
                return Some(Piece { addr: p.addr + self.within, len: (p.len - self.within).min(self.left) });
            }
            self.piece += 1;
            self.within = 0;
        }
        None
    }

    fn advance(&mut self, mut n: u64, pieces: &[Piece]) {
        self.left -= n;
        self.done += n;
        while n > 0 {
            let rest = pieces[self.piece].len - self.within;
            if n < rest {
                self.within += n;
                return;
            }
            n -= rest;
            self.piece += 1;
            self.within = 0;
        }
    }
}

/// The destination of a read.
pub struct Sink<'a> {
    to: Buffers<'a, &'a mut [u8]>,
    at: Cursor,
}

/// The origin of a write.
pub struct Source<'a> {
    from: Buffers<'a, &'a [u8]>,
    at: Cursor,
}

fn total(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|p| p.len).sum()
}

macro_rules! common {
    ($t:ident, $field:ident, $write:expr, $buf:ident) => {
        impl<'a> $t<'a> {
            /// Several buffers of the program, each a range of its addresses.
            pub fn user(pieces: &'a [Piece]) -> Self {
                $t { $field: Buffers::User(pieces), at: Cursor::new(total(pieces)) }
            }

            /// One buffer of the program.
            pub fn one(addr: u64, len: u64) -> Self {
                $t { $field: Buffers::One(Piece { addr, len }), at: Cursor::new(len) }
            }

            /// Bytes still to go.
            pub fn left(&self) -> usize {
                self.at.left as usize
            }

            /// Bytes done.
            pub fn done(&self) -> usize {
                self.at.done as usize
            }

            /// Transfers no more than `n` further bytes.
            pub fn limit(&mut self, n: u64) {
                self.at.left = self.at.left.min(n);
            }

            /// Begins once more, as if nothing had been transferred.
            pub fn rewind(&mut self) {
                self.at = Cursor::new(self.at.left + self.at.done);
            }

            /// The program's address that was not there, if a transfer stopped for that.
            pub fn take_fault(&mut self) -> Option<u64> {
                self.at.fault.take()
            }

            /// Counts `n` bytes as done that somebody else transferred.
            pub fn advance(&mut self, n: usize) {
                let n = n as u64;
                match &self.$field {
                    Buffers::User(pieces) => self.at.advance(n, pieces),
                    Buffers::One(_) | Buffers::Kernel(_) => {
                        self.at.left -= n;
                        self.at.done += n;
                        self.at.within += n;
                    }
                }
            }

            fn run(&mut self) -> Option<Piece> {
                if self.at.left == 0 {
                    return None;
                }
                match &self.$field {
                    Buffers::User(pieces) => self.at.run(pieces),
                    Buffers::One(p) => Some(Piece { addr: p.addr + self.at.within, len: self.at.left }),
                    Buffers::Kernel(_) => None,
                }
            }

            /// Looks for a page of what is left of the buffers that is not there for a host call to use, and
            /// notes it as where the transfer stopped. True: there is one.
            pub fn note_missing(&mut self) -> bool {
                let mut missing = None;
                let all = self.each_piece(|p| {
                    missing = user::first_missing(p.addr, p.len, $write);
                    Ok(missing.is_none())
                });
                debug_assert!(all.is_ok());
                self.at.fault = missing;
                missing.is_some()
            }

            /// EFAULT if a page of the next `n` bytes is missing, which is noted: what
            /// follows is done as a whole or not at all.
            #[inline]
            pub fn ensure(&mut self, n: usize) -> Result<()> {
                // In one page it is so anyway.
                if self.run().is_none_or(|run| run.len >= n as u64 && run.addr % PAGE + n as u64 <= PAGE) {
                    return Ok(());
                }
                self.ensure_pages(n)
            }

            #[cold]
            fn ensure_pages(&mut self, n: usize) -> Result<()> {
                let mut left = n as u64;
                let mut missing = None;
                let all = self.each_piece(|p| {
                    let len = p.len.min(left);
                    left -= len;
                    missing = user::first_missing(p.addr, len, $write);
                    Ok(missing.is_none() && left > 0)
                });
                debug_assert!(all.is_ok());
                self.at.fault = missing;
                if missing.is_some() { Err(Errno::EFAULT) } else { Ok(()) }
            }

            /// The buffers that are left, for a host call: the first eight of them. The program's only. Value: how many.
            pub fn host_bufs(&mut self, bufs: &mut [$buf; HOST_BUFS]) -> Result<usize> {
                let mut n = 0;
                self.each_piece(|p| {
                    bufs[n] = $buf::user(p.addr, p.len)?;
                    n += 1;
                    Ok(n < bufs.len())
                })?;
                Ok(n)
            }

            /// Bytes that a host call takes with these; of a buffer of the runtime, all.
            pub fn host_len(&mut self) -> usize {
                if let Buffers::Kernel(_) = self.$field {
                    return self.left();
                }
                let (mut n, mut len) = (0, 0);
                let all = self.each_piece(|p| {
                    (n, len) = (n + 1, len + p.len as usize);
                    Ok(n < HOST_BUFS)
                });
                debug_assert!(all.is_ok());
                len
            }

            /// Gives `f` the program's buffers that are left, up to [`HOST_MAX`] bytes, until it says
            /// false. Value: where the first one begins.
            fn each_piece(&mut self, mut f: impl FnMut(Piece) -> Result<bool>) -> Result<Option<u64>> {
                let (mut piece, mut within) = (self.at.piece, self.at.within);
                let mut left = self.at.left.min(HOST_MAX);
                let mut first = None;
                let list: &[Piece] = match &self.$field {
                    Buffers::User(p) => p,
                    Buffers::One(p) => core::slice::from_ref(p),
                    Buffers::Kernel(_) => &[],
                };
                while left > 0 {
                    let Some(p) = list.get(piece) else { break };
                    let len = (p.len - within).min(left);
                    if len > 0 {
                        first.get_or_insert(p.addr + within);
                        if !f(Piece { addr: p.addr + within, len })? {
                            break;
                        }
                    }
                    left -= len;
                    piece += 1;
                    within = 0;
                }
                Ok(first)
            }
        }
    };
}

/// Where `len` bytes of the cell's memory from `offset` on are, all of which there are.
fn part_of_memory(offset: u64, len: usize) -> *mut u8 {
    assert!(offset + len as u64 <= memory().total());
    memory().address(offset)
}

common!(Sink, to, true, HostBuf);
common!(Source, from, false, ReadBuf);

impl<'a> Sink<'a> {
    /// A buffer of the runtime.
    pub fn kernel(to: &'a mut [u8]) -> Self {
        let len = to.len() as u64;
        Sink { to: Buffers::Kernel(to), at: Cursor::new(len) }
    }

    /// `len` bytes of the cell's memory from `offset` on, which the caller owns.
    pub fn memory(offset: u64, len: usize) -> Sink<'static> {
        // SAFETY: inside the cell's memory, which is always mapped; the caller owns that part.
        Sink::kernel(unsafe { core::slice::from_raw_parts_mut(part_of_memory(offset, len), len) })
    }

    /// Puts bytes. Value: how many, fewer than given if there is no room or a
    /// page is missing; EFAULT if that is none at all.
    pub fn put(&mut self, bytes: &[u8]) -> Result<usize> {
        // SAFETY: a slice is readable.
        unsafe { self.put_raw(bytes.as_ptr(), bytes.len()) }
    }

    /// Puts `len` bytes of the cell's memory from `offset` on.
    pub fn put_memory(&mut self, offset: u64, len: usize) -> Result<usize> {
        // SAFETY: inside the cell's memory, which is always mapped.
        unsafe { self.put_raw(part_of_memory(offset, len), len) }
    }

    /// Puts zeroes.
    pub fn put_zeroes(&mut self, mut n: usize) -> Result<usize> {
        static ZEROES: [u8; 4096] = [0; 4096];
        let mut done = 0;
        while n > 0 && self.at.left > 0 {
            let step = n.min(ZEROES.len());
            match self.put(&ZEROES[..step]) {
                Ok(0) => break,
                Ok(k) => {
                    done += k;
                    n -= k;
                    if k < step {
                        break;
                    }
                    if (done as u64).is_multiple_of(SLOT) {
                        breathe();
                    }
                }
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// # Safety
    /// `from` is readable for `len` bytes. What lies there may change meanwhile.
    unsafe fn put_raw(&mut self, from: *const u8, len: usize) -> Result<usize> {
        let mut done = 0;
        if let Buffers::Kernel(to) = &mut self.to {
            let n = len.min(self.at.left as usize);
            let start = self.at.done as usize;
            // SAFETY: the caller's promise; the slice has room for `left` bytes from `done` on.
            unsafe { core::ptr::copy_nonoverlapping(from, to[start..start + n].as_mut_ptr(), n) };
            self.advance(n);
            return Ok(n);
        }
        while done < len {
            let Some(run) = self.run() else { break };
            let n = (len - done).min(run.len as usize);
            // SAFETY: the caller's promise; pieces are ranges of the program.
            let copied = unsafe { user::copy_out_nofault(run.addr, from.add(done), n) };
            self.advance(copied);
            done += copied;
            if copied < n {
                self.at.fault = Some(run.addr + copied as u64);
                if done == 0 {
                    return Err(Errno::EFAULT);
                }
                break;
            }
        }
        Ok(done)
    }

    /// As much of the program's buffers that are left as is in place, up to `most` bytes, for a host call
    /// to fill that would stop short at a page that is missing. Value: buffers put into `bufs`. EFAULT if
    /// that is nothing.
    pub fn present_bufs(&mut self, most: u64, bufs: &mut [HostBuf; 8]) -> Result<usize> {
        let mut n = 0;
        let mut room = most;
        let first = self.each_piece(|p| {
            let len = user::present(p.addr, p.len.min(room));
            if len > 0 {
                bufs[n] = HostBuf::user(p.addr, len)?;
                n += 1;
                room -= len;
            }
            Ok(len == p.len && n < bufs.len())
        })?;
        if let (0, Some(first)) = (n, first) {
            self.at.fault = Some(first);
            return Err(Errno::EFAULT);
        }
        Ok(n)
    }
}

impl<'a> Source<'a> {
    /// A buffer of the runtime.
    pub fn kernel(from: &'a [u8]) -> Self {
        Source { from: Buffers::Kernel(from), at: Cursor::new(from.len() as u64) }
    }

    /// `len` bytes of the cell's memory from `offset` on, which the caller owns.
    pub fn memory(offset: u64, len: usize) -> Source<'static> {
        // SAFETY: inside the cell's memory, which is always mapped; the caller owns that part.
        Source::kernel(unsafe { core::slice::from_raw_parts(part_of_memory(offset, len), len) })
    }

    /// Takes bytes. Value: how many, fewer than asked at the end or at a
    /// missing page; EFAULT if that is none at all.
    pub fn take(&mut self, to: &mut [u8]) -> Result<usize> {
        // SAFETY: a slice is writable.
        unsafe { self.take_raw(to.as_mut_ptr(), to.len()) }
    }

    /// Copies what is left, as far as there is room, and takes nothing. EFAULT if a page is missing, which is noted.
    pub fn copy(&mut self, to: &mut [u8]) -> Result<usize> {
        let (piece, within, left, done) = (self.at.piece, self.at.within, self.at.left, self.at.done);
        let want = to.len().min(left as usize);
        let got = self.take(&mut to[..want]);
        self.at = Cursor { piece, within, left, done, fault: self.at.fault };
        if got? < want { Err(Errno::EFAULT) } else { Ok(want) }
    }

    /// What is left of a buffer of the runtime's. None: it is the program's.
    pub fn own(&self) -> Option<&'a [u8]> {
        match self.from {
            Buffers::Kernel(from) => Some(&from[self.at.done as usize..][..self.at.left as usize]),
            _ => None,
        }
    }

    /// Takes `len` bytes into the cell's memory at `offset`, which the caller owns.
    pub fn take_memory(&mut self, offset: u64, len: usize) -> Result<usize> {
        // SAFETY: inside the cell's memory; the caller owns that part.
        unsafe { self.take_raw(part_of_memory(offset, len), len) }
    }

    /// # Safety
    /// `to` is writable for `len` bytes.
    unsafe fn take_raw(&mut self, to: *mut u8, len: usize) -> Result<usize> {
        let mut done = 0;
        if let Buffers::Kernel(from) = &self.from {
            let n = len.min(self.at.left as usize);
            let start = self.at.done as usize;
            // SAFETY: the caller's promise; the slice has `left` bytes from `done` on.
            unsafe { core::ptr::copy_nonoverlapping(from[start..start + n].as_ptr(), to, n) };
            self.advance(n);
            return Ok(n);
        }
        while done < len {
            let Some(run) = self.run() else { break };
            let n = (len - done).min(run.len as usize);
            // SAFETY: the caller's promise; pieces are ranges of the program.
            let copied = unsafe { user::copy_in_nofault(to.add(done), run.addr, n) };
            self.advance(copied);
            done += copied;
            if copied < n {
                self.at.fault = Some(run.addr + copied as u64);
                if done == 0 {
                    return Err(Errno::EFAULT);
                }
                break;
            }
        }
        Ok(done)
    }
}

/// Runs a read again after its missing pages were brought in, until it gets
/// somewhere or a page can't be had. `whole`: does it go on from where it stopped
/// in the middle, too? Reads of a file are short at its end only, while the
/// further bytes of a stream may be long in coming.
pub fn reading(
    sink: &mut Sink,
    whole: impl Fn() -> bool,
    mut read: impl FnMut(&mut Sink) -> Result<usize>,
) -> Result<usize> {
    let (mut done, mut last) = (0, None);
    loop {
        let r = read(sink);
        let fault = sink.take_fault();
        match stopped(&mut done, r, fault, || sink.left() > 0 && whole()) {
            // Brought in, and no better.
            Ok(addr) if last.replace((addr, done)) == Some((addr, done)) => return Err(Errno::EFAULT),
            Ok(addr) => match user::bring_in(addr, true) {
                Err(_) if done > 0 => return Ok(done),
                brought => brought?,
            },
            Err(r) => return r,
        }
    }
}

/// For [`reading`] and [`writing`] where a transfer that stopped in the middle has come to its end.
pub fn in_part() -> bool {
    false
}

/// As [`reading`], for a write.
pub fn writing(
    source: &mut Source,
    whole: impl Fn() -> bool,
    mut write: impl FnMut(&mut Source) -> Result<usize>,
) -> Result<usize> {
    let (mut done, mut last) = (0, None);
    loop {
        let r = write(source);
        let fault = source.take_fault();
        match stopped(&mut done, r, fault, || source.left() > 0 && whole()) {
            Ok(addr) if last.replace((addr, done)) == Some((addr, done)) => return Err(Errno::EFAULT),
            Ok(addr) => match user::bring_in(addr, false) {
                Err(_) if done > 0 => return Ok(done),
                brought => brought?,
            },
            Err(r) => return r,
        }
    }
}

/// After one round of a transfer: the page that is to be brought in before the
/// next, or what the transfer comes to.
fn stopped(
    done: &mut usize,
    round: Result<usize>,
    fault: Option<u64>,
    go_on: impl Fn() -> bool,
) -> core::result::Result<u64, Result<usize>> {
    match (round, fault) {
        (Err(Errno::EFAULT), Some(addr)) => Ok(addr),
        (Err(_), _) if *done > 0 => Err(Ok(*done)),
        (Err(e), _) => Err(Err(e)),
        (Ok(n), fault) => {
            *done += n;
            match fault {
                Some(addr) if go_on() => Ok(addr),
                _ => Err(Ok(*done)),
            }
        }
    }
}

/// Names memory of the runtime that a service message's server fills.
///
/// # Panics
/// If it is not in the cell's extents (a constant, for example).
pub fn extent_mut(bytes: &mut [u8]) -> Extent {
    // The address is exposed, so that the compiler expects others to write there.
    let offset = memory().offset((bytes.as_mut_ptr().expose_provenance()) as *const u8);
    Extent {
        offset: if bytes.is_empty() {
            0
        } else {
            offset.expect("a request's buffer is not in the cell's memory")
        },
        len: bytes.len() as u64,
    }
}

/// Names memory of the runtime that a service message's server reads.
///
/// # Panics
/// If it is not in the cell's extents (a constant, for example).
pub fn extent(bytes: &[u8]) -> Extent {
    if bytes.is_empty() {
        return Extent::default();
    }
    let offset =
        memory().offset(bytes.as_ptr()).expect("the buffer of a request is not in the cell's memory");
    Extent { offset, len: bytes.len() as u64 }
}
