//! Messages with labels, sent on purpose to see that a live cell keeps what labels promise (requirements OK-06 and OK-08;
//! `atoll stat --check`).

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use atoll_abi::core_local::core_local;
use atoll_abi::grid::{Resource, Sent};
use atoll_abi::platform;
use atoll_sync::WaitQueue;
use atoll_task::{Activity, Labels, is_online};

/// Dependency labels, which all senders use.
const LABELS: usize = 4;
/// Messages of each sender.
const EACH: u64 = 64;
/// How long each of them takes, ns.
const TAKES: u64 = 5_000;
/// Labels that are to move, one after the other.
const MOVES: usize = 2;
/// A message with an affinity label is run where the last one was if that was sent no longer ago, ns: a little less than
/// [`Labels`] says, whose clock is coarse.
const SURELY_NEAR: u64 = 7_000_000;
/// After so much time it may be run elsewhere, ns.
const SURELY_FAR: u64 = 20_000_000;

/// A dependency label: its address.
struct Label {
    /// Messages that run.
    running: AtomicU64,
    /// By core that sends: the number of the last one that has run.
    last: Vec<AtomicU64>,
}

/// What the messages of all senders say.
struct Seen {
    labels: Vec<Label>,
    /// By core: messages that have begun, and not ended.
    inside: Vec<AtomicU64>,
    ran: AtomicU64,
    overtook: AtomicU64,
    together: AtomicU64,
    interrupted: AtomicU64,
    /// Threads and messages that are not done.
    left: AtomicU64,
    waiting: WaitQueue,
}

fn counters(n: usize) -> Vec<AtomicU64> {
    (0..n).map(|_| AtomicU64::new(0)).collect()
}

impl Seen {
    fn one_less(&self) {
        self.left.fetch_sub(1, Ordering::AcqRel);
        self.waiting.wake_all(1);
    }

    /// Message `k` of a sender's with a label.
    fn run(&self, label: usize, sender: usize, k: u64) {
        let (label, inside) = (&self.labels[label], &self.inside[core_local().id()]);
        let note = |counter: &AtomicU64, wrong: bool| _ = counter.fetch_add(wrong.into(), Ordering::Relaxed);
        note(&self.interrupted, inside.fetch_add(1, Ordering::Relaxed) != 0);
        note(&self.together, label.running.fetch_add(1, Ordering::Relaxed) != 0);
        let begun = platform().now();
        while platform().now() < begun + TAKES {}
        note(&self.overtook, label.last[sender].swap(k, Ordering::Relaxed) + 1 != k);
        label.running.fetch_sub(1, Ordering::Relaxed);
        inside.fetch_sub(1, Ordering::Relaxed);
        note(&self.ran, true);
        self.one_less();
    }
}

/// What a sender does: messages with all labels, to all cores.
fn send_from(core: usize, to: &[usize], seen: &Arc<Seen>) {
    let mut sent = [0; LABELS];
    for n in 0..EACH as usize {
        // Labels and cores in changing pairs, differently from each sender.
        let (label, to) = ((n + core) % LABELS, to[(n / LABELS * 3 + n + core) % to.len()]);
        sent[label] += 1;
        let (k, later) = (sent[label], seen.clone());
        let labels = Labels { dependency: (&raw const seen.labels[label]).addr() as u64, affinity: 0 };
        atoll_task::send(to, labels, Resource::Completion, move || later.run(label, core, k));
        if n % 5 == 0 {
            atoll_task::yield_now();
        }
    }
    seen.one_less();
}

/// Sends a message with this affinity label to a core. Value: the core that has run it, and the latest time at which it was sent.
fn sent_near(label: u64, to: usize) -> (usize, u64) {
    let ran = Arc::new((AtomicU64::new(0), WaitQueue::new()));
    let says = ran.clone();
    atoll_task::send(to, Labels { dependency: 0, affinity: label }, Resource::Completion, move || {
        says.0.store(1 + core_local().id() as u64, Ordering::Release);
        says.1.wake_all(1);
    });
    let latest = platform().now();
    let at = || ran.0.load(Ordering::Acquire).checked_sub(1);
    (atoll_task::wait_uninterrupted(&ran.1, 1, at) as usize, latest)
}

/// Messages with an affinity label: to one core, to another one soon after, and to that one long after.
fn move_label(cores: &[usize], sent: &mut Sent) {
    let [first, .., last] = cores else { return };
    let label = Box::new(0_u8);
    let label = (&raw const *label).addr() as u64;
    let before = platform().now();
    let (at, _) = sent_near(label, *first);
    let (again, latest) = sent_near(label, *last);
    if latest - before < SURELY_NEAR {
        sent.near.done += 1;
        sent.near.found += i64::from(again == at);
    }
    atoll_task::sleep_until(platform().now() + SURELY_FAR);
    sent.moved.done += 1;
    sent.moved.found += i64::from(sent_near(label, *last).0 == *last);
}

/// Sends messages for an activity, and waits until they have run.
pub fn send_for(activity: &Activity) -> Sent {
    let cores: Vec<usize> = (0..atoll_task::cores()).filter(|core| is_online(*core)).collect();
    let seen = Arc::new(Seen {
        labels: (0..LABELS)
            .map(|_| Label { running: AtomicU64::new(0), last: counters(atoll_task::cores()) })
            .collect(),
        inside: counters(atoll_task::cores()),
        ran: AtomicU64::new(0),
        overtook: AtomicU64::new(0),
        together: AtomicU64::new(0),
        interrupted: AtomicU64::new(0),
        left: AtomicU64::new(0),
        waiting: WaitQueue::new(),
    });
    let mut sent = Sent::default();
    for core in &cores {
        let (core, to, mine) = (*core, cores.clone(), seen.clone());
        seen.left.fetch_add(EACH + 1, Ordering::AcqRel);
        if super::burns::run_for(activity, core, move || send_from(core, &to, &mine)) {
            sent.ran.done += EACH;
        } else {
            seen.left.fetch_sub(EACH + 1, Ordering::AcqRel);
        }
    }
    atoll_task::wait_uninterrupted(&seen.waiting, 1, || {
        (seen.left.load(Ordering::Acquire) == 0).then_some(())
    });
    sent.ran.found = seen.ran.load(Ordering::Relaxed) as i64;
    let [overtook, together, interrupted] =
        [&seen.overtook, &seen.together, &seen.interrupted].map(|n| n.load(Ordering::Relaxed));
    sent = Sent { overtook, together, interrupted, ..sent };
    for _ in 0..MOVES {
        move_label(&cores, &mut sent);
    }
    sent
}
