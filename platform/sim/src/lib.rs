//! The platform contract, simulated: time, cores and chance under a seed (requirement X-05).
//!
//! Each simulated core is a coroutine of one operating-system thread, so one
//! runs at a time: it holds the baton, and every platform call may pass the baton
//! to another core, as the seed says. Time moves only by what calls cost and,
//! when every core sleeps, to the next deadline. So a run is a function of
//! its seed, and a test that fails names the seed that made it fail.
//!
//! The runtime's statics belong to a process, so every run happens in a
//! forked child ([`run`]).
#![allow(unsafe_code, reason = "forks, and switches between stacks of its own")]

mod memory;

use std::cell::{Cell, UnsafeCell};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use atoll_abi::control::{Control, MAGIC, space_state};
use atoll_abi::core_local::{CoreLocal, pending};
use atoll_abi::errno::{Errno, Result};
use atoll_abi::layout::Sizes;
use atoll_abi::platform::{Access, Backing, Event, Events, HostCalls, Platform, set_platform};
use atoll_abi::service::{Answer, Op, Request};

use memory::Memory;

/// How a run is set up.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Cores of the cell.
    pub cores: usize,
    /// Decides every choice of the run.
    pub seed: u64,
    /// A platform call passes the baton once in so many calls; 0: only when a core sleeps.
    pub switch_once_in: u64,
}

struct State {
    /// What the cell's memory and spaces are, if it has any.
    memory: Option<Memory>,
    /// When each core wants its deadline's bit, by the space in which it has asked for that.
    armed: Vec<BTreeMap<u32, u64>>,
    now: u64,
    random: u64,
    /// Deadline of each sleeping core; None: awake.
    asleep: Vec<Option<u64>>,
    notified: Vec<bool>,
    /// Time that each core has slept, or was elsewhere.
    away: Vec<u64>,
    /// What each core had had when it was last asked what it has counted.
    counted: Vec<u64>,
    answers: Vec<VecDeque<(u64, Answer)>>,
}

/// The simulated platform.
pub struct Sim {
    control: &'static Control,
    config: Config,
    state: Mutex<State>,
    contexts: Contexts,
    calls: AtomicU64,
}

/// Where each core goes on when it is the one that runs.
struct Contexts(Vec<UnsafeCell<libc::ucontext_t>>);

// SAFETY: only the thread that runs the cores uses them.
unsafe impl Sync for Contexts {}
// SAFETY: as above.
unsafe impl Send for Contexts {}

/// Bytes of a core's stack.
const STACK: usize = 1 << 20;

impl Contexts {
    fn new(cores: usize) -> Contexts {
        // SAFETY: all zeroes is a valid context; it is filled in before it is used.
        Contexts((0..cores).map(|_| UnsafeCell::new(unsafe { std::mem::zeroed() })).collect())
    }

    /// Has core `n` begin with [`core_main`], on a stack of its own.
    fn prepare(&self, n: usize) {
        let context = self.0[n].get();
        // SAFETY: memory of its own, which stays; below it a page that nobody may touch. The context is not under way, and the function
        // takes a number.
        unsafe {
            let guard = libc::sysconf(libc::_SC_PAGESIZE) as usize;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let all = libc::mmap(std::ptr::null_mut(), guard + STACK, libc::PROT_NONE, flags, -1, 0);
            assert!(all != libc::MAP_FAILED, "a stack for a core");
            let stack = all.byte_add(guard);
            let failed = libc::mprotect(stack, STACK, libc::PROT_READ | libc::PROT_WRITE);
            assert!(failed == 0, "a stack for a core");
            assert!(libc::getcontext(context) == 0, "a context for a core");
            (*context).uc_stack.ss_sp = stack;
            (*context).uc_stack.ss_size = STACK;
            let main = std::mem::transmute::<extern "C" fn(c_int) -> !, extern "C" fn()>(core_main);
            libc::makecontext(context, main, 1, n as c_int);
        }
    }

    /// Goes on as core `next`; `from` is the core that this is, which comes back when it is its turn.
    fn switch(&self, from: *mut libc::ucontext_t, next: usize) {
        // SAFETY: the other one was prepared, or has left by this; nobody is in it, as one runs at a time.
        let failed = unsafe { libc::swapcontext(from, self.0[next].get()) };
        assert!(failed == 0, "to another core");
    }
}

thread_local!(static CORE: Cell<Option<&'static CoreLocal>> = const { Cell::new(None) });

#[unsafe(no_mangle)]
fn atoll_core_local() -> &'static CoreLocal {
    CORE.get().expect("this thread is no simulated core")
}

static BOOT: OnceLock<fn(usize) -> !> = OnceLock::new();
static SIM: OnceLock<Sim> = OnceLock::new();
static PLATFORM: OnceLock<&'static dyn Platform> = OnceLock::new();

/// What a run ended with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// [`Platform::end`] was called with this status.
    Ended(i32),
    /// Every core slept and none had a deadline.
    Stuck,
}

const STUCK: i32 = 77;

/// Runs `boot` on every core of a new simulated machine, in a child process.
/// `boot` gets the core's number and never returns.
///
/// # Panics
/// If the child panics or dies.
pub fn run(config: Config, boot: fn(usize) -> !) -> Outcome {
    run_with_memory(config, 0, boot)
}

/// The same with so many bytes of memory, whole blocks, which lie at their place in the runtime's region, and with spaces.
/// What is not mapped in the space of the core that runs is not there: whoever touches it gets SIGSEGV.
///
/// # Panics
/// If the child panics or dies.
pub fn run_with_memory(config: Config, memory: u64, boot: fn(usize) -> !) -> Outcome {
    // SAFETY: the child runs the simulation and exits; it touches no lock that another thread may hold.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork failed");
    if child == 0 {
        simulate(config, memory, boot);
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert!(libc::WIFEXITED(status), "the simulation died, seed {}: status {status:#x}", config.seed);
    match libc::WEXITSTATUS(status) {
        STUCK => Outcome::Stuck,
        code => Outcome::Ended(code),
    }
}

/// The machine has something else to do for so long than what this core is at, ns. The others go on meanwhile.
pub fn steal(ns: u64) {
    let sim = SIM.get().expect("a core of a simulated machine");
    let mut state = sim.step();
    state.now += ns;
    state.away[sim.me()] += ns;
    state.wake_due(sim.config.cores);
}

fn simulate(config: Config, memory: u64, boot: fn(usize) -> !) -> ! {
    // SAFETY: all zeroes, in pages that come when they are touched, is a valid control area; it lives as long as the process.
    let control: &'static Control = unsafe {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let at = libc::mmap(std::ptr::null_mut(), size_of::<Control>(), access, flags, -1, 0);
        assert!(at != libc::MAP_FAILED, "memory for a control area");
        &*at.cast::<Control>()
    };
    control.descriptor.magic.store(MAGIC, Ordering::Relaxed);
    control.descriptor.cores.store(config.cores as u32, Ordering::Relaxed);
    control.descriptor.machine_cores.store(1, Ordering::Relaxed);
    control.descriptor.set_memory_sizes(Sizes::fixed(memory));
    for (n, area) in control.cores.iter().take(config.cores).enumerate() {
        area.local.id.store(n as u32, Ordering::Relaxed);
        area.local.mask.store(1, Ordering::Relaxed);
    }
    let sim = SIM.get_or_init(|| Sim {
        control,
        config,
        state: Mutex::new(State {
            memory: (memory > 0).then(|| Memory::new(memory)),
            armed: vec![BTreeMap::new(); config.cores],
            now: 1_000_000,
            random: config.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            asleep: vec![None; config.cores],
            notified: vec![false; config.cores],
            away: vec![0; config.cores],
            counted: vec![0; config.cores],
            answers: (0..config.cores).map(|_| VecDeque::new()).collect(),
        }),
        contexts: Contexts::new(config.cores),
        calls: AtomicU64::new(0),
    });
    set_platform(PLATFORM.get_or_init(|| sim));
    BOOT.get_or_init(|| boot);
    for n in 0..config.cores {
        sim.contexts.prepare(n);
    }
    // SAFETY: all zeroes is a valid context, which nobody comes back to.
    let mut here = unsafe { std::mem::zeroed() };
    sim.contexts.switch(&raw mut here, 0);
    unreachable!("no core comes back")
}

/// A core's life.
extern "C" fn core_main(n: c_int) -> ! {
    let (n, sim) = (n as usize, SIM.get().expect("made before its cores"));
    sim.arrive(&mut sim.lock(), n);
    BOOT.get().expect("said before its cores")(n)
}

impl Sim {
    /// Does something with the memory, where there is some; where there is none, nobody asks what it is like.
    fn with_memory<R: Default>(&self, f: impl FnOnce(&mut Memory) -> Result<R>) -> Result<R> {
        self.step().memory.as_mut().map_or(Ok(R::default()), f)
    }

    fn me(&self) -> usize {
        atoll_core_local().id()
    }

    /// Core `me` is the one that runs.
    fn arrive(&self, state: &mut State, me: usize) {
        CORE.set(Some(&self.control.cores[me].local));
        let space = atoll_core_local().space.load(Ordering::Relaxed);
        if let Some(memory) = &mut state.memory {
            memory.show(space);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no core panics while it holds the state")
    }

    /// A platform call: costs a little time and may be where another core goes on.
    fn step(&self) -> std::sync::MutexGuard<'_, State> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let mut state = self.lock();
        let cost = state.chance(200);
        state.now += cost;
        state.wake_due(self.config.cores);
        let now = state.now;
        for (core, armed) in state.armed.iter_mut().enumerate() {
            let local = &self.control.cores[core].local;
            let here = local.space.load(Ordering::SeqCst);
            // Those that were asked for in another space than the core is in come to nobody.
            if armed.get(&here).is_some_and(|at| *at <= now) {
                local.pending.fetch_or(pending::DEADLINE, Ordering::SeqCst);
            }
            armed.retain(|_, at| now < *at);
        }
        if self.config.switch_once_in != 0 && state.chance(self.config.switch_once_in) == 0 {
            state = self.pass_on(state);
        }
        state
    }

    /// Lets a core that is awake go on, perhaps this one.
    fn pass_on<'a>(
        &'a self,
        mut state: std::sync::MutexGuard<'a, State>,
    ) -> std::sync::MutexGuard<'a, State> {
        let me = self.me();
        let next = loop {
            let awake: Vec<usize> = (0..self.config.cores).filter(|n| state.asleep[*n].is_none()).collect();
            if !awake.is_empty() {
                let pick = state.chance(awake.len() as u64) as usize;
                break awake[pick];
            }
            // All sleep: time passes to the next deadline or answer.
            let next = state.next_time();
            if next == u64::MAX {
                // SAFETY: ends the child.
                unsafe { libc::_exit(STUCK) };
            }
            state.now = state.now.max(next);
            state.wake_due(self.config.cores);
        };
        if next != me {
            // Without the lock, which it takes first of all.
            drop(state);
            self.contexts.switch(self.contexts.0[me].get(), next);
            state = self.lock();
            self.arrive(&mut state, me);
        }
        state
    }
}

impl State {
    /// A number below `n`.
    fn chance(&mut self, n: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % n
    }

    fn next_time(&self) -> u64 {
        let deadlines = self.asleep.iter().flatten().copied();
        let answers = self.answers.iter().flatten().map(|(at, _)| *at);
        deadlines.chain(answers).min().unwrap_or(u64::MAX)
    }

    fn wake_due(&mut self, cores: usize) {
        for n in 0..cores {
            let due = self.answers[n].iter().any(|(at, _)| *at <= self.now);
            if self.asleep[n].is_some_and(|d| d <= self.now || due || self.notified[n]) {
                self.asleep[n] = None;
            }
        }
    }

    fn take_answers(&mut self, core: usize, events: &mut Events) {
        while events.room() > 0 {
            let now = self.now;
            let Some(at) = self.answers[core].iter().position(|(at, _)| *at <= now) else { return };
            if let Some((_, answer)) = self.answers[core].remove(at) {
                events.push(Event::Answer(answer));
            }
        }
    }
}

impl Platform for Sim {
    fn control(&self) -> &'static Control {
        self.control
    }

    fn now(&self) -> u64 {
        self.step().now
    }

    fn cpu_time(&self) -> Option<u64> {
        let me = self.me();
        let state = self.step();
        Some(state.now - state.away[me])
    }

    /// It counts nanoseconds.
    fn counted(&self) -> Option<u64> {
        if self.control.grid.counts.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let me = self.me();
        let mut state = self.step();
        let now = state.now - state.away[me];
        Some(now - std::mem::replace(&mut state.counted[me], now))
    }

    fn realtime(&self) -> u64 {
        1_600_000_000_000_000_000 + self.step().now
    }

    fn arm(&self, deadline: u64) {
        // Threads of the runtime are not preempted, and there are no programs here: it becomes a pending bit.
        let me = self.me();
        let space = atoll_core_local().space.load(Ordering::SeqCst);
        self.step().armed[me].insert(space, deadline);
    }

    fn disarm(&self) {
        let me = self.me();
        let space = atoll_core_local().space.load(Ordering::SeqCst);
        self.step().armed[me].remove(&space);
    }

    fn armed_here(&self) -> Option<u64> {
        let (me, space) = (self.me(), atoll_core_local().space.load(Ordering::SeqCst));
        Some(self.lock().armed[me].get(&space).copied().unwrap_or(u64::MAX))
    }

    fn park(&self, deadline: Option<u64>, events: &mut Events) {
        let me = self.me();
        let mut state = self.lock();
        if !state.notified[me] {
            state.asleep[me] = Some(deadline.unwrap_or(u64::MAX));
            state.wake_due(self.config.cores);
            let begun = state.now;
            state = self.pass_on(state);
            state.away[me] += state.now - begun;
        }
        state.notified[me] = false;
        state.take_answers(me, events);
    }

    fn poll(&self, events: &mut Events) {
        let me = self.me();
        self.step().take_answers(me, events);
    }

    fn has_answers(&self) -> bool {
        let me = self.me();
        let state = self.lock();
        let now = state.now;
        state.answers[me].iter().any(|(at, _)| *at <= now)
    }

    fn notify(&self, core: usize) {
        let mut state = self.step();
        state.notified[core] = true;
        state.wake_due(self.config.cores);
    }

    fn interrupt(&self, core: usize) {
        self.control.cores[core].local.pending.fetch_or(pending::NOTIFY, Ordering::SeqCst);
        drop(self.step());
    }

    fn space_create(&self) -> Result<u32> {
        let space = self.step().memory.as_mut().ok_or(Errno::ENOSYS)?.create()?;
        self.control.space_states[space as usize].store(space_state::READY, Ordering::SeqCst);
        Ok(space)
    }

    fn space_destroy(&self, space: u32) {
        self.control.space_states[space as usize].store(space_state::FREE, Ordering::SeqCst);
        self.with_memory(|m| m.destroy(space)).expect("a space that is there and that no core is in");
    }

    fn space_switch(&self, space: u32, continuation: extern "C" fn(usize) -> !, argument: usize) -> ! {
        atoll_core_local().space.store(space, Ordering::SeqCst);
        if let Some(memory) = &mut self.lock().memory {
            memory.show(space);
        }
        continuation(argument)
    }

    fn parks_apart(&self) -> bool {
        true
    }

    fn leave_stack(&self, continuation: extern "C" fn(usize) -> !, argument: usize) -> ! {
        let context = self.contexts.0[self.me()].get();
        // SAFETY: the stack that the core began on, whose end is aligned, and on which nothing is done any more.
        unsafe {
            let top = (*context).uc_stack.ss_sp.byte_add((*context).uc_stack.ss_size);
            core::arch::asm!(
                "mov rsp, {top}",
                "xor ebp, ebp",
                "call {continuation}",
                "ud2",
                top = in(reg) top,
                continuation = in(reg) continuation,
                in("rdi") argument,
                options(noreturn),
            )
        }
    }

    unsafe fn map(&self, addr: u64, len: u64, access: Access, backing: Backing) -> Result<()> {
        match backing {
            Backing::Memory { offset } => self.with_memory(|m| m.map(addr, len, access, offset)),
            // SAFETY: the caller's promise.
            Backing::Nothing => unsafe { self.unmap(addr, len) },
            Backing::File { .. } => Err(Errno::ENODEV),
        }
    }

    unsafe fn unmap(&self, addr: u64, len: u64) -> Result<()> {
        self.with_memory(|m| m.unmap(addr, len))
    }

    unsafe fn protect(&self, addr: u64, len: u64, access: Access) -> Result<()> {
        self.with_memory(|m| m.protect(addr, len, access))
    }

    fn memory_used_to(&self, _block: u64) {}

    fn submit(&self, request: &Request) -> Result<()> {
        // A serving thread that answers everything with its first argument, after a while.
        let me = self.me();
        let mut state = self.step();
        let at = state.now + state.chance(50_000);
        let value = match Op::from_number(request.op) {
            Some(Op::Nop) => request.arg[0] as i64,
            _ => Errno::ENOSYS.to_ret(),
        };
        state.answers[me].push_back((at, Answer { cookie: request.cookie, value, extra: 0, flags: 0 }));
        Ok(())
    }

    fn take_descriptor(&self) -> Result<i32> {
        Err(Errno::EBADF)
    }

    fn host(&self) -> Option<&dyn HostCalls> {
        None
    }

    fn random(&self, out: &mut [u8]) {
        let mut state = self.step();
        for b in out {
            *b = state.chance(256) as u8;
        }
    }

    fn log(&self, line: &str) {
        eprintln!("sim: {line}");
    }

    fn end(&self, status: i32) -> ! {
        // SAFETY: ends the child.
        unsafe { libc::_exit(status) }
    }
}
