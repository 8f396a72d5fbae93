//! What a cell says of its threads (`atoll_abi::report`).
//!
//! A thread of the runtime's makes the answer, and lets others go on now and then: there may be many thousands of threads.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use atoll_abi::report::{
    CoreInfo, EVENTS_MAX, Holdings, Report, ThreadInfo, ThreadState, Threads, Trace, TracedThread, what,
};
use atoll_abi::{Errno, platform};
use atoll_mem::io::extent;
use atoll_sync::Mutex;

use crate::grid::activity_name;
use crate::log;
use crate::process::{Life, Process, Task, all_processes};

/// So many threads are told of at once.
const AT_ONCE: usize = 64;

/// What was said last: whoever asked looks at it.
static SAID: Mutex<Vec<u8>> = Mutex::new(Vec::new());

fn area() -> &'static Report {
    &platform().control().report
}

/// Answers if something is asked. On one core only.
pub fn look() {
    let area = area();
    let asked = area.asked.load(Ordering::SeqCst);
    if asked == area.begun.load(Ordering::Relaxed) {
        return;
    }
    let (what, value) = (area.what.load(Ordering::Relaxed), area.value.load(Ordering::Relaxed));
    let within = area.within.load(Ordering::Relaxed);
    area.begun.store(asked, Ordering::SeqCst);
    let begun = atoll_task::spawn(0, move || tell(asked, answer(what, value, within)));
    match begun {
        Some(t) => atoll_task::start(t),
        None => tell(asked, Vec::new()),
    }
}

fn tell(asked: u32, answer: Vec<u8>) {
    let mut said = SAID.lock();
    let area = area();
    // Who asked has given up, and has asked for something else.
    if area.asked.load(Ordering::SeqCst) != asked {
        return;
    }
    *said = answer;
    let place = extent(&said);
    area.offset.store(place.offset, Ordering::Relaxed);
    area.len.store(place.len, Ordering::Relaxed);
    area.over.store(asked, Ordering::Release);
}

fn answer(what: u32, value: u64, within: u64) -> Vec<u8> {
    let said = match what {
        what::THREADS => postcard::to_allocvec(&threads()),
        // What is said is only that it has begun.
        what::TRACE if trace(value) => Ok(alloc::vec![1]),
        what::TRACED => postcard::to_allocvec(&traced()),
        what::CORES => postcard::to_allocvec(&crate::cores::grant(value).map_err(why)),
        what::MEMORY => postcard::to_allocvec(&crate::extents::grant(value, within)),
        _ => Ok(Vec::new()),
    };
    said.unwrap_or_else(|e| {
        log::line(format_args!("what was asked for from outside could not be said: {e}"));
        Vec::new()
    })
}

/// Why the cell can't have so many cores.
fn why(e: Errno) -> String {
    match e {
        Errno::EINVAL => format!("it can have 1 to {} cores", atoll_task::cores()),
        _ => {
            let seconds = atoll_task::CORE_PATIENCE / 1_000_000_000;
            format!("a core was busy with work of its own for {seconds} seconds: try again")
        }
    }
}

fn threads() -> Threads {
    let cores = (0..atoll_task::cores()).map(of_core).collect();
    let mut all = Threads { clock: platform().now(), threads: Vec::new(), cores };
    for process in all_processes() {
        let program = String::from_utf8_lossy(&process.image.lock().exe).into_owned();
        let tasks: Vec<Arc<Task>> = process.tasks.lock().clone();
        if tasks.is_empty() {
            all.threads.push(zombie(&process, program));
            continue;
        }
        for some in tasks.chunks(AT_ONCE) {
            all.threads.extend(some.iter().map(|task| of_task(&process, task, &program)));
            atoll_task::yield_now();
        }
    }
    all.threads.sort_unstable_by_key(|t| (t.pid, t.tid));
    all
}

fn of_core(n: usize) -> CoreInfo {
    let s = atoll_task::core_stats(n);
    CoreInfo {
        online: atoll_task::is_online(n),
        ready: s.ready,
        switches: s.switches,
        migrations: s.migrations,
        sleeps: s.parks,
        idle_ns: s.idle_ns,
        deadlines: s.deadlines,
        interrupts: s.interrupts,
        put_off: s.put_off,
        put_off_ns: s.put_off_ns,
        put_off_longest_ns: s.put_off_longest_ns,
        put_off_longest_in: s.put_off_longest_in.checked_sub(1),
        others: s.others,
    }
}

fn of_task(process: &Process, task: &Task, program: &str) -> ThreadInfo {
    let thread = task.thread();
    let state = match *process.life.lock() {
        Life::Stopped(_) => ThreadState::Stopped,
        _ if thread.is_parked() => ThreadState::Sleeping,
        _ if thread.is_running() => ThreadState::Running,
        _ => ThreadState::Ready,
    };
    let call = if state == ThreadState::Sleeping { thread.call() } else { None };
    let name = task.name();
    let name = name.split(|b| *b == 0).next().unwrap_or_default();
    let policy = task.policy.load(Ordering::Relaxed);
    let (by_itself, forced) = thread.switches();
    ThreadInfo {
        pid: process.pid,
        parent: process.parent_pid(),
        tid: task.tid(),
        name: String::from_utf8_lossy(name).into_owned(),
        program: program.into(),
        state,
        call: call.map(|(number, _)| number),
        arguments: call.map_or([0; 3], |(_, arguments)| arguments),
        core: thread.core() as u32,
        activity: thread.activity(),
        activity_name: activity_name(thread.activity()),
        policy: policy >> 16,
        priority: task.urgency(),
        nice: task.nice.load(Ordering::Relaxed),
        run_ns: thread.cpu_time(),
        wait_ns: thread.wait_time(),
        switches: [by_itself, forced],
        holds: Holdings { stack: thread.stack_size() as u64, timers: thread.timers() },
    }
}

fn zombie(process: &Process, program: String) -> ThreadInfo {
    let name = program.rsplit('/').next().unwrap_or_default().chars().take(15).collect();
    ThreadInfo {
        pid: process.pid,
        parent: process.parent_pid(),
        tid: process.pid,
        name,
        program,
        state: ThreadState::Zombie,
        call: None,
        arguments: [0; 3],
        core: 0,
        activity: 0,
        activity_name: String::new(),
        policy: 0,
        priority: 0,
        nice: 0,
        run_ns: 0,
        wait_ns: 0,
        switches: [0; 2],
        holds: Holdings::default(),
    }
}

/// When the trace began that is on.
static BEGUN: AtomicU64 = AtomicU64::new(0);

fn trace(events: u64) -> bool {
    BEGUN.store(platform().now(), Ordering::Relaxed);
    atoll_task::trace::begin(events.clamp(1, EVENTS_MAX) as usize)
}

fn traced() -> Trace {
    let cores = atoll_task::trace::end();
    let known = threads().threads.into_iter();
    let threads =
        known.map(|t| TracedThread { pid: t.pid, tid: t.tid, name: t.name, program: t.program }).collect();
    Trace { begun: BEGUN.load(Ordering::Relaxed), ended: platform().now(), cores, threads }
}
