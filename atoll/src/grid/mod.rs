//! `atoll grid`: the grid's configuration of a live cell, and of a file.

mod config;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use atoll_supervisor::inspect::{Answer, Request, ask};
use atoll_supervisor::{Error, Result};
use clap::Subcommand;

pub(crate) use config::load;

use crate::list::{ENDED, fail, find, unexpected};
use crate::output;

/// What to do.
#[derive(Subcommand)]
pub enum Command {
    /// Print the configuration that a cell runs with, as a file that could be given to it
    Show {
        /// The cell: its name, process id, or the beginning of its name
        #[arg(value_name = "CELL")]
        cell: String,
        /// The same as JSON
        #[arg(long)]
        json: bool,
    },
    /// Give a running cell another configuration
    Set {
        /// The cell: its name, process id, or the beginning of its name
        #[arg(value_name = "CELL")]
        cell: String,
        /// The configuration
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Say whether a file is a configuration, and if not, why
    Check {
        /// The configuration
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

/// Does it.
pub fn run(command: Command) -> ExitCode {
    let done = match command {
        Command::Show { cell, json } => show(&cell, json),
        Command::Set { cell, file } => set(&cell, &file),
        Command::Check { file } => load(&file, None).map(drop),
    };
    done.map_or_else(|e| fail(&e), |()| ExitCode::SUCCESS)
}

fn show(cell: &str, json: bool) -> Result<()> {
    let socket = find(cell)?.socket;
    let config = match ask(&socket, &Request::Grid)? {
        Some(Answer::Grid(config)) => config,
        Some(_) => return Err(unexpected()),
        None => return Err(Error::new(ENDED)),
    };
    let activities = match ask(&socket, &Request::Stat { cores: false, host: false })? {
        Some(Answer::Snapshot(snapshot)) => snapshot.activities,
        Some(_) => return Err(unexpected()),
        None => return Err(Error::new(ENDED)),
    };
    let mut text = config::write(&config, &activities);
    if json {
        let broken = |e| Error::with("reading the configuration back", e);
        let table: toml::Table = toml::from_str(&text).map_err(broken)?;
        text = serde_json::to_string_pretty(&table).map_err(|e| Error::with("writing JSON", e))? + "\n";
    }
    output::print(&text).map(drop)
}

fn set(cell: &str, file: &Path) -> Result<()> {
    let found = find(cell)?;
    let config = match ask(&found.socket, &Request::Cell)? {
        Some(Answer::Cell(about)) => load(file, Some(about.cores as usize))?,
        Some(_) => return Err(unexpected()),
        None => return Err(Error::new(ENDED)),
    };
    match ask(&found.socket, &Request::GridSet { config })? {
        Some(Answer::Set(None)) => Ok(()),
        Some(Answer::Set(Some(why))) => {
            Err(Error::new(format!("{} does not take it, and goes on as before: {why}", found.name)))
        }
        Some(_) => Err(unexpected()),
        None => Err(Error::new(ENDED)),
    }
}
