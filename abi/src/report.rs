//! What a cell says of its threads when it is asked (`atoll ps`, `atoll trace`).
//!
//! Who asks leaves a number, what is wanted, and rings; the cell makes what it says in memory of its own, says where that lies,
//! and keeps it until it is asked again.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

#[cfg(feature = "boot")]
use alloc::string::String;
#[cfg(feature = "boot")]
use alloc::vec::Vec;

#[cfg(feature = "boot")]
use serde::{Deserialize, Serialize};

/// What can be asked for.
pub mod what {
    /// The threads: an encoded [`Threads`](super::Threads).
    pub const THREADS: u32 = 1;
    /// That a trace begins; `value`: events that each core keeps, the last ones.
    pub const TRACE: u32 = 2;
    /// That it ends: an encoded [`Trace`](super::Trace).
    pub const TRACED: u32 = 3;
    /// That it uses `value` cores from now on: what has come of it ([`Resized`](super::Resized)), or why that can't be, in words.
    pub const CORES: u32 = 4;
    /// That it has `value` bytes of memory from now on: what has come of it ([`MemoryResized`](super::MemoryResized)), or why that
    /// can't be, in words. More: they are there already. Less: it has let go of what is behind when it answers.
    pub const MEMORY: u32 = 5;
}

/// Most events that a core keeps in a trace.
pub const EVENTS_MAX: u64 = 1 << 20;

/// Words of the one who asks, and of the cell.
#[repr(C)]
pub struct Report {
    /// Number of the last question.
    pub asked: AtomicU32,
    /// What is asked for ([`what`]), and a value that goes with that.
    pub what: AtomicU32,
    /// See there.
    pub value: AtomicU64,
    /// How long the answer may take, ns, where that can be said.
    pub within: AtomicU64,
    /// The last question that the cell has taken, and answered.
    pub begun: AtomicU32,
    /// See there.
    pub over: AtomicU32,
    /// Where the answer lies in the cell's memory, bytes. No length: there was no memory for it.
    pub offset: AtomicU64,
    /// See there.
    pub len: AtomicU64,
}

impl Report {
    /// Is there a question that the cell has not taken?
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst) != self.begun.load(Ordering::Relaxed)
    }
}

/// What has come of a wish for more cores or fewer.
#[cfg(feature = "boot")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Resized {
    /// Cores that are in use now.
    pub cores: u32,
    /// How long it took until the last thread and timer had left the cores that went, ns.
    pub ns: u64,
}

/// What has come of a wish for more memory or less.
#[cfg(feature = "boot")]
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemoryResized {
    /// Bytes that the cell has now.
    pub memory: u64,
    /// Bytes that had to be moved.
    pub moved: u64,
    /// How long it took, ns.
    pub ns: u64,
    /// Why the cell has not let go of all that it was to.
    pub why: Option<String>,
}

/// What a thread does.
#[cfg(feature = "boot")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ThreadState {
    /// It runs on its core.
    Running,
    /// It waits for its core.
    Ready,
    /// It waits for something else.
    Sleeping,
    /// Its process was stopped by a signal.
    Stopped,
    /// Its process has ended, and its parent has not asked for that yet.
    Zombie,
}

/// What a thread has of what its cell's cores divide among them (OmniRE: its service point): it goes with the thread to another core,
/// and is given back where the thread ends.
#[cfg(feature = "boot")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Holdings {
    /// Its runtime stack, bytes.
    pub stack: u64,
    /// Timers that it has asked for last and that run.
    pub timers: u32,
}

/// A thread of a program.
#[cfg(feature = "boot")]
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ThreadInfo {
    /// Process id, and its parent's.
    pub pid: u32,
    /// See there; 0: none in the cell.
    pub parent: u32,
    /// Thread id.
    pub tid: u32,
    /// Its name (`comm`).
    pub name: String,
    /// The program's path.
    pub program: String,
    /// What it does.
    pub state: ThreadState,
    /// The system call that it is in, if it is in one and does not run its program.
    pub call: Option<u64>,
    /// That call's first arguments.
    pub arguments: [u64; 3],
    /// The core that it runs on or belongs to.
    pub core: u32,
    /// The activity that it works for.
    pub activity: u32,
    /// The activity's name.
    pub activity_name: String,
    /// Linux's scheduling policy (`SCHED_OTHER` is 0).
    pub policy: u32,
    /// Real-time priority, 1 to 99, with what it is lent; 0: none.
    pub priority: u32,
    /// Nice value.
    pub nice: i32,
    /// How long it has run, ns.
    pub run_ns: u64,
    /// How long it has waited for its core, ns; waits after wake-ups are sampled.
    pub wait_ns: u64,
    /// How often it has let its core go by itself, and because its turn was over.
    pub switches: [u64; 2],
    /// What it holds.
    pub holds: Holdings,
}

/// A core, since the cell has begun.
#[cfg(feature = "boot")]
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CoreInfo {
    /// Is it in use?
    pub online: bool,
    /// Threads that wait for it.
    pub ready: u32,
    /// Switches between threads.
    pub switches: u64,
    /// Threads that went to other cores.
    pub migrations: u64,
    /// How often it slept, and how long, ns.
    pub sleeps: u64,
    /// See there.
    pub idle_ns: u64,
    /// Deadlines that interrupted it.
    pub deadlines: u64,
    /// Interrupts by other cores and by what it awaits from outside.
    pub interrupts: u64,
    /// How often one of either kind had to wait because the core ran the runtime, which is not interrupted.
    pub put_off: u64,
    /// How long they have waited together, ns.
    pub put_off_ns: u64,
    /// How long the one that waited longest, ns.
    pub put_off_longest_ns: u64,
    /// The system call that the core was in by then; none: in none.
    pub put_off_longest_in: Option<u64>,
    /// What part of its processor's time others than the cell have used lately, thousandths; 0 also where that isn't known.
    pub others: u32,
}

/// All threads of programs, by process and thread id.
#[cfg(feature = "boot")]
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Threads {
    /// When, on the cell's clock, ns.
    pub clock: u64,
    /// The threads.
    pub threads: Vec<ThreadInfo>,
    /// The cores.
    pub cores: Vec<CoreInfo>,
}

/// Kinds of a trace's events.
pub mod event {
    /// The core goes on with this thread.
    pub const RUN: u64 = 1;
    /// The thread lets its core go, and waits for something.
    pub const SLEEP: u64 = 2;
    /// The thread lets its core go, and is ready to go on.
    pub const PREEMPTED: u64 = 3;
    /// The thread becomes ready: whoever runs on this core has woken it.
    pub const WAKE: u64 = 4;
    /// The core has nothing to do and looks for something that other cores send.
    pub const POLL: u64 = 5;
    /// The core has nothing to do and sleeps.
    pub const PARK: u64 = 6;
    /// The thread ends.
    pub const END: u64 = 7;

    /// An event in a word: its kind, and the thread's id (0: one of the runtime's).
    pub const fn word(kind: u64, tid: u32) -> u64 {
        kind << 56 | tid as u64
    }

    /// The kind and the thread's id in a word.
    pub const fn of_word(word: u64) -> (u64, u32) {
        (word >> 56, word as u32)
    }
}

/// What happened on a core.
#[cfg(feature = "boot")]
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CoreTrace {
    /// Events that were before those that follow, and were not kept.
    pub lost: u64,
    /// When, on the cell's clock, ns, and what ([`event::word`]), the earliest first.
    pub events: Vec<(u64, u64)>,
}

/// Whose thread id it is.
#[cfg(feature = "boot")]
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TracedThread {
    /// Process and thread id.
    pub pid: u32,
    /// See there.
    pub tid: u32,
    /// Its name, and its program's path.
    pub name: String,
    /// See there.
    pub program: String,
}

/// A trace of what threads did.
#[cfg(feature = "boot")]
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Trace {
    /// When it began and ended, on the cell's clock, ns.
    pub begun: u64,
    /// See there.
    pub ended: u64,
    /// By core.
    pub cores: Vec<CoreTrace>,
    /// Threads that are there at its end.
    pub threads: Vec<TracedThread>,
}
