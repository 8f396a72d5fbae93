//! The nucleus: boots a machine without Linux.
//!
//! Ring 0, small enough to be read in an evening. It finds memory and cores, makes an address space
//! of its own in which no page can be both written and executed, starts every core, splits the
//! machine among cells and starts them in ring 3. It has no heap, and no lock but the console's, for
//! which none waits for ever; it allocates at boot only, and interrupts are off while it runs.
//!
//! Read in this order: [`entry`] (the first instructions), [`pvh`] and [`multiboot`] (what the loader says), this
//! file, [`paging`], [`cpu`], [`tables`], [`mp`] and [`apic`] (the other cores),
//! [`clock`], [`partition`], [`load`], [`cell`], [`space`], [`cores`], [`mailbox`].
#![no_std]
#![no_main]

mod apic;
mod cell;
mod clock;
mod console;
mod cores;
mod counter;
mod cpu;
mod devices;
mod entry;
mod iommu;
mod load;
mod mailbox;
mod memory;
#[path = "../../cell/src/memory_functions.rs"]
mod memory_functions;
mod mp;
mod multiboot;
mod paging;
mod partition;
mod pci;
mod pvh;
mod space;
mod tables;

use core::convert::Infallible;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU16, AtomicU64, AtomicUsize, Ordering};

use apic::Apic;
use arrayvec::ArrayVec;
use atoll_formats::multiboot::MAGIC as MULTIBOOT;
use atoll_partition::CORES_MAX;
use cell::Cell;
use cpu::Core;
use entry::{DIRECT, TRAMPOLINE, VIRTUAL};
use memory::{FRAME, Frames};
use paging::AddressSpace;
use pvh::Boot;
use tables::Machine;

/// Pages of a core's stack, of the boot core's, which splits the machine on it, and of the one for emergencies.
const STACK_PAGES: u64 = 8;
const BOOT_STACK_PAGES: u64 = 64;
const EMERGENCY_PAGES: u64 = 2;
/// Looks for a sign of life of a core that was started, before it is given up.
const PATIENCE: u64 = 2_000_000_000;

/// Cores that run.
static RUNNING: AtomicUsize = AtomicUsize::new(0);
/// What each core is to do.
static JOBS: [Job; CORES_MAX] = [const {
    Job {
        cell: AtomicPtr::new(core::ptr::null_mut()),
        number: AtomicUsize::new(0),
        given: AtomicBool::new(false),
    }
}; CORES_MAX];
/// There will be no more of them.
static ALL_GIVEN: AtomicBool = AtomicBool::new(false);
/// Where the local APIC's registers are mapped.
static APIC: AtomicU64 = AtomicU64::new(0);
/// The port of QEMU's `isa-debug-exit`, if the command line names it; 0: none.
static EXIT_PORT: AtomicU16 = AtomicU16::new(0);

type Result<T> = core::result::Result<T, &'static str>;

/// The cell that a core is of, and as which of its cores.
struct Job {
    cell: AtomicPtr<Cell>,
    number: AtomicUsize,
    /// It is to begin.
    given: AtomicBool,
}

/// Called by [`entry`] on the boot core, with interrupts off.
#[unsafe(no_mangle)]
#[allow(unsafe_code, reason = "called by the entry code")]
extern "C" fn nucleus_main(info: u64, loader: u32) -> ! {
    console::Console::init();
    let Err(e) = boot(info, loader);
    give_up(e)
}

fn give_up(why: &str) -> ! {
    say!("can't go on: {why}");
    end(false)
}

/// What the boot core takes along to its own stack.
struct Start {
    boot: Boot,
    machine: Machine,
    space: AddressSpace,
    frames: Frames,
    core: &'static mut Core,
}

/// On the first stack, which has no guard: up to an address space of our own.
fn boot(info: u64, loader: u32) -> Result<Infallible> {
    let boot = match loader {
        0 => Boot::read(info)?,
        MULTIBOOT => multiboot::read(info)?,
        _ => return Err("not started by Multiboot2: the loader's magic number is wrong"),
    };
    if let Some(port) = boot.option("exit").and_then(|p| u16::from_str_radix(p, 16).ok()) {
        EXIT_PORT.store(port, Ordering::Relaxed);
    }
    if let Some(what) = cpu::lacks() {
        return Err(what);
    }
    let mut frames = Frames::new(&boot, entry::image_in_memory())?;
    let machine = tables::read(&boot)?;
    let mut space = AddressSpace::new(&boot, &mut frames)?;
    space.enter();
    APIC.store(space.map_device(&mut frames, machine.apic_address)?, Ordering::Relaxed);
    let (stack, core) = new_core(&mut space, &mut frames, 0)?;
    core.start();
    let mut start = Start { boot, machine, space, frames, core };
    cpu::go_on(stack, on_own_stack, &mut start)
}

extern "C" fn on_own_stack(start: &mut Start) -> ! {
    match run(start) {
        Ok(()) => end(true),
        Err(e) => give_up(e),
    }
}

fn run(start: &mut Start) -> Result<()> {
    let Start { boot, machine, space, frames, .. } = start;
    let apic = Apic::start(APIC.load(Ordering::Relaxed));
    cores::introduce(0, apic.id());
    clock::start(apic)?;
    RUNNING.store(1, Ordering::Release);
    let lost = start_cores(boot, machine, apic, space, frames)?;

    say!(
        "{} cores ({}), {} MiB",
        RUNNING.load(Ordering::Acquire),
        apic.name(),
        boot.ram().map(|r| r.len).sum::<u64>() >> 20
    );
    for id in lost.iter() {
        say!("the core with APIC id {id} does not start");
    }
    if machine.left_out > 0 {
        say!("{} cores are not used: more than {CORES_MAX}", machine.left_out);
    }
    for (name, on) in cpu::protections() {
        if !on {
            say!("this processor has no {name}");
        }
    }
    say!("own memory: {} KiB", (entry::image_in_memory().len + frames.taken().len) >> 10);
    if let Some(what) = boot.option("crash") {
        crash(what);
    }
    let jobs = partition::of_boot(boot, machine, space, frames, RUNNING.load(Ordering::Acquire))?;
    if jobs.is_empty() {
        return Ok(());
    }
    for (n, core, cell) in jobs.iter().flat_map(|(cell, cores)| {
        let cores = (0..CORES_MAX).filter(move |n| cores & 1 << n != 0).enumerate();
        cores.map(|(n, core)| (n, core, *cell))
    }) {
        JOBS[core].number.store(n, Ordering::Relaxed);
        JOBS[core].cell.store(cell, Ordering::Relaxed);
        JOBS[core].given.store(true, Ordering::Release);
    }
    ALL_GIVEN.store(true, Ordering::Release);
    take_job(start.core);
    cpu::stop()
}

/// Memory and stacks for a core; the stack's top.
#[allow(unsafe_code, reason = "makes a structure in fresh frames")]
fn new_core(space: &mut AddressSpace, frames: &mut Frames, index: usize) -> Result<(u64, &'static mut Core)> {
    let stack = space.make_stack(frames, if index == 0 { BOOT_STACK_PAGES } else { STACK_PAGES })?;
    let emergency = space.make_stack(frames, EMERGENCY_PAGES)?;
    let at = frames.take((size_of::<Core>() as u64).div_ceil(FRAME)).ok_or("no memory for a core")?;
    // SAFETY: fresh frames, for this alone; `prepare` fills in every field of it before it is used.
    let core = unsafe { &mut *((DIRECT + at) as *mut Core) };
    core.prepare(index, stack, emergency);
    Ok((stack, core))
}

/// Starts all cores but this one, one after the other. Value: those that give no sign of life.
#[allow(unsafe_code, reason = "writes the other cores' first instructions")]
fn start_cores(
    boot: &Boot,
    machine: &Machine,
    apic: Apic,
    space: &mut AddressSpace,
    frames: &mut Frames,
) -> Result<ArrayVec<u32, CORES_MAX>> {
    let mut lost = ArrayVec::new();
    let (code, arguments) = entry::trampoline();
    if machine.apics.len() > 1
        && !boot.ram().any(|r| r.start <= TRAMPOLINE && TRAMPOLINE + FRAME <= r.start + r.len)
    {
        return Err("the other cores can't begin: there is no memory at 0x8000");
    }
    space.trampoline(frames, true)?;
    let page = (DIRECT + TRAMPOLINE) as *mut u8;
    for id in machine.apics.iter().copied().filter(|id| *id != apic.id()) {
        let running = RUNNING.load(Ordering::Acquire);
        let (stack, core) = new_core(space, frames, running)?;
        let values = [space.root(), stack, core as *mut Core as u64, next_core as *const () as u64];
        // SAFETY: memory below 1 MiB that nobody else uses, in the direct map; the page holds all of it.
        unsafe {
            page.copy_from_nonoverlapping(code.as_ptr(), code.len());
            page.add(arguments).cast::<[u64; 4]>().write_unaligned(values);
        }
        apic.init(id);
        // Twice, as the processors' manual has it: one that has begun does not hear the second.
        for _ in 0..2 {
            apic.startup(id, (TRAMPOLINE / FRAME) as u32);
        }
        let mut patience = PATIENCE;
        while RUNNING.load(Ordering::Acquire) == running && patience > 0 {
            core::hint::spin_loop();
            patience -= 1;
        }
        if patience == 0 {
            // It must not come later, when the page is another's.
            apic.init(id);
            lost.push(id);
        }
    }
    space.trampoline(frames, false)?;
    Ok(lost)
}

/// Begins with its cell, if it has been given one.
#[allow(unsafe_code, reason = "follows the pointer to a cell")]
fn take_job(core: &Core) {
    let job = &JOBS[core.index];
    if job.given.swap(false, Ordering::Acquire) {
        // SAFETY: it was made, and stays until all its cores have left it.
        let cell: &'static Cell = unsafe { &*job.cell.load(Ordering::Relaxed) };
        core.enter(cell, job.number.load(Ordering::Relaxed));
    }
}

/// What a core does that had a cell.
pub extern "C" fn wait_for_job(_: &mut ()) -> ! {
    loop {
        take_job(Core::here());
        cpu::wait_for_interrupt();
    }
}

/// Starts a cell in place of the one that its cores, a bit each, were of. They have left that one, but for this
/// core, which goes on with the new one too.
#[allow(unsafe_code, reason = "writes over a cell that has ended")]
pub fn replace(cell: Cell, cores: u64) -> ! {
    // SAFETY: no core refers to the old one any more.
    unsafe { JOBS[cores.trailing_zeros() as usize].cell.load(Ordering::Relaxed).write(cell) };
    for core in (0..CORES_MAX).filter(|n| cores & 1 << n != 0) {
        JOBS[core].given.store(true, Ordering::SeqCst);
        if core != Core::here().index {
            cores::interrupt(core);
        }
    }
    cpu::idle()
}

/// Where another core gets to, on its own stack.
extern "C" fn next_core(core: &'static mut Core) -> ! {
    // One that lacks what the first one has is as one that does not start.
    if cpu::lacks().is_some() {
        cpu::stop();
    }
    core.start();
    let apic = Apic::start(APIC.load(Ordering::Relaxed));
    cores::introduce(core.index, apic.id());
    RUNNING.fetch_add(1, Ordering::Release);
    loop {
        // In this order: what was given before the last look is seen.
        let last = ALL_GIVEN.load(Ordering::Acquire);
        take_job(core);
        if last {
            cpu::stop();
        }
        core::hint::spin_loop();
    }
}

/// Does what must not be possible (`crash=` in the command line), for the tests.
#[allow(unsafe_code, unconditional_recursion, reason = "breaks the rules on purpose")]
fn crash(what: &str) {
    #[inline(never)]
    fn deeper(n: u64) -> u64 {
        let here = core::hint::black_box([n; 64]);
        deeper(here[1] + 1) + here[2]
    }
    let [text, ..] = entry::image();
    // SAFETY: none of these can do what it says: each is an exception, and the machine's end.
    unsafe {
        match what {
            "write-code" => (text as *mut u8).write_volatile(0),
            "write-code-direct" => ((text - VIRTUAL + DIRECT) as *mut u8).write_volatile(0),
            "run-data" => {
                static RETURN: [AtomicU64; 1] = [AtomicU64::new(0xc3)];
                let f: extern "C" fn() = core::mem::transmute(&raw const RETURN);
                f();
            }
            "null" => core::ptr::null_mut::<u8>().wrapping_add(core::hint::black_box(8)).write_volatile(0),
            "stack" => {
                core::hint::black_box(deeper(1));
            }
            "panic" => panic!("as asked for"),
            _ => {}
        }
    }
    say!("nothing came of crash={what}");
}

/// The end: of the machine, if it has a way to say so.
fn end(well: bool) -> ! {
    let port = EXIT_PORT.load(Ordering::Relaxed);
    if port != 0 {
        cpu::debug_exit(port, u32::from(!well));
    }
    cpu::stop()
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    say!("{info}");
    end(false)
}

/// Code that was compiled with unwinding in mind refers to this; nothing unwinds here.
#[unsafe(no_mangle)]
#[allow(unsafe_code, reason = "a symbol that core refers to")]
extern "C" fn rust_eh_personality() {}
