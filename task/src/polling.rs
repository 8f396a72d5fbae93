//! How long a core that has nothing to do looks whether another core sends it something, before it sleeps.
//!
//! To be woken costs both cores many times as much as to send something to a core that looks. So a core looks for some time if
//! that has paid lately: for twice as long as it took on average, and at most three times as long as it takes to be woken, which is
//! measured. Each time that it looked in vain it lets twice as many occasions go by before it tries again. It tries only if what
//! it waited for the last time came soon enough to be worth it; what comes seldom, or from outside of the cell, is slept for. An
//! idle cell so does nothing at all.

/// For how long at least, ns: some loads of a line that another core writes.
const LEAST: u64 = 2_000;
/// What being woken is taken to take before it was measured, and at most, ns.
const WAKE: u64 = 10_000;
const WAKE_MOST: u64 = 100_000;
/// At least every how many-th occasion is tried, as a power of two.
const SELDOM: u32 = 10;

/// Whether to try what may be in vain. Each time that it was, twice as many occasions go by before the next try.
#[derive(Debug)]
pub(crate) struct Tries {
    /// In vain so often one after the other.
    missed: u32,
    /// Occasions that go by until the next try.
    skip: u32,
}

impl Tries {
    pub const fn new() -> Self {
        Tries { missed: 0, skip: 0 }
    }

    /// Is this an occasion to try?
    pub fn is_time(&mut self) -> bool {
        let now = self.skip == 0;
        self.skip = self.skip.saturating_sub(1);
        now
    }

    /// It has been tried.
    pub fn tried(&mut self, paid: bool) {
        self.missed = if paid { 0 } else { (self.missed + 1).min(SELDOM) };
        self.skip = (1 << self.missed) - 1;
    }
}

/// An answer of the platform's comes soon if it takes no longer than this, ns: whoever gives it may have to be woken first.
const SOON: u64 = 60_000;
/// For how long a core looks where nearly all come soon, ns.
const ANSWER_MOST: u64 = 100_000;
/// All of them, most of those lately, and nearly all.
const ALL: u32 = 1 << 16;
const MOST: u32 = ALL / 10 * 7;
const NEARLY_ALL: u32 = ALL / 10 * 9;

/// How long a core that has nothing to do looks whether what it asked the platform for has been answered, before it sleeps: that pays where most
/// come in less time than it takes to sleep and to be woken. What waits for a disk is slept for, and so is what may never come (a
/// terminal's input): each look in vain puts off the next one.
#[derive(Debug)]
pub(crate) struct Answers {
    tries: Tries,
    /// The part of them that came soon, lately.
    soon: u32,
}

impl Answers {
    pub const fn new() -> Self {
        Answers { tries: Tries::new(), soon: ALL }
    }

    /// For how long to look this time, ns.
    pub fn time(&mut self) -> u64 {
        match self.soon {
            MOST.. if !self.tries.is_time() => 0,
            NEARLY_ALL.. => ANSWER_MOST,
            MOST.. => SOON,
            _ => 0,
        }
    }

    /// It looked, and none came.
    pub fn was_in_vain(&mut self) {
        self.tries.tried(false);
    }

    /// An answer came so long after the core had nothing left to do, ns, while it looked or slept; without the time that being woken took.
    pub fn came(&mut self, after: u64) {
        let soon = after <= SOON;
        self.soon = self.soon / 8 * 7 + if soon { ALL / 8 } else { 0 };
        if soon {
            self.tries.tried(true);
        }
    }
}

/// What a core knows of it.
#[derive(Debug)]
pub(crate) struct Polling {
    /// How long it takes to be woken, ns, on average.
    wake: u64,
    /// How long it took when it paid, ns, on average.
    took: u64,
    tries: Tries,
    /// Would it have been worth it the last time?
    worth: bool,
}

impl Polling {
    pub const fn new() -> Self {
        Polling { wake: WAKE, took: WAKE, tries: Tries::new(), worth: false }
    }

    /// For how long at most, ns: while another core is woken, which then wakes this one.
    fn most(&self) -> u64 {
        (3 * self.wake).max(LEAST)
    }

    /// Is a deadline so near that the core would be woken too late?
    pub fn is_near(&self, ns: u64) -> bool {
        ns < self.wake
    }

    /// The core has slept and has what it waited for `after` ns after it had nothing left to do. When was it there, without being woken?
    pub fn was_there(&self, after: u64) -> u64 {
        after.saturating_sub(self.wake)
    }

    /// For how long to look this time, ns.
    pub fn time(&mut self) -> u64 {
        if !self.worth || !self.tries.is_time() {
            return 0;
        }
        self.usual()
    }

    /// For how long it is looked, ns: not much less than what it costs if that was not long enough.
    fn usual(&self) -> u64 {
        (2 * self.took).max(self.wake / 2).clamp(LEAST, self.most())
    }

    /// Something was there `after` ns after the core had begun to look.
    pub fn paid(&mut self, after: u64) {
        self.took = (3 * self.took + after) / 4;
        self.tries.tried(true);
    }

    /// Nothing was.
    pub fn was_in_vain(&mut self) {
        self.tries.tried(false);
    }

    /// The core has slept. What woke it came `after` ns after it had nothing left to do; `wake`: how long ago it was sent, if that
    /// was by another core of the cell.
    pub fn slept(&mut self, after: u64, wake: Option<u64>) {
        if let Some(wake) = wake {
            self.wake = ((7 * self.wake + wake) / 8).min(WAKE_MOST);
        }
        let Some(wake) = wake else {
            self.worth = false;
            return;
        };
        // Both may have been woken in turn: without that it would have come sooner.
        self.worth = after < 2 * self.most();
        if self.worth {
            // It may have to look for longer than it did.
            self.took = self.took.max(self.most() / 2);
        }
        if after.saturating_sub(wake) < self.usual() {
            // It would have paid.
            self.tries.tried(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long being woken takes, ns.
    const TAKES: u64 = 20_000;

    /// What other cores send comes as the function says: `after` ns after the core has nothing to do. Value: the parts of the time
    /// that the core looked, and of what came that was found by that.
    fn run(n: u64, after: impl Fn(u64) -> (u64, bool)) -> (f64, f64) {
        let mut polling = Polling::new();
        let (mut looked, mut found, mut all) = (0, 0, 0);
        for n in 0..n {
            let (after, from_core) = after(n);
            let time = polling.time();
            all += after;
            if time > 0 && from_core && after <= time {
                looked += after;
                found += 1;
                polling.paid(after);
                continue;
            }
            if time > 0 {
                polling.was_in_vain();
            }
            looked += time.min(after);
            all += TAKES;
            polling.slept(after + TAKES, from_core.then_some(TAKES));
        }
        (looked as f64 / all as f64, found as f64 / n as f64)
    }

    /// OV-04: who is answered soon does not sleep; who is not, or by others, does nothing else.
    #[test]
    fn looks_where_it_pays() {
        let (_, found) = run(10_000, |_| (1_000, true));
        assert!(found > 0.99);
        let (_, found) = run(10_000, |n| (if n % 10 == 0 { 400_000 } else { 5_000 }, true));
        assert!(found > 0.6, "{found}");
        // It comes too late, never from another core, or seldom.
        for (after, from_core) in [(150_000, true), (10_000, false), (100_000_000, true)] {
            let (looked, found) = run(100_000, |_| (after, from_core));
            assert!(looked < 0.001, "{after}: {looked}");
            assert!(found < 0.001);
        }
    }

    /// Answers are looked for where they come soon, and nowhere else.
    #[test]
    fn looks_for_answers_that_come_soon() {
        // How long it looked, on average, and how many it found.
        let run = |after: &dyn Fn(u64) -> u64| {
            let mut answers = Answers::new();
            let (mut looked, mut found) = (0, 0);
            for n in 0..10_000 {
                let (after, time) = (after(n), answers.time());
                looked += time.min(after);
                found += u64::from(after <= time);
                if time > 0 && after > time {
                    answers.was_in_vain();
                }
                answers.came(after);
            }
            (looked / 10_000, found)
        };
        assert_eq!(run(&|_| 12_000), (12_000, 10_000));
        // Who gives them sleeps now and then.
        let (_, found) = run(&|n| if n % 5 == 0 { 50_000 } else { 12_000 });
        assert_eq!(found, 10_000);
        for late in [70_000, 300_000, 5_000_000] {
            let (looked, found) = run(&|_| late);
            assert!(looked < 100 && found < 4, "{late}: {looked} {found}");
        }
        // Every other one waits for a disk; one of twenty does.
        let (looked, _) = run(&|n| if n % 2 == 0 { 400_000 } else { 12_000 });
        assert!(looked < 100, "{looked}");
        let (looked, found) = run(&|n| if n % 20 == 0 { 400_000 } else { 12_000 });
        assert!(looked < 18_000 && found > 8_900, "{looked} {found}");
        // None comes.
        let mut answers = Answers::new();
        let mut look = || Some(answers.time()).filter(|time| *time > 0).inspect(|_| answers.was_in_vain());
        assert!((0..10_000).filter_map(|_| look()).count() < 25);
        // It begins again when they do.
        let (_, found) = run(&|n| if n < 100 { 400_000 } else { 12_000 });
        assert!(found > 9_850, "{found}");
    }

    /// Two cores that answer each other, and both sleep at first: each finds the other awake after a few rounds.
    #[test]
    fn two_meet() {
        let mut cores = [Polling::new(), Polling::new()];
        // Since when a core waits, and until when it looks; when the other one sends.
        let (mut now, mut found) = (0, 0);
        let mut since = [0; 2];
        let mut until = [0; 2];
        for n in 0..1000 {
            let (from, to) = (n % 2, (n + 1) % 2);
            now += 500;
            let sent = now;
            (since[from], until[from]) = (now, now + cores[from].time());
            let looks = until[to] > since[to];
            if looks && sent <= until[to] {
                cores[to].paid(sent - since[to]);
                found += 1;
            } else {
                if looks {
                    cores[to].was_in_vain();
                }
                now += TAKES;
                cores[to].slept(now - since[to], Some(TAKES));
            }
        }
        assert!(found > 900, "{found}");
    }
}
