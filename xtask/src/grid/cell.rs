//! A cell with a configured grid, and its books.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use atoll_supervisor::inspect::{Answer, Request, ask};
use atoll_supervisor::registry;

pub use atoll_supervisor::books::Snapshot;

use super::Bench;
use crate::build::atoll;
use crate::system::{Counted, cpu_seconds_with_ended, find};

/// How long a cell may take to start.
const START: Duration = Duration::from_secs(30);

/// What a cell is to be like.
pub struct Wanted<'a> {
    /// Name of its files.
    pub name: &'a str,
    pub cores: usize,
    pub memory: &'a str,
    /// Its grid's configuration.
    pub grid: Option<&'a str>,
    /// A runtime that is not the usual one.
    pub runtime: Option<&'a Path>,
}

/// A cell that runs. It is ended when this is dropped.
pub struct Cell {
    child: Child,
    socket: PathBuf,
    log: PathBuf,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    counted: Option<Counted>,
}

impl Cell {
    /// Starts a program in one. The benchmark's directory is there, writable.
    pub fn start(bench: &Bench, wanted: &Wanted, program: &[&str]) -> Result<Cell> {
        let dir = bench.dir.display();
        let mut command = Command::new(atoll());
        command.args(["run", "--cores", &wanted.cores.to_string(), "--memory", wanted.memory]);
        command.args(["--volume", &format!("{dir}:{dir}"), "--workdir", &dir.to_string()]);
        if let Some(grid) = wanted.grid {
            let file = bench.dir.join(format!("{}.toml", wanted.name));
            fs::write(&file, grid)?;
            command.arg("--grid").arg(file);
        }
        if let Some(runtime) = wanted.runtime {
            command.env("ATOLL_RUNTIME", runtime);
        }
        // Debian's servers lie in directories that an ordinary user's path leaves out.
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
        let first = find(program[0]).with_context(|| format!("there is no {}", program[0]))?;
        let log = bench.dir.join(format!("{}.log", wanted.name));
        command.arg("--").arg(first).args(&program[1..]);
        let counted = Counted::new(wanted.name);
        if let Some(counted) = &counted {
            command = counted.of(&command);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(fs::File::create(&log)?);
        let mut child = command.spawn().context("starting a cell")?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (Some(input), Some(output)) = (input, output) else { bail!("the cell has no streams") };
        let mut cell =
            Cell { child, socket: PathBuf::new(), log, input, output: BufReader::new(output), counted };
        cell.socket = cell.wait_for("be listed", |cell| cell.find())?;
        Ok(cell)
    }

    /// Its socket, if it is there yet.
    fn find(&self) -> Result<Option<PathBuf>> {
        let cells = registry::list(&registry::directory()?)?;
        Ok(cells.into_iter().find(|c| c.pid == self.child.id()).map(|c| c.socket))
    }

    /// Waits until there is something.
    pub fn wait_for<T>(
        &mut self,
        what: &str,
        mut look: impl FnMut(&mut Cell) -> Result<Option<T>>,
    ) -> Result<T> {
        let begun = Instant::now();
        loop {
            if let Some(it) = look(self)? {
                return Ok(it);
            }
            let ended = self.child.try_wait()?;
            if ended.is_some() || begun.elapsed() > START {
                let said = fs::read_to_string(&self.log).unwrap_or_default();
                bail!("the cell did not {what} ({ended:?}):\n{said}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Its books, with what the host says of its time.
    pub fn look(&self) -> Result<Snapshot> {
        look(&self.socket)
    }

    /// Snapshots, one a second: one more than seconds.
    pub fn watch(&self, seconds: u32) -> Result<Vec<Snapshot>> {
        let mut series = vec![self.look()?];
        let begun = Instant::now();
        for n in 1..=seconds {
            let next = begun + Duration::from_secs(u64::from(n));
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            series.push(self.look()?);
        }
        Ok(series)
    }

    /// Processor time that it has used, with its supervisor and what has ended, seconds; to some hundredths of a second where the host has
    /// no groups for us to count it.
    pub fn cpu(&self) -> f64 {
        let counted = self.counted.as_ref().and_then(Counted::seconds);
        counted.unwrap_or_else(|| cpu_seconds_with_ended(self.child.id()))
    }

    /// Writes a line to its standard input.
    pub fn say(&mut self, line: &str) -> Result<()> {
        writeln!(self.input, "{line}")?;
        Ok(self.input.flush()?)
    }

    /// Reads a line of its standard output.
    pub fn hear(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            bail!("the cell has ended:\n{}", fs::read_to_string(&self.log).unwrap_or_default());
        }
        Ok(line.trim_end().to_string())
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        // The cell goes with its supervisor.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The books of the cell of a supervisor.
pub fn look_at(pid: u32) -> Result<Snapshot> {
    let cells = registry::list(&registry::directory()?)?;
    let cell = cells.into_iter().find(|c| c.pid == pid).context("the cell is not listed")?;
    look(&cell.socket)
}

fn look(socket: &Path) -> Result<Snapshot> {
    match ask(socket, &Request::Stat { cores: true, host: true })? {
        Some(Answer::Snapshot(snapshot)) => Ok(snapshot),
        _ => bail!("the cell shows no books"),
    }
}
