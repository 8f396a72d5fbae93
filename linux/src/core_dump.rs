//! What is left of a program that ended by a signal: its memory and its threads' registers, in a file (`core(5)`).
//!
//! The thread that the signal came to stops all others of its process, each of which leaves a copy of its registers, and writes the file
//! through the cell's own files, as `core_pattern` says. What no page was ever brought in for is a hole in it.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Write;
use core::sync::atomic::Ordering;

use atoll_abi::frame::UserFrame;
use atoll_abi::layout::{PAGE, page_up};
use atoll_abi::{Errno, Result, platform};
use atoll_fs::namespace::How;
use atoll_fs::{FileType, Source};
use atoll_mem::user;
use atoll_mem::vm::{Kind, Object};
use atoll_sync::{Mutex, WaitQueue, breathe};
use atoll_task::{Limit, wait, wait_uninterrupted};
use linux_raw_sys::general as linux;
use object::elf;
use zerocopy::IntoBytes;

use crate::files::FileRef;
use crate::proc::{NamedArea, named_areas};
use crate::process::{Process, Task, work, world};
use crate::signal::bit;
use crate::syscalls::fd::set_length;
use crate::syscalls::path::{open_file, remove_path};
use crate::syscalls::ptrace::{NT_PRFPREG, NT_PRSTATUS, NT_X86_XSTATE, register_set};
use crate::types::Siginfo;
use crate::{log, ptrace};

/// Signals that end a program with a dump (`signal(7)`).
const DUMPED: u64 = bit(linux::SIGQUIT)
    | bit(linux::SIGILL)
    | bit(linux::SIGTRAP)
    | bit(linux::SIGABRT)
    | bit(linux::SIGBUS)
    | bit(linux::SIGFPE)
    | bit(linux::SIGSEGV)
    | bit(linux::SIGXCPU)
    | bit(linux::SIGXFSZ)
    | bit(linux::SIGSYS);
/// Set in a wait status: there is a dump.
const DUMP_FLAG: i32 = 0x80;
/// How long the other threads have to stop, ns. Who is in the middle of something long is left out.
const STOP_TIME: u64 = 1_000_000_000;

/// Notes beside those of registers.
const NT_PRPSINFO: u32 = 3;
const NT_AUXV: u32 = 6;
const NT_SIGINFO: u32 = 0x5349_4749;
const NT_FILE: u32 = 0x4649_4c45;

/// Bits of `/proc/PID/coredump_filter`.
mod filter {
    pub const ANONYMOUS: u32 = 1;
    pub const SHARED: u32 = 2;
    pub const FILES: u32 = 4;
    pub const SHARED_FILES: u32 = 8;
    pub const HEADERS: u32 = 16;
}

/// Memory that is written at a time, bytes.
const CHUNK: u64 = 64 << 10;
/// Bytes that NT_FILE may have.
const FILES_MAX: usize = 4 << 20;
/// Areas that are asked for at a time.
const AREAS: usize = 256;

/// A thread as it is written down.
struct Thread {
    tid: u32,
    pending: u64,
    blocked: u64,
    frame: Box<UserFrame>,
}

impl Thread {
    /// The current task, whose registers these are.
    fn of(task: &Task, frame: &mut UserFrame) -> Option<Thread> {
        ptrace::complete(frame);
        let mut copy = atoll_task::copy_of(frame)?;
        copy.rip = crate::exec::visible_rip(task, copy.rip);
        let (pending, blocked) = {
            let s = task.signals.lock();
            (s.pending.set(), s.blocked)
        };
        Some(Thread { tid: task.tid(), pending, blocked, frame: copy })
    }
}

/// A dump that is being made of a process.
#[derive(Default)]
pub struct Dump {
    state: Mutex<Option<Vec<Thread>>>,
    queue: WaitQueue,
}

/// Ends the current task's process by a signal, and leaves a dump if the signal is one of those, and there may be one. Value: wait status.
pub fn end(task: &Task, frame: &mut UserFrame, info: &Siginfo) -> i32 {
    let signal = info.signo as u32;
    let process = &task.process;
    let mut status = signal as i32;
    if DUMPED & bit(signal) != 0 && may_dump(process) {
        {
            let mut state = process.dump.state.lock();
            if state.is_some() || process.is_ending() {
                // Another thread's signal was first.
                drop(state);
                wait_for_end(task, frame);
                return status;
            }
            *state = Some(Vec::new());
        }
        match dump(task, frame, info) {
            Ok(()) => status |= DUMP_FLAG,
            Err(e) => log::line(format_args!(
                "{}[{}] ends by signal {signal}, and its core dump failed: {e}",
                String::from_utf8_lossy(&task.name()),
                process.pid
            )),
        }
    }
    process.end_as(status);
    status
}

fn may_dump(process: &Process) -> bool {
    process.dumpable.load(Ordering::Relaxed) == 1 && process.limit(linux::RLIMIT_CORE).cur >= PAGE
}

/// The current task leaves its registers for a dump, and waits for its end.
pub fn wait_for_end(task: &Task, frame: &mut UserFrame) {
    let dump = &task.process.dump;
    if let Some(thread) = Thread::of(task, frame)
        && let Some(list) = &mut *dump.state.lock()
    {
        list.push(thread);
    }
    dump.queue.wake_all(1);
    wait_uninterrupted(&task.process.life_queue, 1, || task.process.is_ending().then_some(()));
}

/// Is a dump of the process being made?
pub fn is_begun(process: &Process) -> bool {
    process.dump.state.lock().is_some()
}

/// A task of the process has ended.
pub fn task_ends(process: &Process) {
    process.dump.queue.wake_all(1);
}

/// Stops the process's other threads; all threads, the current one first.
fn stop_others(task: &Task, frame: &mut UserFrame) -> Result<Vec<Thread>> {
    let process = &task.process;
    let mut all = alloc::vec![Thread::of(task, frame).ok_or(Errno::ENOMEM)?];
    for other in process.tasks.lock().iter().filter(|t| t.tid() != task.tid()) {
        other.poke(work::DUMP);
        ptrace::wake(other);
    }
    let deadline = platform().now() + STOP_TIME;
    let have = || process.dump.state.lock().as_ref().map_or(0, Vec::len);
    let stopped = || have() + 1 >= process.tasks.lock().len() || process.is_ending();
    while wait(&process.dump.queue, 1, Limit::Until(deadline), || stopped().then_some(()))
        == Err(Errno::RESTART)
    {
        // Signals that come to it now are for nobody.
        if task.thread().take_asked(!work::END) == 0 {
            break;
        }
    }
    all.extend(process.dump.state.lock().as_mut().map(core::mem::take).unwrap_or_default());
    Ok(all)
}

fn dump(task: &Task, frame: &mut UserFrame, info: &Siginfo) -> Result<()> {
    let threads = stop_others(task, frame)?;
    let mut out = Out {
        task,
        file: create(task, info.signo as u32)?,
        left: task.process.limit(linux::RLIMIT_CORE).cur,
    };
    let (loads, files) = loads(task)?;
    let notes = notes(task, info, &threads, &files);
    // More segments than the header's field can tell are told by the first section (`elf(5)`, PN_XNUM).
    let count = loads.len() + 1;
    let many = count >= usize::from(elf::PN_XNUM);
    let sections = if many { SHDR } else { 0 };
    let heads = EHDR + count * PHDR;
    let begin = page_up((heads + sections + notes.len()) as u64);
    let mut head = Words(header(count, many, heads as u64));
    segment(&mut head, elf::PT_NOTE, 0, (heads + sections) as u64, 0, notes.len() as u64, 0);
    let (mut at, mut written) = (begin, 0);
    for load in &loads {
        segment(&mut head, elf::PT_LOAD, load.flags, at, load.start, load.written, load.len);
        at += load.written;
        if head.0.len() >= CHUNK as usize {
            out.write(written, &head.0)?;
            written += head.0.len() as u64;
            head.0.clear();
        }
    }
    if many {
        // sh_info is what counts.
        head.text(&[], 44).int(count as u32).text(&[], SHDR - 48);
    }
    head.0.extend_from_slice(&notes);
    out.write(written, &head.0)?;
    let mut at = begin;
    for load in &loads {
        out.memory(at, load)?;
        at += load.written;
    }
    // The last of it may be a hole; where the file system has no files of such a length it ends before that.
    let _ = set_length(task, &out.file, at);
    Ok(())
}

/// The file, as `core_pattern` names it.
fn create(task: &Task, signal: u32) -> Result<FileRef> {
    let pattern = world().core_pattern.lock().clone();
    if pattern.first() == Some(&b'|') {
        log::once("core_pattern", format_args!("core_pattern: dumps to programs aren't made in a cell"));
        return Err(Errno::EOPNOTSUPP);
    }
    let path = name(task, signal, &pattern);
    // What was there goes, and whoever puts something else there meanwhile is too late.
    let _ = remove_path(task, linux::AT_FDCWD, &path, false);
    let how = How { no_follow: true, ..How::default() };
    let flags = linux::O_CREAT | linux::O_EXCL | linux::O_RDWR | linux::O_NOFOLLOW;
    let file = open_file(task, linux::AT_FDCWD, &path, flags, 0o600, how)?;
    let attr = file.attr()?;
    if attr.mode & linux::S_IFMT != FileType::Regular as u32 || attr.uid != task.cred().uid {
        return Err(Errno::EPERM);
    }
    Ok(file)
}

/// What a pattern stands for (`core(5)`).
fn name(task: &Task, signal: u32, pattern: &[u8]) -> Vec<u8> {
    let process = &task.process;
    let mut out = Vec::new();
    let mut rest = pattern.iter().copied();
    while let Some(c) = rest.next() {
        if c != b'%' {
            out.push(c);
            continue;
        }
        let mut number = |n: u64| out.extend_from_slice(alloc::format!("{n}").as_bytes());
        // A slash would be another directory.
        let plain =
            |name: &[u8]| name.iter().map(|c| if *c == b'/' { b'!' } else { *c }).collect::<Vec<u8>>();
        match rest.next() {
            Some(b'%') => out.push(b'%'),
            Some(b'p' | b'P') => number(process.pid.into()),
            Some(b'i' | b'I') => number(task.tid().into()),
            Some(b'u') => number(process.ids().ruid.into()),
            Some(b'g') => number(process.ids().rgid.into()),
            Some(b'd') => number(process.dumpable.load(Ordering::Relaxed).into()),
            Some(b's') => number(signal.into()),
            Some(b't') => number(platform().realtime() / 1_000_000_000),
            Some(b'c') => number(process.limit(linux::RLIMIT_CORE).cur),
            Some(b'h') => out.extend(plain(&world().hostname.lock())),
            Some(b'e' | b'f') => out.extend(plain(&task.name())),
            Some(b'E') => out.extend(plain(&process.image.lock().exe)),
            _ => {}
        }
    }
    out
}

/// All of the program's memory, and what NT_FILE says of it. ENOMEM: too much for a list.
fn loads(task: &Task) -> Result<(Vec<Load>, Vec<u8>)> {
    let mut list = Vec::new();
    let (mut count, mut places, mut names) = (0u64, Words::default(), Vec::new());
    let mut from = Some(0);
    while let Some(at) = from {
        let (some, next) = named_areas(task, at, AREAS);
        list.try_reserve(some.len()).map_err(|_| Errno::ENOMEM)?;
        for named in some {
            list.push(Load::of(task, &named));
            let is_file = matches!(named.area.kind, Kind::File { .. }) && !named.name.is_empty();
            // As Linux, which tells nothing of more.
            if is_file && names.len() + places.0.len() < FILES_MAX {
                count += 1;
                places.long(named.start).long(named.area.end).long(named.offset / PAGE);
                names.extend_from_slice(&named.name);
                names.push(0);
            }
        }
        breathe();
        from = next;
    }
    let mut files = Words::default();
    files.long(count).long(PAGE);
    files.0.extend(places.0);
    files.0.extend(names);
    Ok((list, files.0))
}

/// A part of memory in the file.
struct Load {
    start: u64,
    len: u64,
    /// So much of it is in the file, bytes.
    written: u64,
    flags: u32,
    /// Whose memory it is.
    of: Of,
}

/// Whose memory a part is, and so what of it is there.
enum Of {
    /// The program's own: what was never touched is known.
    Program,
    /// A file's, with what the program has of its own in place of that.
    File,
    /// An object's, from an offset on.
    Object(Arc<dyn Object>, u64),
}

impl Load {
    fn of(task: &Task, named: &NamedArea) -> Load {
        use atoll_abi::platform::Access;
        let NamedArea { start, area, .. } = named;
        let (start, len) = (*start, area.end - start);
        let wanted = task.process.dump_filter.load(Ordering::Relaxed);
        let wants = |what: u32| wanted & what != 0;
        let is_file = matches!(area.kind, Kind::File { .. });
        // What is the program's own, even if it can't write there any more.
        let has_own = || task.space.memory.next_in_place(start, area.end).is_some();
        let all = match (&area.kind, area.shared) {
            _ if area.undumped => false,
            (Kind::Anonymous, _) => wants(filter::ANONYMOUS) && has_own(),
            (Kind::File { .. }, true) => wants(filter::SHARED_FILES),
            (Kind::File { .. }, false) => {
                wants(filter::FILES) || wants(filter::ANONYMOUS) && !area.plain && has_own()
            }
            (Kind::Object { .. }, _) => wants(filter::SHARED),
        };
        let is_head = || {
            let mut magic = [0; 4];
            is_file && named.offset == 0 && user::read(start, &mut magic).is_ok() && magic == *b"\x7fELF"
        };
        let of = match &area.kind {
            Kind::Anonymous => Of::Program,
            Kind::File { .. } => Of::File,
            Kind::Object { object, offset, .. } => Of::Object(object.clone(), *offset),
        };
        let written = match () {
            () if all => match &of {
                // Nothing is behind the object's end.
                Of::Object(object, offset) => len.min(page_up(object.size().saturating_sub(*offset))),
                _ => len,
            },
            () if wants(filter::HEADERS) && area.access.contains(Access::READ) && is_head() => PAGE.min(len),
            () => 0,
        };
        let flag = |a: Access, f: elf::ProgramFlags| if area.access.contains(a) { f.0 } else { 0 };
        let flags =
            flag(Access::READ, elf::PF_R) | flag(Access::WRITE, elf::PF_W) | flag(Access::EXEC, elf::PF_X);
        Load { start, len, written, flags, of }
    }
}

/// The file while it is written.
struct Out<'a> {
    task: &'a Task,
    file: FileRef,
    /// So many bytes may still be written (RLIMIT_CORE): holes don't count.
    left: u64,
}

impl Out<'_> {
    /// Writes, up to the limit.
    fn write(&mut self, mut at: u64, bytes: &[u8]) -> Result<()> {
        self.look_up()?;
        let mut bytes = &bytes[..self.left.min(bytes.len() as u64) as usize];
        while !bytes.is_empty() {
            let n = self.file.write_at(&mut Source::kernel(bytes), at, u64::MAX)?;
            if n == 0 {
                return Err(Errno::ENOSPC);
            }
            bytes = &bytes[n..];
            at += n as u64;
            self.left -= n as u64;
        }
        Ok(())
    }

    /// EINTR: the process was killed.
    fn look_up(&self) -> Result<()> {
        breathe();
        if self.task.process.killed.load(Ordering::Relaxed) { Err(Errno::EINTR) } else { Ok(()) }
    }

    fn memory(&mut self, at: u64, load: &Load) -> Result<()> {
        let memory = &self.task.space.memory;
        let mut bytes = alloc::vec![0; CHUNK as usize];
        let (mut from, end) = (load.start, load.start + load.written);
        while from < end && self.left > 0 {
            self.look_up()?;
            // To where there is something next.
            match &load.of {
                Of::Program => match memory.next_in_place(from, end) {
                    Some(next) => from = next.max(from),
                    None => return Ok(()),
                },
                Of::Object(object, offset) => {
                    // By the object's own pieces, which need not begin where those of addresses do.
                    let within = (from - load.start + offset) % CHUNK;
                    if !object.has_memory(from - load.start + offset - within) {
                        from += CHUNK - within;
                        continue;
                    }
                }
                Of::File => {}
            }
            let part = &mut bytes[..(end - from).min(CHUNK) as usize];
            let mut n = if matches!(load.of, Of::Object(..)) { 0 } else { memory.look_at(from, part) };
            if n == 0 && !matches!(load.of, Of::Program) {
                // Of what isn't its own, up to where that is: it may not even be readable.
                let next = memory.next_in_place(from, from + part.len() as u64).unwrap_or(u64::MAX);
                let len = part.len().min(next.saturating_sub(from) as usize);
                n = user::read_some(from, &mut part[..len]).unwrap_or(0);
            }
            if part[..n].iter().any(|b| *b != 0) {
                self.write(at + (from - load.start), &part[..n])?;
            }
            from += (n as u64).max(PAGE);
        }
        Ok(())
    }
}

/// `Elf64_Ehdr` (`elf(5)`). `heads`: where the section's header is, if one is needed.
fn header(count: usize, many: bool, heads: u64) -> Vec<u8> {
    let mut w = Words::default();
    w.text(&[0x7f, b'E', b'L', b'F', elf::ELFCLASS64.0, elf::ELFDATA2LSB.0, elf::EV_CURRENT.0], 16);
    w.short(elf::ET_CORE.0).short(elf::EM_X86_64.0).int(1).long(0);
    w.long(EHDR as u64).long(if many { heads } else { 0 }).int(0);
    w.short(EHDR as u16).short(PHDR as u16).short(if many { elf::PN_XNUM } else { count as u16 });
    w.short(if many { SHDR as u16 } else { 0 }).short(many.into()).short(0);
    w.0
}

/// `Elf64_Phdr`.
fn segment(
    to: &mut Words,
    kind: elf::ProgramType,
    flags: u32,
    offset: u64,
    addr: u64,
    written: u64,
    len: u64,
) {
    let align = if kind == elf::PT_LOAD { PAGE } else { 4 };
    to.int(kind.0).int(flags).long(offset).long(addr).long(0).long(written).long(len).long(align);
}

fn note(to: &mut Vec<u8>, owner: &str, kind: u32, bytes: &[u8]) {
    for word in [owner.len() as u32 + 1, bytes.len() as u32, kind] {
        to.extend_from_slice(&word.to_ne_bytes());
    }
    for part in [owner.as_bytes(), bytes] {
        to.extend_from_slice(part);
        // A name is ended by a zero; both are filled up to words.
        let len = part.len() + usize::from(core::ptr::eq(part, owner.as_bytes()));
        to.resize(to.len() + (len.next_multiple_of(4) - part.len()), 0);
    }
}

fn notes(task: &Task, info: &Siginfo, threads: &[Thread], files: &[u8]) -> Vec<u8> {
    let mut to = Vec::new();
    let process = &task.process;
    for (n, thread) in threads.iter().enumerate() {
        note(&mut to, "CORE", NT_PRSTATUS as u32, &status_of(process, info, thread));
        if n == 0 {
            note(&mut to, "CORE", NT_PRPSINFO, &about(task));
            note(&mut to, "CORE", NT_SIGINFO, info.as_bytes());
            note(&mut to, "CORE", NT_AUXV, &process.image.lock().auxv);
            note(&mut to, "CORE", NT_FILE, files);
        }
        for (owner, kind) in [("CORE", NT_PRFPREG), ("LINUX", NT_X86_XSTATE)] {
            if let Ok(bytes) = register_set(kind, &thread.frame) {
                note(&mut to, owner, kind as u32, &bytes);
            }
        }
    }
    to
}

/// Sizes of ELF's headers, bytes: the file's, a segment's, a section's.
const EHDR: usize = 64;
const PHDR: usize = 56;
const SHDR: usize = 64;

/// Words of a structure, one after the other.
#[derive(Default)]
struct Words(Vec<u8>);

impl Words {
    fn short(&mut self, n: u16) -> &mut Self {
        self.0.extend_from_slice(&n.to_ne_bytes());
        self
    }

    fn int(&mut self, n: u32) -> &mut Self {
        self.0.extend_from_slice(&n.to_ne_bytes());
        self
    }

    fn long(&mut self, n: u64) -> &mut Self {
        self.0.extend_from_slice(&n.to_ne_bytes());
        self
    }

    /// Bytes, and zeroes up to a length.
    fn text(&mut self, text: &[u8], len: usize) -> &mut Self {
        let end = self.0.len() + len;
        self.0.extend_from_slice(&text[..text.len().min(len)]);
        self.0.resize(end, 0);
        self
    }
}

/// `struct elf_prstatus`.
fn status_of(process: &Process, info: &Siginfo, thread: &Thread) -> Vec<u8> {
    let mut w = Words::default();
    let load = |word: &core::sync::atomic::AtomicU32| word.load(Ordering::Relaxed);
    // siginfo, the signal as a short with its padding, signals.
    w.int(info.signo as u32).int(info.code as u32).int(info.errno as u32).int(info.signo as u32);
    w.long(thread.pending).long(thread.blocked);
    w.int(thread.tid).int(process.parent_pid()).int(load(&process.pgid)).int(load(&process.sid));
    let of_children = *process.child_usage.lock();
    for usage in [process.divided(), of_children] {
        for time in [usage.rusage().utime, usage.rusage().stime] {
            w.long(time.sec as u64).long(time.usec as u64);
        }
    }
    w.0.extend(register_set(NT_PRSTATUS, &thread.frame).unwrap_or_default());
    // The floating-point registers are there, too.
    w.int(1).int(0);
    w.0
}

/// `struct elf_prpsinfo`.
fn about(task: &Task) -> Vec<u8> {
    let process = &task.process;
    let mut w = Words::default();
    let load = |word: &core::sync::atomic::AtomicU32| word.load(Ordering::Relaxed);
    let nice = task.nice.load(Ordering::Relaxed) as u8;
    let (uid, gid) = {
        let ids = process.ids();
        (ids.ruid, ids.rgid)
    };
    // It runs.
    w.text(&[0, b'R', 0, nice], 8).long(0).int(uid).int(gid);
    w.int(process.pid).int(process.parent_pid()).int(load(&process.pgid)).int(load(&process.sid));
    let mut line = process.image.lock().cmdline.clone();
    line.iter_mut().filter(|c| **c == 0).for_each(|c| *c = b' ');
    line.truncate(79);
    w.text(&task.name(), 16).text(&line, 80);
    w.0
}

/// What `core_pattern` begins with.
pub const PATTERN: &[u8] = b"core";
/// Its length at most (`core(5)`).
const PATTERN_MAX: usize = 127;

/// `/proc/sys/kernel/core_pattern`.
pub fn pattern() -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{}", String::from_utf8_lossy(&world().core_pattern.lock()));
    text
}

/// Changes it.
pub fn set_pattern(bytes: &[u8]) -> Result<()> {
    let line = bytes.split(|b| *b == b'\n' || *b == 0).next().unwrap_or_default();
    if line.len() > PATTERN_MAX {
        return Err(Errno::EINVAL);
    }
    *world().core_pattern.lock() = line.to_vec();
    Ok(())
}
