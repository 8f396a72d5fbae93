//! Processes and their tasks (threads), from birth to reaping.
#![allow(
    unsafe_code,
    reason = "hands the current task to its thread, and keeps pointers to what only a task itself replaces"
)]

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::mem::offset_of;
use core::ops::Deref;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use atoll_abi::control::{MappingKind, MemoryPolicy, Paging};
use atoll_abi::core_local::core_local;
use atoll_abi::frame::UserFrame;
use atoll_abi::grid::{Quota, Resource};
use atoll_abi::{Errno, Result, platform};
use atoll_fs::node::InUse;
use atoll_fs::types::{Attr, may};
use atoll_fs::{Cred, FileSystem, Location, Namespace, poll};
use atoll_mem::user;
use atoll_mem::vm::AddressSpace;
use atoll_sync::{Mutex, SetOnce, WaitQueue};
use atoll_task::{Activity, Policy, ThreadRef, Timer, books, wait_uninterrupted};
use linux_raw_sys::general as linux;

use crate::capabilities::{Capabilities, FileCapabilities, Users};
use crate::core_dump::{self, Dump};
use crate::cpu_timer::{CpuClock, CpuTimer};
use crate::current;
use crate::files::FdTable;
use crate::ptrace::{self, Tracees, Tracing};
use crate::seccomp::Filters;
use crate::signal::{self, Actions, Pending, TaskSignals};
use crate::types::{Rlimit, Rusage, Siginfo, Timeval};
use crate::versioned::{Looking, Versioned};
use crate::{aio, futex, grid, ipc, log, memory_policy, pi, quota, shrinkers, units};

/// A process image's address space.
pub struct Space {
    /// The platform's number for it.
    pub id: u32,
    /// Its mappings.
    pub memory: AddressSpace,
    /// Processes that run in it: more than one while a vfork lasts.
    pub users: AtomicU32,
    /// What its program has registered for with membarrier(2).
    pub barriers: AtomicU32,
    /// Contexts of asynchronous I/O.
    pub contexts: aio::Contexts,
    /// Others who are looking at its memory, or may: a program that is to be another's doesn't begin in it.
    visitors: Mutex<Visitors>,
    /// Woken when programs have changed there.
    changed: WaitQueue,
}

#[derive(Default)]
struct Visitors {
    count: usize,
    /// A program is beginning, or a fork's child.
    closed: bool,
}

/// Somebody who may look at a space's memory as long as its program is the one that was asked about.
pub struct Visit(Weak<Space>);

impl Visit {
    /// The space, if it is still there.
    pub fn space(&self) -> Option<Arc<Space>> {
        self.0.upgrade()
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        if let Some(space) = self.0.upgrade() {
            space.visitors.lock().count -= 1;
        }
    }
}

impl Space {
    /// From here on its program is the one that it is. Waits for one that is beginning: it may be one that the caller has no right to look at,
    /// which is to be asked after this.
    /// EINTR: the caller is ending.
    pub fn visit(self: &Arc<Self>) -> Result<Visit> {
        let is_ending = || current::try_current().is_some_and(|task| task.asked() & work::END != 0);
        let may = wait_uninterrupted(&self.changed, 1, || {
            let mut visitors = self.visitors.lock();
            visitors.count += usize::from(!visitors.closed);
            (!visitors.closed || is_ending()).then_some(!visitors.closed)
        });
        if may { Ok(Visit(Arc::downgrade(self))) } else { Err(Errno::EINTR) }
    }

    /// A program is about to begin here, or a fork's child. False: there are visitors, and it is to begin in a space of its own.
    pub fn close(&self) -> bool {
        let mut visitors = self.visitors.lock();
        visitors.closed = visitors.count == 0;
        visitors.closed
    }

    /// It has begun, with all its rights.
    pub fn open(&self) {
        self.visitors.lock().closed = false;
        self.changed.wake_all(1);
    }

    /// One with these mappings, for one process.
    pub fn new(id: u32, memory: AddressSpace) -> Arc<Space> {
        Arc::new(Space {
            id,
            memory,
            users: AtomicU32::new(1),
            barriers: AtomicU32::new(0),
            contexts: aio::Contexts::new(BTreeMap::new()),
            visitors: Mutex::new(Visitors::default()),
            changed: WaitQueue::new(),
        })
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        // Its last process unmapped everything when it left. The platform's
        // space is kept, empty, for the next program.
        crate::exec::spare_space(self.id);
    }
}

/// Something that a task reads all the time and only itself replaces.
pub struct Own<T> {
    fast: AtomicPtr<T>,
    value: Mutex<Arc<T>>,
}

impl<T> Own<T> {
    fn new(value: Arc<T>) -> Self {
        Own { fast: AtomicPtr::new(Arc::as_ptr(&value).cast_mut()), value: Mutex::new(value) }
    }

    /// A reference that anybody may keep.
    pub fn share(&self) -> Arc<T> {
        self.value.lock().clone()
    }

    /// Replaces it. Only for the task itself, while it holds no reference from `deref`.
    pub fn replace(&self, value: Arc<T>) -> Arc<T> {
        let mut v = self.value.lock();
        self.fast.store(Arc::as_ptr(&value).cast_mut(), Ordering::Release);
        core::mem::replace(&mut v, value)
    }
}

impl<T> Deref for Own<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the Arc beside it keeps the value until `replace`.
        unsafe { &*self.fast.load(Ordering::Acquire) }
    }
}

/// Where a process is in the tree of files.
pub struct FsContext {
    /// Root directory.
    pub root: Versioned<Location>,
    /// Working directory.
    pub cwd: Versioned<Location>,
    /// File mode creation mask.
    pub umask: AtomicU32,
}

impl FsContext {
    /// A copy of its own.
    pub fn duplicate(&self) -> FsContext {
        FsContext {
            root: Versioned::new(self.root.lock().clone()),
            cwd: Versioned::new(self.cwd.lock().clone()),
            umask: AtomicU32::new(self.umask.load(Ordering::Relaxed)),
        }
    }
}

/// Who a task is and where its paths begin: what each path needs.
pub struct View {
    /// Root directory.
    pub root: Location,
    /// Working directory.
    pub cwd: Location,
    /// Whose permissions count.
    pub cred: Cred,
    /// Versions of the three.
    of: [u64; 3],
}

/// User and group ids, and what they may do (`credentials(7)`).
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names are the manual page's")]
pub struct Ids {
    pub ruid: u32,
    pub euid: u32,
    pub suid: u32,
    pub fsuid: u32,
    pub rgid: u32,
    pub egid: u32,
    pub sgid: u32,
    pub fsgid: u32,
    pub groups: Arc<[u32]>,
    pub capabilities: Capabilities,
    /// Its program began with more power than who started it, who is therefore not to be trusted (AT_SECURE).
    pub secure: bool,
}

impl Ids {
    /// Those of a cell's first process.
    pub fn first(uid: u32, gid: u32, groups: &[u32]) -> Ids {
        let mut ids = Ids {
            ruid: uid,
            euid: uid,
            suid: uid,
            fsuid: uid,
            rgid: gid,
            egid: gid,
            sgid: gid,
            fsgid: gid,
            groups: Arc::new([]),
            capabilities: Capabilities::of_user(uid),
            secure: false,
        };
        ids.set_groups(groups.to_vec());
        ids
    }

    /// Sets the further groups, in the order in which Linux has them.
    pub fn set_groups(&mut self, mut groups: Vec<u32>) {
        groups.sort_unstable();
        self.groups = groups.into();
    }

    /// Real, effective and saved user id.
    pub fn users(&self) -> Users {
        [self.ruid, self.euid, self.suid]
    }

    /// May it do what this capability (CAP_...) is for?
    pub fn may(&self, capability: u32) -> bool {
        self.capabilities.has(capability)
    }

    /// A program with these attributes and capabilities of its file runs: one with a set-user-ID or set-group-ID bit gets its
    /// owner's ids.
    pub fn run(&mut self, attr: &Attr, file: Option<FileCapabilities>) {
        let before = (self.euid, self.egid);
        if !self.capabilities.no_new_privileges {
            if attr.mode & linux::S_ISUID != 0 {
                self.euid = attr.uid;
            }
            if attr.mode & linux::S_ISGID != 0 && attr.mode & linux::S_IXGRP != 0 {
                self.egid = attr.gid;
            }
        }
        self.suid = self.euid;
        self.fsuid = self.euid;
        self.sgid = self.egid;
        self.fsgid = self.egid;
        let all = self.capabilities.run([self.ruid, self.euid], (self.euid, self.egid) != before, file);
        let more = all || self.capabilities.permitted & !self.capabilities.ambient != 0;
        self.secure = (self.euid, self.egid) != (self.ruid, self.rgid) || self.ruid != 0 && more;
    }

    /// Real and effective user id, real and effective group id.
    fn words(&self) -> [u32; 4] {
        [self.ruid, self.euid, self.rgid, self.egid]
    }

    /// As file systems see it.
    pub fn cred(&self) -> Cred {
        Cred {
            uid: self.fsuid,
            gid: self.fsgid,
            groups: self.groups.clone(),
            capabilities: self.capabilities.effective,
        }
    }
}

/// The ids of one thread: Linux's calls change only the caller's, and the C library makes them in all threads.
pub struct Identity {
    ids: Versioned<Ids>,
    /// Real and effective user id, real and effective group id, for the calls that ask only for one.
    words: [AtomicU32; 4],
}

impl Identity {
    /// With these.
    fn new(ids: Ids) -> Identity {
        Identity { words: ids.words().map(AtomicU32::new), ids: Versioned::new(ids) }
    }

    /// See [`Identity::words`].
    #[inline]
    pub fn word(&self, n: usize) -> u32 {
        self.words[n].load(Ordering::Relaxed)
    }

    fn change<R>(&self, f: impl FnOnce(&mut Ids) -> R) -> R {
        let mut ids = self.ids.change();
        let r = f(&mut ids);
        for (word, id) in self.words.iter().zip(ids.words()) {
            word.store(id, Ordering::Relaxed);
        }
        r
    }
}

/// What is told about a program.
#[derive(Clone, Default)]
pub struct Image {
    /// Path of the executable.
    pub exe: Vec<u8>,
    /// Where it lies.
    pub place: Option<Location>,
    /// As long as somebody runs it, nobody writes to it.
    pub running: Option<Arc<InUse>>,
    /// Arguments, each ended by a zero byte.
    pub cmdline: Vec<u8>,
    /// Environment at exec, the same way.
    pub environ: Vec<u8>,
    /// Auxiliary vector.
    pub auxv: Vec<u8>,
    /// Ranges of the stack and the arguments: stack start, args start, args end, env start, env end.
    pub ranges: [u64; 5],
}

/// What is in core dumps by default (core(5)).
const DUMP_FILTER: u32 = 0x33;

/// Number of resource limits.
pub const LIMITS: usize = 16;

/// Processor time and the like, of one task or of many that ended.
#[derive(Clone, Copy, Default, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Usage {
    pub run_ns: u64,
    /// The part of it that was the runtime's: sampled.
    pub system_ns: u64,
    pub voluntary: u64,
    pub forced: u64,
    pub faults: u64,
    /// Bytes read and written, and how often (proc_pid_io(5)).
    pub moved: [u64; 2],
    pub calls: [u64; 2],
    /// Bytes that came from storage, and that are to go there.
    pub stored: [u64; 2],
    /// The most memory that any of them had, of which the process is known that it is over, or that its program is, bytes.
    pub peak: u64,
}

impl Usage {
    /// Adds another's.
    pub fn add(&mut self, o: Usage) {
        self.faults += o.faults;
        self.peak = self.peak.max(o.peak);
        self.run_ns += o.run_ns;
        self.system_ns += o.system_ns;
        self.voluntary += o.voluntary;
        self.forced += o.forced;
        for n in 0..2 {
            self.moved[n] += o.moved[n];
            self.calls[n] += o.calls[n];
            self.stored[n] += o.stored[n];
        }
    }

    /// The part that was the program's own.
    pub fn user_ns(&self) -> u64 {
        self.run_ns - self.system_ns
    }

    /// The program's part and the runtime's, in hundredths of a second.
    pub fn ticks(&self) -> [u64; 2] {
        [self.user_ns(), self.system_ns].map(|ns| ns / 10_000_000)
    }

    /// As `getrusage(2)` tells it.
    pub fn rusage(&self) -> Rusage {
        Rusage {
            utime: Timeval::from_ns(self.user_ns()),
            stime: Timeval::from_ns(self.system_ns),
            maxrss: (self.peak >> 10) as i64,
            minflt: self.faults as i64,
            // Blocks of 512 bytes.
            inblock: (self.stored[0] >> 9) as i64,
            oublock: (self.stored[1] >> 9) as i64,
            nvcsw: self.voluntary as i64,
            nivcsw: self.forced as i64,
            ..Rusage::default()
        }
    }
}

/// How somebody's time was last divided into the program's and the runtime's. The books that say it are sampled, and may say less than
/// before; what is told never does.
#[derive(Default)]
pub struct TimeDivision(Mutex<(u64, u64)>);

impl TimeDivision {
    /// The part of so much time that the runtime has used, of which the books say `system`; ns.
    pub fn divide(&self, all: u64, system: u64) -> u64 {
        let mut told = self.0.lock();
        let (user, system) = (told.0, system.max(told.1).min(all));
        // What is the program's never grows less, either.
        let system = system.min(all.saturating_sub(user)).max(told.1);
        *told = (user.max(all.saturating_sub(system)), system);
        system.min(all)
    }

    fn of(&self, used: Usage) -> Usage {
        Usage { system_ns: self.divide(used.run_ns, used.system_ns), ..used }
    }
}

/// How far a process has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    /// Runs.
    Running,
    /// Stopped by this signal.
    Stopped(u32),
    /// Ended with this wait status, not waited for.
    Zombie(i32),
}

/// What a parent can wait for, apart from the end: not reported yet.
#[derive(Default)]
pub struct Changes {
    /// Stopped by this signal.
    pub stopped: Option<u32>,
    /// Continued.
    pub continued: bool,
}

/// The children of a process. Who locks more than one's begins with the youngest process.
#[derive(Default)]
pub struct Children {
    /// All, zombies included.
    pub list: Vec<Arc<Process>>,
    /// It has ended, and gets no more.
    closed: bool,
}

impl Children {
    /// Forgets one that has ended.
    pub fn reap(&mut self, child: &Arc<Process>) {
        self.list.retain(|c| !Arc::ptr_eq(c, child));
        child.forget();
    }
}

/// A process.
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Its parent. Changed with the old one's children locked.
    pub parent: Mutex<Weak<Process>>,
    /// Its parent's id; 0 if it is the first, and 1 if its parent has ended and nobody has taken it over.
    ppid: AtomicU32,
    /// Thread id of the one of its parent's threads that made it, or that has taken it over. Changed as `parent`.
    pub parent_thread: AtomicU32,
    /// Its children.
    pub children: Mutex<Children>,
    /// Woken when a child changes its state.
    pub child_events: WaitQueue,
    /// Its tasks, the first one first.
    pub tasks: Mutex<Vec<Arc<Task>>>,
    /// Dispositions of signals.
    pub actions: Own<Actions>,
    /// Signals for whichever task takes them.
    pub pending: Mutex<Pending>,
    /// Woken when a signal is sent to the process.
    pub signal_queue: WaitQueue,
    /// Who else is to hear of that.
    pub signal_fds: crate::event::SignalFds,
    /// What it uses is charged to this.
    pub activity: Activity,
    /// Whose quotas what it makes counts for.
    pub environment: quota::Current,
    /// Itself, as a process.
    pub held: quota::Held,
    /// Its first thread's, which are what others see of it.
    pub identity: Identity,
    /// Resource limits.
    pub limits: Mutex<[Rlimit; LIMITS]>,
    /// Soft limit of open files, read by every call that makes one.
    pub max_files: AtomicU64,
    /// Soft limit of the length of files, read by every write.
    pub max_file_size: AtomicU64,
    /// The program.
    pub image: Mutex<Image>,
    /// Process group.
    pub pgid: AtomicU32,
    /// Session.
    pub sid: AtomicU32,
    /// State.
    pub life: Mutex<Life>,
    /// Woken when `life` changes.
    pub life_queue: WaitQueue,
    /// Changes that the parent has not been told of.
    pub changes: Mutex<Changes>,
    /// Wait status with which all its tasks are ending; -1: not ending.
    pub ending: AtomicI32,
    /// SIGKILL was sent to it, which ends whatever holds up its end.
    pub killed: AtomicBool,
    /// Signal for the parent when it ends; 0: none.
    pub exit_signal: AtomicU32,
    /// Usage of tasks that ended.
    pub usage: Mutex<Usage>,
    /// Usage of children that were waited for.
    pub child_usage: Mutex<Usage>,
    /// How its time is divided.
    pub division: TimeDivision,
    /// When it started: on the monotonic clock, ns.
    pub started: u64,
    /// ITIMER_REAL.
    pub alarm: SetOnce<Timer>,
    /// ITIMER_VIRTUAL and ITIMER_PROF, once they are used.
    pub cpu_alarms: Mutex<[Option<CpuTimer>; 2]>,
    /// RLIMIT_CPU, if there is one.
    pub cpu_limit: Mutex<Option<CpuTimer>>,
    /// POSIX timers.
    pub timers: Mutex<BTreeMap<i32, crate::event::PosixTimer>>,
    /// Where the next one's number is looked for; changed under their lock.
    pub next_timer: AtomicI32,
    /// Set when it has left its parent's address space (vfork).
    pub released: AtomicBool,
    /// Woken then.
    pub released_queue: WaitQueue,
    /// Has it done something with SEM_UNDO?
    pub undoes: AtomicBool,
    /// Has it asked to be told of a message (`mq_notify(2)`)?
    pub awaits_messages: AtomicBool,
    /// How often it has called exec.
    pub execs: AtomicU32,
    /// How often its parent had when it became that one's child.
    parent_execs: AtomicU32,
    /// What is in its core dump, `/proc/PID/coredump_filter`.
    pub dump_filter: AtomicU32,
    /// PR_SET_DUMPABLE.
    pub dumpable: AtomicU32,
    /// PR_SET_CHILD_SUBREAPER.
    pub subreaper: AtomicBool,
    /// I/O priority (`ioprio_set(2)`).
    pub io_priority: AtomicU32,
    /// PR_SET_THP_DISABLE.
    pub thp_disabled: AtomicBool,
    /// Which program of the world's memory policy it runs, from 1; 0: none that is named there.
    pub memory_policy: AtomicU32,
    /// Whose login it belongs to: the user and the login's number; u32::MAX: none (`pam_loginuid(8)`).
    pub login: [AtomicU32; 2],
    /// oom_score_adj.
    pub oom_score_adj: AtomicI32,
    /// The least that it may set that to.
    pub oom_score_adj_min: AtomicI32,
    /// personality(2).
    pub persona: AtomicU32,
    /// Its first task's name when that ended: what a zombie is called.
    name_at_end: Mutex<[u8; 16]>,
    /// Its core dump while that is made.
    pub dump: Dump,
    /// Whom it traces (`ptrace(2)`).
    pub tracees: Mutex<Tracees>,
    /// Who traces its first task.
    pub tracer: Mutex<Weak<Process>>,
}

/// Bits of [`Task::work`]: why a task must look up before it goes back to its program.
pub mod work {
    /// A signal may be there.
    pub const SIGNAL: u32 = 1;
    /// The process is ending.
    pub const END: u32 = 2;
    /// The process is stopped.
    pub const STOP: u32 = 4;
    /// A core dump of the process is made.
    pub const DUMP: u32 = 8;
}

/// A task: what Linux calls a thread.
pub struct Task {
    id: AtomicU32,
    /// Its process.
    pub process: Arc<Process>,
    /// Itself, as one of the tasks that there may be.
    pub held: quota::Held,
    /// The process's address, for [`word_of`].
    process_at: usize,
    thread: SetOnce<ThreadRef>,
    /// Its address space.
    pub space: Own<Space>,
    /// Its descriptors.
    pub files: Own<FdTable>,
    /// Its directories.
    pub fs: Own<FsContext>,
    /// Who it is.
    pub identity: Identity,
    /// What of them, and of its ids, it knew last; only the task itself asks for it.
    view: Mutex<Option<Arc<View>>>,
    /// Its signals.
    pub signals: Mutex<TaskSignals>,
    /// Where to write 0 and wake when it ends.
    pub clear_tid: AtomicU64,
    /// Robust futex list.
    pub robust_list: AtomicU64,
    /// What it waits for futexes with, once it has.
    pub waiter: SetOnce<Arc<futex::Waiter>>,
    /// Its name.
    pub name: Mutex<[u8; 16]>,
    /// Its activity, if it has one of its own.
    pub own: SetOnce<Activity>,
    /// How its time is divided.
    pub division: TimeDivision,
    /// The most processor time that anybody was told it has used, ns.
    told_ns: AtomicU64,
    /// It was asked for memory, and gives some (`shrinkers.rs`).
    pub gives: AtomicBool,
    /// PR_SET_PDEATHSIG.
    pub death_signal: AtomicU32,
    /// Nice value, policy and priority as they were set.
    pub nice: AtomicI32,
    /// Policy in the high half, priority in the low.
    pub policy: AtomicU32,
    /// SCHED_RESET_ON_FORK: what is real-time or favoured of that is not a child's.
    pub resets_on_fork: AtomicBool,
    /// Real-time priority that those lend it who wait for a lock of its; 0: none.
    pub lent: AtomicU32,
    /// Processor time that it had had when it last got a profiler's signal, ns.
    pub sampled: AtomicU64,
    /// Page faults served.
    pub faults: AtomicU64,
    /// Bytes that it has read and written by read(2), write(2) and their kin. Only the task itself writes to it.
    moved: [AtomicU64; 2],
    /// How often it has tried to. Likewise.
    moves: [AtomicU64; 2],
    /// Faults in a row at the same address without the program getting on.
    pub same_fault: AtomicU64,
    /// System calls of the core when the last fault happened.
    pub fault_calls: AtomicU64,
    /// When the wait is over that it was interrupted in and is about to begin again, on the monotonic clock, ns; 0: there is none.
    pub resumes: AtomicU64,
    /// Timer slack, ns.
    pub slack: AtomicU64,
    /// The same as it began.
    pub usual_slack: u64,
    /// Units of work that it is in.
    pub entered: units::Entered,
    /// How it is traced (`ptrace(2)`).
    pub tracing: Tracing,
    /// What it may call.
    pub filters: Filters,
}

/// For calls that do nothing but read a word of the caller's: where it is, as offsets of a way of pointers that
/// begins at the task. Trampolines read it in place ([`crate::rewrite`]), wherever their thread runs and however
/// often it is interrupted: a task and its process stay where they are as long as the task runs.
pub fn word_of(number: u32) -> Option<&'static [u32]> {
    const AT: u32 = offset_of!(Task, process_at) as u32;
    match number {
        linux::__NR_getpid => Some(&const { [AT, offset_of!(Process, pid) as u32] }),
        linux::__NR_getppid => Some(&const { [AT, offset_of!(Process, ppid) as u32] }),
        linux::__NR_getpgrp => Some(&const { [AT, offset_of!(Process, pgid) as u32] }),
        linux::__NR_gettid => Some(&const { [offset_of!(Task, id) as u32] }),
        _ => None,
    }
}

/// All tasks by thread id, and all processes by process id.
static TASKS: Mutex<BTreeMap<u32, Arc<Task>>> = Mutex::new(BTreeMap::new());
static PROCESSES: Mutex<BTreeMap<u32, Arc<Process>>> = Mutex::new(BTreeMap::new());
static NEXT_ID: AtomicU32 = AtomicU32::new(1);
/// Highest process id (Linux's default pid_max for small machines is this, too).
const ID_MAX: u32 = 4_194_304;

/// The tree of files, and the first process.
pub struct World {
    /// The tree.
    pub tree: Namespace,
    /// A tmpfs for what has no name: memfds, shared memory.
    pub shm: Arc<atoll_fs::tmp::TmpFs>,
    /// Where those are when they are run.
    pub nowhere: &'static atoll_fs::namespace::Mount,
    /// Host name.
    pub hostname: Mutex<Vec<u8>>,
    /// Domain name.
    pub domainname: Mutex<Vec<u8>>,
    /// May programs have internet sockets?
    pub host_network: bool,
    /// Time of the cell's boot: on the monotonic clock and since 1970, ns.
    pub boot: (u64, u64),
    /// Session whose terminal it is that the cell was started on (0: nobody's), and its foreground process group.
    pub session: AtomicU32,
    /// See [`World::session`].
    pub foreground: AtomicU32,
    /// Whoever started the cell can continue its first program.
    pub in_job: bool,
    /// What the machine says of its processors.
    pub cpu: Cpu,
    /// `/proc/sys/kernel/core_pattern`.
    pub core_pattern: Mutex<Vec<u8>>,
    /// Random layout of address spaces?
    pub randomize: AtomicBool,
    /// How memory is brought in.
    pub paging: Paging,
    /// What a file says of that.
    pub memory_policy: MemoryPolicy,
    /// Say more in the log.
    pub verbose: bool,
    /// Processes started so far.
    pub started: AtomicU64,
}

/// What `/proc/cpuinfo` says.
pub struct Cpu {
    /// Model name.
    pub model: alloc::string::String,
    /// Flags.
    pub flags: alloc::string::String,
    /// Frequency, kHz.
    pub khz: u64,
}

static WORLD: SetOnce<World> = SetOnce::new();

/// The world that programs see.
pub fn world() -> &'static World {
    &WORLD
}

/// Sets it up, once.
pub fn set_world(world: World) {
    assert!(WORLD.set(world).is_ok(), "the world was made twice");
}

fn new_id() -> u32 {
    loop {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        if id >= ID_MAX {
            // Start over above the ids that long-lived processes tend to have.
            NEXT_ID.store(300, Ordering::Relaxed);
            continue;
        }
        let is_taken = TASKS.lock().contains_key(&id);
        if !is_taken && !PROCESSES.lock().contains_key(&id) {
            return id;
        }
    }
}

/// The task with this id.
pub fn find_task(tid: u32) -> Option<Arc<Task>> {
    TASKS.lock().get(&tid).cloned()
}

/// The process with this id, zombies included.
pub fn find_process(pid: u32) -> Option<Arc<Process>> {
    PROCESSES.lock().get(&pid).cloned()
}

/// All processes.
pub fn all_processes() -> Vec<Arc<Process>> {
    PROCESSES.lock().values().cloned().collect()
}

/// Number of tasks.
pub fn task_count() -> usize {
    TASKS.lock().len()
}

/// What a new process starts from.
pub struct NewProcess {
    /// Who makes it; None for the first.
    pub maker: Option<Arc<Process>>,
    /// Its parent is its maker's (CLONE_PARENT).
    pub sibling: bool,
    /// Its ids.
    pub ids: Ids,
    /// Its limits.
    pub limits: [Rlimit; LIMITS],
    /// Its signal dispositions.
    pub actions: Arc<Actions>,
    /// Signal for the parent when it ends.
    pub exit_signal: u32,
}

impl Process {
    /// The name that its first task had when it ended.
    pub fn name_at_end(&self) -> Vec<u8> {
        until_zero(&*self.name_at_end.lock()).to_vec()
    }

    /// Its first thread's ids, as others see them.
    pub fn ids(&self) -> Looking<'_, Ids> {
        self.identity.ids.lock()
    }

    /// Whose login it belongs to: user and number.
    pub fn login(&self) -> [u32; 2] {
        self.login.each_ref().map(|word| word.load(Ordering::Relaxed))
    }

    /// A process without tasks. EAGAIN: there are as many as there may be.
    pub fn new(from: NewProcess) -> Result<Arc<Process>> {
        let pid = new_id();
        let (pgid, sid, image, dumpable) = match &from.maker {
            Some(p) => (
                p.pgid.load(Ordering::Relaxed),
                p.sid.load(Ordering::Relaxed),
                p.image.lock().clone(),
                p.dumpable.load(Ordering::Relaxed),
            ),
            None => (pid, pid, Image::default(), 1),
        };
        let inherited = |what: fn(&Process) -> u32| from.maker.as_deref().map_or(0, what);
        let activity = grid::for_process(from.maker.as_deref(), pid, base_name(&image.exe));
        let environment = quota::Current::new(&activity);
        let process = Arc::new(Process {
            pid,
            activity,
            held: quota::Held::one(Quota::Processes, &environment).ok_or(Errno::EAGAIN)?,
            environment,
            parent: Mutex::new(Weak::new()),
            ppid: AtomicU32::new(0),
            parent_thread: AtomicU32::new(0),
            children: Mutex::default(),
            child_events: WaitQueue::new(),
            tasks: Mutex::new(Vec::new()),
            actions: Own::new(from.actions),
            pending: Mutex::new(Pending::default()),
            signal_queue: WaitQueue::new(),
            signal_fds: crate::event::SignalFds::default(),
            identity: Identity::new(from.ids),
            max_files: AtomicU64::new(from.limits[linux::RLIMIT_NOFILE as usize].cur),
            max_file_size: AtomicU64::new(from.limits[linux::RLIMIT_FSIZE as usize].cur),
            limits: Mutex::new(from.limits),
            image: Mutex::new(image),
            pgid: AtomicU32::new(pgid),
            sid: AtomicU32::new(sid),
            life: Mutex::new(Life::Running),
            life_queue: WaitQueue::new(),
            changes: Mutex::new(Changes::default()),
            ending: AtomicI32::new(-1),
            killed: AtomicBool::new(false),
            exit_signal: AtomicU32::new(from.exit_signal),
            usage: Mutex::new(Usage::default()),
            child_usage: Mutex::new(Usage::default()),
            division: TimeDivision::default(),
            started: platform().now(),
            alarm: SetOnce::new(),
            cpu_alarms: Mutex::new([None, None]),
            cpu_limit: Mutex::new(None),
            timers: Mutex::new(BTreeMap::new()),
            next_timer: AtomicI32::new(0),
            released: AtomicBool::new(false),
            released_queue: WaitQueue::new(),
            undoes: AtomicBool::new(false),
            awaits_messages: AtomicBool::new(false),
            execs: AtomicU32::new(0),
            parent_execs: AtomicU32::new(inherited(|p| p.execs.load(Ordering::Relaxed))),
            dumpable: AtomicU32::new(dumpable),
            dump_filter: AtomicU32::new(
                from.maker.as_ref().map_or(DUMP_FILTER, |p| p.dump_filter.load(Ordering::Relaxed)),
            ),
            subreaper: AtomicBool::new(false),
            io_priority: AtomicU32::new(inherited(|p| p.io_priority.load(Ordering::Relaxed))),
            thp_disabled: AtomicBool::new(inherited(|p| p.thp_disabled.load(Ordering::Relaxed).into()) != 0),
            memory_policy: AtomicU32::new(inherited(|p| p.memory_policy.load(Ordering::Relaxed))),
            login: from.maker.as_ref().map_or([u32::MAX; 2], |p| p.login()).map(AtomicU32::new),
            oom_score_adj: AtomicI32::new(
                inherited(|p| p.oom_score_adj.load(Ordering::Relaxed) as u32) as i32
            ),
            oom_score_adj_min: AtomicI32::new(inherited(|p| {
                p.oom_score_adj_min.load(Ordering::Relaxed) as u32
            }) as i32),
            persona: AtomicU32::new(inherited(|p| p.persona.load(Ordering::Relaxed))),
            name_at_end: Mutex::new([0; 16]),
            dump: Dump::default(),
            tracees: Mutex::new(Tracees::default()),
            tracer: Mutex::new(Weak::new()),
        });
        let weak = Arc::downgrade(&process);
        let alarm = Timer::new(move |_| {
            if let Some(p) = weak.upgrade() {
                signal::send_process(&p, Siginfo::from_kernel(linux::SIGALRM, 0x80));
            }
            signal::HOLD
        });
        // The process is new: nobody else can have set it.
        let _ = process.alarm.set(alarm);
        if from.limits[linux::RLIMIT_CPU as usize].cur != u64::MAX {
            process.limit_time();
        }
        match &from.maker {
            Some(maker) if from.sibling => {
                let same = |of: fn(&Process) -> &AtomicU32| {
                    of(&process).store(of(maker).load(Ordering::Relaxed), Ordering::Relaxed);
                };
                let join = |parent: &Arc<Process>, children: &mut Children| {
                    same(|p| &p.exit_signal);
                    same(|p| &p.parent_execs);
                    process.join(parent, children, maker.parent_thread.load(Ordering::Relaxed));
                };
                if maker.with_parent(join).is_none() {
                    process.ppid.store(1, Ordering::Relaxed);
                }
            }
            Some(maker) => process.join(maker, &mut maker.children.lock(), current().tid()),
            None => {}
        }
        PROCESSES.lock().insert(pid, process.clone());
        // Its class may have changed before it could be found there.
        process.held.follow(&process.environment);
        if let Some(w) = WORLD.get() {
            w.started.fetch_add(1, Ordering::Relaxed);
        }
        Ok(process)
    }

    /// It is a child of this process from now on, whose children these are, and of the thread with that id.
    fn join(self: &Arc<Self>, parent: &Arc<Process>, children: &mut Children, thread: u32) {
        *self.parent.lock() = Arc::downgrade(parent);
        self.ppid.store(parent.pid, Ordering::Relaxed);
        self.parent_thread.store(thread, Ordering::Relaxed);
        children.list.push(self.clone());
    }

    /// Calls this with its parent and that one's children, locked: meanwhile it gets no other parent. None: it has no parent.
    pub fn with_parent<R>(&self, f: impl FnOnce(&Arc<Process>, &mut Children) -> R) -> Option<R> {
        loop {
            let parent = self.parent.lock().upgrade()?;
            let mut children = parent.children.lock();
            if self.parent.lock().as_ptr() == Arc::as_ptr(&parent) {
                return Some(f(&parent, &mut children));
            }
        }
    }

    /// Its parent's id; 0 if it is the first, and 1 if its parent has ended and nobody has taken it over.
    pub fn parent_pid(&self) -> u32 {
        self.ppid.load(Ordering::Relaxed)
    }

    /// Its first task, if it still has any.
    pub fn leader(&self) -> Option<Arc<Task>> {
        self.tasks.lock().first().cloned()
    }

    /// A limit.
    pub fn limit(&self, which: u32) -> Rlimit {
        self.limits.lock()[which as usize]
    }

    /// Several, at one time.
    pub fn limits_of<const N: usize>(&self, which: [u32; N]) -> [Rlimit; N] {
        let limits = self.limits.lock();
        which.map(|which| limits[which as usize])
    }

    /// What all its tasks used, the ended ones too.
    pub fn used(&self) -> Usage {
        if current::try_current().is_some_and(|task| core::ptr::eq(&*task.process, self)) {
            // It may be asked of the host, which is not to be with the list locked.
            atoll_task::own_cpu_time();
        }
        // Who ends goes from these to those with both locked, in this order.
        let tasks = self.tasks.lock();
        let mut sum = *self.usage.lock();
        for t in tasks.iter() {
            sum.add(t.used());
        }
        sum
    }

    /// The same, and what the children used that it has waited for.
    pub fn used_with_children(&self) -> Usage {
        let mut used = self.used();
        used.add(*self.child_usage.lock());
        used
    }

    /// What it used itself, where neither the program's part of the time nor the runtime's is less than it was told before.
    pub fn divided(&self) -> Usage {
        self.division.of(self.used())
    }

    /// Sees to it that its limit of processor time is kept (RLIMIT_CPU, setrlimit(2)): SIGXCPU when it is reached and each second
    /// from then on, SIGKILL at the hard one.
    pub fn limit_time(self: &Arc<Self>) {
        const SECOND: u64 = 1_000_000_000;
        let limit = self.limit(linux::RLIMIT_CPU);
        let mut timer = self.cpu_limit.lock();
        if limit.cur == u64::MAX {
            *timer = None;
            return;
        }
        let weak = Arc::downgrade(self);
        let timer = timer.get_or_insert_with(|| {
            CpuTimer::new(CpuClock::Process(weak.clone()), move |_| {
                let Some(p) = weak.upgrade() else { return };
                let used = p.used().run_ns / SECOND;
                let signal = {
                    let limit = &mut p.limits.lock()[linux::RLIMIT_CPU as usize];
                    // As Linux, which so comes to the next second.
                    limit.cur = limit.cur.max(used + 1);
                    if used >= limit.max { linux::SIGKILL } else { linux::SIGXCPU }
                };
                signal::send_process(&p, Siginfo::from_kernel(signal, 0x80));
            })
        });
        timer.set(Some(limit.cur.saturating_mul(SECOND)), SECOND);
    }

    /// Its memory goes: what remains is how much there was.
    pub fn forget_memory(&self, memory: &AddressSpace) {
        let peak = memory.peak();
        self.usage.lock().add(Usage { peak, ..Usage::default() });
        memory.clear();
    }

    /// Is it ending?
    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed) != -1
    }

    /// Has it ended?
    pub fn zombie(&self) -> Option<i32> {
        match *self.life.lock() {
            Life::Zombie(status) => Some(status),
            _ => None,
        }
    }

    /// Makes all its tasks end with a wait status. The first one to say so counts.
    pub fn end(&self, status: i32) {
        // How one ends whose core is dumped is said by the signal that it is dumped for.
        if status != linux::SIGKILL as i32 && core_dump::is_begun(self) {
            return;
        }
        self.end_as(status);
    }

    /// The same, whatever else is going on.
    pub fn end_as(&self, status: i32) {
        let first = self.ending.compare_exchange(-1, status, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        let killed = status == linux::SIGKILL as i32 && !self.killed.swap(true, Ordering::SeqCst);
        if !first && !killed {
            return;
        }
        for t in self.tasks.lock().iter() {
            t.poke(work::END);
        }
        self.life_queue.wake_all(1);
    }

    /// How its memory is brought in where it doesn't say otherwise.
    pub fn paging(&self) -> Paging {
        if self.thp_disabled.load(Ordering::Relaxed) {
            return Paging::Demand;
        }
        memory_policy::of(self).and_then(|p| p.paging).unwrap_or(world().paging)
    }

    /// Has its program's memory brought in as all says that is said of it.
    pub fn apply_paging(&self, memory: &AddressSpace) {
        let heap = memory_policy::of_kind(memory_policy::of(self), MappingKind::Heap);
        memory.set_paging(self.paging(), heap);
    }

    /// Leaves the parent's address space: a vfork's parent may go on.
    pub fn release_parent(&self) {
        self.released.store(true, Ordering::SeqCst);
        self.released_queue.wake_all(1);
    }

    /// Forgets a process that has ended and that nobody is going to wait for any more.
    pub fn forget(&self) {
        PROCESSES.lock().remove(&self.pid);
        // A pidfd tells of it.
        self.life_queue.wake_all(poll::HUP);
        self.held.give_back();
    }
}

impl Task {
    /// Its thread id.
    #[inline]
    pub fn tid(&self) -> u32 {
        self.id.load(Ordering::Relaxed)
    }

    /// Takes the process's id, as the one task that is left after an exec.
    pub fn become_leader(&self) {
        let was = self.tid();
        let mut tasks = TASKS.lock();
        if let Some(me) = tasks.remove(&was) {
            self.id.store(self.process.pid, Ordering::Relaxed);
            tasks.insert(self.process.pid, me);
        }
        drop(tasks);
        for child in &self.process.children.lock().list {
            let _ =
                child.parent_thread.compare_exchange(was, self.tid(), Ordering::Relaxed, Ordering::Relaxed);
        }
        self.show_ids();
        ptrace::became_leader(self, was);
    }

    /// The thread that runs it.
    #[inline]
    pub fn thread(&self) -> ThreadRef {
        self.thread.get().expect("a task has a thread")
    }

    /// The core that it runs on; the first for one that has not begun.
    pub fn core(&self) -> usize {
        self.thread.get().map_or(0, |t| t.core())
    }

    /// It has read something (0) or written it (1), or has tried to: so many bytes. By the task itself.
    #[inline]
    pub fn has_moved(&self, which: usize, bytes: u64) {
        let add = |to: &AtomicU64, n: u64| to.store(to.load(Ordering::Relaxed) + n, Ordering::Relaxed);
        add(&self.moved[which], bytes);
        add(&self.moves[which], 1);
    }

    /// What it used, the time since its last switch included.
    pub fn used(&self) -> Usage {
        let Some(t) = self.thread.get() else { return Usage::default() };
        let is_own = current::try_current().is_some_and(|task| core::ptr::eq(task, self));
        let had = if is_own { atoll_task::own_cpu_time() } else { t.cpu_time() };
        // A clock that never goes back: it stands still if what the host has taken is known later.
        let run_ns = self.told_ns.fetch_max(had, Ordering::Relaxed).max(had);
        let (voluntary, forced) = t.switches();
        let faults = self.faults.load(Ordering::Relaxed);
        let system_ns = t.system_time().min(run_ns);
        let [moved, calls] =
            [&self.moved, &self.moves].map(|all| all.each_ref().map(|n| n.load(Ordering::Relaxed)));
        Usage { run_ns, system_ns, voluntary, forced, faults, moved, calls, stored: t.stored(), peak: 0 }
    }

    /// As [`Process::divided`].
    pub fn divided(&self) -> Usage {
        self.division.of(self.used())
    }

    /// The [`work`] that it is asked for. Only who has the list of the process's tasks locked asks others to end: a thread that
    /// has ended may be another task's by now, for whom a look at its signals is no harm.
    #[inline]
    pub fn asked(&self) -> u32 {
        self.thread.get().map_or(0, |t| t.asked())
    }

    /// Makes it look up: when it returns to its program at the latest.
    pub fn poke(&self, why: u32) {
        let Some(thread) = self.thread.get() else { return };
        thread.ask(why);
        atoll_task::unpark(thread);
        if thread.is_running() && thread.core() != core_local().id() {
            platform().interrupt(thread.core());
        }
    }

    /// Its name, without trailing zeroes.
    pub fn name(&self) -> Vec<u8> {
        until_zero(&*self.name.lock()).to_vec()
    }

    /// Sets its name, cut to 15 bytes.
    pub fn set_name(&self, name: &[u8]) {
        let mut n = [0; 16];
        let len = name.len().min(15);
        n[..len].copy_from_slice(&name[..len]);
        *self.name.lock() = n;
        if let Some(own) = self.own.get() {
            own.rename(until_zero(&n));
        }
    }

    /// Has its thread scheduled as its policy and nice value say, and as it is lent.
    pub fn tell_scheduler(&self) {
        let (nice, policy) = (self.nice.load(Ordering::Relaxed), self.policy.load(Ordering::Relaxed));
        let lent = self.lent.load(Ordering::Relaxed);
        let priority = policy & 0xffff;
        let policy = match policy >> 16 {
            _ if lent > self.own_urgency() => Policy::Fifo(lent),
            linux::SCHED_FIFO => Policy::Fifo(priority),
            linux::SCHED_RR => Policy::RoundRobin(priority),
            linux::SCHED_IDLE => Policy::Fair(atoll_task::WEIGHT_IDLE),
            _ => Policy::Fair(atoll_task::weight_of(nice)),
        };
        if let Some(thread) = self.thread.get() {
            atoll_task::set_policy(thread, policy);
        }
    }

    /// Real-time priority that it was given, 1 to 99; 0: none.
    fn own_urgency(&self) -> u32 {
        let policy = self.policy.load(Ordering::Relaxed);
        match policy >> 16 {
            linux::SCHED_FIFO | linux::SCHED_RR => policy & 0xffff,
            _ => 0,
        }
    }

    /// The same with what others lend it, who wait for it.
    #[inline]
    pub fn urgency(&self) -> u32 {
        self.own_urgency().max(self.lent.load(Ordering::Relaxed))
    }

    /// It is lent this real-time priority from now on. Value: is that another one than before?
    pub(crate) fn lend(&self, priority: u32) -> bool {
        let changed = self.lent.swap(priority, Ordering::Relaxed) != priority;
        if changed {
            self.tell_scheduler();
        }
        changed
    }

    /// Its ids.
    pub fn ids(&self) -> Looking<'_, Ids> {
        self.identity.ids.lock()
    }

    /// Ids as file systems see them.
    pub fn cred(&self) -> Cred {
        self.ids().cred()
    }

    /// Who it is and where its paths begin, now. Its threads share no lock for that.
    pub fn view(&self) -> Arc<View> {
        let (fs, ids) = (&*self.fs, &self.identity.ids);
        let of = [fs.root.version(), fs.cwd.version(), ids.version()];
        let mut view = self.view.lock();
        if let Some(known) = &*view
            && known.of == of
        {
            return known.clone();
        }
        let (root, cwd) = (fs.root.lock().clone(), fs.cwd.lock().clone());
        let new = Arc::new(View { root, cwd, cred: ids.lock().cred(), of });
        let old = view.replace(new.clone());
        drop(view);
        drop(old);
        new
    }

    /// Keeps no directory that it has left.
    pub fn forget_view(&self) {
        let old = self.view.lock().take();
        drop(old);
    }

    /// May it do what this capability (CAP_...) is for?
    pub fn may(&self, capability: u32) -> bool {
        self.ids().may(capability)
    }

    /// Others see its ids as its process's, if it is the first thread.
    fn show_ids(&self) {
        while self.tid() == self.process.pid {
            let version = self.identity.ids.version();
            let ids = self.ids().clone();
            self.process.identity.change(|shown| *shown = ids);
            // Another thread may have changed them, too, and have shown that before this (a filter for all threads).
            if self.identity.ids.version() == version {
                break;
            }
        }
    }

    /// Changes its ids. Who becomes somebody else or may do more hides its memory, and is no longer told when its
    /// parent ends (Linux's `commit_creds`).
    pub fn change_ids<R>(&self, f: impl FnOnce(&mut Ids) -> R) -> R {
        let (r, other) = self.identity.change(|ids| {
            let before = ids.clone();
            let r = f(ids);
            let acts_as = |i: &Ids| [i.euid, i.egid, i.fsuid, i.fsgid];
            let gained = ids.capabilities.permitted & !before.capabilities.permitted != 0;
            (r, gained || acts_as(ids) != acts_as(&before))
        });
        self.show_ids();
        if other {
            self.process.dumpable.store(0, Ordering::Relaxed);
            self.death_signal.store(0, Ordering::Relaxed);
        }
        r
    }

    /// It gets the ids with which a program runs whose file has these attributes and capabilities.
    pub fn take_ids(&self, attr: &Attr, file: Option<FileCapabilities>) {
        let own = {
            let ids = self.ids();
            (ids.euid, ids.egid) == (ids.ruid, ids.rgid)
        };
        // Who may run a file but not read it doesn't get to read it so.
        let readable = self.cred().check(attr, may::READ).is_ok();
        self.process.dumpable.store((own && readable).into(), Ordering::Relaxed);
        let (mut attr, mut file) = (*attr, file);
        self.tracing.hold(|tracer| {
            // Who traces it would have them, too.
            if tracer.is_some_and(|tracer| !tracer.ids().may(linux::CAP_SYS_PTRACE)) {
                attr.mode &= !(linux::S_ISUID | linux::S_ISGID);
                let has = self.ids().capabilities.permitted;
                file = file.map(|file| file.within(has));
            }
            self.change_ids(|ids| ids.run(&attr, file));
        });
    }
}

/// The last part of a path.
pub fn base_name(path: &[u8]) -> &[u8] {
    path.rsplit(|b| *b == b'/').next().unwrap_or(path)
}

/// What a new task does before its program runs, with its registers.
pub type First = Box<dyn FnOnce(&mut UserFrame) + Send>;

/// A name without trailing zeroes.
fn until_zero(name: &[u8]) -> &[u8] {
    name.split(|b| *b == 0).next().unwrap_or(name)
}

/// What a new task starts from.
pub struct NewTask {
    /// Its process.
    pub process: Arc<Process>,
    /// Its address space.
    pub space: Arc<Space>,
    /// Its descriptors.
    pub files: Arc<FdTable>,
    /// Its directories.
    pub fs: Arc<FsContext>,
    /// Who it is.
    pub ids: Ids,
    /// Its registers.
    pub frame: Box<UserFrame>,
    /// Blocked signals.
    pub blocked: u64,
    /// Alternate signal stack.
    pub altstack: crate::types::StackT,
    /// Where to write 0 when it ends.
    pub clear_tid: u64,
    /// Name.
    pub name: [u8; 16],
    /// Thread id, if it is the first task of its process.
    pub tid: Option<u32>,
    /// Nice value, policy and affinity are the maker's.
    pub like: Option<ThreadRef>,
    /// Nice value.
    pub nice: i32,
    /// Policy and priority, as [`Task::policy`].
    pub policy: u32,
    /// Timer slack, ns.
    pub slack: u64,
    /// What it may call.
    pub filters: Filters,
    /// Called in the new task's own thread before its program runs, with its registers.
    pub first: Option<First>,
}

/// Makes a task that begins with its frame when it is started. EAGAIN: no memory for it, or there are as many as there may be.
pub fn new_task(new: NewTask) -> Result<Arc<Task>> {
    let held = quota::Held::one(Quota::Tasks, &new.process.environment).ok_or(Errno::EAGAIN)?;
    let tid = new.tid.unwrap_or_else(new_id);
    let task = Arc::new(Task {
        id: AtomicU32::new(tid),
        process: new.process.clone(),
        held,
        process_at: Arc::as_ptr(&new.process).expose_provenance(),
        thread: SetOnce::new(),
        space: Own::new(new.space.clone()),
        files: Own::new(new.files),
        fs: Own::new(new.fs),
        identity: Identity::new(new.ids),
        view: Mutex::new(None),
        signals: Mutex::new(TaskSignals::new(new.blocked, new.altstack)),
        clear_tid: AtomicU64::new(new.clear_tid),
        robust_list: AtomicU64::new(0),
        waiter: SetOnce::new(),
        name: Mutex::new(new.name),
        own: SetOnce::new(),
        division: TimeDivision::default(),
        told_ns: AtomicU64::new(0),
        gives: AtomicBool::new(false),
        death_signal: AtomicU32::new(0),
        nice: AtomicI32::new(new.nice),
        policy: AtomicU32::new(new.policy),
        resets_on_fork: AtomicBool::new(false),
        lent: AtomicU32::new(0),
        sampled: AtomicU64::new(0),
        faults: AtomicU64::new(0),
        moved: Default::default(),
        moves: Default::default(),
        same_fault: AtomicU64::new(0),
        fault_calls: AtomicU64::new(0),
        resumes: AtomicU64::new(0),
        slack: AtomicU64::new(new.slack),
        usual_slack: new.slack,
        entered: units::Entered::default(),
        tracing: Tracing::new(),
        filters: new.filters,
    });
    let (frame, first) = (new.frame, new.first);
    let begin = move || {
        books::begin(books::START, Resource::Process);
        // SAFETY: this thread's own frame, in the runtime.
        let f = unsafe { atoll_task::current().frame() };
        *f = *frame;
        // What comes before the program may wait, and then the frame gets what the register has.
        atoll_task::set_thread_pointer(f.fs_base);
        if let Some(first) = first {
            first(f);
        }
        books::end();
    };
    let thread = atoll_task::spawn_program(new.space.id, begin, || begin_program()).ok_or(Errno::EAGAIN)?;
    let maker = current::try_current().filter(|maker| Arc::ptr_eq(&maker.process, &new.process));
    grid::thread_begins(&task);
    let own = task.own.get().unwrap_or(&new.process.activity);
    let unit = maker.as_ref().and_then(|maker| task.entered.inherit(maker, own));
    thread.work_for(unit.unwrap_or_else(|| own.clone()));
    thread.set_personality(Arc::as_ptr(&task).cast_mut().cast());
    if let Some(like) = new.like {
        thread.set_affinity(like.affinity());
    }
    thread.choose_core();
    thread.set_tag(tid);
    // The task is new: nobody else can have set it.
    let _ = task.thread.set(thread);
    task.tell_scheduler();
    TASKS.lock().insert(tid, task.clone());
    new.process.tasks.lock().push(task.clone());
    if let Some(maker) = &maker {
        // Others of its process may have given all of them a filter before it was one of these.
        task.filters.follow(&maker.filters);
        if maker.ids().capabilities.no_new_privileges {
            task.change_ids(|ids| ids.capabilities.no_new_privileges = true);
        }
    }
    // Its process's class may have changed before it was one of these.
    task.held.follow(&new.process.environment);
    if new.process.is_ending() {
        task.poke(work::END);
    } else if core_dump::is_begun(&new.process) {
        task.poke(work::DUMP);
    }
    Ok(task)
}

/// Lets a new task run.
pub fn start(task: &Task) {
    atoll_task::start(task.thread());
}

/// The current thread goes to its program, unless it is to end or to stop before that. Nothing that it owns is on its stack here: where
/// it ends, it doesn't come back.
fn begin_program() -> ! {
    let task = current();
    if task.asked() != 0 {
        books::begin(books::START, Resource::Process);
        // SAFETY: this thread's own frame, in the runtime.
        signal::handle_work(task, unsafe { atoll_task::current().frame() });
        books::end();
    }
    resume_current()
}

unsafe extern "C" {
    /// The platform's way back to a program.
    fn atoll_resume(frame: *mut UserFrame) -> !;
}

/// Goes on with the current thread's program as its frame says.
pub fn resume_current() -> ! {
    // SAFETY: the frame is the current thread's; nothing on its runtime stack is needed any more.
    unsafe { atoll_resume(atoll_task::current().frame()) }
}

impl Task {
    /// The current task leaves its memory: who waits for its thread id there to go is told, if there are others (`mm_release` of Linux).
    pub fn clear_tid(&self, several: bool) {
        let clear = self.clear_tid.swap(0, Ordering::Relaxed);
        let others = || several || self.space.users.load(Ordering::SeqCst) > 1;
        if clear != 0 && others() && user::write(clear, &0u32.to_ne_bytes()).is_ok() {
            futex::wake_address(self, clear, 1);
        }
    }
}

/// Ends the current task; `status` is the process's wait status if this is its last task.
pub fn exit_task(status: i32) -> ! {
    {
        let task = current();
        atoll_task::ends_soon();
        if task.tracing.is_on() {
            // SAFETY: this thread's own frame, in the runtime; its program won't run again.
            ptrace::about_to_end(task, unsafe { atoll_task::current().frame() }, status);
        }
        leave(task, status);
    }
    atoll_task::exit()
}

fn leave(task: &Task, status: i32) {
    let process = task.process.clone();
    units::leave_all(task);
    futex::task_ends(task);
    ptrace::ends(task, status);
    task.forget_view();
    if task.tid() == process.pid {
        *process.name_at_end.lock() = *task.name.lock();
    }
    let several = process.tasks.lock().len() > 1;
    task.clear_tid(several);
    let me = {
        let mut tasks = process.tasks.lock();
        let at = tasks.iter().position(|t| t.tid() == task.tid()).expect("a task is in its process");
        process.usage.lock().add(task.divided());
        let last = tasks.len() == 1;
        let me = tasks.remove(at);
        drop(tasks);
        if last {
            let ending = process.ending.load(Ordering::SeqCst);
            exit_process(&process, &me, if ending != -1 { ending } else { status });
        } else {
            signal::task_ends(task);
            leave_children(task);
            let is_taken = process.leader().is_some_and(|t| t.tid() == task.tid());
            if !is_taken && !process.tracees.lock().list.is_empty() {
                ptrace::tracer_ends(&process, Some(task.tid()));
            }
            // The one that is left by an exec has its id by now, perhaps.
            let mut tasks = TASKS.lock();
            if tasks.get(&task.tid()).is_some_and(|t| Arc::ptr_eq(t, &me)) {
                tasks.remove(&task.tid());
            }
        }
        me
    };
    // What its process had, if this was the last, is free by now.
    shrinkers::task_ends(task);
    task.held.give_back();
    pi::owner_ends(task);
    // A thread of a process that is in `exec` waits for the others to be gone.
    process.life_queue.wake_all(1);
    core_dump::task_ends(&process);
    core_local().task.store(core::ptr::null_mut(), Ordering::Relaxed);
    // What the task holds goes with the last reference to it: files close here.
    drop(me);
}

/// The last task of a process ends.
fn exit_process(process: &Arc<Process>, last: &Arc<Task>, status: i32) {
    // By its last task's end, perhaps: whatever is closed below is closed by a process that ends.
    let _ = process.ending.compare_exchange(-1, status, Ordering::SeqCst, Ordering::SeqCst);
    if let Some(alarm) = process.alarm.get() {
        alarm.stop();
    }
    *process.cpu_alarms.lock() = [None, None];
    *process.cpu_limit.lock() = None;
    process.timers.lock().clear();
    units::end_all(process);
    // Close now, not when the last reference to the task goes: peers wait for it.
    let files = last.files.replace(Arc::new(FdTable::new()));
    if Arc::strong_count(&files) == 1 {
        files.close_all();
    }
    drop(files);
    crate::pty::leader_ends(process);
    crate::syscalls::fd::locks::release_all(process.pid);
    ipc::sem::undo(process);
    ipc::mqueue::leave(process);
    if last.space.users.fetch_sub(1, Ordering::SeqCst) == 1 {
        aio::leave(&last.space);
        if process.pid != first_pid() {
            // This thread is in that space, so now is the time.
            process.forget_memory(&last.space.memory);
        }
    }
    process.release_parent();
    let orphans = orphan_children(process, last);
    crate::jobs::process_ends(process, &orphans);
    // Whoever waits for the end may write to what ran.
    let running = process.image.lock().running.take();
    drop(running);
    // Whoever is told of the end finds no thread any more, and the id may be another's once it was waited for.
    TASKS.lock().remove(&last.tid());
    ptrace::process_ends(process, last, status);
    tell_of_end(process, status);
}

/// si_code and si_status of the end with a wait status.
pub fn end_code(status: i32) -> (u32, i32) {
    match status & 0x7f {
        0 => (linux::CLD_EXITED, status >> 8),
        signal if status & 0x80 != 0 => (linux::CLD_DUMPED, signal),
        signal => (linux::CLD_KILLED, signal),
    }
}

/// A thread that made this process has ended: whoever has asked for it has a signal sent to the process (PR_SET_PDEATHSIG).
fn tell_of_parent(child: &Arc<Process>, ended: &Task) {
    let asked: Vec<u32> = child.tasks.lock().iter().map(|t| t.death_signal.load(Ordering::Relaxed)).collect();
    for signal in asked.into_iter().filter(|signal| *signal != 0) {
        let (pid, uid) = (ended.process.pid, ended.ids().ruid);
        signal::send_process(child, Siginfo::from_user(signal, 0, pid, uid, 0));
    }
}

/// A task ends that isn't the last of its process's: another one of these takes over the children that it has made.
fn leave_children(task: &Task) {
    let children = task.process.children.lock();
    // If there is none any more, its process ends, too, and does the rest.
    let Some(next) = task.process.leader() else { return };
    // One that execs has taken its id, and its children with that.
    if next.tid() == task.tid() {
        return;
    }
    for child in &children.list {
        if child.parent_thread.load(Ordering::Relaxed) == task.tid() {
            child.parent_thread.store(next.tid(), Ordering::Relaxed);
            tell_of_parent(child, task);
        }
    }
}

/// The children of a process that ends go to the nearest subreaper above it (`forget_original_parent` of Linux), or to nobody, and then
/// they are forgotten when they have ended. Value: who they are.
fn orphan_children(process: &Arc<Process>, last: &Task) -> Vec<Arc<Process>> {
    let mut children = process.children.lock();
    children.closed = true;
    let orphans = core::mem::take(&mut children.list);
    if orphans.is_empty() {
        return orphans;
    }
    let mut above = process.parent.lock().upgrade();
    let mut has_heir = false;
    let mut from = above.as_ref().map(|p| p.pid);
    while let Some(heir) = above.filter(|_| !has_heir) {
        if heir.subreaper.load(Ordering::Relaxed) {
            let mut theirs = heir.children.lock();
            has_heir = !theirs.closed;
            if has_heir {
                let thread = heir.leader().map_or(0, |t| t.tid());
                for child in &orphans {
                    child.exit_signal.store(linux::SIGCHLD, Ordering::Relaxed);
                    child.join(&heir, &mut theirs, thread);
                    if let Some(status) = child.zombie() {
                        notify(child, &heir, &mut theirs, status);
                    }
                }
                drop(theirs);
                heir.child_events.wake_all(1);
            }
        }
        above = heir.parent.lock().upgrade();
        // Those above it end, too, and what it goes by then leads nowhere: its own parent is another one by now.
        if above.is_none() && !has_heir {
            let parent = process.parent.lock().upgrade();
            let again = parent.filter(|p| from != Some(p.pid));
            from = again.as_ref().map(|p| p.pid).or(from);
            above = again;
        }
    }
    for child in &orphans {
        // From when it has no parent, it is forgotten where it ends.
        let over = !has_heir && child.zombie().is_some();
        if !has_heir {
            child.ppid.store(1, Ordering::Relaxed);
            child.parent_thread.store(0, Ordering::Relaxed);
            *child.parent.lock() = Weak::new();
        }
        if over {
            child.forget();
        } else {
            tell_of_parent(child, last);
        }
    }
    orphans
}

/// Makes a process a zombie and tells its parent; without one, or if it does not care, forgets it at once.
fn tell_of_end(process: &Arc<Process>, status: i32) {
    let end = || {
        *process.life.lock() = Life::Zombie(status);
        process.life_queue.wake_all(poll::IN | poll::RDNORM);
    };
    // Who waits looks with the children locked: a zombie and its signal are there at the same time, and one that nobody waits for is
    // never seen.
    let told = process.with_parent(|parent, children| {
        end();
        notify(process, parent, children, status);
        parent.clone()
    });
    match told {
        Some(parent) => parent.child_events.wake_all(1),
        None => {
            end();
            if process.pid == first_pid() {
                flush_everything(|fs| fs.sync());
                platform().end(status);
            }
            process.forget();
        }
    }
}

/// Tells a parent, whose children these are, of a zombie among them (`do_notify_parent` of Linux), and forgets it if nobody is going to
/// wait for it.
fn notify(child: &Arc<Process>, parent: &Arc<Process>, children: &mut Children, status: i32) {
    // Another signal is between it and the program that made it.
    let same = child.parent_execs.load(Ordering::Relaxed) == parent.execs.load(Ordering::Relaxed);
    let signal = if same { child.exit_signal.load(Ordering::Relaxed) } else { linux::SIGCHLD };
    let ignored = signal == linux::SIGCHLD && parent.actions.ignores_children();
    // `clone` takes any number.
    if (1..=signal::MAX).contains(&signal) {
        let (code, value) = end_code(status);
        let uid = child.ids().ruid;
        let [user, system] = child.divided().ticks();
        let mut info = Siginfo::child(code as i32, child.pid, uid, value, user, system);
        info.signo = signal as i32;
        signal::send_process(parent, info);
    }
    if ignored {
        children.reap(child);
    }
}

static FIRST: AtomicU32 = AtomicU32::new(0);

/// Process id of the cell's first program.
pub fn first_pid() -> u32 {
    FIRST.load(Ordering::Relaxed)
}

/// Says which it is.
pub fn set_first(process: &Process) {
    FIRST.store(process.pid, Ordering::Relaxed);
}

/// Writes out what file systems hold back.
pub fn flush_everything(flush: impl Fn(&dyn FileSystem) -> Result<()>) {
    for m in world().tree.mounts() {
        if let Err(e) = flush(&*m.fs) {
            log::line(format_args!("writing out {}: {e}", alloc::string::String::from_utf8_lossy(&m.target)));
        }
    }
}
