//! The nucleus in QEMU, in software emulation: it finds the machine, starts all cores, and lets no
//! page be both written and executed.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use atoll_tests::{Failed, Outcome, Trial, arguments, run, top};

/// Lines of Rust and assembler that the nucleus may have, without comments and empty ones.
const LINES_MAX: usize = 6000;
/// Bytes of its image.
const IMAGE_MAX: u64 = 4 << 20;
/// What QEMU's `isa-debug-exit` makes of the nucleus's 0 and 1.
const WELL: i32 = 1;
const ILL: i32 = 3;

fn main() {
    let mut trials = Vec::new();
    for machine in ["q35", "microvm", "pc"] {
        for cores in [1, 2, 8] {
            trials.push(Trial::test(format!("boots_{machine}_{cores}"), move || boots(machine, cores, 256)));
        }
    }
    trials.push(Trial::test("boots_beyond_4_gib", || boots("q35", 2, 6144)));
    // Page fault: present, write; fetch. Double fault: the stack's guard page.
    for (what, says) in [
        ("write-code", "exception 14 error 0x3"),
        ("write-code-direct", "exception 14 error 0x3"),
        ("run-data", "exception 14 error 0x11"),
        ("null", "exception 14 error 0x2"),
        ("stack", "exception 8 error 0x0"),
        ("panic", "panicked at"),
    ] {
        trials.push(Trial::test(format!("crash_{what}"), move || crashes(what, says)));
    }
    trials.push(Trial::test("says_what_is_missing", says_what_is_missing));
    trials.push(Trial::test("stays_small", stays_small));
    libtest_mimic::run(&arguments(), trials).exit();
}

fn image() -> PathBuf {
    top().join("target/release/atoll-nucleus")
}

fn qemu(machine: &str, cores: usize, mib: usize, options: &str) -> Result<Outcome, Failed> {
    let mut command = Command::new("qemu-system-x86_64");
    command.args(["-accel", "tcg,thread=multi", "-nodefaults", "-no-user-config", "-no-reboot"]);
    command.args(["-display", "none", "-serial", "stdio", "-device", "isa-debug-exit,iobase=0xf4,iosize=4"]);
    command.args(["-M", machine, "-cpu", "max", "-smp", &cores.to_string(), "-m", &mib.to_string()]);
    command.arg("-kernel").arg(image()).args(["-append", &format!("exit=f4 {options}")]);
    Ok(run(command, Duration::from_secs(60))?)
}

fn expect(outcome: &Outcome, status: i32, says: &str) -> Result<(), Failed> {
    if outcome.hung || outcome.status != status || !outcome.stdout.contains(says) {
        return Err(format!(
            "status {} instead of {status}{}, and it was to say {says:?}:\n{}{}",
            outcome.status,
            if outcome.hung { " (hung)" } else { "" },
            outcome.stdout,
            outcome.stderr
        )
        .into());
    }
    Ok(())
}

fn boots(machine: &str, cores: usize, mib: usize) -> Result<(), Failed> {
    let outcome = qemu(machine, cores, mib, "")?;
    expect(&outcome, WELL, &format!("nucleus: {cores} cores ("))?;
    // The firmware keeps a little.
    let found = outcome.stdout.split(", ").nth(1).and_then(|s| s.split(' ').next()?.parse::<usize>().ok());
    if !found.is_some_and(|found| (mib - 2..=mib).contains(&found)) {
        return Err(format!("{mib} MiB, and it found {found:?}:\n{}", outcome.stdout).into());
    }
    // QEMU's best processor has all of them.
    if outcome.stdout.contains("has no") {
        return Err(format!("a protection is off:\n{}", outcome.stdout).into());
    }
    Ok(())
}

fn crashes(what: &str, says: &str) -> Result<(), Failed> {
    expect(&qemu("microvm", 2, 128, &format!("crash={what}"))?, ILL, says)
}

fn says_what_is_missing() -> Result<(), Failed> {
    expect(&qemu("microvm,acpi=off", 1, 128, "")?, ILL, "can't go on: the loader gave no ACPI tables")
}

fn stays_small() -> Result<(), Failed> {
    let mut lines = 0;
    for file in std::fs::read_dir(top().join("nucleus/src"))? {
        let text = std::fs::read_to_string(file?.path())?;
        lines += text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with("//")).count();
    }
    let size = std::fs::metadata(image())?.len();
    if lines > LINES_MAX || size > IMAGE_MAX {
        return Err(format!("{lines} lines of {LINES_MAX}, {size} bytes of {IMAGE_MAX}").into());
    }
    Ok(())
}
