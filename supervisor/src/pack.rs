//! Packs a root file system for a machine that has no Linux below: a cpio archive of the format "newc", as
//! Linux takes its initramfs, from files of this host.
//!
//! What goes in: a program with all that it needs to start, further paths, or a whole directory. Every path
//! leads where it leads on the host: a symbolic link on the way is kept as one, and its target is packed.
//! Nothing is executed. The libraries of a program are looked for as ld.so(8) does, from the same files.
//!
//! Contents of 4 KiB and more begin at a multiple of that in the archive, so that a page of a file is a page
//! of the archive: the name before them is filled up with zeroes, as Linux's `gen_init_cpio -a` does.
//!
//! Why no crate: `cpio` takes names in UTF-8 only.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io::{BufWriter, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use atoll_abi::control::PLANS;
use object::elf;
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{LittleEndian as LE, ReadCache, ReadRef};

use crate::plan::Plans;
use crate::serve::check_file_system;
use crate::{Error, Result};

/// Contents of this many bytes and more are aligned to as many.
const PAGE: u64 = 4096;
/// Bytes of a header.
const HEADER: u64 = 110;
/// Longest name that Linux takes, its zero bytes included.
const PATH_MAX: u64 = 4096;
/// Symbolic links that a path may lead through.
const LINKS_MAX: u32 = 40;
/// Longest chain of script interpreters.
const SCRIPTS_MAX: u32 = 5;
/// Length of a script's first line that counts.
const SCRIPT_LINE: u64 = 256;

/// What programs ask the C library about, and what that reads for it.
const CONFIGURATION: [&str; 7] = [
    "/etc/passwd",
    "/etc/group",
    "/etc/nsswitch.conf",
    "/etc/hosts",
    "/etc/resolv.conf",
    "/etc/ld.so.cache",
    "/etc/localtime",
];
/// What glibc loads at run time: to look up names, and to unwind a thread that ends.
const LOADED_BY_LIBC: [&str; 3] = ["libnss_files.so.2", "libnss_dns.so.2", "libgcc_s.so.1"];
/// Where ld.so looks at last.
const LIBRARIES: [&str; 6] =
    ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"];
/// Where musl's looks if its file does not say.
const LIBRARIES_OF_MUSL: [&str; 3] = ["/lib", "/usr/local/lib", "/usr/lib"];
/// Libraries for some processors only, in each directory of libraries.
const PROCESSORS: [&str; 3] = ["glibc-hwcaps/x86-64-v4", "glibc-hwcaps/x86-64-v3", "glibc-hwcaps/x86-64-v2"];
/// Directories that every root file system has, and their permissions.
const DIRECTORIES: [(&str, u32); 6] =
    [("proc", 0o555), ("dev", 0o755), ("sys", 0o555), ("tmp", 0o1777), ("run", 0o755), ("root", 0o700)];

/// Where an entry comes from.
enum Origin {
    /// A file of the host, of whatever kind.
    Host(PathBuf, Metadata),
    /// A directory of our own, with these permissions.
    Directory(u32),
}

/// Collects a root file system, and writes it.
#[derive(Default)]
pub struct Packer {
    /// By path in the archive, without a slash at the start: the root is the empty path. A directory comes
    /// before what is in it.
    entries: BTreeMap<PathBuf, Origin>,
    /// Executables and libraries whose libraries were looked for.
    seen: HashSet<PathBuf>,
    missing: Vec<String>,
    /// A whole root is there already.
    whole: bool,
    /// Makes rewriting plans.
    plans: Option<Plans>,
}

/// What was packed.
#[derive(Debug, Default)]
pub struct Packed {
    /// Regular files, each counted once.
    pub files: u64,
    /// Names of all kinds.
    pub entries: u64,
    /// Rewriting plans, each an entry more.
    pub plans: u64,
    /// Bytes of the archive.
    pub bytes: u64,
    /// What an included file needs and the host does not have: "FILE needs LIBRARY".
    pub missing: Vec<String>,
}

impl Packer {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Has the rewriting of executables and libraries planned, so that their system calls need not trap. `cache`:
    /// where plans are kept for the next time.
    pub fn plan(&mut self, cache: Option<PathBuf>) {
        self.plans = Some(Plans::new(cache));
    }

    /// Takes in a program and what it needs to start: its interpreter, its libraries, and what the C library
    /// reads. `path`: if it has no slash, it is looked up in PATH. Fails if a library is nowhere.
    pub fn program(&mut self, path: &Path) -> Result<()> {
        let found = if path.as_os_str().as_bytes().contains(&b'/') {
            path.to_owned()
        } else {
            in_path(path.as_os_str()).ok_or_else(|| Error::new(format!("{}: not in PATH", path.display())))?
        };
        self.executable(&found, SCRIPTS_MAX)
    }

    /// Takes in a path, a directory with all that is beneath it. Executables and libraries there bring their
    /// libraries along, as far as the host has them; links, the regular files that they lead to.
    pub fn include(&mut self, path: &Path) -> Result<()> {
        let at = self.add(path)?;
        let from = on_host(&at);
        if from.is_dir() {
            return self.tree(&from, &at, true);
        }
        self.bring_along(&from)
    }

    /// Takes in a directory without what is in it, and the way there.
    pub fn directory(&mut self, dir: &Path) -> Result<()> {
        self.add(dir).map(drop)
    }

    /// Takes in a directory as the root, as it is. Nothing of the host is added but what is asked for.
    pub fn rootfs(&mut self, dir: &Path) -> Result<()> {
        let dir = dir.canonicalize().map_err(|e| Error::with(dir.display().to_string(), e))?;
        let meta = look(&dir)?;
        if !meta.is_dir() {
            return Err(Error::new(format!("{}: no directory", dir.display())));
        }
        self.whole = true;
        self.put(PathBuf::new(), dir.clone(), meta);
        self.tree(&dir, Path::new(""), false)
    }

    /// Is there anything in a directory, given by its absolute path?
    pub fn has_beneath(&self, dir: &Path) -> bool {
        let dir = dir.strip_prefix("/").unwrap_or(dir);
        let mut from = self.entries.range(dir.to_owned()..).map(|(path, _)| path).skip_while(|p| **p == dir);
        from.next().is_some_and(|p| p.starts_with(dir))
    }

    /// Takes in all that a path leads through, symbolic links with their targets; where it leads, as a path
    /// in the archive.
    fn add(&mut self, path: &Path) -> Result<PathBuf> {
        let whole = std::path::absolute(path).map_err(|e| Error::with(path.display().to_string(), e))?;
        let mut links = LINKS_MAX;
        let mut at = PathBuf::new();
        let mut left = names(&whole);
        while let Some(name) = left.pop() {
            if name == ".." {
                at.pop();
                continue;
            }
            let next = at.join(name);
            let from = on_host(&next);
            let meta = look(&from)?;
            let link = meta.is_symlink();
            self.put(next.clone(), from.clone(), meta);
            if !link {
                at = next;
                continue;
            }
            links = links
                .checked_sub(1)
                .ok_or_else(|| Error::new(format!("{}: too many symbolic links", path.display())))?;
            let target = fs::read_link(&from).map_err(|e| Error::with(from.display().to_string(), e))?;
            if target.is_absolute() {
                at = PathBuf::new();
            }
            left.extend(names(&target));
        }
        Ok(at)
    }

    fn put(&mut self, at: PathBuf, from: PathBuf, meta: Metadata) {
        // A socket is its server's.
        if !meta.file_type().is_socket() {
            self.entries.insert(at, Origin::Host(from, meta));
        }
    }

    /// Takes in what is beneath a directory. `included`: with what it needs.
    fn tree(&mut self, from: &Path, at: &Path, included: bool) -> Result<()> {
        let mut left = vec![(from.to_owned(), at.to_owned(), look(from)?.dev())];
        while let Some((dir, at, dev)) = left.pop() {
            let wrong = |e| Error::with(dir.display().to_string(), e);
            for entry in fs::read_dir(&dir).map_err(wrong)? {
                let name = entry.map_err(wrong)?.file_name();
                let (from, at) = (dir.join(&name), at.join(&name));
                let meta = look(&from)?;
                let kind = meta.file_type();
                let inner = meta.dev();
                self.put(at.clone(), from.clone(), meta);
                if kind.is_dir() {
                    // Of /proc and its kind, only where they are mounted.
                    if inner == dev || is_plain(&from)? {
                        left.push((from, at, inner));
                    }
                } else if included && kind.is_file() {
                    self.bring_along(&from)?;
                } else if included && kind.is_symlink() && from.is_file() {
                    let at = self.add(&from)?;
                    self.bring_along(&on_host(&at))?;
                }
            }
        }
        Ok(())
    }

    /// Takes in an executable file and what it needs.
    fn executable(&mut self, path: &Path, scripts: u32) -> Result<()> {
        let from = on_host(&self.add(path)?);
        let wrong = |e| Error::with(from.display().to_string(), e);
        if let Some(elf) = Elf::read(&from)? {
            return self.libraries(&from, elf, true);
        }
        let mut head = Vec::new();
        open(&from)?.take(SCRIPT_LINE).read_to_end(&mut head).map_err(wrong)?;
        let line = head.strip_prefix(b"#!").ok_or_else(|| {
            Error::new(format!("{}: neither a program for this machine nor a script", from.display()))
        })?;
        let line = line.split(|b| *b == b'\n').next().unwrap_or_default();
        let mut words = line.split(|b| b" \t".contains(b)).filter(|w| !w.is_empty()).map(OsStr::from_bytes);
        let interpreter = words.next().map(Path::new);
        let (Some(interpreter), Some(scripts)) = (interpreter, scripts.checked_sub(1)) else {
            return Err(Error::new(format!("{}: a script without an interpreter", from.display())));
        };
        self.executable(interpreter, scripts)?;
        if interpreter.file_name() == Some(OsStr::new("env")) {
            // And what that starts.
            let program = words.find(|w| !w.as_bytes().starts_with(b"-") && !w.as_bytes().contains(&b'='));
            let program = program.map(Path::new).ok_or_else(|| {
                Error::new(format!("{}: a script whose interpreter is not named", from.display()))
            })?;
            let found = in_path(program.as_os_str()).ok_or_else(|| {
                Error::new(format!("{}: {} is not in PATH", from.display(), program.display()))
            })?;
            self.executable(&found, scripts)?;
        }
        Ok(())
    }

    /// Takes in the libraries of a file that was included, if it needs any.
    fn bring_along(&mut self, from: &Path) -> Result<()> {
        match Elf::read(from)? {
            Some(elf) => self.libraries(from, elf, false),
            None => Ok(()),
        }
    }

    /// Takes in the interpreter and the libraries of an ELF file. `all`: none may be missing.
    fn libraries(&mut self, from: &Path, elf: Elf, all: bool) -> Result<()> {
        if !self.seen.insert(from.to_owned()) {
            return Ok(());
        }
        let mut loaded = HashSet::new();
        let mut musl = false;
        if let Some(interpreter) = &elf.interpreter {
            match self.add(interpreter) {
                Ok(_) => {}
                Err(e) if all => return Err(e),
                Err(e) => self.missing.push(format!("{} needs {e}", from.display())),
            }
            // Libraries may name it, too: it is there already.
            let name = interpreter.file_name().unwrap_or_default();
            loaded.insert(name.to_owned());
            musl = name.as_bytes().starts_with(b"ld-musl-");
        }
        let places = if musl { places_of_musl() } else { places_of_glibc() };
        // In the order of loading: the first file of a name is the one.
        let mut left = VecDeque::from([(from.to_owned(), elf, Vec::new())]);
        let mut optional = false;
        loop {
            while let Some((path, elf, inherited)) = left.pop_front() {
                let origin = path.parent().unwrap_or(Path::new("/"));
                // DT_RPATH counts for what is loaded in turn, too, but not beside DT_RUNPATH.
                let own = if elf.runpath.is_empty() { &elf.rpath[..] } else { &[] };
                let chain: Vec<PathBuf> = expand(own, origin).into_iter().chain(inherited).collect();
                let runpath = expand(&elf.runpath, origin);
                let first = if elf.runpath.is_empty() { &chain } else { &runpath };
                for name in elf.needed {
                    if musl && name.as_bytes().starts_with(b"libc.") || !loaded.insert(name.clone()) {
                        continue;
                    }
                    let found = self.library(&name, origin, first.iter().chain(&places))?;
                    match found {
                        Some((path, elf)) => left.push_back((path, elf, chain.clone())),
                        None if optional => {}
                        None => {
                            let what = format!("{} needs {}", path.display(), name.display());
                            if all {
                                return Err(Error::new(format!("{what}, which is nowhere to be found")));
                            }
                            self.missing.push(what);
                        }
                    }
                }
            }
            if optional || !loaded.contains(OsStr::new("libc.so.6")) {
                return Ok(());
            }
            optional = true;
            let needed = LOADED_BY_LIBC.map(OsString::from).into();
            left.push_back((from.to_owned(), Elf { needed, ..Elf::default() }, Vec::new()));
        }
    }

    /// Finds a library and takes it in.
    fn library<'a>(
        &mut self,
        name: &OsStr,
        origin: &Path,
        places: impl Iterator<Item = &'a PathBuf>,
    ) -> Result<Option<(PathBuf, Elf)>> {
        if name.as_bytes().contains(&b'/') {
            let path = expand(&[name.to_owned()], origin).into_iter().next();
            return path.map_or(Ok(None), |path| self.library_at(path));
        }
        for place in places {
            let Some(found) = self.library_at(place.join(name))? else { continue };
            for processor in PROCESSORS {
                // Which of them is loaded is for the machine to say.
                self.library_at(place.join(processor).join(name))?;
            }
            return Ok(Some(found));
        }
        Ok(None)
    }

    fn library_at(&mut self, path: PathBuf) -> Result<Option<(PathBuf, Elf)>> {
        // One for another machine is passed over.
        let elf = if path.is_file() { Elf::read(&path)? } else { None };
        let Some(elf) = elf else { return Ok(None) };
        self.add(&path)?;
        Ok(Some((path, elf)))
    }

    /// Writes the archive.
    pub fn write(mut self, out: impl Write) -> Result<Packed> {
        if !self.whole {
            for path in CONFIGURATION.map(Path::new) {
                if path.symlink_metadata().is_ok() && path.exists() {
                    self.add(path)?;
                }
            }
        }
        self.entries.entry(PathBuf::new()).or_insert(Origin::Directory(0o755));
        for (name, mode) in DIRECTORIES {
            self.entries.entry(name.into()).or_insert(Origin::Directory(mode));
        }
        for at in self.entries.keys() {
            if self.plans.is_some() && at.starts_with(PLANS) {
                return Err(Error::new(format!("/{}: this name means a plan of Atoll's", at.display())));
            }
            let dir = at.parent().map(|parent| (parent, self.entries.get(parent)));
            let is_dir = |origin: &Origin| match origin {
                Origin::Host(_, meta) => meta.is_dir(),
                Origin::Directory(_) => true,
            };
            if let Some((parent, origin)) = dir
                && !origin.is_some_and(is_dir)
            {
                let (at, parent) = (at.display(), parent.display());
                return Err(Error::new(format!("/{at} lies in /{parent}, which is no directory here")));
            }
        }
        write_all(&self.entries, self.plans.as_ref(), out)
            .map(|packed| Packed { missing: self.missing, ..packed })
    }
}

/// Names of a path, the last one first; no "." and no slashes.
fn names(path: &Path) -> Vec<OsString> {
    let names = path.components().rev().filter_map(|c| match c {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    names.collect()
}

fn on_host(at: &Path) -> PathBuf {
    Path::new("/").join(at)
}

fn look(path: &Path) -> Result<Metadata> {
    path.symlink_metadata().map_err(|e| Error::with(path.display().to_string(), e))
}

fn open(path: &Path) -> Result<File> {
    let mut options = fs::OpenOptions::new();
    // What became a FIFO meanwhile must not be waited for.
    options.read(true).custom_flags(libc::O_NONBLOCK);
    // A cell that has a lease of it gives that back, or loses it.
    let until = Instant::now() + 2 * crate::leases::PATIENCE_AT_IT;
    loop {
        match options.open(path) {
            Err(e) if e.kind() == ErrorKind::WouldBlock && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(1));
            }
            opened => return opened.map_err(|e| Error::with(path.display().to_string(), e)),
        }
    }
}

/// Is a directory one of plain files, not of /proc and its kind?
fn is_plain(dir: &Path) -> Result<bool> {
    Ok(check_file_system(open(dir)?.as_raw_fd()).is_ok())
}

/// Where a program of this name is.
fn in_path(name: &OsStr) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let is_program = |p: &PathBuf| p.metadata().is_ok_and(|m| m.is_file() && m.mode() & 0o111 != 0);
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(is_program)
}

/// Directories for libraries as ld.so knows them: from its configuration, then its own.
fn places_of_glibc() -> Vec<PathBuf> {
    let mut places = Vec::new();
    read_conf(Path::new("/etc/ld.so.conf"), &mut places, 8);
    places.extend(LIBRARIES.map(PathBuf::from));
    places
}

fn places_of_musl() -> Vec<PathBuf> {
    match fs::read("/etc/ld-musl-x86_64.path") {
        Ok(text) => {
            let dirs = text.split(|b| b":\n".contains(b)).filter(|d| !d.is_empty());
            dirs.map(|d| OsStr::from_bytes(d).into()).collect()
        }
        Err(_) => LIBRARIES_OF_MUSL.map(PathBuf::from).into(),
    }
}

/// Reads ld.so.conf(5) and what it includes.
fn read_conf(path: &Path, places: &mut Vec<PathBuf>, depth: u32) {
    let Ok(text) = fs::read(path) else { return };
    for line in text.split(|b| *b == b'\n') {
        let line = line.split(|b| *b == b'#').next().unwrap_or_default();
        let mut words = line.split(|b| b" \t,:".contains(b)).filter(|w| !w.is_empty()).peekable();
        if words.next_if_eq(&&b"include"[..]).is_none() {
            // An older form: DIRECTORY=TYPE.
            let dirs = words.map(|w| w.split(|b| *b == b'=').next().unwrap_or_default());
            places.extend(dirs.map(|d| PathBuf::from(OsStr::from_bytes(d))));
            continue;
        }
        for pattern in words.filter(|_| depth > 0) {
            let pattern = path.parent().unwrap_or(Path::new("/")).join(OsStr::from_bytes(pattern));
            for found in matching(&pattern) {
                read_conf(&found, places, depth - 1);
            }
        }
    }
}

/// Files that a pattern with at most one `*` in its last name matches, in order.
fn matching(pattern: &Path) -> Vec<PathBuf> {
    let name = pattern.file_name().unwrap_or_default().as_bytes();
    let Some(star) = name.iter().position(|b| *b == b'*') else { return vec![pattern.to_owned()] };
    let (start, end) = (&name[..star], &name[star + 1..]);
    let entries = pattern.parent().map(fs::read_dir).into_iter().flatten().flatten().flatten();
    let matches = |n: &[u8]| {
        n.len() >= start.len() + end.len() && n.starts_with(start) && n.ends_with(end) && n[0] != b'.'
    };
    let mut found: Vec<PathBuf> =
        entries.filter(|e| matches(e.file_name().as_bytes())).map(|e| e.path()).collect();
    found.sort();
    found
}

/// Lists of directories as DT_RPATH and DT_RUNPATH have them, with what ld.so puts in for words with `$`.
fn expand(lists: &[OsString], origin: &Path) -> Vec<PathBuf> {
    let mut dirs = Vec::new();
    for dir in lists.iter().flat_map(|l| l.as_bytes().split(|b| *b == b':')).filter(|d| !d.is_empty()) {
        // What $LIB is differs between distributions.
        let libs: &[&str] =
            if find(dir, b"LIB").is_some() { &["lib/x86_64-linux-gnu", "lib64"] } else { &[""] };
        for lib in libs {
            let mut dir = dir.to_vec();
            let words =
                [("ORIGIN", origin.as_os_str().as_bytes()), ("LIB", lib.as_bytes()), ("PLATFORM", b"x86_64")];
            for (word, value) in words {
                for form in [format!("${{{word}}}"), format!("${word}")] {
                    dir = replace(&dir, form.as_bytes(), value);
                }
            }
            dirs.push(OsString::from_vec(dir).into());
        }
    }
    dirs
}

fn replace(mut bytes: &[u8], what: &[u8], by: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(at) = find(bytes, what) {
        out.extend([&bytes[..at], by].concat());
        bytes = &bytes[at + what.len()..];
    }
    out.extend(bytes);
    out
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|w| w == what)
}

/// What an ELF file wants to be loaded with it.
#[derive(Default)]
struct Elf {
    interpreter: Option<PathBuf>,
    needed: Vec<OsString>,
    rpath: Vec<OsString>,
    runpath: Vec<OsString>,
}

impl Elf {
    /// Reads a file. None: it is no program or library for this machine.
    fn read(path: &Path) -> Result<Option<Elf>> {
        let mut file = open(path)?;
        let mut magic = [0; 4];
        match file.read_exact(&mut magic) {
            Ok(()) if magic == elf::ELFMAG => {}
            Err(e) if e.kind() != ErrorKind::UnexpectedEof => {
                return Err(Error::with(path.display().to_string(), e));
            }
            _ => return Ok(None),
        }
        // A damaged one can't be loaded: it needs nothing.
        Ok(Elf::parse(&ReadCache::new(file)).ok().flatten())
    }

    fn parse<'a>(data: impl ReadRef<'a>) -> object::Result<Option<Elf>> {
        let header = elf::FileHeader64::<LE>::parse(data)?;
        let kind = header.e_type(LE);
        if header.e_machine(LE) != elf::EM_X86_64 || ![elf::ET_EXEC, elf::ET_DYN].contains(&kind) {
            return Ok(None);
        }
        let segments = header.program_headers(LE, data)?;
        let mut found = Elf::default();
        let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        for segment in segments {
            if let Some(interpreter) = segment.interpreter(LE, data)? {
                found.interpreter = Some(text(interpreter).into());
            }
            let Some(entries) = segment.dynamic(LE, data)? else { continue };
            let value = |tag| entries.iter().find(|d| d.tag(LE) == tag).map_or(0, |d| d.val(LE));
            let (strings, size) = (value(elf::DT_STRTAB), value(elf::DT_STRSZ));
            // An address of the image: where that is in the file.
            let place = segments.iter().filter(|s| s.p_type(LE) == elf::PT_LOAD).find_map(|s| {
                let within = strings.checked_sub(s.p_vaddr(LE))?;
                (within < s.p_filesz(LE)).then(|| s.p_offset(LE).checked_add(within)).flatten()
            });
            let strings = place.and_then(|at| data.read_bytes_at(at, size).ok()).unwrap_or_default();
            for entry in entries.iter().take_while(|d| d.tag(LE) != elf::DT_NULL) {
                let list = match entry.tag(LE) {
                    elf::DT_NEEDED => &mut found.needed,
                    elf::DT_RPATH => &mut found.rpath,
                    elf::DT_RUNPATH => &mut found.runpath,
                    _ => continue,
                };
                let string = strings.get(entry.val(LE) as usize..).unwrap_or_default();
                list.push(text(string.split(|b| *b == 0).next().unwrap_or_default()));
            }
        }
        Ok(Some(found))
    }
}

/// An archive being written.
struct Archive<W: Write> {
    out: BufWriter<W>,
    /// Bytes so far.
    at: u64,
}

/// A header's numbers that are not the same for all.
#[derive(Default)]
struct Attributes {
    ino: u32,
    mode: u32,
    uid: u32,
    gid: u32,
    nlink: u32,
    mtime: u32,
    rdev: u64,
}

fn write_all(entries: &BTreeMap<PathBuf, Origin>, plans: Option<&Plans>, out: impl Write) -> Result<Packed> {
    let mut archive = Archive { out: BufWriter::with_capacity(1 << 20, out), at: 0 };
    // Names of files that may have several: how many, and the number of the file.
    let mut names: HashMap<(u64, u64), (u32, u32)> = HashMap::new();
    for origin in entries.values() {
        if let Origin::Host(_, meta) = origin
            && !meta.is_dir()
        {
            names.entry((meta.dev(), meta.ino())).or_default().0 += 1;
        }
    }
    let mut left: HashMap<(u64, u64), u32> = names.iter().map(|(k, (n, _))| (*k, *n)).collect();
    let mut packed = Packed::default();
    let mut next = 1;
    for (at, origin) in entries {
        let name = if at.as_os_str().is_empty() { b"." } else { at.as_os_str().as_bytes() };
        let mut fresh = || {
            next += 1;
            next - 1
        };
        packed.entries += 1;
        let (from, meta) = match origin {
            Origin::Directory(mode) => {
                let mode = libc::S_IFDIR | mode;
                archive.entry(
                    name,
                    &Attributes { ino: fresh(), mode, nlink: 2, ..Attributes::default() },
                    0,
                )?;
                continue;
            }
            Origin::Host(from, meta) => (from, meta),
        };
        let mut attributes = Attributes {
            ino: 0,
            mode: meta.mode(),
            uid: meta.uid(),
            gid: meta.gid(),
            nlink: 2,
            mtime: meta.mtime().clamp(0, u32::MAX.into()) as u32,
            rdev: meta.rdev(),
        };
        let key = (meta.dev(), meta.ino());
        let mut last = true;
        match names.get_mut(&key) {
            Some((count, ino)) if !meta.is_dir() => {
                if *ino == 0 {
                    *ino = fresh();
                    packed.files += u64::from(meta.is_file());
                }
                (attributes.ino, attributes.nlink) = (*ino, *count);
                let left = left.get_mut(&key).expect("counted above");
                *left -= 1;
                last = *left == 0;
            }
            _ => attributes.ino = fresh(),
        }
        if meta.is_symlink() {
            let target = fs::read_link(from).map_err(|e| Error::with(from.display().to_string(), e))?;
            let target = target.as_os_str().as_bytes();
            archive.entry(name, &attributes, target.len() as u64)?;
            archive.contents(target)?;
        } else if meta.is_file() && last {
            packed.plans += u64::from(archive.file(name, &attributes, from, plans)?);
        } else {
            // The contents come with the file's last name.
            archive.entry(name, &attributes, 0)?;
        }
    }
    archive.entry(b"TRAILER!!!", &Attributes { nlink: 1, ..Attributes::default() }, 0)?;
    archive.out.flush().map_err(|e| Error::with("writing the archive", e))?;
    packed.bytes = archive.at;
    Ok(packed)
}

impl<W: Write> Archive<W> {
    fn contents(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(|e| Error::with("writing the archive", e))?;
        self.at += bytes.len() as u64;
        self.align()
    }

    /// Zeroes up to where something can begin.
    fn align(&mut self) -> Result<()> {
        let n = self.at.next_multiple_of(4) - self.at;
        self.out.write_all(&[0; 3][..n as usize]).map_err(|e| Error::with("writing the archive", e))?;
        self.at += n;
        Ok(())
    }

    /// A header and a name, for contents of `size` bytes.
    fn entry(&mut self, name: &[u8], a: &Attributes, size: u64) -> Result<()> {
        let mut name_size = name.len() as u64 + 1;
        if name_size > PATH_MAX {
            return Err(Error::new(format!("/{}: too long a path", name.escape_ascii())));
        }
        let start = self.at + HEADER + name_size;
        let filled = name_size + start.next_multiple_of(PAGE) - start;
        if size >= PAGE && filled <= PATH_MAX {
            name_size = filled;
        }
        let (major, minor) = (libc::major(a.rdev), libc::minor(a.rdev));
        let size = u32::try_from(size).map_err(|_| {
            Error::new(format!("/{}: larger than the format can say (4 GiB)", name.escape_ascii()))
        })?;
        let numbers =
            [a.ino, a.mode, a.uid, a.gid, a.nlink, a.mtime, size, 0, 0, major, minor, name_size as u32, 0];
        let header: String = numbers.iter().map(|n| format!("{n:08x}")).collect();
        let mut bytes = [b"070701", header.as_bytes(), name].concat();
        bytes.resize(HEADER as usize + name_size as usize, 0);
        self.contents(&bytes)
    }

    /// A regular file with its contents, and before it its plan; was there one?
    fn file(&mut self, name: &[u8], a: &Attributes, from: &Path, plans: Option<&Plans>) -> Result<bool> {
        let wrong = |e| Error::with(from.display().to_string(), e);
        let mut file = open(from)?;
        // As long as it is now.
        let meta = file.metadata().map_err(wrong)?;
        if !meta.is_file() {
            return Err(Error::new(format!("{}: no regular file any more", from.display())));
        }
        let plan = plans.map_or(Vec::new(), |plans| plan(plans, &file, &meta));
        if !plan.is_empty() {
            let mode = libc::S_IFREG | 0o400;
            let attributes = Attributes { mode, nlink: 1, ..Attributes::default() };
            let name = format!("{PLANS}{}", a.ino);
            self.entry(name.as_bytes(), &attributes, plan.len() as u64)?;
            self.contents(&plan)?;
        }
        self.entry(name, a, meta.len())?;
        let mut left = meta.len();
        let mut buffer = vec![0; 1 << 18];
        while left > 0 {
            let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let n = match file.read(&mut buffer[..most]) {
                Ok(0) => return Err(Error::new(format!("{}: became shorter meanwhile", from.display()))),
                Ok(n) => n,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(wrong(e)),
            };
            self.out.write_all(&buffer[..n]).map_err(|e| Error::with("writing the archive", e))?;
            self.at += n as u64;
            left -= n as u64;
        }
        self.align()?;
        Ok(!plan.is_empty())
    }
}

/// A file's plan as an archive has it: version, records. Empty: there is nothing to rewrite.
fn plan(plans: &Plans, file: &File, meta: &Metadata) -> Vec<u8> {
    let mut magic = [0; elf::ELFMAG.len()];
    if file.read_exact_at(&mut magic, 0).is_err() || magic != elf::ELFMAG {
        return Vec::new();
    }
    let records = plans.records(file, meta);
    if records.is_empty() { records } else { [&atoll_rewrite::VERSION.to_le_bytes()[..], &records].concat() }
}
