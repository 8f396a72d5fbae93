//! Calls on the address space.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use atoll_abi::control::Paging;
use atoll_abi::grid::Quota;
use atoll_abi::grid::call::{self, PageChange};
use atoll_abi::layout::{PAGE, USER_MAX, is_user_range, page_down, page_up};
use atoll_abi::platform::{Access, platform};
use atoll_abi::{Errno, Result};
use atoll_fs::OpenFile;
use atoll_fs::device::Device;
use atoll_fs::tmp::shared_memory;
use atoll_mem::colours::Colours;
use atoll_mem::heap::memory;
use atoll_mem::user;
use atoll_mem::vm::{
    Advice, Area, AreaChange, Bounds, ChangeTo, Denied, Kind, Locking, MapRequest, Mappable, Object, Place,
    Remap, SLOT, Told,
};
use atoll_sync::RcuArc;
use linux_raw_sys::general as linux;
use zerocopy::IntoBytes;

use super::process::READ_IMPLIES_EXEC;
use super::{Call, events, unsupported};
use crate::extents;
use crate::memory_policy;
use crate::process::{Task, world};
use crate::userfault::UserfaultFd;

fn access(prot: u32) -> Result<Access> {
    if prot & !(linux::PROT_READ | linux::PROT_WRITE | linux::PROT_EXEC | linux::PROT_SEM) != 0 {
        return Err(Errno::EINVAL);
    }
    let mut a = Access::empty();
    a.set(Access::READ, prot & linux::PROT_READ != 0);
    a.set(Access::WRITE, prot & linux::PROT_WRITE != 0);
    a.set(Access::EXEC, prot & linux::PROT_EXEC != 0);
    Ok(a)
}

/// The access that is asked for, with what the personality adds.
fn implied(c: &Call, prot: u32) -> u32 {
    let runs = c.task.process.persona.load(Ordering::Relaxed) & READ_IMPLIES_EXEC != 0;
    if runs && prot & linux::PROT_READ != 0 { prot | linux::PROT_EXEC } else { prot }
}

/// `mmap(2)`.
pub fn mmap(c: &mut Call) -> Result<u64> {
    let [addr, len, _, _, _, offset] = c.args();
    let (prot, flags) = (implied(c, c.uint(2)), c.uint(3));
    if !offset.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    // It takes no notice of others, such as PROT_GROWSDOWN.
    let access = access(prot & (linux::PROT_READ | linux::PROT_WRITE | linux::PROT_EXEC))?;
    let shared = match flags & linux::MAP_TYPE {
        linux::MAP_PRIVATE => false,
        linux::MAP_SHARED => true,
        // Only of files, and only with flags that it knows.
        linux::MAP_SHARED_VALIDATE if flags & linux::MAP_ANONYMOUS == 0 => {
            if flags & !SHARED_FLAGS != 0 {
                return Err(Errno::EOPNOTSUPP);
            }
            true
        }
        _ => return Err(Errno::EINVAL),
    };
    if flags & linux::MAP_HUGETLB != 0 {
        // Memory is on huge pages anyway where it can be. The pool that this asks for is empty, as on a Linux without one.
        let known = matches!(flags >> linux::MAP_HUGE_SHIFT & linux::MAP_HUGE_MASK, 0 | 21 | 30);
        return Err(if flags & linux::MAP_ANONYMOUS != 0 && known { Errno::ENOMEM } else { Errno::EINVAL });
    }
    let place = if flags & linux::MAP_FIXED_NOREPLACE != 0 {
        Place::FixedNoReplace
    } else if flags & linux::MAP_FIXED != 0 {
        Place::Fixed
    } else if flags & linux::MAP_32BIT != 0 {
        Place::Low
    } else {
        Place::Hint
    };
    let anonymous = flags & linux::MAP_ANONYMOUS != 0;
    let file = if anonymous { None } else { Some(c.file(4)?) };
    if len == 0 {
        return Err(Errno::EINVAL);
    }
    if len > USER_MAX {
        return Err(Errno::ENOMEM);
    }
    // A shared mapping of /dev/zero is memory like any other (`mem(4)`), that may be written to if that may.
    let zeroes = file.as_ref().filter(|f| shared && f.as_type::<Device>() == Some(&Device::Zero));
    if let Some(f) = zeroes
        && (!f.readable() || access.contains(Access::WRITE) && !f.writable())
    {
        return Err(Errno::EACCES);
    }
    let kind = if anonymous || zeroes.is_some() {
        let reserve = access.contains(Access::WRITE) && flags & linux::MAP_NORESERVE == 0;
        if reserve && len > memory().total() && overcommit_is_obvious(len) {
            return Err(Errno::ENOMEM);
        }
        if shared {
            let object = shared_memory(&world().shm, page_up(len), &c.task.cred());
            let file: Arc<dyn Mappable> = match zeroes {
                Some(f) if !f.writable() => Arc::new(ReadOnly(object.clone())),
                _ => object.clone(),
            };
            Kind::Object { object, file: Some(file), offset: 0 }
        } else {
            Kind::Anonymous
        }
    } else {
        let file = file.as_ref().expect("it is not anonymous");
        if offset.checked_add(page_up(len)).is_none_or(|end| end > i64::MAX as u64) {
            return Err(Errno::EOVERFLOW);
        }
        c.task.space.memory.check_place(addr, len, place)?;
        if !file.readable() || (shared && access.contains(Access::WRITE) && !file.writable()) {
            return Err(Errno::EACCES);
        }
        let mut mappable = file.file().clone().mappable()?;
        let mut read_only = !file.writable();
        if shared && !read_only && mappable.object().is_some() {
            // EPERM if it is sealed.
            match mappable.host_file(true) {
                Err(e) if access.contains(Access::WRITE) => return Err(e),
                allowed => read_only = allowed.is_err(),
            }
        }
        if shared && read_only {
            mappable = Arc::new(ReadOnly(mappable));
        }
        Kind::File { file: mappable, offset }
    };
    let locked = flags & linux::MAP_LOCKED != 0;
    if locked && !can_lock(c) {
        return Err(Errno::EPERM);
    }
    let space = &c.task.space.memory;
    if (locked || space.locks_all()) && page_up(len) > may_lock(c.task) {
        return Err(Errno::EAGAIN);
    }
    let grows = flags & linux::MAP_GROWSDOWN != 0;
    if grows && !matches!(kind, Kind::Anonymous) {
        return Err(Errno::EINVAL);
    }
    let said =
        if shared { None } else { memory_policy::of_mapping(&c.task.process, file.as_deref(), page_up(len)) };
    let (paging, colours) = said.map_or((None, None), |said| (said.paging, memory_policy::colours(said)));
    space.map(MapRequest {
        addr,
        len,
        access,
        shared,
        kind,
        place,
        name: "",
        paging,
        colours,
        most: bounds(c.task),
        populate: flags & linux::MAP_POPULATE != 0,
        locked,
        grows,
    })
}

/// Makes what grows downwards longer, as far as `addr`, where nothing is mapped; false: it can't be.
pub fn grow(task: &Task, addr: u64) -> bool {
    let (most, all) = (task.process.limit(linux::RLIMIT_STACK).cur, task.process.limit(linux::RLIMIT_AS).cur);
    let memory = &task.space.memory;
    memory.grow(addr, most, all.saturating_sub(memory.total()), most_locked(task))
}

/// May the process lock memory?
fn can_lock(c: &Call) -> bool {
    c.task.process.limit(linux::RLIMIT_MEMLOCK).cur != 0 || c.task.ids().may(linux::CAP_IPC_LOCK)
}

/// Bytes that the process may lock in all.
fn most_locked(task: &Task) -> u64 {
    if task.ids().may(linux::CAP_IPC_LOCK) {
        return u64::MAX;
    }
    // Of no limit as much as there are addresses.
    task.process.limit(linux::RLIMIT_MEMLOCK).cur & !(PAGE - 1)
}

/// Bytes that the process may lock more.
fn may_lock(task: &Task) -> u64 {
    match most_locked(task) {
        u64::MAX => u64::MAX,
        most => most.saturating_sub(task.space.memory.locked(0, USER_MAX)),
    }
}

/// What a MAP_SHARED_VALIDATE mapping may ask for beside.
const SHARED_FLAGS: u32 = linux::MAP_TYPE
    | linux::MAP_FIXED
    | linux::MAP_FIXED_NOREPLACE
    | linux::MAP_GROWSDOWN
    | linux::MAP_DENYWRITE
    | linux::MAP_EXECUTABLE
    | linux::MAP_LOCKED
    | linux::MAP_NORESERVE
    | linux::MAP_POPULATE
    | linux::MAP_NONBLOCK
    | linux::MAP_STACK
    | linux::MAP_HUGETLB
    | linux::MAP_32BIT;

/// How much may be mapped.
pub(crate) fn bounds(task: &Task) -> Bounds {
    let [all, data] = task.process.limits_of([linux::RLIMIT_AS, linux::RLIMIT_DATA]);
    // Linux makes an exception for valgrind, which says 0 and means that there is no heap, and else the hard limit.
    Bounds { all: all.cur, data: if data.cur == 0 { data.max } else { data.cur }, heap: data.cur }
}

/// More than a cell could ever have, as Linux's heuristic refuses it: total memory, several times over.
pub(crate) fn overcommit_is_obvious(len: u64) -> bool {
    len > most_at_once()
}

/// Bytes that are not more than that.
fn most_at_once() -> u64 {
    extents::potential().saturating_mul(2)
}

/// A file that was opened for reading only, or is sealed, mapped shared: it can't be made writable later.
pub(crate) struct ReadOnly(pub(crate) Arc<dyn Mappable>);

impl Mappable for ReadOnly {
    fn host_file(&self, write: bool) -> Result<Option<i32>> {
        if write { Err(Errno::EACCES) } else { self.0.host_file(false) }
    }
    fn object(&self) -> Option<Arc<dyn Object>> {
        self.0.object()
    }
    fn read(&self, offset: u64, to: &mut [u8]) -> Result<usize> {
        self.0.read(offset, to)
    }
    fn describe(&self) -> (Vec<u8>, u64, u64) {
        self.0.describe()
    }
    fn punch_hole(&self, _offset: u64, _len: u64) -> Result<()> {
        Err(Errno::EACCES)
    }
}

/// `userfaultfd(2)`.
pub fn userfaultfd(c: &mut Call) -> Result<u64> {
    let flags = c.uint(0);
    if flags & !(linux::UFFD_USER_MODE_ONLY | linux::O_CLOEXEC | linux::O_NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    let user_mode_only = flags & linux::UFFD_USER_MODE_ONLY != 0;
    if !user_mode_only && !c.task.cred().may(linux::CAP_SYS_PTRACE) {
        return Err(Errno::EPERM);
    }
    let held = events::held(c, Quota::Events)?;
    let file = UserfaultFd::new(&c.task.space.share(), user_mode_only, held);
    let opened = RcuArc::new(OpenFile::new(Arc::new(file), linux::O_RDONLY | flags & linux::O_NONBLOCK));
    c.install(opened, flags & linux::O_CLOEXEC != 0)
}

/// `munmap(2)`.
pub fn munmap(c: &mut Call) -> Result<u64> {
    c.task.space.memory.unmap(c.arg(0), c.arg(1)).map(|()| 0)
}

/// `remap_file_pages(2)`: since Linux 4.0 it is an mmap(2) of another part of what is mapped there.
pub fn remap_file_pages(c: &mut Call) -> Result<u64> {
    let [start, size, prot, page, _, _] = c.args();
    let (start, size) = (page_down(start), page_down(size));
    let end = start.checked_add(size).filter(|end| *end > start && page.checked_add(size / PAGE).is_some());
    let end = end.ok_or(Errno::EINVAL)?;
    let space = &c.task.space.memory;
    let shown = |kind: &Kind| match kind {
        Kind::File { file, .. } => Arc::as_ptr(file).cast::<()>(),
        Kind::Object { object, .. } => Arc::as_ptr(object).cast::<()>(),
        Kind::Anonymous => core::ptr::null(),
    };
    let (_, area) = space.find(start).filter(|(_, area)| prot == 0 && area.shared).ok_or(Errno::EINVAL)?;
    let mut at = area.end;
    while at < end {
        let is_alike =
            |next: &Area| next.shared && next.access == area.access && shown(&next.kind) == shown(&area.kind);
        at = space.find(at).filter(|(_, next)| is_alike(next)).ok_or(Errno::EINVAL)?.1.end;
    }
    let to = page.checked_mul(PAGE).filter(|to| to.saturating_add(size) <= i64::MAX as u64);
    let to = to.ok_or(Errno::EOVERFLOW)?;
    let mut kind = area.kind;
    match &mut kind {
        Kind::File { offset, .. } | Kind::Object { offset, .. } => *offset = to,
        Kind::Anonymous => return Err(Errno::EINVAL),
    }
    space.map(MapRequest {
        addr: start,
        len: size,
        access: area.access,
        shared: true,
        kind,
        place: Place::Fixed,
        name: area.name,
        populate: true,
        locked: area.locked,
        ..MapRequest::default()
    })?;
    Ok(0)
}

/// `mprotect(2)`.
pub fn mprotect(c: &mut Call) -> Result<u64> {
    let (mut addr, mut len, prot) = (c.arg(0), c.arg(1), implied(c, c.uint(2)));
    if prot & linux::PROT_GROWSUP != 0 {
        return Err(Errno::EINVAL);
    }
    if prot & linux::PROT_GROWSDOWN != 0 && addr.is_multiple_of(PAGE) && len > 0 {
        // From where it begins, and only of what grows downwards.
        let found = c.task.space.memory.find(addr).filter(|(_, area)| area.grows);
        let (start, _) = found.ok_or(Errno::EINVAL)?;
        (addr, len) = (start, len.saturating_add(addr - start));
    }
    let access = access(prot & !linux::PROT_GROWSDOWN)?;
    let most_data = if access.contains(Access::WRITE) { bounds(c.task).data } else { u64::MAX };
    c.task.space.memory.protect(addr, len, access, most_data).map(|()| 0)
}

/// `mremap(2)`.
pub fn mremap(c: &mut Call) -> Result<u64> {
    let [old, old_len, new_len, _, new, _] = c.args();
    let flags = c.uint(3);
    if flags & !(linux::MREMAP_MAYMOVE | linux::MREMAP_FIXED | linux::MREMAP_DONTUNMAP) != 0 {
        return Err(Errno::EINVAL);
    }
    let may_move = flags & linux::MREMAP_MAYMOVE != 0;
    let fixed = (flags & linux::MREMAP_FIXED != 0).then_some(new);
    let stays = (flags & linux::MREMAP_DONTUNMAP != 0).then_some(new);
    if (fixed.is_some() || stays.is_some()) && !may_move
        || stays.is_some() && page_up(old_len) != page_up(new_len)
    {
        return Err(Errno::EINVAL);
    }
    let most_locked = most_locked(c.task);
    let most = bounds(c.task);
    let most_private = most_at_once();
    let remap = Remap { old, old_len, new_len, may_move, fixed, stays, most_locked, most, most_private };
    c.task.space.memory.remap(remap)
}

/// `brk(2)`.
pub fn brk(c: &mut Call) -> Result<u64> {
    let space = &c.task.space.memory;
    let to = c.arg(0);
    let (start, now) = space.heap_range();
    let more = page_up(to).saturating_sub(page_up(now));
    let is_refused = || {
        space.locks_all() && more > may_lock(c.task) || more > memory().total() && overcommit_is_obvious(more)
    };
    if more > 0 && is_refused() {
        return Ok(now.max(start));
    }
    Ok(space.brk(to, bounds(c.task)))
}

/// `madvise(2)`.
pub fn madvise(c: &mut Call) -> Result<u64> {
    let (addr, len) = (c.arg(0), page_up(c.arg(1)));
    let advice = match c.uint(2) {
        linux::MADV_DONTNEED => Advice::Discard,
        linux::MADV_DONTNEED_LOCKED => Advice::DiscardLocked,
        linux::MADV_FREE => Advice::Free,
        linux::MADV_COLD | linux::MADV_PAGEOUT => Advice::Cold,
        how @ (linux::MADV_DONTFORK | linux::MADV_DOFORK) => Advice::Omit(how == linux::MADV_DONTFORK),
        how @ (linux::MADV_WIPEONFORK | linux::MADV_KEEPONFORK) => {
            Advice::Wipe(how == linux::MADV_WIPEONFORK)
        }
        how @ (linux::MADV_DONTDUMP | linux::MADV_DODUMP) => Advice::Undump(how == linux::MADV_DONTDUMP),
        linux::MADV_HUGEPAGE => Advice::Paging(Paging::Huge),
        linux::MADV_NOHUGEPAGE => Advice::Paging(Paging::Demand),
        linux::MADV_POPULATE_READ | linux::MADV_POPULATE_WRITE | linux::MADV_REMOVE => Advice::Other,
        linux::MADV_NORMAL
        | linux::MADV_RANDOM
        | linux::MADV_SEQUENTIAL
        | linux::MADV_WILLNEED
        | linux::MADV_COLLAPSE
        | linux::MADV_MERGEABLE
        | linux::MADV_UNMERGEABLE => Advice::Other,
        other => return Err(unsupported(c.task, &alloc::format!("madvise({other})"), Errno::EINVAL)),
    };
    if !addr.is_multiple_of(PAGE) || len < c.arg(1) || addr.checked_add(len).is_none() {
        return Err(Errno::EINVAL);
    }
    if len == 0 {
        return Ok(0);
    }
    if !is_user_range(addr, len) {
        return Err(Errno::ENOMEM);
    }
    match c.uint(2) {
        how @ (linux::MADV_POPULATE_READ | linux::MADV_POPULATE_WRITE) => {
            let write = how == linux::MADV_POPULATE_WRITE;
            let populated = c.task.space.memory.populate(addr, len, Some(write));
            populated.map(|()| 0).map_err(|denied| match denied {
                Denied::Unmapped | Denied::NoMemory => Errno::ENOMEM,
                Denied::Access => Errno::EINVAL,
                // Nor does the program's own pager, which this doesn't wait for.
                Denied::Bus | Denied::Asked => Errno::EFAULT,
            })
        }
        // Frees the pages behind a file's shared mapping; private memory has none to free.
        linux::MADV_REMOVE => remove(c, addr, len),
        _ => c.task.space.memory.advise(addr, len, advice).map(|()| 0),
    }
}

/// Slots that are looked at at a time: 256 MiB of addresses.
const SLOTS_AT_ONCE: u64 = 4096;

/// Which pages were written to since this was last asked ([`PAGES_WRITTEN`](call::PAGES_WRITTEN)).
pub fn pages_written(c: &mut Call) -> Result<u64> {
    pages_told(c, Told::Written)
}

/// Which pages were used since this was last asked ([`PAGES_ACCESSED`](call::PAGES_ACCESSED)).
pub fn pages_accessed(c: &mut Call) -> Result<u64> {
    pages_told(c, Told::Accessed)
}

fn pages_told(c: &Call, told: Told) -> Result<u64> {
    let [addr, len, to, ..] = c.args();
    if !addr.is_multiple_of(PAGE) || !len.is_multiple_of(PAGE) || !is_user_range(addr, len) {
        return Err(Errno::EINVAL);
    }
    let space = &c.task.space.memory;
    space.can_tell(addr, len)?;
    // What is taken must not be lost for want of a place for it.
    user::zero(to, (len / PAGE).div_ceil(8) as usize)?;
    let mut words = Vec::new();
    let (mut at, mut pages, mut put) = (addr, 0, 0);
    while at < addr + len {
        let end = (at + SLOTS_AT_ONCE * SLOT).min(addr + len);
        words.clear();
        words.resize((end - (at & !(SLOT - 1))).div_ceil(SLOT) as usize, 0);
        pages += space.take_told(told, at, end - at, &mut words)?;
        // The range's first page may be in the middle of a slot.
        let shift = at % SLOT / PAGE;
        let bits = |slot: usize| u32::from(words.get(slot).copied().unwrap_or(0));
        let shifted: Vec<u16> =
            (0..words.len()).map(|n| ((bits(n) | bits(n + 1) << 16) >> shift) as u16).collect();
        let bytes = ((end - at) / PAGE).div_ceil(8);
        user::write(to + put, &shifted.as_bytes()[..bytes as usize])?;
        (at, put) = (end, put + bytes);
    }
    Ok(pages)
}

/// Cores walk the page tables anew for a range ([`PAGES_FORGET`](call::PAGES_FORGET)).
pub fn pages_forget(c: &mut Call) -> Result<u64> {
    let (addr, len) = (c.arg(0), c.arg(1));
    if !addr.is_multiple_of(PAGE) || !len.is_multiple_of(PAGE) || !is_user_range(addr, len) {
        return Err(Errno::EINVAL);
    }
    platform().forget(addr, len).map(|()| 0)
}

/// Pages of a range are to be in frames of some colours ([`PAGES_COLOUR`](call::PAGES_COLOUR)).
pub fn pages_colour(c: &mut Call) -> Result<u64> {
    let [addr, len, count, wanted, ..] = c.args();
    platform().frame_of(0).ok_or(Errno::ENOSYS)?;
    if !addr.is_multiple_of(PAGE) || !len.is_multiple_of(PAGE) || !is_user_range(addr, len) {
        return Err(Errno::EINVAL);
    }
    let colours = match u32::try_from(count) {
        Ok(0) => None,
        Ok(count) => Some(Colours::new(count, wanted)?),
        Err(_) => return Err(Errno::EINVAL),
    };
    if len > 0 {
        c.task.space.memory.set_colours(addr, len, colours)?;
    }
    Ok(0)
}

/// The frames that pages of a range are in ([`PAGES_FRAMES`](call::PAGES_FRAMES)).
pub fn pages_frames(c: &mut Call) -> Result<u64> {
    const AT_ONCE: u64 = 64;
    let [addr, len, to, ..] = c.args();
    platform().frame_of(0).ok_or(Errno::ENOSYS)?;
    if !addr.is_multiple_of(PAGE) || !len.is_multiple_of(PAGE) || !is_user_range(addr, len) {
        return Err(Errno::EINVAL);
    }
    let pages = len / PAGE;
    for done in (0..pages).step_by(AT_ONCE as usize) {
        let mut frames = [0; AT_ONCE as usize];
        let frames = &mut frames[..(pages - done).min(AT_ONCE) as usize];
        c.task.space.memory.frames(addr + done * PAGE, frames)?;
        user::write(to.wrapping_add(done * 8), frames.as_bytes())?;
    }
    Ok(0)
}

/// Several changes of mappings ([`PAGES_CHANGE`](call::PAGES_CHANGE)).
pub fn pages_change(c: &mut Call) -> Result<u64> {
    const AT_ONCE: usize = 64;
    let (list, total) = (c.arg(0), c.arg(1));
    let mut done = 0;
    while done < total {
        let n = (total - done).min(AT_ONCE as u64) as usize;
        let mut asked = [PageChange::default(); AT_ONCE];
        let at = list.wrapping_add(done.wrapping_mul(size_of::<PageChange>() as u64));
        let mut why = user::read(at, asked[..n].as_mut_bytes()).map_err(|_| Errno::EFAULT);
        let mut changes = [AreaChange { addr: 0, len: 0, to: ChangeTo::Nothing }; AT_ONCE];
        let mut known = 0;
        while why.is_ok() && known < n {
            match area_change(&asked[known]) {
                Ok(change) => changes[known] = change,
                Err(e) => {
                    why = Err(e);
                    break;
                }
            }
            known += 1;
        }
        let (made, end) = c.task.space.memory.change(&changes[..known], bounds(c.task).data);
        done += made as u64;
        match end.and(why) {
            Err(e) if done == 0 => return Err(e),
            Err(_) => break,
            Ok(()) => {}
        }
    }
    Ok(done)
}

fn area_change(asked: &PageChange) -> Result<AreaChange> {
    let (addr, len) = (asked.addr, page_up(asked.len));
    // As `munmap(2)` has it, and the others not.
    let empty = len == 0 && asked.what == call::change::UNMAP;
    if !addr.is_multiple_of(PAGE) || empty || len < asked.len || !is_user_range(addr, len) {
        return Err(Errno::EINVAL);
    }
    let to = match asked.what {
        call::change::ACCESS => ChangeTo::Access(access(asked.access)?),
        call::change::DISCARD => ChangeTo::Zeroes,
        call::change::UNMAP => ChangeTo::Nothing,
        _ => return Err(Errno::EINVAL),
    };
    Ok(AreaChange { addr, len, to })
}

/// `msync(2)`: what is mapped shared is the file itself; MS_SYNC makes it durable.
pub fn msync(c: &mut Call) -> Result<u64> {
    let (addr, flags) = (c.arg(0), c.uint(2));
    // Linux adds without looking, so that the greatest length is none.
    let len = c.arg(1).wrapping_add(PAGE - 1) & !(PAGE - 1);
    let known = linux::MS_ASYNC | linux::MS_INVALIDATE | linux::MS_SYNC;
    if !addr.is_multiple_of(PAGE)
        || flags & !known != 0
        || flags & linux::MS_ASYNC != 0 && flags & linux::MS_SYNC != 0
    {
        return Err(Errno::EINVAL);
    }
    let end = addr.checked_add(len).ok_or(Errno::ENOMEM)?;
    each_area(c, addr, end, |_, area| {
        if area.locked && flags & linux::MS_INVALIDATE != 0 {
            return Err(Errno::EBUSY);
        }
        if let Kind::Object { object, .. } = &area.kind
            && area.access.contains(Access::WRITE)
        {
            object.settle(false);
        }
        match &area.kind {
            Kind::File { file, .. } | Kind::Object { file: Some(file), .. }
                if area.shared && flags & linux::MS_SYNC != 0 =>
            {
                file.flush()
            }
            _ => Ok(()),
        }
    })
}

/// Calls `f` with the start of each area of a range and with the area, until it fails. ENOMEM: there are holes.
fn each_area(c: &Call, addr: u64, end: u64, mut f: impl FnMut(u64, &Area) -> Result<()>) -> Result<u64> {
    let (mut at, mut whole) = (addr, true);
    while at < end {
        let Some((start, area)) = c.task.space.memory.find_from(at).filter(|(start, _)| *start < end) else {
            return Err(Errno::ENOMEM);
        };
        whole &= start <= at;
        f(start, &area)?;
        at = area.end;
    }
    if whole { Ok(0) } else { Err(Errno::ENOMEM) }
}

/// `mincore(2)`.
pub fn mincore(c: &mut Call) -> Result<u64> {
    /// Pages that are asked for at once.
    const AT_ONCE: u64 = 256;
    let (addr, len) = (c.arg(0), page_up(c.arg(1)));
    if !addr.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    if len < c.arg(1) || !is_user_range(addr, len) {
        return Err(Errno::ENOMEM);
    }
    let pages = len / PAGE;
    if !is_user_range(c.arg(2), pages) {
        return Err(Errno::EFAULT);
    }
    for done in (0..pages).step_by(AT_ONCE as usize) {
        let mut present = [0; AT_ONCE as usize];
        let present = &mut present[..(pages - done).min(AT_ONCE) as usize];
        c.task.space.memory.present(addr + done * PAGE, present)?;
        user::write(c.arg(2) + done, present)?;
    }
    Ok(0)
}

/// `madvise(MADV_REMOVE)`: a hole in the file, where the mapping is one.
fn remove(c: &Call, addr: u64, len: u64) -> Result<u64> {
    each_area(c, addr, addr + len, |start, area| {
        let (file, offset) = match &area.kind {
            Kind::File { file, offset } | Kind::Object { file: Some(file), offset, .. } => (file, offset),
            _ => return Err(Errno::EINVAL),
        };
        if area.locked {
            return Err(Errno::EINVAL);
        }
        if !area.shared {
            return Err(Errno::EACCES);
        }
        let from = start.max(addr);
        file.punch_hole(offset + (from - start), area.end.min(addr + len) - from)
    })
}

/// `mlock2(2)`.
pub fn mlock2(c: &mut Call) -> Result<u64> {
    const ONFAULT: u32 = 1;
    if c.uint(2) & !ONFAULT != 0 {
        return Err(Errno::EINVAL);
    }
    lock(c, if c.uint(2) & ONFAULT == 0 { Locking::Now } else { Locking::OnFault })
}

/// The pages that a call on locks is for: address and length. EINVAL: there are no such addresses.
fn pages_of(c: &Call) -> Result<(u64, u64)> {
    let addr = c.arg(0) & !(PAGE - 1);
    // Linux adds without looking, so that the greatest length is none.
    let len = c.arg(1).wrapping_add(c.arg(0) - addr).wrapping_add(PAGE - 1) & !(PAGE - 1);
    if addr.checked_add(len).is_none() { Err(Errno::EINVAL) } else { Ok((addr, len)) }
}

/// `munlock(2)`.
pub fn munlock(c: &mut Call) -> Result<u64> {
    let (addr, len) = pages_of(c)?;
    c.task.space.memory.set_locked(addr, len, Locking::No).map(|()| 0)
}

/// `mlockall(2)`.
pub fn mlockall(c: &mut Call) -> Result<u64> {
    let flags = c.uint(0);
    let known = linux::MCL_CURRENT | linux::MCL_FUTURE | linux::MCL_ONFAULT;
    if flags & !known != 0 || flags == 0 || flags == linux::MCL_ONFAULT {
        return Err(Errno::EINVAL);
    }
    if !can_lock(c) {
        return Err(Errno::EPERM);
    }
    let space = &c.task.space.memory;
    let now = flags & linux::MCL_CURRENT != 0;
    let all = space.total();
    if now && all > may_lock(c.task).saturating_add(space.locked(0, USER_MAX)) {
        return Err(Errno::ENOMEM);
    }
    let how = if flags & linux::MCL_ONFAULT != 0 { Locking::OnFault } else { Locking::Now };
    space.lock_all(now.then_some(how), if flags & linux::MCL_FUTURE != 0 { how } else { Locking::No });
    if now {
        space.bring_in_locked();
    }
    Ok(0)
}

/// `mlock(2)`.
pub fn mlock(c: &mut Call) -> Result<u64> {
    lock(c, Locking::Now)
}

/// Memory of a cell is never paged out; it is brought in.
fn lock(c: &Call, how: Locking) -> Result<u64> {
    if !can_lock(c) {
        return Err(Errno::EPERM);
    }
    let (addr, len) = pages_of(c)?;
    let space = &c.task.space.memory;
    if len > may_lock(c.task).saturating_add(space.locked(addr, addr + len)) {
        return Err(Errno::ENOMEM);
    }
    space.set_locked(addr, len, how)?;
    if how == Locking::Now {
        space.populate(addr, len, None).map_err(|denied| match denied {
            Denied::NoMemory => Errno::EAGAIN,
            Denied::Unmapped | Denied::Access | Denied::Bus | Denied::Asked => Errno::ENOMEM,
        })?;
    }
    Ok(0)
}

/// `munlockall(2)`.
pub fn munlockall(c: &mut Call) -> Result<u64> {
    c.task.space.memory.lock_all(Some(Locking::No), Locking::No);
    Ok(0)
}

/// `membarrier(2)`: each core passes a full barrier when it is interrupted, and serializes when it goes back to its program.
pub fn membarrier(c: &mut Call) -> Result<u64> {
    use linux_raw_sys::general::membarrier_cmd as cmd;
    const REGISTRATIONS: [(u32, u32); 3] = [
        (cmd::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED as u32, cmd::MEMBARRIER_CMD_GLOBAL_EXPEDITED as u32),
        (cmd::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED as u32, cmd::MEMBARRIER_CMD_PRIVATE_EXPEDITED as u32),
        (
            cmd::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE as u32,
            cmd::MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE as u32,
        ),
    ];
    const GLOBAL: u32 = cmd::MEMBARRIER_CMD_GLOBAL as u32;
    const GLOBAL_EXPEDITED: u32 = cmd::MEMBARRIER_CMD_GLOBAL_EXPEDITED as u32;
    const GET_REGISTRATIONS: u32 = cmd::MEMBARRIER_CMD_GET_REGISTRATIONS as u32;
    if c.uint(1) != 0 {
        return Err(Errno::EINVAL);
    }
    let registered = &c.task.space.barriers;
    let command = c.uint(0);
    match command {
        0 => Ok(REGISTRATIONS.iter().fold(GLOBAL | GET_REGISTRATIONS, |all, (a, b)| all | a | b).into()),
        GET_REGISTRATIONS => Ok(registered.load(Ordering::Relaxed).into()),
        GLOBAL | GLOBAL_EXPEDITED => {
            atoll_task::barrier();
            Ok(0)
        }
        _ if REGISTRATIONS.iter().any(|(register, _)| *register == command) => {
            registered.fetch_or(command, Ordering::Relaxed);
            Ok(0)
        }
        _ => {
            let needs = REGISTRATIONS.iter().find(|(_, c)| *c == command).ok_or(Errno::EINVAL)?;
            if registered.load(Ordering::Relaxed) & needs.0 == 0 {
                return Err(Errno::EPERM);
            }
            atoll_task::barrier();
            Ok(0)
        }
    }
}
