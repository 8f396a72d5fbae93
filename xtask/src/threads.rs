//! What threads do to each other, in cells and on Linux (requirements OV-04, OV-05).

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};

use crate::bench::{Row, Table, compare_times, compile, output};
use crate::build::{self, cargo, run as run_command, top};
use crate::guests::{CORES, Counted, Workshop};
use crate::servers::{SIDES, Side, command};
use crate::system::{find, has, need};

/// What to measure.
#[derive(Args)]
pub struct Options {
    /// Which parts [default: all]
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// One JSON object a row: name, linux, cell, unit, ratio (above 1: the cell is better).
    #[arg(long)]
    json: bool,
    /// Rounds of each side.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// A group of figures.
#[derive(Clone, Copy, ValueEnum, PartialEq, Eq, Debug)]
enum Part {
    /// Switches, wake-ups, locks, threads that are made and joined.
    Calls,
    /// Two threads on a core: who gets how much.
    Fairness,
    /// From an outside event to the thread's answer.
    Latency,
    /// sysbench's threads and mutex.
    Sysbench,
    /// Benchmarks of Go's own scheduler.
    Go,
    /// Java's threads.
    Java,
    /// tokio's tasks.
    Tokio,
    /// Instructions of switches and wake-ups on more and more cores, in QEMU.
    Scaling,
}

/// Measures.
pub fn run(options: &Options) -> Result<()> {
    build::all(true)?;
    let dir = tempfile::Builder::new().prefix("atoll-bench-").tempdir()?;
    for part in Part::value_variants() {
        if !options.parts.is_empty() && !options.parts.contains(part) {
            continue;
        }
        match part {
            Part::Calls => calls(options, dir.path())?,
            Part::Fairness => fairness(options, dir.path())?,
            Part::Latency => latency(options, dir.path())?,
            Part::Sysbench => sysbench(options, dir.path())?,
            Part::Go => go(options, dir.path())?,
            Part::Java => java(options, dir.path())?,
            Part::Tokio => tokio(options, dir.path())?,
            Part::Scaling => scaling(options, dir.path())?,
        }
    }
    Ok(())
}

fn times(options: &Options, dir: &Path, program: &str, arguments: &[&str]) -> Result<()> {
    compare_times(options.rounds, options.json, str::to_string, dir, program, arguments)
}

fn calls(options: &Options, dir: &Path) -> Result<()> {
    let program = compile("threads", dir)?;
    times(options, dir, &program, &[])
}

/// Linux's weights of nice values (kernel/sched/core.c, `sched_prio_to_weight`) of those that are compared.
const WEIGHTS: [(i32, f64); 4] = [(0, 1024.0), (1, 820.0), (5, 335.0), (10, 110.0)];

fn fairness(options: &Options, dir: &Path) -> Result<()> {
    let program = compile("threads", dir)?;
    let mut table = Table::default();
    for _ in 0..options.rounds {
        for (n, side) in SIDES.into_iter().enumerate() {
            for (nice, weight) in WEIGHTS {
                let text = output(side, dir, &program, &["share", &nice.to_string()])?;
                let had: Vec<f64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
                let [first, other] = had[..] else { bail!("two threads were asked for: {text}") };
                let right = 1024.0 / (1024.0 + weight);
                let off = 100.0 * (first / (first + other) - right).abs();
                table.add(
                    &format!("a thread of nice 0 beside one of nice {nice}, 1 s: off its share"),
                    n,
                    off,
                );
            }
        }
    }
    table.print(options.json, |name, linux, cell| Row::less(name, "% of core", linux, cell));
    Ok(())
}

/// How long a program runs before it is asked.
const SETTLED: Duration = Duration::from_secs(2);
/// How often something is asked from outside, in a round.
const ASKED: u32 = 1000;

fn latency(options: &Options, dir: &Path) -> Result<()> {
    let program = compile("threads", dir)?;
    for busy in [false, true] {
        let mut times: [Vec<f64>; 2] = Default::default();
        for _ in 0..options.rounds {
            for (side, times) in SIDES.into_iter().zip(&mut times) {
                ask(side, dir, &program, busy, times)?;
            }
        }
        for times in &mut times {
            times.sort_by(f64::total_cmp);
        }
        let beside = if busy { "beside a thread that computes" } else { "alone" };
        for (name, part) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)] {
            let [mut linux, mut cell] = times.each_ref().map(|t| [t[(t.len() as f64 * part) as usize]]);
            let name = format!("an outside event and the answer, {beside}: {name}");
            Row::less(name, "us", &mut linux, &mut cell).print(options.json);
        }
    }
    Ok(())
}

/// Sends bytes at irregular times to a thread that sends them back; adds how long each takes, us.
fn ask(side: Side, dir: &Path, program: &str, busy: bool, times: &mut Vec<f64>) -> Result<()> {
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let mut arguments = vec!["serve".to_string(), port.to_string()];
    if busy {
        arguments.push("busy".into());
    }
    let mut child = command(side, dir, program, &arguments).spawn().context("starting threads")?;
    let begun = Instant::now();
    let mut stream = loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => break stream,
            Err(e) if begun.elapsed() > Duration::from_secs(10) => return Err(e).context("connecting"),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    stream.set_nodelay(true)?;
    // A cell that has just begun has memory made ready beside it.
    std::thread::sleep(SETTLED);
    let mut random = 1u64;
    let mut byte = [0];
    for n in 0..ASKED + 20 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_micros(300 + (random >> 33) % 2000));
        let begun = Instant::now();
        stream.write_all(&byte)?;
        stream.read_exact(&mut byte)?;
        // The first ones fill caches.
        if n >= 20 {
            times.push(begun.elapsed().as_secs_f64() * 1e6);
        }
    }
    drop(stream);
    child.wait()?;
    Ok(())
}

fn sysbench(options: &Options, dir: &Path) -> Result<()> {
    need(&[("sysbench", "sysbench")])?;
    let program = find("sysbench").context("there is no sysbench")?.display().to_string();
    let threads = |threads: u32, locks: u32| {
        (
            format!("sysbench threads, {threads} threads, {locks} locks"),
            [
                "threads",
                "--time=1",
                &format!("--threads={threads}"),
                &format!("--thread-locks={locks}"),
                "run",
            ]
            .map(String::from)
            .to_vec(),
        )
    };
    let loads = [
        threads(2, 1),
        threads(8, 4),
        threads(64, 8),
        (
            "sysbench mutex, 8 threads".to_string(),
            ["mutex", "--threads=8", "--mutex-num=16", "--mutex-locks=20000", "--mutex-loops=100", "run"]
                .map(String::from)
                .to_vec(),
        ),
    ];
    for (name, arguments) in loads {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut values: [Vec<f64>; 2] = Default::default();
        for _ in 0..options.rounds {
            for (side, values) in SIDES.into_iter().zip(&mut values) {
                let text = output(side, dir, &program, &arguments)?;
                let number = |what: &str| -> Option<f64> {
                    let line = text.lines().find(|line| line.trim_start().starts_with(what))?;
                    line.rsplit_once(':')?.1.trim().trim_end_matches('s').parse().ok()
                };
                let events = number("total number of events:").context("sysbench says no events")?;
                let time = number("total time:").context("sysbench says no time")?;
                values.push(events / time);
            }
        }
        let [mut linux, mut cell] = values;
        Row::more(name, "1/s", &mut linux, &mut cell).print(options.json);
    }
    Ok(())
}

/// Benchmarks of Go's package `runtime` that are about its scheduler.
const GO: &str = "^Benchmark(PingPongHog|CreateGoroutines|CreateGoroutinesParallel|ChanSync|ChanContended|\
ChanProdCons10|SelectSyncContended|ChanPopular)$";

fn go(options: &Options, dir: &Path) -> Result<()> {
    if !has("go") {
        println!("There is no go: its benchmarks are left out (on Debian: apt-get install golang-go).");
        return Ok(());
    }
    let program = dir.join("runtime.test");
    run_command(Command::new("go").args(["test", "-c", "-o"]).arg(&program).arg("runtime"))?;
    let program = program.display().to_string();
    let arguments = ["-test.run=NONE", "-test.benchtime=300ms", "-test.bench", GO];
    let mut table = Table::default();
    for _ in 0..options.rounds {
        for (n, side) in SIDES.into_iter().enumerate() {
            for line in output(side, dir, &program, &arguments)?.lines() {
                // BenchmarkName-2   1000   123 ns/op ...
                let mut words = line.split_whitespace();
                let Some(name) = words.next().and_then(|w| w.strip_prefix("Benchmark")) else { continue };
                let Some(time) = words.nth(1) else { continue };
                let name = name.rsplit_once('-').map_or(name, |(name, _)| name);
                table.add(&format!("Go: {name}"), n, time.parse()?);
            }
        }
    }
    table.print(options.json, |name, linux, cell| Row::less(name, "ns", linux, cell));
    Ok(())
}

fn java(options: &Options, dir: &Path) -> Result<()> {
    need(&[("java", "default-jre-headless"), ("javac", "default-jdk-headless")])?;
    run_command(Command::new("javac").arg("-d").arg(dir).arg("bench/Threads.java"))?;
    let program = fs::canonicalize(find("java").context("there is no java")?)?.display().to_string();
    let classes = dir.display().to_string();
    times(options, dir, &program, &["-Xmx256m", "-XX:+UseSerialGC", "-cp", &classes, "Threads"])
}

fn tokio(options: &Options, dir: &Path) -> Result<()> {
    let target = top().join("target/bench-tokio");
    run_command(
        cargo()
            .args(["build", "--release", "--quiet", "--locked", "--manifest-path", "bench/tokio/Cargo.toml"])
            .arg("--target-dir")
            .arg(&target),
    )?;
    let program = dir.join("tokio-threads");
    fs::copy(target.join("release/tokio-threads"), &program)?;
    times(options, dir, &program.display().to_string(), &[])
}

/// Instructions of a round trip of two threads of one core, of all cores at once, and of a wake-up on another core, on who wakes.
fn scaling(options: &Options, dir: &Path) -> Result<()> {
    let program = compile("scale", dir)?;
    let workshop = Workshop::new(dir)?;
    for cores in CORES {
        let (mut trips, mut wakes): ([Vec<f64>; 2], [Vec<f64>; 2]) = Default::default();
        for (n, side) in SIDES.into_iter().enumerate() {
            let image = workshop.image(side, "scale", &[&program], cores)?;
            for _ in 0..options.rounds {
                let run = Counted::run(&image, &workshop.counter(&format!("scale-{side:?}")))?;
                trips[n].push(run.between(1, 2)? / run.said("trips ")?);
                let pairs = run.marks.windows(2).filter(|pair| (pair[0].0, pair[1].0) == (3, 4));
                wakes[n].extend(pairs.map(|pair| (pair[1].1 - pair[0].1) as f64));
            }
        }
        let row = |name: &str, [mut linux, mut cell]: [Vec<f64>; 2]| {
            Row::less(format!("{cores} cores: {name}"), "instructions", &mut linux, &mut cell)
                .print(options.json);
        };
        row("futexes there and back, on each", trips);
        if cores > 1 {
            row("a wake-up on another one", wakes);
        }
    }
    Ok(())
}
