//! `atoll ps`: the threads of a live cell.
//!
//! The cell says what its threads do; none of them is stopped for that. What is printed of a thread may be over by then.

use std::fmt::Write as _;
use std::process::ExitCode;

use atoll_abi::report::{CoreInfo, ThreadInfo, ThreadState, Threads};
use atoll_supervisor::inspect::{Answer, Request, ask};
use atoll_supervisor::{Error, Result};
use clap::{Args, ValueEnum};

use crate::list::{ENDED, columns, fail, find, unexpected};
use crate::{output, syscalls};

// Options of `atoll ps`.
#[derive(Args)]
#[command(
    after_help = "STATE is `running`, `ready` (waits for its core), `sleeping` (waits for something else), `stopped` or \
`zombie`. WHERE is the system call in which a thread sleeps, and its first arguments. RUN is how long it has \
run, WAIT how long it was ready and had to wait for its core, in seconds; SWITCHES how often it has let its core \
go by itself, and was made to. NICE is a nice value, or `rt` and a real-time priority.

With --cores, READY are the threads that wait for a core now, OTHERS is how much of its processor others on the host \
have used lately (from 30 % on its threads go to cores that have room), and the other columns count since the cell began: \
SLEEPS and IDLE (seconds), DEADLINES and INTERRUPTS that came while a program ran or was to go on. The runtime is not \
interrupted: PUT-OFF is how often one of these had to wait for it, MEAN and LONGEST how long (us), IN which call.

Examples:
  atoll ps web
  atoll ps web --sort run
  atoll ps web --pid 12 --json
  atoll ps web --cores"
)]
pub struct Options {
    /// The cell: its name, process id, or the beginning of its name
    #[arg(value_name = "CELL")]
    cell: String,
    /// Print JSON: when (clock, ns), an array of threads, and one of cores
    #[arg(long)]
    json: bool,
    /// The cores instead of the threads: how often each switched, slept and was interrupted, and how long interrupts had to wait
    #[arg(long)]
    cores: bool,
    /// Only the threads of this process
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// By what the threads are sorted; of RUN, WAIT and SWITCHES the most come first
    #[arg(long, value_enum, default_value = "pid")]
    sort: Sort,
}

#[derive(Clone, Copy, ValueEnum)]
enum Sort {
    /// Process and thread id
    Pid,
    /// Time that they have run
    Run,
    /// Time that they have waited for their core
    Wait,
    /// Switches
    Switches,
}

/// Prints them.
pub fn run(options: &Options) -> ExitCode {
    let text = match threads(&options.cell) {
        Err(e) => return fail(&e),
        Ok(mut all) => {
            all.threads.retain(|t| options.pid.is_none_or(|pid| t.pid == pid));
            if let Some(pid) = options.pid.filter(|_| all.threads.is_empty()) {
                return fail(&Error::new(format!(
                    "the cell has no process {pid}: `atoll ps {}` shows those that it has",
                    options.cell
                )));
            }
            sort(&mut all.threads, options.sort);
            if options.json {
                json(&all)
            } else if options.cores {
                table_of_cores(&all.cores)
            } else {
                table(&all.threads)
            }
        }
    };
    output::finish(&text)
}

/// With names for the numbers of system calls.
fn json(all: &Threads) -> String {
    let mut value = serde_json::to_value(all).unwrap_or_default();
    for thread in value["threads"].as_array_mut().into_iter().flatten() {
        if let Some(number) = thread["call"].as_u64() {
            thread["call_name"] = call_name(number).into();
        }
    }
    serde_json::to_string_pretty(&value).unwrap_or_default() + "\n"
}

fn threads(cell: &str) -> Result<Threads> {
    match ask(&find(cell)?.socket, &Request::Threads)? {
        Some(Answer::Threads(threads)) => Ok(threads),
        Some(_) => Err(unexpected()),
        None => Err(Error::new(ENDED)),
    }
}

fn sort(threads: &mut [ThreadInfo], by: Sort) {
    let most = |n: u64| std::cmp::Reverse(n);
    match by {
        Sort::Pid => {}
        Sort::Run => threads.sort_by_key(|t| most(t.run_ns)),
        Sort::Wait => threads.sort_by_key(|t| most(t.wait_ns)),
        Sort::Switches => threads.sort_by_key(|t| most(t.switches.iter().sum())),
    }
}

fn table(threads: &[ThreadInfo]) -> String {
    let head = [
        "PID", "TID", "STATE", "CORE", "NICE", "RUN", "WAIT", "SWITCHES", "FORCED", "ACTIVITY", "NAME",
        "WHERE",
    ];
    let mut rows = vec![head.map(String::from).to_vec()];
    rows.extend(threads.iter().map(|t| {
        let seconds = |ns: u64| format!("{:.3}", ns as f64 / 1e9);
        let nice = if t.priority > 0 { format!("rt {}", t.priority) } else { t.nice.to_string() };
        let [by_itself, forced] = t.switches.map(|n| n.to_string());
        vec![
            t.pid.to_string(),
            t.tid.to_string(),
            state(t.state).into(),
            t.core.to_string(),
            nice,
            seconds(t.run_ns),
            seconds(t.wait_ns),
            by_itself,
            forced,
            t.activity_name.clone(),
            t.name.clone(),
            place(t),
        ]
    }));
    columns(&rows, |n| matches!(n, 2 | 9..))
}

fn table_of_cores(cores: &[CoreInfo]) -> String {
    let head = [
        "CORE",
        "STATE",
        "READY",
        "OTHERS",
        "SWITCHES",
        "MOVED",
        "SLEEPS",
        "IDLE",
        "DEADLINES",
        "INTERRUPTS",
        "PUT-OFF",
        "MEAN",
        "LONGEST",
        "IN",
    ];
    let mut rows = vec![head.map(String::from).to_vec()];
    rows.extend(cores.iter().enumerate().map(|(n, c)| {
        let us = |ns: u64| format!("{:.1}", ns as f64 / 1e3);
        let mean = c.put_off_ns.checked_div(c.put_off).unwrap_or(0);
        vec![
            n.to_string(),
            if c.online { "online" } else { "offline" }.into(),
            c.ready.to_string(),
            format!("{}%", (c.others + 5) / 10),
            c.switches.to_string(),
            c.migrations.to_string(),
            c.sleeps.to_string(),
            format!("{:.3}", c.idle_ns as f64 / 1e9),
            c.deadlines.to_string(),
            c.interrupts.to_string(),
            c.put_off.to_string(),
            us(mean),
            us(c.put_off_longest_ns),
            c.put_off_longest_in.map(call_name).unwrap_or_default(),
        ]
    }));
    columns(&rows, |n| matches!(n, 1 | 13))
}

fn call_name(number: u64) -> String {
    syscalls::name_of(number).map_or_else(|| format!("system call {number}"), String::from)
}

fn state(state: ThreadState) -> &'static str {
    match state {
        ThreadState::Running => "running",
        ThreadState::Ready => "ready",
        ThreadState::Sleeping => "sleeping",
        ThreadState::Stopped => "stopped",
        ThreadState::Zombie => "zombie",
    }
}

/// Where a thread waits.
fn place(t: &ThreadInfo) -> String {
    let Some(number) = t.call else { return String::new() };
    let mut text = call_name(number) + "(";
    for (n, argument) in t.arguments.iter().enumerate() {
        let comma = if n > 0 { ", " } else { "" };
        // Small numbers are descriptors and flags, others addresses. Writing to a string can't fail.
        let _ = match *argument {
            small if small < 65_536 => write!(text, "{comma}{small}"),
            other if other as i64 > -4096 && (other as i64) < 0 => write!(text, "{comma}{}", other as i64),
            // Of an int, which the upper half says nothing of.
            other if (0xffff_f000..=0xffff_ffff).contains(&other) => write!(text, "{comma}{}", other as i32),
            address => write!(text, "{comma}{address:#x}"),
        };
    }
    text + ")"
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_abi::report::Holdings;

    fn thread(pid: u32, tid: u32) -> ThreadInfo {
        ThreadInfo {
            pid,
            parent: 1,
            tid,
            name: "worker".into(),
            program: "/bin/server".into(),
            state: ThreadState::Sleeping,
            call: Some(202),
            arguments: [0x7fff_1234_5678, 128, u64::MAX],
            core: 1,
            activity: 3,
            activity_name: "web".into(),
            policy: 0,
            priority: 0,
            nice: 5,
            run_ns: 1_234_567_890,
            wait_ns: 2_000_000,
            switches: [10, 2],
            holds: Holdings::default(),
        }
    }

    #[test]
    fn says_where_they_wait() {
        let other = ThreadInfo { state: ThreadState::Running, call: None, priority: 50, ..thread(2, 13) };
        let text = table(&[thread(2, 2), other]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "PID  TID  STATE     CORE   NICE    RUN   WAIT  SWITCHES  FORCED  ACTIVITY  NAME    WHERE"
        );
        assert_eq!(
            lines[1],
            "  2    2  sleeping     1      5  1.235  0.002        10       2  web       worker  futex(0x7fff12345678, 128, -1)"
        );
        assert_eq!(
            lines[2],
            "  2   13  running      1  rt 50  1.235  0.002        10       2  web       worker"
        );
    }

    #[test]
    fn most_come_first() {
        let mut all = vec![thread(1, 1), ThreadInfo { run_ns: u64::MAX, ..thread(1, 2) }];
        sort(&mut all, Sort::Run);
        assert_eq!(all[0].tid, 2);
    }
}
