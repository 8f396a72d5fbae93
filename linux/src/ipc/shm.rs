//! Shared memory segments (`shmget(2)`, `shmop(2)`, `shmctl(2)`).
//!
//! A segment's contents are those of a file without a name. It knows how many areas of address spaces show it, as each of
//! them tells it ([`Object::mapped`]): when it is attached, forked and split, and when it goes.

use alloc::format;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::fmt::Write;

use atoll_abi::layout::{PAGE, page_up};
use atoll_abi::platform::Access;
use atoll_abi::{Errno, Result};
use atoll_fs::Inode;
use atoll_fs::tmp::{TmpNode, shared_memory};
use atoll_mem::heap::memory;
use atoll_mem::vm::{Kind, MapRequest, Mappable, Object, Place};
use atoll_sync::Mutex;
use linux_raw_sys::general as linux;

use super::{
    ALTER, Found, IPC_INFO, IPC_RMID, IPC_SET, IPC_STAT, Perm, READ, Table, found_to_tell, get, now,
};
use crate::current::try_current;
use crate::process::{Task, world};
use crate::syscalls::Call;
use crate::syscalls::memory::{ReadOnly, bounds, overcommit_is_obvious};
use crate::types::{ShmInfo, ShmidDs, Shminfo, put};

const SHM_LOCK: u32 = 11;
const SHM_UNLOCK: u32 = 12;
const SHM_STAT: u32 = 13;
const SHM_INFO: u32 = 14;
const SHM_STAT_ANY: u32 = 15;
const SHM_HUGETLB: u32 = 0o4000;
const SHM_NORESERVE: u32 = 0o10000;
const SHM_RDONLY: u32 = 0o10000;
const SHM_RND: u32 = 0o20000;
const SHM_REMAP: u32 = 0o40000;
const SHM_EXEC: u32 = 0o100000;
/// In a segment's mode: it goes with its last attachment; it is locked.
const SHM_DEST: u32 = 0o1000;
const SHM_LOCKED: u32 = 0o2000;

/// Longest segment, bytes, and most pages of all (SHMMAX, SHMALL).
pub const LENGTH_MAX: u64 = u64::MAX - (1 << 24);
/// Most segments (SHMMNI).
pub const SEGMENTS_MAX: usize = 4096;

/// A segment.
struct Segment {
    id: i32,
    /// Name in `/proc/PID/maps`.
    name: String,
    /// As it was asked for, bytes.
    size: u64,
    contents: Arc<TmpNode>,
    state: Mutex<State>,
    me: Weak<Segment>,
}

struct State {
    perm: Perm,
    /// Areas that show it, and calls of `shmat` under way.
    attached: i64,
    cpid: u32,
    lpid: u32,
    atime: i64,
    dtime: i64,
    ctime: i64,
}

/// Before any segment's state, where both are held.
static SEGMENTS: Mutex<Table<Segment>> = Mutex::new(Table::new());

impl Segment {
    fn new(task: &Task, key: i32, id: i32, size: u64, flags: u32) -> Arc<Segment> {
        let state = State {
            perm: Perm::new(task, flags),
            attached: 0,
            cpid: task.process.pid,
            lpid: 0,
            atime: 0,
            dtime: 0,
            ctime: now(),
        };
        Arc::new_cyclic(|me| Segment {
            id,
            name: format!("/SYSV{key:08x} (deleted)"),
            size,
            contents: shared_memory(&world().shm, page_up(size), &task.cred()),
            state: Mutex::new(state),
            me: me.clone(),
        })
    }

    /// Bytes of it that are in memory.
    fn resident(&self) -> u64 {
        self.contents.attr().map_or(0, |attr| attr.blocks * 512)
    }

    /// One attachment less. The last one takes with it what was removed.
    fn left(&self, note: impl FnOnce(&mut State)) {
        let mut all = SEGMENTS.lock();
        let mut state = self.state.lock();
        state.attached -= 1;
        note(&mut state);
        if state.attached == 0 && state.perm.mode & SHM_DEST != 0 {
            all.remove(self.id);
        }
    }
}

impl Object for Segment {
    fn chunk(&self, offset: u64) -> Result<u64> {
        self.contents.chunk(offset)
    }

    fn chunk_and_more(&self, offset: u64) -> Result<u64> {
        self.contents.chunk_and_more(offset)
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn has_memory(&self, offset: u64) -> bool {
        self.contents.has_memory(offset)
    }

    fn place(&self, offset: u64) -> Option<u64> {
        self.contents.place(offset)
    }

    fn mappings(&self) -> u32 {
        self.contents.mappings()
    }

    fn mapped(&self, by: i32) {
        self.contents.mapped(by);
        let pid = try_current().map(|task| task.process.pid);
        if by < 0 {
            return self.left(|state| {
                state.dtime = now();
                state.lpid = pid.unwrap_or(state.lpid);
            });
        }
        let mut state = self.state.lock();
        state.attached += 1;
        state.atime = now();
        state.lpid = pid.unwrap_or(state.lpid);
    }

    fn counts_areas(&self) -> bool {
        true
    }

    fn owner(&self) -> *const () {
        self.contents.owner()
    }
}

impl Mappable for Segment {
    fn host_file(&self, _write: bool) -> Result<Option<i32>> {
        Ok(None)
    }

    fn object(&self) -> Option<Arc<dyn Object>> {
        self.me.upgrade().map(|me| me as Arc<dyn Object>)
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<usize> {
        Mappable::read(&*self.contents, offset, to)
    }

    fn punch_hole(&self, offset: u64, len: u64) -> Result<()> {
        self.contents.punch_hole(offset, len)
    }

    fn describe(&self) -> (Vec<u8>, u64, u64) {
        // Device 0:1 is where Linux has them.
        (self.name.clone().into_bytes(), 1, self.id as u64)
    }
}

/// `shmget(2)`.
pub fn shmget(c: &mut Call) -> Result<u64> {
    let (key, size, flags) = (c.int(0), c.arg(1), c.uint(2));
    let task = c.task;
    let fits = |segment: &Segment| {
        if segment.size < size {
            return Err(Errno::EINVAL);
        }
        segment.state.lock().perm.check(task, flags)
    };
    let mut all = SEGMENTS.lock();
    let pages = all.all().map(|found| found.object.size.div_ceil(PAGE)).sum::<u64>();
    let make = |id| {
        if size == 0 || size > LENGTH_MAX {
            return Err(Errno::EINVAL);
        }
        if size.div_ceil(PAGE).saturating_add(pages) > LENGTH_MAX {
            return Err(Errno::ENOSPC);
        }
        if flags & SHM_HUGETLB != 0 {
            // There is no pool of huge pages, as on a Linux without one.
            return Err(if task.may(linux::CAP_IPC_LOCK) { Errno::ENOMEM } else { Errno::EPERM });
        }
        if flags & SHM_NORESERVE == 0 && size > memory().total() && overcommit_is_obvious(size) {
            return Err(Errno::ENOMEM);
        }
        Ok(Segment::new(task, key, id, size, flags))
    };
    all.find_or_make(key, flags, SEGMENTS_MAX, fits, make).map(|id| id as u64)
}

/// `shmat(2)`.
pub fn shmat(c: &mut Call) -> Result<u64> {
    let (id, mut addr, flags) = (c.int(0), c.arg(1), c.uint(2));
    if id < 0 {
        return Err(Errno::EINVAL);
    }
    if !addr.is_multiple_of(PAGE) {
        if flags & SHM_RND == 0 {
            return Err(Errno::EINVAL);
        }
        addr -= addr % PAGE;
    }
    if addr == 0 && flags & SHM_REMAP != 0 {
        return Err(Errno::EINVAL);
    }
    let (mut access, mut want) = (Access::READ, READ);
    if flags & SHM_RDONLY == 0 {
        access |= Access::WRITE;
        want |= ALTER;
    }
    if flags & SHM_EXEC != 0 {
        access |= Access::EXEC;
        want |= 0o111;
    }
    let segment = {
        let all = SEGMENTS.lock();
        let Found { object, .. } = all.find(id)?;
        let mut state = object.state.lock();
        state.perm.check(c.task, want)?;
        // It stays until it is mapped, even if it is removed meanwhile.
        state.attached += 1;
        drop(state);
        object
    };
    let file: Arc<dyn Mappable> =
        if flags & SHM_RDONLY == 0 { segment.clone() } else { Arc::new(ReadOnly(segment.clone())) };
    let result = c.task.space.memory.map(MapRequest {
        addr,
        len: segment.size,
        access,
        shared: true,
        kind: Kind::Object { object: segment.clone(), file: Some(file), offset: 0 },
        place: match addr {
            0 => Place::Hint,
            _ if flags & SHM_REMAP != 0 => Place::Fixed,
            _ => Place::FixedNoReplace,
        },
        name: "",
        most: bounds(c.task),
        ..MapRequest::default()
    });
    segment.left(|_| {});
    result.map_err(|e| if e == Errno::EEXIST { Errno::EINVAL } else { e })
}

/// `shmdt(2)`.
pub fn shmdt(c: &mut Call) -> Result<u64> {
    let addr = c.arg(0);
    if !addr.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    let size = |object: &Arc<dyn Object>| (&**object as &dyn Any).downcast_ref().map(|s: &Segment| s.size);
    c.task.space.memory.detach(addr, size).map(|()| 0)
}

/// `shmctl(2)`.
pub fn shmctl(c: &mut Call) -> Result<u64> {
    let (id, command, to) = (c.int(0), c.uint(1), c.arg(2));
    let task = c.task;
    if id < 0 {
        return Err(Errno::EINVAL);
    }
    match command {
        IPC_INFO => {
            let most = SEGMENTS_MAX as u64;
            let (max, all) = (LENGTH_MAX, LENGTH_MAX);
            let info =
                Shminfo { shmmax: max, shmmin: 1, shmmni: most, shmseg: most, shmall: all, unused: [0; 4] };
            put(to, &info)?;
            Ok(SEGMENTS.lock().used().1)
        }
        SHM_INFO => {
            let all = SEGMENTS.lock();
            let (count, highest) = all.used();
            let mut info = ShmInfo { used_ids: count as i32, ..ShmInfo::default() };
            for Found { object, .. } in all.all() {
                info.tot += object.size.div_ceil(PAGE);
                info.rss += object.resident() / PAGE;
            }
            drop(all);
            put(to, &info)?;
            Ok(highest)
        }
        IPC_STAT | SHM_STAT | SHM_STAT_ANY => {
            let (found, value) = found_to_tell(&SEGMENTS, id, command != IPC_STAT)?;
            let state = found.object.state.lock();
            if command != SHM_STAT_ANY {
                state.perm.check(task, READ)?;
            }
            let told = ShmidDs {
                perm: state.perm.told(found.key, found.id),
                segsz: found.object.size,
                atime: state.atime,
                dtime: state.dtime,
                ctime: state.ctime,
                cpid: state.cpid,
                lpid: state.lpid,
                nattch: state.attached as u64,
                unused: [0; 2],
            };
            drop(state);
            put(to, &told)?;
            Ok(value)
        }
        IPC_SET => {
            let new: ShmidDs = get(to)?;
            let found = SEGMENTS.lock().find(id)?;
            let mut state = found.object.state.lock();
            state.perm.check_owner(task)?;
            state.perm.set(&new.perm)?;
            state.ctime = now();
            Ok(0)
        }
        IPC_RMID => {
            let mut all = SEGMENTS.lock();
            let found = all.find(id)?;
            let mut state = found.object.state.lock();
            state.perm.check_owner(task)?;
            if state.attached == 0 {
                all.remove(id);
            } else {
                state.perm.mode |= SHM_DEST;
                all.forget_key(id);
            }
            Ok(0)
        }
        // Memory of a cell is never paged out: only what is told of it changes.
        SHM_LOCK | SHM_UNLOCK => {
            let found = SEGMENTS.lock().find(id)?;
            let mut state = found.object.state.lock();
            if !task.may(linux::CAP_IPC_LOCK) {
                let euid = task.ids().euid;
                let no_limit = command == SHM_UNLOCK || task.process.limit(linux::RLIMIT_MEMLOCK).cur != 0;
                if euid != state.perm.uid && euid != state.perm.cuid || !no_limit {
                    return Err(Errno::EPERM);
                }
            }
            if command == SHM_LOCK {
                state.perm.mode |= SHM_LOCKED;
            } else {
                state.perm.mode &= !SHM_LOCKED;
            }
            Ok(0)
        }
        _ => Err(Errno::EINVAL),
    }
}

/// `/proc/sysvipc/shm`.
pub fn list() -> String {
    let mut text = String::from(
        "       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      atime      \
         dtime      ctime                   rss                  swap\n",
    );
    for Found { id, key, object } in SEGMENTS.lock().all() {
        let State { perm: p, attached, cpid, lpid, atime, dtime, ctime } = &*object.state.lock();
        // A string takes whatever is written to it.
        let _ = writeln!(
            text,
            "{key:10} {id:10}  {:4o} {:21} {cpid:5} {lpid:5}  {attached:5} {:5} {:5} {:5} {:5} {atime:10} {dtime:10} \
             {ctime:10} {:21} {:21}",
            p.mode,
            object.size,
            p.uid,
            p.gid,
            p.cuid,
            p.cgid,
            object.resident(),
            0,
        );
    }
    text
}
