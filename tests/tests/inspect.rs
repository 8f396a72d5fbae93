//! Looking at live cells from outside: `atoll ls`, `atoll stat`, `atoll grid`, and the sockets behind them.
#![allow(unsafe_code, reason = "asks for an id, and sends signals")]

use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use atoll_tests::{Failed, Trial, arguments, atoll};
use serde_json::Value;

fn main() {
    let mut trials = vec![
        Trial::test("names", names),
        Trial::test("killed", killed),
        Trial::test("stat", stat),
        Trial::test("grid", grid),
        Trial::test("bad_requests", bad_requests),
    ];
    // SAFETY: asks for an id.
    if unsafe { libc::geteuid() } == 0 {
        trials.push(Trial::test("other_user", other_user));
    }
    libtest_mimic::run(&arguments(), trials).exit();
}

type Done = Result<(), Failed>;

/// `atoll` as a user: the one that runs the tests, or another one with a directory of its own.
struct User {
    dir: tempfile::TempDir,
    other: bool,
}

impl User {
    fn this() -> Result<User, Failed> {
        Ok(User { dir: tempfile::Builder::new().prefix("atoll-test-").tempdir()?, other: false })
    }

    /// Nobody, with copies of the programs: the checkout may lie where only root can look.
    fn other() -> Result<User, Failed> {
        let user = User { other: true, ..User::this()? };
        let open = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode));
        open(user.dir.path(), 0o777)?;
        for name in ["atoll", "atoll-runtime"] {
            std::fs::copy(atoll().with_file_name(name), user.dir.path().join(name))?;
        }
        Ok(user)
    }

    fn command(&self) -> Command {
        let mut command = if self.other {
            let mut c = Command::new("setpriv");
            c.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
                .arg(self.dir.path().join("atoll"));
            c.env_remove("XDG_RUNTIME_DIR").env_remove("XDG_CACHE_HOME").env("HOME", self.dir.path());
            c
        } else {
            Command::new(atoll())
        };
        command.stdin(Stdio::null());
        command
    }

    fn say(&self, words: &[&str]) -> Result<Output, Failed> {
        Ok(self.command().args(words).output()?)
    }

    /// What it prints, if all is well.
    fn ask(&self, words: &[&str]) -> Result<String, Failed> {
        let out = self.say(words)?;
        if !out.status.success() {
            return Err(format!("{words:?}: {}: {}", out.status, String::from_utf8_lossy(&out.stderr)).into());
        }
        Ok(String::from_utf8(out.stdout)?)
    }

    /// How it complains.
    fn refused(&self, words: &[&str]) -> Result<String, Failed> {
        let out = self.say(words)?;
        let said = String::from_utf8(out.stderr)?;
        if out.status.code() == Some(1) && out.stdout.is_empty() && said.starts_with("atoll: ") {
            return Ok(said);
        }
        Err(format!("{words:?}: {}: {said}", out.status).into())
    }

    /// Cells whose names begin so.
    fn list(&self, begin: &str) -> Result<Vec<Value>, Failed> {
        let all: Vec<Value> = serde_json::from_str(&self.ask(&["ls", "--json"])?)?;
        Ok(all.into_iter().filter(|c| c["name"].as_str().is_some_and(|n| n.starts_with(begin))).collect())
    }

    /// Starts a cell in which sleep runs, and waits until it is listed.
    fn start(&self, options: &[&str], begin: &str) -> Result<Running, Failed> {
        let before = self.list(begin)?.len();
        let mut command = self.command();
        command.args(["run", "--cores", "1", "--memory", "64M"]).args(options).args([
            "--",
            "/bin/sleep",
            "1000",
        ]);
        let mut cell = Running(command.stderr(Stdio::null()).spawn()?);
        let begun = Instant::now();
        while self.list(begin)?.len() <= before {
            if cell.0.try_wait()?.is_some() || begun.elapsed() > Duration::from_secs(20) {
                return Err("the cell is not listed".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(cell)
    }
}

/// A cell's supervisor. Killed when it is dropped; the cell goes with it.
struct Running(Child);

impl Running {
    fn signal(&mut self, signal: i32) -> Done {
        // SAFETY: our child, which was not waited for.
        unsafe { libc::kill(self.0.id() as i32, signal) };
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A name that no other run of these tests has.
fn unique(what: &str) -> String {
    format!("test{}-{what}", std::process::id())
}

fn socket(name: &str) -> Result<PathBuf, Failed> {
    Ok(atoll_supervisor::registry::directory()?.join(format!("{name}.sock")))
}

fn check(holds: bool, what: impl std::fmt::Display) -> Done {
    if holds { Ok(()) } else { Err(what.to_string().into()) }
}

/// A cell is found by its name, its process id and the beginning of its name; its socket goes with it.
fn names() -> Done {
    let user = User::this()?;
    let name = unique("names");
    let mut first = user.start(&["--name", &name], &name)?;
    let listed = user.list(&name)?;
    let pid = first.0.id();
    let c = &listed[0];
    check(c["name"] == *name && c["pid"] == pid && c["program"] == "/bin/sleep", c)?;
    check(c["cores"] == 1 && c["memory"] == 64 << 20 && c["since"].as_u64() > Some(1_600_000_000), c)?;
    check(user.ask(&["ls"])?.contains(&name), "it is not in the table")?;
    let path = socket(&name)?;
    check(path.metadata()?.mode() & 0o777 == 0o600, "others may look at the socket")?;
    for wanted in [&name, &pid.to_string(), &name[..name.len() - 1]] {
        user.ask(&["stat", wanted])?;
    }
    // The name is taken.
    let second = user.start(&["--name", &name], &name)?;
    let other = format!("{name}-{}", second.0.id());
    check(user.list(&other)?.len() == 1, "the second has no name of its own")?;
    check(user.list(&name)?.len() == 2, "one is missing")?;
    user.ask(&["stat", &name])?;
    let said = user.refused(&["stat", &name[..name.len() - 1]])?;
    check(said.contains("several") && said.contains(&other), said)?;
    let said = user.refused(&["stat", "nosuchcell"])?;
    check(said.contains("no cell \"nosuchcell\"") && said.contains(&name) && said.contains(&other), said)?;
    // One without a name has the program's.
    let third = user.start(&[], "sleep-")?;
    check(user.list(&format!("sleep-{}", third.0.id()))?.len() == 1, "no name from the program")?;
    first.signal(libc::SIGTERM)?;
    check(!path.exists(), "the socket is still there")?;
    let said = user.refused(&["stat", &pid.to_string()])?;
    check(said.contains("no cell"), said)
}

/// What a supervisor leaves that was killed is cleared by who looks, and by the next one of the name.
fn killed() -> Done {
    let user = User::this()?;
    let name = unique("killed");
    let path = socket(&name)?;
    user.start(&["--name", &name], &name)?.signal(libc::SIGKILL)?;
    check(path.exists(), "nothing was left: this tests nothing")?;
    check(user.list(&name)?.is_empty() && !path.exists(), "the socket is still there")?;
    user.start(&["--name", &name], &name)?.signal(libc::SIGKILL)?;
    let mut again = user.command();
    again.args(["run", "--cores", "1", "--memory", "64M", "--name", &name, "--", "/bin/sleep", "1000"]);
    let _again = Running(again.spawn()?);
    let begun = Instant::now();
    while user.list(&name)?.is_empty() && begun.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let listed = user.list(&name)?;
    check(listed.len() == 1 && listed[0]["name"] == *name, "the name is not free again")
}

/// OK-14: snapshots as JSON and CSV, one after another.
fn stat() -> Done {
    let user = User::this()?;
    let name = unique("stat");
    let cell = user.start(&["--name", &name], &name)?;
    let lines = user.ask(&["stat", &name, "--json", "--count", "3", "--interval", "0.1", "--cores"])?;
    let series: Vec<Value> = lines.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    check(series.len() == 3, &lines)?;
    for (n, s) in series.iter().enumerate() {
        check(s["cell"] == *name && s["pid"] == cell.0.id() && s["cores"] == 1, s)?;
        check(
            s["activities"].is_array() && s["unread"] == 0 && s["opened"].as_u64() <= s["clock"].as_u64(),
            s,
        )?;
        let clock = |n: usize| series[n]["clock"].as_u64().unwrap_or(0);
        check(n == 0 || clock(n) >= clock(n - 1) + 50_000_000, "snapshots come too early")?;
    }
    let table = user.ask(&["stat", &name, "--watch", "--count", "2", "--interval", "0.05"])?;
    check(table.matches(&format!("{name}: 1 core, ")).count() == 2, &table)?;
    let csv = user.ask(&["stat", &name, "--csv"])?;
    check(csv.starts_with("time,activity,pid,resource,ns,messages,bytes,queued\n"), csv)?;
    // What was saved can be read again.
    let file = user.dir.path().join("series.json");
    std::fs::write(&file, &lines)?;
    let again = user.ask(&["stat", "--from", &file.display().to_string(), "--json"])?;
    check(again == lines, again)
}

/// OK-09: the configuration that a cell was started with can be seen; a bad one is refused with line and reason, and what
/// runs stays.
fn grid() -> Done {
    let user = User::this()?;
    let name = unique("grid");
    let write = |name: &str, text: &str| -> Result<String, Failed> {
        let path = user.dir.path().join(name);
        std::fs::write(&path, text)?;
        Ok(path.display().to_string())
    };
    let good =
        "sample = 8\n\n[[activity]]\nname = \"gold\"\nweight = 70\nmatch = [{ program = \"sleep\" }]\n";
    let good_file = write("good.toml", good)?;
    let bad_file = write("bad.toml", "sample = 8\n[[activity]]\nname = 'gold'\nwieght = 3\n")?;
    let cores_file = write("cores.toml", "[resource.timer]\ncores = [1]\n")?;
    user.ask(&["grid", "check", &good_file])?;
    let said = user.refused(&["grid", "check", &bad_file])?;
    check(said.contains("bad.toml, line 4, column 1: ") && said.contains("did you mean `weight`?"), said)?;
    let out = user.say(&["run", "--grid", &bad_file, "--", "/bin/true"])?;
    check(out.status.code() == Some(125), "a cell starts with a bad configuration")?;
    let machine = write("machine.conf", "cell a\ncores 1\nmemory 64M\ngrid bad.toml\nrun /bin/true\n")?;
    let out = user.say(&["boot", &machine])?;
    let said = String::from_utf8_lossy(&out.stderr);
    check(
        out.status.code() == Some(125) && said.contains("cell a: ") && said.contains("bad.toml, line 4"),
        said,
    )?;
    let _cell = user.start(&["--name", &name, "--grid", &good_file], &name)?;
    check(user.ask(&["grid", "show", &name])? == good, "another configuration runs")?;
    let json: Value = serde_json::from_str(&user.ask(&["grid", "show", &name, "--json"])?)?;
    check(json["activity"][0]["match"][0]["program"] == "sleep", json)?;
    let said = user.refused(&["grid", "set", &name, &bad_file])?;
    check(said.contains("line 4, column 1"), said)?;
    let said = user.refused(&["grid", "set", &name, &cores_file])?;
    check(said.contains("core 1, and the cell's cores are 0 to 0"), said)?;
    check(user.ask(&["grid", "show", &name])? == good, "what runs has changed")
}

/// Whatever comes by the socket, the cell goes on, and others are answered.
fn bad_requests() -> Done {
    let user = User::this()?;
    let name = unique("bad");
    let mut cell = user.start(&["--name", &name], &name)?;
    let path = socket(&name)?;
    // More than are served at a time, who say nothing.
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(UnixStream::connect(&path)?);
    }
    drop(silent);
    let answer = |request: &[u8]| -> Result<Value, Failed> {
        let mut stream = UnixStream::connect(&path)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        // The other side may have had enough before the end.
        let _ = stream.write_all(request);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut line = String::new();
        stream.read_to_string(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    };
    let begun = Instant::now();
    while answer(b"{\"request\":\"cell\"}\n").is_err() && begun.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(20));
    }
    for (request, part) in [
        (&b"\n"[..], "can't be understood"),
        (b"{\"request\":\"kill\"}\n", "unknown variant"),
        (b"{\"request\":\"grid-set\",\"config\":{}}\n", "missing field"),
        (b"\xff\xfe\n", "can't be understood"),
        (b"{\"request\":\"cell\"}", "no end"),
        (&[b'['; 200_000], "no end"),
        (&[&[b'['; 200_000][..], b"\n"].concat(), "can't be understood"),
    ] {
        let said = answer(request)?;
        check(said["error"].as_str().is_some_and(|e| e.contains(part)), &said)?;
    }
    check(answer(b"{\"request\":\"cell\"}\n")?["cell"]["name"] == *name, "it does not answer any more")?;
    check(cell.0.try_wait()?.is_none(), "the cell has ended")
}

/// An ordinary user's cells are in a directory of their own.
fn other_user() -> Done {
    let user = User::other()?;
    let name = unique("user");
    let _cell = user.start(&["--name", &name], &name)?;
    let dir = user.dir.path().join(".cache/atoll/run");
    check(dir.join(format!("{name}.sock")).exists(), "the socket is somewhere else")?;
    let meta = dir.metadata()?;
    check(meta.mode() & 0o777 == 0o700 && meta.uid() == 65534, "others can open the directory")?;
    user.ask(&["stat", &name, "--json"])?;
    check(User::this()?.list(&name)?.is_empty(), "it is in another user's list")
}
