//! Memory of other processes: `process_vm_readv(2)`, `process_vm_writev(2)`.
#![allow(unsafe_code, reason = "copies by way of pages that were taken for that")]

use alloc::sync::Arc;
use alloc::vec::Vec;

use atoll_abi::layout::{PAGE, is_user_range, page_down};
use atoll_abi::platform::Access;
use atoll_abi::{Errno, Result};
use atoll_fs::{Sink, Source};
use atoll_mem::heap::memory;
use atoll_mem::pages::CHUNK_ORDER;
use atoll_mem::user;
use atoll_mem::vm::AddressSpace;
use linux_raw_sys::general as linux;
use zerocopy::IntoBytes;

use super::Call;
use super::fd::{IOV_MAX, Pieces};
use super::process::has_same_ids;
use crate::process::{Process, Space, Task, Visit, find_process};
use crate::types::Iovec;
use crate::visit::{Room, in_other_space};

/// What is copied at a time.
const CHUNK: u64 = PAGE << CHUNK_ORDER;

/// The first `len` bytes of a room. Only one has them at a time: who copies, or who waits for that.
#[allow(clippy::mut_from_ref, reason = "they are not part of the structure")]
fn bytes_of(room: &Room, len: usize) -> &mut [u8] {
    assert!(len as u64 <= CHUNK);
    // SAFETY: so much was taken, it is always mapped, and nobody else uses it now.
    unsafe { core::slice::from_raw_parts_mut(memory().address(room.offset()), len) }
}

/// In the space of `memory`: copies from there, or to there. Value: bytes before the first page that can't be read, or written to.
fn copy_here(memory: &AddressSpace, addr: u64, bytes: &mut [u8], writes: bool) -> usize {
    let mut done = 0;
    while done < bytes.len() {
        let at = addr + done as u64;
        let len = bytes.len() - done;
        // All of it, or as much as there is of its first page.
        let first = ((page_down(at) + PAGE - at) as usize).min(len);
        let fits = |len: usize| memory.populate(at, len as u64, Some(writes)).is_ok();
        let Some(len) = [len, first].into_iter().find(|len| fits(*len)) else { break };
        let part = &mut bytes[done..done + len];
        let copied = if writes { user::write_some(at, part) } else { user::read_some(at, part) };
        // Taken away again meanwhile: as if it had never been there.
        let Ok(copied) = copied else { break };
        done += copied;
    }
    done
}

/// The same to memory that its program can't write to, but which is its own: a tracer sets breakpoints there.
fn force_here(memory: &AddressSpace, addr: u64, bytes: &mut [u8]) -> usize {
    let mut done = copy_here(memory, addr, bytes, true);
    while done < bytes.len() {
        let (at, page) = (addr + done as u64, page_down(addr + done as u64));
        let Some((_, area)) = memory.find(at).filter(|(_, area)| !area.shared) else { break };
        if memory.protect(page, PAGE, area.access | Access::READ | Access::WRITE, u64::MAX).is_err() {
            break;
        }
        let n = ((page + PAGE - at) as usize).min(bytes.len() - done);
        let copied = copy_here(memory, at, &mut bytes[done..done + n], true);
        let back = memory.protect(page, PAGE, area.access, u64::MAX);
        done += copied;
        if copied < n || back.is_err() {
            break;
        }
    }
    done
}

/// Reads memory of `space` for `task`; how many bytes, up to the first page that can't be read.
pub fn read_memory(task: &Task, space: &Arc<Space>, addr: u64, bytes: &mut [u8]) -> Result<usize> {
    by_room(bytes.len(), |room, done, len| {
        let copied = copy(task, space, addr.wrapping_add(done as u64), room, len, Does::Read)?;
        bytes[done..done + copied].copy_from_slice(&bytes_of(room, len)[..copied]);
        Ok(copied)
    })
}

/// Writes to it, also where its program can't, if that is nobody else's; how many bytes.
pub fn write_memory(task: &Task, space: &Arc<Space>, addr: u64, bytes: &[u8]) -> Result<usize> {
    by_room(bytes.len(), |room, done, len| {
        bytes_of(room, len).copy_from_slice(&bytes[done..done + len]);
        copy(task, space, addr.wrapping_add(done as u64), room, len, Does::Force)
    })
}

/// Calls `f` with some room, what is done and how much is next, until all is done or it does less.
fn by_room(total: usize, mut f: impl FnMut(&Arc<Room>, usize, usize) -> Result<usize>) -> Result<usize> {
    let room = Arc::new(Room::new()?);
    let mut done = 0;
    while done < total {
        let len = (total - done).min(CHUNK as usize);
        let copied = f(&room, done, len)?;
        done += copied;
        if copied < len {
            break;
        }
    }
    Ok(done)
}

/// What a copy does in the other space.
#[derive(Clone, Copy)]
enum Does {
    Read,
    Write,
    /// Writes where its program can't, too.
    Force,
}

/// Copies between `room` and a range of a space; how many bytes.
fn copy(
    task: &Task,
    space: &Arc<Space>,
    addr: u64,
    room: &Arc<Room>,
    len: usize,
    does: Does,
) -> Result<usize> {
    if !is_user_range(addr, len as u64) {
        return Ok(0);
    }
    let room = room.clone();
    let work = move |memory: &AddressSpace| {
        let bytes = bytes_of(&room, len);
        Ok(match does {
            Does::Read => copy_here(memory, addr, bytes, false),
            Does::Write => copy_here(memory, addr, bytes, true),
            Does::Force => force_here(memory, addr, bytes),
        })
    };
    if space.id == task.space.id { work(&space.memory) } else { in_other_space(space.clone(), work) }
}

/// The list of ranges in the other process: they are looked at when they are used.
fn ranges(addr: u64, count: u64) -> Result<Vec<Iovec>> {
    if count > IOV_MAX {
        return Err(Errno::EINVAL);
    }
    let mut list = atoll_mem::buffer::<Iovec>(count as usize)?;
    user::read(addr, list.as_mut_bytes())?;
    if list.iter().any(|v| v.len > i64::MAX as u64) {
        return Err(Errno::EINVAL);
    }
    Ok(list)
}

/// May the caller look into a process (ptrace(2), PTRACE_MODE_ATTACH_REALCREDS)?
pub fn may_look_at(task: &Task, process: &Process) -> bool {
    if process.pid == task.process.pid {
        return true;
    }
    let is_open = process.dumpable.load(core::sync::atomic::Ordering::Relaxed) == 1;
    // Of one process's ids at a time.
    let its = process.ids().capabilities.permitted;
    let own = task.ids().capabilities.permitted;
    (is_open && its & !own == 0 && has_same_ids(task, process)) || task.may(linux::CAP_SYS_PTRACE)
}

/// A visit to the process's memory, if the caller may look into it.
fn visit(c: &Call) -> Result<Visit> {
    let pid = c.uint(0);
    let process = find_process(pid).or_else(|| crate::process::find_task(pid).map(|t| t.process.clone()));
    let process = process.ok_or(Errno::ESRCH)?;
    let space = process.leader().map(|t| t.space.share()).ok_or(Errno::ESRCH)?;
    let visit = space.visit()?;
    if may_look_at(c.task, &process) { Ok(visit) } else { Err(Errno::EPERM) }
}

/// Puts bytes as far as there is a place for them.
fn put(sink: &mut Sink, bytes: &[u8]) -> usize {
    let mut done = 0;
    while done < bytes.len() {
        done += sink.put(&bytes[done..]).unwrap_or(0);
        match sink.take_fault() {
            Some(addr) if user::bring_in(addr, true).is_ok() => {}
            _ => break,
        }
    }
    done
}

/// Takes bytes as far as there are any.
fn take(source: &mut Source, bytes: &mut [u8]) -> usize {
    let mut done = 0;
    while done < bytes.len() {
        done += source.take(&mut bytes[done..]).unwrap_or(0);
        match source.take_fault() {
            Some(addr) if user::bring_in(addr, false).is_ok() => {}
            _ => break,
        }
    }
    done
}

fn transfer(c: &mut Call, writes: bool) -> Result<u64> {
    if c.arg(5) != 0 {
        return Err(Errno::EINVAL);
    }
    let mut pieces = Pieces::default();
    let local = pieces.read(c.arg(1), c.arg(2))?;
    let total: u64 = local.iter().map(|p| p.len).sum();
    if total == 0 {
        return Ok(0);
    }
    let remote = ranges(c.arg(3), c.arg(4))?;
    let visit = visit(c)?;
    let space = visit.space().ok_or(Errno::ESRCH)?;
    let (mut sink, mut source) = (Sink::user(local), Source::user(local));
    let room = Arc::new(Room::new()?);
    let (mut done, mut failed) = (0, Errno::EFAULT);
    'all: for v in &remote {
        let mut at = 0;
        while at < v.len && done < total {
            let len = (v.len - at).min(total - done).min(CHUNK) as usize;
            let Some(addr) = v.base.checked_add(at) else { break 'all };
            let len = if writes { take(&mut source, bytes_of(&room, len)) } else { len };
            if len == 0 {
                break 'all;
            }
            let does = if writes { Does::Write } else { Does::Read };
            let copied = match copy(c.task, &space, addr, &room, len, does) {
                Ok(copied) => copied,
                Err(e) => {
                    failed = e;
                    break 'all;
                }
            };
            let moved = if writes { copied } else { put(&mut sink, bytes_of(&room, copied)) };
            (done, at) = (done + moved as u64, at + moved as u64);
            if moved < len {
                break 'all;
            }
        }
    }
    if done > 0 || remote.iter().all(|v| v.len == 0) { Ok(done) } else { Err(failed) }
}

/// `process_vm_readv(2)`.
pub fn process_vm_readv(c: &mut Call) -> Result<u64> {
    transfer(c, false)
}

/// `process_vm_writev(2)`.
pub fn process_vm_writev(c: &mut Call) -> Result<u64> {
    transfer(c, true)
}
