//! A cell that takes more cores by itself when its threads wait for one, and gives them back (XOS, section II.C; requirement XOS-09).
//!
//! It is looked at ten times a second: which of its cores work, and whether threads wait for them. If all work and some thread waits, in five
//! looks one after the other, and the host has a processor that was idle for half of that time, it gets one more, up to what it may have.
//! Where `--host-reserve` is 0 it gets one whatever the host does meanwhile: that is what is critical. If what its cores have done in five
//! seconds is less than seven tenths of what one core less can do, it gives one back, down to what it has in any case.
//!
//! What the cell says of that may be anything: it gets no more than it was to have at most.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::inspect::Live;

/// How often it is looked at, and how often where no core works and it has none to give back.
const LOOK: Duration = Duration::from_millis(100);
const LOOK_IDLE: Duration = Duration::from_millis(400);
/// So many looks, one after the other, at which a thread waits: it takes a core.
const SHORT: usize = 5;
/// So many looks are counted before one is given back.
const COUNTED: usize = 50;
/// Of which so many percent may have work for the cores that are left.
const USED: usize = 70;
/// Percent of the time for which a processor of the host is to be idle before a core is taken there.
const IDLE: u64 = 50;
/// For how long none is asked for where the host had none.
const AGAIN: Duration = Duration::from_secs(1);

/// What one has done, as it is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ElasticCores {
    /// Cores that it has in any case.
    pub base: u32,
    /// How often it has taken one by itself since it began.
    pub taken: u64,
    /// How often it has given one back.
    pub given_back: u64,
    /// How often it would have taken one and the host had none idle.
    pub refused: u64,
}

/// The same, as it is counted.
pub(crate) struct Counts {
    base: AtomicU32,
    taken: AtomicU64,
    given_back: AtomicU64,
    refused: AtomicU64,
}

/// Processors of the host that a cell's cores may use.
pub(crate) enum Cpus {
    /// One for each core.
    Pinned(Vec<usize>),
    /// Any of these.
    Any(Vec<usize>),
}

impl Cpus {
    /// May a core that is the `n`th use it?
    fn may(&self, n: usize, cpu: usize) -> bool {
        match self {
            Cpus::Pinned(cpus) => cpus.get(n) == Some(&cpu),
            Cpus::Any(cpus) => cpus.contains(&cpu),
        }
    }
}

impl Counts {
    pub(crate) fn new(base: u32) -> Counts {
        let [taken, given_back, refused] = [const { AtomicU64::new(0) }; 3];
        Counts { base: AtomicU32::new(base), taken, given_back, refused }
    }

    pub(crate) fn usage(&self) -> ElasticCores {
        let of = |word: &AtomicU64| word.load(Ordering::Relaxed);
        ElasticCores {
            base: self.base.load(Ordering::Relaxed),
            taken: of(&self.taken),
            given_back: of(&self.given_back),
            refused: of(&self.refused),
        }
    }

    /// Somebody has said how many it is to have: that it has in any case from now on.
    pub(crate) fn set_base(&self, cores: u32) {
        self.base.store(cores, Ordering::Relaxed);
    }
}

/// What one look at a cell has found.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    /// Cores that it uses.
    pub online: usize,
    /// How many of them work.
    pub working: usize,
    /// A thread waits for one.
    pub is_waited: bool,
}

#[derive(PartialEq, Eq, Debug)]
enum Wanted {
    Same,
    /// One is needed, as far as one can see now.
    Soon,
    More,
    Less,
}

/// What was found since the number of cores changed.
#[derive(Default)]
struct Looks {
    online: usize,
    short: usize,
    working: VecDeque<usize>,
}

impl Looks {
    fn add(&mut self, found: Found) -> Wanted {
        if found.online != self.online {
            *self = Looks { online: found.online, ..Looks::default() };
        }
        self.short = if found.is_waited && found.working >= found.online { self.short + 1 } else { 0 };
        self.working.push_back(found.working);
        if self.working.len() > COUNTED {
            self.working.pop_front();
        }
        if self.short > 0 {
            return if self.short >= SHORT { Wanted::More } else { Wanted::Soon };
        }
        let worked: usize = self.working.iter().sum();
        let is_less =
            self.working.len() == COUNTED && worked * 100 <= COUNTED * found.online.saturating_sub(1) * USED;
        if is_less { Wanted::Less } else { Wanted::Same }
    }
}

/// Idle time and all time of each processor of the host, in its ticks.
pub(crate) type Processors = Vec<(usize, u64, u64)>;

fn processors(stat: &str) -> Processors {
    let each = stat.lines().filter_map(|line| {
        // That of all together has no number.
        let (number, times) = line.strip_prefix("cpu")?.split_once(' ')?;
        let number = number.parse().ok()?;
        // User, nice, system, idle, waiting for input or output, and so on; guests are in the first two already.
        let times: Vec<u64> =
            times.split_ascii_whitespace().take(8).map_while(|word| word.parse().ok()).collect();
        let idle = times.get(3)? + times.get(4)?;
        Some((number, idle, times.iter().sum()))
    });
    each.collect()
}

pub(crate) fn look_at_processors() -> Processors {
    processors(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
}

/// Has one of the processors been idle for long enough, of those for which `may` holds?
fn is_one_idle(before: &Processors, after: &Processors, may: impl Fn(usize) -> bool) -> bool {
    after.iter().filter(|(number, ..)| may(*number)).any(|(number, idle, all)| {
        let old = before.iter().find(|(old, ..)| old == number);
        old.is_some_and(|(_, idle_before, all_before)| {
            let all = all.saturating_sub(*all_before);
            all > 0 && idle.saturating_sub(*idle_before) * 100 >= all * IDLE
        })
    })
}

/// Looks after a cell's cores from now on. `is_critical`: it leaves the host nothing.
pub(crate) fn start(live: Arc<Live>, is_critical: bool) {
    let named = std::thread::Builder::new().name("atoll-cores".into());
    // Without it the cell has what it began with.
    let _ = named.spawn(move || look_after(&live, is_critical));
}

fn look_after(live: &Live, is_critical: bool) {
    let (Some(counts), Some(cpus)) = (live.elastic_cores(), live.cpus()) else { return };
    let (mut looks, mut before) = (Looks::default(), Processors::new());
    let mut is_refused = false;
    let mut pause = LOOK;
    loop {
        std::thread::sleep(pause);
        let Some(found) = live.look_at_cores().filter(|_| !live.is_over()) else { return };
        let (online, base) = (found.online as u32, counts.base.load(Ordering::Relaxed));
        pause = if found.working == 0 && online <= base { LOOK_IDLE } else { LOOK };
        match looks.add(found) {
            Wanted::Soon if looks.short == 1 && found.online < live.most_cores() && !is_critical => {
                before = look_at_processors()
            }
            Wanted::More if found.online < live.most_cores() => {
                let may = |cpu| cpus.may(found.online, cpu);
                if is_critical || is_one_idle(&before, &look_at_processors(), may) {
                    if live.change_cores(online, online + 1) {
                        counts.taken.fetch_add(1, Ordering::Relaxed);
                    }
                    is_refused = false;
                } else {
                    counts.refused.fetch_add(1, Ordering::Relaxed);
                    if !std::mem::replace(&mut is_refused, true) {
                        crate::say!(
                            "atoll: threads of the cell wait for a core and it may have more than {online}, but the host has no processor that is idle (--host-reserve 0 takes one all the same)"
                        );
                    }
                    std::thread::sleep(AGAIN);
                }
                looks = Looks::default();
            }
            Wanted::Less if online > base => {
                if live.change_cores(online, online - 1) {
                    counts.given_back.fetch_add(1, Ordering::Relaxed);
                }
                looks = Looks::default();
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(looks: &mut Looks, n: usize, online: usize, working: usize, is_waited: bool) -> Wanted {
        (0..n).map(|_| looks.add(Found { online, working, is_waited })).last().expect("some")
    }

    /// XOS-09: a core is taken when threads have waited a while with all at work, not for one thread that computes.
    #[test]
    fn takes_one_that_is_waited_for() {
        let mut looks = Looks::default();
        assert_eq!(all(&mut looks, 4, 1, 1, true), Wanted::Soon);
        assert_eq!(all(&mut looks, 1, 1, 1, true), Wanted::More);
        let mut looks = Looks::default();
        assert_eq!(all(&mut looks, 100, 1, 1, false), Wanted::Same);
        // One that stands still has work on its way.
        assert_eq!(all(&mut looks, 100, 2, 1, true), Wanted::Same);
        assert_eq!(all(&mut looks, 4, 2, 2, true), Wanted::Soon);
        assert_eq!(all(&mut looks, 1, 2, 2, false), Wanted::Same);
        assert_eq!(all(&mut looks, 4, 2, 2, true), Wanted::Soon);
    }

    /// And given back when the others can do its work.
    #[test]
    fn gives_one_back() {
        assert_eq!(all(&mut Looks::default(), COUNTED - 1, 4, 0, false), Wanted::Same);
        assert_eq!(all(&mut Looks::default(), COUNTED, 4, 2, false), Wanted::Less);
        assert_eq!(all(&mut Looks::default(), COUNTED, 4, 3, false), Wanted::Same);
        assert_eq!(all(&mut Looks::default(), COUNTED, 2, 1, false), Wanted::Same);
        assert_eq!(all(&mut Looks::default(), COUNTED, 1, 0, false), Wanted::Less);
    }

    /// `/proc/stat` is read as proc(5) has it.
    #[test]
    fn finds_an_idle_processor() {
        let of = |idle: u64, busy: u64| {
            processors(&format!(
                "cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 {busy} 0 0 {idle} 0 0 0 0 7 7\ncpu12 100 0 0 0 0 0 0 0\nintr 1\n"
            ))
        };
        assert_eq!(of(30, 10), [(0, 30, 40), (12, 0, 100)]);
        assert!(is_one_idle(&of(30, 10), &of(60, 20), |_| true));
        assert!(!is_one_idle(&of(30, 10), &of(40, 50), |_| true));
        assert!(!is_one_idle(&of(30, 10), &of(60, 20), |n| n == 12));
        assert!(!is_one_idle(&of(30, 10), &of(30, 10), |_| true));
        assert!(!is_one_idle(&Processors::new(), &of(60, 20), |_| true));
    }
}
