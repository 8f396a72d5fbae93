//! `atoll stat --check`: do the books balance?
//!
//! Known work is done for each activity at each resource, and must come back in the right record; what activities hold of
//! memory is compared with what its allocator has given out. Then each core's entries are compared with the clock, and what
//! was done with what the host says that the cell's processes have used, or the nucleus that its cores have not slept: those
//! counters know nothing of the books.

use std::process::ExitCode;
use std::time::Duration;

use atoll_abi::grid::{BURNS_LONGEST, Burn, Burnt, Compared, Resource, Sent};
use atoll_supervisor::books::Snapshot;
use atoll_supervisor::inspect::{Answer, Request, ask};
use atoll_supervisor::{Error, Result};

use super::interval::{Cores, all_time, between};
use super::{Options, Source, print};
use crate::list::{ENDED, find, unexpected};

/// The most that they may be apart, percent of the cores' time.
const APART: f64 = 0.5;
/// The most that the time of known work may be off, percent.
const OFF: f64 = 1.0;
/// Known work is done again when the host has held it up, or the cell has taken memory for it.
const TRIES: usize = 20;
/// After so many tries it is done for twice as long: in emulation, what it takes besides is more than 1 % of it at first.
const LONGER_AFTER: usize = 3;

/// Compares over an interval; status 1 if they are too far apart.
pub fn run(o: &Options) -> Result<ExitCode> {
    let request = Request::Stat { cores: true, host: true };
    let mut source = Source::open(o, request, o.interval.unwrap_or(Duration::from_secs(5)))?;
    let before = source.first()?;
    // What known work takes is in the interval, too.
    let came_back = known_work(o, &before)?;
    let after = source.next()?.ok_or_else(|| Error::new("the cell has ended meanwhile"))?;
    let (text, apart) = compare(&before, &after)?;
    print(&text)?;
    Ok(if came_back && apart <= APART { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Has the cell do known work and prints what came of it. Value: has it come back?
fn known_work(o: &Options, snapshot: &Snapshot) -> Result<bool> {
    let cell = o.cell.as_ref().ok_or_else(|| Error::new("say which cell"))?;
    let socket = find(cell)?.socket;
    let mut best = Burnt::default();
    for done in 0..TRIES {
        let times = 1 << (done / LONGER_AFTER).min(BURNS_LONGEST.ilog2() as usize);
        match ask(&socket, &Request::Burn { times })?.ok_or_else(|| Error::new(ENDED))? {
            Answer::Burnt(burnt) => best = better(best, burnt),
            _ => return Err(unexpected()),
        };
        let (text, came_back) = compare_work(&best, snapshot);
        if came_back || done + 1 == TRIES {
            print(&text)?;
            return Ok(came_back);
        }
    }
    Ok(false)
}

/// What was done last; of what did not come back there, what did so before.
fn better(before: Burnt, last: Burnt) -> Burnt {
    let burns = last.burns.into_iter().map(|burn| {
        let same = |b: &&Burn| (b.activity, b.resource) == (burn.activity, burn.resource);
        let earlier = before.burns.iter().find(same).filter(|b| !is_right(&burn) && is_right(b));
        earlier.cloned().unwrap_or(burn)
    });
    let pages = last.pages.into_iter().map(|(whose, pages)| {
        let earlier = before.pages.iter().find(|(id, p)| *id == whose && exact(p)).filter(|_| !exact(&pages));
        earlier.copied().unwrap_or((whose, pages))
    });
    let held = if exact(&before.held) && before.held.done > 0 && !exact(&last.held) {
        before.held
    } else {
        last.held
    };
    Burnt {
        burns: burns.collect(),
        pages: pages.collect(),
        held,
        sent: both(&before.sent, &last.sent),
        stolen: before.stolen.saturating_add(last.stolen),
        ..last
    }
}

/// Messages are never to go wrong, however often they are sent. That a label has not moved may be because of another one that has
/// its place, which is in use.
fn both(before: &Sent, last: &Sent) -> Sent {
    let and = |a: &Compared, b: &Compared| Compared {
        done: a.done.saturating_add(b.done),
        found: a.found.saturating_add(b.found),
    };
    Sent {
        ran: and(&before.ran, &last.ran),
        overtook: before.overtook.saturating_add(last.overtook),
        together: before.together.saturating_add(last.together),
        interrupted: before.interrupted.saturating_add(last.interrupted),
        near: and(&before.near, &last.near),
        moved: if before.moved.done > 0 && exact(&before.moved) { before.moved } else { last.moved },
    }
}

/// What is wrong of messages with labels.
fn wrong_of(sent: &Sent) -> Vec<String> {
    let mut all = Vec::new();
    if !exact(&sent.ran) {
        all.push(format!("{} were sent, {} ran", sent.ran.done, sent.ran.found));
    }
    for (n, what) in [
        (sent.overtook, "before one that the same thread had sent with the same label"),
        (sent.together, "while another one with the same label ran"),
        (sent.interrupted, "while their core had another one that had not ended"),
    ] {
        if n > 0 {
            all.push(format!("{n} ran {what}"));
        }
    }
    for (c, what) in [
        (&sent.near, "to where their label was, and"),
        (&sent.moved, "with a label that was not used any more, and where they were sent"),
    ] {
        if !exact(c) {
            all.push(format!("{} were to go {what} {} did", c.done, c.found));
        }
    }
    all
}

fn exact(c: &Compared) -> bool {
    c.found == c.done as i64
}

/// Has it come back?
fn is_right(burn: &Burn) -> bool {
    let counts = !has_exact_counts(burn.resource) || exact(&burn.messages) && exact(&burn.bytes);
    counts && off(&burn.time).abs() <= OFF
}

/// Is nothing else counted there than what was done? To run a message is a completion, and a thread's own time is no message.
fn has_exact_counts(resource: Resource) -> bool {
    !matches!(resource, Resource::Thread | Resource::Completion)
}

fn off(c: &Compared) -> f64 {
    (c.found as f64 - c.done as f64) / (c.done as f64).max(1.0) * 100.0
}

/// What there is to say of known work, and whether all of it has come back.
fn compare_work(burnt: &Burnt, snapshot: &Snapshot) -> (String, bool) {
    let name = |id: u32| {
        let known = snapshot.activities.iter().find(|a| a.id == id);
        known.map_or_else(|| format!("activity {id}"), |a| a.name.clone())
    };
    let (mut text, mut right) = (String::new(), true);
    let mut wrong = |what: String| {
        text += &format!("known work: {what}\n");
        right = false;
    };
    let (mut most, mut all): (f64, f64) = (0.0, 0.0);
    for burn in &burnt.burns {
        let at = format!("{}, {}", name(burn.activity), burn.resource.name());
        all += burn.time.done as f64;
        let differs = off(&burn.time);
        most = if differs.abs() > most.abs() { differs } else { most };
        if differs.abs() > OFF {
            wrong(format!("{at}: {} ns were done, {} came back", burn.time.done, burn.time.found));
        }
        for (what, c) in [("messages", &burn.messages), ("bytes", &burn.bytes)] {
            if has_exact_counts(burn.resource) && !exact(c) {
                wrong(format!("{at}: {} {what} were done, {} came back", c.done, c.found));
            }
        }
    }
    for (activity, c) in &burnt.pages {
        if !exact(c) {
            wrong(format!("{}: {} pages were taken, {} came back", name(*activity), c.done, c.found));
        }
    }
    if !exact(&burnt.held) {
        wrong(format!(
            "the cell's memory has given out {} pages, and activities hold {}",
            burnt.held.done, burnt.held.found
        ));
    }
    if burnt.burns.is_empty() {
        wrong("there was no room for it in the cell".into());
    }
    let sent = wrong_of(&burnt.sent);
    right &= sent.is_empty();
    text.extend(sent.iter().map(|what| format!("messages with labels: {what}\n")));
    if sent.is_empty() {
        let Sent { ran, near, moved, .. } = burnt.sent;
        text += &format!(
            "messages with labels: {} ran in order, one after the other; {} stayed where their label was, {} moved\n",
            ran.done, near.done, moved.done
        );
    }
    if !right && burnt.stolen > 0 {
        text += &format!(
            "the host took {:.3} ms from the cores meanwhile: try again when it has less to do\n",
            burnt.stolen as f64 / 1e6
        );
    }
    text += &format!(
        "known work: {:.3} s for {} activities at {} resources each: the time that came back is {most:+.3} % off at most\n",
        all / 1e9,
        burnt.pages.len(),
        burnt.burns.len() / burnt.pages.len().max(1),
    );
    if burnt.left_out > 0 {
        text += &format!("known work: none for {} more activities\n", burnt.left_out);
    }
    text += &format!("memory: {} pages are given out, {} are held\n", burnt.held.done, burnt.held.found);
    (text, right)
}

/// What there is to say, and how far apart they are at most, percent.
fn compare(before: &Snapshot, after: &Snapshot) -> Result<(String, f64)> {
    if after.activities.is_empty() {
        return Err(Error::new(format!("{}: its runtime keeps no books", after.cell)));
    }
    let (Some(host_before), Some(host_after)) = (before.host, after.host) else {
        return Err(Error::new("the cell's supervisor does not say what the host says"));
    };
    let all = between(Some(before), after, Cores::All);
    let mut text = format!("{}: {:.3} s\n", after.cell, all.ns as f64 / 1e9);
    let mut apart: f64 = 0.0;
    for core in 0..after.cores as usize {
        let one = between(Some(before), after, Cores::One(core));
        let difference = one.percent(all_time(&one.total)) - 100.0;
        apart = apart.max(difference.abs());
        text += &format!(
            "core {core}: the books have {:.3} % of its time: {difference:+.3} %\n",
            difference + 100.0
        );
    }
    let outside = [Resource::Idle, Resource::Stolen].map(|r| all.total.of(r).ns).into_iter();
    let used = all_time(&all.total).saturating_sub(outside.fold(0, i64::saturating_add));
    let host = host_after.ns.wrapping_sub(host_before.ns) as i64;
    let difference = all.percent(used.saturating_sub(host));
    apart = apart.max(difference.abs());
    let who = if host_after.processes == 0 { "nucleus" } else { "host" };
    text += &format!(
        "threads, resources and overhead: {:.3} s; the {who} says {:.3} s: {difference:+.3} % of the cores' time\n",
        used as f64 / 1e9,
        host as f64 / 1e9,
    );
    if host_before.processes != host_after.processes {
        text += &format!(
            "the cell had {} processes on the host, then {}: what those used that have ended is not counted\n",
            host_before.processes, host_after.processes
        );
    }
    let verdict = if apart <= APART { "they balance" } else { "they do not balance" };
    text += &format!("{verdict}: {apart:.3} % apart at most, and {APART} % is allowed\n");
    Ok((text, apart))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{activity, snapshot};
    use super::*;
    use atoll_supervisor::books::HostTime;

    /// Three seconds of two cores; the second core's program time can be made wrong.
    fn pair(second: i64, host: u64) -> (Snapshot, Snapshot) {
        let at = |s: i64, second: i64, ns: u64| {
            let first = [(Resource::Thread, s * 700_000_000), (Resource::Idle, s * 300_000_000)];
            let other = [(Resource::Overhead, s * 100_000_000), (Resource::Stolen, s * 400_000_000)];
            let mut a = activity(0, 0, "cell", &[&first, &other]);
            a.cores[1].0[Resource::Socket as usize].ns = second;
            a.resources.0[Resource::Socket as usize].ns = second;
            let mut snapshot = snapshot(s as u64, 2, vec![a]);
            snapshot.host = Some(HostTime { ns, processes: 2 });
            snapshot
        };
        (at(1, 500_000_000, 10), at(4, 500_000_000 + second, 10 + host))
    }

    /// OK-05: the books are compared with clocks that know nothing of them.
    #[test]
    fn compares_with_both_clocks() {
        // 0.7 and 0.1 and 0.5 a second.
        let (before, after) = pair(1_500_000_000, 3_900_000_000);
        let (text, apart) = compare(&before, &after).unwrap();
        assert!(apart < 1e-6 && text.contains("they balance"), "{text}");
        // One percent of a core is missing in the books: half of that of all.
        let (before, after) = pair(1_470_000_000, 3_900_000_000);
        let (text, apart) = compare(&before, &after).unwrap();
        assert!((apart - 1.0).abs() < 1e-6, "{text}");
        assert!(text.contains("core 1: the books have 99.000 % of its time: -1.000 %"), "{text}");
        assert!(text.contains("-0.500 % of the cores' time") && text.contains("do not balance"), "{text}");
        // The host says more.
        let (before, after) = pair(1_500_000_000, 3_960_000_000);
        assert!((compare(&before, &after).unwrap().1 - 1.0).abs() < 1e-6);
        let empty = snapshot(1, 1, Vec::new());
        assert!(compare(&empty, &empty).is_err());
    }

    /// OK-05: known work must come back in time within 1 %, in messages, bytes and pages as it was, and in the record of whoever
    /// it was for.
    #[test]
    fn known_work_comes_back_or_not() {
        let whose = snapshot(1, 1, vec![activity(0, 0, "cell", &[])]);
        let is = |done: u64, found: i64| Compared { done, found };
        let burn = |resource, found| Burn {
            activity: 0,
            resource,
            time: is(200_000, found),
            messages: is(1, 1),
            bytes: is(4096, 4096),
        };
        let right = Burnt {
            burns: vec![burn(Resource::Files, 201_000), burn(Resource::Pipe, 198_500)],
            pages: vec![(0, is(64, 64))],
            held: is(1000, 1000),
            stolen: 0,
            left_out: 0,
            sent: Sent { ran: is(128, 128), near: is(2, 2), moved: is(2, 2), ..Sent::default() },
        };
        let (text, ok) = compare_work(&right, &whose);
        assert!(ok && text.contains("0.000 s for 1 activities at 2 resources each"), "{text}");
        assert!(text.contains("-0.750 % off at most"), "{text}");
        let wrong = |change: &dyn Fn(&mut Burnt), said: &str| {
            let mut burnt = right.clone();
            change(&mut burnt);
            let (text, ok) = compare_work(&burnt, &whose);
            assert!(!ok && text.contains(said), "{text}");
        };
        wrong(&|b| b.burns[0].time.found = 202_001, "cell, files: 200000 ns were done, 202001 came back");
        wrong(&|b| b.burns[1].time.found = 0, "cell, pipe: 200000 ns were done, 0 came back");
        wrong(&|b| b.burns[1].messages.found = 2, "cell, pipe: 1 messages were done, 2 came back");
        wrong(&|b| b.burns[0].bytes.found = 0, "4096 bytes were done, 0 came back");
        wrong(&|b| b.pages[0].1.found = 63, "64 pages were taken, 63 came back");
        wrong(&|b| b.held.found = 999, "given out 1000 pages, and activities hold 999");
        wrong(&|b| b.burns.clear(), "no room for it");
        wrong(&|b| b.sent.ran.found = 127, "128 were sent, 127 ran");
        wrong(&|b| b.sent.overtook = 3, "3 ran before one that the same thread had sent");
        wrong(&|b| b.sent.together = 1, "1 ran while another one with the same label ran");
        wrong(&|b| b.sent.interrupted = 2, "2 ran while their core had another one");
        wrong(&|b| b.sent.near.found = 1, "2 were to go to where their label was, and 1 did");
        wrong(&|b| b.sent.moved.found = 0, "where they were sent 0 did");
        let mut held_up = right.clone();
        held_up.burns[0].time.found = 0;
        held_up.stolen = 1_500_000;
        assert!(compare_work(&held_up, &whose).0.contains("the host took 1.500 ms"));
        // What came back before, and what has come back now, are enough together.
        let mut later = right.clone();
        (later.burns[1].bytes.found, later.pages[0].1.found, later.held.found) = (0, 0, 0);
        assert!(!compare_work(&later, &whose).1);
        assert!(compare_work(&better(held_up.clone(), later.clone()), &whose).1);
        // A label that has not moved may move later; a message that has overtaken another one has done so.
        let mut stays = right.clone();
        stays.sent.moved.found = 0;
        assert!(compare_work(&better(stays.clone(), right.clone()), &whose).1);
        stays.sent.overtook = 1;
        assert!(!compare_work(&better(stays, right.clone()), &whose).1);
        later.burns[0].time.found = 0;
        assert!(!compare_work(&better(held_up, later), &whose).1);
    }
}
