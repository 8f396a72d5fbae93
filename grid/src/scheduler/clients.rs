//! What every scheduler knows of its clients: who has something to do, and who of them is over its limit.

use alloc::vec::Vec;

use super::bucket::Bucket;
use super::order::Order;
use super::{Client, Parameters};

/// Where a client is.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Place {
    /// It has nothing to do.
    #[default]
    Idle,
    /// It has, and stands in `ready`.
    Ready,
    /// It has, and is over its limit: it stands in `held` until that has passed.
    Held,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    known: bool,
    place: Place,
    limit: Bucket,
}

/// The clients of a scheduler.
#[derive(Default)]
pub(super) struct Clients {
    slots: Vec<Slot>,
    /// Those who may go, by the keys that the scheduler gives them.
    pub(super) ready: Order,
    /// Those who may not, by the time in ns when they may.
    held: Order,
    /// How many have something to do.
    active: usize,
    /// The last time that was told.
    clock: u64,
}

impl Clients {
    /// Makes a client known, or changes its limit.
    pub(super) fn configure(&mut self, client: Client, parameters: &Parameters) {
        if client as usize >= self.slots.len() {
            self.slots.resize(client as usize + 1, Slot::default());
            self.ready.grow(client);
            self.held.grow(client);
        }
        let slot = &mut self.slots[client as usize];
        slot.known = true;
        slot.limit.set(parameters.limit, self.clock);
        if slot.place == Place::Held {
            // Looked at again by the next `release`.
            let until = slot.limit.full_until(self.clock).unwrap_or(0);
            self.held.set(client, until.into());
        }
    }

    /// The last time that was told.
    pub(super) fn clock(&self) -> u64 {
        self.clock
    }

    /// Is the client one that was made known?
    #[inline]
    pub(super) fn knows(&self, client: Client) -> bool {
        self.slots.get(client as usize).is_some_and(|s| s.known)
    }

    /// Where a known client is.
    #[inline]
    pub(super) fn place(&self, client: Client) -> Place {
        self.slots[client as usize].place
    }

    /// Does nobody have anything to do?
    #[inline]
    pub(super) fn all_idle(&self) -> bool {
        self.active == 0
    }

    /// A client has something to do. Value: whether it is to get a key in `ready`.
    #[inline]
    pub(super) fn arrive(&mut self, client: Client, now: u64) -> bool {
        self.clock = now;
        if !self.knows(client) || self.place(client) != Place::Idle {
            return false;
        }
        self.active += 1;
        self.slots[client as usize].place = Place::Ready;
        self.hold_if_full(client, now) == Place::Ready
    }

    /// Moves a client that has something to do and is over its limit to `held`. Value: where it is.
    #[inline]
    fn hold_if_full(&mut self, client: Client, now: u64) -> Place {
        let slot = &mut self.slots[client as usize];
        if let Some(until) = slot.limit.full_until(now) {
            slot.place = Place::Held;
            self.held.set(client, until.into());
            self.ready.remove(client);
        }
        slot.place
    }

    /// A known client has used something. Value: where it is then; in `ready`, its key is as it was.
    #[inline]
    pub(super) fn charge(&mut self, client: Client, amount: u64, now: u64) -> Place {
        self.clock = now;
        let slot = &mut self.slots[client as usize];
        slot.limit.charge(amount, now);
        match slot.place {
            Place::Idle => Place::Idle,
            // Who is held stays so until `release`.
            Place::Ready | Place::Held => self.hold_if_full(client, now),
        }
    }

    /// A client has nothing to do any more.
    #[inline]
    pub(super) fn leave(&mut self, client: Client, now: u64) {
        self.clock = now;
        if !self.knows(client) {
            return;
        }
        match core::mem::take(&mut self.slots[client as usize].place) {
            Place::Idle => return,
            Place::Ready => self.ready.remove(client),
            Place::Held => self.held.remove(client),
        }
        self.active -= 1;
    }

    /// Forgets a client. Value: whether it was known.
    pub(super) fn forget(&mut self, client: Client) -> bool {
        self.leave(client, self.clock);
        self.slots.get_mut(client as usize).is_some_and(|s| core::mem::take(s).known)
    }

    /// The next one that was over its limit and is not any more. It is to get a key in `ready`.
    #[inline]
    pub(super) fn release(&mut self, now: u64) -> Option<Client> {
        self.clock = now;
        let (client, until) = self.held.first()?;
        if until > u128::from(now) {
            return None;
        }
        self.held.remove(client);
        self.slots[client as usize].place = Place::Ready;
        Some(client)
    }

    /// Could the client go, were it its turn, and waits nobody for `release`?
    #[inline]
    pub(super) fn may_go(&self, client: Client, now: u64) -> bool {
        self.knows(client)
            && self.slots[client as usize].limit.full_until(now).is_none()
            && self.held.first().is_none_or(|(_, until)| until > u128::from(now))
    }

    /// When the first client that is over its limit may go on.
    pub(super) fn next(&self, now: u64) -> u64 {
        self.held.first().map_or(u64::MAX, |(_, until)| (until as u64).max(now))
    }
}
