//! Archives, mounted in the memory of a cell on the simulated platform.
#![allow(missing_docs, reason = "tests")]
#![allow(unsafe_code, reason = "makes a cell's memory and looks into it")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use atoll_abi::Errno;
use atoll_abi::layout::{PAGE, USER_MAX, USER_MIN};
use atoll_abi::platform::Access;
use atoll_fs::archive::mount;
use atoll_fs::node::At;
use atoll_fs::{Attr, Cred, File, FileType, InodeRef, Sink, Source};
use atoll_mem::heap::memory;
use atoll_mem::texts::{self, Texts};
use atoll_mem::vm::{AddressSpace, Advice, Kind, MapRequest, Moved, Place, RewriteSite, Rewriting};
use cell::{MEMORY, find, in_cell};
use linux_raw_sys::general as linux;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

mod cell;

const CHUNK: u64 = 64 << 10;

/// What a test puts into an archive.
#[derive(Clone, Copy, Default)]
struct Entry<'a> {
    name: &'a str,
    mode: u32,
    data: &'a [u8],
    ino: u32,
    nlink: u32,
    mtime: u32,
    uid: u32,
    /// Zeroes behind the name.
    fill: usize,
}

fn dir(name: &str) -> Entry<'_> {
    Entry { name, mode: 0o40755, nlink: 2, ..Entry::default() }
}

fn file<'a>(name: &'a str, data: &'a [u8]) -> Entry<'a> {
    Entry { name, mode: 0o100644, data, nlink: 1, ..Entry::default() }
}

fn link<'a>(name: &'a str, to: &'a str) -> Entry<'a> {
    Entry { name, mode: 0o120777, data: to.as_bytes(), nlink: 1, ..Entry::default() }
}

fn newc(entries: &[Entry]) -> Vec<u8> {
    let mut out = Vec::new();
    for e in entries.iter().chain([&Entry { name: "TRAILER!!!", nlink: 1, ..Entry::default() }]) {
        let name_size = e.name.len() + 1 + e.fill;
        let numbers =
            [e.ino, e.mode, e.uid, 7, e.nlink, e.mtime, e.data.len() as u32, 0, 0, 0, 0, name_size as u32, 0];
        out.extend(b"070701");
        for n in numbers {
            write!(out, "{n:08x}").unwrap();
        }
        out.extend(e.name.as_bytes());
        out.resize(out.len() + 1 + e.fill, 0);
        out.resize(out.len().next_multiple_of(4), 0);
        out.extend(e.data);
        out.resize(out.len().next_multiple_of(4), 0);
    }
    out
}

fn leak(bytes: Vec<u8>) -> &'static [u8] {
    Box::leak(bytes.into_boxed_slice())
}

fn mounted(entries: &[Entry]) -> InodeRef {
    mount(leak(newc(entries)), MEMORY).map(|(_, root)| root).unwrap_or_else(|e| panic!("{e}"))
}

fn refused(entries: &[Entry]) -> String {
    mount(leak(newc(entries)), MEMORY).map(drop).expect_err("a damaged archive").to_string()
}

fn open(root: &InodeRef, path: &str) -> Arc<dyn File> {
    find(root, path).and_then(|node| node.open(linux::O_RDWR, &Cred::root())).unwrap()
}

fn contents(file: &dyn File) -> Vec<u8> {
    let mut bytes = vec![0xee; file.attr().unwrap().size as usize + 10];
    let n = file.read(&mut Sink::kernel(&mut bytes), Some(0), false).unwrap();
    bytes.truncate(n);
    bytes
}

fn put(file: &dyn File, at: u64, bytes: &[u8]) {
    let done = file.write(&mut Source::kernel(bytes), At::Offset(at), false);
    assert_eq!(done, Ok((bytes.len(), at + bytes.len() as u64)));
}

/// What a mapping of the file shows at `at`'s 64 KiB.
fn shown(file: &Arc<dyn File>, at: u64) -> Vec<u8> {
    let object = file.clone().mappable().unwrap().object().unwrap();
    let offset = object.chunk(at / CHUNK * CHUNK).unwrap();
    let mut bytes = vec![0; CHUNK as usize];
    Sink::kernel(&mut bytes).put_memory(offset, CHUNK as usize).unwrap();
    bytes
}

/// Bytes that differ from each other's neighbours, none of them zero.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n % 251 + n / 4096 % 4) as u8 + 1).collect()
}

/// All that an archive can hold, from the names that it gives to what a program sees.
#[test]
fn entries_become_files() {
    in_cell!(|| {
        let root = mounted(&[
            Entry { mode: 0o40711, mtime: 5, ..dir(".") },
            Entry { mtime: 77, uid: 3, mode: 0o42750, ..dir("./etc/") },
            Entry { mtime: 99, uid: 4, mode: 0o104755, ..file("/etc/tool", b"abc") },
            file("a/b/c", b""),
            link("lib", "usr/lib"),
            dir("usr"),
            file("lib/x", b"behind a link"),
            link("usr/back", "../etc"),
            file("usr/back/y", b"back"),
            Entry { mode: 0o10600, ..file("pipe", b"") },
            Entry { mode: 0o20600, ..file("null", b"") },
            Entry { fill: 3000, ..file("filled", b"name") },
        ]);
        let attr = |path: &str| find(&root, path).unwrap().attr().unwrap();
        let Attr { mode, mtime, .. } = root.attr().unwrap();
        assert_eq!((mode, mtime.sec), (0o40711, 5));
        let etc = attr("etc");
        assert_eq!((etc.mode, etc.mtime.sec, etc.uid, etc.gid, etc.nlink), (0o42750, 77, 3, 7, 2));
        let tool = attr("etc/tool");
        assert_eq!((tool.mode, tool.mtime.sec, tool.uid, tool.size), (0o104755, 99, 4, 3));
        assert_eq!((tool.nlink, tool.blocks), (1, 8));
        assert_eq!((attr("a").mode, attr("a/b").mode, attr("a/b/c").size), (0o40755, 0o40755, 0));
        assert_eq!(find(&root, "lib").unwrap().read_link().unwrap(), b"usr/lib");
        assert_eq!(contents(&*open(&root, "usr/lib/x")), b"behind a link");
        assert_eq!(contents(&*open(&root, "etc/y")), b"back");
        assert_eq!(attr("pipe").mode, 0o10600);
        assert_eq!(find(&root, "null").map(drop), Err(Errno::ENOENT));
        assert_eq!(contents(&*open(&root, "filled")), b"name");
    });
}

#[test]
fn later_entries_replace_earlier_ones() {
    in_cell!(|| {
        let mut bytes = newc(&[
            file("f", b"old"),
            link("d", "f"),
            dir("kept"),
            file("kept/in", b"in"),
            Entry { ino: 9, nlink: 2, ..file("one", b"") },
            Entry { ino: 9, nlink: 2, ..file("two", b"data") },
            dir("empty"),
        ]);
        // Filled up, and a second archive behind it, with inode numbers of its own.
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes.extend(newc(&[
            file("f", b"new"),
            dir("d"),
            Entry { mode: 0o40700, ..dir("kept") },
            Entry { ino: 9, nlink: 2, ..file("three", b"third") },
            Entry { ino: 9, nlink: 2, ..file("three", b"") },
            file("empty", b"no more"),
        ]));
        let (_, root) = mount(leak(bytes), MEMORY).unwrap();
        let root: InodeRef = root;
        let attr = |path: &str| find(&root, path).unwrap().attr().unwrap();
        assert_eq!(contents(&*open(&root, "f")), b"new");
        assert_eq!(attr("d").kind(), FileType::Directory);
        assert_eq!(attr("kept").mode, 0o40700);
        assert_eq!(contents(&*open(&root, "kept/in")), b"in");
        assert_eq!(contents(&*open(&root, "empty")), b"no more");
        assert_eq!((attr("one").ino, attr("one").nlink), (attr("two").ino, 2));
        assert_eq!(contents(&*open(&root, "one")), b"data");
        assert_eq!((contents(&*open(&root, "three")), attr("three").nlink), (b"third".to_vec(), 1));
        assert_ne!(attr("three").ino, attr("one").ino);
        // What is written by one name is read by the other.
        put(&*open(&root, "one"), 4, b"base");
        assert_eq!(contents(&*open(&root, "two")), b"database");
    });
}

#[test]
fn what_is_wrong_is_said() {
    in_cell!(|| {
        let long = "n".repeat(256);
        for (entries, what) in [
            (&[file("a/../b", b"")][..], "a/../b, at byte 0: \"..\" in its name"),
            (&[file("f", b""), file("f/g", b"")], "f/g, at byte 112: in something that is no directory"),
            (&[link("l", "")], "l, at byte 0: a link with an impossible target"),
            (&[link("l", "l"), file("l/f", b"")], "l/f, at byte 116: behind too many links"),
            (
                &[dir("d"), file("d/f", b""), file("d", b"")],
                "d, at byte 228: its name is a directory's that has entries",
            ),
            (&[file("/", b"")], "/, at byte 0: the root is no directory"),
            (&[file(".atoll/plans/f", b"")], ".atoll/plans/f, at byte 0: a plan of no file"),
            (&[file(&long, b"")], &format!("{long}, at byte 0: a name that is too long")),
            (&[Entry { mode: 0o644, ..file("f", b"") }], "f, at byte 0: a file of no kind"),
            (&[Entry { fill: 4095, ..file("f", b"") }], "at byte 0: a name of an impossible length"),
        ] {
            assert_eq!(refused(entries), what);
        }
        let wrong = |bytes: &'static [u8]| mount(bytes, MEMORY).map(drop).unwrap_err().to_string();
        assert_eq!(wrong(b""), "at byte 0: it ends without a trailer");
        assert_eq!(wrong(&[0; 512]), "at byte 0: no header of the format newc");
        assert_eq!(wrong(b"\x1f\x8b, compressed"), "at byte 0: it ends within a header");
    });
}

/// No archive that was cut off or damaged panics, and none that was cut off passes.
#[test]
fn damaged_archives() {
    in_cell!(|| {
        let data = pattern(300);
        let good = newc(&[
            dir("d"),
            file("d/f", &data),
            link("l", "d"),
            Entry { ino: 1, nlink: 2, ..file("l/one", b"") },
            Entry { ino: 1, nlink: 2, ..file("l/two", b"x") },
        ]);
        // The padding behind the trailer's name may be missing.
        for len in 0..good.len() - 3 {
            assert!(mount(leak(good[..len].to_vec()), MEMORY).is_err(), "cut off at {len}");
        }
        let config = ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() };
        let header = prop::collection::vec(prop::sample::select(&b"0123456789abcdef70701"[..]), 104);
        let damage = (any::<prop::sample::Index>(), prop::sample::select(&b"0178f/.\0 x\xff"[..]));
        TestRunner::new(config)
            .run(
                &(prop::collection::vec(damage, 1..12), header, prop::collection::vec(any::<u8>(), 0..200)),
                |(damages, header, junk)| {
                    let mut bytes = good.clone();
                    for (at, byte) in damages {
                        let at = at.index(bytes.len());
                        bytes[at] = byte;
                    }
                    let _ = mount(leak(bytes), MEMORY);
                    let random = [&b"070701"[..], &header, &junk].concat();
                    prop_assert!(mount(leak(random), MEMORY).is_err());
                    prop_assert!(mount(leak(junk), MEMORY).is_err());
                    Ok(())
                },
            )
            .unwrap();
    });
}

/// One site, where a plan says.
struct Site(u64, Texts);

impl Rewriting for Site {
    fn sites(&self, start: u64, end: u64) -> Vec<RewriteSite> {
        let site = RewriteSite { offset: self.0, len: 5, index: 0 };
        if (start..end).contains(&self.0) { vec![site] } else { Vec::new() }
    }

    fn room(&self, sites: &[RewriteSite]) -> u64 {
        16 * sites.len() as u64
    }

    fn texts(&self) -> &Texts {
        &self.1
    }

    fn write(&self, _: &RewriteSite, text: &mut [u8], _: u64, out: &mut [u8], _: u64) -> Option<Moved> {
        text.fill(0xe9);
        out[..16].fill(0xcc);
        Some(Moved { len: 16, ..Moved::default() })
    }
}

/// The site's offset, one byte: the only plan in these archives.
fn planned(bytes: &'static [u8], size: u64) -> Option<Arc<dyn Rewriting>> {
    let [n] = bytes else { panic!("{bytes:?}") };
    let offset = u64::from(*n) * 1000;
    (offset < size).then(|| Arc::new(Site(offset, Texts::default())) as Arc<dyn Rewriting>)
}

fn with_plans(entries: &[Entry]) -> InodeRef {
    let (fs, root) = mount(leak(newc(entries)), MEMORY).unwrap();
    fs.set_planner(planned);
    root
}

/// A plan is no file; it is its file's until the file is changed, or somebody may do so unseen.
#[test]
fn plans_come_with_files() {
    in_cell!(|| {
        let data = pattern(100_000);
        let linked = |name, data| Entry { ino: 7, nlink: 2, ..file(name, data) };
        let root = || {
            with_plans(&[
                linked("one", b""),
                file(".atoll/plans/7", b"\x05"),
                linked("two", &data),
                file(".atoll/plans/8", b"\xff"),
                Entry { ino: 8, ..file("short", &data) },
                Entry { ino: 9, ..file("none", &data) },
            ])
        };
        let has_plan = |file: Arc<dyn File>| file.mappable().unwrap().rewriting().is_some();
        let first = root();
        assert_eq!(find(&first, ".atoll").map(drop), Err(Errno::ENOENT));
        let plans = ["one", "two", "short", "none"].map(|name| has_plan(open(&first, name)));
        assert_eq!(plans, [true, true, false, false]);
        assert_eq!(contents(&*open(&first, "one")), data);
        assert!(has_plan(open(&first, "one")));
        let changes: [fn(Arc<dyn File>); 4] = [
            |f| put(&*f, 99_999, b"x"),
            |f| f.truncate(99_999).unwrap(),
            |f| {
                let punch = linux::FALLOC_FL_PUNCH_HOLE | linux::FALLOC_FL_KEEP_SIZE;
                f.allocate(punch, 50_000, 1).unwrap();
            },
            |f| {
                f.mappable().unwrap().object().unwrap().chunk(0).unwrap();
            },
        ];
        for (n, change) in changes.into_iter().enumerate() {
            let root = root();
            change(open(&root, "one"));
            assert!(!has_plan(open(&root, "two")), "change {n}");
            open(&root, "one").truncate(100_000).unwrap();
            assert!(!has_plan(open(&root, "two")), "change {n}, undone");
        }
    });
}

/// Private mappings of a file with a plan are rewritten when they become executable, if they never were writable.
#[test]
fn private_mappings_are_rewritten() {
    in_cell!(|| {
        let data = pattern(200_000);
        let root = with_plans(&[file(".atoll/plans/1", b"\x64"), Entry { ino: 1, ..file("f", &data) }]);
        let text = open(&root, "f").mappable().unwrap();
        let space = AddressSpace::new(USER_MAX / 2);
        let (read, write, run) = (Access::READ, Access::READ | Access::WRITE, Access::READ | Access::EXEC);
        let map = |access, shared, offset| {
            let kind = Kind::File { file: text.clone(), offset };
            let (place, name, populate) = (Place::Hint, "", false);
            let addr = USER_MIN;
            space
                .map(MapRequest {
                    addr,
                    len: 1 << 17,
                    access,
                    shared,
                    kind,
                    place,
                    name,
                    populate,
                    ..MapRequest::default()
                })
                .unwrap()
        };
        let window = |start| space.window_at(start + 100_000).map(|(at, w)| (at - start, w.len));
        let at = map(run, false, 0);
        assert_eq!((space.rewritten(), window(at)), (1, Some((100_000, 5))));
        // All of it, for others to show, and the trampoline's 64 KiB.
        assert_eq!(space.residence(0, u64::MAX).sum(), (1 << 17) + CHUNK);
        space.fault(at, false, true).unwrap();
        space.fault(at + 100_000, false, true).unwrap();
        // What is dropped would come back without its jump.
        space.advise(at, 1 << 17, Advice::Discard).unwrap();
        assert_eq!((space.rewritten(), window(at)), (1, Some((100_000, 5))));
        space.unmap(at, 1 << 17).unwrap();
        assert_eq!(window(at), None);
        let at = map(read, false, 0);
        space.fault(at + 100_000, false, false).unwrap();
        assert_eq!(window(at), None);
        for access in [run, read, run] {
            space.protect(at, 1 << 17, access, u64::MAX).unwrap();
            assert_eq!((space.rewritten(), window(at)), (2, Some((100_000, 5))));
        }
        // Not the part with the site.
        map(run, false, 1 << 17);
        for access in [Access::empty(), write, write | Access::EXEC] {
            let at = map(access, false, 0);
            space.protect(at, 1 << 17, write, u64::MAX).unwrap();
            space.protect(at, 1 << 17, run, u64::MAX).unwrap();
        }
        map(run, true, 0);
        assert_eq!(space.rewritten(), 2);
    });
}

/// Spaces show the same code of a file, wherever it lies alike in its slots, until it is given up.
#[test]
fn texts_are_shared() {
    in_cell!(|| {
        let data = pattern(200_000);
        let root = with_plans(&[file(".atoll/plans/1", b"\x64"), Entry { ino: 1, ..file("f", &data) }]);
        let text = open(&root, "f").mappable().unwrap();
        let (access, len) = (Access::READ | Access::EXEC, 1 << 17);
        let map = |space: &AddressSpace, addr| {
            let kind = Kind::File { file: text.clone(), offset: 0 };
            let (shared, place, name, populate) = (false, Place::Fixed, "", false);
            space
                .map(MapRequest {
                    addr,
                    len,
                    access,
                    shared,
                    kind,
                    place,
                    name,
                    populate,
                    ..MapRequest::default()
                })
                .unwrap()
        };
        let used = || memory().used();
        let before = used();
        let once = (1 << 17) + CHUNK;
        let spaces = [0, 1, 2].map(|_| AddressSpace::new(USER_MAX / 2));
        for (n, space) in spaces.iter().enumerate() {
            let at = map(space, 0x10_0000_0000 + n as u64 * 0x1234_0000);
            assert_eq!((space.rewritten(), space.residence(0, u64::MAX).sum()), (1, len + CHUNK));
            let (start, w) = space.window_at(at + 100_004).unwrap();
            assert_eq!(start, at + 100_000);
            assert_eq!(space.window_of_trampoline(w.trampoline + 15).unwrap().0, start);
            assert_eq!(used() - before, once, "space {n}");
        }
        // Not where it lies otherwise, nor beside something else in its slots.
        let other = AddressSpace::new(USER_MAX / 2);
        map(&other, 0x10_0000_1000);
        assert!(used() - before > once);
        drop(other);
        // A part of it that goes takes its windows with it, and the last part the trampolines.
        let at = 0x10_0000_0000;
        spaces[0].unmap(at + 0x1_8000, PAGE).unwrap();
        assert!(spaces[0].window_at(at + 100_000).is_none());
        assert!(spaces[0].total() > len);
        for (from, len) in [(0, 0x1_8000), (0x1_9000, len - 0x1_9000)] {
            spaces[0].unmap(at + from, len).unwrap();
        }
        assert_eq!((spaces[0].total(), spaces[0].residence(0, u64::MAX).sum()), (0, 0));
        // What was given up, with what lay otherwise, is its users' alone, and the next one makes it again.
        assert_eq!(texts::give_up(0), 3 + 4);
        assert_eq!((texts::give_up(0), used() - before), (0, once));
        map(&spaces[0], at);
        assert_eq!(used() - before, 2 * once);
        drop(spaces);
        assert_eq!(used() - before, once);
        drop((text, root));
        assert_eq!((texts::give_up(0), used()), (0, before));
    });
}

/// What nobody writes or maps takes no memory.
#[test]
fn contents_stay_in_the_archive() {
    in_cell!(|| {
        let data = pattern(1 << 20);
        let before = memory().used();
        let root = mounted(&[file("f", &data), file("small", b"small"), file("page", &data[..3 * 4096])]);
        let f = open(&root, "f");
        assert_eq!(contents(&*f), data);
        assert_eq!(f.attr().unwrap().blocks, 2048);
        assert_eq!((f.seek_data(5, false, 1 << 20), f.seek_data(5, true, 1 << 20)), (Ok(5), Ok(1 << 20)));
        let punch = linux::FALLOC_FL_PUNCH_HOLE | linux::FALLOC_FL_KEEP_SIZE;
        f.allocate(punch, 100, 5000).unwrap();
        f.truncate(1 << 19).unwrap();
        assert_eq!((memory().used(), f.attr().unwrap().blocks), (before, 1024));
        // One chunk, and of small files as few pages as hold them.
        put(&*f, 200_000, b"x");
        assert_eq!(memory().used(), before + CHUNK);
        put(&*open(&root, "small"), 1, b"p");
        assert_eq!(contents(&*open(&root, "small")), b"spall");
        assert_eq!(memory().used(), before + CHUNK + PAGE);
        put(&*open(&root, "page"), 1, b"p");
        assert_eq!(contents(&*open(&root, "page"))[1..], [b"p", &data[2..3 * 4096]].concat());
        assert_eq!(
            (memory().used(), find(&root, "page").unwrap().attr().unwrap().blocks),
            (before + CHUNK + 5 * PAGE, 32)
        );
    });
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Write(u64, u64),
    Truncate(u64),
    Punch(u64, u64),
    Map(u64),
    Unmap,
}

/// A file that began in an archive is as one that was written: against a model of plain bytes.
#[test]
fn contents_change_as_those_of_any_file() {
    in_cell!(|| {
        const MOST: u64 = 300_000;
        let at = || {
            prop_oneof![
                0..MOST,
                (0..MOST / PAGE).prop_map(|n| n * PAGE),
                (0..MOST / CHUNK).prop_map(|n| n * CHUNK)
            ]
        };
        let len = || prop_oneof![1u64..200, 1u64..140_000, (1u64..40).prop_map(|n| n * PAGE)];
        let op = prop_oneof![
            4 => (at(), len()).prop_map(|(at, len)| Op::Write(at, len)),
            2 => at().prop_map(Op::Truncate),
            3 => (at(), len()).prop_map(|(at, len)| Op::Punch(at, len)),
            1 => at().prop_map(Op::Map),
            1 => Just(Op::Unmap),
        ];
        let config = ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() };
        let sizes = prop_oneof![0usize..10_000, 0usize..200_000];
        let before = memory().used();
        let tested =
            TestRunner::new(config).run(&(sizes, prop::collection::vec(op, 1..16)), |(size, ops)| {
                let mut model = pattern(size);
                let root = mounted(&[file("f", &model)]);
                let f = open(&root, "f");
                let mut mappings = Vec::new();
                for (n, op) in ops.into_iter().enumerate() {
                    match op {
                        Op::Write(at, len) => {
                            let bytes = vec![n as u8 + 1; len as usize];
                            model.resize(model.len().max((at + len) as usize), 0);
                            model[at as usize..(at + len) as usize].copy_from_slice(&bytes);
                            let mut source = Source::kernel(&bytes);
                            let written = f.write(&mut source, At::Offset(at), false);
                            prop_assert_eq!(written, Ok((len as usize, at + len)));
                        }
                        Op::Truncate(len) => {
                            model.resize(len as usize, 0);
                            prop_assert_eq!(f.truncate(len), Ok(()));
                        }
                        Op::Punch(at, len) => {
                            let end = model.len().min((at + len) as usize);
                            if let Some(hole) = model.get_mut(at as usize..end) {
                                hole.fill(0);
                            }
                            let punch = linux::FALLOC_FL_PUNCH_HOLE | linux::FALLOC_FL_KEEP_SIZE;
                            prop_assert_eq!(f.allocate(punch, at, len), Ok(()));
                        }
                        Op::Map(at) => {
                            let at = at as usize / CHUNK as usize * CHUNK as usize;
                            let object = f.clone().mappable().unwrap().object().unwrap();
                            object.mapped(1);
                            mappings.push(object);
                            let mut expected = model.get(at..).unwrap_or_default().to_vec();
                            expected.resize(CHUNK as usize, 0);
                            prop_assert!(shown(&f, at as u64) == expected, "mapped at {}", at);
                        }
                        Op::Unmap => mappings.pop().into_iter().for_each(|object| object.mapped(-1)),
                    }
                    prop_assert!(contents(&*f) == model, "after {op:?}");
                    check_holes(&*f, &model)?;
                }
                Ok(())
            });
        tested.unwrap();
        assert_eq!(memory().used(), before);
    });
}

/// SEEK_DATA, SEEK_HOLE and the count of blocks tell of the same pages, and those that they leave out are zero.
fn check_holes(f: &dyn File, model: &[u8]) -> Result<(), TestCaseError> {
    let size = model.len() as u64;
    let (mut at, mut pages) = (0, 0);
    while at < size {
        let Ok(data) = f.seek_data(at, false, size) else {
            prop_assert!(model[at as usize..].iter().all(|b| *b == 0));
            break;
        };
        prop_assert!(data >= at && model[at as usize..data as usize].iter().all(|b| *b == 0));
        let hole = f.seek_data(data, true, size).unwrap();
        prop_assert!(hole > data && (hole == size || hole.is_multiple_of(PAGE)));
        for page in (data..hole).step_by(PAGE as usize) {
            prop_assert_eq!(f.seek_data(page, false, size), Ok(page));
        }
        pages += (hole - data).div_ceil(PAGE);
        at = hole;
    }
    // Chunks are held whole.
    let blocks = f.attr().unwrap().blocks;
    prop_assert!(blocks >= pages * 8, "{} blocks for {} pages", blocks, pages);
    Ok(())
}

fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// A tree of the host, packed by cpio itself, is the same tree.
#[test]
fn archive_of_cpio() {
    let tree = scratch("cpio-tree");
    let _ = fs::remove_dir_all(&tree);
    fs::create_dir_all(tree.join("usr/lib/deep/er")).unwrap();
    fs::create_dir(tree.join("empty")).unwrap();
    fs::write(tree.join("usr/lib/large"), pattern(1_234_567)).unwrap();
    fs::write(tree.join("usr/lib/deep/er/ one "), b"1").unwrap();
    fs::write(tree.join(std::ffi::OsString::from_vec(b"by\xfftes".to_vec())), b"not UTF-8").unwrap();
    fs::hard_link(tree.join("usr/lib/large"), tree.join("again")).unwrap();
    fs::hard_link(tree.join("usr/lib/large"), tree.join("usr/third")).unwrap();
    symlink("usr/lib", tree.join("lib")).unwrap();
    symlink("/nowhere", tree.join("empty/dangling")).unwrap();
    fs::set_permissions(tree.join("again"), fs::Permissions::from_mode(0o4751)).unwrap();
    fs::set_permissions(tree.join("empty"), fs::Permissions::from_mode(0o1777)).unwrap();
    let sparse = fs::File::create(tree.join("sparse")).unwrap();
    sparse.write_all_at(b"end", 100_000).unwrap();
    let made = Command::new("mkfifo").arg(tree.join("fifo")).status().unwrap();
    assert!(made.success());

    let archive = fs::File::create(scratch("cpio-tree.cpio")).unwrap();
    let mut cpio = Command::new("cpio")
        .args(["--null", "--create", "--format=newc", "--quiet"])
        .current_dir(&tree)
        .stdin(Stdio::piped())
        .stdout(archive)
        .spawn()
        .expect("cpio, of Debian's package of that name");
    let mut names = Vec::new();
    list(&tree, &tree, &mut names);
    cpio.stdin.take().unwrap().write_all(&names).unwrap();
    assert!(cpio.wait().unwrap().success());

    in_cell!(|| {
        let archive = fs::read(scratch("cpio-tree.cpio")).unwrap();
        let (_, root) = mount(leak(archive), MEMORY).unwrap_or_else(|e| panic!("{e}"));
        let root: InodeRef = root;
        let mut inodes = BTreeMap::new();
        assert_eq!(compare(&scratch("cpio-tree"), &root, &mut inodes), 15);
    });
}

/// Names beneath `dir`, as cpio takes them.
fn list(tree: &Path, dir: &Path, names: &mut Vec<u8>) {
    names.extend(dir.strip_prefix(tree).map(|p| Path::new(".").join(p)).unwrap().as_os_str().as_bytes());
    names.push(0);
    if dir.symlink_metadata().unwrap().is_dir() {
        for entry in fs::read_dir(dir).unwrap() {
            list(tree, &entry.unwrap().path(), names);
        }
    }
}

/// Compares a file of the host, and all that is beneath it; how many they are.
fn compare(host: &Path, node: &InodeRef, inodes: &mut BTreeMap<u64, u64>) -> usize {
    let (want, have) = (host.symlink_metadata().unwrap(), node.attr().unwrap());
    let name = host.display();
    assert_eq!((want.mode(), want.uid(), want.gid()), (have.mode, have.uid, have.gid), "{name}");
    assert_eq!(want.mtime(), have.mtime.sec, "{name}");
    // What the links of a directory count is the file system's own affair.
    assert!(want.is_dir() || want.nlink() == u64::from(have.nlink), "{name}");
    assert_eq!(*inodes.entry(want.ino()).or_insert(have.ino), have.ino, "{name}");
    if want.is_file() {
        let f = node.clone().open(linux::O_RDONLY, &Cred::root()).unwrap();
        assert_eq!(want.len(), have.size, "{name}");
        assert!(contents(&*f) == fs::read(host).unwrap(), "{name}");
    } else if want.is_symlink() {
        assert_eq!(fs::read_link(host).unwrap().as_os_str().as_bytes(), node.read_link().unwrap());
    } else if want.is_dir() {
        let names: Vec<_> = fs::read_dir(host).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(node.list(0, 1000).unwrap().len(), names.len(), "{name}");
        let beneath = names.iter().map(|n| {
            let child = node.lookup(n.as_bytes()).unwrap();
            compare(&host.join(n), &child, inodes)
        });
        return beneath.sum::<usize>() + 1;
    }
    1
}
