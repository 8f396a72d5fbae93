//! Messages that a core's event thread runs: calls that are put off, timers that have run out, and work for another core
//! (Omni-kernel, sections 2.1 and 3.1).
//!
//! One mechanism serves all three. A message carries the activity of whoever sent it, and what that sends in turn carries it
//! on; the time that it takes is that activity's. On each core messages wait in queues by class, among which the scheduler
//! of `thread` chooses; what is the cell's own goes first. Who is full at the gate before a resource is held back, and so is a class
//! whose turn it is not: then it waits for the core's time as threads do (`ready.rs`). Messages run one after the
//! other, each to its end, in a thread that may take locks.
//!
//! A message may have [`Labels`], which say which of the cores it goes to: one that depends on others goes where those are,
//! which keeps their order, and one that works on what others worked on goes where those ran lately, which keeps caches warm.

use crate::activity::Activity;
use crate::core_state::{Private, core, this_core, with_private};
use crate::scheduler::{poke, wake_event_thread};
use crate::thread::current;
use crate::{books, gate};
use atoll_abi::core_local::core_local;
use atoll_abi::grid::{INFRASTRUCTURE, Parameters, ROOT, Resource, SchedulerKind};
use atoll_abi::{assert_accounted, platform};
use atoll_grid::affinity::Affinity;
use atoll_grid::message::{Header, Message};
use atoll_grid::scheduler::make;
use atoll_sync::SetOnce;
use core::sync::atomic::Ordering;

/// Messages of which a core keeps the memory.
pub(crate) const POOL: usize = 8;

/// Places of labels, for all cores.
const PLACES: usize = 1024;
/// A label that was not used for so long may move to another core, ns.
const EXPIRY: u64 = 8_000_000;

/// Weight of what is the cell's own, so that it waits for nobody.
const WEIGHT_FIRST: u32 = 1_000_000;

static AFFINITY: SetOnce<Affinity> = SetOnce::new();

/// Which core a message goes to, where it matters. Any numbers, addresses for example; 0: it doesn't.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Labels {
    /// Messages of a class with the same label are run in the order in which a thread has sent them, and never two at once.
    pub dependency: u64,
    /// Messages with the same label are best run by the same core. When none was sent for 8 ms, that can be another one.
    pub affinity: u64,
}

impl Labels {
    /// No matter.
    pub const NONE: Labels = Labels { dependency: 0, affinity: 0 };

    /// Both: messages work on the thing at this address, one after the other.
    pub fn of<T: ?Sized>(thing: *const T) -> Labels {
        let label = thing.addr() as u64;
        Labels { dependency: label, affinity: label }
    }
}

/// Before there are messages.
pub(crate) fn init() {
    // Once in a cell's life; a second time changes nothing.
    let _ = AFFINITY.set(Affinity::new(PLACES, EXPIRY));
}

/// Has the event thread of core `to`, or of the core that the labels say, run `f`, for the activity that this is called for, whose
/// record of `resource` gets the time. What a thread sends to one core for one class is run in the order it was sent in. A
/// closure that is larger than a message has room for is put into a box by whoever sends it, and doesn't compile otherwise.
pub fn send(to: usize, labels: Labels, resource: Resource, f: impl FnOnce() + Send + 'static) {
    send_as(for_whom(), false, to, labels, resource, f);
}

/// The same for any activity.
pub fn send_for(
    activity: Activity,
    to: usize,
    labels: Labels,
    resource: Resource,
    f: impl FnOnce() + Send + 'static,
) {
    send_as(activity, false, to, labels, resource, f);
}

/// The same past all gates, and before all classes.
pub(crate) fn send_past(
    activity: Activity,
    to: usize,
    labels: Labels,
    resource: Resource,
    f: impl FnOnce() + Send + 'static,
) {
    send_as(activity, true, to, labels, resource, f);
}

fn send_as(
    activity: Activity,
    past: bool,
    to: usize,
    labels: Labels,
    resource: Resource,
    f: impl FnOnce() + Send + 'static,
) {
    let now = platform().now();
    let near = AFFINITY.near(labels.affinity, to, now);
    // Unless what it depends on is there: then that is run there first.
    let near = if crate::is_online(near) { near } else { core_local().id() };
    let to = AFFINITY.send(labels.dependency, near, now);
    let message = message_for(activity, past, labels, resource, f);
    if to != core_local().id() {
        core(to).messages.push(message);
        return poke(to);
    }
    // What this thread has sent here from another core is in the queue already: it came before the thread (`take_mail`).
    queue(message, now);
    wake_event_thread();
}

/// A message for the activity that this is called for.
pub(crate) fn message(resource: Resource, f: impl FnOnce() + Send + 'static) -> Message {
    message_for(for_whom(), false, Labels::NONE, resource, f)
}

/// `past`: it goes before those of all classes, and past all gates, as what is the cell's own does anyway.
fn message_for(
    activity: Activity,
    past: bool,
    labels: Labels,
    resource: Resource,
    f: impl FnOnce() + Send + 'static,
) -> Message {
    let Labels { dependency, affinity } = labels;
    let queue = if past || activity.number() == ROOT { INFRASTRUCTURE } else { activity.class() };
    let header = Header { dependency, affinity, cost: 0, activity: queue, resource };
    with_private(|p| {
        Message::new(&mut p.pool, header, move || {
            books::serve(&activity, resource, f);
        })
    })
}

/// Whom the event thread works for while it runs a message, else the running thread's activity.
pub fn for_whom() -> Activity {
    Activity::hold(whose())
}

/// The same, its number.
#[inline]
pub(crate) fn whose() -> u32 {
    let (me, this) = (current(), this_core());
    match this.meter.serving() {
        Some(who) if core::ptr::eq(this.event_thread.load(Ordering::Relaxed), me) => who,
        _ => me.activity(),
    }
}

/// Puts a message into this core's queues.
pub(crate) fn queue(message: Message, now: u64) {
    with_private(|p| p.messages.push(message, now));
}

/// Runs the next message of this core's, if there is one that may run. For its event thread.
pub(crate) fn run_next() -> bool {
    assert_accounted("a message");
    let now = platform().now();
    let Some(message) = with_private(|Private { messages, ready, .. }| {
        // Whoever waits at a gate has nothing to do here.
        messages.next_if(now, |header| {
            header.activity == INFRASTRUCTURE || may_run(header) && ready.may_serve(header.activity, now)
        })
    }) else {
        return false;
    };
    let Header { activity: class, dependency, .. } = *message.header();
    let spent = message.run();
    AFFINITY.done(dependency);
    let took = this_core().meter.served_last();
    with_private(|p| {
        p.pool.put(spent);
        p.messages.done(class, took.max(1), now + took);
    });
    true
}

/// May a message of a class run, as far as the gate before its resource goes? If its class is full there, this core is asked again when it
/// no longer is ([`release`]).
fn may_run(header: &Header) -> bool {
    !gate::any() || !gate::holds_back(header.resource, header.activity)
}

/// A gate has opened: what this core has held back may run.
pub(crate) fn release() {
    let now = platform().now();
    with_private(|p| p.messages.release(now, may_run));
    wake_event_thread();
}

/// It is the turn of a class of which this core has held messages back.
pub(crate) fn go_on(class: u32) {
    let now = platform().now();
    with_private(|p| p.messages.release(now, |header| header.activity == class && may_run(header)));
    wake_event_thread();
}

/// Has a core do so.
pub(crate) fn release_on(to: usize) {
    if to == core_local().id() {
        return release();
    }
    core(to).releases.store(true, Ordering::Release);
    poke(to);
}

/// This core's messages are ordered by this scheduler from now on, too, and classes get their shares of them.
pub(crate) fn divide(scheduler: SchedulerKind, classes: &[(u32, Parameters)]) {
    // Reservations and limits are of the core's time, which messages are charged with.
    let alike = |p: &Parameters| Parameters { reservation: 0, limit: 0, ..*p };
    let first = Parameters { weight: WEIGHT_FIRST, priority: i32::MAX, deadline: 1, ..Parameters::default() };
    let (made, now) = (make(scheduler), platform().now());
    with_private(|p| {
        p.messages.set_scheduler(made, now);
        p.messages.configure(INFRASTRUCTURE, &first);
        classes.iter().for_each(|(class, of)| p.messages.configure(*class, &alike(of)));
    });
    // Whoever waited for a turn asks for another one.
    release();
}
