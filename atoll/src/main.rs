//! `atoll`: run programs in cells.

mod boot;
mod cgroup;
mod disk;
mod grid;
mod list;
mod machine;
mod memory_policy;
mod output;
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

// What a command takes is put together when it is the one: for all of them that took longer than all else before a cell is launched. A doc
// comment on such options would be the command's description.
#[derive(Subcommand)]
#[command(defer = true)]
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
    /// Give a running cell more cores or memory, or less
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
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => return explain(&e),
    };
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

/// Says what is wrong with the command line, or what was asked about it. Commands that end with a program's status end here with one that
/// is no usual program's.
fn explain(e: &clap::Error) -> ExitCode {
    // There is nobody else to tell.
    let printed = e.print();
    let starts = std::env::args().nth(1).is_some_and(|command| command == "run" || command == "boot");
    match e.exit_code() {
        0 => printed.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS),
        _ if starts => ExitCode::from(run::NOT_STARTED),
        code => ExitCode::from(code as u8),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// Lines of examples fit: who prints the help would break them anywhere.
    #[test]
    fn examples_fit() {
        let mut built = Cli::command();
        built.build();
        for command in built.get_subcommands() {
            let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let long = text.lines().find(|l| l.starts_with(' ') && l.chars().count() > 98);
            assert_eq!(long, None, "{}", command.get_name());
        }
    }

    /// What a command says of itself is what the list of commands says of it.
    #[test]
    fn descriptions_agree() {
        let listed = Cli::command();
        let mut built = Cli::command();
        built.build();
        for command in listed.get_subcommands() {
            let said = |cli: &clap::Command| {
                cli.find_subcommand(command.get_name()).and_then(|c| Some(c.get_about()?.to_string()))
            };
            assert!(said(&listed).is_some(), "{}", command.get_name());
            assert_eq!(said(&listed), said(&built));
        }
    }
}
