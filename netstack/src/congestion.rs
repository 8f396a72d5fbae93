//! How much may be on its way: slow start (RFC 5681), and CUBIC (RFC 9438) behind it.

/// Segments that a connection begins with (RFC 6928).
const INITIAL: u32 = 10;
/// No bound: where nothing can be congested.
const UNBOUNDED: u32 = 1 << 30;

/// The congestion window of a connection, bytes. Times are in us.
pub(crate) struct Congestion {
    window: u32,
    /// Below it, slow start (ssthresh).
    threshold: u32,
    /// Where the window was before the last loss (W_max).
    most: u32,
    /// Where the cubic curve has begun.
    epoch: Option<Epoch>,
    /// Bytes that were acknowledged and have not counted yet.
    counted: u32,
    /// It is bound.
    bound: bool,
}

struct Epoch {
    began: i64,
    /// Until the curve is back at `origin` (K), us.
    until: i64,
    origin: u32,
    /// The window that Reno's rule would give (W_est), and what has not counted there yet.
    reno: u32,
    reno_counted: u32,
}

impl Congestion {
    pub(crate) fn new(bound: bool) -> Congestion {
        let window = if bound { 0 } else { UNBOUNDED };
        Congestion { window, threshold: UNBOUNDED, most: 0, epoch: None, counted: 0, bound }
    }

    /// The handshake is done: segments are as large as this.
    pub(crate) fn begin(&mut self, segment: u32) {
        if self.bound {
            self.window = INITIAL * segment;
        }
    }

    #[inline]
    pub(crate) fn window(&self) -> u32 {
        self.window
    }

    /// So many bytes were acknowledged, and the window was what held the sender back if `full`.
    #[inline]
    pub(crate) fn acknowledged(&mut self, bytes: u32, full: bool, segment: u32, now: i64, rtt: i64) {
        if full && self.bound {
            self.grow(bytes, segment, now, rtt);
        }
    }

    fn grow(&mut self, bytes: u32, segment: u32, now: i64, rtt: i64) {
        if self.window < self.threshold {
            // As many as arrived: one acknowledgement may be for many segments. (RFC 3465, without its bound, as Linux.)
            self.window = self.window.saturating_add(bytes).min(self.threshold);
            return;
        }
        let (window, most) = (self.window, self.most.max(self.window));
        let epoch = self.epoch.get_or_insert_with(|| {
            let origin = most;
            // K = cbrt((W_max - cwnd) / C), in segments and seconds, with C = 0.4.
            let less = u64::from((origin - window) / segment);
            Epoch { began: now, until: cube_root(less * 5 / 2), origin, reno: window, reno_counted: 0 }
        });
        // W_cubic(t + RTT) = C * (t - K)^3 + W_max.
        let t = now - epoch.began + rtt - epoch.until;
        let t_ms = (t / 1000).clamp(-100_000, 100_000);
        let grown = t_ms * t_ms * t_ms / 1000 * i64::from(segment) * 4 / 10 / 1_000_000;
        let target = (i64::from(epoch.origin) + grown)
            .clamp(i64::from(self.window), i64::from(self.window) * 3 / 2) as u32;
        // Reno's: alpha = 3 * (1 - beta) / (1 + beta) segments each round trip, beta = 0.7.
        epoch.reno_counted += bytes;
        let round = epoch.reno.max(segment);
        if epoch.reno_counted >= round {
            epoch.reno_counted -= round;
            epoch.reno = (epoch.reno + segment * 9 / 17).min(UNBOUNDED);
        }
        let target = target.max(epoch.reno);
        // (target - cwnd) / cwnd for each byte.
        self.counted = self.counted.saturating_add(
            (u64::from(target.saturating_sub(window)) * u64::from(bytes) / u64::from(window.max(1))) as u32,
        );
        let whole = self.counted / segment * segment;
        self.counted -= whole;
        self.window = (self.window + whole).min(UNBOUNDED);
    }

    fn shrink(&mut self, in_flight: u32, segment: u32) {
        // Fast convergence.
        self.most =
            if self.window < self.most { (u64::from(self.window) * 17 / 20) as u32 } else { self.window };
        let base = self.window.min(in_flight.max(2 * segment));
        self.threshold = ((u64::from(base) * 7 / 10) as u32).max(2 * segment);
        (self.epoch, self.counted) = (None, 0);
    }

    /// Something was lost, and others arrived.
    pub(crate) fn lost(&mut self, in_flight: u32, segment: u32) {
        if self.bound {
            self.shrink(in_flight, segment);
            self.window = self.threshold;
        }
    }

    /// Nothing has been heard for too long. `again`: not for the first time since something was.
    pub(crate) fn timed_out(&mut self, in_flight: u32, segment: u32, again: bool) {
        if self.bound {
            if !again {
                self.shrink(in_flight, segment);
            }
            self.window = segment;
        }
    }

    /// It was idle: what was known of the way is old (RFC 5681 section 4.1).
    pub(crate) fn idle(&mut self, segment: u32) {
        if self.bound {
            self.threshold = self.threshold.max(self.window / 4 * 3);
            self.window = self.window.min(INITIAL * segment);
            self.epoch = None;
        }
    }
}

/// The cube root of a number of seconds to the third power, us.
fn cube_root(n: u64) -> i64 {
    // (x us)^3 = n * 10^18, by ms: (x ms)^3 = n * 10^9.
    let n = n.min(1 << 30) * 1_000_000_000;
    let (mut low, mut high) = (0u64, 1 << 20);
    while low < high {
        let middle = (low + high).div_ceil(2);
        if middle * middle * middle <= n { low = middle } else { high = middle - 1 }
    }
    low as i64 * 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots() {
        assert_eq!(cube_root(0), 0);
        assert_eq!(cube_root(1), 1_000_000);
        assert_eq!(cube_root(8), 2_000_000);
        assert_eq!(cube_root(1000), 10_000_000);
        assert_eq!(cube_root(2) / 1000, 1259);
    }

    /// Acknowledges a window's bytes in segments, one round trip.
    fn round(c: &mut Congestion, now: &mut i64, rtt: i64) {
        for _ in 0..c.window() / 1000 {
            c.acknowledged(1000, true, 1000, *now, rtt);
        }
        *now += rtt;
    }

    #[test]
    fn grows_shrinks_and_comes_back() {
        let mut c = Congestion::new(true);
        let (mut now, rtt) = (0, 50_000);
        c.begin(1000);
        assert_eq!(c.window(), 10_000);
        round(&mut c, &mut now, rtt);
        assert_eq!(c.window(), 20_000, "slow start doubles");
        for _ in 0..3 {
            round(&mut c, &mut now, rtt);
        }
        let before = c.window();
        c.lost(before, 1000);
        assert_eq!(c.window(), before * 7 / 10);
        // CUBIC's K for 160 segments: cbrt(48 / 0.4) = 4.9 s.
        let (mut at_half, mut end) = (0, 0);
        for n in 0..400 {
            round(&mut c, &mut now, rtt);
            if n == 49 {
                at_half = c.window();
            }
            if c.window() >= before && end == 0 {
                end = n;
            }
        }
        assert!(at_half > before * 9 / 10 && at_half <= before, "the curve is steep at first: {at_half}");
        assert!((70..120).contains(&end), "back after {end} round trips");
        assert!(c.window() > before * 2, "and then it probes");
        c.timed_out(c.window(), 1000, false);
        assert_eq!(c.window(), 1000);
        round(&mut c, &mut now, rtt);
        assert_eq!(c.window(), 2000);
    }

    #[test]
    fn who_does_not_use_the_window_does_not_widen_it() {
        let mut c = Congestion::new(true);
        c.begin(1000);
        for n in 0..100 {
            c.acknowledged(1000, false, 1000, n, 1000);
        }
        assert_eq!(c.window(), 10_000);
    }

    #[test]
    fn numbers_do_not_overflow() {
        let mut c = Congestion::new(true);
        c.begin(65000);
        let mut now = 0;
        for n in 0..2_000_000u32 {
            now += 1_000_000;
            c.acknowledged(u32::from(u16::MAX), true, 65000, now, 1 << 40);
            if n % 100_000 == 77 {
                c.lost(u32::MAX, 65000);
            }
        }
        assert!(c.window() <= UNBOUNDED);
    }
}
