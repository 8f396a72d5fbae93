//! Quotas: how many threads, processes, timers, objects to wait at and channels there may be, in the cell and in each activity that the
//! configuration gives a limit (OmniRE, section 4.1: a program's environment has quotas). Who wants one more gets the error that
//! Linux has for that, and nobody else notices.
//!
//! It is a tree of two levels, the cell's account and those of its classes, and each core leases from both
//! ([`atoll_sync::lease`]): to make a thread and to end one touches lines of one core only, as long as there are some to be had there.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use atoll_abi::core_local::core_local;
use atoll_abi::grid::{ACTIVITIES_MAX, GridConfig, LEASE_SPARE, LeaseLine, QUOTAS, Quota, ROOT};
use atoll_abi::platform;
use atoll_mem::heap::memory;
use atoll_sync::lease::{self, Account, Taken};
use atoll_sync::{Mutex, SetOnce};
use atoll_task::Activity;

use crate::process::Process;

const _: () = assert!(lease::SPARE == LEASE_SPARE && lease::GENERATIONS << NUMBER_BITS < GONE as u64);

/// What cores have leased: a line for each class, one core's after the other's.
static LEASES: SetOnce<Vec<LeaseLine>> = SetOnce::new();

/// By class and kind.
static ACCOUNTS: Mutex<[[Account; QUOTAS]; ACTIVITIES_MAX]> =
    Mutex::new([[Account::new(); QUOTAS]; ACTIVITIES_MAX]);

/// Of each class's accounts.
static GENERATIONS: [AtomicU32; ACTIVITIES_MAX] = [const { AtomicU32::new(0) }; ACTIVITIES_MAX];

/// Bits of an [`Environment`] that are the class's number.
const NUMBER_BITS: u32 = ACTIVITIES_MAX.ilog2();

/// What stands in a [`Held`] that was given back.
const GONE: u32 = u32::MAX;

/// Whose quotas something counts for, besides the cell's: a class, as it is now.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Environment(u32);

impl Environment {
    fn of(class: u32) -> Environment {
        Environment(GENERATIONS[class as usize].load(Ordering::Relaxed) << NUMBER_BITS | class)
    }

    /// Its account, if it has one besides the cell's: class and generation.
    fn account(self) -> Option<(u32, u32)> {
        let class = self.0 % ACTIVITIES_MAX as u32;
        (class != ROOT).then_some((class, self.0 >> NUMBER_BITS))
    }
}

/// The environment that a process's threads, timers and so on count for. It changes when the process belongs to another class.
pub struct Current(AtomicU32);

impl Current {
    /// That of a class.
    pub fn new(class: &Activity) -> Current {
        Current(AtomicU32::new(Environment::of(class.class()).0))
    }

    fn get(&self) -> Environment {
        Environment(self.0.load(Ordering::SeqCst))
    }
}

/// One of a kind that somebody has: it counts until this is dropped.
pub struct Held {
    quota: Quota,
    environment: AtomicU32,
}

/// Has room for what cores lease. Before there are processes.
pub fn init() {
    let lines: Vec<LeaseLine> =
        (0..atoll_task::cores() * ACTIVITIES_MAX).map(|_| LeaseLine::default()).collect();
    let place = memory().offset(lines.as_ptr().cast()).unwrap_or(0);
    platform().control().grid.leases.store(place, Ordering::Release);
    assert!(LEASES.set(lines).is_ok(), "quotas were begun with twice");
}

/// What each core has leased.
fn leases(class: u32, quota: Quota) -> impl Iterator<Item = &'static AtomicU64> + Clone {
    let of_class = LEASES.iter().skip(class as usize).step_by(ACTIVITIES_MAX);
    of_class.map(move |line| &line.0[quota as usize])
}

/// What this core has.
fn own_lease(class: u32, quota: Quota) -> &'static AtomicU64 {
    &LEASES[core_local().id() * ACTIVITIES_MAX + class as usize].0[quota as usize]
}

/// Does something with an account, and says outside what has come of it.
fn with_account<R>(
    all: &mut [[Account; QUOTAS]; ACTIVITIES_MAX],
    (class, quota): (u32, Quota),
    f: impl FnOnce(&mut Account) -> R,
) -> R {
    let account = &mut all[class as usize][quota as usize];
    let r = f(account);
    let said = &platform().control().grid.accounts[class as usize];
    said.leased[quota as usize].store(account.leased(), Ordering::Relaxed);
    said.most[quota as usize].store(account.most(), Ordering::Relaxed);
    r
}

/// Takes one out of an account: out of this core's lease, or if that has none, out of what there is anywhere.
fn take_from(class: u32, generation: u32, quota: Quota) -> bool {
    match lease::take(own_lease(class, quota), generation) {
        // Whose class has just gone counts for the cell.
        Taken::Yes | Taken::Closed => true,
        Taken::Ask => {
            let mut all = ACCOUNTS.lock();
            let core = core_local().id();
            with_account(&mut all, (class, quota), |account| account.take(core, leases(class, quota)))
        }
    }
}

fn give_to(class: u32, generation: u32, quota: Quota) {
    let lease = own_lease(class, quota);
    // If somebody has the accounts just now, this core keeps what it has: it will be found.
    if lease::give(lease, generation, 1)
        && let Some(mut all) = ACCOUNTS.try_lock()
    {
        with_account(&mut all, (class, quota), |account| account.take_back(lease));
    }
}

impl Held {
    /// One more, for a process. None: there are as many as there may be.
    pub fn one(quota: Quota, process: &Current) -> Option<Held> {
        let environment = process.get();
        if let Some((class, generation)) = environment.account()
            && !take_from(class, generation, quota)
        {
            return None;
        }
        let held = Held { quota, environment: AtomicU32::new(environment.0) };
        if !take_from(ROOT, 0, quota) {
            held.give_back_to_class(environment);
            core::mem::forget(held);
            return None;
        }
        Some(held)
    }

    fn give_back_to_class(&self, environment: Environment) {
        if let Some((class, generation)) = environment.account() {
            give_to(class, generation, self.quota);
        }
    }

    fn give_back_as(&self, environment: u32) {
        if environment != GONE {
            self.give_back_to_class(Environment(environment));
            give_to(ROOT, 0, self.quota);
        }
    }

    /// It has ended, though whoever has this is still there.
    pub fn give_back(&self) {
        self.give_back_as(self.environment.swap(GONE, Ordering::Relaxed));
    }

    /// It counts for the environment that the process has now, even if that is full.
    pub fn follow(&self, process: &Current) {
        loop {
            let (from, to) = (self.environment.load(Ordering::Relaxed), process.get());
            if from == GONE || from == to.0 {
                return;
            }
            if let Some((class, _)) = to.account() {
                let mut all = ACCOUNTS.lock();
                with_account(&mut all, (class, self.quota), |account| {
                    account.force(1, leases(class, self.quota));
                });
            }
            let moved =
                self.environment.compare_exchange(from, to.0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            // If it has ended just now, what was forced is given back.
            self.give_back_to_class(if moved { Environment(from) } else { to });
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Nobody else has it any more.
        let environment = *self.environment.get_mut();
        self.give_back_as(environment);
    }
}

/// A process belongs to another class now, with all that it holds, how much there may ever be. What it has open stays with who opened it.
pub fn moves(process: &Process, class: &Activity) {
    let to = Environment::of(class.number());
    if process.environment.0.swap(to.0, Ordering::SeqCst) == to.0 {
        return;
    }
    // Who begins something just now has looked before, and then finds out that it is another one (`follow`), or is in these lists.
    process.held.follow(&process.environment);
    process.tasks.lock().iter().for_each(|task| task.held.follow(&process.environment));
    process.timers.lock().values().for_each(|timer| timer.held.follow(&process.environment));
}

/// There is a new class.
pub fn open(class: &Activity) {
    let n = class.number();
    let mut all = ACCOUNTS.lock();
    for quota in Quota::ALL {
        let generation = with_account(&mut all, (n, quota), |account| {
            account.reopen(leases(n, quota));
            account.generation()
        });
        GENERATIONS[n as usize].store(generation, Ordering::Relaxed);
    }
}

/// Takes the limits of a configuration. Who has more keeps what there is.
pub fn configure(config: &GridConfig, classes: &[Activity]) {
    let mut all = ACCOUNTS.lock();
    let named = classes.iter().map(Activity::number).zip(config.activities.iter().map(|a| a.quotas));
    let limited: Vec<(u32, [u32; QUOTAS])> = named.chain([(ROOT, config.quotas)]).collect();
    for class in 0..ACTIVITIES_MAX as u32 {
        let most = limited.iter().find(|(n, _)| *n == class).map_or([0; QUOTAS], |(_, most)| *most);
        for (quota, most) in Quota::ALL.into_iter().zip(most) {
            if all[class as usize][quota as usize].most() != most {
                with_account(&mut all, (class, quota), |account| {
                    account.set_most(most, leases(class, quota));
                });
            }
        }
    }
}
