//! `atoll trace`: what the threads of a live cell do over some time, as a file for Perfetto and Chrome's tracing
//! (the Trace Event Format).

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use atoll_abi::report::{EVENTS_MAX, Trace, event};
use atoll_supervisor::inspect::{Answer, Request, ask};
use atoll_supervisor::{Error, Result, say};
use clap::Args;
use serde_json::{Value, json};

use crate::list::{ENDED, fail, find, unexpected};

// Options of `atoll trace`.
#[derive(Args)]
#[command(
    after_help = "Open the file in a trace viewer: Perfetto's, or chrome://tracing. There is a track for each core (who runs, when \
it polls and when it sleeps) and one for each thread (when it runs, when it is ready and waits for its core); \
arrows lead from who wakes a thread to where it goes on.

Examples:
  atoll trace web
  atoll trace web --seconds 0.2 --output web.json"
)]
pub struct Options {
    /// The cell: its name, process id, or the beginning of its name
    #[arg(value_name = "CELL")]
    cell: String,
    /// For how long
    #[arg(long, short, value_name = "S", default_value = "1", value_parser = parse_seconds)]
    seconds: Duration,
    /// Events that each core keeps: the last ones
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..=EVENTS_MAX))]
    events: u64,
    /// The file [default: trace-CELL.json]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

fn parse_seconds(text: &str) -> std::result::Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(s) if (0.001..=3600.0).contains(&s) => Ok(Duration::from_secs_f64(s)),
        _ => Err("that is 0.001 to 3600 seconds".into()),
    }
}

/// Takes one.
pub fn run(options: &Options) -> ExitCode {
    match take(options) {
        Ok(said) => {
            say!("atoll: {said}");
            ExitCode::SUCCESS
        }
        Err(e) => fail(&e),
    }
}

fn take(options: &Options) -> Result<String> {
    let cell = find(&options.cell)?;
    let path = options.output.clone().unwrap_or_else(|| format!("trace-{}.json", cell.name).into());
    // Before the cell is troubled: perhaps it can't be written.
    let file = File::create(&path).map_err(|e| Error::with(format!("writing {}", path.display()), e))?;
    let answer = |request: &Request| ask(&cell.socket, request)?.ok_or_else(|| Error::new(ENDED));
    let Answer::Tracing = answer(&Request::Trace { events: options.events })? else {
        return Err(unexpected());
    };
    std::thread::sleep(options.seconds);
    let Answer::Trace(trace) = answer(&Request::Traced)? else { return Err(unexpected()) };
    let mut out = BufWriter::new(file);
    let written = write(&trace, &mut out).and_then(|n| out.flush().map(|()| n));
    let n = written.map_err(|e| Error::with(format!("writing {}", path.display()), e))?;
    let lost: u64 = trace.cores.iter().map(|core| core.lost).sum();
    let seconds = trace.ended.saturating_sub(trace.begun) as f64 / 1e9;
    let mut said = format!("{n} events of {seconds:.3} s are in {}", path.display());
    if lost > 0 {
        said += &format!("; {lost} before them were not kept (--events says how many are)");
    }
    Ok(said)
}

/// The process that the cores' tracks belong to, as far as the viewer knows.
const CORES: u32 = 0;

/// Something that lasts.
struct Open {
    since: u64,
    name: String,
}

/// Writes a trace. Value: how many events of the cell's that are.
fn write(trace: &Trace, out: &mut impl Write) -> std::io::Result<usize> {
    let mut writer = Writer { out, first: true, begun: trace.begun };
    writer.out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n")?;
    let known: HashMap<u32, _> = trace.threads.iter().map(|t| (t.tid, t)).collect();
    let pid = |tid: u32| known.get(&tid).map_or(tid, |t| t.pid);
    let name = |tid: u32| match known.get(&tid) {
        _ if tid == 0 => "the runtime".to_string(),
        Some(t) => format!("{} ({tid})", t.name),
        None => format!("thread {tid}, ended"),
    };
    writer.event(json!({"ph": "M", "name": "process_name", "pid": CORES, "args": {"name": "cores"}}))?;
    for core in 0..trace.cores.len() {
        let args = json!({"name": format!("core {core}")});
        writer.event(json!({"ph": "M", "name": "thread_name", "pid": CORES, "tid": core, "args": args}))?;
    }
    for t in &trace.threads {
        if t.pid == t.tid {
            let args = json!({"name": t.program});
            writer.event(json!({"ph": "M", "name": "process_name", "pid": t.pid, "args": args}))?;
        }
        let args = json!({"name": t.name});
        writer.event(json!({"ph": "M", "name": "thread_name", "pid": t.pid, "tid": t.tid, "args": args}))?;
    }
    // All cores' events in the order of time; those of a core stay in theirs.
    let mut all: Vec<(u64, usize, u64)> = Vec::new();
    for (core, events) in trace.cores.iter().enumerate() {
        all.extend(events.events.iter().map(|(time, word)| (*time, core, *word)));
    }
    all.sort_by_key(|(time, ..)| *time);
    let mut cores: Vec<Option<Open>> = trace.cores.iter().map(|_| None).collect();
    let mut running: Vec<u32> = vec![0; trace.cores.len()];
    let mut threads: HashMap<u32, Open> = HashMap::new();
    let mut arrows: HashMap<u32, usize> = HashMap::new();
    for (n, (time, core, word)) in all.iter().enumerate() {
        let (kind, tid) = event::of_word(*word);
        // What a core does lasts until it does something else.
        let now = match kind {
            event::RUN => Some(name(tid)),
            event::POLL => Some("polling".into()),
            event::PARK => Some("asleep".into()),
            _ => None,
        };
        let ends = now.is_some() || matches!(kind, event::SLEEP | event::PREEMPTED | event::END);
        if ends && let Some(open) = cores[*core].take() {
            writer.slice(CORES, *core as u32, &open, *time)?;
        }
        if let Some(name) = now {
            cores[*core] = Some(Open { since: *time, name });
        }
        if kind == event::RUN {
            running[*core] = tid;
        }
        if tid == 0 {
            continue;
        }
        // A slice of the thread's own ends with whatever it does.
        if let Some(open) = threads.remove(&tid) {
            writer.slice(pid(tid), tid, &open, *time)?;
        }
        let does = match kind {
            event::RUN => Some(format!("runs on core {core}")),
            event::PREEMPTED | event::WAKE => Some("ready".into()),
            _ => None,
        };
        if let Some(name) = does {
            threads.insert(tid, Open { since: *time, name });
        }
        match kind {
            event::WAKE => {
                arrows.insert(tid, n);
                writer.arrow("s", n, (CORES, *core as u32), *time)?;
            }
            event::RUN => {
                if let Some(arrow) = arrows.remove(&tid) {
                    writer.arrow("f", arrow, (CORES, *core as u32), *time)?;
                }
            }
            _ => {}
        }
    }
    for (core, open) in cores.iter().enumerate() {
        if let Some(open) = open {
            writer.slice(CORES, core as u32, open, trace.ended)?;
        }
    }
    for (tid, open) in &threads {
        writer.slice(pid(*tid), *tid, open, trace.ended)?;
    }
    writer.out.write_all(b"\n]}\n")?;
    Ok(all.len())
}

struct Writer<'a, W> {
    out: &'a mut W,
    first: bool,
    begun: u64,
}

impl<W: Write> Writer<'_, W> {
    fn event(&mut self, event: Value) -> std::io::Result<()> {
        if !std::mem::replace(&mut self.first, false) {
            self.out.write_all(b",\n")?;
        }
        serde_json::to_writer(&mut self.out, &event)?;
        Ok(())
    }

    /// Microseconds since the trace began, as the format wants it.
    fn time(&self, ns: u64) -> f64 {
        ns.saturating_sub(self.begun) as f64 / 1000.0
    }

    fn slice(&mut self, pid: u32, tid: u32, open: &Open, until: u64) -> std::io::Result<()> {
        let (at, length) = (self.time(open.since), until.saturating_sub(open.since) as f64 / 1000.0);
        self.event(json!({"ph": "X", "pid": pid, "tid": tid, "ts": at, "dur": length, "name": open.name}))
    }

    fn arrow(&mut self, ph: &str, id: usize, (pid, tid): (u32, u32), time: u64) -> std::io::Result<()> {
        let at = self.time(time);
        self.event(json!({"ph": ph, "bp": "e", "id": id, "cat": "wake", "name": "wake", "pid": pid, "tid": tid, "ts": at}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_abi::report::{CoreTrace, TracedThread};

    #[test]
    fn threads_and_cores_have_slices() {
        let thread = |tid| TracedThread { pid: 1, tid, name: format!("t{tid}"), program: "/bin/p".into() };
        let events = vec![
            (1000, event::word(event::RUN, 1)),
            (2000, event::word(event::WAKE, 2)),
            (3000, event::word(event::SLEEP, 1)),
            (3100, event::word(event::RUN, 2)),
            (4000, event::word(event::END, 2)),
            (4100, event::word(event::PARK, 0)),
        ];
        let trace = Trace {
            begun: 1000,
            ended: 9000,
            cores: vec![CoreTrace { lost: 0, events }],
            threads: vec![thread(1), thread(2)],
        };
        let mut out = Vec::new();
        assert_eq!(write(&trace, &mut out).unwrap(), 6);
        let value: Value = serde_json::from_slice(&out).unwrap();
        let all = value["traceEvents"].as_array().unwrap();
        let slices = |pid: u32, tid: u32| -> Vec<(String, f64, f64)> {
            let of = |e: &&Value| e["ph"] == "X" && e["pid"] == pid && e["tid"] == tid;
            let get = |e: &Value, key: &str| e[key].as_f64().unwrap();
            all.iter()
                .filter(of)
                .map(|e| (e["name"].as_str().unwrap().into(), get(e, "ts"), get(e, "dur")))
                .collect()
        };
        assert_eq!(
            slices(0, 0),
            [("t1 (1)".into(), 0.0, 2.0), ("t2 (2)".into(), 2.1, 0.9), ("asleep".into(), 3.1, 4.9)]
        );
        assert_eq!(slices(1, 1), [("runs on core 0".into(), 0.0, 2.0)]);
        assert_eq!(slices(1, 2), [("ready".into(), 1.0, 1.1), ("runs on core 0".into(), 2.1, 0.9)]);
        let arrows: Vec<_> =
            all.iter().filter(|e| e["cat"] == "wake").map(|e| e["ts"].as_f64().unwrap()).collect();
        assert_eq!(arrows, [1.0, 2.1]);
    }
}
