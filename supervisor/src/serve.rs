//! The serving threads: what a cell asks of the host by message.
//!
//! Threads of this process take requests from the cores' rings, wait where
//! waiting is needed, and put answers back. A cell is not trusted: a request
//! is copied before it is looked at, every buffer must lie in the cell's
//! memory, every path is followed beneath its mount and through no symbolic
//! link (the cell resolves those itself), only regular files and directories
//! of real file systems can be opened, and what a cell was not given a
//! handle for it can't name.
#![allow(unsafe_code, reason = "host calls on the cell's memory")]

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};

use atoll_abi::control::{Control, StreamKind};
use atoll_abi::core_local::state as core_run;
use atoll_abi::errno::Errno;
use atoll_abi::service::{
    ANSWER_FD, Answer, DIRENT_PLAIN, Extent, HostAttr, HostChanged, HostDirent, HostSetAttr, HostStatFs, Op,
    RELEASED_MAX, Request, UMASK_SHIFT, WALK_MISSING, WALK_OPENED,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::jobs;
use crate::leases::Leases;
use crate::memory::Mapping;
use crate::say;
use crate::{Error, Result};
use crate::{sockets, watch};

/// Serving threads at most: so many requests can wait at the same time.
const THREADS_MAX: u32 = 64;
/// How long a thread that has served looks for the next request before it
/// sleeps: programs ask several things in a row, and waking a thread takes longer.
const SPIN: Duration = Duration::from_micros(50);
/// How long a signal waits for a write to be answered: it may be one that blocks.
const SETTLE: Duration = Duration::from_millis(2);
/// The same while requests come one after another, as when a program starts: waking a thread
/// that sleeps on an idle core takes half of that, and the program waits for it.
const SPIN_BUSY: Duration = Duration::from_micros(200);
/// How often it looks before it lets others have the processor, if there are any.
const LOOKS: u32 = 256;
/// Usual time between requests up to which they come one after another, us.
const BUSY_GAP: u32 = 150;
/// Most occasions that go by after it was looked for a request in vain, less one, as a power of two.
const SELDOM: u32 = 4;
/// Longest time between two requests that counts, us.
const GAP_MAX: u32 = 1000;
/// Length of a path beneath a mount, bytes: programs reach deep directories one
/// step after another, so it may be longer than a path that they can write.
const PATH_LONGEST: usize = 64 << 10;
/// The most that one answer tells of events, bytes.
const EVENTS_MAX: usize = 1 << 20;
/// Longest list of a directory's entries in one answer, bytes.
const LIST_MAX: u64 = 1 << 20;
/// Longest extended attribute, and longest list of them, bytes.
const EXTENDED_MAX: usize = 64 << 10;
/// Handles that a cell can hold, if this process may have as many descriptors.
const HANDLES_MAX: usize = 1 << 20;
/// Descriptors that are left for this process itself in any case, to serve and to look at the host: one of so many, and so many at most.
const RESERVE_PART: u64 = 4;
const RESERVE: u64 = 256;

/// A host directory that a cell has mounted.
pub struct HostMount {
    /// The directory.
    root: OwnedFd,
    /// Only this file in it is shown: the mount's root is the file.
    file: Option<CString>,
    /// Refuse changes.
    read_only: bool,
    /// A cell can connect to Unix sockets that have their names here, and others to those of the cell's.
    sockets: bool,
    /// The directory, to have all of its file system flushed, which any program may ask for: opened before anything is done for one.
    whole: Option<OwnedFd>,
    /// The device of the directory's file system, if files of that may be looked at. While the directory is open, no other has that number.
    device: Option<u64>,
    /// Nobody changes that file system but this machine, so attributes are as they are, before a file is opened as well as after that.
    local: bool,
}

impl HostMount {
    /// A directory, only to be read or also to be changed.
    pub fn new(root: OwnedFd, read_only: bool) -> HostMount {
        let kind = check_file_system(root.as_raw_fd());
        let device = kind.and_then(|_| attributes(root.as_raw_fd())).ok();
        let local = kind.is_ok_and(|kind| LOCAL.contains(&kind));
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
        let whole = (!read_only).then(|| {
            // SAFETY: a name, and a new descriptor.
            unsafe {
                let fd = check(libc::openat(root.as_raw_fd(), c".".as_ptr(), flags) as i64).ok()?;
                Some(OwnedFd::from_raw_fd(fd as RawFd))
            }
        });
        let device = device.map(|(attr, _)| attr.dev);
        HostMount { root, file: None, read_only, sockets: false, whole: whole.flatten(), device, local }
    }

    /// A file of a directory, by its name there.
    pub fn of_file(directory: OwnedFd, name: CString, read_only: bool) -> HostMount {
        HostMount { file: Some(name), ..HostMount::new(directory, read_only) }
    }

    /// The same mount, as a volume: Unix sockets that have their names in it connect the cell with whoever else has it.
    pub fn with_sockets(self) -> HostMount {
        HostMount { sockets: true, ..self }
    }

    /// May files of the file system of this one, which has these attributes, be looked at?
    fn check_file_system(&self, fd: &OwnedFd, attr: &HostAttr) -> std::result::Result<(), Errno> {
        if self.device == Some(attr.dev) { Ok(()) } else { check_file_system(fd.as_raw_fd()).map(drop) }
    }
}

/// What the standard streams are.
#[derive(Clone, Copy, Debug)]
pub struct Streams {
    /// What each is.
    pub kinds: [StreamKind; 3],
    /// How each was opened: access mode and `O_APPEND` (`open(2)`).
    pub flags: [u32; 3],
}

/// Which of the first three descriptors this process was started without, a bit each. Rust's library opens others in their place before `main`.
static CLOSED: AtomicU32 = AtomicU32::new(0);

/// Looks at that, before that library does. Runs before `main`, when nothing of Rust's may be relied on.
extern "C" fn look_at_descriptors() {
    for fd in 0..3 {
        // SAFETY: asks about a descriptor.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            CLOSED.fetch_or(1 << fd, Ordering::Relaxed);
        }
    }
}

// SAFETY: the loader, or the C library's start, calls what it finds there, with arguments that need not be taken.
#[unsafe(link_section = ".init_array")]
#[used]
static BEFORE_MAIN: extern "C" fn() = look_at_descriptors;

impl Streams {
    /// What is printed is passed on, and there is no input.
    pub const NONE: Streams = Streams {
        kinds: [StreamKind::Null, StreamKind::Pipe, StreamKind::Pipe],
        flags: [libc::O_RDONLY as u32, libc::O_WRONLY as u32, libc::O_WRONLY as u32],
    };

    /// Looks at this process's descriptors 0, 1 and 2.
    pub fn of_this_process() -> Streams {
        // SAFETY: asks about descriptors.
        let flags = [0, 1, 2].map(|fd| unsafe { libc::fcntl(fd, libc::F_GETFL) });
        let kinds = [0, 1, 2].map(|fd| {
            if CLOSED.load(Ordering::Relaxed) & 1 << fd != 0 {
                return StreamKind::Closed;
            }
            // SAFETY: a plain structure for the host to fill.
            let mut s: libc::stat = unsafe { std::mem::zeroed() };
            // SAFETY: as above.
            if unsafe { libc::fstat(fd, &raw mut s) } != 0 {
                return StreamKind::Closed;
            }
            // SAFETY: asks about a descriptor.
            if unsafe { libc::isatty(fd) } == 1 {
                return StreamKind::Terminal;
            }
            match s.st_mode & libc::S_IFMT {
                libc::S_IFREG => StreamKind::File,
                libc::S_IFCHR => StreamKind::Device,
                _ => StreamKind::Pipe,
            }
        });
        Streams { kinds, flags: flags.map(|f| (f.max(0) & (libc::O_ACCMODE | libc::O_APPEND)) as u32) }
    }
}

/// What a request comes to: a value, a second one, and perhaps a handle whose descriptor is passed.
pub(crate) struct Reply {
    pub value: u64,
    pub extra: u64,
    pub fd: Option<Arc<Handle>>,
}

impl Reply {
    pub(crate) fn value(value: u64) -> Outcome {
        Ok(Reply { value, extra: 0, fd: None })
    }
}

/// A reply or a Linux error number.
pub(crate) type Outcome = std::result::Result<Reply, Errno>;

/// Something that a handle stands for.
pub(crate) struct Handle {
    pub fd: OwnedFd,
    pub write: bool,
    /// The mount that it was opened on.
    pub mount: Option<u64>,
}

/// What a cell that is served is given.
pub(crate) struct Served {
    /// The host directories, by their numbers.
    pub mounts: Vec<HostMount>,
    /// Its standard streams.
    pub streams: Streams,
    /// The user and group that it runs as.
    pub user: (u32, u32),
    /// And the further groups.
    pub groups: Vec<u32>,
    /// What it may do on the network.
    pub network: sockets::Policy,
    /// Where rewriting plans are kept.
    pub plan_cache: Option<std::path::PathBuf>,
    /// The first handle that it gets.
    pub first_handle: u64,
    /// Each core's bell.
    pub bells: Vec<OwnedFd>,
    /// Each core's socket for descriptors.
    pub sockets: Vec<OwnedFd>,
}

/// Serves one cell.
pub struct Server {
    control: Arc<Mapping>,
    memory: Arc<Mapping>,
    /// One consumer at a time for each core's request ring.
    take: Vec<Mutex<()>>,
    /// One producer at a time for each core's answer ring and socket.
    put: Vec<Mutex<()>>,
    bells: Vec<OwnedFd>,
    sockets: Vec<OwnedFd>,
    idle: AtomicUsize,
    threads: AtomicU32,
    mounts: Vec<HostMount>,
    streams: Streams,
    pub(crate) handles: Mutex<Handles>,
    /// The user that all requests act for; None: whoever the request says.
    user: Option<(u32, u32)>,
    /// The further groups of that user.
    groups: Vec<u32>,
    root: bool,
    machine_cores: usize,
    pub(crate) network: sockets::Policy,
    plans: crate::plan::Plans,
    /// What others do to files that the cell watches, from when it watches the first one on.
    watcher: Mutex<Option<Arc<watch::Watcher>>>,
    leases: Arc<Leases>,
    /// Writes to standard streams that are under way.
    writing: AtomicU32,
    /// When the last answer was given, us after `begun`.
    answered: AtomicU64,
    /// How long it usually takes then until the next request comes, us.
    gap: AtomicU32,
    spins: Spins,
    /// A thread looks for requests without sleeping, or has let others have its processor for a moment.
    spinning: AtomicBool,
    begun: Instant,
    /// Requests served.
    pub served: AtomicU64,
}

/// The cell's handles.
pub(crate) struct Handles {
    list: HashMap<u64, Arc<Handle>>,
    next: u64,
    /// So many at most.
    most: usize,
}

/// How many handles a cell can hold where this process may have `limit` descriptors, and has `own` for itself.
fn handles(limit: Option<u64>, own: usize) -> usize {
    let Some(limit) = limit else { return HANDLES_MAX };
    let reserve = (limit / RESERVE_PART).min(RESERVE);
    usize::try_from(limit - reserve).unwrap_or(HANDLES_MAX).saturating_sub(own).min(HANDLES_MAX)
}

/// Whether it pays to look for the next request. Each time that it was in vain, twice as many occasions go by before the next try. A guess, so
/// threads that note at the same time do no harm.
#[derive(Default)]
struct Spins {
    /// In vain so often one after the other.
    missed: AtomicU32,
    /// Occasions that go by until the next try.
    skip: AtomicU32,
}

impl Spins {
    fn is_time(&self) -> bool {
        let skip = self.skip.load(Ordering::Relaxed);
        self.skip.store(skip.saturating_sub(1), Ordering::Relaxed);
        skip == 0
    }

    fn spun(&self, found: bool) {
        let missed = if found { 0 } else { (self.missed.load(Ordering::Relaxed) + 1).min(SELDOM) };
        self.missed.store(missed, Ordering::Relaxed);
        self.skip.store((1 << missed) - 1, Ordering::Relaxed);
    }
}

impl Server {
    /// Starts serving.
    pub(crate) fn start(
        control: Arc<Mapping>,
        memory: Arc<Mapping>,
        served: Served,
        machine_cores: usize,
    ) -> Result<Arc<Server>> {
        let Served { mounts, streams, user, groups, network, plan_cache, first_handle, bells, sockets } =
            served;
        // SAFETY: asks for an id; the modes that come from the cell have their own mask with them.
        let root = unsafe {
            libc::umask(0);
            libc::geteuid() == 0
        };
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let most = handles(limit, bells.len() + sockets.len() + mounts.len());
        let server = Arc::new(Server {
            control,
            memory,
            take: bells.iter().map(|_| Mutex::new(())).collect(),
            put: bells.iter().map(|_| Mutex::new(())).collect(),
            bells,
            sockets,
            idle: AtomicUsize::new(0),
            threads: AtomicU32::new(0),
            mounts,
            streams,
            handles: Mutex::new(Handles { list: HashMap::new(), next: first_handle, most }),
            user: (!root || user.0 != 0).then_some(user),
            groups,
            root,
            machine_cores,
            network,
            plans: crate::plan::Plans::new(plan_cache),
            watcher: Mutex::new(None),
            leases: Arc::default(),
            writing: AtomicU32::new(0),
            answered: AtomicU64::new(0),
            gap: AtomicU32::new(0),
            spins: Spins::default(),
            spinning: AtomicBool::new(false),
            begun: Instant::now(),
            served: AtomicU64::new(0),
        });
        for _ in 0..2 {
            server.clone().add_thread()?;
        }
        Ok(server)
    }

    fn add_thread(self: Arc<Self>) -> Result<()> {
        self.threads.fetch_add(1, Ordering::Relaxed);
        let named = std::thread::Builder::new().name("atoll-serve".into());
        named.spawn(move || self.work()).map(drop).map_err(|e| Error::with("starting a serving thread", e))
    }

    fn control(&self) -> &Control {
        // SAFETY: the mapping holds one, of atomics only.
        unsafe { &*self.control.base().cast::<Control>() }
    }

    fn take(&self) -> Option<(usize, Request)> {
        for (core, lock) in self.take.iter().enumerate() {
            let ring = &self.control().cores[core].requests;
            if ring.is_empty() {
                continue;
            }
            let _one = lock.lock().expect("no panic while a ring is held");
            if let Some(request) = ring.pop() {
                return Some((core, request));
            }
        }
        None
    }

    /// Waits a short while for a request without sleeping, if the machine has
    /// a core to spare for it and nobody else does so already.
    fn spin(&self) -> Option<(usize, Request)> {
        let control = self.control();
        let cores = &control.cores[..self.take.len()];
        let spare = || {
            cores.len() < self.machine_cores
                || cores.iter().any(|c| c.local.state.load(Ordering::Relaxed) == core_run::PARKED)
        };
        // A core that runs is not to wait for its processor, which this thread has, while another is idle: the next bell wakes one there.
        let in_the_way = || {
            let here = rustix::thread::sched_getcpu() as i32;
            let is_here = |core: usize| control.descriptor.cpu[core].load(Ordering::Relaxed) == here;
            let runs = |core: usize| cores[core].local.state.load(Ordering::Relaxed) != core_run::PARKED;
            (0..cores.len()).any(|core| is_here(core) && runs(core))
        };
        let may = || spare() && !in_the_way();
        let busy = self.gap.load(Ordering::Relaxed) <= BUSY_GAP;
        if self.machine_cores < 2 || !may() || !(busy || self.spins.is_time()) {
            return None;
        }
        if self.spinning.swap(true, Ordering::Acquire) {
            return None;
        }
        control.server_awake.store(1, Ordering::SeqCst);
        let limit = if busy { SPIN_BUSY } else { SPIN };
        let begun = Instant::now();
        let is_asked = || cores.iter().any(|c| !c.requests.is_empty());
        loop {
            // The clock is read now and then only.
            for _ in 0..LOOKS {
                if is_asked() {
                    break;
                }
                std::hint::spin_loop();
            }
            control.server_awake.store(0, Ordering::SeqCst);
            // Pairs with the cell's fence between its push and its look at this flag.
            fence(Ordering::SeqCst);
            if is_asked() || !may() || begun.elapsed() >= limit {
                break;
            }
            // Another serving thread, or a core of the cell, may wait for this processor, and the host gives this one whole slices. It
            // may be away for as long then: who asks meanwhile rings. Whoever is woken by that does not look for more, but sleeps when it
            // has served: else they would take turns on the processor.
            std::thread::yield_now();
            control.server_awake.store(1, Ordering::SeqCst);
        }
        self.spinning.store(false, Ordering::Release);
        let request = self.take();
        self.spins.spun(request.is_some());
        if is_asked() && control.server_sleepers.load(Ordering::SeqCst) != 0 {
            // For this one no bell was rung, and the first may take long.
            control.server_bell.fetch_add(1, Ordering::Release);
            // SAFETY: the word is in the mapping.
            unsafe { libc::syscall(libc::SYS_futex, control.server_bell.as_ptr(), libc::FUTEX_WAKE, 1) };
        }
        request
    }

    fn work(self: Arc<Self>) {
        jobs::reads_for_others();
        let mut identity = self.identity();
        let mut fresh = false;
        loop {
            self.idle.fetch_add(1, Ordering::SeqCst);
            let (core, request) = loop {
                if let Some(r) = self.take() {
                    break r;
                }
                if std::mem::take(&mut fresh)
                    && let Some(r) = self.spin()
                {
                    break r;
                }
                let control = self.control();
                let seen = control.server_bell.load(Ordering::Acquire);
                control.server_sleepers.fetch_add(1, Ordering::SeqCst);
                // Pairs with the cell's fence between its push and its look at the sleepers.
                fence(Ordering::SeqCst);
                let late = self.take();
                if late.is_none() {
                    // SAFETY: the word is in the mapping.
                    unsafe {
                        libc::syscall(
                            libc::SYS_futex,
                            control.server_bell.as_ptr(),
                            libc::FUTEX_WAIT,
                            seen,
                            0,
                        )
                    };
                }
                control.server_sleepers.fetch_sub(1, Ordering::SeqCst);
                if let Some(r) = late {
                    break r;
                }
            };
            if self.idle.fetch_sub(1, Ordering::SeqCst) == 1
                && self.threads.load(Ordering::Relaxed) < THREADS_MAX
            {
                // This request may wait long; somebody must be there for the next.
                // Without another thread the cell is served more slowly, no worse.
                let _ = self.clone().add_thread();
            }
            self.served.fetch_add(1, Ordering::Relaxed);
            self.note_gap();
            let shows = request.op == Op::StreamWrite as u32;
            self.writing.fetch_add(u32::from(shows), Ordering::SeqCst);
            let outcome = self.serve(&request, &mut identity);
            self.reply(core, request.cookie, outcome);
            self.writing.fetch_sub(u32::from(shows), Ordering::SeqCst);
            self.answered.store(self.now(), Ordering::Relaxed);
            fresh = true;
        }
    }

    /// Waits until what the cell is just writing to its standard streams has been answered, if that is soon.
    ///
    /// Who sends a signal (a key on the terminal) may do so for what they saw, and the
    /// program is to be as far as that: else it would get the signal in the middle of
    /// the write, where programs that look at their signals in `select` alone miss it.
    pub(crate) fn settle(&self) {
        let begun = Instant::now();
        while self.writing.load(Ordering::SeqCst) != 0 && begun.elapsed() < SETTLE {
            std::thread::yield_now();
        }
    }

    /// Microseconds since serving began.
    fn now(&self) -> u64 {
        self.begun.elapsed().as_micros() as u64
    }

    /// A request came: how long after the last answer? A guess for [`Server::spin`], so threads
    /// that note at the same time do no harm.
    fn note_gap(&self) {
        let since = self.now().saturating_sub(self.answered.load(Ordering::Relaxed));
        let gap = since.min(u64::from(GAP_MAX)) as u32;
        let usual = self.gap.load(Ordering::Relaxed);
        self.gap.store((usual * 7 + gap) / 8, Ordering::Relaxed);
    }

    /// Serves a request in this thread, as far as it goes without passing a descriptor.
    pub(crate) fn serve_here(&self, request: &Request, identity: &mut Identity) -> Answer {
        self.served.fetch_add(1, Ordering::Relaxed);
        let (value, extra) = match self.serve(request, identity) {
            Ok(r) => (r.value as i64, r.extra),
            Err(e) => (e.to_ret(), 0),
        };
        let mut answer = Answer { cookie: request.cookie, value, extra, flags: 0 };
        meet_limit(&mut answer);
        answer
    }

    /// Whom a thread acts for that serves; it gives up all other rights.
    pub(crate) fn identity(&self) -> Identity {
        Identity::new(self.root, self.user, &self.groups)
    }

    /// Lets a handle go. It is closed when the value is dropped, without the lock.
    fn forget_handle(&self, number: u64) -> Option<impl Sized> {
        self.leases.end(number);
        self.handles.lock().expect("no panic while handles are held").list.remove(&number)
    }

    fn release(&self, r: &Request) -> Outcome {
        let more = self.copy_in(r.a, RELEASED_MAX * 8)?;
        let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
        for bytes in more.chunks_exact(8) {
            drop(self.forget_handle(number(bytes)));
        }
        let unlock = |whole| self.lock_handle(r.arg[0], &Request { arg: [0, whole, 0, 0], ..*r });
        let unlocked = if r.arg[1] == 1 { unlock(0).and(unlock(4)) } else { Ok(()) };
        self.forget_handle(r.arg[0]).ok_or(Errno::EBADF)?;
        unlocked.and_then(|()| Reply::value(0))
    }

    fn reply(&self, core: usize, cookie: u64, outcome: Outcome) {
        let area = &self.control().cores[core];
        let one = self.put[core].lock().expect("no panic while a ring is held");
        let mut answer = Answer { cookie, value: 0, extra: 0, flags: 0 };
        match outcome {
            Ok(r) => {
                answer.value = r.value as i64;
                answer.extra = r.extra;
                // A cell on another machine gets the number only.
                if let (Some(handle), Some(socket)) = (r.fd, self.sockets.get(core)) {
                    if send_fd(socket.as_raw_fd(), handle.fd.as_raw_fd()) {
                        answer.flags |= ANSWER_FD;
                    } else if r.extra & WALK_OPENED != 0 {
                        // That was a favour.
                        self.forget_handle(r.extra & !WALK_OPENED);
                        answer.extra = 0;
                    } else {
                        // Perhaps no handle: those that pass one that there is already answer 0.
                        self.forget_handle(r.value);
                        answer.value = Errno::EMFILE.to_ret();
                    }
                }
            }
            Err(e) => answer.value = e.to_ret(),
        }
        meet_limit(&mut answer);
        // A cell has no more requests under way than the ring has room; one that lies loses answers.
        area.answers.push(&answer);
        // The core may be woken on this thread's processor, and look there for more.
        drop(one);
        self.wake(core);
    }

    /// Wakes a core if it sleeps, after something was stored that it is to find.
    pub(crate) fn wake(&self, core: usize) {
        // Pairs with the core's fence between saying that it is parked and its last look.
        fence(Ordering::SeqCst);
        let area = &self.control().cores[core];
        let parked = area.local.state.load(Ordering::SeqCst) == core_run::PARKED;
        if parked || area.tell.load(Ordering::SeqCst) != 0 && area.tell.swap(0, Ordering::SeqCst) != 0 {
            // A full bell has been rung already.
            let _ = rustix::io::write(&self.bells[core], &1u64.to_ne_bytes());
        }
    }

    /// The address of a buffer in this process; EFAULT if it isn't the cell's.
    pub(crate) fn buffer(&self, e: Extent) -> std::result::Result<(*mut u8, usize), Errno> {
        let p = self.memory.range(e.offset, e.len).ok_or(Errno::EFAULT)?;
        Ok((p, e.len as usize))
    }

    /// Copies a buffer out of the cell.
    pub(crate) fn copy_in(&self, e: Extent, most: usize) -> std::result::Result<Vec<u8>, Errno> {
        if e.len as usize > most {
            return Err(Errno::ENAMETOOLONG);
        }
        let (p, n) = self.buffer(e)?;
        let mut v = vec![0u8; n];
        // SAFETY: both are valid for `n` bytes. The cell may change its side meanwhile; we keep what we got.
        unsafe { std::ptr::copy_nonoverlapping(p, v.as_mut_ptr(), n) };
        Ok(v)
    }

    /// Copies into a buffer of the cell, as far as it goes.
    pub(crate) fn copy_out(&self, e: Extent, bytes: &[u8]) -> std::result::Result<usize, Errno> {
        let (p, n) = self.buffer(e)?;
        let n = n.min(bytes.len());
        // SAFETY: both are valid for `n` bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), p, n) };
        Ok(n)
    }

    fn path(&self, m: &HostMount, e: Extent) -> std::result::Result<CString, Errno> {
        let bytes = self.copy_in(e, PATH_LONGEST)?;
        if let Some(name) = &m.file {
            // Nothing else in its directory is the cell's.
            return if bytes.is_empty() { Ok(name.clone()) } else { Err(Errno::ENOTDIR) };
        }
        // The mount's root itself is the empty path.
        let bytes = if bytes.is_empty() { b".".to_vec() } else { bytes };
        CString::new(bytes).map_err(|_| Errno::EINVAL)
    }

    fn mount(&self, n: u64) -> std::result::Result<&HostMount, Errno> {
        self.mounts.get(n as usize).ok_or(Errno::EBADF)
    }

    fn writable(&self, n: u64) -> std::result::Result<&HostMount, Errno> {
        let m = self.mount(n)?;
        if m.read_only { Err(Errno::EROFS) } else { Ok(m) }
    }

    /// A number for a handle that others have, too.
    pub(crate) fn add_handle(&self, handle: &Arc<Handle>) -> std::result::Result<u64, Errno> {
        let mut h = self.handles.lock().expect("no panic while handles are held");
        if h.list.len() >= h.most {
            // The former: it would be more with a larger limit of descriptors, as is said where that is answered.
            return Err(if h.most < HANDLES_MAX { Errno::EMFILE } else { Errno::ENFILE });
        }
        let n = h.next;
        h.next += 1;
        h.list.insert(n, handle.clone());
        Ok(n)
    }

    pub(crate) fn handle(&self, n: u64) -> std::result::Result<Arc<Handle>, Errno> {
        self.handles
            .lock()
            .expect("no panic while handles are held")
            .list
            .get(&n)
            .cloned()
            .ok_or(Errno::EBADF)
    }

    fn serve(&self, r: &Request, identity: &mut Identity) -> Outcome {
        let op = Op::from_number(r.op).ok_or(Errno::ENOSYS)?;
        let (uid, gid) = self.user.unwrap_or((r.uid, r.gid));
        identity.become_user(uid, gid);
        let mut unmasked;
        let r = match op.mode_argument() {
            // What is only opened has no mode.
            Some(n) if r.arg[n] != 0 => {
                unmasked = *r;
                unmasked.arg[n] = u64::from(identity.mode(r.arg[n]));
                &unmasked
            }
            _ => r,
        };
        match op {
            Op::Nop => Reply::value(r.arg[0]),
            Op::Stat => {
                let m = self.mount(r.arg[0])?;
                let path = self.path(m, r.a)?;
                let (_, attr) = look(m, &m.root, &path)?;
                self.copy_out(r.b, attr.as_bytes())?;
                Reply::value(0)
            }
            Op::Walk => self.walk(r),
            Op::Stop => {
                jobs::stop(r.arg[0]);
                Reply::value(0)
            }
            // Here a cell is shown files, no disks.
            Op::DiskRead => Err(Errno::ENODEV),
            Op::ReadDir => self.read_dir(r),
            Op::ReadLink => {
                let m = self.mount(r.arg[0])?;
                let path = self.path(m, r.a)?;
                let fd = open_beneath(&m.root, &path, libc::O_PATH | libc::O_NOFOLLOW, 0)?;
                check_file_system(fd.as_raw_fd())?;
                Reply::value(self.copy_out(r.b, &read_link(&fd)?)? as u64)
            }
            Op::Open => self.open(r),
            Op::Release => self.release(r),
            Op::PassFd => {
                let h = self.handle(r.arg[0])?;
                Ok(Reply { value: 0, extra: 0, fd: Some(h) })
            }
            Op::Read | Op::Write => {
                let h = self.handle(r.arg[0])?;
                // What goes on to the device is one piece.
                let goes_on = op == Op::Write && r.arg[3] != 0;
                let iov = self.vectors(&[r.a, r.b][..if goes_on { 1 } else { 2 }])?;
                let offset = i64::try_from(r.arg[1]).map_err(|_| Errno::EINVAL)?;
                if op == Op::Read {
                    // SAFETY: the vectors lie in the cell's memory.
                    let n = unsafe { libc::preadv(h.fd.as_raw_fd(), iov.as_ptr(), iov.len() as i32, offset) };
                    Reply::value(check(n as i64)? as u64)
                } else {
                    if !h.write {
                        return Err(Errno::EBADF);
                    }
                    let note = if goes_on { Some(self.buffer(r.b)?) } else { None };
                    if note.is_some_and(|(_, len)| len != 1) {
                        return Err(Errno::EINVAL);
                    }
                    let value = write_all(h.fd.as_raw_fd(), iov, offset, r.arg[2] == 1)?;
                    let mut extra = 0;
                    if let Some((note, _)) = note.filter(|_| value == r.a.len) {
                        if r.c.len > 0
                            && let Ok(attr) = stat(h.fd.as_raw_fd(), c"", libc::AT_EMPTY_PATH)
                        {
                            self.copy_out(r.c, attr.as_bytes())?;
                        }
                        // SAFETY: a byte of the cell's memory, which others use as this does, too.
                        unsafe { AtomicU8::from_ptr(note) }.store(1, Ordering::Release);
                        let failed = sync(h.fd.as_raw_fd(), r.arg[3] == 2).err();
                        extra = failed.map_or(0, |e| e.0.into());
                    }
                    Ok(Reply { value, extra, fd: None })
                }
            }
            Op::Sync if r.arg[1] == 2 => {
                let m = self.writable(r.arg[0])?;
                let whole = m.whole.as_ref().ok_or(Errno::EACCES)?;
                // SAFETY: no memory is involved.
                check(unsafe { libc::syncfs(whole.as_raw_fd()) } as i64)?;
                Reply::value(0)
            }
            Op::Sync => {
                let h = self.handle(r.arg[0])?;
                sync(h.fd.as_raw_fd(), r.arg[1] == 1)?;
                Reply::value(0)
            }
            Op::StatHandle => {
                let h = self.handle(r.arg[0])?;
                let attr = stat(h.fd.as_raw_fd(), c"", libc::AT_EMPTY_PATH)?;
                self.copy_out(r.b, attr.as_bytes())?;
                Reply::value(0)
            }
            Op::Truncate => {
                let h = self.handle(r.arg[0])?;
                let len = i64::try_from(r.arg[1]).map_err(|_| Errno::EINVAL)?;
                if !h.write {
                    return Err(Errno::EINVAL);
                }
                // SAFETY: no memory is involved.
                check(unsafe { libc::ftruncate(h.fd.as_raw_fd(), len) } as i64)?;
                Reply::value(0)
            }
            Op::Allocate => {
                let h = self.handle(r.arg[0])?;
                let (offset, len) = (r.arg[2] as i64, r.arg[3] as i64);
                if !h.write {
                    return Err(Errno::EBADF);
                }
                // SAFETY: no memory is involved.
                check(unsafe { libc::fallocate(h.fd.as_raw_fd(), r.arg[1] as i32, offset, len) } as i64)?;
                Reply::value(0)
            }
            Op::CopyRange => {
                let (from, to) = (self.handle(r.arg[0])?, self.handle(r.arg[2])?);
                if !to.write {
                    return Err(Errno::EBADF);
                }
                Reply::value(copy_range((&from.fd, r.arg[1]), (&to.fd, r.arg[3]), r.len.min(COPY_MAX))?)
            }
            Op::MakeDir => {
                let (dir, name) = self.parent(r.arg[0], r.a)?;
                let mode = r.arg[1] as u32 & 0o7777;
                // SAFETY: a valid name.
                check(unsafe { libc::mkdirat(dir.as_raw_fd(), name.as_ptr(), mode) } as i64)?;
                self.tell_changed(r, Some((&dir, &name)), None, Some(&dir))
            }
            Op::Unlink => {
                let (dir, name) = self.parent(r.arg[0], r.a)?;
                let flags = if r.arg[1] == 1 { libc::AT_REMOVEDIR } else { 0 };
                // SAFETY: a valid name.
                check(unsafe { libc::unlinkat(dir.as_raw_fd(), name.as_ptr(), flags) } as i64)?;
                self.tell_changed(r, None, Some(&dir), None)
            }
            Op::Rename => {
                let (from, a) = self.parent(r.arg[0], r.a)?;
                let (to, b) = self.parent(r.arg[0], r.b)?;
                let flags = r.arg[1] as u32;
                // SAFETY: valid names.
                check(unsafe {
                    libc::renameat2(from.as_raw_fd(), a.as_ptr(), to.as_raw_fd(), b.as_ptr(), flags)
                } as i64)?;
                self.tell_changed(r, Some((&to, &b)), Some(&from), Some(&to))
            }
            Op::Link => {
                let (to, b) = self.parent(r.arg[0], r.b)?;
                if r.arg[1] != 0 {
                    let handle = self.handle(r.arg[1])?;
                    if handle.mount != Some(r.arg[0]) {
                        return Err(Errno::EXDEV);
                    }
                    // By its name in /proc, which is ours; one that was removed gets no new one there.
                    let own = own_name(handle.fd.as_raw_fd())?;
                    let (at, flags) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
                    // SAFETY: valid names.
                    let done = unsafe { libc::linkat(at, own.as_ptr(), to.as_raw_fd(), b.as_ptr(), flags) };
                    check(done as i64)?;
                    return self.tell_changed(r, Some((&to, &b)), None, Some(&to));
                }
                let (from, a) = self.parent(r.arg[0], r.a)?;
                // SAFETY: valid names.
                check(unsafe { libc::linkat(from.as_raw_fd(), a.as_ptr(), to.as_raw_fd(), b.as_ptr(), 0) }
                    as i64)?;
                self.tell_changed(r, Some((&to, &b)), None, Some(&to))
            }
            Op::SymLink => {
                let target =
                    CString::new(self.copy_in(r.a, libc::PATH_MAX as usize)?).map_err(|_| Errno::EINVAL)?;
                let (dir, name) = self.parent(r.arg[0], r.b)?;
                // SAFETY: valid names.
                check(unsafe { libc::symlinkat(target.as_ptr(), dir.as_raw_fd(), name.as_ptr()) } as i64)?;
                self.tell_changed(r, Some((&dir, &name)), None, Some(&dir))
            }
            Op::MakeNode => {
                let (dir, name) = self.parent(r.arg[0], r.a)?;
                let mode = r.arg[1] as u32;
                if !matches!(mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFIFO | libc::S_IFSOCK) {
                    return Err(Errno::EPERM);
                }
                let is_socket = mode & libc::S_IFMT == libc::S_IFSOCK;
                if is_socket && r.arg[2] != 0 && self.mount(r.arg[0])?.sockets && identity.has_own_directory()
                {
                    let made = sockets::bind_name((dir.as_raw_fd(), &name), r.arg[2], mode & 0o777)?;
                    if let Some(fd) = made {
                        let said = self.tell_changed(r, Some((&dir, &name)), None, Some(&dir))?;
                        // The name is made; that others can connect to it, too, is a favour.
                        let handle = Arc::new(Handle { fd, write: false, mount: None });
                        return Ok(match self.add_handle(&handle) {
                            Ok(number) => Reply { extra: WALK_OPENED | number, fd: Some(handle), ..said },
                            Err(_) => said,
                        });
                    }
                }
                // SAFETY: a valid name.
                check(unsafe { libc::mknodat(dir.as_raw_fd(), name.as_ptr(), mode, 0) } as i64)?;
                self.tell_changed(r, Some((&dir, &name)), None, Some(&dir))
            }
            Op::ConnectName => {
                let (_named, name) = self.socket_name(r)?;
                let fd = identity.as_peer(uid, gid, || sockets::connect_name(&name, r.arg[1]))?;
                let for_datagrams = r.arg[1] == libc::SOCK_DGRAM as u64;
                let handle = (!for_datagrams).then(|| Arc::new(Handle { fd, write: false, mount: None }));
                Ok(Reply { value: 0, extra: 0, fd: handle })
            }
            Op::SendName => {
                let (_named, name) = self.socket_name(r)?;
                let datagram = self.copy_in(r.b, sockets::DATAGRAM_MAX)?;
                let send = || sockets::send_name(&name, &datagram, (uid, gid));
                Reply::value(identity.as_peer(uid, gid, send)? as u64)
            }
            Op::Watch => self.watch(r),
            Op::NextEvents => {
                let watcher = self.watcher.lock().expect("no panic while it is held").clone();
                let events = watcher.ok_or(Errno::ENOSYS)?.next((r.a.len as usize).min(EVENTS_MAX))?;
                Reply::value(self.copy_out(r.a, &events)? as u64)
            }
            Op::Listen => identity.as_peer(uid, gid, || sockets::serve(self, op, r)),
            Op::Create => self.create(r),
            Op::SetAttr => self.set_attr(r),
            Op::StatFs => {
                let m = self.mount(r.arg[0])?;
                // SAFETY: a plain structure for the host to fill.
                let mut s: libc::statfs = unsafe { std::mem::zeroed() };
                // SAFETY: as above.
                check(unsafe { libc::fstatfs(m.root.as_raw_fd(), &raw mut s) } as i64)?;
                let h = HostStatFs {
                    kind: s.f_type as u64,
                    bsize: s.f_bsize as u64,
                    blocks: s.f_blocks,
                    bfree: s.f_bfree,
                    bavail: s.f_bavail,
                    files: s.f_files,
                    ffree: s.f_ffree,
                    namelen: s.f_namelen as u64,
                };
                self.copy_out(r.b, h.as_bytes())?;
                Reply::value(0)
            }
            Op::StreamRead | Op::StreamWrite | Op::StreamControl | Op::StreamHandle | Op::StreamSeek => {
                identity.become_user(0, 0);
                self.stream(op, r)
            }
            Op::Socket | Op::Bind | Op::Connect | Op::Route | Op::Interface => sockets::serve(self, op, r),
            Op::Plan => {
                let h = self.handle(r.arg[0])?;
                let (bytes, total) = self.plans.get(h.fd.as_fd(), r.arg[1], r.b.len as usize)?;
                let n = self.copy_out(r.b, &bytes)?;
                Ok(Reply { value: n as u64, extra: total, fd: None })
            }
            Op::ExtendedAttr => self.extended_attr(r),
            Op::Lock => self.lock(r),
            Op::Lease => {
                identity.become_user(0, 0);
                self.lease(r)
            }
            Op::NextOpener => Reply::value(self.leases.next()?),
            Op::SeekData => {
                let h = self.handle(r.arg[0])?;
                let from = i64::try_from(r.arg[1]).map_err(|_| Errno::EINVAL)?;
                let whence = if r.arg[2] == 1 { libc::SEEK_HOLE } else { libc::SEEK_DATA };
                // SAFETY: no memory is involved. The position is nobody's: reads and writes name theirs.
                Reply::value(check(unsafe { libc::lseek(h.fd.as_raw_fd(), from, whence) })? as u64)
            }
        }
    }

    fn watch(&self, r: &Request) -> Outcome {
        let m = self.mount(r.arg[0])?;
        let (mask, key) = (r.arg[1], (r.arg[2], r.arg[3]));
        let found = self.path(m, r.a).and_then(|path| look(m, &m.root, &path));
        let found = found.and_then(|(fd, attr)| Ok((own_name(fd.as_raw_fd())?, fd, attr)));
        let watcher = {
            let mut watcher = self.watcher.lock().expect("no panic while it is held");
            match &*watcher {
                Some(watcher) => watcher.clone(),
                None if mask == 0 => return Reply::value(0),
                None => watcher.insert(Arc::new(watch::Watcher::new()?)).clone(),
            }
        };
        if mask == 0 {
            watcher.forget(key, found.as_ref().ok().map(|(name, fd, attr)| (fd, name.as_c_str(), attr)))?;
        } else {
            let (name, fd, attr) = found?;
            if (attr.dev, attr.ino) != key {
                return Err(Errno::ESTALE);
            }
            watcher.watch(&fd, &name, &attr, mask)?;
        }
        Reply::value(0)
    }

    /// The name of a volume's Unix socket, by which this process finds it while the descriptor is there.
    fn socket_name(&self, r: &Request) -> std::result::Result<(OwnedFd, CString), Errno> {
        let m = self.mount(r.arg[0])?;
        if !m.sockets {
            return Err(Errno::ECONNREFUSED);
        }
        let path = self.path(m, r.a)?;
        let fd = open_beneath(&m.root, &path, libc::O_PATH | libc::O_NOFOLLOW, 0)?;
        check_file_system(fd.as_raw_fd())?;
        let name = own_name(fd.as_raw_fd())?;
        Ok((fd, name))
    }

    /// Buffers of a request, as vectors.
    fn vectors(&self, extents: &[Extent]) -> std::result::Result<Vec<libc::iovec>, Errno> {
        let mut iov = Vec::with_capacity(2);
        for e in extents {
            if e.len > 0 {
                let (base, len) = self.buffer(*e)?;
                iov.push(libc::iovec { iov_base: base.cast(), iov_len: len });
            }
        }
        Ok(iov)
    }

    /// The directory above a path, and the last name of it.
    fn parent(&self, mount: u64, path: Extent) -> std::result::Result<(Above<'_>, CString), Errno> {
        let m = self.writable(mount)?;
        if m.file.is_some() {
            return Err(Errno::ENOTDIR);
        }
        let path = self.copy_in(path, PATH_LONGEST)?;
        let (dir, name) = match path.iter().rposition(|b| *b == b'/') {
            Some(at) => (Some(path[..at].to_vec()), path[at + 1..].to_vec()),
            None => (None, path),
        };
        if name.is_empty() || name == b"." || name == b".." {
            return Err(Errno::EINVAL);
        }
        let name = CString::new(name).map_err(|_| Errno::EINVAL)?;
        let Some(dir) = dir else {
            // That was asked when it was mounted.
            return m.device.map(|_| (Above::Mount(&m.root), name)).ok_or(Errno::EACCES);
        };
        let dir = CString::new(dir).map_err(|_| Errno::EINVAL)?;
        let fd = open_beneath(&m.root, &dir, libc::O_PATH | libc::O_DIRECTORY, 0)?;
        check_file_system(fd.as_raw_fd())?;
        Ok((Above::Opened(fd), name))
    }

    /// The answer to a change of the tree, which has been made: what it has made of `what`, a name in a directory, and of the directories
    /// from and to which a name has gone.
    fn tell_changed(
        &self,
        r: &Request,
        what: Option<(&Above<'_>, &CStr)>,
        from: Option<&Above<'_>>,
        to: Option<&Above<'_>>,
    ) -> Outcome {
        let named = |(dir, name): (&Above<'_>, &CStr)| {
            let known = attributes_of(dir.as_raw_fd(), name, libc::AT_SYMLINK_NOFOLLOW);
            // What others have put there meanwhile is looked at when it is asked for.
            known.ok().filter(|(_, is_mount_root)| !is_mount_root).map(|(attr, _)| attr)
        };
        self.tell(r, || what.and_then(named), from, to)?;
        Reply::value(0)
    }

    /// Puts attributes into the buffer for them, if there is one. Those that can't be had are left out.
    fn tell(
        &self,
        r: &Request,
        what: impl FnOnce() -> Option<HostAttr>,
        from: Option<&Above<'_>>,
        to: Option<&Above<'_>>,
    ) -> std::result::Result<(), Errno> {
        if r.c.len == 0 {
            return Ok(());
        }
        let of = |dir: &Above<'_>| stat(dir.as_raw_fd(), c"", libc::AT_EMPTY_PATH).ok();
        let changed = HostChanged {
            what: what().unwrap_or_default(),
            from: from.and_then(of).unwrap_or_default(),
            to: to.and_then(of).unwrap_or_default(),
        };
        self.copy_out(r.c, changed.as_bytes()).map(drop)
    }

    fn create(&self, r: &Request) -> Outcome {
        let (dir, name) = self.parent(r.arg[0], r.a)?;
        // Nothing that is there is opened.
        let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: a valid name.
        let fd = check(unsafe {
            libc::openat(dir.as_raw_fd(), name.as_ptr(), flags, libc::c_uint::from(r.arg[1] as u16 & 0o7777))
        } as i64)?;
        // SAFETY: just opened.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
        self.tell(r, || stat(fd.as_raw_fd(), c"", libc::AT_EMPTY_PATH).ok(), None, Some(&dir))?;
        // It is made; that it is opened, too, is a favour.
        let handle = Arc::new(Handle { fd, write: true, mount: Some(r.arg[0]) });
        Ok(match self.add_handle(&handle) {
            Ok(number) => {
                Reply { value: 0, extra: WALK_OPENED | number, fd: (r.arg[3] == 1).then_some(handle) }
            }
            Err(_) => Reply { value: 0, extra: 0, fd: None },
        })
    }

    fn open(&self, r: &Request) -> Outcome {
        let m = self.mount(r.arg[0])?;
        let path = self.path(m, r.a)?;
        let asked = r.arg[1] as i32;
        let write = asked & libc::O_ACCMODE != libc::O_RDONLY;
        let known = libc::O_ACCMODE | libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_DIRECTORY;
        let temporary = asked & libc::O_TMPFILE == libc::O_TMPFILE;
        // A file without a name is one that is made, and opened to be written, whatever was asked for.
        if m.read_only && (write || temporary || asked & (libc::O_CREAT | libc::O_TRUNC) != 0) {
            return Err(Errno::EROFS);
        }
        if temporary && !write {
            return Err(Errno::EINVAL);
        }
        let flags = asked & known | libc::O_NOFOLLOW | libc::O_NOCTTY | libc::O_NONBLOCK;
        let (fd, attr) = loop {
            let new = |fd: OwnedFd| attributes(fd.as_raw_fd()).map(|(attr, _)| (fd, attr));
            if temporary {
                // A new file in a directory, and no name.
                let dir = open_beneath(&m.root, &path, libc::O_PATH | libc::O_DIRECTORY, 0)?;
                check_file_system(dir.as_raw_fd())?;
                let flags = libc::O_TMPFILE | libc::O_RDWR | asked & libc::O_EXCL;
                break new(open_beneath(&dir, c".", flags, r.arg[2] & 0o7777)?)?;
            }
            match open_existing(m, &path, flags) {
                // A new one. What appears meanwhile is looked at like the rest.
                Err(Errno::ENOENT) if flags & libc::O_CREAT != 0 && m.file.is_none() => {
                    match open_beneath(&m.root, &path, flags | libc::O_EXCL, r.arg[2] & 0o7777) {
                        Err(Errno::EEXIST) if flags & libc::O_EXCL == 0 => {}
                        other => {
                            let (fd, attr) = new(other?)?;
                            check_file_system(fd.as_raw_fd())?;
                            break (fd, attr);
                        }
                    }
                }
                other => break other?,
            }
        };
        self.copy_out(r.b, attr.as_bytes())?;
        let handle = Arc::new(Handle { fd, write, mount: Some(r.arg[0]) });
        let value = self.add_handle(&handle)?;
        Ok(Reply { value, extra: 0, fd: (r.arg[3] == 1).then_some(handle) })
    }

    /// Locks a file, which is opened for that if it is not yet.
    fn lock(&self, r: &Request) -> Outcome {
        if r.arg[1] & (8 | 16) == 0 {
            self.lock_handle(r.arg[0], r)?;
            return Reply::value(0);
        }
        let opened = if r.arg[1] & 16 != 0 {
            Reply::value(self.once_more(&*self.handle(r.arg[0])?)?)?
        } else {
            self.open_to_lock(r)?
        };
        let locked = self.lock_handle(opened.value, r);
        if locked.is_err() {
            drop(self.forget_handle(opened.value));
        }
        locked.map(|()| opened)
    }

    /// Opens the file of a path, which has to have this device and number.
    fn open_to_lock(&self, r: &Request) -> Outcome {
        let wanted = self.copy_in(r.b, size_of::<HostAttr>())?;
        let wanted = HostAttr::read_from_bytes(&wanted).map_err(|_| Errno::EINVAL)?;
        let open = |flags: i32| self.open(&Request { arg: [r.arg[0], flags as u64, 0, 0], ..*r });
        let opened = match open(libc::O_RDWR) {
            Err(e) if e != Errno::EBUSY => open(libc::O_RDONLY)?,
            opened => opened?,
        };
        let handle = self.handle(opened.value)?;
        match attributes(handle.fd.as_raw_fd()) {
            Ok((attr, _)) if (attr.dev, attr.ino) == (wanted.dev, wanted.ino) => Ok(opened),
            other => {
                drop(self.forget_handle(opened.value));
                Err(other.err().unwrap_or(Errno::ENOENT))
            }
        }
    }

    /// One more handle of the same opening.
    fn once_more(&self, h: &Handle) -> std::result::Result<u64, Errno> {
        let fd = h.fd.try_clone().map_err(|_| Errno::EMFILE)?;
        self.add_handle(&Arc::new(Handle { fd, write: h.write, mount: h.mount }))
    }

    fn lease(&self, r: &Request) -> Outcome {
        let h = self.handle(r.arg[0])?;
        match r.arg[1] {
            0 => self.leases.end(r.arg[0]),
            1 => {
                // What was not opened here is others', too.
                let mount = h.mount.filter(|_| h.write).ok_or(Errno::EBADF)?;
                self.writable(mount)?;
                let (attr, _) = attributes(h.fd.as_raw_fd())?;
                let m = self.mount(mount)?;
                // Of another machine's file this one doesn't know who has it open.
                if !m.local || m.device != Some(attr.dev) {
                    return Err(Errno::EINVAL);
                }
                self.leases.take(r.arg[0], &h, (attr.dev, attr.ino))?;
            }
            2 => return Reply::value(self.once_more(&h)?),
            3 => self.leases.is_at_it(r.arg[0]),
            _ => return Err(Errno::EINVAL),
        }
        Reply::value(0)
    }

    fn lock_handle(&self, number: u64, r: &Request) -> std::result::Result<(), Errno> {
        let h = self.handle(number)?;
        // Nor are others on the host to wait for what a cell may only read.
        if let Some(mount) = h.mount {
            self.writable(mount)?;
        }
        let (fd, kind) = (h.fd.as_raw_fd(), r.arg[1] as usize & 3);
        if r.arg[1] & 4 != 0 {
            let operation = [libc::LOCK_UN, libc::LOCK_SH, libc::LOCK_EX, libc::LOCK_UN][kind];
            // SAFETY: no memory is involved.
            check(unsafe { libc::flock(fd, operation | libc::LOCK_NB) } as i64)?;
        } else {
            let kinds = [libc::F_UNLCK, libc::F_RDLCK, libc::F_WRLCK, libc::F_UNLCK];
            // SAFETY: a plain structure.
            let mut lock: libc::flock = unsafe { std::mem::zeroed() };
            lock.l_type = kinds[kind] as i16;
            lock.l_start = i64::try_from(r.arg[2]).map_err(|_| Errno::EINVAL)?;
            lock.l_len = i64::try_from(r.arg[3]).map_err(|_| Errno::EINVAL)?;
            // SAFETY: a valid structure.
            check(unsafe { libc::fcntl(fd, libc::F_OFD_SETLK, &raw const lock) } as i64)?;
        }
        Ok(())
    }

    /// Looks at name after name of a path.
    fn walk(&self, r: &Request) -> Outcome {
        let m = self.mount(r.arg[0])?;
        if m.file.is_some() {
            return Err(Errno::ENOTDIR);
        }
        let path = self.copy_in(r.a, PATH_LONGEST)?;
        let (above, names) = path.split_at_checked(r.arg[1] as usize).ok_or(Errno::EINVAL)?;
        let above = if above.is_empty() { b".".to_vec() } else { above.to_vec() };
        let above = CString::new(above).map_err(|_| Errno::EINVAL)?;
        let mut dir = open_beneath(&m.root, &above, libc::O_PATH | libc::O_DIRECTORY, 0)?;
        let mut out: Vec<u8> = Vec::new();
        let (mut extra, mut pass) = (0, None);
        let mut found = 0;
        let (mut last, mut key) = (0, (0, 0));
        for name in names.split(|b| *b == b'/').filter(|name| !name.is_empty()) {
            if matches!(name, b"." | b"..") || out.len() + size_of::<HostAttr>() > r.b.len as usize {
                break;
            }
            let name = CString::new(name).map_err(|_| Errno::EINVAL)?;
            match look(m, &dir, &name) {
                Ok((fd, attr)) => {
                    out.extend_from_slice(attr.as_bytes());
                    found += 1;
                    if attr.mode & libc::S_IFMT == libc::S_IFLNK
                        && let Ok(target) = read_link(&fd)
                        && out.len() + target.len() <= r.b.len as usize
                    {
                        extra = target.len() as u64;
                        out.extend_from_slice(&target);
                    }
                    dir = fd;
                    (last, key) = (attr.mode & libc::S_IFMT, (attr.dev, attr.ino));
                    if last != libc::S_IFDIR {
                        break;
                    }
                }
                // The first is what was asked for; what is said of the others is a favour.
                Err(e) if found == 0 => return Err(e),
                Err(Errno::ENOENT) => {
                    extra = WALK_MISSING;
                    break;
                }
                Err(_) => break,
            }
        }
        if found == 0 {
            // Nothing that could be asked for, or no room for it.
            return Err(Errno::EINVAL);
        }
        self.copy_out(r.b, &out)?;
        // Opening it is a favour, too.
        if r.arg[2] == 1
            && last == libc::S_IFREG
            && !self.leases.has(key)
            && check_file_system(dir.as_raw_fd()).is_ok()
            && let Ok(fd) = reopen(&dir, libc::O_RDONLY | libc::O_NOCTTY | libc::O_NONBLOCK)
        {
            let handle = Arc::new(Handle { fd, write: false, mount: Some(r.arg[0]) });
            if let Ok(number) = self.add_handle(&handle) {
                (extra, pass) = (WALK_OPENED | number, Some(handle));
            }
        }
        Ok(Reply { value: found, extra, fd: pass })
    }

    fn read_dir(&self, r: &Request) -> Outcome {
        let m = self.mount(r.arg[0])?;
        let path = self.path(m, r.a)?;
        // What does not fit into the cell's buffer is not collected here, however large that is.
        self.buffer(r.b)?;
        let room = r.b.len.min(LIST_MAX) as usize;
        let fd = open_beneath(&m.root, &path, libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
        check_file_system(fd.as_raw_fd())?;
        let start = i64::try_from(r.arg[1]).map_err(|_| Errno::EINVAL)?;
        if start != 0 {
            // SAFETY: no memory is involved.
            check(unsafe { libc::lseek(fd.as_raw_fd(), start, libc::SEEK_SET) })?;
        }
        let mut position = r.arg[1];
        let mut buf = vec![0u8; 32 << 10];
        let mut out: Vec<u8> = Vec::new();
        loop {
            // SAFETY: the buffer has that length.
            let n = check(unsafe {
                libc::syscall(libc::SYS_getdents64, fd.as_raw_fd(), buf.as_mut_ptr(), buf.len())
            })? as usize;
            if n == 0 {
                let written = self.copy_out(r.b, &out)?;
                return Ok(Reply { value: written as u64, extra: 0, fd: None });
            }
            let mut at = 0;
            while at + 19 <= n {
                let len = u16::from_ne_bytes([buf[at + 16], buf[at + 17]]) as usize;
                let name = CStr::from_bytes_until_nul(&buf[at + 19..n]).map_err(|_| Errno::EIO)?;
                let ino = u64::from_ne_bytes(buf[at..at + 8].try_into().map_err(|_| Errno::EIO)?);
                let next = u64::from_ne_bytes(buf[at + 8..at + 16].try_into().map_err(|_| Errno::EIO)?);
                let kind = buf[at + 18];
                at += len.max(19);
                if matches!(name.to_bytes(), b"." | b"..") {
                    position = next;
                    continue;
                }
                let bytes = name.to_bytes();
                let size = size_of::<HostDirent>() + bytes.len().next_multiple_of(8);
                if out.len() + size > room {
                    let written = self.copy_out(r.b, &out)?;
                    return Ok(Reply { value: written as u64, extra: position, fd: None });
                }
                position = next;
                let listed = HostAttr { ino, mode: u32::from(kind) << 12, ..HostAttr::default() };
                let names_only = r.arg[2] == 1;
                let (attr, plain) = if names_only && kind != libc::DT_UNKNOWN {
                    (listed, false)
                } else {
                    let attr = stat(fd.as_raw_fd(), name, libc::AT_SYMLINK_NOFOLLOW).unwrap_or(listed);
                    // Others may keep such attributes to themselves, or take a while to tell.
                    let asks = !names_only && m.local && m.device == Some(attr.dev);
                    (attr, asks && is_plain(fd.as_raw_fd(), name))
                };
                let flags = if plain { DIRENT_PLAIN } else { 0 };
                let head = HostDirent { attr, name_len: bytes.len() as u32, flags };
                out.extend_from_slice(head.as_bytes());
                out.extend_from_slice(bytes);
                out.resize(out.len().next_multiple_of(8), 0);
            }
        }
    }

    fn set_attr(&self, r: &Request) -> Outcome {
        let bytes = self.copy_in(r.b, size_of::<HostSetAttr>())?;
        let h = HostSetAttr::read_from_bytes(&bytes).map_err(|_| Errno::EINVAL)?;
        let (m, fd) = if r.arg[1] == 1 {
            let handle = self.handle(r.arg[2])?;
            let m = self.writable(handle.mount.ok_or(Errno::EBADF)?)?;
            (m, handle.fd.try_clone().map_err(|_| Errno::EMFILE)?)
        } else {
            let m = self.writable(r.arg[0])?;
            (m, open_beneath(&m.root, &self.path(m, r.a)?, libc::O_PATH | libc::O_NOFOLLOW, 0)?)
        };
        let a = stat(fd.as_raw_fd(), c"", libc::AT_EMPTY_PATH)?;
        m.check_file_system(&fd, &a)?;
        let (dir, empty) = (fd.as_raw_fd(), c"".as_ptr());
        if h.mask & 6 != 0 {
            let id = |bit: u32, id: u32| if h.mask & bit != 0 { id } else { u32::MAX };
            let (uid, gid) = (id(2, h.uid), id(4, h.gid));
            // SAFETY: a valid name.
            check(unsafe { libc::fchownat(dir, empty, uid, gid, libc::AT_EMPTY_PATH) } as i64)?;
        }
        if h.mask & 1 != 0 {
            if a.mode & libc::S_IFMT == libc::S_IFLNK {
                return Err(Errno::EOPNOTSUPP);
            }
            change_mode(dir, h.mode & 0o7777)?;
        }
        if h.mask & 0x30 != 0 {
            let one = |bit: u32, sec: i64, nsec: u32| libc::timespec {
                tv_sec: sec,
                tv_nsec: if h.mask & bit != 0 { i64::from(nsec) } else { libc::UTIME_OMIT },
            };
            let times = [one(0x10, h.atime, h.atime_nsec), one(0x20, h.mtime, h.mtime_nsec)];
            // SAFETY: valid times and name.
            check(unsafe { libc::utimensat(dir, empty, times.as_ptr(), libc::AT_EMPTY_PATH) } as i64)?;
        }
        self.tell(r, || stat(dir, c"", libc::AT_EMPTY_PATH).ok(), None, None)?;
        Reply::value(0)
    }

    fn extended_attr(&self, r: &Request) -> Outcome {
        let (what, flags) = (r.arg[1] & 0xff, (r.arg[1] >> 8) as i32);
        let mount = |n: u64| if what >= 2 { self.writable(n) } else { self.mount(n) };
        let fd = if r.arg[3] != 0 {
            let handle = self.handle(r.arg[3])?;
            mount(handle.mount.ok_or(Errno::EBADF)?)?;
            handle.fd.try_clone().map_err(|_| Errno::EMFILE)?
        } else {
            let m = mount(r.arg[0])?;
            open_beneath(&m.root, &self.path(m, r.a)?, libc::O_PATH | libc::O_NOFOLLOW, 0)?
        };
        check_file_system(fd.as_raw_fd())?;
        let own = own_name(fd.as_raw_fd())?;
        let own = own.as_ptr();
        let input = self.copy_in(r.b, EXTENDED_MAX + 256)?;
        let (name, value) = input.split_at_checked(r.arg[2] as usize).ok_or(Errno::EINVAL)?;
        let name = CString::new(name).map_err(|_| Errno::EINVAL)?;
        let mut out = vec![0u8; input.len().min(EXTENDED_MAX)];
        // SAFETY: valid names, and buffers of the lengths that are given.
        let n = check(unsafe {
            match what {
                0 => libc::listxattr(own, out.as_mut_ptr().cast(), out.len()) as i64,
                1 => libc::getxattr(own, name.as_ptr(), out.as_mut_ptr().cast(), out.len()) as i64,
                2 => libc::setxattr(own, name.as_ptr(), value.as_ptr().cast(), value.len(), flags) as i64,
                3 => libc::removexattr(own, name.as_ptr()) as i64,
                _ => return Err(Errno::EINVAL),
            }
        })?;
        if what >= 2 {
            return Reply::value(0);
        }
        // Without room, the host says how long it is.
        Reply::value(self.copy_out(r.b, out.get(..n as usize).ok_or(Errno::ERANGE)?)? as u64)
    }

    fn stream(&self, op: Op, r: &Request) -> Outcome {
        let n = r.arg[0] as usize;
        let kind = *self.streams.kinds.get(n).ok_or(Errno::EBADF)?;
        if kind == StreamKind::Closed {
            return Err(Errno::EBADF);
        }
        // SAFETY: the standard descriptors stay open as long as this process lives.
        let fd = unsafe { BorrowedFd::borrow_raw(n as RawFd) };
        let (p, len) = self.buffer(r.a)?;
        match op {
            Op::StreamRead if r.arg[1] == 1 => {
                if jobs::is_in_background(fd) {
                    Err(Errno::BACKGROUND)
                } else {
                    Reply::value(0)
                }
            }
            Op::StreamRead if r.arg[1] == 2 => {
                // Not whenever a cell says so; and it may have come to the foreground since.
                if jobs::is_in_background(fd) {
                    jobs::tell_job(libc::SIGTTIN);
                }
                Reply::value(0)
            }
            Op::StreamRead if len == 0 => loop {
                let ready = wait_fd(fd, libc::POLLIN);
                if ready != 0 {
                    return Reply::value(ready as u64);
                }
            },
            Op::StreamRead => {
                let mut again = false;
                loop {
                    // SAFETY: the buffer lies in the cell's memory.
                    let n = unsafe { libc::read(fd.as_raw_fd(), p.cast(), len) };
                    match check(n as i64) {
                        // The descriptor may be non-blocking for reasons of its owner's.
                        Err(Errno::EAGAIN) => drop(wait_fd(fd, libc::POLLIN)),
                        Err(Errno::EINTR) => {}
                        Err(Errno::EIO) if jobs::is_in_background(fd) => return Err(Errno::BACKGROUND),
                        // It was, and has come to the foreground meanwhile.
                        Err(Errno::EIO) if !again && jobs::is_in_foreground(fd) => again = true,
                        other => {
                            // What comes next is known at once to who asks after the read.
                            let extra = ready_now(fd, libc::POLLIN) as u64;
                            return Ok(Reply { value: other? as u64, extra, fd: None });
                        }
                    }
                }
            }
            Op::StreamWrite => {
                let mut done = 0;
                while done < len {
                    // SAFETY: as above.
                    let n = unsafe { libc::write(fd.as_raw_fd(), p.add(done).cast(), len - done) };
                    match check(n as i64) {
                        Err(Errno::EAGAIN) => drop(wait_fd(fd, libc::POLLOUT)),
                        Err(Errno::EINTR) => {}
                        Ok(n) => done += n as usize,
                        Err(e) if done == 0 => return Err(e),
                        Err(_) => break,
                    }
                }
                Reply::value(done as u64)
            }
            Op::StreamHandle if r.arg[1] == 1 => {
                let may = match kind {
                    StreamKind::File => is_soon_written(fd)?,
                    StreamKind::Device | StreamKind::Pipe => true,
                    StreamKind::Terminal | StreamKind::Null | StreamKind::Closed => false,
                };
                if !may {
                    return Err(Errno::EINVAL);
                }
                let fd = fd.try_clone_to_owned().map_err(|_| Errno::EMFILE)?;
                let h = Arc::new(Handle { fd, write: false, mount: None });
                Ok(Reply { value: 0, extra: 0, fd: Some(h) })
            }
            Op::StreamHandle => {
                if !matches!(kind, StreamKind::File | StreamKind::Device) {
                    return Err(Errno::EINVAL);
                }
                let flags = rustix::fs::fcntl_getfl(fd).map_err(|_| Errno::EBADF)?;
                let write = flags.intersects(rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::RDWR);
                let fd = fd.try_clone_to_owned().map_err(|_| Errno::EMFILE)?;
                Reply::value(self.add_handle(&Arc::new(Handle { fd, write, mount: None }))?)
            }
            Op::StreamSeek => {
                // SAFETY: no memory is involved.
                let at = unsafe { libc::lseek(fd.as_raw_fd(), r.arg[1] as i64, r.arg[2] as i32) };
                Reply::value(check(at)? as u64)
            }
            _ => {
                let command = r.arg[1];
                let known = [
                    libc::TCGETS,
                    libc::TCSETS,
                    libc::TCSETSW,
                    libc::TCSETSF,
                    libc::TCGETS2,
                    libc::TCSETS2,
                    libc::TCSETSW2,
                    libc::TCSETSF2,
                    libc::TIOCGWINSZ,
                    libc::TIOCSWINSZ,
                    libc::TIOCGPGRP,
                    libc::TIOCGSID,
                    libc::FIONREAD,
                    libc::TCFLSH,
                    libc::TCXONC,
                    libc::TCSBRK,
                ];
                if command == libc::TIOCSPGRP {
                    // The cell's process groups are its own; on the terminal it is us.
                    return Reply::value(0);
                }
                if !known.contains(&command) {
                    return Err(Errno::ENOTTY);
                }
                // The host fills a structure of known size: through a buffer that is large enough.
                let mut arg = [0u8; 64];
                let n = len.min(arg.len());
                let input = self.copy_in(r.a, 64)?;
                arg[..n].copy_from_slice(&input[..n]);
                let plain = matches!(command, libc::TCFLSH | libc::TCXONC | libc::TCSBRK);
                let pointer = if plain { r.arg[2] } else { arg.as_mut_ptr() as u64 };
                // SAFETY: the commands above use no more than the buffer holds.
                check(unsafe { libc::ioctl(fd.as_raw_fd(), command, pointer) } as i64)?;
                self.copy_out(r.a, &arg[..n])?;
                Reply::value(0)
            }
        }
    }
}

/// If this process has no more descriptors, says so once, and to the program, whose own limit is another one, that the system has none.
fn meet_limit(answer: &mut Answer) {
    static SAID: Once = Once::new();
    if answer.value == Errno::EMFILE.to_ret() {
        answer.value = Errno::ENFILE.to_ret();
        SAID.call_once(|| {
            say!(
                "the host gives the cell no more descriptors: start it with a larger hard limit (ulimit -Hn)"
            );
        });
    }
}

/// Has calls that would make a file longer than this process may (RLIMIT_FSIZE) fail, which is what a cell hears then, and not end the
/// process. To be called before the first, and after it is known which signals the cell's program begins with ignored.
pub(crate) fn survive_long_files() {
    // SAFETY: no handler is involved.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// A directory above a name.
enum Above<'a> {
    /// That of a mount.
    Mount(&'a OwnedFd),
    Opened(OwnedFd),
}

impl AsRawFd for Above<'_> {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Above::Mount(fd) => fd.as_raw_fd(),
            Above::Opened(fd) => fd.as_raw_fd(),
        }
    }
}

/// Waits up to a second for a descriptor; what it is ready for.
fn wait_fd(fd: BorrowedFd, events: i16) -> i16 {
    poll_fd(fd, events, 1000)
}

/// What a descriptor is ready for now.
fn ready_now(fd: BorrowedFd, events: i16) -> i16 {
    poll_fd(fd, events, 0)
}

fn poll_fd(fd: BorrowedFd, events: i16, milliseconds: i32) -> i16 {
    let mut p = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    // SAFETY: one valid entry.
    unsafe { libc::poll(&raw mut p, 1, milliseconds) };
    p.revents
}

/// The host's error as a number.
pub(crate) fn check(ret: i64) -> std::result::Result<i64, Errno> {
    if ret < 0 {
        let e = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        Err(Errno(e as u32))
    } else {
        Ok(ret)
    }
}

/// May files of this one's file system be looked at? Not those of /proc and
/// its kind, which show the host's insides.
///
/// Value: its kind (`statfs(2)`).
pub(crate) fn check_file_system(fd: RawFd) -> std::result::Result<i64, Errno> {
    const INSIDES: [i64; 24] = [
        0x9fa0,      // proc
        0x6265_6572, // sysfs
        0x6367_7270, // cgroup2
        0x27_e0eb,   // cgroup
        0x1cd1,      // devpts
        0x6462_6720, // debugfs
        0x7472_6163, // tracefs
        0x7363_6673, // securityfs
        0xcafe_4a11, // bpf
        0xde5e_81e4, // efivarfs
        0x6165_676c, // pstore
        0x6e73_6673, // nsfs
        0x6265_6570, // configfs
        0x6573_5543, // fusectl
        0x4249_4e4d, // binfmt_misc
        0x1980_0202, // mqueue
        0xf97c_ff8c, // selinuxfs
        0x4341_5d53, // smackfs
        0x5a3c_69f0, // apparmorfs
        0x0765_5821, // resctrl
        0x6759_6969, // rpc_pipefs
        0x6e66_7364, // nfsd
        0xabba_1974, // xenfs
        0x5049_4446, // pidfs
    ];
    // SAFETY: a plain structure for the host to fill.
    let mut s: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    check(unsafe { libc::fstatfs(fd, &raw mut s) } as i64)?;
    if INSIDES.contains(&(s.f_type as i64)) { Err(Errno::EACCES) } else { Ok(s.f_type as i64) }
}

/// Does who writes to this file wait for a copy only, and not for a device, or for somebody else?
fn is_soon_written(fd: BorrowedFd) -> std::result::Result<bool, Errno> {
    const OVERLAY: i64 = 0x794c_7630;
    let flags = rustix::fs::fcntl_getfl(fd).map_err(|_| Errno::EBADF)?;
    let waits = libc::O_DSYNC | libc::O_SYNC | libc::O_DIRECT;
    let kind = check_file_system(fd.as_raw_fd())?;
    let mounted = rustix::fs::fstatvfs(fd).map_err(|_| Errno::EIO)?.f_flag;
    let is_local = LOCAL.contains(&kind) || kind == OVERLAY;
    let is_synchronous = mounted.contains(rustix::fs::StatVfsMountFlags::SYNCHRONOUS);
    Ok(is_local && flags.bits() as i32 & waits == 0 && !is_synchronous)
}

/// Kinds of file systems that only this machine changes.
const LOCAL: [i64; 5] = [
    0xef53,      // ext2, 3 and 4
    0x5846_5342, // xfs
    0x9123_683e, // btrfs
    0xf2f5_2010, // f2fs
    0x0102_1994, // tmpfs
];

/// Has what goes by this name in a directory no extended attributes?
fn is_plain(dir: RawFd, name: &CStr) -> bool {
    // Linux 6.13.
    const SYS_LISTXATTRAT: i64 = 465;
    static OLD: AtomicBool = AtomicBool::new(false);
    // The latter: the file system has none of any kind.
    let is_none = |n| matches!(n, Ok(0) | Err(Errno::EOPNOTSUPP));
    let nothing = std::ptr::null_mut::<libc::c_char>();
    if !OLD.load(Ordering::Relaxed) {
        // SAFETY: a valid name; there is room for nothing, so that the host says how much it would take.
        let n = unsafe {
            libc::syscall(SYS_LISTXATTRAT, dir, name.as_ptr(), libc::AT_SYMLINK_NOFOLLOW, nothing, 0)
        };
        let n = check(n);
        // The latter is what a filter around this process says of a call that it doesn't know.
        if !matches!(n, Err(Errno::ENOSYS | Errno::EPERM)) {
            return is_none(n);
        }
        OLD.store(true, Ordering::Relaxed);
    }
    let path = [format!("/proc/self/fd/{dir}/").as_bytes(), name.to_bytes_with_nul()].concat();
    // SAFETY: as above.
    is_none(check(unsafe { libc::llistxattr(path.as_ptr().cast(), nothing, 0) } as i64))
}

/// The name of a descriptor of this process in /proc, by which what it stands for is reached, also where it is only a path.
fn own_name(fd: RawFd) -> std::result::Result<CString, Errno> {
    CString::new(format!("/proc/self/fd/{fd}")).map_err(|_| Errno::EINVAL)
}

/// Changes the mode of what a descriptor stands for, which may be only a path.
fn change_mode(fd: RawFd, mode: u32) -> std::result::Result<(), Errno> {
    // Linux 6.6.
    const SYS_FCHMODAT2: i64 = 452;
    static OLD: AtomicBool = AtomicBool::new(false);
    if !OLD.load(Ordering::Relaxed) {
        // SAFETY: a valid name.
        let changed = unsafe { libc::syscall(SYS_FCHMODAT2, fd, c"".as_ptr(), mode, libc::AT_EMPTY_PATH) };
        match check(changed) {
            Err(Errno::ENOSYS) => OLD.store(true, Ordering::Relaxed),
            // What a filter around this process says of a call that it doesn't know, too: asked again in the other way.
            Err(Errno::EPERM) => {}
            other => return other.map(drop),
        }
    }
    // By its name in /proc, which is ours.
    let own = own_name(fd)?;
    // SAFETY: a valid name.
    check(unsafe { libc::chmod(own.as_ptr(), mode) } as i64).map(drop)
}

/// Attributes of an open descriptor. Is it where a file system is mounted? The cell mounts its own /proc over the host's.
fn attributes(fd: RawFd) -> std::result::Result<(HostAttr, bool), Errno> {
    attributes_of(fd, c"", libc::AT_EMPTY_PATH)
}

/// The same, or of a name under one. Nothing is mounted for that, as with `stat(2)`.
fn attributes_of(dir: RawFd, name: &CStr, flags: i32) -> std::result::Result<(HostAttr, bool), Errno> {
    let flags = flags | libc::AT_NO_AUTOMOUNT;
    // SAFETY: a plain structure for the host to fill.
    let mut s: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: as above; a valid name.
    let r = unsafe { libc::statx(dir, name.as_ptr(), flags, libc::STATX_BASIC_STATS, &raw mut s) };
    check(r.into())?;
    let attr = HostAttr {
        ino: s.stx_ino,
        dev: libc::makedev(s.stx_dev_major, s.stx_dev_minor),
        size: s.stx_size,
        blocks: s.stx_blocks,
        rdev: libc::makedev(s.stx_rdev_major, s.stx_rdev_minor),
        mode: s.stx_mode.into(),
        nlink: s.stx_nlink,
        uid: s.stx_uid,
        gid: s.stx_gid,
        blksize: s.stx_blksize,
        atime_nsec: s.stx_atime.tv_nsec,
        mtime_nsec: s.stx_mtime.tv_nsec,
        ctime_nsec: s.stx_ctime.tv_nsec,
        atime: s.stx_atime.tv_sec,
        mtime: s.stx_mtime.tv_sec,
        ctime: s.stx_ctime.tv_sec,
    };
    Ok((attr, s.stx_attributes & libc::STATX_ATTR_MOUNT_ROOT as u64 != 0))
}

/// What lies at a path beneath a directory of a mount: its descriptor, only a path, and its attributes. A
/// place where something is mounted may be seen, but nothing in a forbidden file system.
fn look(m: &HostMount, dir: &OwnedFd, path: &CStr) -> std::result::Result<(OwnedFd, HostAttr), Errno> {
    let fd = open_beneath(dir, path, libc::O_PATH | libc::O_NOFOLLOW, 0)?;
    let (attr, is_mount_root) = attributes(fd.as_raw_fd())?;
    if !is_mount_root {
        m.check_file_system(&fd, &attr)?;
    }
    Ok((fd, attr))
}

/// Target of a symbolic link that a descriptor stands for.
fn read_link(fd: &OwnedFd) -> std::result::Result<Vec<u8>, Errno> {
    let mut buf = vec![0u8; libc::PATH_MAX as usize];
    // SAFETY: the buffer has that length.
    let n =
        check(unsafe { libc::readlinkat(fd.as_raw_fd(), c"".as_ptr(), buf.as_mut_ptr().cast(), buf.len()) }
            as i64)?;
    buf.truncate(n as usize);
    Ok(buf)
}

/// Attributes of an open descriptor, or of a name under one.
fn stat(dir: RawFd, name: &CStr, flags: i32) -> std::result::Result<HostAttr, Errno> {
    attributes_of(dir, name, flags).map(|(attr, _)| attr)
}

/// Opens a path beneath a directory, through no symbolic link.
fn open_beneath(dir: &OwnedFd, path: &CStr, flags: i32, mode: u64) -> std::result::Result<OwnedFd, Errno> {
    #[repr(C)]
    struct OpenHow {
        flags: u64,
        mode: u64,
        resolve: u64,
    }
    const NO_MAGICLINKS: u64 = 2;
    const NO_SYMLINKS: u64 = 4;
    const BENEATH: u64 = 8;
    let bytes = path.to_bytes();
    if bytes.len() >= libc::PATH_MAX as usize {
        // In steps that the host takes, each beneath the last.
        let first = &bytes[..libc::PATH_MAX as usize - 1];
        let at = first.iter().rposition(|b| *b == b'/').ok_or(Errno::ENAMETOOLONG)?;
        let name = |bytes: &[u8]| CString::new(bytes).map_err(|_| Errno::EINVAL);
        let next = open_beneath(dir, &name(&bytes[..at])?, libc::O_PATH | libc::O_DIRECTORY, 0)?;
        return open_beneath(&next, &name(&bytes[at + 1..])?, flags, mode);
    }
    let creating = flags & libc::O_CREAT != 0 || flags & libc::O_TMPFILE == libc::O_TMPFILE;
    let how = OpenHow {
        flags: (flags | libc::O_CLOEXEC) as u64,
        mode: if creating { mode } else { 0 },
        // A link as the last component is opened itself with O_PATH | O_NOFOLLOW.
        resolve: NO_MAGICLINKS | BENEATH | NO_SYMLINKS,
    };
    // SAFETY: valid pointers and sizes.
    let fd = check(unsafe {
        libc::syscall(libc::SYS_openat2, dir.as_raw_fd(), path.as_ptr(), &raw const how, size_of::<OpenHow>())
    })?;
    // SAFETY: just opened.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Opens what is there. Looks first, because opening a device can do things;
/// and opens what was looked at, not what has taken its name meanwhile.
fn open_existing(m: &HostMount, path: &CStr, flags: i32) -> std::result::Result<(OwnedFd, HostAttr), Errno> {
    let fd = open_beneath(&m.root, path, libc::O_PATH | libc::O_NOFOLLOW, 0)?;
    let (before, _) = attributes(fd.as_raw_fd())?;
    let kind = before.mode & libc::S_IFMT;
    if flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL {
        return Err(Errno::EEXIST);
    }
    if !matches!(kind, libc::S_IFREG | libc::S_IFDIR) {
        return Err(Errno::EACCES);
    }
    m.check_file_system(&fd, &before)?;
    if flags & libc::O_CREAT != 0 && kind == libc::S_IFDIR {
        return Err(Errno::EISDIR);
    }
    // Somebody has a lease of it (`O_NONBLOCK`), and is told to give it back.
    let leased = |e| if e == Errno::EAGAIN { Errno::EBUSY } else { e };
    let fd = reopen(&fd, flags & !(libc::O_CREAT | libc::O_NOFOLLOW)).map_err(leased)?;
    // Another machine's file system asks for them when a file is opened.
    let same = flags & libc::O_TRUNC == 0 && m.local && m.device == Some(before.dev);
    let attr = if same { before } else { attributes(fd.as_raw_fd())?.0 };
    Ok((fd, attr))
}

/// Opens the file that a path descriptor stands for, by its name in /proc, which is ours.
fn reopen(fd: &OwnedFd, flags: i32) -> std::result::Result<OwnedFd, Errno> {
    let own = own_name(fd.as_raw_fd())?;
    // SAFETY: a valid name; the result is a new descriptor.
    Ok(unsafe {
        OwnedFd::from_raw_fd(check(libc::open(own.as_ptr(), flags | libc::O_CLOEXEC) as i64)? as RawFd)
    })
}

/// So much is copied at once at most: a serving thread is busy with it.
const COPY_MAX: u64 = 64 << 20;

/// Copies bytes from one file at an offset to another one at its own. Value: how many, fewer only at the end of the first, or if what
/// follows can't be copied.
fn copy_range(
    (from, at): (&OwnedFd, u64),
    (to, to_at): (&OwnedFd, u64),
    len: u64,
) -> std::result::Result<u64, Errno> {
    let offset = |n: u64| i64::try_from(n).map_err(|_| Errno::EINVAL);
    let (mut at, mut to_at) = (offset(at)?, offset(to_at)?);
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    loop {
        // SAFETY: two valid offsets.
        let n = unsafe {
            libc::copy_file_range(from.as_raw_fd(), &raw mut at, to.as_raw_fd(), &raw mut to_at, len, 0)
        };
        match check(n as i64) {
            Err(Errno::EINTR) => {}
            done => return done.map(|n| n as u64),
        }
    }
}

fn write_all(
    fd: RawFd,
    mut iov: Vec<libc::iovec>,
    mut offset: i64,
    append: bool,
) -> std::result::Result<u64, Errno> {
    let flags = if append { libc::RWF_APPEND } else { 0 };
    let mut done = 0;
    loop {
        let left: usize = iov.iter().map(|v| v.iov_len).sum();
        if left == 0 {
            return Ok(done);
        }
        // SAFETY: the vectors lie in the cell's memory.
        let n = unsafe { libc::pwritev2(fd, iov.as_ptr(), iov.len() as i32, offset, flags) };
        let mut n = match check(n as i64) {
            Ok(0) => return Ok(done),
            Ok(n) => n as usize,
            Err(Errno::EINTR) => continue,
            Err(e) if done == 0 => return Err(e),
            Err(_) => return Ok(done),
        };
        done += n as u64;
        offset += n as i64;
        while n > 0 {
            let step = n.min(iov[0].iov_len);
            iov[0].iov_base = iov[0].iov_base.wrapping_byte_add(step);
            iov[0].iov_len -= step;
            n -= step;
            if iov[0].iov_len == 0 {
                iov.remove(0);
            }
        }
    }
}

/// Has a file's contents written to its device.
fn sync(fd: RawFd, data_only: bool) -> std::result::Result<(), Errno> {
    // SAFETY: no memory is involved.
    check(unsafe { if data_only { libc::fdatasync(fd) } else { libc::fsync(fd) } } as i64).map(drop)
}

/// Sends a descriptor on a socket; says whether that worked.
fn send_fd(socket: RawFd, fd: RawFd) -> bool {
    let byte = [0u8; 1];
    let mut iov = libc::iovec { iov_base: byte.as_ptr().cast_mut().cast(), iov_len: 1 };
    let mut ctl = [0u64; 4];
    // SAFETY: a plain structure.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = ctl.as_mut_ptr().cast();
    msg.msg_controllen = 24;
    // SAFETY: the control buffer has room for one header and a descriptor.
    unsafe {
        let c = libc::CMSG_FIRSTHDR(&raw const msg);
        (*c).cmsg_level = libc::SOL_SOCKET;
        (*c).cmsg_type = libc::SCM_RIGHTS;
        (*c).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(c).cast::<RawFd>().write_unaligned(fd);
        libc::sendmsg(socket, &raw const msg, libc::MSG_NOSIGNAL) == 1
    }
}

/// What root of a cell can do on the host: files whoever owns them, acting for
/// other users, low ports. CAP_CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER,
/// FSETID, SETGID, SETUID, NET_BIND_SERVICE, LEASE, SETFCAP: whose file may be set-user-ID
/// and root's may have capabilities as well.
const ROOT_CAPABILITIES: u32 =
    1 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 10 | 1 << 28 | 1 << 31;

/// Sets this thread's capabilities (the first 32): those that are permitted and effective.
fn set_capabilities(permitted: u32, effective: u32) {
    let header: [u32; 2] = [0x2008_0522, 0];
    let sets = [effective, permitted, 0, 0, 0, 0];
    // SAFETY: a valid header and two sets of three words.
    unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) };
}

/// Gives up all capabilities of this thread but these, as far as it has them. Value: what it has now.
fn keep_capabilities(kept: u32) -> u32 {
    let header: [u32; 2] = [0x2008_0522, 0];
    let mut now = [0u32; 6];
    // SAFETY: a valid header and room for two sets of three words.
    if unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), now.as_mut_ptr()) } != 0 {
        return 0;
    }
    let [effective, permitted, ..] = now;
    set_capabilities(permitted & kept, effective & kept);
    permitted & kept
}

/// Sets this thread's effective user and group. The real and the saved ones, by which others may send it signals, stay.
fn set_effective(uid: u32, gid: u32) -> std::result::Result<(), Errno> {
    const SAME: u32 = u32::MAX;
    // SAFETY: changes this thread's ids.
    let set_user = || check(unsafe { libc::syscall(libc::SYS_setresuid, SAME, uid, SAME) });
    // SAFETY: as above.
    let set_group = || check(unsafe { libc::syscall(libc::SYS_setresgid, SAME, gid, SAME) });
    // Root's comes first, and goes last.
    if uid == 0 {
        set_user()?;
        set_group()?;
    } else {
        set_group()?;
        set_user()?;
    }
    Ok(())
}

/// Whom this thread acts for on the host's file systems.
pub(crate) struct Identity {
    root: bool,
    /// The capabilities that it has, of the first 32.
    capabilities: u32,
    now: (u32, u32),
    /// This thread's mask of its own, or that it can't have one.
    mask: Option<std::result::Result<u32, ()>>,
}

impl Identity {
    /// Of a new thread: with the rights on files that its requests can need and no others. `groups`: the user's further ones.
    fn new(root: bool, user: Option<(u32, u32)>, groups: &[u32]) -> Self {
        let mut identity = Identity { root, capabilities: 0, now: (0, 0), mask: None };
        if root {
            // Root's own further groups are nobody's in a cell, where who has which is looked after. For this thread only.
            let groups = if user.is_some() { groups } else { &[] };
            // SAFETY: a list of that length.
            unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
            // A serving thread that starts another one may be acting for somebody else just then, which is passed on.
            if let Some((uid, gid)) = user {
                // Not as root before: without the right to there would be no way back.
                identity.act_for(uid, gid);
                // Also for services that ask whose a Unix socket is. Where it fails they are told that it is root's, whose this process is.
                let _ = set_effective(uid, gid);
                identity.root = false;
                keep_capabilities(0);
            } else {
                identity.act_for(0, 0);
                identity.capabilities = keep_capabilities(ROOT_CAPABILITIES);
            }
        }
        identity
    }

    fn become_user(&mut self, uid: u32, gid: u32) {
        if !self.root || self.now == (uid, gid) {
            return;
        }
        self.act_for(uid, gid);
        if uid != 0 {
            // What is made belongs to that user. What it may do was decided in the cell, which knows its groups and capabilities;
            // a cell that lies about that could as well say that it is root.
            set_capabilities(self.capabilities, self.capabilities);
        }
    }

    /// The mode to make something with, of what a request says ([`Op::mode_argument`]): the host takes away what the mask has, which is
    /// this thread's from now on. Where a thread can't have its own, it is taken away here, whatever a default ACL says.
    fn mode(&mut self, asked: u64) -> u32 {
        let (mode, mask) = (asked as u32 & 0xffff, (asked >> UMASK_SHIFT) as u32 & 0o777);
        // SAFETY: what it shares of its kind with other threads is a directory, and that mask. Whoever shares them with another that
        // has its own has the directory in which that one is just then; from now on this thread's is the root.
        let own = *self.mask.get_or_insert_with(|| unsafe {
            match libc::unshare(libc::CLONE_FS) {
                // Which one that is depends on who started the thread.
                0 if libc::chdir(c"/".as_ptr()) == 0 => Ok(u32::MAX),
                _ => Err(()),
            }
        });
        let Ok(now) = own else { return mode & !mask };
        if now != mask {
            // SAFETY: changes this thread's mask.
            unsafe { libc::umask(mask) };
            self.mask = Some(Ok(mask));
        }
        mode
    }

    /// Has this thread a working directory that is no other thread's? It is the root, but for a moment.
    fn has_own_directory(&self) -> bool {
        matches!(self.mask, Some(Ok(_)))
    }

    /// Calls `f` as this user also in the eyes of who asks whose a Unix socket is, and is told the effective ids (SO_PEERCRED, unix(7)).
    fn as_peer<R>(
        &mut self,
        uid: u32,
        gid: u32,
        f: impl FnOnce() -> std::result::Result<R, Errno>,
    ) -> std::result::Result<R, Errno> {
        // Whoever can't act for others is its user in this respect, too.
        if !self.root || (uid, gid) == (0, 0) {
            return f();
        }
        let done = set_effective(uid, gid).and_then(|()| {
            // What it may do was decided in the cell.
            set_capabilities(self.capabilities, self.capabilities);
            f()
        });
        let back = set_effective(0, 0);
        set_capabilities(self.capabilities, self.capabilities);
        // The ids for files have followed.
        self.act_for(0, 0);
        back.and(done)
    }

    fn act_for(&mut self, uid: u32, gid: u32) {
        // SAFETY: changes this thread's credentials for file access.
        unsafe {
            libc::syscall(libc::SYS_setfsgid, gid);
            libc::syscall(libc::SYS_setfsuid, uid);
        }
        self.now = (uid, gid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many descriptors this process may have, some are its own.
    #[test]
    fn descriptors_are_left() {
        for (limit, own, most) in [
            (Some(400), 4, 296),
            (Some(1024), 20, 748),
            (Some(1 << 30), 20, HANDLES_MAX),
            (Some(16), 20, 0),
            (Some(0), 0, 0),
            (None, 20, HANDLES_MAX),
        ] {
            assert_eq!(handles(limit, own), most, "{limit:?}");
        }
    }
}
