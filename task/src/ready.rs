//! A core's ready threads, and who of them is next.
//!
//! They stand in a line by what they have had lately, weighed by their nice values (`fair.rs`): who has had least is next, until
//! that one has overtaken the one behind it by a grain. Threads of a real-time policy go before all others, by their priorities.
//!
//! As long as the cell has one class, there is one line. A *class* is an activity that the configuration names, or the
//! cell itself for all others; with more than one, each has a line of its own, and a scheduler of the grid divides the
//! core's time between the lines (Omni-kernel, sections 3.2 and 4: threads are the clients of the thread resource).
//! Threads of the runtime that work for no activity, but handle events, go before all of these when they are woken. A message of a class
//! that they have to run (`messages.rs`) is run when it is the class's turn, as its threads are.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::fair::{GRAIN, NORMAL, Units, Used};
use crate::queue::{Order, Queue};
use crate::thread::ThreadRef;
use atoll_abi::grid::{Parameters, SchedulerKind};
use atoll_grid::scheduler::{Checked, Client, Scheduler, make};

/// One thread, in averages.
pub(crate) const ONE: u32 = 256;
/// Longest a thread runs while others of its core are ready, ns.
pub const SLICE: u64 = 3_000_000;
/// How long it runs at least before another class takes its place, ns.
pub(crate) const LEAST: u64 = 50_000;
/// The shortest turn of a thread that is not to give way at once, ns: to ask for a deadline takes a part of it.
const SHORTEST: u64 = 200_000;
/// How many of these a slice is: with less than such a part of the normal weight, turns are longer than it stands for.
const SHORTEST_PARTS: u32 = (SLICE / SHORTEST) as u32;
/// How long a turn of a thread of SCHED_RR is, if another one of its priority is ready, ns.
pub const ROUND: u64 = 100_000_000;

/// Ranks: of the runtime's own, of real-time priorities (this less the priority), and of all others.
const OWN: u64 = 0;
const REAL_TIME: u64 = 100;
const ALL: u64 = crate::queue::LAST;

/// Of each second, real-time threads have so much at most while others wait, and those the rest, ns (sched(7):
/// sched_rt_runtime_us, sched_rt_period_us): one that never sleeps doesn't stop its cell.
const URGENT_MOST: u64 = 950_000_000;
const SPARED: u64 = 50_000_000;

/// How a thread is scheduled beside others of its class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// By its weight, what it has had lately being counted ([`crate::weight_of`]).
    Fair(u32),
    /// Before all of those and lower priorities (1 to 99), first come first.
    Fifo(u32),
    /// The same, and those of one priority take turns.
    RoundRobin(u32),
}

impl Policy {
    /// As a word.
    pub(crate) fn to_word(self) -> u32 {
        match self {
            Policy::Fair(weight) => weight & 0xff_ffff,
            Policy::Fifo(priority) => 1 << 24 | priority,
            Policy::RoundRobin(priority) => 2 << 24 | priority,
        }
    }

    /// From what [`Policy::to_word`] gave.
    pub(crate) fn from_word(word: u32) -> Policy {
        let n = word & 0xff_ffff;
        match word >> 24 {
            0 => Policy::Fair(n),
            1 => Policy::Fifo(n),
            _ => Policy::RoundRobin(n),
        }
    }

    fn rank(self) -> u64 {
        match self {
            Policy::Fair(_) => ALL,
            Policy::Fifo(priority) | Policy::RoundRobin(priority) => {
                REAL_TIME - u64::from(priority.clamp(1, 99))
            }
        }
    }
}

/// Why a thread comes into the line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Why {
    /// It was woken, or comes from another core.
    Woken,
    /// It was in the middle of its work.
    Preempted,
    /// It lets others go first.
    Yields,
    /// One of the runtime's own goes on, before all but others of them.
    Own,
}

/// What a core is to do next.
#[derive(Clone, Copy)]
pub(crate) enum Next {
    /// Run this thread.
    Thread(ThreadRef),
    /// Have the messages of this class run.
    Messages(u32),
}

/// A line of threads, and what is known of those that were in it.
struct Line {
    queue: Queue,
    /// Messages of the class wait for its turn; the turn that it had last was theirs.
    messages: bool,
    told: bool,
    /// The most that one of them has had which was put into it: who yields goes behind that.
    most: Used,
    /// What those have had about whom others were preferred. Who has been away does not begin far below that.
    level: Used,
    /// What real-time threads have had while others waited, less what those had in proportion; and, once that is all that they may
    /// have, how much of what is spared for others those have had, ns.
    urgent: u64,
    spared: u64,
    /// Since when one of those others has waited, if one does.
    waits_since: u64,
}

/// The longest turn of a thread of this weight, ns. Who has less has shorter ones, so that nobody waits longer for them.
fn longest(weight: u32) -> u64 {
    (SLICE * u64::from(weight.min(NORMAL)) / u64::from(NORMAL)).max(SHORTEST)
}

impl Line {
    const fn new() -> Self {
        Line {
            queue: Queue::new(),
            messages: false,
            told: false,
            most: Used::NONE,
            level: Used::NONE,
            urgent: 0,
            spared: 0,
            waits_since: 0,
        }
    }

    /// Has the class nothing to do?
    fn is_idle(&self) -> bool {
        self.queue.is_empty() && !self.messages
    }

    fn push(&mut self, t: ThreadRef, why: Why, now: u64, units: &Units) {
        let (rank, used) = (t.policy().rank(), t.used());
        if rank == ALL && !self.queue.has_last() {
            self.waits_since = now;
        }
        let order = match why {
            _ if rank != ALL => Order { rank, used: Used::NONE, first: why == Why::Preempted },
            Why::Yields => Order { rank, used: used.max(self.most), first: false },
            _ => Order { rank, used, first: false },
        };
        if rank == ALL {
            self.most = if self.queue.is_empty() { order.used } else { self.most.max(order.used) };
            if why == Why::Preempted {
                // Less its last turn: that may have been a long step for one of little weight.
                let short = t.weight() * SHORTEST_PARTS < NORMAL;
                let turn =
                    units.grain.plus(if short { units.of_turn(SHORTEST, t.weight()) } else { units.grain });
                self.level = self.level.max(used.less(turn));
            }
        }
        self.queue.push(t, order);
    }

    /// Is one in front that goes before all that have a weight?
    fn has_urgent(&self) -> bool {
        self.queue.first_place().is_some_and(|(rank, _)| rank != ALL)
    }

    /// Have real-time threads had so much that others are to have a turn?
    fn spares(&self) -> bool {
        self.urgent >= URGENT_MOST
    }

    /// A thread of it has run for `ran` ns, up to `now`, and is not in it.
    fn charge(&mut self, t: ThreadRef, ran: u64, now: u64) {
        if t.policy().rank() != ALL {
            if self.queue.has_last() {
                self.urgent += ran.min(now.saturating_sub(self.waits_since));
            } else {
                // Nobody waits.
                (self.urgent, self.spared) = (0, 0);
            }
        } else if self.spares() {
            self.spared += ran;
            if self.spared >= SPARED {
                (self.urgent, self.spared) = (0, 0);
            }
        } else {
            self.urgent = self.urgent.saturating_sub(ran.saturating_mul(URGENT_MOST / SPARED));
        }
    }

    fn pop(&mut self, units: &Units) -> Option<ThreadRef> {
        let own = self.queue.first_place().is_some_and(|(rank, _)| rank == OWN);
        let spared = if self.spares() && !own { self.queue.take_last() } else { None };
        let t = spared.or_else(|| self.queue.pop())?;
        t.set_used(t.used().woken(self.level, units));
        Some(t)
    }

    /// When a thread that runs since `since` is to give way to the one in front; `u64::MAX`: not to that one.
    fn turn_ends(&self, running: Option<ThreadRef>, since: u64, units: &Units) -> u64 {
        let Some((rank, next)) = self.queue.first_place() else { return u64::MAX };
        let Some(running) = running else { return since };
        let policy = running.policy();
        let rest = if policy.rank() != ALL && self.queue.has_last() {
            since.max(self.waits_since).saturating_add(URGENT_MOST.saturating_sub(self.urgent))
        } else {
            u64::MAX
        };
        let weight = match policy {
            Policy::Fair(_) if self.spares() && (REAL_TIME - 99..ALL).contains(&rank) => {
                return since + SPARED.saturating_sub(self.spared).clamp(SHORTEST, SLICE);
            }
            _ if rank < policy.rank() => return since,
            _ if rank > policy.rank() => return rest,
            Policy::Fifo(_) => return rest,
            Policy::RoundRobin(_) => return rest.min(since + ROUND),
            Policy::Fair(weight) => weight,
        };
        let ahead = next.woken(self.level, units).plus(units.grain).less(running.used());
        if ahead < units.little {
            return since;
        }
        since + ahead.time(weight, units).clamp(SHORTEST, longest(weight))
    }
}

/// How often a core looks which part of each class it has, ns.
const LOOK_EVERY: u64 = 8_000_000;
/// Parts of a unit of weight.
const FINER: u64 = 256;

/// Several classes, and who divides the core between them.
struct Classes {
    /// What they are to have of the whole cell.
    division: Vec<(u32, Parameters)>,
    looked: u64,
    /// By the activity's number.
    lines: Vec<Line>,
    scheduler: Checked<Box<dyn Scheduler>>,
    /// The class whose thread was taken last. It has something to do until it is settled.
    serving: Option<Client>,
    /// Since when, and until when as far as the scheduler goes.
    since: u64,
    until: u64,
    telling: Option<Telling>,
}

/// It is the turn of a class's messages.
#[derive(Clone, Copy)]
struct Telling {
    client: Client,
    /// How long it is, ns.
    time: u64,
    /// When the first of them has begun: one may in any case.
    begun: Option<u64>,
}

impl Telling {
    /// May the next one begin?
    fn goes_on(&mut self, now: u64) -> bool {
        let begun = *self.begun.get_or_insert(now);
        now.saturating_sub(begun) < self.time
    }
}

/// Ready threads of one core.
pub(crate) struct Ready {
    /// All of them, or those that go before the classes.
    front: Line,
    classes: Option<Box<Classes>>,
    /// Threads, and classes whose messages wait.
    len: usize,
    /// The thread that was taken last, since when, and until when as far as those in front go.
    running: Option<ThreadRef>,
    since: u64,
    until: u64,
    /// `until` is to be found out. Then the turn ends no sooner than after `at_least`.
    look: bool,
    at_least: u64,
    units: Units,
    /// The configuration by which it goes.
    pub generation: u32,
}

/// How the classes of a cell are to share its cores.
#[derive(Clone, Debug, Default)]
pub(crate) struct Division {
    /// Who divides.
    pub scheduler: SchedulerKind,
    /// Activities and what they are to have; the cell itself is one of them. Empty: there is one class.
    pub classes: Vec<(u32, Parameters)>,
}

impl Ready {
    pub const fn new() -> Self {
        Ready {
            front: Line::new(),
            classes: None,
            len: 0,
            running: None,
            since: 0,
            until: u64::MAX,
            look: false,
            at_least: 0,
            units: Units::new(),
            generation: 0,
        }
    }

    /// How many there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Goes by another division from now on. Threads keep their places in their classes.
    pub fn divide(&mut self, division: &Division, generation: u32, now: u64) {
        self.generation = generation;
        let mut waiting = Line::new();
        // With one class, those in front are all there are.
        let one = self.classes.is_none();
        let mut serving = None;
        if one {
            core::mem::swap(&mut self.front, &mut waiting);
        }
        if let Some(mut old) = self.classes.take() {
            serving = old.serving;
            for line in &mut old.lines {
                // They are asked for again.
                self.len -= usize::from(line.messages);
                while let Some(t) = line.queue.pop() {
                    waiting.push(t, Why::Woken, now, self.units.at(now));
                }
            }
        }
        if !division.classes.is_empty() {
            let last = division.classes.iter().map(|(activity, _)| *activity).max().unwrap_or(0);
            let mut classes = Box::new(Classes {
                division: division.classes.clone(),
                looked: now,
                lines: (0..=last).map(|_| Line::new()).collect(),
                scheduler: Checked::new(make(division.scheduler)),
                serving: None,
                since: now,
                until: u64::MAX,
                telling: None,
            });
            for (activity, parameters) in &division.classes {
                classes.scheduler.configure(*activity as Client, parameters);
            }
            if let Some(client) = serving {
                classes.scheduler.arrive(client, now);
                classes.serving = serving;
            }
            self.classes = Some(classes);
        }
        self.len = if one { 0 } else { self.len.saturating_sub(waiting.queue.len()) };
        while let Some(t) = waiting.queue.pop() {
            self.push(t, Why::Woken, now);
        }
    }

    /// A thread is ready. `now` may be a while ago.
    #[inline]
    pub fn push(&mut self, t: ThreadRef, why: Why, now: u64) {
        if why == Why::Own {
            return self.push_own(t);
        }
        self.len += 1;
        // Who takes turns goes behind the others after that. Between classes, turns are shorter.
        let round = if self.classes.is_some() { 0 } else { ROUND };
        let over = why == Why::Preempted && now.saturating_sub(self.since) >= round;
        let why = if over && matches!(t.policy(), Policy::RoundRobin(_)) { Why::Yields } else { why };
        match &mut self.classes {
            None => {
                self.front.push(t, why, now, self.units.at(now));
                if self.front.queue.first().is_some_and(|first| core::ptr::eq(first, t)) {
                    self.look_at_turn();
                }
            }
            Some(classes) => classes.push(t, why, now, self.units.at(now)),
        }
    }

    /// Somebody else may be in front, or who runs has another policy.
    pub fn look_at_turn(&mut self) {
        (self.look, self.at_least) = (true, 0);
    }

    /// The thread has run for `ran` ns, up to `now`, and is not in a line.
    #[inline]
    pub fn charge(&mut self, t: ThreadRef, ran: u64, now: u64) {
        t.set_used(t.used().after_short(ran, t.weight(), self.units.at(now)));
        match &mut self.classes {
            None => self.front.charge(t, ran, now),
            Some(classes) => classes.line(t.class() as usize).charge(t, ran, now),
        }
    }

    /// A thread has been woken.
    #[inline]
    pub fn wake(&mut self, t: ThreadRef, now: u64) {
        if t.works_for_somebody() {
            return self.push(t, Why::Woken, now);
        }
        self.push_own(t);
    }

    fn push_own(&mut self, t: ThreadRef) {
        self.len += 1;
        self.front.queue.push(t, Order { rank: OWN, used: Used::NONE, first: false });
        self.look_at_turn();
    }

    /// The thread that was taken last, of this class, has run for `ran` ns and is not at it any more. If it is still
    /// ready, it has been pushed before.
    #[inline]
    pub fn settle(&mut self, ran: u64, now: u64) {
        self.running = None;
        if let Some(classes) = &mut self.classes {
            classes.settle(ran, now);
        }
    }

    /// The core has worked for a class in a thread that is no one's.
    pub fn charge_class(&mut self, class: u32, ran: u64, now: u64) {
        if let Some(classes) = &mut self.classes {
            classes.scheduler.charge_aside(class as Client, ran, now);
        }
    }

    /// May a message of this class run now? Else it waits: [`Ready::pop`] says when.
    pub fn may_serve(&mut self, class: u32, now: u64) -> bool {
        let Some(classes) = &mut self.classes else { return true };
        let may = classes.may_serve(class, now);
        let line = classes.line(class as usize);
        if !may && !line.messages {
            let first = line.is_idle();
            line.messages = true;
            self.len += 1;
            if first {
                classes.arrive(class as Client, now);
            }
        }
        may
    }

    /// Takes what is next. None: there is nothing, or nothing that may run now.
    #[inline]
    pub fn pop(&mut self, now: u64) -> Option<Next> {
        let units = self.units.at(now);
        let next = match self.front.pop(units) {
            Some(t) => Some(Next::Thread(t)),
            None => self.classes.as_mut()?.pop(now, units),
        };
        self.len -= usize::from(next.is_some());
        let t = match next {
            Some(Next::Messages(_)) => return next,
            Some(Next::Thread(t)) => Some(t),
            None => None,
        };
        (self.running, self.since) = (t, now);
        self.look_at_turn();
        // Who is in front has had no less.
        if t.is_some_and(|t| t.policy() == Policy::Fair(NORMAL)) && !self.front.has_urgent() {
            self.at_least = GRAIN / 2;
        }
        next
    }

    /// Is there more than one class?
    #[inline]
    pub fn is_divided(&self) -> bool {
        self.classes.is_some()
    }

    /// When the turn of the thread ends that was taken last, at `since`, while others are ready. May have passed.
    #[inline]
    pub fn turn_ends(&mut self, since: u64) -> u64 {
        match &self.classes {
            None => {
                if core::mem::take(&mut self.look) {
                    self.until = self.front.turn_ends(self.running, self.since, &self.units);
                }
                // What was found out of it is of when it was taken.
                self.until.saturating_sub(self.since).saturating_add(since)
            }
            // Those in front go before all classes.
            Some(_) if !self.front.queue.is_empty() => since + LEAST,
            Some(classes) => classes.until.clamp(since + LEAST, since + SLICE),
        }
    }

    /// May the thread that runs go on for a while before the one in front, which it has woken? Not before one that counts for more, and
    /// between classes their schedulers decide.
    pub fn may_spare(&self) -> bool {
        let (Some(running), Some(first)) = (self.running, self.front.queue.first()) else { return false };
        let is_fair = matches!(running.policy(), Policy::Fair(_)) && !self.front.has_urgent();
        self.classes.is_none() && is_fair && running.weight() >= first.weight()
    }

    /// A time before which it does not: enough to know for who has a deadline by then.
    #[inline]
    pub fn turn_ends_after(&mut self, since: u64) -> u64 {
        if self.look && self.at_least > 0 { since + self.at_least } else { self.turn_ends(since) }
    }

    /// Has that thread, to which the core has come, had enough of its turn? It need not come again for the rest.
    #[inline]
    pub fn is_turn_over(&mut self, since: u64, now: u64) -> bool {
        self.len > 0 && now >= self.turn_ends(since).min(since + SLICE / 2)
    }

    /// The part of a processor that a thread has had lately, thousandths. It may be what those had beside whom it was woken, if that is more,
    /// and is not multiplied by a weight that is only its own.
    pub fn part_of(&mut self, t: ThreadRef, now: u64) -> u32 {
        t.used().part(t.weight().min(NORMAL), self.units.at(now))
    }

    /// Is it time for [`Ready::look_at_parts`]?
    #[inline]
    pub fn is_time_to_look(&self, now: u64) -> bool {
        self.classes.as_ref().is_some_and(|c| now.saturating_sub(c.looked) >= LOOK_EVERY)
    }

    /// Gives each class the part of its weight here that it has of its threads here, so that its share is one of the cell, and not
    /// of each core by itself; messages that wait stand for one. `loads`: a class's average on a core; `note`: takes this core's. Value: the core that has least to
    /// do, and the class of which it should get a thread from here, if that makes both more equal.
    pub fn look_at_parts(
        &mut self,
        now: u64,
        (me, cores): (usize, usize),
        loads: impl Fn(usize, u32) -> u32,
        has_messages: impl Fn(u32) -> bool,
        note: impl Fn(u32, u32),
    ) -> Option<(usize, u32)> {
        let classes = self.classes.as_mut()?;
        classes.looked = now;
        let all = |class: u32| -> u32 { (0..cores).map(|core| loads(core, class)).sum() };
        for n in 0..classes.division.len() {
            let (class, parameters) = classes.division[n];
            let here = (classes.count(class) + u32::from(has_messages(class))) * ONE;
            let average = (loads(me, class) * 3 + here).div_ceil(4);
            note(class, if here == 0 && average < ONE / 16 { 0 } else { average });
            let all = all(class);
            // Who comes back to a core on which it was not lately is not to stand behind all others.
            let part = u64::from(average.max(ONE / 4)) * FINER / u64::from(all.max(ONE / 4));
            let weight = u64::from(parameters.weight) * part.clamp(1, FINER);
            let parameters = Parameters { weight: u32::try_from(weight).unwrap_or(u32::MAX), ..parameters };
            classes.scheduler.configure(class as Client, &parameters);
        }
        // What a thread of a class weighs, and all on a core.
        let each = |(class, p): &(u32, Parameters)| {
            u64::from(p.weight) * FINER * u64::from(ONE) / u64::from(all(*class).max(ONE))
        };
        let weight = |core: usize| -> u64 {
            classes.division.iter().map(|c| each(c) * u64::from(loads(core, c.0)) / u64::from(ONE)).sum()
        };
        let to = (0..cores)
            .filter(|core| crate::is_online(*core))
            .min_by_key(|core| weight(*core))
            .filter(|core| *core != me)?;
        let more = weight(me).saturating_sub(weight(to));
        let fits = |c: &&(u32, Parameters)| {
            let waits = classes.lines.get(c.0 as usize).is_some_and(|line| !line.queue.is_empty());
            waits && each(c) > 0 && each(c) * 5 < more * 4
        };
        let best = classes.division.iter().filter(fits).max_by_key(|c| each(c))?;
        Some((to, best.0))
    }

    /// When to ask again after there was none that might run; `u64::MAX`: when one is pushed.
    pub fn next(&self, now: u64) -> u64 {
        match &self.classes {
            Some(classes) if self.len > 0 => classes.scheduler.next(now),
            _ => u64::MAX,
        }
    }

    /// Takes out one for which `f` holds.
    pub fn take(&mut self, now: u64, f: impl Fn(ThreadRef) -> bool) -> Option<ThreadRef> {
        let found = match &mut self.classes {
            None => self.front.queue.take(f),
            Some(classes) => classes.take(now, f),
        };
        self.len -= usize::from(found.is_some());
        self.look_at_turn();
        found
    }
}

impl Classes {
    fn line(&mut self, class: usize) -> &mut Line {
        if class >= self.lines.len() {
            self.lines.resize_with(class + 1, Line::new);
        }
        &mut self.lines[class]
    }

    fn push(&mut self, t: ThreadRef, why: Why, now: u64, units: &Units) {
        let class = t.class();
        let line = self.line(class as usize);
        let first = line.is_idle();
        line.push(t, why, now, units);
        if first {
            self.arrive(class as Client, now);
        }
    }

    /// A class has something to do.
    fn arrive(&mut self, client: Client, now: u64) {
        if self.serving == Some(client) {
            return;
        }
        self.scheduler.arrive(client, now);
        if let Some(client) = self.serving {
            self.until = self.scheduler.turn_ends(client, self.since);
        }
        if let Some(turn) = &mut self.telling
            && turn.client != client
        {
            let since = turn.begun.unwrap_or(now);
            let ends = self.scheduler.turn_ends(turn.client, since);
            turn.time = turn.time.min(ends.saturating_sub(since).max(LEAST));
        }
    }

    /// Its threads that have something to do here.
    fn count(&self, class: u32) -> u32 {
        let waiting = self.lines.get(class as usize).map_or(0, |line| line.queue.len());
        waiting as u32 + u32::from(self.serving == Some(class as Client))
    }

    fn settle(&mut self, ran: u64, now: u64) {
        let Some(client) = self.serving.take() else { return };
        self.scheduler.charge(client, ran, now);
        if self.line(client as usize).is_idle() {
            self.scheduler.leave(client, now);
        }
    }

    /// Is it the turn of the class's messages, or would it be if it had nothing to do and they came now?
    fn may_serve(&mut self, class: u32, now: u64) -> bool {
        let client = class as Client;
        let is_told = self.telling.as_mut().filter(|turn| turn.client == client);
        if is_told.is_some_and(|turn| turn.goes_on(now)) {
            return true;
        }
        self.serving != Some(client)
            && self.line(class as usize).is_idle()
            && self.scheduler.may_run(client, now)
    }

    fn pop(&mut self, now: u64, units: &Units) -> Option<Next> {
        if let Some(Telling { client, .. }) = self.telling.take()
            && self.line(client as usize).is_idle()
        {
            self.scheduler.leave(client, now);
        }
        let client = self.scheduler.pick(now)?;
        let until = self.scheduler.turn_ends(client, now);
        // To turn to messages of another class costs little.
        let time = if until == u64::MAX { SLICE } else { LEAST };
        let line = self.line(client as usize);
        // Its threads have every second turn.
        if line.messages && (!line.told || line.queue.is_empty()) {
            (line.messages, line.told) = (false, true);
            // What they take is charged as they run.
            self.scheduler.charge(client, 0, now);
            self.telling = Some(Telling { client, time, begun: None });
            return Some(Next::Messages(client.into()));
        }
        line.told = false;
        let until = if line.messages { until.min(now + time) } else { until };
        let t = line.pop(units);
        debug_assert!(t.is_some(), "a class was picked that has nothing to do");
        self.serving = t.map(|_| client);
        (self.since, self.until) = (now, until);
        t.map(Next::Thread)
    }

    fn take(&mut self, now: u64, f: impl Fn(ThreadRef) -> bool) -> Option<ThreadRef> {
        for class in 0..self.lines.len() {
            if let Some(t) = self.lines[class].queue.take(&f) {
                let at_work = self.serving == Some(class as Client)
                    || self.telling.is_some_and(|turn| turn.client == class as Client);
                if self.lines[class].is_idle() && !at_work {
                    self.scheduler.leave(class as Client, now);
                }
                return Some(t);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fair::weight;
    use std::vec;

    const MS: u64 = 1_000_000;

    fn thread(policy: Policy) -> ThreadRef {
        let t = crate::thread::for_tests();
        t.set_policy(policy);
        t
    }

    /// One core: threads that always have something to do, by turns of the length that they are to have. Value: what each has had.
    struct Sim {
        ready: Ready,
        now: u64,
        all: Vec<(ThreadRef, u64)>,
        switches: u64,
    }

    impl Sim {
        fn new(policies: &[Policy]) -> Sim {
            let mut sim = Sim { ready: Ready::new(), now: 7_000 * MS, all: Vec::new(), switches: 0 };
            policies.iter().for_each(|p| sim.add(*p));
            sim
        }

        fn add(&mut self, policy: Policy) {
            let t = thread(policy);
            self.all.push((t, 0));
            self.ready.push(t, Why::Woken, self.now);
        }

        fn pop(&mut self) -> ThreadRef {
            match self.ready.pop(self.now) {
                Some(Next::Thread(t)) => t,
                _ => panic!("no thread is ready"),
            }
        }

        fn had(&self, t: ThreadRef) -> usize {
            self.all.iter().position(|(other, _)| core::ptr::eq(*other, t)).unwrap()
        }

        /// The next one runs for its turn, or until it stops by itself after `most`. Value: which, and for how long.
        fn step(&mut self, most: impl Fn(usize) -> u64, goes_on: impl Fn(usize) -> bool) -> (usize, u64) {
            let t = self.pop();
            let n = self.had(t);
            let turn = if self.ready.len() > 0 { self.ready.turn_ends(self.now) - self.now } else { SLICE };
            let ran = turn.min(most(n));
            self.now += ran;
            self.switches += 1;
            self.all[n].1 += ran;
            self.ready.charge(t, ran, self.now);
            if goes_on(n) {
                self.ready.push(t, Why::Preempted, self.now);
            }
            self.ready.settle(ran, self.now);
            (n, ran)
        }

        fn run(&mut self, ns: u64) -> Vec<u64> {
            let before: Vec<u64> = self.all.iter().map(|a| a.1).collect();
            let end = self.now + ns;
            while self.now < end {
                self.step(|_| u64::MAX, |_| true);
            }
            self.all.iter().zip(before).map(|(after, before)| after.1 - before).collect()
        }
    }

    /// OV-05: equal threads have the same within 1 % of each second, however many there are, and a switch every 3 ms is enough.
    #[test]
    fn equals_have_the_same() {
        for n in [2, 3, 7] {
            let mut sim = Sim::new(&vec![Policy::Fair(NORMAL); n]);
            for _ in 0..5 {
                let had = sim.run(1000 * MS);
                let (least, most) = (had.iter().min().unwrap(), had.iter().max().unwrap());
                assert!(most - least <= 10 * MS, "{had:?}");
            }
            assert!(sim.switches < 5 * 700, "{} switches", sim.switches);
        }
    }

    /// OV-05: nice values divide as Linux's weights do.
    #[test]
    fn nice_values_divide_by_their_weights() {
        for (a, b) in [(0, 1), (0, 5), (-5, 0), (0, 10), (-10, 10), (0, 19)] {
            let mut sim = Sim::new(&[Policy::Fair(weight(a)), Policy::Fair(weight(b))]);
            sim.run(1000 * MS);
            let had = sim.run(20_000 * MS);
            let (ratio, right) = (had[0] as f64 / had[1] as f64, f64::from(weight(a)) / f64::from(weight(b)));
            assert!((ratio / right - 1.0).abs() < 0.05, "nice {a} and {b}: {ratio}, not {right}");
        }
    }

    /// OV-05: who has slept for 10 s does not keep others from the core, and does not wait for them either.
    #[test]
    fn who_has_slept_does_not_monopolise() {
        for sleepers in [1, 3] {
            let mut sim = Sim::new(&[Policy::Fair(NORMAL), Policy::Fair(NORMAL)]);
            sim.run(10_000 * MS);
            let running = sim.pop();
            let since = sim.now;
            for _ in 0..sleepers {
                sim.add(Policy::Fair(NORMAL));
            }
            assert_eq!(sim.ready.turn_ends(since), since);
            sim.now += LEAST;
            sim.ready.charge(running, LEAST, sim.now);
            sim.ready.push(running, Why::Preempted, sim.now);
            sim.ready.settle(LEAST, sim.now);
            let had = sim.run(100 * MS);
            let alone = 100 * MS / (2 + sleepers);
            for ns in &had {
                assert!(ns.abs_diff(alone) < 9 * MS, "{had:?}");
            }
        }
    }

    /// Who sleeps most of the time comes at once when it is woken, beside any number of others.
    #[test]
    fn who_has_had_little_goes_first() {
        let mut sim = Sim::new(&[Policy::Fair(NORMAL); 4]);
        sim.add(Policy::Fair(NORMAL));
        for round in 0..200 {
            // The last one does 0.2 ms of work each time, and is woken 5 ms later.
            let sleeper = sim.all[4].0;
            let (end, mut ready) = (sim.now + 5 * MS, true);
            while sim.now < end || ready {
                ready &= sim.step(|n| if n == 4 { MS / 5 } else { u64::MAX }, |n| n != 4).0 != 4;
            }
            let running = sim.pop();
            sim.ready.push(sleeper, Why::Woken, sim.now);
            let ends = sim.ready.turn_ends(sim.now);
            sim.ready.push(running, Why::Preempted, sim.now);
            sim.ready.settle(0, sim.now);
            // It is not known yet at first.
            let ends = ends - sim.now;
            let next = sim.ready.front.queue.first().unwrap();
            assert!(round < 20 || ends == 0 && core::ptr::eq(next, sleeper), "round {round}: {ends}");
        }
    }

    /// SCHED_FIFO and SCHED_RR go before others, by priority; among equals the first one goes on, or they take turns.
    #[test]
    fn real_time_goes_first() {
        let mut sim = Sim::new(&[
            Policy::Fair(weight(-20)),
            Policy::Fifo(10),
            Policy::Fifo(10),
            Policy::RoundRobin(20),
            Policy::RoundRobin(20),
        ]);
        let turns: std::vec::Vec<_> = (0..4).map(|_| sim.step(|_| u64::MAX, |_| true)).collect();
        assert_eq!(turns, [(3, ROUND), (4, ROUND), (3, ROUND), (4, ROUND)]);
        // They stop. Of the others of one priority the first goes on as long as it likes.
        for _ in 0..2 {
            sim.step(|_| MS, |_| false);
        }
        // Until others are to have their part of the second.
        assert!(sim.ready.turn_ends(sim.now) > sim.now + 500 * MS);
        for _ in 0..3 {
            assert_eq!(sim.step(|_| 100 * MS, |_| true).0, 1);
        }
        sim.step(|_| MS, |_| false);
        assert_eq!(sim.step(|_| MS, |_| false).0, 2);
        assert_eq!(sim.step(|_| MS, |_| false).0, 0);
    }

    /// A real-time thread that never sleeps leaves others a twentieth of each second, and has all of it when nobody else wants any.
    #[test]
    fn real_time_leaves_a_part() {
        for policy in [Policy::Fifo(99), Policy::RoundRobin(1)] {
            let mut sim = Sim::new(&[policy, Policy::Fair(NORMAL), Policy::Fair(weight(5))]);
            for _ in 0..3 {
                let had = sim.run(10_000 * MS);
                assert!(had[0].abs_diff(9_500 * MS) < 60 * MS, "{had:?}");
                assert!(had[1] > had[2] && had[2] > 50 * MS, "{had:?}");
            }
            // Not more than that at a time, and not later than after that.
            let mut since = 0;
            for _ in 0..100 {
                let (n, ran) = sim.step(|_| u64::MAX, |_| true);
                since = if n == 0 { since + ran } else { 0 };
                assert!(since <= 1_000 * MS, "{since}");
            }
        }
        let mut sim = Sim::new(&[Policy::Fifo(1), Policy::Fifo(1)]);
        for _ in 0..3 {
            assert_eq!(sim.step(|_| 1_000 * MS, |_| true).0, 0);
        }
        // What it had alone doesn't count: it goes on when another one comes.
        sim.add(Policy::Fair(NORMAL));
        assert_eq!(sim.step(|_| 900 * MS, |_| true).0, 0);
    }

    /// One that uses little is never held up, however long others compute beside it.
    #[test]
    fn real_time_that_uses_little_is_not_held_up() {
        let mut sim = Sim::new(&[Policy::Fair(NORMAL), Policy::Fifo(1)]);
        for _ in 0..1000 {
            // A tenth of the time: 10 ms of each 100.
            assert_eq!(sim.step(|_| 10 * MS, |n| n != 1).0, 1);
            let end = sim.now + 90 * MS;
            while sim.now < end {
                assert_eq!(sim.step(|_| u64::MAX, |_| true).0, 0);
            }
            let real_time = sim.all[1].0;
            sim.ready.push(real_time, Why::Woken, sim.now);
        }
    }

    /// Who yields goes behind all that are ready, and no further.
    #[test]
    fn yields() {
        let mut sim = Sim::new(&[Policy::Fair(NORMAL); 3]);
        let mut order = Vec::new();
        for _ in 0..9 {
            let t = sim.pop();
            sim.now += MS / 100;
            sim.ready.charge(t, MS / 100, sim.now);
            order.push(sim.had(t));
            sim.ready.push(t, Why::Yields, sim.now);
            sim.ready.settle(MS / 100, sim.now);
        }
        assert_eq!(order, [0, 1, 2, 0, 1, 2, 0, 1, 2]);
    }

    /// The line against a sorted list: puts in, takes out, and takes out of the middle.
    #[test]
    fn lines_are_sorted() {
        let mut random = crate::fair::tests::random(1);
        let threads: Vec<ThreadRef> = (0..60).map(|_| thread(Policy::Fair(NORMAL))).collect();
        let mut queue = Queue::new();
        // Rank, used, when it came, which.
        let mut model: Vec<(u64, u64, i64, usize)> = Vec::new();
        let (mut behind, mut before) = (0, 0);
        for _ in 0..100_000 {
            let which = random(60) as usize;
            let there = model.iter().any(|m| m.3 == which);
            match random(7) {
                0..3 if !there => {
                    let (rank, used, first) = (random(3), random(4), random(4) == 0);
                    let came = if first {
                        before -= 1;
                        before
                    } else {
                        behind += 1;
                        behind
                    };
                    model.push((rank, used, came, which));
                    queue.push(threads[which], Order { rank, used: Used::from_word(used), first });
                }
                3 | 4 => {
                    let found = queue.pop();
                    let right = model.iter().min().copied();
                    assert_eq!(found.is_some(), right.is_some());
                    if let (Some(found), Some(right)) = (found, right) {
                        assert!(core::ptr::eq(found, threads[right.3]));
                        model.retain(|m| *m != right);
                    }
                }
                5 => {
                    let wanted = random(5) as usize;
                    let number =
                        |t: ThreadRef| threads.iter().position(|other| core::ptr::eq(*other, t)).unwrap();
                    let found = queue.take(|t| number(t) % 5 == wanted).map(number);
                    let right = model.iter().filter(|m| m.3 % 5 == wanted).min().copied();
                    assert_eq!(found, right.map(|m| m.3));
                    model.retain(|m| Some(*m) != right);
                }
                _ => {
                    assert_eq!((queue.len(), queue.iter().count()), (model.len(), model.len()));
                    assert_eq!(queue.is_empty(), model.is_empty());
                }
            }
        }
    }
}
