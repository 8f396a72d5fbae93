//! `atoll run --platform nucleus` and `atoll boot`: cells on a machine of their own, in QEMU, without Linux.
//!
//! What the machine boots is the nucleus with one module: a tar archive of the boot configuration, the runtime,
//! what is to run, and the root file system. A cell with a port is served from here like one on this host: its
//! standard streams and volumes are reached that way. The output of one with the console comes by serial ports of its
//! own. What the nucleus and the runtimes say comes by the first serial port, and with it how the programs ended.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;

use atoll_abi::control::BootConfig;
use atoll_abi::layout::PAGE;
use atoll_abi::nucleus::outside::WINDOW;
use atoll_partition::Restart;
use atoll_supervisor::inspect::Live;
use atoll_supervisor::registry::{Registered, register};
use atoll_supervisor::remote::{Given, Remote};
use atoll_supervisor::serve::{HostMount, Streams};
use atoll_supervisor::symbols::Symbols;
use atoll_supervisor::{Error, Result, say};

use crate::run;

/// Memory of the machine beside the cell's and its module: the nucleus's, and below 1 MiB, bytes.
const BESIDE: u64 = 16 << 20;
/// Connections to a published port that wait until QEMU has accepted them.
const BACKLOG: i32 = 4096;
/// QEMU's machines. The first has no PCI: without ACPI, it names its devices in the command line.
const MICROVM: &str = "microvm,acpi=off";
const Q35: &str = "q35";
/// The second with an IOMMU, which KVM gives devices' interrupts to only so.
const Q35_IOMMU: &str = "q35,kernel-irqchip=split";
/// Lines of the machine's in which names are looked up: two of each crash, and cells may start again.
const REPORTS: usize = 64;
/// The debugging device's port, and what QEMU's exit status is then.
const EXIT: &str = "iobase=0xf4,iosize=4";

/// A cell of a machine.
pub struct MachineCell {
    /// Its name: letters, digits, `-` and `_`.
    pub name: String,
    /// What runs, and how the world looks to it.
    pub boot: BootConfig,
    /// The root file system's archive; empty if it is on a disk.
    pub archive: Vec<u8>,
    /// The disk's image, a file of ext4.
    pub disk: Option<PathBuf>,
    /// Cores that it uses at first.
    pub cores: usize,
    /// Cores that are its own.
    pub max_cores: usize,
    /// Its memory, bytes.
    pub memory: u64,
    /// Its devices: `console`, `net0` and so on.
    pub devices: Vec<String>,
    /// Cells that its runtime may send lines to.
    pub peers: Vec<String>,
    /// What its books count.
    pub counter: Option<String>,
    /// When it starts again.
    pub restart: Restart,
}

// The hardware that QEMU has.
#[derive(clap::Args, Clone, Default)]
pub struct Hardware {
    /// On the nucleus: QEMU's machine
    #[arg(long, value_enum, value_name = "NAME", default_value = "microvm")]
    machine: MachineKind,
    /// On the nucleus, with --machine q35: an IOMMU, which keeps devices from all memory but their cell's
    #[arg(long)]
    iommu: bool,
}

/// A machine of QEMU's.
#[derive(clap::ValueEnum, Clone, Copy, Default, PartialEq, Eq)]
pub enum MachineKind {
    /// Small, with devices over MMIO
    #[default]
    Microvm,
    /// Like a PC, with devices on PCI Express
    Q35,
}

impl Hardware {
    /// Is it what it is without options?
    pub fn is_default(&self) -> bool {
        self.machine == MachineKind::default() && !self.iommu
    }

    /// QEMU's options for it.
    fn options(&self) -> Result<&'static [&'static str]> {
        match (self.machine, self.iommu) {
            (MachineKind::Microvm, false) => Ok(&["-M", MICROVM]),
            (MachineKind::Microvm, true) => {
                Err(Error::new("--iommu is for devices on PCI: add --machine q35"))
            }
            (MachineKind::Q35, false) => Ok(&["-M", Q35]),
            // Before all devices that it is for.
            (MachineKind::Q35, true) => Ok(&["-M", Q35_IOMMU, "-device", "intel-iommu,intremap=on"]),
        }
    }

    /// The option for a virtio device of this kind at this place.
    fn device(&self, kind: &str, place: usize) -> String {
        match self.machine {
            MachineKind::Microvm => {
                format!("virtio-{kind}-device,bus=virtio-mmio-bus.{place}")
            }
            // Of the newer kind only, and without code of its own for the firmware. It finds the devices in this order.
            MachineKind::Q35 => {
                let iommu = if self.iommu { "on" } else { "off" };
                format!(
                    "virtio-{kind}-pci,disable-legacy=on,{}addr={:#x},iommu_platform={iommu}",
                    if kind == "net" { "romfile=," } else { "" },
                    2 + place / DEVICES_A_PAGE * DEVICES_A_CELL + place % DEVICES_A_PAGE
                )
            }
        }
    }

    /// Has it a place like this?
    fn has(&self, place: usize) -> bool {
        match self.machine {
            // One page of registers.
            MachineKind::Microvm => place < DEVICES_A_PAGE,
            // The last address is the machine's own.
            MachineKind::Q35 => place / DEVICES_A_PAGE * DEVICES_A_CELL < 27,
        }
    }
}

/// A machine.
pub struct Machine {
    /// The nucleus's file.
    pub nucleus: PathBuf,
    /// The runtime's.
    pub runtime: PathBuf,
    /// Its cells.
    pub cells: Vec<MachineCell>,
    /// QEMU's accelerator.
    pub accel: String,
    /// Its hardware.
    pub hardware: Hardware,
    /// Ports of this host that lead to ports of the cell that has the first network device.
    pub publish: Vec<Published>,
    /// Directories of this host that the cell with the port has mounted, by their numbers.
    pub volumes: Vec<HostMount>,
    /// As what `atoll ls` is to show the cell with the port.
    pub name: Option<String>,
    /// Signals that come to this process are for that cell's program.
    pub passes_signals: bool,
    /// Show everything that the machine says.
    pub verbose: bool,
}

/// How a cell ended.
#[derive(Clone, Copy)]
pub struct CellEnd {
    /// The program's wait status.
    pub status: i32,
    /// System calls by rewritten sites, and by traps.
    pub calls: (u64, u64),
    /// How often it had started again.
    pub restarts: u32,
}

/// How a machine's cells ended, in their order; None: it said nothing.
pub type Ends = Vec<Option<CellEnd>>;

/// A port of this host that leads to one of the cell (`docker run --publish`).
#[derive(Clone)]
pub struct Published {
    /// "tcp" or "udp".
    pub protocol: &'static str,
    /// Address on this host.
    pub address: std::net::IpAddr,
    /// Port on this host.
    pub port: u16,
    /// Port of the cell.
    pub to: u16,
}

impl Published {
    /// Can it be had? QEMU says less of it.
    fn check(&self) -> Result<()> {
        let at = (self.address, self.port);
        let tried = match self.protocol {
            "udp" => std::net::UdpSocket::bind(at).map(drop),
            _ => std::net::TcpListener::bind(at).map(drop),
        };
        let shown = std::net::SocketAddr::from(at);
        tried.map_err(|e| Error::with(format!("--publish: {} port {shown}", self.protocol), e))
    }
}

impl std::str::FromStr for Published {
    type Err = String;

    /// `[ADDRESS:]PORT[:PORT][/PROTOCOL]`.
    fn from_str(s: &str) -> std::result::Result<Published, String> {
        let bad = || format!("'{s}' is not [ADDRESS:]PORT[:PORT][/tcp|/udp]; write for example 6379:6379");
        let (ports, protocol) = match s.rsplit_once('/') {
            Some((ports, "tcp")) => (ports, "tcp"),
            Some((ports, "udp")) => (ports, "udp"),
            Some(_) => return Err(bad()),
            None => (s, "tcp"),
        };
        let number = |p: &str| p.parse::<u16>().ok().filter(|p| *p != 0).ok_or_else(bad);
        let (rest, to) = ports.rsplit_once(':').unwrap_or((ports, ports));
        let (address, port) = rest.rsplit_once(':').unwrap_or(("127.0.0.1", rest));
        let address = address.trim_matches(['[', ']']).parse().map_err(|_| bad())?;
        Ok(Published { protocol, address, port: number(port)?, to: number(to)? })
    }
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

/// QEMU's microvm has room for registers of so many devices in a page, and two cells must not share one.
const DEVICES_A_PAGE: usize = 8;
/// A cell has at most so many here: network, port, a disk.
const DEVICES_A_CELL: usize = 3;

impl Machine {
    /// The boot module.
    pub fn module(&mut self) -> Result<Vec<u8>> {
        let mut module = Module::new();
        let mut configuration = String::new();
        let disks = self.disks();
        for (n, cell) in self.cells.iter().enumerate() {
            let mut devices: String = cell.devices.iter().map(|d| format!("  device {d}\n")).collect();
            devices += &match disks.iter().position(|(of, _)| *of == n) {
                Some(disk) => format!("  device disk{disk}\n"),
                None => format!("  image root{n}\n"),
            };
            let peers: String = cell.peers.iter().map(|p| format!("  peer {p}\n")).collect();
            let counter: String = cell.counter.iter().map(|c| format!("  counter {c}\n")).collect();
            configuration += &format!(
                "cell {}\n  cores {}\n  max-cores {}\n  memory {}K\n  runtime runtime\n  boot boot{n}\n{devices}{peers}{counter}  \
                 restart {}\n  run {}\n",
                cell.name,
                cell.cores,
                cell.max_cores,
                cell.memory >> 10,
                cell.restart,
                one_line(&cell.boot.args)
            );
        }
        module.add("boot.conf", configuration.as_bytes())?;
        let runtime = std::fs::read(&self.runtime)
            .map_err(|e| Error::with(format!("reading the runtime, {}", self.runtime.display()), e))?;
        module.add("runtime", &runtime)?;
        for (n, cell) in self.cells.iter_mut().enumerate() {
            let boot = postcard::to_stdvec(&cell.boot)
                .map_err(|e| Error::with("encoding the boot configuration", e))?;
            module.add(&format!("boot{n}"), &boot)?;
            if cell.disk.is_none() {
                module.add_pages(&format!("root{n}"), &mut cell.archive)?;
            }
        }
        module.finish()
    }

    /// The network devices that cells ask for, in order of their numbers.
    fn network(&self) -> Vec<&str> {
        let all = self.cells.iter().flat_map(|c| &c.devices);
        let mut found: Vec<&str> = all.filter(|d| d.starts_with("net")).map(String::as_str).collect();
        found.sort_unstable_by_key(|d| (d.len(), *d));
        found.dedup();
        found
    }

    /// The first place for a device in a page of registers where a cell's are or may be, behind this many of its own.
    fn place(&self, cell: usize, behind: usize) -> usize {
        let net = |c: &MachineCell| self.network().iter().position(|n| c.devices.iter().any(|d| d == n));
        // Pages of those that have no network device are behind those of all that have one.
        let others = self.cells[..cell].iter().filter(|c| net(c).is_none()).count();
        let page = net(&self.cells[cell]).unwrap_or(self.network().len() + others);
        page * DEVICES_A_PAGE + 1 + behind
    }

    /// Is there room at this place of a cell's?
    fn check_place(&self, cell: usize, place: usize) -> Result<()> {
        if self.hardware.has(place) {
            return Ok(());
        }
        Err(Error::new(format!(
            "cell {}: this machine has no room for its devices, for other cells have some: choose --machine q35, take \
             away `device` lines, or give this one a directory as its image",
            self.cells[cell].name
        )))
    }

    /// Which cells have a disk, and where it is among QEMU's devices, in order of the disks' numbers.
    fn disks(&self) -> Vec<(usize, usize)> {
        let with = (0..self.cells.len()).filter(|n| self.cells[*n].disk.is_some());
        let mut disks: Vec<(usize, usize)> = with.map(|n| (n, self.place(n, 1))).collect();
        disks.sort_unstable_by_key(|(_, place)| *place);
        disks
    }

    /// The cell that has a port.
    fn with_port(&self) -> Option<usize> {
        self.cells.iter().position(|c| c.devices.iter().any(|d| d == "port0"))
    }

    /// The port by which a cell is served, if one has it: this end, and QEMU's.
    fn port(&self, qemu: &mut Command) -> Result<Option<(UnixStream, OwnedFd)>> {
        let Some(cell) = self.with_port() else { return Ok(None) };
        let (here, there) = UnixStream::pair().map_err(failed("a socket for a cell's requests"))?;
        let there = OwnedFd::from(there);
        signals::keep_on_exec(&there);
        signals::make_room(&there, 4 * WINDOW);
        let bus = self.place(cell, 0);
        self.check_place(cell, bus)?;
        qemu.args(["-chardev", &format!("socket,id=port,fd={}", there.as_raw_fd())]);
        qemu.args(["-device", &format!("{},max_ports=1", self.hardware.device("serial", bus))]);
        qemu.args(["-device", "virtconsole,chardev=port"]);
        Ok(Some((here, there)))
    }

    /// Begins to serve the cell that has the port.
    fn serve(&mut self, port: UnixStream) -> Result<Option<Registered>> {
        let boot = self.with_port().map(|n| &self.cells[n].boot);
        let user = boot.map_or((0, 0), |boot| (boot.uid, boot.gid));
        let groups = boot.map_or(Vec::new(), |boot| boot.groups.clone());
        let given = Given {
            mounts: std::mem::take(&mut self.volumes),
            streams: Streams::of_this_process(),
            user,
            groups,
            plan_cache: run::plan_cache(run::signals::is_root()),
        };
        let remote = Remote::start(port, given)?;
        let live = self.with_port().map(|n| {
            let MachineCell { boot, max_cores, memory, .. } = &self.cells[n];
            let program = String::from_utf8_lossy(&boot.program).into_owned();
            Arc::new(Live::elsewhere(remote.clone(), *memory, *max_cores, program, boot.grid.clone()))
        });
        if self.passes_signals {
            run::signals::forward(move |signal| remote.signal(signal))?;
        }
        let (name, verbose) = (self.name.take(), self.verbose);
        Ok(live.map(|live| {
            register(live, name.clone(), move |done| run::tell_name(name.as_deref(), verbose, done))
        }))
    }

    /// Boots it, and waits for its end.
    pub fn run(mut self) -> Result<Ends> {
        let module = self.module()?;
        let symbols =
            Symbols::new(File::open(&self.runtime).map_err(failed("reading the runtime"))?, REPORTS);
        let mut file = tempfile::NamedTempFile::new().map_err(failed("a file for the boot module"))?;
        file.write_all(&module).map_err(failed("writing the boot module"))?;
        let memory: u64 = self.cells.iter().map(|c| c.memory).sum();
        let cores: usize = self.cells.iter().map(|c| c.max_cores).sum();
        let mib = (memory + module.len() as u64 + BESIDE).div_ceil(1 << 20);
        drop(module);
        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
        qemu.args(self.hardware.options()?);
        // Where there can be no second processor, QEMU's emulation leaves out fences and does locked instructions as
        // plain ones, though devices are on threads of their own (7.2: tcg_gen_mb and CF_PARALLEL): the look whether
        // a device sleeps then overtakes the store that it is to find, and now and then neither side hears of it.
        let smp = format!("{cores},maxcpus={}", cores.max(2));
        qemu.args(["-accel", &self.accel, "-cpu", "max", "-smp", &smp]);
        qemu.args(["-m", &mib.to_string(), "-device", &format!("isa-debug-exit,{EXIT}")]);
        for (n, _) in self.network().iter().enumerate() {
            let mut net = format!("user,id=net{n}");
            for p in self.publish.iter().filter(|_| n == 0) {
                p.check()?;
                // An address of the newer kind has colons of its own.
                let address =
                    if p.address.is_ipv6() { format!("[{}]", p.address) } else { p.address.to_string() };
                net += &format!(",hostfwd={}:{address}:{}-:{}", p.protocol, p.port, p.to);
            }
            let device = format!("{},netdev=net{n}", self.hardware.device("net", n * DEVICES_A_PAGE));
            qemu.args(["-netdev", &net, "-device", &device]);
        }
        for (n, (cell, bus)) in self.disks().into_iter().enumerate() {
            let Some(path) = &self.cells[cell].disk else { continue };
            self.check_place(cell, bus)?;
            // QEMU's options end at a comma, unless there are two.
            let path = path.display().to_string().replace(',', ",,");
            qemu.args(["-drive", &format!("file={path},format=raw,if=none,id=disk{n},readonly=on")]);
            qemu.args(["-device", &format!("{},drive=disk{n}", self.hardware.device("blk", bus))]);
        }
        let port = self.port(&mut qemu)?;
        let mut pipes = Vec::new();
        let console = self.cells.iter().any(|c| c.devices.iter().any(|d| d == "console"));
        let serial = if console { &["log", "out", "err"][..] } else { &["log"] };
        for (n, name) in serial.iter().enumerate() {
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
        signals::ends_with_us(&mut qemu, self.passes_signals);
        let mut child = qemu.spawn().map_err(|e| {
            Error::with("starting qemu-system-x86_64 (Debian's package qemu-system-x86 has it)", e)
        })?;
        let mut registered = None;
        if let Some((here, there)) = port {
            drop(there);
            registered = self.serve(here)?;
        }
        let mut reads = pipes.into_iter().map(|(read, _)| read);
        let (log, out, err) = (reads.next().map(BufReader::new), reads.next(), reads.next());
        let relays = [
            out.map(|out| relay(out, std::io::stdout())).transpose(),
            err.map(|err| relay(err, std::io::stderr())).transpose(),
        ];
        let relays = relays.into_iter().collect::<std::io::Result<Vec<_>>>();
        let relays = relays.map_err(failed("starting a thread for what the machine says"))?;
        let names: Vec<&str> = self.cells.iter().map(|c| c.name.as_str()).collect();
        let said = log.map(|mut log| {
            // Once the machine speaks, QEMU has opened its ports. Why nothing came, `listen` finds out.
            let spoke = log.fill_buf().is_ok_and(|line| !line.is_empty());
            if spoke && !self.publish.is_empty() {
                queue_connections(&child);
            }
            listen(log, &names, &symbols, self.verbose)
        });
        let said = said.unwrap_or_default();
        let status = child.wait().map_err(failed("waiting for QEMU"))?;
        drop(registered);
        for relay in relays.into_iter().flatten() {
            // It ends with the pipe.
            let _ = relay.join();
        }
        if said.ends.iter().all(Option::is_none) {
            for line in &said.last {
                say!("atoll: {line}");
            }
            return Err(Error::new(format!(
                "the machine ended without a word of its cells (QEMU: {status})"
            )));
        }
        Ok(said.ends)
    }
}

/// Lets connections to QEMU's published ports wait until it accepts them. Its user network (libslirp) listens with a
/// backlog of 1: of twenty clients that come at once while QEMU is busy, the host drops most, and they try again after
/// 1, 3, 7, 15 s. The backlog is a property of the socket, and whoever has the socket may change it. Where the host
/// does not let us look at our own child (`kernel.yama.ptrace_scope` of 2 and more), it stays as it is.
fn queue_connections(qemu: &Child) {
    use rustix::net::sockopt::socket_acceptconn;
    use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
    let Ok(pidfd) = pidfd_open(Pid::from_child(qemu), PidfdFlags::empty()) else { return };
    let names = std::fs::read_dir(format!("/proc/{}/fd", qemu.id())).into_iter().flatten().flatten();
    for fd in names.filter_map(|name| name.file_name().to_str()?.parse().ok()) {
        if let Ok(socket) = pidfd_getfd(&pidfd, fd, PidfdGetfdFlags::empty())
            && socket_acceptconn(&socket).unwrap_or(false)
        {
            // The host lowers it to its `net.core.somaxconn`.
            let _ = rustix::net::listen(&socket, BACKLOG);
        }
    }
}

/// Copies what comes by a pipe, to its end.
fn relay(
    mut from: std::io::PipeReader,
    mut to: impl Write + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().spawn(move || {
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
    /// The cells' ends.
    ends: Ends,
    /// What they said of their calls before.
    calls: Vec<(u64, u64)>,
    /// How often they have started again.
    restarts: Vec<u32>,
    /// The last lines.
    last: Vec<String>,
}

/// The wait status that the nucleus speaks of.
fn end(text: &str) -> Option<i32> {
    let number = |prefix: &str| text.strip_prefix(prefix)?.parse::<i32>().ok();
    number("ended with status ")
        .map(|code| (code & 0xff) << 8)
        .or_else(|| number("was ended by signal ").map(|signal| signal & 0x7f))
}

/// The numbers of "made N calls by rewritten sites and M by traps".
fn calls(line: &str) -> Option<(u64, u64)> {
    let numbers = line.strip_prefix("made ")?.strip_suffix(" by traps")?;
    let (fast, trapped) = numbers.split_once(" calls by rewritten sites and ")?;
    Some((fast.parse().ok()?, trapped.parse().ok()?))
}

/// Does a report of a cell's crash begin here?
fn is_crash(line: &str) -> bool {
    line.starts_with("nucleus: cell ") && line.contains(": exception ")
}

/// What the nucleus says of a cell whose books can't count what they should.
const NO_COUNTER: &str = ": this machine has no counter for ";

/// Reads the machine's own console, and passes on what the cells say there: of one cell, only what its runtime
/// says, for the program has ports of its own. What the nucleus says of a crash is passed on, too; to both, names
/// are added.
fn listen(log: BufReader<std::io::PipeReader>, names: &[&str], symbols: &Symbols, verbose: bool) -> Said {
    const LAST: usize = 20;
    let mut said = Said {
        ends: vec![None; names.len()],
        calls: vec![(0, 0); names.len()],
        restarts: vec![0; names.len()],
        last: Vec::new(),
    };
    let mut crash = false;
    for line in log.split(b'\n').map_while(|l| l.ok()) {
        let line = String::from_utf8_lossy(&line);
        let line: String = line.trim_end().chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        if let (Some(text), false) =
            (line.strip_prefix("nucleus: ").filter(|text| text.contains(NO_COUNTER)), verbose)
        {
            say!("atoll: {text}");
        }
        let of_nucleus = line.strip_prefix("nucleus: cell ").and_then(|l| l.split_once(' '));
        if let Some((name, text)) = of_nucleus
            && let Some(n) = names.iter().position(|n| *n == name)
        {
            if let Some(status) = end(text) {
                said.ends[n] = Some(CellEnd { status, calls: said.calls[n], restarts: said.restarts[n] });
            } else if let Some(calls) = calls(text) {
                said.calls[n] = calls;
            } else if text.starts_with("starts again") {
                said.restarts[n] += 1;
                if !verbose {
                    say!("atoll: {name} {text}");
                }
            }
        }
        // Its lines come together: registers follow the first one.
        crash = line.starts_with("nucleus:") && (crash || is_crash(&line));
        let of_cell = line.split_once(": ").filter(|(name, _)| names.contains(name));
        match of_cell {
            Some((_, text)) if names.len() == 1 => {
                say!("atoll: {text}");
                symbols.names(text).iter().for_each(|name| say!("atoll: {name}"));
            }
            Some((cell, text)) => {
                println!("{line}");
                symbols.names(text).iter().for_each(|name| println!("{cell}: {name}"));
            }
            None if verbose || crash => {
                say!("atoll: {line}");
                symbols.names(&line).iter().for_each(|name| say!("atoll: {name}"));
            }
            None => {}
        }
        crash &= !line.starts_with("nucleus: stack:");
        if said.last.len() == LAST {
            said.last.remove(0);
        }
        said.last.push(line);
    }
    said
}

mod signals {
    #![allow(unsafe_code, reason = "changes a flag of a descriptor, and one of a child")]
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    /// However this process ends, so does that one. `away`: a terminal's signals are for this one only.
    pub fn ends_with_us(command: &mut Command, away: bool) {
        let us = std::process::id();
        // SAFETY: calls that may be made between fork and exec.
        unsafe {
            command.pre_exec(move || {
                if away {
                    atoll_supervisor::launch::leave_foreground();
                }
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                // It may have ended before that.
                if libc::getppid() as u32 == us { Ok(()) } else { Err(std::io::ErrorKind::NotFound.into()) }
            })
        };
    }

    /// Has a socket hold so many bytes of its end's, those that describe them included. A host that does not allow as
    /// many has room for more than half of that by itself.
    pub fn make_room(socket: &OwnedFd, bytes: usize) {
        let (bytes, len) = (bytes as i32, size_of::<i32>() as u32);
        // SAFETY: a value of that length.
        unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_SNDBUF,
                (&raw const bytes).cast(),
                len,
            )
        };
    }

    /// Lets the next program have it.
    pub fn keep_on_exec(fd: &OwnedFd) {
        // SAFETY: no memory is involved.
        unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, 0) };
    }
}
