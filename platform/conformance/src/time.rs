//! The clock, sleep, and deadlines.

use core::sync::atomic::Ordering;

use atoll_abi::core_local::{core_local, pending};
use atoll_abi::platform::{Events, platform};

use crate::{Machine, wait};

const MS: u64 = 1_000_000;

/// Is a deadline's bit there? Takes it.
fn taken() -> bool {
    core_local().pending.fetch_and(!pending::DEADLINE, Ordering::SeqCst) & pending::DEADLINE != 0
}

pub(crate) fn run(machine: &dyn Machine) {
    let p = platform();
    let mut last = p.now();
    let forward = (0..10_000).all(|_| {
        let now = p.now();
        core::mem::replace(&mut last, now) <= now
    });
    machine.say(format_args!("time: never backward {forward}"));
    let apart = p.realtime().wrapping_sub(p.now());
    wait(|| p.now() > last + 5 * MS);
    let later = p.realtime().wrapping_sub(p.now());
    // Two clocks that are read one after the other, and that somebody may set by a little.
    machine.say(format_args!("time: realtime keeps its distance {}", apart.abs_diff(later) < 1000 * MS));
    machine.say(format_args!("time: after 2020 {}", p.realtime() > 1_577_836_800_000_000_000));

    let mut events = Events::new();
    for past in [0, 1, p.now() - 1] {
        p.park(Some(past), &mut events);
    }
    machine.say(format_args!("park: until what is past returns, {} events", events.len()));
    p.notify(core_local().id());
    p.park(None, &mut events);
    machine.say(format_args!("park: notified before returns, {} events", events.len()));
    let until = p.now() + 3 * MS;
    let slept = wait(|| {
        p.park(Some(until), &mut Events::new());
        p.now() >= until
    });
    machine.say(format_args!("park: until a deadline {slept}"));

    // The mask is set in the runtime: what is due becomes a pending bit.
    taken();
    p.arm(p.now() + 2 * MS);
    machine.say(format_args!("arm: due {}", wait(taken)));
    p.arm(0);
    machine.say(format_args!("arm: past {}", wait(taken)));
    p.arm(p.now() + 3_600_000 * MS);
    p.arm(p.now() + MS);
    machine.say(format_args!("arm: the later one counts {}", wait(taken)));
    p.arm(p.now() + 1000 * MS);
    p.disarm();
    let until = p.now() + 5 * MS;
    wait(|| p.now() > until);
    machine.say(format_args!("disarm: still comes {}", taken()));
}
