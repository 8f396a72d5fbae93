//! `atoll`: run programs in cells.

mod boot;
mod disk;
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
    /// Boot a machine without Linux, with several cells on it
    Boot(boot::Options),
    /// Build what such a machine boots
    #[command(subcommand)]
    Image(boot::Image),
    /// Print which system calls are supported, and which of their flags
    Syscalls(syscalls::Options),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.command {
        Command::Run(options) => run::run(*options),
        Command::Boot(options) => boot::boot(options),
        Command::Image(boot::Image::Build(options)) => boot::build(options),
        Command::Syscalls(options) => syscalls::print(&options),
    }
}
