//! The platform contract's conformance suite (`atoll_abi::platform`).
//!
//! It goes through the contract on whatever platform it finds itself on and writes down what that answers, a line
//! each. All platforms must write the same lines: the host's and the nucleus's are written by `main.rs`, a runtime
//! that runs this in place of programs; the simulator's by a test of its own, which has no programs. Nothing that
//! the contract leaves open is asked: how long something takes, or what happens to those who break its rules.
#![no_std]

mod memory;
mod programs;
mod time;

use core::fmt::Arguments;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use atoll_abi::control::MAGIC;
use atoll_abi::frame::{Upcall, UserFrame};
use atoll_abi::platform::{Event, Events, platform};
use atoll_abi::service::{Op, Request};
use atoll_mem::user;

/// What the suite needs beside the contract.
pub trait Machine {
    /// Writes a line down.
    fn say(&self, line: Arguments);
    /// Offset of a block of the cell's memory that nobody uses.
    fn block(&self) -> u64;
    /// Goes on in another space.
    fn switch(&self, space: u32);
    /// Runs a program from this frame on, up to its first upcall, which is told with the registers in the frame. None:
    /// this platform runs none.
    fn program(&self, frame: &mut UserFrame) -> Option<Upcall>;
}

/// As long as anything may take, ns.
const PATIENCE: u64 = 20_000_000_000;

/// Waits until something is so; false: it never is.
fn wait(is: impl Fn() -> bool) -> bool {
    let end = platform().now() + PATIENCE;
    while !is() {
        if platform().now() > end {
            return false;
        }
        core::hint::spin_loop();
    }
    true
}

/// What the second core is to do.
static COMMAND: AtomicU32 = AtomicU32::new(0);
/// Where.
static ADDRESS: AtomicU64 = AtomicU64::new(0);
/// How often it has done it.
static DONE: AtomicU64 = AtomicU64::new(0);

/// Nothing.
const REST: u32 = 0;
/// Sleep, once, until it is notified.
const SLEEP: u32 = 1;
/// Write to an address until that fails.
const WRITE: u32 = 2;
/// Look at nothing but shared memory until the pending word says something.
const SPIN: u32 = 3;

/// What cores but the first do, for ever.
pub fn other_core() -> ! {
    let p = platform();
    let core = atoll_abi::core_local::core_local();
    loop {
        match COMMAND.load(Ordering::SeqCst) {
            SLEEP => {
                p.park(None, &mut Events::new());
                COMMAND.store(REST, Ordering::SeqCst);
                DONE.fetch_add(1, Ordering::SeqCst);
            }
            WRITE => {
                if user::write(ADDRESS.load(Ordering::SeqCst), &[1]).is_ok() {
                    DONE.fetch_add(1, Ordering::SeqCst);
                } else {
                    COMMAND.store(REST, Ordering::SeqCst);
                }
                // Where cores take turns, this gives one.
                p.now();
            }
            SPIN => {
                let told = wait(|| core.pending.load(Ordering::SeqCst) != 0);
                core.pending.store(0, Ordering::SeqCst);
                COMMAND.store(REST, Ordering::SeqCst);
                DONE.fetch_add(u64::from(told), Ordering::SeqCst);
            }
            _ => {
                p.now();
                core::hint::spin_loop();
            }
        }
    }
}

/// Runs the suite, on the first of two cores.
pub fn run(machine: &dyn Machine) {
    let p = platform();
    let d = &p.control().descriptor;
    machine.say(format_args!("descriptor: magic {}", d.magic.load(Ordering::Relaxed) == MAGIC));
    machine.say(format_args!("descriptor: {} cores", d.cores.load(Ordering::Relaxed)));
    time::run(machine);
    answers(machine);
    others(machine);
    memory::run(machine);
    programs::run(machine);
    peers(machine);
    random(machine);
}

/// Messages and their answers.
fn answers(machine: &dyn Machine) {
    let p = platform();
    let mut request = Request::new(Op::Nop);
    let (mut sent, mut seen, mut strange) = (0u64, 0u64, 0);
    for n in 0..8 {
        request.cookie = 100 + n;
        request.arg[0] = 7 * n;
        sent |= u64::from(p.submit(&request).is_ok()) << n;
    }
    let end = p.now() + PATIENCE;
    let mut events = Events::new();
    while seen != sent && p.now() < end {
        p.park(Some(p.now() + 1_000_000), &mut events);
        for event in events.take().iter() {
            match event {
                Event::Answer(a)
                    if (100..108).contains(&a.cookie) && a.value as u64 == 7 * (a.cookie - 100) =>
                {
                    seen |= 1 << (a.cookie - 100);
                }
                _ => strange += 1,
            }
        }
    }
    machine.say(format_args!(
        "answers: sent {sent:#x}, seen {seen:#x}, strange {strange}, left {}",
        p.has_answers()
    ));
}

/// Commands the other core, and does something; has that one done it in the end?
fn command(what: u32, then: impl Fn()) -> bool {
    DONE.store(0, Ordering::SeqCst);
    COMMAND.store(what, Ordering::SeqCst);
    then();
    wait(|| DONE.load(Ordering::SeqCst) > 0)
}

/// Cores and each other.
fn others(machine: &dyn Machine) {
    let p = platform();
    // Notified before it sleeps or after: it wakes up.
    let woken = (0..20).filter(|n| {
        command(SLEEP, || {
            let until = p.now() + n * 20_000;
            wait(|| p.now() > until);
            p.notify(1);
        })
    });
    machine.say(format_args!("cores: woken {} of 20 times", woken.count()));
    let told = (0..20).filter(|_| command(SPIN, || p.interrupt(1)));
    machine.say(format_args!("cores: told {} of 20 times", told.count()));
}

/// Cells that lines may be sent to: in this cell there are none.
fn peers(machine: &dyn Machine) {
    let p = platform();
    for peer in [0, 7, 8, usize::MAX] {
        let inbox = p.inbox(peer).is_some();
        machine.say(format_args!("peer {peer}: send {:?}, inbox {inbox}", p.send(peer, &[1; 8])));
    }
}

fn random(machine: &dyn Machine) {
    let mut bytes = [[0u8; 61]; 3];
    for b in &mut bytes {
        platform().random(b);
    }
    let all = bytes.iter().all(|b| b.iter().any(|n| *n != 0) && b[56..].iter().any(|n| *n != 0));
    machine.say(format_args!("random: {}", all && bytes[0] != bytes[1] && bytes[1] != bytes[2]));
}
