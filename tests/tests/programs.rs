//! `tests/programs/*.sh` on Linux and in a cell.

use std::fs;
use std::path::Path;
use std::process::Command;

use atoll_tests::{
    Failed, Outcome, arguments, atoll, cases, compare, difference, port, run, setting, timeout, top, tree,
};

fn main() {
    libtest_mimic::run(&arguments(), cases("programs", "sh", case)).exit();
}

/// Share of a case's system calls that go through rewritten sites, at least.
const REWRITTEN: f64 = 0.99;

fn side(script: &Path, text: &str, cell: bool) -> Result<(Outcome, Vec<(String, String)>), Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let path = dir.path().join("work");
    fs::create_dir(&path)?;
    let prefix = if cell {
        let options = setting(text, "options").unwrap_or_default();
        let report = dir.path().join("reports");
        // A cell has a /tmp of its own; what the cases need of a checkout there must be shown to it.
        let top = top();
        let hidden = [Path::new("/tmp"), Path::new("/var/tmp")].iter().any(|t| top.starts_with(t));
        let shown = if hidden { format!("--volume {0}:{0}:ro ", top.display()) } else { String::new() };
        format!(
            "{} run {options} --report {} {shown}--volume {2}:{2} --workdir {2} --",
            atoll().display(),
            report.display(),
            path.display()
        )
    } else {
        String::new()
    };
    let mut command = Command::new("bash");
    command
        .args(["-eu", "-o", "pipefail"])
        .arg(script)
        .current_dir(&path)
        .env("RUN", prefix)
        .env("DIR", &path)
        .env("SIDE", if cell { "cell" } else { "linux" })
        .env("PORT", port().to_string())
        .env("TESTS", script.parent().unwrap_or(script))
        .env("LC_ALL", "C.UTF-8")
        .env("TZ", "UTC");
    let mut outcome = run(command, timeout(text))?;
    if cell {
        rewritten(&dir.path().join("reports"), script)?;
    }
    // The directory's own name is no difference.
    outcome.stdout = outcome.stdout.replace(&path.display().to_string(), "$DIR");
    let files = tree(&path)
        .into_iter()
        .map(|(name, what)| (name, what.replace(&path.display().to_string(), "$DIR")))
        .collect();
    Ok((outcome, files))
}

/// Counts how the case's programs made their system calls: a trap costs a hundred times a jump.
fn rewritten(reports: &Path, script: &Path) -> Result<(), Failed> {
    let (mut all, mut trapped) = (0, 0);
    // A case may end its cells by force, before they write theirs.
    for line in fs::read_to_string(reports).unwrap_or_default().lines() {
        let report: serde_json::Value = serde_json::from_str(line)?;
        all += report["system_calls"].as_u64().ok_or("a report without a number of system calls")?;
        trapped += report["system_calls_trapped"].as_u64().unwrap_or_default();
    }
    let share = 1.0 - trapped as f64 / (all as f64).max(1.0);
    let name = script.file_stem().unwrap_or_default().to_string_lossy();
    println!("{name}: {all} system calls, {:.3} % through rewritten sites", share * 100.0);
    if share < REWRITTEN {
        return Err(format!("{trapped} of {all} system calls trapped").into());
    }
    Ok(())
}

fn case(script: &Path, text: &str) -> Result<(), Failed> {
    let (linux, linux_files) = side(script, text, false)?;
    if linux.hung || linux.status != 0 {
        return Err(format!(
            "the case itself fails on Linux with {}:\n{}\n{}",
            linux.status, linux.stdout, linux.stderr
        )
        .into());
    }
    let (cell, cell_files) = side(script, text, true)?;
    compare(&linux, &cell)?;
    if linux_files != cell_files {
        // Only the files that differ, and only their beginnings.
        let show = |files: &[(String, String)], others: &[(String, String)]| {
            let own = files.iter().filter(|f| !others.contains(f));
            own.map(|(n, w)| format!("{n}: {:.200}\n", w.replace('\n', "\\n"))).collect::<String>()
        };
        let text = difference(&show(&linux_files, &cell_files), &show(&cell_files, &linux_files));
        return Err(format!("the files left behind differ (- Linux, + cell):\n{text}").into());
    }
    Ok(())
}
