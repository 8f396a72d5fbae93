//! What a thread is.
#![allow(unsafe_code, reason = "owns stacks, and hands out references to threads that are never freed")]

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::alloc::Layout;
use core::cell::UnsafeCell;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::activity::{self, Activity, CORE_WORDS, CoreSet};
use crate::arch;
use crate::core_state::{this_core, with_private};
use crate::fair::{GRAIN, NORMAL, Used};
use crate::queue::Place;
use crate::ready::Policy;
use crate::scheduler;
use crate::timer::TimerKey;
use atoll_abi::control::ANY_SPACE;
use atoll_abi::core_local::core_local;
use atoll_abi::frame::UserFrame;
use atoll_abi::grid::ROOT;
use atoll_abi::grid::Resource;
use atoll_abi::platform;
use atoll_sync::{Linked, Mutex};

/// Size of the runtime stack of a program's thread, bytes, the program's frame included. Code that is not optimized needs more.
const STACK: usize = if cfg!(debug_assertions) { 32 << 10 } else { 16 << 10 };
/// The same of the runtime's own threads, of which there are few.
const OWN_STACK: usize = 32 << 10;
/// What lies at the lowest place of a stack as long as nothing has come so far.
const UNTOUCHED: u64 = 0x6174_6f6c_6c21_7374;

/// States of a thread, and the token: unparked since it last parked.
pub(crate) mod state {
    pub const RUNNING: u32 = 0;
    pub const PARKED: u32 = 1;
    pub const READY: u32 = 2;
    pub const DEAD: u32 = 3;
    pub const MASK: u32 = 3;
    pub const TOKEN: u32 = 4;
}

/// See [`Thread::since`].
pub(crate) const BOOKING: u64 = u64::MAX;

/// A thread of the cell.
///
/// Threads are never freed, only used again: a stale reference wakes a
/// stranger without reason, which every waiter tolerates. That makes the
/// lock-free structures above it (mutex, wait queues) simple and safe.
pub struct Thread {
    pub(crate) state: AtomicU32,
    /// The core in whose queue it belongs.
    pub(crate) core: AtomicU32,
    /// The space that it runs in.
    pub(crate) space: AtomicU32,
    /// Link in a run queue, an inbox or the pool of threads to be used again.
    pub(crate) next: AtomicPtr<Thread>,
    /// Saved stack pointer while it does not run.
    pub(crate) context: UnsafeCell<usize>,
    stack: AtomicPtr<u8>,
    frame: AtomicPtr<UserFrame>,
    /// Does it run a program (and so have FS and extended registers of its own)?
    pub(crate) program: AtomicU32,
    /// May an idle core take it over?
    movable: AtomicBool,
    /// The personality's view of the thread.
    personality: AtomicPtr<()>,
    start: UnsafeCell<Option<Start>>,
    /// Nanoseconds run.
    pub(crate) run_time: AtomicU64,
    /// What of it went into messages, ns: those that are timed stand for the others. Only the core that runs it writes to it.
    system_time: AtomicU64,
    /// Time with which its messages were charged and that the host had, as far as their resources' gates were not told: ns, above 8 bits of
    /// the resource. Of two resources: one asks another.
    not_had: [AtomicU64; 2],
    /// For how long of it the processor was elsewhere, as far as that was looked at, ns. Likewise.
    stolen_time: AtomicU64,
    /// Time that the platform had requests of its, to read and to write, for which it has waited and works for nobody in particular, ns.
    /// Likewise.
    device_time: [AtomicU64; 2],
    /// See [`Thread::stored`]. Likewise.
    stored: [AtomicU64; 2],
    /// When it was switched to; 0: it does not run; [`BOOKING`]: `run_time` is being changed.
    pub(crate) since: AtomicU64,
    /// Since when it is ready, if that is being measured; 0: not. And for how many such waits that stands.
    ready_at: AtomicU64,
    ready_for: AtomicU64,
    /// Nanoseconds that it was ready and did not run.
    waited: AtomicU64,
    /// Switches by its own will, and by force.
    pub(crate) switches: [AtomicU64; 2],
    /// Grows with each use of this thread's memory.
    id: AtomicU64,
    /// See [`Thread::ask`].
    asked: AtomicU32,
    /// The activity that it works for: a count of it is the thread's.
    activity: AtomicU32,
    /// See [`Thread::class`].
    class: AtomicU32,
    /// It has computed for long, lately: its core is to be told of events.
    pub(crate) computes: AtomicBool,
    /// It slept soon the last time that it ran: others can wait until it does.
    pub(crate) is_brief: AtomicBool,
    /// How often in a row, up to a bound, it has slept soon after it woke another one.
    pub(crate) sleeps_soon: AtomicU32,
    /// It went to a core that had nothing to do, as it waited for long ([`crate::scheduler`]'s `spread`), and has not slept since; and how
    /// often in a row, up to a bound, it had hardly anything to do there.
    pub(crate) was_spread: AtomicBool,
    pub(crate) spread_in_vain: AtomicU32,
    /// It sleeps until a time at most: that is among its core's timers.
    pub(crate) is_timed: AtomicBool,
    /// Its personality's name for it, in traces.
    tag: AtomicU32,
    /// Cores that it may run on, a bit each.
    affinity: [AtomicU64; CORE_WORDS],
    /// How it is scheduled: a [`Policy`].
    policy: AtomicU32,
    /// What it has had lately: a [`Used`].
    used: AtomicU64,
    /// Where it stands in its core's line.
    pub(crate) place: Place,
    /// The timers that it holds, among its core's, and how many they are.
    timers: Mutex<Vec<TimerKey>>,
    timers_held: AtomicU32,
}

// SAFETY: the cells are touched only by the core that runs or queues the thread.
unsafe impl Sync for Thread {}
// SAFETY: one field; a thread that another core was sent is in no run queue and in no pool.
unsafe impl Linked for Thread {
    fn link(&self) -> &AtomicPtr<Thread> {
        &self.next
    }
}
// SAFETY: as above.
unsafe impl Send for Thread {}

/// A thread. Never dangles: see [`Thread`].
pub type ThreadRef = &'static Thread;

/// Finished threads that no core keeps, without stacks.
static POOL: Mutex<Vec<ThreadRef>> = Mutex::new(Vec::new());
/// Finished threads, with their stacks, that each core keeps for those that it makes.
pub(crate) const KEPT: usize = 32;
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

fn stack_layout(program: bool) -> Layout {
    Layout::from_size_align(if program { STACK } else { OWN_STACK }, 4096).expect("a constant layout")
}

impl Thread {
    /// Unique among all threads that ever were.
    pub fn id(&self) -> u64 {
        self.id.load(Ordering::Relaxed)
    }

    /// The space that it runs in.
    pub fn space(&self) -> u32 {
        self.space.load(Ordering::Relaxed)
    }

    /// Moves the thread to another space, from its next switch on. For the thread itself.
    pub fn set_space(&self, space: u32) {
        self.space.store(space, Ordering::Relaxed);
    }

    /// The core that it runs on, or will.
    pub fn core(&self) -> usize {
        self.core.load(Ordering::Relaxed) as usize
    }

    /// Says where a thread that was not started yet begins.
    pub fn begin_on(&self, core: usize) {
        self.core.store(core as u32, Ordering::Relaxed);
    }

    /// What its personality calls it; 0: it is the runtime's.
    pub(crate) fn tag(&self) -> u32 {
        self.tag.load(Ordering::Relaxed)
    }

    /// Says what its personality calls it, in traces.
    pub fn set_tag(&self, tag: u32) {
        self.tag.store(tag, Ordering::Relaxed);
    }

    /// Has a thread that was not started yet begin where it may run.
    pub fn choose_core(&self) {
        if !self.may_run_on(self.core()) {
            self.begin_on(scheduler::choose_core(self));
        }
    }

    /// Number of the activity that it works for.
    #[inline]
    pub fn activity(&self) -> u32 {
        self.activity.load(Ordering::Relaxed)
    }

    /// The class that it is scheduled in: number of an activity that the configuration names, or of the cell.
    #[inline]
    pub(crate) fn class(&self) -> u32 {
        self.class.load(Ordering::Relaxed)
    }

    /// Its activity is in this class. Before it starts, or for the thread itself: it moves at its next switch.
    pub fn set_class(&self, class: u32) {
        self.class.store(class, Ordering::Relaxed);
    }

    /// Says for whom it works. Before it starts; see [`crate::work_for`].
    pub fn work_for(&self, activity: Activity) {
        self.set_class(activity.class());
        drop(self.replace_activity(activity));
    }

    /// Puts another activity into the place of the one that it works for. For the thread itself, or before it starts.
    pub(crate) fn replace_activity(&self, activity: Activity) -> Activity {
        let before = self.activity.load(Ordering::Relaxed);
        self.activity.store(activity.into_raw(), Ordering::Relaxed);
        Activity::from_raw(before)
    }

    /// The system call that it is in, and the first arguments, if it is parked in one. By the time this is looked at it may be
    /// anywhere.
    pub fn call(&self) -> Option<(u64, [u64; 3])> {
        let frame = self.frame.load(Ordering::Acquire);
        if frame.is_null() {
            return None;
        }
        // SAFETY: frames lie in the cell's memory, all of which may be read at any time; whatever is there is a number.
        let [number, a, b, c] = unsafe {
            [
                &raw const (*frame).orig_rax,
                &raw const (*frame).rdi,
                &raw const (*frame).rsi,
                &raw const (*frame).rdx,
            ]
            .map(|field| field.read_volatile())
        };
        (number != u64::MAX).then_some((number, [a, b, c]))
    }

    /// Nanoseconds that it has waited for its core after it was ready. Waits after wake-ups are sampled.
    pub fn wait_time(&self) -> u64 {
        self.waited.load(Ordering::Relaxed)
    }

    /// It has become ready at this time, and that counts for so many times.
    #[inline]
    pub(crate) fn waits(&self, since: u64, times: u64) {
        self.ready_at.store(since, Ordering::Relaxed);
        self.ready_for.store(times, Ordering::Relaxed);
    }

    /// It is switched to.
    #[inline]
    pub(crate) fn waits_no_more(&self, now: u64) {
        let since = self.ready_at.load(Ordering::Relaxed);
        if since != 0 {
            self.ready_at.store(0, Ordering::Relaxed);
            let waited = now.saturating_sub(since) * self.ready_for.load(Ordering::Relaxed);
            self.waited.store(self.waited.load(Ordering::Relaxed) + waited, Ordering::Relaxed);
        }
    }

    /// Nanoseconds that it has run, up to its last switch.
    pub fn run_time(&self) -> u64 {
        self.run_time.load(Ordering::Relaxed)
    }

    /// Nanoseconds that it has run, up to now.
    pub fn run_time_now(&self) -> u64 {
        self.run_time_at(|| platform().now())
    }

    fn run_time_at(&self, now: impl Fn() -> u64) -> u64 {
        // Who books may have been stopped in the middle: then its last slice is left out.
        for _ in 0..100 {
            let since = self.since.load(Ordering::Acquire);
            let booked = self.run_time.load(Ordering::Acquire);
            if since == BOOKING || self.since.load(Ordering::Acquire) != since {
                core::hint::spin_loop();
                continue;
            }
            let slice = if since == 0 { 0 } else { now().saturating_sub(since) };
            return booked + slice;
        }
        self.run_time()
    }

    /// Processor time that it has had up to now, ns: what it has run, but for what the host took meanwhile. That is found out at the end of
    /// a slice, or by the thread itself ([`own_cpu_time`]): then this goes back by it.
    ///
    /// [`own_cpu_time`]: crate::own_cpu_time
    pub fn cpu_time(&self) -> u64 {
        self.cpu_time_at(|| platform().now())
    }

    /// The same at a time that is not before the current slice.
    pub(crate) fn cpu_time_at(&self, now: impl Fn() -> u64) -> u64 {
        // In this order: what was taken from a slice is told before the slice is booked.
        let ran = self.run_time_at(now);
        ran.saturating_sub(self.stolen_time.load(Ordering::Acquire))
    }

    /// What of that was the runtime's, for what it asked of it; ns. Sampled, so that it may come to more.
    pub fn system_time(&self) -> u64 {
        self.system_time.load(Ordering::Relaxed)
    }

    /// Time that the platform had what it asked of it for nobody in particular, and waited for, ns.
    #[cfg_attr(feature = "without-books", expect(dead_code, reason = "nothing is timed"))]
    pub(crate) fn device_time(&self) -> [u64; 2] {
        self.device_time.each_ref().map(|time| time.load(Ordering::Relaxed))
    }

    /// So much more of it was. For the core that runs it.
    #[cfg_attr(feature = "without-books", expect(dead_code, reason = "nothing is timed"))]
    pub(crate) fn waited_for_device(&self, writes: bool, ns: u64) {
        crate::core_state::count(&self.device_time[usize::from(writes)], ns);
    }

    /// The processor was elsewhere while it ran. For the core that runs it.
    pub(crate) fn lost(&self, ns: u64) {
        self.stolen_time.store(self.stolen_time.load(Ordering::Relaxed) + ns, Ordering::Release);
    }

    /// The processor was elsewhere while it was in a message. For the core that runs it.
    #[cfg_attr(feature = "without-books", expect(dead_code, reason = "nothing is timed"))]
    pub(crate) fn was_held_up(&self, served: Resource, ns: u64) {
        self.system_time
            .store(self.system_time.load(Ordering::Relaxed).saturating_sub(ns), Ordering::Relaxed);
        let of = |place: &AtomicU64| place.load(Ordering::Relaxed);
        let is_its = |place: &&AtomicU64| of(place) == 0 || of(place) as u8 == served as u8;
        if let Some(place) = self.not_had.iter().find(is_its) {
            place.store((of(place) >> 8).saturating_add(ns) << 8 | served as u64, Ordering::Relaxed);
        }
    }

    /// How much of that, up to `most` ns, was not told before of what this resource served. For the core that runs it.
    #[cfg_attr(feature = "without-books", expect(dead_code, reason = "nothing is timed"))]
    pub(crate) fn take_not_had(&self, served: Resource, most: u64) -> u64 {
        for place in &self.not_had {
            let now = place.load(Ordering::Relaxed);
            if now != 0 && now as u8 == served as u8 {
                let taken = (now >> 8).min(most);
                let left = (now >> 8) - taken;
                place.store(if left == 0 { 0 } else { left << 8 | served as u64 }, Ordering::Relaxed);
                return taken;
            }
        }
        0
    }

    /// So much more of it was. For the core that runs it.
    #[cfg_attr(feature = "without-books", expect(dead_code, reason = "nothing is timed"))]
    pub(crate) fn took_in_messages(&self, ns: u64) {
        self.system_time.store(self.system_time.load(Ordering::Relaxed) + ns, Ordering::Relaxed);
    }

    /// Adds a slice that has ended to its run time. For the core that ran it.
    pub(crate) fn book(&self, ran: u64) {
        self.since.store(BOOKING, Ordering::Release);
        self.run_time.store(self.run_time.load(Ordering::Relaxed) + ran, Ordering::Release);
        self.since.store(0, Ordering::Release);
    }

    /// Bytes of files that were read from where they are stored because it wanted them, and those that it has changed and that are to go
    /// there, by whole pages where they are cached (`read_bytes` and `write_bytes` of proc_pid_io(5)).
    pub fn stored(&self) -> [u64; 2] {
        self.stored.each_ref().map(|bytes| bytes.load(Ordering::Relaxed))
    }

    /// Switches by its own will, and by force.
    pub fn switches(&self) -> (u64, u64) {
        (self.switches[0].load(Ordering::Relaxed), self.switches[1].load(Ordering::Relaxed))
    }

    /// Is it wanted to stop waiting?
    #[inline]
    pub fn interrupted(&self) -> bool {
        self.asked() != 0
    }

    /// Has it been unparked since it last parked?
    #[inline]
    pub(crate) fn was_unparked(&self) -> bool {
        self.state.load(Ordering::Acquire) & state::TOKEN != 0
    }

    /// Its personality wants it to do this (bits of its own, say for a signal) before it goes back to its program. As long as any
    /// is asked for, waits that can be interrupted are: one word says both, so that neither is ever without the other.
    pub fn ask(&self, why: u32) {
        self.asked.fetch_or(why, Ordering::SeqCst);
    }

    /// What it was asked and has not taken.
    #[inline]
    pub fn asked(&self) -> u32 {
        self.asked.load(Ordering::SeqCst)
    }

    /// Takes these of what it was asked.
    pub fn take_asked(&self, which: u32) -> u32 {
        self.asked.fetch_and(!which, Ordering::SeqCst) & which
    }

    /// May it run on this core? Its class has it, and it has chosen it itself or none that its class has.
    pub fn may_run_on(&self, core: usize) -> bool {
        let (word, bit) = (core / 64, 1 << (core % 64));
        let class = activity::cores_of(self.class());
        if class[word].load(Ordering::Relaxed) & bit == 0 {
            return false;
        }
        let both = |(chosen, class): (&AtomicU64, &AtomicU64)| {
            chosen.load(Ordering::Relaxed) & class.load(Ordering::Relaxed)
        };
        self.affinity[word].load(Ordering::Relaxed) & bit != 0
            || self.affinity.iter().zip(class).all(|words| both(words) == 0)
    }

    /// Says which cores it may run on, a bit each. It moves before it runs its program again.
    pub fn set_affinity(&self, mask: CoreSet) {
        for (word, bits) in self.affinity.iter().zip(mask) {
            word.store(bits, Ordering::Relaxed);
        }
    }

    /// Cores that were chosen for it, a bit each.
    pub fn affinity(&self) -> CoreSet {
        self.affinity.each_ref().map(|word| word.load(Ordering::Relaxed))
    }

    /// Cores that its class has, a bit each.
    pub fn cores_of_class(&self) -> CoreSet {
        activity::cores_of(self.class()).each_ref().map(|word| word.load(Ordering::Relaxed))
    }

    /// Is it parked?
    pub fn is_parked(&self) -> bool {
        self.state.load(Ordering::Relaxed) & state::MASK == state::PARKED
    }

    /// Does it run on a core at this moment? May be wrong by the time it is looked at.
    pub fn is_running(&self) -> bool {
        self.state.load(Ordering::SeqCst) & state::MASK == state::RUNNING
    }

    /// How it is scheduled among the threads of its class.
    pub fn policy(&self) -> Policy {
        Policy::from_word(self.policy.load(Ordering::Relaxed))
    }

    /// Says how. Where it stands in a line is changed when it comes into one the next time.
    pub fn set_policy(&self, policy: Policy) {
        self.policy.store(policy.to_word(), Ordering::Relaxed);
    }

    /// What it has had lately. For its core.
    pub(crate) fn used(&self) -> Used {
        Used::from_word(self.used.load(Ordering::Relaxed))
    }

    pub(crate) fn set_used(&self, used: Used) {
        self.used.store(used.to_word(), Ordering::Relaxed);
    }

    /// What its time is divided by.
    pub(crate) fn weight(&self) -> u32 {
        match self.policy() {
            Policy::Fair(weight) => weight,
            _ => NORMAL,
        }
    }

    /// The personality's view.
    pub fn personality(&self) -> *mut () {
        self.personality.load(Ordering::Relaxed)
    }

    /// Sets the personality's view.
    pub fn set_personality(&self, p: *mut ()) {
        self.personality.store(p, Ordering::Relaxed);
    }

    /// The program's registers.
    ///
    /// # Safety
    /// Only for the thread itself, inside the runtime, or before it starts;
    /// the reference must end before the thread returns to its program.
    #[allow(clippy::mut_from_ref, reason = "the frame belongs to the thread, not to this struct")]
    pub unsafe fn frame(&self) -> &mut UserFrame {
        // SAFETY: the caller's promise; the frame lies on the thread's own stack.
        unsafe { &mut *self.frame.load(Ordering::Relaxed) }
    }

    pub(crate) fn frame_ptr(&self) -> *mut UserFrame {
        self.frame.load(Ordering::Relaxed)
    }

    pub(crate) fn is_movable(&self) -> bool {
        self.movable.load(Ordering::Relaxed)
    }

    /// Lets idle cores take it over, as those of programs. Before it starts.
    pub fn allow_moving(&self) {
        self.movable.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_program(&self) -> bool {
        self.program.load(Ordering::Relaxed) != 0
    }

    /// Does it work for an activity? A thread of the runtime's that was not told for which takes in events.
    #[inline]
    pub(crate) fn works_for_somebody(&self) -> bool {
        self.is_program() || self.activity() != ROOT
    }

    /// May it hold timers? It runs, or will, and it may move.
    pub(crate) fn may_hold(&self) -> bool {
        self.is_movable() && self.state.load(Ordering::Relaxed) & state::MASK != state::DEAD
    }

    /// Timers that it holds: they go with it to another core.
    pub fn timers(&self) -> u32 {
        self.timers_held.load(Ordering::Relaxed)
    }

    /// Bytes of its runtime stack.
    pub fn stack_size(&self) -> usize {
        stack_layout(self.is_program()).size()
    }

    /// Changes which timers it holds, unless another core does so just now: it may have the thread from this one. Nothing here waits.
    pub(crate) fn with_timers<R>(&self, f: impl FnOnce(&mut Vec<TimerKey>) -> R) -> Option<R> {
        let mut timers = self.timers.try_lock()?;
        let r = f(&mut timers);
        self.timers_held.store(timers.len() as u32, Ordering::Relaxed);
        Some(r)
    }

    /// Keeps a finished thread, with its stack, for the next one that this core makes; gives its stack back, and its memory to all
    /// cores' pool, if there are enough of them. For the thread that runs after it.
    pub(crate) fn recycle(&'static self) {
        // SAFETY: the thread's own stack, which it has left.
        let lowest = unsafe { self.stack.load(Ordering::Relaxed).cast::<u64>().read() };
        assert_eq!(lowest, UNTOUCHED, "a runtime stack was too short");
        self.frame.store(null_mut(), Ordering::Relaxed);
        // Timers that it has set are its process's, and stay where they are.
        if self.timers() != 0 {
            drop(self.with_timers(core::mem::take));
        }
        drop(Activity::from_raw(self.activity.load(Ordering::Relaxed)));
        let kept = with_private(|p| {
            let room = self.is_program() && p.unused.len() < KEPT;
            if room {
                p.unused.push(self);
            }
            room
        });
        if kept {
            return;
        }
        let stack = self.stack.swap(null_mut(), Ordering::Relaxed);
        // SAFETY: the thread has left its stack for good.
        unsafe { alloc::alloc::dealloc(stack, stack_layout(self.is_program())) };
        // In the middle of a switch nothing may wait: if the pool is held, this core keeps the thread all the same.
        match POOL.try_lock() {
            Some(mut pool) => pool.push(self),
            None => with_private(|p| p.unused.push(self)),
        }
    }
}

/// One that is nobody's yet.
fn blank() -> Thread {
    Thread {
        state: AtomicU32::new(state::DEAD),
        core: AtomicU32::new(0),
        space: AtomicU32::new(0),
        next: AtomicPtr::new(null_mut()),
        context: UnsafeCell::new(0),
        stack: AtomicPtr::new(null_mut()),
        frame: AtomicPtr::new(null_mut()),
        program: AtomicU32::new(0),
        movable: AtomicBool::new(false),
        personality: AtomicPtr::new(null_mut()),
        start: UnsafeCell::new(None),
        run_time: AtomicU64::new(0),
        system_time: AtomicU64::new(0),
        not_had: [const { AtomicU64::new(0) }; 2],
        stolen_time: AtomicU64::new(0),
        device_time: [const { AtomicU64::new(0) }; 2],
        stored: [const { AtomicU64::new(0) }; 2],
        since: AtomicU64::new(0),
        ready_at: AtomicU64::new(0),
        ready_for: AtomicU64::new(0),
        waited: AtomicU64::new(0),
        switches: [AtomicU64::new(0), AtomicU64::new(0)],
        id: AtomicU64::new(0),
        asked: AtomicU32::new(0),
        activity: AtomicU32::new(ROOT),
        class: AtomicU32::new(ROOT),
        computes: AtomicBool::new(false),
        is_brief: AtomicBool::new(false),
        sleeps_soon: AtomicU32::new(0),
        was_spread: AtomicBool::new(false),
        spread_in_vain: AtomicU32::new(0),
        is_timed: AtomicBool::new(false),
        tag: AtomicU32::new(0),
        affinity: [const { AtomicU64::new(0) }; CORE_WORDS],
        policy: AtomicU32::new(0),
        used: AtomicU64::new(0),
        place: Place::new(),
        timers: Mutex::new(Vec::new()),
        timers_held: AtomicU32::new(0),
    }
}

/// One that is in lines, and does nothing else.
#[cfg(test)]
pub(crate) fn for_tests() -> ThreadRef {
    Box::leak(Box::new(blank()))
}

/// What a thread does first. Value: how it goes on, for ever; none: it ends.
type Start = Box<dyn FnOnce() -> Option<fn() -> !> + Send>;

fn new_thread(program: bool, space: u32, start: Start) -> Option<ThreadRef> {
    // What is kept has the stack of a program's thread.
    let mut used = if program { with_private(|p| p.unused.pop()) } else { None };
    let layout = stack_layout(program);
    let mut stack = used.map_or(null_mut(), |t| t.stack.load(Ordering::Relaxed));
    if stack.is_null() {
        // SAFETY: the layout is not empty.
        stack = unsafe { alloc::alloc::alloc(layout) };
    }
    if stack.is_null() {
        if let Some(t) = used {
            with_private(|p| p.unused.push(t));
        }
        return None;
    }
    // SAFETY: the allocation's first word, and its end.
    let top = unsafe {
        stack.cast::<u64>().write(UNTOUCHED);
        stack.add(layout.size())
    };
    let frame = (top as usize - size_of::<UserFrame>()) & !63;
    let frame = frame as *mut UserFrame;
    // SAFETY: inside the stack and aligned.
    unsafe { frame.write(UserFrame::new()) };
    if used.is_none() {
        used = POOL.try_lock().and_then(|mut pool| pool.pop());
    }
    let t: ThreadRef = match used {
        Some(t) => t,
        None => Box::leak(Box::new(blank())),
    };
    t.set_policy(Policy::Fair(NORMAL));
    // It has had what its maker has had, the turn that runs included: the maker's turn doesn't end because it makes something.
    let maker = core_local().current.load(Ordering::Relaxed).cast::<Thread>();
    let now = platform().now();
    // Of more than a turn the rest was somebody else's.
    let ran = now.saturating_sub(with_private(|p| p.since)).min(2 * GRAIN);
    // SAFETY: threads are never freed.
    let maker = unsafe { maker.as_ref() };
    t.set_used(maker.map_or(Used::NONE, |maker| maker.used().after(ran, maker.weight(), now)));
    t.id.store(NEXT_ID.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    t.stack.store(stack, Ordering::Relaxed);
    t.frame.store(frame, Ordering::Relaxed);
    t.program.store(program as u32, Ordering::Relaxed);
    t.space.store(space, Ordering::Relaxed);
    t.personality.store(null_mut(), Ordering::Relaxed);
    t.run_time.store(0, Ordering::Relaxed);
    t.system_time.store(0, Ordering::Relaxed);
    t.not_had.iter().for_each(|place| place.store(0, Ordering::Relaxed));
    t.stolen_time.store(0, Ordering::Relaxed);
    t.device_time.iter().chain(&t.stored).for_each(|n| n.store(0, Ordering::Relaxed));
    t.since.store(0, Ordering::Relaxed);
    t.tag.store(0, Ordering::Relaxed);
    t.computes.store(false, Ordering::Relaxed);
    t.is_brief.store(false, Ordering::Relaxed);
    t.sleeps_soon.store(0, Ordering::Relaxed);
    t.was_spread.store(false, Ordering::Relaxed);
    t.spread_in_vain.store(0, Ordering::Relaxed);
    t.ready_at.store(0, Ordering::Relaxed);
    t.waited.store(0, Ordering::Relaxed);
    t.switches[0].store(0, Ordering::Relaxed);
    t.switches[1].store(0, Ordering::Relaxed);
    t.asked.store(0, Ordering::Relaxed);
    t.activity.store(Activity::root().into_raw(), Ordering::Relaxed);
    t.class.store(ROOT, Ordering::Relaxed);
    for word in &t.affinity {
        word.store(!0, Ordering::Relaxed);
    }
    // SAFETY: the thread is not known to anybody yet; the frame's start is 64-byte aligned.
    unsafe {
        *t.start.get() = Some(start);
        *t.context.get() = arch::prepare(frame.cast(), thread_main, t as *const Thread as usize);
    }
    t.movable.store(program, Ordering::Relaxed);
    // It begins with `start`.
    t.state.store(state::DEAD, Ordering::Release);
    Some(t)
}

extern "C" fn thread_main(t: usize) -> ! {
    scheduler::finish_switch();
    this_core().meter.first_run();
    // SAFETY: `new_thread` passed the thread, which is never freed.
    let t = unsafe { &*(t as *const Thread) };
    // SAFETY: only the thread itself looks here once it runs.
    let start = unsafe { (*t.start.get()).take() };
    // Nothing of what the thread began with is left when it goes on.
    match start.and_then(|start| start()) {
        Some(go_on) => go_on(),
        None => scheduler::exit(),
    }
}

/// Makes a thread of the runtime that runs `start` on `core` and ends. None: no memory.
/// It begins when it is first unparked.
pub fn spawn(core: usize, start: impl FnOnce() + Send + 'static) -> Option<ThreadRef> {
    let start = || {
        start();
        None
    };
    let t = new_thread(false, ANY_SPACE, Box::new(start))?;
    t.core.store(core as u32, Ordering::Relaxed);
    Some(t)
}

/// Makes a thread for a program in `space`, on a core of the scheduler's choice.
///
/// It runs `start` first, and then `go_on`, which resumes the frame. It begins when it is first unparked.
pub fn spawn_program(
    space: u32,
    start: impl FnOnce() + Send + 'static,
    go_on: fn() -> !,
) -> Option<ThreadRef> {
    let start = move || {
        start();
        Some(go_on)
    };
    let t = new_thread(true, space, Box::new(start))?;
    t.core.store(scheduler::choose_core(t) as u32, Ordering::Relaxed);
    Some(t)
}

/// The thread that runs this.
#[inline]
pub fn current() -> ThreadRef {
    let p = core_local().current.load(Ordering::Relaxed).cast::<Thread>();
    assert!(!p.is_null(), "no thread runs here");
    // SAFETY: threads are never freed.
    unsafe { &*p }
}

/// The current thread has read so many bytes of a file from where it is stored; see [`Thread::stored`].
#[inline]
pub fn read_from_storage(bytes: u64) {
    count_stored(0, bytes);
}

/// It has changed so many bytes of a file that are to be stored.
#[inline]
pub fn changed_what_is_stored(bytes: u64) {
    count_stored(1, bytes);
}

fn count_stored(which: usize, bytes: u64) {
    let me = core_local().current.load(Ordering::Relaxed).cast::<Thread>();
    // SAFETY: threads are never freed.
    if let Some(me) = unsafe { me.as_ref() } {
        crate::core_state::count(&me.stored[which], bytes);
    }
}
