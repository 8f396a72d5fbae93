//! What one message costs: `grid/benches/message.rs`.

use anyhow::{Context, Result, bail};
use serde::Serialize;

use super::Bench;
use crate::build;

#[derive(Serialize)]
struct Cost {
    what: String,
    /// At best, which is when nobody disturbs, ns.
    best: f64,
    /// In the middle of all rounds, ns.
    median: f64,
    /// The most that it is to be, ns.
    #[serde(skip_serializing_if = "Option::is_none")]
    goal: Option<f64>,
}

#[derive(Serialize)]
struct Costs {
    costs: Vec<Cost>,
}

/// What is promised.
const GOALS: [(&str, f64); 3] = [
    ("in place", 40.0),
    ("queued on the same core", 150.0),
    ("across cores, to one that polls, there and back", 1000.0),
];

pub fn measure(bench: &Bench) -> Result<()> {
    let output = build::cargo()
        .args(["bench", "--quiet", "--package", "atoll-grid", "--bench", "message"])
        .current_dir(build::top())
        .output()?;
    if !output.status.success() {
        bail!("measuring messages: {}", String::from_utf8_lossy(&output.stderr));
    }
    let mut costs = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let mut words = line.splitn(3, ' ');
        let (best, median, what) = (words.next(), words.next(), words.next());
        let (Some(best), Some(median), Some(what)) = (best, median, what) else { continue };
        let number = |text: &str| text.parse::<f64>().with_context(|| format!("{line:?} is no figure"));
        let goal = GOALS.iter().find(|(name, _)| *name == what).map(|(_, goal)| *goal);
        costs.push(Cost { what: what.into(), best: number(best)?, median: number(median)?, goal });
    }
    let mut text = format!("message\n  {:56}{:>10}{:>10}{:>10}\n", "ns", "best", "median", "goal");
    for c in &costs {
        let goal = c.goal.map(|g| format!("{g:.0}")).unwrap_or_default();
        text += &format!("  {:56}{:>10.1}{:>10.1}{goal:>10}\n", c.what, c.best, c.median);
    }
    bench.show("message", &Costs { costs }, &text)
}
