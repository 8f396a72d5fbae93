//! Capabilities (`capabilities(7)`): which of root's powers a process has, and what becomes of them when its user ids change and
//! when it runs another program, whose file may have some to give. They count among the programs of a cell and for the cell's files. What a cell may do on its host
//! does not depend on them.

use atoll_abi::Errno;
use linux_raw_sys::general as linux;

/// All capabilities that there are names for.
pub const ALL: u64 = bit(linux::CAP_LAST_CAP + 1) - 1;
/// Those that come and go with a file system user id of 0 (Linux's `CAP_FS_SET`).
const FOR_FILES: u64 = bit(linux::CAP_CHOWN)
    | bit(linux::CAP_MKNOD)
    | bit(linux::CAP_DAC_OVERRIDE)
    | bit(linux::CAP_DAC_READ_SEARCH)
    | bit(linux::CAP_FOWNER)
    | bit(linux::CAP_FSETID)
    | bit(linux::CAP_MAC_OVERRIDE)
    | bit(linux::CAP_LINUX_IMMUTABLE);

/// Securebits. Each has a lock, the next higher bit.
#[allow(missing_docs, reason = "the names are the manual page's, without SECBIT_")]
pub mod secure {
    pub const NOROOT: u32 = 1 << 0;
    pub const NO_SETUID_FIXUP: u32 = 1 << 2;
    pub const KEEP_CAPS: u32 = 1 << 4;
    pub const NO_CAP_AMBIENT_RAISE: u32 = 1 << 6;
    pub const BITS: u32 = NOROOT | NO_SETUID_FIXUP | KEEP_CAPS | NO_CAP_AMBIENT_RAISE;
    pub const LOCKS: u32 = BITS << 1;
}

/// A set with this capability alone.
pub const fn bit(capability: u32) -> u64 {
    1 << capability
}

/// What a file gives to who runs it (`capabilities(7)`, "File capabilities").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileCapabilities {
    permitted: u64,
    inheritable: u64,
    effective: bool,
}

impl FileCapabilities {
    /// The extended attribute that says so.
    pub const NAME: &[u8] = b"security.capability";

    /// Of the attribute's value (Linux's `struct vfs_ns_cap_data`). None: it is not valid, or of another user namespace.
    pub fn parse(value: &[u8]) -> Option<FileCapabilities> {
        let word = |n: usize| value.get(4 * n..4 * n + 4)?.try_into().ok().map(u32::from_le_bytes);
        let magic = word(0)?;
        let sets = match (magic & linux::VFS_CAP_REVISION_MASK, value.len()) {
            (linux::VFS_CAP_REVISION_1, 12) => 1,
            (linux::VFS_CAP_REVISION_2, 20) => 2,
            (linux::VFS_CAP_REVISION_3, 24) if word(5)? == 0 => 2,
            _ => return None,
        };
        let set = |first: usize| {
            let low = u64::from(word(first)?);
            let high = if sets == 2 { word(first + 2)? } else { 0 };
            Some((low | u64::from(high) << 32) & ALL)
        };
        let effective = magic & linux::VFS_CAP_FLAGS_EFFECTIVE != 0;
        Some(FileCapabilities { permitted: set(1)?, inheritable: set(2)?, effective })
    }

    /// Can this be written to the attribute? (`cap_convert_nscap` of Linux)
    pub fn is_valid(value: &[u8]) -> bool {
        let of = |revision: u32| {
            value
                .first_chunk()
                .is_some_and(|m| u32::from_le_bytes(*m) & linux::VFS_CAP_REVISION_MASK == revision)
        };
        match value.len() {
            20 => of(linux::VFS_CAP_REVISION_2),
            24 => of(linux::VFS_CAP_REVISION_3),
            _ => false,
        }
    }

    /// Those alone that are in `set`.
    pub fn within(self, set: u64) -> FileCapabilities {
        FileCapabilities { permitted: self.permitted & set, inheritable: self.inheritable & set, ..self }
    }
}

/// What a process may do (`capabilities(7)`, "Thread capability sets").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names are the manual page's")]
pub struct Capabilities {
    pub effective: u64,
    pub permitted: u64,
    pub inheritable: u64,
    pub bounding: u64,
    pub ambient: u64,
    pub securebits: u32,
    /// PR_SET_NO_NEW_PRIVS.
    pub no_new_privileges: bool,
}

/// Real, effective and saved user id.
pub type Users = [u32; 3];

impl Capabilities {
    /// Those of a cell's first process.
    pub fn of_user(uid: u32) -> Capabilities {
        let has = if uid == 0 { ALL } else { 0 };
        Capabilities {
            effective: has,
            permitted: has,
            inheritable: 0,
            bounding: ALL,
            ambient: 0,
            securebits: 0,
            no_new_privileges: false,
        }
    }

    /// Is this one effective?
    pub fn has(&self, capability: u32) -> bool {
        self.effective & bit(capability) != 0
    }

    fn is_secure(&self, what: u32) -> bool {
        self.securebits & what != 0
    }

    /// The user ids have changed ("Effect of user ID changes on capabilities").
    pub fn users_changed(&mut self, before: Users, now: Users) {
        if self.is_secure(secure::NO_SETUID_FIXUP) {
            return;
        }
        if before.contains(&0) && !now.contains(&0) {
            if !self.is_secure(secure::KEEP_CAPS) {
                self.permitted = 0;
                self.effective = 0;
            }
            self.ambient = 0;
        }
        match (before[1], now[1]) {
            (0, 0) => {}
            (0, _) => self.effective = 0,
            (_, 0) => self.effective = self.permitted,
            _ => {}
        }
    }

    /// The file system user id has changed, by `setfsuid(2)`.
    pub fn file_user_changed(&mut self, before: u32, now: u32) {
        if self.is_secure(secure::NO_SETUID_FIXUP) {
            return;
        }
        match (before, now) {
            (0, 0) => {}
            (0, _) => self.effective &= !FOR_FILES,
            (_, 0) => self.effective |= self.permitted & FOR_FILES,
            _ => {}
        }
    }

    /// Those that count in `access(2)`, which asks for the real user.
    pub fn for_real_user(&self, ruid: u32) -> u64 {
        if self.is_secure(secure::NO_SETUID_FIXUP) {
            self.effective
        } else if ruid == 0 {
            self.permitted
        } else {
            0
        }
    }

    /// `capset(2)`. False: it is not allowed.
    pub fn set(&mut self, effective: u64, permitted: u64, inheritable: u64) -> bool {
        let within = |set: u64, of: u64| set & !of == 0;
        let may_inherit =
            within(inheritable, self.inheritable | self.permitted) || self.has(linux::CAP_SETPCAP);
        if !may_inherit
            || !within(inheritable, self.inheritable | self.bounding)
            || !within(permitted, self.permitted)
            || !within(effective, permitted)
        {
            return false;
        }
        *self = Capabilities { effective, permitted, inheritable, ..*self };
        self.ambient &= permitted & inheritable;
        true
    }

    /// PR_SET_SECUREBITS. False: it is not allowed.
    pub fn set_securebits(&mut self, bits: u64) -> bool {
        let Ok(bits) = u32::try_from(bits) else { return false };
        let locked = self.securebits & secure::LOCKS;
        if locked >> 1 & (self.securebits ^ bits) != 0
            || locked & !bits != 0
            || bits & !(secure::BITS | secure::LOCKS) != 0
            || !self.has(linux::CAP_SETPCAP)
        {
            return false;
        }
        self.securebits = bits;
        true
    }

    /// PR_SET_KEEPCAPS. False: it is not allowed.
    pub fn keep(&mut self, on: bool) -> bool {
        if self.is_secure(secure::KEEP_CAPS << 1) {
            return false;
        }
        self.securebits = self.securebits & !secure::KEEP_CAPS | if on { secure::KEEP_CAPS } else { 0 };
        true
    }

    /// PR_CAP_AMBIENT_RAISE. False: it is not allowed.
    pub fn raise_ambient(&mut self, capability: u32) -> bool {
        let may = self.permitted & self.inheritable & bit(capability) != 0
            && !self.is_secure(secure::NO_CAP_AMBIENT_RAISE);
        if may {
            self.ambient |= bit(capability);
        }
        may
    }

    /// Do a file's capabilities, if it has any, matter to who runs it as real and effective user `users`?
    pub fn asks_file(&self, users: [u32; 2]) -> bool {
        let has_all = users == [0, 0] && !self.is_secure(secure::NOROOT);
        self.bounding != ALL || self.ambient != 0 || !has_all
    }

    /// EPERM if a program that counts on all capabilities of its file would not get them.
    pub fn check_file(&self, file: &FileCapabilities) -> Result<(), Errno> {
        let lacks = file.permitted & !self.given_by(file) != 0;
        if file.effective && lacks { Err(Errno::EPERM) } else { Ok(()) }
    }

    fn given_by(&self, file: &FileCapabilities) -> u64 {
        file.permitted & self.bounding | file.inheritable & self.inheritable
    }

    /// Another program runs ("Transformation of capabilities during execve()"), as real and effective user `users`; `changed`:
    /// the mode of its file has changed the ids; `file`: the capabilities of its file. Are all that are permitted effective at once?
    pub fn run(&mut self, users: [u32; 2], changed: bool, file: Option<FileCapabilities>) -> bool {
        let mut permitted = file.map_or(0, |file| self.given_by(&file));
        let mut all = file.is_some_and(|file| file.effective);
        // What is root's by its set-user-ID bit and has capabilities gets these only.
        let by_file = file.is_some() && users[0] != 0 && users[1] == 0;
        if !self.is_secure(secure::NOROOT) && !by_file {
            if users.contains(&0) {
                permitted = self.bounding | self.inheritable;
            }
            all |= users[1] == 0;
        }
        if self.no_new_privileges {
            permitted &= self.permitted;
        }
        if changed || file.is_some() {
            self.ambient = 0;
        }
        self.permitted = permitted | self.ambient;
        self.effective = if all { self.permitted } else { self.ambient };
        self.securebits &= !secure::KEEP_CAPS;
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: Users = [0; 3];
    const USER: Users = [33; 3];

    #[test]
    fn root_and_others() {
        let mut c = Capabilities::of_user(0);
        assert!(c.has(linux::CAP_LAST_CAP) && !Capabilities::of_user(1).has(linux::CAP_CHOWN));
        c.users_changed(ROOT, [0, 33, 0]);
        assert_eq!((c.effective, c.permitted), (0, ALL));
        c.users_changed([0, 33, 0], ROOT);
        assert_eq!(c, Capabilities::of_user(0));
        c.users_changed(ROOT, USER);
        assert_eq!(c, Capabilities::of_user(33));
        c.run([33, 0], true, None);
        assert_eq!((c.effective, c.permitted), (ALL, ALL));
    }

    #[test]
    fn kept_over_a_change_and_lost_by_a_program() {
        let mut c = Capabilities::of_user(0);
        assert!(c.keep(true));
        c.users_changed(ROOT, USER);
        assert_eq!((c.effective, c.permitted), (0, ALL));
        let low = bit(linux::CAP_NET_BIND_SERVICE);
        assert!(c.set(low, low, low));
        assert!(!c.set(low, low | 1, low) && !c.set(1, low, low) && !c.set(low, low, low | 1));
        assert!(c.raise_ambient(linux::CAP_NET_BIND_SERVICE) && !c.raise_ambient(linux::CAP_CHOWN));
        let mut other = c;
        c.run([33, 33], false, None);
        assert_eq!((c.effective, c.permitted, c.ambient, c.securebits), (low, low, low, 0));
        // A set-user-ID program has none of those.
        other.run([33, 5], true, None);
        assert_eq!((other.effective, other.permitted, other.ambient), (0, 0, 0));
    }

    #[test]
    fn securebits() {
        let mut c = Capabilities::of_user(0);
        assert!(!c.set_securebits(1 << 8) && !c.set_securebits(1 << 32));
        assert!(c.set_securebits((secure::NOROOT | secure::KEEP_CAPS << 1).into()));
        assert!(!c.keep(true) && !c.set_securebits(0));
        assert!(c.set_securebits((secure::KEEP_CAPS << 1).into()));
        assert!(c.set_securebits((secure::NOROOT | secure::NO_SETUID_FIXUP | secure::KEEP_CAPS << 1).into()));
        c.users_changed(ROOT, USER);
        assert_eq!(c.effective, ALL);
        c.run([0, 0], false, None);
        assert_eq!((c.effective, c.permitted), (0, 0));
    }

    #[test]
    fn nothing_new() {
        let mut c = Capabilities::of_user(0);
        c.bounding = 0xff;
        c.permitted = 1;
        c.effective = 1;
        let mut new = c;
        new.run([0, 0], false, None);
        assert_eq!(new.permitted, 0xff);
        c.no_new_privileges = true;
        c.run([0, 0], false, None);
        assert_eq!((c.permitted, c.effective), (1, 1));
    }

    #[test]
    fn users_of_files() {
        let mut c = Capabilities::of_user(0);
        c.file_user_changed(0, 5);
        assert_eq!(c.effective, ALL & !FOR_FILES);
        assert_eq!((c.for_real_user(0), c.for_real_user(5)), (ALL, 0));
        c.file_user_changed(5, 0);
        assert_eq!(c.effective, ALL);
    }

    #[test]
    fn of_files() {
        let words =
            |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<alloc::vec::Vec<u8>>();
        let low = linux::CAP_NET_BIND_SERVICE;
        let value = words(&[linux::VFS_CAP_REVISION_2 | linux::VFS_CAP_FLAGS_EFFECTIVE, 1 << low, 0, 0, 0]);
        assert!(FileCapabilities::is_valid(&value) && !FileCapabilities::is_valid(&value[..16]));
        assert_eq!(FileCapabilities::parse(&value[..16]), None);
        assert_eq!(FileCapabilities::parse(&words(&[linux::VFS_CAP_REVISION_3, 1, 0, 0, 0, 1000])), None);
        let file = FileCapabilities::parse(&value).unwrap();
        let mut c = Capabilities::of_user(33);
        assert!(c.asks_file([33, 33]) && !Capabilities::of_user(0).asks_file([0, 0]));
        c.run([33, 33], false, Some(file));
        assert_eq!((c.effective, c.permitted), (bit(low), bit(low)));
        c.run([33, 33], false, None);
        assert_eq!((c.effective, c.permitted), (0, 0));
        // A set-user-ID program of root's.
        c.run([33, 0], true, Some(file));
        assert_eq!((c.effective, c.permitted), (bit(low), bit(low)));
        c = Capabilities::of_user(33);
        c.bounding &= !bit(low);
        assert_eq!(c.check_file(&file), Err(Errno::EPERM));
        c = Capabilities::of_user(33);
        c.no_new_privileges = true;
        c.run([33, 33], false, Some(file));
        assert_eq!((c.effective, c.permitted), (0, 0));
    }
}
