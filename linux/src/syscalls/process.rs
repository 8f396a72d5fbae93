//! Calls on processes: making, replacing, ending, waiting, ids, limits.

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use atoll_abi::frame::{FrameKind, UserFrame};
use atoll_abi::layout::{PAGE, is_user_range};
use atoll_abi::{Errno, Result, platform};
use atoll_fs::OpenFile;
use atoll_mem::user;
use atoll_sync::RcuArc;
use atoll_task::{Limit, wait, wait_uninterrupted};
use linux_raw_sys::ptrace::{
    PTRACE_EVENT_CLONE, PTRACE_EVENT_FORK, PTRACE_EVENT_VFORK, PTRACE_EVENT_VFORK_DONE,
};
use linux_raw_sys::{general as linux, prctl as pr};
use zerocopy::IntoBytes;

use super::path::open_file;
use super::{Call, unsupported};
use crate::capabilities;
use crate::current::current;
use crate::event::PidFd;
use crate::exec::{self, ARG_MAX, Program};
use crate::files::FileRef;
use crate::log;
use crate::process::{
    Children, First, Ids, Life, NewProcess, NewTask, Process, Space, Task, all_processes, end_code,
    exit_task, find_process, find_task, first_pid, new_task, start,
};
use crate::ptrace;
use crate::signal::{self, no_altstack};
use crate::types::{CloneArgs, Rlimit, Siginfo, Timeval, Tms, get, get_beginning, get_path, get_string, put};

/// Flags of clone that change nothing here.
const HARMLESS: u64 = (linux::CLONE_PTRACE | linux::CLONE_DETACHED | linux::CLONE_IO) as u64;
/// Nesting of namespaces of processes, at most, which the numbers of a new one are for (`MAX_PID_NS_LEVEL` of Linux).
const IDS_MAX: u64 = 32;
const NAMESPACES: u64 = (linux::CLONE_NEWNS
    | linux::CLONE_NEWCGROUP
    | linux::CLONE_NEWUTS
    | linux::CLONE_NEWIPC
    | linux::CLONE_NEWUSER
    | linux::CLONE_NEWPID
    | linux::CLONE_NEWNET
    | linux::CLONE_NEWTIME) as u64;

fn has(flags: u64, bit: u32) -> bool {
    flags & u64::from(bit) != 0
}

struct Clone {
    flags: u64,
    exit_signal: u32,
    /// Handlers of signals are not inherited (CLONE_CLEAR_SIGHAND).
    clear_handlers: bool,
    /// Where the number of the process's descriptor goes (CLONE_PIDFD).
    pidfd: u64,
    stack: u64,
    parent_tid: u64,
    child_tid: u64,
    tls: u64,
}

impl Clone {
    /// A process that goes on where its parent is.
    fn new(flags: u32) -> Clone {
        Clone {
            flags: flags.into(),
            exit_signal: linux::SIGCHLD,
            clear_handlers: false,
            pidfd: 0,
            stack: 0,
            parent_tid: 0,
            child_tid: 0,
            tls: 0,
        }
    }
}

fn do_clone(c: &mut Call, a: Clone) -> Result<u64> {
    let untraced = has(a.flags, linux::CLONE_UNTRACED);
    let f = a.flags & !u64::from(linux::CLONE_UNTRACED);
    let thread = has(f, linux::CLONE_THREAD);
    // A thread's parent is its process's in any case.
    let sibling = !thread && has(f, linux::CLONE_PARENT);
    if sibling && c.task.process.pid == first_pid() {
        return Err(Errno::EINVAL);
    }
    if thread && !has(f, linux::CLONE_SIGHAND) || has(f, linux::CLONE_SIGHAND) && !has(f, linux::CLONE_VM) {
        return Err(Errno::EINVAL);
    }
    // A place or semaphores of its own that it shares, and threads of one process in several namespaces.
    let both = |of: u32, with| f & u64::from(of) != 0 && has(f, with);
    if both(linux::CLONE_NEWNS | linux::CLONE_NEWUSER, linux::CLONE_FS)
        || both(linux::CLONE_NEWIPC, linux::CLONE_SYSVSEM)
        || both(linux::CLONE_NEWUSER | linux::CLONE_NEWPID, linux::CLONE_THREAD)
    {
        return Err(Errno::EINVAL);
    }
    if f & NAMESPACES != 0 {
        return Err(unsupported(c.task, "clone with new namespaces", Errno::EPERM));
    }
    if has(f, linux::CLONE_PIDFD) && thread {
        return Err(Errno::EINVAL);
    }
    let task = c.task;
    let process = &task.process;
    if has_too_many_tasks(task) {
        return Err(Errno::EAGAIN);
    }
    if crate::budget::threads_are_short() {
        return Err(Errno::EAGAIN);
    }
    let me = find_task(task.tid()).ok_or(Errno::ESRCH)?;

    // The child's registers are the caller's, but for the stack, the thread pointer and the result.
    let mut frame = atoll_task::copy_of(c.frame).ok_or(Errno::EAGAIN)?;
    if frame.is_syscall() {
        atoll_task::capture_extended(&mut frame);
        frame.kind = FrameKind::Full as u32;
    }
    frame.saved_components = 0;
    frame.rax = 0;
    frame.orig_rax = u64::MAX;
    // Who makes it may go by single instructions.
    frame.rflags &= !ptrace::FLAG_TF;
    if a.stack != 0 {
        frame.rsp = a.stack;
    }
    frame.fs_base = if has(f, linux::CLONE_SETTLS) { a.tls } else { task_fs_base(c.frame) };
    if has(f, linux::CLONE_SETTLS) && !is_user_range(a.tls, 0) {
        return Err(Errno::EPERM);
    }

    let fs = if has(f, linux::CLONE_FS) { task.fs.share() } else { Arc::new(task.fs.duplicate()) };
    let files =
        if has(f, linux::CLONE_FILES) { task.files.share() } else { Arc::new(task.files.duplicate()) };
    let vfork = has(f, linux::CLONE_VFORK);
    let copied = !has(f, linux::CLONE_VM);
    let space = if copied { copied_space(task, &frame)? } else { task.space.share() };
    let new_process = if thread {
        None
    } else {
        let mut actions = process.actions.share();
        if a.clear_handlers {
            actions = actions.after_exec();
        } else if !has(f, linux::CLONE_SIGHAND) {
            actions = Arc::new(actions.duplicate());
        }
        let new = Process::new(NewProcess {
            maker: Some(process.clone()),
            sibling,
            ids: task.ids().clone(),
            limits: *process.limits.lock(),
            actions,
            exit_signal: a.exit_signal,
        })?;
        if !copied {
            space.users.fetch_add(1, Ordering::SeqCst);
        }
        Some(new)
    };
    let (blocked, altstack) = {
        let s = task.signals.lock();
        // As Linux: not with memory that both use at once.
        (s.blocked, if copied || vfork { s.altstack } else { no_altstack() })
    };
    let owner = new_process.clone().unwrap_or_else(|| process.clone());
    let child_tid = a.child_tid;
    let set_child = has(f, linux::CLONE_CHILD_SETTID);
    let clear = if has(f, linux::CLONE_CHILD_CLEARTID) { child_tid } else { 0 };
    // Before there is a task, which could not be taken back.
    let fd = match &new_process {
        Some(p) if has(f, linux::CLONE_PIDFD) => c.install(pidfd(p.clone(), false), true).map(Some),
        _ => Ok(None),
    };
    let (mut nice, mut policy) = (task.nice.load(Ordering::Relaxed), task.policy.load(Ordering::Relaxed));
    if task.resets_on_fork.load(Ordering::Relaxed) {
        nice = nice.max(0);
        if matches!(policy >> 16, linux::SCHED_FIFO | linux::SCHED_RR) {
            policy = 0;
        }
    }
    let made = fd.and_then(|fd| {
        let new = NewTask {
            process: owner.clone(),
            space: space.clone(),
            files,
            fs,
            ids: task.ids().clone(),
            frame,
            blocked,
            altstack,
            clear_tid: clear,
            name: *task.name.lock(),
            tid: new_process.as_ref().map(|p| p.pid),
            like: Some(task.thread()),
            nice,
            policy,
            slack: task.slack.load(Ordering::Relaxed),
            filters: task.filters.inherit(),
            first: copied.then(|| begin_copied(space.clone(), if set_child { child_tid } else { 0 })),
        };
        let fd = match fd {
            Some(fd) => fd as u32,
            None => return new_task(new),
        };
        user::write(a.pidfd, &fd.to_ne_bytes())
            .and_then(|()| new_task(new))
            .inspect_err(|_| drop(c.task.files.remove(fd)))
    });
    let child = match made {
        Ok(child) => child,
        Err(e) => {
            if let Some(p) = &new_process {
                space.users.fetch_sub(1, Ordering::SeqCst);
                let end = || *p.life.lock() = Life::Zombie(0);
                let reap = |children: &mut Children| {
                    end();
                    children.reap(p);
                };
                let reaped = p.with_parent(|parent, children| {
                    reap(children);
                    parent.clone()
                });
                match reaped {
                    // Another thread may wait for the child that there isn't.
                    Some(parent) => parent.child_events.wake_all(1),
                    None => {
                        end();
                        p.forget();
                    }
                }
            }
            return Err(e);
        }
    };
    let tid = child.tid();
    // Linux ignores it when these can't be written.
    if has(f, linux::CLONE_PARENT_SETTID) {
        let _ = user::write(a.parent_tid, &tid.to_ne_bytes());
    }
    if set_child && !copied {
        let _ = user::write(child_tid, &tid.to_ne_bytes());
    }
    drop(space);
    let traced = task.tracing.is_on() && !untraced;
    let event = match () {
        () if vfork => PTRACE_EVENT_VFORK,
        () if a.exit_signal != linux::SIGCHLD => PTRACE_EVENT_CLONE,
        () => PTRACE_EVENT_FORK,
    };
    if traced {
        ptrace::inherit(task, &child, event);
    }
    start(&child);
    drop(child);
    if traced {
        ptrace::event(task, c.frame, event, tid.into());
    }
    if vfork {
        // The child runs on our memory until it execs or ends; not even a signal makes us go on before.
        wait_uninterrupted(&owner.released_queue, 1, || {
            (owner.released.load(Ordering::SeqCst) || me.process.is_ending()).then_some(())
        });
        if traced {
            ptrace::event(task, c.frame, PTRACE_EVENT_VFORK_DONE, tid.into());
        }
    }
    Ok(u64::from(tid))
}

/// Has the task's user as many tasks as its limit allows (RLIMIT_NPROC in `getrlimit(2)`)? Root may have any number.
fn has_too_many_tasks(task: &Task) -> bool {
    let limit = task.process.limit(linux::RLIMIT_NPROC).cur;
    if limit == u64::MAX {
        return false;
    }
    let ids = task.ids().clone();
    let user = ids.ruid;
    if user == 0 || ids.may(linux::CAP_SYS_RESOURCE) || ids.may(linux::CAP_SYS_ADMIN) {
        return false;
    }
    let is_mine = |p: &Arc<Process>| p.identity.word(0) == user;
    let mine = all_processes().iter().filter(|p| is_mine(p)).map(|p| p.tasks.lock().len()).sum::<usize>();
    mine as u64 >= limit
}

/// A space with a copy of the caller's memory, for its child whose registers these are.
fn copied_space(task: &Task, frame: &UserFrame) -> Result<Arc<Space>> {
    let alone = task.process.tasks.lock().len() == 1 && task.space.users.load(Ordering::SeqCst) == 1;
    // The child begins with its stack and its thread's own data, and so goes the caller on. Copied now they cost neither of them a
    // fault. Where other threads may be writing to what lies beside them, one page of it after the other is taken as it is.
    let hot = [frame.rsp, frame.fs_base];
    let space = exec::new_space(|| task.space.memory.fork(if alone { &hot } else { &[] }))?;
    space.barriers.store(task.space.barriers.load(Ordering::Relaxed), Ordering::Relaxed);
    // Until its memory is in place nobody else finds any.
    space.close();
    Ok(space)
}

/// What the child of a fork does first, in its own space. `tid_at`: where its id goes, if anywhere.
fn begin_copied(space: Arc<Space>, tid_at: u64) -> First {
    Box::new(move |_| {
        let task = current();
        if let Err(e) = space.memory.show_all() {
            let name = alloc::string::String::from_utf8_lossy(&task.name()).into_owned();
            log::line(format_args!("{name}[{}] is ended: the host can't map its memory: {e}", task.tid()));
            task.process.end(linux::SIGKILL as i32);
        }
        space.open();
        if tid_at != 0 {
            // Linux ignores it, too, when it can't be written.
            let _ = user::write(tid_at, &task.tid().to_ne_bytes());
        }
    })
}

/// The caller's thread pointer. At a rewritten site it is in the register, not in the frame.
fn task_fs_base(frame: &UserFrame) -> u64 {
    if frame.is_syscall() { atoll_task::thread_pointer() } else { frame.fs_base }
}

/// `clone(2)`.
pub fn clone(c: &mut Call) -> Result<u64> {
    let [flags, stack, parent_tid, child_tid, tls, _] = c.args();
    let both = |a, b| flags & u64::from(a | b) == u64::from(a | b);
    if both(linux::CLONE_PIDFD, linux::CLONE_PARENT_SETTID) || both(linux::CLONE_PIDFD, linux::CLONE_DETACHED)
    {
        return Err(Errno::EINVAL);
    }
    let a = Clone {
        flags: flags & !0xff & !HARMLESS & 0xffff_ffff,
        exit_signal: (flags & 0xff) as u32,
        clear_handlers: false,
        // `clone` has one place for both.
        pidfd: parent_tid,
        stack,
        parent_tid,
        child_tid,
        tls,
    };
    do_clone(c, a)
}

/// `clone3(2)`.
pub fn clone3(c: &mut Call) -> Result<u64> {
    if c.arg(1) < 64 && c.arg(1) <= PAGE {
        return Err(Errno::EINVAL);
    }
    let args: CloneArgs = get_beginning(c.arg(0), c.arg(1))?;
    let numbers = args.set_tid_size != 0;
    if args.set_tid_size > IDS_MAX || (args.set_tid != 0) != numbers || args.exit_signal > signal::MAX.into()
    {
        return Err(Errno::EINVAL);
    }
    const CLEAR_SIGHAND: u64 = 1 << 32;
    const INTO_CGROUP: u64 = 1 << 33;
    let f = args.flags;
    if f & INTO_CGROUP != 0 && (args.cgroup > i32::MAX as u64 || c.arg(1) < size_of::<CloneArgs>() as u64) {
        return Err(Errno::EINVAL);
    }
    // In the order in which they are made: that of the outermost namespace last, which is the only one here.
    let own: i32 = if numbers { get(args.set_tid)? } else { 1 };
    let clear_handlers = f & CLEAR_SIGHAND != 0;
    let tells = args.exit_signal != 0;
    if f & !(0xffff_ffff | CLEAR_SIGHAND | INTO_CGROUP) != 0
        || f & 0x7f != 0
        || has(f, linux::CLONE_DETACHED)
        || clear_handlers && has(f, linux::CLONE_SIGHAND)
        || (has(f, linux::CLONE_THREAD) || has(f, linux::CLONE_PARENT)) && tells
        || (args.stack == 0) != (args.stack_size == 0)
        || args.stack != 0 && !is_user_range(args.stack, args.stack_size)
        || args.set_tid_size > 1
        || own <= 0
    {
        return Err(Errno::EINVAL);
    }
    if numbers {
        return Err(unsupported(c.task, "clone3 with the number that it is to have", Errno::EPERM));
    }
    let a = Clone {
        flags: args.flags & !HARMLESS & !CLEAR_SIGHAND,
        exit_signal: args.exit_signal as u32,
        clear_handlers,
        pidfd: args.pidfd,
        stack: args.stack.wrapping_add(args.stack_size),
        parent_tid: args.parent_tid,
        child_tid: args.child_tid,
        tls: args.tls,
    };
    if f & INTO_CGROUP != 0 {
        c.task.files.get(args.cgroup as u32)?;
        return Err(unsupported(c.task, "clone3 with CLONE_INTO_CGROUP", Errno::EINVAL));
    }
    do_clone(c, a)
}

/// `fork(2)`.
pub fn fork(c: &mut Call) -> Result<u64> {
    do_clone(c, Clone::new(0))
}

/// `vfork(2)`.
pub fn vfork(c: &mut Call) -> Result<u64> {
    do_clone(c, Clone::new(linux::CLONE_VFORK | linux::CLONE_VM))
}

fn strings(addr: u64) -> Result<Vec<Vec<u8>>> {
    let mut out = Vec::new();
    if addr == 0 {
        return Ok(out);
    }
    let mut total = 0;
    for i in 0.. {
        let p: u64 = get(addr + i * 8)?;
        if p == 0 {
            break;
        }
        let s = get_string(p, ARG_MAX - 1, Errno::E2BIG)?;
        total += s.len();
        if total > 6 << 20 {
            return Err(Errno::E2BIG);
        }
        out.push(s);
    }
    Ok(out)
}

fn do_exec(c: &mut Call, dir: i32, path: u64, args: u64, env: u64, flags: u32) -> Result<u64> {
    if flags & !(linux::AT_EMPTY_PATH | linux::AT_SYMLINK_NOFOLLOW | linux::AT_EXECVE_CHECK) != 0 {
        return Err(Errno::EINVAL);
    }
    let path = get_path(path)?;
    let from_here = dir == linux::AT_FDCWD || path.starts_with(b"/");
    let mut program = if path.is_empty() && flags & linux::AT_EMPTY_PATH != 0 {
        // Which is a directory, and no program.
        if dir == linux::AT_FDCWD {
            return Err(Errno::EACCES);
        }
        let file = c.task.files.get(dir as u32)?;
        Program::opened(&file, format!("/dev/fd/{dir}").into_bytes())?
    } else if from_here && flags & linux::AT_SYMLINK_NOFOLLOW == 0 {
        Program::find(c.task, path)?
    } else {
        let how = atoll_fs::namespace::How {
            no_follow: flags & linux::AT_SYMLINK_NOFOLLOW != 0,
            ..Default::default()
        };
        let file = open_file(c.task, dir, &path, linux::O_PATH, 0, how)?;
        if file.attr()?.mode & linux::S_IFMT == linux::S_IFLNK {
            return Err(Errno::ELOOP);
        }
        let name = if from_here { path } else { [format!("/dev/fd/{dir}/").as_bytes(), &path].concat() };
        Program::at(&file, name)?
    };
    program.is_closed = !from_here && c.task.files.cloexec(dir as u32)?;
    let (mut args, env) = (strings(args)?, strings(env)?);
    if args.is_empty() {
        // As Linux since 5.18: there is always a name.
        args.push(Vec::new());
    }
    if flags & linux::AT_EXECVE_CHECK != 0 {
        return exec::check(c.task, &program).map(|()| 0);
    }
    let was = c.task.tid();
    exec::exec(c.task, c.frame, program.with(args, env))?;
    if c.task.tracing.is_on() && !c.task.process.is_ending() {
        ptrace::began(c.task, c.frame, was);
    }
    // The new program begins with rax zero.
    Ok(0)
}

/// `execve(2)`.
pub fn execve(c: &mut Call) -> Result<u64> {
    do_exec(c, linux::AT_FDCWD, c.arg(0), c.arg(1), c.arg(2), 0)
}

/// `execveat(2)`.
pub fn execveat(c: &mut Call) -> Result<u64> {
    do_exec(c, c.int(0), c.arg(1), c.arg(2), c.arg(3), c.uint(4))
}

/// `exit(2)`.
pub fn exit(c: &mut Call) -> Result<u64> {
    exit_task((c.int(0) & 0xff) << 8)
}

/// `exit_group(2)`.
pub fn exit_group(c: &mut Call) -> Result<u64> {
    let status = (c.int(0) & 0xff) << 8;
    c.task.process.end(status);
    exit_task(status)
}

/// Which children a wait is for.
enum Which {
    Any,
    Process(Arc<Process>),
    Pid(u32),
    Group(u32),
}

impl Which {
    fn matches(&self, p: &Process) -> bool {
        match self {
            Which::Any => true,
            Which::Process(one) => core::ptr::eq(&raw const **one, p),
            Which::Pid(pid) => p.pid == *pid,
            Which::Group(g) => p.pgid.load(Ordering::Relaxed) == *g,
        }
    }
}

struct Waited {
    pid: u32,
    uid: u32,
    /// As `wait4` reports it.
    status: i32,
    /// si_code and si_status.
    code: i32,
    value: i32,
    usage: crate::process::Usage,
}

/// Children that tell of their end by another signal than SIGCHLD, or by none, are for those who ask for them.
fn is_waited_for(p: &Process, options: u32) -> bool {
    let other = p.exit_signal.load(Ordering::Relaxed) != linux::SIGCHLD;
    options & linux::__WALL != 0 || other == (options & linux::__WCLONE != 0)
}

/// The same of those whom the caller traces: a stop, or the end of one that isn't its child. Err: nothing; are there any?
fn look_at_tracees(
    c: &Call,
    which: &Which,
    exited: bool,
    reap: bool,
    only_own: bool,
) -> core::result::Result<Waited, bool> {
    let tracees = &mut c.task.process.tracees.lock().list;
    if tracees.is_empty() {
        return Err(false);
    }
    let mut any = false;
    for n in 0..tracees.len() {
        let one = &tracees[n];
        let process = one.task.as_ref().map(|t| t.process.clone()).or_else(|| find_process(one.tid));
        if !match (which, &process) {
            (Which::Any, _) => true,
            (Which::Pid(pid), _) => one.tid == *pid,
            (which, Some(process)) => which.matches(process),
            _ => false,
        } {
            continue;
        }
        if let Some(ended) = one.ended {
            any = true;
            if !exited {
                continue;
            }
            let (pid, status) = (one.tid, ended.status);
            if reap {
                tracees.remove(n);
            }
            let (code, value) = end_code(status);
            return Ok(Waited { pid, uid: ended.uid, status, code: code as i32, value, usage: ended.usage });
        }
        let Some(task) = &one.task else {
            any = true;
            continue;
        };
        let own = |t: &ptrace::Trace| !only_own || t.thread == 0 || t.thread == c.task.tid();
        let unseen = task.tracing.with(|t| own(t).then(|| if reap { t.unseen.take() } else { t.unseen }));
        let Some(Some(unseen)) = unseen else { continue };
        any = true;
        if let Some(code) = unseen {
            return Ok(Waited {
                pid: one.tid,
                uid: task.ids().ruid,
                status: 0x7f | code << 8,
                code: linux::CLD_TRAPPED as i32,
                value: code,
                usage: task.divided(),
            });
        }
    }
    Err(any)
}

fn do_wait(c: &Call, which: Which, options: u32, exited: bool) -> Result<Option<Waited>> {
    let process = c.task.process.clone();
    let reap = options & linux::WNOWAIT == 0;
    let only_own = options & linux::__WNOTHREAD != 0;
    let look = || -> Option<Result<Waited>> {
        let traced = match look_at_tracees(c, &which, exited, reap, only_own) {
            Ok(waited) => return Some(Ok(waited)),
            Err(any) => any,
        };
        let mut all = process.children.lock();
        let own = |p: &Process| !only_own || p.parent_thread.load(Ordering::Relaxed) == c.task.tid();
        let matches = |p: &&Arc<Process>| which.matches(p) && is_waited_for(p, options) && own(p);
        let children: Vec<Arc<Process>> = all.list.iter().filter(matches).cloned().collect();
        if children.is_empty() {
            return (!traced).then_some(Err(Errno::ECHILD));
        }
        for p in children {
            let uid = p.ids().ruid;
            let waited = |status, code, value| {
                let mut usage = p.divided();
                usage.add(*p.child_usage.lock());
                Waited { pid: p.pid, uid, status, code, value, usage }
            };
            if exited && let Some(status) = p.zombie() {
                if reap {
                    all.reap(&p);
                    let mut used = p.divided();
                    used.add(*p.child_usage.lock());
                    process.child_usage.lock().add(used);
                }
                let (code, value) = end_code(status);
                return Some(Ok(waited(status, code as i32, value)));
            }
            let mut changes = p.changes.lock();
            if options & linux::WUNTRACED != 0
                && let Some(s) = changes.stopped
                && !ptrace::is_traced_by_parent(&p)
            {
                if reap {
                    changes.stopped = None;
                }
                return Some(Ok(waited(0x7f | (s as i32) << 8, linux::CLD_STOPPED as i32, s as i32)));
            }
            if options & linux::WCONTINUED != 0 && changes.continued {
                if reap {
                    changes.continued = false;
                }
                return Some(Ok(waited(0xffff, linux::CLD_CONTINUED as i32, linux::SIGCONT as i32)));
            }
        }
        None
    };
    let limit = if options & linux::WNOHANG != 0 { Limit::Never } else { Limit::Forever };
    match wait(&process.child_events, 1, limit, look) {
        Ok(r) => r.map(Some),
        Err(Errno::EAGAIN) => Ok(None),
        Err(e) => Err(e),
    }
}

/// `wait4(2)`.
pub fn wait4(c: &mut Call) -> Result<u64> {
    let (pid, options) = (c.int(0), c.uint(2));
    let known = linux::WNOHANG
        | linux::WUNTRACED
        | linux::WCONTINUED
        | linux::__WALL
        | linux::__WCLONE
        | linux::__WNOTHREAD;
    if options & !known != 0 {
        return Err(Errno::EINVAL);
    }
    let which = match pid {
        -1 => Which::Any,
        0 => Which::Group(c.task.process.pgid.load(Ordering::Relaxed)),
        i32::MIN => return Err(Errno::ESRCH),
        p if p < 0 => Which::Group(-p as u32),
        p => Which::Pid(p as u32),
    };
    let Some(w) = do_wait(c, which, options, true)? else { return Ok(0) };
    if c.arg(1) != 0 {
        put(c.arg(1), &w.status)?;
    }
    if c.arg(3) != 0 {
        put(c.arg(3), &w.usage.rusage())?;
    }
    Ok(u64::from(w.pid))
}

/// `waitid(2)`.
pub fn waitid(c: &mut Call) -> Result<u64> {
    let (kind, id, options) = (c.uint(0), c.uint(1), c.uint(3));
    let wanted = linux::WEXITED | linux::WSTOPPED | linux::WCONTINUED;
    let of_whom = linux::__WALL | linux::__WCLONE | linux::__WNOTHREAD;
    if options & wanted == 0 || options & !(wanted | of_whom | linux::WNOHANG | linux::WNOWAIT) != 0 {
        return Err(Errno::EINVAL);
    }
    let mut nonblock = false;
    let which = match kind {
        linux::P_ALL => Which::Any,
        linux::P_PID if c.int(1) <= 0 => return Err(Errno::EINVAL),
        linux::P_PID => Which::Pid(id),
        linux::P_PGID if c.int(1) < 0 => return Err(Errno::EINVAL),
        linux::P_PGID if id == 0 => Which::Group(c.task.process.pgid.load(Ordering::Relaxed)),
        linux::P_PGID => Which::Group(id),
        linux::P_PIDFD if c.int(1) < 0 => return Err(Errno::EINVAL),
        linux::P_PIDFD => {
            let file = c.task.files.get(id)?;
            let p = file.as_type::<PidFd>().ok_or(Errno::EBADF)?.process.clone();
            nonblock = file.nonblock();
            Which::Process(p)
        }
        _ => return Err(Errno::EINVAL),
    };
    let quiet = if nonblock { linux::WNOHANG } else { 0 };
    let w = do_wait(c, which, options | quiet, options & linux::WEXITED != 0)?;
    if w.is_none() && nonblock && options & linux::WNOHANG == 0 {
        return Err(Errno::EAGAIN);
    }
    if c.arg(2) != 0 {
        let mut info = Siginfo::from_kernel(0, 0);
        if let Some(w) = &w {
            // Times are told by a signal only.
            info = Siginfo::child(w.code, w.pid, w.uid, w.value, 0, 0);
        }
        put(c.arg(2), &info)?;
    }
    if let (Some(w), true) = (&w, c.arg(4) != 0) {
        put(c.arg(4), &w.usage.rusage())?;
    }
    Ok(0)
}

/// `getpid(2)`.
pub fn getpid(c: &mut Call) -> Result<u64> {
    Ok(u64::from(c.task.process.pid))
}

/// `getppid(2)`.
pub fn getppid(c: &mut Call) -> Result<u64> {
    Ok(u64::from(c.task.process.parent_pid()))
}

/// `gettid(2)`.
pub fn gettid(c: &mut Call) -> Result<u64> {
    Ok(u64::from(c.task.tid()))
}

/// `set_tid_address(2)`.
pub fn set_tid_address(c: &mut Call) -> Result<u64> {
    c.task.clear_tid.store(c.arg(0), Ordering::Relaxed);
    gettid(c)
}

fn process_or_self(c: &Call, pid: u32) -> Result<Arc<Process>> {
    if pid == 0 { Ok(c.task.process.clone()) } else { process_of(pid).ok_or(Errno::ESRCH) }
}

/// The process with this id, or one of whose threads it is, which serves as well in most calls.
fn process_of(id: u32) -> Option<Arc<Process>> {
    find_process(id).or_else(|| find_task(id).map(|t| t.process.clone()))
}

/// `getpgid(2)`.
pub fn getpgid(c: &mut Call) -> Result<u64> {
    Ok(u64::from(process_or_self(c, c.uint(0))?.pgid.load(Ordering::Relaxed)))
}

/// `getpgrp(2)`.
pub fn getpgrp(c: &mut Call) -> Result<u64> {
    Ok(u64::from(c.task.process.pgid.load(Ordering::Relaxed)))
}

/// `setpgid(2)`.
pub fn setpgid(c: &mut Call) -> Result<u64> {
    let me = &c.task.process;
    let p = process_or_self(c, c.uint(0))?;
    let pgid = if c.uint(1) == 0 { p.pid } else { c.uint(1) };
    if c.int(1) < 0 {
        return Err(Errno::EINVAL);
    }
    let child = p.parent_pid() == me.pid;
    if c.uint(0) != 0 && c.uint(0) != p.pid {
        // A thread that leads no process.
        return Err(Errno::EINVAL);
    }
    if p.pid != me.pid && !child {
        return Err(Errno::ESRCH);
    }
    if child && p.execs.load(Ordering::Relaxed) != 0 {
        return Err(Errno::EACCES);
    }
    let sid = me.sid.load(Ordering::Relaxed);
    if p.sid.load(Ordering::Relaxed) != sid || p.sid.load(Ordering::Relaxed) == p.pid && p.pid != pgid {
        return Err(Errno::EPERM);
    }
    let exists =
        |g: &Arc<Process>| g.pgid.load(Ordering::Relaxed) == pgid && g.sid.load(Ordering::Relaxed) == sid;
    if pgid != p.pid && !all_processes().iter().any(exists) {
        return Err(Errno::EPERM);
    }
    p.pgid.store(pgid, Ordering::Relaxed);
    Ok(0)
}

/// `getsid(2)`.
pub fn getsid(c: &mut Call) -> Result<u64> {
    Ok(u64::from(process_or_self(c, c.uint(0))?.sid.load(Ordering::Relaxed)))
}

/// `setsid(2)`.
pub fn setsid(c: &mut Call) -> Result<u64> {
    let me = &c.task.process;
    if all_processes().iter().any(|p| p.pgid.load(Ordering::Relaxed) == me.pid) {
        return Err(Errno::EPERM);
    }
    me.sid.store(me.pid, Ordering::Relaxed);
    me.pgid.store(me.pid, Ordering::Relaxed);
    Ok(u64::from(me.pid))
}

macro_rules! id_getters {
    ($($name:ident $word:literal;)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "(2)`.")]
            pub fn $name(c: &mut Call) -> Result<u64> {
                Ok(u64::from(c.task.identity.word($word)))
            }
        )*
    };
}
id_getters! { getuid 0; geteuid 1; getgid 2; getegid 3; }

/// Changes user or group ids; `f` is told whether it may take any.
fn set_ids(c: &Call, capability: u32, f: impl FnOnce(&mut Ids, bool) -> Result<u64>) -> Result<u64> {
    c.task.change_ids(|ids| {
        let before = ids.users();
        let any = ids.may(capability);
        let value = f(ids, any)?;
        ids.capabilities.users_changed(before, ids.users());
        Ok(value)
    })
}

/// `setuid(2)`.
pub fn setuid(c: &mut Call) -> Result<u64> {
    let id = c.uint(0);
    set_ids(c, linux::CAP_SETUID, |i, any| {
        if any {
            i.ruid = id;
            i.suid = id;
        } else if id != i.ruid && id != i.suid {
            return Err(Errno::EPERM);
        }
        i.euid = id;
        i.fsuid = id;
        Ok(0)
    })
}

/// `setgid(2)`.
pub fn setgid(c: &mut Call) -> Result<u64> {
    let id = c.uint(0);
    set_ids(c, linux::CAP_SETGID, |i, any| {
        if any {
            i.rgid = id;
            i.sgid = id;
        } else if id != i.rgid && id != i.sgid {
            return Err(Errno::EPERM);
        }
        i.egid = id;
        i.fsgid = id;
        Ok(0)
    })
}

const SAME: u32 = u32::MAX;

/// `setreuid(2)`.
pub fn setreuid(c: &mut Call) -> Result<u64> {
    let (r, e) = (c.uint(0), c.uint(1));
    set_ids(c, linux::CAP_SETUID, |i, any| {
        let may_r = r == SAME || any || r == i.ruid || r == i.euid;
        let may_e = e == SAME || any || e == i.ruid || e == i.euid || e == i.suid;
        if !may_r || !may_e {
            return Err(Errno::EPERM);
        }
        let old = i.ruid;
        if r != SAME {
            i.ruid = r;
        }
        if e != SAME {
            i.euid = e;
        }
        if r != SAME || e != SAME && e != old {
            i.suid = i.euid;
        }
        i.fsuid = i.euid;
        Ok(0)
    })
}

/// `setregid(2)`.
pub fn setregid(c: &mut Call) -> Result<u64> {
    let (r, e) = (c.uint(0), c.uint(1));
    set_ids(c, linux::CAP_SETGID, |i, any| {
        let may_r = r == SAME || any || r == i.rgid || r == i.egid;
        let may_e = e == SAME || any || e == i.rgid || e == i.egid || e == i.sgid;
        if !may_r || !may_e {
            return Err(Errno::EPERM);
        }
        let old = i.rgid;
        if r != SAME {
            i.rgid = r;
        }
        if e != SAME {
            i.egid = e;
        }
        if r != SAME || e != SAME && e != old {
            i.sgid = i.egid;
        }
        i.fsgid = i.egid;
        Ok(0)
    })
}

/// `setresuid(2)`.
pub fn setresuid(c: &mut Call) -> Result<u64> {
    let new = [c.uint(0), c.uint(1), c.uint(2)];
    set_ids(c, linux::CAP_SETUID, |i, any| {
        if !any && new.iter().any(|n| *n != SAME && *n != i.ruid && *n != i.euid && *n != i.suid) {
            return Err(Errno::EPERM);
        }
        for (slot, n) in [&mut i.ruid, &mut i.euid, &mut i.suid].into_iter().zip(new) {
            if n != SAME {
                *slot = n;
            }
        }
        i.fsuid = i.euid;
        Ok(0)
    })
}

/// `setresgid(2)`.
pub fn setresgid(c: &mut Call) -> Result<u64> {
    let new = [c.uint(0), c.uint(1), c.uint(2)];
    set_ids(c, linux::CAP_SETGID, |i, any| {
        if !any && new.iter().any(|n| *n != SAME && *n != i.rgid && *n != i.egid && *n != i.sgid) {
            return Err(Errno::EPERM);
        }
        for (slot, n) in [&mut i.rgid, &mut i.egid, &mut i.sgid].into_iter().zip(new) {
            if n != SAME {
                *slot = n;
            }
        }
        i.fsgid = i.egid;
        Ok(0)
    })
}

/// `getresuid(2)`.
pub fn getresuid(c: &mut Call) -> Result<u64> {
    let i = c.task.ids().clone();
    put(c.arg(0), &i.ruid)?;
    put(c.arg(1), &i.euid)?;
    put(c.arg(2), &i.suid).map(|()| 0)
}

/// `getresgid(2)`.
pub fn getresgid(c: &mut Call) -> Result<u64> {
    let i = c.task.ids().clone();
    put(c.arg(0), &i.rgid)?;
    put(c.arg(1), &i.egid)?;
    put(c.arg(2), &i.sgid).map(|()| 0)
}

/// `setfsuid(2)`: returns the old one, whether it changed it or not.
pub fn setfsuid(c: &mut Call) -> Result<u64> {
    let id = c.uint(0);
    set_ids(c, linux::CAP_SETUID, |i, any| {
        let old = i.fsuid;
        if id != u32::MAX && (any || id == i.ruid || id == i.euid || id == i.suid || id == i.fsuid) {
            i.fsuid = id;
            i.capabilities.file_user_changed(old, id);
        }
        Ok(u64::from(old))
    })
}

/// `setfsgid(2)`.
pub fn setfsgid(c: &mut Call) -> Result<u64> {
    let id = c.uint(0);
    set_ids(c, linux::CAP_SETGID, |i, any| {
        let old = i.fsgid;
        if id != u32::MAX && (any || id == i.rgid || id == i.egid || id == i.sgid || id == i.fsgid) {
            i.fsgid = id;
        }
        Ok(u64::from(old))
    })
}

/// `getgroups(2)`.
pub fn getgroups(c: &mut Call) -> Result<u64> {
    let groups = c.task.ids().groups.clone();
    let room = c.int(0);
    if room < 0 || room > 0 && (room as usize) < groups.len() {
        return Err(Errno::EINVAL);
    }
    if room > 0 {
        user::write(c.arg(1), groups.as_bytes())?;
    }
    Ok(groups.len() as u64)
}

/// `setgroups(2)`.
pub fn setgroups(c: &mut Call) -> Result<u64> {
    let n = c.uint(0);
    if !c.task.may(linux::CAP_SETGID) {
        return Err(Errno::EPERM);
    }
    if n > 65536 {
        return Err(Errno::EINVAL);
    }
    let mut groups = atoll_mem::buffer::<u32>(n as usize)?;
    user::read(c.arg(1), groups.as_mut_bytes())?;
    c.task.change_ids(|ids| ids.set_groups(groups));
    Ok(0)
}

/// Number of words of a set in the data of `capget(2)` and `capset(2)`. EINVAL: no version that there is; the caller is told of one.
fn capability_words(header: u64) -> Result<usize> {
    match get::<u32>(header)? {
        linux::_LINUX_CAPABILITY_VERSION_1 => Ok(1),
        linux::_LINUX_CAPABILITY_VERSION_2 | linux::_LINUX_CAPABILITY_VERSION_3 => Ok(2),
        _ => put(header, &linux::_LINUX_CAPABILITY_VERSION_3).and(Err(Errno::EINVAL)),
    }
}

/// `capget(2)`.
pub fn capget(c: &mut Call) -> Result<u64> {
    let (header, data) = (c.arg(0), c.arg(1));
    let words = match capability_words(header) {
        Err(Errno::EINVAL) if data == 0 => return Ok(0),
        other => other?,
    };
    if data == 0 {
        return Ok(0);
    }
    let pid: u32 = get(header + 4)?;
    if (pid as i32) < 0 {
        return Err(Errno::EINVAL);
    }
    let has = if pid == 0 || pid == c.task.tid() {
        c.task.ids().capabilities
    } else {
        process_or_self(c, pid)?.ids().capabilities
    };
    let sets = [has.effective, has.permitted, has.inheritable];
    let halves = [0, 32].map(|shift| sets.map(|set| (set >> shift) as u32));
    user::write(data, halves[..words].as_bytes()).map(|()| 0)
}

/// `capset(2)`.
pub fn capset(c: &mut Call) -> Result<u64> {
    let words = capability_words(c.arg(0))?;
    let pid: u32 = get(c.arg(0) + 4)?;
    if pid != 0 && pid != c.task.tid() {
        return Err(Errno::EPERM);
    }
    let mut halves = [[0u32; 3]; 2];
    user::read(c.arg(1), halves[..words].as_mut_bytes())?;
    let set = |n: usize| (u64::from(halves[0][n]) | u64::from(halves[1][n]) << 32) & capabilities::ALL;
    allowed(c.task.change_ids(|ids| ids.capabilities.set(set(0), set(1), set(2))))
}

/// What a call that may not be allowed comes back with.
fn allowed(yes: bool) -> Result<u64> {
    if yes { Ok(0) } else { Err(Errno::EPERM) }
}

/// The number of a capability.
fn capability(number: u64) -> Result<u32> {
    if number <= u64::from(linux::CAP_LAST_CAP) { Ok(number as u32) } else { Err(Errno::EINVAL) }
}

/// PR_CAP_AMBIENT.
fn ambient(c: &Call) -> Result<u64> {
    let (what, rest) = (c.arg(1), c.arg(3) | c.arg(4));
    if what == u64::from(pr::PR_CAP_AMBIENT_CLEAR_ALL) {
        if c.arg(2) | rest != 0 {
            return Err(Errno::EINVAL);
        }
        return c.task.change_ids(|ids| {
            ids.capabilities.ambient = 0;
            Ok(0)
        });
    }
    let number = capability(c.arg(2))?;
    if rest != 0 {
        return Err(Errno::EINVAL);
    }
    match u32::try_from(what) {
        Ok(pr::PR_CAP_AMBIENT_IS_SET) => {
            Ok((c.task.ids().capabilities.ambient & capabilities::bit(number) != 0).into())
        }
        Ok(pr::PR_CAP_AMBIENT_RAISE) => {
            allowed(c.task.change_ids(|ids| ids.capabilities.raise_ambient(number)))
        }
        Ok(pr::PR_CAP_AMBIENT_LOWER) => c.task.change_ids(|ids| {
            ids.capabilities.ambient &= !capabilities::bit(number);
            Ok(0)
        }),
        _ => Err(Errno::EINVAL),
    }
}

/// `prctl(2)`.
pub fn prctl(c: &mut Call) -> Result<u64> {
    let task = c.task;
    let arg = c.arg(1);
    match c.uint(0) {
        pr::PR_SET_NAME => {
            let mut name = [0u8; 16];
            let n = user::read_some(arg, &mut name)?;
            let end = name[..n].iter().position(|b| *b == 0).unwrap_or(15).min(15);
            task.set_name(&name[..end]);
            Ok(0)
        }
        pr::PR_GET_NAME => put(arg, &*task.name.lock()).map(|()| 0),
        pr::PR_SET_PDEATHSIG => {
            if arg > u64::from(signal::MAX) {
                return Err(Errno::EINVAL);
            }
            task.death_signal.store(arg as u32, Ordering::Relaxed);
            Ok(0)
        }
        pr::PR_GET_PDEATHSIG => put(arg, &task.death_signal.load(Ordering::Relaxed)).map(|()| 0),
        pr::PR_SET_DUMPABLE => {
            if arg > 1 {
                return Err(Errno::EINVAL);
            }
            task.process.dumpable.store(arg as u32, Ordering::Relaxed);
            Ok(0)
        }
        pr::PR_GET_DUMPABLE => Ok(u64::from(task.process.dumpable.load(Ordering::Relaxed))),
        pr::PR_SET_KEEPCAPS => {
            if arg > 1 {
                return Err(Errno::EINVAL);
            }
            allowed(task.change_ids(|ids| ids.capabilities.keep(arg != 0)))
        }
        pr::PR_GET_KEEPCAPS => {
            Ok((task.ids().capabilities.securebits & capabilities::secure::KEEP_CAPS != 0).into())
        }
        pr::PR_SET_CHILD_SUBREAPER => {
            task.process.subreaper.store(arg != 0, Ordering::Relaxed);
            Ok(0)
        }
        pr::PR_GET_CHILD_SUBREAPER => {
            put(arg, &i32::from(task.process.subreaper.load(Ordering::Relaxed))).map(|()| 0)
        }
        pr::PR_SET_TIMERSLACK => {
            task.slack.store(if arg == 0 { task.usual_slack } else { arg }, Ordering::Relaxed);
            Ok(0)
        }
        pr::PR_GET_TIMERSLACK => Ok(task.slack.load(Ordering::Relaxed)),
        pr::PR_SET_NO_NEW_PRIVS => {
            if arg != 1 || c.arg(2) | c.arg(3) | c.arg(4) != 0 {
                return Err(Errno::EINVAL);
            }
            task.change_ids(|ids| {
                ids.capabilities.no_new_privileges = true;
                Ok(0)
            })
        }
        pr::PR_GET_NO_NEW_PRIVS => {
            if arg | c.arg(2) | c.arg(3) | c.arg(4) != 0 {
                return Err(Errno::EINVAL);
            }
            Ok(task.ids().capabilities.no_new_privileges.into())
        }
        pr::PR_GET_SECUREBITS => Ok(task.ids().capabilities.securebits.into()),
        pr::PR_SET_SECUREBITS => allowed(task.change_ids(|ids| ids.capabilities.set_securebits(arg))),
        pr::PR_CAPBSET_READ => {
            let number = capability(arg)?;
            Ok((task.ids().capabilities.bounding & capabilities::bit(number) != 0).into())
        }
        pr::PR_CAPBSET_DROP => {
            if !task.may(linux::CAP_SETPCAP) {
                return Err(Errno::EPERM);
            }
            let number = capability(arg)?;
            task.change_ids(|ids| {
                ids.capabilities.bounding &= !capabilities::bit(number);
                Ok(0)
            })
        }
        pr::PR_CAP_AMBIENT => ambient(c),
        pr::PR_MCE_KILL | pr::PR_SET_PTRACER => Ok(0),
        pr::PR_MCE_KILL_GET if arg | c.arg(2) | c.arg(3) | c.arg(4) != 0 => Err(Errno::EINVAL),
        pr::PR_MCE_KILL_GET => Ok(pr::PR_MCE_KILL_DEFAULT.into()),
        pr::PR_GET_SPECULATION_CTRL | pr::PR_SET_SPECULATION_CTRL => speculation(c, c.uint(0)),
        pr::PR_SET_VMA => Ok(0),
        pr::PR_SET_THP_DISABLE => {
            if c.arg(2) | c.arg(3) | c.arg(4) != 0 {
                return Err(Errno::EINVAL);
            }
            task.process.thp_disabled.store(arg != 0, Ordering::Relaxed);
            task.process.apply_paging(&task.space.memory);
            Ok(0)
        }
        pr::PR_GET_THP_DISABLE if arg | c.arg(2) | c.arg(3) | c.arg(4) != 0 => Err(Errno::EINVAL),
        pr::PR_GET_THP_DISABLE => Ok(task.process.thp_disabled.load(Ordering::Relaxed).into()),
        pr::PR_GET_SECCOMP => Ok(task.filters.status().0.into()),
        pr::PR_SET_SECCOMP => {
            let filter = c.arg(2);
            crate::seccomp::by_prctl(c, arg, filter)
        }
        pr::PR_GET_TID_ADDRESS => put(arg, &task.clear_tid.load(Ordering::Relaxed)).map(|()| 0),
        // Time is measured as Linux does it: when threads switch.
        pr::PR_GET_TIMING => Ok(pr::PR_TIMING_STATISTICAL.into()),
        pr::PR_SET_TIMING if arg == u64::from(pr::PR_TIMING_STATISTICAL) => Ok(0),
        // All of the caller's counters, of which there are none.
        pr::PR_TASK_PERF_EVENTS_DISABLE | pr::PR_TASK_PERF_EVENTS_ENABLE => Ok(0),
        // The counter can be read, and that can't be changed.
        pr::PR_SET_TSC if arg == 1 => Ok(0),
        pr::PR_GET_TSC => put(arg, &1u32).map(|()| 0),
        other => Err(unsupported(task, &alloc::format!("prctl({other})"), Errno::EINVAL)),
    }
}

/// `arch_prctl(2)`.
pub fn arch_prctl(c: &mut Call) -> Result<u64> {
    const SET_GS: u32 = 0x1001;
    const SET_FS: u32 = 0x1002;
    const GET_FS: u32 = 0x1003;
    const GET_GS: u32 = 0x1004;
    match c.uint(0) {
        SET_FS => {
            if !is_user_range(c.arg(1), 0) {
                return Err(Errno::EPERM);
            }
            atoll_task::set_thread_pointer(c.arg(1));
            c.frame.fs_base = c.arg(1);
            Ok(0)
        }
        GET_FS => put(c.arg(1), &task_fs_base(c.frame)).map(|()| 0),
        GET_GS => put(c.arg(1), &0u64).map(|()| 0),
        SET_GS => {
            if c.arg(1) == 0 {
                return Ok(0);
            }
            Err(unsupported(c.task, "a GS base of the program's own (arch_prctl(ARCH_SET_GS))", Errno::EPERM))
        }
        // ARCH_GET_CPUID: the instruction can be used.
        0x1011 => Ok(1),
        // CET features, AMX permission: there are none here.
        0x1012 => Err(Errno::ENODEV),
        other => Err(unsupported(c.task, &alloc::format!("arch_prctl({other:#x})"), Errno::EINVAL)),
    }
}

fn limit_index(n: u64) -> Result<u32> {
    if n < crate::process::LIMITS as u64 { Ok(n as u32) } else { Err(Errno::EINVAL) }
}

fn set_limit(c: &Call, p: &Arc<Process>, which: u32, new: Rlimit) -> Result<()> {
    if new.cur > new.max {
        return Err(Errno::EINVAL);
    }
    let mut limits = p.limits.lock();
    let old = &mut limits[which as usize];
    if new.max > old.max && !c.task.may(linux::CAP_SYS_RESOURCE) {
        return Err(Errno::EPERM);
    }
    if which == linux::RLIMIT_NOFILE {
        if new.max > 1 << 20 {
            return Err(Errno::EPERM);
        }
        p.max_files.store(new.cur, Ordering::Relaxed);
    }
    if which == linux::RLIMIT_FSIZE {
        p.max_file_size.store(new.cur, Ordering::Relaxed);
    }
    *old = new;
    drop(limits);
    if which == linux::RLIMIT_CPU {
        p.limit_time();
    }
    Ok(())
}

/// The caller's ids and another process's: one after the other, as that may be looking at the caller's.
pub(super) fn both_ids(task: &Task, p: &Process) -> (Ids, Ids) {
    let me = task.ids().clone();
    let you = p.ids().clone();
    (me, you)
}

/// Are all ids of a process those that the caller's really are?
pub(super) fn has_same_ids(task: &Task, p: &Process) -> bool {
    let (me, you) = both_ids(task, p);
    [you.ruid, you.euid, you.suid].iter().all(|id| *id == me.ruid)
        && [you.rgid, you.egid, you.sgid].iter().all(|id| *id == me.rgid)
}

/// `prlimit64(2)`.
pub fn prlimit64(c: &mut Call) -> Result<u64> {
    let p = process_or_self(c, c.uint(0))?;
    if p.pid != c.task.process.pid && !has_same_ids(c.task, &p) && !c.task.may(linux::CAP_SYS_RESOURCE) {
        return Err(Errno::EPERM);
    }
    let which = limit_index(c.arg(1))?;
    let new: Option<Rlimit> = if c.arg(2) != 0 { Some(get(c.arg(2))?) } else { None };
    let old = p.limit(which);
    if let Some(new) = new {
        set_limit(c, &p, which, new)?;
    }
    if c.arg(3) != 0 {
        put(c.arg(3), &old)?;
    }
    Ok(0)
}

/// `getrlimit(2)`.
pub fn getrlimit(c: &mut Call) -> Result<u64> {
    let which = limit_index(c.arg(0))?;
    put(c.arg(1), &c.task.process.limit(which)).map(|()| 0)
}

/// `setrlimit(2)`.
pub fn setrlimit(c: &mut Call) -> Result<u64> {
    let which = limit_index(c.arg(0))?;
    let new = get(c.arg(1))?;
    set_limit(c, &c.task.process, which, new).map(|()| 0)
}

/// `getrusage(2)`.
pub fn getrusage(c: &mut Call) -> Result<u64> {
    const SELF: i32 = 0;
    const CHILDREN: i32 = -1;
    const THREAD: i32 = 1;
    let usage = match c.int(0) {
        SELF => c.task.process.divided(),
        CHILDREN => *c.task.process.child_usage.lock(),
        THREAD => c.task.divided(),
        _ => return Err(Errno::EINVAL),
    };
    let mut out = usage.rusage();
    if c.int(0) != CHILDREN {
        let peak = c.task.space.memory.peak().max(c.task.process.usage.lock().peak);
        out.maxrss = (peak >> 10) as i64;
        if usage.run_ns < 1000 {
            out.utime = Timeval::from_ns(1000);
        }
    }
    put(c.arg(1), &out).map(|()| 0)
}

/// `times(2)`.
pub fn times(c: &mut Call) -> Result<u64> {
    if c.arg(0) != 0 {
        let [utime, stime] = c.task.process.divided().ticks().map(|n| n as i64);
        let [cutime, cstime] = c.task.process.child_usage.lock().ticks().map(|n| n as i64);
        put(c.arg(0), &Tms { utime, stime, cutime, cstime })?;
    }
    Ok(platform().now() / 10_000_000)
}

fn targets(c: &Call, pid: i32) -> Vec<Arc<Process>> {
    let group = |g: u32| -> Vec<Arc<Process>> {
        all_processes().into_iter().filter(|p| p.pgid.load(Ordering::Relaxed) == g).collect()
    };
    match pid {
        0 => group(c.task.process.pgid.load(Ordering::Relaxed)),
        // Not the first, as kill(2) says.
        -1 => all_processes()
            .into_iter()
            .filter(|p| p.pid != c.task.process.pid && p.pid != first_pid())
            .collect(),
        p if p < 0 => group(p.unsigned_abs()),
        p => process_of(p as u32).into_iter().collect(),
    }
}

fn may_signal(c: &Call, p: &Process, signal: u32) -> bool {
    if p.pid == c.task.process.pid {
        return true;
    }
    let (me, you) = both_ids(c.task, p);
    me.may(linux::CAP_KILL)
        || me.ruid == you.ruid
        || me.ruid == you.suid
        || me.euid == you.ruid
        || me.euid == you.suid
        || signal == linux::SIGCONT
            && c.task.process.sid.load(Ordering::Relaxed) == p.sid.load(Ordering::Relaxed)
}

/// A descriptor of a process.
pub(super) fn pidfd(process: Arc<Process>, nonblock: bool) -> FileRef {
    let flags = linux::O_RDWR | if nonblock { linux::O_NONBLOCK } else { 0 };
    RcuArc::new(OpenFile::new(Arc::new(PidFd { process }), flags))
}

/// What a processor may do ahead of a program, which is the host's to say and no program's (`prctl(2)`, `PR_GET_SPECULATION_CTRL`).
fn speculation(c: &Call, option: u32) -> Result<u64> {
    let which = u32::try_from(c.arg(1)).map_err(|_| Errno::ENODEV)?;
    let sets = option == pr::PR_SET_SPECULATION_CTRL;
    if c.arg(3) | c.arg(4) | if sets { 0 } else { c.arg(2) } != 0 {
        return Err(Errno::EINVAL);
    }
    match (which, sets) {
        (pr::PR_SPEC_STORE_BYPASS | pr::PR_SPEC_INDIRECT_BRANCH, false) => Ok(pr::PR_SPEC_ENABLE.into()),
        // It is not flushed for anybody.
        (pr::PR_SPEC_L1D_FLUSH, false) => Ok(pr::PR_SPEC_FORCE_DISABLE.into()),
        (pr::PR_SPEC_STORE_BYPASS, true) => Err(Errno::ENXIO),
        (pr::PR_SPEC_L1D_FLUSH, true) => Err(Errno::EPERM),
        (pr::PR_SPEC_INDIRECT_BRANCH, true) => match c.arg(2) as u32 {
            // As it is.
            pr::PR_SPEC_ENABLE => Ok(0),
            pr::PR_SPEC_DISABLE | pr::PR_SPEC_FORCE_DISABLE => Err(Errno::EPERM),
            _ => Err(Errno::ERANGE),
        },
        _ => Err(Errno::ENODEV),
    }
}

/// `pidfd_open(2)`.
pub fn pidfd_open(c: &mut Call) -> Result<u64> {
    let (pid, flags) = (c.int(0), c.uint(1));
    if flags & !linux::O_NONBLOCK != 0 || pid <= 0 {
        return Err(Errno::EINVAL);
    }
    let Some(p) = find_process(pid as u32) else {
        // A thread that does not lead its process.
        return Err(if find_task(pid as u32).is_some() { Errno::EINVAL } else { Errno::ESRCH });
    };
    c.install(pidfd(p, flags != 0), true)
}

/// `pidfd_send_signal(2)`.
pub fn pidfd_send_signal(c: &mut Call) -> Result<u64> {
    let file = c.file(0)?;
    // A process's directory in /proc serves as well.
    let p = match file.as_type::<PidFd>() {
        Some(fd) => fd.process.clone(),
        None => crate::proc::process_of(&file).ok_or(Errno::EBADF)?,
    };
    let signal = c.uint(1);
    if c.uint(3) != 0 || signal > signal::MAX {
        return Err(Errno::EINVAL);
    }
    let (me, uid) = (c.task.process.pid, c.task.ids().ruid);
    let mut info = Siginfo::from_user(signal, 0, me, uid, 0);
    if c.arg(2) != 0 {
        info = get(c.arg(2))?;
        if info.signo != signal as i32 {
            return Err(Errno::EINVAL);
        }
        // Only to itself may it say that the kernel sent it.
        if info.code >= 0 && p.pid != me {
            return Err(Errno::EPERM);
        }
    }
    if !find_process(p.pid).is_some_and(|found| Arc::ptr_eq(&found, &p)) {
        return Err(Errno::ESRCH);
    }
    if !may_signal(c, &p, signal) {
        return Err(Errno::EPERM);
    }
    if signal != 0 {
        signal::try_send_process(&p, info)?;
    }
    Ok(0)
}

/// `kill(2)`.
pub fn kill(c: &mut Call) -> Result<u64> {
    let (pid, signal) = (c.int(0), c.uint(1));
    if signal > signal::MAX {
        return Err(Errno::EINVAL);
    }
    if pid == i32::MIN {
        return Err(Errno::ESRCH);
    }
    let list = targets(c, pid);
    if list.is_empty() {
        return Err(Errno::ESRCH);
    }
    let (me, uid) = (c.task.process.pid, c.task.ids().ruid);
    let mut sent = false;
    for p in list {
        if may_signal(c, &p, signal) {
            sent = true;
            if signal != 0 {
                signal::send_process(&p, Siginfo::from_user(signal, 0, me, uid, 0));
            }
        }
    }
    if sent { Ok(0) } else { Err(Errno::EPERM) }
}

fn thread_kill(c: &Call, group: Option<u32>, tid: u32, signal: u32, info: Option<Siginfo>) -> Result<u64> {
    const SI_TKILL: i32 = -6;
    if signal > signal::MAX || (tid as i32) <= 0 {
        return Err(Errno::EINVAL);
    }
    let t = find_task(tid).ok_or(Errno::ESRCH)?;
    if group.is_some_and(|g| g != t.process.pid) {
        return Err(Errno::ESRCH);
    }
    if !may_signal(c, &t.process, signal) {
        return Err(Errno::EPERM);
    }
    if signal != 0 {
        let (me, uid) = (c.task.process.pid, c.task.ids().ruid);
        signal::try_send_task(&t, info.unwrap_or_else(|| Siginfo::from_user(signal, SI_TKILL, me, uid, 0)))?;
    }
    Ok(0)
}

/// `tkill(2)`.
pub fn tkill(c: &mut Call) -> Result<u64> {
    thread_kill(c, None, c.uint(0), c.uint(1), None)
}

/// `tgkill(2)`.
pub fn tgkill(c: &mut Call) -> Result<u64> {
    if c.int(0) <= 0 {
        return Err(Errno::EINVAL);
    }
    thread_kill(c, Some(c.uint(0)), c.uint(1), c.uint(2), None)
}

fn queued_info(c: &Call, addr: u64, signal: u32, target: u32) -> Result<Siginfo> {
    let mut info: Siginfo = get(addr)?;
    let own = process_of(target).is_some_and(|p| p.pid == c.task.process.pid);
    if (info.code >= 0 || info.code == -6) && !own {
        return Err(Errno::EPERM);
    }
    info.signo = signal as i32;
    Ok(info)
}

/// `rt_sigqueueinfo(2)`.
pub fn rt_sigqueueinfo(c: &mut Call) -> Result<u64> {
    let (pid, signal) = (c.uint(0), c.uint(1));
    if signal > signal::MAX {
        return Err(Errno::EINVAL);
    }
    let info = queued_info(c, c.arg(2), signal, pid)?;
    let p = process_of(pid).ok_or(Errno::ESRCH)?;
    if !may_signal(c, &p, signal) {
        return Err(Errno::EPERM);
    }
    if signal != 0 {
        signal::try_send_process(&p, info)?;
    }
    Ok(0)
}

/// `rt_tgsigqueueinfo(2)`.
pub fn rt_tgsigqueueinfo(c: &mut Call) -> Result<u64> {
    let info = queued_info(c, c.arg(3), c.uint(2), c.uint(0))?;
    thread_kill(c, Some(c.uint(0)), c.uint(1), c.uint(2), Some(info))
}

/// `set_robust_list(2)`.
pub fn set_robust_list(c: &mut Call) -> Result<u64> {
    if c.arg(1) != 24 {
        return Err(Errno::EINVAL);
    }
    c.task.robust_list.store(c.arg(0), Ordering::Relaxed);
    Ok(0)
}

/// `get_robust_list(2)`.
pub fn get_robust_list(c: &mut Call) -> Result<u64> {
    let list = if c.uint(0) == 0 {
        c.task.robust_list.load(Ordering::Relaxed)
    } else {
        let t = find_task(c.uint(0)).ok_or(Errno::ESRCH)?;
        if t.process.pid != c.task.process.pid
            && !has_same_ids(c.task, &t.process)
            && !c.task.may(linux::CAP_SYS_PTRACE)
        {
            return Err(Errno::EPERM);
        }
        t.robust_list.load(Ordering::Relaxed)
    };
    put(c.arg(1), &list)?;
    put(c.arg(2), &24u64).map(|()| 0)
}

/// `unshare(2)`: descriptors and directories can be had apart; namespaces can't. What threads of a process have in common
/// can be had apart by its only thread, which has it already.
pub fn unshare(c: &mut Call) -> Result<u64> {
    const OF_THREADS: u64 = (linux::CLONE_THREAD | linux::CLONE_SIGHAND | linux::CLONE_VM) as u64;
    const KNOWN: u64 =
        NAMESPACES | OF_THREADS | (linux::CLONE_FILES | linux::CLONE_FS | linux::CLONE_SYSVSEM) as u64;
    let f = c.arg(0);
    // A namespace of users is for whole processes.
    let alone = || c.task.process.tasks.lock().len() == 1;
    if f & !KNOWN != 0 || f & (OF_THREADS | u64::from(linux::CLONE_NEWUSER)) != 0 && !alone() {
        return Err(Errno::EINVAL);
    }
    if f & NAMESPACES != 0 {
        return Err(unsupported(c.task, "unshare of namespaces", Errno::EPERM));
    }
    if has(f, linux::CLONE_FILES) {
        let own = Arc::new(c.task.files.duplicate());
        drop(c.task.files.replace(own));
    }
    if has(f, linux::CLONE_FS) {
        let own = Arc::new(c.task.fs.duplicate());
        drop(c.task.fs.replace(own));
        c.task.forget_view();
    }
    if has(f, linux::CLONE_SYSVSEM) {
        crate::ipc::sem::undo(&c.task.process);
    }
    Ok(0)
}

/// Of a process whose machine is said to be one of 32 bits.
pub(super) const PER_LINUX32: u32 = 8;

/// A personality in which what is mapped to be read may be run, too, until the next exec.
pub const READ_IMPLIES_EXEC: u32 = 0x0040_0000;

/// `personality(2)`: those in which nothing differs here but what `uname` says, what may be run, and perhaps the layout of addresses.
pub fn personality(c: &mut Call) -> Result<u64> {
    const QUERY: u32 = u32::MAX;
    // ADDR_NO_RANDOMIZE, ADDR_COMPAT_LAYOUT, ADDR_LIMIT_32BIT, ADDR_LIMIT_3GB, SHORT_INODE, WHOLE_SECONDS.
    const KNOWN: u32 = 0x0004_0000
        | 0x0020_0000
        | READ_IMPLIES_EXEC
        | 0x0080_0000
        | 0x0800_0000
        | 0x0100_0000
        | 0x0200_0000
        | PER_LINUX32;
    let new = c.uint(0);
    let old = c.task.process.persona.load(Ordering::Relaxed);
    if new != QUERY {
        if new & !KNOWN != 0 {
            return Err(unsupported(c.task, "personality", Errno::EINVAL));
        }
        c.task.process.persona.store(new, Ordering::Relaxed);
    }
    Ok(u64::from(old))
}

/// When it started, in ticks since the machine's start, for `/proc/self/stat`.
pub fn start_ticks(p: &Process) -> u64 {
    p.started / 10_000_000
}
