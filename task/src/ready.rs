//! A core's ready threads, and who of them is next.
//!
//! As long as the cell has one class, they stand in one line. A *class* is an activity that the configuration names, or the
//! cell itself for all others; with more than one, each has a line of its own, and a scheduler of the grid divides the
//! core's time between the lines (Omni-kernel, sections 3.2 and 4: threads are the clients of the thread resource).
//! Threads of the runtime that work for no activity, but handle events, then go before all classes when they are woken.
#![allow(unsafe_code, reason = "links threads into lines")]

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ptr::null_mut;
use core::sync::atomic::Ordering;

use crate::thread::{Thread, ThreadRef};
use atoll_abi::grid::{Parameters, SchedulerKind};
use atoll_grid::scheduler::{Checked, Client, Scheduler, make};

/// Threads in a line, first come first.
struct Line {
    head: *mut Thread,
    tail: *mut Thread,
}

impl Line {
    const fn new() -> Self {
        Line { head: null_mut(), tail: null_mut() }
    }

    fn is_empty(&self) -> bool {
        self.head.is_null()
    }

    fn push(&mut self, t: ThreadRef) {
        t.next.store(null_mut(), Ordering::Relaxed);
        let t = (t as *const Thread).cast_mut();
        if self.tail.is_null() {
            self.head = t;
        } else {
            // SAFETY: the tail is a thread in this line; threads are never freed.
            unsafe { (*self.tail).next.store(t, Ordering::Relaxed) };
        }
        self.tail = t;
    }

    fn pop(&mut self) -> Option<ThreadRef> {
        if self.head.is_null() {
            return None;
        }
        // SAFETY: the head is a thread in this line; threads are never freed.
        let t = unsafe { &*self.head };
        self.head = t.next.load(Ordering::Relaxed);
        if self.head.is_null() {
            self.tail = null_mut();
        }
        Some(t)
    }

    /// Takes the first one out for which `f` holds. The others keep their places.
    fn take(&mut self, f: impl Fn(ThreadRef) -> bool) -> Option<ThreadRef> {
        let mut kept = Line::new();
        let mut found = None;
        while let Some(t) = self.pop() {
            if found.is_none() && f(t) {
                found = Some(t);
            } else {
                kept.push(t);
            }
        }
        *self = kept;
        found
    }
}

/// One thread, in averages.
pub(crate) const ONE: u32 = 256;
/// Longest a thread runs while others of its core are ready, ns.
pub(crate) const SLICE: u64 = 3_000_000;
/// How long it runs at least before another class takes its place, ns.
const LEAST: u64 = 50_000;
/// How often a core looks which part of each class it has, ns.
const LOOK_EVERY: u64 = 8_000_000;
/// Parts of a unit of weight.
const FINER: u64 = 256;

/// Several classes, and who divides the core between them.
struct Classes {
    /// What they are to have of the whole cell.
    division: Vec<(u32, Parameters)>,
    looked: u64,
    /// By the activity's number.
    lines: Vec<Line>,
    scheduler: Checked<Box<dyn Scheduler>>,
    /// The class whose thread was taken last. It has something to do until it is settled.
    serving: Option<Client>,
    /// Since when, and until when as far as the scheduler goes.
    since: u64,
    until: u64,
}

/// Ready threads of one core.
pub(crate) struct Ready {
    /// All of them, or those that go before the classes.
    front: Line,
    classes: Option<Box<Classes>>,
    len: usize,
    /// The configuration by which it goes.
    pub generation: u32,
}

/// How the classes of a cell are to share its cores.
#[derive(Clone, Debug, Default)]
pub(crate) struct Division {
    /// Who divides.
    pub scheduler: SchedulerKind,
    /// Activities and what they are to have; the cell itself is one of them. Empty: there is one class.
    pub classes: Vec<(u32, Parameters)>,
}

impl Ready {
    pub const fn new() -> Self {
        Ready { front: Line::new(), classes: None, len: 0, generation: 0 }
    }

    /// How many there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Goes by another division from now on. Threads keep their places in their classes.
    pub fn divide(&mut self, division: &Division, generation: u32, now: u64) {
        self.generation = generation;
        let mut waiting = Line::new();
        // With one class, those in front are all there are.
        let one = self.classes.is_none();
        let mut serving = None;
        if one {
            core::mem::swap(&mut self.front, &mut waiting);
        }
        if let Some(mut old) = self.classes.take() {
            serving = old.serving;
            for line in &mut old.lines {
                while let Some(t) = line.pop() {
                    waiting.push(t);
                }
            }
        }
        if !division.classes.is_empty() {
            let last = division.classes.iter().map(|(activity, _)| *activity).max().unwrap_or(0);
            let mut classes = Box::new(Classes {
                division: division.classes.clone(),
                looked: now,
                lines: (0..=last).map(|_| Line::new()).collect(),
                scheduler: Checked::new(make(division.scheduler)),
                serving: None,
                since: now,
                until: u64::MAX,
            });
            for (activity, parameters) in &division.classes {
                classes.scheduler.configure(*activity as Client, parameters);
            }
            if let Some(client) = serving {
                classes.scheduler.arrive(client, now);
                classes.serving = serving;
            }
            self.classes = Some(classes);
        }
        self.len = if one { 0 } else { self.len.saturating_sub(count(&waiting)) };
        while let Some(t) = waiting.pop() {
            self.push(t, now);
        }
    }

    /// A thread is ready. `now` may be a while ago.
    #[inline]
    pub fn push(&mut self, t: ThreadRef, now: u64) {
        self.len += 1;
        match &mut self.classes {
            None => self.front.push(t),
            Some(classes) => classes.push(t, now),
        }
    }

    /// A thread has been woken.
    #[inline]
    pub fn wake(&mut self, t: ThreadRef, now: u64) {
        if self.classes.is_some() && !t.works_for_somebody() {
            self.len += 1;
            self.front.push(t);
        } else {
            self.push(t, now);
        }
    }

    /// The thread that was taken last, of this class, has run for `ran` ns and is not at it any more. If it is still
    /// ready, it has been pushed before.
    #[inline]
    pub fn settle(&mut self, ran: u64, now: u64) {
        if let Some(classes) = &mut self.classes {
            classes.settle(ran, now);
        }
    }

    /// Takes the next one. None: there is none, or none that may run now.
    #[inline]
    pub fn pop(&mut self, now: u64) -> Option<ThreadRef> {
        let t = match self.front.pop() {
            Some(t) => Some(t),
            None => self.classes.as_mut()?.pop(now),
        };
        self.len -= usize::from(t.is_some());
        t
    }

    /// Is there more than one class?
    #[inline]
    pub fn is_divided(&self) -> bool {
        self.classes.is_some()
    }

    /// When the turn of the thread ends that was taken last, at `since`, while others are ready. May have passed.
    #[inline]
    pub fn turn_ends(&self, since: u64) -> u64 {
        let longest = since + SLICE;
        match &self.classes {
            None => longest,
            // Those in front go before all classes.
            Some(_) if !self.front.is_empty() => since + LEAST,
            Some(classes) => classes.until.clamp(since + LEAST, longest),
        }
    }

    /// Has that thread, to which the core has come, had enough of its turn? It need not come again for the rest.
    #[inline]
    pub fn is_turn_over(&self, since: u64, now: u64) -> bool {
        self.len > 0 && now >= self.turn_ends(since).min(since + SLICE / 2)
    }

    /// Is it time for [`Ready::look_at_parts`]?
    #[inline]
    pub fn is_time_to_look(&self, now: u64) -> bool {
        self.classes.as_ref().is_some_and(|c| now.saturating_sub(c.looked) >= LOOK_EVERY)
    }

    /// Gives each class the part of its weight here that it has of its threads here, so that its share is one of the cell, and not
    /// of each core by itself. `loads`: a class's average on a core; `note`: takes this core's. Value: the core that has least to
    /// do, and the class of which it should get a thread from here, if that makes both more equal.
    pub fn look_at_parts(
        &mut self,
        now: u64,
        (me, cores): (usize, usize),
        loads: impl Fn(usize, u32) -> u32,
        note: impl Fn(u32, u32),
    ) -> Option<(usize, u32)> {
        let classes = self.classes.as_mut()?;
        classes.looked = now;
        let all = |class: u32| -> u32 { (0..cores).map(|core| loads(core, class)).sum() };
        for n in 0..classes.division.len() {
            let (class, parameters) = classes.division[n];
            let here = classes.count(class) * ONE;
            let average = (loads(me, class) * 3 + here).div_ceil(4);
            note(class, if here == 0 && average < ONE / 16 { 0 } else { average });
            let all = all(class);
            // Who comes back to a core on which it was not lately is not to stand behind all others.
            let part = u64::from(average.max(ONE / 4)) * FINER / u64::from(all.max(ONE / 4));
            let weight = u64::from(parameters.weight) * part.clamp(1, FINER);
            let parameters = Parameters { weight: u32::try_from(weight).unwrap_or(u32::MAX), ..parameters };
            classes.scheduler.configure(class as Client, &parameters);
        }
        // What a thread of a class weighs, and all on a core.
        let each = |(class, p): &(u32, Parameters)| {
            u64::from(p.weight) * FINER * u64::from(ONE) / u64::from(all(*class).max(ONE))
        };
        let weight = |core: usize| -> u64 {
            classes.division.iter().map(|c| each(c) * u64::from(loads(core, c.0)) / u64::from(ONE)).sum()
        };
        let to = (0..cores).min_by_key(|core| weight(*core)).filter(|core| *core != me)?;
        let more = weight(me).saturating_sub(weight(to));
        let fits = |c: &&(u32, Parameters)| {
            let waits = classes.lines.get(c.0 as usize).is_some_and(|line| !line.is_empty());
            waits && each(c) > 0 && each(c) * 5 < more * 4
        };
        let best = classes.division.iter().filter(fits).max_by_key(|c| each(c))?;
        Some((to, best.0))
    }

    /// When to ask again after there was none that might run; `u64::MAX`: when one is pushed.
    pub fn next(&self, now: u64) -> u64 {
        match &self.classes {
            Some(classes) if self.len > 0 => classes.scheduler.next(now),
            _ => u64::MAX,
        }
    }

    /// Takes out one for which `f` holds.
    pub fn take(&mut self, now: u64, f: impl Fn(ThreadRef) -> bool) -> Option<ThreadRef> {
        let found = match &mut self.classes {
            None => self.front.take(f),
            Some(classes) => classes.take(now, f),
        };
        self.len -= usize::from(found.is_some());
        found
    }
}

impl Classes {
    fn line(&mut self, class: usize) -> &mut Line {
        if class >= self.lines.len() {
            self.lines.resize_with(class + 1, Line::new);
        }
        &mut self.lines[class]
    }

    fn push(&mut self, t: ThreadRef, now: u64) {
        let class = t.class();
        let line = self.line(class as usize);
        let first = line.is_empty();
        line.push(t);
        if first && self.serving != Some(class as Client) {
            self.scheduler.arrive(class as Client, now);
            if let Some(client) = self.serving {
                self.until = self.scheduler.turn_ends(client, self.since);
            }
        }
    }

    /// Its threads that have something to do here.
    fn count(&self, class: u32) -> u32 {
        let waiting = self.lines.get(class as usize).map_or(0, count);
        waiting as u32 + u32::from(self.serving == Some(class as Client))
    }

    fn settle(&mut self, ran: u64, now: u64) {
        let Some(client) = self.serving.take() else { return };
        self.scheduler.charge(client, ran, now);
        if self.line(client as usize).is_empty() {
            self.scheduler.leave(client, now);
        }
    }

    fn pop(&mut self, now: u64) -> Option<ThreadRef> {
        let client = self.scheduler.pick(now)?;
        let t = self.line(client as usize).pop();
        debug_assert!(t.is_some(), "a class was picked that has nothing to do");
        self.serving = t.map(|_| client);
        (self.since, self.until) = (now, self.scheduler.turn_ends(client, now));
        t
    }

    fn take(&mut self, now: u64, f: impl Fn(ThreadRef) -> bool) -> Option<ThreadRef> {
        for class in 0..self.lines.len() {
            if let Some(t) = self.lines[class].take(&f) {
                if self.lines[class].is_empty() && self.serving != Some(class as Client) {
                    self.scheduler.leave(class as Client, now);
                }
                return Some(t);
            }
        }
        None
    }
}

fn count(line: &Line) -> usize {
    let mut n = 0;
    let mut at = line.head;
    while !at.is_null() {
        n += 1;
        // SAFETY: a thread in the line.
        at = unsafe { (*at).next.load(Ordering::Relaxed) };
    }
    n
}
