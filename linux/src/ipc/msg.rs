//! Message queues (`msgget(2)`, `msgop(2)`, `msgctl(2)`).
//!
//! A message that somebody waits for goes to who came first of those whom it fits, and never into the queue.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Write;

use atoll_abi::{Errno, Result};
use atoll_mem::user;
use atoll_sync::{Mutex, WaitQueue};
use atoll_task::{Limit, wait};
use linux_raw_sys::general::CAP_SYS_RESOURCE;

use super::{
    ALTER, Found, IPC_INFO, IPC_NOWAIT, IPC_RMID, IPC_SET, IPC_STAT, Perm, READ, Sleeper, Table,
    found_to_tell, get, now,
};
use crate::signal;
use crate::syscalls::Call;
use crate::types::{Msginfo, MsqidDs, put};

const MSG_STAT: u32 = 11;
const MSG_INFO: u32 = 12;
const MSG_STAT_ANY: u32 = 13;
const MSG_NOERROR: u32 = 0o10000;
const MSG_EXCEPT: u32 = 0o20000;
const MSG_COPY: u32 = 0o40000;

/// Most queues (MSGMNI).
pub const QUEUES_MAX: usize = 32000;
/// Most bytes in a message (MSGMAX).
pub const MESSAGE_MAX: usize = 8192;
/// Most bytes in a new queue (MSGMNB).
pub const QUEUE_MAX: u64 = 16384;

/// A queue.
struct Queue {
    state: Mutex<State>,
    /// Those who wait for room.
    senders: WaitQueue,
}

struct State {
    perm: Perm,
    /// It is in the table no more, and there only for those who had found it.
    removed: bool,
    stime: i64,
    rtime: i64,
    ctime: i64,
    lspid: u32,
    lrpid: u32,
    /// Most bytes in it.
    most: u64,
    bytes: u64,
    messages: VecDeque<Message>,
    /// Those who wait for a message, in the order in which they came.
    receivers: Vec<Arc<Receiver>>,
}

struct Message {
    kind: i64,
    text: Vec<u8>,
}

/// Which messages are wanted.
#[derive(Clone, Copy)]
enum Want {
    Any,
    Kind(i64),
    /// Any but this.
    Other(i64),
    /// The lowest up to this.
    Lowest(i64),
}

impl Want {
    fn new(kind: i64, flags: u32) -> Want {
        match kind {
            0 => Want::Any,
            i64::MIN..0 => Want::Lowest(kind.checked_neg().unwrap_or(i64::MAX)),
            _ if flags & MSG_EXCEPT != 0 => Want::Other(kind),
            _ => Want::Kind(kind),
        }
    }

    fn takes(self, kind: i64) -> bool {
        match self {
            Want::Any => true,
            Want::Kind(k) => kind == k,
            Want::Other(k) => kind != k,
            Want::Lowest(most) => kind <= most,
        }
    }
}

/// A task that waits for a message.
struct Receiver {
    want: Want,
    /// Longest text that it takes as it is; a longer one is cut off, or an error.
    most: usize,
    cuts: bool,
    pid: u32,
    sleeper: Sleeper<Message>,
}

static QUEUES: Mutex<Table<Queue>> = Mutex::new(Table::new());

impl State {
    /// Is there room for so many bytes more? As many empty messages fit as bytes.
    fn has_room(&self, len: usize) -> bool {
        self.bytes + len as u64 <= self.most && (self.messages.len() as u64) < self.most
    }

    /// Takes the message that is wanted. E2BIG: it is too long, and stays.
    fn take(&mut self, want: Want, most: usize, cuts: bool) -> Option<Result<Message>> {
        let fitting = self.messages.iter().enumerate().filter(|(_, m)| want.takes(m.kind));
        let (at, message) = match want {
            Want::Lowest(_) => fitting.min_by_key(|(_, m)| m.kind)?,
            _ => fitting.into_iter().next()?,
        };
        if message.text.len() > most && !cuts {
            return Some(Err(Errno::E2BIG));
        }
        let message = self.messages.remove(at)?;
        self.bytes -= message.text.len() as u64;
        Some(Ok(message))
    }

    /// Gives a message to who waits for it; else it goes into the queue.
    fn add(&mut self, message: Message) {
        while let Some(at) = self.receivers.iter().position(|r| r.want.takes(message.kind)) {
            let receiver = self.receivers.remove(at);
            if message.text.len() > receiver.most && !receiver.cuts {
                receiver.sleeper.serve(Err(Errno::E2BIG));
                continue;
            }
            self.lrpid = receiver.pid;
            self.rtime = now();
            return receiver.sleeper.serve(Ok(message));
        }
        self.bytes += message.text.len() as u64;
        self.messages.push_back(message);
    }
}

/// `msgget(2)`.
pub fn msgget(c: &mut Call) -> Result<u64> {
    let (key, flags) = (c.int(0), c.uint(1));
    let task = c.task;
    let make = |_| {
        let state = State {
            perm: Perm::new(task, flags),
            removed: false,
            stime: 0,
            rtime: 0,
            ctime: now(),
            lspid: 0,
            lrpid: 0,
            most: QUEUE_MAX,
            bytes: 0,
            messages: VecDeque::new(),
            receivers: Vec::new(),
        };
        Ok(Arc::new(Queue { state: Mutex::new(state), senders: WaitQueue::new() }))
    };
    let fits = |queue: &Queue| queue.state.lock().perm.check(task, flags);
    QUEUES.lock().find_or_make(key, flags, QUEUES_MAX, fits, make).map(|id| id as u64)
}

/// `msgsnd(2)`.
pub fn msgsnd(c: &mut Call) -> Result<u64> {
    let (id, from, len, flags) = (c.int(0), c.arg(1), c.arg(2), c.uint(3));
    let kind: i64 = get(from)?;
    if len > MESSAGE_MAX as u64 || id < 0 || kind < 1 {
        return Err(Errno::EINVAL);
    }
    let mut text = alloc::vec![0; len as usize];
    user::read(from + 8, &mut text)?;
    let queue = QUEUES.lock().find(id)?.object;
    let (mut message, task) = (Some(Message { kind, text }), c.task);
    let mut send = || -> Option<Result<()>> {
        let mut state = queue.state.lock();
        if let Err(e) = state.perm.check(task, ALTER) {
            return Some(Err(e));
        }
        if state.removed {
            return Some(Err(Errno::EIDRM));
        }
        if !state.has_room(len as usize) {
            return None;
        }
        state.lspid = task.process.pid;
        state.stime = now();
        state.add(message.take()?);
        Some(Ok(()))
    };
    let limit = if flags & IPC_NOWAIT != 0 { Limit::Never } else { Limit::Forever };
    loop {
        match wait(&queue.senders, 1, limit, &mut send) {
            Ok(sent) => return sent.map(|()| 0),
            Err(Errno::RESTART) if signal::was_for_nothing(task) => {}
            Err(Errno::RESTART) => return Err(Errno::RESTART_NOHAND),
            Err(e) => return Err(e),
        }
    }
}

/// `msgrcv(2)`.
pub fn msgrcv(c: &mut Call) -> Result<u64> {
    let (id, to, len, flags) = (c.int(0), c.arg(1), c.arg(2), c.uint(4));
    if id < 0 || len as i64 <= -1 {
        return Err(Errno::EINVAL);
    }
    if flags & MSG_COPY != 0 {
        return copy(c);
    }
    let (want, most) = (Want::new(c.arg(3) as i64, flags), len as usize);
    let cuts = flags & MSG_NOERROR != 0;
    let queue = QUEUES.lock().find(id)?.object;
    let pid = c.task.process.pid;
    loop {
        let receiver = {
            let mut state = queue.state.lock();
            state.perm.check(c.task, READ)?;
            if state.removed {
                return Err(Errno::EIDRM);
            }
            match state.take(want, most, cuts) {
                Some(message) => {
                    let message = message?;
                    state.lrpid = pid;
                    state.rtime = now();
                    drop(state);
                    queue.senders.wake_all(1);
                    return give(to, most, &message);
                }
                None if flags & IPC_NOWAIT != 0 => return Err(Errno::ENOMSG),
                None => {
                    let receiver = Arc::new(Receiver { want, most, cuts, pid, sleeper: Sleeper::new() });
                    state.receivers.push(receiver.clone());
                    receiver
                }
            }
        };
        let leave = || queue.state.lock().receivers.retain(|r| !Arc::ptr_eq(r, &receiver));
        match receiver.sleeper.wait(c.task, Limit::Forever, leave) {
            Ok(message) => return give(to, most, &message),
            // The queue's permissions are others now.
            Err(Errno::EAGAIN) => {}
            Err(Errno::RESTART) => return Err(Errno::RESTART_NOHAND),
            Err(e) => return Err(e),
        }
    }
}

/// `msgrcv(2)` with MSG_COPY: tells of the message at a place, and leaves it there.
fn copy(c: &Call) -> Result<u64> {
    let (id, to, most, flags) = (c.int(0), c.arg(1), c.arg(2) as usize, c.uint(4));
    if flags & IPC_NOWAIT == 0 || flags & MSG_EXCEPT != 0 {
        return Err(Errno::EINVAL);
    }
    let queue = QUEUES.lock().find(id)?.object;
    let state = queue.state.lock();
    state.perm.check(c.task, READ)?;
    let at = usize::try_from(c.arg(3)).ok();
    let message = at.and_then(|at| state.messages.get(at)).ok_or(Errno::ENOMSG)?;
    if message.text.len() > most {
        // It is not cut here (`copy_msg` of Linux).
        return Err(if flags & MSG_NOERROR == 0 { Errno::E2BIG } else { Errno::EINVAL });
    }
    let message = Message { kind: message.kind, text: message.text.clone() };
    drop(state);
    give(to, most, &message)
}

/// Gives the program a message, of whose text it takes so many bytes.
fn give(to: u64, most: usize, message: &Message) -> Result<u64> {
    let text = &message.text[..message.text.len().min(most)];
    put(to, &message.kind)?;
    user::write(to + 8, text).map(|()| text.len() as u64)
}

/// `msgctl(2)`.
pub fn msgctl(c: &mut Call) -> Result<u64> {
    let (id, command, arg) = (c.int(0), c.uint(1), c.arg(2));
    let task = c.task;
    if id < 0 {
        return Err(Errno::EINVAL);
    }
    match command {
        IPC_INFO | MSG_INFO => {
            let queues = QUEUES.lock();
            let (used, highest) = queues.used();
            let mut info = Msginfo {
                msgpool: (QUEUES_MAX as u64 * QUEUE_MAX / 1024) as i32,
                msgmap: QUEUE_MAX as i32,
                msgmax: MESSAGE_MAX as i32,
                msgmnb: QUEUE_MAX as i32,
                msgmni: QUEUES_MAX as i32,
                msgssz: 16,
                msgtql: QUEUE_MAX as i32,
                msgseg: 0xffff,
                pad: 0,
            };
            if command == MSG_INFO {
                (info.msgpool, info.msgmap, info.msgtql) = (used as i32, 0, 0);
                for Found { object, .. } in queues.all() {
                    let state = object.state.lock();
                    info.msgmap += state.messages.len() as i32;
                    info.msgtql += state.bytes as i32;
                }
            }
            drop(queues);
            put(arg, &info)?;
            Ok(highest)
        }
        IPC_STAT | MSG_STAT | MSG_STAT_ANY => {
            let (found, value) = found_to_tell(&QUEUES, id, command != IPC_STAT)?;
            let state = found.object.state.lock();
            if command != MSG_STAT_ANY {
                state.perm.check(task, READ)?;
            }
            let told = MsqidDs {
                perm: state.perm.told(found.key, found.id),
                stime: state.stime,
                rtime: state.rtime,
                ctime: state.ctime,
                cbytes: state.bytes,
                qnum: state.messages.len() as u64,
                qbytes: state.most,
                lspid: state.lspid,
                lrpid: state.lrpid,
                unused: [0; 2],
            };
            drop(state);
            put(arg, &told)?;
            Ok(value)
        }
        IPC_SET => {
            let new: MsqidDs = get(arg)?;
            let queue = QUEUES.lock().find(id)?.object;
            let mut state = queue.state.lock();
            state.perm.check_owner(task)?;
            if new.qbytes > QUEUE_MAX && !task.may(CAP_SYS_RESOURCE) {
                return Err(Errno::EPERM);
            }
            state.perm.set(&new.perm)?;
            state.most = new.qbytes;
            state.ctime = now();
            // Some may not be permitted any more: they find out themselves, and so do those for whom there is room now.
            for receiver in core::mem::take(&mut state.receivers) {
                receiver.sleeper.serve(Err(Errno::EAGAIN));
            }
            drop(state);
            queue.senders.wake_all(1);
            Ok(0)
        }
        IPC_RMID => {
            let mut queues = QUEUES.lock();
            let queue = queues.find(id)?.object;
            let mut state = queue.state.lock();
            state.perm.check_owner(task)?;
            queues.remove(id);
            state.removed = true;
            for receiver in core::mem::take(&mut state.receivers) {
                receiver.sleeper.serve(Err(Errno::EIDRM));
            }
            drop(state);
            queue.senders.wake_all(1);
            Ok(0)
        }
        _ => Err(Errno::EINVAL),
    }
}

/// `/proc/sysvipc/msg`.
pub fn list() -> String {
    let mut text = String::from(
        "       key      msqid perms      cbytes       qnum lspid lrpid   uid   gid  cuid  cgid      stime      rtime      \
         ctime\n",
    );
    for Found { id, key, object } in QUEUES.lock().all() {
        let s = object.state.lock();
        let p = &s.perm;
        // A string takes whatever is written to it.
        let _ = writeln!(
            text,
            "{key:10} {id:10}  {:4o}  {:10} {:10} {:5} {:5} {:5} {:5} {:5} {:5} {:10} {:10} {:10}",
            p.mode,
            s.bytes,
            s.messages.len(),
            s.lspid,
            s.lrpid,
            p.uid,
            p.gid,
            p.cuid,
            p.cgid,
            s.stime,
            s.rtime,
            s.ctime,
        );
    }
    text
}
