//! Threads of programs that give memory back when it is short (`atoll_shrink_wait` in `libatoll/include/atoll.h`): a program's caches are
//! asked before a process is ended, or when the cell is to have less, and choose themselves what they can do without.
//!
//! Who needs memory asks all of them at once that wait, of its class if it is about a class's limit, and waits until they have come back to
//! wait again or end, or memory is there, or time is up.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use atoll_abi::Result;
use atoll_abi::platform;
use atoll_mem::heap::memory;
use atoll_sync::{Mutex, WaitQueue};
use atoll_task::{Limit, wait};

use crate::budget;
use crate::process::{Process, Task};

/// How long they may take, ns. Who has not answered by then may still do so, but is not waited for.
const ANSWER_WAIT: u64 = 500_000_000;

/// The least that they are asked for, bytes: less is not worth a thread's waking up.
const LEAST: u64 = 1 << 20;

/// A question.
struct Round {
    number: u64,
    bytes: u64,
    /// Who was asked and has not come back.
    due: Vec<u32>,
}

struct All {
    round: Round,
    /// Who waits to be asked, by thread.
    waiting: Vec<(u32, Arc<Process>)>,
}

static ALL: Mutex<All> =
    Mutex::new(All { round: Round { number: 0, bytes: 0, due: Vec::new() }, waiting: Vec::new() });
static ASKED: WaitQueue = WaitQueue::new();
static ANSWERED: WaitQueue = WaitQueue::new();

/// Has anybody been asked who has not come back, perhaps?
static DUE: AtomicBool = AtomicBool::new(false);

/// The calling thread is done with what it was asked for, if it was, and waits to be asked for memory. Value: bytes, about. What it gave back
/// nobody needs to be told: it shows.
pub fn wait_to_be_asked(task: &Task) -> Result<u64> {
    let tid = task.tid();
    task.gives.store(false, Ordering::Relaxed);
    {
        let mut all = ALL.lock();
        all.round.due.retain(|due| *due != tid);
        all.waiting.push((tid, task.process.clone()));
    }
    ANSWERED.wake_all(1);
    let asked = wait(&ASKED, 1, Limit::Forever, || {
        let all = ALL.lock();
        all.round.due.contains(&tid).then_some(all.round.bytes)
    });
    let mut all = ALL.lock();
    all.waiting.retain(|(waiting, _)| *waiting != tid);
    // Asked just now, and interrupted: it doesn't answer.
    if asked.is_err() {
        all.round.due.retain(|due| *due != tid);
    }
    task.gives.store(asked.is_ok(), Ordering::Relaxed);
    asked
}

/// A thread ends. If it was asked, nobody waits for it any more. (Who was asked knows that somebody was.)
pub fn task_ends(task: &Task) {
    if !DUE.load(Ordering::Relaxed) {
        return;
    }
    {
        let mut all = ALL.lock();
        all.round.due.retain(|due| *due != task.tid());
        DUE.store(!all.round.due.is_empty(), Ordering::Relaxed);
    }
    ANSWERED.wake_all(1);
}

/// Asks for at least so many bytes, on behalf of a task or of the cell: threads of a class's processes, or with None all. They have
/// until this time at most. False: nothing has come of it.
pub fn ask(task: Option<&Task>, class: Option<u32>, bytes: u64, until: u64) -> bool {
    let is_asked = |process: &Process| class.is_none_or(|class| process.activity.class() == class);
    let used = memory().used();
    let (number, asked) = {
        let mut all = ALL.lock();
        // A shrinker that needs memory itself doesn't wait for itself.
        if task.is_some_and(|task| all.round.due.contains(&task.tid())) {
            return false;
        }
        let (due, asked): (Vec<u32>, Vec<Arc<Process>>) =
            all.waiting.iter().filter(|(_, p)| is_asked(p)).cloned().unzip();
        if due.is_empty() {
            return false;
        }
        let number = all.round.number + 1;
        all.round = Round { number, bytes: bytes.max(LEAST), due };
        DUE.store(true, Ordering::Relaxed);
        (number, asked)
    };
    ASKED.wake_all(1);
    let until = until.min(platform().now() + ANSWER_WAIT);
    let _ = wait(&ANSWERED, 1, Limit::Until(until), || {
        let all = ALL.lock();
        (all.round.number != number || all.round.due.is_empty()).then_some(())
    });
    let has_come = if class.is_some() { !budget::is_short_for_this() } else { memory().used() < used };
    // What one that ends gives back may still be to come.
    has_come || asked.iter().any(|process| process.is_ending())
}
