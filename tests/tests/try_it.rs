//! `cargo xtask try`, in its shortest form: memcached and Redis are served on Linux and from cells, to root and to an ordinary user.
#![allow(unsafe_code, reason = "asks for an id")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::Duration;

use atoll_tests::{Failed, Trial, one_by_one, run, top};

fn main() {
    let trials = vec![Trial::test("servers_are_served", servers_are_served)];
    libtest_mimic::run(&one_by_one(), trials).exit();
}

const SHORT: [&str; 6] = ["try", "--json", "--rounds", "1", "--seconds", "0.2"];

fn servers_are_served() -> Result<(), Failed> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.arg("xtask").args(SHORT).current_dir(top());
    // It builds, too, should that not have been done.
    tried(command, Duration::from_secs(900))?;
    // SAFETY: asks for an id.
    if unsafe { libc::geteuid() } != 0 {
        return Ok(());
    }
    // The checkout may lie where only root can look.
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
    for name in ["debug/xtask", "release/atoll", "release/atoll-runtime"] {
        let copy = dir.path().join(name);
        fs::create_dir_all(copy.parent().unwrap_or(dir.path()))?;
        fs::copy(top().join("target").join(name), copy)?;
    }
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .arg(dir.path().join("debug/xtask"));
    command.args(SHORT).arg("--built").current_dir("/");
    command.env_remove("XDG_RUNTIME_DIR").env_remove("XDG_CACHE_HOME").env("HOME", "/nonexistent");
    tried(command, Duration::from_secs(60))
}

/// Each load has its three figures, of both sides.
fn tried(command: Command, limit: Duration) -> Result<(), Failed> {
    let said = run(command, limit)?;
    let wrong =
        |what: &str| Failed::from(format!("{what}, status {}: {}{}", said.status, said.stdout, said.stderr));
    if said.hung || said.status != 0 {
        return Err(wrong("it has not come to its end"));
    }
    let rows: Vec<serde_json::Value> =
        said.stdout.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    for load in ["memcached, 90 % get, 1 KiB", "redis, get and set", "redis, pipeline of 16"] {
        for figure in ["CPU per 1,000", "p99", "rate"] {
            let name = format!("{load}: {figure}");
            let row = rows.iter().find(|row| row["name"] == *name).ok_or_else(|| wrong(&name))?;
            // Ten requests a second are fewer than any machine has served, and more than none.
            let least = if figure == "rate" { 10.0 } else { 0.0 };
            if ["linux", "cell"].iter().any(|side| row[side].as_f64().is_none_or(|value| value <= least)) {
                return Err(wrong(&name));
            }
        }
    }
    println!("{}", said.stdout);
    Ok(())
}
