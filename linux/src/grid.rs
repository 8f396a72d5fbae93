//! The grid's configuration, and whose processes are whose.
//!
//! The configuration comes with the boot configuration, and later through the control area (`atoll_abi::grid`). Each of
//! the activities that it names becomes a class of the scheduler; a process belongs to the first that it matches when it
//! starts a program, else to its parent's, and the first process to the cell.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use atoll_abi::grid::{
    ActivityConfig, BATCH_MAX, CONFIG_MAX, GridArea, GridConfig, Measure, NAME_MAX, Parameters, QUOTAS,
    REASON_MAX, Resource, ResourceConfig, SchedulerKind, kind,
};
use atoll_abi::platform;
use atoll_grid::matches::matches;
use atoll_sync::Mutex;
use atoll_task::{Activity, CORE_WORDS, CoreSet, books, gate, set_of_cores};

use crate::process::{Image, Process, Task, all_processes};
use crate::{budget, log, quota};

/// What is in force.
struct Grid {
    config: GridConfig,
    /// The configuration's activities, in its order.
    classes: Vec<Activity>,
}

static GRID: Mutex<Option<Grid>> = Mutex::new(None);
/// Does it want activities for threads? Who makes one asks this first, and takes no lock if not.
static WANTS_THREADS: AtomicBool = AtomicBool::new(false);

fn area() -> &'static GridArea {
    &platform().control().grid
}

/// The activities that the configuration names: their classes, and what it says of them.
pub fn named() -> Vec<(u32, ActivityConfig)> {
    let grid = GRID.lock();
    let of =
        |g: &Grid| g.classes.iter().map(Activity::number).zip(g.config.activities.iter().cloned()).collect();
    grid.as_ref().map_or_else(Vec::new, of)
}

/// The quotas of the whole cell.
pub fn quotas() -> [u32; QUOTAS] {
    GRID.lock().as_ref().map_or([0; QUOTAS], |g| g.config.quotas)
}

/// Makes a configuration the one in force. The error says why it can't be; then the one before stays.
pub fn configure(config: GridConfig) -> Result<(), String> {
    check(&config)?;
    let mut grid = GRID.lock();
    let mut classes = Vec::new();
    for activity in &config.activities {
        let known = grid.as_ref().and_then(|g| {
            let n = g.config.activities.iter().position(|a| a.name == activity.name)?;
            Some(g.classes[n].clone())
        });
        let class = known
            .or_else(|| {
                let new = Activity::new(kind::NAMED, &Activity::root(), 0, activity.name.as_bytes())?;
                quota::open(&new);
                Some(new)
            })
            .ok_or_else(|| format!("there is no room for the activity {}", activity.name))?;
        classes.push(class);
    }
    quota::configure(&config, &classes);
    budget::configure(&config, &classes);
    WANTS_THREADS.store(config.threads || config.activities.iter().any(|a| a.threads), Ordering::Relaxed);
    let g = grid.insert(Grid { config, classes });
    for (process, class) in g.classes_of_all() {
        put_into(&process, &class);
    }
    g.divide();
    Ok(())
}

/// What the supervisor checks, too; but it may be of another mind than this cell.
fn check(config: &GridConfig) -> Result<(), String> {
    for (n, activity) in config.activities.iter().enumerate() {
        let name = &activity.name;
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(format!("an activity's name has 1 to {NAME_MAX} bytes"));
        }
        if config.activities[..n].iter().any(|a| a.name == *name) {
            return Err(format!("there are two activities {name}"));
        }
        if activity.parameters.weight == 0 {
            return Err(format!("the activity {name} has no weight"));
        }
    }
    for (n, resource) in config.resources.iter().enumerate() {
        let name = resource.resource.name();
        if matches!(resource.resource, Resource::Overhead | Resource::Idle | Resource::Stolen) {
            return Err(format!("{name} is measured, and nothing can be scheduled there"));
        }
        if config.resources[..n].iter().any(|r| r.resource == resource.resource) {
            return Err(format!("{name} is divided twice"));
        }
        if !(1..=BATCH_MAX).contains(&resource.batch) {
            return Err(format!("the batch of {name} is from 1 to {BATCH_MAX}"));
        }
        if resource.activities.iter().any(|(_, p)| p.weight == 0) {
            return Err(format!("an activity has no weight at {name}"));
        }
        if let Some((n, _)) = resource.activities.iter().find(|(n, _)| *n as usize >= config.activities.len())
        {
            return Err(format!("{name} is divided for an activity {n} that is not there"));
        }
    }
    Ok(())
}

impl Grid {
    /// The first activity that a process matches.
    fn matched(&self, process: &Process, image: &Image) -> Option<Activity> {
        let uid = process.ids().ruid;
        let n = self.config.activities.iter().position(|a| belongs(a, image, uid))?;
        Some(self.classes[n].clone())
    }

    /// Whose each process is from now on. Who matches none goes where its parent goes, if it was with it until now; else it stays where
    /// it was, if that is there, or belongs to the cell.
    fn classes_of_all(&self) -> Vec<(Arc<Process>, Activity)> {
        let all = all_processes();
        let by_pid: BTreeMap<u32, &Arc<Process>> = all.iter().map(|p| (p.pid, p)).collect();
        let mut known: BTreeMap<u32, Activity> = BTreeMap::new();
        for process in &all {
            // Up to the first whose class is known; then down again.
            let (mut line, mut at) = (Vec::new(), process);
            let mut class = loop {
                if let Some(class) = known.get(&at.pid) {
                    break class.clone();
                }
                let image = at.image.lock().clone();
                if let Some(class) = self.matched(at, &image) {
                    known.insert(at.pid, class.clone());
                    break class;
                }
                line.push(at.pid);
                let old = at.activity.class();
                // Parents may change meanwhile, so that there may be no first one.
                let parent = by_pid
                    .get(&at.parent_pid())
                    .filter(|parent| parent.activity.class() == old && line.len() <= all.len());
                let Some(parent) = parent else {
                    let stays = self.classes.iter().find(|class| class.number() == old);
                    break stays.cloned().unwrap_or_else(Activity::root);
                };
                at = parent;
            };
            for pid in line.into_iter().rev() {
                class = known.entry(pid).or_insert(class).clone();
            }
        }
        let of = |p: &Arc<Process>| known.get(&p.pid).cloned().unwrap_or_else(Activity::root);
        all.iter().map(|process| (process.clone(), of(process))).collect()
    }

    /// Tells the schedulers.
    fn divide(&self) {
        books::set_sample(self.config.sample);
        let of = |resource| self.config.resources.iter().find(|r| r.resource == resource);
        let thread = of(Resource::Thread);
        let scheduler = thread.map_or(SchedulerKind::Wfq, |r| r.scheduler);
        let each = |(n, class)| (class, self.parameters(n, thread));
        let classes: Vec<(&Activity, Parameters)> = self.classes.iter().enumerate().map(each).collect();
        atoll_task::divide(scheduler, Parameters::default(), &classes);
        self.confine(thread);
        for resource in Resource::ALL.into_iter().filter(|r| *r != Resource::Thread) {
            gate::set(resource, of(resource).and_then(|r| self.rule(r)).as_ref());
        }
    }

    /// Says on which cores activities' threads run: on those that their activity names, or all programs' are to run on.
    fn confine(&self, thread: Option<&ResourceConfig>) {
        let set = |cores: &[u32]| {
            let there = cores.iter().map(|core| *core as usize).filter(|core| *core < atoll_task::cores());
            let set = set_of_cores(there);
            // The supervisor's command has looked that they are there.
            if set == [0; CORE_WORDS] { [!0; CORE_WORDS] } else { set }
        };
        let programs: &[u32] = thread.map_or(&[], |r| &r.cores);
        let of = |n: usize| {
            let own = &self.config.activities[n].cores;
            set(if own.is_empty() { programs } else { own })
        };
        let cell = Activity::root();
        let each = self.classes.iter().enumerate().map(|(n, class)| (class, of(n)));
        let classes: Vec<(&Activity, CoreSet)> = each.chain([(&cell, set(programs))]).collect();
        atoll_task::confine(&classes);
    }

    /// What an activity is to have of a resource.
    fn parameters(&self, n: usize, resource: Option<&ResourceConfig>) -> Parameters {
        let everywhere = self.config.activities[n].parameters;
        let Some(resource) = resource else { return everywhere };
        match resource.activities.iter().find(|(a, _)| *a as usize == n) {
            Some((_, own)) => *own,
            None if resource.measure == Measure::Time => everywhere,
            // What is said of time says nothing of bytes.
            None => Parameters { reservation: 0, limit: 0, ..everywhere },
        }
    }

    /// How a resource is divided, if it has a limit: else there is nothing to divide but the time that threads have.
    fn rule(&self, r: &ResourceConfig) -> Option<gate::Rule> {
        let each = |(n, class): (usize, &Activity)| (class.number(), self.parameters(n, Some(r)));
        let classes: Vec<(u32, Parameters)> = self.classes.iter().enumerate().map(each).collect();
        (r.rate != 0 || classes.iter().any(|(_, p)| p.limit != 0)).then(|| gate::Rule {
            scheduler: r.scheduler,
            measure: r.measure,
            rate: r.rate,
            batch: r.batch,
            core: r.cores.first().map_or(0, |core| *core as usize),
            cell: Parameters::default(),
            classes,
        })
    }
}

fn belongs(activity: &ActivityConfig, image: &Image, uid: u32) -> bool {
    // Each word has a NUL behind it.
    fn words(list: &[u8]) -> impl Iterator<Item = &[u8]> {
        list.split_inclusive(|b| *b == 0).map(|word| word.strip_suffix(&[0]).unwrap_or(word))
    }
    let one = |m| matches(m, &image.exe, words(&image.cmdline), words(&image.environ), uid);
    activity.matches.iter().any(one)
}

/// Puts a process, and its threads, into a class.
fn put_into(process: &Process, class: &Activity) {
    // A process for which there was no record of its own works for a class's: it stays with what it has.
    if process.activity.class() == process.activity.number() {
        return;
    }
    process.activity.move_under(class);
    quota::moves(process, class);
    budget::count_anew();
    for task in process.tasks.lock().iter() {
        task.thread().set_class(class.number());
        atoll_task::visit(task.thread());
    }
}

/// An activity for a new process: under its parent's class.
pub fn for_process(parent: Option<&Process>, pid: u32, name: &[u8]) -> Activity {
    // While this is held, nobody changes anybody's class.
    let _grid = GRID.lock();
    let class = parent.map_or_else(Activity::root, |p| p.activity.above());
    Activity::new(kind::PROCESS, &class, pid, name).unwrap_or(class)
}

/// A thread begins, or a program in it: it gets an activity below its process's, if the configuration wants that and there is
/// room. Value: if it has one from now on.
pub fn thread_begins(task: &Task) -> Option<&Activity> {
    if !WANTS_THREADS.load(Ordering::Relaxed) {
        return None;
    }
    let grid = GRID.lock();
    let Grid { config, classes } = grid.as_ref()?;
    let process = &task.process.activity;
    let class = process.class();
    if class == process.number() || task.own.get().is_some() {
        return None;
    }
    let mut named = classes.iter().zip(&config.activities);
    if !config.threads && !named.any(|(c, a)| a.threads && c.number() == class) {
        return None;
    }
    let own = Activity::new(kind::THREAD, process, task.tid(), &task.name())?;
    // Nobody else begins it.
    let _ = task.own.set(own);
    task.own.get()
}

/// A process starts a program: whose is it now?
pub fn starts(process: &Process, image: &Image, name: &[u8]) {
    let grid = GRID.lock();
    if process.activity.class() != process.activity.number() {
        process.activity.rename(name);
    }
    if let Some(g) = grid.as_ref().filter(|g| !g.classes.is_empty()) {
        let class = g.matched(process, image).unwrap_or_else(|| process.activity.above());
        put_into(process, &class);
    }
}

/// Looks whether the supervisor offers another configuration, and answers.
pub fn look_at_offer() {
    let area = area();
    let offered = area.offered.load(Ordering::Acquire);
    static SEEN: AtomicU32 = AtomicU32::new(0);
    if offered == area.answered.load(Ordering::Relaxed) || SEEN.swap(offered, Ordering::Relaxed) == offered {
        return;
    }
    // It takes locks and memory, which what this interrupts should not wait for.
    let core = atoll_abi::core_local::core_local().id();
    match atoll_task::spawn(core, answer) {
        Some(t) => atoll_task::start(t),
        None => {
            log::line(format_args!("no memory to look at a configuration of the grid"));
            SEEN.store(offered.wrapping_sub(1), Ordering::Relaxed);
        }
    }
}

fn answer() {
    static ANSWERING: Mutex<()> = Mutex::new(());
    let _one = ANSWERING.lock();
    let area = area();
    let offer = area.offered.load(Ordering::Acquire);
    if offer == area.answered.load(Ordering::Relaxed) {
        return;
    }
    let len = (area.config_len.load(Ordering::Relaxed) as usize).min(CONFIG_MAX);
    let bytes: Vec<u8> = area.config[..len].iter().map(|b| b.load(Ordering::Relaxed)).collect();
    let outcome = postcard::from_bytes::<GridConfig>(&bytes).map_err(|e| e.to_string()).and_then(configure);
    let reason = outcome.as_ref().err().map_or(&b""[..], |e| e.as_bytes());
    for (n, byte) in area.reason.iter().enumerate().take(REASON_MAX) {
        let value = if n + 1 < REASON_MAX { reason.get(n).copied().unwrap_or(0) } else { 0 };
        byte.store(value, Ordering::Relaxed);
    }
    area.taken.store(u32::from(outcome.is_ok()), Ordering::Relaxed);
    area.answered.store(offer, Ordering::Release);
}

/// An activity's name.
pub fn activity_name(number: u32) -> String {
    let name = atoll_task::name_of(number);
    String::from_utf8_lossy(name.split(|b| *b == 0).next().unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests;
