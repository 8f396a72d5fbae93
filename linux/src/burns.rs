//! Burns: known work, done on purpose to see whether the books say the same of it (requirement OK-05; `atoll stat --check`).
//!
//! For each activity a *unit* is made below it. On each core a thread works for that unit at one resource after the other
//! and measures by the clock how long it does; then the unit's records are compared with that.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use atoll_abi::core_local::core_local;
use atoll_abi::grid::{
    ACTIVITIES_MAX, BURNS_LONGEST, BURNS_MAX, BURNT_MAX, Burn, Burnt, Compared, GridArea, RESOURCES, ROOT,
    Resource, kind,
};
use atoll_abi::layout::PAGE;
use atoll_abi::platform;
use atoll_mem::heap::memory;
use atoll_sync::{Mutex, WaitQueue};
use atoll_task::{Activity, Amounts, Labels, books};

use crate::{labelled, log};

/// How long a thread burns in its own code, and an event thread for it, ns: so much that what it takes besides is less than 1 %
/// on a machine that is not emulated. Elsewhere who asks wants it longer, and so at each resource.
const OWN: u64 = 2_000_000;
/// How long at a resource at once, ns: nobody else has the core meanwhile.
const ONCE: u64 = 200_000;
/// Bytes that are said to be moved with each message.
const BYTES: u64 = 4096;
/// Pages that are taken: a power of two.
const PAGES: usize = 64;

fn area() -> &'static GridArea {
    &platform().control().grid
}

/// How many times as long as else all of it is to take.
fn times() -> u64 {
    area().burns_times.load(Ordering::Relaxed).clamp(1, BURNS_LONGEST).into()
}

fn own() -> u64 {
    OWN * times()
}

/// What was done for one activity on one core: by resource time, messages, bytes.
#[derive(Default)]
struct Done {
    resources: [[AtomicU64; 3]; RESOURCES],
    /// Of the thread and what it has asked for those that are not done yet.
    left: AtomicU64,
    waiting: WaitQueue,
}

impl Done {
    /// Burns at a resource. It counts as so many messages.
    fn burn(&self, resource: Resource, ns: u64, messages: u64, bytes: u64) {
        let begun = platform().now();
        let took = loop {
            let passed = platform().now() - begun;
            if passed >= ns {
                break passed;
            }
        };
        for (word, n) in self.resources[resource as usize].iter().zip([took, messages, bytes]) {
            word.fetch_add(n, Ordering::Relaxed);
        }
    }

    fn one_less(&self) {
        self.left.fetch_sub(1, Ordering::AcqRel);
        self.waiting.wake_all(1);
    }

    /// Waits until no more than so many are left.
    fn wait(&self, left: u64) {
        atoll_task::wait_uninterrupted(&self.waiting, 1, || {
            (self.left.load(Ordering::Acquire) <= left).then_some(())
        });
    }
}

/// What a core's thread does for a unit, and a message that it sends: all of it is that one's.
fn burn_in_thread(core: usize, done: &Arc<Done>) {
    done.burn(Resource::Thread, own(), 0, 0);
    for resource in Resource::SERVING {
        books::begin(books::BURN, Resource::Process);
        books::turn_to(resource);
        done.burn(resource, ONCE * times(), 1, BYTES);
        books::moved(resource, BYTES);
        books::end();
        atoll_task::yield_now();
    }
    let later = done.clone();
    atoll_task::send(core, Labels::NONE, Resource::Completion, move || {
        later.burn(Resource::Completion, own(), 1, 0);
        later.one_less();
    });
    done.one_less();
}

/// What a timer of a unit does. That it has run out is an event, too.
fn burn_in_timer(done: &Arc<Done>) {
    let later = done.clone();
    let timer = atoll_task::Timer::new(move |_| {
        later.burn(Resource::Timer, own(), 1, 0);
        later.one_less();
        atoll_task::Hold::NOT
    });
    timer.start(platform().now() + 1, 0);
    done.wait(1);
    done.one_less();
}

/// Runs `f` in a thread of the runtime that works for `unit`. Value: false if there is no memory for one.
pub(crate) fn run_for(unit: &Activity, core: usize, f: impl FnOnce() + Send + 'static) -> bool {
    let Some(t) = atoll_task::spawn(core, f) else { return false };
    t.work_for(unit.clone());
    atoll_task::start(t);
    true
}

/// Pages are taken for a unit and given back: what was held by it meanwhile.
fn hold_pages(unit: &Activity) -> Option<Compared> {
    let done = Arc::new(Done { left: AtomicU64::new(1), ..Done::default() });
    let (whose, seen, says) = (unit.number(), done.clone(), Arc::new((AtomicU64::new(0), AtomicI64::new(0))));
    let said = says.clone();
    let runs = run_for(unit, 0, move || {
        let before = memory().held(whose);
        let mut pages: Vec<u8> = Vec::new();
        if pages.try_reserve_exact(PAGES * PAGE as usize).is_ok() {
            says.0.store(PAGES as u64, Ordering::Relaxed);
            says.1.store(memory().held(whose) - before, Ordering::Relaxed);
        }
        drop(pages);
        // What it has given back is nobody's any more.
        let kept = memory().held(whose) - before;
        says.1.fetch_add(kept, Ordering::Relaxed);
        seen.one_less();
    });
    if !runs {
        return None;
    }
    done.wait(0);
    Some(Compared { done: said.0.load(Ordering::Relaxed), found: said.1.load(Ordering::Relaxed) })
}

/// Has a thread on each core, and what it asks for, burn for a unit: two ends in all. Adds what has come of it.
fn burn_for(
    unit: &Activity,
    whose: u32,
    resources: impl Iterator<Item = Resource>,
    all: &mut Vec<Burn>,
    f: fn(usize, &Arc<Done>),
) -> Option<()> {
    let begun: Vec<Arc<Done>> = (0..atoll_task::cores())
        .filter(|core| atoll_task::is_online(*core))
        .map_while(|core| {
            let done = Arc::new(Done { left: AtomicU64::new(2), ..Done::default() });
            let mine = done.clone();
            run_for(unit, core, move || f(core, &mine)).then_some(done)
        })
        .collect();
    begun.iter().for_each(|done| done.wait(0));
    let used = atoll_task::used().into_iter().find(|used| used.activity == unit.number())?;
    all.extend(resources.map(|resource| {
        let sum = |n: usize| {
            begun.iter().map(|done| done.resources[resource as usize][n].load(Ordering::Relaxed)).sum()
        };
        let Amounts { time, messages, bytes, .. } = used.entries[resource as usize];
        Burn {
            activity: whose,
            resource,
            time: Compared { done: sum(0), found: time },
            messages: Compared { done: sum(1), found: messages as i64 },
            bytes: Compared { done: sum(2), found: bytes as i64 },
        }
    }));
    Some(())
}

/// Burns for one activity on all cores. None: there is no room for it.
fn burn_everywhere(activity: &Activity, all: &mut Burnt) -> Option<()> {
    let units = || Activity::new(kind::UNIT, activity, 0, b"check");
    let (unit, of_timer, whose) = (units()?, units()?, activity.number());
    let resources = Resource::SERVING.into_iter().chain([Resource::Thread, Resource::Completion]);
    burn_for(&unit, whose, resources, &mut all.burns, burn_in_thread)?;
    burn_for(&of_timer, whose, core::iter::once(Resource::Timer), &mut all.burns, |_, done| {
        burn_in_timer(done)
    })?;
    all.pages.push((whose, hold_pages(&unit)?));
    Some(())
}

fn stolen() -> i64 {
    let root = atoll_task::used().into_iter().find(|used| used.activity == ROOT);
    root.map_or(0, |used| used.entries[Resource::Stolen as usize].time)
}

/// What the allocator has given out, and what all activities hold. Other cores go on, so it is looked until both were the
/// same, or it is clear that they are not.
fn held() -> Compared {
    let mut last = Compared::default();
    for _ in 0..1000 {
        let before = memory().used();
        let held: i64 = (0..ACTIVITIES_MAX as u32).map(|n| memory().held(n)).sum();
        let after = memory().used();
        last = Compared { done: after / PAGE, found: held };
        if before == after && last.done as i64 == held {
            break;
        }
    }
    last
}

fn burn_for_all() -> Burnt {
    let mut all = Burnt::default();
    let before = stolen();
    let whose = atoll_task::used().into_iter().filter(|u| u.kind != kind::SUBSTITUTE && u.kind != kind::UNIT);
    for (n, used) in whose.enumerate() {
        // One that has ended meanwhile is none any more.
        let Some(activity) = Activity::try_hold(used.activity) else { continue };
        if n >= BURNS_MAX || burn_everywhere(&activity, &mut all).is_none() {
            all.left_out += 1;
        }
    }
    all.stolen = stolen() - before;
    all.held = held();
    all.sent = labelled::send_for(&Activity::root());
    all
}

/// Looks whether somebody asks for burns, and has a thread see to them.
pub fn look() {
    let asked = area().burns_asked.load(Ordering::Acquire);
    if area().burns_begun.swap(asked, Ordering::Relaxed) == asked {
        return;
    }
    match atoll_task::spawn(core_local().id(), move || answer(asked)) {
        Some(t) => atoll_task::start(t),
        None => {
            log::line(format_args!("no memory for what `atoll stat --check` asks for"));
            area().burnt_len.store(0, Ordering::Relaxed);
            area().burns_over.store(asked, Ordering::Release);
        }
    }
}

fn answer(asked: u32) {
    static ANSWERING: Mutex<()> = Mutex::new(());
    let _one = ANSWERING.lock();
    let encoded = postcard::to_allocvec(&burn_for_all()).unwrap_or_default();
    let fits = encoded.len() <= BURNT_MAX;
    for (to, from) in area().burnt.iter().zip(&encoded) {
        to.store(*from, Ordering::Relaxed);
    }
    area().burnt_len.store(if fits { encoded.len() as u32 } else { 0 }, Ordering::Relaxed);
    area().burns_over.store(asked, Ordering::Release);
}
