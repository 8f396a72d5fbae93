//! Rates: how much in how much time.

/// A point in time with a fraction: units of 2^-32 ns. 64 bits of nanoseconds are 584 years; what is added saturates.
pub(crate) type Fine = u128;

/// A time in nanoseconds as a fine one.
pub(crate) fn fine(ns: u64) -> Fine {
    Fine::from(ns) << 32
}

/// What a unit takes of a rate in units a second, as fine time; rounded up, so that a rate is never exceeded. 0 for rate 0.
pub(crate) fn cost(rate: u64) -> u64 {
    // At most 2^62, for one unit a second.
    (1_000_000_000u64 << 32).checked_div(rate).map_or(0, |c| c + 1)
}

/// How long what was not used may be used later, ns.
pub(crate) const BURST: u64 = 10_000_000;

/// A limit, as a token bucket: whoever has used it for an amount `a` at time `t` may go on at
/// `until = max(until, t - BURST) + a / limit`. So in any time `T` no more than `limit * (T + BURST)` is used, and one
/// amount beyond that, as amounts are known afterwards.
#[derive(Clone, Copy, Default)]
pub(crate) struct Bucket {
    /// What a unit takes. 0: no limit.
    cost: u64,
    until: Fine,
}

impl Bucket {
    /// Sets the limit, units a second. Another limit begins now: what was used before is forgiven, and nothing is left.
    pub(crate) fn set(&mut self, limit: u64, now: u64) {
        let cost = cost(limit);
        if cost != self.cost {
            *self = Bucket { cost, until: fine(now) };
        }
    }

    /// Takes an amount.
    #[inline]
    pub(crate) fn charge(&mut self, amount: u64, now: u64) {
        if self.cost != 0 {
            let from = self.until.max(fine(now.saturating_sub(BURST)));
            self.until = from.saturating_add(u128::from(amount) * u128::from(self.cost));
        }
    }

    /// When it may go on, if that isn't now.
    #[inline]
    pub(crate) fn full_until(&self, now: u64) -> Option<u64> {
        if self.cost == 0 || self.until <= fine(now) {
            return None;
        }
        Some(u64::try_from(self.until.saturating_add(fine(1) - 1) >> 32).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_rounded_up() {
        assert_eq!(cost(0), 0);
        assert!(cost(1) >> 32 == 1_000_000_000);
        assert!(u128::from(cost(3)) * 3 > u128::from(1_000_000_000u64 << 32));
        assert_eq!(cost(u64::MAX), 1);
    }

    #[test]
    fn extremes_saturate() {
        let mut b = Bucket::default();
        b.set(1, 0);
        for _ in 0..10 {
            b.charge(u64::MAX, u64::MAX);
        }
        assert_eq!(b.full_until(0), Some(u64::MAX));
        b.set(0, 0);
        assert_eq!(b.full_until(0), None);
    }
}
