//! One core's queues at one resource: one for each activity, and the scheduler that says which is next.
//!
//! A queue is first in, first out, so messages of an activity that go to the same core stay in order, whatever their labels.
//! What goes to another core goes through its [`Inbox`](crate::inbox::Inbox), and [`Affinity`](crate::affinity::Affinity)
//! says to which.

use alloc::boxed::Box;
use alloc::vec::Vec;

use atoll_abi::grid::{ACTIVITIES_MAX, Parameters, SchedulerKind};

use crate::message::{Header, Message, Messages};
use crate::scheduler::bucket::Bucket;
use crate::scheduler::{Checked, Client, Scheduler, make};

/// Whose an activity is that has no queue.
const NOBODY: Client = Client::MAX;

/// An activity's queue.
struct Queue {
    activity: u32,
    messages: Messages,
    /// Held back: its client has nothing to do for the scheduler.
    held: bool,
}

/// The queues.
pub struct Queues {
    scheduler: Checked<Box<dyn Scheduler>>,
    /// By activity, which client of the scheduler it is.
    clients: Vec<Client>,
    /// By client.
    queues: Vec<Queue>,
    /// Clients that are nobody's.
    free: Vec<Client>,
    /// Messages in all queues that are not held back.
    waiting: usize,
    /// How many messages a turn is, at most.
    batch: u32,
    /// What all get together.
    rate: Bucket,
    /// Whose turn it is, and for how many messages more.
    turn: (Client, u32),
    /// Was the last message the first one of a turn?
    begins: bool,
}

impl Queues {
    /// Queues with a scheduler of this kind. A turn is up to `batch` messages, at least one. `rate` is what all activities get
    /// together, in units of the measure a second; 0: no limit.
    pub fn new(kind: SchedulerKind, batch: u32, rate: u64) -> Self {
        Self::with(make(kind), batch, rate)
    }

    /// The same with any scheduler that has no clients yet.
    pub fn with(scheduler: Box<dyn Scheduler>, batch: u32, rate: u64) -> Self {
        let mut all = Queues {
            scheduler: Checked::new(scheduler),
            clients: Vec::new(),
            queues: Vec::new(),
            free: Vec::new(),
            waiting: 0,
            batch: batch.max(1),
            rate: Bucket::default(),
            turn: (NOBODY, 0),
            begins: false,
        };
        all.rate.set(rate, 0);
        all
    }

    /// Goes on with another scheduler, batch and rate, and the same activities and messages.
    pub fn replace(mut self, scheduler: Box<dyn Scheduler>, batch: u32, rate: u64, now: u64) -> Self {
        self.set_scheduler(scheduler, now);
        self.batch = batch.max(1);
        self.rate.set(rate, now);
        self
    }

    /// Has another scheduler choose from now on, among the same activities and messages.
    pub fn set_scheduler(&mut self, scheduler: Box<dyn Scheduler>, now: u64) {
        self.scheduler = self.scheduler.replace(scheduler, now);
    }

    /// Sets what an activity is to have here.
    ///
    /// # Panics
    /// If the activity is no number of the directory.
    pub fn configure(&mut self, activity: u32, parameters: &Parameters) {
        assert!((activity as usize) < ACTIVITIES_MAX, "there is no activity {activity}");
        if self.clients.len() <= activity as usize {
            self.clients.resize(activity as usize + 1, NOBODY);
        }
        let client = &mut self.clients[activity as usize];
        if *client == NOBODY {
            *client = self.free.pop().unwrap_or(self.queues.len() as Client);
            match self.queues.get_mut(*client as usize) {
                Some(queue) => queue.activity = activity,
                None => self.queues.push(Queue { activity, messages: Messages::default(), held: false }),
            }
        }
        self.scheduler.configure(*client, parameters);
    }

    /// Forgets an activity. Value: messages that it still had here.
    pub fn forget(&mut self, activity: u32) -> Messages {
        let Some(client) = self.client(activity) else { return Messages::default() };
        self.clients[activity as usize] = NOBODY;
        self.free.push(client);
        self.scheduler.forget(client);
        if self.turn.0 == client {
            self.turn = (NOBODY, 0);
        }
        let queue = &mut self.queues[client as usize];
        let messages = core::mem::take(&mut queue.messages);
        if !core::mem::take(&mut queue.held) {
            self.waiting -= messages.len();
        }
        messages
    }

    #[inline]
    fn client(&self, activity: u32) -> Option<Client> {
        self.clients.get(activity as usize).copied().filter(|c| *c != NOBODY)
    }

    /// The client of an activity that has something to do here.
    #[inline]
    fn client_of(&mut self, activity: u32) -> Client {
        if let Some(client) = self.client(activity) {
            return client;
        }
        self.configure(activity, &Parameters::default());
        self.clients[activity as usize]
    }

    /// Puts a message into its activity's queue. An activity that is not known here gets [`Parameters::default`].
    #[inline]
    pub fn push(&mut self, mut message: Message, now: u64) {
        let client = self.client_of(message.header().activity);
        message.set_since(now);
        let Queue { messages, held, .. } = &mut self.queues[client as usize];
        let first = messages.is_empty();
        messages.push(message);
        if *held {
            return;
        }
        self.waiting += 1;
        if first {
            self.scheduler.arrive(client, now);
        }
    }

    /// Need a message of this activity not wait, because nothing is there that it would have to wait for? Then it may run at
    /// once, in place, and only [`Queues::done`] is called for it.
    #[inline]
    pub fn may_run(&mut self, activity: u32, now: u64) -> bool {
        let client = self.client_of(activity);
        self.queues[client as usize].messages.is_empty()
            && self.rate.full_until(now).is_none()
            && self.scheduler.may_run(client, now)
    }

    /// [`Queues::next`], but an activity whose first message may not run now is held back, with all that it has here, until
    /// [`Queues::release`].
    pub fn next_if(&mut self, now: u64, mut may: impl FnMut(&Header) -> bool) -> Option<Message> {
        while self.waiting > 0 && self.rate.full_until(now).is_none() {
            let client = self.whose_turn(now)?;
            let queue = &mut self.queues[client as usize];
            if queue.messages.first().is_none_or(&mut may) {
                return self.take(client, now);
            }
            queue.held = true;
            self.waiting -= queue.messages.len();
            self.turn = (NOBODY, 0);
            self.scheduler.leave(client, now);
        }
        None
    }

    /// Activities that are held back go on, if their first message may run.
    pub fn release(&mut self, now: u64, mut may: impl FnMut(&Header) -> bool) {
        for (client, queue) in self.queues.iter_mut().enumerate().filter(|(_, queue)| queue.held) {
            if queue.messages.first().is_none_or(&mut may) {
                queue.held = false;
                self.waiting += queue.messages.len();
                self.scheduler.arrive(client as Client, now);
            }
        }
    }

    /// The message that is to be run now. None: there is nothing to do, or not yet: see [`Queues::later`].
    #[inline]
    pub fn next(&mut self, now: u64) -> Option<Message> {
        if self.waiting == 0 || self.rate.full_until(now).is_some() {
            return None;
        }
        let client = self.whose_turn(now)?;
        self.take(client, now)
    }

    #[inline]
    fn whose_turn(&mut self, now: u64) -> Option<Client> {
        if self.turn.1 == 0 { self.scheduler.pick(now) } else { Some(self.turn.0) }
    }

    /// Takes the first message of the client whose turn it is.
    #[inline]
    fn take(&mut self, client: Client, now: u64) -> Option<Message> {
        self.begins = self.turn.1 == 0;
        let left = if self.begins { self.batch } else { self.turn.1 };
        let messages = &mut self.queues[client as usize].messages;
        let message = messages.next()?;
        self.waiting -= 1;
        self.turn = (client, left - 1);
        if messages.is_empty() {
            self.turn.1 = 0;
            self.scheduler.leave(client, now);
        }
        Some(message)
    }

    /// Did the scheduler choose whose message [`Queues::next`] gave last? Else it belongs to the same turn as the one before.
    pub fn begins_turn(&self) -> bool {
        self.begins
    }

    /// After [`Queues::next`] gave none: when to ask again, if nothing is pushed. `u64::MAX`: never.
    pub fn later(&self, now: u64) -> u64 {
        match self.waiting {
            0 => u64::MAX,
            _ => self.rate.full_until(now).unwrap_or_else(|| self.scheduler.next(now)),
        }
    }

    /// A message of this activity has run, and used so much, in units of the measure.
    #[inline]
    pub fn done(&mut self, activity: u32, amount: u64, now: u64) {
        let client = self.client_of(activity);
        self.rate.charge(amount, now);
        self.scheduler.charge(client, amount, now);
        if let Some(since) = self.queues[client as usize].messages.first_since() {
            self.scheduler.waits_since(client, since);
        }
    }

    /// Do messages of this activity wait?
    pub fn waits(&self, activity: u32) -> bool {
        self.client(activity).is_some_and(|client| !self.queues[client as usize].messages.is_empty())
    }

    /// How many messages wait that are not held back.
    pub fn len(&self) -> usize {
        self.waiting
    }

    /// Does none wait but what is held back?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// The activities that have a queue here, and how many messages wait in it.
    pub fn activities(&self) -> impl Iterator<Item = (u32, usize)> + '_ {
        let known = self.clients.iter().filter(|c| **c != NOBODY);
        known.map(|c| &self.queues[*c as usize]).map(|q| (q.activity, q.messages.len()))
    }

    /// How often the scheduler's answer was wrong.
    pub fn faults(&self) -> u64 {
        self.scheduler.faults()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::affinity::Affinity;
    use crate::inbox::Inbox;
    use crate::message::{Header, Pool};
    use crate::scheduler::tests::{KINDS, Nonsense, Random};
    use atoll_abi::grid::Resource;
    use std::collections::HashMap;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Mutex};

    const SECOND: u64 = 1_000_000_000;

    fn header(activity: u32, dependency: u64) -> Header {
        Header { dependency, affinity: 0, cost: 0, activity, resource: Resource::DeviceWrite }
    }

    fn share(weight: u32) -> Parameters {
        Parameters { weight, ..Parameters::default() }
    }

    /// A label of an activity, as a sender makes it.
    fn label(activity: u32, n: u64) -> u64 {
        if n == 0 { 0 } else { u64::from(activity) << 32 | n }
    }

    /// What was sent: its activity, label and sender, and which of those it was.
    type Sent = (u32, u64, usize, u64);

    /// Some cores, in one thread.
    struct Cores {
        cores: Vec<(Queues, Inbox, Pool)>,
        affinity: Affinity,
        now: u64,
        /// What has run, in order.
        log: Arc<Mutex<Vec<Sent>>>,
        sent: HashMap<(u32, u64, usize), u64>,
        in_place: u64,
        elsewhere: u64,
    }

    impl Cores {
        fn send(&mut self, from: usize, to: usize, activity: u32, n: u64, random: &mut Random) {
            let count = self.sent.entry((activity, n, from)).or_default();
            *count += 1;
            let (entry, log) = ((activity, n, from, *count), self.log.clone());
            let dependency = label(activity, n);
            let message = Message::new(&mut self.cores[from].2, header(activity, dependency), move || {
                log.lock().unwrap().push(entry);
            });
            let at = self.affinity.send(dependency, to, self.now);
            if at != from {
                self.elsewhere += 1;
                self.cores[at].1.push(message);
            } else if random.below(2) == 0 && self.cores[at].0.may_run(activity, self.now) {
                self.in_place += 1;
                self.run(at, message, random);
            } else {
                self.cores[at].0.push(message, self.now);
            }
        }

        fn run(&mut self, core: usize, message: Message, random: &mut Random) {
            let header = *message.header();
            let spent = message.run();
            self.cores[core].2.put(spent);
            let amount = random.below(10_000);
            self.now += amount;
            self.affinity.done(header.dependency);
            self.cores[core].0.done(header.activity, amount, self.now);
        }

        /// Value: whether the core had something to do.
        fn step(&mut self, core: usize, random: &mut Random) -> bool {
            let (queues, inbox, _) = &mut self.cores[core];
            for m in inbox.take() {
                queues.push(m, self.now);
            }
            let waits = !queues.is_empty();
            match queues.next(self.now) {
                Some(m) => self.run(core, m, random),
                None if waits => self.now = self.now.max(queues.later(self.now).min(self.now + SECOND)),
                None => {}
            }
            waits
        }
    }

    /// All that is sent runs, once, and what has the same label, activity and sender in the order it was sent in: with any
    /// scheduler, limits, batches, on several cores, in place and by inboxes, and while labels move.
    #[test]
    fn nothing_is_lost_and_labels_keep_order() {
        const CORES: usize = 4;
        const ACTIVITIES: u32 = 5;
        for seed in 1..=40u64 {
            let mut random = Random(seed * 0x1234_5677);
            let scheduler = |random: &mut Random| -> Box<dyn Scheduler> {
                match random.below(5) {
                    4 => Box::new(Nonsense(Random(random.next()))),
                    n => make(KINDS[n as usize]),
                }
            };
            let cores = (0..CORES).map(|_| {
                let (batch, rate) = (random.below(5) as u32, [0, 0, SECOND / 2][random.below(3) as usize]);
                (Queues::with(scheduler(&mut random), batch, rate), Inbox::default(), Pool::new(8))
            });
            let mut all = Cores {
                cores: cores.collect(),
                affinity: Affinity::new(32, 4_000_000),
                now: 0,
                log: Arc::default(),
                sent: HashMap::new(),
                in_place: 0,
                elsewhere: 0,
            };
            for _ in 0..20_000 {
                let core = random.below(CORES as u64) as usize;
                match random.below(100) {
                    0 => {
                        let p = Parameters {
                            weight: 1 + random.below(9) as u32,
                            limit: [0, SECOND / 10][random.below(2) as usize],
                            deadline: random.below(3) * 1000,
                            ..Parameters::default()
                        };
                        all.cores[core].0.configure(random.below(u64::from(ACTIVITIES)) as u32, &p);
                    }
                    1 => {
                        let (queues, inbox, pool) = all.cores.remove(core);
                        let queues =
                            queues.replace(scheduler(&mut random), random.below(4) as u32, 0, all.now);
                        all.cores.insert(core, (queues, inbox, pool));
                    }
                    2..40 => {
                        let (activity, n) = (random.below(u64::from(ACTIVITIES)) as u32, random.below(8));
                        let to = random.below(CORES as u64) as usize;
                        all.send(core, to, activity, n, &mut random);
                    }
                    _ => {
                        all.step(core, &mut random);
                    }
                }
            }
            while (0..CORES).any(|c| all.step(c, &mut random)) {}
            let log = all.log.lock().unwrap();
            let mut last: HashMap<(u32, u64, usize), u64> = HashMap::new();
            for &(activity, n, from, count) in &*log {
                let seen = last.entry((activity, n, from)).or_default();
                assert!(n == 0 || count == *seen + 1, "seed {seed}: {count} after {seen}");
                *seen += 1;
            }
            assert_eq!(last, all.sent, "seed {seed}");
            assert!(all.in_place > 100 && all.elsewhere > 1000);
            assert!(all.cores.iter().all(|c| c.0.is_empty() && c.0.later(all.now) == u64::MAX));
        }
    }

    /// The same on cores that are threads.
    #[test]
    fn threads_keep_order() {
        const CORES: usize = 3;
        const EACH: u64 = 20_000;
        const LABELS: u64 = 4;
        let inboxes: Vec<Inbox> = (0..CORES).map(|_| Inbox::default()).collect();
        let affinity = Affinity::new(64, 1);
        let run = AtomicU64::new(0);
        // By sender and label, the last that has run.
        let last: Arc<Vec<AtomicU64>> =
            Arc::new((0..CORES as u64 * LABELS).map(|_| AtomicU64::new(0)).collect());
        std::thread::scope(|s| {
            for me in 0..CORES {
                let (inboxes, affinity, run, last) = (&inboxes, &affinity, &run, last.clone());
                s.spawn(move || {
                    let mut queues = Queues::new(SchedulerKind::Wfq, 2, 0);
                    let (mut pool, mut random) = (Pool::new(64), Random(me as u64 + 1));
                    let (mut now, mut sent) = (0, [0; LABELS as usize]);
                    let mut left = EACH;
                    while left > 0 || run.load(Ordering::Relaxed) < CORES as u64 * EACH {
                        now += 1 << 21;
                        if left > 0 {
                            left -= 1;
                            let n = random.below(LABELS);
                            sent[n as usize] += 1;
                            let (count, last) = (sent[n as usize], last.clone());
                            let slot = me * LABELS as usize + n as usize;
                            let message = Message::new(&mut pool, header(n as u32 & 1, n + 1), move || {
                                // Relaxed: the order of messages is all that there is.
                                let before = last[slot].swap(count, Ordering::Relaxed);
                                assert_eq!(before + 1, count);
                            });
                            match affinity.send(n + 1, random.below(CORES as u64) as usize, now) {
                                at if at == me => queues.push(message, now),
                                at => {
                                    inboxes[at].push(message);
                                }
                            }
                        }
                        for m in inboxes[me].take() {
                            queues.push(m, now);
                        }
                        match queues.next(now) {
                            Some(m) => {
                                let header = *m.header();
                                pool.put(m.run());
                                affinity.done(header.dependency);
                                queues.done(header.activity, 100, now);
                                run.fetch_add(1, Ordering::Relaxed);
                            }
                            None => std::thread::yield_now(),
                        }
                    }
                });
            }
        });
    }

    /// Three activities at 50, 33 and 17 %, whose messages are of very different sizes, at a resource with a rate: bytes
    /// are divided so over each second, whatever the batch, of which each turn is one (OK-11).
    #[test]
    fn bytes_are_divided_by_weight() {
        for batch in [1, 2, 8, 16] {
            const RATE: u64 = 125_000_000;
            let mut queues = Queues::new(SchedulerKind::Wfq, batch, RATE);
            let (weights, sizes) = ([50, 33, 17], [1500, 65_000, 9000]);
            let mut pool = Pool::new(100);
            for (activity, weight) in weights.into_iter().enumerate() {
                queues.configure(activity as u32, &share(weight));
                for _ in 0..10 {
                    queues.push(Message::new(&mut pool, header(activity as u32, 0), || ()), 0);
                }
            }
            let (mut now, mut random) = (0, Random(3));
            // Messages, and turns among them.
            let mut count = (0u32, 0);
            for second in 1..=5 {
                let mut got = [0u64; 3];
                while now < second * SECOND {
                    let Some(m) = queues.next(now) else {
                        let later = queues.later(now);
                        assert!(later > now && later != u64::MAX);
                        now = later;
                        continue;
                    };
                    count = (count.0 + 1, count.1 + u32::from(queues.begins_turn()));
                    assert_eq!(count.1, count.0.div_ceil(batch), "a batch of {batch}");
                    let header = *m.header();
                    pool.put(m.run());
                    let bytes = 1 + random.below(sizes[header.activity as usize]);
                    queues.done(header.activity, bytes, now);
                    got[header.activity as usize] += bytes;
                    queues.push(Message::new(&mut pool, header, || ()), now);
                }
                let all: u64 = got.iter().sum();
                assert!(all.abs_diff(RATE) < RATE / 50, "{all} in a second");
                for (got, weight) in got.into_iter().zip(weights) {
                    let part = got as f64 * 100.0 / all as f64;
                    assert!((part - f64::from(weight)).abs() < 1.0, "{part} % for {weight}");
                }
            }
        }
    }

    #[test]
    fn a_turn_is_a_batch() {
        let mut queues = Queues::new(SchedulerKind::RoundRobin, 3, 0);
        let mut pool = Pool::new(16);
        let mut push = |queues: &mut Queues, activity, n| {
            (0..n).for_each(|_| queues.push(Message::new(&mut pool, header(activity, 0), || ()), 0));
        };
        for (activity, n) in [(0, 5), (1, 3), (2, 1)] {
            push(&mut queues, activity, n);
        }
        let next = |queues: &mut Queues| {
            let m = queues.next(0).unwrap();
            queues.done(m.header().activity, 1, 0);
            (m.header().activity, queues.begins_turn())
        };
        for message in [(0, true), (0, false), (0, false), (1, true), (1, false), (1, false), (2, true)] {
            assert_eq!(next(&mut queues), message);
        }
        // All that it had is a turn: what it is given after that waits for its next one.
        push(&mut queues, 2, 2);
        for message in [(0, true), (0, false), (2, true), (2, false)] {
            assert_eq!(next(&mut queues), message);
        }
    }

    /// While messages come at any time, with each scheduler, limits and rates: a turn is a batch of one activity, or if that
    /// has less, all it has, and ends then or when the activity is forgotten (OK-11).
    #[test]
    fn turns_are_batches() {
        const ACTIVITIES: u64 = 4;
        for kind in KINDS {
            for (batch, rate) in [(1, 0), (2, SECOND / 2), (3, 0), (8, SECOND / 2), (8, 0)] {
                let at = || std::format!("{kind:?}, batches of {batch}, rate {rate}");
                let mut random = Random(u64::from(batch) << 40 ^ rate ^ 0x1234_5678);
                let (mut queues, mut pool, mut now) = (Queues::new(kind, batch, rate), Pool::new(64), 0);
                for activity in 0..ACTIVITIES as u32 {
                    let limit = if activity == 3 { SECOND / 5 } else { 0 };
                    let (weight, priority, deadline) =
                        (1 + activity, activity as i32 / 2, u64::from(activity) << 14);
                    let p = Parameters { weight, limit, priority, deadline, reservation: 0 };
                    queues.configure(activity, &p);
                }
                let mut waiting = [0; ACTIVITIES as usize];
                // Whose turn it is, for how many messages more, and how many it was.
                let (mut whose, mut left, mut length) = (0, 0, 0);
                let mut turns = std::vec![0; batch as usize + 1];
                for _ in 0..20_000 {
                    match random.below(100) {
                        0 => {
                            let activity = random.below(ACTIVITIES) as usize;
                            let messages = queues.forget(activity as u32);
                            assert_eq!(messages.len(), core::mem::take(&mut waiting[activity]), "{}", at());
                            left *= u32::from(whose != activity);
                        }
                        1..12 => {
                            let (activity, n) = (random.below(ACTIVITIES) as u32, 1 + random.below(12));
                            for _ in 0..n {
                                queues.push(Message::new(&mut pool, header(activity, 0), || ()), now);
                            }
                            waiting[activity as usize] += n as usize;
                        }
                        _ => {
                            let Some(m) = queues.next(now) else {
                                let later = queues.later(now);
                                assert_eq!(later == u64::MAX, waiting == [0; 4], "{}", at());
                                now = if later == u64::MAX { now } else { later };
                                continue;
                            };
                            let activity = m.header().activity as usize;
                            pool.put(m.run());
                            assert_eq!(queues.begins_turn(), left == 0, "{}: {left} more of {whose}", at());
                            if left == 0 {
                                turns[length] += 1;
                                (whose, left, length) = (activity, batch, 0);
                            }
                            assert_eq!(activity, whose, "{}", at());
                            waiting[activity] -= 1;
                            (left, length) = (left - 1, length + 1);
                            left *= u32::from(waiting[activity] > 0);
                            let amount = random.below(10_000);
                            now += amount;
                            queues.done(activity as u32, amount, now);
                        }
                    }
                }
                assert_eq!(queues.faults(), 0, "{}", at());
                assert!(turns[1..].iter().all(|n| *n > 5), "{}: {turns:?}", at());
            }
        }
    }

    /// The earliest message first, not the activity that came first.
    #[test]
    fn deadlines_are_those_of_messages() {
        let mut queues = Queues::new(SchedulerKind::Deadline, 1, 0);
        let mut pool = Pool::new(8);
        for activity in 0..2 {
            queues.configure(activity, &Parameters { deadline: 100, ..Parameters::default() });
        }
        for (activity, now) in [(0, 0), (1, 10), (0, 20), (1, 30), (1, 31), (0, 32)] {
            queues.push(Message::new(&mut pool, header(activity, 0), || ()), now);
        }
        for (activity, since) in [(0, 0), (1, 10), (0, 20), (1, 30), (1, 31), (0, 32)] {
            let m = queues.next(50).unwrap();
            assert_eq!((m.header().activity, m.since()), (activity, since));
            queues.done(activity, 1, 50);
        }
    }

    /// An activity that is forgotten leaves what it had, and its place serves another.
    #[test]
    fn forgotten_activities_leave_their_messages() {
        let mut queues = Queues::new(SchedulerKind::RoundRobin, 4, 0);
        let mut pool = Pool::new(8);
        for activity in [7, 7, 9, 7] {
            queues.push(Message::new(&mut pool, header(activity, 0), || ()), 0);
        }
        assert_eq!(queues.next(0).unwrap().header().activity, 7);
        assert_eq!(queues.activities().collect::<Vec<_>>(), [(7, 2), (9, 1)]);
        assert_eq!(queues.forget(7).len(), 2);
        assert_eq!(queues.forget(7).len(), 0);
        queues.push(Message::new(&mut pool, header(200, 0), || ()), 0);
        assert_eq!(queues.queues.len(), 2);
        assert_eq!([9, 200].map(|_| queues.next(0).unwrap().header().activity), [9, 200]);
        assert!(queues.next(0).is_none() && queues.is_empty());
        assert_eq!(queues.faults(), 0);
    }
}
