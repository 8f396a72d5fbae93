//! The machine that this runs on: its packages and its processes.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Result, bail};

/// Where a program is. A name with a slash is a path.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian's servers lie in directories that an ordinary user's path leaves out.
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|dir| dir.join(program))
        .find(|p| p.is_file())
}

/// Is a program to be found?
pub fn has(program: &str) -> bool {
    find(program).is_some()
}

/// Do we run as root?
pub fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

/// Sees to it that programs are there: each with the Debian package that brings it.
pub fn need(programs: &[(&str, &str)]) -> Result<()> {
    let missing: Vec<&str> = programs.iter().filter(|(p, _)| !has(p)).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    if !is_root() || !has("apt-get") {
        bail!(
            "these packages are missing: {list}. Install them (on Debian or Ubuntu: apt-get install {list}) and try again"
        );
    }
    println!("Installing {list} ...");
    let apt = |arguments: &[&str]| -> Result<()> {
        let output = Command::new("apt-get")
            .args(arguments)
            .env("DEBIAN_FRONTEND", "noninteractive")
            // A server that a package brings must not start by itself.
            .env("RUNLEVEL", "1")
            .stdin(Stdio::null())
            .output()?;
        if !output.status.success() {
            bail!("apt-get {} failed:\n{}", arguments.join(" "), String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    };
    apt(&["update", "-qq"])?;
    let mut arguments = vec!["install", "-y", "-qq", "--no-install-recommends"];
    arguments.extend(missing);
    apt(&arguments)
}

/// A process and all its descendants.
fn tree(pid: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        if let Some(parent) = stat_field(&format!("/proc/{pid}/stat"), 4) {
            children.entry(parent as u32).or_default().push(pid);
        }
    }
    let mut all = vec![pid];
    let mut looked_at = 0;
    while let Some(pid) = all.get(looked_at) {
        all.extend(children.get(pid).into_iter().flatten());
        looked_at += 1;
    }
    all
}

/// Memory of the machine that processes and all their descendants keep, bytes: files that they have open and that no path of ours leads to,
/// such as a cell's memory, as a whole, and their part (Pss) of whatever else is mapped.
pub fn resident(pids: &[u32]) -> Result<u64> {
    let all: Vec<u32> = pids.iter().flat_map(|pid| tree(*pid)).collect();
    let mut whole = HashMap::new();
    for pid in &all {
        for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
            let (Ok(file), Ok(path)) = (fs::metadata(entry.path()), fs::read_link(entry.path())) else {
                continue;
            };
            let is_reached = fs::metadata(path).is_ok_and(|m| (m.dev(), m.ino()) == (file.dev(), file.ino()));
            if file.is_file() && !is_reached {
                // As makedev(3) puts them together.
                let (major, minor) = (file.dev() >> 8 & 0xfff, file.dev() & 0xff | file.dev() >> 12 & !0xff);
                whole.insert((major, minor, file.ino()), file.blocks() * 512);
            }
        }
    }
    let mut parts = 0;
    for pid in &all {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
        let mut counts = true;
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                // A mapping: addresses, access, offset, device, number, path. What has a key is of the mapping before it.
                [range, _, _, device, ino, ..] if range.contains('-') => {
                    let number = |text: &str| u64::from_str_radix(text, 16).unwrap_or(0);
                    let (major, minor) = device.split_once(':').unwrap_or_default();
                    counts = !whole.contains_key(&(number(major), number(minor), ino.parse()?));
                }
                ["Pss:", size, ..] if counts => parts += size.parse::<u64>()? << 10,
                _ => {}
            }
        }
    }
    Ok(parts + whole.values().sum::<u64>())
}

/// Processor time that a process and all its descendants have used, in all their threads, seconds: exact, but without what has ended.
pub fn cpu_seconds(pid: u32) -> f64 {
    let mut sum = 0.0;
    for pid in tree(pid) {
        for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            // Nanoseconds on a processor, exact; ticks where the kernel does not tell.
            let path = task.path();
            let exact = fs::read_to_string(path.join("schedstat"))
                .ok()
                .and_then(|s| s.split_whitespace().next()?.parse::<f64>().ok());
            let stat = path.join("stat").display().to_string();
            sum += match exact {
                Some(ns) => ns / 1e9,
                None => {
                    (stat_field(&stat, 14).unwrap_or(0) + stat_field(&stat, 15).unwrap_or(0)) as f64 / 100.0
                }
            };
        }
    }
    sum
}

/// The same to some hundredths of a second, with the threads and processes that have ended in the meantime.
pub fn cpu_seconds_with_ended(pid: u32) -> f64 {
    let of_one = |pid: u32| -> u64 {
        // Its own and that of children that it has waited for, in the program and in the kernel.
        (14..=17).filter_map(|n| stat_field(&format!("/proc/{pid}/stat"), n)).sum()
    };
    tree(pid).into_iter().map(of_one).sum::<u64>() as f64 / 100.0
}

/// Field `n` of a stat file, as proc(5) counts them.
fn stat_field(path: &str, n: usize) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    // The name, in parentheses, may hold anything.
    text.rsplit_once(')')?.1.split_whitespace().nth(n - 3)?.parse().ok()
}

/// A group of processes (cgroups(7)) whose time on processors the host counts to the nanosecond or microsecond, that of those that have
/// ended too.
pub struct Counted {
    dir: PathBuf,
    is_v2: bool,
}

impl Counted {
    /// A new one. None: the host has no such groups, or does not let us make one.
    pub fn new(name: &str) -> Option<Counted> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("atoll-bench-{}-{}-{name}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
        // Version 1 first: where both are, time may be counted by either.
        let mut found: Vec<(bool, &str)> = mounts
            .lines()
            .filter_map(|line| {
                let words: Vec<&str> = line.split_whitespace().collect();
                let [_, at, kind, options, ..] = words[..] else { return None };
                let is_v1 = kind == "cgroup" && options.split(',').any(|o| o == "cpuacct");
                (is_v1 || kind == "cgroup2").then_some((kind == "cgroup2", at))
            })
            .collect();
        found.sort_unstable();
        found.into_iter().find_map(|(is_v2, at)| {
            let dir = PathBuf::from(at).join(&name);
            fs::create_dir(&dir).ok()?;
            let counted = Counted { dir, is_v2 };
            let may_join = fs::File::options().write(true).open(counted.dir.join("cgroup.procs")).is_ok();
            (may_join && counted.seconds().is_some()).then_some(counted)
        })
    }

    /// Has a command run in it, by a shell, which becomes it: a command with its arguments and environment, and nothing else set.
    pub fn of(&self, command: &Command) -> Command {
        let mut inside = Command::new("/bin/sh");
        inside.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]);
        inside.arg(self.dir.join("cgroup.procs")).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside
    }

    /// Time that they have had, seconds.
    pub fn seconds(&self) -> Option<f64> {
        if self.is_v2 {
            let text = fs::read_to_string(self.dir.join("cpu.stat")).ok()?;
            let us = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
            return us.trim().parse::<f64>().ok().map(|us| us / 1e6);
        }
        let ns = fs::read_to_string(self.dir.join("cpuacct.usage")).ok()?;
        ns.trim().parse::<f64>().ok().map(|ns| ns / 1e9)
    }
}

impl Drop for Counted {
    /// Best effort: the last of its processes may be about to end.
    fn drop(&mut self) {
        for _ in 0..50 {
            match fs::remove_dir(&self.dir) {
                Err(e) if e.kind() == std::io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
                _ => return,
            }
        }
    }
}

/// The middle value.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}
