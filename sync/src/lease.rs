//! Quotas that cores lease: how many of a kind there may be, counted without a line that cores share.
//!
//! An [`Account`] says how many there may be. Each core leases some of them in advance, in batches, and who makes one takes it from
//! its core's lease; who ends one adds it to the lease of the core where it ends. Both are one exchange on a word of that core's.
//! When a lease is used up the account is asked, and when the account has none left, it takes back what other cores
//! lease and do not use (OmniRE section 4.1: coarse allocations by the parent, quotas that are managed locally).
//!
//! There are never more than there may be, as every one of them is in exactly one place: used, in a lease, or not leased. Who
//! is refused has found all leases empty at one moment, with no other one leased: only then all are used.
//!
//! The account is behind a lock of its owner's; leases are not.

use crate::atomic::{AtomicU64, Ordering};

/// What of a lease's word is how many are leased and not used.
pub const SPARE: u64 = (1 << 24) - 1;
/// There are more than there may be, or were: the account is to be asked each time.
const SHORT: u64 = 1 << 24;
/// Whose the lease is: accounts that are closed, and opened for somebody else, have other generations.
const GENERATION_SHIFT: u32 = 25;
const GENERATION: u64 = (GENERATIONS - 1) << GENERATION_SHIFT;
/// How many generations there are, before they begin anew.
pub const GENERATIONS: u64 = 1 << 15;
/// What is added each time that something is given back: who has looked twice knows by it that nothing was meanwhile.
const GIVEN: u64 = 1 << 40;

/// The most that a core takes from the account at once, and keeps when it gives some back.
pub const BATCH: u32 = 16;

/// What has come of taking one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// It is taken.
    Yes,
    /// The lease has none: the account is to be asked.
    Ask,
    /// The account was closed.
    Closed,
}

fn generation_of(word: u64) -> u32 {
    ((word & GENERATION) >> GENERATION_SHIFT) as u32
}

/// How many are leased by this word and not used.
fn spare(lease: &AtomicU64) -> u32 {
    (lease.load(Ordering::Acquire) & SPARE) as u32
}

/// Changes a lease of this generation as `change` says. Value: what it was before, if it has changed.
fn change(
    lease: &AtomicU64,
    generation: u32,
    change: impl Fn(u64) -> Option<u64>,
) -> Result<u64, Option<u64>> {
    let mut now = lease.load(Ordering::Relaxed);
    loop {
        if generation_of(now) != generation {
            return Err(None);
        }
        let Some(next) = change(now) else { return Err(Some(now)) };
        // It fails only when the account takes something back, or another core's thread gives back here just now.
        match lease.compare_exchange_weak(now, next, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return Ok(now),
            Err(seen) => now = seen,
        }
    }
}

/// Takes one from this core's lease.
#[inline]
pub fn take(lease: &AtomicU64, generation: u32) -> Taken {
    let one = |now: u64| (now & SPARE != 0 && now & SHORT == 0).then(|| now - 1);
    match change(lease, generation, one) {
        Ok(_) => Taken::Yes,
        Err(Some(_)) => Taken::Ask,
        Err(None) => Taken::Closed,
    }
}

/// Gives `n` back to this core's lease. Value: whether it has so many now that the account should have some of them.
#[inline]
pub fn give(lease: &AtomicU64, generation: u32, n: u32) -> bool {
    // What belonged to an account that was closed is nobody's any more.
    let more = |now: u64| Some((now + u64::from(n)).wrapping_add(GIVEN));
    change(lease, generation, more).is_ok_and(|before| (before & SPARE) as u32 + n >= 2 * BATCH)
}

/// How many there may be, and how many of them cores have leased.
#[derive(Clone, Copy, Debug)]
pub struct Account {
    /// The most; 0: there is no limit.
    most: u32,
    /// Used, or in a lease.
    leased: u32,
    generation: u32,
    /// Leases say [`SHORT`].
    short: bool,
}

/// The leases of an account, one for each core.
pub trait Leases<'a>: Iterator<Item = &'a AtomicU64> + Clone {}
impl<'a, I: Iterator<Item = &'a AtomicU64> + Clone> Leases<'a> for I {}

impl Account {
    /// One without a limit, for leases that are all zero.
    pub const fn new() -> Account {
        Account { most: 0, leased: 0, generation: 0, short: false }
    }

    /// Begins anew, for somebody else: what is still used of it is nobody's any more.
    pub fn reopen<'a>(&mut self, leases: impl Leases<'a>) {
        let generation = (self.generation + 1) % GENERATIONS as u32;
        *self = Account { generation, ..Account::new() };
        for lease in leases {
            lease.store(u64::from(generation) << GENERATION_SHIFT, Ordering::Release);
        }
    }

    /// What leases of it say.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// The most; 0: there is no limit.
    pub fn most(&self) -> u32 {
        self.most
    }

    /// Used, or in a lease.
    pub fn leased(&self) -> u32 {
        self.leased
    }

    /// How many are used, as far as leases don't change meanwhile.
    pub fn used<'a>(&self, leases: impl Leases<'a>) -> u32 {
        self.leased.saturating_sub(leases.map(spare).sum())
    }

    /// Takes one for a core whose lease has none: a batch, if there are so many. False: all are used.
    pub fn take<'a>(&mut self, core: usize, leases: impl Leases<'a>) -> bool {
        while !self.has_room() {
            let before = self.take_back_all(leases.clone());
            if self.has_room() {
                break;
            }
            // Not all are used if one was given back meanwhile.
            if before == given(leases.clone()) && leases.clone().all(|lease| spare(lease) == 0) {
                return false;
            }
        }
        if self.short {
            self.set_short(false, leases.clone());
        }
        let cores = leases.clone().count() as u32;
        let batch = self.room().map_or(BATCH, |room| (room / (2 * cores)).clamp(1, BATCH));
        self.leased += batch;
        if let Some(lease) = leases.clone().nth(core) {
            lease.fetch_add(u64::from(batch - 1), Ordering::AcqRel);
        }
        true
    }

    /// Counts `n` that are there, whether they may be or not.
    pub fn force<'a>(&mut self, n: u32, leases: impl Leases<'a>) {
        self.leased += n;
        self.settle(leases);
    }

    /// Says how many there may be (0: there is no limit). What there is stays.
    pub fn set_most<'a>(&mut self, most: u32, leases: impl Leases<'a>) {
        self.most = most;
        self.settle(leases);
    }

    /// Takes back what a core has more than it should keep.
    pub fn take_back(&mut self, lease: &AtomicU64) {
        let less = |now: u64| {
            let too_many = ((now & SPARE) as u32).checked_sub(BATCH).filter(|n| *n > 0)?;
            Some(now - u64::from(too_many))
        };
        if let Ok(before) = change(lease, self.generation, less) {
            self.leased -= (before & SPARE) as u32 - BATCH;
        }
    }

    fn room(&self) -> Option<u32> {
        (self.most != 0).then(|| self.most.saturating_sub(self.leased))
    }

    fn has_room(&self) -> bool {
        self.room() != Some(0)
    }

    /// After another limit, or more than there may be: leases are used only if there are no more than there may be.
    fn settle<'a>(&mut self, leases: impl Leases<'a>) {
        let short = self.most != 0 && self.leased > self.most;
        if short != self.short {
            self.set_short(short, leases);
        }
    }

    fn set_short<'a>(&mut self, short: bool, leases: impl Leases<'a>) {
        self.short = short;
        for lease in leases {
            if short {
                lease.fetch_or(SHORT, Ordering::AcqRel);
            } else {
                lease.fetch_and(!SHORT, Ordering::AcqRel);
            }
        }
    }

    /// Takes back what cores lease and do not use. Value: how often something had been given back to any of them.
    fn take_back_all<'a>(&mut self, leases: impl Leases<'a>) -> u64 {
        let mut given = 0_u64;
        for lease in leases {
            let mut word = lease.load(Ordering::Acquire);
            // A line that another core works with is not taken from it if there is nothing in it.
            if word & SPARE != 0 {
                word = lease.fetch_and(!SPARE, Ordering::AcqRel);
                self.leased -= (word & SPARE) as u32;
            }
            given = given.wrapping_add(word / GIVEN);
        }
        given
    }
}

impl Default for Account {
    fn default() -> Account {
        Account::new()
    }
}

/// How often something was given back to any of these leases.
fn given<'a>(leases: impl Leases<'a>) -> u64 {
    leases.fold(0, |sum, lease| sum.wrapping_add(lease.load(Ordering::Acquire) / GIVEN))
}

#[cfg(test)]
fn leases(cores: usize) -> alloc::vec::Vec<AtomicU64> {
    (0..cores).map(|_| AtomicU64::new(0)).collect()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicU32};
    use std::vec::Vec;

    /// As those who use it do.
    fn one(account: &Mutex<Account>, leases: &[AtomicU64], core: usize, generation: u32) -> bool {
        match take(&leases[core], generation) {
            Taken::Yes => true,
            Taken::Closed => false,
            Taken::Ask => account.lock().unwrap().take(core, leases.iter()),
        }
    }

    fn back(account: &Mutex<Account>, lease: &AtomicU64, generation: u32, n: u32) {
        if give(lease, generation, n)
            && let Ok(mut account) = account.try_lock()
        {
            account.take_back(lease);
        }
    }

    proptest! {
        /// OR-04: leases by core say the same as one counter: who gets one, and how many are used.
        #[test]
        fn agrees_with_a_counter(
            cores in 1usize..6,
            ops in prop::collection::vec((0usize..6, 0u32..100, 0u32..60), 1..400),
        ) {
            let (account, leases) = (Mutex::new(Account::new()), leases(cores));
            let (mut used, mut most, mut generation) = (0_u32, 0_u32, 0);
            for (core, op, n) in ops {
                let core = core % cores;
                match op {
                    0..60 => {
                        let may = most == 0 || used < most;
                        prop_assert_eq!(one(&account, &leases, core, generation), may);
                        used += u32::from(may);
                    }
                    60..90 if used > 0 => {
                        back(&account, &leases[core], generation, 1);
                        used -= 1;
                    }
                    90..94 => {
                        most = n;
                        account.lock().unwrap().set_most(most, leases.iter());
                    }
                    94..97 => {
                        account.lock().unwrap().force(n, leases.iter());
                        used += n;
                    }
                    97 => {
                        back(&account, &leases[core], generation, used);
                        used = 0;
                    }
                    98 => {
                        let before = generation;
                        account.lock().unwrap().reopen(leases.iter());
                        generation = account.lock().unwrap().generation();
                        // What is given back of the one before changes nothing, and nothing is to be had of it.
                        give(&leases[core], before, used);
                        prop_assert_eq!(take(&leases[core], before), Taken::Closed);
                        (used, most) = (0, 0);
                    }
                    _ => {}
                }
                prop_assert_eq!(account.lock().unwrap().used(leases.iter()), used);
            }
        }
    }

    /// OR-04: there are never more than there may be, on four cores at once; nobody is refused as long as some are left; and who
    /// takes and gives back again and again does not come to the account.
    #[test]
    fn strict_at_once() {
        const CORES: usize = 4;
        for (most, each, refused) in [(CORES as u32 * 40, 40, false), (50, 40, true)] {
            let (account, leases) = (Mutex::new(Account::new()), leases(CORES));
            account.lock().unwrap().set_most(most, leases.iter());
            let (used, was_refused) = (AtomicU32::new(0), AtomicBool::new(false));
            std::thread::scope(|s| {
                for core in 0..CORES {
                    let (account, leases, used, was_refused) = (&account, &leases, &used, &was_refused);
                    s.spawn(move || {
                        let mut held = 0;
                        for n in 0..40_000_usize {
                            if held < each && !n.is_multiple_of(7) {
                                if one(account, leases, core, 0) {
                                    assert!(used.fetch_add(1, Ordering::SeqCst) < most);
                                    held += 1;
                                } else {
                                    was_refused.store(true, Ordering::Relaxed);
                                }
                            } else if held > 0 {
                                used.fetch_sub(1, Ordering::SeqCst);
                                // It has moved meanwhile.
                                back(account, &leases[(core + n / 7) % CORES], 0, 1);
                                held -= 1;
                            }
                        }
                    });
                }
            });
            assert_eq!(was_refused.into_inner(), refused);
            assert_eq!(account.lock().unwrap().used(leases.iter()), used.into_inner());
        }
    }

    #[test]
    fn the_common_way_leaves_the_account_alone() {
        let (account, leases) = (Mutex::new(Account::new()), leases(2));
        assert!(one(&account, &leases, 0, 0));
        let asked: Vec<bool> = (0..1000)
            .map(|_| {
                let asked = take(&leases[0], 0) != Taken::Yes;
                give(&leases[0], 0, 1) || asked
            })
            .collect();
        assert!(asked.iter().all(|asked| !asked));
        assert_eq!(account.lock().unwrap().leased(), BATCH);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::{Arc, Mutex};

    struct Quota {
        account: Mutex<Account>,
        leases: alloc::vec::Vec<AtomicU64>,
    }

    impl Quota {
        fn take(&self, core: usize) -> bool {
            take(&self.leases[core], 0) == Taken::Yes
                || self.account.lock().unwrap().take(core, self.leases.iter())
        }
    }

    /// As many as there are threads, each of which has one at a time, on one core and then on the other: nobody is refused, also not
    /// when one is given back where somebody has looked already, and the next one taken where that one is about to look.
    #[test]
    fn nobody_is_refused_in_vain() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let mut account = Account::new();
            let leases = leases(2);
            account.set_most(2, leases.iter());
            let quota = Arc::new(Quota { account: Mutex::new(account), leases });
            let threads: std::vec::Vec<_> = (0..2)
                .map(|core| {
                    let quota = quota.clone();
                    loom::thread::spawn(move || {
                        for n in 0..2 {
                            let on = (core + n) % 2;
                            assert!(quota.take(on));
                            give(&quota.leases[on], 0, 1);
                        }
                    })
                })
                .collect();
            threads.into_iter().for_each(|t| t.join().unwrap());
            assert_eq!(quota.account.lock().unwrap().used(quota.leases.iter()), 0);
        });
    }

    /// One that there may be, which two want: one of them gets it, never both at once.
    #[test]
    fn the_last_one_goes_to_one() {
        loom::model(|| {
            let mut account = Account::new();
            let leases = leases(2);
            // There were two, and one is to be had: leases are not used until it is known where they are.
            assert!(account.take(0, leases.iter()));
            account.set_most(1, leases.iter());
            give(&leases[0], 0, 1);
            let quota = Arc::new(Quota { account: Mutex::new(account), leases });
            let other = {
                let quota = quota.clone();
                loom::thread::spawn(move || quota.take(1))
            };
            let mine = quota.take(0);
            assert!(mine != other.join().unwrap());
            assert_eq!(quota.account.lock().unwrap().used(quota.leases.iter()), 1);
        });
    }
}
