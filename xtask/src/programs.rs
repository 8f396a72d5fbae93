//! Unmodified programs whose work is mostly memory, in cells and on Linux (requirement XOS-02).

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::bench::{Row, Table, output};
use crate::build;
use crate::servers::{Kind, SIDES, Server, Side, after, command};
use crate::system::{need, resident};

/// stress-ng's loads: name, and what it is told of it. `bigheap` would grow until there is no memory.
const STRESS: [(&str, &[&str]); 5] = [
    ("vm", &["--vm", "1", "--vm-bytes", "256M"]),
    ("mmap", &["--mmap", "1", "--mmap-bytes", "64M"]),
    ("brk", &["--brk", "1"]),
    ("malloc", &["--malloc", "1"]),
    ("bigheap", &["--bigheap", "1", "--bigheap-growth", "1M", "--bigheap-ops", "600"]),
];
/// How long each of them runs, seconds.
const STRESSED: &str = "3";

/// All of them but will-it-scale's, in turns.
pub fn measure(rounds: usize, json: bool, dir: &Path) -> Result<()> {
    redis(rounds, json, dir)?;
    need(&[("stress-ng", "stress-ng"), ("python3", "python3-minimal"), ("node", "nodejs")])?;
    let mut table = Table::default();
    for _ in 0..rounds {
        for (n, side) in SIDES.into_iter().enumerate() {
            for (name, options) in STRESS {
                let arguments = [options, &["--timeout", STRESSED, "--metrics-brief"]].concat();
                table.add(
                    &format!("stress-ng --{name}: operations"),
                    n,
                    stressed(side, dir, name, &arguments)?,
                );
            }
        }
    }
    table.print(json, |name, linux, cell| Row::more(name, "1/s", linux, cell));
    let bench = build::top().join("bench");
    let mut table = Table::default();
    for file in ["memory_heavy.py", "memory_heavy.js"] {
        fs::copy(bench.join(file), dir.join(file))?;
    }
    for _ in 0..rounds {
        for (n, side) in SIDES.into_iter().enumerate() {
            for (program, file) in [("python3", "memory_heavy.py"), ("node", "memory_heavy.js")] {
                let file = dir.join(file).display().to_string();
                table.add_times(
                    n,
                    &output(side, dir, &format!("/usr/bin/{program}"), &[&file])?,
                    str::to_string,
                )?;
            }
        }
    }
    table.print(json, |name, linux, cell| Row::less(name, "ns", linux, cell));
    idle(rounds, json, dir)
}

/// Operations a second that stress-ng says it did.
fn stressed(side: Side, dir: &Path, name: &str, arguments: &[&str]) -> Result<f64> {
    let arguments: Vec<String> = arguments.iter().map(|a| (*a).to_string()).collect();
    let output =
        command(side, dir, "/usr/bin/stress-ng", &arguments).output().context("starting stress-ng")?;
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    // metrc: [1] vm  <operations>  <real>  <user>  <system>  <operations a real second>  ...
    let rate = text.lines().filter(|l| l.contains("metrc:")).find_map(|line| {
        let mut words = line.split_whitespace().skip_while(|w| *w != name);
        words.nth(5)?.parse().ok()
    });
    rate.with_context(|| format!("stress-ng --{name} ({side:?}) tells no rate, {}:\n{text}", output.status))
}

/// Keys of 1,000 bytes and a little that Redis loads.
const KEYS: usize = 1 << 20;

fn redis(rounds: usize, json: bool, dir: &Path) -> Result<()> {
    need(Kind::Redis.needs())?;
    let mut port = 17_900;
    {
        let server = Server::start(Kind::Redis, Side::Linux, dir, port)?;
        let fill = format!(
            "for i = 1, {KEYS} do redis.call('set', 'k' .. i, string.rep('v', 990) .. i) end return redis.call('dbsize')"
        );
        for words in [&["config", "set", "rdbcompression", "no"][..], &["eval", &fill, "0"], &["save"]] {
            let output = Command::new("redis-cli").args(["-p", &port.to_string()]).args(words).output()?;
            let text = String::from_utf8_lossy(&output.stdout);
            if !["OK", &KEYS.to_string()].contains(&text.trim()) {
                bail!("Redis was to keep {KEYS} keys and said: {text}");
            }
        }
        drop(server);
    }
    let kept = Kind::Redis.directory(Side::Linux, dir).join("dump.rdb");
    let seen = Kind::Redis.directory(Side::Cell, dir);
    fs::create_dir_all(&seen)?;
    fs::hard_link(&kept, seen.join("dump.rdb")).context("the other side's copy of what Redis loads")?;
    let (mut times, mut used) = (Table::default(), Table::default());
    for _ in 0..rounds {
        for (n, side) in SIDES.into_iter().enumerate() {
            port += 1;
            let server = Server::start(Kind::Redis, side, dir, port)?;
            let begun = Instant::now();
            let took = loop {
                if let Some(seconds) = after(&server.said(), "DB loaded from disk:") {
                    break seconds;
                }
                if begun.elapsed() > Duration::from_secs(60) {
                    bail!("Redis ({side:?}) does not load what it kept:\n{}", server.said());
                }
                std::thread::sleep(Duration::from_millis(10));
            };
            times.add("redis loads 1 GiB", n, took);
            used.add("redis loads 1 GiB: processor time, with its start", n, server.cpu());
        }
    }
    for table in [times, used] {
        table.print(json, |name, linux, cell| Row::less(name, "s", linux, cell));
    }
    for side in SIDES {
        fs::remove_dir_all(Kind::Redis.directory(side, dir))?;
    }
    Ok(())
}

/// Programs that do nothing, at the same time.
const IDLE: usize = 8;

/// What a program that does nothing keeps of the machine's memory, with all that serves it: one alone, and each of some.
fn idle(rounds: usize, json: bool, dir: &Path) -> Result<()> {
    let mut table = Table::default();
    for _ in 0..rounds {
        for (n, side) in SIDES.into_iter().enumerate() {
            for (count, name) in [(1, "one"), (IDLE, "each of eight")] {
                let start = || Ok(command(side, dir, "/bin/sleep", &["60".into()]).spawn()?);
                let mut all = (0..count).map(|_| start()).collect::<Result<Vec<_>>>()?;
                std::thread::sleep(Duration::from_secs(2));
                let pids: Vec<u32> = all.iter().map(|child| child.id()).collect();
                let resident = resident(&pids);
                for child in &mut all {
                    // By a signal that the supervisor passes on: what it made is to be gone, too.
                    Command::new("kill").arg(child.id().to_string()).status()?;
                    child.wait()?;
                }
                let mib = resident? as f64 / (1 << 20) as f64 / count as f64;
                table.add(&format!("resident memory of /bin/sleep, {name}"), n, mib);
            }
        }
    }
    table.print(json, |name, linux, cell| Row::less(name, "MiB", linux, cell));
    Ok(())
}

/// will-it-scale's tests of memory.
const SCALED: [&str; 9] =
    ["mmap1", "mmap2", "page_fault1", "page_fault2", "page_fault3", "brk1", "brk2", "malloc1", "malloc2"];
/// Seconds that each is measured for, after the six that it warms up.
const SCALED_FOR: &str = "3";
/// Seconds that it may take.
const SCALED_MAX: &str = "20";

/// will-it-scale's own programs, built from `source`.
pub fn will_it_scale(rounds: usize, json: bool, dir: &Path, source: &Path) -> Result<()> {
    need(&[("gcc", "gcc"), ("make", "make"), ("/usr/include/hwloc.h", "libhwloc-dev")])?;
    let built = dir.join("will-it-scale");
    let source =
        source.canonicalize().with_context(|| format!("will-it-scale's source, {}", source.display()))?;
    build::run(Command::new("cp").arg("-r").arg(source).arg(&built))?;
    let mut make = Command::new("make");
    make.arg("-C").arg(&built);
    for test in SCALED {
        make.args([format!("{test}_threads"), format!("{test}_processes")]);
    }
    build::run(make.stdout(std::process::Stdio::null()))?;
    for test in SCALED {
        for kind in ["threads", "processes"] {
            for tasks in ["1", "2"] {
                let mut table = Table::default();
                for _ in 0..rounds {
                    for (n, side) in SIDES.into_iter().enumerate() {
                        let program = built.join(format!("{test}_{kind}")).display().to_string();
                        // It cancels threads in the middle of malloc, which at times never end, on Linux as here: it has said its average
                        // by then.
                        let words = ["-k", "1", SCALED_MAX, &program, "-t", tasks, "-s", SCALED_FOR]
                            .map(String::from);
                        let output = command(side, dir, "/usr/bin/timeout", &words).output()?;
                        let text = String::from_utf8_lossy(&output.stdout);
                        let rate = after(&text, "average:")
                            .with_context(|| format!("{test} tells no average: {text}"))?;
                        table.add(&format!("will-it-scale {test}, {tasks} {kind}"), n, rate);
                    }
                }
                table.print(json, |name, linux, cell| Row::more(name, "1/s", linux, cell));
            }
        }
    }
    Ok(())
}
