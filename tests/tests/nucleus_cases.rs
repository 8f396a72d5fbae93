//! `tests/syscalls/*.c` and a few unmodified programs on Linux and on the nucleus, in QEMU; of `tests/programs/*.sh`
//! those that are about volumes and streams.
//!
//! The root of a cell there is a tmpfs; a case that notices says `nucleus-on: tmpfs`, and then Linux's side works
//! on one, too. The others need not, because it may be one that nothing can be executed from.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use atoll_tests::{
    Failed, Outcome, Trial, arguments, atoll, cases, compare, compile, program_case, refused, run, setting,
    timeout, top,
};

use serde_json::{Value, json};

/// A tmpfs of the host's.
const TMPFS: &str = "/dev/shm";
/// What the cases of system calls start.
const STARTED: &[&str] = &["/bin/sh", "/bin/true", "/bin/sleep"];
/// Emulation is slower than the processor.
const SLOWER: u32 = 3;

fn main() {
    let mut trials = cases("syscalls", "c", case);
    let volume = |name: &'static str| Trial::test(format!("volume_{name}"), || in_volumes(name));
    trials.extend(IN_VOLUMES.iter().map(|name| volume(name)));
    trials.extend(LONG_IN_VOLUMES.iter().map(|name| volume(name).with_ignored_flag(true)));
    trials.extend(PROGRAMS.iter().map(|p| Trial::test(format!("program_{}", p.0), || program(p))));
    trials.push(Trial::test("grid", grid));
    trials.push(Trial::test("stat", stat));
    trials.push(Trial::test("ps_and_trace", ps_and_trace));
    trials.push(Trial::test("shares", shares));
    libtest_mimic::run(&arguments(), trials).exit();
}

/// `atoll run` on the nucleus, with further options.
fn nucleus(options: &str, includes: &[&str]) -> Command {
    let mut command = Command::new(atoll());
    command.args(["run", "--platform", "nucleus"]).args(options.split_whitespace());
    for path in includes {
        command.arg("--include").arg(path);
    }
    command
}

fn case(source: &Path, text: &str) -> Result<(), Failed> {
    let differs = setting(text, "nucleus-differs").unwrap_or_default();
    let differs: Vec<&str> = differs.split(" (").next().unwrap_or_default().split("; ").collect();
    if setting(text, "nucleus").is_some_and(|s| s.starts_with("no (")) {
        return Ok(());
    }
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let tmpfs = match setting(text, "nucleus-on").as_deref() {
        Some("tmpfs") => Some(tempfile::Builder::new().prefix("atoll-test-").tempdir_in(TMPFS)?),
        Some(other) => return Err(format!("nucleus-on: {other} is not known").into()),
        None => None,
    };
    let program = dir.path().join("program");
    compile(source, &program, text)?;
    let work = |path: PathBuf| std::fs::create_dir_all(&path).map(|()| path);
    let there = work(dir.path().join("cell/work"))?;
    let here = work(tmpfs.as_ref().unwrap_or(&dir).path().join("linux/work"))?;
    let mut command = Command::new(&program);
    command.current_dir(here).env("TZ", "UTC");
    let mut linux = run(command, timeout(text))?;
    let options = setting(text, "options").unwrap_or_default();
    let mut command = nucleus(&options, STARTED);
    command.arg("--include").arg(dir.path()).arg("--workdir").arg(there).arg("--").arg(&program);
    command.env("TZ", "UTC");
    let mut cell = run(command, timeout(text) * SLOWER)?;
    if let Some(outcome) = refused(text, &linux, &cell) {
        return outcome;
    }
    if let Some(said) = setting(text, "nucleus-says").filter(|said| !cell.stderr.contains(said)) {
        return Err(format!("it didn't say {said:?}, but: {}", cell.stderr).into());
    }
    for prefix in differs.iter().filter(|d| !d.is_empty()) {
        let before = (linux.stdout.len(), cell.stdout.len());
        for side in [&mut linux, &mut cell] {
            let lines = side.stdout.split_inclusive('\n').filter(|l| !l.starts_with(prefix));
            side.stdout = lines.collect();
        }
        if before.0 == linux.stdout.len() || before.1 == cell.stdout.len() {
            return Err(format!("no line begins with {prefix:?}, which is said to differ").into());
        }
    }
    compare(&linux, &cell)
}

/// Cases with programs that are about files of the host, standard streams and terminals, and of those whose whole work is in one cell.
const IN_VOLUMES: &[&str] = &[
    "coreutils_files",
    "exit_status",
    "host_sees",
    "init",
    "inotify",
    "locks",
    "mapped",
    "names",
    "perl_forks",
    "postgres",
    "pty",
    "scripts",
    "sqlite",
    "terminal",
    "tmux",
];

/// More of these, which take ten seconds to a minute: `cargo xtask test long`.
const LONG_IN_VOLUMES: &[&str] = &[
    "apache",
    "git",
    "make_gcc",
    "mariadb",
    "python_processes",
    "redis_inside",
    "runit",
    "shells",
    "ssh_inside",
];

/// The host's directory and its programs are volumes.
fn in_volumes(name: &str) -> Result<(), Failed> {
    let script = top().join("tests/programs").join(name).with_extension("sh");
    let text = std::fs::read_to_string(&script)?;
    program_case(&script, &text, SLOWER, |dir| {
        let options = setting(&text, "options").unwrap_or_default();
        let mut words = format!("{} run --platform nucleus {options}", atoll().display());
        // What cases start is the host's.
        for shown in ["/usr", "/etc", "/bin", "/lib/terminfo"] {
            words += &format!(" --volume {shown}:{shown}:ro");
        }
        format!("{words} --volume {0}:{0} --workdir {0} --", dir.display())
    })
}

/// An unmodified program: a name; what is packed beside it; its words, in which `DATA` is a file of 100,000
/// lines. What it says on Linux on standard error are further paths that it needs.
type Program = (&'static str, &'static [&'static str], &'static [&'static str]);

const PROGRAMS: &[Program] = &[
    ("ls", &["/etc/passwd", "/etc/hosts"], &["/bin/ls", "-l", "/etc/passwd", "/etc/hosts"]),
    ("busybox_sh", &[], &["/bin/busybox", "sh", "-c", BUILTINS]),
    (
        "busybox_awk",
        &[],
        &["/bin/busybox", "awk", "{ n[$2 % 7] += $1 } END { for (k in n) print k, n[k] }", "DATA"],
    ),
    ("busybox_md5sum", &[], &["/bin/busybox", "md5sum", "DATA", "/bin/busybox"]),
    ("busybox_tar", &[], &["/bin/busybox", "tar", "-cvf", "/tmp/packed.tar", "/etc/passwd", "DATA"]),
    ("bash", &[], &["/bin/bash", "-c", BASH]),
    ("sort", &[], &["/usr/bin/sort", "-u", "-k2,2n", "-S", "1M", "-T", "/tmp", "DATA"]),
    (
        "gawk",
        &[],
        &["/usr/bin/gawk", "{ n[$2] += $1 } END { print asorti(n, k); print k[500], n[k[500]] }", "DATA"],
    ),
    ("openssl", &["/etc/ssl/openssl.cnf"], &["/usr/bin/openssl", "dgst", "-sha3-256", "DATA"]),
    (
        "jq",
        &[],
        &["/usr/bin/jq", "-n", "[range(2000) | {n: ., s: (. * . | tostring)}] | map(.s | length) | add"],
    ),
    ("sqlite3", &[], &["/usr/bin/sqlite3", "/tmp/atoll-test.db", SQL]),
    ("perl", &[], &["/usr/bin/perl", "-e", PERL, "DATA"]),
    ("python_libraries", &[], &["/usr/bin/python3", "-c", PYTHON_LIBRARIES, "DATA"]),
    (
        "python_subprocess",
        &["/usr/bin/gzip", "/usr/bin/xz"],
        &["/usr/bin/python3", "-c", PYTHON_SUBPROCESS, "DATA"],
    ),
];

const BUILTINS: &str = r#"
i=0; sum=0
while [ $i -lt 20000 ]; do i=$((i + 1)); sum=$((sum + i * i)); done
echo $sum; printf '%05d|%x|%s\n' 42 255 end
trap 'echo caught' USR1; kill -USR1 $$
echo line > /tmp/atoll-test-sh; read -r l < /tmp/atoll-test-sh; echo "$l"; cd /tmp; pwd"#;

const BASH: &str = r#"
declare -A m; for i in {1..5000}; do m[k$((i % 97))]+=$i; done
echo ${#m[@]} ${m[k13]:0:20}; mapfile -t a <<< $'x\ny\nz'; echo "${a[@]^^}"
[[ 2024-05-06 =~ ^([0-9]+)-([0-9]+) ]] && echo "${BASH_REMATCH[2]}"
printf -v s '%q' 'a b"c'; echo "$s"; trap 'echo bye' EXIT; ulimit -n; exit 0"#;

const SQL: &str = "drop table if exists t; create table t(a integer primary key, b text);
    with recursive c(n) as (select 1 union all select n + 1 from c where n < 20000)
    insert into t select n, hex(n * 7919 % 10007) from c;
    create index i on t(b); select count(*), max(b), sum(length(b)) from t;
    select a from t where b > '39' order by b, a limit 3; pragma integrity_check; drop table t; vacuum;";

const PERL: &str = r#"
use strict; use List::Util qw(sum); use POSIX qw(floor strftime); use Digest::MD5 qw(md5_hex);
print STDERR "$_\n" for values %INC, @DynaLoader::dl_shared_objects;
my (%n, $all); open my $f, "<", $ARGV[0] or die;
while (<$f>) { $all .= $_; my ($a, $b) = split; $n{$b} += $a }
print scalar(keys %n), " ", sum(values %n), " ", md5_hex($all), "\n";
print strftime("%F %T", gmtime(86400 * 365)), " ", floor(-1.5), "\n";
print join(",", ("a1b22c333" =~ /(\d+)/g)), "\n"; local $SIG{ALRM} = sub { die "alarm\n" };
eval { alarm 1; select undef, undef, undef, 20 }; print $@;"#;

const PYTHON_LIBRARIES: &str = r#"
import sys, json, re, hashlib, threading, sqlite3, zlib, queue
text = open(sys.argv[1]).read()
print(hashlib.sha256(text.encode()).hexdigest(), zlib.crc32(text.encode()))
print(len(re.findall(r"\b(\d)\d*\1\b", text)))
print(len(json.dumps(json.loads(json.dumps([l.split() for l in text.splitlines()[:20000]])))))
todo, done = queue.Queue(), []
def work():
    while (n := todo.get()) is not None: done.append(sum(range(n)))
threads = [threading.Thread(target=work) for _ in range(8)]
for t in threads: t.start()
for n in range(1000): todo.put(n)
for t in threads: todo.put(None)
for t in threads: t.join()
print(len(done), sum(done))
db = sqlite3.connect(":memory:"); db.execute("create table t(a, b)")
db.executemany("insert into t values (?, ?)", (l.split() for l in text.splitlines()[:5000]))
print(db.execute("select count(distinct b), sum(a) from t").fetchone())
for m in list(sys.modules.values()): print(getattr(m, "__file__", None) or "", file=sys.stderr)"#;

const PYTHON_SUBPROCESS: &str = r#"
import os, subprocess, sys
data = open(sys.argv[1], "rb").read()
for tool in "gzip", "xz":
    packed = subprocess.run([tool, "-1", "-c"], input=data, stdout=subprocess.PIPE, check=True).stdout
    back = subprocess.run([tool, "-d", "-c"], input=packed, stdout=subprocess.PIPE, check=True).stdout
    print(tool, len(packed), back == data)
pid = os.posix_spawn("/usr/bin/gzip", ["gzip", "-V"], os.environ)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
try: subprocess.run(["/no/such/program"])
except FileNotFoundError as e: print(e)
for m in list(sys.modules.values()): print(getattr(m, "__file__", None) or "", file=sys.stderr)"#;

fn program((_, includes, words): &Program) -> Result<(), Failed> {
    let limit = Duration::from_secs(60);
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let data = dir.path().join("data");
    std::fs::write(&data, lines(100_000))?;
    let words: Vec<String> = words.iter().map(|w| w.replace("DATA", &data.to_string_lossy())).collect();
    let side = |mut command: Command| -> Result<Outcome, Failed> {
        command.env_clear().env("PATH", "/usr/bin:/bin").env("TZ", "UTC").env("LC_ALL", "C.UTF-8");
        Ok(run(command, limit)?)
    };
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).current_dir("/tmp");
    let linux = side(command)?;
    if linux.status != 0 {
        return Err(format!("on Linux it ends with {}:\n{}", linux.status, linux.stderr).into());
    }
    let mut command = nucleus("--workdir /tmp", includes);
    for path in linux.stderr.lines().filter(|l| Path::new(l).is_absolute()) {
        command.arg("--include").arg(path);
    }
    command.arg("--include").arg(&data).arg("--").args(&words);
    compare(&linux, &side(command)?)
}

/// Messages to a pipe and bytes to a network device, 1.5 s of each, and the books.
const MESSAGES: &str = r#"
import os, socket, time
r, w = os.pipe()
near, far = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
far.bind(("127.0.0.1", 0))
near.connect(far.getsockname())
def through_pipe():
    os.write(w, b"x")
    os.read(r, 1)
def sent():
    near.send(bytes(1000))
    far.recv(1000)
for message in through_pipe, sent:
    n, end = 0, time.monotonic() + 1.5
    while time.monotonic() < end:
        message()
        n += 1
    print("made", n)
print(open("/proc/atoll/activities").read())
"#;

/// OK-02, OK-05, OK-09, OK-11: the configuration's limits hold on the nucleus, too, and its books tell of it.
fn grid() -> Result<(), Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let config = dir.path().join("grid.toml");
    let activity = "[[activity]]\nname = \"gold\"\nmatch = [{ program = \"python3*\" }]\n";
    let pipe = "[resource.pipe]\nmeasure = \"operations\"\nactivity.gold = { limit = \"200/s\" }\n";
    let device =
        "[resource.device-write]\nmeasure = \"bytes\"\nbatch = 4\nactivity.gold = { limit = \"200kB/s\" }\n";
    std::fs::write(&config, [activity, pipe, device].concat())?;
    let mut command = nucleus("--net none --volume /usr:/usr:ro", &[]);
    command.arg("--grid").arg(&config).args(["--counter", "cache-misses"]);
    command.args(["--", "/usr/bin/python3", "-c", MESSAGES]);
    let cell = run(command, Duration::from_secs(120))?;
    let made = |line: &str| line.strip_prefix("made ").and_then(|n| n.parse::<u32>().ok());
    let made: Vec<u32> = cell.stdout.lines().filter_map(made).collect();
    // A write and a read are two; 64 KiB may go ahead.
    let right = matches!(made[..], [50..=160, 50..=400]);
    // What waited, in turns of a batch (OK-11).
    let batch = |resource: &str| {
        let line = cell.stdout.lines().find(|line| line.contains(&format!(" gold {resource} ")))?;
        let [turns, waits] = [1, 2].map(|n| line.rsplit(' ').nth(n)?.parse::<f64>().ok());
        Some(waits? / turns?)
    };
    let [pipe, device] = ["pipe", "device-write"].map(batch);
    let batches = pipe == Some(1.0) && device.is_some_and(|n| n > 1.5 && n <= 4.0);
    // Emulated processors count nothing.
    let counts = cell.stderr.contains("this machine has no counter for cache-misses");
    if cell.status == 0 && right && batches && counts {
        return Ok(());
    }
    Err(format!(
        "{made:?} messages, in turns of {pipe:?} and {device:?}; status {}:\n{}{}",
        cell.status, cell.stdout, cell.stderr
    )
    .into())
}

/// OK-05, OK-06, OK-08, OK-09, OK-14, OR-02: a cell on a machine of its own is listed, and its books are read from outside: what it does is there, and
/// each nanosecond of each core. It takes another configuration, or says why not, and known work comes back.
fn stat() -> Result<(), Failed> {
    const WORK: &str = "import os, time\nr, w = os.pipe()\nend = time.monotonic() + 300\n\
        while time.monotonic() < end:\n os.write(w, b'x')\n os.read(r, 1)\n time.sleep(0.01)";
    let cell = Live::start("nucleus", &["--cores", "2"], WORK)?;
    let works = |a: &Value| a["resources"]["pipe"]["messages"].as_u64() > Some(20);
    let snapshot = cell.snapshot(|all| all.iter().any(works))?;
    if !ask(&["ls"])?.contains(&cell.name) {
        return Err("it is not listed".into());
    }
    let all = snapshot["activities"].as_array().into_iter().flatten();
    let resources = all.flat_map(|a| a["resources"].as_object().into_iter().flatten());
    let sum: f64 = resources.map(|(_, entry)| entry["ns"].as_f64().unwrap_or(0.0)).sum();
    let of = |name: &str| snapshot[name].as_f64().unwrap_or(0.0);
    let passed = (of("clock") - of("opened")) * 2.0;
    if snapshot["unread"] != 0 || snapshot["cores"] != 2 || (sum / passed - 1.0).abs() > 0.05 {
        return Err(format!("{sum} ns in the books of {passed}: {snapshot}").into());
    }
    // OK-04, OK-05: events are whose they were, and so is how long the platform had what was asked for.
    let of = |all: &[Value], kind: &str, resource: &str, what: &str| -> i64 {
        let values =
            all.iter().filter(|a| a["kind"] == kind).map(|a| a["resources"][resource][what].as_i64());
        values.map(|value| value.unwrap_or(0)).sum()
    };
    let events =
        |all: &[Value], what: &str| ["process", "substitute"].map(|kind| of(all, kind, "completion", what));
    let mut before = snapshot["activities"].as_array().cloned().unwrap_or_default();
    let asked = ["process", "substitute"].map(|kind| of(&before, kind, "device-read", "device"));
    if asked[0] <= 0 || asked[1] > asked[0] / 5 {
        return Err(format!("of devices {asked:?}: {snapshot}").into());
    }
    // At first its cores zero memory ahead, and look for events in between. So they do when they are asked for their books.
    for window in 0.. {
        let told = events(&before, "messages");
        std::thread::sleep(Duration::from_secs(2));
        let after = cell.snapshot(|_| true)?;
        let after = after["activities"].as_array().cloned().unwrap_or_default();
        let now = events(&after, "messages");
        let paid = events(&after, "ns")[0] > events(&before, "ns")[0];
        if paid && now[1] - told[1] < (now[0] - told[0]) / 2 {
            break;
        }
        if window == 10 {
            return Err(format!("rounds of events {told:?} to {now:?}, paid {paid}").into());
        }
        before = after;
    }
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let set = |text: &str| -> Result<String, Failed> {
        let file = dir.path().join("grid.toml");
        std::fs::write(&file, text)?;
        ask(&["grid", "set", &cell.name, file.to_str().ok_or("a name")?])
    };
    let gold = "[[activity]]\nname = \"gold\"\nchannels_max = 5\nmatch = [{ program = \"python3*\" }]\n";
    set(gold)?;
    let refused = set(&format!("{gold}cores = [2]\n"));
    let refused = refused.err().and_then(|e| e.message().map(String::from)).unwrap_or_default();
    let shown = ask(&["grid", "show", &cell.name])?;
    let below = ask(&["stat", &cell.name])?.contains(" gold ");
    if !refused.contains("is to have core 2") || !shown.contains("gold") || shown.contains("cores") || !below
    {
        return Err(format!("refused: {refused:?}; the cell has {shown}; gold in its books: {below}").into());
    }
    // The pipe was there before the program was gold's (OR-02).
    let quotas = |kind: &str, tasks: Value, channels: Value| {
        let kind = kind.to_string();
        move |a: &Value| {
            a["kind"] == kind[..] && a["quotas"]["tasks"] == tasks && a["quotas"]["channels"] == channels
        }
    };
    let one = json!({ "used": 1 });
    let of_gold = quotas("named", one.clone(), json!({ "used": 0, "limit": 5 }));
    let of_cell = quotas("cell", one.clone(), one);
    cell.snapshot(|all| all.iter().any(&of_gold) && all.iter().any(&of_cell))?;
    let said = ask(&["stat", "--check", &cell.name, "--interval", "1"])?;
    // OK-06, OK-08: messages keep to their labels, and each runs to its end before the next.
    if !said.contains(" ran in order, one after the other; ") || !said.contains(", 2 moved\n") {
        return Err(said.into());
    }
    Ok(())
}

/// OV-05: the threads of a cell on a machine of its own, where they wait, and a trace of them.
fn ps_and_trace() -> Result<(), Failed> {
    const TWO: &str = "import threading, time\ndef naps():\n while True: time.sleep(0.01)\n\
        threading.Thread(target=naps, daemon=True).start()\nwhile True: pass";
    let cell = Live::start("threads", &["--cores", "1"], TWO)?;
    let until = Instant::now() + Duration::from_secs(30);
    // clock_nanosleep(2)
    let sleeps = |t: &&Value| t["state"] == "sleeping" && t["call"] == 230;
    let sleeper = loop {
        // It can't be asked from the first moment on.
        let said = ask(&["ps", "--json", &cell.name]).unwrap_or_else(|_| "{}".into());
        let said: Value = serde_json::from_str(&said)?;
        let all = said["threads"].as_array().cloned().unwrap_or_default();
        let (it, computes) =
            (all.iter().find(sleeps), all.iter().any(|t| t["state"] == "running" || t["state"] == "ready"));
        if let Some(it) = it.filter(|_| computes && all.len() == 2) {
            break it["tid"].clone();
        }
        if Instant::now() > until {
            return Err(format!("it says {said}").into());
        }
    };
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let file = dir.path().join("trace.json");
    ask(&["trace", &cell.name, "--seconds", "1", "-o", file.to_str().ok_or("a name")?])?;
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(&file)?)?;
    let events = trace["traceEvents"].as_array().ok_or("no events")?;
    let runs = |e: &&Value| e["name"] == "runs on core 0" && e["tid"] == sleeper;
    let naps = events.iter().filter(runs).count();
    if naps < 10 {
        return Err(format!(
            "{naps} runs of thread {sleeper} in {} events: {:?}",
            events.len(),
            events.get(20)
        )
        .into());
    }
    Ok(())
}

/// OK-10, OK-16, RF-16: programs of one cell on the nucleus share its core by the configuration's weights.
fn shares() -> Result<(), Failed> {
    const BOTH: &str = "import subprocess\nboth = [subprocess.Popen(['/usr/bin/python3', '-c', 'while True: pass'], \
        env={'TENANT': t}) for t in ('gold', 'silver')]\nboth[0].wait()";
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let config = dir.path().join("grid.toml");
    let of = |name: &str, weight: u32| {
        let matches = format!("match = [{{ environment = \"TENANT={name}\" }}]");
        format!("[[activity]]\nname = \"{name}\"\nweight = {weight}\n{matches}\n")
    };
    std::fs::write(&config, of("gold", 75) + &of("silver", 25))?;
    let cell = Live::start("shares", &["--grid", config.to_str().ok_or("a name")?], BOTH)?;
    // Time of programs below each activity, ns.
    let used = |all: &[Value]| {
        ["gold", "silver"].map(|name| {
            let Some(class) = all.iter().find(|a| a["name"] == name) else { return 0.0 };
            let below = all.iter().filter(|a| a["parent"] == class["id"] && a["kind"] == "process");
            below.map(|a| a["resources"]["thread"]["ns"].as_f64().unwrap_or(0.0)).sum::<f64>()
        })
    };
    let activities = |s: &Value| s["activities"].as_array().cloned().unwrap_or_default();
    // By then both are through with their start, which is charged by more than threads' time.
    let before = used(&activities(&cell.snapshot(|all| used(all).iter().all(|ns| *ns > 5e8))?));
    std::thread::sleep(Duration::from_secs(3));
    let after = used(&activities(&cell.snapshot(|_| true)?));
    let [gold, silver] = [0, 1].map(|n| after[n] - before[n]);
    let share = gold / (gold + silver);
    if (share - 0.75).abs() > 0.02 {
        return Err(format!("gold had {share} of both: {gold} and {silver} ns").into());
    }
    Ok(())
}

/// Asks `atoll`.
fn ask(words: &[&str]) -> Result<String, Failed> {
    let out = Command::new(atoll()).args(words).output()?;
    let said = String::from_utf8(out.stdout)?;
    if out.status.success() {
        Ok(said)
    } else {
        Err(format!("{said}{}", String::from_utf8_lossy(&out.stderr)).into())
    }
}

/// A cell in which python3 runs a script for long.
struct Live {
    name: String,
    cell: std::cell::RefCell<Ends>,
}

impl Live {
    fn start(name: &str, options: &[&str], script: &str) -> Result<Live, Failed> {
        let name = format!("test{}-{name}", std::process::id());
        let mut command = nucleus("--net none --volume /usr:/usr:ro --name", &[]);
        command.arg(&name).args(options).args(["--", "/usr/bin/python3", "-c", script]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Live { name, cell: Ends(command.spawn()?).into() })
    }

    /// A snapshot of its books by cores in which activities are as they are wanted.
    fn snapshot(&self, wanted: impl Fn(&[Value]) -> bool) -> Result<Value, Failed> {
        let begun = Instant::now();
        loop {
            let said = ask(&["stat", &self.name, "--json", "--cores"]);
            let snapshot: Option<Value> = said.as_ref().ok().and_then(|said| serde_json::from_str(said).ok());
            if let Some(snapshot) =
                snapshot.filter(|s| s["activities"].as_array().is_some_and(|all| wanted(all)))
            {
                return Ok(snapshot);
            }
            let ended = self.cell.borrow_mut().0.try_wait()?.is_some();
            if begun.elapsed() > Duration::from_secs(100) || ended {
                return Err(format!("ended: {ended}; {said:?}").into());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// Killed when it is dropped.
struct Ends(std::process::Child);

impl Drop for Ends {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Lines of two numbers, the second below 1000, in no order.
fn lines(count: u64) -> String {
    let next = |x: &mut u64| {
        *x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *x >> 33
    };
    let mut seed = 1;
    (0..count).map(|_| format!("{} {}\n", next(&mut seed) % 1_000_000, next(&mut seed) % 1000)).collect()
}
