//! What memory costs a program, in cells and on Linux (requirement XOS-02; XOS, Figure 3).

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};

use crate::bench::{Row, Table, compile, output};
use crate::build;
use crate::guests::{CORES, Counted, Workshop};
use crate::programs;
use crate::servers::{SIDES, Side};
use crate::system::need;

/// What to measure.
#[derive(Args)]
pub struct Options {
    /// Which parts [default: all]
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// One JSON object a row: name, linux, cell, unit, ratio (above 1: the cell is better).
    #[arg(long)]
    json: bool,
    /// Rounds of each side.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// will-it-scale's source, for `will-it-scale`: a directory with its Makefile.
    #[arg(long, value_name = "DIR")]
    will_it_scale: Option<PathBuf>,
}

/// A group of figures.
#[derive(Clone, Copy, ValueEnum, PartialEq, Eq, Debug)]
enum Part {
    /// malloc, malloc and free, mmap, mmap and munmap, sbrk: 4 KiB to 1 GiB, each page written.
    Sizes,
    /// Single calls, first writes, a file that is mapped and read.
    Calls,
    /// Loops like those of will-it-scale, with one thread and two.
    Loops,
    /// A garbage collector, a write of a pointer: its card table, and the pages that were written to in its place (XOS-05).
    Collector,
    /// A pager as a function: a table that is computed and a file that is read by it, and without it (XOS-08).
    Pager,
    /// Large blocks that come and go, in C and in python3: the C library's malloc, and libatoll's allocator preloaded (XOS-08).
    Allocator,
    /// Instructions of a page, and of a small fork, on more and more cores, in QEMU (OmniRE, Figures 10 and 11).
    Scaling,
    /// Redis that loads 1 GiB, stress-ng's loads of memory, work of python3 and node that is mostly memory, and what a cell has of its own.
    Programs,
    /// will-it-scale's own programs (`--will-it-scale`), as threads and as processes, on one core and two.
    WillItScale,
    /// Instructions of asking which pages were written to, in QEMU: the nucleus reads page tables, on Linux they are protected (XOS-05).
    Asking,
    /// Two loops that share a cache, in QEMU: what the small one misses of a modelled cache, as memory comes and with colours of their own
    /// (XOS-04).
    Colours,
}

/// Sizes, KiB.
const SIZES: [&str; 10] = ["4", "16", "64", "256", "1024", "4096", "16384", "65536", "262144", "1048576"];

/// Measures.
pub fn run(options: &Options) -> Result<()> {
    build::all(true)?;
    let dir = tempfile::Builder::new().prefix("atoll-bench-").tempdir()?;
    let program = compile("memory", dir.path())?;
    for part in Part::value_variants() {
        if !options.parts.is_empty() && !options.parts.contains(part) {
            continue;
        }
        match part {
            Part::Sizes => compare(options, dir.path(), &program, &[&["sizes"], &SIZES[..]].concat())?,
            Part::Calls => compare(options, dir.path(), &program, &["calls"])?,
            Part::Loops => {
                compare(options, dir.path(), &program, &["loops", "1"])?;
                compare(options, dir.path(), &program, &["loops", "2"])?;
            }
            Part::Collector => collector(options, dir.path())?,
            Part::Pager => pager(options, dir.path())?,
            Part::Allocator => allocator(options, dir.path())?,
            Part::Scaling => scaling(options, dir.path())?,
            Part::Programs => programs::measure(options.rounds, options.json, dir.path())?,
            Part::WillItScale => {
                // It isn't the machine's to bring: without it there is nothing to measure, and to be asked for all is no error.
                match &options.will_it_scale {
                    Some(source) => {
                        programs::will_it_scale(options.rounds, options.json, dir.path(), source)?
                    }
                    None if options.parts.is_empty() => {
                        eprintln!("will-it-scale: left out without --will-it-scale DIR")
                    }
                    None => bail!("`will-it-scale` needs its source: --will-it-scale DIR"),
                }
            }
            Part::Asking => asking(options, dir.path())?,
            Part::Colours => colours(options, dir.path())?,
        }
    }
    Ok(())
}

/// What each core of a machine does at the same time: instructions of all of them, for each page or child of all of them.
fn scaling(options: &Options, dir: &Path) -> Result<()> {
    const WHAT: [(&str, &str); 3] = [
        ("touched ", "a page that is mapped, touched, unmapped"),
        ("populated ", "the same, populated when it is mapped"),
        ("children ", "fork, exit and wait"),
    ];
    let program = compile("scale_pages", dir)?;
    let workshop = Workshop::new(dir)?;
    for cores in CORES {
        counted(options, &workshop, "scale-pages", &program, cores, WHAT, &format!("{cores} cores: "))?;
    }
    Ok(())
}

/// A program in QEMU, on both sides: instructions of each of what it marks, by how often it says that it did that. Rows are named after
/// that, with this before it.
fn counted<const N: usize>(
    options: &Options,
    workshop: &Workshop,
    name: &str,
    program: &str,
    cores: usize,
    what: [(&str, &str); N],
    before: &str,
) -> Result<()> {
    let mut all: [[Vec<f64>; 2]; N] = std::array::from_fn(|_| Default::default());
    for (n, side) in SIDES.into_iter().enumerate() {
        let image = workshop.image(side, name, &[program], cores)?;
        for _ in 0..options.rounds {
            let run = Counted::run(&image, &workshop.counter(&format!("{name}-{side:?}")))?;
            for (at, (row, (said, _))) in all.iter_mut().zip(what).enumerate() {
                let mark = 2 * at as u64 + 1;
                row[n].push(run.between(mark, mark + 1)? / run.said(said)?);
            }
        }
    }
    for ([mut linux, mut cell], (_, row)) in all.into_iter().zip(what) {
        Row::less(format!("{before}{row}"), "instructions", &mut linux, &mut cell).print(options.json);
    }
    Ok(())
}

/// A range of which some pages are written to and which is then asked which: instructions for each time.
fn asking(options: &Options, dir: &Path) -> Result<()> {
    const WHAT: [(&str, &str); 4] = [
        ("none ", "ask which of 16,384 pages were written to, none was"),
        ("sixteen ", "the same, 16 were, with those writes"),
        ("thousand ", "the same, 1,024 were"),
        ("all ", "the same, all were"),
    ];
    let program = compile("ask_pages", dir)?;
    counted(options, &Workshop::new(dir)?, "ask-pages", &program, 1, WHAT, "")
}

/// Two loops on two cores, and what each misses in a cache that they share. Linux has memory as it comes both times.
fn colours(options: &Options, dir: &Path) -> Result<()> {
    let program = compile("colour_loops", dir)?;
    let workshop = Workshop::new(dir)?;
    let mut table = Table::default();
    for (how, row) in [("any", "memory as it comes"), ("coloured", "colours of their own")] {
        for (n, side) in SIDES.into_iter().enumerate() {
            let how = if side == Side::Linux { "any" } else { how };
            let image = workshop.image(side, "colour-loops", &[&program, how], 2)?;
            for _ in 0..options.rounds {
                let run = Counted::run(&image, &workshop.cache(&format!("colour-loops-{side:?}")))?;
                for (which, said, marks) in [("small", "walked ", (1, 2)), ("large", "streamed ", (3, 4))] {
                    let missed = run.between(marks.0, marks.1)? * 1000.0 / run.said(said)?;
                    table.add(&format!("the {which} one of two loops, {row}"), n, missed);
                }
            }
        }
    }
    table.print(options.json, |name, linux, cell| Row::less(name, "misses of 1,000", linux, cell));
    Ok(())
}

/// The collector on Linux with cards, beside a cell with cards and with pages, in turns.
fn collector(options: &Options, dir: &Path) -> Result<()> {
    let program = compile("collector", dir)?;
    let mut table = Table::default();
    let (by_cards, by_pages) = (|name: &str| format!("{name}, cards"), |name: &str| format!("{name}, pages"));
    for _ in 0..options.rounds {
        let linux = output(Side::Linux, dir, &program, &["times", "cards"])?;
        table.add_times(0, &linux, by_cards)?;
        table.add_times(0, &linux, by_pages)?;
        table.add_times(1, &output(Side::Cell, dir, &program, &["times", "cards"])?, by_cards)?;
        table.add_times(1, &output(Side::Cell, dir, &program, &["times", "pages"])?, by_pages)?;
    }
    table.print(options.json, |name, linux, cell| Row::less(name, "ns", linux, cell));
    Ok(())
}

/// The pager's example on Linux beside a cell, in turns.
fn pager(options: &Options, dir: &Path) -> Result<()> {
    let program = compile("pager", dir)?;
    let files = dir.display().to_string();
    let mut table = Table::default();
    for _ in 0..options.rounds {
        for (n, side) in SIDES.into_iter().enumerate() {
            table.add_times(n, &output(side, dir, &program, &["times", &files])?, str::to_string)?;
        }
    }
    table.print(options.json, |name, linux, cell| Row::less(name, "ns", linux, cell));
    Ok(())
}

/// Programs as they are and with libatoll's allocator preloaded, on Linux beside a cell, in turns.
fn allocator(options: &Options, dir: &Path) -> Result<()> {
    need(&[("python3", "python3-minimal")])?;
    let program = compile("allocator", dir)?;
    let (script, object) = (dir.join("allocator.py"), dir.join("libatoll-alloc.so"));
    std::fs::copy(build::top().join("bench/allocator.py"), &script)?;
    std::fs::copy(build::top().join("target/release/libatoll-alloc.so"), &object)?;
    let preload = format!("LD_PRELOAD={}", object.display());
    let mut table = Table::default();
    for _ in 0..options.rounds {
        for (n, side) in SIDES.into_iter().enumerate() {
            for command in [&[&program[..]][..], &["/usr/bin/python3", &script.display().to_string()]] {
                let as_it_is = output(side, dir, "/usr/bin/env", command)?;
                table.add_times(n, &as_it_is, str::to_string)?;
                let preloaded = output(side, dir, "/usr/bin/env", &[&[&preload[..]], command].concat())?;
                table.add_times(n, &preloaded, |name| format!("{name}, preloaded"))?;
            }
        }
    }
    table.print(options.json, |name, linux, cell| Row::less(name, "ns", linux, cell));
    Ok(())
}

/// Linux as it is and with huge pages asked for, beside a cell and one that unmaps lazily, in turns.
fn compare(options: &Options, dir: &Path, program: &str, arguments: &[&str]) -> Result<()> {
    let huge = [arguments, &["huge"]].concat();
    let atoll = build::atoll().display().to_string();
    let volume = format!("{0}:{0}", dir.display());
    let lazy = ["run", "--lazy-unmap", "--memory", "2G", "--volume", &volume, "--", program];
    let lazy = [&lazy[..], arguments].concat();
    let mut table = Table::default();
    let with_huge = |name: &str| format!("{name}, Linux with huge pages");
    let unmapping_lazily = |name: &str| format!("{name}, --lazy-unmap");
    for _ in 0..options.rounds {
        let linux = output(Side::Linux, dir, program, arguments)?;
        table.add_times(0, &linux, str::to_string)?;
        table.add_times(0, &linux, unmapping_lazily)?;
        table.add_times(0, &output(Side::Linux, dir, program, &huge)?, with_huge)?;
        let cell = output(Side::Cell, dir, program, arguments)?;
        table.add_times(1, &cell, str::to_string)?;
        table.add_times(1, &cell, with_huge)?;
        table.add_times(1, &output(Side::Linux, dir, &atoll, &lazy)?, unmapping_lazily)?;
    }
    table.print(options.json, |name, linux, cell| Row::less(name, "ns", linux, cell));
    Ok(())
}
