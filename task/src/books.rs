//! The books of a core: every nanosecond of it is in one record (Omni-kernel, section 2.2; `docs/grid.md`).
//!
//! Records follow one another without a gap: one look at the clock ends one and begins the next. What is looked at is
//! each slice of a thread, each sleep and each round of events. Within a slice, *messages* (system calls, page faults)
//! take time from the thread's record into that of the resource that serves them:
//!
//! - A message whose kind takes long ([`LONG`], [`WORTH`]) is timed each time.
//! - Of the others one in N is timed, drawn at random, and stands for N: looking at the clock twice would cost more than
//!   the message. What is moved to the resource is taken from the thread, so the sum is right at any time, and each
//!   part is right on average.
//!
//! A message that waits is in no record meanwhile: it is suspended, and goes on where its thread does.
//!
//! There is no path around it: a build with debug assertions asserts that each call of the platform, and each long loop, is a
//! part of some record ([`atoll_abi::assert_accounted`]): that a program's thread is in a message, or the core is at what the grid itself
//! takes, or has nothing to do, or is starting.
#![allow(unsafe_code, reason = "the sheet that a core writes to is changed with each switch")]

use alloc::boxed::Box;
use core::array::from_fn;
use core::cell::{Cell, OnceCell};
use core::ptr::null;
use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use crate::activity::{self, Activity, Cause, Debtor};
use crate::core_state::{count, this_core};
use crate::thread::{Thread, current};
use crate::{gate, scheduler};
use atoll_abi::core_local::CoreLocal;
#[cfg(debug_assertions)]
use atoll_abi::core_local::core_local;
use atoll_abi::grid::{Entry, INFRASTRUCTURE, Measure, ROOT, Resource, Sheet};
use atoll_abi::platform;

/// Kinds of messages: the numbers of system calls, and some more behind them.
pub const KINDS: usize = 512;
/// The kind of a page fault.
pub const PAGE_FAULT: usize = KINDS - 1;
/// The kind of what comes in between: deadlines, and other cores that want something.
pub const EVENT: usize = KINDS - 2;
/// The kind of a new task's way to its program.
pub const START: usize = KINDS - 3;
/// The kind of what is done to be measured: of a length of its own.
pub const BURN: usize = KINDS - 4;

/// A kind that takes so long on average, ns, is timed each time,
const LONG: u32 = 2_000;
/// if that is so many times what timing a message takes, too: in emulation that is more than elsewhere.
const WORTH: u64 = 100;
/// Averages stay below [`HELD_UP`]: what is as long as this is timed each time in any case.
const LONG_MOST: u64 = HELD_UP / 2;
/// One in so many of the others is timed, and of switches between threads.
static SAMPLE: AtomicU32 = AtomicU32::new(16);
/// The longest gap between samples, so that draws fit.
const SAMPLE_MAX: u32 = 1 << 16;

/// Work of a core, ns, after which it looks how much of that time it really had.
const LOOK_AFTER: u64 = 1_000_000;
/// None was charged with all that it took ([`Meter::longest`]).
const NO_MESSAGE: (Resource, u64) = (Resource::Overhead, 0);
/// Spaces for which that is known.
const SPACES: usize = 16;

/// Looks at the clock, to see what one costs, and tries to see what timing does.
const CLOCK_TRIES: usize = 32;
const TIMING_TRIES: usize = 4;
/// A short kind's message that takes longer than this, ns, was most likely held up from outside: it counts as one that
/// takes as long as they do on average.
const HELD_UP: u64 = 50_000;

/// However short a kind is, one that takes this much longer, ns, is not out of the ordinary.
const SHORT: i64 = 100;

/// Activities that one round of events can be for, before the rest counts as nobody's.
const CAUSES: usize = 8;

/// What a core is at, as builds with debug assertions keep it.
#[cfg(debug_assertions)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Doing {
    /// It has not come to its scheduler yet: before that, nothing is anybody's.
    Starting,
    /// It looks for the next thread, or takes in events: overhead, or those whose they are.
    Scheduling,
    /// It has nothing to do.
    Idling,
    /// It runs a thread, which is in no message: a program's does nothing in the runtime then.
    Running,
    /// A message is under way.
    Message,
}

#[cfg(debug_assertions)]
impl Doing {
    /// Is what happens now part of a record that says what it is?
    fn is_accounted(self, program: bool) -> bool {
        self != Doing::Running || !program
    }
}

/// What a core's books are at. Only the core itself touches it, in the runtime with upcalls masked.
pub(crate) struct Meter {
    core: usize,
    local: &'static CoreLocal,
    /// The sheet of the activity that the core works for, as long as it does: it may be freed when the core has nothing to do.
    sheet: Cell<*const Sheet>,
    /// That activity, or the one that it worked for last.
    who: Cell<Cause>,
    /// What it does between messages.
    base: Cell<Resource>,
    /// Since when it does that for this activity.
    since: Cell<u64>,
    /// How much of the slice others have had, who are charged already.
    charged: Cell<u64>,
    /// What it was at in the slice that was settled last.
    settled: Cell<Resource>,
    /// The resource that serves the message under way.
    label: Cell<Resource>,
    /// Kind of the message under way.
    kind: Cell<u16>,
    /// What the message under way stands for; 0: it isn't timed, or there is none.
    weight: Cell<u32>,
    /// Since when `label` has had it.
    began: Cell<u64>,
    /// How long it has taken before that.
    spent: Cell<u64>,
    /// What the message that was timed last has been charged with, for all that it stands for, and the part of that for which others
    /// served it, ns.
    cost: Cell<u64>,
    elsewhere: Cell<u64>,
    /// Whom the event thread works for, and one more: 0: for nobody that is known.
    serving: Cell<u32>,
    /// What its last message took, and all that it has run since events were last charged, ns.
    served_last: Cell<u64>,
    served: Cell<u64>,
    /// Messages until the next that is timed.
    gap: Cell<u32>,
    /// Switches until the next that is timed.
    switch_gap: Cell<u32>,
    /// Has the core been idle since the last switch?
    was_idle: Cell<bool>,
    random: Cell<u32>,
    /// What was taken from the slice under way by the host, as far as it is known, ns.
    stolen: Cell<u64>,
    /// What of that the thread has been told already.
    told: Cell<u64>,
    /// The longest message of the slice under way that was charged with all that it took: what served it, and how long, ns.
    longest: Cell<(Resource, u64)>,
    /// What is known of each space of how much time the core had there.
    had: [Cell<Had>; SPACES],
    /// For each space: the activity that the core worked for when it looked there last, and what that one had.
    looked: OnceCell<Box<[Cell<Seen>]>>,
    /// What one look at the clock costs, ns.
    clock_cost: Cell<u64>,
    /// From which average on a kind is timed each time, ns.
    long: Cell<u32>,
    /// Whose the events were that were told of since events were last charged, and how many.
    causes: [Cell<(Cause, u32)>; CAUSES],
    /// Who was charged with events last, with how much time, ns, and how many.
    shares: [Cell<(Cause, u64, u32)>; CAUSES],
    shared: Cell<usize>,
    /// How many of the `causes` there are.
    known: Cell<usize>,
    /// Whose the event is that is being told of, if that is known: whom it wakes says nothing more.
    telling: Cell<bool>,
    /// Time that nobody was charged with for events of which it is not known yet whose they are, ns.
    owed: Cell<u64>,
    /// How long each kind takes on average, ns. Long, until it is known better.
    means: [Cell<u32>; KINDS],
    ahead: Ahead,
    /// Is anything counted beside time?
    counts: Cell<bool>,
    /// How often what is counted happens by a look at that.
    count_cost: Cell<i64>,
    /// What was counted before messages that the event thread has run since events were last charged.
    count_aside: Cell<i64>,
    /// What looks at the counter took since the record began that is under way, ns.
    looks: Cell<u64>,
    /// What of them was taken from that record when it began, ns.
    looks_taken: Cell<u64>,
    #[cfg(debug_assertions)]
    doing: Cell<Doing>,
}

/// The time that a core had in a space.
#[derive(Clone, Copy)]
struct Had {
    /// Work since the core last looked, ns.
    work: u64,
    /// What it had had by then, ns; 0: it has not looked yet.
    by_then: u64,
    /// For how long the core had had nothing to do by then, ns.
    idle: i64,
    /// What was stolen by then and could be taken from nobody, ns.
    left: u64,
}

impl Had {
    const NOTHING: Had = Had { work: 0, by_then: 0, idle: 0, left: 0 };
}

/// What an activity's entries had on a core, ns: of those that time is taken from.
type Times = [i64; Resource::Idle as usize];

/// Whom the core worked for when it looked, and what that one had.
type Seen = (Cause, Times);

/// What was stolen from nobody knows whom is taken from one in so many ns of who is there when it is found: what is left then, from the
/// next ones.
const REST_PART: i64 = 8;

/// The part of `ns` that `part` is of `all`, which is more than nothing unless `part` is.
fn share(ns: i64, part: i64, all: i64) -> i64 {
    match ns.checked_mul(part) {
        Some(0) => 0,
        Some(product) => product / all,
        None => (i128::from(ns) * i128::from(part) / i128::from(all)) as i64,
    }
}

/// Takes so much time from entries, in proportion to these parts of theirs, but no more than the parts. Value: how much that was, ns.
fn take(entries: &[Entry], parts: &Times, ns: i64) -> i64 {
    let all: i64 = parts.iter().sum();
    let wanted = ns.min(all);
    if wanted <= 0 {
        return 0;
    }
    // Each has the difference of two sums: so all of it is taken.
    let (mut before, mut taken) = (0, 0);
    for (entry, part) in entries.iter().zip(parts).filter(|(_, part)| **part != 0) {
        before += part;
        let by_then = share(wanted, before, all);
        add(&entry.time, taken - by_then);
        taken = by_then;
    }
    taken
}

/// A message that waits, or that another is begun within.
#[derive(Clone, Copy)]
pub(crate) struct Suspended {
    label: Resource,
    kind: u16,
    weight: u32,
    spent: u64,
    /// What it has been charged with, and what of that others have been paid for.
    cost: u64,
    elsewhere: u64,
    #[cfg(debug_assertions)]
    doing: Doing,
}

/// A message that another resource serves for a while.
pub(crate) struct Within {
    from: Resource,
    /// What it had been charged with before.
    cost: u64,
    /// What of that others had been paid for.
    elsewhere: u64,
}

fn sample() -> u32 {
    SAMPLE.load(Ordering::Relaxed)
}

/// One in so many short messages is timed from now on, on average: 1 to 65536.
pub fn set_sample(n: u32) {
    SAMPLE.store(n.clamp(1, SAMPLE_MAX), Ordering::Relaxed);
}

/// Adds to a word that only this core writes.
#[inline]
fn add(word: &AtomicI64, n: i64) {
    word.store(word.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}

impl Meter {
    pub fn new(core: usize, local: &'static CoreLocal) -> Self {
        Meter {
            core,
            local,
            sheet: Cell::new(null()),
            who: Cell::new(Cause::NOBODY),
            base: Cell::new(Resource::Completion),
            since: Cell::new(0),
            charged: Cell::new(0),
            settled: Cell::new(Resource::Completion),
            label: Cell::new(Resource::Process),
            kind: Cell::new(0),
            weight: Cell::new(0),
            began: Cell::new(0),
            spent: Cell::new(0),
            cost: Cell::new(0),
            elsewhere: Cell::new(0),
            serving: Cell::new(0),
            served_last: Cell::new(0),
            served: Cell::new(0),
            gap: Cell::new(1),
            switch_gap: Cell::new(1),
            was_idle: Cell::new(true),
            random: Cell::new(0x9e37_79b9 ^ (core as u32 + 1).wrapping_mul(0x85eb_ca6b)),
            stolen: Cell::new(0),
            longest: Cell::new(NO_MESSAGE),
            told: Cell::new(0),
            had: [const { Cell::new(Had::NOTHING) }; SPACES],
            looked: OnceCell::new(),
            clock_cost: Cell::new(0),
            long: Cell::new(LONG),
            causes: [const { Cell::new((Cause::NOBODY, 0)) }; CAUSES],
            shares: [const { Cell::new((Cause::NOBODY, 0, 0)) }; CAUSES],
            shared: Cell::new(0),
            known: Cell::new(0),
            telling: Cell::new(false),
            owed: Cell::new(0),
            means: [const { Cell::new(LONG) }; KINDS],
            ahead: Ahead::default(),
            counts: Cell::new(false),
            count_cost: Cell::new(0),
            count_aside: Cell::new(0),
            looks: Cell::new(0),
            looks_taken: Cell::new(0),
            #[cfg(debug_assertions)]
            doing: Cell::new(Doing::Starting),
        }
    }

    fn entry(&self, resource: Resource) -> &Entry {
        // SAFETY: set by `work_for` or `open`, for an activity that the running thread or the cell holds.
        let sheet = unsafe { &*self.sheet.get() };
        &sheet.entries[resource as usize]
    }

    /// A gap between samples: anything from 1 to twice the mean less one, so that no rhythm of a program's is always hit.
    fn draw(&self) -> u32 {
        let mut x = self.random.get();
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        self.random.set(x);
        ((u64::from(x) * u64::from(2 * sample() - 1)) >> 32) as u32 + 1
    }

    /// The core begins to work, for nobody yet.
    pub fn open(&self) {
        // Not where it is made: the stack is small there.
        let nothing = |_| Cell::new((Cause::NOBODY, [0; Resource::Idle as usize]));
        self.looked.get_or_init(|| (0..SPACES).map(nothing).collect());
        let least = |tries: usize, f: &dyn Fn()| {
            let tries = (0..tries).map(|_| {
                let start = platform().now();
                f();
                platform().now() - start
            });
            tries.min().unwrap_or(0)
        };
        let look = least(CLOCK_TRIES, &|| ());
        self.sheet.set(activity::sheet(ROOT, self.core));
        // What is taken from a record and put into the same one leaves nothing there.
        self.label.set(self.base.get());
        let timing = least(TIMING_TRIES, &|| {
            self.begin_timed(true);
            self.end_timed();
        });
        let long = (timing.saturating_sub(look) * WORTH).clamp(LONG.into(), LONG_MOST) as u32;
        self.long.set(long);
        self.means.iter().for_each(|mean| mean.set(long));
        self.clock_cost.set(look);
        self.counts.set(platform().counted().is_some());
        if self.counts.get() {
            // As it happens around a message: there are looks at the clock in between.
            let mut costs: [i64; CLOCK_TRIES] = core::array::from_fn(|_| {
                platform().now();
                platform().now();
                self.counted()
            });
            costs.sort_unstable();
            self.count_cost.set(costs[CLOCK_TRIES / 2]);
        }
    }

    /// The core works for a thread from now on.
    #[inline]
    pub fn work_for(&self, t: &Thread) {
        let (base, who) = if t.works_for_somebody() {
            (Resource::Thread, t.activity())
        } else {
            (Resource::Completion, INFRASTRUCTURE)
        };
        self.known.set(0);
        self.stolen.set(0);
        self.told.set(0);
        self.longest.set(NO_MESSAGE);
        self.base.set(base);
        self.is_for(who);
        self.local.unsettled_for.store(who << 8 | base as u32, Ordering::Relaxed);
    }

    /// What follows is this activity's, which somebody holds.
    #[inline]
    fn is_for(&self, who: u32) {
        self.sheet.set(activity::sheet(who, self.core));
        self.who.set(Cause::activity(who));
    }

    /// It has done so since this time: for those who look on.
    #[inline]
    pub fn works(&self, since: u64) {
        self.since.set(since);
        let looks = self.looks.replace(0);
        self.looks_taken.set(looks);
        if looks != 0 {
            self.takes_looks(looks);
        }
        self.local.unsettled.store(since, Ordering::Release);
    }

    /// A slice ends: the core did for `ran` ns what it is at. Value: for how long of it the processor was elsewhere, ns, as
    /// far as that is known.
    pub fn settle(&self, ran: u64) -> u64 {
        #[cfg(debug_assertions)]
        self.doing.set(Doing::Scheduling);
        self.settled.set(self.base.get());
        self.telling.set(false);
        let rest = ran.saturating_sub(self.charged.replace(0));
        if self.base.replace(Resource::Completion) == Resource::Completion {
            self.charge_events(rest, false);
        } else {
            add(&self.entry(Resource::Thread).time, rest as i64);
            if self.counts.get() {
                let begun = platform().now();
                self.count_for(Resource::Thread);
                self.looks.set(self.looks.get() + platform().now().saturating_sub(begun));
            }
        }
        self.worked(rest);
        self.stolen.replace(0)
    }

    /// What was taken from the slice under way, as far as that is known, and the thread was not told yet, ns.
    pub fn tell_stolen(&self) -> u64 {
        let stolen = self.stolen.get();
        stolen - self.told.replace(stolen)
    }

    /// What the thread was told of in the slice that has ended, ns.
    pub fn told_stolen(&self) -> u64 {
        self.told.replace(0)
    }

    /// In the middle of a slice, the thread turns to another activity, which it holds.
    pub fn turn_over(&self, who: u32, now: u64) {
        self.turn(who, now, LOOK_AFTER);
    }

    /// The same; it is looked what the host took if there was so much work, ns.
    fn turn(&self, who: u32, now: u64, look_after: u64) {
        if self.weight.get() != 0 {
            // The part of the message that is over is the old one's.
            self.cut(now);
        }
        self.local.unsettled.store(0, Ordering::Release);
        let part = now.saturating_sub(self.since.get());
        self.charged.set(self.charged.get() + part);
        self.settled.set(self.base.get());
        add(&self.entry(self.base.get()).time, part as i64);
        self.count_for(self.base.get());
        self.worked_or_not(part, look_after);
        self.longest.set(NO_MESSAGE);
        self.is_for(who);
        self.local.unsettled_for.store(who << 8 | self.base.get() as u32, Ordering::Relaxed);
        self.works(now);
        if self.counts.get() {
            self.counter_was_looked_at(now);
        }
    }

    /// The core has worked for `ran` ns, by the clock, in its current space; what that was is in the sheets. If that is much,
    /// it looks how much of it the processor was elsewhere: that is taken from a message that took most of that time, or from what was
    /// done since the last look if that was for the same activity, or else from what the core was at last.
    #[inline]
    pub fn worked(&self, ran: u64) {
        self.worked_or_not(ran, LOOK_AFTER);
    }

    /// The same; so much work, ns, is much.
    #[inline]
    fn worked_or_not(&self, ran: u64, much: u64) {
        let space = self.local.space.load(Ordering::Relaxed) as usize;
        let Some(had) = self.had.get(space) else { return };
        let before = had.get();
        had.set(Had { work: before.work + ran, ..before });
        if before.work + ran >= much {
            self.look_at_stolen(space);
        }
    }

    /// The core has come to another space, of which it may not know yet how much time it has had there.
    pub fn arrive(&self) {
        let space = self.local.space.load(Ordering::Relaxed) as usize;
        if let Some(had) = self.had.get(space).filter(|had| had.get().by_then == 0) {
            had.set(Had { by_then: platform().cpu_time().unwrap_or(0), ..had.get() });
        }
    }

    #[cold]
    fn look_at_stolen(&self, space: usize) {
        let had = &self.had[space];
        let cell = &activity::sheet(ROOT, self.core).entries;
        let [overhead, idle, taken] =
            [Resource::Overhead, Resource::Idle, Resource::Stolen].map(|r| &cell[r as usize].time);
        let none = Had { idle: idle.load(Ordering::Relaxed), ..Had::NOTHING };
        let before = had.replace(none);
        // Where nobody knows, it need not be asked before there is as much work again.
        let Some(now) = platform().cpu_time() else { return };
        had.set(Had { by_then: now, ..none });
        // The thread, and its activity, may have ended since.
        let (who, sheet) = self.who.get().known_sheet(self.core);
        let entries = &sheet.entries;
        let times = || -> Times { from_fn(|n| entries[n].time.load(Ordering::Relaxed).max(0)) };
        let Some(looked) = self.looked.get().map(|looked| &looked[space]) else { return };
        let (looked_for, at_last_look) = looked.get();
        // The first look in the first space, or another thread of the host stands for the core there now.
        if before.by_then == 0 || now < before.by_then {
            looked.set((who, times()));
            return;
        }
        let lately = before.work as i64 - (now - before.by_then) as i64;
        let stolen = lately + before.left as i64;
        if stolen >= 0 {
            // What was left before is not of what was done since.
            let lately = lately.max(0);
            let all = times();
            let (served, longest) = self.longest.replace(NO_MESSAGE);
            let is_message = longest >= lately as u64 && longest > before.work / 2;
            let is_known = who != Cause::NOBODY;
            let of_that = if is_message {
                take(entries, &from_fn(|n| if n == served as usize { all[n] } else { 0 }), lately)
            } else if is_known && who == looked_for {
                // In pieces: from all that was done since, most from what seems to have taken most of that time, be that because it
                // is what lets others go first, as a message that wakes whom its processor is given. Where others have worked
                // meanwhile, too, they have lost their part of it.
                let parts: Times = from_fn(|n| (all[n] - at_last_look[n]).max(0));
                let (done, work) = (parts.iter().sum::<i64>(), before.work as i64);
                take(entries, &parts, share(lately, done.min(work), work))
            } else {
                let last = self.settled.get() as usize;
                take(entries, &from_fn(|n| if n == last { all[n] / 2 } else { 0 }), lately)
            };
            // The rest others may have lost, of whom nothing is known any more: a small part of what else this one has had.
            let rest = if is_known { stolen - of_that } else { 0 };
            let part = of_that + take(entries, &times().map(|had| had / REST_PART), rest);
            // Or looked for the next time.
            had.set(Had { by_then: now, left: (stolen - part) as u64, ..none });
            add(taken, part);
            if is_message && self.settled.get() == Resource::Thread {
                current().was_held_up(served, of_that as u64);
            }
            self.say_stolen(taken);
            self.stolen.set(self.stolen.get() + part as u64);
        } else {
            // To go to sleep and to wake up takes work, too, which the clock counts as sleep; and to leave a space, which
            // looks stolen where the core goes on. What neither was is known the next time.
            let more = -stolen;
            let asleep = more.min((none.idle - before.idle).max(0));
            let leaving = (more - asleep).min(taken.load(Ordering::Relaxed).max(0));
            add(overhead, asleep + leaving);
            add(idle, -asleep);
            add(taken, -leaving);
            self.say_stolen(taken);
            self.slept_less(asleep);
            let idle = none.idle - asleep;
            had.set(Had { by_then: now - (more - asleep - leaving) as u64, idle, ..Had::NOTHING });
        }
        looked.set((who, times()));
    }

    /// How much of what the current thread's message was charged with it had, ns; it stood for so many. If it took long, it is looked
    /// whether the processor was elsewhere meanwhile, which is not to be paid: whoever divides the resource could not give it back.
    fn had_of(&self, served: Resource, took: u64, weight: u32) -> u64 {
        if self.base.get() != Resource::Thread {
            return took;
        }
        if took >= HELD_UP * 2 && weight == 1 {
            let me = current();
            self.turn(me.activity(), platform().now(), 0);
            me.lost(self.tell_stolen());
        }
        // It may have been found earlier, too: where the thread waited, or asked for its time.
        took - current().take_not_had(served, took)
    }

    /// How often what is counted has happened since this was last asked.
    #[inline]
    fn counted(&self) -> i64 {
        if self.counts.get() { self.look_at_counter() } else { 0 }
    }

    #[cold]
    #[inline(never)]
    fn look_at_counter(&self) -> i64 {
        platform().counted().map_or(0, |n| n.min(i64::MAX as u64) as i64)
    }

    /// That was while the core was at this.
    #[inline]
    fn count_at(&self, entry: &Entry) {
        if self.counts.get() {
            add(&entry.counted, self.look_at_counter());
        }
    }

    /// The same, for those for whom the core works.
    #[inline]
    fn count_for(&self, resource: Resource) {
        if self.counts.get() {
            add(&self.entry(resource).counted, self.look_at_counter());
        }
    }

    /// That was while a resource served what stands for so many of its kind: the others' is taken from what the core is at between them,
    /// which has it by now.
    #[inline]
    fn count_sample(&self, resource: Resource, weight: u32) {
        if self.counts.get() {
            self.count_sample_of(resource, weight);
        }
    }

    #[cold]
    #[inline(never)]
    fn count_sample_of(&self, resource: Resource, weight: u32) {
        let all = self.look_at_counter();
        let cost = self.count_cost.get().min(all);
        let (counted, base) = (all - cost, &self.entry(self.base.get()).counted);
        add(&self.entry(Resource::Overhead).counted, cost);
        let others = counted.saturating_mul(i64::from(weight) - 1).min(base.load(Ordering::Relaxed).max(0));
        add(&self.entry(resource).counted, counted + others);
        add(base, -others);
    }

    /// Some of what the core has slept was work.
    fn slept_less(&self, ns: i64) {
        let word = &platform().control().cores[self.core].slept;
        if ns > 0 && platform().slept().is_none() {
            word.store(word.load(Ordering::Relaxed).saturating_sub(ns as u64), Ordering::Relaxed);
        }
    }

    fn say_stolen(&self, taken: &AtomicI64) {
        let word = &platform().control().cores[self.core].stolen;
        word.store(taken.load(Ordering::Relaxed).max(0) as u64, Ordering::Relaxed);
    }

    /// A message begins.
    #[inline(always)]
    pub fn begin(&self, kind: usize, resource: Resource) {
        #[cfg(debug_assertions)]
        self.doing.set(Doing::Message);
        self.label.set(resource);
        self.kind.set(kind as u16);
        let gap = self.gap.get() - 1;
        self.gap.set(gap);
        let long = self.means[kind].get() >= self.long.get();
        if gap == 0 || long {
            self.begin_timed(long);
        }
    }

    #[cold]
    fn begin_timed(&self, long: bool) {
        if self.gap.get() == 0 {
            self.gap.set(self.draw());
        }
        self.weight.set(if long { 1 } else { sample() });
        self.spent.set(0);
        self.cost.set(0);
        self.elsewhere.set(0);
        self.began.set(platform().now());
        if self.counts.get() {
            self.count_for(self.base.get());
            self.counter_was_looked_at(self.began.get());
        }
    }

    /// It turns out which resource the message is for.
    #[inline(always)]
    pub fn turn_to(&self, resource: Resource) {
        self.label.set(resource);
    }

    /// Another resource takes over for a while. Value: for [`Meter::go_back`].
    #[inline]
    pub fn go_to(&self, resource: Resource) -> Within {
        if self.weight.get() != 0 {
            self.cut_here();
        }
        Within { from: self.label.replace(resource), cost: self.cost.get(), elsewhere: self.elsewhere.get() }
    }

    /// The resource that took over is done. Value: what it is charged with, as far as that was looked at and no other one took over
    /// from it, ns.
    #[inline]
    pub fn go_back(&self, to: Within) -> u64 {
        count(&self.entry(self.label.get()).messages, 1);
        let took = if self.weight.get() != 0 { self.cut_off(&to) } else { 0 };
        self.label.set(to.from);
        took
    }

    #[cold]
    fn cut_here(&self) {
        let now = platform().now();
        self.cut(now);
        if self.counts.get() {
            self.counter_was_looked_at(now);
        }
    }

    /// Since this time the core looked at its counter: that is the grid's.
    #[cold]
    #[inline(never)]
    fn counter_was_looked_at(&self, since: u64) {
        let now = platform().now();
        self.takes_looks(now.saturating_sub(since));
        self.began.set(now);
    }

    /// Looks at the counter took so much of the record under way, ns: that is the grid's.
    #[cold]
    fn takes_looks(&self, took: u64) {
        add(&self.entry(Resource::Overhead).time, took as i64);
        add(&self.entry(self.base.get()).time, -(took as i64));
    }

    /// Value: what has been charged since `to`, and not to what was within that, ns.
    #[cold]
    fn cut_off(&self, to: &Within) -> u64 {
        self.cut_here();
        let took = self.cost.get().saturating_sub(to.cost);
        let within = self.elsewhere.get().saturating_sub(to.elsewhere);
        self.elsewhere.set(to.elsewhere + took);
        took.saturating_sub(within)
    }

    /// Bytes went through a resource.
    #[inline]
    pub fn moved(&self, resource: Resource, bytes: u64) {
        count(&self.entry(resource).bytes, bytes);
    }

    /// The message ends. Value: who served it.
    #[inline(always)]
    pub fn end(&self) -> Resource {
        count(&self.entry(self.label.get()).messages, 1);
        if self.weight.get() != 0 {
            self.end_timed();
        }
        self.label.get()
    }

    /// A message ends where there are gates: who served it is paid what it was charged with, if it was timed.
    #[cold]
    fn end_and_pay(&self) {
        let weight = self.weight.get();
        let served = self.end();
        let took = if weight != 0 { self.cost.get().saturating_sub(self.elsewhere.get()) } else { 0 };
        pay_for(served, || self.had_of(served, took, weight));
    }

    #[cold]
    fn end_timed(&self) {
        self.cut_here();
        self.weight.set(0);
        let mean = &self.means[usize::from(self.kind.get())];
        let now = i64::from(mean.get());
        // What held one of them up does not make the kind a long one; if they take longer from now on, a few more show that.
        let spent = self.spent.get().min(HELD_UP) as i64;
        let spent = spent.min(now * 2 + SHORT);
        // Rounded away from the old, so that it gets there.
        let step = (spent - now) / 8 + (spent - now).signum();
        mean.set((now + step).max(0) as u32);
    }

    /// What has passed since `began` is the resource's, and not the thread's.
    fn cut(&self, now: u64) {
        let cost = self.clock_cost.get();
        let took = now.saturating_sub(self.began.replace(now)).saturating_sub(cost);
        self.spent.set(self.spent.get() + took);
        let mut stands_for = took as i64 * i64::from(self.weight.get());
        let is_held_up = took > HELD_UP && self.weight.get() > 1;
        self.count_sample(self.label.get(), if is_held_up { 1 } else { self.weight.get() });
        if is_held_up {
            // The others it stands for were not, and what came in between is not the resource's.
            stands_for = i64::from(self.means[usize::from(self.kind.get())].get() * self.weight.get());
        } else if took > self.longest.get().1 && took > HELD_UP {
            self.longest.set((self.label.get(), took));
        }
        // The others took no longer than there was time in all.
        let slice = now.saturating_sub(self.since.get()) as i64;
        let there = self.entry(self.base.get()).time.load(Ordering::Relaxed) + slice - cost as i64;
        stands_for = stands_for.min(there).max(took as i64);
        add(&self.entry(self.label.get()).time, stands_for);
        self.cost.set(self.cost.get() + stands_for.max(0) as u64);
        if self.base.get() == Resource::Thread {
            current().took_in_messages(stands_for.max(0) as u64);
        }
        // One look is within what was timed, and half of it at each end; `begin` and `end` make two.
        add(&self.entry(Resource::Overhead).time, cost as i64);
        add(&self.entry(self.base.get()).time, -stands_for - cost as i64);
    }

    /// The thread stops here: its message waits.
    #[inline]
    pub fn suspend(&self, now: u64) -> Suspended {
        let weight = self.weight.get();
        if weight != 0 {
            self.cut(now);
            self.weight.set(0);
        }
        Suspended {
            label: self.label.get(),
            kind: self.kind.get(),
            weight,
            spent: self.spent.get(),
            cost: self.cost.get(),
            elsewhere: self.elsewhere.get(),
            #[cfg(debug_assertions)]
            doing: self.doing.get(),
        }
    }

    /// The thread goes on, perhaps on another core than it stopped on.
    #[inline]
    pub fn resume(&self, message: Suspended, now: u64) {
        self.label.set(message.label);
        self.kind.set(message.kind);
        self.weight.set(message.weight);
        self.spent.set(message.spent);
        self.cost.set(message.cost);
        self.elsewhere.set(message.elsewhere);
        self.began.set(now);
        if message.weight != 0 && self.counts.get() {
            // The slice began before the core had looked at its counter for the one before.
            let begun = platform().now();
            self.count_for(Resource::Overhead);
            self.counter_was_looked_at(begun);
            let looks = self.began.get().saturating_sub(begun) + self.looks_taken.get();
            self.began.set(now + looks);
        }
        #[cfg(debug_assertions)]
        self.doing.set(message.doing);
    }

    /// A thread begins that has sent no message yet.
    #[inline]
    pub fn first_run(&self) {
        #[cfg(debug_assertions)]
        self.doing.set(Doing::Running);
    }

    /// Is the switch to the next thread to be timed?
    #[inline]
    pub fn times_switch(&self) -> bool {
        let gap = self.switch_gap.get() - 1;
        self.switch_gap.set(gap);
        gap == 0 || self.was_idle.get()
    }

    /// It has taken `took` ns to find the thread that the core now works for.
    #[cold]
    pub fn switched(&self, took: u64) {
        let weight = if self.was_idle.replace(false) { 1 } else { i64::from(sample()) };
        // A look at the counter is as much at each switch.
        let looks = self.looks.replace(0).min(took);
        let took = took - looks;
        add(&self.entry(Resource::Overhead).time, looks as i64);
        if self.switch_gap.get() == 0 {
            self.switch_gap.set(self.draw());
        }
        // The others took no longer than there was time in all.
        let base = &self.entry(self.base.get()).time;
        let others = (took as i64 * (weight - 1)).min(base.load(Ordering::Relaxed).max(0));
        add(&self.entry(Resource::Overhead).time, took as i64 + others);
        add(base, -others);
        self.count_sample(Resource::Overhead, weight as u32);
    }

    /// It has taken `took` ns to see that there is no thread to be run.
    pub fn found_nothing(&self, took: u64, now: u64) {
        let overhead = &activity::sheet(ROOT, self.core).entries[Resource::Overhead as usize];
        add(&overhead.time, took as i64);
        // Looks at the counter are in that.
        self.looks.set(0);
        self.count_at(overhead);
        self.local.unsettled_for.store(ROOT << 8 | Resource::Idle as u32, Ordering::Relaxed);
        self.works(now);
        #[cfg(debug_assertions)]
        self.doing.set(Doing::Idling);
    }

    /// A core that had nothing to do has worked ahead on so many pages of its memory, for whoever takes them.
    pub fn worked_ahead(&self, took: u64, pages: u32, now: u64) {
        let entry = &activity::sheet(INFRASTRUCTURE, self.core).entries[Resource::Memory as usize];
        add(&entry.time, took as i64);
        count(&entry.messages, 1);
        self.count_at(entry);
        self.looks.set(0);
        self.works(now);
        self.worked(took);
        count(&self.ahead.time, took);
        count(&self.ahead.pages, u64::from(pages));
        let Some(cost) = self.ahead.cost(took, pages) else { return };
        // All cores read it: it is left alone while it is right enough.
        let known = PAGE_AHEAD.load(Ordering::Relaxed);
        if cost.abs_diff(known) > known / 16 {
            PAGE_AHEAD.store(cost, Ordering::Relaxed);
        }
    }

    /// The core had nothing to do for `slept` ns.
    pub fn idle(&self, slept: u64) {
        self.was_idle.set(true);
        #[cfg(debug_assertions)]
        self.doing.set(Doing::Scheduling);
        self.base.set(Resource::Completion);
        let idle = &activity::sheet(ROOT, self.core).entries[Resource::Idle as usize];
        add(&idle.time, slept as i64);
        count(&idle.messages, 1);
        self.count_at(idle);
    }

    /// Whom the core's event thread works for while it runs a message.
    pub fn serving(&self) -> Option<u32> {
        self.serving.get().checked_sub(1)
    }

    /// What the message took that it has run last, ns.
    pub fn served_last(&self) -> u64 {
        self.served_last.get()
    }

    /// A thread was woken: what is known of an event's cause, if nothing else is.
    #[inline]
    pub fn woke(&self, t: &Thread) {
        if self.base.get() == Resource::Completion && !self.telling.get() && t.works_for_somebody() {
            self.count_cause(Cause::of(t));
        }
    }

    fn count_cause(&self, cause: Cause) {
        let known = self.known.get();
        let place = self.causes[..known].iter().position(|c| c.get().0 == cause).unwrap_or(known);
        // The last place is nobody's, who has what is too much.
        let place = place.min(CAUSES - 1);
        let count = if place < known { self.causes[place].get().1 } else { 0 };
        self.causes[place].set((if place == CAUSES - 1 { Cause::NOBODY } else { cause }, count + 1));
        self.known.set(known.max(place + 1));
    }

    /// Events took `took` ns: of those whose they were, each in proportion to how many. If that isn't known of any, they are
    /// nobody's; and if they are only to be told of (`later`), so is their time until then.
    pub fn charge_events(&self, took: u64, later: bool) {
        let known = self.known.replace(0);
        self.shared.set(0);
        // Looks at the counter are in that.
        self.looks.set(0);
        // Messages are paid for. One that waited meanwhile has some of its time from earlier accounts.
        let served = self.served.replace(0);
        let nobody = &activity::sheet(INFRASTRUCTURE, self.core).entries[Resource::Completion as usize];
        let others = took.saturating_sub(served);
        if known == 0 || served > took {
            add(&nobody.time, took as i64 - served as i64);
            count(&nobody.messages, 1);
            add(&nobody.counted, self.count_aside.replace(0));
            self.count_at(nobody);
            self.owed.set(if later { self.owed.get() + others } else { 0 });
            return;
        }
        let owed = self.owed.replace(0);
        add(&nobody.time, -(owed as i64));
        let mut left = others + owed;
        let mut events: u64 = self.causes[..known].iter().map(|c| u64::from(c.get().1)).sum();
        let mut counted = self.counted() + self.count_aside.replace(0);
        for ((cause, n), share) in self.causes[..known].iter().map(Cell::get).zip(&self.shares) {
            let entry = &cause.sheet(self.core).entries[Resource::Completion as usize];
            // What can't be divided is the last one's.
            let part = left * u64::from(n) / events;
            left -= part;
            if counted != 0 {
                let part = (i128::from(counted) * i128::from(n) / i128::from(events)) as i64;
                counted -= part;
                add(&entry.counted, part);
            }
            events -= u64::from(n);
            add(&entry.time, part as i64);
            count(&entry.messages, u64::from(n));
            share.set((cause, part, n));
        }
        self.shared.set(known);
    }

    /// Calls `f` with each class that was charged with events last, since this was asked: with its time, ns, and their number.
    pub fn events_charged(&self, mut f: impl FnMut(u32, u64, u64)) {
        for (cause, part, n) in self.shares[..self.shared.replace(0)].iter().map(Cell::get) {
            if let Some(class) = cause.class() {
                f(class, part, n.into());
            }
        }
    }

    /// A look for events begins, perhaps in the middle of a thread's slice. Value: for [`Meter::looked`].
    pub fn looks(&self) -> Option<u64> {
        if self.base.get() == Resource::Completion {
            return None;
        }
        let now = platform().now();
        if self.weight.get() != 0 {
            self.cut(now);
        }
        let begun = if self.counts.get() {
            self.count_for(Resource::Thread);
            self.counter_was_looked_at(now);
            self.began.get()
        } else {
            now
        };
        self.known.set(0);
        self.base.set(Resource::Completion);
        Some(begun)
    }

    /// It ends. What it has brought is charged to those whose it is, and taken from the thread. If it was nothing, it
    /// stays the thread's, which may have asked for it.
    /// Value: what was taken from it, ns.
    pub fn looked(&self, begun: Option<u64>, later: bool) -> u64 {
        let Some(begun) = begun else { return 0 };
        self.base.set(Resource::Thread);
        if self.known.get() == 0 && !later {
            return 0;
        }
        let now = platform().now();
        let took = now.saturating_sub(begun);
        self.charge_events(took, later);
        add(&self.entry(Resource::Thread).time, -(took as i64));
        self.began.set(now);
        took
    }

    /// Threads that `f` wakes say nothing of an event's cause.
    #[inline]
    fn untold<R>(&self, f: impl FnOnce() -> R) -> R {
        let telling = self.telling.replace(true);
        let r = f();
        // The thread may go on elsewhere.
        if core::ptr::eq(self, &this_core().meter) {
            self.telling.set(telling);
        }
        r
    }

    /// An event is told of by `f`.
    fn tell<R>(&self, cause: Cause, f: impl FnOnce() -> R) -> R {
        if self.base.get() != Resource::Completion || cause == Cause::NOBODY {
            return f();
        }
        self.count_cause(cause);
        self.untold(f)
    }
}

/// A message of a kind below [`KINDS`] begins, in the thread that sends it. It ends by [`end`].
#[inline(always)]
pub fn begin(kind: usize, resource: Resource) {
    this_core().meter.begin(kind, resource);
}

/// The message that was begun last ends.
#[inline(always)]
pub fn end() {
    let meter = &this_core().meter;
    if gate::any() {
        meter.end_and_pay();
    } else {
        meter.end();
    }
    // Paying is a part of it.
    #[cfg(debug_assertions)]
    this_core().meter.doing.set(Doing::Running);
}

/// What the platform is asked for, or what takes long, is to be part of a record.
#[cfg(debug_assertions)]
fn accounted(what: &'static str) {
    let local = core_local();
    if local.scheduler.load(Ordering::Relaxed).is_null() {
        // The core starts.
        return;
    }
    let doing = this_core().meter.doing.get();
    let thread = local.current.load(Ordering::Relaxed).cast::<Thread>();
    // SAFETY: threads are never freed.
    let program = unsafe { thread.as_ref() }.is_some_and(Thread::is_program);
    if !doing.is_accounted(program) {
        // Once: what says so may ask the platform, too.
        this_core().meter.doing.set(Doing::Starting);
        panic!("{what}: in no record of the grid's");
    }
}

/// Each call of the platform is asserted to be part of a record from now on, in builds with debug assertions.
pub(crate) fn watch() {
    #[cfg(debug_assertions)]
    atoll_abi::watched::watch(accounted);
}

/// What so many messages that a resource has served cost at its gate, unless bytes are measured there.
fn cost(served: Resource, messages: u64, took: impl FnOnce() -> u64) -> u64 {
    if gate::measures(served, Measure::Operations) {
        messages
    } else if gate::measures(served, Measure::Time) {
        took()
    } else {
        0
    }
}

/// A resource has served a message.
#[cold]
fn pay_for(served: Resource, took: impl FnOnce() -> u64) {
    gate::pay(served, cost(served, 1, took));
}

/// A resource has served so many messages of a class's, in a thread that is no one's.
pub(crate) fn pay_of(class: u32, served: Resource, messages: u64, took: u64) {
    gate::pay_for(served, cost(served, messages, || took), Some(class));
}

/// It turns out which resource the message under way is for; whoever calls holds nothing that others wait for.
#[inline(always)]
pub fn turn_to(resource: Resource) {
    this_core().meter.turn_to(resource);
    gate::pass(resource);
}

/// Asks another resource for `f` within the message under way.
#[inline]
pub fn within<R>(resource: Resource, f: impl FnOnce() -> R) -> R {
    let from = this_core().meter.go_to(resource);
    let r = f();
    // `f` may have waited, and gone on elsewhere.
    let took = this_core().meter.go_back(from);
    if gate::any() {
        let meter = &this_core().meter;
        pay_for(resource, || meter.had_of(resource, took, meter.weight.get()));
    }
    r
}

/// Runs `f`, in an event thread, for an activity: the time is that one's, and not that of those whom `f` wakes.
pub(crate) fn serve(activity: &Activity, resource: Resource, f: impl FnOnce()) {
    let me = current();
    let meter = &this_core().meter;
    meter.count_aside.set(meter.count_aside.get() + meter.counted());
    let before = me.run_time_now();
    meter.telling.set(true);
    meter.serving.set(activity.number() + 1);
    f();
    // If it has waited for a lock, only its own time counts, and events were charged meanwhile. It is the same core.
    let took = me.run_time_now().saturating_sub(before);
    meter.serving.set(0);
    meter.telling.set(false);
    meter.served_last.set(took);
    meter.served.set(meter.served.get() + took);
    let entry = &activity::sheet(activity.number(), meter.core).entries[resource as usize];
    add(&entry.time, took as i64);
    count(&entry.messages, 1);
    meter.count_at(entry);
    if activity.number() != ROOT {
        served_for(activity.class(), resource, took);
    }
}

/// A message of a class's was served in a thread that is no one's: it is charged where the core is divided, and pays at the gate.
fn served_for(class: u32, resource: Resource, took: u64) {
    scheduler::charge_class(class, took);
    if gate::any() {
        pay_of(class, resource, 1, took);
    }
}

/// So many bytes went through a resource.
#[inline]
pub fn moved(resource: Resource, bytes: u64) {
    this_core().meter.moved(resource, bytes);
    if gate::measures(resource, Measure::Bytes) {
        gate::pay(resource, bytes);
    }
}

/// So many bytes of somebody's went through a resource, whoever sees to that now.
pub fn moved_for(whose: Debtor, resource: Resource, bytes: u64) {
    count(&whose.cause().sheet(this_core().meter.core).entries[resource as usize].bytes, bytes);
    if gate::measures(resource, Measure::Bytes) {
        gate::pay_for(resource, bytes, whose.class());
    }
}

/// What one core has worked ahead, and what of all that was paid for on it: time, ns, and pages. Only that core writes there.
#[derive(Default)]
struct Ahead {
    time: AtomicU64,
    pages: AtomicU64,
    time_paid: AtomicU64,
    pages_paid: AtomicU64,
    /// What a page costs here, a decaying average: ns times [`COST_UNIT`].
    mean: Cell<u64>,
}

impl Ahead {
    /// What a page costs from now on, ns times [`COST_UNIT`], when so many more have taken that long here. None: there were none.
    fn cost(&self, took: u64, pages: u32) -> Option<u64> {
        let this = (took * COST_UNIT).checked_div(u64::from(pages))?;
        let mean = match self.mean.get() {
            0 => this,
            mean => mean - mean / 8 + this / 8,
        };
        self.mean.set(mean);
        // Of all cores: what has not been paid for yet, and of how many pages. Others go on meanwhile, and pages can be taken before they
        // are counted here, so that is about right, and of few pages it means nothing.
        let (mut time, mut left) = (0i64, 0i64);
        for ahead in (0..crate::cores()).map(|n| &crate::core_state::core(n).meter.ahead) {
            let of = |word: &AtomicU64| word.load(Ordering::Relaxed) as i64;
            time += of(&ahead.time) - of(&ahead.time_paid);
            left += of(&ahead.pages) - of(&ahead.pages_paid);
        }
        let left = u64::try_from(left).unwrap_or(0);
        if left < FEW_AHEAD {
            return Some(mean);
        }
        Some((time.max(0) as u64 * COST_UNIT / left).clamp(mean - mean / 8, mean + mean / 8))
    }
}

/// What a page costs that was worked on ahead: ns times [`COST_UNIT`]. On average; and up to an eighth more or less while more or less has
/// been paid than all pages have cost.
static PAGE_AHEAD: AtomicU64 = AtomicU64::new(0);
const COST_UNIT: u64 = 256;
/// Pages of which the average that is left to be paid says nothing.
const FEW_AHEAD: u64 = 64;

/// An activity that the running thread works for takes so many pages that a core had worked on ahead, for nobody that was known then: it
/// pays for that.
pub fn worked_ahead_for(activity: u32, pages: u32) {
    let meter = &this_core().meter;
    let time = u64::from(pages) * PAGE_AHEAD.load(Ordering::Relaxed) / COST_UNIT;
    count(&meter.ahead.time_paid, time);
    count(&meter.ahead.pages_paid, u64::from(pages));
    let memory = |activity| &activity::sheet(activity, meter.core).entries[Resource::Memory as usize].time;
    add(memory(INFRASTRUCTURE), -(time as i64));
    add(memory(activity), time as i64);
}

/// A request to the platform that is under way.
pub(crate) struct Asked {
    resource: Option<Resource>,
    /// When it was sent.
    since: u64,
}

impl Asked {
    /// It is sent. `resource`: to which the time that it takes belongs; none, if that is nobody's.
    pub fn now(resource: Option<Resource>) -> Asked {
        Asked { resource, since: if resource.is_some() { platform().now() } else { 0 } }
    }

    /// Its answer has come, to who asked for it. Value: how long that took, ns.
    pub fn is_over(&self, cause: Cause) -> u64 {
        let Some(resource) = self.resource else { return 0 };
        let took = platform().now().saturating_sub(self.since);
        add(&cause.sheet(this_core().meter.core).entries[resource as usize].device, took as i64);
        took
    }

    /// A thread that works for nobody in particular has waited for the answer, which took so long.
    pub fn was_waited_for(&self, took: u64) {
        current().waited_for_device(self.resource == Some(Resource::DeviceWrite), took);
    }
}

/// Where a thread of the runtime was when it began with something: what it had run, and what requests of its to read and to write had
/// taken, ns.
#[derive(Clone, Copy)]
pub struct Begun {
    ran: u64,
    device: [u64; 2],
}

/// A thread of the runtime begins with something of which it isn't known yet, or not to the books, whose it is. Value: for
/// [`reimburse`].
pub fn begin_for_nobody() -> Option<Begun> {
    let me = current();
    (!me.works_for_somebody()).then(|| Begun { ran: me.run_time_now(), device: me.device_time() })
}

/// It is known: the thread's time since then is these activities', each in proportion to a number, and is taken from what
/// nobody was known for; and so is what the requests took for which it has waited. Nothing happens where the thread works for
/// somebody anyway. It has stayed on its core.
pub fn reimburse(begun: Option<Begun>, resource: Resource, whose: &[(Debtor, u64)]) {
    let parts: u64 = whose.iter().map(|(_, part)| part).sum();
    let (Some(begun), true) = (begun, parts > 0) else { return };
    let (meter, me) = (&this_core().meter, current());
    let ran = me.run_time_now().saturating_sub(begun.ran);
    let (now, devices) = (me.device_time(), [Resource::DeviceRead, Resource::DeviceWrite]);
    let waited: [u64; 2] = core::array::from_fn(|n| now[n].saturating_sub(begun.device[n]));
    // What the account of events that is open leaves out, or else takes back.
    meter.served.set(meter.served.get() + ran);
    let nobodys = &activity::sheet(INFRASTRUCTURE, meter.core).entries;
    for (device, waited) in devices.iter().zip(waited) {
        add(&nobodys[*device as usize].device, -(waited as i64));
    }
    let divided = |mut all: u64| {
        let mut parts = parts;
        whose.iter().map(move |(debtor, part)| {
            // What can't be divided is the last one's.
            let taken = (u128::from(all) * u128::from(*part) / u128::from(parts.max(1))) as u64;
            (all, parts) = (all - taken, parts - part);
            (*debtor, taken)
        })
    };
    let entry =
        |debtor: Debtor, resource: Resource| &debtor.cause().sheet(meter.core).entries[resource as usize];
    for (debtor, time) in divided(ran) {
        add(&entry(debtor, resource).time, time as i64);
        count(&entry(debtor, resource).messages, 1);
    }
    for (device, waited) in devices.into_iter().zip(waited) {
        divided(waited).for_each(|(debtor, time)| add(&entry(debtor, device).device, time as i64));
    }
    // Who pays may wait for a lock, and go on elsewhere.
    for (debtor, time) in divided(ran) {
        if let Some(class) = debtor.class() {
            served_for(class, resource, time);
        }
    }
}

/// Whom `f` wakes is not told of an event that would be charged to it.
pub fn untold<R>(f: impl FnOnce() -> R) -> R {
    this_core().meter.untold(f)
}

/// An event that is `cause`'s is told of by `f`.
#[inline]
pub fn tell<R>(cause: Cause, f: impl FnOnce() -> R) -> R {
    this_core().meter.tell(cause, f)
}
