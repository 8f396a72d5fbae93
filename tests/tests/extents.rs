//! Memory comes and goes in a running cell, and nothing is lost but by force (RF-03).
#![allow(unsafe_code, reason = "stops the processes of a cell")]

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use atoll_supervisor::inspect::{About, Answer, Memory, Request};
use atoll_tests::{Cell, Failed, Redis, Trial, arguments, ask_cell, atoll, children, run, top};

fn main() {
    let trials = vec![
        Trial::test("thousand_changes", thousand_changes),
        Trial::test("changes_of_one_core", changes_of_one_core),
        Trial::test("shared_after_forks", shared_after_forks),
        Trial::test("seen_at_once", seen_at_once),
        Trial::test("server_under_load", server_under_load),
        Trial::test("caches_give_way", caches_give_way),
        Trial::test("no_answer", no_answer),
        Trial::test("by_force", by_force),
        Trial::test("refused", refused),
        Trial::test("grows_by_itself", grows_by_itself),
        Trial::test("gets_no_more", gets_no_more),
        Trial::test("several_grow", several_grow),
    ];
    libtest_mimic::run(&arguments(), trials).exit();
}

type Done = Result<(), Failed>;
const MIB: u64 = 1 << 20;
/// How long a change may take.
const WITHIN: u64 = 10_000;

/// A cell with a program that is spoken to by lines.
struct Talking {
    cell: Cell,
    name: String,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Talking {
    fn start(name: &str, options: &[&str], program: &[&str]) -> Result<Talking, Failed> {
        let name = format!("{name}-{}", std::process::id());
        let mut command = Command::new(atoll());
        command.args(["run", "--name", &name]).args(options).arg("--").args(program);
        let mut cell = Cell(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?);
        let (to, from) = (cell.0.stdin.take(), cell.0.stdout.take());
        let from = from.ok_or("no pipe")?;
        Ok(Talking { cell, name, to, from: BufReader::new(from) })
    }

    fn line(&mut self) -> Result<String, Failed> {
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        Ok(line.trim_end().into())
    }

    fn say(&mut self, what: &str) -> Result<String, Failed> {
        writeln!(self.to.as_mut().ok_or("it was hung up on")?, "{what}")?;
        self.line()
    }

    /// Gives it so many MiB.
    fn resize(&self, mib: u64) -> Result<Memory, String> {
        self.take(mib, WITHIN, false)
    }

    fn take(&self, mib: u64, within: u64, force: bool) -> Result<Memory, String> {
        resize(&self.name, mib, within, force)
    }

    fn about(&self) -> Result<About, Failed> {
        match ask_cell(&self.name, &Request::Cell)? {
            Answer::Cell(about) => Ok(about),
            other => Err(format!("{other:?}").into()),
        }
    }
}

fn resize(name: &str, mib: u64, within: u64, force: bool) -> Result<Memory, String> {
    match ask_cell(name, &Request::ResizeMemory { memory: mib * MIB, within, force })? {
        Answer::MemoryResized(done) => Ok(done),
        other => Err(format!("{other:?}")),
    }
}

/// Numbers that look as if they were drawn.
struct Chance(u64);

impl Chance {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// A thousand times, and nothing is lost (RF-03, XOS-02).
fn thousand_changes() -> Done {
    changes(1000, "2")
}

/// What moves memory is on the core that uses it.
fn changes_of_one_core() -> Done {
    changes(200, "1")
}

/// Memory comes and goes while an unmodified program computes with memory of all kinds and checks it
/// (`tests/extents/checked.py`).
fn changes(times: u32, cores: &str) -> Done {
    /// What the program keeps, MiB; and with what it needs besides.
    const KEEPS: u64 = 240;
    const LEAST: u64 = KEEPS + 160;
    let script = std::fs::read_to_string(top().join("tests/extents/checked.py"))?;
    let options = ["--cores", cores, "--memory", "512M", "--max-memory", "1G"];
    let program = ["/usr/bin/python3", "-c", &script, &KEEPS.to_string()];
    let mut talking = Talking::start(&format!("changed{cores}"), &options, &program)?;
    if talking.line()? != "begun" {
        return Err("it did not begin".into());
    }
    let mut chance = Chance(u64::from(times));
    let (mut now, mut shrunk, mut moved, mut longest) = (512, 0, 0, 0);
    for n in 0..times {
        let is_in_the_way = n % 100 == 0;
        if is_in_the_way {
            talking.resize(1024)?;
            now = 1024;
            let said = talking.say("")?;
            if !said.starts_with("anew") || !said.ends_with("bad 0") {
                return Err(format!("before change {n}: {said}").into());
            }
        }
        if !is_in_the_way {
            // After that what was taken anew would be given back, bit by bit, for memory that isn't in the way.
            std::thread::sleep(Duration::from_millis(5));
        }
        let mib = if is_in_the_way { LEAST } else { LEAST + 2 * chance.below((1024 - LEAST) / 2 + 1) };
        let done = talking.resize(mib).map_err(|e| format!("change {n}, from {now} to {mib} MiB: {e}"))?;
        if done.memory != mib * MIB || done.taken.is_some() {
            return Err(format!("change {n}, from {now} to {mib} MiB: {done:?}").into());
        }
        // What was just taken anew is in the way, each time.
        if is_in_the_way && done.moved < KEEPS / 8 * MIB {
            return Err(
                format!("change {n}, from {now} to {mib} MiB: nothing was in the way: {done:?}").into()
            );
        }
        shrunk += u32::from(mib < now);
        moved += done.moved;
        longest = longest.max(done.ns);
        now = mib;
    }
    talking.to = None;
    let said = talking.line()?;
    println!(
        "{shrunk} of {times} smaller, {} MiB moved, {} ms at most: {said}",
        moved / MIB,
        longest / 1_000_000
    );
    let numbers: Vec<u64> = said.split(' ').filter_map(|word| word.parse().ok()).collect();
    let all_checked = numbers.len() == 5 && numbers[..4].iter().all(|n| *n > 0);
    // It was in the way each time it had been taken anew.
    if !all_checked || numbers[4] != 0 || moved < u64::from(times) / 100 * KEEPS / 3 * MIB {
        return Err(said.into());
    }
    Ok(())
}

/// Four processes that have 64 MiB in common; for each line all of them check it, and the children write to it.
const FAMILY: &str = "
import os, sys
kept = bytearray(os.urandom(1 << 20) * 64)
pipes = []
for n in range(3):
    ask, said = os.pipe(), os.pipe()
    if os.fork() == 0:
        mine = bytes(kept[: 1 << 20])
        while os.read(ask[0], 1):
            kept[0] = n + 1
            good = bytes(kept[1 : 1 << 20]) == mine[1:] and all(kept[k << 20] == (n + 1 if k == 0 else mine[0]) for k in range(64))
            os.write(said[1], b'1' if good else b'0')
        os._exit(0)
    pipes.append((ask[1], said[0]))
mine = bytes(kept[1 << 20 : 2 << 20])
for line in sys.stdin:
    for ask, said in pipes:
        os.write(ask, b'x')
    good = all(os.read(said, 1) == b'1' for ask, said in pipes)
    same = all(kept[k << 20 : (k << 20) + 4096] == mine[:4096] for k in range(64))
    free = next(int(l.split()[1]) for l in open('/proc/meminfo') if l.startswith('MemFree:')) >> 10
    total = next(int(l.split()[1]) for l in open('/proc/meminfo') if l.startswith('MemTotal:')) >> 10
    print(good and same, total - free, flush=True)
";

/// Memory that processes share since a fork stays shared when it is moved, and is everybody's own all the same (RF-03, X-01).
fn shared_after_forks() -> Done {
    let options = ["--memory", "512M", "--max-memory", "1G"];
    let mut talking = Talking::start("shared", &options, &["/usr/bin/python3", "-c", FAMILY])?;
    talking.say("")?;
    let mut moved = 0;
    for n in 0..40 {
        // Where programs' memory is taken from first is what goes.
        let mib = [1024, 192, 700, 224][n % 4];
        moved += talking.resize(mib)?.moved;
        let said = talking.say("")?;
        let used = said.strip_prefix("True ").and_then(|mib| mib.parse::<u64>().ok());
        // Four times 64 MiB would be more.
        if used.is_none_or(|mib| mib > 150) {
            return Err(format!("after change {n}, to {mib} MiB: {said}").into());
        }
    }
    println!("{} MiB moved", moved / MIB);
    if moved > 64 * MIB { Ok(()) } else { Err(format!("only {moved} bytes were moved").into()) }
}

/// Says for each line how much memory there is, by each way there is, MiB.
const TELLER: &str = "
import os, subprocess, sys
for line in sys.stdin:
    info = {l.split(':')[0]: int(l.split()[1]) >> 10 for l in open('/proc/meminfo')}
    free = subprocess.run(['free', '-m'], capture_output=True, text=True).stdout.split()
    by_sysinfo = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') >> 20
    there = info['MemFree'] <= info['MemTotal'] and info['MemAvailable'] <= info['MemTotal']
    print(info['MemTotal'], by_sysinfo, free[free.index('Mem:') + 1], there, flush=True)
";

/// The program sees the number at once, and so does who looks from outside (RF-03, XOS-10).
fn seen_at_once() -> Done {
    let options = ["--memory", "256M", "--max-memory", "1G"];
    let mut talking = Talking::start("seen", &options, &["/usr/bin/python3", "-c", TELLER])?;
    for mib in [256, 512, 128, 1024, 64, 66, 256] {
        let done = talking.resize(mib)?;
        let said = talking.say("")?;
        let about = talking.about()?;
        if said != format!("{mib} {mib} {mib} True") || about.memory != mib * MIB || done.memory != mib * MIB
        {
            return Err(format!("{mib} MiB: {said:?}, {done:?}, {about:?}").into());
        }
        // The host has the rest again.
        if about.memory_used > mib * MIB || about.max_memory != 1024 * MIB {
            return Err(format!("{mib} MiB: {about:?}").into());
        }
    }
    Ok(())
}

/// An unmodified server answers all the time, and loses nothing.
fn server_under_load() -> Done {
    let name = format!("served-{}", std::process::id());
    let options = ["--name", &name, "--cores", "2", "--memory", "192M", "--max-memory", "512M"];
    let redis = Redis::start(&options, &["--enable-debug-command", "local"])?;
    // What stays lies behind what goes.
    resize(&name, 512, WITHIN, false)?;
    redis.say(&["-n", "1", "debug", "populate", "150000", "key", "1000"])?;
    let filled = redis.say(&["debug", "populate", "40000", "key", "1000"])?;
    redis.say(&["-n", "1", "flushdb", "sync"])?;
    // Its allocator does nothing of what it is asked for while its thread in the background does some of it, and counts what that one has
    // still to give back as given. The server itself looks at what it has ten times a second.
    let begun = Instant::now();
    loop {
        redis.say(&["memory", "purge"])?;
        std::thread::sleep(Duration::from_millis(250));
        let said = redis.say(&["info", "memory"])?;
        let bytes = |what| {
            let found = said.lines().find_map(|line| line.strip_prefix(what));
            found.ok_or("its memory is not told")?.trim().parse::<u64>().map_err(Failed::from)
        };
        if bytes("allocator_resident:")?.max(bytes("used_memory_rss:")?) < 128 * MIB {
            break;
        }
        if begun.elapsed() > Duration::from_secs(20) {
            return Err(said.into());
        }
    }
    let before = redis.say(&["debug", "digest"])?;
    let (mut changes, mut moved) = (0, 0);
    redis.load(100_000, || {
        moved += resize(&name, if changes % 2 == 0 { 208 } else { 512 }, WITHIN, false)?.moved;
        changes += 1;
        Ok(())
    })?;
    let after = redis.say(&["debug", "digest"])?;
    println!("{changes} changes, {} MiB moved", moved / MIB);
    let same = filled.trim() == "OK" && before.len() > 40 && before == after;
    if same && changes >= 10 && moved > 0 {
        return Ok(());
    }
    Err(format!("{changes} changes, {moved} bytes moved, {before} {after}").into())
}

/// What caches have is given up first.
fn caches_give_way() -> Done {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    std::fs::write(dir.path().join("large"), vec![7; 150 << 20])?;
    let volume = format!("{}:/data", dir.path().display());
    let options = ["--memory", "256M", "--volume", &volume, "--workdir", "/"];
    let script = "
import sys
for line in sys.stdin:
    data = open('/data/large', 'rb')
    whole = sum(len(piece) for piece in iter(lambda: data.read(1 << 20), b''))
    print(whole >> 20, flush=True)
";
    let mut talking = Talking::start("cached", &options, &["/usr/bin/python3", "-c", script])?;
    for mib in [256, 64, 256, 64] {
        talking.resize(mib)?;
        let said = talking.say("")?;
        if said != "150" {
            return Err(format!("{said:?} at {mib} MiB").into());
        }
    }
    Ok(())
}

/// Has memory, and says for each line whether it is as it should be.
const HOLDER: &str = "
import mmap, sys
memory = mmap.mmap(-1, 200 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, len(memory), 4096): memory[at] = 7
print('begun', flush=True)
for line in sys.stdin:
    print(sum(memory[at] == 7 for at in range(0, len(memory), 4096)), flush=True)
";

/// Stops all of a cell's processes, or lets them go on.
fn signal(cell: &Cell, signal: i32) {
    for first in children(cell.0.id() as i32) {
        for process in children(first).into_iter().chain([first]) {
            // SAFETY: processes of a cell of ours.
            unsafe { libc::kill(process, signal) };
        }
    }
}

/// A cell that does not answer loses the memory at the deadline all the same (RF-05). The host has it again at once; what the cell gets
/// later is zeroes, and the supervisor lives on.
fn no_answer() -> Done {
    let options = ["--cores", "1", "--memory", "256M"];
    let mut talking = Talking::start("stopped", &options, &["/usr/bin/python3", "-c", HOLDER])?;
    talking.line()?;
    let used = talking.about()?.memory_used;
    signal(&talking.cell, libc::SIGSTOP);
    let begun = Instant::now();
    let done = talking.take(64, 1000, false)?;
    let took = begun.elapsed();
    let about = talking.about()?;
    let why = done.taken.clone().unwrap_or_default();
    println!("{} MiB used, {} MiB after {took:?}: {why}", used / MIB, about.memory_used / MIB);
    if !why.contains("within 1 s") || used < 200 * MIB || done.memory != 64 * MIB {
        return Err(format!("{used} {done:?}").into());
    }
    if about.memory_used > 64 * MIB || about.memory != 64 * MIB || took > Duration::from_secs(5) {
        return Err(format!("after {took:?}: {about:?}").into());
    }
    // Granted again, there is nothing of it.
    let _ = talking.take(256, 100, false);
    if talking.about()?.memory_used > 128 * MIB {
        return Err("what was taken is there again".into());
    }
    signal(&talking.cell, libc::SIGCONT);
    // What it had is lost: it gets zeroes, or is ended.
    let said = talking.say("").unwrap_or_default();
    if said == (200 * MIB / 4096).to_string() {
        return Err("nothing was lost".into());
    }
    println!("afterwards it says {said:?}");
    Ok(())
}

/// What the cell does not let go of is kept, which is said; but not by force (RF-05).
fn by_force() -> Done {
    let options = ["--cores", "1", "--memory", "256M"];
    let mut talking = Talking::start("forced", &options, &["/usr/bin/python3", "-c", HOLDER])?;
    talking.line()?;
    let all = (200 * MIB / 4096).to_string();
    let why = talking.resize(128).err().ok_or("it let go of what is in use")?;
    if !why.contains("has 256 MiB now") || !why.contains("in use") || talking.say("")? != all {
        return Err(why.into());
    }
    let done = talking.take(128, 1000, true)?;
    if done.memory != 128 * MIB || !done.taken.is_some_and(|why| why.contains("in use")) {
        return Err("nothing was taken".into());
    }
    if talking.about().is_ok_and(|about| about.memory_used > 128 * MIB) {
        return Err("the host does not have it again".into());
    }
    // Whoever needs it is ended, with a word.
    let said = talking.say("").unwrap_or_default();
    if said == all { Err("nothing was lost".into()) } else { Ok(()) }
}

/// What can't be is refused, and said why; the cell goes on as before.
fn refused() -> Done {
    let options = ["--memory", "256M", "--max-memory", "1024G"];
    let mut command = Command::new(atoll());
    command.arg("run").args(options).args(["--", "/bin/true"]);
    let out = run(command, Duration::from_secs(20))?;
    if out.status == 0 || !out.stderr.contains("begins with 1") {
        return Err(format!("tables that do not fit: {out:?}").into());
    }
    let options = ["--memory", "256M", "--max-memory", "64G"];
    let mut talking = Talking::start("refused", &options, &["/usr/bin/python3", "-c", TELLER])?;
    for (mib, why) in [(30, "to 65536 MiB of memory"), (65538, "--max-memory"), (65536, "the host has")] {
        let said = talking.resize(mib).err().ok_or("was done")?;
        if !said.contains(why) {
            return Err(said.into());
        }
    }
    if talking.say("")? != "256 256 256 True" {
        return Err("something has changed".into());
    }
    for (options, why) in [
        (&["--memory", "256M", "--max-memory", "128M"][..], "can't have 128M at most"),
        (&["--platform", "nucleus", "--max-memory", "1G"], "cells on this host"),
    ] {
        let mut command = Command::new(atoll());
        command.arg("run").args(options).args(["--", "/bin/true"]);
        let out = run(command, Duration::from_secs(20))?;
        if out.status == 0 || !out.stderr.contains(why) {
            return Err(format!("{options:?}: {out:?}").into());
        }
    }
    for (args, why) in [
        (&["--memory", "128M", "--cores", "1"][..], "cannot be used with"),
        (&[], "required"),
        (&["--memory", "128M", "--within", "0"], "0.1 to 600"),
    ] {
        let mut command = Command::new(atoll());
        command.args(["resize", &talking.name]).args(args);
        let out = run(command, Duration::from_secs(20))?;
        if out.status == 0 || !out.stderr.contains(why) {
            return Err(format!("{args:?}: {out:?}").into());
        }
    }
    Ok(())
}

/// A program that holds as many MiB as a line says, of which each page has its number, and checks them.
const HOLDS: &str = r#"
import mmap, sys
held = []
def total():
    return next(int(l.split()[1]) for l in open("/proc/meminfo") if l.startswith("MemTotal")) >> 10
print("begun", total(), flush=True)
for line in sys.stdin:
    wanted = int(line)
    while len(held) < wanted:
        piece = mmap.mmap(-1, 1 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for page in range(256):
            piece[page << 12:(page << 12) + 4] = (len(held) * 256 + page).to_bytes(4, "little")
        held.append(piece)
    for piece in held[wanted:]:
        piece.close()
    del held[wanted:]
    for n, piece in enumerate(held):
        for page in range(256):
            assert int.from_bytes(piece[page << 12:(page << 12) + 4], "little") == n * 256 + page
    print("holds", len(held), total(), flush=True)
"#;

/// How long a cell may keep what it does not use.
const KEEPS: Duration = Duration::from_secs(60);

fn holding(name: &str, options: &[&str]) -> Result<Talking, Failed> {
    let options = [&["--memory", "96M", "--elastic", "--max-memory"], options].concat();
    let mut talking = Talking::start(name, &options, &["/usr/bin/python3", "-c", HOLDS])?;
    match &talking.line()?[..] {
        "begun 96" => Ok(talking),
        other => Err(format!("it began with {other:?}").into()),
    }
}

/// What a line says that was answered: MiB that the program holds, and that it sees in all.
fn held(said: &str) -> Result<(u64, u64), Failed> {
    let mut words = said.split(' ').skip(1).map_while(|word| word.parse().ok());
    words.next().zip(words.next()).ok_or_else(|| format!("it said {said:?}").into())
}

/// A cell whose programs need more takes it, as much as it may, and gives back what they don't use any more (XOS-09).
fn grows_by_itself() -> Done {
    let mut talking = holding("grows", &["1G", "--host-reserve", "0"])?;
    for round in 0..2 {
        let (holds, total) = held(&talking.say("400")?)?;
        if holds != 400 || !(400..=700).contains(&total) {
            return Err(format!("round {round}: it holds {holds} MiB of {total}").into());
        }
        let (_, total) = held(&talking.say("8")?)?;
        let begun = Instant::now();
        loop {
            let about = talking.about()?;
            let elastic = about.elastic.ok_or("it does not say that it is elastic")?;
            let by_itself = elastic.taken - elastic.given_back;
            if about.memory <= 192 * MIB && by_itself == about.memory - 96 * MIB && elastic.base == 96 * MIB {
                break;
            }
            if begun.elapsed() > KEEPS {
                return Err(format!("{} of {total} MiB: {elastic:?}", about.memory / MIB).into());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
    // What was said is what it has in any case.
    talking.resize(256)?;
    if talking.about()?.elastic.map(|elastic| elastic.base) != Some(256 * MIB) {
        return Err("it does not know what it was given".into());
    }
    Ok(())
}

/// One that may have no more, or whose host has none left, is as any that has used up its memory: who wants more fails, not the cell.
fn gets_no_more() -> Done {
    for options in [&["256M", "--host-reserve", "0"][..], &["4G", "--host-reserve", "1000000G"]] {
        let mut talking = holding("no-more", options)?;
        held(&talking.say("40")?)?;
        let most = if options[0] == "4G" { 96 } else { 256 };
        let line = talking.say("1500")?;
        if !line.is_empty() {
            return Err(format!("{options:?}: it holds 1500 MiB of {most}: {line:?}").into());
        }
        let status = talking.cell.0.wait()?;
        if status.success() {
            return Err(format!("{options:?}: it ended with {status}").into());
        }
    }
    Ok(())
}

/// Cores that need memory at the same time get some, without a lost page.
fn several_grow() -> Done {
    const PROGRAM: &str = r#"
import os, sys
children = []
for n in range(6):
    pid = os.fork()
    if pid == 0:
        held = [bytes([n + 1]) * (1 << 20) for _ in range(80)]
        os._exit(0 if all(p.count(n + 1) == 1 << 20 for p in held) else 1)
    children.append(pid)
sys.exit(sum(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0 for pid in children))
"#;
    let mut command = Command::new(atoll());
    command.args(["run", "--cores", "2", "--memory", "96M", "--max-memory", "2G", "--elastic"]);
    command.args(["--host-reserve", "0", "--", "/usr/bin/python3", "-c", PROGRAM]);
    let outcome = run(command, Duration::from_secs(120))?;
    if outcome.hung || outcome.status != 0 {
        return Err(format!("status {}: {}", outcome.status, outcome.stderr).into());
    }
    Ok(())
}
