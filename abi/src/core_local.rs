//! What one core shares with its platform, found through GS.
#![allow(unsafe_code, reason = "declares the one link-time symbol that a platform provides")]

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::frame::UserFrame;

/// Bits of [`CoreLocal::pending`].
pub mod pending {
    /// Another core or the supervisor wants attention.
    pub const NOTIFY: u32 = 1;
    /// The armed deadline has passed.
    pub const DEADLINE: u32 = 2;
    /// A device has something to say.
    pub const DEVICE: u32 = 4;
    /// A line from another cell lies in an [inbox](crate::mailbox::Inbox) with a bell.
    pub const MAILBOX: u32 = 8;
}

/// State of a core, written by the core, read by those who want to wake it.
pub mod state {
    /// Runs the runtime or a program.
    pub const RUNNING: u32 = 0;
    /// Is about to sleep, or sleeps, in [`crate::Platform::park`].
    pub const PARKED: u32 = 1;
    /// Looks whether another core sends it something: it need not be told.
    pub const POLLING: u32 = 2;
}

/// One core's words. The first fields' offsets are known to the entry code.
#[repr(C, align(4096))]
pub struct CoreLocal {
    /// Its own address, so that `mov %gs:0` finds it.
    pub this: AtomicU64,
    /// 1 while the runtime runs: asynchronous upcalls are then only marked pending.
    pub mask: AtomicU32,
    /// Masked upcalls that arrived ([`pending`]).
    pub pending: AtomicU32,
    /// The current thread's frame, which is also where its runtime stack begins.
    pub frame: AtomicPtr<UserFrame>,
    /// Where entry keeps the program's stack pointer for an instant.
    pub user_rsp: AtomicU64,
    /// Where `resume` jumps through.
    pub resume_rip: AtomicU64,
    /// On the nucleus: where the program goes on after a system call that trapped.
    pub trapped_rip: AtomicU64,
    /// Address of the system-call entry; trampolines jump through it.
    pub entry: AtomicU64,
    /// Address of the platform's `clock_gettime`, which the runtime's vDSO jumps to.
    pub clock_gettime: AtomicU64,
    /// Address of the platform's `gettimeofday`.
    pub gettimeofday: AtomicU64,
    /// Address of the platform's `time`.
    pub time: AtomicU64,
    /// This core's number in its cell.
    pub id: AtomicU32,
    /// The space whose host thread holds the core's baton.
    pub space: AtomicU32,
    /// A [`state`].
    pub state: AtomicU32,
    /// 1 if a deadline is armed that is near, so that the core will come by the runtime by itself.
    pub armed: AtomicU32,
    /// The scheduler's: the current thread.
    pub current: AtomicPtr<()>,
    /// The scheduler's own part.
    pub scheduler: AtomicPtr<()>,
    /// The personality's: what the current thread is to it.
    pub task: AtomicPtr<()>,
    /// The memory manager's own part.
    pub memory: AtomicPtr<()>,
    /// The grid's: since when the core's time is in no sheet yet; 0 while a sheet is being written.
    pub unsettled: AtomicU64,
    /// Activity, times 256, and resource that what is unsettled belongs to.
    pub unsettled_for: AtomicU32,
    /// System calls that came through rewritten sites.
    pub fast_calls: AtomicU64,
    /// System calls that came as traps.
    pub trapped_calls: AtomicU64,
}

impl CoreLocal {
    /// A core's words before its platform fills them in.
    #[allow(clippy::new_without_default, reason = "only platforms make these")]
    pub const fn new() -> Self {
        CoreLocal {
            this: AtomicU64::new(0),
            mask: AtomicU32::new(1),
            pending: AtomicU32::new(0),
            frame: AtomicPtr::new(core::ptr::null_mut()),
            user_rsp: AtomicU64::new(0),
            resume_rip: AtomicU64::new(0),
            trapped_rip: AtomicU64::new(0),
            entry: AtomicU64::new(0),
            clock_gettime: AtomicU64::new(0),
            gettimeofday: AtomicU64::new(0),
            time: AtomicU64::new(0),
            id: AtomicU32::new(0),
            space: AtomicU32::new(0),
            state: AtomicU32::new(state::RUNNING),
            armed: AtomicU32::new(0),
            current: AtomicPtr::new(core::ptr::null_mut()),
            scheduler: AtomicPtr::new(core::ptr::null_mut()),
            task: AtomicPtr::new(core::ptr::null_mut()),
            memory: AtomicPtr::new(core::ptr::null_mut()),
            unsettled: AtomicU64::new(0),
            unsettled_for: AtomicU32::new(0),
            fast_calls: AtomicU64::new(0),
            trapped_calls: AtomicU64::new(0),
        }
    }

    /// Calls `read` for what the core's sheets say, and gives it what is not in them yet: since when (0: it can't be told,
    /// as the core goes on too fast), and the activity and the number of the resource that it belongs to. `relax` passes
    /// the moment in which the core writes.
    pub fn with_open_record<R>(&self, relax: impl Fn(), mut read: impl FnMut(u64, u32, u32) -> R) -> R {
        for _ in 0..1000 {
            let since = self.unsettled.load(Ordering::Acquire);
            let what = self.unsettled_for.load(Ordering::Acquire);
            if since == 0 {
                relax();
                continue;
            }
            let r = read(since, what >> 8, what & 0xff);
            core::sync::atomic::fence(Ordering::Acquire);
            if self.unsettled.load(Ordering::Relaxed) == since {
                return r;
            }
        }
        read(0, 0, 0)
    }

    /// This core's number.
    #[inline(always)]
    pub fn id(&self) -> usize {
        self.id.load(Ordering::Relaxed) as usize
    }
}

unsafe extern "Rust" {
    /// Defined once by the platform that is linked in. On the host and the
    /// nucleus it is one load through GS; in the simulator a thread-local.
    safe fn atoll_core_local() -> &'static CoreLocal;
}

/// The core that executes this. Meaningful only as long as the caller does
/// not block: a thread may wake up on another core.
#[inline(always)]
pub fn core_local() -> &'static CoreLocal {
    atoll_core_local()
}
