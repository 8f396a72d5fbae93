//! Gates: schedulers before the resources other than the thread (Omni-kernel, sections 2.3 and 3.2; `docs/grid.md`).
//!
//! A resource that the configuration gives a rate, or an activity a limit, has a gate. What a message uses there is known when it
//! has run; then it is *paid*: at once if nothing has to go before it, else by a message of that cost in its class's queue,
//! which the resource's scheduler takes out when it is that class's turn and the rate allows it. A class that has more to pay than a
//! *window* is *full*: its threads wait before their next message, where they hold nothing, and its sockets are not ready. So
//! what a class uses is never further from what it is entitled to than the window, its messages under way, and what the
//! scheduler allows; and a class with enough to do always has something in its queue, however late its threads wake.
//!
//! Time is divided on each core by itself, bytes and messages for the whole cell. Resources without a gate cost one load and
//! one comparison a message.
#![allow(unsafe_code, reason = "the keeper is known by its address")]

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use crate::core_state::count;
use crate::scheduler::{park_until, start, unpark};
use crate::thread::{Thread, ThreadRef, current, spawn};
use crate::{Activity, Cause, Labels, Limit, books, messages, wait};
use atoll_abi::core_local::core_local;
use atoll_abi::errno::Errno;
use atoll_abi::grid::{ACTIVITIES_MAX, Measure, Parameters, RESOURCES, ROOT, Resource, SchedulerKind};
use atoll_abi::layout::MAX_CORES;
use atoll_abi::platform;
use atoll_grid::message::{Header, Message, Pool};
use atoll_grid::queue::Queues;
use atoll_sync::{Mutex, SetOnce, WaitQueue};

/// How a resource is divided.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Who divides.
    pub scheduler: SchedulerKind,
    /// What is divided.
    pub measure: Measure,
    /// The most that all classes get together, units of the measure a second (of time: ns a second and core); 0: no limit.
    pub rate: u64,
    /// Messages that are taken at once from a class whose turn it is.
    pub batch: u32,
    /// The core that takes turns which are not due at once.
    pub core: usize,
    /// What all get that are in no class.
    pub cell: Parameters,
    /// Classes: numbers of activities.
    pub classes: Vec<(u32, Parameters)>,
}

/// Bytes of one message in a queue: what moved more is several.
const PIECE: u64 = 64 << 10;
/// What a class has to pay is put together to messages of its window's length by this, as far as it must wait.
const PIECES: u64 = 16;
/// A class may be so much ahead of what it has paid, as time at its rate, ns.
const WINDOW: u64 = 20_000_000;
/// Turns that are due within so much time are taken together, ns.
const TICK: u64 = 100_000;
/// Turns are taken after so much time, ns, even if nobody waits for that: what is not used is lost after twice as long.
const TURNS_EVERY: u64 = 5_000_000;
/// Memory of messages that a gate keeps.
const POOL: usize = 64;
/// What a waiting thread is woken for.
const OPEN: u32 = 1;

/// A class at a gate.
struct Class {
    activity: u32,
    resource: Resource,
    /// What it has not paid, in units of the measure. Changed under the gate's lock.
    unpaid: AtomicU64,
    /// What of that is in no message of its queue yet: nothing if none waits there. Changed under the gate's lock.
    gathered: AtomicU64,
    /// With so much it is full.
    window: u64,
    /// The most that it may get in a second.
    most: u64,
    /// How often it has stopped being full.
    opened: AtomicU64,
    /// Threads that wait until it isn't.
    waiters: WaitQueue,
    /// What else is to be done then.
    then: Mutex<Vec<Box<dyn FnOnce() + Send>>>,
}

/// Makes the messages of what is to be paid.
struct Bills {
    resource: Resource,
    /// Longer messages are several.
    piece: u64,
    pool: Pool,
}

struct Gate {
    bills: Bills,
    queues: Queues,
    /// By activity.
    classes: Vec<Option<Arc<Class>>>,
}

/// Where a gate can be: for each resource one for the cell, or one for each core.
struct Place {
    gate: Mutex<Option<Box<Gate>>>,
    /// Whose queue is full there: a bit for each activity.
    full: [AtomicU64; ACTIVITIES_MAX / 64],
}

/// Resources that have a gate: for each [`Measure`] 16 bits.
static GATES: AtomicU64 = AtomicU64::new(0);
static PLACES: [SetOnce<Vec<Place>>; RESOURCES] = [const { SetOnce::new() }; RESOURCES];
/// Who takes turns that are not due at once: a thread of each core that a rule names.
struct Keeper {
    thread: AtomicPtr<Thread>,
    /// When it looks next, ns.
    alarm: AtomicU64,
}

static KEEPERS: [Keeper; MAX_CORES] =
    [const { Keeper { thread: AtomicPtr::new(null_mut()), alarm: AtomicU64::new(u64::MAX) } }; MAX_CORES];
/// By resource: whose keeper sees to it.
static KEPT_BY: [AtomicUsize; RESOURCES] = [const { AtomicUsize::new(0) }; RESOURCES];
/// Cores that hold messages back, a bit each.
static HOLDING: [AtomicU64; MAX_CORES / 64] = [const { AtomicU64::new(0) }; MAX_CORES / 64];
/// Rules are changed by one at a time.
static SETTING: Mutex<()> = Mutex::new(());

const fn bit(resource: Resource, measure: Measure) -> u64 {
    1 << (measure as usize * RESOURCES + resource as usize)
}

/// A resource's gates, whatever they measure.
const fn bits(resource: Resource) -> u64 {
    bit(resource, Measure::Time) | bit(resource, Measure::Bytes) | bit(resource, Measure::Operations)
}

/// Has the resource a gate that measures this?
#[inline(always)]
pub(crate) fn measures(resource: Resource, measure: Measure) -> bool {
    GATES.load(Ordering::Relaxed) & bit(resource, measure) != 0
}

/// Has the resource a gate, whatever it measures?
#[inline(always)]
pub fn stands_before(resource: Resource) -> bool {
    GATES.load(Ordering::Relaxed) & bits(resource) != 0
}

/// Has any resource a gate, is there an alarm, or is anybody traced or filtered?
#[inline(always)]
pub fn any() -> bool {
    GATES.load(Ordering::Relaxed) != 0
}

/// Are requests to the platform paid at a gate? All of them are messages to [`Resource::DeviceWrite`], whatever they ask for.
#[inline]
pub fn counts_requests() -> bool {
    let counted = bit(Resource::DeviceWrite, Measure::Time) | bit(Resource::DeviceWrite, Measure::Operations);
    GATES.load(Ordering::Relaxed) & counted != 0
}

/// Beside the gates, so that whoever looks for them needs no second look: the runtime's own memory is nearly used up.
const ALARM_BIT: u64 = 1 << 63;

/// Every call looks at [`is_alarmed`] before it begins, or no longer does.
pub fn set_alarm(on: bool) {
    if on {
        GATES.fetch_or(ALARM_BIT, Ordering::Relaxed);
    } else {
        GATES.fetch_and(!ALARM_BIT, Ordering::Relaxed);
    }
}

/// Beside them for the same reason: somebody is traced.
const TRACING_BIT: u64 = 1 << 62;
/// The same of filters of system calls: a task has one.
const FILTERING_BIT: u64 = 1 << 61;
const _: () = assert!(RESOURCES * 3 <= 61);

/// Tasks that have something because of which every call is to look, before it begins, whether its caller is one of them.
pub struct Looked {
    bit: u64,
    tasks: Mutex<usize>,
}

/// Those that are traced.
pub static TRACED: Looked = Looked { bit: TRACING_BIT, tasks: Mutex::new(0) };
/// Those that have a filter of system calls.
pub static FILTERED: Looked = Looked { bit: FILTERING_BIT, tasks: Mutex::new(0) };

impl Looked {
    /// There is one more, or one less.
    pub fn count(&self, more: bool) {
        let mut tasks = self.tasks.lock();
        *tasks = if more { *tasks + 1 } else { *tasks - 1 };
        if *tasks > 0 {
            GATES.fetch_or(self.bit, Ordering::Relaxed);
        } else {
            GATES.fetch_and(!self.bit, Ordering::Relaxed);
        }
    }
}

/// Is the runtime's own memory nearly used up?
#[inline(always)]
pub fn is_alarmed() -> bool {
    GATES.load(Ordering::Relaxed) & ALARM_BIT != 0
}

/// The place of a resource's gate for who runs here, if it has one.
fn place(resource: Resource) -> Option<&'static Place> {
    let gates = GATES.load(Ordering::Acquire);
    if gates & bits(resource) == 0 {
        return None;
    }
    let at = if gates & bit(resource, Measure::Time) != 0 { core_local().id() } else { 0 };
    PLACES[resource as usize].get()?.get(at)
}

/// The running thread's class. Threads of the runtime that work for nobody pass all gates.
fn class() -> Option<u32> {
    let me: ThreadRef = current();
    (me.is_program() || me.class() != ROOT).then(|| me.class())
}

impl Place {
    #[inline]
    fn is_full(&self, class: u32) -> bool {
        self.full[class as usize / 64].load(Ordering::SeqCst) & 1 << (class % 64) != 0
    }

    fn set_full(&self, class: u32, full: bool) {
        let (word, bit) = (&self.full[class as usize / 64], 1 << (class % 64));
        if full {
            word.fetch_or(bit, Ordering::SeqCst)
        } else {
            word.fetch_and(!bit, Ordering::SeqCst)
        };
    }

    /// The class, if it is full.
    fn full_class(&self, class: u32) -> Option<Arc<Class>> {
        if !self.is_full(class) {
            return None;
        }
        let gate = self.gate.lock();
        let found = gate.as_ref()?.classes.get(class as usize)?.clone();
        found.filter(|_| self.is_full(class))
    }

    /// Does `first` with the gate, and then takes the turns that are due. Value: when the next is, ns; `u64::MAX`: when
    /// something is paid.
    fn take_turns(&self, now: u64, first: impl FnOnce(&mut Gate)) -> u64 {
        let mut opened = Vec::new();
        let mut later = u64::MAX;
        if let Some(gate) = self.gate.lock().as_mut() {
            first(gate);
            later = gate.take_turns(self, now, &mut opened);
            later = gate.keep_at(self, now, later);
        }
        open(opened);
        later
    }

    /// Puts another gate here. Who waits looks again; what was not paid is forgiven.
    fn replace(&self, gate: Option<Box<Gate>>) {
        let old = {
            let mut here = self.gate.lock();
            self.full.iter().for_each(|word| word.store(0, Ordering::SeqCst));
            core::mem::replace(&mut *here, gate)
        };
        open(old.into_iter().flat_map(|gate| gate.classes).flatten().collect());
    }
}

/// Tells that these are not full any more.
fn open(classes: Vec<Arc<Class>>) {
    for (word, cores) in HOLDING.iter().enumerate() {
        let mut cores = if classes.is_empty() { 0 } else { cores.swap(0, Ordering::SeqCst) };
        while cores != 0 {
            messages::release_on(word * 64 + cores.trailing_zeros() as usize);
            cores &= cores - 1;
        }
    }
    for class in classes {
        class.opened.fetch_add(1, Ordering::Relaxed);
        // It would have to pay for that here, and be full again before it has run.
        books::untold(|| class.waiters.wake_all(OPEN));
        let then = core::mem::take(&mut *class.then.lock());
        if then.is_empty() {
            continue;
        }
        // That is the class's work, and not of whoever has paid last, one time after the other, and where its sockets were
        // told of before.
        let activity = Activity::try_hold(class.activity).unwrap_or_else(Activity::root);
        let (here, labels) = (core_local().id(), Labels::of(Arc::as_ptr(&class)));
        messages::send_past(activity, here, labels, class.resource, move || {
            then.into_iter().for_each(|f| f())
        });
    }
}

impl Bills {
    /// Puts what a class has to pay into its queue, as far as it makes whole messages or none waits there.
    fn put(&mut self, queues: &mut Queues, class: &Class, now: u64) {
        let whole = (class.window / PIECES).max(1);
        let mut left = class.gathered.load(Ordering::Relaxed);
        while left >= whole || left > 0 && !queues.waits(class.activity) {
            let cost = left.min(self.piece);
            left -= cost;
            let (activity, resource) = (class.activity, self.resource);
            let header = Header { dependency: 0, affinity: 0, cost, activity, resource };
            queues.push(Message::new(&mut self.pool, header, || ()), now);
        }
        class.gathered.store(left, Ordering::Relaxed);
    }
}

impl Gate {
    fn new(resource: Resource, rule: &Rule) -> Self {
        let bytes = rule.measure == Measure::Bytes;
        let mut gate = Gate {
            bills: Bills { resource, piece: if bytes { PIECE } else { u64::MAX }, pool: Pool::new(POOL) },
            queues: Queues::new(rule.scheduler, rule.batch, rule.rate),
            classes: Vec::new(),
        };
        let cell = (ROOT, rule.cell);
        let all = || core::iter::once(&cell).chain(&rule.classes);
        // Only one of them goes by weights: with the others the parts that wait to be paid are equal, so that turns are.
        let by_weight = rule.scheduler == SchedulerKind::Wfq;
        let weight = |p: &Parameters| if by_weight { u64::from(p.weight) } else { 1 };
        let weights: u64 = all().map(|(_, p)| weight(p)).sum();
        for (activity, parameters) in all() {
            gate.queues.configure(*activity, parameters);
            let share = u128::from(rule.rate) * u128::from(weight(parameters)) / u128::from(weights.max(1));
            let least_of = |rates: [u64; 2]| rates.into_iter().filter(|r| *r != 0).min().unwrap_or(u64::MAX);
            // Who has more reserved than its share could not use that with a window of its share.
            let reserved = if by_weight && rule.rate != 0 { parameters.reservation } else { 0 };
            let rate = least_of([reserved.max(share as u64), parameters.limit]);
            // It opens when half is paid. To be told of that may be a message, too, and must leave room for another one.
            let least = match rule.measure {
                Measure::Bytes => PIECE,
                Measure::Operations if resource == Resource::Completion => 4,
                Measure::Operations | Measure::Time => 1,
            };
            let at = *activity as usize;
            gate.classes.resize_with(gate.classes.len().max(at + 1), || None);
            gate.classes[at] = Some(Arc::new(Class {
                activity: *activity,
                resource,
                unpaid: AtomicU64::new(0),
                gathered: AtomicU64::new(0),
                window: (rate / (1_000_000_000 / WINDOW)).max(least),
                most: least_of([rule.rate, parameters.limit]),
                opened: AtomicU64::new(0),
                waiters: WaitQueue::new(),
                then: Mutex::new(Vec::new()),
            }));
        }
        gate
    }

    /// A class has used an amount.
    fn pay(&mut self, place: &Place, class: u32, amount: u64, now: u64) {
        let Some(Some(known)) = self.classes.get(class as usize) else { return };
        let mut left = amount;
        while left > 0 && self.queues.may_run(class, now) {
            let cost = left.min(self.bills.piece);
            left -= cost;
            self.queues.done(class, cost, now);
        }
        if left == 0 {
            return;
        }
        known.gathered.store(known.gathered.load(Ordering::Relaxed) + left, Ordering::Relaxed);
        let unpaid = known.unpaid.load(Ordering::Relaxed) + left;
        known.unpaid.store(unpaid, Ordering::Relaxed);
        if unpaid >= known.window {
            place.set_full(class, true);
        }
        self.bills.put(&mut self.queues, known, now);
    }

    fn take_turns(&mut self, place: &Place, now: u64, opened: &mut Vec<Arc<Class>>) -> u64 {
        while let Some(message) = self.queues.next(now) {
            let Header { activity, cost, .. } = *message.header();
            let waited = now.saturating_sub(message.since());
            self.bills.pool.put(message.run());
            self.queues.done(activity, cost, now);
            let sheet = Cause::activity(activity).sheet(core_local().id());
            let entry = &sheet.entries[self.bills.resource as usize];
            count(&entry.queued, waited);
            count(&entry.waits, 1);
            count(&entry.turns, self.queues.begins_turn().into());
            let Some(Some(class)) = self.classes.get(activity as usize) else { continue };
            self.bills.put(&mut self.queues, class, now);
            let unpaid = class.unpaid.load(Ordering::Relaxed).saturating_sub(cost);
            class.unpaid.store(unpaid, Ordering::Relaxed);
            if unpaid <= class.window / 2 && place.is_full(activity) {
                place.set_full(activity, false);
                opened.push(class.clone());
            }
        }
        self.queues.later(now)
    }

    /// When turns are to be taken that can be no earlier than this: not before a full class may be opened by that, for which
    /// it has to pay the half of its window, but before what is not used is lost.
    fn keep_at(&self, place: &Place, now: u64, later: u64) -> u64 {
        if later == u64::MAX {
            return later;
        }
        let mut at = now + TURNS_EVERY;
        for (word, full) in place.full.iter().enumerate() {
            let mut full = full.load(Ordering::Relaxed);
            while full != 0 {
                let class = word * 64 + full.trailing_zeros() as usize;
                full &= full - 1;
                let Some(Some(class)) = self.classes.get(class) else { continue };
                let more = class.unpaid.load(Ordering::Relaxed).saturating_sub(class.window / 2);
                let takes = u128::from(more) * 1_000_000_000 / u128::from(class.most.max(1));
                at = at.min(now + takes.min(TURNS_EVERY.into()) as u64);
            }
        }
        later.max(at)
    }
}

/// The running thread's class has used so much of a resource, which has a gate for that measure.
pub(crate) fn pay(resource: Resource, amount: u64) {
    pay_for(resource, amount, class());
}

/// The same of a class, if it is known whose it was.
#[cold]
pub(crate) fn pay_for(resource: Resource, amount: u64, class: Option<u32>) {
    let (Some(place), Some(class), true) = (place(resource), class, amount > 0) else { return };
    let now = platform().now();
    ask_for(resource, place.take_turns(now, |gate| gate.pay(place, class, amount, now)));
}

fn keeper_of(resource: Resource) -> usize {
    KEPT_BY[resource as usize].load(Ordering::Acquire)
}

/// Sees to it that a resource's keeper looks at this time.
fn ask_for(resource: Resource, later: u64) {
    let keeper = &KEEPERS[keeper_of(resource)];
    if later != u64::MAX && keeper.alarm.fetch_min(later, Ordering::AcqRel) > later {
        let keeper = keeper.thread.load(Ordering::Acquire);
        // SAFETY: threads are never freed.
        if let Some(keeper) = unsafe { keeper.as_ref() } {
            unpark(keeper);
        }
    }
}

/// What a core's keeper does.
fn keep(core: usize) {
    let alarm = &KEEPERS[core].alarm;
    loop {
        alarm.store(u64::MAX, Ordering::Release);
        let now = platform().now();
        let gates = GATES.load(Ordering::Acquire);
        let mine = |r: &Resource| gates & bits(*r) != 0 && keeper_of(*r) == core;
        for resource in Resource::ALL.into_iter().filter(mine) {
            let places = if gates & bit(resource, Measure::Time) != 0 { crate::cores() } else { 1 };
            for place in PLACES[resource as usize].get().into_iter().flatten().take(places) {
                let later = place.take_turns(now, |_| ());
                alarm.fetch_min(later, Ordering::AcqRel);
            }
        }
        match alarm.load(Ordering::Acquire) {
            u64::MAX => crate::scheduler::park(),
            at => park_until(at.max(now + TICK)),
        }
    }
}

/// Is the running thread's class to wait at this resource?
#[inline]
pub fn full(resource: Resource) -> bool {
    stands_before(resource) && is_full(resource)
}

#[cold]
fn is_full(resource: Resource) -> bool {
    let (Some(place), Some(class)) = (place(resource), class()) else { return false };
    place.is_full(class)
}

/// Is a class full at this resource, so that messages of its are to be held back on this core? It is told when to ask again
/// ([`messages::release`]).
pub(crate) fn holds_back(resource: Resource, class: u32) -> bool {
    let Some(place) = place(resource) else { return false };
    if !place.is_full(class) {
        return false;
    }
    let core = core_local().id();
    HOLDING[core / 64].fetch_or(1 << (core % 64), Ordering::SeqCst);
    // Else it was opened before that was seen there.
    place.is_full(class)
}

/// Waits while the running thread's class is full at this resource. The thread holds nothing that others wait for. Value:
/// false if something interrupted that.
#[inline]
pub fn pass(resource: Resource) -> bool {
    !full(resource) || wait_turn(resource)
}

#[cold]
fn wait_turn(resource: Resource) -> bool {
    loop {
        let (Some(place), Some(class)) = (place(resource), class()) else { return true };
        let Some(found) = place.full_class(class) else { return true };
        let seen = found.opened.load(Ordering::Relaxed);
        let outcome = wait(&found.waiters, OPEN, Limit::Forever, || {
            (!place.is_full(class) || found.opened.load(Ordering::Relaxed) != seen).then_some(())
        });
        if outcome == Err(Errno::RESTART) {
            return false;
        }
    }
}

/// Has `f` called when the running thread's class is not full any more. `asked`: where the caller keeps that it has asked,
/// so that it does so once. Value: false if the class is not full now; then nothing is called.
pub fn when_open(resource: Resource, asked: &AtomicU64, f: impl FnOnce() + Send + 'static) -> bool {
    let (Some(place), Some(class)) = (place(resource), class()) else { return false };
    let Some(found) = place.full_class(class) else { return false };
    let mut then = found.then.lock();
    let turn = Arc::as_ptr(&found) as u64 + found.opened.load(Ordering::Relaxed) + 1;
    if asked.swap(turn, Ordering::Relaxed) != turn {
        then.push(Box::new(f));
    }
    drop(then);
    if place.is_full(class) {
        return true;
    }
    // It was opened meanwhile, and `f` may have come too late for that.
    asked.store(0, Ordering::Relaxed);
    false
}

/// Divides a resource by this rule from now on, or no longer. Not [`Resource::Thread`], which [`crate::divide`] is for.
/// What classes have not paid by then is forgiven.
pub fn set(resource: Resource, rule: Option<&Rule>) {
    let _one = SETTING.lock();
    let place = || Place { gate: Mutex::new(None), full: [const { AtomicU64::new(0) }; ACTIVITIES_MAX / 64] };
    let mut mine = 0;
    // Before there is anything to look at. Where nobody looks, nothing is divided.
    let rule = rule.filter(|rule| keep_from(resource, rule.core));
    if let Some(rule) = rule {
        let places = &PLACES[resource as usize];
        if places.get().is_none() {
            // Nobody else does: see above.
            let _ = places.set((0..MAX_CORES).map(|_| place()).collect());
        }
        let gates = if rule.measure == Measure::Time { crate::cores() } else { 1 };
        for (n, place) in places.iter().enumerate() {
            place.replace((n < gates).then(|| Box::new(Gate::new(resource, rule))));
        }
        mine = bit(resource, rule.measure);
    }
    // The alarm is beside them, and changes whenever it does.
    let _ = GATES.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |g| Some(g & !bits(resource) | mine));
    if rule.is_none() {
        PLACES[resource as usize].get().into_iter().flatten().for_each(|place| place.replace(None));
    }
}

/// Sees to it that a resource is kept by that core's keeper from now on, or if there is no memory for one, by another one. Value: false
/// if there is none.
fn keep_from(resource: Resource, core: usize) -> bool {
    let there = |core: &usize| !KEEPERS[*core].thread.load(Ordering::Relaxed).is_null();
    let mut core = core.min(crate::cores() - 1);
    if !there(&core) {
        if let Some(t) = spawn(core, move || keep(core)) {
            KEEPERS[core].thread.store((t as *const Thread).cast_mut(), Ordering::Release);
            start(t);
        } else {
            platform().log("no memory for the thread that takes turns of the grid");
            let Some(other) = (0..crate::cores()).find(there) else { return false };
            core = other;
        }
    }
    KEPT_BY[resource as usize].store(core, Ordering::Release);
    true
}

/// Nothing is divided. At boot.
pub(crate) fn init() {
    GATES.store(0, Ordering::Relaxed);
    for keeper in &KEEPERS {
        keeper.thread.store(null_mut(), Ordering::Relaxed);
        keeper.alarm.store(u64::MAX, Ordering::Relaxed);
    }
}
