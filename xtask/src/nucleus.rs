//! Figures of the nucleus: a cell on it against Linux, each on a machine of its own in the same QEMU.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::bench::{Options, Row, number};
use crate::build::{run, top};
use crate::guests::{Counter, Guest, Workshop};
use crate::servers::{Kind, SIDES, Side, after};
use crate::system::need;

/// Redis as it is started on both.
const REDIS: [&str; 7] = ["redis-server", "--port", "6379", "--protected-mode", "no", "--save", ""];
/// memcached, too.
const MEMCACHED: [&str; 11] =
    ["memcached", "-u", "root", "-l", "0.0.0.0", "-p", "11211", "-U", "0", "-m", "256"];

/// From QEMU's start to the first byte that Redis answers, and where that time goes.
pub fn boot(options: &Options, dir: &Path) -> Result<()> {
    need(Kind::Redis.needs())?;
    let workshop = Workshop::new(dir)?;
    let images =
        [workshop.image(Side::Linux, "redis", &REDIS, 1)?, workshop.image(Side::Cell, "redis", &REDIS, 1)?];
    // Name, and what begins it on each side.
    let phases = [
        ("the first line", ["Linux version", "nucleus: "]),
        ("init, to the cell", ["bench: init", "nucleus: cell bench"]),
        ("Redis's first line", ["Redis is starting"; 2]),
        ("Redis ready", ["Ready to accept connections"; 2]),
    ];
    let mut times: [[Vec<f64>; 5]; 2] = Default::default();
    // One of each that does not count.
    for round in 0..=options.rounds {
        for (n, image) in images.iter().enumerate() {
            let mut guest = Guest::start(image, 6379, None)?;
            guest.until("Ready to accept connections")?;
            let answer = guest.answers(b"PING\r\n")?;
            if round == 0 {
                continue;
            }
            for (times, (name, begins)) in times[n].iter_mut().zip(&phases) {
                let at = guest.first(begins[n]).with_context(|| format!("not to be seen: {name}"))?;
                times.push(at.as_secs_f64() * 1000.0);
            }
            times[n][4].push(answer.as_secs_f64() * 1000.0);
        }
    }
    let [linux, cell] = times;
    let names = phases.map(|(name, _)| format!("boot to {name}"));
    let names = names.into_iter().chain(["boot to Redis's first answer".to_string()]);
    for ((name, mut linux), mut cell) in names.zip(linux).zip(cell) {
        Row::less(name, "ms", &mut linux, &mut cell).print(options.json);
    }
    says(options, &format!("Linux: {}", workshop.kernel_name));
    Ok(())
}

fn says(options: &Options, text: &str) {
    if !options.json {
        println!("{text}");
    }
}

/// System calls and processes in time and instructions, requests to servers and the nucleus's own calls in instructions.
pub fn nucleus(options: &Options, dir: &Path) -> Result<()> {
    let workshop = Workshop::new(dir)?;
    // A tenth of the work: these machines are some ten times slower.
    times(options, &workshop, "calls", &["10"])?;
    times(options, &workshop, "processes", &["128", "self"])?;
    requests(options, &workshop)?;
    own_calls(options, &workshop)?;
    says(options, &format!("Linux: {}", workshop.kernel_name));
    Ok(())
}

/// What a program of `bench` has said: name, number of calls, ns for one.
fn measured(text: &str) -> Vec<(String, f64, f64)> {
    let line = |line: &str| {
        let (rest, time) = line.rsplit_once(' ')?;
        let (name, n) = rest.rsplit_once(' ')?;
        Some((name.to_string(), n.parse().ok()?, time.parse().ok()?))
    };
    // Of what the machine says itself, something may look like that: it is no name of the program's.
    text.lines().filter(|l| !l.starts_with('[') && !l.starts_with("nucleus")).filter_map(line).collect()
}

/// Has one of them measure on both, time and instructions.
fn times(options: &Options, workshop: &Workshop, name: &str, arguments: &[&str]) -> Result<()> {
    let program = workshop.dir().join(name);
    let source = top().join("bench").join(name).with_extension("c");
    run(Command::new("gcc").args(["-O2", "-pthread", "-o"]).arg(&program).arg(source))?;
    let program = program.display().to_string();
    let words: Vec<&str> = [&*program].into_iter().chain(arguments.iter().copied()).collect();
    let images =
        [workshop.image(Side::Linux, name, &words, 1)?, workshop.image(Side::Cell, name, &words, 1)?];
    let mut times: [BTreeMap<String, Vec<f64>>; 2] = Default::default();
    for _ in 0..options.rounds {
        for (image, times) in images.iter().zip(&mut times) {
            let mut guest = Guest::start(image, 0, None)?;
            guest.wait()?;
            for (name, _, time) in measured(&guest.text()) {
                times.entry(name).or_default().push(time);
            }
        }
    }
    let mut counts: [Vec<(String, f64)>; 2] = Default::default();
    for ((image, side), counts) in images.iter().zip(SIDES).zip(&mut counts) {
        let counter = workshop.counter(&format!("{name}-{side:?}"));
        let mut guest = Guest::start(image, 0, Some(&counter))?;
        guest.wait()?;
        let marks = counter.marks()?;
        let measured = measured(&guest.text());
        if measured.is_empty() || marks.len() != measured.len() * 2 {
            bail!("{} marks for {} figures:\n{}", marks.len(), measured.len(), guest.text());
        }
        for (pair, (name, n, _)) in marks.chunks_exact(2).zip(measured) {
            counts.push((name, (pair[1].1 - pair[0].1) as f64 / n));
        }
    }
    let [linux, cell] = counts;
    for ((name, linux), (other, cell)) in linux.into_iter().zip(cell) {
        if name != other {
            bail!("the two sides have measured {name} and {other}");
        }
        let taken = |times: &mut BTreeMap<String, Vec<f64>>| times.remove(&name).unwrap_or_default();
        let [a, b] = &mut times;
        Row::less(name.clone(), "ns", &mut taken(a), &mut taken(b)).print(options.json);
        Row::less(format!("{name}: guest"), "instructions", &mut [linux], &mut [cell]).print(options.json);
    }
    Ok(())
}

/// Makes this many requests of a server, about: how many they were.
type Load = fn(port: u16, dir: &Path, requests: u64) -> Result<u64>;

fn client(command: &mut Command) -> Result<String> {
    let shown = format!("{command:?}").replace('"', "");
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("starting {shown}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("{shown} failed with {}:\n{text}{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(text)
}

fn redis_benchmark(port: u16, what: &str, requests: u64) -> Result<u64> {
    let (port, n) = (port.to_string(), requests.to_string());
    client(Command::new("redis-benchmark").args([
        "-p",
        &port,
        "-t",
        what,
        "-c",
        CONNECTIONS,
        "--csv",
        "-n",
        &n,
    ]))?;
    Ok(requests)
}

fn memcaslap(port: u16, dir: &Path, requests: u64) -> Result<u64> {
    let file = dir.join("memcaslap.conf");
    fs::write(&file, "key\n64 64 1\nvalue\n1024 1024 1\ncmd\n0 0.1\n1 0.9\n")?;
    let mut command = Command::new("memcaslap");
    command.args([
        "-s",
        &format!("127.0.0.1:{port}"),
        "-T",
        "1",
        "-c",
        CONNECTIONS,
        "-x",
        &requests.to_string(),
        "-F",
    ]);
    let text = client(command.arg(&file))?;
    Ok(after(&text, "Ops:").context("memcaslap says no number of operations")? as u64)
}

/// A server: its words, its port, and what it answers to.
type Server = (&'static [&'static str], u16, &'static [u8]);
const REDIS_SERVER: Server = (&REDIS, 6379, b"PING\r\n");
const MEMCACHED_SERVER: Server = (&MEMCACHED, 11211, b"version\r\n");
/// Loads that are compared.
const LOADS: [(&str, Server, Load); 3] = [
    ("redis get", REDIS_SERVER, |port, _, n| redis_benchmark(port, "get", n)),
    ("redis set", REDIS_SERVER, |port, _, n| redis_benchmark(port, "set", n)),
    ("memcached, 90 % get, 1 KiB", MEMCACHED_SERVER, memcaslap),
];
/// Connections at once. QEMU's user network takes in one after the other and loses more that come together.
const CONNECTIONS: &str = "8";
/// Requests of the shorter and the longer run: what both do besides, connecting for example, falls out.
const REQUESTS: [u64; 2] = [4_000, 20_000];

fn requests(options: &Options, workshop: &Workshop) -> Result<()> {
    need(Kind::Redis.needs())?;
    need(Kind::Memcached.needs())?;
    for (name, (words, port, hello), load) in LOADS {
        let mut guests = Vec::new();
        for side in SIDES {
            let image = workshop.image(side, words[0], words, 1)?;
            let counter = workshop.counter(&format!("{}-{side:?}", words[0]));
            let guest = Guest::start(&image, port, Some(&counter))?;
            guest.answers(hello)?;
            // Fills what is filled once.
            load(guest.port, workshop.dir(), REQUESTS[0])?;
            guests.push((guest, counter));
        }
        let mut counts: [Vec<f64>; 2] = Default::default();
        for _ in 0..options.rounds {
            for ((guest, counter), counts) in guests.iter().zip(&mut counts) {
                counts.push(per_request(guest, counter, workshop.dir(), load)?);
            }
        }
        let [mut linux, mut cell] = counts;
        Row::less(format!("{name}: guest, a request"), "instructions", &mut linux, &mut cell)
            .print(options.json);
    }
    Ok(())
}

/// Instructions of a guest for one request, without what it does anyway.
fn per_request(guest: &Guest, counter: &Counter, dir: &Path, load: Load) -> Result<f64> {
    std::thread::sleep(Duration::from_millis(500));
    let (before, begun) = (counter.instructions()?, Instant::now());
    std::thread::sleep(Duration::from_secs(2));
    let idle = (counter.instructions()? - before) as f64 / begun.elapsed().as_secs_f64();
    let mut runs = [(0.0, 0.0); 2];
    for (run, requests) in runs.iter_mut().zip(REQUESTS) {
        let (before, begun) = (counter.instructions()?, Instant::now());
        let made = load(guest.port, dir, requests)?;
        let busy = (counter.instructions()? - before) as f64 - idle * begun.elapsed().as_secs_f64();
        *run = (busy, made as f64);
    }
    let [short, long] = runs;
    Ok((long.0 - short.0) / (long.1 - short.1))
}

/// The nucleus's own calls, which `bench/nucleus_calls.c` makes between two marks: the first mark, how often,
/// and what. Linux has none to compare them with.
const OWN_CALLS: [(u64, f64, &str); 4] = [
    (10, 1000.0, "map one page"),
    (12, 1000.0, "unmap one page"),
    (14, 1000.0, "notify, to a core that masks it"),
    (16, 32.0, "send a line to another cell"),
];

fn own_calls(options: &Options, workshop: &Workshop) -> Result<()> {
    let dir = workshop.dir().join("own-calls");
    fs::create_dir_all(&dir)?;
    for (name, option) in [("caller", "-DCALLER"), ("peer", "-DRECEIVER")] {
        let mut compiler = Command::new("gcc");
        compiler.args([
            "-O1",
            "-Wall",
            "-ffreestanding",
            "-fno-stack-protector",
            "-fno-pic",
            "-mcmodel=large",
        ]);
        compiler.args(["-nostdlib", "-static", "-no-pie", option]);
        compiler
            .arg("-Wl,--build-id=none,-z,noexecstack,-z,max-page-size=4096,-Ttext-segment=0x400000000000");
        run(compiler.arg("-o").arg(dir.join(name)).arg(top().join("bench/nucleus_calls.c")))?;
    }
    let cell = |name: &str, peer: &str| {
        format!("cell {name}\n cores 1\n memory 64M\n runtime {name}\n peer {peer}\n run x\n")
    };
    fs::write(dir.join("boot.conf"), cell("caller", "peer") + &cell("peer", "caller"))?;
    let module = dir.join("module.tar");
    run(Command::new("tar").arg("-C").arg(&dir).arg("-cf").arg(&module).args([
        "boot.conf",
        "caller",
        "peer",
    ]))?;
    let counter = workshop.counter("own-calls");
    let mut guest = Guest::start(&workshop.nucleus(&module, 2), 0, Some(&counter))?;
    // The peer never ends.
    guest.until("nucleus: cell caller ended")?;
    let marks: BTreeMap<u64, u64> = counter.marks()?.into_iter().collect();
    for (mark, times, name) in OWN_CALLS {
        let (Some(begin), Some(end)) = (marks.get(&mark), marks.get(&(mark + 1))) else {
            bail!("{name} was not measured:\n{}", guest.text());
        };
        let (name, each) = (format!("nucleus: {name}"), (end - begin) as f64 / times);
        if options.json {
            println!("{}", serde_json::json!({ "name": name, "cell": each, "unit": "instructions" }));
        } else {
            println!("{name:44} {:17}  cell {:>11}  instructions", "", number(each));
        }
    }
    Ok(())
}
