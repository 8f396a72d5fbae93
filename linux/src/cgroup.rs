//! `/sys/fs/cgroup`: what programs in a container read of their limits and of what they use (cgroups(7), Linux's
//! Documentation/admin-guide/cgroup-v2.rst). The root is the cell; below it is a group for each activity that the configuration names. The
//! configuration is set by `atoll grid`, so all of this is read only. What a file can't say truthfully, it is not there for.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use atoll_abi::grid::{ActivityConfig, Quota, ROOT};
use atoll_abi::platform;
use atoll_fs::host;
use atoll_mem::heap::memory;
use atoll_task::{CoreSet, class_of, set_of_cores};
use core::sync::atomic::Ordering;

use crate::process::{Process, all_processes};
use crate::{budget, grid, proc};

/// A file of a group.
pub struct GroupFile {
    /// Its name.
    pub name: &'static str,
    /// Contents.
    pub text: fn(&Group) -> String,
}

/// A group: the cell, or an activity that the configuration names.
pub struct Group {
    class: u32,
    /// None: the cell.
    config: Option<ActivityConfig>,
}

/// Files of each group.
pub const FILES: [GroupFile; 25] = [
    GroupFile { name: "cgroup.controllers", text: |_| "cpuset cpu memory pids\n".into() },
    GroupFile {
        name: "cgroup.events",
        text: |g| format!("populated {}\nfrozen 0\n", u8::from(g.is_populated())),
    },
    GroupFile { name: "cgroup.procs", text: Group::procs },
    GroupFile { name: "cgroup.stat", text: Group::descendants },
    GroupFile { name: "cgroup.subtree_control", text: Group::subtree_control },
    GroupFile { name: "cgroup.threads", text: Group::threads },
    GroupFile { name: "cgroup.type", text: |_| "domain\n".into() },
    GroupFile { name: "cpu.max", text: Group::cpu_max },
    GroupFile { name: "cpu.stat", text: Group::cpu_stat },
    GroupFile { name: "cpu.weight", text: Group::cpu_weight },
    GroupFile { name: "cpuset.cpus", text: Group::cpus },
    GroupFile { name: "cpuset.cpus.effective", text: Group::cpus_effective },
    GroupFile { name: "cpuset.mems.effective", text: |_| "0\n".into() },
    GroupFile { name: "memory.current", text: |g| format!("{}\n", g.held()) },
    GroupFile { name: "memory.events", text: Group::memory_events },
    GroupFile { name: "memory.high", text: |_| "max\n".into() },
    GroupFile { name: "memory.low", text: |_| "0\n".into() },
    GroupFile { name: "memory.max", text: Group::memory_max },
    GroupFile {
        name: "memory.min",
        text: |g| format!("{}\n", g.config.as_ref().map_or(0, |c| c.memory.min)),
    },
    GroupFile { name: "memory.oom.group", text: Group::oom_group },
    GroupFile { name: "memory.stat", text: Group::memory_stat },
    GroupFile { name: "memory.swap.current", text: |_| "0\n".into() },
    GroupFile { name: "memory.swap.max", text: |_| "0\n".into() },
    GroupFile { name: "pids.current", text: |g| format!("{}\n", g.tasks()) },
    GroupFile { name: "pids.max", text: Group::pids_max },
];

/// The period of `cpu.max`, us: Linux's default.
const PERIOD: u64 = 100_000;

/// The groups below the root: their classes and names.
pub fn groups() -> Vec<(u32, String)> {
    grid::named().into_iter().map(|(class, config)| (class, name(&config.name))).collect()
}

/// An activity's name as a directory's.
fn name(activity: &str) -> String {
    match activity {
        "." | ".." => format!("_{activity}"),
        name => name.replace('/', "_"),
    }
}

/// The group that a process belongs to, as a path.
pub fn path(process: &Process) -> String {
    let class = process.activity.class();
    let named = groups().into_iter().find(|(n, _)| *n == class);
    named.map_or_else(|| "/".into(), |(_, name)| format!("/{name}"))
}

/// A number, or that there is no limit.
fn or_max(limit: Option<u64>) -> String {
    limit.map_or_else(|| "max\n".into(), |n| format!("{n}\n"))
}

impl Group {
    /// That of a class, as long as there is one.
    pub fn of(class: u32) -> Option<Group> {
        if class == ROOT {
            return Some(Group { class, config: None });
        }
        let found = grid::named().into_iter().find(|(n, _)| *n == class);
        found.map(|(_, config)| Group { class, config: Some(config) })
    }

    /// The processes in it; those that have ended are in none.
    fn processes(&self) -> impl Iterator<Item = alloc::sync::Arc<Process>> + use<> {
        let class = self.class;
        all_processes().into_iter().filter(move |p| p.activity.class() == class && p.zombie().is_none())
    }

    fn is_populated(&self) -> bool {
        self.config.is_none() || self.processes().next().is_some()
    }

    fn tasks(&self) -> usize {
        // All of the cell's are below its group.
        let processes = if self.config.is_none() { all_processes() } else { self.processes().collect() };
        processes.iter().map(|p| p.tasks.lock().len()).sum()
    }

    fn procs(&self) -> String {
        self.processes().map(|p| format!("{}\n", p.pid)).collect()
    }

    fn threads(&self) -> String {
        let of = |p: &Process| p.tasks.lock().iter().map(|t| format!("{}\n", t.tid())).collect::<String>();
        self.processes().map(|p| of(&p)).collect()
    }

    fn descendants(&self) -> String {
        let below = if self.config.is_none() { groups().len() } else { 0 };
        format!("nr_descendants {below}\nnr_dying_descendants 0\n")
    }

    fn subtree_control(&self) -> String {
        if self.config.is_none() { "cpuset cpu memory pids\n".into() } else { "\n".into() }
    }

    /// What it may have of a core's time, of all cores together.
    fn cpu_max(&self) -> String {
        let limit = self.config.as_ref().map_or(0, |c| c.parameters.limit);
        // Of each core, ns a second.
        let quota = limit * atoll_task::cores_online() as u64 * PERIOD / 1_000_000_000;
        if limit == 0 { format!("max {PERIOD}\n") } else { format!("{quota} {PERIOD}\n") }
    }

    fn cpu_weight(&self) -> String {
        format!("{}\n", self.config.as_ref().map_or(100, |c| c.parameters.weight.clamp(1, 10_000)))
    }

    /// Time that was used in it and below, as the grid has measured it: what programs compute, and all else for them.
    fn cpu_stat(&self) -> String {
        let is_below = |n: u32| self.config.is_none() || class_of(n) == self.class;
        let (mut user, mut system) = (0, 0);
        for used in atoll_task::used().into_iter().filter(|used| is_below(used.activity)) {
            let (own, runtime) = used.divided();
            (user, system) = (user + own, system + runtime);
        }
        let (user, system) = (user / 1000, system / 1000);
        format!("usage_usec {}\nuser_usec {user}\nsystem_usec {system}\n", user + system)
    }

    /// The cores that the configuration says; None: all.
    fn own_cores(&self) -> Option<CoreSet> {
        let config = self.config.as_ref().filter(|c| !c.cores.is_empty())?;
        Some(set_of_cores(config.cores.iter().map(|n| *n as usize)))
    }

    fn cpus(&self) -> String {
        self.own_cores().map_or_else(String::new, |own| proc::core_list(&own)) + "\n"
    }

    fn cpus_effective(&self) -> String {
        let online = atoll_task::online();
        let effective = self.own_cores().map_or(online, |own| core::array::from_fn(|n| own[n] & online[n]));
        proc::core_list(&effective) + "\n"
    }

    fn held(&self) -> u64 {
        if self.config.is_none() { memory().used() } else { budget::held_by(self.class) }
    }

    fn memory_max(&self) -> String {
        match &self.config {
            Some(c) => or_max(Some(c.memory.max).filter(|max| *max != 0)),
            None => format!("{}\n", memory().total()),
        }
    }

    fn oom_group(&self) -> String {
        u8::from(self.config.as_ref().is_some_and(|c| c.memory.oom_group)).to_string() + "\n"
    }

    /// How often it had no memory, had nothing to give back, and was ended for it.
    pub fn memory_counts(&self) -> [u64; 3] {
        // The cell's are those of all its groups, too.
        let groups = groups().into_iter().map(|(class, _)| class).filter(|_| self.config.is_none());
        let mut sum = [0; 3];
        for class in groups.chain([self.class]) {
            let account = &platform().control().grid.accounts[class as usize];
            for (sum, word) in sum.iter_mut().zip([&account.memory_refused, &account.oom, &account.oom_kills])
            {
                *sum += word.load(Ordering::Relaxed);
            }
        }
        sum
    }

    fn memory_events(&self) -> String {
        let sum = self.memory_counts();
        format!("low 0\nhigh 0\nmax {}\noom {}\noom_kill {}\n", sum[0], sum[1], sum[2])
    }

    /// What it holds: pages of files in the cache, and the rest of it, of which programs have most.
    fn memory_stat(&self) -> String {
        let is_own = |offset: u64| self.config.is_none() || class_of(memory().payer(offset)) == self.class;
        let (held, file) = (self.held(), host::cached(&is_own));
        let anon = held.saturating_sub(file);
        format!("anon {anon}\nfile {file}\ninactive_file {file}\nactive_file 0\n")
    }

    fn pids_max(&self) -> String {
        let quotas = self.config.as_ref().map_or_else(grid::quotas, |c| c.quotas);
        or_max(Some(quotas[Quota::Tasks as usize]).filter(|most| *most != 0).map(u64::from))
    }
}
