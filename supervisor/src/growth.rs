//! A cell that takes more memory by itself when its programs need it, and gives it back (XOS, section II.C: cells are elastic, and what
//! is in reserve is pooled; requirement XOS-09).
//!
//! It begins with what it has in any case, and asks when its programs need more and its caches have nothing to give. It gets a step of what
//! the host has left: what is available there and the limits of this process's control groups leave ([`headroom`]), less what this user's
//! other cells were granted and have not touched yet, less the *reserve*. Cells that leave a smaller reserve alone than others can still grow
//! when those can't any more: that is what is critical.
//!
//! What it took so goes back in steps when it is not used for a while, and when the host has less left than the reserve, as far as the cell
//! can do without: caches give theirs up for that, programs don't.
#![allow(unsafe_code, reason = "waits on a futex of the control area")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use atoll_abi::control::Growth;
use atoll_abi::layout::{BLOCK, Sizes};
use serde::{Deserialize, Serialize};

use crate::cores::{self, Counts, ElasticCores};
use crate::inspect::{About, Answer, Live, Request, ask_within, mib};
use crate::memory::headroom;
use crate::registry::{directory, list};

/// The least that a cell takes at a time, bytes, and the part of what it has: one of so many.
const STEP: u64 = 64 << 20;
const STEP_PART: u64 = 8;

/// How long other cells may take to say what they have, all together: the one that asks waits for it.
const OTHERS: Duration = Duration::from_millis(200);
/// For how long that is taken to be so.
const FRESH: Duration = Duration::from_secs(1);

/// How often is looked whether a cell that has grown can give something back, and after how many looks that found it unused.
const LOOK: Duration = Duration::from_secs(1);
const UNUSED: u32 = 5;
/// How long it may take to give some back; and for how long it is left alone when it could not.
const WITHIN: Duration = Duration::from_secs(2);
const AGAIN: Duration = Duration::from_secs(30);

/// A cell that takes memory by itself.
pub struct Elastic {
    /// Host memory that it leaves alone, bytes.
    reserve: u64,
    /// What it has in any case, bytes.
    base: AtomicU64,
    taken: AtomicU64,
    given_back: AtomicU64,
    refused: AtomicU64,
    pub(crate) cores: Counts,
}

/// What one has done, as it is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ElasticUse {
    /// What it has in any case, bytes.
    pub base: u64,
    /// Host memory that it leaves alone, bytes.
    pub reserve: u64,
    /// Bytes that it has taken by itself since it began.
    pub taken: u64,
    /// Bytes of that which it has given back.
    pub given_back: u64,
    /// How often it asked and got nothing.
    pub refused: u64,
    /// The same of cores.
    #[serde(default)]
    pub cores: ElasticCores,
}

impl Elastic {
    /// One that has `base` bytes and some cores in any case, and leaves `reserve` of the host's memory alone.
    pub(crate) fn new(base: u64, reserve: u64, cores: Counts) -> Elastic {
        let [taken, given_back, refused] = [const { AtomicU64::new(0) }; 3];
        Elastic { reserve, base: AtomicU64::new(base), taken, given_back, refused, cores }
    }

    /// What it has done.
    pub(crate) fn usage(&self) -> ElasticUse {
        let of = |word: &AtomicU64| word.load(Ordering::Relaxed);
        ElasticUse {
            base: of(&self.base),
            reserve: self.reserve,
            taken: of(&self.taken),
            given_back: of(&self.given_back),
            refused: of(&self.refused),
            cores: self.cores.usage(),
        }
    }

    /// Somebody has said how much it is to have: that it has in any case from now on.
    pub(crate) fn set_base(&self, bytes: u64) {
        self.base.store(bytes, Ordering::Relaxed);
    }
}

/// How much a cell gets that has so much, needs `least` more, and is left `left` of by the host.
fn more(sizes: Sizes, least: u64, left: u64) -> u64 {
    let step = STEP.max(sizes.now / STEP_PART).max(least).next_multiple_of(BLOCK);
    step.min(sizes.most - sizes.now).min(left / BLOCK * BLOCK)
}

/// How much one is to have that uses `used` bytes of what it has; None: as much as it has. `is_needed`: the host has no more than its reserve.
fn less(sizes: Sizes, base: u64, used: u64, is_needed: bool) -> Option<u64> {
    let step = STEP.max(sizes.now / STEP_PART).next_multiple_of(BLOCK);
    let unused = sizes.now.saturating_sub(used);
    let to = if is_needed {
        sizes.now.saturating_sub(step)
    } else if unused > 2 * step {
        // A step is left for what comes next.
        (sizes.now - (unused - step)).next_multiple_of(BLOCK)
    } else {
        return None;
    };
    Some(to.max(base).max(sizes.least)).filter(|to| *to < sizes.now)
}

/// What this user's other cells were granted and have not touched, bytes.
struct Promised {
    bytes: u64,
    at: Option<Instant>,
}

impl Promised {
    fn now(&mut self) -> u64 {
        let begun = Instant::now();
        if self.at.is_none_or(|at| begun - at > FRESH) {
            let cells = directory().and_then(|dir| list(&dir)).unwrap_or_default();
            let untouched = |about: About| about.memory.saturating_sub(about.memory_used);
            let others = cells.iter().filter(|cell| cell.pid != std::process::id()).map_while(|cell| {
                let left = OTHERS.checked_sub(begun.elapsed())?;
                // One that doesn't answer doesn't count.
                Some(match ask_within(&cell.socket, &Request::Cell, left) {
                    Ok(Some(Answer::Cell(about))) => untouched(about),
                    _ => 0,
                })
            });
            *self = Promised { bytes: others.sum(), at: Some(begun) };
        }
        self.bytes
    }
}

/// What the host has left for it, bytes.
fn left(promised: &mut Promised, elastic: &Elastic) -> u64 {
    headroom().saturating_sub(promised.now()).saturating_sub(elastic.reserve)
}

/// Answers the cell from now on, and looks after what it could give back.
pub(crate) fn start(live: Arc<Live>) {
    let Some((elastic, _)) = live.elastic() else { return };
    if live.most_cores() > elastic.cores.usage().base as usize {
        cores::start(live.clone(), elastic.reserve == 0);
    }
    let sizes = live.memory_sizes();
    if sizes.most == sizes.now {
        return;
    }
    let looker = {
        let live = live.clone();
        let named = std::thread::Builder::new().name("atoll-shrink".into());
        named.spawn(move || give_back(&live))
    };
    // Without it what the cell has taken stays its own.
    let looker = looker.ok().map(|thread| thread.thread().clone());
    let named = std::thread::Builder::new().name("atoll-grow".into());
    // Without this one it gets nothing.
    let _ = named.spawn(move || answer(&live, || looker.iter().for_each(std::thread::Thread::unpark)));
}

fn answer(live: &Live, grown: impl Fn()) {
    let Some((elastic, growth)) = live.elastic() else { return };
    let mut promised = Promised { bytes: 0, at: None };
    let mut is_refused = false;
    loop {
        let asked = growth.asked.load(Ordering::Acquire);
        if asked == growth.answered.load(Ordering::Relaxed) {
            wait(growth, asked);
            continue;
        }
        // The cell says so: it may be anything.
        let least = growth.bytes.load(Ordering::Relaxed).min(STEP);
        let left = left(&mut promised, elastic);
        let mut got = 0;
        let there = live.grant(|sizes| {
            got = more(sizes, least, left);
            got
        });
        match there {
            Ok(_) if got > 0 => {
                elastic.taken.fetch_add(got, Ordering::Relaxed);
                is_refused = false;
            }
            Ok(there) => {
                elastic.refused.fetch_add(1, Ordering::Relaxed);
                if !std::mem::replace(&mut is_refused, true) {
                    let (has, reserve) = (mib(there), mib(elastic.reserve));
                    crate::say!(
                        "atoll: the cell has {has} of memory and needs more, but the host has no more left than what it is to leave alone, {reserve} (--host-reserve)"
                    );
                }
            }
            // Somebody changes it just now, or that can't be done.
            Err(_) => _ = elastic.refused.fetch_add(1, Ordering::Relaxed),
        }
        growth.there.store(there.unwrap_or(0), Ordering::Relaxed);
        growth.answered.store(asked, Ordering::Release);
        // SAFETY: only the word's address is used.
        unsafe { libc::syscall(libc::SYS_futex, growth.answered.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
        if got > 0 {
            grown();
        }
    }
}

/// Sleeps until the cell asks again.
fn wait(growth: &Growth, asked: u32) {
    // SAFETY: the word is in the mapping.
    unsafe { libc::syscall(libc::SYS_futex, growth.asked.as_ptr(), libc::FUTEX_WAIT, asked, 0) };
}

fn give_back(live: &Live) {
    let Some((elastic, _)) = live.elastic() else { return };
    let mut promised = Promised { bytes: 0, at: None };
    let mut unused = 0;
    loop {
        let sizes = live.memory_sizes();
        let base = elastic.base.load(Ordering::Relaxed);
        if sizes.now <= base {
            unused = 0;
            // Until it has grown.
            std::thread::park();
            continue;
        }
        std::thread::sleep(LOOK);
        let Some(used) = live.memory_held() else { continue };
        let is_needed = left(&mut promised, elastic) == 0;
        let Some(to) = less(sizes, base, used, is_needed) else {
            unused = 0;
            continue;
        };
        unused += 1;
        if !is_needed && unused < UNUSED {
            continue;
        }
        unused = 0;
        let done = live.give_back(to, WITHIN);
        // Some may have gone although not all could.
        let gone = sizes.now.saturating_sub(live.memory_sizes().now);
        elastic.given_back.fetch_add(gone, Ordering::Relaxed);
        if live.is_over() {
            return;
        }
        if done.is_err() && gone == 0 {
            // What is in the way is in use, and will be for a while.
            std::thread::sleep(AGAIN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn sizes(now: u64) -> Sizes {
        Sizes { most: 4096 * MIB, now: now * MIB, least: 32 * MIB }
    }

    /// XOS-09: steps grow with the cell, and end where it, or the host, has no more.
    #[test]
    fn takes_steps() {
        let of = |now, least, left| more(sizes(now), least * MIB, left * MIB) / MIB;
        assert_eq!(of(128, 0, 10_000), 64);
        assert_eq!(of(1024, 0, 10_000), 128);
        assert_eq!(of(1024, 200, 10_000), 200);
        assert_eq!(of(4090, 0, 10_000), 6);
        assert_eq!(of(4096, 64, 10_000), 0);
        assert_eq!(of(128, 0, 5), 4);
        assert_eq!(of(128, 0, 1), 0);
    }

    /// And go back where they are not used, or the host needs them, but never more than was taken.
    #[test]
    fn gives_back() {
        let of =
            |now, base, used, needed| less(sizes(now), base * MIB, used * MIB, needed).map(|to| to / MIB);
        assert_eq!(of(512, 64, 500, false), None);
        assert_eq!(of(512, 64, 384, false), None);
        assert_eq!(of(512, 64, 100, false), Some(164));
        assert_eq!(of(512, 256, 100, false), Some(256));
        assert_eq!(of(2048, 64, 100, false), Some(356));
        assert_eq!(of(512, 64, 500, true), Some(448));
        assert_eq!(of(512, 500, 100, true), Some(500));
        assert_eq!(of(64, 64, 0, true), None);
        // It says what can't be.
        assert_eq!(of(512, 64, 5000, false), None);
    }
}
