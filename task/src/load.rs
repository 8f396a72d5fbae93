//! Load averages (`/proc/loadavg`): of each core's own, which it keeps without a clock that would wake it.
//!
//! Linux counts the threads that run or are ready every five seconds, and lets each count decay: the averages of one, five and fifteen
//! minutes are sums of such counts, so that those of the cell are the sums of its cores'. A core counts when one of its records ends: for
//! all the times to count that the record went over at once, because it did the same all that time. Who reads does the same with the
//! record that isn't over.

/// One thread, in the averages' fixed point (`FIXED_1`).
const ONE: u64 = 1 << 11;

/// Time between two counts, ns (`LOAD_FREQ`).
const EVERY: u64 = 5_000_000_000;

/// What a count leaves of the averages of one, five and fifteen minutes, in [`ONE`]ths (`EXP_1` and its kin).
const LEAVES: [u64; 3] = [1884, 2014, 2037];

/// After so many counts of the same number each average is that number.
const SETTLED: u64 = 4096;

/// Nobody waits longer for a core than others' turns last: in a record that is longer, ns, who is ready now was not when it was time to
/// count.
const TURNS: u64 = 100_000_000;

/// The threads to count for a record of such a length, in which the core slept or not, and at whose end so many are ready.
pub(crate) fn active(lasted: u64, sleeps: bool, ready: usize) -> u64 {
    let ready = if lasted < TURNS { ready as u64 } else { 0 };
    u64::from(!sleeps) + ready
}

/// `averages` after so many counts of `active` threads.
pub(crate) fn after(averages: [u64; 3], counts: u64, active: u64) -> [u64; 3] {
    let active = active * ONE;
    let mut all = averages;
    for (average, leaves) in all.iter_mut().zip(LEAVES) {
        for _ in 0..counts.min(SETTLED) {
            let sum = *average * leaves + active * (ONE - leaves);
            // Upwards it is rounded up, so that it arrives (`calc_load`).
            let next = if active >= *average { sum.div_ceil(ONE) } else { sum / ONE };
            if next == *average {
                break;
            }
            *average = next;
        }
    }
    all
}

/// The first time to count after this one, ns.
pub(crate) fn next(now: u64) -> u64 {
    (now / EVERY + 1) * EVERY
}

/// Times to count between two times, ns.
pub(crate) fn counts(from: u64, to: u64) -> u64 {
    (to / EVERY).saturating_sub(from / EVERY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_are_linux_s() {
        // A thread that computes for a minute, from nothing: 0.63, 0.18, 0.06.
        let hundredths = |averages: [u64; 3]| averages.map(|a| a * 100 / ONE);
        let minute = after([0; 3], 12, 1);
        assert_eq!(hundredths(minute), [63, 18, 6]);
        // At once or one by one.
        assert_eq!((0..12).fold([0; 3], |all, _| after(all, 1, 1)), minute);
        assert_eq!(hundredths(after(minute, 12, 0)), [23, 14, 5]);
        assert_eq!(after([0; 3], u64::MAX, 3), [3 * ONE; 3]);
        assert_eq!(after([3 * ONE; 3], u64::MAX, 0), [0; 3]);
    }

    #[test]
    fn who_is_ready_at_the_end_of_a_long_record_was_not_before() {
        assert_eq!(active(TURNS - 1, false, 2), 3);
        assert_eq!(active(EVERY, false, 2), 1);
        assert_eq!(active(EVERY, true, 1), 0);
    }

    #[test]
    fn times_to_count_are_every_five_seconds() {
        assert_eq!(counts(1, EVERY - 1), 0);
        assert_eq!(counts(EVERY - 1, EVERY), 1);
        assert_eq!(counts(EVERY, 3 * EVERY + 1), 2);
        assert_eq!(counts(EVERY, 1), 0);
        assert_eq!([0, EVERY - 1, EVERY].map(next), [EVERY, EVERY, 2 * EVERY]);
    }
}
