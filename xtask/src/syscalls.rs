//! Which system calls are supported, and which of their flags: the table
//! behind `atoll syscalls` and `docs/syscalls.md`.
//!
//! Two sources: the dispatcher's table says what is served at all, and the
//! cases of `tests/syscalls`, which compare a cell with Linux, say what was
//! tried. Each case is run on Linux under `strace`; the calls that it makes
//! beyond starting a program and that succeeded (or failed as the call or a flag asks for),
//! and their flags, are what the case exercises. What no case exercises isn't called supported.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::build::top;

const TABLE: &str = "docs/syscalls.json";
const PAGE: &str = "docs/syscalls.md";
const DISPATCHER: &str = "linux/src/syscalls/table.rs";
const CASES: &str = "tests/syscalls";

/// A system call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Call {
    name: String,
    number: u32,
    /// What it is answered with if it is not served.
    error: Option<String>,
    /// Flags and commands that some case uses.
    flags: BTreeSet<String>,
    /// Cases that make it.
    cases: BTreeSet<String>,
}

/// What the cases of a directory do: by call, the flags and the cases.
type Exercised = BTreeMap<String, (BTreeSet<String>, BTreeSet<String>)>;

/// Writes the table and the page.
pub fn write() -> Result<()> {
    let calls = table(&trace()?)?;
    let text = serde_json::to_string_pretty(&calls)? + "\n";
    fs::create_dir_all(top().join("docs"))?;
    for (path, new) in [(TABLE, text), (PAGE, page(&calls))] {
        let path = top().join(path);
        if fs::read_to_string(&path).ok().as_ref() != Some(&new) {
            fs::write(&path, new).with_context(|| format!("writing {}", path.display()))?;
            println!("{} is new", path.display());
        }
    }
    Ok(())
}

/// Fails if the committed table claims what the cases don't show.
pub fn check() -> Result<()> {
    let now = table(&trace()?)?;
    let mut wrong = Vec::new();
    for old in committed()? {
        let Some(new) = now.iter().find(|c| c.name == old.name) else {
            wrong.push(format!("{} is gone", old.name));
            continue;
        };
        if new.error != old.error {
            wrong.push(format!("{} is answered otherwise", old.name));
        }
        if !old.cases.is_empty() && new.cases.is_empty() {
            wrong.push(format!("no case makes {}", old.name));
        }
        wrong.extend(old.flags.difference(&new.flags).map(|f| format!("no case uses {f} of {}", old.name)));
    }
    if !wrong.is_empty() {
        bail!("{TABLE} is stale, run `cargo xtask docs`: {}", wrong.join("; "));
    }
    Ok(())
}

fn committed() -> Result<Vec<Call>> {
    let text = fs::read_to_string(top().join(TABLE)).with_context(|| format!("reading {TABLE}"))?;
    serde_json::from_str(&text).with_context(|| format!("understanding {TABLE}"))
}

/// The dispatcher's calls: number, name, and the error of those that nothing serves.
fn dispatcher() -> Result<Vec<(u32, String, Option<String>)>> {
    let text = fs::read_to_string(top().join(DISPATCHER)).with_context(|| format!("reading {DISPATCHER}"))?;
    let mut calls = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(entry) = line.strip_prefix('(').and_then(|l| l.strip_suffix("),")) {
            let (number, name) = entry.split_once(", ").context("an entry without a name")?;
            calls.push((number.parse()?, name.trim_matches('"').to_string(), Some("ENOSYS".to_string())));
        } else if let [number, name, handler] = line.split_whitespace().collect::<Vec<_>>()[..]
            && let Ok(number) = number.parse()
        {
            let error = match handler {
                "misc::not_built;" => Some("ENOSYS".to_string()),
                "misc::not_permitted;" => Some("EPERM".to_string()),
                _ => None,
            };
            calls.push((number, name.to_string(), error));
        }
    }
    calls.sort();
    if calls.len() < 300 {
        bail!("{DISPATCHER} does not look as expected: {} calls found", calls.len());
    }
    Ok(calls)
}

fn table(exercised: &Exercised) -> Result<Vec<Call>> {
    let calls = dispatcher()?.into_iter().map(|(number, name, error)| {
        let (flags, cases) = match error {
            None => exercised.get(&name).cloned().unwrap_or_default(),
            Some(_) => Default::default(),
        };
        Call { name, number, error, flags, cases }
    });
    Ok(calls.collect())
}

/// The cases: names and files.
fn cases() -> Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(top().join(CASES)).context("reading the cases")? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "c") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            found.push((name, path));
        }
    }
    found.sort();
    Ok(found)
}

/// Cases that are traced at a time, for each processor: most of what they do is to wait.
const AT_A_TIME: usize = 2;

/// Runs every case on Linux and notes what it does.
fn trace() -> Result<Exercised> {
    let dir = tempfile::tempdir()?;
    fs::write(dir.path().join("empty.c"), "int main(void) { return 0; }\n")?;
    let cases = cases()?;
    let (next, starting) = (AtomicUsize::new(0), Mutex::default());
    let work = || {
        let mut mine = Exercised::new();
        while let Some((name, source)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            trace_one(dir.path(), name, source, &starting, &mut mine)?;
        }
        Ok(mine)
    };
    let workers = AT_A_TIME * std::thread::available_parallelism().map_or(1, usize::from);
    let done: Vec<Result<Exercised>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        workers.into_iter().map(|w| w.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    let mut all = Exercised::new();
    for part in done {
        for (call, (flags, cases)) in part? {
            let entry = all.entry(call).or_default();
            entry.0.extend(flags);
            entry.1.extend(cases);
        }
    }
    Ok(all)
}

/// Adds what one case does.
fn trace_one(
    dir: &Path,
    name: &str,
    source: &Path,
    starting: &Mutex<BTreeMap<String, usize>>,
    all: &mut Exercised,
) -> Result<()> {
    let text = fs::read_to_string(source)?;
    // About how programs are entered and started, not about what they call.
    if name.starts_with("entry_") || name.starts_with("start_") {
        return Ok(());
    }
    // Cases that a cell refuses, and those that are more than one program, show other things.
    if ["// cell-exit:", "// library:", "// traced: no"]
        .iter()
        .any(|s| text.lines().any(|l| l.starts_with(s)))
    {
        return Ok(());
    }
    let flags: Vec<&str> = text
        .lines()
        .find_map(|l| l.strip_prefix("// flags:"))
        .map_or(Vec::new(), |f| f.split_whitespace().collect());
    // What a program does before and after its own calls is no case's merit.
    let built = flags.join(" ");
    let known =
        |all: &Mutex<BTreeMap<_, _>>| all.lock().unwrap_or_else(PoisonError::into_inner).get(&built).copied();
    let skip = match known(starting) {
        Some(skip) => skip,
        None => {
            let made = run(dir, &format!("{name}-empty"), &dir.join("empty.c"), &flags)?;
            let skip = made.iter().map(Vec::len).max().unwrap_or(1) - 1;
            starting.lock().unwrap_or_else(PoisonError::into_inner).insert(built, skip);
            skip
        }
    };
    for thread in run(dir, name, source, &flags)? {
        let mut left = 0;
        for line in &thread {
            if line.starts_with("execve(") && line.ends_with(" = 0") {
                left = skip;
            }
            if left > 0 {
                left -= 1;
                continue;
            }
            if let Some((call, flags)) = made(line) {
                let entry = all.entry(call).or_default();
                entry.0.extend(flags);
                entry.1.insert(name.to_string());
            }
        }
    }
    Ok(())
}

/// Compiles and runs a program under strace; the lines of each of its threads.
fn run(dir: &Path, name: &str, source: &Path, flags: &[&str]) -> Result<Vec<Vec<String>>> {
    let (program, work, traces) = (
        dir.join(format!("{name}.out")),
        dir.join(format!("{name}.work")),
        dir.join(format!("{name}.trace")),
    );
    fs::create_dir_all(&work)?;
    fs::create_dir_all(&traces)?;
    let compiled = Command::new("gcc")
        .args(["-O1", "-w", "-pthread", "-o"])
        .arg(&program)
        .arg(source)
        .args(flags)
        .status()
        .context("starting gcc")?;
    if !compiled.success() {
        bail!("{} can't be compiled", source.display());
    }
    // One that traces its children itself is traced without them (`// strace: alone`).
    let alone = fs::read_to_string(source)?.lines().any(|line| line == "// strace: alone");
    // The time limit is for a case that waits for what tracing changes.
    let status = Command::new("timeout")
        .args(["300", "strace"])
        .args((!alone).then_some("-ff"))
        .args(["-qq", "-e", "signal=none", "-e", "abbrev=none", "-s", "0", "-o"])
        .arg(traces.join("t"))
        .arg(&program)
        .current_dir(&work)
        .env("TZ", "UTC")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .context("starting strace")?;
    // A case may end by a signal; these are the time limit's and a missing strace's.
    if matches!(status.code(), Some(124 | 127)) {
        bail!("{name} could not be traced: {status}");
    }
    let mut threads = Vec::new();
    for entry in fs::read_dir(&traces)? {
        let bytes = fs::read(entry?.path())?;
        threads.push(String::from_utf8_lossy(&bytes).lines().map(str::to_string).collect());
    }
    Ok(threads)
}

/// Errors that a call or flag brings about by being served; any other says nothing about it.
const SERVED: &[&str] =
    &["EAGAIN", "EINPROGRESS", "EINTR", "ERESTART", "ETIMEDOUT", "EEXIST", "EXDEV", "ELOOP"];
/// Arguments that the kernel fills in, by call: what is in them was told to the program, not asked for by it.
const FILLED: &[(&str, &[usize])] = &[
    ("accept", &[1]),
    ("accept4", &[1]),
    ("capget", &[1]),
    ("epoll_wait", &[1]),
    ("epoll_pwait", &[1]),
    ("epoll_pwait2", &[1]),
    ("fstat", &[1]),
    ("fstatfs", &[1]),
    ("get_mempolicy", &[0]),
    ("getdents", &[1]),
    ("getdents64", &[1]),
    ("getpeername", &[1]),
    ("getrlimit", &[1]),
    ("getsockname", &[1]),
    ("getsockopt", &[3]),
    ("lstat", &[1]),
    ("mq_getsetattr", &[2]),
    ("newfstatat", &[2]),
    ("prlimit64", &[3]),
    ("recvfrom", &[1, 4]),
    ("recvmmsg", &[1]),
    ("recvmsg", &[1]),
    ("rt_sigaction", &[2]),
    ("rt_sigpending", &[0]),
    ("rt_sigprocmask", &[2]),
    ("rt_sigreturn", &[0]),
    ("rt_sigtimedwait", &[1]),
    ("sched_getattr", &[1]),
    ("sigaltstack", &[1]),
    ("stat", &[1]),
    ("statfs", &[1]),
    ("statx", &[4]),
    ("wait4", &[1, 3]),
    ("waitid", &[2, 4]),
];
/// Commands with an answer in an argument: the call, the command's place, how it begins, the answer's place.
const ANSWERED: &[(&str, usize, &[&str], usize)] = &[
    ("fcntl", 1, &["F_GET", "F_OFD_GET"], 2),
    ("ioctl", 1, &["SIOCG", "TCGET", "TIOCG"], 2),
    ("ptrace", 0, &["PTRACE_GET"], 3),
];
/// Where flags and commands have no underscore in their names.
const PLAIN: &[(&str, usize)] =
    &[("epoll_ctl", 3), ("ioctl", 1), ("poll", 0), ("ppoll", 0), ("semctl", 2), ("wait4", 2), ("waitid", 3)];
/// Names of signals, of what the clock says of itself, and of what is 0 where nothing is said, wherever they are.
const NO_FLAGS: &[&str] = &["ARPHRD_", "NULL", "RT_", "SIGRT_", "STA_"];

/// A line of a trace: the call, and the flags that were accepted, if it was served.
fn made(line: &str) -> Option<(String, BTreeSet<String>)> {
    let (name, rest) = line.split_once('(')?;
    let name = name.trim_start_matches('?');
    if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return None;
    }
    let (arguments, result) = rest.rsplit_once(" = ")?;
    // Calls that don't return have no result.
    let ended = result == "?" && !arguments.contains("<unfinished");
    let served = ended || !(result.starts_with("-1") || result.starts_with('?'));
    if !served && !SERVED.iter().any(|e| result.contains(e)) {
        return None;
    }
    let arguments = split(arguments.trim_end().strip_suffix(')').unwrap_or(arguments));
    let mut flags = BTreeSet::new();
    for (place, argument) in arguments.iter().enumerate() {
        let filled = FILLED.iter().any(|(call, places)| *call == name && places.contains(&place))
            || ANSWERED.iter().any(|(call, command, begins, answer)| {
                *call == name && *answer == place && begins.iter().any(|b| arguments[*command].starts_with(b))
            });
        if filled {
            continue;
        }
        // Of the names that a number has in several places the program's is the last; what it is told stands behind an arrow.
        let argument = argument.rsplit_once(" or ").map_or(argument.as_str(), |(_, last)| last);
        let argument = argument.split_once(" => ").map_or(argument, |(asked, _)| asked);
        let plain = PLAIN.contains(&(name, place));
        let words = argument.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| {
            let capitals = word.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
            let starts = word.trim_start_matches(if plain { "__" } else { "" });
            capitals
                && starts.starts_with(|c: char| c.is_ascii_uppercase())
                && (plain || word.contains('_'))
                // Of one that it doesn't know strace says so.
                && !word.ends_with('_')
                && !NO_FLAGS.iter().any(|n| word.starts_with(n))
        });
        flags.extend(words.map(str::to_string));
    }
    Some((name.to_string(), flags))
}

/// The arguments of a call, without what stands in quotes.
fn split(arguments: &str) -> Vec<String> {
    let (mut split, mut depth, mut quoted) = (vec![String::new()], 0, false);
    for c in arguments.chars() {
        match c {
            '"' => quoted = !quoted,
            _ if quoted => {}
            ',' if depth == 0 => split.push(String::new()),
            _ => {
                depth += i32::from("([{".contains(c)) - i32::from(")]}".contains(c));
                if let Some(last) = split.last_mut().filter(|last| !(last.is_empty() && c == ' ')) {
                    last.push(c);
                }
            }
        }
    }
    split
}

/// The page that people read.
fn page(calls: &[Call]) -> String {
    let list = |of: &dyn Fn(&&Call) -> bool| {
        let names: Vec<String> = calls.iter().filter(of).map(|c| format!("`{}`", c.name)).collect();
        names.join(", ")
    };
    let mut text = String::from(
        "# System calls\n\n\
         Made by `cargo xtask docs` from the dispatcher (`linux/src/syscalls/table.rs`) and from the cases in\n\
         `tests/syscalls`, each of which is run on Linux and in a cell and must print the same. A call or flag\n\
         that no case exercises isn't listed as supported. `atoll syscalls` prints the same table.\n\n\
         ## Supported\n\n| call | flags and commands exercised | cases |\n| --- | --- | --- |\n",
    );
    for c in calls.iter().filter(|c| !c.cases.is_empty()) {
        let join = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>().join(" ");
        text.push_str(&format!("| `{}` | {} | {} |\n", c.name, join(&c.flags), join(&c.cases)));
    }
    text.push_str("\n## Served, but no case shows one that succeeds\n\n");
    text.push_str(&list(&|c| c.error.is_none() && c.cases.is_empty()));
    text.push_str("\n\n## Refused with EPERM\n\nThey administer a machine, which a cell is not.\n\n");
    text.push_str(&list(&|c| c.error.as_deref() == Some("EPERM")));
    text.push_str("\n\n## Not there: ENOSYS\n\n");
    text.push_str(&list(&|c| c.error.as_deref() == Some("ENOSYS")));
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_trace() {
        let set = |l: &[&str]| l.iter().map(|s| s.to_string()).collect::<BTreeSet<_>>();
        assert_eq!(
            made("openat(AT_FDCWD, \"A_B\"..., O_RDONLY|O_CLOEXEC) = 3"),
            Some(("openat".into(), set(&["AT_FDCWD", "O_CLOEXEC", "O_RDONLY"])))
        );
        assert_eq!(made("eventfd2(0, 0x100 /* EFD_??? */) = -1 EINVAL (Invalid argument)"), None);
        assert_eq!(made("+++ exited with 0 +++"), None);
        let flags = |line| made(line).unwrap().1;
        assert_eq!(
            flags("epoll_ctl(3, EPOLL_CTL_ADD, 4, {events=EPOLLIN|EPOLLET, data={u32=4, u64=4}}) = 0"),
            set(&["EPOLLET", "EPOLLIN", "EPOLL_CTL_ADD"])
        );
        assert_eq!(
            flags("poll([{fd=3, events=POLLIN|POLLRDHUP}], 1, 0) = 1 ([{fd=3, revents=POLLHUP}])"),
            set(&["POLLIN", "POLLRDHUP"])
        );
        assert_eq!(
            flags("ioctl(3, SNDCTL_TMR_START or TCSETS, {c_iflag=ICRNL|IXON, c_cc=\"\"}) = 0"),
            set(&["TCSETS"])
        );
        assert_eq!(
            flags(
                "ioctl(3, UFFDIO_API, {api=0xaa, features=UFFD_FEATURE_SIGBUS => features=UFFD_FEATURE_THREAD_ID}) = 0"
            ),
            set(&["UFFDIO_API", "UFFD_FEATURE_SIGBUS"])
        );
        assert_eq!(
            flags("ioctl(3, SIOCGIFFLAGS, {ifr_name=\"lo\", ifr_flags=IFF_UP}) = 0"),
            set(&["SIOCGIFFLAGS"])
        );
        assert_eq!(
            flags(
                "wait4(-1, [{WIFSTOPPED(s) && WSTOPSIG(s) == SIGTRAP} | PTRACE_EVENT_EXEC << 8], WNOHANG|__WALL, NULL) = 7"
            ),
            set(&["WNOHANG", "__WALL"])
        );
        assert_eq!(flags("rt_sigprocmask(SIG_BLOCK, [RT_1], [RT_2], 8) = 0"), set(&["SIG_BLOCK"]));
        assert_eq!(made("exit_group(0) = ?").unwrap().0, "exit_group");
        assert_eq!(
            flags("connect(3, {sa_family=AF_INET}, 16) = -1 EINPROGRESS (Operation now in progress)"),
            set(&["AF_INET"])
        );
    }

    /// The committed table names calls that the dispatcher has, and cases that there are.
    #[test]
    fn table_is_not_stale() {
        let (calls, cases) = (dispatcher().unwrap(), cases().unwrap());
        for c in committed().unwrap() {
            let found = calls.iter().find(|(_, name, _)| *name == c.name);
            let (number, _, error) = found.unwrap_or_else(|| panic!("{} is not in the dispatcher", c.name));
            assert_eq!((*number, error), (c.number, &c.error), "{}", c.name);
            for case in &c.cases {
                assert!(cases.iter().any(|(name, _)| name == case), "case {case} of {} is gone", c.name);
            }
        }
        assert_eq!(calls.len(), committed().unwrap().len(), "run `cargo xtask docs`");
    }
}
