//! `atoll run --platform nucleus`: a cell on a machine of its own, in QEMU, without Linux.
//!
//! What the machine boots is the nucleus with one module: a tar archive of the boot configuration, the runtime,
//! what is to run, and the root file system. The program's output comes by serial ports of its own, what the
//! nucleus and the runtime say by the first one, and with it how the program ended.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;

use atoll_abi::control::BootConfig;
use atoll_abi::layout::PAGE;
use atoll_supervisor::{Error, Result};

/// Memory of the machine beside the cell's and its module: the nucleus's, and below 1 MiB, bytes.
const BESIDE: u64 = 16 << 20;
/// The debugging device's port, and what QEMU's exit status is then.
const EXIT: &str = "iobase=0xf4,iosize=4";

/// A machine with one cell.
pub struct Machine {
    /// The nucleus's file.
    pub nucleus: PathBuf,
    /// The runtime's.
    pub runtime: PathBuf,
    /// What runs, and how the world looks to it.
    pub boot: BootConfig,
    /// The root file system's archive.
    pub archive: Vec<u8>,
    /// Cores of the cell.
    pub cores: usize,
    /// Its memory, bytes.
    pub memory: u64,
    /// QEMU's accelerator.
    pub accel: String,
    /// Show everything that the machine says.
    pub verbose: bool,
}

/// How it ended.
pub struct Ended {
    /// The program's wait status.
    pub status: i32,
    /// System calls by rewritten sites, and by traps.
    pub calls: (u64, u64),
}

fn failed(what: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |e| Error::with(what, e)
}

/// Builds a boot module.
struct Module {
    tar: tar::Builder<Vec<u8>>,
    len: u64,
}

impl Module {
    fn new() -> Module {
        Module { tar: tar::Builder::new(Vec::new()), len: 0 }
    }

    fn add(&mut self, name: &str, content: &[u8]) -> Result<()> {
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        self.tar.append_data(&mut header, name, content).map_err(failed("building the boot module"))?;
        self.len += 512 + (content.len() as u64).next_multiple_of(512);
        Ok(())
    }

    /// In whole pages of the module, which nothing else shares: the cell sees them as they are.
    fn add_pages(&mut self, name: &str, content: &mut Vec<u8>) -> Result<()> {
        content.resize(content.len().next_multiple_of(PAGE as usize), 0);
        if !(self.len + 512).is_multiple_of(PAGE) {
            let filler = (self.len + 1024).next_multiple_of(PAGE) - (self.len + 1024);
            self.add("filler", &vec![0; filler as usize])?;
        }
        self.add(name, content)
    }

    fn finish(self) -> Result<Vec<u8>> {
        self.tar.into_inner().map_err(failed("building the boot module"))
    }
}

/// The words of a program as one line, for whoever reads the configuration.
fn one_line(args: &[Vec<u8>]) -> String {
    let line = args.iter().map(|a| String::from_utf8_lossy(a)).collect::<Vec<_>>().join(" ");
    line.chars().map(|c| if c.is_control() { '?' } else { c }).take(200).collect()
}

impl Machine {
    /// The boot module.
    pub fn module(&mut self) -> Result<Vec<u8>> {
        let boot =
            postcard::to_stdvec(&self.boot).map_err(|e| Error::with("encoding the boot configuration", e))?;
        let mut module = Module::new();
        let configuration = format!(
            "cell cell\n  cores {}\n  memory {}K\n  runtime runtime\n  boot boot\n  image root\n  device console\n  run {}\n",
            self.cores,
            self.memory >> 10,
            one_line(&self.boot.args)
        );
        module.add("boot.conf", configuration.as_bytes())?;
        let runtime = std::fs::read(&self.runtime)
            .map_err(|e| Error::with(format!("reading the runtime, {}", self.runtime.display()), e))?;
        module.add("runtime", &runtime)?;
        module.add("boot", &boot)?;
        module.add_pages("root", &mut self.archive)?;
        module.finish()
    }

    /// Boots it, and waits for its end.
    pub fn run(mut self) -> Result<Ended> {
        let module = self.module()?;
        let mut file = tempfile::NamedTempFile::new().map_err(failed("a file for the boot module"))?;
        file.write_all(&module).map_err(failed("writing the boot module"))?;
        let mib = (self.memory + module.len() as u64 + BESIDE).div_ceil(1 << 20);
        drop(module);
        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-M", "microvm"]);
        qemu.args(["-accel", &self.accel, "-cpu", "max", "-smp", &self.cores.to_string()]);
        qemu.args(["-m", &mib.to_string(), "-device", &format!("isa-debug-exit,{EXIT}")]);
        let mut pipes = Vec::new();
        for (n, name) in ["log", "out", "err"].iter().enumerate() {
            let (read, write) = std::io::pipe().map_err(failed("pipe"))?;
            let write = OwnedFd::from(write);
            signals::keep_on_exec(&write);
            qemu.args(["-add-fd", &format!("fd={},set={n}", write.as_raw_fd())]);
            qemu.args(["-chardev", &format!("file,id={name},path=/dev/fdset/{n},append=on")]);
            if n == 0 {
                qemu.args(["-serial", "chardev:log"]);
            } else {
                qemu.args(["-device", &format!("isa-serial,chardev={name},index={n}")]);
            }
            pipes.push((read, write));
        }
        qemu.arg("-kernel").arg(&self.nucleus).args(["-append", "exit=f4"]);
        qemu.arg("-initrd").arg(file.path()).stdin(Stdio::null());
        let mut child = qemu.spawn().map_err(|e| {
            Error::with("starting qemu-system-x86_64 (Debian's package qemu-system-x86 has it)", e)
        })?;
        let mut reads = pipes.into_iter().map(|(read, _)| read);
        let (log, out, err) = (reads.next(), reads.next(), reads.next());
        let relays =
            [out.map(|out| relay(out, std::io::stdout())), err.map(|err| relay(err, std::io::stderr()))];
        let said = log.map(|log| listen(log, self.verbose)).unwrap_or_default();
        let status = child.wait().map_err(failed("waiting for QEMU"))?;
        for relay in relays.into_iter().flatten() {
            // It ends with the pipe.
            let _ = relay.join();
        }
        let calls = said.calls;
        said.status.map(|status| Ended { status, calls }).ok_or_else(|| {
            for line in &said.last {
                eprintln!("atoll: {line}");
            }
            Error::new(format!("the machine ended without a word of the program (QEMU: {status})"))
        })
    }
}

/// Copies what comes by a pipe, to its end.
fn relay(mut from: std::io::PipeReader, mut to: impl Write + Send + 'static) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(n @ 1..) = from.read(&mut bytes) {
            // Nobody listens: as with a pipe, the program can't know.
            let _ = to.write_all(&bytes[..n]).and_then(|()| to.flush());
        }
    })
}

/// What the machine said.
#[derive(Default)]
struct Said {
    /// The program's wait status.
    status: Option<i32>,
    /// System calls by rewritten sites, and by traps.
    calls: (u64, u64),
    /// The last lines.
    last: Vec<String>,
}

/// The numbers of "made N calls by rewritten sites and M by traps".
fn calls(line: &str) -> Option<(u64, u64)> {
    let numbers = line.strip_prefix("made ")?.strip_suffix(" by traps")?;
    let (fast, trapped) = numbers.split_once(" calls by rewritten sites and ")?;
    Some((fast.parse().ok()?, trapped.parse().ok()?))
}

/// Reads the machine's own console, and passes on what the runtime says.
fn listen(log: std::io::PipeReader, verbose: bool) -> Said {
    const LAST: usize = 20;
    let mut said = Said::default();
    for line in BufReader::new(log).split(b'\n').map_while(|l| l.ok()) {
        let line = String::from_utf8_lossy(&line);
        let line: String = line.trim_end().chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        let of_cell = line.strip_prefix("cell: ");
        if let Some(end) = line.strip_prefix("nucleus: cell cell ") {
            let number = |prefix: &str| end.strip_prefix(prefix)?.parse::<i32>().ok();
            if let Some(code) = number("ended with status ") {
                said.status = Some((code & 0xff) << 8);
            } else if let Some(signal) = number("was ended by signal ") {
                said.status = Some(signal & 0x7f);
            } else if let Some(calls) = calls(end) {
                said.calls = calls;
            }
        }
        match of_cell {
            Some(text) => eprintln!("atoll: {text}"),
            None if verbose => eprintln!("atoll: {line}"),
            None => {}
        }
        if said.last.len() == LAST {
            said.last.remove(0);
        }
        said.last.push(line);
    }
    said
}

mod signals {
    #![allow(unsafe_code, reason = "changes a flag of a descriptor")]
    use std::os::fd::{AsRawFd, OwnedFd};

    /// Lets the next program have it.
    pub fn keep_on_exec(fd: &OwnedFd) {
        // SAFETY: no memory is involved.
        unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, 0) };
    }
}
