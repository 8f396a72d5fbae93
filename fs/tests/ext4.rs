//! Disks with ext4, in the memory of a cell on the simulated platform: what `mkfs.ext4 -d` made of a directory is that
//! directory, and what is damaged is an error.
#![allow(missing_docs, reason = "tests")]
#![allow(unsafe_code, reason = "makes a cell's memory")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use atoll_abi::{Errno, Result};
use atoll_fs::disk::Disk;
use atoll_fs::ext4::mount;
use atoll_fs::node::At;
use atoll_fs::{Cred, File, FileType, InodeRef, Sink, Source};
use atoll_mem::heap::memory;
use cell::{MEMORY, find, in_cell};
use linux_raw_sys::general as linux;

mod cell;

/// An image in the host's memory. Those who read it may be told that it can't be read from some byte on.
struct Image(Arc<Vec<u8>>, u64);

impl Disk for Image {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, at: u64, to: u64, len: u64) -> Result<()> {
        if at + len > self.1 {
            return Err(Errno::EIO);
        }
        let part = &self.0[at as usize..(at + len) as usize];
        assert_eq!(Source::kernel(part).take_memory(to, part.len()), Ok(part.len()));
        Ok(())
    }
}

fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Files of all kinds, large and small, with several names, with holes, and many in one directory.
fn tree(at: &Path) {
    let _ = fs::remove_dir_all(at);
    fs::create_dir_all(at.join("a/b/c")).unwrap();
    fs::create_dir(at.join("many")).unwrap();
    let noise: Vec<u8> = (0..700_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    fs::write(at.join("a/large"), &noise).unwrap();
    fs::write(at.join("a/small"), b"small").unwrap();
    fs::write(at.join("a/empty"), b"").unwrap();
    fs::hard_link(at.join("a/small"), at.join("a/b/other name")).unwrap();
    fs::set_permissions(at.join("a/small"), fs::Permissions::from_mode(0o4751)).unwrap();
    symlink("../small", at.join("a/b/short")).unwrap();
    symlink("x".repeat(60), at.join("a/b/long")).unwrap();
    symlink("y".repeat(59), at.join("a/b/longest inside")).unwrap();
    let holes = fs::File::create(at.join("holes")).unwrap();
    for n in 0..20 {
        holes.write_all_at(&noise[..5000], n * 150_000 + 777).unwrap();
    }
    holes.set_len(5_000_000).unwrap();
    assert!(Command::new("mkfifo").arg(at.join("fifo")).status().unwrap().success());
    for n in 0..900 {
        fs::write(at.join(format!("many/file {n} with a name that is not short")), format!("{n}")).unwrap();
    }
}

/// Makes a tree, and images of it in these formats. Not in a cell: that is a process that began with one thread of
/// several, and must start no programs.
fn prepare(name: &str, formats: &[&[&str]]) {
    let at = scratch(name);
    tree(&at);
    for (n, format) in formats.iter().enumerate() {
        let to = scratch(&format!("{name}.{n}"));
        let _ = fs::remove_file(&to);
        let mut mkfs = Command::new("mkfs.ext4");
        let made = mkfs.arg("-q").args(*format).arg("-d").arg(&at).arg(to).arg("24M").stdout(Stdio::null());
        assert!(made.status().expect("mkfs.ext4 is in Debian's e2fsprogs").success());
    }
}

/// One of those images.
fn image(name: &str, format: usize) -> Vec<u8> {
    fs::read(scratch(&format!("{name}.{format}"))).unwrap()
}

fn mounted(image: Vec<u8>) -> std::result::Result<InodeRef, String> {
    let len = image.len() as u64;
    mount(Box::new(Image(Arc::new(image), len)), MEMORY).map(|(_, root)| root as InodeRef)
}

fn open(node: &InodeRef) -> Arc<dyn File> {
    node.clone().open(linux::O_RDWR, &Cred::root()).unwrap()
}

fn contents(file: &dyn File) -> Result<Vec<u8>> {
    let mut bytes = vec![0xee; file.attr()?.size as usize + 10];
    let mut done = 0;
    loop {
        match file.read(&mut Sink::kernel(&mut bytes[done..]), Some(done as u64), false)? {
            0 => break,
            n => done += n,
        }
    }
    bytes.truncate(done);
    Ok(bytes)
}

fn names(dir: &InodeRef) -> Result<Vec<(Vec<u8>, InodeRef)>> {
    let (mut names, mut from) = (Vec::new(), 0);
    loop {
        let part = dir.list(from, 100)?;
        let Some(last) = part.last() else { return Ok(names) };
        from = last.next;
        for entry in part {
            let node = dir.lookup(&entry.name)?;
            assert_eq!((entry.ino, entry.kind), (node.id(), node.kind()));
            names.push((entry.name, node));
        }
    }
}

/// A directory of the cell and one of the host are the same.
fn same(cell: &InodeRef, host: &Path, inodes: &mut BTreeMap<u64, u64>) {
    let mut theirs: Vec<Vec<u8>> =
        fs::read_dir(host).unwrap().map(|e| e.unwrap().file_name().into_vec()).collect();
    theirs.sort();
    let mut ours = names(cell).unwrap();
    ours.retain(|(name, _)| name != b"lost+found");
    ours.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(ours.iter().map(|(n, _)| n.clone()).collect::<Vec<_>>(), theirs);
    for (name, node) in ours {
        let path = host.join(std::ffi::OsStr::from_bytes(&name));
        let meta = fs::symlink_metadata(&path).unwrap();
        let attr = node.attr().unwrap();
        let what = path.display();
        assert_eq!(
            (attr.mode, attr.uid, attr.gid, attr.mtime.sec),
            (meta.mode(), meta.uid(), meta.gid(), meta.mtime()),
            "{what}"
        );
        // The same file by another name is the same file.
        assert_eq!(*inodes.entry(meta.ino()).or_insert(attr.ino), attr.ino, "{what}");
        let kind = meta.file_type();
        if kind.is_dir() {
            same(&node, &path, inodes);
            continue;
        }
        assert_eq!(u64::from(attr.nlink), meta.nlink(), "{what}");
        if kind.is_file() {
            assert_eq!(attr.size, meta.len(), "{what}");
            assert!(contents(&*open(&node)).unwrap() == fs::read(&path).unwrap(), "{what}");
            assert!(attr.blocks <= meta.len().div_ceil(1024) * 2 + 16, "{what}: {} blocks", attr.blocks);
        } else if kind.is_symlink() {
            assert_eq!(node.read_link().unwrap(), fs::read_link(&path).unwrap().into_os_string().into_vec());
        } else {
            assert!(kind.is_fifo() && node.kind() == FileType::Fifo, "{what}");
        }
    }
}

/// With blocks of each size, and with fewer features.
const FORMATS: [&[&str]; 5] = [
    &[],
    &["-b", "1024"],
    &["-b", "4096"],
    &["-b", "1024", "-O", "^metadata_csum,^64bit", "-I", "128"],
    &["-O", "^has_journal,metadata_csum_seed,^flex_bg,^dir_index"],
];

#[test]
fn is_the_directory_it_was_made_of() {
    prepare("ext4-same", &FORMATS);
    in_cell!(|| {
        let at = scratch("ext4-same");
        for format in 0..FORMATS.len() {
            let root = mounted(image("ext4-same", format)).unwrap();
            same(&root, &at, &mut BTreeMap::new());
            // More than the cache holds was read.
            assert!(memory().used() < MEMORY / 2, "{} bytes", memory().used());
        }
    });
}

#[test]
fn changes_stay_in_memory() {
    prepare("ext4-changes", &FORMATS[..1]);
    in_cell!(|| {
        let at = scratch("ext4-changes");
        let root = mounted(image("ext4-changes", 0)).unwrap();
        let find = |path: &str| find(&root, path);
        let large = open(&find("a/large").unwrap());
        let mut model = fs::read(at.join("a/large")).unwrap();
        for (at, len) in [(5, 10), (65_530, 20), (1_000_000, 200_000), (2_799_990, 30)] {
            let new = vec![0xab; len];
            model.resize(model.len().max(at + len), 0);
            model[at..at + len].copy_from_slice(&new);
            let done = large.write(&mut Source::kernel(&new), At::Offset(at as u64), false);
            assert_eq!(done, Ok((len, (at + len) as u64)));
        }
        assert!(contents(&*large).unwrap() == model);
        // What is cut off is gone, also where it comes back.
        large.truncate(1_500_001).unwrap();
        large.truncate(2_000_000).unwrap();
        model.truncate(1_500_001);
        model.resize(2_000_000, 0);
        assert!(contents(&*large).unwrap() == model);
        // A mapping shows the disk's bytes.
        let holes = fs::read(at.join("holes")).unwrap();
        let object = open(&find("holes").unwrap()).mappable().unwrap().object().unwrap();
        for at in (0..holes.len() & !0xffff).step_by(1 << 16) {
            let mut shown = vec![0xee; 1 << 16];
            let offset = object.chunk(at as u64).unwrap();
            Sink::kernel(&mut shown).put_memory(offset, 1 << 16).unwrap();
            assert!(shown == holes[at..at + (1 << 16)], "{at:#x}");
        }
        // One file under two names, whichever is looked at first.
        let small = find("a/b/other name").unwrap();
        let done = open(&small).write(&mut Source::kernel(b"S"), At::Offset(0), false);
        assert_eq!(done, Ok((1, 1)));
        assert_eq!(contents(&*open(&find("a/small").unwrap())).unwrap(), b"Small");
        let a = find("a").unwrap();
        a.unlink(b"small", false, &Cred::root()).unwrap();
        assert_eq!((small.attr().unwrap().nlink, find("a/small").err()), (1, Some(Errno::ENOENT)));
        // A directory is not empty because nobody has looked.
        assert_eq!(root.unlink(b"many", true, &Cred::root()), Err(Errno::ENOTEMPTY));
        let new = a
            .create(b"new", atoll_fs::NewNode::File, atoll_fs::NewMode::exactly(0o644), &Cred::root())
            .unwrap();
        assert!(names(&root).unwrap().iter().all(|(_, node)| node.id() != new.id()));
    });
}

/// What a tree comes to, read wholly: how many nodes, how many errors; each error is one that says so.
fn walk(dir: &InodeRef, left: &mut u32) -> (u32, u32) {
    let fine = |e: Errno| assert!([Errno::EIO, Errno::EUCLEAN, Errno::EOPNOTSUPP].contains(&e), "{e:?}");
    let (mut nodes, mut errors) = (0, 0);
    let entries = names(dir).inspect_err(|e| {
        fine(*e);
        errors += 1;
    });
    for (_, node) in entries.unwrap_or_default() {
        *left = left.checked_sub(1).expect("there is no end to it");
        nodes += 1;
        if node.kind() == FileType::Directory {
            let (n, e) = walk(&node, left);
            (nodes, errors) = (nodes + n, errors + e);
        } else if node.kind() == FileType::Regular && node.attr().unwrap().size < 16 << 20 {
            errors += contents(&*open(&node)).map_or_else(|e| (fine(e), 1).1, |_| 0);
        } else if node.kind() == FileType::Regular {
            // As long as it says, and sparse: its end.
            let size = node.attr().unwrap().size;
            let mut bytes = [0; 100];
            let read = open(&node).read(&mut Sink::kernel(&mut bytes), Some(size - 50), false);
            errors += read.map_or_else(|e| (fine(e), 1).1, |_| 0);
        }
    }
    (nodes, errors)
}

/// However an image is damaged, it is read as far as it goes, with errors and an end.
#[test]
fn damage_is_an_error() {
    prepare("ext4-damage", &FORMATS);
    in_cell!(|| {
        let mut seed = 1u64;
        let mut random = move |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % below
        };
        for format in 0..FORMATS.len() {
            let whole = image("ext4-damage", format);
            let (nodes, errors) = walk(&mounted(whole.clone()).unwrap(), &mut 2000);
            assert_eq!((nodes, errors), (914, 0));
            // Metadata is most of what is not zero or noise: 64-byte pieces with something in them and some zeroes.
            let pieces: Vec<usize> = (1024..whole.len() - 64)
                .step_by(64)
                .filter(|at| (8..60).contains(&whole[*at..at + 64].iter().filter(|b| **b == 0).count()))
                .collect();
            let (mut refused, mut broken) = (0, 0);
            for round in 0..60 {
                let mut bytes = whole.clone();
                for _ in 0..1 + random(20) {
                    let at =
                        if round % 4 == 0 { random(4096) } else { pieces[random(pieces.len())] + random(64) };
                    match random(3) {
                        0 => bytes[at] ^= 1 << random(8),
                        1 => bytes[at] = random(256) as u8,
                        _ => bytes[at..at + 4].fill(if random(2) == 0 { 0xff } else { 0 }),
                    }
                }
                match mounted(bytes) {
                    Err(_) => refused += 1,
                    Ok(root) => broken += u32::from(walk(&root, &mut 10_000).1 > 0),
                }
            }
            assert!(broken > 5 && refused < 50, "format {format}: {refused} refused, {broken} with errors");
        }
    });
}

/// One that was cut off is refused; one that can't be read somewhere is read where it can be.
#[test]
fn what_is_missing_is_an_error() {
    prepare("ext4-missing", &[&[], &["-O", "inline_data"]]);
    in_cell!(|| {
        let whole = image("ext4-missing", 0);
        for len in [0, 1000, 1024, 2047, 2048, 10_000, 1 << 20, whole.len() - 1] {
            let why = mounted(whole[..len].to_vec()).map(drop).unwrap_err();
            assert!(why.contains("cut off") || why.contains("can't be read"), "{len}: {why}");
        }
        for at in (0..whole.len() as u64).step_by(1 << 20) {
            match mount(Box::new(Image(Arc::new(whole.clone()), at)), MEMORY) {
                Err(why) => assert!(why.contains("EIO") || why.contains("error"), "{why}"),
                Ok((_, root)) => drop(walk(&(root as InodeRef), &mut 2000)),
            }
        }
        // Other things are no ext4, and say so.
        for (bytes, says) in [(vec![0; 1 << 20], "no ext4"), (vec![0x53; 1 << 20], "no ext4")] {
            let why = mounted(bytes).map(drop).unwrap_err();
            assert!(why.contains(says), "{why}");
        }
        let why = mounted(image("ext4-missing", 1)).map(drop).unwrap_err();
        assert!(why.contains("inline_data") && why.contains("-O ^NAME"), "{why}");
        let mut dirty = whole;
        // Its journal has changes; with no checksums, nobody can have meant anything else.
        dirty[1024 + 0x60] |= 4;
        assert!(mounted(dirty).map(drop).unwrap_err().contains("e2fsck -p"));
    });
}
