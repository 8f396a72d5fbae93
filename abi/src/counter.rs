//! What a cell's books can count beside time: an event of the processor, or of the host.

/// An event that Linux's `perf_event_open(2)` counts, by the name that `perf-list(1)` has for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// Its name.
    pub name: &'static str,
    /// PERF_TYPE_ number.
    pub kind: u32,
    /// The event's number among those of the type.
    pub config: u64,
}

/// PERF_TYPE_HARDWARE, PERF_TYPE_SOFTWARE, PERF_TYPE_HW_CACHE.
const HARDWARE: u32 = 0;
const SOFTWARE: u32 = 1;
const CACHE: u32 = 3;

/// PERF_FLAG_FD_CLOEXEC, of `perf_event_open(2)`.
pub const CLOSE_ON_EXEC: u64 = 1 << 3;

/// The result of a PERF_TYPE_HW_CACHE event that is a miss; those of reads.
const MISS: u64 = 1 << 16;

const fn event(name: &'static str, kind: u32, config: u64) -> Event {
    Event { name, kind, config }
}

/// All of them. Their places are their numbers.
pub const EVENTS: [Event; 14] = [
    event("cache-misses", HARDWARE, 3),
    event("cache-references", HARDWARE, 2),
    event("cycles", HARDWARE, 0),
    event("instructions", HARDWARE, 1),
    event("branches", HARDWARE, 4),
    event("branch-misses", HARDWARE, 5),
    event("L1-dcache-load-misses", CACHE, MISS),
    event("LLC-load-misses", CACHE, MISS | 2),
    event("dTLB-load-misses", CACHE, MISS | 3),
    event("iTLB-load-misses", CACHE, MISS | 4),
    event("page-faults", SOFTWARE, 2),
    event("minor-faults", SOFTWARE, 5),
    event("major-faults", SOFTWARE, 6),
    event("task-clock", SOFTWARE, 1),
];

/// What a cell counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Count {
    /// The event.
    pub event: Event,
    /// What the kernel does for the cell is left out, as for who may not know of it (`perf_event_paranoid` of 2 and more).
    pub user_only: bool,
}

const USER_ONLY: u32 = 1 << 31;

impl Count {
    /// It as a word ([`GridArea::counts`](crate::grid::GridArea::counts)).
    pub fn word(self) -> u32 {
        let number = EVENTS.iter().position(|e| *e == self.event).map_or(0, |n| n as u32 + 1);
        number | if self.user_only { USER_ONLY } else { 0 }
    }

    /// What a word says, which may be anything. None: nothing is counted.
    pub fn of(word: u32) -> Option<Count> {
        let event = *EVENTS.get((word & !USER_ONLY).checked_sub(1)? as usize)?;
        Some(Count { event, user_only: word & USER_ONLY != 0 })
    }

    /// `struct perf_event_attr` in its first form (PERF_ATTR_SIZE_VER0), for one that counts from the start.
    pub fn attributes(self) -> [u64; 8] {
        const SIZE: u64 = 64;
        // All of the time, or it is an error: not now and then, as counters that are too many for the processor are.
        const PINNED: u64 = 1 << 2;
        const EXCLUDE_KERNEL: u64 = 1 << 5;
        const EXCLUDE_HV: u64 = 1 << 6;
        let flags = PINNED | if self.user_only { EXCLUDE_KERNEL | EXCLUDE_HV } else { 0 };
        [u64::from(self.event.kind) | SIZE << 32, self.event.config, 0, 0, 0, flags, 0, 0]
    }
}

/// As perf-stat(1) writes it: with `:u` behind it where the kernel is left out.
impl core::fmt::Display for Count {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}{}", self.event.name, if self.user_only { ":u" } else { "" })
    }
}

/// How far a counter of the bits of `mask` has come that has said `before`, and now says this. It is looked at before it comes around.
pub fn since(before: u64, now: u64, mask: u64) -> u64 {
    now.wrapping_sub(before) & mask
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_around() {
        let mask = (1 << 48) - 1;
        assert_eq!(since(5, 12, mask), 7);
        assert_eq!(since(mask - 1, 3, mask), 5);
        assert_eq!(since(u64::MAX, 1, u64::MAX), 2);
    }

    #[test]
    fn words() {
        for event in EVENTS {
            for user_only in [false, true] {
                let count = Count { event, user_only };
                assert_eq!(Count::of(count.word()), Some(count));
            }
        }
        for word in [0, USER_ONLY, EVENTS.len() as u32 + 1, u32::MAX] {
            assert_eq!(Count::of(word), None);
        }
    }
}
