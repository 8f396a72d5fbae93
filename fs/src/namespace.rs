//! One tree out of many file systems, and the way through it
//! (`path_resolution(7)`).

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use atoll_abi::{Errno, Result};
use atoll_sync::{Mutex, SetOnce};
use linux_raw_sys::general as linux;

use crate::inotify;
use crate::node::{FileSystem, InodeRef, Magic, NewNode};
use crate::open::OpenFile;
use crate::paths::{self, Paths, Question};
use crate::types::{Cred, FileType, NewMode, SetAttr, may};
use atoll_sync::RcuArc;

/// Most symbolic links on the way to one file (Linux's MAXSYMLINKS).
const MAX_LINKS: u32 = 40;
/// How often a walk begins again because names turn out to lead elsewhere by now.
const STALE_MAX: u32 = 8;
/// Longest path, bytes, without the zero at its end.
pub const PATH_MAX: usize = 4095;
/// Longest name, bytes.
pub const NAME_MAX: usize = 255;

/// A file system at a place. It stays there, so that nobody needs to count who goes through it.
pub struct Mount {
    /// Number, for `/proc/self/mountinfo`.
    pub id: u32,
    /// Its root directory.
    pub root: InodeRef,
    /// The file system.
    pub fs: Arc<dyn FileSystem>,
    /// Changes fail with EROFS.
    pub read_only: bool,
    /// What is mounted, for people.
    pub source: Vec<u8>,
    /// Where, as a path.
    pub target: Vec<u8>,
    /// The directory it is in, and its name there; None for the root of the tree.
    above: Option<(Location, Vec<u8>)>,
    renaming: Mutex<()>,
    /// The mount after it.
    next: SetOnce<&'static Mount>,
}

/// The number of [`Mount::of_nowhere`]: no other one has it.
const NOWHERE: u32 = 0;

impl Mount {
    /// Of files that have no place in the tree, and are run or looked for as those that have: as the kernel's own mounts on Linux.
    pub fn of_nowhere(fs: Arc<dyn FileSystem>, root: InodeRef) -> &'static Mount {
        Box::leak(Box::new(Mount {
            id: NOWHERE,
            root,
            fs,
            read_only: false,
            source: b"none".to_vec(),
            target: Vec::new(),
            above: None,
            renaming: Mutex::new(()),
            next: SetOnce::new(),
        }))
    }

    /// Runs `f`, which finds two names here and renames: what it found is still there when it does, as far
    /// as the cell renames by itself (Linux: `s_vfs_rename_mutex`, and the directories' locks).
    pub fn rename_alone<R>(&self, f: impl FnOnce() -> R) -> R {
        let _one = self.renaming.lock();
        f()
    }
}

/// A place in the tree.
#[derive(Clone)]
pub struct Location {
    /// The file system there.
    pub mount: &'static Mount,
    /// The file.
    pub inode: InodeRef,
}

impl Location {
    /// Are they the same place?
    pub fn same(&self, other: &Location) -> bool {
        core::ptr::eq(self.mount, other.mount) && self.inode.id() == other.inode.id()
    }

    /// The directory above; a root's is the root itself.
    pub fn above(&self) -> Location {
        let mut at = self.clone();
        loop {
            if let Some(parent) = at.inode.parent() {
                return Location { mount: at.mount, inode: parent };
            }
            match &at.mount.above {
                Some((dir, _)) if at.inode.id() == at.mount.root.id() => return dir.clone(),
                Some(_) | None => {
                    at = Location { mount: at.mount, inode: at.mount.root.clone() };
                    if at.mount.above.is_none() {
                        return at;
                    }
                }
            }
        }
    }

    /// The path of a directory, from the root of the tree.
    pub fn path(&self) -> Vec<u8> {
        let mut parts: Vec<Vec<u8>> = Vec::new();
        let mut at = self.clone();
        let mut deleted = false;
        loop {
            if at.inode.id() == at.mount.root.id() {
                match at.mount.above.clone() {
                    Some((dir, name)) => {
                        parts.push(name);
                        at = dir;
                        continue;
                    }
                    None => break,
                }
            }
            match (at.inode.name(), at.inode.parent()) {
                (Some(name), Some(parent)) => {
                    parts.push(name);
                    at = Location { mount: at.mount, inode: parent };
                }
                _ => {
                    deleted = true;
                    break;
                }
            }
        }
        let mut path = Vec::new();
        for part in parts.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(part);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        if deleted {
            path.extend_from_slice(b" (deleted)");
        }
        path
    }

    /// Is it a file that has no place in the tree?
    pub fn is_nowhere(&self) -> bool {
        self.mount.id == NOWHERE
    }

    /// The path of a file that was opened here under the path `opened`.
    pub fn path_of(&self, opened: &[u8]) -> Vec<u8> {
        if self.is_nowhere()
            && let Ok(file) = self.inode.clone().open(linux::O_RDONLY, &Cred::root())
        {
            return file.describe();
        }
        if self.inode.kind() == FileType::Directory
            || (self.inode.name().is_some() && self.inode.parent().is_some())
        {
            return self.path();
        }
        let mut path = match self.inode.entry(b"") {
            Some(e) if e.gone => {
                let mut path = Location { mount: self.mount, inode: e.dir }.path();
                if !path.ends_with(b"/") {
                    path.push(b'/');
                }
                path.extend_from_slice(&e.name);
                path
            }
            _ => opened.to_vec(),
        };
        if self.inode.attr().is_ok_and(|a| a.nlink == 0) {
            path.extend_from_slice(b" (deleted)");
        }
        path
    }

    /// Changes attributes. Permission has been checked.
    pub fn set_attr(&self, change: &SetAttr, cred: &Cred) -> Result<()> {
        let done = self.inode.set_attr(change, cred);
        paths::changed();
        done?;
        inotify::changed(&*self.inode, change);
        Ok(())
    }

    /// Sets or removes (None) an extended attribute. Permission has been checked.
    pub fn set_xattr(&self, name: &[u8], value: Option<&[u8]>, flags: u32, cred: &Cred) -> Result<()> {
        self.inode.set_xattr(name, value, flags, cred)?;
        inotify::changed_extended(&*self.inode);
        Ok(())
    }

    /// Is it this directory, or below it?
    fn is_in(&self, dir: &Location) -> bool {
        let mut at = self.clone();
        loop {
            if at.same(dir) {
                return true;
            }
            let above = at.above();
            if above.same(&at) {
                return false;
            }
            at = above;
        }
    }

    /// EROFS if nothing may be changed here.
    pub fn check_writable(&self) -> Result<()> {
        if self.mount.read_only { Err(Errno::EROFS) } else { Ok(()) }
    }
}

/// What a path leads to.
pub enum Target {
    /// Something that exists.
    Found(Location),
    /// An open file behind a magic link.
    Open(RcuArc<OpenFile>),
    /// A name that is free in `Walk::dir`.
    Missing,
}

/// The end of a way.
pub struct Walk {
    /// The directory of the last component.
    pub dir: Location,
    /// The last component; empty for a root, "." and "..".
    pub name: Vec<u8>,
    /// What is there.
    pub target: Target,
    /// The path ended in a slash.
    pub slash: bool,
    /// Nobody was asked whether it is missing ([`How::makes`]).
    pub guessed: bool,
}

impl Walk {
    /// What was found, or ENOENT.
    pub fn found(self) -> Result<Location> {
        match self.target {
            Target::Found(l) => Ok(l),
            Target::Open(f) => f.place().cloned().ok_or(Errno::ENOENT),
            Target::Missing => Err(Errno::ENOENT),
        }
    }
}

/// How to walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct How {
    /// Don't follow a symbolic link that is the last component.
    pub no_follow: bool,
    /// Follow no symbolic link at all (ELOOP).
    pub no_links: bool,
    /// Never leave the directory where the walk begins (EXDEV).
    pub beneath: bool,
    /// The directory where the walk begins is the root.
    pub in_root: bool,
    /// Follow no link that is more than a text (ELOOP).
    pub no_magic: bool,
    /// Never go to another mount (EXDEV).
    pub one_mount: bool,
    /// What is found is going to be opened to be read, if it is a regular file: a file system can have that ready.
    pub opens: bool,
    /// The last component is to be made: where nothing is known of it, it is taken to be missing. Who makes it is told if that is not so.
    pub makes: bool,
}

/// Who walks, and from where.
pub struct Walker<'a> {
    /// The tree.
    pub tree: &'a Namespace,
    /// Root directory.
    pub root: &'a Location,
    /// Whose permissions count.
    pub cred: &'a Cred,
}

/// A tree of mounts.
pub struct Namespace {
    /// The root, and behind it all mounts, the newest last.
    first: &'static Mount,
    /// Held while one is added.
    mounting: Mutex<()>,
    paths: Paths,
}

impl Namespace {
    /// A tree with this root.
    pub fn new(fs: Arc<dyn FileSystem>, root: InodeRef, read_only: bool, source: &[u8]) -> Self {
        let paths = Paths::new(atoll_task::cores());
        let renaming = Mutex::new(());
        let (source, target) = (source.to_vec(), b"/".to_vec());
        let next = SetOnce::new();
        let mount = Mount { id: 1, root, fs, read_only, source, target, above: None, renaming, next };
        Namespace { first: Box::leak(Box::new(mount)), mounting: Mutex::new(()), paths }
    }

    /// The root of the tree.
    pub fn root(&self) -> Location {
        Location { inode: self.first.root.clone(), mount: self.first }
    }

    /// All mounts, the root first.
    pub fn mounts(&self) -> impl Iterator<Item = &'static Mount> + use<> {
        core::iter::successors(Some(self.first), |m| m.next.get().copied())
    }

    /// Mounts a file system at `target`. The directory above must exist; the
    /// name itself need not, so that a read-only tree can have new mounts.
    pub fn mount(
        &self,
        target: &[u8],
        fs: Arc<dyn FileSystem>,
        root: InodeRef,
        read_only: bool,
        source: &[u8],
    ) -> Result<()> {
        let top = self.root();
        let cred = Cred::root();
        let walker = Walker { tree: self, root: &top, cred: &cred };
        let walk = walker.walk(&top, target, How { no_follow: true, ..How::default() })?;
        if walk.name.is_empty() {
            return Err(Errno::EBUSY);
        }
        let one = self.mounting.lock();
        let last = self.mounts().last().unwrap_or(self.first);
        let new: &'static Mount = Box::leak(Box::new(Mount {
            id: last.id + 1,
            root,
            fs,
            read_only,
            source: source.to_vec(),
            target: target.to_vec(),
            above: Some((walk.dir, walk.name)),
            renaming: Mutex::new(()),
            next: SetOnce::new(),
        }));
        let added = last.next.set(new);
        assert!(added.is_ok(), "something was mounted behind the last mount");
        drop(one);
        paths::changed();
        Ok(())
    }

    /// Makes the directories above `target` that are missing, as those who mount
    /// volumes expect it: in the tree where it can be written, and else on a tmpfs (made by `tmpfs`) over the first missing name. So, too,
    /// where they would be left behind in a directory of the host, unless they may `stay` there.
    pub fn make_way(
        &self,
        target: &[u8],
        stay: bool,
        tmpfs: impl Fn() -> (Arc<dyn FileSystem>, InodeRef),
    ) -> Result<()> {
        let top = self.root();
        let cred = Cred::root();
        let walker = Walker { tree: self, root: &top, cred: &cred };
        let ends = target.iter().enumerate().skip(1).filter(|(_, b)| **b == b'/').map(|(n, _)| n);
        for end in ends {
            let above = &target[..end];
            let walk = walker.walk(&top, above, How::default())?;
            if !matches!(walk.target, Target::Missing) {
                continue;
            }
            // Below a tmpfs that was mounted for an earlier level, the others are just made.
            let made = if stay || walk.dir.inode.file_system().name() != crate::host::NAME {
                walker.create(&walk, NewNode::Directory, NewMode::exactly(0o755)).map(drop)
            } else {
                Err(Errno::EROFS)
            };
            match made {
                Ok(()) => {}
                Err(Errno::EROFS | Errno::EACCES | Errno::EPERM) => {
                    let (fs, root) = tmpfs();
                    self.mount(above, fs, root, false, b"tmpfs")?;
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// What is mounted on a name.
    fn mounted(&self, dir: &Location, name: &[u8]) -> Option<&'static Mount> {
        // The newest first: it hides the older ones.
        self.mounts().filter(|m| m.above.as_ref().is_some_and(|(d, n)| n == name && d.same(dir))).last()
    }

    /// Names of mounts in a directory that may have no entry of their own there.
    pub fn mounts_in(&self, dir: &Location) -> Vec<(Vec<u8>, InodeRef)> {
        self.mounts()
            .filter_map(|m| {
                m.above.as_ref().filter(|(d, _)| d.same(dir)).map(|(_, n)| (n.clone(), m.root.clone()))
            })
            .collect()
    }
}

impl Walker<'_> {
    /// What a path from `start` leads to. The same as a [`Walker::walk`] without its last directory, and cheap
    /// if it was asked for lately.
    pub fn target(&self, start: &Location, path: &[u8], how: How) -> Result<Target> {
        let question = Question { path, start, root: self.root, cred: self.cred, no_follow: how.no_follow };
        let plain = how == How { no_follow: how.no_follow, opens: how.opens, ..How::default() };
        let walked = match plain.then(|| self.tree.paths.ask(&question)) {
            Some(Ok(found)) => return Ok(Target::Found(found)),
            Some(Err(Some(walked))) => walked,
            _ => return Ok(self.walk(start, path, how)?.target),
        };
        let mut until = Some(u64::MAX);
        let walk = match self.walk_noting(start, path, how, &mut until) {
            Err(Errno::ESTALE) => return Ok(self.walk(start, path, how)?.target),
            walk => walk?,
        };
        if let (Some(until), Target::Found(found)) = (until, &walk.target) {
            self.tree.paths.remember(&walked, &question, found, until);
        }
        Ok(walk.target)
    }

    /// What was found by a name of the path that `walk` followed is not there: look again.
    pub fn forget(&self, place: &Location) {
        place.inode.forget_name();
        paths::changed();
    }

    /// Follows a path from `start`.
    pub fn walk(&self, start: &Location, path: &[u8], how: How) -> Result<Walk> {
        for _ in 0..STALE_MAX {
            match self.walk_noting(start, path, how, &mut None) {
                // Others put something else under a name that was on the way.
                Err(Errno::ESTALE) => {}
                walk => return walk,
            }
        }
        Err(Errno::ENOENT)
    }

    /// The same, and how long that is believed (see [`paths::note`]).
    fn walk_noting(&self, start: &Location, path: &[u8], how: How, until: &mut Option<u64>) -> Result<Walk> {
        if path.is_empty() {
            return Err(Errno::ENOENT);
        }
        if path.len() > PATH_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let root = if how.in_root { start } else { self.root };
        let mut links = 0;
        // What is still to be walked, last piece first.
        let mut rest: Vec<Vec<u8>> = Vec::new();
        let mut at = start.clone();
        if path[0] == b'/' {
            if how.beneath {
                return Err(Errno::EXDEV);
            }
            at = root.clone();
        }
        let mut slash = path.ends_with(b"/");
        push_components(&mut rest, path);
        loop {
            let Some(name) = rest.pop() else {
                let dir = at.above();
                return Ok(Walk { dir, name: Vec::new(), target: Target::Found(at), slash, guessed: false });
            };
            if at.inode.kind() != FileType::Directory {
                return Err(Errno::ENOTDIR);
            }
            let attr = at.inode.permissions().inspect_err(|e| {
                if *e == Errno::ESTALE {
                    self.forget(&at);
                }
            })?;
            self.cred.check(&attr, may::EXEC)?;
            paths::note(until, &at.inode, true);
            if name == b"." {
                continue;
            }
            if name == b".." {
                if at.same(root) || (how.beneath && at.same(start)) {
                    if how.beneath {
                        return Err(Errno::EXDEV);
                    }
                } else {
                    let above = at.above();
                    if how.one_mount && !core::ptr::eq(above.mount, at.mount) {
                        return Err(Errno::EXDEV);
                    }
                    at = above;
                }
                continue;
            }
            if name.len() > NAME_MAX {
                return Err(Errno::ENAMETOOLONG);
            }
            let last = rest.is_empty();
            let mounted = self.tree.mounted(&at, &name);
            if last && how.makes && !slash && mounted.is_none() && at.inode.knows_nothing_of(&name) {
                return Ok(Walk { dir: at, name, target: Target::Missing, slash, guessed: true });
            }
            let next = match mounted {
                Some(mount) => Location { inode: mount.root.clone(), mount },
                None => match at.inode.lookup_on_the_way(&name, &rest, how.opens) {
                    Ok(inode) => Location { mount: at.mount, inode },
                    Err(Errno::ENOENT) if last => {
                        return Ok(Walk { dir: at, name, target: Target::Missing, slash, guessed: false });
                    }
                    Err(e) => return Err(e),
                },
            };
            if how.one_mount && !core::ptr::eq(next.mount, at.mount) {
                return Err(Errno::EXDEV);
            }
            paths::note(until, &next.inode, false);
            if next.inode.kind() == FileType::Symlink && !(last && how.no_follow && !slash) {
                links += 1;
                if links > MAX_LINKS || how.no_links {
                    return Err(Errno::ELOOP);
                }
                paths::note(until, &next.inode, true);
                match next.inode.follow() {
                    Some(_) if how.no_magic => return Err(Errno::ELOOP),
                    // Nobody can tell where they lead (openat2(2)).
                    Some(Ok(_)) if how.beneath || how.in_root => return Err(Errno::EXDEV),
                    Some(Ok(Magic::Place(place)))
                        if how.one_mount && !core::ptr::eq(place.mount, at.mount) =>
                    {
                        return Err(Errno::EXDEV);
                    }
                    Some(Ok(Magic::Open(file)))
                        if how.one_mount
                            && file.place().is_none_or(|p| !core::ptr::eq(p.mount, at.mount)) =>
                    {
                        return Err(Errno::EXDEV);
                    }
                    None => {
                        let target = next.inode.read_link()?;
                        if target.is_empty() {
                            return Err(Errno::ENOENT);
                        }
                        if target[0] == b'/' {
                            if how.beneath || how.one_mount && !core::ptr::eq(root.mount, at.mount) {
                                return Err(Errno::EXDEV);
                            }
                            at = root.clone();
                        }
                        slash |= last && target.ends_with(b"/");
                        push_components(&mut rest, &target);
                    }
                    Some(Err(e)) => return Err(e),
                    Some(Ok(Magic::Place(place))) => {
                        *until = None;
                        if last {
                            return Ok(Walk {
                                dir: at,
                                name,
                                target: Target::Found(place),
                                slash,
                                guessed: false,
                            });
                        }
                        at = place;
                    }
                    Some(Ok(Magic::Open(file))) => {
                        if last {
                            return Ok(Walk {
                                dir: at,
                                name,
                                target: Target::Open(file),
                                slash,
                                guessed: false,
                            });
                        }
                        at = file.place().cloned().ok_or(Errno::ENOTDIR)?;
                    }
                }
                continue;
            }
            if last {
                if slash && next.inode.kind() != FileType::Directory {
                    return Err(Errno::ENOTDIR);
                }
                return Ok(Walk { dir: at, name, target: Target::Found(next), slash, guessed: false });
            }
            at = next;
        }
    }

    /// Finds what exists.
    pub fn find(&self, start: &Location, path: &[u8], follow: bool) -> Result<Location> {
        self.walk(start, path, How { no_follow: !follow, ..How::default() })?.found()
    }

    /// Creates a name that must be free.
    pub fn create(&self, walk: &Walk, node: NewNode, mode: NewMode) -> Result<Location> {
        if !matches!(walk.target, Target::Missing) {
            return Err(Errno::EEXIST);
        }
        if walk.slash && !matches!(node, NewNode::Directory) {
            return Err(Errno::ENOENT);
        }
        walk.dir.check_writable()?;
        let dir = walk.dir.inode.attr()?;
        if dir.nlink == 0 {
            return Err(Errno::ENOENT);
        }
        self.cred.check(&dir, may::WRITE | may::EXEC)?;
        let (cred, mode) = match node {
            NewNode::Directory => self.cred.making_directory(&dir, mode),
            _ => self.cred.making(&dir, mode),
        };
        let inode = walk.dir.inode.create(&walk.name, node, mode, &cred);
        paths::changed();
        let inode = inode?;
        inotify::created(&*walk.dir.inode, &walk.name, &*inode);
        Ok(Location { mount: walk.dir.mount, inode })
    }

    /// Removes a name.
    pub fn remove(&self, walk: &Walk, dir: bool) -> Result<()> {
        if walk.name.is_empty() {
            return Err(if dir { Errno::EBUSY } else { Errno::EISDIR });
        }
        // In Linux's order: a read-only mount is noticed before the name is looked up.
        walk.dir.check_writable()?;
        let Target::Found(victim) = &walk.target else { return Err(Errno::ENOENT) };
        if self.tree.mounted(&walk.dir, &walk.name).is_some() {
            return Err(Errno::EBUSY);
        }
        let above = walk.dir.inode.attr()?;
        self.cred.check(&above, may::WRITE | may::EXEC)?;
        self.cred.check_sticky(&above, &victim.inode.attr()?)?;
        match (dir, victim.inode.kind() == FileType::Directory) {
            (true, false) => return Err(Errno::ENOTDIR),
            (false, true) => return Err(Errno::EISDIR),
            _ => {
                let done = walk.dir.inode.unlink(&walk.name, dir, self.cred);
                paths::changed();
                done?;
            }
        }
        if inotify::watched() {
            if !dir {
                inotify::link_count(&*victim.inode);
            }
            // Of a file that nobody else has, Linux says first that it is gone itself.
            if Arc::strong_count(&victim.inode) == 1
                && victim.inode.attr().is_ok_and(|a| a.nlink == 0)
                && let Ok(identity) = victim.inode.identity()
            {
                inotify::gone(identity);
            }
            inotify::deleted(&*walk.dir.inode, &walk.name, &*victim.inode);
        }
        Ok(())
    }

    /// Renames.
    pub fn rename(&self, from: &Walk, to: &Walk, flags: u32) -> Result<()> {
        if !core::ptr::eq(from.dir.mount, to.dir.mount) {
            return Err(Errno::EXDEV);
        }
        if from.name.is_empty() || to.name.is_empty() {
            return Err(Errno::EBUSY);
        }
        from.dir.check_writable()?;
        let Target::Found(what) = &from.target else { return Err(Errno::ENOENT) };
        if self.tree.mounted(&from.dir, &from.name).is_some()
            || self.tree.mounted(&to.dir, &to.name).is_some()
        {
            return Err(Errno::EBUSY);
        }
        let is_dir = what.inode.kind() == FileType::Directory;
        if (to.slash || from.slash) && !is_dir {
            return Err(Errno::ENOTDIR);
        }
        let victim = if let Target::Found(victim) = &to.target { Some(victim) } else { None };
        match victim {
            Some(_) if flags & linux::RENAME_NOREPLACE != 0 => return Err(Errno::EEXIST),
            None if flags & linux::RENAME_EXCHANGE != 0 => return Err(Errno::ENOENT),
            _ => {}
        }
        let is_victim_dir = victim.is_some_and(|victim| victim.inode.kind() == FileType::Directory);
        // Not into itself or below; nor does something take the place of a directory that it is in.
        if is_dir && to.dir.is_in(what) {
            return Err(Errno::EINVAL);
        }
        if let Some(victim) = victim
            && is_victim_dir
            && from.dir.is_in(victim)
        {
            return Err(if flags & linux::RENAME_EXCHANGE != 0 { Errno::EINVAL } else { Errno::ENOTEMPTY });
        }
        let mut files = [(0, 0); 2];
        for (walk, file) in [from, to].into_iter().zip(&mut files) {
            let above = walk.dir.inode.attr()?;
            self.cred.check(&above, may::WRITE | may::EXEC)?;
            if let Target::Found(there) = &walk.target {
                let attr = there.inode.attr()?;
                self.cred.check_sticky(&above, &attr)?;
                *file = (attr.dev, attr.ino);
            }
        }
        // Two names of one file both stay, as POSIX has it.
        if victim.is_some() && files[0] == files[1] {
            return Ok(());
        }
        let exchanged = victim.filter(|_| flags & linux::RENAME_EXCHANGE != 0);
        if victim.is_some() && exchanged.is_none() {
            match (is_dir, is_victim_dir) {
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(Errno::EISDIR),
                _ => {}
            }
        }
        if !from.dir.same(&to.dir) {
            // What ".." is in a directory changes.
            let moved = [Some(what), exchanged].into_iter().flatten();
            for dir in moved.filter(|moved| moved.inode.kind() == FileType::Directory) {
                self.cred.check(&dir.inode.attr()?, may::WRITE)?;
            }
        }
        let done = from.dir.inode.rename(&from.name, &to.dir.inode, &to.name, flags, self.cred);
        paths::changed();
        done?;
        let (old, new) = ((&*from.dir.inode, &from.name[..]), (&*to.dir.inode, &to.name[..]));
        match &to.target {
            Target::Found(other) if flags & linux::RENAME_EXCHANGE != 0 => {
                inotify::moved(old, new, &*what.inode, None);
                inotify::moved(new, old, &*other.inode, None);
            }
            Target::Found(victim) => inotify::moved(old, new, &*what.inode, Some(&*victim.inode)),
            _ => inotify::moved(old, new, &*what.inode, None),
        }
        Ok(())
    }

    /// Gives a file a further name.
    pub fn link(&self, what: &Location, to: &Walk) -> Result<()> {
        if !matches!(to.target, Target::Missing) {
            return Err(Errno::EEXIST);
        }
        to.dir.check_writable()?;
        if !core::ptr::eq(what.mount, to.dir.mount) {
            return Err(Errno::EXDEV);
        }
        if what.inode.kind() == FileType::Directory {
            return Err(Errno::EPERM);
        }
        self.cred.check(&to.dir.inode.attr()?, may::WRITE | may::EXEC)?;
        let done = to.dir.inode.link(&to.name, &what.inode, self.cred);
        paths::changed();
        done?;
        inotify::link_count(&*what.inode);
        inotify::created(&*to.dir.inode, &to.name, &*what.inode);
        Ok(())
    }
}

fn push_components(rest: &mut Vec<Vec<u8>>, path: &[u8]) {
    for part in path.split(|b| *b == b'/').rev().filter(|p| !p.is_empty()) {
        rest.push(part.to_vec());
    }
}
