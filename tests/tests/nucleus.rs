//! The nucleus in QEMU, in software emulation: it finds the machine, starts all cores, and lets no
//! page be both written and executed.

use std::io::{Read as _, Write as _};
use std::mem::offset_of;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use atoll_abi::control::Control;
use atoll_abi::layout::CONTROL;
use atoll_tests::{Failed, Outcome, Trial, arguments, atoll, run, top};

/// Lines of Rust and assembler that the nucleus may have, without comments and empty ones.
const LINES_MAX: usize = 6000;
/// Bytes of its image.
const IMAGE_MAX: u64 = 4 << 20;
/// What QEMU's `isa-debug-exit` makes of the nucleus's 0 and 1.
const WELL: i32 = 1;
const ILL: i32 = 3;

fn main() {
    let mut trials = Vec::new();
    for machine in ["q35", "microvm", "pc"] {
        for cores in [1, 2, 8] {
            trials.push(Trial::test(format!("boots_{machine}_{cores}"), move || boots(machine, cores, 256)));
        }
    }
    trials.push(Trial::test("boots_beyond_4_gib", || boots("q35", 2, 6144)));
    // Page fault: present, write; fetch. Double fault: the stack's guard page.
    for (what, says) in [
        ("write-code", "exception 14 error 0x3"),
        ("write-code-direct", "exception 14 error 0x3"),
        ("run-data", "exception 14 error 0x11"),
        ("null", "exception 14 error 0x2"),
        ("stack", "exception 8 error 0x0"),
        ("panic", "panicked at"),
    ] {
        trials.push(Trial::test(format!("crash_{what}"), move || crashes(what, says)));
    }
    // By MP tables instead of ACPI's.
    trials.push(Trial::test("boots_without_acpi", || boots("microvm,acpi=off", 4, 256)));
    for cells in [2, 4, 8, 32] {
        trials.push(Trial::test(format!("splits_among_{cells}"), move || splits(cells)));
    }
    trials.push(Trial::test("keeps_cells_to_nodes", keeps_to_nodes));
    trials.push(Trial::test("refuses_bad_configurations", refuses));
    trials.push(Trial::test("cells_are_held_off", cells_are_held_off));
    trials.push(Trial::test("calls_are_rewritten", calls_are_rewritten));
    trials.push(Trial::test("contract_is_kept", contract_is_kept));
    trials.push(Trial::test("mailboxes", mailboxes));
    trials.push(Trial::test("crashed_cells_start_again", crashed_cells_start_again));
    trials.push(Trial::test("cells_end_as_they_begin", cells_end_as_they_begin));
    trials.push(Trial::test("machine_checks_end_a_cell", machine_checks_end_a_cell));
    trials.push(Trial::test("nobody_reads_the_log", nobody_reads_the_log));
    trials.push(Trial::test("crashes_are_named", crashes_are_named));
    trials.push(Trial::test("devices_are_confined", || devices_are_confined(true)));
    trials.push(Trial::test("devices_reach_all_without_iommu", || devices_are_confined(false)));
    trials.push(Trial::test("stays_small", stays_small));
    libtest_mimic::run(&arguments(), trials).exit();
}

fn image() -> PathBuf {
    top().join("target/release/atoll-nucleus")
}

/// A boot module with this configuration.
fn module(dir: &Path, configuration: &str) -> Result<PathBuf, Failed> {
    module_of(dir, configuration, &["boot.conf".to_string()])
}

/// The same with more files of `dir`.
fn module_of(dir: &Path, configuration: &str, files: &[String]) -> Result<PathBuf, Failed> {
    std::fs::write(dir.join("boot.conf"), configuration)?;
    let tar = dir.join("module.tar");
    let mut command = Command::new("tar");
    command.arg("-C").arg(dir).arg("-cf").arg(&tar).args(files);
    expect(&run(command, Duration::from_secs(20))?, 0, "")?;
    Ok(tar)
}

fn qemu(machine: &str, cores: usize, mib: usize, options: &str) -> Result<Outcome, Failed> {
    boot(machine, cores, mib, options, None)
}

fn boot(
    name: &str,
    cores: usize,
    mib: usize,
    options: &str,
    module: Option<&Path>,
) -> Result<Outcome, Failed> {
    Ok(run(machine(name, cores, mib, options, module), Duration::from_secs(60))?)
}

/// QEMU with the nucleus.
fn machine(name: &str, cores: usize, mib: usize, options: &str, module: Option<&Path>) -> Command {
    let mut command = Command::new("qemu-system-x86_64");
    command.args(["-accel", "tcg,thread=multi", "-nodefaults", "-no-user-config", "-no-reboot"]);
    command.args(["-display", "none", "-serial", "stdio", "-device", "isa-debug-exit,iobase=0xf4,iosize=4"]);
    command.args(["-M", name, "-cpu", "max", "-smp", &cores.to_string(), "-m", &mib.to_string()]);
    command.arg("-kernel").arg(image()).args(["-append", &format!("exit=f4 {options}")]);
    if let Some(module) = module {
        command.arg("-initrd").arg(module);
    }
    command
}

fn expect(outcome: &Outcome, status: i32, says: &str) -> Result<(), Failed> {
    if outcome.hung || outcome.status != status || !outcome.stdout.contains(says) {
        return Err(format!(
            "status {} instead of {status}{}, and it was to say {says:?}:\n{}{}",
            outcome.status,
            if outcome.hung { " (hung)" } else { "" },
            outcome.stdout,
            outcome.stderr
        )
        .into());
    }
    Ok(())
}

fn boots(machine: &str, cores: usize, mib: usize) -> Result<(), Failed> {
    let outcome = qemu(machine, cores, mib, "")?;
    expect(&outcome, WELL, &format!("nucleus: {cores} cores ("))?;
    // The firmware keeps a little.
    let found = outcome.stdout.split(", ").nth(1).and_then(|s| s.split(' ').next()?.parse::<usize>().ok());
    if !found.is_some_and(|found| (mib - 2..=mib).contains(&found)) {
        return Err(format!("{mib} MiB, and it found {found:?}:\n{}", outcome.stdout).into());
    }
    // QEMU's best processor has all of them.
    if outcome.stdout.contains("has no") {
        return Err(format!("a protection is off:\n{}", outcome.stdout).into());
    }
    Ok(())
}

fn crashes(what: &str, says: &str) -> Result<(), Failed> {
    expect(&qemu("microvm", 2, 128, &format!("crash={what}"))?, ILL, says)
}

/// The numbers behind `0x` in a line.
fn hexadecimal(line: &str) -> Vec<u64> {
    let words = line.split(|c: char| !c.is_ascii_alphanumeric());
    words.filter_map(|w| u64::from_str_radix(w.strip_prefix("0x")?, 16).ok()).collect()
}

/// Cells side by side: each has what it asked for, nothing belongs to two, and all is in the machine.
fn splits(cells: usize) -> Result<(), Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let (cores, mib) = (cells.max(8), 64 + 34 * cells);
    let configuration: String =
        (0..cells).map(|n| format!("cell c{n}\n  cores 1\n  memory 33M\n  run /bin/true {n}\n")).collect();
    let outcome = boot("q35", cores, mib, "", Some(&module(dir.path(), &configuration)?))?;
    expect(&outcome, WELL, &format!("nucleus: {cores} cores ("))?;
    let (mut taken, mut extents, mut seen) = (0u64, Vec::new(), 0);
    for line in outcome.stdout.lines() {
        let numbers = hexadecimal(line);
        if let (true, [mask]) = (line.starts_with("nucleus: cell "), &numbers[..]) {
            if mask.count_ones() != 1 || taken & mask != 0 || !line.contains(", 34 MiB in") {
                return Err(format!("{line}: not what was asked for\n{}", outcome.stdout).into());
            }
            taken |= mask;
            seen += 1;
        } else if let [from, to] = numbers[..] {
            extents.push((from, to));
        }
    }
    extents.sort_unstable();
    let apart = extents.windows(2).all(|w| w[0].1 <= w[1].0);
    let whole = extents.iter().all(|(from, to)| from < to && from % (2 << 20) == 0 && to % (2 << 20) == 0);
    let sum: u64 = extents.iter().map(|(from, to)| to - from).sum();
    let inside = extents.first().is_some_and(|e| e.0 > 1 << 20)
        && extents.last().is_some_and(|e| e.1 <= (mib as u64) << 20);
    let left = format!("left: cores {:#x},", ((1u64 << cores) - 1) & !taken);
    if seen != cells || !apart || !whole || !inside || sum != (34 << 20) * cells as u64 {
        return Err(format!("the extents are wrong: {extents:x?}\n{}", outcome.stdout).into());
    }
    expect(&outcome, WELL, &left)
}

/// Two nodes: two cells get one each, cores and memory; a cell that is larger than a node gets parts of both.
fn keeps_to_nodes() -> Result<(), Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let cell = |name: &str, cores: usize, memory: usize| {
        format!("cell {name}\n cores {cores}\n memory {memory}M\n run x\n")
    };
    for (cells, expected) in [
        // Where the nodes' memory ends: at 512 MiB and 1 GiB.
        (
            [cell("a", 2, 200), cell("b", 2, 200)],
            [("a: cores 0x5, 200 MiB", ", node 0"), ("b: cores 0xa, 200 MiB", ", node 1")],
        ),
        (
            [cell("a", 3, 200), cell("b", 1, 300)],
            [("a: cores 0x7, 200 MiB", ", nodes 0 1"), ("b: cores 0x8, 300 MiB", ", node 1")],
        ),
    ] {
        let module = module(dir.path(), &cells.concat())?;
        let mut command = machine("q35", 4, 1024, "", Some(&module));
        for node in 0..2 {
            command.args(["-object", &format!("memory-backend-ram,id=m{node},size=512M")]);
            command.args(["-numa", &format!("node,nodeid={node},memdev=m{node}")]);
        }
        // Every other core is of the same node.
        for core in 0..4 {
            command.args(["-numa", &format!("cpu,node-id={},socket-id={core}", core % 2)]);
        }
        command.args(["-smp", "4,sockets=4,cores=1,threads=1"]);
        let outcome = run(command, Duration::from_secs(60))?;
        for (start, end) in expected {
            let is = |l: &str| l.starts_with(&format!("nucleus: cell {start}")) && l.ends_with(end);
            if !outcome.stdout.lines().any(is) {
                return Err(format!("no cell {start} ... {end}:\n{}", outcome.stdout).into());
            }
        }
        expect(&outcome, WELL, "left: cores 0x0,")?;
        // Memory of one node: its extents lie on one side of 512 MiB.
        let mut of_node = None;
        for line in outcome.stdout.lines() {
            let is_cell = line.starts_with("nucleus: cell ");
            if is_cell {
                of_node = line.rsplit_once(", node ").and_then(|(_, n)| n.parse::<u64>().ok());
            }
            if let (false, Some(node), [from, to]) = (is_cell, of_node, &hexadecimal(line)[..])
                && !(*from >= node << 29 && *to <= (node + 1) << 29)
            {
                return Err(format!("{line}: not of node {node}:\n{}", outcome.stdout).into());
            }
        }
    }
    Ok(())
}

/// What images of `tests/ring3/image.c` try, its number there, and the exception that each ends by.
const ATTACKS: &[(&str, usize, &str)] = &[
    ("read-nucleus", 1, "exception 14 error 0x5"),
    ("write-direct-map", 2, "exception 14 error 0x7"),
    ("hlt", 3, "exception 13"),
    ("cli", 4, "exception 13"),
    ("write-code", 5, "exception 14 error 0x7"),
    ("write-constant", 6, "exception 14 error 0x7"),
    ("run-data", 7, "exception 14 error 0x15"),
    ("beyond-memory", 8, "exception 14 error 0x6"),
    ("page-tables", 9, "exception 13"),
    ("wrmsr", 10, "exception 13"),
    ("port", 11, "exception 13"),
    ("no-stack", 12, "exception 14 error 0x6"),
    ("interrupt", 13, "exception 13"),
    ("undefined", 14, "exception 6"),
    ("lgdt", 15, "exception 13"),
    ("ldt", 25, "exception 13 error 0x4"),
];

/// Compiles `tests/ring3/image.c` to try this.
fn compile(to: &Path, what: usize, seed: u64) -> Result<(), Failed> {
    let mut compiler = Command::new("gcc");
    compiler.args([
        "-g",
        "-O1",
        "-Wall",
        "-Wno-implicit-fallthrough",
        "-ffreestanding",
        "-fno-stack-protector",
    ]);
    compiler.args(["-fno-pic", "-mcmodel=large", "-nostdlib", "-static", "-no-pie"]);
    compiler.arg("-Wl,--build-id=none,-z,noexecstack,-z,max-page-size=4096,-Ttext-segment=0x400000000000");
    compiler.args([format!("-DWHAT={what}"), format!("-DSEED={seed}ul")]).arg("-o").arg(to);
    for (name, offset) in [
        ("CORES", offset_of!(Control, cores)),
        ("EXTENTS", offset_of!(Control, descriptor.extents)),
        ("DEVICES", offset_of!(Control, descriptor.devices)),
    ] {
        compiler.arg(format!("-DCONTROL_{name}={}ul", CONTROL + offset as u64));
    }
    compiler.arg(top().join("tests/ring3/image.c"));
    expect(&run(compiler, Duration::from_secs(60))?, 0, "")
}

/// Hostile code in ring 3 ends its own cell, by the right exception, and again when that has started again; its
/// neighbours, which use all their
/// memory and give bad arguments meanwhile, don't notice.
fn cells_are_held_off() -> Result<(), Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let mut files = vec!["boot.conf".to_string()];
    let mut configuration = String::new();
    let first = ("first", 0, "");
    for (cell, what, _) in core::iter::once(&first).chain(ATTACKS) {
        let name = format!("image{what}");
        compile(&dir.path().join(&name), *what, 0)?;
        configuration +=
            &format!("cell {cell}\n cores 1\n memory 32M\n runtime {name}\n restart on-failure:1\n run x\n");
        files.push(name);
    }
    configuration += "cell last\n cores 2\n memory 200M\n runtime image0\n run x\n";
    let module = module_of(dir.path(), &configuration, &files)?;
    let outcome = boot("q35", ATTACKS.len() + 4, 1024, "", Some(&module))?;
    for (cell, _, exception) in ATTACKS {
        let line = |l: &str| l.starts_with(&format!("nucleus: cell {cell}, core ")) && l.contains(exception);
        if outcome.stdout.lines().filter(|l| line(l)).count() != 2 {
            return Err(format!("{cell} is not ended by {exception}, twice:\n{}", outcome.stdout).into());
        }
        expect(&outcome, ILL, &format!("nucleus: cell {cell} was ended by signal 11\n"))?;
        expect(&outcome, ILL, &format!("nucleus: cell {cell} starts again, for the 1. time\n"))?;
    }
    for cell in ["first", "last"] {
        // What it says does nothing to a terminal.
        expect(&outcome, ILL, &format!("{cell}: works?[2J\n"))?;
        expect(&outcome, ILL, &format!("nucleus: cell {cell} ended with status 0\n"))?;
    }
    Ok(())
}

/// What a runtime may not ask for is an error, whatever it asks, and its neighbours' memory stays as it is.
fn contract_is_kept() -> Result<(), Failed> {
    /// Numbers of the cases in `image.c`.
    const CONTRACT: usize = 16;
    const RANDOM: usize = 17;
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let mut files = vec!["boot.conf".to_string()];
    let mut configuration = String::new();
    for (n, (name, what, cores, device)) in [
        ("keeps", KEEPS, 1, ""),
        ("contract", CONTRACT, 1, ""),
        ("with-device", CONTRACT, 1, " device random0\n"),
        ("random1", RANDOM, 1, ""),
        ("random2", RANDOM, 2, ""),
    ]
    .into_iter()
    .enumerate()
    {
        let seed = std::time::UNIX_EPOCH.elapsed()?.as_nanos() as u64;
        println!("{name}: seed {seed}");
        compile(&dir.path().join(name), what, seed)?;
        let memory = 32 + 8 * n;
        configuration +=
            &format!("cell {name}\n cores {cores}\n memory {memory}M\n runtime {name}\n{device} run x\n");
        files.push(name.to_string());
    }
    let module = module_of(dir.path(), &configuration, &files)?;
    let mut command = machine("microvm,acpi=off", 7, 512, "", Some(&module));
    command.args(["-device", "virtio-rng-device"]);
    let outcome = run(command, Duration::from_secs(60))?;
    for cell in ["contract", "with-device"] {
        // The line of `image.c` where something was not as it should be.
        expect(&outcome, WELL, &format!("{cell}: line 0000\n"))?;
    }
    for cell in ["keeps", "contract", "with-device", "random1", "random2"] {
        expect(&outcome, WELL, &format!("nucleus: cell {cell} ended with status 0\n"))?;
    }
    Ok(())
}

/// Numbers of cases in `image.c`.
const KEEPS: usize = 18;

/// Cells of so many cores that each run a case of `image.c`: name, case, more lines of its configuration.
fn images(cells: &[(&str, usize, &str)], each: usize) -> Result<Outcome, Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    Ok(run(images_command(dir.path(), cells, each)?, Duration::from_secs(60))?)
}

/// QEMU with those, whose files come to `dir`.
fn images_command(dir: &Path, cells: &[(&str, usize, &str)], each: usize) -> Result<Command, Failed> {
    let mut files = vec!["boot.conf".to_string()];
    let mut configuration = String::new();
    for (name, what, lines) in cells {
        compile(&dir.join(name), *what, 0)?;
        configuration +=
            &format!("cell {name}\n cores {each}\n memory 40M\n runtime {name}\n{lines} run x\n");
        files.push(name.to_string());
    }
    let module = module_of(dir, &configuration, &files)?;
    Ok(machine("microvm,acpi=off", each * cells.len(), 512, "", Some(&module)))
}

/// A device of a hostile cell writes to its neighbour, to the nucleus, to the cell's own page tables: with an IOMMU
/// nothing comes of it but a line for each try. Without one the neighbour's memory changes; else this shows nothing.
fn devices_are_confined(iommu: bool) -> Result<(), Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let mut files = vec!["boot.conf".to_string()];
    let mut configuration = String::new();
    for (name, what, memory, lines) in
        [("attacks", if iommu { 23 } else { 24 }, 40, " device random0\n"), ("keeps", KEEPS, 256, "")]
    {
        compile(&dir.path().join(name), what, 0)?;
        configuration +=
            &format!("cell {name}\n cores 1\n memory {memory}M\n runtime {name}\n{lines} run x\n");
        files.push(name.to_string());
    }
    let module = module_of(dir.path(), &configuration, &files)?;
    let mut command = machine("q35", 2, 512, "", Some(&module));
    if iommu {
        command.args(["-device", "intel-iommu"]);
    }
    command.args(["-device", "virtio-rng-pci,disable-legacy=on,addr=5,iommu_platform=on"]);
    let outcome = run(command, Duration::from_secs(60))?;
    expect(&outcome, if iommu { WELL } else { ILL }, "attacks: line 0000\n")?;
    let kept = format!("nucleus: cell keeps ended with status {}\n", u8::from(!iommu));
    expect(&outcome, if iommu { WELL } else { ILL }, &kept)?;
    let tries = outcome.stdout.matches("nucleus: IOMMU: PCI device 00:05.0 was kept from writing 0x").count();
    if (tries >= 7) == iommu { Ok(()) } else { Err(format!("{tries} tries:\n{}", outcome.stdout).into()) }
}

/// Lines between cells: to and fro, to whom it is not allowed, to one that takes none, to one that has ended.
fn mailboxes() -> Result<(), Failed> {
    let cells =
        [("ping", 19, " peer pong\n peer listener\n"), ("pong", 20, " peer ping\n"), ("listener", 21, "")];
    let outcome = images(&cells, 1)?;
    for (cell, ..) in cells {
        expect(&outcome, WELL, &format!("{cell}: line 0000\n"))?;
    }
    Ok(())
}

/// A cell that writes into its page tables crashes, is reported and starts again, as often as it was asked for; its
/// neighbour does not notice.
fn crashed_cells_start_again() -> Result<(), Failed> {
    let outcome = images(&[("crashes", 22, " restart on-failure:2\n"), ("keeps", KEEPS, "")], 1)?;
    for says in [
        "cell crashes, core 0: exception 14 error 0x6 at ",
        "\nnucleus: stack: +0x",
        "cell crashes starts again, for the 2. time\n",
        "nucleus: cell keeps ended with status 0\n",
    ] {
        expect(&outcome, ILL, says)?;
    }
    let crashes = outcome.stdout.matches("nucleus: cell crashes was ended by signal 11\n").count();
    if crashes == 3 { Ok(()) } else { Err(format!("it crashed {crashes} times:\n{}", outcome.stdout).into()) }
}

/// Cells whose first core ends them while the others may still be on their way into it start again all the same.
fn cells_end_as_they_begin() -> Result<(), Failed> {
    let more = " restart on-failure:5\n";
    let outcome = images(&[("short", 26, more), ("shorter", 26, more)], 4)?;
    for cell in ["short", "shorter"] {
        expect(&outcome, ILL, &format!("nucleus: cell {cell} starts again, for the 5. time\n"))?;
        let ends = outcome.stdout.matches(&format!("nucleus: cell {cell} ended with status 1\n")).count();
        if ends != 6 {
            return Err(format!("{cell} ended {ends} times:\n{}", outcome.stdout).into());
        }
    }
    Ok(())
}

/// QEMU's monitor: what it says up to its next prompt.
fn answer(monitor: &mut UnixStream) -> std::io::Result<String> {
    const PROMPT: &[u8] = b"(qemu) ";
    let (mut said, mut byte) = (Vec::new(), [0]);
    while !said.ends_with(PROMPT) {
        monitor.read_exact(&mut byte)?;
        said.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&said).into_owned())
}

/// Has the first processor report a machine check when it spins in ring 3, twice.
fn check_machine(monitor: &Path) -> std::io::Result<()> {
    let mut connected = UnixStream::connect(monitor);
    for _ in 0..500 {
        if connected.is_ok() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
        connected = UnixStream::connect(monitor);
    }
    let mut monitor = connected?;
    monitor.set_read_timeout(Some(Duration::from_secs(20)))?;
    answer(&mut monitor)?;
    for _ in 0..2 {
        let mut last = None;
        loop {
            monitor.write_all(b"info registers\n")?;
            let registers = answer(&mut monitor)?;
            let at = registers.split("RIP=").nth(1).filter(|r| r.contains("CPL=3"));
            let at = at.map(|r| r[..16].to_string());
            if at.is_some() && at == last {
                break;
            }
            last = at;
            std::thread::sleep(Duration::from_millis(50));
        }
        // Bank 0: valid, not corrected, enabled, the context is lost. In progress.
        monitor.write_all(b"mce 0 0 0xb200000000000000 4 0 0\n")?;
        // The second one is the machine's end.
        let _ = answer(&mut monitor);
    }
    Ok(())
}

/// A machine check in ring 3 ends the cell whose core it comes to, as often as it comes, and nobody else.
fn machine_checks_end_a_cell() -> Result<(), Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let cells = [("spins", 27, " restart on-failure:1\n"), ("keeps", KEEPS, "")];
    let mut command = images_command(dir.path(), &cells, 1)?;
    let monitor = dir.path().join("monitor");
    command.arg("-monitor").arg(format!("unix:{},server=on,wait=off", monitor.display()));
    let checks = std::thread::spawn(move || check_machine(&monitor));
    let outcome = run(command, Duration::from_secs(60))?;
    let checked = checks.join().map_err(|_| "the thread at the monitor panicked")?;
    for says in [
        "nucleus: cell spins, core 0: exception 18 error 0x0 at 0x4000",
        "nucleus: cell spins starts again, for the 1. time\n",
        "nucleus: cell keeps ended with status 0\n",
    ] {
        expect(&outcome, ILL, says)
            .map_err(|e| format!("{}\nmonitor: {checked:?}", e.message().unwrap_or("")))?;
    }
    let ends = outcome.stdout.matches("nucleus: cell spins was ended by signal 11\n").count();
    if ends == 2 { Ok(()) } else { Err(format!("{ends} ends, {checked:?}:\n{}", outcome.stdout).into()) }
}

/// A cell that says much, and a port that doesn't take it any more: the cell comes to its end.
fn nobody_reads_the_log() -> Result<(), Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let mut command = images_command(dir.path(), &[("loud", 28, "")], 1)?;
    let mut machine = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let begun = Instant::now();
    let status = loop {
        match machine.try_wait()? {
            Some(status) => break status.code(),
            None if begun.elapsed() > Duration::from_secs(60) => {
                machine.kill()?;
                machine.wait()?;
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let mut said = Vec::new();
    machine.stdout.take().ok_or("it has no output")?.read_to_end(&mut said)?;
    match (status, String::from_utf8_lossy(&said).contains("\nloud: ")) {
        (Some(WELL), true) => Ok(()),
        other => Err(format!("{other:?}, {} bytes after {:?}", said.len(), begun.elapsed()).into()),
    }
}

/// What `atoll` says of a crash has the names of the runtime's functions, and their lines.
fn crashes_are_named() -> Result<(), Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let image = dir.path().join("image");
    compile(&image, 22, 0)?;
    let conf = dir.path().join("machine.conf");
    std::fs::write(
        &conf,
        "cell first\n cores 1\n memory 64M\n run /bin/true\ncell second\n cores 1\n memory 64M\n run /bin/true\n",
    )?;
    let (run_one, boot) =
        (["run", "--platform", "nucleus", "--", "/bin/true"], ["boot", &conf.display().to_string()]);
    for (words, times) in [(&run_one[..], 1), (&boot[..], 2)] {
        let mut command = Command::new(atoll());
        command.args(words).env("ATOLL_RUNTIME", &image);
        let outcome = run(command, Duration::from_secs(60))?;
        for says in
            [": exception 14 error 0x6 at ", " begin at ", "/image.c:", "nucleus: stack: +0x", " _start\n"]
        {
            let said = outcome.stderr.matches(says).count();
            if said != times {
                return Err(format!("{said} times {says:?} instead of {times}:\n{}", outcome.stderr).into());
            }
        }
    }
    Ok(())
}

/// What can't be done is said, with the reason, and nothing is started.
fn refuses() -> Result<(), Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    for (configuration, says) in [
        ("cell a\n cores 1\n memory 64M\n rum x\n", "boot.conf, line 4: this is none of"),
        ("cell a\n cores 3\n memory 64M\n run x\n", "cell a asks for 3 cores, and 2 are left"),
        ("cell a\n cores 1\n memory 3G\n run x\n", "cell a asks for 3072 MiB, and"),
    ] {
        let outcome = boot("microvm", 2, 128, "", Some(&module(dir.path(), configuration)?))?;
        expect(&outcome, ILL, says)?;
    }
    for (processor, says) in
        [("max,-fsgsbase", "this processor has no FSGSBASE"), ("max,-xsave", "this processor has no XSAVE")]
    {
        let mut command = machine("microvm", 2, 128, "", None);
        command.args(["-cpu", processor]);
        let outcome = run(command, Duration::from_secs(60))?;
        expect(&outcome, ILL, &format!("nucleus: can't go on: {says}"))?;
    }
    let no_tar = boot("microvm", 2, 128, "", Some(&dir.path().join("boot.conf")))?;
    expect(&no_tar, ILL, "no tar archive")
}

/// Programs of an archive come with plans: few of their system calls trap.
fn calls_are_rewritten() -> Result<(), Failed> {
    let mut command = Command::new(atoll());
    command.args(["run", "--platform", "nucleus", "--json", "--", "/bin/ls", "-lR", "/"]);
    let outcome = run(command, Duration::from_secs(60))?;
    expect(&outcome, 0, "/usr/lib")?;
    let figure = |name: &str| {
        let (_, behind) = outcome.stderr.split_once(&format!("\"{name}\":"))?;
        behind.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok()
    };
    match (figure("system_calls_rewritten"), figure("system_calls_trapped")) {
        (Some(fast), Some(trapped)) if fast > 500 && trapped * 20 <= fast + trapped => Ok(()),
        _ => Err(outcome.stderr.into()),
    }
}

fn stays_small() -> Result<(), Failed> {
    let mut lines = 0;
    for dir in ["nucleus/src", "nucleus/partition/src", "nucleus/formats/src"] {
        for file in std::fs::read_dir(top().join(dir))? {
            let text = std::fs::read_to_string(file?.path())?;
            let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
            lines += code.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with("//")).count();
        }
    }
    let size = std::fs::metadata(image())?.len();
    if lines > LINES_MAX || size > IMAGE_MAX {
        return Err(format!("{lines} lines of {LINES_MAX}, {size} bytes of {IMAGE_MAX}").into());
    }
    Ok(())
}
