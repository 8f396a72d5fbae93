//! A cell elsewhere that asks for what it may have, and for what it may not: only the first is served.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use atoll_abi::Errno;
use atoll_abi::control::StreamKind;
use atoll_abi::grid::{Burnt, GridConfig, REASON_MAX};
use atoll_abi::nucleus::outside::{
    BUFFERS_MAX, BURN, FIRST_HANDLE, OFFER, REPORT, REPORTED, Reported, SAID, SIGNALS, Said, TAKEN, WINDOW,
};
use atoll_abi::report::{CoreInfo, Resized, Threads, what};
use atoll_abi::service::{Answer, HostAttr, Op, Request, WALK_OPENED};
use atoll_supervisor::inspect::{Answer as Told, Live, Request as Ask};
use atoll_supervisor::remote::{Given, Remote};
use atoll_supervisor::serve::{HostMount, Streams};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// The cell's side of the port.
struct Cell {
    port: UnixStream,
    taken: usize,
}

impl Cell {
    fn ask(&mut self, request: &Request, given: &[u8]) {
        self.port.write_all(request.as_bytes()).expect("sent");
        self.port.write_all(given).expect("sent");
    }

    /// The next answer; what is none is counted.
    fn hear(&mut self) -> Option<Answer> {
        loop {
            let mut answer = Answer::new_zeroed();
            self.port.read_exact(answer.as_mut_bytes()).ok()?;
            if answer.cookie != TAKEN {
                return Some(answer);
            }
            self.taken += answer.value as usize;
        }
    }

    fn call(&mut self, request: &Request, given: &[u8]) -> (Result<u64, Errno>, Vec<u8>) {
        let (answer, bytes) = self.answer(request, given);
        (Errno::from_ret(answer.value), bytes)
    }

    fn answer(&mut self, request: &Request, given: &[u8]) -> (Answer, Vec<u8>) {
        self.ask(request, given);
        let answer = self.hear().expect("an answer");
        assert_eq!(answer.cookie, request.cookie);
        let mut bytes = vec![0; request.filled(&answer).iter().sum::<u64>() as usize];
        self.port.read_exact(&mut bytes).expect("what was filled");
        (answer, bytes)
    }
}

fn request(op: Op, a: u64, b: u64) -> Request {
    let mut r = Request::new(op);
    (r.cookie, r.a.len, r.b.len) = (7, a, b);
    // They mean nothing here.
    (r.a.offset, r.b.offset) = (u64::MAX, 1 << 40);
    r
}

fn by_path(op: Op, path: &str) -> Request {
    request(op, path.len() as u64, size_of::<HostAttr>() as u64)
}

fn cell(dir: &std::path::Path, read_only: bool) -> (Cell, std::sync::Arc<Remote>) {
    cell_with(HostMount::new(File::open(dir).expect("the directory").into(), read_only))
}

fn cell_with(mount: HostMount) -> (Cell, std::sync::Arc<Remote>) {
    let (here, there) = UnixStream::pair().expect("a pair");
    let mounts = vec![mount];
    let meta = fs::metadata("/proc/self").expect("this process");
    let streams = Streams { kinds: [StreamKind::Closed; 3], flags: [0; 3] };
    let given =
        Given { mounts, streams, user: (meta.uid(), meta.gid()), groups: Vec::new(), plan_cache: None };
    (Cell { port: here, taken: 0 }, Remote::start(there, given).expect("it starts"))
}

#[test]
fn a_cell_elsewhere_is_served() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("file"), "contents").expect("a file");
    let (mut cell, remote) = cell(dir.path(), false);
    let (found, bytes) = cell.call(&by_path(Op::Stat, "file"), b"file");
    assert_eq!(found, Ok(0));
    assert_eq!(HostAttr::read_from_bytes(&bytes).expect("attributes").size, 8);
    let mut open = by_path(Op::Open, "file");
    (open.arg[1], open.arg[3]) = (libc::O_RDWR as u64, 1);
    let handle = cell.call(&open, b"file").0.expect("a handle");
    assert!(handle >= FIRST_HANDLE);
    let mut read = request(Op::Read, 5, 100);
    read.arg[0] = handle;
    assert_eq!(cell.call(&read, b""), (Ok(8), b"contents".to_vec()));
    // More than may be on the way: it is said to be taken while it comes.
    let long = vec![b'x'; BUFFERS_MAX as usize];
    let mut write = request(Op::Write, BUFFERS_MAX, 0);
    write.arg[0] = handle;
    assert_eq!(cell.call(&write, &long).0, Ok(BUFFERS_MAX));
    assert!(cell.taken + WINDOW / 4 > long.len(), "{} of {} bytes", cell.taken, long.len());
    assert_eq!(fs::read(dir.path().join("file")).expect("the file"), long);
    // Written and flushed to the device at once.
    for mode in [1, 2] {
        (write.a.len, write.b.len) = (3, 1);
        write.arg[3] = mode;
        let (answer, _) = cell.answer(&write, b"abc\0");
        assert_eq!((answer.value, answer.extra), (3, 0));
    }
    assert!(fs::read(dir.path().join("file")).expect("the file").starts_with(b"abcxxx"));
    // One that was opened to be read changes nothing.
    open.arg[1] = libc::O_RDONLY as u64;
    let only_read = cell.call(&open, b"file").0.expect("a handle");
    for (op, refused) in [(Op::Truncate, Errno::EINVAL), (Op::Allocate, Errno::EBADF)] {
        let mut change = request(op, 0, 0);
        (change.arg[0], change.arg[3]) = (only_read, 1);
        assert_eq!(cell.call(&change, b"").0, Err(refused), "{op:?}");
        change.arg[0] = handle;
        assert_eq!(cell.call(&change, b"").0, Ok(0), "{op:?}");
    }
    // Copied outside, to what was opened to be written.
    assert_eq!(cell.call(&write, b"abc\0").0, Ok(3));
    let mut copy = request(Op::CopyRange, 0, 0);
    (copy.arg, copy.len) = ([only_read, 1, handle, 6], 100);
    assert_eq!(cell.call(&copy, b"").0, Ok(2));
    assert_eq!(fs::read(dir.path().join("file")).expect("the file"), b"abc\0\0\0bc");
    for (arg, refused) in [
        ([handle, 0, only_read, 6], Errno::EBADF),
        ([handle, 0, handle, 1], Errno::EINVAL),
        ([handle, u64::MAX, handle, 1], Errno::EINVAL),
        ([handle, 0, 99, 1], Errno::EBADF),
    ] {
        copy.arg = arg;
        assert_eq!(cell.call(&copy, b"").0, Err(refused), "{arg:?}");
    }
    remote.signal(libc::SIGTERM);
    let signal = cell.hear().expect("a signal");
    assert_eq!((signal.cookie, signal.value), (SIGNALS, 1 << (libc::SIGTERM - 1)));
}

/// Of the directory of a file that is shown, nothing else is.
#[test]
fn a_file_alone_is_served() {
    let dir = tempfile::tempdir().expect("a directory");
    for name in ["file", "other"] {
        fs::write(dir.path().join(name), name).expect("a file");
    }
    let above = File::open(dir.path()).expect("the directory").into();
    let (mut cell, _remote) = cell_with(HostMount::of_file(above, c"file".into(), false));
    let (found, bytes) = cell.call(&by_path(Op::Stat, ""), b"");
    assert_eq!(found, Ok(0));
    assert_eq!(HostAttr::read_from_bytes(&bytes).expect("attributes").size, 4);
    let open = |path: &str, flags: i32| {
        let mut open = by_path(Op::Open, path);
        (open.arg[1], open.arg[2], open.arg[3]) = (flags as u64, 0o600, 1);
        open
    };
    assert!(cell.call(&open("", libc::O_RDWR), b"").0.is_ok());
    for path in ["other", ".", "..", "../x", "file"] {
        for op in [Op::Stat, Op::ReadLink, Op::ReadDir, Op::Walk, Op::Unlink, Op::MakeDir, Op::Create] {
            let asked = by_path(op, path);
            let refused = cell.call(&asked, path.as_bytes()).0;
            assert_eq!(refused, Err(Errno::ENOTDIR), "{op:?} {path}");
        }
        let refused = cell.call(&open(path, libc::O_RDONLY), path.as_bytes()).0;
        assert_eq!(refused, Err(Errno::ENOTDIR), "{path}");
    }
    // Nor is anything made there.
    let temporary = libc::O_TMPFILE | libc::O_RDWR;
    assert_eq!(cell.call(&open("", temporary), b"").0, Err(Errno::ENOTDIR));
    fs::remove_file(dir.path().join("file")).expect("removed");
    assert_eq!(cell.call(&open("", libc::O_CREAT | libc::O_RDWR), b"").0, Err(Errno::ENOENT));
    assert!(!dir.path().join("file").exists());
}

/// A walk opens what it ends at, if that was asked for and it is a regular file.
#[test]
fn a_walk_opens() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::create_dir(dir.path().join("sub")).expect("a directory");
    fs::write(dir.path().join("sub/file"), "contents").expect("a file");
    symlink("file", dir.path().join("sub/link")).expect("a link");
    let made = std::process::Command::new("mkfifo").arg(dir.path().join("sub/fifo")).status();
    assert!(made.expect("mkfifo runs").success());
    let (mut cell, _remote) = cell(dir.path(), true);
    let mut walk = |path: &str, opens: bool| {
        let mut walk = request(Op::Walk, path.len() as u64, 1000);
        walk.arg[2] = opens.into();
        let (answer, bytes) = cell.answer(&walk, path.as_bytes());
        (answer.value, answer.extra, bytes.len())
    };
    let attr = size_of::<HostAttr>();
    assert_eq!(walk("/sub", true), (1, 0, attr));
    assert_eq!(walk("/sub/file", false), (2, 0, 2 * attr));
    assert_eq!(walk("/sub/fifo", true), (2, 0, 2 * attr));
    assert_eq!(walk("/sub/link", true), (2, 4, 2 * attr + 4));
    // No directory: what is behind it is not looked at.
    for path in ["/sub/file", "/sub/file/more"] {
        let (found, extra, len) = walk(path, true);
        assert_eq!((found, extra & WALK_OPENED, len), (2, WALK_OPENED, 2 * attr));
    }
    let (_, extra, _) = walk("/sub/file", true);
    let mut read = request(Op::Read, 5, 100);
    read.arg[0] = extra & !WALK_OPENED;
    assert_eq!(cell.call(&read, b""), (Ok(8), b"contents".to_vec()));
}

/// A walk that opens is served while something else is under way, too, by another thread.
#[test]
fn a_walk_opens_beside_others() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("file"), "contents").expect("a file");
    let (mut cell, _remote) = cell(dir.path(), false);
    let mut open = by_path(Op::Open, "file");
    open.arg[1] = libc::O_RDWR as u64;
    let handle = cell.call(&open, b"file").0.expect("a handle");
    let long = vec![b'x'; BUFFERS_MAX as usize / 4];
    let mut write = request(Op::Write, long.len() as u64, 0);
    (write.cookie, write.arg[0], write.arg[3]) = (8, handle, 1);
    write.b.len = 1;
    let mut walk = request(Op::Walk, 5, 1000);
    walk.arg[2] = 1;
    for _ in 0..20 {
        cell.ask(&write, &[&long[..], &[0]].concat());
        cell.ask(&walk, b"/file");
        for _ in 0..2 {
            let answer = cell.hear().expect("an answer");
            let (request, value) = if answer.cookie == 8 { (&write, write.a.len) } else { (&walk, 1) };
            assert_eq!(answer.value, value as i64);
            assert_eq!(answer.extra & WALK_OPENED != 0, answer.cookie != 8);
            let mut bytes = vec![0; request.filled(&answer).iter().sum::<u64>() as usize];
            cell.port.read_exact(&mut bytes).expect("what was filled");
        }
    }
}

/// What a cell says that is no request.
fn say(cell: &mut Cell, what: u64, bytes: &[u8]) {
    let mut head = Request::new(Op::Nop);
    (head.cookie, head.a.len) = (what, bytes.len() as u64);
    cell.ask(&head, bytes);
}

/// What a cell says of offers and known work.
fn said(answered: u32, taken: u32, burns_over: u32, burnt: &[u8], reason: &[u8]) -> Vec<u8> {
    let mut said =
        Said { answered, taken, burns_over, burnt_len: burnt.len() as u32, reason: [0; REASON_MAX] };
    said.reason[..reason.len()].copy_from_slice(reason);
    [said.as_bytes(), burnt].concat()
}

/// OK-05, OK-09: a cell elsewhere is offered configurations and asked for known work by its port, and asked what has come of it.
#[test]
fn a_cell_elsewhere_is_configured() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut cell, remote) = cell(dir.path(), true);
    let live = Live::elsewhere(remote, 1 << 20, 1, "program".into(), GridConfig::default());
    let ask = |request| live.answer("name", request);
    let set = |sample| Ask::GridSet { config: GridConfig { sample, ..GridConfig::default() } };
    let running = || match ask(Ask::Grid) {
        Told::Grid(config) => config.sample,
        other => panic!("{other:?}"),
    };
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| [ask(set(3)), ask(set(4)), ask(Ask::Burn { times: 5 })]);
        for (taken, reason, sample) in [(1, &b""[..], 3), (0, b"no\x1b", 4)] {
            let offer = cell.hear().expect("an offer");
            assert_eq!(offer.cookie, OFFER);
            let mut bytes = vec![0; offer.extra as usize];
            cell.port.read_exact(&mut bytes).expect("a configuration");
            assert_eq!(postcard::from_bytes::<GridConfig>(&bytes).expect("a configuration").sample, sample);
            // It takes its time.
            for answered in [offer.value as u32 - 1, offer.value as u32] {
                assert_eq!(cell.hear().expect("a question").cookie, SAID);
                say(&mut cell, SAID, &said(answered, taken, 0, b"", reason));
            }
        }
        let burn = cell.hear().expect("a request");
        assert_eq!((burn.cookie, burn.extra), (BURN, 5));
        let question = cell.hear().expect("a question");
        assert_eq!((question.cookie, question.value), (SAID, 1));
        let burnt = postcard::to_stdvec(&Burnt { left_out: 7, ..Burnt::default() }).expect("encoded");
        say(&mut cell, SAID, &said(2, 0, burn.value as u32, &burnt, b""));
        let asked = asked.join().expect("answers");
        assert_eq!(asked[..2], [Told::Set(None), Told::Set(Some("no?".into()))]);
        assert!(matches!(&asked[2], Told::Burnt(burnt) if burnt.left_out == 7), "{asked:?}");
    });
    assert_eq!(running(), 3);
    // One that lies is believed nothing.
    for (lie, why) in [(vec![1; 3], "nonsense"), (said(0, 0, 2, &[0; 9], b"")[..30].to_vec(), "nonsense")] {
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| ask(Ask::Burn { times: 0 }));
            assert_eq!(cell.hear().expect("a request").cookie, BURN);
            assert_eq!(cell.hear().expect("a question").cookie, SAID);
            say(&mut cell, SAID, &lie);
            let answer = asked.join().expect("an answer");
            assert!(matches!(&answer, Told::Error(e) if e.contains(why)), "{answer:?}");
        });
    }
}

/// What a cell says of a question for a report.
fn reported(over: u32, online: u32, len: usize, from: u64, some: &[u8]) -> Vec<u8> {
    [Reported { over, online, len: len as u64, from }.as_bytes(), some].concat()
}

/// OV-05, RF-03: a cell elsewhere is asked for its threads and given cores by its port, and says what comes of it in pieces.
#[test]
fn a_cell_elsewhere_reports() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut cell, remote) = cell(dir.path(), true);
    let live = Live::elsewhere(remote, 1 << 20, 4, "program".into(), GridConfig::default());
    let ask = |request| live.answer("name", request);
    // The question, and its number.
    let question = |cell: &mut Cell, what: u32, value: u64| {
        let asked = cell.hear().expect("a question");
        assert_eq!((asked.cookie, asked.value as u32, asked.extra), (REPORT, what, value));
        (asked.value >> 32) as u32
    };
    // How far the answer is asked for.
    let from = |cell: &mut Cell, number: u32| {
        let asked = cell.hear().expect("a question");
        assert_eq!((asked.cookie, (asked.value >> 32) as u32), (REPORTED, number));
        asked.extra
    };
    let threads = Threads { clock: 5, threads: Vec::new(), cores: vec![CoreInfo::default(); 100] };
    let said = postcard::to_stdvec(&threads).expect("encoded");
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| ask(Ask::Threads));
        let number = question(&mut cell, what::THREADS, 0);
        // It takes its time. What comes late, or is of another place of it, is not taken for this.
        assert_eq!(from(&mut cell, number), 0);
        say(&mut cell, REPORTED, &reported(number - 1, 2, said.len(), 0, &[1; 9]));
        assert_eq!(from(&mut cell, number), 0);
        say(&mut cell, REPORTED, &reported(number, 2, said.len(), u64::MAX, b""));
        for n in 0..2 {
            assert_eq!(from(&mut cell, number), n * 100);
            let end = if n == 0 { 100 } else { said.len() };
            let some = &said[n as usize * 100..end];
            say(&mut cell, REPORTED, &reported(number, 2, said.len(), n * 100, some));
        }
        assert_eq!(asked.join().expect("an answer"), Told::Threads(threads));
        let asked = scope.spawn(|| ask(Ask::Resize { cores: 3 }));
        let number = question(&mut cell, what::CORES, 3);
        assert_eq!(from(&mut cell, number), 0);
        let done = Resized { cores: 3, ns: 7 };
        let said = postcard::to_stdvec(&Ok::<_, String>(done)).expect("encoded");
        say(&mut cell, REPORTED, &reported(number, 3, said.len(), 0, &said));
        assert_eq!(asked.join().expect("an answer"), Told::Resized(done));
        // What it says reaches a terminal: as text, and not too long.
        let asked = scope.spawn(|| ask(Ask::Resize { cores: 2 }));
        let number = question(&mut cell, what::CORES, 2);
        assert_eq!(from(&mut cell, number), 0);
        let why = Err::<Resized, _>("\x1b]0;é\x07".to_string() + &"x".repeat(5000));
        let said = postcard::to_stdvec(&why).expect("encoded");
        say(&mut cell, REPORTED, &reported(number, 3, said.len(), 0, &said));
        let shown = "?]0;é?".to_string() + &"x".repeat(1024 - 6);
        assert_eq!(asked.join().expect("an answer"), Told::Error(shown));
        // And is no longer than it can be.
        let asked = scope.spawn(|| ask(Ask::Resize { cores: 2 }));
        let number = question(&mut cell, what::CORES, 2);
        assert_eq!(from(&mut cell, number), 0);
        say(&mut cell, REPORTED, &reported(number, 3, 1 << 20, 0, b"x"));
        let answer = asked.join().expect("an answer");
        assert!(matches!(&answer, Told::Error(e) if e.contains("nonsense")), "{answer:?}");
    });
    // One that lies is believed nothing.
    let all = said.len();
    let head =
        |len: u64, some: &[u8]| [&reported(0, 1, 0, 0, b"")[..8], &len.to_ne_bytes(), &[0; 8], some].concat();
    for (lie, why) in [
        (head(0, b"")[..20].to_vec(), "nonsense"),
        (head(all as u64, b""), "nonsense"),
        (head(all as u64 - 1, &said), "nonsense"),
        (head(u64::MAX, &said), "nonsense"),
        (head(all as u64, &vec![0xff; all]), "nonsense"),
        (head(0, b""), "no memory"),
    ] {
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| ask(Ask::Threads));
            let number = question(&mut cell, what::THREADS, 0);
            assert_eq!(from(&mut cell, number), 0);
            let mut lie = lie;
            lie[..4].copy_from_slice(&number.to_ne_bytes());
            say(&mut cell, REPORTED, &lie);
            let answer = asked.join().expect("an answer");
            assert!(matches!(&answer, Told::Error(e) if e.contains(why)), "{answer:?}");
        });
    }
    // How many cores it uses it may not say, or what can't be.
    for (online, cores) in [(Some(2), 2), (Some(0), 4), (Some(5), 4), (None, 4)] {
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| ask(Ask::Cell));
            assert_eq!(from(&mut cell, 0), u64::MAX);
            if let Some(online) = online {
                say(&mut cell, REPORTED, &reported(0, online, 0, u64::MAX, b""));
            }
            let answer = asked.join().expect("an answer");
            assert!(matches!(&answer, Told::Cell(a) if (a.cores, a.max_cores) == (cores, 4)), "{answer:?}");
        });
    }
    // It dribbles: who asked does not wait for ever.
    cell.port.set_read_timeout(Some(Duration::from_millis(100))).expect("a limit");
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| ask(Ask::Threads));
        let number = question(&mut cell, what::THREADS, 0);
        while !asked.is_finished() {
            if let Some(asked) = cell.hear() {
                say(&mut cell, REPORTED, &reported(number, 1, 60 << 20, asked.extra, b"x"));
            }
        }
        let answer = asked.join().expect("an answer");
        assert!(matches!(&answer, Told::Error(e) if e.contains("within 9 s")), "{answer:?}");
    });
}

/// What would be longer than this process's limit allows fails, and the process lives on.
#[test]
fn files_have_a_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    // More than any other test here needs.
    const LIMIT: u64 = 1 << 40;
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("file"), "contents").expect("a file");
    let (mut cell, _remote) = cell(dir.path(), false);
    let mut open = by_path(Op::Open, "file");
    open.arg[1] = libc::O_RDWR as u64;
    let handle = cell.call(&open, b"file").0.expect("a handle");
    let before = getrlimit(Resource::Fsize);
    setrlimit(Resource::Fsize, Rlimit { current: Some(LIMIT), ..before }).expect("a limit");
    for (op, given) in
        [(Op::Truncate, &b""[..]), (Op::Allocate, b""), (Op::Write, b"x"), (Op::CopyRange, b"")]
    {
        let mut change = request(op, given.len() as u64, 0);
        change.arg[0] = handle;
        match op {
            Op::Allocate => (change.arg[2], change.arg[3]) = (LIMIT, 1),
            Op::Write => change.arg[1] = LIMIT,
            Op::CopyRange => (change.arg, change.len) = ([handle, 0, handle, LIMIT], 8),
            _ => change.arg[1] = LIMIT + 1,
        }
        assert_eq!(cell.call(&change, given).0, Err(Errno::EFBIG), "{op:?}");
    }
    assert_eq!(fs::read(dir.path().join("file")).expect("the file"), b"contents");
}

#[test]
fn a_hostile_cell_gets_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::create_dir(dir.path().join("shown")).expect("a directory");
    fs::write(dir.path().join("secret"), "secret").expect("a file");
    symlink("../secret", dir.path().join("shown/link")).expect("a link");
    let (mut hostile, _remote) = cell(&dir.path().join("shown"), true);
    for path in ["../secret", "/etc/passwd", "link", "./../secret"] {
        let (found, _) = hostile.call(&by_path(Op::Open, path), path.as_bytes());
        assert!(found.is_err(), "{path} was opened");
    }
    let mut make = by_path(Op::Open, "new");
    make.arg[1] = (libc::O_RDWR | libc::O_CREAT) as u64;
    assert_eq!(hostile.call(&make, b"new").0, Err(Errno::EROFS));
    // What has no name is new, too, and can be written, however it is asked for.
    for access in [libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR] {
        let mut temporary = by_path(Op::Open, "");
        temporary.arg[1] = (access | libc::O_TMPFILE) as u64;
        assert_eq!(hostile.call(&temporary, b"").0, Err(Errno::EROFS));
    }
    let mut elsewhere = by_path(Op::Stat, "secret");
    elsewhere.arg[0] = 1;
    assert_eq!(hostile.call(&elsewhere, b"secret").0, Err(Errno::EBADF));
    for op in [Op::Read, Op::Write, Op::Truncate, Op::StatHandle, Op::Sync, Op::Release] {
        let mut r = request(op, 0, 200);
        r.arg[0] = FIRST_HANDLE;
        let given = vec![0; r.given().iter().sum::<u64>() as usize];
        assert_eq!(hostile.call(&r, &given).0, Err(Errno::EBADF), "{op:?}");
    }
    let none = [Op::Socket, Op::Bind, Op::Connect, Op::Listen, Op::Route, Op::Interface];
    for op in none.into_iter().chain([Op::PassFd, Op::StreamRead, Op::DiskRead]) {
        assert!(hostile.call(&request(op, 0, 0), b"").0.is_err(), "{op:?}");
    }
    let mut unknown = request(Op::Nop, 9, 9);
    unknown.op = 1000;
    assert_eq!(hostile.call(&unknown, b"").0, Err(Errno::ENOSYS));
    // It can list, with no room for the list, too.
    let _ = hostile.call(&request(Op::ExtendedAttr, 0, 0), b"");
    assert!(hostile.call(&by_path(Op::Stat, ""), b"").0.is_ok());
}

#[test]
fn who_does_not_keep_to_it_is_not_served_any_more() {
    let dir = tempfile::tempdir().expect("a directory");
    let end = |wrong: Request| {
        let (mut hostile, _remote) = cell(dir.path(), false);
        hostile.ask(&wrong, b"");
        assert!(hostile.hear().is_none(), "{wrong:?} is answered");
    };
    end(Request { cookie: SIGNALS, ..request(Op::Nop, 0, 0) });
    end(Request { cookie: TAKEN, ..request(Op::Nop, 0, 0) });
    end(request(Op::Read, BUFFERS_MAX, 1));
    end(request(Op::Write, u64::MAX, 2));
}
