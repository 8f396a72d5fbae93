//! Two machines in the same QEMU: the nucleus with a cell, and Debian's cloud kernel with an initramfs that has
//! the same program and libraries and little else. Both have one processor, as much memory, a serial port and
//! a virtio network device: on the nucleus in microvm, by MMIO; on Linux in q35, by PCI, where it is at home
//! (in microvm its calibration of the clock hangs now and then, and it starts no sooner).

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use atoll_supervisor::pack::Packer;

use crate::build::{atoll, run, top};
use crate::servers::Side;
use crate::system::{find, is_root, need};

/// Programs that all of this needs, with their packages.
const NEEDS: [(&str, &str); 4] =
    [("qemu-system-x86_64", "qemu-system-x86"), ("gcc", "gcc"), ("apt-get", "apt"), ("dpkg-deb", "dpkg")];
/// QEMU's options for both. `-cpu max` has what the nucleus asks for.
const QEMU: &str = "-nodefaults -no-user-config -display none -no-reboot -cpu max";
/// Memory of a machine, MiB, and of one in which cells run on Linux.
const MEMORY: usize = 768;
const MEMORY_FOR_CELLS: usize = 4096;
/// QEMU's options for a machine whose clocks are the instructions that it executes: they go on by a nanosecond with each, as the processor's
/// time stamp counter does by one. Idle time takes none of ours.
const BY_INSTRUCTIONS: [&str; 4] = ["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off"];
/// How many of them its Linux takes for a microsecond: as servers execute on processors of 2026, whose requests so take as long as they do there,
/// and so find as many of the things that are done after a time. Its timers run out too soon by that clock, and are set anew once or more.
pub const INSTRUCTIONS_PER_US: f64 = 2000.0;
/// Tells it so, and has it trust that clock. What its processor doesn't have needs no protection. Its own lines are not to come between ours.
const CLOCKED_BY_INSTRUCTIONS: &str =
    " tsc_early_khz=2000000 tsc=reliable mitigations=off loglevel=4 groups=1";
/// Linux's modules for a virtio network device on PCI, each before those that need it.
const MODULES: [&str; 8] = [
    "drivers/virtio/virtio_ring.ko",
    "drivers/virtio/virtio_pci_modern_dev.ko",
    "drivers/virtio/virtio_pci_legacy_dev.ko",
    "drivers/virtio/virtio.ko",
    "drivers/virtio/virtio_pci.ko",
    "net/core/failover.ko",
    "drivers/net/net_failover.ko",
    "drivers/net/virtio_net.ko",
];
/// As much as a distribution says while it starts, but from the first line on.
const LINUX_OPTIONS: &str = "loglevel=6 earlyprintk=ttyS0 console=ttyS0 rdinit=/init";
/// The package whose dependency is the newest kernel.
const KERNEL: &str = "linux-image-cloud-amd64";
/// How long a machine may take for anything.
const PATIENCE: Duration = Duration::from_secs(120);

/// What is needed to make the machines.
pub struct Workshop {
    dir: PathBuf,
    kernel: PathBuf,
    /// The kernel's package and version.
    pub kernel_name: String,
    /// The plugin that counts instructions.
    plugin: PathBuf,
    /// The plugin that counts what a cache would miss.
    cache: PathBuf,
}

/// What a machine boots.
pub struct Image {
    side: Side,
    kernel: PathBuf,
    initrd: PathBuf,
    cores: usize,
    /// A Linux with cells, whose clocks count instructions.
    by_instructions: bool,
}

fn compile(options: &[&str], source: &str, to: &Path) -> Result<()> {
    let source = top().join(source);
    run(Command::new("gcc").args(["-O2", "-Wall"]).args(options).arg("-o").arg(to).arg(source))
}

fn text_of(command: &mut Command) -> Result<String> {
    let shown = format!("{command:?}").replace('"', "");
    let output = command.output().with_context(|| format!("starting {shown}"))?;
    if !output.status.success() {
        bail!("{shown} failed:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The newest kernel's package and version, as apt knows them.
fn newest_kernel() -> Result<(String, String)> {
    let depends = || text_of(Command::new("apt-cache").args(["depends", KERNEL]));
    let package = |text: String| {
        text.lines().find_map(|l| l.trim().strip_prefix("Depends: ").map(|p| p.trim().to_string()))
    };
    let mut found = depends().ok().and_then(package);
    if found.is_none() && is_root() {
        run(Command::new("apt-get").args(["update", "-qq"]))?;
        found = depends().ok().and_then(package);
    }
    let package = found.with_context(|| {
        format!("apt knows no package {KERNEL}: the comparison needs Debian's packages (apt-get update)")
    })?;
    let shown = text_of(Command::new("apt-cache").args(["show", "--no-all-versions", &package]))?;
    let version =
        shown.lines().find_map(|l| l.strip_prefix("Version: ")).context("apt-cache shows no version")?;
    Ok((package, version.to_string()))
}

impl Workshop {
    /// Gets Debian's newest cloud kernel (kept in `target/linux` for the next time) and compiles what runs beside
    /// it. `dir` is for what is only for this time.
    pub fn new(dir: &Path) -> Result<Workshop> {
        need(&NEEDS)?;
        let (package, version) = newest_kernel()?;
        let kept = top().join("target/linux").join(format!("{package}_{version}"));
        if !kept.is_dir() {
            let parent = kept.parent().expect("it was joined from two");
            fs::create_dir_all(parent)?;
            let fresh = tempfile::Builder::new().prefix("fetch-").tempdir_in(parent)?;
            text_of(Command::new("apt-get").args(["download", "-qq", &package]).current_dir(fresh.path()))?;
            let file = fs::read_dir(fresh.path())?.next().context("apt-get downloaded nothing")??.path();
            text_of(Command::new("dpkg-deb").arg("-x").arg(file).arg(fresh.path().join("x")))?;
            fs::rename(fresh.path().join("x"), &kept)?;
        }
        let release = package.trim_start_matches("linux-image-").to_string();
        let kernel = kept.join("boot").join(format!("vmlinuz-{release}"));
        if !kernel.is_file() {
            bail!("{package} {version} has no /boot/vmlinuz-{release}: is {} whole?", kept.display());
        }
        let root = dir.join("linux");
        fs::create_dir_all(root.join("bench"))?;
        let mut modules = String::new();
        for module in MODULES {
            let name = module.rsplit('/').next().unwrap_or(module);
            let from = kept.join("lib/modules").join(&release).join("kernel").join(module);
            // A later kernel may have it built in, or under another name: then the network says so.
            if from.is_file() {
                fs::copy(from, root.join("bench").join(name))?;
                modules += &format!("/bench/{name}\n");
            }
        }
        fs::write(root.join("bench/modules"), modules)?;
        compile(&["-static"], "bench/guest_init.c", &root.join("init"))?;
        let plugin = dir.join("count.so");
        compile(&["-shared", "-fPIC"], "bench/count.c", &plugin)?;
        let cache = dir.join("cache.so");
        compile(&["-shared", "-fPIC"], "bench/cache.c", &cache)?;
        Ok(Workshop { dir: dir.into(), kernel, kernel_name: format!("{package} {version}"), plugin, cache })
    }

    /// What a machine with so many cores boots to run this program of the host's (`words`, the first one found as a shell would).
    pub fn image(&self, side: Side, name: &str, words: &[&str], cores: usize) -> Result<Image> {
        let program = find(words[0]).with_context(|| format!("there is no program {}", words[0]))?;
        let dir = self.dir.join(format!("{name}-{side:?}"));
        fs::create_dir_all(&dir)?;
        if side == Side::Cell {
            let quoted: Vec<String> = words[1..].iter().map(|w| format!("'{w}'")).collect();
            let run = format!("{} {}", program.display(), quoted.join(" "));
            let text = format!(
                "cell bench\n cores {cores}\n memory 512M\n device net0\n device console\n run {run}\n"
            );
            fs::write(dir.join("machine.conf"), text)?;
            let mut build = Command::new(atoll());
            build.args(["image", "build"]).arg(dir.join("machine.conf")).arg("--output").arg(&dir);
            run_quietly(&mut build)?;
            let (kernel, initrd) = (dir.join("nucleus"), dir.join("module.tar"));
            return Ok(Image { side, kernel, initrd, cores, by_instructions: false });
        }
        let mut packer = Packer::new();
        packer.program(&program)?;
        let initrd = self.initramfs(&dir, packer, &program, &words[1..])?;
        Ok(Image { side, kernel: self.kernel.clone(), initrd, cores, by_instructions: false })
    }

    /// What a Linux with one processor boots to run one of these programs of the host's (the first, with these arguments), which may use the
    /// others, cells, and these files and directories. Its clocks count instructions ([`INSTRUCTIONS_PER_US`]).
    pub fn with_cells(
        &self,
        name: &str,
        programs: &[PathBuf],
        arguments: &[&str],
        files: &[PathBuf],
    ) -> Result<Image> {
        let dir = self.dir.join(name);
        fs::create_dir_all(&dir)?;
        let mut packer = Packer::new();
        for program in programs {
            packer.program(program)?;
        }
        for file in files {
            packer.include(file)?;
        }
        let initrd = self.initramfs(&dir, packer, &programs[0], arguments)?;
        Ok(Image { side: Side::Linux, kernel: self.kernel.clone(), initrd, cores: 1, by_instructions: true })
    }

    /// Writes what Linux boots: what was packed, and beside it what runs this program.
    fn initramfs(&self, dir: &Path, packer: Packer, program: &Path, arguments: &[&str]) -> Result<PathBuf> {
        let root = self.dir.join("linux");
        let lines: String = arguments.iter().map(|w| format!("{w}\n")).collect();
        fs::write(root.join("bench/run"), format!("{}\n{lines}", program.display()))?;
        // One archive behind the other, as Linux reads them.
        let (mut archive, mut beside) = (Vec::new(), Vec::new());
        packer.write(&mut archive)?;
        let mut packer = Packer::new();
        packer.rootfs(&root)?;
        packer.write(&mut beside)?;
        archive.extend_from_slice(&beside);
        let initrd = dir.join("initramfs");
        fs::write(&initrd, archive)?;
        Ok(initrd)
    }

    /// A machine with the nucleus that boots this module, on so many cores.
    pub fn nucleus(&self, module: &Path, cores: usize) -> Image {
        let kernel = top().join("target/release/atoll-nucleus");
        Image { side: Side::Cell, kernel, initrd: module.into(), cores, by_instructions: false }
    }

    /// A counter of instructions for one machine.
    pub fn counter(&self, name: &str) -> Counter {
        Counter { plugin: self.plugin.clone(), file: self.dir.join(format!("{name}.count")), in_turns: true }
    }

    /// For one machine a counter of what each processor misses in a cache that all share, of 1 MiB and 16 ways (`bench/cache.c`).
    pub fn cache(&self, name: &str) -> Counter {
        Counter { plugin: self.cache.clone(), file: self.dir.join(format!("{name}.count")), in_turns: false }
    }

    /// A directory for what is only for this time.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

fn run_quietly(command: &mut Command) -> Result<()> {
    text_of(command).map(|_| ())
}

/// A plugin, and the file that it writes.
pub struct Counter {
    plugin: PathBuf,
    file: PathBuf,
    /// What is counted of several cores is right only if they run in turns.
    in_turns: bool,
}

impl Counter {
    fn words(&self) -> Result<Vec<u64>> {
        let mut bytes = Vec::new();
        fs::File::open(&self.file)
            .and_then(|f| f.take(8 * Self::WORDS).read_to_end(&mut bytes))
            .with_context(|| format!("reading the plugin's {}", self.file.display()))?;
        Ok(bytes.chunks_exact(8).map(|b| u64::from_le_bytes(b.try_into().expect("8 bytes"))).collect())
    }

    const RING: usize = 16;
    const RING_LENGTH: usize = 64;
    const WORDS: u64 = 144;

    /// Instructions that were executed up to now.
    pub fn instructions(&self) -> Result<u64> {
        self.words()?.first().copied().context("the plugin has written nothing")
    }

    /// The last marks that were passed: number, instructions (or misses) before it.
    pub fn marks(&self) -> Result<Vec<(u64, u64)>> {
        let words = self.words()?;
        let passed = words[2] as usize;
        let mark = |n: usize| {
            let at = Self::RING + n % Self::RING_LENGTH * 2;
            (words[at], words[at + 1])
        };
        Ok((passed.saturating_sub(Self::RING_LENGTH)..passed).map(mark).collect())
    }
}

/// A machine that runs.
pub struct Guest {
    child: Child,
    /// When it was started.
    pub begun: Instant,
    /// Port of this host that leads to the program's.
    pub port: u16,
    lines: mpsc::Receiver<(Duration, String)>,
    /// What it has said, with the time since it was started.
    pub said: Vec<(Duration, String)>,
}

impl Guest {
    /// Boots it. `to`: the program's port, 0 if it has none.
    pub fn start(image: &Image, to: u16, counter: Option<&Counter>) -> Result<Guest> {
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let mut qemu = Command::new("qemu-system-x86_64");
        // On the nucleus a second processor could be there, so that fences are real (`atoll/src/machine.rs` says why).
        // If one could in Linux, it would not trust this processor's time stamp counter, and lose its quick clock.
        let maximum = image.cores.max(if image.side == Side::Cell { 2 } else { 1 });
        let smp = format!("{},maxcpus={maximum}", image.cores);
        qemu.args(QEMU.split(' ')).args(["-serial", "stdio", "-smp", &smp]);
        let memory = if image.by_instructions { MEMORY_FOR_CELLS } else { MEMORY };
        qemu.args(["-m", &memory.to_string()]);
        let turns = image.cores > 1 && counter.is_some_and(|c| c.in_turns);
        match image.by_instructions {
            true => qemu.args(BY_INSTRUCTIONS),
            false => qemu.args(["-accel", if turns { "tcg,thread=single" } else { "tcg,thread=multi" }]),
        };
        let mut net = "user,id=net0".to_string();
        if to != 0 {
            net += &format!(",hostfwd=tcp:127.0.0.1:{port}-:{to}");
        }
        qemu.args(["-netdev", &net, "-kernel"]).arg(&image.kernel).arg("-initrd").arg(&image.initrd);
        match image.side {
            Side::Linux => {
                qemu.args(["-M", "q35", "-device", "virtio-net-pci,netdev=net0,romfile="]);
                let clocked = if image.by_instructions { CLOCKED_BY_INSTRUCTIONS } else { "" };
                qemu.args(["-append", &format!("{LINUX_OPTIONS}{clocked}")]);
            }
            Side::Cell => {
                qemu.args(["-M", "microvm,acpi=off", "-device", "virtio-net-device,netdev=net0"]);
                qemu.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4", "-append", "exit=f4"]);
                // What the program writes has ports of its own.
                for n in [1, 2] {
                    qemu.args(["-chardev", &format!("file,id=out{n},path=/dev/stderr,append=on")]);
                    qemu.args(["-device", &format!("isa-serial,chardev=out{n},index={n}")]);
                }
            }
        }
        if let Some(c) = counter {
            // Left from an earlier machine, it would not begin at zero.
            let _ = fs::remove_file(&c.file);
            qemu.arg("-plugin").arg(format!("{},to={}", c.plugin.display(), c.file.display()));
        }
        let begun = Instant::now();
        let mut child = qemu
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("starting qemu-system-x86_64")?;
        let (send, lines) = mpsc::channel();
        let streams: [Option<Box<dyn Read + Send>>; 2] =
            [child.stdout.take().map(|s| Box::new(s) as _), child.stderr.take().map(|s| Box::new(s) as _)];
        for stream in streams.into_iter().flatten() {
            let send = send.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(stream).split(b'\n').map_while(|l| l.ok()) {
                    let line = String::from_utf8_lossy(&line).trim().to_string();
                    if send.send((begun.elapsed(), line)).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Guest { child, begun, port, lines, said: Vec::new() })
    }

    /// Waits until it says a line with this in it: when, since it was started.
    pub fn until(&mut self, what: &str) -> Result<Duration> {
        loop {
            let left = PATIENCE.checked_sub(self.begun.elapsed()).unwrap_or_default();
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    self.said.push(line);
                    if let Some((when, line)) = self.said.last()
                        && line.contains(what)
                    {
                        return Ok(*when);
                    }
                }
                Err(_) => bail!("the machine does not say {what:?}:\n{}", self.text()),
            }
        }
    }

    /// The next line that it says, if it does within that time; None: it has ended.
    pub fn next(&mut self, patience: Duration) -> Result<Option<&str>> {
        match self.lines.recv_timeout(patience) {
            Ok(line) => self.said.push(line),
            Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(None),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                bail!("the machine says nothing for {} s:\n{}", patience.as_secs(), self.text())
            }
        }
        Ok(self.said.last().map(|(_, line)| &**line))
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> Result<()> {
        loop {
            let left = PATIENCE.checked_sub(self.begun.elapsed()).unwrap_or_default();
            match self.lines.recv_timeout(left) {
                Ok(line) => self.said.push(line),
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => bail!("the machine does not end:\n{}", self.text()),
            }
        }
        // Its streams have ended, so it has.
        self.child.wait()?;
        Ok(())
    }

    /// All that it has said.
    pub fn text(&self) -> String {
        self.said.iter().map(|(_, line)| format!("{line}\n")).collect()
    }

    /// When it first said something with this in it, since it was started.
    pub fn first(&self, what: &str) -> Option<Duration> {
        self.said.iter().find(|(_, line)| line.contains(what)).map(|(when, _)| *when)
    }

    /// Asks the program on its port, again and again, until an answer begins to come: when, since it was started.
    pub fn answers(&self, hello: &[u8]) -> Result<Duration> {
        use std::io::Write as _;
        while self.begun.elapsed() < PATIENCE {
            let mut byte = [0];
            let asked = TcpStream::connect(("127.0.0.1", self.port)).and_then(|mut s| {
                s.set_read_timeout(Some(Duration::from_millis(500)))?;
                s.write_all(hello)?;
                s.read(&mut byte)
            });
            if matches!(asked, Ok(1)) {
                return Ok(self.begun.elapsed());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        bail!("nobody answers:\n{}", self.text())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Cores of the machines that are compared where it is about how something grows with them.
pub const CORES: [usize; 4] = [1, 2, 4, 8];

/// What a program did on a machine that counts its instructions.
pub struct Counted {
    /// Its marks (`bench/mark.h`) in order, each with what was counted before it.
    pub marks: Vec<(u64, u64)>,
    text: String,
}

impl Counted {
    /// Runs an image to its end.
    pub fn run(image: &Image, counter: &Counter) -> Result<Counted> {
        let mut guest = Guest::start(image, 0, Some(counter))?;
        guest.wait()?;
        Ok(Counted { marks: counter.marks()?, text: guest.text() })
    }

    /// What was counted between two marks, the first ones of their kind.
    pub fn between(&self, from: u64, to: u64) -> Result<f64> {
        let at = |wanted: u64| self.marks.iter().find(|(mark, _)| *mark == wanted).map(|(_, at)| *at as f64);
        let (Some(from), Some(to)) = (at(from), at(to)) else { bail!("no marks:\n{}", self.text) };
        Ok(to - from)
    }

    /// The number behind a word in what the program has said.
    pub fn said(&self, word: &str) -> Result<f64> {
        let number = |line: &str| line.split_once(word).and_then(|(_, n)| n.trim().parse().ok());
        let text = &self.text;
        text.lines().find_map(number).with_context(|| format!("the program has not said {word:?}:\n{text}"))
    }
}
