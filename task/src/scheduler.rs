//! Who runs next.
//!
//! A core runs the ready thread that has had least lately (`ready.rs`). One
//! whose turn ends while others are ready is preempted, by the one deadline that is armed only in
//! that case. When it ends can change when another
//! thread is woken: where that means at once, the thread is preempted on its
//! way back to its program. A thread that has nothing to do parks; if no
//! other is ready, its core looks for events on that thread's own stack, so
//! that a thread woken meanwhile goes on without a switch. It sleeps on a
//! stack of its own, where the platform has one: whoever wakes a thread of
//! it may take that over.
#![allow(unsafe_code, reason = "switches stacks, and links threads into queues")]

use core::ptr::{null, null_mut};
use core::sync::atomic::{Ordering, fence};

use crate::activity::{Activity, has_core};
use crate::core_state::{
    Core, Mail, Private, Rest, SLEEPS, all_cores, core, count, handle_event, handle_in_place, make_cores,
    this_core, usage, with_private, with_private_of,
};
use crate::extended::Left;
use crate::messages;
use crate::rcu;
use crate::ready::{LEAST, Next, ONE, Policy, Ready, Why};
use crate::thread::{self, Thread, ThreadRef, current, state};
use crate::timer::{self, TimerEntry};
use crate::trace::{self, event};
use crate::{activity, arch, books, extended, gate, load};
use atoll_abi::control::{ANY_SPACE, ASLEEP};
use atoll_abi::core_local::{core_local, pending, state as core_run};
use atoll_abi::grid::Resource;
use atoll_abi::layout::MAX_CORES;
use atoll_abi::{assert_accounted, platform};
use atoll_sync::{SetOnce, ThreadOps};

/// Longest time between two looks for events while a thread runs, ns.
const POLL_EVERY: u64 = 1_000_000;
/// A request that nobody has taken after this long, ns, may wait for a thread which waits for this core's own processor.
const TAKEN_SOON: u64 = 30_000;
/// How often a core is told of events at most while a thread computes, ns: each time costs the core some 30 us.
const TOLD_EVERY: u64 = 200_000;
/// Who sleeps after less than this is brief, ns.
const SHORT: u64 = 100_000;
/// Who sleeps after less than this no longer counts as one that computes, ns: half of what makes one (`POLL_EVERY`).
const NOT_LONG: u64 = POLL_EVERY / 2;
/// A core that switches between ready threads looks for events after this long, ns.
const POLL_BUSY: u64 = 50_000;
/// A deadline in this time, ns, will do for who wants a core to come by its scheduler.
const SOON: u64 = 3_000_000;
/// After this long a thread that waits for the one that runs goes to an idle core, ns.
pub(crate) const SPREAD_AFTER: u64 = 200_000;
/// The same where there was none that could.
const SPREAD_SELDOM: u64 = 3_200_000;
/// So long, ns, a thread goes on that has itself woken one which has had less. It may have more to give, and often several wait for that.
const SPARES: u64 = 100_000;
/// The same of one that always sleeps long before.
const SPARES_BRIEF: u64 = 1_000_000;
/// Who has then slept at once, so often in a row, waits for twice as long each time: a shell, for the end of what it has started.
const VAIN_MAX: u32 = 4;
const _: () = assert!(SPREAD_AFTER << VAIN_MAX <= SPREAD_SELDOM);
/// How often a core that has nothing to do interrupts another one to ask for a thread while it gets none, at most, ns.
const ASK_EVERY: u64 = 1_000_000;
/// How often a core on which threads wait gives one to a core that has fewer, ns.
const BALANCE_EVERY: u64 = 50_000_000;
/// After so long a thread that finds events where it would have slept lets others go first that have had less, ns.
const ENOUGH: u64 = 200_000;
/// To wake a core that sleeps takes so long, with what its first thread waits, ns.
const WAKE: u64 = 40_000;
/// Who has slept so often in a row sooner than that after waking another one does it again, as likely as not; and how far that is counted.
const HABIT: u32 = 2;
const HABIT_MAX: u32 = 4;
/// A processor of which others use so many thousandths is crowded: what can run elsewhere does.
const CROWDED: u32 = 300;

/// Prepares the scheduler for `cores` cores. Before anything else here.
pub fn init(cores: usize) {
    make_cores(cores);
    crate::online::begin();
    books::watch();
    static OPS: ThreadOps = ThreadOps {
        current: || core_local().current.load(Ordering::Relaxed) as usize,
        park: || {
            if core_local().current.load(Ordering::Relaxed).is_null() {
                // A core that is starting has no thread yet that could sleep;
                // it meets the others only at the heap and the pool of threads.
                core::hint::spin_loop();
            } else {
                park();
            }
        },
        unpark: |token| {
            if token != 0 {
                // SAFETY: tokens come from `current` above; threads are never freed.
                unpark(unsafe { &*(token as *const Thread) });
            }
        },
        now: || platform().now(),
        others: || all_cores().len() > 1,
        breathe,
        relax,
    };
    atoll_sync::set_thread_ops(&OPS);
    atoll_sync::set_defer(rcu::defer);
}

/// Makes this core known to the scheduler. Core 0 comes before the others, and gives all
/// their event threads: a core that is never used needs no memory of its own.
pub fn boot_core() {
    let local = core_local();
    let me = core(local.id());
    local.scheduler.store((me as *const Core).cast_mut().cast(), Ordering::Relaxed);
    local.current.store(null_mut(), Ordering::Relaxed);
    begin_record(me, platform().now());
    me.meter.open();
    if local.id() != 0 {
        return;
    }
    for (n, core) in all_cores().iter().enumerate() {
        let events = thread::spawn(n, event_loop).expect("no memory for a core's event thread");
        // It sleeps until it is needed.
        events.state.store(state::PARKED, Ordering::Release);
        core.event_thread.store((events as *const Thread).cast_mut(), Ordering::Release);
    }
}

/// Runs threads on this core, for ever. The caller's stack is given up
/// except while the core is idle for the first time.
pub fn run_core() -> ! {
    begin_choice(this_core(), None, platform().now());
    choose_apart(this_core(), null(), platform().now())
}

/// On a stack that is no thread's. `last`: the thread that slept here last.
fn choose_apart(this: &Core, last: *const Thread, now: u64) -> ! {
    loop {
        if let Some(next) = choose(this, None, now) {
            if !last.is_null() && !core::ptr::eq(last, next) {
                count(&this.stats.switches, 1);
            }
            switch_from_nowhere(next)
        }
    }
}

/// On the core's own stack, which the platform has for it: sleeps, and goes on with whatever there is then. Whoever slept here last can run
/// elsewhere from now on.
extern "C" fn rest_apart(_: usize) -> ! {
    let this = this_core();
    let last = core_local().current.load(Ordering::Relaxed).cast::<Thread>();
    let events = this.event_thread.load(Ordering::Relaxed);
    // SAFETY: every core has one from its start on; threads are never freed. It belongs to this core, and does nothing.
    set_current(unsafe { &*events });
    let rest = with_private_of(this, |p| p.rest.take()).expect("it has looked around");
    let now = sleep(this, rest, true);
    choose_apart(this, last, now)
}

fn switch_from_nowhere(next: ThreadRef) -> ! {
    set_current(next);
    if !fits(next) {
        flush_live();
        platform().leave_stack(change_space, next as *const Thread as usize)
    }
    enter(next);
    // SAFETY: the thread was prepared or saved, and only this core runs it.
    unsafe { arch::atoll_load(*next.context.get()) }
}

/// On the host thread's own stack: hand the core to the thread's space.
extern "C" fn change_space(next: usize) -> ! {
    // SAFETY: threads are never freed.
    let t = unsafe { &*(next as *const Thread) };
    count(&this_core().stats.space_switches, 1);
    platform().space_switch(t.space(), arrive, next)
}

/// On the other host thread's own stack.
extern "C" fn arrive(next: usize) -> ! {
    // SAFETY: as above.
    let t = unsafe { &*(next as *const Thread) };
    let this = this_core();
    this.meter.arrive();
    if let Some(at) = platform().armed_here() {
        // Whoever chose the thread did so in another space, and left the deadline to be asked for here.
        // Those who rely on it that the core comes by soon are looked for, if it doesn't: the deadline that it had is not for this space.
        with_private_of(this, |p| {
            p.armed = if at > p.since { at } else { u64::MAX };
            // What brings a brief one by counts the work of the host thread that it was on.
            p.brief = false;
        });
        chosen(this, t);
    }
    enter(t);
    // SAFETY: the thread is saved, and only this core runs it.
    unsafe { arch::atoll_load(*t.context.get()) }
}

/// Can the thread run in the space that the core is in?
fn fits(t: ThreadRef) -> bool {
    let space = t.space();
    space == ANY_SPACE || space == core_local().space.load(Ordering::Relaxed)
}

fn set_current(t: ThreadRef) {
    let local = core_local();
    local.current.store((t as *const Thread).cast_mut().cast(), Ordering::Relaxed);
    local.frame.store(t.frame_ptr(), Ordering::Relaxed);
    local.task.store(t.personality(), Ordering::Relaxed);
}

/// Puts a program thread's FS and extended registers into the registers.
fn enter(t: ThreadRef) {
    if !t.is_program() {
        return;
    }
    let live = with_private(|p| core::mem::replace(&mut p.live, t));
    if core::ptr::eq(live, t) {
        return;
    }
    let left = save(live);
    // SAFETY: the thread runs on this core from now on.
    let frame = unsafe { t.frame() };
    arch::set_fs_base(frame.fs_base);
    if frame.is_syscall() {
        extended::restore(frame, left);
    }
}

/// Saves the registers of the program thread that ran here last, if they are still in place.
fn flush_live() {
    save(with_private(|p| core::mem::replace(&mut p.live, null())));
}

/// The same of this thread, if there is one. Value: what it leaves in the registers, if that is known now.
#[inline]
fn save(live: *const Thread) -> Option<Left> {
    if live.is_null() {
        return None;
    }
    // SAFETY: a thread whose registers are live on this core belongs to this
    // core and does not run; threads are never freed.
    let frame = unsafe { (*live).frame() };
    frame.fs_base = arch::fs_base();
    frame.is_syscall().then(|| extended::save(frame))
}

/// Is `t`'s extended state in this core's registers? It leaves them for good.
fn forget_live(t: ThreadRef) {
    with_private(|p| {
        if core::ptr::eq(p.live, t) {
            p.live = null();
        }
    });
}

/// First thing in every thread that has been switched to.
#[inline]
pub(crate) fn finish_switch() {
    if with_private(|p| p.finished.is_some() || p.leaving.is_some()) {
        see_off();
    }
}

/// Who ran before has ended, or may not run here any more.
#[cold]
fn see_off() {
    if let Some(dead) = with_private(|p| p.finished.take()) {
        dead.recycle();
    }
    if let Some((t, to)) = with_private(|p| p.leaving.take()) {
        let may = crate::is_online(to) && t.may_run_on(to);
        migrate(t, if may { to } else { choose_core(t) });
    }
}

/// The core is at a point where it can be interrupted: what has come for it meanwhile has waited until now.
#[inline]
fn interruptible_at(this: &Core, now: u64) {
    if this.area.put_off.load(Ordering::Relaxed) != 0 {
        was_put_off(this, now);
    }
}

#[cold]
fn was_put_off(this: &Core, now: u64) {
    let s = &this.stats;
    let ns = now.saturating_sub(this.area.put_off.swap(0, Ordering::Relaxed));
    count(&s.put_off, 1);
    count(&s.put_off_ns, ns);
    if ns > s.put_off_longest_ns.load(Ordering::Relaxed) {
        let t = core_local().current.load(Ordering::Relaxed).cast::<Thread>();
        // SAFETY: threads are never freed.
        let call = unsafe { t.as_ref() }.and_then(Thread::call);
        s.put_off_longest_ns.store(ns, Ordering::Relaxed);
        s.put_off_longest_in.store(call.map_or(0, |(number, _)| number.saturating_add(1)), Ordering::Relaxed);
    }
}

/// Switches from the current thread to the next ready one. Returns when the
/// current thread is chosen again.
fn schedule(me: ThreadRef) {
    schedule_at(me, platform().now());
}

/// The same if the time is known.
#[inline(always)]
fn schedule_at(me: ThreadRef, now: u64) {
    let this = this_core();
    let message = this.meter.suspend(now);
    interruptible_at(this, now);
    let Some(next) = next_thread(this, Some(me), now) else {
        // SAFETY: `leave_to_rest` moves to another stack before anybody can load this one.
        unsafe { arch::atoll_save_and_call(me.context.get(), leave_to_rest, 0) };
        let this = this_core();
        this.meter.resume(message, with_private_of(this, |p| p.since));
        return finish_switch();
    };
    if core::ptr::eq(next, me) {
        return this.meter.resume(message, with_private_of(this, |p| p.since));
    }
    count(&this.stats.switches, 1);
    set_current(next);
    if fits(next) {
        enter(next);
        // SAFETY: both contexts are this core's.
        unsafe { arch::atoll_switch(me.context.get(), *next.context.get()) };
    } else {
        // The registers of this host thread stay behind with it.
        flush_live();
        // SAFETY: `leave` moves to another stack before anybody can load this one.
        unsafe { arch::atoll_save_and_call(me.context.get(), leave, next as *const Thread as usize) };
    }
    // That can be another core.
    let this = this_core();
    this.meter.resume(message, with_private_of(this, |p| p.since));
    finish_switch();
}

extern "C" fn leave_to_rest(_: usize) -> ! {
    platform().leave_stack(rest_apart, 0)
}

extern "C" fn leave(next: usize) -> ! {
    platform().leave_stack(change_space, next)
}

/// Takes the next thread that is ready, waiting for one if need be. `me`: on
/// whose stack this runs; it may be the answer. None: the core is to leave that stack, and to sleep ([`rest_apart`]).
fn next_thread(this: &Core, me: Option<ThreadRef>, now: u64) -> Option<ThreadRef> {
    let now = begin_choice(this, me, now);
    choose(this, me, now)
}

/// Ends the account of who ran, and sees to what has come meanwhile. Value: the time, as far as it is known.
fn begin_choice(this: &Core, me: Option<ThreadRef>, now: u64) -> u64 {
    let computed = with_private_of(this, |p| p.again.is_some())
        && me.is_some_and(|me| me.computes.load(Ordering::Relaxed));
    charge(this, me, now);
    let generation = activity::generation();
    if with_private_of(this, |p| {
        (p.choosing, p.brief, p.computed, p.ends) = (true, false, computed, false);
        p.ready.generation != generation || p.ready.is_time_to_look(now) && all_cores().len() > 1
    }) {
        look_at_division(now);
    }
    // The books are done with those who were woken.
    rcu::quiesce_on(this);
    take_mail();
    timer::expire(now);
    if with_private_of(this, |p| p.ready.len() > 0) && look_for_events(now, false) {
        // With nothing ready, `idle` looks.
        charge_events(platform().now());
    }
    now
}

/// The thread that runs next. As [`next_thread`].
fn choose(this: &Core, me: Option<ThreadRef>, mut now: u64) -> Option<ThreadRef> {
    loop {
        if let Some(t) = pop_ready(this, now) {
            if let Some(to) = elsewhere(this, t, now) {
                with_private(|p| p.ready.settle(0, now));
                send_off(t, me, to);
                continue;
            }
            // READY to RUNNING; a token stays.
            t.state.fetch_and(!state::MASK, Ordering::AcqRel);
            this.busy.store(true, Ordering::Relaxed);
            this.meter.work_for(t);
            this.class_running.store(t.class(), Ordering::Relaxed);
            if this.meter.times_switch() {
                let now = platform().now();
                let took = begin_record(this, now);
                this.meter.switched(took);
                this.meter.worked(took);
            }
            let since = with_private_of(this, |p| {
                // That was the core's own doing.
                p.woke_at = 0;
                p.since
            });
            this.meter.works(since);
            t.since.store(since, Ordering::Release);
            t.waits_no_more(since);
            trace::note(this, event::RUN, Some(t), Some(since));
            if fits(t) && with_private_of(this, |p| core::mem::take(&mut p.computed)) {
                expect_brief(this, t);
            }
            if fits(t) || platform().armed_here().is_none() {
                chosen(this, t);
            } else {
                // `arrive` asks for the deadline.
                with_private_of(this, |p| p.choosing = false);
            }
            return Some(t);
        }
        let rest = match look_around(this, now) {
            Some(rest) => rest,
            None => continue,
        };
        if me.is_some() && platform().parks_apart() && is_to_sleep(this, &rest) {
            // Whoever wakes somebody of this core's may take him over.
            flush_live();
            with_private_of(this, |p| p.rest = Some(rest));
            return None;
        }
        now = sleep(this, rest, me.is_none());
    }
}

/// Who divides the core's time has changed, or classes' parts of it may have.
#[cold]
fn look_at_division(now: u64) {
    if with_private(|p| p.ready.generation) != activity::generation() {
        activity::with_division(|division, generation| {
            let divided = with_private(|p| {
                p.ready.divide(division, generation, now);
                p.ready.is_divided()
            });
            this_core().divided.store(divided, Ordering::Relaxed);
            messages::divide(division.scheduler, &division.classes);
        });
    }
    if with_private(|p| p.ready.is_time_to_look(now)) && all_cores().len() > 1 {
        look_at_parts(now);
    }
}

/// Processor time that the current thread has had, ns ([`Thread::cpu_time`]). If it has run for some time since that was known, it is looked how
/// much of that the processor was elsewhere.
pub fn own_cpu_time() -> u64 {
    let (me, meter) = (current(), &this_core().meter);
    // Not later: to ask the host for that is where it likes to give the processor to others.
    let now = platform().now();
    meter.turn_over(me.activity(), now);
    me.lost(meter.tell_stolen());
    me.cpu_time_at(|| now)
}

/// The current thread works for `activity` from now on, of the same class. Value: the one that it worked for until now.
pub fn work_for(activity: Activity) -> Activity {
    let number = activity.number();
    let before = current().replace_activity(activity);
    this_core().meter.turn_over(number, platform().now());
    before
}

/// A record ends here and the next one begins. Value: how long the core was at the one that ends, ns.
fn begin_record(this: &Core, now: u64) -> u64 {
    this.area.local.unsettled.store(0, Ordering::Release);
    let before = this.stats.since.load(Ordering::Relaxed);
    this.stats.since.store(now, Ordering::Relaxed);
    // Whoever sees that the record was counted sees that it is over.
    fence(Ordering::Release);
    let (since, counts) =
        with_private_of(this, |p| (core::mem::replace(&mut p.since, now), now >= p.counts_at));
    if counts {
        count_load(this, before, now);
    }
    now.saturating_sub(since)
}

/// A record that began at `before` ([`Stats::since`](crate::core_state::Stats::since)) ends, and it was time to count meanwhile; or it is
/// the core's first.
#[cold]
fn count_load(this: &Core, before: u64, now: u64) {
    with_private_of(this, |p| p.counts_at = load::next(now));
    if before == 0 {
        return;
    }
    let (since, sleeps) = (before & !SLEEPS, before & SLEEPS != 0);
    let counts = load::counts(since, now);
    let ready = with_private_of(this, |p| p.ready.len());
    let active = load::active(now.saturating_sub(since), sleeps, ready);
    let averages = this.stats.averages.each_ref().map(|a| a.load(Ordering::Relaxed));
    for (average, now) in this.stats.averages.iter().zip(load::after(averages, counts, active)) {
        average.store(now, Ordering::Relaxed);
    }
}

/// Ends the account of the thread that ran.
fn charge(this: &Core, me: Option<ThreadRef>, now: u64) {
    let ran = begin_record(this, now);
    count(&this.stats.busy_ns, ran);
    // What the host takes is not what somebody uses.
    let stolen = this.meter.settle(ran);
    charge_classes(this, now);
    let others = with_private_of(this, |p| core::mem::take(&mut p.for_classes));
    let had = ran.saturating_sub(stolen).saturating_sub(others);
    if let Some(me) = me {
        // In this order: who asks meanwhile is not told too much.
        me.lost(stolen - this.meter.told_stolen());
        me.book(ran);
        let again = with_private_of(this, |p| {
            p.ready.charge(me, had, now);
            p.again.take()
        });
        let does = match again {
            Some(_) => event::PREEMPTED,
            None if me.state.load(Ordering::Relaxed) & state::MASK == state::DEAD => event::END,
            None => event::SLEEP,
        };
        trace::note(this, does, Some(me), Some(now));
        let woke_at = with_private_of(this, |p| core::mem::take(&mut p.woke_at));
        if woke_at != 0 {
            note_habit(me, again.is_none(), now.saturating_sub(woke_at));
        }
        if me.was_spread.load(Ordering::Relaxed) && (again.is_none() || ran >= WAKE) {
            note_spread(me, ran);
        }
        if ran >= POLL_EVERY {
            me.computes.store(true, Ordering::Relaxed);
        } else if again.is_none() && ran < NOT_LONG && me.computes.load(Ordering::Relaxed) {
            me.computes.store(false, Ordering::Relaxed);
        }
        let is_brief = match ran < SHORT {
            true => again.is_none() || me.is_brief.load(Ordering::Relaxed),
            false => false,
        };
        if me.is_brief.load(Ordering::Relaxed) != is_brief {
            me.is_brief.store(is_brief, Ordering::Relaxed);
        }
        if let Some(why) = again {
            push_ready(me, why);
        }
    }
    with_private_of(this, |p| p.ready.settle(had, now));
}

/// A thread has woken one whose core slept, and sleeps or lets others run so much later, ns.
fn note_habit(me: ThreadRef, sleeps: bool, later: u64) {
    let before = me.sleeps_soon.load(Ordering::Relaxed);
    let now = match later <= WAKE {
        true if sleeps => (before + 1).min(HABIT_MAX),
        true => before,
        false => 0,
    };
    if now != before {
        me.sleeps_soon.store(now, Ordering::Relaxed);
    }
}

/// A thread has run for so long, ns, since it went to a core that had nothing to do.
#[cold]
fn note_spread(me: ThreadRef, ran: u64) {
    me.was_spread.store(false, Ordering::Relaxed);
    let before = me.spread_in_vain.load(Ordering::Relaxed);
    let now = if ran < WAKE { (before + 1).min(VAIN_MAX) } else { 0 };
    me.spread_in_vain.store(now, Ordering::Relaxed);
}

/// Ends the account of events that were looked at since the last one.
fn charge_events(now: u64) {
    let this = this_core();
    let took = begin_record(this, now);
    count(&this.stats.busy_ns, took);
    let later = with_private_of(this, |p| p.has_events());
    this.meter.charge_events(took, later);
    charge_classes(this, now);
    this.meter.worked(took);
    // What is owed is paid by the event thread.
    wake_event_thread();
}

/// Classes are charged with the events that the core has seen to for them, where it is divided, and have to pay for that at the gate. Value:
/// are they charged with anything here?
fn charge_classes(this: &Core, now: u64) -> bool {
    let gated = gate::stands_before(Resource::Completion);
    let divided = with_private_of(this, |p| p.ready.is_divided());
    if !gated && !divided {
        return false;
    }
    this.meter.events_charged(|class, time, events| {
        with_private_of(this, |p| {
            p.ready.charge_class(class, time, now);
            if gated {
                p.owed.add(class, time, events);
            }
        });
    });
    divided
}

/// The core has worked so long for a class, in a thread that is no one's, ns.
#[cfg(not(feature = "without-books"))]
pub(crate) fn charge_class(class: u32, took: u64) {
    if with_private(|p| p.ready.is_divided()) {
        let now = platform().now();
        with_private(|p| {
            p.ready.charge_class(class, took, now);
            p.for_classes += took;
        });
    }
}

/// Nothing is ready that may run: look a while whether something comes. None: there may be something to run.
fn look_around(this: &Core, now: u64) -> Option<Rest> {
    let local = core_local();
    this.busy.store(false, Ordering::Relaxed);
    if with_private_of(this, |p| core::mem::replace(&mut p.told, false)) {
        // Its sleep tells it as well.
        this.area.tell.store(0, Ordering::Relaxed);
    }
    rcu::collect();
    if this.is_online() {
        ask_for_work();
    } else if !leave_core(this) {
        return None;
    }
    // An answer under way comes soon: look at the ring a while, if the machine has a core to serve it and that has paid lately. What
    // waits for a disk takes longer.
    let control = platform().control();
    let area = &control.cores[local.id()];
    let spare = control.descriptor.machine_cores.load(Ordering::Relaxed) > 1;
    let start = platform().now();
    // It looks at everything before it sleeps, and that is no time that something waits for the runtime.
    interruptible_at(this, start);
    let searched = begin_record(this, start);
    this.meter.found_nothing(searched, start);
    this.meter.worked(searched);
    let expects = spare && !is_crowded(this) && area.outstanding.load(Ordering::Relaxed) != 0;
    let deadline = with_private(|p| {
        let timer = p.first_timer();
        // A class that is over its limit may go on some time.
        Some(timer.min(p.ready.next(now))).filter(|at| *at != u64::MAX)
    });
    let looks = if expects { with_private_of(this, |p| p.answers.time()) } else { 0 };
    if looks > 0 {
        let (mut in_vain, mut now) = (false, start);
        while !platform().has_answers()
            && nothing_arrived(this)
            && !in_vain
            && deadline.is_none_or(|deadline| now < deadline)
        {
            core::hint::spin_loop();
            now = platform().now();
            in_vain = now > start + looks;
            if now > start + TAKEN_SOON && !area.requests.is_empty() {
                break;
            }
        }
        if platform().has_answers() {
            with_private_of(this, |p| p.answers.came(now.saturating_sub(start)));
        } else if in_vain {
            with_private_of(this, |p| p.answers.was_in_vain());
        }
    }
    let had_nothing = start;
    let start = look_for_others(this, start, deadline);
    let start = if this.is_online() && nothing_arrived(this) && !platform().has_answers() {
        tell_who_waits(this, start)
    } else {
        start
    };
    // Between two parts of it, it looks for events.
    let worked = work_ahead(this, start, deadline);
    let (ahead, start) = (worked.is_some(), worked.unwrap_or(start));
    Some(Rest { had_nothing, start, deadline, expects, ahead })
}

/// Is there nothing to do, as far as this core can see?
fn is_to_sleep(this: &Core, rest: &Rest) -> bool {
    // Nor was the core taken out of use since it looked: who does that looks at the state behind it, too.
    let used = this.usage.load(Ordering::Relaxed) != usage::GOING;
    let expired = rest.deadline.is_some_and(|d| d <= rest.start);
    nothing_arrived(this) && !expired && used && !platform().has_answers() && !rest.ahead
}

/// Waits for an event, a wake-up or a deadline. `apart`: on a stack that is no thread's. Value: the time.
fn sleep(this: &Core, rest: Rest, apart: bool) -> u64 {
    let local = core_local();
    let Rest { had_nothing, start, deadline, expects, ahead } = rest;
    if apart {
        debug_assert!(with_private_of(this, |p| p.live.is_null()), "whose registers are these?");
        this.apart.store(true, Ordering::Release);
    }
    if with_private(|p| p.sleeps_long && core::mem::replace(&mut p.armed, u64::MAX) != u64::MAX) {
        // It would wake the core for nothing.
        platform().disarm();
        local.armed.store(0, Ordering::Relaxed);
    }
    local.state.store(core_run::PARKED, Ordering::SeqCst);
    // The fence pairs with the one of those who push, then look at the state.
    fence(Ordering::SeqCst);
    let sleep = is_to_sleep(this, &rest);
    let slept_before = platform().slept();
    // Where nobody below counts that, the runtime does.
    let slept_by_now = this.area.slept.load(Ordering::Relaxed);
    // The event thread may still have some to take: it can wait for a lock.
    if sleep {
        count(&this.stats.parks, 1);
        trace::note(this, event::PARK, None, Some(start));
        if slept_before.is_none() {
            this.area.slept.store(start.saturating_sub(slept_by_now) | ASLEEP, Ordering::Relaxed);
        }
        // Nothing ends a record between here and the end of the sleep.
        this.stats.since.store(with_private_of(this, |p| p.since) | SLEEPS, Ordering::Relaxed);
        with_private(|p| platform().park(deadline, &mut p.events));
    } else {
        with_private(|p| platform().poll(&mut p.events));
    }
    local.state.store(core_run::RUNNING, Ordering::SeqCst);
    if apart {
        // Before anybody sleeps here again.
        this.apart.store(false, Ordering::Relaxed);
    }
    let now = platform().now();
    if sleep {
        let wake = match this.rung.swap(0, Ordering::Relaxed) {
            at if at >= had_nothing && !nothing_arrived(this) => Some(now.saturating_sub(at)),
            _ => None,
        };
        let after = now.saturating_sub(had_nothing);
        let answered = expects && platform().has_answers();
        with_private(|p| {
            if answered {
                p.answers.came(p.polling.was_there(after));
            }
            p.polling.slept(after, wake);
        });
    }
    // What the platform has done besides sleeping is a part of what it brings.
    let slept = slept_before.zip(platform().slept()).map(|(before, after)| after.saturating_sub(before));
    let woke = slept.map_or(now, |slept| now.min(start.saturating_add(slept)));
    let slept = begin_record(this, woke);
    with_private(|p| {
        p.polled = now;
        // Whoever tells of events has left that to the sleep.
        p.told = false;
        if !ahead {
            p.sleeps_long = slept > POLL_EVERY;
        }
    });
    count(&this.stats.idle_ns, slept);
    if slept_before.is_none() {
        this.area.slept.store(slept_by_now.saturating_add(slept) & !ASLEEP, Ordering::Relaxed);
    }
    this.meter.idle(slept);
    if !nothing_arrived(this) {
        // Others are to see that before they see that what they sent is taken.
        this.busy.store(true, Ordering::Release);
    }
    take_mail();
    timer::expire(now);
    handle_in_place();
    wake_event_thread();
    let now = platform().now();
    charge_events(now);
    rcu::quiesce();
    now
}

/// The core is not used any more, and has nothing to do: what is left goes elsewhere. Value: false if this runs on the stack of a
/// thread that others may take over; then the core is to switch to its event thread first, which is ready.
#[cold]
fn leave_core(this: &Core) -> bool {
    let current = core_local().current.load(Ordering::Relaxed).cast::<Thread>();
    if !current.is_null() && !core::ptr::eq(current, this.event_thread.load(Ordering::Relaxed)) {
        unpark_event_thread();
        return false;
    }
    timer::hand_over();
    if !this.has_left() {
        flush_live();
        this.left_at.store(platform().now(), Ordering::Relaxed);
        // Who sees this may take over threads that sleep here: it must not be said of a core that is used again by now.
        let _ = this.usage.compare_exchange(usage::GOING, usage::LEFT, Ordering::AcqRel, Ordering::Relaxed);
    }
    true
}

/// How many other cores a core looks at for one that is idle, or at work: the same on a cell of any size.
const A_FEW: usize = 4;
/// The same where it looks seldom.
const MANY: usize = 16;

/// Up to so many other cores, beginning behind those that this core looked at the last time.
fn some_others(at_most: usize) -> impl Iterator<Item = usize> {
    let (me, all) = (core_local().id(), all_cores().len());
    let others = all - 1;
    let next = &this_core().next_other;
    let first = next.load(Ordering::Relaxed) as usize;
    next.store(((first + at_most) % others.max(1)) as u32, Ordering::Relaxed);
    (first..first + at_most.min(others)).map(move |n| (me + 1 + n % others) % all)
}

/// Has another core of the cell something to do? Where there are many, one of some.
fn is_another_at_work(this: &Core) -> bool {
    // Who was sent something is about to wake.
    let works = |n: &usize| core(*n).busy.load(Ordering::Relaxed) || !nothing_arrived(core(*n));
    let last = this.at_work.load(Ordering::Relaxed) as usize;
    let found = Some(last).filter(|n| *n != core_local().id() && works(n));
    let found = found.or_else(|| some_others(A_FEW).find(works));
    if let Some(found) = found {
        this.at_work.store(found as u32, Ordering::Relaxed);
    }
    found.is_some()
}

/// Longest time for which a thread looks whether it has to sleep at all, ns: about what two switches take.
const LOOK: u64 = 1_000;

/// How long a thread leaves a lock alone that another one has before it looks again, ns. If both always want it, each gets it some
/// ten times in a row so, and the line of the cache that it lies in comes over once instead of each time.
const REST: u64 = 1_000;

/// What a thread is about to sleep for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// Another thread changes something.
    Changed,
    /// A lock is released that others want again and again, as this one does.
    Released,
}

/// For who is about to sleep until another thread changes something: looks for a short time whether one of another core does,
/// if this has paid lately and nothing else is to be done here. For a lock also if others are ready: as likely as not they
/// want it, too, and it is free before two have been switched to. Value: what `changed` said last.
#[inline]
pub fn look_before_sleep<E>(until: Until, changed: impl FnMut() -> Result<bool, E>) -> Result<bool, E> {
    let busy = |p: &Private| until == Until::Changed && p.ready.len() > 0;
    if all_cores().len() < 2 || with_private(|p| busy(p) || !p.looks.is_time()) {
        return Ok(false);
    }
    match until {
        Until::Changed => look_a_while(LOOK, 8, changed, core::hint::spin_loop),
        Until::Released => look_a_while(4 * REST, 1, changed, || {
            let (this, begun) = (this_core(), platform().now());
            while nothing_arrived(this) && platform().now() - begun < REST {
                core::hint::spin_loop();
            }
        }),
    }
}

/// Looks for so much time, and at the clock after so many looks.
#[inline(never)]
fn look_a_while<E>(
    time: u64,
    looks: u32,
    mut changed: impl FnMut() -> Result<bool, E>,
    rest: impl Fn(),
) -> Result<bool, E> {
    let this = this_core();
    if !is_another_at_work(this) {
        return Ok(false);
    }
    let until = platform().now() + time;
    let found = loop {
        for _ in 0..looks {
            rest();
            if changed()? {
                break;
            }
        }
        let found = changed()?;
        if found || !nothing_arrived(this) || platform().now() >= until {
            break found;
        }
    };
    with_private_of(this, |p| p.looks.tried(found));
    Ok(found)
}

/// Before the core sleeps: looks a while whether another one sends something, if that has paid lately, or until a deadline that
/// is nearer than a sleep. Value: the time then.
fn look_for_others(this: &Core, start: u64, deadline: Option<u64>) -> u64 {
    let others = is_another_at_work(this);
    let deadline = deadline.unwrap_or(u64::MAX);
    let time = with_private_of(this, |p| match deadline.saturating_sub(start) {
        near if p.polling.is_near(near) => near,
        // Who waits for the processor can do more with it.
        _ if others && !is_crowded(this) => p.polling.time(),
        _ => 0,
    });
    if time == 0 {
        return start;
    }
    let state = &core_local().state;
    trace::note(this, event::POLL, None, Some(start));
    // They need not ring. Each of them looks at this after it has sent something, and this core once more after it has changed it.
    state.store(core_run::POLLING, Ordering::SeqCst);
    let until = deadline.min(start + time);
    let mut now = start;
    while nothing_arrived(this) && !platform().has_answers() && now < until {
        (0..8).for_each(|_| core::hint::spin_loop());
        now = platform().now();
    }
    let found = !nothing_arrived(this);
    state.store(core_run::RUNNING, Ordering::SeqCst);
    with_private_of(this, |p| {
        if found {
            p.polling.paid(now - start);
        } else if now >= until && until < deadline {
            p.polling.was_in_vain();
        }
    });
    let polled = begin_record(this, now);
    this.meter.found_nothing(polled, now);
    this.meter.worked(polled);
    now
}

#[inline]
fn nothing_arrived(this: &Core) -> bool {
    this.inbox.is_empty()
        && this.mail.load(Ordering::Relaxed).is_null()
        && this.messages.is_empty()
        && !this.releases.load(Ordering::Relaxed)
}

/// Asks the platform for events if it is time to, and gives them to the event thread. Value: was it time?
#[inline]
fn look_for_events(now: u64, anyway: bool) -> bool {
    let due = with_private(|p| p.events.is_empty() && (anyway || now.saturating_sub(p.polled) > POLL_BUSY));
    let look = due || platform().has_answers();
    if look {
        ask_for_events(now);
    }
    wake_event_thread();
    look
}

#[inline(never)]
fn ask_for_events(now: u64) {
    let core = this_core();
    let begun = core.meter.looks();
    with_private_of(core, |p| {
        p.acted = false;
        platform().poll(&mut p.events);
        p.polled = now;
        // What would have told it of an answer may have been taken just now: it asks again.
        p.told &= core.area.tell.load(Ordering::Relaxed) != 0;
    });
    count(&core.stats.polls, 1);
    handle_in_place();
    let took = core.meter.looked(begun, with_private_of(core, |p| !p.events.is_empty()));
    if took > 0 && charge_classes(core, now) {
        // Who runs is not charged with that.
        with_private_of(core, |p| p.for_classes += took);
    }
}

/// Sees to it that what has happened up to now, and is reported to this core, is known: for those
/// who ask and don't wait.
pub fn look() {
    let watched = platform().control().cores[core_local().id()].watched.load(Ordering::Relaxed);
    if watched == 0 && !platform().has_answers() && with_private(|p| !p.has_work_for_events()) {
        return;
    }
    let now = platform().now();
    with_private(|p| {
        p.looks_often = now.saturating_sub(p.looked) < POLL_EVERY;
        p.looked = now;
    });
    look_for_events(now, true);
    if with_private(|p| p.has_work_for_events()) {
        yield_now();
    }
}

/// Who has found something by a [`look`], where it would have slept, lets others go first if it has run for long enough. If each look
/// brings it something, it would go on for a whole turn.
pub fn give_way() {
    let is_over = |p: &mut Private| p.ready.len() > 0 && p.polled.saturating_sub(p.since) >= ENOUGH;
    if with_private(is_over) && matches!(current().policy(), Policy::Fair(_)) {
        preempt();
    }
}

/// Do the program's own calls look for events as often as the core would? Then it need not be told of any: a server under load.
fn looks_itself(p: &mut Private) -> bool {
    p.looks_often && p.since.max(p.polled).saturating_sub(p.looked) < POLL_EVERY
}

/// Something was sent, or ended, of which the platform may report consequences to this core: on a loopback they are there
/// already when the call returns.
#[inline]
pub fn acted() {
    with_private(|p| p.acted = true);
}

/// [`look`], if something was done on this core since the last one ([`acted`]): for those who ask what has happened and
/// know something of it. Who then finds one consequence finds all. Value: was there
/// something?
#[inline]
pub fn look_if_acted() -> bool {
    let acted = with_private(|p| p.acted);
    if acted {
        look();
    }
    acted
}

#[inline]
pub(crate) fn wake_event_thread() {
    if with_private(|p| p.has_work_for_events() && p.events_idle) {
        unpark_event_thread();
    }
}

#[inline(never)]
fn unpark_event_thread() {
    let t = this_core().event_thread.load(Ordering::Relaxed);
    if !t.is_null() {
        // SAFETY: threads are never freed.
        unpark(unsafe { &*t });
    }
}

/// What a core's event thread does. It belongs to no space, and the core's
/// space may change under it.
fn event_loop() {
    with_private(|p| p.events_idle = false);
    loop {
        let (after, leave) = with_private(|p| (core::mem::take(&mut p.after), p.leave.take()));
        if !after.is_empty() {
            look_for_events(platform().now(), true);
        }
        let events = with_private(|p| p.events.take());
        let (messages, owed) = with_private(|p| (p.messages.len(), core::mem::take(&mut p.owed)));
        for (class, time, events) in owed.iter() {
            books::pay_of(class, Resource::Completion, events, time);
        }
        if events.is_empty() && messages == 0 && after.is_empty() && leave.is_none() {
            with_private(|p| p.events_idle = true);
            park();
            with_private(|p| p.events_idle = false);
            continue;
        }
        if leave == Some(core_local().space.load(Ordering::Relaxed)) {
            move_to_space(0);
        }
        for event in events.iter() {
            assert_accounted("events");
            handle_event(event);
        }
        // Not those that come meanwhile: events go before them.
        let is_time = || platform().now().saturating_sub(with_private(|p| p.since)) >= LEAST;
        for n in 1..=messages {
            if !messages::run_next() || n % 8 == 0 && is_time() {
                break;
            }
        }
        if !after.is_empty() {
            yield_now();
        }
        for call in after {
            call();
        }
        if with_private(|p| p.has_events()) && is_time() {
            // It comes by the scheduler, whoever sends messages without end: deadlines pass meanwhile.
            if with_private(|p| p.ready.len() > 1) {
                // The next one runs here; those behind it need not wait, if another core is idle.
                spread(false, platform().now());
            }
            let me = current();
            make_ready_again(me, Why::Own);
            schedule(me);
        }
    }
}

/// Has the event thread of `core` call `f`, after it has told of the answers
/// that have come up to now, and after those who waited for them have run.
///
/// For what comes from outside, and was perhaps sent for what an answered
/// request did there: the program is to be as far as the sender saw it.
pub fn after_answers(core: usize, f: impl Fn() + Send + Sync + 'static) {
    let f = alloc::sync::Arc::new(f);
    if core == core_local().id() {
        with_private(|p| p.after.push(f));
        wake_event_thread();
    } else {
        crate::core_state::core(core).send(Mail::After(f));
        poke(core);
    }
}

static TIDY: SetOnce<fn()> = SetOnce::new();

/// Says what a core does that is asked to tidy up. It may happen between any two threads.
pub fn set_tidy(tidy: fn()) {
    // Once in a cell's life; a second time changes nothing.
    let _ = TIDY.set(tidy);
}

static WORK_AHEAD: SetOnce<fn() -> Option<u32>> = SetOnce::new();

/// Says what a core does some of that has nothing else to do, for a few microseconds, and how many pages that was; none when nothing of it
/// is left. Who takes them later pays for them ([`books::worked_ahead_for`](crate::books::worked_ahead_for)).
pub fn set_work_ahead(work: fn() -> Option<u32>) {
    // Once in a cell's life; a second time changes nothing.
    let _ = WORK_AHEAD.set(work);
}

/// A core that is about to sleep does some work ahead, if it slept long the last time: else what it waits for may be near. Value: the
/// time when it has done some.
fn work_ahead(this: &Core, start: u64, deadline: Option<u64>) -> Option<u64> {
    let work = WORK_AHEAD.get()?;
    let is_time = with_private_of(this, |p| p.sleeps_long)
        && deadline.is_none_or(|at| at > start.saturating_add(POLL_EVERY))
        && this.is_online()
        && nothing_arrived(this)
        && !platform().has_answers();
    let pages = if is_time { work()? } else { return None };
    let now = platform().now();
    let took = begin_record(this, now);
    this.meter.worked_ahead(took, pages, now);
    Some(now)
}

/// Has other cores, a bit each, do soon what [`set_tidy`] said. Takes no memory, and may be called with locks.
pub fn ask_to_tidy(cores: &[u64; MAX_CORES / 64]) {
    let me = core_local().id();
    for n in (0..all_cores().len()).filter(|n| *n != me && has_core(cores, *n)) {
        core(n).send_letter();
        interrupt(n);
    }
}

/// Takes what other cores sent: threads and requests.
#[inline]
fn take_mail() {
    if !nothing_arrived(this_core()) {
        take_what_arrived();
    }
}

#[inline(never)]
fn take_what_arrived() {
    let this = this_core();
    this.inbox.take(|t| {
        this.wants_work.store(false, Ordering::Relaxed);
        push_woken(t);
    });
    if this.releases.swap(false, Ordering::Acquire) {
        messages::release();
    }
    if !this.messages.is_empty() {
        let now = platform().now();
        this.messages.take().for_each(|m| messages::queue(m, now));
        wake_event_thread();
    }
    if !this.mail.load(Ordering::Relaxed).is_null() {
        let mut newest = this.mail.swap(null_mut(), Ordering::Acquire);
        // Oldest first: a timer comes before the wish to forget it.
        let mut node = null_mut();
        while !newest.is_null() {
            // SAFETY: nodes were made by `Core::send` and are ours now.
            let next = unsafe { core::mem::replace(&mut (*newest).next, node) };
            node = core::mem::replace(&mut newest, next);
        }
        while !node.is_null() {
            // SAFETY: the node is ours until it is said that it may be sent again.
            let next = unsafe { (*node).next };
            if this.letter.is(node) {
                node = next;
                if let Some(tidy) = TIDY.get() {
                    tidy();
                }
                continue;
            }
            // SAFETY: other nodes were made by `Core::send` and are ours now.
            let letter = unsafe { alloc::boxed::Box::from_raw(node) };
            node = next;
            match letter.mail {
                Mail::Tidy => unreachable!("a letter is no node of its own"),
                Mail::CancelTimer(key) => timer::forget(key),
                Mail::CancelCall(key, timer) => timer::forget_call(&timer, key),
                Mail::Timers(timers) => timer::take_over(timers),
                Mail::WantWork(to) => give_work(to),
                Mail::Reorder(t) => reorder(t),
                Mail::LeaveSpace(space) => {
                    with_private(|p| p.leave = Some(space));
                    wake_event_thread();
                }
                Mail::After(f) => {
                    with_private(|p| p.after.push(f));
                    wake_event_thread();
                }
            }
        }
    }
}

fn push_ready(t: ThreadRef, why: Why) {
    // A turn has just ended: the time is known.
    t.waits(with_private(|p| p.since), 1);
    put(|ready, now| ready.push(t, why, now));
}

/// One in so many waits of threads that were woken is measured: that takes a look at the clock.
const WAIT_SAMPLE: u64 = 8;

/// A thread of this core has been woken.
fn push_woken(t: ThreadRef) {
    let sample = with_private(|p| {
        p.wakes = p.wakes.wrapping_add(1);
        u64::from(p.wakes).is_multiple_of(WAIT_SAMPLE)
    });
    if sample {
        t.waits(platform().now(), WAIT_SAMPLE);
    }
    put(|ready, now| ready.wake(t, now));
}

fn put(f: impl FnOnce(&mut Ready, u64)) {
    let this = this_core();
    let len = with_private_of(this, |p| {
        f(&mut p.ready, p.since);
        // Another one waits now.
        p.brief = false;
        p.ready.len()
    });
    note_load(this, len);
}

fn pop_ready(this: &Core, now: u64) -> Option<ThreadRef> {
    loop {
        let (next, len) = with_private_of(this, |p| (p.ready.pop(now), p.ready.len()));
        note_load(this, len);
        match next {
            Some(Next::Thread(t)) => return Some(t),
            // Its event thread goes before all others.
            Some(Next::Messages(class)) => messages::go_on(class),
            None => return None,
        }
    }
}

/// Says to other cores, and to the supervisor, how many threads wait here.
#[inline]
fn note_load(this: &Core, len: usize) {
    this.load.store(len as u32, Ordering::Relaxed);
    this.area.waiting.store(len as u32, Ordering::Relaxed);
}

/// This thread goes before one that computes. If it is as brief as it was lately, the deadline that ends its turn would be asked for in
/// vain, and just where somebody waits for an answer.
#[inline(never)]
fn expect_brief(this: &Core, t: ThreadRef) {
    let alone =
        with_private_of(this, |p| p.ready.len() == 1 && !p.ready.is_divided() && is_far(p.first_timer(), p));
    let brief = alone && t.is_brief.load(Ordering::Relaxed) && platform().arm_for_work();
    with_private_of(this, |p| p.brief = brief);
}

/// Who runs is known: the deadline can be, too.
#[inline]
fn chosen(this: &Core, t: ThreadRef) {
    with_private_of(this, |p| p.choosing = false);
    if t.computes.load(Ordering::Relaxed) {
        ask_to_be_told(this);
    }
    rearm_for(this, t, false);
}

/// A thread goes on that computes: the core need not look for events meanwhile if it is told of them.
#[inline(never)]
fn ask_to_be_told(this: &Core) {
    if awaits_events(this) && with_private_of(this, |p| !p.told && !was_told(p) && !looks_itself(p)) {
        let mut told = platform().tell_of_events();
        if !told && platform().has_answers() {
            // There are some: it looks before the program goes on.
            told = true;
            core_local().pending.fetch_or(pending::NOTIFY, Ordering::Relaxed);
        }
        with_private_of(this, |p| p.told = told);
    }
}

/// Can anything happen outside of the cell that is for this core?
#[inline]
fn awaits_events(this: &Core) -> bool {
    this.area.watched.load(Ordering::Relaxed) != 0 || this.area.outstanding.load(Ordering::Relaxed) != 0
}

/// Is there something that the core has to look for from time to time, and is it not told of that?
#[inline]
fn is_to_look(this: &Core) -> bool {
    awaits_events(this) && !with_private_of(this, |p| p.told)
}

/// The core is to look for events now and then. Does it come by its scheduler often enough for that, as threads go that don't
/// compute? If this one does after all, it is interrupted some time.
#[inline]
fn comes_by(this: &Core) -> bool {
    !with_private_of(this, was_told) && platform().arm_for_work()
}

/// Those who send something here may rely on it that the core comes by its scheduler soon, or no longer.
#[cold]
fn set_soon(this: &Core, soon: bool) {
    this.area.local.armed.store(u32::from(soon), Ordering::SeqCst);
    if !soon {
        // Who has relied on that until now has sent before.
        fence(Ordering::SeqCst);
        if !nothing_arrived(this) {
            core_local().pending.fetch_or(pending::NOTIFY, Ordering::Relaxed);
        }
    }
}

/// Was the core told of an event just now? Then it is not told of the next one at once, but looks soon.
fn was_told(p: &mut Private) -> bool {
    p.since.max(p.polled).saturating_sub(p.told_at) < TOLD_EVERY
}

/// After how long the core looks for events by itself, ns.
fn looks_every(p: &mut Private) -> u64 {
    if was_told(p) { TOLD_EVERY } else { POLL_EVERY }
}

/// Asks the platform for the deadline that the running thread needs: the end
/// of its turn if others are ready, a look for events if any are awaited,
/// the earliest timer.
#[inline]
pub(crate) fn rearm(this: &Core) {
    rearm_for(this, core_local().current.load(Ordering::Relaxed).cast(), false)
}

/// The same when somebody of this core's has been woken.
#[inline]
fn rearm_woken() {
    let this = this_core();
    let by_thread = with_private_of(this, |p| !p.in_place);
    rearm_for(this, core_local().current.load(Ordering::Relaxed).cast(), by_thread)
}

/// The same for a thread that is about to run, or has itself woken another one of this core's.
#[inline]
fn rearm_for(this: &Core, runs: *const Thread, has_woken: bool) {
    let awaits = is_to_look(this);
    let by_itself = awaits && comes_by(this);
    let external = awaits && !by_itself;
    // SAFETY: threads are never freed.
    let is_brief = unsafe { runs.as_ref() }.is_some_and(|t| t.is_brief.load(Ordering::Relaxed));
    // The event thread is back at its scheduler long before a timer that is not near. A deadline for that would mostly come while the core
    // sleeps, which the timer ends by itself, and takes longer than all that the event thread does.
    let is_events = core::ptr::eq(runs, this.event_thread.load(Ordering::Relaxed));
    let is_soon_back = is_events && is_brief && platform().arm_for_work();
    // The common case: one that comes as early as any of these is there, or none is wanted.
    let will_do = with_private_of(this, |p| {
        let looks = if external { p.since + looks_every(p) } else { u64::MAX };
        let turn = if p.ready.len() > 0 { p.ready.turn_ends_after(p.since) } else { u64::MAX };
        let timer = timer_of_turn(p, is_soon_back);
        p.choosing
            || p.brief
            || !p.ready.is_divided() && !p.may_spread_next && p.armed <= looks.min(turn).min(timer)
    });
    if !will_do {
        arm(this, external, Runs { is_events, is_brief, is_soon_back, has_woken });
    }
    let soon =
        by_itself || with_private_of(this, |p| !is_far(p.armed, p)) || is_brief && platform().arm_for_work();
    if this.area.local.armed.load(Ordering::Relaxed) != u32::from(soon) {
        set_soon(this, soon);
    }
}

/// What is known of the thread that runs, or is about to.
struct Runs {
    /// It is the core's event thread.
    is_events: bool,
    is_brief: bool,
    is_soon_back: bool,
    /// It has itself woken another one of this core's just now.
    has_woken: bool,
}

/// Is that so much later that a core on which threads come and go has come by its scheduler before?
#[inline]
fn is_far(at: u64, p: &Private) -> bool {
    at > p.since.saturating_add(SOON)
}

/// The earliest timer, unless the core comes by before that anyway.
fn timer_of_turn(p: &mut Private, is_soon_back: bool) -> u64 {
    match p.first_timer() {
        far if is_soon_back && is_far(far, p) => u64::MAX,
        timer => timer,
    }
}

#[inline(never)]
fn arm(this: &Core, external: bool, runs: Runs) {
    // The event thread comes by soon: whom it wakes goes elsewhere only if it then waits for another one.
    let may_spread = !runs.is_events;
    // It stays so while nobody waits: who asks looks at that, too.
    let mut crowds = this.crowds.load(Ordering::Relaxed);
    let mut wanted = with_private_of(this, |p| {
        let mut at = timer_of_turn(p, runs.is_soon_back);
        if external {
            at = at.min(p.polled.max(p.since) + looks_every(p));
        }
        p.may_spread_next = !may_spread && p.ready.len() > 0;
        if p.ready.len() > 0 {
            let mut ends = p.ready.turn_ends(p.since);
            // Since when who waits does so.
            let mut waits = p.since;
            let mut over = ends < at.min(p.armed) && (ends <= p.since || ends <= platform().now());
            if over && !runs.is_events && (runs.has_woken || p.spared.0 == p.since) && p.ready.may_spare() {
                let now = platform().now();
                waits = now;
                if runs.has_woken && (p.spared.0 != p.since || p.ready.len() == 1) {
                    // If it sleeps soon, too, as it did lately, a deadline would mostly be asked for in vain.
                    p.brief = runs.is_brief && now < p.since.saturating_add(SHORT);
                    p.spared = (p.since, now + if p.brief { SPARES_BRIEF } else { SPARES });
                }
                ends = p.spared.1;
                over = ends <= now;
            }
            if over {
                // It has to come by at once, which takes no deadline.
                core_local().pending.fetch_or(pending::NOTIFY, Ordering::Relaxed);
            } else {
                at = at.min(ends);
                let before = |after: u64| may_spread && waits + after < at.min(p.armed);
                let offered = p.offered.take().filter(|n| is_idle(*n));
                // What was in vain before is no reason to leave an offer.
                let after = if offered.is_some() { SPREAD_AFTER } else { p.spread_after };
                p.seen_idle = if before(after) { offered.or_else(one_idle) } else { None };
                // Those that are idle now may be none that the threads may run on.
                let is_one_of_use = p.seen_idle.is_some() && p.spread_after == SPREAD_AFTER;
                crowds = before(SPREAD_AFTER) && !is_one_of_use && p.since >= p.quiet_until;
                if p.seen_idle.is_some() {
                    at = waits + after;
                }
            }
        }
        // One that comes earlier does as well: it will see that it is early, and ask again.
        if at < p.armed {
            p.armed = at;
            Some(at)
        } else {
            None
        }
    });
    if this.crowds.load(Ordering::Relaxed) != crowds {
        this.crowds.store(crowds, Ordering::Relaxed);
        // Who became idle meanwhile has not seen that. Pairs with the fence in `tell_who_waits`.
        fence(Ordering::SeqCst);
        if crowds && let Some(idle) = one_idle() {
            let sooner = with_private_of(this, |p| {
                p.seen_idle = Some(idle);
                let at = p.since + p.spread_after;
                (at < p.armed).then(|| {
                    p.armed = at;
                    at
                })
            });
            wanted = sooner.or(wanted);
        }
    }
    if let Some(at) = wanted {
        platform().arm(at);
    }
}

/// The deadline has passed while the current thread ran its program. That is the timers' work if one of them has run out, and
/// else the scheduler's own.
pub fn on_deadline() {
    let this = this_core();
    count(&this.stats.deadlines, 1);
    with_private(|p| (p.armed, p.choosing, p.brief) = (u64::MAX, true, false));
    core_local().armed.store(0, Ordering::Relaxed);
    let now = platform().now();
    interruptible_at(this, now);
    take_mail();
    if with_private(|p| p.first_timer() <= now) {
        timer::expire(now);
        go_on_or_preempt(now);
    } else {
        books::within(Resource::Overhead, || go_on_or_preempt(now));
    }
}

fn go_on_or_preempt(now: u64) {
    look_for_events(now, true);
    if !may_stay(current()) {
        return preempt();
    }
    let over = with_private(|p| p.ready.is_turn_over(p.since, now));
    if over || waits_long(now) {
        let area = this_core().area;
        let all = area.used.load(Ordering::Relaxed) + area.others.load(Ordering::Relaxed);
        spread(over && (is_full(all) || current().computes.load(Ordering::Relaxed)), now);
    }
    if over {
        balance(now);
    }
    if over && with_private(|p| p.ready.len() > 0) {
        return preempt();
    }
    let me = current();
    let ran = with_private(|p| now.saturating_sub(p.since));
    if ran >= POLL_EVERY {
        me.computes.store(true, Ordering::Relaxed);
    }
    if ran >= SHORT {
        me.is_brief.store(false, Ordering::Relaxed);
    }
    chosen(this_core(), me);
}

/// Does somebody wait for the thread that runs, and not only as long as that one would take at most that runs shortly?
fn waits_long(now: u64) -> bool {
    with_private(|p| p.ready.len() > 0 && now.saturating_sub(p.since) >= SPREAD_AFTER)
}

/// Another core wants attention, or the turn of the thread that runs has ended already when somebody was woken.
pub fn on_notify() {
    count(&this_core().stats.interrupts, 1);
    books::within(Resource::Overhead, || {
        rcu::quiesce();
        let told = with_private(|p| {
            (p.choosing, p.brief) = (true, false);
            core::mem::replace(&mut p.told, false)
        });
        take_mail();
        let mut now = platform().now();
        interruptible_at(this_core(), now);
        if told {
            with_private(|p| p.told_at = now);
            look_for_events(now, true);
            now = platform().now();
        }
        if with_private(|p| p.may_spread_next) && waits_long(now) {
            spread(false, now);
        }
        if !may_stay(current()) || with_private(|p| p.ready.len() > 0 && now >= p.ready.turn_ends(p.since)) {
            preempt_at(now);
        } else {
            chosen(this_core(), current());
        }
    });
}

/// What interrupts a core that runs a program, and what the runtime looks at by itself where it works long.
const INTERRUPTS: u32 = pending::DEADLINE | pending::NOTIFY | pending::DEVICE;

/// See [`atoll_sync::breathe`].
fn breathe() {
    if core_local().pending.load(Ordering::Relaxed) & INTERRUPTS != 0 {
        take_a_breath();
    }
}

#[cold]
fn take_a_breath() {
    if !is_in_thread() {
        return;
    }
    let bits = core_local().pending.fetch_and(!INTERRUPTS, Ordering::SeqCst);
    books::within(Resource::Timer, || {
        if bits & pending::DEADLINE != 0 {
            on_deadline();
        }
        if bits & pending::DEVICE != 0 {
            platform().device_interrupt();
        }
        if bits & (pending::DEVICE | pending::NOTIFY) != 0 {
            // What has come from outside is the event thread's, as the caller may hold locks.
            look_for_events(platform().now(), true);
            on_notify();
        }
    });
}

/// See [`atoll_sync::relax`].
fn relax() {
    breathe();
    if is_in_thread() {
        yield_now();
    }
}

/// May what runs switch to another thread? Not while a core starts, nor what the scheduler itself does.
fn is_in_thread() -> bool {
    !core_local().current.load(Ordering::Relaxed).is_null() && with_private(|p| !p.choosing)
}

/// May a thread run on this core?
#[inline]
fn may_stay(t: ThreadRef) -> bool {
    !t.is_movable() || t.may_run_on(core_local().id())
}

/// Should a thread that is ready here run on another core: on which?
#[inline]
fn elsewhere(this: &Core, t: ThreadRef, now: u64) -> Option<usize> {
    if !may_stay(t) {
        return Some(choose_core(t));
    }
    if is_crowded(this) && t.is_movable() { better_core(t, now) } else { None }
}

/// A thread that is ready goes to another core. `me`: on whose stack this runs.
#[cold]
fn send_off(t: ThreadRef, me: Option<ThreadRef>, to: usize) {
    if me.is_none_or(|me| !core::ptr::eq(t, me)) {
        return migrate(t, to);
    }
    // Once another thread runs here, this one is saved: the event thread may always.
    with_private(|p| p.leaving = Some((t, to)));
    let events = this_core().event_thread.load(Ordering::Relaxed);
    // SAFETY: every core has one from its start on; threads are never freed.
    unpark(unsafe { &*events });
}

/// Is the core's processor crowded? Where classes divide the time, their parts say who goes where.
#[inline]
fn is_crowded(core: &Core) -> bool {
    core.area.others.load(Ordering::Relaxed) >= CROWDED && !core.divided.load(Ordering::Relaxed)
}

/// Has the core use for a thread of another one's? One that is crowded gets some if the other has no time left, and it has itself.
#[inline]
fn has_use_for(core: &Core, other: &Core) -> bool {
    let all = |core: &Core| core.area.used.load(Ordering::Relaxed) + core.area.others.load(Ordering::Relaxed);
    !is_crowded(core) || is_full(all(other)) && all(core) <= 1000 - ROOM
}

/// Has a processor no time left, of which so many thousandths are used?
#[inline]
fn is_full(all: u32) -> bool {
    all >= 1000 - ROOM / 2
}

/// One of some others whose processor is much less crowded than this core's and has room for what this core does, so that threads that
/// follow each other there all fit; nearly all: together on one core they sleep less often. It has room for what the thread itself has had
/// lately, too: one that has come here as there was no room has done nothing here yet, and would go back to wait there. Who computes has
/// its share here, and leaves it for a core that has nothing to do.
#[cold]
fn better_core(t: ThreadRef, now: u64) -> Option<usize> {
    let of = |core: &Core| (core.area.others.load(Ordering::Relaxed), core.area.used.load(Ordering::Relaxed));
    let (here, used) = of(this_core());
    let computes = t.computes.load(Ordering::Relaxed);
    let room = |n: &usize| {
        let (others, used) = of(core(*n));
        let better = others + CROWDED <= here && (!computes || has_nothing(*n));
        better.then(|| 1000u32.saturating_sub(others + used))
    };
    let own = with_private(|p| p.ready.part_of(t, now));
    let needed = (used * 3 / 4).max(own).clamp(ROOM, 1000 - ROOM);
    let fits =
        |n: &usize| crate::is_online(*n) && t.may_run_on(*n) && room(n).is_some_and(|room| room >= needed);
    some_others(MANY).filter(fits).max_by_key(|n| room(n))
}

/// So much of a processor's time is left at least where a thread goes from one that is crowded, thousandths.
const ROOM: u32 = 100;

/// The current thread goes to another core, if it may not run here any more. Where it may switch.
pub fn move_if_need_be() {
    let me = current();
    if !may_stay(me) {
        count(&me.switches[0], 1);
        make_ready_again(me, Why::Preempted);
        schedule(me);
    }
}

/// Where a thread may run, or whose it is, has changed: its core looks at that before it runs the program again.
pub fn visit(t: ThreadRef) {
    // Who becomes ready is looked at by the core that takes it.
    if !t.is_parked() {
        visit_core(t.core());
    }
}

/// Says how a thread is scheduled among those of its class, from now on.
pub fn set_policy(t: ThreadRef, policy: Policy) {
    if t.policy() == policy {
        return;
    }
    t.set_policy(policy);
    // Who sleeps, or did not begin yet, comes into its line by that when it is woken.
    if !matches!(t.state.load(Ordering::SeqCst) & state::MASK, state::READY | state::RUNNING) {
        return;
    }
    let on = t.core();
    if on == core_local().id() {
        reorder(t);
    } else {
        core(on).send(Mail::Reorder(t));
        interrupt(on);
    }
}

/// On the core of a thread that may stand in the line, or run: by the policy that it has now.
fn reorder(t: ThreadRef) {
    let this = this_core();
    let found = with_private_of(this, |p| p.ready.take(p.since, |other| core::ptr::eq(other, t)).is_some());
    if found {
        push_woken(t);
    } else {
        // Who runs here may have another turn now.
        with_private_of(this, |p| p.ready.look_at_turn());
    }
    rearm(this);
}

/// The same of all threads.
pub(crate) fn visit_all() {
    // One that is not used has nothing to look at.
    (0..all_cores().len()).filter(|n| !core(*n).has_left()).for_each(visit_core);
}

fn visit_core(n: usize) {
    if n == core_local().id() {
        // Before the program goes on, if one runs here; else it is looked at by the next switch anyway.
        core_local().pending.fetch_or(pending::NOTIFY, Ordering::Relaxed);
    } else {
        interrupt(n);
    }
}

fn preempt() {
    preempt_at(platform().now());
}

/// The same if the time is known.
fn preempt_at(now: u64) {
    let me = current();
    count(&me.switches[1], 1);
    make_ready_again(me, Why::Preempted);
    schedule_at(me, now);
}

/// The current thread is ready when it is switched from.
fn make_ready_again(me: ThreadRef, why: Why) {
    // RUNNING is zero: only the token can be set besides, and it stays.
    me.state.fetch_or(state::READY, Ordering::AcqRel);
    with_private(|p| p.again = Some(why));
}

/// Lets other ready threads run first.
pub fn yield_now() {
    let me = current();
    let now = platform().now();
    take_mail();
    let looked = look_for_events(now, false);
    if with_private(|p| p.ready.len() == 0) {
        return;
    }
    count(&me.switches[0], 1);
    make_ready_again(me, Why::Yields);
    schedule_at(me, if looked { platform().now() } else { now });
}

/// Sleeps until unparked; returns at once if that has happened since the last
/// sleep. May return without reason: the caller looks at what it waits for.
pub fn park() {
    let me = current();
    if me.state.compare_exchange(state::RUNNING, state::PARKED, Ordering::AcqRel, Ordering::Acquire).is_err()
    {
        // A token was there; take it.
        me.state.fetch_and(!state::TOKEN, Ordering::AcqRel);
        return;
    }
    count(&me.switches[0], 1);
    schedule(me);
}

/// Like [`park`], but no longer than until `deadline`.
pub fn park_until(deadline: u64) {
    let me = current();
    let on = core_local().id();
    let key = timer::insert(deadline, TimerEntry::Thread(me));
    me.is_timed.store(true, Ordering::Relaxed);
    park();
    me.is_timed.store(false, Ordering::Relaxed);
    timer::cancel(on, key);
}

/// Lets a new thread begin. Until then nothing wakes it, not even a stale
/// reference to the thread whose memory it took over.
pub fn start(t: ThreadRef) {
    t.state.store(state::PARKED, Ordering::Release);
    unpark(t);
}

/// Wakes a thread, or makes its next [`park`] return at once.
pub fn unpark(t: ThreadRef) {
    let mut now = t.state.load(Ordering::Relaxed);
    loop {
        let new = match now & state::MASK {
            state::PARKED => state::READY,
            state::DEAD => return,
            _ => now | state::TOKEN,
        };
        // SeqCst even if nothing changes: what we changed before is seen by who takes the token.
        match t.state.compare_exchange_weak(now, new, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => break,
            Err(seen) => now = seen,
        }
    }
    if now & state::MASK == state::PARKED {
        this_core().meter.woke(t);
        trace::note(this_core(), event::WAKE, Some(t), None);
        enqueue(t);
    }
}

/// Puts a thread that has just become ready into its core's queue.
fn enqueue(t: ThreadRef) {
    let on = t.core();
    if on == core_local().id() {
        push_woken(t);
        // The thread that runs here now has competition.
        return rearm_woken();
    }
    if core(on).has_left() && t.is_movable() {
        return enqueue_elsewhere(t);
    }
    // Pairs with the one in `sleep`: who has been left there was saved before.
    if core(on).apart.load(Ordering::Acquire) {
        let pulls = pulls(t);
        let now = platform().now();
        with_private(|p| p.woke_at = now);
        if pulls {
            t.core.store(core_local().id() as u32, Ordering::Relaxed);
            count(&this_core().stats.migrations, 1);
            push_woken(t);
            return rearm_woken();
        }
    }
    post(t, on);
}

/// A thread is woken whose core sleeps. Is it to run here? That is sooner than its core would wake if what runs here is about to sleep,
/// as it was the last times, or to end, or is the runtime itself, and nobody else waits.
fn pulls(t: ThreadRef) -> bool {
    let this = this_core();
    let me = core_local().current.load(Ordering::Relaxed).cast::<Thread>();
    let (alone, ends) = with_private_of(this, |p| (p.ready.len() == 0 && !p.ready.is_divided(), p.ends));
    let is_free = || {
        ends || !this.busy.load(Ordering::Relaxed)
            || core::ptr::eq(me, this.event_thread.load(Ordering::Relaxed))
            // SAFETY: threads are never freed.
            || unsafe { me.as_ref() }.is_some_and(|me| me.sleeps_soon.load(Ordering::Relaxed) >= HABIT)
    };
    alone
        && t.is_movable()
        && t.may_run_on(core_local().id())
        && t.timers() == 0
        && !t.is_timed.load(Ordering::Relaxed)
        && !t.computes.load(Ordering::Relaxed)
        && this.is_online()
        && !is_crowded(this)
        && is_free()
}

/// The current thread is about to end: whom it wakes from here on can have its core.
pub fn ends_soon() {
    with_private(|p| p.ends = true);
}

/// A thread is woken whose core is not used any more: nothing of it is there.
#[cold]
fn enqueue_elsewhere(t: ThreadRef) {
    let to = choose_core(t);
    t.core.store(to as u32, Ordering::Relaxed);
    if to == core_local().id() {
        push_woken(t);
        rearm_woken();
    } else {
        post(t, to);
    }
}

/// Puts a ready thread into another core's inbox.
fn post(t: ThreadRef, on: usize) {
    let target = core(on);
    target.inbox.push(core_local().id(), t);
    if with_private(|p| p.ready.is_divided()) && target.class_running.load(Ordering::Relaxed) != t.class() {
        // Its turn may be before the deadline that the core waits for.
        interrupt(on);
    } else {
        poke(on);
    }
}

/// Has a core look at its inbox at once.
fn interrupt(on: usize) {
    fence(Ordering::SeqCst);
    match platform().control().cores[on].local.state.load(Ordering::SeqCst) {
        core_run::PARKED => ring(on),
        core_run::POLLING => {}
        _ => platform().interrupt(on),
    }
}

/// Wakes a core that sleeps.
fn ring(on: usize) {
    core(on).rung.store(platform().now(), Ordering::Relaxed);
    platform().notify(on);
}

/// Sees to it that a core looks at its inbox soon.
pub(crate) fn poke(on: usize) {
    fence(Ordering::SeqCst);
    let local = &platform().control().cores[on].local;
    match local.state.load(Ordering::SeqCst) {
        core_run::PARKED => ring(on),
        core_run::POLLING => {}
        // It runs, with no deadline that would bring it to its scheduler. Even
        // if it is in the runtime now it may be past its last look at the inbox.
        _ if local.armed.load(Ordering::Relaxed) == 0 => platform().interrupt(on),
        _ => {}
    }
}

/// Ends the current thread.
pub fn exit() -> ! {
    let me = current();
    forget_live(me);
    me.state.store(state::DEAD, Ordering::Release);
    with_private(|p| p.finished = Some(me));
    let now = platform().now();
    // Its last message ends with it.
    let this = this_core();
    this.meter.suspend(now);
    let Some(next) = next_thread(this, Some(me), now) else { leave_to_rest(0) };
    assert!(!core::ptr::eq(next, me), "a dead thread was woken");
    switch_from_nowhere(next)
}

/// The core with the fewest threads to run, of those that `t` may run on. This one, if it has one more at most: to wake another
/// one takes longer than many a thread lasts, and who waits too long here goes to an idle one yet (`spread`).
///
/// In a large cell it is one of this core and some others: where one is looked for so the next time others are looked at, that is
/// nearly as good (Mitzenmacher, "The power of two choices in randomized load balancing").
pub(crate) fn choose_core(t: &Thread) -> usize {
    let me = core_local().id();
    let best = |cores: &mut dyn Iterator<Item = usize>| {
        let of = |n: &usize| weight_of_core(*n) + u32::from(*n != me) + u32::from(is_crowded(core(*n)));
        cores.filter(|n| t.may_run_on(*n)).min_by_key(|n| (of(n), *n != me))
    };
    let some = best(&mut some_others(MANY).chain([me]));
    some.or_else(|| best(&mut (0..all_cores().len()))).unwrap_or(me)
}

/// Threads of a core that have something to do, as far as one can see from here.
fn weight_of_core(n: usize) -> u32 {
    let c = core(n);
    c.load.load(Ordering::Relaxed) + u32::from(c.busy.load(Ordering::Relaxed))
}

/// An idle core asks the busiest of some others for a thread.
fn ask_for_work() {
    let this = this_core();
    if all_cores().len() < 2 || this.wants_work.load(Ordering::Relaxed) {
        return;
    }
    let me = core_local().id();
    let busiest = some_others(A_FEW).max_by_key(|n| core(*n).load.load(Ordering::Relaxed)).unwrap_or(me);
    if core(busiest).load.load(Ordering::Relaxed) >= 2 && has_use_for(this, core(busiest)) {
        ask(this, busiest);
        poke(busiest);
    }
}

/// Asks another core for a thread.
fn ask(this: &Core, other: usize) {
    this.wants_work.store(true, Ordering::Relaxed);
    with_private_of(this, |p| p.asked = other);
    core(other).send(Mail::WantWork(core_local().id()));
}

/// A core has nothing to do, and is about to sleep. Where a thread waits behind one that runs, which was so while this core still had
/// something to do, nobody would look for a core for it before the turn is over. Value: when it was done, as `start` if there was
/// nothing.
fn tell_who_waits(this: &Core, start: u64) -> u64 {
    if all_cores().len() < 2 || is_crowded(this) {
        return start;
    }
    let (asked, again) = with_private_of(this, |p| (p.asked, p.asks_again));
    if start < again && !this.was_given.swap(false, Ordering::Relaxed) {
        return start;
    }
    // It was not busy any more before it looks.
    fence(Ordering::SeqCst);
    let crowds =
        |n: usize| core(n).crowds.load(Ordering::Relaxed) && core(n).load.load(Ordering::Relaxed) > 0;
    // One that was asked has not come by its scheduler yet. Nor is another one of use that somebody else asked meanwhile.
    let asked = this.wants_work.load(Ordering::Relaxed).then_some(asked);
    let mut some = asked.into_iter().chain(some_others(A_FEW));
    let is_ours = |n: &usize| crowds(*n) && core(*n).crowds.swap(false, Ordering::Relaxed);
    let Some(n) = some.find(is_ours) else { return start };
    if asked != Some(n) {
        ask(this, n);
    }
    interrupt(n);
    let now = platform().now();
    with_private_of(this, |p| p.asks_again = now + ASK_EVERY);
    let told = begin_record(this, now);
    this.meter.found_nothing(told, now);
    this.meter.worked(told);
    now
}

/// Sends a ready thread to a core that has none. One that waits alone is sent if it waits for long.
fn give_work(to: usize) {
    if with_private(|p| p.ready.len()) >= 2
        && let Some(t) = pop_movable(to)
    {
        migrate(t, to);
        return;
    }
    with_private(|p| {
        p.may_spread_next |= p.ready.len() > 0;
        p.offered = Some(to).filter(|_| p.ready.len() > 0);
    });
    core(to).wants_work.store(false, Ordering::Relaxed);
}

/// One of some other cores that has nothing to do.
fn one_idle() -> Option<usize> {
    some_others(A_FEW).find(|n| is_idle(*n))
}

/// And does nobody else want its processor?
fn is_idle(n: usize) -> bool {
    has_nothing(n) && !is_crowded(core(n))
}

fn has_nothing(n: usize) -> bool {
    crate::is_online(n) && !core(n).busy.load(Ordering::Relaxed) && core(n).load.load(Ordering::Relaxed) == 0
}

/// Others wait while a thread runs on: each idle core that is found gets one of them. `over`: a whole turn long, so one that is crowded
/// is better than none.
fn spread(over: bool, now: u64) {
    let (mut found, mut went) = (false, false);
    let waited = now.saturating_sub(with_private(|p| p.since));
    let patient = |t: ThreadRef| match t.spread_in_vain.load(Ordering::Relaxed) {
        0 => false,
        _ if over => false,
        vain => waited < SPREAD_AFTER << vain,
    };
    let seen = with_private(|p| p.offered.take().or(p.seen_idle.take()));
    let others = some_others(MANY).filter(|n| Some(*n) != seen);
    for to in seen.into_iter().chain(others).filter(|n| if over { has_nothing(*n) } else { is_idle(*n) }) {
        found = true;
        let Some(t) = pop_movable_of(to, |t| !patient(t)) else { continue };
        t.was_spread.store(true, Ordering::Relaxed);
        migrate(t, to);
        went = true;
    }
    if found {
        with_private(|p| {
            p.spread_after = if went { SPREAD_AFTER } else { (p.spread_after * 2).min(SPREAD_SELDOM) };
            p.quiet_until = if went { 0 } else { p.since + SPREAD_SELDOM };
        });
    }
}

/// Others wait at the end of a turn, and another core has fewer threads: one of these goes there. So threads that always have
/// something to do take turns at being alone on a core, where they are not as many on each. Between classes
/// `look_at_parts` does that.
fn balance(now: u64) {
    let this = this_core();
    let me = core_local().id();
    let due = with_private_of(this, |p| {
        let due = !p.ready.is_divided() && now.saturating_sub(p.balanced) >= BALANCE_EVERY;
        if due {
            p.balanced = now;
        }
        due
    });
    // With the one that runs.
    let mine = this.load.load(Ordering::Relaxed) + 1;
    if due
        && let Some(to) = (0..all_cores().len())
            .filter(|n| *n != me && crate::is_online(*n))
            .min_by_key(|n| weight_of_core(*n))
        && weight_of_core(to) < mine
        && let Some(t) = pop_movable(to)
    {
        migrate(t, to);
    }
}

/// Sees to it that each class gets its share of all cores together.
#[cold]
fn look_at_parts(now: u64) {
    let (me, cores) = (core_local().id(), all_cores().len());
    let loads = |n: usize, class: u32| {
        let other = core(n);
        if n == me || other.load.load(Ordering::Relaxed) > 0 {
            return other.class_loads[class as usize].load(Ordering::Relaxed);
        }
        // It may not have come to its scheduler for long: one thread runs there, or none.
        let runs = other.busy.load(Ordering::Relaxed) && other.class_running.load(Ordering::Relaxed) == class;
        if runs { ONE } else { 0 }
    };
    let note = |class: u32, load: u32| core(me).class_loads[class as usize].store(load, Ordering::Relaxed);
    let better = with_private(|Private { ready, messages, .. }| {
        ready.look_at_parts(now, (me, cores), loads, |class| messages.waits(class), note)
    });
    if let Some((to, class)) = better
        && let Some(t) = pop_movable_of(to, |t| t.class() == class)
    {
        migrate(t, to);
    }
}

/// Takes a ready thread that may run on another core.
fn pop_movable(to: usize) -> Option<ThreadRef> {
    pop_movable_of(to, |_| true)
}

/// The same of those for which `wanted` holds.
fn pop_movable_of(to: usize, wanted: impl Fn(ThreadRef) -> bool) -> Option<ThreadRef> {
    let me = core_local().current.load(Ordering::Relaxed).cast::<Thread>();
    // Not the thread on whose stack this runs: it is not saved yet.
    let may = |t: ThreadRef| t.is_movable() && t.may_run_on(to) && !core::ptr::eq(t, me) && wanted(t);
    let (t, len) = with_private(|p| (p.ready.take(p.since, may), p.ready.len()));
    note_load(this_core(), len);
    t
}

fn migrate(t: ThreadRef, to: usize) {
    let live = with_private(|p| core::ptr::eq(p.live, t));
    if live {
        flush_live();
    }
    count(&this_core().stats.migrations, 1);
    let due = timer::go_with(t, to);
    t.core.store(to as u32, Ordering::Relaxed);
    core(to).was_given.store(true, Ordering::Relaxed);
    post(t, to);
    if due <= with_private(|p| p.since).saturating_add(SOON) {
        // Before the deadline that the core may wait for.
        interrupt(to);
    }
}

/// Takes this core, and the current thread with it, to another space. A
/// program's thread belongs there from then on; its extended registers are lost.
pub fn move_to_space(space: u32) {
    let me = current();
    enter_space(me, space);
    if !me.is_program() {
        me.set_space(ANY_SPACE);
    }
}

fn enter_space(me: ThreadRef, space: u32) {
    forget_live(me);
    flush_live();
    me.set_space(space);
    // SAFETY: `leave` moves to another stack before it loads this one again.
    unsafe { arch::atoll_save_and_call(me.context.get(), leave, me as *const Thread as usize) };
}

/// Runs `f` in a space, also if it waits in between. For a thread of the runtime; the caller keeps the space from being destroyed.
pub fn in_space<R>(space: u32, f: impl FnOnce() -> R) -> R {
    let me = current();
    assert!(!me.is_program(), "a program's thread stays in its space");
    enter_space(me, space);
    let done = f();
    me.set_space(ANY_SPACE);
    done
}

/// Sees to it that no core stays in a space that is to be destroyed; returns when none does.
pub fn end_space(space: u32) {
    loop {
        let control = platform().control();
        let mut busy = false;
        for n in 0..all_cores().len() {
            if control.cores[n].local.space.load(Ordering::SeqCst) == space {
                busy = true;
                core(n).send(Mail::LeaveSpace(space));
                poke(n);
            }
        }
        if !busy {
            return;
        }
        park_until(platform().now() + 200_000);
    }
}
