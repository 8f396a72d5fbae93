//! Memory that activities may hold, and what is done when it is used up (OmniRE, section 4.1; Omni-kernel, section 3.3: a memory
//! budget for each activity, and caches that choose their own victims).
//!
//! What an activity holds, each core counts when pages are taken and given back (`mem/src/pages.rs`); here it is compared with
//! `memory_max` and `memory_min` of the configuration, by class. To add that up for each chunk would touch all cores' lines, so a
//! core may take a part of what is left before it adds up anew: all cores' parts together are no more than half of it.
//!
//! Who may have no more asks the caches for pages that its own class pays for. When they have none, a system call fails with
//! ENOMEM. A page fault can't: then *shrinkers* are asked, threads of programs that wait for that (`libatoll/`), and then a process of
//! the class is ended, or all of them. The cell's memory as a whole is treated alike.

use alloc::collections::BinaryHeap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use atoll_abi::core_local::core_local;
use atoll_abi::grid::{ACTIVITIES_MAX, GridConfig, ROOT};
use atoll_abi::layout::{BLOCK, PAGE};
use atoll_abi::platform;
use atoll_fs::{disk, host};
use atoll_mem::heap::{
    give_pages, have_budgets, insist_on_pages, is_nearly_used_up, is_over_budget, is_plenty, is_short,
    memory, reserve_is_used_up, take_pages, trim,
};
use atoll_mem::pages::payer_now;
use atoll_sync::{Mutex, SetOnce};
use atoll_task::{Activity, class_of, gate};
use linux_raw_sys::general as linux;

use crate::grid::activity_name;
use crate::process::{Process, Task, all_processes};
use crate::shrinkers;
use crate::{current, extents, log};

/// Bytes by class: the most that it may hold (0: no limit), and what it has in any case.
static MAX: [AtomicU64; ACTIVITIES_MAX] = [const { AtomicU64::new(0) }; ACTIVITIES_MAX];
static MIN: [AtomicU64; ACTIVITIES_MAX] = [const { AtomicU64::new(0) }; ACTIVITIES_MAX];

/// Classes of which all processes are ended, not one: 1.
static GROUP: [AtomicU32; ACTIVITIES_MAX] = [const { AtomicU32::new(0) }; ACTIVITIES_MAX];

/// Pages that a core may take for each class before it adds up anew.
#[repr(align(64))]
struct Room([AtomicU32; ACTIVITIES_MAX]);
static ROOM: SetOnce<Vec<Room>> = SetOnce::new();

/// The most that a core may take for a class before it adds up anew, pages.
const ROOM_MAX: u64 = 512;

/// What those may take beyond their class's limit who were asked for memory, and have not come back, bytes.
const FOR_GIVING: u64 = BLOCK;

/// How often caches are asked for a block before what needs it is refused.
const RECLAIMS: u32 = 128;

/// From now on limits of classes hold. Before there are processes.
pub fn init() {
    let room = || Room([const { AtomicU32::new(0) }; ACTIVITIES_MAX]);
    assert!(
        ROOM.set((0..atoll_task::cores()).map(|_| room()).collect()).is_ok(),
        "budgets were begun with twice"
    );
    atoll_mem::heap::set_budget(may_hold);
    atoll_mem::vm::set_reclaim(reclaim);
    atoll_mem::heap::set_alarm(|| gate::set_alarm(true));
}

/// The runtime's own memory comes to an end, an alarm says. Is that so still, now that caches have given what they can? Then calls
/// that make objects fail.
pub fn objects_are_short() -> bool {
    is_still(is_nearly_used_up)
}

/// And is there so little of it that no page may be brought in, either, as that takes some?
pub fn reserve_is_gone() -> bool {
    is_still(reserve_is_used_up)
}

/// Is there so little of it that a program is not to be given more threads, though caches have given what they can?
pub fn threads_are_short() -> bool {
    is_still(is_short)
}

fn is_still(short: fn() -> bool) -> bool {
    // Others may have the rest: a core that has enough for itself doesn't speak for them.
    if gate::is_alarmed() && is_plenty() {
        gate::set_alarm(false);
    }
    if !short() || (trim() != 0 && !short()) {
        return false;
    }
    // Whether there was any shows in the end. What comes free may be taken by others at once: not for ever.
    for _ in 0..RECLAIMS {
        if !atoll_mem::vm::reclaim(BLOCK, false) {
            return true;
        }
        if !short() {
            return false;
        }
    }
    true
}

/// Takes the limits of a configuration. Who has more keeps what there is, and gets no more.
pub fn configure(config: &GridConfig, classes: &[Activity]) {
    let mut any = false;
    for n in 0..ACTIVITIES_MAX {
        let named = classes.iter().position(|class| class.number() as usize == n);
        let quota = named.map_or_else(Default::default, |at| config.activities[at].memory);
        let account = &platform().control().grid.accounts[n];
        for (here, outside, value) in
            [(&MAX[n], &account.memory_max, quota.max), (&MIN[n], &account.memory_min, quota.min)]
        {
            here.store(value, Ordering::Relaxed);
            outside.store(value, Ordering::Relaxed);
            any |= value != 0;
        }
        GROUP[n].store(quota.oom_group.into(), Ordering::Relaxed);
    }
    have_budgets(any);
    count_anew();
}

/// What cores may take without adding up is nothing: limits have changed, or what counts for whom.
pub fn count_anew() {
    for room in ROOM.get().into_iter().flatten().flat_map(|core| &core.0) {
        room.store(0, Ordering::Relaxed);
    }
}

/// Bytes that a class holds. (Not all classes' in a table: who asks may have little of its stack left.)
pub fn held_by(class: u32) -> u64 {
    let records = platform().control().grid.records.load(Ordering::Relaxed).min(ACTIVITIES_MAX as u32);
    let pages: i64 = (0..records).filter(|n| class_of(*n) == class).map(|n| memory().held(n)).sum();
    // Cores are looked at one after the other: what goes from one to another meanwhile may seem to be less than nothing.
    pages.max(0) as u64 * PAGE
}

/// What a class still lacks of what it has in any case, bytes.
fn missing(class: usize) -> u64 {
    match MIN[class].load(Ordering::Relaxed) {
        0 => 0,
        min => min.saturating_sub(held_by(class as u32)),
    }
}

/// The most that a class may hold, bytes, as far as it has a limit.
pub fn limit_of(class: u32) -> Option<u64> {
    Some(MAX[class as usize].load(Ordering::Relaxed)).filter(|max| *max != 0)
}

/// What is left for a class, bytes: of its own limit, and of the cell's memory, in which others have theirs.
fn left(class: usize) -> u64 {
    let own = match MAX[class].load(Ordering::Relaxed) {
        0 => u64::MAX,
        max => max.saturating_sub(held_by(class as u32)),
    };
    let of_others: u64 = (0..ACTIVITIES_MAX).filter(|n| *n != class).map(missing).sum();
    if of_others == 0 {
        return own;
    }
    let free = memory().total().saturating_sub(memory().used());
    own.min(free.saturating_sub(of_others).max(missing(class)))
}

/// May this activity's class hold so many pages more?
fn may_hold(activity: u32, pages: u64) -> bool {
    let class = class_of(activity) as usize;
    let Some(room) = ROOM.get().map(|all| &all[core_local().id()].0[class]) else { return true };
    let taken =
        room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |room| room.checked_sub(pages as u32));
    if taken.is_ok() {
        return true;
    }
    let left = left(class) / PAGE;
    if left < pages {
        if is_for_giving(class, pages * PAGE) {
            return true;
        }
        platform().control().grid.accounts[class].memory_refused.fetch_add(1, Ordering::Relaxed);
        return false;
    }
    let more = (left - pages) / (2 * atoll_task::cores() as u64);
    room.store(more.min(ROOM_MAX) as u32, Ordering::Relaxed);
    true
}

/// Is it for a thread that was asked for memory, and so gets some beyond its class's limit, by which it can give more?
fn is_for_giving(class: usize, bytes: u64) -> bool {
    limit_of(class as u32).is_some_and(|max| held_by(class as u32) + bytes <= max + FOR_GIVING)
        && current::try_current().is_some_and(|task| task.gives.load(Ordering::Relaxed))
}

/// Asks caches for so many bytes; says whether some came free. Over its budget a class gives its own, else those give who have
/// more than they have in any case.
fn reclaim(bytes: u64, over_budget: bool) -> bool {
    let own = class_of(payer_now().1);
    // Is it the class's own limit that is reached? Else it is what others have in any case, and any may give.
    let own_limit = over_budget && limit_of(own).is_some_and(|max| held_by(own) + bytes > max);
    let may_go = |offset: u64| {
        let class = class_of(memory().payer(offset));
        let min = MIN[class as usize].load(Ordering::Relaxed);
        if own_limit { class == own } else { class == own || min == 0 || held_by(class) > min }
    };
    host::reclaim(bytes, &may_go) | disk::reclaim(bytes, &may_go)
        || !own_limit && extents::grow_by(bytes, false)
}

/// How long is waited for processes that are to end, and for one look at them, ns.
const END_WAIT: u64 = 5_000_000_000;
const LOOK: u64 = 1_000_000;

/// Pages that a fault takes at least, as a power of two.
const LEAST: u32 = 4;

/// Do limits keep whom this core works for from having a page more?
pub fn is_short_for_this() -> bool {
    is_over_budget(LEAST)
}

/// After how many tries a page that could be had, but is not there, is given up.
const TRIES: u64 = 8;

/// A program needs a page, and there was none, for so many times. Ok: it may try again; true: something was done for that. Else its process
/// is to end, and why. No locks are held, and the task may sleep.
pub fn relieve(task: &Task, tries: u64) -> Result<bool, &'static str> {
    let all = memory();
    let there = platform().control().descriptor.memory_sizes().now;
    if there < all.total() {
        return Err("what it had there was taken from the cell (atoll resize)");
    }
    let is_some = || take_pages(LEAST).map(|offset| give_pages(offset, LEAST)).is_some();
    // Another core may have some that it could not give in time, as the host had no processor for it.
    if is_some() || (insist_on_pages(LEAST) && is_some()) {
        // There is some by now, or that is not what is missing.
        let refused = "the host lets its process have no more mappings (vm.max_map_count there)";
        return if tries < TRIES { Ok(false) } else { Err(refused) };
    }
    if !is_short_for_this() && extents::grow_by(PAGE << LEAST, true) {
        return Ok(true);
    }
    if give_back(task) { Ok(true) } else { Err("there is no memory for it") }
}

/// Has somebody give memory back, or ends somebody for it; says whether it was for anything.
fn give_back(task: &Task) -> bool {
    static ONE: Mutex<()> = Mutex::new(());
    // Of which class it is the limit; None: it is the whole cell that has no more.
    let class = is_short_for_this().then(|| task.process.activity.class());
    // What was dirty can go next time.
    if host::write_back() || shrinkers::ask(Some(task), class, PAGE << LEAST, u64::MAX) {
        return true;
    }
    let Some(_one) = ONE.try_lock() else {
        // Somebody is at it.
        atoll_task::sleep_until(platform().now() + LOOK);
        return !task.process.is_ending();
    };
    if class.is_some() && !is_short_for_this() {
        return true;
    }
    let of_class = |p: &Arc<Process>| class.is_none_or(|class| p.activity.class() == class);
    let there: Vec<Arc<Process>> =
        all_processes().into_iter().filter(of_class).filter(|p| p.zombie().is_none()).collect();
    // A heap, as other ways to sort take much of the stack.
    let scores = there.into_iter().map(Score::of).collect::<BinaryHeap<Score>>().into_sorted_vec();
    // One that ends gives its memory back.
    if !scores.iter().any(|s| s.process.is_ending()) {
        let account = &platform().control().grid.accounts[class.unwrap_or(ROOT) as usize];
        account.oom.fetch_add(1, Ordering::Relaxed);
        let group = class.is_some_and(|class| GROUP[class as usize].load(Ordering::Relaxed) != 0);
        let may_go = scores.iter().filter(|s| s.adjustment != NEVER);
        let victims: Vec<&Score> = may_go.take(if group { usize::MAX } else { 1 }).collect();
        log::line(format_args!("{}", Report { task, class, scores: &scores, victims: &victims }));
        if victims.is_empty() {
            return false;
        }
        for victim in victims {
            account.oom_kills.fetch_add(1, Ordering::Relaxed);
            victim.process.end(linux::SIGKILL as i32);
        }
    }
    let until = platform().now() + END_WAIT;
    while !task.process.is_ending() && platform().now() < until {
        if !scores.iter().any(|s| s.process.is_ending() && s.process.zombie().is_none()) {
            return true;
        }
        atoll_task::sleep_until(platform().now() + LOOK);
    }
    false
}

/// An `oom_score_adj` with which a process is never ended for memory.
const NEVER: i32 = -1000;

/// How much would be won by a process's end.
struct Score {
    process: Arc<Process>,
    /// Bytes that are in memory.
    resident: u64,
    adjustment: i32,
    /// As Linux reckons (`oom_badness`), bytes.
    points: i64,
}

impl Score {
    fn of(process: Arc<Process>) -> Score {
        let task = process.tasks.lock().first().cloned();
        let resident = task.map_or(0, |task| task.space.share().memory.residence(0, u64::MAX).sum());
        let adjustment = process.oom_score_adj.load(Ordering::Relaxed);
        let points = resident as i64 + i64::from(adjustment) * (memory().total() / 1000) as i64;
        Score { process, resident, adjustment, points }
    }
}

/// Those of which more is won come first.
impl Ord for Score {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        other.points.cmp(&self.points)
    }
}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Score {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Score {}

/// A size in MiB, with a tenth. (Floating-point numbers would take 2 KiB of the stack.)
struct Mib(u64);

impl Mib {
    /// Whole ones, and tenths.
    fn parts(&self) -> (u64, u64) {
        let tenths = (self.0 * 10 + (1 << 19)) >> 20;
        (tenths / 10, tenths % 10)
    }
}

impl fmt::Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, tenths) = self.parts();
        write!(f, "{whole}.{tenths}")
    }
}

/// What `/proc/PID/oom_score` says: 0 to 2000 (proc(5)).
pub fn oom_score(process: &Arc<Process>) -> u64 {
    let score = Score::of(process.clone());
    let thousandth = score.points * 1000 / memory().total().max(1) as i64;
    if score.adjustment == NEVER { 0 } else { ((1000 + thousandth) * 2 / 3).max(0) as u64 }
}

/// Who held what when memory was used up, and who is ended for it.
struct Report<'a> {
    task: &'a Task,
    class: Option<u32>,
    scores: &'a [Score],
    victims: &'a [&'a Score],
}

/// How many processes are named.
const NAMED: usize = 8;

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |p: &Process| {
            let exe = p.image.lock().exe.clone();
            String::from_utf8_lossy(crate::process::base_name(&exe)).into_owned()
        };
        write!(f, "out of memory: {}[{}] needs a page; ", name(&self.task.process), self.task.process.pid)?;
        match self.class {
            Some(class) => {
                write!(f, "the activity {} holds {} MiB", activity_name(class), Mib(held_by(class)))?;
                match limit_of(class) {
                    Some(max) => write!(f, " of {} (memory_max)", Mib(max))?,
                    None => write!(f, ", and others have the rest in any case (memory_min)")?,
                }
            }
            None => {
                let (used, total) = (Mib(memory().used()), Mib(memory().total()));
                let more = if extents::potential() > memory().total() {
                    "the host gives it no more"
                } else if extents::may_ask() {
                    "--max-memory gives it more"
                } else {
                    "--memory gives it more"
                };
                write!(f, "the cell holds {used} MiB of {total} ({more})")?;
            }
        }
        write!(f, "\n  resident sizes of its processes:")?;
        for s in self.scores.iter().take(NAMED) {
            let (whole, tenths) = Mib(s.resident).parts();
            write!(f, "\n  {whole:>5}.{tenths} MiB  {}[{}]", name(&s.process), s.process.pid)?;
            if s.adjustment != 0 {
                write!(f, ", oom_score_adj {}", s.adjustment)?;
            }
        }
        if self.scores.len() > NAMED {
            write!(f, "\n  and {} processes more", self.scores.len() - NAMED)?;
        }
        match self.victims {
            [] => write!(f, "\n  none of them may be ended for it, so who needs the page is"),
            [one] => write!(f, "\n  {}[{}] is ended for it", name(&one.process), one.process.pid),
            all => write!(f, "\n  all {} of them are ended for it", all.len()),
        }
    }
}
