//! Schedulers against models of what they promise.

use std::boxed::Box;
use std::vec::Vec;
use std::{eprintln, vec};

use super::bucket::{BURST, Bucket};
use super::wfq::CREDIT;
use super::*;

pub(crate) const KINDS: [SchedulerKind; 4] =
    [SchedulerKind::Wfq, SchedulerKind::RoundRobin, SchedulerKind::Priority, SchedulerKind::Deadline];

const SECOND: u64 = 1_000_000_000;

/// xorshift64.
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

fn weight(weight: u32) -> Parameters {
    Parameters { weight, ..Parameters::default() }
}

/// What a client has used under a limit, as a leaky bucket: `level` is what was used beyond `limit` times time, in
/// units x ns / s, and at least 0.
#[derive(Clone, Copy, Default)]
struct Leak {
    limit: u64,
    level: u128,
    at: u64,
}

impl Leak {
    fn run(&mut self, now: u64) {
        self.level = self.level.saturating_sub(u128::from(now - self.at) * u128::from(self.limit));
        self.at = now;
    }

    fn charge(&mut self, amount: u64, now: u64) {
        self.run(now);
        self.level += u128::from(amount) * u128::from(SECOND);
    }

    fn burst(&self) -> u128 {
        u128::from(BURST) * u128::from(self.limit)
    }
}

/// What a model knows of a client.
#[derive(Clone, Copy, Default)]
struct Seen {
    parameters: Parameters,
    /// It has something to do.
    active: bool,
    leak: Leak,
    /// The same to the nanosecond, as the scheduler has it; what it says is checked against `leak`.
    bucket: Bucket,
    /// When the first of what it has now came.
    since: u64,
    /// Since when it stands in line: the number of its last turn, or of the turn before which it came. None: it doesn't,
    /// as it has nothing to do or is over its limit.
    turn: Option<u64>,
}

impl Seen {
    /// What a scheduler of this kind orders by before all else, if what the client has came at `since`; smaller goes first.
    fn rank(&self, kind: SchedulerKind, since: u64) -> u128 {
        match kind {
            SchedulerKind::Wfq | SchedulerKind::RoundRobin => 0,
            SchedulerKind::Priority => (i64::from(i32::MAX) - i64::from(self.parameters.priority)) as u128,
            SchedulerKind::Deadline if self.parameters.deadline == 0 => u128::MAX,
            SchedulerKind::Deadline => u128::from(since) + u128::from(self.parameters.deadline),
        }
    }

    fn may(&self, now: u64) -> bool {
        self.active && self.bucket.full_until(now).is_none()
    }
}

/// A scheduler that looks at everybody each time.
struct Model {
    kind: SchedulerKind,
    clients: Vec<Seen>,
    turns: u64,
}

impl Model {
    fn configure(&mut self, client: usize, parameters: Parameters, now: u64) {
        let c = &mut self.clients[client];
        c.bucket.set(parameters.limit, now);
        let limit = parameters.limit;
        if limit != c.leak.limit {
            c.leak = Leak { limit, level: u128::from(BURST) * u128::from(limit), at: now };
        }
        c.parameters = parameters;
    }

    fn arrive(&mut self, client: usize, now: u64) {
        let c = &mut self.clients[client];
        if c.active {
            return;
        }
        (c.active, c.since) = (true, now);
        if c.may(now) {
            c.turn = Some(self.turns);
            self.turns += 1;
        }
    }

    fn leave(&mut self, client: usize) {
        (self.clients[client].active, self.clients[client].turn) = (false, None);
    }

    fn charge(&mut self, client: usize, amount: u64, now: u64) {
        let c = &mut self.clients[client];
        c.leak.charge(amount, now);
        c.bucket.charge(amount, now);
        c.since = now;
        c.turn = c.turn.filter(|_| c.may(now));
    }

    /// Does somebody stand beside the line who isn't over its limit any more?
    fn comes(&self, now: u64) -> bool {
        self.clients.iter().any(|c| c.may(now) && c.turn.is_none())
    }

    /// Would it be this client's turn if it came now?
    fn may_run(&self, client: usize, now: u64) -> bool {
        let c = &self.clients[client];
        let first = |c: &Seen, since| c.rank(self.kind, since);
        let mut others = self.clients.iter().filter(|o| o.may(now));
        c.bucket.full_until(now).is_none() && others.all(|o| first(c, now) < first(o, o.since))
    }

    /// Whose turn it may be. Those who were over their limits until now come into the line together, in any order: so there
    /// may be more than one. With WFQ it may be any who is not over its limit.
    fn first(&mut self, now: u64) -> Vec<usize> {
        for c in self.clients.iter_mut().filter(|c| c.may(now)) {
            c.turn.get_or_insert(self.turns);
        }
        self.turns += 1;
        let key = |c: &Seen| (c.rank(self.kind, c.since), c.turn);
        let all = || (0..self.clients.len()).filter(|c| self.clients[*c].may(now));
        let least = all().map(|c| key(&self.clients[c])).min();
        all().filter(|c| self.kind == SchedulerKind::Wfq || Some(key(&self.clients[*c])) == least).collect()
    }

    /// It's this client's turn, which is last of its equals then.
    fn picked(&mut self, client: usize) {
        self.clients[client].turn = Some(self.turns);
        self.turns += 1;
    }

    /// When the first of those over their limits may go on, but for some ns: what a unit takes is rounded up.
    fn next(&mut self, now: u64) -> u64 {
        let mut next = u64::MAX;
        for l in self.clients.iter_mut().filter(|c| c.active).map(|c| &mut c.leak) {
            l.run(now);
            let over = l.level + 100 * u128::from(l.limit);
            assert!(l.limit != 0 && over > l.burst(), "{:?}: nobody, though somebody may", self.kind);
            let over = l.level.saturating_sub(l.burst()).div_ceil(u128::from(l.limit));
            next = next.min(now.saturating_add(over as u64));
        }
        next
    }
}

/// What a client is to have, at random; so that many are equal.
fn any_parameters(random: &mut Random) -> Parameters {
    let priorities = [0, 0, 1, 1, -1, i32::MAX, i32::MIN, random.next() as i32];
    let deadlines = [0, 100_000, 1_000_000, 1_000_000, 50_000_000, random.below(SECOND)];
    Parameters {
        weight: 1 + random.below(1000) as u32,
        reservation: [0, 0, 0, 40_000_000][random.below(4) as usize],
        limit: [0, 20_000_000, 50_000_000, 100_000_000][random.below(4) as usize],
        priority: priorities[random.below(8) as usize],
        deadline: deadlines[random.below(6) as usize],
    }
}

/// Random arrivals, turns, departures and configurations, a million for each scheduler: only clients that have something to
/// do are picked, nobody only when all of them are over their limits, limits hold over every stretch of time, and the turn
/// is that of the first in the order that the scheduler promises: round robin, whose turn was longest ago; by priority, the
/// same among those of the highest; by deadline, the earliest (OK-10).
#[test]
fn random_steps() {
    const CLIENTS: usize = 12;
    const AMOUNT: u64 = 200_000;
    const SEEDS: u64 = 40;
    for kind in KINDS {
        let (mut held, mut chosen, mut in_place) = (0, 0, 0);
        for seed in 1..=SEEDS {
            let mut random = Random(seed << 32 ^ seed << 8 ^ 0x9E37_79B9_7F4A_7C15 ^ kind as u64);
            let mut s = Checked::new(make(kind));
            let mut model = Model { kind, clients: vec![Seen::default(); CLIENTS], turns: 0 };
            let mut now = 0;
            let configure = |s: &mut Checked<_>, model: &mut Model, c: usize, random: &mut Random, now| {
                let p = any_parameters(random);
                s.configure(c as Client, &p);
                model.configure(c, p, now);
            };
            for c in 0..CLIENTS {
                configure(&mut s, &mut model, c, &mut random, now);
            }
            // Of some seeds few have something to do at a time, of others nearly all.
            let arrivals = [30, 60, 100, 150][seed as usize % 4];
            for step in 0..1_000_000 / SEEDS {
                let at = || std::format!("{kind:?}, seed {seed}, step {step}");
                let c = random.below(CLIENTS as u64) as usize;
                match random.below(1000) {
                    0..3 => configure(&mut s, &mut model, c, &mut random, now),
                    3 => {
                        s.leave(c as Client, now);
                        s.forget(c as Client);
                        model.clients[c] = Seen::default();
                        configure(&mut s, &mut model, c, &mut random, now);
                    }
                    n if n < 4 + arrivals => {
                        s.arrive(c as Client, now);
                        model.arrive(c, now);
                    }
                    200..300 => {
                        s.leave(c as Client, now);
                        model.leave(c);
                    }
                    // In place, or what it used before and is charged with late.
                    300..400 => {
                        let amount = random.below(AMOUNT / 10);
                        if !model.clients[c].active {
                            let may = s.may_run(c as Client, now);
                            let of_model = model.may_run(c, now);
                            match kind {
                                SchedulerKind::Wfq => {
                                    assert!(!may || model.clients[c].bucket.full_until(now).is_none())
                                }
                                // Who waits to come into the line is let in first.
                                _ => assert_eq!(may, of_model && !model.comes(now), "{}: {c}", at()),
                            }
                            if !may {
                                continue;
                            }
                            in_place += 1;
                        } else if !amount.is_multiple_of(4) {
                            continue;
                        }
                        now += amount;
                        s.charge(c as Client, amount, now);
                        model.charge(c, amount, now);
                    }
                    _ => {
                        let mut picked = s.pick(now);
                        let mut first = model.first(now);
                        if picked.is_none() {
                            assert!(first.is_empty(), "{}: nobody, though {first:?} may", at());
                            let (later, next) = (s.next(now), model.next(now));
                            assert!(later.abs_diff(next) < 100, "{}: {later}, not {next}", at());
                            if later != u64::MAX {
                                held += 1;
                                now = later;
                                picked = s.pick(now);
                                first = model.first(now);
                                assert!(picked.is_some(), "{}: still nobody", at());
                            }
                        }
                        let Some(c) = picked.map(usize::from) else { continue };
                        assert!(first.contains(&c), "{}: {c}, not one of {first:?}", at());
                        let among = model.clients.iter().filter(|c| c.may(now)).count();
                        chosen += u64::from(among > 2 && first.len() == 1);
                        model.picked(c);
                        let leak = &mut model.clients[c].leak;
                        leak.run(now);
                        assert!(leak.level <= leak.burst() || leak.limit == 0, "{}: over its limit", at());
                        match random.below(20) {
                            // It is asked again before it is charged.
                            0 => continue,
                            // That was the last of what it had.
                            1 => {
                                s.leave(c as Client, now);
                                model.leave(c);
                            }
                            _ => {}
                        }
                        let amount = random.below(AMOUNT);
                        now += amount;
                        s.charge(c as Client, amount, now);
                        model.charge(c, amount, now);
                        if model.clients[c].active && random.below(2) == 0 {
                            // It has more, which came before.
                            let since = now - random.below(now.min(3 * AMOUNT) + 1);
                            s.waits_since(c as Client, since);
                            model.clients[c].since = since;
                        }
                    }
                }
            }
            assert_eq!(s.faults(), 0, "{kind:?}");
        }
        assert!(held > 1000, "{kind:?}: limits were hardly met");
        assert!(chosen > 100_000 || kind == SchedulerKind::Wfq, "{kind:?}: hardly a choice: {chosen}");
        assert!(in_place > 500, "{kind:?}: hardly anything in place: {in_place}");
    }
}

/// What two clients that always have something to do get differs by no more than one turn of each.
#[test]
fn fair_within_one_turn_of_each() {
    const CLIENTS: usize = 8;
    const ALWAYS: usize = 5;
    for seed in 1..=20 {
        let mut random = Random(seed);
        let mut s = make(SchedulerKind::Wfq);
        let weights: Vec<u32> =
            (0..CLIENTS).map(|_| 1 + (random.below(1 << 20) >> random.below(20)) as u32).collect();
        let most: Vec<u64> = (0..CLIENTS).map(|_| 1 + random.below(1_000_000)).collect();
        for (c, w) in weights.iter().enumerate() {
            s.configure(c as Client, &weight(*w));
        }
        for c in 0..ALWAYS {
            s.arrive(c as Client, 0);
        }
        let mut got = [0u64; CLIENTS];
        // For each pair the least and the most by which the first was ahead, times both weights.
        let mut ahead = [[(0i128, 0i128); ALWAYS]; ALWAYS];
        let mut now = 0;
        for _ in 0..50_000 {
            // Others come and go, or run in place.
            let other = (ALWAYS as u64 + random.below((CLIENTS - ALWAYS) as u64)) as Client;
            match random.below(6) {
                0 => s.arrive(other, now),
                1 => s.leave(other, now),
                2 if s.may_run(other, now) => s.charge(other, random.below(most[other as usize]), now),
                _ => {}
            }
            let c = s.pick(now).unwrap() as usize;
            let amount = 1 + random.below(most[c]);
            now += amount;
            s.charge(c as Client, amount, now);
            got[c] += amount;
            if c >= ALWAYS {
                continue;
            }
            for other in 0..ALWAYS {
                let (i, j) = (c.min(other), c.max(other));
                let times = |a: u64, c: usize| i128::from(a) * i128::from(weights[c]);
                let by = times(got[i], j) - times(got[j], i);
                let (least, greatest) = &mut ahead[i][j];
                (*least, *greatest) = (by.min(*least), by.max(*greatest));
                // Weights are exact to 10^-9.
                let exact = (times(got[i], j) + times(got[j], i)) / 500_000_000 + 1;
                let bound = times(most[i], j) + times(most[j], i) + exact;
                assert!(*greatest - *least <= bound, "seed {seed}: {i} and {j} are too far apart");
            }
        }
    }
}

/// Shares, of clients with no limits or reservations that never pause.
#[test]
fn shares_are_by_weight() {
    let mut s = make(SchedulerKind::Wfq);
    let weights = [50, 33, 17];
    for (c, w) in weights.into_iter().enumerate() {
        s.configure(c as Client, &weight(w));
        s.arrive(c as Client, 0);
    }
    let (mut got, mut now, mut random) = ([0u64; 3], 0, Random(7));
    while now < 10 * SECOND {
        let c = s.pick(now).unwrap();
        // The first has turns ten times as long.
        let amount = 1 + random.below(if c == 0 { 200_000 } else { 20_000 });
        now += amount;
        s.charge(c, amount, now);
        got[c as usize] += amount;
    }
    for (got, w) in got.into_iter().zip(weights) {
        let part = got as f64 * 100.0 / now as f64;
        assert!((part - f64::from(w)).abs() < 0.01, "{part} for {w}");
    }
}

/// A core that only does what this scheduler says.
struct Core {
    scheduler: Box<dyn Scheduler>,
    now: u64,
    got: [u64; 3],
}

impl Core {
    fn new(clients: [Parameters; 3]) -> Self {
        let mut scheduler = make(SchedulerKind::Wfq);
        for (c, p) in clients.iter().enumerate() {
            scheduler.configure(c as Client, p);
        }
        Core { scheduler, now: 0, got: [0; 3] }
    }

    fn arrive(&mut self, clients: &[Client]) {
        clients.iter().for_each(|c| self.scheduler.arrive(*c, self.now));
    }

    fn leave(&mut self, clients: &[Client]) {
        clients.iter().for_each(|c| self.scheduler.leave(*c, self.now));
    }

    fn charge(&mut self, client: Client, amount: u64) {
        self.now += amount;
        self.scheduler.charge(client, amount, self.now);
        self.got[client as usize] += amount;
    }

    /// Turns of `turn` ns for so long. Value: what parts of the time the clients got.
    fn run(&mut self, time: u64, turn: u64) -> [f64; 3] {
        let (from, until) = (self.now, self.now + time);
        self.got = [0; 3];
        while self.now < until {
            let c = self.scheduler.pick(self.now).unwrap();
            self.charge(c, turn);
        }
        self.got.map(|got| got as f64 / (self.now - from) as f64)
    }
}

fn reservation(weight: u32, percent: u64) -> Parameters {
    Parameters { weight, reservation: percent * SECOND / 100, ..Parameters::default() }
}

/// Half and half, but for some turns.
fn is_even(parts: [f64; 3]) -> bool {
    (parts[0] - parts[1]).abs() < 0.03
}

/// Who did nothing for long has no more than its share afterwards, and who alone used what was there owes nothing for it.
#[test]
fn idleness_earns_nothing() {
    const MS: u64 = 1_000_000;
    let mut core = Core::new([weight(1); 3]);
    core.arrive(&[0]);
    core.run(SECOND, 1000);
    core.arrive(&[1]);
    let parts = core.run(MS / 10, 1000);
    assert!(is_even(parts), "{parts:?}");
    // One that ran in place while nobody else had anything to do.
    core.leave(&[0, 1]);
    for _ in 0..1000 {
        assert!(core.scheduler.may_run(1, core.now));
        core.charge(1, MS);
    }
    core.arrive(&[0, 1]);
    let parts = core.run(MS / 10, 1000);
    assert!(is_even(parts), "{parts:?}");
    // One that had a long last turn, alone.
    core.leave(&[1]);
    core.charge(0, SECOND);
    core.leave(&[0]);
    core.arrive(&[0, 1]);
    let parts = core.run(MS / 10, 1000);
    assert!(is_even(parts), "{parts:?}");
}

/// A turn that can be taken away ends when a reservation is due, or a millisecond beyond the next one's tag.
#[test]
fn turns_end_for_others() {
    const MS: u64 = 1_000_000;
    let near = |a: u64, b: u64| a.abs_diff(b) < 10;
    let mut core = Core::new([weight(2), weight(1), reservation(1, 20)]);
    core.now = SECOND;
    core.arrive(&[0]);
    assert_eq!(core.scheduler.pick(core.now), Some(0));
    assert_eq!(core.scheduler.turn_ends(0, core.now), u64::MAX, "nobody else has anything to do");
    core.arrive(&[1]);
    assert!(near(core.scheduler.turn_ends(0, core.now), core.now + MS), "both have the same tag");
    core.charge(0, MS);
    assert_eq!(core.scheduler.pick(core.now), Some(1));
    assert!(near(core.scheduler.turn_ends(1, core.now), core.now + MS * 3 / 2), "half a millisecond behind");
    let since = core.now;
    core.now += MS / 5;
    core.arrive(&[2]);
    assert!(core.scheduler.turn_ends(1, since) <= core.now, "whose reservation is due");
    core.charge(1, 0);
    assert_eq!(core.scheduler.pick(core.now), Some(2));
    assert_eq!(core.scheduler.turn_ends(2, core.now), u64::MAX, "nobody else has a reservation");
    // 5 ms of its reservation, which it did not use, and 2.5 ms of what comes.
    assert_eq!(CREDIT, 5 * MS);
    core.charge(2, MS * 3 / 2);
    let due = core.now - MS * 3 / 2 + MS * 5 / 2;
    let next = core.scheduler.pick(core.now).unwrap();
    assert_eq!(next, 1);
    assert!(near(core.scheduler.turn_ends(next, core.now), due), "it is due again");
    // Two of them, each beyond its reservation by turns.
    core.scheduler.configure(1, &reservation(1, 40));
    core.charge(next, 1);
    core.now = due + MS;
    assert_eq!(core.scheduler.pick(core.now), Some(1));
    assert!(core.scheduler.turn_ends(1, core.now) >= core.now + MS, "both are due");
}

/// Who runs in place gets no more than its share, after whatever it did before, and waits for those whose reservation is due.
#[test]
fn in_place_is_within_the_share() {
    let mut core = Core::new([weight(1), weight(1), reservation(1, 10)]);
    core.arrive(&[0]);
    core.run(SECOND, 1000);
    let until = core.now + SECOND / 10;
    core.got = [0; 3];
    while core.now < until {
        while core.scheduler.may_run(1, core.now) && core.now < until {
            core.charge(1, 1000);
        }
        let c = core.scheduler.pick(core.now).unwrap();
        core.charge(c, 1000);
    }
    assert!(core.got[1].abs_diff(core.got[0]) <= 2000, "{:?}", core.got);
    // 2 has had more than its share, and gets what is reserved again 10 us after it was charged for the last of what it did
    // not use before.
    core.leave(&[0]);
    core.arrive(&[2]);
    core.run(CREDIT / 9, 1000);
    assert!(core.scheduler.may_run(1, core.now));
    core.now += 10_000;
    assert!(!core.scheduler.may_run(1, core.now));
    core.leave(&[2]);
    assert!(core.scheduler.may_run(1, core.now));
}

/// Messages that cost nothing don't keep others from their turn for ever.
#[test]
fn turns_for_nothing_end() {
    let mut core = Core::new([weight(1); 3]);
    core.arrive(&[0, 1]);
    for _ in 0..2 {
        let picked = [0; 4].map(|_| {
            let c = core.scheduler.pick(0).unwrap();
            core.charge(c, u64::from(c));
            c
        });
        assert_eq!(picked.iter().map(|c| u64::from(*c)).sum::<u64>(), 2, "{picked:?}");
    }
}

/// Who asks now and then, and for less than is reserved on the whole, has it at once; after long idleness, no more than
/// was reserved for a moment.
#[test]
fn a_little_idleness_of_a_reservation_is_made_up_for() {
    const MS: u64 = 1_000_000;
    const TURN: u64 = 50_000;
    let mut core = Core::new([reservation(1, 30), weight(1000), weight(1)]);
    core.arrive(&[1]);
    // A millisecond of work every 5 ms is 20 %.
    for n in 1..100 {
        while core.now < n * 5 * MS {
            let client = core.scheduler.pick(core.now).unwrap();
            core.charge(client, TURN);
        }
        core.arrive(&[0]);
        for _ in 0..MS / TURN {
            assert_eq!(core.scheduler.pick(core.now), Some(0), "request {n}");
            core.charge(0, TURN);
        }
        core.leave(&[0]);
    }
    core.run(10 * SECOND, 10_000);
    core.arrive(&[0]);
    let (begun, mut got) = (core.now, 0);
    while core.now < begun + 20 * MS {
        let client = core.scheduler.pick(core.now).unwrap();
        core.charge(client, TURN);
        got += if client == 0 { TURN } else { 0 };
        let most = (core.now - begun + CREDIT) * 3 / 10 + TURN;
        assert!(got <= most, "{got} of {most}");
    }
    assert!(got > (20 * MS + CREDIT) * 29 / 100 - TURN);
}

/// What somebody got by its share doesn't count as its reservation, be it in turns or in place.
#[test]
fn shares_leave_reservations_alone() {
    for in_place in [false, true] {
        let mut core = Core::new([reservation(1, 30), weight(1000), weight(1)]);
        core.arrive(&[0]);
        core.run(SECOND, 10_000);
        if in_place {
            // The last turn is one that is reserved, but what comes after it isn't.
            core.now += SECOND;
            core.run(1, 1);
            core.leave(&[0]);
            (0..10_000).for_each(|_| core.charge(0, SECOND / 1000));
        } else {
            core.run(10 * SECOND, 10_000);
        }
        core.arrive(&[0, 1]);
        let parts = core.run(SECOND / 10, 10_000);
        assert!(parts[0] > 0.28 && parts[0] < 0.32, "{parts:?}");
    }
}

/// Who only ever runs in place has what is reserved for it by that, and no more.
#[test]
fn what_runs_in_place_uses_up_its_reservation() {
    let mut core = Core::new([reservation(1, 30), weight(1000), weight(1)]);
    core.arrive(&[1]);
    core.run(SECOND, 10_000);
    (core.got, core.now) = ([0; 3], 2 * SECOND);
    while core.now < 3 * SECOND {
        while core.now < 3 * SECOND && core.scheduler.may_run(0, core.now) {
            core.charge(0, 10_000);
        }
        let client = core.scheduler.pick(core.now).unwrap();
        core.charge(client, 10_000);
    }
    let most = (SECOND + CREDIT) * 3 / 10 + 20_000;
    assert!(core.got[0] <= most && core.got[0] >= SECOND * 29 / 100, "{:?}", core.got);
}

/// Reservations that can't be held are made up for a little while only.
#[test]
fn too_much_reserved_is_not_owed_for_long() {
    let mut core = Core::new([reservation(1, 80), reservation(1, 80), weight(1000)]);
    core.arrive(&[0, 1, 2]);
    let parts = core.run(10 * SECOND, 10_000);
    assert!(is_even(parts) && parts[2] < 0.01, "{parts:?}");
    core.leave(&[1]);
    let parts = core.run(SECOND, 10_000);
    // What 100 ms are worth, and 80 % of the time after that.
    assert!(parts[2] > 0.1 && parts[2] < 0.21, "{parts:?}");
}

/// Who gets more by a reservation than by its share owes nothing when that is taken away.
#[test]
fn other_terms_begin_anew() {
    let mut core = Core::new([reservation(1, 60), weight(1000), weight(1)]);
    core.arrive(&[0, 1]);
    core.run(10 * SECOND, 10_000);
    core.scheduler.configure(0, &weight(1000));
    let parts = core.run(SECOND / 100, 10_000);
    assert!(is_even(parts), "{parts:?}");
}

/// A reservation is held over every stretch of time, less the turns that stand in between, and whoever gets more by its
/// share gets that.
#[test]
fn reservations_are_held() {
    const CLIENTS: usize = 6;
    const TURN: u64 = 100_000;
    for seed in 1..=10 {
        let mut random = Random(seed);
        let mut s = make(SchedulerKind::Wfq);
        // 0 and 1 never pause, and 1 has little weight; 2 comes and goes; 3 to 5 flood.
        let reserved = [300_000_000, 250_000_000, 100_000_000, 0, 0, 0];
        let weights = [1000, 1, 1, 500, 500, 100];
        for c in 0..CLIENTS {
            let p = Parameters { weight: weights[c], reservation: reserved[c], ..Parameters::default() };
            s.configure(c as Client, &p);
            s.arrive(c as Client, 0);
        }
        let (mut got, mut now) = ([0u64; CLIENTS], 0);
        let mut most = [i128::MIN; 2];
        while now < 20 * SECOND {
            match random.below(100) {
                0 => s.arrive(2, now),
                1 => s.leave(2, now),
                2 => s.arrive(5, now),
                3 => s.leave(5, now),
                _ => {}
            }
            let c = s.pick(now).unwrap() as usize;
            let amount = 1 + random.below(TURN);
            now += amount;
            s.charge(c as Client, amount, now);
            got[c] += amount;
            for c in 0..2 {
                let ahead =
                    i128::from(got[c]) - i128::from(now) * i128::from(reserved[c]) / i128::from(SECOND);
                most[c] = most[c].max(ahead);
                // Of 1, which gets no more than is reserved, what is true from the start is true from everywhere; 0 has
                // what is reserved on top of whatever it got before.
                let slack = i128::from(4 * TURN);
                assert!(
                    if c == 1 { ahead >= most[c] - slack } else { ahead >= -slack },
                    "seed {seed}: {c} {ahead}"
                );
            }
        }
        let part = |c: usize| got[c] as f64 / now as f64;
        assert!(
            (part(1) - 0.25).abs() < 0.001,
            "no more than is reserved, by a weight of nearly nothing: {}",
            part(1)
        );
        assert!(part(0) > 0.305, "the greater of reservation and share: {}", part(0));
        assert!((part(3) - part(4)).abs() < 0.001);
    }
}

/// One with a limit and a great weight gets its limit, and the rest is the others'.
#[test]
fn limits_leave_the_rest_to_others() {
    for kind in KINDS {
        let mut s = make(kind);
        let limit = SECOND / 10;
        s.configure(
            0,
            &Parameters { weight: 1000, limit, priority: 9, deadline: 1, ..Parameters::default() },
        );
        s.configure(1, &weight(1));
        s.arrive(0, 0);
        s.arrive(1, 0);
        let (mut got, mut now) = ([0u64; 2], 0);
        while now < 10 * SECOND {
            let c = s.pick(now).unwrap();
            now += 10_000;
            s.charge(c, 10_000, now);
            got[c as usize] += 10_000;
        }
        let most = limit as u128 * u128::from(now + BURST) / u128::from(SECOND) + 10_000;
        assert!(u128::from(got[0]) <= most, "{kind:?}: {} of {most}", got[0]);
        assert!(u128::from(got[0]) * 100 >= most * 99, "{kind:?}: {} of {most}", got[0]);
        // Without the limit there is no trace of it.
        s.leave(1, now);
        assert_eq!(s.pick(now).is_none(), s.next(now) != u64::MAX);
        s.configure(0, &weight(1));
        assert_eq!(s.pick(now), Some(0));
        assert_eq!(s.next(now), u64::MAX);
    }
}

#[test]
fn round_robin_takes_turns() {
    let mut s = make(SchedulerKind::RoundRobin);
    for c in 0..5 {
        s.configure(c, &weight(1));
        s.arrive(c, 0);
    }
    for i in 0..20 {
        assert_eq!(s.pick(0), Some(i % 5));
    }
    // Who comes back is last.
    s.leave(0, 0);
    s.arrive(0, 0);
    for c in [1, 2, 3, 4, 0] {
        assert_eq!(s.pick(0), Some(c));
    }
}

#[test]
fn priorities_come_first() {
    let mut s = make(SchedulerKind::Priority);
    for (c, priority) in [i32::MIN, 5, 5, i32::MAX].into_iter().enumerate() {
        s.configure(c as Client, &Parameters { priority, ..Parameters::default() });
        s.arrive(c as Client, 0);
    }
    assert_eq!([s.pick(0), s.pick(0)], [Some(3); 2]);
    s.leave(3, 0);
    assert!(s.may_run(3, 0));
    assert_eq!([s.pick(0), s.pick(0), s.pick(0)], [Some(1), Some(2), Some(1)]);
    s.configure(2, &Parameters { priority: 6, ..Parameters::default() });
    assert_eq!([s.pick(0), s.pick(0)], [Some(2); 2]);
    s.leave(1, 0);
    s.leave(2, 0);
    assert_eq!(s.pick(0), Some(0));
}

#[test]
fn deadlines_come_first() {
    let mut s = make(SchedulerKind::Deadline);
    for (c, deadline) in [0, 300, 200, u64::MAX].into_iter().enumerate() {
        s.configure(c as Client, &Parameters { deadline, ..Parameters::default() });
    }
    s.arrive(0, 0);
    s.arrive(3, 0);
    s.arrive(1, 10);
    s.arrive(2, 100);
    // Due at 300 and 310.
    assert_eq!(s.pick(110), Some(2));
    s.charge(2, 10, 120);
    assert_eq!(s.pick(120), Some(1));
    // What it has now came at 100, too, and is due at 300.
    s.waits_since(2, 100);
    assert_eq!(s.pick(120), Some(2));
    s.leave(1, 120);
    s.leave(2, 120);
    assert!(s.may_run(2, 120));
    // Late ones and those that have no deadline, and that not a number is out of range.
    assert_eq!(s.pick(u64::MAX), Some(3));
    s.leave(3, 0);
    assert_eq!(s.pick(0), Some(0));
    assert!(s.may_run(3, u64::MAX));
}

/// Numbers at the end of their range make nothing wrong.
#[test]
fn extremes() {
    for kind in KINDS {
        let mut s = Checked::new(make(kind));
        for (c, n) in [0, 1, u64::MAX].into_iter().enumerate() {
            let p = Parameters {
                weight: n.min(u64::from(u32::MAX)) as u32,
                reservation: n,
                limit: n,
                priority: n as i32,
                deadline: n,
            };
            s.configure(c as Client, &p);
        }
        for now in [0, 1, u64::MAX - 1, u64::MAX, 5] {
            for c in 0..3 {
                s.arrive(c, now);
                s.charge(c, u64::MAX, now);
                let _ = (s.may_run(c, now), s.next(now), s.pick(now));
                s.charge(c, 0, now);
            }
            s.leave(2, now);
        }
        // Those that were never heard of.
        s.leave(77, 0);
        s.charge(77, 5, 0);
        s.forget(77);
        assert!(!s.may_run(77, 0));
        s.arrive(9, 0);
        assert_eq!(s.faults(), 0, "{kind:?}");
    }
}

/// Answers at random.
pub(crate) struct Nonsense(pub Random);

impl Scheduler for Nonsense {
    fn arrive(&mut self, _: Client, _: u64) {}
    fn pick(&mut self, _: u64) -> Option<Client> {
        (self.0.below(4) != 0).then(|| self.0.below(24) as Client)
    }
    fn charge(&mut self, _: Client, _: u64, _: u64) {}
    fn leave(&mut self, _: Client, _: u64) {}
    fn configure(&mut self, _: Client, _: &Parameters) {}
    fn forget(&mut self, _: Client) {}
    fn next(&self, now: u64) -> u64 {
        [0, now, now + 1, u64::MAX][(self.0.0 >> 20) as usize % 4]
    }
    fn may_run(&self, _: Client, _: u64) -> bool {
        self.0.0 & 1 == 0
    }
}

/// With a scheduler that answers nonsense everything is done all the same.
#[test]
fn nonsense_loses_nothing() {
    const CLIENTS: usize = 16;
    for seed in 1..=200 {
        let mut random = Random(seed);
        let mut s = Checked::new(Nonsense(Random(seed * 77)));
        for c in 0..CLIENTS {
            let limit = if c % 3 == 0 { 1_000_000 } else { 0 };
            s.configure(c as Client, &Parameters { limit, ..Parameters::default() });
        }
        let (mut waiting, mut now, mut left) = ([0u32; CLIENTS], 0, 1000);
        while left > 0 || waiting.iter().any(|n| *n != 0) {
            if left > 0 && random.below(2) == 0 {
                let c = random.below(CLIENTS as u64) as usize;
                if waiting[c] == 0 {
                    s.arrive(c as Client, now);
                }
                waiting[c] += 1;
                left -= 1;
            }
            let Some(c) = s.pick(now) else {
                if waiting.iter().any(|n| *n != 0) {
                    assert!(waiting.iter().enumerate().all(|(c, n)| *n == 0 || c % 3 == 0));
                    assert!(s.next(now) > now);
                    now = s.next(now);
                }
                continue;
            };
            waiting[c as usize] -= 1;
            now += 10;
            s.charge(c, 10, now);
            if waiting[c as usize] == 0 {
                s.leave(c, now);
            }
        }
        assert!(s.replaced());
        assert_eq!(s.faults(), FAULTS_MAX);
        // A good one in its place, which has what limits there were.
        let mut good = s.replace(make(SchedulerKind::Wfq), now);
        assert_eq!(good.clients().filter(|(_, p, _)| p.limit == 1_000_000).count(), CLIENTS.div_ceil(3));
        good.arrive(5, now);
        assert_eq!(good.pick(now), Some(5));
        assert_eq!(good.faults(), 0);
    }
}

/// Whoever is picked instead of nobody known has no limit, if there is such a one.
#[test]
fn mended_answers_keep_to_limits() {
    struct Wrong;
    impl Scheduler for Wrong {
        fn arrive(&mut self, _: Client, _: u64) {}
        fn pick(&mut self, _: u64) -> Option<Client> {
            Some(99)
        }
        fn charge(&mut self, _: Client, _: u64, _: u64) {}
        fn leave(&mut self, _: Client, _: u64) {}
        fn configure(&mut self, _: Client, _: &Parameters) {}
        fn forget(&mut self, _: Client) {}
        fn next(&self, _: u64) -> u64 {
            0
        }
        fn may_run(&self, _: Client, _: u64) -> bool {
            true
        }
    }
    let mut s = Checked::new(Wrong);
    s.configure(0, &Parameters { limit: 5, ..Parameters::default() });
    s.arrive(0, 0);
    assert_eq!(s.pick(0), Some(0));
    (1..3).for_each(|c| s.arrive(c, 0));
    for turn in 0..10 {
        assert_eq!(s.pick(0), Some(1 + turn % 2));
    }
    assert!(!s.replaced());
    // The other scheduler knows who has what to do, and the limit.
    s.leave(1, 0);
    let after: Vec<_> = (0..20).map(|_| s.pick(0).unwrap()).collect();
    assert!(s.replaced() && after[10..].contains(&0));
    s.charge(0, 1000, 0);
    assert!((0..20).all(|_| s.pick(0) == Some(2)));
}

/// A scheduler that is right but for a few answers stays in its place.
#[test]
fn a_few_faults_are_mended() {
    struct Lapse(Box<dyn Scheduler>, u32);
    impl Scheduler for Lapse {
        fn arrive(&mut self, c: Client, now: u64) {
            self.0.arrive(c, now);
        }
        fn pick(&mut self, now: u64) -> Option<Client> {
            self.1 += 1;
            if self.1.is_multiple_of(100) { Some(9) } else { self.0.pick(now) }
        }
        fn charge(&mut self, c: Client, a: u64, now: u64) {
            self.0.charge(c, a, now);
        }
        fn leave(&mut self, c: Client, now: u64) {
            self.0.leave(c, now);
        }
        fn configure(&mut self, c: Client, p: &Parameters) {
            self.0.configure(c, p);
        }
        fn forget(&mut self, c: Client) {
            self.0.forget(c);
        }
        fn next(&self, now: u64) -> u64 {
            self.0.next(now)
        }
        fn may_run(&self, c: Client, now: u64) -> bool {
            self.0.may_run(c, now)
        }
    }
    let mut s = Checked::new(Lapse(make(SchedulerKind::Wfq), 0));
    for c in 0..2 {
        s.configure(c, &weight(1 + 2 * u32::from(c)));
        s.arrive(c, 0);
    }
    let mut got = [0; 2];
    for now in 0..1000 {
        let c = s.pick(now).unwrap();
        s.charge(c, 1, now);
        got[c as usize] += 1;
    }
    assert_eq!((s.faults(), s.replaced()), (10, false));
    assert!(got[1] > 740 && got[1] < 760, "{got:?}");
}

/// What a turn costs: `cargo test -p atoll-grid --release -- --ignored --nocapture costs`.
#[test]
#[ignore = "measures"]
fn costs() {
    fn measure(name: &str, mut turn: impl FnMut(u64)) {
        // Short enough for some of the rounds to have the processor for themselves.
        const TURNS: u64 = 1_000;
        let (start, mut best) = (std::time::Instant::now(), f64::MAX);
        while start.elapsed().as_millis() < 100 {
            let begun = std::time::Instant::now();
            for i in 0..TURNS {
                turn(i);
            }
            best = best.min(begun.elapsed().as_nanos() as f64 / TURNS as f64);
        }
        eprintln!("{best:7.1} ns  {name}");
    }
    for (clients, all) in [(3u16, true), (16, false), (256, false)] {
        for kind in KINDS {
            for (what, parameters) in [
                ("", weight(100)),
                (", limits", Parameters { limit: u64::MAX >> 20, ..weight(100) }),
                (", reservations", Parameters { reservation: 1_000_000, ..weight(100) }),
            ] {
                if !(all || what.is_empty() || kind == SchedulerKind::Wfq) {
                    continue;
                }
                let mut s = Checked::new(make(kind));
                for c in 0..clients {
                    s.configure(c, &parameters);
                    s.arrive(c, 0);
                }
                let mut now = 0;
                measure(&std::format!("pick and charge, {kind:?}, {clients} clients{what}"), |i| {
                    now += 1000;
                    let c = s.pick(now).unwrap();
                    s.charge(c, 900 + (i & 127), now);
                });
                measure(
                    &std::format!("arrive, pick, charge, leave, {kind:?}, {clients} clients{what}"),
                    |i| {
                        now += 1000;
                        let c = s.pick(now).unwrap();
                        s.charge(c, 900 + (i & 127), now);
                        s.leave(c, now);
                        s.arrive(c, now);
                    },
                );
                for c in 0..clients {
                    s.leave(c, now);
                }
                measure(&std::format!("in place, {kind:?}, {clients} clients{what}"), |i| {
                    now += 1000;
                    if s.may_run(1, now) {
                        s.charge(1, 900 + (i & 127), now);
                    }
                });
            }
        }
    }
    // What was not taken: a scan of the keys.
    for clients in [3usize, 16, 256] {
        let mut keys: Vec<u128> = vec![1; clients];
        measure(&std::format!("scan and set, {clients} clients"), |i| {
            let (mut first, mut least) = (0, u128::MAX);
            for (c, k) in std::hint::black_box(&keys).iter().enumerate() {
                if *k < least {
                    (first, least) = (c, *k);
                }
            }
            keys[first] += u128::from(900 + (i & 127));
        });
    }
}
