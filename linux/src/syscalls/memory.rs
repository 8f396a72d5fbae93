//! Calls on the address space.

use alloc::sync::Arc;

use atoll_abi::layout::{PAGE, is_user_range, page_up};
use atoll_abi::platform::Access;
use atoll_abi::{Errno, Result};
use atoll_fs::device::Device;
use atoll_fs::tmp::shared_memory;
use atoll_mem::heap::memory;
use atoll_mem::user;
use atoll_mem::vm::{Kind, MapRequest, Mappable, Object, Place};
use linux_raw_sys::general as linux;

use super::{Call, unsupported};
use crate::process::world;

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

/// `mmap(2)`.
pub fn mmap(c: &mut Call) -> Result<u64> {
    let [addr, len, _, _, _, offset] = c.args();
    let (prot, flags) = (c.uint(2), c.uint(3));
    if !offset.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    let access = access(prot)?;
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
        // Memory is on huge pages anyway where it can be; the pool that this asks for there is none of.
        return Err(unsupported(c.task, "mmap(MAP_HUGETLB)", Errno::ENOMEM));
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
    let zeroes = |c: &Call| c.file(4).is_ok_and(|f| f.as_type::<Device>() == Some(&Device::Zero));
    // A shared mapping of /dev/zero is memory like any other (`mem(4)`).
    let kind = if flags & linux::MAP_ANONYMOUS != 0 || shared && zeroes(c) {
        let reserve = access.contains(Access::WRITE) && flags & linux::MAP_NORESERVE == 0;
        if reserve && len > memory().total() && overcommit_is_obvious(len) {
            return Err(Errno::ENOMEM);
        }
        if shared {
            let object = shared_memory(&world().shm, page_up(len), &c.task.cred());
            Kind::Object { object: object.clone(), file: Some(object), offset: 0 }
        } else {
            Kind::Anonymous
        }
    } else {
        let file = c.file(4)?;
        if offset.checked_add(page_up(len)).is_none_or(|end| end > i64::MAX as u64) {
            return Err(Errno::EOVERFLOW);
        }
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
    let limit = c.task.process.limit(linux::RLIMIT_AS).cur;
    if limit != u64::MAX && c.task.space.memory.total().saturating_add(len) > limit {
        return Err(Errno::ENOMEM);
    }
    c.task.space.memory.map(MapRequest {
        addr,
        len,
        access,
        shared,
        kind,
        place,
        name: "",
        populate: flags & (linux::MAP_POPULATE | linux::MAP_LOCKED) != 0,
    })
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

/// More than a cell could ever have, as Linux's heuristic refuses it: total memory, several times over.
fn overcommit_is_obvious(len: u64) -> bool {
    len > memory().total().saturating_mul(2)
}

/// A file that was opened for reading only, or is sealed, mapped shared: it can't be made writable later.
struct ReadOnly(Arc<dyn Mappable>);

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
    fn describe(&self) -> (alloc::vec::Vec<u8>, u64, u64) {
        self.0.describe()
    }
    fn punch_hole(&self, _offset: u64, _len: u64) -> Result<()> {
        Err(Errno::EACCES)
    }
}

/// `munmap(2)`.
pub fn munmap(c: &mut Call) -> Result<u64> {
    c.task.space.memory.unmap(c.arg(0), c.arg(1)).map(|()| 0)
}

/// `mprotect(2)`.
pub fn mprotect(c: &mut Call) -> Result<u64> {
    let prot = c.uint(2) & !(linux::PROT_GROWSDOWN | linux::PROT_GROWSUP);
    c.task.space.memory.protect(c.arg(0), c.arg(1), access(prot)?).map(|()| 0)
}

/// `mremap(2)`.
pub fn mremap(c: &mut Call) -> Result<u64> {
    let flags = c.uint(3);
    if flags & !(linux::MREMAP_MAYMOVE | linux::MREMAP_FIXED) != 0 {
        if flags & linux::MREMAP_DONTUNMAP != 0 {
            return Err(unsupported(c.task, "mremap(MREMAP_DONTUNMAP)", Errno::EINVAL));
        }
        return Err(Errno::EINVAL);
    }
    let may_move = flags & linux::MREMAP_MAYMOVE != 0;
    let fixed = (flags & linux::MREMAP_FIXED != 0).then_some(c.arg(4));
    if fixed.is_some() && !may_move {
        return Err(Errno::EINVAL);
    }
    c.task.space.memory.remap(c.arg(0), c.arg(1), c.arg(2), may_move, fixed)
}

/// `brk(2)`.
pub fn brk(c: &mut Call) -> Result<u64> {
    let limit = c.task.process.limit(linux::RLIMIT_DATA).cur;
    Ok(c.task.space.memory.brk(c.arg(0), limit))
}

/// `madvise(2)`.
pub fn madvise(c: &mut Call) -> Result<u64> {
    let (addr, len) = (c.arg(0), page_up(c.arg(1)));
    if !addr.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    if len == 0 {
        return Ok(0);
    }
    if !is_user_range(addr, len) {
        return Err(Errno::EINVAL);
    }
    let space = &c.task.space.memory;
    match c.uint(2) {
        linux::MADV_DONTNEED | linux::MADV_FREE => space.discard(addr, len).map(|()| 0),
        linux::MADV_WILLNEED | linux::MADV_POPULATE_READ | linux::MADV_POPULATE_WRITE => {
            if !space.is_mapped(addr, len) {
                return Err(Errno::ENOMEM);
            }
            if c.uint(2) != linux::MADV_WILLNEED {
                space.populate(addr, len);
            }
            Ok(0)
        }
        linux::MADV_NORMAL
        | linux::MADV_RANDOM
        | linux::MADV_SEQUENTIAL
        | linux::MADV_HUGEPAGE
        | linux::MADV_NOHUGEPAGE
        | linux::MADV_DONTFORK
        | linux::MADV_DOFORK
        | linux::MADV_DONTDUMP
        | linux::MADV_DODUMP
        | linux::MADV_COLD
        | linux::MADV_PAGEOUT
        | linux::MADV_COLLAPSE
        | linux::MADV_WIPEONFORK
        | linux::MADV_KEEPONFORK
        | linux::MADV_MERGEABLE
        | linux::MADV_UNMERGEABLE => {
            if space.is_mapped(addr, len) {
                Ok(0)
            } else {
                Err(Errno::ENOMEM)
            }
        }
        // Frees the pages behind a file's shared mapping; private memory has none to free.
        linux::MADV_REMOVE => remove(c, addr, len),
        other => Err(unsupported(c.task, &alloc::format!("madvise({other})"), Errno::EINVAL)),
    }
}

/// `msync(2)`: what is mapped shared is the file itself; MS_SYNC makes it durable.
pub fn msync(c: &mut Call) -> Result<u64> {
    let (addr, len, flags) = (c.arg(0), page_up(c.arg(1)), c.uint(2));
    let known = linux::MS_ASYNC | linux::MS_INVALIDATE | linux::MS_SYNC;
    if !addr.is_multiple_of(PAGE)
        || flags & !known != 0
        || flags & linux::MS_ASYNC != 0 && flags & linux::MS_SYNC != 0
    {
        return Err(Errno::EINVAL);
    }
    if !c.task.space.memory.is_mapped(addr, len) {
        return Err(Errno::ENOMEM);
    }
    if flags & linux::MS_SYNC != 0 {
        let mut at = addr;
        while at < addr + len {
            let Some((_, area)) = c.task.space.memory.find(at) else { break };
            if let (true, Kind::File { file, .. } | Kind::Object { file: Some(file), .. }) =
                (area.shared, &area.kind)
            {
                file.flush()?;
            }
            at = area.end;
        }
    }
    Ok(0)
}

/// `mincore(2)`: all that is mapped is taken as present.
pub fn mincore(c: &mut Call) -> Result<u64> {
    let (addr, len) = (c.arg(0), page_up(c.arg(1)));
    if !addr.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    if !c.task.space.memory.is_mapped(addr, len) {
        return Err(Errno::ENOMEM);
    }
    let ones = [1u8; 256];
    let pages = len / PAGE;
    let mut done = 0;
    while done < pages {
        let n = (pages - done).min(256);
        user::write(c.arg(2) + done, &ones[..n as usize])?;
        done += n;
    }
    Ok(0)
}

/// `madvise(MADV_REMOVE)`: a hole in the file, where the mapping is one.
fn remove(c: &Call, addr: u64, len: u64) -> Result<u64> {
    let mut at = addr;
    while at < addr + len {
        let (start, area) = c.task.space.memory.find(at).ok_or(Errno::ENOMEM)?;
        let end = area.end.min(addr + len);
        let (file, offset) = match &area.kind {
            Kind::File { file, offset } | Kind::Object { file: Some(file), offset, .. } if area.shared => {
                (file, offset)
            }
            _ => return Err(Errno::EINVAL),
        };
        file.punch_hole(offset + (at - start), end - at)?;
        at = end;
    }
    Ok(0)
}

/// `mlock2(2)`.
pub fn mlock2(c: &mut Call) -> Result<u64> {
    const ONFAULT: u32 = 1;
    if c.uint(2) & !ONFAULT != 0 {
        return Err(Errno::EINVAL);
    }
    mlock(c)
}

/// `munlock(2)`.
pub fn munlock(c: &mut Call) -> Result<u64> {
    let addr = c.arg(0) & !(PAGE - 1);
    let len = page_up(c.arg(1) + (c.arg(0) - addr));
    if c.task.space.memory.is_mapped(addr, len) { Ok(0) } else { Err(Errno::ENOMEM) }
}

/// `mlockall(2)`.
pub fn mlockall(c: &mut Call) -> Result<u64> {
    let flags = c.uint(0);
    let known = linux::MCL_CURRENT | linux::MCL_FUTURE | linux::MCL_ONFAULT;
    if flags & !known != 0 || flags == 0 || flags == linux::MCL_ONFAULT {
        return Err(Errno::EINVAL);
    }
    Ok(0)
}

/// `mlock(2)`: memory of a cell is never paged out; it is brought in.
pub fn mlock(c: &mut Call) -> Result<u64> {
    let addr = c.arg(0) & !(PAGE - 1);
    let len = page_up(c.arg(1) + (c.arg(0) - addr));
    if !c.task.space.memory.is_mapped(addr, len) {
        return Err(Errno::ENOMEM);
    }
    c.task.space.memory.populate(addr, len);
    Ok(0)
}

/// `munlockall(2)`.
pub fn nothing(_c: &mut Call) -> Result<u64> {
    Ok(0)
}

/// `membarrier(2)`: each core passes a full barrier when it is interrupted.
pub fn membarrier(c: &mut Call) -> Result<u64> {
    const QUERY: u32 = 0;
    const GLOBAL: u32 = 1;
    const PRIVATE_EXPEDITED: u32 = 8;
    const REGISTER_PRIVATE_EXPEDITED: u32 = 16;
    if c.uint(1) != 0 {
        return Err(Errno::EINVAL);
    }
    match c.uint(0) {
        QUERY => Ok(u64::from(GLOBAL | PRIVATE_EXPEDITED | REGISTER_PRIVATE_EXPEDITED)),
        REGISTER_PRIVATE_EXPEDITED => Ok(0),
        GLOBAL | PRIVATE_EXPEDITED => {
            atoll_task::barrier();
            Ok(0)
        }
        _ => Err(Errno::EINVAL),
    }
}
