//! Whom work is charged to.
//!
//! Activities are a tree: the cell, those that the configuration names, processes, and their threads and units of work. Each has a record in the grid's
//! directory and a sheet for every core (`atoll_abi::grid`), and another for each in which those below it are summed up that
//! have ended. A record is used again once nothing holds its activity.
#![allow(unsafe_code, reason = "sheets are reached by every core without a lock")]

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::core_state::cores;
use crate::messages;
use crate::ready::Division;
use crate::thread::Thread;
use atoll_abi::core_local::core_local;
use atoll_abi::grid::{
    ACTIVITIES_MAX, Entry, INFRASTRUCTURE, KEPT_FROM_UNITS, NAME_MAX, Parameters, RESOURCES, ROOT, Record,
    Resource, SchedulerKind, Sheet, kind,
};
use atoll_abi::layout::{DIRECT_MAP, MAX_CORES};
use atoll_abi::platform;
use atoll_sync::{Mutex, SetOnce};

/// Holders of each activity; [`CLOSING`] while its record is being given up. A line each: threads that work for one unit of a
/// program's and another don't get in each other's way.
static HOLDERS: [Holders; ACTIVITIES_MAX] =
    [const { Holders { count: AtomicU32::new(0), generation: AtomicU32::new(0) } }; ACTIVITIES_MAX];
#[repr(align(64))]
struct Holders {
    count: AtomicU32,
    /// How often the record was given up, lower bits: what an old [`Cause`] is told by.
    generation: AtomicU32,
}
const CLOSING: u32 = u32::MAX;

/// The sheets of each, two for each core.
static SHEETS: [AtomicPtr<Sheet>; ACTIVITIES_MAX] = [const { AtomicPtr::new(null_mut()) }; ACTIVITIES_MAX];

/// An activity, held: it keeps its place as long as this is there.
#[derive(Debug)]
pub struct Activity(u32);

fn record(n: u32) -> &'static Record {
    &platform().control().grid.directory[n as usize]
}

/// An activity's sheet for a core of the cell. It is there as long as somebody holds the activity.
pub(crate) fn sheet(activity: u32, core: usize) -> &'static Sheet {
    debug_assert!(core < cores());
    any_sheet(activity, core)
}

/// One of an activity's sheets, those of what has ended below it included.
fn any_sheet(activity: u32, n: usize) -> &'static Sheet {
    let sheets = SHEETS[activity as usize].load(Ordering::Acquire);
    debug_assert!(!sheets.is_null() && n < 2 * cores());
    // SAFETY: `open` made two for each core; the caller knows that the activity is held.
    unsafe { &*sheets.add(n) }
}

/// Whose something is that happens later: an activity that may have been given up by then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cause(u32);

impl Cause {
    /// Nobody's that is known.
    pub const NOBODY: Cause = Cause(INFRASTRUCTURE);

    /// What the current thread works for.
    #[inline]
    pub fn current() -> Cause {
        if core_local().current.load(Ordering::Relaxed).is_null() {
            return Cause::NOBODY;
        }
        match messages::whose() {
            ROOT if !crate::thread::current().is_program() => Cause::NOBODY,
            n => Cause::activity(n),
        }
    }

    /// This activity, as it is now.
    #[inline]
    pub(crate) fn activity(n: u32) -> Cause {
        Cause(HOLDERS[n as usize].generation.load(Ordering::Relaxed) << NUMBER_BITS | n)
    }

    /// What a thread works for.
    pub(crate) fn of(t: &Thread) -> Cause {
        if !t.works_for_somebody() {
            return Cause::NOBODY;
        }
        Cause::activity(t.activity())
    }

    /// As a word.
    pub fn to_word(self) -> u32 {
        self.0
    }

    /// From what [`Cause::to_word`] gave.
    pub fn from_word(word: u32) -> Cause {
        Cause(word)
    }

    fn is_of_this_generation(self) -> bool {
        let generation =
            HOLDERS[(self.0 % ACTIVITIES_MAX as u32) as usize].generation.load(Ordering::Acquire);
        (generation << NUMBER_BITS) >> NUMBER_BITS == self.0 >> NUMBER_BITS
    }

    /// The activity's class, unless it is nobody's, or was given up.
    pub(crate) fn class(self) -> Option<u32> {
        (self != Cause::NOBODY && self.is_there()).then(|| class_of(self.0 % ACTIVITIES_MAX as u32))
    }

    /// Has the activity not been given up yet? It may be at any time.
    fn is_there(self) -> bool {
        let sheets = SHEETS[(self.0 % ACTIVITIES_MAX as u32) as usize].load(Ordering::Acquire);
        !sheets.is_null() && self.is_of_this_generation()
    }

    /// The activity's sheet, or nobody's if it was given up before the core's last passage through a quiet point
    /// ([`crate::rcu`]).
    pub(crate) fn sheet(self, core: usize) -> &'static Sheet {
        self.known_sheet(core).1
    }

    /// The same, and whose it is.
    pub(crate) fn known_sheet(self, core: usize) -> (Cause, &'static Sheet) {
        let n = (self.0 % ACTIVITIES_MAX as u32) as usize;
        let sheets = SHEETS[n].load(Ordering::Acquire);
        if sheets.is_null() || !self.is_of_this_generation() {
            return (Cause::NOBODY, sheet(INFRASTRUCTURE, core));
        }
        // SAFETY: as in `any_sheet`; sheets are freed only when every core has passed such a point.
        (self, unsafe { &*sheets.add(core) })
    }
}

/// Who pays for something later: an activity, and the class that it is in, which has it if the activity has ended by then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Debtor {
    activity: Cause,
    class: Cause,
}

impl Debtor {
    /// Nobody that is known.
    pub const NOBODY: Debtor = Debtor { activity: Cause::NOBODY, class: Cause::NOBODY };

    /// What the current thread works for.
    pub fn current() -> Debtor {
        match Cause::current() {
            Cause::NOBODY => Debtor::NOBODY,
            activity => Debtor { activity, class: Cause::activity(crate::thread::current().class()) },
        }
    }

    /// The activity, or its class, or nobody: whoever is left.
    pub(crate) fn cause(self) -> Cause {
        [self.activity, self.class].into_iter().find(|c| c.is_there()).unwrap_or(Cause::NOBODY)
    }

    /// Its class, as gates know it.
    pub(crate) fn class(self) -> Option<u32> {
        let known = self.class != Cause::NOBODY && self.class.is_there();
        known.then_some(self.class.0 % ACTIVITIES_MAX as u32)
    }
}

/// Bits of a [`Cause`] that are the activity's number.
const NUMBER_BITS: u32 = ACTIVITIES_MAX.ilog2();

/// Opens the books: the cell's own activity, and the one for what isn't known to be anybody's.
pub(crate) fn init() {
    let grid = &platform().control().grid;
    grid.opened.store(platform().now(), Ordering::Relaxed);
    for (n, what, name) in
        [(ROOT, kind::CELL, b"cell".as_slice()), (INFRASTRUCTURE, kind::SUBSTITUTE, b"infrastructure")]
    {
        HOLDERS[n as usize].count.store(1, Ordering::Relaxed);
        open(n, what, ROOT, 0, name);
    }
}

fn open(n: u32, what: u32, parent: u32, pid: u32, name: &[u8]) {
    let made: Vec<Sheet> = (0..2 * cores()).map(|_| Sheet::default()).collect();
    let sheets = Box::into_raw(made.into_boxed_slice()).cast::<Sheet>();
    SHEETS[n as usize].store(sheets, Ordering::Release);
    let r = record(n);
    r.sequence.fetch_add(1, Ordering::AcqRel);
    r.parent.store(parent, Ordering::Relaxed);
    r.pid.store(pid, Ordering::Relaxed);
    r.weight.store(100, Ordering::Relaxed);
    r.sheets.store((sheets as u64).wrapping_sub(DIRECT_MAP), Ordering::Relaxed);
    write_name(r, name);
    r.kind.store(what, Ordering::Relaxed);
    r.sequence.fetch_add(1, Ordering::AcqRel);
    platform().control().grid.records.fetch_max(n + 1, Ordering::Release);
}

fn write_name(r: &Record, name: &[u8]) {
    for (n, byte) in r.name.iter().enumerate().take(NAME_MAX) {
        byte.store(name.get(n).copied().unwrap_or(0), Ordering::Relaxed);
    }
}

impl Activity {
    /// The cell itself.
    pub fn root() -> Activity {
        Activity::hold(ROOT)
    }

    /// Makes one under `parent`. None: there are as many as there can be.
    pub fn new(what: u32, parent: &Activity, pid: u32, name: &[u8]) -> Option<Activity> {
        let most =
            ACTIVITIES_MAX - if matches!(what, kind::UNIT | kind::THREAD) { KEPT_FROM_UNITS } else { 0 };
        let n = (INFRASTRUCTURE + 1..most as u32).find(|n| {
            let holders = &HOLDERS[*n as usize].count;
            holders.load(Ordering::Relaxed) == 0
                && holders.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
        })?;
        let above = parent.clone();
        open(n, what, above.0, pid, name);
        // The record holds the one above it.
        core::mem::forget(above);
        Some(Activity(n))
    }

    /// Holds one that is held already.
    pub(crate) fn hold(n: u32) -> Activity {
        let before = HOLDERS[n as usize].count.fetch_add(1, Ordering::Relaxed);
        debug_assert!(before != 0 && before != CLOSING, "an activity that nobody holds");
        Activity(n)
    }

    /// Holds the activity of this number, if there is one. Which that is may have changed just now.
    pub fn try_hold(n: u32) -> Option<Activity> {
        let holders = &HOLDERS.get(n as usize)?.count;
        let held = |now| if now == 0 || now == CLOSING { None } else { Some(now + 1) };
        holders.fetch_update(Ordering::Acquire, Ordering::Relaxed, held).ok()?;
        Some(Activity(n))
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.0
    }

    /// Gives the number, and the place with it, to who will call [`Activity::from_raw`].
    pub fn into_raw(self) -> u32 {
        let n = self.0;
        core::mem::forget(self);
        n
    }

    /// Takes over what [`Activity::into_raw`] gave.
    pub fn from_raw(n: u32) -> Activity {
        Activity(n)
    }

    /// The class that its threads are scheduled in: itself, or of a process, a thread or a unit of one the one above the process.
    pub fn class(&self) -> u32 {
        class_of(self.0)
    }

    /// The class, held. For whoever keeps others from moving it meanwhile.
    pub fn above(&self) -> Activity {
        Activity::hold(self.class())
    }

    /// Puts a process's activity under another one. What it used up to now goes with it.
    pub fn move_under(&self, parent: &Activity) {
        let r = record(self.0);
        r.sequence.fetch_add(1, Ordering::AcqRel);
        let before = r.parent.swap(parent.clone().into_raw(), Ordering::AcqRel);
        r.sequence.fetch_add(1, Ordering::AcqRel);
        drop(Activity::from_raw(before));
    }

    /// Gives it another name.
    pub fn rename(&self, name: &[u8]) {
        let r = record(self.0);
        r.sequence.fetch_add(1, Ordering::AcqRel);
        write_name(r, name);
        r.sequence.fetch_add(1, Ordering::AcqRel);
    }
}

/// The name of the activity of this number, with NULs behind it. By the time it is looked at it may be another one's.
pub fn name_of(number: u32) -> [u8; NAME_MAX] {
    record(number).name.each_ref().map(|byte| byte.load(Ordering::Relaxed))
}

/// The class of the activity of this number. By the time it is looked at it may be another one's.
pub fn class_of(number: u32) -> u32 {
    let mut n = number;
    while matches!(record(n).kind.load(Ordering::Relaxed), kind::PROCESS | kind::UNIT | kind::THREAD) {
        n = record(n).parent.load(Ordering::Relaxed);
    }
    n
}

/// Words of a [`CoreSet`].
pub const CORE_WORDS: usize = MAX_CORES / 64;
/// Cores of the cell, a bit each.
pub type CoreSet = [u64; CORE_WORDS];

/// These cores.
pub fn set_of_cores(cores: impl IntoIterator<Item = usize>) -> CoreSet {
    let mut set = [0; CORE_WORDS];
    cores.into_iter().for_each(|n| set[n / 64] |= 1 << (n % 64));
    set
}

/// Is this core one of them?
pub fn has_core(set: &CoreSet, n: usize) -> bool {
    set.get(n / 64).is_some_and(|word| word >> (n % 64) & 1 != 0)
}

/// The cores on which each class's threads run. All, if nobody has said something else.
static CORES: [[AtomicU64; CORE_WORDS]; ACTIVITIES_MAX] =
    [const { [const { AtomicU64::new(!0) }; CORE_WORDS] }; ACTIVITIES_MAX];

/// What somebody has said of it, by the number of the class.
static CONFINED: Mutex<Vec<(u32, CoreSet)>> = Mutex::new(Vec::new());

pub(crate) fn cores_of(class: u32) -> &'static [AtomicU64; CORE_WORDS] {
    &CORES[class as usize]
}

/// Says on which cores the threads of each class run; those of classes that aren't named run on all. Threads move before
/// they run their programs again.
pub fn confine(classes: &[(&Activity, CoreSet)]) {
    *CONFINED.lock() = classes.iter().map(|(class, set)| (class.0, *set)).collect();
    if reconcile() {
        crate::scheduler::visit_all();
    }
}

/// Each class has those cores that it was given and that are online, or all of these if there is none. Value: has that changed
/// anything?
pub(crate) fn reconcile() -> bool {
    let confined = CONFINED.lock();
    let online = crate::online();
    let mut changed = false;
    for (n, words) in CORES.iter().enumerate() {
        let chosen =
            confined.iter().find(|(class, _)| *class as usize == n).map_or([!0; CORE_WORDS], |c| c.1);
        let both: CoreSet = core::array::from_fn(|word| chosen[word] & online[word]);
        let set = if both == [0; CORE_WORDS] { online } else { both };
        for (word, bits) in words.iter().zip(set) {
            changed |= word.swap(bits, Ordering::Relaxed) != bits;
        }
    }
    changed
}

/// How the cell's classes share its cores, and how often that has changed.
static DIVISION: Mutex<Division> =
    Mutex::new(Division { scheduler: SchedulerKind::Wfq, classes: Vec::new() });
static GENERATION: AtomicU32 = AtomicU32::new(0);

pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Calls `f` with the division in force, unless it is just being changed: then the core asks again at its next switch.
pub(crate) fn with_division(f: impl FnOnce(&Division, u32)) {
    if let Some(division) = DIVISION.try_lock() {
        f(&division, generation());
    }
}

/// Divides the cores' time between classes from now on: `cell` is what all get together that are in no other.
/// Each core follows at its next switch. Without other classes, threads take turns whatever they belong to.
pub fn divide(scheduler: SchedulerKind, cell: Parameters, classes: &[(&Activity, Parameters)]) {
    let mut division = DIVISION.lock();
    division.scheduler = scheduler;
    division.classes.clear();
    record(ROOT).weight.store(cell.weight, Ordering::Relaxed);
    if !classes.is_empty() {
        division.classes.push((ROOT, cell));
    }
    for (activity, parameters) in classes {
        record(activity.0).weight.store(parameters.weight, Ordering::Relaxed);
        division.classes.push((activity.0, *parameters));
    }
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// What an activity has used, over all cores.
#[derive(Clone, Debug)]
pub struct Used {
    /// Its number.
    pub activity: u32,
    /// The one above it.
    pub parent: u32,
    /// A [`kind`].
    pub kind: u32,
    /// Process id, of a process.
    pub pid: u32,
    /// Its name.
    pub name: Vec<u8>,
    /// For each resource.
    pub entries: [Amounts; RESOURCES],
}

impl Used {
    /// Time of the cores: that of programs' own code, and that of the runtime; ns.
    pub fn divided(&self) -> (u64, u64) {
        divided(&self.entries)
    }
}

/// What every activity has used up to now, those below it that have ended included. Cores go on meanwhile.
pub fn used() -> Vec<Used> {
    let grid = &platform().control().grid;
    let mut all: Vec<Used> = (0..grid.records.load(Ordering::Acquire)).filter_map(about).collect();
    for core in 0..cores() {
        let read = |since: u64, activity: u32, resource: u32| {
            let mut sheets: Vec<_> = all.iter().map(|used| entries(used.activity, core)).collect();
            let at = all.iter().position(|used| used.activity == activity).filter(|_| since != 0);
            if let Some(entry) = at.and_then(|at| sheets[at].get_mut(resource as usize)) {
                entry.time += platform().now().saturating_sub(since) as i64;
            }
            sheets
        };
        let relax = || {
            platform().now();
        };
        let sheets = platform().control().cores[core].local.with_open_record(relax, read);
        for (used, sheet) in all.iter_mut().zip(sheets) {
            for (sum, e) in used.entries.iter_mut().zip(sheet) {
                *sum = sum.and(&e);
            }
        }
    }
    all
}

/// Time of a core that was the runtime's up to now, whomever it was for, ns. Work that isn't at its end is not in it, and who looks
/// twice may see a little less.
pub fn runtime_on(core: usize) -> u64 {
    let records = platform().control().grid.records.load(Ordering::Acquire);
    let sheets = (0..records).filter_map(|activity| both_sheets(activity, core)).flatten();
    let times = sheets.flat_map(|sheet| {
        Resource::ALL.iter().filter(|r| is_runtimes(r)).map(|r| &sheet.entries[*r as usize].time)
    });
    times.map(|time| time.load(Ordering::Relaxed)).sum::<i64>().max(0) as u64
}

fn is_runtimes(resource: &Resource) -> bool {
    !matches!(resource, Resource::Thread | Resource::Idle | Resource::Stolen)
}

/// Time of the cores: that of programs' own code, and that of the runtime.
fn divided(all: &[Amounts; RESOURCES]) -> (u64, u64) {
    let sum = |wanted: fn(&Resource) -> bool| {
        let all = Resource::ALL.iter().zip(all).filter(|(resource, _)| wanted(resource));
        all.map(|(_, amounts)| amounts.time).sum::<i64>().max(0) as u64
    };
    let own = sum(|resource| matches!(resource, Resource::Thread));
    (own, sum(is_runtimes))
}

/// What an [`Entry`] says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Amounts {
    /// Processor time, ns.
    pub time: i64,
    /// Messages.
    pub messages: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Time that messages stood in a queue, ns.
    pub queued: u64,
    /// Time that the platform had requests, ns.
    pub device: i64,
    /// Messages that stood in a queue.
    pub waits: u64,
    /// How often the scheduler chose them there.
    pub turns: u64,
    /// How often what is counted has happened.
    pub counted: i64,
}

impl Amounts {
    fn of(entry: &Entry) -> Self {
        let Entry { time, messages, bytes, queued, device, waits, turns, counted } = entry;
        Amounts {
            time: time.load(Ordering::Relaxed),
            messages: messages.load(Ordering::Relaxed),
            bytes: bytes.load(Ordering::Relaxed),
            queued: queued.load(Ordering::Relaxed),
            device: device.load(Ordering::Relaxed),
            waits: waits.load(Ordering::Relaxed),
            turns: turns.load(Ordering::Relaxed),
            counted: counted.load(Ordering::Relaxed),
        }
    }

    fn and(&self, other: &Self) -> Self {
        Amounts {
            time: self.time + other.time,
            messages: self.messages + other.messages,
            bytes: self.bytes + other.bytes,
            queued: self.queued + other.queued,
            device: self.device + other.device,
            waits: self.waits + other.waits,
            turns: self.turns + other.turns,
            counted: self.counted + other.counted,
        }
    }
}

/// What an activity, and those below it that have ended, have of a core. None: there is no such activity.
fn both_sheets(activity: u32, core: usize) -> Option<[&'static Sheet; 2]> {
    let sheets = SHEETS[activity as usize].load(Ordering::Acquire);
    // SAFETY: as in `Cause::sheet`; there are two for each core.
    (!sheets.is_null()).then(|| unsafe { [&*sheets.add(core), &*sheets.add(cores() + core)] })
}

fn entries(activity: u32, core: usize) -> [Amounts; RESOURCES] {
    let Some(both) = both_sheets(activity, core) else { return [Amounts::default(); RESOURCES] };
    core::array::from_fn(|n| Amounts::of(&both[0].entries[n]).and(&Amounts::of(&both[1].entries[n])))
}

fn about(n: u32) -> Option<Used> {
    let r = record(n);
    let word = |w: &AtomicU32| w.load(Ordering::Relaxed);
    if word(&r.kind) == kind::NONE {
        return None;
    }
    let name = r.name.iter().map(|b| b.load(Ordering::Relaxed)).take_while(|b| *b != 0).collect();
    Some(Used {
        activity: n,
        parent: word(&r.parent),
        kind: word(&r.kind),
        pid: word(&r.pid),
        name,
        entries: [Amounts::default(); RESOURCES],
    })
}

impl Clone for Activity {
    fn clone(&self) -> Self {
        Activity::hold(self.0)
    }
}

impl Drop for Activity {
    fn drop(&mut self) {
        let holders = &HOLDERS[self.0 as usize].count;
        let mut now = holders.load(Ordering::Relaxed);
        loop {
            let after = if now == 1 { CLOSING } else { now - 1 };
            match holders.compare_exchange_weak(now, after, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) if after == CLOSING => return close(self.0),
                Ok(_) => return,
                Err(seen) => now = seen,
            }
        }
    }
}

static HEIR: SetOnce<fn(u32, u32)> = SetOnce::new();

/// Says who passes on what an activity holds (first argument) to the one above it (second) when it ends.
pub fn set_heir(pass_on: fn(u32, u32)) {
    // Once in a cell's life; a second time changes nothing.
    let _ = HEIR.set(pass_on);
}

/// Adds what it used to the one above it, and gives its record up.
fn close(n: u32) {
    let r = record(n);
    let above = Activity::from_raw(r.parent.load(Ordering::Relaxed));
    r.sequence.fetch_add(1, Ordering::AcqRel);
    r.kind.store(kind::NONE, Ordering::Relaxed);
    for core in 0..cores() {
        for below in [core, cores() + core] {
            for (to, from) in
                any_sheet(above.0, cores() + core).entries.iter().zip(&any_sheet(n, below).entries)
            {
                add(to, from);
            }
        }
    }
    if let Some(pass_on) = HEIR.get() {
        pass_on(n, above.0);
    }
    r.sheets.store(0, Ordering::Relaxed);
    r.sequence.fetch_add(1, Ordering::AcqRel);
    let sheets = SHEETS[n as usize].swap(null_mut(), Ordering::AcqRel);
    crate::rcu::defer(sheets.cast(), free);
    HOLDERS[n as usize].generation.fetch_add(1, Ordering::Release);
    HOLDERS[n as usize].count.store(0, Ordering::Release);
    drop(above);
}

fn add(to: &Entry, from: &Entry) {
    to.time.fetch_add(from.time.load(Ordering::Relaxed), Ordering::Relaxed);
    to.messages.fetch_add(from.messages.load(Ordering::Relaxed), Ordering::Relaxed);
    to.bytes.fetch_add(from.bytes.load(Ordering::Relaxed), Ordering::Relaxed);
    to.queued.fetch_add(from.queued.load(Ordering::Relaxed), Ordering::Relaxed);
    to.device.fetch_add(from.device.load(Ordering::Relaxed), Ordering::Relaxed);
    to.waits.fetch_add(from.waits.load(Ordering::Relaxed), Ordering::Relaxed);
    to.turns.fetch_add(from.turns.load(Ordering::Relaxed), Ordering::Relaxed);
    to.counted.fetch_add(from.counted.load(Ordering::Relaxed), Ordering::Relaxed);
}

unsafe fn free(sheets: *mut ()) {
    let slice = core::ptr::slice_from_raw_parts_mut(sheets.cast::<Sheet>(), 2 * cores());
    // SAFETY: `open` made the slice, nobody holds the activity, and no core writes there any more.
    drop(unsafe { Box::from_raw(slice) });
}
