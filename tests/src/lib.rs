//! Runs the same thing on Linux and in a cell and compares what came out.
//!
//! Two kinds of cases, each a file of its own:
//!
//! - `tests/programs/*.sh`: a shell script around unmodified programs. It is
//!   run twice, by the host's `bash -eu`, in a fresh directory `$DIR`. `$RUN`
//!   is what to put before a program: nothing on Linux, `atoll run ... --` for
//!   the cell. What the script prints on standard output, its exit status and
//!   the files that it leaves behind in `$DIR` must be the same.
//! - `tests/syscalls/*.c`: a C program, compiled here, run on Linux and in a
//!   cell; standard output and exit status must be the same.
//!
//! Lines at the top of a case, behind `#` or `//`, say how it is run:
//! `options: --cores 2` adds options of `atoll run`; `flags: -static` adds
//! options of the compiler; `compiler: musl-gcc` names another one;
//! `library: -DLIBRARY` also makes `library.so` of the same file, two
//! directories up; `timeout: 60` allows more than 30 seconds.
//! `min-rewritten-percent: 99`: so many of the system calls in the cell must
//! come through rewritten sites. `cell-exit: 139` and `cell-says: text`: the
//! cell refuses what Linux does, with this exit status and a line of the log.
//!
//! Both kinds of cells run the cases of system calls: `nucleus: no (reason)` keeps one from the nucleus;
//! `nucleus-differs: int1:; float: (reason)` leaves out the lines of output that begin so there;
//! `traced: no (reason)` keeps one out of the table of what the cases call, and `strace: alone` its children, which it traces itself;
//! `nucleus-on: tmpfs` has it work on one on Linux, as it does there; `nucleus-says: text` is what it has to say there on standard error.
#![allow(unsafe_code, reason = "kills the process group of a case that hangs")]

pub mod tracee;

use std::fmt::Write as _;
use std::fs;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use atoll_supervisor::inspect::{Answer, Request, ask};
use atoll_supervisor::registry::{choose, directory, list};

pub use libtest_mimic::{Arguments, Failed, Trial};

/// What came out of a run.
#[derive(Debug, PartialEq, Eq, Clone)]
pub struct Outcome {
    /// Exit status; 128 and the signal's number if one ended it.
    pub status: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error, which is shown and not compared.
    pub stderr: String,
    /// It took too long and was killed.
    pub hung: bool,
}

/// The project's directory.
pub fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the project").to_path_buf()
}

/// The `atoll` program: `$ATOLL`, or the one that `cargo xtask build` made.
pub fn atoll() -> PathBuf {
    let path = std::env::var_os("ATOLL").map_or_else(|| top().join("target/release/atoll"), PathBuf::from);
    assert!(
        path.exists(),
        "{} isn't there: run `cargo xtask build` first, or set ATOLL to the program",
        path.display()
    );
    path
}

/// The value of `key:` lines at the top of a case.
pub fn setting(text: &str, key: &str) -> Option<String> {
    text.lines()
        .take_while(|l| l.is_empty() || l.starts_with('#') || l.starts_with("//"))
        .find_map(|l| l.trim_start_matches(['#', '/', ' ']).strip_prefix(key)?.strip_prefix(':'))
        .map(|v| v.trim().to_string())
}

/// How long a case may take.
pub fn timeout(text: &str) -> Duration {
    Duration::from_secs(setting(text, "timeout").and_then(|t| t.parse().ok()).unwrap_or(30))
}

/// A cell's supervisor. Killed when it is dropped; the cell goes with it.
pub struct Cell(pub Child);

impl Cell {
    /// The process of the space that was made last, with a thread for each core: the cell's first process makes one for each.
    pub fn space(&self) -> Result<i32, Failed> {
        let first = *children(self.0.id() as i32).first().ok_or("the cell has no process")?;
        Ok(*children(first).last().ok_or("the cell has no space")?)
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process's children.
pub fn children(parent: i32) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let after = stat.rsplit(')').next().unwrap_or_default();
        if after.split_whitespace().nth(1) == Some(&parent.to_string()) {
            found.push(pid);
        }
    }
    found
}

/// A port that nobody else of these tests uses, below those that the host gives to clients.
pub fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let base = 20_000 + (std::process::id() % 199) as u16 * 64;
    base + NEXT.fetch_add(1, Ordering::Relaxed) % 64
}

/// A redis server in a cell, and what load does to it.
pub struct Redis {
    port: String,
    /// Its cell.
    pub cell: Cell,
}

impl Redis {
    /// Starts one with options of `atoll run` and of its own, and waits until it answers.
    pub fn start(options: &[&str], own: &[&str]) -> Result<Redis, Failed> {
        let port = port().to_string();
        let mut server = Command::new(atoll());
        server.arg("run").args(options);
        // On a machine of its own it is asked by that one's address.
        let own_machine = options.contains(&"nucleus");
        if own_machine {
            server.args(["--publish", &port]);
        }
        server.args(["--", "redis-server", "--port", &port, "--save", ""]).args(own);
        server.args(if own_machine { ["--protected-mode", "no"] } else { ["--bind", "127.0.0.1"] });
        let redis = Redis { port, cell: Cell(server.stdout(Stdio::null()).spawn()?) };
        for _ in 0..200 {
            if redis.say(&["ping"])?.trim() == "PONG" {
                return Ok(redis);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err("the server does not begin".into())
    }

    /// What `redis-cli` prints.
    pub fn say(&self, args: &[&str]) -> Result<String, Failed> {
        let mut command = Command::new("redis-cli");
        command.args(["-p", &self.port]).args(args);
        Ok(run(command, Duration::from_secs(20))?.stdout)
    }

    /// Has 30 clients count up to `to` together, and does `meanwhile` again and again. Afterwards the counter is gone. An error: not all
    /// was counted.
    pub fn load(&self, to: u32, mut meanwhile: impl FnMut() -> Result<(), Failed>) -> Result<(), Failed> {
        let mut load = Command::new("redis-benchmark");
        load.args(["-p", &self.port, "-t", "incr", "-n", &to.to_string(), "-c", "30", "-q"]);
        let mut load = Cell(load.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?);
        let begun = Instant::now();
        while load.0.try_wait()?.is_none() {
            meanwhile()?;
            if begun.elapsed() > Duration::from_secs(300) {
                return Err("no end within 300 s".into());
            }
        }
        let mut errors = String::new();
        load.0.stderr.take().ok_or("no standard error")?.read_to_string(&mut errors)?;
        let counted = self.say(&["getdel", "counter:__rand_int__"])?;
        if load.0.wait()?.success() && counted.trim() == to.to_string() {
            return Ok(());
        }
        Err(format!("{counted:?} counted: {errors}").into())
    }
}

/// Asks a cell, which can be asked from 0.1 s on.
pub fn ask_cell(name: &str, request: &Request) -> Result<Answer, String> {
    let begun = Instant::now();
    loop {
        let dir = directory().map_err(|e| e.to_string())?;
        match list(&dir).and_then(|cells| choose(&cells, name)) {
            Ok(found) => {
                let said = ask(&found.socket, request).map_err(|e| e.to_string())?;
                return said.ok_or_else(|| "the cell has ended".into());
            }
            Err(e) if begun.elapsed() > Duration::from_secs(10) => return Err(e.to_string()),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Runs a command to its end, or kills its process group when `limit` is over.
pub fn run(mut command: Command, limit: Duration) -> std::io::Result<Outcome> {
    // As a login shell starts them, whatever this was started from: in a session of their
    // own (ours may belong to a process that our process namespace doesn't show), and
    // without what a shell ignores in what it puts in the background.
    // SAFETY: only calls that may be made between fork and exec.
    unsafe {
        command.pre_exec(|| {
            for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP] {
                libc::signal(signal, libc::SIG_DFL);
            }
            if libc::setsid() < 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let drain = |stream: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            // What could be read is what there is.
            let _ = stream.map(|mut s| s.read_to_end(&mut bytes));
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    let out = drain(child.stdout.take().map(|s| Box::new(s) as _));
    let err = drain(child.stderr.take().map(|s| Box::new(s) as _));
    let begun = Instant::now();
    let (mut hung, mut doing) = (false, String::new());
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if begun.elapsed() > limit {
            hung = true;
            doing = threads_of_cells(child.id());
            // SAFETY: a signal to the group that was made for this child.
            unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
            break child.wait()?;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    // SAFETY: as above; what the case left running ends with it.
    unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
    Ok(Outcome {
        status: status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
        stdout: out.join().unwrap_or_default(),
        stderr: err.join().unwrap_or_default() + &doing,
        hung,
    })
}

/// What the threads of all cells of a session wait for: who hangs once in a hundred runs can't be asked later.
fn threads_of_cells(session: u32) -> String {
    let cells = directory().and_then(|dir| list(&dir)).unwrap_or_default();
    let mut text = String::new();
    // SAFETY: asks for a number.
    for cell in cells.iter().filter(|cell| unsafe { libc::getsid(cell.pid as i32) } == session as i32) {
        // It has a limit of its own, should the cell not answer.
        let asked =
            Command::new("timeout").arg("5").arg(atoll()).arg("ps").arg(cell.pid.to_string()).output();
        let said =
            asked.map_or_else(|e| e.to_string(), |said| String::from_utf8_lossy(&said.stdout).into_owned());
        let _ = writeln!(text, "threads of the cell {}:\n{said}", cell.name);
    }
    text
}

/// Every file under a directory: its path there, and what it is.
pub fn tree(dir: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut todo = vec![dir.to_path_buf()];
    while let Some(at) = todo.pop() {
        for entry in fs::read_dir(&at).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = path.strip_prefix(dir).unwrap_or(&path).display().to_string();
            let Ok(meta) = path.symlink_metadata() else { continue };
            use std::os::unix::fs::MetadataExt;
            let mode = meta.mode() & 0o7777;
            if meta.is_dir() {
                found.push((name, format!("directory {mode:o}")));
                todo.push(path);
            } else if meta.is_symlink() {
                found.push((name, format!("link to {:?}", fs::read_link(&path).unwrap_or_default())));
            } else if meta.is_file() {
                let bytes = fs::read(&path).unwrap_or_default();
                found.push((name, format!("file {mode:o} {}", String::from_utf8_lossy(&bytes))));
            } else {
                found.push((name, format!("special {:o}", meta.mode())));
            }
        }
    }
    found.sort();
    found
}

/// Compares two runs, and says what differs.
pub fn compare(linux: &Outcome, cell: &Outcome) -> Result<(), Failed> {
    let mut text = String::new();
    if linux.hung || cell.hung {
        let _ = writeln!(text, "hung: on Linux {}, in the cell {}", linux.hung, cell.hung);
    }
    if linux.status != cell.status {
        let _ = writeln!(text, "exit status: {} on Linux, {} in the cell", linux.status, cell.status);
    }
    if linux.stdout != cell.stdout {
        let _ = writeln!(text, "standard output differs (- Linux, + cell):");
        text.push_str(&difference(&linux.stdout, &cell.stdout));
    }
    if text.is_empty() {
        return Ok(());
    }
    let _ = writeln!(
        text,
        "standard error on Linux:\n{}\nin the cell:\n{}",
        end_of(&linux.stderr),
        end_of(&cell.stderr)
    );
    Err(text.into())
}

/// One side of a case with programs: what came out, and the files that it left. `prefix`: what `$RUN` is.
fn program_side(
    script: &Path,
    limit: Duration,
    prefix: Option<&dyn Fn(&Path) -> String>,
) -> Result<(Outcome, Vec<(String, String)>), Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let path = dir.path().join("work");
    fs::create_dir(&path)?;
    let mut command = Command::new("bash");
    command
        .args(["-eu", "-o", "pipefail"])
        .arg(script)
        .current_dir(&path)
        .env("RUN", prefix.map_or(String::new(), |prefix| prefix(&path)))
        .env("DIR", &path)
        .env("SIDE", if prefix.is_some() { "cell" } else { "linux" })
        .env("PORT", port().to_string())
        .env("TESTS", script.parent().unwrap_or(script))
        .env("LC_ALL", "C.UTF-8")
        .env("TZ", "UTC");
    let mut outcome = run(command, limit)?;
    // The directory's own name is no difference.
    outcome.stdout = outcome.stdout.replace(&path.display().to_string(), "$DIR");
    let files = tree(&path)
        .into_iter()
        .map(|(name, what)| (name, what.replace(&path.display().to_string(), "$DIR")))
        .collect();
    Ok((outcome, files))
}

/// Runs a case with programs on Linux, and in cells that what `prefix` makes of the case's directory starts, which may
/// take `slower` times as long.
pub fn program_case(
    script: &Path,
    text: &str,
    slower: u32,
    prefix: impl Fn(&Path) -> String,
) -> Result<(), Failed> {
    let (linux, linux_files) = program_side(script, timeout(text), None)?;
    if linux.hung || linux.status != 0 {
        return Err(format!(
            "the case itself fails on Linux with {}:\n{}\n{}",
            linux.status, linux.stdout, linux.stderr
        )
        .into());
    }
    let (cell, cell_files) = program_side(script, timeout(text) * slower, Some(&prefix))?;
    compare(&linux, &cell)?;
    if linux_files != cell_files {
        // Only the files that differ, and only their beginnings.
        let show = |files: &[(String, String)], others: &[(String, String)]| {
            let own = files.iter().filter(|f| !others.contains(f));
            own.map(|(n, w)| format!("{n}: {:.200}\n", w.replace('\n', "\\n"))).collect::<String>()
        };
        let text = difference(&show(&linux_files, &cell_files), &show(&cell_files, &linux_files));
        return Err(format!("the files left behind differ (- Linux, + cell):\n{text}").into());
    }
    Ok(())
}

/// Checks what share of a cell's system calls came through rewritten sites, by its `--json` report.
pub fn check_rewritten(text: &str, cell: &Outcome) -> Result<(), Failed> {
    let Some(wanted) = setting(text, "min-rewritten-percent") else { return Ok(()) };
    let report = cell.stderr.lines().rev().find(|l| l.starts_with('{')).ok_or("the cell wrote no report")?;
    let report: serde_json::Value = serde_json::from_str(report)?;
    let of = |name: &str| report[name].as_f64().ok_or_else(|| format!("no {name} in {report}"));
    let (all, rewritten) = (of("system_calls")?, of("system_calls_rewritten")?);
    if rewritten * 100.0 < all * wanted.parse::<f64>()? {
        return Err(format!("only {rewritten} of {all} system calls were rewritten, not {wanted} %").into());
    }
    Ok(())
}

fn end_of(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

/// The lines around the first one that differs, of both.
pub fn difference(a: &str, b: &str) -> String {
    let (a, b): (Vec<&str>, Vec<&str>) = (a.lines().collect(), b.lines().collect());
    let first = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
    let mut text = String::new();
    for (sign, lines) in [('-', &a), ('+', &b)] {
        for line in lines.iter().skip(first).take(12) {
            let _ = writeln!(text, "{sign} {line}");
        }
    }
    text
}

/// Compiles a case in C, and beside it the library that it may be, too.
pub fn compile(source: &Path, program: &Path, text: &str) -> Result<(), Failed> {
    let compile = |to: &Path, flags: &str| {
        let mut compiler = Command::new(setting(text, "compiler").as_deref().unwrap_or("gcc"));
        compiler.args(["-O1", "-g", "-w", "-pthread", "-o"]).arg(to).arg(source);
        compiler.args(flags.split_whitespace());
        let compiled = run(compiler, Duration::from_secs(60))?;
        if compiled.status != 0 {
            return Err(Failed::from(format!("the case can't be compiled:\n{}", compiled.stderr)));
        }
        Ok(())
    };
    compile(program, &setting(text, "flags").unwrap_or_default())?;
    match setting(text, "library") {
        Some(flags) => compile(&program.with_file_name("library.so"), &format!("-shared -fPIC {flags}")),
        None => Ok(()),
    }
}

/// Something that a cell is to refuse, by an exit status and a line in the log; None: the case is none of that.
pub fn refused(text: &str, linux: &Outcome, cell: &Outcome) -> Option<Result<(), Failed>> {
    let exit = setting(text, "cell-exit")?;
    let says = setting(text, "cell-says").unwrap_or_default();
    if linux.status == 0 && !cell.hung && cell.status.to_string() == exit && cell.stderr.contains(&says) {
        return Some(Ok(()));
    }
    let text = format!(
        "on Linux {}; in the cell {} (hung: {}) and not {exit} with '{says}':\n{}\n{}",
        linux.status, cell.status, cell.hung, cell.stdout, cell.stderr
    );
    Some(Err(text.into()))
}

/// The cases of a directory with an ending, as trials.
pub fn cases(dir: &str, ending: &str, case: fn(&Path, &str) -> Result<(), Failed>) -> Vec<Trial> {
    let dir = top().join("tests").join(dir);
    let mut files: Vec<PathBuf> = fs::read_dir(&dir)
        .unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.extension().is_some_and(|e| e == ending))
        .collect();
    files.sort();
    files
        .into_iter()
        .map(|path| {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            Trial::test(name, move || {
                let text = fs::read_to_string(&path)?;
                case(&path, &text)
            })
        })
        .collect()
}

/// Few at a time: the machines that run this have two cores.
pub fn arguments() -> Arguments {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(2);
    arguments
}

/// The same for trials that run one after the other, whatever is asked for.
pub fn one_by_one() -> Arguments {
    Arguments { test_threads: Some(1), ..arguments() }
}
