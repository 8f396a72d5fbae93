//! POSIX message queues (`mq_overview(7)`), and the file system that shows them at `/dev/mqueue`.
//!
//! A message that somebody waits for goes to whoever is most urgent, and of equals came first, and never into the queue; and who
//! waits for room leaves its message with the queue, so that whoever makes room puts it there. A queue lives as long as it has a name
//! or a descriptor.

use alloc::collections::{BTreeMap, BinaryHeap, VecDeque};
use alloc::format;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::cmp::Reverse;
use core::sync::atomic::{AtomicU64, Ordering};

use atoll_abi::layout::PAGE;
use atoll_abi::{Errno, Result};
use atoll_fs::namespace::{Location, NAME_MAX};
use atoll_fs::node::NewNode;
use atoll_fs::types::{NewMode, Time, may};
use atoll_fs::{
    Attr, Cred, DirEntry, File, FileSystem, FileType, Inode, InodeRef, OpenFile, SetAttr, Sink, StatFs, poll,
};
use atoll_mem::user;
use atoll_sync::{Mutex, MutexGuard, RcuArc, SetOnce, WaitQueue};
use atoll_task::Limit;
use linux_raw_sys::{general as linux, net};

use super::Sleeper;
use crate::dev::Directory;
use crate::files::FileRef;
use crate::proc::Number;
use crate::process::{Process, Task, world};
use crate::signal;
use crate::socket::{Inner, SocketFile};
use crate::syscalls::Call;
use crate::syscalls::time::deadline_of;
use crate::types::{MqAttr, Sigevent, Siginfo, Timespec, get, get_path, put};

/// Highest priority, and one (MQ_PRIO_MAX).
const PRIORITIES: u32 = 32768;
/// What not even CAP_SYS_RESOURCE goes beyond (HARD_MSGMAX, HARD_MSGSIZEMAX).
const MESSAGES_HARD: i64 = 65536;
const SIZE_HARD: i64 = 16 << 20;

/// Messages that a queue has room for if nobody says how many (`/proc/sys/fs/mqueue/msg_default`).
pub static MESSAGES_DEFAULT: Number = Number::new(10, 1, MESSAGES_HARD as u64);
/// Most of them (`msg_max`).
pub static MESSAGES_MAX: Number = Number::new(10, 1, MESSAGES_HARD as u64);
/// Bytes that a message may have if nobody says how many (`msgsize_default`).
pub static SIZE_DEFAULT: Number = Number::new(8192, 128, SIZE_HARD as u64);
/// Most of them (`msgsize_max`).
pub static SIZE_MAX: Number = Number::new(8192, 128, SIZE_HARD as u64);
/// Most queues (`queues_max`).
pub static QUEUES_MAX: Number = Number::new(256, 0, i32::MAX as u64);

/// What Linux counts for each message that there may be (`struct msg_msg`) and for each priority, bytes of RLIMIT_MSGQUEUE.
const MESSAGE_COST: u64 = 48;
const PRIORITY_COST: u64 = 48;

/// How `stat(2)` tells the size of a queue (FILENT_SIZE), and of the directory for each of them.
const FILE_SIZE: u64 = 80;
const ENTRY_SIZE: u64 = 20;
/// Device of the file system.
const DEV: u64 = 0x1a;
/// Inode number of the directory.
const ROOT: u64 = 1;

/// `sigevent(7)`.
const SIGEV_SIGNAL: i32 = 0;
const SIGEV_NONE: i32 = 1;
const SIGEV_THREAD: i32 = 2;
const SI_MESGQ: i32 = -3;

/// What a notification by a netlink socket is: glibc's, but for the last byte, which says whether a message has come or the notification
/// is taken back (NOTIFY_COOKIE_LEN, NOTIFY_WOKENUP, NOTIFY_REMOVED).
type Cookie = [u8; 32];
const COME: u8 = 1;
const TAKEN_BACK: u8 = 2;

/// All queues.
struct Queues {
    named: BTreeMap<Vec<u8>, Arc<Queue>>,
    /// Those included that have no name any more.
    count: u64,
    /// Bytes of RLIMIT_MSGQUEUE, by user.
    charged: BTreeMap<u32, u64>,
}

/// Before any queue's state, where both are held.
static QUEUES: Mutex<Queues> =
    Mutex::new(Queues { named: BTreeMap::new(), count: 0, charged: BTreeMap::new() });

/// Queues that processes have asked to be told of, by process id.
static NOTICES: Mutex<BTreeMap<u32, Vec<Weak<Queue>>>> = Mutex::new(BTreeMap::new());

/// A queue.
pub struct Queue {
    number: u64,
    /// Most messages, and most bytes in one.
    most: usize,
    size: usize,
    /// The user that it is charged to, and what.
    user: u32,
    charge: u64,
    state: Mutex<State>,
    /// Those who poll.
    queue: WaitQueue,
}

struct State {
    name: Vec<u8>,
    has_name: bool,
    mode: u32,
    uid: u32,
    gid: u32,
    atime: Time,
    mtime: Time,
    ctime: Time,
    messages: BinaryHeap<Message>,
    /// Bytes in them.
    bytes: u64,
    /// Messages that ever came.
    sent: u64,
    receivers: Line<Receiver>,
    senders: Line<Sender>,
    notice: Option<Notice>,
}

/// A message. The greatest one is received next: of those with the highest priority, the one that came first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Message {
    priority: u32,
    number: Reverse<u64>,
    text: Vec<u8>,
}

/// Those who wait, with how urgent they are, the most urgent one first.
struct Line<T>(VecDeque<(i32, Arc<T>)>);

/// A task that waits for a message.
type Receiver = Sleeper<Message>;

/// A task that waits for room, and its message.
struct Sender {
    message: Mutex<Option<Message>>,
    sleeper: Sleeper<()>,
}

/// A process that is told, once, when a message comes into the empty queue.
struct Notice {
    pid: u32,
    how: How,
}

enum How {
    Nothing,
    Signal { process: Weak<Process>, number: u32, value: u64 },
    Socket { file: FileRef, cookie: Cookie },
}

impl<T> Line<T> {
    const fn new() -> Line<T> {
        Line(VecDeque::new())
    }

    /// Lines up behind those who are as urgent: by real-time priority or nice value, as Linux has it.
    fn add(&mut self, task: &Task, who: Arc<T>) {
        let urgency = match task.urgency() {
            0 => -task.nice.load(Ordering::Relaxed),
            real_time => 100 + real_time as i32,
        };
        let at = self.0.iter().position(|(other, _)| *other < urgency);
        self.0.insert(at.unwrap_or(self.0.len()), (urgency, who));
    }

    fn next(&mut self) -> Option<Arc<T>> {
        self.0.pop_front().map(|(_, who)| who)
    }

    fn remove(&mut self, who: &Arc<T>) {
        self.0.retain(|(_, other)| !Arc::ptr_eq(other, who));
    }
}

impl Notice {
    /// A message has come.
    fn tell(&self, from: &Task) {
        match &self.how {
            How::Signal { process, number, value } if *number != 0 => {
                let Some(process) = process.upgrade() else { return };
                let info = Siginfo::from_user(*number, SI_MESGQ, from.process.pid, from.ids().ruid, *value);
                signal::send_process(&process, info);
            }
            How::Nothing | How::Signal { .. } => {}
            How::Socket { .. } => self.say(COME),
        }
    }

    /// Sends the cookie, if it is by that.
    fn say(&self, last: u8) {
        if let How::Socket { file, cookie } = &self.how
            && let Some(Inner::Datagram(socket)) = file.as_type::<SocketFile>().map(|s| &s.inner)
        {
            let mut cookie = *cookie;
            cookie[cookie.len() - 1] = last;
            // Its owner has looked that it is one that takes this.
            let _ = socket.deliver(&cookie);
        }
    }
}

impl State {
    fn insert(&mut self, message: Message) {
        self.bytes += message.text.len() as u64;
        self.sent += 1;
        self.messages.push(Message { number: Reverse(self.sent), ..message });
    }

    fn touch(&mut self) {
        let now = Time::now();
        (self.atime, self.mtime, self.ctime) = (now, now, now);
    }

    /// It is looked at or changed, and not its messages.
    fn touch_access(&mut self) {
        self.atime = Time::now();
        self.ctime = self.atime;
    }

    /// The notification for a process, if it has the one that there is.
    fn take_notice(&mut self, pid: u32) -> Option<Notice> {
        self.notice.take_if(|notice| notice.pid == pid)
    }
}

impl Queue {
    /// A new queue, counted and charged, without a name yet. EINVAL: no such sizes; EOVERFLOW, ENOSPC, EMFILE: too much.
    fn new(
        all: &mut Queues,
        task: &Task,
        name: &[u8],
        mode: u32,
        attr: Option<&MqAttr>,
    ) -> Result<Arc<Queue>> {
        let beyond = task.may(linux::CAP_SYS_RESOURCE);
        if all.count >= QUEUES_MAX.get() && !beyond {
            return Err(Errno::ENOSPC);
        }
        let (most_max, size_max) = (MESSAGES_MAX.get() as i64, SIZE_MAX.get() as i64);
        let (most, size) = match attr {
            Some(attr) => (attr.maxmsg, attr.msgsize),
            None => (most_max.min(MESSAGES_DEFAULT.get() as i64), size_max.min(SIZE_DEFAULT.get() as i64)),
        };
        let (most_max, size_max) = if beyond { (MESSAGES_HARD, SIZE_HARD) } else { (most_max, size_max) };
        if !(1..=most_max).contains(&most) || !(1..=size_max).contains(&size) {
            return Err(Errno::EINVAL);
        }
        let (most, size) = (most as u64, size as u64);
        // Both have bounds: this is far from what a word holds.
        let charge = most * (size + MESSAGE_COST) + most.min(u64::from(PRIORITIES)) * PRIORITY_COST;
        let user = task.ids().ruid;
        let charged = all.charged.get(&user).map_or(0, |charged| *charged) + charge;
        if charged > task.process.limit(linux::RLIMIT_MSGQUEUE).cur {
            return Err(Errno::EMFILE);
        }
        all.charged.insert(user, charged);
        all.count += 1;
        static NUMBERS: AtomicU64 = AtomicU64::new(ROOT + 1);
        let (cred, now) = (task.cred(), Time::now());
        Ok(Arc::new(Queue {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            most: most as usize,
            size: size as usize,
            user,
            charge,
            state: Mutex::new(State {
                name: name.to_vec(),
                has_name: true,
                mode: mode & 0o7777,
                uid: cred.uid,
                gid: cred.gid,
                atime: now,
                mtime: now,
                ctime: now,
                messages: BinaryHeap::new(),
                bytes: 0,
                sent: 0,
                receivers: Line::new(),
                senders: Line::new(),
                notice: None,
            }),
            queue: WaitQueue::new(),
        }))
    }

    /// Puts in a message for which there is room, or gives it to who waits for one.
    fn send(&self, mut state: MutexGuard<'_, State>, message: Message, from: &Task) {
        state.touch();
        if let Some(receiver) = state.receivers.next() {
            return receiver.serve(Ok(message));
        }
        state.insert(message);
        // Before anybody can take the message: who has taken it and waits for the next one is not to be interrupted by word of this one.
        if state.messages.len() == 1
            && let Some(notice) = state.notice.take()
        {
            notice.tell(from);
        }
        drop(state);
        self.queue.wake_all(poll::IN | poll::RDNORM);
    }

    /// Takes the next message out, if there is one.
    fn take(&self, mut state: MutexGuard<'_, State>) -> Option<Message> {
        let message = state.messages.pop()?;
        state.bytes -= message.text.len() as u64;
        state.touch();
        // Who left while this came by has taken its message along.
        while let Some(sender) = state.senders.next() {
            let Some(next) = sender.message.lock().take() else { continue };
            state.insert(next);
            sender.sleeper.serve(Ok(()));
            return Some(message);
        }
        drop(state);
        self.queue.wake_all(poll::OUT | poll::WRNORM);
        Some(message)
    }

    /// A process is told no more.
    fn forget_notice(&self, pid: u32) {
        let notice = self.state.lock().take_notice(pid);
        if let Some(notice) = notice {
            notice.say(TAKEN_BACK);
        }
    }

    fn attributes(&self) -> Attr {
        let state = self.state.lock();
        Attr {
            ino: self.number,
            dev: DEV,
            mode: linux::S_IFREG | state.mode,
            nlink: state.has_name.into(),
            uid: state.uid,
            gid: state.gid,
            size: FILE_SIZE,
            blksize: PAGE as u32,
            atime: state.atime,
            mtime: state.mtime,
            ctime: state.ctime,
            ..Attr::default()
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let mut all = QUEUES.lock();
        all.count -= 1;
        if let Some(charged) = all.charged.get_mut(&self.user) {
            *charged -= self.charge;
            if *charged == 0 {
                all.charged.remove(&self.user);
            }
        }
    }
}

/// What a name leads to, if it can be one. EACCES: it can't.
fn find(all: &Queues, name: &[u8]) -> Result<Option<Arc<Queue>>> {
    if name.contains(&b'/') || matches!(name, b"." | b"..") {
        return Err(Errno::EACCES);
    }
    if name.len() > NAME_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    Ok(all.named.get(name).cloned())
}

/// Takes a name away. Value: its queue, which may end when nothing is locked any more.
fn unlink(name: &[u8], cred: &Cred) -> Result<Arc<Queue>> {
    let mut all = QUEUES.lock();
    let queue = find(&all, name)?.ok_or(Errno::ENOENT)?;
    cred.check_sticky(&root_attributes(&all), &queue.attributes())?;
    let mut state = queue.state.lock();
    state.has_name = false;
    state.ctime = Time::now();
    drop(state);
    all.named.remove(name);
    Ok(queue)
}

/// The queue of a descriptor. EBADF: it has none, or isn't open for this.
fn queue_of(file: &FileRef, allowed: bool) -> Result<&Queue> {
    file.as_type().filter(|_| allowed).ok_or(Errno::EBADF)
}

/// Until when a call waits: to a time of CLOCK_REALTIME, if it gives one.
fn limit(addr: u64) -> Result<Limit> {
    if addr == 0 {
        return Ok(Limit::Forever);
    }
    let time = get::<Timespec>(addr)?.to_ns()?;
    deadline_of(linux::CLOCK_REALTIME as i32, time).map(Limit::Until)
}

/// `mq_open(2)`. Its descriptors are always closed by exec.
pub fn mq_open(c: &mut Call) -> Result<u64> {
    let (flags, mode) = (c.uint(1), c.uint(2));
    let attr: Option<MqAttr> = if c.arg(3) == 0 { None } else { Some(get(c.arg(3))?) };
    let name = get_path(c.arg(0))?;
    if name.is_empty() {
        return Err(Errno::ENOENT);
    }
    let access = match flags & linux::O_ACCMODE {
        linux::O_RDONLY => may::READ,
        linux::O_WRONLY => may::WRITE,
        linux::O_RDWR => may::READ | may::WRITE,
        _ => return Err(Errno::EINVAL),
    };
    let (queue, is_new) = {
        let mut all = QUEUES.lock();
        match find(&all, &name)? {
            Some(_) if flags & linux::O_CREAT != 0 && flags & linux::O_EXCL != 0 => {
                return Err(Errno::EEXIST);
            }
            Some(queue) => {
                c.task.cred().check(&queue.attributes(), access)?;
                (queue, false)
            }
            None if flags & linux::O_CREAT == 0 => return Err(Errno::ENOENT),
            None => {
                let mode = mode & !c.task.fs.umask.load(Ordering::Relaxed);
                let queue = Queue::new(&mut all, c.task, &name, mode, attr.as_ref())?;
                all.named.insert(name.clone(), queue.clone());
                (queue, true)
            }
        }
    };
    let flags =
        flags & !(linux::O_CREAT | linux::O_EXCL | linux::O_NOCTTY | linux::O_TRUNC | linux::O_CLOEXEC);
    let mount = world().tree.mounts().find(|mount| mount.fs.name() == NAME);
    let file = match mount {
        Some(mount) => {
            OpenFile::at(queue.clone(), flags, Location { mount, inode: queue.clone() }, name.clone())
        }
        None => OpenFile::new(queue.clone(), flags),
    };
    let installed = c.install(RcuArc::new(file), true);
    if installed.is_err() && is_new {
        drop(unlink(&name, &Cred::root()));
    }
    installed
}

/// `mq_unlink(2)`.
pub fn mq_unlink(c: &mut Call) -> Result<u64> {
    let name = get_path(c.arg(0))?;
    if name.is_empty() {
        return Err(Errno::ENOENT);
    }
    unlink(&name, &c.task.cred()).map(|_| 0)
}

/// `mq_timedsend(2)`.
pub fn mq_timedsend(c: &mut Call) -> Result<u64> {
    let (from, len, priority) = (c.arg(1), c.arg(2), c.uint(3));
    let limit = limit(c.arg(4))?;
    if priority >= PRIORITIES {
        return Err(Errno::EINVAL);
    }
    let file = c.file(0)?;
    let queue = queue_of(&file, file.writable())?;
    if len > queue.size as u64 {
        return Err(Errno::EMSGSIZE);
    }
    let mut text = atoll_mem::buffer(len as usize)?;
    user::read(from, &mut text)?;
    let message = Message { priority, number: Reverse(0), text };
    let mut state = queue.state.lock();
    if state.messages.len() < queue.most {
        queue.send(state, message, c.task);
        return Ok(0);
    }
    if file.nonblock() {
        return Err(Errno::EAGAIN);
    }
    let sender = Arc::new(Sender { message: Mutex::new(Some(message)), sleeper: Sleeper::new() });
    state.senders.add(c.task, sender.clone());
    drop(state);
    let leave = || queue.state.lock().senders.remove(&sender);
    sender.sleeper.wait(c.task, limit, leave).map(|()| 0)
}

/// `mq_timedreceive(2)`.
pub fn mq_timedreceive(c: &mut Call) -> Result<u64> {
    let (to, len, priority_to) = (c.arg(1), c.arg(2), c.arg(3));
    let limit = limit(c.arg(4))?;
    let file = c.file(0)?;
    let queue = queue_of(&file, file.readable())?;
    if len < queue.size as u64 {
        return Err(Errno::EMSGSIZE);
    }
    let mut state = queue.state.lock();
    let message = if !state.messages.is_empty() {
        queue.take(state).ok_or(Errno::EAGAIN)?
    } else if file.nonblock() {
        return Err(Errno::EAGAIN);
    } else {
        let receiver = Arc::new(Receiver::new());
        state.receivers.add(c.task, receiver.clone());
        drop(state);
        receiver.wait(c.task, limit, || queue.state.lock().receivers.remove(&receiver))?
    };
    if priority_to != 0 {
        put(priority_to, &message.priority)?;
    }
    user::write(to, &message.text).map(|()| message.text.len() as u64)
}

/// `mq_notify(2)`. With SIGEV_THREAD, glibc gives a netlink socket, from which its helper thread receives the cookie.
pub fn mq_notify(c: &mut Call) -> Result<u64> {
    let process = &c.task.process;
    let notice = if c.arg(1) == 0 {
        None
    } else {
        let event: Sigevent = get(c.arg(1))?;
        let how = match event.notify {
            SIGEV_NONE => How::Nothing,
            SIGEV_SIGNAL => {
                let number = event.signo as u32;
                if number > signal::MAX {
                    return Err(Errno::EINVAL);
                }
                let me = crate::process::find_process(process.pid).ok_or(Errno::ESRCH)?;
                How::Signal { process: Arc::downgrade(&me), number, value: event.value }
            }
            SIGEV_THREAD => {
                let cookie: Cookie = get(event.value)?;
                let file = c.task.files.get(event.signo as u32)?;
                let socket = file.as_type::<SocketFile>().ok_or(Errno::ENOTSOCK)?;
                if socket.domain != net::AF_NETLINK {
                    return Err(Errno::EINVAL);
                }
                How::Socket { file, cookie }
            }
            _ => return Err(Errno::EINVAL),
        };
        Some(Notice { pid: process.pid, how })
    };
    let file = c.file(0)?;
    let queue = queue_of(&file, true)?;
    let Some(notice) = notice else {
        let mut state = queue.state.lock();
        let gone = state.take_notice(process.pid);
        if let Some(gone) = gone {
            state.touch_access();
            drop(state);
            gone.say(TAKEN_BACK);
        }
        return Ok(0);
    };
    // Where it is looked for when the process ends, before it is there.
    let mine = file.file().clone() as Arc<dyn Any + Send + Sync>;
    if let Ok(queue) = mine.downcast::<Queue>() {
        let mut notices = NOTICES.lock();
        let list = notices.entry(process.pid).or_default();
        list.retain(|known| known.strong_count() > 0 && !core::ptr::eq(known.as_ptr(), &*queue));
        list.push(Arc::downgrade(&queue));
    }
    process.awaits_messages.store(true, Ordering::SeqCst);
    let mut state = queue.state.lock();
    if state.notice.is_some() {
        return Err(Errno::EBUSY);
    }
    state.notice = Some(notice);
    state.touch_access();
    Ok(0)
}

/// `mq_getsetattr(2)`.
pub fn mq_getsetattr(c: &mut Call) -> Result<u64> {
    let (new, old) = (c.arg(1), c.arg(2));
    let nonblock = i64::from(linux::O_NONBLOCK);
    let new: Option<MqAttr> = if new == 0 { None } else { Some(get(new)?) };
    if new.is_some_and(|new| new.flags & !nonblock != 0) {
        return Err(Errno::EINVAL);
    }
    let file = c.file(0)?;
    let queue = queue_of(&file, true)?;
    let mut state = queue.state.lock();
    let told = MqAttr {
        flags: i64::from(file.flags()) & nonblock,
        maxmsg: queue.most as i64,
        msgsize: queue.size as i64,
        curmsgs: state.messages.len() as i64,
        reserved: [0; 4],
    };
    if let Some(new) = new {
        file.set_flags(file.flags() & !linux::O_NONBLOCK | new.flags as u32);
        state.touch_access();
    }
    drop(state);
    if old != 0 {
        put(old, &told)?;
    }
    Ok(0)
}

/// A task closes a descriptor: if its process is to be told of the queue's messages, it is so no more (mq_close(3)).
pub fn closing(task: &Task, file: &FileRef) {
    if task.process.awaits_messages.load(Ordering::Relaxed)
        && let Some(queue) = file.as_type::<Queue>()
    {
        queue.forget_notice(task.process.pid);
    }
}

/// A process ends, or runs another program: it is told of no messages any more.
pub fn leave(process: &Process) {
    if process.awaits_messages.swap(false, Ordering::SeqCst) {
        let queues = NOTICES.lock().remove(&process.pid).unwrap_or_default();
        queues.iter().filter_map(Weak::upgrade).for_each(|queue| queue.forget_notice(process.pid));
    }
}

impl File for Queue {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn read(&self, sink: &mut Sink, at: Option<u64>, _nonblock: bool) -> Result<usize> {
        let mut state = self.state.lock();
        let (mut pid, mut notify, mut signal) = (0, 0, 0);
        if let Some(notice) = &state.notice {
            pid = notice.pid;
            (notify, signal) = match &notice.how {
                How::Nothing => (SIGEV_NONE, 0),
                How::Signal { number, .. } => (SIGEV_SIGNAL, *number),
                How::Socket { .. } => (SIGEV_THREAD, 0),
            };
        }
        let text =
            format!("QSIZE:{:<10} NOTIFY:{notify:<5} SIGNO:{signal:<5} NOTIFY_PID:{pid:<6}\n", state.bytes);
        let rest = text.as_bytes().get(at.unwrap_or(0) as usize..).unwrap_or_default();
        let n = if rest.is_empty() { 0 } else { sink.put(rest)? };
        if n > 0 {
            state.touch_access();
        }
        Ok(n)
    }

    fn seekable(&self) -> bool {
        true
    }

    fn ready(&self) -> u32 {
        let waiting = self.state.lock().messages.len();
        let mut ready = 0;
        if waiting > 0 {
            ready |= poll::IN | poll::RDNORM;
        }
        if waiting < self.most {
            ready |= poll::OUT | poll::WRNORM;
        }
        ready
    }

    fn queue(&self) -> Option<&WaitQueue> {
        Some(&self.queue)
    }

    fn attr(&self) -> Result<Attr> {
        Ok(self.attributes())
    }

    fn describe(&self) -> Vec<u8> {
        [b"/", &*self.state.lock().name].concat()
    }
}

impl Inode for Queue {
    fn id(&self) -> u64 {
        self.number
    }

    fn kind(&self) -> FileType {
        FileType::Regular
    }

    fn attr(&self) -> Result<Attr> {
        Ok(self.attributes())
    }

    fn set_attr(&self, change: &SetAttr, _cred: &Cred) -> Result<()> {
        let mut state = self.state.lock();
        state.mode = change.mode.unwrap_or(state.mode);
        state.uid = change.uid.unwrap_or(state.uid);
        state.gid = change.gid.unwrap_or(state.gid);
        state.atime = change.atime.unwrap_or(state.atime);
        state.mtime = change.mtime.unwrap_or(state.mtime);
        state.ctime = Time::now();
        Ok(())
    }

    fn file_system(&self) -> Arc<dyn FileSystem> {
        Arc::new(MqueueFs)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn parent(&self) -> Option<InodeRef> {
        Some(Arc::new(Root))
    }

    fn name(&self) -> Option<Vec<u8>> {
        let state = self.state.lock();
        state.has_name.then(|| state.name.clone())
    }

    fn open(self: Arc<Self>, _flags: u32, _cred: &Cred) -> Result<Arc<dyn File>> {
        Ok(self)
    }
}

/// The file system's name.
const NAME: &str = "mqueue";

/// The file system of the queues.
struct MqueueFs;

impl FileSystem for MqueueFs {
    fn name(&self) -> &'static str {
        NAME
    }

    fn stat(&self) -> Result<StatFs> {
        // MQUEUE_MAGIC.
        Ok(StatFs { kind: 0x1980_0202, bsize: PAGE, namelen: NAME_MAX as u64, ..StatFs::default() })
    }
}

/// When it was mounted.
static MADE: SetOnce<Time> = SetOnce::new();

/// The file system, and its directory.
pub fn mqueue_fs() -> (Arc<dyn FileSystem>, InodeRef) {
    // Once, at boot; a second mount is of the same queues.
    let _ = MADE.set(Time::now());
    (Arc::new(MqueueFs), Arc::new(Root))
}

/// The directory of the queues.
struct Root;

fn root_attributes(all: &Queues) -> Attr {
    let made = MADE.get().copied().unwrap_or_default();
    Attr {
        ino: ROOT,
        dev: DEV,
        mode: linux::S_IFDIR | linux::S_ISVTX | 0o777,
        nlink: 2,
        size: ENTRY_SIZE * (all.named.len() as u64 + 2),
        blksize: PAGE as u32,
        atime: made,
        mtime: made,
        ctime: made,
        ..Attr::default()
    }
}

impl Inode for Root {
    fn id(&self) -> u64 {
        ROOT
    }

    fn kind(&self) -> FileType {
        FileType::Directory
    }

    fn attr(&self) -> Result<Attr> {
        Ok(root_attributes(&QUEUES.lock()))
    }

    fn set_attr(&self, _change: &SetAttr, _cred: &Cred) -> Result<()> {
        Err(Errno::EPERM)
    }

    fn file_system(&self) -> Arc<dyn FileSystem> {
        Arc::new(MqueueFs)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn lookup(&self, name: &[u8]) -> Result<InodeRef> {
        Ok(find(&QUEUES.lock(), name)?.ok_or(Errno::ENOENT)?)
    }

    fn create(&self, name: &[u8], node: NewNode, mode: NewMode, _cred: &Cred) -> Result<InodeRef> {
        if !matches!(node, NewNode::File) {
            return Err(Errno::EPERM);
        }
        let mut all = QUEUES.lock();
        if find(&all, name)?.is_some() {
            return Err(Errno::EEXIST);
        }
        let queue = Queue::new(&mut all, crate::current(), name, mode.masked(), None)?;
        all.named.insert(name.to_vec(), queue.clone());
        Ok(queue)
    }

    fn unlink(&self, name: &[u8], dir: bool, cred: &Cred) -> Result<()> {
        if dir { Err(Errno::ENOTDIR) } else { unlink(name, cred).map(drop) }
    }

    fn list(&self, from: u64, most: usize) -> Result<Vec<DirEntry>> {
        // Numbers of queues grow, so that one that goes meanwhile makes no other one be missed.
        let all: Vec<Arc<Queue>> = QUEUES.lock().named.values().cloned().collect();
        let mut list: Vec<DirEntry> = all
            .into_iter()
            .filter(|queue| queue.number > from)
            .map(|queue| DirEntry {
                name: queue.state.lock().name.clone(),
                ino: queue.number,
                kind: FileType::Regular,
                next: queue.number,
            })
            .collect();
        list.sort_unstable_by_key(|entry| entry.ino);
        list.truncate(most);
        Ok(list)
    }

    fn open(self: Arc<Self>, _flags: u32, _cred: &Cred) -> Result<Arc<dyn File>> {
        Ok(Arc::new(Directory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages come out by priority, and in the order in which they went in, as out of a list that is searched.
    #[test]
    fn order_of_messages() {
        let (mut heap, mut list, mut random) = (BinaryHeap::new(), Vec::new(), 1u32);
        for sent in 0..10_000 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let priority = random >> 30;
            if random >> 29 & 1 == 0 {
                heap.push(Message { priority, number: Reverse(sent), text: Vec::new() });
                list.push((priority, sent));
            } else {
                let most = list.iter().map(|(priority, _)| *priority).max();
                let at = list.iter().position(|(priority, _)| Some(*priority) == most);
                let next = heap.pop().map(|m: Message| (m.priority, m.number.0));
                assert_eq!(next, at.map(|at| list.remove(at)));
            }
        }
    }
}
