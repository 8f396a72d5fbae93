//! Rewriting plans of executables: made once for each file, kept in a directory for the next time.
//!
//! Decoding a C library takes ten milliseconds, reading its plan back a
//! tenth of one. A plan is filed under device, inode, size and time of last
//! change of its file and the version of the analysis. Where programs are built, each
//! leaves one behind: those that were not used for longest go.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use atoll_abi::errno::Errno;
use atoll_rewrite::{RECORD, VERSION};
use zerocopy::IntoBytes;

/// Largest executable that is planned for, bytes.
const FILE_MAX: u64 = 512 << 20;
/// Plans that are made for one cell at most: it could change files for ever.
const PLANS_MAX: usize = 4096;

/// Plans that are kept in the directory; a part of those that are new counts them, so that there are some more at times.
const KEPT_MAX: usize = 4096;
/// One of so many that are written counts.
const COUNTED: i64 = 64;

/// Which contents of which file a plan is for.
type Key = (u64, u64, u64, i64, i64);

fn key(meta: &Metadata) -> Key {
    (meta.dev(), meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec())
}

/// Plans that were made, and where they are kept.
pub(crate) struct Plans {
    cache: Option<PathBuf>,
    known: Mutex<HashMap<Key, Arc<Vec<u8>>>>,
    /// One is made at a time: each needs memory as its file has.
    making: Mutex<()>,
}

impl Plans {
    pub(crate) fn new(cache: Option<PathBuf>) -> Self {
        Plans { cache, known: Mutex::default(), making: Mutex::default() }
    }

    /// A plan's records from the `from`th on, as many as fit, and how many there are.
    pub(crate) fn get(&self, fd: BorrowedFd<'_>, from: u64, room: usize) -> Result<(Vec<u8>, u64), Errno> {
        let file = File::from(fd.try_clone_to_owned().map_err(|_| Errno::EMFILE)?);
        let meta = file.metadata().map_err(|_| Errno::EIO)?;
        let key = key(&meta);
        let known = self.known.lock().expect("no panic while plans are held").get(&key).cloned();
        let records = match known {
            Some(records) => records,
            None => {
                let _one = self.making.lock().expect("no panic while a plan is made");
                if self.known.lock().expect("no panic while plans are held").len() >= PLANS_MAX {
                    return Ok((Vec::new(), 0));
                }
                let records = Arc::new(self.records(&file, &meta));
                self.known.lock().expect("no panic while plans are held").insert(key, records.clone());
                records
            }
        };
        let total = records.len() / RECORD;
        let from = usize::try_from(from).unwrap_or(usize::MAX).min(total);
        let to = (from + room / RECORD).min(total);
        Ok((records[from * RECORD..to * RECORD].to_vec(), total as u64))
    }

    /// All records of a file's plan: kept ones, or made now and kept.
    pub(crate) fn records(&self, file: &File, meta: &Metadata) -> Vec<u8> {
        let key = key(meta);
        self.stored(&key).unwrap_or_else(|| {
            let records = make(file, meta.len());
            self.store(&key, &records);
            records
        })
    }

    fn path(&self, k: &Key) -> Option<PathBuf> {
        let name = format!("{VERSION}-{:x}-{:x}-{:x}-{:x}.{:x}", k.0, k.1, k.2, k.3, k.4);
        Some(self.cache.as_ref()?.join(name))
    }

    /// A plan from the directory. One that was cut short is not believed.
    fn stored(&self, key: &Key) -> Option<Vec<u8>> {
        let bytes = std::fs::read(self.path(key)?).ok()?;
        let (len, records) = bytes.split_first_chunk::<8>()?;
        (u64::from_le_bytes(*len) == records.len() as u64 && records.len() % RECORD == 0)
            .then(|| records.to_vec())
    }

    /// Keeps a plan. Without it the next cell plans again, so a failure is no error.
    fn store(&self, key: &Key, records: &[u8]) {
        let Some(path) = self.path(key) else { return };
        let Some(dir) = path.parent() else { return };
        let _ = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
        let _ = write_whole(&path, records);
        // As good as by chance, and another one each time.
        if (key.1 as i64 ^ key.3 ^ (key.4 / 1000)).rem_euclid(COUNTED) == 0 {
            let _ = prune(dir, KEPT_MAX);
        }
    }
}

/// If there are more than `most` files in a directory, a quarter goes of what may be there: those that were not used for longest.
fn prune(dir: &Path, most: usize) -> std::io::Result<()> {
    let entries: Vec<_> = std::fs::read_dir(dir)?.filter_map(Result::ok).collect();
    if entries.len() <= most {
        return Ok(());
    }
    let used = |meta: &Metadata| {
        let times = [meta.accessed(), meta.modified()];
        times.into_iter().flatten().max().unwrap_or(SystemTime::UNIX_EPOCH)
    };
    let files = entries.iter().filter_map(|e| Some((e.metadata().ok()?, e.path())));
    let mut files: Vec<_> =
        files.filter(|(meta, _)| meta.is_file()).map(|(m, path)| (used(&m), path)).collect();
    files.sort();
    let stay = most - most / 4;
    for (_, path) in &files[..files.len().saturating_sub(stay)] {
        // Others may do the same meanwhile.
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

fn write_whole(path: &Path, records: &[u8]) -> std::io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    let new = PathBuf::from(name);
    let mut f = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    f.write_all(&(records.len() as u64).to_le_bytes())?;
    f.write_all(records)?;
    std::fs::rename(&new, path)
}

/// The records of a file; none for one that is no executable of this machine.
fn make(file: &File, len: u64) -> Vec<u8> {
    if len == 0 || len > FILE_MAX {
        return Vec::new();
    }
    let mut bytes = vec![0; len as usize];
    // A file that shrinks meanwhile leaves zeroes, which are no code.
    if !read_all(file.as_fd(), &mut bytes) {
        return Vec::new();
    }
    let plan = atoll_rewrite::plan(&bytes).unwrap_or_default();
    plan.records.as_bytes().to_vec()
}

fn read_all(file: BorrowedFd<'_>, to: &mut [u8]) -> bool {
    let mut done = 0;
    while done < to.len() {
        match rustix::io::pread(file, &mut to[done..], done as u64) {
            Ok(0) => return true,
            Ok(n) => done += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was used last stays, and others' directories are left alone.
    #[test]
    fn old_plans_go() -> std::io::Result<()> {
        let dir = tempfile::tempdir()?;
        std::fs::create_dir(dir.path().join("other"))?;
        let at = |s: u64| SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(s);
        for n in 0..20 {
            let file = File::create(dir.path().join(n.to_string()))?;
            // Each second one was written long ago, and read since.
            let times = std::fs::FileTimes::new().set_accessed(at(100 + n));
            file.set_times(times.set_modified(at(if n % 2 == 0 { 1 } else { 100 + n })))?;
        }
        prune(dir.path(), 21)?;
        assert_eq!(std::fs::read_dir(dir.path())?.count(), 21);
        prune(dir.path(), 16)?;
        let mut left: Vec<_> =
            std::fs::read_dir(dir.path())?.filter_map(|e| e.ok()?.file_name().into_string().ok()).collect();
        left.sort();
        let mut want: Vec<_> = (8..20).map(|n| n.to_string()).chain(["other".into()]).collect();
        want.sort();
        assert_eq!(left, want);
        Ok(())
    }
}
