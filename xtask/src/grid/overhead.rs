//! What the grid costs. The paper's metric (4.4): the part of the work that is neither a program's nor a message's. And end
//! to end: the same load on a runtime that keeps no books, in turns.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use atoll_abi::grid::Resource;
use atoll_supervisor::books;
use serde::Serialize;

use super::cell::{Cell, Snapshot, Wanted, look_at};
use super::{Bench, shares};
use crate::build;
use crate::servers::{Kind, Load, Server, Side};
use crate::system::{median, need};

/// Servers: name, which, requests at a time, and the most that the grid is to take, percent.
const SERVERS: [(&str, Kind, u32, f64); 4] = [
    ("nginx, 32 KiB", Kind::Nginx { size: 32 << 10 }, 1, 2.0),
    ("nginx, 4 MiB", Kind::Nginx { size: 4 << 20 }, 1, 2.0),
    ("memcached, 90 % get, 1 KiB", Kind::Memcached, 1, 5.0),
    ("redis, get and set", Kind::Redis, 1, 5.0),
];

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
    /// Of that without books, percent: the median of the rounds' ratios.
    rate_ratio: f64,
    /// Processor time of a request or run with books, us.
    cpu: f64,
    /// Of that without books, percent: the median of the rounds' ratios.
    cpu_ratio: f64,
    /// Between which the median of starts is in the load as such, with a confidence of 95 %: by the medians of the rounds of each.
    cpu_interval: (f64, f64),
    /// The least and the greatest of those ratios.
    cpu_ratios: (f64, f64),
}

#[derive(Serialize)]
struct Rows {
    rounds: usize,
    seconds: u32,
    rows: Vec<Row>,
}

/// What is loaded: a server or a batch.
trait Loaded {
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
    fn load(&mut self, seconds: f64) -> Result<Load> {
        let (begun, before) = (Instant::now(), self.0.cpu());
        let mut runs = 0.0;
        while begun.elapsed().as_secs_f64() < seconds {
            self.0.say("go")?;
            // What the program itself prints comes before.
            while self.0.hear()? != "done" {}
            runs += 1.0;
        }
        let cpu = (self.0.cpu() - before) * 1e6 / (runs / 1000.0);
        Ok(Load { rate: runs / begun.elapsed().as_secs_f64(), p99: 0.0, cpu })
    }

    fn look(&self) -> Result<Snapshot> {
        self.0.look()
    }
}

/// How often a pair is started anew within a load's rounds: what a start happens to give a cell, where its memory lies and on which
/// processors what its threads meet, lasts as long as the cell does, and would be taken for the grid's.
const STARTS: usize = 7;

/// A load on the runtime with books, and on the one without.
type Pair = [Box<dyn Loaded>; 2];

/// Builds the runtime without books. Value: where it is.
fn without_books() -> Result<PathBuf> {
    let dir = build::top().join("target/without-books");
    let mut command = build::cargo();
    command.args(["build", "--release", "--package", "atoll-cell", "--features", "without-books"]);
    build::run(command.arg("--target-dir").arg(&dir))?;
    Ok(dir.join("release/atoll-runtime"))
}

pub fn measure(bench: &Bench) -> Result<()> {
    let runtime = without_books()?;
    let mut rows = Vec::new();
    if !bench.options.json {
        println!(
            "overhead, {} rounds of {} s in turns, {} starts of each cell; ratios to a runtime without books",
            bench.options.rounds,
            bench.options.seconds,
            bench.options.rounds.div_ceil(each_start(bench))
        );
        println!(
            "  {:28}{:>12}{:>10}{:>8}{:>12}{:>10}{:>12}{:>10}{:>18}{:>18}",
            "",
            "overhead %",
            "asleep %",
            "goal",
            "1/s",
            "ratio %",
            "CPU us",
            "ratio %",
            "95 % confident",
            "least, greatest"
        );
    }
    let mut done = |row: Row| {
        if !bench.options.json {
            println!("{}", row.line());
        }
        rows.push(row);
    };
    let mut port = 17_700;
    for (name, kind, pipeline, goal) in SERVERS {
        need(kind.needs())?;
        let mut start = |runtime: Option<&Path>| -> Result<Box<dyn Loaded>> {
            port += 1;
            let dir = bench.dir.join(port.to_string());
            let environment: Vec<(&str, &Path)> = runtime.iter().map(|r| ("ATOLL_RUNTIME", *r)).collect();
            let server = Server::start_with(kind, Side::Cell, &dir, port, &environment)?;
            Ok(Box::new(Serving(server, pipeline)))
        };
        done(compare(bench, name, goal, || Ok([start(None)?, start(Some(&runtime))?]))?);
    }
    need(&[("sqlite3", "sqlite3"), ("/usr/bin/python3", "python3-minimal")])?;
    std::fs::write(bench.dir.join("batch.sql"), SQL)?;
    let batches: [(&str, &[&str]); 2] = [
        ("SQLite batch", &["sqlite3", "batch.db", ".read batch.sql"]),
        ("Python batch", &["/usr/bin/python3", "-c", PYTHON]),
    ];
    for (name, words) in batches {
        let words = [&[&bench.loads[..], "rounds"], words].concat();
        let start = |name: &str, runtime: Option<&Path>| -> Result<Box<dyn Loaded>> {
            let wanted = Wanted { name, cores: 1, memory: "1G", grid: Some(BATCH), runtime };
            Ok(Box::new(Batch(Cell::start(bench, &wanted, &words)?)))
        };
        let pair = || Ok([start("batch", None)?, start("batch-without", Some(&runtime))?]);
        done(compare(bench, name, 2.0, pair)?);
    }
    let rows = Rows { rounds: bench.options.rounds, seconds: bench.options.seconds, rows };
    // As a table, its lines have been printed as they came.
    if bench.options.json { bench.show("overhead", &rows, "") } else { Ok(()) }
}

impl Row {
    fn line(&self) -> String {
        let two = |(least, greatest): (f64, f64)| format!("{least:.1}, {greatest:.1}");
        format!(
            "  {:28}{:>12.2}{:>10.2}{:>8.0}{:>12.1}{:>10.1}{:>12.1}{:>10.1}{:>18}{:>18}",
            self.name,
            self.overhead,
            self.asleep,
            self.goal,
            self.rate,
            self.rate_ratio,
            self.cpu,
            self.cpu_ratio,
            two(self.cpu_interval),
            two(self.cpu_ratios)
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

/// Overhead that belongs to no activity but the cell, ns.
fn cells_overhead(snapshot: &Snapshot) -> i64 {
    let cell = snapshot.activities.iter().filter(|a| a.kind == books::Kind::Cell);
    cell.map(|a| a.resources.of(Resource::Overhead).ns).sum()
}

/// Rounds of each start.
fn each_start(bench: &Bench) -> usize {
    bench.options.rounds.div_ceil(STARTS).max(1)
}

/// Loads both in turns: the one with books and the one without. `start`: both of them.
fn compare(bench: &Bench, name: &str, goal: f64, mut start: impl FnMut() -> Result<Pair>) -> Result<Row> {
    let seconds = f64::from(bench.options.seconds);
    let (mut loads, mut series) = ([Vec::new(), Vec::new()], Vec::new());
    let (mut overhead, mut asleep, mut worked) = (0.0, 0.0, 0.0);
    let mut running: Option<Pair> = None;
    let each = each_start(bench);
    for round in 0..bench.options.rounds {
        if round % each == 0 {
            // Those before end before others begin.
            drop(running.take());
            series.clear();
            let mut pair = start()?;
            for one in &mut pair {
                // Fills caches and branch predictors; does not count.
                one.load(1.0)?;
            }
            let kept = pair[1].look()?.activities.iter().any(|a| a.resources.of(Resource::Thread).ns != 0);
            if kept {
                bail!("the runtime without books keeps some");
            }
            running = Some(pair);
        }
        let pair = running.as_mut().context("a pair was started in the first round")?;
        // Who is first changes, too.
        for turn in 0..2 {
            let which = (round + turn) % 2;
            if which == 1 {
                loads[1].push(pair[1].load(seconds)?);
                continue;
            }
            let before = pair[0].look()?;
            loads[0].push(pair[0].load(seconds)?);
            let after = pair[0].look()?;
            let uses = shares::total(&after).since(&shares::total(&before));
            overhead += uses.of(Resource::Overhead).ns as f64;
            asleep += (cells_overhead(&after) - cells_overhead(&before)) as f64;
            worked += shares::worked(&uses);
            series.extend([before, after]);
        }
    }
    let file: String = name.chars().filter(|c| c.is_ascii_alphanumeric()).collect();
    bench.draw(&format!("overhead-{file}"), &series, &["time"])?;
    let ratios = |f: fn(&Load) -> f64| -> Vec<f64> {
        loads[0].iter().zip(&loads[1]).map(|(with, without)| f(with) * 100.0 / f(without)).collect()
    };
    let middle = |f: fn(&Load) -> f64| median(&mut loads[0].iter().map(f).collect::<Vec<f64>>());
    let mut cpu_ratios = ratios(|l| l.cpu);
    let cpu_ratio = median(&mut cpu_ratios);
    let least = *cpu_ratios.first().context("there were no rounds")?;
    let greatest = *cpu_ratios.last().context("there were no rounds")?;
    let mut starts: Vec<f64> = ratios(|l| l.cpu).chunks_mut(each).map(median).collect();
    starts.sort_by(f64::total_cmp);
    let (from, to) = around_median(starts.len());
    Ok(Row {
        name: name.into(),
        overhead: overhead * 100.0 / worked,
        asleep: asleep * 100.0 / worked,
        goal,
        rate: middle(|l| l.rate),
        rate_ratio: median(&mut ratios(|l| l.rate)),
        // A load's is for a thousand.
        cpu: middle(|l| l.cpu) / 1000.0,
        cpu_ratio,
        cpu_interval: (starts[from], starts[to]),
        cpu_ratios: (least, greatest),
    })
}
