//! `atoll run`.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use atoll_abi::control::{self, BootConfig, MountConfig, MountKind, StreamKind, Temporary};
use atoll_abi::core_local::CoreLocal;
use atoll_abi::grid::{GridConfig, Quota};
use atoll_abi::layout::{BLOCK, DIRECT_MAP, MAX_CORES, RUNTIME_END, Sizes, table_blocks};
use atoll_partition::Restart;
use atoll_supervisor::launch::{Cell, CellConfig, launch};
use atoll_supervisor::pack::Packer;
use atoll_supervisor::placement::Placement;
use atoll_supervisor::registry::{NAME_MAX, is_name, register};
use atoll_supervisor::serve::{HostMount, Streams};
use atoll_supervisor::sockets::Policy;
use atoll_supervisor::{Error, Result, counter, say};
use clap::{ArgGroup, Args, ValueEnum};

use crate::cgroup;
use crate::grid;
use crate::machine::{CellEnd, Hardware, Machine, MachineCell, Published};
use crate::memory_policy;

/// Exit status when the cell could not be started, as of `docker run`.
pub(crate) const NOT_STARTED: u8 = 125;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Network {
    /// Sockets are the host's
    Host,
    /// A loopback of the cell's own, and nothing beyond
    None,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Paging {
    /// In pieces that grow with what a program has already
    Usual,
    /// When it is touched, in pieces of 64 KiB
    Demand,
    /// When it is touched, in blocks of 2 MiB where there is room for one
    Huge,
    /// When it is mapped, if there is twice as much
    Populate,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Platform {
    /// A Linux process, here
    Host,
    /// A machine without Linux: the nucleus, in QEMU
    Nucleus,
}

#[derive(Args)]
#[command(group = ArgGroup::new("maxima").args(["max_memory", "max_cores"]).multiple(true), after_help = "Examples:
  atoll run -- /bin/ls -l /
  atoll run --cores 2 --memory 1G -- redis-server --save ''
  atoll run --memory 256M --max-memory 8G --elastic -- node server.js
  atoll run --cores 1 --max-cores 4 --elastic -- make -j4
  atoll run --volume $PWD:/data --workdir /data -- python3 job.py
  atoll run --counter cache-misses --name web -- nginx -g 'daemon off;'
  atoll run --tmpfs /run -- nginx -g 'daemon off;'
  atoll run --rootfs ./alpine --net none --user 1000:1000 -- /bin/sh -c 'id'
  atoll run --platform nucleus -- /bin/ls -l /
  atoll run --platform nucleus --publish 6379:6379 -- redis-server --protected-mode no
  atoll run --platform nucleus --include /usr/lib/python3.11 -- python3 -c 'print(1)'
  seq 9 | atoll run --platform nucleus -- sort -rn
  mkfs.ext4 -d ./alpine alpine.img 1G
  atoll run --platform nucleus --rootfs alpine.img -- /bin/ls

A memory policy (docs/memory.md):
  [[program]]
  path = \"/usr/bin/redis-*\"        # as the cell sees it, with * and ?; the first that fits counts
  paging = \"huge\"                    # usual, demand, huge, populate, as of --paging
  mapping = [                        # of what the program maps, the first that fits
    { kind = \"heap\", paging = \"demand\" },                           # anonymous, heap, stack, file
    { kind = \"anonymous\", least = \"64MiB\", paging = \"populate\" },   # and most
    { kind = \"file\", path = \"*.bin\", paging = \"populate\" },
  ]")]
pub struct Options {
    /// Cores of the cell [default: as many as this process may use, by its affinity and its control group]
    #[arg(long, value_name = "N")]
    cores: Option<usize>,
    /// The most cores that the cell can have later, by `atoll resize` [default: as many as at first]
    #[arg(long, value_name = "N")]
    max_cores: Option<usize>,
    /// The most threads that the cell's programs may have together: who makes one more gets EAGAIN [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pids_limit: Option<u32>,
    /// Memory of the cell, with K, M or G [default: half of the machine's, or of what this process's control group has]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// The most memory that the cell can have later, by `atoll resize` or by itself [default: as much as at first]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    max_memory: Option<u64>,
    /// Take more memory when programs need it and caches have none to give, up to --max-memory, and give it back when it is
    /// not used or the host needs it; take more cores when threads wait for one and the host has one idle, up to --max-cores,
    /// and give them back when fewer can do the work
    #[arg(long, requires = "maxima")]
    elastic: bool,
    /// With --elastic: how much of the host's memory is left alone when the cell takes more, with K, M or G. Who leaves less than others
    /// can still grow when they can't any more: critical cells say 0, and take cores that aren't idle, too [default: a sixteenth of the machine's]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "elastic")]
    host_reserve: Option<u64>,
    /// Leave small private memory in place when a program unmaps it, zeroed, for what it maps next: mmap and munmap cost some
    /// hundred nanoseconds then, but who uses unmapped memory gets no fault
    #[arg(long)]
    lazy_unmap: bool,
    /// Leave programs' code as it is: their system calls trap and cost some microseconds each, instead of being rewritten to jumps.
    /// For tools that translate the code of others, as valgrind does, or check it
    #[arg(long)]
    keep_code: bool,
    /// How private memory is brought in, where a program doesn't say otherwise by madvise or prctl
    #[arg(long, value_enum, default_value_t = Paging::Usual)]
    paging: Paging,
    /// The same for programs by their paths, and for their mappings: a TOML file (docs/memory.md)
    #[arg(long, value_name = "FILE")]
    memory_policy: Option<PathBuf>,
    /// Directory that becomes the cell's root, writable; without it, the host's own root, read-only. On the nucleus
    /// also the image of a disk with ext4, which is only read: changes are in memory, and gone at the end
    #[arg(long, value_name = "DIR|IMAGE")]
    rootfs: Option<PathBuf>,
    /// Directory or file of the host in the cell; may be given more than once
    #[arg(short, long, value_name = "SRC:DST[:ro]")]
    volume: Vec<String>,
    /// Empty directory in the cell's memory, which goes with the cell; may be given more than once. /tmp, /var/tmp and /dev/shm are such
    /// ones anyway. Options: size=SIZE (the most that is in it, with K, M or G [default: half of the memory]), mode=OCTAL
    /// [default: 1777], uid=UID, gid=GID, ro
    #[arg(long, value_name = "DST[:OPTION,...]", value_parser = parse_tmpfs)]
    tmpfs: Vec<MountConfig>,
    /// Environment variable: NAME=VALUE, or NAME to pass it on; without any, all are passed on
    #[arg(short, long, value_name = "NAME[=VALUE]")]
    env: Vec<OsString>,
    /// Working directory in the cell [default: this one if it exists there, else /]
    #[arg(short, long, value_name = "DIR")]
    workdir: Option<PathBuf>,
    /// User to run as: UID[:GID] or a name of /etc/passwd
    #[arg(short, long, value_name = "USER")]
    user: Option<String>,
    /// Network of the cell
    #[arg(long, value_enum, default_value = "host")]
    net: Network,
    /// What the cell stands on
    #[arg(long, value_enum, default_value = "host")]
    platform: Platform,
    /// On the nucleus: file or directory of this host that goes into the root beside the program and its
    /// libraries; may be given more than once
    #[arg(long, value_name = "PATH")]
    include: Vec<PathBuf>,
    /// On the nucleus: what QEMU runs the machine with (kvm where the host can)
    #[arg(long, value_name = "NAME", default_value = "tcg,thread=multi")]
    accel: String,
    #[command(flatten)]
    hardware: Hardware,
    /// On the nucleus: port of this host that leads to one of the cell, of 127.0.0.1 unless an address is given (0.0.0.0: all); may be given
    /// more than once
    #[arg(short, long, value_name = "[ADDRESS:]PORT[:PORT][/udp]")]
    publish: Vec<Published>,
    /// How the cell divides itself among activities: a TOML file (docs/grid.md)
    #[arg(long, value_name = "FILE")]
    grid: Option<PathBuf>,
    /// Count an event in the cell's books, beside time: how often it happens at each resource for each activity, as `atoll stat` shows it.
    /// Of the processor's: cache-misses, cache-references, cycles, instructions, branches, branch-misses, and the load-misses of
    /// L1-dcache, LLC, dTLB and iTLB; of the kernel's: page-faults, minor-faults, major-faults, task-clock
    /// (perf-list(1)). Each look at the counter takes some hundred nanoseconds
    #[arg(long, value_name = "EVENT")]
    counter: Option<String>,
    /// Name of the cell, also its host name. Without it, `atoll ls` has one made of the program's name and the process id
    #[arg(long, value_parser = parse_name)]
    name: Option<String>,
    /// Write a report on the run, as one JSON object, to standard error when it ends
    #[arg(long)]
    json: bool,
    /// Append that report, as one line, to a file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Say more
    #[arg(long)]
    verbose: bool,
    /// Don't confine the cell (to debug Atoll itself)
    #[arg(long, hide = true)]
    unconfined: bool,
    /// Program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// A name of a cell.
fn parse_name(s: &str) -> std::result::Result<String, String> {
    if is_name(s) {
        return Ok(s.into());
    }
    Err(format!("a name has 1 to {NAME_MAX} letters, digits, and . _ - + @ :, and doesn't begin with a dot"))
}

pub(crate) fn parse_size(s: &str) -> std::result::Result<u64, String> {
    let bad = || format!("'{s}' is not a size; write for example 512M or 2G");
    let digits = s.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match s[digits.len()..].to_ascii_uppercase().trim_end_matches("IB").trim_end_matches('B') {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        "T" => 1 << 40,
        _ => return Err(bad()),
    };
    let n: u64 = digits.parse().map_err(|_| bad())?;
    n.checked_mul(unit).ok_or_else(bad)
}

/// What a `--tmpfs` says.
fn parse_tmpfs(s: &str) -> std::result::Result<MountConfig, String> {
    let (target, options) = s.split_once(':').unwrap_or((s, ""));
    if !target.starts_with('/') || target.trim_end_matches('/').is_empty() {
        return Err("write DST or DST:OPTION,..., for example /run or /run:size=64M,mode=755".into());
    }
    let (mut read_only, mut t) = (false, Temporary::default());
    for option in options.split(',').filter(|option| !option.is_empty()) {
        let number = |v: &str| v.parse().map_err(|_| format!("'{option}': not a number"));
        match option.split_once('=').unwrap_or((option, "")) {
            // As tmpfs(5) has it, 0 is no limit of its own.
            ("size", v) => t.size = Some(parse_size(v)?).filter(|size| *size > 0),
            ("mode", v) => {
                let mode = u32::from_str_radix(v, 8).ok().filter(|mode| *mode <= 0o7777);
                t.mode = mode.ok_or_else(|| format!("'{option}': not a mode; write for example mode=755"))?;
            }
            ("uid", v) => t.uid = number(v)?,
            ("gid", v) => t.gid = number(v)?,
            ("ro", "") => read_only = true,
            ("rw", "") => read_only = false,
            _ => return Err(format!("'{option}': not one of size=, mode=, uid=, gid=, ro and rw")),
        }
    }
    let (target, source) = (target.trim_end_matches('/').into(), "tmpfs".into());
    Ok(MountConfig { target, kind: MountKind::Tmpfs(t), id: 0, read_only, source })
}

/// Runs it; the exit status is the program's.
pub fn run(options: Options) -> ExitCode {
    let start = Instant::now();
    let (json, reports) = (options.json, options.report.clone());
    let name = options.program[0].clone();
    // Opened now: a file that can't be written is known before the program runs, and
    // the modes of new files are still for the caller's mask.
    let file = reports.map(|path| {
        let opened = File::options().append(true).create(true).open(&path);
        opened.map_err(|e| Error::with(format!("opening {} for the report", path.display()), e))
    });
    let ran = file.transpose().and_then(|file| match options.platform {
        Platform::Host => Ok((on_host(options, start)?, file)),
        Platform::Nucleus => Ok((on_nucleus(options, start)?, file)),
    });
    match ran {
        Ok((ended, file)) => {
            if json || file.is_some() {
                let line = report(&name, &ended);
                if json {
                    say!("{line}");
                }
                // In one piece: cells that end at the same time may share the file.
                if let Some(mut file) = file
                    && let Err(e) = file.write_all(format!("{line}\n").as_bytes())
                {
                    say!("atoll: writing the report: {e}");
                }
            }
            finish(ended.status)
        }
        Err(e) => refuse(&e),
    }
}

/// Says why nothing was started.
pub(crate) fn refuse(why: &Error) -> ExitCode {
    say!("atoll: {why}");
    ExitCode::from(NOT_STARTED)
}

/// A wait status as an exit status.
pub(crate) fn status_of(status: i32) -> ExitCode {
    if libc::WIFEXITED(status) {
        return ExitCode::from(libc::WEXITSTATUS(status) as u8);
    }
    ExitCode::from(128 + libc::WTERMSIG(status) as u8)
}

/// How a cell ended.
struct Ended {
    /// The program's wait status.
    status: i32,
    seconds: f64,
    /// System calls by rewritten sites, and by traps.
    calls: (u64, u64),
    /// What a report says besides.
    more: Vec<(&'static str, u64)>,
}

fn on_host(options: Options, start: Instant) -> Result<Ended> {
    let (name, verbose, memory) = (options.name.clone(), options.verbose, options.memory);
    let mut cell = launch(prepare(options)?)?;
    announce(&cell, verbose);
    let sender = cell.sender();
    signals::forward(move |signal| sender.signal(signal))?;
    let live = cell.live();
    live.grow();
    let mut registered = None;
    let status = cell.wait(|| {
        live.look_at_neighbours();
        registered = Some(register(live, name.clone(), move |done| {
            tell_name(name.as_deref(), verbose, done);
            warn_of_limit(memory);
        }));
    });
    drop(registered);
    let c = cell.control();
    let cores = c.descriptor.cores.load(Ordering::Relaxed) as usize;
    let sum = |f: fn(&CoreLocal) -> &AtomicU64| -> u64 {
        c.cores.iter().take(cores).map(|a| f(&a.local).load(Ordering::Relaxed)).sum()
    };
    Ok(Ended {
        status,
        seconds: start.elapsed().as_secs_f64(),
        calls: (sum(|l| &l.fast_calls), sum(|l| &l.trapped_calls)),
        more: vec![
            ("service_requests", cell.server.served.load(Ordering::Relaxed)),
            ("memory_bytes", cell.memory_used()),
        ],
    })
}

/// Says that the cell may be killed before it has as much memory as was asked for.
fn warn_of_limit(asked: Option<u64>) {
    if let Some(asked) = asked
        && let Some(limit) = cgroup::memory_limit().filter(|limit| *limit < asked)
    {
        say!(
            "atoll: --memory: the control group of this process has {}M: the kernel kills the cell if it takes more",
            limit >> 20
        );
    }
}

/// Says as what `atoll ls` shows the cell, if that is not what was asked for.
pub(crate) fn tell_name(asked: Option<&str>, verbose: bool, done: std::result::Result<&str, &Error>) {
    match (done, asked) {
        (Ok(name), Some(asked)) if name != asked => {
            say!("atoll: a cell {asked:?} runs already: `atoll ls` shows this one as {name}");
        }
        (Err(why), asked) if verbose || asked.is_some() => {
            say!("atoll: `atoll ls` will not show this cell: {why}");
        }
        _ => {}
    }
}

fn on_nucleus(options: Options, start: Instant) -> Result<Ended> {
    let ended = nucleus(options)?.run()?[0];
    let CellEnd { status, calls, .. } =
        ended.ok_or_else(|| Error::new("the machine ended without a word of its cell"))?;
    Ok(Ended { status, seconds: start.elapsed().as_secs_f64(), calls, more: Vec::new() })
}

/// What the cell goes without, in one line.
fn announce(cell: &Cell, verbose: bool) {
    let mut without = Vec::new();
    // Who is root has asked for more cores than there are processors.
    if cell.without.processors && (verbose || !signals::is_root()) {
        without.push("processors of its own (cores are not pinned)");
    }
    if cell.without.huge_pages {
        without.push("huge pages");
    }
    if cell.without.namespaces {
        without.push("namespaces of its own");
    }
    if cell.without.loopback {
        without.push("a loopback network of its own");
    }
    if !without.is_empty() {
        say!("atoll: this host or user does not allow {}: the cell runs without", without.join(" and "));
    }
}

/// Ends as the program did: with its status, or by its signal.
fn finish(status: i32) -> ExitCode {
    let signal = libc::WTERMSIG(status);
    // The cell says what ended it; a signal that only stops this process is none that ends a program.
    if !libc::WIFEXITED(status)
        && !matches!(signal, libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU)
    {
        signals::die_by(signal);
    }
    status_of(status)
}

/// How a program ended that had this wait status and made so many calls by rewritten sites and by traps.
pub(crate) fn end(status: i32, (fast, trapped): (u64, u64)) -> serde_json::Value {
    let (code, signal) =
        if libc::WIFEXITED(status) { (libc::WEXITSTATUS(status), 0) } else { (-1, libc::WTERMSIG(status)) };
    serde_json::json!({
        "exit_status": code,
        "signal": signal,
        "system_calls": fast.saturating_add(trapped),
        "system_calls_rewritten": fast,
        "system_calls_trapped": trapped,
    })
}

fn report(name: &OsStr, ended: &Ended) -> String {
    let mut report = end(ended.status, ended.calls);
    report["program"] = name.to_string_lossy().into();
    report["seconds"] = ended.seconds.into();
    for (name, value) in &ended.more {
        report[*name] = (*value).into();
    }
    report.to_string()
}

/// Memory of a cell on the nucleus, unless it is said: a machine of its own need not have half of this one's.
const NUCLEUS_MEMORY: u64 = 1 << 30;

/// What is to run on a machine of its own.
fn nucleus(o: Options) -> Result<Machine> {
    // Standard streams and volumes come by it.
    let mut devices = vec!["port0".to_string()];
    let (publish, accel, verbose) = (o.publish.clone(), o.accel.clone(), o.verbose);
    let hardware = o.hardware.clone();
    if o.net == Network::Host {
        devices.push("net0".into());
    } else if !publish.is_empty() {
        return Err(Error::new("--publish needs a network: leave --net none out"));
    }
    let name = o.name.clone();
    let (cell, volumes) = machine_cell(o, "cell", devices, false)?;
    Ok(Machine {
        name,
        nucleus: beside("atoll-nucleus", "ATOLL_NUCLEUS", "the nucleus")?,
        runtime: beside("atoll-runtime", "ATOLL_RUNTIME", "the runtime")?,
        cells: vec![cell],
        accel,
        hardware,
        publish,
        volumes,
        passes_signals: true,
        verbose,
    })
}

/// Is standard input closed, or /dev/null? A cell has one of its own.
fn no_input() -> bool {
    use std::os::fd::AsFd;
    use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
    const NULL: u64 = 1 << 8 | 3;
    let copy = std::io::stdin().as_fd().try_clone_to_owned();
    let meta = copy.and_then(|fd| File::from(fd).metadata());
    meta.is_ok_and(|m| m.file_type().is_char_device() && m.rdev() == NULL)
        || Streams::of_this_process().kinds[0] == StreamKind::Closed
}

/// One cell of a machine, and its volumes.
pub(crate) fn machine_cell(
    o: Options,
    name: &str,
    devices: Vec<String>,
    must_run: bool,
) -> Result<(MachineCell, Vec<HostMount>)> {
    if o.elastic {
        return Err(Error::new(
            "--elastic is for cells on this host: on the nucleus they have what they are given yet",
        ));
    }
    if o.max_memory.is_some() {
        return Err(Error::new(
            "--max-memory is for cells on this host: on the nucleus they keep their memory yet",
        ));
    }
    let cores = first_cores(o.cores.unwrap_or(1), NUCLEUS_CORES)?;
    let max_cores = most_cores(&o, cores, NUCLEUS_CORES)?;
    let memory = o.memory.unwrap_or(NUCLEUS_MEMORY).next_multiple_of(BLOCK);
    if memory < LEAST_MEMORY {
        return Err(Error::new(TOO_LITTLE));
    }
    let disk = o.rootfs.as_ref().filter(|path| !path.is_dir()).cloned();
    let mut mounts = Vec::new();
    let (kind, source) =
        if disk.is_some() { (MountKind::Disk, "disk") } else { (MountKind::Archive, "archive") };
    add_mount(&mut mounts, "/", kind, source, false);
    own_mounts(&mut mounts);
    let (archive, temporary) = match &disk {
        Some(image) => {
            check_image(image, &o)?;
            (Vec::new(), TEMPORARY.into())
        }
        None => archive(&o, must_run)?,
    };
    // The root can be written anyway: what it has beneath /tmp is to be seen there.
    mounts.retain(|m| !temporary.contains(&&m.target[..]));
    let mut shown = Vec::new();
    volumes(&o, &mut mounts, &mut shown)?;
    let mut streams = Streams::NONE;
    if devices.iter().any(|d| d == "port0") {
        streams = Streams::of_this_process();
        if no_input() {
            streams.kinds[0] = StreamKind::Null;
        }
    }
    // Even without a network beyond the machine there is the cell's own loopback.
    // Whether the machine has a counter for it, the nucleus sees.
    let counter = o.counter.as_deref().map(counter::event).transpose()?.map(|event| event.name.to_string());
    let boot = boot_config(o, mounts, streams, true, max_cores)?;
    let (peers, restart) = (Vec::new(), Restart::default());
    let name = name.into();
    let cell =
        MachineCell { name, boot, archive, disk, cores, max_cores, memory, devices, peers, counter, restart };
    Ok((cell, shown))
}

/// How many cores a cell begins with, if it is to be so many and no cell has more than `most`.
fn first_cores(cores: usize, most: usize) -> Result<usize> {
    match cores {
        _ if (1..=most).contains(&cores) => Ok(cores),
        _ => Err(Error::new(format!("--cores {cores}: a cell can have 1 to {most}"))),
    }
}

/// How many cores a cell can have that begins with `online` ones, where no cell has more than `most`.
fn most_cores(o: &Options, online: usize, most: usize) -> Result<usize> {
    match o.max_cores.unwrap_or(online) {
        cores if (online..=most).contains(&cores) => Ok(cores),
        cores => Err(Error::new(format!(
            "--max-cores {cores}: a cell that begins with {online} cores can have {online} to {most}"
        ))),
    }
}

/// Can this be a disk, and nothing besides is asked for?
fn check_image(image: &Path, o: &Options) -> Result<()> {
    use std::os::unix::fs::{FileExt as _, FileTypeExt as _};
    let what = || format!("--rootfs {}", image.display());
    let meta = std::fs::metadata(image).map_err(|e| Error::with(what(), e))?;
    if !meta.is_file() && !meta.file_type().is_block_device() {
        return Err(Error::new(format!("{}: neither a directory nor the image of a disk", what())));
    }
    // Where ext4 has its mark.
    let mut mark = [0; 2];
    let read = File::open(image).and_then(|f| f.read_at(&mut mark, 1024 + 0x38));
    if read.map_err(|e| Error::with(what(), e))? != mark.len() || u16::from_le_bytes(mark) != 0xef53 {
        return Err(Error::new(format!(
            "{}: neither a directory nor an image with ext4: `mkfs.ext4 -d DIR IMAGE 1G` makes one of a directory",
            what()
        )));
    }
    if !o.include.is_empty() {
        return Err(Error::new(format!(
            "--include puts nothing on a disk, and {} is one: put it there, or give a directory",
            what()
        )));
    }
    Ok(())
}

/// The most cores of a machine that the nucleus splits.
const NUCLEUS_CORES: usize = 64;

/// Directories for temporary files.
const TEMPORARY: [&str; 2] = ["/tmp", "/var/tmp"];

/// The root file system: a directory, or the program with what it needs; and what is to go in besides. Value:
/// which of [`TEMPORARY`] are not empty there, too.
fn archive(o: &Options, must_run: bool) -> Result<(Vec<u8>, Vec<&'static str>)> {
    let start = Instant::now();
    let mut packer = Packer::new();
    packer.plan(plan_cache(signals::is_root()));
    match &o.rootfs {
        Some(dir) => packer.rootfs(dir)?,
        None => {
            pack_program(&mut packer, o, must_run)?;
            if let Ok(here) = std::env::current_dir() {
                packer.directory(&here)?;
            }
        }
    }
    for path in &o.include {
        packer.include(path)?;
    }
    let temporary = TEMPORARY.into_iter().filter(|dir| packer.has_beneath(Path::new(dir))).collect();
    let mut archive = Vec::new();
    let packed = packer.write(&mut archive)?;
    for missing in packed.missing {
        say!("atoll: {missing}, which this host does not have: it goes without");
    }
    if o.verbose {
        let (files, plans, mib) = (packed.files, packed.plans, packed.bytes >> 20);
        let ms = start.elapsed().as_millis();
        say!("atoll: packed {files} files and {plans} rewriting plans, {mib} MiB, in {ms} ms");
    }
    Ok((archive, temporary))
}

/// Packs the program with what it needs, as far as this host has it. What is wrong with it the cell says, in its way, unless it `must_run`:
/// then that is an error here.
fn pack_program(packer: &mut Packer, o: &Options, must_run: bool) -> Result<()> {
    let program = Path::new(&o.program[0]);
    // Where it is here, if a volume shows it there.
    let there = o.workdir.as_deref().unwrap_or(Path::new("")).join(program);
    let by_path = o.program[0].as_bytes().contains(&b'/');
    let shown =
        o.volume.iter().filter(|_| by_path).filter_map(|v| volume(v).ok()).find_map(|(source, target, _)| {
            let path = Path::new(source).join(there.strip_prefix(target).ok()?);
            path.is_file().then_some(path)
        });
    let program = shown.as_deref().unwrap_or(program);
    let Err(e) = packer.program(program) else { return Ok(()) };
    if must_run {
        return Err(e);
    }
    say!("atoll: {e}");
    if program.exists() { packer.directory(program) } else { Ok(()) }
}

fn prepare(o: Options) -> Result<CellConfig> {
    if !o.publish.is_empty() {
        return Err(Error::new("--publish is for --platform nucleus: here the cell has the host's ports"));
    }
    if !o.hardware.is_default() {
        return Err(Error::new(
            "--machine and --iommu are for --platform nucleus: here Linux has the hardware",
        ));
    }
    if !o.include.is_empty() {
        return Err(Error::new("--include is for --platform nucleus: here --volume shows a directory"));
    }
    let runtime = beside("atoll-runtime", "ATOLL_RUNTIME", "the runtime")?;
    let runtime = File::open(&runtime)
        .map_err(|e| Error::with(format!("reading the runtime, {}", runtime.display()), e))?;
    let cpus = signals::allowed_cpus();
    // A control group may leave less time than those have.
    let usable =
        || std::thread::available_parallelism().map_or(1, |n| n.get()).min(cpus.len()).min(MAX_CORES);
    let online = o.cores.map_or_else(|| Ok(usable()), |cores| first_cores(cores, MAX_CORES))?;
    let cores = most_cores(&o, online, MAX_CORES)?;
    let total = memory_of_machine();
    // Looking for a limit takes a third of a millisecond: where it makes no default, that is done later (`warn_of_limit`).
    let usual = || cgroup::memory_limit().map_or(total, |limit| limit.min(total)) / 2;
    let memory = o.memory.unwrap_or_else(usual) / BLOCK * BLOCK;
    if memory < LEAST_MEMORY {
        return Err(Error::new(TOO_LITTLE));
    }
    let memory = memory_sizes(memory, o.max_memory, cores)?;
    let host_reserve = o.elastic.then(|| o.host_reserve.unwrap_or(total / 16));
    let root = signals::is_root();
    let (mounts, host_mounts) = mounts(&o)?;
    let streams = Streams::of_this_process();
    let (net, confined) = (o.net, !o.unconfined);
    let count = o.counter.as_deref().map(counter::find).transpose()?;
    let boot = boot_config(o, mounts, streams, true, cores)?;
    Ok(CellConfig {
        runtime,
        cores,
        online,
        cpus: (root && cores <= cpus.len()).then(|| Placement::new(&cpus, cores, online)),
        allowed: cpus,
        memory,
        host_reserve,
        boot,
        mounts: host_mounts,
        streams,
        network: if net == Network::Host { Policy::Host } else { Policy::None },
        count,
        plan_cache: plan_cache(root),
        confined,
    })
}

/// The least memory of a cell, bytes, and what is said if it is to have less.
const LEAST_MEMORY: u64 = 32 << 20;
const TOO_LITTLE: &str = "a cell needs at least 32M of memory: --memory 32M";

/// How much memory a cell can have that begins with `memory` bytes: as much as was said, and a quarter at the least.
fn memory_sizes(memory: u64, most: Option<u64>, cores: usize) -> Result<Sizes> {
    let most = most.map_or(memory, |most| most / BLOCK * BLOCK);
    let tables = table_blocks(most, cores as u64) * BLOCK;
    // What can't be moved is kept in the least that it has, and tables for the most are the first of that.
    let least = (memory / 4).max(tables * 2).max(LEAST_MEMORY) / BLOCK * BLOCK;
    let (has, can) = (memory >> 20, most >> 20);
    if most > RUNTIME_END - DIRECT_MAP {
        return Err(Error::new("--max-memory: a cell can have 15T at most"));
    }
    if most < memory {
        return Err(Error::new(format!(
            "--max-memory: a cell that begins with {has}M can't have {can}M at most"
        )));
    }
    if least > memory {
        let need = least >> 20;
        return Err(Error::new(format!(
            "a cell that can have {can}M begins with {need}M or more: --memory {need}M"
        )));
    }
    Ok(Sizes { most, now: memory, least })
}

/// What runs, and how the world looks to it.
fn boot_config(
    o: Options,
    mounts: Vec<MountConfig>,
    streams: Streams,
    host_network: bool,
    cores: usize,
) -> Result<BootConfig> {
    let mut grid = match &o.grid {
        Some(file) => grid::load(file, Some(cores))?,
        None => GridConfig::default(),
    };
    if let Some(most) = o.pids_limit {
        grid.quotas[Quota::Tasks as usize] = most;
    }
    let memory_policy = o.memory_policy.as_deref().map(memory_policy::load).transpose()?.unwrap_or_default();
    let root = signals::is_root();
    let own = signals::own_ids();
    let rows = o.rootfs.as_deref();
    let User { uid, gid, groups, home } = match &o.user {
        Some(u) => lookup_user(u, rows)?,
        // Its home matters only where the environment isn't passed on.
        None if o.env.is_empty() => User { uid: own.0, gid: own.1, groups: own.2, home: None },
        None => User { gid: own.1, groups: own.2, ..lookup_user(&own.0.to_string(), rows)? },
    };
    if !root && uid != own.0 {
        return Err(Error::new("only root can run a cell as another user: leave --user out"));
    }
    let program: Vec<Vec<u8>> = o.program.into_iter().map(OsString::into_vec).collect();
    let cpu = CpuInfo::read();
    let name = o.name.clone().unwrap_or_else(|| if o.rootfs.is_some() { "atoll".into() } else { hostname() });
    let mut seed = [0u8; 32];
    if let Ok(mut f) = File::open("/dev/urandom") {
        use std::io::Read;
        // Without it the layout is guessable, no more.
        let _ = f.read_exact(&mut seed);
    }
    let workdir = match o.workdir {
        Some(dir) => dir.into_os_string().into_vec(),
        None => default_workdir(&mounts, o.rootfs.is_some()),
    };
    Ok(BootConfig {
        name,
        program: program[0].clone(),
        args: program,
        env: environment(&o.env, home)?,
        workdir,
        uid,
        gid,
        groups,
        umask: signals::umask(),
        nice: signals::nice(),
        oom_score_adj: std::fs::read_to_string("/proc/self/oom_score_adj")
            .map_or(0, |s| s.trim().parse().unwrap_or(0)),
        mounts,
        streams: streams.kinds,
        stream_flags: streams.flags,
        host_network,
        ignored_signals: signals::ignored(),
        seed,
        limits: signals::limits(),
        grid,
        max_files: signals::raise_file_limit(),
        verbose: o.verbose,
        lazy_unmap: o.lazy_unmap,
        keep_code: o.keep_code,
        in_job: atoll_supervisor::jobs::is_in_job(),
        paging: match o.paging {
            Paging::Usual => control::Paging::Usual,
            Paging::Demand => control::Paging::Demand,
            Paging::Huge => control::Paging::Huge,
            Paging::Populate => control::Paging::Populate,
        },
        memory_policy,
        randomize: std::fs::read_to_string("/proc/sys/kernel/randomize_va_space")
            .map_or(true, |s| s.trim() != "0"),
        cpu_model: cpu.model,
        cpu_flags: cpu.flags,
        cpu_khz: cpu.khz,
    })
}

/// What is installed beside this program, unless the environment names another.
pub(crate) fn beside(name: &str, variable: &str, what: &str) -> Result<PathBuf> {
    if let Some(p) = std::env::var_os(variable) {
        return Ok(p.into());
    }
    let me = std::env::current_exe().map_err(|e| Error::with("finding this program", e))?;
    let beside = me.with_file_name(name);
    if beside.exists() {
        return Ok(beside);
    }
    Err(Error::new(format!(
        "{what} is missing: {} should be there; `cargo xtask build` makes it",
        beside.display()
    )))
}

fn memory_of_machine() -> u64 {
    // In the first line. In some containers this tells of the container, where sysinfo(2) tells of the machine.
    let mut first = String::new();
    let read = File::open("/proc/meminfo").and_then(|f| BufReader::new(f).read_line(&mut first));
    let kib = read
        .ok()
        .and_then(|_| first.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map_or(1 << 30, |kib| kib << 10)
}

fn hostname() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").map_or("atoll".into(), |s| s.trim().to_string())
}

struct CpuInfo {
    model: String,
    flags: String,
    khz: u64,
}

impl CpuInfo {
    fn read() -> CpuInfo {
        // Of the first processor: a large machine takes a while to tell of all.
        let lines =
            File::open("/proc/cpuinfo").map(|f| BufReader::new(f).lines().map_while(std::io::Result::ok));
        let first: Vec<String> = lines.into_iter().flatten().take_while(|l| !l.is_empty()).collect();
        let field = |name: &str| {
            let found = first.iter().find_map(|l| l.split_once(':').filter(|(k, _)| k.trim() == name));
            found.map_or(String::new(), |(_, v)| v.trim().to_string())
        };
        let khz = field("cpu MHz").parse::<f64>().map_or(1_000_000, |m| (m * 1000.0) as u64);
        CpuInfo { model: field("model name"), flags: field("flags"), khz }
    }
}

pub(crate) fn plan_cache(root: bool) -> Option<PathBuf> {
    let dir = if root {
        PathBuf::from("/var/cache/atoll")
    } else {
        let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        base.or_else(|| std::env::var_os("HOME").map(|h| Path::new(&h).join(".cache")))?.join("atoll")
    };
    std::fs::create_dir_all(&dir).ok()?;
    Some(dir)
}

/// The program's environment: variables that are wanted, or else all of this process; HOME is `home` unless it is wanted, too.
fn environment(wanted: &[OsString], home: Option<String>) -> Result<Vec<Vec<u8>>> {
    let mut out: Vec<Vec<u8>> = Vec::new();
    if wanted.is_empty() {
        let all = std::env::vars_os().filter(|(name, _)| home.is_none() || name != "HOME");
        out.extend(all.map(|(k, v)| [k.as_bytes(), b"=", v.as_bytes()].concat()));
    }
    let is_home = |w: &OsString| w == "HOME" || w.as_bytes().starts_with(b"HOME=");
    if let Some(home) = home.filter(|_| !wanted.iter().any(is_home)) {
        out.push(format!("HOME={home}").into_bytes());
    }
    if wanted.is_empty() {
        return Ok(out);
    }
    if !wanted.iter().any(|w| w.as_bytes().starts_with(b"PATH=")) {
        out.push(b"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_vec());
    }
    for w in wanted {
        if w.is_empty() || w.as_bytes().starts_with(b"=") {
            return Err(Error::new(format!("--env {}: write NAME=VALUE or NAME", w.display())));
        }
        if w.as_bytes().contains(&b'=') {
            out.push(w.as_bytes().to_vec());
        } else if let Some(v) = std::env::var_os(w) {
            out.push([w.as_bytes(), b"=", v.as_bytes()].concat());
        }
    }
    Ok(out)
}

/// This directory, if the cell sees it under the same name.
fn default_workdir(mounts: &[MountConfig], own_root: bool) -> Vec<u8> {
    let here = std::env::current_dir().unwrap_or_else(|_| "/".into());
    let hidden = mounts.iter().skip(1).any(|m| {
        m.kind != MountKind::Host
            && here.starts_with(&m.target)
            && !mounts.iter().any(|v| {
                v.kind == MountKind::Host && v.target.len() > m.target.len() && here.starts_with(&v.target)
            })
    });
    if own_root || hidden { b"/".to_vec() } else { here.into_os_string().into_vec() }
}

/// A directory of this host that an option names.
fn open_dir(path: &Path, option: &str) -> Result<OwnedFd> {
    let file =
        File::open(path).map_err(|e| Error::with(format!("{option}: opening {}", path.display()), e))?;
    if !file.metadata().is_ok_and(|m| m.is_dir()) {
        let shown = path.display();
        return Err(Error::new(format!("{option}: {shown} is not a directory")));
    }
    Ok(file.into())
}

/// A directory or a file of this host that an option names.
fn host_mount(path: &Path, option: &str, read_only: bool) -> Result<HostMount> {
    let failed = |e| Error::with(format!("{option}: opening {}", path.display()), e);
    let meta = std::fs::metadata(path).map_err(failed)?;
    if meta.is_dir() {
        return Ok(HostMount::new(open_dir(path, option)?, read_only));
    }
    // Where a link leads, if it is one.
    let whole = path.canonicalize().map_err(failed)?;
    match (whole.parent(), whole.file_name()) {
        (Some(above), Some(name)) if meta.is_file() || meta.file_type().is_socket() => {
            let name = CString::new(name.as_bytes()).map_err(|e| failed(e.into()))?;
            Ok(HostMount::of_file(open_dir(above, option)?, name, read_only))
        }
        _ => Err(Error::new(format!("{option}: {} is no directory, file or socket", path.display()))),
    }
}

fn add_mount(list: &mut Vec<MountConfig>, target: &str, kind: MountKind, source: &str, read_only: bool) {
    list.push(MountConfig { target: target.into(), kind, id: 0, read_only, source: source.into() });
}

/// What a cell has of its own.
fn own_mounts(list: &mut Vec<MountConfig>) {
    add_mount(list, "/proc", MountKind::Proc, "proc", false);
    add_mount(list, "/sys", MountKind::Sys, "sysfs", false);
    add_mount(list, "/sys/fs/cgroup", MountKind::Cgroup, "cgroup2", true);
    add_mount(list, "/dev", MountKind::Dev, "devtmpfs", false);
    for target in ["/dev/shm"].iter().chain(&TEMPORARY) {
        add_mount(list, target, MountKind::Tmpfs(Temporary::default()), "tmpfs", false);
    }
}

fn mounts(o: &Options) -> Result<(Vec<MountConfig>, Vec<HostMount>)> {
    let mut host = Vec::new();
    let mut list = Vec::new();
    let root = o.rootfs.as_deref().unwrap_or(Path::new("/"));
    let read_only = o.rootfs.is_none();
    host.push(HostMount::new(open_dir(root, "--rootfs")?, read_only));
    list.push(MountConfig {
        target: "/".into(),
        kind: MountKind::Host,
        id: 0,
        read_only,
        source: root.display().to_string(),
    });
    own_mounts(&mut list);
    volumes(o, &mut list, &mut host)?;
    Ok((list, host))
}

/// What a `--volume` says: directory or file of this host, where it is in the cell, and whether it can only be read.
fn volume(v: &str) -> Result<(&str, &str, bool)> {
    let usage = || Error::new(format!("--volume {v}: write SRC:DST or SRC:DST:ro"));
    let (rest, read_only) = match v.strip_suffix(":ro") {
        Some(rest) => (rest, true),
        None => (v.strip_suffix(":rw").unwrap_or(v), false),
    };
    let (src, dst) = rest.rsplit_once(':').ok_or_else(usage)?;
    if src.is_empty() || !dst.starts_with('/') || dst.len() < 2 {
        return Err(usage());
    }
    Ok((src, dst.trim_end_matches('/'), read_only))
}

/// Adds what `--tmpfs` makes and `--volume` shows: the mounts, and behind those of this host that there are, the directories.
fn volumes(o: &Options, list: &mut Vec<MountConfig>, host: &mut Vec<HostMount>) -> Result<()> {
    for t in &o.tmpfs {
        if o.tmpfs.iter().filter(|other| other.target == t.target).count() > 1 {
            return Err(Error::new(format!("--tmpfs {}: there are two of them", t.target)));
        }
        // In place of the cell's own, if it has one there.
        list.retain(|m| m.target != t.target || !matches!(m.kind, MountKind::Tmpfs(_)));
        list.push(t.clone());
    }
    for v in &o.volume {
        let (src, dst, read_only) = volume(v)?;
        host.push(host_mount(Path::new(src), &format!("--volume {v}"), read_only)?.with_sockets());
        if list.iter().any(|m| m.kind == MountKind::Host && m.target == dst) {
            return Err(Error::new(format!("--volume {v}: another volume is on {dst} already")));
        }
        if o.tmpfs.iter().any(|t| t.target == dst) {
            return Err(Error::new(format!("--volume {v}: a --tmpfs is on {dst}")));
        }
        list.push(MountConfig {
            target: dst.into(),
            kind: MountKind::Host,
            id: host.len() as u32 - 1,
            read_only,
            source: src.into(),
        });
    }
    // A mount hides what is under it, so the outer ones come first.
    list[1..].sort_by_key(|m| m.target.matches('/').count());
    Ok(())
}

/// Who a program runs as.
struct User {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    /// None: that of this process's environment.
    home: Option<String>,
}

/// A user of a root, as `UID[:GID]` or by names.
fn lookup_user(spec: &str, rootfs: Option<&Path>) -> Result<User> {
    let (user, group) = match spec.split_once(':') {
        Some((u, g)) => (u, Some(g)),
        None => (spec, None),
    };
    if user.is_empty() || group.is_some_and(str::is_empty) {
        return Err(Error::new(format!("--user {spec}: write UID, UID:GID or a name of /etc/passwd")));
    }
    let root = rootfs.unwrap_or(Path::new("/"));
    let read = |name: &str| std::fs::read_to_string(root.join("etc").join(name)).unwrap_or_default();
    let passwd = read("passwd");
    let row = |l: &str| -> Option<(String, u32, u32, String)> {
        let f: Vec<&str> = l.split(':').collect();
        let home = f.get(5).filter(|home| !home.is_empty()).unwrap_or(&"/").to_string();
        Some((f.first()?.to_string(), f.get(2)?.parse().ok()?, f.get(3)?.parse().ok()?, home))
    };
    let found =
        passwd.lines().filter_map(row).find(|(name, uid, ..)| name == user || uid.to_string() == user);
    let (name, uid, gid, home) = match (found, user.parse::<u32>()) {
        (Some(f), _) => f,
        (None, Ok(uid)) => (String::new(), uid, uid, "/".into()),
        (None, Err(_)) => return Err(Error::new(format!("--user {spec}: there is no user '{user}'"))),
    };
    let groups = read("group");
    let group_rows: Vec<(String, u32, Vec<String>)> = groups
        .lines()
        .filter_map(|l| {
            let f: Vec<&str> = l.split(':').collect();
            let members = f
                .get(3)
                .map_or(Vec::new(), |m| m.split(',').filter(|m| !m.is_empty()).map(str::to_string).collect());
            Some((f.first()?.to_string(), f.get(2)?.parse().ok()?, members))
        })
        .collect();
    let gid = match group {
        None => gid,
        Some(g) => match g.parse() {
            Ok(n) => n,
            Err(_) => {
                group_rows
                    .iter()
                    .find(|(name, ..)| name == g)
                    .ok_or_else(|| Error::new(format!("--user {spec}: there is no group '{g}'")))?
                    .1
            }
        },
    };
    let further = group_rows.iter().filter(|(_, _, m)| m.contains(&name)).map(|(_, id, _)| *id).collect();
    Ok(User { uid, gid, groups: further, home: Some(home) })
}

/// What needs the C library's calls.
pub mod signals {
    #![allow(unsafe_code, reason = "signals, ids and limits of this process")]

    use std::sync::atomic::{AtomicU64, Ordering};

    use atoll_supervisor::{Error, Result};

    /// Signals that are passed to the program: all but those that can't be caught, the end of children, which this process has itself, faults,
    /// which would be its own, and those that the C library keeps for itself.
    fn forwarded() -> impl Iterator<Item = i32> {
        let own = [
            libc::SIGKILL,
            libc::SIGSTOP,
            libc::SIGCHLD,
            libc::SIGSEGV,
            libc::SIGBUS,
            libc::SIGFPE,
            libc::SIGILL,
            libc::SIGSYS,
        ];
        (1..32).filter(move |s| !own.contains(s)).chain(libc::SIGRTMIN()..=libc::SIGRTMAX())
    }

    static ARRIVED: AtomicU64 = AtomicU64::new(0);
    /// How often SIGCONT came.
    static CONTINUED: AtomicU64 = AtomicU64::new(0);
    static PIPE: AtomicU64 = AtomicU64::new(0);

    extern "C" fn note(signal: i32, info: *const libc::siginfo_t, _context: *const libc::c_void) {
        // SAFETY: the host gives it.
        let own = unsafe { (*info).si_code == libc::SI_USER && (*info).si_pid() == libc::getpid() };
        // A pipe without a reader, a file at its limit: whoever writes is told by an error, and if that is the program, it has the signal by that.
        if own {
            return;
        }
        let bit = |signal: i32| 1u64 << (signal - 1);
        let continued = CONTINUED.load(Ordering::SeqCst);
        // What continues takes back what would stop (signal(7)).
        if signal == libc::SIGCONT {
            CONTINUED.fetch_add(1, Ordering::SeqCst);
            let stops = bit(libc::SIGTSTP) | bit(libc::SIGTTIN) | bit(libc::SIGTTOU);
            ARRIVED.fetch_and(!stops, Ordering::SeqCst);
        }
        // A serving thread changed the terminal in the background, and the shell has brought this job to the foreground since.
        // SAFETY: the host gives it; asks for ids.
        let is_late = unsafe {
            matches!(signal, libc::SIGTTIN | libc::SIGTTOU)
                && (*info).si_code == libc::SI_KERNEL
                && (0..3).any(|fd| libc::tcgetpgrp(fd) == libc::getpgrp())
        };
        if is_late {
            return;
        }
        ARRIVED.fetch_or(bit(signal), Ordering::SeqCst);
        // Held up here from before this process was stopped until it went on.
        if matches!(signal, libc::SIGTTIN | libc::SIGTTOU) && CONTINUED.load(Ordering::SeqCst) != continued {
            ARRIVED.fetch_and(!bit(signal), Ordering::SeqCst);
        }
        let fd = PIPE.load(Ordering::Relaxed) as i32;
        // SAFETY: writes one byte to our own pipe; a full pipe has been noticed already.
        unsafe { libc::write(fd, [0u8].as_ptr().cast(), 1) };
    }

    /// Signals that this process was started with ignored. Rust's start-up
    /// ignores SIGPIPE itself, so that one is not known.
    pub fn ignored() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let set = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
        let set = set.and_then(|s| u64::from_str_radix(s.trim(), 16).ok()).unwrap_or(0);
        set & !(1 << (libc::SIGPIPE - 1))
    }

    /// Passes signals that come to this process on, by `pass`, to the cell's program.
    pub fn forward(pass: impl Fn(i32) + Send + 'static) -> Result<()> {
        let mut fds = [0; 2];
        // SAFETY: room for two descriptors.
        if unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } != 0 {
            return Err(Error::with("a pipe for signals", std::io::Error::last_os_error()));
        }
        PIPE.store(fds[1] as u64, Ordering::Relaxed);
        // Those that are ignored from the start, too: a program may have a handler of its own for them.
        for s in forwarded() {
            // SAFETY: a valid handler that only writes.
            unsafe {
                let mut a: libc::sigaction = std::mem::zeroed();
                a.sa_sigaction = note as *const () as usize;
                a.sa_flags = libc::SA_RESTART | libc::SA_SIGINFO;
                libc::sigaction(s, &raw const a, std::ptr::null_mut());
            }
        }
        let work = move || {
            loop {
                let mut p = libc::pollfd { fd: fds[0], events: libc::POLLIN, revents: 0 };
                // SAFETY: one valid entry; a buffer of that length.
                unsafe {
                    libc::poll(&raw mut p, 1, -1);
                    let mut b = [0u8; 64];
                    libc::read(fds[0], b.as_mut_ptr().cast(), b.len());
                }
                let set = ARRIVED.swap(0, Ordering::SeqCst);
                for s in forwarded() {
                    if set & 1 << (s - 1) != 0 {
                        pass(s);
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("atoll-signals".into()).spawn(work);
        thread.map(drop).map_err(|e| Error::with("starting a thread for signals", e))
    }

    /// Ends this process by a signal, as the program was.
    pub fn die_by(signal: i32) {
        // SAFETY: plain calls; without a core file, which the program may have left already.
        unsafe {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
            libc::signal(signal, libc::SIG_DFL);
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, signal);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
            libc::raise(signal);
        }
    }

    /// CPUs that this process may use.
    pub fn allowed_cpus() -> Vec<usize> {
        // SAFETY: a plain structure for the host to fill.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) != 0 {
                return vec![0];
            }
            (0..libc::CPU_SETSIZE as usize).filter(|n| libc::CPU_ISSET(*n, &set)).collect()
        }
    }

    /// Is this root?
    pub fn is_root() -> bool {
        // SAFETY: asks for an id.
        unsafe { libc::geteuid() == 0 }
    }

    /// This process's user, group and further groups.
    pub fn own_ids() -> (u32, u32, Vec<u32>) {
        // SAFETY: asks for ids, with room for as many as there are.
        unsafe {
            let mut groups = vec![0; libc::getgroups(0, std::ptr::null_mut()).max(0) as usize];
            let n = libc::getgroups(groups.len() as i32, groups.as_mut_ptr());
            groups.truncate(n.max(0) as usize);
            (libc::geteuid(), libc::getegid(), groups)
        }
    }

    /// The file mode creation mask.
    pub fn umask() -> u32 {
        // SAFETY: reads it by setting it twice.
        unsafe {
            let m = libc::umask(0o22);
            libc::umask(m);
            m
        }
    }

    /// The nice value.
    pub fn nice() -> i32 {
        // SAFETY: asks for a number. It can't fail for the caller itself.
        unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
    }

    /// Resource limits as a program started from here would have them.
    pub fn limits() -> Vec<(u64, u64)> {
        (0..16)
            .map(|n| {
                let mut l = libc::rlimit { rlim_cur: u64::MAX, rlim_max: u64::MAX };
                // SAFETY: a structure for the host to fill.
                unsafe { libc::getrlimit(n, &raw mut l) };
                (l.rlim_cur, l.rlim_max)
            })
            .collect()
    }

    /// Lets this process and the cell have as many descriptors as the host allows.
    pub fn raise_file_limit() -> u32 {
        let mut l = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
        // SAFETY: a structure for the host to fill and to read.
        unsafe {
            libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut l);
            l.rlim_cur = l.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const l);
        }
        l.rlim_cur.min(u64::from(u32::MAX)) as u32
    }
}
