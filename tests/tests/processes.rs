//! Processes come and go in a cell, and leave nothing behind (X-01, OR-02).

use std::process::Command;
use std::time::Duration;

use atoll_tests::{Failed, Outcome, Trial, arguments, atoll, run};

fn main() {
    let trials = vec![
        Trial::test("forks_leak_nothing", forks_leak_nothing),
        Trial::test("too_many_are_refused", too_many_are_refused),
        Trial::test("what_one_held_comes_back", what_one_held_comes_back),
        Trial::test("many_share_what_they_have", many_share_what_they_have),
    ];
    libtest_mimic::run(&arguments(), trials).exit();
}

type Done = Result<(), Failed>;

/// What a program in a cell prints.
fn said(options: &[&str], program: &[&str]) -> Result<String, Failed> {
    let mut command = Command::new(atoll());
    command.arg("run").args(options).arg("--").args(program);
    let Outcome { status, stdout, stderr, hung } = run(command, Duration::from_secs(120))?;
    if status != 0 || hung {
        return Err(format!("status {status}, hung: {hung}: {stdout}{stderr}").into());
    }
    println!("{stdout}{stderr}");
    Ok(stdout)
}

fn python(options: &[&str], script: &str) -> Result<String, Failed> {
    said(options, &["/usr/bin/python3", "-c", script])
}

/// 10,000 forks, and 300 programs: the cell has as much memory as before, but for what it keeps for the next ones.
fn forks_leak_nothing() -> Done {
    const SCRIPT: &str = r#"
        look() { while read -r key value _; do [ "$key" = MemFree: ] && free=$value && return; done < /proc/meminfo; }
        forks() { i=0; while [ $i -lt "$1" ]; do (exit 3); [ $? = 3 ] || echo wrong; i=$((i+1)); done; }
        programs() { i=0; while [ $i -lt "$1" ]; do /bin/true | /bin/true; i=$((i+1)); done; }
        forks 500; programs 30
        look; before=$free
        forks 10000; programs 300
        look; echo "$((before - free))"
    "#;
    let lost: i64 = said(&["--memory", "256M"], &["/bin/dash", "-c", SCRIPT])?.trim().parse()?;
    if lost < 2048 { Ok(()) } else { Err(format!("{lost} KiB are gone").into()) }
}

/// A quota of processes holds, by EAGAIN, and holds off nobody afterwards.
fn too_many_are_refused() -> Done {
    const SCRIPT: &str = "
import os, signal
made = []
try:
    while len(made) < 200:
        pid = os.fork()
        if pid == 0:
            signal.pause()
            os._exit(0)
        made.append(pid)
except BlockingIOError as e:
    print(len(made), e.errno)
for pid in made:
    os.kill(pid, signal.SIGKILL)
ends = {os.waitpid(pid, 0)[1] for pid in made}
pid = os.fork()
if pid == 0:
    os._exit(4)
print(ends, os.waitpid(pid, 0)[1] >> 8)
";
    let said = python(&["--pids-limit", "40"], SCRIPT)?;
    if said == "39 11\n{9} 4\n" { Ok(()) } else { Err(format!("it says {said:?}").into()) }
}

/// The memory of a process that is killed is the cell's again, also what it shared with its parent.
fn what_one_held_comes_back() -> Done {
    const SCRIPT: &str = "
import os, signal
def free():
    with open('/proc/meminfo') as f:
        return next(int(l.split()[1]) for l in f if l.startswith('MemFree:')) >> 10
kept = bytearray(b'x') * (64 << 20)
r, w = os.pipe()
before = free()
for round in range(3):
    pid = os.fork()
    if pid == 0:
        more = bytearray(b'y') * (64 << 20)
        kept[::4096] = b'z' * (len(kept) // 4096)
        os.write(w, b'1')
        signal.pause()
    os.read(r, 1)
    held = before - free()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    print('held' if 120 < held < 180 else held, 'back' if before - free() < 4 else before - free())
print(set(kept) == {ord('x')})
";
    let said = python(&["--memory", "512M"], SCRIPT)?;
    if said == "held back\nheld back\nheld back\nTrue\n" {
        Ok(())
    } else {
        Err(format!("it says {said:?}").into())
    }
}

/// Many processes of 64 MiB each, in a cell of 256: they share what none of them writes to.
fn many_share_what_they_have() -> Done {
    const SCRIPT: &str = "
import os
kept = os.urandom(1 << 20) * 64
sum = hash(kept)
made = []
for n in range(30):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if kept[n << 20 : (n + 1) << 20] == kept[: 1 << 20] else 1)
    made.append(pid)
print([s for s in (os.waitpid(pid, 0)[1] for pid in made) if s], hash(kept) == sum)
";
    let said = python(&["--memory", "256M"], SCRIPT)?;
    if said == "[] True\n" { Ok(()) } else { Err(format!("it says {said:?}").into()) }
}
