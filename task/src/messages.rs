//! Messages that a core's event thread runs: calls that are put off, timers that have run out, and work for another core
//! (Omni-kernel, sections 2.1 and 3.1).
//!
//! One mechanism serves all three. A message carries the activity of whoever sent it, and what that sends in turn carries it
//! on; the time that it takes is that activity's. On each core messages wait in queues by class, among which a fair scheduler
//! chooses. They run one after the other, each to its end, in a thread that may take locks.

use crate::activity::Activity;
use crate::books;
use crate::core_state::{core, this_core, with_private};
use crate::scheduler::{poke, wake_event_thread};
use crate::thread::{Thread, current};
use atoll_abi::core_local::core_local;
use atoll_abi::grid::{Parameters, Resource};
use atoll_abi::{assert_accounted, platform};
use atoll_grid::message::{Header, Message};
use core::sync::atomic::Ordering;

/// Messages of which a core keeps the memory.
pub(crate) const POOL: usize = 8;

/// Has the event thread of core `to` run `f`, for the activity that this is called for, whose record of `resource` gets the
/// time. What one core sends to another for one class is run in the order it was sent in. A closure that is larger than a message has
/// room for is put into a box by whoever sends it, and doesn't compile otherwise.
pub fn send(to: usize, resource: Resource, f: impl FnOnce() + Send + 'static) {
    let message = message(resource, f);
    if to == core_local().id() {
        queue(message, platform().now());
        wake_event_thread();
    } else {
        core(to).messages.push(message);
        poke(to);
    }
}

/// A message for the activity that this is called for.
pub(crate) fn message(resource: Resource, f: impl FnOnce() + Send + 'static) -> Message {
    let activity = for_whom();
    let header = Header { dependency: 0, affinity: 0, cost: 0, activity: activity.class(), resource };
    with_private(|p| {
        Message::new(&mut p.pool, header, move || {
            books::serve(&activity, resource, f);
        })
    })
}

/// Whom the event thread works for while it runs a message, else the running thread's activity.
pub(crate) fn for_whom() -> Activity {
    Activity::hold(whose())
}

/// The same, its number.
pub(crate) fn whose() -> u32 {
    let me: *const Thread = current();
    let this = this_core();
    let serving =
        this.meter.serving().filter(|_| this.event_thread.load(Ordering::Relaxed).cast_const() == me);
    serving.unwrap_or_else(|| current().activity())
}

/// Puts a message into this core's queues.
pub(crate) fn queue(message: Message, now: u64) {
    with_private(|p| p.messages.push(message, now));
}

/// Runs the next message of this core's, if there is one. For its event thread.
pub(crate) fn run_next() {
    assert_accounted("a message");
    let now = platform().now();
    let Some(message) = with_private(|p| p.messages.next(now)) else { return };
    let class = message.header().activity;
    let spent = message.run();
    let took = this_core().meter.served_last();
    with_private(|p| {
        p.pool.put(spent);
        p.messages.done(class, took.max(1), now + took);
    });
}

/// Classes get their shares of this core's messages, too.
pub(crate) fn divide(classes: &[(u32, Parameters)]) {
    let alike = |p: &Parameters| Parameters { weight: p.weight, ..Parameters::default() };
    with_private(|p| classes.iter().for_each(|(class, of)| p.messages.configure(*class, &alike(of))));
}
