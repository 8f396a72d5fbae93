//! Messages: what a resource is asked to do, as a closure with an address.
//!
//! A message takes two cache lines, closure included. Its memory comes from the [`Pool`] of the core that sends it, and goes
//! to that of the core that has run it. What flows one way only makes the one pool empty and the other full; the heap then
//! carries the memory back, in batches and without a lock.
#![allow(
    unsafe_code,
    reason = "closures of any type in one place, and lists of messages without memory of their own"
)]

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::marker::PhantomData;
use core::mem::{ManuallyDrop, MaybeUninit};
use core::ptr::{NonNull, null_mut};

use atoll_abi::grid::Resource;

use crate::atomic::{AtomicPtr, Ordering};

/// The largest closure, bytes. A larger one is put into a box by whoever sends it, and doesn't compile otherwise.
pub const CLOSURE_MAX: usize = 64;
/// The greatest alignment of a closure, bytes.
const CLOSURE_ALIGN: usize = 16;

/// Where a message goes, for whom, and in what order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Those of an activity with the same label here, from one sender, are run in the order they were sent in. 0: no matter.
    pub dependency: u64,
    /// Those with the same label here are best run by the same core. 0: no matter.
    pub affinity: u64,
    /// What it costs, in units of the measure, where that is known before it runs; else 0.
    pub cost: u64,
    /// Who is charged: a number of the directory.
    pub activity: u32,
    /// Who is asked.
    pub resource: Resource,
}

/// A message's memory.
#[repr(C, align(64))]
pub(crate) struct Node {
    /// The next one in a list, of which there is one at a time. Written by the list's owner only.
    pub(crate) next: AtomicPtr<Node>,
    /// Takes the closure out, and runs it or drops it.
    call: unsafe fn(*mut u8, bool),
    /// When it was put into its queue, ns.
    since: u64,
    header: Header,
    closure: Closure,
}

#[repr(C, align(16))]
struct Closure(MaybeUninit<[u8; CLOSURE_MAX]>);

#[cfg(not(loom))]
const _: () = assert!(size_of::<Node>() == 128 && align_of::<Closure>() == CLOSURE_ALIGN);

/// Something that a resource is to do.
///
/// A message runs to its end and never waits: it ends by sending what is to go on.
pub struct Message(NonNull<Node>);

// SAFETY: a message owns its node, and a closure in it can be sent (`Message::new`).
unsafe impl Send for Message {}

/// The memory of a message that has run. It belongs into a [`Pool`]; if it is dropped it goes to the heap.
pub struct Spent(Box<Node>);

impl Message {
    /// A message that runs this closure.
    #[inline]
    pub fn new<F: FnOnce() + Send + 'static>(pool: &mut Pool, header: Header, closure: F) -> Self {
        const {
            assert!(size_of::<F>() <= CLOSURE_MAX, "a large closure goes into a box");
            assert!(align_of::<F>() <= CLOSURE_ALIGN, "a closure that is aligned so goes into a box");
        }
        /// Takes the closure out, and runs it if told so.
        ///
        /// # Safety
        /// At `at` lies an `F`, which is the caller's and is gone afterwards.
        unsafe fn call<F: FnOnce()>(at: *mut u8, run: bool) {
            // SAFETY: as the caller promises.
            let closure = unsafe { at.cast::<F>().read() };
            if run {
                closure();
            }
        }
        let mut node = pool.take();
        node.call = call::<F>;
        node.header = header;
        // SAFETY: there is room for an `F`, aligned as it has to be: see above. The node is ours.
        unsafe { node.closure.0.as_mut_ptr().cast::<F>().write(closure) };
        Message(NonNull::from(Box::leak(node)))
    }

    fn node(&self) -> &Node {
        // SAFETY: a message owns its node.
        unsafe { self.0.as_ref() }
    }

    /// Its address.
    #[inline]
    pub fn header(&self) -> &Header {
        &self.node().header
    }

    /// When it was put into its queue, ns; 0 if it never was.
    #[inline]
    pub fn since(&self) -> u64 {
        self.node().since
    }

    /// Notes when it is put into its queue.
    #[inline]
    pub(crate) fn set_since(&mut self, now: u64) {
        // SAFETY: a message owns its node.
        unsafe { self.0.as_mut() }.since = now;
    }

    /// Does what it says. Value: its memory.
    #[inline]
    pub fn run(self) -> Spent {
        self.end(true)
    }

    #[inline]
    fn end(self, run: bool) -> Spent {
        // SAFETY: the node is this message's, made by a box (`new`), and `into_raw` makes the message forget it.
        let mut node = unsafe { Box::from_raw(self.into_raw()) };
        // SAFETY: `new` put the closure there that `call` is for, and nobody else will take it out.
        unsafe { (node.call)(node.closure.0.as_mut_ptr().cast(), run) };
        Spent(node)
    }

    /// Gives the node to a list.
    #[inline]
    pub(crate) fn into_raw(self) -> *mut Node {
        ManuallyDrop::new(self).0.as_ptr()
    }

    /// Takes the node out of a list.
    ///
    /// # Safety
    /// It came from `into_raw`, and is in no list any more.
    #[inline]
    pub(crate) unsafe fn from_raw(node: NonNull<Node>) -> Self {
        Message(node)
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        drop(Message(self.0).end(false));
    }
}

/// Memory of messages that a core has at hand.
pub struct Pool {
    free: Vec<Spent>,
}

impl Pool {
    /// A pool that keeps so many at most, and has as many from the start.
    pub fn new(keep: usize) -> Self {
        let mut free = Vec::with_capacity(keep);
        free.extend((0..keep).map(|_| Spent(Self::make())));
        Pool { free }
    }

    #[cold]
    fn make() -> Box<Node> {
        unsafe fn nothing(_: *mut u8, _: bool) {}
        Box::new(Node {
            next: AtomicPtr::new(null_mut()),
            call: nothing,
            since: 0,
            header: Header { dependency: 0, affinity: 0, cost: 0, activity: 0, resource: Resource::Overhead },
            closure: Closure(MaybeUninit::uninit()),
        })
    }

    #[inline]
    fn take(&mut self) -> Box<Node> {
        self.free.pop().map_or_else(Self::make, |s| s.0)
    }

    /// Takes the memory of a message that was run here.
    #[inline]
    pub fn put(&mut self, mut spent: Spent) {
        if self.free.len() < self.free.capacity() {
            spent.0.since = 0;
            self.free.push(spent);
        }
    }
}

/// Messages, first in, first out.
pub struct Messages {
    first: *mut Node,
    /// Meaningless if there is no first.
    last: *mut Node,
    len: usize,
    owns: PhantomData<Message>,
}

// SAFETY: it owns its messages, which can be sent.
unsafe impl Send for Messages {}

impl Default for Messages {
    fn default() -> Self {
        Messages { first: null_mut(), last: null_mut(), len: 0, owns: PhantomData }
    }
}

impl Messages {
    /// Those of a list that runs from the last one to the first, by `next`.
    ///
    /// # Safety
    /// They came from `Message::into_raw`, and nobody else has the list.
    pub(crate) unsafe fn from_reversed(mut node: *mut Node) -> Self {
        let mut messages = Messages { first: null_mut(), last: node, len: 0, owns: PhantomData };
        while let Some(n) = NonNull::new(node) {
            // SAFETY: the nodes are ours, as the caller promises.
            let next = unsafe { &n.as_ref().next };
            node = next.load(Ordering::Relaxed);
            next.store(messages.first, Ordering::Relaxed);
            messages.first = n.as_ptr();
            messages.len += 1;
        }
        messages
    }

    /// Are there none?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.first.is_null()
    }

    /// How many there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The first one.
    #[inline]
    pub fn first(&self) -> Option<&Header> {
        Some(&self.first_node()?.header)
    }

    /// When the first one was put into its queue.
    #[inline]
    pub(crate) fn first_since(&self) -> Option<u64> {
        Some(self.first_node()?.since)
    }

    #[inline]
    fn first_node(&self) -> Option<&Node> {
        // SAFETY: nodes in the list are the list's.
        unsafe { self.first.as_ref() }
    }

    /// Adds one at the end.
    #[inline]
    pub fn push(&mut self, message: Message) {
        let node = message.into_raw();
        // SAFETY: the node is the list's from here on.
        unsafe { (*node).next.store(null_mut(), Ordering::Relaxed) };
        if self.first.is_null() {
            self.first = node;
        } else {
            // SAFETY: the last node is the list's, as there is a first.
            unsafe { (*self.last).next.store(node, Ordering::Relaxed) };
        }
        self.last = node;
        self.len += 1;
    }
}

impl Iterator for Messages {
    type Item = Message;

    /// Takes the first one out.
    #[inline]
    fn next(&mut self) -> Option<Message> {
        let node = NonNull::new(self.first)?;
        self.len -= 1;
        // SAFETY: the node is the list's, and in no list after this.
        unsafe {
            self.first = node.as_ref().next.load(Ordering::Relaxed);
            Some(Message::from_raw(node))
        }
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

#[cfg(all(test, not(loom)))]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    pub(crate) fn header(activity: u32) -> Header {
        Header { dependency: 1, affinity: 2, cost: 0, activity, resource: Resource::Pipe }
    }

    /// Each closure is run or dropped, once.
    #[test]
    fn runs_once_or_drops_once() {
        let mut pool = Pool::new(2);
        let count = Arc::new(AtomicUsize::new(0));
        let message = |pool: &mut Pool| {
            let count = count.clone();
            Message::new(pool, header(3), move || {
                count.fetch_add(1, Ordering::Relaxed);
            })
        };
        let m = message(&mut pool);
        assert_eq!(*m.header(), header(3));
        assert_eq!(Arc::strong_count(&count), 2);
        let spent = m.run();
        assert_eq!((count.load(Ordering::Relaxed), Arc::strong_count(&count)), (1, 1));
        pool.put(spent);
        drop(message(&mut pool));
        assert_eq!((count.load(Ordering::Relaxed), Arc::strong_count(&count)), (1, 1));
        let mut list = Messages::default();
        for _ in 0..5 {
            list.push(message(&mut pool));
        }
        pool.put(list.next().unwrap().run());
        drop(list);
        assert_eq!((count.load(Ordering::Relaxed), Arc::strong_count(&count)), (2, 1));
        // The largest, and one of nothing.
        let large = [7u64; CLOSURE_MAX / 8];
        Message::new(&mut pool, header(0), move || assert_eq!(large, [7; CLOSURE_MAX / 8])).run();
        Message::new(&mut pool, header(0), || ()).run();
    }

    proptest! {
        #[test]
        fn list_agrees_with_model(ops in prop::collection::vec(any::<bool>(), 1..200)) {
            let mut pool = Pool::new(4);
            let (mut list, mut model) = (Messages::default(), VecDeque::new());
            for (i, push) in ops.into_iter().enumerate() {
                if push {
                    list.push(Message::new(&mut pool, header(i as u32), || ()));
                    model.push_back(i as u32);
                } else {
                    let got = list.next().map(|m| m.header().activity);
                    prop_assert_eq!(got, model.pop_front());
                }
                prop_assert_eq!(list.len(), model.len());
                prop_assert_eq!(list.is_empty(), model.is_empty());
                prop_assert_eq!(list.first().map(|h| h.activity), model.front().copied());
            }
        }
    }
}
