//! `tests/hostile/hostile.c` in a cell: nothing that it tries gets through.
#![allow(unsafe_code, reason = "asks for an id, and kills a process")]

use std::mem::offset_of;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use atoll_abi::control::{Control, CoreArea, Descriptor};
use atoll_abi::layout::{CONTROL, DIRECT_MAP, RUNTIME_BASE};
use atoll_supervisor::confine::{ALLOWED, landlock};
use atoll_tests::{Failed, Outcome, Trial, arguments, atoll, children, run, top};

fn main() {
    // SAFETY: asks for an id.
    let root = unsafe { libc::geteuid() } == 0;
    let mut trials = Vec::new();
    for user in [false, true] {
        if user && !root {
            continue;
        }
        for what in ["calls", "rings", "log", "compat"] {
            let name = if user { format!("{what}_as_ordinary_user") } else { what.into() };
            trials.push(Trial::test(name, move || attack(what, user)));
        }
    }
    trials.push(Trial::test("killed_from_outside", killed_from_outside));
    trials.push(Trial::test("room_for_descriptors", room_for_descriptors));
    trials.push(Trial::test("same_session", same_session));
    trials.push(Trial::test("each_way_by_itself", each_way_by_itself));
    trials.push(Trial::test("landlock_by_itself", landlock_by_itself));
    libtest_mimic::run(&arguments(), trials).exit();
}

/// A cell whose first process is killed, and so never says how it ended, has ended all the same.
fn killed_from_outside() -> Result<(), Failed> {
    let mut cell = idle_cell()?;
    let begun = Instant::now();
    let ended = loop {
        for first in children(cell.0.id() as i32) {
            // SAFETY: our child's child, which it has not waited for.
            unsafe { libc::kill(first, libc::SIGKILL) };
        }
        if let Some(status) = cell.0.try_wait()? {
            break status;
        }
        if begun.elapsed() > Duration::from_secs(20) {
            return Err("its supervisor still waits for it".into());
        }
        std::thread::sleep(Duration::from_millis(300));
    };
    if ended.signal() != Some(libc::SIGKILL) && ended.code() != Some(137) {
        return Err(format!("it ended with {ended}").into());
    }
    Ok(())
}

/// each of a cell's processes is held in several ways at once, so that an attack which the first of them stops says nothing about the others:
/// no capabilities, nor a way to get some, nobody's ids, namespaces of its own with nothing in its root, and a filter of calls, of which
/// those that run programs have a second one.
fn each_way_by_itself() -> Result<(), Failed> {
    let cell = idle_cell()?;
    // SAFETY: asks for an id.
    let root = unsafe { libc::geteuid() } == 0;
    let begun = Instant::now();
    loop {
        let firsts = children(cell.0.id() as i32);
        let spaces: Vec<i32> = firsts.iter().flat_map(|first| children(*first)).collect();
        let loose = firsts.iter().map(|p| (*p, 1)).chain(spaces.iter().map(|p| (*p, 2)));
        let loose: Vec<String> = loose.filter_map(|(pid, filters)| lacks(pid, filters, root)).collect();
        if !spaces.is_empty() && loose.is_empty() {
            return Ok(());
        }
        // It is still starting, perhaps.
        if begun.elapsed() > Duration::from_secs(20) {
            return Err(format!("{} processes that run programs; {}", spaces.len(), loose.join("; ")).into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What a process of a cell's is not held by. None: nothing of that.
fn lacks(pid: i32, filters: u32, root: bool) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let of = |name: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_default().split_whitespace().map(String::from).collect::<Vec<_>>()
    };
    let mut lacks = Vec::new();
    let mut check = |holds: bool, what: &str| {
        if !holds {
            lacks.push(what.to_string());
        }
    };
    check(of("NoNewPrivs") == ["1"], "no_new_privs");
    check(of("Seccomp") == ["2"], "a filter");
    check(of("Seccomp_filters").first().and_then(|n| n.parse().ok()) >= Some(filters), "all filters");
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        check(of(set) == ["0000000000000000"], set);
    }
    if root {
        check(of("CapBnd") == ["0000000000000000"], "CapBnd");
        check(["Uid", "Gid"].iter().all(|ids| of(ids) == ["65534"; 4]), "nobody's ids");
        let link = |pid: &str, name: &str| std::fs::read_link(format!("/proc/{pid}/ns/{name}")).ok();
        for name in ["mnt", "pid", "ipc"] {
            let theirs = link(&pid.to_string(), name);
            check(theirs.is_some() && theirs != link("self", name), name);
        }
        let empty = std::fs::read_dir(format!("/proc/{pid}/root")).is_ok_and(|mut dir| dir.next().is_none());
        check(empty, "an empty root");
    }
    (!lacks.is_empty()).then(|| format!("process {pid} lacks {}", lacks.join(", ")))
}

/// what the host's Landlock alone denies to whom a cell's rules are set for. Nothing outside of a process tells that it has them, so this
/// sets them for a thread of its own, which is held in no other way.
fn landlock_by_itself() -> Result<(), Failed> {
    const LANDLOCK_CREATE_RULESET_VERSION: u32 = 1;
    // SAFETY: asks for a number.
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, 0, 0, LANDLOCK_CREATE_RULESET_VERSION) };
    if version < 1 {
        eprintln!("the host has no Landlock: nothing is shown");
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("file");
    std::fs::write(&file, "")?;
    let tcp = TcpListener::bind("127.0.0.1:0")?;
    let at = tcp.local_addr()?;
    let name = SocketAddr::from_abstract_name(format!("atoll-landlock-{}", std::process::id()))?;
    let _abstract = UnixListener::bind_addr(&name)?;
    let other = Command::new("/bin/sleep").arg("1000").spawn().map(Victim)?;
    let tries = || {
        // SAFETY: a signal that does nothing, to a child that is not waited for.
        let signal = unsafe { libc::kill(other.0.id() as i32, 0) };
        let signal = if signal == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) };
        // From which of Landlock's versions it is denied.
        [
            ("reading", 1, std::fs::read(&file).map(drop)),
            ("listing", 1, std::fs::read_dir(dir.path()).map(drop)),
            ("making", 1, std::fs::write(dir.path().join("new"), "")),
            ("removing", 1, std::fs::remove_file(&file).and_then(|()| std::fs::write(&file, ""))),
            ("running", 1, Command::new("/bin/true").status().map(drop)),
            ("connecting", 4, std::net::TcpStream::connect(at).map(drop)),
            ("binding", 4, TcpListener::bind("127.0.0.1:0").map(drop)),
            ("an abstract name", 6, UnixStream::connect_addr(&name).map(drop)),
            ("a signal", 6, signal),
        ]
    };
    let tried = std::thread::scope(|s| s.spawn(|| (tries(), landlock(), tries())).join());
    let (before, holds, after) = tried.map_err(|_| "it panicked")?;
    if !holds {
        return Err("the rules are not enforced".into());
    }
    let wrong = before.iter().filter(|(_, _, r)| r.is_err()).map(|(what, ..)| format!("{what} before"));
    let denied = |e: &std::io::Error| e.kind() == std::io::ErrorKind::PermissionDenied;
    let passes = after
        .iter()
        .filter(|(_, since, r)| version >= *since && !r.as_ref().is_err_and(denied))
        .map(|(what, _, r)| format!("{what}: {r:?}"));
    let wrong: Vec<String> = wrong.chain(passes).collect();
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ").into()) }
}

/// A cell that does nothing.
fn idle_cell() -> std::io::Result<Victim> {
    let mut command = Command::new(atoll());
    command.args(["run", "--", "/bin/sleep", "1000"]).stdin(Stdio::null()).stderr(Stdio::null());
    command.spawn().map(Victim)
}

/// Waits until something is true of what is known of a supervisor and its children.
fn soon<T: std::fmt::Debug>(
    of: &Victim,
    know: impl Fn(i32) -> T,
    is_so: impl Fn(&T, &[T]) -> bool,
) -> Result<(), Failed> {
    let (begun, supervisor) = (Instant::now(), of.0.id() as i32);
    loop {
        let (ours, theirs) =
            (know(supervisor), children(supervisor).into_iter().map(&know).collect::<Vec<_>>());
        if !theirs.is_empty() && is_so(&ours, &theirs) {
            return Ok(());
        }
        if begun.elapsed() > Duration::from_secs(20) {
            return Err(format!("of the supervisor: {ours:?}; of its children: {theirs:?}").into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The host's tables of descriptors are large before others share them, in the supervisor and in the cell: each time that one has to
/// grow afterwards, a thread waits some 10 ms.
fn room_for_descriptors() -> Result<(), Failed> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a structure for the host to fill.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let room = limit.rlim_max.min(4096);
    let size = |pid: i32| -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        status.lines().find_map(|l| l.strip_prefix("FDSize:")?.trim().parse().ok())
    };
    let enough = |size: &Option<u64>| size.is_some_and(|size| size >= room);
    soon(&idle_cell()?, size, |ours, theirs| enough(ours) && theirs.iter().all(enough))
}

/// A cell is in its supervisor's session, so that the host does not schedule it against what else there is by groups of their own
/// (autogroups, sched(7)); and not in its process group, whose signals are not for it.
fn same_session() -> Result<(), Failed> {
    let group_and_session = |pid: i32| -> Option<(i32, i32)> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(2).map(|field| field.parse().ok());
        Some((fields.next()??, fields.next()??))
    };
    soon(&idle_cell()?, group_and_session, |ours, theirs| {
        let Some((group, session)) = ours else { return false };
        theirs.iter().all(|it| it.is_some_and(|it| it.0 != *group && it.1 == *session))
    })
}

/// A process outside that the attacks are aimed at.
struct Victim(Child);

impl Drop for Victim {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn attack(what: &str, user: bool) -> Result<(), Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let data = dir.path().join("data");
    std::fs::create_dir(&data)?;
    let program = data.join("hostile");
    let mut compiler = Command::new("gcc");
    compiler.args(["-O1", "-g", "-Wall", "-static", "-mno-red-zone", "-o"]).arg(&program);
    compiler.arg(top().join("tests/hostile/hostile.c"));
    let compiled = run(compiler, Duration::from_secs(60))?;
    if compiled.status != 0 {
        return Err(format!("the program can't be compiled:\n{}", compiled.stderr).into());
    }
    let open = |path: &Path, mode: u32| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
    };
    let canary = dir.path().join("canary");
    std::fs::write(&canary, "untouched")?;
    open(dir.path(), 0o755)?;
    open(&data, 0o777)?;
    let mut victim = Victim(Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn()?);

    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;

    let mut command = if user {
        // The checkout may lie where only root can look.
        let copies = dir.path().join("bin");
        std::fs::create_dir(&copies)?;
        open(&copies, 0o755)?;
        for name in ["atoll", "atoll-runtime"] {
            std::fs::copy(atoll().with_file_name(name), copies.join(name))?;
        }
        let mut c = Command::new("setpriv");
        c.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(copies.join("atoll"));
        c.env("HOME", "/nonexistent");
        c
    } else {
        Command::new(atoll())
    };
    command.args(["run", "--cores", "1", "--memory", "64M", "--net", "none"]);
    command.arg("--volume").arg(format!("{}:/data", data.display()));
    command.args(["--workdir", "/", "--"]).args(["/data/hostile", what]);
    let descriptor = |field: usize| (offset_of!(Control, descriptor) + field) as u64;
    let core = |field: usize| (offset_of!(Control, cores) + field) as u64;
    for number in [
        RUNTIME_BASE,
        CONTROL,
        DIRECT_MAP,
        descriptor(offset_of!(Descriptor, memory)),
        descriptor(offset_of!(Descriptor, memory_fd)),
        descriptor(offset_of!(Descriptor, log_fd)),
        core(offset_of!(CoreArea, requests)),
        core(offset_of!(CoreArea, answers)),
        offset_of!(Control, server_sleepers) as u64,
        offset_of!(Control, server_bell) as u64,
        u64::from(victim.0.id()),
        u64::from(listener.local_addr()?.port()),
        descriptor(offset_of!(Descriptor, socket_fd)),
    ] {
        command.arg(number.to_string());
    }
    command.args(ALLOWED.iter().map(|a| a.number.to_string()));
    let outcome = run(command, Duration::from_secs(60))?;

    let bad = |why: &str| -> Result<(), Failed> {
        Err(format!("{why}; exit status {}:\n{}\n{}", outcome.status, outcome.stdout, tail(&outcome)).into())
    };
    if victim.0.try_wait()?.is_some() {
        return bad("the cell killed a process outside");
    }
    if listener.accept().is_ok() {
        return bad("the cell reached the host's network");
    }
    if std::fs::read_to_string(&canary)? != "untouched" || dir.path().join("atoll-was-here").exists() {
        return bad("the cell changed files outside");
    }
    if outcome.hung {
        return bad("the cell did not end");
    }
    if outcome.stderr.contains("panicked")
        || outcome.stdout.contains("root:x:")
        || outcome.stderr.contains("root:x:")
    {
        return bad("the supervisor failed or something leaked");
    }
    match what {
        // The host ends what makes such a call: nothing more comes.
        "compat" if outcome.stderr.contains("died by itself") && outcome.status != 0 => Ok(()),
        "log"
            if outcome.stderr.lines().all(|l| l.len() < 4096) && outcome.stderr.contains("0 got through") =>
        {
            Ok(())
        }
        "calls" | "rings" if outcome.stderr.contains("atoll: 0 got through") => Ok(()),
        _ => bad("an attack got through, or did not come to its end"),
    }
}

fn tail(outcome: &Outcome) -> String {
    let lines: Vec<&str> = outcome.stderr.lines().filter(|l| !l.contains("refused")).collect();
    let shown: Vec<String> =
        lines[lines.len().saturating_sub(60)..].iter().map(|l| l.chars().take(200).collect()).collect();
    shown.join("\n")
}
