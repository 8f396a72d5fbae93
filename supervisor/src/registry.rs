//! Which cells there are: a directory with a socket for each live cell of this host that its user may look at.
//!
//! The directory is its user's alone (mode 0700). A cell's socket carries its name, and its supervisor answers there
//! ([`inspect`](crate::inspect)) from a thread that sleeps until somebody asks. What a supervisor leaves behind that was
//! killed is cleared by the next one, or by who looks.

use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::process::geteuid;

use crate::inspect::Live;
use crate::{Error, Result};

/// Ending of a socket's name.
const ENDING: &str = ".sock";
/// Longest name of a cell here, bytes: an address of a socket has 107 with its directory.
pub const NAME_MAX: usize = 48;
/// How long is waited for the directory, and how often is looked.
const LOCK_WAIT: Duration = Duration::from_secs(1);
const LOCK_LOOK: Duration = Duration::from_millis(10);
/// Connections that are served at the same time.
const SERVED_MAX: usize = 16;

/// The directory: `/run/atoll` of root, `$XDG_RUNTIME_DIR/atoll` or `~/.cache/atoll/run` of others.
pub fn directory() -> Result<PathBuf> {
    if geteuid().is_root() {
        return Ok("/run/atoll".into());
    }
    let of = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let cache = || of("XDG_CACHE_HOME").or_else(|| of("HOME").map(|h| h.join(".cache")));
    of("XDG_RUNTIME_DIR")
        .map(|d| d.join("atoll"))
        .or_else(|| cache().map(|d| d.join("atoll/run")))
        .ok_or_else(|| Error::new("neither XDG_RUNTIME_DIR nor HOME says where sockets of cells can be"))
}

/// A cell in the registry; taken out when this is dropped.
pub struct Registered(Arc<Mutex<State>>);

enum State {
    /// It is not there yet.
    Opening,
    /// Its socket.
    Open(PathBuf, Arc<UnixListener>),
    /// It is gone, or could not be put there.
    Closed,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Puts a cell into the registry and answers for it, both from a thread of its own. `told` is told its name there, or why that can't be done;
/// the cell is none the worse.
pub fn register(
    live: Arc<Live>,
    name: Option<String>,
    told: impl FnOnce(std::result::Result<&str, &Error>) + Send + 'static,
) -> Registered {
    let state = Arc::new(Mutex::new(State::Opening));
    let registered = Registered(state.clone());
    let work = move || {
        let name = name.unwrap_or_else(|| default_name(live.program()));
        match directory().and_then(|dir| open(&dir, &name)) {
            Ok((name, path, listener)) => {
                let listener = Arc::new(listener);
                match &mut *lock(&state) {
                    State::Closed => remove(&path),
                    there => *there = State::Open(path, listener.clone()),
                }
                told(Ok(&name));
                serve(&live, &name, &listener);
            }
            Err(e) => told(Err(&e)),
        }
    };
    // Without a thread the cell is not found, no more.
    let _ = std::thread::Builder::new().name("atoll-inspect".into()).spawn(work);
    registered
}

impl Drop for Registered {
    fn drop(&mut self) {
        if let State::Open(path, listener) = std::mem::replace(&mut *lock(&self.0), State::Closed) {
            remove(&path);
            // Its thread ends. If that fails, it ends with the process.
            let _ = rustix::net::shutdown(&*listener, rustix::net::Shutdown::Both);
        }
    }
}

fn remove(path: &Path) {
    // Gone already is as good.
    let _ = std::fs::remove_file(path);
}

/// The program's name and the supervisor's process id.
fn default_name(program: &str) -> String {
    let base = program.rsplit('/').next().unwrap_or_default();
    let mut base = file_name(base);
    base.truncate(NAME_MAX - 12);
    format!("{base}-{}", std::process::id())
}

/// May this be in a name?
fn fits(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '+' | '@' | ':')
}

/// May a cell be given this name?
pub fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= NAME_MAX && !name.starts_with('.') && name.chars().all(fits)
}

/// A name as one of a file that needs no quoting.
fn file_name(name: &str) -> String {
    let mut name: String = name.chars().take(NAME_MAX).map(|c| if fits(c) { c } else { '_' }).collect();
    if name.is_empty() || name.starts_with('.') {
        name.insert(0, '_');
        name.truncate(NAME_MAX);
    }
    name
}

/// Makes the directory, and sees that it is its user's alone.
pub(crate) fn prepare(dir: &Path) -> Result<()> {
    let failed = |e| Error::with(format!("making {}, where sockets of cells are", dir.display()), e);
    match std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(failed(e)),
        _ => {}
    }
    let meta = std::fs::symlink_metadata(dir).map_err(failed)?;
    if !meta.is_dir() || meta.uid() != geteuid().as_raw() || meta.mode() & 0o077 != 0 {
        return Err(Error::new(format!(
            "{} is not a directory that only its user can open: `chmod 700` makes it one",
            dir.display()
        )));
    }
    Ok(())
}

/// Keeps others from changing the directory until it is dropped; None if one of them keeps it for longer than `wait`. All who can open
/// the directory can do that, which may be a cell that sees the host's root.
fn locked(dir: &Path, wait: Duration) -> Result<Option<std::fs::File>> {
    let failed = |e| Error::with(format!("locking {}", dir.display()), e);
    let file = std::fs::File::open(dir).map_err(failed)?;
    let until = Instant::now() + wait;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(file)),
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() >= until => return Ok(None),
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => std::thread::sleep(LOCK_LOOK),
            Err(e) => return Err(failed(e.into())),
        }
    }
}

/// Is nobody there any more?
fn stale(path: &Path) -> bool {
    let refused = |e: std::io::Error| e.kind() == std::io::ErrorKind::ConnectionRefused;
    UnixStream::connect(path).is_err_and(refused)
}

/// Makes a cell's socket; its name, with the process id behind it if somebody has that already.
fn open(dir: &Path, name: &str) -> Result<(String, PathBuf, UnixListener)> {
    prepare(dir)?;
    let name = file_name(name);
    let mut other = name.clone();
    other.truncate(NAME_MAX - 11);
    other = format!("{other}-{}", std::process::id());
    // Without it, too, one of two that want a name gets it; only what a dead process left might be cleared twice.
    let _lock = locked(dir, LOCK_WAIT)?;
    let mut last = None;
    for name in [name, other] {
        let path = dir.join(format!("{name}{ENDING}"));
        if stale(&path) {
            remove(&path);
        }
        match UnixListener::bind(&path) {
            Ok(listener) => {
                let mode = std::fs::Permissions::from_mode(0o600);
                std::fs::set_permissions(&path, mode)
                    .map_err(|e| Error::with(format!("making {} its user's alone", path.display()), e))?;
                return Ok((name, path, listener));
            }
            Err(e) => last = Some(Error::with(format!("making the socket {}", path.display()), e)),
        }
    }
    Err(last.unwrap_or_else(|| Error::new("the cell has no name")))
}

/// Answers until the cell is taken out of the registry.
fn serve(live: &Arc<Live>, name: &str, listener: &UnixListener) {
    // One reference for each connection, and this one.
    let served = Arc::new(());
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(e) if e.kind() == std::io::ErrorKind::InvalidInput => return,
            Err(_) => {
                // Out of descriptors, for example: that passes.
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        if !may_ask(&stream) || Arc::strong_count(&served) > SERVED_MAX {
            continue;
        }
        let (live, name, mine) = (live.clone(), name.to_string(), served.clone());
        let work = move || {
            live.serve(&name, stream);
            drop(mine);
        };
        // Who can't be served finds the connection closed.
        let _ = std::thread::Builder::new().name("atoll-inspect".into()).spawn(work);
    }
}

/// Is the other side of the same user, or root?
fn may_ask(stream: &UnixStream) -> bool {
    let peer = rustix::net::sockopt::socket_peercred(stream.as_fd());
    peer.is_ok_and(|p| p.uid.is_root() || p.uid == geteuid())
}

/// A live cell.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// Its name.
    pub name: String,
    /// Process id of its supervisor.
    pub pid: u32,
    /// Its socket.
    pub socket: PathBuf,
}

/// The live cells in a directory, by name. What dead ones have left is cleared.
pub fn list(dir: &Path) -> Result<Vec<Found>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Error::with(format!("reading {}", dir.display()), e)),
    };
    let (mut found, mut dead) = (Vec::new(), Vec::new());
    for entry in entries.flatten() {
        let file = entry.file_name();
        let Some(name) = file.to_str().and_then(|n| n.strip_suffix(ENDING)) else { continue };
        if !entry.file_type().is_ok_and(|t| t.is_socket()) {
            continue;
        }
        match UnixStream::connect(entry.path()) {
            Ok(stream) => {
                let Ok(peer) = rustix::net::sockopt::socket_peercred(stream.as_fd()) else { continue };
                let pid = peer.pid.as_raw_nonzero().get() as u32;
                found.push(Found { name: name.into(), pid, socket: entry.path() });
            }
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => dead.push(entry.path()),
            Err(_) => {}
        }
    }
    // That can be done the next time as well.
    if !dead.is_empty()
        && let Ok(Some(_lock)) = locked(dir, Duration::ZERO)
    {
        // Another cell may have taken the name meanwhile.
        dead.iter().filter(|path| stale(path)).for_each(|path| remove(path));
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// The one that is meant: by its name, its supervisor's process id, or the beginning of a name that no other has.
pub fn choose(cells: &[Found], wanted: &str) -> Result<Found> {
    let names = |cells: &[&Found]| cells.iter().map(|c| &c.name[..]).collect::<Vec<_>>().join(", ");
    if let Some(one) = cells.iter().find(|c| c.name == wanted) {
        return Ok(one.clone());
    }
    if let Some(one) = wanted.parse().ok().and_then(|pid: u32| cells.iter().find(|c| c.pid == pid)) {
        return Ok(one.clone());
    }
    let begin: Vec<&Found> =
        cells.iter().filter(|c| !wanted.is_empty() && c.name.starts_with(wanted)).collect();
    match begin[..] {
        [one] => Ok(one.clone()),
        [] if cells.is_empty() => Err(Error::new(format!("there is no cell {wanted:?}: none runs"))),
        [] => {
            let all = names(&cells.iter().collect::<Vec<_>>());
            Err(Error::new(format!("there is no cell {wanted:?}; these run: {all}")))
        }
        _ => {
            Err(Error::new(format!("{wanted:?} is the beginning of several cells' names: {}", names(&begin))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, pid: u32) -> Found {
        Found { name: name.into(), pid, socket: PathBuf::new() }
    }

    #[test]
    fn chooses_by_name_pid_or_beginning() {
        let cells = [found("web", 10), found("web-12", 12), found("db", 11), found("10", 13)];
        let of = |wanted| choose(&cells, wanted).map(|c| c.pid).map_err(|e| e.to_string());
        assert_eq!(of("web"), Ok(10));
        assert_eq!(of("web-"), Ok(12));
        assert_eq!(of("d"), Ok(11));
        assert_eq!(of("12"), Ok(12));
        // A name before a number.
        assert_eq!(of("10"), Ok(13));
        assert_eq!(of("we"), Err("\"we\" is the beginning of several cells' names: web, web-12".into()));
        assert_eq!(of(""), Err("there is no cell \"\"; these run: web, web-12, db, 10".into()));
        assert_eq!(of("x"), Err("there is no cell \"x\"; these run: web, web-12, db, 10".into()));
        assert_eq!(choose(&[], "x").unwrap_err().to_string(), "there is no cell \"x\": none runs");
    }

    #[test]
    fn names_are_names_of_files() {
        assert_eq!(file_name("web.1"), "web.1");
        assert!(
            is_name("web.1")
                && !is_name("")
                && !is_name(".web")
                && !is_name("a b")
                && !is_name(&"x".repeat(49))
        );
        assert_eq!(file_name("../a b\n"), "_.._a_b_");
        assert_eq!(file_name(""), "_");
        assert_eq!(file_name(&"é".repeat(100)).len(), NAME_MAX);
        assert_eq!(file_name(&".".repeat(100)).len(), NAME_MAX);
        assert!(default_name(&"x".repeat(100)).len() <= NAME_MAX);
    }

    /// A name that is taken gets the process id behind it; one that a dead process left is free again.
    #[test]
    fn takes_names_that_are_free() {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("atoll");
        let me = std::process::id();
        let (name, path, listener) = open(&dir, "web").unwrap();
        assert_eq!((&name[..], path.file_name().unwrap().to_str()), ("web", Some("web.sock")));
        assert_eq!(std::fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
        let (second, other, _open) = open(&dir, "web").unwrap();
        assert_eq!(second, format!("web-{me}"));
        assert!(open(&dir, "web").is_err());
        let names = || list(&dir).unwrap().into_iter().map(|f| (f.name, f.pid)).collect::<Vec<_>>();
        assert_eq!(names(), [("web".into(), me), (second, me)]);
        // As when the process was killed.
        drop(listener);
        assert!(path.exists());
        assert_eq!(names().len(), 1);
        assert!(!path.exists() && other.exists());
        // It may also be found by who wants the name.
        let (_, path, listener) = open(&dir, "web").unwrap();
        drop(listener);
        assert_eq!(open(&dir, "web").unwrap().1, path);
    }

    /// Who keeps the directory locked keeps nobody out.
    #[test]
    fn goes_on_without_the_lock() {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("atoll");
        let (_, dead, listener) = open(&dir, "dead").unwrap();
        drop(listener);
        let held = locked(&dir, Duration::ZERO).unwrap();
        assert!(held.is_some());
        let begun = Instant::now();
        let (name, path, _open) = open(&dir, "web").unwrap();
        assert_eq!(name, "web");
        assert!(begun.elapsed() >= LOCK_WAIT);
        // It is not known that nobody takes the name of the dead one just now.
        let found = list(&dir).unwrap();
        assert_eq!(found.len(), 1);
        assert!(path.exists() && dead.exists());
        drop(held);
        list(&dir).unwrap();
        assert!(path.exists() && !dead.exists());
    }

    #[test]
    fn a_directory_for_all_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(open(dir.path(), "web").unwrap_err().to_string().contains("only its user can open"));
        assert_eq!(list(&dir.path().join("nothing")).unwrap(), []);
    }
}
