//! What the scheduler keeps for each core.
#![allow(unsafe_code, reason = "each core reaches its own state without a lock")]

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

use crate::books::Meter;
use crate::polling::{Answers, Polling, Tries};
use crate::rcu::Limbo;
use crate::ready::{Ready, Why};
use crate::thread::{Thread, ThreadRef};
use crate::timer::{self, TimerEntry, TimerKey};
use crate::trace::Ring;
use atoll_abi::control::CoreArea;
use atoll_abi::core_local::core_local;
use atoll_abi::grid::{ACTIVITIES_MAX, SchedulerKind};
use atoll_abi::platform::{Event, Events};
use atoll_abi::{assert_accounted, platform};
use atoll_grid::inbox::Inbox;
use atoll_grid::message::Pool;
use atoll_grid::queue::Queues;
use atoll_sync::{Lines, SetOnce};

/// Something another core is asked to do.
pub(crate) enum Mail {
    /// Forget a sleeping thread's deadline.
    CancelTimer(TimerKey),
    /// Forget a call that a timer is set for.
    CancelCall(TimerKey, alloc::sync::Arc<timer::Inner>),
    /// Take over timers: those of a core that is not used any more, or what a thread holds that comes.
    Timers(BTreeMap<TimerKey, TimerEntry>),
    /// Send a ready thread to this core, if there is one to spare.
    WantWork(usize),
    /// Leave this space: it is going to be destroyed.
    LeaveSpace(u32),
    /// How this thread is scheduled has changed: it may have another place in the line.
    Reorder(ThreadRef),
    /// See [`crate::after_answers`].
    After(Deferred),
    /// See [`crate::ask_to_tidy`]. It is always the core's own [`Letter`].
    Tidy,
}

/// Something that an event thread is asked to do.
pub(crate) type Deferred = alloc::sync::Arc<dyn Fn() + Send + Sync>;

pub(crate) struct MailNode {
    pub next: *mut MailNode,
    pub mail: Mail,
}

/// A request that needs no memory, as memory is what it is about. It can be under way once at a time.
pub(crate) struct Letter {
    node: UnsafeCell<MailNode>,
    sent: AtomicBool,
}

impl Letter {
    fn new() -> Letter {
        Letter {
            node: UnsafeCell::new(MailNode { next: null_mut(), mail: Mail::Tidy }),
            sent: AtomicBool::new(false),
        }
    }

    /// Is it this one? Then it can be sent again from now on.
    pub fn is(&self, node: *const MailNode) -> bool {
        let is = core::ptr::eq(self.node.get(), node);
        if is {
            self.sent.store(false, Ordering::Release);
        }
        is
    }
}

/// What a core that has nothing to do found when it looked around.
#[derive(Clone, Copy)]
pub(crate) struct Rest {
    /// Since when.
    pub had_nothing: u64,
    /// Up to now.
    pub start: u64,
    /// When it has to go on.
    pub deadline: Option<u64>,
    /// An answer is under way.
    pub expects: bool,
    /// It did work ahead, and looks for events before it does more.
    pub ahead: bool,
}

/// The part that only the core itself touches, in the runtime with upcalls masked.
pub(crate) struct Private {
    pub ready: Ready,
    /// The thread that ran last here goes on being ready, and why.
    pub again: Option<Why>,
    /// A thread that ended and whose stack may be freed after the switch.
    pub finished: Option<ThreadRef>,
    /// One that goes to another core, and was not saved yet.
    pub leaving: Option<(ThreadRef, usize)>,
    /// The program thread whose extended registers are in this core's registers.
    pub live: *const Thread,
    pub timers: BTreeMap<TimerKey, TimerEntry>,
    pub timer_sequence: u64,
    /// Some went to core 0 when this one was not used.
    pub timers_left: bool,
    /// Deadline that the platform has been asked for; u64::MAX: none.
    pub armed: u64,
    /// The core is about to choose who runs and until when: nobody else need ask for a deadline.
    pub choosing: bool,
    /// Others were ready while the event thread ran, or a core said that it could take one: whether one is to go elsewhere is asked when
    /// the next thread runs.
    pub may_spread_next: bool,
    /// What runs is not expected to run for long, and only a thread waits that computes: the end of its turn takes no deadline.
    pub brief: bool,
    /// A turn's beginning, and until when those wait whom the thread has woken itself in it.
    pub spared: (u64, u64),
    /// Events are handled on the stack of the thread that runs: whom they wake it has not woken.
    pub in_place: bool,
    /// When the running thread woke last one whose core slept; 0: it has not.
    pub woke_at: u64,
    /// A thread that computes was interrupted for the one that runs next.
    pub computed: bool,
    /// The running thread is about to end.
    pub ends: bool,
    /// What the core found before it left a thread's stack to sleep.
    pub rest: Option<Rest>,
    /// The core that said so.
    pub offered: Option<usize>,
    /// It, or one that had nothing to do when it was looked for last. It is looked at first.
    pub seen_idle: Option<usize>,
    /// None that could have taken one was of use: until then no other one is to say so, ns.
    pub quiet_until: u64,
    /// Whom this core asked last for a thread, and from when on it may interrupt another one for that, ns.
    pub asked: usize,
    pub asks_again: u64,
    /// Its last sleep outlasted the deadline for a look at events: the next one may, too.
    pub sleeps_long: bool,
    /// Finished threads for those that this core makes: [`KEPT`](crate::thread::KEPT) with their stacks, and those that the pool of all
    /// cores could not take.
    pub unused: Vec<crate::thread::ThreadRef>,
    /// When it gave another core a thread last, or looked whether it should.
    pub balanced: u64,
    /// Threads that were woken here.
    pub wakes: u32,
    /// When the running thread was switched to.
    pub since: u64,
    /// When it is time to count for the [load averages](crate::load) again.
    pub counts_at: u64,
    /// The platform tells this core of the next event.
    pub told: bool,
    /// When it was told last.
    pub told_at: u64,
    /// When the platform was last asked for events.
    pub polled: u64,
    /// The core's event thread has nothing to do, and sleeps until it gets something. If it sleeps for something else, a lock that somebody
    /// here has, to wake it would only keep that one from running.
    pub events_idle: bool,
    /// When a program's own call last looked for events, and whether that was soon after the time before.
    pub looked: u64,
    pub looks_often: bool,
    /// Something was done since then of which the platform may report consequences: what was sent may have arrived.
    pub acted: bool,
    pub events: Events,
    pub polling: Polling,
    /// Whether to look, before the core sleeps, for an answer that is under way.
    pub answers: Answers,
    /// Whether to look, before a thread sleeps, if it need not.
    pub looks: Tries,
    /// How long after a thread has begun to run those that wait for it are looked at, if another core is idle, ns.
    pub spread_after: u64,
    /// Messages for the event thread, and memory for those that are sent here.
    pub messages: Queues,
    pub pool: Pool,
    /// To be done after the answers that have come, and by those who waited for them.
    pub after: Vec<Deferred>,
    pub limbo: Limbo,
    /// What classes have to pay for events at the gate before them.
    pub owed: Owed,
    /// Time of the running thread's slice in which the core has seen to events of classes', ns: they are charged with that.
    pub for_classes: u64,
    /// A space that this core is to leave.
    pub leave: Option<u32>,
}

impl Private {
    /// When the first of its timers runs out; u64::MAX: it has none.
    #[inline]
    pub fn first_timer(&self) -> u64 {
        self.timers.first_key_value().map_or(u64::MAX, |(key, _)| key.0)
    }

    /// Is there anything for the core's event thread to do?
    pub fn has_work_for_events(&self) -> bool {
        self.owed.len > 0 || self.has_events()
    }

    /// Is there an event to be told of, or something else that its thread was asked for?
    pub fn has_events(&self) -> bool {
        !self.events.is_empty() || !self.messages.is_empty() || !self.after.is_empty() || self.leave.is_some()
    }
}

/// Classes that can owe something at a time.
const OWED_MAX: usize = 16;

/// What classes have to pay: time, ns, and messages.
#[derive(Default)]
pub(crate) struct Owed {
    all: [(u32, u64, u64); OWED_MAX],
    len: usize,
}

impl Owed {
    /// More of it. What more classes have than there is room for is forgiven.
    pub fn add(&mut self, class: u32, time: u64, messages: u64) {
        let at = self.all[..self.len].iter().position(|of| of.0 == class).unwrap_or(self.len);
        self.len = self.len.max((at + 1).min(OWED_MAX));
        if let Some(of) = self.all.get_mut(at) {
            *of = (class, of.1 + time, of.2 + messages);
        }
    }

    /// All of it.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u64, u64)> + '_ {
        self.all[..self.len].iter().copied()
    }
}

/// Whether a core is used.
pub(crate) mod usage {
    /// It is.
    pub const ONLINE: u32 = 0;
    /// It is to be used no more: whatever is on it goes elsewhere. Only [`online`](crate::online) says this and the former.
    pub const GOING: u32 = 1;
    /// It has no threads and no timers, no registers of a thread's either, and sleeps. It says so itself.
    pub const LEFT: u32 = 2;
}

/// One core, as the scheduler sees it.
pub(crate) struct Core {
    /// What it shares with its platform.
    pub area: &'static CoreArea,
    pub private: UnsafeCell<Private>,
    /// Threads woken by other cores.
    pub inbox: Lines<Thread>,
    /// Messages of other cores for the event thread.
    pub messages: Inbox,
    /// What it has held back at gates may run.
    pub releases: AtomicBool,
    /// Requests of other cores to the scheduler, newest first.
    pub mail: AtomicPtr<MailNode>,
    pub letter: Letter,
    /// Ready threads, for others to read.
    pub load: AtomicU32,
    /// Threads of each class that had something to do here lately, on average, in units of [`crate::ready::ONE`].
    pub class_loads: [AtomicU32; ACTIVITIES_MAX],
    /// The class of the thread that runs, or ran last.
    pub class_running: AtomicU32,
    /// When it was woken last by another core; 0: that has been looked at.
    pub rung: AtomicU64,
    /// Its part of a trace; null: none is on.
    pub trace: AtomicPtr<Ring>,
    /// Does anything but idleness run?
    pub busy: AtomicBool,
    /// It sleeps, or is about to, on a stack of its own, and has no thread's registers: another core may run a thread of it that it wakes.
    pub apart: AtomicBool,
    /// Is it used ([`usage`])? One word, so that a core that says that it has left can't say so when it is used again.
    pub usage: AtomicU32,
    /// Do classes divide its time? Its own to say.
    pub divided: AtomicBool,
    /// When it left last, ns.
    pub left_at: AtomicU64,
    /// Passages through points where the core reads no slot.
    pub quiescent: AtomicU64,
    /// The thread that handles events; null before boot.
    pub event_thread: AtomicPtr<Thread>,
    /// Asked another core for work and got no answer yet.
    pub wants_work: AtomicBool,
    /// Threads wait behind the one that runs, and no core was seen that had nothing to do: who has nothing later says so.
    pub crowds: AtomicBool,
    /// Another core has sent a thread that waited there: asking pays.
    pub was_given: AtomicBool,
    /// For itself: of the other cores, the one that it looks at next, and the one that it found at work last.
    pub next_other: AtomicU32,
    pub at_work: AtomicU32,
    pub stats: Stats,
    /// Its books.
    pub meter: Meter,
}

/// In [`Stats::since`].
pub(crate) const SLEEPS: u64 = 1 << 63;

/// Counters of one core.
#[derive(Default)]
pub(crate) struct Stats {
    pub switches: AtomicU64,
    pub space_switches: AtomicU64,
    pub parks: AtomicU64,
    pub polls: AtomicU64,
    pub deadlines: AtomicU64,
    pub interrupts: AtomicU64,
    pub idle_ns: AtomicU64,
    pub busy_ns: AtomicU64,
    /// When the record began that neither of the two has yet, ns, with [`SLEEPS`] while the core sleeps; 0 before the first. It is
    /// written before they are.
    pub since: AtomicU64,
    /// The most that was told of the two ([`core_stats`]).
    pub told: [AtomicU64; 2],
    /// The core's part of the [load averages](crate::load).
    pub averages: [AtomicU64; 3],
    pub migrations: AtomicU64,
    /// See [`CoreStats`].
    pub put_off: AtomicU64,
    pub put_off_ns: AtomicU64,
    pub put_off_longest_ns: AtomicU64,
    pub put_off_longest_in: AtomicU64,
}

/// A copy of a core's counters.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct CoreStats {
    pub switches: u64,
    pub space_switches: u64,
    pub parks: u64,
    pub polls: u64,
    pub deadlines: u64,
    pub interrupts: u64,
    pub idle_ns: u64,
    pub busy_ns: u64,
    pub migrations: u64,
    /// Threads that wait for the core now.
    pub ready: u32,
    /// Does one run?
    pub runs: bool,
    /// How often an interrupt had to wait because the core ran the runtime, how long together and at most, ns, and in which
    /// system call the core was by then, plus 1 (0: none).
    pub put_off: u64,
    pub put_off_ns: u64,
    pub put_off_longest_ns: u64,
    pub put_off_longest_in: u64,
    /// What part of its processor's time others than the cell have used lately, thousandths.
    pub others: u32,
}

// SAFETY: `private` is reached only through `with_private`, on the core itself, and so is `meter`.
unsafe impl Sync for Core {}
// SAFETY: as above.
unsafe impl Send for Core {}

static CORES: SetOnce<Box<[Core]>> = SetOnce::new();

impl Core {
    fn new(number: usize, cores: usize) -> Self {
        let area = &platform().control().cores[number];
        Core {
            area,
            meter: Meter::new(number, &area.local),
            private: UnsafeCell::new(Private {
                ready: Ready::new(),
                again: None,
                finished: None,
                leaving: None,
                live: core::ptr::null(),
                timers: BTreeMap::new(),
                timer_sequence: 0,
                timers_left: false,
                armed: u64::MAX,
                choosing: false,
                may_spread_next: false,
                brief: false,
                spared: (0, 0),
                in_place: false,
                woke_at: 0,
                computed: false,
                ends: false,
                rest: None,
                offered: None,
                seen_idle: None,
                quiet_until: 0,
                asked: 0,
                asks_again: 0,
                sleeps_long: false,
                unused: Vec::with_capacity(crate::thread::KEPT),
                balanced: 0,
                wakes: 0,
                since: 0,
                counts_at: 0,
                told: false,
                told_at: 0,
                polled: 0,
                events_idle: true,
                looked: 0,
                looks_often: false,
                acted: false,
                events: Events::new(),
                polling: Polling::new(),
                answers: Answers::new(),
                looks: Tries::new(),
                spread_after: crate::scheduler::SPREAD_AFTER,
                messages: Queues::new(SchedulerKind::Wfq, 1, 0),
                pool: Pool::new(crate::messages::POOL),
                after: Vec::new(),
                limbo: Limbo::default(),
                owed: Owed::default(),
                for_classes: 0,
                leave: None,
            }),
            inbox: Lines::new(cores),
            messages: Inbox::default(),
            releases: AtomicBool::new(false),
            mail: AtomicPtr::new(null_mut()),
            letter: Letter::new(),
            load: AtomicU32::new(0),
            class_running: AtomicU32::new(0),
            class_loads: [const { AtomicU32::new(0) }; ACTIVITIES_MAX],
            rung: AtomicU64::new(0),
            trace: AtomicPtr::new(null_mut()),
            busy: AtomicBool::new(false),
            apart: AtomicBool::new(false),
            usage: AtomicU32::new(usage::ONLINE),
            divided: AtomicBool::new(false),
            left_at: AtomicU64::new(0),
            quiescent: AtomicU64::new(0),
            event_thread: AtomicPtr::new(null_mut()),
            wants_work: AtomicBool::new(false),
            crowds: AtomicBool::new(false),
            was_given: AtomicBool::new(false),
            next_other: AtomicU32::new(0),
            at_work: AtomicU32::new(number as u32),
            stats: Stats::default(),
        }
    }

    /// Is it in use?
    #[inline]
    pub fn is_online(&self) -> bool {
        self.usage.load(Ordering::Relaxed) == usage::ONLINE
    }

    /// Has it [left](usage::LEFT)? Then what it did before is seen.
    #[inline]
    pub fn has_left(&self) -> bool {
        self.usage.load(Ordering::Acquire) == usage::LEFT
    }

    /// Sends a request to this core.
    pub fn send(&self, mail: Mail) {
        self.put(Box::into_raw(Box::new(MailNode { next: null_mut(), mail })));
    }

    /// Sends its letter to this core, unless it is under way.
    pub fn send_letter(&self) {
        if !self.letter.sent.swap(true, Ordering::AcqRel) {
            self.put(self.letter.node.get());
        }
    }

    fn put(&self, node: *mut MailNode) {
        let mut top = self.mail.load(Ordering::Relaxed);
        loop {
            // SAFETY: the node is ours until it is in the list.
            unsafe { (*node).next = top };
            match self.mail.compare_exchange_weak(top, node, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }
}

pub(crate) fn make_cores(n: usize) {
    let made = CORES.set((0..n).map(|number| Core::new(number, n)).collect());
    assert!(made.is_ok(), "the scheduler was started twice");
    let online = platform().control().descriptor.online.load(Ordering::Relaxed) as usize;
    for core in all_cores().iter().skip(if online == 0 { n } else { online }) {
        // There is nothing on it yet.
        core.usage.store(usage::LEFT, Ordering::Relaxed);
    }
    crate::activity::init();
    crate::messages::init();
    crate::gate::init();
}

/// Number of cores, or 0 before boot.
pub fn cores() -> usize {
    CORES.get().map_or(0, |c| c.len())
}

pub(crate) fn all_cores() -> &'static [Core] {
    &CORES
}

pub(crate) fn core(n: usize) -> &'static Core {
    &CORES[n]
}

/// The core that runs this.
#[inline]
pub(crate) fn this_core() -> &'static Core {
    let p = core_local().scheduler.load(Ordering::Relaxed).cast::<Core>();
    debug_assert!(!p.is_null(), "this core was not booted");
    // SAFETY: cores live for ever.
    unsafe { &*p }
}

/// Runs `f` with the core's private part. `f` must not switch threads nor call back in here.
#[inline]
pub(crate) fn with_private<R>(f: impl FnOnce(&mut Private) -> R) -> R {
    with_private_of(this_core(), f)
}

/// The same for who knows that `this` is the core that runs it, because it has not switched threads since it looked.
#[inline]
pub(crate) fn with_private_of<R>(this: &Core, f: impl FnOnce(&mut Private) -> R) -> R {
    debug_assert!(core::ptr::eq(this, this_core()), "a thread went on on another core");
    // SAFETY: only this core gets here for this part, and upcalls are masked in the runtime.
    f(unsafe { &mut *this.private.get() })
}

/// The record of a core that isn't over: since when, ns, and does the core sleep? [`None`]: there is none, or the core isn't used.
fn open_record(core: &Core) -> Option<(u64, bool)> {
    let since = core.stats.since.load(Ordering::Relaxed);
    (since != 0 && core.is_online()).then_some((since & !SLEEPS, since & SLEEPS != 0))
}

/// How long a core was busy and idle until now, ns: what is counted, and the record that isn't over. They never grow less.
fn times(core: &Core, now: u64) -> [u64; 2] {
    let s = &core.stats;
    let counted = [&s.busy_ns, &s.idle_ns].map(|a| a.load(Ordering::Relaxed));
    // Pairs with the one of who begins a record: none is told twice. One that ends meanwhile may be left out.
    fence(Ordering::Acquire);
    let mut times = counted;
    if let Some((since, sleeps)) = open_record(core) {
        times[usize::from(sleeps)] += now.saturating_sub(since);
    }
    for (time, told) in times.iter_mut().zip(&s.told) {
        *time = told.fetch_max(*time, Ordering::Relaxed).max(*time);
    }
    times
}

/// The cell's load averages of one, five and fifteen minutes, in units of 1/2048.
pub fn load_averages() -> [u64; 3] {
    let now = platform().now();
    let mut sum = [0; 3];
    for core in all_cores() {
        let own = core.stats.averages.each_ref().map(|a| a.load(Ordering::Relaxed));
        let own = match open_record(core) {
            Some((since, sleeps)) => {
                let ready = core.load.load(Ordering::Relaxed) as usize;
                let active = crate::load::active(now.saturating_sub(since), sleeps, ready);
                crate::load::after(own, crate::load::counts(since, now), active)
            }
            None => own,
        };
        for (sum, own) in sum.iter_mut().zip(own) {
            *sum += own;
        }
    }
    sum
}

/// A copy of a core's counters.
pub fn core_stats(n: usize) -> CoreStats {
    let s = &core(n).stats;
    let get = |a: &AtomicU64| a.load(Ordering::Relaxed);
    let [busy_ns, idle_ns] = times(core(n), platform().now());
    CoreStats {
        switches: get(&s.switches),
        space_switches: get(&s.space_switches),
        parks: get(&s.parks),
        polls: get(&s.polls),
        deadlines: get(&s.deadlines),
        interrupts: get(&s.interrupts),
        idle_ns,
        busy_ns,
        migrations: get(&s.migrations),
        ready: core(n).load.load(Ordering::Relaxed),
        runs: open_record(core(n)).is_some_and(|(_, sleeps)| !sleeps),
        put_off: get(&s.put_off),
        put_off_ns: get(&s.put_off_ns),
        put_off_longest_ns: get(&s.put_off_longest_ns),
        put_off_longest_in: get(&s.put_off_longest_in),
        others: core(n).area.others.load(Ordering::Relaxed),
    }
}

/// One more of something; only this core counts here, so no locked instruction is needed.
#[inline]
pub(crate) fn count(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}

/// Handles an event. Value: false if that takes a lock that is held, and `may_wait` is not set.
type EventHandler = fn(event: &Event, may_wait: bool) -> bool;

static EVENT_HANDLER: SetOnce<EventHandler> = SetOnce::new();

/// Says who handles readiness events and the mailbox. It is called first where a core takes the
/// event, and must not wait there; then, if it could not do without, in the core's event thread.
pub fn set_event_handler(handler: EventHandler) {
    // Once in a cell's life; a second time changes nothing.
    let _ = EVENT_HANDLER.set(handler);
}

/// In a core's event thread.
pub(crate) fn handle_event(event: &Event) {
    match event {
        Event::Answer(answer) => crate::service::answered(answer),
        Event::Ready { .. } | Event::Mailbox => {
            if let Some(handler) = EVENT_HANDLER.get() {
                handler(event, true);
            }
        }
    }
}

/// Handles what can be handled without waiting for a lock: the event thread gets the rest.
/// For any place where the core holds no lock of its own.
pub(crate) fn handle_in_place() {
    let Some(handler) = EVENT_HANDLER.get() else { return };
    let count = with_private(|p| {
        p.in_place = true;
        p.events.len()
    });
    let mut kept = 0;
    for n in 0..count {
        assert_accounted("events in place");
        let event = with_private(|p| p.events.get(n));
        let done = matches!(event, Event::Ready { .. }) && handler(&event, false);
        if !done {
            with_private(|p| p.events.set(kept, event));
            kept += 1;
        }
    }
    with_private(|p| {
        p.events.truncate(kept);
        p.in_place = false;
    });
}
