//! `atoll stat --check`: do the books balance?
//!
//! Each core's entries are compared with the clock, and what was done with what the host says that the cell's processes
//! have used: its counters know nothing of the books.

use std::process::ExitCode;
use std::time::Duration;

use atoll_abi::grid::Resource;
use atoll_supervisor::books::Snapshot;
use atoll_supervisor::inspect::Request;
use atoll_supervisor::{Error, Result};

use super::interval::{Cores, all_time, between};
use super::{Options, Source, print};

/// The most that they may be apart, percent of the cores' time.
const APART: f64 = 0.5;

/// Compares over an interval; status 1 if they are too far apart.
pub fn run(o: &Options) -> Result<ExitCode> {
    let request = Request::Stat { cores: true, host: true };
    let mut source = Source::open(o, request, o.interval.unwrap_or(Duration::from_secs(5)))?;
    let before = source.first()?;
    let after = source.next()?.ok_or_else(|| Error::new("the cell has ended meanwhile"))?;
    let (text, apart) = compare(&before, &after)?;
    print(&text);
    Ok(if apart <= APART { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What there is to say, and how far apart they are at most, percent.
fn compare(before: &Snapshot, after: &Snapshot) -> Result<(String, f64)> {
    if after.activities.is_empty() {
        return Err(Error::new(format!("{}: its runtime keeps no books", after.cell)));
    }
    let (Some(host_before), Some(host_after)) = (before.host, after.host) else {
        return Err(Error::new("the cell's supervisor does not say what the host says"));
    };
    let all = between(Some(before), after, Cores::All);
    let mut text = format!("{}: {:.3} s\n", after.cell, all.ns as f64 / 1e9);
    let mut apart: f64 = 0.0;
    for core in 0..after.cores as usize {
        let one = between(Some(before), after, Cores::One(core));
        let difference = one.percent(all_time(&one.total)) - 100.0;
        apart = apart.max(difference.abs());
        text += &format!(
            "core {core}: the books have {:.3} % of its time: {difference:+.3} %\n",
            difference + 100.0
        );
    }
    let outside = [Resource::Idle, Resource::Stolen].map(|r| all.total.of(r).ns).into_iter();
    let used = all_time(&all.total).saturating_sub(outside.fold(0, i64::saturating_add));
    let host = host_after.ns as i64 - host_before.ns as i64;
    let difference = all.percent(used.saturating_sub(host));
    apart = apart.max(difference.abs());
    text += &format!(
        "threads, resources and overhead: {:.3} s; the host says {:.3} s: {difference:+.3} % of the cores' time\n",
        used as f64 / 1e9,
        host as f64 / 1e9,
    );
    if host_before.processes != host_after.processes {
        text += &format!(
            "the cell had {} processes on the host, then {}: what those used that have ended is not counted\n",
            host_before.processes, host_after.processes
        );
    }
    let verdict = if apart <= APART { "they balance" } else { "they do not balance" };
    text += &format!("{verdict}: {apart:.3} % apart at most, and {APART} % is allowed\n");
    Ok((text, apart))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{activity, snapshot};
    use super::*;
    use atoll_supervisor::books::HostTime;

    /// Three seconds of two cores; the second core's program time can be made wrong.
    fn pair(second: i64, host: u64) -> (Snapshot, Snapshot) {
        let at = |s: i64, second: i64, ns: u64| {
            let first = [(Resource::Thread, s * 700_000_000), (Resource::Idle, s * 300_000_000)];
            let other = [(Resource::Overhead, s * 100_000_000), (Resource::Stolen, s * 400_000_000)];
            let mut a = activity(0, 0, "cell", &[&first, &other]);
            a.cores[1].0[Resource::Socket as usize].ns = second;
            a.resources.0[Resource::Socket as usize].ns = second;
            let mut snapshot = snapshot(s as u64, 2, vec![a]);
            snapshot.host = Some(HostTime { ns, processes: 2 });
            snapshot
        };
        (at(1, 500_000_000, 10), at(4, 500_000_000 + second, 10 + host))
    }

    /// OK-05: the books are compared with clocks that know nothing of them.
    #[test]
    fn compares_with_both_clocks() {
        // 0.7 and 0.1 and 0.5 a second.
        let (before, after) = pair(1_500_000_000, 3_900_000_000);
        let (text, apart) = compare(&before, &after).unwrap();
        assert!(apart < 1e-6 && text.contains("they balance"), "{text}");
        // One percent of a core is missing in the books: half of that of all.
        let (before, after) = pair(1_470_000_000, 3_900_000_000);
        let (text, apart) = compare(&before, &after).unwrap();
        assert!((apart - 1.0).abs() < 1e-6, "{text}");
        assert!(text.contains("core 1: the books have 99.000 % of its time: -1.000 %"), "{text}");
        assert!(text.contains("-0.500 % of the cores' time") && text.contains("do not balance"), "{text}");
        // The host says more.
        let (before, after) = pair(1_500_000_000, 3_960_000_000);
        assert!((compare(&before, &after).unwrap().1 - 1.0).abs() < 1e-6);
        let empty = snapshot(1, 1, Vec::new());
        assert!(compare(&empty, &empty).is_err());
    }
}
