//! How much a thread has had lately: the measure that ready threads are ordered by (OSv, section 2.4, which leaves out the formulas).
//!
//! # The formulas
//!
//! Let `r(t)` be 1 while a thread runs and 0 else, `w` its weight, and `h` the [half-life](HALF). What it has had lately is
//! the decaying integral
//!
//! ```text
//! R(T) = 1/w * integral over t <= T of r(t) * 2^(-(T-t)/h) dt
//! ```
//!
//! The one with the least `R` is to run next. `R` of all threads changes all the time, but
//!
//! ```text
//! U(T) = R(T) * 2^(T/h) = 1/w * integral over t <= T of r(t) * 2^(t/h) dt
//! ```
//!
//! changes only while the thread runs, and whose `R` is least has the least `U`: a common factor changes no order. So only the thread that
//! ran has to be looked at: after a slice from `T` to `T + d`, `U` grows by
//!
//! ```text
//! 1/w * integral from T to T+d of 2^(t/h) dt  ~  d/w * 2^((T + d/2)/h)
//! ```
//!
//! (the midpoint rule; for `d` = 3 ms and `h` = 134 ms it is 1e-5 off). The time after which a thread overtakes another whose `U` is
//! greater by `D` is, up to second order, `D * w / 2^(T/h)`.
//!
//! `U` doubles every `h`, so it is a number with an exponent of 32 bits, which is enough for 18 years, and 32 bits of mantissa. As such
//! words are compared as whole numbers are, a queue compares words.
//!
//! A thread that has slept for long has an `R` near 0, and would run alone until it has caught up: for `h`, beside one other.
//! So who becomes ready gets at least what the others have, less [`CREDIT`].

/// The time in which half of what a thread has had is forgotten, ns: 134 ms. As a time constant of an exponential average,
/// 194 ms.
pub const HALF: u64 = 1 << HALF_BITS;
const HALF_BITS: u32 = 27;

/// What one that has always run has had lately, ns of its time: the time constant, `h / ln 2`.
const ALWAYS: u64 = 193_635_251;

/// By how much a thread that runs may overtake the next one, ns of its time at the weight [`NORMAL`]: half of a slice, so that two alternate
/// by slices.
pub(crate) const GRAIN: u64 = 1_500_000;
/// How far whoever wakes up may be behind all others, in the same units.
const CREDIT: u64 = 1_000_000;

/// The weight of nice 0.
pub const NORMAL: u32 = 1024;
/// The weight of those that run when nothing else does (SCHED_IDLE).
pub const IDLE: u32 = 3;

/// Weights of the nice values -20 to 19: each step is a factor of 1.25 (Linux, `sched_prio_to_weight`).
const WEIGHTS: [u32; 40] = [
    88761, 71755, 56483, 46273, 36291, 29154, 23254, 18705, 14949, 11916, 9548, 7620, 6100, 4904, 3906, 3121,
    2501, 1991, 1586, 1277, 1024, 820, 655, 526, 423, 335, 272, 215, 172, 137, 110, 87, 70, 56, 45, 36, 29,
    23, 18, 15,
];

/// The weight of a nice value.
pub fn weight(nice: i32) -> u32 {
    WEIGHTS[(nice.clamp(-20, 19) + 20) as usize]
}

/// What a thread has had, weighed and decaying: `U` above. Ordered as the numbers are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) struct Used(u64);

/// So that exponents are never below 0.
const BIAS: i64 = 128;
/// Finer units of weighed time: 2^-20 ns at the weight 1.
const FINE: u32 = 20;

/// `2^(n/256)`, in units of 2^-31.
const POWERS: [u32; 257] = {
    // 2^(1/256), in units of 2^-62.
    const STEP: u128 = 4_624_189_567_668_517_720;
    let mut powers = [0; 257];
    let mut power: u128 = 1 << 62;
    let mut n = 0;
    while n < powers.len() {
        // The last one, 2, is one unit too large for its word.
        powers[n] = if n == 256 { u32::MAX } else { (power >> 31) as u32 };
        power = (power * STEP) >> 62;
        n += 1;
    }
    powers
};

/// `2^(now/h)`: a mantissa of 32 bits, and an exponent.
fn scale(now: u64) -> (u64, i64) {
    let (whole, part) = (now >> HALF_BITS, now & (HALF - 1));
    let (at, rest) = ((part >> (HALF_BITS - 8)) as usize, part & (HALF / 256 - 1));
    let (low, high) = (u64::from(POWERS[at]), u64::from(POWERS[at + 1]));
    (low + (((high - low) * rest) >> (HALF_BITS - 8)), whole as i64)
}

impl Used {
    /// Nothing.
    pub const NONE: Used = Used(0);

    /// A mantissa of any length with an exponent.
    #[inline]
    fn new(mantissa: u64, exponent: i64) -> Used {
        let bits = i64::from(64 - mantissa.leading_zeros());
        let exponent = exponent + bits - 32 + BIAS;
        if mantissa == 0 || exponent < 0 {
            return Used::NONE;
        }
        let mantissa = if bits > 32 { mantissa >> (bits - 32) } else { mantissa << (32 - bits) };
        Used((exponent.min(i64::from(u32::MAX)) as u64) << 32 | mantissa)
    }

    fn mantissa(self) -> u64 {
        self.0 & u64::from(u32::MAX)
    }

    /// Without the bias.
    fn exponent(self) -> i64 {
        (self.0 >> 32) as i64 - BIAS
    }

    /// From what [`Used::to_word`] gave.
    pub fn from_word(word: u64) -> Used {
        Used(word)
    }

    /// As a word.
    pub fn to_word(self) -> u64 {
        self.0
    }

    /// So much time at this weight, had at `now`.
    pub fn of(ns: u64, weight: u32, now: u64) -> Used {
        let (scale, exponent) = scale(now);
        // Two hours at once are as good as more.
        let fine = ns.min(1 << 43) << FINE;
        let weighed =
            if weight == NORMAL { fine / u64::from(NORMAL) } else { fine / u64::from(weight.max(1)) };
        // Of more than 64 bits the lower ones don't count.
        let product = u128::from(weighed) * u128::from(scale);
        let beyond = 64 - product.leading_zeros().min(64);
        Used::new((product >> beyond) as u64, exponent + i64::from(beyond))
    }

    /// After a slice of `ns` that ended `now`.
    pub fn after(self, ns: u64, weight: u32, now: u64) -> Used {
        self.plus(Used::of(ns, weight, now.saturating_sub(ns / 2)))
    }

    /// As [`Used::after`], if the slice is short: as exact as the units are.
    #[inline]
    pub fn after_short(self, ns: u64, weight: u32, units: &Units) -> Used {
        if weight != NORMAL || ns >> 20 != 0 {
            return self.after(ns, weight, units.at);
        }
        // At most 46 bits.
        let weighed = ns << (FINE - NORMAL.ilog2());
        self.plus(Used::new(weighed * units.mantissa, units.exponent + 16))
    }

    #[inline]
    pub fn plus(self, other: Used) -> Used {
        let (more, less) = (self.max(other), self.min(other));
        let apart = (more.0 >> 32) - (less.0 >> 32);
        if apart >= 32 {
            return more;
        }
        let sum = more.mantissa() + (less.mantissa() >> apart);
        if sum >> 32 == 0 {
            return Used(more.0 & !u64::from(u32::MAX) | sum);
        }
        // One bit more, and the sum's exponent with it.
        Used((more.0 & !u64::from(u32::MAX)).saturating_add(1 << 32) | (sum >> 1))
    }

    /// [`Used::NONE`] if the other is more.
    pub fn less(self, other: Used) -> Used {
        if other >= self {
            return Used::NONE;
        }
        let apart = (self.0 >> 32) - (other.0 >> 32);
        let part = if apart >= 32 { 0 } else { other.mantissa() >> apart };
        Used::new(self.mantissa() - part, self.exponent())
    }

    /// How long a thread of this weight takes, from now on, to have so much, ns; `u64::MAX`: long.
    pub fn time(self, weight: u32, units: &Units) -> u64 {
        let apart = self.exponent() - units.exponent;
        if self == Used::NONE || apart < -64 {
            return 0;
        }
        // 16 bits of it are enough to say when a turn ends.
        let ratio = self.mantissa() / units.mantissa;
        let weighed = u128::from(ratio) * u128::from(weight);
        match apart - i64::from(FINE) - 16 {
            64.. => u64::MAX,
            up @ 0.. => u64::try_from(weighed << up).unwrap_or(u64::MAX),
            down => (weighed >> -down) as u64,
        }
    }

    /// The part of a processor that this is for a thread of this weight, thousandths.
    pub fn part(self, weight: u32, units: &Units) -> u32 {
        (self.time(weight, units).min(ALWAYS) * 1000 / ALWAYS) as u32
    }

    /// Of one that becomes ready where the others have had at least `least`.
    pub fn woken(self, least: Used, units: &Units) -> Used {
        if self >= least { self } else { self.max(least.less(units.credit)) }
    }
}

/// What amounts of time are worth about now: they change slowly.
pub(crate) struct Units {
    at: u64,
    /// `2^(now/h)`, of which the mantissa has 16 bits.
    mantissa: u64,
    exponent: i64,
    pub grain: Used,
    /// So little that nobody need go on for it.
    pub little: Used,
    credit: Used,
}

impl Units {
    /// How old they may be, ns: they are 0.3 % off then.
    const AGE: u64 = 500_000;

    pub const fn new() -> Units {
        let none = Used::NONE;
        // The first look is not at that time.
        Units { at: u64::MAX, mantissa: 1 << 15, exponent: 0, grain: none, little: none, credit: none }
    }

    /// As they are now.
    #[inline]
    pub fn at(&mut self, now: u64) -> &Units {
        if now.abs_diff(self.at) > Units::AGE {
            self.look(now);
        }
        self
    }

    /// What a turn of this length is worth to a thread of this weight.
    pub fn of_turn(&self, ns: u64, weight: u32) -> Used {
        Used::of(ns, weight, self.at)
    }

    #[inline(never)]
    fn look(&mut self, now: u64) {
        let (mantissa, exponent) = scale(now);
        let of = |ns| Used::of(ns, NORMAL, now);
        *self = Units {
            at: now,
            mantissa: mantissa >> 16,
            exponent,
            grain: of(GRAIN),
            little: of(GRAIN / 8),
            credit: of(CREDIT),
        };
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::vec::Vec;

    const MS: u64 = 1_000_000;

    /// Numbers below what is asked for.
    pub(crate) fn random(mut seed: u64) -> impl FnMut(u64) -> u64 {
        move |n| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % n
        }
    }

    /// The same with real numbers.
    fn real(slices: &[(u64, u64)], weight: u32, now: u64) -> f64 {
        let h = HALF as f64;
        let power = |t: u64| 2f64.powf((t as f64 - now as f64) / h);
        let parts = slices.iter().map(|(from, to)| (power(*to) - power(*from)) * h / 2f64.ln());
        parts.sum::<f64>() / f64::from(weight)
    }

    fn time(used: Used, weight: u32, now: u64) -> u64 {
        used.time(weight, Units::new().at(now))
    }

    /// What `used` is now, ns at the weight 1.
    fn decayed(used: Used, now: u64) -> f64 {
        time(used, NORMAL, now) as f64 / f64::from(NORMAL)
    }

    #[test]
    fn is_the_decaying_integral() {
        let mut random = random(7);
        for start in [0, 5, 1 << 40, 400_000_000 * 1_000_000_000] {
            for weight in [15, NORMAL, 88761] {
                let (mut now, mut used, mut slices) = (start, Used::NONE, Vec::new());
                for _ in 0..300 {
                    now += random(20 * MS);
                    let from = now;
                    now += random(5 * MS) + 1000;
                    used = used.after(now - from, weight, now);
                    slices.push((from, now));
                    now += random(3) * random(100 * MS);
                    let (ours, right) = (decayed(used, now), real(&slices, weight, now));
                    // What is below the clock's resolution does not matter.
                    assert!((ours - right).abs() <= right * 1e-3 + 0.01, "{ours} and {right} at {now}");
                }
            }
        }
    }

    #[test]
    fn numbers_behave() {
        let now = 3 * HALF + 12345;
        let of = |ns| Used::of(ns, NORMAL, now);
        for (a, b) in [(1000, 5000), (5000, 1000), (1, MS), (MS, MS), (0, 7)] {
            assert_eq!(of(a) < of(b), a < b);
            let sum = time(of(a).plus(of(b)), NORMAL, now);
            assert!(sum.abs_diff(a + b) <= 1 + (a + b) / 10_000, "{a} + {b} = {sum}");
            let rest = time(of(a).less(of(b)), NORMAL, now);
            assert!(rest.abs_diff(a.saturating_sub(b)) <= 1 + a / 10_000, "{a} - {b} = {rest}");
        }
        // Twice the weight takes twice the time.
        assert!(time(of(MS), 2 * NORMAL, now).abs_diff(2 * MS) < MS / 1000);
        // A half-life later it is half as much.
        assert!(time(of(MS), NORMAL, now + HALF).abs_diff(MS / 2) < MS / 1000);
        // Long ago is nothing, and far off is for ever.
        assert_eq!(time(of(MS), NORMAL, now + 200 * HALF), 0);
        assert_eq!(time(Used::of(MS, 1, now + 200 * HALF), NORMAL, now), u64::MAX);
        // Who has slept has no more than the credit.
        let least = of(500 * MS);
        let mut units = Units::new();
        let units = units.at(now);
        let behind = least.less(Used::NONE.woken(least, units)).time(NORMAL, units);
        assert!(behind.abs_diff(CREDIT) < CREDIT / 1000, "{behind}");
        assert_eq!(of(600 * MS).woken(least, units), of(600 * MS));
        assert_eq!((weight(0), weight(-20), weight(19), weight(100)), (NORMAL, 88761, 15, 15));
    }

    /// A year's clock, and slices of a nanosecond and of a day.
    #[test]
    fn extremes_are_no_trouble() {
        for now in [0, 1, u64::MAX / 2, u64::MAX] {
            for ns in [0, 1, 86_400_000 * MS, u64::MAX] {
                for weight in [0, 1, 88761, u32::MAX] {
                    let used = Used::NONE.after(ns, weight, now);
                    assert!(used.plus(used) >= used && used.less(used) == Used::NONE);
                    let _ = time(used, weight, now);
                }
            }
        }
    }
}
