//! What the grid costs. The paper's metric (4.4): the part of the work that is neither a program's nor a message's. And end
//! to end: the same load on a runtime that keeps no books, in turns.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, bail};
use atoll_abi::grid::Resource;
use atoll_supervisor::books;
use serde::Serialize;

use super::cell::{Cell, Snapshot, Wanted, look_at};
use super::{Bench, shares};
use crate::build;
use crate::servers::{Kind, Load, Server, Side};
use crate::system::{Counted, median, need};

/// Servers: name, which, requests at a time, and the most that the grid is to take, percent.
const SERVERS: [(&str, Kind, u32, f64); 4] = [
    ("nginx, 32 KiB", Kind::Nginx { size: 32 << 10 }, 1, 2.0),
    ("nginx, 4 MiB", Kind::Nginx { size: 4 << 20 }, 1, 2.0),
    ("memcached, 90 % get, 1 KiB", Kind::Memcached, 1, 5.0),
    ("redis, get and set", Kind::Redis, 1, 5.0),
];

/// They and the batches.
pub const LOADS: usize = SERVERS.len() + 2;

/// Of SQLite: a table filled, indexed, asked and emptied.
const SQL: &str = "CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, v TEXT);
BEGIN;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60000)
    INSERT INTO t SELECT i, i * 7919 % 60000, printf('%064d', i) FROM n;
COMMIT;
CREATE INDEX by_k ON t(k);
SELECT count(*), sum(length(v)) FROM t WHERE k BETWEEN 1000 AND 50000;
SELECT sum(a.id) FROM t a JOIN t b ON a.k = b.id WHERE b.k % 10 = 3;
UPDATE t SET v = v || 'x' WHERE k % 3 = 0;
DELETE FROM t;
DROP TABLE t;
";

/// Of Python: texts, dictionaries, sorting, files.
const PYTHON: &str = "import json, os, random, re, zlib
random.seed(1)
words = [''.join(random.choices('abcdefgh', k=6)) for _ in range(20000)]
count = {}
for w in words * 4: count[w] = count.get(w, 0) + 1
text = json.dumps(sorted(count.items(), key=lambda i: (-i[1], i[0])))
for n in range(20):
    with open(f'batch-{n}', 'w') as f: f.write(text[:8192])
    with open(f'batch-{n}') as f: assert len(f.read()) == 8192
    os.remove(f'batch-{n}')
assert len(re.findall('[abc]+d', text)) and len(zlib.compress(text.encode())) and json.loads(text)
";

/// What a run has used stays in an activity when it has ended.
const BATCH: &str = "[[activity]]\nname = \"batch\"\nmatch = [{ program = \"*\" }]\n";

/// One load on both runtimes.
#[derive(Serialize)]
struct Row {
    name: String,
    /// The grid's part of the work by the books, percent.
    overhead: f64,
    /// What of that is the cell's: seeing that there is nothing to do, and on a host all that going to sleep and waking up
    /// takes there. The rest is of measuring and switching.
    asleep: f64,
    /// The most that it is to be.
    goal: f64,
    /// Requests or runs a second with books.
    rate: f64,
    /// Of that without books, percent: the medians of each start.
    rate_ratio: Ratio,
    /// Processor time of a request or run with books, us.
    cpu: f64,
    /// Of that without books, percent: the medians of each start.
    cpu_ratio: Ratio,
    /// The same of the fastest turn of each start, of ten or more of the one of which a tenth are faster. What a machine that is shared does
    /// to a program makes it slower, never faster.
    least_ratio: Ratio,
    /// What the two are for another cell with books, percent of the first one's: how much cells differ that do the same.
    control_ratio: Ratio,
    control_least_ratio: Ratio,
}

/// A ratio, percent, of as many as there were starts.
#[derive(Serialize)]
pub struct Ratio {
    median: f64,
    /// Between which the median of all starts that there could be is, with a confidence of 95 %.
    interval: (f64, f64),
}

impl Ratio {
    pub fn of(mut starts: Vec<f64>) -> Ratio {
        let median = median(&mut starts);
        let (from, to) = around_median(starts.len());
        Ratio { median, interval: (starts[from], starts[to]) }
    }

    /// The median, and in parentheses between which it is.
    pub fn text(&self) -> String {
        format!("{:.1} ({:.1} to {:.1})", self.median, self.interval.0, self.interval.1)
    }
}

#[derive(Serialize)]
struct Rows {
    rounds: usize,
    seconds: u32,
    starts: usize,
    rows: Vec<Row>,
}

/// What is loaded: a server or a batch.
pub trait Loaded {
    /// A turn: a server's takes so many seconds, a batch's is one run.
    fn load(&mut self, seconds: f64) -> Result<Load>;
    fn look(&self) -> Result<Snapshot>;
}

struct Serving(Server, u32);

impl Loaded for Serving {
    fn load(&mut self, seconds: f64) -> Result<Load> {
        self.0.load(seconds, self.1)
    }

    fn look(&self) -> Result<Snapshot> {
        look_at(self.0.pid())
    }
}

struct Batch(Cell);

impl Loaded for Batch {
    fn load(&mut self, _: f64) -> Result<Load> {
        let (begun, before) = (Instant::now(), self.0.cpu());
        self.0.say("go")?;
        // What the program itself prints comes before.
        while self.0.hear()? != "done" {}
        // Of a thousand.
        let cpu = (self.0.cpu() - before) * 1e9;
        Ok(Load { rate: 1.0 / begun.elapsed().as_secs_f64(), p99: 0.0, cpu })
    }

    fn look(&self) -> Result<Snapshot> {
        self.0.look()
    }
}

/// How often the cells are started anew within a load's rounds: what a start happens to give a cell, where its memory lies and on which
/// processors what its threads meet, lasts as long as the cell does, and would be taken for the grid's. Each order comes as often as any
/// other: who starts first gets the better processor.
const STARTS: usize = 2 * ORDERS.len();

/// In which orders cells start and take turns.
const ORDERS: [[usize; CELLS.len()]; 6] = [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1], [2, 0, 1], [1, 0, 2]];

/// The cells that a load takes turns on: which runtime each has.
const CELLS: [Books; 3] = [Books::Kept, Books::None, Books::Kept];

#[derive(Clone, Copy, PartialEq)]
pub enum Books {
    Kept,
    None,
}

/// Starts a cell that is loaded.
pub type Start<'a> = dyn FnMut(Books) -> Result<Box<dyn Loaded>> + 'a;

/// What is built for the runtime without books.
fn without_books() -> PathBuf {
    build::top().join("target/without-books")
}

/// Where that runtime is, once it is built.
pub fn runtime_without_books() -> PathBuf {
    without_books().join("release/atoll-runtime")
}

/// Builds it.
pub fn build_without_books() -> Result<()> {
    let mut command = build::cargo();
    command.args(["build", "--release", "--package", "atoll-cell", "--features", "without-books"]);
    build::run(command.arg("--target-dir").arg(without_books()))
}

/// What batches need: programs, with their packages.
const NEEDS: [(&str, &str); 2] = [("sqlite3", "sqlite3"), ("/usr/bin/python3", "python3-minimal")];

/// The same of all loads.
pub fn needs() -> Vec<(&'static str, &'static str)> {
    let mut all: Vec<_> =
        SERVERS.iter().flat_map(|(_, kind, ..)| kind.needs()).chain(&NEEDS).copied().collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// For each load: does something with its name, the most that the grid is to take, and what starts a cell with it.
pub fn each_load(bench: &Bench, mut todo: impl FnMut(&str, f64, &mut Start) -> Result<()>) -> Result<()> {
    let runtime = runtime_without_books();
    let runtime = |books| (books == Books::None).then_some(&*runtime);
    let mut port = 17_700;
    for (name, kind, pipeline, goal) in SERVERS {
        need(kind.needs())?;
        let mut start = |books| -> Result<Box<dyn Loaded>> {
            port += 1;
            let dir = bench.dir.join(port.to_string());
            let environment: Vec<(&str, &Path)> =
                runtime(books).iter().map(|r| ("ATOLL_RUNTIME", *r)).collect();
            let server = Server::start_with(kind, Side::Cell, &dir, port, &environment)?;
            Ok(Box::new(Serving(server, pipeline)))
        };
        todo(name, goal, &mut start)?;
    }
    std::fs::write(bench.dir.join("batch.sql"), SQL)?;
    let batches: [(&str, &[&str]); 2] = [
        ("SQLite batch", &["sqlite3", "batch.db", ".read batch.sql"]),
        ("Python batch", &["/usr/bin/python3", "-c", PYTHON]),
    ];
    // A batch's time is that of processes that end.
    let counts = Counted::new("asked").is_some();
    if counts {
        need(&NEEDS)?;
    } else {
        eprintln!(
            "without SQLite and Python: their time is counted in a control group (cgroups(7)), which only root can make here"
        );
    }
    let mut started = 0;
    for (name, words) in batches.into_iter().filter(|_| counts) {
        let words = [&[&bench.loads[..], "rounds"], words].concat();
        let mut start = |books| -> Result<Box<dyn Loaded>> {
            started += 1;
            let name = format!("batch-{started}");
            let wanted =
                Wanted { name: &name, cores: 1, memory: "1G", grid: Some(BATCH), runtime: runtime(books) };
            Ok(Box::new(Batch(Cell::start(bench, &wanted, &words)?)))
        };
        todo(name, 2.0, &mut start)?;
    }
    Ok(())
}

pub fn measure(bench: &Bench) -> Result<()> {
    build_without_books()?;
    let mut rows = Vec::new();
    if !bench.options.json {
        println!(
            "overhead, {} rounds of {} s in turns, {} starts of each cell; ratios in percent, with what they are between with a confidence \
             of 95 %:\nto a runtime without books (with in parentheses how much two cells with books differ), of medians and of the turns that took least",
            each_start(bench) * starts(bench),
            bench.options.seconds,
            starts(bench)
        );
        println!(
            "  {:28}{:>12}{:>10}{:>8}{:>12}{:>24}{:>12}{:>24}{:>24}{:>24}{:>24}",
            "",
            "overhead %",
            "asleep %",
            "goal",
            "1/s",
            "ratio",
            "CPU us",
            "ratio",
            "least",
            "control",
            "control, least"
        );
    }
    let mut done = |row: Row| {
        if !bench.options.json {
            println!("{}", row.line());
        }
        rows.push(row);
    };
    each_load(bench, |name, goal, start| {
        done(compare(bench, name, goal, start)?);
        Ok(())
    })?;
    let (rounds, seconds) = (each_start(bench) * starts(bench), bench.options.seconds);
    let rows = Rows { rounds, seconds, starts: starts(bench), rows };
    // As a table, its lines have been printed as they came.
    if bench.options.json { bench.show("overhead", &rows, "") } else { Ok(()) }
}

impl Row {
    fn line(&self) -> String {
        format!(
            "  {:28}{:>12.2}{:>10.2}{:>8.0}{:>12.1}{:>24}{:>12.1}{:>24}{:>24}{:>24}{:>24}",
            self.name,
            self.overhead,
            self.asleep,
            self.goal,
            self.rate,
            self.rate_ratio.text(),
            self.cpu,
            self.cpu_ratio.text(),
            self.least_ratio.text(),
            self.control_ratio.text(),
            self.control_least_ratio.text()
        )
    }
}

/// Between which of so many values, sorted, their source's median is with a confidence of at least 95 % (all of them, of fewer than 6):
/// below it are as many as heads in so many throws of a coin.
fn around_median(count: usize) -> (usize, usize) {
    let (mut below, mut one) = (0.0, 0.5f64.powi(count as i32));
    for at in 0..count / 2 {
        below += one;
        if below > 0.025 {
            return (at.saturating_sub(1), count - at.max(1));
        }
        one *= (count - at) as f64 / (at + 1) as f64;
    }
    (0, count.saturating_sub(1))
}

/// Fails if a cell with books keeps none, or one without some.
pub fn keeps(cell: &dyn Loaded, books: Books) -> Result<()> {
    let kept = cell.look()?.activities.iter().any(|a| a.resources.of(Resource::Thread).ns != 0);
    if kept != (books == Books::Kept) {
        bail!("the runtime with books keeps none, or the one without some");
    }
    Ok(())
}

/// Overhead that belongs to no activity but the cell, ns.
fn cells_overhead(snapshot: &Snapshot) -> i64 {
    let cell = snapshot.activities.iter().filter(|a| a.kind == books::Kind::Cell);
    cell.map(|a| a.resources.of(Resource::Overhead).ns).sum()
}

/// How often the cells are started.
fn starts(bench: &Bench) -> usize {
    bench.options.rounds.clamp(1, STARTS)
}

/// Rounds of each start.
fn each_start(bench: &Bench) -> usize {
    bench.options.rounds.div_ceil(starts(bench)).max(1)
}

/// The least of some values; of ten or more the one than which a tenth are less.
fn least(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 10]
}

/// Loads cells in turns.
fn compare(bench: &Bench, name: &str, goal: f64, start: &mut Start) -> Result<Row> {
    let seconds = f64::from(bench.options.seconds);
    let (mut overhead, mut asleep, mut worked) = (0.0, 0.0, 0.0);
    let (mut rates, mut cpus, mut series) = (Vec::new(), Vec::new(), Vec::new());
    let [mut rate_ratio, mut cpu_ratio, mut least_ratio, mut control_ratio, mut control_least] =
        [const { Vec::new() }; 5];
    let each = each_start(bench);
    for one in 0..starts(bench) {
        series.clear();
        let mut cells = Vec::new();
        for which in ORDERS[one % ORDERS.len()] {
            let mut cell = start(CELLS[which])?;
            // Fills caches and branch predictors; does not count.
            cell.load(1.0)?;
            keeps(&*cell, CELLS[which])?;
            cells.push((which, cell));
        }
        cells.sort_by_key(|(which, _)| *which);
        let mut loads: [Vec<Load>; CELLS.len()] = [const { Vec::new() }; CELLS.len()];
        let (begun, lasts) = (Instant::now(), seconds * (each * CELLS.len()) as f64);
        // A batch's turns are shorter.
        for round in 0.. {
            if round >= each && begun.elapsed().as_secs_f64() >= lasts * 0.9 {
                break;
            }
            // Who is first changes, too.
            for which in ORDERS[(one + round) % ORDERS.len()] {
                let cell = &mut cells[which].1;
                let before = if which == 0 { Some(cell.look()?) } else { None };
                loads[which].push(cell.load(seconds)?);
                let Some(before) = before else { continue };
                let after = cell.look()?;
                let uses = shares::total(&after).since(&shares::total(&before));
                overhead += uses.of(Resource::Overhead).ns as f64;
                asleep += (cells_overhead(&after) - cells_overhead(&before)) as f64;
                worked += shares::worked(&uses);
                series.extend([before, after]);
            }
        }
        let of = |which: usize, f: fn(&Load) -> f64| -> Vec<f64> { loads[which].iter().map(f).collect() };
        let ratio = |a: usize, b: usize, f: fn(&Load) -> f64, middle: fn(&mut [f64]) -> f64| {
            middle(&mut of(a, f)) * 100.0 / middle(&mut of(b, f))
        };
        rate_ratio.push(ratio(0, 1, |l| l.rate, median));
        cpu_ratio.push(ratio(0, 1, |l| l.cpu, median));
        least_ratio.push(ratio(0, 1, |l| l.cpu, least));
        control_ratio.push(ratio(2, 0, |l| l.cpu, median));
        control_least.push(ratio(2, 0, |l| l.cpu, least));
        rates.extend(of(0, |l| l.rate));
        cpus.extend(of(0, |l| l.cpu));
    }
    let file: String = name.chars().filter(|c| c.is_ascii_alphanumeric()).collect();
    bench.draw(&format!("overhead-{file}"), &series, &["time"])?;
    Ok(Row {
        name: name.into(),
        overhead: overhead * 100.0 / worked,
        asleep: asleep * 100.0 / worked,
        goal,
        rate: median(&mut rates),
        rate_ratio: Ratio::of(rate_ratio),
        // A load's is for a thousand.
        cpu: median(&mut cpus) / 1000.0,
        cpu_ratio: Ratio::of(cpu_ratio),
        least_ratio: Ratio::of(least_ratio),
        control_ratio: Ratio::of(control_ratio),
        control_least_ratio: Ratio::of(control_least),
    })
}
