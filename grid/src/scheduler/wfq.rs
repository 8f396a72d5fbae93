//! Weighted fair queueing by start times, with reservations and limits.
//!
//! Shares are those of start-time fair queueing (Goyal, Vin and Cheng, 1996). Each client has a *start tag* `S`, in units
//! of the measure for each unit of weight, and there is a *virtual time* `v`, the greatest start tag that had its turn:
//!
//! - Somebody who has something to do again, or is under its limit again: `S = max(S, v)`. What it could have used
//!   meanwhile is gone: it gets no credit.
//! - The turn is that of the smallest `S`, and `v = max(v, S)`.
//! - Who has used `a`: `S += a / weight`.
//! - When nobody has anything to do: `v =` the greatest `S` there is. All begin anew.
//!
//! An amount is known only afterwards, which changes nothing: a start tag doesn't depend on it. For any two clients `i` and
//! `j` that have something to do all along, both without reservation and under their limits, whose turns use at most `m_i`
//! and `m_j`, what they get in any interval differs by no more than
//! `|got_i / w_i - got_j / w_j| <= m_i / w_i + m_j / w_j`. (A turn is all that is charged between two picks.)
//!
//! Reservations and limits are those of mClock (Gulati, Merchant and Varman, OSDI 2010). A client with a reservation `r` has
//! a *reservation tag* `R`, a time:
//!
//! - Whoever has something to do again: `R = max(R, now - 5 ms)`. What was reserved for these last 5 ms and not used is
//!   made up for: who asks now and then for more than its part of that moment, and for less on the whole, waits for
//!   nobody. So in any time `T` it has no more before others than `r * (T + 5 ms)`, and a turn.
//! - Before all others the turn is that of the smallest `R <= now`.
//! - Who has used `a` in such a turn: `R = max(R, now - 100 ms) + a / r`. What it uses in other turns leaves `R` alone: who
//!   gets more by its share today has no less reserved tomorrow. All turns count for `S`, so a client gets the greater of
//!   reservation and share, and not both.
//!
//! Reservations are held as long as they can be: together, with the longest turn of anybody, no more than there is. Beyond
//! that, who waits longest goes first, and clients without a reservation get nothing: whoever configures sees to that.
//! Limits come before reservations (`bucket.rs`); who is over its limit is as if it had nothing to do.
//!
//! A turn that can be taken away ends early:
//!
//! - A turn by share: when somebody's reservation is due, and when the client would be [`GRAIN`] beyond the next one's `S`.
//! - A turn by reservation: when it would be [`GRAIN`] beyond the next one's `R`, which is due; at once if somebody comes
//!   whose `R` is smaller.

use alloc::vec::Vec;

use super::bucket::{Fine, cost, fine};
use super::clients::{Clients, Place};
use super::order::Order;
use super::{Client, Parameters, Scheduler};

/// A start tag: 2^-50 of a unit for each unit of weight. A weight of a million is exact to 10^-9; a hundred years at
/// 100 GB/s are 2^118. What is added saturates.
type Tag = u128;

/// For how long a reservation that was not held is made up for, ns; and one that was not used.
const OVERDUE: u64 = 100_000_000;
pub(super) const CREDIT: u64 = 5_000_000;

/// How far a turn that can be taken away goes beyond the next one's tag, of the client's own time, ns: they would change
/// places all the time.
const GRAIN: u64 = 1_000_000;

#[derive(Clone, Copy, Default)]
struct Tags {
    start: Tag,
    /// What a unit adds to `start`.
    step: u64,
    /// When its reservation is due.
    due: Fine,
    /// What a unit adds to `due`; 0: no reservation.
    due_step: u64,
    /// Its last turn was one of its reservation.
    reserved: bool,
}

/// The scheduler. See the module.
#[derive(Default)]
pub(super) struct Wfq {
    clients: Clients,
    tags: Vec<Tags>,
    /// Those in `ready` that have a reservation, by `due`.
    due: Order,
    /// Virtual time.
    v: Tag,
    /// The greatest start tag.
    end: Tag,
}

impl Wfq {
    /// A client may go (again).
    #[inline]
    fn begin(&mut self, client: Client, now: u64) {
        let tags = &mut self.tags[client as usize];
        tags.start = tags.start.max(self.v);
        self.clients.ready.set(client, tags.start);
        if tags.due_step != 0 {
            tags.due = tags.due.max(fine(now.saturating_sub(CREDIT)));
            self.due.set(client, tags.due);
        }
    }
}

impl Scheduler for Wfq {
    #[inline]
    fn arrive(&mut self, client: Client, now: u64) {
        if self.clients.arrive(client, now) {
            self.begin(client, now);
        }
    }

    #[inline]
    fn pick(&mut self, now: u64) -> Option<Client> {
        while let Some(client) = self.clients.release(now) {
            self.begin(client, now);
        }
        if let Some((client, due)) = self.due.first()
            && due <= fine(now)
        {
            self.tags[client as usize].reserved = true;
            return Some(client);
        }
        let (client, start) = self.clients.ready.first()?;
        self.v = self.v.max(start);
        self.tags[client as usize].reserved = false;
        Some(client)
    }

    #[inline]
    fn charge(&mut self, client: Client, amount: u64, now: u64) {
        if !self.clients.knows(client) {
            return;
        }
        let place = self.clients.charge(client, amount, now);
        let tags = &mut self.tags[client as usize];
        if place == Place::Idle {
            // In place: it begins with this, as if it had been picked; or it was, and has left since.
            tags.start = tags.start.max(self.v);
            if tags.due_step == 0 || tags.due > fine(now) {
                tags.reserved = false;
            } else if !tags.reserved {
                let due = tags.due.max(fine(now.saturating_sub(CREDIT)));
                (tags.due, tags.reserved) = (due, true);
            }
        }
        // Turns that cost nothing would never end.
        let used = u128::from(amount.max(1));
        tags.start = tags.start.saturating_add(used * u128::from(tags.step));
        self.end = self.end.max(tags.start);
        if tags.reserved && tags.due_step != 0 {
            let from = tags.due.max(fine(now.saturating_sub(OVERDUE)));
            tags.due = from.saturating_add(used * u128::from(tags.due_step));
        }
        match place {
            Place::Ready => {
                self.clients.ready.set(client, tags.start);
                if tags.due_step != 0 {
                    self.due.set(client, tags.due);
                }
            }
            Place::Held => self.due.remove(client),
            Place::Idle => {
                // What it may use later without a turn is not of its last one.
                tags.reserved = false;
                if self.clients.all_idle() {
                    self.v = self.end;
                }
            }
        }
    }

    #[inline]
    fn leave(&mut self, client: Client, now: u64) {
        self.clients.leave(client, now);
        if self.clients.knows(client) {
            self.due.remove(client);
        }
        if self.clients.all_idle() {
            self.v = self.end;
        }
    }

    fn configure(&mut self, client: Client, parameters: &Parameters) {
        let (i, now) = (client as usize, self.clients.clock());
        self.clients.configure(client, parameters);
        if i >= self.tags.len() {
            self.tags.resize(i + 1, Tags::default());
            self.due.grow(client);
        }
        let tags = &mut self.tags[i];
        let (step, due_step) =
            ((1 << 50) / u64::from(parameters.weight.max(1)), cost(parameters.reservation));
        if (step, due_step) == (tags.step, tags.due_step) {
            return;
        }
        if due_step == tags.due_step {
            // What it was ahead, in units of the measure, it is still.
            let ahead = tags.start.saturating_sub(self.v).checked_div(tags.step.into()).unwrap_or(0);
            tags.start = self.v.saturating_add(ahead.saturating_mul(step.into()));
            tags.step = step;
            self.end = self.end.max(tags.start);
        } else {
            // It begins anew: a debt that one reservation made is not one under another.
            *tags = Tags { start: self.v, step, due: fine(now), due_step, reserved: false };
            self.due.remove(client);
        }
        if self.clients.place(client) == Place::Ready {
            self.begin(client, now);
        }
    }

    fn forget(&mut self, client: Client) {
        if self.clients.forget(client) {
            self.due.remove(client);
            self.tags[client as usize] = Tags::default();
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
        let tags = &self.tags[client as usize];
        let reserved = self.due.first().map_or(Fine::MAX, |(_, due)| due);
        if reserved <= fine(now) {
            return false;
        }
        (tags.due_step != 0 && tags.due <= fine(now)) || tags.start.max(self.v) < first
    }

    #[inline]
    fn turn_ends(&self, client: Client, since: u64) -> u64 {
        let Some(tags) = self.tags.get(client as usize) else { return u64::MAX };
        // When it gets to another's tag and beyond, at so much for each nanosecond.
        let beyond = |ahead: u128, step: u64| {
            let until = ahead.checked_div(step.into()).and_then(|ns| u64::try_from(ns).ok());
            until.map_or(u64::MAX, |ns| since.saturating_add(ns).saturating_add(GRAIN))
        };
        let due = self.due.first_but(client).map_or(u64::MAX, |(_, due)| {
            let at = u64::try_from(due.saturating_add(fine(1) - 1) >> 32).unwrap_or(u64::MAX);
            if tags.reserved && tags.due < due { at.max(beyond(due - tags.due, tags.due_step)) } else { at }
        });
        match self.clients.ready.first_but(client) {
            Some((_, start)) if !tags.reserved => {
                due.min(beyond(start.saturating_sub(tags.start), tags.step))
            }
            _ => due,
        }
    }
}
