//! Semaphores (`semget(2)`, `semop(2)`, `semctl(2)`).
//!
//! A task whose operations can't be done now leaves them with the set and sleeps. Who changes a value does what has become
//! possible for those who sleep, in the order in which they came, as Linux does it: nobody else sees a value that was theirs.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Write;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use atoll_abi::{Errno, Result, platform};
use atoll_mem::user;
use atoll_sync::Mutex;
use atoll_task::Limit;
use zerocopy::IntoBytes;

use super::{
    ALTER, Found, IPC_INFO, IPC_NOWAIT, IPC_RMID, IPC_SET, IPC_STAT, Perm, READ, Sleeper, Table,
    found_to_tell, get, now,
};
use crate::process::Process;
use crate::syscalls::Call;
use crate::types::{Sembuf, SemidDs, Seminfo, Timespec, put};

const GETPID: u32 = 11;
const GETVAL: u32 = 12;
const GETALL: u32 = 13;
const GETNCNT: u32 = 14;
const GETZCNT: u32 = 15;
const SETVAL: u32 = 16;
const SETALL: u32 = 17;
const SEM_STAT: u32 = 18;
const SEM_INFO: u32 = 19;
const SEM_STAT_ANY: u32 = 20;
const SEM_UNDO: u32 = 0o10000;

/// Most sets (SEMMNI).
pub const SETS_MAX: usize = 32000;
/// Most semaphores in a set (SEMMSL).
pub const SET_MAX: usize = 32000;
/// Most semaphores in all sets (SEMMNS).
pub const SEMAPHORES_MAX: i32 = 1_024_000_000;
/// Most operations of a call (SEMOPM).
pub const OPERATIONS_MAX: usize = 500;
/// Highest value, and what is undone of one at most (SEMVMX).
const VALUE_MAX: i32 = 32767;

/// A set of semaphores.
struct Set {
    state: Mutex<State>,
}

struct State {
    perm: Perm,
    /// It is in the table no more, and there only for those who had found it.
    removed: bool,
    otime: i64,
    ctime: i64,
    semaphores: Vec<Semaphore>,
    /// What is added to each semaphore when a process ends.
    undo: BTreeMap<u32, Vec<i16>>,
    /// Those who sleep, in the order in which they came.
    waiting: Vec<Arc<Waiting>>,
}

#[derive(Clone, Copy, Default)]
struct Semaphore {
    value: i32,
    /// Who changed it last, or tried it for zero.
    pid: u32,
}

/// Operations that can't be done yet.
struct Waiting {
    operations: Vec<Sembuf>,
    /// The one that they wait for. For who has the state.
    blocked: AtomicUsize,
    /// They are done, or can't be: to be taken out. For who has the state.
    served: AtomicBool,
    pid: u32,
    sleeper: Sleeper<()>,
}

static SETS: Mutex<Table<Set>> = Mutex::new(Table::new());

impl Sembuf {
    fn has(&self, flag: u32) -> bool {
        self.flags as u16 as u32 & flag != 0
    }
}

fn alters(operations: &[Sembuf]) -> bool {
    operations.iter().any(|o| o.op != 0)
}

/// What came of operations.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Done,
    /// This one has to wait.
    Blocked(usize),
}

impl State {
    /// Does all of the operations for a process, or nothing. ERANGE: a value or what is to be undone gets too large.
    fn perform(&mut self, operations: &[Sembuf], pid: u32) -> Result<Outcome> {
        let mut undo = operations.iter().any(|o| o.has(SEM_UNDO)).then(|| {
            let own = self.undo.remove(&pid);
            own.unwrap_or_else(|| alloc::vec![0; self.semaphores.len()])
        });
        let mut outcome = Ok(Outcome::Done);
        let mut done = 0;
        for o in operations {
            let semaphore = &mut self.semaphores[usize::from(o.num)];
            let value = semaphore.value + i32::from(o.op);
            if o.op == 0 && value != 0 || value < 0 {
                outcome = Ok(Outcome::Blocked(done));
                break;
            }
            if value > VALUE_MAX {
                outcome = Err(Errno::ERANGE);
                break;
            }
            if let Some(own) = undo.as_mut().filter(|_| o.has(SEM_UNDO)) {
                let place = &mut own[usize::from(o.num)];
                let Ok(sum) = i16::try_from(i32::from(*place) - i32::from(o.op)) else {
                    outcome = Err(Errno::ERANGE);
                    break;
                };
                *place = sum;
            }
            semaphore.value = value;
            done += 1;
        }
        if outcome == Ok(Outcome::Done) {
            for o in operations {
                self.semaphores[usize::from(o.num)].pid = pid;
            }
            self.otime = now();
        } else {
            for o in &operations[..done] {
                self.semaphores[usize::from(o.num)].value -= i32::from(o.op);
                if let Some(own) = undo.as_mut().filter(|_| o.has(SEM_UNDO)) {
                    // As it was, however that came about.
                    own[usize::from(o.num)] = own[usize::from(o.num)].wrapping_add(o.op);
                }
            }
        }
        if let Some(own) = undo {
            self.undo.insert(pid, own);
        }
        outcome
    }

    /// Values have changed: does what has become possible of what others wait for. First those who wait for zero, as they
    /// change nothing; and so again once something has changed that they, or those who were looked at before, may have waited for.
    fn serve_waiting(&mut self) {
        let mut served = false;
        while !self.waiting.is_empty()
            && [false, true].into_iter().any(|altering| self.serve(altering, &mut served))
        {}
        if served {
            // All at once: many may have waited for one change.
            self.waiting.retain(|w| !w.served.load(Ordering::Relaxed));
        }
    }

    /// The same of those who alter something, or of those who don't. True: all are to be looked at again.
    fn serve(&mut self, altering: bool, served: &mut bool) -> bool {
        for n in 0..self.waiting.len() {
            let waiting = &self.waiting[n];
            if waiting.served.load(Ordering::Relaxed) || alters(&waiting.operations) != altering {
                continue;
            }
            let waiting = waiting.clone();
            let outcome = match self.perform(&waiting.operations, waiting.pid) {
                Ok(Outcome::Blocked(n)) if waiting.operations[n].has(IPC_NOWAIT) => Err(Errno::EAGAIN),
                Ok(Outcome::Blocked(n)) => {
                    waiting.blocked.store(n, Ordering::Relaxed);
                    continue;
                }
                Ok(Outcome::Done) => Ok(()),
                Err(e) => Err(e),
            };
            *served = true;
            waiting.served.store(true, Ordering::Relaxed);
            waiting.sleeper.serve(outcome);
            // Who has only taken leaves nothing for those before; but perhaps a zero.
            let changed = |o: &Sembuf| o.op > 0 || o.op < 0 && self.semaphores[usize::from(o.num)].value == 0;
            if outcome.is_ok() && waiting.operations.iter().any(changed) {
                return true;
            }
        }
        false
    }

    fn forget(&mut self, waiting: &Arc<Waiting>) {
        self.waiting.retain(|w| !Arc::ptr_eq(w, waiting));
    }

    /// How many wait for a semaphore: that it gets zero, or more.
    fn waiting_for(&self, num: usize, zero: bool) -> usize {
        let counts = |w: &&Arc<Waiting>| {
            let o = w.operations[w.blocked.load(Ordering::Relaxed)];
            usize::from(o.num) == num && if zero { o.op == 0 } else { o.op < 0 }
        };
        self.waiting.iter().filter(counts).count()
    }

    fn semaphore(&mut self, num: i32) -> Result<&mut Semaphore> {
        usize::try_from(num).ok().and_then(|num| self.semaphores.get_mut(num)).ok_or(Errno::EINVAL)
    }
}

/// `semget(2)`.
pub fn semget(c: &mut Call) -> Result<u64> {
    let (key, count, flags) = (c.int(0), c.int(1), c.uint(2));
    let count = usize::try_from(count).ok().filter(|n| *n <= SET_MAX).ok_or(Errno::EINVAL)?;
    let task = c.task;
    let fits = |set: &Set| {
        let state = set.state.lock();
        if count > state.semaphores.len() { Err(Errno::EINVAL) } else { state.perm.check(task, flags) }
    };
    let make = |_| {
        if count == 0 {
            return Err(Errno::EINVAL);
        }
        let state = State {
            perm: Perm::new(task, flags),
            removed: false,
            otime: 0,
            ctime: now(),
            semaphores: alloc::vec![Semaphore::default(); count],
            undo: BTreeMap::new(),
            waiting: Vec::new(),
        };
        Ok(Arc::new(Set { state: Mutex::new(state) }))
    };
    SETS.lock().find_or_make(key, flags, SETS_MAX, fits, make).map(|id| id as u64)
}

/// `semop(2)`.
pub fn semop(c: &mut Call) -> Result<u64> {
    operate(c, Limit::Forever)
}

/// `semtimedop(2)`.
pub fn semtimedop(c: &mut Call) -> Result<u64> {
    if c.arg(3) == 0 {
        return operate(c, Limit::Forever);
    }
    let timeout = get::<Timespec>(c.arg(3))?.to_ns()?;
    operate(c, Limit::Until(platform().now().saturating_add(timeout)))
}

fn operate(c: &mut Call, limit: Limit) -> Result<u64> {
    let (id, at, count) = (c.int(0), c.arg(1), c.arg(2) as u32 as usize);
    if count == 0 || id < 0 {
        return Err(Errno::EINVAL);
    }
    if count > OPERATIONS_MAX {
        return Err(Errno::E2BIG);
    }
    let mut operations = alloc::vec![Sembuf::default(); count];
    user::read(at, operations.as_mut_bytes())?;
    let set = SETS.lock().find(id)?.object;
    let process = &c.task.process;
    let waiting = {
        let mut state = set.state.lock();
        if operations.iter().any(|o| usize::from(o.num) >= state.semaphores.len()) {
            return Err(Errno::EFBIG);
        }
        state.perm.check(c.task, if alters(&operations) { ALTER } else { READ })?;
        if state.removed {
            return Err(Errno::EIDRM);
        }
        if operations.iter().any(|o| o.has(SEM_UNDO)) {
            process.undoes.store(true, Ordering::Relaxed);
        }
        match state.perform(&operations, process.pid)? {
            Outcome::Done => {
                if alters(&operations) {
                    state.serve_waiting();
                }
                return Ok(0);
            }
            Outcome::Blocked(n) if operations[n].has(IPC_NOWAIT) => return Err(Errno::EAGAIN),
            Outcome::Blocked(n) => {
                let (blocked, pid) = (AtomicUsize::new(n), process.pid);
                let waiting = Arc::new(Waiting {
                    operations,
                    blocked,
                    served: AtomicBool::new(false),
                    pid,
                    sleeper: Sleeper::new(),
                });
                state.waiting.push(waiting.clone());
                waiting
            }
        }
    };
    let outcome = waiting.sleeper.wait(c.task, limit, || set.state.lock().forget(&waiting));
    match outcome {
        Ok(()) => Ok(0),
        // Never restarted (`signal(7)`).
        Err(Errno::RESTART) => Err(Errno::EINTR),
        Err(Errno::ETIMEDOUT) => Err(Errno::EAGAIN),
        Err(e) => Err(e),
    }
}

/// Undoes a process's operations with SEM_UNDO: it ends, or wants to have nothing to do with them any more.
pub fn undo(process: &Process) {
    if !process.undoes.swap(false, Ordering::Relaxed) {
        return;
    }
    let sets: Vec<Arc<Set>> = SETS.lock().all().map(|found| found.object.clone()).collect();
    for set in sets {
        let mut state = set.state.lock();
        let Some(undo) = state.undo.remove(&process.pid) else { continue };
        for (semaphore, by) in state.semaphores.iter_mut().zip(undo).filter(|(_, by)| *by != 0) {
            let value = (semaphore.value + i32::from(by)).clamp(0, VALUE_MAX);
            *semaphore = Semaphore { value, pid: process.pid };
        }
        state.otime = now();
        state.serve_waiting();
    }
}

/// `semctl(2)`.
pub fn semctl(c: &mut Call) -> Result<u64> {
    let (id, num, command, arg) = (c.int(0), c.int(1), c.uint(2), c.arg(3));
    let task = c.task;
    if id < 0 {
        return Err(Errno::EINVAL);
    }
    match command {
        IPC_INFO | SEM_INFO => {
            let sets = SETS.lock();
            let (used, highest) = sets.used();
            let semaphores: usize = sets.all().map(|f| f.object.state.lock().semaphores.len()).sum();
            drop(sets);
            let most = SEMAPHORES_MAX;
            let mut info = Seminfo {
                semmap: most,
                semmni: SETS_MAX as i32,
                semmns: most,
                semmnu: most,
                semmsl: SET_MAX as i32,
                semopm: OPERATIONS_MAX as i32,
                semume: OPERATIONS_MAX as i32,
                semusz: 20,
                semvmx: VALUE_MAX,
                semaem: VALUE_MAX,
            };
            if command == SEM_INFO {
                (info.semusz, info.semaem) = (used as i32, semaphores as i32);
            }
            put(arg, &info)?;
            Ok(highest)
        }
        IPC_STAT | SEM_STAT | SEM_STAT_ANY => {
            let (found, value) = found_to_tell(&SETS, id, command != IPC_STAT)?;
            let state = found.object.state.lock();
            if command != SEM_STAT_ANY {
                state.perm.check(task, READ)?;
            }
            let told = SemidDs {
                perm: state.perm.told(found.key, found.id),
                otime: state.otime,
                ctime: state.ctime,
                nsems: state.semaphores.len() as u64,
                ..SemidDs::default()
            };
            drop(state);
            put(arg, &told)?;
            Ok(value)
        }
        GETVAL | GETPID | GETNCNT | GETZCNT => {
            let set = SETS.lock().find(id)?.object;
            let mut state = set.state.lock();
            state.perm.check(task, READ)?;
            let Semaphore { value, pid } = *state.semaphore(num)?;
            Ok(match command {
                GETVAL => value as u64,
                GETPID => u64::from(pid),
                _ => state.waiting_for(num as usize, command == GETZCNT) as u64,
            })
        }
        GETALL => {
            let set = SETS.lock().find(id)?.object;
            let state = set.state.lock();
            state.perm.check(task, READ)?;
            let values: Vec<u16> = state.semaphores.iter().map(|s| s.value as u16).collect();
            drop(state);
            user::write(arg, values.as_bytes()).map(|()| 0)
        }
        SETVAL => {
            let value = arg as i32;
            if !(0..=VALUE_MAX).contains(&value) {
                return Err(Errno::ERANGE);
            }
            let set = SETS.lock().find(id)?.object;
            let mut state = set.state.lock();
            state.semaphore(num)?;
            state.perm.check(task, ALTER)?;
            *state.semaphore(num)? = Semaphore { value, pid: task.process.pid };
            state.undo.values_mut().for_each(|undo| undo[num as usize] = 0);
            state.ctime = now();
            state.serve_waiting();
            Ok(0)
        }
        SETALL => {
            let set = SETS.lock().find(id)?.object;
            let count = {
                let state = set.state.lock();
                state.perm.check(task, ALTER)?;
                state.semaphores.len()
            };
            let mut values = alloc::vec![0u16; count];
            user::read(arg, values.as_mut_bytes())?;
            if values.iter().any(|value| i32::from(*value) > VALUE_MAX) {
                return Err(Errno::ERANGE);
            }
            let mut state = set.state.lock();
            for (semaphore, value) in state.semaphores.iter_mut().zip(values) {
                *semaphore = Semaphore { value: i32::from(value), pid: task.process.pid };
            }
            state.undo.values_mut().for_each(|undo| undo.fill(0));
            state.ctime = now();
            state.serve_waiting();
            Ok(0)
        }
        IPC_SET => {
            let new: SemidDs = get(arg)?;
            let set = SETS.lock().find(id)?.object;
            let mut state = set.state.lock();
            state.perm.check_owner(task)?;
            state.perm.set(&new.perm)?;
            state.ctime = now();
            Ok(0)
        }
        IPC_RMID => {
            let mut sets = SETS.lock();
            let set = sets.find(id)?.object;
            let mut state = set.state.lock();
            state.perm.check_owner(task)?;
            sets.remove(id);
            state.removed = true;
            for waiting in core::mem::take(&mut state.waiting) {
                waiting.sleeper.serve(Err(Errno::EIDRM));
            }
            Ok(0)
        }
        _ => Err(Errno::EINVAL),
    }
}

/// `/proc/sysvipc/sem`.
pub fn list() -> String {
    let mut text = String::from(
        "       key      semid perms      nsems   uid   gid  cuid  cgid      otime      ctime\n",
    );
    for Found { id, key, object } in SETS.lock().all() {
        let State { perm: p, otime, ctime, semaphores, .. } = &*object.state.lock();
        // A string takes whatever is written to it.
        let _ = writeln!(
            text,
            "{key:10} {id:10}  {:4o} {:10} {:5} {:5} {:5} {:5} {otime:10} {ctime:10}",
            p.mode,
            semaphores.len(),
            p.uid,
            p.gid,
            p.cuid,
            p.cgid,
        );
    }
    text
}
