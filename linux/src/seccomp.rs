//! Filters of system calls that programs put on themselves (`seccomp(2)`).
//!
//! A filter is a program of the classic Berkeley packet filter over a call's number, arguments and place. It is checked when it is given, by the
//! same rules as Linux's, and from then on runs before each call of its task, after a tracer has seen that. Who has none pays nothing:
//! while a task of the cell has one, calls look whether it is the caller's (`gate::FILTERED`).
//!
//! Not filtered is what never comes here, as with Linux's vDSO: the clocks, and `getpid`, `gettid`, `getppid` and `getpgrp`, which the runtime
//! answers from a word of the task's own. There are no listeners (`SECCOMP_RET_USER_NOTIF`): such a call fails with ENOSYS, as where nobody listens.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use atoll_abi::frame::UserFrame;
use atoll_abi::{Errno, Result};
use atoll_mem::user;
use atoll_sync::Mutex;
use atoll_task::gate;
use linux_raw_sys::general as linux;
use linux_raw_sys::ptrace::{
    self as p, AUDIT_ARCH_X86_64 as ARCH, SECCOMP_FILTER_FLAG_LOG as FLAG_LOG,
    SECCOMP_FILTER_FLAG_NEW_LISTENER as FLAG_NEW_LISTENER, SECCOMP_FILTER_FLAG_SPEC_ALLOW as FLAG_SPEC_ALLOW,
    SECCOMP_FILTER_FLAG_TSYNC as FLAG_TSYNC, SECCOMP_FILTER_FLAG_TSYNC_ESRCH as FLAG_TSYNC_ESRCH,
    SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV as FLAG_WAIT_KILLABLE_RECV,
    SECCOMP_GET_ACTION_AVAIL as GET_ACTION_AVAIL, SECCOMP_GET_NOTIF_SIZES as GET_NOTIF_SIZES,
    SECCOMP_MODE_FILTER as MODE_FILTER, SECCOMP_MODE_STRICT as MODE_STRICT,
    SECCOMP_RET_ACTION_FULL as RET_ACTION, SECCOMP_RET_ALLOW as RET_ALLOW, SECCOMP_RET_DATA as RET_DATA,
    SECCOMP_RET_ERRNO as RET_ERRNO, SECCOMP_RET_KILL_PROCESS as RET_KILL_PROCESS,
    SECCOMP_RET_KILL_THREAD as RET_KILL_THREAD, SECCOMP_RET_LOG as RET_LOG, SECCOMP_RET_TRACE as RET_TRACE,
    SECCOMP_RET_TRAP as RET_TRAP, SECCOMP_RET_USER_NOTIF as RET_USER_NOTIF,
    SECCOMP_SET_MODE_FILTER as SET_MODE_FILTER, SECCOMP_SET_MODE_STRICT as SET_MODE_STRICT,
};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::exec::visible_rip;
use crate::process::{Task, exit_task};
use crate::syscalls::{Call, unsupported};
use crate::types::Siginfo;
use crate::{core_dump, log, ptrace, signal};

/// Actions that the cell knows, as /proc/sys/kernel/seccomp/actions_avail names them.
pub const ACTIONS: &str = "kill_process kill_thread trap errno trace log allow\n";

/// Instructions of a filter, most.
const LONGEST: usize = p::BPF_MAXINSNS as usize;
/// Instructions of all filters of a task, most, as Linux counts them ([`Instruction::costs`]); each filter counts for some more
/// (`MAX_INSNS_PER_PATH`).
const LONGEST_PATH: usize = (1 << 18) / 8;
const BEGIN_COSTS: usize = 3;
const FILTER_COSTS: usize = 4;
/// Words of a filter's own.
const WORDS: u32 = p::BPF_MEMWORDS;
/// Bytes of what a filter looks at.
const DATA: u32 = size_of::<p::seccomp_data>() as u32;
/// The largest error number.
const ERROR_MAX: u32 = 4095;

/// An instruction (`struct sock_filter`).
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    k: u32,
}

impl Instruction {
    /// Instructions of the extended packet filter that it stands for (`bpf_convert_filter`).
    fn costs(&self) -> usize {
        match self.code {
            op::RET_K => 2,
            c if c == op::ALU | op::DIV | op::X => 5,
            c if c & op::CLASS == op::JMP && c != op::JA => {
                let large = c & op::X == 0 && (self.k as i32) < 0;
                let turns = self.if_true == 0 && c & op::OPERATION != op::JSET;
                1 + usize::from(large) + usize::from(self.if_false != 0 && !turns)
            }
            _ => 1,
        }
    }
}

/// The instructions that a filter may have, by `code` (`linux/bpf_common.h`).
mod op {
    use linux_raw_sys::ptrace::*;

    pub const LD_ABS: u16 = (BPF_LD | BPF_W | BPF_ABS) as u16;
    pub const LD_LEN: u16 = (BPF_LD | BPF_W | BPF_LEN) as u16;
    pub const LDX_LEN: u16 = (BPF_LDX | BPF_W | BPF_LEN) as u16;
    pub const LD_IMM: u16 = (BPF_LD | BPF_IMM) as u16;
    pub const LDX_IMM: u16 = (BPF_LDX | BPF_IMM) as u16;
    pub const LD_MEM: u16 = (BPF_LD | BPF_MEM) as u16;
    pub const LDX_MEM: u16 = (BPF_LDX | BPF_MEM) as u16;
    pub const ST: u16 = BPF_ST as u16;
    pub const STX: u16 = BPF_STX as u16;
    pub const RET_K: u16 = (BPF_RET | BPF_K) as u16;
    pub const RET_A: u16 = (BPF_RET | BPF_A) as u16;
    pub const TAX: u16 = (BPF_MISC | BPF_TAX) as u16;
    pub const TXA: u16 = (BPF_MISC | BPF_TXA) as u16;
    pub const NEG: u16 = (BPF_ALU | BPF_NEG) as u16;
    pub const JA: u16 = (BPF_JMP | BPF_JA) as u16;
    /// Classes that have an operation and a source beside.
    pub const ALU: u16 = BPF_ALU as u16;
    pub const JMP: u16 = BPF_JMP as u16;
    pub const CLASS: u16 = 0x07;
    pub const OPERATION: u16 = 0xf0;
    /// The second operand is X, not `k`.
    pub const X: u16 = BPF_X as u16;
    pub const ADD: u16 = BPF_ADD as u16;
    pub const SUB: u16 = BPF_SUB as u16;
    pub const MUL: u16 = BPF_MUL as u16;
    pub const DIV: u16 = BPF_DIV as u16;
    pub const OR: u16 = BPF_OR as u16;
    pub const AND: u16 = BPF_AND as u16;
    pub const LSH: u16 = BPF_LSH as u16;
    pub const RSH: u16 = BPF_RSH as u16;
    pub const XOR: u16 = BPF_XOR as u16;
    pub const JEQ: u16 = BPF_JEQ as u16;
    pub const JGT: u16 = BPF_JGT as u16;
    pub const JGE: u16 = BPF_JGE as u16;
    pub const JSET: u16 = BPF_JSET as u16;
}

/// A filter that was checked.
#[derive(Debug)]
struct Program {
    code: Vec<Instruction>,
    costs: usize,
    /// Does it look at where the call is made?
    looks_at_place: bool,
    /// What it doesn't allow is logged.
    logs: bool,
}

impl Program {
    /// EINVAL: no such instruction, a jump out of it, a word that was never stored to, no end (`bpf_check_classic`, `seccomp_check_filter`).
    fn new(code: Vec<Instruction>, logs: bool) -> Result<Program> {
        let len = code.len();
        // Words that were stored to on each way to an instruction, a bit each.
        let mut stored: Vec<u16> = Vec::new();
        stored.try_reserve_exact(len).map_err(|_| Errno::ENOMEM)?;
        stored.resize(len, u16::MAX);
        let mut here: u16 = 0;
        let mut looks_at_place = false;
        for (at, i) in code.iter().enumerate() {
            here &= stored[at];
            // What follows an instruction: so many are left.
            let left = len - at - 1;
            match i.code {
                op::LD_ABS if i.k >= DATA || i.k % 4 != 0 => return Err(Errno::EINVAL),
                op::LD_ABS => looks_at_place |= matches!(i.k, 8 | 12),
                op::LD_MEM | op::LDX_MEM | op::ST | op::STX if i.k >= WORDS => return Err(Errno::EINVAL),
                op::LD_MEM | op::LDX_MEM if here & 1 << i.k == 0 => return Err(Errno::EINVAL),
                op::ST | op::STX => here |= 1 << i.k,
                op::JA => {
                    if i.k as usize >= left {
                        return Err(Errno::EINVAL);
                    }
                    stored[at + 1 + i.k as usize] &= here;
                    here = u16::MAX;
                }
                op::LD_LEN | op::LDX_LEN | op::LD_IMM | op::LDX_IMM | op::LD_MEM | op::LDX_MEM => {}
                op::RET_K | op::RET_A | op::TAX | op::TXA | op::NEG => {}
                c if c & op::CLASS == op::ALU && c & !(op::CLASS | op::OPERATION | op::X) == 0 => {
                    match c & op::OPERATION {
                        op::DIV if c & op::X == 0 && i.k == 0 => return Err(Errno::EINVAL),
                        op::LSH | op::RSH if c & op::X == 0 && i.k >= 32 => return Err(Errno::EINVAL),
                        op::ADD | op::SUB | op::MUL | op::DIV | op::OR | op::AND => {}
                        op::LSH | op::RSH | op::XOR => {}
                        _ => return Err(Errno::EINVAL),
                    }
                }
                c if c & op::CLASS == op::JMP && c & !(op::CLASS | op::OPERATION | op::X) == 0 => {
                    let known = matches!(c & op::OPERATION, op::JEQ | op::JGT | op::JGE | op::JSET);
                    let (yes, no) = (usize::from(i.if_true), usize::from(i.if_false));
                    if !known || yes >= left || no >= left {
                        return Err(Errno::EINVAL);
                    }
                    stored[at + 1 + yes] &= here;
                    stored[at + 1 + no] &= here;
                    here = u16::MAX;
                }
                _ => return Err(Errno::EINVAL),
            }
        }
        match code.last() {
            Some(Instruction { code: op::RET_K | op::RET_A, .. }) => {
                let costs = BEGIN_COSTS + code.iter().map(Instruction::costs).sum::<usize>();
                Ok(Program { code, costs, looks_at_place, logs })
            }
            _ => Err(Errno::EINVAL),
        }
    }

    /// What it says of a call.
    fn run(&self, data: &[u32; DATA as usize / 4]) -> u32 {
        self.run_on(|n| data.get(n).copied()).unwrap_or(RET_KILL_THREAD)
    }

    /// Does it allow a call, whatever its arguments are, and wherever it is made?
    fn surely_allows(&self, number: u32) -> bool {
        self.run_on(|n| [number, ARCH].get(n).copied()) == Some(RET_ALLOW)
    }

    /// The calls that it surely allows, a bit each.
    fn allows(&self) -> [u64; NUMBERS / 64] {
        core::array::from_fn(|n| {
            let allowed = (0..64).filter(|bit| self.surely_allows(n as u32 * 64 + bit));
            allowed.fold(0, |word, bit| word | 1 << bit)
        })
    }

    /// What it says where `data` gives the words that it asks for. None: one isn't given.
    #[inline]
    fn run_on(&self, data: impl Fn(usize) -> Option<u32>) -> Option<u32> {
        let (mut a, mut x, mut words) = (0u32, 0u32, [0u32; WORDS as usize]);
        let mut at = 0;
        // It was checked: it only goes on, and ends.
        while let Some(i) = self.code.get(at) {
            at += 1;
            let source = if i.code & op::X == 0 { i.k } else { x };
            match i.code {
                op::RET_K => return Some(i.k),
                op::RET_A => return Some(a),
                op::LD_ABS => a = data(i.k as usize / 4)?,
                op::LD_LEN => a = DATA,
                op::LDX_LEN => x = DATA,
                op::LD_IMM => a = i.k,
                op::LDX_IMM => x = i.k,
                op::LD_MEM => a = words[i.k as usize],
                op::LDX_MEM => x = words[i.k as usize],
                op::ST => words[i.k as usize] = a,
                op::STX => words[i.k as usize] = x,
                op::TAX => x = a,
                op::TXA => a = x,
                op::NEG => a = a.wrapping_neg(),
                op::JA => at += i.k as usize,
                c if c & op::CLASS == op::JMP => {
                    let holds = match c & op::OPERATION {
                        op::JEQ => a == source,
                        op::JGT => a > source,
                        op::JGE => a >= source,
                        _ => a & source != 0,
                    };
                    at += usize::from(if holds { i.if_true } else { i.if_false });
                }
                c => {
                    a = match c & op::OPERATION {
                        op::ADD => a.wrapping_add(source),
                        op::SUB => a.wrapping_sub(source),
                        op::MUL => a.wrapping_mul(source),
                        op::DIV => match a.checked_div(source) {
                            Some(a) => a,
                            None => return Some(RET_KILL_THREAD),
                        },
                        op::OR => a | source,
                        op::AND => a & source,
                        op::LSH => a.wrapping_shl(source),
                        op::RSH => a.wrapping_shr(source),
                        _ => a ^ source,
                    }
                }
            }
        }
        None
    }
}

/// All filters of a task, in the order in which they came.
type List = Arc<[Arc<Program>]>;

/// What a task may call.
#[derive(Debug)]
pub struct Filters {
    mode: AtomicU32,
    /// Calls that all of them allow for certain, a bit each, by their numbers.
    allowed: [AtomicU64; NUMBERS / 64],
    list: Mutex<Option<List>>,
}

/// Calls of which it is known whether they are always allowed, as most are.
const NUMBERS: usize = 512;

impl Drop for Filters {
    fn drop(&mut self) {
        if self.is_on() {
            gate::FILTERED.count(false);
        }
    }
}

impl Filters {
    /// None.
    pub const fn none() -> Filters {
        let allowed = [const { AtomicU64::new(0) }; NUMBERS / 64];
        Filters { mode: AtomicU32::new(0), allowed, list: Mutex::new(None) }
    }

    /// Those of a task that makes another one.
    pub fn inherit(&self) -> Filters {
        let new = Filters::none();
        new.follow(self);
        new
    }

    /// Has what another one has, if that is more: one that makes this one, or that all are to follow.
    pub fn follow(&self, other: &Filters) {
        let mut mine = self.list.lock();
        let theirs = other.list.lock();
        let len = |list: &Option<List>| list.as_ref().map_or(0, |list| list.len());
        if len(&theirs) > len(&mine) {
            *mine = theirs.clone();
            for (mine, theirs) in self.allowed.iter().zip(&other.allowed) {
                mine.store(theirs.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
        self.set_mode(other.mode());
    }

    fn mode(&self) -> u32 {
        self.mode.load(Ordering::Acquire)
    }

    fn set_mode(&self, mode: u32) {
        if mode != 0 && self.mode.swap(mode, Ordering::AcqRel) == 0 {
            gate::FILTERED.count(true);
        }
    }

    /// Is any call of the task's not to be made, perhaps?
    #[inline]
    pub fn is_on(&self) -> bool {
        self.mode.load(Ordering::Relaxed) != 0
    }

    /// Is a call allowed, and need not be looked at?
    #[inline]
    pub fn surely_allow(&self, number: u32) -> bool {
        let word = self.allowed.get(number as usize / 64).map_or(0, |word| word.load(Ordering::Relaxed));
        word >> (number % 64) & 1 != 0
    }

    /// Is there room for another filter? ENOMEM: they would be too long.
    fn have_room(&self, program: &Program) -> Result<()> {
        let list = self.list.lock();
        let path: usize = list.iter().flat_map(|list| list.iter()).map(|f| f.costs + FILTER_COSTS).sum();
        if path + program.costs > LONGEST_PATH { Err(Errno::ENOMEM) } else { Ok(()) }
    }

    /// Adds a filter, of which it is known what it surely allows.
    fn add(&self, program: Arc<Program>, allows: &[u64; NUMBERS / 64]) {
        let mut list = self.list.lock();
        let before = list.as_deref().unwrap_or_default();
        let first = before.is_empty();
        for (word, allows) in self.allowed.iter().zip(allows) {
            let were = if first { u64::MAX } else { word.load(Ordering::Relaxed) };
            word.store(were & allows, Ordering::Relaxed);
        }
        *list = Some(before.iter().cloned().chain([program]).collect());
        self.set_mode(MODE_FILTER);
    }

    /// Mode and number of filters, as in `/proc/PID/status`.
    pub fn status(&self) -> (u32, usize) {
        (self.mode(), self.list.lock().as_ref().map_or(0, |list| list.len()))
    }

    /// Would this one's filters be those of `other`, and some more?
    fn goes_on_from(&self, other: &Filters) -> bool {
        let Some(theirs) = other.list.lock().clone() else { return other.mode() != MODE_STRICT };
        let mine = self.list.lock();
        let mine = mine.as_deref().unwrap_or_default();
        theirs.len() <= mine.len() && theirs.iter().zip(mine).all(|(a, b)| Arc::ptr_eq(a, b))
    }
}

/// What becomes of a call.
enum Fate {
    /// It is made.
    Made,
    /// It is not, and this is its result.
    Result(u64),
    /// It is not, and the task ends by this wait status.
    End(i32),
}

/// A task that has filters is about to make a call. False: it makes none, and the registers hold the result.
#[cold]
pub fn admits(task: &Task, frame: &mut UserFrame) -> bool {
    let fate = match task.filters.mode() {
        MODE_STRICT => strict(task, frame),
        _ => filtered(task, frame),
    };
    match fate {
        Fate::Made => true,
        Fate::Result(value) => {
            task.resumes.store(0, Ordering::Relaxed);
            frame.rax = value;
            false
        }
        // Here nothing is owned any more.
        Fate::End(status) => exit_task(status),
    }
}

fn strict(task: &Task, frame: &mut UserFrame) -> Fate {
    match frame.orig_rax as u32 {
        linux::__NR_read | linux::__NR_write | linux::__NR_exit | linux::__NR_rt_sigreturn => Fate::Made,
        number => kill(task, frame, (number, 0), linux::SIGKILL, false),
    }
}

fn filtered(task: &Task, frame: &mut UserFrame) -> Fate {
    let mut asked = false;
    loop {
        // While a tracer was asked others may have added one for all.
        let Some(list) = task.filters.list.lock().clone() else { return Fate::Made };
        let number = frame.orig_rax as u32;
        let ip = if list.iter().any(|f| f.looks_at_place) { visible_rip(task, frame.rip) } else { 0 };
        let f = &*frame;
        let mut data = [0u32; DATA as usize / 4];
        data[..2].copy_from_slice(&[number, ARCH]);
        for (n, word) in [ip, f.rdi, f.rsi, f.rdx, f.r10, f.r8, f.r9].into_iter().enumerate() {
            (data[2 + 2 * n], data[3 + 2 * n]) = (word as u32, (word >> 32) as u32);
        }
        // The one that forbids most, and of those the one that came last. The sign is a part of it: to kill the process is the least.
        let rank = |said: u32| (said & RET_ACTION) as i32;
        let mut said = RET_ALLOW;
        let mut logs = false;
        for program in list.iter().rev() {
            let one = program.run(&data);
            if rank(one) < rank(said) {
                (said, logs) = (one, program.logs);
            }
        }
        let value = said & RET_DATA;
        let action = said & RET_ACTION;
        if logs && action != RET_ALLOW || action == RET_LOG {
            tell(task, number, "is noted, and goes on");
        }
        return match action {
            RET_ALLOW | RET_LOG => Fate::Made,
            RET_ERRNO => Fate::Result(u64::from(value.min(ERROR_MAX)).wrapping_neg()),
            RET_TRAP => {
                // The registers are as they were.
                signal::force(task, info(task, frame, number, value));
                Fate::Result(frame.orig_rax)
            }
            // It has been asked, and may have changed the call.
            RET_TRACE if asked => Fate::Made,
            RET_TRACE if ptrace::wants(task, p::PTRACE_EVENT_SECCOMP) => {
                frame.rax = Errno::ENOSYS.to_ret() as u64;
                ptrace::complete(frame);
                ptrace::event(task, frame, p::PTRACE_EVENT_SECCOMP, value.into());
                if ptrace::is_going(task, false) || (frame.orig_rax as i32) < 0 {
                    return Fate::Result(frame.rax);
                }
                if frame.orig_rax as u32 != number {
                    // It isn't the wait that was to go on.
                    task.resumes.store(0, Ordering::Relaxed);
                }
                asked = true;
                continue;
            }
            RET_TRACE | RET_USER_NOTIF => Fate::Result(Errno::ENOSYS.to_ret() as u64),
            RET_KILL_THREAD => kill(task, frame, (number, value), linux::SIGSYS, false),
            _ => kill(task, frame, (number, value), linux::SIGSYS, true),
        };
    }
}

/// A SIGSYS for a call.
fn info(task: &Task, frame: &UserFrame, number: u32, value: u32) -> Siginfo {
    let mut info = Siginfo::fault(linux::SIGSYS, linux::SYS_SECCOMP as i32, visible_rip(task, frame.rip));
    info.errno = value as i32;
    info.words[1] = u64::from(number) | u64::from(ARCH) << 32;
    info
}

/// Ends the task, or its process, by a signal that nobody can catch, for a call and what a filter said of it.
fn kill(task: &Task, frame: &mut UserFrame, (number, value): (u32, u32), signal: u32, process: bool) -> Fate {
    if process || task.process.tasks.lock().len() == 1 {
        tell(task, number, "ends it");
        if signal == linux::SIGSYS {
            let info = info(task, frame, number, value);
            core_dump::end(task, frame, &info);
        } else {
            task.process.end_as(signal as i32);
        }
        return Fate::Result(frame.orig_rax);
    }
    tell(task, number, "ends its thread");
    Fate::End(signal as i32)
}

fn tell(task: &Task, number: u32, what: &str) {
    log::once(
        "seccomp",
        format_args!(
            "{}[{}]: system call {number}, which a filter of its own doesn't allow, {what}",
            alloc::string::String::from_utf8_lossy(&task.name()),
            task.process.pid
        ),
    );
}

/// `seccomp(2)`.
pub fn seccomp(c: &mut Call) -> Result<u64> {
    let (operation, flags, args) = (c.uint(0), c.uint(1), c.arg(2));
    match operation {
        SET_MODE_STRICT if flags == 0 && args == 0 => set_strict(c.task),
        SET_MODE_FILTER => set_filter(c, flags, args),
        GET_ACTION_AVAIL if flags == 0 => {
            let mut action = [0; 4];
            user::read(args, &mut action)?;
            match u32::from_ne_bytes(action) {
                RET_KILL_PROCESS | RET_KILL_THREAD | RET_TRAP | RET_ERRNO => Ok(0),
                RET_TRACE | RET_LOG | RET_ALLOW => Ok(0),
                _ => Err(Errno::EOPNOTSUPP),
            }
        }
        GET_NOTIF_SIZES if flags == 0 => {
            // Of a notification, an answer and a call: what programs ask for before they make a listener.
            let sizes = [80u16, 24, DATA as u16];
            user::write(args, sizes.as_bytes()).map(|()| 0)
        }
        _ => Err(Errno::EINVAL),
    }
}

/// `prctl(PR_SET_SECCOMP)`.
pub fn by_prctl(c: &mut Call, mode: u64, filter: u64) -> Result<u64> {
    match mode as u32 {
        _ if mode > u64::from(MODE_FILTER) => Err(Errno::EINVAL),
        MODE_STRICT => set_strict(c.task),
        MODE_FILTER => set_filter(c, 0, filter),
        _ => Err(Errno::EINVAL),
    }
}

fn set_strict(task: &Task) -> Result<u64> {
    // Nobody gives all of them a filter meanwhile.
    let _tasks = task.process.tasks.lock();
    if task.filters.mode() == MODE_FILTER {
        return Err(Errno::EINVAL);
    }
    task.filters.set_mode(MODE_STRICT);
    Ok(0)
}

fn set_filter(c: &mut Call, flags: u32, args: u64) -> Result<u64> {
    let task = c.task;
    let known = FLAG_TSYNC | FLAG_LOG | FLAG_SPEC_ALLOW | FLAG_NEW_LISTENER;
    if flags & !(known | FLAG_TSYNC_ESRCH | FLAG_WAIT_KILLABLE_RECV) != 0 {
        return Err(Errno::EINVAL);
    }
    let listens = flags & FLAG_NEW_LISTENER != 0;
    if flags & FLAG_WAIT_KILLABLE_RECV != 0 && !listens {
        return Err(Errno::EINVAL);
    }
    if listens {
        // A library that asks which flags there are gives nothing.
        let asks = args == 0;
        return Err(if asks {
            Errno::EINVAL
        } else {
            unsupported(task, "a seccomp listener", Errno::EINVAL)
        });
    }
    // struct sock_fprog: length, and where.
    let mut head = [0u64; 2];
    user::read(args, head.as_mut_bytes())?;
    let (len, at) = (usize::from(head[0] as u16), head[1]);
    if len == 0 || len > LONGEST {
        return Err(Errno::EINVAL);
    }
    {
        let ids = task.ids();
        if !ids.capabilities.no_new_privileges && !ids.may(linux::CAP_SYS_ADMIN) {
            return Err(Errno::EACCES);
        }
    }
    let mut code: Vec<Instruction> = Vec::new();
    code.try_reserve_exact(len).map_err(|_| Errno::ENOMEM)?;
    code.resize(len, Instruction::new_zeroed());
    user::read(at, code.as_mut_slice().as_mut_bytes())?;
    let program = Arc::new(Program::new(code, flags & FLAG_LOG != 0)?);
    let allows = program.allows();
    // Nobody begins or ends meanwhile.
    let tasks = task.process.tasks.lock();
    if task.filters.mode() == MODE_STRICT {
        return Err(Errno::EINVAL);
    }
    task.filters.have_room(&program)?;
    let others = || tasks.iter().filter(|t| flags & FLAG_TSYNC != 0 && t.tid() != task.tid());
    if let Some(other) = others().find(|t| !task.filters.goes_on_from(&t.filters)) {
        return if flags & FLAG_TSYNC_ESRCH != 0 { Err(Errno::ESRCH) } else { Ok(other.tid().into()) };
    }
    task.filters.add(program, &allows);
    let no_new_privileges = task.ids().capabilities.no_new_privileges;
    for other in others() {
        other.filters.follow(&task.filters);
        if no_new_privileges {
            other.change_ids(|ids| ids.capabilities.no_new_privileges = true);
        }
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(code: &[(u16, u8, u8, u32)]) -> Result<Program> {
        let code =
            code.iter().map(|&(code, if_true, if_false, k)| Instruction { code, if_true, if_false, k });
        Program::new(code.collect(), false)
    }

    const ALLOW: (u16, u8, u8, u32) = (op::RET_K, 0, 0, RET_ALLOW);
    const JEQ: u16 = op::JMP | op::JEQ;

    /// `bpf_check_classic` and `seccomp_check_filter`, rule by rule.
    #[test]
    fn programs_are_checked() {
        let refused: &[&[(u16, u8, u8, u32)]] = &[
            &[],
            &[(op::LD_IMM, 0, 0, 1)],
            &[(op::LD_ABS, 0, 0, 64), ALLOW],
            &[(op::LD_ABS, 0, 0, 2), ALLOW],
            &[(0x28, 0, 0, 0), ALLOW],
            &[(0x94, 0, 0, 2), ALLOW],
            &[(op::ALU | op::DIV, 0, 0, 0), ALLOW],
            &[(op::ALU | op::LSH, 0, 0, 32), ALLOW],
            &[(op::JA, 0, 0, 1), ALLOW],
            &[(op::JA, 0, 0, u32::MAX), ALLOW],
            &[(JEQ, 1, 0, 0), ALLOW],
            &[(JEQ, 0, 1, 0), ALLOW],
            &[(op::JMP | 0x50, 0, 0, 0), ALLOW],
            &[(op::ST, 0, 0, 16), ALLOW],
            &[(op::LD_MEM, 0, 0, 0), ALLOW],
            // Stored on one way only.
            &[(JEQ, 0, 1, 0), (op::ST, 0, 0, 3), (op::LD_MEM, 0, 0, 3), ALLOW],
            &[(0x107, 0, 0, 0), ALLOW],
            &[ALLOW, (op::TAX, 0, 0, 0)],
        ];
        for code in refused {
            assert_eq!(program(code).err(), Some(Errno::EINVAL), "{code:?}");
        }
        let taken: &[&[(u16, u8, u8, u32)]] = &[
            &[ALLOW],
            &[(op::ST, 0, 0, 15), (JEQ, 0, 1, 0), (op::LDX_MEM, 0, 0, 15), ALLOW],
            &[(op::JA, 0, 0, 1), (op::LD_MEM, 0, 0, 2), ALLOW],
            &[(op::ALU | op::DIV | op::X, 0, 0, 0), (op::ALU | op::RSH, 0, 0, 31), (op::RET_A, 0, 0, 0)],
        ];
        for code in taken {
            assert!(program(code).is_ok(), "{code:?}");
        }
    }

    #[test]
    fn programs_compute() {
        let mut data = [0; 16];
        data[0] = 39;
        data[5] = 7;
        let says = |code: &[(u16, u8, u8, u32)]| program(code).expect("it is sound").run(&data);
        assert_eq!(says(&[(op::LD_ABS, 0, 0, 0), (op::RET_A, 0, 0, 0)]), 39);
        assert_eq!(says(&[(op::LD_LEN, 0, 0, 0), (op::RET_A, 0, 0, 0)]), 64);
        // The higher half of the first argument, less the number, and that turned round.
        let computes = &[
            (op::LD_ABS, 0, 0, 0),
            (op::TAX, 0, 0, 0),
            (op::LD_ABS, 0, 0, 20),
            (op::ALU | op::SUB | op::X, 0, 0, 0),
            (op::NEG, 0, 0, 0),
            (op::ST, 0, 0, 4),
            (op::LD_IMM, 0, 0, 0),
            (op::LD_MEM, 0, 0, 4),
            (op::RET_A, 0, 0, 0),
        ];
        assert_eq!(says(computes), 32);
        let compares = |operation: u16, k: u32| {
            let code = [
                (op::LD_ABS, 0, 0, 0),
                (op::JMP | operation, 0, 1, k),
                (op::RET_K, 0, 0, 1),
                (op::RET_K, 0, 0, 0),
            ];
            says(&code) == 1
        };
        assert!(compares(op::JEQ, 39) && !compares(op::JEQ, 40));
        assert!(compares(op::JGT, 38) && !compares(op::JGT, 39));
        assert!(compares(op::JGE, 39) && !compares(op::JGE, 40));
        assert!(compares(op::JSET, 1) && !compares(op::JSET, 8));
        // Where the arguments matter, nothing is sure.
        let by_argument = program(&[(op::LD_ABS, 0, 0, 0), (JEQ, 0, 1, 3), (op::LD_ABS, 0, 0, 16), ALLOW])
            .expect("it is sound");
        assert!(!by_argument.surely_allows(3) && by_argument.surely_allows(4));
        // By X, which is 0.
        assert_eq!(says(&[(op::ALU | op::DIV | op::X, 0, 0, 0), (op::RET_K, 0, 0, 5)]), RET_KILL_THREAD);
    }
}
