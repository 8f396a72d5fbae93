//! Attributes, credentials and the like, in Linux's terms.

use alloc::sync::Arc;
use alloc::vec::Vec;
use atoll_abi::{Errno, Result, platform};
use linux_raw_sys::general as linux;

/// Readiness bits of `poll(2)` and `epoll(7)`; also the interests of wait queues.
#[allow(missing_docs, reason = "the names are poll(2)'s")]
pub mod poll {
    pub const IN: u32 = 0x1;
    pub const PRI: u32 = 0x2;
    pub const OUT: u32 = 0x4;
    pub const ERR: u32 = 0x8;
    pub const HUP: u32 = 0x10;
    pub const NVAL: u32 = 0x20;
    pub const RDNORM: u32 = 0x40;
    pub const WRNORM: u32 = 0x100;
    pub const WRBAND: u32 = 0x200;
    pub const RDHUP: u32 = 0x2000;
    pub const ALL: u32 = 0xffff;
}

/// A time: seconds since 1970 and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Time {
    pub sec: i64,
    pub nsec: u32,
}

impl Time {
    /// Now.
    pub fn now() -> Time {
        Time::of(platform().realtime())
    }

    /// So many nanoseconds after the beginning of 1970.
    pub(crate) fn of(ns: u64) -> Time {
        Time { sec: (ns / 1_000_000_000) as i64, nsec: (ns % 1_000_000_000) as u32 }
    }
}

/// The permissions of what is made, and which of them its maker's mask takes (`umask(2)`), unless the directory has a default ACL, which
/// is there in its place (`acl(5)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct NewMode {
    pub bits: u32,
    pub umask: u32,
}

impl NewMode {
    /// This one, whoever makes it.
    pub const fn exactly(bits: u32) -> NewMode {
        NewMode { bits, umask: 0 }
    }

    /// What is left of it where there are no ACLs.
    pub const fn masked(self) -> u32 {
        self.bits & !self.umask
    }
}

/// Kind of a file, with `stat(2)`'s numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names say it")]
pub enum FileType {
    Fifo = linux::S_IFIFO,
    Character = linux::S_IFCHR,
    Directory = linux::S_IFDIR,
    Block = linux::S_IFBLK,
    Regular = linux::S_IFREG,
    Symlink = linux::S_IFLNK,
    Socket = linux::S_IFSOCK,
}

impl FileType {
    /// From a mode's type bits; regular if they say nothing.
    pub fn from_mode(mode: u32) -> FileType {
        match mode & linux::S_IFMT {
            linux::S_IFIFO => FileType::Fifo,
            linux::S_IFCHR => FileType::Character,
            linux::S_IFDIR => FileType::Directory,
            linux::S_IFBLK => FileType::Block,
            linux::S_IFLNK => FileType::Symlink,
            linux::S_IFSOCK => FileType::Socket,
            _ => FileType::Regular,
        }
    }

    /// `d_type` of a directory entry.
    pub fn dirent(self) -> u8 {
        (self as u32 >> 12) as u8
    }
}

/// Attributes of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are stat(2)'s")]
pub struct Attr {
    pub ino: u64,
    pub dev: u64,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u64,
    pub size: u64,
    pub blocks: u64,
    pub blksize: u32,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
}

impl Attr {
    /// Kind of the file.
    pub fn kind(&self) -> FileType {
        FileType::from_mode(self.mode)
    }
}

/// Attributes to change; None: leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are stat(2)'s")]
pub struct SetAttr {
    /// Permission bits only.
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<Time>,
    pub mtime: Option<Time>,
    /// The times are the present one, by the clock of the file system, which who may write to the file may set.
    pub now: bool,
}

/// What `statfs(2)` says.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "the names are statfs(2)'s")]
pub struct StatFs {
    pub kind: u64,
    pub bsize: u64,
    pub blocks: u64,
    pub bfree: u64,
    pub bavail: u64,
    pub files: u64,
    pub ffree: u64,
    pub namelen: u64,
}

/// A name in a directory.
#[derive(Clone, Debug)]
pub struct DirEntry {
    /// The name.
    pub name: Vec<u8>,
    /// Inode number.
    pub ino: u64,
    /// Kind.
    pub kind: FileType,
    /// Where to go on after this entry.
    pub next: u64,
}

/// Who asks, for file permissions.
#[derive(Clone, Debug)]
pub struct Cred {
    /// File system user id.
    pub uid: u32,
    /// File system group id.
    pub gid: u32,
    /// Further groups.
    pub groups: Arc<[u32]>,
    /// Effective capabilities (`capabilities(7)`), by number of the bit.
    pub capabilities: u64,
}

/// Permission bits for [`Cred::check`], as in `access(2)`.
#[allow(missing_docs, reason = "the names say it")]
pub mod may {
    pub const READ: u32 = 4;
    pub const WRITE: u32 = 2;
    pub const EXEC: u32 = 1;
}

impl Cred {
    /// The superuser.
    pub fn root() -> Cred {
        Cred { uid: 0, gid: 0, groups: Arc::new([]), capabilities: u64::MAX }
    }

    /// Has this capability (CAP_...)?
    pub fn may(&self, capability: u32) -> bool {
        self.capabilities & 1 << capability != 0
    }

    /// Belongs to the group?
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Who makes a new file in this directory, and with what mode: a set-group-ID directory passes its group on, and who isn't in that
    /// is not lent its rights (Linux's `inode_init_owner` and `mode_strip_sgid`). Directories are [`Cred::making_directory`]'s.
    pub fn making(&self, dir: &Attr, mode: NewMode) -> (Cred, NewMode) {
        if dir.mode & linux::S_ISGID == 0 {
            return (self.clone(), mode);
        }
        let lent = linux::S_ISGID | linux::S_IXGRP;
        let strange = !self.in_group(dir.gid) && !self.may(linux::CAP_FSETID);
        let taken = if mode.bits & lent == lent && strange { linux::S_ISGID } else { 0 };
        (Cred { gid: dir.gid, ..self.clone() }, NewMode { bits: mode.bits & !taken, ..mode })
    }

    /// The same of a directory, which passes the group on in its turn.
    pub fn making_directory(&self, dir: &Attr, mode: NewMode) -> (Cred, NewMode) {
        match dir.mode & linux::S_ISGID {
            0 => (self.clone(), mode),
            passes_on => {
                (Cred { gid: dir.gid, ..self.clone() }, NewMode { bits: mode.bits | passes_on, ..mode })
            }
        }
    }

    /// Is this access allowed by the file's mode? (`path_resolution(7)`)
    pub fn check(&self, attr: &Attr, want: u32) -> Result<()> {
        if want == 0 {
            return Ok(());
        }
        let bits = if self.uid == attr.uid {
            attr.mode >> 6
        } else if self.in_group(attr.gid) {
            attr.mode >> 3
        } else {
            attr.mode
        };
        if bits & want == want || self.overrides(attr, want) { Ok(()) } else { Err(Errno::EACCES) }
    }

    /// Is it allowed whatever the mode says? (`capabilities(7)`)
    fn overrides(&self, attr: &Attr, want: u32) -> bool {
        let directory = attr.kind() == FileType::Directory;
        let only_reads = if directory { want & may::WRITE == 0 } else { want == may::READ };
        // What nobody may execute, root may not either.
        let executable = directory || want & may::EXEC == 0 || attr.mode & 0o111 != 0;
        only_reads && self.may(linux::CAP_DAC_READ_SEARCH) || executable && self.may(linux::CAP_DAC_OVERRIDE)
    }

    /// May remove or rename an entry of a sticky directory?
    pub fn check_sticky(&self, dir: &Attr, victim: &Attr) -> Result<()> {
        let sticky = dir.mode & linux::S_ISVTX != 0;
        if sticky && self.uid != victim.uid && self.uid != dir.uid && !self.may(linux::CAP_FOWNER) {
            return Err(Errno::EPERM);
        }
        Ok(())
    }

    /// Owns the file, or may do what owners may?
    pub fn owns(&self, attr: &Attr) -> Result<()> {
        if self.uid == attr.uid || self.may(linux::CAP_FOWNER) { Ok(()) } else { Err(Errno::EPERM) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions() {
        let attr = Attr { mode: linux::S_IFREG | 0o640, uid: 5, gid: 6, ..Attr::default() };
        let who = |uid, gid| Cred { uid, gid, groups: Arc::new([]), capabilities: 0 };
        assert!(who(5, 0).check(&attr, may::READ | may::WRITE).is_ok());
        assert!(who(7, 6).check(&attr, may::READ).is_ok());
        assert_eq!(who(7, 6).check(&attr, may::WRITE), Err(Errno::EACCES));
        assert_eq!(who(7, 7).check(&attr, may::READ), Err(Errno::EACCES));
        assert!(Cred::root().check(&attr, may::READ | may::WRITE).is_ok());
        assert_eq!(Cred::root().check(&attr, may::EXEC), Err(Errno::EACCES));
        let with_groups = Cred { groups: Arc::new([1, 6]), ..who(9, 9) };
        assert!(with_groups.check(&attr, may::READ).is_ok());
        // One that may read everything, and root's id without root's capabilities.
        let reader = Cred { capabilities: 1 << linux::CAP_DAC_READ_SEARCH, ..who(9, 9) };
        assert!(reader.check(&attr, may::READ).is_ok());
        assert_eq!(reader.check(&attr, may::READ | may::WRITE), Err(Errno::EACCES));
        let directory = Attr { mode: linux::S_IFDIR, ..attr };
        assert!(reader.check(&directory, may::READ | may::EXEC).is_ok());
        assert_eq!(reader.check(&directory, may::WRITE), Err(Errno::EACCES));
        assert!(Cred::root().check(&directory, may::WRITE | may::EXEC).is_ok());
        assert_eq!(who(0, 0).check(&attr, may::READ), Err(Errno::EACCES));
        assert_eq!((who(0, 0).owns(&attr), reader.owns(&attr)), (Err(Errno::EPERM), Err(Errno::EPERM)));
        assert!(Cred { capabilities: 1 << linux::CAP_FOWNER, ..who(9, 9) }.owns(&attr).is_ok());
    }
}
