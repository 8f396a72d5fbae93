//! Disk images of the nucleus, by firmware and boot loader instead of `-kernel`: SeaBIOS and OVMF in QEMU, from a disk
//! and from a CD. Programs do there what they do when QEMU loads the nucleus.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use atoll_tests::{Failed, Outcome, Trial, arguments, atoll, run};

/// Two cells: one that ends well, one that does not.
const CONFIGURATION: &str = "\
cell shell
  cores 1
  memory 64M
  run busybox sh -c 'for n in one two; do echo $n; done; cd /etc/..; echo d* e* p*'
cell perl
  cores 2
  memory 64M
  run perl -e 'print join(\" \", map { $_ * $_ } 1 .. 9), \"\\n\"; exit 7'
";
/// What QEMU's `isa-debug-exit` makes of the nucleus's 1: a cell did not end well.
const ILL: i32 = 3;
/// For one boot; the slowest takes a tenth of it on an idle machine.
const LIMIT: Duration = Duration::from_secs(90);
/// OVMF, by the names that Debian's releases have for it.
const OVMF: [[&str; 2]; 2] = [
    ["/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"],
    ["/usr/share/OVMF/OVMF_CODE.fd", "/usr/share/OVMF/OVMF_VARS.fd"],
];

fn main() {
    let mut trials = Vec::new();
    for (name, machine, uefi, cd) in [
        ("bios_q35_disk", "q35", false, false),
        ("bios_pc_disk", "pc", false, false),
        ("bios_q35_cd", "q35", false, true),
        ("uefi_q35_disk", "q35", true, false),
        ("uefi_q35_cd", "q35", true, true),
    ] {
        trials.push(Trial::test(name, move || boots(machine, uefi, cd)));
    }
    for uefi in [false, true] {
        let name = if uefi { "uefi_code_is_fixed" } else { "bios_code_is_fixed" };
        trials.push(Trial::test(name, move || code_is_fixed(uefi)));
    }
    trials.push(Trial::test("says_what_is_missing", says_what_is_missing));
    trials.push(Trial::test("refuses_bad_options", refuses_bad_options));
    libtest_mimic::run(&arguments(), trials).exit();
}

/// Nucleus, module and disk image, made once; and what they come to without a boot loader.
fn made() -> Result<&'static (PathBuf, Vec<String>), Failed> {
    static MADE: OnceLock<Result<(PathBuf, Vec<String>), String>> = OnceLock::new();
    let make = || -> Result<_, Failed> {
        // It stays: other tests still use it when this one has ended.
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nucleus-disk");
        std::fs::create_dir_all(&dir)?;
        std::fs::write(dir.join("machine.conf"), CONFIGURATION)?;
        let outcome = run(build(&dir, &["--output", "files"]), LIMIT)?;
        if outcome.status != 0 {
            return Err(outcome.stderr.into());
        }
        let mut qemu = qemu("q35");
        qemu.arg("-kernel").arg(dir.join("files/nucleus")).args(["-append", "exit=f4", "-initrd"]);
        qemu.arg(dir.join("files/module.tar"));
        let direct = outcome_of(qemu, "PVH, q35")?;
        if ![
            "shell: one",
            "shell: two",
            "shell: dev etc proc",
            "perl: 1 4 9 16",
            "perl ended with status 7",
            "shell ended with status 0",
        ]
        .iter()
        .all(|part| direct.iter().any(|line| line.contains(part)))
        {
            return Err(format!("these programs do something else: {direct:?}").into());
        }
        Ok((dir.join("disk.img"), direct))
    };
    let made = MADE.get_or_init(|| make().map_err(|e| e.message().unwrap_or("it failed").to_string()));
    made.as_ref().map_err(|e| e.into())
}

/// `atoll image build` with a disk image.
fn build(dir: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(atoll());
    command.current_dir(dir).args(["image", "build", "machine.conf", "--disk", "disk.img"]);
    command.args(["--append", "exit=f4"]).args(options);
    command
}

fn qemu(machine: &str) -> Command {
    let mut command = Command::new("qemu-system-x86_64");
    command.args(["-accel", "tcg,thread=multi", "-nodefaults", "-no-user-config", "-no-reboot"]);
    command.args(["-display", "none", "-serial", "stdio", "-device", "isa-debug-exit,iobase=0xf4,iosize=4"]);
    command.args(["-M", machine, "-cpu", "max", "-smp", "4", "-m", "512"]);
    command
}

/// Boots, and what the cells said and how they ended, in an order of our own: cells run side by side.
fn outcome_of(command: Command, what: &str) -> Result<Vec<String>, Failed> {
    let begun = Instant::now();
    let Outcome { status, stdout, stderr, hung } = run(command, LIMIT)?;
    println!("{what}: {:.1} s", begun.elapsed().as_secs_f64());
    if hung || status != ILL {
        let hung = if hung { " (hung)" } else { "" };
        return Err(format!("status {status} instead of {ILL}{hung}:\n{stdout}{stderr}").into());
    }
    let of_cell = |l: &&str| ["shell: ", "perl: "].iter().any(|name| l.starts_with(name));
    let is_end = |l: &&str| l.starts_with("nucleus: cell ") && l.contains(" ended with status ");
    let mut lines: Vec<String> =
        stdout.lines().filter(|l| of_cell(l) || is_end(l)).map(String::from).collect();
    // What each cell says is in its order, and then how each ended.
    lines.sort_by_key(|l| {
        if is_end(&l.as_str()) { l.clone() } else { l.split(' ').next().unwrap_or_default().into() }
    });
    Ok(lines)
}

fn boots(machine: &str, uefi: bool, cd: bool) -> Result<(), Failed> {
    let (disk, direct) = made()?;
    let mut qemu = qemu(machine);
    if uefi {
        add_uefi(&mut qemu)?;
    }
    if cd {
        qemu.arg("-cdrom").arg(disk);
    } else {
        qemu.arg("-drive").arg(format!("format=raw,snapshot=on,file={}", disk.display()));
    }
    let firmware = if uefi { "UEFI" } else { "BIOS" };
    let found = outcome_of(qemu, &format!("{firmware}, {machine}, {}", if cd { "CD" } else { "disk" }))?;
    if found != *direct {
        return Err(format!("directly: {direct:#?}\nby the image: {found:#?}").into());
    }
    Ok(())
}

/// Firmware with UEFI instead of the BIOS.
fn add_uefi(qemu: &mut Command) -> Result<(), Failed> {
    let Some([code, variables]) = OVMF.into_iter().find(|[code, _]| Path::new(code).exists()) else {
        return Err("UEFI for QEMU is missing: apt-get install ovmf".into());
    };
    let flash = "if=pflash,format=raw,unit";
    qemu.arg("-drive").arg(format!("{flash}=0,readonly=on,file={code}"));
    qemu.arg("-drive").arg(format!("{flash}=1,snapshot=on,file={variables}"));
    Ok(())
}

/// However the nucleus was entered, its code can't be written, nor by way of the direct map.
fn code_is_fixed(uefi: bool) -> Result<(), Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    std::fs::write(dir.path().join("machine.conf"), CONFIGURATION)?;
    let mut command = Command::new(atoll());
    command.current_dir(dir.path()).args(["image", "build", "machine.conf", "--disk", "disk.img"]);
    command.args(["--append", "exit=f4 crash=write-code-direct"]);
    let made = run(command, LIMIT)?;
    if made.status != 0 {
        return Err(made.stderr.into());
    }
    let mut qemu = qemu("q35");
    if uefi {
        add_uefi(&mut qemu)?;
    }
    qemu.arg("-drive").arg(format!("format=raw,file={}", dir.path().join("disk.img").display()));
    let outcome = run(qemu, LIMIT)?;
    // A page fault: present, write.
    if outcome.hung || outcome.status != ILL || !outcome.stdout.contains("exception 14 error 0x3") {
        return Err(format!("status {}:\n{}{}", outcome.status, outcome.stdout, outcome.stderr).into());
    }
    Ok(())
}

/// Without its tools, no image, and a word on how to get them.
fn says_what_is_missing() -> Result<(), Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let mut command = build(dir.path(), &[]);
    // Nor is there a path to find programs by.
    let text =
        CONFIGURATION.replace("run busybox", "run /bin/busybox").replace("run perl", "run /usr/bin/perl");
    std::fs::write(dir.path().join("machine.conf"), text)?;
    command.env("PATH", "/nowhere");
    let outcome = run(command, LIMIT)?;
    let says = ["grub-mkrescue, xorriso, mformat", "apt-get install grub-common"];
    if outcome.status != 125 || says.iter().any(|s| !outcome.stderr.contains(s)) {
        return Err(format!("status {}: {}", outcome.status, outcome.stderr).into());
    }
    Ok(())
}

fn refuses_bad_options() -> Result<(), Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    std::fs::write(dir.path().join("machine.conf"), CONFIGURATION)?;
    let mut command = Command::new(atoll());
    command.current_dir(dir.path()).args(["image", "build", "machine.conf", "--disk", "disk.img"]);
    command.args(["--append", "a; b"]);
    let outcome = run(command, LIMIT)?;
    if outcome.status != 125 || !outcome.stderr.contains("and not ';'") {
        return Err(format!("status {}: {}", outcome.status, outcome.stderr).into());
    }
    Ok(())
}
