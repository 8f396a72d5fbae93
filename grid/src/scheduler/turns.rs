//! Schedulers whose order is a rank, and among equals, whose turn was longest ago.

use alloc::vec::Vec;
use core::marker::PhantomData;

use super::clients::{Clients, Place};
use super::{Client, Parameters, Scheduler};

/// What ranks clients.
pub(super) trait Rank: Send {
    /// The rank of a client with these parameters whose first message came at `since`; smaller goes first.
    fn rank(parameters: &Parameters, since: u64) -> u64;
    /// Does it depend on the time?
    const TIMED: bool = false;
}

/// One after the other.
pub(super) struct RoundRobin;

impl Rank for RoundRobin {
    fn rank(_: &Parameters, _: u64) -> u64 {
        0
    }
}

/// The highest priority. Who has a lower one than somebody who always has something to do gets nothing, unless a limit holds
/// the other back.
pub(super) struct Priority;

impl Rank for Priority {
    fn rank(parameters: &Parameters, _: u64) -> u64 {
        u64::from(i32::MAX.abs_diff(parameters.priority))
    }
}

/// The earliest deadline: a message is due at its arrival and the client's `deadline`. Without one it is due last, after all
/// that are. Deadlines that can't be met together make all late: nothing is dropped.
pub(super) struct Deadline;

impl Rank for Deadline {
    fn rank(parameters: &Parameters, since: u64) -> u64 {
        match parameters.deadline {
            0 => u64::MAX,
            d => since.saturating_add(d).min(u64::MAX - 1),
        }
    }
    const TIMED: bool = true;
}

/// A client's place.
#[derive(Clone, Copy, Default)]
struct Turn {
    parameters: Parameters,
    /// When its first message came.
    since: u64,
    /// The number of its last turn, or of its arrival.
    turn: u64,
}

/// A scheduler by rank.
pub(super) struct Turns<R> {
    clients: Clients,
    turns: Vec<Turn>,
    /// Turns and arrivals so far.
    count: u64,
    rank: PhantomData<R>,
}

impl<R> Default for Turns<R> {
    fn default() -> Self {
        Turns { clients: Clients::default(), turns: Vec::new(), count: 0, rank: PhantomData }
    }
}

impl<R: Rank> Turns<R> {
    /// Gives a client in `ready` its key.
    #[inline]
    fn put(&mut self, client: Client) {
        let t = &self.turns[client as usize];
        let key = u128::from(R::rank(&t.parameters, t.since)) << 64 | u128::from(t.turn);
        self.clients.ready.set(client, key);
    }

    /// Puts a client behind its equals.
    #[inline]
    fn put_last(&mut self, client: Client) {
        self.turns[client as usize].turn = self.count;
        self.count += 1;
        self.put(client);
    }
}

impl<R: Rank> Scheduler for Turns<R> {
    #[inline]
    fn arrive(&mut self, client: Client, now: u64) {
        if !self.clients.knows(client) {
            return;
        }
        let idle = self.clients.place(client) == Place::Idle;
        if idle {
            self.turns[client as usize].since = now;
        }
        if self.clients.arrive(client, now) {
            self.put_last(client);
        }
    }

    #[inline]
    fn pick(&mut self, now: u64) -> Option<Client> {
        while let Some(client) = self.clients.release(now) {
            self.put_last(client);
        }
        let (client, _) = self.clients.ready.first()?;
        self.put_last(client);
        Some(client)
    }

    #[inline]
    fn charge(&mut self, client: Client, amount: u64, now: u64) {
        if !self.clients.knows(client) {
            return;
        }
        let place = self.clients.charge(client, amount, now);
        if R::TIMED {
            // What it has now came no later than this, also if it is over its limit.
            self.turns[client as usize].since = now;
            if place == Place::Ready {
                self.put(client);
            }
        }
    }

    fn charge_aside(&mut self, client: Client, amount: u64, now: u64) {
        if self.clients.knows(client) {
            self.clients.charge(client, amount, now);
        }
    }

    #[inline]
    fn waits_since(&mut self, client: Client, since: u64) {
        if R::TIMED && self.clients.knows(client) {
            self.turns[client as usize].since = since;
            if self.clients.place(client) == Place::Ready {
                self.put(client);
            }
        }
    }

    #[inline]
    fn leave(&mut self, client: Client, now: u64) {
        self.clients.leave(client, now);
    }

    fn configure(&mut self, client: Client, parameters: &Parameters) {
        self.clients.configure(client, parameters);
        if client as usize >= self.turns.len() {
            self.turns.resize(client as usize + 1, Turn::default());
        }
        self.turns[client as usize].parameters = *parameters;
        if self.clients.place(client) == Place::Ready {
            self.put(client);
        }
    }

    fn forget(&mut self, client: Client) {
        if self.clients.forget(client) {
            self.turns[client as usize] = Turn::default();
        }
    }

    fn next(&self, now: u64) -> u64 {
        self.clients.next(now)
    }

    #[inline]
    fn may_run(&self, client: Client, now: u64) -> bool {
        if !self.clients.may_go(client, now) {
            return false;
        }
        let Some((_, first)) = self.clients.ready.first() else { return true };
        u128::from(R::rank(&self.turns[client as usize].parameters, now)) < first >> 64
    }

    /// At once, if somebody of a smaller rank has come.
    #[inline]
    fn turn_ends(&self, client: Client, since: u64) -> u64 {
        let (Some(turn), Some((_, first))) =
            (self.turns.get(client as usize), self.clients.ready.first_but(client))
        else {
            return u64::MAX;
        };
        if first >> 64 < u128::from(R::rank(&turn.parameters, turn.since)) { since } else { u64::MAX }
    }
}
