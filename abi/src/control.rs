//! The control area: the pages that a cell and its supervisor both map.
//!
//! The descriptor part is written by the supervisor before the cell starts
//! (and under a sequence count when it changes later); the rest is rings and
//! words by which the two wake each other. The supervisor trusts nothing that
//! it reads here: it copies, then checks.

#[cfg(feature = "boot")]
use alloc::{string::String, vec::Vec};
use core::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering};
#[cfg(feature = "boot")]
use serde::{Deserialize, Serialize};

use crate::core_local::CoreLocal;
use crate::frame::SigContext;
use crate::grid::GridArea;
#[cfg(feature = "boot")]
use crate::grid::GridConfig;
use crate::layout::{MAX_CORES, MAX_SPACES, Sizes};
use crate::report::Report;
use crate::service::{AnswerRing, RequestRing};

/// First word of a control area: "atollcel".
pub const MAGIC: u64 = u64::from_le_bytes(*b"atollcel");
/// Version of everything in this crate.
pub const ABI_VERSION: u32 = 33;
/// The most bytes a [`BootConfig`] may take: Linux's limit for arguments and environment, and some.
pub const BOOT_MAX: usize = 4 << 20;

/// The most pieces that a cell's memory is in.
pub const EXTENTS_MAX: usize = 8;
/// The most devices of a cell.
pub const DEVICES_MAX: usize = 8;

/// The most cells that a cell exchanges lines with.
pub const PEERS_MAX: usize = 8;

/// A cell that this one exchanges lines with ([`crate::mailbox`]).
#[repr(C)]
pub struct Peer {
    /// Its name, with NULs behind it. All NULs: there is no such peer.
    pub name: [AtomicU8; 32],
    /// Address of the inbox for what it sends; 0: it may not.
    pub inbox: AtomicU64,
    /// 1: lines may be sent to it.
    pub may_send: AtomicU32,
}

/// What a cell's runtime stands on.
pub mod platform_kind {
    /// A Linux process.
    pub const HOST: u32 = 0;
    /// The nucleus.
    pub const NUCLEUS: u32 = 1;
}

/// How the processor's time-stamp counter becomes time: nanoseconds since the machine's start are
/// `(counter - base) * scale >> 32`.
#[repr(C)]
pub struct Clock {
    /// The counter at the machine's start.
    pub base: AtomicU64,
    /// Nanoseconds a count, times 2^32. 0: the counter isn't the clock.
    pub scale: AtomicU64,
    /// Nanoseconds from 1970 to the machine's start.
    pub realtime: AtomicU64,
}

/// How a device is spoken to (Virtual I/O Device specification 1.3, chapter 4).
pub mod transport {
    /// Over MMIO (section 4.2): one structure has all registers.
    pub const MMIO: u32 = 1;
    /// Over PCI (section 4.1), by the registers of modern devices. Its interrupt is number 0 of its MSI-X vectors, which
    /// the driver gives to its queues; the others are never delivered.
    pub const PCI: u32 = 2;
}

/// Structures of a device's registers.
pub mod structure {
    /// Common configuration; over MMIO, all.
    pub const COMMON: usize = 0;
    /// Notifications.
    pub const NOTIFY: usize = 1;
    /// Interrupt status.
    pub const INTERRUPT: usize = 2;
    /// What is the device's own.
    pub const DEVICE: usize = 3;
    /// How many there are.
    pub const COUNT: usize = 4;
}

/// A device of a cell, and where its registers are mapped.
#[repr(C)]
pub struct DeviceRegisters {
    /// Virtio's number of its kind; 0: there is no device.
    pub kind: AtomicU32,
    /// A [`transport`].
    pub transport: AtomicU32,
    /// Address and length in bytes of each [`structure`]; 0: it has none.
    pub structures: [[AtomicU64; 2]; structure::COUNT],
    /// Bytes from one queue's notification register to the next one's.
    pub notify_multiplier: AtomicU32,
}

/// What the supervisor tells the cell about itself. Plain numbers, fixed at the start but for how much memory it has.
#[repr(C, align(4096))]
pub struct Descriptor {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`ABI_VERSION`].
    pub version: AtomicU32,
    /// Odd while the supervisor writes (seqlock).
    pub sequence: AtomicU32,
    /// Cores of this cell: the most that it can have at a time.
    pub cores: AtomicU32,
    /// Cores of the machine: with some to spare, waiting may poll. 1 at first, until the supervisor knows.
    pub machine_cores: AtomicU32,
    /// Bytes of memory in the cell's extents now. What is behind is not there: the supervisor changes it when it has made that so.
    pub memory: AtomicU64,
    /// The most and the least that they ever are ([`Sizes`]).
    pub memory_most: AtomicU64,
    /// See there.
    pub memory_least: AtomicU64,
    /// 1 if the extents are on huge pages.
    pub huge: AtomicU32,
    /// 1 if all of it is zeroes at the start. Else that is true of the blocks that
    /// [`table_blocks`](crate::layout::table_blocks) counts, and the rest may hold anything.
    pub zeroed: AtomicU32,
    /// Length of the boot configuration, bytes.
    pub boot_len: AtomicU32,
    /// Extended-state components that the processor and the host have on (XCR0).
    pub xcr0: AtomicU64,
    /// Size of the standard-format xsave area for them, bytes.
    pub xsave_size: AtomicU32,
    /// The clock, where the runtime reads it by itself.
    pub clock: Clock,
    /// A [`platform_kind`]: which platform the runtime stands on.
    pub platform: AtomicU32,
    /// Where the cell's memory is, as devices see it: physical address and length of its extents, in the
    /// order of offsets. On the nucleus only.
    pub extents: [[AtomicU64; 2]; EXTENTS_MAX],
    /// Devices that the cell was granted, on the nucleus.
    pub devices: [DeviceRegisters; DEVICES_MAX],
    /// Address and length of the root file system's archive, where it is in memory; 0: there is none.
    pub archive: [AtomicU64; 2],
    /// Cells that this one exchanges lines with.
    pub peers: [Peer; PEERS_MAX],
    /// Host descriptors: the file of the extents.
    pub memory_fd: AtomicI32,
    /// Host descriptor that takes the runtime's log lines.
    pub log_fd: AtomicI32,
    /// Host descriptors: a core's epoll instance.
    pub epoll_fd: [AtomicI32; MAX_CORES],
    /// Host descriptors: an epoll instance that a core's is in, for who tells it of events while it computes; -1: nobody does.
    pub events_fd: [AtomicI32; MAX_CORES],
    /// Host descriptors: a core's bell (eventfd).
    pub bell_fd: [AtomicI32; MAX_CORES],
    /// Host descriptors: a core's end of the socket that descriptors arrive by.
    pub socket_fd: [AtomicI32; MAX_CORES],
    /// The machine's CPU that a core is pinned to, or -1.
    pub cpu: [AtomicI32; MAX_CORES],
    /// How many of its cores the cell uses at first, from core 0 on; 0: all.
    pub online: AtomicU32,
}

impl Descriptor {
    /// How much memory the cell has.
    pub fn memory_sizes(&self) -> Sizes {
        let of = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Sizes { most: of(&self.memory_most), now: of(&self.memory), least: of(&self.memory_least) }
    }

    /// Says so.
    pub fn set_memory_sizes(&self, sizes: Sizes) {
        self.memory_most.store(sizes.most, Ordering::Relaxed);
        self.memory_least.store(sizes.least, Ordering::Relaxed);
        self.memory.store(sizes.now, Ordering::Relaxed);
    }
}

/// Value of [`Life::ended`]: the cell has said how its first program ended.
pub const SAID: u32 = 1;
/// Value of [`Life::ended`]: the cell's first process is gone without a word.
pub const GONE: u32 = 2;

/// Life of a cell, as the supervisor sees it.
#[repr(C)]
pub struct Life {
    /// Futex: 0 while the cell runs, then [`SAID`] or [`GONE`].
    pub ended: AtomicU32,
    /// Wait status (`waitpid(2)`) of the cell's first program, if it was said.
    pub status: AtomicI32,
    /// How many cores it uses, as it says.
    pub online: AtomicU32,
}

/// State of a space slot.
pub mod space_state {
    /// No such space.
    pub const FREE: u32 = 0;
    /// Asked for, not there yet.
    pub const CREATING: u32 = 1;
    /// Its host threads wait for their batons.
    pub const READY: u32 = 2;
    /// To be ended.
    pub const DYING: u32 = 3;
    /// Could not be created, or died by itself.
    pub const FAILED: u32 = 4;
}

/// Stands for "whichever space the core is in": where threads of the runtime run.
pub const ANY_SPACE: u32 = u32::MAX;

/// One space's host process.
#[repr(C)]
pub struct SpaceSlot {
    /// The host's process id, in the cell's pid namespace.
    pub pid: AtomicU32,
    /// The host's thread id for each core.
    pub tid: [AtomicU32; MAX_CORES],
    /// Host descriptors: each core's counter; 0: there is none.
    pub counter: [AtomicI32; MAX_CORES],
    /// Futex for each core: grows by two when the core's baton comes to this space. Its lowest bit: the host thread sleeps there.
    pub turn: [AtomicU32; MAX_CORES],
}

/// One core's part: its words, its rings, and the baton.
#[repr(C, align(4096))]
pub struct CoreArea {
    /// Found through GS.
    pub local: CoreLocal,
    /// Requests to the serving threads.
    pub requests: RequestRing,
    /// Their answers.
    pub answers: AnswerRing,
    /// Requests under way.
    pub outstanding: AtomicU32,
    /// Host objects that report readiness to this core.
    pub watched: AtomicU32,
    /// A signal to the core's host thread is on its way (1): one at a time, so that they don't pile up.
    pub interrupted: AtomicU32,
    /// It runs a program that computes, and its bell is to be rung for the next answer all the same (1).
    pub tell: AtomicU32,
    /// It has asked to be told, and its bell may have been rung for that since it looked for events last (1). Its own.
    pub told: AtomicU32,
    /// Looks for events that were begun. Only this core counts.
    pub looks: AtomicU32,
    /// Threads that are ready and wait for this core, as it was left by the last one that came or went. Its own.
    pub waiting: AtomicU32,
    /// The space whose host thread may run as this core.
    pub baton: AtomicU32,
    /// What the thread that takes the baton is to call.
    pub continuation: AtomicU64,
    /// And with which argument.
    pub argument: AtomicU64,
    /// How long the core has slept, as the nucleus counts, on the host as the runtime does, ns; while it sleeps [`ASLEEP`] and when it
    /// would have begun with that if it had slept all that time at once.
    pub slept: AtomicU64,
    /// For how long its processor was elsewhere while it worked, as far as that is known, ns. Its own; on the host, by the books.
    pub stolen: AtomicU64,
    /// What part of its processor's time others than this cell have used lately, thousandths. The supervisor says that where cores are
    /// pinned and it knows; else it is 0.
    pub others: AtomicU32,
    /// What part of it the core itself has used, in the same way.
    pub used: AtomicU32,
    /// Where the nucleus puts the registers of what it interrupted ([`SigContext`]).
    pub trap: [AtomicU64; TRAP_WORDS],
    /// Since when something waits that has come for the core while it ran the runtime, which is not interrupted, ns; 0: nothing
    /// does. The platform notes it, the scheduler looks when it is through.
    pub put_off: AtomicU64,
    /// From the nucleus, after a change of mappings by this core: its number, if cores may still remember what was there before
    /// ([`SETTLED`](crate::nucleus::call::SETTLED)).
    pub to_settle: AtomicU64,
    /// From the nucleus: the bits that the core's first counter has, if that counts ([`GridArea::counts`]); 0: it doesn't.
    pub counter_mask: AtomicU64,
    /// On the nucleus: what that said when it was last looked at. Its own.
    pub counted: AtomicU64,
}

/// Bit of [`CoreArea::slept`]: the core sleeps.
pub const ASLEEP: u64 = 1 << 63;

impl CoreArea {
    /// Something has come at this time that the runtime is not interrupted for.
    pub fn puts_off(&self, now: u64) {
        if self.local.state.load(Ordering::Relaxed) == crate::core_local::state::RUNNING {
            // What waits already has come before.
            let _ = self.put_off.compare_exchange(0, now.max(1), Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// How long the core has slept by `now`, ns.
    ///
    /// [`CoreArea::slept`] says who counts.
    pub fn slept_by(&self, now: u64) -> u64 {
        match self.slept.load(Ordering::Relaxed) {
            asleep if asleep & ASLEEP != 0 => now.saturating_sub(asleep & !ASLEEP),
            slept => slept,
        }
    }
}

/// Words of [`CoreArea::trap`].
pub const TRAP_WORDS: usize = size_of::<SigContext>() / 8;

/// Words between the cell and the process that makes its spaces.
#[repr(C)]
pub struct Nursery {
    /// The process's id, in the cell's pid namespace.
    pub pid: AtomicU32,
    /// Slots of spaces that were ever asked for: no need to look at others.
    pub slots: AtomicU32,
}

/// What the outside world wants of the cell.
#[repr(C)]
pub struct Mailbox {
    /// Bit n: signal n+1 arrived for the first program from outside.
    pub signals: AtomicU64,
    /// Grows when the terminal's size changed or a stream became readable again.
    pub changes: AtomicU32,
}

/// How far the cell's memory is in use, so that what follows can be made ready.
#[repr(C)]
pub struct Ahead {
    /// Futex: blocks up to the last one that was ever used, in order of use ([`order_of_block`](crate::layout::order_of_block)).
    pub used_to: AtomicU32,
    /// The cell wakes who waits when `used_to` gets here; 0: nobody waits.
    pub tell_at: AtomicU32,
}

/// Memory that the cell asks for by itself.
#[repr(C)]
pub struct Growth {
    /// 1: it may.
    pub may_ask: AtomicU32,
    /// Futex: grows with each question.
    pub asked: AtomicU32,
    /// Futex: the last question that is answered.
    pub answered: AtomicU32,
    /// How much more is needed at least, bytes.
    pub bytes: AtomicU64,
    /// The answer: how much memory the cell has now, bytes; 0: that is changing, and it gets none.
    pub there: AtomicU64,
}

/// The control area.
#[repr(C, align(4096))]
pub struct Control {
    /// What the supervisor says.
    pub descriptor: Descriptor,
    /// Serving threads asleep on `bell`.
    pub server_sleepers: AtomicU32,
    /// A serving thread looks at the rings all the time: no bell is needed.
    pub server_awake: AtomicU32,
    /// Futex of the serving threads: grows with each request that finds one asleep.
    pub server_bell: AtomicU32,
    /// End of the cell.
    pub life: Life,
    /// Space creation.
    pub nursery: Nursery,
    /// From outside.
    pub mailbox: Mailbox,
    /// Memory ahead of need.
    pub ahead: Ahead,
    /// More memory.
    pub growth: Growth,
    /// The grid's books and configuration.
    pub grid: GridArea,
    /// What it says of its threads.
    pub report: Report,
    /// Futex for each space: a [`space_state`].
    pub space_states: [AtomicU32; MAX_SPACES],
    /// The spaces' host processes. Not there on the nucleus.
    pub spaces: [SpaceSlot; MAX_SPACES],
    /// The cores.
    pub cores: [CoreArea; MAX_CORES],
    /// A [`BootConfig`], encoded.
    pub boot: [AtomicU8; BOOT_MAX],
}

impl Control {
    /// Does somebody outside want something of the cell: a signal for the program, another division of the grid, burns, or a report?
    pub fn has_mail(&self) -> bool {
        let grid = &self.grid;
        self.mailbox.signals.load(Ordering::SeqCst) != 0
            || grid.offered.load(Ordering::SeqCst) != grid.answered.load(Ordering::Relaxed)
            || grid.burns_asked.load(Ordering::SeqCst) != grid.burns_begun.load(Ordering::Relaxed)
            || self.report.is_asked()
    }
}

/// Kind of a mount.
#[cfg(feature = "boot")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MountKind {
    /// A directory of the host, reached by service messages.
    Host,
    /// Memory of the cell.
    Tmpfs(Temporary),
    /// `/proc`.
    Proc,
    /// `/dev`.
    Dev,
    /// `/sys`.
    Sys,
    /// An archive in memory, cpio's newc format, on which files can be changed and made: changes stay in memory.
    Archive,
    /// ext4 on the cell's disk of the number `id`, on which the same can be done. The disk is only read.
    Disk,
    /// `/sys/fs/cgroup`.
    Cgroup,
}

/// A file system in the cell's memory (`tmpfs(5)`).
#[cfg(feature = "boot")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Temporary {
    /// Most bytes that its files have together. None: half of the most memory that the cell can have.
    pub size: Option<u64>,
    /// Permissions of its root.
    pub mode: u32,
    /// Who owns the root.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

#[cfg(feature = "boot")]
impl Default for Temporary {
    fn default() -> Self {
        Temporary { size: None, mode: 0o1777, uid: 0, gid: 0 }
    }
}

/// Where an archive has rewriting plans: behind it, in decimal, the inode number of the file that it is for.
pub const PLANS: &str = ".atoll/plans/";

/// A mount of the cell's file system tree.
#[cfg(feature = "boot")]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MountConfig {
    /// Where, in the cell.
    pub target: String,
    /// What.
    pub kind: MountKind,
    /// Number of a host mount in service messages, or of a disk among the cell's own.
    pub id: u32,
    /// Writes fail with EROFS.
    pub read_only: bool,
    /// What /proc/mounts says it is.
    pub source: String,
}

/// What stands behind a standard stream.
#[cfg(feature = "boot")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum StreamKind {
    /// Nothing: the descriptor is closed.
    Closed,
    /// A terminal.
    Terminal,
    /// A pipe, a FIFO or a socket.
    Pipe,
    /// A file.
    File,
    /// A character device such as /dev/null.
    Device,
    /// The cell's own /dev/null.
    Null,
}

/// How private anonymous memory is brought in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "boot", derive(Serialize, Deserialize))]
pub enum Paging {
    /// In pieces that grow with what a program has already.
    #[default]
    Usual,
    /// When it is touched, in pieces of 64 KiB.
    Demand,
    /// When it is touched, in blocks of 2 MiB where there is room for one.
    Huge,
    /// When it is mapped.
    Populate,
}

/// How memory is brought in for what programs, as a file says it (docs/memory.md). The first program that fits counts.
#[cfg(feature = "boot")]
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MemoryPolicy {
    /// What is said of programs.
    pub programs: Vec<ProgramPolicy>,
}

/// How memory is brought in for a program.
#[cfg(feature = "boot")]
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProgramPolicy {
    /// The pattern of its path, or of the path's last part if there is no slash in it.
    pub path: String,
    /// How all of its memory is brought in; None: nothing is said.
    pub paging: Option<Paging>,
    /// What is said of its mappings. The first one that fits counts.
    pub mappings: Vec<MappingPolicy>,
}

/// How some of a program's mappings are brought in, and into which frames.
#[cfg(feature = "boot")]
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MappingPolicy {
    /// Which kind of mapping.
    pub kind: MappingKind,
    /// Least length when it is made, bytes, for anonymous mappings and files.
    pub least: u64,
    /// Most length.
    pub most: u64,
    /// The pattern of its file's path, for files.
    pub path: Option<String>,
    /// How they are brought in; None: as the program's other memory.
    pub paging: Option<Paging>,
    /// The frames that their pages are to be in, of anonymous ones: a number of colours, at most 64, and bits of those that are wanted.
    pub colours: Option<(u32, u64)>,
}

/// Kinds of private mappings.
#[cfg(feature = "boot")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MappingKind {
    /// What mmap makes without a file.
    Anonymous,
    /// What brk adds.
    Heap,
    /// The first thread's stack.
    Stack,
    /// What mmap makes of a file.
    File,
}

/// What to run, and how the world looks to it.
#[cfg(feature = "boot")]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BootConfig {
    /// Name of the cell; also its host name.
    pub name: String,
    /// The program: a path, or a name to be looked up in PATH.
    pub program: Vec<u8>,
    /// Its arguments, the zeroth included.
    pub args: Vec<Vec<u8>>,
    /// Its environment.
    pub env: Vec<Vec<u8>>,
    /// Its working directory.
    pub workdir: Vec<u8>,
    /// User id, group id, further groups.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
    /// File mode creation mask.
    pub umask: u32,
    /// Nice value.
    pub nice: i32,
    /// What `/proc/PID/oom_score_adj` says.
    pub oom_score_adj: i32,
    /// Mounts, the root first.
    pub mounts: Vec<MountConfig>,
    /// Standard input, output, error.
    pub streams: [StreamKind; 3],
    /// How each was opened: access mode and `O_APPEND` (`open(2)`).
    pub stream_flags: [u32; 3],
    /// May the cell have internet sockets, of the host's network or of one of its own?
    pub host_network: bool,
    /// Signals that the program begins with ignored, as under nohup: bit n - 1 for signal n.
    pub ignored_signals: u64,
    /// Seed for address layout and the like.
    pub seed: [u8; 32],
    /// Most open host descriptors the platform can have.
    pub max_files: u32,
    /// How the grid divides the cell.
    pub grid: GridConfig,
    /// Resource limits, soft and hard, by their numbers in `getrlimit(2)`.
    pub limits: Vec<(u64, u64)>,
    /// Say more in the log.
    pub verbose: bool,
    /// Choose addresses at random (Linux's `randomize_va_space`).
    pub randomize: bool,
    /// Small private memory stays in place when a program unmaps it.
    pub lazy_unmap: bool,
    /// Programs' code stays as it is: no system-call site is rewritten.
    pub keep_code: bool,
    /// Whoever started the cell has job control: what stops its first program stops the cell's supervisor ([`Op::Stop`](crate::service::Op)).
    pub in_job: bool,
    /// How memory is brought in for programs that don't say otherwise.
    pub paging: Paging,
    /// What a file says of that.
    pub memory_policy: MemoryPolicy,
    /// The machine's model name, for /proc/cpuinfo.
    pub cpu_model: String,
    /// Its flags, for /proc/cpuinfo.
    pub cpu_flags: String,
    /// Its frequency, kHz.
    pub cpu_khz: u64,
}
