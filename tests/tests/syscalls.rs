//! `tests/syscalls/*.c` on Linux and in a cell.

use std::path::Path;
use std::process::Command;

use atoll_tests::{
    Failed, arguments, atoll, cases, check_rewritten, compare, compile, refused, run, setting, timeout,
};

fn main() {
    libtest_mimic::run(&arguments(), cases("syscalls", "c", case)).exit();
}

fn case(source: &Path, text: &str) -> Result<(), Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let program = dir.path().join("program");
    compile(source, &program, text)?;
    let work = |name: &str| -> std::io::Result<std::path::PathBuf> {
        let path = dir.path().join(name).join("work");
        std::fs::create_dir_all(&path)?;
        Ok(path)
    };
    let mut command = Command::new(&program);
    command.current_dir(work("linux")?).env("TZ", "UTC");
    let linux = run(command, timeout(text))?;
    let path = work("cell")?;
    let mut command = Command::new(atoll());
    command
        .arg("run")
        .args(setting(text, "min-rewritten-percent").map(|_| "--json"))
        .args(setting(text, "options").unwrap_or_default().split_whitespace())
        .arg("--volume")
        .arg(format!("{0}:{0}", dir.path().display()))
        .arg("--workdir")
        .arg(&path)
        .arg("--")
        .arg(&program)
        .env("TZ", "UTC");
    let cell = run(command, timeout(text))?;
    if let Some(outcome) = refused(text, &linux, &cell) {
        return outcome;
    }
    compare(&linux, &cell)?;
    check_rewritten(text, &cell)
}
