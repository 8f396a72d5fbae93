//! `tests/syscalls/*.c` on Linux and in a cell.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use atoll_tests::{Failed, arguments, atoll, cases, compare, run, setting, timeout};

fn main() {
    libtest_mimic::run(&arguments(), cases("syscalls", "c", case)).exit();
}

fn case(source: &Path, text: &str) -> Result<(), Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let program = dir.path().join("program");
    let mut compiler = Command::new("gcc");
    compiler.args(["-O1", "-g", "-Wall", "-pthread", "-o"]).arg(&program).arg(source);
    compiler.args(setting(text, "flags").unwrap_or_default().split_whitespace());
    let compiled = run(compiler, Duration::from_secs(60))?;
    if compiled.status != 0 {
        return Err(format!("the case can't be compiled:\n{}", compiled.stderr).into());
    }
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
        .args(setting(text, "options").unwrap_or_default().split_whitespace())
        .arg("--volume")
        .arg(format!("{0}:{0}", dir.path().display()))
        .arg("--workdir")
        .arg(&path)
        .arg("--")
        .arg(&program)
        .env("TZ", "UTC");
    let cell = run(command, timeout(text))?;
    compare(&linux, &cell)
}
