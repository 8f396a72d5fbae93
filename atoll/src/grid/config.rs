//! The grid's configuration as a TOML file: read with words for everything that is wrong, and written back.
//!
//! `docs/grid.md` describes the file.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use atoll_abi::grid::{
    ACTIVITIES_MAX, ActivityConfig, BATCH_MAX, CONFIG_MAX, GridConfig, Match, Measure, MemoryQuota, NAME_MAX,
    Parameters, QUOTAS, Quota, Resource, ResourceConfig, SchedulerKind,
};
use atoll_abi::layout::MAX_CORES;
use atoll_supervisor::books::{Activity, Kind, QuotaUse};
use atoll_supervisor::{Error, Result, say};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::toml_file::{
    self, BYTES, Read, amount, bytes, integer, known, list, number, one_of, quoted, size, string, suggestion,
    table, whole, wrong,
};

/// Longest file, bytes: well above what fits when it is encoded.
const FILE_MAX: u64 = 1 << 20;
/// Activities that a configuration can name: two are always there.
const NAMED_MAX: usize = ACTIVITIES_MAX - 2;
/// Greatest weight.
const WEIGHT_MAX: i64 = 1_000_000;
/// One in so many messages is timed, at least.
const SAMPLE_MAX: i64 = 65_536;
/// Nanoseconds a second.
const SECOND: u64 = 1_000_000_000;
/// Weight of a share of one percent.
const PERCENT: f64 = 100.0;

const SCHEDULERS: [(&str, SchedulerKind); 4] = [
    ("wfq", SchedulerKind::Wfq),
    ("round-robin", SchedulerKind::RoundRobin),
    ("priority", SchedulerKind::Priority),
    ("deadline", SchedulerKind::Deadline),
];
const MEASURES: [(&str, Measure); 3] =
    [("time", Measure::Time), ("bytes", Measure::Bytes), ("operations", Measure::Operations)];

const TOP: [&str; 4] = ["sample", "threads", "activity", "resource"];
/// Of the file and of an activity, in the order of their numbers.
const QUOTA_KEYS: [&str; QUOTAS] = ["tasks_max", "processes_max", "timers_max", "events_max", "channels_max"];
const PARAMETERS: [&str; 6] = ["weight", "share", "reservation", "limit", "priority", "deadline"];
const ACTIVITY: [&str; 10] =
    ["name", "match", "threads", "cores", "weight", "share", "reservation", "limit", "priority", "deadline"];
/// Of an activity, of its memory.
const MEMORY: [&str; 3] = ["memory_max", "memory_min", "oom_group"];
const MATCH: [&str; 4] = ["program", "argument", "environment", "user"];
const RESOURCE: [&str; 6] = ["scheduler", "measure", "rate", "batch", "cores", "activity"];

/// What can be scheduled: not what only says where time went.
fn schedulable(resource: Resource) -> bool {
    !matches!(resource, Resource::Overhead | Resource::Idle | Resource::Stolen)
}

fn duration(text: &str) -> Option<u64> {
    let (value, unit) = amount(text)?;
    let ns = match unit {
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return None,
    };
    whole(value * ns)
}

fn percent(text: &str) -> Option<f64> {
    let (value, unit) = amount(text)?;
    (unit == "%" && value > 0.0 && value <= 100.0).then_some(value)
}

/// So much a second, in units of the measure; for time, ns a second and core.
fn rate(value: &Spanned<DeValue<'_>>, key: &str, measure: Measure) -> Read<u64> {
    let refused = || {
        let how = match measure {
            Measure::Time => "a part of each core's time: write \"30%\", or \"300ms\" for 300 ms a second",
            Measure::Bytes => {
                "bytes a second: write \"10MB/s\" (kB, MB, GB, TB are powers of 1000, KiB, MiB, GiB, TiB of 1024)"
            }
            Measure::Operations => "messages a second: write 5000, or \"5k/s\"",
        };
        wrong(&value.span(), format!("`{key}` is {how}"))
    };
    if let Some(n) = number(value) {
        // Nothing is the same in all units; time has no plain unit.
        return if n == 0 || (n > 0 && measure != Measure::Time) { Ok(n as u64) } else { refused() };
    }
    let text = value.get_ref().as_str().unwrap_or_default();
    let text = text.strip_suffix("/s").unwrap_or(text);
    let found = match measure {
        Measure::Time => percent(text)
            .and_then(|p| whole(p * (SECOND / 100) as f64))
            .or_else(|| duration(text))
            .filter(|ns| *ns <= SECOND),
        Measure::Bytes => bytes(text),
        Measure::Operations => amount(text).and_then(|(value, unit)| {
            let unit = OPERATIONS.iter().find(|(name, _)| *name == unit)?.1;
            whole(value * unit as f64)
        }),
    };
    found.map_or_else(refused, Ok)
}

/// What an activity may hold of memory, and has in any case.
fn memory(t: &DeTable<'_>) -> Read<MemoryQuota> {
    let of = |key: &str| t.get(key).map_or(Ok(0), |v| size(v, key));
    let quota = MemoryQuota {
        max: of("memory_max")?,
        min: of("memory_min")?,
        oom_group: t.get("oom_group").map_or(Ok(false), |v| boolean(v, "oom_group"))?,
    };
    if quota.max != 0 && quota.min > quota.max {
        let at = t.get("memory_min").map_or(0..0, Spanned::span);
        return wrong(&at, "`memory_min` is more than `memory_max`");
    }
    Ok(quota)
}

const OPERATIONS: [(&str, u64); 3] = [("M", 1_000_000), ("k", 1000), ("", 1)];

/// Whether a file speaks of weights or of shares: both could not be compared.
#[derive(Default)]
struct Words {
    used: Option<&'static str>,
}

impl Words {
    fn use_one(&mut self, word: &'static str, at: &Range<usize>) -> Read<()> {
        match self.used.replace(word) {
            Some(before) if before != word => wrong(at, "weights and shares don't go together in one file"),
            _ => Ok(()),
        }
    }
}

/// Reads parameters, which are `inherited` where nothing is said.
fn parameters(
    t: &DeTable<'_>,
    inherited: Parameters,
    measure: Measure,
    words: &mut Words,
) -> Read<Parameters> {
    let mut p = inherited;
    if let Some(v) = t.get("weight") {
        words.use_one("weight", &v.span())?;
        p.weight = integer(v, "weight", 1, WEIGHT_MAX)? as u32;
    }
    if let Some(v) = t.get("share") {
        words.use_one("share", &v.span())?;
        let share = percent(v.get_ref().as_str().unwrap_or_default()).and_then(|s| whole(s * PERCENT));
        match share {
            Some(share) => p.weight = share as u32,
            None => return wrong(&v.span(), "`share` is a part of the whole: write \"30%\", 0.01% to 100%"),
        }
    }
    if let Some(v) = t.get("reservation") {
        p.reservation = rate(v, "reservation", measure)?;
    }
    if let Some(v) = t.get("limit") {
        p.limit = rate(v, "limit", measure)?;
    }
    if let Some(v) = t.get("priority") {
        p.priority = integer(v, "priority", i64::from(i32::MIN), i64::from(i32::MAX))? as i32;
    }
    if let Some(v) = t.get("deadline") {
        p.deadline = match (number(v), v.get_ref().as_str().and_then(duration)) {
            (Some(0), _) => 0,
            (_, Some(ns)) => ns,
            _ => return wrong(&v.span(), "`deadline` is a time after arrival: write \"1ms\", or ns, us, s"),
        };
    }
    if p.limit != 0 && p.reservation > p.limit {
        let at = t.get("limit").or(t.get("reservation")).map_or(0..0, Spanned::span);
        return wrong(&at, "the reservation is more than the limit");
    }
    Ok(p)
}

/// What an activity has of a resource that says nothing of it: what was said of time says nothing of bytes.
fn inherited(parameters: Parameters, measure: Measure) -> Parameters {
    if measure == Measure::Time { parameters } else { Parameters { reservation: 0, limit: 0, ..parameters } }
}

fn activity(t: &DeTable<'_>, at: &Range<usize>, words: &mut Words) -> Read<ActivityConfig> {
    known(t, "an activity", &[&ACTIVITY[..], &QUOTA_KEYS, &MEMORY].concat())?;
    let Some(v) = t.get("name") else { return wrong(at, "this activity has no `name`") };
    let name = string(v, "name")?;
    if name.is_empty() || name.len() > NAME_MAX || name.chars().any(char::is_control) {
        return wrong(
            &v.span(),
            format!("a name has 1 to {NAME_MAX} bytes, none of them control characters"),
        );
    }
    let parameters = parameters(t, Parameters::default(), Measure::Time, words)?;
    let mut matches = Vec::new();
    if let Some(v) = t.get("match") {
        for m in list(v, "match")? {
            let t = table(m, "match")?;
            known(t, "a match", &MATCH)?;
            if t.is_empty() {
                return wrong(&m.span(), format!("this match says nothing: {}", MATCH.join(", ")));
            }
            let of = |key: &str| {
                t.get(key).map(|v| match string(v, key)? {
                    "" => wrong(&v.span(), format!("`{key}` is empty")),
                    s if s.contains('\0') => wrong(&v.span(), format!("`{key}` has a zero byte in it")),
                    s => Ok(s.to_string()),
                })
            };
            let user = t.get("user").map(|v| integer(v, "user", 0, i64::from(u32::MAX)));
            matches.push(Match {
                program: of("program").transpose()?,
                argument: of("argument").transpose()?,
                environment: of("environment").transpose()?,
                user: user.transpose()?.map(|u| u as u32),
            });
        }
    }
    Ok(ActivityConfig {
        name: name.into(),
        parameters,
        cores: cores(t)?,
        matches,
        threads: threads(t)?,
        quotas: quotas(t)?,
        memory: memory(t)?,
    })
}

/// How many there may be of each; 0: there is no limit.
fn quotas(t: &DeTable<'_>) -> Read<[u32; QUOTAS]> {
    let mut most = [0; QUOTAS];
    for (key, most) in QUOTA_KEYS.into_iter().zip(&mut most) {
        if let Some(v) = t.get(key) {
            *most = integer(v, key, 1, i64::from(u32::MAX))? as u32;
        }
    }
    Ok(most)
}

fn boolean(v: &Spanned<DeValue<'_>>, key: &str) -> Read<bool> {
    match v.get_ref() {
        DeValue::Boolean(yes) => Ok(*yes),
        _ => wrong(&v.span(), format!("`{key}` is true or false")),
    }
}

/// Are threads activities?
fn threads(t: &DeTable<'_>) -> Read<bool> {
    t.get("threads").map_or(Ok(false), |v| boolean(v, "threads"))
}

/// The cores that a table names; none: all.
fn cores(t: &DeTable<'_>) -> Read<Vec<u32>> {
    let mut cores = Vec::new();
    if let Some(v) = t.get("cores") {
        for core in list(v, "cores")? {
            let n = integer(core, "cores", 0, MAX_CORES as i64 - 1)? as u32;
            if cores.contains(&n) {
                return wrong(&core.span(), "a core is named once");
            }
            cores.push(n);
        }
        if cores.is_empty() {
            return wrong(&v.span(), "name at least one core, or leave `cores` out for all");
        }
    }
    Ok(cores)
}

fn resource(
    resource: Resource,
    t: &DeTable<'_>,
    activities: &[ActivityConfig],
    words: &mut Words,
) -> Read<ResourceConfig> {
    known(t, "a resource", &RESOURCE)?;
    let scheduler = t.get("scheduler").map(|v| one_of(v, "scheduler", &SCHEDULERS)).transpose()?;
    let measure = t.get("measure").map(|v| one_of(v, "measure", &MEASURES)).transpose()?.unwrap_or_default();
    let rate = t.get("rate").map(|v| rate(v, "rate", measure)).transpose()?.unwrap_or(0);
    let batch = t.get("batch").map(|v| integer(v, "batch", 1, BATCH_MAX.into())).transpose()?.unwrap_or(1);
    let own = t.get("activity").map(|v| table(v, "activity")).transpose()?;
    for key in own.iter().flat_map(|own| own.keys()) {
        let name = key.get_ref().as_ref();
        if !activities.iter().any(|a| a.name == name) {
            let what = format!("the file has no activity {}", quoted(name));
            if activities.is_empty() {
                return wrong(&key.span(), what);
            }
            let meant = suggestion(name, activities.iter().map(|a| &a.name[..]));
            return wrong(&key.span(), format!("{what}: {meant}"));
        }
    }
    let mut differing = Vec::new();
    let (mut reserved, mut shared) = (0_u64, 0);
    for (n, a) in activities.iter().enumerate() {
        let mut p = inherited(a.parameters, measure);
        let said = own.and_then(|own| own.get(&a.name[..]));
        if let Some(v) = said {
            let t = table(v, &a.name)?;
            known(t, "an activity of a resource", &PARAMETERS)?;
            p = parameters(t, p, measure, words)?;
        }
        reserved = reserved.saturating_add(p.reservation);
        shared += u64::from(p.weight);
        if p != a.parameters {
            differing.push((n as u32, p));
        }
        let most = match (measure, rate) {
            (Measure::Time, 0) => SECOND,
            (_, 0) => u64::MAX,
            (_, rate) => rate,
        };
        let at = said.or(t.get("rate")).map_or(0..0, Spanned::span);
        if reserved > most {
            return wrong(&at, "more is reserved here than there is: the reservations add up to more");
        }
        if words.used == Some("share") && shared > (100.0 * PERCENT) as u64 {
            return wrong(&at, "the shares add up to more than 100% here");
        }
    }
    Ok(ResourceConfig {
        resource,
        scheduler: scheduler.unwrap_or_default(),
        measure,
        rate,
        batch: batch as u32,
        cores: cores(t)?,
        activities: differing,
    })
}

fn read(text: &str) -> Read<GridConfig> {
    let document = toml_file::document(text)?;
    let top = document.get_ref();
    known(top, "the file", &[&TOP[..], &QUOTA_KEYS].concat())?;
    let mut config = GridConfig::default();
    let mut words = Words::default();
    if let Some(v) = top.get("sample") {
        config.sample = integer(v, "sample", 1, SAMPLE_MAX)? as u32;
    }
    config.threads = threads(top)?;
    config.quotas = quotas(top)?;
    let (mut reserved, mut shared) = (0, 0);
    if let Some(v) = top.get("activity") {
        for v in list(v, "activity")? {
            let t = table(v, "activity")?;
            let one = activity(t, &v.span(), &mut words)?;
            let at = t.get("name").map_or(v.span(), Spanned::span);
            if config.activities.iter().any(|a| a.name == one.name) {
                return wrong(&at, format!("there are two activities {}", quoted(&one.name)));
            }
            if config.activities.len() == NAMED_MAX {
                return wrong(&at, format!("{NAMED_MAX} activities are the most"));
            }
            reserved += one.parameters.reservation;
            if reserved > SECOND {
                return wrong(
                    &at,
                    "more is reserved than there is: the reservations add up to more than 100%",
                );
            }
            if words.used == Some("share") {
                shared += one.parameters.weight;
                if t.get("share").is_none() {
                    return wrong(&at, "others have a `share`, and this activity has none");
                }
                if shared > (100.0 * PERCENT) as u32 {
                    return wrong(&at, "the shares add up to more than 100%");
                }
            }
            config.activities.push(one);
        }
    }
    if words.used == Some("share")
        && let Some(v) = top.get("activity")
        && let Some(first) = list(v, "activity")?.iter().find(|v| v.get_ref().get("share").is_none())
    {
        return wrong(&first.span(), "others have a `share`, and this activity has none");
    }
    if let Some(v) = top.get("resource") {
        let resources = table(v, "resource")?;
        let names = || Resource::ALL.into_iter().filter(|r| schedulable(*r)).map(Resource::name);
        for key in resources.keys() {
            let name = key.get_ref().as_ref();
            if names().any(|n| n == name) {
                continue;
            }
            let what = if Resource::ALL.iter().any(|r| r.name() == name) {
                format!("{} is measured, and nothing can be scheduled there", quoted(name))
            } else {
                format!("there is no resource {}: {}", quoted(name), suggestion(name, names()))
            };
            return wrong(&key.span(), what);
        }
        for one in Resource::ALL {
            if let Some(v) = resources.get(one.name()) {
                let t = table(v, one.name())?;
                config.resources.push(resource(one, t, &config.activities, &mut words)?);
            }
        }
    }
    let encoded = postcard::to_stdvec(&config).map_or(usize::MAX, |bytes| bytes.len());
    if encoded > CONFIG_MAX {
        return wrong(
            &(0..0),
            format!("all of it takes {encoded} bytes encoded, and {CONFIG_MAX} is the most"),
        );
    }
    Ok(config)
}

/// Reads a configuration; what is wrong with it begins with `line L, column C`.
pub fn parse(text: &str) -> std::result::Result<GridConfig, String> {
    read(text).map_err(|wrong| wrong.said_of(text))
}

/// Resources that the file has a table for, and of which nothing will be divided: there is no rate, and nobody has a limit.
fn undivided(config: &GridConfig) -> impl Iterator<Item = &'static str> + '_ {
    let everywhere = config.activities.iter().any(|a| a.parameters.limit != 0);
    let divides = move |r: &ResourceConfig| {
        let own = r.activities.iter().any(|(_, p)| p.limit != 0);
        // What is said of time says nothing of bytes.
        r.rate != 0 || own || r.measure == Measure::Time && everywhere
    };
    let but_thread = config.resources.iter().filter(|r| r.resource != Resource::Thread);
    but_thread.filter(move |r| !divides(r)).map(|r| r.resource.name())
}

/// Reads a file, for a cell of so many cores if that is known. What in it does nothing is said on standard error.
pub fn load(path: &Path, cores: Option<usize>) -> Result<GridConfig> {
    let config = toml_file::load(path, "grid's configuration", FILE_MAX, parse)?;
    for name in undivided(&config) {
        say!(
            "atoll: {}: nothing is divided at resource.{name}, which has neither a `rate` nor an activity with a `limit`",
            path.display()
        );
    }
    if let Some(cores) = cores {
        check_cores(&config, cores).map_err(|e| Error::new(format!("{}: {e}", path.display())))?;
    }
    Ok(config)
}

/// Are the cores that it names there?
fn check_cores(config: &GridConfig, cores: usize) -> std::result::Result<(), String> {
    let resources = config.resources.iter().map(|r| ("resource", r.resource.name(), &r.cores));
    let activities = config.activities.iter().map(|a| ("activity", &a.name[..], &a.cores));
    for (what, name, named) in resources.chain(activities) {
        if let Some(core) = named.iter().find(|c| **c as usize >= cores) {
            return Err(format!(
                "{what} {name} is to have core {core}, and the cell's cores are 0 to {}",
                cores.saturating_sub(1)
            ));
        }
    }
    Ok(())
}

/// A string in TOML's quotation.
fn quotation(text: &str) -> String {
    toml::Value::String(text.into()).to_string()
}

fn write_duration(ns: u64) -> String {
    let units = [("s", SECOND), ("ms", 1_000_000), ("us", 1000)];
    let unit = units.into_iter().find(|(_, n)| ns.is_multiple_of(*n)).unwrap_or(("ns", 1));
    format!("\"{}{}\"", ns / unit.1, unit.0)
}

fn write_rate(n: u64, measure: Measure) -> String {
    /// Nanoseconds of a hundredth of a percent.
    const STEP: u64 = SECOND / 10_000;
    match measure {
        _ if n == 0 => "0".into(),
        Measure::Time if n.is_multiple_of(STEP) => format!("\"{}%\"", (n / STEP) as f64 / 100.0),
        Measure::Time => format!("\"{n}ns\""),
        Measure::Bytes => {
            let unit = BYTES.into_iter().find(|(_, u)| n.is_multiple_of(*u)).unwrap_or(("B", 1));
            format!("\"{}{}/s\"", n / unit.1, unit.0)
        }
        Measure::Operations => n.to_string(),
    }
}

/// The parameters that are not the inherited ones, as keys and values.
fn write_parameters(p: &Parameters, inherited: &Parameters, measure: Measure) -> Vec<(&'static str, String)> {
    let deadline = if p.deadline == 0 { "0".into() } else { write_duration(p.deadline) };
    [
        ("weight", p.weight.to_string(), p.weight != inherited.weight),
        ("reservation", write_rate(p.reservation, measure), p.reservation != inherited.reservation),
        ("limit", write_rate(p.limit, measure), p.limit != inherited.limit),
        ("priority", p.priority.to_string(), p.priority != inherited.priority),
        ("deadline", deadline, p.deadline != inherited.deadline),
    ]
    .into_iter()
    .filter_map(|(key, value, differs)| differs.then_some((key, value)))
    .collect()
}

/// A line for each limit, with what there is if that is known.
fn write_quotas(most: &[u32; QUOTAS], there_are: Option<&BTreeMap<String, QuotaUse>>) -> String {
    let mut text = String::new();
    for (quota, most) in Quota::ALL.into_iter().zip(most).filter(|(_, most)| **most != 0) {
        text += &format!("{} = {most}", QUOTA_KEYS[quota as usize]);
        if let Some(there_is) = there_are.and_then(|all| all.get(quota.name())) {
            text += &format!(" # {} are used", there_is.used);
        }
        text += "\n";
    }
    text
}

/// Lines for what is said of memory, with what there is if that is known.
fn write_memory(memory: &MemoryQuota, held: Option<u64>) -> String {
    let size = |n: u64| {
        let unit = BYTES[5..].iter().find(|(_, u)| n.is_multiple_of(*u)).unwrap_or(&("B", 1));
        format!("\"{}{}\"", n / unit.1, unit.0)
    };
    let mut text = String::new();
    for (key, n) in [("memory_max", memory.max), ("memory_min", memory.min)] {
        if n != 0 {
            text += &format!("{key} = {}", size(n));
            if let Some(held) = held {
                text += &format!(" # {:.1} MiB are held", held as f64 / f64::from(1 << 20));
            }
            text += "\n";
        }
    }
    if memory.oom_group {
        text += "oom_group = true\n";
    }
    text
}

/// A line for these cores; for all, none.
fn write_cores(cores: &[u32]) -> String {
    let cores: Vec<String> = cores.iter().map(u32::to_string).collect();
    if cores.is_empty() { String::new() } else { format!("cores = [{}]\n", cores.join(", ")) }
}

fn inline(fields: &[(&str, String)]) -> String {
    let fields: Vec<String> = fields.iter().map(|(key, value)| format!("{key} = {value}")).collect();
    format!("{{ {} }}", fields.join(", "))
}

/// A configuration as a file from which it would be read again. `activities`: those of the cell that has it, for what is used of
/// quotas.
pub fn write(config: &GridConfig, activities: &[Activity]) -> String {
    let of = |kind: Kind, name: Option<&str>| {
        let one = |a: &&Activity| a.kind == kind && name.is_none_or(|name| a.name == name);
        activities.iter().find(one)
    };
    let used = |kind: Kind, name: Option<&str>| of(kind, name).map(|a| &a.quotas);
    let mut text = format!("sample = {}\n", config.sample);
    if config.threads {
        text += "threads = true\n";
    }
    text += &write_quotas(&config.quotas, used(Kind::Cell, None));
    for a in &config.activities {
        text += &format!("\n[[activity]]\nname = {}\n", quotation(&a.name));
        // Always said: it is what others are in proportion to.
        text += &format!("weight = {}\n", a.parameters.weight);
        let rest = Parameters { weight: a.parameters.weight, ..Parameters::default() };
        for (key, value) in write_parameters(&a.parameters, &rest, Measure::Time) {
            text += &format!("{key} = {value}\n");
        }
        text += &write_cores(&a.cores);
        if a.threads {
            text += "threads = true\n";
        }
        text += &write_quotas(&a.quotas, used(Kind::Named, Some(&a.name)));
        let held = of(Kind::Named, Some(&a.name)).and_then(|a| a.memory).map(|m| m.held);
        text += &write_memory(&a.memory, held);
        let matches: Vec<String> = a
            .matches
            .iter()
            .map(|m| {
                let strings =
                    [("program", &m.program), ("argument", &m.argument), ("environment", &m.environment)];
                let mut fields: Vec<(&str, String)> = strings
                    .into_iter()
                    .filter_map(|(key, s)| s.as_ref().map(|s| (key, quotation(s))))
                    .collect();
                fields.extend(m.user.map(|u| ("user", u.to_string())));
                inline(&fields)
            })
            .collect();
        if !matches.is_empty() {
            text += &format!("match = [{}]\n", matches.join(", "));
        }
    }
    for r in &config.resources {
        text += &format!("\n[resource.{}]\n", r.resource.name());
        let name_of = |found: Option<&'static str>| quotation(found.unwrap_or_default());
        let scheduler = SCHEDULERS.iter().find(|(_, s)| *s == r.scheduler).map(|(n, _)| *n);
        let measure = MEASURES.iter().find(|(_, m)| *m == r.measure).map(|(n, _)| *n);
        text += &format!("scheduler = {}\nmeasure = {}\n", name_of(scheduler), name_of(measure));
        if r.rate != 0 {
            text += &format!("rate = {}\n", write_rate(r.rate, r.measure));
        }
        text += &format!("batch = {}\n", r.batch);
        text += &write_cores(&r.cores);
        for (n, p) in &r.activities {
            let Some(a) = config.activities.get(*n as usize) else { continue };
            let fields = write_parameters(p, &inherited(a.parameters, r.measure), r.measure);
            if !fields.is_empty() {
                text += &format!("activity.{} = {}\n", quotation(&a.name), inline(&fields));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests;
