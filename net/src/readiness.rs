//! What is known of a host socket's readiness, in one word.
//!
//! The host reports changes to the core that watches the socket; whoever
//! takes data, on whichever core, changes it back. The two cross: an event
//! may tell of data that was taken before the event arrived. A program that
//! waits for a level (`poll(2)`, level-triggered `epoll(7)`) must never hear
//! of that. So each core counts its looks for events: an event is newer than
//! what was taken last exactly if its look began after that. If it may not
//! be, or if something was taken and more may be there, the word is *unsure*,
//! and who needs to know asks the host.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use atoll_fs::poll;

/// Bits of the word that are readiness.
const READY: u64 = 0xffff;
/// From this bit on, 32 bits: the look of the newest event.
const LOOK: u32 = 16;
/// From this bit on, 12 bits: counts changes, so that a bit is not cleared that was set meanwhile.
const CHANGE: u32 = 48;
const CHANGES: u64 = 0xfff << CHANGE;
/// There was urgent data: a receive stops at its mark, so that less than asked is not all.
const URGENT: u64 = 1 << 60;
/// Something was sent: whether there is room for more only the host knows.
const FULL: u64 = 1 << 61;
/// Nobody has taken or given data since the watch began: the host reports at first what was asked
/// for already, and that is no edge for who has seen it.
const FRESH: u64 = 1 << 62;
/// Whether there is something to take only the host knows.
const UNSURE: u64 = 1 << 63;
/// Bits that taking takes away: data, urgent data, and an error that a call tells of.
const TAKEN: u64 = (poll::IN | poll::RDNORM | poll::PRI | poll::ERR) as u64;
/// Bits that giving takes away.
const GIVEN: u64 = (poll::OUT | poll::WRNORM | poll::WRBAND) as u64;
/// The peer sends no more: bits that stay once they are set.
pub const FINAL: u32 = poll::HUP | poll::RDHUP;

/// The word, and when something was taken last.
pub struct Readiness {
    word: AtomicU64,
    /// Looks that the watching core had begun when something had been taken.
    taken: AtomicU32,
}

fn changed(word: u64) -> u64 {
    word & !CHANGES | word.wrapping_add(1 << CHANGE) & CHANGES
}

/// Did look `a` begin after look `b`? The numbers wrap around.
fn after(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

fn urgent(bits: u64) -> u64 {
    if bits & u64::from(poll::PRI) != 0 { URGENT } else { 0 }
}

/// What was known at some time.
#[derive(Clone, Copy)]
pub struct Seen(u64);

impl Seen {
    /// `poll(2)` bits.
    pub fn bits(self) -> u32 {
        (self.0 & READY) as u32
    }

    /// Was there urgent data, or did the program ask for some?
    pub fn urgent(self) -> bool {
        self.0 & URGENT != 0
    }

    /// If a receive gives less than asked, was that all, as far as the socket's state says?
    pub fn short_is_all(self) -> bool {
        self.bits() & FINAL == 0 && !self.urgent()
    }
}

impl Readiness {
    /// Nothing is known.
    pub const fn new() -> Self {
        Readiness { word: AtomicU64::new(0), taken: AtomicU32::new(0) }
    }

    /// What is known now. To be asked for before a host call whose outcome is noted.
    pub fn seen(&self) -> Seen {
        Seen(self.word.load(Ordering::Acquire))
    }

    /// Is it known that a call would find neither one of `bits` nor an end?
    pub fn lacks(&self, bits: u32) -> bool {
        self.seen().bits() & (bits | FINAL | poll::ERR) == 0
    }

    /// Is to be watched from now on, by a core that has begun `looks` looks.
    pub fn begin(&self, looks: u32) {
        self.taken.store(looks, Ordering::Release);
        self.word.store(FRESH | u64::from(looks) << LOOK, Ordering::Release);
    }

    /// Is to be watched by another core from now on, which has begun `looks` looks: what is known is doubtful until the host is
    /// asked. Nobody takes or gives meanwhile without calling [`Readiness::took`] once more afterwards.
    pub fn begin_again(&self, looks: u32) {
        self.taken.store(looks, Ordering::Release);
        let again = |w| Some(changed(w) & !(0xffff_ffff << LOOK) | u64::from(looks) << LOOK | UNSURE | FULL);
        let _ = self.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, again);
    }

    /// What there was before means nothing any more.
    pub fn forget(&self) {
        let _ = self.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |w| Some(changed(w) & !READY));
    }

    /// The host said, when it was asked, that these are true.
    pub fn told(&self, bits: u32) {
        let bits = u64::from(bits) & READY;
        self.word.fetch_or(bits | urgent(bits), Ordering::AcqRel);
    }

    /// The program asks for urgent data.
    pub fn wants_urgent(&self) {
        self.word.fetch_or(URGENT, Ordering::AcqRel);
    }

    /// The program takes or gives data: from here on every event is news.
    pub fn touched(&self) {
        if self.word.load(Ordering::Relaxed) & FRESH != 0 {
            self.word.fetch_and(!FRESH, Ordering::AcqRel);
        }
    }

    /// An event came with a core's look number `look`. Value: is it news?
    ///
    /// `is_watched`: does that core still watch? What one that doesn't any more has seen is no news.
    pub fn event(&self, bits: u32, look: u32, is_watched: impl Fn() -> bool) -> bool {
        let bits = u64::from(bits) & READY;
        let mut now = self.word.load(Ordering::Acquire);
        loop {
            // Before it is watched elsewhere the word changes (`begin_again`): either this sees that, or it finds the word changed.
            if !is_watched() {
                return false;
            }
            // Events can be handled in another order than they came in, if one has to wait for a lock.
            let newest = after(look, (now >> LOOK) as u32);
            let exact = newest && after(look, self.taken.load(Ordering::Acquire));
            let mut new = (changed(now) | bits | urgent(bits)) & !FRESH;
            if newest {
                new = new & !(0xffff_ffff << LOOK) | u64::from(look) << LOOK;
            }
            if exact {
                new &= !UNSURE & (!TAKEN | bits);
            } else {
                new |= if bits & TAKEN != 0 { UNSURE } else { 0 };
                new |= if bits & GIVEN & !now != 0 { FULL } else { 0 };
            }
            match self.word.compare_exchange_weak(now, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(seen) => now = seen,
            }
        }
        now & FRESH == 0 || bits & !now & READY != 0
    }

    /// Something was taken by a call that began at `seen` and ended when the watching core had begun
    /// `looks` looks. `all`: nothing was left.
    pub fn took(&self, seen: Seen, all: bool, looks: u32) {
        self.taken.store(looks, Ordering::Release);
        if !(all && self.clear(seen, poll::IN | poll::RDNORM)) {
            self.set(UNSURE);
        }
    }

    /// Something was taken while nobody watched, or while the watch was being set.
    pub fn took_unwatched(&self) {
        if self.word.load(Ordering::Relaxed) & UNSURE == 0 {
            self.set(UNSURE);
        }
    }

    /// Something was sent, by a program that would wait if there were no room the next time.
    pub fn gave(&self) {
        if self.word.load(Ordering::Relaxed) & FULL == 0 {
            self.set(FULL);
        }
    }

    /// Every change counts, so that nobody who has decided by an older word puts it in place of this.
    fn set(&self, bits: u64) {
        let _ = self.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |w| Some(changed(w) | bits));
    }

    /// A call that began at `seen` found none of `bits`; false: there was a change meanwhile.
    pub fn clear(&self, seen: Seen, bits: u32) -> bool {
        let new = changed(seen.0) & !u64::from(bits);
        self.word.compare_exchange(seen.0, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// What is ready now. `probe` asks the host, and is called only if that must be.
    pub fn bits(&self, probe: impl FnOnce() -> u32) -> u32 {
        let seen = self.seen();
        let mut doubtful = if seen.0 & UNSURE != 0 { seen.0 & TAKEN } else { 0 };
        doubtful |= if seen.0 & FULL != 0 { seen.0 & GIVEN } else { 0 };
        if doubtful == 0 {
            return seen.bits();
        }
        let now = u64::from(probe()) & READY;
        let new = changed(seen.0) & !(UNSURE | FULL | TAKEN | GIVEN) | now | urgent(now);
        match self.word.compare_exchange(seen.0, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Seen(new).bits(),
            // Something else happened meanwhile; what the host just said is still so, or newly so.
            Err(newer) => (newer & READY & (!(TAKEN | GIVEN) | now)) as u32,
        }
    }

    /// The pending error was told: it is none any more.
    pub fn error_told(&self) {
        self.word.fetch_and(!u64::from(poll::ERR), Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// A host socket whose watcher looks for events, one core that takes, and every order of their steps that
    /// a seed gives.
    struct Model {
        r: Readiness,
        bytes: u32,
        /// The host has an edge to report.
        edge: bool,
        looks: u32,
        /// Events that were reported and not yet handled.
        reported: Vec<(u32, u32)>,
        /// A receive: what was seen, how much it asked for, and what it got once the host was called.
        call: Option<(Seen, u32, Option<u32>)>,
    }

    impl Model {
        fn truth(&self) -> u32 {
            if self.bytes > 0 { poll::IN | poll::OUT } else { poll::OUT }
        }

        fn step(&mut self, choice: u64) {
            match choice % 6 {
                0 => {
                    self.bytes += 1 + (choice >> 8) as u32 % 4;
                    self.edge = true;
                }
                1 => {
                    self.looks = self.looks.wrapping_add(1);
                    if core::mem::take(&mut self.edge) {
                        self.reported.push((self.truth(), self.looks));
                    }
                }
                2 => {
                    if !self.reported.is_empty() {
                        let at = (choice >> 8) as usize % self.reported.len();
                        let (bits, look) = self.reported.remove(at);
                        self.r.event(bits, look, || true);
                    }
                }
                // A receive, in three steps: look at the word, call the host, note what came of it.
                _ => match self.call.take() {
                    None => self.call = Some((self.r.seen(), 1 + (choice >> 8) as u32 % 5, None)),
                    Some((seen, asked, None)) => {
                        let got = asked.min(self.bytes);
                        self.bytes -= got;
                        self.call = Some((seen, asked, Some(got)));
                    }
                    Some((seen, _, Some(0))) => {
                        self.r.clear(seen, poll::IN | poll::RDNORM);
                    }
                    Some((seen, asked, Some(got))) => self.r.took(seen, got < asked, self.looks),
                },
            }
        }

        fn check(&self, seed: u64) {
            let in_call = matches!(self.call, Some((_, _, Some(_))));
            let told = self.r.bits(|| self.truth());
            if told & poll::IN != 0 && !in_call {
                assert!(self.bytes > 0, "seed {seed}: it tells of data that was taken");
            }
            if self.bytes > 0 && !self.edge && self.reported.is_empty() && !in_call {
                assert!(told & poll::IN != 0, "seed {seed}: data is lost sight of");
            }
        }
    }

    #[test]
    fn it_never_tells_of_what_was_taken_and_loses_nothing() {
        for seed in 1..20_000u64 {
            let mut m = Model {
                r: Readiness::new(),
                bytes: 0,
                edge: true,
                looks: u32::MAX - seed as u32 % 8,
                reported: Vec::new(),
                call: None,
            };
            m.r.begin(m.looks);
            m.r.told(m.truth());
            let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            for _ in 0..60 {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                m.step(x >> 16);
                // Not after every step: a question may settle what would go wrong later.
                if x >> 60 < 6 {
                    m.check(seed);
                }
            }
            m.check(seed);
        }
    }

    #[test]
    fn errors_and_room_are_asked_for_after_calls() {
        let r = Readiness::new();
        r.begin(0);
        assert!(r.event(poll::OUT | poll::ERR, 1, || true));
        assert_eq!(r.bits(|| unreachable!()), poll::OUT | poll::ERR);
        // A call told of the error, and another filled the socket.
        r.took(r.seen(), false, 1);
        assert_eq!(r.bits(|| poll::OUT), poll::OUT);
        r.gave();
        assert_eq!(r.bits(|| 0), 0);
        // An event that may be older is not believed.
        r.took(r.seen(), false, 2);
        assert!(r.event(poll::OUT | poll::ERR, 2, || true));
        assert_eq!(r.bits(|| 0), 0);
        assert!(r.event(poll::OUT, 3, || true));
        assert_eq!(r.bits(|| unreachable!()), poll::OUT);
    }

    #[test]
    fn a_short_receive_is_not_all_once_there_was_urgent_data() {
        let r = Readiness::new();
        r.begin(0);
        assert!(r.seen().short_is_all());
        r.event(poll::IN | poll::PRI, 1, || true);
        // A receive went past its mark: it is none any more.
        r.took(r.seen(), false, 1);
        assert_eq!(r.bits(|| poll::OUT), poll::OUT);
        assert!(!r.seen().short_is_all());
    }

    #[test]
    fn what_was_known_before_the_watch_is_no_news() {
        let r = Readiness::new();
        r.begin(0);
        r.told(poll::OUT);
        assert!(!r.event(poll::OUT, 1, || true));
        assert!(r.event(poll::OUT, 2, || true), "only the first report repeats");
        let r = Readiness::new();
        r.begin(0);
        r.told(poll::OUT);
        assert!(r.event(poll::OUT | poll::IN, 1, || true));
        let r = Readiness::new();
        r.begin(0);
        r.told(poll::IN);
        r.touched();
        assert!(r.event(poll::IN, 1, || true));
    }
}
