//! `atoll stat`: what a live cell's activities use of its resources.
//!
//! The books are read by the cell's supervisor, out of shared memory; the cell is not stopped. What is printed comes
//! from one snapshot, or from the difference of two.

mod check;
mod interval;
mod plot;
mod table;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use atoll_supervisor::books::{Snapshot, Use};
use atoll_supervisor::inspect::{Answer, Request, ask};
use atoll_supervisor::{Error, Result};
use clap::{Args, ValueEnum};

use crate::list::{ENDED, fail, find, unexpected};
use crate::output::print;
use interval::Cores;

// Options of `atoll stat`.
#[derive(Args)]
#[command(
    after_help = "Without more, a table of what was used since the cell began; --watch shows what is used now. \
docs/grid.md says what the columns are.

Examples:
  atoll stat web
  atoll stat web --watch --interval 1
  atoll stat web --json --interval 1 --count 60 > series.json
  atoll stat --from series.json --plot web.svg
  atoll stat --check web"
)]
pub struct Options {
    /// The cell: its name, process id, or the beginning of its name
    #[arg(value_name = "CELL", required_unless_present = "from")]
    cell: Option<String>,
    /// Again and again, each time what was used since the time before
    #[arg(long, short)]
    watch: bool,
    /// Seconds between two snapshots [default: 2; of --check 5, of --plot 1]
    #[arg(long, short, value_name = "S", value_parser = parse_interval)]
    interval: Option<Duration>,
    /// End after so many intervals; with --json and --csv, snapshots [default of --plot: 10]
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,
    /// Each core by itself, too
    #[arg(long)]
    cores: bool,
    /// Print JSON: a line for each snapshot, with all that was used since the cell began
    #[arg(long, group = "format")]
    json: bool,
    /// Print CSV, the same: a line for each activity and resource
    #[arg(long, group = "format")]
    csv: bool,
    /// Draw how what is used changes over time
    #[arg(long, value_name = "FILE.svg", group = "format")]
    plot: Option<PathBuf>,
    /// What to draw
    #[arg(long, value_enum, default_value = "time", requires = "plot")]
    measure: Measure,
    /// Take the snapshots from a file that --json wrote, and not from a cell
    #[arg(long, value_name = "FILE", conflicts_with = "cell")]
    from: Option<PathBuf>,
    /// Do known work and see whether it comes back, and compare the books with the clock and with what the host says;
    /// exit status 1 if that is more than 1 % off, or they are more than 0.5 % apart
    #[arg(long, group = "format", conflicts_with_all = ["watch", "count", "cores", "from"])]
    check: bool,
}

/// What of an entry.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Measure {
    /// Processor time
    Time,
    /// Bytes moved
    Bytes,
    /// Messages
    Messages,
    /// Time that messages stood in queues
    Queued,
    /// Time that the host or the devices had requests
    Device,
    /// What `atoll run --counter` has counted
    Counted,
}

impl Measure {
    fn of(self, u: &Use) -> f64 {
        match self {
            Measure::Time => u.ns as f64,
            Measure::Bytes => u.bytes as f64,
            Measure::Messages => u.messages as f64,
            Measure::Queued => u.queued as f64,
            Measure::Device => u.device as f64,
            Measure::Counted => u.counted as f64,
        }
    }
}

fn parse_interval(text: &str) -> std::result::Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(s) if (0.01..=86_400.0).contains(&s) => Ok(Duration::from_secs_f64(s)),
        _ => Err("an interval is 0.01 to 86400 seconds".into()),
    }
}

/// Where snapshots come from, in the order of time.
enum Source {
    /// A cell: its socket, what is asked, and when for the next time.
    Live { socket: PathBuf, request: Request, next: Option<Instant>, interval: Duration },
    /// A file.
    Saved(std::vec::IntoIter<Snapshot>),
}

impl Source {
    fn open(o: &Options, request: Request, interval: Duration) -> Result<Source> {
        match (&o.from, &o.cell) {
            (Some(file), _) => Ok(Source::Saved(saved(file)?.into_iter())),
            (None, Some(cell)) => {
                Ok(Source::Live { socket: find(cell)?.socket, request, next: None, interval })
            }
            (None, None) => Err(Error::new("say which cell")),
        }
    }

    /// The next one; none if the cell has ended, or the file.
    fn next(&mut self) -> Result<Option<Snapshot>> {
        match self {
            Source::Saved(snapshots) => Ok(snapshots.next()),
            Source::Live { socket, request, next, interval } => {
                if let Some(next) = next {
                    std::thread::sleep(next.saturating_duration_since(Instant::now()));
                }
                // By the clock, so that intervals stay as long as they are; one that was missed is left out.
                let now = Instant::now();
                *next =
                    Some(next.map_or(now, |n| n.max(now.checked_sub(*interval).unwrap_or(now))) + *interval);
                match ask(socket, request)? {
                    Some(Answer::Snapshot(snapshot)) => Ok(Some(snapshot)),
                    Some(_) => Err(unexpected()),
                    None => Ok(None),
                }
            }
        }
    }

    /// The first one, which must be there.
    fn first(&mut self) -> Result<Snapshot> {
        self.next()?.ok_or_else(|| Error::new(ENDED))
    }
}

/// The snapshots of a file with a JSON object a line.
fn saved(file: &Path) -> Result<Vec<Snapshot>> {
    let name = file.display();
    let text = std::fs::read_to_string(file).map_err(|e| Error::with(format!("reading {name}"), e))?;
    let mut snapshots: Vec<Snapshot> = Vec::new();
    for (n, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let wrong = |what: String| Error::new(format!("{name}, line {}: {what}", n + 1));
        let one: Snapshot =
            serde_json::from_str(line).map_err(|e| wrong(format!("this is no snapshot: {e}")))?;
        if let Some(before) = snapshots.last() {
            if (&before.cell, before.pid, before.opened) != (&one.cell, one.pid, one.opened) {
                return Err(wrong("this is of another cell than the line before".into()));
            }
            if before.clock >= one.clock {
                return Err(wrong("this is not later than the line before".into()));
            }
        }
        snapshots.push(one);
    }
    if snapshots.is_empty() {
        return Err(Error::new(format!("{name}: there is no snapshot in it")));
    }
    Ok(snapshots)
}

/// Does what is asked.
pub fn run(options: &Options) -> ExitCode {
    let done = if options.check {
        check::run(options)
    } else if options.json || options.csv {
        snapshots(options)
    } else if let Some(file) = &options.plot {
        draw(options, file)
    } else {
        tables(options)
    };
    done.unwrap_or_else(|e| fail(&e))
}

/// How many times, if there is an end to it.
fn times(o: &Options) -> Option<u32> {
    // A file has its own end.
    let endless = o.watch || o.from.is_some();
    o.count.or((!endless).then_some(1))
}

fn stat(o: &Options) -> Request {
    Request::Stat { cores: o.cores, host: false }
}

fn snapshots(o: &Options) -> Result<ExitCode> {
    let mut source = Source::open(o, stat(o), o.interval.unwrap_or(Duration::from_secs(2)))?;
    let mut one = Some(source.first()?);
    if o.csv && !print(&table::csv_head(o.cores))? {
        return Ok(ExitCode::SUCCESS);
    }
    let mut n = 0;
    while let Some(snapshot) = one {
        let text = if o.csv {
            table::csv(&snapshot, o.cores)
        } else {
            serde_json::to_string(&snapshot).map_err(|e| Error::with("writing JSON", e))? + "\n"
        };
        n += 1;
        if !print(&text)? || times(o).is_some_and(|times| n >= times) {
            break;
        }
        one = source.next()?;
    }
    Ok(ExitCode::SUCCESS)
}

fn tables(o: &Options) -> Result<ExitCode> {
    let mut source = Source::open(o, stat(o), o.interval.unwrap_or(Duration::from_secs(2)))?;
    let mut before = source.first()?;
    let which = |snapshot: &Snapshot| -> Vec<Cores> {
        let each = (0..snapshot.cores as usize).map(Cores::One);
        std::iter::once(Cores::All).chain(each.filter(|_| o.cores)).collect()
    };
    let show = |before: Option<&Snapshot>, after: &Snapshot| {
        let tables: Vec<String> =
            which(after).into_iter().map(|cores| table::table(before, after, cores)).collect();
        tables.join("\n")
    };
    let repeats = o.watch || o.count.is_some();
    if !repeats {
        let mut last = before;
        // Of a file, all of its time.
        if o.from.is_some() {
            while let Some(next) = source.next()? {
                last = next;
            }
        }
        print(&show(None, &last))?;
        return Ok(ExitCode::SUCCESS);
    }
    let clear = std::io::stdout().is_terminal() && o.from.is_none();
    let mut n = 0;
    while let Some(after) = source.next()? {
        let text = show(Some(&before), &after);
        let text = if clear {
            format!("\x1b[H\x1b[2J{text}")
        } else if n > 0 {
            format!("\n{text}")
        } else {
            text
        };
        n += 1;
        before = after;
        if !print(&text)? || o.count.is_some_and(|count| n >= count) {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Intervals of a figure, unless it is said how many.
const DRAWN: u32 = 10;

fn draw(o: &Options, file: &Path) -> Result<ExitCode> {
    let mut source = Source::open(o, stat(o), o.interval.unwrap_or(Duration::from_secs(1)))?;
    let mut series = vec![source.first()?];
    let most = match (o.count, &o.from) {
        (Some(count), _) => count,
        (None, Some(_)) => u32::MAX,
        (None, None) => DRAWN,
    };
    while series.len() as u64 <= u64::from(most)
        && let Some(next) = source.next()?
    {
        series.push(next);
    }
    let drawn = plot::draw(&series, o.measure)?;
    std::fs::write(file, drawn).map_err(|e| Error::with(format!("writing {}", file.display()), e))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::interval::between;
    use super::*;
    use atoll_abi::grid::Resource;
    use atoll_supervisor::books::{Activity, Kind, Uses};

    /// An activity, and for each core the time that it used of resources.
    pub(super) fn activity(id: u32, parent: u32, name: &str, cores: &[&[(Resource, i64)]]) -> Activity {
        let kind = match id {
            0 => Kind::Cell,
            1 => Kind::Substitute,
            _ => Kind::Process,
        };
        let mut resources = Uses::default();
        let cores: Vec<Uses> = cores
            .iter()
            .map(|entries| {
                let mut uses = Uses::default();
                for (resource, ns) in *entries {
                    uses.0[*resource as usize] =
                        Use { ns: *ns, messages: 1, bytes: *ns as u64 / 1000, ..Use::default() };
                }
                uses
            })
            .collect();
        cores.iter().for_each(|core| resources.add(core));
        Activity {
            id,
            generation: 2,
            name: name.into(),
            kind,
            parent,
            pid: id * 10,
            weight: 100,
            pages: 256,
            quotas: Default::default(),
            memory: None,
            resources,
            cores,
        }
    }

    /// A snapshot some seconds after the books were opened.
    pub(super) fn snapshot(seconds: u64, cores: u32, activities: Vec<Activity>) -> Snapshot {
        Snapshot {
            cell: "web".into(),
            pid: 7,
            cores,
            time: 1_000_000_000_000 + seconds * 1_000_000_000,
            clock: 5_000_000_000 + seconds * 1_000_000_000,
            opened: 5_000_000_000,
            activities,
            counts: None,
            uncounted: 0,
            unread: 0,
            host: None,
        }
    }

    const S: i64 = 1_000_000_000;

    fn two() -> (Snapshot, Snapshot) {
        use Resource::{Completion, Files, Idle, Overhead, Socket, Thread};
        let cell = |idle| activity(0, 0, "cell", &[&[(Idle, idle)], &[(Idle, idle)]]);
        let before = vec![
            cell(S / 2),
            activity(1, 0, "infrastructure", &[&[(Completion, S / 100)], &[]]),
            activity(4, 5, "nginx", &[&[(Thread, S / 4), (Socket, S / 10)], &[]]),
            activity(5, 0, "a, \"b\"", &[&[(Thread, S / 8)], &[(Files, S / 20)]]),
            activity(6, 5, "gone", &[&[(Thread, S / 5)], &[]]),
        ];
        let after = vec![
            cell(S),
            activity(1, 0, "infrastructure", &[&[(Completion, S / 20), (Overhead, S / 50)], &[]]),
            activity(4, 5, "nginx", &[&[(Thread, S), (Socket, S / 5)], &[(Socket, S / 5)]]),
            // What `gone` has used, 0.3 s in the end, is here now.
            activity(5, 0, "a, \"b\"", &[&[(Thread, S / 8 + 3 * S / 10)], &[(Files, S / 20)]]),
        ];
        (snapshot(1, 2, before), snapshot(3, 2, after))
    }

    /// OK-14: what was used in between, by whom, adds up, also when one has ended meanwhile.
    #[test]
    fn differences_go_to_who_has_used_it() {
        let (before, after) = two();
        let interval = between(Some(&before), &after, Cores::All);
        assert_eq!((interval.ns, interval.available), (2_000_000_000, 4e9));
        let names: Vec<_> = interval.rows.iter().map(|r| (&r.activity.name[..], r.depth)).collect();
        assert_eq!(names, [("cell", 0), ("infrastructure", 1), ("a, \"b\"", 1), ("nginx", 2)]);
        let ns = |n: usize, r: Resource| interval.rows[n].uses.of(r).ns;
        assert_eq!(ns(2, Resource::Thread), S / 10);
        assert_eq!(ns(2, Resource::Files), 0);
        assert_eq!((ns(3, Resource::Thread), ns(3, Resource::Socket)), (3 * S / 4, 3 * S / 10));
        assert_eq!(interval.total.of(Resource::Thread).ns, 3 * S / 4 + S / 10);
        assert_eq!(interval.unattributed(), S / 25);
        let second = between(Some(&before), &after, Cores::One(1));
        assert_eq!((second.available, second.rows[3].uses.of(Resource::Socket).ns), (2e9, S / 5));
        // The same number again is another activity when its generation is another one.
        let mut again = after.clone();
        again.activities[2].generation = 4;
        let again = between(Some(&before), &again, Cores::All);
        assert_eq!(again.rows[3].uses.of(Resource::Thread).ns, S);
        let since = between(None, &after, Cores::All);
        assert_eq!((since.ns, since.rows[3].uses.of(Resource::Thread).ns), (3_000_000_000, S));
    }

    #[test]
    fn tables_show_what_is_used() {
        let (before, after) = two();
        let text = table::table(Some(&before), &after, Cores::All);
        let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(text.lines().next(), Some("web: 2 cores, 2.0 s; % of the cores' time"));
        let columns = ["thread", "socket", "completion", "overhead", "idle", "all", "tree"];
        assert_eq!(lines[1], [&["ACTIVITY", "KIND", "PID", "WEIGHT", "MEMORY"][..], &columns].concat());
        assert_eq!(lines[2], ["cell", "cell", "100", "1.0M", "25.00", "25.00", "55.25"]);
        assert_eq!(lines[5], ["nginx", "process", "40", "100", "1.0M", "18.75", "7.50", "26.25", "26.25"]);
        // Its own, and with nginx below it.
        assert_eq!(lines[4][6..], ["2.50", "2.50", "28.75"]);
        assert_eq!(lines[6], ["total", "21.25", "7.50", "1.00", "0.50", "25.00", "55.25"]);
        let last =
            "idle 25.00 %, overhead 0.50 %, stolen 0.00 %, unattributed 1.00 %; 55.25 % is in the books";
        assert_eq!(text.lines().last(), Some(last));
        let mut counting = after.clone();
        counting.counts = Some("cache-misses:u".into());
        counting.activities[2].resources.0[Resource::Socket as usize].counted = 7;
        let counting = table::table(Some(&before), &counting, Cores::All);
        let lines: Vec<Vec<&str>> = counting.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(lines[1].last(), Some(&"cache-misses:u"));
        assert_eq!(lines[5].last(), Some(&"7"), "{counting}");
        assert_eq!((lines[4].last(), lines[6].last()), (Some(&"0"), Some(&"7")), "{counting}");
        let one = table::table(None, &after, Cores::One(1));
        assert!(one.starts_with("web: core 1, 3.0 s since it began; % of the core's time\n"), "{one}");
        let none = table::table(None, &snapshot(1, 1, Vec::new()), Cores::All);
        assert!(none.ends_with("keeps no books.\n"), "{none}");
    }

    #[test]
    fn csv_has_a_line_for_each() {
        let (_, after) = two();
        let text = table::csv(&after, false);
        assert_eq!(text.lines().count(), 7, "{text}");
        assert!(
            text.contains("1003.000000,\"a, \"\"b\"\"\",50,files,50000000,1,50000,0,0,0,0,0\n"),
            "{text}"
        );
        assert!(
            table::csv(&after, true).contains("1003.000000,nginx,40,1,socket,200000000,1,200000,0,0,0,0,0\n")
        );
        assert_eq!(table::csv_head(true).matches(',').count(), 12);
    }

    /// A saved series is read as it was written, and drawn; what isn't one is refused.
    #[test]
    fn series_are_saved_and_drawn() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("series.json");
        let (before, after) = two();
        let lines = [&before, &after].map(|s| serde_json::to_string(s).unwrap() + "\n");
        std::fs::write(&file, lines.concat()).unwrap();
        let series = saved(&file).unwrap();
        assert_eq!(series, [before, after]);
        for measure in [Measure::Time, Measure::Bytes] {
            let drawn = plot::draw(&series, measure).unwrap();
            assert!(
                drawn.starts_with("<svg") && drawn.contains("nginx (40)") && drawn.contains("infrastructure")
            );
            assert_eq!(drawn.contains("all resources"), measure == Measure::Time);
            assert!(
                drawn.contains("completion") && !drawn.contains("address-space") && !drawn.contains("NaN")
            );
        }
        assert!(plot::draw(&series, Measure::Queued).is_err());
        assert!(plot::draw(&series[..1], Measure::Time).is_err());
        for (text, part) in [
            ("", "there is no snapshot"),
            ("{}", "line 1: this is no snapshot"),
            (&lines[0].repeat(2), "line 2: this is not later"),
            (&(lines[0].clone() + &lines[1].replace("web", "db")), "line 2: this is of another cell"),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = saved(&file).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    /// A series that anybody may have written: circles, empty times, numbers at their ends.
    #[test]
    fn takes_any_series() {
        let (mut before, mut after) = two();
        before.activities[2].parent = 6;
        before.activities[4].parent = 4;
        after.activities[2].parent = 5;
        after.activities[3].parent = 4;
        after.activities[1].resources.0[0] =
            Use { ns: i64::MAX, messages: u64::MAX, bytes: u64::MAX, device: i64::MAX, ..Use::default() };
        after.activities[3].resources.0[0] = Use {
            ns: i64::MIN,
            messages: u64::MAX,
            bytes: u64::MAX,
            queued: 1,
            device: i64::MIN,
            waits: 1,
            turns: 1,
            counted: i64::MIN,
        };
        after.cores = 0;
        after.counts = Some("cycles".into());
        let _ = table::table(Some(&before), &after, Cores::All);
        let _ = plot::draw(&[before.clone(), after.clone()], Measure::Time);
        after.clock = before.clock;
        let _ = table::table(Some(&before), &after, Cores::One(9));
        let _ = plot::draw(&[before.clone(), after.clone()], Measure::Counted);
        let _ = plot::draw(&[before, after], Measure::Bytes);
    }
}
