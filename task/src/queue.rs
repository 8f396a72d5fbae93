//! A line of ready threads, the one that is to run next in front: a pairing heap (Fredman, Sedgewick, Sleator, Tarjan,
//! "The pairing heap", 1986), whose links are in the threads. Nothing is allocated; to put one in takes `O(1)`, to take
//! the first one out `O(log n)`, amortized.
#![allow(unsafe_code, reason = "links threads into heaps")]

use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::fair::Used;
use crate::thread::{Thread, ThreadRef};

/// A thread's place in a line. Only the core in whose line it is touches it.
pub(crate) struct Place {
    /// What it is ordered by: its rank, what it has had, when it came.
    rank: AtomicU64,
    used: AtomicU64,
    came: AtomicU64,
    /// Its first child.
    child: AtomicPtr<Thread>,
    /// The child before it of the same parent, of the first child the parent. Its next sibling is `Thread::next`.
    back: AtomicPtr<Thread>,
}

impl Place {
    pub const fn new() -> Self {
        Place {
            rank: AtomicU64::new(0),
            used: AtomicU64::new(0),
            came: AtomicU64::new(0),
            child: AtomicPtr::new(null_mut()),
            back: AtomicPtr::new(null_mut()),
        }
    }

    fn key(&self) -> (u64, u64, u64) {
        let get = |word: &AtomicU64| word.load(Ordering::Relaxed);
        (get(&self.rank), get(&self.used), get(&self.came))
    }
}

/// Where it goes: a rank goes before all higher ones, and among equals who has used less.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    pub rank: u64,
    pub used: Used,
    /// Before equals, and not behind them.
    pub first: bool,
}

/// The rank behind all others.
pub(crate) const LAST: u64 = 100;

/// The line.
pub(crate) struct Queue {
    root: *mut Thread,
    len: usize,
    /// Those of rank [`LAST`].
    last: usize,
    /// The next one's number, if it goes behind its equals; and if it goes before them.
    behind: u64,
    before: u64,
}

type Link = *mut Thread;

/// The thread of a link that is not null.
///
/// # Safety
/// It is a link of a line: to a thread.
unsafe fn at(link: Link) -> ThreadRef {
    // SAFETY: the caller's promise; threads are never freed.
    unsafe { &*link }
}

fn child(t: ThreadRef) -> Link {
    t.place.child.load(Ordering::Relaxed)
}

fn next(t: ThreadRef) -> Link {
    t.next.load(Ordering::Relaxed)
}

fn link(t: ThreadRef) -> Link {
    (t as *const Thread).cast_mut()
}

/// Joins two heaps, of which neither has siblings.
fn join(a: ThreadRef, b: ThreadRef) -> ThreadRef {
    let (top, below) = if a.place.key() <= b.place.key() { (a, b) } else { (b, a) };
    let first = child(top);
    below.next.store(first, Ordering::Relaxed);
    below.place.back.store(link(top), Ordering::Relaxed);
    if !first.is_null() {
        // SAFETY: a child.
        unsafe { at(first) }.place.back.store(link(below), Ordering::Relaxed);
    }
    top.place.child.store(link(below), Ordering::Relaxed);
    top
}

/// Takes a list's first heap from the others. Value: those.
fn cut_next(t: ThreadRef) -> Link {
    t.next.swap(null_mut(), Ordering::Relaxed)
}

/// Makes one heap of a list of siblings; null if there are none.
#[inline]
fn join_all(list: Link) -> Link {
    if list.is_null() {
        return list;
    }
    // SAFETY: a link of the list.
    let only = unsafe { at(list) };
    if next(only).is_null() {
        only.place.back.store(null_mut(), Ordering::Relaxed);
        return list;
    }
    join_several(list)
}

/// The same of two and more.
fn join_several(mut list: Link) -> Link {
    // In pairs from the first to the last, then all of these from the last to the first.
    let mut pairs: Link = null_mut();
    while !list.is_null() {
        // SAFETY: links of the list.
        let a = unsafe { at(list) };
        list = cut_next(a);
        let pair = if list.is_null() {
            a
        } else {
            // SAFETY: as above.
            let b = unsafe { at(list) };
            list = cut_next(b);
            join(a, b)
        };
        pair.next.store(pairs, Ordering::Relaxed);
        pairs = link(pair);
    }
    let mut all: Option<ThreadRef> = None;
    while !pairs.is_null() {
        // SAFETY: as above.
        let pair = unsafe { at(pairs) };
        pairs = cut_next(pair);
        all = Some(all.map_or(pair, |all| join(all, pair)));
    }
    all.map_or(null_mut(), |all| {
        all.place.back.store(null_mut(), Ordering::Relaxed);
        link(all)
    })
}

impl Queue {
    pub const fn new() -> Self {
        Queue { root: null_mut(), len: 0, last: 0, behind: 1 << 63, before: 1 << 63 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.root.is_null()
    }

    /// Is one of rank [`LAST`] among them?
    #[inline]
    pub fn has_last(&self) -> bool {
        self.last > 0
    }

    fn note_gone(&mut self, t: ThreadRef) {
        self.len -= 1;
        self.last -= usize::from(t.place.rank.load(Ordering::Relaxed) == LAST);
    }

    /// Who is next.
    #[inline]
    pub fn first(&self) -> Option<ThreadRef> {
        // SAFETY: the root is a thread in this line, or null.
        (!self.root.is_null()).then(|| unsafe { at(self.root) })
    }

    /// The place of the one who is next: rank, and what it has used.
    #[inline]
    pub fn first_place(&self) -> Option<(u64, Used)> {
        let (rank, used, _) = self.first()?.place.key();
        Some((rank, Used::from_word(used)))
    }

    pub fn push(&mut self, t: ThreadRef, order: Order) {
        let came = if order.first {
            self.before -= 1;
            self.before
        } else {
            self.behind += 1;
            self.behind
        };
        let place = &t.place;
        for (word, n) in [(&place.rank, order.rank), (&place.used, order.used.to_word()), (&place.came, came)]
        {
            word.store(n, Ordering::Relaxed);
        }
        for link in [&t.next, &place.child, &place.back] {
            link.store(null_mut(), Ordering::Relaxed);
        }
        self.root = link(match self.first() {
            Some(first) => join(first, t),
            None => t,
        });
        self.len += 1;
        self.last += usize::from(order.rank == LAST);
    }

    pub fn pop(&mut self) -> Option<ThreadRef> {
        let t = self.first()?;
        self.root = join_all(t.place.child.swap(null_mut(), Ordering::Relaxed));
        self.note_gone(t);
        Some(t)
    }

    /// All of them, in no order.
    pub fn iter(&self) -> impl Iterator<Item = ThreadRef> {
        let mut now = self.root;
        core::iter::from_fn(move || {
            if now.is_null() {
                return None;
            }
            // SAFETY: links of the heap.
            let t = unsafe { at(now) };
            now = after(t);
            Some(t)
        })
    }

    /// Takes the first one of rank [`LAST`] out.
    pub fn take_last(&mut self) -> Option<ThreadRef> {
        if self.has_last() { self.take(|t| t.place.rank.load(Ordering::Relaxed) == LAST) } else { None }
    }

    /// Takes the first one out for which `f` holds.
    pub fn take(&mut self, f: impl Fn(ThreadRef) -> bool) -> Option<ThreadRef> {
        let t = self.iter().filter(|t| f(t)).min_by_key(|t| t.place.key())?;
        if link(t) == self.root {
            return self.pop();
        }
        // SAFETY: one that is not the root has a parent, or a sibling before it.
        let back = unsafe { at(t.place.back.swap(null_mut(), Ordering::Relaxed)) };
        let next = cut_next(t);
        if child(back) == link(t) {
            back.place.child.store(next, Ordering::Relaxed);
        } else {
            back.next.store(next, Ordering::Relaxed);
        }
        if !next.is_null() {
            // SAFETY: a sibling.
            unsafe { at(next) }.place.back.store(link(back), Ordering::Relaxed);
        }
        let below = join_all(t.place.child.swap(null_mut(), Ordering::Relaxed));
        if !below.is_null() {
            // SAFETY: the root, which there is, and a heap of its own.
            self.root = link(unsafe { join(at(self.root), at(below)) });
        }
        self.note_gone(t);
        Some(t)
    }
}

/// The one after this on a way through all of a heap: its first child, or the next sibling of it or of the nearest above it
/// that has one.
fn after(t: ThreadRef) -> Link {
    if !child(t).is_null() {
        return child(t);
    }
    let mut t = t;
    loop {
        if !next(t).is_null() {
            return next(t);
        }
        // Back to the parent.
        loop {
            let back = t.place.back.load(Ordering::Relaxed);
            if back.is_null() {
                return null_mut();
            }
            // SAFETY: a sibling or the parent.
            let before = unsafe { at(back) };
            let was_first = child(before) == link(t);
            t = before;
            if was_first {
                break;
            }
        }
    }
}
