//! `tests/programs/*.sh` on Linux and in a cell.

use std::fs;
use std::path::Path;
use std::process::Command;

use atoll_tests::{
    Failed, Outcome, arguments, atoll, cases, compare, difference, port, run, setting, timeout, tree,
};

fn main() {
    libtest_mimic::run(&arguments(), cases("programs", "sh", case)).exit();
}

fn side(script: &Path, text: &str, cell: bool) -> Result<(Outcome, Vec<(String, String)>), Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let path = dir.path().join("work");
    fs::create_dir(&path)?;
    let prefix = if cell {
        let options = setting(text, "options").unwrap_or_default();
        format!("{} run {options} --volume {1}:{1} --workdir {1} --", atoll().display(), path.display())
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
    // The directory's own name is no difference.
    outcome.stdout = outcome.stdout.replace(&path.display().to_string(), "$DIR");
    let files = tree(&path)
        .into_iter()
        .map(|(name, what)| (name, what.replace(&path.display().to_string(), "$DIR")))
        .collect();
    Ok((outcome, files))
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
