//! Standard input and disks on the nucleus, in QEMU: unmodified programs read what they read on Linux, by pipes and
//! from a root that is an ext4 image; a disk that is damaged, or can't be read, is an error that says so.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use atoll_tests::{Failed, Outcome, Trial, arguments, atoll, compare, run};

const LIMIT: Duration = Duration::from_secs(60);
const PYTHON: &str = "/usr/bin/python3";
const PYTHON_LIBRARY: &str = "/usr/lib/python3.11";

fn main() {
    let mut trials: Vec<Trial> =
        INPUT.iter().map(|(name, script)| Trial::test(format!("input_{name}"), || input(script))).collect();
    trials.push(Trial::test("input_is_polled", input_is_polled));
    trials.push(Trial::test("disk_is_a_root", disk_is_a_root));
    trials.push(Trial::test("disk_runs_programs", disk_runs_programs));
    trials.push(Trial::test("disk_larger_than_memory", disk_larger_than_memory));
    trials.push(Trial::test("disk_by_rate", disk_by_rate));
    trials.push(Trial::test("disk_that_is_damaged", disk_that_is_damaged));
    trials.push(Trial::test("disk_that_can_not_be_read", disk_that_can_not_be_read));
    trials.push(Trial::test("disk_of_a_configuration", disk_of_a_configuration));
    libtest_mimic::run(&arguments(), trials).exit();
}

/// A name, and a script around `$RUN`, which starts what follows, or `$PYTHON`, the same with Python's library.
const INPUT: &[(&str, &str)] = &[
    ("sort", "seq 1 100000 | $RUN sort -rn | md5sum"),
    // More than all buffers on the way hold, to one who reads slowly.
    (
        "large",
        "head -c 8000000 /bin/bash > big; head -c 3000000 /bin/bash >> big; cat big | $RUN sha256sum
         cat big | $RUN bash -c 'read -r -t 1 -d \"\" x < /dev/zero; exec sha256sum'",
    ),
    (
        "python",
        "echo 'print(1+1)' | $PYTHON -; echo 'import sys; print(sys.stdin.read())' | $PYTHON /dev/stdin",
    ),
    ("lines", "seq 1 3000 | $RUN bash -c 'n=0; while read -r l; do n=$((n + l)); done; echo $n'"),
    ("file", "seq 1 5000 > f; $RUN wc -l < f; $RUN sort -rn < f | head -n 2"),
    ("empty", "$RUN wc -c < /dev/null; printf '' | $RUN cat; $RUN cat < /dev/null; echo $?"),
    ("in_pieces", "{ echo one; sleep 0.3; echo two; sleep 0.3; printf three; } | $RUN cat"),
    // Who does not read ends although there is more, and leaves it to others.
    (
        "not_read",
        "yes | $RUN true; echo $?; seq 1 5 | { $RUN true; cat; }; { echo a; sleep 1; } | $RUN head -n 1",
    ),
    ("can_not_be_read", "$RUN cat < / 2> /dev/null; echo $?"),
];

fn bash(script: &str, dir: &Path, command: &str, python: &str) -> Result<Outcome, Failed> {
    let mut bash = Command::new("bash");
    bash.args(["-eu", "-c", script]).current_dir(dir).env("RUN", command).env("PYTHON", python);
    bash.env("PATH", "/usr/bin:/bin").env("LC_ALL", "C.UTF-8");
    Ok(run(bash, LIMIT)?)
}

fn input(script: &str) -> Result<(), Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let linux = bash(script, dir.path(), "", PYTHON)?;
    let run = format!("{} run --platform nucleus", atoll().display());
    let python = format!("{run} --include {PYTHON_LIBRARY} -- {PYTHON}");
    // What scripts start in turn.
    let run = format!("{run} --include /usr/bin/sha256sum --");
    compare(&linux, &bash(script, dir.path(), &run, &python)?)
}

/// Asks in every way whether there is something to read, before there is and after.
const POLL: &str = r#"
import fcntl, os, select, struct, termios
there = lambda: struct.unpack("i", fcntl.ioctl(0, termios.FIONREAD, b"\0" * 4))[0]
p = select.poll(); p.register(0, select.POLLIN)
print("nothing", p.poll(0), p.poll(100), select.select([0], [], [], 0)[0])
print("something", p.poll(20000), there(), os.read(0, 3), p.poll(0), there(), os.read(0, 100), p.poll(0), there())
e = select.epoll(); e.register(0, select.EPOLLIN | select.EPOLLET)
print("more", e.poll(20), os.read(0, 2), os.read(0, 100))
print("end", [b & select.POLLHUP for _, b in p.poll(20000)], os.read(0, 10), os.read(0, 10), there())
os.set_blocking(0, False); print(select.select([0], [], [], 0)[0], os.read(0, 1), os.isatty(0))"#;

/// What is there before anybody has asked.
const EARLY: &str = r#"
import fcntl, os, select, struct, termios
print(select.select([0], [], [], 0)[0], os.read(0, 2))
print(struct.unpack("i", fcntl.ioctl(0, termios.FIONREAD, b"\0" * 4))[0], os.read(0, 100))
for n in range(2000): [n] * n; str(n) * 3"#;

fn input_is_polled() -> Result<(), Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    // Each piece when the program has come so far: machines are of different speed.
    let script = r#"until_it_says() { until grep -q "$1" out; do sleep 0.1; done; }
        : > out; { until_it_says nothing; echo hello; until_it_says something; echo world; until_it_says more; } |
        $PYTHON -u -c "$POLL" > out; cat out; echo early | $PYTHON -c "import time; time.sleep(0.5); $EARLY""#;
    let script = format!("POLL=$(cat <<'END'{POLL}\nEND\n)\nEARLY=$(cat <<'END'{EARLY}\nEND\n)\n{script}");
    let linux = bash(&script, dir.path(), "", PYTHON)?;
    let python =
        format!("{} run --platform nucleus --include {PYTHON_LIBRARY} -- {PYTHON}", atoll().display());
    compare(&linux, &bash(&script, dir.path(), "", &python)?)
}

fn well(outcome: &Outcome) -> Result<(), Failed> {
    if outcome.status == 0 && !outcome.hung {
        return Ok(());
    }
    Err(format!("status {}:\n{}\n{}", outcome.status, outcome.stdout, outcome.stderr).into())
}

/// Runs a script here.
fn prepare(dir: &Path, script: &str) -> Result<(), Failed> {
    let mut bash = Command::new("bash");
    bash.args(["-eu", "-o", "pipefail", "-c", script]).current_dir(dir);
    well(&run(bash, LIMIT)?)
}

/// A root with these programs and their libraries.
fn root(dir: &Path, programs: &[&str]) -> Result<PathBuf, Failed> {
    let root = dir.join("root");
    std::fs::create_dir_all(root.join("usr/bin"))?;
    std::fs::create_dir_all(root.join("usr/lib"))?;
    std::fs::create_dir_all(root.join("usr/lib64"))?;
    std::fs::create_dir(root.join("tmp"))?;
    for (name, target) in [("bin", "usr/bin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")] {
        symlink(target, root.join(name))?;
    }
    let script =
        "do for f in $p $(ldd $p | grep -o '/[^ ]*'); do mkdir -p root$(dirname $f); cp -L $f root$f; done";
    prepare(dir, &format!("for p in {}; {script}; done", programs.join(" ")))?;
    Ok(root)
}

/// Makes an image of the root, with this size.
fn image(dir: &Path, size: &str) -> Result<PathBuf, Failed> {
    prepare(dir, &format!("mkfs.ext4 -q -d root image {size} > /dev/null"))?;
    Ok(dir.join("image"))
}

fn on_disk(image: &Path, options: &str, words: &[&str]) -> Result<Outcome, Failed> {
    let mut command = Command::new(atoll());
    command.args(["run", "--platform", "nucleus"]).args(options.split_whitespace());
    command.arg("--rootfs").arg(image).arg("--").args(words);
    command.env_clear().env("PATH", "/usr/bin:/bin").env("LC_ALL", "C.UTF-8");
    Ok(run(command, LIMIT)?)
}

/// Reads and changes a tree in many ways.
const CHANGES: &str = r#"
import hashlib, mmap, os, sqlite3, sys
os.chdir(sys.argv[1])
md5 = lambda p: hashlib.md5(open(p, "rb").read()).hexdigest()
for p in "large", "sparse", "dir/a", "link": print(p, md5(p), os.stat(p).st_size)
print(len(os.listdir("many")), sorted(os.listdir("dir")), os.readlink("far"))
a, b = os.stat("dir/a"), os.stat("dir/b")
print(a.st_ino == b.st_ino, a.st_nlink, a.st_mtime_ns == b.st_mtime_ns, oct(a.st_mode), a.st_uid)
open("dir/b", "a").write("more"); print(open("dir/a").read())
os.unlink("dir/a"); print(os.stat("dir/b").st_nlink, open("dir/b").read(), os.path.exists("link"))
f = open("large", "r+b"); f.seek(5000); f.write(b"x" * 100000); f.flush(); print(md5("large"))
m = mmap.mmap(f.fileno(), 0); m[7:12] = b"hello"; m[1 << 20:(1 << 20) + 3] = b"abc"; m.flush(); print(md5("large")); m.close()
for size in 1500001, 3 << 20: f.truncate(size); print(md5("large"))
f.close()
print(hashlib.md5(mmap.mmap(os.open("sparse", os.O_RDONLY), 0, prot=mmap.PROT_READ)).hexdigest())
for n in os.listdir("many")[:500]: os.unlink("many/" + n)
try: os.rmdir("many")
except OSError as e: print(e)
os.rename("many", "fewer"); print(os.path.exists("many"), len(os.listdir("fewer")))
os.mkdir("tmp/new"); open("tmp/new/file", "w").write("z" * 1000000); os.link("tmp/new/file", "dir/linked")
os.chmod("dir/linked", 0o4711); print(os.stat("tmp/new/file").st_nlink, oct(os.stat("tmp/new/file").st_mode))
os.rename("dir/b", "large"); print(open("large").read())
db = sqlite3.connect("tmp/t.db"); db.execute("create table t(a)")
db.executemany("insert into t values (?)", [(n,) for n in range(1000)]); db.commit()
print(db.execute("select sum(a) from t").fetchone())"#;

fn disk_is_a_root() -> Result<(), Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let modules =
        format!("{PYTHON_LIBRARY}/lib-dynload/_sqlite3*.so {PYTHON_LIBRARY}/lib-dynload/_hashlib*.so");
    let root = root(dir.path(), &[PYTHON, &modules])?;
    std::fs::write(root.join("changes.py"), CHANGES)?;
    prepare(
        &root,
        &format!(
            "mkdir dir many; echo hi > dir/a; ln dir/a dir/b; ln -s dir/a link; ln -s /{} far
             head -c 3000000 /bin/bash > large; cat /bin/bash >> large; truncate -s 9M sparse; printf end >> sparse
             (cd many; seq 1 1500 | xargs touch); cp -a --parents {PYTHON_LIBRARY} .",
            "x".repeat(200)
        ),
    )?;
    let image = image(dir.path(), "200M")?;
    let before = std::fs::metadata(&image)?.modified()?;
    let cell = on_disk(&image, "", &[PYTHON, "/changes.py", "/"])?;
    let mut command = Command::new(PYTHON);
    command.arg(root.join("changes.py")).arg(&root);
    let linux = run(command, LIMIT)?;
    well(&linux)?;
    compare(&linux, &cell)?;
    if std::fs::metadata(&image)?.modified()? != before {
        return Err("the image was written to".into());
    }
    Ok(())
}

fn disk_runs_programs() -> Result<(), Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let programs = ["/usr/bin/sort", "/usr/bin/gawk", "/bin/bash", "/bin/busybox"];
    let root = root(dir.path(), &programs)?;
    let lines: String = (0..50_000u64).map(|n| format!("{} {}\n", n * 7919 % 100_003, n % 1000)).collect();
    std::fs::write(root.join("data"), lines)?;
    let image = image(dir.path(), "100M")?;
    const SORT: &[&str] = &["/usr/bin/sort", "-n", "-S", "1M", "-T", "/tmp", "data"];
    for (words, cores) in [
        (SORT, 1),
        (SORT, 2),
        (&["/usr/bin/gawk", "{ n[$2] += $1 } END { for (k = 0; k < 9; k++) print k, n[k] }", "data"], 1),
        (&["/bin/bash", "-c", "mapfile -t a < data; echo ${#a[@]} ${a[777]}; echo usr/* data"], 1),
        (&["/bin/busybox", "stat", "-c", "%n %s %a %h %Y", "usr/bin/bash", "data"], 1),
    ] {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).current_dir(&root).env_clear();
        command.env("PATH", "/usr/bin:/bin").env("LC_ALL", "C.UTF-8");
        compare(&run(command, LIMIT)?, &on_disk(&image, &format!("--cores {cores}"), words)?)?;
    }
    Ok(())
}

/// What is read does not stay if there is no room for it.
fn disk_larger_than_memory() -> Result<(), Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let root = root(dir.path(), &["/bin/busybox"])?;
    prepare(
        &root,
        "head -c 1000000 /bin/bash > part; for n in $(seq 1 80); do echo $n; cat part; done > large",
    )?;
    let image = image(dir.path(), "120M")?;
    let cell = on_disk(&image, "--memory 48M", &["/bin/busybox", "md5sum", "large", "large"])?;
    let mut command = Command::new("md5sum");
    command.args(["large", "large"]).current_dir(&root);
    compare(&run(command, LIMIT)?, &cell)
}

/// OK-02, OK-10: who has a limit of what is read from devices reads no faster from a file of a disk.
fn disk_by_rate() -> Result<(), Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let root = root(dir.path(), &["/bin/bash"])?;
    std::fs::write(root.join("large"), ("x".repeat(999) + "\n").repeat(12_000))?;
    let image = image(dir.path(), "60M")?;
    let config = dir.path().join("grid.toml");
    let activity = "[[activity]]\nname = \"gold\"\nmatch = [{ program = \"bash\" }]\n";
    let device = "[resource.device-read]\nmeasure = \"bytes\"\nactivity.gold = { limit = \"4MB/s\" }\n";
    std::fs::write(&config, [activity, device].concat())?;
    // By itself, and without new pages of its own program in between: their faults wait, too.
    const READ: &str =
        "begun=$EPOCHREALTIME; mapfile -t lines < /large; ended=$EPOCHREALTIME; echo $begun $ended";
    let options = format!("--grid {}", config.display());
    let cell = on_disk(&image, &options, &["/bin/bash", "-c", READ])?;
    well(&cell)?;
    let times: Vec<f64> = cell.stdout.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    match times[..] {
        // What may go ahead is what it may have in a fiftieth of a second, and a piece.
        [begun, ended] if ended - begun >= 2.9 => Ok(()),
        _ => Err(format!("it began and ended at {}", cell.stdout).into()),
    }
}

fn says(outcome: &Outcome, status: i32, what: &str) -> Result<(), Failed> {
    if outcome.status == status && !outcome.hung && outcome.stderr.contains(what) {
        return Ok(());
    }
    Err(format!("status {}, and not {what:?}:\n{}\n{}", outcome.status, outcome.stdout, outcome.stderr)
        .into())
}

fn disk_that_is_damaged() -> Result<(), Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let root = root(dir.path(), &["/bin/busybox"])?;
    std::fs::create_dir(root.join("dir"))?;
    std::fs::write(root.join("dir/file"), "content")?;
    let image = image(dir.path(), "20M")?;
    let whole = std::fs::read(&image)?;
    let with = |change: &dyn Fn(&mut Vec<u8>)| -> Result<(), Failed> {
        let mut bytes = whole.clone();
        change(&mut bytes);
        Ok(std::fs::write(&image, bytes)?)
    };
    let ls = |words: &[&str]| on_disk(&image, "", words);
    let list = ["/bin/busybox", "cat", "/dir/file"];
    says(&ls(&list)?, 0, "")?;
    with(&|b| b.truncate(b.len() / 2))?;
    says(&ls(&list)?, 125, "it was cut off")?;
    with(&|b| b[1024 + 0x38] ^= 1)?;
    says(&ls(&list)?, 125, "nor an image with ext4")?;
    with(&|b| b[1024 + 0x20] ^= 1)?;
    says(&ls(&list)?, 125, "its superblock is damaged: its checksum")?;
    // The names in one directory.
    let place = whole.windows(4).position(|w| w == b"file").ok_or("no such name")?;
    with(&|b| b[place] = b'F')?;
    let outcome = ls(&list)?;
    says(&outcome, 1, "Structure needs cleaning")?;
    says(&outcome, 1, "a disk's file system is damaged: directory inode")?;
    std::fs::remove_file(&image)?;
    says(&ls(&list)?, 125, "No such file")?;
    Ok(())
}

/// The device answers a part of it with an error.
fn disk_that_can_not_be_read() -> Result<(), Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let root = root(dir.path(), &["/bin/busybox"])?;
    std::fs::write(root.join("good"), "good\n")?;
    std::fs::write(root.join("bad"), [b"marked".as_slice(), &[b'x'; 300_000]].concat())?;
    let image = image(dir.path(), "20M")?;
    let place = std::fs::read(&image)?.windows(7).position(|w| w == b"markedx").ok_or("no such file")?;
    std::fs::write(
        dir.path().join("machine.conf"),
        "cell disk\n cores 1\n memory 64M\n image image\n run /bin/busybox cat /good /bad /good\n",
    )?;
    let mut build = Command::new(atoll());
    build.args(["image", "build", "machine.conf", "--output", "machine"]).current_dir(dir.path());
    well(&run(build, LIMIT)?)?;
    let errors =
        format!("[inject-error]\nevent = \"read_aio\"\nerrno = \"5\"\nsector = \"{}\"\n", place / 512 + 200);
    std::fs::write(dir.path().join("errors"), errors)?;
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(
        "-M microvm,acpi=off -cpu max -m 256 -nodefaults -display none -serial stdio -no-reboot".split(' '),
    );
    qemu.args(
        "-device isa-debug-exit,iobase=0xf4,iosize=4 -append exit=f4 -kernel machine/nucleus".split(' '),
    );
    qemu.args(["-initrd", "machine/module.tar", "-device", "virtio-blk-device,drive=d"]);
    qemu.args(["-drive", "file=blkdebug:errors:image,format=raw,if=none,id=d,readonly=on,rerror=report"]);
    qemu.current_dir(dir.path());
    let outcome = run(qemu, LIMIT)?;
    for line in
        ["disk: good", "disk: disk0 can't be read at byte", "Input/output error", "disk ended with status 1"]
    {
        if !outcome.stdout.contains(line) {
            return Err(format!("not {line:?}:\n{}\n{}", outcome.stdout, outcome.stderr).into());
        }
    }
    Ok(())
}

/// One cell from a disk, another from an archive.
fn disk_of_a_configuration() -> Result<(), Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let root = root(dir.path(), &["/bin/busybox"])?;
    std::fs::write(root.join("here"), "from a disk\n")?;
    image(dir.path(), "20M")?;
    std::fs::write(
        dir.path().join("machine.conf"),
        "cell disk\n cores 1\n memory 64M\n image image\n run /bin/busybox cat /here\n\
         cell archive\n cores 1\n memory 64M\n run /bin/busybox echo from an archive\n",
    )?;
    let mut boot = Command::new(atoll());
    boot.args(["boot", "machine.conf"]).current_dir(dir.path());
    let outcome = run(boot, LIMIT)?;
    well(&outcome)?;
    if outcome.stdout.contains("disk: from a disk\n") && outcome.stdout.contains("archive: from an archive\n")
    {
        return Ok(());
    }
    Err(format!("{}\n{}", outcome.stdout, outcome.stderr).into())
}
