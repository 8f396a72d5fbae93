//! `atoll resize`: more cores or memory for a live cell, or less.

use std::process::ExitCode;
use std::time::Duration;

use atoll_supervisor::inspect::{Answer, Memory, Request, ask};
use atoll_supervisor::{Error, Result, say};
use clap::{ArgGroup, Args};

use crate::list::{ENDED, fail, find, unexpected};
use crate::output;
use crate::run::parse_size;

// Options of `atoll resize`.
#[derive(Args)]
#[command(
    group = ArgGroup::new("what").required(true),
    after_help = "Programs go on meanwhile. They see the new number at once, by nproc, sched_getaffinity(2), /proc/cpuinfo and \
/sys/devices/system/cpu. Threads and timers of cores that go are moved to others first. A thread that had \
chosen only such cores runs on any until one of them is back.

Memory they see by /proc/meminfo, sysinfo(2) and free. Of what goes, caches give up theirs first; then what programs have there \
is moved. What can't be moved in time stays, and how much that is is said; but a cell that does not answer loses it all the same, \
and with --force any does: programs that had something there are killed, or the whole cell is.

How much a cell can have at most is said when it is started: atoll run --max-cores N --max-memory SIZE. It keeps a quarter of the \
memory that it began with, and 32M at the least.

Examples:
  atoll resize web --cores 4
  atoll resize web --cores 1 --json
  atoll resize web --memory 512M
  atoll resize web --memory 256M --within 2 --force"
)]
pub struct Options {
    /// The cell: its name, process id, or the beginning of its name
    #[arg(value_name = "CELL")]
    cell: String,
    /// How many cores it has from now on
    #[arg(long, value_name = "N", group = "what")]
    cores: Option<u32>,
    /// How much memory it has from now on, with K, M or G
    #[arg(long, value_name = "SIZE", value_parser = parse_size, group = "what")]
    memory: Option<u64>,
    /// How long that may take, seconds
    #[arg(long, value_name = "SECONDS", default_value = "5", conflicts_with = "cores", value_parser = parse_seconds)]
    within: Duration,
    /// Then take the memory, whatever the cell says
    #[arg(long, conflicts_with = "cores")]
    force: bool,
    /// Print JSON: cores in use or bytes of memory, and how long it took, ns
    #[arg(long)]
    json: bool,
}

/// Seconds, between a tenth and ten minutes.
fn parse_seconds(s: &str) -> std::result::Result<Duration, String> {
    let seconds = s.parse().ok().filter(|n| (0.1..=600.0).contains(n));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "0.1 to 600 seconds".into())
}

/// Does it.
pub fn run(options: &Options) -> ExitCode {
    let done = match resize(options) {
        Err(e) => return fail(&e),
        Ok(done) => done,
    };
    if let Answer::MemoryResized(Memory { taken: Some(why), .. }) = &done {
        say!("atoll: memory was taken that the cell had not let go of: {why}");
    }
    if options.json {
        let text = match &done {
            Answer::Resized(cores) => serde_json::to_string_pretty(cores),
            Answer::MemoryResized(memory) => serde_json::to_string_pretty(memory),
            _ => return fail(&unexpected()),
        };
        return output::finish(&(text.unwrap_or_default() + "\n"));
    }
    ExitCode::SUCCESS
}

fn resize(options: &Options) -> Result<Answer> {
    let request = match (options.cores, options.memory) {
        (Some(cores), _) => Request::Resize { cores },
        (None, memory) => Request::ResizeMemory {
            memory: memory.unwrap_or_default(),
            within: options.within.as_millis() as u64,
            force: options.force,
        },
    };
    ask(&find(&options.cell)?.socket, &request)?.ok_or_else(|| Error::new(ENDED))
}
