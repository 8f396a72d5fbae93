//! How many threads and processes there may be: in the cell (Docker's `--pids-limit`, cgroups' `pids.max`), and in each activity that
//! the configuration gives a limit (OmniRE: a program's environment has quotas). Who wants one more gets EAGAIN, and nobody else
//! notices.

use core::sync::atomic::{AtomicU32, Ordering};

use atoll_abi::grid::{ACTIVITIES_MAX, GridConfig};
use atoll_abi::{Errno, Result};
use atoll_sync::Mutex;
use atoll_task::Activity;

use crate::process::Process;

/// Tasks that there are, and may be.
#[derive(Clone, Copy)]
struct Tasks {
    used: u32,
    /// 0: there is no limit.
    most: u32,
}

impl Tasks {
    const NONE: Tasks = Tasks { used: 0, most: 0 };

    fn is_full(self) -> bool {
        self.most != 0 && self.used >= self.most
    }
}

struct All {
    cell: Tasks,
    /// By the number of the class.
    classes: [Tasks; ACTIVITIES_MAX],
}

static ALL: Mutex<All> = Mutex::new(All { cell: Tasks::NONE, classes: [Tasks::NONE; ACTIVITIES_MAX] });

/// What a process's tasks count for. It changes only with [`ALL`] locked.
#[derive(Default)]
pub struct Counted {
    tasks: AtomicU32,
    class: AtomicU32,
}

/// A task begins. EAGAIN: there are as many as there may be.
pub fn task_begins(process: &Process) -> Result<()> {
    let mut all = ALL.lock();
    let counted = &process.counted;
    if counted.tasks.load(Ordering::Relaxed) == 0 {
        counted.class.store(process.activity.class(), Ordering::Relaxed);
    }
    let class = counted.class.load(Ordering::Relaxed) as usize;
    if all.cell.is_full() || all.classes[class].is_full() {
        return Err(Errno::EAGAIN);
    }
    all.cell.used += 1;
    all.classes[class].used += 1;
    counted.tasks.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// One has ended.
pub fn task_ends(process: &Process) {
    let mut all = ALL.lock();
    let counted = &process.counted;
    counted.tasks.fetch_sub(1, Ordering::Relaxed);
    all.cell.used -= 1;
    all.classes[counted.class.load(Ordering::Relaxed) as usize].used -= 1;
}

/// A process belongs to another class now, with all its tasks, how many there may ever be.
pub fn moves(process: &Process, class: &Activity) {
    let mut all = ALL.lock();
    let counted = &process.counted;
    let tasks = counted.tasks.load(Ordering::Relaxed);
    let from = counted.class.swap(class.number(), Ordering::Relaxed);
    if tasks > 0 {
        all.classes[from as usize].used -= tasks;
        all.classes[class.number() as usize].used += tasks;
    }
}

/// Takes the limits of a configuration. Who has more keeps what there is.
pub fn configure(config: &GridConfig, classes: &[Activity]) {
    let mut all = ALL.lock();
    all.cell.most = config.tasks_max;
    all.classes.iter_mut().for_each(|class| class.most = 0);
    for (activity, class) in config.activities.iter().zip(classes) {
        all.classes[class.number() as usize].most = activity.tasks_max;
    }
}
