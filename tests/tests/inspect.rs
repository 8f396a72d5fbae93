//! Looking at live cells from outside: `atoll ls`, `atoll stat`, `atoll grid`, and the sockets behind them.
#![allow(unsafe_code, reason = "asks for an id, and sends signals")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use atoll_tests::{Failed, Trial, arguments, atoll, children, one_by_one};
use serde_json::Value;

fn main() {
    let mut trials = vec![
        Trial::test("names", names),
        Trial::test("killed", killed),
        Trial::test("stopped", stopped),
        Trial::test("stat", stat),
        Trial::test("counter", counter),
        Trial::test("grid", grid),
        Trial::test("cores", cores),
        Trial::test("faults", faults),
        Trial::test("units", units),
        Trial::test("tickless", tickless),
        Trial::test("put_off", put_off),
        Trial::test("nothing_is_left", nothing_is_left),
        Trial::test("too_many_threads", too_many_threads),
        Trial::test("tasks_max", tasks_max),
        Trial::test("quotas", quotas),
        Trial::test("service_points", service_points),
        Trial::test("memory_budgets", || memory_budgets(&[])),
        Trial::test("memory_budgets_on_the_nucleus", || memory_budgets(ON_THE_NUCLEUS)),
        Trial::test("memory_used_up", || memory_used_up(&[])),
        Trial::test("memory_used_up_on_the_nucleus", || memory_used_up(ON_THE_NUCLEUS)),
        Trial::test("allocator", allocator),
        Trial::test("asked_and_ended", asked_and_ended),
        Trial::test("memory_of_others", memory_of_others),
        Trial::test("objects_used_up", objects_used_up),
        Trial::test("bad_requests", bad_requests),
        Trial::test("whole_lines", whole_lines),
        Trial::test("files_let_go", files_let_go),
        Trial::test("few_descriptors", few_descriptors),
        Trial::test("larger_than_memory", larger_than_memory),
        Trial::test("written_back", written_back),
        Trial::test("children_follow", children_follow),
    ];
    trials.extend(LIMITED.map(|resource| {
        Trial::test(format!("limit_{resource}"), || limit(resource, resource, &["--memory", "256M"]))
    }));
    trials.extend(
        FAULTED.map(|resource| Trial::test(format!("limit_of_faults_{resource}"), || faulted(resource))),
    );
    trials.push(Trial::test("limit_of_input", || limit("device-read", "input", &["--memory", "256M"])));
    trials.push(Trial::test("limit_of_requests", || {
        limit("device-write", "completion", &["--memory", "256M"])
    }));
    trials.push(Trial::test("limit_of_output", || limit("device-write", "output", &["--memory", "256M"])));
    // SAFETY: asks for an id.
    if unsafe { libc::geteuid() } == 0 {
        trials.push(Trial::test("other_user", other_user));
    }
    libtest_mimic::run(&arguments(), trials).exit_if_failed();
    // One after the other: what the host takes from a core meanwhile is not the work of whoever was at work there, and it does
    // not take the same from all, or leaves all together less than they are to have.
    let trials = vec![
        Trial::test("shares", shares),
        Trial::test("threads", threads),
        Trial::test("known_work", known_work),
        Trial::test("ps", ps),
        Trial::test("rate_of_waiting_senders", || sent("wait")),
        Trial::test("rate_of_polling_senders", || sent("poll")),
        Trial::test("rate_of_edge_triggered_senders", || sent("edge")),
        Trial::test("rate_of_readers", || by_rate(READER, "device-read", &EVENLY)),
        Trial::test("rate_of_mappers", || by_rate(MAPPER, "device-read", &EVENLY)),
        Trial::test("rate_of_synchronous_writers", || by_rate(SYNCHRONOUS_WRITER, "device-write", &EVENLY)),
        // What is written back comes in lumps, and not at all times: who has paid for one has nothing to pay until the next one, and who is
        // to get most loses most by that. It keeps the disk from others, too.
        Trial::test("rate_of_writers", || by_rate(WRITER, "device-write", &LUMPS)),
    ];
    libtest_mimic::run(&one_by_one(), trials).exit();
}

type Done = Result<(), Failed>;

/// One that is stopped keeps nobody from seeing the others.
fn stopped() -> Done {
    let user = User::this()?;
    let name = unique("stopped");
    let cells = [user.start(&["--name", &name], &name)?, user.start(&["--name", &name], &name)?];
    let pid = cells[0].0.id();
    // SAFETY: our child, which was not waited for.
    let signal = |signal| unsafe { libc::kill(pid as i32, signal) };
    signal(libc::SIGSTOP);
    let out = user.say(&["ls", "--json"])?;
    signal(libc::SIGCONT);
    let (listed, said) = (String::from_utf8(out.stdout)?, String::from_utf8(out.stderr)?);
    let other = format!("{name}-{}", cells[1].0.id());
    check(out.status.success() && listed.contains(&other), format!("{listed}, {said}"))?;
    check(said.contains(&format!("{name}: process {pid}: no line came in time")), said)?;
    check(user.list(&name)?.len() == 2, "one is missing now that it runs again")
}

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

    /// A cell's books.
    fn snapshot(&self, cell: &str) -> Result<Value, Failed> {
        Ok(serde_json::from_str(&self.ask(&["stat", cell, "--json"])?)?)
    }

    /// The same once they are as they are wanted; else an error that begins with `why`.
    fn snapshot_when(&self, cell: &str, why: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value, Failed> {
        let begun = Instant::now();
        loop {
            let s = self.snapshot(cell)?;
            if wanted(&s) {
                return Ok(s);
            }
            check(begun.elapsed() < Duration::from_secs(60), format!("{why}: {s}"))?;
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Cells whose names begin so.
    fn list(&self, begin: &str) -> Result<Vec<Value>, Failed> {
        let all: Vec<Value> = serde_json::from_str(&self.ask(&["ls", "--json"])?)?;
        Ok(all.into_iter().filter(|c| c["name"].as_str().is_some_and(|n| n.starts_with(begin))).collect())
    }

    /// Starts a cell in which sleep runs, and waits until it is listed.
    fn start(&self, options: &[&str], begin: &str) -> Result<Running, Failed> {
        let options = [&["--cores", "1", "--memory", "64M"], options].concat();
        self.start_program(&options, begin, &["/bin/sleep", "1000"])
    }

    /// Starts a cell in which this program runs, and waits until it is listed.
    fn start_program(&self, options: &[&str], begin: &str, program: &[&str]) -> Result<Running, Failed> {
        self.start_to(Stdio::inherit(), options, begin, program)
    }

    /// The same with its output going elsewhere.
    fn start_to(
        &self,
        output: Stdio,
        options: &[&str],
        begin: &str,
        program: &[&str],
    ) -> Result<Running, Failed> {
        let before = self.list(begin)?.len();
        let mut command = self.command();
        command.arg("run").args(options).arg("--").args(program);
        let mut cell = Running(command.stdout(output).stderr(Stdio::null()).spawn()?);
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
    // The other tests look, too, and may clear it first.
    let left = || -> Result<bool, Failed> {
        user.start(&["--name", &name], &name)?.signal(libc::SIGKILL)?;
        Ok(path.exists())
    };
    let mut tries = 20;
    while !left()? {
        tries -= 1;
        check(tries > 0, "nothing was left: this tests nothing")?;
    }
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
    check(
        csv.starts_with("time,activity,pid,resource,ns,messages,bytes,queued,device,waits,turns,counted\n"),
        csv,
    )?;
    // What was saved can be read again.
    let file = user.dir.path().join("series.json");
    std::fs::write(&file, &lines)?;
    let again = user.ask(&["stat", "--from", &file.display().to_string(), "--json"])?;
    check(again == lines, again)
}

/// OK-05: what a cell counts beside time is in the records of whose it was. The host's clock of a thread is counted, which any host
/// has: it says what the books say by another clock.
fn counter() -> Done {
    let user = User::this()?;
    let name = unique("counter");
    let tried =
        user.command().args(["run", "--cores", "1", "--counter", "task-clock", "--", "true"]).output()?;
    if !tried.status.success() {
        let said = String::from_utf8_lossy(&tried.stderr);
        // As in a container, or where the administrator has said so.
        check(said.contains("--counter task-clock: "), &said)?;
        return Ok(());
    }
    // It goes through many spaces: what counts there ends with them.
    let busy = "n=0; while [ $n -lt 2000 ]; do n=$((n+1)); done; for n in 1 2 3 4 5 6 7 8 9 10 11 12; do /bin/true & done; wait";
    let program = ["/bin/sh", "-c", &format!("while :; do {busy}; done")];
    let options = ["--cores", "1", "--memory", "64M", "--counter", "task-clock", "--name", &name];
    let cell = user.start_program(&options, &name, &program)?;
    // Descriptors of all of them are in one table.
    let children = format!("/proc/{0}/task/{0}/children", cell.0.id());
    let first: u32 =
        std::fs::read_to_string(&children)?.split_whitespace().next().ok_or("no child")?.parse()?;
    let table = || -> Result<usize, Failed> { Ok(std::fs::read_dir(format!("/proc/{first}/fd"))?.count()) };
    std::thread::sleep(Duration::from_millis(500));
    let begun = table()?;
    let args = ["stat", &name, "--json", "--count", "3", "--interval", "1"];
    let series = user.ask(&args)?;
    let (begun, ended) = (begun, table()?);
    check(ended < begun + 20, format!("{begun} descriptors, and later {ended}"))?;
    let all: Vec<Value> = series.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let sum = |s: &Value, field: &str, wanted: &dyn Fn(&str, &str) -> bool| -> i64 {
        let of = |a: &Value| -> i64 {
            let resources = a["resources"].as_object().into_iter().flatten();
            let wanted = resources.filter(|(name, _)| wanted(a["kind"].as_str().unwrap_or(""), name));
            wanted.map(|(_, u)| u[field].as_i64().unwrap_or(0)).sum()
        };
        s["activities"].as_array().into_iter().flatten().map(of).sum()
    };
    let (before, after) = (&all[0], &all[2]);
    check(after["counts"].as_str().is_some_and(|s| s.starts_with("task-clock")), &after["counts"])?;
    let since = |field: &str, wanted: &dyn Fn(&str, &str) -> bool| {
        sum(after, field, wanted) - sum(before, field, wanted)
    };
    let works = |_: &str, resource: &str| !matches!(resource, "idle" | "stolen");
    let (counted, worked) = (since("counted", &works), since("ns", &works));
    // Who is between two records just then has some of it.
    check(
        worked > 0 && (counted - worked).abs() < worked / 10 + 20_000_000,
        format!("{counted} were counted in {worked} ns"),
    )?;
    let of_programs = |kind: &str, resource: &str| kind != "substitute" && resource == "thread";
    let (counted, worked) = (since("counted", &of_programs), since("ns", &of_programs));
    check(counted > worked / 2, format!("programs: {counted} in {worked} ns"))?;
    let table = user.ask(&["stat", &name])?;
    check(
        table
            .lines()
            .nth(1)
            .is_some_and(|head| head.trim_end().ends_with(after["counts"].as_str().unwrap_or("?"))),
        &table,
    )?;
    // The series is drawn; one of a cell that counts nothing is not.
    let (file, figure) = (user.dir.path().join("counted.json"), user.dir.path().join("counted.svg"));
    let (path, drawn) = (file.display().to_string(), figure.display().to_string());
    let draw = ["stat", "--from", &path, "--plot", &drawn, "--measure", "counted"];
    std::fs::write(&file, &series)?;
    user.ask(&draw)?;
    check(std::fs::read_to_string(&figure)?.contains("task-clock"), "no figure of what is counted")?;
    let other = unique("counts-nothing");
    let _other = user.start(&["--name", &other], &other)?;
    std::fs::write(&file, user.ask(&["stat", &other, "--json", "--count", "2", "--interval", "0.1"])?)?;
    let refused = user.command().args(draw).output()?;
    let said = String::from_utf8_lossy(&refused.stderr);
    check(!refused.status.success() && said.contains("it counts nothing"), said)
}

/// OK-05, OK-06, OK-08: on a live cell that is busy, known work for each activity comes back in the right record of the right resource. The
/// books' comparison with what the host has counted is not of this test: what else the machine does is in it.
fn known_work() -> Done {
    let user = User::this()?;
    let name = unique("known");
    let file = user.dir.path().join("grid.toml");
    std::fs::write(
        &file,
        "[[activity]]\nname = \"gold\"\nweight = 70\nmatch = [{ program = \"dash\" }, { program = \"sh\" }]\n
         [[activity]]\nname = \"iron\"\nreservation = \"10%\"\n",
    )?;
    let options =
        ["--name", &name, "--cores", "2", "--memory", "128M", "--grid", &file.display().to_string()];
    let _cell =
        user.start_program(&options, &name, &["/bin/sh", "-c", "while :; do read x < /proc/uptime; done"])?;
    let out = user.command().args(["stat", "--check", &name, "--interval", "0.2"]).output()?;
    let said = String::from_utf8_lossy(&out.stdout);
    check(said.contains(" for 4 activities at 13 resources each: "), &said)?;
    check(!said.contains("came back\n") && !said.contains("activities hold"), &said)?;
    // OK-06, OK-08: messages keep to their labels, and each runs to its end before the next.
    check(said.contains(" ran in order, one after the other; ") && said.contains(", 2 moved\n"), &said)?;
    check(said.contains("core 1: the books have 100.000 %"), &said)
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

/// OK-03, OK-09: who matches no activity belongs to its parent's, whatever configuration comes, and however often.
fn children_follow() -> Done {
    let user = User::this()?;
    let name = unique("children");
    let shell = |name: &str| {
        format!("[[activity]]\nname = \"{name}\"\nmatch = [{{ program = \"*sh\", argument = \"*# it*\" }}]\n")
    };
    let sleeps = "[[activity]]\nname = \"iron\"\nmatch = [{ program = \"sleep\" }]\n";
    let file = |n: usize, text: &str| -> Result<String, Failed> {
        let path = user.dir.path().join(format!("{n}.toml"));
        std::fs::write(&path, text)?;
        Ok(path.display().to_string())
    };
    let first = file(0, &shell("gold"))?;
    // The second one's parent ends, and it belongs to the first process then.
    let script = "# it\nsleep 1000 & sh -c '# it\nsleep 1001 & exit'; wait";
    let words = ["/bin/sh", "-c", script];
    let options = ["--name", &name, "--cores", "1", "--memory", "128M", "--grid", &first];
    let _cell = user.start_program(&options, &name, &words)?;
    let of = |s: &Value, wanted: &str| {
        let all = s["activities"].as_array().cloned().unwrap_or_default();
        let above =
            |id: &Value| all.iter().find(|a| a["id"] == *id).map_or(Value::Null, |a| a["name"].clone());
        let both = all.iter().filter(|a| a["kind"] == "process" && a["name"] == "sleep");
        let names: Vec<Value> = both.map(|a| above(&a["parent"])).collect();
        names.len() == 2 && names.iter().all(|name| name == wanted)
    };
    user.snapshot_when(&name, "not of its parent's", |s| of(s, "gold"))?;
    for (n, (text, wanted)) in [
        (shell("gold"), "gold"),
        (shell("gold") + sleeps, "iron"),
        // Who was not of its parent's activity stays where it is if that is there.
        (shell("gold") + "[[activity]]\nname = \"iron\"\n", "iron"),
        (shell("gold"), "cell"),
    ]
    .into_iter()
    .enumerate()
    {
        user.ask(&["grid", "set", &name, &file(n + 1, &text)?])?;
        user.snapshot_when(&name, &format!("{n}: not of {wanted}"), |s| of(s, wanted))?;
    }
    Ok(())
}

/// What the tenants do: read a cached file again and again, and compute a little.
const TENANTS: &str = r#"
import os, subprocess
busy = '''
import os
data = "/tmp/" + os.environ["TENANT"]
open(data, "wb").write(bytes(32768))
while True:
    f = os.open(data, os.O_RDONLY)
    os.read(f, 32768)
    os.close(f)
    sum(range(100))
'''
tenants = [subprocess.Popen(["/usr/bin/python3", "-c", busy], env={"TENANT": t}) for t in ("gold", "silver", "bronze")]
for t in tenants:
    t.wait()
"#;

/// OK-05, OK-09, OK-10: what three unmodified programs get of the core is what the configuration says, and changes with it;
/// and every nanosecond of the core is in the books.
fn shares() -> Done {
    let user = User::this()?;
    let name = unique("shares");
    let first = tenants(&user, [50, 33, 17], "")?;
    let second = tenants(&user, [20, 33, 47], "")?;
    let options = ["--name", &name, "--cores", "1", "--memory", "256M", "--grid", &first];
    let _cell = user.start_program(&options, &name, &["/usr/bin/python3", "-c", TENANTS])?;
    let snapshot = || user.snapshot(&name);
    wait_for_tenants(|| Ok(used(&snapshot()?, "file-cache").len() == 3))?;
    for (config, want) in [(None, [50.0, 33.0, 17.0]), (Some(&second), [20.0, 33.0, 47.0])] {
        if let Some(config) = config {
            user.ask(&["grid", "set", &name, config])?;
        }
        let before = snapshot()?;
        std::thread::sleep(Duration::from_secs(3));
        let after = snapshot()?;
        let (mut got, earlier) = (used(&after, ""), used(&before, ""));
        got.iter_mut().for_each(|(tenant, ns)| *ns -= earlier.get(tenant).copied().unwrap_or(0.0));
        let sum: f64 = got.values().sum();
        for (tenant, want) in TENANTS_NAMED.into_iter().zip(want) {
            let percent = got.get(tenant).copied().unwrap_or(0.0) * 100.0 / sum;
            check(
                (percent - want).abs() < 5.0,
                format!("{tenant} got {percent:.1} % and not {want}: {after}"),
            )?;
        }
        let time = |s: &Value| (s["clock"].as_f64().unwrap_or(0.0), all(s));
        let ((clock, booked), (clock_before, booked_before)) = (time(&after), time(&before));
        let ratio = (booked - booked_before) / (clock - clock_before);
        check((ratio - 1.0).abs() < 0.005, format!("{ratio} of the core's time is in the books: {after}"))?;
    }
    Ok(())
}

/// Computes, and says on which cores it has been.
const WANDERER: &str = r#"
seen = []
while True:
    core = open('/proc/self/stat').read().rsplit(')', 1)[1].split()[36]
    if seen[-1:] != [core]:
        seen.append(core)
        open('/out/cores', 'w').write(' '.join(seen))
"#;

/// An activity's threads run on the cores that the configuration names, from its start on and when another one comes; a
/// thread that never sleeps is fetched.
fn cores() -> Done {
    let user = User::this()?;
    let name = unique("cores");
    let file = |core: usize, of: &str| -> Result<String, Failed> {
        let path = user.dir.path().join(format!("{of}{core}.toml"));
        let activity = "[[activity]]\nname = 'wanderer'\nmatch = [{ argument = '*WANDERER' }]\n";
        let text = match of {
            "activity" => format!("{activity}cores = [{core}]\n"),
            _ => format!("{activity}[resource.thread]\ncores = [{core}]\n"),
        };
        std::fs::write(&path, text)?;
        Ok(path.display().to_string())
    };
    let volume = format!("{}:/out", user.dir.path().display());
    let options = ["--name", &name, "--cores", "2", "--volume", &volume, "--grid", &file(1, "activity")?];
    let program = ["/usr/bin/python3", "-c", WANDERER, "WANDERER"];
    let _cell = user.start_program(&options, &name, &program)?;
    let wait_for = |want: &str| -> Done {
        let begun = Instant::now();
        loop {
            let seen = std::fs::read_to_string(user.dir.path().join("cores")).unwrap_or_default();
            if seen == want {
                return Ok(());
            }
            check(
                begun.elapsed() < Duration::from_secs(20),
                format!("was on cores {seen:?} and not {want:?}"),
            )?;
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait_for("1")?;
    user.ask(&["grid", "set", &name, &file(0, "activity")?])?;
    wait_for("1 0")?;
    user.ask(&["grid", "set", &name, &file(1, "thread")?])?;
    wait_for("1 0 1")
}

/// Keeps to the core that it is given, and touches new memory there: of its own, and of a file's; then says so, and waits.
const TOUCHER: &str = "
import mmap, os, sys, time
core, pages = int(sys.argv[2]), 4096
os.sched_setaffinity(0, {core})
f = open('/tmp/touched' + str(core), 'w+b')
f.truncate(pages * 4096)
for turn in range(20):
    for m in mmap.mmap(-1, pages * 4096, flags=mmap.MAP_PRIVATE), mmap.mmap(f.fileno(), pages * 4096):
        for at in range(0, pages * 4096, 4096):
            m[at] = turn + 1
        m.close()
open('/out/touched' + str(core), 'w')
time.sleep(1000)
";

/// OR-05: a page fault is served on the core where it happens, its memory found and zeroed there, while another core does the same.
fn faults() -> Done {
    let user = User::this()?;
    let name = unique("faults");
    let config = user.dir.path().join("touchers.toml");
    let toucher = |core: usize| {
        format!("[[activity]]\nname = 'core{core}'\nmatch = [{{ argument = 'TOUCHER{core}' }}]\n")
    };
    std::fs::write(&config, toucher(0) + &toucher(1))?;
    let volume = format!("{}:/out", user.dir.path().display());
    let config = config.display().to_string();
    let options =
        ["--name", &name, "--cores", "2", "--memory", "512M", "--volume", &volume, "--grid", &config];
    let both = "for core in 0 1; do /usr/bin/python3 -c \"$0\" TOUCHER$core $core & done; wait";
    let _cell = user.start_program(&options, &name, &["/bin/sh", "-c", both, TOUCHER])?;
    let begun = Instant::now();
    while !(0..2).all(|core| user.dir.path().join(format!("touched{core}")).exists()) {
        check(begun.elapsed() < Duration::from_secs(60), "memory isn't touched to the end")?;
        std::thread::sleep(Duration::from_millis(20));
    }
    let books: Value = serde_json::from_str(&user.ask(&["stat", &name, "--json", "--cores"])?)?;
    let mut spent = [[0.0; 2]; 2];
    of_tenants(&books, |process, of| {
        let of = usize::from(of == "core1");
        for (core, uses) in process["cores"].as_array().into_iter().flatten().enumerate() {
            spent[of][core] += ["address-space", "memory"]
                .map(|r| uses[r]["ns"].as_f64().unwrap_or(0.0))
                .iter()
                .sum::<f64>();
        }
    });
    for (core, spent) in spent.iter().enumerate() {
        // It has to come to its core first.
        let (own, others) = (spent[core], spent[1 - core]);
        check(
            own > 1e6 && others < own / 3.0,
            format!("core {core}'s faults took {spent:?} ns on the cores: {books}"),
        )?;
    }
    Ok(())
}

/// Says how often its cell's cores were interrupted while it computed for half a second, and while it slept: alone, and beside a
/// thread that waits for standard input and one that waits at a socket.
const COMPUTES: &str = "
import socket, sys, threading, time
def interrupts():
    rows = open('/proc/interrupts').read().splitlines()[1:]
    return sum(int(n) for row in rows for n in row.split()[1:] if n.isdigit())
def counted(f):
    before = interrupts()
    f()
    return interrupts() - before
def compute():
    until = time.monotonic() + 0.5
    while time.monotonic() < until: pass
print(counted(compute), counted(lambda: time.sleep(0.5)), end=' ')
threading.Thread(target=lambda: sys.stdin.read(1), daemon=True).start()
s = socket.socket()
s.bind(('127.0.0.1', 0))
s.listen()
threading.Thread(target=s.accept, daemon=True).start()
time.sleep(0.1)
sys.setswitchinterval(10)
print(counted(compute), counted(lambda: time.sleep(0.5)), flush=True)
sys.stdin.read(1)
";

/// There is no tick: a core on which one thread computes, or none, is left alone, also if events are awaited (issue 5.8; Linux
/// interrupts it 125 times and more in that time).
fn tickless() -> Done {
    let mut command = Command::new(atoll());
    command.args(["run", "--cores", "1", "--memory", "256M", "--", "/usr/bin/python3", "-c", COMPUTES]);
    let mut cell = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(cell.stdout.take().ok_or("no standard output")?).read_line(&mut line)?;
    // Both read something.
    cell.stdin.take().ok_or("no standard input")?.write_all(b"xx")?;
    let ended = cell.wait()?;
    println!("interrupts: {line}");
    let few = line.split_whitespace().filter(|n| n.parse::<u32>().is_ok_and(|n| n <= 25)).count();
    check(ended.success() && few == 4, format!("{ended}, interrupts: {line}"))
}

/// Resources that programs send messages to.
const LIMITED: [&str; 12] = [
    "completion",
    "process",
    "address-space",
    "memory",
    "files",
    "file-cache",
    "pipe",
    "socket",
    "device-read",
    "device-write",
    "timer",
    "wait",
];

/// Those that page faults send messages to, without a system call.
const FAULTED: [&str; 2] = ["address-space", "memory"];

/// Sends messages to a resource for some seconds, and prints how many.
const MESSAGES: &str = r#"
import mmap, os, select, socket, sys, time
what, seconds = sys.argv[1], float(sys.argv[2])
r, w = os.pipe()
file = os.open("/tmp/data", os.O_RDWR | os.O_CREAT)
os.write(file, bytes(4096))
near, far = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
far.bind(("127.0.0.1", 0))
near.connect(far.getsockname())
send = lambda: near.send(b"x")
def take():
    pages = mmap.mmap(-1, 1 << 17)
    pages[0] = pages[-1] = 1
    pages.close()
def touch():
    pages = mmap.mmap(-1, 1 << 29, flags=mmap.MAP_PRIVATE)
    while True:
        for at in range(0, 1 << 29, 1 << 16):
            pages[at] = 1
            yield
        pages.madvise(mmap.MADV_DONTNEED)
message = {
    "process": os.getuid,
    "address-space": lambda: mmap.mmap(-1, 4096).close(),
    "memory": take,
    "files": lambda: os.stat("/tmp"),
    "file-cache": lambda: os.pread(file, 4096, 0),
    "pipe": lambda: os.write(w, b"x") and os.read(r, 1),
    "socket": near.getsockname,
    "device-read": lambda: send() and far.recv(1),
    "device-write": send,
    "timer": lambda: time.sleep(0),
    "wait": lambda: select.select([], [], [], 0),
    # The host is asked for one, and answers.
    "completion": lambda: socket.socket().close(),
    "faults": touch().__next__,
    "output": lambda: os.write(1, b"\n"),
    "input": lambda: os.read(0, 1),
}[what]
n, end = 0, time.monotonic() + seconds
while time.monotonic() < end:
    message()
    n += 1
print(n)
"#;

/// OK-02, OK-10: at each resource an activity gets as many messages served as its limit allows, whatever it sends: no path leads
/// around the resource's scheduler. Who has no limit is not held up.
fn limit(resource: &str, messages: &str, options: &[&str]) -> Done {
    const SECONDS: f64 = 1.5;
    // So few that a busy machine, too, serves many times as many: some are done by threads of the host, at milliseconds each there.
    const RATE: f64 = 200.0;
    let user = User::this()?;
    let config = user.dir.path().join("grid.toml");
    std::fs::write(
        &config,
        format!(
            "[[activity]]\nname = \"gold\"\nmatch = [{{ environment = \"TENANT=gold\" }}]\n\
             [resource.{resource}]\nmeasure = \"operations\"\nactivity.gold = {{ limit = \"{RATE}/s\" }}\n"
        ),
    )?;
    let count = |tenant: &str| -> Result<f64, Failed> {
        let (config, seconds) = (config.display().to_string(), SECONDS.to_string());
        let cell = ["run", "--cores", "1", "--env", tenant, "--grid", &config];
        let program = ["--", "/usr/bin/python3", "-c", MESSAGES, messages, &seconds];
        // What it reads, if it does.
        let mut feeder = Command::new("/usr/bin/yes").stdout(Stdio::piped()).spawn().map(Running)?;
        let input = feeder.0.stdout.take().map_or(Stdio::null(), Stdio::from);
        let words = [&cell[..], options, &program].concat();
        let out = user.command().args(words).stdin(input).stderr(Stdio::inherit()).output()?;
        check(out.status.success(), format!("{tenant}: {}", out.status))?;
        Ok(String::from_utf8_lossy(&out.stdout).trim().parse()?)
    };
    let held = count("TENANT=gold")?;
    // Besides the limit there is what it allows at once: 10 ms' worth after a rest, and a window of 20 ms.
    check(held <= RATE * SECONDS * 1.02 + 16.0, format!("{held} messages in {SECONDS} s"))?;
    check(held >= 20.0, format!("only {held} messages in {SECONDS} s"))?;
    once_of_some(|| {
        let free = count("TENANT=none")?;
        check(free > 4.0 * RATE * SECONDS, format!("{free} messages without a limit, and {held} with one"))
    })
}

/// The same of a program that sends nothing but page faults, one for each 64 KiB that it touches.
fn faulted(resource: &str) -> Done {
    limit(resource, "faults", &["--memory", "1G", "--paging", "demand"])
}

const TENANTS_NAMED: [&str; 3] = ["gold", "silver", "bronze"];
const WEIGHTS: [u32; 3] = [50, 33, 17];

/// A configuration with an activity for each tenant, and what else it is to say.
fn tenants(user: &User, weights: [u32; 3], more: &str) -> Result<String, Failed> {
    let mut text = String::new();
    for (tenant, weight) in TENANTS_NAMED.into_iter().zip(weights) {
        text += &format!("[[activity]]\nname = \"{tenant}\"\nweight = {weight}\n");
        text += &format!("match = [{{ environment = \"TENANT={tenant}\" }}]\n");
    }
    let path = user.dir.path().join(format!("{}.toml", weights[0]));
    std::fs::write(&path, text + more)?;
    Ok(path.display().to_string())
}

/// The same of tenants that share 40 MB of a device's bytes a second.
fn tenants_of(user: &User, resource: &str) -> Result<String, Failed> {
    let rate = format!("[resource.{resource}]\nmeasure = \"bytes\"\nrate = \"40MB/s\"\n");
    tenants(user, WEIGHTS, &rate)
}

/// What is measured must be right once of three times: a machine that has other work, too, gives some of its time to that.
fn once_of_some(mut right: impl FnMut() -> Done) -> Done {
    let mut said = right();
    for _ in 0..2 {
        if said.is_ok() {
            break;
        }
        said = right();
    }
    said
}

/// Waits until all three are at work.
fn wait_for_tenants(at_work: impl Fn() -> Result<bool, Failed>) -> Done {
    let begun = Instant::now();
    while !at_work()? {
        if begun.elapsed() > Duration::from_secs(60) {
            return Err("the tenants don't come".into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Runs what comes as its argument for each tenant.
const EACH: &str = r#"
import subprocess, sys
run = lambda t: subprocess.Popen(["/usr/bin/python3", "-c", *sys.argv[1:]], env={"TENANT": t})
for tenant in [run(t) for t in ("gold", "silver", "bronze")]:
    tenant.wait()
"#;

/// Sends without end by several connections, waiting in each call, or for readiness.
const SENDER: &str = r#"
import os, select, socket, sys, threading
data = bytes(30000)
def connect():
    c = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
    c.sendall(os.environ["TENANT"].ljust(8).encode())
    return c
connections = [connect() for _ in range(4)]
def send(c):
    while True:
        c.sendall(data)
if sys.argv[1] == "wait":
    for c in connections:
        threading.Thread(target=send, args=(c,)).start()
else:
    edge = sys.argv[1] == "edge"
    epoll, by_number = select.epoll(), {}
    for c in connections:
        c.setblocking(False)
        epoll.register(c, select.EPOLLOUT | (select.EPOLLET if edge else 0))
        by_number[c.fileno()] = c
    while True:
        for number, _ in epoll.poll():
            try:
                by_number[number].send(data)
                while edge:
                    by_number[number].send(data)
            except BlockingIOError:
                pass
"#;

/// Bytes by tenant, up to now.
type Sums = std::sync::Arc<std::sync::Mutex<BTreeMap<String, f64>>>;

/// How bytes come, and how near they are to be to what they should.
struct Comes {
    /// How far an activity may be from its share, percent of the whole.
    tolerance: f64,
    /// The whole, as a part of the rate: more than the first, and less than the second.
    whole: (f64, f64),
    /// How long they are counted, s.
    seconds: u64,
}

const EVENLY: Comes = Comes { tolerance: 1.5, whole: (0.8, 1.0), seconds: 4 };
/// Of 8 MiB: gold gets 47 to 49 %, silver 33 to 36, bronze 17 to 18.
const LUMPS: Comes = Comes { tolerance: 6.0, whole: (0.3, 1.1), seconds: 10 };

/// Have they got the whole rate, and their shares of it?
fn check_shares(
    now: &BTreeMap<String, f64>,
    before: &BTreeMap<String, f64>,
    rate: f64,
    time: f64,
    comes: &Comes,
) -> Done {
    let of = |name: &str| now.get(name).unwrap_or(&0.0) - before.get(name).unwrap_or(&0.0);
    let sum: f64 = TENANTS_NAMED.into_iter().map(of).sum();
    let (least, most) = comes.whole;
    let most = rate * (time + 0.1) * most;
    check(sum < most && sum > rate * time * least, format!("{sum} bytes in {time} s: {now:?}"))?;
    for (name, want) in TENANTS_NAMED.into_iter().zip(WEIGHTS.map(f64::from)) {
        let percent = of(name) * 100.0 / sum;
        check(
            (percent - want).abs() < comes.tolerance,
            format!("{name} got {percent:.2} % and not {want}: {now:?}"),
        )?;
    }
    Ok(())
}

/// Omni-kernel, section 4.2: where the bytes that leave are what there is too little of, tenants get their shares of them, and
/// all together the rate, as who receives them sees it.
fn sent(mode: &str) -> Done {
    let user = User::this()?;
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port().to_string();
    let sums = Sums::default();
    let received = sums.clone();
    std::thread::spawn(move || {
        for mut from in listener.incoming().flatten() {
            let sums = received.clone();
            std::thread::spawn(move || {
                let mut bytes = vec![0; 1 << 18];
                let named = from.read_exact(&mut bytes[..8]);
                let name = String::from_utf8_lossy(&bytes[..8]).trim().to_string();
                while let (Ok(()), Ok(n @ 1..)) = (&named, from.read(&mut bytes)) {
                    *sums.lock().unwrap().entry(name.clone()).or_default() += n as f64;
                }
            });
        }
    });
    let (name, config) = (unique(mode), tenants_of(&user, "device-write")?);
    let options = ["--name", &name, "--cores", "1", "--memory", "256M", "--grid", &config];
    let python = ["/usr/bin/python3", "-c", EACH, SENDER, mode, &port];
    let _cell = user.start_program(&options, &name, &python)?;
    wait_for_tenants(|| Ok(sums.lock().unwrap().len() == 3))?;
    // What socket buffers take at first is on no account.
    std::thread::sleep(Duration::from_secs(2));
    once_of_some(|| {
        let (begun, before) = (Instant::now(), sums.lock().unwrap().clone());
        std::thread::sleep(Duration::from_secs(4));
        let now = sums.lock().unwrap().clone();
        check_shares(&now, &before, 40e6, begun.elapsed().as_secs_f64(), &EVENLY)
    })
}

/// Reads a file of its own without end, several pieces at a time, past the cache.
const READER: &str = r#"
import mmap, os, threading
def read(at):
    f = os.open("/data/" + os.environ["TENANT"], os.O_RDONLY | os.O_DIRECT)
    to = mmap.mmap(-1, 1 << 17)
    while True:
        os.preadv(f, [to], at)
        at = (at + (1 << 17)) % (1 << 23)
for n in range(4):
    threading.Thread(target=read, args=(n << 21,)).start()
"#;

/// The same by page faults, of mappings that may be written to and of others.
const MAPPER: &str = r#"
import mmap, os, threading
def read(at):
    f = os.open("/data/" + os.environ["TENANT"], os.O_RDONLY)
    access = mmap.PROT_READ
    while True:
        access ^= mmap.PROT_WRITE
        m = mmap.mmap(f, 1 << 17, flags=mmap.MAP_PRIVATE, prot=access, offset=at)
        m[0] + m[1 << 16]
        m.close()
        at = (at + (1 << 17)) % (1 << 23)
for n in range(4):
    threading.Thread(target=read, args=(n << 21,)).start()
"#;

/// Makes the same pages of a file of its own dirty again and again: they are written back by nobody in particular.
const WRITER: &str = r#"
import os
f, data = os.open("/data/" + os.environ["TENANT"], os.O_RDWR), bytes(1 << 18)
while True:
    for at in range(0, 1 << 23, 1 << 18):
        os.pwrite(f, data, at)
"#;

/// Writes to a file of its own without end, several pieces at a time, each of which is on its disk when the call returns.
const SYNCHRONOUS_WRITER: &str = r#"
import os, threading
data = bytes(1 << 17)
def write(at):
    f = os.open("/data/" + os.environ["TENANT"], os.O_RDWR | os.O_DSYNC)
    while True:
        os.pwrite(f, data, at)
        at = (at + (1 << 17)) % (1 << 23)
for n in range(4):
    threading.Thread(target=write, args=(n << 21,)).start()
"#;

/// Omni-kernel, section 4.3: the same of what is read from a volume, or written to it, as the books have it.
fn by_rate(program: &str, resource: &str, comes: &Comes) -> Done {
    let user = User::this()?;
    // Where O_DIRECT is known.
    let data = tempfile::Builder::new().prefix("atoll-test-").tempdir_in("/var/tmp")?;
    for tenant in TENANTS_NAMED {
        std::fs::write(data.path().join(tenant), vec![7; 8 << 20])?;
    }
    let what = match program {
        MAPPER => "faults",
        SYNCHRONOUS_WRITER => "synchronous",
        _ => resource,
    };
    let (name, config) = (unique(what), tenants_of(&user, resource)?);
    let volume = format!("{}:/data", data.path().display());
    let options = ["--name", &name, "--cores", "1", "--memory", "256M", "--grid", &config, "-v", &volume];
    let python = ["/usr/bin/python3", "-c", EACH, program];
    let _cell = user.start_program(&options, &name, &python)?;
    let bytes = || -> Result<(f64, BTreeMap<String, f64>), Failed> {
        let snapshot = user.snapshot(&name)?;
        let mut sums = BTreeMap::new();
        of_tenants(&snapshot, |process, tenant| {
            let n = process["resources"][resource]["bytes"].as_f64().unwrap_or(0.0);
            *sums.entry(tenant.to_string()).or_default() += n;
        });
        Ok((snapshot["clock"].as_f64().unwrap_or(0.0), sums))
    };
    wait_for_tenants(|| Ok(bytes()?.1.values().filter(|n| **n > 4e6).count() == 3))?;
    once_of_some(|| {
        let (begun, before) = bytes()?;
        std::thread::sleep(Duration::from_secs(comes.seconds));
        let (ended, now) = bytes()?;
        check_shares(&now, &before, 40e6, (ended - begun) / 1e9, comes)
    })
}

/// Has one activity's process write to a file that others keep open, and end, and another's the same, and stay.
const WRITE_AND_GO: &str = r#"
import os, subprocess, time
def write(tenant, length, then):
    f = os.open("/data/" + tenant, os.O_RDWR | os.O_CREAT)
    program = f"import os, time; os.write({f}, bytes({length})); {then}"
    return subprocess.Popen(["/usr/bin/python3", "-c", program], env={"TENANT": tenant}, pass_fds=[f])
write("silver", 3 << 20, "pass").wait()
write("gold", 2 << 20, "time.sleep(1000)").wait()
"#;

/// OK-04: what is written back is whose pages it was, even if that one has ended by then: its class's. So is the time.
fn written_back() -> Done {
    let user = User::this()?;
    let data = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let (name, config) = (unique("behind"), tenants(&user, WEIGHTS, "")?);
    let volume = format!("{}:/data", data.path().display());
    let options = ["--name", &name, "--cores", "1", "--memory", "256M", "--grid", &config, "-v", &volume];
    let _cell = user.start_program(&options, &name, &["/usr/bin/python3", "-c", WRITE_AND_GO])?;
    let begun = Instant::now();
    loop {
        let snapshot = user.snapshot(&name)?;
        let mut of = BTreeMap::new();
        of_tenants(&snapshot, |process, tenant| {
            of.insert(tenant.to_string(), process["resources"]["device-write"].clone());
        });
        let activities = snapshot["activities"].as_array().into_iter().flatten();
        let named = activities.clone().find(|a| a["kind"] == "named" && a["name"] == "silver");
        let silver = named.map_or(Value::Null, |a| a["resources"]["device-write"].clone());
        let gold = of.remove("gold").unwrap_or_default();
        let bytes = |entry: &Value| entry["bytes"].as_u64().unwrap_or(0);
        if (bytes(&gold), bytes(&silver)) == (2 << 20, 3 << 20) {
            let unknown = activities.clone().find(|a| a["kind"] == "substitute");
            let unknown = unknown.map_or(0, |a| bytes(&a["resources"]["device-write"]));
            check(unknown == 0, format!("{unknown} bytes are nobody's"))?;
            return check(
                gold["ns"].as_i64() > Some(0) && gold["device"].as_i64() > Some(0),
                format!("{gold}"),
            );
        }
        if begun.elapsed() > Duration::from_secs(10) {
            return Err(format!("of gold {gold}, of silver {silver}").into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Processor time of an activity's resources, or of one, ns.
fn time_of(activity: &Value, resource: &str) -> f64 {
    let resources = activity["resources"].as_object().into_iter().flatten();
    let wanted = resources.filter(|(name, _)| resource.is_empty() || *name == resource);
    wanted.map(|(_, entry)| entry["ns"].as_f64().unwrap_or(0.0)).sum()
}

/// Calls `f` with each process that is under an activity of the configuration, and that one's name.
fn of_tenants(snapshot: &Value, mut f: impl FnMut(&Value, &str)) {
    let none = Vec::new();
    let activities = snapshot["activities"].as_array().unwrap_or(&none);
    for process in activities.iter().filter(|a| a["kind"] == "process") {
        let above = activities.iter().find(|a| a["id"] == process["parent"] && a["kind"] == "named");
        if let Some(name) = above.and_then(|a| a["name"].as_str()) {
            f(process, name);
        }
    }
}

/// What the processes under each activity of the configuration have used, ns, if they used anything.
fn used(snapshot: &Value, resource: &str) -> BTreeMap<String, f64> {
    let mut sums = BTreeMap::new();
    of_tenants(snapshot, |process, tenant| {
        let time = time_of(process, resource);
        if time > 0.0 {
            *sums.entry(tenant.to_string()).or_default() += time;
        }
    });
    sums
}

/// All that is in the books, ns.
fn all(snapshot: &Value) -> f64 {
    snapshot["activities"].as_array().into_iter().flatten().map(|a| time_of(a, "")).sum()
}

/// Two units of a program's: one has three times as much work as the other.
const UNITS: &str = r#"
import ctypes
call = ctypes.CDLL(None).syscall
CREATE, ENTER, LEAVE = 0x0a7011f1, 0x0a7011f2, 0x0a7011f3
call.restype = ctypes.c_long
def create(name):
    return ctypes.c_long(call(ctypes.c_long(CREATE), name, ctypes.c_long(len(name))))
one, three = create(b"one"), create(b"three")
while True:
    for unit, work in (one, 2000), (three, 6000):
        call(ctypes.c_long(ENTER), unit)
        sum(range(work))
        call(ctypes.c_long(LEAVE), unit)
"#;

/// OK-03: what a program names itself is shown below its process, and has what was used for it.
fn units() -> Done {
    let user = User::this()?;
    let name = unique("units");
    let options = ["--name", &name, "--cores", "1", "--memory", "256M"];
    let _cell = user.start_program(&options, &name, &["/usr/bin/python3", "-c", UNITS])?;
    // Time of a unit, and whether its process is the one above it.
    let unit = |s: &Value, name: &str| {
        let all = s["activities"].as_array().into_iter().flatten();
        let a = all.clone().find(|a| a["name"] == name && a["kind"] == "unit")?;
        all.clone().find(|p| p["id"] == a["parent"] && p["kind"] == "process" && p["pid"] == a["pid"])?;
        Some(time_of(a, ""))
    };
    let works = |s: &Value| unit(s, "three").is_some_and(|ns| ns > 0.0);
    let before = user.snapshot_when(&name, "the units don't come", works)?;
    std::thread::sleep(Duration::from_secs(3));
    let after = user.snapshot(&name)?;
    let used = |name| Some(unit(&after, name)? - unit(&before, name)?);
    let (Some(one), Some(three)) = (used("one"), used("three")) else {
        return Err(format!("a unit is not below its process: {after}").into());
    };
    // What isn't the same for both is what python does around them.
    check((2.7..3.1).contains(&(three / one)), format!("{three} ns and {one} ns"))?;
    let core = after["clock"].as_f64().unwrap_or(0.0) - before["clock"].as_f64().unwrap_or(0.0);
    let ratio = (all(&after) - all(&before)) / core;
    check((ratio - 1.0).abs() < 0.005, format!("{ratio} of the core's time is in the books: {after}"))
}

/// Programs that want memory, and what became of each, as JSON; then one that stays.
const WANTING: &str = r#"
import json, os, subprocess, sys
directory = sys.argv[1]
def run(code, *arguments):
    full = "import ctypes, mmap, os, sys, threading, time\n" + code
    done = subprocess.run(["/usr/bin/python3", "-c", full, *arguments], capture_output=True, text=True)
    return [done.returncode, done.stdout.strip()]
MIB = 1 << 20
WANT = '''
def want(n):
    some = mmap.mmap(-1, n << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, n << 20, 4096): some[at] = 1
    return some
'''
with open(directory + "/large", "wb") as file:
    file.truncate(160 * MIB)
said = {}
# Its files in the cache go before it does.
said["reads"] = run('''
n = 0
with open(sys.argv[2] + "/large", "rb") as file:
    while some := file.read(1 << 20): n += len(some)
print(n >> 20)
''', "batch", directory)
# What it has written is written back and goes, too, and what nobody can read any more at once.
said["writes"] = run('''
def write(name, n):
    with open(name, "wb") as file:
        for _ in range(n): file.write(bytes(1 << 20))
    os.unlink(name)
write(sys.argv[2] + "/written", 160)
write("/tmp/written", 44)
print("done")
''', "batch", directory)
said["grows"] = run(WANT + "want(200)", "batch")
# A cache gives back what it is asked for.
said["shrinks"] = run(WANT + '''
cache = [want(2) for _ in range(20)]
waits, tells = os.pipe()
grows = os.fork()
if grows == 0:
    # Who has not come to wait to be asked can't be asked.
    os.read(waits, 1)
    while open(f"/proc/{os.getppid()}/stat").read().rsplit(") ", 1)[1][0] != "S": time.sleep(0.05)
    time.sleep(0.3)
    for piece in cache: piece.close()
    some = want(40)
    os._exit(0)
def wait():
    global ended
    ended = os.waitpid(grows, 0)[1]
    os._exit(print(ended, asked > 5, len(cache) < 15, flush=True) or 0)
asked = 0
threading.Thread(target=wait).start()
libc = ctypes.CDLL(None)
os.write(tells, b"x")
while (wanted := libc.syscall(0x0a7011f0 + 32)) >= 0:
    asked += 1
    for _ in range(-(-wanted // (2 << 20))):
        if cache: cache.pop(0).close()
''', "batch")
# In a class of its own, the parent ends with the child that is the larger of the two.
said["group"] = run(WANT + '''
if os.fork() == 0: want(200)
os.wait()
print("goes on")
''', "group")
# Others don't get what is calm's, and that does.
said["others"] = run(WANT + "want(460)")
said["calm"] = run(WANT + "want(80); print('calm')", "calm")
# Of two, the larger one goes, whoever needs a page.
said["larger"] = run(WANT + '''
import subprocess
child = subprocess.Popen(["/usr/bin/python3", "-c", "import time; a = b'x' * (40 << 20); print(1, flush=True); time.sleep(100)", "batch"], stdout=subprocess.PIPE)
child.stdout.readline()
some = [want(1) for _ in range(28)]
print(child.wait(), len(some))
''', "batch")
# What programs read of it, as in a container.
said["group files"] = run('''
group = "/sys/fs/cgroup" + open("/proc/self/cgroup").read().strip().removeprefix("0::")
read = lambda name: open(group + "/" + name).read().strip()
some = b"x" * (20 << 20)
events = dict(line.split() for line in read("memory.events").splitlines())
print(group, read("memory.max"), 20 << 20 < int(read("memory.current")) < 64 << 20, events["oom_kill"],
    str(os.getpid()) in read("cgroup.procs").split(), read("pids.current"), read("cpuset.cpus.effective"))
''', "batch")
said["score"] = [int(open("/proc/self/oom_score").read()), os.getpid()]
print(json.dumps(said), flush=True)
os.execv("/usr/bin/python3", ["python3", "-c", "a = b'x' * (30 << 20); import time; time.sleep(1000)", "batch"])
"#;

/// XOS-10, OR-02, OK-12, OV-09: an activity holds no more memory than its `memory_max`, and has its `memory_min` in any case. Over it, caches
/// give back what it pays for, then programs that said that they can, and then the largest process ends, and nobody else's.
fn memory_budgets(on: &[&str]) -> Done {
    let user = User::this()?;
    let name = unique("budgets");
    let file = user.dir.path().join("budgets.toml");
    let activity = |name: &str, limits: &str| {
        format!("[[activity]]\nname = \"{name}\"\n{limits}\nmatch = [{{ argument = \"{name}\" }}]\n")
    };
    let all = [
        activity("batch", "memory_max = \"64MiB\""),
        activity("group", "memory_max = \"48MiB\"\noom_group = true"),
        activity("calm", "memory_min = \"96MiB\""),
    ];
    std::fs::write(&file, all.concat())?;
    let path = file.to_str().ok_or("a name")?;
    let shown = tempfile::tempdir()?;
    let directory = shown.path().to_str().ok_or("a name")?;
    let volume = format!("{directory}:{directory}");
    let options = ["--name", &name, "--cores", "2", "--memory", "512M", "--grid", path, "--volume", &volume];
    let program = ["/usr/bin/python3", "-c", WANTING, directory];
    let mut cell = user.start_to(Stdio::piped(), &[&options, on].concat(), &name, &program)?;
    let mut line = String::new();
    BufReader::new(cell.0.stdout.take().ok_or("no standard output")?).read_line(&mut line)?;
    let said: Value = serde_json::from_str(&line).map_err(|e| format!("{e}: {line}"))?;
    let killed = serde_json::json!([-9, ""]);
    let expected = [
        ("reads", serde_json::json!([0, "160"])),
        ("writes", serde_json::json!([0, "done"])),
        ("grows", killed.clone()),
        ("shrinks", serde_json::json!([0, "0 True True"])),
        ("group", killed.clone()),
        ("others", killed),
        ("calm", serde_json::json!([0, "calm"])),
        ("larger", serde_json::json!([0, "-9 28"])),
        ("group files", serde_json::json!([0, "/sys/fs/cgroup/batch 67108864 True 2 True 1 0-1"])),
    ];
    for (what, expected) in expected {
        check(said[what] == expected, format!("{what}: {}, not {expected}", said[what]))?;
    }
    let score = said["score"][0].as_u64().unwrap_or(0);
    check((660..700).contains(&score), format!("a small process's score is {score}"))?;
    // What it holds, and what has become of it, shows from outside.
    let held = |s: &Value| {
        let all = s["activities"].as_array().into_iter().flatten();
        all.clone().find(|a| a["name"] == "batch").map(|a| a["memory"].clone())
    };
    let there = |s: &Value| held(s).is_some_and(|m| m["held"].as_u64() > Some(30 << 20));
    let memory = held(&user.snapshot_when(&name, "nothing is held", there)?).ok_or("no activity")?;
    check(
        memory["held"].as_u64() <= Some(64 << 20) && memory["max"] == 64 << 20 && memory["oom_kills"] == 2,
        memory.to_string(),
    )?;
    let shown = user.ask(&["grid", "show", &name])?;
    // A string of 30 MiB and Python, and there its libraries, which the cell has of its own.
    let most = if on.is_empty() { 40.0 } else { 64.0 };
    let holds = |text: &str, before: &str| {
        let number = text
            .split_once(before)
            .and_then(|(_, rest)| rest.split(|c: char| !c.is_ascii_digit() && c != '.').next()?.parse().ok());
        number.is_some_and(|mib: f64| (30.0..most).contains(&mib))
    };
    check(holds(&shown, "memory_max = \"64MiB\" # ") && shown.contains("oom_group = true"), &shown)?;
    let table = user.ask(&["stat", "--count", "1", "--interval", "0.1", &name])?;
    check(holds(&table, "memory of batch: ") && table.contains("2 processes ended for it"), &table)
}

/// Options of a cell with Python there.
const ON_THE_NUCLEUS: &[&str] = &["--platform", "nucleus", "--volume", "/usr:/usr:ro", "--net", "none"];

/// Fills the cache, wants memory that the cache has, and then more than there is, with a small process beside it.
const USING_UP: &str = r#"
import mmap, os, subprocess, sys
MIB = 1 << 20
def want(n, flags):
    some = mmap.mmap(-1, n << 20, flags)
    for at in range(0, n << 20, 4096): some[at] = 1
    return some
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
SHARED = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS
large = sys.argv[1] + "/large"
for flags in PRIVATE, SHARED:
    with open(large, "wb") as file:
        for _ in range(300): file.write(bytes(MIB))
    want(480, flags).close()
small = subprocess.Popen(["sleep", "1000"])
large = os.fork()
if large == 0:
    want(600, PRIVATE)
print(os.waitpid(large, 0)[1], small.poll(), flush=True)
small.kill()
"#;

/// OK-12: memory that the cache has is there for programs, to the last of it; when there is no more, the largest process ends, and the others
/// and the cell go on.
fn memory_used_up(on: &[&str]) -> Done {
    let user = User::this()?;
    let shown = tempfile::tempdir()?;
    let directory = shown.path().to_str().ok_or("a name")?;
    let volume = format!("{directory}:{directory}");
    let options = ["run", "--cores", "2", "--memory", "512M", "--volume", &volume];
    let program = ["--", "/usr/bin/python3", "-c", USING_UP, directory];
    let said = user.ask(&[&options[..], on, &program].concat())?;
    check(said == "9 None\n", said)
}

/// A program with libatoll's allocator, which has freed much, and one that wants more than is left.
const KEEPING: &str = r#"
import json, mmap, os, subprocess, sys
KEEPS = '''
import ctypes, os
libc = ctypes.CDLL(None)
libc.atoll_allocator_kept.restype = ctypes.c_size_t
some = [bytearray(b"x" * (4 << 20)) for _ in range(25)]
mine = bytearray(b"y" * (8 << 20))
del some
kept = lambda: libc.atoll_allocator_kept() >> 20
names = sorted(open(f"/proc/self/task/{tid}/comm").read().strip() for tid in os.listdir("/proc/self/task"))
print(kept() >= 90, names, flush=True)
input()
print(kept() < 60, mine == b"y" * (8 << 20), flush=True)
input()
some = [bytearray(b"z" * (4 << 20)) for _ in range(25)]
print(sum(map(len, some)) >> 20, flush=True)
'''
environment = os.environ | {"LD_PRELOAD": sys.argv[1], "ATOLL_ALLOC_KEEP": "128M"}
child = subprocess.Popen(["/usr/bin/python3", "-c", KEEPS], env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
said = [child.stdout.readline().strip()]
some = mmap.mmap(-1, 170 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, len(some), 4096): some[at] = 1
def go_on():
    print(file=child.stdin, flush=True)
    said.append(child.stdout.readline().strip())
go_on()
some.close()
go_on()
print(said, child.wait(), flush=True)
"#;

/// A program that keeps much, until it doesn't any more.
const KEPT: &str = r#"
import ctypes, time
kept = ctypes.CDLL(None).atoll_allocator_kept
kept.restype = ctypes.c_size_t
some = [bytearray(b"x" * (4 << 20)) for _ in range(30)]
del some
print(kept() > 110 << 20, flush=True)
begun = time.monotonic()
while kept() > 90 << 20 and time.monotonic() < begun + 20: time.sleep(0.01)
print(kept() < 90 << 20, flush=True)
time.sleep(1000)
"#;

/// XOS-08: what a program's own allocator keeps is there for others when the cell is short of memory.
fn allocator() -> Done {
    let user = User::this()?;
    let shown = tempfile::tempdir()?;
    let object = shown.path().join("alloc.so");
    std::fs::copy(atoll().with_file_name("libatoll-alloc.so"), &object)?;
    let (directory, object) = (shown.path().to_str().ok_or("a name")?, object.to_str().ok_or("a name")?);
    let volume = format!("{directory}:{directory}");
    let options = ["run", "--cores", "2", "--memory", "256M", "--volume", &volume, "--"];
    let said = user.ask(&[&options[..], &["/usr/bin/python3", "-c", KEEPING, object]].concat())?;
    check(said == "[\"True ['atoll-alloc', 'python3']\", 'True True', '100'] 0\n", said)?;
    // And when the cell is to have less of it.
    let name = unique("keeps");
    let options = ["--name", &name, "--cores", "2", "--memory", "256M", "--volume", &volume];
    let preload = format!("LD_PRELOAD={object}");
    let program = ["/usr/bin/env", &preload, "ATOLL_ALLOC_KEEP=1G", "/usr/bin/python3", "-c", KEPT];
    let mut cell = user.start_to(Stdio::piped(), &options, &name, &program)?;
    let mut lines = BufReader::new(cell.0.stdout.take().ok_or("no standard output")?).lines();
    check(lines.next().transpose()?.as_deref() == Some("True"), "it keeps nothing")?;
    user.ask(&["resize", &name, "--memory", "64M"])?;
    check(lines.next().transpose()?.as_deref() == Some("True"), "it gives nothing")
}

/// Programs that end when they are asked for memory, and how long who wants it waits then, at least.
const ENDING: &str = r#"
import ctypes, mmap, os, time
libc = ctypes.CDLL(None)
def want(n):
    some = mmap.mmap(-1, n << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, n << 20, 4096): some[at] = 1
    return some
def timed():
    begun = time.monotonic()
    want(150).close()
    return time.monotonic() - begun
took, nobody_asked = [], []
for _ in range(4):
    nobody_asked.append(timed())
    is_there, says = os.pipe()
    child = os.fork()
    if child == 0:
        some = want(120)
        os.write(says, b"x")
        # The first time brings in what the second takes: it must not want memory itself then.
        for call, end in (39, lambda status: None), (0x0a7011f0 + 32, os._exit):
            libc.syscall(call)
            end(7)
    os.read(is_there, 1)
    # Until it waits to be asked.
    while open(f"/proc/{child}/stat").read().split()[2] != "S": time.sleep(0.001)
    took.append(timed())
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), end=" ")
print(min(took) < min(nobody_asked) + 0.4 or (took, nobody_asked), flush=True)
"#;

/// XOS-08: who ends when it is asked for memory is not waited for any longer, and nobody else is ended.
fn asked_and_ended() -> Done {
    let options = ["run", "--cores", "2", "--memory", "256M", "--", "/usr/bin/python3", "-c", ENDING];
    let said = User::this()?.ask(&options)?;
    check(said == "7 7 7 7 True\n", said)
}

/// Makes one kind of the runtime's objects after the other until there is an error, with all other memory taken.
const MAKING: &str = r#"
import ctypes, errno, mmap, os, resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (1 << 20, 1 << 20))
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype, libc.mmap.argtypes = ctypes.c_long, [ctypes.c_long, ctypes.c_long, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_long, ctypes.c_long]
def until_error(make, most=1 << 20):
    # Python's own memory for what comes then.
    spare = [bytes(500) for _ in range(4000)]
    try:
        for n in range(most):
            make(n)
    except OSError as e:
        spare.clear()
        return errno.errorcode[e.errno]
    except MemoryError:
        spare.clear()
        return "ENOMEM"
    return "no error"
def call(result):
    if result == -1:
        raise OSError(ctypes.get_errno(), "")
    return result
filler = mmap.mmap(-1, 200 << 20)
def fill(n):
    filler[n << 12] = 1
def close():
    for fd in range(3, 1 << 20):
        try:
            os.close(fd)
        except OSError:
            return
def event(n):
    os.eventfd(0)
def directory(n):
    os.mkdir(f"/tmp/of-a-name-of-some-length-{n}")
places = []
def mapping(n):
    places.append(call(libc.mmap(0, 4096, n % 2, 0x22, -1, 0)))
ends = []
def message(n):
    if n % 200 == 0:
        ends.append(socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
        ends[-1][0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    ends[-1][0].send(b"a message")
timers = []
def timer(n):
    id = ctypes.c_void_p()
    call(libc.timer_create(1, None, ctypes.byref(id)))
    timers.append(id)
for n in range(0, 150 << 8):
    fill(n)
print("events", until_error(event), flush=True)
close()
print("directories", until_error(directory), flush=True)
for n in range(1 << 20):
    try:
        os.rmdir(f"/tmp/of-a-name-of-some-length-{n}")
    except OSError:
        break
print("mappings", until_error(mapping), flush=True)
for p in places:
    libc.munmap(p, 4096)
print("messages", until_error(message), flush=True)
for a, b in ends:
    a.close(), b.close()
print("timers", until_error(timer, 1 << 14), flush=True)
for id in timers:
    libc.timer_delete(id)
# And all goes on.
print(open("/proc/self/comm").read().strip(), os.spawnv(os.P_WAIT, "/bin/true", ["true"]), flush=True)
"#;

/// OK-12: what a program makes of the runtime's objects comes to an end before the runtime's memory does.
fn objects_used_up() -> Done {
    let user = User::this()?;
    let options = ["run", "--cores", "2", "--memory", "200M", "--", "/usr/bin/python3", "-c", MAKING];
    let said = user.ask(&options)?;
    let expected =
        "events EMFILE\ndirectories ENOMEM\nmappings ENOMEM\nmessages ENOMEM\ntimers no error\npython3 0\n";
    check(said == expected, said)
}

/// On one core takes most of the memory and gives every second 64 KiB back; on the other one uses as much as that.
const FROM_OTHERS: &str = r#"
import mmap, os, signal
CHUNK, HALF = 65536, 100 << 20
def take(bytes):
    p = mmap.mmap(-1, bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    p.madvise(mmap.MADV_NOHUGEPAGE)
    for at in range(0, bytes, 4096):
        p[at] = 1
    return p
there, back = os.pipe()
os.sched_setaffinity(0, [0])
child = os.fork()
if child == 0:
    os.sched_setaffinity(0, [1])
    p = take(2 * HALF)
    for at in range(0, 2 * HALF, 2 * CHUNK):
        p.madvise(mmap.MADV_DONTNEED, at, CHUNK)
    os.write(back, b".")
    signal.pause()
os.read(there, 1)
p = take(HALF - (8 << 20))
print(p[0], os.waitpid(child, os.WNOHANG))
os.kill(child, signal.SIGKILL)
"#;

/// What is free in one core's hands, and no whole block, is had by another one that needs it.
fn memory_of_others() -> Done {
    let user = User::this()?;
    let options = ["run", "--cores", "2", "--memory", "256M", "--", "/usr/bin/python3", "-c", FROM_OTHERS];
    let said = user.ask(&options)?;
    check(said == "1 (0, 0)\n", said)
}

/// Two threads of a program's, one of which ends after a second, and another program's.
const THREADS: &str = r#"
import ctypes, subprocess, sys, threading, time
subprocess.Popen(["/usr/bin/python3", "-c", "import time\nwhile True: sum(range(1000)); time.sleep(0.01)"])
def work(name, until):
    ctypes.CDLL(None).prctl(15, name)
    while time.monotonic() < until:
        sum(range(2000))
end = time.monotonic() + 1
threading.Thread(target=work, args=(b"short", end)).start()
work(b"lasting", end + 1000)
"#;

/// OK-03: threads are activities below their process's where the configuration says so, by the names that they give themselves; what
/// one has used that has ended is its process's.
fn threads() -> Done {
    let user = User::this()?;
    let name = unique("threads");
    let file = user.dir.path().join("threads.toml");
    let marked = "[[activity]]\nname = \"marked\"\nthreads = true\nmatch = [{ argument = \"*short*\" }]\n";
    std::fs::write(&file, marked)?;
    let file = file.to_str().ok_or("a name")?;
    let options = ["--name", &name, "--cores", "1", "--memory", "256M", "--grid", file];
    let _cell = user.start_program(&options, &name, &["/usr/bin/python3", "-c", THREADS])?;
    // Time of a thread of the first process.
    let of = |s: &Value, name: &str| {
        let all = s["activities"].as_array().into_iter().flatten();
        let a = all.clone().find(|a| a["name"] == name && a["kind"] == "thread")?;
        all.clone().find(|p| p["id"] == a["parent"] && p["kind"] == "process")?;
        Some(time_of(a, "")).filter(|ns| *ns > 1e6)
    };
    let both = |s: &Value| of(s, "short").is_some() && of(s, "lasting").is_some();
    user.snapshot_when(&name, "the threads don't come", both)?;
    let one = |s: &Value| of(s, "short").is_none() && of(s, "lasting").is_some();
    let after = user.snapshot_when(&name, "no thread ends", one)?;
    // The second program is of its parent's activity.
    let threads = after["activities"].as_array().into_iter().flatten().filter(|a| a["kind"] == "thread");
    let names: BTreeSet<&str> = threads.filter_map(|a| a["name"].as_str()).collect();
    check(names == BTreeSet::from(["lasting", "python3"]), format!("{names:?}"))?;
    let process = after["activities"].as_array().into_iter().flatten().find(|a| a["kind"] == "process");
    // About half of the second in which both ran.
    let used = process.map_or(0.0, |p| time_of(p, ""));
    check(used > 0.2e9, format!("{used} ns are left of the thread that has ended: {after}"))?;
    let shown = user.ask(&["grid", "show", &name])?;
    check(shown.contains("threads = true"), shown)?;
    let all_time =
        after["activities"].as_array().into_iter().flatten().flat_map(|a| a["resources"].as_object());
    let least = all_time.flatten().filter_map(|(_, entry)| entry["ns"].as_f64()).fold(0.0, f64::min);
    // To switch between two spaces of a host is not to have slept.
    check(least > -1e6, format!("{least} ns: {after}"))?;
    let passed = after["clock"].as_f64().unwrap_or(0.0) - after["opened"].as_f64().unwrap_or(0.0);
    let ratio = all(&after) / passed;
    check((ratio - 1.0).abs() < 0.01, format!("{ratio} of the core's time is in the books: {after}"))
}

/// A core that reads much at once, and one thread beside that sleeps a millisecond at a time.
const LONG: &str = r#"
import os, threading, time
def naps():
    while True:
        time.sleep(0.001)
threading.Thread(target=naps, daemon=True).start()
zero, buffer = os.open("/dev/zero", os.O_RDONLY), [bytearray(64 << 20)]
while True:
    os.readv(zero, buffer)
"#;

/// OV-04: how long the runtime keeps what comes for a core waiting is measured (how long that is: `tests/syscalls/long_calls.c`).
fn put_off() -> Done {
    let user = User::this()?;
    let name = unique("put-off");
    let _cell = user.start_program(
        &["--name", &name, "--cores", "1", "--memory", "256M"],
        &name,
        &["/usr/bin/python3", "-c", LONG],
    )?;
    let begun = Instant::now();
    loop {
        let said: Value = serde_json::from_str(&user.ask(&["ps", &name, "--json"])?)?;
        let core = &said["cores"][0];
        let number = |field: &str| core[field].as_f64().unwrap_or(-1.0);
        let (times, longest) = (number("put_off"), number("put_off_longest_ns"));
        let mean = number("put_off_ns") / times;
        if times >= 100.0 {
            check(core["online"] == true && mean <= longest, format!("{core}"))?;
            check(number("deadlines") > 0.0 && number("switches") > times / 2.0, format!("{core}"))?;
            break;
        }
        check(begun.elapsed() < Duration::from_secs(30), format!("nothing is put off: {core}"))?;
        std::thread::sleep(Duration::from_millis(100));
    }
    let table = user.ask(&["ps", &name, "--cores"])?;
    let mut lines = table.lines();
    check(lines.next().is_some_and(|l| l.starts_with("CORE") && l.contains("PUT-OFF")), table.clone())?;
    check(lines.next().is_some_and(|l| l.contains("online")) && lines.next().is_none(), table.clone())
}

/// Threads that sleep in several calls, two programs that always have something to do, and one that has ended.
const MANY: &str = r#"
import ctypes, os, subprocess, threading, time
def named(name, call):
    def run():
        ctypes.CDLL(None).prctl(15, name)
        call()
    threading.Thread(target=run, daemon=True).start()
lock = threading.Lock()
lock.acquire()
named(b"sleeper", lambda: time.sleep(1000))
named(b"reader", lambda: os.read(os.pipe()[0], 1))
named(b"locked", lock.acquire)
for _ in range(2):
    subprocess.Popen(["/usr/bin/python3", "-c", "import os; os.nice(3)\nwhile True: pass"])
ended = subprocess.Popen(["/usr/bin/true"])
time.sleep(1000)
"#;

/// OV-05: `atoll ps` says what each thread does and where it waits; `atoll trace` how they take turns.
fn ps() -> Done {
    let user = User::this()?;
    let name = unique("ps");
    let options = ["--name", &name, "--cores", "1", "--memory", "512M"];
    let _cell = user.start_program(&options, &name, &["/usr/bin/python3", "-c", MANY])?;
    let threads = || -> Result<Vec<Value>, Failed> {
        let said: Value = serde_json::from_str(&user.ask(&["ps", "--json", &name])?)?;
        Ok(said["threads"].as_array().cloned().unwrap_or_default())
    };
    let until = Instant::now() + Duration::from_secs(60);
    let before = loop {
        let all = threads()?;
        if all.iter().filter(|t| t["nice"] == 3).count() == 2 && all.iter().any(|t| t["state"] == "zombie") {
            break all;
        }
        check(Instant::now() < until, format!("they don't come: {all:?}"))?;
        std::thread::sleep(Duration::from_millis(100));
    };
    // By name, where each waits: clock_nanosleep(2), read(2) and futex(2).
    for (thread, call) in [("sleeper", 230), ("reader", 0), ("locked", 202)] {
        let it = before.iter().find(|t| t["name"] == thread);
        let it = it.ok_or_else(|| format!("there is no {thread}: {before:?}"))?;
        check(it["state"] == "sleeping" && it["call"] == call, it.to_string())?;
    }
    let busy: Vec<&Value> = before.iter().filter(|t| t["nice"] == 3).collect();
    let stolen = || -> Result<f64, Failed> { Ok(time_of(&user.snapshot(&name)?["activities"][0], "stolen")) };
    once_of_some(|| {
        let (stolen_before, before) = (stolen()?, threads()?);
        std::thread::sleep(Duration::from_secs(2));
        let (stolen, after) = (stolen()? - stolen_before, threads()?);
        let mut parts = [0.0; 2];
        for t in &busy {
            let of = |all: &[Value]| all.iter().find(|a| a["tid"] == t["tid"]).cloned().ok_or("it has ended");
            let (was, now) = (of(&before)?, of(&after)?);
            let grew = |key: &str| now[key].as_f64().unwrap_or(0.0) - was[key].as_f64().unwrap_or(0.0);
            // One after the other has the core, also while the host has taken its processor: then the one does not run, and the other waits.
            let (run, wait) = (grew("run_ns"), grew("wait_ns"));
            let had = run + stolen / 2.0;
            check(
                (0.7..1.4).contains(&(had / wait)),
                format!("ran {run} ns, waited {wait} ns: {stolen} ns stolen"),
            )?;
            check(now["state"] == "running" || now["state"] == "ready", now.to_string())?;
            parts[0] += run;
            parts[1] += grew("switches");
        }
        check(parts[0] + stolen > 1.5e9, format!("{parts:?}, {stolen} ns stolen"))
    })?;
    let table = user.ask(&["ps", "--sort", "run", &name])?;
    let first = table.lines().nth(1).unwrap_or_default();
    check(table.starts_with("PID") && !first.contains("sleeper"), &table)?;
    check(table.contains("clock_nanosleep(") && table.contains("zombie"), &table)?;
    // One that is not written where it can't be.
    let there = user.dir.path().join("missing").join("trace.json");
    let refused = user.command().args(["trace", &name, "-o"]).arg(&there).output()?;
    check(!refused.status.success(), String::from_utf8_lossy(&refused.stderr))?;
    let file = user.dir.path().join("trace.json");
    once_of_some(|| {
        user.ask(&["trace", &name, "--seconds", "1", "-o", &file.to_string_lossy()])?;
        let trace: Value = serde_json::from_str(&std::fs::read_to_string(&file)?)?;
        let events: Vec<&Value> = trace["traceEvents"].as_array().into_iter().flatten().collect();
        let time = |of: &dyn Fn(&Value) -> bool| -> f64 {
            let of = events.iter().filter(|e| e["ph"] == "X" && of(e));
            of.filter_map(|e| e["dur"].as_f64()).sum()
        };
        let core = time(&|e| e["pid"] == 0);
        check(core > 0.9e6, format!("{core} us of a second are in the core's track"))?;
        for t in &busy {
            let ran = time(&|e| e["tid"] == t["tid"] && e["name"] == "runs on core 0") / core;
            let ready = time(&|e| e["tid"] == t["tid"] && e["name"] == "ready") / core;
            check((0.35..0.6).contains(&ran), format!("{ran} of the core's time"))?;
            check((0.35..0.65).contains(&ready), format!("{ready} of the core's time"))?;
        }
        Ok(())
    })
}

/// Makes threads, and programs, that end; and says on request how far it is.
const SHORT: &str = r#"
import subprocess, threading, time
while True:
    for _ in range(200):
        t = threading.Thread(target=lambda: None)
        t.start()
        t.join()
    subprocess.run(["/usr/bin/true"])
    print("round", flush=True)
"#;

/// What threads and processes have used is given back when they end: none of the cell's memory is lost with each.
fn nothing_is_left() -> Done {
    let user = User::this()?;
    let name = unique("left");
    let options = ["--name", &name, "--cores", "1", "--memory", "512M"];
    let mut cell = user.start_to(Stdio::piped(), &options, &name, &["/usr/bin/python3", "-c", SHORT])?;
    let output = cell.0.stdout.take().ok_or("no output")?;
    let mut lines = BufReader::new(output).lines();
    let mut rounds = |n: usize| -> Done {
        for _ in 0..n {
            lines.next().ok_or("it has ended")??;
        }
        Ok(())
    };
    let pages = |s: &Value| -> f64 {
        s["activities"].as_array().into_iter().flatten().filter_map(|a| a["pages"].as_f64()).sum()
    };
    // The first ones fill what is kept to be used again.
    rounds(10)?;
    let before = pages(&user.snapshot(&name)?);
    rounds(20)?;
    let after = pages(&user.snapshot(&name)?);
    // 4,000 threads and 20 processes: a page of each would be 4,020.
    check(after - before < 400.0, format!("{before} pages, and {after} later"))
}

/// Makes threads until there can't be more, and then one again.
const TOO_MANY: &str = r#"
import threading
threading.stack_size(65536)
over, all = threading.Event(), []
try:
    while True:
        t = threading.Thread(target=over.wait)
        t.start()
        all.append(t)
except RuntimeError as e:
    print(e)
over.set()
for t in all:
    t.join()
t = threading.Thread(target=lambda: print("and another one"))
t.start()
t.join()
print(len(all) > 200)
"#;

/// A program that makes threads without end is told EAGAIN, and nothing else happens to it or its cell.
fn too_many_threads() -> Done {
    let user = User::this()?;
    let options = ["run", "--cores", "2", "--memory", "96M", "--", "/usr/bin/python3", "-c", TOO_MANY];
    let said = user.ask(&options)?;
    check(said == "can't start new thread\nand another one\nTrue\n", said)
}

/// Two programs of an activity each that make threads until they can't, or there are 60, and say how many they have.
const COUNTED: &str = r#"
import os, subprocess, sys, threading, time
def say(*words):
    # In one piece: the other one says something, too.
    os.write(1, (" ".join(map(str, words)) + "\n").encode())
def fill(all):
    try:
        while len(all) < 60:
            t = threading.Thread(target=time.sleep, args=(100,), daemon=True)
            t.start()
            all.append(t)
    except RuntimeError:
        # Nor is there room for another process, now and again.
        for _ in range(3):
            try:
                os.posix_spawn("/bin/true", ["true"], {})
                return "a process"
            except BlockingIOError:
                pass
    return len(all)
if sys.argv[1] == "once":
    say(fill([]))
    sys.exit()
if sys.argv[1] == "bomb":
    bomb, before = [], 0
    while True:
        if fill(bomb) != before:
            before = len(bomb)
            say(before)
        time.sleep(0.05)
subprocess.Popen([sys.executable, "-c", sys.argv[2], "bomb"], stderr=subprocess.DEVNULL)
say("calm", fill([]))
time.sleep(100)
"#;

/// OR-02, OR-04: an activity, and the cell, have no more threads than they may. Others are not concerned, and the limit can be changed.
fn tasks_max() -> Done {
    let user = User::this()?;
    // The one thread that the program has from the start counts.
    let limited = ["run", "--cores", "1", "--memory", "256M", "--pids-limit", "21", "--"];
    let program = ["/usr/bin/python3", "-c", COUNTED, "once"];
    let said = user.ask(&[&limited[..], &program[..]].concat())?;
    check(said.lines().next() == Some("20"), format!("of 20 threads in a cell there are {said}"))?;
    let name = unique("tasks");
    let file = user.dir.path().join("tasks.toml");
    let write = |most: u32| {
        let text = format!(
            "[[activity]]\nname = \"bomb\"\ntasks_max = {most}\nmatch = [{{ argument = \"bomb\" }}]\n"
        );
        std::fs::write(&file, text)
    };
    write(11)?;
    let path = file.to_str().ok_or("a name")?;
    let options = ["--name", &name, "--cores", "1", "--memory", "256M", "--grid", path];
    let program = ["/usr/bin/python3", "-c", COUNTED, "calm", COUNTED];
    let mut cell = user.start_to(Stdio::piped(), &options, &name, &program)?;
    let mut lines = BufReader::new(cell.0.stdout.take().ok_or("no standard output")?).lines();
    let mut two = [String::new(), String::new()];
    for line in &mut two {
        *line = lines.next().ok_or("it says no more")??;
    }
    two.sort();
    check(two == ["10", "calm 60"], format!("{two:?}"))?;
    write(31)?;
    user.ask(&["grid", "set", &name, path])?;
    let shown = user.ask(&["grid", "show", &name])?;
    check(shown.contains("tasks_max = 31"), shown)?;
    let more = lines.next().ok_or("it says no more")??;
    check(more == "30", format!("of 30 there are {more}"))
}

/// Makes of each kind as many as there can be, 12 at most, and says how many and what came then; then gives one of each back and makes it
/// again, in a thread of its own, which may run on another core. A `calm` one starts another one, and does so only when that is done.
const OF_EACH_KIND: &str = r#"
import ctypes, errno, os, select, socket, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    result = libc.syscall(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "failed")
    return result
def timer():
    id = ctypes.c_int()
    event = (ctypes.c_int * 16)(0, 0, 0, 1)
    call(222, 1, event, ctypes.byref(id))
    return id.value
def pair():
    left, right = socket.socketpair()
    return left, right
def accepted():
    client = socket.socket(socket.AF_UNIX)
    client.connect("\0" + sys.argv[1])
    try:
        return client, server.accept()[0]
    except OSError:
        client.close()
        raise
def gone(child):
    os.kill(child, 9)
    os.waitpid(child, 0)
kinds = {
    "timerfd": (lambda: call(283, 1, 0), os.close),
    "timer": (timer, lambda id: call(226, id)),
    "eventfd": (lambda: call(290, 0, 0), os.close),
    "epoll": (select.epoll, lambda e: e.close()),
    "signalfd": (lambda: call(289, -1, ctypes.byref(ctypes.c_uint64(0)), 8, 0), os.close),
    "pipe": (os.pipe, lambda both: [os.close(fd) for fd in both]),
    "socket": (lambda: socket.socket(socket.AF_UNIX), lambda s: s.close()),
    "pair": (pair, lambda both: [s.close() for s in both]),
    "accepted": (accepted, lambda both: [s.close() for s in both]),
    "process": (lambda: os.posix_spawn("/bin/sleep", ["sleep", "100"], {}), gone),
}
def fill(make, all):
    try:
        while len(all) < 12:
            all.append(make())
    except OSError as e:
        return "%d %s" % (len(all), errno.errorcode[e.errno])
    return str(len(all))
said = []
server = socket.socket(socket.AF_UNIX)
server.bind("\0" + sys.argv[1])
server.listen(20)
def each(kind, make, end):
    all = []
    said.append(kind + " " + fill(make, all))
    for _ in range(50):
        end(all.pop())
        all.append(make())
    for one in all:
        end(one)
if sys.argv[1] == "calm":
    subprocess.run([sys.executable, "-c", sys.argv[2], "full"], check=True)
for kind, (make, end) in kinds.items():
    t = threading.Thread(target=each, args=(kind, make, end))
    t.start()
    t.join()
print(sys.argv[1], ", ".join(said), flush=True)
if sys.argv[1] == "calm":
    full = [os.pipe() for _ in range(3)]
    time.sleep(100)
"#;

/// OR-02, OR-04: of each kind an activity has as many as it may, on all cores together; the errors are Linux's; what is given back can be had
/// again wherever that is; others are not concerned; and how many there are is shown.
fn quotas() -> Done {
    let user = User::this()?;
    let name = unique("quotas");
    let file = user.dir.path().join("quotas.toml");
    let text = "channels_max = 100\n[[activity]]\nname = \"full\"\nprocesses_max = 4\ntimers_max = 5\nevents_max = 6\n\
                channels_max = 8\nmatch = [{ argument = \"full\" }]\n";
    std::fs::write(&file, text)?;
    let path = file.to_str().ok_or("a name")?;
    let options = ["--name", &name, "--cores", "2", "--memory", "256M", "--grid", path];
    let program = ["/usr/bin/python3", "-c", OF_EACH_KIND, "calm", OF_EACH_KIND];
    let mut cell = user.start_to(Stdio::piped(), &options, &name, &program)?;
    let mut lines = BufReader::new(cell.0.stdout.take().ok_or("no standard output")?).lines();
    let full = lines.next().ok_or("it says nothing")??;
    // Its listening socket is one of its channels, and it is one of its processes.
    let wanted = "full timerfd 5 ENFILE, timer 5 EAGAIN, eventfd 6 ENFILE, epoll 6 ENFILE, signalfd 6 ENFILE, pipe 7 ENFILE, \
                  socket 7 ENFILE, pair 3 ENFILE, accepted 3 ENFILE, process 3 EAGAIN";
    check(full == wanted, full)?;
    let calm = lines.next().ok_or("it says nothing more")??;
    check(!calm.contains("ENFILE") && !calm.contains("EAGAIN") && calm.contains("process 12"), calm)?;
    let quota = |s: &Value, kind: &str, quota: &str| -> Value {
        let of_kind = |a: &&Value| a["kind"] == kind;
        let found = s["activities"].as_array().into_iter().flatten().find(of_kind);
        found.map_or(Value::Null, |a| a["quotas"][quota].clone())
    };
    // Three pipes and the socket are left, of the cell; of what has ended nothing is.
    let wanted = serde_json::json!({ "used": 4, "limit": 100 });
    let s = user.snapshot_when(&name, "the channels", |s| quota(s, "cell", "channels") == wanted)?;
    check(quota(&s, "named", "events") == serde_json::json!({ "used": 0, "limit": 6 }), &s)?;
    check(quota(&s, "cell", "tasks") == serde_json::json!({ "used": 1 }), &s)?;
    let table = user.ask(&["stat", &name])?;
    check(table.contains("quotas of cell: channels 4 of 100\n"), &table)?;
    let shown = user.ask(&["grid", "show", &name])?;
    check(
        shown.contains("channels_max = 100 # 4 are used\n")
            && shown.contains("timers_max = 5 # 0 are used\n"),
        shown,
    )
}

/// A thread sets two timers and a timerfd on one core, goes to the other one when it is told to, and waits there for a timer that
/// runs out again and again.
const WITH_TIMERS: &str = r#"
import ctypes, os, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(15, b"holds")
def timer(seconds, interval):
    id = ctypes.c_int()
    event = (ctypes.c_int * 16)(0, 0, 0, 1)
    assert libc.syscall(222, 1, event, ctypes.byref(id)) == 0
    assert libc.syscall(223, id, 0, struct.pack("4q", 0, interval, seconds, 0), 0) == 0
    return id
fd = libc.syscall(283, 1, 0)
def go_to(core):
    os.sched_setaffinity(0, [core])
    print("there", flush=True)
    sys.stdin.read(2)
go_to(0)
ids = [timer(3600, 0), timer(7200, 0)]
# One that has run out, and of which nobody has read, is on no core: it is to run out only when it has gone to the other one.
assert libc.syscall(286, fd, 0, struct.pack("4q", 0, 10000000, 5, 0), 0) == 0
go_to(0)
go_to(1)
for _ in range(5):
    os.read(fd, 8)
for id in ids:
    libc.syscall(226, id)
assert libc.syscall(286, fd, 0, struct.pack("4q", 0, 10000000, 3600, 0), 0) == 0
go_to(1)
"#;

/// OR-03: what a thread holds is shown, and goes with it to another core.
fn service_points() -> Done {
    let user = User::this()?;
    let name = unique("points");
    let mut command = user.command();
    command.args([
        "run",
        "--name",
        &name,
        "--cores",
        "2",
        "--memory",
        "256M",
        "--",
        "/usr/bin/python3",
        "-c",
        WITH_TIMERS,
    ]);
    let mut cell = Running(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?);
    let mut go_on = cell.0.stdin.take().ok_or("no standard input")?;
    let mut lines = BufReader::new(cell.0.stdout.take().ok_or("no standard output")?).lines();
    // It is listed when it has lived for 0.1 s, and the program may be there before.
    let begun = Instant::now();
    while user.list(&name)?.is_empty() && begun.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(20));
    }
    for (core, timers) in [(0, 0), (0, 3), (1, 3), (1, 1)] {
        lines.next().ok_or("it says no more")??;
        let said: Value = serde_json::from_str(&user.ask(&["ps", "--json", &name])?)?;
        let thread = said["threads"].as_array().into_iter().flatten().find(|t| t["name"] == "holds");
        let thread = thread.ok_or_else(|| format!("there is no such thread: {said}"))?;
        let stack = thread["holds"]["stack"].as_u64().unwrap_or(0);
        check(thread["core"] == core && thread["holds"]["timers"] == timers && stack >= 16384, thread)?;
        go_on.write_all(b"\n\n")?;
    }
    check(cell.0.wait()?.success(), "the program failed")
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

/// Leaves executables, made at once or later, and files behind, some of which were mapped when they lost their names.
const LEAVING: &str = r#"
import mmap, os, shutil, subprocess, time
def made(name):
    with open(name, "wb") as f:
        f.write(b"x" * 1000000)
    return open(name, "r+b")
def mapped(name, **how):
    with made(name) as f:
        return mmap.mmap(f.fileno(), 0, **how)
shutil.copy("/bin/true", "at-once")
with open("later", "wb") as f:
    f.write(open("/bin/true", "rb").read())
os.chmod("later", 0o755)
print("executables", flush=True)
kept = [mapped("private", flags=mmap.MAP_PRIVATE), mapped("shared"), mapped("replaced", prot=mmap.PROT_READ)]
mapped("closed").close()
made("for-outside").close()
os.unlink("private")
os.unlink("shared")
os.unlink("closed")
made("new").close()
os.rename("new", "replaced")
# Without a name it is there as long as it is mapped.
print("mapped", [m[999999] for m in kept], flush=True)
for m in kept:
    m.close()
print("unmapped", flush=True)
time.sleep(1000)
"#;

/// What a cell has written and closed can be executed outside of it, and what nobody has open, mapped or asked for lately is not
/// kept open: a file without a name gives its space back.
fn files_let_go() -> Done {
    let user = User::this()?;
    let data = tempfile::tempdir()?;
    let there = data.path().canonicalize()?;
    let name = unique("leaves");
    let volume = format!("{}:/data", there.display());
    let options = ["--name", &name, "--cores", "1", "--memory", "256M", "-v", &volume, "-w", "/data"];
    let mut cell = user.start_to(Stdio::piped(), &options, &name, &["/usr/bin/python3", "-c", LEAVING])?;
    let mut lines = BufReader::new(cell.0.stdout.take().ok_or("no output")?).lines();
    let mut says = |what: &str| -> Done {
        let said = lines.next().ok_or("it has ended")??;
        check(said == what, format!("{said:?}, not {what:?}"))
    };
    says("executables")?;
    for program in ["at-once", "later"] {
        let status = Command::new(there.join(program)).status().map_err(|e| format!("{program}: {e}"))?;
        check(status.success(), format!("{program}: {status}"))?;
    }
    says("mapped [120, 120, 120]")?;
    says("unmapped")?;
    std::fs::remove_file(there.join("for-outside"))?;
    let supervisor = cell.0.id() as i32;
    let all = || {
        let mut all = vec![supervisor];
        let mut next = 0;
        while let Some(parent) = all.get(next) {
            all.extend(children(*parent));
            next += 1;
        }
        all
    };
    let open = || -> Vec<String> {
        let of = |pid: i32| std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let links = all().into_iter().flat_map(of).filter_map(|fd| std::fs::read_link(fd.path()).ok());
        let within = links.filter(|to| to.starts_with(&there) && *to != there);
        within.map(|to| to.display().to_string()).collect()
    };
    let until = Instant::now() + Duration::from_secs(20);
    while !open().is_empty() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
    }
    check(open().is_empty(), format!("still open: {:?}", open()))
}

/// Opens sockets until there can be no more, in two processes, neither of which comes to its own limit, twice.
const MANY_SOCKETS: &str = r#"
import errno, os, socket
def taken(most):
    sockets = []
    try:
        while len(sockets) < most:
            sockets.append(socket.socket())
    except OSError as e:
        print(errno.errorcode[e.errno], len(sockets) < most, end=" ", flush=True)
    return sockets
for _ in range(2):
    ours, theirs = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        sockets = taken(250)
        os.write(theirs[1], b"x")
        os.read(ours[0], 1)
        os._exit(len(sockets))
    os.read(theirs[0], 1)
    for s in taken(250):
        s.close()
    os.write(ours[1], b"x")
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), end=" ", flush=True)
    for fd in ours + theirs:
        os.close(fd)
print(os.system("true"), len(taken(200)))
"#;

/// What the host lets the cell's processes have of descriptors is one limit for all of them. Who meets it hears that there are no
/// more, and can go on when some are closed; why is said once by either side.
fn few_descriptors() -> Done {
    let output = Command::new("/bin/sh")
        .args(["-c", "ulimit -n 400; exec \"$@\"", "sh"])
        .arg(atoll())
        .args(["run", "--cores", "1", "--", "/usr/bin/python3", "-c", MANY_SOCKETS])
        .output()?;
    let (said, noted) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    check(said == "ENFILE True 250 ENFILE True 250 0 200\n", format!("{said}, {noted}"))?;
    check((1..=2).contains(&noted.matches("no more descriptors").count()), noted)
}

/// Files that are larger than the cell's memory are copied beside programs that want some of it, however little of it is in one
/// piece, and as they are.
fn larger_than_memory() -> Done {
    let user = User::this()?;
    let data = tempfile::tempdir()?;
    let large = data.path().join("large");
    let mut some: Vec<u64> = (0..1u64 << 17).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    let mut file = std::fs::File::create(&large)?;
    for round in 0..200 {
        some.iter_mut().for_each(|word| *word ^= round);
        let bytes: Vec<u8> = some.iter().flat_map(|word| word.to_le_bytes()).collect();
        file.write_all(&bytes)?;
    }
    let volume = format!("{}:/data", data.path().display());
    let script = "(while [ ! -e /tmp/over ]; do sha256sum /usr/bin/perl > /tmp/sum || echo lost; done) & \
                  for n in 1 2 3; do cp large copy && dd if=copy of=again bs=64k status=none && rm copy \
                  && cmp large again && echo copied; done; touch /tmp/over; wait";
    let options =
        ["run", "--cores", "2", "--memory", "128M", "-v", &volume, "-w", "/data", "--", "/bin/sh", "-c"];
    let said = user.ask(&[&options[..], &[script]].concat())?;
    check(said == "copied\ncopied\ncopied\n", said)
}

/// What is said beside a program's own output comes a line at a time: each write is a datagram here.
fn whole_lines() -> Done {
    let crash = "ulimit -c unlimited; echo '|/x' > /proc/sys/kernel/core_pattern; kill -SEGV $$";
    let cases =
        [&["run", "--", "/bin/sh", "-c", crash][..], &["syscalls", "9999"], &["stat", "no-such-cell"]];
    for words in cases {
        let (ours, theirs) = UnixDatagram::pair()?;
        Command::new(atoll()).args(words).stderr(Stdio::from(OwnedFd::from(theirs))).status()?;
        ours.set_nonblocking(true)?;
        let (mut chunk, mut lines) = ([0; 4096], 0);
        while let Ok(n) = ours.recv(&mut chunk)
            && n > 0
        {
            let said = String::from_utf8_lossy(&chunk[..n]);
            check(said.starts_with("atoll: ") && said.ends_with('\n'), format!("{words:?}: {said:?}"))?;
            lines += 1;
        }
        check(lines > 0, format!("{words:?} says nothing"))?;
    }
    Ok(())
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
