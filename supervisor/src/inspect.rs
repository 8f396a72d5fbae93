//! Looking at a live cell from outside, and changing how its grid divides it.
//!
//! A cell's supervisor answers by a socket of the [`registry`](crate::registry): one line of JSON with a [`Request`], one
//! with an [`Answer`]. Who asks is of the same user or root, and is not trusted more than that: lines are bounded, and
//! who says nothing is hung up on. Nothing here stops the cell, and nothing runs while nobody asks.
#![allow(unsafe_code, reason = "looks at the control area")]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use atoll_abi::control::{Control, CoreArea, Growth};
use atoll_abi::core_local::state as core_run;
use atoll_abi::grid::{BURNT_MAX, Burnt, CONFIG_MAX, GridArea, GridConfig};
use atoll_abi::layout::{BLOCK, Sizes};
use atoll_abi::report::{EVENTS_MAX, MemoryResized, Resized, Threads, Trace, what};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::books::{self, HostTime, Image, Snapshot};
use crate::cores::{Counts, Cpus, Found};
use crate::extents::Extents;
use crate::growth::{Elastic, ElasticUse};
use crate::launch::Sender;
use crate::memory;
use crate::remote::{NONSENSE, Remote};
use crate::{Error, Result, growth, neighbours, printable};

/// Longest request, bytes: an encoded configuration takes more as JSON.
const REQUEST_MAX: usize = 256 << 10;
/// Longest answer, bytes: all activities on all cores.
const ANSWER_MAX: usize = 512 << 20;
/// How long either side waits for the other's line.
const LINE_WAIT: Duration = Duration::from_secs(10);
/// How long the cell may take to look at a configuration.
const OFFER_WAIT: Duration = Duration::from_secs(5);
/// How long it may burn: many classes may share few cores, which have other things to do.
const BURN_WAIT: Duration = Duration::from_secs(9);
/// How long it may take to say something of its threads.
const REPORT_WAIT: Duration = Duration::from_secs(9);
/// How many bytes what it says may take: of all threads, a thread in some hundred; of an event of a trace; and of what has come of a wish.
/// As JSON, and in memory, it is ten times as much.
const THREADS_BYTES: u64 = 64 << 20;
const EVENT_BYTES: u64 = 20;
const OUTCOME_BYTES: u64 = 64 << 10;
/// The longest name, path and reason in that that is passed on, characters.
const NAME_LONGEST: usize = 64;
const PATH_LONGEST: usize = 4096;
const REASON_LONGEST: usize = 1024;
/// How long a change of its memory may take.
const WITHIN_LEAST: Duration = Duration::from_millis(100);
const WITHIN_MOST: Duration = Duration::from_secs(600);
/// How often is looked whether it has; and where it has to be asked.
const OFFER_LOOK: Duration = Duration::from_millis(2);
const OFFER_ASK: Duration = Duration::from_millis(20);

/// What is asked of a cell's supervisor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// What the cell is.
    Cell,
    /// Its books.
    Stat {
        /// By cores, too.
        #[serde(default)]
        cores: bool,
        /// And what the host says of the time that they have used.
        #[serde(default)]
        host: bool,
    },
    /// Its grid's configuration.
    Grid,
    /// Another one.
    GridSet {
        /// Which.
        config: GridConfig,
    },
    /// Known work, and whether it comes back.
    Burn {
        /// How many times as long as else threads are to work at once: 1 to 16.
        #[serde(default)]
        times: u32,
    },
    /// The threads of its programs.
    Threads,
    /// That a trace begins.
    Trace {
        /// How many events each core is to keep.
        events: u64,
    },
    /// That it ends.
    Traced,
    /// That the cell has so many cores from now on.
    Resize {
        /// How many.
        cores: u32,
    },
    /// That it has so much memory from now on.
    ResizeMemory {
        /// How much, bytes; the part of 2 MiB that is over counts for nothing.
        memory: u64,
        /// How long it may take, ms.
        within: u64,
        /// Then it is taken away whatever the cell says.
        #[serde(default)]
        force: bool,
    },
}

/// What it says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Why there is no answer.
    Error(String),
    /// What the cell is.
    Cell(About),
    /// The books.
    Snapshot(Snapshot),
    /// The configuration that the cell runs with.
    Grid(GridConfig),
    /// The configuration was taken (null), or why it was not.
    Set(Option<String>),
    /// What has come of burns.
    Burnt(Burnt),
    /// The threads.
    Threads(Threads),
    /// The trace has begun.
    Tracing,
    /// What has come of it.
    Trace(Trace),
    /// The cell has so many cores now.
    Resized(Resized),
    /// It has so much memory.
    MemoryResized(Memory),
}

/// What has come of a wish for more memory or less.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Memory {
    /// Bytes that the cell has now.
    pub memory: u64,
    /// Bytes that it had to move.
    pub moved: u64,
    /// How long it took, ns.
    pub ns: u64,
    /// Why some was taken that the cell had not let go of: what it had there is lost.
    pub taken: Option<String>,
}

/// What a cell is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct About {
    /// Its name in the registry.
    pub name: String,
    /// Process id of its supervisor, `atoll run`.
    pub pid: u32,
    /// What was run.
    pub program: String,
    /// Cores.
    pub cores: u32,
    /// The most that it can have.
    pub max_cores: u32,
    /// Memory, bytes.
    pub memory: u64,
    /// The most that it can have, bytes.
    pub max_memory: u64,
    /// How much of that the host has given.
    pub memory_used: u64,
    /// What it has taken by itself, if it may.
    #[serde(default)]
    pub elastic: Option<ElasticUse>,
    /// Seconds since 1970 at which it was started.
    pub since: u64,
}

/// What of a cell can be seen.
enum Seen {
    /// What it shares with this process.
    Here(Here),
    /// What it says when it is asked, and how many bytes of memory it has.
    Elsewhere(Arc<Remote>, u64),
}

/// What a cell says when it is asked for a report.
trait Report: DeserializeOwned {
    /// Makes its texts such that do nothing to a terminal, and are no longer than they have to be.
    fn clean(&mut self);
}

/// See [`Report::clean`].
fn clean(text: &mut String, most: usize) {
    if text.len() > most || text.chars().any(char::is_control) {
        *text = printable(text.as_bytes()).chars().take(most).collect();
    }
}

impl Report for Threads {
    fn clean(&mut self) {
        for thread in &mut self.threads {
            clean(&mut thread.name, NAME_LONGEST);
            clean(&mut thread.program, PATH_LONGEST);
            clean(&mut thread.activity_name, NAME_LONGEST);
        }
    }
}

impl Report for Trace {
    fn clean(&mut self) {
        for thread in &mut self.threads {
            clean(&mut thread.name, NAME_LONGEST);
            clean(&mut thread.program, PATH_LONGEST);
        }
    }
}

/// That a trace has begun.
impl Report for u8 {
    fn clean(&mut self) {}
}

impl Report for std::result::Result<Resized, String> {
    fn clean(&mut self) {
        if let Err(why) = self {
            clean(why, REASON_LONGEST);
        }
    }
}

impl Report for std::result::Result<MemoryResized, String> {
    fn clean(&mut self) {
        let why = match self {
            Ok(done) => done.why.as_mut(),
            Err(why) => Some(why),
        };
        if let Some(why) = why {
            clean(why, REASON_LONGEST);
        }
    }
}

/// What this process shares with a cell.
pub(crate) struct Here {
    pub extents: Arc<Extents>,
    pub sender: Sender,
    /// The host's id of its first process.
    pub first: i32,
    pub elastic: Option<Elastic>,
    /// The host's processors of its cores.
    pub cpus: Cpus,
}

impl Here {
    fn control(&self) -> &Control {
        self.extents.control()
    }
}

/// A live cell, for those who look at it.
pub struct Live {
    seen: Seen,
    cores: usize,
    program: String,
    since: u64,
    offers: Mutex<Offers>,
    /// One at a time.
    burning: Mutex<()>,
    reporting: Mutex<()>,
    /// The most events that each core was to keep of a trace.
    traced: AtomicU64,
    resizing: Mutex<()>,
    changing_cores: Mutex<()>,
}

/// Configurations, the one that the cell runs with and the one that it was offered.
struct Offers {
    running: GridConfig,
    /// The last offer's number.
    number: u32,
    /// It, while the cell has not answered.
    pending: Option<GridConfig>,
    /// What the cell answered: a number, and why it did not take it.
    answered: (u32, Option<String>),
}

impl Offers {
    /// Looks whether the cell has answered.
    fn settle(&mut self, area: &GridArea) {
        if self.pending.is_none() || area.answered.load(Ordering::Acquire) != self.number {
            return;
        }
        let Some(config) = self.pending.take() else { return };
        let refused = (area.taken.load(Ordering::Relaxed) != 1).then(|| books::text(&area.reason));
        if refused.is_none() {
            self.running = config;
        }
        self.answered = (self.number, refused);
    }

    /// Offers a configuration. Nobody else's may be pending.
    fn offer(&mut self, area: &GridArea, config: GridConfig, encoded: &[u8]) -> u32 {
        for (to, from) in area.config.iter().zip(encoded) {
            to.store(*from, Ordering::Relaxed);
        }
        area.config_len.store(encoded.len() as u32, Ordering::Relaxed);
        self.number = self.number.wrapping_add(1);
        self.pending = Some(config);
        // All of it is there for whoever sees the number.
        area.offered.store(self.number, Ordering::SeqCst);
        self.number
    }
}

fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

impl Live {
    /// One that begins now.
    pub(crate) fn new(here: Here, cores: usize, program: String, grid: GridConfig) -> Live {
        Self::with(Seen::Here(here), cores, program, grid)
    }

    /// One on a machine of its own, with so many bytes of memory.
    pub fn elsewhere(
        remote: Arc<Remote>,
        memory: u64,
        cores: usize,
        program: String,
        grid: GridConfig,
    ) -> Live {
        Self::with(Seen::Elsewhere(remote, memory), cores, program, grid)
    }

    fn with(seen: Seen, cores: usize, program: String, grid: GridConfig) -> Live {
        let offers = Offers { running: grid, number: 0, pending: None, answered: (0, None) };
        Live {
            seen,
            cores,
            program,
            since: unix_time().as_secs(),
            offers: Mutex::new(offers),
            burning: Mutex::new(()),
            reporting: Mutex::new(()),
            traced: AtomicU64::new(0),
            resizing: Mutex::new(()),
            changing_cores: Mutex::new(()),
        }
    }

    /// What was run.
    pub fn program(&self) -> &str {
        &self.program
    }

    fn offers(&self) -> MutexGuard<'_, Offers> {
        let mut offers = self.offers.lock().unwrap_or_else(PoisonError::into_inner);
        offers.settle(self.area());
        offers
    }

    /// Where the cell is offered configurations and asked for known work, and answers.
    fn area(&self) -> &GridArea {
        match &self.seen {
            Seen::Here(here) => &here.control().grid,
            Seen::Elsewhere(remote, _) => remote.grid(),
        }
    }

    /// Has the cell look there.
    fn ring(&self) {
        match &self.seen {
            Seen::Here(here) => here.sender.ring(),
            Seen::Elsewhere(remote, _) => remote.ring(),
        }
    }

    /// Waits a moment for what the cell answers.
    fn wait_a_moment(&self) -> Result<()> {
        if self.is_over() {
            return Err(Error::new("the cell has ended"));
        }
        match &self.seen {
            Seen::Here(_) => std::thread::sleep(OFFER_LOOK),
            Seen::Elsewhere(..) => std::thread::sleep(OFFER_ASK),
        }
        Ok(())
    }

    /// Has what the cell has answered in its [area](Live::area) by now.
    fn look(&self) -> Result<()> {
        match &self.seen {
            Seen::Here(_) => Ok(()),
            Seen::Elsewhere(remote, _) => remote.look(),
        }
    }

    /// Its memory, and how much of that the host has given, bytes.
    fn memory(&self) -> (Sizes, u64) {
        match &self.seen {
            Seen::Here(here) => (here.extents.sizes(), here.extents.used()),
            Seen::Elsewhere(_, memory) => (Sizes::fixed(*memory), *memory),
        }
    }

    /// If it takes memory by itself: that, and where it asks.
    pub(crate) fn elastic(&self) -> Option<(&Elastic, &Growth)> {
        match &self.seen {
            Seen::Here(here) => here.elastic.as_ref().map(|elastic| (elastic, &here.control().growth)),
            Seen::Elsewhere(..) => None,
        }
    }

    /// Grants as many bytes more as `more` says, which is told how many there are. How many there are then. An error if that
    /// is being changed otherwise.
    pub(crate) fn grant(&self, more: impl FnOnce(Sizes) -> u64) -> Result<u64> {
        let Seen::Here(here) = &self.seen else { return Err(Error::new("it is not here")) };
        let Ok(_one) = self.resizing.try_lock() else {
            return Err(Error::new("its memory is being changed"));
        };
        let sizes = here.extents.sizes();
        let to = sizes.now + more(sizes);
        here.extents.set(to)?;
        Ok(to)
    }

    /// Has it give memory back until it has so many bytes.
    pub(crate) fn give_back(&self, to: u64, within: Duration) -> Result<()> {
        self.resize_memory(to, within, false).map(|_| ())
    }

    /// How many bytes it has.
    pub(crate) fn memory_sizes(&self) -> Sizes {
        self.memory().0
    }

    /// How many of its bytes are in use, as it says.
    pub(crate) fn memory_held(&self) -> Option<u64> {
        match &self.seen {
            Seen::Here(here) => books::held_by_all(&here.control().grid, &here.extents.memory, self.cores),
            Seen::Elsewhere(..) => None,
        }
    }

    /// If it takes cores by itself: what it has done of that.
    pub(crate) fn elastic_cores(&self) -> Option<&Counts> {
        self.elastic().map(|(elastic, _)| &elastic.cores)
    }

    /// The most cores that it can have.
    pub(crate) fn most_cores(&self) -> usize {
        self.cores
    }

    /// Gives it so many cores if it has `from`, and at least as many as it has in any case. Was that done?
    pub(crate) fn change_cores(&self, from: u32, to: u32) -> bool {
        let _one = self.changing_cores.lock().unwrap_or_else(PoisonError::into_inner);
        let base = self.elastic_cores().map_or(0, |counts| counts.usage().base);
        self.online() == from && to >= base && self.resize(to).is_ok()
    }

    /// What its cores do now, as they say.
    pub(crate) fn look_at_cores(&self) -> Option<Found> {
        let Seen::Here(here) = &self.seen else { return None };
        let online = self.online() as usize;
        let cores = &here.control().cores[..online];
        let works = |c: &&CoreArea| c.local.state.load(Ordering::Relaxed) == core_run::RUNNING;
        Some(Found {
            online,
            working: cores.iter().filter(works).count(),
            is_waited: cores.iter().any(|c| c.waiting.load(Ordering::Relaxed) != 0),
        })
    }

    /// Its cores' areas, and the processors that they are pinned to.
    pub(crate) fn pinned_cores(&self) -> Option<(&[CoreArea], &[usize])> {
        match &self.seen {
            Seen::Here(here @ Here { cpus: Cpus::Pinned(cpus), .. }) => {
                Some((&here.control().cores[..self.cores], cpus))
            }
            _ => None,
        }
    }

    /// Where its cores run.
    pub(crate) fn cpus(&self) -> Option<&Cpus> {
        match &self.seen {
            Seen::Here(here) => Some(&here.cpus),
            Seen::Elsewhere(..) => None,
        }
    }

    /// Tells its cores from now on what others use of their processors.
    pub fn look_at_neighbours(self: &Arc<Self>) {
        if self.cores > 1 && self.pinned_cores().is_some() {
            neighbours::start(self.clone());
        }
    }

    /// Has it ended?
    pub(crate) fn is_over(&self) -> bool {
        match &self.seen {
            Seen::Here(here) => here.control().life.ended.load(Ordering::Relaxed) != 0,
            Seen::Elsewhere(..) => false,
        }
    }

    /// Has it take memory by itself, from now on, if it may.
    pub fn grow(self: &Arc<Self>) {
        if self.elastic().is_some() {
            growth::start(self.clone());
        }
    }

    /// Answers.
    pub fn answer(&self, name: &str, request: Request) -> Answer {
        match request {
            Request::Cell => Answer::Cell(About {
                name: name.into(),
                pid: std::process::id(),
                program: self.program.clone(),
                cores: self.online(),
                max_cores: self.cores as u32,
                memory: self.memory().0.now,
                max_memory: self.memory().0.most,
                memory_used: self.memory().1,
                elastic: self.elastic().map(|(elastic, _)| elastic.usage()),
                since: self.since,
            }),
            Request::Stat { cores, host } => said(self.snapshot(name, cores, host), Answer::Snapshot),
            Request::Grid => Answer::Grid(self.offers().running.clone()),
            Request::GridSet { config } => said(self.set(config), Answer::Set),
            Request::Burn { times } => said(self.burn(times), Answer::Burnt),
            Request::Threads => said(self.report(what::THREADS, 0), Answer::Threads),
            Request::Trace { events } => {
                // One with more, which was begun before, may go on if this one can't begin.
                self.traced.fetch_max(events.min(EVENTS_MAX), Ordering::Relaxed);
                said(self.report::<u8>(what::TRACE, events), |_| Answer::Tracing)
            }
            Request::Traced => said(self.report(what::TRACED, 0), Answer::Trace),
            Request::Resize { cores } => {
                let _one = self.changing_cores.lock().unwrap_or_else(PoisonError::into_inner);
                let done = self.resize(cores);
                if let (Ok(_), Some(counts)) = (&done, self.elastic_cores()) {
                    counts.set_base(cores);
                }
                said(done, Answer::Resized)
            }
            Request::ResizeMemory { memory, within, force } => {
                let within = Duration::from_millis(within).clamp(WITHIN_LEAST, WITHIN_MOST);
                let done = self.resize_memory(memory / BLOCK * BLOCK, within, force);
                if let (Ok(done), Some((elastic, _))) = (&done, self.elastic()) {
                    elastic.set_base(done.memory);
                }
                said(done, Answer::MemoryResized)
            }
        }
    }

    /// How many cores it uses.
    pub(crate) fn online(&self) -> u32 {
        let said = match &self.seen {
            Seen::Here(here) => here.control().life.online.load(Ordering::Relaxed),
            Seen::Elsewhere(remote, _) => remote.online().unwrap_or(0),
        };
        // It has not begun, or says what can't be.
        if said == 0 || said > self.cores as u32 { self.cores as u32 } else { said }
    }

    /// Gives it so many cores.
    fn resize(&self, cores: u32) -> Result<Resized> {
        let most = self.cores as u32;
        if !(1..=most).contains(&cores) {
            let start = "how many that is at most is said when it is started: atoll run --max-cores";
            return Err(Error::new(format!("the cell can have 1 to {most} cores, not {cores}: {start}")));
        }
        let outcome: std::result::Result<Resized, String> = self.report(what::CORES, u64::from(cores))?;
        outcome.map_err(Error::new)
    }

    /// Gives it so much memory: more at once if the host has it, or less when it has let go of it, or `within` is over.
    fn resize_memory(&self, bytes: u64, within: Duration, force: bool) -> Result<Memory> {
        let Seen::Here(here) = &self.seen else {
            return Err(Error::new(
                "a cell on the nucleus has the memory that it began with: that can't be changed yet",
            ));
        };
        let _one = self.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        let (begun, Sizes { most, now, least }) = (Instant::now(), here.extents.sizes());
        if bytes < least || bytes > most {
            return Err(Error::new(format!(
                "the cell can have {} to {} of memory, not {}: how much at most is said when it is started: atoll run --max-memory",
                mib(least),
                mib(most),
                mib(bytes)
            )));
        }
        let ask = || -> Result<std::result::Result<MemoryResized, String>> {
            // It is to answer before nobody waits any more.
            let (wait, its_own) = (within, within - within / 8);
            self.report_within(what::MEMORY, bytes, its_own, wait)
        };
        let done = |moved, taken| Memory {
            memory: here.extents.sizes().now,
            moved,
            ns: begun.elapsed().as_nanos() as u64,
            taken,
        };
        if bytes >= now {
            let left = memory::headroom();
            if bytes - now > left {
                let more = mib(bytes - now);
                return Err(Error::new(format!(
                    "{more} more is wanted, and the host has {} left",
                    mib(left)
                )));
            }
            here.extents.set(bytes)?;
            ask()?.map_err(Error::new)?;
            return Ok(done(0, None));
        }
        // What has it let go of, and why not of all?
        let (end, moved, why) = match ask() {
            Ok(Ok(said)) if (bytes..=now).contains(&said.memory) => {
                (said.memory.next_multiple_of(BLOCK).min(now), said.moved, said.why)
            }
            Ok(Ok(_)) => (now, 0, Some("what it says of it is nonsense".into())),
            Ok(Err(why)) => (now, 0, Some(why)),
            Err(_) if self.is_over() => {
                return Err(Error::new("the cell has ended"));
            }
            // That is no answer.
            Err(why) => (bytes, 0, Some(why.to_string())),
        };
        let end = if force { bytes } else { end };
        here.extents.set(end)?;
        match why {
            Some(why) if end > bytes => Err(Error::new(format!(
                "the cell has given back {} of {}, and has {} now: {why}",
                mib(now - end),
                mib(now - bytes),
                mib(end)
            ))),
            taken => Ok(done(moved, taken)),
        }
    }

    /// Waits until the cell is done, for `limit` at most. `what` it was to have done is said if it has not.
    fn wait_until(
        &self,
        mut is_done: impl FnMut() -> Result<bool>,
        limit: Duration,
        what: &str,
    ) -> Result<()> {
        let begun = Instant::now();
        while !is_done()? {
            if begun.elapsed() > limit {
                return Err(Error::new(format!("the cell has not {what} within {} s", limit.as_secs())));
            }
            self.wait_a_moment()?;
        }
        Ok(())
    }

    /// How many bytes this report may take, encoded.
    fn report_most(&self, what: u32) -> u64 {
        match what {
            what::THREADS => THREADS_BYTES,
            // The threads are in it, too.
            what::TRACED => {
                THREADS_BYTES + self.cores as u64 * self.traced.load(Ordering::Relaxed) * EVENT_BYTES
            }
            _ => OUTCOME_BYTES,
        }
    }

    /// Asks the cell for a report.
    fn report<T: Report>(&self, what: u32, value: u64) -> Result<T> {
        self.report_within(what, value, REPORT_WAIT, REPORT_WAIT)
    }

    /// The same, and says within what time it is to be made, which is waited for for `wait`.
    fn report_within<T: Report>(&self, what: u32, value: u64, within: Duration, wait: Duration) -> Result<T> {
        let _one = self.reporting.lock().unwrap_or_else(PoisonError::into_inner);
        let area = match &self.seen {
            Seen::Here(here) => &here.control().report,
            Seen::Elsewhere(remote, _) => remote.report(),
        };
        let number = area.asked.load(Ordering::Relaxed).wrapping_add(1);
        area.what.store(what, Ordering::Relaxed);
        area.value.store(value, Ordering::Relaxed);
        area.within.store(within.as_nanos() as u64, Ordering::Relaxed);
        area.asked.store(number, Ordering::SeqCst);
        self.ring();
        let (nonsense, most) = (|| Error::new(NONSENSE), self.report_most(what));
        let until = Instant::now() + wait;
        let mut bytes = Vec::new();
        let over = || match &self.seen {
            Seen::Here(_) => Ok(area.over.load(Ordering::Acquire) == number),
            Seen::Elsewhere(remote, _) => {
                let said = remote.reported(most, until)?;
                Ok(said.map(|said| bytes = said).is_some())
            }
        };
        self.wait_until(over, wait, "said what it was asked for")?;
        if let Seen::Here(here) = &self.seen {
            let (offset, len) = (area.offset.load(Ordering::Relaxed), area.len.load(Ordering::Relaxed));
            let at = here.extents.memory.range(offset, len).filter(|_| len <= most).ok_or_else(nonsense)?;
            // Copied before it is looked at: the cell may write to it meanwhile.
            bytes.resize(len as usize, 0);
            // SAFETY: so many bytes of the cell's memory are mapped; whatever is there is bytes.
            unsafe { at.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        }
        if bytes.is_empty() {
            return Err(Error::new("the cell had no memory to say what it was asked for"));
        }
        let mut said: T = postcard::from_bytes(&bytes).map_err(|_| nonsense())?;
        said.clean();
        Ok(said)
    }

    /// Has the cell do known work, and waits until it says what has come of it.
    fn burn(&self, times: u32) -> Result<Burnt> {
        let _one = self.burning.lock().unwrap_or_else(PoisonError::into_inner);
        let area = self.area();
        let number = area.burns_asked.load(Ordering::Relaxed).wrapping_add(1);
        area.burns_times.store(times, Ordering::Relaxed);
        area.burns_asked.store(number, Ordering::SeqCst);
        self.ring();
        let over = || self.look().map(|()| area.burns_over.load(Ordering::Acquire) == number);
        self.wait_until(over, BURN_WAIT, "done its known work")?;
        let len = (area.burnt_len.load(Ordering::Relaxed) as usize).min(BURNT_MAX);
        let bytes: Vec<u8> = area.burnt[..len].iter().map(|b| b.load(Ordering::Relaxed)).collect();
        if bytes.is_empty() {
            return Err(Error::new("the cell had no memory to do its known work"));
        }
        postcard::from_bytes(&bytes)
            .map_err(|e| Error::with("what the cell says of its known work is nonsense", e))
    }

    fn snapshot(&self, name: &str, each: bool, host: bool) -> Result<Snapshot> {
        let (image, host) = match &self.seen {
            Seen::Here(here) => {
                let area = &here.control().grid;
                let host = host.then(|| books::time_of_children(here.first));
                let locals: Vec<_> = here.control().cores[..self.cores].iter().map(|c| &c.local).collect();
                let (activities, unread, clock) = books::read(area, &locals, &here.extents.memory);
                let opened = area.opened.load(Ordering::Relaxed).min(clock);
                let (cores, (counts, uncounted)) = (self.cores as u32, books::counts(area));
                (Image { activities, unread, clock, cores, opened, counts, uncounted, awake: 0 }, host)
            }
            Seen::Elsewhere(remote, _) => {
                let said = remote.books().ok_or_else(|| Error::new("the cell says nothing of its books"))?;
                let image = books::read_image(&said);
                let image = image.ok_or_else(|| Error::new("what the cell says of its books is nonsense"))?;
                let awake = host.then_some(HostTime { ns: image.awake, processes: 0 });
                (image, awake)
            }
        };
        let Image { mut activities, unread, clock, cores, opened, counts, uncounted, .. } = image;
        if !each {
            activities.iter_mut().for_each(|a| a.cores.clear());
        }
        Ok(Snapshot {
            cell: name.into(),
            pid: std::process::id(),
            cores,
            time: unix_time().as_nanos() as u64,
            clock,
            opened,
            activities,
            counts: counts.map(|c| c.to_string()),
            uncounted,
            unread,
            host,
        })
    }

    /// Offers a configuration and waits for the cell: `None` if it took it, or why it did not.
    fn set(&self, config: GridConfig) -> Result<Option<String>> {
        let encoded =
            postcard::to_stdvec(&config).map_err(|e| Error::with("encoding the configuration", e))?;
        if encoded.len() > CONFIG_MAX {
            return Err(Error::new(format!(
                "the configuration takes {} bytes, and {CONFIG_MAX} is the most",
                encoded.len()
            )));
        }
        let begun = Instant::now();
        let area = self.area();
        let (mut config, mut mine) = (Some(config), None);
        loop {
            let mut offers = self.offers();
            if let Some(number) = mine {
                if offers.answered.0 == number {
                    return Ok(offers.answered.1.clone());
                }
            } else if offers.pending.is_none()
                && let Some(config) = config.take()
            {
                mine = Some(offers.offer(area, config, &encoded));
                drop(offers);
                self.ring();
                continue;
            }
            drop(offers);
            if begun.elapsed() > OFFER_WAIT {
                let what = if mine.is_some() { "this configuration" } else { "the one offered before" };
                let seconds = OFFER_WAIT.as_secs();
                return Err(Error::new(format!(
                    "the cell has not looked at {what} within {seconds} s: it goes on as it is until it does"
                )));
            }
            self.wait_a_moment()?;
            self.look()?;
        }
    }

    /// Serves who has connected.
    pub(crate) fn serve(&self, name: &str, mut stream: UnixStream) {
        let answer = match read_line(&mut stream, REQUEST_MAX, LINE_WAIT) {
            Ok(None) => return,
            Ok(Some(line)) => match serde_json::from_slice(&line) {
                Ok(request) => self.answer(name, request),
                Err(e) => Answer::Error(format!("this request can't be understood: {e}")),
            },
            Err(e) => Answer::Error(e.to_string()),
        };
        // Nobody is left to tell if they have gone.
        let _ = write_line(&mut stream, &answer);
    }
}

/// A number of bytes, in words.
pub(crate) fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

/// An answer, or why there is none.
fn said<T>(result: Result<T>, answer: impl FnOnce(T) -> Answer) -> Answer {
    result.map_or_else(|e| Answer::Error(e.to_string()), answer)
}

/// Reads a line of at most `most` bytes; none if the other side has hung up before the first.
fn read_line(stream: &mut UnixStream, most: usize, wait: Duration) -> Result<Option<Vec<u8>>> {
    let until = Instant::now() + wait;
    let (mut line, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::new("no line came in time: is the other side stopped?"));
        }
        stream.set_read_timeout(Some(left)).map_err(|e| Error::with("waiting for a line", e))?;
        match stream.read(&mut chunk) {
            Ok(0) if line.is_empty() => return Ok(None),
            Ok(0) => return Err(Error::new("the line has no end")),
            Ok(n) => line.extend_from_slice(&chunk[..n]),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(Error::with("reading a line", e)),
        }
        if line.len() > most {
            return Err(Error::new(format!("a line has at most {most} bytes here")));
        }
        if line.last() == Some(&b'\n') {
            return Ok(Some(line));
        }
    }
}

fn write_line(stream: &mut UnixStream, what: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(what).map_err(|e| Error::with("writing JSON", e))?;
    line.push(b'\n');
    stream.set_write_timeout(Some(LINE_WAIT)).map_err(|e| Error::with("setting a time limit", e))?;
    stream.write_all(&line).map_err(|e| Error::with("writing to the socket", e))
}

/// Asks a cell's supervisor; `None` if it is gone.
pub fn ask(socket: &Path, request: &Request) -> Result<Option<Answer>> {
    let takes = match request {
        Request::ResizeMemory { within, .. } => Duration::from_millis(*within),
        _ => Duration::ZERO,
    };
    ask_within(socket, request, takes + LINE_WAIT)
}

/// The same, and says how long to wait for the answer.
pub fn ask_within(socket: &Path, request: &Request, wait: Duration) -> Result<Option<Answer>> {
    let Ok(mut stream) = UnixStream::connect(socket) else { return Ok(None) };
    write_line(&mut stream, request)?;
    let Some(line) = read_line(&mut stream, ANSWER_MAX, wait)? else { return Ok(None) };
    match serde_json::from_slice(&line).map_err(|e| Error::with("understanding the answer", e))? {
        Answer::Error(why) => Err(Error::new(why)),
        answer => Ok(Some(answer)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Mapping, anonymous};
    use atoll_abi::report::{Holdings, ThreadInfo, ThreadState, TracedThread};

    fn area(mapping: &Mapping) -> &GridArea {
        // SAFETY: large enough, aligned, zeroed and shared: made of atomics.
        unsafe { &*mapping.base().cast::<GridArea>() }
    }

    /// OK-09: what runs is what the cell took, also if it took it late; a reason does nothing to a terminal.
    #[test]
    fn remembers_what_the_cell_took() {
        let size = (size_of::<GridArea>() as u64).next_multiple_of(4096);
        let mapping = Mapping::new(&anonymous("test", size).unwrap(), size).unwrap();
        let area = area(&mapping);
        let config = |sample| GridConfig { sample, ..GridConfig::default() };
        let mut offers = Offers { running: config(1), number: 0, pending: None, answered: (0, None) };
        let say = |number, taken, reason: &str| {
            for (to, from) in area.reason.iter().zip(reason.bytes().chain([0])) {
                to.store(from, Ordering::Relaxed);
            }
            area.taken.store(taken, Ordering::Relaxed);
            area.answered.store(number, Ordering::Release);
        };
        let encoded = postcard::to_stdvec(&config(2)).unwrap();
        let number = offers.offer(area, config(2), &encoded);
        let len = area.config_len.load(Ordering::Relaxed) as usize;
        let there: Vec<u8> = area.config[..len].iter().map(|b| b.load(Ordering::Relaxed)).collect();
        assert_eq!(postcard::from_bytes(&there), Ok(config(2)));
        offers.settle(area);
        assert_eq!((offers.running.sample, offers.pending.is_some()), (1, true));
        // Another number is no answer to this one.
        say(number + 1, 1, "");
        offers.settle(area);
        assert!(offers.pending.is_some());
        say(number, 7, "no such\x1b[2J core");
        offers.settle(area);
        assert_eq!(offers.answered, (number, Some("no such?[2J core".into())));
        assert_eq!(offers.running.sample, 1);
        let number = offers.offer(area, config(3), &encoded);
        say(number, 1, "");
        offers.settle(area);
        assert_eq!((offers.running.sample, offers.answered.clone()), (3, (number, None)));
        // Said again, it changes nothing.
        say(number, 0, "no");
        offers.settle(area);
        assert_eq!(offers.running.sample, 3);
    }

    /// Names of threads, and reasons, do nothing to a terminal, and are no longer than they have to be.
    #[test]
    fn what_a_cell_says_is_cleaned() {
        let bad = || "\x1b]0;x\x07\u{9b}1m".to_string() + &"é".repeat(10_000);
        let shown = |most: usize| "?]0;x??1m".to_string() + &"é".repeat(most - 9);
        let thread = ThreadInfo {
            pid: 1,
            parent: 0,
            tid: 1,
            name: bad(),
            program: bad(),
            state: ThreadState::Running,
            call: None,
            arguments: [0; 3],
            core: 0,
            activity: 0,
            activity_name: bad(),
            policy: 0,
            priority: 0,
            nice: 0,
            run_ns: 0,
            wait_ns: 0,
            switches: [0; 2],
            holds: Holdings::default(),
        };
        let mut threads = Threads { threads: vec![thread], ..Threads::default() };
        threads.clean();
        let ThreadInfo { name, program, activity_name, .. } = &threads.threads[0];
        assert_eq!([name, activity_name], [&shown(NAME_LONGEST); 2]);
        assert_eq!(program, &shown(PATH_LONGEST));
        let thread = TracedThread { pid: 1, tid: 1, name: bad(), program: "/bin/é".into() };
        let mut trace = Trace { threads: vec![thread], ..Trace::default() };
        trace.clean();
        let TracedThread { name, program, .. } = &trace.threads[0];
        assert_eq!((&name[..], &program[..]), (&shown(NAME_LONGEST)[..], "/bin/é"));
        let reason = shown(REASON_LONGEST);
        let mut refused: std::result::Result<Resized, String> = Err(bad());
        refused.clean();
        assert_eq!(refused, Err(reason.clone()));
        let mut refused: std::result::Result<MemoryResized, String> = Err(bad());
        refused.clean();
        assert_eq!(refused, Err(reason.clone()));
        let mut partly: std::result::Result<MemoryResized, String> =
            Ok(MemoryResized { memory: 0, moved: 0, ns: 0, why: Some(bad()) });
        partly.clean();
        assert_eq!(partly.unwrap().why, Some(reason));
    }

    #[test]
    fn lines_have_an_end_and_a_length() {
        let line = |said: &[u8], most| {
            let (mut us, mut them) = UnixStream::pair().unwrap();
            them.write_all(said).unwrap();
            drop(them);
            read_line(&mut us, most, LINE_WAIT).map_err(|e| e.to_string())
        };
        assert_eq!(line(b"", 10), Ok(None));
        assert_eq!(line(b"{}\n", 10), Ok(Some(b"{}\n".to_vec())));
        assert_eq!(line(b"{}", 10), Err("the line has no end".into()));
        assert_eq!(line(&[b' '; 5000], 100), Err("a line has at most 100 bytes here".into()));
    }

    #[test]
    fn requests_are_what_the_specification_says() {
        let parse = |text: &str| serde_json::from_str::<Request>(text);
        assert_eq!(parse(r#"{"request":"cell"}"#).unwrap(), Request::Cell);
        let stat = Request::Stat { cores: true, host: false };
        assert_eq!(parse(r#"{"request":"stat","cores":true}"#).unwrap(), stat);
        assert_eq!(parse(r#"{"request":"grid"}"#).unwrap(), Request::Grid);
        assert_eq!(parse(r#"{"request":"burn"}"#).unwrap(), Request::Burn { times: 0 });
        for bad in ["", "{}", r#"{"request":"kill"}"#, r#"{"request":"stat","core":true}"#] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let all = GridConfig { sample: 3, ..GridConfig::default() };
        let set = Request::GridSet { config: all };
        assert_eq!(parse(&serde_json::to_string(&set).unwrap()).unwrap(), set);
    }
}
