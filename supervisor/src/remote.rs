//! Serving a cell that is not on this host: requests come by a socket, with the bytes that they name
//! (`atoll_abi::nucleus::outside`).
//!
//! A thread stands in for the cell: it puts what comes into rings and memory of its own, which the serving threads
//! take for a cell's, and sends back what they say. So they are the same, and believe the same, nothing; what is quick
//! it serves itself. A request's buffers lie in a slot that is its own until it is answered; the cell's memory itself
//! is not seen here.
#![allow(unsafe_code, reason = "waits for descriptors, and reads and fills memory that serving threads use")]

use std::io::{Error as IoError, ErrorKind, Read, Result as IoResult, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use atoll_abi::control::Control;
use atoll_abi::core_local::state;
use atoll_abi::errno::Errno;
use atoll_abi::grid::{BURNT_MAX, CONFIG_MAX, GridArea};
use atoll_abi::nucleus::outside::{
    BOOKS, BUFFERS_MAX, BURN, FIRST_HANDLE, OFFER, REPORT, REPORTED, Reported, SAID, SIGNALS, Said, TAKEN,
    UNDER_WAY, WINDOW,
};
use atoll_abi::report::Report;
use atoll_abi::service::{Answer, Extent, Op, Request};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::memory::{Mapping, anonymous};
use crate::serve::{HostMount, Identity, Served, Server, Streams, survive_long_files};
use crate::sockets::Policy;
use crate::{Error, Result};

/// What such a cell is given.
pub struct Given {
    /// The host directories, by their numbers.
    pub mounts: Vec<HostMount>,
    /// Its standard streams.
    pub streams: Streams,
    /// The user and group that it runs as.
    pub user: (u32, u32),
    /// And the further groups.
    pub groups: Vec<u32>,
    /// Where rewriting plans are kept.
    pub plan_cache: Option<PathBuf>,
}

/// A cell elsewhere.
pub struct Remote {
    /// Serves it.
    pub server: Arc<Server>,
    control: Arc<Mapping>,
    memory: Arc<Mapping>,
    /// Rung for answers, and for signals.
    bell: OwnedFd,
    /// Signals that are to be sent.
    signals: AtomicU64,
    /// What the cell is to be asked for ([`BOOKS`], [`SAID`] or [`REPORTED`]); 0: nothing. And the values that go with that.
    wanted: [AtomicU64; 3],
    /// What it said last, to which of these, and who waits for that.
    said: (Mutex<(u64, Vec<u8>)>, Condvar),
    /// One at a time asks.
    asking: Mutex<()>,
}

/// How long the cell may take to say what it is asked for.
const SAY_WAIT: Duration = Duration::from_secs(5);
/// How long until it is said without its word how many cores it has: other cells are listed behind it.
const ONLINE_WAIT: Duration = Duration::from_secs(1);

/// What is said of a report that can't be one.
pub(crate) const NONSENSE: &str = "what the cell says of its threads is nonsense";

impl Remote {
    /// Serves the cell at the other end of `port`, in threads, until that end is closed.
    pub fn start(port: UnixStream, given: Given) -> Result<Arc<Remote>> {
        survive_long_files();
        let failed = |what: &'static str| move |e: IoError| Error::with(what, e);
        let map = |name, len: u64| {
            let file = anonymous(name, len).map_err(failed("no memory for what a cell asks"))?;
            Mapping::new(&file, len).map(Arc::new).map_err(failed("mapping it"))
        };
        // What nobody writes to takes no memory.
        let control = map("atoll requests", size_of::<Control>() as u64)?;
        let memory = map("atoll buffers", UNDER_WAY as u64 * BUFFERS_MAX)?;
        // SAFETY: no memory is involved; a new descriptor, if it is one.
        let bell = unsafe {
            match libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) {
                fd @ 0.. => OwnedFd::from_raw_fd(fd),
                _ => return Err(Error::host("eventfd")),
            }
        };
        let Given { mounts, streams, user, groups, plan_cache } = given;
        let served = Served {
            mounts,
            streams,
            user,
            groups,
            // Its sockets are its own.
            network: Policy::None,
            plan_cache,
            first_handle: FIRST_HANDLE,
            bells: vec![bell.try_clone().map_err(failed("eventfd"))?],
            sockets: Vec::new(),
        };
        // One core, so that nobody looks for requests without sleeping: the machine needs the processor more.
        let server = Server::start(control.clone(), memory.clone(), served, 1)?;
        let remote = Arc::new(Remote {
            server,
            control,
            memory,
            bell,
            signals: AtomicU64::new(0),
            wanted: Default::default(),
            said: Default::default(),
            asking: Mutex::new(()),
        });
        // For every answer the bell is to be rung.
        remote.control().cores[0].local.state.store(state::PARKED, Ordering::SeqCst);
        let stands_in = remote.clone();
        let named = std::thread::Builder::new().name("atoll-remote".into());
        named
            .spawn(move || {
                // Its machine has ended, or it says what can't be: in both cases nobody waits for an answer.
                let identity = stands_in.server.identity();
                let asked = vec![None; UNDER_WAY];
                let (taken, offered, burns, reports) = (0, 0, 0, 0);
                let _ = StandIn { remote: stands_in, port, asked, taken, offered, burns, reports, identity }
                    .work();
            })
            .map_err(failed("starting a thread for a cell's requests"))?;
        Ok(remote)
    }

    fn control(&self) -> &Control {
        // SAFETY: the mapping holds one, of atomics only.
        unsafe { &*self.control.base().cast::<Control>() }
    }

    /// Passes a signal to the cell's program.
    pub fn signal(&self, signal: i32) {
        self.server.settle();
        self.signals.fetch_or(1 << (signal - 1), Ordering::SeqCst);
        self.ring();
    }

    /// What it is offered and asked for, and what it has answered when that was looked at last. [`Remote::ring`] sends the
    /// former, [`Remote::look`] looks at the latter.
    pub(crate) fn grid(&self) -> &GridArea {
        &self.control().grid
    }

    pub(crate) fn ring(&self) {
        // A full bell has been rung already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// An image of the cell's books, as it says ([`atoll_abi::nucleus::outside::Books`]): anything. None: it says nothing.
    pub(crate) fn books(&self) -> Option<Vec<u8>> {
        self.ask(BOOKS, [0; 2], SAY_WAIT)
    }

    /// Looks what has come of an offer, or of known work.
    pub(crate) fn look(&self) -> Result<()> {
        let grid = self.grid();
        let asked = grid.burns_asked.load(Ordering::Relaxed);
        let burns = asked != grid.burns_over.load(Ordering::Relaxed);
        let said = self.ask(SAID, [burns.into(), 0], SAY_WAIT);
        let said = said.ok_or_else(|| Error::new("the cell does not answer"))?;
        let nonsense = || Error::new("what the cell says of its grid is nonsense");
        let (head, burnt) = Said::read_from_prefix(&said).map_err(|_| nonsense())?;
        if burnt.len() > BURNT_MAX || burns && burnt.len() != head.burnt_len as usize {
            return Err(nonsense());
        }
        for (to, from) in grid.reason.iter().zip(head.reason) {
            to.store(from, Ordering::Relaxed);
        }
        grid.taken.store(head.taken, Ordering::Relaxed);
        grid.answered.store(head.answered, Ordering::Release);
        if burns {
            for (to, from) in grid.burnt.iter().zip(burnt) {
                to.store(*from, Ordering::Relaxed);
            }
            grid.burnt_len.store(burnt.len() as u32, Ordering::Relaxed);
            grid.burns_over.store(head.burns_over, Ordering::Release);
        }
        Ok(())
    }

    /// Where the cell is asked for reports. [`Remote::ring`] sends the question.
    pub(crate) fn report(&self) -> &Report {
        &self.control().report
    }

    /// The answer to the last question for a report, of `most` bytes at most. None: it is not answered yet, or not all of it has
    /// come by `until`.
    pub(crate) fn reported(&self, most: u64, until: Instant) -> Result<Option<Vec<u8>>> {
        let number = self.report().asked.load(Ordering::Relaxed);
        let mut all = Vec::new();
        loop {
            let from = all.len() as u64;
            let left = until.saturating_duration_since(Instant::now()).min(SAY_WAIT);
            if left.is_zero() {
                return Ok(None);
            }
            let (head, some) = match self.reported_from(number, from, left) {
                // It had little time left to say more.
                Err(_) if Instant::now() >= until => return Ok(None),
                said => said?,
            };
            // What was asked for before, and given up, may come now.
            if head.over != number || head.from != from {
                return Ok(None);
            }
            all.extend_from_slice(&some);
            if all.len() as u64 == head.len {
                return Ok(Some(all));
            }
            if head.len > most || all.len() as u64 > head.len || some.is_empty() {
                return Err(Error::new(NONSENSE));
            }
        }
    }

    /// How many cores the cell uses, as it says; None: it says nothing.
    pub(crate) fn online(&self) -> Option<u32> {
        self.reported_from(0, u64::MAX, ONLINE_WAIT).ok().map(|(head, _)| head.online)
    }

    /// What has come of this question, and its answer from there on, as far as the cell sends it at once.
    fn reported_from(&self, number: u32, from: u64, limit: Duration) -> Result<(Reported, Vec<u8>)> {
        let said = self.ask(REPORTED, [u64::from(number) << 32, from], limit);
        let said = said.ok_or_else(|| Error::new("the cell does not answer"))?;
        let (head, some) = Reported::read_from_prefix(&said).map_err(|_| Error::new(NONSENSE))?;
        Ok((head, some.to_vec()))
    }

    /// What the cell says to this. None: nothing within that time.
    fn ask(&self, what: u64, values: [u64; 2], limit: Duration) -> Option<Vec<u8>> {
        let _one = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        let mut said = self.said.0.lock().unwrap_or_else(PoisonError::into_inner);
        said.0 = 0;
        self.wanted[1].store(values[0], Ordering::Relaxed);
        self.wanted[2].store(values[1], Ordering::Relaxed);
        self.wanted[0].store(what, Ordering::SeqCst);
        self.ring();
        let until = self.said.1.wait_timeout_while(said, limit, |said| said.0 != what);
        let (mut said, late) = until.unwrap_or_else(PoisonError::into_inner);
        (!late.timed_out()).then(|| std::mem::take(&mut said.1))
    }
}

/// What stands in for the cell.
struct StandIn {
    remote: Arc<Remote>,
    port: UnixStream,
    /// Requests that are under way, by their slots.
    asked: Vec<Option<Request>>,
    /// Bytes that were taken and not said to be.
    taken: usize,
    /// The last offer, request for known work and question for a report that was sent.
    offered: u32,
    burns: u32,
    reports: u32,
    /// Whom this thread acts for.
    identity: Identity,
}

/// Is this served here, if nothing else is under way? It doesn't wait but for a file system, and waking a thread for it
/// takes longer.
fn is_quick(op: u32) -> bool {
    match Op::from_number(op) {
        None => true,
        Some(Op::Write | Op::Sync | Op::Truncate | Op::Allocate | Op::CopyRange | Op::Plan) => false,
        Some(Op::StreamRead | Op::StreamWrite | Op::StreamControl) => false,
        Some(_) => true,
    }
}

impl StandIn {
    fn work(&mut self) -> IoResult<()> {
        loop {
            let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut both = [entry(self.port.as_raw_fd()), entry(self.remote.bell.as_raw_fd())];
            // SAFETY: two entries.
            if unsafe { libc::poll(both.as_mut_ptr(), 2, -1) } < 0 {
                let error = IoError::last_os_error();
                if error.kind() != ErrorKind::Interrupted {
                    return Err(error);
                }
                continue;
            }
            if both[1].revents != 0 {
                let mut count = [0; 8];
                // Another look does no harm.
                let _ = rustix::io::read(&self.remote.bell, &mut count);
                // Before the answers: those that were there before a signal are sent before it.
                let signals = self.remote.signals.swap(0, Ordering::SeqCst);
                while let Some(answer) = self.remote.control().cores[0].answers.pop::<Answer>() {
                    self.answer(answer)?;
                }
                if signals != 0 {
                    self.say(SIGNALS, [signals, 0])?;
                }
                self.offer()?;
                match self.remote.wanted[0].swap(0, Ordering::SeqCst) {
                    0 => {}
                    what => {
                        let value = |n: usize| self.remote.wanted[n].load(Ordering::Relaxed);
                        self.say(what, [value(1), value(2)])?;
                    }
                }
            }
            if both[0].revents != 0 {
                self.ask()?;
            }
        }
    }

    /// Sends what is no answer.
    fn say(&mut self, cookie: u64, [value, extra]: [u64; 2]) -> IoResult<()> {
        self.port.write_all(Answer { cookie, value: value as i64, extra, flags: 0 }.as_bytes())
    }

    /// Sends what the cell is offered, and asked to do.
    fn offer(&mut self) -> IoResult<()> {
        let remote = self.remote.clone();
        let grid = remote.grid();
        let offered = grid.offered.load(Ordering::SeqCst);
        if std::mem::replace(&mut self.offered, offered) != offered {
            let len = (grid.config_len.load(Ordering::Relaxed) as usize).min(CONFIG_MAX);
            let answer = Answer { cookie: OFFER, value: offered.into(), extra: len as u64, flags: 0 };
            let mut frame = answer.as_bytes().to_vec();
            frame.extend(grid.config[..len].iter().map(|byte| byte.load(Ordering::Relaxed)));
            self.port.write_all(&frame)?;
        }
        let burns = grid.burns_asked.load(Ordering::SeqCst);
        if std::mem::replace(&mut self.burns, burns) != burns {
            let times = grid.burns_times.load(Ordering::Relaxed);
            self.say(BURN, [burns.into(), times.into()])?;
        }
        let report = remote.report();
        let asked = report.asked.load(Ordering::SeqCst);
        if std::mem::replace(&mut self.reports, asked) != asked {
            let what = u64::from(asked) << 32 | u64::from(report.what.load(Ordering::Relaxed));
            self.say(REPORT, [what, report.value.load(Ordering::Relaxed)])?;
        }
        Ok(())
    }

    /// Takes bytes that the cell has sent.
    fn take(&mut self, bytes: &mut [u8]) -> IoResult<()> {
        for piece in bytes.chunks_mut(WINDOW / 4) {
            self.port.read_exact(piece)?;
            self.taken += piece.len();
            if self.taken >= WINDOW / 4 {
                let taken = std::mem::take(&mut self.taken);
                self.say(TAKEN, [taken as u64, 0])?;
            }
        }
        Ok(())
    }

    /// Where these bytes are in this process.
    fn place(&self, offset: u64, len: u64) -> IoResult<*mut u8> {
        self.remote.memory.range(offset, len).ok_or(ErrorKind::InvalidData.into())
    }

    /// Takes a request in, and passes it on.
    fn ask(&mut self) -> IoResult<()> {
        let mut request = Request::new_zeroed();
        self.take(request.as_mut_bytes())?;
        if [BOOKS, SAID, REPORTED].contains(&request.cookie) {
            return self.take_said(request.cookie, request.a.len);
        }
        let slot = self.asked.iter().position(Option::is_none).ok_or(ErrorKind::InvalidData)?;
        let lengths = request.buffers().map(|buffer| buffer.len);
        let all = lengths.iter().try_fold(0u64, |all, len| all.checked_add(*len));
        if [SIGNALS, TAKEN, OFFER, BURN, REPORT].contains(&request.cookie)
            || all.is_none_or(|all| all > BUFFERS_MAX)
        {
            return Err(ErrorKind::InvalidData.into());
        }
        request.a.offset = slot as u64 * BUFFERS_MAX;
        request.b.offset = request.a.offset + request.a.len;
        request.c.offset = request.b.offset + request.b.len;
        for (Extent { offset: at, .. }, len) in request.buffers().into_iter().zip(request.given()) {
            let mut bytes = vec![0; len as usize];
            self.take(&mut bytes)?;
            // SAFETY: so many bytes are there, of a slot that is nobody's else now.
            unsafe { self.place(at, len)?.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        }
        let alone = self.asked.iter().all(Option::is_none);
        self.asked[slot] = Some(request);
        request.cookie = slot as u64;
        // No descriptor could go back.
        match Op::from_number(request.op) {
            Some(Op::Open | Op::Create) => request.arg[3] = 0,
            Some(Op::MakeNode) => request.arg[2] = 0,
            Some(
                Op::PassFd
                | Op::Socket
                | Op::Bind
                | Op::Connect
                | Op::Listen
                | Op::Watch
                | Op::NextEvents
                | Op::Lease
                | Op::NextOpener,
            ) => {
                let value = Errno::ENOSYS.to_ret();
                return self.answer(Answer { cookie: request.cookie, value, extra: 0, flags: 0 });
            }
            Some(Op::ConnectName | Op::SendName) => {
                let value = Errno::ECONNREFUSED.to_ret();
                return self.answer(Answer { cookie: request.cookie, value, extra: 0, flags: 0 });
            }
            _ => {}
        }
        if alone && is_quick(request.op) {
            let answer = self.remote.server.serve_here(&request, &mut self.identity);
            return self.answer(answer);
        }
        let control = self.remote.control();
        // There are as many slots as it has room for.
        if !control.cores[0].requests.push(&request) {
            return Err(ErrorKind::InvalidData.into());
        }
        // Pairs with the serving threads' fence between saying that they sleep and their last look.
        fence(Ordering::SeqCst);
        if control.server_sleepers.load(Ordering::SeqCst) != 0 {
            control.server_bell.fetch_add(1, Ordering::Release);
            // SAFETY: the word is in the mapping.
            unsafe { libc::syscall(libc::SYS_futex, control.server_bell.as_ptr(), libc::FUTEX_WAKE, 1) };
        }
        Ok(())
    }

    /// Takes in what the cell says when it is asked.
    fn take_said(&mut self, what: u64, len: u64) -> IoResult<()> {
        if len > BUFFERS_MAX {
            return Err(ErrorKind::InvalidData.into());
        }
        let mut bytes = vec![0; len as usize];
        self.take(&mut bytes)?;
        *self.remote.said.0.lock().unwrap_or_else(PoisonError::into_inner) = (what, bytes);
        self.remote.said.1.notify_all();
        Ok(())
    }

    /// Sends an answer back.
    fn answer(&mut self, mut answer: Answer) -> IoResult<()> {
        let slot = self.asked.get_mut(answer.cookie as usize).and_then(Option::take);
        let Some(request) = slot else { return Ok(()) };
        answer.cookie = request.cookie;
        let mut frame = Vec::from(answer.as_bytes());
        for (Extent { offset: at, .. }, len) in request.buffers().into_iter().zip(request.filled(&answer)) {
            // SAFETY: so many bytes are there; the serving threads are done with this slot.
            frame
                .extend_from_slice(unsafe { std::slice::from_raw_parts(self.place(at, len)?, len as usize) });
        }
        self.port.write_all(&frame)
    }
}
