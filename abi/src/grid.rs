//! The grid's books and its configuration: what a cell and those who look at it share.
//!
//! The *directory* names the cell's activities, one [`Record`] each. An activity's *sheets* lie in the cell's memory, one
//! for each core, and only that core writes there: a reader adds them up, and what the core is at just then
//! ([`CoreLocal::with_open_record`](crate::core_local::CoreLocal::with_open_record)), and stops nobody. All times are in nanoseconds.
//! The supervisor trusts nothing that it reads here: it copies, then checks.
//!
//! The paper calls what a sheet's entry holds a *resource consumption record* (Omni-kernel, section 2.2), and what a
//! [`Snapshot`](Record) of all of them shows is its figures 4 and 6.

#[cfg(feature = "boot")]
use alloc::{string::String, vec::Vec};
use core::sync::atomic::{AtomicI64, AtomicU8, AtomicU32, AtomicU64};
#[cfg(feature = "boot")]
use serde::{Deserialize, Serialize};

/// A resource of the grid.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "boot", derive(Serialize, Deserialize))]
pub enum Resource {
    /// Programs' own code.
    Thread = 0,
    /// Processes and their signals; loading programs.
    Process = 1,
    /// Mappings and page faults.
    AddressSpace = 2,
    /// Pages: found, zeroed, taken back.
    Memory = 3,
    /// Names, attributes and descriptors of files.
    Files = 4,
    /// Data of files.
    FileCache = 5,
    /// Pipes, Unix sockets, terminals, event objects.
    Pipe = 6,
    /// Internet sockets, and on the nucleus the protocols under them.
    Socket = 7,
    /// What is read from the host or a device. Its bytes are those that came.
    DeviceRead = 8,
    /// What is written to the host or a device. Its bytes are those that left.
    DeviceWrite = 9,
    /// Interrupts, answers and readiness.
    Completion = 10,
    /// Clocks, timers and what they do when they are due.
    Timer = 11,
    /// Waiting and waking: futexes, epoll, poll.
    Wait = 12,
    /// The grid's and the scheduler's own work.
    Overhead = 13,
    /// Cores that have nothing to do.
    Idle = 14,
    /// What the host took from the cores.
    Stolen = 15,
}

/// How many resources there are.
pub const RESOURCES: usize = 16;

impl Resource {
    /// All of them, in the order of their numbers.
    pub const ALL: [Resource; RESOURCES] = [
        Resource::Thread,
        Resource::Process,
        Resource::AddressSpace,
        Resource::Memory,
        Resource::Files,
        Resource::FileCache,
        Resource::Pipe,
        Resource::Socket,
        Resource::DeviceRead,
        Resource::DeviceWrite,
        Resource::Completion,
        Resource::Timer,
        Resource::Wait,
        Resource::Overhead,
        Resource::Idle,
        Resource::Stolen,
    ];

    /// Those that serve messages which threads send. Timers and completions are what a core's event thread does, and the others serve
    /// nobody.
    pub const SERVING: [Resource; 10] = [
        Resource::Process,
        Resource::AddressSpace,
        Resource::Memory,
        Resource::Files,
        Resource::FileCache,
        Resource::Pipe,
        Resource::Socket,
        Resource::DeviceRead,
        Resource::DeviceWrite,
        Resource::Wait,
    ];

    /// Its name in files and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Resource::Thread => "thread",
            Resource::Process => "process",
            Resource::AddressSpace => "address-space",
            Resource::Memory => "memory",
            Resource::Files => "files",
            Resource::FileCache => "file-cache",
            Resource::Pipe => "pipe",
            Resource::Socket => "socket",
            Resource::DeviceRead => "device-read",
            Resource::DeviceWrite => "device-write",
            Resource::Completion => "completion",
            Resource::Timer => "timer",
            Resource::Wait => "wait",
            Resource::Overhead => "overhead",
            Resource::Idle => "idle",
            Resource::Stolen => "stolen",
        }
    }
}

/// What one activity has used of one resource on one core.
#[repr(C)]
#[derive(Default)]
pub struct Entry {
    /// Processor time, ns. What is sampled makes it jump ahead and back a little: see `docs/grid.md`.
    pub time: AtomicI64,
    /// Messages.
    pub messages: AtomicU64,
    /// Bytes moved.
    pub bytes: AtomicU64,
    /// Time that its messages stood in a queue, ns.
    pub queued: AtomicU64,
    /// Time that the platform had its requests, ns, from when each was sent until its answer was taken in; of those under way at the
    /// same time, the sum. What was taken for the substitute's and is somebody's makes it go back.
    pub device: AtomicI64,
    /// Messages that stood in the queue before the resource's gate.
    pub waits: AtomicU64,
    /// How often its scheduler chose them there; each time up to a batch of messages were taken.
    pub turns: AtomicU64,
    /// How often what is counted has happened ([`GridArea::counts`]). What is sampled makes it jump, as it does the time.
    pub counted: AtomicI64,
}

/// One activity's entries on one core, by [`Resource`].
#[repr(C, align(64))]
#[derive(Default)]
pub struct Sheet {
    /// The entries.
    pub entries: [Entry; RESOURCES],
}

/// Pages of 4 KiB that each activity holds, by number, as far as one core has taken them, less what it has given back.
#[repr(C, align(128))]
pub struct Held(pub [AtomicI64; ACTIVITIES_MAX]);

/// Something of which an activity can have a quota: so many at a time.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Quota {
    /// Threads, the first ones of processes included.
    Tasks = 0,
    /// Processes, those included that have ended and were not waited for.
    Processes = 1,
    /// POSIX timers and timerfds.
    Timers = 2,
    /// What is waited at, and counts: eventfds, epoll instances, signalfds.
    Events = 3,
    /// Pipes and sockets.
    Channels = 4,
}

/// How many kinds of quotas there are.
pub const QUOTAS: usize = 5;

impl Quota {
    /// All of them, in the order of their numbers.
    pub const ALL: [Quota; QUOTAS] =
        [Quota::Tasks, Quota::Processes, Quota::Timers, Quota::Events, Quota::Channels];

    /// Its name in files and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Quota::Tasks => "tasks",
            Quota::Processes => "processes",
            Quota::Timers => "timers",
            Quota::Events => "events",
            Quota::Channels => "channels",
        }
    }
}

/// Words of a line for quotas: room for more kinds.
pub const QUOTA_WORDS: usize = 8;

/// What one core has leased of an activity's quotas ([`LEASE_SPARE`]), by [`Quota`].
#[repr(C, align(64))]
#[derive(Default)]
pub struct LeaseLine(pub [AtomicU64; QUOTA_WORDS]);

/// What of a lease's word says how many are leased and not used.
pub const LEASE_SPARE: u64 = (1 << 24) - 1;

/// An activity's quotas, a copy for others to read: how many are used is `leased` less what cores have leased and don't use.
#[repr(C, align(64))]
pub struct Account {
    /// Used, or leased.
    pub leased: [AtomicU32; QUOTA_WORDS],
    /// How many there may be; 0: there is no limit.
    pub most: [AtomicU32; QUOTA_WORDS],
    /// The most memory that it may hold, bytes; 0: there is no limit.
    pub memory_max: AtomicU64,
    /// Memory that it has in any case, bytes.
    pub memory_min: AtomicU64,
    /// How often it was refused more ([`MemoryQuota::max`]).
    pub memory_refused: AtomicU64,
    /// How often nothing of its memory could be given back then, and a program needed some.
    pub oom: AtomicU64,
    /// How many of its processes were ended for that.
    pub oom_kills: AtomicU64,
}

/// The most activities at a time.
pub const ACTIVITIES_MAX: usize = 256;
/// Records that programs' units and threads leave to others.
pub const KEPT_FROM_UNITS: usize = 64;
/// The longest name of an activity, bytes.
pub const NAME_MAX: usize = 40;
/// The activity that is the whole cell: parent of all, and of what nobody else stands for.
pub const ROOT: u32 = 0;
/// The substitute activity for what isn't known yet to be anybody's (Omni-kernel, section 2.2).
pub const INFRASTRUCTURE: u32 = 1;

/// What an activity is.
pub mod kind {
    /// The record is free.
    pub const NONE: u32 = 0;
    /// The cell.
    pub const CELL: u32 = 1;
    /// A substitute.
    pub const SUBSTITUTE: u32 = 2;
    /// One that the configuration names.
    pub const NAMED: u32 = 3;
    /// A process.
    pub const PROCESS: u32 = 4;
    /// A unit of work that a process named: see [`call`](super::call).
    pub const UNIT: u32 = 5;
    /// A thread of a process.
    pub const THREAD: u32 = 6;
}

/// Calls that Linux doesn't have, by which a program says what it works for, and what it wants of its memory
/// (`libatoll/include/atoll.h`). They come as system calls do, by numbers that mean nothing to Linux, which answers ENOSYS.
pub mod call {
    /// Is this a cell? Value: [`VERSION`].
    pub const HELLO: u64 = 0x0a70_11f0;
    /// Name (address, length): a new unit of the process's. Value: a handle, above 0. ENOSPC: there are as many as there can be.
    pub const CREATE: u64 = HELLO + 1;
    /// Handle: the calling thread works for this unit from now on. ENOSPC: it is in [`DEPTH_MAX`] already.
    pub const ENTER: u64 = HELLO + 2;
    /// Handle: it does so no longer, but works for what it worked for before.
    pub const LEAVE: u64 = HELLO + 3;
    /// Handle: nobody enters the unit any more.
    pub const END: u64 = HELLO + 4;
    /// Value: handle of the unit that the calling thread works for; 0: none.
    pub const CURRENT: u64 = HELLO + 5;
    /// The calling thread has nothing more to give back: it waits until memory is short. Value: bytes that it is asked for, about. EINTR.
    pub const SHRINK: u64 = HELLO + 32;
    /// Range (address, length, whole pages), place for a bit a page: which were written to since this was last asked. Value: how many
    /// pages. ENOMEM: not all is mapped; EINVAL: of some it can't be said.
    pub const PAGES_WRITTEN: u64 = HELLO + 16;
    /// The same of pages that were used: read, written to, or run.
    pub const PAGES_ACCESSED: u64 = HELLO + 18;
    /// List (address, number of [`PageChange`]s): changes of mappings, in order. Value: how many were made, or the error of the first.
    pub const PAGES_CHANGE: u64 = HELLO + 17;
    /// Range (address, length, whole pages): all cores walk the page tables anew for it. ENOSYS: the platform can't have them do so.
    pub const PAGES_FORGET: u64 = HELLO + 19;
    /// Range (address, length, whole pages), a number of colours, bits of those that are wanted: what is in it is dropped, and its
    /// pages come only from frames whose number modulo that is one of these. No colours: from any again. ENOSYS: the platform tells of no
    /// frames; EINVAL: not private anonymous memory, or no such colours; ENOMEM: not all is mapped.
    pub const PAGES_COLOUR: u64 = HELLO + 20;
    /// Range (address, length, whole pages), place for a word of 64 bits a page: the numbers of their frames; 0: not in place, or not private.
    /// ENOSYS, ENOMEM as above.
    pub const PAGES_FRAMES: u64 = HELLO + 21;

    /// What these calls are as long as they mean what is said here.
    pub const VERSION: u64 = 1;
    /// Units that a thread can be in at a time, one within the other.
    pub const DEPTH_MAX: usize = 16;

    /// What a [`PageChange`] does.
    pub mod change {
        /// Gives a range this access, as `mprotect(2)`.
        pub const ACCESS: u32 = 0;
        /// Drops what is in it, as `madvise(2)` with MADV_DONTNEED.
        pub const DISCARD: u32 = 1;
        /// Unmaps it.
        pub const UNMAP: u32 = 2;
    }

    /// One change of mappings.
    #[repr(C)]
    #[derive(Clone, Copy, Default, zerocopy::FromBytes, zerocopy::IntoBytes)]
    pub struct PageChange {
        /// Where it begins, a page's address.
        pub addr: u64,
        /// Length, bytes.
        pub len: u64,
        /// What becomes of it: a number of [`change`].
        pub what: u32,
        /// PROT_ bits, for [`change::ACCESS`].
        pub access: u32,
    }
}

/// An activity.
#[repr(C, align(128))]
pub struct Record {
    /// Odd while the record changes hands, and one generation further each time.
    pub sequence: AtomicU32,
    /// A [`kind`].
    pub kind: AtomicU32,
    /// Number of the activity above it.
    pub parent: AtomicU32,
    /// Process id, of a process or a unit of one.
    pub pid: AtomicU32,
    /// Offset in the cell's memory of its [`Sheet`]s: one for each of the cell's cores, then one for each for those below it
    /// that have ended.
    pub sheets: AtomicU64,
    /// Its share of what is divided, in proportion to its siblings'.
    pub weight: AtomicU32,
    /// Name, with NULs behind it.
    pub name: [AtomicU8; NAME_MAX],
}

/// The longest encoded [`GridConfig`], bytes.
pub const CONFIG_MAX: usize = 16 << 10;
/// The most messages of an activity that can be taken at once.
pub const BATCH_MAX: u32 = 1024;
/// The longest reason for not taking a configuration, bytes.
pub const REASON_MAX: usize = 240;

/// Activities that known work is done for at a time.
pub const BURNS_MAX: usize = 16;
/// How many times as long as else known work may be.
pub const BURNS_LONGEST: u32 = 16;
/// The longest encoded [`Burnt`], bytes.
pub const BURNT_MAX: usize = 32 << 10;

/// What was done, and what the books say of it.
#[cfg(feature = "boot")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Compared {
    /// As it was measured where it was done.
    pub done: u64,
    /// As it came back.
    pub found: i64,
}

/// Known work that was done on purpose, for one activity at one resource.
#[cfg(feature = "boot")]
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Burn {
    /// Number of the activity for which it was: the work is that of a unit below it.
    pub activity: u32,
    /// Where.
    pub resource: Resource,
    /// Processor time, ns.
    pub time: Compared,
    /// Messages.
    pub messages: Compared,
    /// Bytes moved.
    pub bytes: Compared,
}

/// What has come of messages with labels that were sent on purpose, between all cores (requirements OK-06 and OK-08; Omni-kernel,
/// section 2.3).
#[cfg(feature = "boot")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Sent {
    /// Those that were sent, and how often one has run.
    pub ran: Compared,
    /// Those that ran before one that the same thread had sent before with the same dependency label.
    pub overtook: u64,
    /// Those that began while another one with the same dependency label ran.
    pub together: u64,
    /// Those that began while their core had another one that had not ended.
    pub interrupted: u64,
    /// Those with an affinity label that was used lately, for another core than where that was; and of them, those that ran there.
    pub near: Compared,
    /// Those with an affinity label that was not used for long; and of them, those that ran where they were sent.
    pub moved: Compared,
}

/// What has come of the burns that were asked for (requirement OK-05; Omni-kernel, section 4: "measurement and attribution
/// are accurate").
#[cfg(feature = "boot")]
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Burnt {
    /// The burns.
    pub burns: Vec<Burn>,
    /// Pages of 4 KiB that were taken for each of these activities.
    pub pages: Vec<(u32, Compared)>,
    /// Pages that the allocator of the cell's memory has given out, and that all activities hold.
    pub held: Compared,
    /// Messages with labels.
    pub sent: Sent,
    /// Time that the host took from the cores meanwhile, as far as they know, ns: burns are longer by that.
    pub stolen: i64,
    /// Activities for which nothing was done: there are more than [`BURNS_MAX`], or no room for units.
    pub left_out: u32,
}

/// The part of the control area that is the grid's.
#[repr(C, align(4096))]
pub struct GridArea {
    /// Time of the platform's clock at which the books were opened, ns.
    pub opened: AtomicU64,
    /// What is counted ([`Count::word`](crate::counter::Count::word)), by whoever starts the cell; 0: nothing.
    pub counts: AtomicU32,
    /// For how many of the cell's threads at the platform there was no counter, since it began.
    pub uncounted: AtomicU32,
    /// Records that were ever used: no need to look at others.
    pub records: AtomicU32,
    /// A configuration is offered: grows with each, by whoever writes `config`.
    pub offered: AtomicU32,
    /// The last offer that the cell has looked at.
    pub answered: AtomicU32,
    /// 1: that one was taken. 0: `reason` says why it was not, and the one before goes on.
    pub taken: AtomicU32,
    /// Length of what is in `config`.
    pub config_len: AtomicU32,
    /// Offset in the cell's memory of its [`Held`]s, one for each of its cores; 0: it doesn't say.
    pub held: AtomicU64,
    /// Offset in the cell's memory of its [`LeaseLine`]s, [`ACTIVITIES_MAX`] for each of its cores; 0: nothing is leased in advance.
    pub leases: AtomicU64,
    /// Why an offer was not taken, with NULs behind it.
    pub reason: [AtomicU8; REASON_MAX],
    /// Burns are asked for: grows with each, by whoever looks at the cell.
    pub burns_asked: AtomicU32,
    /// How many times as long as else known work is to be, up to [`BURNS_LONGEST`].
    pub burns_times: AtomicU32,
    /// The last that the cell has begun with.
    pub burns_begun: AtomicU32,
    /// The last that is over: what has come of it is in `burnt`.
    pub burns_over: AtomicU32,
    /// Length of what is in `burnt`; 0: there was no memory for it.
    pub burnt_len: AtomicU32,
    /// A [`Burnt`], encoded.
    pub burnt: [AtomicU8; BURNT_MAX],
    /// Activities.
    pub directory: [Record; ACTIVITIES_MAX],
    /// Quotas of the cell and of those that the configuration names.
    pub accounts: [Account; ACTIVITIES_MAX],
    /// A [`GridConfig`], encoded.
    pub config: [AtomicU8; CONFIG_MAX],
}

/// How a resource orders the messages of activities.
#[cfg(feature = "boot")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum SchedulerKind {
    /// Weighted fair queueing by start times.
    #[default]
    Wfq,
    /// One after the other.
    RoundRobin,
    /// The highest priority first.
    Priority,
    /// The earliest deadline first.
    Deadline,
}

/// What is divided.
#[cfg(feature = "boot")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Measure {
    /// Processor time, ns.
    #[default]
    Time,
    /// Bytes.
    Bytes,
    /// Messages.
    Operations,
}

/// What an activity is to have of a resource.
#[cfg(feature = "boot")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Parameters {
    /// Its share, in proportion to the others' (1 to 1,000,000).
    pub weight: u32,
    /// What it gets in any case, in units of the measure a second; for time, ns a second and core. 0: nothing.
    pub reservation: u64,
    /// The most that it gets, in the same unit. 0: no limit.
    pub limit: u64,
    /// Higher goes first, with [`SchedulerKind::Priority`].
    pub priority: i32,
    /// How soon after its arrival a message is due, ns, with [`SchedulerKind::Deadline`]. 0: last.
    pub deadline: u64,
}

#[cfg(feature = "boot")]
impl Default for Parameters {
    fn default() -> Self {
        Parameters { weight: 100, reservation: 0, limit: 0, priority: 0, deadline: 0 }
    }
}

/// Which processes belong to an activity: those for which all that is said here holds.
#[cfg(feature = "boot")]
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Match {
    /// The program's path, or its last part if there is no slash in this; `*` stands for anything.
    pub program: Option<String>,
    /// One of its arguments is this; `*` stands for anything.
    pub argument: Option<String>,
    /// It has this in its environment, NAME or NAME=VALUE.
    pub environment: Option<String>,
    /// Its user.
    pub user: Option<u32>,
}

/// Memory that an activity may hold: pages of its programs, files of theirs in memory and in the cache, and the runtime's for them.
#[cfg(feature = "boot")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MemoryQuota {
    /// The most, bytes (`memory.max` of cgroup v2); 0: no limit.
    pub max: u64,
    /// What nobody else gets, whether it is used or not, bytes (`memory.min`).
    pub min: u64,
    /// When it is used up and nothing can be given back, all of its processes end, not one (`memory.oom.group`).
    pub oom_group: bool,
}

/// An activity that the configuration names.
#[cfg(feature = "boot")]
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ActivityConfig {
    /// Its name.
    pub name: String,
    /// What it is to have of every resource that says nothing else.
    pub parameters: Parameters,
    /// Cores on which its threads run; empty: those of `thread`.
    pub cores: Vec<u32>,
    /// Whose it is: the first activity for which one of these holds. A process for which none does belongs to its
    /// parent's activity, and the first one to the cell.
    pub matches: Vec<Match>,
    /// Each thread that one of its processes makes is an activity, too.
    pub threads: bool,
    /// The most of each [`Quota`], of all its processes together; 0: no limit.
    pub quotas: [u32; QUOTAS],
    /// Its memory.
    pub memory: MemoryQuota,
}

/// How one resource is divided.
#[cfg(feature = "boot")]
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ResourceConfig {
    /// Which.
    pub resource: Resource,
    /// By whom.
    pub scheduler: SchedulerKind,
    /// By what.
    pub measure: Measure,
    /// The most that all get together, in units of the measure a second. 0: no limit.
    pub rate: u64,
    /// Messages that are taken at once from an activity whose turn it is. At least 1.
    pub batch: u32,
    /// Cores that work on it, for `thread` those on which programs run; empty: all.
    pub cores: Vec<u32>,
    /// What an activity is to have here, where that isn't what it has everywhere: its index and parameters.
    pub activities: Vec<(u32, Parameters)>,
}

/// The grid's configuration.
#[cfg(feature = "boot")]
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GridConfig {
    /// One in this many short messages is timed, on average.
    pub sample: u32,
    /// Each thread that a process makes is an activity, too.
    pub threads: bool,
    /// The most of each [`Quota`], of all programs together; 0: no limit.
    pub quotas: [u32; QUOTAS],
    /// Activities.
    pub activities: Vec<ActivityConfig>,
    /// Resources that are not as they are by default.
    pub resources: Vec<ResourceConfig>,
}

#[cfg(feature = "boot")]
impl Default for GridConfig {
    fn default() -> Self {
        GridConfig {
            sample: 16,
            threads: false,
            quotas: [0; QUOTAS],
            activities: Vec::new(),
            resources: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_places() {
        for (n, resource) in Resource::ALL.into_iter().enumerate() {
            assert_eq!(resource as usize, n);
        }
        for (n, quota) in Quota::ALL.into_iter().enumerate() {
            assert_eq!(quota as usize, n);
        }
        assert_eq!(size_of::<Sheet>(), 1024);
        assert_eq!(size_of::<Record>(), 128);
    }
}
