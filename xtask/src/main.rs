//! The project's chores: `cargo xtask --help`.

mod bench;
mod build;
mod docs;
mod grid;
mod guests;
mod memory;
mod nucleus;
mod processes;
mod programs;
mod servers;
mod syscalls;
mod system;
mod test;
mod threads;
mod try_it;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Builds, tests and measures Atoll")]
struct Options {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Sets everything up, serves memcached and Redis from cells under load, shows the result beside Linux.
    Try(try_it::Options),
    /// Measures cells against Linux.
    Bench(bench::Options),
    /// Builds `atoll`, the runtime that cells run and the nucleus.
    Build {
        /// Without optimization.
        #[arg(long)]
        debug: bool,
    },
    /// Writes the generated parts of the documents in `docs/`.
    Docs,
    /// The part of `bench grid instructions` that is in the machine it boots.
    #[command(hide = true)]
    Inside(grid::Inside),
    /// Passes every test: format, lints, unit tests, lock models, programs on Linux and in cells, the nucleus in QEMU.
    Test(test::Options),
}

fn main() -> std::process::ExitCode {
    let done = match Options::parse().chore {
        Chore::Try(options) => try_it::run(&options),
        Chore::Bench(options) => bench::run(&options),
        Chore::Build { debug } => build::all(!debug),
        Chore::Docs => docs::write(),
        Chore::Inside(options) => grid::inside(&options),
        Chore::Test(options) => test::all(&options),
    };
    match done {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("cargo xtask: {e:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
