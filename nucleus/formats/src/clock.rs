//! What says how fast the processors' time-stamp counters count: CPUID's leaves, and KVM's clock (Linux's
//! `Documentation/virt/kvm/x86/msr.rst` and `arch/x86/include/asm/pvclock-abi.h`).

use crate::{u32_at, u64_at};

/// KVM's features (`eax` of leaf 1 behind its signature): the clock by these registers, and the flag for a stable one.
pub const CLOCK: u32 = 1 << 3;
/// As above.
pub const CLOCK_STABLE: u32 = 1 << 24;
/// The register that takes the physical address where KVM is to write the time of day, once.
pub const MSR_WALL_CLOCK: u32 = 0x4b56_4d00;
/// The one that takes where it is to write how the counter counts, with bit 0 set; 0: nowhere any more.
pub const MSR_SYSTEM_TIME: u32 = 0x4b56_4d01;
/// Bytes of that.
pub const TIME: usize = 32;
/// In its flags: the counters of all cores agree, and go on when the machine is moved.
const STABLE: u8 = 1;
/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

/// How a counter counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Time {
    /// Its value when this was written.
    pub counter: u64,
    /// KVM's time then, nanoseconds since the machine's start.
    pub ns: u64,
    /// Nanoseconds a count, times 2^32.
    pub scale: u64,
    /// All cores' counters count alike.
    pub stable: bool,
}

/// Reads what KVM wrote (`struct pvclock_vcpu_time_info`). None: it has written nothing, or was about to, or it
/// makes no sense.
pub fn time(bytes: &[u8]) -> Option<Time> {
    is_whole(u32_at(bytes, 0)?).then_some(())?;
    let (multiplier, shift) = (u64::from(u32_at(bytes, 24)?), *bytes.get(28)? as i8);
    // Counts are shifted first, to the left if it is positive; then multiplied, for the upper half.
    let scale = match shift {
        0..=31 => multiplier << shift,
        -31..0 => multiplier >> -shift,
        _ => return None,
    };
    let stable = bytes.get(29)? & STABLE != 0;
    (scale != 0).then_some(Time { counter: u64_at(bytes, 8)?, ns: u64_at(bytes, 16)?, scale, stable })
}

/// Reads the time of day that KVM wrote (`struct pvclock_wall_clock`): nanoseconds from 1970 to the machine's start.
pub fn wall_clock(bytes: &[u8]) -> Option<u64> {
    is_whole(u32_at(bytes, 0)?).then_some(())?;
    let (seconds, ns) = (u64::from(u32_at(bytes, 4)?), u64::from(u32_at(bytes, 8)?));
    (seconds != 0).then_some(seconds * SECOND + ns)
}

/// Versions are odd while the rest is being written.
fn is_whole(version: u32) -> bool {
    version != 0 && version.is_multiple_of(2)
}

impl Time {
    /// KVM's time at another value of the counter, nanoseconds.
    pub fn at(&self, counter: u64) -> u64 {
        let scaled = |counts| scaled(counts, self.scale);
        match counter.checked_sub(self.counter) {
            Some(later) => self.ns.saturating_add(scaled(later)),
            None => self.ns.saturating_sub(scaled(self.counter - counter)),
        }
    }

    /// Counts a second.
    pub fn hz(&self) -> u64 {
        ((u128::from(SECOND) << 32) / u128::from(self.scale.max(1))).try_into().unwrap_or(u64::MAX)
    }
}

/// How a counter's counts become nanoseconds, and nanoseconds counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Nanoseconds a count, times 2^32; rounded down.
    pub scale: u64,
    /// The inverse of that, and not of the frequency: counts a nanosecond, times 2^32; rounded up.
    pub inverse: u64,
}

/// `value * by / 2^32`.
pub fn scaled(value: u64, by: u64) -> u64 {
    ((u128::from(value) * u128::from(by)) >> 32) as u64
}

impl Rate {
    /// Of a counter of so many counts a second.
    pub fn of(hz: u64) -> Rate {
        let scale = ((u128::from(SECOND) << 32) / u128::from(hz.max(1))) as u64;
        let inverse = (1u128 << 64).div_ceil(u128::from(scale.max(1)));
        Rate { scale, inverse: inverse.try_into().unwrap_or(u64::MAX) }
    }

    /// The time after so many counts, ns.
    pub fn ns(&self, counts: u64) -> u64 {
        scaled(counts, self.scale)
    }

    /// How many counts there will have been when it is `deadline`, ns, as seen after `counts` of them: not before the
    /// time is reached, and hardly later. Only the distance is converted: the two factors are not quite each
    /// other's inverse, which would add up over the machine's life.
    pub fn when(&self, counts: u64, deadline: u64) -> u64 {
        let distance = deadline.saturating_sub(self.ns(counts));
        counts.saturating_add(scaled(distance, self.inverse)).saturating_add(1)
    }
}

/// What CPUID says of the counter's frequency; 0: nothing.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Leaves {
    /// Leaf 0x40000010, kHz: a hypervisor's word.
    pub hypervisor_khz: u32,
    /// Leaf 0x15: the crystal's frequency times the ratio, Hz.
    pub crystal_hz: u64,
    /// Leaf 0x16: the processor's base frequency as it is sold, MHz. The counter's is within a percent of it.
    pub base_mhz: u16,
}

/// Frequencies that a counter may have, Hz: others are a mistake.
const SENSIBLE: core::ops::RangeInclusive<u64> = 100_000_000..=20_000_000_000;

impl Leaves {
    /// The counter's frequency, Hz, where it is said exactly, and who says so.
    pub fn exact(&self) -> Option<(u64, &'static str)> {
        let said = [(u64::from(self.hypervisor_khz) * 1000, "the hypervisor"), (self.crystal_hz, "CPUID")];
        said.into_iter().find(|(hz, _)| SENSIBLE.contains(hz))
    }

    /// About, for machines without a timer to measure it by.
    pub fn rough(&self) -> Option<u64> {
        Some(u64::from(self.base_mhz) * 1_000_000).filter(|hz| SENSIBLE.contains(hz))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(version: u32, counter: u64, ns: u64, multiplier: u32, shift: i8, flags: u8) -> [u8; TIME] {
        let mut bytes = [0; TIME];
        bytes[..4].copy_from_slice(&version.to_le_bytes());
        bytes[8..16].copy_from_slice(&counter.to_le_bytes());
        bytes[16..24].copy_from_slice(&ns.to_le_bytes());
        bytes[24..28].copy_from_slice(&multiplier.to_le_bytes());
        (bytes[28], bytes[29]) = (shift as u8, flags);
        bytes
    }

    /// What KVM writes for a counter of 2.5 GHz: half a count a nanosecond and more, times 0.8.
    #[test]
    fn reads_how_the_counter_counts() {
        let bytes = written(4, 5_000_000_000, 1_000_000, 0xcccc_cccc, -1, 1);
        let time = time(&bytes).unwrap();
        assert_eq!((time.counter, time.ns, time.stable), (5_000_000_000, 1_000_000, true));
        assert!(time.hz().abs_diff(2_500_000_000) < 10, "{}", time.hz());
        // A second later, and a second before the machine began: not below 0.
        assert!(time.at(7_500_000_000).abs_diff(1_001_000_000) < 2);
        assert_eq!(time.at(2_500_000_000), 0);
        // 800 MHz: shifted to the left.
        let slow = super::time(&written(2, 0, 0, 0xa000_0000, 1, 0)).unwrap();
        assert!(slow.hz().abs_diff(800_000_000) < 2 && !slow.stable);
    }

    /// What KVM wrote for a guest of QEMU's that asked, on a machine with a counter of 2.3 GHz (words, as they lay).
    #[test]
    fn reads_what_kvm_wrote() {
        let words = |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
        let said = [2, 0, 0x9795_3904, 0x9395, 0x00de_29df, 0, 0xde9b_e02a, 0x1ff];
        let time = time(&words(&said)).unwrap();
        assert!(time.stable && time.hz().abs_diff(2_300_000_000) < 10_000, "{time:?} {}", time.hz());
        // KVM looked at the counter when the machine began; the guest behind its BIOS, which took so long.
        let passed = time.at(0x9396_90f9_cb26) - time.ns;
        assert!(passed.abs_diff(1_819_181_649) < 10_000, "{passed}");
        let wall = wall_clock(&words(&[2, 0x6b03_1df5, 0x10ab_2f0c])).unwrap();
        assert_eq!(wall, 1_795_366_389_279_654_156);
    }

    #[test]
    fn takes_nothing_that_is_not_whole() {
        assert_eq!(time(&[0; TIME]), None);
        assert_eq!(time(&written(3, 1, 1, 1 << 31, 0, 1)), None);
        assert_eq!(time(&written(2, 1, 1, 0, 0, 1)), None);
        assert_eq!(time(&written(2, 1, 1, 1 << 31, 32, 1)), None);
        assert_eq!(time(&written(2, 1, 1, 1 << 31, -128, 1)), None);
        let whole = written(2, 1, 1, 1 << 31, 0, 1);
        assert!((0..30).all(|len| time(&whole[..len]).is_none()));
        let wall =
            |version: u32, seconds: u32, ns: u32| [version, seconds, ns].map(u32::to_le_bytes).concat();
        assert_eq!(wall_clock(&wall(2, 1_700_000_000, 5)), Some(1_700_000_000_000_000_005));
        assert_eq!(wall_clock(&wall(1, 1_700_000_000, 5)), None);
        assert_eq!(wall_clock(&wall(0, 0, 0)), None);
        assert_eq!(wall_clock(&wall(2, 1, 1)[..11]), None);
    }

    #[test]
    fn believes_the_exact_word_first() {
        let leaves = Leaves { hypervisor_khz: 2_000_000, crystal_hz: 2_100_000_000, base_mhz: 2200 };
        assert_eq!(leaves.exact(), Some((2_000_000_000, "the hypervisor")));
        assert_eq!(Leaves { hypervisor_khz: 7, ..leaves }.exact(), Some((2_100_000_000, "CPUID")));
        assert_eq!(Leaves { base_mhz: 2200, ..Leaves::default() }.exact(), None);
        assert_eq!(leaves.rough(), Some(2_200_000_000));
        assert_eq!(Leaves::default().rough(), None);
    }

    /// A deadline's count is not before its time, however long the machine has been up; and late by 10 ns for each second it is away at most.
    #[test]
    fn deadlines_hold_over_years() {
        const DAY: u64 = 86_400 * SECOND;
        for hz in [100_000_000, 999_999_937, 1_193_182_000, 2_300_000_123, 2_994_371_000, 5_700_000_001] {
            let rate = Rate::of(hz);
            for up in [0, 1, DAY, 30 * DAY, 1000 * DAY, 7000 * DAY] {
                let counts = (u128::from(up) * u128::from(hz) / u128::from(SECOND)) as u64;
                for wait in [0, 1, 1000, 50_000, SECOND, 3600 * SECOND] {
                    let deadline = rate.ns(counts) + wait;
                    let then = rate.ns(rate.when(counts, deadline));
                    assert!(
                        (deadline..deadline + 100 + wait / 100_000_000).contains(&then),
                        "{hz} Hz, {up} ns: {then} for {deadline}"
                    );
                }
                // One that has passed is due at once.
                assert_eq!(rate.when(counts, rate.ns(counts) / 2), counts + 1);
            }
        }
        assert!(Rate::of(0).when(0, u64::MAX) > 0 && Rate::of(u64::MAX).when(u64::MAX, u64::MAX) > 0);
    }

    proptest! {
        #[test]
        fn deadlines_are_not_early(hz in SENSIBLE, counts in 0..1u64 << 60, wait in 0..3600 * SECOND) {
            let rate = Rate::of(hz);
            let deadline = rate.ns(counts).saturating_add(wait);
            prop_assert!(rate.ns(rate.when(counts, deadline)) >= deadline);
        }

        /// Any bytes are read or refused, and time goes forward.
        #[test]
        fn takes_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..40), a: u64, b: u64) {
            let _ = wall_clock(&bytes);
            if let Some(time) = time(&bytes) {
                let _ = time.hz();
                let (before, after) = (a.min(b), a.max(b));
                // Further than that a clock does not go, and the numbers would wrap around.
                if before.abs_diff(time.counter).max(after.abs_diff(time.counter)) < 1 << 60 && time.scale < 1 << 34 {
                    prop_assert!(time.at(before) <= time.at(after));
                }
            }
        }
    }
}
