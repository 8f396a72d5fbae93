//! A scheduler that need not be believed.

use alloc::boxed::Box;
use alloc::vec::Vec;

use atoll_abi::grid::{Parameters, SchedulerKind};

use super::{Client, Scheduler, make};

/// How many wrong answers a scheduler may give before another takes its place.
pub const FAULTS_MAX: u64 = 16;

/// What is known of a client here, whatever the scheduler thinks.
#[derive(Clone, Copy, Default)]
struct Known {
    /// Its parameters, once it was configured.
    parameters: Option<Parameters>,
    /// It has something to do.
    active: bool,
}

impl Known {
    /// May nobody be picked though this client has something to do?
    fn may_be_held(&self) -> bool {
        self.parameters.is_some_and(|p| p.limit != 0)
    }
}

/// A scheduler whose answers are checked: one that is wrong can starve clients of its own cell, and do nothing else.
///
/// Wrong is to pick a client that has nothing to do; to pick nobody when somebody has something to do and has no limit; and to
/// pick nobody and give no later time to ask again, though somebody has something to do. For that one answer the next
/// client in turn is picked instead. After [`FAULTS_MAX`] of them a round robin scheduler, which knows the same clients,
/// takes its place for good. What callers get wrong is mended, too: arriving twice is arriving once, and a client that was
/// never configured has [`Parameters::default`].
pub struct Checked<S> {
    scheduler: S,
    /// What takes its place; knows the clients, so that this costs no memory then, and has the turn once there were too
    /// many faults.
    standby: Box<dyn Scheduler>,
    faults: u64,
    clients: Vec<Known>,
    /// How many have something to do.
    active: usize,
    /// How many of those have no limit.
    free: usize,
    /// Where the search for a client in turn goes on.
    turn: usize,
}

impl<S: Scheduler> Checked<S> {
    /// Checks what this scheduler says, which has no clients yet.
    pub fn new(scheduler: S) -> Self {
        Checked {
            scheduler,
            standby: make(SchedulerKind::RoundRobin),
            faults: 0,
            clients: Vec::new(),
            active: 0,
            free: 0,
            turn: 0,
        }
    }

    /// How many of its answers were wrong.
    pub fn faults(&self) -> u64 {
        self.faults
    }

    /// Has another scheduler taken its place?
    pub fn replaced(&self) -> bool {
        self.faults >= FAULTS_MAX
    }

    /// The clients that are known, and what they are to have.
    pub fn clients(&self) -> impl Iterator<Item = (Client, Parameters, bool)> + '_ {
        let known = self.clients.iter().enumerate();
        known.filter_map(|(i, k)| k.parameters.map(|p| (i as Client, p, k.active)))
    }

    /// Puts another scheduler in this one's place, with the same clients, of whom nothing is remembered but whether they
    /// have something to do. Its faults are counted anew.
    pub fn replace<T: Scheduler>(&self, scheduler: T, now: u64) -> Checked<T> {
        let mut new = Checked::new(scheduler);
        for (client, parameters, active) in self.clients() {
            new.configure(client, &parameters);
            if active {
                new.arrive(client, now);
            }
        }
        new
    }

    /// Does the scheduler name a time to ask again that is still to come?
    fn is_later(&self, now: u64) -> bool {
        let next = self.scheduler.next(now);
        next > now && next != u64::MAX
    }

    /// Counts a client out. Value: whether it had something to do.
    #[inline]
    fn deactivate(&mut self, client: Client) -> bool {
        let Some(known) = self.clients.get_mut(client as usize).filter(|c| c.active) else { return false };
        known.active = false;
        self.active -= 1;
        self.free -= usize::from(!known.may_be_held());
        true
    }

    #[inline]
    fn is_active(&self, client: Client) -> bool {
        self.clients.get(client as usize).is_some_and(|c| c.active)
    }

    /// The next client in turn that has something to do, without a limit if there is one without.
    fn in_turn(&mut self) -> Option<Client> {
        let n = self.clients.len();
        let mut all = (0..n).map(|i| (self.turn + i) % n.max(1));
        let found = all.find(|i| {
            let c = &self.clients[*i];
            c.active && (self.free == 0 || !c.may_be_held())
        })?;
        self.turn = found + 1;
        Some(found as Client)
    }

    /// What to say instead of a wrong answer.
    #[cold]
    fn fault(&mut self, now: u64) -> Option<Client> {
        self.faults += 1;
        if !self.replaced() {
            return self.in_turn();
        }
        for i in 0..self.clients.len() {
            if self.clients[i].active {
                self.standby.arrive(i as Client, now);
            }
        }
        self.standby.pick(now)
    }
}

impl<S: Scheduler> Scheduler for Checked<S> {
    #[inline]
    fn arrive(&mut self, client: Client, now: u64) {
        if self.is_active(client) {
            return;
        }
        if self.clients.get(client as usize).is_none_or(|c| c.parameters.is_none()) {
            self.configure(client, &Parameters::default());
        }
        let known = &mut self.clients[client as usize];
        known.active = true;
        self.active += 1;
        self.free += usize::from(!known.may_be_held());
        if self.replaced() {
            self.standby.arrive(client, now);
        } else {
            self.scheduler.arrive(client, now);
        }
    }

    #[inline]
    fn pick(&mut self, now: u64) -> Option<Client> {
        if self.replaced() {
            return self.standby.pick(now);
        }
        match self.scheduler.pick(now) {
            Some(client) if self.is_active(client) => Some(client),
            None if self.active == 0 => None,
            None if self.free == 0 && self.is_later(now) => None,
            _ => self.fault(now),
        }
    }

    #[inline]
    fn charge(&mut self, client: Client, amount: u64, now: u64) {
        if self.replaced() {
            self.standby.charge(client, amount, now);
        } else {
            self.scheduler.charge(client, amount, now);
        }
    }

    fn charge_aside(&mut self, client: Client, amount: u64, now: u64) {
        if self.replaced() {
            self.standby.charge_aside(client, amount, now);
        } else {
            self.scheduler.charge_aside(client, amount, now);
        }
    }

    #[inline]
    fn leave(&mut self, client: Client, now: u64) {
        if !self.deactivate(client) {
            return;
        }
        if self.replaced() {
            self.standby.leave(client, now);
        } else {
            self.scheduler.leave(client, now);
        }
    }

    fn configure(&mut self, client: Client, parameters: &Parameters) {
        if client as usize >= self.clients.len() {
            self.clients.resize(client as usize + 1, Known::default());
        }
        let known = &mut self.clients[client as usize];
        let free_before = known.active && !known.may_be_held();
        known.parameters = Some(*parameters);
        let free = known.active && !known.may_be_held();
        self.free = self.free + usize::from(free) - usize::from(free_before);
        self.scheduler.configure(client, parameters);
        self.standby.configure(client, parameters);
    }

    fn forget(&mut self, client: Client) {
        self.deactivate(client);
        if let Some(known) = self.clients.get_mut(client as usize) {
            *known = Known::default();
            self.scheduler.forget(client);
            self.standby.forget(client);
        }
    }

    fn next(&self, now: u64) -> u64 {
        let next = if self.replaced() { self.standby.next(now) } else { self.scheduler.next(now) };
        next.max(now)
    }

    #[inline]
    fn waits_since(&mut self, client: Client, since: u64) {
        if !self.replaced() {
            self.scheduler.waits_since(client, since);
        }
    }

    #[inline]
    fn may_run(&self, client: Client, now: u64) -> bool {
        if self.replaced() { self.standby.may_run(client, now) } else { self.scheduler.may_run(client, now) }
    }

    /// Any answer will do for a caller that gives each turn some time.
    #[inline]
    fn turn_ends(&self, client: Client, since: u64) -> u64 {
        if self.replaced() {
            self.standby.turn_ends(client, since)
        } else {
            self.scheduler.turn_ends(client, since)
        }
    }
}
