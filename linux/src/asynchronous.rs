//! Signals that tell that a file got ready: O_ASYNC of `open(2)`, F_SETOWN and F_SETSIG of `fcntl(2)`.

use alloc::sync::{Arc, Weak};
use core::any::Any;
use core::sync::atomic::Ordering;

use atoll_abi::{Errno, Result};
use atoll_fs::stream::Stream;
use atoll_fs::{File, OpenFile, poll};
use atoll_sync::{Mutex, Wake, WakeKey};
use linux_raw_sys::general as linux;

use crate::process::{Process, Task, all_processes, find_process, find_task};
use crate::socket::SocketFile;
use crate::types::Siginfo;
use crate::{pty, signal};

/// Priority data, which no file here tells apart.
const RDBAND: u32 = 0x80;

/// Who is told.
#[derive(Clone)]
enum Who {
    Task(Weak<Task>),
    Process(Weak<Process>),
    Group(u32),
}

/// Who is told, and for whom.
#[derive(Clone)]
struct Owner {
    who: Who,
    /// Real and effective user id of who said so: nobody is sent a signal whom that one may not send any.
    uid: u32,
    euid: u32,
}

#[derive(Clone, Default)]
struct State {
    owner: Option<Owner>,
    /// F_SETSIG; 0: SIGIO, without saying why.
    signal: u32,
    /// The descriptor by which O_ASYNC was set.
    fd: u32,
}

/// What an open file's queue calls.
struct Teller {
    state: Mutex<State>,
    file: Weak<dyn File>,
}

/// What is kept with an open file.
struct Kept {
    teller: Arc<Teller>,
    file: Arc<dyn File>,
    /// O_ASYNC: the teller is in the file's queue.
    on: Mutex<bool>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.set(false, poll::ALL);
    }
}

impl Kept {
    fn set(&self, new: bool, interest: u32) {
        let mut on = self.on.lock();
        let (true, Some(queue)) = (*on != new, self.file.queue()) else { return };
        let wake: Arc<dyn Wake> = self.teller.clone();
        if new {
            queue.add(wake, 0, interest);
        } else {
            queue.remove(&wake, 0);
        }
        *on = new;
    }
}

/// What is kept with a file; made if there is nothing yet.
fn kept(file: &OpenFile) -> Arc<Kept> {
    let mut place = file.kept().lock();
    let known = place.clone().and_then(|kept: Arc<dyn Any + Send + Sync>| kept.downcast().ok());
    known.unwrap_or_else(|| {
        let inner = file.file();
        let teller = Arc::new(Teller { state: Mutex::default(), file: Arc::downgrade(inner) });
        let new = Arc::new(Kept { teller, file: inner.clone(), on: Mutex::new(false) });
        *place = Some(new.clone());
        new
    })
}

/// Has a file's owner told, or no more, when it gets ready. `fd`: how the caller calls it. ENOTTY: no file that tells of that.
pub fn set(task: &Task, file: &OpenFile, fd: u32, on: bool) -> Result<()> {
    if (file.flags() & linux::FASYNC != 0) == on {
        return Ok(());
    }
    if !file.file().signals() {
        return Err(Errno::ENOTTY);
    }
    let kept = kept(file);
    let mut interest = poll::ERR;
    if file.readable() {
        interest |= poll::IN | poll::RDNORM | poll::PRI | poll::HUP | poll::RDHUP;
    }
    if file.writable() {
        interest |= poll::OUT | poll::WRNORM;
    }
    if on {
        let mut state = kept.teller.state.lock();
        state.fd = fd;
        if state.owner.is_none()
            && let Some(group) = terminal(task, file)
        {
            let own =
                || Who::Process(find_process(task.process.pid).as_ref().map_or(Weak::new(), Arc::downgrade));
            let who = if group == 0 { own() } else { Who::Group(group) };
            state.owner = Some(Owner::new(task, who));
        }
    }
    kept.set(on, interest);
    file.set_flags(if on { file.flags() | linux::FASYNC } else { file.flags() & !linux::FASYNC });
    Ok(())
}

/// A terminal's foreground group as the caller knows it, or 0: who is told if nobody has said.
fn terminal(task: &Task, file: &OpenFile) -> Option<u32> {
    if pty::is_end(file) {
        return Some(
            pty::controlling(task.process.sid.load(Ordering::Relaxed)).map_or(0, |(_, group)| group),
        );
    }
    let sid = task.process.sid.load(Ordering::Relaxed);
    file.as_type::<Stream>()?.is_terminal().then(|| crate::jobs::console_of(sid).unwrap_or(0))
}

/// F_SETOWN_EX: a type and an id; 0: nobody.
pub fn set_owner(task: &Task, file: &OpenFile, kind: u32, id: u32) -> Result<()> {
    let who = match kind {
        linux::F_OWNER_TID | linux::F_OWNER_PID | linux::F_OWNER_PGRP if id == 0 => None,
        linux::F_OWNER_TID => Some(Who::Task(Arc::downgrade(&find_task(id).ok_or(Errno::ESRCH)?))),
        linux::F_OWNER_PID => Some(Who::Process(Arc::downgrade(&find_process(id).ok_or(Errno::ESRCH)?))),
        linux::F_OWNER_PGRP if group(id).next().is_none() => return Err(Errno::ESRCH),
        linux::F_OWNER_PGRP => Some(Who::Group(id)),
        _ => return Err(Errno::EINVAL),
    };
    kept(file).teller.state.lock().owner = who.map(|who| Owner::new(task, who));
    Ok(())
}

/// F_SETOWN: a process's id, or a group's with a minus.
pub fn set_owner_by_id(task: &Task, file: &OpenFile, id: i32) -> Result<()> {
    if id == i32::MIN {
        return Err(Errno::EINVAL);
    }
    let kind = if id < 0 { linux::F_OWNER_PGRP } else { linux::F_OWNER_PID };
    set_owner(task, file, kind, id.unsigned_abs())
}

/// F_GETOWN_EX: a type and an id; 0: nobody, or who is gone.
pub fn owner(file: &OpenFile) -> (u32, u32) {
    let owner = kept(file).teller.state.lock().owner.clone();
    match owner.map(|owner| owner.who) {
        None => (linux::F_OWNER_TID, 0),
        Some(Who::Task(task)) => (linux::F_OWNER_TID, task.upgrade().map_or(0, |task| task.tid())),
        Some(Who::Process(process)) => {
            (linux::F_OWNER_PID, process.upgrade().filter(|p| p.zombie().is_none()).map_or(0, |p| p.pid))
        }
        Some(Who::Group(id)) => (linux::F_OWNER_PGRP, if group(id).next().is_some() { id } else { 0 }),
    }
}

/// F_SETSIG.
pub fn set_signal(file: &OpenFile, signal: u64) -> Result<()> {
    if signal > u64::from(signal::MAX) {
        return Err(Errno::EINVAL);
    }
    kept(file).teller.state.lock().signal = signal as u32;
    Ok(())
}

/// F_GETSIG.
pub fn signal_of(file: &OpenFile) -> u32 {
    kept(file).teller.state.lock().signal
}

fn group(id: u32) -> impl Iterator<Item = Arc<Process>> {
    all_processes().into_iter().filter(move |p| p.pgid.load(Ordering::Relaxed) == id)
}

impl Owner {
    fn new(task: &Task, who: Who) -> Owner {
        let ids = task.ids();
        Owner { who, uid: ids.ruid, euid: ids.euid }
    }

    fn may_tell(&self, process: &Process) -> bool {
        let ids = process.ids();
        self.euid == 0 || [self.uid, self.euid].iter().any(|id| *id == ids.ruid || *id == ids.suid)
    }

    fn send(&self, info: Siginfo) -> Result<()> {
        match &self.who {
            Who::Task(task) => match task.upgrade().filter(|task| self.may_tell(&task.process)) {
                Some(task) => signal::try_send_task(&task, info),
                None => Ok(()),
            },
            Who::Process(process) => match process.upgrade().filter(|p| self.may_tell(p)) {
                Some(process) => signal::try_send_process(&process, info),
                None => Ok(()),
            },
            Who::Group(id) => {
                group(*id).filter(|p| self.may_tell(p)).try_for_each(|p| signal::try_send_process(&p, info))
            }
        }
    }
}

impl State {
    fn tell(&self, reason: u32) {
        let Some(owner) = &self.owner else { return };
        let plain = Siginfo::from_kernel(linux::SIGIO, 0x80);
        let band = match reason {
            linux::POLL_IN => poll::IN | poll::RDNORM,
            linux::POLL_OUT => poll::OUT | poll::WRNORM | poll::WRBAND,
            linux::POLL_PRI => poll::PRI | RDBAND,
            linux::POLL_HUP => poll::HUP | poll::ERR,
            _ => poll::ERR,
        };
        if self.signal == 0 || owner.send(Siginfo::ready(self.signal, reason, band, self.fd)).is_err() {
            // Of those there is never more than one: its queue can't be full.
            let _ = owner.send(plain);
        }
    }
}

impl Wake for Teller {
    fn wake(&self, _key: WakeKey, events: u32, may_wait: bool) -> bool {
        if !may_wait {
            return false;
        }
        let state = self.state.lock().clone();
        // Never the last reference: as long as the queue has this, the open file keeps another one.
        let file = self.file.upgrade();
        let socket = file.as_ref().and_then(|file| file.as_any().downcast_ref::<SocketFile>());
        if socket.is_some() && events & poll::HUP != 0 {
            state.tell(linux::POLL_HUP);
            return true;
        }
        if events & poll::PRI != 0 && socket.is_some() {
            state.tell(linux::POLL_PRI);
        }
        if events & (poll::IN | poll::RDNORM | poll::RDHUP | poll::HUP) != 0 {
            state.tell(linux::POLL_IN);
        }
        // A socket tells of room only who found none.
        if events & (poll::OUT | poll::WRNORM) != 0 && socket.is_none_or(SocketFile::lacked_room) {
            state.tell(linux::POLL_OUT);
        }
        true
    }
}
