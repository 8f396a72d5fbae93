//! What a message costs: `cargo bench -p atoll-grid --bench message`. A line each: ns at best, ns in the middle, what.

use std::hint::{black_box, spin_loop};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use atoll_abi::grid::{Parameters, Resource, SchedulerKind};
use atoll_grid::affinity::Affinity;
use atoll_grid::inbox::Inbox;
use atoll_grid::message::{Header, Message, Pool};
use atoll_grid::queue::Queues;

const SECOND: u64 = 1_000_000_000;
/// Messages of a round: few enough for some of the rounds to have the processor for themselves.
const ROUND: u64 = 500;
/// How long each is measured, ms.
const TIME: u128 = 500;

fn measure(name: &str, f: impl FnMut(u64)) {
    measure_rounds(name, ROUND, f);
}

fn measure_rounds(name: &str, round: u64, mut f: impl FnMut(u64)) {
    let (start, mut rounds) = (Instant::now(), Vec::new());
    while start.elapsed().as_millis() < TIME {
        let begun = Instant::now();
        (0..round).for_each(&mut f);
        rounds.push(begun.elapsed().as_nanos() as f64 / round as f64);
    }
    rounds.sort_by(f64::total_cmp);
    println!("{:.1} {:.1} {name}", rounds[0], rounds[rounds.len() / 2]);
}

fn queues() -> Queues {
    let mut queues = Queues::new(SchedulerKind::Wfq, 1, 0);
    for activity in 0..3 {
        queues.configure(activity, &Parameters { weight: 10 + activity, ..Parameters::default() });
    }
    queues
}

/// A message that counts itself, by a counter with references.
fn message(pool: &mut Pool, done: &Arc<AtomicU64>, activity: u32) -> Message {
    let done = done.clone();
    let header = Header { dependency: 0, affinity: 0, activity, resource: Resource::Pipe, cost: 0 };
    Message::new(pool, header, move || {
        done.fetch_add(1, Ordering::Release);
    })
}

/// Runs the message whose turn it is.
fn run_next(queues: &mut Queues, pool: &mut Pool, now: u64) -> bool {
    let Some(m) = queues.next(now) else { return false };
    let activity = m.header().activity;
    pool.put(m.run());
    queues.done(activity, 1000, now);
    true
}

fn main() {
    let done = Arc::new(AtomicU64::new(0));
    let mut pool = Pool::new(64);
    measure("made and run, asking nobody", |_| {
        let m = message(&mut pool, &done, 0);
        pool.put(m.run());
    });
    let (mut all, mut now) = (queues(), 0);
    measure("in place", |_| {
        now += 1000;
        // Nothing is there to be waited for, so it is only asked, done and counted.
        assert!(all.may_run(1, now));
        black_box(&done).fetch_add(1, Ordering::Release);
        all.done(1, 900, now);
    });
    measure("queued on the same core", |n| {
        now += 1000;
        all.push(message(&mut pool, &done, (n % 3) as u32), now);
        run_next(&mut all, &mut pool, now);
    });
    let inbox = Inbox::default();
    measure("queued on the same core, by its inbox", |n| {
        now += 1000;
        inbox.push(message(&mut pool, &done, (n % 3) as u32));
        for m in inbox.take() {
            all.push(m, now);
        }
        run_next(&mut all, &mut pool, now);
    });
    let affinity = Affinity::new(1024, SECOND);
    measure("a dependency label sent and done", |n| {
        affinity.send(1 + n % 5, 0, now);
        affinity.done(1 + n % 5);
    });
    measure("an affinity label", |n| {
        affinity.near(1 + n % 5, 0, now);
    });
    (0..30).for_each(|n| all.push(message(&mut pool, &done, n % 3), now));
    measure("queued on the same core, behind ten of each activity", |n| {
        now += 1000;
        all.push(message(&mut pool, &done, (n % 3) as u32), now);
        run_next(&mut all, &mut pool, now);
    });
    across();
}

/// To another core that polls, one after the other: sent, taken, queued, run there, and seen to be done.
fn across() {
    let (stop, there, run) = (AtomicU64::new(0), Inbox::default(), Arc::new(AtomicU64::new(0)));
    std::thread::scope(|s| {
        s.spawn(|| {
            let (mut queues, mut pool) = (queues(), Pool::new(64));
            while stop.load(Ordering::Relaxed) == 0 {
                for m in there.take() {
                    queues.push(m, 0);
                }
                while run_next(&mut queues, &mut pool, 0) {}
                spin_loop();
            }
        });
        let (mut pool, mut sent) = (Pool::new(64), 0);
        // Each by itself, looks at the clock included: the other side may lose its processor at any time.
        measure_rounds("across cores, to one that polls, there and back", 1, |_| {
            there.push(message(&mut pool, &run, 0));
            sent += 1;
            while run.load(Ordering::Acquire) != sent {
                spin_loop();
            }
        });
        stop.store(1, Ordering::Relaxed);
    });
}
