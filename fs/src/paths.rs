//! Where paths lead, remembered per core, so that a path that is used again
//! and again costs one look instead of one for each name in it.
//!
//! What is remembered is what a walk found out, and is believed no longer
//! than the shortest-lived of that ([`Inode::believed`]): a change of names,
//! permissions or mounts in this cell ends it at once ([`changed`]), and so
//! does the time for which a host's directory is believed.

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::hash::BuildHasher;
use core::sync::atomic::{AtomicU64, Ordering};

use atoll_abi::core_local::core_local;
use atoll_abi::platform;
use atoll_sync::{Mutex, MutexGuard};

use crate::namespace::{Location, Mount};
use crate::node::{Inode, InodeRef};
use crate::types::Cred;

/// Paths that a core remembers at most.
const ENTRIES: usize = 256;
/// Longest path that is remembered, bytes.
const LONGEST: usize = 512;

/// Grows with every change of the tree.
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// Names, permissions or mounts were changed. To be called after that was done.
pub fn changed() {
    CHANGES.fetch_add(1, Ordering::SeqCst);
}

/// What decides where a path leads, besides the tree.
pub(crate) struct Question<'a> {
    pub path: &'a [u8],
    /// Where a relative path begins.
    pub start: &'a Location,
    pub root: &'a Location,
    pub cred: &'a Cred,
    pub no_follow: bool,
}

/// A place that may go away.
struct Place {
    mount: &'static Mount,
    inode: Weak<dyn Inode>,
}

impl Place {
    fn of(location: &Location) -> Place {
        Place { mount: location.mount, inode: Arc::downgrade(&location.inode) }
    }

    fn is(&self, location: &Location) -> bool {
        core::ptr::eq(self.mount, location.mount)
            && core::ptr::addr_eq(self.inode.as_ptr(), Arc::as_ptr(&location.inode))
    }
}

struct Entry {
    path: Box<[u8]>,
    /// None for an absolute path.
    start: Option<Place>,
    root: Place,
    cred: Cred,
    no_follow: bool,
    /// [`CHANGES`] before the walk began.
    changes: u64,
    until: u64,
    found: Place,
}

impl Entry {
    fn answers(&self, q: &Question) -> bool {
        *self.path == *q.path
            && self.no_follow == q.no_follow
            && self.start.as_ref().is_none_or(|s| s.is(q.start))
            && self.root.is(q.root)
            && (self.cred.uid, self.cred.gid) == (q.cred.uid, q.cred.gid)
            && self.cred.groups == q.cred.groups
    }
}

#[derive(Default)]
struct Cache {
    entries: Vec<Option<Box<Entry>>>,
    /// Hashes of paths that were asked for lately: what is asked for once is not worth remembering.
    asked: Vec<u32>,
}

/// The paths that each core remembers.
pub(crate) struct Paths {
    cores: Box<[Mutex<Cache>]>,
    hasher: hashbrown::DefaultHashBuilder,
}

/// A walk that is to be remembered.
pub(crate) struct Walked {
    at: usize,
    changes: u64,
}

impl Paths {
    /// Nothing yet, for so many cores.
    pub fn new(cores: usize) -> Self {
        Paths {
            cores: (0..cores).map(|_| Mutex::new(Cache::default())).collect(),
            hasher: hashbrown::DefaultHashBuilder::default(),
        }
    }

    fn cache(&self) -> Option<MutexGuard<'_, Cache>> {
        if self.cores.is_empty() {
            return None;
        }
        self.cores.get(core_local().id())?.try_lock()
    }

    /// The answer, or what to give to [`Paths::remember`] if it is worth it.
    pub fn ask(&self, q: &Question) -> Result<Location, Option<Walked>> {
        let Some(mut cache) = self.cache().filter(|_| q.path.len() <= LONGEST) else { return Err(None) };
        let hash = self.hasher.hash_one(q.path);
        let at = hash as usize % ENTRIES;
        let changes = CHANGES.load(Ordering::SeqCst);
        if let Some(Some(e)) = cache.entries.get(at)
            && e.answers(q)
            && e.changes == changes
            && e.until > platform().now()
            && let Some(inode) = e.found.inode.upgrade()
        {
            return Ok(Location { mount: e.found.mount, inode });
        }
        if cache.asked.is_empty() {
            cache.asked.resize(ENTRIES, 0);
        }
        let mark = (hash >> 32) as u32;
        let again = core::mem::replace(&mut cache.asked[at], mark) == mark;
        Err(again.then_some(Walked { at, changes }))
    }

    /// A walk found `found`, which is believed until then.
    pub fn remember(&self, walked: &Walked, q: &Question, found: &Location, until: u64) {
        let entry = Box::new(Entry {
            path: q.path.into(),
            start: (!q.path.starts_with(b"/")).then(|| Place::of(q.start)),
            root: Place::of(q.root),
            cred: q.cred.clone(),
            no_follow: q.no_follow,
            changes: walked.changes,
            until,
            found: Place::of(found),
        });
        let old = {
            let Some(mut cache) = self.cache() else { return };
            if cache.entries.is_empty() {
                cache.entries.resize_with(ENTRIES, || None);
            }
            cache.entries[walked.at].replace(entry)
        };
        drop(old);
    }
}

/// Takes note of how long what a walk went by is believed; None: not at all.
pub(crate) fn note(until: &mut Option<u64>, inode: &InodeRef, attributes: bool) {
    if let Some(u) = *until {
        *until = inode.believed(attributes).map(|t| t.min(u));
    }
}
