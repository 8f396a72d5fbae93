//! How the processes of a cell come to be.
//!
//! The process that the supervisor starts becomes the *nursery*: it unmaps
//! everything but the runtime, and from then on makes spaces, by `clone`
//! without shared memory, and reaps them. It runs code that nobody can write
//! to, on memory of its own, and believes nothing that it reads in shared
//! memory but "slot n is wanted" and whom to interrupt. Further threads of it, one a core,
//! wait for events of cores that compute (`cores::tell_core`). A space makes one thread
//! a core, locks itself in (seccomp, for all threads at once), and only then
//! waits for batons.
#![allow(unsafe_code, reason = "makes processes and threads")]

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use crate::sys::{self, call, futex_wait, futex_wake};
use crate::upcall::{self, HostThread, SIGNAL};
use crate::{calls, control, cores, result};
use atoll_abi::control::{ABI_VERSION, MAGIC, SAID, space_state as state};
use atoll_abi::core_local::CoreLocal;
use atoll_abi::counter::CLOSE_ON_EXEC;
use atoll_abi::errno::{Errno, Result};
use atoll_abi::layout::{
    HOST_THREAD_SIZE, HOST_THREADS, LOOP_STACK, MAX_CORES, MAX_SPACES, RUNTIME_BASE, RUNTIME_END, USER_MAX,
    VDSO_AREA, VDSO_AREA_SIZE,
};
use atoll_abi::platform::set_platform;
use atoll_abi::start::{START, Start};
use atoll_platform_entry::entry;
use atoll_platform_entry::line::Line;
use linux_raw_sys::{general as linux, prctl};

/// Exit status of a cell that could not be started, as `docker run` and `env` have it.
const NOT_STARTED: i32 = 125;

core::arch::global_asm!(
    ".pushsection .text.atoll_start,\"ax\",@progbits",
    // From the ELF entry: jumped to by the supervisor's child, with the runtime mapped.
    ".globl atoll_host_start",
    "atoll_host_start:",
    "mov rsp, {STACK}",
    "xor ebp, ebp",
    "cld",
    "call atoll_nursery",
    "ud2",
    // rdi: clone flags, rsi: stack of the child, rdx: its core.
    ".globl atoll_clone_thread",
    "atoll_clone_thread:",
    "mov r9, rdx",
    "xor edx, edx",
    "xor r10d, r10d",
    "xor r8d, r8d",
    "mov eax, 56",
    "syscall",
    "test rax, rax",
    "jz 3f",
    "ret",
    "3:",
    "xor ebp, ebp",
    "mov rdi, r9",
    "call atoll_thread",
    "ud2",
    ".popsection",
    STACK = const HOST_THREADS + LOOP_STACK,
);

unsafe extern "C" {
    #[link_name = "atoll_clone_thread"]
    fn clone_thread_raw(flags: u64, stack: u64, core: u64) -> i64;
    /// Defined by the runtime binary: boots a core.
    fn atoll_boot(core: usize) -> !;
}

fn start() -> &'static Start {
    // SAFETY: mapped by the supervisor's child; private to the process.
    unsafe { &*(START as *const Start) }
}

fn area(core: usize) -> u64 {
    HOST_THREADS + core as u64 * HOST_THREAD_SIZE
}

/// The nursery's life.
#[unsafe(no_mangle)]
extern "C" fn atoll_nursery() -> ! {
    let start = start();
    let control = control();
    // In memory that all spaces share.
    set_platform(&crate::HOST);
    let d = &control.descriptor;
    if d.magic.load(Ordering::Relaxed) != MAGIC || d.version.load(Ordering::Relaxed) != ABI_VERSION {
        calls::log("atoll and atoll-runtime are not of the same version: build or install them together");
        end(NOT_STARTED << 8)
    }
    move_vdso(start);
    // SAFETY: everything of the supervisor's program goes; this code and stack are in the runtime region.
    unsafe {
        call!(sys::MUNMAP, 0x1000, RUNTIME_BASE - 0x1000);
        call!(sys::MUNMAP, RUNTIME_END, USER_MAX - RUNTIME_END);
    }
    // SAFETY: no arguments.
    control.nursery.pid.store(unsafe { call!(sys::GETPID) } as u32, Ordering::Relaxed);
    for core in 0..start.cores as usize {
        let area = &control.cores[core];
        let local = &area.local;
        local.this.store(local as *const CoreLocal as u64, Ordering::Relaxed);
        local.id.store(core as u32, Ordering::Relaxed);
        local.mask.store(1, Ordering::Relaxed);
        local.entry.store(entry::entry_address(), Ordering::Relaxed);
        let function = |n: usize| VDSO_AREA + start.vdso_functions[n];
        local.clock_gettime.store(function(0), Ordering::Relaxed);
        local.gettimeofday.store(function(1), Ordering::Relaxed);
        local.time.store(function(2), Ordering::Relaxed);
        area.continuation.store(atoll_boot as *const () as u64, Ordering::Relaxed);
        area.argument.store(core as u64, Ordering::Relaxed);
        control.spaces[0].turn[core].store(cores::TURN, Ordering::Relaxed);
    }
    control.space_states[0].store(state::CREATING, Ordering::Release);
    control.nursery.slots.store(1, Ordering::Release);
    // Children that end and wishes arrive as signals, which are taken one by one.
    let set: u64 = 1 << (SIGNAL - 1) | 1 << (linux::SIGCHLD - 1);
    // SAFETY: a valid signal set.
    unsafe { call!(sys::RT_SIGPROCMASK, linux::SIG_BLOCK, &raw const set, 0, 8) };
    // As the supervisor wrote them: from here on others can write there.
    let events: [i32; MAX_CORES] = core::array::from_fn(|core| d.events_fd[core].load(Ordering::Relaxed));
    let mut pids = Pids([0; MAX_SPACES]);
    pids.look();
    // The space has begun: nobody waits for these.
    for (core, events) in events.iter().enumerate().take(start.cores as usize) {
        // What is not used of this process's areas: there is no handler here that would need the stack.
        let stack = area(core) + HOST_THREAD_SIZE;
        let which = TELLER + core + *events as usize * MAX_CORES;
        // SAFETY: the new thread runs on that stack.
        if unsafe { clone_thread_raw(u64::from(THREAD), stack, which as u64) } < 0 {
            // It looks for events now and then; it may have asked to be told already.
            d.events_fd[core].store(-1, Ordering::SeqCst);
            cores::interrupt(core);
        }
    }
    loop {
        pids.look();
        // SAFETY: as above.
        unsafe { call!(sys::RT_SIGTIMEDWAIT, &raw const set, 0, 0, 8) };
        pids.reap();
        if control.has_mail() {
            cores::interrupt(0);
        }
    }
}

/// Process ids of the spaces, as the nursery knows them.
struct Pids([i32; MAX_SPACES]);

impl Pids {
    /// Does what the slots ask for.
    fn look(&mut self) {
        // The others are memory that nobody has touched yet.
        let used = control().nursery.slots.load(Ordering::Acquire) as usize;
        for (n, state) in control().space_states.iter().enumerate().take(used) {
            match state.load(Ordering::Acquire) {
                state::CREATING if self.0[n] == 0 => {
                    let flags = linux::CLONE_FILES | linux::SIGCHLD;
                    // SAFETY: like fork: the child goes on with a copy of this stack.
                    let pid = unsafe { call!(sys::CLONE, flags, 0, 0, 0, 0) };
                    if pid == 0 {
                        space_main(n as u32);
                    }
                    if pid < 0 {
                        failed(n, Some(-pid as u32));
                    } else {
                        self.0[n] = pid as i32;
                    }
                }
                state::DYING if self.0[n] != 0 => {
                    // SAFETY: no memory is involved; our own child.
                    unsafe { call!(sys::KILL, self.0[n], linux::SIGKILL) };
                }
                _ => {}
            }
        }
    }

    /// Collects children that ended.
    fn reap(&mut self) {
        loop {
            let mut status = 0i32;
            // SAFETY: writes our variable.
            let pid = unsafe { call!(sys::WAIT4, -1i32, &raw mut status, linux::WNOHANG, 0) };
            if pid <= 0 {
                return;
            }
            let Some(n) = self.0.iter().position(|p| i64::from(*p) == pid) else { continue };
            self.0[n] = 0;
            close_counters(n);
            let state = &control().space_states[n];
            // Who asks for a process is told that there is none; the cell goes on without it.
            if state.load(Ordering::Acquire) == state::CREATING && status == NO_THREAD << 8 {
                failed(n, None);
                continue;
            }
            if state.swap(state::FREE, Ordering::AcqRel) != state::DYING {
                if control().life.ended.load(Ordering::Relaxed) == 0 {
                    let mut line = Line::new();
                    let why = match status & 0x7f {
                        9 => {
                            ": it was killed from outside; out of memory on the host, or in its control group?"
                        }
                        _ => "",
                    };
                    let _ = core::fmt::write(
                        &mut line,
                        format_args!("space {n} of the cell died by itself (wait status {status:#x}){why}"),
                    );
                    calls::log(line.as_str());
                }
                announce(if status & 0x7f != 0 { status & 0x7f } else { linux::SIGKILL as i32 });
            }
            futex_wake(state, u32::MAX >> 1);
        }
    }
}

/// With what the process of a space ends for which there is no thread.
const NO_THREAD: i32 = 3;

/// A space could not be made, by this error of the host's, or because there were no threads for it. Who asked for it hears of that; for
/// the first one that is everybody.
fn failed(space: usize, error: Option<u32>) {
    let state = &control().space_states[space];
    state.store(state::FAILED, Ordering::Release);
    futex_wake(state, u32::MAX >> 1);
    if space != 0 {
        return;
    }
    let mut line = Line::new();
    let what = if error.is_some() { "process" } else { "threads" };
    let _ = core::fmt::write(
        &mut line,
        format_args!(
            "the host lets no {what} be made for the cell ({}): is its limit of processes reached (ulimit -u, or pids.max of the control \
             group)?",
            error.map_or(Errno::EAGAIN, Errno),
        ),
    );
    calls::log(line.as_str());
    // As whatever keeps a cell from starting.
    announce(125 << 8);
}

/// Moves the host's vDSO beside the runtime.
fn move_vdso(start: &Start) {
    let mut to = VDSO_AREA;
    for [from, len] in start.vdso {
        if len == 0 || to + len > VDSO_AREA + VDSO_AREA_SIZE {
            continue;
        }
        let flags = linux::MREMAP_MAYMOVE | linux::MREMAP_FIXED;
        // SAFETY: the supervisor's child no longer runs code that uses it.
        unsafe { call!(sys::MREMAP, from, len, len, flags, to) };
        to += len;
    }
}

/// Threads of this process that are ready. In the first thread's private area.
fn ready() -> &'static AtomicU32 {
    // SAFETY: the area is mapped and private.
    unsafe { &(*(area(0) as *const HostThread)).ready }
}

/// A new space, in its process.
fn space_main(space: u32) -> ! {
    let cores = start().cores as usize;
    // SAFETY: plain arguments. If the nursery dies, so does the space.
    unsafe {
        call!(sys::PRCTL, prctl::PR_SET_PDEATHSIG, linux::SIGKILL);
        control().spaces[space as usize].pid.store(call!(sys::GETPID) as u32, Ordering::Relaxed);
    }
    upcall::install();
    ready().store(0, Ordering::Relaxed);
    SPACE.store(space);
    for core in 1..cores {
        // SAFETY: the child runs on its own area's stack.
        let tid = unsafe { clone_thread_raw(u64::from(THREAD), area(core) + LOOP_STACK, core as u64) };
        if tid < 0 {
            // SAFETY: ends this process.
            unsafe { call!(sys::EXIT_GROUP, NO_THREAD) };
        }
    }
    prepare_thread(0);
    loop {
        let n = ready().load(Ordering::Acquire);
        if n as usize == cores {
            break;
        }
        futex_wait(ready(), n, None);
    }
    lock_in();
    ready().store(LOCKED, Ordering::Release);
    futex_wake(ready(), u32::MAX >> 1);
    let state = &control().space_states[space as usize];
    state.store(state::READY, Ordering::Release);
    futex_wake(state, u32::MAX >> 1);
    cores::wait_turn(0, space, 0)
}

/// [`ready`] when the process is confined.
const LOCKED: u32 = u32::MAX;

/// The number of this process's space, kept in its private memory, behind the start page's structure.
struct SpaceNumber;
static SPACE: SpaceNumber = SpaceNumber;
impl SpaceNumber {
    fn word(&self) -> &'static AtomicU32 {
        // SAFETY: the second word pair of the first area's header is reserved for this.
        unsafe { &*((area(0) + 64) as *const AtomicU32) }
    }
    fn store(&self, n: u32) {
        self.word().store(n, Ordering::Release);
    }
    fn load(&self) -> u32 {
        self.word().load(Ordering::Acquire)
    }
}

/// Makes a thread of this process.
const THREAD: u32 = linux::CLONE_VM
    | linux::CLONE_FS
    | linux::CLONE_FILES
    | linux::CLONE_SIGHAND
    | linux::CLONE_THREAD
    | linux::CLONE_SYSVSEM;

/// Added to a core's number, and to so many times the number of a descriptor: the nursery's thread that tells it of events.
const TELLER: usize = MAX_CORES;

/// A further thread of a space, or of the nursery.
#[unsafe(no_mangle)]
extern "C" fn atoll_thread(core: usize) -> ! {
    if let Some(core) = core.checked_sub(TELLER) {
        let (core, events) = (core % MAX_CORES, core / MAX_CORES);
        cores::tell_core(core, events as i32)
    }
    prepare_thread(core);
    while ready().load(Ordering::Acquire) != LOCKED {
        futex_wait(ready(), ready().load(Ordering::Relaxed), Some(100_000_000));
    }
    cores::wait_turn(core, SPACE.load(), 0)
}

/// Everything that is set for each thread.
fn prepare_thread(core: usize) {
    let space = SPACE.load();
    let local = &control().cores[core].local;
    // SAFETY: sets this thread's GS base to its core's words.
    unsafe {
        core::arch::asm!("wrgsbase {}", in(reg) local as *const CoreLocal as u64, options(nomem, nostack));
    }
    // SAFETY: no arguments.
    let tid = unsafe { call!(sys::GETTID) } as u32;
    let slot = &control().spaces[space as usize];
    slot.tid[core].store(tid, Ordering::Relaxed);
    if core != 0 || space != 0 {
        slot.turn[core].store(if space == 0 { cores::TURN } else { 0 }, Ordering::Relaxed);
    }
    let base = area(core);
    // SAFETY: this thread's own area; `ready` of the first one is in use already.
    unsafe {
        let h = base as *mut HostThread;
        (&raw mut (*h).core).write(local);
        (&raw mut (*h).space).write(space);
        (&raw mut (*h).timer).write(make_timer(linux::CLOCK_MONOTONIC, tid));
        (&raw mut (*h).work_timer).write(make_timer(linux::CLOCK_THREAD_CPUTIME_ID, tid));
        (&raw mut (*h).working).write(AtomicU32::new(0));
        (&raw mut (*h).yields).write(AtomicU32::new(0));
        (&raw mut (*h).stepping).write(AtomicU32::new(0));
        (&raw mut (*h).armed).write(AtomicU64::new(u64::MAX));
        (&raw mut (*h).counter).write(open_counter(&slot.counter[core]));
        (&raw mut (*h).counted).write(AtomicU64::new(0));
        counted(&*h);
    }
    upcall::alternate_stack(base);
    cores::pin(start().cpu[core]);
    // SAFETY: dispatches system calls from outside the runtime to the handler. No selector: always.
    let r = unsafe {
        call!(
            sys::PRCTL,
            prctl::PR_SET_SYSCALL_USER_DISPATCH,
            prctl::PR_SYS_DISPATCH_ON,
            RUNTIME_BASE,
            atoll_abi::layout::EXEMPT_END - RUNTIME_BASE,
            0
        )
    };
    if r < 0 {
        calls::log("the host has no syscall user dispatch (Linux 5.11 or later is needed)");
        // SAFETY: ends this process.
        unsafe { call!(sys::EXIT_GROUP, 1) };
    }
    ready().fetch_add(1, Ordering::AcqRel);
    // Threads that are ready wait there, too: one would not always be the first, which counts them.
    futex_wake(ready(), u32::MAX >> 1);
}

/// This thread's counter of what the cell counts, known in `slot`. Value: its descriptor; below 0: there is none.
fn open_counter(slot: &AtomicI32) -> i32 {
    let counter = &start().counter;
    if counter[0] == 0 {
        return -1;
    }
    // SAFETY: valid attributes, of the size that they say.
    let fd = unsafe { call!(sys::PERF_EVENT_OPEN, counter.as_ptr(), 0, -1i32, -1i32, CLOSE_ON_EXEC) } as i32;
    if (0..=start().counter_most as i32).contains(&fd) {
        slot.store(fd, Ordering::Relaxed);
        return fd;
    }
    // SAFETY: a descriptor of this function's, if any.
    unsafe { call!(sys::CLOSE, fd) };
    let why = if fd < 0 { Errno(-fd as u32) } else { Errno::EMFILE };
    if control().grid.uncounted.fetch_add(1, Ordering::Relaxed) == 0 {
        let mut line = Line::new();
        let _ = core::fmt::write(
            &mut line,
            format_args!(
                "--counter: what some of the cell's processes do is not counted ({why}): it takes a descriptor for each core in each of \
                 them (ulimit -n), and a container must allow perf_event_open"
            ),
        );
        calls::log(line.as_str());
    }
    -1
}

/// See [`Platform::counted`](atoll_abi::Platform::counted).
#[inline]
pub(crate) fn counted(h: &HostThread) -> Option<u64> {
    if h.counter < 0 {
        return None;
    }
    let mut now = 0u64;
    let vec = [&raw mut now as u64, size_of::<u64>() as u64];
    // SAFETY: one buffer of this function's.
    let n = unsafe { call!(sys::PREADV2, h.counter, vec.as_ptr(), 1, -1i64, -1i64, 0) };
    if n != size_of::<u64>() as i64 {
        // The processor's counters are others' now.
        if h.counted.swap(u64::MAX, Ordering::Relaxed) != u64::MAX
            && control().grid.uncounted.fetch_add(1, Ordering::Relaxed) == 0
        {
            calls::log(
                "--counter: others have the processor's counters now: what the cell does is not counted any more",
            );
        }
        return None;
    }
    Some(now.saturating_sub(h.counted.swap(now, Ordering::Relaxed)))
}

/// The threads of a space that counted are gone; their descriptors, in the table that all processes of the cell share, are not.
fn close_counters(space: usize) {
    if start().counter[0] == 0 {
        return;
    }
    for counter in &control().spaces[space].counter[..start().cores as usize] {
        // Whatever a cell writes here is a descriptor of its own, which it could close as well.
        let fd = counter.swap(0, Ordering::Relaxed);
        if fd > 0 {
            // SAFETY: no memory is involved.
            unsafe { call!(sys::CLOSE, fd) };
        }
    }
}

/// A timer that signals this thread.
fn make_timer(clock: u32, tid: u32) -> i32 {
    #[repr(C)]
    struct SigEvent {
        value: u64,
        signo: u32,
        notify: u32,
        tid: u32,
        pad: [u32; 11],
    }
    let event = SigEvent { value: 0, signo: SIGNAL, notify: linux::SIGEV_THREAD_ID, tid, pad: [0; 11] };
    let mut id = 0i32;
    // SAFETY: valid pointers.
    unsafe { call!(sys::TIMER_CREATE, clock, &raw const event, &raw mut id) };
    id
}

/// Confines all threads of this process to the calls that the platform makes.
fn lock_in() {
    let start = start();
    if start.filter_len == 0 {
        return;
    }
    #[repr(C)]
    struct Program {
        len: u16,
        filter: *const u64,
    }
    let program = Program { len: start.filter_len as u16, filter: start.filter.as_ptr() };
    // SET_MODE_FILTER, for all threads.
    // SAFETY: a valid program.
    let r = unsafe { call!(sys::SECCOMP, 1, 1, &raw const program) };
    if r != 0 {
        calls::log("the host refused the system-call filter: the cell is not started");
        announce(1 << 8);
        // SAFETY: ends this process.
        unsafe { call!(sys::EXIT_GROUP, 1) };
    }
}

/// Asks for a new space; it is there when its slot's state says READY.
pub(crate) fn space_create() -> Result<u32> {
    for (n, state) in control().space_states.iter().enumerate() {
        if state.compare_exchange(state::FREE, state::CREATING, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            control().nursery.slots.fetch_max(n as u32 + 1, Ordering::AcqRel);
            wish();
            return Ok(n as u32);
        }
    }
    Err(Errno::EAGAIN)
}

pub(crate) fn space_destroy(space: u32) {
    control().space_states[space as usize].store(state::DYING, Ordering::Release);
    cores::resend_interrupts();
    wish();
}

/// Makes the nursery look at the slots.
fn wish() {
    let pid = control().nursery.pid.load(Ordering::Relaxed);
    // SAFETY: no memory is involved.
    let r = result(unsafe { call!(sys::TGKILL, pid, pid, SIGNAL) });
    if r.is_err() {
        calls::log("the process that makes spaces is gone");
    }
}

/// Says that the cell has ended.
fn announce(status: i32) {
    let life = &control().life;
    if life.ended.load(Ordering::Acquire) == 0 {
        life.status.store(status, Ordering::Relaxed);
        life.ended.store(SAID, Ordering::Release);
    }
    futex_wake(&life.ended, u32::MAX >> 1);
}

/// Ends the cell.
pub(crate) fn end(status: i32) -> ! {
    announce(status);
    loop {
        // SAFETY: ends this process.
        unsafe { call!(sys::EXIT_GROUP, 0) };
    }
}
