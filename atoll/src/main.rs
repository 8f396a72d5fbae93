//! `atoll`: run programs in cells.

mod machine;
mod run;
mod syscalls;

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
    /// Print which system calls are supported, and which of their flags
    Syscalls(syscalls::Options),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.command {
        Command::Run(options) => run::run(*options),
        Command::Syscalls(options) => syscalls::print(&options),
    }
}
