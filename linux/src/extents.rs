//! Memory that comes and goes while programs run.
//!
//! The cell has so many bytes from offset 0 of its memory on. More of it is there before the supervisor says so, and is used from then
//! on. Of what is to go, nothing is given out any more; then the cores let go of what is free in it, and what can be moved is: pages of
//! programs by a thread that visits one space after another, cached pages, and files in memory. What can't be moved (the
//! runtime's own objects) keeps the blocks that it lies in, and those before them. `atoll_mem::pages` has it at the
//! beginning, where nothing is taken from, as long as there is room.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use atoll_abi::core_local::core_local;
use atoll_abi::report::MemoryResized;
use atoll_abi::{Result, platform};
use atoll_fs::tmp::TmpNode;
use atoll_fs::{host, tmp};
use atoll_mem::heap::{self, memory};
use atoll_mem::vm::Object;
use atoll_mem::{texts, vm};
use atoll_sync::{Mutex, SetOnce};

use crate::process::{Space, Task, all_processes};
use crate::shrinkers;

/// One change at a time.
static CHANGING: Mutex<()> = Mutex::new(());

/// Slots (64 KiB) of a space that are moved at a time, while who faults there waits: some 0.2 ms.
const AT_ONCE: usize = 8;
/// How long to wait for what is in the middle of something, ns; and for how long that is worth it while nothing else happens.
const LOOK: u64 = 500_000;
const PATIENCE: u64 = 1_000_000_000;
/// How long to wait for cores at a time, ns: some may be in the middle of something, too.
const CORES: u64 = 20_000_000;

/// A core asks for more memory: others that need some, too, wait for it.
static ASKING: AtomicBool = AtomicBool::new(false);
/// When it may be asked again after it was in vain, ns; and how long that is.
static NOT_BEFORE: AtomicU64 = AtomicU64::new(0);
const IN_VAIN: u64 = 100_000_000;
/// How long a core waits for another one that asks, ns.
const OTHERS_TURN: u64 = 2_000_000_000;

/// May the cell ask for more memory?
pub fn may_ask() -> bool {
    platform().control().growth.may_ask.load(Ordering::Relaxed) != 0
}

/// How much memory the cell could have if it asked for all that it may, bytes.
pub fn potential() -> u64 {
    if may_ask() { platform().control().descriptor.memory_sizes().most } else { memory().total() }
}

/// Asks for so many bytes more at least, without letting others run here. True: there are more. `insists`: although there were none a moment ago.
pub fn grow_by(bytes: u64, insists: bool) -> bool {
    let had = memory().total();
    let is_soon = || platform().now() < NOT_BEFORE.load(Ordering::Relaxed);
    if potential() <= had || (!insists && is_soon()) {
        return false;
    }
    let Some(_one) = CHANGING.try_lock() else {
        // Another core asks, or the cell gives some back.
        let until = platform().now() + OTHERS_TURN;
        while ASKING.load(Ordering::Acquire) && platform().now() < until {
            core::hint::spin_loop();
        }
        return memory().total() > had;
    };
    ASKING.store(true, Ordering::Relaxed);
    let there = platform().more_memory(bytes).filter(|there| *there > memory().total());
    let is_more = if let Some(there) = there {
        memory().grow(there);
        spare();
        true
    } else {
        NOT_BEFORE.store(platform().now() + IN_VAIN, Ordering::Relaxed);
        memory().pool().spare(0) > 0
    };
    ASKING.store(false, Ordering::Release);
    is_more
}

/// In a cell that asks for memory, what it has in any case is not filled with what can be moved, but for this part of it and so many
/// blocks: then the runtime's objects find room there, and don't keep the cell from giving back what it got.
const SPARED_PART: usize = 2;
const SPARED_MOST: usize = 128;

/// From now on some is spared for the runtime's objects, if the cell may ask for more.
pub fn spare() {
    if may_ask() {
        let pool = memory().pool();
        pool.spare((pool.fixed() / SPARED_PART).min(SPARED_MOST));
    }
}

/// The supervisor grants so many bytes. It takes `within` ns at most.
pub fn grant(bytes: u64, within: u64) -> core::result::Result<MemoryResized, String> {
    let _one = CHANGING.lock();
    let begun = platform().now();
    let (memory, there) = (memory(), platform().control().descriptor.memory_sizes());
    let (mut moved, mut why) = (0, None);
    if bytes > there.now || bytes < there.least {
        return Err(format!("it can have {} to {} MiB now", there.least >> 20, there.now >> 20));
    }
    if bytes >= memory.total() {
        memory.grow(bytes);
    } else {
        make_room(bytes, begun + within / 2)?;
        // What has to go finds room wherever there is some.
        memory.pool().spare(0);
        (moved, why) = leave(bytes, begun + within);
        spare();
    }
    Ok(MemoryResized { memory: memory.total(), moved, ns: platform().now() - begun, why })
}

/// Caches are asked for room so many times in a row from which nothing has come.
const IN_VAIN_MOST: u32 = 3;

/// What is in use has to fit in: caches give the rest back, the runtime's first, then programs', by this time.
fn make_room(bytes: u64, until: u64) -> core::result::Result<(), String> {
    let (mut least, mut in_vain) = (u64::MAX, 0);
    loop {
        let used = memory().used() + heap::kept_bytes();
        if used <= bytes {
            return Ok(());
        }
        // Programs may take again what they give.
        in_vain = if used < least { 0 } else { in_vain + 1 };
        least = least.min(used);
        let is_over = in_vain > IN_VAIN_MOST || platform().now() >= until;
        if is_over || !vm::reclaim(used - bytes, false) && !shrinkers::ask(None, None, used - bytes, until) {
            return Err(format!(
                "its programs and its runtime have {} MiB of it in use",
                used.div_ceil(1 << 20)
            ));
        }
    }
}

/// Lets go of all that lies at `bytes` and behind it. Value: bytes that were moved, and why there is something left.
fn leave(bytes: u64, until: u64) -> (u64, Option<String>) {
    let memory = memory();
    memory.begin_to_leave(bytes);
    let (mut moved, mut left, mut since) = (0, usize::MAX, platform().now());
    // Each core has free pages that no other can take: where one has none left, another one goes on.
    let (mut core, mut in_vain) = (0, 0);
    let why = loop {
        tidy_cores();
        let still = memory.left_behind();
        if still == 0 {
            break None;
        }
        let some = on_core(core, move |moved| move_all(bytes, until, moved));
        let now = platform().now();
        let is_full = matches!(some, Some((Err(_), _)));
        let some = some.map_or(0, |(_, some)| some);
        moved += some;
        if still < left || some > 0 {
            (left, since, in_vain) = (still, now, 0);
        }
        if is_full {
            (core, in_vain) = ((core + 1) % atoll_task::cores(), in_vain + 1);
            if in_vain > atoll_task::cores() {
                break Some("there is no room for what would have to be moved".into());
            }
            continue;
        }
        if now >= until || now - since > PATIENCE {
            let pinned = memory.pinned_to();
            let what = |end| format!("what can't be moved lies up to {} MiB", end >> 20);
            break Some(pinned.map_or_else(|| "programs go on using it".into(), what));
        }
        if some == 0 {
            atoll_task::park_until(now + LOOK);
        }
    };
    memory.leave();
    (moved, why)
}

/// Has each core let go of what is free in what is to go.
fn tidy_cores() {
    let (begun, done) = (platform().now(), Arc::new(AtomicUsize::new(0)));
    let (mut asked, leaving) = (0, memory().leaving());
    for core in (0..atoll_task::cores()).filter(|core| atoll_task::has_core(&leaving, *core)) {
        let done = done.clone();
        // Without memory for a thread it is done when the core next takes a page.
        let thread = atoll_task::spawn(core, move || {
            heap::tidy();
            done.fetch_add(1, Ordering::Release);
        });
        if let Some(thread) = thread {
            atoll_task::start(thread);
            asked += 1;
        }
    }
    while done.load(Ordering::Acquire) < asked && platform().now() < begun + CORES {
        atoll_task::park_until(platform().now() + LOOK / 10);
    }
}

/// Has a thread on a core do something, which counts; what came of it. None: there is no memory for a thread.
fn on_core(
    core: usize,
    f: impl FnOnce(&AtomicU64) -> Result<()> + Send + 'static,
) -> Option<(Result<()>, u64)> {
    let state = Arc::new((AtomicU64::new(0), SetOnce::<Result<()>>::new()));
    let its = state.clone();
    let thread = atoll_task::spawn(core, move || {
        let done = f(&its.0);
        // Only here.
        let _ = its.1.set(done);
    })?;
    atoll_task::start(thread);
    loop {
        if let Some(done) = state.1.get() {
            return Some((*done, state.0.load(Ordering::Relaxed)));
        }
        atoll_task::park_until(platform().now() + LOOK / 10);
    }
}

/// A file was cut: what is mapped of it behind that faults from now on, in all programs where some of it is.
pub fn was_cut(task: &Task, inode: &dyn Any, len: u64) {
    let Some(node) = inode.downcast_ref::<TmpNode>() else { return };
    let object = core::ptr::from_ref(node) as usize;
    let cut = move |space: &Space| space.memory.object_shrunk(object as *const (), len);
    cut(&task.space.share());
    if Object::mappings(node) == 0 {
        return;
    }
    let others: Vec<Arc<Space>> = spaces().into_iter().filter(|space| space.id != task.space.id).collect();
    if !others.is_empty() {
        // Only a thread of the runtime goes into others' spaces. Without memory for one, pages stay as they were until they are unmapped.
        let _ = on_core(core_local().id(), move |_| {
            others.iter().for_each(|space| atoll_task::in_space(space.id, || cut(space)));
            Ok(())
        });
    }
}

/// All spaces that programs are in.
fn spaces() -> Vec<Arc<Space>> {
    let mut spaces: Vec<Arc<Space>> = Vec::new();
    for process in all_processes() {
        let tasks = process.tasks.lock().clone();
        for space in tasks.iter().map(|task| task.space.share()) {
            if !spaces.iter().any(|known| Arc::ptr_eq(known, &space)) {
                spaces.push(space);
            }
        }
    }
    spaces
}

/// Moves what can be moved now out of what lies at `from` or behind it, and counts the bytes. ENOMEM: there is no other place.
fn move_all(from: u64, until: u64, moved: &AtomicU64) -> Result<()> {
    let spaces = spaces();
    let count = |bytes| _ = moved.fetch_add(bytes, Ordering::Relaxed);
    host::vacate(from).map(count)?;
    let hide = |object| {
        let try_hide =
            |space: &Arc<Space>| atoll_task::in_space(space.id, || space.memory.try_hide_object(object));
        spaces.iter().all(try_hide)
    };
    tmp::vacate(from, hide).map(count)?;
    texts::give_up(from);
    let mut known = vm::NewPlaces::default();
    for space in spaces.iter().filter(|space| space.memory.lies_behind(from)) {
        atoll_task::in_space(space.id, || -> Result<()> {
            let mut next = Some(0);
            while let Some(at) = next
                && platform().now() < until
            {
                let slots;
                (slots, next) = space.memory.vacate(from, at, AT_ONCE, &mut known)?;
                count(slots as u64 * vm::SLOT);
            }
            Ok(())
        })?;
    }
    Ok(())
}
