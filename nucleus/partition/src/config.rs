//! The boot configuration: lines of text.
//!
//! ```text
//! # A service beside a batch job.
//! cell web
//!     cores 2
//!     memory 512M
//!     image redis
//!     device net0
//!     run redis-server --port 6379
//! cell batch
//!     cores 4
//!     memory 2G
//!     image tools
//!     run /bin/busybox sh /job
//! ```
//!
//! `max-cores 4` gives a cell more cores than it uses at first: it uses them when it is told to (`atoll resize`).
//! `grid FILE` says how a cell divides itself among activities, by a file beside this one (docs/grid.md).
//! `memory-policy FILE` says how memory is brought in for which programs, likewise (docs/memory.md).
//! `counter cache-misses` has its books count that beside time, where the machine can (docs/grid.md).
//! `restart on-failure` (or `always`, or at most three times `on-failure:3`) has a cell start again that has ended;
//! `peer NAME` lets it send lines to another cell.
//!
//! `cell` begins a cell; the lines behind it, up to the next one, say what it is to have. A `#` at the
//! start of a word begins a comment, except in a `run` line.

use arrayvec::ArrayVec;
use core::fmt;

use crate::{BLOCK, CELLS_MAX, CORES_MAX};

/// Longest name, bytes.
const NAME_MAX: usize = 31;
/// Least memory of a cell, bytes: what its runtime needs.
const MEMORY_MIN: u64 = 32 << 20;
/// The most devices of a cell.
const DEVICES_MAX: usize = 8;
/// The most cells that one may send lines to, or that may send lines to it.
const PEERS_MAX: usize = 8;

/// What a cell is to have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request<'a> {
    /// Its name: letters, digits, `-` and `_`.
    pub name: &'a str,
    /// How many cores it uses at first.
    pub cores: usize,
    /// How many are its own.
    pub max_cores: usize,
    /// Memory, bytes, in whole blocks.
    pub memory: u64,
    /// Its runtime, a file of the boot module. Without one it only gets its share.
    pub runtime: Option<&'a str>,
    /// Its encoded boot configuration, another file: what runs, and how the world looks to it.
    pub boot: Option<&'a str>,
    /// The image with its files, another one.
    pub image: Option<&'a str>,
    /// The file that says how its grid divides it. Only for `atoll`, which puts what it says into `boot`.
    pub grid: Option<&'a str>,
    /// The file that says how memory is brought in for its programs. For `atoll` only, too.
    pub memory_policy: Option<&'a str>,
    /// What its books count beside time, by the name that `perf-list(1)` has for it.
    pub counter: Option<&'a str>,
    /// Its devices.
    pub devices: ArrayVec<&'a str, DEVICES_MAX>,
    /// When it is to start again.
    pub restart: Restart,
    /// Cells that it may send lines to.
    pub peers: ArrayVec<&'a str, PEERS_MAX>,
    /// The program and its arguments, as one line.
    pub run: &'a str,
}

/// When a cell starts again that has ended, as Docker's `--restart` has it: `no`, `always`, `on-failure`, the last
/// two also with `:N`, so many times.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Restart {
    /// When its program or its runtime was ended by a signal or an exception, or ended with another status than 0.
    pub on_failure: bool,
    /// Also when it ended well.
    pub always: bool,
    /// How many times at most.
    pub most: u32,
}

impl Restart {
    /// How long a cell waits that has started again so many times, ns: not at all, then 0.1 s, each time twice as long,
    /// up to 10 s.
    pub fn wait(restarts: u32) -> u64 {
        const FIRST: u64 = 100_000_000;
        const LONGEST: u64 = 10_000_000_000;
        // The shift stays where it loses no bits.
        restarts.checked_sub(1).map_or(0, |n| (FIRST << n.min(7)).min(LONGEST))
    }

    fn parse(word: &str) -> Option<Restart> {
        let (when, most) = match word.split_once(':') {
            Some((when, most)) => (when, number(most).and_then(|n| u32::try_from(n).ok())?),
            None => (word, u32::MAX),
        };
        let restart = |always| Some(Restart { on_failure: true, always, most });
        match when {
            "no" if word == when => Some(Restart::default()),
            "on-failure" => restart(false),
            "always" => restart(true),
            _ => None,
        }
    }
}

impl fmt::Display for Restart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.on_failure, self.always) {
            (false, _) => return f.write_str("no"),
            (true, false) => f.write_str("on-failure")?,
            (true, true) => f.write_str("always")?,
        }
        if self.most == u32::MAX { Ok(()) } else { write!(f, ":{}", self.most) }
    }
}

/// The cells of a configuration, in its order.
pub type Config<'a> = ArrayVec<Request<'a>, CELLS_MAX>;

/// What is wrong with a configuration, and in which line (from 1 on).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConfigError<'a> {
    /// The line.
    pub line: usize,
    /// What is wrong.
    pub what: &'static str,
    /// With which word.
    pub word: &'a str,
}

impl fmt::Display for ConfigError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)?;
        if self.word.is_empty() { Ok(()) } else { write!(f, ": {}", self.word) }
    }
}

/// Bytes: a number with K, M, G or T behind it (1024 each), or without.
fn size(word: &str) -> Option<u64> {
    let unit = match word.as_bytes().last()? {
        b'K' => 10,
        b'M' => 20,
        b'G' => 30,
        b'T' => 40,
        _ => 0,
    };
    let digits = if unit == 0 { word } else { &word[..word.len() - 1] };
    number(digits)?.checked_mul(1 << unit)
}

/// A decimal number without a sign.
fn number(word: &str) -> Option<u64> {
    word.bytes().all(|b| b.is_ascii_digit()).then(|| word.parse().ok())?
}

fn is_name(word: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    word.len() <= NAME_MAX && word.bytes().all(fits)
}

/// A name with an ending, such as `grid.toml`; no way to another directory.
fn is_file_name(word: &str) -> bool {
    !word.starts_with('.') && word.split('.').all(is_name)
}

/// A cell that is being read, and what was said of it.
struct Open<'a> {
    line: usize,
    request: Request<'a>,
    said: ArrayVec<&'a str, 12>,
}

impl<'a> Open<'a> {
    fn finish(self, config: &mut Config<'a>) -> Result<(), ConfigError<'a>> {
        let Open { line, mut request, .. } = self;
        let wrong = |what| Err(ConfigError { line, what, word: request.name });
        if request.cores == 0 {
            return wrong("this cell has no `cores`");
        }
        if request.max_cores == 0 {
            request.max_cores = request.cores;
        }
        if request.max_cores < request.cores {
            return wrong("this cell has `max-cores` below its `cores`");
        }
        if request.memory == 0 {
            return wrong("this cell has no `memory`");
        }
        if request.run.is_empty() {
            return wrong("this cell has nothing to `run`");
        }
        if config.iter().any(|c| c.name == request.name) {
            return wrong("there are two cells of this name");
        }
        if config.try_push(request).is_err() {
            return Err(ConfigError { line, what: "there are more than 32 cells", word: "" });
        }
        Ok(())
    }
}

/// Reads a configuration.
pub fn parse(text: &str) -> Result<Config<'_>, ConfigError<'_>> {
    let mut config = Config::new();
    let mut open: Option<Open<'_>> = None;
    for (n, whole) in text.lines().enumerate() {
        let line = n + 1;
        let wrong = |what, word| ConfigError { line, what, word };
        let mut words = whole.split_ascii_whitespace();
        let Some(key) = words.next().filter(|w| !w.starts_with('#')) else { continue };
        let value = words.next().filter(|w| !w.starts_with('#')).ok_or(wrong("a value is missing", key))?;
        if key != "run"
            && let Some(more) = words.next().filter(|w| !w.starts_with('#'))
        {
            return Err(wrong("one value is enough", more));
        }
        if key == "cell" {
            if !is_name(value) {
                return Err(wrong("a name is up to 31 letters, digits, - and _", value));
            }
            let request = Request {
                name: value,
                cores: 0,
                max_cores: 0,
                memory: 0,
                runtime: None,
                boot: None,
                image: None,
                grid: None,
                memory_policy: None,
                counter: None,
                devices: ArrayVec::new(),
                restart: Restart::default(),
                peers: ArrayVec::new(),
                run: "",
            };
            if let Some(before) = open.replace(Open { line, request, said: ArrayVec::new() }) {
                before.finish(&mut config)?;
            }
            continue;
        }
        let Some(Open { request, said, .. }) = &mut open else {
            return Err(wrong("before this, `cell NAME` says which cell it is for", key));
        };
        if !matches!(key, "device" | "peer") && (said.contains(&key) || said.try_push(key).is_err()) {
            return Err(wrong("this cell has that already", key));
        }
        match key {
            "cores" | "max-cores" => {
                let cores = number(value)
                    .and_then(|n| usize::try_from(n).ok())
                    .filter(|n| (1..=CORES_MAX).contains(n))
                    .ok_or(wrong("a cell has 1 to 64 cores", value))?;
                *(if key == "cores" { &mut request.cores } else { &mut request.max_cores }) = cores;
            }
            "memory" => {
                request.memory = size(value)
                    .filter(|m| *m >= MEMORY_MIN)
                    .and_then(|m| m.checked_next_multiple_of(BLOCK))
                    .ok_or(wrong("memory is a size such as 512M or 2G, and at least 32M", value))?;
            }
            "runtime" | "boot" | "image" if !is_name(value) => {
                return Err(wrong("the name of a file is up to 31 letters, digits, - and _", value));
            }
            "grid" | "memory-policy" if !is_file_name(value) => {
                return Err(wrong(
                    "the name of a file beside this one is letters, digits, -, _ and dots",
                    value,
                ));
            }
            "counter" if !is_name(value) => {
                return Err(wrong("what is counted is letters, digits, - and _", value));
            }
            "counter" => request.counter = Some(value),
            "grid" => request.grid = Some(value),
            "memory-policy" => request.memory_policy = Some(value),
            "runtime" => request.runtime = Some(value),
            "boot" => request.boot = Some(value),
            "image" => request.image = Some(value),
            "device" => {
                if request.devices.contains(&value) || request.devices.try_push(value).is_err() {
                    return Err(wrong("a device twice, or more than 8", value));
                }
            }
            "restart" => {
                request.restart = Restart::parse(value)
                    .ok_or(wrong("restart is no, on-failure, always, on-failure:3", value))?;
            }
            "peer" => {
                if request.peers.contains(&value) || request.peers.try_push(value).is_err() {
                    return Err(wrong("a peer twice, or more than 8", value));
                }
            }
            "run" => {
                let rest = whole.trim_start().strip_prefix("run").unwrap_or_default();
                request.run = rest.trim_ascii();
            }
            _ => {
                return Err(wrong(
                    "this is none of cell, cores, max-cores, memory, runtime, boot, image, grid, memory-policy, counter, device, peer, restart, run",
                    key,
                ));
            }
        }
    }
    match open {
        Some(last) => last.finish(&mut config)?,
        None => return Err(ConfigError { line: 1, what: "it names no cell", word: "" }),
    }
    for cell in &config {
        let wrong = |what, word| Err(ConfigError { line: text.lines().count(), what, word });
        if let Some(peer) =
            cell.peers.iter().find(|p| **p == cell.name || !config.iter().any(|c| c.name == **p))
        {
            return wrong("a peer is the name of another cell", peer);
        }
        if peers(&config, cell.name).count() > PEERS_MAX {
            return wrong("more than 8 peers, it sends to them or they to it", cell.name);
        }
    }
    Ok(config)
}

/// Cells that exchange lines with this one: their numbers, whether it may send to them, and whether they may to it.
pub fn peers<'a>(config: &'a Config<'_>, name: &'a str) -> impl Iterator<Item = (usize, bool, bool)> + 'a {
    let all = config.iter().enumerate().map(move |(n, other)| {
        let sends = config.iter().any(|c| c.name == name && c.peers.contains(&other.name));
        (n, sends, other.peers.contains(&name))
    });
    all.filter(|(_, to, from)| *to || *from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn waits_before_restarts() {
        let milliseconds = |n| Restart::wait(n) / 1_000_000;
        let first: Vec<u64> = (0..10).map(milliseconds).collect();
        assert_eq!(first, [0, 100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        assert!((8..200).chain([u32::MAX - 1, u32::MAX]).all(|n| milliseconds(n) == 10_000));
    }

    #[test]
    fn reads_what_it_documents() {
        let text = "# two\ncell web # the first\n  cores 2\n\tmemory 512M\n runtime rt\n boot b\n image redis\n grid a.b-1.toml\n memory-policy m.toml\n counter cache-misses\n device net0\n device disk1\n \
                    run redis-server --port 6379 # not a comment \n\ncell batch\ncores 4\nmax-cores 6\nmemory 3M1\n";
        let error = parse(text).unwrap_err();
        assert_eq!((error.line, error.word), (18, "3M1"));
        let text = text.replace("3M1", "33M\nrun x");
        let config = parse(&text).unwrap();
        assert_eq!(config.len(), 2);
        assert_eq!((config[0].name, config[0].cores, config[0].memory), ("web", 2, 512 << 20));
        assert_eq!(config.iter().map(|c| c.max_cores).collect::<Vec<_>>(), [2, 6]);
        assert_eq!((config[0].image, config[0].devices.as_slice()), (Some("redis"), &["net0", "disk1"][..]));
        assert_eq!((config[0].grid, config[1].grid), (Some("a.b-1.toml"), None));
        assert_eq!((config[0].memory_policy, config[1].memory_policy), (Some("m.toml"), None));
        assert_eq!((config[0].counter, config[1].counter), (Some("cache-misses"), None));
        assert_eq!((config[0].runtime, config[0].boot), (Some("rt"), Some("b")));
        assert_eq!(config[0].run, "redis-server --port 6379 # not a comment");
        // Whole blocks.
        assert_eq!(config[1].memory, 34 << 20);
    }

    #[test]
    fn says_what_is_wrong_and_where() {
        let cell = "cell a\ncores 1\nmemory 32M\nrun x\n";
        for (text, line, part) in [
            ("", 1, "names no cell"),
            ("cores 1", 1, "before this"),
            ("cell", 1, "a value is missing: cell"),
            ("cell a b", 1, "one value is enough: b"),
            ("cell a/b", 1, "letters"),
            ("cell a\ncores 0", 2, "1 to 64 cores: 0"),
            ("cell a\ncores 65", 2, "1 to 64 cores"),
            ("cell a\ncores +1", 2, "1 to 64 cores"),
            ("cell a\nmemory 31M", 2, "at least 32M"),
            ("cell a\nmemory 99999999999T", 2, "memory is a size"),
            ("cell a\nmemory 18446744073709551615", 2, "memory is a size"),
            ("cell a\nmemory M", 2, "memory is a size"),
            ("cell a\ncores 1\ncores 1", 3, "has that already"),
            ("cell a\ndevice x\ndevice x", 3, "a device twice"),
            ("cell a\nspeed 3", 2, "none of cell"),
            ("cell a\ngrid ../a.toml", 2, "the name of a file beside this one"),
            ("cell a\nmemory-policy a/b", 2, "the name of a file beside this one"),
            ("cell a\ncounter a/b", 2, "what is counted is letters"),
            ("cell a\ngrid .toml", 2, "the name of a file beside this one"),
            ("cell a\nrestart often", 2, "restart is no, on-failure"),
            ("cell a\nrestart always:x", 2, "restart is no, on-failure"),
            ("cell a\nrestart no:1", 2, "restart is no, on-failure"),
            ("cell a\npeer x\npeer x", 3, "a peer twice"),
            ("cell a\n\ncores 1\ncell b", 1, "no `memory`: a"),
            ("cell a\ncores 2\nmax-cores 1", 1, "below its `cores`: a"),
            (&format!("{cell}peer b\n"), 5, "name of another cell: b"),
            (&format!("{cell}peer a\n"), 5, "name of another cell: a"),
            (&format!("{cell}{cell}"), 5, "two cells of this name: a"),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!(error.line, line, "{text}: {error}");
            assert!(format!("{error}").contains(part), "{text}: {error}");
        }
        // Nine that send to one.
        let senders: String = (0..9).map(|n| cell.replace(" a", &format!(" s{n}")) + "peer a\n").collect();
        assert_eq!(parse(&format!("{cell}{senders}")).unwrap_err().word, "a");
        let many: String = (0..33).map(|n| cell.replace(" a", &format!(" a{n}"))).collect();
        assert_eq!(parse(&many).unwrap_err().what, "there are more than 32 cells");
    }

    #[test]
    fn knows_peers_and_restarts() {
        let cell = |name: &str, more: &str| format!("cell {name}\ncores 1\nmemory 32M\nrun x\n{more}");
        let text = cell("a", "peer c\nrestart on-failure:3\n")
            + &cell("b", "restart no")
            + "\n"
            + &cell("c", "peer a\npeer b\nrestart always");
        let config = parse(&text).unwrap();
        let of = |name| peers(&config, name).collect::<Vec<_>>();
        assert_eq!(of("a"), [(2, true, true)]);
        assert_eq!(of("b"), [(2, false, true)]);
        assert_eq!(of("c"), [(0, true, true), (1, true, false)]);
        let restarts = config.iter().map(|c| c.restart.to_string()).collect::<Vec<_>>();
        assert_eq!(restarts, ["on-failure:3", "no", "always"]);
        assert_eq!(config[0].restart, Restart { on_failure: true, always: false, most: 3 });
    }

    proptest! {
        /// Whatever it is given, it answers.
        #[test]
        fn takes_any_text(text in "(cell|cores|memory|run|image|grid|device|#|[ \\n\\t]|[a-z0-9MGT]{1,4}|\\PC){0,60}") {
            if let Err(e) = parse(&text) {
                prop_assert!(e.line <= text.lines().count().max(1));
            }
        }
    }
}
