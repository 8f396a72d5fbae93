//! Who got how much between two snapshots.

use atoll_abi::grid::Resource;
use atoll_supervisor::books::{Kind, Snapshot, Use, Uses};
use serde::Serialize;

use super::TENANTS;

/// What the named activity of a cell has used, with those below it, since the books were opened.
pub fn used_by(snapshot: &Snapshot, name: &str) -> Uses {
    let mut sum = Uses::default();
    for activity in &snapshot.activities {
        let mut at = activity;
        while at.kind != Kind::Named
            && let Some(up) = snapshot.activities.iter().find(|a| a.id == at.parent && a.id != at.id)
        {
            at = up;
        }
        if at.kind == Kind::Named && at.name == name {
            sum.add(&activity.resources);
        }
    }
    sum
}

/// What all have used together.
pub fn total(snapshot: &Snapshot) -> Uses {
    let mut sum = Uses::default();
    snapshot.activities.iter().for_each(|a| sum.add(&a.resources));
    sum
}

/// Time of all resources, ns.
pub fn time(uses: &Uses) -> f64 {
    uses.used().map(|(_, u)| u.ns as f64).sum()
}

/// Time of work, overhead included, ns.
pub fn worked(uses: &Uses) -> f64 {
    time(uses) - [Resource::Idle, Resource::Stolen].map(|r| uses.of(r).ns as f64).iter().sum::<f64>()
}

/// What is divided.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// Processor time.
    Time,
    /// Bytes.
    Bytes,
}

impl Measure {
    fn of(self, u: &Use) -> f64 {
        match self {
            Measure::Time => u.ns as f64,
            Measure::Bytes => u.bytes as f64,
        }
    }
}

/// Part of the cores' time that the host may take in a window that counts as quiet, percent.
const QUIET: f64 = 2.0;

/// How one resource was divided among the tenants.
#[derive(Serialize)]
pub struct Share {
    /// The resource; "all" for their sum.
    pub resource: String,
    /// What all three used of it together: percent of the cores' time, or bytes a second.
    pub used: f64,
    /// What each had of that over the whole time, percent.
    pub mean: [f64; 3],
    /// The most that anybody was away from what he is entitled to in one window, percent of what all had.
    pub worst: f64,
    /// The same over the whole time.
    pub worst_mean: f64,
    /// Windows in which the host took less than [`QUIET`] of the cores, and the most that anybody was away in one of them:
    /// what is taken is missing from the share of whoever was just running.
    pub quiet_windows: usize,
    pub worst_quiet: f64,
}

/// How far the parts are from the entitlements.
fn away(parts: &[f64; 3]) -> f64 {
    parts.iter().zip(TENANTS).map(|(part, (_, want))| (part - want).abs()).fold(0.0, f64::max)
}

fn parts(amounts: [f64; 3]) -> [f64; 3] {
    let sum: f64 = amounts.iter().sum();
    amounts.map(|a| a * 100.0 / sum)
}

/// What the host took between two snapshots, percent of the cores' time.
fn stolen(pair: &[Snapshot]) -> f64 {
    let took = |s: &Snapshot| total(s).of(Resource::Stolen).ns as f64;
    let ns = (pair[1].clock - pair[0].clock) as f64 * f64::from(pair[1].cores);
    (took(&pair[1]) - took(&pair[0])) * 100.0 / ns
}

/// How a resource, or all of them, was divided: `None` if nobody used it. Windows are between neighbouring snapshots.
pub fn share(series: &[Snapshot], resource: Option<Resource>, measure: Measure) -> Option<Share> {
    let at = |s: &Snapshot| {
        TENANTS.map(|(name, _)| {
            let uses = used_by(s, name);
            match resource {
                Some(r) => measure.of(uses.of(r)),
                None => uses.used().map(|(_, u)| measure.of(u)).sum(),
            }
        })
    };
    let amounts: Vec<[f64; 3]> = series.iter().map(at).collect();
    let between = |a: &[f64; 3], b: &[f64; 3]| -> [f64; 3] { std::array::from_fn(|n| b[n] - a[n]) };
    let (first, last) = (series.first()?, series.last()?);
    let all = between(amounts.first()?, amounts.last()?);
    let sum: f64 = all.iter().sum();
    if sum <= 0.0 {
        return None;
    }
    let ns = (last.clock - first.clock) as f64;
    let mean = parts(all);
    let windows: Vec<f64> = amounts.windows(2).map(|p| away(&parts(between(&p[0], &p[1])))).collect();
    let quiet: Vec<f64> =
        windows.iter().zip(series.windows(2)).filter(|(_, p)| stolen(p) < QUIET).map(|(w, _)| *w).collect();
    let worst = |windows: &[f64]| windows.iter().copied().fold(0.0, f64::max);
    Some(Share {
        resource: resource.map_or("all", |r| r.name()).into(),
        used: if measure == Measure::Time {
            sum * 100.0 / (ns * f64::from(last.cores))
        } else {
            sum * 1e9 / ns
        },
        mean,
        worst: worst(&windows),
        worst_mean: away(&mean),
        quiet_windows: quiet.len(),
        worst_quiet: worst(&quiet),
    })
}

/// A table of them.
pub fn table(title: &str, unit: &str, shares: &[Share]) -> String {
    let names = TENANTS.map(|(name, percent)| format!("{name} {percent:.0} %"));
    let mut text = format!(
        "{title}\n  {:16}{unit:>16}{:>12}{:>12}{:>12}{:>10}{:>14}{:>22}\n",
        "", names[0], names[1], names[2], "off by", "worst window", "worst of quiet"
    );
    for s in shares {
        let used = if s.used >= 1000.0 { format!("{:.0}", s.used) } else { format!("{:.2}", s.used) };
        text += &format!(
            "  {:16}{used:>16}{:>12.2}{:>12.2}{:>12.2}{:>10.2}{:>14.2}{:>22}\n",
            s.resource,
            s.mean[0],
            s.mean[1],
            s.mean[2],
            s.worst_mean,
            s.worst,
            format!("{:.2} of {}", s.worst_quiet, s.quiet_windows)
        );
    }
    text
}
