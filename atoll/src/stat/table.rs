//! Snapshots as tables for people, and as CSV.

use std::fmt::Write;

use atoll_abi::grid::Resource;
use atoll_abi::layout::PAGE;
use atoll_supervisor::books::{Activity, Kind, Snapshot, Use, Uses};

use super::interval::{Cores, all_counted, all_time, between};
use crate::list::{columns, size};

/// Percent of the cores' time, or nothing where nothing was used.
fn percent(value: f64, used: &Use) -> String {
    if *used == Use::default() { String::new() } else { format!("{value:.2}") }
}

/// One row an activity: what it has used since `before`, or since the books were opened.
pub fn table(before: Option<&Snapshot>, after: &Snapshot, cores: Cores) -> String {
    let interval = between(before, after, cores);
    let mut text = match cores {
        Cores::All => format!("{}: {}", after.cell, plural(after.cores, "core")),
        Cores::One(n) => format!("{}: core {n}", after.cell),
    };
    let since = if before.is_none() { " since it began" } else { "" };
    // Writing to a string can't fail, here and below.
    let _ = writeln!(text, ", {:.1} s{since}; % of {} time", interval.ns as f64 / 1e9, whose(after, cores));
    if after.activities.is_empty() && after.unread == 0 {
        text += "Its runtime keeps no books.\n";
        return text;
    }
    let shown: Vec<Resource> = interval.total.used().map(|(r, _)| r).collect();
    let used_anywhere = |r: &Resource| {
        shown.contains(r) || interval.rows.iter().any(|row| *row.uses.of(*r) != Use::default())
    };
    let shown: Vec<Resource> = Resource::ALL.into_iter().filter(used_anywhere).collect();
    let mut rows: Vec<Vec<String>> = Vec::new();
    let head = ["ACTIVITY", "KIND", "PID", "WEIGHT", "MEMORY"];
    rows.push(
        head.into_iter()
            .chain(shown.iter().map(|r| r.name()))
            .chain(["all", "tree"])
            .chain(after.counts.as_deref())
            .map(String::from)
            .collect(),
    );
    let figures = |uses: &Uses| -> Vec<String> {
        let each = shown.iter().map(|r| percent(interval.percent(uses.of(*r).ns), uses.of(*r)));
        each.chain([format!("{:.2}", interval.percent(all_time(uses)))]).collect()
    };
    let counted = |uses: &Uses| after.counts.as_ref().map(|_| all_counted(uses).to_string());
    for (n, row) in interval.rows.iter().enumerate() {
        let a = row.activity;
        let has_id = matches!(a.kind, Kind::Process | Kind::Thread);
        let pid = if has_id { a.pid.to_string() } else { String::new() };
        let memory = match u64::try_from(a.pages) {
            Ok(pages) => size(pages.saturating_mul(PAGE)),
            Err(_) => format!("{} pages", a.pages),
        };
        let name = format!("{}{}", "  ".repeat(row.depth), a.name);
        let mut cells = vec![name, a.kind.name().into(), pid, a.weight.to_string(), memory];
        cells.extend(figures(&row.uses));
        cells.push(format!("{:.2}", interval.percent(all_time(&interval.tree(n)))));
        cells.extend(counted(&row.uses));
        rows.push(cells);
    }
    let mut total: Vec<String> = ["total", "", "", "", ""].map(String::from).into();
    total.extend(figures(&interval.total));
    total.push(String::new());
    total.extend(counted(&interval.total));
    rows.push(total);
    // Words to the left, numbers to the right.
    text += &columns(&rows, |n| n < 2);
    let of = |r: Resource| interval.percent(interval.total.of(r).ns);
    let _ = writeln!(
        text,
        "idle {:.2} %, overhead {:.2} %, stolen {:.2} %, unattributed {:.2} %; {:.2} % is in the books",
        of(Resource::Idle),
        of(Resource::Overhead),
        of(Resource::Stolen),
        interval.percent(interval.unattributed()),
        interval.percent(all_time(&interval.total)),
    );
    for a in &after.activities {
        let limited = a.quotas.iter().filter_map(|(name, q)| Some((name, q.used, q.limit?)));
        let each: Vec<String> =
            limited.map(|(name, used, limit)| format!("{name} {used} of {limit}")).collect();
        if !each.is_empty() {
            let _ = writeln!(text, "quotas of {}: {}", a.name, each.join(", "));
        }
        text += &memory(a);
    }
    if after.uncounted > 0 {
        let _ = writeln!(
            text,
            "{} of its processes, a core each, could not be counted",
            plural(after.uncounted, "thread")
        );
    }
    if after.unread > 0 {
        let _ = writeln!(text, "{} could not be read", plural(after.unread, "record"));
    }
    text
}

/// A line for memory that an activity may hold or has in any case.
fn memory(a: &Activity) -> String {
    let Some(m) = a.memory.filter(|m| m.max.is_some() || m.min != 0) else { return String::new() };
    let mut text = format!("memory of {}: {}", a.name, size(m.held));
    if let Some(max) = m.max {
        text += &format!(" of {}", size(max));
    }
    if m.min != 0 {
        text += &format!(", {} in any case", size(m.min));
    }
    if m.refused != 0 {
        text += &format!(", refused more {}", times(m.refused));
    }
    if m.oom != 0 {
        text += &format!(", out of memory {}, {} ended for it", times(m.oom), processes(m.oom_kills));
    }
    text + "\n"
}

fn times(n: u64) -> String {
    if n == 1 { "once".into() } else { format!("{n} times") }
}

fn processes(n: u64) -> String {
    if n == 1 { "1 process".into() } else { format!("{n} processes") }
}

fn plural(n: u32, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

fn whose(after: &Snapshot, cores: Cores) -> &'static str {
    if cores == Cores::All && after.cores != 1 { "the cores'" } else { "the core's" }
}

/// The first line of CSV.
pub fn csv_head(cores: bool) -> String {
    let core = if cores { "core," } else { "" };
    format!("time,activity,pid,{core}resource,ns,messages,bytes,queued,device,waits,turns,counted\n")
}

/// A field that may have anything in it (RFC 4180).
fn field(text: &str) -> String {
    if text.contains(['"', ',', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.into()
    }
}

/// A line for each activity and resource, with all that was used since the books were opened; by cores, a line for each.
pub fn csv(snapshot: &Snapshot, cores: bool) -> String {
    let mut text = String::new();
    let seconds = snapshot.time as f64 / 1e9;
    for a in &snapshot.activities {
        let mut lines = |core: &str, uses: &Uses| {
            for (resource, u) in uses.used() {
                let Use { ns, messages, bytes, queued, device, waits, turns, counted } = u;
                let (name, resource) = (field(&a.name), resource.name());
                let _ = writeln!(
                    text,
                    "{seconds:.6},{name},{},{core}{resource},{ns},{messages},{bytes},{queued},{device},{waits},{turns},{counted}",
                    a.pid
                );
            }
        };
        if cores {
            for (n, uses) in a.cores.iter().enumerate() {
                lines(&format!("{n},"), uses);
            }
        } else {
            lines("", &a.resources);
        }
    }
    text
}
