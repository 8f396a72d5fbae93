//! Interrupts a program at every instruction of the way into the runtime and
//! back, and of its own around its system calls: nothing that it can see changes.
//!
//! The cell's host thread is single-stepped through the regions below, and runs
//! up to them elsewhere. At each of their addresses it is sent upcalls, as
//! notifications and as deadlines, at some of the times that it comes by. What is
//! executed because of that (the handler's exits, `resume`, a `resume` that is
//! thrown away) is stepped through and interrupted in turn.
#![allow(unsafe_code, reason = "traces a process")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::mem::offset_of;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use atoll_abi::layout::{RUNTIME_BASE, RUNTIME_END};
use atoll_tests::tracee::Tracee;
use atoll_tests::{Cell, Failed, Trial, arguments, atoll, run, top};
use iced_x86::{Decoder, FlowControl, InstructionInfoFactory, Register};
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};

/// How often an upcall is sent at each address.
const TIMES: u32 = 4;
/// Steps without a new address after which all are taken to have been seen.
const NOTHING_NEW: u64 = 30_000;
/// Instructions of the program's trampolines, at least: of `by_mov` the MOV, seven for the flags, three that read
/// and the jump back; of `by_following` two that enter, what was moved and the jump back.
const IN_TRAMPOLINES: usize = 16;
const LIMIT: Duration = Duration::from_secs(180);

fn main() {
    let trials = vec![
        Trial::test("upcall_at_every_instruction", every_instruction),
        Trial::test("quiet_calls_are_quiet", quiet_calls),
    ];
    libtest_mimic::run(&arguments(), trials).exit();
}

/// Addresses of a program's symbols.
fn symbols(path: &Path) -> Result<BTreeMap<String, u64>, Failed> {
    let bytes = std::fs::read(path)?;
    let file = object::File::parse(&*bytes)?;
    Ok(file.symbols().filter_map(|s| Some((s.name().ok()?.to_string(), s.address()))).collect())
}

/// The runtime's functions that serve quiet calls: names, addresses, and instructions.
fn quiet_functions() -> Result<Vec<(String, u64, Vec<u8>)>, Failed> {
    let bytes = std::fs::read(atoll().with_file_name("atoll-runtime"))?;
    let file = object::File::parse(&*bytes)?;
    let mut found = Vec::new();
    for symbol in file.symbols() {
        let name = symbol.name()?;
        let part = name.strip_prefix("atoll_quiet_").filter(|_| symbol.kind() == SymbolKind::Text);
        // Not the entry code's own label, which no function has.
        if part.is_some() && symbol.size() > 0 {
            let section = symbol.section_index().ok_or("a function is in no section")?;
            let section = file.section_by_index(section)?;
            let code =
                section.data_range(symbol.address(), symbol.size())?.ok_or("a function has no code")?;
            found.push((name.to_string(), symbol.address(), code.to_vec()));
        }
    }
    Ok(found)
}

/// The entry code saves less for them: no vector register, nothing that another call
/// needs, and the runtime goes nowhere else from there.
fn quiet_calls() -> Result<(), Failed> {
    let functions = quiet_functions()?;
    if functions.is_empty() {
        return Err("there are no quiet calls".into());
    }
    let mut factory = InstructionInfoFactory::new();
    for (name, address, code) in functions {
        for i in Decoder::with_ip(64, &code, address, 0).iter() {
            let flow = i.flow_control();
            let leaves = !matches!(flow, FlowControl::Next | FlowControl::Return);
            let scratch = |r: Register| {
                let preserved = [Register::RBX, Register::RBP, Register::R12, Register::R13, Register::R14];
                r.is_gpr() && !preserved.contains(&r.full_register()) && r.full_register() != Register::R15
                    || r == Register::None
            };
            let wrong = factory.info(&i).used_registers().iter().any(|u| !scratch(u.register()));
            if leaves || wrong || i.is_invalid() {
                return Err(
                    format!("{name}: {:?} at {:#x} is not for a quiet call", i.mnemonic(), i.ip()).into()
                );
            }
        }
    }
    Ok(())
}

/// What else is done with a thread of one processor.
trait Stepped {
    fn registers(&self) -> Result<libc::user_regs_struct, Failed>;
    fn write(&self, address: u64, word: u64) -> Result<(), Failed>;
    fn set_breakpoints(&self, addresses: [u64; 4]) -> Result<(), Failed>;
    fn share_processor(&self);
    fn release(&self, signal: i32) -> Result<(), Failed>;
    fn interrupt(&self, deadline: bool);
}

impl Stepped for Tracee {
    fn registers(&self) -> Result<libc::user_regs_struct, Failed> {
        // SAFETY: a plain structure.
        let mut regs: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        self.request(libc::PTRACE_GETREGS, 0, &raw mut regs as usize)?;
        Ok(regs)
    }

    fn write(&self, address: u64, word: u64) -> Result<(), Failed> {
        self.request(libc::PTRACE_POKEDATA, address as usize, word as usize)
    }

    /// Sets the processor's four breakpoint registers.
    fn set_breakpoints(&self, addresses: [u64; 4]) -> Result<(), Failed> {
        let register = |n: usize| offset_of!(libc::user, u_debugreg) + n * 8;
        for (n, address) in addresses.iter().enumerate() {
            self.request(libc::PTRACE_POKEUSER, register(n), *address as usize)?;
        }
        // All four, on execution.
        self.request(libc::PTRACE_POKEUSER, register(7), 0x55)
    }

    /// Moves this thread to the processor that it runs on: the two take turns anyway.
    fn share_processor(&self) {
        // SAFETY: a plain structure, filled by one call and read by the other. Failure costs time only.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::sched_getaffinity(self.0, size_of_val(&set), &raw mut set);
            libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
        }
    }

    /// Lets it go. After a POPF that was stepped over, Linux takes the trap flag for the program's own.
    fn release(&self, signal: i32) -> Result<(), Failed> {
        let mut regs = self.registers()?;
        regs.eflags &= !0x100;
        self.request(libc::PTRACE_SETREGS, 0, &raw mut regs as usize)?;
        self.request(libc::PTRACE_POKEUSER, offset_of!(libc::user, u_debugreg) + 7 * 8, 0)?;
        self.request(libc::PTRACE_DETACH, 0, signal as usize)
    }

    /// Sends an upcall: a notification, or as if the deadline's timer had run out.
    fn interrupt(&self, deadline: bool) {
        #[repr(C, align(8))]
        struct Info([i32; 32]);
        let mut info = Info([0; 32]);
        info.0[0] = libc::SIGURG;
        info.0[2] = if deadline { libc::SI_TIMER } else { libc::SI_TKILL };
        // SAFETY: a valid siginfo; a thread of ours.
        unsafe {
            let code = info.0[2];
            if code == libc::SI_TKILL {
                libc::syscall(libc::SYS_tgkill, self.0, self.0, libc::SIGURG);
            } else {
                libc::syscall(libc::SYS_rt_tgsigqueueinfo, self.0, self.0, libc::SIGURG, &raw const info);
            }
        }
    }
}

fn every_instruction() -> Result<(), Failed> {
    let dir = tempfile::Builder::new().prefix("atoll-test-").tempdir()?;
    let program = dir.path().join("stepped");
    let mut compiler = Command::new("gcc");
    compiler.args(["-O1", "-g", "-Wall", "-static", "-no-pie", "-pthread", "-o"]).arg(&program);
    compiler.arg(top().join("tests/stepped/stepped.c"));
    let compiled = run(compiler, Duration::from_secs(60))?;
    if compiled.status != 0 {
        return Err(format!("the program can't be compiled:\n{}", compiled.stderr).into());
    }
    let own = symbols(&program)?;
    let runtime = symbols(&atoll().with_file_name("atoll-runtime"))?;
    let of = |names: &BTreeMap<String, u64>, name: &str| {
        names.get(name).copied().ok_or_else(|| Failed::from(format!("there is no symbol {name}")))
    };
    let at = |name: &str| Ok::<u64, Failed>(RUNTIME_BASE + of(&runtime, name)?);
    // Entry, exit and resume; the switch between threads; the program's part.
    let mut regions = vec![
        at("atoll_entry")?..at("atoll_on_stack")?,
        at("atoll_switch")?..at("atoll_thread_start")?,
        of(&own, "steps_begin")?..of(&own, "steps_end")?,
    ];
    for (_, address, code) in quiet_functions()? {
        regions.push(RUNTIME_BASE + address..RUNTIME_BASE + address + code.len() as u64);
    }
    // Trampolines lie below it.
    let text = of(&own, "_init")?..of(&own, "_end")?;
    let stop = of(&own, "stop")?;

    let mut command = Command::new(atoll());
    command.args(["run", "--unconfined", "--cores", "1", "--memory", "64M"]);
    command.arg("--volume").arg(format!("{}:/data", dir.path().display()));
    command.args(["--workdir", "/", "--", "/data/stepped"]);
    let mut cell = Cell(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?);
    let mut out = BufReader::new(cell.0.stdout.take().ok_or("no standard output")?);
    let mut line = String::new();
    out.read_line(&mut line)?;
    let space = cell.space()?;

    let tracee = Tracee(space);
    tracee.request(libc::PTRACE_SEIZE, 0, 0)?;
    tracee.request(libc::PTRACE_INTERRUPT, 0, 0)?;
    // It may stop by a signal first, a trapped call's for example, which it must get.
    let mut signal = match tracee.wait()?.ok_or("it has ended")? {
        libc::SIGTRAP => 0,
        other => other,
    };
    let mut sent: BTreeMap<u64, u32> = BTreeMap::new();
    let (mut steps, mut upcalls, mut new_at) = (0u64, 0u32, 0u64);
    let mut random = 1u64;
    let begun = Instant::now();
    // Where the code under test is entered from elsewhere: from the runtime's inside,
    // from the handler of host signals, and from the rest of the program.
    let from_runtime = [
        at("atoll_syscall_return")?,
        at("atoll_pending_return")?,
        at("atoll_upcall_return")?,
        at("atoll_switch")?,
    ];
    let sigreturn = at("atoll_sigreturn")?;
    let from_handler = [at("atoll_to_thread_stack")?, sigreturn, sigreturn, sigreturn];
    let from_program =
        [of(&own, "by_mov")?, of(&own, "by_following")?, of(&own, "trapped")?, at("atoll_entry")?];
    tracee.share_processor();
    let mut set = None;
    let mut rip = tracee.registers()?.rip;
    while steps - new_at < NOTHING_NEW && begun.elapsed() < LIMIT {
        let in_runtime = (RUNTIME_BASE..RUNTIME_END).contains(&rip);
        let tested = regions.iter().any(|r| r.contains(&rip)) || !in_runtime && !text.contains(&rip);
        if tested && signal == 0 {
            let times = sent.entry(rip).or_insert(0);
            if *times == 0 {
                new_at = steps;
            }
            // Not each time that it is come by: so it is also seen what an earlier one leads to.
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if *times < TIMES && random >> 62 == 0 {
                tracee.interrupt(*times % 2 == 1);
                *times += 1;
                upcalls += 1;
            }
        }
        let run_to = if signal != 0 {
            Some(from_handler)
        } else if tested || (sigreturn..sigreturn + 8).contains(&rip) {
            None
        } else {
            Some(if in_runtime { from_runtime } else { from_program })
        };
        if run_to.is_some() && run_to != set {
            tracee.set_breakpoints(run_to.unwrap_or(from_runtime))?;
            set = run_to;
        }
        let how = if run_to.is_some() { libc::PTRACE_CONT } else { libc::PTRACE_SINGLESTEP };
        tracee.request(how, 0, signal as usize)?;
        let Some(stopped) = tracee.wait()? else {
            let mut text = String::new();
            cell.0.stderr.take().ok_or("no standard error")?.read_to_string(&mut text)?;
            return Err(format!("it ended after {upcalls} upcalls:\n{text}").into());
        };
        signal = if stopped == libc::SIGTRAP { 0 } else { stopped };
        rip = tracee.registers()?.rip;
        steps += 1;
    }
    tracee.write(stop, 1)?;
    tracee.release(signal)?;
    let mut rest = String::new();
    out.read_to_string(&mut rest)?;
    let status = cell.0.wait()?;
    let mut errors = String::new();
    cell.0.stderr.take().ok_or("no standard error")?.read_to_string(&mut errors)?;
    let said = format!("{upcalls} upcalls at {} addresses in {steps} steps: {rest}{errors}", sent.len());
    if !status.success() || !rest.starts_with("bad 0 of ") {
        return Err(format!("{status}: {said}").into());
    }
    println!("{said}");
    // A call of a known number that only reads a word does so in the program's own trampoline: as many
    // instructions there as that takes, beside those of the calls that go on to the runtime.
    let inside: Vec<u64> = sent
        .keys()
        .copied()
        .filter(|a| !(RUNTIME_BASE..RUNTIME_END).contains(a) && !text.contains(a))
        .collect();
    if inside.len() < IN_TRAMPOLINES {
        return Err(format!("only {inside:x?} in trampolines: {said}").into());
    }
    // What was never come by was not shown: the regions but for what starts and ends threads.
    let entered = |name: &str| at(name).map(|a| sent.contains_key(&a));
    for name in [
        "atoll_entry",
        "atoll_entry_commit",
        "atoll_quiet_call",
        "atoll_quiet_getppid",
        "atoll_exit_check",
        "atoll_exit_late",
        "atoll_pending_entry",
        "atoll_resume_critical",
        "atoll_resume_again",
        "atoll_to_thread_stack",
        "atoll_switch",
    ] {
        if !entered(name)? {
            return Err(format!("{name} was never come by: {said}").into());
        }
    }
    Ok(())
}
