//! Says to a cell's cores what others use of the processors that they are pinned to.
//!
//! A cell on a host shares processors with whatever else runs there. Linux moves a thread to a processor that is free; a core of a cell
//! stays where it is, and others on its processor wait for it as it waits for them. So the cell moves its threads instead, to cores whose
//! processors nobody else wants, as long as there is room (`task/src/scheduler.rs`). What others use is the time for which the host's
//! processor was not idle (`/proc/stat`, proc(5)), less that for which the core was awake and ran.
//!
//! A cell that does nothing on processors that nobody else uses is looked at once a second, and looks take a thousandth of a processor's time at most, unless one takes more
//! than 5 ms.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use atoll_abi::control::CoreArea;

use crate::books::{clock, time_of};
use crate::cores::look_at_processors;
use crate::inspect::Live;

/// How often it is looked, and how often while the cell's cores sleep, and others use next to nothing of their processors either: who had been
/// there, and has gone, would be remembered for long when the cell has something to do again.
const LOOK: Duration = Duration::from_millis(100);
const LOOK_IDLE: Duration = Duration::from_secs(1);
/// So many times as long as a look takes of a processor's time, at least, but no longer than that.
const PATIENCE: u32 = 1000;
const PATIENCE_MOST: Duration = Duration::from_secs(5);
/// Of all its cores' time a cell that does nothing uses less than this, thousandths, and so do others on each processor that they leave alone.
const NOTHING: u64 = 20;
/// `/proc/stat` counts hundredths of a second (USER_HZ).
const TICK: u64 = 10_000_000;

/// What is known of a core, or its processor, at some time: ns.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Known {
    /// Time, the cell's clock.
    at: u64,
    /// For how long the processor was idle.
    idle: u64,
    /// For how long the core slept, and had its processor taken away while it worked.
    slept: u64,
    stolen: u64,
}

/// Parts of the time between two looks, thousandths: of others, and of the core itself.
fn parts(before: Known, after: Known) -> (u64, u64) {
    let all = after.at.saturating_sub(before.at).max(1);
    let since = |of: fn(&Known) -> u64| of(&after).saturating_sub(of(&before)).min(all);
    let awake = all - since(|k| k.slept);
    let own = awake.saturating_sub(since(|k| k.stolen));
    let busy = all - since(|k| k.idle);
    (busy.saturating_sub(own) * 1000 / all, own * 1000 / all)
}

/// The mean of what was said last and what was found now: one look is off by a tick. What is found counts three times if it is less: who goes
/// leaves at once, and one who comes may not stay.
fn smoothed(said: u32, found: u64) -> u32 {
    let said = u64::from(said);
    (if found < said { (said + 3 * found) / 4 } else { u64::midpoint(said, found) }) as u32
}

/// Looks at a core whose processor was idle for so many ticks.
fn look(area: &CoreArea, idle: u64) -> Known {
    let at = clock();
    Known { at, idle: idle * TICK, slept: area.slept_by(at), stolen: area.stolen.load(Ordering::Relaxed) }
}

/// Processor time of this thread, ns.
fn worked() -> u64 {
    time_of(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0)
}

/// Looks after a cell from now on.
pub(crate) fn start(live: Arc<Live>) {
    let named = std::thread::Builder::new().name("atoll-beside".into());
    // Without it the cell takes its processors to be its own.
    let _ = named.spawn(move || look_after(&live));
}

fn look_after(live: &Live) {
    let Some((areas, cpus)) = live.pinned_cores() else { return };
    let mut before: Vec<Option<Known>> = vec![None; areas.len()];
    let mut pause = LOOK;
    loop {
        std::thread::sleep(pause);
        if live.is_over() {
            return;
        }
        let (begun, online, mut alone) = (worked(), live.online() as usize, true);
        let processors = look_at_processors();
        let mut all = 0;
        let is_first = before.iter().all(Option::is_none);
        for (n, (area, before)) in areas.iter().zip(&mut before).enumerate() {
            let cpu = cpus.get(n).filter(|_| n < online);
            let processor = cpu.and_then(|cpu| processors.iter().find(|(number, ..)| number == cpu));
            let after = processor.map(|(_, idle, _)| look(area, *idle));
            let (others, used) = match (*before, after) {
                (Some(before), Some(after)) => parts(before, after),
                _ => (0, 0),
            };
            *before = after;
            all += used;
            alone &= others < NOTHING;
            let say = |word: &AtomicU32, found| {
                let said = word.load(Ordering::Relaxed);
                let new = if after.is_some() { smoothed(said, found) } else { 0 };
                if new != said {
                    word.store(new, Ordering::Relaxed);
                }
            };
            say(&area.others, others);
            say(&area.used, used);
        }
        pause = if all < NOTHING && alone && !is_first { LOOK_IDLE } else { LOOK };
        let took = Duration::from_nanos(worked().saturating_sub(begun));
        pause = pause.max((took * PATIENCE).min(PATIENCE_MOST));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// XOS-09: what others use is what the processor did and the core didn't.
    #[test]
    fn tells_others_from_the_core_itself() {
        let before = Known { at: 500 * MS, idle: 70 * MS, slept: 90 * MS, stolen: 0 };
        let after = |idle: u64, slept: u64, stolen: u64| {
            let stolen = stolen * MS;
            Known { at: 600 * MS, idle: (70 + idle) * MS, slept: (90 + slept) * MS, stolen }
        };
        // Nobody does anything, others do, the core does, both.
        assert_eq!(parts(before, after(100, 100, 0)), (0, 0));
        assert_eq!(parts(before, after(0, 100, 0)), (1000, 0));
        assert_eq!(parts(before, after(60, 60, 0)), (0, 400));
        assert_eq!(parts(before, after(0, 60, 0)), (600, 400));
        // It worked all the time, and had half of it.
        assert_eq!(parts(before, after(0, 0, 50)), (500, 500));
        // Ticks are counted late.
        assert_eq!(parts(before, after(50, 40, 0)), (0, 600));
    }

    #[test]
    fn one_look_is_not_all() {
        assert_eq!(smoothed(0, 400), 200);
        assert_eq!(smoothed(1000, 1000), 1000);
        assert_eq!((0..12).fold(800, |said, _| smoothed(said, 0)), 0);
    }
}
