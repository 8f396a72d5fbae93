//! Memory of a simulated cell: a file that is mapped where the runtime expects its memory, and in the programs' part of
//! the address space what the space of the core that runs shows of it.

use std::collections::BTreeMap;

use atoll_abi::errno::{Errno, Result};
use atoll_abi::layout::{DIRECT_MAP, MAX_SPACES, PAGE, is_user_range};
use atoll_abi::platform::Access;

/// What a page shows, and what may be done with it.
type Page = (u64, Access);

pub(crate) struct Memory {
    fd: i32,
    size: u64,
    /// Pages by their addresses.
    spaces: Vec<Option<BTreeMap<u64, Page>>>,
    /// The space whose pages are there now.
    shown: usize,
}

fn pages(addr: u64, len: u64) -> impl Iterator<Item = u64> {
    (addr..addr + len).step_by(PAGE as usize)
}

fn check(addr: u64, len: u64) -> Result<()> {
    let whole = addr.is_multiple_of(PAGE) && len.is_multiple_of(PAGE);
    if whole && is_user_range(addr, len) { Ok(()) } else { Err(Errno::EINVAL) }
}

impl Memory {
    pub(crate) fn new(size: u64) -> Memory {
        // SAFETY: makes a file.
        let fd = unsafe { libc::memfd_create(c"cell".as_ptr(), libc::MFD_CLOEXEC) };
        // SAFETY: of that file.
        assert!(fd >= 0 && unsafe { libc::ftruncate(fd, size as i64) } == 0, "no memory for the cell");
        let memory = Memory { fd, size, spaces: vec![Some(BTreeMap::new())], shown: 0 };
        memory.put(DIRECT_MAP, size, (0, Access::READ | Access::WRITE), libc::MAP_FIXED_NOREPLACE);
        memory
    }

    fn put(&self, addr: u64, len: u64, (offset, access): Page, fixed: i32) {
        let bits = [
            (Access::READ, libc::PROT_READ),
            (Access::WRITE, libc::PROT_WRITE),
            (Access::EXEC, libc::PROT_EXEC),
        ];
        let prot = bits.iter().filter(|(a, _)| access.contains(*a)).fold(0, |all, (_, p)| all | p);
        let (at, flags) = (addr as *mut libc::c_void, libc::MAP_SHARED | fixed);
        // SAFETY: the programs' part, or where nothing is.
        let got = unsafe { libc::mmap(at, len as usize, prot, flags, self.fd, offset as i64) };
        assert_eq!(got, at, "{addr:#x} is taken");
    }

    fn hide(&self, addr: u64) {
        // SAFETY: the programs' part.
        unsafe { libc::munmap(addr as *mut libc::c_void, PAGE as usize) };
    }

    /// Has the pages of this space be there.
    pub(crate) fn show(&mut self, space: u32) {
        let before = std::mem::replace(&mut self.shown, space as usize);
        if before == self.shown {
            return;
        }
        let of = |n: usize| self.spaces.get(n).into_iter().flatten().flatten();
        of(before).for_each(|(addr, _)| self.hide(*addr));
        of(self.shown).for_each(|(addr, page)| self.put(*addr, PAGE, *page, libc::MAP_FIXED));
    }

    fn here(&mut self) -> &mut BTreeMap<u64, Page> {
        self.spaces[self.shown].as_mut().expect("no core is in a space that is gone")
    }

    pub(crate) fn create(&mut self) -> Result<u32> {
        let free = self.spaces.iter().position(Option::is_none).unwrap_or(self.spaces.len());
        if free == MAX_SPACES {
            return Err(Errno::EAGAIN);
        }
        if free == self.spaces.len() {
            self.spaces.push(None);
        }
        self.spaces[free] = Some(BTreeMap::new());
        Ok(free as u32)
    }

    pub(crate) fn destroy(&mut self, space: u32) -> Result<()> {
        let space = space as usize;
        if space == 0 || space == self.shown {
            return Err(Errno::EBUSY);
        }
        self.spaces.get_mut(space).and_then(Option::take).map(drop).ok_or(Errno::EINVAL)
    }

    pub(crate) fn map(&mut self, addr: u64, len: u64, access: Access, offset: u64) -> Result<()> {
        check(addr, len)?;
        if !offset.is_multiple_of(PAGE) || offset.checked_add(len).is_none_or(|end| end > self.size) {
            return Err(Errno::EINVAL);
        }
        for at in pages(addr, len) {
            let page = (offset + (at - addr), access);
            self.here().insert(at, page);
            self.put(at, PAGE, page, libc::MAP_FIXED);
        }
        Ok(())
    }

    pub(crate) fn unmap(&mut self, addr: u64, len: u64) -> Result<()> {
        check(addr, len)?;
        let gone: Vec<u64> = self.here().range(addr..addr + len).map(|(at, _)| *at).collect();
        for at in gone {
            self.here().remove(&at);
            self.hide(at);
        }
        Ok(())
    }

    pub(crate) fn protect(&mut self, addr: u64, len: u64, access: Access) -> Result<()> {
        check(addr, len)?;
        for at in pages(addr, len) {
            let Some(page) = self.here().get_mut(&at) else { continue };
            page.1 = access;
            let page = *page;
            self.put(at, PAGE, page, libc::MAP_FIXED);
        }
        Ok(())
    }
}
