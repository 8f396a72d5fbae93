//! Every test there is.

use std::fs::File;
use std::process::{Child, Command};
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::build::{self, cargo, run};
use crate::servers::Kind;
use crate::system::need;

/// What of the tests to run.
#[derive(Args)]
pub struct Options {
    /// Only these parts: format, lints, units, models, release, debug, programs, syscalls, assertions, entry, frozen, resize,
    /// processes, confinement, inspect, conformance, nucleus. And one that runs only if it is named: long.
    #[arg(value_name = "PART")]
    parts: Vec<String>,
}

/// A part of the tests: its name, what it is, how it is run.
type Part = (&'static str, &'static str, fn() -> Result<()>);

const PARTS: &[Part] = &[
    ("format", "the code is formatted", || run(cargo().args(["fmt", "--all", "--check"]))),
    ("lints", "no warnings", lints),
    // No example in the documentation is code.
    ("units", "unit tests and simulations", || run(cargo().args(["test", "--quiet", "--tests"]))),
    ("models", "all interleavings of the locks, and of what cores hand to each other", models),
    ("release", "what the other parts run is built", || build::all(true)),
    ("debug", "a runtime that checks itself is built", debug),
    // Most of their time they wait, for servers and for each other.
    ("programs", "unmodified programs on Linux and in cells", || {
        cases_with("programs", &["--test-threads", "3"])
    }),
    ("syscalls", "system calls on Linux and in cells, and the table of them", || {
        // Two cells on one processor take it from each other.
        let others: Vec<&str> = MEASURING.iter().flat_map(|case| ["--skip", case]).collect();
        cases_with("syscalls", &[&["--exact"], &others[..]].concat())?;
        for case in MEASURING {
            one_case("syscalls", case, false)?;
        }
        crate::syscalls::check()
    }),
    ("assertions", "a runtime that checks itself runs a few of them", assertions),
    ("entry", "the runtime's file, and an upcall at every instruction of entry and resume", || {
        cases("image")?;
        cases("entry")
    }),
    ("frozen", "a core that stands still keeps no other one from its work", || {
        need(&[("qemu-system-x86_64", "qemu-system-x86")])?;
        cases("frozen")
    }),
    ("resize", "cores and memory come and go in a running cell", || {
        need(&[("redis-benchmark", "redis-tools"), ("qemu-system-x86_64", "qemu-system-x86")])?;
        cases("resize")?;
        cases("extents")
    }),
    ("processes", "processes come and go, and leave nothing behind", || {
        cases("processes")?;
        cases("command_line")?;
        need(&[Kind::Memcached.needs(), Kind::Redis.needs()].concat())?;
        cases("try_it")
    }),
    ("confinement", "a hostile program gets nowhere", || cases("confinement")),
    ("inspect", "live cells are looked at from outside", || {
        cases_with("inspect", &["--skip", "on_the_nucleus"])
    }),
    ("conformance", "the platform contract means the same on host, nucleus and simulator", conformance),
    ("nucleus", "a machine without Linux, in QEMU", || {
        need(&[
            ("qemu-system-x86_64", "qemu-system-x86"),
            ("mkfs.ext4", "e2fsprogs"),
            ("grub-mkrescue", "grub-common"),
            ("grub-mkrescue", "grub-pc-bin"),
            ("grub-mkrescue", "grub-efi-amd64-bin"),
            ("grub-mkrescue", "ovmf"),
            ("xorriso", "xorriso"),
            ("mformat", "mtools"),
        ])?;
        cases("nucleus")?;
        cases("nucleus_disk")?;
        cases("nucleus_cases")?;
        cases_with("inspect", &["on_the_nucleus"])?;
        cases("nucleus_devices")?;
        cases("nucleus_servers")
    }),
];

/// Not among those that run if none is named: it takes longer than they may together.
const LONG: Part = ("long", "more programs on the nucleus, up to a minute each", || {
    need(&[("qemu-system-x86_64", "qemu-system-x86")])?;
    cases_with("nucleus_cases", &["--ignored"])
});

/// Cases of system calls that measure time: each runs alone.
const MEASURING: &[&str] = &[
    "clocks",
    "cpu_divided",
    "cpu_timers",
    "nice_shares",
    "polling",
    "priorities",
    "pty",
    "real_time",
    "spawn_vfork",
    "spawn_wait",
    "timers_fast",
    "units",
];

/// Take long, need no more than a processor and measure nothing: they run beside the other part, which often waits. How nice they are:
/// whoever measures comes first, and what the next part waits for is not to come last.
const BESIDE: &[(&[&str], &str, &str)] =
    &[(&["release"], "units", "0"), (&["models", "lints", "debug"], "programs", "10")];

/// Runs them.
pub fn all(options: &Options) -> Result<()> {
    let wanted = |part: &str| options.parts.is_empty() || options.parts.iter().any(|p| p == part);
    // What runs beside a part, of what is wanted.
    let beside = |with: &str| {
        let (parts, _, nice) = BESIDE.iter().find(|(_, other, _)| *other == with && wanted(with))?;
        let parts: Vec<&str> = parts.iter().copied().filter(|part| wanted(part)).collect();
        (!parts.is_empty()).then_some((parts, *nice))
    };
    let runs_beside = |part: &str| {
        BESIDE.iter().any(|(_, with, _)| beside(with).is_some_and(|(parts, _)| parts.contains(&part)))
    };
    let long = options.parts.iter().any(|part| part == LONG.0).then_some(&LONG);
    for (name, what, part) in PARTS.iter().chain(long) {
        if !wanted(name) || runs_beside(name) {
            continue;
        }
        println!("== {name}: {what}");
        let begun = Instant::now();
        let others = beside(name).map(|(parts, nice)| Beside::begin(&parts, nice)).transpose()?;
        let done = part();
        let took = begun.elapsed().as_secs_f64();
        if let Some(others) = others {
            others.end()?;
        }
        done?;
        println!("== {name}: passed in {took:.0} s");
    }
    println!("All tests passed.");
    Ok(())
}

/// Parts that are under way beside another one. What they say is shown at the end.
struct Beside {
    child: Child,
    parts: String,
    said: tempfile::NamedTempFile,
}

impl Beside {
    fn begin(parts: &[&str], nice: &str) -> Result<Beside> {
        println!("== {} meanwhile, and what they say at the end", parts.join(", "));
        let said = tempfile::NamedTempFile::new()?;
        let output = || File::options().append(true).open(said.path());
        // The program's file may be another one by now: a build for the tests replaces it.
        let child = Command::new("nice")
            .args(["-n", nice])
            .arg(format!("/proc/{}/exe", std::process::id()))
            .arg("test")
            .args(parts)
            .current_dir(build::top())
            .stdout(output()?)
            .stderr(output()?)
            .spawn()
            .context("starting nice")?;
        Ok(Beside { child, parts: parts.join(", "), said })
    }

    fn end(mut self) -> Result<()> {
        let status = self.child.wait()?;
        let said = std::fs::read_to_string(self.said.path())?;
        print!("{}", said.trim_end_matches("All tests passed.\n"));
        if !status.success() {
            bail!("{} failed: {status}", self.parts);
        }
        Ok(())
    }
}

fn lints() -> Result<()> {
    let clippy = |packages: &[&str]| {
        let mut command = cargo();
        command.arg("clippy").arg("--quiet").args(packages).args(["--", "--deny", "warnings"]);
        command
    };
    let by_themselves = ["atoll-cell", "atoll-conformance", "atoll-nucleus"];
    let excluded = by_themselves.iter().flat_map(|package| ["--exclude", package]);
    run(&mut clippy(&["--workspace", "--all-targets"].into_iter().chain(excluded).collect::<Vec<_>>()))?;
    for package in [
        &["--package", "atoll-cell"][..],
        &["--package", "atoll-cell", "--features", "without-books"],
        &["--package", "atoll-conformance"],
        &["--package", "atoll-nucleus"],
    ] {
        // They have no unwinder. What runs in the compiler is that of the others, which it isn't in a profile of its own.
        run(clippy(package).env("CARGO_PROFILE_DEV_PANIC", "abort"))?;
    }
    Ok(())
}

fn models() -> Result<()> {
    run(cargo()
        .args([
            "test",
            "--quiet",
            "--package",
            "atoll-sync",
            "--package",
            "atoll-grid",
            "--profile",
            "models",
            "--target-dir",
            "target/loom",
        ])
        .arg("loom_tests")
        .env("RUSTFLAGS", "--cfg loom"))
}

fn debug() -> Result<()> {
    run(cargo().args(["build", "--quiet", "--package", "atoll"]))?;
    run(cargo().args(["build", "--quiet", "--profile", "checked", "--package", "atoll-cell"]))
}

fn conformance() -> Result<()> {
    need(&[("qemu-system-x86_64", "qemu-system-x86")])?;
    // By itself, as all that has no standard library.
    run(cargo().args(["build", "--release", "--package", "atoll-conformance"]))?;
    run(cargo()
        .args(["test", "--quiet", "--package", "atoll-platform-sim", "--test", "conformance"])
        .env("ATOLL_CONFORMANCE", build::top().join("target/conformance-of-sim")))?;
    cases("conformance")
}

/// Cases that together do most of what a runtime does: they find out where a debug build's assertions don't hold.
const ASSERTED: &[(&str, &[&str])] = &[
    (
        "syscalls",
        &["clocks", "epoll", "faults", "files", "memory", "signals", "spawn_wait", "tcp", "threads"],
    ),
    ("programs", &["curl", "mapped", "sqlite"]),
    // What waits for its turn, in a call and in a page fault, and is paid for.
    ("inspect", &["limit_device-write", "limit_of_faults_memory", "limit_of_output"]),
    ("nucleus_cases", &["files", "signals", "threads"]),
];

fn assertions() -> Result<()> {
    debug()?;
    let all = ASSERTED.iter().flat_map(|(test, cases)| cases.iter().map(|case| (*test, *case)));
    let (alone, others): (Vec<_>, Vec<_>) = all.partition(|(_, case)| MEASURING.contains(case));
    for (test, case) in alone {
        one_case(test, case, true)?;
    }
    // Each waits for much of its time.
    let left = Mutex::new(others.into_iter());
    let work = || {
        while let Some((test, case)) = {
            let mut left = left.lock().expect("nobody panics with it");
            left.next()
        } {
            one_case(test, case, true)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let (one, other) = (scope.spawn(work), scope.spawn(work));
        let done = |worker: std::thread::ScopedJoinHandle<Result<()>>| worker.join().expect("no panic");
        done(one).and(done(other))
    })
}

/// One case, perhaps with builds that check themselves.
fn one_case(test: &str, case: &str, checked: bool) -> Result<()> {
    let mut command = cargo();
    command.args(["test", "--quiet", "--package", "atoll-tests", "--test", test, "--", "--exact", case]);
    if checked {
        command.env("ATOLL", build::top().join("target/debug/atoll"));
        command.env("ATOLL_RUNTIME", build::top().join("target/checked/atoll-runtime"));
        command.env("ATOLL_NUCLEUS", build::top().join("target/release/atoll-nucleus"));
    }
    run(&mut command)
}

fn cases(which: &str) -> Result<()> {
    cases_with(which, &[])
}

fn cases_with(which: &str, arguments: &[&str]) -> Result<()> {
    build::all(true)?;
    run(cargo().args(["test", "--quiet", "--package", "atoll-tests", "--test", which, "--"]).args(arguments))
}
