//! Cores come and go in a running cell, and nothing is lost (RF-03).
#![allow(unsafe_code, reason = "asks who it is, and where it may run")]

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use atoll_supervisor::inspect::{About, Answer, Request};
use atoll_tests::{Cell, Failed, Outcome, Redis, Trial, arguments, ask_cell, atoll, one_by_one, run, top};

fn main() {
    let trials = vec![
        Trial::test("switched", || switched(&[], 10_000)),
        Trial::test("switched_on_the_nucleus", || switched(&["--platform", "nucleus"], 500)),
        Trial::test("seen_at_once", || seen_at_once(&[])),
        Trial::test("seen_at_once_on_the_nucleus", || {
            seen_at_once(&["--platform", "nucleus", "--volume", "/usr:/usr:ro"])
        }),
        Trial::test("under_load", || under_load(&[], 120_000, 20)),
        Trial::test("under_load_on_the_nucleus", || under_load(&["--platform", "nucleus"], 30_000, 5)),
        Trial::test("refused", refused),
        Trial::test("grows_by_itself", grows_by_itself),
        Trial::test("many_cores_begin", many_cores_begin),
    ];
    libtest_mimic::run(&arguments(), trials).exit_if_failed();
    // By itself: it is to see no others but its own.
    let trials = vec![Trial::test("goes_where_no_others_are", goes_where_no_others_are)];
    libtest_mimic::run(&one_by_one(), trials).exit();
}

type Done = Result<(), Failed>;

/// A name that no other cell has: cases run side by side.
fn unique(name: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{name}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A program switches a core off and on while all that its threads wait for goes on (`tests/resize/resize.c`).
fn switched(options: &[&str], changes: u32) -> Done {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let program = dir.path().join("resize");
    let mut compiler = Command::new("gcc");
    compiler.args(["-O1", "-pthread", "-o"]).arg(&program).arg(top().join("tests/resize/resize.c"));
    let compiled = run(compiler, Duration::from_secs(60))?;
    if compiled.status != 0 {
        return Err(format!("the program can't be compiled:\n{}", compiled.stderr).into());
    }
    let mut command = Command::new(atoll());
    command.arg("run").args(options).args(["--cores", "2", "--memory", "256M"]);
    command.arg("--volume").arg(format!("{}:/data", dir.path().display()));
    command.args(["--workdir", "/", "--", "/data/resize"]).arg(changes.to_string());
    let Outcome { status, stdout, stderr, hung } = run(command, Duration::from_secs(120))?;
    println!("{stdout}{stderr}");
    if status != 0 || !stdout.starts_with(&format!("bad 0 of {changes} changes")) {
        return Err(format!("status {status}, hung: {hung}: {stdout}{stderr}").into());
    }
    Ok(())
}

/// `atoll resize`: what it says on standard error, if it fails.
fn resize(cell: &str, cores: u32) -> Result<Result<(), String>, Failed> {
    let begun = Instant::now();
    loop {
        let said = try_to_resize(cell, cores)?;
        // A cell can be asked when it has lived for 0.1 s.
        let unknown = said.as_ref().is_err_and(|why| why.contains("there is no cell"));
        if !unknown || begun.elapsed() > Duration::from_secs(10) {
            return Ok(said);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn try_to_resize(cell: &str, cores: u32) -> Result<Result<(), String>, Failed> {
    let out = Command::new(atoll()).args(["resize", cell, "--cores", &cores.to_string()]).output()?;
    let said = String::from_utf8(out.stderr)?;
    Ok(if out.status.success() { Ok(()) } else { Err(said) })
}

/// Says for each line that it reads how many processors there are, and where it may run.
const COUNTER: &str = "
import os, sys
def listed(path):
    parts = [p.split('-') for p in open('/sys/devices/system/cpu/' + path).read().strip().split(',')]
    return sum(int(p[-1]) - int(p[0]) + 1 for p in parts if p[0])
for line in sys.stdin:
    cpuinfo = open('/proc/cpuinfo').read().count('processor\\t')
    stat = sum(row.startswith('cpu') for row in open('/proc/stat')) - 1
    word = line.strip()
    error = 'none'
    if word:
        try: os.sched_setaffinity(0, {int(word)})
        except OSError as e: error = e.errno
    where = sorted(os.sched_getaffinity(0))
    print(os.cpu_count(), cpuinfo, stat, listed('online'), listed('offline'), where, error, flush=True)
";

/// Has as many processes compute as the line says, if it says something, and says how many processors there are.
const WORKER: &str = "
import os, signal, sys
busy = []
for line in sys.stdin:
    wanted = int(line.strip() or len(busy))
    while len(busy) < wanted:
        pid = os.fork()
        while pid == 0: pass
        busy.append(pid)
    while len(busy) > wanted:
        os.kill(busy[-1], signal.SIGKILL)
        os.waitpid(busy.pop(), 0)
    print(os.cpu_count(), flush=True)
";

/// Says on which core most of 300 short sleeps have ended.
const SLEEPER: &str = "
import ctypes, sys, time
libc = ctypes.CDLL(None)
for line in sys.stdin:
    ended = [0, 0]
    for _ in range(300):
        time.sleep(0.001)
        ended[libc.sched_getcpu()] += 1
    print(ended.index(max(ended)), flush=True)
";

/// A cell with a program that answers lines.
struct Asked {
    _cell: Cell,
    name: String,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Asked {
    fn start(name: &str, options: &[&str], program: &str) -> Result<Asked, Failed> {
        Self::start_by(Command::new(atoll()), name, options, program)
    }

    /// The same, by a command to which options of `atoll` are added.
    fn start_by(mut command: Command, name: &str, options: &[&str], program: &str) -> Result<Asked, Failed> {
        let name = unique(name);
        command.args(["run", "--name", &name, "--memory", "256M"]).args(options);
        command.args(["--", "/usr/bin/python3", "-c", program]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut cell = Cell(command.spawn()?);
        let (to, from) = (cell.0.stdin.take(), cell.0.stdout.take());
        let (to, from) = to.zip(from).ok_or("no pipes")?;
        Ok(Asked { _cell: cell, name, to, from: BufReader::new(from) })
    }

    fn say(&mut self, say: &str) -> Result<String, Failed> {
        writeln!(self.to, "{say}")?;
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        Ok(line.trim_end().into())
    }

    fn expect(&mut self, say: &str, want: &str) -> Done {
        let line = self.say(say)?;
        if line == want { Ok(()) } else { Err(format!("{line:?} and not {want:?}").into()) }
    }

    /// Says this, and waits until it sees so many processors.
    fn sees(&mut self, say: &str, cores: &str) -> Done {
        let begun = Instant::now();
        let mut said = self.say(say)?;
        while said != cores {
            if begun.elapsed() > Duration::from_secs(60) {
                return Err(format!("after {say:?}: {said} and not {cores}").into());
            }
            std::thread::sleep(Duration::from_millis(100));
            said = self.say("")?;
        }
        Ok(())
    }
}

/// The program sees the number at once, by every way there is. A thread that chose a core that goes runs elsewhere until that
/// is back.
fn seen_at_once(options: &[&str]) -> Done {
    let mut asked =
        Asked::start("seen", &[&["--cores", "1", "--max-cores", "3"], options].concat(), COUNTER)?;
    asked.expect("", "1 1 1 1 2 [0] none")?;
    asked.expect("1", "1 1 1 1 2 [0] 22")?;
    for _ in 0..20 {
        resize(&asked.name, 3)??;
        asked.expect("", "3 3 3 3 0 [0, 1, 2] none")?;
        resize(&asked.name, 2)??;
        asked.expect("", "2 2 2 2 1 [0, 1] none")?;
    }
    asked.expect("1", "2 2 2 2 1 [1] none")?;
    resize(&asked.name, 1)??;
    asked.expect("", "1 1 1 1 2 [0] none")?;
    resize(&asked.name, 3)??;
    asked.expect("", "3 3 3 3 0 [1] none")
}

/// A cell takes a core when threads wait for one, and gives it back when it has no work for it (XOS-09); not for one thread that computes.
/// What is said by `atoll resize` it has in any case.
fn grows_by_itself() -> Done {
    let options = ["--cores", "1", "--max-cores", "3", "--elastic", "--host-reserve", "0"];
    let mut asked = Asked::start("elastic", &options, WORKER)?;
    asked.expect("1", "1")?;
    std::thread::sleep(Duration::from_secs(3));
    asked.expect("1", "1")?;
    asked.sees("2", "2")?;
    std::thread::sleep(Duration::from_secs(3));
    asked.expect("3", "2")?;
    asked.sees("3", "3")?;
    asked.sees("0", "1")?;
    // The program sees that a core is going before its supervisor has it.
    let begun = Instant::now();
    loop {
        let Answer::Cell(About { elastic: Some(elastic), .. }) = ask_cell(&asked.name, &Request::Cell)?
        else {
            return Err("it does not say that it is elastic".into());
        };
        let cores = elastic.cores;
        if cores.base == 1 && cores.taken >= 2 && cores.taken == cores.given_back && elastic.taken == 0 {
            break;
        }
        if begun.elapsed() > Duration::from_secs(5) {
            return Err(format!("{elastic:?}").into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    resize(&asked.name, 2)??;
    std::thread::sleep(Duration::from_secs(7));
    asked.expect("", "2")
}

/// A program that computes on one processor of the host.
struct Hog(Child);

impl Hog {
    fn start(cpu: usize) -> Result<Hog, Failed> {
        let mut command = Command::new("taskset");
        command.args(["-c", &cpu.to_string(), "nice", "-n", "19", "sh", "-c", "while :; do :; done"]);
        Ok(Hog(command.spawn()?))
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Threads of a cell leave a core whose processor others use (XOS-09), whichever that is.
fn goes_where_no_others_are() -> Done {
    // SAFETY: reads this process's credentials, and where it may run, into a plain structure.
    let (root, may) = unsafe {
        let mut may: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&may), &raw mut may);
        (libc::geteuid() == 0, may)
    };
    // SAFETY: within the set.
    let may_use = |cpu: &usize| unsafe { libc::CPU_ISSET(*cpu, &may) };
    let cpus: Vec<usize> = (0..libc::CPU_SETSIZE as usize).filter(may_use).take(2).collect();
    if !root {
        println!("not as root: cores are not pinned");
        return Ok(());
    }
    if cpus.len() < 2 {
        return Err("it takes two processors: without them cores are not pinned".into());
    }
    let mut command = Command::new("taskset");
    command.args(["-c", &cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",")]).arg(atoll());
    let mut asked = Asked::start_by(command, "crowded", &["--cores", "2"], SLEEPER)?;
    let mut left = [false; 2];
    for cpu in cpus {
        let _hog = Hog::start(cpu)?;
        let begun = Instant::now();
        let crowded = loop {
            asked.say("")?;
            let mut command = Command::new(atoll());
            command.args(["ps", &asked.name, "--cores", "--json"]);
            let said: serde_json::Value =
                serde_json::from_str(&run(command, Duration::from_secs(20))?.stdout)?;
            let others = [0, 1].map(|n| said["cores"][n]["others"].as_u64().unwrap_or(0));
            match others.iter().position(|part| *part >= 600) {
                // What was said of the other one may be from before.
                Some(n) if others[1 - n] + 300 <= others[n] && !left[n] => break n,
                _ if begun.elapsed() > Duration::from_secs(180) => {
                    return Err(format!("one core is crowded, and not {others:?}; left: {left:?}").into());
                }
                _ => {}
            }
        };
        asked.sees("", &(1 - crowded).to_string())?;
        left[crowded] = true;
    }
    Ok(())
}

/// An unmodified server under load, with threads of its own, while its cell gets a core and loses it, again and again; at least
/// `least` times while it counts so far, as often as that takes.
fn under_load(options: &[&str], count: u32, least: u32) -> Done {
    let name = unique("loaded");
    let options = [&["--name", &name, "--cores", "2", "--memory", "512M"], options].concat();
    let redis = Redis::start(&options, &["--io-threads", "2"])?;
    let mut changes = 0;
    let begun = Instant::now();
    while changes < least {
        if begun.elapsed() > Duration::from_secs(120) {
            return Err(format!("{changes} changes").into());
        }
        redis.load(count, || {
            resize(&name, 1 + changes % 2)??;
            changes += 1;
            Ok(())
        })?;
    }
    println!("{changes} changes");
    Ok(())
}

/// Cells of more cores than this machine may have begin and end: threads of a space wait for each other at its start.
fn many_cores_begin() -> Done {
    for n in 0..30 {
        let mut command = Command::new(atoll());
        command.args(["run", "--memory", "128M", "--cores", &(3 + n % 6).to_string(), "--", "/bin/true"]);
        let out = run(command, Duration::from_secs(20))?;
        if out.status != 0 {
            return Err(format!("cell {n}: {out:?}").into());
        }
    }
    Ok(())
}

/// What can't be is refused, and said why; the cell goes on as before.
fn refused() -> Done {
    let mut asked = Asked::start("refused", &["--cores", "1", "--max-cores", "2"], COUNTER)?;
    asked.expect("", "1 1 1 1 1 [0] none")?;
    for cores in [0, 3, u32::MAX] {
        let said = resize(&asked.name, cores)?.err().ok_or("was done")?;
        if !said.contains("1 to 2 cores") || !said.contains("--max-cores") {
            return Err(said.into());
        }
    }
    asked.expect("", "1 1 1 1 1 [0] none")?;
    for (options, why) in [
        (&["--cores", "2", "--max-cores", "1"][..], "2 to 256"),
        (&["--cores", "2", "--max-cores", "257"], "2 to 256"),
        (&["--platform", "nucleus", "--max-cores", "65"], "1 to 64"),
    ] {
        let mut command = Command::new(atoll());
        command.arg("run").args(options).args(["--", "/bin/true"]);
        let out = run(command, Duration::from_secs(20))?;
        if out.status == 0 || !out.stderr.contains(why) {
            return Err(format!("{options:?}: {out:?}").into());
        }
    }
    // Only root switches cores, and not the first one, nor one that is not granted.
    let file = |n: u32| PathBuf::from(format!("/sys/devices/system/cpu/cpu{n}/online"));
    let write =
        |n: u32, word: &str| format!("os.write(os.open('{}', os.O_WRONLY), b'{word}')", file(n).display());
    let script = format!(
        "
import os
def fails(f):
    try: f()
    except OSError as e: return e.errno
    return 0
def one(): {}
def other(): {}
def word(): {}
print(fails(one), fails(other), fails(word), os.path.exists('{}'))
os.setuid(1000)
print(fails(one))",
        write(1, "0"),
        write(2, "1"),
        write(1, "perhaps"),
        file(0).display()
    );
    let mut command = Command::new(atoll());
    command.args(["run", "--cores", "2", "--max-cores", "3", "--", "/usr/bin/python3", "-c", &script]);
    let out = run(command, Duration::from_secs(20))?;
    if out.stdout != "0 19 22 False\n13\n" {
        return Err(format!("{out:?}").into());
    }
    Ok(())
}
