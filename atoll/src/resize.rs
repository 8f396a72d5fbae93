//! `atoll resize`: more cores for a live cell, or fewer.

use std::io::Write as _;
use std::process::ExitCode;

use atoll_abi::report::Resized;
use atoll_supervisor::inspect::{Answer, Request, ask};
use atoll_supervisor::{Error, Result};
use clap::Args;

use crate::list::{ENDED, fail, find, unexpected};

/// Options of `atoll resize`.
#[derive(Args)]
#[command(
    after_help = "Programs go on meanwhile. They see the new number at once, by nproc, sched_getaffinity(2), /proc/cpuinfo and
/sys/devices/system/cpu. Threads and timers of cores that go are moved to others first. A thread that had
chosen only such cores runs on any until one of them is back.

How many cores a cell can have at most is said when it is started: atoll run --max-cores N.

Examples:
  atoll resize web --cores 4
  atoll resize web --cores 1 --json"
)]
pub struct Options {
    /// The cell: its name, process id, or the beginning of its name
    #[arg(value_name = "CELL")]
    cell: String,
    /// How many cores it has from now on
    #[arg(long, value_name = "N")]
    cores: u32,
    /// Print JSON: cores in use, and how long it took, ns
    #[arg(long)]
    json: bool,
}

/// Does it.
pub fn run(options: &Options) -> ExitCode {
    let done = match resize(&options.cell, options.cores) {
        Err(e) => return fail(&e),
        Ok(done) => done,
    };
    if options.json {
        let text = serde_json::to_string_pretty(&done).unwrap_or_default() + "\n";
        // Nobody is left to tell if the reader has gone.
        let _ = std::io::stdout().write_all(text.as_bytes());
    }
    ExitCode::SUCCESS
}

fn resize(cell: &str, cores: u32) -> Result<Resized> {
    match ask(&find(cell)?.socket, &Request::Resize { cores })? {
        Some(Answer::Resized(done)) => Ok(done),
        Some(_) => Err(unexpected()),
        None => Err(Error::new(ENDED)),
    }
}
