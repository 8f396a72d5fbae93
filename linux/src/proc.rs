//! `/proc`, `/sys` and other files whose contents are made when they are read (`proc(5)`).

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::fmt::Write;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use atoll_abi::grid::{ROOT, Resource};
use atoll_abi::layout::PAGE;
use atoll_abi::platform::Access;
use atoll_abi::service::{NET_ATTRIBUTES, NET_TABLES};
use atoll_abi::{Errno, Result, platform};
use atoll_fs::inotify;
use atoll_fs::node::{At, Magic, NewNode};
use atoll_fs::types::NewMode;
use atoll_fs::{
    Attr, Cred, DirEntry, File, FileSystem, FileType, Inode, InodeRef, SetAttr, Sink, Source, StatFs, Time,
};
use atoll_mem::heap::{kept_bytes, memory};
use atoll_mem::vm::{AREAS_MAX, AddressSpace, Area, Kind, Residence, Share};
use atoll_sync::{Mutex, SetOnce};
use atoll_task::{Amounts, CoreSet, has_core, set_of_cores};
use linux_raw_sys::general as linux;

use crate::cgroup::Group;
use crate::files::FileRef;
use crate::interfaces::{self, Interface, STATISTICS};
use crate::ipc::{mqueue, msg, sem, shm};
use crate::process::{
    Ids, Life, Process, Task, TimeDivision, Usage, Visit, all_processes, find_process, find_task, task_count,
    world,
};
use crate::syscalls::fd;
use crate::syscalls::misc::RELEASE;
use crate::syscalls::net::can_ask_network;
use crate::syscalls::process::start_ticks;
use crate::syscalls::process_vm::{may_look_at, read_memory, write_memory};
use crate::syscalls::sched::affinity;
use crate::syscalls::time::uptime;
use crate::{aio, cgroup, core_dump, current, log, proc_memory, proc_net, ptrace};

/// Makes a file's contents.
type Text = fn() -> String;
/// Takes what is written to a file.
type Setter = fn(&[u8]) -> Result<()>;

/// A file system of made-up files.
pub struct MadeFs {
    name: &'static str,
    magic: u64,
    dev: u64,
}

impl FileSystem for MadeFs {
    fn name(&self) -> &'static str {
        self.name
    }

    fn stat(&self) -> Result<StatFs> {
        Ok(StatFs { kind: self.magic, bsize: PAGE, namelen: 255, ..StatFs::default() })
    }
}

/// What a node is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    /// Part of the fixed tree: an index into it.
    Fixed(usize),
    /// /proc/PID, or /proc/PID/task/TID if the second is not zero.
    Pid(u32, u32),
    /// /proc/TID of a thread that is not its process's first: it can be named, is not listed, and has all that /proc/PID has.
    Thread(u32, u32),
    /// A file of one of these.
    PidFile(u32, u32, usize),
    /// /proc/PID/fd or fdinfo.
    Fds(u32, bool),
    /// An entry of it.
    Fd(u32, u32, bool),
    /// /proc/PID/task.
    Tasks(u32),
    /// A link in /proc/PID/ns, or /proc/PID/task/TID/ns if the second is not zero.
    Namespace(u32, u32, usize),
    /// What it leads to.
    NamespaceItself(u32, u32, usize),
    /// A file in /proc/PID/attr, or /proc/PID/task/TID/attr if the second is not zero.
    Attribute(u32, u32, usize),
    /// A link in /proc/PID/map_files: what is mapped from the one address to the other.
    Mapped(u32, u64, u64),
    /// A control group, by its class.
    Group(u32),
    /// A file of it.
    GroupFile(u32, usize),
    /// An interface of the network, by its number, and what of it.
    Interface(u32, Of),
}

/// What there is of an interface of the network in `/sys`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Of {
    /// The link to it.
    Link,
    /// Its directory.
    All,
    /// The directory of its counts.
    Counts,
    /// The link to where all are.
    Class,
    /// A file, by its number among [`NET_ATTRIBUTES`].
    File(usize),
}

/// Which of the interfaces a directory holds: all, as links, or the directories of those that are virtual or of the others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Interfaces {
    Links,
    Virtual,
    Devices,
}

/// An entry of a fixed tree.
struct Entry {
    name: &'static str,
    /// Index of the directory it is in; 0 is the root, which is in itself.
    parent: usize,
    body: Body,
}

enum Body {
    Dir,
    Text(Text),
    /// Text with names in it that are any bytes.
    Bytes(fn() -> Vec<u8>),
    Setting(Text, Setter),
    Number(&'static Number),
    Link(fn() -> Vec<u8>),
    /// A link that always leads to the same.
    Path(&'static str),
    /// Of a core, by its number.
    Of(usize, OfCore),
    /// Whether a core is used, by its number.
    Core(usize),
    /// A directory of interfaces.
    Interfaces(Interfaces),
}

/// What a file says of a core.
type OfCore = fn(usize) -> String;

/// A limit of the system that its administrator can change (`sysctl(8)`).
pub struct Number {
    value: AtomicU64,
    least: u64,
    most: u64,
}

impl Number {
    /// One that begins with a value, and its bounds.
    pub const fn new(value: u64, least: u64, most: u64) -> Number {
        Number { value: AtomicU64::new(value), least, most }
    }

    /// Its value now.
    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }

    /// Takes a text that is written to it. EINVAL: no number, or out of bounds.
    fn set(&self, bytes: &[u8]) -> Result<()> {
        if current().cred().uid != 0 {
            return Err(Errno::EPERM);
        }
        let text = core::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?;
        let value: u64 = text.trim().parse().map_err(|_| Errno::EINVAL)?;
        if !(self.least..=self.most).contains(&value) {
            return Err(Errno::EINVAL);
        }
        self.value.store(value, Ordering::Relaxed);
        Ok(())
    }
}

/// A fixed tree with, in `/proc`, processes beside it.
struct Tree {
    fs: Arc<MadeFs>,
    entries: Vec<Entry>,
    processes: bool,
}

impl Tree {
    fn new(name: &'static str, magic: u64, dev: u64, processes: bool) -> Self {
        let root = Entry { name: "", parent: 0, body: Body::Dir };
        Tree { fs: Arc::new(MadeFs { name, magic, dev }), entries: alloc::vec![root], processes }
    }

    /// The directory of these interfaces.
    fn interfaces(&self, which: Interfaces) -> Option<What> {
        let is_it = |e: &Entry| matches!(e.body, Body::Interfaces(w) if w == which);
        self.entries.iter().position(is_it).map(What::Fixed)
    }

    /// Adds a file, and the directories that it is in.
    fn add(&mut self, path: &'static str, body: Body) {
        // Where the last one is, from the root on: mostly this one is in the same directories.
        let mut last = Vec::new();
        let mut of = self.entries.len() - 1;
        while of != 0 {
            last.push(of);
            of = self.entries[of].parent;
        }
        let mut at = 0;
        let mut parts = path.split('/').peekable();
        let mut body = Some(body);
        while let Some(name) = parts.next() {
            if parts.peek().is_none() {
                if let Some(body) = body.take() {
                    self.entries.push(Entry { name, parent: at, body });
                }
                return;
            }
            let is_it = |n: usize, e: &Entry| n != 0 && e.parent == at && e.name == name;
            let near = last.pop().filter(|n| is_it(*n, &self.entries[*n]));
            at = match near.or_else(|| (0..self.entries.len()).find(|n| is_it(*n, &self.entries[*n]))) {
                Some(n) => n,
                None => {
                    self.entries.push(Entry { name, parent: at, body: Body::Dir });
                    self.entries.len() - 1
                }
            };
        }
    }
}

/// In which directory an interface's own is, and that one's path.
fn place_of(interface: &Interface) -> (Interfaces, &'static str) {
    if interface.is_virtual {
        (Interfaces::Virtual, VIRTUAL_INTERFACES)
    } else {
        (Interfaces::Devices, DEVICES_OF_HOST)
    }
}

/// On Linux an interface with a device is at the device's place, of which there is none in a cell.
const VIRTUAL_INTERFACES: &str = "devices/virtual/net";
const DEVICES_OF_HOST: &str = "devices/host/net";

/// What a directory of interfaces holds.
fn held(which: Interfaces) -> impl Iterator<Item = (Interface, Of)> {
    let all: Vec<Interface> = interfaces::all().iter().cloned().collect();
    all.into_iter()
        .filter(move |i| which == Interfaces::Links || which == place_of(i).0)
        .map(move |i| (i, if which == Interfaces::Links { Of::Link } else { Of::All }))
}

/// Is this attribute one of the counts?
fn is_count(attribute: usize) -> bool {
    NET_ATTRIBUTES[attribute].starts_with(STATISTICS)
}

/// What the directory of an interface holds, or that of its counts.
fn of_interface(within: Of) -> impl Iterator<Item = Of> {
    let files =
        (0..NET_ATTRIBUTES.len()).filter(move |n| is_count(*n) == (within == Of::Counts)).map(Of::File);
    files.chain([Of::Counts, Of::Class].into_iter().filter(move |_| within == Of::All))
}

/// How that is called; links to an interface and its directory have its name.
fn name_of(of: Of) -> &'static str {
    match of {
        Of::Link | Of::All => "",
        Of::Counts => STATISTICS.trim_end_matches('/'),
        Of::Class => "subsystem",
        Of::File(n) => NET_ATTRIBUTES[n].trim_start_matches(STATISTICS),
    }
}

/// A node of a made-up file system.
struct Node {
    tree: Arc<Tree>,
    what: What,
}

/// The process whose directory this is.
pub fn process_of(file: &atoll_fs::OpenFile) -> Option<Arc<Process>> {
    match file.place()?.inode.as_any().downcast_ref::<Node>()?.what {
        What::Pid(pid, 0) => find_process(pid),
        _ => None,
    }
}

fn node(tree: &Arc<Tree>, what: What) -> InodeRef {
    Arc::new(Node { tree: tree.clone(), what })
}

/// Contents for a process and one of its tasks.
enum PidText {
    Whole(fn(&Arc<Process>, &Arc<Task>) -> String),
    /// The same, with the task's name in it, which is any bytes, and cut wherever that is in a character.
    Named(fn(&Arc<Process>, &Arc<Task>) -> Vec<u8>),
    /// What is known without a task, so of one that has ended, too.
    OfProcess(fn(&Process) -> String),
    /// Of what was used: by a process, its tasks that ended and the children that it waited for included, or by a task. Of one that has
    /// ended, too.
    Used(fn(&Usage) -> String),
    /// Something of each mapping, a part at a time.
    Areas(As),
}

/// What is told of a mapping: what the file of that name does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum As {
    Maps,
    Smaps,
    NumaMaps,
}

/// A file of /proc/PID.
struct PidFile {
    name: &'static str,
    text: PidText,
    /// Only for its owner.
    private: bool,
    /// Also under task/TID.
    per_task: bool,
}

macro_rules! pid_files {
    ($($name:literal $text:expr, $private:literal, $per_task:literal;)*) => {
        &[$(PidFile { name: $name, text: $text, private: $private, per_task: $per_task },)*]
    };
}

static PID_FILES: &[PidFile] = pid_files! {
    "stat" PidText::Named(stat), false, true;
    "statm" PidText::Whole(statm), false, true;
    "status" PidText::Named(status), false, true;
    "maps" PidText::Areas(As::Maps), false, true;
    "smaps" PidText::Areas(As::Smaps), false, true;
    "smaps_rollup" PidText::Whole(smaps_rollup), false, true;
    "numa_maps" PidText::Areas(As::NumaMaps), false, true;
    "limits" PidText::OfProcess(limits), false, true;
    "mounts" PidText::Whole(mounts), false, true;
    "mountinfo" PidText::Whole(mountinfo), false, true;
    "mountstats" PidText::Whole(mountstats), true, false;
    "cgroup" PidText::Whole(cgroup_of), false, true;
    "cpuset" PidText::Whole(|p, _| format!("{}\n", cgroup::path(p))), false, true;
    "oom_score" PidText::Whole(oom_score), false, true;
    "oom_score_adj" PidText::OfProcess(oom_score_adj), false, true;
    "oom_adj" PidText::OfProcess(oom_adj), false, true;
    "io" PidText::Used(io), true, true;
    "wchan" PidText::Whole(wchan), false, true;
    "personality" PidText::OfProcess(personality), true, true;
    "timerslack_ns" PidText::Whole(timer_slack), false, false;
    "coredump_filter" PidText::Whole(dump_filter), false, false;
    "uid_map" PidText::Whole(id_map), false, true;
    "gid_map" PidText::Whole(id_map), false, true;
    "projid_map" PidText::Whole(id_map), false, true;
    "setgroups" PidText::Whole(setgroups), false, true;
    "sched" PidText::Named(sched), false, true;
    "timens_offsets" PidText::Whole(time_offsets), false, false;
    "timers" PidText::OfProcess(timers), false, false;
    "loginuid" PidText::Whole(login_user), false, true;
    "sessionid" PidText::Whole(login_number), false, true;
    "schedstat" PidText::Whole(schedstat), false, true;
    "syscall" PidText::Whole(running), true, true;
    "stack" PidText::Whole(empty), true, true;
};

/// Names of /proc/PID that are not simple texts.
const PID_NAMES: &[&str] = &[
    "cmdline",
    "environ",
    "auxv",
    "comm",
    "exe",
    "cwd",
    "root",
    "fd",
    "fdinfo",
    "task",
    "ns",
    "mem",
    "net",
    "attr",
    "map_files",
    "pagemap",
];
/// Those that only a process has.
const OF_WHOLE: [&str; 2] = ["task", "map_files"];
/// What /proc/PID/attr has, for security modules, of which there is none: each is empty of meaning (EINVAL).
const ATTRIBUTES: [&str; 6] = ["current", "prev", "exec", "fscreate", "keycreate", "sockcreate"];
/// What /proc/PID/ns has (namespaces(7)): name, kind, number, and the kind as clone(2) has it. A cell has one of each, and its numbers are those of the first ones of a
/// machine (`linux/proc_ns.h`): it is all that its programs see.
const NAMESPACES: [(&str, &str, u64, u32); 10] = [
    ("cgroup", "cgroup", 0xefff_fffb, linux::CLONE_NEWCGROUP),
    ("ipc", "ipc", 0xefff_ffff, linux::CLONE_NEWIPC),
    ("mnt", "mnt", 0xefff_fff8, linux::CLONE_NEWNS),
    ("net", "net", 0xefff_fff9, linux::CLONE_NEWNET),
    ("pid", "pid", 0xefff_fffc, linux::CLONE_NEWPID),
    ("pid_for_children", "pid", 0xefff_fffc, linux::CLONE_NEWPID),
    ("time", "time", 0xefff_fffa, linux::CLONE_NEWTIME),
    ("time_for_children", "time", 0xefff_fffa, linux::CLONE_NEWTIME),
    ("user", "user", 0xefff_fffd, linux::CLONE_NEWUSER),
    ("uts", "uts", 0xefff_fffe, linux::CLONE_NEWUTS),
];

/// What such a link says. It is a name, too, which can be looked up beside it.
fn namespace(n: usize) -> String {
    let (_, kind, number, _) = NAMESPACES[n];
    format!("{kind}:[{number}]")
}

/// The kind of namespace that an open file names, as clone(2) has it.
fn namespace_kind(file: &FileRef) -> Option<u32> {
    let place = file.place()?;
    let What::NamespaceItself(_, _, n) = place.inode.as_any().downcast_ref::<Node>()?.what else {
        return None;
    };
    Some(NAMESPACES[n].3)
}

/// What `ioctl_ns(2)` asks of a namespace.
pub enum OfNamespace {
    /// Its kind, as clone(2) has it.
    Kind(u32),
    /// The user namespace that it belongs to.
    User,
    /// Who made the user namespace.
    Owner,
}

/// What a command of `ioctl_ns(2)` asks for, if the file names a namespace. The cell's are the first ones: above them is nobody.
pub fn of_namespace(file: &FileRef, command: u32) -> Option<Result<OfNamespace>> {
    let kind = namespace_kind(file)?;
    let is_user = kind == linux::CLONE_NEWUSER;
    Some(match command {
        NS_GET_NSTYPE => Ok(OfNamespace::Kind(kind)),
        NS_GET_USERNS if is_user => Err(Errno::EPERM),
        NS_GET_USERNS => Ok(OfNamespace::User),
        NS_GET_PARENT if is_user || kind == linux::CLONE_NEWPID => Err(Errno::EPERM),
        NS_GET_PARENT => Err(Errno::EINVAL),
        NS_GET_OWNER_UID if is_user => Ok(OfNamespace::Owner),
        NS_GET_OWNER_UID => Err(Errno::EINVAL),
        _ => return None,
    })
}

const NS_GET_USERNS: u32 = 0xb701;
const NS_GET_PARENT: u32 = 0xb702;
const NS_GET_NSTYPE: u32 = 0xb703;
const NS_GET_OWNER_UID: u32 = 0xb704;

/// Numbers of the raw files among them, behind the simple ones.
const RAW: usize = 1000;
/// Where processes begin in the order of the root directory.
const PROCESSES_AT: u64 = 1 << 20;

fn task_of(pid: u32, tid: u32) -> Result<(Arc<Process>, Arc<Task>)> {
    let p = find_process(pid).ok_or(Errno::ENOENT)?;
    let t = if tid == 0 {
        p.leader().ok_or(Errno::ENOENT)?
    } else {
        find_task(tid).filter(|t| t.process.pid == pid).ok_or(Errno::ENOENT)?
    };
    Ok((p, t))
}

/// The ids in its directory `task`: the first one stays there until somebody waits for the process.
fn tasks_of(p: &Process) -> Vec<u32> {
    let mut ids: Vec<u32> = p.tasks.lock().iter().map(|t| t.tid()).collect();
    if !ids.contains(&p.pid) {
        ids.push(p.pid);
    }
    ids
}

/// A process's first task, if the current one may look into it.
fn looked_at(pid: u32) -> Result<Arc<Task>> {
    let (p, t) = task_of(pid, 0)?;
    if current::try_current().is_some_and(|me| !may_look_at(me, &p)) { Err(Errno::EACCES) } else { Ok(t) }
}

/// May the current task open what is mapped by a link in map_files?
fn may_follow_mapped() -> bool {
    let may = |me: &Task| me.may(linux::CAP_SYS_ADMIN) || me.may(linux::CAP_CHECKPOINT_RESTORE);
    current::try_current().is_none_or(may)
}

impl Node {
    fn entry(&self) -> Option<&Entry> {
        match self.what {
            What::Fixed(n) => self.tree.entries.get(n),
            _ => None,
        }
    }

    /// Which interfaces it holds, if it is a directory of them.
    fn interfaces(&self) -> Option<Interfaces> {
        match self.entry()?.body {
            Body::Interfaces(which) => Some(which),
            _ => None,
        }
    }

    /// A part of its contents, `from` where the one before said, and where the next one begins.
    fn part(&self, from: u64) -> Result<(Vec<u8>, Option<u64>)> {
        if let What::PidFile(pid, tid, n) = self.what
            && let Some(PidText::Areas(which)) = PID_FILES.get(n).map(|file| &file.text)
            && let Ok((_, t)) = task_of(pid, tid)
        {
            let (text, next) = areas(&t, from, *which);
            return Ok((text, next));
        }
        self.contents().map(|bytes| (bytes, None))
    }

    /// Contents of a regular file that are made as a whole.
    fn contents(&self) -> Result<Vec<u8>> {
        match self.what {
            What::Fixed(_) => match self.entry().map(|e| &e.body) {
                Some(Body::Text(f) | Body::Setting(f, _)) => Ok(f().into_bytes()),
                Some(Body::Bytes(f)) => Ok(f()),
                Some(Body::Number(n)) => Ok(format!("{}\n", n.get()).into_bytes()),
                Some(Body::Of(n, f)) => Ok((f(*n) + "\n").into_bytes()),
                Some(Body::Core(n)) => Ok(format!("{}\n", u8::from(atoll_task::is_online(*n))).into_bytes()),
                _ => Err(Errno::EISDIR),
            },
            What::PidFile(pid, tid, n) if n >= RAW => {
                let p = find_process(pid).ok_or(Errno::ESRCH)?;
                if self.kind() == FileType::Directory {
                    return Err(Errno::EISDIR);
                }
                // Who has ended has no memory any more in which these would be.
                let in_memory = |text: fn(&Process, &Task) -> Result<Vec<u8>>| {
                    task_of(pid, 0).map_or(Ok(Vec::new()), |(p, t)| text(&p, &t))
                };
                match PID_NAMES[n - RAW] {
                    "cmdline" => in_memory(command_line),
                    "environ" => in_memory(environment),
                    "auxv" => in_memory(|p, _| Ok(p.image.lock().auxv.clone())),
                    _ => {
                        let mut name = match task_of(pid, tid) {
                            Ok((_, t)) => t.name(),
                            Err(_) if p.zombie().is_some() => p.name_at_end(),
                            Err(e) => return Err(e),
                        };
                        name.push(b'\n');
                        Ok(name)
                    }
                }
            }
            What::PidFile(pid, tid, n) => {
                // A zombie has no task, but it still has a state to tell.
                let p = find_process(pid).ok_or(Errno::ESRCH)?;
                let file = &PID_FILES[n];
                match (&file.text, task_of(pid, tid)) {
                    (PidText::OfProcess(text), _) => Ok(text(&p).into_bytes()),
                    (PidText::Used(text), Ok((_, t))) if tid != 0 => Ok(text(&t.used()).into_bytes()),
                    (PidText::Used(_), _) if tid != 0 => Err(Errno::ESRCH),
                    (PidText::Used(text), _) => Ok(text(&p.used_with_children()).into_bytes()),
                    // Linux lets nobody read another's without the right to set it.
                    (_, Ok((p, _))) if file.name == "timerslack_ns" && !may_slow(&p) => Err(Errno::EPERM),
                    (PidText::Named(text), Ok((p, t))) => Ok(text(&p, &t)),
                    (PidText::Whole(text), Ok((p, t))) => Ok(text(&p, &t).into_bytes()),
                    (_, Err(_)) if matches!(file.name, "stat" | "status") => {
                        Ok(zombie(&p, file.name == "stat"))
                    }
                    (_, Err(_)) if file.name == "statm" => Ok(b"0 0 0 0 0 0 0\n".to_vec()),
                    _ => Ok(Vec::new()),
                }
            }
            What::Fd(pid, fd, true) => {
                let (_, t) = task_of(pid, 0)?;
                let file = t.files.share().get(fd)?;
                let position = if file.file().seekable() { file.with_position(|p| *p) } else { 0 };
                let cloexec = if t.files.share().cloexec(fd)? { linux::O_CLOEXEC } else { 0 };
                let flags = fd::status_flags(&file) | cloexec;
                let mount = file.place().map_or(1, |place| place.mount.id);
                let ino = file.attr().map_or(0, |attr| attr.ino);
                let mut out =
                    format!("pos:\t{position}\nflags:\t0{flags:o}\nmnt_id:\t{mount}\nino:\t{ino}\n");
                fd::locks::tell_of(&file, pid, &mut out);
                file.file().tell(&mut out)?;
                Ok(out.into_bytes())
            }
            What::Interface(number, Of::File(n)) => interfaces::attribute(number, n),
            What::NamespaceItself(..) | What::Attribute(..) => Err(Errno::EINVAL),
            What::GroupFile(class, n) => {
                Ok((cgroup::FILES[n].text)(&Group::of(class).ok_or(Errno::ENODEV)?).into_bytes())
            }
            _ => Err(Errno::EISDIR),
        }
    }

    fn set(&self, bytes: &[u8]) -> Result<()> {
        match self.what {
            What::Fixed(_) => match self.entry().map(|e| &e.body) {
                Some(Body::Setting(_, set)) => set(bytes),
                Some(Body::Number(number)) => number.set(bytes),
                Some(Body::Core(n)) => switch_core(*n, bytes),
                _ => Err(Errno::EACCES),
            },
            What::PidFile(pid, tid, n) if n >= RAW && PID_NAMES[n - RAW] == "comm" => {
                let (_, t) = task_of(pid, tid)?;
                let end = bytes.iter().position(|b| *b == b'\n').unwrap_or(bytes.len());
                t.set_name(&bytes[..end]);
                Ok(())
            }
            What::PidFile(pid, _, n)
                if n < RAW && matches!(PID_FILES[n].name, "oom_score_adj" | "oom_adj") =>
            {
                set_oom_score(pid, bytes, PID_FILES[n].name == "oom_adj")
            }
            What::PidFile(pid, _, n) if n < RAW && PID_FILES[n].name == "loginuid" => set_login(pid, bytes),
            What::PidFile(pid, _, n) if n < RAW && PID_FILES[n].name == "timerslack_ns" => {
                set_timer_slack(pid, bytes)
            }
            What::PidFile(pid, _, n) if n < RAW && PID_FILES[n].name == "coredump_filter" => {
                let value = u32::try_from(number(bytes)?).map_err(|_| Errno::ERANGE)?;
                let p = find_process(pid).ok_or(Errno::ESRCH)?;
                p.dump_filter.store(value & DUMP_FILTERS, Ordering::Relaxed);
                Ok(())
            }
            What::PidFile(_, _, n) if n < RAW => match PID_FILES[n].name {
                // Those of the first namespaces are as they are.
                "uid_map" | "gid_map" | "projid_map" => Err(Errno::EPERM),
                "timens_offsets" if !current().may(linux::CAP_SYS_TIME) => Err(Errno::EPERM),
                "timens_offsets" => Err(Errno::EACCES),
                "setgroups" => match bytes.trim_ascii() {
                    b"allow" => Ok(()),
                    b"deny" => Err(Errno::EPERM),
                    _ => Err(Errno::EINVAL),
                },
                _ => Ok(()),
            },
            What::Attribute(pid, tid, _) => {
                let own = if tid == 0 { pid } else { tid };
                Err(if current().tid() == own { Errno::EINVAL } else { Errno::EACCES })
            }
            _ => Err(Errno::EACCES),
        }
    }

    fn writable(&self) -> bool {
        match self.what {
            What::Fixed(_) => {
                matches!(
                    self.entry().map(|e| &e.body),
                    Some(Body::Setting(..) | Body::Number(_) | Body::Core(_))
                )
            }
            What::PidFile(_, _, n) => {
                let name = if n >= RAW { PID_NAMES[n - RAW] } else { PID_FILES[n].name };
                matches!(
                    name,
                    "comm"
                        | "mem"
                        | "oom_score_adj"
                        | "oom_adj"
                        | "projid_map"
                        | "sched"
                        | "timens_offsets"
                        | "loginuid"
                        | "setgroups"
                        | "uid_map"
                        | "gid_map"
                        | "timerslack_ns"
                        | "coredump_filter"
                )
            }
            What::Attribute(..) => true,
            _ => false,
        }
    }

    fn link(&self) -> Option<Result<Vec<u8>>> {
        match self.what {
            What::Fixed(_) => match self.entry()?.body {
                Body::Link(f) => Some(Ok(f())),
                Body::Path(path) => Some(Ok(path.as_bytes().to_vec())),
                _ => None,
            },
            What::PidFile(pid, _, n) if n >= RAW => {
                let place = |f: fn(&Arc<Task>) -> Vec<u8>| task_of(pid, 0).map(|(_, t)| f(&t));
                match PID_NAMES[n - RAW] {
                    "exe" => Some(find_process(pid).ok_or(Errno::ENOENT).and_then(|p| {
                        let exe = p.image.lock().exe.clone();
                        // Who has ended has no program any more.
                        if exe.is_empty() || p.zombie().is_some() { Err(Errno::ENOENT) } else { Ok(exe) }
                    })),
                    "cwd" => Some(place(|t| t.fs.share().cwd.lock().path())),
                    "root" => Some(place(|t| t.fs.share().root.lock().path())),
                    // Linux has a directory for each network; here all are in one.
                    "net" => Some(Ok(b"/proc/net".to_vec())),
                    _ => None,
                }
            }
            What::Namespace(pid, _, n) => Some(looked_at(pid).map(|_| namespace(n).into_bytes())),
            What::Mapped(pid, start, end) => {
                Some(looked_at(pid).and_then(|t| proc_memory::mapped_path(&t, start, end)))
            }
            What::Interface(_, Of::Class) => Some(Ok(b"../../../../class/net".to_vec())),
            What::Interface(number, Of::Link) => {
                let path = |i: Interface| format!("../../{}/{}", place_of(&i).1, i.name).into_bytes();
                Some(interfaces::find(number).map(path))
            }
            What::Fd(pid, fd, false) => {
                let describe = || -> Result<Vec<u8>> {
                    let (_, t) = task_of(pid, 0)?;
                    Ok(t.files.share().get(fd).map_err(|_| Errno::ENOENT)?.describe())
                };
                Some(describe())
            }
            _ => None,
        }
    }

    fn key(&self) -> u64 {
        match self.what {
            What::Fixed(n) => n as u64 + 1,
            What::Pid(p, t) => 1 << 32 | u64::from(p) << 8 | u64::from(t) << 36,
            What::PidFile(p, t, n) => 2 << 32 | u64::from(p) << 8 | (n as u64 & 0xff) | u64::from(t) << 36,
            What::Fds(p, i) => 3 << 32 | u64::from(p) << 8 | u64::from(i),
            What::Fd(p, f, i) => 4 << 32 | u64::from(p) << 8 ^ u64::from(f) << 40 | u64::from(i),
            What::Tasks(p) => 5 << 32 | u64::from(p) << 8,
            What::Group(class) => 6 << 32 | u64::from(class) << 8,
            What::GroupFile(class, n) => 7 << 32 | u64::from(class) << 8 | n as u64,
            What::Interface(number, of) => {
                let of = match of {
                    Of::Link => 0,
                    Of::All => 1,
                    Of::Counts => 2,
                    Of::Class => 3,
                    Of::File(n) => 16 + n as u64,
                };
                9 << 60 | u64::from(number) << 8 | of
            }
            What::Thread(p, t) => 8 << 32 | u64::from(p) << 8 | u64::from(t) << 36,
            What::Namespace(p, t, n) => 10 << 60 | n as u64 | u64::from(p) << 8 | u64::from(t) << 32,
            What::NamespaceItself(p, t, n) => 11 << 60 | n as u64 | u64::from(p) << 8 | u64::from(t) << 32,
            What::Attribute(p, t, n) => 12 << 60 | n as u64 | u64::from(p) << 8 | u64::from(t) << 32,
            What::Mapped(p, start, _) => 13 << 60 | ((start / PAGE) ^ (u64::from(p) << 36)),
        }
    }

    /// Is it a directory with all that there is of a process, and not only a thread's?
    fn is_whole(&self) -> bool {
        matches!(self.what, What::Pid(_, 0) | What::Thread(..))
    }

    fn pid(&self) -> Option<u32> {
        match self.what {
            What::Fixed(_) | What::Group(_) | What::GroupFile(..) | What::Interface(..) => None,
            What::Pid(p, _)
            | What::Thread(p, _)
            | What::PidFile(p, ..)
            | What::Fds(p, _)
            | What::Fd(p, ..)
            | What::Namespace(p, ..)
            | What::NamespaceItself(p, ..)
            | What::Attribute(p, ..)
            | What::Mapped(p, ..)
            | What::Tasks(p) => Some(p),
        }
    }
}

fn parse_number(name: &[u8]) -> Option<u32> {
    if name.is_empty() || name.len() > 1 && name[0] == b'0' {
        return None;
    }
    core::str::from_utf8(name).ok()?.parse().ok()
}

impl Inode for Node {
    fn id(&self) -> u64 {
        self.key()
    }

    fn kind(&self) -> FileType {
        match self.what {
            What::Fixed(_) => match self.entry().map(|e| &e.body) {
                Some(Body::Dir | Body::Interfaces(_)) | None => FileType::Directory,
                Some(Body::Link(_) | Body::Path(_)) => FileType::Symlink,
                _ => FileType::Regular,
            },
            What::Pid(..) | What::Thread(..) | What::Fds(..) | What::Tasks(_) | What::Group(_) => {
                FileType::Directory
            }
            What::PidFile(_, _, n) if n >= RAW => match PID_NAMES[n - RAW] {
                "exe" | "cwd" | "root" | "net" => FileType::Symlink,
                "ns" | "attr" | "map_files" => FileType::Directory,
                _ => FileType::Regular,
            },
            What::Interface(_, Of::All | Of::Counts) => FileType::Directory,
            What::Interface(_, Of::Link | Of::Class) | What::Namespace(..) | What::Mapped(..) => {
                FileType::Symlink
            }
            What::NamespaceItself(..)
            | What::Attribute(..)
            | What::PidFile(..)
            | What::Fd(_, _, true)
            | What::GroupFile(..)
            | What::Interface(..) => FileType::Regular,
            What::Fd(_, _, false) => FileType::Symlink,
        }
    }

    fn attr(&self) -> Result<Attr> {
        let kind = self.kind();
        let mode = match kind {
            FileType::Directory => match self.what {
                What::Fds(..) => 0o500,
                What::PidFile(_, _, n) if n >= RAW && PID_NAMES[n - RAW] == "ns" => 0o511,
                What::PidFile(_, _, n) if n >= RAW && PID_NAMES[n - RAW] == "map_files" => 0o500,
                _ => 0o555,
            },
            FileType::Symlink => match self.what {
                What::Fd(pid, fd, _) => {
                    // What may be done with the descriptor.
                    let file = task_of(pid, 0)?.1.files.share().get(fd).map_err(|_| Errno::ENOENT)?;
                    let mode = |may: bool, mode: u32| if may { mode } else { 0 };
                    mode(file.readable(), 0o500) | mode(file.writable(), 0o300)
                }
                What::Mapped(pid, start, end) => {
                    let (_, area) =
                        task_of(pid, 0)?.1.space.share().memory.find(start).ok_or(Errno::ENOENT)?;
                    if area.end != end {
                        return Err(Errno::ENOENT);
                    }
                    // What may be done with the mapping: how its file was opened, as Linux tells, is not known any more.
                    let mode = |right, mode: u32| if area.access.contains(right) { mode } else { 0 };
                    mode(Access::READ, 0o400) | mode(Access::WRITE, 0o200)
                }
                _ => 0o777,
            },
            _ => match self.what {
                What::PidFile(_, _, n) if n < RAW && PID_FILES[n].private => 0o400,
                What::PidFile(_, _, n)
                    if n >= RAW && matches!(PID_NAMES[n - RAW], "environ" | "auxv" | "pagemap") =>
                {
                    0o400
                }
                What::PidFile(_, _, n) if n >= RAW && PID_NAMES[n - RAW] == "mem" => 0o600,
                // Who may is asked when it is done.
                What::PidFile(_, _, n) if n < RAW && PID_FILES[n].name == "timerslack_ns" => 0o666,
                What::Attribute(_, _, n) => {
                    if ATTRIBUTES[n] == "prev" {
                        0o444
                    } else {
                        0o666
                    }
                }
                _ if self.writable() => 0o644,
                _ => 0o444,
            },
        };
        let (uid, gid) = match self.pid().and_then(find_process) {
            Some(p) => {
                let ids = p.ids();
                (ids.euid, ids.egid)
            }
            None if self.pid().is_some() => return Err(Errno::ENOENT),
            None => (0, 0),
        };
        let now = Time::now();
        Ok(Attr {
            ino: match self.what {
                // Programs compare them to see whether two processes are in the same one.
                What::NamespaceItself(_, _, n) => NAMESPACES[n].2,
                _ => self.key(),
            },
            dev: self.tree.fs.dev,
            mode: kind as u32 | mode,
            nlink: if kind == FileType::Directory { 2 } else { 1 },
            uid,
            gid,
            blksize: 1024,
            atime: now,
            mtime: now,
            ctime: now,
            ..Attr::default()
        })
    }

    fn set_attr(&self, change: &SetAttr, _cred: &Cred) -> Result<()> {
        // Truncating what is about to be written is what `echo >` does.
        if change.size.is_some() && self.writable() { Ok(()) } else { Err(Errno::EPERM) }
    }

    fn file_system(&self) -> Arc<dyn FileSystem> {
        self.tree.fs.clone()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn create(&self, _name: &[u8], _node: NewNode, _mode: NewMode, _cred: &Cred) -> Result<InodeRef> {
        // A name that is not there can't be.
        Err(if self.tree.processes { Errno::ENOENT } else { Errno::EPERM })
    }

    fn parent(&self) -> Option<InodeRef> {
        let up = match self.what {
            What::Fixed(0) | What::Group(ROOT) => return None,
            What::Group(_) => What::Group(ROOT),
            What::GroupFile(class, _) => What::Group(class),
            What::Fixed(n) => What::Fixed(self.tree.entries[n].parent),
            What::Interface(_, Of::Link) => self.tree.interfaces(Interfaces::Links)?,
            What::Interface(number, Of::All) => {
                self.tree.interfaces(place_of(&interfaces::find(number).ok()?).0)?
            }
            What::Interface(number, Of::File(n)) if is_count(n) => What::Interface(number, Of::Counts),
            What::Interface(number, _) => What::Interface(number, Of::All),
            What::Pid(_, 0) | What::Thread(..) => What::Fixed(0),
            What::Pid(p, _) => What::Tasks(p),
            What::PidFile(p, t, _) => What::Pid(p, t),
            What::Namespace(p, t, _) | What::NamespaceItself(p, t, _) => {
                What::PidFile(p, t, RAW + PID_NAMES.iter().position(|name| *name == "ns")?)
            }
            What::Attribute(p, t, _) => {
                What::PidFile(p, t, RAW + PID_NAMES.iter().position(|name| *name == "attr")?)
            }
            What::Mapped(p, ..) => {
                What::PidFile(p, 0, RAW + PID_NAMES.iter().position(|name| *name == "map_files")?)
            }
            What::Fds(p, _) | What::Tasks(p) => What::Pid(p, 0),
            What::Fd(p, _, i) => What::Fds(p, i),
        };
        Some(node(&self.tree, up))
    }

    fn name(&self) -> Option<Vec<u8>> {
        let number = |n: u32| format!("{n}").into_bytes();
        Some(match self.what {
            What::Fixed(n) => self.tree.entries[n].name.as_bytes().to_vec(),
            What::Pid(p, 0) => number(p),
            What::Pid(_, t) | What::Thread(_, t) => number(t),
            What::PidFile(_, _, n) if n >= RAW => PID_NAMES[n - RAW].as_bytes().to_vec(),
            What::PidFile(_, _, n) => PID_FILES[n].name.as_bytes().to_vec(),
            What::Fds(_, info) => {
                if info {
                    b"fdinfo".to_vec()
                } else {
                    b"fd".to_vec()
                }
            }
            What::Fd(_, fd, _) => number(fd),
            What::Tasks(_) => b"task".to_vec(),
            What::Namespace(_, _, n) => NAMESPACES[n].0.as_bytes().to_vec(),
            What::NamespaceItself(_, _, n) => namespace(n).into_bytes(),
            What::Attribute(_, _, n) => ATTRIBUTES[n].as_bytes().to_vec(),
            What::Mapped(_, start, end) => format!("{start:x}-{end:x}").into_bytes(),
            What::Group(class) => {
                cgroup::groups().into_iter().find(|(n, _)| *n == class).map(|(_, name)| name.into_bytes())?
            }
            What::GroupFile(_, n) => cgroup::FILES[n].name.as_bytes().to_vec(),
            What::Interface(number, Of::Link | Of::All) => interfaces::find(number).ok()?.name.into_bytes(),
            What::Interface(_, of) => name_of(of).as_bytes().to_vec(),
        })
    }

    fn lookup(&self, name: &[u8]) -> Result<InodeRef> {
        let text = core::str::from_utf8(name).map_err(|_| Errno::ENOENT)?;
        let found = match self.what {
            What::Fixed(_) if self.interfaces().is_some() => {
                let mut held = self.interfaces().into_iter().flat_map(held);
                held.find(|(i, _)| i.name == text).map(|(i, of)| What::Interface(i.number, of))
            }
            What::Interface(number, within @ (Of::All | Of::Counts)) => {
                interfaces::find(number)?;
                of_interface(within).find(|of| name_of(*of) == text).map(|of| What::Interface(number, of))
            }
            What::Fixed(at) => {
                let fixed = self
                    .tree
                    .entries
                    .iter()
                    .enumerate()
                    .find(|(n, e)| *n != 0 && e.parent == at && e.name == text)
                    .map(|(n, _)| What::Fixed(n));
                fixed.or_else(|| {
                    if at != 0 || !self.tree.processes {
                        return None;
                    }
                    let id = parse_number(name)?;
                    match find_process(id) {
                        Some(p) => Some(What::Pid(p.pid, 0)),
                        // A task can be named here, too, though it is not listed.
                        None => find_task(id).map(|t| What::Thread(t.process.pid, id)),
                    }
                })
            }
            What::Pid(pid, tid) | What::Thread(pid, tid) => {
                find_process(pid).ok_or(Errno::ENOENT)?;
                let whole = self.is_whole();
                if let Some(n) = PID_FILES.iter().position(|f| f.name == text && (whole || f.per_task)) {
                    Some(What::PidFile(pid, if PID_FILES[n].per_task { tid } else { 0 }, n))
                } else {
                    match text {
                        "fd" => Some(What::Fds(pid, false)),
                        "fdinfo" => Some(What::Fds(pid, true)),
                        _ if !whole && OF_WHOLE.contains(&text) => None,
                        "task" => Some(What::Tasks(pid)),
                        _ => PID_NAMES
                            .iter()
                            .position(|n| *n == text)
                            .map(|n| What::PidFile(pid, tid, RAW + n)),
                    }
                }
            }
            What::Fds(pid, info) => {
                let fd = parse_number(name).ok_or(Errno::ENOENT)?;
                let (_, t) = task_of(pid, 0)?;
                t.files.share().get(fd).map_err(|_| Errno::ENOENT)?;
                Some(What::Fd(pid, fd, info))
            }
            What::Group(class) => {
                Group::of(class).ok_or(Errno::ENODEV)?;
                let file = cgroup::FILES.iter().position(|file| file.name == text);
                file.map(|n| What::GroupFile(class, n)).or_else(|| {
                    let mut groups = cgroup::groups().into_iter().filter(|_| class == ROOT);
                    groups.find(|(_, name)| name == text).map(|(n, _)| What::Group(n))
                })
            }
            What::Tasks(pid) => {
                let tid = parse_number(name).ok_or(Errno::ENOENT)?;
                let process = find_process(pid).ok_or(Errno::ENOENT)?;
                tasks_of(&process).contains(&tid).then_some(What::Pid(pid, tid))
            }
            What::PidFile(p, t, n) if n >= RAW && PID_NAMES[n - RAW] == "attr" => {
                ATTRIBUTES.iter().position(|name| *name == text).map(|n| What::Attribute(p, t, n))
            }
            What::PidFile(p, _, n) if n >= RAW && PID_NAMES[n - RAW] == "map_files" => {
                let t = looked_at(p)?;
                let named = proc_memory::addresses(text);
                named
                    .filter(|(start, end)| proc_memory::mapped_path(&t, *start, *end).is_ok())
                    .map(|(start, end)| What::Mapped(p, start, end))
            }
            What::PidFile(p, t, _) if self.kind() == FileType::Directory => {
                let link = NAMESPACES.iter().position(|(name, ..)| *name == text);
                let itself = || (0..NAMESPACES.len()).find(|n| namespace(*n) == text);
                link.map(|n| What::Namespace(p, t, n))
                    .or_else(|| itself().map(|n| What::NamespaceItself(p, t, n)))
            }
            _ => return Err(Errno::ENOTDIR),
        };
        found.map(|w| node(&self.tree, w)).ok_or(Errno::ENOENT)
    }

    fn list(&self, from: u64, most: usize) -> Result<Vec<DirEntry>> {
        // Each entry has a place of its own, so that a program may close or end what it has read of.
        let mut all: Vec<(u64, Vec<u8>, What)> = Vec::new();
        let number = |n: u32| format!("{n}").into_bytes();
        match self.what {
            What::Fixed(_) if self.interfaces().is_some() => {
                for (i, of) in self.interfaces().into_iter().flat_map(held) {
                    all.push((i.number.into(), i.name.into_bytes(), What::Interface(i.number, of)));
                }
            }
            What::Interface(number, within @ (Of::All | Of::Counts)) => {
                for (n, of) in of_interface(within).enumerate() {
                    let name = name_of(of).as_bytes().to_vec();
                    all.push((n as u64, name, What::Interface(number, of)));
                }
            }
            What::Fixed(at) => {
                for (n, e) in self.tree.entries.iter().enumerate() {
                    if n != 0 && e.parent == at {
                        all.push((n as u64, e.name.as_bytes().to_vec(), What::Fixed(n)));
                    }
                }
                if at == 0 && self.tree.processes {
                    for p in all_processes() {
                        all.push((PROCESSES_AT + u64::from(p.pid), number(p.pid), What::Pid(p.pid, 0)));
                    }
                }
            }
            What::Pid(pid, tid) | What::Thread(pid, tid) => {
                find_process(pid).ok_or(Errno::ENOENT)?;
                let whole = self.is_whole();
                for (n, f) in PID_FILES.iter().enumerate().filter(|(_, f)| whole || f.per_task) {
                    let tid = if f.per_task { tid } else { 0 };
                    all.push((n as u64, f.name.as_bytes().to_vec(), What::PidFile(pid, tid, n)));
                }
                for (n, name) in PID_NAMES.iter().enumerate() {
                    let what = match *name {
                        "fd" => What::Fds(pid, false),
                        "fdinfo" => What::Fds(pid, true),
                        name if !whole && OF_WHOLE.contains(&name) => continue,
                        "task" => What::Tasks(pid),
                        _ => What::PidFile(pid, tid, RAW + n),
                    };
                    all.push(((PID_FILES.len() + n) as u64, name.as_bytes().to_vec(), what));
                }
            }
            What::Fds(pid, info) => {
                let (_, t) = task_of(pid, 0)?;
                let files = t.files.share();
                // One may have no file yet.
                for fd in files.list().into_iter().filter(|fd| files.get(*fd).is_ok()) {
                    all.push((u64::from(fd), number(fd), What::Fd(pid, fd, info)));
                }
            }
            What::Group(class) => {
                for (n, file) in cgroup::FILES.iter().enumerate() {
                    all.push((n as u64, file.name.as_bytes().to_vec(), What::GroupFile(class, n)));
                }
                for (n, name) in cgroup::groups().into_iter().filter(|_| class == ROOT) {
                    all.push(((cgroup::FILES.len() as u32 + n).into(), name.into_bytes(), What::Group(n)));
                }
            }
            What::Tasks(pid) => {
                let p = find_process(pid).ok_or(Errno::ENOENT)?;
                for tid in tasks_of(&p) {
                    all.push((u64::from(tid), number(tid), What::Pid(pid, tid)));
                }
            }
            What::PidFile(p, t, n) if n >= RAW && PID_NAMES[n - RAW] == "attr" => {
                for (n, name) in ATTRIBUTES.iter().enumerate() {
                    all.push((n as u64, name.as_bytes().to_vec(), What::Attribute(p, t, n)));
                }
            }
            What::PidFile(p, _, n) if n >= RAW && PID_NAMES[n - RAW] == "map_files" => {
                let t = looked_at(p)?;
                for row in proc_memory::mapped_files(&t, from, most) {
                    let what = What::Mapped(p, row.start, row.area.end);
                    all.push((row.start, format!("{:x}-{:x}", row.start, row.area.end).into_bytes(), what));
                }
            }
            What::PidFile(p, t, _) if self.kind() == FileType::Directory => {
                for (n, (name, ..)) in NAMESPACES.iter().enumerate() {
                    all.push((n as u64, name.as_bytes().to_vec(), What::Namespace(p, t, n)));
                }
            }
            _ => return Err(Errno::ENOTDIR),
        }
        all.sort_unstable_by_key(|(place, ..)| *place);
        let entries =
            all.into_iter().skip_while(|(place, ..)| *place < from).take(most).map(|(place, name, what)| {
                let node = Node { tree: self.tree.clone(), what };
                DirEntry { name, ino: node.key(), kind: node.kind(), next: place + 1 }
            });
        Ok(entries.collect())
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        self.link().unwrap_or(Err(Errno::EINVAL))
    }

    fn follow(&self) -> Option<Result<Magic>> {
        let of = |pid| task_of(pid, 0).map(|(_, t)| t);
        let is_alive = |p: &Arc<Process>| p.zombie().is_none();
        match self.what {
            What::Fd(pid, fd, false) => Some(
                of(pid).and_then(|t| t.files.share().get(fd).map_err(|_| Errno::ENOENT)).map(Magic::Open),
            ),
            What::PidFile(pid, _, n) if n >= RAW => match PID_NAMES[n - RAW] {
                "exe" => Some(
                    find_process(pid)
                        .filter(is_alive)
                        .and_then(|p| p.image.lock().place.clone())
                        .map(Magic::Place)
                        .ok_or(Errno::ENOENT),
                ),
                "cwd" => Some(of(pid).map(|t| Magic::Place(t.fs.share().cwd.lock().clone()))),
                "root" => Some(of(pid).map(|t| Magic::Place(t.fs.share().root.lock().clone()))),
                _ => None,
            },
            // Else its path is gone.
            What::Mapped(..) if !may_follow_mapped() => Some(Err(Errno::EPERM)),
            _ => None,
        }
    }

    fn open(self: Arc<Self>, flags: u32, _cred: &Cred) -> Result<Arc<dyn File>> {
        if flags & linux::O_ACCMODE != linux::O_RDONLY && !self.writable() {
            return Err(if matches!(self.what, What::NamespaceItself(..)) {
                Errno::EPERM
            } else {
                Errno::EACCES
            });
        }
        let (mut about, mut made) = (None, Made::NOTHING);
        if let What::PidFile(pid, _, n) = self.what
            && let Some(process) = find_process(pid)
        {
            // What is told of memory, and of where it was.
            let over = process.zombie().is_some();
            let name = if n >= RAW { PID_NAMES[n - RAW] } else { PID_FILES[n].name };
            match name {
                "environ" | "auxv" | "mem" | "pagemap" | "smaps_rollup" | "timers" if over => {
                    return Err(Errno::ESRCH);
                }
                "mounts" | "mountinfo" | "mountstats" if over => return Err(Errno::EINVAL),
                "maps" | "smaps" | "smaps_rollup" | "numa_maps" | "environ" | "auxv" if !over => {
                    let visit = process.leader().map(|t| t.space.share().visit()).transpose()?;
                    looked_at(pid)?;
                    let over = if name == "smaps_rollup" { Err(Errno::ESRCH) } else { Ok(0) };
                    about = visit.map(|visit| About::Running { visit, pid, over });
                    if name == "auxv" {
                        made = Made { bytes: self.contents()?, start: 0, next: None };
                        // Another program has begun meanwhile.
                        if about.as_ref().is_none_or(|about| about.over().is_some()) {
                            return Err(Errno::ESRCH);
                        }
                        about = Some(About::Kept);
                    }
                }
                _ => {}
            }
        }
        if let What::PidFile(_, _, n) = self.what
            && n < RAW
            && PID_FILES[n].name == "setgroups"
            && flags & linux::O_ACCMODE != linux::O_RDONLY
            && !current().may(linux::CAP_SYS_ADMIN)
        {
            return Err(Errno::EACCES);
        }
        if let What::PidFile(pid, tid, n) = self.what
            && n >= RAW
            && let name @ ("mem" | "pagemap") = PID_NAMES[n - RAW]
        {
            let (p, t) = task_of(pid, tid)?;
            let visit = t.space.share().visit()?;
            if current::try_current().is_none_or(|me| !may_look_at(me, &p)) {
                return Err(Errno::EACCES);
            }
            if name == "pagemap" {
                return Ok(Arc::new(proc_memory::PageMap { node: self, visit }));
            }
            return Ok(Arc::new(Memory { node: self, visit }));
        }
        Ok(Arc::new(Opened { node: self, made: Mutex::new(made), about }))
    }
}

/// An open /proc/PID/mem: the memory of the program that ran there when it was opened, at its addresses.
struct Memory {
    node: Arc<Node>,
    visit: Visit,
}

/// What is copied from there, or to there, at a time.
const MEMORY_CHUNK: usize = 64 << 10;

impl File for Memory {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn seekable(&self) -> bool {
        true
    }

    fn read(&self, sink: &mut Sink, at: Option<u64>, _nonblock: bool) -> Result<usize> {
        // Of a program that has ended there is nothing.
        let Some(space) = self.visit.space() else { return Ok(0) };
        let mut bytes = alloc::vec![0; sink.left().min(MEMORY_CHUNK)];
        let n = read_memory(current::current(), &space, at.unwrap_or(0), &mut bytes)?;
        if n == 0 && !bytes.is_empty() {
            return Err(Errno::EIO);
        }
        sink.put(&bytes[..n])
    }

    fn write(&self, source: &mut Source, at: At, _nonblock: bool) -> Result<(usize, u64)> {
        let At::Offset(at) = at else { return Err(Errno::EINVAL) };
        let Some(space) = self.visit.space() else { return Ok((0, at)) };
        let mut bytes = alloc::vec![0; source.left().min(MEMORY_CHUNK)];
        let n = source.take(&mut bytes)?;
        let written = write_memory(current::current(), &space, at, &bytes[..n])?;
        if written == 0 && n > 0 {
            return Err(Errno::EIO);
        }
        Ok((written, at + written as u64))
    }

    fn attr(&self) -> Result<Attr> {
        self.node.attr()
    }
}

/// An open made-up file. Its contents are made when it is read from the
/// beginning, and stay the same while it is read on; those that say something of each mapping are made as far as they are read.
struct Opened {
    node: Arc<Node>,
    made: Mutex<Made>,
    about: Option<About>,
}

/// Of which program's memory a file tells. Whoever opened it may have no right to know what comes after that one.
enum About {
    /// The one that ran in this process then; and what reading comes to when it has ended.
    Running { visit: Visit, pid: u32, over: Result<usize> },
    /// It was told at the opening, and stays so.
    Kept,
}

impl About {
    /// What reading comes to if the program has ended, or another one runs in its process, though others are where it was.
    fn over(&self) -> Option<Result<usize>> {
        let About::Running { visit, pid, over } = self else { return None };
        let now = find_process(*pid).and_then(|p| p.leader()).map(|t| t.space.share());
        let same = visit.space().zip(now).is_some_and(|(was, now)| Arc::ptr_eq(&was, &now));
        (!same).then_some(*over)
    }
}

/// A part of a made-up file.
struct Made {
    bytes: Vec<u8>,
    /// Where in the file it begins.
    start: usize,
    /// What follows it; none: nothing does.
    next: Option<u64>,
}

impl Made {
    const NOTHING: Made = Made { bytes: Vec::new(), start: 0, next: Some(0) };

    fn end(&self) -> usize {
        self.start + self.bytes.len()
    }
}

impl File for Opened {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn seekable(&self) -> bool {
        true
    }

    fn read(&self, sink: &mut Sink, at: Option<u64>, _nonblock: bool) -> Result<usize> {
        let at = at.unwrap_or(0) as usize;
        let mut made = self.made.lock();
        let is_kept = matches!(self.about, Some(About::Kept));
        let over = || self.about.as_ref().and_then(About::over);
        if let Some(over) = over() {
            return over;
        }
        if (at == 0 || at < made.start) && !is_kept {
            *made = Made::NOTHING;
        }
        while made.end().saturating_sub(at) < sink.left()
            && let Some(from) = made.next
        {
            let (bytes, next) = self.node.part(from)?;
            if made.end() <= at {
                made.start = made.end();
                made.bytes = bytes;
            } else {
                made.bytes.extend_from_slice(&bytes);
            }
            made.next = next;
        }
        if let Some(over) = over() {
            *made = Made { next: None, ..Made::NOTHING };
            return over;
        }
        match made.bytes.get(at - made.start..) {
            Some(bytes) if !bytes.is_empty() => sink.put(bytes),
            _ => Ok(0),
        }
    }

    fn write(&self, source: &mut Source, _at: At, _nonblock: bool) -> Result<(usize, u64)> {
        let mut bytes = alloc::vec![0; source.left().min(4096)];
        let n = source.take(&mut bytes)?;
        self.node.set(&bytes[..n])?;
        Ok((n, n as u64))
    }

    fn truncate(&self, _len: u64) -> Result<()> {
        // It has no length, and who may write it may say so.
        Ok(())
    }

    fn attr(&self) -> Result<Attr> {
        self.node.attr()
    }
}

fn state_letter(p: &Process, t: &Task) -> (char, &'static str) {
    if ptrace::is_stopped(t) {
        return ('t', "t (tracing stop)");
    }
    match *p.life.lock() {
        Life::Stopped(_) => ('T', "T (stopped)"),
        Life::Zombie(_) => ('Z', "Z (zombie)"),
        Life::Running if t.thread().is_parked() => ('S', "S (sleeping)"),
        Life::Running => ('R', "R (running)"),
    }
}

/// What `stat` or `status` says of a process that has ended: what it used, when it began and whose it was, until it is waited for.
fn zombie(p: &Process, stat: bool) -> Vec<u8> {
    const PF_EXITING: u32 = 4;
    let (pgid, sid) = (p.pgid.load(Ordering::Relaxed), p.sid.load(Ordering::Relaxed));
    let (before, after) = if stat {
        let used = p.divided();
        let ([utime, stime], [cutime, cstime]) = (used.ticks(), p.child_usage.lock().ticks());
        let after = format!(
            ") Z {ppid} {pgid} {sid} 0 -1 {flags} {faults} {children} 0 0 {utime} {stime} {cutime} {cstime} 20 0 1 0 {start} \
             0 0 18446744073709551615 0 0 0 0 0 0 0 0 0 1 0 0 {signal} 0 0 0 0 0 0 0 0 0 0 0 0 0 {status}\n",
            ppid = p.parent_pid(),
            flags = 4194304 | PF_EXITING,
            faults = used.faults,
            children = p.child_usage.lock().faults,
            start = start_ticks(p),
            signal = p.exit_signal.load(Ordering::Relaxed),
            status = p.zombie().unwrap_or(0),
        );
        (format!("{} (", p.pid), after)
    } else {
        let ids = p.ids().clone();
        let after = format!(
            "\nState:\tZ (zombie)\nTgid:\t{pid}\nNgid:\t0\nPid:\t{pid}\nPPid:\t{ppid}\nTracerPid:\t0\n{owner}FDSize:\t0\n\
             Groups:\t{groups}\nNStgid:\t{pid}\nNSpid:\t{pid}\nNSpgid:\t{pgid}\nNSsid:\t{sid}\nThreads:\t1\n",
            pid = p.pid,
            ppid = p.parent_pid(),
            owner = owner(&ids),
            groups = groups(&ids),
        );
        (String::from("Name:\t"), after)
    };
    // A name is cut wherever that is in a character.
    [before.as_bytes(), &p.name_at_end(), after.as_bytes()].concat()
}

/// The lines of `status` that say whose a process is.
fn owner(ids: &Ids) -> String {
    format!(
        "Uid:\t{}\t{}\t{}\t{}\nGid:\t{}\t{}\t{}\t{}\n",
        ids.ruid, ids.euid, ids.suid, ids.fsuid, ids.rgid, ids.egid, ids.sgid, ids.fsgid
    )
}

/// Supplementary groups: there is a space behind each, and one if there is none.
fn groups(ids: &Ids) -> String {
    if ids.groups.is_empty() {
        return String::from(" ");
    }
    ids.groups.iter().map(|g| format!("{g} ")).collect()
}

fn stat(p: &Arc<Process>, t: &Arc<Task>) -> Vec<u8> {
    let (total, resident) = memory_of(t);
    let resident = resident.sum();
    let is_first = t.tid() == p.pid;
    let used = if is_first { p.divided() } else { t.divided() };
    let children = *p.child_usage.lock();
    let ([utime, stime], [cutime, cstime]) = (used.ticks(), children.ticks());
    let policy = t.policy.load(Ordering::Relaxed);
    let (policy, rt) = (policy >> 16, policy & 0xffff);
    let nice = t.nice.load(Ordering::Relaxed);
    // Of real-time threads Linux tells it as less than 0.
    let prio = if rt == 0 { 20 + nice } else { -1 - rt as i32 };
    let (ignored, caught) = p.actions.share().sets();
    let (pending, blocked) = {
        let s = t.signals.lock();
        (s.pending.set(), s.blocked)
    };
    let r = p.image.lock().ranges;
    let (brk, _) = t.space.share().memory.heap_range();
    let threads = p.tasks.lock().len();
    let sid = p.sid.load(Ordering::Relaxed);
    let (tty, foreground) = match (crate::pty::controlling(sid), crate::jobs::console_of(sid)) {
        (Some(own), _) => own,
        (None, None) => (0, u32::MAX),
        (None, Some(group)) => (34816, group),
    };
    let after = format!(
        ") {state} {ppid} {pgid} {sid} {tty} {fg} 4194304 {faults} {children} 0 0 {utime} {stime} {cutime} {cstime} \
         {prio} {nice} {threads} 0 {start} {total} {rss} 18446744073709551615 0 0 {stack} 0 0 {pending} {blocked} \
         {ignored} {caught} 0 0 0 {signal} {cpu} {rt} {policy} 0 0 0 0 0 {brk} {a0} {a1} {e0} {e1} 0\n",
        state = state_letter(p, t).0,
        ppid = p.parent_pid(),
        pgid = p.pgid.load(Ordering::Relaxed),
        fg = foreground as i32,
        faults = used.faults,
        children = children.faults,
        start = start_ticks(p),
        rss = resident / PAGE,
        stack = r[0],
        // Real-time signals don't count in these masks.
        pending = pending & 0x7fff_ffff,
        blocked = blocked & 0x7fff_ffff,
        ignored = ignored & 0x7fff_ffff,
        caught = caught & 0x7fff_ffff,
        signal = if is_first { p.exit_signal.load(Ordering::Relaxed) as i32 } else { -1 },
        cpu = t.thread().core(),
        a0 = r[1],
        a1 = r[2],
        e0 = r[3],
        e1 = r[4],
    );
    [format!("{} (", t.tid()).as_bytes(), &t.name(), after.as_bytes()].concat()
}

/// A program's arguments as they are now: it may have written a title over them, and on over its environment
/// (`setproctitle(3)`).
fn command_line(p: &Process, t: &Task) -> Result<Vec<u8>> {
    let image = p.image.lock();
    let [_, start, end, _, all] = image.ranges;
    if all == 0 {
        // They aren't in its memory yet.
        return Ok(image.cmdline.clone());
    }
    drop(image);
    let text = text_at(t, start, end)?;
    if text.last().is_none_or(|last| *last == 0) {
        return Ok(text);
    }
    let mut text = text_at(t, start, all.min(start + PAGE))?;
    let first = text.iter().position(|byte| *byte == 0);
    text.truncate(first.map_or(text.len(), |at| at + 1));
    Ok(text)
}

/// What is in a program's memory from one address to another, as far as there is any.
fn text_at(t: &Task, from: u64, to: u64) -> Result<Vec<u8>> {
    let mut text = atoll_mem::buffer(to.saturating_sub(from) as usize)?;
    let n = t.space.share().memory.look_at(from, &mut text);
    text.truncate(n);
    Ok(text)
}

/// A program's environment as it is now.
fn environment(p: &Process, t: &Task) -> Result<Vec<u8>> {
    let image = p.image.lock();
    let [.., start, end] = image.ranges;
    if end == 0 {
        // It isn't in its memory yet.
        return Ok(image.environ.clone());
    }
    drop(image);
    text_at(t, start, end)
}

/// How many open files there are, of how many (proc_sys_fs(5)).
fn open_files() -> String {
    let of = |p: &Arc<Process>| p.leader().map_or(0, |t| t.files.share().list().len());
    let all: usize = all_processes().iter().map(of).sum();
    format!("{all}\t0\t9223372036854775807\n")
}

fn semaphore_limits() -> String {
    format!("{}\t{}\t{}\t{}\n", sem::SET_MAX, sem::SEMAPHORES_MAX, sem::OPERATIONS_MAX, sem::SETS_MAX)
}

/// Bytes that are mapped, and what of them is in memory.
fn memory_of(t: &Task) -> (u64, Residence) {
    let space = t.space.share();
    (space.memory.total(), space.memory.residence(0, u64::MAX))
}

fn statm(_p: &Arc<Process>, t: &Arc<Task>) -> String {
    let (total, resident) = memory_of(t);
    let shared = resident.file.sum() + resident.shared_memory.sum();
    format!("{} {} {} 0 0 {} 0\n", total / PAGE, resident.sum() / PAGE, shared / PAGE, total / PAGE)
}

/// A set of cores as Linux writes it: as hexadecimal words of 32 bits, and as a list of ranges.
fn core_set(set: &CoreSet) -> (String, String) {
    let cores = atoll_task::cores();
    let has = |n: usize| n < cores && has_core(set, n);
    let mut mask = String::new();
    for word in (0..cores.div_ceil(32)).rev() {
        let bits = (set[word / 2] >> (word % 2 * 32)) as u32;
        let digits = (cores - word * 32).min(32).div_ceil(4);
        let comma = if mask.is_empty() { "" } else { "," };
        // A string takes whatever is written to it.
        let _ = write!(mask, "{comma}{bits:0digits$x}");
    }
    let mut list = String::new();
    for from in (0..cores).filter(|n| has(*n) && (*n == 0 || !has(*n - 1))) {
        let to = (from..cores).take_while(|n| has(*n)).last().unwrap_or(from);
        let comma = if list.is_empty() { "" } else { "," };
        let _ = if from == to { write!(list, "{comma}{from}") } else { write!(list, "{comma}{from}-{to}") };
    }
    (mask, list)
}

fn status(p: &Arc<Process>, t: &Arc<Task>) -> Vec<u8> {
    let (total, resident) = memory_of(t);
    let peak = t.space.share().memory.peak().max(resident.sum());
    let ids = t.ids().clone();
    let caps = ids.capabilities;
    let (ignored, caught) = p.actions.share().sets();
    let (pending, blocked) = {
        let s = t.signals.lock();
        (s.pending.set(), s.blocked)
    };
    let shared = p.pending.lock().set();
    let (mask, list) = core_set(&affinity(t));
    let (voluntary, forced) = t.thread().switches();
    let (seccomp, filters) = t.filters.status();
    let kb = |b: u64| b >> 10;
    let after = format!(
        "\nUmask:\t{umask:04o}\nState:\t{state}\nTgid:\t{pid}\nNgid:\t0\nPid:\t{tid}\nPPid:\t{ppid}\n\
         TracerPid:\t{tracer}\n{owner}FDSize:\t{slots}\nGroups:\t{groups}\n\
         NStgid:\t{pid}\nNSpid:\t{tid}\nNSpgid:\t{pgid}\nNSsid:\t{sid}\nVmPeak:\t{vp:8} kB\nVmSize:\t{vs:8} kB\n\
         VmLck:\t{locked:8} kB\nVmPin:\t       0 kB\nVmHWM:\t{hwm:8} kB\nVmRSS:\t{rss:8} kB\nRssAnon:\t{anon:8} kB\n\
         RssFile:\t{file:8} kB\nRssShmem:\t{shmem:8} kB\nVmData:\t{data:8} kB\nVmStk:\t     132 kB\nVmExe:\t       0 kB\n\
         VmLib:\t       0 kB\nVmPTE:\t       0 kB\nVmSwap:\t       0 kB\nThreads:\t{threads}\nSigQ:\t0/96365\n\
         SigPnd:\t{pending:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\n\
         SigCgt:\t{caught:016x}\nCapInh:\t{inheritable:016x}\nCapPrm:\t{permitted:016x}\nCapEff:\t{effective:016x}\n\
         CapBnd:\t{bounding:016x}\nCapAmb:\t{ambient:016x}\nNoNewPrivs:\t{no_new}\nSeccomp:\t{seccomp}\nSeccomp_filters:\t{filters}\n\
         Cpus_allowed:\t{mask}\nCpus_allowed_list:\t{list}\nMems_allowed:\t1\nMems_allowed_list:\t0\n\
         voluntary_ctxt_switches:\t{voluntary}\nnonvoluntary_ctxt_switches:\t{forced}\n",
        slots = t.files.share().slots(),
        umask = t.fs.share().umask.load(Ordering::Relaxed),
        state = state_letter(p, t).1,
        tracer =
            ptrace::tracer(t).map_or(0, |(tracer, thread)| if thread == 0 { tracer.pid } else { thread }),
        pid = p.pid,
        tid = t.tid(),
        ppid = p.parent_pid(),
        owner = owner(&ids),
        groups = groups(&ids),
        pgid = p.pgid.load(Ordering::Relaxed),
        sid = p.sid.load(Ordering::Relaxed),
        locked = kb(t.space.share().memory.locked(0, u64::MAX)),
        vp = kb(total),
        vs = kb(total),
        data = kb(t.space.share().memory.data()),
        hwm = kb(peak),
        rss = kb(resident.sum()),
        anon = kb(resident.anonymous.sum()),
        file = kb(resident.file.sum()),
        shmem = kb(resident.shared_memory.sum()),
        threads = p.tasks.lock().len(),
        inheritable = caps.inheritable,
        permitted = caps.permitted,
        effective = caps.effective,
        bounding = caps.bounding,
        ambient = caps.ambient,
        no_new = u32::from(caps.no_new_privileges),
    );
    [b"Name:\t", &*t.name(), after.as_bytes()].concat()
}

/// How many areas are told of at a time.
const AREAS: usize = 64;

/// Says something of the areas from `from` on, and from where to go on.
fn areas(t: &Arc<Task>, from: u64, which: As) -> (Vec<u8>, Option<u64>) {
    let space = t.space.share();
    let (rows, next) = named_areas(t, from, AREAS);
    let (mut out, mut text) = (Vec::new(), String::new());
    if which == As::NumaMaps {
        rows.iter().for_each(|row| proc_memory::put_numa_line(&mut out, &space.memory, row));
        return (out, next);
    }
    for NamedArea { start, area, offset, id, name } in rows {
        text.clear();
        head(&mut text, start, &area, offset, id, !name.is_empty());
        out.extend_from_slice(text.as_bytes());
        // A path is any bytes, and a line is a line (`seq_file_path` of Linux).
        for byte in name {
            match byte {
                b'\n' => out.extend_from_slice(b"\\012"),
                other => out.push(other),
            }
        }
        out.push(b'\n');
        if which == As::Smaps {
            text.clear();
            tell_area(&mut text, &space.memory, start, &area);
            out.extend_from_slice(text.as_bytes());
        }
    }
    (out, next)
}

/// A mapping with what it is called.
pub struct NamedArea {
    /// Its first address.
    pub start: u64,
    /// What it is.
    pub area: Area,
    /// Where in its file it begins, bytes.
    pub offset: u64,
    /// Device and inode of that, or zeroes.
    pub id: (u64, u64),
    /// Its file's path, or a name in brackets; empty: none.
    pub name: Vec<u8>,
}

/// Up to `most` mappings from an address on, and where the next ones begin.
pub fn named_areas(t: &Task, from: u64, most: usize) -> (Vec<NamedArea>, Option<u64>) {
    let space = t.space.share();
    let rows = space.memory.areas_from(from, most);
    let next = if rows.len() < most { None } else { rows.last().map(|(_, area)| area.end) };
    let files: Vec<(u64, u64)> = rows
        .iter()
        .filter_map(|(_, area)| match &area.kind {
            Kind::File { file, .. } => Some(file.describe()),
            _ => None,
        })
        .filter_map(|(path, dev, ino)| path.is_empty().then_some((dev, ino)))
        .collect();
    let places = if files.is_empty() { Vec::new() } else { paths_of(t, &files) };
    // Where the file systems of the cell's memory are mounted that files were found on, by device.
    let mut targets: Vec<(u64, Vec<u8>)> = Vec::new();
    let mut out = Vec::with_capacity(rows.len());
    for (start, area) in rows {
        let (file, offset) = match &area.kind {
            Kind::File { file, offset } => (Some(file.clone()), *offset),
            Kind::Object { file, offset, .. } => (file.clone(), *offset),
            Kind::Anonymous => (None, 0),
        };
        let (path, dev, ino) = file.map_or((Vec::new(), 0, 0), |f| f.describe());
        let name = if !area.name.is_empty() {
            area.name.as_bytes().to_vec()
        } else if path.is_empty() {
            places.iter().find(|(d, i, _)| (*d, *i) == (dev, ino)).map_or(Vec::new(), |(_, _, p)| p.clone())
        } else {
            // Files in the cell's memory know their paths as far as their own file system goes.
            if !targets.iter().any(|(d, _)| *d == dev) {
                let mut own = world().tree.mounts().filter(|m| m.fs.name() == "tmpfs");
                let mount = own.find(|m| m.root.identity().is_ok_and(|(d, _)| d == dev));
                let target = mount.map_or(&b""[..], |m| m.target.strip_suffix(b"/").unwrap_or(&m.target));
                targets.push((dev, target.to_vec()));
            }
            let target = targets.iter().find(|(d, _)| *d == dev).map_or(&b""[..], |(_, target)| target);
            [target, &path].concat()
        };
        out.push(NamedArea { start, area, offset, id: (dev, ino), name });
    }
    (out, next)
}

/// Paths that are known of these files, and of the program: device, inode, path.
fn paths_of(t: &Task, files: &[(u64, u64)]) -> Vec<(u64, u64, Vec<u8>)> {
    let image = t.process.image.lock();
    let mut out = Vec::new();
    if let Some(place) = &image.place
        && let Ok(a) = place.inode.attr()
    {
        out.push((a.dev, a.ino, image.exe.clone()));
    }
    drop(image);
    out.extend(atoll_fs::host::known_paths(files));
    out
}

/// Puts a number in hexadecimal, of 8 digits at least. There may be many, and `core::fmt` takes its time.
fn put_hex(out: &mut String, n: u64) {
    let digits = (64 - n.leading_zeros()).div_ceil(4).max(8);
    for at in (0..digits).rev() {
        out.push(char::from_digit((n >> (4 * at)) as u32 & 0xf, 16).unwrap_or('?'));
    }
}

/// Puts a line of smaps: KiB, after a name with blanks behind it.
fn put_kib(out: &mut String, name: &str, bytes: u64) {
    let (mut digits, mut at, mut left) = ([b' '; 20], 20, bytes >> 10);
    loop {
        at -= 1;
        digits[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    out.push_str(name);
    out.push_str(core::str::from_utf8(&digits[at.min(12)..]).unwrap_or("?"));
    out.push_str(" kB\n");
}

/// An area's line in maps, up to its name, if it has one.
fn head(out: &mut String, start: u64, area: &Area, offset: u64, (dev, ino): (u64, u64), has_name: bool) {
    let c = |a: Access, c: char| if area.access.contains(a) { c } else { '-' };
    let begun = out.len();
    put_hex(out, start);
    out.push('-');
    put_hex(out, area.end);
    out.push(' ');
    out.push(c(Access::READ, 'r'));
    out.push(c(Access::WRITE, 'w'));
    out.push(c(Access::EXEC, 'x'));
    out.push(if area.shared && area.name != "[vdso]" { 's' } else { 'p' });
    out.push(' ');
    put_hex(out, offset);
    let _ = write!(out, " {:02x}:{:02x} {ino}", dev >> 8 & 0xfff, dev & 0xff);
    // Names stand in column 74, as Linux pads them.
    let width = if has_name { 73 } else { out.len() - begun + 1 };
    for _ in out.len() - begun..width {
        out.push(' ');
    }
}

/// The lines of smaps below an area's head.
fn tell_area(out: &mut String, memory: &AddressSpace, start: u64, area: &Area) {
    put_kib(out, "Size:           ", area.end - start);
    out.push_str("KernelPageSize:        4 kB\nMMUPageSize:           4 kB\n");
    add_residence(out, &memory.residence(start, area.end));
    let locked = memory.locked(start, area.end);
    put_kib(out, "Locked:         ", locked);
    out.push_str("VmFlags:");
    let flags = [(Access::READ, " rd"), (Access::WRITE, " wr"), (Access::EXEC, " ex")];
    for (_, text) in flags.iter().filter(|(a, _)| area.access.contains(*a)) {
        out.push_str(text);
    }
    out.push_str(if area.shared { " sh mr mw me ms " } else { " mr mw me " });
    out.push_str(if area.grows { "gd " } else { "" });
    out.push_str(if locked > 0 { "lo \n" } else { "\n" });
}

/// The lines of smaps that say what is in memory.
fn add_residence(out: &mut String, r: &Residence) {
    let both = |f: fn(&Share) -> u64| (f(&r.file), f(&r.anonymous) + f(&r.shared_memory));
    let ((shared_clean, shared_dirty), (private_clean, private_dirty)) =
        (both(|s| s.others), both(|s| s.own));
    for (name, bytes) in [
        ("Rss:            ", r.sum()),
        ("Pss:            ", r.proportional),
        ("Shared_Clean:   ", shared_clean),
        ("Shared_Dirty:   ", shared_dirty),
        ("Private_Clean:  ", private_clean),
        ("Private_Dirty:  ", private_dirty),
        ("Referenced:     ", r.sum()),
        ("Anonymous:      ", r.anonymous.sum()),
        ("Swap:           ", 0),
    ] {
        put_kib(out, name, bytes);
    }
}

fn smaps_rollup(_p: &Arc<Process>, t: &Arc<Task>) -> String {
    let mut out = String::from("00010000-7ffffffff000 ---p 00000000 00:00 0                  [rollup]\n");
    add_residence(&mut out, &memory_of(t).1);
    out
}

fn limits(p: &Process) -> String {
    const NAMES: [(&str, &str); 16] = [
        ("Max cpu time", "seconds"),
        ("Max file size", "bytes"),
        ("Max data size", "bytes"),
        ("Max stack size", "bytes"),
        ("Max core file size", "bytes"),
        ("Max resident set", "bytes"),
        ("Max processes", "processes"),
        ("Max open files", "files"),
        ("Max locked memory", "bytes"),
        ("Max address space", "bytes"),
        ("Max file locks", "locks"),
        ("Max pending signals", "signals"),
        ("Max msgqueue size", "bytes"),
        ("Max nice priority", ""),
        ("Max realtime priority", ""),
        ("Max realtime timeout", "us"),
    ];
    let mut out =
        String::from("Limit                     Soft Limit           Hard Limit           Units     \n");
    let show = |n: u64| if n == u64::MAX { String::from("unlimited") } else { format!("{n}") };
    for (l, (name, unit)) in p.limits.lock().iter().zip(NAMES) {
        let _ = writeln!(out, "{name:<25} {:<20} {:<20} {unit:<10}", show(l.cur), show(l.max));
    }
    out
}

/// A name as the tables of mounts have it: what would end it, or could be taken for the end of a line, by its number (`mangle` and
/// `seq_path` of Linux). A source that begins with # isn't to look like a comment.
fn mangled(name: &[u8], is_source: bool) -> String {
    let mut out = String::new();
    for c in String::from_utf8_lossy(name).chars() {
        match c {
            ' ' | '\t' | '\n' | '\\' => drop(write!(out, "\\{:03o}", u32::from(c))),
            '#' if is_source => out.push_str("\\043"),
            _ => out.push(c),
        }
    }
    out
}

fn mounts(_p: &Arc<Process>, _t: &Arc<Task>) -> String {
    let mut out = String::new();
    for m in world().tree.mounts() {
        let (source, target) = (mangled(&m.source, true), mangled(&m.target, false));
        let mode = if m.read_only { "ro" } else { "rw" };
        let _ = writeln!(out, "{source} {target} {} {mode},relatime 0 0", m.fs.name());
    }
    out
}

fn mountinfo(_p: &Arc<Process>, _t: &Arc<Task>) -> String {
    let mut out = String::new();
    for m in world().tree.mounts() {
        let mode = if m.read_only { "ro" } else { "rw" };
        let parent = if m.id == 1 { 0 } else { 1 };
        let dev = m.root.attr().map_or(0, |a| a.dev);
        let _ = writeln!(
            out,
            "{} {parent} {}:{} / {} {mode},relatime - {} {} {mode}",
            m.id,
            dev >> 8 & 0xfff,
            dev & 0xff,
            mangled(&m.target, false),
            m.fs.name(),
            mangled(&m.source, true)
        );
    }
    out
}

/// File systems over a network would say more.
fn mountstats(_p: &Arc<Process>, _t: &Arc<Task>) -> String {
    let mut out = String::new();
    for m in world().tree.mounts() {
        let (source, target) = (mangled(&m.source, true), mangled(&m.target, false));
        let _ = writeln!(out, "device {source} mounted on {target} with fstype {}", m.fs.name());
    }
    out
}

fn cgroup_of(p: &Arc<Process>, _t: &Arc<Task>) -> String {
    format!("0::{}\n", cgroup::path(p))
}

fn empty(_p: &Arc<Process>, _t: &Arc<Task>) -> String {
    String::new()
}

fn running(_p: &Arc<Process>, _t: &Arc<Task>) -> String {
    String::from("running\n")
}

fn oom_score(p: &Arc<Process>, _t: &Arc<Task>) -> String {
    format!("{}\n", crate::budget::oom_score(p))
}

fn oom_score_adj(p: &Process) -> String {
    format!("{}\n", p.oom_score_adj.load(Ordering::Relaxed))
}

/// The same as it was once told: from -17, never, to 15.
fn oom_adj(p: &Process) -> String {
    let score = p.oom_score_adj.load(Ordering::Relaxed);
    format!("{}\n", if score == 1000 { 15 } else { score * 17 / 1000 })
}

/// Sets `oom_score_adj`, or in its `old` form `oom_adj` (`__set_oom_adj` and `oom_adj_write` of Linux).
fn set_oom_score(pid: u32, bytes: &[u8], old: bool) -> Result<()> {
    let text = core::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?;
    let value: i32 = text.trim().parse().map_err(|_| Errno::EINVAL)?;
    if !(if old { -17..=15 } else { -1000..=1000 }).contains(&value) {
        return Err(Errno::EINVAL);
    }
    let value = match value {
        15 if old => 1000,
        _ if old => value * 1000 / 17,
        _ => value,
    };
    let p = find_process(pid).ok_or(Errno::ESRCH)?;
    let may = crate::current::try_current().is_none_or(|t| t.may(linux::CAP_SYS_RESOURCE));
    // As low as somebody set it who may, and no lower; in the old form, not lower than it is.
    let least = if old { &p.oom_score_adj } else { &p.oom_score_adj_min };
    if !may && value < least.load(Ordering::Relaxed) {
        return Err(Errno::EACCES);
    }
    if may && !old {
        p.oom_score_adj_min.store(value, Ordering::Relaxed);
    }
    p.oom_score_adj.store(value, Ordering::Relaxed);
    Ok(())
}

/// See proc_pid_io(5).
fn io(used: &Usage) -> String {
    let Usage { moved: [rchar, wchar], calls: [syscr, syscw], stored: [read, write], .. } = used;
    format!(
        "rchar: {rchar}\nwchar: {wchar}\nsyscr: {syscr}\nsyscw: {syscw}\nread_bytes: {read}\nwrite_bytes: {write}\n\
         cancelled_write_bytes: 0\n"
    )
}

fn wchan(_p: &Arc<Process>, _t: &Arc<Task>) -> String {
    String::from("0")
}

fn personality(p: &Process) -> String {
    format!("{:08x}\n", p.persona.load(Ordering::Relaxed))
}

/// What `/proc/PID/coredump_filter` can have (core(5)).
const DUMP_FILTERS: u32 = 0x1ff;

/// A number as the files of a process take one: decimal, hexadecimal behind "0x", octal behind "0".
fn number(bytes: &[u8]) -> Result<u64> {
    let text = core::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?;
    let text = text.strip_suffix('\n').unwrap_or(text);
    let text = text.strip_prefix('+').unwrap_or(text);
    let (digits, radix) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&text[2..], 16),
        [b'0', _, ..] => (&text[1..], 8),
        _ => (text, 10),
    };
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        return Err(Errno::EINVAL);
    }
    u64::from_str_radix(digits, radix).map_err(|_| Errno::ERANGE)
}

fn dump_filter(p: &Arc<Process>, _t: &Arc<Task>) -> String {
    format!("{:08x}\n", p.dump_filter.load(Ordering::Relaxed))
}

fn timer_slack(_: &Arc<Process>, t: &Arc<Task>) -> String {
    format!("{}\n", t.slack.load(Ordering::Relaxed))
}

/// May the current task see and change the timer slack of a process?
fn may_slow(p: &Process) -> bool {
    let me = current();
    me.process.pid == p.pid || me.may(linux::CAP_SYS_NICE)
}

fn set_timer_slack(pid: u32, bytes: &[u8]) -> Result<()> {
    let (p, t) = task_of(pid, 0)?;
    let text = core::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?;
    let value: u64 = text.trim().parse().map_err(|_| Errno::EINVAL)?;
    if !may_slow(&p) {
        return Err(Errno::EPERM);
    }
    t.slack.store(if value == 0 { t.usual_slack } else { value }, Ordering::Relaxed);
    Ok(())
}

fn id_map(_p: &Arc<Process>, _t: &Arc<Task>) -> String {
    String::from("         0          0 4294967295\n")
}

fn setgroups(_p: &Arc<Process>, _t: &Arc<Task>) -> String {
    String::from("allow\n")
}

fn login_user(p: &Arc<Process>, _t: &Arc<Task>) -> String {
    format!("{}", p.login()[0])
}

fn login_number(p: &Arc<Process>, _t: &Arc<Task>) -> String {
    format!("{}", p.login()[1])
}

/// What of Linux's scheduler there is here, too.
fn sched(p: &Arc<Process>, t: &Arc<Task>) -> Vec<u8> {
    let (voluntary, forced) = t.thread().switches();
    let policy = t.policy.load(Ordering::Relaxed);
    let (policy, real_time) = (policy >> 16, policy & 0xffff);
    let priority = if real_time == 0 {
        120 + i64::from(t.nice.load(Ordering::Relaxed))
    } else {
        99 - i64::from(real_time)
    };
    let ran = t.used().run_ns;
    let mut after = format!(" ({}, #threads: {})\n", t.tid(), p.tasks.lock().len());
    // A string takes whatever is written to it.
    let _ = writeln!(after, "{:-<67}", "");
    let _ = writeln!(after, "{:45}:{:14}.{:06}", "se.sum_exec_runtime", ran / 1_000_000, ran % 1_000_000);
    for (name, value) in [
        ("nr_switches", (voluntary + forced) as i64),
        ("nr_voluntary_switches", voluntary as i64),
        ("nr_involuntary_switches", forced as i64),
        ("policy", policy.into()),
        ("prio", priority),
    ] {
        let _ = writeln!(after, "{name:45}:{value:21}");
    }
    [&*t.name(), after.as_bytes()].concat()
}

/// There is one time for all.
fn time_offsets(_p: &Arc<Process>, _t: &Arc<Task>) -> String {
    ["monotonic", "boottime"].iter().map(|clock| format!("{clock:<10} {:>10} {:>9}\n", 0, 0)).collect()
}

/// The process's POSIX timers, those that were made last first.
fn timers(p: &Process) -> String {
    let mut out = String::new();
    for (id, timer) in p.timers.lock().iter().rev() {
        let (how, whom, whose) = timer.notice();
        let (signal, value) = (timer.event.signo, timer.event.value);
        // A string takes whatever is written to it.
        let _ = writeln!(
            out,
            "ID: {id}\nsignal: {signal}/{value:016x}\nnotify: {how}/{whom}.{}\nClockID: {}",
            whose.unwrap_or(p.pid),
            timer.clock
        );
    }
    out
}

/// A process says whose login it belongs to, from now on and with all that it makes (`audit_set_loginuid` in Linux).
fn set_login(pid: u32, bytes: &[u8]) -> Result<()> {
    static LAST: AtomicU32 = AtomicU32::new(0);
    let me = current();
    if me.process.pid != pid {
        return Err(Errno::EPERM);
    }
    let text = core::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?;
    let user: u32 = text.strip_suffix('\n').unwrap_or(text).parse().map_err(|_| Errno::EINVAL)?;
    if me.process.login()[0] != u32::MAX && !me.may(linux::CAP_AUDIT_CONTROL) {
        return Err(Errno::EPERM);
    }
    let number = if user == u32::MAX { user } else { LAST.fetch_add(1, Ordering::Relaxed) + 1 };
    for (word, value) in me.process.login.iter().zip([user, number]) {
        word.store(value, Ordering::Relaxed);
    }
    Ok(())
}

fn schedstat(_p: &Arc<Process>, t: &Arc<Task>) -> String {
    let (a, b) = t.thread().switches();
    format!("{} 0 {}\n", t.used().run_ns, a + b)
}

fn cpuinfo() -> String {
    let cpu = &world().cpu;
    let mut out = String::new();
    let id = core::arch::x86_64::__cpuid(0);
    let vendor: Vec<u8> = [id.ebx, id.edx, id.ecx].iter().flat_map(|w| w.to_le_bytes()).collect();
    let sig = core::arch::x86_64::__cpuid(1).eax;
    let family = (sig >> 8 & 0xf) + if sig >> 8 & 0xf == 0xf { sig >> 20 & 0xff } else { 0 };
    let model = sig >> 4 & 0xf | sig >> 12 & 0xf0;
    let cores = atoll_task::cores_online();
    for n in (0..atoll_task::cores()).filter(|n| atoll_task::is_online(*n)) {
        let _ = write!(
            out,
            "processor\t: {n}\nvendor_id\t: {}\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: {}\n\
             stepping\t: {}\ncpu MHz\t\t: {}.{:03}\ncache size\t: 0 KB\nphysical id\t: 0\nsiblings\t: {cores}\n\
             core id\t\t: {n}\ncpu cores\t: {cores}\napicid\t\t: {n}\ninitial apicid\t: {n}\nfpu\t\t: yes\n\
             fpu_exception\t: yes\ncpuid level\t: {}\nwp\t\t: yes\nflags\t\t: {}\nbugs\t\t:\nbogomips\t: {}.00\n\
             clflush size\t: 64\ncache_alignment\t: 64\naddress sizes\t: 46 bits physical, 48 bits virtual\n\
             power management:\n\n",
            String::from_utf8_lossy(&vendor),
            cpu.model,
            sig & 0xf,
            cpu.khz / 1000,
            cpu.khz % 1000,
            id.eax,
            cpu.flags,
            cpu.khz / 500,
        );
    }
    out
}

/// Heads of tables about the network, which is all that is in them where the cell has none.
const NET_DEV: &str = "Inter-|   Receive                                                |  Transmit\n face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n";
const NET_ROUTE: &str =
    "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n";

const NET_ARP: &str = "IP address       HW type     Flags       HW address            Mask     Device\n";

/// A table about the network: the host's, in the network that the cell is in.
fn net_table(name: &str, none: &str) -> String {
    let number = NET_TABLES.iter().position(|n| *n == name).filter(|_| can_ask_network());
    let text = number.and_then(|n| atoll_net::route::table(n).ok());
    text.map_or_else(|| none.into(), |text| String::from_utf8_lossy(&text).into_owned())
}

fn meminfo() -> String {
    let m = memory();
    let (total, free) = (m.total() >> 10, (m.total() - m.used()) >> 10);
    let cached = atoll_fs::host::cached(&|_| true) >> 10;
    let shared = atoll_fs::tmp::held() >> 10;
    let mut out = String::new();
    let rows: &[(&str, u64)] = &[
        ("MemTotal", total),
        ("MemFree", free),
        ("MemAvailable", (free.saturating_sub(kept_bytes() >> 10) + cached).min(total)),
        ("Buffers", 0),
        // As on Linux, what can't be given back as well.
        ("Cached", cached + shared),
        ("SwapCached", 0),
        ("Active", total - free),
        ("Inactive", 0),
        ("Active(anon)", (total - free).saturating_sub(cached)),
        ("Inactive(anon)", 0),
        ("Active(file)", cached.min(total - free)),
        ("Inactive(file)", 0),
        ("SwapTotal", 0),
        ("SwapFree", 0),
        ("Dirty", 0),
        ("Writeback", 0),
        ("AnonPages", (total - free).saturating_sub(cached + shared)),
        ("Mapped", 0),
        ("Shmem", shared),
        ("KReclaimable", 0),
        ("Slab", 0),
        ("SReclaimable", 0),
        ("SUnreclaim", 0),
        ("KernelStack", 0),
        ("PageTables", 0),
        ("Bounce", 0),
        ("WritebackTmp", 0),
        ("CommitLimit", total),
        ("Committed_AS", total - free),
        ("VmallocTotal", 34359738367),
        ("VmallocUsed", 0),
        ("VmallocChunk", 0),
        ("Percpu", 0),
    ];
    for (name, kb) in rows {
        let _ = writeln!(out, "{:<15}{kb:>9} kB", format!("{name}:"));
    }
    for name in ["Total", "Free", "Rsvd", "Surp"] {
        let _ = writeln!(out, "{:<16}{:>8}", format!("HugePages_{name}:"), 0);
    }
    out.push_str("Hugepagesize:       2048 kB\nHugetlb:               0 kB\n");
    out
}

/// What is known of it here: pages, and faults of the programs that run and of those that were waited for.
fn vmstat() -> String {
    let m = memory();
    let pages = |bytes: u64| bytes / PAGE;
    let (free, shared) = (pages(m.total() - m.used()), pages(atoll_fs::tmp::held()));
    let cached = pages(atoll_fs::host::cached(&|_| true));
    let mut all = Usage::default();
    all_processes().iter().for_each(|p| all.add(p.used_with_children()));
    // Of those for whom nobody waited no more is known: what was told once stays.
    static TOLD: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
    let told = |n: usize, now: u64| TOLD[n].fetch_max(now, Ordering::Relaxed).max(now);
    let [read, stored] = all.stored;
    let killed = Group::of(ROOT).map_or(0, |all| all.memory_counts()[2]);
    let (faults, read, stored) = (told(0, all.faults), told(1, read >> 10), told(2, stored >> 10));
    format!(
        "nr_free_pages {free}\nnr_file_pages {files}\nnr_shmem {shared}\npgpgin {read}\npgpgout {stored}\npswpin 0\npswpout 0\n\
         pgfault {faults}\npgmajfault 0\noom_kill {killed}\n",
        files = cached + shared,
    )
}

/// The only node's memory, of which libnuma wants the first two lines.
fn node_meminfo() -> String {
    let m = memory();
    let (total, used) = (m.total() >> 10, m.used() >> 10);
    [("MemTotal", total), ("MemFree", total - used), ("MemUsed", used)]
        .iter()
        .map(|(name, kb)| format!("Node 0 {:15} {kb:8} kB\n", format!("{name}:")))
        .collect()
}

fn stat_machine() -> String {
    let mut out = String::new();
    let ticks = |ns: u64| ns / 10_000_000;
    let (mut user, mut system, mut idle, mut switches, mut interrupts) = (0, 0, 0, 0, 0);
    static DIVISIONS: SetOnce<Box<[TimeDivision]>> = SetOnce::new();
    if DIVISIONS.get().is_none() {
        // Somebody else's are as good.
        let _ = DIVISIONS.set((0..atoll_task::cores()).map(|_| TimeDivision::default()).collect());
    }
    let mut rows = String::new();
    for n in 0..atoll_task::cores() {
        let s = atoll_task::core_stats(n);
        let runtime = atoll_task::runtime_on(n);
        let divisions = DIVISIONS.get().expect("just set");
        let of_runtime = divisions[n].divide(s.busy_ns, runtime);
        user += s.busy_ns - of_runtime;
        system += of_runtime;
        idle += s.idle_ns;
        switches += s.switches;
        interrupts += s.deadlines + s.interrupts;
        if !atoll_task::is_online(n) {
            continue;
        }
        let [own, of_runtime, idle] = [s.busy_ns - of_runtime, of_runtime, s.idle_ns].map(ticks);
        let _ = writeln!(rows, "cpu{n} {own} 0 {of_runtime} {idle} 0 0 0 0 0 0");
    }
    let _ = writeln!(out, "cpu  {} 0 {} {} 0 0 0 0 0 0", ticks(user), ticks(system), ticks(idle));
    out.push_str(&rows);
    let running = runnable();
    let _ = write!(
        out,
        "intr {interrupts}\nctxt {switches}\nbtime {}\nprocesses {}\nprocs_running {running}\nprocs_blocked 0\nsoftirq 0 0 0 0 0 0 0 0 0 0 0\n",
        world().boot.1.saturating_sub(world().boot.0) / 1_000_000_000,
        world().started.load(Ordering::Relaxed),
    );
    out
}

/// What has interrupted each core: its deadline, and other cores or what it awaits from outside.
fn interrupts() -> String {
    let online: Vec<usize> = (0..atoll_task::cores()).filter(|n| atoll_task::is_online(*n)).collect();
    let mut out = String::from("    ");
    // A string takes whatever is written to it.
    for n in &online {
        let _ = write!(out, " {:<10}", format!("      CPU{n}"));
    }
    let row = |out: &mut String, name: &str, what: &str, count: fn(&atoll_task::CoreStats) -> u64| {
        let _ = write!(out, "\n{name:>3}:");
        for n in &online {
            let _ = write!(out, " {:>10}", count(&atoll_task::core_stats(*n)));
        }
        let _ = write!(out, "   {what}");
    };
    row(&mut out, "LOC", "Local timer interrupts", |s| s.deadlines);
    row(&mut out, "RES", "Rescheduling interrupts", |s| s.interrupts);
    out.push('\n');
    out
}

fn uptime_text() -> String {
    let (s, h) = uptime();
    let idle: u64 = (0..atoll_task::cores()).map(|n| atoll_task::core_stats(n).idle_ns).sum();
    format!("{s}.{h:02} {}.{:02}\n", idle / 1_000_000_000, idle % 1_000_000_000 / 10_000_000)
}

/// What each activity has used of each resource, a line each: activity, the one above it, process, name, resource, time in
/// ns, messages, bytes, time in queues in ns, time of requests at the platform in ns, messages that waited in queues and turns that they
/// had there. And of the memory that it holds, `held`, bytes.
fn activities() -> String {
    let mut out = String::from(
        "activity parent pid name resource ns messages bytes queued-ns device-ns waits turns counted\n",
    );
    for used in atoll_task::used() {
        // A name is one word here, whatever the file is called.
        let name: String = String::from_utf8_lossy(&used.name)
            .chars()
            .map(|c| if c.is_whitespace() || c.is_control() { '?' } else { c })
            .collect();
        let name = if name.is_empty() { "-" } else { &name };
        let (activity, parent, pid) = (used.activity, used.parent, used.pid);
        for (resource, amounts) in Resource::ALL.iter().zip(used.entries) {
            if amounts == Amounts::default() {
                continue;
            }
            let Amounts { time, messages, bytes, queued, device, waits, turns, counted } = amounts;
            let resource = resource.name();
            let _ = writeln!(
                out,
                "{activity} {parent} {pid} {name} {resource} {time} {messages} {bytes} {queued} {device} {waits} {turns} {counted}"
            );
        }
        let held = memory().held(activity);
        if held != 0 {
            let _ =
                writeln!(out, "{activity} {parent} {pid} {name} held 0 0 {} 0 0 0 0 0", held * PAGE as i64);
        }
    }
    out
}

/// Threads that run or wait for a core.
fn runnable() -> u64 {
    (0..atoll_task::cores()).map(atoll_task::core_stats).map(|s| u64::from(s.runs) + u64::from(s.ready)).sum()
}

fn loadavg() -> String {
    let mut out = String::new();
    for average in atoll_task::load_averages() {
        // Rounded as Linux does (`get_avenrun`).
        let hundredths = (average + 2048 / 200) * 100 / 2048;
        let _ = write!(out, "{}.{:02} ", hundredths / 100, hundredths % 100);
    }
    let last = all_processes().last().map_or(1, |p| p.pid);
    let _ = writeln!(out, "{}/{} {last}", runnable(), task_count());
    out
}

fn version() -> String {
    format!("Linux version {RELEASE} (atoll) #1 SMP Atoll\n")
}

fn uuid(bytes: [u8; 16]) -> String {
    let mut out = String::new();
    for (n, b) in bytes.iter().enumerate() {
        if matches!(n, 4 | 6 | 8 | 10) {
            out.push('-');
        }
        let b = match n {
            6 => b & 0x0f | 0x40,
            8 => b & 0x3f | 0x80,
            _ => *b,
        };
        let _ = write!(out, "{b:02x}");
    }
    out.push('\n');
    out
}

fn random_uuid() -> String {
    let mut b = [0; 16];
    platform().random(&mut b);
    uuid(b)
}

fn boot_id() -> String {
    let (a, b) = world().boot;
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&a.to_le_bytes());
    bytes[8..].copy_from_slice(&b.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    uuid(bytes)
}

fn hostname() -> String {
    format!("{}\n", String::from_utf8_lossy(&world().hostname.lock()))
}

fn randomize() -> String {
    String::from(if world().randomize.load(Ordering::Relaxed) { "2\n" } else { "0\n" })
}

fn set_randomize(bytes: &[u8]) -> Result<()> {
    if current().cred().uid != 0 {
        return Err(Errno::EACCES);
    }
    world().randomize.store(bytes.first().is_some_and(|b| *b != b'0'), Ordering::Relaxed);
    Ok(())
}

fn ignore_setting(_bytes: &[u8]) -> Result<()> {
    log::once(
        "a setting in /proc/sys",
        format_args!("settings in /proc/sys are accepted, but most change nothing in a cell"),
    );
    Ok(())
}

fn self_link() -> Vec<u8> {
    crate::current::try_current().map_or(Vec::new(), |t| format!("{}", t.process.pid).into_bytes())
}

fn thread_self_link() -> Vec<u8> {
    crate::current::try_current()
        .map_or(Vec::new(), |t| format!("{}/task/{}", t.process.pid, t.tid()).into_bytes())
}

/// `cpuN/online` (sysfs): a word that Linux takes for a boolean.
fn switch_core(n: usize, bytes: &[u8]) -> Result<()> {
    if current().cred().uid != 0 {
        return Err(Errno::EACCES);
    }
    let on = match bytes {
        [b'1' | b'y' | b'Y', ..] | [b'o' | b'O', b'n' | b'N', ..] => true,
        [b'0' | b'n' | b'N', ..] | [b'o' | b'O', b'f' | b'F', ..] => false,
        _ => return Err(Errno::EINVAL),
    };
    crate::cores::switch(n, on)
}

/// Cores from 0 on, as a list.
fn first_cores(n: usize) -> String {
    match n {
        0 => String::from("\n"),
        1 => String::from("0\n"),
        n => format!("0-{}\n", n - 1),
    }
}

/// `/proc/cgroups`: controllers of the one hierarchy of version 2, whose number is 0, and how many groups have each.
fn cgroups() -> String {
    let mut out = String::from("#subsys_name\thierarchy\tnum_cgroups\tenabled\n");
    // Version 2 has `cpuacct` within `cpu`; it is listed all the same.
    for name in ["cpuset", "cpu", "cpuacct", "memory", "pids"] {
        let _ = writeln!(out, "{name}\t0\t{}\t1", cgroup::groups().len() + 1);
    }
    out
}

/// Cores as a list of ranges.
pub fn core_list(set: &CoreSet) -> String {
    core_set(set).1
}

fn cores_possible() -> String {
    first_cores(atoll_task::cores())
}

fn cores_present() -> String {
    first_cores(crate::cores::granted())
}

fn cores_online() -> String {
    core_set(&atoll_task::online()).1 + "\n"
}

fn cores_offline() -> String {
    core_set(&atoll_task::online().map(|word| !word)).1 + "\n"
}

macro_rules! text {
    ($t:literal) => {
        Body::Text(|| String::from($t))
    };
}

macro_rules! setting {
    ($t:literal) => {
        Body::Setting(|| String::from($t), ignore_setting)
    };
}

/// The root of `/proc`.
pub fn proc_fs() -> (Arc<dyn FileSystem>, InodeRef) {
    const PROC_MAGIC: u64 = 0x9fa0;
    let mut t = Tree::new("proc", PROC_MAGIC, 0x16, true);
    t.add("self", Body::Link(self_link));
    t.add("thread-self", Body::Link(thread_self_link));
    t.add("mounts", Body::Link(|| b"self/mounts".to_vec()));
    t.add("cpuinfo", Body::Text(cpuinfo));
    t.add("meminfo", Body::Text(meminfo));
    t.add("stat", Body::Text(stat_machine));
    t.add("uptime", Body::Text(uptime_text));
    t.add("loadavg", Body::Text(loadavg));
    t.add("atoll/activities", Body::Text(activities));
    t.add("version", Body::Text(version));
    t.add("cmdline", text!("atoll\n"));
    t.add("cgroups", Body::Text(cgroups));
    t.add(
        "filesystems",
        text!("nodev\tproc\nnodev\ttmpfs\nnodev\tsysfs\nnodev\tcgroup2\nnodev\tmqueue\nnodev\thostfs\n"),
    );
    t.add("devices", text!("Character devices:\n  1 mem\n  5 /dev/tty\n136 pts\n\nBlock devices:\n"));
    t.add("swaps", text!("Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"));
    t.add("partitions", text!("major minor  #blocks  name\n\n"));
    t.add("vmstat", Body::Text(vmstat));
    // No disks.
    t.add("diskstats", text!(""));
    t.add("interrupts", Body::Text(interrupts));
    t.add("locks", Body::Text(fd::locks::list));
    t.add("modules", text!(""));
    t.add("sysvipc/shm", Body::Text(shm::list));
    t.add("sysvipc/sem", Body::Text(sem::list));
    t.add("sysvipc/msg", Body::Text(msg::list));
    t.add("net/dev", Body::Text(|| net_table("dev", NET_DEV)));
    t.add("net/tcp", Body::Text(proc_net::tcp));
    t.add("net/tcp6", Body::Text(proc_net::tcp6));
    t.add("net/udp", Body::Text(proc_net::udp));
    t.add("net/udp6", Body::Text(proc_net::udp6));
    // Sockets of these kinds there can't be.
    t.add("net/raw", Body::Text(|| proc_net::no_sockets(false, "  sl", 0)));
    t.add("net/icmp", Body::Text(|| proc_net::no_sockets(false, "  sl", 127)));
    t.add("net/udplite", Body::Text(|| proc_net::no_sockets(false, "   sl", 127)));
    for name in ["net/raw6", "net/icmp6", "net/udplite6"] {
        t.add(name, Body::Text(|| proc_net::no_sockets(true, "  sl", 0)));
    }
    t.add("net/packet", text!("sk               RefCnt Type Proto  Iface R Rmem   User   Inode\n"));
    t.add("net/unix", Body::Bytes(proc_net::unix));
    t.add("net/if_inet6", Body::Text(|| net_table("if_inet6", "")));
    t.add("net/route", Body::Text(|| net_table("route", NET_ROUTE)));
    t.add("net/ipv6_route", Body::Text(|| net_table("ipv6_route", "")));
    t.add("net/arp", Body::Text(|| net_table("arp", NET_ARP)));
    t.add("net/dev_mcast", Body::Text(|| net_table("dev_mcast", "")));
    t.add("net/igmp", Body::Text(|| net_table("igmp", "")));
    t.add("net/igmp6", Body::Text(|| net_table("igmp6", "")));
    t.add("net/netstat", Body::Text(|| net_table("netstat", "")));
    t.add("net/snmp", Body::Text(|| net_table("snmp", "")));
    t.add("net/snmp6", Body::Text(|| net_table("snmp6", "")));
    t.add("net/sockstat", Body::Text(|| net_table("sockstat", "")));
    t.add("net/sockstat6", Body::Text(|| net_table("sockstat6", "")));
    t.add("net/softnet_stat", Body::Text(|| net_table("softnet_stat", "")));
    t.add("net/fib_trie", Body::Text(|| net_table("fib_trie", "")));
    t.add("sys/kernel/ostype", text!("Linux\n"));
    t.add("sys/kernel/osrelease", Body::Text(|| format!("{RELEASE}\n")));
    t.add("sys/kernel/version", text!("#1 SMP Atoll\n"));
    t.add("sys/kernel/hostname", Body::Setting(hostname, ignore_setting));
    t.add("sys/kernel/domainname", text!("(none)\n"));
    t.add("sys/kernel/pid_max", text!("4194304\n"));
    t.add("sys/kernel/threads-max", text!("192730\n"));
    t.add("sys/kernel/ngroups_max", text!("65536\n"));
    t.add("sys/kernel/cap_last_cap", text!("40\n"));
    t.add("sys/kernel/arch", text!("x86_64\n"));
    // For nobody, as what it switches off is not there.
    t.add("sys/kernel/io_uring_disabled", text!("2\n"));
    t.add("sys/kernel/unprivileged_bpf_disabled", text!("2\n"));
    t.add("sys/kernel/core_pattern", Body::Setting(core_dump::pattern, core_dump::set_pattern));
    t.add("sys/kernel/randomize_va_space", Body::Setting(randomize, set_randomize));
    t.add("sys/kernel/random/boot_id", Body::Text(boot_id));
    t.add("sys/kernel/random/uuid", Body::Text(random_uuid));
    t.add("sys/kernel/random/entropy_avail", text!("256\n"));
    t.add("sys/kernel/random/poolsize", text!("256\n"));
    t.add("sys/kernel/tainted", text!("0\n"));
    t.add("sys/kernel/sched_rr_timeslice_ms", text!("100\n"));
    t.add("sys/kernel/sched_child_runs_first", text!("0\n"));
    t.add("sys/kernel/perf_event_paranoid", text!("4\n"));
    t.add("sys/kernel/yama/ptrace_scope", text!("1\n"));
    t.add("sys/kernel/seccomp/actions_avail", Body::Text(|| crate::seccomp::ACTIONS.into()));
    t.add("sys/kernel/shmmax", Body::Text(|| format!("{}\n", shm::LENGTH_MAX)));
    t.add("sys/kernel/shmall", Body::Text(|| format!("{}\n", shm::LENGTH_MAX)));
    t.add("sys/kernel/shmmni", Body::Text(|| format!("{}\n", shm::SEGMENTS_MAX)));
    t.add("sys/kernel/sem", Body::Text(semaphore_limits));
    t.add("sys/kernel/msgmax", Body::Text(|| format!("{}\n", msg::MESSAGE_MAX)));
    t.add("sys/kernel/msgmnb", Body::Text(|| format!("{}\n", msg::QUEUE_MAX)));
    t.add("sys/kernel/msgmni", Body::Text(|| format!("{}\n", msg::QUEUES_MAX)));
    t.add("sys/vm/overcommit_memory", setting!("1\n"));
    t.add("sys/vm/overcommit_ratio", setting!("50\n"));
    t.add("sys/vm/max_map_count", Body::Setting(|| format!("{AREAS_MAX}\n"), ignore_setting));
    t.add("sys/vm/mmap_min_addr", text!("65536\n"));
    t.add("sys/vm/swappiness", setting!("60\n"));
    t.add("sys/vm/nr_hugepages", setting!("0\n"));
    for name in [
        "sys/vm/hugetlb_shm_group",
        "sys/vm/legacy_va_layout",
        "sys/vm/memfd_noexec",
        "sys/vm/nr_overcommit_hugepages",
        "sys/vm/overcommit_kbytes",
        "sys/vm/panic_on_oom",
        "sys/vm/unprivileged_userfaultfd",
        "sys/vm/zone_reclaim_mode",
    ] {
        t.add(name, text!("0\n"));
    }
    t.add("sys/fs/suid_dumpable", text!("0\n"));
    t.add("sys/fs/overflowuid", text!("65534\n"));
    t.add("sys/fs/overflowgid", text!("65534\n"));
    t.add("sys/fs/aio-max-nr", Body::Number(&aio::REQUESTS_MAX));
    t.add("sys/fs/aio-nr", Body::Text(|| format!("{}\n", aio::requests())));
    t.add("sys/fs/file-max", text!("9223372036854775807\n"));
    t.add("sys/fs/file-nr", Body::Text(open_files));
    t.add("sys/fs/nr_open", text!("1048576\n"));
    t.add("sys/fs/pipe-user-pages-soft", text!("0\n"));
    t.add("sys/fs/pipe-user-pages-hard", text!("0\n"));
    t.add("sys/fs/pipe-max-size", text!("1048576\n"));
    t.add("sys/fs/inotify/max_user_watches", Body::Text(|| format!("{}\n", inotify::WATCHES_MAX)));
    t.add("sys/fs/inotify/max_user_instances", Body::Text(|| format!("{}\n", inotify::INSTANCES_MAX)));
    t.add("sys/fs/inotify/max_queued_events", Body::Text(|| format!("{}\n", inotify::QUEUE_MAX)));
    t.add("sys/fs/mqueue/msg_default", Body::Number(&mqueue::MESSAGES_DEFAULT));
    t.add("sys/fs/mqueue/msg_max", Body::Number(&mqueue::MESSAGES_MAX));
    t.add("sys/fs/mqueue/msgsize_default", Body::Number(&mqueue::SIZE_DEFAULT));
    t.add("sys/fs/mqueue/msgsize_max", Body::Number(&mqueue::SIZE_MAX));
    t.add("sys/fs/mqueue/queues_max", Body::Number(&mqueue::QUEUES_MAX));
    t.add("sys/fs/epoll/max_user_watches", text!("5000000\n"));
    t.add("sys/net/core/somaxconn", setting!("4096\n"));
    t.add("sys/net/core/rmem_max", setting!("212992\n"));
    t.add("sys/net/core/wmem_max", setting!("212992\n"));
    t.add("sys/net/ipv4/ip_local_port_range", setting!("32768\t60999\n"));
    t.add("sys/net/ipv4/ip_unprivileged_port_start", text!("1024\n"));
    t.add("sys/net/ipv4/tcp_fastopen", setting!("1\n"));
    t.add("sys/net/ipv4/tcp_max_syn_backlog", setting!("4096\n"));
    t.add("sys/net/ipv4/tcp_rmem", setting!("4096\t131072\t6291456\n"));
    t.add("sys/net/ipv4/tcp_wmem", setting!("4096\t16384\t4194304\n"));
    // No one may have ICMP sockets.
    t.add("sys/net/ipv4/ping_group_range", text!("1\t0\n"));
    t.add("sys/kernel/overflowuid", text!("65534\n"));
    t.add("sys/kernel/overflowgid", text!("65534\n"));
    t.add("sys/net/ipv6/conf/all/disable_ipv6", text!("0\n"));
    t.add("sys/net/unix/max_dgram_qlen", text!("512\n"));
    root(t)
}

/// `cpuN/topology` (Linux's Documentation/ABI/stable/sysfs-devices-system-cpu): each core is one of its own, all are of one package.
const TOPOLOGY: [(&str, OfCore); 16] = {
    const ZERO: OfCore = |_| "0".into();
    const ITSELF: OfCore = |n| core_set(&set_of_cores([n])).0;
    const ITSELF_LIST: OfCore = |n| core_set(&set_of_cores([n])).1;
    const ALL: OfCore = |_| core_set(&atoll_task::online()).0;
    const ALL_LIST: OfCore = |_| core_set(&atoll_task::online()).1;
    [
        ("cluster_cpus", ITSELF),
        ("cluster_cpus_list", ITSELF_LIST),
        ("cluster_id", |_| "65535".into()),
        ("core_cpus", ITSELF),
        ("core_cpus_list", ITSELF_LIST),
        ("core_id", |n| format!("{n}")),
        ("core_siblings", ALL),
        ("core_siblings_list", ALL_LIST),
        ("die_cpus", ALL),
        ("die_cpus_list", ALL_LIST),
        ("die_id", ZERO),
        ("package_cpus", ALL),
        ("package_cpus_list", ALL_LIST),
        ("physical_package_id", ZERO),
        ("thread_siblings", ITSELF),
        ("thread_siblings_list", ITSELF_LIST),
    ]
};

/// The root of `/sys`.
pub fn sys_fs() -> (Arc<dyn FileSystem>, InodeRef) {
    const SYSFS_MAGIC: u64 = 0x6265_6572;
    let mut t = Tree::new("sysfs", SYSFS_MAGIC, 0x17, false);
    t.add("devices/system/cpu/online", Body::Text(cores_online));
    t.add("devices/system/cpu/offline", Body::Text(cores_offline));
    t.add("devices/system/cpu/possible", Body::Text(cores_possible));
    t.add("devices/system/cpu/present", Body::Text(cores_present));
    t.add("devices/system/cpu/kernel_max", text!("255\n"));
    t.add("devices/system/cpu/isolated", text!("\n"));
    t.add("devices/system/cpu/smt/active", text!("0\n"));
    t.add("devices/system/cpu/smt/control", text!("notsupported\n"));
    let cores = atoll_task::cores().min(atoll_abi::layout::MAX_CORES);
    // As long as the file systems are, which is as long as the cell is.
    let path = |path: String| -> &'static str { Box::leak(path.into_boxed_str()) };
    for n in 0..cores {
        // Programs count processors by these directories, too.
        for (name, of) in TOPOLOGY {
            t.add(path(format!("devices/system/cpu/cpu{n}/topology/{name}")), Body::Of(n, of));
        }
        t.add(path(format!("devices/system/cpu/cpu{n}/node0")), Body::Path("../../node/node0"));
        // As on Linux, the first one can't be switched off.
        if n > 0 {
            t.add(path(format!("devices/system/cpu/cpu{n}/online")), Body::Core(n));
        }
    }
    t.add("devices/system/node/online", text!("0\n"));
    t.add("devices/system/node/possible", text!("0\n"));
    t.add("devices/system/node/has_cpu", text!("0\n"));
    t.add("devices/system/node/has_memory", text!("0\n"));
    t.add("devices/system/node/has_normal_memory", text!("0\n"));
    for n in 0..cores {
        t.add(
            path(format!("devices/system/node/node0/cpu{n}")),
            Body::Path(path(format!("../../cpu/cpu{n}"))),
        );
    }
    t.add("devices/system/node/node0/cpumap", Body::Text(|| core_set(&atoll_task::online()).0 + "\n"));
    t.add("devices/system/node/node0/distance", text!("10\n"));
    t.add("devices/system/node/node0/cpulist", Body::Text(cores_online));
    t.add("devices/system/node/node0/meminfo", Body::Text(node_meminfo));
    t.add("kernel/mm/transparent_hugepage/enabled", setting!("always [madvise] never\n"));
    t.add("kernel/mm/transparent_hugepage/defrag", setting!("always defer defer+madvise [madvise] never\n"));
    t.add("kernel/mm/transparent_hugepage/hpage_pmd_size", text!("2097152\n"));
    t.add(
        "kernel/mm/transparent_hugepage/shmem_enabled",
        text!("always within_size advise [never] deny force\n"),
    );
    t.add("kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", text!("0\n"));
    t.add("fs/cgroup", Body::Dir);
    t.add("block", Body::Dir);
    t.add("dev/block", Body::Dir);
    t.add("dev/char", Body::Dir);
    t.add("class/power_supply", Body::Dir);
    t.add("devices/system/clocksource/clocksource0/available_clocksource", text!("tsc\n"));
    t.add("devices/system/clocksource/clocksource0/current_clocksource", text!("tsc\n"));
    t.add("class/net", Body::Interfaces(Interfaces::Links));
    t.add(VIRTUAL_INTERFACES, Body::Interfaces(Interfaces::Virtual));
    t.add(DEVICES_OF_HOST, Body::Interfaces(Interfaces::Devices));
    root(t)
}

/// The root of `/sys/fs/cgroup`.
pub fn cgroup_fs() -> (Arc<dyn FileSystem>, InodeRef) {
    const CGROUP2_MAGIC: u64 = 0x6367_7270;
    let t = Arc::new(Tree::new("cgroup2", CGROUP2_MAGIC, 0x1b, false));
    (t.fs.clone(), node(&t, What::Group(ROOT)))
}

fn root(t: Tree) -> (Arc<dyn FileSystem>, InodeRef) {
    let t = Arc::new(t);
    (t.fs.clone(), node(&t, What::Fixed(0)))
}
