//! A core that stands still keeps no other one from its work: nothing in the runtime spins for another core (OV-04).
//!
//! One of a cell's cores is stopped wherever it is, thousands of times, and each time the other goes on: a thread that only
//! computes gets further there. If that core's runtime spun for something that the stopped one has, that thread would not run:
//! the runtime is not preempted.
#![allow(unsafe_code, reason = "looks at words that a program writes to a file")]

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use atoll_tests::tracee::Tracee;
use atoll_tests::{Cell, Failed, Trial, arguments, atoll, run, top};

/// How often a core is stopped.
const TIMES: u32 = 2000;
/// How long it may take until the other one is seen to go on: that long somebody else may have the processor.
const PATIENCE: Duration = Duration::from_secs(2);

fn main() {
    libtest_mimic::run(&arguments(), vec![Trial::test("others_go_on", others_go_on)]).exit();
}

/// Words that the program writes, and one that it reads (`tests/frozen/frozen.c`).
struct Words(*const AtomicU64);

impl Words {
    fn map(path: &Path) -> Result<Words, Failed> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        file.set_len(4096)?;
        // SAFETY: a new mapping of a file that has as many bytes.
        let p = unsafe {
            let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd,
                0,
            )
        };
        if p == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().into());
        }
        Ok(Words(p.cast()))
    }

    fn word(&self, n: usize) -> &AtomicU64 {
        // SAFETY: one of the mapping's 512, which stays as long as the process.
        unsafe { &*self.0.add(n) }
    }

    fn stop(&self) {
        self.word(0).store(1, Ordering::SeqCst);
    }

    /// How far the thread of a core is that asks the system for things.
    fn works(&self, core: usize) -> u64 {
        self.word(1 + core).load(Ordering::SeqCst)
    }

    /// How far the one is that computes.
    fn computes(&self, core: usize) -> u64 {
        self.word(3 + core).load(Ordering::SeqCst)
    }
}

fn others_go_on() -> Result<(), Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let program = dir.path().join("frozen");
    let mut compiler = Command::new("gcc");
    compiler.args(["-O1", "-Wall", "-pthread", "-o"]).arg(&program).arg(top().join("tests/frozen/frozen.c"));
    let compiled = run(compiler, Duration::from_secs(60))?;
    if compiled.status != 0 {
        return Err(format!("the program can't be compiled:\n{}", compiled.stderr).into());
    }
    let words = Words::map(&dir.path().join("words"))?;
    let mut command = Command::new(atoll());
    command.args(["run", "--unconfined", "--cores", "2", "--memory", "256M"]);
    command.arg("--volume").arg(format!("{}:/data", dir.path().display()));
    command.args(["--workdir", "/", "--", "/data/frozen", "/data/words"]);
    let mut cell = Cell(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?);
    let begun = Instant::now();
    while (0..2).any(|core| words.works(core) < 100 || words.computes(core) == 0) {
        if begun.elapsed() > Duration::from_secs(30) || cell.0.try_wait()?.is_some() {
            let mut text = String::new();
            cell.0.kill()?;
            cell.0.stderr.take().ok_or("no standard error")?.read_to_string(&mut text)?;
            return Err(format!("the program does not begin: {text}").into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let space = cell.space()?;
    let mut threads: Vec<i32> = std::fs::read_dir(format!("/proc/{space}/task"))?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    threads.sort_unstable();
    if threads.len() != 2 {
        return Err(format!("the space has {} threads, not 2", threads.len()).into());
    }
    let cores = [Tracee(threads[0]), Tracee(threads[1])];
    // Which thread has which core is found out: what computes on a frozen one does not get on.
    let mut random = 1u64;
    let (mut longest, mut waited) = (Duration::ZERO, 0);
    let mut frozen_is = [None; 2];
    for n in 0..TIMES {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let which = (n % 2) as usize;
        std::thread::sleep(Duration::from_micros((random >> 33) % 300));
        cores[which].freeze()?;
        let frozen = Instant::now();
        let before = [words.computes(0), words.computes(1)];
        let worked = [words.works(0), words.works(1)];
        let other = loop {
            let on = [0, 1].map(|core| words.computes(core) != before[core]);
            match on {
                [true, true] => return Err(format!("a stopped core goes on (freeze {n})").into()),
                [true, false] => break 0,
                [false, true] => break 1,
                _ if frozen.elapsed() > PATIENCE => {
                    words.stop();
                    return Err(format!("nobody goes on while a core is stopped (freeze {n})").into());
                }
                _ => std::hint::spin_loop(),
            }
        };
        if *frozen_is[which].get_or_insert(1 - other) != 1 - other {
            return Err(format!("the other core goes on instead of this one (freeze {n})").into());
        }
        longest = longest.max(frozen.elapsed());
        waited += u32::from(words.works(other) == worked[other]);
        cores[which].thaw()?;
    }
    let done = [0, 1].map(|core| (words.works(core), words.computes(core)));
    words.stop();
    let (mut rest, mut errors) = (String::new(), String::new());
    cell.0.stdout.take().ok_or("no standard output")?.read_to_string(&mut rest)?;
    cell.0.stderr.take().ok_or("no standard error")?.read_to_string(&mut errors)?;
    let status = cell.0.wait()?;
    let said =
        format!("{TIMES} freezes, {done:?}, the other went on after {longest:?} at most: {rest}{errors}");
    println!("{said}");
    // Nothing went wrong, and nothing was lost.
    if !status.success() || !rest.starts_with("bad 0 of ") || !rest.ends_with(", 0\n") {
        return Err(said.into());
    }
    println!("in {waited} of them what the other core's thread asked for was not done yet by then");
    Ok(())
}
