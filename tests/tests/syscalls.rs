//! `tests/syscalls/*.c` on Linux and in a cell.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use atoll_tests::{
    Failed, Outcome, arguments, atoll, cases, check_rewritten, compare, run, setting, timeout,
};

fn main() {
    libtest_mimic::run(&arguments(), cases("syscalls", "c", case)).exit();
}

fn case(source: &Path, text: &str) -> Result<(), Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let program = dir.path().join("program");
    compile(source, &program, text, &setting(text, "flags").unwrap_or_default())?;
    if let Some(flags) = setting(text, "library") {
        compile(source, &dir.path().join("library.so"), text, &format!("-shared -fPIC {flags}"))?;
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
    if let Some(wanted) = setting(text, "cell-exit") {
        return refused(&linux, &cell, &wanted, &setting(text, "cell-says").unwrap_or_default());
    }
    compare(&linux, &cell)?;
    check_rewritten(text, &cell)
}

fn compile(source: &Path, to: &Path, text: &str, flags: &str) -> Result<(), Failed> {
    let mut compiler = Command::new(setting(text, "compiler").as_deref().unwrap_or("gcc"));
    compiler.args(["-O1", "-g", "-w", "-pthread", "-o"]).arg(to).arg(source);
    compiler.args(flags.split_whitespace());
    let compiled = run(compiler, Duration::from_secs(60))?;
    if compiled.status != 0 {
        return Err(format!("the case can't be compiled:\n{}", compiled.stderr).into());
    }
    Ok(())
}

/// Something that a cell refuses, by an exit status and a line in the log.
fn refused(linux: &Outcome, cell: &Outcome, exit: &str, says: &str) -> Result<(), Failed> {
    if linux.status != 0 || cell.hung || cell.status.to_string() != exit || !cell.stderr.contains(says) {
        return Err(format!(
            "on Linux {}; in the cell {} (hung: {}) and not {exit} with '{says}':\n{}\n{}",
            linux.status, cell.status, cell.hung, cell.stdout, cell.stderr
        )
        .into());
    }
    Ok(())
}
