//! `cargo xtask try`: sets everything up, serves memcached and Redis from
//! cells under real load, and shows what came out beside Linux.

use anyhow::Result;
use clap::Args;

use crate::bench::compare;
use crate::servers::Kind;
use crate::{build, system};

/// How to try it.
#[derive(Args)]
pub struct Options {
    /// One JSON object a row.
    #[arg(long)]
    json: bool,
    /// Rounds of each side.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Length of one round of load, seconds; memcached's is one at least.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Takes what `cargo xtask build` has made, without building.
    #[arg(long)]
    built: bool,
}

/// Tries it.
pub fn run(options: &Options) -> Result<()> {
    if !system::is_root() && !options.json {
        println!(
            "As an ordinary user: cells get neither pinned cores nor huge pages, and packages are not installed."
        );
    }
    for kind in [Kind::Memcached, Kind::Redis] {
        system::need(kind.needs())?;
    }
    if !options.built {
        if !options.json {
            println!("Building Atoll (a minute or two the first time) ...");
        }
        build::all(true)?;
    }
    let dir = tempfile::Builder::new().prefix("atoll-try-").tempdir()?;
    if !options.json {
        println!(
            "Each server runs as a Linux process and, the same binary, in a cell; clients load them in turns."
        );
    }
    // Others may try it at the same time.
    let mut port = 17_600 + (std::process::id() % 100) as u16 * 8;
    let mut rows = Vec::new();
    for (name, kind, pipeline) in [
        ("memcached, 90 % get, 1 KiB", Kind::Memcached, 1),
        ("redis, get and set", Kind::Redis, 1),
        ("redis, pipeline of 16", Kind::Redis, 16),
    ] {
        if !options.json {
            println!("Loading {name} ...");
        }
        rows.extend(compare(name, kind, pipeline, options.rounds, options.seconds, dir.path(), &mut port)?);
    }
    for row in &rows {
        row.print(options.json);
    }
    if !options.json {
        println!("\nRun a program of your own in a cell: target/release/atoll run -- PROGRAM ARGUMENTS");
    }
    Ok(())
}
