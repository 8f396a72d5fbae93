//! Processor time among three activities (4.1, figure 4): each has a thread on each core that opens a cached file, reads
//! 32 KiB of it and closes it, again and again.

use anyhow::Result;
use atoll_abi::grid::Resource;
use serde::Serialize;

use super::cell::{Cell, Snapshot, Wanted};
use super::shares::{self, Measure, Share};
use super::{Bench, TENANTS, tenants};

/// Part of the cores' time, percent, from which a resource is shown.
const SHOWN: f64 = 0.5;
/// Resources of which one is to be the bottleneck, and the part of each core's time, percent, that it has then: half of what readers
/// use there that look at nothing, or less.
const NARROW: [(Resource, u32); 2] = [(Resource::Files, 10), (Resource::FileCache, 20)];

#[derive(Serialize)]
struct Outcome {
    cores: usize,
    seconds: u32,
    /// Where the processors are what all wait for.
    shares: Vec<Share>,
    /// Of files and of their cache, where that one is what all wait for.
    narrow: Vec<Share>,
    /// Files opened, read and closed a second.
    reads: f64,
    /// The grid's own time, percent of the time in which the cores worked.
    overhead: f64,
    /// What is in the books beyond the clock's time, percent: the core that is farthest off, in the worst window.
    clock: f64,
    /// What the books have as work beyond what the host says, percent of the cores' time.
    host: f64,
}

pub fn measure(bench: &Bench) -> Result<()> {
    let both = [1, 2];
    let cores = if bench.options.cores.is_empty() { &both[..] } else { &bench.options.cores };
    for cores in cores {
        on(bench, *cores)?;
    }
    Ok(())
}

fn on(bench: &Bench, cores: usize) -> Result<()> {
    let series = read(bench, cores, "cached", "")?;
    let name = format!("cpu-{cores}");
    bench.draw(&name, &series, &["time"])?;
    let all = Resource::ALL.into_iter().filter(|r| !matches!(r, Resource::Idle | Resource::Stolen));
    let each = all.filter_map(|r| shares::share(&series, Some(r), Measure::Time)).filter(|s| s.used >= SHOWN);
    let mut result = Outcome {
        cores,
        seconds: bench.options.seconds,
        shares: shares::share(&series, None, Measure::Time).into_iter().chain(each).collect(),
        narrow: Vec::new(),
        reads: reads(&series),
        overhead: overhead(&series),
        clock: against_clock(&series),
        host: against_host(&series),
    };
    for (resource, percent) in NARROW {
        let gate = format!("[resource.{}]\nrate = \"{percent}%\"\n", resource.name());
        let series = read(bench, cores, "unseen", &gate)?;
        bench.draw(&format!("{name}-{}", resource.name()), &series, &["time"])?;
        result.narrow.extend(shares::share(&series, Some(resource), Measure::Time));
    }
    let cores = if cores == 1 { "1 core".to_string() } else { format!("{cores} cores") };
    let windows = format!("{} windows of 1 s: percent of what the three had", result.seconds);
    let text = shares::table(&format!("cpu, {cores}, {windows}"), "% of the cores", &result.shares)
        + &format!(
            "  {:.0} files a second; overhead {:.2} %\n  books against the clock {:+.4} %, against the host {:+.3} %\n",
            result.reads, result.overhead, result.clock, result.host
        )
        + &shares::table(
            &format!("nobody looks at what was read, and one of these has a rate, {cores}, {windows}"),
            "% of the cores",
            &result.narrow,
        );
    bench.show("cpu", &result, &text)
}

/// The three readers' books, one window a second, with a load and more of a configuration.
fn read(bench: &Bench, cores: usize, load: &str, more: &str) -> Result<Vec<Snapshot>> {
    // What is sampled is right over many windows, but not in each of them.
    let grid = format!("sample = 1\n{}", tenants(more));
    let number = cores.to_string();
    let mut words = vec![bench.loads.clone(), "start".into()];
    for (name, _) in TENANTS {
        words.extend([format!("TENANT={name}"), bench.loads.clone(), load.into()]);
        words.extend([format!("/tmp/{name}"), number.clone(), ",".into()]);
    }
    let words: Vec<&str> = words.iter().map(|w| &w[..]).collect();
    let wanted = Wanted { name: "cpu", cores, memory: "512M", grid: Some(&grid), runtime: None };
    let mut cell = Cell::start(bench, &wanted, &words)?;
    cell.wait_for("begin to read", |cell| {
        let s = cell.look()?;
        let at_work = |name: &str| shares::used_by(&s, name).of(Resource::FileCache).messages > 1000;
        Ok(TENANTS.iter().all(|(name, _)| at_work(name)).then_some(()))
    })?;
    cell.watch(1)?;
    cell.watch(bench.options.seconds)
}

/// First and last of a series.
fn ends(series: &[Snapshot]) -> (&Snapshot, &Snapshot) {
    (&series[0], &series[series.len() - 1])
}

fn reads(series: &[Snapshot]) -> f64 {
    let (first, last) = ends(series);
    let read = |s: &Snapshot| shares::total(s).of(Resource::FileCache).messages as f64;
    (read(last) - read(first)) * 1e9 / (last.clock - first.clock) as f64
}

/// The paper's metric: what is neither a program's nor a message's, percent of all work.
pub fn overhead(series: &[Snapshot]) -> f64 {
    let (first, last) = ends(series);
    let uses = shares::total(last).since(&shares::total(first));
    uses.of(Resource::Overhead).ns as f64 * 100.0 / shares::worked(&uses)
}

fn against_clock(series: &[Snapshot]) -> f64 {
    let booked = |s: &Snapshot, core: usize| -> f64 {
        s.activities.iter().filter_map(|a| a.cores.get(core)).map(shares::time).sum()
    };
    let mut worst: f64 = 0.0;
    for pair in series.windows(2) {
        let clock = (pair[1].clock - pair[0].clock) as f64;
        for core in 0..pair[1].cores as usize {
            let off = (booked(&pair[1], core) - booked(&pair[0], core)) * 100.0 / clock - 100.0;
            worst = if off.abs() > worst.abs() { off } else { worst };
        }
    }
    worst
}

fn against_host(series: &[Snapshot]) -> f64 {
    let (first, last) = ends(series);
    let worked = shares::worked(&shares::total(last).since(&shares::total(first)));
    let host = |s: &Snapshot| s.host.map_or(f64::NAN, |h| h.ns as f64);
    let available = (last.clock - first.clock) as f64 * f64::from(last.cores);
    (worked - (host(last) - host(first))) * 100.0 / available
}
