//! What was used between two snapshots.

use std::collections::HashMap;

use atoll_abi::grid::Resource;
use atoll_supervisor::books::{Activity, Kind, Snapshot, Uses};

/// Whose time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cores {
    /// All cores'.
    All,
    /// One core's.
    One(usize),
}

impl Cores {
    fn of(self, activity: &Activity) -> Uses {
        match self {
            Cores::All => activity.resources,
            Cores::One(n) => activity.cores.get(n).copied().unwrap_or_default(),
        }
    }
}

/// An activity at the end of an interval, and what it has used during it.
pub struct Row<'a> {
    /// The activity.
    pub activity: &'a Activity,
    /// How many are above it.
    pub depth: usize,
    /// What it has used.
    pub uses: Uses,
}

/// What was used between two snapshots.
pub struct Interval<'a> {
    /// Its length, ns.
    pub ns: u64,
    /// Time of the cores in it, ns.
    pub available: f64,
    /// Activities, each followed by those below it.
    pub rows: Vec<Row<'a>>,
    /// All together.
    pub total: Uses,
}

/// What was used between `before`, or the opening of the books, and `after`.
///
/// What an activity has used that is not there any more is its parent's: so the books go on adding up. What it had used
/// before the interval is no use of the parent's during it.
pub fn between<'a>(before: Option<&Snapshot>, after: &'a Snapshot, cores: Cores) -> Interval<'a> {
    let key = |a: &Activity| (a.id, a.generation);
    let mut base: HashMap<(u32, u32), Uses> = HashMap::new();
    if let Some(before) = before {
        let there: HashMap<u32, &Activity> = before.activities.iter().map(|a| (a.id, a)).collect();
        let goes_on = |a: &Activity| after.activities.iter().any(|b| key(b) == key(a));
        for activity in &before.activities {
            let mut heir = activity;
            // Snapshots of files may have circles.
            for _ in 0..there.len() {
                match there.get(&heir.parent) {
                    Some(up) if !goes_on(heir) => heir = up,
                    _ => break,
                }
            }
            base.entry(key(heir)).or_default().add(&cores.of(activity));
        }
    }
    let begun = before.map_or(after.opened, |b| b.clock);
    let ns = after.clock.saturating_sub(begun);
    let several = if cores == Cores::All { after.cores.max(1) } else { 1 };
    let mut rows = Vec::new();
    let mut placed = vec![false; after.activities.len()];
    // Those at the top first, and then what a file says is below nobody.
    for n in 0..after.activities.len() {
        let a = &after.activities[n];
        if a.parent == a.id || !after.activities.iter().any(|b| b.id == a.parent) {
            place(after, n, 0, &mut placed, &mut rows);
        }
    }
    for n in 0..after.activities.len() {
        place(after, n, 0, &mut placed, &mut rows);
    }
    let mut total = Uses::default();
    let rows = rows
        .into_iter()
        .map(|(n, depth)| {
            let activity = &after.activities[n];
            let uses = cores.of(activity).since(&base.get(&key(activity)).copied().unwrap_or_default());
            total.add(&uses);
            Row { activity, depth, uses }
        })
        .collect();
    Interval { ns, available: ns as f64 * f64::from(several), rows, total }
}

/// Lists an activity and those below it, by their numbers.
fn place(snapshot: &Snapshot, n: usize, depth: usize, placed: &mut [bool], rows: &mut Vec<(usize, usize)>) {
    if std::mem::replace(&mut placed[n], true) {
        return;
    }
    rows.push((n, depth));
    for (m, below) in snapshot.activities.iter().enumerate() {
        if below.parent == snapshot.activities[n].id {
            place(snapshot, m, depth + 1, placed, rows);
        }
    }
}

/// Is this time in which something was done for somebody?
pub fn is_work(resource: Resource) -> bool {
    !matches!(resource, Resource::Overhead | Resource::Idle | Resource::Stolen)
}

impl Interval<'_> {
    /// What an activity, a row's number, has used together with those below it: the rows behind it that are deeper.
    pub fn tree(&self, row: usize) -> Uses {
        let mut sum = self.rows[row].uses;
        let depth = self.rows[row].depth;
        for below in self.rows[row + 1..].iter().take_while(|r| r.depth > depth) {
            sum.add(&below.uses);
        }
        sum
    }

    /// Nanoseconds as a part of the cores' time, percent.
    pub fn percent(&self, ns: i64) -> f64 {
        if self.available > 0.0 { ns as f64 * 100.0 / self.available } else { 0.0 }
    }

    /// Time of work that nobody is charged with but a substitute, ns.
    pub fn unattributed(&self) -> i64 {
        let substitutes = self.rows.iter().filter(|r| r.activity.kind == Kind::Substitute);
        let work = |row: &Row<'_>| -> i64 {
            row.uses.used().filter(|(r, _)| is_work(*r)).fold(0, |sum: i64, (_, u)| sum.saturating_add(u.ns))
        };
        substitutes.map(work).fold(0, i64::saturating_add)
    }
}

/// How often what is counted has happened at all resources.
pub fn all_counted(uses: &Uses) -> i64 {
    uses.used().fold(0, |sum: i64, (_, u)| sum.saturating_add(u.counted))
}

/// The time of all resources, ns.
pub fn all_time(uses: &Uses) -> i64 {
    uses.used().fold(0, |sum: i64, (_, u)| sum.saturating_add(u.ns))
}
