//! A noisy neighbour: one activity sends 200 requests a second of 0.6 ms each, below its reservation of 30 %, and
//! another one floods the same resource with four threads, in every second phase. The phases without are what to compare with.

use anyhow::{Context, Result, bail};
use serde::Serialize;

use super::Bench;
use super::cell::{Cell, Wanted};

/// What can be flooded: the resources that a configuration knows.
const RESOURCES: [&str; 13] = [
    "thread",
    "process",
    "address-space",
    "memory",
    "files",
    "file-cache",
    "pipe",
    "socket",
    "device-read",
    "device-write",
    "completion",
    "timer",
    "wait",
];

/// Threads that flood, for each core.
const THREADS: usize = 4;

const GRID: &str = r#"
[[activity]]
name = "victim"
weight = 30
reservation = "30%"
match = [{ environment = "TENANT=victim" }]

[[activity]]
name = "flood"
weight = 70
match = [{ environment = "TENANT=flood" }]

[resource.device-read]
measure = "bytes"
rate = "100MB/s"
activity.victim = { weight = 30, reservation = "30MB/s" }

[resource.device-write]
measure = "bytes"
rate = "100MB/s"
activity.victim = { weight = 30, reservation = "30MB/s" }
"#;

/// What became of the requests of some phases.
#[derive(Serialize)]
struct Phases {
    /// Requests that were to be done, and those that were.
    wanted: u64,
    done: u64,
    /// Time from when a request was due until it was done, us.
    p50: f64,
    p99: f64,
    /// The p99 of the phase in the middle, us: what happens to the machine in one of them is not in that.
    p99_middle: f64,
}

#[derive(Serialize)]
struct Row {
    resource: String,
    /// Operations in a request.
    operations: u64,
    quiet: Phases,
    flooded: Phases,
    /// What was done under the flood of what was done without, percent.
    throughput: f64,
    /// How much longer a request in a hundred took, percent: of all, and of the phases in the middle.
    p99: f64,
    p99_middle: f64,
}

#[derive(Serialize)]
struct Rows {
    cores: usize,
    seconds: u32,
    rows: Vec<Row>,
}

pub fn measure(bench: &Bench) -> Result<()> {
    let one = [1];
    for cores in if bench.options.cores.is_empty() { &one[..] } else { &bench.options.cores } {
        on(bench, *cores)?;
    }
    Ok(())
}

fn on(bench: &Bench, cores: usize) -> Result<()> {
    let all = RESOURCES.map(String::from);
    let wanted = if bench.options.flood.is_empty() { &all[..] } else { &bench.options.flood };
    // Each row takes a while: it is shown as it comes.
    let json = bench.options.json;
    let say = |text: &str| if json { eprint!("{text}") } else { print!("{text}") };
    say(&format!(
        "neighbour, {cores} core(s), phases of 1 s without and with the flood, {} s of each\n  {:16}{:>8}{:>16}{:>16}{:>14}{:>12}{:>12}{:>12}{:>10}{:>12}{:>12}{:>10}\n",
        bench.options.seconds,
        "",
        "ops",
        "done, quiet",
        "done, flooded",
        "throughput %",
        "p50 us",
        "p99, quiet",
        "flooded",
        "more %",
        "middle, q.",
        "flooded",
        "more %"
    ));
    let mut rows = Vec::new();
    for resource in wanted {
        let r = flood(bench, cores, resource).with_context(|| format!("flooding {resource}"))?;
        say(&format!(
            "  {:16}{:>8}{:>16}{:>16}{:>14.1}{:>12.0}{:>12.0}{:>12.0}{:>10.0}{:>12.0}{:>12.0}{:>10.0}\n",
            r.resource,
            r.operations,
            format!("{} of {}", r.quiet.done, r.quiet.wanted),
            format!("{} of {}", r.flooded.done, r.flooded.wanted),
            r.throughput,
            r.quiet.p50,
            r.quiet.p99,
            r.flooded.p99,
            r.p99,
            r.quiet.p99_middle,
            r.flooded.p99_middle,
            r.p99_middle
        ));
        rows.push(r);
    }
    bench.show("neighbour", &Rows { cores, seconds: bench.options.seconds, rows }, "")
}

fn flood(bench: &Bench, cores: usize, resource: &str) -> Result<Row> {
    if !RESOURCES.contains(&resource) {
        bail!("there is no such resource to flood; there are {}", RESOURCES.join(", "));
    }
    let phases = 2 * bench.options.seconds;
    let work = bench.dir.join("neighbour");
    std::fs::create_dir_all(&work)?;
    let (threads, phases_text) = ((THREADS * cores).to_string(), phases.to_string());
    let (loads, work) = (&bench.loads[..], super::text_of(&work)?);
    let words = [
        &[loads, "start", "TENANT=flood", loads, "flood", resource, &threads, "1", &work][..],
        &[",", "TENANT=victim", loads, "paced", resource, &phases_text, "1", &work],
    ]
    .concat();
    let wanted = Wanted { name: "neighbour", cores, memory: "512M", grid: Some(GRID), runtime: None };
    let mut cell = Cell::start(bench, &wanted, &words)?;
    let operations = cell.hear()?.parse().context("the victim says no number of operations")?;
    // Into the middle of the phases, for the figure.
    let series = cell.watch(phases)?;
    bench.draw(&format!("neighbour-{resource}-{cores}"), &series, &["time"])?;
    let mut hear = || -> Result<Phases> {
        let line = cell.hear()?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let [wanted, done, p50, p99, p99_middle] = words[..] else { bail!("the victim says {line:?}") };
        Ok(Phases {
            wanted: wanted.parse()?,
            done: done.parse()?,
            p50: p50.parse()?,
            p99: p99.parse()?,
            p99_middle: p99_middle.parse()?,
        })
    };
    let (quiet, flooded) = (hear()?, hear()?);
    let part = |p: &Phases| p.done as f64 / p.wanted as f64;
    let throughput = part(&flooded) * 100.0 / part(&quiet);
    let more = |of: fn(&Phases) -> f64| of(&flooded) * 100.0 / of(&quiet) - 100.0;
    let (p99, p99_middle) = (more(|p| p.p99), more(|p| p.p99_middle));
    Ok(Row { resource: resource.into(), operations, quiet, flooded, throughput, p99, p99_middle })
}
