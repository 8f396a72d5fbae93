//! Packed root file systems: cpio(1) unpacks them, and programs start in them.
#![allow(missing_docs, reason = "tests")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use atoll_supervisor::pack::{Packed, Packer};

/// A fresh directory for a test.
fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pack").join(name);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

/// Packs, and unpacks by cpio(1).
fn unpacked(name: &str, collect: impl FnOnce(&mut Packer)) -> (PathBuf, Packed) {
    let dir = scratch(name);
    let mut packer = Packer::new();
    collect(&mut packer);
    let archive = dir.with_extension("cpio");
    let packed = packer.write(File::create(&archive).unwrap()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(packed.bytes, archive.metadata().unwrap().len());
    check_alignment(&fs::read(&archive).unwrap(), &packed);
    let status = Command::new("cpio")
        .args(["--extract", "--make-directories", "--preserve-modification-time", "--quiet"])
        .current_dir(&dir)
        .stdin(File::open(&archive).unwrap())
        .status()
        .expect("cpio, of Debian's package of that name");
    assert!(status.success());
    (dir, packed)
}

/// Contents of a page and more begin at one, unless the name would be too long with what is put behind it for that.
fn check_alignment(archive: &[u8], packed: &Packed) {
    let number =
        |at: usize| usize::from_str_radix(str::from_utf8(&archive[at..at + 8]).unwrap(), 16).unwrap();
    let (mut at, mut entries) = (0, 0);
    while at < archive.len() {
        assert_eq!(&archive[at..at + 6], b"070701");
        let (size, name) = (number(at + 54), number(at + 94));
        let data = (at + 110 + name).next_multiple_of(4);
        assert!(name <= 4096);
        if size >= 4096 {
            let bare = archive[at + 110..].iter().position(|b| *b == 0).unwrap() + 1;
            let end = at + 110 + bare;
            let fits = end.next_multiple_of(4096) - end + bare <= 4096;
            assert_eq!(data.is_multiple_of(4096), fits, "contents at {data}, of an entry at {at}");
        }
        at = (data + size).next_multiple_of(4);
        entries += 1;
    }
    assert_eq!(entries, packed.entries + 1);
}

/// Inode numbers of an archive's plans and regular files with contents, in its order.
fn plans_and_files(archive: &[u8]) -> (Vec<(bool, usize)>, u64) {
    let number =
        |at: usize| usize::from_str_radix(str::from_utf8(&archive[at..at + 8]).unwrap(), 16).unwrap();
    let (mut at, mut found, mut plans) = (0, Vec::new(), 0);
    while at < archive.len() {
        let (ino, mode, size, len) = (number(at + 6), number(at + 14), number(at + 54), number(at + 94));
        let name = archive[at + 110..at + 110 + len].split(|b| *b == 0).next().unwrap();
        if let Some(of) = name.strip_prefix(b".atoll/plans/") {
            found.push((true, str::from_utf8(of).unwrap().parse().unwrap()));
            plans += 1;
        } else if mode & 0o170000 == 0o100000 && size > 0 {
            found.push((false, ino));
        }
        at = ((at + 110 + len).next_multiple_of(4) + size).next_multiple_of(4);
    }
    (found, plans)
}

#[test]
fn plans_of_executables() {
    let dir = scratch("plans");
    let pack = |cache: Option<PathBuf>| {
        let mut packer = Packer::new();
        packer.plan(cache);
        packer.program(Path::new("/bin/true")).unwrap();
        let mut archive = Vec::new();
        let packed = packer.write(&mut archive).unwrap();
        (archive, packed.plans)
    };
    let (archive, plans) = pack(Some(dir.join("cache")));
    // At least the C library and its loader; each plan right before its file.
    let (found, counted) = plans_and_files(&archive);
    assert!(plans >= 2 && plans == counted, "{plans}, {counted}");
    for pair in found.windows(2).filter(|pair| pair[0].0) {
        assert_eq!(pair[1], (false, pair[0].1));
    }
    // Those that are kept are the same.
    assert!(fs::read_dir(dir.join("cache")).unwrap().count() >= 2);
    assert!(pack(Some(dir.join("cache"))).0 == archive);
    assert!(pack(None).0 == archive);
    let root = dir.join("root");
    fs::create_dir_all(root.join(".atoll/plans")).unwrap();
    let mut packer = Packer::new();
    packer.plan(None);
    packer.rootfs(&root).unwrap();
    let wrong = packer.write(Vec::new()).unwrap_err().to_string();
    assert_eq!(wrong, "/.atoll/plans: this name means a plan of Atoll's");
}

/// What a program writes in a root of its own; None: only root can try.
fn run_in(root: &Path, args: &[&str]) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not tried without root: chroot {}", args.join(" "));
        return None;
    }
    let mut command = Command::new("chroot");
    command.arg(root).args(args).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").stderr(Stdio::inherit());
    // What ld.so asks /proc for elsewhere.
    command.env("LD_ORIGIN_PATH", Path::new(args[0]).parent().unwrap());
    let out = command.output().unwrap();
    assert!(out.status.success(), "{args:?}: {}", out.status);
    Some(String::from_utf8(out.stdout).unwrap())
}

#[test]
fn program_with_its_libraries() {
    let (root, packed) = unpacked("true", |p| p.program(Path::new("/bin/true")).unwrap());
    run_in(&root, &["/bin/true"]);
    assert!(packed.files > 3 && packed.missing.is_empty(), "{packed:?}");
    // As on the host: whatever links lead to it.
    for path in ["bin", "lib", "lib64", "bin/true", "etc/passwd"] {
        let (there, here) = (Path::new("/").join(path), root.join(path));
        assert_eq!(fs::read_link(there).ok(), fs::read_link(here).ok(), "{path}");
    }
    for (name, mode) in [("proc", 0o555), ("tmp", 0o1777), ("root", 0o700), ("run", 0o755)] {
        assert_eq!(root.join(name).metadata().unwrap().mode() & 0o7777, mode, "{name}");
    }
}

#[test]
fn python_with_its_modules() {
    let python = Path::new("/usr/bin/python3");
    let where_it_is = "import os; print(os.path.dirname(os.__file__))";
    let Ok(out) = Command::new(python).args(["-c", where_it_is]).output() else {
        eprintln!("not tried: there is no {}", python.display());
        return;
    };
    let modules = String::from_utf8(out.stdout).unwrap();
    let (root, _) = unpacked("python", |p| {
        p.program(python).unwrap();
        p.include(Path::new(modules.trim())).unwrap();
    });
    // Modules bring their libraries along; names are looked up by what the C library loads.
    let code = "import ctypes, json, pwd, ssl; print(json.dumps([6 * 7, pwd.getpwuid(0).pw_name]))";
    if let Some(out) = run_in(&root, &["/usr/bin/python3", "-c", code]) {
        assert_eq!(out, "[42, \"root\"]\n");
    }
    // It is large.
    fs::remove_dir_all(&root).unwrap();
    fs::remove_file(root.with_extension("cpio")).unwrap();
}

#[test]
fn script_with_its_interpreter() {
    let dir = scratch("scripts");
    for (name, line) in [("plain", "#! /bin/sh"), ("env", "#!/usr/bin/env -S sh -e")] {
        let script = dir.join(name);
        fs::write(&script, format!("{line}\necho $((6 * 7))\n")).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let (root, _) = unpacked(&format!("script-{name}"), |p| p.program(&script).unwrap());
        if let Some(out) = run_in(&root, &[script.to_str().unwrap()]) {
            assert_eq!(out, "42\n");
        }
    }
    let mut packer = Packer::new();
    fs::write(dir.join("text"), "text").unwrap();
    let wrong = packer.program(&dir.join("text")).unwrap_err().to_string();
    assert!(wrong.ends_with("text: neither a program for this machine nor a script"), "{wrong}");
}

/// Libraries are found by DT_RUNPATH with $ORIGIN, and by DT_RPATH for what a library needs in turn.
#[test]
fn libraries_beside_a_program() {
    let dir = scratch("origin");
    fs::create_dir_all(dir.join("bin")).unwrap();
    fs::create_dir_all(dir.join("private/deep")).unwrap();
    let compile = |args: &[&str], code: &str, libraries: &[&str]| {
        let source = dir.join("source.c");
        fs::write(&source, code).unwrap();
        let mut gcc = Command::new("gcc");
        gcc.current_dir(&dir).args(args).arg(source).args(["-Lprivate", "-Lprivate/deep"]).args(libraries);
        assert!(gcc.status().unwrap().success());
    };
    let inner = "int inner(void) { return 42; }";
    compile(&["-shared", "-fPIC", "-oprivate/deep/libinner.so"], inner, &[]);
    let outer = "int inner(void); int outer(void) { return inner(); }";
    compile(&["-shared", "-fPIC", "-oprivate/libouter.so"], outer, &["-linner"]);
    let main = "#include <stdio.h>\nint outer(void); int main(void) { printf(\"%d\\n\", outer()); }";
    let path = "-Wl,-rpath,$ORIGIN/../private:${ORIGIN}/../private/deep,-rpath-link,private/deep";
    // The inner one is found by its loader's loader's DT_RPATH only.
    compile(&["-Wl,--disable-new-dtags", path, "-obin/good"], main, &["-louter"]);
    compile(&["-Wl,--enable-new-dtags", path, "-obin/bad"], main, &["-louter"]);
    let (root, _) = unpacked("origin-root", |p| p.program(&dir.join("bin/good")).unwrap());
    let program = dir.join("bin/good");
    if let Some(out) = run_in(&root, &[program.to_str().unwrap()]) {
        assert_eq!(out, "42\n");
    }
    let wrong = Packer::new().program(&dir.join("bin/bad")).unwrap_err().to_string();
    assert!(wrong.ends_with("libouter.so needs libinner.so, which is nowhere to be found"), "{wrong}");
    let (_, packed) = unpacked("origin-included", |p| p.include(&dir.join("bin/bad")).unwrap());
    assert!(matches!(&packed.missing[..], [m] if m.ends_with("libouter.so needs libinner.so")), "{packed:?}");
}

/// A directory as the root is the same tree again, sockets left out.
#[test]
fn whole_root() {
    let tree = scratch("tree");
    fs::create_dir_all(tree.join("usr/lib")).unwrap();
    fs::create_dir(tree.join("tmp")).unwrap();
    fs::set_permissions(tree.join("tmp"), fs::Permissions::from_mode(0o700)).unwrap();
    for (name, len) in [("usr/lib/large", 1_000_001), ("page", 4096), ("less", 4095), ("none", 0)] {
        fs::write(tree.join(name), (0..len).map(|n| (n % 253) as u8).collect::<Vec<_>>()).unwrap();
    }
    fs::write(tree.join(std::ffi::OsStr::from_bytes(b"by\xfftes \n")), b"a name").unwrap();
    fs::hard_link(tree.join("usr/lib/large"), tree.join("again")).unwrap();
    fs::set_permissions(tree.join("page"), fs::Permissions::from_mode(0o4510)).unwrap();
    symlink("usr/lib", tree.join("lib")).unwrap();
    symlink("/nowhere", tree.join("dangling")).unwrap();
    assert!(Command::new("mkfifo").arg(tree.join("fifo")).status().unwrap().success());
    let _socket = UnixListener::bind(tree.join("socket")).unwrap();

    let (root, packed) = unpacked("tree-again", |p| p.rootfs(&tree).unwrap());
    assert_eq!(packed.files, 5);
    let all = |dir: &Path| {
        let mut found = BTreeMap::new();
        look_through(dir, dir, &mut found);
        found
    };
    let (mut before, mut after) = (all(&tree), all(&root));
    before.remove(Path::new("socket"));
    for name in ["proc", "dev", "sys", "run", "root"] {
        assert!(after.remove(Path::new(name)).is_some(), "{name}");
    }
    // The root's time is that of its last name, a socket's or a mount point's.
    for seen in [&mut before, &mut after] {
        seen.remove(Path::new(""));
    }
    assert_eq!(before, after);
}

/// Kind and permissions, owner, time, number of names, and a hash of contents or target.
type Seen = (u32, u32, u32, i64, u64, u64);

fn look_through(top: &Path, path: &Path, found: &mut BTreeMap<PathBuf, Seen>) {
    let meta = path.symlink_metadata().unwrap();
    let mut nlink = meta.nlink();
    let contents = if meta.is_symlink() {
        fs::read_link(path).unwrap().as_os_str().as_bytes().to_vec()
    } else if meta.is_file() {
        fs::read(path).unwrap()
    } else {
        Vec::new()
    };
    if meta.is_dir() {
        nlink = 0;
        for entry in fs::read_dir(path).unwrap() {
            look_through(top, &entry.unwrap().path(), found);
        }
    }
    // cpio gives links the time when it makes them.
    let time = if meta.is_dir() || meta.is_symlink() { 0 } else { meta.mtime() };
    let mut hasher = DefaultHasher::new();
    contents.hash(&mut hasher);
    let seen = (meta.mode(), meta.uid(), meta.gid(), time, nlink, hasher.finish());
    found.insert(path.strip_prefix(top).unwrap().to_owned(), seen);
}

#[test]
fn what_can_not_be_packed_is_said() {
    let dir = scratch("wrong");
    let wrong = Packer::new().include(&dir.join("nothing")).unwrap_err().to_string();
    assert!(wrong.contains("wrong/nothing: No such file"), "{wrong}");
    symlink("loop", dir.join("loop")).unwrap();
    let wrong = Packer::new().include(&dir.join("loop")).unwrap_err().to_string();
    assert!(wrong.ends_with("loop: too many symbolic links"), "{wrong}");
    // It takes no room: nobody writes it.
    File::create(dir.join("huge")).unwrap().set_len(1 << 32).unwrap();
    let mut packer = Packer::new();
    packer.include(&dir.join("huge")).unwrap();
    let wrong = packer.write(std::io::sink()).unwrap_err().to_string();
    assert!(wrong.ends_with("wrong/huge: larger than the format can say (4 GiB)"), "{wrong}");
    // A directory of the root where the host has a link.
    fs::create_dir_all(dir.join("root/bin")).unwrap();
    fs::write(dir.join("root/bin/file"), "").unwrap();
    if Path::new("/bin").is_symlink() {
        let mut packer = Packer::new();
        packer.rootfs(&dir.join("root")).unwrap();
        packer.include(Path::new("/bin/true")).unwrap();
        let wrong = packer.write(std::io::sink()).unwrap_err().to_string();
        assert_eq!(wrong, "/bin/file lies in /bin, which is no directory here");
    }
    assert!(Packer::new().program(Path::new("no-such-program")).is_err());
}

/// The same input makes the same archive.
#[test]
fn archives_are_reproducible() {
    let archive = || {
        let mut packer = Packer::new();
        packer.program(Path::new("/bin/true")).unwrap();
        let mut bytes = Vec::new();
        packer.write(&mut bytes).unwrap();
        bytes
    };
    assert!(archive() == archive());
}
