//! The project's chores: `cargo xtask --help`.

mod build;
mod test;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Builds, tests and measures Atoll")]
struct Options {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Builds `atoll` and the runtime that cells run.
    Build {
        /// Without optimization.
        #[arg(long)]
        debug: bool,
    },
    /// Passes every test: format, lints, unit tests, lock models, programs on Linux and in cells.
    Test(test::Options),
}

fn main() -> std::process::ExitCode {
    let done = match Options::parse().chore {
        Chore::Build { debug } => build::all(!debug),
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
