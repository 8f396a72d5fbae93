//! Who is next: schedulers as small, safe plug-ins.
//!
//! A scheduler divides one resource of one core among its *clients*, the activities that use it there. It is told who has
//! something to do, says whose turn it is, and is told afterwards what that cost, in the units of the resource's
//! [`Measure`](atoll_abi::grid::Measure). It knows neither messages nor threads. Whoever asks it does so through
//! [`Checked`], which survives one that is wrong.
//!
//! All times are nanoseconds of one clock. A clock that goes back makes somebody wait, but nothing wrong. Limits hold with
//! all four schedulers, weights and reservations with [`SchedulerKind::Wfq`] only.
//!
//! Nothing is allocated but in [`Scheduler::configure`], for a client with a higher number than any before; a turn takes
//! `O(log clients)`.

use alloc::boxed::Box;

use atoll_abi::grid::{Parameters, SchedulerKind};

pub(crate) mod bucket;
mod checked;
mod clients;
mod order;
#[cfg(test)]
pub(crate) mod tests;
mod turns;
mod wfq;

pub use checked::{Checked, FAULTS_MAX};

/// An activity's place at one resource of one core: small, dense, reused.
pub type Client = u16;

/// Divides a resource.
pub trait Scheduler: Send {
    /// The client has something to do, after it had nothing.
    fn arrive(&mut self, client: Client, now: u64);

    /// Whose turn is it? It stays a client with something to do, and is charged before the next pick, or it may be that
    /// client's turn again. None: nobody's, or all are over their limits; then `next` says when to ask again.
    fn pick(&mut self, now: u64) -> Option<Client>;

    /// The client used so much, in units of the measure, since it was picked, or without being picked at all. It need not
    /// have anything to do any more.
    fn charge(&mut self, client: Client, amount: u64, now: u64);

    /// The client used so much where it was not asked for a turn: others have done that for it. What it is to have next is no
    /// younger by that.
    fn charge_aside(&mut self, client: Client, amount: u64, now: u64) {
        self.charge(client, amount, now);
    }

    /// The client has nothing more to do.
    fn leave(&mut self, client: Client, now: u64);

    /// Sets what a client is to have; also makes it known. Before `arrive`, and at any time after.
    fn configure(&mut self, client: Client, parameters: &Parameters);

    /// Forgets a client, which has left.
    fn forget(&mut self, client: Client);

    /// When a client that is over its limit may go on, not before `now`; `u64::MAX`: nobody is.
    fn next(&self, now: u64) -> u64;

    /// A client that has something to do: the first of what it has now came at this time. Told after its turn, by whoever
    /// knows. Otherwise it came when the turn before was charged.
    fn waits_since(&mut self, _client: Client, _since: u64) {}

    /// Would it be this client's turn, which has nothing to do, if it came now? Then what it brings may run at once, in
    /// place, and is only charged.
    fn may_run(&self, client: Client, now: u64) -> bool;

    /// For a resource that is measured in time and can be taken away: `client` was picked last, at `since`, and has not been
    /// charged since. When should it be another's turn, of those who have something to do now? May be long ago;
    /// `u64::MAX`: not before it is charged.
    fn turn_ends(&self, _client: Client, _since: u64) -> u64 {
        u64::MAX
    }
}

impl<S: Scheduler + ?Sized> Scheduler for Box<S> {
    #[inline]
    fn arrive(&mut self, client: Client, now: u64) {
        (**self).arrive(client, now);
    }
    #[inline]
    fn pick(&mut self, now: u64) -> Option<Client> {
        (**self).pick(now)
    }
    #[inline]
    fn charge(&mut self, client: Client, amount: u64, now: u64) {
        (**self).charge(client, amount, now);
    }
    fn charge_aside(&mut self, client: Client, amount: u64, now: u64) {
        (**self).charge_aside(client, amount, now);
    }
    #[inline]
    fn leave(&mut self, client: Client, now: u64) {
        (**self).leave(client, now);
    }
    fn configure(&mut self, client: Client, parameters: &Parameters) {
        (**self).configure(client, parameters);
    }
    fn forget(&mut self, client: Client) {
        (**self).forget(client);
    }
    fn next(&self, now: u64) -> u64 {
        (**self).next(now)
    }
    #[inline]
    fn waits_since(&mut self, client: Client, since: u64) {
        (**self).waits_since(client, since);
    }
    #[inline]
    fn may_run(&self, client: Client, now: u64) -> bool {
        (**self).may_run(client, now)
    }
    #[inline]
    fn turn_ends(&self, client: Client, since: u64) -> u64 {
        (**self).turn_ends(client, since)
    }
}

/// A scheduler of this kind, without clients.
pub fn make(kind: SchedulerKind) -> Box<dyn Scheduler> {
    match kind {
        SchedulerKind::Wfq => Box::new(wfq::Wfq::default()),
        SchedulerKind::RoundRobin => Box::new(turns::Turns::<turns::RoundRobin>::default()),
        SchedulerKind::Priority => Box::new(turns::Turns::<turns::Priority>::default()),
        SchedulerKind::Deadline => Box::new(turns::Turns::<turns::Deadline>::default()),
    }
}
