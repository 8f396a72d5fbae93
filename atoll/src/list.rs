//! `atoll ls`: which cells run.

use std::process::ExitCode;
use std::time::Duration;

use atoll_supervisor::inspect::{About, Answer, Request, ask_within};
use atoll_supervisor::registry::{self, Found};
use atoll_supervisor::{Error, Result, say};
use clap::Args;

use crate::output;

// Options of `atoll ls`.
#[derive(Args)]
#[command(
    after_help = "A cell is known by the name here, by its process id, or by the beginning of its name."
)]
pub struct Options {
    /// Print JSON: an array of cells
    #[arg(long)]
    json: bool,
}

/// How long is waited for what cells say of themselves.
const LATE: Duration = Duration::from_secs(5);

/// What is said of a cell that is gone.
pub(crate) const ENDED: &str = "the cell has ended";

/// Finds the live cell that a command names.
pub(crate) fn find(wanted: &str) -> Result<Found> {
    registry::choose(&registry::list(&registry::directory()?)?, wanted)
}

/// An answer of another kind than was asked for.
pub(crate) fn unexpected() -> Error {
    Error::new("the cell's supervisor gave another answer: is it of another version of atoll?")
}

/// Says what went wrong.
pub(crate) fn fail(why: &Error) -> ExitCode {
    say!("atoll: {why}");
    ExitCode::FAILURE
}

/// Prints it.
pub fn print(options: &Options) -> ExitCode {
    let mut known = Vec::new();
    match registry::directory().and_then(|dir| registry::list(&dir)) {
        Err(e) => return fail(&e),
        Ok(cells) => {
            // All at once: one that is stopped keeps nobody from seeing the others.
            let answers: Vec<_> = std::thread::scope(|scope| {
                let ask = |cell: &Found| ask_within(&cell.socket, &Request::Cell, LATE);
                let begin = |cell| std::thread::Builder::new().spawn_scoped(scope, move || ask(cell)).ok();
                let asked: Vec<_> = cells.iter().map(begin).collect();
                // Where there can't be so many threads, one after the other.
                let answers = asked.into_iter().zip(&cells).map(|(asked, cell)| match asked {
                    Some(thread) => thread.join(),
                    None => Ok(ask(cell)),
                });
                answers.collect()
            });
            for (cell, answer) in cells.iter().zip(answers) {
                match answer {
                    Ok(Ok(Some(Answer::Cell(about)))) => known.push(about),
                    // It has ended meanwhile.
                    Ok(Ok(None)) => {}
                    Ok(Ok(Some(_))) => say!("atoll: {}: {}", cell.name, unexpected()),
                    Ok(Err(e)) => say!("atoll: {}: process {}: {e}", cell.name, cell.pid),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
        }
    }
    let text = if options.json {
        serde_json::to_string_pretty(&known).unwrap_or_default() + "\n"
    } else {
        table(&known)
    };
    output::finish(&text)
}

fn table(cells: &[About]) -> String {
    let mut rows = vec![["NAME", "PID", "PROGRAM", "CORES", "MEMORY", "SINCE"].map(String::from)];
    rows.extend(cells.iter().map(|c| {
        [
            c.name.clone(),
            c.pid.to_string(),
            c.program.clone(),
            if c.max_cores == c.cores {
                c.cores.to_string()
            } else {
                format!("{} of {}", c.cores, c.max_cores)
            },
            match c.elastic {
                Some(_) => {
                    format!("{} of {}, up to {}", size(c.memory_used), size(c.memory), size(c.max_memory))
                }
                None => format!("{} of {}", size(c.memory_used), size(c.memory)),
            },
            date(c.since),
        ]
    }));
    columns(&rows, |_| true)
}

/// Rows of as many cells each in columns as wide as they must be; those for which `is_words` holds begin at the left, others end
/// at the right.
pub(crate) fn columns<R: AsRef<[String]>>(rows: &[R], is_words: impl Fn(usize) -> bool) -> String {
    let cells = rows.iter().map(|row| row.as_ref().len()).max().unwrap_or(0);
    let width =
        |n: usize| rows.iter().filter_map(|row| row.as_ref().get(n)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..cells).map(|n| width(n).unwrap_or(0)).collect();
    let line = |row: &R| {
        let padded = row.as_ref().iter().zip(&widths).enumerate().map(|(n, (cell, width))| {
            if is_words(n) { format!("{cell:width$}") } else { format!("{cell:>width$}") }
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_string() + "\n"
    };
    rows.iter().map(line).collect()
}

/// Bytes for people: 3 digits, in units of 1024.
pub(crate) fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut units = ["", "K", "M", "G"].iter();
    let mut unit = units.next().unwrap_or(&"");
    while value >= 1024.0
        && let Some(next) = units.next()
    {
        value /= 1024.0;
        unit = next;
    }
    if value < 10.0 && !unit.is_empty() { format!("{value:.1}{unit}") } else { format!("{value:.0}{unit}") }
}

/// Seconds since 1970 as a date, UTC (the days of the calendar from March on, in eras of 400 years).
fn date(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_sizes() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_740_787_200, "2025-03-01 00:00:00 UTC"),
            (4_107_542_399, "2100-02-28 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(date(seconds), text);
        }
        assert_eq!(
            [0, 1023, 1024, 10 << 10, 3 << 29, 5 << 40].map(size),
            ["0", "1023", "1.0K", "10K", "1.5G", "5120G"]
        );
    }
}
