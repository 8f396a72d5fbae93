//! The grid's books of a live cell, read out of its memory.
//!
//! The cell goes on meanwhile: nothing is held, and what changes hands while it is read is read again. A cell may write
//! anything there, so everything is copied, then checked: numbers of records, places of sheets, names.
#![allow(unsafe_code, reason = "looks at the cell's memory, and asks for clocks")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use atoll_abi::core_local::CoreLocal;
use atoll_abi::counter::Count;
use atoll_abi::grid::{
    ACTIVITIES_MAX, Account, GridArea, Held, LEASE_SPARE, LeaseLine, Quota, RESOURCES, ROOT, Record,
    Resource, Sheet, kind,
};
use atoll_abi::layout::{MAX_CORES, PAGE};
use atoll_abi::nucleus::outside::Books;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::memory::{Mapping, anonymous};
use crate::printable;
use zerocopy::FromBytes;

/// How often a record is read that changes hands meanwhile.
const TRIES: usize = 8;

/// What was used of a resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Use {
    /// Processor time, ns.
    pub ns: i64,
    /// Messages.
    pub messages: u64,
    /// Bytes.
    pub bytes: u64,
    /// Time that messages stood in queues, ns.
    pub queued: u64,
    /// Time that the platform had requests, ns; of those under way at the same time, the sum.
    #[serde(default)]
    pub device: i64,
    /// Messages that stood in the queue before the resource's gate.
    #[serde(default)]
    pub waits: u64,
    /// How often its scheduler chose them there.
    #[serde(default)]
    pub turns: u64,
    /// How often what the cell counts ([`Snapshot::counts`]) has happened.
    #[serde(default)]
    pub counted: i64,
}

impl Use {
    /// Adds what another one says. What a cell says may not add up.
    pub fn add(&mut self, other: &Use) {
        self.ns = self.ns.saturating_add(other.ns);
        self.messages = self.messages.saturating_add(other.messages);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.queued = self.queued.saturating_add(other.queued);
        self.device = self.device.saturating_add(other.device);
        self.waits = self.waits.saturating_add(other.waits);
        self.turns = self.turns.saturating_add(other.turns);
        self.counted = self.counted.saturating_add(other.counted);
    }

    /// What has come since `before`.
    pub fn since(&self, before: &Use) -> Use {
        Use {
            ns: self.ns.saturating_sub(before.ns),
            messages: self.messages.saturating_sub(before.messages),
            bytes: self.bytes.saturating_sub(before.bytes),
            queued: self.queued.saturating_sub(before.queued),
            device: self.device.saturating_sub(before.device),
            waits: self.waits.saturating_sub(before.waits),
            turns: self.turns.saturating_sub(before.turns),
            counted: self.counted.saturating_sub(before.counted),
        }
    }
}

/// What was used of each resource. In JSON an object with those of which anything was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Uses(pub [Use; RESOURCES]);

impl Uses {
    /// Of one of them.
    pub fn of(&self, resource: Resource) -> &Use {
        &self.0[resource as usize]
    }

    /// Adds others, each to its own.
    pub fn add(&mut self, others: &Uses) {
        for (to, from) in self.0.iter_mut().zip(&others.0) {
            to.add(from);
        }
    }

    /// What has come since `before`.
    pub fn since(&self, before: &Uses) -> Uses {
        Uses(std::array::from_fn(|n| self.0[n].since(&before.0[n])))
    }

    /// Those of which anything was used.
    pub fn used(&self) -> impl Iterator<Item = (Resource, &Use)> {
        Resource::ALL.into_iter().zip(&self.0).filter(|(_, u)| **u != Use::default())
    }
}

impl Serialize for Uses {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.used().map(|(r, u)| (r.name(), u)))
    }
}

impl<'de> Deserialize<'de> for Uses {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut uses = Uses::default();
        for (name, said) in BTreeMap::<String, Use>::deserialize(from)? {
            let resource = Resource::ALL.into_iter().find(|r| r.name() == name);
            let resource =
                resource.ok_or_else(|| serde::de::Error::custom(format!("there is no resource {name:?}")))?;
            uses.0[resource as usize] = said;
        }
        Ok(uses)
    }
}

/// What an activity is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The cell.
    Cell,
    /// Stands in for activities that aren't known yet.
    Substitute,
    /// The configuration names it.
    Named,
    /// A process.
    Process,
    /// A unit of work that a process named.
    Unit,
    /// A thread of a process.
    Thread,
}

impl Kind {
    fn of(number: u32) -> Option<Kind> {
        Some(match number {
            kind::CELL => Kind::Cell,
            kind::SUBSTITUTE => Kind::Substitute,
            kind::NAMED => Kind::Named,
            kind::PROCESS => Kind::Process,
            kind::UNIT => Kind::Unit,
            kind::THREAD => Kind::Thread,
            _ => return None,
        })
    }

    /// As in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Cell => "cell",
            Kind::Substitute => "substitute",
            Kind::Named => "named",
            Kind::Process => "process",
            Kind::Unit => "unit",
            Kind::Thread => "thread",
        }
    }
}

/// What there is of something that an activity has a quota of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuotaUse {
    /// How many there are. While some come and go it may be off by what a core leases at once.
    pub used: u32,
    /// How many there may be, if there is a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// Memory that an activity of the configuration holds, with those below it, and what it may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryUse {
    /// Bytes.
    pub held: u64,
    /// The most, bytes, if there is a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u64>,
    /// What it has in any case, bytes.
    pub min: u64,
    /// How often it was refused more.
    pub refused: u64,
    /// How often nothing could be given back then, and a program needed some.
    pub oom: u64,
    /// How many processes were ended for that.
    pub oom_kills: u64,
}

/// An activity, and what it has used.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Activity {
    /// Its number. Together with `generation` never another one's.
    pub id: u32,
    /// How often the number has changed hands.
    pub generation: u32,
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// Number of the one above it; its own if there is none.
    pub parent: u32,
    /// Process id in the cell, of a process or a unit of one.
    pub pid: u32,
    /// Its share, in proportion to its siblings'.
    pub weight: u32,
    /// Pages of 4 KiB that it holds.
    pub pages: i64,
    /// Of the cell and of one that the configuration names: what there is of each [`Quota`], by its name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub quotas: BTreeMap<String, QuotaUse>,
    /// Of one that the configuration names, its memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryUse>,
    /// On all cores.
    pub resources: Uses,
    /// On each core, if that was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cores: Vec<Uses>,
}

/// What the host says of the processes that are the cell's cores, or a nucleus of its cores.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostTime {
    /// Processor time that they have used; on the nucleus how long they did not sleep, of which only differences mean
    /// something; ns.
    pub ns: u64,
    /// How many processes there are: none on the nucleus.
    pub processes: u32,
}

/// The books at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    /// Name of the cell.
    pub cell: String,
    /// Process id of its supervisor.
    pub pid: u32,
    /// Its cores.
    pub cores: u32,
    /// Time of day, ns since 1970.
    pub time: u64,
    /// Time of the clock that the books are kept by (CLOCK_MONOTONIC), ns.
    pub clock: u64,
    /// When they were opened, by the same clock.
    pub opened: u64,
    /// Activities, by their numbers.
    pub activities: Vec<Activity>,
    /// What it counts beside time, by the name that `perf-list(1)` has for it, with `:u` behind it if the kernel is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<String>,
    /// For how many of its threads at the host it could not be counted, since it began.
    #[serde(default, skip_serializing_if = "is_none")]
    pub uncounted: u32,
    /// Records that could not be read: they said nonsense, or changed all the time.
    pub unread: u32,
    /// What the host says, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostTime>,
}

fn is_none(n: &u32) -> bool {
    *n == 0
}

/// Text that a cell says in a field with NULs behind it.
pub(crate) fn text(field: &[AtomicU8]) -> String {
    let bytes: Vec<u8> = field.iter().map(|b| b.load(Ordering::Relaxed)).take_while(|b| *b != 0).collect();
    printable(&bytes)
}

/// What one core has written.
fn uses(sheet: &Sheet) -> Uses {
    Uses(std::array::from_fn(|n| {
        let e = &sheet.entries[n];
        Use {
            ns: e.time.load(Ordering::Relaxed),
            messages: e.messages.load(Ordering::Relaxed),
            bytes: e.bytes.load(Ordering::Relaxed),
            queued: e.queued.load(Ordering::Relaxed),
            device: e.device.load(Ordering::Relaxed),
            waits: e.waits.load(Ordering::Relaxed),
            turns: e.turns.load(Ordering::Relaxed),
            counted: e.counted.load(Ordering::Relaxed),
        }
    }))
}

/// An activity's sheets, two for each core, if they lie in the cell's memory.
fn sheets(memory: &Mapping, offset: u64, cores: usize) -> Option<&[Sheet]> {
    let sheets = 2 * cores;
    let p = memory.range(offset, (sheets * size_of::<Sheet>()) as u64)?.cast::<Sheet>();
    // SAFETY: in the mapping, which lives as long as the result, and aligned; made of atomics, for which any bits are
    // values.
    p.is_aligned().then(|| unsafe { std::slice::from_raw_parts(p, sheets) })
}

/// What is written of an activity on one core, of itself and of those below it that have ended.
fn uses_on(sheets: &[Sheet], core: usize) -> Uses {
    let mut both = uses(&sheets[core]);
    both.add(&uses(&sheets[sheets.len() / 2 + core]));
    both
}

/// Pages that each activity holds, as each core counts them, if that is in the cell's memory.
fn held<'a>(area: &GridArea, memory: &'a Mapping, cores: usize) -> Option<&'a [Held]> {
    let offset = Some(area.held.load(Ordering::Acquire)).filter(|offset| *offset != 0)?;
    let p = memory.range(offset, (cores * size_of::<Held>()) as u64)?.cast::<Held>();
    // SAFETY: as above.
    p.is_aligned().then(|| unsafe { std::slice::from_raw_parts(p, cores) })
}

/// Bytes that all activities hold, as the cell says; None: it doesn't yet.
pub(crate) fn held_by_all(area: &GridArea, memory: &Mapping, cores: usize) -> Option<u64> {
    let held = Some(held(area, memory, cores)?);
    let pages = (0..ACTIVITIES_MAX as u32).map(|id| pages(held, id)).fold(0, i64::saturating_add);
    Some((pages.max(0) as u64).saturating_mul(PAGE))
}

/// How many pages that are.
fn pages(held: Option<&[Held]>, id: u32) -> i64 {
    let each = held.unwrap_or_default().iter().map(|core| core.0[id as usize].load(Ordering::Relaxed));
    each.fold(0, i64::saturating_add)
}

/// What cores have leased of quotas, a line for each activity, one core's after the other's, if that is in the cell's memory.
fn leases<'a>(area: &GridArea, memory: &'a Mapping, cores: usize) -> Option<&'a [LeaseLine]> {
    let offset = Some(area.leases.load(Ordering::Acquire)).filter(|offset| *offset != 0)?;
    let lines = cores * ACTIVITIES_MAX;
    let p = memory.range(offset, (lines * size_of::<LeaseLine>()) as u64)?.cast::<LeaseLine>();
    // SAFETY: as above.
    p.is_aligned().then(|| unsafe { std::slice::from_raw_parts(p, lines) })
}

/// What there is of each quota of an activity. Without lines nothing is leased that isn't used.
fn quotas(area: &GridArea, leases: &[LeaseLine], id: u32) -> BTreeMap<String, QuotaUse> {
    let account = &area.accounts[id as usize];
    let each = |quota: Quota| {
        let n = quota as usize;
        let of_each_core = leases.iter().skip(id as usize).step_by(ACTIVITIES_MAX);
        let spare = of_each_core.fold(0, |sum, line| sum + (line.0[n].load(Ordering::Acquire) & LEASE_SPARE));
        let leased = u64::from(account.leased[n].load(Ordering::Acquire));
        let limit = Some(account.most[n].load(Ordering::Relaxed)).filter(|most| *most != 0);
        (quota.name().to_string(), QuotaUse { used: leased.saturating_sub(spare) as u32, limit })
    };
    Quota::ALL.into_iter().map(each).collect()
}

/// What reading a record came to.
enum Copied {
    /// An activity.
    One(Box<Activity>),
    /// Nobody's.
    Free,
    /// What it says can't be.
    Nonsense,
    /// It changed hands meanwhile.
    Changed,
}

/// Reads a record once.
fn copy(record: &Record, id: u32, memory: &Mapping, cores: usize, held: Option<&[Held]>) -> Copied {
    let generation = record.sequence.load(Ordering::Acquire);
    if !generation.is_multiple_of(2) {
        return Copied::Changed;
    }
    let number = record.kind.load(Ordering::Relaxed);
    let name = text(&record.name);
    let each = sheets(memory, record.sheets.load(Ordering::Relaxed), cores)
        .map(|sheets| (0..cores).map(|core| uses_on(sheets, core)).collect::<Vec<_>>());
    let (parent, pid) = (record.parent.load(Ordering::Relaxed), record.pid.load(Ordering::Relaxed));
    let (weight, pages) = (record.weight.load(Ordering::Relaxed), pages(held, id));
    // What was read above is of this generation only if it still is.
    fence(Ordering::Acquire);
    if record.sequence.load(Ordering::Relaxed) != generation {
        return Copied::Changed;
    }
    if number == kind::NONE {
        return Copied::Free;
    }
    let (Some(kind), Some(cores)) = (Kind::of(number), each) else { return Copied::Nonsense };
    let mut resources = Uses::default();
    for core in &cores {
        resources.add(core);
    }
    Copied::One(Box::new(Activity {
        id,
        generation,
        name,
        kind,
        parent,
        pid,
        weight,
        pages,
        quotas: BTreeMap::new(),
        memory: None,
        resources,
        cores,
    }))
}

/// What a core is at that is in no sheet yet: since when (0: it can't be told), and the activity and resource.
type Open = (u64, u32, u32);

/// A core is between two records for some ns, unless the host takes its processor away just then: how often is looked at once
/// whether it is over, how long is waited between looks after that, and the most that one snapshot waits, of all cores.
const LOOKS: u32 = 50;
const LOOK_WAIT: Duration = Duration::from_micros(50);
const PATIENCE: Duration = Duration::from_millis(20);

fn open(local: &CoreLocal, until: Instant) -> Open {
    let looks = Cell::new(0);
    let relax = || {
        looks.set(looks.get() + 1);
        if looks.get() > LOOKS && Instant::now() < until {
            std::thread::sleep(LOOK_WAIT);
        } else {
            std::thread::yield_now();
        }
    };
    local.with_open_record(relax, |since, activity, resource| (since, activity, resource))
}

/// What an activity has on one core, with those below it that have ended; none if the record is another one's now.
fn row(area: &GridArea, memory: &Mapping, activity: &Activity, core: usize) -> Option<Uses> {
    let record = &area.directory[activity.id as usize];
    let sheets = sheets(memory, record.sheets.load(Ordering::Relaxed), activity.cores.len())?;
    let row = uses_on(sheets, core);
    fence(Ordering::Acquire);
    (record.sequence.load(Ordering::Relaxed) == activity.generation).then_some(row)
}

/// Reads what a core has written once more, at a moment at which it doesn't go from one record to the next: else a slice would be there
/// twice, or not at all. Value: what it is at. None: a record has changed hands.
fn read_core(
    found: &mut [Activity],
    area: &GridArea,
    memory: &Mapping,
    (core, local): (usize, &CoreLocal),
    until: Instant,
) -> Option<Open> {
    for n in 1.. {
        let before = open(local, until);
        let rows: Option<Vec<Uses>> = found.iter().map(|a| row(area, memory, a, core)).collect();
        let after = open(local, until);
        if before != after && n < TRIES {
            continue;
        }
        for (activity, row) in found.iter_mut().zip(rows?) {
            activity.cores[core] = row;
        }
        return Some(after);
    }
    unreachable!("the last try returns")
}

/// What is in an image of a cell's books ([`Books`]).
pub(crate) struct Image {
    /// As [`read`] has them.
    pub activities: Vec<Activity>,
    pub unread: u32,
    pub clock: u64,
    pub cores: u32,
    /// When the books were opened, by the same clock.
    pub opened: u64,
    /// What is counted.
    pub counts: Option<Count>,
    /// For how many threads it could not be.
    pub uncounted: u32,
    /// How long the cores did not sleep, as a nucleus has counted, ns; only differences mean something.
    pub awake: u64,
}

/// Reads an image, which may be anything. None: it is none.
pub(crate) fn read_image(image: &[u8]) -> Option<Image> {
    let (head, _) = Books::read_from_prefix(image).ok()?;
    let cores = usize::try_from(head.cores).ok().filter(|n| (1..=MAX_CORES).contains(n))?;
    let len = (image.len() as u64).next_multiple_of(4096);
    let memory = Mapping::new(&anonymous("atoll books", len).ok()?, len).ok()?;
    // SAFETY: so many bytes are there, of a mapping that is nobody's else.
    unsafe { memory.base().copy_from_nonoverlapping(image.as_ptr(), image.len()) };
    let area = memory.range(head.area, size_of::<GridArea>() as u64)?.cast::<GridArea>();
    let locals = memory.range(head.locals, (cores * size_of::<CoreLocal>()) as u64)?.cast::<CoreLocal>();
    if !area.is_aligned() || !locals.is_aligned() {
        return None;
    }
    // SAFETY: in the mapping, aligned, and made of atomics, for which any bits are values.
    let (area, locals) = unsafe { (&*area, std::slice::from_raw_parts(locals, cores)) };
    let locals: Vec<_> = locals.iter().collect();
    let (activities, unread, clock) = read_at(area, &locals, &memory, || head.clock);
    let opened = area.opened.load(Ordering::Relaxed).min(clock);
    let awake = (cores as u64).wrapping_mul(head.clock).wrapping_sub(head.slept);
    let (counts, uncounted) = counts(area);
    Some(Image { activities, unread, clock, cores: cores as u32, opened, counts, uncounted, awake })
}

/// What a cell counts, as it says, and for how many threads that can't be.
pub(crate) fn counts(area: &GridArea) -> (Option<Count>, u32) {
    (Count::of(area.counts.load(Ordering::Relaxed)), area.uncounted.load(Ordering::Relaxed))
}

/// The activities of a cell, each with a row for each of its cores (whose words are `locals`); how many records could not be
/// read; and the time of this by [`clock`].
pub fn read(area: &GridArea, locals: &[&CoreLocal], memory: &Mapping) -> (Vec<Activity>, u32, u64) {
    read_at(area, locals, memory, clock)
}

/// The same by another clock.
fn read_at(
    area: &GridArea,
    locals: &[&CoreLocal],
    memory: &Mapping,
    clock: impl Fn() -> u64,
) -> (Vec<Activity>, u32, u64) {
    let until = Instant::now() + PATIENCE;
    for n in 1.. {
        let (mut found, unread) = read_sheets(area, memory, locals.len());
        // One core after the other: there may be none of them that doesn't switch while all are read.
        let each = locals.iter().enumerate();
        let open: Vec<Option<Open>> =
            each.map(|(core, local)| read_core(&mut found, area, memory, (core, local), until)).collect();
        let same =
            |a: &Activity| area.directory[a.id as usize].sequence.load(Ordering::Relaxed) == a.generation;
        if !found.iter().all(same) && n < TRIES {
            // What has ended meanwhile would be there twice.
            continue;
        }
        let now = clock();
        for (core, open) in open.into_iter().enumerate() {
            let Some((since, activity, resource)) = open else { continue };
            let at = found.iter_mut().find(|a| a.id == activity).filter(|_| since != 0);
            let (Some(a), Some(resource)) = (at, Resource::ALL.get(resource as usize)) else { continue };
            let more = now.saturating_sub(since).min(i64::MAX as u64) as i64;
            a.cores[core].0[*resource as usize].add(&Use { ns: more, ..Use::default() });
        }
        for activity in &mut found {
            activity.resources = Uses::default();
            for core in &activity.cores {
                activity.resources.add(core);
            }
        }
        return (found, unread, now);
    }
    unreachable!("the last try returns")
}

fn read_sheets(area: &GridArea, memory: &Mapping, cores: usize) -> (Vec<Activity>, u32) {
    let records = (area.records.load(Ordering::Acquire) as usize).min(ACTIVITIES_MAX);
    let (mut found, mut unread) = (Vec::new(), 0);
    let held = held(area, memory, cores);
    let leases = leases(area, memory, cores);
    for (id, record) in area.directory[..records].iter().enumerate() {
        for n in 1.. {
            match copy(record, id as u32, memory, cores, held) {
                Copied::One(mut activity) => {
                    if matches!(activity.kind, Kind::Cell | Kind::Named) {
                        activity.quotas = quotas(area, leases.unwrap_or_default(), activity.id);
                    }
                    found.push(*activity);
                }
                Copied::Free => {}
                Copied::Changed if n < TRIES => {
                    std::thread::yield_now();
                    continue;
                }
                Copied::Nonsense | Copied::Changed => unread += 1,
            }
            break;
        }
    }
    make_tree(&mut found);
    let pages: BTreeMap<u32, (u32, i64)> = found.iter().map(|a| (a.id, (a.parent, a.pages))).collect();
    for a in found.iter_mut().filter(|a| a.kind == Kind::Named) {
        // It is a tree now.
        let is_below = |mut id: u32| loop {
            match pages.get(&id) {
                _ if id == a.id => return true,
                Some((parent, _)) if *parent != id => id = *parent,
                _ => return false,
            }
        };
        let all = pages.iter().filter(|(id, _)| is_below(**id)).map(|(_, (_, pages))| *pages);
        let held = all.fold(0, i64::saturating_add).max(0) as u64;
        a.memory = Some(memory_use(&area.accounts[a.id as usize], held.saturating_mul(PAGE)));
    }
    (found, unread)
}

/// What is said of an activity's memory.
fn memory_use(account: &Account, held: u64) -> MemoryUse {
    let of = |word: &AtomicU64| word.load(Ordering::Relaxed);
    MemoryUse {
        held,
        max: Some(of(&account.memory_max)).filter(|max| *max != 0),
        min: of(&account.memory_min),
        refused: of(&account.memory_refused),
        oom: of(&account.oom),
        oom_kills: of(&account.oom_kills),
    }
}

/// Puts those below the cell whose parents lead nowhere or in a circle: a tree, whatever the cell says. A record that
/// could not be read may be what leads nowhere.
fn make_tree(activities: &mut [Activity]) {
    let parents: BTreeMap<u32, u32> = activities.iter().map(|a| (a.id, a.parent)).collect();
    for activity in activities.iter_mut() {
        let mut at = activity.id;
        let mut steps = 0;
        while at != ROOT && steps <= parents.len() {
            match parents.get(&at) {
                Some(up) if *up != at => at = *up,
                _ => break,
            }
            steps += 1;
        }
        let top = if parents.contains_key(&ROOT) { ROOT } else { activity.id };
        if activity.id == ROOT || at != ROOT || !parents.contains_key(&ROOT) {
            activity.parent = top;
        }
    }
}

/// What a clock of the host says, ns.
pub(crate) fn time_of(clock: libc::clockid_t) -> Option<u64> {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a structure for the host to fill.
    let ok = unsafe { libc::clock_gettime(clock, &raw mut t) } == 0;
    ok.then(|| t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}

/// The clock that cells of this host keep their books by, ns.
pub fn clock() -> u64 {
    time_of(libc::CLOCK_MONOTONIC).unwrap_or(0)
}

/// Processor time of the children of a process, which are the spaces of a cell. The clocks are those behind
/// `/proc/PID/task/*/schedstat`, brought up to the moment and with threads that have ended.
pub(crate) fn time_of_children(parent: i32) -> HostTime {
    let mut clocks = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        // The name in parentheses may have anything in it.
        let behind = stat.rsplit(')').next().unwrap_or_default();
        if behind.split_whitespace().nth(1).and_then(|p| p.parse().ok()) != Some(parent) {
            continue;
        }
        let mut clock = 0;
        // SAFETY: a number for the library to fill.
        if unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) } == 0 {
            clocks.push(clock);
        }
    }
    let times: Vec<u64> = clocks.into_iter().filter_map(time_of).collect();
    HostTime { ns: times.iter().sum(), processes: times.len() as u32 }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32};

    use super::*;

    /// What a cell elsewhere says of its books may be anything: nothing comes of it but numbers, or nothing.
    #[test]
    fn an_image_may_be_anything() {
        let area = size_of::<Books>().next_multiple_of(align_of::<GridArea>());
        let locals = (area + size_of::<GridArea>()).next_multiple_of(align_of::<CoreLocal>());
        let len = locals + size_of::<CoreLocal>() + 4 * size_of::<Sheet>();
        let (mut seed, mut read) = (7u64, 0);
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            seed >> 20
        };
        for round in 0..200 {
            let mut image: Vec<u8> =
                (0..len).map(|_| if round % 2 == 0 { next() as u8 } else { 0 }).collect();
            let wrong = if round % 3 == 0 { next() } else { 0 };
            for (n, word) in [9, 1, area as u64 + wrong, locals as u64].into_iter().enumerate() {
                image[n * 8..n * 8 + 8].copy_from_slice(&word.to_ne_bytes());
            }
            image.truncate(if round % 5 == 0 { next() as usize % len } else { len });
            if let Some(image) = read_image(&image) {
                assert_eq!((image.cores, image.clock), (1, 9));
                read += 1;
            }
        }
        assert!(read > 50, "{read}");
        assert!(read_image(&[]).is_none());
    }
    use crate::memory::anonymous;

    const MEMORY: u64 = 1 << 20;
    const CORES: usize = 3;

    fn mapped(size: u64) -> Mapping {
        Mapping::new(&anonymous("test", size).unwrap(), size).unwrap()
    }

    fn area(mapping: &Mapping) -> &GridArea {
        // SAFETY: large enough, aligned, zeroed and shared: made of atomics.
        unsafe { &*mapping.base().cast::<GridArea>() }
    }

    fn area_mapping() -> Mapping {
        mapped((size_of::<GridArea>() as u64).next_multiple_of(4096))
    }

    /// Makes a record and fills its sheets; the entries of core `n` are `n + 1` times those of the first.
    fn fill(area: &GridArea, memory: &Mapping, id: usize, number: u32, name: &str, parent: u32, ns: i64) {
        let r = &area.directory[id];
        let offset = (id * 2 * CORES * size_of::<Sheet>()) as u64;
        r.kind.store(number, Ordering::Relaxed);
        r.parent.store(parent, Ordering::Relaxed);
        r.weight.store(100, Ordering::Relaxed);
        r.sheets.store(offset, Ordering::Relaxed);
        for (to, from) in r.name.iter().zip(name.bytes().chain([0])) {
            to.store(from, Ordering::Relaxed);
        }
        for (n, sheet) in sheets(memory, offset, CORES).unwrap()[..CORES].iter().enumerate() {
            let e = &sheet.entries[Resource::Socket as usize];
            e.time.store(ns * (n as i64 + 1), Ordering::Relaxed);
            e.messages.store(n as u64 + 1, Ordering::Relaxed);
        }
        area.records.fetch_max(id as u32 + 1, Ordering::Release);
    }

    /// OK-14: a snapshot of all activities.
    #[test]
    fn adds_up_cores() {
        let (control, memory) = (area_mapping(), mapped(MEMORY));
        let area = area(&control);
        fill(area, &memory, 0, kind::CELL, "cell", 0, 0);
        fill(area, &memory, 1, kind::SUBSTITUTE, "infrastructure", 0, -5);
        fill(area, &memory, 3, kind::PROCESS, "nginx\u{1b}[2J", 4, 7);
        fill(area, &memory, 4, kind::NAMED, "gold", 0, 100);
        let (found, unread) = read_sheets(area, &memory, CORES);
        assert_eq!(unread, 0);
        let said: Vec<_> = found.iter().map(|a| (a.id, &a.name[..], a.kind.name(), a.parent)).collect();
        assert_eq!(
            said,
            [
                (0, "cell", "cell", 0),
                (1, "infrastructure", "substitute", 0),
                (3, "nginx?[2J", "process", 4),
                (4, "gold", "named", 0)
            ]
        );
        let socket = |n: usize| *found[n].resources.of(Resource::Socket);
        assert_eq!(socket(1), Use { ns: -30, messages: 6, ..Use::default() });
        assert_eq!(socket(3), Use { ns: 600, messages: 6, ..Use::default() });
        assert_eq!(found[3].cores[2].of(Resource::Socket).ns, 300);
        // And back from JSON.
        let text = serde_json::to_string(&found).unwrap();
        assert!(
            text.contains(
                r#""resources":{"socket":{"ns":600,"messages":6,"bytes":0,"queued":0,"device":0,"waits":0,"turns":0,"counted":0}}"#
            ),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<Vec<Activity>>(&text).unwrap(), found);
        assert!(serde_json::from_str::<Uses>(r#"{"sockets":{}}"#).is_err());
    }

    /// What a core is at and has not written down counts, too.
    #[test]
    fn counts_what_is_open() {
        let (control, memory) = (area_mapping(), mapped(MEMORY));
        let area = area(&control);
        fill(area, &memory, 0, kind::CELL, "cell", 0, 0);
        fill(area, &memory, 1, kind::PROCESS, "sleep", 0, 7);
        let locals = [CoreLocal::new(), CoreLocal::new(), CoreLocal::new()];
        let since = clock() - 1_000_000_000;
        locals[1].unsettled.store(since, Ordering::Relaxed);
        locals[1].unsettled_for.store(1 << 8 | Resource::Socket as u32, Ordering::Relaxed);
        // Of an activity and a resource that don't exist.
        locals[2].unsettled.store(since, Ordering::Relaxed);
        locals[2].unsettled_for.store(u32::MAX, Ordering::Relaxed);
        let (found, unread, now) = read(area, &locals.each_ref(), &memory);
        assert_eq!((found.len(), unread), (2, 0));
        assert_eq!(found[1].cores[1].of(Resource::Socket).ns, 14 + (now - since) as i64);
        assert_eq!(found[1].resources.of(Resource::Socket).ns, 42 + (now - since) as i64);
    }

    /// Sheets that are not in the cell's memory, kinds that don't exist, parents in a circle.
    #[test]
    fn believes_nothing() {
        let (control, memory) = (area_mapping(), mapped(MEMORY));
        let area = area(&control);
        fill(area, &memory, 0, kind::CELL, "cell", 7, 0);
        area.records.store(u32::MAX, Ordering::Relaxed);
        let set = |id: usize, number: u32, sheets: u64, parent: u32| {
            let r = &area.directory[id];
            r.kind.store(number, Ordering::Relaxed);
            r.sheets.store(sheets, Ordering::Relaxed);
            r.parent.store(parent, Ordering::Relaxed);
        };
        let size = (2 * CORES * size_of::<Sheet>()) as u64;
        for (id, sheets) in [MEMORY - size + 64, MEMORY, u64::MAX, u64::MAX - size + 1, u64::MAX / 2, 4, 63]
            .into_iter()
            .enumerate()
        {
            set(10 + id, kind::NAMED, sheets, 0);
        }
        set(20, kind::THREAD + 1, 0, 0);
        set(21, u32::MAX, 0, 0);
        assert_eq!(
            read_sheets(area, &memory, CORES),
            (vec![read_sheets(area, &memory, CORES).0.remove(0)], 9)
        );
        for id in 10..=21 {
            set(id, kind::NONE, 0, 0);
        }
        set(30, kind::NAMED, MEMORY - size, 31);
        set(31, kind::NAMED, 0, 32);
        set(32, kind::NAMED, 0, 30);
        set(33, kind::NAMED, 0, 255);
        set(34, kind::NAMED, 0, 34);
        let parents = |activities: Vec<Activity>| activities.iter().map(|a| a.parent).collect::<Vec<_>>();
        assert_eq!(parents(read_sheets(area, &memory, CORES).0), [0; 6]);
        // There isn't even a cell.
        set(0, kind::NONE, 0, 0);
        assert_eq!(parents(read_sheets(area, &memory, CORES).0), [30, 31, 32, 33, 34]);
    }

    /// Any bytes at all.
    #[test]
    fn survives_noise() {
        let (control, memory) = (area_mapping(), mapped(MEMORY));
        let area = area(&control);
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for _ in 0..200 {
            for r in &area.directory {
                let n = next();
                r.sequence.store(if n % 16 == 0 { n as u32 } else { (n as u32) & !1 }, Ordering::Relaxed);
                r.kind.store((n >> 8) as u32 % 7, Ordering::Relaxed);
                r.parent.store((n >> 16) as u32 % 300, Ordering::Relaxed);
                r.sheets.store(if n % 3 == 0 { next() } else { (next() % MEMORY) & !7 }, Ordering::Relaxed);
                r.name.iter().for_each(|b| b.store(next() as u8, Ordering::Relaxed));
            }
            for word in (0..MEMORY / 8).step_by(97) {
                // SAFETY: in the mapping, aligned, and atomic as all that looks there.
                let word =
                    unsafe { &*memory.base().cast::<std::sync::atomic::AtomicU64>().add(word as usize) };
                word.store(next(), Ordering::Relaxed);
            }
            area.records.store(next() as u32, Ordering::Relaxed);
            area.held.store(if next() % 3 == 0 { next() } else { next() % MEMORY }, Ordering::Relaxed);
            area.leases.store(if next() % 3 == 0 { next() } else { next() % MEMORY }, Ordering::Relaxed);
            let (found, _) = read_sheets(area, &memory, CORES);
            let mut all = Uses::default();
            for a in &found {
                assert!(found.iter().any(|p| p.id == a.parent));
                all.add(&a.resources);
                assert!(a.name.chars().all(|c| !c.is_control()));
            }
            serde_json::to_string(&found).unwrap();
        }
    }

    /// A record that changes hands all the time never shows one activity's name with another one's number.
    #[test]
    fn shows_one_activity_at_a_time() {
        let (control, memory) = (area_mapping(), mapped(MEMORY));
        let area = area(&control);
        fill(area, &memory, 0, kind::NAMED, "0", 0, 0);
        let (done, seen) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let r = &area.directory[0];
                for n in 1.. {
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    // As the cell does it: odd, all that changes, even.
                    r.sequence.fetch_add(1, Ordering::Relaxed);
                    fence(Ordering::Release);
                    r.pid.store(n % 10, Ordering::Relaxed);
                    r.name[0].store(b'0' + (n % 10) as u8, Ordering::Relaxed);
                    r.sequence.fetch_add(1, Ordering::Release);
                    std::thread::yield_now();
                }
            });
            let begun = Instant::now();
            while seen.load(Ordering::Relaxed) < 1000 && begun.elapsed() < Duration::from_secs(30) {
                for a in read_sheets(area, &memory, CORES).0 {
                    assert_eq!(a.name, a.pid.to_string());
                    seen.fetch_add(1, Ordering::Relaxed);
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        assert!(seen.into_inner() > 0);
    }
}
