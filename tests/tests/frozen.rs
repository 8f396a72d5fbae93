//! A core that stands still keeps no other one from its work: nothing in the runtime spins for another core (OV-04).
//!
//! One of a cell's cores is stopped wherever it is, thousands of times, and each time the other goes on: a thread that only
//! computes gets further there. If that core's runtime spun for something that the stopped one has, that thread would not run:
//! the runtime is not preempted. On the nucleus, in QEMU, it is a virtual processor that its debugger's interface stops.
#![allow(unsafe_code, reason = "looks at words that a program writes to a file")]

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use atoll_tests::tracee::Tracee;
use atoll_tests::{Cell, Failed, Trial, atoll, one_by_one, run, top};

/// How often a core is stopped.
const TIMES: u32 = 2000;
/// How long it may take until the other one is seen to go on: that long somebody else may have the processor.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of the virtual machine's memory.
const MACHINE: u64 = 512 << 20;

fn main() {
    let trials = vec![
        Trial::test("others_go_on", others_go_on),
        Trial::test("others_go_on_nucleus", others_go_on_nucleus),
    ];
    // An emulated machine beside takes the processors for up to a second at a time.
    libtest_mimic::run(&one_by_one(), trials).exit();
}

/// Words that the program writes, and one that it reads (`tests/frozen/frozen.c`).
struct Words(*const AtomicU64);

/// What the program writes behind them.
const MARK: [u64; 3] = [0x6672_6f7a_656e_0000, 0x6672_6f7a_656e_0001, 0x6672_6f7a_656e_0002];

impl Words {
    /// A file that has as many bytes, mapped for good.
    fn map(path: &Path, len: u64) -> Result<Words, Failed> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        file.set_len(len)?;
        // SAFETY: a new mapping of a file that has as many bytes.
        let p = unsafe {
            let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
            libc::mmap(
                std::ptr::null_mut(),
                len as usize,
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

    /// Where they are in a machine's memory, if the program has begun.
    fn find(machine: &Words) -> Option<Words> {
        let pages = (0..MACHINE as usize / 8).step_by(512);
        let found =
            |page: &usize| (0..3).all(|n| machine.word(page + 5 + n).load(Ordering::SeqCst) == MARK[n]);
        // SAFETY: inside the mapping.
        pages.into_iter().find(found).map(|page| Words(unsafe { machine.0.add(page) }))
    }

    fn word(&self, n: usize) -> &AtomicU64 {
        // SAFETY: one of the mapping's, which stays as long as the process.
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

/// Stops one of two cores, and lets it go on.
trait Cores {
    fn freeze(&mut self, which: usize) -> Result<(), Failed>;
    fn thaw(&mut self, which: usize) -> Result<(), Failed>;
}

impl Cores for [Tracee; 2] {
    fn freeze(&mut self, which: usize) -> Result<(), Failed> {
        self[which].freeze()
    }

    fn thaw(&mut self, which: usize) -> Result<(), Failed> {
        self[which].thaw()
    }
}

/// The program, made in this directory.
fn program(dir: &Path) -> Result<PathBuf, Failed> {
    let program = dir.join("frozen");
    let mut compiler = Command::new("gcc");
    compiler.args(["-O1", "-Wall", "-pthread", "-o"]).arg(&program).arg(top().join("tests/frozen/frozen.c"));
    let compiled = run(compiler, Duration::from_secs(60))?;
    if compiled.status != 0 {
        return Err(format!("the program can't be compiled:\n{}", compiled.stderr).into());
    }
    Ok(program)
}

/// Waits until both cores' threads work, by what `words` finds of them.
fn begin(child: &mut Child, words: impl Fn() -> Option<Words>) -> Result<Words, Failed> {
    let begun = Instant::now();
    let works = |words: &Words| (0..2).all(|core| words.works(core) >= 100 && words.computes(core) > 0);
    loop {
        if let Some(words) = words().filter(works) {
            return Ok(words);
        }
        if begun.elapsed() > Duration::from_secs(60) || child.try_wait()?.is_some() {
            child.kill()?;
            let [said, errors] = rest(child)?;
            return Err(format!("the program does not begin: {said}{errors}").into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What somebody has written until the end.
fn rest(child: &mut Child) -> Result<[String; 2], Failed> {
    let mut said = [String::new(), String::new()];
    child.stdout.take().ok_or("no standard output")?.read_to_string(&mut said[0])?;
    child.stderr.take().ok_or("no standard error")?.read_to_string(&mut said[1])?;
    Ok(said)
}

/// Stops one of them `times` times, and sees the other go on. Value: what is to be said of it.
fn freeze(words: &Words, cores: &mut impl Cores, times: u32, patience: Duration) -> Result<String, Failed> {
    // Which one has which core is found out: what computes on a frozen one does not get on.
    let mut random = 1u64;
    let (mut longest, mut waited) = (Duration::ZERO, 0);
    let mut frozen_is = [None; 2];
    for n in 0..times {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let which = (n % 2) as usize;
        std::thread::sleep(Duration::from_micros((random >> 33) % 300));
        cores.freeze(which)?;
        let frozen = Instant::now();
        let before = [words.computes(0), words.computes(1)];
        let worked = [words.works(0), words.works(1)];
        let other = loop {
            let on = [0, 1].map(|core| words.computes(core) != before[core]);
            match on {
                [true, true] => return Err(format!("a stopped core goes on (freeze {n})").into()),
                [true, false] => break 0,
                [false, true] => break 1,
                _ if frozen.elapsed() > patience => {
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
        cores.thaw(which)?;
    }
    let done = [0, 1].map(|core| (words.works(core), words.computes(core)));
    words.stop();
    Ok(format!(
        "{times} freezes, {done:?}, the other went on after {longest:?} at most; in {waited} of them what its thread asked for \
         was not done yet by then"
    ))
}

fn others_go_on() -> Result<(), Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    program(dir.path())?;
    let file = dir.path().join("words");
    let mut command = Command::new(atoll());
    command.args(["run", "--unconfined", "--cores", "2", "--memory", "256M"]);
    command.arg("--volume").arg(format!("{}:/data", dir.path().display()));
    command.args(["--workdir", "/", "--", "/data/frozen", "/data/words"]);
    let mut cell = Cell(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?);
    let words = begin(&mut cell.0, || Words::map(&file, 4096).ok())?;
    let space = cell.space()?;
    let mut threads: Vec<i32> = std::fs::read_dir(format!("/proc/{space}/task"))?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    threads.sort_unstable();
    let [a, b] = threads[..] else {
        return Err(format!("the space has {} threads, not 2", threads.len()).into());
    };
    let said = freeze(&words, &mut [Tracee(a), Tracee(b)], TIMES, PATIENCE)?;
    let [out, errors] = rest(&mut cell.0)?;
    println!("{said}: {out}{errors}");
    // Nothing went wrong, and nothing was lost.
    let well = cell.0.wait()?.success() && out.starts_with("bad 0 of ") && out.ends_with(", 0\n");
    if well { Ok(()) } else { Err(format!("{said}: {out}{errors}").into()) }
}

/// QEMU's interface for debuggers (GDB's remote serial protocol): stops the machine, and has one processor of it go on.
struct Debugger(UnixStream);

impl Debugger {
    fn connect(path: &Path) -> Result<Debugger, Failed> {
        let begun = Instant::now();
        let stream = loop {
            match UnixStream::connect(path) {
                Ok(stream) => break stream,
                Err(e) if begun.elapsed() > Duration::from_secs(20) => return Err(e.into()),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        let mut debugger = Debugger(stream);
        // The machine stands still since somebody is here, and says so; what it is asked for is answered after that.
        debugger.send("vCont?")?;
        while !debugger.answer()?.starts_with("vCont") {}
        Ok(debugger)
    }

    fn send(&mut self, packet: &str) -> Result<(), Failed> {
        let sum = packet.bytes().fold(0u8, u8::wrapping_add);
        Ok(write!(self.0, "${packet}#{sum:02x}")?)
    }

    /// The next packet, which it is told has come.
    fn answer(&mut self) -> Result<String, Failed> {
        let mut text = String::new();
        let mut byte = [0];
        while !text.ends_with('#') {
            self.0.read_exact(&mut byte)?;
            if byte[0] == b'$' {
                text.clear();
            } else {
                text.push(byte[0] as char);
            }
        }
        self.0.read_exact(&mut [0; 2])?;
        self.0.write_all(b"+")?;
        text.pop();
        Ok(text)
    }

    /// Has these processors go on.
    fn run(&mut self, which: &str) -> Result<(), Failed> {
        self.send(&format!("vCont;c{which}"))
    }

    /// Stops all that run.
    fn stop(&mut self) -> Result<(), Failed> {
        self.0.write_all(&[3])?;
        match self.answer()? {
            stopped if stopped.starts_with('T') => Ok(()),
            other => Err(format!("the debugger was told {other:?}").into()),
        }
    }
}

impl Cores for Debugger {
    fn freeze(&mut self, which: usize) -> Result<(), Failed> {
        self.stop()?;
        // They are counted from 1 on.
        self.run(&format!(":{}", 2 - which))
    }

    fn thaw(&mut self, _which: usize) -> Result<(), Failed> {
        self.stop()?;
        self.run("")
    }
}

/// The same on the nucleus, where who changes mappings waits until a core that stands still has forgotten what was there, and
/// others run meanwhile.
fn others_go_on_nucleus() -> Result<(), Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let program = program(dir.path())?;
    let configuration = format!(
        "cell frozen\n cores 2\n memory 256M\n device console\n run {} /tmp/words\n",
        program.display()
    );
    std::fs::write(dir.path().join("machine.conf"), configuration)?;
    let mut build = Command::new(atoll());
    build.args(["image", "build", "machine.conf", "--output", "machine"]).current_dir(dir.path());
    let built = run(build, Duration::from_secs(60))?;
    if built.status != 0 {
        return Err(format!("no image: {}", built.stderr).into());
    }
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.current_dir(dir.path());
    qemu.args(["-accel", "tcg,thread=multi", "-nodefaults", "-no-user-config", "-no-reboot"]);
    qemu.args(["-display", "none", "-serial", "stdio", "-device", "isa-debug-exit,iobase=0xf4,iosize=4"]);
    let size = MACHINE >> 20;
    qemu.arg("-object").arg(format!("memory-backend-file,id=memory,size={size}M,mem-path=memory,share=on"));
    qemu.args(["-M", "microvm,acpi=off,memory-backend=memory", "-cpu", "max", "-smp", "2"]);
    qemu.args(["-m", &format!("{size}M"), "-gdb", "unix:gdb,server=on,wait=off"]);
    qemu.args(["-kernel", "machine/nucleus", "-initrd", "machine/module.tar", "-append", "exit=f4"]);
    let memory = Words::map(&dir.path().join("memory"), MACHINE)?;
    let mut machine = Cell(qemu.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?);
    let words = begin(&mut machine.0, || Words::find(&memory))?;
    let mut debugger = Debugger::connect(&dir.path().join("gdb"))?;
    debugger.run("")?;
    // Emulated, and stopped as a whole each time.
    let said = freeze(&words, &mut debugger, TIMES / 2, PATIENCE * 5)?;
    let [out, errors] = rest(&mut machine.0)?;
    println!("{said}: {out}{errors}");
    machine.0.wait()?;
    let well = out.lines().any(|l| l.contains("bad 0 of ") && l.ends_with(", 0"));
    if well { Ok(()) } else { Err(format!("{said}: {out}{errors}").into()) }
}
