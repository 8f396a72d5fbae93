//! Benchmarks, each against Linux in the same run: the sides take turns and
//! medians are compared, because machines are noisy.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

use crate::build;
use crate::grid;
use crate::memory;
use crate::nucleus;
use crate::processes;
use crate::servers::{Kind, Load, SIDES, Server, Side, command};
use crate::system::{median, need};
use crate::threads;

/// What to measure.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Options {
    #[command(subcommand)]
    more: Option<More>,
    /// Which benchmarks.
    #[arg(value_enum, default_values_t = [Which::Entry, Which::Startup, Which::Servers])]
    which: Vec<Which>,
    /// One JSON object a row: name, linux, cell, unit, ratio (above 1: the cell is better).
    #[arg(long)]
    pub json: bool,
    /// Rounds of each side.
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Length of one round of load, seconds.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
}

/// Benchmarks with options of their own.
#[derive(Subcommand)]
enum More {
    /// The grid: the Omni-kernel paper's experiments.
    Grid(grid::Options),
    /// What threads do to each other: switches, wake-ups, locks, shares, latencies.
    Threads(threads::Options),
    /// What processes cost: fork, exec, shells, make, a server that saves.
    Processes(processes::Options),
    /// What memory costs: malloc, mmap, brk, faults.
    Memory(memory::Options),
}

/// A group of figures.
#[derive(Clone, Copy, ValueEnum, PartialEq, Eq)]
pub enum Which {
    /// System calls.
    Entry,
    /// Threads that open, read and close files, on all processors.
    Files,
    /// Many files of a directory of the host: names and attributes one by one, and tar, cp, find, chmod, git and rm.
    Tree,
    /// What serving threads do for cells: by plain calls, by io_uring, and as a program in a cell sees it.
    Service,
    /// Starting and ending programs, and doing nothing.
    Startup,
    /// Servers under load.
    Servers,
    /// From QEMU's start to Redis's first answer, on the nucleus and on Debian's cloud kernel.
    Boot,
    /// The nucleus against Debian's cloud kernel in QEMU: system calls, requests to servers, its own calls.
    Nucleus,
}

/// A figure.
#[derive(Serialize, Debug)]
pub struct Row {
    /// What was measured.
    pub name: String,
    /// On Linux, the median.
    pub linux: f64,
    /// In a cell, the median.
    pub cell: f64,
    /// Unit of both.
    pub unit: &'static str,
    /// How much better the cell is: above 1 it is.
    pub ratio: f64,
}

impl Row {
    /// A figure of which less is better.
    pub fn less(name: impl Into<String>, unit: &'static str, linux: &mut [f64], cell: &mut [f64]) -> Row {
        let (linux, cell) = (median(linux), median(cell));
        Row { name: name.into(), linux, cell, unit, ratio: linux / cell }
    }

    /// A figure of which more is better.
    pub fn more(name: impl Into<String>, unit: &'static str, linux: &mut [f64], cell: &mut [f64]) -> Row {
        let (linux, cell) = (median(linux), median(cell));
        Row { name: name.into(), linux, cell, unit, ratio: cell / linux }
    }

    /// Prints it.
    pub fn print(&self, json: bool) {
        if json {
            println!("{}", serde_json::to_string(self).expect("a row has only numbers and texts"));
        } else {
            let better = if self.ratio >= 1.0 { "better" } else { "worse" };
            let times = if self.ratio >= 1.0 { self.ratio } else { 1.0 / self.ratio };
            println!(
                "{:44} Linux {:>11}  cell {:>11}  {:10} {times:.2} times {better}",
                self.name,
                number(self.linux),
                number(self.cell),
                self.unit
            );
        }
    }
}

/// A number with as many places as matter.
pub fn number(x: f64) -> String {
    match x.abs() {
        a if a >= 1000.0 => format!("{x:.0}"),
        a if a >= 10.0 => format!("{x:.1}"),
        _ => format!("{x:.3}"),
    }
}

/// Measures.
pub fn run(options: &Options) -> Result<()> {
    match &options.more {
        Some(More::Grid(options)) => return grid::run(options),
        Some(More::Threads(options)) => return threads::run(options),
        Some(More::Processes(options)) => return processes::run(options),
        Some(More::Memory(options)) => return memory::run(options),
        None => {}
    }
    build::all(true)?;
    let dir = tempfile::Builder::new().prefix("atoll-bench-").tempdir()?;
    for which in &options.which {
        match which {
            Which::Entry => entry(options, dir.path())?,
            Which::Files => files(options, dir.path())?,
            Which::Tree => tree(options)?,
            Which::Service => service(options)?,
            Which::Startup => startup(options, dir.path())?,
            Which::Servers => servers(options, dir.path())?,
            Which::Boot => nucleus::boot(options, dir.path())?,
            Which::Nucleus => nucleus::nucleus(options, dir.path())?,
        }
    }
    Ok(())
}

/// Runs a program to its end on one side; its standard output.
pub fn output(side: Side, dir: &Path, program: &str, arguments: &[&str]) -> Result<String> {
    let arguments: Vec<String> = arguments.iter().map(|a| (*a).to_string()).collect();
    let output = command(side, dir, program, &arguments)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("starting {program}"))?;
    if !output.status.success() {
        bail!("{program} ({side:?}) failed: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Compiles `bench/NAME.c`; the program.
pub fn compile(name: &str, dir: &Path) -> Result<String> {
    need(&[("gcc", "gcc")])?;
    let program = dir.join(name);
    let source = build::top().join("bench").join(name).with_extension("c");
    build::run(Command::new("gcc").args(["-O2", "-pthread", "-o"]).arg(&program).arg(source).arg("-lm"))?;
    Ok(program.display().to_string())
}

fn files(options: &Options, dir: &Path) -> Result<()> {
    let program = compile("files", dir)?;
    let seconds = options.seconds.to_string();
    for (name, [processes, threads, which]) in [
        ("six threads, one file", ["1", "6", "same"]),
        ("six threads, a file each", ["1", "6", "own"]),
        ("three processes of two threads, one file", ["3", "2", "same"]),
        ("three processes of two threads, a file each", ["3", "2", "own"]),
    ] {
        let mut rates: [Vec<f64>; 2] = Default::default();
        for _ in 0..options.rounds {
            for (side, rates) in SIDES.into_iter().zip(&mut rates) {
                let cycles: f64 =
                    output(side, dir, &program, &[processes, threads, &seconds, which])?.trim().parse()?;
                rates.push(cycles / options.seconds);
            }
        }
        let [mut linux, mut cell] = rates;
        Row::more(format!("{name}: open, read 32 KiB, close"), "1/s", &mut linux, &mut cell)
            .print(options.json);
    }
    Ok(())
}

/// An operation, and what one costs, ns.
#[derive(Serialize)]
struct Service {
    name: String,
    plain: f64,
    ring: f64,
    ring_of_eight: f64,
    cell: f64,
}

/// On the file system that the tree is on; where io_uring is forbidden its columns are 0.
fn service(options: &Options) -> Result<()> {
    let dir = tempfile::Builder::new().prefix("service-").tempdir_in(build::top().join("target"))?;
    let program = compile("service", dir.path())?;
    let seconds = (options.seconds / 10.0).to_string();
    // By operation: of each round plain, by a ring, by one of eight, in the cell.
    let mut times: Vec<(String, [Vec<f64>; 4])> = Vec::new();
    for _ in 0..options.rounds {
        for side in SIDES {
            let text = output(side, dir.path(), &program, &[&seconds])?;
            for (n, line) in text.lines().enumerate() {
                let (name, figures) = line.split_once('\t').context("a line without figures")?;
                let figures = figures.split('\t').map(str::parse).collect::<Result<Vec<f64>, _>>()?;
                if n == times.len() {
                    times.push((name.to_owned(), Default::default()));
                }
                let into = match side {
                    Side::Linux => &mut times[n].1[..3],
                    Side::Cell => &mut times[n].1[3..],
                };
                into.iter_mut().zip(figures).for_each(|(into, figure)| into.push(figure));
            }
        }
    }
    for (name, figures) in times {
        let [plain, ring, ring_of_eight, cell] = figures.map(|mut figures| median(&mut figures));
        let row = Service { name, plain, ring, ring_of_eight, cell };
        if options.json {
            println!("{}", serde_json::to_string(&row)?);
        } else {
            println!(
                "{:32} plain {:>9}  io_uring {:>9}  of eight {:>9}  in a cell {:>9} ns",
                row.name,
                number(row.plain),
                number(row.ring),
                number(row.ring_of_eight),
                number(row.cell)
            );
        }
    }
    Ok(())
}

/// Directories of the tree, and files of each.
const TREE: [usize; 2] = [200, 15];

/// What is done with the tree of `$1/tree.tar` in `$1`: prints what, and how long it took, ns.
const TREE_STEPS: &str = r#"
set -e
cd "$1"; rm -rf work; mkdir work; cd work
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
t() { local name=$1 begun=$EPOCHREALTIME ended; shift; "$@" > /dev/null; ended=$EPOCHREALTIME; echo "$name $(( (${ended/./} - ${begun/./}) * 1000 ))"; }
t 'tar x' tar xf ../tree.tar
t 'cp -r' cp -r source copy
t 'find -newer' find . -type f -newer ../tree.tar
t 'grep -r' bash -c 'grep -r nosuchword source || :'
t 'chmod -R' chmod -R g+w copy
t 'rm -r' rm -r copy
git init -q repo; mv source repo; cd repo; git config user.email a@b; git config user.name a; git config gc.auto 0
t 'git add' git add -A
t 'git commit' git commit -qm all
t 'git status' git status
cd ..
t 'git clone' git clone -q repo clone
cd ..; rm -rf work
"#;

fn tree(options: &Options) -> Result<()> {
    need(&[("git", "git"), ("tar", "tar")])?;
    // In memory: ext4 looks for a long time for the number of a new file when many were removed lately, by whichever side.
    let dir = tempfile::Builder::new().prefix("atoll-bench-").tempdir_in("/dev/shm")?;
    let dir = dir.path();
    let program = compile("tree", dir)?;
    let work = dir.join("names");
    fs::create_dir_all(&work)?;
    let path = work.display().to_string();
    compare_times(options.rounds, options.json, str::to_string, dir, &program, &[&path])?;
    let [directories, files] = TREE;
    for d in 0..directories {
        let dir = dir.join(format!("source/{}/{d}", d % 10));
        fs::create_dir_all(&dir)?;
        for f in 0..files {
            // From a few bytes to 64 KiB, most of them short, as those of programs are.
            let len = 1usize << ((d * 7 + f * 5) % 17);
            fs::write(
                dir.join(format!("file{f}.txt")),
                format!("{d} {f} of some lines\n").repeat(len.div_ceil(20)),
            )?;
        }
    }
    build::run(Command::new("tar").arg("-cf").arg(dir.join("tree.tar")).arg("-C").arg(dir).arg("source"))?;
    fs::remove_dir_all(dir.join("source"))?;
    let place = dir.display().to_string();
    let mut table = Table::default();
    // The first round brings all into memory and does not count.
    for round in 0..=options.rounds {
        for (n, side) in SIDES.into_iter().enumerate() {
            let said = output(side, dir, "bash", &["-c", TREE_STEPS, "tree", &place])?;
            if round > 0 {
                table.add_times(n, &said, str::to_string)?;
            }
        }
    }
    table.print(options.json, |name, linux, cell| {
        linux.iter_mut().chain(cell.iter_mut()).for_each(|t| *t /= 1e6);
        Row::less(name, "ms", linux, cell)
    });
    Ok(())
}

fn entry(options: &Options, dir: &Path) -> Result<()> {
    let program = compile("calls", dir)?;
    // Between the name and the time is how often it was done.
    let name = |said: &str| said.rsplit_once(' ').map_or(said, |(name, _)| name).to_string();
    compare_times(options.rounds, options.json, name, dir, &program, &[])
}

/// Figures by their names, in the order in which they came: of Linux, and of the cell.
#[derive(Default)]
pub struct Table(Vec<(String, [Vec<f64>; 2])>);

impl Table {
    /// One more value of a side, as [`SIDES`] counts.
    pub fn add(&mut self, name: &str, side: usize, value: f64) {
        let at = self.0.iter().position(|(known, _)| known == name).unwrap_or_else(|| {
            self.0.push((name.to_string(), Default::default()));
            self.0.len() - 1
        });
        self.0[at].1[side].push(value);
    }

    /// One more time of each line that a program prints: a name, and nanoseconds. `name`: of what it says.
    pub fn add_times(&mut self, side: usize, printed: &str, name: impl Fn(&str) -> String) -> Result<()> {
        for line in printed.lines() {
            let (said, time) = line.rsplit_once(' ').context("the program prints names and times")?;
            self.add(&name(said), side, time.parse()?);
        }
        Ok(())
    }

    /// Prints them all.
    pub fn print(self, json: bool, row: fn(String, &mut [f64], &mut [f64]) -> Row) {
        for (name, [mut linux, mut cell]) in self.0 {
            row(name, &mut linux, &mut cell).print(json);
        }
    }
}

/// Runs a program on both sides in turns that prints names and the nanoseconds that each takes, a line each. `name`: of what it
/// says.
pub fn compare_times(
    rounds: usize,
    json: bool,
    name: impl Fn(&str) -> String,
    dir: &Path,
    program: &str,
    arguments: &[&str],
) -> Result<()> {
    let mut table = Table::default();
    for _ in 0..rounds {
        for (n, side) in SIDES.into_iter().enumerate() {
            table.add_times(n, &output(side, dir, program, arguments)?, &name)?;
        }
    }
    table.print(json, |name, linux, cell| Row::less(name, "ns", linux, cell));
    Ok(())
}

fn startup(options: &Options, dir: &Path) -> Result<()> {
    need(&[("python3", "python3-minimal")])?;
    let programs: [(&str, &str, &[&str]); 3] = [
        ("/bin/true", "/bin/true", &[]),
        ("python3 -c pass", "/usr/bin/python3", &["-c", "pass"]),
        ("bash -c :", "/bin/bash", &["-c", ":"]),
    ];
    for (name, program, arguments) in programs {
        let mut times = [Vec::new(), Vec::new()];
        // Many, since one takes milliseconds; and one of each that does not count.
        for round in 0..=options.rounds * 4 {
            for (n, side) in SIDES.into_iter().enumerate() {
                let begun = Instant::now();
                output(side, dir, program, arguments)?;
                if round > 0 {
                    times[n].push(begun.elapsed().as_secs_f64() * 1000.0);
                }
            }
        }
        let [mut linux, mut cell] = times;
        Row::less(format!("start and end of {name}"), "ms", &mut linux, &mut cell).print(options.json);
    }
    need(Kind::Redis.needs())?;
    let mut idle = [Vec::new(), Vec::new()];
    for (n, side) in SIDES.into_iter().enumerate() {
        let server = Server::start(Kind::Redis, side, dir, 17_400 + n as u16)?;
        std::thread::sleep(Duration::from_millis(500));
        for _ in 0..options.rounds {
            let before = server.cpu();
            let begun = Instant::now();
            std::thread::sleep(Duration::from_secs_f64(options.seconds));
            idle[n].push((server.cpu() - before) / begun.elapsed().as_secs_f64() * 100.0);
        }
    }
    let [mut linux, mut cell] = idle;
    Row::less("redis without clients", "% of core", &mut linux, &mut cell).print(options.json);
    Ok(())
}

/// Loads that are compared: name, server, requests at a time.
const LOADS: [(&str, Kind, u32); 4] = [
    ("memcached, 90 % get, 1 KiB", Kind::Memcached, 1),
    ("redis, get and set", Kind::Redis, 1),
    ("redis, pipeline of 16", Kind::Redis, 16),
    ("nginx, file of 1 KiB", Kind::Nginx { size: 1024 }, 1),
];

fn servers(options: &Options, dir: &Path) -> Result<()> {
    let mut port = 17_500;
    for (name, kind, pipeline) in LOADS {
        need(kind.needs())?;
        compare(name, kind, pipeline, options.rounds, options.seconds, dir, &mut port)?
            .iter()
            .for_each(|row| row.print(options.json));
    }
    Ok(())
}

/// Loads a server on both sides in turns.
pub fn compare(
    name: &str,
    kind: Kind,
    pipeline: u32,
    rounds: usize,
    seconds: f64,
    dir: &Path,
    port: &mut u16,
) -> Result<[Row; 3]> {
    let mut loads: [Vec<Load>; 2] = Default::default();
    let mut running = Vec::new();
    for side in SIDES {
        running.push(Server::start(kind, side, dir, *port)?);
        *port += 1;
    }
    for server in &mut running {
        // Fills caches and branch predictors; does not count.
        server.load(seconds.min(1.0), pipeline)?;
    }
    for _ in 0..rounds {
        for (server, loads) in running.iter_mut().zip(&mut loads) {
            loads.push(server.load(seconds, pipeline)?);
        }
    }
    let column = |f: fn(&Load) -> f64| loads.each_ref().map(|l| l.iter().map(f).collect::<Vec<f64>>());
    let [mut linux, mut cell] = column(|l| l.cpu);
    let cpu = Row::less(format!("{name}: CPU per 1,000"), "us", &mut linux, &mut cell);
    let [mut linux, mut cell] = column(|l| l.p99);
    let p99 = Row::less(format!("{name}: p99"), "us", &mut linux, &mut cell);
    let [mut linux, mut cell] = column(|l| l.rate);
    let rate = Row::more(format!("{name}: rate"), "1/s", &mut linux, &mut cell);
    for server in running {
        drop(server);
    }
    // What the servers wrote is not needed any more.
    for side in SIDES {
        let _ = fs::remove_dir_all(kind.directory(side, dir));
    }
    Ok([cpu, p99, rate])
}
