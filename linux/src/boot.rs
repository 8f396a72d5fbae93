//! From the boot configuration to the first program.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use atoll_abi::control::{BootConfig, MountConfig, MountKind, StreamKind};
use atoll_abi::core_local::core_local;
use atoll_abi::frame::UserFrame;
use atoll_abi::grid::Resource;
use atoll_abi::platform::Event;
use atoll_abi::{Errno, Result, platform};
use atoll_fs::device::Device;
use atoll_fs::disk::Granted;
use atoll_fs::host::HostFs;
use atoll_fs::namespace::Mount;
use atoll_fs::stream::Stream;
use atoll_fs::tmp::TmpFs;
use atoll_fs::{Cred, FileSystem, FileType, Inode, InodeRef, Namespace, OpenFile, SetAttr};
use atoll_fs::{archive, ext4};
use atoll_mem::heap::memory;
use atoll_sync::{Mutex, RcuArc};
use atoll_task::books;
use linux_raw_sys::general as linux;

use crate::exec::{self, Program};
use crate::files::FdTable;
use crate::ipc::mqueue;
use crate::process::{
    Cpu, FsContext, Ids, NewProcess, NewTask, Process, World, new_task, set_first, set_world, start, world,
};
use crate::signal::{Actions, STOPPING, bit, no_altstack, send_process};
use crate::types::{Rlimit, Siginfo};
use crate::versioned::Versioned;
use crate::{
    budget, burns, current, dev, futex, grid, memory_policy, proc, pty, quota, report, syscalls, vdso,
};

/// How long names and attributes of a read-only host tree are believed, ns.
const TRUST_READ_ONLY: u64 = 2_000_000_000;
/// The same for a volume, which others may be changing, ns.
const TRUST_VOLUME: u64 = 200_000_000;

fn config() -> BootConfig {
    let control = platform().control();
    let len = control.descriptor.boot_len.load(Ordering::Relaxed) as usize;
    let bytes: Vec<u8> = control.boot.iter().take(len).map(|b| b.load(Ordering::Relaxed)).collect();
    postcard::from_bytes(&bytes).expect("the supervisor wrote a boot configuration")
}

fn file_system(
    m: &MountConfig,
    rewrites: bool,
    terminal: Option<&Arc<Stream>>,
) -> core::result::Result<(Arc<dyn FileSystem>, InodeRef), String> {
    Ok(match m.kind {
        MountKind::Host => {
            let trust = if m.read_only { TRUST_READ_ONLY } else { TRUST_VOLUME };
            atoll_fs::host::set_sharer(crate::syscalls::fd::locks::share);
            let (fs, root) = HostFs::new(m.id, &m.target, m.read_only, trust).map_err(|e| format!("{e}"))?;
            if rewrites {
                fs.set_planner(crate::rewrite::planner);
            }
            (fs, root)
        }
        MountKind::Tmpfs(t) => {
            let (fs, root) = TmpFs::new(t.size.unwrap_or(memory().most() / 2), t.mode);
            if (t.uid, t.gid) != (0, 0) {
                let owner = SetAttr { uid: Some(t.uid), gid: Some(t.gid), ..SetAttr::default() };
                root.set_attr(&owner, &Cred::root()).map_err(|e| format!("{e}"))?;
            }
            (fs, root)
        }
        MountKind::Proc => proc::proc_fs(),
        MountKind::Dev => dev::dev_fs(terminal.cloned()),
        MountKind::Sys => proc::sys_fs(),
        MountKind::Cgroup => proc::cgroup_fs(),
        MountKind::Archive => {
            let bytes = platform().archive().ok_or("this platform has none")?;
            let (fs, root) =
                archive::mount(bytes, memory().total() / 2).map_err(|e| format!("damaged archive: {e}"))?;
            if rewrites {
                fs.set_planner(crate::rewrite::packed);
            }
            (fs, root)
        }
        MountKind::Disk => {
            let disk =
                Granted::new(m.id.into()).map_err(|e| format!("this cell has no disk{} ({e})", m.id))?;
            let (fs, root) = ext4::mount(Box::new(disk), memory().total() / 2)?;
            (fs, root)
        }
    })
}

/// Ends the cell before its program ran: with a word, and the status a shell gives for it.
fn fail(what: &str, status: i32) -> ! {
    platform().log(what);
    platform().end(status << 8)
}

/// Starts the first program. In a thread of the runtime, once everything below is up.
pub fn boot() {
    let config = config();
    atoll_fs::open::set_unlock(syscalls::fd::locks::release_open);
    futex::init();
    atoll_net::host::init();
    // Where sockets are not a host's, their network starts now.
    let _ = platform().host();
    atoll_task::set_event_handler(|event, may_wait| match event {
        Event::Mailbox if may_wait => {
            look_at_mailbox();
            true
        }
        Event::Mailbox => false,
        event => atoll_net::host::on_event(event, may_wait),
    });
    atoll_mem::user::set_fault_in(syscalls::fault_in);
    if config.lazy_unmap {
        atoll_mem::vm::unmap_lazily();
    }
    crate::extents::spare();
    atoll_mem::pages::set_reached(|block| platform().memory_used_to(block));
    pay_for_memory();
    if let Err(e) = vdso::prepare() {
        fail(&format!("no memory for the vDSO: {e}"), 125);
    }
    let streams: Vec<Option<Arc<Stream>>> = config
        .streams
        .iter()
        .enumerate()
        .map(|(n, kind)| {
            let outside = !matches!(kind, StreamKind::Closed | StreamKind::Null);
            outside.then(|| Stream::new(n as u64, *kind))
        })
        .collect();
    let terminal = streams.iter().flatten().find(|s| s.is_terminal());
    let mut tree: Option<Namespace> = None;
    for m in &config.mounts {
        let made = file_system(m, !config.keep_code, terminal);
        let (fs, root) = match made {
            Ok(made) => made,
            Err(e) => fail(&format!("mounting {} on {}: {e}", m.source, m.target), 125),
        };
        match &tree {
            None => tree = Some(Namespace::new(fs, root, m.read_only, m.source.as_bytes())),
            Some(t) => {
                let (target, source) = (m.target.as_bytes(), m.source.as_bytes());
                let tmpfs = || -> (Arc<dyn FileSystem>, InodeRef) {
                    let (fs, root) = TmpFs::new(memory().total() / 2, 0o755);
                    (fs, root)
                };
                // What a directory of the host gets for the cell's own mounts would be left there; for a volume that is usual.
                let stays = m.kind == MountKind::Host;
                let way = t.make_way(target, stays, tmpfs);
                let mut done = way.and_then(|()| t.mount(target, fs, root, m.read_only, source));
                if m.kind == MountKind::Dev {
                    let (fs, root) = pty::pts_fs();
                    let target = format!("{}/pts", m.target);
                    done = done.and_then(|()| t.mount(target.as_bytes(), fs, root, false, b"devpts"));
                    let (fs, root) = mqueue::mqueue_fs();
                    let target = format!("{}/mqueue", m.target);
                    done = done.and_then(|()| t.mount(target.as_bytes(), fs, root, false, b"mqueue"));
                }
                if let Err(e) = done {
                    fail(&format!("mounting {} on {}: {e}", m.source, m.target), 125);
                }
            }
        }
    }
    let Some(tree) = tree else { fail("the boot configuration has no root", 125) };
    let root = tree.root();
    if let Err(reason) = memory_policy::check(&config.memory_policy) {
        fail(&format!("the memory policy: {reason}"), 125);
    }
    if memory_policy::is_without_colours(&config.memory_policy) {
        platform().log("the memory policy's colours are left out: this platform does not tell a cell which frames its memory is in");
    }
    let (shm, shm_root) = TmpFs::new(memory().most(), 0o1777);
    let nowhere = Mount::of_nowhere(shm.clone(), shm_root);
    set_world(World {
        tree,
        shm,
        nowhere,
        hostname: Mutex::new(config.name.clone().into_bytes()),
        domainname: Mutex::new(b"(none)".to_vec()),
        host_network: config.host_network,
        boot: (platform().now(), platform().realtime()),
        session: AtomicU32::new(0),
        foreground: AtomicU32::new(0),
        cpu: Cpu { model: config.cpu_model.clone(), flags: config.cpu_flags.clone(), khz: config.cpu_khz },
        core_pattern: Mutex::new(crate::core_dump::PATTERN.to_vec()),
        in_job: config.in_job,
        randomize: AtomicBool::new(config.randomize),
        paging: config.paging,
        memory_policy: config.memory_policy.clone(),
        verbose: config.verbose,
        started: AtomicU64::new(0),
    });
    let mut limits = [Rlimit { cur: u64::MAX, max: u64::MAX }; crate::process::LIMITS];
    for (slot, (cur, max)) in limits.iter_mut().zip(&config.limits) {
        *slot = Rlimit { cur: *cur, max: *max };
    }
    quota::init();
    budget::init();
    if let Err(reason) = grid::configure(config.grid.clone()) {
        fail(&format!("the grid's configuration: {reason}"), 125);
    }
    let process = Process::new(NewProcess {
        maker: None,
        sibling: false,
        ids: Ids::first(config.uid, config.gid, &config.groups),
        limits,
        actions: Arc::new(Actions::ignoring(config.ignored_signals)),
        exit_signal: 0,
    })
    .unwrap_or_else(|e| fail(&format!("no first process: {e}"), 125));
    process.oom_score_adj.store(config.oom_score_adj, Ordering::Relaxed);
    set_first(&process);
    if terminal.is_some() {
        atoll_fs::stream::set_job_control(atoll_fs::stream::JobControl {
            check: crate::jobs::check_console,
            in_background: crate::jobs::in_background,
        });
        world().session.store(process.pid, Ordering::Relaxed);
        world().foreground.store(process.pid, Ordering::Relaxed);
    }
    let files = FdTable::new();
    for (n, s) in streams.iter().enumerate() {
        if config.streams[n] == StreamKind::Null {
            let null = RcuArc::new(OpenFile::new(Arc::new(Device::Null), linux::O_RDWR));
            let _ = files.put(n as u32, null, false);
        }
        if let Some(s) = s {
            // Nobody else has the table yet.
            let _ = files.put(n as u32, RcuArc::new(OpenFile::new(s.clone(), config.stream_flags[n])), false);
        }
    }
    let fs = FsContext {
        root: Versioned::new(root.clone()),
        cwd: Versioned::new(root),
        umask: AtomicU32::new(config.umask),
    };
    let (pid, ids) = (process.pid, process.ids().clone());
    let task = new_task(NewTask {
        process,
        space: exec::first_space(),
        files: Arc::new(files),
        fs: Arc::new(fs),
        ids,
        frame: Box::new(UserFrame::new()),
        blocked: 0,
        altstack: no_altstack(),
        clear_tid: 0,
        name: *b"atoll\0\0\0\0\0\0\0\0\0\0\0",
        tid: Some(pid),
        like: None,
        nice: config.nice,
        policy: 0,
        filters: crate::seccomp::Filters::none(),
        slack: 50_000,
        first: Some(Box::new(move |frame: &mut UserFrame| first(&config, frame))),
    });
    match task {
        Ok(task) => {
            // This core has everything at hand, and is about to have nothing else to do.
            task.thread().begin_on(0);
            start(&task);
            STARTED.store(true, Ordering::SeqCst);
            pass_signals();
        }
        Err(e) => fail(&format!("no memory for the first program: {e}"), 125),
    }
}

/// From now on pages are paid for by whom a core works for.
fn pay_for_memory() {
    let memory = memory();
    let held = memory.offset(memory.held_by_core().as_ptr().cast()).unwrap_or(0);
    platform().control().grid.held.store(held, Ordering::Release);
    atoll_mem::pages::set_payer(|| {
        let local = core_local();
        (local.id(), local.unsettled_for.load(Ordering::Relaxed) >> 8)
    });
    atoll_mem::heap::set_server(|bytes, take| {
        if books::within(Resource::Memory, take) {
            books::moved(Resource::Memory, bytes);
        }
    });
    atoll_mem::heap::set_asker(atoll_task::ask_to_tidy);
    atoll_task::set_tidy(atoll_mem::heap::tidy);
    atoll_task::set_work_ahead(atoll_mem::heap::zero_ahead);
    atoll_mem::pages::set_taken_ahead(books::worked_ahead_for);
    atoll_task::set_heir(|from, to| atoll_mem::heap::memory().pass_on(from, to));
}

/// In the first task's own thread: load the program.
fn first(config: &BootConfig, frame: &mut UserFrame) {
    let task = current();
    let name = String::from_utf8_lossy(&config.program).into_owned();
    let cwd = exec::lookup(task, &config.workdir);
    match cwd {
        Ok(dir) if dir.inode.kind() == FileType::Directory => *task.fs.cwd.change() = dir,
        _ => fail(
            &format!(
                "the working directory {} does not exist in the cell",
                String::from_utf8_lossy(&config.workdir)
            ),
            125,
        ),
    }
    let (place, path) = match find_program(config) {
        Ok(found) => found,
        Err(Errno::EACCES) => fail(
            &format!(
                "{name}: permission denied: it is not executable, or a directory on the way is closed to this user"
            ),
            126,
        ),
        Err(e) => fail(&format!("{name}: not found in the cell ({e})"), 127),
    };
    let is_directory = place.inode.kind() == FileType::Directory;
    let program = Program::new(place, path).with(config.args.clone(), config.env.clone());
    match exec::exec(task, frame, program) {
        Ok(()) => {}
        Err(Errno::ENOEXEC) => fail(&format!("{name}: not an x86-64 Linux program or script"), 126),
        Err(Errno::ENOENT) => fail(&format!("{name}: its interpreter is not found in the cell"), 127),
        Err(Errno::EACCES) if is_directory => fail(&format!("{name}: is a directory"), 126),
        Err(Errno::EACCES) => fail(
            &format!(
                "{name}: can't be run: it is not executable (chmod +x), or is on a mount without execution"
            ),
            126,
        ),
        Err(e) => fail(&format!("{name}: can't be run: {e}"), 126),
    }
}

/// Looks the program up: as a path, or in PATH.
fn find_program(config: &BootConfig) -> Result<(atoll_fs::Location, Vec<u8>)> {
    let task = current();
    if config.program.contains(&b'/') {
        return exec::lookup(task, &config.program).map(|p| (p, config.program.clone()));
    }
    let path = config
        .env
        .iter()
        .find_map(|e| e.strip_prefix(b"PATH="))
        .unwrap_or(b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    let mut denied = false;
    for dir in path.split(|b| *b == b':') {
        let mut full = if dir.is_empty() { b".".to_vec() } else { dir.to_vec() };
        full.push(b'/');
        full.extend_from_slice(&config.program);
        if let Ok(place) = exec::lookup(task, &full)
            && place.inode.kind() == FileType::Regular
        {
            let attr = place.inode.attr()?;
            if task.cred().check(&attr, atoll_fs::types::may::EXEC).is_ok() {
                return Ok((place, full));
            }
            denied = true;
        }
    }
    Err(if denied { Errno::EACCES } else { Errno::ENOENT })
}

/// The first program is there to be sent signals.
static STARTED: AtomicBool = AtomicBool::new(false);
/// Signals that came from outside and were not passed on.
static CAME: AtomicU64 = AtomicU64::new(0);

/// The supervisor rang: signals from outside for the first program, or for the terminal's foreground.
pub fn look_at_mailbox() {
    grid::look_at_offer();
    burns::look();
    report::look();
    let mailbox = &platform().control().mailbox;
    let signals = mailbox.signals.swap(0, Ordering::SeqCst);
    if signals & bit(linux::SIGCONT) != 0 {
        CAME.fetch_and(!STOPPING, Ordering::SeqCst);
    }
    CAME.fetch_or(signals, Ordering::SeqCst);
    // Those that come before are passed on when it starts, which looks here after it has said so.
    if STARTED.load(Ordering::SeqCst) {
        pass_signals();
    }
}

/// Passes on what came.
fn pass_signals() {
    let signals = CAME.swap(0, Ordering::SeqCst);
    if signals == 0 {
        return;
    }
    for n in (1..=64u32).filter(|n| signals & 1 << (n - 1) != 0) {
        // The terminal's are the kernel's; others somebody outside sent, who has no number here, as one of another PID namespace.
        let typed = keyboard(n) && world().foreground.load(Ordering::Relaxed) != 0;
        let info =
            if typed { Siginfo::from_kernel(n, SI_KERNEL) } else { Siginfo::from_user(n, SI_USER, 0, 0, 0) };
        for process in meant_by(n) {
            let core = process.tasks.lock().first().map_or(0, |t| t.core());
            let send = move || send_process(&process, info);
            atoll_task::after_answers(core, send);
        }
    }
}

/// `si_code` of what the kernel sends, and of what kill(2) does.
const SI_KERNEL: i32 = 0x80;
const SI_USER: i32 = 0;

/// Is this one that a terminal sends?
fn keyboard(signal: u32) -> bool {
    matches!(signal, linux::SIGINT | linux::SIGQUIT | linux::SIGTSTP | linux::SIGWINCH)
}

/// The processes that a signal from outside is for.
fn meant_by(signal: u32) -> Vec<Arc<Process>> {
    let foreground = world().foreground.load(Ordering::Relaxed);
    let first = crate::process::find_process(crate::process::first_pid());
    let group = match signal {
        _ if keyboard(signal) && foreground != 0 => Some(foreground),
        // A shell continues all of a job.
        linux::SIGCONT => first.as_ref().map(|p| p.pgid.load(Ordering::Relaxed)),
        _ => None,
    };
    match group {
        Some(group) => {
            let mut all = crate::process::all_processes();
            all.retain(|p| p.pgid.load(Ordering::Relaxed) == group);
            all
        }
        None => first.into_iter().collect(),
    }
}
