//! Starting a cell: its files, its first process, its serving threads.
#![allow(unsafe_code, reason = "forks, maps at fixed addresses and jumps into the runtime")]

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use atoll_abi::control::{ABI_VERSION, BOOT_MAX, BootConfig, Control, GONE, MAGIC, SAID};
use atoll_abi::counter::Count;
use atoll_abi::grid::GridConfig;
use atoll_abi::layout::{
    BLOCK, CONTROL, DIRECT_MAP, HOST_THREAD_SIZE, HOST_THREADS, MAX_CORES, PAGE, RUNTIME_BASE, Sizes,
    table_blocks,
};
use atoll_abi::start::{FILTER_MAX, START, Start};

use rustix::thread::{CapabilitySet, capabilities};

use crate::cores::{Counts, Cpus};
use crate::extents::Extents;
use crate::filter::Program;
use crate::growth::Elastic;
use crate::image::Image;
use crate::inspect::{Here, Live};
use crate::memory::{self, Mapping, check};
use crate::placement::Placement;
use crate::serve::{HostMount, Served, Server, Streams, survive_long_files};
use crate::sockets::{Policy, own_network};
use crate::symbols::Symbols;
use crate::{Error, Result, confine, printable, vdso};

/// What a cell is to be.
pub struct CellConfig {
    /// The runtime's ELF file.
    pub runtime: File,
    /// Cores: the most that it can have.
    pub cores: usize,
    /// How many it begins with.
    pub online: usize,
    /// CPU of each core, if they are to be pinned.
    pub cpus: Option<Placement>,
    /// CPUs that it may use.
    pub allowed: Vec<usize>,
    /// Bytes of memory, multiples of 2 MiB.
    pub memory: Sizes,
    /// Set if it takes more by itself, up to the most: how much of the host's memory it leaves alone, bytes.
    pub host_reserve: Option<u64>,
    /// What runs, and how the world looks to it.
    pub boot: BootConfig,
    /// The host directories that the boot configuration's mounts refer to by number.
    pub mounts: Vec<HostMount>,
    /// Standard streams.
    pub streams: Streams,
    /// What it may do on the network.
    pub network: Policy,
    /// What its books count beside time.
    pub count: Option<Count>,
    /// Where rewriting plans are kept for the next time.
    pub plan_cache: Option<std::path::PathBuf>,
    /// Confine the cell. False only to debug Atoll itself.
    pub confined: bool,
}

/// What a cell went without.
#[derive(Clone, Copy, Debug, Default)]
pub struct Without {
    /// Huge pages.
    pub huge_pages: bool,
    /// Own namespaces.
    pub namespaces: bool,
    /// A network of its own that has a loopback.
    pub loopback: bool,
    /// A processor for each core, to which it is pinned.
    pub processors: bool,
}

/// Longest line of a cell's log, bytes.
const LINE_MAX: usize = 1024;

/// Lines of a cell's log in which names are looked up: its runtime crashes once, and says so in two.
const REPORT: usize = 4;
/// How long is waited for the end of a cell's log when its first process is gone: what it has said is there by then.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long a cell lives before more is done for it than it takes to run it: most live no longer than a command.
static SETTLED: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// A running cell.
pub struct Cell {
    control: Arc<Mapping>,
    extents: Arc<Extents>,
    cores: usize,
    online: u32,
    cpus: Option<Placement>,
    allowed: Vec<usize>,
    elastic: Option<u64>,
    program: String,
    grid: GridConfig,
    child: i32,
    /// The same process, and never another one.
    first: Arc<OwnedFd>,
    /// What the host did not give.
    pub without: Without,
    log: Option<std::thread::JoinHandle<()>>,
    /// Its first process is gone. Not in the control area, where the cell could change it.
    gone: Arc<AtomicBool>,
    /// Serves it.
    pub server: Arc<Server>,
}

/// Prints the lines of a cell's log until all who can write to it are gone, with names for a crash's addresses; tells
/// [`Cell::wait`] of the end of the cell's first process, which may have come without a word. Soon after that it is over in any case.
fn relay(mut log: File, symbols: &Symbols, first: &OwnedFd, control: &Mapping, gone: &AtomicBool) {
    let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut fds = [entry(log.as_raw_fd()), entry(first.as_raw_fd())];
    let (mut chunk, mut text) = ([0; LINE_MAX], Vec::new());
    let mut until = None;
    let left = |until: &Option<Instant>| until.map(|until| until.saturating_duration_since(Instant::now()));
    while fds.iter().any(|f| f.fd >= 0) {
        let wait = left(&until).map_or(-1, |left| left.as_millis() as i32);
        // SAFETY: valid entries.
        unsafe { libc::poll(fds.as_mut_ptr(), 2, wait) };
        if fds[1].revents != 0 {
            // SAFETY: the mapping holds one, of atomics only.
            let ended = unsafe { &(*control.base().cast::<Control>()).life.ended };
            gone.store(true, Ordering::Release);
            // Nothing changes if the cell has said it itself.
            let _ = ended.compare_exchange(0, GONE, Ordering::SeqCst, Ordering::Relaxed);
            // SAFETY: the word lives in the mapping.
            unsafe { libc::syscall(libc::SYS_futex, ended.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
            fds[1].fd = -1;
            until = Some(Instant::now() + LAST_WORDS);
        }
        // A cell may have left the other end where nobody closes it, or go on writing.
        let is_late = left(&until).is_some_and(|left| left.is_zero());
        if is_late || fds[0].revents != 0 {
            let n = if is_late { 0 } else { log.read(&mut chunk).unwrap_or(0) };
            text.extend_from_slice(&chunk[..n]);
            if n == 0 {
                fds[0].fd = -1;
            }
            let mut lines = text.split_inclusive(|b| *b == b'\n').peekable();
            let mut said = 0;
            while let Some(line) = lines.next() {
                // The last one may go on.
                if n == 0 || lines.peek().is_some() || line.ends_with(b"\n") || line.len() >= LINE_MAX {
                    let shown = printable(line.strip_suffix(b"\n").unwrap_or(line));
                    crate::say!("atoll: {shown}");
                    symbols.names(&shown).iter().for_each(|name| crate::say!("atoll: {name}"));
                    said += line.len();
                }
            }
            text.drain(..said);
        }
    }
}

/// Two ends of a socket, the first only to send by: nobody here takes what the other sends, and descriptors in it would stay open.
fn pair() -> std::io::Result<[OwnedFd; 2]> {
    let mut fds = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: room for two descriptors.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) } as i64)?;
    // SAFETY: just opened.
    let [ours, theirs] = unsafe { [OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])] };
    rustix::net::shutdown(&ours, rustix::net::Shutdown::Read)?;
    Ok([ours, theirs])
}

/// Has this process these capabilities?
fn may(do_that: CapabilitySet) -> bool {
    capabilities(None).is_ok_and(|has| has.effective.contains(do_that))
}

/// Makes an ordinary user root of a namespace of its own, so that the rest is possible.
fn own_user_namespace() -> bool {
    // SAFETY: reads ids; unshare affects this single-threaded process only.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    // SAFETY: as above.
    if unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) } != 0 {
        return false;
    }
    std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1")).is_ok()
        && std::fs::write("/proc/self/setgroups", "deny").is_ok()
        && std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1")).is_ok()
}

/// Bit of AT_HWCAP2: programs may use `wrgsbase` and its family.
const HWCAP2_FSGSBASE: u64 = 1 << 1;

/// Starts a cell. To be called while this process has one thread: it forks.
pub fn launch(mut config: CellConfig) -> Result<Cell> {
    // SAFETY: reads the auxiliary vector.
    if unsafe { libc::getauxval(libc::AT_HWCAP2) } & HWCAP2_FSGSBASE == 0 {
        return Err(Error::new(
            "this host does not let programs set their segment bases (FSGSBASE): \
             Linux 5.9 or later is needed, on a processor of 2012 or later",
        ));
    }
    let image = Image::read(&config.runtime)?;
    let (vdso, functions) = vdso::find()?;
    if config.cores == 0 || config.cores > MAX_CORES {
        return Err(Error::new(format!("a cell has 1 to {MAX_CORES} cores, not {}", config.cores)));
    }
    // The cell's processes begin with it, too: what programs see of signals is the runtime's.
    survive_long_files();
    let mut without = Without { processors: config.cpus.is_none(), ..Without::default() };
    // SAFETY: reads an id.
    let root = unsafe { libc::geteuid() } == 0;
    if root && !may(CapabilitySet::SETUID | CapabilitySet::SETGID) {
        return Err(Error::new(
            "root has no CAP_SETUID or no CAP_SETGID here, without which a cell would stay root: give its container both, or start it as an \
             ordinary user",
        ));
    }
    // In a container root often may not make namespaces.
    let mut privileged = if root { may(CapabilitySet::SYS_ADMIN) } else { own_user_namespace() };
    if config.network == Policy::None {
        if privileged && own_network().is_ok() {
            config.network = Policy::Loopback;
        } else {
            without.loopback = true;
        }
    }
    config.boot.host_network = config.network != Policy::None;

    let control_len = (size_of::<Control>() as u64).next_multiple_of(PAGE);
    let failed = |what: &'static str| move |e: std::io::Error| Error::with(what, e);
    let control_file = memory::anonymous("atoll control", control_len + image.data_len)
        .map_err(failed("no memory file for the control area"))?;
    let control = Mapping::new(&control_file, control_len + image.data_len).map_err(failed("mapping it"))?;
    // SAFETY: so much of the mapping lies behind the control area, is zero, and is nobody else's yet.
    image.place(unsafe {
        std::slice::from_raw_parts_mut(control.base().add(control_len as usize), image.data_len as usize)
    })?;
    let Sizes { now, most, .. } = config.memory;
    let (extents, mount) = memory::extents(now, most)?;
    let huge = mount.is_some();
    without.huge_pages = !huge;
    let extents_map =
        Mapping::of_extents(&extents, now, most).map_err(failed("mapping the cell's memory"))?;
    if let Some(placement) = &config.cpus {
        placement.bring_near(&extents_map, most);
    }

    // SAFETY: the mapping is zeroed and large enough; zeroes are a valid control area.
    let c = unsafe { &*control.base().cast::<Control>() };
    let d = &c.descriptor;
    d.magic.store(MAGIC, Ordering::Relaxed);
    d.version.store(ABI_VERSION, Ordering::Relaxed);
    d.cores.store(config.cores as u32, Ordering::Relaxed);
    d.online.store(config.online.clamp(1, config.cores) as u32, Ordering::Relaxed);
    // Until it is known.
    d.machine_cores.store(1, Ordering::Relaxed);
    d.set_memory_sizes(config.memory);
    let may_ask = config.host_reserve.is_some() && config.memory.most > config.memory.now;
    c.growth.may_ask.store(may_ask.into(), Ordering::Relaxed);
    d.huge.store(huge as u32, Ordering::Relaxed);
    c.grid.counts.store(config.count.map_or(0, Count::word), Ordering::Relaxed);
    d.zeroed.store(1, Ordering::Relaxed);
    let boot =
        postcard::to_stdvec(&config.boot).map_err(|e| Error::with("encoding the boot configuration", e))?;
    if boot.len() > BOOT_MAX {
        return Err(Error::new("the program's arguments and environment are longer than 4 MiB"));
    }
    for (to, from) in c.boot.iter().zip(&boot) {
        to.store(*from, Ordering::Relaxed);
    }
    d.boot_len.store(boot.len() as u32, Ordering::Relaxed);

    // Descriptors of the cell. They keep their numbers in the child.
    let mut keep: Vec<OwnedFd> = Vec::new();
    let mut bells = Vec::new();
    let mut sockets = Vec::new();
    for core in 0..config.cores {
        // SAFETY: no memory is involved; new descriptors.
        let (epoll, events, bell) = unsafe {
            (
                check(libc::epoll_create1(libc::EPOLL_CLOEXEC) as i64),
                check(libc::epoll_create1(libc::EPOLL_CLOEXEC) as i64),
                check(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) as i64),
            )
        };
        let (epoll, events) = (epoll.map_err(failed("epoll"))?, events.map_err(failed("epoll"))?);
        let bell = bell.map_err(failed("eventfd"))?;
        // SAFETY: just opened.
        let [epoll, events, bell] =
            [epoll, events, bell].map(|fd| unsafe { OwnedFd::from_raw_fd(fd as i32) });
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 0 };
        // SAFETY: a valid event.
        check(unsafe {
            libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, bell.as_raw_fd(), &raw mut event)
        } as i64)
        .map_err(failed("epoll"))?;
        // Nothing is told before a core asks for it.
        let mut event = libc::epoll_event { events: libc::EPOLLONESHOT as u32, u64: core as u64 };
        // SAFETY: a valid event.
        check(unsafe {
            libc::epoll_ctl(events.as_raw_fd(), libc::EPOLL_CTL_ADD, epoll.as_raw_fd(), &raw mut event)
        } as i64)
        .map_err(failed("epoll"))?;
        let [ours, theirs] = pair().map_err(failed("socketpair"))?;
        d.epoll_fd[core].store(epoll.as_raw_fd(), Ordering::Relaxed);
        d.events_fd[core].store(events.as_raw_fd(), Ordering::Relaxed);
        d.bell_fd[core].store(bell.as_raw_fd(), Ordering::Relaxed);
        d.socket_fd[core].store(theirs.as_raw_fd(), Ordering::Relaxed);
        let cpu = config.cpus.as_ref().and_then(|p| p.cpus.get(core)).map_or(-1, |c| *c as i32);
        d.cpu[core].store(cpu, Ordering::Relaxed);
        bells.push(bell.try_clone().map_err(failed("eventfd"))?);
        sockets.push(ours);
        keep.extend([epoll, events, bell, theirs]);
    }
    let (log_read, log_write) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|e| failed("pipe")(e.into()))?;
    // A cell that logs faster than we read loses lines, not time.
    rustix::fs::fcntl_setfl(&log_write, rustix::fs::OFlags::NONBLOCK)
        .map_err(|e| failed("pipe")(e.into()))?;
    let log = log_write.as_raw_fd();
    d.log_fd.store(log, Ordering::Relaxed);
    keep.push(log_write);
    let memory_fd = OwnedFd::from(extents.try_clone().map_err(failed("dup"))?);
    let memory_number = memory_fd.as_raw_fd();
    d.memory_fd.store(memory_number, Ordering::Relaxed);
    keep.push(memory_fd);
    let (filter, starting) = if config.confined {
        (confine::filter(memory_number)?, Some(confine::starting_filter(memory_number)?))
    } else {
        (Vec::new(), None)
    };
    if filter.len() > FILTER_MAX {
        return Err(Error::new("the system-call filter is too long"));
    }

    let mut child = First {
        image: &image,
        control_file: &control_file,
        control_len,
        memory: most,
        keep: &keep,
        cores: config.cores,
        filter: &filter,
        starting: starting.as_ref(),
        vdso,
        functions,
        mount: mount.as_ref().filter(|_| privileged),
        cpus: config.cpus.as_ref().map(|p| &p.cpus[..]),
        counter: config.count.map_or([0; 8], Count::attributes),
        descriptors: descriptors().min(i32::MAX as u64) as u32,
        privileged,
        log,
    };
    let mut first = -1;
    let mut begin = |namespaces: i32| {
        let flags = namespaces | libc::SIGCHLD | libc::CLONE_PIDFD;
        // SAFETY: like fork, in a process with one thread; the child runs `First::run` and nothing else.
        check(unsafe { libc::syscall(libc::SYS_clone, flags, 0, &raw mut first, 0, 0) })
    };
    let namespaces = libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWNS;
    let begun = match begin(if privileged { namespaces } else { 0 }) {
        // Who may by his capabilities is refused in a container by its filter of system calls, or there are as many as may be
        // (`max_pid_namespaces`).
        Err(e) if privileged && matches!(e.raw_os_error(), Some(libc::EPERM | libc::ENOSPC)) => {
            privileged = false;
            (child.privileged, child.mount) = (false, None);
            begin(0)
        }
        begun => begun,
    };
    without.namespaces = !privileged;
    let pid = begun.map_err(failed("starting the cell's first process"))?;
    if pid == 0 {
        let e = child.run();
        child.say(&e.to_string());
        // SAFETY: ends the child.
        unsafe { libc::_exit(125) };
    }
    // SAFETY: a new descriptor, closed on exec.
    let first = Arc::new(unsafe { OwnedFd::from_raw_fd(first) });
    if let Some(placement) = &config.cpus {
        begin_elsewhere(pid as i32, &placement.cpus);
    }
    drop(keep);
    // The first process has it, too, and sees to it that it isn't the last one that keeps the file system mounted.
    drop(mount);
    room_for_descriptors(extents.as_fd());
    let control = Arc::new(control);
    let extents = Arc::new(Extents {
        control: control.clone(),
        memory: Arc::new(extents_map),
        file: extents,
        sizes: config.memory,
        cores: config.cores as u64,
        is_huge: huge,
        ahead: Mutex::new(false),
    });
    if huge {
        // Zeroing these now, beside what the cell's first process has to do, saves it the time.
        for block in [0, table_blocks(most, config.cores as u64)] {
            if let Some(p) = extents.memory.range(block * BLOCK, 1) {
                // SAFETY: in the mapping; makes the page and changes nothing. Failure costs time only.
                unsafe { libc::madvise(p.cast(), PAGE as usize, libc::MADV_POPULATE_WRITE) };
            }
        }
    }
    // Asks for the limits of control groups, too, which takes a while: beside what the cell's first process has to do.
    let machine = std::thread::available_parallelism().map_or(1, |n| n.get());
    d.machine_cores.store(machine as u32, Ordering::Relaxed);
    let served = Served {
        mounts: config.mounts,
        streams: config.streams,
        user: (config.boot.uid, config.boot.gid),
        groups: config.boot.groups.clone(),
        network: config.network,
        plan_cache: config.plan_cache,
        first_handle: 1,
        bells,
        sockets,
    };
    let server = Server::start(control.clone(), extents.memory.clone(), served, machine)?;
    let gone = Arc::new(AtomicBool::new(false));
    let log = {
        let (control, first, gone) = (control.clone(), first.clone(), gone.clone());
        let symbols = Symbols::new(image.file, REPORT);
        let work = move || relay(File::from(log_read), &symbols, &first, &control, &gone);
        std::thread::Builder::new()
            .name("atoll-log".into())
            .spawn(work)
            .map_err(|e| Error::with("starting a thread for what the cell says", e))?
    };
    Ok(Cell {
        control,
        extents,
        cores: config.cores,
        online: config.online as u32,
        cpus: config.cpus,
        allowed: config.allowed,
        elastic: config.host_reserve,
        program: printable(&config.boot.program),
        grid: config.boot.grid,
        child: pid as i32,
        first,
        without,
        log: Some(log),
        gone,
        server,
    })
}

/// How many descriptors this process may have.
fn descriptors() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(i32::MAX as u64)
}

/// Has the host make the table of this process's descriptors larger, while it has one thread. Later the thread that needs the next
/// number would wait some 10 ms for that, each time that the table is full: for all processors, if others share the table
/// (`expand_fdtable`).
fn room_for_descriptors(any: BorrowedFd) {
    const ROOM: u64 = 4096;
    let limit = descriptors();
    // The highest, for a moment. Without it, it is only slower.
    let _ = rustix::io::fcntl_dupfd_cloexec(any, limit.min(ROOM).saturating_sub(1) as i32);
}

/// Takes this process away from what is in the terminal's foreground: the signals for that are for the supervisor, which passes them on. Not
/// to a session of its own: the host would schedule that against this one as a whole (autogroups, sched(7)), so that what is nicer here
/// would go before it, and a core that is seldom busy would wait for seconds. May be called between fork and exec.
pub fn leave_foreground() {
    // SAFETY: plain system calls.
    unsafe {
        libc::setpgid(0, 0);
        // Nor is it stopped if it says something there (`stty tostop`).
        libc::signal(libc::SIGTTOU, libc::SIG_IGN);
    }
}

/// Has a new process begin on a processor of `cpus` that this one doesn't need. The host often leaves it behind its parent, although others
/// are idle (three of four times, measured in a VM; why is not known). Where it goes then is not restricted.
fn begin_elsewhere(process: i32, cpus: &[usize]) {
    use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_getcpu, sched_setaffinity};
    let Ok(all) = sched_getaffinity(None) else { return };
    let (here, mut others) = (sched_getcpu(), CpuSet::new());
    for cpu in cpus.iter().filter(|cpu| **cpu != here && **cpu < CpuSet::MAX_CPU) {
        others.set(*cpu);
    }
    if others.count() > 0 && sched_setaffinity(Pid::from_raw(process), &others).is_ok() {
        // If it fails (it may have become somebody else by now), only the first process stays there: cores are pinned anyway.
        let _ = sched_setaffinity(Pid::from_raw(process), &all);
    }
}

/// Sends a signal to a process, if it is still there.
fn send(process: &OwnedFd, signal: i32) {
    // SAFETY: no memory is involved.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), signal, 0, 0) };
}

impl Cell {
    /// The control area.
    pub fn control(&self) -> &Control {
        // SAFETY: the mapping holds one, of atomics only.
        unsafe { &*self.control.base().cast::<Control>() }
    }

    /// Waits until the cell ends; its wait status. Calls `settled` if it lives for a tenth of a second.
    pub fn wait(&mut self, settled: impl FnOnce()) -> i32 {
        let mut settled = Some(settled);
        let control = self.control.clone();
        // SAFETY: the mapping holds one, of atomics only.
        let ended = unsafe { &(*control.base().cast::<Control>()).life.ended };
        while ended.load(Ordering::Acquire) == 0 && !self.gone.load(Ordering::Acquire) {
            let wait = if settled.is_some() { &raw const SETTLED } else { std::ptr::null() };
            // SAFETY: the word lives in the mapping.
            let r = unsafe { libc::syscall(libc::SYS_futex, ended.as_ptr(), libc::FUTEX_WAIT, 0, wait) };
            if r != 0
                && std::io::Error::last_os_error().raw_os_error() == Some(libc::ETIMEDOUT)
                && let Some(settled) = settled.take()
            {
                self.extents.make_ready();
                settled();
            }
        }
        self.kill();
        let mut status = 0;
        // SAFETY: our own child.
        unsafe { libc::waitpid(self.child, &raw mut status, 0) };
        if let Some(log) = self.log.take() {
            // All writers are gone, so the reader comes to its end; if they are not, it does so soon.
            let _ = log.join();
        }
        let life = &self.control().life;
        if life.ended.load(Ordering::Acquire) == SAID {
            life.status.load(Ordering::Relaxed)
        } else {
            // It died without a word.
            if libc::WIFSIGNALED(status) { libc::WTERMSIG(status) } else { 125 << 8 }
        }
    }

    /// Ends the cell by force.
    pub fn kill(&self) {
        send(&self.first, libc::SIGKILL);
    }

    /// Something that passes signals to the cell's program, for another thread.
    pub fn sender(&self) -> Sender {
        Sender { control: self.control.clone(), first: self.first.clone(), server: self.server.clone() }
    }

    /// What it takes to look at the cell, for other threads.
    pub fn live(&self) -> Arc<Live> {
        let base = self.extents.sizes.now;
        let here = Here {
            extents: self.extents.clone(),
            sender: self.sender(),
            first: self.child,
            elastic: self.elastic.map(|reserve| Elastic::new(base, reserve, Counts::new(self.online))),
            cpus: self.cpus(),
        };
        Arc::new(Live::new(here, self.cores, self.program.clone(), self.grid.clone()))
    }

    /// Where its cores run.
    fn cpus(&self) -> Cpus {
        match &self.cpus {
            Some(placement) => Cpus::Pinned(placement.cpus.clone()),
            None => Cpus::Any(self.allowed.clone()),
        }
    }

    /// Bytes of host memory behind the cell's memory now.
    pub fn memory_used(&self) -> u64 {
        self.extents.used()
    }

    /// The cell's memory.
    pub fn memory(&self) -> &Mapping {
        &self.extents.memory
    }

    /// The host's id of the cell's first process.
    pub fn pid(&self) -> i32 {
        self.child
    }
}

/// Passes signals to a cell's program.
pub struct Sender {
    control: Arc<Mapping>,
    first: Arc<OwnedFd>,
    server: Arc<Server>,
}

impl Sender {
    /// Passes a signal.
    pub fn signal(&self, signal: i32) {
        self.server.settle();
        // SAFETY: the mapping holds a control area, of atomics only.
        let control = unsafe { &*self.control.base().cast::<Control>() };
        let bit = |signal: i32| 1u64 << (signal - 1);
        // What continues takes back what would stop and was not looked at yet: of two that are looked at together, it is the first (signal(7)).
        if signal == libc::SIGCONT {
            let stops = bit(libc::SIGTSTP) | bit(libc::SIGTTIN) | bit(libc::SIGTTOU);
            control.mailbox.signals.fetch_and(!stops, Ordering::SeqCst);
        }
        control.mailbox.signals.fetch_or(bit(signal), Ordering::SeqCst);
        self.ring();
    }

    /// Has the cell look at what was left for it in the control area.
    pub(crate) fn ring(&self) {
        // The cell's first process interrupts the cell's first core. One that is about to sleep
        // would not notice: it looks at the mailbox for the last time before.
        send(&self.first, libc::SIGURG);
        self.server.wake(0);
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What the cell's first process needs.
struct First<'a> {
    image: &'a Image,
    control_file: &'a File,
    control_len: u64,
    memory: u64,
    keep: &'a [OwnedFd],
    cores: usize,
    filter: &'a [libc::sock_filter],
    /// The filter of this process; None: the cell is not confined.
    starting: Option<&'a Program>,
    vdso: [[u64; 2]; 4],
    functions: [u64; 3],
    /// What keeps the file system of the cell's memory mounted.
    mount: Option<&'a OwnedFd>,
    cpus: Option<&'a [usize]>,
    counter: [u64; 8],
    /// How many descriptors the cell can have.
    descriptors: u32,
    privileged: bool,
    /// Where it says what is wrong.
    log: RawFd,
}

impl First<'_> {
    /// Becomes the cell's first process. Returns only if that fails.
    fn run(&self) -> Error {
        match self.prepare() {
            // SAFETY: the runtime is mapped as its entry expects.
            Ok(entry) => unsafe { std::arch::asm!("jmp {}", in(reg) entry, options(noreturn)) },
            Err(e) => e,
        }
    }

    /// Says something where what the cell says goes: this process's own descriptors are closed.
    fn say(&self, what: &str) {
        let line = format!("{what}\n");
        // SAFETY: a valid buffer. Who can't be told isn't.
        unsafe { libc::write(self.log, line.as_ptr().cast(), line.len()) };
    }

    fn prepare(&self) -> Result<u64> {
        let failed = |what: &'static str| move |e: std::io::Error| Error::with(what, e);
        leave_foreground();
        self.map(RUNTIME_BASE)?;
        self.close_others();
        if let Some(kept) = self.keep.last() {
            room_for_descriptors(kept.as_fd());
        }
        let leaving = Leaving::new();
        if self.privileged {
            match empty_root(self.mount, leaving) {
                // A container may have the right to make namespaces, and be kept from mounting all the same.
                Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::EACCES)) => {
                    self.say(
                        "this host does not allow an empty root directory (mount(2)): the cell runs without",
                    );
                }
                done => done.map_err(failed("an empty root directory for the cell"))?,
            }
        }
        if self.starting.is_some() {
            confine::landlock();
            confine::drop_privileges().map_err(failed("giving up privileges"))?;
        }
        // After the change of identity, which clears it.
        // SAFETY: no memory is involved.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        forget_rseq();
        if let Some(filter) = self.starting {
            confine::limit_memory(self.cores).map_err(failed("limiting the cell's private memory"))?;
            confine::lock_in(filter)?;
        }
        leaving.wait().map_err(failed("leaving the host's directories"))?;
        Ok(self.image.entry)
    }

    /// Maps the runtime, the control area, the cell's memory, and this process's own areas.
    fn map(&self, base: u64) -> Result<()> {
        let at = |addr: u64, len: u64, prot: i32, flags: i32, fd: i32, offset: u64| {
            let flags = flags | libc::MAP_FIXED_NOREPLACE;
            // SAFETY: new mappings, in the runtime's region only.
            let r = unsafe { libc::mmap(addr as *mut _, len as usize, prot, flags, fd, offset as i64) };
            if r as u64 == addr {
                Ok(())
            } else {
                Err(Error::host(format!("mapping the runtime at {addr:#x}")))
            }
        };
        let (read, write, exec) = (libc::PROT_READ, libc::PROT_WRITE, libc::PROT_EXEC);
        for run in &self.image.runs {
            let prot = if run.code { read | exec } else { read };
            let file = self.image.file.as_raw_fd();
            at(base + run.start, run.len, prot, libc::MAP_PRIVATE, file, run.offset)?;
        }
        let control = self.control_file.as_raw_fd();
        at(CONTROL, self.control_len, read | write, libc::MAP_SHARED, control, 0)?;
        // What only relocation writes to is each process's own: no process of the cell can
        // change the pointers that another one, which is less confined, jumps through.
        let (data, constant) = (base + self.image.data_start, self.image.constant);
        if constant > 0 {
            at(data, constant, read, libc::MAP_PRIVATE, control, self.control_len)?;
        }
        at(
            data + constant,
            self.image.data_len - constant,
            read | write,
            libc::MAP_SHARED,
            control,
            self.control_len + constant,
        )?;
        let extents = self.keep.last().map_or(-1, |fd| fd.as_raw_fd());
        let shared = libc::MAP_SHARED | libc::MAP_NORESERVE;
        at(DIRECT_MAP, self.memory, read | write, shared, extents, 0)?;
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        at(HOST_THREADS, self.cores as u64 * HOST_THREAD_SIZE, read | write, private, -1, 0)?;
        let len = (size_of::<Start>() as u64).next_multiple_of(PAGE);
        at(START, len, read | write, private, -1, 0)?;
        // SAFETY: just mapped, zeroed, which is a valid Start.
        let start = unsafe { &mut *(START as *mut Start) };
        start.cores = self.cores as u32;
        start.filter_len = self.filter.len() as u32;
        start.vdso = self.vdso;
        start.vdso_functions = self.functions;
        start.counter = self.counter;
        start.counter_most = self.descriptors / 2;
        for (n, cpu) in start.cpu.iter_mut().enumerate() {
            *cpu = self.cpus.and_then(|c| c.get(n)).map_or(-1, |c| *c as i32);
        }
        for (to, from) in start.filter.iter_mut().zip(self.filter) {
            *to = u64::from(from.code)
                | u64::from(from.jt) << 16
                | u64::from(from.jf) << 24
                | u64::from(from.k) << 32;
        }
        Ok(())
    }

    /// Closes every descriptor that is not the cell's, but for the mount.
    fn close_others(&self) {
        let mut kept: Vec<u32> = self.keep.iter().chain(self.mount).map(|fd| fd.as_raw_fd() as u32).collect();
        kept.sort_unstable();
        let mut from = 0;
        for fd in kept.iter().copied().chain([u32::MAX]) {
            if fd > from {
                // SAFETY: no memory is involved.
                unsafe { libc::syscall(libc::SYS_close_range, from, fd - 1, 0) };
            }
            from = fd.saturating_add(1);
        }
    }
}

/// Takes back the C library's registration for restartable sequences: the
/// host would write to that memory, which is about to be unmapped.
fn forget_rseq() {
    const SIGNATURE: u32 = 0x5305_3053;
    let at: *const isize;
    // SAFETY: the address of a variable of the C library, or null where it is older and has none.
    unsafe {
        std::arch::asm!(
            ".weak __rseq_offset",
            "mov {}, [rip + __rseq_offset@GOTPCREL]",
            out(reg) at,
            options(nostack, readonly)
        );
    }
    if at.is_null() {
        return;
    }
    // SAFETY: what is there is an offset from the thread pointer.
    unsafe {
        let thread: *const u8;
        std::arch::asm!("mov {}, fs:[0]", out(reg) thread, options(nostack, readonly));
        libc::syscall(libc::SYS_rseq, thread.offset(*at), 32, 1, SIGNATURE);
    }
}

/// Makes an empty directory this process's root, in its mount namespace. What was mounted there goes meanwhile, and with it
/// `mount`: to let that go by itself would take as long again.
fn empty_root(mount: Option<&OwnedFd>, leaving: &'static Leaving) -> std::io::Result<()> {
    use rustix::mount::{MoveMountFlags, move_mount};
    use std::ptr::null;
    let (root, tmp, tmpfs) = (c"/", c"/tmp", c"tmpfs");
    // SAFETY: valid strings.
    unsafe {
        check(libc::mount(null(), root.as_ptr(), null(), libc::MS_REC | libc::MS_PRIVATE, null()) as i64)?;
        if let Some(mount) = mount {
            let itself = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
            // If it fails, it only takes longer.
            let _ = move_mount(mount, c"", rustix::fs::CWD, tmp, itself);
            libc::close(mount.as_raw_fd());
        }
        let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
        let size = c"size=4k,mode=0";
        check(libc::mount(tmpfs.as_ptr(), tmp.as_ptr(), tmpfs.as_ptr(), flags, size.as_ptr().cast()) as i64)?;
        check(libc::chdir(tmp.as_ptr()) as i64)?;
        match check(libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr())) {
            // A root in the initial RAM file system can't be left (pivot_root(2)): it stays below, out of reach.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                check(libc::mount(c".".as_ptr(), root.as_ptr(), null(), libc::MS_MOVE, null()) as i64)?;
                check(libc::chroot(c".".as_ptr()) as i64)?;
                check(libc::chdir(root.as_ptr()) as i64)?;
                return Ok(());
            }
            pivoted => pivoted?,
        };
    }
    leaving.begin()
}

/// A thread that unmounts the old root, which lies over the new one. The host has it wait for all processors, some 0.3 ms, in which the
/// process gives up its privileges; the thread keeps them, so it must have ended before anything else runs.
struct Leaving {
    /// The thread's id until it has ended; then the host clears it, and wakes who waits. 0: there is none.
    thread: AtomicU32,
    /// What its call answered.
    result: AtomicI64,
    /// Somewhere for its stack pointer; it has no frames.
    stack: [u64; 64],
}

/// Not before the thread has asked for it.
const NOT_YET: i64 = 1;

std::arch::global_asm!(
    ".pushsection .text.atoll_leave_root,\"ax\",@progbits",
    ".globl atoll_leave_root",
    ".hidden atoll_leave_root",
    // rdi: flags; rsi: the thread's stack; rdx: where its id is to be; rcx: the directory's name; r8: where the result is to be.
    // It shares the caller's thread pointer, and so touches nothing that is reached by it.
    "atoll_leave_root:",
    "mov r10, rdx",
    "mov r9, rcx",
    "mov eax, {CLONE}",
    "syscall",
    "test rax, rax",
    "jz 2f",
    "ret",
    "2:",
    "mov rdi, r9",
    "mov esi, {DETACH}",
    "mov eax, {UMOUNT}",
    "syscall",
    "mov [r8], rax",
    "xor edi, edi",
    "mov eax, {EXIT}",
    "syscall",
    "ud2",
    ".popsection",
    CLONE = const libc::SYS_clone,
    DETACH = const libc::MNT_DETACH,
    UMOUNT = const libc::SYS_umount2,
    EXIT = const libc::SYS_exit,
);

unsafe extern "C" {
    fn atoll_leave_root(
        flags: i64,
        stack: *const u64,
        id: *mut u32,
        name: *const i8,
        result: *mut i64,
    ) -> i64;
}

impl Leaving {
    /// For the life of the process: the thread may outlive who fails meanwhile.
    fn new() -> &'static Self {
        let none = Leaving { thread: AtomicU32::new(0), result: AtomicI64::new(0), stack: [0; 64] };
        Box::leak(Box::new(none))
    }

    /// Begins to unmount what lies over the working directory, which is this process's root and stays so.
    fn begin(&'static self) -> std::io::Result<()> {
        self.result.store(NOT_YET, Ordering::Relaxed);
        let flags = libc::CLONE_VM
            | libc::CLONE_FS
            | libc::CLONE_FILES
            | libc::CLONE_SIGHAND
            | libc::CLONE_THREAD
            | libc::CLONE_SYSVSEM
            | libc::CLONE_PARENT_SETTID
            | libc::CLONE_CHILD_CLEARTID;
        let (stack, id, result) = (self.stack.as_ptr_range().end, self.thread.as_ptr(), self.result.as_ptr());
        // It has no stack for a handler. SAFETY: valid sets; the thread makes two calls and touches `self` only, which stays.
        let r = unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            let r = atoll_leave_root(flags.into(), stack, id, c".".as_ptr(), result);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
            r
        };
        if r < 0 {
            return Err(std::io::Error::from_raw_os_error(-r as i32));
        }
        // It is to wait first.
        std::thread::yield_now();
        Ok(())
    }

    /// Waits for the end of the thread, if there is one.
    fn wait(&self) -> std::io::Result<()> {
        use rustix::thread::futex;
        loop {
            let id = self.thread.load(Ordering::Acquire);
            if id == 0 {
                break;
            }
            // The filter lets this call through. Whatever it says, it is looked again.
            let _ = futex::wait(&self.thread, futex::Flags::empty(), id, None);
        }
        match self.result.load(Ordering::Acquire) {
            0 => Ok(()),
            NOT_YET => Err(std::io::Error::other("the thread that was to do it has ended")),
            r => Err(std::io::Error::from_raw_os_error(-r as i32)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// What the cell sends by its end is refused; what is sent to it arrives.
    #[test]
    fn nothing_is_left_in_our_end() {
        let [ours, theirs] = pair().unwrap();
        let flags = rustix::net::SendFlags::NOSIGNAL;
        assert_eq!(rustix::net::send(&theirs, b"x", flags), Err(rustix::io::Errno::PIPE));
        assert_eq!(rustix::net::send(&ours, b"x", flags), Ok(1));
        let mut byte = [0];
        assert_eq!(rustix::io::read(&theirs, &mut byte), Ok(1));
    }

    /// A log that has no end, or goes on and on, doesn't outlive the cell's first process for long.
    #[test]
    fn a_log_ends_with_the_cell() {
        use rustix::process::{Pid, PidfdFlags, pidfd_open};
        for goes_on in [false, true] {
            let (read, write) = std::io::pipe().unwrap();
            let mut child = Command::new("true").spawn().unwrap();
            let first = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
            let size = (size_of::<Control>() as u64).next_multiple_of(PAGE);
            let control = Mapping::new(&memory::anonymous("test", size).unwrap(), size).unwrap();
            let (gone, over) = (AtomicBool::new(false), AtomicBool::new(false));
            let symbols = Symbols::new(File::open("/dev/null").unwrap(), 0);
            rustix::fs::fcntl_setfl(&write, rustix::fs::OFlags::NONBLOCK).unwrap();
            let begun = Instant::now();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while goes_on && !over.load(Ordering::Relaxed) {
                        let _ = rustix::io::write(&write, b"\n");
                        std::thread::sleep(Duration::from_millis(100));
                    }
                });
                relay(File::from(OwnedFd::from(read)), &symbols, &first, &control, &gone);
                over.store(true, Ordering::Relaxed);
            });
            assert!(gone.load(Ordering::Relaxed) && begun.elapsed() < 10 * LAST_WORDS);
            child.wait().unwrap();
        }
    }
}
