//! `atoll`: run programs in cells.

mod boot;
mod disk;
mod grid;
mod list;
mod machine;
mod memory_policy;
mod ps;
mod resize;
mod run;
mod stat;
mod syscalls;
mod toml_file;
mod trace;

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
    /// List the cells that run
    Ls(list::Options),
    /// Show what a running cell's activities use
    Stat(stat::Options),
    /// Show what a running cell's threads do, and where they wait
    Ps(ps::Options),
    /// Write down what a running cell's threads do for a while, for a trace viewer
    Trace(trace::Options),
    /// Give a running cell more cores, or fewer
    Resize(resize::Options),
    /// Show or change how a running cell divides itself among activities
    #[command(subcommand)]
    Grid(grid::Command),
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
        Command::Ls(options) => list::print(&options),
        Command::Stat(options) => stat::run(&options),
        Command::Ps(options) => ps::run(&options),
        Command::Trace(options) => trace::run(&options),
        Command::Resize(options) => resize::run(&options),
        Command::Grid(command) => grid::run(command),
        Command::Boot(options) => boot::boot(options),
        Command::Image(boot::Image::Build(options)) => boot::build(options),
        Command::Syscalls(options) => syscalls::print(&options),
    }
}
