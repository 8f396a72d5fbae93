//! What the grid's accounting costs, in instructions: the loads of `overhead`, in cells on a Linux in QEMU whose clocks go on by the
//! instructions that its processor executes. What a shared machine does to times, and where a start happens to put memory and threads,
//! which there is more than what is looked for, changes nothing here; caches and branch predictors don't count either.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::Bench;
use super::overhead::{
    Books, LOADS, Ratio, build_without_books, each_load, keeps, needs, runtime_without_books,
};
use crate::build::{self, atoll};
use crate::guests::{Guest, INSTRUCTIONS_PER_US, Workshop};
use crate::system::{find, median, need};

/// How long the machine may say nothing: two cells start and are loaded meanwhile, at a tenth of a processor's speed.
const PATIENCE: Duration = Duration::from_secs(300);
/// Programs that the loads use beside their servers, with their packages: for groups of processes, and to end them.
const BESIDE: [(&str, &str); 2] = [("/bin/sh", "dash"), ("kill", "procps")];
/// What a round in the machine says, and that it has done all.
const ROUND: &str = "bench: round ";
const DONE: &str = "bench: done";

/// One cell of each runtime, loaded one after the other.
#[derive(Serialize, Deserialize)]
struct Round {
    name: String,
    /// The most that books are to take, percent.
    goal: f64,
    /// Instructions of a request or run, those of the kernel below and of the supervisor included: with books and without.
    kept: f64,
    none: f64,
}

/// What came of a load.
#[derive(Serialize)]
struct Row {
    name: String,
    goal: f64,
    /// Instructions of a request or run with books, and without.
    kept: f64,
    none: f64,
    /// The first of the second, percent.
    ratio: Ratio,
}

#[derive(Serialize)]
struct Rows {
    rounds: usize,
    /// The kernel on which the cells are.
    kernel: String,
    rows: Vec<Row>,
}

/// Boots the machine and shows what it says.
pub fn measure(bench: &Bench) -> Result<()> {
    build_without_books()?;
    let wanted = [needs(), BESIDE.to_vec()].concat();
    need(&wanted)?;
    let workshop = Workshop::new(&bench.dir)?;
    let mut programs = vec![std::env::current_exe()?, atoll(), bench.loads.clone().into()];
    for (name, _) in wanted {
        programs.push(find(name).with_context(|| format!("there is no program {name}"))?);
    }
    let runtimes = [build::top().join("target/release/atoll-runtime"), runtime_without_books()];
    let files: Vec<PathBuf> = runtimes.into_iter().chain([pythons_library()?]).collect();
    let rounds = bench.options.rounds.max(1);
    let image = workshop.with_cells(
        "instructions",
        &programs,
        &["inside", &rounds.to_string(), &bench.loads],
        &files,
    )?;
    let kernel = workshop.kernel_name.clone();
    if !bench.options.json {
        println!(
            "instructions, {rounds} rounds: of a request or run, its kernel's work included, in a cell with books and one without on\n\
             {kernel} in QEMU; the ratio in percent, with what it is between with a confidence of 95 %,\n\
             of fewer than 6 rounds with the least and the most"
        );
        println!("  {:28}{:>8}{:>16}{:>16}{:>24}", "", "goal", "with books", "without", "ratio");
    }
    let mut guest = Guest::start(&image, 0, None)?;
    let (mut rows, mut of_one): (Vec<Row>, Vec<Round>) = (Vec::new(), Vec::new());
    loop {
        let Some(line) = guest.next(PATIENCE)? else { bail!("the machine has ended:\n{}", guest.text()) };
        let line = line.to_string();
        if line == DONE {
            break;
        }
        if let Some(round) = line.strip_prefix(ROUND) {
            let round: Round = serde_json::from_str(round)
                .with_context(|| format!("the machine says {line:?}:\n{}", guest.text()))?;
            let ratio = round.kept * 100.0 / round.none;
            eprintln!("{}, round {} of {rounds}: {ratio:.1}", round.name, of_one.len() + 1);
            if of_one.first().is_some_and(|first| first.name != round.name) {
                bail!("a round of {} has not arrived:\n{}", of_one[0].name, guest.text());
            }
            of_one.push(round);
        }
        if of_one.len() == rounds {
            let row = Row::of(&of_one);
            of_one.clear();
            if !bench.options.json {
                println!("{}", row.line());
            }
            rows.push(row);
        }
    }
    if rows.len() != LOADS || !of_one.is_empty() {
        bail!("the machine has not done all of its work:\n{}", guest.text());
    }
    // As a table, its lines have been printed as they came.
    if bench.options.json { bench.show("instructions", &Rows { rounds, kernel, rows }, "") } else { Ok(()) }
}

/// Where Python's own modules are.
fn pythons_library() -> Result<PathBuf> {
    let ask = "import sysconfig; print(sysconfig.get_path('stdlib'))";
    let output = Command::new("/usr/bin/python3").args(["-c", ask]).output().context("asking Python")?;
    let path = String::from_utf8(output.stdout)?;
    if !output.status.success() {
        bail!("Python does not say where its library is: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(path.trim().into())
}

/// In the machine: loads cells in turns.
pub fn inside(bench: &Bench) -> Result<()> {
    each_load(bench, |name, goal, start| {
        for round in 0..bench.options.rounds {
            let (mut kept, mut none) = (0.0, 0.0);
            let mut order = [Books::Kept, Books::None];
            order.rotate_left(round % 2);
            for books in order {
                let mut cell = start(books)?;
                // What is used for the first time costs more, once.
                cell.load(1.0)?;
                keeps(&*cell, books)?;
                // A load's time is that of a thousand, us.
                let each = cell.load(1.0)?.cpu / 1000.0 * INSTRUCTIONS_PER_US;
                *(if books == Books::Kept { &mut kept } else { &mut none }) = each;
            }
            let round = Round { name: name.into(), goal, kept, none };
            println!("{ROUND}{}", serde_json::to_string(&round)?);
        }
        Ok(())
    })?;
    println!("{DONE}");
    Ok(())
}

impl Row {
    fn of(rounds: &[Round]) -> Row {
        let middle = |f: fn(&Round) -> f64| median(&mut rounds.iter().map(f).collect::<Vec<_>>());
        Row {
            name: rounds[0].name.clone(),
            goal: rounds[0].goal,
            kept: middle(|r| r.kept),
            none: middle(|r| r.none),
            ratio: Ratio::of(rounds.iter().map(|r| r.kept * 100.0 / r.none).collect()),
        }
    }

    fn line(&self) -> String {
        format!(
            "  {:28}{:>8.0}{:>16.0}{:>16.0}{:>24}",
            self.name,
            self.goal,
            self.kept,
            self.none,
            self.ratio.text()
        )
    }
}
