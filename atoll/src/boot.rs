//! `atoll boot` and `atoll image build`: several cells on one machine, by a boot configuration.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use atoll_supervisor::{Error, Result, say};
use clap::{Args, Parser, Subcommand};

use crate::disk;
use crate::machine::{CellEnd, Ends, Hardware, Machine, MachineCell, Published};
use crate::run::{self, NOT_STARTED};

#[derive(Args)]
#[command(after_help = "A boot configuration is lines of text:

  cell web
    cores 2
    memory 512M
    image redis-root     # a directory beside this file, or the image of a disk with ext4; without
                         # it, the program is taken from this host
    device net0
    run redis-server --port 6379 --protected-mode no
  cell batch
    cores 1
    memory 256M
    grid batch.toml      # how it divides itself among activities, a file beside this one
                         # (docs/grid.md)
    counter cache-misses # what its books count beside time, where the machine can (docs/grid.md)
    memory-policy m.toml # how memory is brought in for which programs, likewise (docs/memory.md)
    restart on-failure   # or always, or at most three times: on-failure:3
    run busybox sh -c 'while :; do :; done'

What the cells' programs write comes as lines behind the cell's name, or, of the one with `device console`, \
as it is; of the one with `device port0`, too, which also has standard input. That one may have more cores than it \
uses at first (max-cores 4), and `atoll resize` says how many it uses.

Examples:
  atoll boot machine.conf
  atoll boot --publish 6379:6379 machine.conf
  atoll boot --json machine.conf   # at the end: {\"seconds\": 2.1, \"cells\": [{\"name\": \"web\", ...}]}")]
pub struct Options {
    /// The boot configuration
    #[arg(value_name = "CONFIG")]
    config: PathBuf,
    /// Port of this host that leads to one of the cell with net0, of 127.0.0.1 unless an address is given (0.0.0.0: all); may be given more
    /// than once
    #[arg(short, long, value_name = "[ADDRESS:]PORT[:PORT][/udp]")]
    publish: Vec<Published>,
    /// What QEMU runs the machine with (kvm where the host can)
    #[arg(long, value_name = "NAME", default_value = "tcg,thread=multi")]
    accel: String,
    #[command(flatten)]
    hardware: Hardware,
    /// Write a report, as one JSON object, to standard error when the machine ends: how each cell ended
    #[arg(long)]
    json: bool,
    /// Show everything that the machine says
    #[arg(long)]
    verbose: bool,
}

#[derive(Subcommand)]
pub enum Image {
    /// Write what a machine boots: the nucleus, and a module with the cells' files, or a disk with both
    Build(Build),
}

#[derive(Args)]
#[command(after_help = "Examples:
  atoll image build machine.conf --output machine
  qemu-system-x86_64 -M microvm,acpi=off -cpu max -smp 4 -m 2G -nodefaults -display none \\
    -serial stdio -kernel machine/nucleus -initrd machine/module.tar
  atoll image build machine.conf --disk machine.img   # for a machine with BIOS or UEFI, and for CDs
  qemu-system-x86_64 -M q35 -cpu max -smp 4 -m 2G -nodefaults -display none -serial stdio \\
    -drive file=machine.img,format=raw

A disk image is made by GRUB's tools; Debian: apt-get install grub-common grub-pc-bin grub-efi-amd64-bin xorriso \
mtools. The nucleus's console is the machine's first serial port. \
Firecracker and Cloud Hypervisor enter kernels by PVH, too; with them it has not been tried yet.")]
pub struct Build {
    /// The boot configuration (see `atoll boot --help`)
    #[arg(value_name = "CONFIG")]
    config: PathBuf,
    /// Directory that the nucleus and the module are written to
    #[arg(short, long, value_name = "DIR", required_unless_present = "disk")]
    output: Option<PathBuf>,
    /// File or disk that an image is written to which BIOS and UEFI boot; a disk is overwritten
    #[arg(long, value_name = "FILE")]
    disk: Option<PathBuf>,
    /// The nucleus's command line in the disk image (exit=f4: end QEMU by its isa-debug-exit at that port)
    #[arg(long, value_name = "OPTIONS", default_value = "", requires = "disk")]
    append: String,
}

/// Boots the machine; the status is that of the first cell that did not end well, or 0.
pub fn boot(options: Options) -> ExitCode {
    let start = Instant::now();
    let machine = machine(&options.config, false).and_then(|m| {
        let Options { accel, hardware, publish, verbose, json, .. } = options;
        let names: Vec<String> = m.cells.iter().map(|c| c.name.clone()).collect();
        let ends = Machine { accel, hardware, publish, verbose, ..m }.run()?;
        if json {
            say!("{}", report(&names, &ends, start.elapsed().as_secs_f64()));
        }
        Ok(ends)
    });
    match machine {
        Ok(ends) => {
            let bad = ends.into_iter().find(|end| end.is_none_or(|e| e.status != 0));
            let status = |end: CellEnd| run::status_of(end.status);
            bad.map_or(ExitCode::SUCCESS, |end| end.map_or(ExitCode::from(NOT_STARTED), status))
        }
        Err(e) => run::refuse(&e),
    }
}

/// What `--json` writes. A cell that never ended has a name only.
fn report(names: &[String], ends: &Ends, seconds: f64) -> serde_json::Value {
    let cell = |(name, ended): (&String, &Option<CellEnd>)| {
        let mut cell = serde_json::json!({});
        if let Some(CellEnd { status, calls, restarts }) = *ended {
            cell = run::end(status, calls);
            cell["restarts"] = restarts.into();
        }
        cell["name"] = name.as_str().into();
        cell
    };
    let cells: Vec<_> = names.iter().zip(ends).map(cell).collect();
    serde_json::json!({ "seconds": seconds, "cells": cells })
}

/// Writes the files.
pub fn build(options: Build) -> ExitCode {
    let written = machine(&options.config, true).and_then(|mut machine| {
        let module = machine.module()?;
        if let Some(dir) = &options.output {
            let files = || {
                std::fs::create_dir_all(dir)?;
                std::fs::copy(&machine.nucleus, dir.join("nucleus"))?;
                std::fs::write(dir.join("module.tar"), &module)
            };
            files().map_err(|e| Error::with(format!("writing to {}", dir.display()), e))?;
        }
        match &options.disk {
            Some(disk) => disk::write(&machine.nucleus, &module, &options.append, disk),
            None => Ok(()),
        }
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => run::refuse(&e),
    }
}

/// One cell's options, as if `atoll run` had been given them.
#[derive(Parser)]
struct Line {
    #[command(flatten)]
    options: run::Options,
}

/// The machine that a configuration asks for. `must_run`: a program that this host doesn't have is an error, not only a word.
fn machine(path: &Path, must_run: bool) -> Result<Machine> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| Error::with(format!("reading the boot configuration, {}", path.display()), e))?;
    let config = atoll_partition::parse(&text).map_err(|e| Error::new(format!("{}, {e}", path.display())))?;
    let cells = config.iter().map(|cell| machine_cell(cell, path, must_run)).collect::<Result<Vec<_>>>()?;
    Ok(Machine {
        name: None,
        nucleus: run::beside("atoll-nucleus", "ATOLL_NUCLEUS", "the nucleus")?,
        runtime: run::beside("atoll-runtime", "ATOLL_RUNTIME", "the runtime")?,
        cells,
        accel: String::new(),
        hardware: Hardware::default(),
        publish: Vec::new(),
        volumes: Vec::new(),
        passes_signals: false,
        verbose: false,
    })
}

fn machine_cell(cell: &atoll_partition::Request, path: &Path, must_run: bool) -> Result<MachineCell> {
    let wrong = |what: String| Error::new(format!("{}, cell {}: {what}", path.display(), cell.name));
    if cell.runtime.is_some() || cell.boot.is_some() {
        return Err(wrong("`runtime` and `boot` are filled in by atoll: leave them out".into()));
    }
    let words = shlex::split(cell.run).ok_or_else(|| wrong("a quotation in `run` does not end".into()))?;
    let mut line: Vec<String> =
        ["run", "--platform", "nucleus", "--name", cell.name].map(String::from).into();
    line.extend(["--cores".into(), cell.cores.to_string()]);
    line.extend(["--max-cores".into(), cell.max_cores.to_string()]);
    line.extend(["--memory".into(), cell.memory.to_string()]);
    line.extend(["--env".into(), "HOME=/root".into(), "--env".into(), "TERM=dumb".into()]);
    if let Some(image) = cell.image {
        let dir = path.parent().unwrap_or(Path::new(".")).join(image);
        line.extend(["--rootfs".into(), dir.display().to_string()]);
    }
    for (option, file) in [("--grid", cell.grid), ("--memory-policy", cell.memory_policy)] {
        if let Some(file) = file {
            let file = path.parent().unwrap_or(Path::new(".")).join(file);
            line.extend([option.into(), file.display().to_string()]);
        }
    }
    if let Some(counter) = cell.counter {
        line.extend(["--counter".into(), counter.into()]);
    }
    line.push("--".into());
    line.extend(words);
    let Line { options } = Line::try_parse_from(line).map_err(|e| wrong(e.to_string()))?;
    let devices = cell.devices.iter().map(|d| d.to_string()).collect();
    let (made, _) =
        run::machine_cell(options, cell.name, devices, must_run).map_err(|e| wrong(e.to_string()))?;
    let peers = cell.peers.iter().map(|p| p.to_string()).collect();
    Ok(MachineCell { peers, restart: cell.restart, ..made })
}
