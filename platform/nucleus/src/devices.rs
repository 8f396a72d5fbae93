//! Requests that devices answer: of disks, and of the port by which the outside is asked.
//!
//! They go the way they go on a host, by the core's ring of requests, and whoever comes by serves them: the core
//! that asks, one that looks for events, the one that a device interrupts. One core at a time does; another one
//! leaves a mark, and the first one looks again before it goes. Nobody waits for a device here: what it has done
//! is seen the next time.
#![allow(
    unsafe_code,
    reason = "starts devices whose registers the nucleus has mapped, and gives them buffers"
)]

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::fmt::{Arguments, Write as _};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::outside::Outside;
use crate::{NUCLEUS, control};
use atoll_abi::core_local::core_local;
use atoll_abi::errno::{Errno, Result};
use atoll_abi::layout::DIRECT_MAP;
use atoll_abi::platform::{Event, Events};
use atoll_abi::service::{Answer, AnswerRing, Op, Request};
use atoll_drivers::blk::Disk;
use atoll_drivers::console::Console;
use atoll_drivers::transport::AnyTransport;
use atoll_platform_entry::line::Line;
use atoll_sync::SetOnce;

/// Virtio's numbers of the kinds.
const DISK: u32 = 2;
const PORT: u32 = 3;

/// A request, and the core that it came from.
pub(crate) type Asked = (usize, Request);

/// Where answers go until their cores take them.
pub(crate) struct Answers {
    rings: Vec<AnswerRing>,
}

impl Answers {
    /// Answers a request.
    pub fn give(&self, asked: &Asked, value: Result<u64>, extra: u64) {
        let (core, request) = asked;
        let value = value.map_or_else(|e| e.to_ret(), |v| v as i64);
        // A core has no more requests under way than its ring has room for.
        let answer = Answer { cookie: request.cookie, value, extra, flags: 0 };
        assert!(self.rings[*core].push(&answer), "no room for an answer");
        if *core != core_local().id() {
            NUCLEUS.notify(*core);
        }
    }
}

/// A disk, and what it has no room for yet.
struct Queued {
    disk: Box<Disk<AnyTransport>>,
    later: VecDeque<Asked>,
    /// What it works on. A slot's number is its tag.
    now: Vec<Option<Asked>>,
    /// It told lies, and is not asked any more.
    broken: bool,
}

/// What the core that serves has to itself.
struct State {
    disks: Vec<Queued>,
    outside: Option<Outside>,
}

/// The devices.
pub(crate) struct Devices {
    busy: AtomicBool,
    /// There is something to do.
    wanted: AtomicBool,
    /// A device's interrupt has come since the last look.
    interrupted: AtomicBool,
    /// A core is about to sleep.
    sleepy: AtomicBool,
    state: UnsafeCell<State>,
    answers: Answers,
    has_outside: bool,
}

// SAFETY: the state is reached by `serve` only, which lets one in at a time; each ring of answers is filled there
// and emptied by its own core.
unsafe impl Sync for Devices {}
// SAFETY: registers, queues and buffers are mapped alike on all cores.
unsafe impl Send for Devices {}

static DEVICES: SetOnce<Devices> = SetOnce::new();

/// The devices, if the cell has any and they have been started.
pub(crate) fn devices() -> Option<&'static Devices> {
    DEVICES.get()
}

/// Has something come that this core is to look at?
fn has_mail(core: usize) -> bool {
    core == 0 && control().has_mail()
}

/// A line of the log.
pub(crate) fn say(what: Arguments) {
    let mut line = Line::new();
    // It can't fail.
    let _ = line.write_fmt(what);
    NUCLEUS.log(line.as_str());
}

/// Starts them. At boot, when there is one thread.
#[cold]
pub(crate) fn start() {
    if DEVICES.get().is_some() {
        return;
    }
    let descriptor = &control().descriptor;
    let (mut disks, mut outside) = (Vec::new(), None);
    for device in &descriptor.devices {
        match device.kind.load(Ordering::Relaxed) {
            // SAFETY: a device that the nucleus granted to this cell alone; this is done once.
            DISK => match unsafe { Disk::of(device) } {
                Ok(disk) => {
                    disks.push(Queued { disk, later: VecDeque::new(), now: Vec::new(), broken: false });
                }
                Err(e) => say(format_args!("a disk does not start, and is left out: {e}")),
            },
            // SAFETY: as above.
            PORT if outside.is_none() => match unsafe { Console::of(device) } {
                Ok(port) => outside = Some(Outside::new(port)),
                Err(e) => say(format_args!("the port to what is outside does not start: {e}")),
            },
            _ => {}
        }
    }
    if disks.is_empty() && outside.is_none() {
        return;
    }
    let cores = descriptor.cores.load(Ordering::Relaxed) as usize;
    let answers = Answers { rings: (0..cores).map(|_| AnswerRing::new()).collect() };
    // Whoever was first is the one.
    let _ = DEVICES.set(Devices {
        busy: AtomicBool::new(false),
        wanted: AtomicBool::new(false),
        interrupted: AtomicBool::new(true),
        sleepy: AtomicBool::new(false),
        has_outside: outside.is_some(),
        state: UnsafeCell::new(State { disks, outside }),
        answers,
    });
}

impl Devices {
    /// Is this a request for them?
    pub fn takes(&self, request: &Request) -> bool {
        match Op::from_number(request.op) {
            Some(Op::DiskRead) => true,
            _ => self.has_outside && Outside::takes(request),
        }
    }

    /// Takes a request; there are fewer under way on this core than its ring has room for.
    pub fn submit(&self, request: &Request) {
        let area = &control().cores[core_local().id()];
        assert!(area.requests.push(request), "no room for a request");
        area.outstanding.fetch_add(1, Ordering::Relaxed);
        self.serve();
    }

    /// A device has interrupted.
    pub fn interrupted(&self) {
        self.interrupted.store(true, Ordering::SeqCst);
    }

    /// Is there something for this core?
    pub fn has_events(&self) -> bool {
        let id = core_local().id();
        self.interrupted.load(Ordering::SeqCst) || !self.answers.rings[id].is_empty() || has_mail(id)
    }

    /// Serves, and adds answers to this core's requests.
    pub fn poll(&self, events: &mut Events) {
        let id = core_local().id();
        let area = &control().cores[id];
        // Devices are looked at when they interrupt, and by who waits for them.
        if self.interrupted.load(Ordering::SeqCst) || area.outstanding.load(Ordering::Relaxed) > 0 {
            self.serve();
        }
        while events.room() > 0 {
            let Some(answer) = self.answers.rings[id].pop::<Answer>() else { break };
            area.outstanding.fetch_sub(1, Ordering::Relaxed);
            events.push(Event::Answer(answer));
        }
        // Behind the answers: those that were there before a signal come before it.
        if events.room() > 0 && has_mail(id) {
            events.push(Event::Mailbox);
        }
    }

    /// A second look at all queues, of a core that is about to sleep. Value: there is something for it.
    pub fn look_again(&self) -> bool {
        self.sleepy.store(true, Ordering::SeqCst);
        self.serve();
        self.has_events()
    }

    /// Does what there is to do, or leaves it to the one who is at it.
    fn serve(&self) {
        self.wanted.store(true, Ordering::SeqCst);
        while self.wanted.load(Ordering::SeqCst) && !self.busy.swap(true, Ordering::SeqCst) {
            // SAFETY: nobody else is in here.
            let state = unsafe { &mut *self.state.get() };
            while self.wanted.swap(false, Ordering::SeqCst) {
                state.serve(self.interrupted.swap(false, Ordering::SeqCst), &self.answers);
                if self.sleepy.swap(false, Ordering::SeqCst) {
                    state.look_again();
                }
            }
            self.busy.store(false, Ordering::SeqCst);
        }
    }
}

impl State {
    fn serve(&mut self, interrupted: bool, answers: &Answers) {
        if interrupted {
            // Before the queues are looked at: what is done afterwards interrupts again.
            self.disks.iter_mut().for_each(|d| d.disk.interrupted());
            self.outside.iter_mut().for_each(Outside::interrupted);
        }
        for core in 0..answers.rings.len() {
            while let Some(request) = control().cores[core].requests.pop::<Request>() {
                self.take((core, request), answers);
            }
        }
        for (n, disk) in self.disks.iter_mut().enumerate() {
            disk.serve(n, answers);
        }
        if let Some(outside) = &mut self.outside {
            outside.serve(answers);
        }
    }

    fn look_again(&mut self) {
        self.disks.iter_mut().for_each(|d| d.disk.look_again());
        self.outside.iter_mut().for_each(Outside::look_again);
    }

    fn take(&mut self, asked: Asked, answers: &Answers) {
        let request = &asked.1;
        match (Op::from_number(request.op), &mut self.outside) {
            (Some(Op::DiskRead), _) => {
                let disk = usize::try_from(request.arg[0]).ok().and_then(|n| self.disks.get_mut(n));
                match disk {
                    None => answers.give(&asked, Err(Errno::ENODEV), 0),
                    Some(disk) if request.a.len == 0 => answers.give(&asked, Ok(disk.disk.size()), 0),
                    Some(disk) => disk.later.push_back(asked),
                }
            }
            (_, Some(outside)) => outside.take(asked, answers),
            _ => answers.give(&asked, Err(Errno::ENODEV), 0),
        }
    }
}

impl Queued {
    fn serve(&mut self, number: usize, answers: &Answers) {
        while !self.broken {
            match self.disk.done() {
                Ok(Some((tag, well))) => {
                    let Some(asked) = self.now.get_mut(tag as usize).and_then(Option::take) else { continue };
                    if !well {
                        let (at, len) = (asked.1.arg[1], asked.1.a.len);
                        say(format_args!("disk{number} can't be read at byte {at:#x}, {len} bytes"));
                    }
                    let value = if well { Ok(asked.1.a.len) } else { Err(Errno::EIO) };
                    answers.give(&asked, value, 0);
                }
                Ok(None) => break,
                Err(e) => {
                    say(format_args!(
                        "disk{number} is not used any more: it answers what was not asked ({e})"
                    ));
                    self.broken = true;
                    self.disk.stop();
                }
            }
        }
        if self.broken {
            let fails = |asked| answers.give(&asked, Err(Errno::EIO), 0);
            self.later.drain(..).for_each(fails);
            // Until it has let go of them, buffers are not given back: it may write to them. It is looked at each time
            // somebody comes by.
            if self.disk.has_stopped() {
                self.now.drain(..).flatten().for_each(fails);
            }
            return;
        }
        while let Some(asked) = self.later.front() {
            let (at, a) = (asked.1.arg[1], asked.1.a);
            let slot = self.now.iter().position(Option::is_none).unwrap_or(self.now.len());
            let first = NonNull::new((DIRECT_MAP + a.offset) as *mut u8).unwrap_or(NonNull::dangling());
            let to = NonNull::slice_from_raw_parts(first, a.len as usize);
            // SAFETY: the requester's buffer, in the cell's memory, until it is answered.
            let begun = unsafe { self.disk.read(slot as u64, at, to) };
            if matches!(begun, Ok(false)) {
                break;
            }
            let Some(asked) = self.later.pop_front() else { break };
            match begun {
                Ok(_) if slot == self.now.len() => self.now.push(Some(asked)),
                Ok(_) => self.now[slot] = Some(asked),
                Err(e) => {
                    say(format_args!("disk{number} has no {} bytes at byte {at:#x} ({e})", a.len));
                    answers.give(&asked, Err(Errno::EIO), 0);
                }
            }
        }
    }
}
