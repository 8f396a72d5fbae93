//! `atoll`: run programs in cells.

mod run;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Run unmodified Linux programs in cells: each with its own cores, memory and library OS.
#[derive(Parser)]
#[command(name = "atoll", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a program in a new cell
    Run(Box<run::Options>),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.command {
        Command::Run(options) => run::run(*options),
    }
}
