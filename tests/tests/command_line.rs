//! `atoll`'s command line: what it refuses, what it passes on, and how it ends.
#![allow(unsafe_code, reason = "asks for an id, and sends signals")]

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::time::Duration;

use atoll_tests::{Failed, Outcome, Trial, arguments, atoll, run};

fn main() {
    let trials = vec![
        Trial::test("what_is_wrong_is_said", what_is_wrong_is_said),
        Trial::test("output_that_is_lost_is_an_error", output_that_is_lost_is_an_error),
        Trial::test("environment", environment),
        Trial::test("what_is_inherited", what_is_inherited),
        Trial::test("signals", signals),
        Trial::test("one_file_as_a_volume", one_file_as_a_volume),
        Trial::test("sockets_of_volumes", sockets_of_volumes),
        Trial::test("a_lease_is_given_back", a_lease_is_given_back),
        Trial::test("directories_in_memory", directories_in_memory),
        Trial::test("a_name_twice", a_name_twice),
        Trial::test("a_root_is_left_as_it_was", a_root_is_left_as_it_was),
        Trial::test("what_can_be_written", what_can_be_written),
        Trial::test("the_name_of_the_host", the_name_of_the_host),
        Trial::test("calls_that_are_not_there", calls_that_are_not_there),
        Trial::test("no_thread_to_be_had", no_thread_to_be_had),
        Trial::test("root_in_a_container", root_in_a_container),
        Trial::test("as_root_and_as_nobody", as_root_and_as_nobody),
        Trial::test("long_files", long_files),
        Trial::test("a_job_of_a_shell", a_job_of_a_shell),
    ];
    libtest_mimic::run(&arguments(), trials).exit();
}

type Done = Result<(), Failed>;

fn ran(args: &[&str]) -> Result<Outcome, Failed> {
    let mut command = Command::new(atoll());
    command.args(args);
    Ok(run(command, Duration::from_secs(60))?)
}

fn is_root() -> bool {
    // SAFETY: asks for an id.
    unsafe { libc::geteuid() == 0 }
}

/// Exit status, and a part of what is said.
fn what_is_wrong_is_said() -> Done {
    let cases: &[(&[&str], i32, &str)] = &[
        (&["run", "--corse", "2", "--", "true"], 125, "--cores"),
        (&["run", "--cores", "0", "--", "true"], 125, "a cell can have 1 to 256"),
        (&["run", "--cores", "300", "--", "true"], 125, "a cell can have 1 to 256"),
        (&["run", "--platform", "nucleus", "--cores", "65", "--", "true"], 125, "a cell can have 1 to 64"),
        (&["run", "--memory", "1.5G", "--", "true"], 125, "write for example 512M"),
        (&["run", "--name", "a b", "--", "true"], 125, "letters, digits"),
        (
            &["run", "--counter", "cache-mises", "--", "true"],
            125,
            "there is no such event; there are cache-misses,",
        ),
        (&["run", "--env", "=x", "--", "true"], 125, "NAME=VALUE"),
        (&["run", "--user", "0:", "--", "true"], 125, "UID:GID"),
        (
            &["run", "--volume", "/nowhere:/mnt", "--", "true"],
            125,
            "--volume /nowhere:/mnt: opening /nowhere",
        ),
        (
            &["run", "--volume", "/etc:/mnt", "--volume", "/usr:/mnt", "--", "true"],
            125,
            "another volume is on /mnt",
        ),
        (&["run", "--volume", "/dev/null:/mnt", "--", "true"], 125, "no directory, file or socket"),
        (&["run", "--tmpfs", "/run", "--volume", "/etc:/run", "--", "true"], 125, "a --tmpfs is on /run"),
        (&["run", "--tmpfs", "/run:mode=8", "--", "true"], 125, "not a mode"),
        (&["run", "--tmpfs", "/run:noexec", "--", "true"], 125, "not one of size="),
        (&["run", "--rootfs", "/etc/passwd", "--", "true"], 125, "--rootfs: /etc/passwd is not a directory"),
        (&["run", "--", "/etc/passwd"], 126, "not executable"),
        (&["run", "--", "/etc"], 126, "is a directory"),
        (&["run", "--", "/nowhere"], 127, "not found in the cell"),
        // What is behind the program is its own.
        (&["run", "--cores", "1", "sh", "-c", "exit 7"], 7, ""),
        (&["boot"], 125, "<CONFIG>"),
        (&["ps"], 2, "<CELL>"),
        (&["ps", "there-is-none"], 1, "there is no cell"),
        (&["resize", "x", "--cores", "2", "--force"], 2, "--force"),
    ];
    for (args, status, said) in cases {
        let outcome = ran(args)?;
        if outcome.status != *status || !outcome.stderr.contains(said) {
            return Err(format!("{args:?}: status {}: {}", outcome.status, outcome.stderr).into());
        }
    }
    Ok(())
}

/// A full disk behind standard output is told; a reader that has gone is not.
fn output_that_is_lost_is_an_error() -> Done {
    for args in [&["ls"][..], &["ls", "--json"], &["syscalls", "read"]] {
        let lost = Command::new(atoll()).args(args).stdout(File::create("/dev/full")?).output()?;
        if lost.status.code() != Some(1) || !String::from_utf8_lossy(&lost.stderr).contains("No space left") {
            return Err(format!("{args:?} > /dev/full: {lost:?}").into());
        }
        let (read, write) = std::io::pipe()?;
        drop(read);
        let unread = Command::new(atoll()).args(args).stdout(write).output()?;
        if !unread.status.success() || !unread.stderr.is_empty() {
            return Err(format!("{args:?} | true: {unread:?}").into());
        }
    }
    Ok(())
}

/// HOME is that of whom the program runs as.
fn environment() -> Done {
    let home = |options: &[&str]| -> Result<String, Failed> {
        let args = [&["run", "--cores", "1"], options, &["--", "sh", "-c", "echo \"$HOME\""]].concat();
        let Outcome { status: 0, stdout, .. } = ran(&args)? else { return Err(format!("{args:?}").into()) };
        Ok(stdout.trim().into())
    };
    let own = std::env::var("HOME").unwrap_or_default();
    let mut wanted =
        vec![(vec![], &own[..]), (vec!["--env", "HOME=/x"], "/x"), (vec!["--env", "HOME"], &own[..])];
    if is_root() {
        wanted.push((vec!["--env", "A=1"], "/root"));
        // Debian's base-passwd has it.
        wanted.push((vec!["--user", "games"], "/usr/games"));
        wanted.push((vec!["--user", "65533:65533"], "/"));
        wanted.push((vec!["--user", "games", "--env", "HOME=/x"], "/x"));
    }
    for (options, home_is) in wanted {
        let found = home(&options)?;
        if found != home_is {
            return Err(format!("{options:?}: HOME is {found}, not {home_is}").into());
        }
    }
    Ok(())
}

/// As by any program that starts another.
fn what_is_inherited() -> Done {
    const INSIDE: &str = "nice; cat /proc/self/oom_score_adj; umask; ulimit -n";
    let script = format!(
        "umask 27; ulimit -n 500; echo 50 >/proc/self/oom_score_adj; nice -n 3 sh -c '{INSIDE}'
         nice -n 3 {} run --cores 1 -- sh -c '{INSIDE}'",
        atoll().display()
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script]);
    let Outcome { stdout, stderr, .. } = run(command, Duration::from_secs(60))?;
    let lines: Vec<&str> = stdout.lines().collect();
    let [linux, cell] = [0, 4].map(|from| lines.get(from..from + 4));
    if linux.is_some() && linux == cell { Ok(()) } else { Err(format!("{stdout}{stderr}").into()) }
}

/// Every signal that a process can handle and that does not tell of its own faults or children.
fn signals() -> Done {
    const SCRIPT: &str = "
import signal, time
left = set(range(1, 32)) - {9, 19, 17, 11, 7, 8, 4, 31} | set(range(34, 65))
def got(number, frame):
    left.discard(number)
    print(number, flush=True)
for number in left:
    signal.signal(number, got)
print('ready', flush=True)
while left:
    time.sleep(0.05)
";
    let mut child = Command::new(atoll())
        .args(["run", "--cores", "1", "--", "/usr/bin/python3", "-c", SCRIPT])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
    let mut next = || lines.next().transpose();
    if next()?.as_deref() != Some("ready") {
        return Err("the program did not begin".into());
    }
    let all = (1..32).filter(|n| ![9, 19, 17, 11, 7, 8, 4, 31].contains(n)).chain(34..65);
    for number in all {
        // SAFETY: to a process of ours.
        unsafe { libc::kill(child.id() as i32, number) };
        let line = next()?;
        if line != Some(number.to_string()) {
            child.kill()?;
            return Err(format!("signal {number}: {line:?}").into());
        }
    }
    let status = child.wait()?;
    if status.success() { Ok(()) } else { Err(format!("{status}").into()) }
}

/// What is in the same directory isn't the cell's.
fn one_file_as_a_volume() -> Done {
    const SCRIPT: &str = "
cat /etc/app/conf; echo more >>/etc/app/conf; cat /etc/app/conf
ls -A /etc/app; cat /etc/app/conf/x /etc/app/other; rm /etc/app/conf
stat -c %F /etc/app/conf; echo x >/etc/hostname; cat /etc/hostname
";
    let dir = tempfile::tempdir()?;
    for (name, text) in [("conf", "one\n"), ("other", "secret\n"), ("read", "only\n")] {
        std::fs::write(dir.path().join(name), text)?;
    }
    let top = dir.path().display();
    let (conf, read) = (format!("{top}/conf:/etc/app/conf"), format!("{top}/read:/etc/hostname:ro"));
    let Outcome { stdout, stderr, .. } =
        ran(&["run", "--cores", "1", "--volume", &conf, "--volume", &read, "--", "sh", "-c", SCRIPT])?;
    let right = "one\none\nmore\nconf\nregular file\nonly\n";
    let refused = [
        "conf/x: Not a directory",
        "other: No such file",
        "Device or resource busy",
        "Read-only file system",
    ];
    if stdout != right || refused.iter().any(|why| !stderr.contains(why)) {
        return Err(format!("{stdout}{stderr}").into());
    }
    let now = std::fs::read_to_string(dir.path().join("conf"))?;
    if now == "one\nmore\n" { Ok(()) } else { Err(now.into()) }
}

/// Services of the host are reached by their Unix sockets if a volume has these, and else not, whatever leads to them.
fn sockets_of_volumes() -> Done {
    const SCRIPT: &str = "
import os, socket, sys
for path in sys.argv[1:]:
    try:
        s = socket.socket(socket.AF_UNIX)
        s.connect(path)
        print(s.makefile().read())
    except OSError as e:
        print(e.strerror)
try:
    socket.socket(socket.AF_UNIX).bind('/srv/read/new')
except OSError as e:
    print(e.strerror)
";
    // Not in /tmp, of which a cell has its own.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let top = dir.path().display();
    for name in ["volume", "read"] {
        std::fs::create_dir(dir.path().join(name))?;
    }
    for name in ["volume/in", "alone", "read/in", "outside"] {
        let listener = UnixListener::bind(dir.path().join(name))?;
        std::thread::spawn(move || {
            // Who is never asked waits until the tests are over.
            listener.accept().and_then(|(mut stream, _)| write!(stream, "from {name}"))
        });
    }
    std::os::unix::fs::symlink("../outside", dir.path().join("volume/link"))?;
    std::os::unix::fs::symlink(dir.path().join("outside"), dir.path().join("volume/far"))?;
    let outside = format!("{top}/outside");
    let mut arguments = vec!["run".to_owned()];
    for volume in ["volume:/v", "alone:/srv/alone", "read:/srv/read:ro"] {
        arguments.extend(["--volume".to_owned(), format!("{top}/{volume}")]);
    }
    let asked = ["/v/in", "/srv/alone", "/srv/read/in", "/v/link", "/v/far", &outside];
    arguments.extend(["--", "/usr/bin/python3", "-c", SCRIPT].iter().chain(&asked).map(|a| (*a).to_owned()));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let Outcome { stdout, stderr, .. } = ran(&arguments)?;
    let right = "from volume/in\nfrom alone\nfrom read/in\nNo such file or directory\nConnection refused\n\
                 Connection refused\nRead-only file system\n";
    if stdout == right { Ok(()) } else { Err(format!("{stdout}{stderr}").into()) }
}

/// A cell that locks a file of a volume often has a lease of it, until somebody else opens the file: he finds the locks.
fn a_lease_is_given_back() -> Done {
    const SCRIPT: &str = "
import fcntl, os, sys
f = os.open('/v/file', os.O_RDWR | os.O_CREAT)
for i in range(50):
    fcntl.flock(f, fcntl.LOCK_EX)
    fcntl.flock(f, fcntl.LOCK_UN)
fcntl.flock(f, fcntl.LOCK_EX)
print('locked', flush=True)
sys.stdin.readline()
";
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let volume = format!("{}:/v", dir.path().display());
    let mut cell = Command::new(atoll())
        .args(["run", "--volume", &volume, "--", "/usr/bin/python3", "-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = String::new();
    BufReader::new(cell.stdout.take().expect("it is a pipe")).read_line(&mut said)?;
    let file = dir.path().join("file");
    let inode = format!(":{} ", std::fs::metadata(&file)?.ino());
    let kinds = || -> Result<Vec<String>, Failed> {
        let locks = std::fs::read_to_string("/proc/locks")?;
        let of_it = locks.lines().filter(|line| line.contains(&inode));
        Ok(of_it.filter_map(|line| line.split_whitespace().nth(1)).map(str::to_owned).collect())
    };
    let before = kinds()?;
    let opened = File::open(&file)?;
    let after = kinds()?;
    let locked = opened.try_lock_shared();
    cell.stdin.take();
    let status = cell.wait()?;
    let free = opened.try_lock_shared();
    // A file system may have none, or say that its files are of another one.
    let (top, found) = (std::fs::metadata(dir.path())?, std::fs::metadata(&file)?);
    let probe = File::create(dir.path().join("probe"))?;
    // SAFETY: a descriptor of this process.
    let has_leases = unsafe { libc::fcntl(probe.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) } == 0;
    let before_is = if has_leases && top.dev() == found.dev() { "LEASE" } else { "FLOCK" };
    let given_back = before == [before_is] && after == ["FLOCK"];
    if said == "locked\n" && given_back && locked.is_err() && status.success() && free.is_ok() {
        return Ok(());
    }
    Err(format!("{said:?} {before:?} {after:?} {locked:?} {status} {free:?}").into())
}

/// `--tmpfs`: over what the host has there, and in place of the cell's own.
fn directories_in_memory() -> Done {
    const SCRIPT: &str = "
stat -c '%n %a %u %g' /run /tmp /srv/there
ls -A /run; echo pid >/run/pid; cat /run/pid; echo x >/srv/there/x
head -c 3000000 /dev/zero >/tmp/f; stat -c %s /tmp/f
rm /tmp/f; head -c 600000 /dev/zero >/tmp/a; head -c 600000 /dev/zero >/tmp/b; stat -c %s /tmp/a; rm /tmp/a
test $(stat -c %s /tmp/b) -lt 500000 && head -c 300000 /dev/zero >>/tmp/b && stat -c %s /tmp/b | sed 's/.....$//'
";
    let there = "/srv/there:uid=12,gid=34,ro";
    let Outcome { stdout, stderr, .. } = ran(&[
        "run",
        "--tmpfs",
        "/run",
        "--tmpfs",
        "/tmp:size=1M,mode=755",
        "--tmpfs",
        there,
        "--",
        "sh",
        "-c",
        SCRIPT,
    ])?;
    let right = "/run 1777 0 0\n/tmp 755 0 0\n/srv/there 1777 12 34\npid\n1048576\n600000\n6\n";
    let refused = ["/srv/there/x: Read-only file system", "No space left on device"];
    if stdout != right || refused.iter().any(|why| !stderr.contains(why)) {
        return Err(format!("{stdout}{stderr}").into());
    }
    if std::path::Path::new("/run/pid").exists() { Err("it is on the host".into()) } else { Ok(()) }
}

/// The second cell of a name goes by another, and says so.
fn a_name_twice() -> Done {
    let name = format!("twice-{}", std::process::id());
    let mut first = Command::new(atoll())
        .args(["run", "--cores", "1", "--name", &name, "--", "sh", "-c", "echo on; exec cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    first.stdout.as_mut().ok_or("no output")?.read_exact(&mut [0; 3])?;
    // It gets its name beside the program's beginning.
    let there = || ran(&["ls"]).map(|ls| ls.stdout.contains(&name));
    for _ in 0..100 {
        if there()? {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let second = ran(&["run", "--cores", "1", "--name", &name, "--", "sleep", "0.5"])?;
    drop(first.stdin.take());
    first.wait()?;
    let right = format!("atoll: a cell {name:?} runs already: `atoll ls` shows this one as {name}-");
    if second.stderr.starts_with(&right) { Ok(()) } else { Err(second.stderr.into()) }
}

/// Where the cell has file systems of its own, nothing is made in a directory of the host.
fn a_root_is_left_as_it_was() -> Done {
    let dir = tempfile::tempdir()?;
    std::fs::create_dir(dir.path().join("bin"))?;
    std::fs::copy("/bin/busybox", dir.path().join("bin/busybox"))?;
    let root = dir.path().display().to_string();
    let script = "echo x >/var/tmp/x && cat /var/tmp/x";
    let outcome = ran(&["run", "--cores", "1", "--rootfs", &root, "--", "/bin/busybox", "sh", "-c", script])?;
    let mut left: Vec<_> = std::fs::read_dir(&dir)?.flatten().map(|e| e.file_name()).collect();
    left.sort();
    if outcome.stdout != "x\n" || left != ["bin"] {
        return Err(format!("{left:?}: {}{}", outcome.stdout, outcome.stderr).into());
    }
    Ok(())
}

/// The host's own root is read-only but for what the cell has of its own there, a directory as its root is not.
fn what_can_be_written() -> Done {
    let name = format!("atoll-written-{}", std::process::id());
    let script = format!(
        "for d in /etc /usr/bin / $HOME; do echo x >$d/{name}; rm -r $d/none; mkdir $d/{name}; done 2>&1 | grep -vc 'Read-only\\|none'
         for d in /tmp /var/tmp /dev/shm; do echo x >$d/{name} && cat $d/{name}; done"
    );
    let outcome = ran(&["run", "--cores", "1", "--", "sh", "-c", &script])?;
    let all = ["/etc", "/usr/bin", "/", "/tmp", "/var/tmp", "/dev/shm"];
    let there: Vec<_> = all.iter().filter(|dir| std::path::Path::new(dir).join(&name).exists()).collect();
    if outcome.stdout != "0\nx\nx\nx\n" || !there.is_empty() {
        return Err(format!("on the host in {there:?}; {}{}", outcome.stdout, outcome.stderr).into());
    }
    let dir = tempfile::tempdir()?;
    std::fs::create_dir_all(dir.path().join("etc"))?;
    std::fs::copy("/bin/busybox", dir.path().join("busybox"))?;
    let root = dir.path().display().to_string();
    let script =
        "echo own >/etc/own && echo x >/tmp/x && /busybox cat /etc/own /tmp/x && /busybox rm /busybox";
    let outcome = ran(&["run", "--cores", "1", "--rootfs", &root, "--", "/busybox", "sh", "-c", script])?;
    let own = std::fs::read_to_string(dir.path().join("etc/own")).unwrap_or_default();
    let left = ["busybox", "tmp/x"].map(|file| dir.path().join(file).exists());
    if outcome.stdout != "own\nx\n" || own != "own\n" || left != [false; 2] {
        return Err(format!("{own:?} {left:?}: {}{}", outcome.stdout, outcome.stderr).into());
    }
    Ok(())
}

/// The cell's, or the host's own, whose root it has.
fn the_name_of_the_host() -> Done {
    let dir = tempfile::tempdir()?;
    std::fs::copy("/bin/busybox", dir.path().join("busybox"))?;
    let root = dir.path().display().to_string();
    let own = std::fs::read_to_string("/proc/sys/kernel/hostname")?;
    let busybox = ["/busybox", "uname", "-n"];
    let cases: [(&[&str], &[&str], &str); 3] = [
        (&["--name", "web-1"], &["sh", "-c", "uname -n; cat /proc/sys/kernel/hostname"], "web-1\nweb-1\n"),
        (&[], &["uname", "-n"], &own),
        (&["--rootfs", &root], &busybox, "atoll\n"),
    ];
    for (options, program, right) in cases {
        let outcome = ran(&[&["run", "--cores", "1"], options, &["--"], program].concat())?;
        if outcome.stdout != right {
            return Err(format!("{options:?}: {}{}", outcome.stdout, outcome.stderr).into());
        }
    }
    Ok(())
}

/// Each gives its error every time, and what a cell can't do at all one line, which names it.
fn calls_that_are_not_there() -> Done {
    // uselib, futex_wake, one that nobody has, and io_uring_setup, which a kernel may be built without.
    const SCRIPT: &str = "
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for number in 134, 454, 999, 425:
    said = {(libc.syscall(number, 0, 0, 0, 0), ctypes.get_errno()) for _ in range(10000)}
    print(number, said)
";
    let outcome = ran(&["run", "--cores", "1", "--", "python3", "-c", SCRIPT])?;
    let errors: String = ["134", "454", "999", "425"].map(|n| format!("{n} {{(-1, 38)}}\n")).concat();
    let lines = [("uselib", 134), ("futex_wake", 454), ("?", 999)]
        .map(|(name, n)| format!("atoll: python3: system call {name} ({n}) is not supported: ENOSYS\n"));
    if outcome.stdout != errors || outcome.stderr != lines.concat() {
        return Err(format!("{}{}", outcome.stdout, outcome.stderr).into());
    }
    Ok(())
}

/// A host that refuses threads is told of, at whichever of them that is; the supervisor does not crash.
fn no_thread_to_be_had() -> Done {
    if !is_root() {
        // Who is no root has other processes that count, too.
        return Ok(());
    }
    // Not every shell can set this limit; who is over it may not even begin a program (execve(2), EAGAIN): 126.
    // A user that has nothing else.
    const USER: &str = "4242";
    // Those of the cells before may be counted for a moment after these have ended: the last number is enough for any.
    for most in (1..32).chain([1000]) {
        let limit =
            format!("ulimit -u {most}; exec setpriv --reuid {USER} --regid {USER} --clear-groups \"$@\"");
        let mut command = Command::new("/bin/bash");
        command.args(["-c", &limit, "bash"]).arg(atoll()).args(["run", "--cores", "1", "--", "true"]);
        command.env("HOME", "/nonexistent");
        let Outcome { status, stderr, hung, .. } = run(command, Duration::from_secs(60))?;
        if hung
            || !matches!(status, 0 | 125 | 126)
            || most == 1 && status == 0
            || most == 1000 && status != 0
            || stderr.contains("panicked")
        {
            return Err(format!("{most} processes: status {status}, hung: {hung}: {stderr}").into());
        }
    }
    // A program that forks as long as it can is told when it can't.
    let forks = "import os, time\n\
                 n = 0\n\
                 try:\n \
                  while n < 1000:\n  \
                   os.fork() or (time.sleep(60), os._exit(0))\n  \
                   n += 1\n\
                 except BlockingIOError: print('no more')";
    for most in [26, 30, 36] {
        let limit =
            format!("ulimit -u {most}; exec setpriv --reuid {USER} --regid {USER} --clear-groups \"$@\"");
        let mut command = Command::new("/bin/bash");
        command.args(["-c", &limit, "bash"]).arg(atoll());
        command.args(["run", "--cores", "1", "--", "python3", "-c", forks]).env("HOME", "/nonexistent");
        let Outcome { status, stdout, stderr, hung } = run(command, Duration::from_secs(60))?;
        if hung || !matches!(status, 125 | 126) && stdout != "no more\n" {
            return Err(
                format!("forks, {most} processes: status {status}, hung: {hung}: {stdout}{stderr}").into()
            );
        }
    }
    // The limit doesn't hold for root's supervisor, but for the cell's own process.
    let mut command = Command::new("/bin/bash");
    command
        .args(["-c", "ulimit -u 1; exec \"$@\"", "bash"])
        .arg(atoll())
        .args(["run", "--cores", "1", "--", "true"]);
    let Outcome { status, stderr, hung, .. } = run(command, Duration::from_secs(60))?;
    if hung || status != 125 || !stderr.contains("ulimit -u") {
        return Err(format!("root, one process: status {status}, hung: {hung}: {stderr}").into());
    }
    Ok(())
}

/// Root in a container may not make namespaces, as a rule: a cell goes without, and says so. Root that can't become anybody else starts
/// none.
fn root_in_a_container() -> Done {
    if !is_root() {
        return Ok(());
    }
    // As Docker starts one.
    const HAS: &str = "chown dac_override fowner fsetid kill setgid setuid setpcap net_bind_service net_raw \
                       sys_chroot mknod audit_write setfcap";
    let some = HAS.split(' ').fold(String::from("-all"), |all, one| all + ",+" + one);
    for (has, works) in [(&some[..], true), ("-all", false)] {
        let mut command = Command::new("setpriv");
        command.args([&format!("--bounding-set={has}"), "--inh-caps=-all"]).arg(atoll());
        command.args(["run", "--", "sh", "-c", "id -u; echo x | cat > /tmp/x; cat /tmp/x"]);
        let Outcome { status, stdout, stderr, .. } = run(command, Duration::from_secs(60))?;
        let (wanted, said) = if works { (0, "namespaces of its own") } else { (125, "CAP_SETUID") };
        if status != wanted || works != (stdout == "0\nx\n") || !stderr.contains(said) {
            return Err(format!("with {has}: status {status}: {stdout}{stderr}").into());
        }
    }
    Ok(())
}

/// As root cores are pinned and memory comes in huge pages; an ordinary user is told in one line what the cell goes without.
fn as_root_and_as_nobody() -> Done {
    if !is_root() {
        return Ok(());
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "4242", "--regid", "4242", "--clear-groups"]).arg(atoll());
    command.args(["run", "--cores", "1", "--", "echo", "works"]).env("HOME", "/nonexistent");
    let Outcome { status, stdout, stderr, .. } = run(command, Duration::from_secs(60))?;
    if status != 0
        || stdout != "works\n"
        || stderr.lines().count() != 1
        || !stderr.contains("processors of its own")
    {
        return Err(format!("an ordinary user: status {status}: {stdout}{stderr}").into());
    }
    let mut cell = Command::new(atoll())
        .args(["run", "--cores", "1", "--", "sh", "-c", "echo works; read line"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut said = String::new();
    BufReader::new(cell.stdout.take().expect("it is a pipe")).read_line(&mut said)?;
    let field = |text: &str, name: &str| {
        text.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
    };
    // One of the cell's processes is nothing but its cores.
    let (mut below, mut huge, mut pinned) = (vec![cell.id()], 0, false);
    while let Some(process) = below.pop() {
        let of = |path: &str| std::fs::read_to_string(format!("/proc/{process}/{path}"));
        let size = field(&of("smaps_rollup")?, "ShmemPmdMapped:");
        huge += size.and_then(|size| size.strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or(0);
        let mut on_one = true;
        for task in std::fs::read_dir(format!("/proc/{process}/task"))? {
            let task = format!("task/{}", task?.file_name().display());
            let children = of(&format!("{task}/children"))?;
            below.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
            let cpus = field(&of(&format!("{task}/status"))?, "Cpus_allowed_list:");
            on_one &= cpus.is_some_and(|cpus| cpus.parse::<u32>().is_ok());
        }
        pinned |= on_one;
    }
    cell.stdin.take();
    let ended = cell.wait_with_output()?;
    let said_more = String::from_utf8_lossy(&ended.stderr);
    // Where the kernel gives shared memory no huge pages the line says so.
    let told = said_more.contains("huge pages");
    if said == "works\n" && pinned && (huge > 0) != told {
        return Ok(());
    }
    Err(format!("root: {said}{said_more}pinned: {pinned}, {huge} kB in huge pages").into())
}

/// A limit of what programs write is the program's, and not that of the cell's memory, unless it can't be raised.
fn long_files() -> Done {
    let outcome = |limit: &str| -> Result<Outcome, Failed> {
        let mut command = Command::new("/bin/bash");
        let script = format!("ulimit {limit} 8; exec \"$@\"");
        command.args(["-c", &script, "bash"]).arg(atoll()).args(["run", "--", "bash", "-c"]);
        command.arg("ulimit -f; trap '' XFSZ; head -c 10000 /dev/zero > /tmp/x; stat -c %s /tmp/x");
        Ok(run(command, Duration::from_secs(60))?)
    };
    let soft = outcome("-Sf")?;
    if soft.stdout != "8\n8192\n" {
        return Err(format!("soft limit: {}{}", soft.stdout, soft.stderr).into());
    }
    let hard = outcome("-f")?;
    if hard.status != 125 || !hard.stderr.contains("ulimit -Hf") {
        return Err(format!("hard limit: {}{}", hard.stdout, hard.stderr).into());
    }
    Ok(())
}

/// A cell is a job as any other program: what stops its first program, a key or a signal, shows in the shell that started it, and fg and bg
/// continue it. Compared with the program on Linux.
fn a_job_of_a_shell() -> Done {
    // bash on a terminal; each line is typed when what is before it has come.
    const SCRIPT: &str = r#"
import os, pty, re, select, sys, time
run = sys.argv[1]
pid, fd = pty.fork()
if pid == 0:
    os.environ.update(PS1='$ ', TERM='dumb', INPUTRC='/dev/null', HISTFILE='')
    os.execvp('bash', ['bash', '--norc', '--noediting', '-i'])
seen = b''
def comes(seconds):
    global seen
    if select.select([fd], [], [], seconds)[0]:
        seen += os.read(fd, 4096)
        return True
def until(what, again=b''):
    # If nothing comes, this is typed again.
    global seen
    end = time.time() + 60
    while not re.search(what, seen):
        if time.time() > end:
            print('waited for', what, 'and saw', seen)
            sys.exit(1)
        if not comes(0.5):
            os.write(fd, again)
    found = re.search(what, seen)
    seen = seen[found.end():]
    print(found.group().decode().strip())
def forget():
    # What was written before may come after the prompt.
    global seen
    end = time.time() + 20
    while comes(0.3) and time.time() < end:
        pass
    seen = b''
def types(text):
    # bash does not hear of a job that stops while it is being continued.
    time.sleep(0.2)
    os.write(fd, text)
until(rb'\$ ')
types(b'stty -echo\n')
until(rb'\$ ')
types(run.encode() + b" sh -c 'trap : WINCH; echo begun; while :; do sleep 0.05; echo on; done'\n")
until(rb'begun\r\n')
until(rb'on\r\n')
types(b'\x1a')
until(rb'\[1\]\+  Stopped')
until(rb'\$ ')
forget()
print('runs on' if comes(0.3) else 'still', seen)
types(b'fg\n')
until(rb'on\r\n')
types(b'\x1a')
until(rb'Stopped')
until(rb'\$ ')
forget()
types(b'bg\n')
until(rb'on\r\n')
types(b'kill -STOP %1\n')
until(rb'Stopped', b'jobs\n')
forget()
types(b'fg\n')
until(rb'on\r\n')
types(b'\x03')
until(rb'\$ ')
# One that would read in the background.
types(run.encode() + b" cat &\n")
until(rb'\[1\] ')
until(rb'\$ ')
until(rb'\[1\]\+  Stopped', b'\n')
forget()
types(b'fg\n')
# From here on bash reads nothing until the job ends.
until(rb'cat\r\n')
types(b'hello\n')
until(rb'hello\r\n')
types(b'\x04')
until(rb'\$ ')
# Who does not want to hear of it gets an error.
types(run.encode() + b" sh -c 'trap \"\" TTIN; cat; kill -s INT $$' &\n")
until(rb'cat: .*rror\r\n')
until(rb'Interrupt', b'\n')
forget()
# All of a job are told.
types(b"sh -c 'echo up; exec sleep 1000' | " + run.encode() + b" sh -c 'read up; exec cat /dev/tty' &\n")
until(rb'\[1\]\+  Stopped', b'\n')
forget()
types(b'kill %1; kill -CONT %1\n')
until(rb'Terminated', b'\n')
forget()
types(b'exit\n')
os.waitpid(pid, 0)
"#;
    let runs = ["".to_string(), format!("{} run --cores 1 --", atoll().display())];
    let mut said = Vec::new();
    for prefix in runs {
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", SCRIPT, &prefix]);
        let Outcome { status, stdout, stderr, hung } = run(command, Duration::from_secs(300))?;
        if status != 0 || hung {
            return Err(format!("{prefix:?}: status {status}, hung: {hung}: {stdout}{stderr}").into());
        }
        said.push(stdout);
    }
    if said[0] == said[1] { Ok(()) } else { Err(format!("Linux: {}\na cell: {}", said[0], said[1]).into()) }
}
