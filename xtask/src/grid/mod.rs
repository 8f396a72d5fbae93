//! `cargo xtask bench grid`: the Omni-kernel paper's experiments (section 4), on cells of a host, with its figures.
//!
//! Each part sets up what it needs, prints a table, or with `--json` an object, and draws what its cells used over
//! time. What is measured comes out of the cells' books (`docs/grid.md`), and from outside where something else knows it.

mod cell;
mod cpu;
mod devices;
mod instructions;
mod message;
mod neighbour;
mod overhead;
mod shares;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::build;
use crate::system::need;

/// What of the grid to measure.
#[derive(Args)]
pub struct Options {
    /// Which parts [default: all but `instructions`]
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// One JSON object a part
    #[arg(long)]
    json: bool,
    /// Draw the figures into this directory, as SVG; the snapshots they are drawn from go there, too
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
    /// Rounds of what takes turns
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Length of one measurement or round, seconds
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// Cores of the cells of `cpu` and `neighbour`: one run each [default: of cpu 1 and 2, of neighbour 1]
    #[arg(long, value_delimiter = ',')]
    cores: Vec<usize>,
    /// What `neighbour` floods [default: each resource]
    #[arg(long, value_delimiter = ',')]
    flood: Vec<String>,
}

/// An experiment.
#[derive(Clone, Copy, ValueEnum, PartialEq, Eq)]
enum Part {
    /// Three activities that read cached files share the processors (4.1)
    Cpu,
    /// Three web servers share what a device can send (4.2)
    Network,
    /// Three readers share what a disk can give (4.3)
    Disk,
    /// One activity has a reservation, another one floods each resource in turn
    Neighbour,
    /// How much of the time is the grid's own; programs with books and without (4.4 to 4.7)
    Overhead,
    /// The instructions that programs take with books and without, in a Linux in QEMU that counts them
    Instructions,
    /// One message
    Message,
}

/// The three activities, and what each is entitled to, percent.
const TENANTS: [(&str, f64); 3] = [("gold", 50.0), ("silver", 33.0), ("bronze", 17.0)];

/// The tenants as a grid's configuration, with more behind it.
fn tenants(more: &str) -> String {
    let mut text = String::new();
    for (name, share) in TENANTS {
        text += &format!("[[activity]]\nname = \"{name}\"\nweight = {share}\n");
        text += &format!("match = [{{ environment = \"TENANT={name}\" }}]\n\n");
    }
    text + more
}

/// In the machine that `instructions` boots: loads cells, and says what came of it.
#[derive(Args)]
pub struct Inside {
    /// Rounds of what takes turns
    rounds: usize,
    /// `bench/grid.c`, built
    loads: String,
}

/// The work in that machine.
pub fn inside(options: &Inside) -> Result<()> {
    // The machine's first process has that from the kernel's command line, and hands it on.
    if std::env::var_os("groups").is_none() {
        bail!("this is for the machine that `cargo xtask bench grid instructions` boots: run that");
    }
    let dir = tempfile::Builder::new().prefix("atoll-grid-").tempdir()?;
    let all = Options {
        parts: vec![Part::Instructions],
        json: true,
        plot: None,
        rounds: options.rounds,
        seconds: 1,
        cores: Vec::new(),
        flood: Vec::new(),
    };
    // Cells see that directory.
    let loads = dir.path().join("grid");
    fs::copy(&options.loads, &loads)?;
    instructions::inside(&Bench { options: &all, dir: dir.path().into(), loads: text_of(&loads)? })
}

/// What the parts have in common.
struct Bench<'a> {
    options: &'a Options,
    /// A directory for what is needed only now.
    dir: PathBuf,
    /// `bench/grid.c`, built.
    loads: String,
}

impl Bench<'_> {
    /// What a part came to: printed.
    fn show(&self, part: &str, what: &impl Serialize, table: &str) -> Result<()> {
        if self.options.json {
            let mut object = serde_json::to_value(what)?;
            if let Some(object) = object.as_object_mut() {
                object.insert("part".into(), part.into());
            }
            println!("{object}");
        } else {
            println!("{table}");
        }
        Ok(())
    }

    /// Draws snapshots, if that was asked for.
    fn draw(&self, name: &str, series: &[cell::Snapshot], measures: &[&str]) -> Result<()> {
        let Some(to) = &self.options.plot else { return Ok(()) };
        fs::create_dir_all(to)?;
        let file = to.join(format!("{name}.json"));
        let lines =
            series.iter().map(|s| Ok(serde_json::to_string(s)? + "\n")).collect::<Result<String>>()?;
        fs::write(&file, lines)?;
        for measure in measures {
            let drawn = to.join(format!("{name}-{measure}.svg"));
            let mut command = Command::new(build::atoll());
            command.args(["stat", "--from"]).arg(&file).arg("--plot").arg(drawn).args(["--measure", measure]);
            let output = command.output()?;
            if !output.status.success() {
                bail!("drawing {name}: {}", String::from_utf8_lossy(&output.stderr).trim());
            }
        }
        Ok(())
    }
}

/// Measures.
pub fn run(options: &Options) -> Result<()> {
    build::all(true)?;
    let dir = tempfile::Builder::new().prefix("atoll-grid-").tempdir()?;
    need(&[("gcc", "gcc")])?;
    let loads = dir.path().join("grid");
    let source = build::top().join("bench/grid.c");
    build::run(Command::new("gcc").args(["-O2", "-pthread", "-o"]).arg(&loads).arg(source))?;
    let bench = Bench { options, dir: dir.path().into(), loads: text_of(&loads)? };
    // What boots a machine takes long, and needs more than others.
    let all: Vec<Part> =
        Part::value_variants().iter().copied().filter(|part| *part != Part::Instructions).collect();
    for part in if options.parts.is_empty() { &all } else { &options.parts } {
        match part {
            Part::Cpu => cpu::measure(&bench)?,
            Part::Network => devices::network(&bench)?,
            Part::Disk => devices::disk(&bench)?,
            Part::Neighbour => neighbour::measure(&bench)?,
            Part::Overhead => overhead::measure(&bench)?,
            Part::Instructions => instructions::measure(&bench)?,
            Part::Message => message::measure(&bench)?,
        }
    }
    Ok(())
}

/// A path as an argument.
fn text_of(path: &Path) -> Result<String> {
    Ok(path.to_str().with_context(|| format!("{} is no text", path.display()))?.to_string())
}
