//! Loading programs: `execve(2)`.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use atoll_abi::control::{MappingKind, space_state};
use atoll_abi::frame::UserFrame;
use atoll_abi::layout::{PAGE, RUNTIME_BASE, USER_MAX, page_down, page_up};
use atoll_abi::platform::Access;
use atoll_abi::{Errno, Result, platform};
use atoll_fs::namespace::{How, Target, Walker};
use atoll_fs::node::InUse;
use atoll_fs::types::may;
use atoll_fs::{File, FileType, Location, Sink};
use atoll_mem::user;
use atoll_mem::vm::{AddressSpace, Kind, MapRequest, Mappable, Place, SLOT, STACK};
use atoll_sync::Mutex;
use linux_raw_sys::{auxvec, general as linux};
use object::LittleEndian as LE;
use object::elf;
use object::read::elf::{FileHeader, ProgramHeader};

use crate::aio;
use crate::capabilities::FileCapabilities;
use crate::files::FileRef;
use crate::futex;
use crate::grid;
use crate::ipc::mqueue;
use crate::memory_policy;
use crate::pi;
use crate::process::{Image, Space, Task, base_name, world};
use crate::signal;
use crate::syscalls::process::READ_IMPLIES_EXEC;
use crate::units;
use crate::vdso;

/// Most bytes of arguments and environment, whatever the stack may have, and that they may be in any case.
const ARGS_MAX: u64 = 6 << 20;
const ARGS_ALWAYS: u64 = 128 << 10;
/// Longest single argument (MAX_ARG_STRLEN).
pub const ARG_MAX: usize = 128 << 10;
/// Longest chain of script interpreters.
const SCRIPTS_MAX: u32 = 5;
/// Length of a script's first line that counts (BINPRM_BUF_SIZE).
const SCRIPT_LINE: usize = 256;
/// Where position-independent programs are loaded without randomization (as Linux does).
const PIE_BASE: u64 = 0x5555_5555_4000;
/// Bytes of a stack below the strings that a program begins with, as on Linux.
const STACK_ROOM: u64 = 132 << 10;
/// Top of the program's addresses for mappings and stacks.
const TOP: u64 = 0x7fff_ffff_f000;

/// What to run.
pub struct Program {
    /// The file, as the caller named it.
    pub place: Location,
    /// Its path, for AT_EXECFN and /proc/self/exe.
    pub path: Vec<u8>,
    /// Arguments.
    pub args: Vec<Vec<u8>>,
    /// Environment.
    pub env: Vec<Vec<u8>>,
    /// Where its file is, as /proc/PID/exe says it.
    exe: Vec<u8>,
    /// It is what a descriptor is open at, and has the name of that file.
    is_open: bool,
    /// Its path goes by a descriptor that exec closes.
    pub is_closed: bool,
}

impl Program {
    /// Of a file that was found under a path, as yet without arguments.
    pub fn new(place: Location, path: Vec<u8>) -> Program {
        let exe = place.path_of(&path);
        Program { place, path, args: Vec::new(), env: Vec::new(), exe, is_open: false, is_closed: false }
    }

    /// The same with these arguments, and this environment.
    pub fn with(self, args: Vec<Vec<u8>>, env: Vec<Vec<u8>>) -> Program {
        Program { args, env, ..self }
    }

    /// The same of one that is looked for.
    pub fn find(task: &Task, path: Vec<u8>) -> Result<Program> {
        match target(task, &path)? {
            Target::Found(place) => Ok(Program::new(place, path)),
            Target::Open(file) => Program::at(&file, path),
            Target::Missing => Err(Errno::ENOENT),
        }
    }

    /// Of what a descriptor is open at. EACCES: no program can be there.
    pub fn opened(file: &FileRef, path: Vec<u8>) -> Result<Program> {
        let place = place_of(file).ok_or(Errno::EACCES)?;
        Ok(Program { exe: file.describe(), is_open: true, ..Program::new(place, path) })
    }

    /// Of what is open by this path.
    pub fn at(file: &FileRef, path: Vec<u8>) -> Result<Program> {
        Ok(Program { is_open: false, ..Program::opened(file, path)? })
    }

    /// What its task is called: as it was found, or as its file is (Linux 6.14).
    fn name(&self, found: &[u8]) -> Vec<u8> {
        let exe = || base_name(self.exe.strip_suffix(b" (deleted)").unwrap_or(&self.exe)).to_vec();
        if self.is_open { exe() } else { base_name(found).to_vec() }
    }
}

/// Where a file is that is open. Those in memory that have no name are nowhere.
pub fn place_of(file: &FileRef) -> Option<Location> {
    let of_memory = || {
        let inode = file.file().clone().inode()?;
        Some(Location { mount: world().nowhere, inode })
    };
    file.place().cloned().or_else(of_memory)
}

/// Bytes of the header of an ELF file.
const ELF_HEADER: usize = size_of::<elf::FileHeader64<LE>>();

/// An ELF file that was looked at.
struct Elf {
    file: Arc<dyn Mappable>,
    entry: u64,
    segments: Vec<Segment>,
    interpreter: Option<Vec<u8>>,
    /// Address of the program headers, relative to the load address.
    headers: u64,
    header_count: u64,
    fixed: bool,
    executable_stack: bool,
}

struct Segment {
    addr: u64,
    memory: u64,
    offset: u64,
    file: u64,
    access: Access,
}

fn read_file(file: &dyn File, offset: u64, len: usize) -> Result<Vec<u8>> {
    let mut bytes = atoll_mem::buffer(len)?;
    let mut done = 0;
    while done < len {
        let n = file.read(&mut Sink::kernel(&mut bytes[done..]), Some(offset + done as u64), false)?;
        if n == 0 {
            break;
        }
        done += n;
    }
    bytes.truncate(done);
    Ok(bytes)
}

/// Opens a file to be executed, and keeps those away who want to write to it.
fn open_executable(task: &Task, place: &Location) -> Result<(Arc<dyn File>, InUse)> {
    if place.inode.kind() != FileType::Regular {
        return Err(Errno::EACCES);
    }
    let cred = task.cred();
    cred.check(&place.inode.attr()?, may::EXEC)?;
    let running = InUse::to_run(&place.inode)?;
    Ok((place.inode.clone().open_again(linux::O_RDONLY, &cred)?, running))
}

fn parse(file: &Arc<dyn File>, head: &[u8]) -> Result<Elf> {
    let bad = |_| Errno::ENOEXEC;
    let header = elf::FileHeader64::<LE>::parse(head).map_err(bad)?;
    if header.e_machine(LE) != elf::EM_X86_64 {
        return Err(Errno::ENOEXEC);
    }
    let fixed = match header.e_type(LE) {
        elf::ET_EXEC => true,
        elf::ET_DYN => false,
        _ => return Err(Errno::ENOEXEC),
    };
    let (at, size, count) =
        (header.e_phoff(LE), u64::from(header.e_phentsize(LE)), u64::from(header.e_phnum(LE)));
    if size != 56 || count == 0 || count > 1024 {
        return Err(Errno::ENOEXEC);
    }
    // The header and the program headers, which need not be near each other.
    let end = at.checked_add(size * count).ok_or(Errno::ENOEXEC)?;
    if end > 1 << 20 {
        return Err(Errno::ENOEXEC);
    }
    let bytes = read_file(&**file, 0, end as usize)?;
    let headers = header.program_headers(LE, &bytes[..]).map_err(bad)?;
    let mut segments = Vec::new();
    let mut interpreter = None;
    let mut phdr = 0;
    let mut executable_stack = false;
    for h in headers {
        match h.p_type(LE) {
            elf::PT_LOAD => {
                let (addr, memory, offset, len) =
                    (h.p_vaddr(LE), h.p_memsz(LE), h.p_offset(LE), h.p_filesz(LE));
                let ok = addr % PAGE == offset % PAGE
                    && len <= memory
                    && addr.checked_add(memory).is_some_and(|e| e < TOP)
                    && offset.checked_add(len).is_some();
                if !ok {
                    return Err(Errno::ENOEXEC);
                }
                if memory == 0 {
                    continue;
                }
                let mut access = Access::empty();
                access.set(Access::READ, (h.p_flags(LE) & elf::PF_R).0 != 0);
                access.set(Access::WRITE, (h.p_flags(LE) & elf::PF_W).0 != 0);
                access.set(Access::EXEC, (h.p_flags(LE) & elf::PF_X).0 != 0);
                if (offset..offset + len).contains(&at) {
                    phdr = addr + (at - offset);
                }
                segments.push(Segment { addr, memory, offset, file: len, access });
            }
            // Only the first one counts.
            elf::PT_INTERP if interpreter.is_none() => {
                let len = h.p_filesz(LE);
                if !(2..=4096).contains(&len) {
                    return Err(Errno::ENOEXEC);
                }
                let mut name = read_file(&**file, h.p_offset(LE), len as usize)?;
                if name.len() < len as usize {
                    return Err(Errno::EIO);
                }
                if name.last() != Some(&0) {
                    return Err(Errno::ENOEXEC);
                }
                let end = name.iter().position(|b| *b == 0);
                name.truncate(end.unwrap_or(0));
                interpreter = Some(name);
            }
            elf::PT_GNU_STACK => executable_stack = (h.p_flags(LE) & elf::PF_X).0 != 0,
            _ => {}
        }
    }
    segments.sort_unstable_by_key(|s| s.addr);
    if segments.is_empty() || segments.windows(2).any(|w| w[0].addr + w[0].memory > w[1].addr) {
        return Err(Errno::ENOEXEC);
    }
    Ok(Elf {
        file: file.clone().mappable().map_err(|_| Errno::EACCES)?,
        entry: header.e_entry(LE),
        segments,
        interpreter,
        headers: phdr,
        header_count: count,
        fixed,
        executable_stack,
    })
}

impl Elf {
    fn span(&self) -> (u64, u64) {
        let first = page_down(self.segments[0].addr);
        let last = self.segments.last().map_or(0, |s| page_up(s.addr + s.memory));
        (first, last)
    }

    /// Maps the segments; the load address (what to add to the file's addresses).
    fn load(&self, memory: &AddressSpace, base: Option<u64>) -> Result<u64> {
        let (first, last) = self.span();
        let bias = if self.fixed {
            0
        } else {
            // Room for all of it, then the segments over it. It lies as files do.
            let at = memory.map(MapRequest {
                addr: base.unwrap_or(0),
                len: last - first,
                access: Access::empty(),
                shared: false,
                kind: Kind::File { file: self.file.clone(), offset: 0 },
                place: Place::Hint,
                name: "",
                ..MapRequest::default()
            })?;
            memory.unmap(at, last - first)?;
            at - first
        };
        for s in &self.segments {
            let addr = s.addr + bias;
            let start = page_down(addr);
            let file_end = addr + s.file;
            if s.file > 0 {
                memory.map(MapRequest {
                    addr: start,
                    len: file_end - start,
                    access: s.access,
                    shared: false,
                    kind: Kind::File { file: self.file.clone(), offset: page_down(s.offset) },
                    place: Place::Fixed,
                    name: "",
                    populate: s.access.contains(Access::WRITE) && s.file < 1 << 20,
                    ..MapRequest::default()
                })?;
            }
            let mapped = if s.file > 0 { page_up(file_end) } else { start };
            let end = page_up(addr + s.memory);
            if end > mapped {
                memory.map(MapRequest {
                    addr: mapped,
                    len: end - mapped,
                    access: s.access,
                    shared: false,
                    kind: Kind::Anonymous,
                    place: Place::Fixed,
                    name: "",
                    ..MapRequest::default()
                })?;
            }
            if s.memory > s.file && s.file > 0 && s.access.contains(Access::WRITE) && mapped > file_end {
                // What the file has behind the segment's end is not the program's.
                user::zero(file_end, (mapped - file_end) as usize)?;
            }
        }
        Ok(bias)
    }
}

/// Random bits for the layout of an address space: up to `pages` pages.
fn random_pages(pages: u64) -> u64 {
    if !world().randomize.load(Ordering::Relaxed) {
        return 0;
    }
    let mut b = [0; 8];
    platform().random(&mut b);
    u64::from_ne_bytes(b) % pages * PAGE
}

/// A program, the name it is to have, its file, what its header says, and that it runs.
type Resolved = (Program, Vec<u8>, Arc<dyn File>, Elf, InUse);

/// What is going to be loaded: the program, or the interpreter of a script with other arguments.
#[inline(never)]
fn resolve(task: &Task, mut program: Program) -> Result<Resolved> {
    let name = program.path.clone();
    for _ in 0..=SCRIPTS_MAX {
        let (file, running) = open_executable(task, &program.place)?;
        let head = read_file(&*file, 0, SCRIPT_LINE).inspect_err(|_| _ = file.release(linux::O_RDONLY))?;
        if !head.starts_with(b"#!") {
            // Only what is going to stay open is closed by its owner: this one now.
            let elf = parse(&file, &head);
            if elf.is_err() {
                let _ = file.release(linux::O_RDONLY);
            }
            return elf.map(|e| (program, name, file, e, running));
        }
        let _ = file.release(linux::O_RDONLY);
        let line = match head[2..].iter().position(|b| *b == b'\n') {
            Some(end) => &head[2..2 + end],
            None if head.len() < SCRIPT_LINE => &head[2..],
            // It goes on, and has an interpreter whose name has not been cut (`load_script` of Linux).
            None => {
                let name = trim(&head[2..]);
                if name.iter().all(|b| !matches!(b, b' ' | b'\t' | 0))
                    && head.last().is_some_and(|b| name.last() == Some(b))
                {
                    return Err(Errno::ENOEXEC);
                }
                &head[2..SCRIPT_LINE - 1]
            }
        };
        let line = trim(line);
        let (interpreter, argument) = match line.iter().position(|b| *b == b' ' || *b == b'\t') {
            Some(at) => (&line[..at], trim(&line[at..])),
            None => (line, &[][..]),
        };
        if interpreter.is_empty() {
            return Err(Errno::ENOEXEC);
        }
        // It couldn't open the script.
        if program.is_closed {
            return Err(Errno::ENOENT);
        }
        let mut args = alloc::vec![interpreter.to_vec()];
        if !argument.is_empty() {
            args.push(argument.to_vec());
        }
        args.push(program.path.clone());
        args.extend(program.args.drain(..).skip(1));
        let found = Program::find(task, interpreter.to_vec())?;
        program = Program { args, env: program.env, is_open: program.is_open, ..found };
    }
    Err(Errno::ELOOP)
}

fn trim(mut line: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = line {
        line = rest;
    }
    while let [rest @ .., b' ' | b'\t' | 0] = line {
        line = rest;
    }
    line
}

/// Finds a file for the current task.
pub fn lookup(task: &Task, path: &[u8]) -> Result<Location> {
    match target(task, path)? {
        Target::Found(l) => Ok(l),
        Target::Open(f) => place_of(&f).ok_or(Errno::EACCES),
        Target::Missing => Err(Errno::ENOENT),
    }
}

fn target(task: &Task, path: &[u8]) -> Result<Target> {
    let (root, cwd) = (task.fs.root.lock().clone(), task.fs.cwd.lock().clone());
    let cred = task.cred();
    let walker = Walker { tree: &world().tree, root: &root, cred: &cred };
    Ok(walker.walk(&cwd, path, How { opens: true, ..How::default() })?.target)
}

/// The capabilities that this file gives to the task if it runs it, as far as they matter to it. EPERM: they are less than what it
/// counts on.
fn file_capabilities(task: &Task, place: &Location) -> Result<Option<FileCapabilities>> {
    let ids = task.ids();
    let asks = {
        // A set-user-ID bit makes a root of who isn't.
        let by_mode = place.inode.attr()?.mode & linux::S_ISUID != 0;
        by_mode || ids.capabilities.asks_file([ids.ruid, ids.euid])
    };
    if !asks {
        return Ok(None);
    }
    let file =
        place.inode.get_xattr(FileCapabilities::NAME).ok().and_then(|value| FileCapabilities::parse(&value));
    if let Some(file) = &file {
        ids.capabilities.check_file(file)?;
    }
    Ok(file)
}

/// Replaces the current task's program. On success the task's frame is the new program's.
pub fn exec(task: &Task, frame: &mut UserFrame, program: Program) -> Result<()> {
    // A quarter of what its stack may have (`bprm_stack_limits` of Linux).
    let stack = task.process.limit(linux::RLIMIT_STACK).cur;
    let most = (stack / 4).clamp(ARGS_ALWAYS, ARGS_MAX).min(stack);
    let strings = program.args.iter().chain(&program.env).map(|s| s.len() as u64 + 9);
    if strings.sum::<u64>() + program.path.len() as u64 + 1 > most {
        return Err(Errno::E2BIG);
    }
    let (program, name, file, elf, running) = resolve(task, program)?;
    let interpreter = match &elf.interpreter {
        Some(path) => {
            let found = || {
                let (file, _running) = open_executable(task, &lookup(task, path)?)?;
                let head = read_file(&*file, 0, SCRIPT_LINE);
                let parsed = head.and_then(|head| match head.len() {
                    0..ELF_HEADER => Err(Errno::EIO),
                    _ => parse(&file, &head).map_err(|_| Errno::ELIBBAD),
                });
                let _ = file.release(linux::O_RDONLY);
                parsed
            };
            Some(found().inspect_err(|_| _ = file.release(linux::O_RDONLY))?)
        }
        None => None,
    };
    // What a file in memory without a name says of rights doesn't count (`mnt_may_suid` of Linux).
    let capabilities = match program.place.is_nowhere() {
        true => None,
        false => {
            file_capabilities(task, &program.place).inspect_err(|_| _ = file.release(linux::O_RDONLY))?
        }
    };
    let process = task.process.clone();
    let new = || new_space(|| Ok(AddressSpace::new(TOP)));
    // Where others are in its space it needs another one, and while it can still fail is the time.
    let others = task.space.users.load(Ordering::SeqCst) > 1;
    let mut ready = match others.then(new).transpose() {
        Ok(ready) => ready,
        Err(e) => {
            let _ = file.release(linux::O_RDONLY);
            return Err(e);
        }
    };
    // From here on there is no way back: the old program is going.
    if !become_only_task(task) {
        let _ = file.release(linux::O_RDONLY);
        return Err(Errno::EAGAIN);
    }
    // While it has its id and its memory is there: locks in what it shares go to others, and who waits for its end hears of it
    // (`exec_mm_release` of Linux).
    pi::owner_leaves(task);
    task.become_leader();
    futex::task_ends(task);
    task.clear_tid(false);
    if ready.is_some() || task.space.users.load(Ordering::SeqCst) > 1 || !task.space.close() {
        // A visitor that came just now has it use another one.
        let Some(fresh) = ready.take().or_else(|| new().ok()) else {
            let _ = file.release(linux::O_RDONLY);
            end_without_program(task);
            return Ok(());
        };
        let id = fresh.id;
        // Nobody looks at it before the program has the rights that it is to have.
        fresh.close();
        let old = task.space.replace(fresh);
        if old.users.fetch_sub(1, Ordering::SeqCst) == 1 {
            // The other one has left meanwhile, and this thread is still there.
            aio::leave(&old);
            process.forget_memory(&old.memory);
        }
        drop(old);
        atoll_task::move_to_space(id);
    } else {
        aio::leave(&task.space);
        process.forget_memory(&task.space.memory);
        task.space.barriers.store(0, Ordering::Relaxed);
    }
    process.release_parent();
    // Files that another process shares stay open there; ours are our own from now on.
    let files = task.files.share();
    if Arc::strong_count(&files) > 2 {
        drop(task.files.replace(Arc::new(files.duplicate())));
    }
    drop(files);
    // Who hears that the old program's files are closed, as `Popen` of Python does, finds the new one (`begin_new_exec` of Linux
    // changes the memory first), though it is not loaded yet.
    {
        let mut image = process.image.lock();
        image.exe = program.exe.clone();
        image.place = Some(program.place.clone());
        image.cmdline = joined(&program.args);
        image.environ = joined(&program.env);
        image.ranges = [0; 5];
    }
    task.files.close_on_exec(|file| crate::syscalls::fd::closing(task, file));
    mqueue::leave(&process);
    drop(process.actions.replace(process.actions.after_exec()));
    task.signals.lock().altstack = signal::no_altstack();
    process.timers.lock().clear();
    units::leave_all(task);
    units::end_all(&process);
    if let Ok(mut attr) = program.place.inode.attr() {
        if program.place.is_nowhere() {
            attr.mode &= !(linux::S_ISUID | linux::S_ISGID);
        }
        task.take_ids(&attr, capabilities);
    }
    task.set_name(&program.name(&name));
    process.execs.fetch_add(1, Ordering::Relaxed);
    process.persona.fetch_and(!READ_IMPLIES_EXEC, Ordering::Relaxed);
    // Whatever its maker asked for was for the old program (`execve(2)`).
    process.exit_signal.store(linux::SIGCHLD, Ordering::Relaxed);
    let loaded = load(task, frame, &program, &name, &elf, interpreter.as_ref(), Arc::new(running));
    let _ = file.release(linux::O_RDONLY);
    task.space.open();
    if loaded.is_err() {
        end_without_program(task);
    }
    Ok(())
}

/// As Linux does when it fails behind the point of no return.
fn end_without_program(task: &Task) {
    task.process.end(linux::SIGKILL as i32);
    task.thread().ask(crate::process::work::END);
}

/// Could the task run this program, as far as its file goes (AT_EXECVE_CHECK)?
pub fn check(task: &Task, program: &Program) -> Result<()> {
    let (file, _running) = open_executable(task, &program.place)?;
    let _ = file.release(linux::O_RDONLY);
    Ok(())
}

/// Strings as /proc has them: each ended by a zero byte.
fn joined(list: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    for s in list {
        out.extend_from_slice(s);
        out.push(0);
    }
    out
}

/// Ends all other tasks of the process. False: the process is ending itself.
fn become_only_task(task: &Task) -> bool {
    let process = &task.process;
    for t in process.tasks.lock().iter().filter(|t| t.tid() != task.tid()) {
        t.poke(crate::process::work::END);
    }
    atoll_task::wait_uninterrupted(&process.life_queue, 1, || {
        (process.tasks.lock().len() == 1 || process.is_ending()).then_some(())
    });
    !process.is_ending()
}

struct Layout {
    stack_top: u64,
    mappings_top: u64,
    pie: u64,
}

fn layout(stack_limit: u64) -> Layout {
    // As Linux: the stack on top, a gap for it to grow, mappings below.
    let stack_top = TOP - random_pages(1 << 22);
    let gap = stack_limit.clamp(128 << 20, 5 << 40) + (1 << 30);
    Layout {
        stack_top,
        mappings_top: page_down(stack_top - gap - random_pages(1 << 28)),
        // Code lies alike in all processes of a program.
        pie: PIE_BASE + (random_pages(1 << 28) & !(SLOT - 1)),
    }
}

#[inline(never)]
fn load(
    task: &Task,
    frame: &mut UserFrame,
    program: &Program,
    name: &[u8],
    elf: &Elf,
    interpreter: Option<&Elf>,
    running: Arc<InUse>,
) -> Result<()> {
    let memory = &task.space.memory;
    let stack_limit = task.process.limit(linux::RLIMIT_STACK).cur;
    let layout = layout(stack_limit);
    memory.set_top(layout.mappings_top);
    let policy = memory_policy::starts(&task.process, &program.exe);
    task.process.apply_paging(memory);
    let bias = elf.load(memory, Some(layout.pie))?;
    let (base, entry) = match interpreter {
        Some(i) => {
            let base = i.load(memory, None)?;
            (base, i.entry.wrapping_add(base))
        }
        None => (0, elf.entry.wrapping_add(bias)),
    };
    let (_, end) = elf.span();
    // The heap behind the program, as far as Linux would put it at random.
    let heap = page_up(end + bias) + random_pages(1 << 13);
    memory.set_brk(if heap < RUNTIME_BASE || bias != 0 { heap } else { page_up(end + bias) });
    let mut access = Access::READ | Access::WRITE;
    access.set(Access::EXEC, elf.executable_stack);
    let paging = memory_policy::of_kind(policy, MappingKind::Stack);
    // As much as what comes there takes, and some more, as on Linux: it grows up to what is the limit then. If it is said how it is
    // brought in, all of it.
    let strings: usize = program.args.iter().chain(&program.env).map(|s| s.len() + 9).sum();
    let stack_size = match paging {
        None => page_up((strings + name.len()) as u64) + STACK_ROOM,
        Some(_) => page_up(stack_limit.clamp(256 << 10, 1 << 30)),
    };
    memory.map(MapRequest {
        addr: layout.stack_top - stack_size,
        len: stack_size,
        access,
        shared: false,
        kind: Kind::Anonymous,
        place: Place::Fixed,
        name: STACK,
        grows: true,
        paging,
        ..MapRequest::default()
    })?;
    let vdso = memory.map(MapRequest {
        addr: 0,
        len: page_up(vdso::image().len() as u64),
        access: Access::READ | Access::EXEC,
        shared: true,
        kind: Kind::Object { object: vdso::object(), file: None, offset: 0 },
        place: Place::Hint,
        name: "[vdso]",
        populate: true,
        ..MapRequest::default()
    })?;
    let ids = task.ids().clone();
    let mut random = [0u8; 16];
    platform().random(&mut random);

    // The stack's contents, from the top down, in the order Linux has them.
    let mut sp = layout.stack_top - 8;
    let mut push = |bytes: &[u8], zero: bool| -> Result<u64> {
        sp -= bytes.len() as u64 + u64::from(zero);
        user::write(sp, bytes)?;
        if zero {
            user::write(sp + bytes.len() as u64, &[0])?;
        }
        Ok(sp)
    };
    let exec_name = push(name, true)?;
    let env_end = exec_name;
    let mut env = Vec::with_capacity(program.env.len());
    for e in program.env.iter().rev() {
        env.push(push(e, true)?);
    }
    let env_start = env.last().copied().unwrap_or(env_end);
    let mut args = Vec::with_capacity(program.args.len());
    for a in program.args.iter().rev() {
        args.push(push(a, true)?);
    }
    let args_start = args.last().copied().unwrap_or(env_start);
    let machine = push(b"x86_64", true)?;
    let random = push(&random, false)?;
    let mut sp = sp & !15;

    let control = &platform().control().descriptor;
    let xsave = u64::from(control.xsave_size.load(Ordering::Relaxed));
    let hwcap = core::arch::x86_64::__cpuid(1).edx;
    let auxv: Vec<[u64; 2]> = [
        (auxvec::AT_SYSINFO_EHDR, vdso),
        (auxvec::AT_MINSIGSTKSZ, xsave + 936),
        (auxvec::AT_HWCAP, u64::from(hwcap)),
        (auxvec::AT_PAGESZ, PAGE),
        (auxvec::AT_CLKTCK, 100),
        (auxvec::AT_PHDR, elf.headers + bias),
        (auxvec::AT_PHENT, 56),
        (auxvec::AT_PHNUM, elf.header_count),
        (auxvec::AT_BASE, base),
        (auxvec::AT_FLAGS, 0),
        (auxvec::AT_ENTRY, elf.entry.wrapping_add(bias)),
        (auxvec::AT_UID, u64::from(ids.ruid)),
        (auxvec::AT_EUID, u64::from(ids.euid)),
        (auxvec::AT_GID, u64::from(ids.rgid)),
        (auxvec::AT_EGID, u64::from(ids.egid)),
        (auxvec::AT_SECURE, u64::from(ids.secure)),
        (auxvec::AT_RANDOM, random),
        (auxvec::AT_HWCAP2, 0),
        (auxvec::AT_EXECFN, exec_name),
        (auxvec::AT_PLATFORM, machine),
        (auxvec::AT_NULL, 0),
    ]
    .iter()
    .map(|(k, v)| [u64::from(*k), *v])
    .collect();
    let words = 1 + args.len() + 1 + env.len() + 1 + auxv.len() * 2;
    sp = (sp - words as u64 * 8) & !15;
    let mut block: Vec<u64> = Vec::with_capacity(words);
    block.push(args.len() as u64);
    block.extend(args.iter().rev());
    block.push(0);
    block.extend(env.iter().rev());
    block.push(0);
    for a in &auxv {
        block.extend(a);
    }
    let bytes: Vec<u8> = block.iter().flat_map(|w| w.to_ne_bytes()).collect();
    user::write(sp, &bytes)?;
    let image = Image {
        exe: program.exe.clone(),
        place: Some(program.place.clone()),
        running: Some(running),
        cmdline: joined(&program.args),
        environ: joined(&program.env),
        auxv: auxv.iter().flatten().flat_map(|w| w.to_ne_bytes()).collect(),
        ranges: [sp, args_start, env_start, env_start, env_end],
    };
    grid::starts(&task.process, &image, base_name(&image.exe));
    if let Some(own) = grid::thread_begins(task) {
        if crate::current::try_current().is_some_and(|me| core::ptr::eq(me, task)) {
            drop(atoll_task::work_for(own.clone()));
        } else {
            // The cell's first one, which has not begun.
            task.thread().work_for(own.clone());
        }
    }
    *task.process.image.lock() = image;
    frame.reset();
    frame.rip = address(entry);
    frame.rsp = sp;
    Ok(())
}

/// Spaces that no program is in.
struct Spares {
    /// That programs have left, empty, ready for the next.
    left: Vec<u32>,
    /// That were asked for ahead of need, the first one first. Not all of them are there yet.
    asked: VecDeque<u32>,
    /// How many are asked for ahead.
    ahead: usize,
}

static SPARES: Mutex<Spares> = Mutex::new(Spares { left: Vec::new(), asked: VecDeque::new(), ahead: 0 });
/// That programs have left and that are kept.
const SPARES_MAX: usize = 4;
/// That are asked for ahead at most.
const AHEAD_MAX: usize = 4;

/// How long to wait between two looks at a space that is being made, ns. Longer than a core would look for it without sleeping: the host may
/// need that processor to make it.
const SPACE_STEP: u64 = 200_000;

/// A space that somebody left, or that was asked for. Where there is none, or it isn't there yet, more are asked for ahead from then on: who makes
/// one process after the other, and they stay, need not wait for each.
fn take_space() -> Result<u32> {
    let state_of = |id: u32| &platform().control().space_states[id as usize];
    loop {
        let mut spares = SPARES.lock();
        if let Some(id) = spares.left.pop() {
            return Ok(id);
        }
        let asked = spares.asked.pop_front();
        let id = match asked {
            Some(id) => id,
            None => platform().space_create()?,
        };
        let state = state_of(id);
        if state.load(Ordering::Acquire) == space_state::CREATING {
            // The first one that a cell needs is often the only one.
            spares.ahead = (2 * spares.ahead).clamp(1, AHEAD_MAX);
        }
        while spares.ahead > 1 && spares.asked.len() < spares.ahead {
            let Ok(more) = platform().space_create() else { break };
            spares.asked.push_back(more);
        }
        drop(spares);
        while state.load(Ordering::Acquire) == space_state::CREATING {
            atoll_task::sleep_until(platform().now() + SPACE_STEP);
        }
        match state.load(Ordering::Acquire) {
            space_state::READY => return Ok(id),
            // The slot may be tried again, but nothing ahead of need where there may be no more processes: it would go on so for ever.
            space_state::FAILED => {
                state.store(space_state::FREE, Ordering::Release);
                SPARES.lock().ahead = 0;
            }
            _ => {}
        }
        if asked.is_none() {
            return Err(Errno::EAGAIN);
        }
    }
}

/// A space in which nothing is mapped yet, made now or left over, and what is to be mapped there.
pub fn new_space(memory: impl FnOnce() -> Result<AddressSpace>) -> Result<Arc<Space>> {
    let id = take_space()?;
    let memory = memory().inspect_err(|_| spare_space(id))?;
    Ok(Space::new(id, memory))
}

/// The first program's space, which is there from the start.
pub fn first_space() -> Arc<Space> {
    Space::new(0, AddressSpace::new(TOP))
}

/// A space that no program is in any more.
pub fn spare_space(id: u32) {
    if id == 0 {
        return;
    }
    let mut spares = SPARES.lock();
    if spares.left.len() < SPARES_MAX {
        spares.left.push(id);
        return;
    }
    spares.ahead = 0;
    drop(spares);
    let reaper = move || {
        atoll_task::end_space(id);
        platform().space_destroy(id);
    };
    if let Some(t) = atoll_task::spawn(0, reaper) {
        atoll_task::start(t);
    }
}

/// The address that a program should see for one where it is stopped: in a
/// trampoline, that of the code which the trampoline stands for.
pub fn visible_rip(task: &Task, rip: u64) -> u64 {
    match task.space.memory.window_of_trampoline(rip) {
        Some((start, w)) => w.original(start, rip),
        None => rip,
    }
}

/// Where a program that is told to go on at `rip` goes on: nowhere but at an address. Some processors fault at the jump to anything else,
/// which is the runtime's.
pub fn address(rip: u64) -> u64 {
    if rip < USER_MAX { rip } else { 0 }
}

/// The address at which a program that wants to go on at `rip` really can: the
/// inside of a rewritten window stands in its trampoline.
pub fn runnable_rip(task: &Task, rip: u64) -> u64 {
    let rip = address(rip);
    match task.space.memory.window_at(rip) {
        Some((start, w)) => w.moved_to(start, rip),
        None => rip,
    }
}
